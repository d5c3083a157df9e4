/* replay_scores.c - see replay_scores.h. */
#include "tools/replay_scores.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/str.h"
#include "ckpt/attempt.h"

/* A link that this call stores: unit k is place[k]. */
struct place {
    int link;
    char *name;                  /* "step/000003/score" */
    struct cairn_scores_table s; /* put and not written yet */
    json_t *metrics;
    const struct cairn_shard_entry *taken; /* the shard of a dead attempt that has it; borrowed from the manifest */
};

struct cairn_replay_scores {
    const struct cairn_run *run;
    char *top, *dir; /* RUN/replay/NAME; the artefact below it; NULL: nothing new */
    struct place *place;
    int *place_of;              /* (links) or -1: stored by an earlier call */
    int links, places, written; /* written: places before it lie in shards */
    int next;                   /* place that is to be put next */
    double span_s, since_s;
    struct cairn_manifest *m;
    struct cairn_attempt *a;
};

void cairn_replay_scores_close(struct cairn_replay_scores *x)
{
    if (!x)
        return;
    for (int k = 0; x->place && k < x->places; k++) {
        free(x->place[k].name);
        cairn_scores_free(&x->place[k].s);
        json_decref(x->place[k].metrics);
    }
    cairn_attempt_end(x->a);
    cairn_manifest_destroy(x->m);
    free(x->place);
    free(x->place_of);
    free(x->top);
    free(x->dir);
    free(x);
}

/* ---- what is there ---------------------------------------------------------------------------------------------------- */

/* Links of a committed artefact of NAME are no places any more, if it scored the same rollouts. */
static enum cairn_status earlier_read(struct cairn_replay_scores *x, const char *dir, struct cairn_digest recipe,
                                      const char *const *name, const struct cairn_digest *rollouts, struct cairn_error *err)
{
    struct cairn_manifest *m = NULL;
    enum cairn_status st = CAIRN_OK;
    const json_t *links;

    TRY(cairn_manifest_load(&m, dir, err));
    if (!cairn_digest_equal(m->recipe, recipe))
        TRY(cairn_fail(err, CAIRN_EUSAGE, "%s holds scores by another recipe; take another --name", x->top));
    links = json_object_get(m->content, "links");
    for (int i = 0; i < x->links; i++) {
        int there = 0, same = 0;

        for (size_t k = 0; k < json_array_size(links); k++) {
            const char *its = json_string_value(json_object_get(json_array_get(links, k), "name"));

            there |= its && !strcmp(its, name[i]);
        }
        for (int k = 0; k < m->ninputs; k++)
            same |= cairn_digest_equal(m->inputs[k].digest, rollouts[i]);
        if (there && !same)
            TRY(cairn_fail(err, CAIRN_EUSAGE, "%s holds scores of other rollouts of %s; take another --name", x->top, name[i]));
        if (there)
            x->place_of[i] = -1;
    }
out:
    cairn_manifest_destroy(m);
    return st;
}

/* Inputs of the link's own scores, each once. */
static enum cairn_status inputs_add(struct cairn_manifest *m, const struct cairn_run *run, const struct cairn_link *score,
                                    struct cairn_error *err)
{
    struct cairn_manifest *own = NULL;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_link_manifest(run, score, &own, err));
    for (int i = 0; i < own->ninputs; i++) {
        int there = 0;

        for (int k = 0; k < m->ninputs; k++)
            there |= !strcmp(m->inputs[k].path, own->inputs[i].path);
        if (!there)
            TRY(cairn_manifest_add_input(m, own->inputs[i].path, own->inputs[i].digest, err));
    }
out:
    cairn_manifest_destroy(own);
    return st;
}

/* ---- what a dead attempt left ------------------------------------------------------------------------------------------ */

struct found {
    struct cairn_replay_scores *x;
    int *last; /* (places) of the shard that begins with place k: the largest; -1: none */
};

static int find_one(void *arg, const char *name, const char *identity, int64_t epoch)
{
    struct found *f = arg;
    int first, last, end = 0;

    (void)identity;
    (void)epoch;
    if (sscanf(name, "links-%d-%d%n", &first, &last, &end) == 2 && !name[end] && first >= 0 && last >= first &&
        last < f->x->places && last > f->last[first])
        f->last[first] = last;
    return 0;
}

/* Whole shards from the front on, as far as they follow each other. */
static enum cairn_status shards_adopt(struct cairn_replay_scores *x, struct cairn_error *err)
{
    struct found f = {x, malloc(((size_t)x->places + 1) * sizeof *f.last)};
    enum cairn_status st = CAIRN_OK;

    if (!f.last)
        return CAIRN_NOMEM(err);
    for (int k = 0; k < x->places; k++)
        f.last[k] = -1;
    TRY(cairn_attempt_each(x->a, find_one, &f, err));
    while (x->written < x->places && f.last[x->written] >= 0) {
        struct cairn_shard_entry *entry = NULL;
        char name[64];
        int last = f.last[x->written];

        snprintf(name, sizeof name, "links-%06d-%06d", x->written, last);
        TRY(cairn_attempt_adopt(x->a, name, "", &entry, err));
        if (!entry)
            break;
        for (int k = x->written; k <= last; k++)
            x->place[k].taken = entry;
        TRY(cairn_manifest_add_shard(x->m, entry, err));
        x->written = last + 1;
    }
out:
    free(f.last);
    return st;
}

/* ---- the beginning ----------------------------------------------------------------------------------------------------- */

/* Names of the links' scores, digests of their rollouts. */
static enum cairn_status links_read(const struct cairn_run *run, const struct cairn_link *link, int n, char **name,
                                    struct cairn_digest *rollouts, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < n; i++) {
        const struct cairn_link score = {link[i].step, CAIRN_STAGE_SCORE, link[i].eval};
        char *dir = cairn_link_path(run, &link[i]);
        struct cairn_manifest_head head;

        name[i] = cairn_link_relative(&score);
        st = dir && name[i] ? cairn_manifest_head(&head, dir, err) : CAIRN_NOMEM(err);
        free(dir);
        TRY(st);
        rollouts[i] = head.digest;
    }
out:
    return st;
}

/* Artefacts 1, 2, ... of NAME that are committed; then the directory of the next one. */
static enum cairn_status earlier_find(struct cairn_replay_scores *x, struct cairn_digest recipe, const char *const *name,
                                      const struct cairn_digest *rollouts, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int k = 1;; k++) {
        char *dir = cairn_format("%s/%d", x->top, k);

        if (!dir)
            TRY(CAIRN_NOMEM(err));
        if (!cairn_artefact_committed(dir)) {
            x->dir = dir;
            break;
        }
        st = earlier_read(x, dir, recipe, name, rollouts, err);
        if (st == CAIRN_OK) /* killed behind its commit, a call may not have tidied up */
            st = cairn_artefact_settle(dir, err);
        free(dir);
        TRY(st);
    }
out:
    return st;
}

static enum cairn_status places_make(struct cairn_replay_scores *x, const struct cairn_link *link, struct cairn_digest recipe,
                                     char **name, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    x->place = calloc((size_t)x->links + 1, sizeof *x->place);
    x->m = cairn_manifest_create("score", 0, x->run->uuid);
    if (!x->place || !x->m)
        TRY(CAIRN_NOMEM(err));
    x->m->recipe = recipe;
    for (int i = 0; i < x->links; i++) {
        const struct cairn_link score = {link[i].step, CAIRN_STAGE_SCORE, link[i].eval};

        if (x->place_of[i] < 0)
            continue;
        x->place_of[i] = x->places;
        x->place[x->places++] = (struct place){.link = i, .name = name[i]};
        name[i] = NULL;
        TRY(inputs_add(x->m, x->run, &score, err));
    }
out:
    return st;
}

enum cairn_status cairn_replay_scores_open(struct cairn_replay_scores **out, const struct cairn_run *run, const char *name,
                                           struct cairn_digest recipe, const struct cairn_link *link, int n, double span_s,
                                           struct cairn_error *err)
{
    struct cairn_replay_scores *x = calloc(1, sizeof *x);
    char *relative = cairn_format("replay/%s", name), **names = calloc((size_t)n + 1, sizeof *names);
    struct cairn_digest *rollouts = calloc((size_t)n + 1, sizeof *rollouts);
    enum cairn_status st = CAIRN_OK;

    if (!x || !relative || !names || !rollouts)
        TRY(CAIRN_NOMEM(err));
    x->run = run;
    x->links = n;
    x->span_s = span_s;
    x->since_s = cairn_now_s();
    x->top = cairn_run_path(run, relative);
    x->place_of = calloc((size_t)n + 1, sizeof *x->place_of);
    if (!x->top || !x->place_of)
        TRY(CAIRN_NOMEM(err));
    TRY(links_read(run, link, n, names, rollouts, err));
    TRY(earlier_find(x, recipe, (const char *const *)names, rollouts, err));
    TRY(places_make(x, link, recipe, names, err));
    if (x->places) {
        TRY(cairn_attempt_begin(&x->a, x->dir, &(struct cairn_attempt_opts){.identity = cairn_manifest_identity(x->m)}, err));
        TRY(shards_adopt(x, err));
    }
    *out = x;
    x = NULL;
out:
    cairn_replay_scores_close(x);
    cairn_strings_free(names, n);
    free(rollouts);
    free(relative);
    return st;
}

/* ---- link by link ------------------------------------------------------------------------------------------------------ */

enum cairn_status cairn_replay_scores_take(struct cairn_replay_scores *x, int i, struct cairn_scores_table *s, int *taken,
                                           struct cairn_error *err)
{
    int k = x->place_of[i];
    const struct cairn_shard_entry *e = k < 0 ? NULL : x->place[k].taken;
    enum cairn_status st = CAIRN_OK;

    *taken = e != NULL;
    if (!e)
        return CAIRN_OK;
    TRY(cairn_unit_column(x->dir, e, k, "verdict", CAIRN_U8, s->n, s->verdict, err));
    TRY(cairn_unit_column(x->dir, e, k, "status", CAIRN_U8, s->n, s->status, err));
    TRY(cairn_unit_column(x->dir, e, k, "value", CAIRN_F32, s->n, s->value, err));
out:
    return st;
}

/* Places [written, next) become a shard. */
static enum cairn_status flush(struct cairn_replay_scores *x, struct cairn_error *err)
{
    int n = x->next - x->written;
    struct cairn_scores_part *part = calloc((size_t)n + 1, sizeof *part);
    struct cairn_shard_entry *entry = NULL;
    enum cairn_status st = CAIRN_OK;
    char name[64];

    if (!part)
        TRY(CAIRN_NOMEM(err));
    for (int k = 0; k < n; k++)
        part[k] = (struct cairn_scores_part){&x->place[x->written + k].s, 0, x->place[x->written + k].s.n};
    snprintf(name, sizeof name, "links-%06d-%06d", x->written, x->next - 1);
    TRY(cairn_attempt_check(x->a, err));
    TRY(cairn_scores_write_parts(part, x->written, n, x->a, name, "", &entry, err));
    TRY(cairn_manifest_add_shard(x->m, entry, err));
    for (int k = x->written; k < x->next; k++)
        cairn_scores_free(&x->place[k].s);
    x->written = x->next;
    x->since_s = cairn_now_s();
out:
    free(part);
    return st;
}

enum cairn_status cairn_replay_scores_put(struct cairn_replay_scores *x, int i, struct cairn_scores_table *s, const json_t *metrics,
                                          struct cairn_error *err)
{
    int k = x->place_of[i];

    if (k < 0)
        return CAIRN_OK;
    if (k != x->next)
        return CAIRN_BUG(err, "scores of links out of order");
    x->next++;
    x->place[k].metrics = json_deep_copy(metrics);
    if (!x->place[k].metrics)
        return CAIRN_NOMEM(err);
    if (x->place[k].taken)
        return CAIRN_OK;
    x->place[k].s = *s;
    memset(s, 0, sizeof *s);
    return cairn_now_s() - x->since_s > x->span_s ? flush(x, err) : CAIRN_OK;
}

enum cairn_status cairn_replay_scores_commit(struct cairn_replay_scores *x, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    json_t *links = json_array();

    if (!links)
        TRY(CAIRN_NOMEM(err));
    if (!x->places)
        goto out;
    if (x->written < x->next)
        TRY(flush(x, err));
    for (int k = 0; k < x->places; k++)
        if (json_array_append_new(links, json_pack("{s:s, s:O}", "name", x->place[k].name, "metrics", x->place[k].metrics)))
            TRY(CAIRN_NOMEM(err));
    if (json_object_set(x->m->content, "links", links) || json_object_set_new(x->m->content, "units", json_integer(x->places)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_attempt_commit(x->a, x->m, err));
out:
    json_decref(links);
    return st;
}

/* retention.c - see retention.h. Removes only a<N>, or what lies in it, of artefacts that are marked, or hollow. */
#include "ckpt/retention.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "ckpt/beneath.h"

#define MARKER_BYTES 65536

/* --- the marker --- */

int cairn_artefact_collected(const char *dir)
{
    int collected;

    return cairn_artefact_collected_look(dir, &collected, NULL) == CAIRN_OK && collected;
}

/* A marker of the manifest that is there, or of none that can be told. Only what is whole on both sides says otherwise: then it is left from an
 * artefact that was dropped in this place. */
static enum cairn_status marker_counts(const char *dir, const char *text, size_t n, int *counts, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_manifest_glance glance;
    struct cairn_manifest_head head;
    json_t *obj = NULL;
    const char *of;

    *counts = 1;
    if (cairn_checked_parse(&obj, text, n, CAIRN_COLLECTED_NAME, NULL) != CAIRN_OK ||
        cairn_json_string(obj, "manifest", &of, CAIRN_COLLECTED_NAME, NULL) != CAIRN_OK)
        goto out;
    st = cairn_manifest_glance(&glance, dir, err);
    if (st == CAIRN_OK && strcmp(of, glance.check) && (st = cairn_manifest_head(&head, dir, err)) == CAIRN_OK)
        *counts = 0;
    if (st == CAIRN_ENOINPUT || st == CAIRN_EDATA)
        st = CAIRN_OK;
out:
    json_decref(obj);
    return st;
}

enum cairn_status cairn_artefact_collected_look(const char *dir, int *collected, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_manifest_glance glance;
    char *text = NULL;
    int missing;
    size_t n;

    *collected = 0;
    st = cairn_beneath_read(dir, CAIRN_COLLECTED_NAME, MARKER_BYTES, &text, &n, &missing, err);
    if (st == CAIRN_OK) {
        TRY(marker_counts(dir, text, n, collected, err));
    } else if (st == CAIRN_EDATA) { /* none, or no proper one: that counts */
        st = CAIRN_OK;
        *collected = !missing;
    }
    TRY(st);
    if (*collected)
        goto out;
    st = cairn_manifest_glance(&glance, dir, err);
    *collected = st == CAIRN_OK && glance.hollow;
    if (st == CAIRN_ENOINPUT || st == CAIRN_EDATA)
        st = CAIRN_OK;
out:
    free(text);
    return st;
}

char *cairn_artefact_collected_why(const char *dir)
{
    struct cairn_manifest_head head;
    char *text = NULL, *why = NULL;
    json_t *obj = NULL;
    const char *s;
    size_t n;

    if (cairn_manifest_head(&head, dir, NULL) == CAIRN_OK && head.hollow[0])
        return strdup(head.hollow);
    if (cairn_beneath_read(dir, CAIRN_COLLECTED_NAME, MARKER_BYTES, &text, &n, NULL, NULL) == CAIRN_OK &&
        cairn_checked_parse(&obj, text, n, CAIRN_COLLECTED_NAME, NULL) == CAIRN_OK &&
        cairn_json_string(obj, "reason", &s, CAIRN_COLLECTED_NAME, NULL) == CAIRN_OK)
        why = strdup(s);
    json_decref(obj);
    free(text);
    return why ? why : strdup("");
}

enum cairn_status cairn_artefact_mark(const char *dir, const char *reason, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *text = NULL, *path = cairn_path_join(dir, CAIRN_COLLECTED_NAME);
    json_t *obj = json_pack("{s:s, s:f}", "reason", reason ? reason : "", "wall", cairn_wall_s());
    struct cairn_manifest_glance glance;
    size_t n;

    if (!path || !obj)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_manifest_glance(&glance, dir, err));
    if (glance.check[0] && json_object_set_new(obj, "manifest", json_string(glance.check)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_checked_text(obj, &text, &n, err));
    st = cairn_file_replace(path, text, n, err); /* durable before the first shard goes */
    if (st != CAIRN_OK && cairn_artefact_collected(dir)) /* another collector was first and swept our temporary away: written anew, not synced anew */
        st = cairn_file_replace(path, text, n, err);
out:
    json_decref(obj);
    free(path);
    free(text);
    return st;
}

/* --- pins --- */

static enum cairn_status pin_path(char **out, const char *dir, const char *name, struct cairn_error *err)
{
    if (!cairn_name_ok(name))
        return cairn_fail(err, CAIRN_EBUG, "%s: \"%.64s\" is no name for a pin", dir, name);
    *out = cairn_format("%s/pin/%s", dir, name);
    return *out ? CAIRN_OK : CAIRN_NOMEM(err);
}

enum cairn_status cairn_artefact_pin(const char *dir, const char *name, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = NULL, *pins = cairn_path_join(dir, "pin"), *text = NULL;
    struct cairn_holder self;
    json_t *obj = NULL;
    size_t n;

    if (!pins)
        TRY(CAIRN_NOMEM(err));
    TRY(pin_path(&path, dir, name, err));
    if (!cairn_artefact_committed(dir))
        TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s: not committed", dir));
    cairn_holder_self(&self);
    if (!(obj = cairn_holder_json(&self)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_checked_text(obj, &text, &n, err));
    TRY(cairn_dir_make(pins, err));
    TRY(cairn_file_replace(path, text, n, err));
    /* The collector puts its marker down and then looks for pins; we do it the other way round: one of us sees the other. */
    if (cairn_artefact_collected(dir)) {
        unlink(path);
        TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s: was collected", dir));
    }
out:
    json_decref(obj);
    free(text);
    free(path);
    free(pins);
    return st;
}

enum cairn_status cairn_artefact_unpin(const char *dir, const char *name, struct cairn_error *err)
{
    char *path;
    enum cairn_status st = pin_path(&path, dir, name, err);

    if (st != CAIRN_OK)
        return st;
    if (unlink(path) && errno != ENOENT)
        st = cairn_fail_errno(err, errno, "remove %s", path);
    free(path);
    return st;
}

/* 1: somebody who lives, or of whom nothing certain is known, holds a pin. Pins of the dead are removed. */
static enum cairn_status pinned_by_the_living(const char *dir, const struct cairn_retention *r, int *pinned, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *pins = cairn_path_join(dir, "pin");
    struct dirent *e;
    DIR *d = NULL;

    *pinned = 0;
    if (!pins)
        return CAIRN_NOMEM(err);
    if (!(d = opendir(pins))) {
        if (errno != ENOENT)
            st = cairn_fail_errno(err, errno, "list %s", pins);
        goto out;
    }
    for (errno = 0; (e = readdir(d)); errno = 0) {
        struct cairn_holder h;
        json_t *obj = NULL;
        char *text = NULL;
        int alive = -1;
        size_t n;

        if (!cairn_name_ok(e->d_name) || strstr(e->d_name, ".tmp."))
            continue;
        if (cairn_beneath_read(pins, e->d_name, MARKER_BYTES, &text, &n, NULL, NULL) == CAIRN_OK &&
            cairn_checked_parse(&obj, text, n, e->d_name, NULL) == CAIRN_OK && cairn_holder_parse(&h, obj, e->d_name, NULL) == CAIRN_OK) {
            alive = cairn_holder_alive(&h);
            if (alive < 0 && r && r->alive)
                alive = r->alive(r->arg, &h);
        }
        json_decref(obj);
        free(text);
        if (alive)
            *pinned = 1;
        else
            unlinkat(dirfd(d), e->d_name, 0);
    }
    if (errno)
        st = cairn_fail_errno(err, errno, "list %s", pins);
out:
    if (d)
        closedir(d);
    free(pins);
    return st;
}

int cairn_artefact_pinned(const char *dir)
{
    char *pins = cairn_path_join(dir, "pin");
    DIR *d = pins ? opendir(pins) : NULL;
    int any = !d && (!pins || (errno != ENOENT && errno != ENOTDIR));

    for (struct dirent *e; d && (e = readdir(d));)
        any |= cairn_name_ok(e->d_name) && !strstr(e->d_name, ".tmp.");
    if (d)
        closedir(d);
    free(pins);
    return any;
}

/* --- collection --- */

static int is_index(const json_t *indexes, const char *folder, const char *name)
{
    char rel[300];

    return snprintf(rel, sizeof rel, "%s/%s", folder, name) < (int)sizeof rel && json_object_get(indexes, rel);
}

/* What of one attempt's folder goes. */
static enum cairn_status folder_data(struct cairn_names *out, const char *dir, const char *folder, const json_t *indexes,
                                     struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_path_join(dir, folder);
    struct cairn_names in = {0};
    int there, stay = 0;

    if (!path)
        return CAIRN_NOMEM(err);
    if (json_object_size(indexes))
        TRY(cairn_dir_names(&in, path, &there, err));
    for (size_t i = 0; i < in.n; i++)
        stay += is_index(indexes, folder, in.name[i]);
    if (!stay)
        TRY(cairn_names_add(out, strdup(folder), err));
    for (size_t i = 0; stay && i < in.n; i++)
        if (!is_index(indexes, folder, in.name[i]))
            TRY(cairn_names_add(out, cairn_path_join(folder, in.name[i]), err));
out:
    cairn_names_free(&in);
    free(path);
    return st;
}

enum cairn_status cairn_artefact_data(struct cairn_names *out, const char *dir, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_names data = {0};
    int64_t *attempts = NULL;
    json_t *indexes = NULL;
    char folder[32];
    size_t n = 0;

    TRY(cairn_attempt_numbers(dir, "a", &attempts, &n, err));
    if (n)
        st = cairn_manifest_indexes(&indexes, dir, err);
    if (st == CAIRN_ENOINPUT || st == CAIRN_EDATA)
        st = CAIRN_OK;
    TRY(st);
    for (size_t i = 0; i < n; i++) {
        snprintf(folder, sizeof folder, "a%lld", (long long)attempts[i]);
        TRY(folder_data(&data, dir, folder, indexes, err));
    }
    *out = data;
    data = (struct cairn_names){0};
out:
    cairn_names_free(&data);
    json_decref(indexes);
    free(attempts);
    return st;
}

/* The marker is on the disk before the first of the data goes, whoever wrote it: a collector that died between rename and fsync has not seen to
 * it. */
static enum cairn_status remove_data(const char *dir, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_names data = {0};
    char *path = NULL;

    TRY(cairn_artefact_data(&data, dir, err));
    if (data.n)
        TRY(cairn_dir_sync(dir, err));
    for (size_t i = 0; i < data.n; i++) {
        free(path);
        if (!(path = cairn_path_join(dir, data.name[i])))
            TRY(CAIRN_NOMEM(err));
        TRY(cairn_tree_remove(path, err));
    }
    if (data.n)
        TRY(cairn_dir_sync(dir, err));
    cairn_dir_sweep(dir);
out:
    cairn_names_free(&data);
    free(path);
    return st;
}

enum cairn_status cairn_artefact_collect(const char *dir, const struct cairn_retention *r, int *pinned, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int held = 0;

    if (pinned)
        *pinned = 0;
    if (!cairn_artefact_collected(dir)) {
        if (!cairn_artefact_committed(dir))
            TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s: not committed, so there is nothing to collect", dir));
        TRY(pinned_by_the_living(dir, r, &held, err));
        if (!held)
            TRY(cairn_artefact_mark(dir, r ? r->reason : NULL, err));
    }
    /* A reader may have come before the marker, whoever put it down: who pins now sees it. The marker never goes again, since another
     * collector may be at work behind it; the data wait for the pin to go. */
    if (!held)
        TRY(pinned_by_the_living(dir, r, &held, err));
    if (!held)
        TRY(remove_data(dir, err));
    if (pinned)
        *pinned = held;
out:
    return st;
}

enum cairn_status cairn_artefact_drop(const char *dir, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *manifest = cairn_path_join(dir, CAIRN_MANIFEST_NAME), *marker = cairn_path_join(dir, CAIRN_COLLECTED_NAME);

    if (!manifest || !marker)
        TRY(CAIRN_NOMEM(err));
    if (!unlink(manifest))
        TRY(cairn_dir_sync(dir, err));
    else if (errno != ENOENT && errno != ENOTDIR)
        TRY(cairn_fail_errno(err, errno, "remove %s", manifest));
    unlink(marker); /* first of the rest: a marker alone looks as if a manifest had been lost */
    TRY(cairn_tree_remove(dir, err));
out:
    free(manifest);
    free(marker);
    return st;
}

/* --- the plan --- */

static int64_t last_kept(const struct cairn_retention *r)
{
    return r->keep < 0 ? INT64_MAX : r->keep < 1 ? 1 : r->keep;
}

/* However old it is. */
static int stays(const struct cairn_retention *r, int64_t step)
{
    return (r->keep_every > 0 && step % r->keep_every == 0) || (r->spare && step == *r->spare);
}

void cairn_retention_plan(const struct cairn_retention *r, const int64_t *step, int n, int *keep)
{
    for (int i = 0; i < n; i++) {
        int64_t newer = 0;

        for (int j = 0; j < n; j++)
            newer += step[j] > step[i];
        keep[i] = newer < last_kept(r) || stays(r, step[i]);
    }
}

/* 1: manifest and shards are as they should be; 0: not; the status is for what stands in the way of looking. */
static enum cairn_status valid(const char *dir, int all_bytes, int *ok, struct cairn_error *err)
{
    struct cairn_manifest *m = NULL;
    enum cairn_status st = cairn_manifest_load(&m, dir, err);

    *ok = st == CAIRN_OK;
    for (int i = 0; *ok && i < m->nshards; i++) {
        const struct cairn_shard_entry *e = m->shards[i];
        struct cairn_digest d = e->digest;
        int64_t size = -1;
        int fd = -1;

        if (all_bytes) {
            st = cairn_beneath_digest(dir, e->file, &d, &size, NULL, err);
        } else if ((st = cairn_beneath_open(dir, e->file, &fd, &size, NULL, err)) == CAIRN_OK) {
            close(fd);
        }
        *ok = st == CAIRN_OK && size == e->size && cairn_digest_equal(d, e->digest);
    }
    cairn_manifest_destroy(m);
    return st == CAIRN_EAGAIN || st == CAIRN_ENOSPACE ? st : CAIRN_OK; /* stopped, or out of memory */
}

static int by_step(const void *a, const void *b)
{
    int64_t x = ((const struct cairn_generation *)a)->step, y = ((const struct cairn_generation *)b)->step;

    return x < y ? 1 : x > y ? -1 : 0; /* newest first */
}

/* What was begun. *idle: there was nothing left to do (calm only). */
static enum cairn_status finish(const struct cairn_retention *r, const char *dir, int *idle, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_names data = {0};

    if (r->calm) {
        TRY(cairn_artefact_data(&data, dir, err));
        *idle = !data.n;
    }
    if (!*idle)
        TRY(cairn_artefact_collect(dir, r, NULL, err));
out:
    cairn_names_free(&data);
    return st;
}

/* Generations, newest first, in the order in which they are looked at. */
struct look {
    const struct cairn_retention *r;
    struct cairn_generation *gen, *stay, *begun; /* all; of the newest: those that stay, and those that are marked already */
    int n, at, stays, begins;
    int durable; /* those that stay are */
};

/* The newest valid ones; damaged ones in between are left alone. */
static enum cairn_status newest(struct look *l, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t kept = 0;

    for (; l->at < l->n && kept < last_kept(l->r); l->at++) {
        const struct cairn_generation g = l->gen[l->at];
        int ok;

        if (!cairn_artefact_committed(g.dir)) /* somebody may be making it, beside the marker of one that was dropped */
            continue;
        if (cairn_artefact_collected(g.dir)) {
            l->begun[l->begins++] = g;
        } else {
            TRY(valid(g.dir, l->r->verify, &ok, err));
            l->stay[l->stays++] = g;
            kept += ok;
        }
    }
    if (l->stays && !kept)
        TRY(cairn_fail(err, CAIRN_EDATA, "none of %d generations is valid (the newest is %s): nothing is collected", l->stays, l->stay[0].dir));
out:
    return st;
}

/* One behind them. *idle: it needed nothing. */
static enum cairn_status older(struct look *l, const struct cairn_generation *g, int *idle, int *collected, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int pinned;

    *idle = !cairn_artefact_committed(g->dir);
    if (*idle)
        goto out;
    if (cairn_artefact_collected(g->dir)) {
        st = finish(l->r, g->dir, idle, err);
    } else if (stays(l->r, g->step)) {
        *idle = 1;
    } else {
        for (int k = 0; k < l->stays && !l->durable; k++) /* an attempt may have died between its link and its fsync: what stays must stay */
            TRY(cairn_artefact_durable(l->stay[k].dir, err));
        l->durable = 1;
        TRY(cairn_artefact_collect(g->dir, l->r, &pinned, err));
        *collected += !pinned;
    }
out:
    return st;
}

enum cairn_status cairn_retention_apply(const struct cairn_retention *r, const struct cairn_generation *gen, int n, int *collected,
                                        struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_generation *g = malloc(3 * ((size_t)n + 1) * sizeof *g);
    struct look l = {.r = r, .gen = g, .stay = g + n + 1, .begun = g + 2 * (n + 1), .n = n};
    int idle, calm = 0, went = 0;

    if (!g)
        TRY(CAIRN_NOMEM(err));
    memcpy(g, gen, (size_t)n * sizeof *g);
    qsort(g, (size_t)n, sizeof *g, by_step);
    TRY(newest(&l, err));
    for (int i = 0; i < l.begins && l.stays; i++) {
        idle = 0;
        TRY(finish(r, l.begun[i].dir, &idle, err));
    }
    for (; l.at < n && (!r->calm || calm < r->calm); l.at++) {
        TRY(older(&l, &g[l.at], &idle, &went, err));
        calm = idle ? calm + 1 : 0;
    }
out:
    if (collected)
        *collected = went;
    free(g);
    return st;
}

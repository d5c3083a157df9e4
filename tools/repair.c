/* repair.c - the closure over lineage, and the moves (repair.h). */
#include "tools/repair.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/retention.h"
#include "ckpt/verify.h"
#include "stages/common/gap.h"
#include "stages/common/publish.h"
#include "tools/quarantine.h"
#include "tools/replay.h"

struct node {
    char *path, *dir; /* relative to RUN; as the walk gave it */
    int collected, readable, damaged, lineage, needed, aside;
    int orphan; /* an input is not there, which is passed by: its link, + 1 */
    int blocks; /* collected, and the chain cannot go on without it */
    int bare;   /* a marker without a manifest: it is not there */
    int record; /* damaged, of a collected one: nobody reads it */
    char **input; /* artefacts only */
    int inputs;
    int64_t step;
    int order;
    char *bad; /* what is wrong with it */
    char *why; /* it is dropped because; NULL: it stays */
};

/* What link i of the chain makes. */
struct product {
    char *path; /* relative to RUN */
    int link;
};

struct graph {
    const struct cairn_run *run;
    struct node *node; /* in the order of the chain */
    struct node **by_path; /* sorted; NULL while the walk goes on */
    int n, cap;
    struct cairn_link *chain; /* links of it */
    struct product *product;  /* (links) by path */
    char *pass;               /* those that nobody will make, as far as is known (gap.h) */
    char *makeable;           /* (known) of the first links of the chain: it is there as it should be, or can be made from what is */
    int links, known;
};

void cairn_repair_free(struct cairn_repair_result *r)
{
    json_decref(r->dropped);
    json_decref(r->collected);
    json_decref(r->mended);
    json_decref(r->missing);
    json_decref(r->left);
    free(r->quarantine);
}

static enum cairn_status note(json_t *list, const char *path, const char *why, struct cairn_error *err)
{
    return json_array_append_new(list, json_pack("{s:s, s:s}", "path", path, "why", why)) ? CAIRN_NOMEM(err) : CAIRN_OK;
}

/* ---- the graph --------------------------------------------------------------------------------------------------------- */

static int path_order(const void *a, const void *b)
{
    return strcmp((*(struct node *const *)a)->path, (*(struct node *const *)b)->path);
}

static struct node *find(const struct graph *g, const char *path)
{
    struct node key = {.path = (char *)path}, *k = &key, **found;

    found = g->n ? bsearch(&k, g->by_path, (size_t)g->n, sizeof *g->by_path, path_order) : NULL;
    return found ? *found : NULL;
}

static int chain_order(const void *a, const void *b)
{
    const struct node *x = a, *y = b;

    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    if (x->order != y->order)
        return x->order < y->order ? -1 : 1;
    return strcmp(x->path, y->path);
}

/* After the walk. */
static enum cairn_status graph_sort(struct graph *g, struct cairn_error *err)
{
    if (!(g->by_path = malloc(((size_t)g->n + 1) * sizeof *g->by_path)))
        return CAIRN_NOMEM(err);
    if (g->n)
        qsort(g->node, (size_t)g->n, sizeof *g->node, chain_order);
    for (int i = 0; i < g->n; i++)
        g->by_path[i] = &g->node[i];
    if (g->n)
        qsort(g->by_path, (size_t)g->n, sizeof *g->by_path, path_order);
    return CAIRN_OK;
}

/* Step and place inside of it, of "step/000003/train/ref", "policy/000003", "eval/000003/NAME/score", "base"; what is no link of the chain
 * comes last of its step. */
static void place(struct node *v)
{
    static const char *const stages[] = {"/rollout", "/score", "/train"};
    const char *slash = strchr(v->path, '/');
    char number[32] = "";

    if (slash)
        snprintf(number, sizeof number, "%.*s", (int)strcspn(slash + 1, "/"), slash + 1);
    if (!cairn_parse_i64(number, &v->step) || v->step < 0)
        v->step = -1; /* base */
    v->order = 9;
    if (v->step < 0)
        v->order = 0;
    else if (cairn_starts_with(v->path, "policy/"))
        v->order = 4;
    else
        for (int s = 0; s < 3; s++)
            if (strstr(v->path, stages[s]))
                v->order = cairn_starts_with(v->path, "eval/") ? 5 + s : 1 + s;
}

static int product_order(const void *a, const void *b)
{
    return strcmp(((const struct product *)a)->path, ((const struct product *)b)->path);
}

static enum cairn_status chain_read(struct graph *g, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_run_chain(g->run, &g->chain, &g->links, err));
    g->product = calloc((size_t)g->links + 1, sizeof *g->product);
    g->makeable = malloc((size_t)g->links + 1);
    if (!g->product || !g->makeable)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < g->links; i++) {
        g->product[i].link = i;
        if (!(g->product[i].path = cairn_link_relative(&g->chain[i])))
            TRY(CAIRN_NOMEM(err));
    }
    qsort(g->product, (size_t)g->links, sizeof *g->product, product_order);
out:
    return st;
}

/* The link that makes `path`; -1: none does. */
static int maker(const struct graph *g, const char *path)
{
    const struct product key = {.path = (char *)path},
                         *found = bsearch(&key, g->product, (size_t)g->links, sizeof *g->product, product_order);

    return found ? found->link : -1;
}

/* Of a manifest that cannot be read: what such a link reads. */
static enum cairn_status inputs_guess(const struct graph *g, struct node *v, struct cairn_error *err)
{
    int i = maker(g, v->path);

    return i < 0 ? CAIRN_OK : cairn_link_inputs(g->run, &g->chain[i], &v->input, &v->inputs, err);
}

static enum cairn_status node_add(void *arg, const struct cairn_artefact *a, struct cairn_error *err)
{
    struct graph *g = arg;
    struct cairn_manifest *m = NULL;
    enum cairn_status st = CAIRN_OK;
    struct node *v;

    if (g->n == g->cap) {
        int cap = g->cap ? 2 * g->cap : 256;
        struct node *p = realloc(g->node, (size_t)cap * sizeof *p);

        if (!p)
            return CAIRN_NOMEM(err);
        g->node = p;
        g->cap = cap;
    }
    v = &g->node[g->n];
    *v = (struct node){.path = strdup(a->path), .dir = strdup(a->dir), .collected = a->collected};
    g->n++;
    if (!v->path || !v->dir)
        TRY(CAIRN_NOMEM(err));
    place(v);
    st = cairn_manifest_load(&m, a->dir, err);
    if (st == CAIRN_EDATA || st == CAIRN_ENOINPUT) {
        v->bare = st == CAIRN_ENOINPUT;
        st = inputs_guess(g, v, err);
        goto out;
    }
    TRY(st);
    v->readable = 1;
    v->input = calloc((size_t)m->ninputs + 1, sizeof *v->input);
    if (!v->input)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < m->ninputs; i++)
        if (!cairn_starts_with(m->inputs[i].path, "file:") && !(v->input[v->inputs++] = strdup(m->inputs[i].path)))
            TRY(CAIRN_NOMEM(err));
out:
    cairn_manifest_destroy(m);
    return st;
}

static void graph_free(struct graph *g)
{
    for (int i = 0; i < g->n; i++) {
        free(g->node[i].path);
        free(g->node[i].dir);
        free(g->node[i].why);
        free(g->node[i].bad);
        cairn_strings_free(g->node[i].input, g->node[i].inputs);
    }
    free(g->node);
    free(g->by_path);
    for (int i = 0; g->product && i < g->links; i++)
        free(g->product[i].path);
    free(g->product);
    free(g->chain);
    free(g->pass);
    free(g->makeable);
}

/* ---- what goes ----------------------------------------------------------------------------------------------------------- */

/* The artefact that a bad file lies in: the innermost. *rel: the file's path in it. */
static struct node *owner(const struct graph *g, const char *path, const char **rel)
{
    struct node *best = NULL;
    size_t longest = 0;

    for (int i = 0; i < g->n; i++) {
        size_t n = strlen(g->node[i].dir);

        if (n >= longest && !strncmp(path, g->node[i].dir, n) && (path[n] == '/' || !path[n])) {
            best = &g->node[i];
            longest = n;
            *rel = path[n] ? path + n + 1 : "";
        }
    }
    return best;
}

/* epoch/N, or a<N>/X.json beside its shard: read by nobody once the artefact is committed. (Where it is an index file of the manifest, that is what
 * verify finds damaged.) */
static int is_small(const char *rel)
{
    const char *slash = strchr(rel, '/');

    if (cairn_starts_with(rel, "epoch/"))
        return 1;
    return rel[0] == 'a' && slash > rel + 1 && strspn(rel + 1, "0123456789") == (size_t)(slash - rel - 1) && cairn_ends_with(rel, ".json");
}

static enum cairn_status drop(struct node *v, char *why, struct cairn_error *err)
{
    if (!why)
        return CAIRN_NOMEM(err);
    v->why = why;
    return CAIRN_OK;
}

/* Sorts what is bad into what is dropped, what is only mended, and what is left. small: paths of files to move, relative to RUN.
 * markers: directories of artefacts whose marker is written anew. */
static enum cairn_status sort_out(struct graph *g, const json_t *bad, json_t *small, json_t *markers, struct cairn_repair_result *out,
                                  struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    size_t i;
    json_t *b;

    json_array_foreach((json_t *)bad, i, b)
    {
        const char *path = json_string_value(json_object_get(b, "path")), *why = json_string_value(json_object_get(b, "why")), *rel = "";
        struct node *v = owner(g, path, &rel);

        if (!v) {
            TRY(note(out->left, path, why, err));
        } else if (v->readable && is_small(rel)) {
            char *relative = v->path[0] ? cairn_path_join(v->path, rel) : strdup(rel);

            if (!relative || json_array_append_new(small, json_string(relative))) {
                free(relative);
                TRY(CAIRN_NOMEM(err));
            }
            free(relative);
            TRY(note(out->mended, path, "taken away; nobody needs it any more", err));
        } else if (v->readable && v->collected && !strcmp(rel, CAIRN_COLLECTED_NAME)) {
            if (json_array_append_new(markers, json_string(v->dir)))
                TRY(CAIRN_NOMEM(err));
            TRY(note(out->mended, path, "written anew", err));
        } else if (json_object_get(b, "input")) {
            continue; /* missing_sort */
        } else if (v->collected) {
            v->record = 1;
        } else if (!v->damaged) {
            if (!(v->bad = cairn_format("damaged: %s", why)))
                TRY(CAIRN_NOMEM(err));
            v->damaged = 1;
            v->lineage = !*rel;
        }
    }
out:
    return st;
}

static int is_base(const char *path)
{
    return !strcmp(path, "base");
}

static int is_whole(const struct node *v)
{
    return v->readable && !v->collected && !v->damaged;
}

/* Is RUN/base, or policy 0 where no link makes it, there as it should be, or not there? Then the next call makes it, of the recipe and of the base.
 * Of a base that is a link: where that leads nowhere, verify has told so, and what was made from it is not damaged. */
static int begun_makeable(const struct graph *g, const char *path)
{
    const struct node *v = find(g, path), *base = find(g, "base");

    return v ? is_whole(v) : is_base(path) || (!strcmp(path, "policy/000000") && (!base || is_whole(base)));
}

/* A trainer whose state before was only told: can it train again from the last one that was kept? */
static enum cairn_status trainable(struct graph *g, int64_t step, char *yes, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t from;

    TRY(cairn_publish_state(g->run, step - 1, &from, err));
    *yes = from >= 0;
    for (int64_t s = from + 1; *yes && s < step; s++) {
        const struct cairn_link reads[] = {{s, CAIRN_STAGE_ROLLOUT, NULL}, {s, CAIRN_STAGE_SCORE, NULL}};

        for (int k = 0; k < 2 && *yes; k++) {
            char *path = cairn_link_relative(&reads[k]);
            int i;

            if (!path)
                TRY(CAIRN_NOMEM(err));
            i = maker(g, path);
            *yes = i >= 0 && i < g->known && g->makeable[i];
            free(path);
        }
    }
out:
    return st;
}

/* Is what link i makes there as it should be, or made from what is? What a link reads stands before it. */
static enum cairn_status link_makeable(struct graph *g, int i, char *yes, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_link_relative(&g->chain[i]), **input = NULL;
    const struct node *v = path ? find(g, path) : NULL;
    int inputs = 0, there = v && !v->bare;

    if (!path)
        TRY(CAIRN_NOMEM(err));
    if (!there && g->chain[i].stage != CAIRN_STAGE_CHECK) /* the gate looks at what is there */
        TRY(cairn_link_inputs(g->run, &g->chain[i], &input, &inputs, err));
    *yes = (char)(!there || is_whole(v));
    for (int k = 0; k < inputs && *yes; k++) {
        int from = maker(g, input[k]);

        *yes = (char)(from < 0 ? begun_makeable(g, input[k]) : from < i && g->makeable[from]);
        if (!*yes && from >= 0 && g->chain[i].stage == CAIRN_STAGE_TRAIN && g->chain[from].stage == CAIRN_STAGE_TRAIN)
            TRY(trainable(g, g->chain[i].step, yes, err));
    }
out:
    cairn_strings_free(input, inputs);
    free(path);
    return st;
}

static enum cairn_status makeable(struct graph *g, const char *path, int *yes, struct cairn_error *err)
{
    const int i = maker(g, path);
    enum cairn_status st = CAIRN_OK;

    for (; g->known <= i; g->known++)
        TRY(link_makeable(g, g->known, &g->makeable[g->known], err));
    *yes = i < 0 ? begun_makeable(g, path) : g->makeable[i];
out:
    return st;
}

static int noted(const json_t *list, const char *path)
{
    size_t i;
    json_t *v;

    json_array_foreach((json_t *)list, i, v)
        if (!strcmp(json_string_value(json_object_get(v, "path")), path))
            return 1;
    return 0;
}

/* Of the links that are not made, or that are dropped, those that are passed by. None is where everything that depends on damage goes. *changed: it
 * is not as it was. */
static enum cairn_status pass_mark(struct graph *g, int dependents, int *changed, struct cairn_error *err)
{
    char *done = malloc((size_t)g->links + 1), *damaged = malloc((size_t)g->links + 1), *pass = calloc((size_t)g->links + 1, 1);
    enum cairn_status st = CAIRN_OK;

    if (!done || !damaged || !pass)
        TRY(CAIRN_NOMEM(err));
    for (int k = 0; k < g->links; k++) {
        const struct node *v = find(g, g->product[k].path);
        const int i = g->product[k].link;

        done[i] = v && !v->why && !v->bare;
        damaged[i] = v && v->damaged;
    }
    if (!dependents)
        TRY(cairn_links_pass(g->run, g->chain, g->links, done, damaged, pass, err));
    *changed = !g->pass || memcmp(g->pass, pass, (size_t)g->links);
    free(g->pass);
    g->pass = pass;
    pass = NULL;
out:
    free(done);
    free(damaged);
    free(pass);
    return st;
}

/* Of a step that the run does not come to: run.steps was lowered. */
static int is_beyond(const struct graph *g, const struct node *v)
{
    return v->step > cairn_recipe_i64(g->run->recipe, "run.steps");
}

/* After sort_out: those of the bad that are good, but for an input that is missing. It is made again, or passed by; else they count as damaged. */
static enum cairn_status missing_sort(struct graph *g, const json_t *bad, struct cairn_repair_result *out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    size_t i;
    json_t *b;

    json_array_foreach((json_t *)bad, i, b)
    {
        const char *input = json_string_value(json_object_get(b, "input")), *why = json_string_value(json_object_get(b, "why")), *rel = "";
        struct node *v = input ? owner(g, json_string_value(json_object_get(b, "path")), &rel) : NULL;
        int again = 0, link;

        if (!v || (is_base(input) && cairn_run_base_given(g->run)))
            continue;
        TRY(makeable(g, input, &again, err));
        link = maker(g, input);
        if (again && !noted(out->missing, input)) {
            TRY(note(out->missing, input, cairn_replay_origin(g->run->recipe, "run") ? "is not there; cairn replay OLD --train makes it again"
                                                                                     : "is not there; cairn run makes it again",
                     err));
        } else if (!again && is_beyond(g, v)) {
            TRY(note(out->left, v->path, "one of its inputs is not there, and the run ends before it (run.steps)", err));
        } else if (!again && link >= 0 && g->pass[link]) {
            v->orphan = link + 1;
        } else if (!again && !v->damaged) {
            if (!(v->bad = cairn_format("damaged: %s", why)))
                TRY(CAIRN_NOMEM(err));
            v->damaged = v->lineage = 1;
        }
    }
out:
    return st;
}

/* When it is known what goes: what is left as it is, for nobody needs it. */
static enum cairn_status leave(struct graph *g, struct cairn_repair_result *out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < g->n; i++) {
        const struct node *v = &g->node[i];

        if (v->record && !v->why)
            TRY(note(out->left, v->path, "its record is damaged; its data were collected, so nobody reads it to go on", err));
        if (v->orphan && !v->why && g->pass[v->orphan - 1])
            TRY(note(out->left, v->path, "one of its inputs is not there, what that was made from was collected, and nothing that is still to be made "
                                         "reads it; --dependents goes back far enough to make it again", err));
    }
out:
    return st;
}

/* An open link reads it. block: the chain cannot go on where its data were collected, as an interrupted repair leaves it, or a hand. */
static void mark(struct graph *g, const char *path, int block)
{
    struct node *v = find(g, path);

    if (v) {
        v->needed = 1;
        v->blocks |= v->collected && block;
    }
}

/* What the first trainer that is still to run reads besides its own inputs: it trains again from the last state that was kept, where later ones were
 * only told. *from: that step; step - 1 where the state before is there, or none is. */
static enum cairn_status trained_again(struct graph *g, int64_t step, int64_t *from, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_publish_state(g->run, step - 1, from, err));
    if (*from < 0)
        *from = step - 1;
    for (int64_t s = *from; s < step - 1; s++) {
        const struct cairn_link reads[] = {
            {s + 1, CAIRN_STAGE_ROLLOUT, NULL}, {s + 1, CAIRN_STAGE_SCORE, NULL}, {s, CAIRN_STAGE_TRAIN, NULL}, {s, CAIRN_STAGE_SYNC, NULL}};

        for (size_t k = 0; k < (s == *from ? 4 : 2); k++) {
            char *path = cairn_link_relative(&reads[k]);

            if (!path)
                TRY(CAIRN_NOMEM(err));
            mark(g, path, 1);
            free(path);
        }
    }
out:
    return st;
}

/* What links of the chain that are not made yet and not passed by read; and what a step behind all of them would. */
static enum cairn_status needs_mark(struct graph *g, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_reach reach = cairn_run_reach(g->run);
    struct cairn_link *links = malloc(((size_t)g->links + 4) * sizeof *links);
    int64_t next = cairn_recipe_i64(g->run->frozen, "run.steps"), first = 0, from = 0; /* of the first step that is still to be trained */
    int n = g->links;

    if (!links)
        TRY(CAIRN_NOMEM(err));
    memcpy(links, g->chain, (size_t)n * sizeof *links);
    for (int i = 0; i < g->n; i++)
        next = g->node[i].step > next ? g->node[i].step : next;
    for (int s = 0; s < 4; s++)
        links[n++] = (struct cairn_link){next + 1, (enum cairn_stage)s, NULL};
    for (int i = 0; i < n; i++) {
        const struct cairn_link *l = &links[i];
        char **input = NULL, *state = NULL;
        int k = 0;

        if ((i < g->links && g->pass[i]) || (!cairn_link_beyond(&reach, l) && cairn_link_done(g->run, l)) || l->stage == CAIRN_STAGE_CHECK)
            continue; /* the gate looks at what is there */
        if (!first && !l->eval && l->step > 0 && (l->stage == CAIRN_STAGE_TRAIN || l->stage == CAIRN_STAGE_SYNC)) {
            const struct cairn_link before = {l->step - (l->stage == CAIRN_STAGE_TRAIN), CAIRN_STAGE_TRAIN, NULL};

            first = before.step + 1; /* a state that was only told and whose policy is missing is made again, too (cairn_publish_settle) */
            TRY(trained_again(g, first, &from, err));
            if (from < first - 1 && !(state = cairn_link_relative(&before)))
                TRY(CAIRN_NOMEM(err));
        }
        st = cairn_link_inputs(g->run, l, &input, &k, err);
        for (int j = 0; j < k; j++)
            mark(g, input[j], i < g->links && !l->eval && !(state && !strcmp(input[j], state)));
        cairn_strings_free(input, k);
        free(state);
        TRY(st);
    }
out:
    free(links);
    return st;
}

static int is_eval(const struct node *v)
{
    return cairn_starts_with(v->path, "eval/");
}

/* One look at v: what is damaged and needed goes; what was made from what goes, goes; what must be there to make it again and was
 * collected, goes too (`cairn run` makes that again first). */
static enum cairn_status look(struct graph *g, struct node *v, int dependents, int *changed, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    if (v->damaged && !v->why && (v->needed || v->lineage || dependents)) {
        TRY(drop(v, strdup(v->bad), err));
        *changed = 1;
    }
    if (v->blocks && !v->why) {
        TRY(drop(v, strdup("its data were collected, and what is still to be made reads it"), err));
        *changed = 1;
    }
    for (int k = 0; k < v->inputs; k++) {
        struct node *in = find(g, v->input[k]);

        if (!in || !in->why == !v->why)
            continue;
        if (in->why)
            TRY(drop(v, cairn_format("made from %s", in->path), err));
        else if (in->damaged)
            TRY(drop(in, strdup(in->bad), err));
        else if (in->collected && !is_beyond(g, v) && (dependents || !is_eval(v))) /* no training is done again for an evaluation */
            TRY(drop(in, cairn_format("its data were collected, and %s must be made from it again", v->path), err));
        else
            continue;
        *changed = 1;
    }
out:
    return st;
}

/* Until nothing changes: to and fro along the chain, so that each direction takes one pass. */
static enum cairn_status close_over(struct graph *g, int dependents, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int changed;

    do {
        changed = 0;
        for (int i = 0; i < g->n; i++)
            TRY(look(g, &g->node[i], dependents, &changed, err));
        for (int i = g->n - 1; i >= 0; i--)
            TRY(look(g, &g->node[i], dependents, &changed, err));
    } while (changed);
out:
    return st;
}

/* Are the inputs of v there, with their data, or made again? */
static int can_be_made(const struct graph *g, const struct node *v, const json_t *missing)
{
    if (is_base(v->path) || !strcmp(v->path, cairn_stage_name(CAIRN_STAGE_CHECK))) /* made from the recipe alone; of what is there */
        return 1;
    if (is_beyond(g, v) || (is_eval(v) && maker(g, v->path) < 0)) /* no link of the chain any more */
        return 0;
    for (int k = 0; k < v->inputs; k++) {
        const struct node *in = find(g, v->input[k]);

        if (!(in ? !in->collected && !in->aside : is_base(v->input[k]) || noted(missing, v->input[k])))
            return 0;
    }
    return v->readable || v->inputs;
}

/* The damaged ones that nothing which is still to be made reads: made again alone, or collected. */
static enum cairn_status rest(struct graph *g, struct cairn_repair_result *out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < g->n; i++) {
        struct node *v = &g->node[i];

        if (!v->damaged || v->why)
            continue;
        if (can_be_made(g, v, out->missing)) {
            TRY(drop(v, cairn_format("%s; made again alone, what was made from it stays", v->bad), err));
        } else if (v->readable) {
            v->aside = 1;
            TRY(note(out->collected, v->path, v->bad, err));
        } else {
            v->aside = 1;
            TRY(note(out->left, v->path, "its manifest is damaged, what it was made from was collected, and nothing that is still to be made reads it; "
                                         "--dependents goes back far enough to make it again", err));
        }
    }
out:
    return st;
}

/* What is damaged goes last of all: as long as it is there, a repair that was killed is repeated in full. */
static int last_made_first(const void *a, const void *b)
{
    const struct node *x = *(struct node *const *)a, *y = *(struct node *const *)b;

    if (x->damaged != y->damaged)
        return x->damaged - y->damaged;
    if (x->step != y->step)
        return x->step < y->step ? 1 : -1;
    if (x->order != y->order)
        return x->order < y->order ? 1 : -1;
    return strcmp(x->path, y->path);
}

/* An artefact inside of another one that goes moves with it: 1, 0; -1 without memory. */
static int inside_dropped(const struct graph *g, const struct node *v)
{
    char *above = strdup(v->path), *slash;
    int inside = above ? 0 : -1;

    while (!inside && (slash = strrchr(above, '/'))) {
        const struct node *n;

        *slash = 0;
        n = find(g, above);
        inside = n && n->why;
    }
    free(above);
    return inside;
}

/* The marker first, then the shards: killed in between, it is collected, and the next collection finishes it. */
static enum cairn_status set_aside(const struct cairn_run *run, const char *quarantine, const char *path, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *dir = cairn_run_path(run, path), *sub = NULL;
    struct cairn_names data = {0};

    if (!dir)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_artefact_mark(dir, "damaged; cairn verify --repair has taken it to quarantine", err));
    TRY(cairn_artefact_data(&data, dir, err));
    for (size_t i = 0; i < data.n; i++) {
        free(sub);
        if (!(sub = cairn_path_join(path, data.name[i])))
            TRY(CAIRN_NOMEM(err));
        TRY(cairn_quarantine_move(quarantine, run->dir, sub, err));
    }
out:
    cairn_names_free(&data);
    free(dir);
    free(sub);
    return st;
}

static enum cairn_status act(const struct cairn_run *run, struct cairn_repair_result *out, const json_t *small, const json_t *markers,
                             struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    json_t *all = json_deep_copy(out->dropped), *v;
    char *dir = NULL;
    size_t i;

    if (!all || json_array_extend(all, out->collected) || json_array_extend(all, out->mended))
        TRY(CAIRN_NOMEM(err));
    json_array_foreach((json_t *)markers, i, v) TRY(cairn_artefact_mark(json_string_value(v), "collected; the marker was rewritten by cairn verify --repair", err));
    if (!json_array_size(out->dropped) && !json_array_size(small) && !json_array_size(out->collected))
        goto out;
    TRY(cairn_quarantine_open(&dir, run->dir, all, err));
    if (!(out->quarantine = cairn_format("%s/%s", CAIRN_QUARANTINE_NAME, cairn_path_basename(dir))))
        TRY(CAIRN_NOMEM(err));
    json_array_foreach(out->dropped, i, v) TRY(cairn_quarantine_move(dir, run->dir, json_string_value(json_object_get(v, "path")), err));
    json_array_foreach(out->collected, i, v) TRY(set_aside(run, dir, json_string_value(json_object_get(v, "path")), err));
    json_array_foreach((json_t *)small, i, v) TRY(cairn_quarantine_move(dir, run->dir, json_string_value(v), err));
out:
    json_decref(all);
    free(dir);
    return st;
}

enum cairn_status cairn_repair(const struct cairn_run *run, const json_t *bad, int dependents, int dry, struct cairn_repair_result *out,
                               struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct graph g = {.run = run};
    struct node **gone = NULL;
    json_t *small = json_array(), *markers = json_array();
    int n = 0, changed = 0;

    *out = (struct cairn_repair_result){
        .dropped = json_array(), .collected = json_array(), .mended = json_array(), .missing = json_array(), .left = json_array(), .policy = -1,
        .state = -1};
    if (!small || !markers || !out->dropped || !out->collected || !out->mended || !out->missing || !out->left)
        TRY(CAIRN_NOMEM(err));
    TRY(chain_read(&g, err));
    TRY(cairn_artefact_walk(run->dir, node_add, &g, err));
    TRY(graph_sort(&g, err));
    TRY(sort_out(&g, bad, small, markers, out, err));
    TRY(pass_mark(&g, dependents, &changed, err));
    TRY(missing_sort(&g, bad, out, err));
    while (changed) { /* what goes may need what was passed by */
        TRY(needs_mark(&g, err));
        TRY(close_over(&g, dependents, err));
        TRY(pass_mark(&g, dependents, &changed, err));
    }
    TRY(rest(&g, out, err));
    TRY(leave(&g, out, err));
    if (!(gone = malloc(((size_t)g.n + 1) * sizeof *gone)))
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < g.n; i++) {
        struct node *v = &g.node[i];

        int inside = v->why ? inside_dropped(&g, v) : 0;

        if (inside < 0)
            TRY(CAIRN_NOMEM(err));
        if (v->why && !inside)
            gone[n++] = v;
        else if (!v->why && !v->collected && !v->aside && v->readable && cairn_starts_with(v->path, "policy/") && v->step > out->policy)
            out->policy = v->step;
        else if (!v->why && !v->collected && !v->aside && v->readable && cairn_starts_with(v->path, "step/") && cairn_ends_with(v->path, "/train") &&
                 v->step > out->state)
            out->state = v->step;
    }
    qsort(gone, (size_t)n, sizeof *gone, last_made_first);
    for (int i = 0; i < n; i++)
        TRY(note(out->dropped, gone[i]->path, gone[i]->why, err));
    if (!dry)
        TRY(act(run, out, small, markers, err));
out:
    graph_free(&g);
    free(gone);
    json_decref(small);
    json_decref(markers);
    return st;
}

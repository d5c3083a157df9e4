/* gap.c - see gap.h. */
#include "stages/common/gap.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/retention.h"
#include "stages/common/publish.h"

/* A link that may be passed by. */
struct gap {
    int link, lost; /* lost: what it reads is gone, nobody makes it (again) */
    char *path;     /* relative to RUN */
};

struct gaps {
    const struct cairn_run *run;
    const struct cairn_link *link;
    const char *done;
    char *pass;
    struct gap *gap;      /* in the order of the chain */
    struct gap **by_path; /* sorted */
    int links, n;
};

static int is_whole(const struct gaps *g, const char *damaged, int i)
{
    return g->done[i] && !(damaged && damaged[i]);
}

/* Of each stage the newest whole one of the chain; policy: of those behind it, too, that are there where the run was once meant to be longer. */
struct newest {
    int64_t step[CAIRN_STAGE_CHECK + 1], policy;
};

static void newest_find(const struct gaps *g, const char *damaged, struct newest *x)
{
    int64_t last = -1;

    for (size_t k = 0; k < sizeof x->step / sizeof *x->step; k++)
        x->step[k] = -1;
    for (int i = 0; i < g->links; i++) {
        const struct cairn_link *l = &g->link[i];

        if (!l->eval && l->stage == CAIRN_STAGE_SYNC)
            last = l->step;
        if (!l->eval && is_whole(g, damaged, i) && l->step > x->step[l->stage])
            x->step[l->stage] = l->step;
    }
    x->policy = x->step[CAIRN_STAGE_SYNC];
    if (last >= 0 && x->policy == last) /* else there are none behind the chain */
        x->policy = cairn_run_reach(g->run).policy;
}

/* What has a whole one of its kind of a later step, an evaluation a newer policy, is not where the run stands. */
static int is_gap(const struct gaps *g, const char *damaged, const struct newest *x, int i)
{
    const struct cairn_link *l = &g->link[i];

    return !is_whole(g, damaged, i) && (l->eval ? x->policy : x->step[l->stage]) > l->step;
}

static enum cairn_status gaps_find(struct gaps *g, const char *damaged, struct cairn_error *err)
{
    struct newest x;
    int most = 0;

    newest_find(g, damaged, &x);
    for (int i = 0; i < g->links; i++)
        most += is_gap(g, damaged, &x, i);
    if (!(g->gap = calloc((size_t)most + 1, sizeof *g->gap)) || !(g->by_path = malloc(((size_t)most + 1) * sizeof *g->by_path)))
        return CAIRN_NOMEM(err);
    for (int i = 0; i < g->links && g->n < most; i++) {
        if (!is_gap(g, damaged, &x, i))
            continue;
        if (!(g->gap[g->n].path = cairn_link_relative(&g->link[i])))
            return CAIRN_NOMEM(err);
        g->by_path[g->n] = &g->gap[g->n];
        g->gap[g->n++].link = i;
    }
    return CAIRN_OK;
}

static void gaps_free(struct gaps *g)
{
    for (int k = 0; k < g->n; k++)
        free(g->gap[k].path);
    free(g->gap);
    free(g->by_path);
}

static int path_order(const void *a, const void *b)
{
    return strcmp((*(struct gap *const *)a)->path, (*(struct gap *const *)b)->path);
}

static const struct gap *gap_at(const struct gaps *g, const char *path)
{
    struct gap key = {.path = (char *)path}, *k = &key, **found = bsearch(&k, g->by_path, (size_t)g->n, sizeof *g->by_path, path_order);

    return found ? *found : NULL;
}

/* What stands at `path`: were its data taken away on purpose, or is it missing or damaged and cannot be made itself? */
static enum cairn_status is_gone(const struct gaps *g, const char *path, int *gone, struct cairn_error *err)
{
    const struct gap *gap = gap_at(g, path);
    struct cairn_names data = {0};
    enum cairn_status st = CAIRN_OK;
    char *dir;

    if (gap) {
        *gone = gap->lost;
        return CAIRN_OK;
    }
    if (!(dir = cairn_run_path(g->run, path)))
        return CAIRN_NOMEM(err);
    *gone = cairn_artefact_collected(dir);
    if (*gone && cairn_artefact_pinned(dir)) { /* the data of a living pin stay; one that its owner left may stand where there are none */
        TRY(cairn_artefact_data(&data, dir, err));
        *gone = data.n == 0;
    }
out:
    cairn_names_free(&data);
    free(dir);
    return st;
}

/* What cannot be made, and what is damaged. What a link reads stands before it, so one pass in order is enough. */
static enum cairn_status pass_most(struct gaps *g, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char **input = NULL;
    int inputs = 0;

    for (int k = 0; k < g->n; k++) {
        struct gap *gap = &g->gap[k];

        TRY(cairn_link_inputs(g->run, &g->link[gap->link], &input, &inputs, err));
        for (int q = 0; q < inputs && !gap->lost; q++)
            TRY(is_gone(g, input[q], &gap->lost, err));
        cairn_strings_free(input, inputs);
        input = NULL;
        g->pass[gap->link] = (char)(g->done[gap->link] || gap->lost);
    }
out:
    cairn_strings_free(input, inputs);
    return st;
}

/* A trainer whose last state was only told trains again from the one that was saved: it reads rollouts and scores since then. */
static enum cairn_status keep_trained(struct gaps *g, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t from, step = -1;

    for (int i = 0; i < g->links && step < 0; i++)
        if (!g->done[i] && !g->pass[i] && !g->link[i].eval && (g->link[i].stage == CAIRN_STAGE_TRAIN || g->link[i].stage == CAIRN_STAGE_SYNC))
            step = g->link[i].step + (g->link[i].stage == CAIRN_STAGE_SYNC);
    if (step < 1)
        return CAIRN_OK;
    TRY(cairn_publish_state(g->run, step - 1, &from, err));
    for (int k = 0; k < g->n && from >= 0; k++) {
        const struct cairn_link *l = &g->link[g->gap[k].link];

        if (!l->eval && (l->stage == CAIRN_STAGE_ROLLOUT || l->stage == CAIRN_STAGE_SCORE) && l->step > from && l->step < step)
            g->pass[g->gap[k].link] = 0;
    }
out:
    return st;
}

/* What a link reads that is to be made is not passed by; which opens what that one reads, and so on: that stands before it. */
static enum cairn_status keep_needed(struct gaps *g, struct cairn_error *err)
{
    const int64_t reach = g->link[g->gap[g->n - 1].link].step + 1 + cairn_recipe_i64(g->run->frozen, "run.lag"); /* no later step reads it */

    for (int i = g->links - 1; i >= 0; i--) {
        enum cairn_status st;
        char **input = NULL;
        int inputs = 0;

        if (g->link[i].step > reach || g->done[i] || g->pass[i])
            continue;
        if ((st = cairn_link_inputs(g->run, &g->link[i], &input, &inputs, err)) != CAIRN_OK)
            return st;
        for (int q = 0; q < inputs; q++) {
            const struct gap *gap = gap_at(g, input[q]);

            if (gap)
                g->pass[gap->link] = 0;
        }
        cairn_strings_free(input, inputs);
    }
    return CAIRN_OK;
}

enum cairn_status cairn_links_pass(const struct cairn_run *r, const struct cairn_link *link, int n, const char *done, const char *damaged, char *pass,
                                   struct cairn_error *err)
{
    struct gaps g = {.run = r, .link = link, .links = n, .done = done, .pass = pass};
    enum cairn_status st = CAIRN_OK;

    memset(pass, 0, (size_t)n);
    TRY(gaps_find(&g, damaged, err));
    if (!g.n)
        goto out;
    qsort(g.by_path, (size_t)g.n, sizeof *g.by_path, path_order);
    TRY(pass_most(&g, err));
    TRY(keep_trained(&g, err));
    TRY(keep_needed(&g, err));
out:
    gaps_free(&g);
    return st;
}

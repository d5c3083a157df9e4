/* gap.c - see gap.h. */
#include "stages/common/gap.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/retention.h"

/* A link that may be passed by. */
struct gap {
    int link;
    char *path; /* relative to RUN */
};

struct gaps {
    const struct cairn_run *run;
    const struct cairn_link *link;
    const char *done;
    char *pass;
    struct gap *gap; /* in the order of the chain */
    int links, n;
};

/* A whole one of its kind is done behind link i, or behind an evaluation a newer policy: it is not where the run stands. */
static int passed_over(const struct gaps *g, const char *damaged, int i, int last)
{
    const struct cairn_link *l = &g->link[i];

    for (int k = i + 1; k <= last; k++) {
        const struct cairn_link *later = &g->link[k];

        if (g->done[k] && !(damaged && damaged[k]) && !later->eval && later->step > l->step &&
            later->stage == (l->eval ? CAIRN_STAGE_SYNC : l->stage))
            return 1;
    }
    return 0;
}

static enum cairn_status gaps_find(struct gaps *g, const char *damaged, struct cairn_error *err)
{
    int last = g->links - 1, most = 0;

    while (last >= 0 && !g->done[last])
        last--;
    for (int i = 0; i <= last; i++)
        most += !g->done[i] || (damaged && damaged[i]);
    if (!(g->gap = calloc((size_t)most + 1, sizeof *g->gap)))
        return CAIRN_NOMEM(err);
    for (int i = 0; i <= last && most; i++) {
        if ((g->done[i] && !(damaged && damaged[i])) || !passed_over(g, damaged, i, last))
            continue;
        if (!(g->gap[g->n].path = cairn_link_relative(&g->link[i])))
            return CAIRN_NOMEM(err);
        g->gap[g->n++].link = i;
    }
    return CAIRN_OK;
}

static void gaps_free(struct gaps *g)
{
    for (int k = 0; k < g->n; k++)
        free(g->gap[k].path);
    free(g->gap);
}

static const struct gap *gap_at(const struct gaps *g, const char *path)
{
    for (int k = 0; k < g->n; k++)
        if (!strcmp(g->gap[k].path, path))
            return &g->gap[k];
    return NULL;
}

/* Is the data of what stands at `path` gone on purpose, or is it missing and passed by itself? */
static enum cairn_status is_gone(const struct gaps *g, const char *path, int *gone, struct cairn_error *err)
{
    const struct gap *gap = gap_at(g, path);
    char *dir;

    if (gap && !g->done[gap->link]) {
        *gone = g->pass[gap->link];
        return CAIRN_OK;
    }
    if (!(dir = cairn_run_path(g->run, path)))
        return CAIRN_NOMEM(err);
    *gone = cairn_artefact_collected(dir) && !cairn_artefact_pinned(dir);
    free(dir);
    return CAIRN_OK;
}

/* What cannot be made, and what is damaged. What a link reads stands before it, so one pass in order is enough. */
static enum cairn_status pass_most(struct gaps *g, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char **input = NULL;
    int inputs = 0;

    for (int k = 0; k < g->n; k++) {
        const int i = g->gap[k].link;
        int gone = 0;

        if (!g->done[i]) {
            TRY(cairn_link_inputs(g->run, &g->link[i], &input, &inputs, err));
            for (int q = 0; q < inputs && !gone; q++)
                TRY(is_gone(g, input[q], &gone, err));
            cairn_strings_free(input, inputs);
            input = NULL;
        }
        g->pass[i] = (char)(g->done[i] || gone);
    }
out:
    cairn_strings_free(input, inputs);
    return st;
}

/* What a link reads that is to be made is not passed by; which opens what that one reads, and so on. */
static enum cairn_status keep_needed(struct gaps *g, int *changed, struct cairn_error *err)
{
    const int64_t reach = g->link[g->gap[g->n - 1].link].step + 1 + cairn_recipe_i64(g->run->frozen, "run.lag"); /* no later step reads it */

    *changed = 0;
    for (int i = 0; i < g->links && g->link[i].step <= reach; i++) {
        enum cairn_status st;
        char **input = NULL;
        int inputs = 0;

        if (g->done[i] || g->pass[i])
            continue;
        if ((st = cairn_link_inputs(g->run, &g->link[i], &input, &inputs, err)) != CAIRN_OK)
            return st;
        for (int q = 0; q < inputs; q++) {
            const struct gap *gap = gap_at(g, input[q]);

            if (gap && g->pass[gap->link]) {
                g->pass[gap->link] = 0;
                *changed = 1;
            }
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
    int changed;

    memset(pass, 0, (size_t)n);
    TRY(gaps_find(&g, damaged, err));
    if (!g.n)
        goto out;
    TRY(pass_most(&g, err));
    do
        TRY(keep_needed(&g, &changed, err));
    while (changed);
out:
    gaps_free(&g);
    return st;
}

/* evals.c - evaluations of runs as a table (evals.h). */
#include "tools/evals.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/attempt.h"

static const struct {
    const char *key, *label;
    int share; /* shown in per cent; its change in points, others' in per cent */
} figures[CAIRN_EVAL_FIGURES] = {
    [CAIRN_EVAL_ACCURACY] = {"accuracy", "accuracy", 1},
    [CAIRN_EVAL_CAPPED] = {"capped_share", "answers cut at the cap", 1},
    [CAIRN_EVAL_LENGTH] = {"length/mean", "mean length, tokens", 0},
    [CAIRN_EVAL_FINISHED] = {"accuracy_finished", "accuracy of finished answers", 1},
    [CAIRN_EVAL_PASS] = {"pass_at_k", "problems solved at least once", 1},
};

static enum cairn_status point_read(const struct cairn_run *run, const struct cairn_link *l, struct cairn_eval_point *p, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_manifest *m = NULL;
    char *path = cairn_link_path(run, l);
    const json_t *metrics;

    if (!path)
        return CAIRN_NOMEM(err);
    TRY(cairn_manifest_load(&m, path, err));
    metrics = json_object_get(m->content, "metrics");
    *p = (struct cairn_eval_point){.step = l->step,
                                   .rollouts = json_integer_value(json_object_get(metrics, "rollouts")),
                                   .groups = json_integer_value(json_object_get(metrics, "groups/kept"))};
    for (int f = 0; f < CAIRN_EVAL_FIGURES; f++) {
        const json_t *v = json_object_get(metrics, figures[f].key);

        p->figure[f] = json_is_number(v) ? json_number_value(v) : NAN;
    }
out:
    cairn_manifest_destroy(m);
    free(path);
    return st;
}

enum cairn_status cairn_evals_read(const struct cairn_run *run, const char *name, struct cairn_eval_point **points, int *n,
                                   struct cairn_error *err)
{
    const struct cairn_reach reach = cairn_run_reach(run);
    enum cairn_status st = CAIRN_OK;
    struct cairn_link *chain = NULL;
    struct cairn_eval_point *p = NULL;
    int links = 0, found = 0;

    TRY(cairn_run_chain(run, &chain, &links, err));
    p = calloc((size_t)links + 1, sizeof *p);
    if (!p)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < links; i++)
        if (chain[i].eval && chain[i].stage == CAIRN_STAGE_SCORE && !strcmp(chain[i].eval, name) && !cairn_link_beyond(&reach, &chain[i]) &&
            cairn_link_done(run, &chain[i]))
            TRY(point_read(run, &chain[i], &p[found++], err));
    *points = p;
    *n = found;
    p = NULL;
out:
    free(p);
    free(chain);
    return st;
}

/* First and last points of the runs, averaged. 0: some run has fewer than two. */
static enum cairn_status ends_read(struct cairn_run *const *runs, int n, const char *name, struct cairn_eval_point end[2], int *there,
                                   struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    memset(end, 0, 2 * sizeof *end);
    *there = 1;
    for (int r = 0; r < n; r++) {
        struct cairn_eval_point *p = NULL;
        int found;

        TRY(cairn_evals_read(runs[r], name, &p, &found, err));
        if (found < 2) {
            *there = 0;
            free(p);
            return CAIRN_OK;
        }
        for (int e = 0; e < 2; e++) {
            const struct cairn_eval_point *q = &p[e ? found - 1 : 0];

            for (int f = 0; f < CAIRN_EVAL_FIGURES; f++)
                end[e].figure[f] += q->figure[f] / n;
            end[e].step = q->step;
            end[e].rollouts = q->rollouts;
            end[e].groups = q->groups;
        }
        free(p);
    }
out:
    return st;
}

static void row_print(struct cairn_str *out, int f, double before, double after)
{
    if (figures[f].share)
        cairn_str_printf(out, "  %-30s %9.1f %% %9.1f %%   %+.1f points\n", figures[f].label, 100 * before, 100 * after, 100 * (after - before));
    else
        cairn_str_printf(out, "  %-30s %9.1f   %9.1f     %+.1f %%\n", figures[f].label, before, after, before > 0 ? 100 * (after / before - 1) : 0.0);
}

static void block_print(struct cairn_str *out, const char *name, const struct cairn_eval_point end[2], int runs)
{
    char before[40], after[40];

    snprintf(before, sizeof before, "step %lld", (long long)end[0].step);
    snprintf(after, sizeof after, "step %lld", (long long)end[1].step);
    cairn_str_printf(out, "%s: %lld problems, %lld answers%s\n  %-30s %11s %11s   change\n", name, (long long)end[1].groups,
                     (long long)end[1].rollouts, runs > 1 ? ", means over the runs" : "", "", before, after);
    for (int f = 0; f < CAIRN_EVAL_FIGURES; f++)
        if (!isnan(end[0].figure[f]) && !isnan(end[1].figure[f]))
            row_print(out, f, end[0].figure[f], end[1].figure[f]);
}

/* Takes a set into the total: shares of problems weigh by problems, the others by answers. */
static void total_add(struct cairn_eval_point *all, const struct cairn_eval_point *p)
{
    for (int f = 0; f < CAIRN_EVAL_FIGURES; f++) {
        int by_problem = f == CAIRN_EVAL_ACCURACY || f == CAIRN_EVAL_PASS;
        double had = (double)(by_problem ? all->groups : all->rollouts), more = (double)(by_problem ? p->groups : p->rollouts);

        all->figure[f] = f == CAIRN_EVAL_FINISHED ? NAN /* would need the counts of finished ones */
                         : had + more > 0         ? ((had > 0 ? had * all->figure[f] : 0) + more * p->figure[f]) / (had + more)
                                                  : 0;
    }
    all->step = p->step;
    all->groups += p->groups;
    all->rollouts += p->rollouts;
}

enum cairn_status cairn_evals_table(struct cairn_run *const *runs, int n, struct cairn_str *out, struct cairn_error *err)
{
    const json_t *sets = cairn_recipe_get(runs[0]->recipe, "data.eval");
    struct cairn_eval_point all[2] = {0}, end[2];
    enum cairn_status st = CAIRN_OK;
    size_t told = 0;
    int there;

    for (size_t i = 0; i < json_array_size(sets); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(sets, i), "name"));

        TRY(ends_read(runs, n, name, end, &there, err));
        if (!there) {
            cairn_str_printf(out, "%s: not evaluated twice yet\n", name);
            continue;
        }
        block_print(out, name, end, n);
        told++;
        for (int e = 0; e < 2; e++)
            total_add(&all[e], &end[e]);
    }
    if (told > 1 && told == json_array_size(sets))
        block_print(out, "all sets", all, n);
out:
    return st;
}

static json_t *point_json(const struct cairn_eval_point *p)
{
    json_t *o = json_pack("{s:I, s:I, s:I}", "step", (json_int_t)p->step, "rollouts", (json_int_t)p->rollouts, "problems", (json_int_t)p->groups);

    for (int f = 0; o && f < CAIRN_EVAL_FIGURES; f++)
        if (!isnan(p->figure[f]))
            json_object_set_new(o, figures[f].key, json_real(p->figure[f]));
    return o;
}

enum cairn_status cairn_evals_json(const struct cairn_run *run, json_t **out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const json_t *sets = cairn_recipe_get(run->recipe, "data.eval");
    json_t *o = json_object();

    if (!o)
        return CAIRN_NOMEM(err);
    for (size_t i = 0; i < json_array_size(sets); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(sets, i), "name"));
        struct cairn_eval_point *p = NULL;
        json_t *list = json_array();
        int n;

        st = cairn_evals_read(run, name, &p, &n, err);
        for (int k = 0; st == CAIRN_OK && k < n; k++)
            if (json_array_append_new(list, point_json(&p[k])))
                st = CAIRN_NOMEM(err);
        free(p);
        if (json_object_set_new(o, name, list) && st == CAIRN_OK)
            st = CAIRN_NOMEM(err);
        TRY(st);
    }
    *out = o;
    o = NULL;
out:
    json_decref(o);
    return st;
}

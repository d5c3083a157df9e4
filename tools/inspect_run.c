/* inspect_run.c - a run on one page (inspect.h): the model, how far it is, what lies there, before and after. */
#include "tools/inspect.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/verify.h"
#include "model/params.h"
#include "model/policy.h"
#include "stages/common/amend.h"
#include "tools/evals.h"

/* What lies in a run, by kind. */
#define KINDS_MAX 16
struct tally {
    struct {
        char kind[32];
        int64_t n, collected, bytes;
    } kind[KINDS_MAX];
    int kinds;
};

static enum cairn_status tally_add(void *arg, const struct cairn_artefact *a, struct cairn_error *err)
{
    struct tally *t = arg;
    struct cairn_manifest *m = NULL;
    enum cairn_status st = CAIRN_OK;
    int k = 0;

    TRY(cairn_manifest_load(&m, a->dir, err));
    while (k < t->kinds && strcmp(t->kind[k].kind, m->kind))
        k++;
    if (k == KINDS_MAX)
        goto out;
    if (k == t->kinds)
        snprintf(t->kind[t->kinds++].kind, sizeof t->kind[k].kind, "%s", m->kind);
    t->kind[k].n++;
    t->kind[k].collected += a->collected;
    for (int i = 0; i < m->nshards && !a->collected; i++)
        t->kind[k].bytes += m->shards[i]->size;
out:
    cairn_manifest_destroy(m);
    return st;
}

static int64_t steps_done(const struct cairn_run *run, int64_t steps)
{
    int64_t s = 0;

    while (s < steps && cairn_link_done(run, &(struct cairn_link){s + 1, CAIRN_STAGE_SYNC, NULL}))
        s++;
    return s;
}

/* One sentence on the model, from RUN/base. */
static enum cairn_status model_describe(const struct cairn_run *run, struct cairn_str *out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *base = cairn_run_path(run, "base");
    struct cairn_manifest *m = NULL;
    struct cairn_model_config c = {0};
    struct cairn_param_table table = {0};

    if (!base)
        TRY(CAIRN_NOMEM(err));
    if (!cairn_artefact_committed(base)) {
        cairn_str_puts(out, "not there yet");
        goto out;
    }
    TRY(cairn_manifest_load(&m, base, err));
    TRY(cairn_policy_config(&c, m, NULL, base, err));
    TRY(cairn_param_table_create(&table, &c, err));
    cairn_str_printf(out, "%lld parameters, %d layers of width %lld, %d experts (%d a token), vocabulary %lld; ", (long long)table.elements,
                     c.layers, (long long)c.width, c.experts, c.experts_per_token, (long long)c.vocab);
    if (cairn_recipe_has(run->recipe, "model.adapter"))
        cairn_str_printf(out, "an adapter of rank %lld is trained", (long long)cairn_recipe_i64(run->recipe, "model.adapter.rank"));
    else
        cairn_str_puts(out, "all weights are trained");
out:
    cairn_param_table_free(&table);
    cairn_config_free(&c);
    cairn_manifest_destroy(m);
    free(base);
    return st;
}

/* Each amendment by its number, which RUN/recipe.amend-NNNN.json bears; several may begin at one step. */
static void amendments_put(const struct cairn_run *run, struct cairn_str *out)
{
    for (int i = 0; run->amendments && i < run->amendments->n; i++) {
        const struct cairn_amendment *a = &run->amendments->amendment[i];

        cairn_str_printf(out, "  amendment %-2d from step %lld on:", a->number, (long long)a->from_step);
        for (size_t k = 0; k < json_array_size(a->set); k++)
            cairn_str_printf(out, " %s", json_string_value(json_array_get(a->set, k)));
        cairn_str_putc(out, '\n');
    }
}

/* The recipe that steps are made by, as their artefacts carry it: the frozen one, then that of each step from which on it is another. */
static void recipes_put(const struct cairn_run *run, struct cairn_str *out)
{
    char hex[33];

    cairn_digest_hex(run->hash, hex);
    cairn_str_printf(out, "  recipe      %s\n", hex);
    for (int i = 0; run->amendments && i < run->amendments->views; i++) {
        cairn_digest_hex(run->amendments->view[i].hash, hex);
        cairn_str_printf(out, "              %s from step %lld on\n", hex, (long long)run->amendments->view[i].from);
    }
}

/* [{"from_step", "recipe"}, ...] of the same; NULL without memory. */
static json_t *recipes_json(const struct cairn_run *run)
{
    json_t *list = json_array();
    char hex[33];

    for (int i = 0; list && run->amendments && i < run->amendments->views; i++) {
        cairn_digest_hex(run->amendments->view[i].hash, hex);
        if (json_array_append_new(list, json_pack("{s:I, s:s}", "from_step", (json_int_t)run->amendments->view[i].from, "recipe", hex))) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

static enum cairn_status page_put(const struct cairn_run *run, struct cairn_str *out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t steps = cairn_recipe_i64(run->recipe, "run.steps");
    struct tally t = {0};

    cairn_str_printf(out, "%s: %lld of %lld steps\n  run         %s, seed %lld\n", run->dir, (long long)steps_done(run, steps), (long long)steps,
                     run->uuid, (long long)cairn_recipe_i64(run->recipe, "run.seed"));
    recipes_put(run, out);
    amendments_put(run, out);
    cairn_str_puts(out, "  model       ");
    TRY(model_describe(run, out, err));
    cairn_str_putc(out, '\n');
    TRY(cairn_artefact_walk(run->dir, tally_add, &t, err));
    for (int k = 0; k < t.kinds; k++) {
        cairn_str_printf(out, "  %-11s %lld, %.1f MB", t.kind[k].kind, (long long)t.kind[k].n, (double)t.kind[k].bytes / 1e6);
        if (t.kind[k].collected)
            cairn_str_printf(out, " (%lld collected)", (long long)t.kind[k].collected);
        cairn_str_putc(out, '\n');
    }
out:
    return st;
}

static enum cairn_status page_json(const struct cairn_run *run, json_t **json, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t steps = cairn_recipe_i64(run->recipe, "run.steps");
    json_t *evals = NULL, *kinds = json_array();
    struct cairn_str model = {0};
    struct tally t = {0};
    char hex[33];

    TRY(cairn_evals_json(run, &evals, err));
    TRY(model_describe(run, &model, err));
    TRY(cairn_artefact_walk(run->dir, tally_add, &t, err));
    for (int k = 0; k < t.kinds; k++)
        json_array_append_new(kinds, json_pack("{s:s, s:I, s:I, s:I}", "kind", t.kind[k].kind, "count", (json_int_t)t.kind[k].n, "collected",
                                               (json_int_t)t.kind[k].collected, "bytes", (json_int_t)t.kind[k].bytes));
    cairn_digest_hex(run->hash, hex);
    *json = json_pack("{s:s, s:s, s:s, s:o, s:o, s:I, s:I, s:s, s:O, s:O}", "run", run->dir, "uuid", run->uuid, "recipe", hex, "amended_recipes",
                      recipes_json(run), "amendments", cairn_amendments_json(run), "steps_done", (json_int_t)steps_done(run, steps), "steps_total",
                      (json_int_t)steps, "model", cairn_str_z(&model), "artefacts", kinds, "evaluations", evals);
out:
    cairn_str_free(&model);
    json_decref(evals);
    json_decref(kinds);
    return st;
}

enum cairn_status cairn_inspect_runs(struct cairn_run *const *runs, int n, struct cairn_str *out, json_t **json, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    if (json)
        return page_json(runs[0], json, err);
    for (int i = 0; i < n; i++) {
        TRY(page_put(runs[i], out, err));
        cairn_str_putc(out, '\n');
        if (n > 1) {
            TRY(cairn_evals_table(&runs[i], 1, out, err));
            cairn_str_putc(out, '\n');
        }
    }
    TRY(cairn_evals_table(runs, n, out, err));
    cairn_str_printf(out, "%srun lies in %s; `cairn status` shows its trail, `cairn inspect` looks into its parts.\n", n > 1 ? "The last " : "The ",
                     runs[n - 1]->dir);
out:
    return st;
}

/* work.c - the work of cairn-score: a committed rollout artefact in, a score artefact out, with the same units. */
#include "stages/score/score.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "stages/common/metrics.h"

struct reading {
    struct cairn_rollouts rollouts;
    struct cairn_prompts *files;
    int nfiles;
    const char **grader;
    struct cairn_tokenizer *tokenizer;
    int64_t *unit; /* (units + 1) first rollout of each unit */
    int units;
};

static enum cairn_status units_find(struct reading *x, struct cairn_reader *from, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    void *h = NULL;

    TRY(cairn_unit_count(from, &x->units, err));
    x->unit = calloc((size_t)x->units + 1, sizeof *x->unit);
    if (!x->unit)
        TRY(CAIRN_NOMEM(err));
    for (int u = 0; u < x->units; u++) {
        int64_t n;

        TRY(cairn_unit_read(from, u, "prompt_length", CAIRN_I32, &h, &n, err));
        free(h);
        h = NULL;
        x->unit[u + 1] = x->unit[u] + n;
    }
out:
    free(h);
    return st;
}

/* Graders named by the recipe for each prompt file of the link. */
static enum cairn_status graders_find(struct reading *x, struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    const json_t *list = cairn_recipe_get(ctx->run->recipe, ctx->link.eval ? "data.eval" : "data.prompts");
    int k = 0;

    x->grader = calloc((size_t)x->nfiles + 1, sizeof *x->grader);
    if (!x->grader)
        return CAIRN_NOMEM(err);
    for (size_t i = 0; i < json_array_size(list) && k < x->nfiles; i++) {
        const json_t *v = json_array_get(list, i);

        if (!ctx->link.eval || !strcmp(ctx->link.eval, json_string_value(json_object_get(v, "name"))))
            x->grader[k++] = json_string_value(json_object_get(v, "grader"));
    }
    return CAIRN_OK;
}

static enum cairn_status reading_open(struct reading *x, struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    const struct cairn_link rollout = {ctx->link.step, CAIRN_STAGE_ROLLOUT, ctx->link.eval};
    char *relative = cairn_link_relative(&rollout), *tokenizer = NULL;
    struct cairn_reader *from = NULL;
    enum cairn_status st = CAIRN_OK;

    if (!relative)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_stage_input(ctx, relative, &from, err));
    TRY(cairn_rollouts_load(&x->rollouts, from, err));
    TRY(units_find(x, from, err));
    TRY(cairn_prompts_of(ctx->run, &ctx->link, &x->files, &x->nfiles, err));
    TRY(graders_find(x, ctx, err));
    TRY(cairn_run_outside(ctx->run, "model.tokenizer", &tokenizer, err));
    TRY(cairn_tokenizer_load(&x->tokenizer, tokenizer, err));
out:
    cairn_reader_close(from);
    free(relative);
    free(tokenizer);
    return st;
}

static void reading_close(struct reading *x)
{
    cairn_rollouts_free(&x->rollouts);
    cairn_prompts_list_free(x->files, x->nfiles);
    free(x->grader);
    free(x->unit);
    cairn_tokenizer_free(x->tokenizer);
}

/* The length cap of these rollouts: the recipe's, or the evaluation set's own. */
static int64_t cap_of(const struct cairn_stage_ctx *ctx)
{
    const json_t *sets = cairn_recipe_get(ctx->run->recipe, "data.eval");

    for (size_t i = 0; ctx->link.eval && i < json_array_size(sets); i++) {
        const json_t *v = json_array_get(sets, i), *cap = json_object_get(v, "max_new_tokens");

        if (!strcmp(ctx->link.eval, json_string_value(json_object_get(v, "name"))) && json_is_integer(cap))
            return json_integer_value(cap);
    }
    return cairn_recipe_i64(ctx->run->recipe, "rollout.max_new_tokens");
}

static void progress(void *arg, int64_t done, int64_t total)
{
    cairn_stage_progress(arg, "rollouts", done, total);
}

enum cairn_status cairn_score_work(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_scores_table s = {0};
    struct reading x = {0};
    struct cairn_score_opts o;
    json_t *metrics = NULL;

    TRY(reading_open(&x, ctx, err));
    o = (struct cairn_score_opts){.recipe = ctx->run->recipe,
                                  .graders = ctx->graders,
                                  .tokenizer = x.tokenizer,
                                  .files = x.files,
                                  .nfiles = x.nfiles,
                                  .grader = x.grader,
                                  .cap = cap_of(ctx),
                                  .progress = progress,
                                  .arg = ctx};
    TRY(cairn_scores_create(&s, x.rollouts.n, err));
    TRY(cairn_score_grade(&s, &x.rollouts, 0, x.rollouts.n, &o, err));
    TRY(cairn_score_rewards(&s, &x.rollouts, &o, err));
    for (int u = 0; u < x.units; u++) {
        struct cairn_shard_entry *entry = NULL;

        TRY(cairn_stage_stopping(err));
        TRY(cairn_scores_write(&s, x.unit[u], x.unit[u + 1], ctx->attempt, u, "", &entry, err));
        TRY(cairn_manifest_add_shard(ctx->manifest, entry, err));
    }
    metrics = cairn_score_metrics(&s, &x.rollouts);
    if (!metrics || json_object_set(ctx->manifest->content, "metrics", metrics) ||
        json_object_set_new(ctx->manifest->content, "units", json_integer(x.units)))
        TRY(CAIRN_NOMEM(err));
out:
    json_decref(metrics);
    cairn_scores_free(&s);
    reading_close(&x);
    return st;
}

enum cairn_status cairn_score_after(const struct cairn_run *run, const struct cairn_link *l, struct cairn_error *err)
{
    return l->eval ? cairn_metrics_eval(run, l->step, l->eval, err) : CAIRN_OK;
}

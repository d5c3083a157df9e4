/* rollout.c - the order of a rollout: policy, prompts, cursor; candidates are added, adopted or sampled, judged, written (rollout.h). */
#include "stages/rollout/rollout.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/str.h"
#include "model/policy.h"
#include "stages/common/prompts.h"
#include "stages/rollout/cursor.h"
#include "stages/rollout/prompting.h"
#include "stages/rollout/units.h"

struct rollout {
    struct cairn_stage_ctx *ctx;
    const struct cairn_recipe *recipe;
    struct cairn_rollout_how how;
    struct cairn_policy policy;
    struct cairn_model model;
    struct cairn_prompting prompting;
    struct cairn_prompts *files;
    int nfiles;
    struct cairn_cursor *cursor; /* NULL: an evaluation */
    int64_t rows;                /* evaluation: rows taken so far */
    struct cairn_units *units;
    struct cairn_engine *engine;
    int64_t longest;             /* positions that the engine was made for */
    int dynamic, rounds;
    struct cairn_str text;       /* of the response being graded */
    int64_t sampled;             /* response tokens drawn by this attempt */
    int64_t done;                /* rollouts, for the bar */
    double sampling_s;
};

/* ---- opening -------------------------------------------------------------------------------------------------------- */

static enum cairn_status policy_open(struct rollout *x, struct cairn_error *err)
{
    struct cairn_stage_ctx *ctx = x->ctx;
    const struct cairn_link from = {ctx->link.eval ? ctx->link.step : ctx->link.step - 1, CAIRN_STAGE_SYNC, NULL};
    char *relative = cairn_link_relative(&from), *dir = relative ? cairn_run_path(ctx->run, relative) : NULL,
         *base = cairn_run_path(ctx->run, "base");
    const struct cairn_policy_opts o = {.base = base, .quiet = 1};
    enum cairn_status st = CAIRN_OK;
    char hex[33];

    if (!dir || !base)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_policy_open(&x->policy, dir, &o, ctx->compute, err));
    for (int i = 0; i < ctx->manifest->ninputs; i++)
        if (!strcmp(ctx->manifest->inputs[i].path, relative) && !cairn_digest_equal(ctx->manifest->inputs[i].digest, x->policy.digest))
            TRY(cairn_fail(err, CAIRN_EFENCED, "%s changed while it was loaded", dir));
    cairn_digest_hex(x->policy.digest, hex);
    if (json_object_set_new(ctx->manifest->content, "policy", json_string(hex)))
        TRY(CAIRN_NOMEM(err));
    x->model = (struct cairn_model){.k = ctx->compute,
                                    .config = &x->policy.config,
                                    .weights = &x->policy.weights,
                                    .adapter = x->policy.lora ? &x->policy.adapter : NULL,
                                    .adapter_weights = x->policy.lora ? &x->policy.adapter_weights : NULL,
                                    .segments = (int)cairn_recipe_i64(x->recipe, "numerics.segments")};
out:
    free(relative);
    free(dir);
    free(base);
    return st;
}

static enum cairn_status prompts_open(struct rollout *x, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *tokenizer = NULL;

    TRY(cairn_run_outside(x->ctx->run, "model.tokenizer", &tokenizer, err));
    TRY(cairn_prompting_open(&x->prompting, x->recipe, tokenizer, &x->policy.config, err));
    TRY(cairn_prompts_of(x->ctx->run, &x->ctx->link, &x->files, &x->nfiles, err));
    if (!x->nfiles)
        TRY(CAIRN_BUG(err, "a rollout without prompt files"));
out:
    free(tokenizer);
    return st;
}

/* Where the rollout before this one left the prompts. */
static enum cairn_status cursor_open(struct rollout *x, struct cairn_error *err)
{
    const json_t *list = cairn_recipe_list(x->recipe, "data.prompts");
    const struct cairn_link before = {x->ctx->link.step - 1, CAIRN_STAGE_ROLLOUT, NULL};
    struct cairn_cursor_file *file = calloc((size_t)x->nfiles, sizeof *file);
    struct cairn_reader *reader = NULL;
    char *relative = NULL;
    enum cairn_status st = CAIRN_OK;

    if (!file)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < x->nfiles; i++)
        file[i] = (struct cairn_cursor_file){x->files[i].n, json_number_value(json_object_get(json_array_get(list, (size_t)i), "weight"))};
    TRY(cairn_cursor_create(&x->cursor, file, x->nfiles, (uint64_t)cairn_recipe_i64(x->recipe, "run.seed"),
                            cairn_recipe_bool(x->recipe, "data.shuffle"), err));
    if (before.step < 1)
        goto out;
    relative = cairn_link_relative(&before);
    if (!relative)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_stage_input(x->ctx, relative, &reader, err));
    TRY(cairn_cursor_set(x->cursor, json_object_get(cairn_reader_manifest(reader)->content, "cursor"), relative, err));
out:
    cairn_reader_close(reader);
    free(relative);
    free(file);
    return st;
}

/* ---- judging -------------------------------------------------------------------------------------------------------- */

static const char *grader_of(const struct rollout *x, int64_t prompt_id)
{
    const json_t *v = json_array_get(cairn_recipe_list(x->recipe, "data.prompts"), (size_t)(prompt_id >> 32));
    const char *named = json_string_value(json_object_get(v, "grader"));

    return named ? named : cairn_recipe_str(x->recipe, "score.grader");
}

/* The verdicts that the score stage will give, too: same text, same grader, same markers. */
static enum cairn_status grade(void *arg, int64_t prompt_id, const struct cairn_response *r, int n, uint8_t *verdict, struct cairn_error *err)
{
    struct rollout *x = arg;
    const struct cairn_prompt *p = cairn_prompts_find(x->files, x->nfiles, prompt_id);
    const json_t *markers = cairn_recipe_list(x->recipe, "score.marker");
    const char *marker[CAIRN_MARKERS_MAX];
    struct cairn_grade_opts o = {.marker = marker};
    enum cairn_status st = CAIRN_OK;

    if (!p)
        return CAIRN_BUG(err, "a candidate of no prompt");
    for (size_t i = 0; i < json_array_size(markers) && i < CAIRN_MARKERS_MAX; i++)
        marker[o.markers++] = json_string_value(json_array_get(markers, i));
    for (int s = 0; s < n; s++) {
        struct cairn_verdict v;

        cairn_str_clear(&x->text);
        TRY(cairn_tokenizer_decode(x->prompting.tokenizer, r[s].tokens, r[s].n, NULL, &x->text, err));
        TRY(cairn_grader_process_grade(x->ctx->graders, grader_of(x, prompt_id), &o, p->answer, p->answer_bytes, cairn_str_z(&x->text),
                                       x->text.len, &v, err));
        verdict[s] = v.match != 0;
    }
out:
    return st;
}

/* ---- candidates ----------------------------------------------------------------------------------------------------- */

/* n further candidates from the cursor (evaluation: rows in order). */
static enum cairn_status candidates_add(struct rollout *x, int64_t n, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int64_t i = 0; i < n; i++) {
        struct cairn_ids ids = {0};
        int64_t id;

        if (x->cursor)
            TRY(cairn_cursor_next(x->cursor, &id, err));
        else
            id = cairn_prompt_id(0, x->rows++);
        st = cairn_prompting_ids(&x->prompting, &x->files[id >> 32], id & 0xffffffff, x->how.max_new, &x->policy.config, &ids, err);
        if (st != CAIRN_OK) {
            cairn_ids_free(&ids);
            goto out;
        }
        TRY(cairn_units_add(x->units, id, &ids, err));
    }
out:
    return st;
}

/* A sampler for the candidates from `begin` on; the one that is there is kept if they fit. */
static enum cairn_status engine_ready(struct rollout *x, int64_t begin, struct cairn_error *err)
{
    int64_t longest = 0;
    struct cairn_engine_opts o = {.batch = (int)cairn_recipe_i64(x->recipe, "rollout.batch"),
                                  .page = (int)cairn_recipe_i64(x->recipe, "rollout.page"),
                                  .seed = x->how.seed,
                                  .step = x->how.step,
                                  .temperature = x->how.temperature,
                                  .top_p = x->how.top_p,
                                  .min_p = x->how.min_p,
                                  .top_k = x->how.top_k,
                                  .greedy = x->how.greedy,
                                  .sampled = x->how.truncates,
                                  .stop = x->prompting.stop.p,
                                  .stops = (int)x->prompting.stop.n,
                                  .ended = x->prompting.texts ? cairn_prompting_ended : NULL,
                                  .ended_arg = &x->prompting};
    int64_t open = (cairn_units_groups(x->units) - begin) * x->how.samples;

    for (int64_t g = begin; g < cairn_units_groups(x->units); g++) {
        int64_t n = cairn_engine_positions(cairn_units_ids(x->units, g)->n, x->how.max_new);

        longest = !cairn_units_whole(x->units, g) && n > longest ? n : longest;
    }
    if (!longest || (x->engine && longest <= x->longest))
        return CAIRN_OK;
    cairn_engine_destroy(x->engine);
    x->engine = NULL;
    x->longest = o.max_length = longest;
    if (o.batch > open) /* no more room than there is work */
        o.batch = (int)open;
    return cairn_engine_create(&x->engine, &x->model, &o, err);
}

static enum cairn_status tell(void *arg, const struct cairn_response *r, struct cairn_error *err)
{
    struct rollout *x = arg;

    x->sampled += r->n;
    x->done++;
    return cairn_units_put(x->units, r, err);
}

/* Candidates from `begin` on: whole units of dead attempts are taken over, the others are sampled. */
static enum cairn_status candidates_run(struct rollout *x, int64_t begin, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t n = cairn_units_groups(x->units);
    double started;

    TRY(cairn_units_adopt(x->units, begin, err));
    x->done = cairn_units_counts(x->units).rollouts;
    TRY(engine_ready(x, begin, err));
    started = cairn_now_s();
    for (int64_t g = begin; g < n; g++)
        if (!cairn_units_whole(x->units, g)) {
            const struct cairn_ids *ids = cairn_units_ids(x->units, g);

            TRY(cairn_engine_submit(x->engine,
                                    &(struct cairn_request){.prompt = ids->p,
                                                            .length = ids->n,
                                                            .max_new = x->how.max_new,
                                                            .samples = x->how.samples,
                                                            .key = cairn_prompt_key(cairn_units_prompt(x->units, g)),
                                                            .first_sample = cairn_units_repeat(x->units, g) * x->how.samples,
                                                            .tag = g},
                                    err));
        }
    while (x->engine && !cairn_engine_idle(x->engine)) {
        TRY(cairn_engine_step(x->engine, tell, x, err));
        cairn_stage_progress(x->ctx, "rollouts", x->done, n * x->how.samples);
    }
    x->sampling_s += cairn_now_s() - started;
    TRY(cairn_attempt_check(x->ctx->attempt, err));
out:
    return st;
}

/* The whole list: one round, or as many as dynamic sampling needs. */
static enum cairn_status list_run(struct rollout *x, struct cairn_error *err)
{
    int64_t max_rounds = x->dynamic ? cairn_recipe_i64(x->recipe, "rollout.dynamic.max_rounds") : 0, n = x->how.groups, begin = 0;
    enum cairn_status st = CAIRN_OK;

    if (n < 0)
        n = x->how.limit >= 0 && x->how.limit < x->files[0].n ? x->how.limit : x->files[0].n;
    for (;;) {
        struct cairn_units_counts c;

        TRY(candidates_add(x, n, err));
        TRY(candidates_run(x, begin, err));
        if (!x->dynamic)
            break;
        begin = cairn_units_groups(x->units);
        c = cairn_units_counts(x->units);
        n = cairn_rollout_refill(x->how.groups, c.groups, c.kept + c.surplus);
        if (!n)
            break;
        if (x->rounds == max_rounds) {
            if (!c.kept)
                TRY(cairn_fail(err, CAIRN_EDATA,
                               "no group with mixed verdicts among %lld (%lld all right, %lld all wrong) after %d refills: nothing to learn from",
                               (long long)c.groups, (long long)c.all_right, (long long)c.all_wrong, x->rounds));
            cairn_warn("step %lld: %lld of %lld groups have mixed verdicts after %d refills; going on with those", (long long)x->ctx->link.step,
                       (long long)c.kept, (long long)x->how.groups, x->rounds);
            break;
        }
        x->rounds++;
    }
    TRY(cairn_units_finish(x->units, err));
out:
    return st;
}

/* ---- what the manifest says ----------------------------------------------------------------------------------------- */

static enum cairn_status content_set(struct rollout *x, struct cairn_error *err)
{
    struct cairn_units_counts c = cairn_units_counts(x->units);
    json_t *content = x->ctx->manifest->content, *cursor = NULL;
    int64_t *back = NULL, n;
    enum cairn_status st = CAIRN_OK;

    if (json_object_set_new(content, "units", json_integer(cairn_units_count(x->units))) ||
        json_object_set_new(content, "rollouts", json_integer(c.rollouts)) || json_object_set_new(content, "groups", json_integer(c.groups)) ||
        json_object_set_new(content, "kept", json_integer(c.kept)) ||
        json_object_set_new(content, "temperature", json_real(x->how.greedy ? 0 : (double)x->how.temperature)))
        TRY(CAIRN_NOMEM(err));
    if (x->dynamic && json_object_set_new(content, "dynamic",
                                          json_pack("{s:i, s:I, s:I, s:I}", "rounds", x->rounds, "all_right", (json_int_t)c.all_right, "all_wrong",
                                                    (json_int_t)c.all_wrong, "surplus", (json_int_t)c.surplus)))
        TRY(CAIRN_NOMEM(err));
    if (x->cursor) {
        TRY(cairn_units_surplus(x->units, &back, &n, err));
        TRY(cairn_cursor_return(x->cursor, back, n, err));
        cursor = cairn_cursor_json(x->cursor);
        if (!cursor || json_object_set_new(content, "cursor", cursor))
            TRY(CAIRN_NOMEM(err));
    }
    if (x->dynamic) {
        cairn_stage_metric(x->ctx, "dynamic/rounds", x->rounds);
        cairn_stage_metric(x->ctx, "dynamic/all_right", (double)c.all_right);
        cairn_stage_metric(x->ctx, "dynamic/all_wrong", (double)c.all_wrong);
        cairn_stage_metric(x->ctx, "dynamic/surplus", (double)c.surplus);
    }
    cairn_stage_info(x->ctx, "tokens/total", (double)c.tokens);
    cairn_stage_info(x->ctx, "tokens/per_second", x->sampling_s > 0 ? (double)x->sampled / x->sampling_s : 0);
    if (c.adopted && json_object_set_new(x->ctx->manifest->info, "adopted", json_integer(c.adopted)))
        TRY(CAIRN_NOMEM(err));
out:
    free(back);
    return st;
}

static void rollout_close(struct rollout *x)
{
    cairn_engine_destroy(x->engine);
    cairn_units_destroy(x->units);
    cairn_cursor_destroy(x->cursor);
    cairn_prompts_list_free(x->files, x->nfiles);
    cairn_prompting_close(&x->prompting);
    cairn_policy_close(&x->policy);
    cairn_str_free(&x->text);
}

enum cairn_status cairn_rollout_work(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    struct rollout x = {.ctx = ctx, .recipe = ctx->run->recipe};
    struct cairn_units_opts uo;
    enum cairn_status st = CAIRN_OK;
    char *identity = NULL;

    TRY(cairn_rollout_how(&x.how, x.recipe, &ctx->link, err));
    x.dynamic = !ctx->link.eval && cairn_recipe_has(x.recipe, "rollout.dynamic");
    TRY(policy_open(&x, err));
    TRY(prompts_open(&x, err));
    if (!ctx->link.eval)
        TRY(cursor_open(&x, err));
    identity = cairn_format("%s, %s", ctx->manifest->numerics, ctx->manifest->layout);
    if (!identity)
        TRY(CAIRN_NOMEM(err));
    uo = (struct cairn_units_opts){.samples = x.how.samples,
                                   .want = x.how.groups,
                                   .dynamic = x.dynamic,
                                   .sampled = x.how.truncates,
                                   .right = cairn_recipe_f64(x.recipe, "score.reward.right"),
                                   .wrong = cairn_recipe_f64(x.recipe, "score.reward.wrong"),
                                   .truncated_zero = !strcmp(cairn_recipe_str(x.recipe, "score.reward.truncated"), "zero"),
                                   .identity = identity,
                                   .dir = ctx->dir,
                                   .attempt = ctx->attempt,
                                   .manifest = ctx->manifest,
                                   .grade = grade,
                                   .arg = &x};
    TRY(cairn_units_create(&x.units, &uo, err));
    TRY(list_run(&x, err));
    TRY(content_set(&x, err));
out:
    free(identity);
    rollout_close(&x);
    return st;
}

/* open.c - what a rollout needs before anything is sampled: policy, prompts, cursor, what is carried, how responses are judged
 * (rollout.h). */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "stages/common/fastpath.h"
#include "stages/common/setup.h"
#include "stages/rollout/rollout_inside.h"

/* ---- opening -------------------------------------------------------------------------------------------------------- */

/* From the trainer's memory, where it is alive and has given just this policy. */
static int policy_take(void *arg, struct cairn_store *s, struct cairn_reader *r)
{
    struct rollout *x = arg;
    int got = cairn_fastpath_take(x->ctx->fastpath, s, r);

    cairn_stage_info(x->ctx, "handover/in_memory", got);
    return got;
}

static enum cairn_status policy_open(struct rollout *x, struct cairn_error *err)
{
    struct cairn_stage_ctx *ctx = x->ctx;
    struct cairn_policy *p = &x->kept->policy;
    const struct cairn_link from = cairn_link_sampled(ctx->run, &ctx->link);
    char *relative = cairn_link_relative(&from), *dir = relative ? cairn_run_path(ctx->run, relative) : NULL,
         *base = cairn_run_path(ctx->run, "base");
    struct cairn_nodestore_opts store;
    const struct cairn_policy_opts o = {
        .base = base, .store = cairn_setup_node_store(&store, x->recipe) ? &store : NULL, .quiet = 1};
    enum cairn_status st = CAIRN_OK;
    char hex[33];

    if (!dir || !base)
        TRY(CAIRN_NOMEM(err));
    if (x->kept->policy.table.count)
        TRY(cairn_policy_next_by(&x->kept->policy, dir, ctx->compute, policy_take, x, err));
    else
        TRY(cairn_policy_open(&x->kept->policy, dir, &o, ctx->compute, err));
    for (int i = 0; i < ctx->manifest->ninputs; i++)
        if (!strcmp(ctx->manifest->inputs[i].path, relative) && !cairn_digest_equal(ctx->manifest->inputs[i].digest, p->digest))
            TRY(cairn_fail(err, CAIRN_EFENCED, "%s changed while it was loaded", dir));
    cairn_digest_hex(p->digest, hex);
    if (json_object_set_new(ctx->manifest->content, "policy", json_string(hex)))
        TRY(CAIRN_NOMEM(err));
    x->kept->model = (struct cairn_model){.k = ctx->compute,
                                          .config = &p->config,
                                          .weights = &p->weights,
                                          .adapter = p->lora ? &p->adapter : NULL,
                                          .adapter_weights = p->lora ? &p->adapter_weights : NULL,
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
    if (!x->kept->prompting.tokenizer)
        TRY(cairn_prompting_open(&x->kept->prompting, x->recipe, tokenizer, &x->kept->policy.config, err));
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
        file[i] = (struct cairn_cursor_file){x->files[i].n,
                                             json_number_value(json_object_get(json_array_get(list, (size_t)i), "weight"))};
    TRY(cairn_cursor_create(&x->cursor, file, x->nfiles, (uint64_t)cairn_recipe_i64(x->recipe, "run.seed"),
                            cairn_recipe_bool(x->recipe, "data.shuffle"), err));
    if (before.step < 1)
        goto out;
    relative = cairn_link_relative(&before);
    if (!relative)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_stage_input(x->ctx, relative, &reader, err));
    TRY(cairn_cursor_set(x->cursor, json_object_get(cairn_reader_manifest(reader)->content, "cursor"), relative, err));
    if (cairn_recipe_bool(x->recipe, "rollout.carry"))
        TRY(cairn_carry_open(&x->carry, reader, cairn_run_recipe(x->ctx->run, before.step), x->recipe, &x->how, err));
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
    const struct cairn_prompt *p = cairn_prompts_find(x->files, x->nfiles, prompt_id);

    if (p && p->grader)
        return p->grader;
    return named ? named : cairn_recipe_str(x->recipe, "score.grader");
}

/* The verdicts that the score stage will give, too: same text, same grader, same markers. */
static enum cairn_status grade(void *arg, int64_t prompt_id, const struct cairn_response *r, int n, uint8_t *verdict, float *value,
                               uint8_t *status, struct cairn_error *err)
{
    struct rollout *x = arg;
    const struct cairn_prompt *p = cairn_prompts_find(x->files, x->nfiles, prompt_id);
    const json_t *markers = cairn_recipe_list(x->recipe, "score.marker");
    const char *marker[CAIRN_MARKERS_MAX];
    struct cairn_grade_opts o = {.marker = marker};
    struct cairn_grade_job *job = calloc((size_t)n + 1, sizeof *job);
    size_t *at = calloc((size_t)n + 1, sizeof *at);
    enum cairn_status st = CAIRN_OK;

    if (!job || !at)
        TRY(CAIRN_NOMEM(err));
    if (!p)
        TRY(CAIRN_BUG(err, "a candidate of no prompt"));
    for (size_t i = 0; i < json_array_size(markers) && i < CAIRN_MARKERS_MAX; i++)
        marker[o.markers++] = json_string_value(json_array_get(markers, i));
    cairn_str_clear(&x->text);
    for (int s = 0; s < n; s++) {
        TRY(cairn_tokenizer_decode(x->kept->prompting.tokenizer, r[s].tokens, r[s].n, NULL, &x->text, err));
        at[s + 1] = x->text.len;
    }
    for (int s = 0; s < n; s++)
        job[s] = (struct cairn_grade_job){.gold = p->answer,
                                          .gold_bytes = p->answer_bytes,
                                          .response = cairn_str_z(&x->text) + at[s],
                                          .response_bytes = at[s + 1] - at[s]};
    TRY(cairn_grader_process_grade_many(x->ctx->graders, grader_of(x, prompt_id), &o, job, (size_t)n, err));
    for (int s = 0; s < n; s++) {
        verdict[s] = job[s].verdict.match != 0;
        value[s] = (float)job[s].verdict.value;
        status[s] = (uint8_t)job[s].verdict.status;
        if (!x->failure.why[0]) { /* ranks tell each other verdicts alone: each says once what it has seen */
            cairn_grade_failure_note(&x->failure, prompt_id, &job[s].verdict);
            cairn_grade_invalid_note(&x->failure, prompt_id, &job[s].verdict);
            if (x->failure.why[0])
                cairn_warn("step %lld: grader %s has no verdict on a response to prompt %lld of file %lld: %s", (long long)x->ctx->link.step,
                           grader_of(x, prompt_id), (long long)(prompt_id & 0xffffffff), (long long)(prompt_id >> 32), x->failure.why);
        }
    }
out:
    free(job);
    free(at);
    return st;
}

/* A response as its text, for rollout.store. */
static enum cairn_status text_of(void *arg, const int32_t *tokens, int64_t n, struct cairn_str *out, struct cairn_error *err)
{
    struct rollout *x = arg;

    return cairn_tokenizer_decode(x->kept->prompting.tokenizer, tokens, n, NULL, out, err);
}

static int stores(const struct rollout *x, const char *what)
{
    const json_t *list = cairn_recipe_list(x->recipe, "rollout.store");

    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strcmp(what, json_string_value(json_array_get(list, i))))
            return 1;
    return 0;
}

enum cairn_status cairn_rollout_open(struct rollout *x, char **identity, struct cairn_error *err)
{
    struct cairn_stage_ctx *ctx = x->ctx;
    struct cairn_units_opts uo;
    enum cairn_status st = CAIRN_OK;

    if (!ctx->kept && !(ctx->kept = calloc(1, sizeof *x->kept)))
        TRY(CAIRN_NOMEM(err));
    x->kept = ctx->kept;
    TRY(cairn_rollout_how(&x->how, x->recipe, &ctx->link, err));
    x->dynamic = !ctx->link.eval && cairn_recipe_has(x->recipe, "rollout.dynamic");
    if (x->dynamic && ctx->tasks > 1)
        TRY(cairn_recipe_fail(x->recipe, "rollout.dynamic", err,
                              "which candidates there are depends on verdicts about earlier ones, so independent tasks cannot "
                              "share a step; use ranks "
                              "(rollout.parallel.dp)"));
    TRY(policy_open(x, err));
    if (x->how.experts && !cairn_engine_choices(&x->kept->policy.config))
        TRY(cairn_recipe_fail(x->recipe, "rollout.store", err, "experts: this model has no layer that routes"));
    TRY(prompts_open(x, err));
    if (!ctx->link.eval)
        TRY(cursor_open(x, err));
    *identity = cairn_format("%s, %s", ctx->manifest->numerics, ctx->manifest->layout);
    if (!*identity)
        TRY(CAIRN_NOMEM(err));
    uo = (struct cairn_units_opts){.samples = x->how.samples,
                                   .want = x->how.groups,
                                   .dynamic = x->dynamic,
                                   .sampled = x->how.truncates,
                                   .carry = !ctx->link.eval && cairn_recipe_bool(x->recipe, "rollout.carry"),
                                   .expert_row = x->how.experts ? cairn_engine_choices(&x->kept->policy.config) : 0,
                                   .expert_bytes = x->kept->policy.config.experts <= 256 ? 1 : 4,
                                   .right = cairn_recipe_f64(x->recipe, "score.reward.right"),
                                   .wrong = cairn_recipe_f64(x->recipe, "score.reward.wrong"),
                                   .truncated_zero = !strcmp(cairn_recipe_str(x->recipe, "score.reward.truncated"), "zero"),
                                   .identity = *identity,
                                   .dir = ctx->dir,
                                   .attempt = ctx->attempt,
                                   .manifest = ctx->manifest,
                                   .grade = grade,
                                   .text = stores(x, "text") ? text_of : NULL,
                                   .arg = x};
    TRY(cairn_units_create(&x->units, &uo, err));
out:
    return st;
}

void cairn_rollout_forget(struct cairn_stage_ctx *ctx)
{
    struct cairn_rollout_kept *k = ctx->kept;

    if (!k)
        return;
    cairn_engine_destroy(k->engine);
    cairn_prompting_close(&k->prompting);
    cairn_policy_close(&k->policy);
    free(k);
    ctx->kept = NULL;
}

void cairn_rollout_close(struct rollout *x)
{
    cairn_units_destroy(x->units);
    cairn_cursor_destroy(x->cursor);
    cairn_carry_close(&x->carry);
    cairn_prompts_list_free(x->files, x->nfiles);
    cairn_str_free(&x->text);
    if (!x->ctx->resident)
        cairn_rollout_forget(x->ctx);
}

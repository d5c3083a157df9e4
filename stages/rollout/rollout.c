/* rollout.c - the order of a rollout: policy, prompts, cursor; candidates are added, adopted or sampled, judged, written (rollout.h).
 *
 * Ranks and tasks: everybody has the whole list of candidates. A task's share are the units u with u % tasks == task; of a share, ranks look for
 * finished units in turn, tell each other which are whole, and divide the open ones in turn. They sample for a period, look up, tell each
 * other what came out (so with dynamic sampling all know which groups are kept, and go on to the same next round) and leave the round together.
 */
#include "stages/rollout/rollout.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "model/policy.h"
#include "stages/common/fastpath.h"
#include "stages/common/prompting.h"
#include "stages/common/prompts.h"
#include "stages/common/ranks.h"
#include "stages/common/setup.h"
#include "stages/rollout/cursor.h"
#include "stages/rollout/units.h"

/* What a process that goes on to further links keeps: only the policy's values, the prompts and the draws are others then. */
struct kept {
    struct cairn_policy policy;
    struct cairn_model model;
    struct cairn_prompting prompting;
    struct cairn_engine *engine;
};

struct rollout {
    struct cairn_stage_ctx *ctx;
    const struct cairn_recipe *recipe;
    struct cairn_rollout_how how;
    struct kept *kept;
    struct cairn_prompts *files;
    int nfiles;
    struct cairn_cursor *cursor; /* NULL: an evaluation */
    int64_t rows;                /* evaluation: rows taken so far */
    struct cairn_units *units;
    struct cairn_engine *engine; /* the kept one, once it has this link's options */
    int64_t longest;             /* positions that it was made for */
    int dynamic, rounds;
    struct cairn_str text;       /* of the response being graded */
    int64_t sampled, sampled_all; /* response tokens drawn by this rank; by all ranks of the attempt, as last told */
    int64_t done, done_all;      /* rollouts, for the bar */
    int64_t divided;             /* units that have somebody who makes them */
    int whole;                   /* array task: its own share is finished, everything else is taken over */
    double sampling_s;
};

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
    const struct cairn_policy_opts o = {.base = base, .store = cairn_setup_node_store(&store, x->recipe) ? &store : NULL, .quiet = 1};
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
    const struct cairn_prompt *p = cairn_prompts_find(x->files, x->nfiles, prompt_id);

    if (p && p->grader)
        return p->grader;
    return named ? named : cairn_recipe_str(x->recipe, "score.grader");
}

/* The verdicts that the score stage will give, too: same text, same grader, same markers. */
static enum cairn_status grade(void *arg, int64_t prompt_id, const struct cairn_response *r, int n, uint8_t *verdict, float *value,
                               struct cairn_error *err)
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
        TRY(cairn_tokenizer_decode(x->kept->prompting.tokenizer, r[s].tokens, r[s].n, NULL, &x->text, err));
        TRY(cairn_grader_process_grade(x->ctx->graders, grader_of(x, prompt_id), &o, p->answer, p->answer_bytes, cairn_str_z(&x->text),
                                       x->text.len, &v, err));
        verdict[s] = v.match != 0;
        value[s] = (float)v.value;
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
        st = cairn_prompting_ids(&x->kept->prompting, &x->files[id >> 32], id & 0xffffffff, x->how.max_new, &x->kept->policy.config, &ids, err);
        if (st != CAIRN_OK) {
            cairn_ids_free(&ids);
            goto out;
        }
        TRY(cairn_units_add(x->units, id, &ids, err));
    }
out:
    return st;
}

static int open_here(const struct rollout *x, int64_t group)
{
    return !cairn_units_whole(x->units, group) && cairn_units_ours(x->units, group);
}

/* A sampler for the candidates from `begin` on; the one that is there is kept if they fit. */
static enum cairn_status engine_ready(struct rollout *x, int64_t begin, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t longest = 0, open = 0;
    struct cairn_engine_opts o = cairn_rollout_engine(&x->how, x->recipe, &x->kept->prompting);
    struct cairn_footprint f;
    char text[256];

    for (int64_t g = begin; g < cairn_units_groups(x->units); g++) {
        int64_t n;

        if (!open_here(x, g))
            continue;
        n = cairn_engine_positions(cairn_units_ids(x->units, g)->n, x->how.max_new);
        longest = n > longest ? n : longest;
        open += x->how.samples;
    }
    if (!longest || (x->engine && longest <= x->longest))
        return CAIRN_OK;
    x->longest = o.max_length = longest;
    if (o.batch > open && !x->ctx->resident) /* no more room than there is work; later links may have more */
        o.batch = (int)open;
    if (x->kept->engine && cairn_engine_again(x->kept->engine, &o)) {
        x->engine = x->kept->engine;
        return CAIRN_OK;
    }
    cairn_engine_destroy(x->kept->engine);
    x->engine = x->kept->engine = NULL;
    TRY(cairn_engine_footprint(&x->kept->model, &o, &f, err));
    cairn_footprint_text(&f, text, sizeof text);
    cairn_info("sampling takes %s (%d at once, up to %lld positions)", text, o.batch, (long long)longest);
    TRY(cairn_footprint_fits(&f, f.weights + f.adapter, x->kept->model.k->dev, "rollout.batch", err));
    TRY(cairn_engine_create(&x->kept->engine, &x->kept->model, &o, err));
    x->engine = x->kept->engine;
out:
    return st;
}

static enum cairn_status tell(void *arg, const struct cairn_response *r, struct cairn_error *err)
{
    struct rollout *x = arg;

    x->sampled += r->n;
    x->done++;
    return cairn_units_put(x->units, r, err);
}

/* ---- ranks and tasks ------------------------------------------------------------------------------------------------ */

/* What a rank says of itself when it looks up; news of its groups follow. */
struct report {
    int64_t idle, done, sampled;
};

static enum cairn_status report_read(struct rollout *x, int rank, const char *p, size_t n, int *all_idle, struct cairn_error *err)
{
    struct report r;

    if (n < sizeof r)
        return CAIRN_BUG(err, "a rank said nothing");
    memcpy(&r, p, sizeof r);
    *all_idle &= r.idle != 0;
    x->done_all += r.done;
    x->sampled_all += r.sampled;
    return rank == x->ctx->world->rank ? CAIRN_OK : cairn_units_learn(x->units, p + sizeof r, n - sizeof r, err);
}

/* All ranks look up. In: how this rank fares (*mine) and whether it has nothing left to do. What is returned is agreed; *mine is then how this rank
 * took in what the others said, for the next time. */
static enum cairn_status look_up(struct rollout *x, enum cairn_status *mine, int nothing_left, int *all_idle, struct cairn_error *err)
{
    const struct report r = {nothing_left, x->done, x->sampled};
    struct cairn_str out = {0};
    enum cairn_status st;
    size_t *at = NULL;
    char *all = NULL;

    cairn_str_add(&out, &r, sizeof r);
    if (*mine == CAIRN_OK)
        *mine = cairn_units_news(x->units, &out, err);
    st = cairn_ranks_exchange(x->ctx, "sampling", *mine, out.p, out.len, &all, &at, err);
    *all_idle = 1;
    x->done_all = x->sampled_all = 0;
    for (int k = 0; st == CAIRN_OK && k < x->ctx->world->size; k++) {
        enum cairn_status read = report_read(x, k, all + at[k], at[k + 1] - at[k], all_idle, *mine == CAIRN_OK ? err : NULL);

        *mine = *mine == CAIRN_OK ? read : *mine;
    }
    cairn_str_free(&out);
    free(all);
    free(at);
    return st;
}

static int unit_whole(const struct rollout *x, int64_t unit)
{
    return cairn_units_whole(x->units, unit * CAIRN_UNIT_GROUPS);
}

/* Units that nobody makes yet and that are not whole: the k-th one of our share goes to rank k, in turn. Whole ones stay with whom they are. */
static void divide(struct rollout *x)
{
    const struct cairn_stage_ctx *ctx = x->ctx;
    int64_t k = 0;

    for (int64_t u = x->divided; u < cairn_units_count(x->units); u++) {
        int share = ctx->tasks <= 1 || x->whole || u % ctx->tasks == ctx->task;

        if (!unit_whole(x, u))
            cairn_units_leave(x->units, u, !share || k++ % ctx->world->size != ctx->world->rank);
    }
}

/* Whole units of other attempts are taken over; who samples the rest is settled. */
static enum cairn_status candidates_divide(struct rollout *x, int64_t begin, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    enum cairn_status mine;
    int64_t before = cairn_units_counts(x->units).rollouts;
    int all_idle;

    divide(x);
    mine = cairn_units_adopt(x->units, begin, err);
    x->done += cairn_units_counts(x->units).rollouts - before;
    TRY(look_up(x, &mine, 1, &all_idle, err));
    if (x->whole && x->ctx->world->rank == 0 && mine == CAIRN_OK && cairn_artefact_committed(x->ctx->dir))
        mine = cairn_fail(err, CAIRN_EFENCED, "%s: committed by another task", x->ctx->dir); /* and what was there has been tidied away */
    TRY(cairn_ranks_agree(x->ctx, "taking over", mine, err));
    divide(x);
    x->divided = cairn_units_count(x->units);
out:
    return st;
}

/* Rollouts of this process's share that have to be there in the end. */
static int64_t share_rollouts(const struct rollout *x)
{
    int64_t n = 0, groups = cairn_units_groups(x->units);

    for (int64_t g = 0; g < groups; g++)
        n += x->ctx->tasks <= 1 || x->whole || g / CAIRN_UNIT_GROUPS % x->ctx->tasks == x->ctx->task;
    return n * x->how.samples;
}

static enum cairn_status candidates_submit(struct rollout *x, int64_t begin, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(engine_ready(x, begin, err));
    for (int64_t g = begin; g < cairn_units_groups(x->units); g++) {
        const struct cairn_ids *ids = cairn_units_ids(x->units, g);

        if (open_here(x, g))
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
out:
    return st;
}

static int idle(const struct rollout *x)
{
    return !x->engine || cairn_engine_idle(x->engine);
}

/* Samples until nothing is left, or it is time to look up. */
static enum cairn_status sample(struct rollout *x, double started, int64_t total, struct cairn_error *err)
{
    double until = cairn_now_s() + cairn_ranks_period(started);
    enum cairn_status st = CAIRN_OK;
    int64_t others = x->done_all - x->done; /* as they last told */

    while (!idle(x) && (x->ctx->world->size == 1 || cairn_now_s() < until)) {
        TRY(cairn_engine_step(x->engine, tell, x, err));
        if (x->ctx->world->rank == 0)
            cairn_stage_progress(x->ctx, "rollouts", x->done + others, total);
    }
out:
    return st;
}

/* Candidates from `begin` on, as far as they are our share: taken over or sampled. */
static enum cairn_status candidates_run(struct rollout *x, int64_t begin, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK, mine;
    double started = cairn_now_s();
    int64_t total = share_rollouts(x);
    int all_idle = 0;

    TRY(candidates_divide(x, begin, err));
    mine = candidates_submit(x, begin, err);
    while (!all_idle) {
        if (mine == CAIRN_OK && idle(x) && x->ctx->world->size > 1)
            cairn_ranks_rest(started); /* the others are at work */
        if (mine == CAIRN_OK)
            mine = sample(x, started, total, err);
        TRY(look_up(x, &mine, idle(x), &all_idle, err));
    }
    x->sampling_s += cairn_now_s() - started;
    if (mine == CAIRN_OK && x->ctx->world->rank == 0)
        mine = cairn_attempt_check(x->ctx->attempt, err);
    TRY(cairn_ranks_agree(x->ctx, "the round", mine, err));
out:
    return st;
}

/* An array task whose share is finished: if everything else is, too, it is taken over, else the artefact waits for the other tasks. */
static enum cairn_status others_run(struct rollout *x, enum cairn_status mine, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t missing = 0;

    if (mine == CAIRN_OK && x->ctx->world->rank == 0)
        mine = cairn_units_missing(x->units, &missing, err);
    TRY(cairn_ranks_tell(x->ctx, "what is missing", mine, &missing, sizeof missing, err));
    if (missing) {
        x->ctx->partial = 1;
        goto out;
    }
    x->whole = 1;
    x->divided = 0;
    TRY(candidates_run(x, 0, err));
    TRY(cairn_units_finish(x->units, err));
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

        TRY(cairn_ranks_agree(x->ctx, "candidates", candidates_add(x, n, err), err));
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
            if (x->ctx->world->rank == 0)
                cairn_warn("step %lld: %lld of %lld groups have mixed verdicts after %d refills; going on with those",
                           (long long)x->ctx->link.step, (long long)c.kept, (long long)x->how.groups, x->rounds);
            break;
        }
        x->rounds++;
    }
    st = cairn_units_finish(x->units, err);
    if (x->ctx->tasks > 1)
        TRY(others_run(x, st, err));
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
    cairn_stage_info(x->ctx, "tokens/per_second", x->sampling_s > 0 ? (double)x->sampled_all / x->sampling_s : 0);
    if (c.adopted && json_object_set_new(x->ctx->manifest->info, "adopted", json_integer(c.adopted)))
        TRY(CAIRN_NOMEM(err));
out:
    free(back);
    return st;
}

void cairn_rollout_forget(struct cairn_stage_ctx *ctx)
{
    struct kept *k = ctx->kept;

    if (!k)
        return;
    cairn_engine_destroy(k->engine);
    cairn_prompting_close(&k->prompting);
    cairn_policy_close(&k->policy);
    free(k);
    ctx->kept = NULL;
}

static void rollout_close(struct rollout *x)
{
    cairn_units_destroy(x->units);
    cairn_cursor_destroy(x->cursor);
    cairn_prompts_list_free(x->files, x->nfiles);
    cairn_str_free(&x->text);
    if (!x->ctx->resident)
        cairn_rollout_forget(x->ctx);
}

/* What a rank needs to know before the list of candidates can be made. */
static enum cairn_status rollout_open(struct rollout *x, char **identity, struct cairn_error *err)
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
                              "which candidates there are depends on verdicts about earlier ones, so independent tasks cannot share a step; use ranks "
                              "(rollout.parallel.dp)"));
    TRY(policy_open(x, err));
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
                                   .right = cairn_recipe_f64(x->recipe, "score.reward.right"),
                                   .wrong = cairn_recipe_f64(x->recipe, "score.reward.wrong"),
                                   .truncated_zero = !strcmp(cairn_recipe_str(x->recipe, "score.reward.truncated"), "zero"),
                                   .identity = *identity,
                                   .dir = ctx->dir,
                                   .attempt = ctx->attempt,
                                   .manifest = ctx->manifest,
                                   .grade = grade,
                                   .arg = x};
    TRY(cairn_units_create(&x->units, &uo, err));
out:
    return st;
}

enum cairn_status cairn_rollout_work(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    struct rollout x = {.ctx = ctx, .recipe = ctx->run->recipe};
    enum cairn_status st = CAIRN_OK;
    char *identity = NULL;

    TRY(cairn_ranks_agree(ctx, "policy and prompts", rollout_open(&x, &identity, err), err));
    TRY(list_run(&x, err));
    if (!ctx->partial)
        TRY(content_set(&x, err));
out:
    free(identity);
    rollout_close(&x);
    return st;
}

/* train.c - the work of cairn-train (train.h): opens inputs, trains, saves the state. */
#include "stages/train/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/signals.h"
#include "base/str.h"
#include "model/io.h"
#include "stages/common/inside.h"
#include "stages/common/publish.h"
#include "stages/common/ranks.h"
#include "stages/common/recorded.h"
#include "stages/common/setup.h"
#include "stages/train/grpo.h"
#include "stages/train/sft.h"

/* Are the published weights in memory what the masters say? In a narrower type than the policy's they no longer are. */
static int publishes_from_memory(const struct cairn_stage_ctx *ctx, const struct cairn_trainer *t)
{
    return cairn_setup_dtype(ctx->run->recipe) == CAIRN_BF16 || t->k->act == CAIRN_F32;
}

/* Would the next step be trained by as many ranks, which alone make this one again to the same bits? */
static int ranks_stay(const struct cairn_stage_ctx *ctx)
{
    return cairn_recipe_i64(cairn_run_recipe(ctx->run, ctx->link.step + 1), "train.parallel.dp") == ctx->world->size;
}

/* Is the state of this step only told (checkpoint.every), since the next one and the policy are made from it in this process? Never of the last
 * step, nor where a stop was requested, nor before the number of ranks changes. The same on all ranks. */
static enum cairn_status hollow_decide(struct cairn_stage_ctx *ctx, const struct cairn_trainer *t, struct cairn_error *err)
{
    const int64_t step = ctx->link.step;

    ctx->hollow = ctx->resident && publishes_from_memory(ctx, t) && step > 0 && step % cairn_recipe_i64(ctx->run->recipe, "checkpoint.every") &&
                  step < cairn_recipe_i64(ctx->run->recipe, "run.steps") && ranks_stay(ctx) && !cairn_stop_requested();
    return cairn_ranks_tell(ctx, "whether it is saved", CAIRN_OK, &ctx->hollow, sizeof ctx->hollow, err);
}

static enum cairn_status state_save(struct cairn_stage_ctx *ctx, struct cairn_trainer *t, struct cairn_error *err)
{
    /* no identity: a dead attempt's masters may stem from another point of the step's work than our moments, so nothing is adopted
     */
    const struct cairn_trainer_save_opts o = {.through = 1, /* this is the smallest unit: a stop in it would cost the last updates */
                                              .hollow = ctx->hollow};

    if (json_object_set_new(ctx->manifest->content, "updates", json_integer((json_int_t)t->optimizer.updates)))
        return CAIRN_NOMEM(err);
    return cairn_trainer_save(&t->optimizer, ctx->attempt, ctx->manifest, &o, err);
}

static void saving_tell(struct cairn_stage_ctx *ctx, int64_t resumed, double stall_s)
{
    cairn_stage_info(ctx, "updates/resumed", (double)resumed);
    cairn_stage_info(ctx, "time/save_stall", stall_s);
}

/* The ranks that there are must be those of the layout. */
static enum cairn_status layout_set(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    int64_t dp = cairn_recipe_i64(ctx->run->recipe, "train.parallel.dp");
    char layout[96];

    if (ctx->world->size != dp) {
        ctx->agreed = 1; /* all see the same */
        return cairn_fail(err, CAIRN_EUSAGE, "started with %d rank%s, train.parallel.dp is %lld", ctx->world->size,
                          ctx->world->size == 1 ? "" : "s", (long long)dp);
    }
    snprintf(layout, sizeof layout, "tp1 pp1 cp1 ep1 dp%lld segments%lld", (long long)dp,
             (long long)cairn_recipe_i64(ctx->run->recipe, "numerics.segments"));
    return cairn_manifest_set_fingerprint(ctx->manifest, ctx->manifest->numerics, layout, err);
}

static enum cairn_status examples_open(struct cairn_stage_ctx *ctx, struct cairn_trainer *t, struct cairn_examples *e,
                                       struct cairn_error *err)
{
    char *data = NULL, *tokenizer = NULL;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_run_outside(ctx->run, "warm_start.data", &data, err));
    TRY(cairn_run_outside(ctx->run, "model.tokenizer", &tokenizer, err));
    TRY(cairn_examples_load(e, data, ctx->run->recipe, tokenizer, &t->policy.config, err));
out:
    free(data);
    free(tokenizer);
    return st;
}

static enum cairn_status warm_start(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    const struct cairn_recipe *recipe = ctx->run->recipe;
    enum cairn_status st = CAIRN_OK;
    struct cairn_trainer t = {0};
    struct cairn_examples e = {0};
    struct cairn_sft_stats stats;
    char *base = cairn_run_path(ctx->run, "base");
    double t0 = cairn_now_s();

    TRY(cairn_ranks_agree(ctx, "the base", base ? CAIRN_OK : CAIRN_NOMEM(err), err));
    TRY(cairn_trainer_open(
        &t, ctx->compute, recipe,
        &(struct cairn_trainer_start){.dir = base, .fresh_adapter = cairn_recipe_has(recipe, "model.adapter"), .ctx = ctx}, err));
    TRY(cairn_trainer_agree(&t, "the examples", examples_open(ctx, &t, &e, err), err));
    TRY(cairn_trainer_reserve(&t, e.longest, e.longest * cairn_recipe_i64(recipe, "warm_start.batch"), 0, err));
    TRY(cairn_sft_run(ctx, &t, &e, &stats, err));
    cairn_stage_info(ctx, "loss/sft", stats.loss);
    cairn_stage_info(ctx, "time/updates", cairn_now_s() - t0);
    saving_tell(ctx, stats.resumed, stats.stall_s);
    TRY(state_save(ctx, &t, err));
out:
    cairn_examples_free(&e);
    cairn_trainer_close(&t);
    free(base);
    return st;
}

static void mismatch_tell(struct cairn_stage_ctx *ctx, const char *name, const struct cairn_grpo_mismatch *m)
{
    static const char *const what[] = {"tokens", "mean", "max", "bitwise_equal_share", "kl"};
    double n = m->compared ? (double)m->compared : 1,
           value[] = {(double)m->compared, m->sum / n, m->max, (double)m->equal / n, m->k3 / n};

    for (int i = 0; i < (m->compared ? 5 : 1); i++) {
        char key[64];

        snprintf(key, sizeof key, "%s/%s", name, what[i]);
        cairn_stage_info(ctx, key, value[i]);
    }
}

static void stats_tell(struct cairn_stage_ctx *ctx, const struct cairn_grpo_stats *s, double seconds)
{
    double n = s->loss[CAIRN_LS_TOKENS] > 0 ? s->loss[CAIRN_LS_TOKENS] : 1, updates = s->updates > 0 ? (double)s->updates : 1;

    if (!strcmp(cairn_recipe_str(ctx->run->recipe, "train.loss"), "sft"))
        cairn_stage_info(ctx, "loss/sft", s->sft_loss / updates);
    if (s->loss[CAIRN_LS_TOKENS] > 0) {
        cairn_stage_info(ctx, "loss/policy", s->loss[CAIRN_LS_POLICY] / updates);
        cairn_stage_info(ctx, "loss/kl", s->loss[CAIRN_LS_KL] / updates);
        cairn_stage_info(ctx, "entropy", s->loss[CAIRN_LS_ENTROPY] / n);
        cairn_stage_info(ctx, "ratio/mean", s->loss[CAIRN_LS_RATIO] / n);
        cairn_stage_info(ctx, "ratio/min", s->loss[CAIRN_LS_RATIO_MIN]);
        cairn_stage_info(ctx, "ratio/max", s->loss[CAIRN_LS_RATIO_MAX]);
        cairn_stage_info(ctx, "clip_fraction/low", s->loss[CAIRN_LS_CLIP_LOW] / n);
        cairn_stage_info(ctx, "clip_fraction/high", s->loss[CAIRN_LS_CLIP_HIGH] / n);
    }
    cairn_stage_info(ctx, "grad_norm", s->grad_norm / updates);
    cairn_stage_info(ctx, "grad_norm_max", s->grad_norm_max);
    cairn_stage_info(ctx, "lr", s->lr);
    cairn_stage_info(ctx, "updates/skipped", (double)s->skipped);
    cairn_stage_info(ctx, "tokens/loss", (double)s->loss_tokens);
    mismatch_tell(ctx, "mismatch", &s->mismatch);
    if (s->stale) {
        cairn_stage_info(ctx, "carried/rollouts", (double)s->stale);
        mismatch_tell(ctx, "carried", &s->carried);
    }
    cairn_stage_info(ctx, "time/updates", seconds);
    cairn_stage_info(ctx, "time/compare", s->compare_s);
    saving_tell(ctx, s->resumed, s->stall_s);
}

/* Are they from the older policy that run.lag lets a step be sampled from? */
static enum cairn_status lag_check(struct cairn_stage_ctx *ctx, const char *from, int *lagged, struct cairn_error *err)
{
    const struct cairn_link rollout = {ctx->link.step, CAIRN_STAGE_ROLLOUT, NULL}, sampled = cairn_link_sampled(ctx->run, &rollout);
    char *dir = cairn_link_path(ctx->run, &sampled), hex[33];
    struct cairn_manifest_head head;
    enum cairn_status st = CAIRN_OK;

    *lagged = 0;
    if (!dir)
        TRY(CAIRN_NOMEM(err));
    if (sampled.step == ctx->link.step - 1)
        goto out;
    TRY(cairn_manifest_head(&head, dir, err));
    cairn_digest_hex(head.digest, hex);
    *lagged = from && !strcmp(from, hex);
    if (*lagged)
        cairn_stage_info(ctx, "policy/lag", (double)(ctx->link.step - 1 - sampled.step));
out:
    free(dir);
    return st;
}

/* Were these rollouts sampled from the policy that is being trained, and by the same numerics? */
static enum cairn_status origin_check(struct cairn_stage_ctx *ctx, struct cairn_reader *rollouts, const struct cairn_rollouts *r,
                                      const struct cairn_manifest_head *policy, struct cairn_grpo_opts *o, struct cairn_error *err)
{
    const struct cairn_recipe *recipe = ctx->run->recipe;
    const struct cairn_manifest *m = cairn_reader_manifest(rollouts);
    const char *from = json_string_value(json_object_get(m->content, "policy"));
    int sft = !strcmp(cairn_recipe_str(recipe, "train.loss"), "sft"), lagged;
    enum cairn_status st = CAIRN_OK;
    char hex[33];

    cairn_digest_hex(policy->digest, hex);
    o->same_policy = from && !strcmp(from, hex);
    o->same_numerics = !strcmp(m->numerics, ctx->manifest->numerics);
    if (sft || o->same_policy)
        return CAIRN_OK;
    if (!r->logprobs) /* rho against the trainer at the start of the step */
        json_object_set_new(ctx->manifest->info, "off_policy", json_string("uncorrected"));
    if (!from || !r->logprobs)
        TRY(cairn_recorded_check(recipe, r->logprobs != NULL, cairn_reader_path(rollouts), err));
    if (!from)
        goto out;
    TRY(lag_check(ctx, from, &lagged, err));
    if (!lagged && !strcmp(cairn_recipe_str(recipe, "train.on_policy"), "require"))
        TRY(cairn_fail(
            err, cairn_recorded_refusal(recipe),
            "%s was sampled from policy %.32s, the policy being trained is %s; to take such rollouts: train.on_policy=correct train.correction=tis",
            cairn_reader_path(rollouts), from, hex));
out:
    return st;
}

static int64_t longest(const struct cairn_rollouts *r)
{
    int64_t n = 1;

    for (int64_t i = 0; i < r->n; i++)
        if (r->used[i] && r->offsets[i + 1] - r->offsets[i] > n)
            n = r->offsets[i + 1] - r->offsets[i];
    return n;
}

/* What a step is trained from. */
struct inputs {
    char *policy, *base;
    struct cairn_reader *state; /* or NULL: the policy's weights are the masters */
    struct cairn_rollouts r;
    struct cairn_scores_table s;
    struct cairn_grpo_opts o;
};

static void inputs_close(struct inputs *in)
{
    cairn_rollouts_free(&in->r);
    cairn_scores_free(&in->s);
    cairn_reader_close(in->state);
    free(in->policy);
    free(in->base);
}

/* kept: the trainer's state is in memory. */
static enum cairn_status inputs_open(struct cairn_stage_ctx *ctx, struct inputs *in, int kept, struct cairn_error *err)
{
    const int64_t step = ctx->link.step;
    const struct cairn_link policy_link = {step - 1, CAIRN_STAGE_SYNC, NULL}, rollout_link = {step, CAIRN_STAGE_ROLLOUT, NULL},
                            score_link = {step, CAIRN_STAGE_SCORE, NULL}, train_link = {step - 1, CAIRN_STAGE_TRAIN, NULL};
    struct cairn_reader *rollout_reader = NULL, *score_reader = NULL;
    char *names[3] = {cairn_link_relative(&rollout_link), cairn_link_relative(&score_link), cairn_link_relative(&train_link)};
    struct cairn_manifest_head head;
    enum cairn_status st = CAIRN_OK;

    in->policy = cairn_link_path(ctx->run, &policy_link);
    in->base = cairn_run_path(ctx->run, "base");
    in->o.step = step;
    if (!in->policy || !in->base || !names[0] || !names[1] || !names[2])
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_manifest_head(&head, in->policy, err));
    TRY(cairn_stage_input(ctx, names[0], &rollout_reader, err));
    TRY(cairn_rollouts_load(&in->r, rollout_reader, err));
    TRY(cairn_stage_input(ctx, names[1], &score_reader, err));
    TRY(cairn_scores_load(&in->s, score_reader, 0, err));
    if (in->s.n != in->r.n)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s has %lld rollouts, %s scores %lld", names[0], (long long)in->r.n, names[1],
                       (long long)in->s.n));
    TRY(origin_check(ctx, rollout_reader, &in->r, &head, &in->o, err));
    if ((step > 1 || cairn_recipe_has(ctx->run->recipe, "warm_start")) && !kept)
        TRY(cairn_stage_input(ctx, names[2], &in->state, err));
out:
    cairn_reader_close(rollout_reader);
    cairn_reader_close(score_reader);
    for (int i = 0; i < 3; i++)
        free(names[i]);
    return st;
}

/* ---- trainers that stay ------------------------------------------------------------------------------------------------ */

/* What a resident process keeps: the trainer as it was when `step` was saved. */
struct kept {
    struct cairn_trainer t;
    int64_t step;
};

void cairn_train_forget(struct cairn_stage_ctx *ctx)
{
    struct kept *k = ctx->kept;

    if (!k)
        return;
    cairn_trainer_close(&k->t);
    free(k);
    ctx->kept = NULL;
}

static int kept_is(const struct cairn_stage_ctx *ctx, int64_t step)
{
    const struct kept *k = ctx->kept;

    return k && k->step == step;
}

/* Room for a trainer that is to be opened; nothing else is kept from now on. */
static enum cairn_status kept_begin(struct cairn_stage_ctx *ctx, struct kept **out, struct cairn_error *err)
{
    cairn_train_forget(ctx);
    if (!(*out = ctx->kept = calloc(1, sizeof **out)))
        return CAIRN_NOMEM(err);
    (*out)->step = -1;
    return CAIRN_OK;
}

/* The trainer that a step begins with: as the step before left it in this process, or as it is on disk. The same on all ranks. */
static enum cairn_status trainer_ready(struct cairn_stage_ctx *ctx, const struct inputs *in, struct kept **out,
                                       struct cairn_error *err)
{
    const struct cairn_trainer_start start = {
        .dir = in->policy, .base = in->base, .state = in->state, .reset = ctx->link.step == 1, .ctx = ctx};
    enum cairn_status st = CAIRN_OK;

    if (kept_is(ctx, ctx->link.step - 1)) {
        *out = ctx->kept;
        (*out)->step = -1;
        return cairn_trainer_agree(&(*out)->t, "the trainer", cairn_trainer_go_on(&(*out)->t, ctx->run->recipe, start.reset, err),
                                   err);
    }
    TRY(cairn_ranks_agree(ctx, "room for a trainer", kept_begin(ctx, out, err), err));
    TRY(cairn_trainer_open(&(*out)->t, ctx->compute, ctx->run->recipe, &start, err));
out:
    return st;
}

/* Trains a step; save 0: into memory alone. */
static enum cairn_status step_run(struct cairn_stage_ctx *ctx, int save, struct cairn_error *err)
{
    struct kept *k = NULL;
    struct inputs in = {0};
    struct cairn_grpo_stats stats;
    enum cairn_status st = CAIRN_OK;
    double t0 = cairn_now_s();

    TRY(cairn_ranks_agree(ctx, "what to train on", inputs_open(ctx, &in, kept_is(ctx, ctx->link.step - 1), err), err));
    TRY(trainer_ready(ctx, &in, &k, err));
    TRY(cairn_trainer_reserve(&k->t, longest(&in.r), in.r.offsets[in.r.n], 1, err));
    TRY(cairn_grpo_run(ctx, &k->t, &in.r, &in.s, &in.o, &stats, err));
    stats_tell(ctx, &stats, cairn_now_s() - t0);
    if (save) {
        TRY(hollow_decide(ctx, &k->t, err));
        TRY(state_save(ctx, &k->t, err));
    }
    k->step = ctx->link.step;
out:
    inputs_close(&in);
    return st;
}

/* ---- states that were only told ------------------------------------------------------------------------------------------ */

/* Is what came out again the state that the manifest of its step tells of? Masters, moments and count of updates, whether data and policy are still
 * there or not. */
static enum cairn_status state_compare(struct cairn_stage_ctx *ctx, const struct kept *k, struct cairn_error *err)
{
    const struct cairn_link l = {k->step, CAIRN_STAGE_TRAIN, NULL};
    char *dir = cairn_link_path(ctx->run, &l), other[CAIRN_TENSOR_NAME_MAX + 1] = "";
    struct cairn_manifest *m = NULL;
    enum cairn_status st = CAIRN_OK;
    int64_t updates;

    if (!dir)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_manifest_load(&m, dir, err));
    TRY(cairn_json_i64(m->content, "updates", 0, INT64_MAX, &updates, dir, err));
    if (updates != k->t.optimizer.updates)
        snprintf(other, sizeof other, "the count of updates");
    else
        TRY(cairn_trainer_compare(&k->t.optimizer, m, other, sizeof other, err));
    if (other[0])
        TRY(cairn_fail(err, CAIRN_ENUMERIC,
                       "the state of step %lld, which checkpoint.every left unsaved, comes out another when it is trained again: %s is not what %s "
                       "tells; go on with the numerics and layout that it was made with (%s, %s; here %s, %s)",
                       (long long)k->step, other, dir, m->numerics, m->layout, ctx->manifest->numerics, ctx->manifest->layout));
out:
    cairn_manifest_destroy(m);
    free(dir);
    return st;
}

/* Trains one step again that is committed, in memory. */
static enum cairn_status step_again(struct cairn_stage_ctx *ctx, int64_t step, struct cairn_error *err)
{
    const struct cairn_link link = ctx->link;
    struct cairn_manifest *manifest = ctx->manifest;
    struct cairn_attempt *attempt = ctx->attempt;
    enum cairn_status st;

    ctx->link = (struct cairn_link){step, CAIRN_STAGE_TRAIN, NULL};
    ctx->manifest = NULL;
    ctx->attempt = NULL; /* nothing is written */
    cairn_run_at(ctx->run, step);
    st = cairn_link_manifest(ctx->run, &ctx->link, &ctx->manifest, err);
    if (st == CAIRN_OK)
        st = cairn_manifest_set_fingerprint(ctx->manifest, ctx->compute->numerics, "", err);
    st = cairn_ranks_agree(ctx, "a step made again", st, err);
    if (st == CAIRN_OK)
        st = step_run(ctx, 0, err);
    cairn_manifest_destroy(ctx->manifest);
    ctx->link = link;
    ctx->manifest = manifest;
    ctx->attempt = attempt;
    cairn_run_at(ctx->run, link.step);
    return st;
}

/* The trainer as it was behind `step`, where its state was only told: from the last one that was saved, by training again. Otherwise nothing is
 * done. */
static enum cairn_status catch_up(struct cairn_stage_ctx *ctx, int64_t step, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t from = step;

    if (step < 1 || kept_is(ctx, step))
        return CAIRN_OK;
    if (ctx->world->rank == 0)
        st = cairn_publish_state(ctx->run, step, &from, err);
    TRY(cairn_ranks_tell(ctx, "the last state", st, &from, sizeof from, err));
    if (from < 0 || from == step)
        goto out;
    if (ctx->world->rank == 0)
        cairn_info("the state of step %lld is in memory only until checkpoint.every saves it: training again from step %lld on", (long long)step,
                   (long long)from + 1);
    for (int64_t s = from + 1; s <= step; s++) {
        TRY(step_again(ctx, s, err));
        TRY(cairn_ranks_agree(ctx, "the state made again", state_compare(ctx, ctx->kept, err), err));
    }
out:
    return st;
}

static enum cairn_status step_train(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(catch_up(ctx, ctx->link.step - 1, err));
    TRY(step_run(ctx, 1, err));
out:
    if (!ctx->resident)
        cairn_train_forget(ctx);
    return st;
}

enum cairn_status cairn_train_publish(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    const struct kept *k;
    enum cairn_status st = CAIRN_OK;

    TRY(catch_up(ctx, ctx->link.step, err));
    k = ctx->kept;
    if (kept_is(ctx, ctx->link.step) && publishes_from_memory(ctx, &k->t))
        return cairn_publish_store(ctx, k->t.published, k->t.k, err);
    st = cairn_publish_work(ctx, err);
out:
    return st;
}

enum cairn_status cairn_train_work(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    enum cairn_status st = layout_set(ctx, err);

    return st != CAIRN_OK ? st : ctx->link.step == 0 ? warm_start(ctx, err) : step_train(ctx, err);
}

enum cairn_status cairn_train_after(const struct cairn_run *run, const struct cairn_link *l, struct cairn_error *err)
{
    return cairn_inside_drop(run, l->step, err);
}

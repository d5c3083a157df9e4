/* rollout.c - the order of a rollout: policy, prompts, cursor; candidates are added, adopted or sampled, judged, written
 * (rollout.h).
 *
 * Ranks and tasks: everybody has the whole list of candidates. A task's share are the units u with u % tasks == task; of a share,
 * ranks look for finished units in turn, tell each other which are whole, and divide the open ones in turn. They sample for a
 * period, look up, tell each other what came out (so with dynamic sampling all know which groups are kept, and go on to the same
 * next round) and leave the round together.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "stages/common/ranks.h"
#include "stages/rollout/rollout_inside.h"

/* ---- candidates ----------------------------------------------------------------------------------------------------- */

/* n further candidates from the cursor (evaluation: rows in order). */
static enum cairn_status candidates_add(struct rollout *x, int64_t n, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int64_t i = 0; i < n; i++) {
        struct cairn_ids ids = {0};
        int64_t id, from;

        if (x->cursor)
            TRY(cairn_cursor_next(x->cursor, &id, err));
        else
            id = cairn_prompt_id(0, x->rows++);
        TRY(cairn_carry_next(&x->carry, id, &from, &ids, err));
        if (from >= 0) {
            TRY(cairn_units_add(x->units, id, &ids, (int)from, err));
            continue;
        }
        st = cairn_prompting_ids(&x->kept->prompting, &x->files[id >> 32], id & 0xffffffff, x->how.max_new, &x->kept->policy.config,
                                 &ids, err);
        if (st != CAIRN_OK) {
            cairn_ids_free(&ids);
            goto out;
        }
        TRY(cairn_units_add(x->units, id, &ids, -1, err));
    }
out:
    return st;
}

static int open_here(const struct rollout *x, int64_t group)
{
    return !cairn_units_whole(x->units, group) && cairn_units_ours(x->units, group);
}

/* ... and not there already, from the step before. */
static int open_to_sample(const struct rollout *x, int64_t group)
{
    return open_here(x, group) && cairn_units_carried(x->units, group) < 0;
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

        if (!open_to_sample(x, g))
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

/* All ranks look up. In: how this rank fares (*mine) and whether it has nothing left to do. What is returned is agreed; *mine is
 * then how this rank took in what the others said, for the next time. */
static enum cairn_status look_up(struct rollout *x, enum cairn_status *mine, int nothing_left, int *all_idle,
                                 struct cairn_error *err)
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

/* Units that nobody makes yet and that are not whole: the k-th one of our share goes to rank k, in turn. Whole ones stay with whom
 * they are. */
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
        mine = cairn_fail(err, CAIRN_EFENCED, "%s: committed by another task",
                          x->ctx->dir); /* and what was there has been tidied away */
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

/* The responses of a group that the step before has sampled. */
static enum cairn_status carried_put(struct rollout *x, int64_t group, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int s = 0; s < x->how.samples; s++) {
        struct cairn_response r;

        TRY(cairn_carry_response(&x->carry, cairn_units_carried(x->units, group), s, group, &r, err));
        x->done++;
        TRY(cairn_units_put(x->units, &r, err));
    }
out:
    return st;
}

static enum cairn_status candidates_submit(struct rollout *x, int64_t begin, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(engine_ready(x, begin, err));
    for (int64_t g = begin; g < cairn_units_groups(x->units); g++)
        if (open_here(x, g) && cairn_units_carried(x->units, g) >= 0)
            TRY(carried_put(x, g, err));
    for (int64_t g = begin; g < cairn_units_groups(x->units); g++) {
        const struct cairn_ids *ids = cairn_units_ids(x->units, g);

        if (open_to_sample(x, g))
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

/* An array task whose share is finished: if everything else is, too, it is taken over, else the artefact waits for the other tasks.
 */
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

static enum cairn_status nothing_mixed(const struct rollout *x, const struct cairn_units_counts *c, struct cairn_error *err)
{
    char failed[80 + sizeof x->failure.why] = "";

    if (c->undecided)
        snprintf(failed, sizeof failed, " (%lld groups hang on a grader that failed%s%s)", (long long)c->undecided, x->failure.why[0] ? ": " : "",
                 x->failure.why);
    return cairn_fail(
        err, CAIRN_EDATA,
        "no group with mixed verdicts among %lld (%lld all right, %lld all wrong) after %d refills: nothing to learn from%s",
        (long long)c->groups, (long long)c->all_right, (long long)c->all_wrong, x->rounds, failed);
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
                TRY(nothing_mixed(x, &c, err));
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

/* Which layers' choices stand in a row of the column "experts", in order, and how many of each. */
static json_t *experts_json(const struct cairn_model_config *c)
{
    json_t *layers = json_array();

    for (int i = 0; i < c->layers; i++)
        if (!c->dense[i] && layers)
            json_array_append_new(layers, json_integer(i));
    return json_pack("{s:o, s:i}", "layers", layers, "chosen", c->experts_per_token);
}

/* Counts of dynamic sampling: all groups, then those that hang on a failed grader, by which failures, and what a time-out decided.
 */
static enum cairn_status dynamic_set(struct rollout *x, const struct cairn_units_counts *c, json_t *content,
                                     struct cairn_error *err)
{
    int64_t by_time = c->status[CAIRN_VERDICT_TIMEOUT] + c->status[CAIRN_VERDICT_CRASHED];
    json_t *d = json_pack("{s:i, s:I, s:I, s:I, s:I}", "rounds", x->rounds, "all_right", (json_int_t)c->all_right, "all_wrong",
                          (json_int_t)c->all_wrong, "surplus", (json_int_t)c->surplus, "undecided", (json_int_t)c->undecided),
           *grades = json_object();
    enum cairn_status st = CAIRN_OK;

    if (!d || !grades || json_object_set(d, "grades", grades) || json_object_set(content, "dynamic", d))
        TRY(CAIRN_NOMEM(err));
    for (int k = CAIRN_VERDICT_OK + 1; k < CAIRN_VERDICT_STATUSES; k++)
        if (c->status[k] &&
            json_object_set_new(grades, cairn_verdict_status_name((enum cairn_verdict_status)k), json_integer(c->status[k])))
            TRY(CAIRN_NOMEM(err));
    if (by_time && json_object_set_new(content, "nondeterministic", json_integer(by_time)))
        TRY(CAIRN_NOMEM(err));
    if (by_time && x->ctx->world->rank == 0)
        cairn_warn("%lld responses count as wrong because their grader crashed or took too long: which groups step %lld keeps may "
                   "come out otherwise "
                   "next time",
                   (long long)by_time, (long long)x->ctx->link.step);
    if (cairn_recipe_bool(x->recipe, "rollout.carry") && json_object_set_new(d, "carried", json_integer(c->carried)))
        TRY(CAIRN_NOMEM(err));
    if (c->carried && json_object_set_new(content, "carried",
                                          json_pack("{s:I, s:s, s:I}", "step", (json_int_t)x->carry.step, "policy", x->carry.policy,
                                                    "groups", (json_int_t)c->carried)))
        TRY(CAIRN_NOMEM(err));
    cairn_stage_metric(x->ctx, "dynamic/rounds", x->rounds);
    cairn_stage_metric(x->ctx, "dynamic/all_right", (double)c->all_right);
    cairn_stage_metric(x->ctx, "dynamic/all_wrong", (double)c->all_wrong);
    cairn_stage_metric(x->ctx, "dynamic/surplus", (double)c->surplus);
    cairn_stage_metric(x->ctx, "dynamic/undecided", (double)c->undecided);
    cairn_stage_metric(x->ctx, "dynamic/carried", (double)c->carried);
out:
    json_decref(d);
    json_decref(grades);
    return st;
}

static enum cairn_status content_set(struct rollout *x, struct cairn_error *err)
{
    struct cairn_units_counts c = cairn_units_counts(x->units);
    json_t *content = x->ctx->manifest->content, *cursor = NULL;
    int64_t *back = NULL, n;
    enum cairn_status st = CAIRN_OK;

    if (json_object_set_new(content, "units", json_integer(cairn_units_count(x->units))) ||
        json_object_set_new(content, "rollouts", json_integer(c.rollouts)) ||
        json_object_set_new(content, "groups", json_integer(c.groups)) ||
        json_object_set_new(content, "kept", json_integer(c.kept)) ||
        json_object_set_new(content, "temperature", json_real(x->how.greedy ? 0 : (double)x->how.temperature)))
        TRY(CAIRN_NOMEM(err));
    if (x->dynamic)
        TRY(dynamic_set(x, &c, content, err));
    if (x->how.experts && json_object_set_new(content, "experts", experts_json(&x->kept->policy.config)))
        TRY(CAIRN_NOMEM(err));
    if (x->cursor) {
        TRY(cairn_units_surplus(x->units, &back, &n, err));
        TRY(cairn_cursor_return(x->cursor, back, n, err));
        cursor = cairn_cursor_json(x->cursor);
        if (!cursor || json_object_set_new(content, "cursor", cursor))
            TRY(CAIRN_NOMEM(err));
    }
    cairn_stage_info(x->ctx, "tokens/total", (double)c.tokens);
    cairn_stage_info(x->ctx, "tokens/per_second", x->sampling_s > 0 ? (double)x->sampled_all / x->sampling_s : 0);
    if (c.adopted && json_object_set_new(x->ctx->manifest->info, "adopted", json_integer(c.adopted)))
        TRY(CAIRN_NOMEM(err));
out:
    free(back);
    return st;
}

enum cairn_status cairn_rollout_work(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    struct rollout x = {.ctx = ctx, .recipe = ctx->run->recipe};
    enum cairn_status st = CAIRN_OK;
    char *identity = NULL;

    TRY(cairn_ranks_agree(ctx, "policy and prompts", cairn_rollout_open(&x, &identity, err), err));
    TRY(list_run(&x, err));
    if (!ctx->partial)
        TRY(content_set(&x, err));
out:
    free(identity);
    cairn_rollout_close(&x);
    return st;
}

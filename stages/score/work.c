/* work.c - the work of cairn-score: a committed rollout artefact in, a score artefact out, with the same units.
 *
 * A unit is graded and written by itself: advantages are made by group, and a group lies in one unit. Everybody reads all rollouts;
 * of a task's share (the units u with u % tasks == task) ranks take over what earlier attempts have finished, then grade the open
 * ones in turn. What the metrics want of other ranks' units are the verdicts: ranks tell them each other.
 */
#include "stages/score/score.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/clock.h"
#include "base/str.h"
#include "stages/common/metrics.h"
#include "stages/common/ranks.h"

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
        if (x->unit[u + 1] > x->rollouts.n)
            break;
        if (x->unit[u] && n && x->rollouts.group[x->unit[u] - 1] == x->rollouts.group[x->unit[u]])
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: group %d lies in unit %d and in one before it", cairn_reader_path(from),
                           x->rollouts.group[x->unit[u]], u));
    }
    if (x->unit[x->units] != x->rollouts.n)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: its units do not hold %lld rollouts", cairn_reader_path(from),
                       (long long)x->rollouts.n));
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
    TRY(cairn_tokenizer_load_decoder(&x->tokenizer, tokenizer, err));
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

/* ---- units ---------------------------------------------------------------------------------------------------------- */

struct scoring {
    struct cairn_stage_ctx *ctx;
    struct reading in;
    struct cairn_scores_table s; /* whole for our units, verdicts of all that are done */
    struct cairn_score_opts o;
    uint8_t *done, *ours, *told; /* (units) it is finished, by whomever; it is ours to make; the other ranks know that it is done */
    int64_t graded, total;       /* rollouts, for the bar: graded or taken over by this rank; of our share */
    int64_t graded_all, told_graded; /* by all ranks when they looked up last, and what this one said then */
    int64_t begin;                   /* of the unit at hand */
    int64_t adopted;
    struct cairn_grade_failure failure, invalid; /* of what all ranks of this attempt have graded */
    int whole; /* array task: its own share is finished, everything else is taken over */
};

static int64_t unit_size(const struct scoring *x, int64_t u)
{
    return x->in.unit[u + 1] - x->in.unit[u];
}

static int in_share(const struct scoring *x, int64_t u)
{
    return x->ctx->tasks <= 1 || x->whole || u % x->ctx->tasks == x->ctx->task;
}

/* The k-th open unit of our share goes to rank k, in turn. */
static void divide(struct scoring *x)
{
    const struct cairn_world *w = x->ctx->world;
    int64_t k = 0;

    for (int64_t u = 0; u < x->in.units; u++)
        x->ours[u] = !x->done[u] && in_share(x, u) && k++ % w->size == w->rank;
}

static enum cairn_status unit_take(struct scoring *x, int u, struct cairn_shard_entry *e, struct cairn_error *err)
{
    int64_t n = unit_size(x, u), at = x->in.unit[u];
    enum cairn_status st = cairn_unit_column(x->ctx->dir, e, u, "verdict", CAIRN_U8, n, x->s.verdict + at, err);

    if (st == CAIRN_OK)
        st = cairn_unit_column(x->ctx->dir, e, u, "status", CAIRN_U8, n, x->s.status + at, err);
    if (st == CAIRN_OK)
        st = cairn_unit_column(x->ctx->dir, e, u, "value", CAIRN_F32, n, x->s.value + at, err);

    if (st != CAIRN_OK) {
        cairn_shard_entry_free(e);
        return st;
    }
    TRY(cairn_manifest_add_shard(x->ctx->manifest, e, err));
    x->done[u] = 1;
    x->graded += unit_size(x, u);
    x->adopted += unit_size(x, u);
out:
    return st;
}

/* What other attempts have finished of our units. */
static enum cairn_status units_adopt(struct scoring *x, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int u = 0; u < x->in.units; u++) {
        struct cairn_shard_entry *e = NULL;
        char name[32];

        if (!x->ours[u])
            continue;
        cairn_unit_name(u, name);
        TRY(cairn_attempt_adopt(x->ctx->attempt, name, "", &e, err));
        if (e)
            TRY(unit_take(x, u, e, err));
    }
out:
    return st;
}

static void progress(void *arg, int64_t done, int64_t total)
{
    const struct scoring *x = arg;
    int64_t others = x->graded_all - x->told_graded;

    (void)total;
    if (x->ctx->world->rank == 0)
        cairn_stage_progress(x->ctx, "rollouts", others + x->graded + done - x->begin, x->total);
}

static enum cairn_status unit_make(struct scoring *x, int u, struct cairn_error *err)
{
    int64_t begin = x->in.unit[u], end = x->in.unit[u + 1];
    struct cairn_shard_entry *e = NULL;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_stage_stopping(err));
    x->begin = begin;
    TRY(cairn_score_grade(&x->s, &x->in.rollouts, begin, end, &x->o, err));
    TRY(cairn_score_rewards_of(&x->s, &x->in.rollouts, begin, end, &x->o, err));
    TRY(cairn_attempt_check(x->ctx->attempt, err));
    TRY(cairn_scores_write(&x->s, begin, end, x->ctx->attempt, u, "", &e, err));
    TRY(cairn_manifest_add_shard(x->ctx->manifest, e, err));
    x->done[u] = 1;
    x->graded += end - begin;
    x->begin = end;
    progress(x, end, end);
out:
    return st;
}

/* ---- ranks and tasks ------------------------------------------------------------------------------------------------ */

/* What a rank says of itself when it looks up. For each unit that it has finished since, its number, verdicts, statuses, values
 * follow. */
struct report {
    int64_t idle, graded;
    struct cairn_grade_failure failure, invalid;
};

static enum cairn_status report_make(struct scoring *x, int nothing_left, struct cairn_str *out, struct cairn_error *err)
{
    struct report r;

    memset(&r, 0, sizeof r); /* no byte goes out that nobody wrote */
    r.idle = nothing_left;
    r.graded = x->graded;
    r.failure = x->failure;
    r.invalid = x->invalid;
    cairn_str_add(out, &r, sizeof r);
    for (int64_t u = 0; u < x->in.units; u++)
        if (x->done[u] && !x->told[u]) {
            cairn_str_add(out, &u, sizeof u);
            cairn_str_add(out, x->s.verdict + x->in.unit[u], (size_t)unit_size(x, u));
            cairn_str_add(out, x->s.status + x->in.unit[u], (size_t)unit_size(x, u));
            cairn_str_add(out, x->s.value + x->in.unit[u], (size_t)unit_size(x, u) * sizeof *x->s.value);
            x->told[u] = 1;
        }
    return out->oom ? CAIRN_NOMEM(err) : CAIRN_OK;
}

static enum cairn_status report_read(struct scoring *x, int rank, const char *p, size_t n, int *all_idle, struct cairn_error *err)
{
    const size_t bytes = sizeof *x->s.verdict + sizeof *x->s.status + sizeof *x->s.value;
    struct report r;
    int64_t u;
    size_t k;

    if (n < sizeof r)
        return CAIRN_BUG(err, "a rank said nothing");
    memcpy(&r, p, sizeof r);
    *all_idle &= r.idle != 0;
    x->graded_all += r.graded;
    cairn_grade_failure_merge(&x->failure, &r.failure);
    cairn_grade_failure_merge(&x->invalid, &r.invalid);
    if (rank == x->ctx->world->rank)
        return CAIRN_OK;
    for (p += sizeof r, n -= sizeof r; n; p += k * bytes, n -= k * bytes) {
        if (n < sizeof u)
            return CAIRN_BUG(err, "half a number of a unit");
        memcpy(&u, p, sizeof u);
        p += sizeof u;
        n -= sizeof u;
        if (u < 0 || u >= x->in.units || x->done[u] || n < (size_t)unit_size(x, u) * bytes)
            return CAIRN_BUG(err, "news of a unit that is known or none");
        k = (size_t)unit_size(x, u);
        memcpy(x->s.verdict + x->in.unit[u], p, k);
        memcpy(x->s.status + x->in.unit[u], p + k, k);
        memcpy(x->s.value + x->in.unit[u], p + 2 * k, k * sizeof *x->s.value);
        x->done[u] = x->told[u] = 1;
    }
    return CAIRN_OK;
}

/* All ranks look up. In: how this rank fares (*mine) and whether it has nothing left to do. What is returned is agreed; *mine is
 * then how this rank took in what the others said, for the next time. */
static enum cairn_status look_up(struct scoring *x, enum cairn_status *mine, int nothing_left, int *all_idle,
                                 struct cairn_error *err)
{
    struct cairn_str out = {0};
    enum cairn_status st;
    size_t *at = NULL;
    char *all = NULL;

    if (*mine == CAIRN_OK)
        *mine = report_make(x, nothing_left, &out, err);
    st = cairn_ranks_exchange(x->ctx, "grading", *mine, out.p, out.len, &all, &at, err);
    *all_idle = 1;
    x->graded_all = 0;
    x->told_graded = x->graded;
    for (int k = 0; st == CAIRN_OK && *mine == CAIRN_OK && k < x->ctx->world->size; k++)
        *mine = report_read(x, k, all + at[k], at[k + 1] - at[k], all_idle, err);
    cairn_str_free(&out);
    free(all);
    free(at);
    return st;
}

/* Our units from *next on, until nothing is left or it is time to look up. */
static enum cairn_status units_make(struct scoring *x, int *next, double started, struct cairn_error *err)
{
    double until = cairn_now_s() + cairn_ranks_period(started);
    enum cairn_status st = CAIRN_OK;

    for (; *next < x->in.units && (x->ctx->world->size == 1 || cairn_now_s() < until); ++*next)
        if (x->ours[*next])
            TRY(unit_make(x, *next, err));
    while (*next < x->in.units && !x->ours[*next])
        ++*next;
out:
    return st;
}

/* All units of the share: taken over or graded. */
static enum cairn_status share_run(struct scoring *x, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK, mine;
    double started = cairn_now_s();
    int all_idle = 0, next = 0;

    x->total = 0;
    for (int u = 0; u < x->in.units; u++)
        x->total += in_share(x, u) ? unit_size(x, u) : 0;
    divide(x);
    mine = units_adopt(x, err);
    TRY(look_up(x, &mine, 1, &all_idle, err));
    if (x->whole && x->ctx->world->rank == 0 && mine == CAIRN_OK && cairn_artefact_committed(x->ctx->dir))
        mine = cairn_fail(err, CAIRN_EFENCED, "%s: committed by another task",
                          x->ctx->dir); /* and what was there has been tidied away */
    TRY(cairn_ranks_agree(x->ctx, "taking over", mine, err));
    divide(x);
    for (all_idle = 0; !all_idle;) {
        if (mine == CAIRN_OK && next == x->in.units && x->ctx->world->size > 1)
            cairn_ranks_rest(started); /* the others are at work */
        if (mine == CAIRN_OK)
            mine = units_make(x, &next, started, err);
        TRY(look_up(x, &mine, next == x->in.units, &all_idle, err));
    }
    TRY(cairn_ranks_agree(x->ctx, "the units", mine, err));
out:
    return st;
}

struct search {
    const struct scoring *x;
    uint8_t *there; /* (units) */
};

static int search_one(void *arg, const char *name, const char *identity, int64_t epoch)
{
    struct search *s = arg;
    int64_t u;

    (void)epoch;
    if (!identity[0] && cairn_starts_with(name, "unit-") && cairn_parse_i64(name + 5, &u) && u >= 0 && u < s->x->in.units)
        s->there[u] = 1;
    return 0;
}

/* Units that are neither done nor lie finished in any attempt. */
static enum cairn_status units_missing(const struct scoring *x, int64_t *missing, struct cairn_error *err)
{
    struct search s = {x, calloc((size_t)x->in.units + 1, 1)};
    enum cairn_status st = CAIRN_OK;

    if (!s.there)
        return CAIRN_NOMEM(err);
    TRY(cairn_attempt_each(x->ctx->attempt, search_one, &s, err));
    for (int u = 0; u < x->in.units; u++)
        *missing += !x->done[u] && !s.there[u];
out:
    free(s.there);
    return st;
}

/* An array task whose share is finished: if everything else is, too, it is taken over, else the artefact waits for the other tasks.
 */
static enum cairn_status others_run(struct scoring *x, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK, mine = CAIRN_OK;
    int64_t missing = 0;

    if (x->ctx->world->rank == 0)
        mine = units_missing(x, &missing, err);
    TRY(cairn_ranks_tell(x->ctx, "what is missing", mine, &missing, sizeof missing, err));
    if (missing) {
        x->ctx->partial = 1;
        goto out;
    }
    x->whole = 1;
    TRY(share_run(x, err));
out:
    return st;
}

/* ---- the stage ------------------------------------------------------------------------------------------------------ */

static enum cairn_status scoring_open(struct scoring *x, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(reading_open(&x->in, x->ctx, err));
    x->o = (struct cairn_score_opts){.recipe = x->ctx->run->recipe,
                                     .graders = x->ctx->graders,
                                     .tokenizer = x->in.tokenizer,
                                     .files = x->in.files,
                                     .nfiles = x->in.nfiles,
                                     .grader = x->in.grader,
                                     .cap = cap_of(x->ctx),
                                     .failure = &x->failure,
                                     .invalid = &x->invalid,
                                     .progress = progress,
                                     .arg = x};
    TRY(cairn_scores_create(&x->s, x->in.rollouts.n, err));
    x->done = calloc((size_t)x->in.units + 1, 1);
    x->ours = calloc((size_t)x->in.units + 1, 1);
    x->told = calloc((size_t)x->in.units + 1, 1);
    if (!x->done || !x->ours || !x->told)
        TRY(CAIRN_NOMEM(err));
out:
    return st;
}

/* How the first of them failed, behind a count on stderr and in the manifest's info. Nothing known: another attempt or task has graded them, and said
 * so. */
static enum cairn_status first_tell(const struct scoring *x, const struct cairn_grade_failure *f, const char *key, char *out, size_t size,
                                    struct cairn_error *err)
{
    out[0] = 0;
    if (!f->why[0])
        return CAIRN_OK;
    snprintf(out, size, " (rollout %lld: %s)", (long long)f->rollout, f->why);
    return json_object_set_new(x->ctx->manifest->info, key, json_pack("{s:I, s:s}", "rollout", (json_int_t)f->rollout, "why", f->why))
               ? CAIRN_NOMEM(err)
               : CAIRN_OK;
}

/* by_time rollouts are decided by a crash or a time-out, invalid ones by a reply that is no verdict. */
static enum cairn_status failures_tell(const struct scoring *x, int64_t by_time, int64_t invalid, struct cairn_error *err)
{
    char first[sizeof x->failure.why + 64];
    enum cairn_status st = CAIRN_OK;

    TRY(first_tell(x, &x->failure, "grader_failure", first, sizeof first, err));
    if (by_time)
        cairn_warn("%lld rollouts have no verdict because their grader crashed or took too long%s: this step's scores may come out otherwise "
                   "next time",
                   (long long)by_time, first);
    TRY(first_tell(x, &x->invalid, "grader_invalid", first, sizeof first, err));
    if (invalid)
        cairn_warn("%lld rollouts count as wrong because what their grader replied is no verdict%s", (long long)invalid, first);
out:
    return st;
}

/* An array task that ends before the others do: what its grader did is told now, for only verdicts are handed on. */
static void share_tell(const struct scoring *x)
{
    if (x->failure.why[0])
        cairn_warn("a grader crashed or took too long in this task's share, first at rollout %lld: %s", (long long)x->failure.rollout,
                   x->failure.why);
    if (x->invalid.why[0])
        cairn_warn("a grader's reply was no verdict in this task's share, first at rollout %lld: %s", (long long)x->invalid.rollout, x->invalid.why);
}

/* With all verdicts: the metrics of the whole step. */
static enum cairn_status content_set(struct scoring *x, struct cairn_error *err)
{
    struct cairn_manifest *m = x->ctx->manifest;
    enum cairn_status st = CAIRN_OK;
    json_t *metrics = NULL;
    json_int_t by_time = 0, invalid = 0;

    TRY(cairn_score_rewards(&x->s, &x->in.rollouts, &x->o, err));
    metrics = cairn_score_metrics(&x->s, &x->in.rollouts);
    if (!metrics || json_object_set(m->content, "metrics", metrics) ||
        json_object_set_new(m->content, "units", json_integer(x->in.units)))
        TRY(CAIRN_NOMEM(err));
    for (int64_t i = 0; i < x->in.rollouts.n; i++) {
        by_time += x->s.status[i] == CAIRN_VERDICT_TIMEOUT || x->s.status[i] == CAIRN_VERDICT_CRASHED;
        invalid += x->s.status[i] == CAIRN_VERDICT_INVALID;
    }
    if (by_time && json_object_set_new(m->content, "nondeterministic", json_integer(by_time)))
        TRY(CAIRN_NOMEM(err));
    TRY(failures_tell(x, by_time, invalid, err));
    if (x->adopted && json_object_set_new(m->info, "adopted", json_integer(x->adopted)))
        TRY(CAIRN_NOMEM(err));
out:
    json_decref(metrics);
    return st;
}

enum cairn_status cairn_score_work(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    struct scoring x = {.ctx = ctx};
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_ranks_agree(ctx, "rollouts and prompts", scoring_open(&x, err), err));
    TRY(share_run(&x, err));
    if (ctx->tasks > 1)
        TRY(others_run(&x, err));
    if (ctx->world->rank == 0 && ctx->partial)
        share_tell(&x);
    else if (ctx->world->rank == 0)
        TRY(content_set(&x, err));
out:
    cairn_scores_free(&x.s);
    reading_close(&x.in);
    free(x.done);
    free(x.ours);
    free(x.told);
    return st;
}

enum cairn_status cairn_score_after(const struct cairn_run *run, const struct cairn_link *l, struct cairn_error *err)
{
    return l->eval ? cairn_metrics_eval(run, l->step, l->eval, err) : CAIRN_OK;
}

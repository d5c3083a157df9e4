/* grpo.c - the updates of one step (grpo.h). */
#include "stages/train/grpo.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "stages/common/setup.h"
#include "stages/train/known.h"
#include "stages/train/point.h"

struct job {
    struct cairn_stage_ctx *ctx;
    struct cairn_trainer *t;
    const struct cairn_rollouts *r;
    const struct cairn_scores_table *s;
    const struct cairn_grpo_opts *o;
    struct cairn_grpo_stats *stats;
    struct cairn_grpo_stats part; /* this rank's, of the update at hand */
    double *gathered;             /* (ranks * NUMBERS) scratch */
    struct cairn_points *points;
    float temperature;
    int sft;
    double mismatch_max;
    struct cairn_policy_loss loss; /* scalars of the recipe */
    struct cairn_optimizer_opts adamw;
    int64_t groups;                  /* used ones */
    int64_t *first;                  /* (groups + 1) into sequence: a group's used rollouts */
    struct cairn_sequence *sequence; /* (n) used rollouts in order of groups */
    int64_t n;
    float *old, *ref; /* (responses) by rollout offsets, ref or NULL */
    const float *smp; /* (responses) what corrections hold old against: the sampler's, over all ids or over what was drawn from; or NULL */
    uint8_t *live;    /* (rollouts) 1: its tokens are in the loss */
    float *weight;    /* (rollouts) of each of its tokens */
    float *row;       /* scratch (micro.capacity) */
    uint8_t *mask;    /* scratch (micro.capacity) */
};

/* ---- reading the recipe ------------------------------------------------------------------------------------------------- */

static int word(const struct cairn_recipe *r, const char *path, const char *const *words)
{
    const char *v = cairn_recipe_str(r, path);

    for (int i = 0; words[i]; i++)
        if (!strcmp(v, words[i]))
            return i;
    return 0;
}

static void recipe_read(struct job *j)
{
    static const char *const ratios[] = {"token", "sequence", "cispo", NULL}, *const kinds[] = {"k1", "k2", "k3", NULL};
    const struct cairn_recipe *r = j->t->recipe;
    const json_t *betas = cairn_recipe_list(r, "train.betas"), *max = cairn_recipe_get(r, "mismatch.max");
    const char *correction = cairn_recipe_str(r, "train.correction.kind");

    j->sft = !strcmp(cairn_recipe_str(r, "train.loss"), "sft");
    j->temperature = j->sft ? 1.0f : (float)cairn_recipe_f64(r, "rollout.temperature");
    /* rollouts of another policy differ rightly: that is what train.correction is for */
    j->mismatch_max = !j->o->same_policy    ? INFINITY
                      : json_is_number(max) ? json_number_value(max)
                      : j->o->same_numerics ? 0
                                            : CAIRN_NUMERICS_BAND;
    j->loss = (struct cairn_policy_loss){
        .ratio = (enum cairn_ratio)word(r, "train.ratio", ratios),
        .correction = !strcmp(correction, "tis")      ? CAIRN_CORRECT_TIS
                      : !strcmp(correction, "icepop") ? CAIRN_CORRECT_ICEPOP
                                                      : CAIRN_CORRECT_NONE,
        .kl = (enum cairn_kl)word(r, "train.kl.kind", kinds),
        .clip_low = (float)cairn_recipe_f64(r, "train.clip.low"),
        .clip_high = (float)cairn_recipe_f64(r, "train.clip.high"),
        .dual = cairn_recipe_has(r, "train.clip.dual") ? (float)cairn_recipe_f64(r, "train.clip.dual") : 0,
        .correct_low = (float)cairn_recipe_f64(r, "train.correction.low"),
        .correct_high = (float)cairn_recipe_f64(r, !strcmp(correction, "tis") ? "train.correction.cap" : "train.correction.high"),
        .kl_coef = (float)cairn_recipe_f64(r, "train.kl.coef"),
        .entropy_coef = (float)cairn_recipe_f64(r, "train.entropy")};
    j->adamw = (struct cairn_optimizer_opts){.learning_rate = cairn_recipe_f64(r, "train.learning_rate"),
                                             .beta1 = json_number_value(json_array_get(betas, 0)),
                                             .beta2 = json_number_value(json_array_get(betas, 1)),
                                             .eps = cairn_recipe_f64(r, "train.eps"),
                                             .weight_decay = cairn_recipe_f64(r, "train.weight_decay"),
                                             .grad_clip = cairn_recipe_f64(r, "train.grad_clip"),
                                             .warmup_updates = cairn_recipe_i64(r, "train.warmup_updates"),
                                             .publish = cairn_setup_dtype(r)};
}

/* ---- statistics ------------------------------------------------------------------------------------------------------------- */

/* All of them that outlive an update, as doubles (counts stay exact below 2^53), for the ranks and for the disc. */
#define NUMBERS (CAIRN_LS_COUNT + 12)

static void numbers_out(const struct cairn_grpo_stats *s, double *h)
{
    memcpy(h, s->loss, sizeof s->loss);
    h += CAIRN_LS_COUNT;
    *h++ = s->sft_loss;
    *h++ = s->grad_norm;
    *h++ = s->lr;
    *h++ = s->grad_norm_max;
    *h++ = (double)s->updates;
    *h++ = (double)s->skipped;
    *h++ = (double)s->loss_tokens;
    *h++ = (double)s->compared;
    *h++ = (double)s->equal;
    *h++ = s->mismatch_sum;
    *h++ = s->mismatch_max;
    *h = s->mismatch_k3;
}

static void numbers_in(struct cairn_grpo_stats *s, const double *h)
{
    memcpy(s->loss, h, sizeof s->loss);
    h += CAIRN_LS_COUNT;
    s->sft_loss = *h++;
    s->grad_norm = *h++;
    s->lr = *h++;
    s->grad_norm_max = *h++;
    s->updates = (int64_t)*h++;
    s->skipped = (int64_t)*h++;
    s->loss_tokens = (int64_t)*h++;
    s->compared = (int64_t)*h++;
    s->equal = (int64_t)*h++;
    s->mismatch_sum = *h++;
    s->mismatch_max = *h++;
    s->mismatch_k3 = *h;
}

static void losses_add(double *to, const double *from)
{
    double min = fmin(to[CAIRN_LS_RATIO_MIN], from[CAIRN_LS_RATIO_MIN]),
           max = fmax(to[CAIRN_LS_RATIO_MAX], from[CAIRN_LS_RATIO_MAX]);
    double mismatch = fmax(to[CAIRN_LS_MISMATCH_MAX], from[CAIRN_LS_MISMATCH_MAX]);

    for (int i = 0; i < CAIRN_LS_COUNT; i++)
        to[i] += from[i];
    to[CAIRN_LS_RATIO_MIN] = min;
    to[CAIRN_LS_RATIO_MAX] = max;
    to[CAIRN_LS_MISMATCH_MAX] = mismatch;
}

static void losses_begin(double *h)
{
    memset(h, 0, CAIRN_LS_COUNT * sizeof *h);
    h[CAIRN_LS_RATIO_MIN] = INFINITY;
    h[CAIRN_LS_RATIO_MAX] = -INFINITY;
}

/* Before an update: nothing counted. */
static enum cairn_status part_begin(struct job *j, struct cairn_error *err)
{
    j->part = (struct cairn_grpo_stats){0};
    losses_begin(j->part.loss);
    return cairn_tensor_set(&j->t->k->stream, &j->t->stats, j->part.loss, sizeof j->part.loss, err);
}

/* What the ranks have counted in this update, added to the step's in rank order. st: how it went here. */
static enum cairn_status part_end(struct job *j, enum cairn_status st, struct cairn_error *err)
{
    struct cairn_grpo_stats *s = j->stats;
    double own[NUMBERS];

    if (st == CAIRN_OK)
        st = cairn_tensor_get(&j->t->k->stream, &j->t->stats, j->part.loss, sizeof j->part.loss, err);
    numbers_out(&j->part, own);
    TRY(cairn_trainer_gather(j->t, "an update's gradients", st, own, NUMBERS, j->gathered, err));
    for (int r = 0; r < j->t->ranks; r++) {
        struct cairn_grpo_stats its;

        numbers_in(&its, j->gathered + r * NUMBERS);
        losses_add(s->loss, its.loss);
        s->sft_loss += its.sft_loss;
        s->compared += its.compared;
        s->equal += its.equal;
        s->mismatch_sum += its.mismatch_sum;
        s->mismatch_k3 += its.mismatch_k3;
        s->mismatch_max = fmax(s->mismatch_max, its.mismatch_max);
    }
out:
    return st;
}

/* ---- sequences and what is known of their tokens ---------------------------------------------------------------------------- */

static enum cairn_status job_prepare(struct job *j, struct cairn_error *err)
{
    const struct cairn_rollouts *r = j->r;
    size_t n = (size_t)r->n + 1, responses = (size_t)r->response[r->n] + 1;

    j->first = calloc(n + 1, sizeof *j->first);
    j->sequence = calloc(n, sizeof *j->sequence);
    j->live = calloc(n, 1);
    j->weight = calloc(n, sizeof *j->weight);
    j->old = calloc(responses, sizeof *j->old);
    j->row = calloc((size_t)j->t->micro.capacity, sizeof *j->row);
    j->mask = calloc((size_t)j->t->micro.capacity, 1);
    if (!j->first || !j->sequence || !j->live || !j->weight || !j->old || !j->row || !j->mask)
        return CAIRN_NOMEM(err);
    for (int64_t i = 0; i < r->n; i++) {
        if (!r->used[i])
            continue;
        if (!j->n || r->group[i] != r->group[j->sequence[j->n - 1].index])
            j->first[j->groups++] = j->n;
        j->sequence[j->n++] =
            (struct cairn_sequence){r->tokens + r->offsets[i], r->offsets[i + 1] - r->offsets[i], r->prompt_length[i], i};
        j->live[i] = j->s->mask[i] && cairn_rollout_length(r, i) > 0;
    }
    j->first[j->groups] = j->n;
    j->stats->groups = j->groups;
    j->stats->rollouts = j->n;
    return CAIRN_OK;
}

/* Compares log-probabilities of one rollout's response tokens, ours against the sampler's. A rollout that is not in the loss may
 * hold anything. */
static enum cairn_status compare(struct job *j, int64_t rollout, const float *ours, struct cairn_grpo_stats *stats,
                                 struct cairn_error *err)
{
    const float *smp = j->r->logprobs + j->r->response[rollout];
    int64_t n = j->live[rollout] ? cairn_rollout_length(j->r, rollout) : 0;

    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)ours[i] - (double)smp[i]), x = (double)ours[i] - (double)smp[i];

        stats->compared++;
        stats->equal += !memcmp(&ours[i], &smp[i], sizeof(float));
        stats->mismatch_sum += d;
        stats->mismatch_k3 += exp(x) - 1 - x;
        if (d > stats->mismatch_max)
            stats->mismatch_max = d;
        if (!(d <= j->mismatch_max) || !isfinite(d))
            return cairn_fail(
                err, CAIRN_ENUMERIC,
                "sampler and trainer disagree: rollout %lld (group %d, sample %d), response token %lld (id %d): sampler %.9g, "
                "trainer %.9g, difference %.3g above mismatch.max %.3g",
                (long long)rollout, j->r->group[rollout], j->r->sample[rollout], (long long)i,
                j->r->tokens[j->r->offsets[rollout] + j->r->prompt_length[rollout] + i], (double)smp[i], (double)ours[i], d,
                j->mismatch_max);
    }
    return CAIRN_OK;
}

/* Ours for the sequences of list (m of them), compared, and stored as old when `keep`. */
static enum cairn_status recompute(struct job *j, const struct cairn_sequence *list, int64_t m, int keep, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t *at = calloc((size_t)m + 1, sizeof *at), total = 0;
    float *ours = NULL;

    for (int64_t i = 0; at && i < m; i++) {
        at[i] = total;
        total += list[i].length - list[i].prompt;
    }
    ours = calloc((size_t)total + 1, sizeof *ours);
    TRY(cairn_trainer_agree(j->t, "room for log-probabilities", at && ours ? CAIRN_OK : CAIRN_NOMEM(err), err));
    TRY(cairn_trainer_logprobs(j->t, NULL, list, m, at, j->temperature, ours, err));
    for (int64_t i = 0; i < m; i++) {
        int64_t rollout = list[i].index;

        if (j->r->logprobs)
            TRY(compare(j, rollout, ours + at[i], j->stats, err)); /* all ranks have all of them */
        if (keep)
            memcpy(j->old + j->r->response[rollout], ours + at[i], (size_t)(list[i].length - list[i].prompt) * sizeof *ours);
    }
out:
    free(at);
    free(ours);
    return st;
}

/* A share of the rollouts behind update 0, chosen by Philox: recomputed and compared before any weight changes. */
static enum cairn_status probe(struct job *j, const int64_t *order, int64_t begin, struct cairn_error *err)
{
    const struct cairn_philox_key key = {
        .seed = (uint64_t)cairn_recipe_i64(j->t->recipe, "run.seed"), .purpose = CAIRN_PURPOSE_PROBE, .step = (uint32_t)j->o->step};
    double share = cairn_recipe_f64(j->t->recipe, "mismatch.sample");
    struct cairn_sequence *list = calloc((size_t)j->n + 1, sizeof *list);
    enum cairn_status st = CAIRN_OK;
    int64_t m = 0;

    TRY(cairn_trainer_agree(j->t, "the probe", list ? CAIRN_OK : CAIRN_NOMEM(err), err));
    for (int64_t g = begin; g < j->groups; g++)
        for (int64_t i = j->first[order[g]]; i < j->first[order[g] + 1]; i++) {
            uint32_t w[4];

            cairn_philox(&key, (uint32_t)j->sequence[i].index, 0, 0, w);
            if (j->live[j->sequence[i].index] && (double)cairn_uniform(w[0]) < share)
                list[m++] = j->sequence[i];
        }
    if (m)
        st = recompute(j, list, m, 0, err);
out:
    free(list);
    return st;
}

static enum cairn_status reference(struct job *j, struct cairn_error *err);

/* old is what the sampler wrote. */
static int old_is_sampled(const struct job *j)
{
    return j->o->same_policy && j->o->same_numerics && j->r->logprobs;
}

/* Rollouts whose probability has moved too far as a whole leave the loss. */
static void sequences_drop(struct job *j)
{
    const struct cairn_rollouts *r = j->r;

    for (int64_t q = 0; j->smp && q < j->n; q++) {
        int64_t i = j->sequence[q].index, n = cairn_rollout_length(r, i);
        double d = 0;

        if (!j->live[i])
            continue;
        for (int64_t k = r->response[i]; k < r->response[i + 1]; k++)
            d += (double)j->old[k] - (double)j->smp[k];
        d = n ? exp(d / (double)n) : 1;
        if (d < (double)j->loss.correct_low || d > (double)j->loss.correct_high)
            j->live[i] = 0;
    }
}

/* old, ref, dropped rollouts: everything that is fixed before update 0, from disc where an earlier attempt has computed it.
 * first_groups: groups of update 0. *begin: updates that are done, with their sums in j->stats. */
static enum cairn_status targets_prepare(struct job *j, const int64_t *order, int64_t first_groups, int64_t *begin,
                                         struct cairn_error *err)
{
    const struct cairn_rollouts *r = j->r;
    const int64_t n = r->response[r->n];
    enum cairn_status st = CAIRN_OK;
    double numbers[NUMBERS];
    int found = 1;

    *begin = 0;
    if (!j->sft && !old_is_sampled(j))
        TRY(cairn_known_load(j->ctx, j->t, "old", j->old, n, numbers, NUMBERS, &found, err));
    if (!found)
        TRY(cairn_points_forget(j->points, err)); /* the weights that old stood under are gone with the first update */
    else if (!j->sft && !old_is_sampled(j))
        numbers_in(j->stats, numbers);
    TRY(cairn_points_resume(j->points, begin, numbers, err));
    if (*begin)
        numbers_in(j->stats, numbers);
    j->stats->resumed = *begin;
    if (j->sft)
        goto out;
    if (old_is_sampled(j)) {
        memcpy(j->old, r->logprobs, (size_t)n * sizeof *j->old);
        if (!*begin)
            TRY(probe(j, order, first_groups, err));
    } else if (!found) {
        TRY(recompute(j, j->sequence, j->n, 1, err));
        numbers_out(j->stats, numbers);
        TRY(cairn_known_save(j->ctx, j->t, "old", j->old, n, numbers, NUMBERS, err));
    }
    if (!strcmp(cairn_recipe_str(j->t->recipe, "train.correction.kind"), "sequence"))
        sequences_drop(j);
    if (j->loss.kl_coef > 0)
        TRY(reference(j, err));
out:
    return st;
}

/* Log-probabilities under the reference policy: LoRA with the adapter off; full weights: RUN/base, loaded for this pass alone. */
static enum cairn_status reference_open(struct job *j, struct cairn_policy *base, int *opened, struct cairn_error *err)
{
    char *dir = cairn_run_path(j->ctx->run, "base");
    enum cairn_status st = CAIRN_OK;

    if (!dir)
        TRY(CAIRN_NOMEM(err));
    if (!j->t->policy.lora) {
        TRY(cairn_policy_open(base, dir, &(struct cairn_policy_opts){.quiet = 1}, j->t->k, err));
        *opened = 1;
    }
out:
    free(dir);
    return st;
}

static enum cairn_status reference(struct job *j, struct cairn_error *err)
{
    const int64_t n = j->r->response[j->r->n];
    enum cairn_status st = CAIRN_OK;
    struct cairn_model of = j->t->model;
    struct cairn_policy base = {0};
    int64_t *at = calloc((size_t)j->n + 1, sizeof *at);
    int opened = 0, found;

    j->ref = calloc((size_t)n + 1, sizeof *j->ref);
    TRY(cairn_trainer_agree(j->t, "room for the reference", at && j->ref ? CAIRN_OK : CAIRN_NOMEM(err), err));
    TRY(cairn_known_load(j->ctx, j->t, "ref", j->ref, n, NULL, 0, &found, err));
    if (found)
        goto out;
    for (int64_t i = 0; i < j->n; i++)
        at[i] = j->r->response[j->sequence[i].index];
    TRY(cairn_trainer_agree(j->t, "the reference", reference_open(j, &base, &opened, err), err));
    if (opened)
        of.weights = &base.weights;
    of.adapter = NULL;
    of.adapter_weights = NULL;
    TRY(cairn_trainer_logprobs(j->t, &of, j->sequence, j->n, at, j->temperature, j->ref, err));
    TRY(cairn_known_save(j->ctx, j->t, "ref", j->ref, n, NULL, 0, err));
out:
    if (opened)
        cairn_policy_close(&base);
    free(at);
    return st;
}

/* ---- one update ---------------------------------------------------------------------------------------------------------------
 */

/* Sets the weight of every live rollout's tokens for the groups order[begin, end); returns the loss tokens. */
static int64_t weights_set(struct job *j, const int64_t *order, int64_t begin, int64_t end)
{
    const char *reduction = cairn_recipe_str(j->t->recipe, "train.reduction");
    double cap = (double)cairn_recipe_i64(j->t->recipe, "rollout.max_new_tokens");
    int64_t tokens = 0, rollouts = 0, live_rollouts = 0, live_groups = 0;

    for (int64_t g = begin; g < end; g++) {
        int64_t mine = 0;

        for (int64_t q = j->first[order[g]]; q < j->first[order[g] + 1]; q++) {
            int64_t i = j->sequence[q].index;

            rollouts++;
            live_rollouts += j->live[i];
            mine += j->live[i] ? cairn_rollout_length(j->r, i) : 0;
        }
        tokens += mine;
        live_groups += mine > 0;
    }
    for (int64_t g = begin; g < end; g++) {
        int64_t mine = 0;

        for (int64_t q = j->first[order[g]]; q < j->first[order[g] + 1]; q++)
            mine += j->live[j->sequence[q].index] ? cairn_rollout_length(j->r, j->sequence[q].index) : 0;
        for (int64_t q = j->first[order[g]]; q < j->first[order[g] + 1]; q++) {
            int64_t i = j->sequence[q].index;
            double w = 1.0 / (double)(tokens ? tokens : 1);

            if (!strcmp(reduction, "sequence_mean"))
                w = 1.0 / ((double)live_rollouts * (double)cairn_rollout_length(j->r, i));
            else if (!strcmp(reduction, "prompt_mean"))
                w = 1.0 / ((double)live_groups * (double)mine);
            else if (!strcmp(reduction, "sum_over_max"))
                w = 1.0 / ((double)rollouts * cap);
            j->weight[i] = j->live[i] ? (float)w : 0.0f;
        }
    }
    return tokens;
}

/* Fills j->row with one value a row: of each response token from `by_token` (response offsets), or per rollout. Other rows 0. */
static void rows_fill(struct job *j, const float *by_token, const float *by_rollout)
{
    const struct cairn_micro *m = &j->t->micro;

    memset(j->row, 0, (size_t)m->rows * sizeof *j->row);
    for (int q = 0; q < m->nseq; q++) {
        int64_t i = m->member[q]->index, n = m->member[q]->length - m->member[q]->prompt;

        for (int64_t k = 0; k < n; k++)
            j->row[m->row_of[q] + k] = by_token ? by_token[j->r->response[i] + k] : by_rollout[i];
    }
}

static enum cairn_status rows_send(struct job *j, const struct cairn_tensor *dst, const float *by_token, const float *by_rollout,
                                   struct cairn_error *err)
{
    rows_fill(j, by_token, by_rollout);
    return cairn_trainer_rows_set(j->t, dst, j->row, err);
}

static enum cairn_status mask_send(struct job *j, struct cairn_error *err)
{
    const struct cairn_micro *m = &j->t->micro;

    memset(j->mask, 0, (size_t)m->rows);
    for (int q = 0; q < m->nseq; q++)
        if (j->live[m->member[q]->index])
            memset(j->mask + m->row_of[q], 1, (size_t)(m->member[q]->length - m->member[q]->prompt));
    return cairn_trainer_rows_set(j->t, &j->t->mask, j->mask, err);
}

/* The first update compares its own forward with what the sampler wrote: no weight has changed yet. */
static enum cairn_status micro_compare(struct job *j, const struct cairn_scores *scores, struct cairn_error *err)
{
    const struct cairn_micro *m = &j->t->micro;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_tensor_get(&j->t->k->stream, &scores->logprob, j->row, (size_t)m->rows * sizeof *j->row, err));
    for (int q = 0; q < m->nseq; q++)
        TRY(compare(j, m->member[q]->index, j->row + m->row_of[q], &j->part, err));
out:
    return st;
}

/* loss = -sum w logprob, so its derivative is -w: no ratio, no clipping. j->row holds the weights w. */
static enum cairn_status sft_loss(struct job *j, const struct cairn_scores *scores, struct cairn_error *err)
{
    const struct cairn_micro *m = &j->t->micro;
    enum cairn_status st = CAIRN_OK;

    for (int64_t i = 0; i < m->rows; i++)
        j->row[i] = -j->row[i];
    TRY(cairn_trainer_rows_set(j->t, &j->t->dcur, j->row, err));
    TRY(cairn_tensor_get(&j->t->k->stream, &scores->logprob, j->row, (size_t)m->rows * sizeof *j->row, err));
    for (int q = 0; q < m->nseq; q++)
        for (int64_t i = 0; i < m->member[q]->length - m->member[q]->prompt; i++)
            j->part.sft_loss -= (double)j->weight[m->member[q]->index] * (double)j->row[m->row_of[q] + i];
out:
    return st;
}

static enum cairn_status micro_run(struct job *j, int check, struct cairn_error *err)
{
    struct cairn_trainer *t = j->t;
    struct cairn_policy_loss a = j->loss;
    enum cairn_status st = CAIRN_OK;
    struct cairn_scores scores;

    TRY(cairn_trainer_forward(t, j->temperature, &scores, err));
    if (check)
        TRY(micro_compare(j, &scores, err));
    TRY(rows_send(j, &t->weight, NULL, j->weight, err));
    if (j->sft) {
        TRY(sft_loss(j, &scores, err));
        TRY(cairn_trainer_backward(t, 0, err));
        goto out;
    }
    TRY(mask_send(j, err));
    TRY(rows_send(j, &t->old, j->old, NULL, err));
    TRY(rows_send(j, &t->adv, NULL, j->s->advantage, err));
    if (j->smp)
        TRY(rows_send(j, &t->smp, j->smp, NULL, err));
    if (j->ref)
        TRY(rows_send(j, &t->ref, j->ref, NULL, err));
    TRY(cairn_trainer_rows_set(t, &t->seq, t->micro.seq, err));
    a.cur = scores.logprob;
    a.entropy = scores.entropy;
    a.old = cairn_trainer_rows(t, &t->old);
    if (j->smp)
        a.smp = cairn_trainer_rows(t, &t->smp);
    if (j->ref)
        a.ref = cairn_trainer_rows(t, &t->ref);
    a.adv = cairn_trainer_rows(t, &t->adv);
    a.weight = cairn_trainer_rows(t, &t->weight);
    a.mask = cairn_trainer_rows(t, &t->mask);
    a.seq = cairn_trainer_rows(t, &t->seq);
    a.dcur = cairn_trainer_rows(t, &t->dcur);
    if (a.entropy_coef != 0)
        a.dentropy = cairn_trainer_rows(t, &t->dentropy);
    a.stats = t->stats;
    TRY(t->k->ops.policy_loss(&t->k->stream, &a, err));
    TRY(cairn_trainer_backward(t, a.entropy_coef != 0, err));
out:
    return st;
}

/* Gradients of this rank's micro-batches of the update. */
static enum cairn_status micros_run(struct job *j, const struct cairn_sequence *batch, int64_t n, int check,
                                    struct cairn_error *err)
{
    int64_t next = 0, number = 0;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_stage_stopping(err));
    TRY(part_begin(j, err));
    TRY(cairn_trainer_zero(j->t, err));
    while (cairn_trainer_fill(j->t, batch, n, &next, &number)) {
        TRY(cairn_stage_stopping(err));
        TRY(micro_run(j, check, err));
    }
out:
    return st;
}

static enum cairn_status update_run(struct job *j, const int64_t *order, int64_t u, int64_t begin, int64_t end,
                                    struct cairn_error *err)
{
    struct cairn_sequence *batch = calloc((size_t)j->n + 1, sizeof *batch);
    enum cairn_status st = CAIRN_OK;
    int check = !j->stats->updates && old_is_sampled(j) && !j->sft;
    int64_t n = 0, tokens = weights_set(j, order, begin, end);
    double norm;

    for (int64_t g = begin; batch && g < end; g++)
        for (int64_t q = j->first[order[g]]; q < j->first[order[g] + 1]; q++)
            if (j->live[j->sequence[q].index]) /* the others have no part in the gradient, however they are packed */
                batch[n++] = j->sequence[q];
    if (!tokens) {
        cairn_warn("step %lld, update %lld: no loss token in its %lld groups; loss 0, no change", (long long)j->o->step,
                   (long long)u, (long long)(end - begin));
        goto out;
    }
    TRY(part_end(j, batch ? micros_run(j, batch, n, check, err) : CAIRN_NOMEM(err), err));
    j->stats->loss_tokens += tokens;
    st = cairn_trainer_update(j->t, &j->adamw, &norm, &j->stats->lr, err);
    if (st == CAIRN_ENUMERIC && cairn_recipe_bool(j->t->recipe, "train.skip_nonfinite")) {
        cairn_warn("step %lld, update %lld left out: %s", (long long)j->o->step, (long long)u, err->text);
        j->stats->skipped++;
        st = CAIRN_OK;
        goto out;
    }
    TRY(st);
    j->stats->updates++;
    j->stats->grad_norm += norm;
    if (norm > j->stats->grad_norm_max)
        j->stats->grad_norm_max = norm;
out:
    free(batch);
    return st;
}

/* Updates `u` on; at a stop the last whole one is committed. */
static enum cairn_status updates_run(struct job *j, const int64_t *order, int64_t u, int64_t updates, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    double numbers[NUMBERS];

    numbers_out(j->stats, numbers);
    cairn_stage_progress_from(j->ctx, "updates", u, updates);
    for (; u < updates && st == CAIRN_OK; u++) {
        st = update_run(j, order, u, cairn_pack_cut(j->groups, updates, u), cairn_pack_cut(j->groups, updates, u + 1), err);
        if (st != CAIRN_OK) {
            if (st == CAIRN_EAGAIN)
                cairn_points_stop(j->points, u, numbers); /* as they were before the update that was begun */
            break;
        }
        numbers_out(j->stats, numbers);
        cairn_stage_progress(j->ctx, "updates", u + 1, updates);
        st = cairn_points_reached(j->points, u + 1, updates, numbers, err);
    }
    return st;
}

/* train.truncation: correct - the sampler drew from fewer ids, so its probability of a token is the one over those. */
static enum cairn_status sampler_choose(struct job *j, struct cairn_error *err)
{
    const struct cairn_recipe *r = j->t->recipe;
    int truncates = cairn_recipe_f64(r, "rollout.top_p") < 1 || cairn_recipe_i64(r, "rollout.top_k") > 0 || cairn_recipe_f64(r, "rollout.min_p") > 0,
        correct = cairn_recipe_has(r, "train.truncation") && !strcmp(cairn_recipe_str(r, "train.truncation"), "correct");

    j->smp = correct && j->r->logprobs_sampled ? j->r->logprobs_sampled : j->r->logprobs;
    if (!j->sft && correct && truncates && !j->r->logprobs_sampled)
        return cairn_fail(err, CAIRN_EDATA,
                          "step %lld: train.truncation: correct needs the log-probabilities over what was drawn from, and these rollouts have none",
                          (long long)j->o->step);
    return CAIRN_OK;
}

static enum cairn_status job_open(struct job *j, int64_t **order, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(job_prepare(j, err));
    if (!j->groups)
        TRY(cairn_fail(err, CAIRN_EDATA, "step %lld: no rollout to train on", (long long)j->o->step));
    TRY(sampler_choose(j, err));
    *order = calloc((size_t)j->groups, sizeof **order);
    j->gathered = calloc((size_t)j->t->ranks * NUMBERS, sizeof *j->gathered);
    if (!*order || !j->gathered)
        TRY(CAIRN_NOMEM(err));
    cairn_pack_shuffle((uint64_t)cairn_recipe_i64(j->t->recipe, "run.seed"), j->o->step, j->groups, *order);
out:
    return st;
}

enum cairn_status cairn_grpo_run(struct cairn_stage_ctx *ctx, struct cairn_trainer *t, const struct cairn_rollouts *r,
                                 const struct cairn_scores_table *s, const struct cairn_grpo_opts *o,
                                 struct cairn_grpo_stats *stats, struct cairn_error *err)
{
    struct job j = {.ctx = ctx, .t = t, .r = r, .s = s, .o = o, .stats = stats};
    int64_t *order = NULL, updates, begin;
    enum cairn_status st = CAIRN_OK;

    memset(stats, 0, sizeof *stats);
    losses_begin(stats->loss);
    recipe_read(&j);
    TRY(cairn_trainer_agree(t, "the rollouts", job_open(&j, &order, err), err));
    updates = cairn_recipe_i64(t->recipe, "train.updates_per_step");
    if (updates > j.groups)
        updates = j.groups;
    TRY(cairn_points_open(&j.points, ctx, t, NUMBERS, err));
    TRY(targets_prepare(&j, order, cairn_pack_cut(j.groups, updates, 1), &begin, err));
    TRY(updates_run(&j, order, begin, updates, err));
out:
    stats->stall_s = cairn_points_times(j.points).stall_s;
    cairn_points_close(j.points);
    free(order);
    free(j.first);
    free(j.sequence);
    free(j.gathered);
    free(j.old);
    free(j.ref);
    free(j.live);
    free(j.weight);
    free(j.row);
    free(j.mask);
    return st;
}

/* grpo_targets.c - what is fixed before the first update of a step: old and reference log-probabilities, and which rollouts are in
 * the loss at all. What the trainer computes is held against what the sampler wrote.
 */
#include "stages/train/grpo_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/philox.h"
#include "stages/train/known.h"

enum cairn_status cairn_grpo_compare(struct cairn_grpo_job *j, int64_t rollout, const float *ours, struct cairn_grpo_stats *stats,
                                     struct cairn_error *err)
{
    const float *smp = j->r->logprobs + j->r->response[rollout];
    int stale = cairn_grpo_is_stale(j, rollout);
    struct cairn_grpo_mismatch *m = stale ? &stats->carried : &stats->mismatch;
    double max = stale ? INFINITY : j->mismatch_max;
    int64_t n = j->live[rollout] ? cairn_rollout_length(j->r, rollout) : 0;

    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)ours[i] - (double)smp[i]), x = (double)ours[i] - (double)smp[i];

        m->compared++;
        m->equal += !memcmp(&ours[i], &smp[i], sizeof(float));
        m->sum += d;
        m->k3 += exp(x) - 1 - x;
        if (d > m->max)
            m->max = d;
        if (!(d <= max) || !isfinite(d))
            return cairn_fail(
                err, CAIRN_ENUMERIC,
                "sampler and trainer disagree: rollout %lld (group %d, sample %d), response token %lld (id %d): sampler %.9g, "
                "trainer %.9g, difference %.3g above mismatch.max %.3g",
                (long long)rollout, j->r->group[rollout], j->r->sample[rollout], (long long)i,
                j->r->tokens[j->r->offsets[rollout] + j->r->prompt_length[rollout] + i], (double)smp[i], (double)ours[i], d, max);
    }
    return CAIRN_OK;
}

/* Ours for the sequences of list (m of them), compared, and stored as old when `keep`. */
static enum cairn_status recompute(struct cairn_grpo_job *j, const struct cairn_sequence *list, int64_t m, int keep,
                                   struct cairn_error *err)
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
            TRY(cairn_grpo_compare(j, rollout, ours + at[i], j->stats, err)); /* all ranks have all of them */
        if (keep)
            memcpy(j->old + j->r->response[rollout], ours + at[i], (size_t)(list[i].length - list[i].prompt) * sizeof *ours);
    }
out:
    free(at);
    free(ours);
    return st;
}

/* A share of the rollouts behind update 0, chosen by Philox: recomputed and compared before any weight changes. */
static enum cairn_status probe(struct cairn_grpo_job *j, const int64_t *order, int64_t begin, struct cairn_error *err)
{
    const struct cairn_philox_key key = {
        .seed = (uint64_t)cairn_recipe_i64(j->t->recipe, "run.seed"), .purpose = CAIRN_PURPOSE_PROBE, .step = (uint32_t)j->o->step};
    double share = cairn_recipe_f64(j->t->recipe, "mismatch.sample");
    struct cairn_sequence *list = calloc((size_t)j->n + 1, sizeof *list);
    double t0 = cairn_now_s();
    enum cairn_status st = CAIRN_OK;
    int64_t m = 0;

    TRY(cairn_trainer_agree(j->t, "the probe", list ? CAIRN_OK : CAIRN_NOMEM(err), err));
    for (int64_t g = begin; g < j->groups; g++)
        for (int64_t i = j->first[order[g]]; i < j->first[order[g] + 1]; i++) {
            uint32_t w[4];

            cairn_philox(&key, (uint32_t)j->sequence[i].index, 0, 0, w);
            if (j->live[j->sequence[i].index] && !cairn_grpo_is_stale(j, j->sequence[i].index) &&
                (double)cairn_uniform(w[0]) < share)
                list[m++] = j->sequence[i];
        }
    if (m)
        st = recompute(j, list, m, 0, err);
    j->stats->compare_s += cairn_now_s() - t0;
out:
    free(list);
    return st;
}

/* Log-probabilities under the reference policy: LoRA with the adapter off; full weights: RUN/base, loaded for this pass alone. */
static enum cairn_status reference_open(struct cairn_grpo_job *j, struct cairn_policy *base, int *opened, struct cairn_error *err)
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

static enum cairn_status reference(struct cairn_grpo_job *j, struct cairn_error *err)
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

int cairn_grpo_old_is_sampled(const struct cairn_grpo_job *j)
{
    return j->o->same_policy && j->o->same_numerics && j->r->logprobs;
}

/* old has to be computed, for all or for the stale ones. */
static int old_is_computed(const struct cairn_grpo_job *j)
{
    return !j->sft && (!cairn_grpo_old_is_sampled(j) || j->stale);
}

/* The sampler's where those are old; the others are computed, all rollouts or the stale ones, and kept on disc. */
static enum cairn_status old_prepare(struct cairn_grpo_job *j, int found, double *numbers, struct cairn_error *err)
{
    const struct cairn_rollouts *r = j->r;
    struct cairn_sequence *list = calloc((size_t)j->n + 1, sizeof *list);
    enum cairn_status st = CAIRN_OK;
    int64_t m = 0;

    TRY(cairn_trainer_agree(j->t, "rollouts to compute again", list ? CAIRN_OK : CAIRN_NOMEM(err), err));
    for (int64_t q = 0; q < j->n; q++) {
        int64_t i = j->sequence[q].index, at = r->response[i];

        if (!cairn_grpo_old_is_sampled(j) || cairn_grpo_is_stale(j, i))
            list[m++] = j->sequence[q];
        else
            memcpy(j->old + at, r->logprobs + at, (size_t)cairn_rollout_length(r, i) * sizeof *j->old);
    }
    if (old_is_computed(j) && !found) {
        TRY(recompute(j, list, m, 1, err));
        cairn_grpo_numbers_out(j->stats, numbers);
        TRY(cairn_known_save(j->ctx, j->t, "old", j->old, r->response[r->n], numbers, CAIRN_GRPO_NUMBERS, err));
    }
out:
    free(list);
    return st;
}

/* Rollouts whose probability has moved too far as a whole leave the loss. */
static void sequences_drop(struct cairn_grpo_job *j)
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

enum cairn_status cairn_grpo_targets(struct cairn_grpo_job *j, const int64_t *order, int64_t first_groups, int64_t *begin,
                                     struct cairn_error *err)
{
    const int64_t n = j->r->response[j->r->n];
    enum cairn_status st = CAIRN_OK;
    double numbers[CAIRN_GRPO_NUMBERS];
    int found = 1;

    *begin = 0;
    if (old_is_computed(j))
        TRY(cairn_known_load(j->ctx, j->t, "old", j->old, n, numbers, CAIRN_GRPO_NUMBERS, &found, err));
    if (!found)
        TRY(cairn_points_forget(j->points, err)); /* the weights that old stood under are gone with the first update */
    else if (old_is_computed(j))
        cairn_grpo_numbers_in(j->stats, numbers);
    TRY(cairn_points_resume(j->points, begin, numbers, err));
    if (*begin)
        cairn_grpo_numbers_in(j->stats, numbers);
    j->stats->resumed = *begin;
    if (j->sft)
        goto out;
    TRY(old_prepare(j, found, numbers, err));
    if (cairn_grpo_old_is_sampled(j) && !*begin)
        TRY(probe(j, order, first_groups, err));
    if (!strcmp(cairn_recipe_str(j->t->recipe, "train.correction.kind"), "sequence"))
        sequences_drop(j);
    if (j->loss.kl_coef > 0)
        TRY(reference(j, err));
out:
    return st;
}

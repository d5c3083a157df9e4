/* grpo.h - one step of policy optimisation on scored rollouts (GRPO arXiv:2402.03300, DAPO arXiv:2503.14476), or sft on them.
 *
 * old: where the rollouts come from the policy being trained, with equal numerics, the sampler's log-probabilities; then the first
 * update compares its own forward with them for free, and mismatch.sample of the other rollouts is recomputed before it. Otherwise
 * old is computed under the weights at the start of the step: for all rollouts, or for those that were carried from the step
 * before. What is masked or unused is looked at nowhere. All means are over the update's global batch; gradients are summed with
 * weights that hold the reduction. Ranks share the micro-batches of an update (trainer.h) and know the whole batch; what they count
 * is added up after each update, in rank order. Stopped or killed, a step is taken up behind the last whole update that was
 * committed (point.h), statistics included.
 */
#ifndef CAIRN_STAGES_TRAIN_GRPO_H
#define CAIRN_STAGES_TRAIN_GRPO_H

#include "stages/common/rollouts.h"
#include "stages/common/scores.h"
#include "stages/common/stage.h"
#include "stages/train/trainer.h"

/* |old - sampler's| over tokens. */
struct cairn_grpo_mismatch {
    int64_t compared, equal; /* tokens; of them with equal bits */
    double sum, max, k3;
};

struct cairn_grpo_stats {
    double loss[CAIRN_LS_COUNT]; /* sums over all updates (kernels.h) */
    double sft_loss;             /* train.loss: sft: sum of the updates' losses */
    double grad_norm;            /* sum of the updates' norms before clipping */
    double lr;                   /* of the last update */
    double grad_norm_max;        /* the largest norm of all */
    int64_t updates, skipped;    /* done; left out because of a gradient that is not finite */
    int64_t loss_tokens, rollouts, groups;
    struct cairn_grpo_mismatch mismatch, carried; /* carried: of rollouts that the policy of the step before has sampled */
    int64_t stale;                                /* of the rollouts are such */
    int64_t resumed;                              /* updates that an earlier attempt did */
    double stall_s;                               /* time that saving updates has cost */
    double compare_s;                             /* time that holding them against the sampler has cost here, beside the forward of update 0 */
};

struct cairn_grpo_opts {
    int same_policy; /* 1: the rollouts were sampled from the policy being trained: their log-probabilities must agree with ours */
    int same_numerics; /* 1: and by the numerics that we have: they must be equal, and old := smp */
    int64_t step;
};

/* Trains on the used rollouts. t must have been reserved. Collective over t's ranks; what it returns is agreed. CAIRN_ENUMERIC:
 * sampler and trainer disagree beyond mismatch.max, or a gradient is not finite; nothing of the step is kept. */
enum cairn_status cairn_grpo_run(struct cairn_stage_ctx *ctx, struct cairn_trainer *t, const struct cairn_rollouts *r,
                                 const struct cairn_scores_table *s, const struct cairn_grpo_opts *o,
                                 struct cairn_grpo_stats *stats, struct cairn_error *err);

#endif

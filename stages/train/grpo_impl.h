/* grpo_impl.h - one step in the making: what the files of grpo.h share. grpo_targets.c has what is fixed before update 0,
 * grpo_update.c one update, grpo_stats.c what is counted. Nobody else includes it.
 */
#ifndef CAIRN_STAGES_TRAIN_GRPO_IMPL_H
#define CAIRN_STAGES_TRAIN_GRPO_IMPL_H

#include "stages/train/grpo.h"
#include "stages/train/point.h"

struct cairn_grpo_job {
    struct cairn_stage_ctx *ctx;
    struct cairn_trainer *t;
    const struct cairn_rollouts *r;
    const struct cairn_scores_table *s;
    const struct cairn_grpo_opts *o;
    struct cairn_grpo_stats *stats;
    struct cairn_grpo_stats part; /* this rank's, of the update at hand */
    double *gathered;             /* (ranks * CAIRN_GRPO_NUMBERS) scratch */
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
    int64_t stale;    /* of them sampled by the policy of the step before (rollout.carry) */
    float *old, *ref; /* (responses) by rollout offsets, ref or NULL */
    const float
        *smp; /* (responses) what corrections hold old against: the sampler's, over all ids or over what was drawn from; or NULL */
    uint8_t *live; /* (rollouts) 1: its tokens are in the loss */
    float *weight; /* (rollouts) of each of its tokens */
    float *row;    /* scratch (micro.capacity) */
    uint8_t *mask; /* scratch (micro.capacity) */
};

/* old is what the sampler wrote, but for stale rollouts. */
int cairn_grpo_old_is_sampled(const struct cairn_grpo_job *j);

/* It was carried from the step before: its log-probabilities differ rightly, are counted apart and within no bound. */
static inline int cairn_grpo_is_stale(const struct cairn_grpo_job *j, int64_t rollout)
{
    return cairn_rollout_is_carried(j->r, rollout);
}

/* --- grpo_targets.c ---------------------------------------------------------------------------------------------------------- */

/* old, ref, dropped rollouts: everything that is fixed before update 0, from disc where an earlier attempt has computed it.
 * order: (groups); first_groups: groups of update 0. *begin: updates that are done, with their sums in j->stats. */
enum cairn_status cairn_grpo_targets(struct cairn_grpo_job *j, const int64_t *order, int64_t first_groups, int64_t *begin,
                                     struct cairn_error *err);
/* Compares log-probabilities of one rollout's response tokens, ours against the sampler's. A rollout that is not in the loss may
 * hold anything. CAIRN_ENUMERIC beyond mismatch.max. */
enum cairn_status cairn_grpo_compare(struct cairn_grpo_job *j, int64_t rollout, const float *ours, struct cairn_grpo_stats *stats,
                                     struct cairn_error *err);

/* --- grpo_update.c ------------------------------------------------------------------------------------------------------------ */

/* Update u, over the groups order[begin, end). */
enum cairn_status cairn_grpo_update(struct cairn_grpo_job *j, const int64_t *order, int64_t u, int64_t begin, int64_t end,
                                    struct cairn_error *err);

/* --- grpo_stats.c ------------------------------------------------------------------------------------------------------------- */

/* All of them that outlive an update, as doubles (counts stay exact below 2^53), for the ranks and for the disc. */
#define CAIRN_GRPO_NUMBERS (CAIRN_LS_COUNT + 17)
void cairn_grpo_numbers_out(const struct cairn_grpo_stats *s, double *h);
void cairn_grpo_numbers_in(struct cairn_grpo_stats *s, const double *h);
/* h: (CAIRN_LS_COUNT) of nothing. */
void cairn_grpo_losses_begin(double *h);
/* Before an update: nothing counted. */
enum cairn_status cairn_grpo_part_begin(struct cairn_grpo_job *j, struct cairn_error *err);
/* What the ranks have counted in this update, added to the step's in rank order. st: how it went here. Collective. */
enum cairn_status cairn_grpo_part_end(struct cairn_grpo_job *j, enum cairn_status st, struct cairn_error *err);

#endif

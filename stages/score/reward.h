/* reward.h - from a verdict to a reward: raw reward, soft over-length penalty, the filter of groups.
 *
 * Pure functions of numbers. Source: DAPO (arXiv:2503.14476), section 3.4, eq. (13) for the penalty; section 3.2 for the
 * filter. Unlike public implementations the penalty stays at -factor above the cap: a fall without a floor or a jump
 * to 0 would make an over-long answer worth more or less than one at the cap.
 */
#ifndef CAIRN_STAGES_SCORE_REWARD_H
#define CAIRN_STAGES_SCORE_REWARD_H

#include <stdint.h>

#include "base/status.h"

struct cairn_reward_opts {
    double right, wrong; /* what a verdict is worth (score.reward.right, .wrong) */
    int truncated_zero;  /* 1: a truncated response (finish = length) has raw reward 0, right or wrong */
    int64_t cap;         /* M, tokens: rollout.max_new_tokens */
    int64_t buffer;      /* b, tokens in front of the cap over which the penalty grows; 0: none */
    double factor;       /* f >= 0, the penalty at the cap; 0: no penalty */
};

/* CAIRN_ERECIPE: buffer outside of [0, cap], a negative or non-finite number. */
enum cairn_status cairn_reward_check(const struct cairn_reward_opts *opts, struct cairn_error *err);

/* value: of the verdict, 0 wrong ... 1 right, in between on a straight line; truncated: finish = length. */
double cairn_reward_raw(const struct cairn_reward_opts *opts, double value, int truncated);

/* p(L) <= 0 for a response of L = length tokens: 0 up to M - b, then linear to -f at M, -f above. */
double cairn_reward_penalty(const struct cairn_reward_opts *opts, int64_t length);

#define CAIRN_REWARD_TOLERANCE 1e-6 /* of graders whose verdicts are numbers of their own */

/* Dynamic sampling keeps a group of n raw rewards if they are not all equal: 1. tolerance 0 for verdicts (exact). Raw
 * rewards, never shaped ones: a penalty must not make an all-wrong group look mixed. An empty group is not mixed. */
int cairn_group_mixed(const double *raw, int64_t n, double tolerance); /* raw (n) */

#endif

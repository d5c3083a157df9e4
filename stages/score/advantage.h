/* advantage.h - group-relative advantages: grpo, grpo without normalisation, rloo.
 *
 * Pure functions of arrays. Groups are told apart by id, not by position; each group is measured by its own members,
 * in the order in which they stand (sums in that order, in double, variance in two passes), so the result depends on
 * neither ranks nor the presence of other groups.
 *
 *     grpo                 A_i = (R_i - mean) / (std + 1e-6), std with n-1   arXiv:2402.03300, eq. (4)
 *     grpo unnormalised    A_i = R_i - mean                                  arXiv:2503.20783 ("Dr. GRPO")
 *     rloo                 A_i = R_i - mean of the others                    arXiv:2402.14740
 *
 * A group of one has A = 0; a group of equal rewards (compared, not subtracted) has A = 0 exactly.
 */
#ifndef CAIRN_STAGES_SCORE_ADVANTAGE_H
#define CAIRN_STAGES_SCORE_ADVANTAGE_H

#include <stdint.h>

#include "base/status.h"

enum cairn_advantage { CAIRN_ADVANTAGE_GRPO = 0, CAIRN_ADVANTAGE_GRPO_UNNORMALISED, CAIRN_ADVANTAGE_RLOO };

#define CAIRN_ADVANTAGE_EPS 1e-6

/* group (n) ids in any order; reward (n) shaped rewards; advantage (n) out, may be reward itself.
 * clamp > 0: results limited to [-clamp, clamp]; 0: not.
 * CAIRN_ENUMERIC: a reward that is not finite, named by its index. */
enum cairn_status cairn_advantages(enum cairn_advantage kind, const int64_t *group, const double *reward, int64_t n, double clamp,
                                   double *advantage, struct cairn_error *err);

#endif

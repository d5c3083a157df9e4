/* pass_rate.h - how well a set of problems is solved with k tries each: mean@k, and pass@j without bias.
 *
 * Of a problem with n responses, c of them right, the chance that j of them, drawn without replacement, hold a right one is
 *     pass@j = 1 - C(n - c, j) / C(n, j)          j <= n; arXiv:2107.03374, eq. (1)
 * whose mean over problems estimates, without bias, what j tries would have given. (1 - (1 - c/n)^j would be too small.) pass@n is the share
 * of problems with a right response. Problems with fewer than j responses have no part in pass@j.
 * Pure functions of counts. Kept: j = 1, 2, 4, ... up to the most responses of a problem.
 */
#ifndef CAIRN_STAGES_SCORE_PASS_RATE_H
#define CAIRN_STAGES_SCORE_PASS_RATE_H

#include <stdint.h>

#include "base/json.h"

#define CAIRN_PASS_RATE_POWERS 21 /* 2^20 is the most samples a recipe can ask for */

struct cairn_pass_rate {
    int64_t problems, responses, right;
    int64_t solved, all_right;     /* problems with a right response; without a wrong one */
    int64_t most;                  /* responses of one problem */
    double mean;                   /* sum over problems of c / n */
    double at[CAIRN_PASS_RATE_POWERS];  /* sums of pass@2^i */
    int64_t of[CAIRN_PASS_RATE_POWERS]; /* problems in them */
};

double cairn_pass_rate_at(int64_t n, int64_t c, int64_t j); /* 0 <= c <= n, 1 <= j <= n */
/* Takes in a problem with n >= 1 responses, c of them right. */
void cairn_pass_rate_add(struct cairn_pass_rate *p, int64_t n, int64_t c);
/* Takes in all problems of another set. */
void cairn_pass_rate_join(struct cairn_pass_rate *p, const struct cairn_pass_rate *more);

/* Sets "mean_at_k", "pass_at_k" (with all tries of each problem) and, with several tries, "pass_at/1", "pass_at/2", ... in o. 0: no memory. */
int cairn_pass_rate_metrics(const struct cairn_pass_rate *p, json_t *o);

#endif

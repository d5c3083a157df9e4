/* plain.h - the model once more, in double precision, from its published weights and its configuration alone.
 *
 * Naive loops over one sequence; attention expanded (keys and values of every head, no absorption), linear attention as a recurrence, adapters
 * merged into their matrices, nothing shared with runtime/model or kernels but the reading of weights. It is slow and reads like the formulas
 * (specs of the two architectures; GLM-5 of arXiv:2602.15763, DeepSeek-V3.2; arXiv:2510.26692, arXiv:2512.24880). The gate holds each block of the
 * run's own forward against it, fed with what that block was really given, so that an error neither grows nor hides.
 */
#ifndef CAIRN_TOOLS_CHECK_PLAIN_H
#define CAIRN_TOOLS_CHECK_PLAIN_H

#include "model/policy.h"

struct cairn_plain;

/* Borrows the policy, whose weights are fetched as they are needed. */
enum cairn_status cairn_plain_open(struct cairn_plain **out, const struct cairn_policy *p, struct cairn_compute *k, struct cairn_error *err);
void cairn_plain_close(struct cairn_plain *p);

/* How a run's own rows hold what lies between two of its ops; EXACT, which it begins with: doubles. How far a run may be off is measured by the same
 * some times more with such roundings in between, each up or down by chance (`draw`, from 0): by habit it cannot be told, since norms and
 * differences make much of little. */
enum cairn_plain_rounding { CAIRN_PLAIN_EXACT, CAIRN_PLAIN_F32, CAIRN_PLAIN_BF16 };
void cairn_plain_round(struct cairn_plain *p, enum cairn_plain_rounding to, int draw);

/* What there is to choose from, of n rows, and how it was chosen. EXACT writes score, gap and terms; with roundings noise is raised. */
struct cairn_plain_choice {
    double *score; /* (n, width): of each key or expert */
    double *gap;   /* (n): 0 where what was given is what would have been chosen; else by how much the best that was left out beats the worst that
                    * was taken for it, or the best group of experts the worst (of two scores: half of that); infinite where no exchange makes
                    * the one from the other */
    double
        *terms; /* (n): root of the summed squares of the terms that the scores of those two are sums of; where experts are in groups, of any expert:
                    * whichever it was that moved a group. The larger */
    double *noise; /* (n): the most by which roundings moved a score */
    int64_t width;
};

/* x (n, D) = embedding of ids. */
enum cairn_status cairn_plain_embed(struct cairn_plain *p, const int32_t *id, int64_t n, double *x, struct cairn_error *err);
/* What attention of a layer adds to x (n, D), positions from 0, each row seeing the keys that are 1 in `given` (n, n). Of a layer with an indexer
 * the choice is judged: width n. */
enum cairn_status cairn_plain_attention(struct cairn_plain *p, int layer, const double *x, int64_t n, const uint8_t *given,
                                        const struct cairn_plain_choice *choice, double *out, struct cairn_error *err);
/* What linear attention of a layer makes of x (n, D), positions from 0. */
enum cairn_status cairn_plain_kda(struct cairn_plain *p, int layer, const double *x, int64_t n, double *out, struct cairn_error *err);
/* Of the streams x (n, J*D) before the attention (site 0) or the MLP (1) of a layer: the weights mix (n, J*(J+2)) = into the block | out of it |
 * among the streams, [from][to], and the block's input in (n, D). */
enum cairn_status cairn_plain_hyper(struct cairn_plain *p, int layer, int site, const double *x, int64_t n, double *mix, double *in,
                                    struct cairn_error *err);
/* What the MLP or the experts add; the experts that are 1 in `given` (n, E), and the choice judged: width E. Dense layers leave both alone. */
enum cairn_status cairn_plain_mlp(struct cairn_plain *p, int layer, const double *x, int64_t n, const uint8_t *given,
                                  const struct cairn_plain_choice *choice, double *out, struct cairn_error *err);
/* Log-probability of target[i] (-1: not wanted) behind row i at a temperature, from the last residual stream x. */
enum cairn_status cairn_plain_logprobs(struct cairn_plain *p, const double *x, int64_t n, const int32_t *target, double temperature, double *out,
                                       struct cairn_error *err);

#endif

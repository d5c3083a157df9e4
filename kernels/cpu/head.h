/* head.h - the numbers of one row of logits, for logprob, its backward and sample alike: hence equal bits in all of them.
 *
 * x = logit * inv_temperature. ln sum exp x = m + ln(sum of e^(x - m)), m the largest x. The vocabulary is cut into equal
 * consecutive segments; inside one, element i is added in lane i mod 16; lanes, then segments, are added by fixed binary trees.
 * Neither the rows of a call nor its threads nor the instruction set has a say.
 */
#ifndef CAIRN_KERNELS_CPU_HEAD_H
#define CAIRN_KERNELS_CPU_HEAD_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

struct head_row {
    float most, lse, entropy;
    int32_t argmax; /* ties to the lower id; 0 when every logit is NaN */
};

struct head_row head_row(const float *logits, int64_t V, float inv_temperature, int segments, int want_entropy);

/* log-softmax at id v */
static inline float head_logprob(const float *logits, int64_t v, float inv_temperature, const struct head_row *r)
{
    return logits[v] * inv_temperature - r->lse;
}

#pragma GCC visibility pop
#endif

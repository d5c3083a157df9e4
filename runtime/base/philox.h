/* philox.h - counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11, doi:10.1145/2063384.2063405).
 *
 * A draw is a pure function of a key and a counter, so a restart, another batch, shard or rank count gives the
 * same draw. Streams are told apart by `purpose`, so that no two uses of one seed share numbers.
 */
#ifndef CAIRN_BASE_PHILOX_H
#define CAIRN_BASE_PHILOX_H

#include <stdint.h>

enum cairn_purpose {
    CAIRN_PURPOSE_INIT = 1,    /* weights: step = hash of the tensor's name, a = element / 4 */
    CAIRN_PURPOSE_SAMPLE = 2,  /* token sampling: step, a = prompt, b = sample, c = position */
    CAIRN_PURPOSE_SHUFFLE = 3, /* order of groups in updates: step, a = index */
    CAIRN_PURPOSE_DATA = 4,    /* order of prompts: step = epoch, a = index */
    CAIRN_PURPOSE_PROBE = 5    /* which rollouts are recomputed (mismatch.sample): step, a = rollout */
};

struct cairn_philox_key {
    uint64_t seed;
    uint32_t purpose; /* enum cairn_purpose */
    uint32_t step;
};

/* The bare function: 10 rounds over counter c with key k. */
void cairn_philox4x32(const uint32_t c[4], const uint32_t k[2], uint32_t out[4]);

/* Four words for (key; a, b, c): key words are seed (folded with purpose), counter words step, a, b, c. */
void cairn_philox(const struct cairn_philox_key *key, uint32_t a, uint32_t b, uint32_t c, uint32_t out[4]);

/* Uniform in (0, 1): ((x >> 9) + 0.5) * 2^-23, exact in float. (With 24 bits the half would be rounded away above 2^23,
 * and the largest draw would be 1.) */
static inline float cairn_uniform(uint32_t x)
{
    return ((float)(x >> 9) + 0.5f) * 0x1p-23f;
}

/* Two standard normals from two words (Box-Muller, in double). */
void cairn_normal2(uint32_t x, uint32_t y, double out[2]);

/* Fisher-Yates permutation of 0..n-1 into out; draw i uses counter a = i. */
void cairn_philox_permutation(const struct cairn_philox_key *key, int64_t n, int64_t *out);

#endif

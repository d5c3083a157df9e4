/* philox.c - Philox4x32-10 as published; constants from the paper, known answers in tests/runtime/base. */
#include "base/philox.h"

#include <math.h>

void cairn_philox4x32(const uint32_t c[4], const uint32_t k[2], uint32_t out[4])
{
    uint32_t x0 = c[0], x1 = c[1], x2 = c[2], x3 = c[3], k0 = k[0], k1 = k[1];

    for (int r = 0; r < 10; r++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * x0, p1 = (uint64_t)0xCD9E8D57u * x2;
        uint32_t y0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0, y2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;

        x1 = (uint32_t)p1;
        x3 = (uint32_t)p0;
        x0 = y0;
        x2 = y2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = x0;
    out[1] = x1;
    out[2] = x2;
    out[3] = x3;
}

void cairn_philox(const struct cairn_philox_key *key, uint32_t a, uint32_t b, uint32_t c, uint32_t out[4])
{
    const uint32_t counter[4] = {key->step, a, b, c};
    const uint32_t k[2] = {(uint32_t)key->seed ^ (key->purpose * 0x9E3779B9u), (uint32_t)(key->seed >> 32) ^ key->purpose};

    cairn_philox4x32(counter, k, out);
}

void cairn_normal2(uint32_t x, uint32_t y, double out[2])
{
    double u = ((double)x + 0.5) * 0x1p-32, v = ((double)y + 0.5) * 0x1p-32;
    double r = sqrt(-2.0 * log(u)), a = 6.283185307179586476925 * v;

    out[0] = r * cos(a);
    out[1] = r * sin(a);
}

void cairn_philox_permutation(const struct cairn_philox_key *key, int64_t n, int64_t *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        uint32_t w[4];
        int64_t j, t;

        cairn_philox(key, (uint32_t)i, (uint32_t)((uint64_t)i >> 32), 0, w);
        /* 64 random bits times the range, high half: bias below 2^-32 for any n that fits in memory */
        j = (int64_t)(((unsigned __int128)(((uint64_t)w[1] << 32) | w[0]) * (unsigned __int128)(i + 1)) >> 64);
        t = out[i];
        out[i] = out[j];
        out[j] = t;
    }
}

/* norm.h - what the norms share: weights of either type, and the sum of a row in 16 lanes (element i in lane i mod 16) added by a fixed
 * tree. */
#ifndef CAIRN_KERNELS_CPU_NORM_H
#define CAIRN_KERNELS_CPU_NORM_H

#include "internal.h"
#include "vec.h"

/* sum of a[i] * b[i] */
VINLINE float norm_dot(const float *a, const float *b, int64_t n)
{
    v16 sum = v16_set(0.0f);
    int64_t i = 0;

    for (; i + VL <= n; i += VL)
        sum = v16_fma(v16_load(a + i), v16_load(b + i), sum);
    if (i < n)
        sum = v16_fma(v16_loadn(a + i, n - i, 0.0f), v16_loadn(b + i, n - i, 0.0f), sum);
    return v16_sum(sum);
}

/* Weights as f32: themselves, or converted into `room`. */
VINLINE const float *norm_weights(const struct arg *g, float *room)
{
    if (g->type == CAIRN_F32)
        return g->p;
    for (int64_t i = 0; i < g->d[0]; i++)
        room[i] = bf16_to_f32(((const uint16_t *)g->p)[i]);
    return room;
}

#endif

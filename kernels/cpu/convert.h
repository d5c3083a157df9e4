/* convert.h - f32 to and from bf16 and f16, round to nearest even; NaN stays NaN, overflow becomes infinity. Integer arithmetic
 * only, so that no instruction set and no denormal mode has a say.
 */
#ifndef CAIRN_KERNELS_CPU_CONVERT_H
#define CAIRN_KERNELS_CPU_CONVERT_H

#include <stdint.h>
#include <string.h>

#include "base/buffer.h"

static inline uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float float_of(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

static inline uint16_t f32_to_bf16(float x)
{
    uint32_t u = bits_of(x), r = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;

    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : r);
}

static inline uint16_t f32_to_f16(float x)
{
    uint32_t u = bits_of(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu, m, shift, half;

    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
    if (a >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (a >= 0x38800000u) /* normal: rebias by 112, keep 10 bits */
        return (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1)) >> 13));
    if (a < 0x33000000u) /* below half of the smallest */
        return (uint16_t)sign;
    m = (a & 0x7fffffu) | 0x800000u;
    shift = 126 - (a >> 23); /* 14 .. 24 */
    half = 1u << (shift - 1);
    return (uint16_t)(sign | ((m + half - 1 + ((m >> shift) & 1)) >> shift));
}

static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31, m = h & 0x3ffu;

    if (e == 31)
        return float_of(sign | 0x7f800000u | m << 13);
    if (e)
        return float_of(sign | (e + 112) << 23 | m << 13);
    return float_of(sign | bits_of((float)m * 0x1p-24f));
}

/* n elements of type t from element i of src. */
static inline void to_f32(float *out, const void *src, enum cairn_dtype t, int64_t i, int64_t n)
{
    if (t == CAIRN_F32) {
        memcpy(out, (const float *)src + i, (size_t)n * sizeof *out);
    } else if (t == CAIRN_BF16) {
        for (int64_t k = 0; k < n; k++)
            out[k] = float_of((uint32_t)((const uint16_t *)src)[i + k] << 16);
    } else {
        for (int64_t k = 0; k < n; k++)
            out[k] = f16_to_f32(((const uint16_t *)src)[i + k]);
    }
}

static inline void from_f32(void *dst, enum cairn_dtype t, int64_t i, const float *x, int64_t n)
{
    if (t == CAIRN_F32) {
        memcpy((float *)dst + i, x, (size_t)n * sizeof *x);
    } else if (t == CAIRN_BF16) {
        for (int64_t k = 0; k < n; k++)
            ((uint16_t *)dst)[i + k] = f32_to_bf16(x[k]);
    } else {
        for (int64_t k = 0; k < n; k++)
            ((uint16_t *)dst)[i + k] = f32_to_f16(x[k]);
    }
}

static inline void round_f32(float *x, enum cairn_dtype t, int64_t n)
{
    if (t == CAIRN_BF16)
        for (int64_t k = 0; k < n; k++)
            x[k] = float_of((uint32_t)f32_to_bf16(x[k]) << 16);
    else if (t == CAIRN_F16)
        for (int64_t k = 0; k < n; k++)
            x[k] = f16_to_f32(f32_to_f16(x[k]));
}

#endif

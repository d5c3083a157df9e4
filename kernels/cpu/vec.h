/* vec.h - sixteen floats at a time, with the same bits on every instruction set.
 *
 * A v16 is a GCC vector of 16 floats: one AVX-512 register, two of AVX2, four of SSE; the compiler splits it. All the
 * arithmetic is IEEE single precision, lane by lane; v16_fma rounds once everywhere (in hardware from x86-64-v3 on, by
 * libm's fmaf on v2: slow, equal bits). No lane ever looks at another one but in v16_sum, whose tree is fixed.
 * Nothing here allocates; everything is inline.
 */
#ifndef CAIRN_KERNELS_CPU_VEC_H
#define CAIRN_KERNELS_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#pragma GCC diagnostic ignored "-Wpsabi" /* every function that takes a v16 is inlined */

#define VL 16 /* lanes */

typedef float v16 __attribute__((vector_size(64)));
typedef float v16u __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t v16i __attribute__((vector_size(64)));

#define VINLINE static inline __attribute__((always_inline))

VINLINE v16 v16_set(float x)
{
#ifdef __AVX512F__
    return (v16)_mm512_set1_ps(x);
#else
    return (v16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#endif
}

VINLINE v16 v16_load(const float *p)
{
    return *(const v16u *)p;
}

VINLINE void v16_store(float *p, v16 x)
{
    *(v16u *)p = x;
}

/* The first n lanes (0 <= n <= 16) from memory, the others `fill`; memory beyond p + n is not touched. */
VINLINE v16 v16_loadn(const float *p, int64_t n, float fill)
{
#ifdef __AVX512F__
    return (v16)_mm512_mask_loadu_ps(_mm512_set1_ps(fill), (__mmask16)(0xffffu >> (16 - n)), p);
#else
    v16 x = v16_set(fill);

    if (n == VL)
        return v16_load(p);
    memcpy(&x, p, (size_t)n * sizeof *p);
    return x;
#endif
}

VINLINE void v16_storen(float *p, v16 x, int64_t n)
{
#ifdef __AVX512F__
    _mm512_mask_storeu_ps(p, (__mmask16)(0xffffu >> (16 - n)), (__m512)x);
#else
    if (n == VL)
        v16_store(p, x);
    else
        memcpy(p, &x, (size_t)n * sizeof *p);
#endif
}

/* a * b + c, rounded once. */
VINLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
#if defined(__AVX512F__)
    return (v16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    union {
        v16 v;
        __m256 h[2];
    } x = {a}, y = {b}, z = {c};

    z.h[0] = _mm256_fmadd_ps(x.h[0], y.h[0], z.h[0]);
    z.h[1] = _mm256_fmadd_ps(x.h[1], y.h[1], z.h[1]);
    return z.v;
#else
    v16 r;

    for (int i = 0; i < VL; i++)
        r[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return r;
#endif
}

/* mask lane all ones: a, else b */
VINLINE v16 v16_select(v16i mask, v16 a, v16 b)
{
    return (v16)(((v16i)a & mask) | ((v16i)b & ~mask));
}

/* Comparison as the C operators do it: v16_max(x, NaN) is x where x is the first argument; NaN first stays NaN. */
VINLINE v16 v16_max(v16 a, v16 b)
{
    return v16_select(a < b, b, a);
}

VINLINE v16 v16_min(v16 a, v16 b)
{
    return v16_select(a > b, b, a);
}

/* Sum of the lanes by halves: lane i + lane i+8, then +4, +2, +1. */
VINLINE float v16_sum(v16 x)
{
    float t[VL];

    v16_store(t, x);
    for (int h = VL / 2; h; h /= 2)
        for (int i = 0; i < h; i++)
            t[i] += t[i + h];
    return t[0];
}

VINLINE float v16_maximum(v16 x)
{
    float t[VL];

    v16_store(t, x);
    for (int h = VL / 2; h; h /= 2)
        for (int i = 0; i < h; i++)
            t[i] = t[i] < t[i + h] ? t[i + h] : t[i];
    return t[0];
}

VINLINE float bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

#endif

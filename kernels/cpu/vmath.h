/* vmath.h - exp, ln and sigmoid of sixteen floats, and of one (lane 0 of the same code, hence the same bits).
 *
 * Only IEEE operations and one-rounding fma in a fixed order: the result does not depend on instruction set, libm or
 * compiler. Largest errors against fp64 libm, measured over all floats by tests/conformance/vmath_test.c:
 * exp 1.01 ulp, ln 0.82 ulp, sigmoid 2.31 ulp (unit of the result's binade, at least the smallest denormal).
 * Special values: exp(-inf) = 0, exp(inf) = inf, ln(0) = -inf, ln(inf) = inf, ln(x < 0) = NaN, NaN stays NaN.
 *
 * exp: Cody-Waite reduction by ln 2 in two parts. ln: x = 2^e m, m in [sqrt(1/2), sqrt(2)). The polynomials are those of
 * Cephes' expf and logf (S. Moshier).
 */
#ifndef CAIRN_KERNELS_CPU_VMATH_H
#define CAIRN_KERNELS_CPU_VMATH_H

#include "vec.h"

VINLINE v16 v16_exp(v16 x)
{
    const v16 magic = v16_set(0x1.8p23f), lo = v16_set(-104.0f), hi = v16_set(89.0f);
    v16 t, n, r, p;
    v16i e, half;

    x = v16_select(x < lo, lo, x);
    x = v16_select(x > hi, hi, x);
    t = v16_fma(x, v16_set(0x1.715476p+0f), magic); /* nearest integer to x / ln 2, in the low bits */
    n = t - magic;
    r = v16_fma(n, v16_set(-0x1.62e400p-1f), x);
    r = v16_fma(n, v16_set(-0x1.7f7d1cp-20f), r);
    p = v16_set(1.9875691500e-4f);
    p = v16_fma(p, r, v16_set(1.3981999507e-3f));
    p = v16_fma(p, r, v16_set(8.3334519073e-3f));
    p = v16_fma(p, r, v16_set(4.1665795894e-2f));
    p = v16_fma(p, r, v16_set(1.6666665459e-1f));
    p = v16_fma(p, r, v16_set(5.0000001201e-1f));
    p = v16_fma(p, r * r, r); /* e^r - 1, without the rounding of 1 + r */
    p = p + v16_set(1.0f);
    /* times 2^n in two steps, so that n may leave the exponent's range */
    e = (v16i)t - (v16i)magic;
    half = e >> 1;
    p = p * (v16)((half + 127) << 23);
    return p * (v16)((e - half + 127) << 23);
}

VINLINE v16 v16_log(v16 x)
{
    const v16 one = v16_set(1.0f), zero = v16_set(0.0f), inf = v16_set(__builtin_inff());
    v16i tiny = x < v16_set(0x1p-126f), i, e, low;
    v16 m, n, z, p, y;

    m = v16_select(tiny, x * v16_set(0x1p24f), x);
    i = (v16i)m;
    e = ((i >> 23) & 255) - 126;
    m = (v16)((i & 0x007fffff) | 0x3f000000); /* in [1/2, 1) */
    low = m < v16_set(0x1.6a09e6p-1f);
    e = e + low; /* a true lane is -1 */
    m = v16_select(low, m + m, m) - one;
    e = e - (tiny & 24);
#ifdef __AVX512F__
    n = (v16)_mm512_cvtepi32_ps((__m512i)e);
#else
    n = __builtin_convertvector(e, v16);
#endif
    z = m * m;
    p = v16_set(7.0376836292e-2f);
    p = v16_fma(p, m, v16_set(-1.1514610310e-1f));
    p = v16_fma(p, m, v16_set(1.1676998740e-1f));
    p = v16_fma(p, m, v16_set(-1.2420140846e-1f));
    p = v16_fma(p, m, v16_set(1.4249322787e-1f));
    p = v16_fma(p, m, v16_set(-1.6668057665e-1f));
    p = v16_fma(p, m, v16_set(2.0000714765e-1f));
    p = v16_fma(p, m, v16_set(-2.4999993993e-1f));
    p = v16_fma(p, m, v16_set(3.3333331174e-1f));
    y = m * z * p;
    y = v16_fma(n, v16_set(-2.12194440e-4f), y);
    y = v16_fma(v16_set(-0.5f), z, y);
    y = m + y;
    y = v16_fma(n, v16_set(0.693359375f), y);
    y = v16_select(x == zero, -inf, y);
    y = v16_select(x == inf, inf, y);
    y = v16_select(x < zero, v16_set(__builtin_nanf("")), y);
    return v16_select(x != x, x, y);
}

/* 1 / (1 + e^-x), through e^-|x|, so that neither tail loses digits. */
VINLINE v16 v16_sigmoid(v16 x)
{
    const v16 one = v16_set(1.0f);
    v16 e = v16_exp((v16)((v16i)x | (int32_t)0x80000000u));

    return v16_select(x < v16_set(0.0f), e, one) / (one + e);
}

VINLINE float f32_exp(float x)
{
    return v16_exp(v16_set(x))[0];
}

VINLINE float f32_log(float x)
{
    return v16_log(v16_set(x))[0];
}

VINLINE float f32_sigmoid(float x)
{
    return v16_sigmoid(v16_set(x))[0];
}

#endif

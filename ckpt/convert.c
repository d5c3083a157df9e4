/* convert.c - bit arithmetic of convert.h; no floating-point operation is used where it could round. */
#include "ckpt/convert.h"

#include <math.h>
#include <string.h>

static uint32_t bits32(float x)
{
    uint32_t u;

    memcpy(&u, &x, 4);
    return u;
}

static float float32(uint32_t u)
{
    float x;

    memcpy(&x, &u, 4);
    return x;
}

/* The small formats are all: sign, `e` exponent bits of bias 2^(e-1)-1, `m` mantissa bits. */
static float widen(uint32_t sign, uint32_t exp, uint32_t man, int m, int bias)
{
    float x;

    if (exp)
        x = float32((uint32_t)((int)exp - bias + 127) << 23 | man << (23 - m));
    else
        x = ldexpf((float)man, 1 - bias - m); /* subnormal or zero: exact */
    return sign ? -x : x;
}

/* Magnitude of a finite double as exponent and mantissa bits, rounded once to nearest even; may come out as one step above
 * the largest finite number, which is then infinity's place. `mag` is the bits of |x|. */
static uint32_t narrow(uint64_t mag, int m, int bias)
{
    int exp = (int)(mag >> 52) - 1023 + bias; /* biased in the target */
    uint64_t sig = (mag & (((uint64_t)1 << 52) - 1)) | (mag >> 52 ? (uint64_t)1 << 52 : 0);
    int drop = 52 - m;
    uint64_t q, rest, half;

    if (!(mag >> 52)) /* a subnormal double is below half of every target's smallest */
        return 0;
    if (exp < 1) { /* subnormal in the target: the hidden one becomes visible */
        drop += 1 - exp;
        exp = 0;
        if (drop > 60)
            return 0;
    } else {
        sig &= ((uint64_t)1 << 52) - 1;
    }
    q = sig >> drop;
    rest = sig & (((uint64_t)1 << drop) - 1);
    half = (uint64_t)1 << (drop - 1);
    if (rest > half || (rest == half && (q & 1)))
        q++;
    if (exp > 1 << 20)
        exp = 1 << 20;
    return ((uint32_t)exp << m) + (uint32_t)q; /* a carry out of the mantissa raises the exponent: as it should */
}

static uint64_t bits64(double x)
{
    uint64_t u;

    memcpy(&u, &x, 8);
    return u;
}

float cairn_bf16_to_f32(uint16_t x)
{
    return float32((uint32_t)x << 16);
}

uint16_t cairn_f32_to_bf16(float x)
{
    uint32_t u = bits32(x);

    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static uint16_t f64_to_bf16(double x)
{
    uint64_t u = bits64(x), mag = u & ~((uint64_t)1 << 63);
    uint16_t sign = (uint16_t)(u >> 63 << 15);
    uint32_t r;

    if (mag > 0x7ff0000000000000)
        return (uint16_t)(sign | 0x7fc0 | (mag >> 45 & 0x7f));
    r = narrow(mag, 7, 127);
    return (uint16_t)(sign | (r > 0x7f80 ? 0x7f80 : r));
}

float cairn_f16_to_f32(uint16_t x)
{
    uint32_t sign = x >> 15, exp = x >> 10 & 31, man = x & 1023;

    if (exp == 31)
        return float32(sign << 31 | 0x7f800000 | (man ? man << 13 | 0x400000 : 0));
    return widen(sign, exp, man, 10, 15);
}

static uint16_t f64_to_f16(double x)
{
    uint64_t u = bits64(x), mag = u & ~((uint64_t)1 << 63);
    uint16_t sign = (uint16_t)(u >> 63 << 15);
    uint32_t r;

    if (mag > 0x7ff0000000000000)
        return (uint16_t)(sign | 0x7e00 | (mag >> 42 & 0x3ff));
    r = narrow(mag, 10, 15);
    return (uint16_t)(sign | (r > 0x7c00 ? 0x7c00 : r));
}

uint16_t cairn_f32_to_f16(float x)
{
    return f64_to_f16((double)x); /* every float is a double exactly, so this rounds once */
}

float cairn_e4m3_to_f32(uint8_t x)
{
    uint32_t sign = x >> 7, exp = x >> 3 & 15, man = x & 7;

    if (exp == 15 && man == 7)
        return float32(sign << 31 | 0x7fc00000);
    return widen(sign, exp, man, 3, 7);
}

uint8_t cairn_f32_to_e4m3(float x)
{
    uint64_t u = bits64((double)x), mag = u & ~((uint64_t)1 << 63);
    uint8_t sign = (uint8_t)(u >> 63 << 7);
    uint32_t r;

    if (mag > 0x7ff0000000000000)
        return sign | 0x7f;
    r = narrow(mag, 3, 7);
    return (uint8_t)(sign | (r > 0x7e ? 0x7f : r)); /* above 448 (rounded): NaN, there is no infinity */
}

double cairn_value(enum cairn_dtype t, const void *p, int64_t i)
{
    const unsigned char *at = (const unsigned char *)p + (size_t)i * cairn_dtype_size(t);
    uint16_t h;
    float f;
    double d;
    int32_t n;
    int64_t l;

    switch (t) {
    case CAIRN_F32: memcpy(&f, at, 4); return (double)f;
    case CAIRN_BF16: memcpy(&h, at, 2); return (double)cairn_bf16_to_f32(h);
    case CAIRN_F16: memcpy(&h, at, 2); return (double)cairn_f16_to_f32(h);
    case CAIRN_F64: memcpy(&d, at, 8); return d;
    case CAIRN_I32: memcpy(&n, at, 4); return n;
    case CAIRN_I64: memcpy(&l, at, 8); return (double)l;
    case CAIRN_U8: return *at;
    case CAIRN_F8E4M3: return (double)cairn_e4m3_to_f32(*at);
    case CAIRN_DTYPES: break;
    }
    return NAN;
}

static int is_float(enum cairn_dtype t)
{
    return t == CAIRN_F32 || t == CAIRN_BF16 || t == CAIRN_F16 || t == CAIRN_F64 || t == CAIRN_F8E4M3;
}

int cairn_convert(enum cairn_dtype to, void *dst, enum cairn_dtype from, const void *src, size_t n)
{
    const unsigned char *s = src;
    unsigned char *d = dst;
    size_t fs = cairn_dtype_size(from);

    if (to == from) {
        if (n)
            memcpy(dst, src, n * fs);
        return 1;
    }
    if (!is_float(from) || (to != CAIRN_F32 && to != CAIRN_BF16 && to != CAIRN_F16))
        return 0;
    if (from == CAIRN_BF16 && to == CAIRN_F32) {
        for (size_t i = 0; i < n; i++) {
            uint16_t h;
            uint32_t u;

            memcpy(&h, s + 2 * i, 2);
            u = (uint32_t)h << 16;
            memcpy(d + 4 * i, &u, 4);
        }
    } else if (from == CAIRN_F32 && to == CAIRN_BF16) {
        for (size_t i = 0; i < n; i++) { /* cairn_f32_to_bf16 without a branch and a call: weights go this way */
            uint32_t u, round;
            uint16_t h;

            memcpy(&u, s + 4 * i, 4);
            round = (u + 0x7fff + (u >> 16 & 1)) >> 16;
            h = (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? u >> 16 | 0x40 : round);
            memcpy(d + 2 * i, &h, 2);
        }
    } else if (to == CAIRN_F32) {
        for (size_t i = 0; i < n; i++) {
            float f = (float)cairn_value(from, s, (int64_t)i); /* exact unless from F64, where it is the one rounding */

            memcpy(d + 4 * i, &f, 4);
        }
    } else {
        for (size_t i = 0; i < n; i++) {
            double x = cairn_value(from, s, (int64_t)i);
            uint16_t h = to == CAIRN_BF16 ? f64_to_bf16(x) : f64_to_f16(x);

            memcpy(d + 2 * i, &h, 2);
        }
    }
    return 1;
}

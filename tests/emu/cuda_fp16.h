/* cuda_fp16.h - in the place of CUDA's, for the emulated GPU: the conversions of f16, by the host's _Float16. */
#ifndef CAIRN_TESTS_EMU_FP16_H
#define CAIRN_TESTS_EMU_FP16_H

#include "cuda_runtime.h"

struct __half {
    uint16_t x;
};

static inline float __half2float(__half h)
{
    _Float16 f;

    memcpy(&f, &h, sizeof f);
    return (float)f;
}
static inline __half __float2half_rn(float x)
{
    _Float16 f = (_Float16)x;
    __half h;

    memcpy(&h, &f, sizeof h);
    return h;
}

struct __half2 {
    __half x, y;
};

static inline __half2 __floats2half2_rn(float lo, float hi)
{
    return {__float2half_rn(lo), __float2half_rn(hi)};
}
static inline float2 __half22float2(__half2 h)
{
    return {__half2float(h.x), __half2float(h.y)};
}

#endif

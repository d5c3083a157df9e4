/* cuda_bf16.h - in the place of CUDA's, for the emulated GPU: bf16 and its conversions, to nearest even; every NaN becomes 0x7fff.
 */
#ifndef CAIRN_TESTS_EMU_BF16_H
#define CAIRN_TESTS_EMU_BF16_H

#include "cuda_runtime.h"

struct __nv_bfloat16 {
    uint16_t x;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline float __bfloat162float(__nv_bfloat16 h)
{
    return __uint_as_float((unsigned)h.x << 16);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    unsigned u = __float_as_uint(f);

    return __nv_bfloat16{(uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (u + 0x7fffu + ((u >> 16) & 1)) >> 16)};
}
static inline __nv_bfloat16 __float2bfloat16(float f)
{
    return __float2bfloat16_rn(f);
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b)
{
    return __nv_bfloat162{__float2bfloat16_rn(a), __float2bfloat16_rn(b)};
}
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u)
{
    return __nv_bfloat16{u};
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h)
{
    return h.x;
}

#endif

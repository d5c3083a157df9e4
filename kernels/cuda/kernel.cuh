/* kernel.cuh - what the kernels share on the device side: loads and stores of activations, sums of a warp and of a block in a fixed
 * order, faults. Host side: internal.h.
 */
#ifndef CAIRN_KERNELS_CUDA_KERNEL_CUH
#define CAIRN_KERNELS_CUDA_KERNEL_CUH

#include "internal.h"

typedef __nv_bfloat16 bf16;

/* ---- one element, as fp32 ------------------------------------------------------------------------------------------ */

__device__ static inline float ld(const float *p)
{
    return *p;
}
__device__ static inline float ld(const bf16 *p)
{
    return __bfloat162float(*p);
}
__device__ static inline void st(float *p, float x)
{
    *p = x;
}
__device__ static inline void st(bf16 *p, float x)
{
    *p = __float2bfloat16_rn(x);
}
/* x as an activation of type T holds it. */
__device__ static inline float as_act(float x, const float *)
{
    return x;
}
__device__ static inline float as_act(float x, const bf16 *)
{
    return __bfloat162float(__float2bfloat16_rn(x));
}
/* Weights and other tensors whose type is known at run time: element i. */
__device__ static inline float ld_any(const void *p, int is_bf16, int64_t i)
{
    return is_bf16 ? __bfloat162float(((const bf16 *)p)[i]) : ((const float *)p)[i];
}

/* ---- eight elements -------------------------------------------------------------------------------------------------- */

/* 8 elements from p, of which n exist (n >= 8: all; the others read as 0). wide: p is 16-byte aligned. The values do not depend
 * on `wide`: it only says how they may be fetched. */
__device__ static inline void ld8(const float *p, int64_t n, int wide, float v[8])
{
    if (wide && n >= 8) {
        float4 a = ((const float4 *)p)[0], b = ((const float4 *)p)[1];

        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = i < n ? p[i] : 0.0f;
    }
}
__device__ static inline void ld8(const bf16 *p, int64_t n, int wide, float v[8])
{
    if (wide && n >= 8) {
        uint4 a = *(const uint4 *)p;
        const uint32_t w[4] = {a.x, a.y, a.z, a.w};

#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = __uint_as_float(w[i] << 16);
            v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = i < n ? __bfloat162float(p[i]) : 0.0f;
    }
}
__device__ static inline void st8(float *p, int64_t n, int wide, const float v[8])
{
    if (wide && n >= 8) {
        ((float4 *)p)[0] = make_float4(v[0], v[1], v[2], v[3]);
        ((float4 *)p)[1] = make_float4(v[4], v[5], v[6], v[7]);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < n)
                p[i] = v[i];
    }
}
__device__ static inline uint32_t bf16_pair(float lo, float hi)
{
    __nv_bfloat162 x = __floats2bfloat162_rn(lo, hi);

    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}
__device__ static inline void st8(bf16 *p, int64_t n, int wide, const float v[8])
{
    if (wide && n >= 8) {
        *(uint4 *)p = make_uint4(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]), bf16_pair(v[4], v[5]), bf16_pair(v[6], v[7]));
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < n)
                p[i] = __float2bfloat16_rn(v[i]);
    }
}
/* Weights, type known at run time. */
__device__ static inline void ld8_any(const void *p, int is_bf16, int64_t i, int64_t n, int wide, float v[8])
{
    if (is_bf16)
        ld8((const bf16 *)p + i, n, wide, v);
    else
        ld8((const float *)p + i, n, wide, v);
}

/* Eight elements as they lie in memory (16-byte aligned), for what is fetched well before it is used. */
template <typename T> struct eight {
    uint4 w[sizeof(T) / 2];
};
template <typename T> __device__ static inline struct eight<T> fetch8(const T *p) {
    struct eight<T> r;

#pragma unroll
    for (int i = 0; i < (int)(sizeof(T) / 2); i++)
        r.w[i] = ((const uint4 *)p)[i];
    return r;
} template <typename T> __device__ static inline struct eight<T> nothing8(const T *) {
    struct eight<T> r;

#pragma unroll
    for (int i = 0; i < (int)(sizeof(T) / 2); i++)
        r.w[i] = make_uint4(0, 0, 0, 0);
    return r;
} __device__ static inline void open8(const struct eight<float> &r, float v[8])
{
    const uint32_t w[8] = {r.w[0].x, r.w[0].y, r.w[0].z, r.w[0].w, r.w[1].x, r.w[1].y, r.w[1].z, r.w[1].w};

#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = __uint_as_float(w[i]);
}
__device__ static inline void open8(const struct eight<bf16> &r, float v[8])
{
    const uint32_t w[4] = {r.w[0].x, r.w[0].y, r.w[0].z, r.w[0].w};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = __uint_as_float(w[i] << 16);
        v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
}

/* ---- sums ------------------------------------------------------------------------------------------------------------- */

/* Over the lanes of a warp, by halves (lane i + lane i^16, then ^8, ^4, ^2, ^1): every lane gets the same bits. */
__device__ static inline float warp_sum(float x)
{
#pragma unroll
    for (int h = 16; h; h >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, h);
    return x;
}
__device__ static inline double warp_sum(double x)
{
#pragma unroll
    for (int h = 16; h; h >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, h);
    return x;
}
__device__ static inline float warp_max(float x) /* a NaN is passed over, as fmaxf does */
{
#pragma unroll
    for (int h = 16; h; h >>= 1)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, h));
    return x;
}

/* Over a block of WARPS warps: each warp by warp_sum, then the warps ascending. All threads call it; every thread gets the sum.
 * room: WARPS elements of shared memory, free again after the next __syncthreads. */
template <int WARPS, typename F> __device__ static inline F block_sum(F x, F *room)
{
    x = warp_sum(x);
    if (WARPS == 1)
        return x;
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = x;
    __syncthreads();
    x = room[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++)
        x += room[i];
    return x;
}

/* ---- faults ------------------------------------------------------------------------------------------------------------ */

/* Notes what is wrong with an input; any one of several faults wins. The caller goes on without using the value. */
__device__ static inline void fault_set(struct fault *f, enum cuda_op op, enum fault_what what, int64_t value)
{
    *(int4 *)f = make_int4((int)op, (int)what, (int)(value & 0xffffffff), (int)(value >> 32));
}

#endif

/* transfer.cuh - what the kernels of a handover share (handover.cu, ship.cu): runs of a table and whether they stay within a
 * memory; one element from one type to another. */
#ifndef CAIRN_KERNELS_CUDA_TRANSFER_CUH
#define CAIRN_KERNELS_CUDA_TRANSFER_CUH

#include <cuda_fp16.h>

#include "kernel.cuh"

/* The last of R runs whose count of what stands before it (column `column` of rows of `width`) is at most i. */
__device__ static inline int64_t run_of(const int64_t *run, int64_t R, int width, int column, int64_t i)
{
    int64_t lo = 0, hi = R;

    while (hi - lo > 1) {
        const int64_t mid = lo + (hi - lo) / 2;

        if (run[mid * width + column] <= i)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* n from `at` on, `blocks` times a step apart, within N? */
__device__ static inline int inside(int64_t at, int64_t step, int64_t blocks, int64_t n, int64_t N)
{
    if (at < 0 || step < 0 || blocks < 0 || n < 0 || at > N || n > N)
        return 0;
    return !blocks || !n ||
           (blocks - 1 <= N && step <= N && (unsigned __int128)(blocks - 1) * (uint64_t)step + at + n <= (unsigned __int128)N);
}

/* One element; bits where the types are equal. */
__device__ static inline void copy1(const float *x, float *y)
{
    *y = *x;
}
__device__ static inline void copy1(const bf16 *x, bf16 *y)
{
    *y = *x;
}
__device__ static inline void copy1(const __half *x, __half *y)
{
    *y = *x;
}
__device__ static inline void copy1(const float *x, bf16 *y)
{
    *y = __float2bfloat16_rn(*x);
}
__device__ static inline void copy1(const bf16 *x, float *y)
{
    *y = __bfloat162float(*x);
}
__device__ static inline void copy1(const float *x, __half *y)
{
    *y = __float2half_rn(*x);
}
__device__ static inline void copy1(const __half *x, float *y)
{
    *y = __half2float(*x);
}
__device__ static inline void copy1(const bf16 *x, __half *y)
{
    *y = __float2half_rn(__bfloat162float(*x));
}
__device__ static inline void copy1(const __half *x, bf16 *y)
{
    *y = __float2bfloat16_rn(__half2float(*x));
}

#endif

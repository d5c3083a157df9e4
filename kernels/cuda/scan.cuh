/* scan.cuh - sums over the lanes of a warp. For whole numbers: of floats the order of the terms would count. */
#ifndef CAIRN_KERNELS_CUDA_SCAN_CUH
#define CAIRN_KERNELS_CUDA_SCAN_CUH

/* Sum of x over lanes 0 to this one. All lanes call it. */
template <typename T> __device__ static inline T lanes_upto(T x)
{
    const int lane = threadIdx.x % 32;

#pragma unroll
    for (int h = 1; h < 32; h *= 2) {
        const T y = __shfl_up_sync(0xffffffffu, x, h);

        x += lane >= h ? y : 0;
    }
    return x;
}

#endif

/* product_probe.cu - operands for trials of products, and the comparison of results. */
#include "kernel.cuh"
#include "product_choose.h"

__device__ static inline uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

__global__ void fill_numbers(bf16 *to, int64_t n, uint32_t seed, uint32_t spread)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        uint32_t at = (uint32_t)(spread >= 2 ? i / 2 : i), x = mix(at * 0x9e3779b9u + mix(seed + 0x1234567u * (uint32_t)(i >> 32)));
        /* the sum of four uniforms is normal enough */
        float v = ((float)(x & 255) + (float)(x >> 8 & 255) + (float)(x >> 16 & 255) + (float)(x >> 24) - 510.0f) * (1.0f / 148.0f);

        if (spread == 1)
            v = ldexpf(v, (int)(mix(x) % 12) - 6);
        if (spread == 2 && i % 2)
            v = -v * 1.0078125f; /* the neighbour, one unit in the last place off, the other way */
        to[i] = __float2bfloat16_rn(v);
    }
}

__global__ void count_differences(const uint32_t *x, const uint32_t *y, int64_t n, unsigned long long *count)
{
    int64_t mine = 0;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        mine += x[i] != y[i];
    if (mine)
        atomicAdd(count, (unsigned long long)mine);
}

void probe_fill(struct call *c, void *to, int64_t n, uint32_t seed, uint32_t spread)
{
    LAUNCH(c, fill_numbers, 1024, 256, 0, (bf16 *)to, n, seed, spread);
}

void probe_differences(struct call *c, const void *x, const void *y, size_t bytes, int64_t *d_count)
{
    call_cuda(c, cudaMemsetAsync(d_count, 0, sizeof *d_count, c->stream), "cudaMemset");
    LAUNCH(c, count_differences, 1024, 256, 0, (const uint32_t *)x, (const uint32_t *)y, (int64_t)(bytes / 4),
           (unsigned long long *)d_count);
}

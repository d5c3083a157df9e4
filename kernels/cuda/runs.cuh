/* runs.cuh - "rows in runs" of kernels.h on the device, and sums over rows. The host knows only N: which rows are which run, and
 * which begin a chunk of KDA, one block finds out and leaves in scratch, with a fault for what is no run; then there are no runs,
 * and the kernels behind it do nothing.
 */
#ifndef CAIRN_KERNELS_CUDA_RUNS_CUH
#define CAIRN_KERNELS_CUDA_RUNS_CUH

#include "kernel.cuh"

struct runs {
    const int32_t *pos, *seq;
    int64_t N;
    const int32_t *count; /* [1] runs; 0 where something is wrong */
    const int32_t *begin; /* [count + 1] first row of each, then N */
};

/* Bytes of scratch for N rows and B sequences of a tail or state (-1: none). */
size_t runs_room(int64_t N, int64_t B);
struct runs runs_find(struct call *c, enum cuda_op op, const struct arg *pos, const struct arg *seq, int64_t N, int64_t B,
                      void *room);

/* Does row n - back belong to the sequence of row n, and to this call? */
__device__ static inline int runs_same(const struct runs *r, int64_t n, int64_t back)
{
    return n >= back && r->seq[n - back] == r->seq[n];
}

/* out[i] += sum over parts of part[p * width + i], p ascending, 64 at a time, level by level. part has room for all levels:
 * parts_floats(parts, width). */
void parts_sum(struct call *c, float *part, int64_t parts, int64_t width, float *out);
static inline int64_t parts_floats(int64_t parts, int64_t width)
{
    int64_t all = 0;

    for (; parts > 1; parts = ceil_div(parts, 64))
        all += parts;
    return (all + 1) * width;
}

/* v[e] of all lanes added, for 32 values at a time: lane l ends with the sum of v[l] in v[0]. Each sum is the tree of warp_sum. */
template <int H> __device__ static inline void lanes_fold(float v[32])
{
    const int up = threadIdx.x & H;

#pragma unroll
    for (int e = 0; e < H; e++) {
        const float give = up ? v[e] : v[e + H], keep = up ? v[e + H] : v[e];

        v[e] = keep + __shfl_xor_sync(0xffffffffu, give, H);
    }
}
__device__ static inline void lanes_sum(float v[32])
{
    lanes_fold<16>(v);
    lanes_fold<8>(v);
    lanes_fold<4>(v);
    lanes_fold<2>(v);
    lanes_fold<1>(v);
}

#endif

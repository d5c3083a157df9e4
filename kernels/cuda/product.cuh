/* product.cuh - what the product kernels share on the device side: which tile of which group a block works on, and the end of a
 * sum.
 */
#ifndef CAIRN_KERNELS_CUDA_PRODUCT_CUH
#define CAIRN_KERNELS_CUDA_PRODUCT_CUH

#include "kernel.cuh"
#include "product.h"

/* Where a tile's operands begin and end. Rows are counted from a, b, y as given here. */
struct tile {
    int64_t a, b, y;    /* element offsets */
    int64_t row0, row1; /* rows of A and y: first of the tile, end of the group */
    int64_t col0;       /* first column */
    int64_t k0, k1;     /* terms */
    int live;
};

/* Bounds of group g, an empty group where they make no sense. */
__device__ static inline void group_bounds(const struct product &p, int64_t rows, int g, int64_t *begin, int64_t *end)
{
    int64_t b = p.offsets[g], e = p.offsets[g + 1];

    if (b < 0 || e < b || e > rows || (g == 0 && b != 0) || (g == p.batch - 1 && e != rows && !p.open_end)) {
        fault_set(p.fault, (enum cuda_op)p.op, FAULT_OFFSETS, g);
        if (b < 0 || e < b || e > rows)
            e = b = 0;
    }
    *begin = b;
    *end = e;
}

/* The group that has the i-th tile of `height` rows, and its begin and end; -1 behind the last tile. One warp calls it, all lanes
 * get the answer. *before: tiles of the groups before it. */
__device__ static inline int group_of_tile(const struct product &p, int height, int64_t i, int64_t *begin, int64_t *end,
                                           int64_t *before)
{
    int lane = threadIdx.x % 32;
    int64_t base = 0;

    for (int g0 = 0; g0 < p.batch; g0 += 32) {
        int64_t b = 0, e = 0;
        int tiles = 0, sum;
        unsigned over;

        if (g0 + lane < p.batch)
            group_bounds(p, p.m, g0 + lane, &b, &e);
        tiles = (int)((e - b + height - 1) / height);
        sum = tiles;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            int other = __shfl_up_sync(0xffffffffu, sum, d);

            if (lane >= d)
                sum += other;
        }
        over = __ballot_sync(0xffffffffu, base + sum > i);
        if (over) {
            int src = __ffs((int)over) - 1;

            *begin = __shfl_sync(0xffffffffu, (long long)b, src);
            *end = __shfl_sync(0xffffffffu, (long long)e, src);
            *before = base + __shfl_sync(0xffffffffu, sum - tiles, src);
            return g0 + src;
        }
        base += __shfl_sync(0xffffffffu, sum, 31);
    }
    return -1;
}

/* Dynamic shared memory of a kernel, asked for once a device: *allowed has a bit for each of the first 64. */
static inline void product_allow(struct call *c, uint64_t *allowed, const void *kernel, int bytes)
{
    uint64_t bit = c->cuda->ordinal < 64 ? (uint64_t)1 << c->cuda->ordinal : 0;

    if (__atomic_load_n(allowed, __ATOMIC_RELAXED) & bit)
        return;
    call_cuda(c, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory of a product");
    if (call_ok(c))
        __atomic_fetch_or(allowed, bit, __ATOMIC_RELAXED);
}

/* Tiles of rows that a launch must provide: of ragged groups no more than these are used. */
static inline int64_t row_tiles(const struct product *p, int height)
{
    if (p->offsets && p->form != CAIRN_TN)
        return (p->m / height + p->batch < p->m ? p->m / height + p->batch : p->m)
                   ? (p->m / height + p->batch < p->m ? p->m / height + p->batch : p->m)
                   : 1;
    return ceil_div(p->m, height);
}

/* Launches a kernel that has a tile of BM x BN a block, of p. Static shared memory counts among the 48 KiB that a launch may have without asking. */
#define PRODUCT_TILES(c, p, kernel, BM, BN, threads, bytes)                                                                        \
    do {                                                                                                                           \
        int64_t all = ((p)->offsets && (p)->form != CAIRN_TN ? 1 : (int64_t)(p)->batch) * (p)->parts;                              \
        dim3 grid((unsigned)ceil_div((p)->n, BN), (unsigned)row_tiles(p, BM), (unsigned)all);                                      \
                                                                                                                                   \
        if ((bytes) > 47 << 10) {                                                                                                  \
            static uint64_t allowed;                                                                                               \
                                                                                                                                   \
            product_allow(c, &allowed, (const void *)kernel, bytes);                                                               \
        }                                                                                                                          \
        LAUNCH(c, kernel, grid, threads, bytes, *(p));                                                                           \
    } while (0)

/* The tile of this block in a launch of grid (column tiles, row tiles, batch * parts), groups of rows in y. All threads call it. */
__device__ static inline struct tile tile_of_block(const struct product &p, int height, int width)
{
    struct tile t;
    int64_t z = blockIdx.z, part = z % p.parts;

    z /= p.parts;
    t.col0 = (int64_t)blockIdx.x * width;
    t.k0 = part * p.part_k;
    t.k1 = t.k0 + p.part_k < p.k ? t.k0 + p.part_k : p.k;
    t.row0 = (int64_t)blockIdx.y * height;
    t.row1 = p.m;
    t.live = 1;
    if (p.offsets && p.form != CAIRN_TN) {
        __shared__ int64_t found[4];
        if (threadIdx.x < 32) {
            int64_t b = 0, e = 0, before = 0;
            int g = group_of_tile(p, height, blockIdx.y, &b, &e, &before);

            if (threadIdx.x == 0)
                found[0] = g, found[1] = b, found[2] = e, found[3] = before;
        }
        __syncthreads();
        t.live = found[0] >= 0;
        t.row0 = found[1] + (blockIdx.y - found[3]) * height;
        t.row1 = found[2];
        t.a = t.y = 0;
        t.b = found[0] * p.bb;
    } else if (p.offsets) {
        group_bounds(p, p.k, (int)z, &t.k0, &t.k1);
        t.a = t.b = 0;
        t.y = z * p.yb;
    } else {
        t.a = z * p.ab;
        t.b = z * p.bb;
        t.y = z * p.yb;
    }
    t.y += part * p.yp;
    return t;
}

/* The end of a sum: times alpha, plus what is there; each step rounded by itself. */
__device__ static inline float finish(const struct product &p, float sum, float there)
{
    if (p.alpha != 1.0f)
        sum = __fmul_rn(sum, p.alpha);
    return p.accumulate ? __fadd_rn(there, sum) : sum;
}

__device__ static inline void put(const struct product &p, int64_t i, float sum)
{
    if (p.y_bf16) {
        bf16 *y = (bf16 *)p.y + i;

        st(y, finish(p, sum, p.accumulate ? ld(y) : 0.0f));
    } else {
        float *y = (float *)p.y + i;

        *y = finish(p, sum, p.accumulate ? *y : 0.0f);
    }
}

/* Two neighbours, at an even place of an aligned row. */
__device__ static inline void put2(const struct product &p, int64_t i, float s0, float s1)
{
    if (p.y_bf16) {
        uint32_t *y = (uint32_t *)((bf16 *)p.y + i), was = p.accumulate ? *y : 0;

        *y = bf16_pair(finish(p, s0, __uint_as_float(was << 16)), finish(p, s1, __uint_as_float(was & 0xffff0000u)));
    } else {
        float2 *y = (float2 *)((float *)p.y + i), was = p.accumulate ? *y : make_float2(0.0f, 0.0f);

        *y = make_float2(finish(p, s0, was.x), finish(p, s1, was.y));
    }
}

/* Words i = 0 .. 3 of the four lanes of a row, transposed: lane q gets word q of lane 0, 1, 2, 3. All lanes of the warp. */
__device__ static inline void transpose4(uint32_t *w)
{
    int odd = threadIdx.x & 1, high = threadIdx.x & 2;

#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint32_t x = __shfl_xor_sync(0xffffffffu, odd ? w[i] : w[i + 1], 1);

        w[i] = odd ? x : w[i], w[i + 1] = odd ? w[i + 1] : x;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t x = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[i + 2], 2);

        w[i] = high ? x : w[i], w[i + 2] = high ? w[i + 2] : x;
    }
}

/* A row's part of a fragment of mma or wgmma: N times 8 columns from element `to` of y, of which `left` exist; the lane has columns
 * 8 j + 2 (lane % 4) and the next in d[4 j], d[4 j + 1]. live: 0 where the lane has no row. All lanes of the warp call it, with the
 * same `left`. Reads of y that is added to are under way together, RUN at a time. */
template <int N> __device__ static inline void put_row(const struct product &p, int64_t to, int live, int64_t left, const float *d)
{
    constexpr int RUN = N % 16 == 0 ? 16 : N % 8 == 0 ? 8 : N;
    const int q = threadIdx.x % 4;

#pragma unroll
    for (int j0 = 0; j0 < N; j0 += RUN) {
        if (left < (j0 + RUN) * 8 || !p.pairs) {
#pragma unroll
            for (int j = j0; j < j0 + RUN; j++) {
                int col = j * 8 + q * 2;

                if (live && p.pairs && col + 1 < left) {
                    put2(p, to + col, d[j * 4], d[j * 4 + 1]);
                } else if (live && col < left) {
                    put(p, to + col, d[j * 4]);
                    if (col + 1 < left)
                        put(p, to + col + 1, d[j * 4 + 1]);
                }
            }
        } else if (p.y_bf16) {
            bf16 *y = (bf16 *)p.y + to + j0 * 8;
            uint32_t w[RUN];

#pragma unroll
            for (int j = 0; j < RUN; j++)
                w[j] = p.accumulate && live ? *(const uint32_t *)(y + j * 8 + q * 2) : 0;
#pragma unroll
            for (int j = 0; j < RUN; j++)
                w[j] = bf16_pair(finish(p, d[(j0 + j) * 4], __uint_as_float(w[j] << 16)),
                                 finish(p, d[(j0 + j) * 4 + 1], __uint_as_float(w[j] & 0xffff0000u)));
            if (RUN % 4 == 0 && p.quads) {
#pragma unroll
                for (int j = 0; j + 3 < RUN; j += 4) {
                    transpose4(w + j);
                    if (live)
                        *(uint4 *)(y + (j + q) * 8) = make_uint4(w[j], w[j + 1], w[j + 2], w[j + 3]);
                }
            } else if (live) {
#pragma unroll
                for (int j = 0; j < RUN; j++)
                    *(uint32_t *)(y + j * 8 + q * 2) = w[j];
            }
        } else if (live) {
            float *y = (float *)p.y + to + j0 * 8 + q * 2;
            float2 was[RUN];

#pragma unroll
            for (int j = 0; j < RUN; j++)
                was[j] = p.accumulate ? *(const float2 *)(y + j * 8) : make_float2(0.0f, 0.0f);
#pragma unroll
            for (int j = 0; j < RUN; j++)
                *(float2 *)(y + j * 8) =
                    make_float2(finish(p, d[(j0 + j) * 4], was[j].x), finish(p, d[(j0 + j) * 4 + 1], was[j].y));
        }
    }
}

#endif

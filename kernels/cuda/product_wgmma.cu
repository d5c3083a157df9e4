/* product_wgmma.cu - products of bf16 operands by wgmma (sm_90a), operands brought by the tensor memory accelerator.
 *
 * Blocks stay on their multiprocessor and take tile after tile (128 x WIDTH). Warpgroup 0 fetches: one thread enqueues boxes of 64
 * x 64 elements (8 KiB, 128-byte swizzle) into a ring of stages, 64 terms each. Warpgroups 1 and 2 multiply 64 rows each by wgmma
 * m64nWIDTHk16, k ascending, fp32 accumulators in registers, and write them. Two blocks are a cluster that shares what both need:
 *     SHARE_B: neighbours in rows fetch half of B each, for both      (dense)
 *     SHARE_A: neighbours in columns fetch half of A each, for both   (groups of rows, which are short)
 * A sum is one chain, 16 terms a step from the first of its range; terms beyond the range are 0.
 *
 * Shared memory of an operand: boxes one behind the other. Terms contiguous in memory ("along k"): 64 rows of 128 bytes; else 64
 * terms of 128 bytes, and the matrix descriptor says "transposed". In both, 8 lines of 128 bytes are one swizzle atom of 1 KiB.
 * Floor: 2 m n k / matrix rate; (128 + WIDTH) * 128 bytes a step and block from L2, less what is shared.
 */
#include <cuda.h>

#include "product.cuh"
#include "wgmma.cuh"

#define HIGH 128
#define BK   64
#define BOX  8192 /* bytes */
#define RING (192 << 10)

enum { SHARE_NONE, SHARE_A, SHARE_B };

/* What a block (cluster) does next. Coordinates of boxes: (place in the contiguous dimension, line, product). */
struct work {
    int64_t y;            /* element offset of y */
    int row0, row1, col0; /* of this block */
    int k0, k1;           /* terms; k1 - k0 is what counts */
    int za, zb;           /* third coordinate of A and B */
};

#if HAVE_WGMMA
__device__ static inline void barrier_expect(uint32_t bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

/* Arrives at the same barrier of block `rank` of the cluster. No more than the default order: what the others wait for are reads of
 * shared memory that have ended, while a release to the cluster would wait for all of this thread's stores to y. */
__device__ static inline void barrier_arrive_at(uint32_t bar, int rank)
{
    asm volatile("{\n"
                 ".reg .b32 r;\n"
                 "mapa.shared::cluster.u32 r, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [r];\n"
                 "}" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}

__device__ static inline void cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}

/* One box to shared memory; both: to both blocks of the cluster. */
__device__ static inline void fetch(uint32_t to, const CUtensorMap *map, uint32_t bar, int x, int line, int z, int both)
{
    if (both)
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
                     "{%3, %4, %5}], "
                     "[%2], %6;" ::"r"(to),
                     "l"(map), "r"(bar), "r"(x), "r"(line), "r"(z), "h"((short)3)
                     : "memory");
    else
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
            "l"(map), "r"(bar), "r"(x), "r"(line), "r"(z)
            : "memory");
}

/* The i-th work of this block's cluster; 0 when there is no more. One warp calls it; all lanes get it. */
template <int WIDTH, int FORM, int SHARE>
__device__ static inline int work_at(const struct product &p, int64_t i, int rank, struct work *w)
{
    const int high = SHARE == SHARE_B ? 2 * HIGH : HIGH, wide = SHARE == SHARE_A ? 2 * WIDTH : WIDTH;
    const int row_tiles = (int)((p.m + high - 1) / high), col_tiles = (int)((p.n + wide - 1) / wide);
    int row, col;

    if (p.offsets && FORM != CAIRN_TN) { /* tiles of one group's rows together, columns inside */
        int64_t begin, end, before;
        int g = group_of_tile(p, high, i / col_tiles, &begin, &end, &before);

        if (g < 0)
            return 0;
        row = (int)(begin + (i / col_tiles - before) * high);
        col = (int)(i % col_tiles) * wide;
        w->row1 = (int)end;
        w->k0 = 0, w->k1 = (int)p.k;
        w->za = 0, w->zb = g;
        w->y = 0;
    } else { /* 8 tiles of rows, all columns, the next 8: what runs at the same time shares rows and columns */
        int64_t each = (int64_t)row_tiles * col_tiles, z = i / each;
        int r = (int)(i % each), band = r / (8 * col_tiles), in = r % (8 * col_tiles);
        int rows = row_tiles - band * 8 < 8 ? row_tiles - band * 8 : 8, part;

        if (z >= (int64_t)p.batch * p.parts)
            return 0;
        part = (int)(z % p.parts);
        z /= p.parts;
        row = (band * 8 + in % rows) * high;
        col = in / rows * wide;
        w->row1 = (int)p.m;
        w->k0 = (int)(part * p.part_k);
        w->k1 = (int)(w->k0 + p.part_k < p.k ? w->k0 + p.part_k : p.k);
        w->za = w->zb = (int)z;
        w->y = z * p.yb + part * p.yp;
        if (p.offsets) {
            int64_t begin, end;

            group_bounds(p, p.k, (int)z, &begin, &end);
            w->k0 = (int)begin, w->k1 = (int)end;
            w->za = w->zb = 0;
        }
    }
    w->row0 = row + (SHARE == SHARE_B ? rank * HIGH : 0);
    w->col0 = col + (SHARE == SHARE_A ? rank * WIDTH : 0);
    return 1;
}
#endif

template <int WIDTH, int FORM, int SHARE>
__global__ void __launch_bounds__(384, 1)
    wgmma_tiles(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, const struct product p)
{
#if HAVE_WGMMA
    constexpr int A_BOXES = HIGH / 64, B_BOXES = WIDTH / 64, STAGE = (A_BOXES + B_BOXES) * BOX, STAGES = RING / STAGE;
    constexpr int TA = FORM == CAIRN_TN, TB = FORM != CAIRN_NT, BLOCKS = SHARE == SHARE_NONE ? 1 : 2;
    extern __shared__ unsigned char memory[];
    uint32_t ring = (shared_address(memory) + 1023) & ~1023u, full = ring + STAGES * STAGE, empty = full + STAGES * 8;
    int rank = 0, group = threadIdx.x / 128, lane = threadIdx.x % 32;
    int64_t first = blockIdx.x / BLOCKS, stride = gridDim.x / BLOCKS;
    uint32_t stage = 0, parity = 0;
    struct work w;

    if (BLOCKS == 2)
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, 2 * BLOCKS); /* a warpgroup of either block */
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (BLOCKS == 2)
        cluster_sync();
#define NEXT_STAGE (stage = stage + 1 == STAGES ? (parity ^= 1, 0) : stage + 1)
    if (group == 0) {
        registers_less<40>();
        if (threadIdx.x < 32) {
            for (int64_t i = first; work_at<WIDTH, FORM, SHARE>(p, i, rank, &w); i += stride) {
                for (int k = w.k0; k < w.k1; k += BK) {
                    barrier_wait(empty + stage * 8, parity ^ 1);
                    if (lane == 0) {
                        uint32_t to = ring + stage * STAGE, bar = full + stage * 8;

                        barrier_expect(bar, STAGE);
#pragma unroll
                        for (int x = 0; x < A_BOXES; x++)
                            if (SHARE != SHARE_A || x == rank) {
                                int row = w.row0 + x * 64;

                                fetch(to + x * BOX, &map_a, bar, TA ? row : k, TA ? k : row, w.za, SHARE == SHARE_A);
                            }
#pragma unroll
                        for (int x = 0; x < B_BOXES; x++)
                            if (SHARE != SHARE_B || x % 2 == rank) {
                                int col = w.col0 + x * 64;

                                fetch(to + (A_BOXES + x) * BOX, &map_b, bar, TB ? col : k, TB ? k : col, w.zb, SHARE == SHARE_B);
                            }
                    }
                    NEXT_STAGE;
                }
            }
        }
    } else {
        int wg = group - 1;

        registers_more<232>();
        for (int64_t i = first; work_at<WIDTH, FORM, SHARE>(p, i, rank, &w); i += stride) {
            float d[WIDTH / 2];
            uint32_t last = 0;

            wgmma_zero(d);
            if (p.accumulate && w.k1 > w.k0) { /* what the sums will be added to comes into L2 meanwhile */
                const int size = p.y_bf16 ? 2 : 4, lines = WIDTH * size / 128;

                for (int x = threadIdx.x % 128; x < 64 * lines; x += 128) {
                    int row = w.row0 + wg * 64 + x / lines, col = w.col0 + x % lines * (128 / size);

                    if (row < w.row1 && col < p.n)
                        asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)p.y + (w.y + row * p.ys + col) * size));
                }
            }
            for (int k = w.k0; k < w.k1; k += BK) {
                uint32_t at = ring + stage * STAGE;
                uint64_t a, b;

                barrier_wait(full + stage * 8, parity);
                if (FORM == CAIRN_TN && p.offsets && k + BK > w.k1) { /* terms of the next group become 0 */
                    int lines = w.k1 - k, t = threadIdx.x - 128;

                    for (int x = t; x < (A_BOXES + B_BOXES) * (BK - lines) * 8; x += 256) {
                        int box = x / ((BK - lines) * 8), in = x % ((BK - lines) * 8);
                        uint32_t to = at + box * BOX + lines * 128 + in * 16;

                        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
                    }
                    fence_for_wgmma();
                    asm volatile("bar.sync 1, 256;" ::: "memory");
                }
                a = wgmma_operand(at + wg * BOX, BOX, 1024);
                b = wgmma_operand(at + A_BOXES * BOX, BOX, 1024);
                wgmma_fence();
#pragma unroll
                for (int l = 0; l < BK / 16; l++)
                    wgmma<TA, TB>(d, a + l * (TA ? 2048 >> 4 : 32 >> 4), b + l * (TB ? 2048 >> 4 : 32 >> 4));
                wgmma_commit();
                /* the step before this one is through with its stage */
                wgmma_wait<1>();
                if (k > w.k0 && threadIdx.x % 128 < BLOCKS)
                    barrier_arrive_at(empty + last * 8, BLOCKS == 2 ? threadIdx.x % 128 : rank);
                last = stage;
                NEXT_STAGE;
            }
            wgmma_wait<0>();
            if (w.k1 > w.k0 && threadIdx.x % 128 < BLOCKS)
                barrier_arrive_at(empty + last * 8, BLOCKS == 2 ? threadIdx.x % 128 : rank);
            if (p.accumulate && w.k1 <= w.k0)
                continue;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int row = w.row0 + wg * 64 + threadIdx.x % 128 / 32 * 16 + half * 8 + lane / 4;

                put_row<WIDTH / 8>(p, w.y + row * p.ys + w.col0, row < w.row1, p.n - w.col0, d + half * 2);
            }
        }
    }
    if (BLOCKS == 2)
        cluster_sync(); /* nobody leaves while the other may still write here */
#endif
}

/* ---- host ------------------------------------------------------------------------------------------------------------------ */

typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                           const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static encode_fn *encoder(void) /* several threads may look for it, and find the same */
{
    static encode_fn *known;
    encode_fn *fn = __atomic_load_n(&known, __ATOMIC_RELAXED);
    enum cudaDriverEntryPointQueryResult found;

    if (fn)
        return fn;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&fn, 12000, cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess) {
        cudaGetLastError();
        return NULL;
    }
    __atomic_store_n(&known, fn, __ATOMIC_RELAXED);
    return fn;
}

/* lines of `wide` contiguous elements, `products` times; boxes of 64 x 64 x 1 */
static int encode(CUtensorMap *map, const void *p, int64_t wide, int64_t lines, int64_t stride, int64_t products, int64_t step)
{
    const cuuint64_t dim[3] = {(cuuint64_t)wide, (cuuint64_t)lines, (cuuint64_t)products};
    const int64_t line = lines > 1 ? stride : round_up(wide, 8); /* of one line or product there is no next, but its pitch is looked at */
    const cuuint64_t pitch[2] = {(cuuint64_t)line * 2, (cuuint64_t)(products > 1 ? step : lines * line) * 2};
    const cuuint32_t box[3] = {64, 64, 1}, one[3] = {1, 1, 1};

    return encoder() && encoder()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)p, dim, pitch, box, one,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static int maps(const struct product *p, CUtensorMap *a, CUtensorMap *b)
{
    int tn = p->form == CAIRN_TN, nt = p->form == CAIRN_NT, grouped = p->offsets != NULL;
    int64_t za = grouped ? 1 : p->batch, zb = grouped && tn ? 1 : p->batch;

    return encode(a, p->a, tn ? p->m : p->k, tn ? p->k : p->m, p->as, za, p->ab) &&
           encode(b, p->b, nt ? p->k : p->n, nt ? p->n : p->k, p->bs, zb, p->bb);
}

int product_wgmma_there(const struct call *c)
{
    return wgmma_there(c->cuda);
}

int product_wgmma_can(const struct call *c, const struct product *p)
{
    const int64_t most = (int64_t)1 << 30;

    return product_wgmma_there(c) && p->a_bf16 && p->b_bf16 && p->wide && p->m > 0 && p->n > 0 && p->k > 0 && p->m < most &&
           p->n < most && p->k < most && (p->parts == 1 || p->part_k % BK == 0) && encoder();
}

template <int WIDTH, int FORM, int SHARE> static void launch(struct call *c, const struct product *p)
{
    static uint64_t allowed;
    const int blocks = SHARE == SHARE_NONE ? 1 : 2, bytes = RING + 1024 + 256;
    int64_t high = SHARE == SHARE_B ? 2 * HIGH : HIGH, wide = SHARE == SHARE_A ? 2 * WIDTH : WIDTH,
            ragged = p->offsets && FORM != CAIRN_TN;
    int64_t tiles = row_tiles(p, (int)high) * ceil_div(p->n, wide) * (ragged ? 1 : (int64_t)p->batch * p->parts);
    int64_t grid = c->cuda->sms / blocks;
    CUtensorMap a, b;
    cudaLaunchAttribute cluster;
    cudaLaunchConfig_t config = {};

    if (!maps(p, &a, &b)) { /* the copy engine has limits of its own; the definition has none, and the same bits */
        product_mma(c, p, PRODUCT_MMA_TILES - 1);
        return;
    }
    product_allow(c, &allowed, (const void *)wgmma_tiles<WIDTH, FORM, SHARE>, bytes);
    if (!call_ok(c))
        return;
    grid = (tiles < grid ? tiles : grid) * blocks;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = (unsigned)blocks, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.gridDim = dim3((unsigned)grid);
    config.blockDim = dim3(384);
    config.dynamicSmemBytes = (size_t)bytes;
    config.stream = c->stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    call_cuda(c, cudaLaunchKernelEx(&config, wgmma_tiles<WIDTH, FORM, SHARE>, a, b, *p), "wgmma_tiles");
}

#define TILE(i, WIDTH, SHARE)                                                                                                      \
    case i:                                                                                                                        \
        if (p->form == CAIRN_NT)                                                                                                   \
            launch<WIDTH, CAIRN_NT, SHARE>(c, p);                                                                                  \
        else if (p->form == CAIRN_NN)                                                                                              \
            launch<WIDTH, CAIRN_NN, SHARE>(c, p);                                                                                  \
        else                                                                                                                       \
            launch<WIDTH, CAIRN_TN, SHARE == SHARE_A ? SHARE_B : SHARE>(c, p);                                                     \
        break

void product_wgmma(struct call *c, const struct product *p, int tile)
{
    switch (tile) {
        TILE(0, 64, SHARE_NONE);
        TILE(1, 128, SHARE_A);
        TILE(2, 128, SHARE_B);
        TILE(3, 192, SHARE_A);
        TILE(4, 192, SHARE_B);
        TILE(5, 256, SHARE_A);
        TILE(6, 256, SHARE_B);
    }
}

/* attention_heads.cuh - what the passes of attention_heads_bwd share: the job of one call, which tile a block of threads takes, and
 * how operands come into shared memory.
 *
 * Channels of a head lie in shared memory as tiles of 64 (wgmma.cuh): nope 0 .. 127, then rope, then those of v or d_o; zeros where
 * a head has fewer. Tiles of rows begin at multiples of 128 counted from the first row of their sequence, steps at multiples of 64:
 * every order of sums depends on the sequence alone.
 */
#ifndef CAIRN_KERNELS_CUDA_ATTENTION_HEADS_CUH
#define CAIRN_KERNELS_CUDA_ATTENTION_HEADS_CUH

#include "kernel.cuh"
#include "scan.cuh"
#include "wgmma.cuh"

#define HIGH       128        /* rows (keys) of a block of threads, half of them a warpgroup's */
#define STEP       64         /* keys (rows) that it takes at once */
#define LINES      (64 * 128) /* bytes of a tile of 64 lines of 64 channels */
#define NOPE_TILES 2
#define QK_TILES   3 /* nope, rope */
#define V_TILES    2
#define ALL_TILES  (QK_TILES + V_TILES)
#define THREADS    384 /* two warpgroups that multiply, one that brings */
#define LOG2E      1.44269504088896340736f

struct heads_job {
    struct arg q_nope, q_rope, k_nope, k_rope, v, o, d_o, dq, dk_nope, dv;
    const int32_t *start; /* (B) */
    const float *lse;     /* (N, H) */
    float *D;             /* (N, H) scale-free d_o . o */
    float *rope;          /* (N, H, R) what heads give to the rope channels of keys */
    int64_t N;
    int B, H, nope, R, V, longest;
    float scale;
    struct fault *fault;
};

/* Rows row0 .. row0 + len of a sequence, of which a block takes those from `first` on. */
struct span {
    int row0, len, first;
};

#if HAVE_WGMMA

/* Tile `item` of all sequences, in their order, the tiles of one ascending or descending; len 0: there is none. One warp. */
__device__ static inline void span_find(const struct heads_job *k, int item, int descending, struct span *out)
{
    int lane = threadIdx.x % 32, before = 0;

    for (int b0 = 0; b0 < k->B; b0 += 32) {
        int b = b0 + lane, begin = 0, len = 0, tiles, sum, most;

        if (b < k->B) {
            int64_t end = b + 1 < k->B ? k->start[b + 1] : k->N;

            begin = k->start[b];
            if (begin < 0 || end < begin || end > k->N)
                fault_set(k->fault, OP_attention_heads_bwd, FAULT_RUN, b);
            else
                len = (int)(end - begin);
        }
        tiles = (len + HIGH - 1) / HIGH;
        sum = lanes_upto(tiles);
        most = __shfl_sync(0xffffffffu, sum, 31);
        if (item < before + most) {
            int at = __ffs((int)__ballot_sync(0xffffffffu, before + sum > item)) - 1, tile;

            tile = item - before - __shfl_sync(0xffffffffu, sum - tiles, at);
            tiles = __shfl_sync(0xffffffffu, tiles, at);
            begin = __shfl_sync(0xffffffffu, begin, at), len = __shfl_sync(0xffffffffu, len, at);
            if (!lane)
                out->row0 = begin, out->len = len, out->first = (descending ? tiles - 1 - tile : tile) * HIGH;
            return;
        }
        before += most;
    }
    if (!lane)
        out->len = 0;
}

/* Brings 64 rows from row p0 of the span on into tiles of shared memory: nope, rope, values behind each other. THREADS_OF of them: thread t
 * chunk t % 8 of every (THREADS_OF / 8)-th line from t / 8 on. Committed, not waited for. */
template <int THREADS_OF>
__device__ static inline void bring(const struct heads_job *k, const struct span *z, const struct arg *nope, const struct arg *rope,
                                    const struct arg *values, int h, int p0, unsigned char *to)
{
    int line = threadIdx.x % THREADS_OF / 8, chunk = threadIdx.x % 8;
    uint32_t at = shared_address(to) + swizzled(line, chunk);
    const bf16 *from_nope = (const bf16 *)nope->p + h * nope->s[1] + chunk * 8;
    const bf16 *from_values = (const bf16 *)values->p + h * values->s[1] + chunk * 8;
    const bf16 *from_rope = (const bf16 *)rope->p + (rope->ndim == 3 ? h * rope->s[1] : 0) + chunk * 8;

#pragma unroll
    for (int i = 0; i < STEP * 8 / THREADS_OF; i++) {
        int p = p0 + i * (THREADS_OF / 8) + line, there = p < z->len, down = i * (THREADS_OF / 8) * 128;
        int64_t row = z->row0 + (there ? p : 0);

#pragma unroll
        for (int c = 0; c < NOPE_TILES; c++)
            copy16(at + c * LINES + down, from_nope + row * nope->s[0] + c * 64, there && c * 64 + chunk * 8 < k->nope);
        copy16(at + NOPE_TILES * LINES + down, from_rope + row * rope->s[0], there && chunk * 8 < k->R);
#pragma unroll
        for (int c = 0; c < V_TILES; c++)
            copy16(at + (QK_TILES + c) * LINES + down, from_values + row * values->s[0] + c * 64, there && c * 64 + chunk * 8 < k->V);
    }
    copy_commit();
}

/* l = a . b^T over the channels of TILES tiles, ascending: 64 rows of a against 64 of b. Committed, not waited for. */
template <int TILES> __device__ static inline void step_product(float (&l)[32], uint64_t a, uint64_t b)
{
    wgmma_zero(l);
    wgmma_hold(l);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < TILES; c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma<0, 0>(l, a + (c * LINES + i * 32) / 16, b + (c * LINES + i * 32) / 16);
    wgmma_commit();
}

/* Barriers: 64 threads bring into `loaded`; who multiplies gives back, each thread for itself what it read by itself; `ready` is a
 * warpgroup's own. */
struct heads_bars {
    uint64_t loaded[2], unused[2], ready[2];
};

/* One thread. */
__device__ static inline void heads_bars_init(struct heads_bars *b)
{
    for (int i = 0; i < 2; i++) {
        barrier_init(&b->loaded[i], 64);
        barrier_init(&b->unused[i], 256);
        barrier_init(&b->ready[i], 128);
    }
}

/* This thread is through with a buffer, and its warp with what it wrote for it. */
__device__ static inline void give_back(struct heads_bars *b, int buffer)
{
    __syncwarp();
    barrier_arrive(&b->unused[buffer]);
}

#endif

/* Grid of both passes: heads, then tiles at most. */
static inline dim3 heads_grid(const struct heads_job *k)
{
    return dim3((unsigned)k->H, (unsigned)(k->N / HIGH + k->B));
}

void attention_heads_query(struct call *c, const struct heads_job *k); /* dq, D */
void attention_heads_key(struct call *c, const struct heads_job *k);   /* dk_nope, dv, rope; after it */

#endif

/* attention_tile.cuh - what the wgmma kernels of attention share: tiles of 64 (row, head) pairs, and what belongs into one. */
#ifndef CAIRN_KERNELS_CUDA_ATTENTION_TILE_CUH
#define CAIRN_KERNELS_CUDA_ATTENTION_TILE_CUH

#include "attention.cuh"
#include "wgmma.cuh"

#define TILE        64           /* pairs, and places of a block of keys */
#define LINES       (TILE * 128) /* bytes of 64 lines */
#define KEY_TILES   9            /* of 64 channels each: W up to 576 */
#define VALUES      512          /* C */
#define VALUE_TILES (VALUES / 64)
#define GROUP_MOST  16
#define STEP        32           /* what the passes of the backward by position take at once */
#define SMALL       (STEP * 128) /* bytes of 32 lines */
#define LOG2E       1.44269504088896340736f

#if HAVE_WGMMA

/* The rows of a tile: n .. n + rows - 1, pairs ordered by row, then head. rows = 0: another tile has row n, or it is unfit. */
struct plan {
    int rows, seq, pos;   /* pos: of the last row, whose idx is the tile's list of keys */
    int count;            /* of keys in that list */
    int whole;            /* by position: the list is 0 .. pos */
    int masked;           /* by position, and some row does not choose all it sees */
    int each[GROUP_MOST]; /* how many of them row i sees */
};

/* Does row n (any number) go by position? */
__device__ static inline int by_position(const struct attention_job *k, int64_t n)
{
    int b = k->keys.seq[n], p = k->keys.pos[n];

    return b >= 0 && b < k->keys.B && p >= 0 && p < k->reach && k->idx[n * k->T + (p < k->T ? p : k->T - 1)] >= 0;
}

/* Row n goes with row n - 1, if its own key is finite. */
__device__ static inline int follows(const struct attention_job *k, int64_t n)
{
    return n > 0 && n < k->N && k->keys.pos[n] % k->G && k->keys.seq[n] == k->keys.seq[n - 1] &&
           k->keys.pos[n] == k->keys.pos[n - 1] + 1 && by_position(k, n) && by_position(k, n - 1);
}

/* Is there a key at row n's own position, without inf and NaN? A warp. */
__device__ static inline int own_key_finite(const struct attention_job *k, int64_t n)
{
    int64_t row = key_row(&k->keys, k->keys.seq[n], k->keys.pos[n]);
    int bad = row < 0;

    if (!bad)
        for (int w = threadIdx.x % 32 * 8; w < k->W; w += 256) {
            uint4 v = *(const uint4 *)((const bf16 *)k->keys.rows.p + row * k->keys.rows.s[0] + w);
            const uint32_t u[4] = {v.x, v.y, v.z, v.w};

            for (int i = 0; i < 4; i++)
                bad |= (u[i] & 0x7f80u) == 0x7f80u || (u[i] & 0x7f800000u) == 0x7f800000u;
        }
    return !__any_sync(0xffffffffu, bad);
}

/* Of rows n .. n + rows - 1, which go together; rows = 0: of none. One warp. */
__device__ static inline void plan_fill(const struct attention_job *k, int64_t n, int rows, struct plan *out)
{
    int lane = threadIdx.x % 32, pos, count, whole;

    if (!rows || !keys_see(&k->keys, n)) {
        if (!lane)
            out->rows = 0;
        return;
    }
    pos = k->keys.pos[n + rows - 1];
    whole = by_position(k, n);
    count = whole ? pos + 1 : choice_count(&k->keys, k->idx + n * k->T, k->T, pos);
    if (lane < GROUP_MOST)
        out->each[lane] = count - (rows - 1) + lane;
    if (!lane) {
        out->rows = count ? rows : 0, out->seq = k->keys.seq[n], out->pos = pos, out->count = count;
        out->whole = whole, out->masked = whole && pos >= k->T;
    }
}

/* Row n and those that go with it, unless it goes with the one before. One warp. */
__device__ static inline void plan_make(const struct attention_job *k, int64_t n, struct plan *out)
{
    int lane = threadIdx.x % 32, rows = 1;
    unsigned with = k->G > 1 ? __ballot_sync(0xffffffffu, lane < k->G && follows(k, n + lane)) : 0;

    if (with & 1 && own_key_finite(k, n))
        rows = 0;
    while (rows && rows < k->G && with >> rows & 1 && own_key_finite(k, n + rows))
        rows++;
    plan_fill(k, n, rows, out);
}

/* Lists of the rows of a tile that goes by position: are they right? Thread t of `threads` has a part of it. */
__device__ static inline void plan_check(const struct attention_job *k, int64_t n, const struct plan *p, int t, int threads)
{
    for (int i = 0; i < p->rows; i++)
        if (!p->whole)
            choice_end(&k->keys, k->idx + (n + i) * k->T, k->T, p->each[i], 0, t, threads);
        else if (p->each[i] <= k->T)
            choice_end(&k->keys, k->idx + (n + i) * k->T, k->T, p->each[i], 1, t, threads);
}

/* Masks of a tile that has some, and the check of lists behind T. room: rows * words * 8 bytes of shared memory that nobody uses.
 * All threads of the block. */
__device__ static inline void plan_masks(const struct attention_job *k, int64_t n, const struct plan *p, uint32_t *room,
                                         int threads)
{
    for (int i = threadIdx.x; i < p->rows * k->words * 2; i += threads) {
        int each = p->each[i / (k->words * 2)], left = each <= k->T ? each - i % (k->words * 2) * 32 : 0;

        room[i] = left >= 32 ? 0xffffffffu : left > 0 ? (1u << left) - 1 : 0;
    }
    __syncthreads();
    for (int g = 0; g < p->rows; g++) {
        const int32_t *idx = k->idx + (n + g) * k->T;

        if (p->each[g] > k->T)
#pragma unroll 4
            for (int j = threadIdx.x; j < k->T; j += threads) {
                int at = idx[j], before = idx[j ? j - 1 : 0];

                if (choice_fits(&k->keys, at, j, before, p->each[g] - 1))
                    atomicOr(room + g * k->words * 2 + at / 32, 1u << at % 32);
            }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < p->rows * k->words; i += threads)
        k->mask[n * k->words + i] = (uint64_t)room[2 * i + 1] << 32 | room[2 * i];
}

/* Which of the 64 places of block b row g of the tile (any number) chooses. */
__device__ static inline uint64_t plan_places(const struct attention_job *k, int64_t n, const struct plan *p, int g, int b)
{
    int left;

    if (g >= p->rows)
        return 0;
    if (p->masked)
        return k->mask[(n + g) * k->words + b];
    left = p->each[g] - b * 64;
    return left >= 64 ? ~(uint64_t)0 : left > 0 ? ((uint64_t)1 << left) - 1 : 0;
}

/* Row of the key at place j of the tile's list; -1 behind its end. */
__device__ static inline int plan_key(const struct attention_job *k, const struct plan *p, const int32_t *idx, int j)
{
    if (j >= p->count || (!p->whole && !choice_good(&k->keys, idx, j, p->pos)))
        return -1;
    return (int)key_row(&k->keys, p->seq, p->whole ? j : idx[j]);
}

/* Brings the tile's rows of x (N, H, 64 tiles or less), heads h0 .. h0 + heads, into shared memory; zeros elsewhere. All threads of
 * the block; fence and barrier are the caller's. */
__device__ static inline void tile_load(const struct arg *x, int64_t n, int rows, int h0, int heads, int width, int tiles,
                                        unsigned char *to, int threads)
{
    for (int i = threadIdx.x; i < TILE * tiles * 8; i += threads) {
        int r = i / (tiles * 8), c = i % (tiles * 8), g = r / heads, h = r % heads;
        uint4 v = make_uint4(0, 0, 0, 0);

        if (g < rows && c * 8 < width)
            v = *(const uint4 *)((const bf16 *)x->p + (n + g) * x->s[0] + (h0 + h) * x->s[1] + c * 8);
        *(uint4 *)(to + c / 8 * LINES + swizzled(r, c % 8)) = v;
    }
}

/* Pairs of columns of a tile of sums, times f[row half], into rows of x: columns w0 .. w0 + 8 * GROUPS. */
template <int GROUPS>
__device__ static inline void tile_store(const struct arg *x, int64_t n, int rows, int h0, int heads, int w0, int width,
                                         const float *d, float f0, float f1)
{
    int lane = threadIdx.x % 32, r = threadIdx.x % 128 / 32 * 16 + lane / 4;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        int g = (r + 8 * half) / heads, h = (r + 8 * half) % heads;
        bf16 *to = (bf16 *)x->p + (n + g) * x->s[0] + (h0 + h) * x->s[1] + w0 + lane % 4 * 2;

        if (g < rows)
#pragma unroll
            for (int j = 0; j < GROUPS; j++)
                if (w0 + j * 8 < width) /* + 0: a zero without a sign, with whichever rows the tile was shared */
                    *(uint32_t *)(to + j * 8) = bf16_pair(fmaf(d[4 * j + 2 * half], half ? f1 : f0, 0.0f),
                                                          fmaf(d[4 * j + 2 * half + 1], half ? f1 : f0, 0.0f));
    }
}

/* D = d_o . o of each pair, and lse in units of ln 2: a warp a pair, 16 channels a lane. */
__device__ static inline void tile_sums(const struct attention_job *k, int64_t n, int rows, int h0, int heads, float *D, float *lse,
                                        int warps)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    for (int r = warp; r < TILE; r += warps) {
        int g = r / heads, h = h0 + r % heads;
        float sum = 0.0f;

        if (g < rows)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float a[8], b[8];

                ld8((const bf16 *)k->d_o.p + (n + g) * k->d_o.s[0] + h * k->d_o.s[1] + (lane + 32 * i) * 8, 8, 1, a);
                ld8((const bf16 *)k->o.p + (n + g) * k->o.s[0] + h * k->o.s[1] + (lane + 32 * i) * 8, 8, 1, b);
#pragma unroll
                for (int e = 0; e < 8; e++)
                    sum = fmaf(a[e], b[e], sum);
            }
        sum = warp_sum(sum);
        if (!lane) {
            D[r] = sum;
            lse[r] = g < rows ? k->lse[(n + g) * k->H + h] * LOG2E : 0.0f;
        }
    }
}

/* Logits and gains of 64 rows against 32 columns: l = sum over the key channels, dp = over the value channels, ascending. la, lb, da, db:
 * the operands of l and dp, each K-major in tiles of 64 channels; A_TILE, B_TILE: bytes of a tile. */
template <int A_TILE, int B_TILE>
__device__ static inline void logits_and_gains(float (&l)[16], float (&dp)[16], uint64_t la, uint64_t lb, uint64_t da, uint64_t db)
{
    wgmma_zero(l);
    wgmma_zero(dp);
    wgmma_hold(l);
    wgmma_hold(dp);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < KEY_TILES; c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma<0, 0>(l, la + (c * A_TILE + i * 32) / 16, lb + (c * B_TILE + i * 32) / 16);
#pragma unroll
    for (int c = 0; c < VALUE_TILES; c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma<0, 0>(dp, da + (c * A_TILE + i * 32) / 16, db + (c * B_TILE + i * 32) / 16);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(l);
    wgmma_hold(dp);
}

/* Barriers of a pass over steps with two buffers each way: 64 threads of warpgroup 3 bring into `loaded`, warpgroup 0 fills what 1 and 2
 * multiply (full, emptied by their eight warps), and all three give a buffer back (unused, a warp each). */
struct passing {
    uint64_t loaded[2], unused[2], full[2], empty[2];
};

/* One thread. */
__device__ static inline void passing_init(struct passing *b)
{
    for (int i = 0; i < 2; i++) {
        barrier_init(&b->loaded[i], 64);
        barrier_init(&b->unused[i], 12);
        barrier_init(&b->full[i], 128);
        barrier_init(&b->empty[i], 8);
    }
}

#endif

#endif

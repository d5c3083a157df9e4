/* attention_bwd_key.cu - what rows by position give to their keys, with wgmma, for whole chains of rows
 * (attention_rows.cu).
 *
 * A piece of work is 64 keys of a sequence against the rows of a chunk of positions that see them. A block of threads takes one,
 * holds the keys, and walks over the (row, head) pairs of the chunk 32 by 32, rows ascending, heads ascending inside, counted from
 * the chunk's first position; the next pairs are on their way. Four warpgroups:
 *   0     S^T, dP^T (m64n32k16: k q and v d_o, channels ascending); P = exp(S - lse), dl = scale P (dP - D), as bf16 into shared
 *         memory; then the sums dl^T q of channels 512 on (m64n64k16)
 *   1, 2  the sums P^T d_o + dl^T q of 256 channels each (two m64n128k16; pairs ascending, of 32 pairs first those with d_o)
 *   3     brings q, d_o, lse, D
 * Sums of a chunk are added to dk one by one, chunks ascending: who comes too early waits until its turn. Pieces are taken in
 * an order in which all that one waits for are taken before it, so that somebody can always go on. Chunks lie at fixed positions:
 * the order of sums depends on the sequence alone.
 * Floor: 2 H T (2 W + 2 C) flops a row.
 */
#include "attention_tile.cuh"

#define THREADS 512

#if HAVE_WGMMA

struct piece {
    int n0;          /* row of position p0, the first of the chain */
    int p0, base;    /* base: first position of the chunk */
    int lo, hi;      /* positions of its rows that see the keys */
    int first, keys; /* position of the first key, how many */
    int turn, place; /* dk is ours when turn[place] == turn */
    int from, to;    /* steps */
    int64_t row;     /* of the first key */
};

struct room {
    unsigned char key[KEY_TILES][LINES], pair[2][KEY_TILES + VALUE_TILES][SMALL]; /* q, then d_o */
    unsigned char p[2][LINES];                                                    /* chunks 0-3 of a line: P; 4-7: dl */
    float lse[2][STEP], D[2][STEP];
    uint32_t there[2][2][STEP]; /* keys that the pair's row chooses, 32 by 32 */
    struct passing bar;
    uint64_t done;
    struct piece piece;
};

/* The next piece of work; 0 if all are taken. One thread. */
__device__ static int take(const struct attention_job *k, struct piece *z)
{
    int ticket = atomicAdd(k->rows.count + ROWS_TICKET, 1), lo = 0, hi = (int)k->keys.B, Q = k->rows.chunk, p1, c, block;

    if (ticket >= k->rows.item[hi])
        return 0;
    while (hi - lo > 1) { /* item[lo] <= ticket < item[hi] */
        int middle = (lo + hi) / 2;

        if (k->rows.item[middle] <= ticket)
            lo = middle;
        else
            hi = middle;
    }
    z->n0 = k->rows.first[lo];
    z->p0 = k->keys.pos[z->n0], p1 = z->p0 + k->rows.last[lo] - z->n0;
    block = ticket - k->rows.item[lo];
    for (c = z->p0 / Q; block >= chunk_keys(p1, Q, c); c++)
        block -= chunk_keys(p1, Q, c);
    z->first = block * KEY_BLOCK;
    z->base = c * Q;
    z->lo = z->p0 > z->base ? z->p0 : z->base;
    z->lo = z->first > z->lo ? z->first : z->lo;
    z->hi = z->base + Q - 1 < p1 ? z->base + Q - 1 : p1;
    z->keys = z->hi + 1 - z->first < KEY_BLOCK ? z->hi + 1 - z->first : KEY_BLOCK;
    z->turn = c - (z->p0 > z->first ? z->p0 : z->first) / Q;
    z->row = (int64_t)k->keys.start[lo] + z->first;
    z->place = (int)z->row;
    z->from = (z->lo - z->base) * k->H / STEP;
    z->to = ((z->hi + 1 - z->base) * k->H + STEP - 1) / STEP;
    return 1;
}

/* All threads. */
__device__ static inline void load_keys(const struct attention_job *k, struct room *s)
{
    for (int i = threadIdx.x; i < KEY_BLOCK * KEY_TILES * 8; i += THREADS) {
        int r = i / (KEY_TILES * 8), c = i % (KEY_TILES * 8);
        uint4 v = make_uint4(0, 0, 0, 0);

        if (r < s->piece.keys && c * 8 < k->W)
            v = *(const uint4 *)((const bf16 *)k->keys.rows.p + (s->piece.row + r) * k->keys.rows.s[0] + c * 8);
        *(uint4 *)(s->key[0] + c / 8 * LINES + swizzled(r, c % 8)) = v;
    }
}

/* Which of keys 32 half .. of the piece the row at this position, one of the piece's, chooses. */
__device__ static inline uint32_t chosen(const struct attention_job *k, const struct piece *z, int pos, int half)
{
    int left = pos + 1 - z->first - half * 32;

    if (pos >= k->T)
        return ((const uint32_t *)(k->mask + (z->n0 + pos - z->p0) * (int64_t)k->words))[z->first / 32 + half];
    return left >= 32 ? 0xffffffffu : left > 0 ? (1u << left) - 1 : 0;
}

/* Warpgroup 3: 64 threads a buffer; thread t % 64 brings chunk t % 8 of each line of pairs t / 8 + 8 i. */
__device__ static inline void gather(const struct attention_job *k, struct room *s)
{
    const struct piece *z = &s->piece;
    int t = threadIdx.x % 64, buffer = threadIdx.x % 128 / 64, line = t / 8, chunk = t % 8;
    uint32_t to = shared_address(s->pair[buffer]) + swizzled(line, chunk);

    for (int b = buffer; b < z->to - z->from; b += 2) {
        int i0 = (z->from + b) * STEP;

        barrier_wait(&s->bar.unused[buffer], b / 2 % 2 ^ 1);
#pragma unroll
        for (int i = 0; i < STEP / 8; i++) {
            int pair = i0 + i * 8 + line, pos = z->base + pair / k->H, h = pair % k->H, there = pos >= z->lo && pos <= z->hi;
            int64_t n = there ? z->n0 + pos - z->p0 : z->n0;
            const bf16 *q = (const bf16 *)k->q.p + n * k->q.s[0] + h * k->q.s[1] + chunk * 8;
            const bf16 *d_o = (const bf16 *)k->d_o.p + n * k->d_o.s[0] + h * k->d_o.s[1] + chunk * 8;

#pragma unroll
            for (int c = 0; c < KEY_TILES; c++) {
                int good = there && c * 64 + chunk * 8 < k->W;

                copy16(to + c * SMALL + i * 1024, good ? q + c * 64 : q, good);
            }
#pragma unroll
            for (int c = 0; c < VALUE_TILES; c++)
                copy16(to + (KEY_TILES + c) * SMALL + i * 1024, d_o + c * 64, there);
        }
        copy_commit();
        if (t < STEP) {
            int pair = i0 + t, pos = z->base + pair / k->H, there = pos >= z->lo && pos <= z->hi;
            int64_t at = (z->n0 + pos - z->p0) * (int64_t)k->H + pair % k->H;

            s->lse[buffer][t] = there ? k->lse[at] * LOG2E : 0.0f;
            s->D[buffer][t] = there ? k->rows.D[at] : 0.0f;
#pragma unroll
            for (int half = 0; half < 2; half++)
                s->there[buffer][half][t] = there ? chosen(k, z, pos, half) : 0;
        }
        copy_wait<0>();
        fence_for_wgmma();
        barrier_arrive(&s->bar.loaded[buffer]);
    }
}

/* Adds sums of the piece, row r or r + 8, columns w0 + 8 j + .., to dk, when it is our turn. */
template <int GROUPS> __device__ static inline void add(const struct attention_job *k, const struct room *s, int w0, const float *d)
{
    int lane = threadIdx.x % 32, r = threadIdx.x % 128 / 32 * 16 + lane / 4;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        float2 *to = (float2 *)(k->dk + (s->piece.row + r + 8 * half) * k->W + w0 + lane % 4 * 2);

        if (r + 8 * half < s->piece.keys)
#pragma unroll
            for (int j0 = 0; j0 < GROUPS; j0 += 8) {
                float2 x[8];

#pragma unroll
                for (int j = 0; j < 8; j++)
                    if (w0 + (j0 + j) * 8 < k->W)
                        x[j] = load_fresh(to + (j0 + j) * 4);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    if (w0 + (j0 + j) * 8 < k->W)
                        to[(j0 + j) * 4] =
                            make_float2(x[j].x + d[4 * (j0 + j) + 2 * half], x[j].y + d[4 * (j0 + j) + 2 * half + 1]);
            }
    }
}

__device__ static inline void wait_turn(const struct attention_job *k, const struct room *s)
{
    while (*(const volatile int32_t *)(k->rows.turn + s->piece.place) != s->piece.turn)
        ;
    __threadfence();
}

/* Warpgroup 0. */
__device__ static inline void weigh(const struct attention_job *k, struct room *s)
{
    int lane = threadIdx.x % 32, r = threadIdx.x % 128 / 32 * 16 + lane / 4, steps = s->piece.to - s->piece.from;
    uint64_t key = wgmma_operand(shared_address(s->key), 0, 1024);
    float scale = k->scale * LOG2E, sum[32];

    wgmma_zero(sum);
    for (int b = 0; b < steps; b++) {
        int buffer = b % 2, turn = b / 2 % 2;
        uint64_t q = wgmma_operand(shared_address(s->pair[buffer][0]), 0, 1024);
        uint64_t d_o = wgmma_operand(shared_address(s->pair[buffer][KEY_TILES]), 0, 1024);
        float l[16], dp[16];

        barrier_wait(&s->bar.loaded[buffer], turn);
        logits_and_gains<LINES, SMALL>(l, dp, key, q, key, d_o);
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int pair = j * 8 + lane % 4 * 2 + e;
                uint32_t there = s->there[buffer][r / 32][pair] >> r % 32;
                float lse = s->lse[buffer][pair], D = s->D[buffer][pair];

#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int at = 4 * j + 2 * half + e, seen = there >> 8 * half & 1;
                    float p = seen ? exp2_fast(fmaf(l[at], scale, -lse)) : 0.0f;

                    dp[at] = seen ? p * (dp[at] - D) * k->scale : 0.0f;
                    l[at] = p;
                }
            }
        barrier_wait(&s->bar.empty[buffer], turn ^ 1);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                unsigned char *to = s->p[buffer] + lane % 4 * 4;

                *(uint32_t *)(to + swizzled(r + 8 * half, j)) = bf16_pair(l[4 * j + 2 * half], l[4 * j + 2 * half + 1]);
                *(uint32_t *)(to + swizzled(r + 8 * half, 4 + j)) = bf16_pair(dp[4 * j + 2 * half], dp[4 * j + 2 * half + 1]);
            }
        fence_for_wgmma();
        barrier_arrive(&s->bar.full[buffer]);
        if (k->W > VALUES) {
            uint64_t dl = wgmma_operand(shared_address(s->p[buffer]) + 64, 0, 1024);
            uint64_t rest = wgmma_operand(shared_address(s->pair[buffer][VALUE_TILES]), SMALL, 1024);

            barrier_wait(&s->bar.full[buffer], turn);
            wgmma_chain<STEP / 16, 0, 1>(sum, dl, 32, rest, 2048);
        }
        __syncwarp();
        if (!lane)
            barrier_arrive(&s->bar.unused[buffer]);
    }
    wait_turn(k, s);
    add<8>(k, s, VALUES, sum);
    __threadfence();
    barrier_arrive(&s->done);
    if (!threadIdx.x) {
        barrier_wait(&s->done, 0);
        __threadfence();
        *(volatile int32_t *)(k->rows.turn + s->piece.place) = s->piece.turn + 1;
    }
}

/* Warpgroups 1 and 2: channels 256 w .. */
__device__ static inline void sum_pairs(const struct attention_job *k, struct room *s)
{
    int w = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, steps = s->piece.to - s->piece.from;
    float sum[2][64];

    wgmma_zero(sum[0]);
    wgmma_zero(sum[1]);
    for (int b = 0; b < steps; b++) {
        int buffer = b % 2, turn = b / 2 % 2;
        uint64_t p = wgmma_operand(shared_address(s->p[buffer]), 0, 1024);
        uint64_t q = wgmma_operand(shared_address(s->pair[buffer][4 * w]), SMALL, 1024);
        uint64_t d_o = wgmma_operand(shared_address(s->pair[buffer][KEY_TILES + 4 * w]), SMALL, 1024);

        barrier_wait(&s->bar.loaded[buffer], turn);
        barrier_wait(&s->bar.full[buffer], turn);
        wgmma_hold(sum[0]);
        wgmma_hold(sum[1]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < STEP / 16; i++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                wgmma<0, 1>(sum[c], p + i * 32 / 16, d_o + (c * 2 * SMALL + i * 2048) / 16);
#pragma unroll
        for (int i = 0; i < STEP / 16; i++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                wgmma<0, 1>(sum[c], p + (64 + i * 32) / 16, q + (c * 2 * SMALL + i * 2048) / 16);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_hold(sum[0]);
        wgmma_hold(sum[1]);
        __syncwarp();
        if (!lane) {
            barrier_arrive(&s->bar.empty[buffer]);
            barrier_arrive(&s->bar.unused[buffer]);
        }
    }
    wait_turn(k, s);
#pragma unroll
    for (int c = 0; c < 2; c++)
        add<16>(k, s, w * 256 + c * 128, sum[c]);
    __threadfence();
    barrier_arrive(&s->done);
}

#endif

__global__ void __launch_bounds__(THREADS, 1) attention_bwd_key_tiles(const __grid_constant__ struct attention_job k)
{
#if HAVE_WGMMA
    extern __shared__ __align__(1024) uint8_t memory[];
    struct room *s = (struct room *)memory;
    int more = 0, group = threadIdx.x / 128;

    if (!threadIdx.x) {
        more = take(&k, &s->piece);
        passing_init(&s->bar);
        barrier_init(&s->done, 384);
    }
    if (!__syncthreads_or(more))
        return;
    load_keys(&k, s);
    fence_for_wgmma();
    __syncthreads();
    if (group == 3) {
        registers_less<56>();
        gather(&k, s);
    } else if (group == 0) {
        registers_less<120>();
        weigh(&k, s);
    } else {
        registers_more<168>();
        sum_pairs(&k, s);
    }
#endif
}

#define ROOM_BYTES ((KEY_TILES + 2) * LINES + 2 * (KEY_TILES + VALUE_TILES) * SMALL + 8 * STEP * 4 + 9 * 8 + 13 * 4 + 8)
#if HAVE_WGMMA
static_assert(sizeof(struct room) <= ROOM_BYTES, "shared memory");
#endif

void attention_bwd_key(struct call *c, const struct attention_job *k)
{
    /* Pieces, at most: whole chunks, and two broken ones a chain; the keys of chains are not shared. */
    int64_t chains = k->keys.B < k->N ? k->keys.B : k->N, longest = keys_longest(&k->keys);
    int64_t pieces =
        k->N / k->rows.chunk * ceil_div(k->reach < longest ? k->reach : longest, KEY_BLOCK) + 2 * (k->keys.S / KEY_BLOCK + chains);

    if (pieces > INT32_MAX)
        call_fail(c, "%lld pieces of work", (long long)pieces);
    call_cuda(c, cudaFuncSetAttribute(attention_bwd_key_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, ROOM_BYTES),
              "shared memory");
    LAUNCH(c, attention_bwd_key_tiles, (unsigned)pieces, THREADS, ROOM_BYTES, *k);
}

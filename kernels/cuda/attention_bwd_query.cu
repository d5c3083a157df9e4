/* attention_bwd_query.cu - dq of rows by position, with wgmma; and D = d_o . o of their heads, for
 * attention_bwd_key.cu.
 *
 * A block of threads has a tile of 64 (row, head) pairs (attention.cuh says which rows go together), its q and d_o, and walks over
 * the keys 32 by 32, the next of them on their way. Four warpgroups:
 *   0     S, dP (m64n32k16: q k and d_o v, channels ascending); P = exp(S - lse), dl = scale P (dP - D), as bf16 into shared
 *         memory; then dq += dl k of channels 512 on (m64n64k16)
 *   1, 2  dq += dl k of 256 channels each (two m64n128k16, places ascending)
 *   3     brings keys
 *
 * The order of sums is that of attention_bwd_wgmma.cu. Floor: 2 H T (2 W + C) flops a row.
 */
#include "attention_tile.cuh"

#define THREADS 512

#if HAVE_WGMMA

struct room {
    unsigned char q[KEY_TILES][LINES], d_o[VALUE_TILES][LINES], key[2][KEY_TILES][SMALL];
    unsigned char dl[LINES]; /* chunks 0-3 of a line: even blocks; 4-7: odd ones */
    float lse[TILE], D[TILE];
    struct passing bar;
    int64_t base; /* key row of position 0 */
    struct plan plan;
};

/* The tile that begins with row n; one warp. */
__device__ static void plan_tile(const struct attention_job *k, int64_t n, struct room *s)
{
    int lane = threadIdx.x % 32, rows = 1, pos;
    unsigned with = __ballot_sync(0xffffffffu, lane && lane < k->G && n + lane < k->N && k->rows.is[n + lane] & ROW_JOINED);
    int good = keys_see(&k->keys, n) && key_row(&k->keys, k->keys.seq[n], 0) >= 0;

    while (rows < k->G && with >> rows & 1)
        rows++;
    pos = k->keys.pos[n];
    if (lane < GROUP_MOST)
        s->plan.each[lane] = pos + 1 + lane;
    if (!lane) {
        s->plan.rows = good ? rows : 0, s->plan.seq = k->keys.seq[n], s->plan.pos = pos + rows - 1, s->plan.count = pos + rows;
        s->plan.whole = 1, s->plan.masked = pos + rows > k->T;
        s->base = good ? k->keys.start[s->plan.seq] : 0;
    }
}

/* Warpgroup 3: 64 threads a buffer; thread t % 64 brings chunk t % 8 of each line of keys t / 8 + 8 i. */
__device__ static inline void gather(const struct attention_job *k, int blocks, struct room *s)
{
    int t = threadIdx.x % 64, buffer = threadIdx.x % 128 / 64, line = t / 8, chunk = t % 8;
    const bf16 *keys = (const bf16 *)k->keys.rows.p + s->base * k->keys.rows.s[0] + chunk * 8;
    uint32_t to = shared_address(s->key[buffer]) + swizzled(line, chunk);

    for (int b = buffer; b < blocks; b += 2) {
        barrier_wait(&s->bar.unused[buffer], b / 2 % 2 ^ 1);
#pragma unroll
        for (int i = 0; i < STEP / 8; i++) {
            int p = b * STEP + i * 8 + line, there = p < s->plan.count;
            const bf16 *from = keys + (there ? p : 0) * k->keys.rows.s[0];

#pragma unroll
            for (int c = 0; c < KEY_TILES; c++) {
                int good = there && c * 64 + chunk * 8 < k->W;

                copy16(to + c * SMALL + i * 1024, good ? from + c * 64 : keys, good);
            }
        }
        copy_commit();
        copy_wait<0>();
        fence_for_wgmma();
        barrier_arrive(&s->bar.loaded[buffer]);
    }
}

/* Warpgroup 0. */
__device__ static inline void weigh(const struct attention_job *k, int64_t n, int h0, int heads, int blocks, struct room *s)
{
    int lane = threadIdx.x % 32, r = threadIdx.x % 128 / 32 * 16 + lane / 4, g[2];
    uint64_t q = wgmma_operand(shared_address(s->q), 0, 1024), d_o = wgmma_operand(shared_address(s->d_o), 0, 1024);
    float scale = k->scale * LOG2E, lse[2], D[2], dq[32];

#pragma unroll
    for (int half = 0; half < 2; half++) {
        g[half] = (r + 8 * half) / heads;
        lse[half] = s->lse[r + 8 * half], D[half] = s->D[r + 8 * half];
    }
    wgmma_zero(dq);
    for (int b = 0; b < blocks; b++) {
        int buffer = b % 2, turn = b / 2 % 2;
        uint64_t key = wgmma_operand(shared_address(s->key[buffer]), 0, 1024);
        uint64_t there[2] = {plan_places(k, n, &s->plan, g[0], b / 2) >> b % 2 * STEP,
                             plan_places(k, n, &s->plan, g[1], b / 2) >> b % 2 * STEP};
        float l[16], dp[16];

        barrier_wait(&s->bar.loaded[buffer], turn);
        logits_and_gains<LINES, SMALL>(l, dp, q, key, d_o, key);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t mine = (uint32_t)there[half] >> lane % 4 * 2;

#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int at = 4 * j + 2 * half + e, seen = mine >> (j * 8 + e) & 1;
                    float p = seen ? exp2_fast(fmaf(l[at], scale, -lse[half])) : 0.0f;

                    dp[at] = seen ? p * (dp[at] - D[half]) * k->scale : 0.0f;
                }
        }
        barrier_wait(&s->bar.empty[buffer], turn ^ 1);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                *(uint32_t *)(s->dl + swizzled(r + 8 * half, buffer * 4 + j) + lane % 4 * 4) =
                    bf16_pair(dp[4 * j + 2 * half], dp[4 * j + 2 * half + 1]);
        fence_for_wgmma();
        barrier_arrive(&s->bar.full[buffer]);
        if (k->W > VALUES) {
            uint64_t dl = wgmma_operand(shared_address(s->dl) + buffer * 64, 0, 1024);
            uint64_t rest = wgmma_operand(shared_address(s->key[buffer][VALUE_TILES]), SMALL, 1024);

            barrier_wait(&s->bar.full[buffer], turn);
            wgmma_chain<STEP / 16, 0, 1>(dq, dl, 32, rest, 2048);
        }
        __syncwarp();
        if (!lane)
            barrier_arrive(&s->bar.unused[buffer]);
    }
    tile_store<8>(&k->dq, n, s->plan.rows, h0, heads, VALUES, k->W, dq, 1.0f, 1.0f);
}

/* Warpgroups 1 and 2: channels 256 w .. */
__device__ static inline void sum_keys(const struct attention_job *k, int64_t n, int h0, int heads, int blocks, struct room *s)
{
    int w = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
    float dq[2][64];

    plan_check(k, n, &s->plan, threadIdx.x - 128, 256); /* while the first keys are on their way */
    wgmma_zero(dq[0]);
    wgmma_zero(dq[1]);
    for (int b = 0; b < blocks; b++) {
        int buffer = b % 2, turn = b / 2 % 2;
        uint64_t dl = wgmma_operand(shared_address(s->dl) + buffer * 64, 0, 1024);
        uint64_t key = wgmma_operand(shared_address(s->key[buffer][4 * w]), SMALL, 1024);

        barrier_wait(&s->bar.loaded[buffer], turn);
        barrier_wait(&s->bar.full[buffer], turn);
        wgmma_hold(dq[0]);
        wgmma_hold(dq[1]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < STEP / 16; i++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                wgmma<0, 1>(dq[c], dl + i * 32 / 16, key + (c * 2 * SMALL + i * 2048) / 16);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_hold(dq[0]);
        wgmma_hold(dq[1]);
        __syncwarp();
        if (!lane) {
            barrier_arrive(&s->bar.empty[buffer]);
            barrier_arrive(&s->bar.unused[buffer]);
        }
    }
#pragma unroll
    for (int c = 0; c < 2; c++)
        tile_store<16>(&k->dq, n, s->plan.rows, h0, heads, w * 256 + c * 128, k->W, dq[c], 1.0f, 1.0f);
}

#endif

__global__ void __launch_bounds__(THREADS, 1) attention_bwd_query_tiles(const __grid_constant__ struct attention_job k)
{
#if HAVE_WGMMA
    extern __shared__ __align__(1024) uint8_t memory[];
    struct room *s = (struct room *)memory;
    int tile = k.rows.count[ROWS_TILES] - 1 - (int)blockIdx.x, blocks, group = threadIdx.x / 128; /* the longest first */
    int h0 = blockIdx.y * TILE, heads = k.H - h0 < TILE ? k.H - h0 : TILE;
    int64_t n;

    if (tile < 0)
        return;
    n = k.rows.tile[tile];
    if (threadIdx.x < 32)
        plan_tile(&k, n, s);
    if (threadIdx.x == 32)
        passing_init(&s->bar);
    __syncthreads();
    if (!s->plan.rows)
        return;
    tile_load(&k.q, n, s->plan.rows, h0, heads, k.W, KEY_TILES, s->q[0], THREADS);
    tile_load(&k.d_o, n, s->plan.rows, h0, heads, VALUES, VALUE_TILES, s->d_o[0], THREADS);
    tile_sums(&k, n, s->plan.rows, h0, heads, s->D, s->lse, THREADS / 32);
    if (s->plan.masked)
        plan_masks(&k, n, &s->plan, (uint32_t *)s->dl, THREADS);
    fence_for_wgmma();
    __syncthreads();
    if (threadIdx.x < TILE && (int)threadIdx.x / heads < s->plan.rows)
        k.rows.D[(n + threadIdx.x / heads) * k.H + h0 + threadIdx.x % heads] = s->D[threadIdx.x];
    blocks = (s->plan.count + STEP - 1) / STEP;
    if (group == 3) {
        registers_less<56>();
        gather(&k, blocks, s);
    } else if (group == 0) {
        registers_less<120>();
        weigh(&k, n, h0, heads, blocks, s);
    } else {
        registers_more<168>();
        sum_keys(&k, n, h0, heads, blocks, s);
    }
#endif
}

#define ROOM_BYTES ((KEY_TILES + VALUE_TILES + 1) * LINES + 2 * KEY_TILES * SMALL + 2 * TILE * 4 + 8 * 8 + 8 + 4 * (6 + GROUP_MOST))
#if HAVE_WGMMA
static_assert(sizeof(struct room) <= ROOM_BYTES, "shared memory");
#endif

void attention_bwd_query(struct call *c, const struct attention_job *k)
{
    dim3 grid((unsigned)k->N, (unsigned)ceil_div(k->H, TILE));

    call_cuda(c, cudaFuncSetAttribute(attention_bwd_query_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, ROOM_BYTES),
              "shared memory");
    LAUNCH(c, attention_bwd_query_tiles, grid, THREADS, ROOM_BYTES, *k);
}

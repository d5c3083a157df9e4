/* attention_wgmma.cu - sparse attention with wgmma: bf16, values of 512 channels, keys of up to 576, any number of heads.
 *
 * A block of threads has a tile of 64 (row, head) pairs (attention.cuh says which rows go together) and walks over its list of
 * keys in blocks of 64. Four warpgroups:
 *   0     logits of 64 keys (wgmma m64n64k16, channels ascending), running maximum, P as bf16 into shared memory
 *   1, 2  sums of P v, 256 channels each (m64n256k16, places ascending), rescaled where a maximum rose
 *   3     gathers keys, two blocks ahead at most (cp.async, 64 threads a buffer)
 * All orders of sums depend on the row's form and choice alone: the same bits for a row alone, in a prompt, packed or paged.
 * Sum of exp: each thread adds its 16 of 64 places a block in order, four threads are added at the end.
 *
 * Floor: 2 H T (W + C) flops a row; T W 2 bytes a row through L2: 121 flops a byte at 64 heads.
 */
#include "attention_tile.cuh"

#define THREADS 512

#if HAVE_WGMMA

struct room {
    unsigned char q[KEY_TILES][LINES], key[2][KEY_TILES][LINES], p[LINES];
    float alpha[TILE], inverse[TILE];
    uint64_t loaded[2], unused[2], known[2], p_full, p_empty, done;
    int row[2][2][TILE]; /* rows of the keys of a block that comes into a buffer: of this one and the next */
    struct plan plan;
};

/* Warpgroup 3. 64 threads a buffer: thread t finds the row of key t of blocks t / 64, t / 64 + 2, ..., while the block before is on
 * its way, and brings chunk t % 8 of each line of keys t / 8 + 8 i. */
__device__ static inline void gather(const struct attention_job *k, int64_t n, int blocks, struct room *s)
{
    int t = threadIdx.x % 64, buffer = threadIdx.x % 128 / 64, line = t / 8, chunk = t % 8;
    const int32_t *idx = k->idx + (n + s->plan.rows - 1) * k->T;
    const bf16 *keys = (const bf16 *)k->keys.rows.p + chunk * 8;
    uint32_t to = shared_address(s->key[buffer]) + swizzled(line, chunk);
    int found = plan_key(k, &s->plan, idx, buffer * TILE + t);

    for (int b = buffer, turn = 0; b < blocks; b += 2, turn ^= 1) {
        int *row = s->row[buffer][turn], j = (b + 2) * TILE + t, p = -1, before = -1;

        row[t] = found;
        barrier_arrive(&s->known[buffer]);
        if (j < s->plan.count && !s->plan.whole)
            p = idx[j], before = idx[j - 1]; /* looked at when the copies are on their way */
        barrier_wait(&s->known[buffer], turn);
        barrier_wait(&s->unused[buffer], turn ^ 1);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int r = row[i * 8 + line];
            const bf16 *from = keys + (r < 0 ? 0 : r) * k->keys.rows.s[0];

#pragma unroll
            for (int c = 0; c < KEY_TILES; c++)
                copy16(to + c * LINES + i * 1024, c * 64 + chunk * 8 < k->W ? from + c * 64 : keys,
                       r >= 0 && c * 64 + chunk * 8 < k->W);
        }
        copy_commit();
        if (j >= s->plan.count)
            found = -1;
        else if (s->plan.whole)
            found = (int)key_row(&k->keys, s->plan.seq, j);
        else
            found = choice_fits(&k->keys, p, j, before, s->plan.pos) ? (int)key_row(&k->keys, s->plan.seq, p) : -1;
        copy_wait<0>();
        fence_for_wgmma();
        barrier_arrive(&s->loaded[buffer]);
    }
}

/* Warpgroup 0. */
__device__ static inline void weigh(const struct attention_job *k, int64_t n, int h0, int heads, int blocks, struct room *s)
{
    int lane = threadIdx.x % 32, r = threadIdx.x % 128 / 32 * 16 + lane / 4, g[2];
    float most[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f}, scale = k->scale * LOG2E;
    uint64_t q = wgmma_operand(shared_address(s->q), 0, 1024);

#pragma unroll
    for (int half = 0; half < 2; half++) /* pairs that are none take a row's places, lest they have no key at all */
        g[half] = (r + 8 * half) / heads < s->plan.rows ? (r + 8 * half) / heads : 0;
    for (int b = 0; b < blocks; b++) {
        uint64_t key = wgmma_operand(shared_address(s->key[b % 2]), 0, 1024);
        uint64_t there[2] = {plan_places(k, n, &s->plan, g[0], b), plan_places(k, n, &s->plan, g[1], b)};
        float l[32], alpha[2];

        barrier_wait(&s->loaded[b % 2], b / 2 % 2);
        wgmma_zero(l);
        wgmma_hold(l);
        wgmma_fence();
#pragma unroll
        for (int c = 0; c < KEY_TILES; c++) /* behind W: zeros */
#pragma unroll
            for (int i = 0; i < 4; i++)
                wgmma<0, 0>(l, q + (c * LINES + i * 32) / 16, key + (c * LINES + i * 32) / 16);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_hold(l);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float now = most[half], sum = 0.0f, shift;
            uint64_t mine = there[half] >> lane % 4 * 2;

#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float *x = l + 4 * j + 2 * half + e;

                    if (!(mine >> (j * 8 + e) & 1))
                        *x = -INFINITY;
                    now = fmaxf(now, *x);
                }
            now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
            now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
            alpha[half] = most[half] == now ? 1.0f : exp2_fast((most[half] - now) * scale);
            shift = now == -INFINITY ? 0.0f : now * scale; /* none chosen so far: P = 0 */
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float *x = l + 4 * j + 2 * half + e;

                    *x = exp2_fast(fmaf(*x, scale, -shift));
                    sum += *x;
                }
            most[half] = now;
            total[half] = fmaf(total[half], alpha[half], sum);
        }
        barrier_wait(&s->p_empty, b % 2 ^ 1);
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int j = 0; j < 8; j++)
                *(uint32_t *)(s->p + swizzled(r + 8 * half, j) + lane % 4 * 4) =
                    bf16_pair(l[4 * j + 2 * half], l[4 * j + 2 * half + 1]);
            if (lane % 4 == 0)
                s->alpha[r + 8 * half] = alpha[half];
        }
        fence_for_wgmma();
        barrier_arrive(&s->p_full);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int g = (r + 8 * half) / heads, h = (r + 8 * half) % heads;

        total[half] += __shfl_xor_sync(0xffffffffu, total[half], 1);
        total[half] += __shfl_xor_sync(0xffffffffu, total[half], 2);
        if (lane % 4 == 0) {
            s->inverse[r + 8 * half] = 1.0f / total[half];
            if (g < s->plan.rows)
                k->lse[(n + g) * k->H + h0 + h] = fmaf(most[half], k->scale, logf(total[half]));
        }
    }
    barrier_arrive(&s->done);
}

/* Warpgroups 1 and 2: channels 256 w .. */
__device__ static inline void sum_values(const struct attention_job *k, int64_t n, int h0, int heads, int blocks, struct room *s)
{
    int w = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, r = threadIdx.x % 128 / 32 * 16 + lane / 4;
    uint64_t p = wgmma_operand(shared_address(s->p), 0, 1024);
    float o[2][64]; /* two products of 128 channels */

    plan_check(k, n, &s->plan, threadIdx.x - 128, 256); /* while the first keys are on their way */
    wgmma_zero(o[0]);
    wgmma_zero(o[1]);
    for (int b = 0; b < blocks; b++) {
        uint64_t v = wgmma_operand(shared_address(s->key[b % 2][4 * w]), LINES, 1024);
        float a0, a1;

        barrier_wait(&s->loaded[b % 2], b / 2 % 2);
        barrier_wait(&s->p_full, b % 2);
        a0 = a1 = 0.0f;
        if (lane % 4 == 0) /* who reads gives back: eight lanes, the other three of each four have it from them */
            a0 = s->alpha[r], a1 = s->alpha[r + 8];
        a0 = __shfl_sync(0xffffffffu, a0, lane & ~3);
        a1 = __shfl_sync(0xffffffffu, a1, lane & ~3);
        if (__any_sync(0xffffffffu, a0 != 1.0f || a1 != 1.0f))
#pragma unroll
            for (int i = 0; i < 128; i++)
                o[i / 64][i % 64] *= i & 2 ? a1 : a0;
        wgmma_hold(o[0]);
        wgmma_hold(o[1]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                wgmma<0, 1>(o[c], p + i * 32 / 16, v + (c * 2 * LINES + i * 2048) / 16);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_hold(o[0]);
        wgmma_hold(o[1]);
        __syncwarp();
        if (lane % 4 == 0)
            barrier_arrive(&s->p_empty);
        if (!lane)
            barrier_arrive(&s->unused[b % 2]);
    }
    barrier_wait(&s->done, 0);
#pragma unroll
    for (int c = 0; c < 2; c++)
        tile_store<16>(&k->o, n, s->plan.rows, h0, heads, w * 256 + c * 128, VALUES, o[c], s->inverse[r], s->inverse[r + 8]);
}

#endif

__global__ void __launch_bounds__(THREADS, 1) attention_tiles(const __grid_constant__ struct attention_job k)
{
#if HAVE_WGMMA
    extern __shared__ __align__(1024) uint8_t memory[];
    struct room *s = (struct room *)memory;
    struct attention_tile tile = {(int32_t)(k.N - 1 - blockIdx.x), 0}; /* last positions first: they take longest */
    int h0 = blockIdx.y * TILE, heads = k.H - h0 < TILE ? k.H - h0 : TILE, blocks, group = threadIdx.x / 128;
    int64_t n;

    if (k.tiles)
        tile = k.tiles[blockIdx.x];
    n = tile.n;
    if (n < 0)
        return;
    if (k.tiles) /* while its plan is made */
        tile_load(&k.q, n, tile.rows, h0, heads, k.W, KEY_TILES, s->q[0], THREADS);
    if (threadIdx.x < 32) {
        if (k.tiles)
            plan_fill(&k, n, tile.rows, &s->plan);
        else
            plan_make(&k, n, &s->plan);
    }
    if (threadIdx.x == 32) {
        for (int i = 0; i < 2; i++) {
            barrier_init(&s->loaded[i], 64);
            barrier_init(&s->unused[i], 8);
            barrier_init(&s->known[i], 64);
        }
        barrier_init(&s->p_full, 128);
        barrier_init(&s->p_empty, 64);
        barrier_init(&s->done, 128);
    }
    __syncthreads();
    if (!s->plan.rows)
        return;
    if (!k.tiles)
        tile_load(&k.q, n, s->plan.rows, h0, heads, k.W, KEY_TILES, s->q[0], THREADS);
    if (s->plan.masked)
        plan_masks(&k, n, &s->plan, (uint32_t *)s->p, THREADS);
    fence_for_wgmma();
    __syncthreads();
    blocks = (s->plan.count + TILE - 1) / TILE;
    if (group == 3) {
        registers_less<56>();
        gather(&k, n, blocks, s);
    } else if (group == 0) {
        registers_less<120>();
        weigh(&k, n, h0, heads, blocks, s);
    } else {
        registers_more<168>();
        sum_values(&k, n, h0, heads, blocks, s);
    }
#endif
}

#define ROOM_BYTES (KEY_TILES * LINES * 3 + LINES + 6 * TILE * 4 + 9 * 8 + 4 * (6 + GROUP_MOST))
#if HAVE_WGMMA
static_assert(sizeof(struct room) <= ROOM_BYTES + 8, "shared memory");
#endif

int attention_wgmma_takes(const struct call *c, const struct attention_job *k)
{
    return wgmma_there(c->cuda) && k->q.type == CAIRN_BF16 && k->C == VALUES && k->W % 8 == 0 && k->W <= 64 * KEY_TILES &&
           k->scale > 0 && k->keys.S <= INT32_MAX && arg_align(&k->q) == 16 && arg_align(&k->keys.rows) == 16 &&
           arg_align(&k->o) == 16 && (!k->d_o.p || (arg_align(&k->d_o) == 16 && arg_align(&k->dq) == 16));
}

void attention_wgmma_form(struct attention_job *k)
{
    k->G = k->H > TILE / 2 ? 1 : TILE / k->H > GROUP_MOST ? GROUP_MOST : TILE / k->H;
    k->reach = k->G > 1 && k->T <= 2048 ? 2 * k->T : k->T; /* masks of GROUP_MOST rows fit into LINES bytes */
    k->words = k->reach > k->T ? (k->reach + 63) / 64 : 0;
}

void attention_wgmma(struct call *c, const struct attention_job *k)
{
    dim3 grid((unsigned)k->N, (unsigned)ceil_div(k->H, TILE));

    call_cuda(c, cudaFuncSetAttribute(attention_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, ROOM_BYTES + 8),
              "shared memory");
    LAUNCH(c, attention_tiles, grid, THREADS, ROOM_BYTES + 8, *k);
}

/* attention_wgmma.cu - sparse attention with wgmma: bf16, values of 512 channels, keys of up to 576, any number of heads.
 *
 * A block of threads has a tile of 64 (row, head) pairs (attention.cuh says which rows go together) and walks over its list of
 * keys in blocks of 64. Four warpgroups:
 *   0     logits of 64 keys (wgmma m64n64k16, channels ascending), running maximum, P as bf16 into shared memory
 *   1, 2  sums of P v, 256 channels each (m64n256k16, places ascending), rescaled where a maximum rose
 *   3     gathers keys, two blocks ahead at most (cp.async, 64 threads a buffer)
 * Where there is a list of tiles, a block takes one after the other: warpgroup 3 makes the next tile's plan and brings its q and first keys while
 * the others are still with the last one's. Which block has which tile changes no bit.
 * All orders of sums depend on the row's form and choice alone: the same bits for a row alone, in a prompt, packed or paged.
 * Sum of exp: each thread adds its 16 of 64 places a block in order, four threads are added at the end.
 *
 * Floor: 2 H T (W + C) flops a row; T W 2 bytes a row through L2: 121 flops a byte at 64 heads.
 */
#include "attention_tile.cuh"

#define THREADS 512
#define PLANS   3 /* of a list: this tile's, and of the two behind it: a plan is some five loads that wait for each other */

#if HAVE_WGMMA

struct room {
    unsigned char q[KEY_TILES][LINES], key[2][KEY_TILES][LINES], p[LINES];
    float alpha[TILE], inverse[2][TILE]; /* inverse, done: of every other tile */
    uint64_t loaded[2], unused[2], known[2], p_full, p_empty, done[2];
    uint64_t planned[PLANS], left[PLANS], q_here, q_free; /* of a list */
    int row[2][2][TILE]; /* rows of the keys of a block that comes into a buffer: of this one and the next */
    struct plan plan[PLANS];
    struct attention_tile tile[PLANS];
};

/* What a block of threads has done before this tile: blocks of keys, and tiles. They say which buffer is next, in which phase. */
struct flow {
    int blocks, tiles;
};

/* Brings the tile's rows of q, 128 threads; not waited for. */
__device__ static inline void bring_q(const struct attention_job *k, int64_t n, int rows, int h0, int heads, struct room *s)
{
    uint32_t to = shared_address(s->q[0]);

#pragma unroll 4
    for (int i = threadIdx.x % 128; i < TILE * KEY_TILES * 8; i += 128) {
        int r = i / (KEY_TILES * 8), c = i % (KEY_TILES * 8), g = r / heads, there = g < rows && c * 8 < k->W;
        const bf16 *from = (const bf16 *)k->q.p;

        if (there)
            from += (n + g) * k->q.s[0] + (h0 + r % heads) * k->q.s[1] + c * 8;
        copy16(to + c / 8 * LINES + swizzled(r, c % 8), from, there);
    }
    copy_commit();
}

/* Warpgroup 3. 64 threads a buffer: thread t finds the row of key t of blocks t / 64, t / 64 + 2, ..., while the block before is on
 * its way, and brings chunk t % 8 of each line of keys t / 8 + 8 i. q: that is on its way, too. */
__device__ static inline void gather(const struct attention_job *k, int64_t n, int blocks, const struct plan *plan, struct flow f, int q,
                                     struct room *s)
{
    int t = threadIdx.x % 64, buffer = threadIdx.x % 128 / 64, line = t / 8, chunk = t % 8;
    const int32_t *idx = k->idx + (n + plan->rows - 1) * k->T;
    const bf16 *keys = (const bf16 *)k->keys.rows.p + chunk * 8;
    uint32_t to = shared_address(s->key[buffer]) + swizzled(line, chunk);
    int first = (buffer - f.blocks) & 1, turn = (f.blocks + first) / 2 % 2, found = plan_key(k, plan, idx, first * TILE + t);

    for (int b = first; b < blocks; b += 2, turn ^= 1) {
        int *row = s->row[buffer][turn], j = (b + 2) * TILE + t, p = -1, before = -1;

        row[t] = found;
        barrier_arrive(&s->known[buffer]);
        if (j < plan->count && !plan->whole)
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
        if (j >= plan->count)
            found = -1;
        else if (plan->whole)
            found = (int)key_row(&k->keys, plan->seq, j);
        else
            found = choice_fits(&k->keys, p, j, before, plan->pos) ? (int)key_row(&k->keys, plan->seq, p) : -1;
        copy_wait<0>();
        fence_for_wgmma();
        barrier_arrive(&s->loaded[buffer]);
        if (q)
            barrier_arrive(&s->q_here);
        q = 0;
    }
    if (q) {
        copy_wait<0>();
        fence_for_wgmma();
        barrier_arrive(&s->q_here);
    }
}

/* Warpgroup 0. */
__device__ static inline void weigh(const struct attention_job *k, int64_t n, int h0, int heads, int blocks, const struct plan *plan, struct flow f,
                                    int q_given, struct room *s)
{
    int lane = threadIdx.x % 32, r = threadIdx.x % 128 / 32 * 16 + lane / 4, g[2];
    float most[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f}, scale = k->scale * LOG2E;
    uint64_t q = wgmma_operand(shared_address(s->q), 0, 1024);

    if (q_given)
        barrier_wait(&s->q_here, f.tiles % 2);
#pragma unroll
    for (int half = 0; half < 2; half++) /* pairs that are none take a row's places, lest they have no key at all */
        g[half] = (r + 8 * half) / heads < plan->rows ? (r + 8 * half) / heads : 0;
    for (int b = 0; b < blocks; b++) {
        int at = f.blocks + b, buffer = at % 2;
        uint64_t key = wgmma_operand(shared_address(s->key[buffer]), 0, 1024);
        uint64_t there[2] = {plan_places(k, n, plan, g[0], b), plan_places(k, n, plan, g[1], b)};
        float l[32], alpha[2];

        barrier_wait(&s->loaded[buffer], at / 2 % 2);
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
        if (q_given && b + 1 == blocks)
            barrier_arrive(&s->q_free);
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
        barrier_wait(&s->p_empty, at % 2 ^ 1);
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
            s->inverse[f.tiles % 2][r + 8 * half] = 1.0f / total[half];
            if (g < plan->rows)
                k->lse[(n + g) * k->H + h0 + h] = fmaf(most[half], k->scale, logf(total[half]));
        }
    }
    barrier_arrive(&s->done[f.tiles % 2]);
}

/* Warpgroups 1 and 2: channels 256 w .. */
__device__ static inline void sum_values(const struct attention_job *k, int64_t n, int h0, int heads, int blocks, const struct plan *plan,
                                         struct flow f, struct room *s)
{
    int w = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, r = threadIdx.x % 128 / 32 * 16 + lane / 4;
    uint64_t p = wgmma_operand(shared_address(s->p), 0, 1024);
    float o[2][64], inverse[2] = {0.0f, 0.0f}; /* o: two products of 128 channels */

    plan_check(k, n, plan, threadIdx.x - 128, 256); /* while the first keys are on their way */
    wgmma_zero(o[0]);
    wgmma_zero(o[1]);
    for (int b = 0; b < blocks; b++) {
        int at = f.blocks + b, buffer = at % 2;
        uint64_t v = wgmma_operand(shared_address(s->key[buffer][4 * w]), LINES, 1024);
        float a0, a1;

        barrier_wait(&s->loaded[buffer], at / 2 % 2);
        barrier_wait(&s->p_full, at % 2);
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
            barrier_arrive(&s->unused[buffer]);
    }
    barrier_wait(&s->done[f.tiles % 2], f.tiles / 2 % 2);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (lane % 4 == 0) /* as alpha: given back with the next block's */
            inverse[half] = s->inverse[f.tiles % 2][r + 8 * half];
        inverse[half] = __shfl_sync(0xffffffffu, inverse[half], lane & ~3);
    }
#pragma unroll
    for (int c = 0; c < 2; c++)
        tile_store<16>(&k->o, n, plan->rows, h0, heads, w * 256 + c * 128, VALUES, o[c], inverse[0], inverse[1]);
}

/* One thread. */
__device__ static inline void room_init(struct room *s)
{
    for (int i = 0; i < 2; i++) {
        barrier_init(&s->loaded[i], 64);
        barrier_init(&s->unused[i], 8);
        barrier_init(&s->known[i], 64);
        barrier_init(&s->done[i], 128);
    }
    for (int i = 0; i < PLANS; i++) {
        barrier_init(&s->planned[i], 32);
        barrier_init(&s->left[i], THREADS);
    }
    barrier_init(&s->p_full, 128);
    barrier_init(&s->p_empty, 64);
    barrier_init(&s->q_here, 128);
    barrier_init(&s->q_free, 128);
}

/* The next tile of the list; n < 0: there is no more. The first warp of warpgroup 3. */
__device__ static inline void plan_next(const struct attention_job *k, struct plan *plan, struct attention_tile *tile)
{
    int lane = threadIdx.x % 32, ticket = lane ? 0 : atomicAdd(k->ticket, 1);
    struct attention_tile now = {-1, 0};

    ticket = __shfl_sync(0xffffffffu, ticket, 0);
    if (ticket < k->N)
        now = k->tiles[ticket];
    if (!lane)
        *tile = now;
    plan_fill(k, now.n, now.n < 0 ? 0 : now.rows, plan);
}

#endif

/* A tile a block. */
__global__ void __launch_bounds__(THREADS, 1) attention_tiles(const __grid_constant__ struct attention_job k)
{
#if HAVE_WGMMA
    extern __shared__ __align__(1024) uint8_t memory[];
    struct room *s = (struct room *)memory;
    int64_t n = k.N - 1 - blockIdx.x; /* last positions first: they take longest */
    int h0 = blockIdx.y * TILE, heads = k.H - h0 < TILE ? k.H - h0 : TILE, blocks, group = threadIdx.x / 128;
    const struct plan *plan = &s->plan[0];
    const struct flow none = {0, 0};

    if (threadIdx.x < 32)
        plan_make(&k, n, &s->plan[0]);
    if (threadIdx.x == 32)
        room_init(s);
    __syncthreads();
    if (!plan->rows)
        return;
    tile_load(&k.q, n, plan->rows, h0, heads, k.W, KEY_TILES, s->q[0], THREADS);
    if (plan->masked)
        plan_masks(&k, n, plan, (uint32_t *)s->p, THREADS);
    fence_for_wgmma();
    __syncthreads();
    blocks = (plan->count + TILE - 1) / TILE;
    if (group == 3) {
        registers_less<56>();
        gather(&k, n, blocks, plan, none, 0, s);
    } else if (group == 0) {
        registers_less<120>();
        weigh(&k, n, h0, heads, blocks, plan, none, 0, s);
    } else {
        registers_more<168>();
        sum_values(&k, n, h0, heads, blocks, plan, none, s);
    }
#endif
}

/* The tiles of the list, of all heads; for each warpgroup: WORK(n, blocks, plan, flow) of one tile. */
#define EACH_TILE(WORK)                                                                                                            \
    for (int at = 0;; at++) {                                                                                                      \
        const struct plan *plan = &s->plan[at % PLANS];                                                                            \
        int64_t n;                                                                                                                 \
                                                                                                                                   \
        barrier_wait(&s->planned[at % PLANS], at / PLANS % 2);                                                                     \
        n = s->tile[at % PLANS].n;                                                                                                 \
        if (n < 0)                                                                                                                 \
            break;                                                                                                                 \
        if (plan->rows) {                                                                                                          \
            int blocks = (plan->count + TILE - 1) / TILE;                                                                          \
                                                                                                                                   \
            WORK;                                                                                                                  \
            f.blocks += blocks, f.tiles++;                                                                                         \
        }                                                                                                                          \
        barrier_arrive(&s->left[at % PLANS]);                                                                                      \
        NEXT;                                                                                                                      \
    }

__global__ void __launch_bounds__(THREADS, 1) attention_list(const __grid_constant__ struct attention_job k)
{
#if HAVE_WGMMA
    extern __shared__ __align__(1024) uint8_t memory[];
    struct room *s = (struct room *)memory;
    int group = threadIdx.x / 128;
    struct flow f = {0, 0};

    if (!threadIdx.x)
        room_init(s);
    __syncthreads();
    if (group == 3) {
        registers_less<56>();
        for (int i = 0; i < PLANS - 1 && threadIdx.x % 128 < 32; i++) {
            plan_next(&k, &s->plan[i], &s->tile[i]);
            barrier_arrive(&s->planned[i]);
        }
#define NEXT                                                                                                                       \
    if (threadIdx.x % 128 < 32) {                                                                                                  \
        int next = at + PLANS - 1, slot = next % PLANS;                                                                            \
                                                                                                                                   \
        barrier_wait(&s->left[slot], next / PLANS % 2 ^ 1);                                                                        \
        plan_next(&k, &s->plan[slot], &s->tile[slot]);                                                                             \
        barrier_arrive(&s->planned[slot]);                                                                                         \
    }
        EACH_TILE({
            barrier_wait(&s->q_free, f.tiles % 2 ^ 1);
            bring_q(&k, n, plan->rows, 0, k.H, s);
            gather(&k, n, blocks, plan, f, 1, s);
        })
#undef NEXT
#define NEXT
    } else if (group == 0) {
        registers_less<120>();
        EACH_TILE(weigh(&k, n, 0, k.H, blocks, plan, f, 1, s))
    } else {
        registers_more<168>();
        EACH_TILE(sum_values(&k, n, 0, k.H, blocks, plan, f, s))
    }
#undef NEXT
#endif
}

#define ROOM_BYTES (KEY_TILES * LINES * 3 + LINES + 7 * TILE * 4 + 18 * 8 + PLANS * 4 * (8 + GROUP_MOST))
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

    if (k->tiles) {
        call_cuda(c, cudaFuncSetAttribute(attention_list, cudaFuncAttributeMaxDynamicSharedMemorySize, ROOM_BYTES + 8), "shared memory");
        LAUNCH(c, attention_list, (unsigned)c->cuda->sms, THREADS, ROOM_BYTES + 8, *k);
        return;
    }
    call_cuda(c, cudaFuncSetAttribute(attention_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, ROOM_BYTES + 8),
              "shared memory");
    LAUNCH(c, attention_tiles, grid, THREADS, ROOM_BYTES + 8, *k);
}

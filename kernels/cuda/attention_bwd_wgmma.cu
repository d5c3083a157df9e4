/* attention_bwd_wgmma.cu - query pass of the backward of sparse attention with wgmma, for rows whose choice is their own: dq, and
 * what each row gives to its keys.
 *
 * A block of threads has up to 64 heads of a row and its list of keys, as in attention_wgmma.cu, in blocks of 64 keys:
 *   gather    all threads
 *   S, dP     warpgroups 0 and 1, 32 keys each (m64n32k16): q k and d_o v, channels ascending; P = exp(S - lse),
 *             dl = scale P (dP - D), both as bf16 into shared memory
 *   dq        += dl k, warpgroup w channels 192 w .. (m64n192k16, places ascending), kept in registers
 *   gives     dl^T q + P^T d_o, the same channels 64 by 64 (m64n64k16, pairs ascending: rows, then heads), to memory as bf16
 * More than 64 heads are several tiles, whose gives are added in order of heads by the key pass.
 * Floor: 2 H T (3 W + 2 C) flops and 2 T W bytes written a row.
 */
#include "attention_tile.cuh"

#define THREADS 384

#if HAVE_WGMMA

struct room {
    unsigned char q[KEY_TILES][LINES], d_o[VALUE_TILES][LINES], key[KEY_TILES][LINES], p[LINES], dl[LINES];
    float lse[TILE], D[TILE]; /* lse in units of ln 2 */
    int row[2][TILE];
    struct plan plan;
};

/* Row of key t of block b, and the note of where it stands. */
__device__ static inline void find_key(const struct attention_job *k, int64_t n, int give, int b, int t, struct room *s)
{
    int j = b * TILE + t, row = plan_key(k, &s->plan, k->idx + (n + s->plan.rows - 1) * k->T, j);

    s->row[b % 2][t] = row;
    if (row >= 0)
        k->slot[(int64_t)row * k->run + give] = (int16_t)j;
}

__device__ static inline void gather(const struct attention_job *k, const int *row, struct room *s)
{
    uint32_t to = shared_address(s->key);

#pragma unroll 4
    for (int i = 0; i < TILE * KEY_TILES * 8 / THREADS; i++) {
        int at = threadIdx.x + i * THREADS, r = at / 8 % TILE, c = at / (8 * TILE), chunk = at % 8, w = c * 64 + chunk * 8;
        int there = row[r] >= 0 && w < k->W;

        copy16(to + c * LINES + swizzled(r, chunk), (const bf16 *)k->keys.rows.p + (there ? row[r] * k->keys.rows.s[0] + w : 0),
               there);
    }
    copy_commit();
    copy_wait<0>();
}

/* Warpgroups 0 and 1: P and dl of 32 keys of block b. */
__device__ static inline void weigh(const struct attention_job *k, int b, const int limit[2], struct room *s)
{
    int w = threadIdx.x / 128, lane = threadIdx.x % 32, r = threadIdx.x % 128 / 32 * 16 + lane / 4;
    uint64_t q = wgmma_operand(shared_address(s->q), 0, 1024), d_o = wgmma_operand(shared_address(s->d_o), 0, 1024);
    uint64_t key = wgmma_operand(shared_address(s->key) + w * LINES / 2, 0, 1024);
    float l[16], dp[16], scale = k->scale * LOG2E;

    logits_and_gains<LINES, LINES>(l, dp, q, key, d_o, key);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float lse = s->lse[r + 8 * half], D = s->D[r + 8 * half];

#pragma unroll
        for (int j = 0; j < 4; j++) {
            float p[2], dl[2];

#pragma unroll
            for (int e = 0; e < 2; e++) {
                int there = b * TILE + w * 32 + j * 8 + lane % 4 * 2 + e < limit[half];

                p[e] = there ? exp2_fast(fmaf(l[4 * j + 2 * half + e], scale, -lse)) : 0.0f;
                dl[e] = there ? p[e] * (dp[4 * j + 2 * half + e] - D) * k->scale : 0.0f;
            }
            *(uint32_t *)(s->p + swizzled(r + 8 * half, w * 4 + j) + lane % 4 * 4) = bf16_pair(p[0], p[1]);
            *(uint32_t *)(s->dl + swizzled(r + 8 * half, w * 4 + j) + lane % 4 * 4) = bf16_pair(dl[0], dl[1]);
        }
    }
}

/* x = dl^T q + (VALUE) P^T d_o: 64 keys, channels 64 c .. */
template <int VALUE> __device__ static inline void gives(uint64_t p, uint64_t dl, int c, const struct room *s, float (&x)[32])
{
    uint64_t q = wgmma_operand(shared_address(s->q[0]) + c * LINES, LINES, 1024);
    uint64_t d_o = wgmma_operand(shared_address(s->d_o[0]) + c * LINES, LINES, 1024);

    wgmma_zero(x);
    wgmma_hold(x);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma<1, 1>(x, dl + i * 2048 / 16, q + i * 2048 / 16);
    if (VALUE)
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma<1, 1>(x, p + i * 2048 / 16, d_o + i * 2048 / 16);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(x);
}

#endif

__global__ void __launch_bounds__(THREADS, 1) attention_bwd_tiles(const __grid_constant__ struct attention_job k)
{
#if HAVE_WGMMA
    extern __shared__ __align__(1024) uint8_t memory[];
    struct room *s = (struct room *)memory;
    int64_t n = k.n0 + blockIdx.x < k.rows.count[ROWS_REST] ? k.rows.rest[k.n0 + blockIdx.x] : -1;
    int w = threadIdx.x / 128, lane = threadIdx.x % 32, r = threadIdx.x % 128 / 32 * 16 + lane / 4, limit[2], blocks;
    int h0 = blockIdx.y * TILE, heads = k.H - h0 < TILE ? k.H - h0 : TILE, at = blockIdx.x * gridDim.y + blockIdx.y;
    bf16 *give = (bf16 *)k.give + (int64_t)at * k.T * k.W;
    float dq[96];

    if (n < 0)
        return;
    if (threadIdx.x < 32)
        plan_make(&k, n, &s->plan);
    __syncthreads();
    if (!s->plan.rows)
        return;
    tile_load(&k.q, n, s->plan.rows, h0, heads, k.W, KEY_TILES, s->q[0], THREADS);
    tile_load(&k.d_o, n, s->plan.rows, h0, heads, VALUES, VALUE_TILES, s->d_o[0], THREADS);
    tile_sums(&k, n, s->plan.rows, h0, heads, s->D, s->lse, THREADS / 32);
    if (threadIdx.x < TILE)
        find_key(&k, n, at, 0, threadIdx.x, s);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int g = (r + 8 * half) / heads;

        limit[half] = g < s->plan.rows ? s->plan.each[g] : 0;
    }
    wgmma_zero(dq);
    blocks = (s->plan.count + TILE - 1) / TILE;
    __syncthreads();
    for (int b = 0; b < blocks; b++) {
        uint64_t p = wgmma_operand(shared_address(s->p), 0, 1024), dl = wgmma_operand(shared_address(s->dl), 0, 1024);
        uint64_t key = wgmma_operand(shared_address(s->key[3 * w]), LINES, 1024);

        gather(&k, s->row[b % 2], s);
        fence_for_wgmma();
        __syncthreads();
        if (w < 2) {
            weigh(&k, b, limit, s);
        } else { /* who has nothing else to do looks ahead */
            if (threadIdx.x < 256 + TILE)
                find_key(&k, n, at, b + 1, threadIdx.x - 256, s);
            if (!b)
                plan_check(&k, n, &s->plan, threadIdx.x - 256, 128);
        }
        fence_for_wgmma();
        __syncthreads();
        wgmma_chain<4, 0, 1>(dq, dl, 32, key, 2048);
#pragma unroll 1
        for (int c = 3 * w; c < 3 * w + 3; c++) {
            float x[32];

            if (c * 64 >= k.W)
                break;
            if (c < VALUE_TILES)
                gives<1>(p, dl, c, s, x);
            else
                gives<0>(p, dl, c, s, x);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int j = b * TILE + r + 8 * half;
                bf16 *to = give + (int64_t)j * k.W + c * 64 + lane % 4 * 2;

                if (j < s->plan.count)
#pragma unroll
                    for (int i = 0; i < 8; i++)
                        if (c * 64 + i * 8 < k.W)
                            *(uint32_t *)(to + i * 8) = bf16_pair(x[4 * i + 2 * half], x[4 * i + 2 * half + 1]);
            }
        }
        __syncthreads();
    }
    if (!(k.rows.is[n] & ROW_ALL)) /* else attention_bwd_query.cu did */
        tile_store<24>(&k.dq, n, s->plan.rows, h0, heads, 192 * w, k.W, dq, 1.0f, 1.0f);
#endif
}

#define ROOM_BYTES (KEY_TILES * LINES * 2 + VALUE_TILES * LINES + 2 * LINES + 4 * TILE * 4 + 4 * (6 + GROUP_MOST))
#if HAVE_WGMMA
static_assert(sizeof(struct room) <= ROOM_BYTES, "shared memory");
#endif

void attention_bwd_wgmma(struct call *c, const struct attention_job *all, int64_t rows)
{
    struct attention_job alone = *all, *k = &alone;
    dim3 grid((unsigned)rows, (unsigned)ceil_div(k->H, TILE));

    k->G = 1, k->reach = k->T; /* what it gives, it gives by its list */
    call_cuda(c, cudaFuncSetAttribute(attention_bwd_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, ROOM_BYTES),
              "shared memory");
    LAUNCH(c, attention_bwd_tiles, grid, THREADS, ROOM_BYTES, *k);
}

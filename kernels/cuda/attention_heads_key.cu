/* attention_heads_key.cu - key pass of attention_heads_bwd (attention_heads.cu): gradients of the keys and values of each head.
 *
 * A block of threads has 128 keys of a head, a warpgroup 64 of them, and walks over the rows that see them, 64 by 64 ascending: S^T
 * = k q, dP^T = v d_o (m64n64k16); P and dl as bf16 through shared memory; dv += P^T d_o (m64n128k16), dk += dl^T q (m64n192k16).
 * Sums of 64 x 320 stay in registers, 160 a thread; P waits for dP as f16, whose rounding (2^-12) is an eighth of that of the bf16
 * that dl becomes.
 */
#include <cuda_fp16.h>

#include "attention_heads.cuh"

#if HAVE_WGMMA

struct room {
    unsigned char mine[2][ALL_TILES][LINES], row[2][ALL_TILES][LINES]; /* k, v of a warpgroup; q, d_o */
    unsigned char p[2][LINES], dl[2][LINES];                           /* a line is a key */
    float lse[2][STEP], D[2][STEP];                                    /* of a buffer's rows */
    struct heads_bars bar;
    struct span span;
};

__device__ static inline uint32_t half_pair(float lo, float hi)
{
    __half2 x = __floats2half2_rn(lo, hi);
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

__device__ static inline float2 half_open(uint32_t u)
{
    __half2 x;

    memcpy(&x, &u, sizeof x);
    return __half22float2(x);
}

/* Columns w0 + 8 j + 2 (lane % 4) .. of a tile of sums to rows of x. */
template <int GROUPS>
__device__ static inline void keys_store(const struct arg *x, const struct span *z, int h, int first, int width, const float *d)
{
    int lane = threadIdx.x % 32, r = threadIdx.x % 128 / 32 * 16 + lane / 4;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        int p = first + r + 8 * half;
        bf16 *to = (bf16 *)x->p + (z->row0 + (int64_t)p) * x->s[0] + h * x->s[1] + lane % 4 * 2;

        if (p < z->len)
#pragma unroll
            for (int j = 0; j < GROUPS; j++)
                if (j * 8 < width)
                    *(uint32_t *)(to + j * 8) = bf16_pair(d[4 * j + 2 * half], d[4 * j + 2 * half + 1]);
    }
}

/* Warpgroup w: keys first + 64 w .. */
__device__ static inline void sum_rows(const struct heads_job *k, int h, int from, int to, struct room *s)
{
    int w = threadIdx.x / 128, lane = threadIdx.x % 32, r = threadIdx.x % 128 / 32 * 16 + lane / 4;
    const struct span *z = &s->span;
    int first = z->first + 64 * w, mine = first / STEP; /* the step with the first row that sees these keys */
    uint64_t key = wgmma_operand(shared_address(s->mine[w][0]), 0, 1024),
             value = wgmma_operand(shared_address(s->mine[w][QK_TILES]), 0, 1024);
    uint64_t p = wgmma_operand(shared_address(s->p[w]), 0, 1024), dl = wgmma_operand(shared_address(s->dl[w]), 0, 1024);
    float scale = k->scale * LOG2E, dv[64], dk[96];
    int turn = 1;

    bring<128>(k, z, &k->k_nope, &k->k_rope, &k->v, h, first, s->mine[w][0]);
    copy_wait<0>();
    fence_for_wgmma();
    barrier_arrive(&s->bar.ready[w]);
    barrier_wait(&s->bar.ready[w], 0);
    wgmma_zero(dv);
    wgmma_zero(dk);
    for (int b = from; b < to; b++) {
        int buffer = (b - from) % 2;
        const float *lse = s->lse[buffer] + lane % 4 * 2, *D = s->D[buffer] + lane % 4 * 2;
        uint64_t q = wgmma_operand(shared_address(s->row[buffer][0]), 0, 1024);
        uint64_t d_o = wgmma_operand(shared_address(s->row[buffer][QK_TILES]), 0, 1024);
        uint64_t q_across = wgmma_operand(shared_address(s->row[buffer][0]), LINES, 1024);
        uint64_t d_o_across = wgmma_operand(shared_address(s->row[buffer][QK_TILES]), LINES, 1024);
        uint32_t kept[16];
        float l[32];

        barrier_wait(&s->bar.loaded[buffer], (b - from) / 2 % 2);
        if (b < mine) {
            give_back(&s->bar, buffer);
            continue;
        }
        step_product<QK_TILES>(l, key, q);
        wgmma_wait<0>();
        wgmma_hold(l);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float2 x = *(const float2 *)(lse + j * 8);

#pragma unroll
            for (int half = 0; half < 2; half++) {
                int i = 4 * j + 2 * half, low = r + 8 * half - j * 8 - lane % 4 * 2; /* seen where the row is not before the key */
                float a = b > mine || low <= 0 ? exp2_fast(fmaf(l[i], scale, -x.x)) : 0.0f;
                float c = b > mine || low <= 1 ? exp2_fast(fmaf(l[i + 1], scale, -x.y)) : 0.0f;

                kept[2 * j + half] = half_pair(a, c);
                *(uint32_t *)(s->p[w] + swizzled(r + 8 * half, j) + lane % 4 * 4) = bf16_pair(a, c);
            }
        }
        step_product<V_TILES>(l, value, d_o);
        wgmma_wait<0>();
        wgmma_hold(l);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float2 x = *(const float2 *)(D + j * 8);

#pragma unroll
            for (int half = 0; half < 2; half++) {
                int i = 4 * j + 2 * half;
                float2 weight = half_open(kept[2 * j + half]);

                *(uint32_t *)(s->dl[w] + swizzled(r + 8 * half, j) + lane % 4 * 4) =
                    bf16_pair(weight.x * (l[i] - x.x) * k->scale, weight.y * (l[i + 1] - x.y) * k->scale);
            }
        }
        fence_for_wgmma();
        barrier_arrive(&s->bar.ready[w]);
        barrier_wait(&s->bar.ready[w], turn);
        turn ^= 1;
        wgmma_hold(dv);
        wgmma_hold(dk);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma<0, 1>(dv, p + i * 32 / 16, d_o_across + i * 2048 / 16);
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma<0, 1>(dk, dl + i * 32 / 16, q_across + i * 2048 / 16);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_hold(dv);
        wgmma_hold(dk);
        give_back(&s->bar, buffer);
    }
    keys_store<16>(&k->dv, z, h, first, k->V, dv);
    keys_store<16>(&k->dk_nope, z, h, first, k->nope, dk);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int at = first + r + 8 * half;
        float *give = k->rope + ((z->row0 + (int64_t)at) * k->H + h) * k->R + lane % 4 * 2;

        if (at < z->len)
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (j * 8 < k->R)
                    *(float2 *)(give + j * 8) = make_float2(dk[64 + 4 * j + 2 * half], dk[64 + 4 * j + 2 * half + 1]);
    }
}

#endif

__global__ void __launch_bounds__(THREADS, 1) attention_heads_key_tiles(const __grid_constant__ struct heads_job k)
{
#if HAVE_WGMMA
    extern __shared__ __align__(1024) uint8_t memory[];
    struct room *s = (struct room *)memory;
    int h = blockIdx.x, from, to;

    if (threadIdx.x < 32)
        span_find(&k, blockIdx.y, 0, &s->span);
    if (threadIdx.x == 32)
        heads_bars_init(&s->bar);
    __syncthreads();
    if (!s->span.len)
        return;
    from = s->span.first / STEP;
    to = s->span.len > k.longest ? from : (s->span.len + STEP - 1) / STEP; /* of a longer one: zeros */
    if (threadIdx.x < 256) {
        registers_more<232>();
        sum_rows(&k, h, from, to, s);
    } else {
        int t = threadIdx.x % 64, buffer = threadIdx.x % 128 / 64;

        registers_less<40>();
        for (int b = from + buffer; b < to; b += 2) {
            int p = b * STEP + t, there = p < s->span.len;
            int64_t at = (s->span.row0 + (int64_t)(there ? p : 0)) * k.H + h;

            barrier_wait(&s->bar.unused[buffer], (b - from) / 2 % 2 ^ 1);
            bring<64>(&k, &s->span, &k.q_nope, &k.q_rope, &k.d_o, h, b * STEP, s->row[buffer][0]);
            s->lse[buffer][t] = there ? k.lse[at] * LOG2E : INFINITY;
            s->D[buffer][t] = there ? k.D[at] : 0.0f;
            copy_wait<0>();
            fence_for_wgmma();
            barrier_arrive(&s->bar.loaded[buffer]);
        }
    }
#endif
}

#define ROOM_BYTES (4 * ALL_TILES * LINES + 4 * LINES + 4 * STEP * 4 + 6 * 8 + 3 * 4 + 4)
#if HAVE_WGMMA
static_assert(sizeof(struct room) <= ROOM_BYTES, "shared memory");
#endif

void attention_heads_key(struct call *c, const struct heads_job *k)
{
    call_cuda(c, cudaFuncSetAttribute(attention_heads_key_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, ROOM_BYTES),
              "shared memory");
    LAUNCH(c, attention_heads_key_tiles, heads_grid(k), THREADS, ROOM_BYTES, *k);
}

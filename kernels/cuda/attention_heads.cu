/* attention_heads.cu - backward of attention in the heads' own space (kernels.h, attention_heads_bwd), with wgmma: the call, and
 * its query pass; the key pass is attention_heads_key.cu. Heads of up to 128 + 64 channels, values of up to 128.
 *
 * The latent form, which sampling and the forward have, takes 576 and 512 channels for each product of a query with a key; once
 * keys and values of each head are made, it is 192 and 128. The price is the two products that make them and give their gradients
 * back, which stand in for those of the latent form.
 *
 * Query pass. A block of threads has 128 rows of a head, q and d_o of them in shared memory, and walks over the keys 64 by 64, the
 * next on their way; a warpgroup has 64 of the rows: S = q k, dP = d_o v (m64n64k16, channels ascending); P = exp(S - lse), dl =
 * scale P (dP - D), as bf16 through shared memory; dq += dl k (m64n192k16, keys ascending). While one warpgroup weighs, the other
 * one multiplies. Key pass. The same with keys and rows exchanged: dv += P^T d_o, dk += dl^T q, rows ascending. S and dP are made
 * again, so that nothing is added by two blocks: no atomics, no turns. What heads give to the rope channels of a key, which all
 * have in common, is added heads ascending by a kernel behind both. Floor: 2 H (2 (nope + R) + V) flops a row and key it sees in
 * the first, 2 H (2 (nope + R) + 2 V) in the second.
 */
#include "attention_heads.cuh"

#if HAVE_WGMMA

struct room {
    unsigned char mine[2][ALL_TILES][LINES], key[2][ALL_TILES][LINES]; /* q, d_o of a warpgroup; k, v */
    unsigned char dl[2][LINES];
    float lse[HIGH], D[HIGH]; /* lse in units of ln 2; inf where there is no row */
    struct heads_bars bar;
    struct span span;
};

/* D and lse of 64 rows from row `first` of the span on: 16 lanes a row, all of a thread's loads under way together. A warpgroup. */
__device__ static inline void row_sums(const struct heads_job *k, const struct span *z, int h, int first, float *D, float *lse)
{
    enum { EACH = 8 };
    int part = threadIdx.x % 16, group = threadIdx.x % 128 / 16;
    struct eight<bf16> o[EACH], d_o[EACH];
    float l[EACH];

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int p = first + i * 8 + group, there = p < z->len && part * 8 < k->V;
        int64_t row = z->row0 + (p < z->len ? p : 0), at = part * 8 < k->V ? part * 8 : 0;

        o[i] = fetch8((const bf16 *)k->o.p + row * k->o.s[0] + h * k->o.s[1] + at);
        d_o[i] = there ? fetch8((const bf16 *)k->d_o.p + row * k->d_o.s[0] + h * k->d_o.s[1] + at) : nothing8((const bf16 *)k->d_o.p);
        l[i] = p < z->len ? k->lse[row * k->H + h] * LOG2E : INFINITY;
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int r = i * 8 + group, p = first + r;
        float sum = 0.0f, a[8], b[8];

        open8(o[i], a);
        open8(d_o[i], b);
#pragma unroll
        for (int e = 0; e < 8; e++)
            sum = fmaf(a[e], b[e], sum);
#pragma unroll
        for (int half = 8; half; half >>= 1)
            sum += __shfl_xor_sync(0xffffffffu, sum, half);
        if (!part) {
            D[r] = p < z->len ? sum : 0.0f, lse[r] = l[i];
            if (p < z->len)
                k->D[(z->row0 + (int64_t)p) * k->H + h] = sum;
        }
    }
}

/* Warpgroup w: rows first + 64 w .. */
__device__ static inline void sum_keys(const struct heads_job *k, int h, int steps, struct room *s)
{
    int w = threadIdx.x / 128, lane = threadIdx.x % 32, r = threadIdx.x % 128 / 32 * 16 + lane / 4;
    const struct span *z = &s->span;
    int first = z->first + 64 * w, mine = first < z->len ? first / STEP + 1 : 0; /* steps whose keys these rows see */
    uint64_t q = wgmma_operand(shared_address(s->mine[w][0]), 0, 1024),
             d_o = wgmma_operand(shared_address(s->mine[w][QK_TILES]), 0, 1024);
    uint64_t weight = wgmma_operand(shared_address(s->dl[w]), 0, 1024);
    float scale = k->scale * LOG2E, lse[2], D[2], dq[96];

    bring<128>(k, z, &k->q_nope, &k->q_rope, &k->d_o, h, first, s->mine[w][0]);
    row_sums(k, z, h, first, s->D + 64 * w, s->lse + 64 * w);
    copy_wait<0>();
    fence_for_wgmma();
    barrier_arrive(&s->bar.ready[w]);
    barrier_wait(&s->bar.ready[w], 0);
#pragma unroll
    for (int half = 0; half < 2; half++)
        lse[half] = s->lse[64 * w + r + 8 * half], D[half] = s->D[64 * w + r + 8 * half];
    wgmma_zero(dq);
    for (int b = 0; b < steps; b++) {
        int buffer = b % 2;
        uint64_t key = wgmma_operand(shared_address(s->key[buffer][0]), 0, 1024);
        uint64_t value = wgmma_operand(shared_address(s->key[buffer][QK_TILES]), 0, 1024);
        uint64_t across = wgmma_operand(shared_address(s->key[buffer][0]), LINES, 1024);
        float l[32], dp[32];

        barrier_wait(&s->bar.loaded[buffer], b / 2 % 2);
        if (b >= mine) {
            give_back(&s->bar, buffer);
            continue;
        }
        step_product<QK_TILES>(l, q, key);
        step_product<V_TILES>(dp, d_o, value);
        wgmma_wait<1>();
        wgmma_hold(l);
#pragma unroll
        for (int i = 0; i < 32; i++) {
            int half = i / 2 % 2, seen = b + 1 < mine || i / 4 * 8 + lane % 4 * 2 + i % 2 <= r + 8 * half;

            l[i] = seen ? exp2_fast(fmaf(l[i], scale, -lse[half])) * k->scale : 0.0f;
        }
        wgmma_wait<0>();
        wgmma_hold(dp);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                int i = 4 * j + 2 * half;

                *(uint32_t *)(s->dl[w] + swizzled(r + 8 * half, j) + lane % 4 * 4) =
                    bf16_pair(l[i] * (dp[i] - D[half]), l[i + 1] * (dp[i + 1] - D[half]));
            }
        fence_for_wgmma();
        barrier_arrive(&s->bar.ready[w]);
        barrier_wait(&s->bar.ready[w], b % 2 ^ 1);
        wgmma_chain<4, 0, 1>(dq, weight, 32, across, 2048);
        give_back(&s->bar, buffer);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int p = first + r + 8 * half;
        bf16 *to = (bf16 *)k->dq.p + (z->row0 + (int64_t)p) * k->dq.s[0] + h * k->dq.s[1] + lane % 4 * 2;

        if (p < z->len)
#pragma unroll
            for (int j = 0; j < 24; j++) {
                int c = j < 16 ? j * 8 : k->nope + (j - 16) * 8;

                if (j < 16 ? c < k->nope : c < k->nope + k->R)
                    *(uint32_t *)(to + c) = bf16_pair(dq[4 * j + 2 * half], dq[4 * j + 2 * half + 1]);
            }
    }
}

#endif

__global__ void __launch_bounds__(THREADS, 1) attention_heads_query_tiles(const __grid_constant__ struct heads_job k)
{
#if HAVE_WGMMA
    extern __shared__ __align__(1024) uint8_t memory[];
    struct room *s = (struct room *)memory;
    int h = blockIdx.x, steps;

    if (threadIdx.x < 32)
        span_find(&k, blockIdx.y, 1, &s->span);
    if (threadIdx.x == 32)
        heads_bars_init(&s->bar);
    __syncthreads();
    if (!s->span.len || s->span.len > k.longest)
        return;
    steps = (s->span.first + HIGH < s->span.len ? s->span.first + HIGH : s->span.len) - 1;
    steps = steps / STEP + 1;
    if (threadIdx.x < 256) {
        registers_more<232>();
        sum_keys(&k, h, steps, s);
    } else {
        int buffer = threadIdx.x % 128 / 64;

        registers_less<40>();
        for (int b = buffer; b < steps; b += 2) {
            barrier_wait(&s->bar.unused[buffer], b / 2 % 2 ^ 1);
            bring<64>(&k, &s->span, &k.k_nope, &k.k_rope, &k.v, h, b * STEP, s->key[buffer][0]);
            copy_wait<0>();
            fence_for_wgmma();
            barrier_arrive(&s->bar.loaded[buffer]);
        }
    }
#endif
}

#define ROOM_BYTES (4 * ALL_TILES * LINES + 2 * LINES + 2 * HIGH * 4 + 6 * 8 + 3 * 4 + 4)
#if HAVE_WGMMA
static_assert(sizeof(struct room) <= ROOM_BYTES, "shared memory");
#endif

void attention_heads_query(struct call *c, const struct heads_job *k)
{
    call_cuda(c, cudaFuncSetAttribute(attention_heads_query_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, ROOM_BYTES),
              "shared memory");
    LAUNCH(c, attention_heads_query_tiles, heads_grid(k), THREADS, ROOM_BYTES, *k);
}

/* to (N, R) += the heads' parts, ascending; a thread a channel. */
__global__ void attention_heads_rope(const float *part, float *to, int64_t N, int H, int R, int64_t stride)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, n = i / R;
    int c = (int)(i % R);
    float sum = 0.0f;

    if (n >= N)
        return;
#pragma unroll 8
    for (int h = 0; h < H; h++)
        sum += part[(n * H + h) * R + c];
    to[n * stride + c] += sum;
}

/* ---- the call ---------------------------------------------------------------------------------------------------------- */

int cairn_attention_heads_fits_cuda(const struct cairn_device *dev, enum cairn_dtype act, int nope, int rope, int v)
{
    return wgmma_there((const struct cuda *)dev->state) && act == CAIRN_BF16 && nope > 0 && nope % 8 == 0 &&
           nope <= 64 * NOPE_TILES && rope > 0 && rope % 8 == 0 && rope <= 64 && v > 0 && v % 8 == 0 && v <= 64 * V_TILES;
}

extern "C" enum cairn_status cairn_attention_heads_bwd_cuda(struct cairn_stream *s, const struct cairn_attention_heads_bwd *a,
                                                            struct cairn_error *err)
{
    struct call c = call_begin("attention_heads_bwd", s, err);
    int64_t N = -1, H = -1, nope = -1, R = -1, V = -1, P = -1, B = -1;
    struct heads_job k = {};
    struct arg lse, start, rope;
    const struct arg *wide[] = {&k.q_nope, &k.q_rope, &k.k_nope, &k.k_rope, &k.v, &k.o, &k.d_o, &k.dq, &k.dk_nope, &k.dv};
    size_t sums;
    char *room;

    k.q_nope = call_arg(&c, "q_nope", &a->q_nope, STRIDED | T_ACT, 3, &N, &H, &nope);
    k.q_rope = call_arg(&c, "q_rope", &a->q_rope, STRIDED | T_ACT, 3, &N, &H, &R);
    k.k_nope = call_arg(&c, "k_nope", &a->k_nope, STRIDED | T_ACT, 3, &N, &H, &nope);
    k.k_rope = call_arg(&c, "k_rope", &a->k_rope, STRIDED | T_ACT, 2, &N, &R);
    k.v = call_arg(&c, "v", &a->v, STRIDED | T_ACT, 3, &N, &H, &V);
    k.o = call_arg(&c, "o", &a->o, STRIDED | T_ACT, 3, &N, &H, &V);
    lse = call_arg(&c, "lse", &a->lse, T_F32, 2, &N, &H);
    k.d_o = call_arg(&c, "d_o", &a->d_o, STRIDED | T_ACT, 3, &N, &H, &V);
    k.dq = call_arg(&c, "dq", &a->dq, OUT | STRIDED | T_ACT, 3, &N, &H, &P);
    k.dk_nope = call_arg(&c, "dk_nope", &a->dk_nope, OUT | STRIDED | T_ACT, 3, &N, &H, &nope);
    rope = call_arg(&c, "dk_rope", &a->dk_rope, OUT | STRIDED | T_F32, 2, &N, &R);
    k.dv = call_arg(&c, "dv", &a->dv, OUT | STRIDED | T_ACT, 3, &N, &H, &V);
    start = call_arg(&c, "start", &a->start, T_I32, 1, &B);
    if (call_ok(&c) && P != nope + R)
        call_fail(&c, "dq has %lld channels, q %lld and %lld", (long long)P, (long long)nope, (long long)R);
    if (call_ok(&c) && !cairn_attention_heads_fits_cuda(&c.cuda->dev, k.q_nope.type, (int)nope, (int)R, (int)V))
        call_fail(&c, "no kernel for heads of %lld and %lld channels, values of %lld", (long long)nope, (long long)R, (long long)V);
    if (call_ok(&c) && (N > INT32_MAX || N / HIGH + B > 65535))
        call_fail(&c, "%lld rows of %lld sequences", (long long)N, (long long)B);
    if (!call_ok(&c) || !N)
        return call_end(&c);
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (arg_align(wide[i]) != 16)
            call_fail(&c, "rows that do not begin at multiples of 16 bytes");
    k.start = i32(&start), k.lse = f32(&lse);
    k.N = N, k.B = (int)B, k.H = (int)H, k.nope = (int)nope, k.R = (int)R, k.V = (int)V;
    k.longest = a->longest, k.scale = a->scale, k.fault = c.cuda->d_fault;
    sums = (size_t)round_up(N * H * (int64_t)sizeof(float), 256);
    room = (char *)call_scratch(&c, sums + (size_t)(N * H * R) * sizeof(float));
    k.D = (float *)room, k.rope = (float *)(room + sums);
    attention_heads_query(&c, &k);
    attention_heads_key(&c, &k);
    LAUNCH(&c, attention_heads_rope, (unsigned)ceil_div(N * R, 256), 256, 0, k.rope, f32(&rope), N, (int)H, (int)R, rope.s[0]);
    return call_end(&c);
}

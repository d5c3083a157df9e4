/* sample.cu - draws one token a row. The numbers of a row are those of head.cuh, so that the log-probability written here is the
 * one that logprob gives, bit for bit.
 *
 * Masses are integers, floor(2^40 e^(x - max)): their sums do not depend on order, so the smallest set that reaches top_p is found
 * by a threshold, 2 bits a pass, and the draw is a walk over ids. A token of less than 2^-40 times the likeliest one is never
 * drawn; the uniform has 23 bits. Block of 32 warps a row. Floor: the row is read twice (16 times more for each of top_k and
 * top_p), from L2 after the first time.
 */
#include "base/philox.h"
#include "head.cuh"
#include "scan.cuh"

#define WARPS   32
#define THREADS (WARPS * 32)
#define UNIT    0x1p40f

struct drawing {
    const float *logits;
    int64_t stride;
    const uint8_t *barred; /* (V) or NULL */
    const int32_t *prompt, *sample, *position;
    int32_t *token;
    float *logprob, *sampled;
    struct head_cut cut;
    int64_t V;
    uint32_t key[2], step;
    float scale, top_p, min_p;
    int top_k, greedy;
};

/* What is kept: x above a threshold, or equal to it with an id up to `last`; one such rule each for top_k and top_p; and a least
 * mass. */
struct rule {
    int32_t key, last;
};
struct kept {
    struct rule k, p;
    float least; /* mass */
};

/* Order of floats as order of integers; -0 counts as 0, NaN as -inf. */
__device__ static inline int32_t order(float x)
{
    int32_t i = __float_as_int(x == x ? __fadd_rn(x, 0.0f) : -INFINITY);

    return i ^ (int32_t)((uint32_t)(i >> 31) >> 1);
}

__device__ static inline int64_t mass_of(float x, float most)
{
    return (int64_t)__fmul_rn(expf(__fsub_rn(x, most)), UNIT);
}

__device__ static inline int keeps(const struct kept &w, float x, int64_t mass, int64_t id)
{
    int32_t o = order(x);

    return (o > w.k.key || (o == w.k.key && id <= w.k.last)) && (o > w.p.key || (o == w.p.key && id <= w.p.last)) &&
           (float)mass >= w.least;
}

/* x of id v for the rules: a barred one is last in their order and has no mass. */
__device__ static inline float scaled(const struct drawing &d, const float *l, int64_t v)
{
    return d.barred && d.barred[v] ? -INFINITY : __fmul_rn(l[v], d.scale);
}

/* head_load of what may be drawn. */
__device__ static inline void load(const struct drawing &d, const float *l, int64_t first, int length, float x[8])
{
    int lane = threadIdx.x % 32;

    head_load(l + first, length, d.scale, x);
    if (!d.barred)
        return;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int at = 64 * (i / 2) + 2 * lane + i % 2;

        if (at < length && d.barred[first + at])
            x[i] = -INFINITY;
    }
}

__device__ static inline int64_t warp_add(int64_t x)
{
#pragma unroll
    for (int h = 16; h; h >>= 1)
        x += __shfl_xor_sync(0xffffffffu, (long long)x, h);
    return x;
}

/* Sums of n integers a thread over the block; everybody gets them. */
template <int N> __device__ static inline void block_add(int64_t (&x)[N])
{
    __shared__ int64_t room[N][WARPS];

#pragma unroll
    for (int i = 0; i < N; i++) {
        x[i] = warp_add(x[i]);
        if (threadIdx.x % 32 == 0)
            room[i][threadIdx.x / 32] = x[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = warp_add(room[i][threadIdx.x % 32]);
    __syncthreads();
}

/* The rule that keeps the beginning of the order - by x, ties to the lower id - whose weights (1 each if by_count, else masses)
 * first add up to need. tile_sum: room for a number a tile. All threads of the block call it. */
__device__ static struct rule beginning(const struct drawing &d, const float *l, float most, int by_count, int64_t need,
                                        int64_t *tile_sum)
{
    __shared__ int32_t found;
    struct rule r;
    uint32_t t = 0; /* in unsigned order */
    int64_t above[1] = {0}, equals, each;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    for (int bit = 30; bit >= 0; bit -= 2) {
        int64_t sum[3] = {0, 0, 0};

        for (int64_t v = threadIdx.x; v < d.V; v += THREADS) {
            float x = scaled(d, l, v);
            uint32_t o = (uint32_t)order(x) ^ 0x80000000u;
            int64_t weight = by_count ? 1 : mass_of(x, most);

#pragma unroll
            for (uint32_t i = 0; i < 3; i++)
                sum[i] += o >= (t | (i + 1) << bit) ? weight : 0;
        }
        block_add(sum);
        t |= (uint32_t)((sum[0] >= need) + (sum[1] >= need) + (sum[2] >= need)) << bit;
    }
    r.key = (int32_t)(t ^ 0x80000000u);
    r.last = HEAD_NO_ID;
    for (int64_t v = threadIdx.x; v < d.V; v += THREADS) {
        float x = scaled(d, l, v);

        above[0] += order(x) > r.key ? (by_count ? 1 : mass_of(x, most)) : 0;
    }
    block_add(above);
    each = by_count ? 1 : mass_of(__int_as_float(r.key ^ (int32_t)((uint32_t)(r.key >> 31) >> 1)), most);
    equals = each > 0 ? (need - above[0] + each - 1) / each : d.V; /* how many of the equal ones are kept */
    /* the id of the equals-th of them */
    for (int t0 = warp; t0 < d.cut.tiles; t0 += WARPS) {
        int length, n = 0;
        int64_t first = head_tile(d.cut, t0, &length);

        for (int i = lane; i < length; i += 32)
            n += order(scaled(d, l, first + i)) == r.key;
        n = (int)warp_add(n);
        if (lane == 0)
            tile_sum[t0] = n;
    }
    if (threadIdx.x == 0)
        found = HEAD_NO_ID;
    __syncthreads();
    if (warp == 0) {
        int64_t before = 0;

        for (int t0 = 0; t0 < d.cut.tiles; t0++) {
            if (before + tile_sum[t0] >= equals) {
                int length;
                int64_t first = head_tile(d.cut, t0, &length);

                for (int i0 = 0; i0 < length; i0 += 32) {
                    int is = i0 + lane < length && order(scaled(d, l, first + i0 + lane)) == r.key;
                    unsigned all = __ballot_sync(0xffffffffu, is);

                    if (is && before + __popc(all & ((2u << lane) - 1)) == equals)
                        found = (int32_t)(first + i0 + lane);
                    before += __popc(all);
                }
                break;
            }
            before += tile_sum[t0];
        }
    }
    __syncthreads();
    r.last = found;
    __syncthreads();
    return r;
}

/* 10 rounds of Philox4x32 over (step, a, b, c); the first word */
__device__ static inline uint32_t philox(const struct drawing &d, uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t x0 = d.step, x1 = a, x2 = b, x3 = c, k0 = d.key[0], k1 = d.key[1];

    for (int r = 0; r < 10; r++) {
        uint32_t h0 = __umulhi(0xD2511F53u, x0), l0 = 0xD2511F53u * x0, h1 = __umulhi(0xCD9E8D57u, x2), l1 = 0xCD9E8D57u * x2;

        x0 = h1 ^ x1 ^ k0, x1 = l1, x2 = h0 ^ x3 ^ k1, x3 = l0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return x0;
}

/* Lane's eight masses of a tile; 0 for what is not kept. *n: how many lane keeps. */
__device__ static inline void masses(const struct drawing &d, const float x[8], const struct kept &w, float most, int truncated,
                                     int64_t first, int length, int64_t m[8], int *n)
{
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        int at = 64 * (i / 2) + 2 * lane + i % 2;
        int64_t mass = mass_of(x[i], most);
        int is = at < length && (!truncated || keeps(w, x[i], mass, first + at)) && !(d.barred && d.barred[first + at]);

        m[i] = is ? mass : 0;
        *n += is;
    }
}

/* The first id at which the sum of masses over ids passes `at`; tile_sum holds the tiles' sums. One warp; -1 if none. */
__device__ static int32_t walk(const struct drawing &d, const float *l, const struct kept &w, float most, int truncated, int64_t at,
                               const int64_t *tile_sum)
{
    int lane = threadIdx.x % 32, t = -1, length, n = 0;
    int64_t before = 0, m[8], first;
    float x[8];

    for (int t0 = 0; t0 < d.cut.tiles && t < 0; t0 += 32) {
        int64_t mine = t0 + lane < d.cut.tiles ? tile_sum[t0 + lane] : 0, sum = lanes_upto((long long)mine);
        unsigned over = __ballot_sync(0xffffffffu, before + sum > at);
        if (over) {
            int src = __ffs((int)over) - 1;

            t = t0 + src;
            before += __shfl_sync(0xffffffffu, (long long)(sum - mine), src);
        } else {
            before += __shfl_sync(0xffffffffu, (long long)sum, 31);
        }
    }
    if (t < 0)
        return -1;
    first = head_tile(d.cut, t, &length);
    load(d, l, first, length, x);
    masses(d, x, w, most, truncated, first, length, m, &n);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int64_t mine = m[2 * i] + m[2 * i + 1], sum = lanes_upto((long long)mine);
        unsigned over = __ballot_sync(0xffffffffu, before + sum > at);
        if (over) {
            int src = __ffs((int)over) - 1;
            int second = before + sum - mine + m[2 * i] <= at;

            return (int32_t)first + 64 * i + 2 * src + __shfl_sync(0xffffffffu, second, src);
        }
        before += __shfl_sync(0xffffffffu, (long long)sum, 31);
    }
    return -1;
}

__global__ void __launch_bounds__(THREADS) draw_rows(const struct drawing d)
{
    extern __shared__ __align__(16) unsigned char shared[];
    struct head_part *part = (struct head_part *)shared;
    int64_t *tile_sum = (int64_t *)(part + d.cut.tiles);
    __shared__ struct head_row shared_row, shared_drawn;
    __shared__ int32_t shared_id;
    const float *l = d.logits + blockIdx.x * d.stride;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32,
        truncated = (d.top_k > 0 && d.top_k < d.V) || d.top_p < 1.0f || d.min_p > 0.0f;
    struct kept w = {{(int32_t)0x80000000, HEAD_NO_ID}, {(int32_t)0x80000000, HEAD_NO_ID}, -1.0f};
    struct head_row row, drawn; /* of all ids; of those that may be drawn */
    int64_t sum[2] = {0, 0};
    int32_t chosen;

    for (int t = warp; t < d.cut.tiles; t += WARPS) {
        int length;
        int64_t first = head_tile(d.cut, t, &length);
        struct head_part p;
        float x[8];

        head_load(l + first, length, d.scale, x);
        p = head_part_of(x, first, length, 0);
        if (lane == 0)
            part[t] = p;
    }
    __syncthreads();
    if (warp == 0) {
        row = head_row_of(part, d.cut, 0);
        if (lane == 0)
            shared_row = row;
    }
    __syncthreads();
    drawn = row = shared_row;
    if (d.barred && isfinite(row.lse)) {
        for (int t = warp; t < d.cut.tiles; t += WARPS) {
            int length;
            int64_t first = head_tile(d.cut, t, &length);
            struct head_part p;
            float x[8];

            load(d, l, first, length, x);
            p = head_part_of(x, first, length, 0);
            if (lane == 0)
                part[t] = p;
        }
        __syncthreads();
        if (warp == 0) {
            drawn = head_row_of(part, d.cut, 0);
            if (lane == 0)
                shared_drawn = drawn;
        }
        __syncthreads();
        drawn = shared_drawn;
    }
    chosen = drawn.argmax;
    if (isfinite(row.lse) && (truncated || d.barred || !d.greedy)) {
        if (truncated && d.top_p < 1.0f) {
            double share;

            for (int64_t v = threadIdx.x; v < d.V; v += THREADS)
                sum[0] += mass_of(scaled(d, l, v), drawn.most);
            block_add(sum);
            share = ceil((double)d.top_p * (double)sum[0]);
            w.p = beginning(d, l, drawn.most, 0, share < 1.0 ? 1 : share > (double)sum[0] ? sum[0] : (int64_t)share, tile_sum);
        }
        if (truncated && d.top_k > 0 && d.top_k < d.V)
            w.k = beginning(d, l, drawn.most, 1, d.top_k, tile_sum);
        if (d.min_p > 0.0f)
            w.least = __fmul_rn(d.min_p, UNIT);
        sum[0] = sum[1] = 0;
        for (int t = warp; t < d.cut.tiles; t += WARPS) {
            int length, n = 0;
            int64_t first = head_tile(d.cut, t, &length), m[8], mine = 0;
            float x[8];

            load(d, l, first, length, x);
            masses(d, x, w, drawn.most, truncated, first, length, m, &n);
#pragma unroll
            for (int i = 0; i < 8; i++)
                mine += m[i];
            sum[0] += mine;
            sum[1] += n;
            mine = warp_add(mine);
            if (lane == 0)
                tile_sum[t] = mine;
        }
        block_add(sum); /* mass and number of what is kept */
        if (!d.greedy && warp == 0) {
            uint32_t u =
                philox(d, (uint32_t)d.prompt[blockIdx.x], (uint32_t)d.sample[blockIdx.x], (uint32_t)d.position[blockIdx.x]);
            double uniform = (double)(((float)(u >> 9) + 0.5f) * 0x1p-23f);
            int32_t id = walk(d, l, w, drawn.most, truncated, (int64_t)__dmul_rn(uniform, (double)sum[0]), tile_sum);

            if (lane == 0)
                shared_id = id < 0 ? drawn.argmax : id;
        }
        __syncthreads();
        if (!d.greedy)
            chosen = shared_id;
    } else {
        sum[1] = d.V;
    }
    if (threadIdx.x == 0) {
        d.token[blockIdx.x] = chosen;
        d.logprob[blockIdx.x] = __fsub_rn(__fmul_rn(l[chosen], d.scale), row.lse);
    }
    if (d.sampled && sum[1] == d.V) {
        if (threadIdx.x == 0)
            d.sampled[blockIdx.x] = __fsub_rn(__fmul_rn(l[chosen], d.scale), row.lse);
    } else if (d.sampled) { /* the row again, of what is kept */
        __syncthreads();
        for (int t = warp; t < d.cut.tiles; t += WARPS) {
            int length;
            int64_t first = head_tile(d.cut, t, &length);
            struct head_part p;
            float x[8];

            load(d, l, first, length, x);
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (truncated && !keeps(w, x[i], mass_of(x[i], drawn.most), first + 64 * (i / 2) + 2 * lane + i % 2))
                    x[i] = -INFINITY;
            p = head_part_of(x, first, length, 0);
            if (lane == 0)
                part[t] = p;
        }
        __syncthreads();
        if (warp == 0) {
            struct head_row of_kept = head_row_of(part, d.cut, 0);

            if (lane == 0)
                d.sampled[blockIdx.x] = __fsub_rn(__fmul_rn(l[chosen], d.scale), of_kept.lse);
        }
    }
}

extern "C" enum cairn_status cairn_sample_cuda(struct cairn_stream *s, const struct cairn_sample *a, struct cairn_error *err)
{
    struct call c = call_begin("sample", s, err);
    int64_t N = -1, V = -1;
    struct arg logits = call_arg(&c, "logits", &a->logits, STRIDED | T_F32, 2, &N, &V),
               prompt = call_arg(&c, "prompt", &a->prompt, T_I32, 1, &N), sample = call_arg(&c, "sample", &a->sample, T_I32, 1, &N),
               position = call_arg(&c, "position", &a->position, T_I32, 1, &N),
               token = call_arg(&c, "token", &a->token, OUT | T_I32, 1, &N),
               logprob = call_arg(&c, "logprob", &a->logprob, OUT | T_F32, 1, &N),
               sampled = call_arg(&c, "logprob_sampled", &a->logprob_sampled, OUT | ABSENT | T_F32, 1, &N),
               barred = call_arg(&c, "barred", &a->barred, ABSENT | T_U8, 1, &V);

    if (call_ok(&c) && (a->segments < 1 || a->segments > 4096 || (a->segments & (a->segments - 1)) || V < 1 || V % a->segments))
        call_fail(&c, "vocabulary of %lld in %d segments", (long long)V, a->segments);
    if (call_ok(&c) && N) {
        struct drawing d = {};
        int64_t bytes;

        d.logits = f32(&logits), d.stride = logits.s[0];
        d.barred = u8(&barred);
        d.prompt = i32(&prompt), d.sample = i32(&sample), d.position = i32(&position);
        d.token = i32(&token), d.logprob = f32(&logprob), d.sampled = f32(&sampled);
        d.cut = head_cut(V, a->segments);
        d.V = V;
        /* as cairn_philox makes them */
        d.key[0] = (uint32_t)a->seed ^ (CAIRN_PURPOSE_SAMPLE * 0x9E3779B9u);
        d.key[1] = (uint32_t)(a->seed >> 32) ^ CAIRN_PURPOSE_SAMPLE;
        d.step = a->step;
        d.scale = a->inv_temperature, d.top_p = a->top_p, d.min_p = a->min_p;
        d.top_k = a->top_k, d.greedy = a->greedy;
        bytes = d.cut.tiles * (int64_t)(sizeof(struct head_part) + sizeof(int64_t));
        if (bytes > c.cuda->shared_max - 4096)
            call_fail(&c, "a vocabulary of %lld in %d segments is too long for one block", (long long)V, a->segments);
        if (call_ok(&c) && bytes > 40 << 10)
            call_cuda(&c, cudaFuncSetAttribute(draw_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                      "shared memory of sample");
        LAUNCH(&c, draw_rows, (unsigned)N, THREADS, (size_t)bytes, d);
    }
    return call_end(&c);
}

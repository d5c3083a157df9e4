/* hyper.cu - hyper-connections: a block a row.
 *
 * Mixing weights: after the block has the norm, the matrix of streams lies in 16 lanes (J <= 4: lane i * 4 + j) or in 32 (two rows
 * of it a lane: lane i % 4 * 8 + j); places beyond J hold zeros and stay zero. A column's sum is a tree over lanes of one j, a
 * row's over lanes of one i, so a normalisation is a few shuffles. Backward: what each lane had after each step, and its divisor,
 * is kept in shared memory, a place of its own for each lane. Floor: hyper (J+1)*D a row, hyper_out (2J+1)*D, hyper_bwd (3J+1)*D,
 * hyper_out_bwd (3J+2)*D.
 */
#include "runs.cuh"

#define THREADS  256
#define WARPS    (THREADS / 32)
#define RUN_ROWS 64

struct hyper {
    int64_t N, D, xs, xj, ys, os, oj, ds, dj; /* strides of rows and streams: x; y; out or dx; dout */
    int J, M, rounds;
    float norm_eps, eps, a;
    int64_t dys;
};

__device__ static inline float sigmoid(float x)
{
    float e = expf(-fabsf(x));

    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

__device__ static inline int group(int i, int J)
{
    return i < J ? 0 : i < 2 * J ? 1 : 2;
}

/* Where element e of this lane lies: row, column; P streams have room. */
template <int P> struct place {
    int i[P == 4 ? 1 : 2], j, lane, in; /* in: the lane belongs to the matrix */
    __device__ place()
    {
        lane = threadIdx.x % 32;
        j = lane % P;
        i[0] = lane / P;
        if (P == 8)
            i[P == 4 ? 0 : 1] = lane / P + 4;
        in = lane < (P == 4 ? 16 : 32);
    }
};

template <int P> __device__ static inline float columns_sum(const float *x)
{
    float s = P == 8 ? x[0] + x[P == 8 ? 1 : 0] : x[0];

#pragma unroll
    for (int h = P; h < (P == 4 ? 16 : 32); h *= 2)
        s += __shfl_xor_sync(0xffffffffu, s, h);
    return s;
}

template <int P> __device__ static inline float rows_sum(float s)
{
#pragma unroll
    for (int h = 1; h < P; h *= 2)
        s += __shfl_xor_sync(0xffffffffu, s, h);
    return s;
}

template <int P> __device__ static inline float rows_most(float s)
{
#pragma unroll
    for (int h = 1; h < P; h *= 2)
        s = fmaxf(s, __shfl_xor_sync(0xffffffffu, s, h));
    return s;
}

/* Softmax and loop of one row's matrix, by one warp. l: its logits (J * J). x: the result, soft: the softmax. kept: room for every
 * step's element and divisor, [step][element][2][32], or NULL. */
template <int P> __device__ static inline void weigh(const struct hyper *k, const float *l, float *x, float *soft, float *kept)
{
    enum { E = P == 4 ? 1 : 2 };
    const struct place<P> at;
    int there[E];

#pragma unroll
    for (int e = 0; e < E; e++) {
        float v, most, sum;

        there[e] = at.in && at.i[e] < k->J && at.j < k->J;
        v = there[e] ? l[at.i[e] * k->J + at.j] : -INFINITY;
        most = rows_most<P>(v);
        v = there[e] ? expf(v - most) : 0.0f;
        sum = rows_sum<P>(v);
        soft[e] = there[e] ? v / sum : 0.0f;
        x[e] = there[e] ? soft[e] + k->eps : 0.0f;
    }
    for (int s = 0; s < 2 * k->rounds - 1; s++) {
        const float column = columns_sum<P>(x);

#pragma unroll
        for (int e = 0; e < E; e++) {
            const float row = rows_sum<P>(x[e]), sum = (s % 2 ? row : column) + k->eps;

            x[e] = x[e] / sum;
            if (kept) {
                kept[((s * E + e) * 2) * 32 + at.lane] = x[e];
                kept[((s * E + e) * 2 + 1) * 32 + at.lane] = sum;
            }
        }
    }
}

/* d: gradient of the result; then of the logits. */
template <int P> __device__ static inline void weigh_bwd(const struct hyper *k, float *d, const float *soft, const float *kept)
{
    enum { E = P == 4 ? 1 : 2 };
    const struct place<P> at;
    const int lane = at.lane;

    for (int s = 2 * k->rounds - 2; s >= 0; s--) {
        float o[E], t[E], column;

#pragma unroll
        for (int e = 0; e < E; e++) {
            o[e] = kept[((s * E + e) * 2) * 32 + lane];
            t[e] = d[e] * o[e];
        }
        column = columns_sum<P>(t);
#pragma unroll
        for (int e = 0; e < E; e++) {
            const float row = rows_sum<P>(t[e]), sum = kept[((s * E + e) * 2 + 1) * 32 + lane];

            /* a place beyond J would grow by 1 / eps a step */
            d[e] = at.i[e] < k->J && at.j < k->J ? (d[e] - (s % 2 ? row : column)) / sum : 0.0f;
        }
    }
#pragma unroll
    for (int e = 0; e < E; e++)
        d[e] = soft[e] * (d[e] - rows_sum<P>(d[e] * soft[e]));
}

template <typename T, int P>
__global__ void __launch_bounds__(THREADS)
    hyper_rows(struct hyper k, const T *x, const float *m, const float *base, const float *scale, float *mix, float *rstd, T *y)
{
    enum { E = P == 4 ? 1 : 2 };
    __shared__ float room[WARPS], logit[80], weight[8];
    const int64_t n = blockIdx.x;
    const T *row = x + n * k.xs;
    float sum = 0.0f, r;

    for (int i = 0; i < k.J; i++)
        for (int64_t d = threadIdx.x; d < k.D; d += THREADS) {
            const float v = ld(row + i * k.xj + d);

            sum = fmaf(v, v, sum);
        }
    r = 1.0f / sqrtf(block_sum<WARPS>(sum, room) / (float)(k.J * k.D) + k.norm_eps);
    if ((int)threadIdx.x < k.M) {
        const int i = threadIdx.x;
        const float l = fmaf(scale[group(i, k.J)], m[n * k.M + i] * r, base[i]);

        logit[i] = l;
        if (i < k.J) {
            weight[i] = sigmoid(l) + k.eps;
            mix[n * k.M + i] = weight[i];
        } else if (i < 2 * k.J) {
            mix[n * k.M + i] = 2.0f * sigmoid(l);
        }
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        const struct place<P> at;
        float v[E], soft[E];

        weigh<P>(&k, logit + 2 * k.J, v, soft, NULL);
#pragma unroll
        for (int e = 0; e < E; e++)
            if (at.in && at.i[e] < k.J && at.j < k.J)
                mix[n * k.M + 2 * k.J + at.i[e] * k.J + at.j] = v[e];
        if (!at.lane)
            rstd[n] = r;
    }
    for (int64_t d = threadIdx.x; d < k.D; d += THREADS) {
        float v = 0.0f;

        for (int i = 0; i < k.J; i++)
            v = fmaf(weight[i], ld(row + i * k.xj + d), v);
        st(y + n * k.ys + d, v);
    }
}

static void check(struct call *c, int64_t J, int64_t M, int rounds)
{
    if (call_ok(c) && (J < 1 || J > 8 || M != J * (J + 2)))
        call_fail(c, "%lld mixing weights for %lld streams", (long long)M, (long long)J);
    if (call_ok(c) && (rounds < 1 || rounds > 64))
        call_fail(c, "iterations = %d", rounds);
}

extern "C" enum cairn_status cairn_hyper_cuda(struct cairn_stream *s, const struct cairn_hyper *a, struct cairn_error *err)
{
    struct call c = call_begin("hyper", s, err);
    int64_t N = -1, J = -1, D = -1, M = -1, three = 3;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_ACT, 3, &N, &J, &D), m = call_arg(&c, "m", &a->m, T_F32, 2, &N, &M),
               base = call_arg(&c, "base", &a->base, T_F32, 1, &M), scale = call_arg(&c, "scale", &a->scale, T_F32, 1, &three),
               mix = call_arg(&c, "mix", &a->mix, OUT | T_F32, 2, &N, &M),
               rstd = call_arg(&c, "rstd", &a->rstd, OUT | T_F32, 1, &N),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_ACT, 2, &N, &D);
    struct hyper k = {N, D, x.s[0], x.s[1], y.s[0], 0, 0, 0, 0, (int)J, (int)M, a->iterations, a->norm_eps, a->eps, 0.0f};

    check(&c, J, M, a->iterations);
    if (!call_ok(&c) || !N || !D)
        return call_end(&c);
    if (J <= 4)
        ON_ACT(x.type, T,
               LAUNCH(&c, (hyper_rows<T, 4>), (unsigned)N, THREADS, 0, k, (const T *)x.p, f32(&m), f32(&base), f32(&scale),
                      f32(&mix), f32(&rstd), (T *)y.p));
    else
        ON_ACT(x.type, T,
               LAUNCH(&c, (hyper_rows<T, 8>), (unsigned)N, THREADS, 0, k, (const T *)x.p, f32(&m), f32(&base), f32(&scale),
                      f32(&mix), f32(&rstd), (T *)y.p));
    return call_end(&c);
}

/* Sums of up to `count` values a thread over the block, into sums (shared, `count` rounded up to 32). room: [WARPS][32]. */
template <int GROUPS> __device__ static inline void block_sums(float (*v)[32], float *room, float *sums)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        lanes_sum(v[g]);
        __syncthreads();
        room[warp * 32 + lane] = v[g][0];
        __syncthreads();
        if (threadIdx.x < 32) {
            float s = room[lane];

            for (int w = 1; w < WARPS; w++)
                s += room[w * 32 + lane];
            sums[g * 32 + lane] = s;
        }
    }
    __syncthreads();
}

/* dl: gradients of the logits (N, M), or NULL. kept: dynamic shared memory. */
template <typename T, int P>
__global__ void __launch_bounds__(THREADS)
    hyper_bwd_rows(struct hyper k, const T *x, const float *m, const float *base, const float *scale, const float *rstd,
                   const T *dy, const float *dmix, float *dm, T *dx, float *dl)
{
    enum { E = P == 4 ? 1 : 2 };
    extern __shared__ float kept[];
    __shared__ float room[WARPS * 32], logit[80], grad[80], pre[32], norm;
    const int64_t n = blockIdx.x;
    const T *row = x + n * k.xs, *d_y = dy + n * k.ys;
    const float r = rstd[n];
    float v[1][32];

#pragma unroll
    for (int i = 0; i < 32; i++)
        v[0][i] = 0.0f;
#pragma unroll
    for (int i = 0; i < P; i++)
        if (i < k.J)
            for (int64_t d = threadIdx.x; d < k.D; d += THREADS)
                v[0][i] = fmaf(ld(d_y + d), ld(row + i * k.xj + d), v[0][i]);
    block_sums<1>(v, room, pre);
    if ((int)threadIdx.x < k.M) {
        const int i = threadIdx.x;
        const float l = fmaf(scale[group(i, k.J)], m[n * k.M + i] * r, base[i]), s = sigmoid(l);

        logit[i] = l;
        if (i < k.J)
            grad[i] = pre[i] * (s * (1.0f - s));
        else if (i < 2 * k.J)
            grad[i] = dmix[n * k.M + i] * (2.0f * (s * (1.0f - s)));
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        const struct place<P> at;
        float u[E], soft[E], d[E], dr = 0.0f;

        weigh<P>(&k, logit + 2 * k.J, u, soft, kept);
#pragma unroll
        for (int e = 0; e < E; e++)
            d[e] = at.in && at.i[e] < k.J && at.j < k.J ? dmix[n * k.M + 2 * k.J + at.i[e] * k.J + at.j] : 0.0f;
        weigh_bwd<P>(&k, d, soft, kept);
#pragma unroll
        for (int e = 0; e < E; e++)
            if (at.in && at.i[e] < k.J && at.j < k.J)
                grad[2 * k.J + at.i[e] * k.J + at.j] = d[e];
        __syncwarp();
        for (int i = at.lane; i < k.M; i += 32) {
            const float g = grad[i] * scale[group(i, k.J)];

            dr = fmaf(g, m[n * k.M + i], dr);
            dm[n * k.M + i] = g * r;
            if (dl)
                dl[n * k.M + i] = grad[i];
        }
        dr = warp_sum(dr);
        if (!at.lane)
            norm = dr * (r * r * r) / (float)(k.J * k.D);
    }
    __syncthreads();
    for (int i = 0; i < k.J; i++) {
        const float w = sigmoid(logit[i]) + k.eps;

        for (int64_t d = threadIdx.x; d < k.D; d += THREADS) {
            T *to = dx + n * k.os + i * k.oj + d;

            st(to, ld(to) + fmaf(-norm, ld(row + i * k.xj + d), w * ld(d_y + d)));
        }
    }
}

/* part[run]: sums over 64 rows of dl (M), and of dl * m * rstd (M). */
__global__ void __launch_bounds__(96) hyper_parts(struct hyper k, const float *dl, const float *m, const float *rstd, float *part)
{
    const int64_t first = (int64_t)blockIdx.x * RUN_ROWS, end = first + RUN_ROWS < k.N ? first + RUN_ROWS : k.N;
    const int i = threadIdx.x;
    float sum = 0.0f, scaled = 0.0f;

    if (i >= k.M)
        return;
    for (int64_t n = first; n < end; n++) {
        const float d = dl[n * k.M + i];

        sum += d;
        scaled = fmaf(d, m[n * k.M + i] * rstd[n], scaled);
    }
    part[(int64_t)blockIdx.x * 2 * k.M + i] = sum;
    part[((int64_t)blockIdx.x * 2 + 1) * k.M + i] = scaled;
}

__global__ void __launch_bounds__(96) hyper_sums(struct hyper k, const float *sums, float *dbase, float *dscale)
{
    const int i = threadIdx.x;

    if (dbase && i < k.M)
        dbase[i] += sums[i];
    if (dscale && i < 3) {
        float sum = 0.0f;

        for (int e = 0; e < k.M; e++)
            if (group(e, k.J) == i)
                sum += sums[k.M + e];
        dscale[i] += sum;
    }
}

__global__ void __launch_bounds__(256) zero_sums(float *x, int n)
{
    if ((int)threadIdx.x < n)
        x[threadIdx.x] = 0.0f;
}

extern "C" enum cairn_status cairn_hyper_bwd_cuda(struct cairn_stream *s, const struct cairn_hyper_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("hyper_bwd", s, err);
    int64_t N = -1, J = -1, D = -1, M = -1, three = 3, parts;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_ACT, 3, &N, &J, &D), m = call_arg(&c, "m", &a->m, T_F32, 2, &N, &M),
               base = call_arg(&c, "base", &a->base, T_F32, 1, &M), scale = call_arg(&c, "scale", &a->scale, T_F32, 1, &three),
               rstd = call_arg(&c, "rstd", &a->rstd, T_F32, 1, &N), dy = call_arg(&c, "dy", &a->dy, STRIDED | T_ACT, 2, &N, &D),
               dmix = call_arg(&c, "dmix", &a->dmix, T_F32, 2, &N, &M), dm = call_arg(&c, "dm", &a->dm, OUT | T_F32, 2, &N, &M),
               dx = call_arg(&c, "dx", &a->dx, OUT | STRIDED | T_ACT, 3, &N, &J, &D),
               dbase = call_arg(&c, "dbase", &a->dbase, OUT | ABSENT | T_F32, 1, &M),
               dscale = call_arg(&c, "dscale", &a->dscale, OUT | ABSENT | T_F32, 1, &three);
    struct hyper k = {N, D, x.s[0], x.s[1], dy.s[0], dx.s[0], dx.s[1], 0, 0, (int)J, (int)M, a->iterations, 0.0f, a->eps, 0.0f};
    float *sums = NULL, *dl = NULL;
    size_t shared = (size_t)(2 * a->iterations - 1) * (J <= 4 ? 1 : 2) * 64 * sizeof(float);

    check(&c, J, M, a->iterations);
    if (!call_ok(&c) || !N || !D)
        return call_end(&c);
    parts = ceil_div(N, RUN_ROWS);
    if (dbase.p || dscale.p) {
        sums = (float *)call_scratch(&c, (size_t)(2 * M + N * M + parts_floats(parts, 2 * M)) * sizeof(float));
        dl = sums ? sums + 2 * M : NULL;
    }
    if (!call_ok(&c))
        return call_end(&c);
    if (J <= 4)
        ON_ACT(x.type, T, {
            call_cuda(&c, cudaFuncSetAttribute(hyper_bwd_rows<T, 4>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
                      "hyper_bwd_rows");
            LAUNCH(&c, (hyper_bwd_rows<T, 4>), (unsigned)N, THREADS, shared, k, (const T *)x.p, f32(&m), f32(&base), f32(&scale),
                   f32(&rstd), (const T *)dy.p, f32(&dmix), f32(&dm), (T *)dx.p, dl);
        });
    else
        ON_ACT(x.type, T, {
            call_cuda(&c, cudaFuncSetAttribute(hyper_bwd_rows<T, 8>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
                      "hyper_bwd_rows");
            LAUNCH(&c, (hyper_bwd_rows<T, 8>), (unsigned)N, THREADS, shared, k, (const T *)x.p, f32(&m), f32(&base), f32(&scale),
                   f32(&rstd), (const T *)dy.p, f32(&dmix), f32(&dm), (T *)dx.p, dl);
        });
    if (sums) {
        LAUNCH(&c, zero_sums, 1, 256, 0, sums, (int)(2 * M));
        LAUNCH(&c, hyper_parts, (unsigned)parts, 96, 0, k, dl, f32(&m), f32(&rstd), dl + N * M);
        parts_sum(&c, dl + N * M, parts, 2 * M, sums);
        LAUNCH(&c, hyper_sums, 1, 96, 0, k, sums, f32(&dbase), f32(&dscale));
    }
    return call_end(&c);
}

/* ---- streams ------------------------------------------------------------------------------------------------------------- */

template <typename T, int J>
__global__ void __launch_bounds__(THREADS) out_rows(struct hyper k, const T *x, const T *y, const float *mix, T *out)
{
    const int64_t n = blockIdx.x;
    float w[J * (J + 1)];

#pragma unroll
    for (int i = 0; i < J * (J + 1); i++)
        w[i] = mix[n * k.M + J + i];
    for (int64_t d = threadIdx.x; d < k.D; d += THREADS) {
        float v[J], u = ld(y + n * k.ys + d);

#pragma unroll
        for (int i = 0; i < J; i++)
            v[i] = ld(x + n * k.xs + i * k.xj + d);
#pragma unroll
        for (int j = 0; j < J; j++) {
            float sum = w[j] * u;

#pragma unroll
            for (int i = 0; i < J; i++)
                sum = fmaf(w[J + i * J + j], v[i], sum);
            st(out + n * k.os + j * k.oj + d, sum);
        }
    }
}

/* The statement with J as a constant. */
#define ON_STREAMS(count, ...)                                                                                                     \
    switch (count) {                                                                                                               \
        ON_STREAM(1, __VA_ARGS__)                                                                                                  \
        ON_STREAM(2, __VA_ARGS__)                                                                                                  \
        ON_STREAM(3, __VA_ARGS__)                                                                                                  \
        ON_STREAM(4, __VA_ARGS__)                                                                                                  \
        ON_STREAM(5, __VA_ARGS__)                                                                                                  \
        ON_STREAM(6, __VA_ARGS__)                                                                                                  \
        ON_STREAM(7, __VA_ARGS__)                                                                                                  \
        ON_STREAM(8, __VA_ARGS__)                                                                                                  \
    }
#define ON_STREAM(count, ...)                                                                                                      \
    case count: {                                                                                                                  \
        enum { STREAMS = count };                                                                                                  \
        __VA_ARGS__;                                                                                                               \
        break;                                                                                                                     \
    }

extern "C" enum cairn_status cairn_hyper_out_cuda(struct cairn_stream *s, const struct cairn_hyper_out *a, struct cairn_error *err)
{
    struct call c = call_begin("hyper_out", s, err);
    int64_t N = -1, J = -1, D = -1, M = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_ACT, 3, &N, &J, &D),
               y = call_arg(&c, "y", &a->y, STRIDED | T_ACT, 2, &N, &D), mix = call_arg(&c, "mix", &a->mix, T_F32, 2, &N, &M),
               out = call_arg(&c, "out", &a->out, OUT | STRIDED | T_ACT, 3, &N, &J, &D);
    struct hyper k = {N, D, x.s[0], x.s[1], y.s[0], out.s[0], out.s[1], 0, 0, (int)J, (int)M};

    check(&c, J, M, 1);
    if (call_ok(&c) && N && D)
        ON_STREAMS(J, ON_ACT(x.type, T,
                             LAUNCH(&c, (out_rows<T, STREAMS>), (unsigned)N, THREADS, 0, k, (const T *)x.p, (const T *)y.p,
                                    f32(&mix), (T *)out.p)));
    return call_end(&c);
}

template <typename T, int J>
__global__ void __launch_bounds__(THREADS)
    out_bwd_rows(struct hyper k, const T *x, const T *y, const float *mix, const T *dout, T *dy, float *dmix, T *dx)
{
    enum { SUMS = J * (J + 1), GROUPS = (SUMS + 31) / 32 };
    __shared__ float room[WARPS * 32], sums[GROUPS * 32];
    const int64_t n = blockIdx.x;
    float w[SUMS], v[GROUPS][32];

#pragma unroll
    for (int i = 0; i < SUMS; i++)
        w[i] = mix[n * k.M + J + i];
#pragma unroll
    for (int i = 0; i < GROUPS * 32; i++)
        v[i / 32][i % 32] = 0.0f;
    for (int64_t d = threadIdx.x; d < k.D; d += THREADS) {
        float g[J], u = ld(y + n * k.ys + d), sum = 0.0f;

#pragma unroll
        for (int j = 0; j < J; j++) {
            g[j] = ld(dout + n * k.ds + j * k.dj + d);
            sum = fmaf(w[j], g[j], sum);
            v[j / 32][j % 32] = fmaf(g[j], u, v[j / 32][j % 32]);
        }
        st(dy + n * k.dys + d, sum);
#pragma unroll
        for (int i = 0; i < J; i++) {
            const float now = ld(x + n * k.xs + i * k.xj + d);

            sum = 0.0f;
#pragma unroll
            for (int j = 0; j < J; j++) {
                const int e = J + i * J + j;

                v[e / 32][e % 32] = fmaf(now, g[j], v[e / 32][e % 32]);
                sum = fmaf(w[e], g[j], sum);
            }
            st(dx + n * k.os + i * k.oj + d, sum);
        }
    }
    block_sums<GROUPS>(v, room, sums);
    if ((int)threadIdx.x < k.M)
        dmix[n * k.M + threadIdx.x] = threadIdx.x < J ? 0.0f : sums[threadIdx.x - J];
}

extern "C" enum cairn_status cairn_hyper_out_bwd_cuda(struct cairn_stream *s, const struct cairn_hyper_out_bwd *a,
                                                      struct cairn_error *err)
{
    struct call c = call_begin("hyper_out_bwd", s, err);
    int64_t N = -1, J = -1, D = -1, M = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_ACT, 3, &N, &J, &D),
               y = call_arg(&c, "y", &a->y, STRIDED | T_ACT, 2, &N, &D), mix = call_arg(&c, "mix", &a->mix, T_F32, 2, &N, &M),
               dout = call_arg(&c, "dout", &a->dout, STRIDED | T_ACT, 3, &N, &J, &D),
               dy = call_arg(&c, "dy", &a->dy, OUT | STRIDED | T_ACT, 2, &N, &D),
               dmix = call_arg(&c, "dmix", &a->dmix, OUT | T_F32, 2, &N, &M),
               dx = call_arg(&c, "dx", &a->dx, OUT | STRIDED | T_ACT, 3, &N, &J, &D);
    struct hyper k = {N, D, x.s[0], x.s[1], y.s[0], dx.s[0], dx.s[1], dout.s[0], dout.s[1], (int)J, (int)M};

    check(&c, J, M, 1);
    k.dys = dy.s[0];
    if (call_ok(&c) && N && D)
        ON_STREAMS(J, ON_ACT(x.type, T,
                             LAUNCH(&c, (out_bwd_rows<T, STREAMS>), (unsigned)N, THREADS, 0, k, (const T *)x.p, (const T *)y.p,
                                    f32(&mix), (const T *)dout.p, (T *)dy.p, f32(&dmix), (T *)dx.p)));
    return call_end(&c);
}

template <typename T> __global__ void __launch_bounds__(THREADS) sum_rows(struct hyper k, const T *x, T *y)
{
    const int64_t n = blockIdx.x;

    for (int64_t d = threadIdx.x; d < k.D; d += THREADS) {
        float sum = ld(x + n * k.xs + d);

        for (int i = 1; i < k.J; i++)
            sum += ld(x + n * k.xs + i * k.xj + d);
        st(y + n * k.ys + d, k.a * sum);
    }
}

template <typename T> __global__ void __launch_bounds__(THREADS) spread_rows(struct hyper k, const T *x, T *y)
{
    const int64_t n = blockIdx.x;

    for (int64_t d = threadIdx.x; d < k.D; d += THREADS) {
        const float v = k.a * ld(x + n * k.xs + d);

        for (int i = 0; i < k.J; i++)
            st(y + n * k.os + i * k.oj + d, v);
    }
}

extern "C" enum cairn_status cairn_streams_sum_cuda(struct cairn_stream *s, const struct cairn_streams_sum *a,
                                                    struct cairn_error *err)
{
    struct call c = call_begin("streams_sum", s, err);
    int64_t N = -1, J = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_ACT, 3, &N, &J, &D),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_ACT, 2, &N, &D);
    struct hyper k = {N, D, x.s[0], x.s[1], y.s[0]};

    k.J = (int)J, k.a = a->a;
    if (call_ok(&c) && J < 1)
        call_fail(&c, "no streams");
    if (call_ok(&c) && N && D)
        ON_ACT(x.type, T, LAUNCH(&c, sum_rows<T>, (unsigned)N, THREADS, 0, k, (const T *)x.p, (T *)y.p));
    return call_end(&c);
}

extern "C" enum cairn_status cairn_streams_spread_cuda(struct cairn_stream *s, const struct cairn_streams_spread *a,
                                                       struct cairn_error *err)
{
    struct call c = call_begin("streams_spread", s, err);
    int64_t N = -1, J = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_ACT, 2, &N, &D),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_ACT, 3, &N, &J, &D);
    struct hyper k = {N, D, x.s[0], 0, 0, y.s[0], y.s[1]};

    k.J = (int)J, k.a = a->a;
    if (call_ok(&c) && N && D)
        ON_ACT(x.type, T, LAUNCH(&c, spread_rows<T>, (unsigned)N, THREADS, 0, k, (const T *)x.p, (T *)y.p));
    return call_end(&c);
}

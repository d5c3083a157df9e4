/* short_conv.cu - the short convolution and its backward.
 *
 * Forward: a thread has eight channels of eight rows and their taps in registers; the K-1 rows before come from the caches. Then
 * the tail's rows are written, behind everything that read them. Backward: a thread walks along 64 rows of a channel, and K-1 more.
 * Floor: forward 2 N*C moved, backward 3 N*C.
 */
#include "runs.cuh"

#define ROWS     8
#define RUN_ROWS 64

struct conv {
    struct runs r;
    int64_t C, xs, ys, dxs; /* channels, row strides */
    int K, wide;
};

__device__ static inline float sigmoid(float x)
{
    float e = expf(-fabsf(x));

    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* K taps, at most TAPS. Grid: blocks of 128 x 8 channels, then of ROWS rows. */
template <typename T, int TAPS>
__global__ void __launch_bounds__(128) conv_rows(struct conv k, const T *x, const void *w, int w_bf16, const T *tail, T *y)
{
    const int64_t c = ((int64_t)blockIdx.x * 128 + threadIdx.x) * 8, some = k.C - c;
    int64_t n = (int64_t)blockIdx.y * ROWS, end = n + ROWS < k.r.N ? n + ROWS : k.r.N;
    float tap[TAPS][8];

    if (some <= 0 || !*k.r.count)
        return;
#pragma unroll
    for (int j = 0; j < TAPS; j++)
#pragma unroll
        for (int e = 0; e < 8; e++)
            tap[j][e] = j < k.K && e < some ? ld_any(w, w_bf16, (c + e) * k.K + j) : 0.0f;
    for (; n < end; n++) {
        const int p = k.r.pos[n], b = k.r.seq[n];
        float u[8] = {0.0f};

#pragma unroll
        for (int j = 0; j < TAPS; j++) {
            const int back = k.K - 1 - j;
            float v[8];

            if (j >= k.K || p < back)
                continue;
            if (runs_same(&k.r, n, back))
                ld8(x + (n - back) * k.xs + c, some, k.wide, v);
            else
                ld8(tail + ((int64_t)b * k.K + (p - back) % k.K) * k.C + c, some, k.wide && k.C % 8 == 0, v);
#pragma unroll
            for (int e = 0; e < 8; e++)
                u[e] = fmaf(tap[j][e], v[e], u[e]);
        }
#pragma unroll
        for (int e = 0; e < 8; e++)
            u[e] *= sigmoid(u[e]);
        st8(y + n * k.ys + c, some, k.wide, u);
    }
}

/* The last K rows of each run, into the tail. Grid: rows, then blocks of 128 x 8 channels. */
template <typename T> __global__ void __launch_bounds__(128) conv_tail(struct conv k, const T *x, T *tail)
{
    const int64_t c = ((int64_t)blockIdx.y * 128 + threadIdx.x) * 8, n = blockIdx.x;

    if (c >= k.C || !*k.r.count || (n + k.K < k.r.N && k.r.seq[n + k.K] == k.r.seq[n]))
        return;
    for (int64_t e = c; e < c + 8 && e < k.C; e++)
        tail[((int64_t)k.r.seq[n] * k.K + k.r.pos[n] % k.K) * k.C + e] = x[n * k.xs + e];
}

extern "C" enum cairn_status cairn_short_conv_cuda(struct cairn_stream *s, const struct cairn_short_conv *a,
                                                   struct cairn_error *err)
{
    struct call c = call_begin("short_conv", s, err);
    int64_t N = -1, C = -1, K = -1, B = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_ACT, 2, &N, &C), w = call_arg(&c, "w", &a->w, T_WEIGHT, 2, &C, &K),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_ACT, 2, &N, &C), pos = call_arg(&c, "pos", &a->pos, T_I32, 1, &N),
               seq = call_arg(&c, "seq", &a->seq, T_I32, 1, &N),
               tail = call_arg(&c, "tail", &a->tail, OUT | ABSENT | T_ACT, 3, &B, &K, &C);
    struct conv k = {};
    void *room;

    if (call_ok(&c) && (K < 1 || K > 8))
        call_fail(&c, "%lld taps", (long long)K);
    if (!call_ok(&c) || !N || !C)
        return call_end(&c);
    room = call_scratch(&c, runs_room(N, B));
    if (!room)
        return call_end(&c);
    k.r = runs_find(&c, OP_short_conv, &pos, &seq, N, B, room);
    k.C = C, k.K = (int)K, k.xs = x.s[0], k.ys = y.s[0];
    k.wide = arg_align(&x) == 16 && arg_align(&y) == 16 && (!tail.p || arg_align(&tail) == 16);
    {
        dim3 grid((unsigned)ceil_div(C, 1024), (unsigned)ceil_div(N, ROWS)), each((unsigned)N, (unsigned)ceil_div(C, 1024));
        int w_bf16 = w.type == CAIRN_BF16;

        if (K <= 4)
            ON_ACT(x.type, T,
                   LAUNCH(&c, (conv_rows<T, 4>), grid, 128, 0, k, (const T *)x.p, w.p, w_bf16, (const T *)tail.p, (T *)y.p));
        else
            ON_ACT(x.type, T,
                   LAUNCH(&c, (conv_rows<T, 8>), grid, 128, 0, k, (const T *)x.p, w.p, w_bf16, (const T *)tail.p, (T *)y.p));
        if (tail.p)
            ON_ACT(x.type, T, LAUNCH(&c, conv_tail<T>, each, 128, 0, k, (const T *)x.p, (T *)tail.p));
    }
    return call_end(&c);
}

/* One channel, rows of one run of 64: dx of them, and part[run][c][j] of dw. */
template <typename T, int TAPS>
__global__ void __launch_bounds__(128)
    conv_bwd(struct conv k, const T *x, const void *w, int w_bf16, const T *dy, T *dx, float *part)
{
    const int64_t c = (int64_t)blockIdx.x * 128 + threadIdx.x, first = (int64_t)blockIdx.y * RUN_ROWS,
                  end = first + RUN_ROWS < k.r.N ? first + RUN_ROWS : k.r.N;
    float tap[TAPS], sum[TAPS], v[TAPS], du[TAPS]; /* v[j], du[j]: row m - K + 1 + j */

    if (c >= k.C || !*k.r.count)
        return;
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
        int64_t m = first - k.K + 1 + j;

        tap[j] = j < k.K ? ld_any(w, w_bf16, c * k.K + j) : 0.0f;
        sum[j] = du[j] = 0.0f;
        v[j] = j + 1 < k.K && m >= 0 ? ld(x + m * k.xs + c) : 0.0f;
    }
    for (int64_t m = first; m < end + k.K - 1; m++) {
        int p = m < k.r.N ? k.r.pos[m] : 0;
        float now = 0.0f;

        if (m < k.r.N) {
            float u = 0.0f, sg, last = ld(x + m * k.xs + c);

#pragma unroll
            for (int j = 0; j < TAPS; j++)
                if (j == k.K - 1)
                    v[j] = last;
#pragma unroll
            for (int j = 0; j < TAPS; j++)
                if (j < k.K && p >= k.K - 1 - j)
                    u = fmaf(tap[j], v[j], u);
            sg = sigmoid(u);
            now = ld(dy + m * k.ys + c) * (sg * fmaf(u, 1.0f - sg, 1.0f));
#pragma unroll
            for (int j = 0; j < TAPS; j++)
                if (j < k.K && p >= k.K - 1 - j && m < end)
                    sum[j] = fmaf(now, v[j], sum[j]);
        }
#pragma unroll
        for (int j = 0; j < TAPS; j++)
            if (j == k.K - 1)
                du[j] = now;
        if (m - k.K + 1 >= first) {
            const int64_t n = m - k.K + 1;
            float d = 0.0f;

#pragma unroll
            for (int j = 0; j < TAPS; j++) { /* row n + K - 1 - j */
                const int64_t at = m - j;
                float g = 0.0f;

                if (j >= k.K || at >= k.r.N || k.r.seq[at] != k.r.seq[n])
                    continue;
#pragma unroll
                for (int e = 0; e < TAPS; e++)
                    g = e == k.K - 1 - j ? du[e] : g;
                d = fmaf(tap[j], g, d);
            }
            st(dx + n * k.dxs + c, d);
        }
#pragma unroll
        for (int j = 0; j + 1 < TAPS; j++)
            v[j] = v[j + 1], du[j] = du[j + 1];
    }
#pragma unroll
    for (int j = 0; j < TAPS; j++)
        if (part && j < k.K)
            part[((int64_t)blockIdx.y * k.C + c) * k.K + j] = sum[j];
}

extern "C" enum cairn_status cairn_short_conv_bwd_cuda(struct cairn_stream *s, const struct cairn_short_conv_bwd *a,
                                                       struct cairn_error *err)
{
    struct call c = call_begin("short_conv_bwd", s, err);
    int64_t N = -1, C = -1, K = -1, parts;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_ACT, 2, &N, &C), w = call_arg(&c, "w", &a->w, T_WEIGHT, 2, &C, &K),
               dy = call_arg(&c, "dy", &a->dy, STRIDED | T_ACT, 2, &N, &C),
               dx = call_arg(&c, "dx", &a->dx, OUT | STRIDED | T_ACT, 2, &N, &C),
               dw = call_arg(&c, "dw", &a->dw, OUT | ABSENT | T_F32, 2, &C, &K), pos = call_arg(&c, "pos", &a->pos, T_I32, 1, &N),
               seq = call_arg(&c, "seq", &a->seq, T_I32, 1, &N);
    struct conv k = {};
    char *room;
    float *part;

    if (call_ok(&c) && (K < 1 || K > 8))
        call_fail(&c, "%lld taps", (long long)K);
    if (!call_ok(&c) || !N || !C)
        return call_end(&c);
    parts = ceil_div(N, RUN_ROWS);
    room = (char *)call_scratch(&c, runs_room(N, -1) + (dw.p ? (size_t)parts_floats(parts, C * K) * sizeof(float) : 0));
    if (!room)
        return call_end(&c);
    part = dw.p ? (float *)(room + runs_room(N, -1)) : NULL;
    k.r = runs_find(&c, OP_short_conv_bwd, &pos, &seq, N, -1, room);
    k.C = C, k.K = (int)K, k.xs = x.s[0], k.ys = dy.s[0], k.dxs = dx.s[0];
    {
        dim3 grid((unsigned)ceil_div(C, 128), (unsigned)parts);
        int w_bf16 = w.type == CAIRN_BF16;

        if (K <= 4)
            ON_ACT(x.type, T,
                   LAUNCH(&c, (conv_bwd<T, 4>), grid, 128, 0, k, (const T *)x.p, w.p, w_bf16, (const T *)dy.p, (T *)dx.p, part));
        else
            ON_ACT(x.type, T,
                   LAUNCH(&c, (conv_bwd<T, 8>), grid, 128, 0, k, (const T *)x.p, w.p, w_bf16, (const T *)dy.p, (T *)dx.p, part));
        if (dw.p)
            parts_sum(&c, part, parts, C * K, f32(&dw));
    }
    return call_end(&c);
}

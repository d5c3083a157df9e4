/* norm.cu - rmsnorm, its backward, layernorm.
 *
 * A row belongs to one warp where D <= 1024, else to a block of 256 threads. Chunk c of eight channels is thread c mod THREADS's;
 * a thread sums its chunks ascending, the warp by halves, the warps ascending: an order that D alone fixes. The first KEEP chunks
 * of a thread stay in registers between the two looks at the row, the others are fetched again.
 *
 * Floor: rmsnorm and layernorm read and write N*D, the backward reads 2 N*D and writes N*D (and reads 2 N*D again for dg).
 */
#include "kernel.cuh"

#define KEEP          4
#define ROWS(threads) (256 / (threads)) /* rows a block */

struct norm {
    int64_t N, D;
    int64_t xs, ys;     /* row strides */
    int x_wide, y_wide; /* rows may be read, written 16 bytes at a time */
    int g_bf16, g_wide, b_bf16, b_wide;
    float eps;
};

/* Sum over the threads of one row. */
template <int THREADS> __device__ static inline float row_sum(float x, float *room)
{
    return block_sum<THREADS / 32>(x, room);
}

template <typename T, int THREADS>
__global__ void __launch_bounds__(256) rmsnorm_rows(struct norm k, const T *x, const void *g, T *y, float *rstd)
{
    __shared__ float room[8];
    const int t = threadIdx.x % THREADS;
    const int64_t n = (int64_t)blockIdx.x * ROWS(THREADS) + threadIdx.x / THREADS;
    float u[KEEP][8], sum = 0.0f, r;

    if (n >= k.N)
        return; /* a whole warp, or a whole block */
    x += n * k.xs;
    y += n * k.ys;
#pragma unroll
    for (int c = 0; c < KEEP; c++) {
        int64_t i = (int64_t)(c * THREADS + t) * 8;

        ld8(x + i, k.D - i, k.x_wide, u[c]);
#pragma unroll
        for (int e = 0; e < 8; e++)
            sum = fmaf(u[c][e], u[c][e], sum);
    }
    for (int64_t i = (int64_t)(KEEP * THREADS + t) * 8; i < k.D; i += THREADS * 8) {
        float v[8];

        ld8(x + i, k.D - i, k.x_wide, v);
#pragma unroll
        for (int e = 0; e < 8; e++)
            sum = fmaf(v[e], v[e], sum);
    }
    r = 1.0f / sqrtf(row_sum<THREADS>(sum, room) / (float)k.D + k.eps);
    if (rstd && t == 0)
        rstd[n] = r;
#pragma unroll
    for (int c = 0; c < KEEP; c++) {
        int64_t i = (int64_t)(c * THREADS + t) * 8;
        float w[8];

        if (i >= k.D)
            break;
        ld8_any(g, k.g_bf16, i, k.D - i, k.g_wide, w);
#pragma unroll
        for (int e = 0; e < 8; e++)
            u[c][e] = as_act(u[c][e] * r, x) * w[e];
        st8(y + i, k.D - i, k.y_wide, u[c]);
    }
    for (int64_t i = (int64_t)(KEEP * THREADS + t) * 8; i < k.D; i += THREADS * 8) {
        float v[8], w[8];

        ld8(x + i, k.D - i, k.x_wide, v);
        ld8_any(g, k.g_bf16, i, k.D - i, k.g_wide, w);
#pragma unroll
        for (int e = 0; e < 8; e++)
            v[e] = as_act(v[e] * r, x) * w[e];
        st8(y + i, k.D - i, k.y_wide, v);
    }
}

extern "C" enum cairn_status cairn_rmsnorm_cuda(struct cairn_stream *s, const struct cairn_rmsnorm *a, struct cairn_error *err)
{
    struct call c = call_begin("rmsnorm", s, err);
    int64_t N = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_ACT, 2, &N, &D), g = call_arg(&c, "g", &a->g, T_WEIGHT, 1, &D),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_ACT, 2, &N, &D),
               rstd = call_arg(&c, "rstd", &a->rstd, OUT | ABSENT | T_F32, 1, &N);

    if (call_ok(&c) && N && D) {
        struct norm k = {N, D, x.s[0], y.s[0], arg_align(&x) == 16, arg_align(&y) == 16, g.type == CAIRN_BF16, arg_align(&g) == 16};

        k.eps = a->eps;
        if (D <= 1024)
            ON_ACT(
                x.type, T,
                LAUNCH(&c, (rmsnorm_rows<T, 32>), (unsigned)ceil_div(N, 8), 256, 0, k, (const T *)x.p, g.p, (T *)y.p, f32(&rstd)));
        else
            ON_ACT(x.type, T,
                   LAUNCH(&c, (rmsnorm_rows<T, 256>), (unsigned)N, 256, 0, k, (const T *)x.p, g.p, (T *)y.p, f32(&rstd)));
    }
    return call_end(&c);
}

/* ---- backward --------------------------------------------------------------------------------------------------------- */

struct norm_bwd {
    int64_t N, D;
    int64_t xs, dys, dxs;
    int wide; /* x, dy and dx may be moved 16 bytes at a time */
    int g_bf16, g_wide, accumulate;
};

template <typename T, int THREADS>
__global__ void __launch_bounds__(256)
    rmsnorm_dx(struct norm_bwd k, const T *x, const void *g, const float *rstd, const T *dy, T *dx)
{
    __shared__ float room[8];
    const int t = threadIdx.x % THREADS;
    const int64_t n = (int64_t)blockIdx.x * ROWS(THREADS) + threadIdx.x / THREADS;
    float sum = 0.0f, mean, r;

    if (n >= k.N)
        return;
    x += n * k.xs;
    dy += n * k.dys;
    dx += n * k.dxs;
    r = rstd[n];
    for (int64_t i = (int64_t)t * 8; i < k.D; i += THREADS * 8) {
        float u[8], d[8], w[8];

        ld8(x + i, k.D - i, k.wide, u);
        ld8(dy + i, k.D - i, k.wide, d);
        ld8_any(g, k.g_bf16, i, k.D - i, k.g_wide, w);
#pragma unroll
        for (int e = 0; e < 8; e++)
            sum = fmaf(d[e] * w[e], u[e] * r, sum);
    }
    mean = row_sum<THREADS>(sum, room) / (float)k.D;
    for (int64_t i = (int64_t)t * 8; i < k.D; i += THREADS * 8) { /* second look: in L1 */
        float u[8], d[8], w[8], o[8];

        ld8(x + i, k.D - i, k.wide, u);
        ld8(dy + i, k.D - i, k.wide, d);
        ld8_any(g, k.g_bf16, i, k.D - i, k.g_wide, w);
        if (k.accumulate)
            ld8(dx + i, k.D - i, k.wide, o);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            float v = r * (d[e] * w[e] - u[e] * r * mean);

            o[e] = k.accumulate ? o[e] + v : v;
        }
        st8(dx + i, k.D - i, k.wide, o);
    }
}

#define DG_ROWS 64 /* rows a run */

/* part[run][i] = sum over the run's rows, ascending, of dy*xh. Grid: blocks of 64 chunks of channels, times runs. */
template <typename T>
__global__ void __launch_bounds__(64) rmsnorm_dg_runs(struct norm_bwd k, const T *x, const float *rstd, const T *dy, float *part)
{
    const int64_t blocks = (k.D + 511) / 512, run = blockIdx.x / blocks,
                  i = ((int64_t)(blockIdx.x % blocks) * 64 + threadIdx.x) * 8;
    const int64_t end = (run + 1) * DG_ROWS < k.N ? (run + 1) * DG_ROWS : k.N;
    float sum[8] = {0.0f};

    if (i >= k.D)
        return;
#pragma unroll 4
    for (int64_t n = run * DG_ROWS; n < end; n++) {
        float u[8], d[8], r = rstd[n];

        ld8(x + n * k.xs + i, k.D - i, k.wide, u);
        ld8(dy + n * k.dys + i, k.D - i, k.wide, d);
#pragma unroll
        for (int e = 0; e < 8; e++)
            sum[e] = fmaf(d[e], u[e] * r, sum[e]);
    }
#pragma unroll
    for (int e = 0; e < 8; e++)
        if (i + e < k.D)
            part[run * k.D + i + e] = sum[e];
}

/* dg[i] += the runs of channel i, ascending */
__global__ void __launch_bounds__(128) rmsnorm_dg_sum(int64_t runs, int64_t D, const float *part, float *dg)
{
    const int64_t i = (int64_t)blockIdx.x * 128 + threadIdx.x;
    float sum = 0.0f;

    if (i >= D)
        return;
#pragma unroll 8
    for (int64_t r = 0; r < runs; r++)
        sum += part[r * D + i];
    dg[i] += sum;
}

extern "C" enum cairn_status cairn_rmsnorm_bwd_cuda(struct cairn_stream *s, const struct cairn_rmsnorm_bwd *a,
                                                    struct cairn_error *err)
{
    struct call c = call_begin("rmsnorm_bwd", s, err);
    int64_t N = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_ACT, 2, &N, &D), g = call_arg(&c, "g", &a->g, T_WEIGHT, 1, &D),
               rstd = call_arg(&c, "rstd", &a->rstd, T_F32, 1, &N), dy = call_arg(&c, "dy", &a->dy, STRIDED | T_ACT, 2, &N, &D),
               dx = call_arg(&c, "dx", &a->dx, OUT | STRIDED | T_ACT, 2, &N, &D),
               dg = call_arg(&c, "dg", &a->dg, OUT | ABSENT | T_F32, 1, &D);
    struct norm_bwd k = {N, D, x.s[0], dy.s[0], dx.s[0]};

    if (!call_ok(&c) || !N || !D)
        return call_end(&c);
    k.wide = arg_align(&x) == 16 && arg_align(&dy) == 16 && arg_align(&dx) == 16;
    k.g_bf16 = g.type == CAIRN_BF16;
    k.g_wide = arg_align(&g) == 16;
    k.accumulate = a->accumulate;
    if (dg.p) { /* first: dx may be dy */
        int64_t runs = ceil_div(N, DG_ROWS);
        float *part = (float *)call_scratch(&c, (size_t)(runs * D) * sizeof(float));

        ON_ACT(x.type, T,
               LAUNCH(&c, rmsnorm_dg_runs<T>, (unsigned)(ceil_div(D, 512) * runs), 64, 0, k, (const T *)x.p, f32(&rstd),
                      (const T *)dy.p, part));
        LAUNCH(&c, rmsnorm_dg_sum, (unsigned)ceil_div(D, 128), 128, 0, runs, D, part, f32(&dg));
    }
    if (D <= 1024)
        ON_ACT(x.type, T,
               LAUNCH(&c, (rmsnorm_dx<T, 32>), (unsigned)ceil_div(N, 8), 256, 0, k, (const T *)x.p, g.p, f32(&rstd),
                      (const T *)dy.p, (T *)dx.p));
    else
        ON_ACT(
            x.type, T,
            LAUNCH(&c, (rmsnorm_dx<T, 256>), (unsigned)N, 256, 0, k, (const T *)x.p, g.p, f32(&rstd), (const T *)dy.p, (T *)dx.p));
    return call_end(&c);
}

/* ---- layernorm ---------------------------------------------------------------------------------------------------------- */

template <typename T, int THREADS>
__global__ void __launch_bounds__(256) layernorm_rows(struct norm k, const T *x, const void *g, const void *b, T *y)
{
    __shared__ float room[2][8];
    const int t = threadIdx.x % THREADS;
    const int64_t n = (int64_t)blockIdx.x * ROWS(THREADS) + threadIdx.x / THREADS;
    float sum = 0.0f, mean, r;

    if (n >= k.N)
        return;
    x += n * k.xs;
    y += n * k.ys;
    for (int64_t i = (int64_t)t * 8; i < k.D; i += THREADS * 8) {
        float u[8];

        ld8(x + i, k.D - i, k.x_wide, u);
#pragma unroll
        for (int e = 0; e < 8; e++)
            sum += u[e];
    }
    mean = row_sum<THREADS>(sum, room[0]) / (float)k.D;
    sum = 0.0f;
    for (int64_t i = (int64_t)t * 8; i < k.D; i += THREADS * 8) {
        float u[8];

        ld8(x + i, k.D - i, k.x_wide, u);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            float d = i + e < k.D ? u[e] - mean : 0.0f;

            sum = fmaf(d, d, sum);
        }
    }
    r = 1.0f / sqrtf(row_sum<THREADS>(sum, room[1]) / (float)k.D + k.eps);
    for (int64_t i = (int64_t)t * 8; i < k.D; i += THREADS * 8) {
        float u[8], w[8], z[8];

        ld8(x + i, k.D - i, k.x_wide, u);
        ld8_any(g, k.g_bf16, i, k.D - i, k.g_wide, w);
        ld8_any(b, k.b_bf16, i, k.D - i, k.b_wide, z);
#pragma unroll
        for (int e = 0; e < 8; e++)
            u[e] = fmaf((u[e] - mean) * r, w[e], z[e]);
        st8(y + i, k.D - i, k.y_wide, u);
    }
}

extern "C" enum cairn_status cairn_layernorm_cuda(struct cairn_stream *s, const struct cairn_layernorm *a, struct cairn_error *err)
{
    struct call c = call_begin("layernorm", s, err);
    int64_t N = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_ACT, 2, &N, &D), g = call_arg(&c, "g", &a->g, T_WEIGHT, 1, &D),
               b = call_arg(&c, "b", &a->b, T_WEIGHT, 1, &D), y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_ACT, 2, &N, &D);

    if (call_ok(&c) && N && D) {
        struct norm k = {N, D, x.s[0], y.s[0], arg_align(&x) == 16, arg_align(&y) == 16, g.type == CAIRN_BF16, arg_align(&g) == 16};

        k.b_bf16 = b.type == CAIRN_BF16;
        k.b_wide = arg_align(&b) == 16;
        k.eps = a->eps;
        if (D <= 1024)
            ON_ACT(x.type, T,
                   LAUNCH(&c, (layernorm_rows<T, 32>), (unsigned)ceil_div(N, 8), 256, 0, k, (const T *)x.p, g.p, b.p, (T *)y.p));
        else
            ON_ACT(x.type, T, LAUNCH(&c, (layernorm_rows<T, 256>), (unsigned)N, 256, 0, k, (const T *)x.p, g.p, b.p, (T *)y.p));
    }
    return call_end(&c);
}

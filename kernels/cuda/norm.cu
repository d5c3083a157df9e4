/* norm.cu - rmsnorm, its backward, layernorm.
 *
 * A row belongs to one warp where D <= 1024, else to a block of 256 threads. Chunk c of eight channels is thread c mod THREADS's;
 * a thread sums its chunks ascending, the warp by halves, the warps ascending: an order that D alone fixes.
 *
 * Two kernels of each, with the same sums. The wide one, for bf16 rows of 16-byte pieces, at most MOST chunks a thread: a warp or
 * block takes every so-manieth row, the weights stay in its registers, and the next row is under way while one is summed and
 * written. The plain one takes any row, and looks at it again where it must.
 *
 * Floor: rmsnorm and layernorm read and write N*D, the backward reads 2 N*D and writes N*D (and reads 2 N*D again for dg).
 */
#include "kernel.cuh"

#define MOST          4                 /* chunks a thread of a wide kernel */
#define ROWS(threads) (256 / (threads)) /* rows a block has at a time */

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

/* The statement with THREADS and CHUNKS for rows of D channels. */
#define ON_CHUNKS_(D, T, ...)                                                                                                      \
    do {                                                                                                                           \
        enum { THREADS = T };                                                                                                      \
        switch (ceil_div(D, (int64_t)THREADS * 8)) {                                                                               \
        case 1: {                                                                                                                  \
            enum { CHUNKS = 1 };                                                                                                   \
            __VA_ARGS__;                                                                                                           \
            break;                                                                                                                 \
        }                                                                                                                          \
        case 2: {                                                                                                                  \
            enum { CHUNKS = 2 };                                                                                                   \
            __VA_ARGS__;                                                                                                           \
            break;                                                                                                                 \
        }                                                                                                                          \
        case 3: {                                                                                                                  \
            enum { CHUNKS = 3 };                                                                                                   \
            __VA_ARGS__;                                                                                                           \
            break;                                                                                                                 \
        }                                                                                                                          \
        default: {                                                                                                                 \
            enum { CHUNKS = MOST };                                                                                                \
            __VA_ARGS__;                                                                                                           \
        }                                                                                                                          \
        }                                                                                                                          \
    } while (0)
#define ON_CHUNKS(D, ...)                                                                                                          \
    do {                                                                                                                           \
        if ((D) <= 1024)                                                                                                           \
            ON_CHUNKS_(D, 32, __VA_ARGS__);                                                                                        \
        else                                                                                                                       \
            ON_CHUNKS_(D, 256, __VA_ARGS__);                                                                                       \
    } while (0)

static int is_wide(enum cairn_dtype type, int64_t D, int rows_wide)
{
    return type == CAIRN_BF16 && rows_wide && D % 8 == 0 && D <= 256 * 8 * MOST;
}

/* Blocks that a multiprocessor takes of the wide kernels, as registers allow. */
static constexpr int norm_blocks(int chunks, int mean)
{
    return chunks == 1 ? 5 - mean : chunks == 2 ? 4 - mean : 3 - mean;
}
static constexpr int dx_blocks(int chunks)
{
    return chunks == 1 ? 4 : 2;
}

/* Blocks of a wide kernel: as many as run at a time, or as there are rows. */
static unsigned wide_grid(const struct call *c, int64_t N, int threads, int blocks)
{
    const int64_t want = ceil_div(N, ROWS(threads)), most = (int64_t)c->cuda->sms * blocks;

    return (unsigned)(want < most ? want : most);
}

__device__ static inline void norm_weights(const struct norm *k, const void *g, const void *b, int64_t i, float w[8], float z[8])
{
    ld8_any(g, k->g_bf16, i, k->D - i, k->g_wide, w);
    if (b)
        ld8_any(b, k->b_bf16, i, k->D - i, k->b_wide, z);
}

/* rmsnorm (b NULL, MEAN 0) and layernorm (MEAN 1). */
template <int THREADS, int CHUNKS, int MEAN>
__global__ void __launch_bounds__(256, norm_blocks(CHUNKS, MEAN))
    norm_wide(struct norm k, const bf16 *x, const void *g, const void *b, bf16 *y, float *rstd)
{
    __shared__ float room[4][8]; /* by turns: a warp may be one sum ahead of another */
    const int t = threadIdx.x % THREADS;
    const int64_t step = (int64_t)gridDim.x * ROWS(THREADS);
    int64_t n = (int64_t)blockIdx.x * ROWS(THREADS) + threadIdx.x / THREADS;
    struct eight<bf16> next[CHUNKS];
    float w[CHUNKS][8], z[CHUNKS][8];
    constexpr int keeps = CHUNKS <= (MEAN ? 2 : 3); /* weights in registers */
    int turn = 0;

    if (n >= k.N)
        return; /* a whole warp, or a whole block */
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int i = (c * THREADS + t) * 8;

        next[c] = i < k.D ? fetch8(x + n * k.xs + i) : nothing8(x);
    }
    if (keeps)
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            norm_weights(&k, g, MEAN ? b : NULL, (c * THREADS + t) * 8, w[c], z[c]);
    for (; n < k.N; n += step, turn ^= 2) {
        float u[CHUNKS][8], sum = 0.0f, mean = 0.0f, r;

#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            open8(next[c], u[c]);
        if (n + step < k.N)
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                const int i = (c * THREADS + t) * 8;

                if (i < k.D)
                    next[c] = fetch8(x + (n + step) * k.xs + i);
            }
        if (MEAN) {
#pragma unroll
            for (int c = 0; c < CHUNKS; c++)
#pragma unroll
                for (int e = 0; e < 8; e++)
                    sum += u[c][e];
            mean = row_sum<THREADS>(sum, room[turn]) / (float)k.D;
            sum = 0.0f;
        }
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int e = 0; e < 8; e++) {
                if (MEAN)
                    u[c][e] = (c * THREADS + t) * 8 < k.D ? u[c][e] - mean : 0.0f;
                sum = fmaf(u[c][e], u[c][e], sum);
            }
        r = 1.0f / sqrtf(row_sum<THREADS>(sum, room[turn + 1]) / (float)k.D + k.eps);
        if (rstd && t == 0)
            rstd[n] = r;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const int i = (c * THREADS + t) * 8;

            if (!keeps)
                norm_weights(&k, g, MEAN ? b : NULL, i, w[c], z[c]);
#pragma unroll
            for (int e = 0; e < 8; e++)
                u[c][e] = MEAN ? fmaf(u[c][e] * r, w[c][e], z[c][e]) : as_act(u[c][e] * r, x) * w[c][e];
            if (i < k.D)
                st8(y + n * k.ys + i, 8, 1, u[c]);
        }
    }
}

template <typename T, int THREADS>
__global__ void __launch_bounds__(256) rmsnorm_rows(struct norm k, const T *x, const void *g, T *y, float *rstd)
{
    __shared__ float room[8];
    const int t = threadIdx.x % THREADS;
    const int64_t n = (int64_t)blockIdx.x * ROWS(THREADS) + threadIdx.x / THREADS;
    float sum = 0.0f, r;

    if (n >= k.N)
        return;
    x += n * k.xs;
    y += n * k.ys;
    for (int64_t i = (int64_t)t * 8; i < k.D; i += THREADS * 8) {
        float v[8];

        ld8(x + i, k.D - i, k.x_wide, v);
#pragma unroll
        for (int e = 0; e < 8; e++)
            sum = fmaf(v[e], v[e], sum);
    }
    r = 1.0f / sqrtf(row_sum<THREADS>(sum, room) / (float)k.D + k.eps);
    if (rstd && t == 0)
        rstd[n] = r;
    for (int64_t i = (int64_t)t * 8; i < k.D; i += THREADS * 8) {
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
        if (is_wide(x.type, D, k.x_wide && k.y_wide))
            ON_CHUNKS(D, LAUNCH(&c, (norm_wide<THREADS, CHUNKS, 0>), wide_grid(&c, N, THREADS, norm_blocks(CHUNKS, 0)), 256, 0, k,
                                (const bf16 *)x.p, g.p, NULL, (bf16 *)y.p, f32(&rstd)));
        else if (D <= 1024)
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

/* The wide kernel; as norm_wide. */
template <int THREADS, int CHUNKS>
__global__ void __launch_bounds__(256, dx_blocks(CHUNKS))
    rmsnorm_dx_wide(struct norm_bwd k, const bf16 *x, const void *g, const float *rstd, const bf16 *dy, bf16 *dx)
{
    __shared__ float room[2][8];
    const int t = threadIdx.x % THREADS;
    const int64_t step = (int64_t)gridDim.x * ROWS(THREADS);
    int64_t n = (int64_t)blockIdx.x * ROWS(THREADS) + threadIdx.x / THREADS;
    struct eight<bf16> next_x[CHUNKS], next_d[CHUNKS];
    float w[CHUNKS][8], next_r;
    constexpr int keeps = CHUNKS < 4;
    int turn = 0;

    if (n >= k.N)
        return;
    next_r = rstd[n];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int i = (c * THREADS + t) * 8;

        next_x[c] = i < k.D ? fetch8(x + n * k.xs + i) : nothing8(x);
        next_d[c] = i < k.D ? fetch8(dy + n * k.dys + i) : nothing8(dy);
    }
    if (keeps)
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            ld8_any(g, k.g_bf16, (c * THREADS + t) * 8, k.D - (c * THREADS + t) * 8, k.g_wide, w[c]);
    for (; n < k.N; n += step, turn ^= 1) {
        struct eight<bf16> now_x[CHUNKS], now_d[CHUNKS], old[CHUNKS];
        float r = next_r, sum = 0.0f, mean;

#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const int i = (c * THREADS + t) * 8;

            now_x[c] = next_x[c];
            now_d[c] = next_d[c];
            old[c] = k.accumulate && i < k.D ? fetch8((const bf16 *)dx + n * k.dxs + i) : nothing8(x);
        }
        if (n + step < k.N) {
            next_r = rstd[n + step];
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                const int i = (c * THREADS + t) * 8;

                if (i < k.D) {
                    next_x[c] = fetch8(x + (n + step) * k.xs + i);
                    next_d[c] = fetch8(dy + (n + step) * k.dys + i);
                }
            }
        }
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            float u[8], d[8];

            if (!keeps)
                ld8_any(g, k.g_bf16, (c * THREADS + t) * 8, k.D - (c * THREADS + t) * 8, k.g_wide, w[c]);
            open8(now_x[c], u);
            open8(now_d[c], d);
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum = fmaf(d[e] * w[c][e], u[e] * r, sum);
        }
        mean = row_sum<THREADS>(sum, room[turn]) / (float)k.D;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const int i = (c * THREADS + t) * 8;
            float u[8], d[8], o[8];

            if (!keeps)
                ld8_any(g, k.g_bf16, i, k.D - i, k.g_wide, w[c]);
            open8(now_x[c], u);
            open8(now_d[c], d);
            if (k.accumulate)
                open8(old[c], o);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                float v = r * (d[e] * w[c][e] - u[e] * r * mean);

                o[e] = k.accumulate ? o[e] + v : v;
            }
            if (i < k.D)
                st8(dx + n * k.dxs + i, 8, 1, o);
        }
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

/* The same for rows of 16-byte pieces, AHEAD rows under way at a time. */
__global__ void __launch_bounds__(64)
    rmsnorm_dg_wide(struct norm_bwd k, const bf16 *x, const float *rstd, const bf16 *dy, float *part)
{
    enum { AHEAD = 16 };
    const int64_t blocks = (k.D + 511) / 512, run = blockIdx.x / blocks,
                  i = ((int64_t)(blockIdx.x % blocks) * 64 + threadIdx.x) * 8;
    const int64_t end = (run + 1) * DG_ROWS < k.N ? (run + 1) * DG_ROWS : k.N;
    float sum[8] = {0.0f};

    if (i >= k.D)
        return;
    for (int64_t n = run * DG_ROWS; n < end; n += AHEAD) {
        struct eight<bf16> a[AHEAD], b[AHEAD];
        float r[AHEAD];

#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int64_t m = n + j < end ? n + j : end - 1;

            a[j] = fetch8(x + m * k.xs + i);
            b[j] = fetch8(dy + m * k.dys + i);
            r[j] = rstd[m];
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            float u[8], d[8];

            open8(a[j], u);
            open8(b[j], d);
            if (n + j < end)
#pragma unroll
                for (int e = 0; e < 8; e++)
                    sum[e] = fmaf(d[e], u[e] * r[j], sum[e]);
        }
    }
    st8(part + run * k.D + i, 8, 1, sum);
}

/* dg[i] += the runs of channel i, ascending */
__global__ void __launch_bounds__(128) rmsnorm_dg_sum(int64_t runs, int64_t D, const float *part, float *dg)
{
    const int64_t i = (int64_t)blockIdx.x * 128 + threadIdx.x;
    float sum = 0.0f;

    if (i >= D)
        return;
#pragma unroll 16
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

        if (is_wide(x.type, D, k.wide))
            LAUNCH(&c, rmsnorm_dg_wide, (unsigned)(ceil_div(D, 512) * runs), 64, 0, k, (const bf16 *)x.p, f32(&rstd),
                   (const bf16 *)dy.p, part);
        else
            ON_ACT(x.type, T,
                   LAUNCH(&c, rmsnorm_dg_runs<T>, (unsigned)(ceil_div(D, 512) * runs), 64, 0, k, (const T *)x.p, f32(&rstd),
                          (const T *)dy.p, part));
        LAUNCH(&c, rmsnorm_dg_sum, (unsigned)ceil_div(D, 128), 128, 0, runs, D, part, f32(&dg));
    }
    if (is_wide(x.type, D, k.wide))
        ON_CHUNKS(D, LAUNCH(&c, (rmsnorm_dx_wide<THREADS, CHUNKS>), wide_grid(&c, N, THREADS, dx_blocks(CHUNKS)), 256, 0, k,
                            (const bf16 *)x.p, g.p, f32(&rstd), (const bf16 *)dy.p, (bf16 *)dx.p));
    else if (D <= 1024)
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
        if (is_wide(x.type, D, k.x_wide && k.y_wide))
            ON_CHUNKS(D, LAUNCH(&c, (norm_wide<THREADS, CHUNKS, 1>), wide_grid(&c, N, THREADS, norm_blocks(CHUNKS, 1)), 256, 0, k,
                                (const bf16 *)x.p, g.p, b.p, (bf16 *)y.p, (float *)NULL));
        else if (D <= 1024)
            ON_ACT(x.type, T,
                   LAUNCH(&c, (layernorm_rows<T, 32>), (unsigned)ceil_div(N, 8), 256, 0, k, (const T *)x.p, g.p, b.p, (T *)y.p));
        else
            ON_ACT(x.type, T, LAUNCH(&c, (layernorm_rows<T, 256>), (unsigned)N, 256, 0, k, (const T *)x.p, g.p, b.p, (T *)y.p));
    }
    return call_end(&c);
}

/* kda_gate.cu - decay and beta of KDA, the gated norm, and their backwards. Gates: an element a thread, backward 64 rows of a
 * channel a thread; norm: a warp a row. Floor of the gates: forward 2 N*P act + 4 N*P bytes, of the norm: 3 N*P act.
 */
#include "runs.cuh"

#define RUN_ROWS 64

struct gate {
    int64_t N, P, D, H, fs, bs, dfs, dbs;
    float bound;
};

__device__ static inline float sigmoid(float x)
{
    float e = expf(-fabsf(x));

    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* sigmoid(x) * (1 - sigmoid(x)), without the difference */
__device__ static inline float slope(float x)
{
    float e = expf(-fabsf(x));

    return e / ((1.0f + e) * (1.0f + e));
}

__device__ static inline float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

template <typename T>
__global__ void __launch_bounds__(256)
    gate_elements(struct gate k, const T *f, const T *b, const float *a_log, const float *bias, float *g, float *beta)
{
    const int64_t n = blockIdx.y, i = (int64_t)blockIdx.x * 256 + threadIdx.x;

    if (i < k.P) {
        const float A = expf(a_log[i / k.D]), x = ld(f + n * k.fs + i) + bias[i];

        g[n * k.P + i] = k.bound < 0.0f ? k.bound * sigmoid(A * x) : -A * softplus(x);
    }
    if (i < k.H)
        beta[n * k.H + i] = sigmoid(ld(b + n * k.bs + i));
}

extern "C" enum cairn_status cairn_kda_gate_cuda(struct cairn_stream *s, const struct cairn_kda_gate *a, struct cairn_error *err)
{
    struct call c = call_begin("kda_gate", s, err);
    int64_t N = -1, P = -1, H = -1;
    struct arg f = call_arg(&c, "f", &a->f, STRIDED | T_ACT, 2, &N, &P), b = call_arg(&c, "b", &a->b, STRIDED | T_ACT, 2, &N, &H),
               a_log = call_arg(&c, "a_log", &a->a_log, T_F32, 1, &H), bias = call_arg(&c, "dt_bias", &a->dt_bias, T_F32, 1, &P),
               g = call_arg(&c, "g", &a->g, OUT | T_F32, 2, &N, &P), beta = call_arg(&c, "beta", &a->beta, OUT | T_F32, 2, &N, &H);

    if (call_ok(&c) && (H < 1 || P % H))
        call_fail(&c, "%lld channels in %lld heads", (long long)P, (long long)H);
    for (int64_t n = 0; call_ok(&c) && P && n < N; n += 65535) { /* a grid has at most so many rows */
        int64_t rows = N - n < 65535 ? N - n : 65535;
        struct gate k = {rows, P, P / H, H, f.s[0], b.s[0], 0, 0, a->bound};

        ON_ACT(f.type, T,
               LAUNCH(&c, gate_elements<T>, dim3((unsigned)ceil_div(P, 256), (unsigned)rows), 256, 0, k,
                      (const T *)f.p + n * f.s[0], (const T *)b.p + n * b.s[0], f32(&a_log), f32(&bias), f32(&g) + n * P,
                      f32(&beta) + n * H));
    }
    return call_end(&c);
}

/* A channel, 64 rows. part[run][0 .. P) of ddt_bias, then of da_log by channel. */
template <typename T>
__global__ void __launch_bounds__(128)
    gate_bwd(struct gate k, const T *f, const float *a_log, const float *bias, const float *dg, T *df, float *part)
{
    const int64_t i = (int64_t)blockIdx.x * 128 + threadIdx.x, first = (int64_t)blockIdx.y * RUN_ROWS,
                  end = first + RUN_ROWS < k.N ? first + RUN_ROWS : k.N;
    float A, shift, sum = 0.0f, logs = 0.0f;

    if (i >= k.P)
        return;
    A = expf(a_log[i / k.D]), shift = bias[i];
#pragma unroll 4
    for (int64_t n = first; n < end; n++) {
        const float x = ld(f + n * k.fs + i) + shift, d = dg[n * k.P + i];
        float da;

        if (k.bound < 0.0f) {
            da = A * (d * k.bound * slope(A * x));
            logs = fmaf(da, x, logs);
        } else {
            da = -d * A * sigmoid(x);
            logs = fmaf(d, -A * softplus(x), logs);
        }
        sum += da;
        st(df + n * k.dfs + i, da);
    }
    if (part) {
        part[(int64_t)blockIdx.y * 2 * k.P + i] = sum;
        part[((int64_t)blockIdx.y * 2 + 1) * k.P + i] = logs;
    }
}

template <typename T> __global__ void __launch_bounds__(256) beta_bwd(struct gate k, const T *b, const float *dbeta, T *db)
{
    const int64_t e = (int64_t)blockIdx.x * 256 + threadIdx.x, n = e / k.H, h = e % k.H;

    if (n < k.N)
        st(db + n * k.dbs + h, dbeta[e] * slope(ld(b + n * k.bs + h)));
}

__global__ void __launch_bounds__(128) gate_sums(struct gate k, const float *sums, float *da_log, float *dbias)
{
    const int64_t i = (int64_t)blockIdx.x * 128 + threadIdx.x;
    float sum = 0.0f;

    if (dbias && i < k.P)
        dbias[i] += sums[i];
    if (!da_log || i >= k.H)
        return;
    for (int64_t d = 0; d < k.D; d++)
        sum += sums[k.P + i * k.D + d];
    da_log[i] += sum;
}

__global__ void __launch_bounds__(256) zero_floats(float *x, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;

    if (i < n)
        x[i] = 0.0f;
}

extern "C" enum cairn_status cairn_kda_gate_bwd_cuda(struct cairn_stream *s, const struct cairn_kda_gate_bwd *a,
                                                     struct cairn_error *err)
{
    struct call c = call_begin("kda_gate_bwd", s, err);
    int64_t N = -1, P = -1, H = -1, parts;
    struct arg f = call_arg(&c, "f", &a->f, STRIDED | T_ACT, 2, &N, &P), b = call_arg(&c, "b", &a->b, STRIDED | T_ACT, 2, &N, &H),
               a_log = call_arg(&c, "a_log", &a->a_log, T_F32, 1, &H), bias = call_arg(&c, "dt_bias", &a->dt_bias, T_F32, 1, &P),
               dg = call_arg(&c, "dg", &a->dg, T_F32, 2, &N, &P), dbeta = call_arg(&c, "dbeta", &a->dbeta, T_F32, 2, &N, &H),
               df = call_arg(&c, "df", &a->df, OUT | STRIDED | T_ACT, 2, &N, &P),
               db = call_arg(&c, "db", &a->db, OUT | STRIDED | T_ACT, 2, &N, &H),
               da_log = call_arg(&c, "da_log", &a->da_log, OUT | ABSENT | T_F32, 1, &H),
               dbias = call_arg(&c, "ddt_bias", &a->ddt_bias, OUT | ABSENT | T_F32, 1, &P);
    struct gate k;
    float *sums = NULL, *part = NULL;

    if (call_ok(&c) && (H < 1 || P % H))
        call_fail(&c, "%lld channels in %lld heads", (long long)P, (long long)H);
    if (!call_ok(&c) || !N || !P)
        return call_end(&c);
    k = {N, P, P / H, H, f.s[0], b.s[0], df.s[0], db.s[0], a->bound};
    parts = ceil_div(N, RUN_ROWS);
    if (da_log.p || dbias.p) {
        sums = (float *)call_scratch(&c, (size_t)(2 * P + parts_floats(parts, 2 * P)) * sizeof(float));
        part = sums ? sums + 2 * P : NULL;
    }
    if (!call_ok(&c))
        return call_end(&c);
    ON_ACT(f.type, T,
           LAUNCH(&c, gate_bwd<T>, dim3((unsigned)ceil_div(P, 128), (unsigned)parts), 128, 0, k, (const T *)f.p, f32(&a_log),
                  f32(&bias), f32(&dg), (T *)df.p, part));
    ON_ACT(f.type, T, LAUNCH(&c, beta_bwd<T>, (unsigned)ceil_div(N * H, 256), 256, 0, k, (const T *)b.p, f32(&dbeta), (T *)db.p));
    if (sums) {
        LAUNCH(&c, zero_floats, (unsigned)ceil_div(2 * P, 256), 256, 0, sums, 2 * P);
        parts_sum(&c, part, parts, 2 * P, sums);
        LAUNCH(&c, gate_sums, (unsigned)ceil_div(P, 128), 128, 0, k, sums, f32(&da_log), f32(&dbias));
    }
    return call_end(&c);
}

/* ---- gated norm ----------------------------------------------------------------------------------------------------------- */

struct norm {
    int64_t N, D, xs, zs, ys, dys, dxs, dzs;
    int w_bf16;
    float eps;
};

#define WARPS 8 /* rows a block */

template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    gated_norm_rows(struct norm k, const T *x, const T *z, const void *w, T *y, float *rstd)
{
    const int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    float sum = 0.0f, r;

    if (n >= k.N)
        return;
    for (int64_t i = lane; i < k.D; i += 32) {
        const float u = ld(x + n * k.xs + i);

        sum = fmaf(u, u, sum);
    }
    r = 1.0f / sqrtf(warp_sum(sum) / (float)k.D + k.eps);
    for (int64_t i = lane; i < k.D; i += 32)
        st(y + n * k.ys + i, ld_any(w, k.w_bf16, i) * (ld(x + n * k.xs + i) * r) * sigmoid(ld(z + n * k.zs + i)));
    if (rstd && !lane)
        rstd[n] = r;
}

extern "C" enum cairn_status cairn_gated_norm_cuda(struct cairn_stream *s, const struct cairn_gated_norm *a,
                                                   struct cairn_error *err)
{
    struct call c = call_begin("gated_norm", s, err);
    int64_t N = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_ACT, 2, &N, &D), z = call_arg(&c, "z", &a->z, STRIDED | T_ACT, 2, &N, &D),
               w = call_arg(&c, "w", &a->w, T_WEIGHT, 1, &D), y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_ACT, 2, &N, &D),
               rstd = call_arg(&c, "rstd", &a->rstd, OUT | ABSENT | T_F32, 1, &N);
    struct norm k = {N, D, x.s[0], z.s[0], y.s[0], 0, 0, 0, w.type == CAIRN_BF16, a->eps};

    if (call_ok(&c) && N && D)
        ON_ACT(x.type, T,
               LAUNCH(&c, gated_norm_rows<T>, (unsigned)ceil_div(N, WARPS), 32 * WARPS, 0, k, (const T *)x.p, (const T *)z.p, w.p,
                      (T *)y.p, f32(&rstd)));
    return call_end(&c);
}

/* A channel, 64 rows: part[run][i] of dw. */
template <typename T>
__global__ void __launch_bounds__(128)
    gated_norm_dw(struct norm k, const T *x, const T *z, const float *rstd, const T *dy, float *part)
{
    const int64_t i = (int64_t)blockIdx.x * 128 + threadIdx.x, first = (int64_t)blockIdx.y * RUN_ROWS,
                  end = first + RUN_ROWS < k.N ? first + RUN_ROWS : k.N;
    float sum = 0.0f;

    if (i >= k.D)
        return;
#pragma unroll 4
    for (int64_t n = first; n < end; n++)
        sum = fmaf(ld(dy + n * k.dys + i) * sigmoid(ld(z + n * k.zs + i)), ld(x + n * k.xs + i) * rstd[n], sum);
    part[(int64_t)blockIdx.y * k.D + i] = sum;
}

template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    gated_norm_bwd_rows(struct norm k, const T *x, const T *z, const void *w, const float *rstd, const T *dy, T *dx, T *dz)
{
    const int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    float sum = 0.0f, r, mean;

    if (n >= k.N)
        return;
    r = rstd[n];
    for (int64_t i = lane; i < k.D; i += 32)
        sum = fmaf(ld(dy + n * k.dys + i) * ld_any(w, k.w_bf16, i) * sigmoid(ld(z + n * k.zs + i)), ld(x + n * k.xs + i) * r, sum);
    mean = warp_sum(sum) / (float)k.D;
    for (int64_t i = lane; i < k.D; i += 32) {
        const float xh = ld(x + n * k.xs + i) * r, d = ld(dy + n * k.dys + i) * ld_any(w, k.w_bf16, i), u = ld(z + n * k.zs + i);

        st(dx + n * k.dxs + i, r * (d * sigmoid(u) - xh * mean));
        st(dz + n * k.dzs + i, d * xh * slope(u));
    }
}

extern "C" enum cairn_status cairn_gated_norm_bwd_cuda(struct cairn_stream *s, const struct cairn_gated_norm_bwd *a,
                                                       struct cairn_error *err)
{
    struct call c = call_begin("gated_norm_bwd", s, err);
    int64_t N = -1, D = -1, parts;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_ACT, 2, &N, &D), z = call_arg(&c, "z", &a->z, STRIDED | T_ACT, 2, &N, &D),
               w = call_arg(&c, "w", &a->w, T_WEIGHT, 1, &D), rstd = call_arg(&c, "rstd", &a->rstd, T_F32, 1, &N),
               dy = call_arg(&c, "dy", &a->dy, STRIDED | T_ACT, 2, &N, &D),
               dx = call_arg(&c, "dx", &a->dx, OUT | STRIDED | T_ACT, 2, &N, &D),
               dz = call_arg(&c, "dz", &a->dz, OUT | STRIDED | T_ACT, 2, &N, &D),
               dw = call_arg(&c, "dw", &a->dw, OUT | ABSENT | T_F32, 1, &D);
    struct norm k = {N, D, x.s[0], z.s[0], 0, dy.s[0], dx.s[0], dz.s[0], w.type == CAIRN_BF16, 0.0f};

    if (!call_ok(&c) || !N || !D)
        return call_end(&c);
    parts = ceil_div(N, RUN_ROWS);
    if (dw.p) { /* first: dx may be dy or x */
        float *part = (float *)call_scratch(&c, (size_t)parts_floats(parts, D) * sizeof(float));

        for (int64_t p = 0; part && p < parts; p += 65535) {
            int64_t some = parts - p < 65535 ? parts - p : 65535, n = p * RUN_ROWS;
            struct norm m = k;

            m.N = N - n;
            ON_ACT(x.type, T,
                   LAUNCH(&c, gated_norm_dw<T>, dim3((unsigned)ceil_div(D, 128), (unsigned)some), 128, 0, m,
                          (const T *)x.p + n * k.xs, (const T *)z.p + n * k.zs, f32(&rstd) + n, (const T *)dy.p + n * k.dys,
                          part + p * D));
        }
        if (part)
            parts_sum(&c, part, parts, D, f32(&dw));
    }
    ON_ACT(x.type, T,
           LAUNCH(&c, gated_norm_bwd_rows<T>, (unsigned)ceil_div(N, WARPS), 32 * WARPS, 0, k, (const T *)x.p, (const T *)z.p, w.p,
                  f32(&rstd), (const T *)dy.p, (T *)dx.p, (T *)dz.p));
    return call_end(&c);
}

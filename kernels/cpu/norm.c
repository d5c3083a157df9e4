/* norm.c - rmsnorm, its backward, layernorm. */
#include <math.h>

#include "base/planted.h"
#include "norm.h"

struct rms {
    struct arg x, y, rstd;
    const float *w;
    int64_t D;
    float eps;
};

static void rms_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct rms *k = ctx;
    int64_t D = k->D;

    (void)scratch;
    for (int64_t n = begin; n < end; n++) {
        const float *u = at1(&k->x, n);
        float *v = at1(&k->y, n), r = 1.0f / sqrtf(norm_dot(u, u, D) / (float)D + k->eps);

        for (int64_t i = 0; i < D; i += VL) {
            int64_t m = D - i < VL ? D - i : VL;

            v16_storen(v + i, v16_loadn(u + i, m, 0.0f) * v16_set(r) * v16_loadn(k->w + i, m, 0.0f), m);
        }
        if (k->rstd.p)
            f32(&k->rstd)[n] = r;
    }
}

enum cairn_status cairn_rmsnorm_cpu(struct cairn_stream *s, const struct cairn_rmsnorm *a, struct cairn_error *err)
{
    struct call c = call_begin("rmsnorm", s, err);
    int64_t N = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &D), g = call_arg(&c, "g", &a->g, T_WEIGHT, 1, &D),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &N, &D),
               rstd = call_arg(&c, "rstd", &a->rstd, OUT | ABSENT | T_F32, 1, &N);

    if (call_ok(&c))
        call_reserve(&c, 0, (size_t)D * sizeof(float));
    if (call_ok(&c)) {
        struct rms k = {x, y, rstd, norm_weights(&g, scratch_shared(&c)), D, a->eps};

        call_share(&c, N, 1, N * D / 4, rms_rows, &k);
    }
    return call_end(&c);
}

struct rms_bwd {
    struct arg x, rstd, dy, dx, dg;
    const float *w;
    int64_t N, D;
    int accumulate;
};

/* dg of channels begin .. end: rows ascending */
static void dg_channels(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct rms_bwd *k = ctx;

    (void)scratch;
    for (int64_t i = begin; i < end; i += VL) {
        int64_t m = end - i < VL ? end - i : VL;
        v16 sum = v16_set(0.0f);

        for (int64_t n = 0; n < k->N; n++)
            sum = v16_fma(v16_loadn(at1(&k->dy, n) + i, m, 0.0f), v16_loadn(at1(&k->x, n) + i, m, 0.0f) * v16_set(f32(&k->rstd)[n]),
                          sum);
        v16_storen(f32(&k->dg) + i, v16_loadn(f32(&k->dg) + i, m, 0.0f) + sum, m);
    }
}

static void dx_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct rms_bwd *k = ctx;
    int64_t D = k->D;

    (void)scratch;
    for (int64_t n = begin; n < end; n++) {
        const float *u = at1(&k->x, n), *v = at1(&k->dy, n);
        float *o = at1(&k->dx, n);
        v16 r = v16_set(f32(&k->rstd)[n]), sum = v16_set(0.0f), mean;

        for (int64_t i = 0; i < D; i += VL) {
            int64_t m = D - i < VL ? D - i : VL;

            sum = v16_fma(v16_loadn(v + i, m, 0.0f) * v16_loadn(k->w + i, m, 0.0f), v16_loadn(u + i, m, 0.0f) * r, sum);
        }
        mean = v16_set(cairn_planted("rmsnorm-bwd-no-mean") ? 0.0f : v16_sum(sum) / (float)D);
        for (int64_t i = 0; i < D; i += VL) {
            int64_t m = D - i < VL ? D - i : VL;
            v16 xh = v16_loadn(u + i, m, 0.0f) * r;
            v16 d = r * (v16_loadn(v + i, m, 0.0f) * v16_loadn(k->w + i, m, 0.0f) - xh * mean);

            v16_storen(o + i, k->accumulate ? v16_loadn(o + i, m, 0.0f) + d : d, m);
        }
    }
}

enum cairn_status cairn_rmsnorm_bwd_cpu(struct cairn_stream *s, const struct cairn_rmsnorm_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("rmsnorm_bwd", s, err);
    int64_t N = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &D), g = call_arg(&c, "g", &a->g, T_WEIGHT, 1, &D),
               rstd = call_arg(&c, "rstd", &a->rstd, T_F32, 1, &N), dy = call_arg(&c, "dy", &a->dy, STRIDED | T_F32, 2, &N, &D),
               dx = call_arg(&c, "dx", &a->dx, OUT | STRIDED | T_F32, 2, &N, &D),
               dg = call_arg(&c, "dg", &a->dg, OUT | ABSENT | T_F32, 1, &D);

    if (call_ok(&c))
        call_reserve(&c, 0, (size_t)D * sizeof(float));
    if (call_ok(&c)) {
        struct rms_bwd k = {x, rstd, dy, dx, dg, norm_weights(&g, scratch_shared(&c)), N, D, a->accumulate};

        if (dg.p) /* first: dx may be dy */
            call_share(&c, D, VL, N * D / 4, dg_channels, &k);
        call_share(&c, N, 1, N * D / 2, dx_rows, &k);
    }
    return call_end(&c);
}

struct layer {
    struct arg x, y;
    const float *w, *shift;
    int64_t D;
    float eps;
};

static void layer_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct layer *k = ctx;
    int64_t D = k->D;

    (void)scratch;
    for (int64_t n = begin; n < end; n++) {
        const float *u = at1(&k->x, n);
        float *v = at1(&k->y, n), mean;
        v16 sum = v16_set(0.0f), r;

        for (int64_t i = 0; i < D; i += VL)
            sum = sum + v16_loadn(u + i, D - i < VL ? D - i : VL, 0.0f);
        mean = v16_sum(sum) / (float)D;
        sum = v16_set(0.0f);
        for (int64_t i = 0; i < D; i += VL) {
            v16 d = v16_loadn(u + i, D - i < VL ? D - i : VL, mean) - v16_set(mean);

            sum = v16_fma(d, d, sum);
        }
        r = v16_set(1.0f / sqrtf(v16_sum(sum) / (float)(cairn_planted("layernorm-n-minus-1") ? D - 1 : D) + k->eps));
        for (int64_t i = 0; i < D; i += VL) {
            int64_t m = D - i < VL ? D - i : VL;

            v16_storen(v + i,
                       v16_fma((v16_loadn(u + i, m, 0.0f) - v16_set(mean)) * r, v16_loadn(k->w + i, m, 0.0f),
                               v16_loadn(k->shift + i, m, 0.0f)),
                       m);
        }
    }
}

enum cairn_status cairn_layernorm_cpu(struct cairn_stream *s, const struct cairn_layernorm *a, struct cairn_error *err)
{
    struct call c = call_begin("layernorm", s, err);
    int64_t N = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &D), g = call_arg(&c, "g", &a->g, T_WEIGHT, 1, &D),
               b = call_arg(&c, "b", &a->b, T_WEIGHT, 1, &D), y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &N, &D);

    if (call_ok(&c))
        call_reserve(&c, 0, 2 * (size_t)D * sizeof(float));
    if (call_ok(&c)) {
        struct layer k = {x, y, norm_weights(&g, scratch_shared(&c)), norm_weights(&b, (float *)scratch_shared(&c) + D), D, a->eps};

        call_share(&c, N, 1, N * D / 2, layer_rows, &k);
    }
    return call_end(&c);
}

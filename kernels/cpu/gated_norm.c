/* gated_norm.c - norm with a sigmoid gate, and its backward. */
#include <math.h>

#include "base/planted.h"
#include "norm.h"
#include "vmath.h"

struct gated {
    struct arg x, z, y, rstd, dy, dx, dz, dw;
    const float *w;
    int64_t N, D;
    float eps;
};

static void norm_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct gated *k = ctx;
    int64_t D = k->D;

    (void)scratch;
    for (int64_t n = begin; n < end; n++) {
        float r = 1.0f / sqrtf(norm_dot(at1(&k->x, n), at1(&k->x, n), D) / (float)D + k->eps);

        for (int64_t i = 0; i < D; i += VL) {
            int64_t some = D - i < VL ? D - i : VL;

            v16_storen(at1(&k->y, n) + i,
                       v16_loadn(k->w + i, some, 0.0f) * (v16_loadn(at1(&k->x, n) + i, some, 0.0f) * v16_set(r)) *
                           v16_sigmoid(v16_loadn(at1(&k->z, n) + i, some, 0.0f)) *
                               (cairn_planted("gated-norm-silu") ? v16_loadn(at1(&k->z, n) + i, some, 0.0f) : v16_set(1.0f)),
                       some);
        }
        if (k->rstd.p)
            f32(&k->rstd)[n] = r;
    }
}

enum cairn_status cairn_gated_norm_cpu(struct cairn_stream *s, const struct cairn_gated_norm *a, struct cairn_error *err)
{
    struct call c = call_begin("gated_norm", s, err);
    int64_t N = -1, D = -1;
    struct gated k = {.x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &D), .eps = a->eps};
    struct arg w;

    k.z = call_arg(&c, "z", &a->z, STRIDED | T_F32, 2, &N, &D);
    w = call_arg(&c, "w", &a->w, T_WEIGHT, 1, &D);
    k.y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &N, &D);
    k.rstd = call_arg(&c, "rstd", &a->rstd, OUT | ABSENT | T_F32, 1, &N);
    k.N = N, k.D = D;
    if (call_ok(&c))
        call_reserve(&c, 0, (size_t)D * sizeof(float));
    if (call_ok(&c)) {
        k.w = norm_weights(&w, scratch_shared(&c));
        call_share(&c, N, 1, N * D * 2, norm_rows, &k);
    }
    return call_end(&c);
}

static void dw_channels(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct gated *k = ctx;

    (void)scratch;
    for (int64_t i = begin; i < end; i += VL) {
        int64_t some = end - i < VL ? end - i : VL;
        v16 sum = v16_set(0.0f);

        for (int64_t n = 0; n < k->N; n++)
            sum = v16_fma(v16_loadn(at1(&k->dy, n) + i, some, 0.0f) * v16_sigmoid(v16_loadn(at1(&k->z, n) + i, some, 0.0f)),
                          v16_loadn(at1(&k->x, n) + i, some, 0.0f) * v16_set(f32(&k->rstd)[n]), sum);
        v16_storen(f32(&k->dw) + i, v16_loadn(f32(&k->dw) + i, some, 0.0f) + sum, some);
    }
}

static void norm_bwd_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct gated *k = ctx;
    int64_t D = k->D;
    float *t = scratch;

    for (int64_t n = begin; n < end; n++) {
        v16 r = v16_set(f32(&k->rstd)[n]), sum = v16_set(0.0f), mean;

        for (int64_t i = 0; i < D; i += VL) {
            int64_t some = D - i < VL ? D - i : VL;
            v16 xh = v16_loadn(at1(&k->x, n) + i, some, 0.0f) * r, sg = v16_sigmoid(v16_loadn(at1(&k->z, n) + i, some, 0.0f));
            v16 d = v16_loadn(at1(&k->dy, n) + i, some, 0.0f) * v16_loadn(k->w + i, some, 0.0f);

            v16_store(t + i, d * sg);
            sum = v16_fma(d * sg, xh, sum);
            v16_storen(at1(&k->dz, n) + i, d * xh * (sg * (v16_set(1.0f) - sg)), some);
        }
        mean = v16_set(v16_sum(sum) / (float)D);
        for (int64_t i = 0; i < D; i += VL) {
            int64_t some = D - i < VL ? D - i : VL;
            v16 xh = v16_loadn(at1(&k->x, n) + i, some, 0.0f) * r;

            v16_storen(at1(&k->dx, n) + i, r * (v16_load(t + i) - xh * mean), some);
        }
    }
}

enum cairn_status cairn_gated_norm_bwd_cpu(struct cairn_stream *s, const struct cairn_gated_norm_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("gated_norm_bwd", s, err);
    int64_t N = -1, D = -1;
    struct gated k = {.x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &D)};
    struct arg w;

    k.z = call_arg(&c, "z", &a->z, STRIDED | T_F32, 2, &N, &D);
    w = call_arg(&c, "w", &a->w, T_WEIGHT, 1, &D);
    k.rstd = call_arg(&c, "rstd", &a->rstd, T_F32, 1, &N);
    k.dy = call_arg(&c, "dy", &a->dy, STRIDED | T_F32, 2, &N, &D);
    k.dx = call_arg(&c, "dx", &a->dx, OUT | STRIDED | T_F32, 2, &N, &D);
    k.dz = call_arg(&c, "dz", &a->dz, OUT | STRIDED | T_F32, 2, &N, &D);
    k.dw = call_arg(&c, "dw", &a->dw, OUT | ABSENT | T_F32, 1, &D);
    k.N = N, k.D = D;
    if (call_ok(&c))
        call_reserve(&c, (size_t)round_up(D, VL) * sizeof(float), (size_t)D * sizeof(float));
    if (call_ok(&c)) {
        k.w = norm_weights(&w, scratch_shared(&c));
        if (k.dw.p) /* first: dx may be dy */
            call_share(&c, D, VL, N * D * 2, dw_channels, &k);
        call_share(&c, N, 1, N * D * 3, norm_bwd_rows, &k);
    }
    return call_end(&c);
}

/* norm_ref.c - rmsnorm, its backward, layernorm, as their formulas read; sums in fp64. */
#include <math.h>

#include "internal.h"
#include "vec.h"

static double weight(const struct arg *g, int64_t i)
{
    return g->type == CAIRN_BF16 ? (double)bf16_to_f32(((const uint16_t *)g->p)[i]) : (double)f32(g)[i];
}

enum cairn_status cairn_rmsnorm_ref(struct cairn_stream *s, const struct cairn_rmsnorm *a, struct cairn_error *err)
{
    struct call c = call_begin("rmsnorm", s, err);
    int64_t N = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &D), g = call_arg(&c, "g", &a->g, T_WEIGHT, 1, &D),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &N, &D),
               rstd = call_arg(&c, "rstd", &a->rstd, OUT | ABSENT | T_F32, 1, &N);

    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        double sum = 0, r;

        for (int64_t i = 0; i < D; i++)
            sum += (double)at1(&x, n)[i] * at1(&x, n)[i];
        r = 1 / sqrt(sum / (double)D + a->eps);
        for (int64_t i = 0; i < D; i++)
            at1(&y, n)[i] = (float)(weight(&g, i) * at1(&x, n)[i] * r);
        if (rstd.p)
            f32(&rstd)[n] = (float)r;
    }
    return call_end(&c);
}

enum cairn_status cairn_rmsnorm_bwd_ref(struct cairn_stream *s, const struct cairn_rmsnorm_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("rmsnorm_bwd", s, err);
    int64_t N = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &D), g = call_arg(&c, "g", &a->g, T_WEIGHT, 1, &D),
               rstd = call_arg(&c, "rstd", &a->rstd, T_F32, 1, &N), dy = call_arg(&c, "dy", &a->dy, STRIDED | T_F32, 2, &N, &D),
               dx = call_arg(&c, "dx", &a->dx, OUT | STRIDED | T_F32, 2, &N, &D),
               dg = call_arg(&c, "dg", &a->dg, OUT | ABSENT | T_F32, 1, &D);

    for (int64_t i = 0; call_ok(&c) && dg.p && i < D; i++) {
        double sum = 0;

        for (int64_t n = 0; n < N; n++)
            sum += (double)at1(&dy, n)[i] * at1(&x, n)[i] * f32(&rstd)[n];
        f32(&dg)[i] = (float)(f32(&dg)[i] + sum);
    }
    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        double r = f32(&rstd)[n], mean = 0;

        for (int64_t i = 0; i < D; i++)
            mean += at1(&dy, n)[i] * weight(&g, i) * at1(&x, n)[i] * r / (double)D;
        for (int64_t i = 0; i < D; i++) {
            double d = r * (at1(&dy, n)[i] * weight(&g, i) - at1(&x, n)[i] * r * mean);

            at1(&dx, n)[i] = (float)(a->accumulate ? at1(&dx, n)[i] + d : d);
        }
    }
    return call_end(&c);
}

enum cairn_status cairn_layernorm_ref(struct cairn_stream *s, const struct cairn_layernorm *a, struct cairn_error *err)
{
    struct call c = call_begin("layernorm", s, err);
    int64_t N = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &D), g = call_arg(&c, "g", &a->g, T_WEIGHT, 1, &D),
               b = call_arg(&c, "b", &a->b, T_WEIGHT, 1, &D), y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &N, &D);

    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        double mean = 0, var = 0;

        for (int64_t i = 0; i < D; i++)
            mean += at1(&x, n)[i] / (double)D;
        for (int64_t i = 0; i < D; i++)
            var += (at1(&x, n)[i] - mean) * (at1(&x, n)[i] - mean) / (double)D;
        for (int64_t i = 0; i < D; i++)
            at1(&y, n)[i] = (float)(weight(&g, i) * (at1(&x, n)[i] - mean) / sqrt(var + a->eps) + weight(&b, i));
    }
    return call_end(&c);
}

/* kda_gate_ref.c - decay and beta of KDA, their backward, and the gated norm, as their formulas read; sums in fp64. */
#include <math.h>

#include "internal.h"
#include "vec.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double weight(const struct arg *w, int64_t i)
{
    return w->type == CAIRN_BF16 ? (double)bf16_to_f32(((const uint16_t *)w->p)[i]) : (double)f32(w)[i];
}

/* D from H and P = H * D. */
static int64_t per_head(struct call *c, int64_t P, int64_t H)
{
    if (call_ok(c) && (H < 1 || P % H))
        call_fail(c, "%lld channels in %lld heads", (long long)P, (long long)H);
    return H > 0 ? P / H : 1;
}

enum cairn_status cairn_kda_gate_ref(struct cairn_stream *s, const struct cairn_kda_gate *a, struct cairn_error *err)
{
    struct call c = call_begin("kda_gate", s, err);
    int64_t N = -1, P = -1, H = -1, D;
    struct arg f = call_arg(&c, "f", &a->f, STRIDED | T_F32, 2, &N, &P), b = call_arg(&c, "b", &a->b, STRIDED | T_F32, 2, &N, &H),
               a_log = call_arg(&c, "a_log", &a->a_log, T_F32, 1, &H), bias = call_arg(&c, "dt_bias", &a->dt_bias, T_F32, 1, &P),
               g = call_arg(&c, "g", &a->g, OUT | T_F32, 2, &N, &P), beta = call_arg(&c, "beta", &a->beta, OUT | T_F32, 2, &N, &H);

    D = per_head(&c, P, H);
    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        for (int64_t i = 0; i < P; i++) {
            double A = exp(f32(&a_log)[i / D]), x = (double)at1(&f, n)[i] + f32(&bias)[i];

            at1(&g, n)[i] = (float)(a->bound < 0 ? a->bound * sigmoid(A * x) : -A * (x > 20 ? x : log1p(exp(x))));
        }
        for (int64_t h = 0; h < H; h++)
            at1(&beta, n)[h] = (float)sigmoid(at1(&b, n)[h]);
    }
    return call_end(&c);
}

enum cairn_status cairn_kda_gate_bwd_ref(struct cairn_stream *s, const struct cairn_kda_gate_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("kda_gate_bwd", s, err);
    int64_t N = -1, P = -1, H = -1, D;
    struct arg f = call_arg(&c, "f", &a->f, STRIDED | T_F32, 2, &N, &P), b = call_arg(&c, "b", &a->b, STRIDED | T_F32, 2, &N, &H),
               a_log = call_arg(&c, "a_log", &a->a_log, T_F32, 1, &H), bias = call_arg(&c, "dt_bias", &a->dt_bias, T_F32, 1, &P),
               dg = call_arg(&c, "dg", &a->dg, T_F32, 2, &N, &P), dbeta = call_arg(&c, "dbeta", &a->dbeta, T_F32, 2, &N, &H),
               df = call_arg(&c, "df", &a->df, OUT | STRIDED | T_F32, 2, &N, &P),
               db = call_arg(&c, "db", &a->db, OUT | STRIDED | T_F32, 2, &N, &H),
               da_log = call_arg(&c, "da_log", &a->da_log, OUT | ABSENT | T_F32, 1, &H),
               dbias = call_arg(&c, "ddt_bias", &a->ddt_bias, OUT | ABSENT | T_F32, 1, &P);

    D = per_head(&c, P, H);
    for (int64_t h = 0; call_ok(&c) && h < H; h++) {
        double A = exp(f32(&a_log)[h]), heads = 0;

        for (int64_t i = h * D; i < (h + 1) * D; i++) {
            double channels = 0;

            for (int64_t n = 0; n < N; n++) {
                double x = (double)at1(&f, n)[i] + f32(&bias)[i], d = at1(&dg, n)[i], sg = sigmoid(A * x), da;

                if (a->bound < 0) {
                    da = A * d * a->bound * sg * (1 - sg);
                    heads += da * x;
                } else {
                    da = -d * A * sigmoid(x);
                    heads += d * -A * (x > 20 ? x : log1p(exp(x)));
                }
                at1(&df, n)[i] = (float)da;
                channels += da;
            }
            if (dbias.p)
                f32(&dbias)[i] = (float)(f32(&dbias)[i] + channels);
        }
        if (da_log.p)
            f32(&da_log)[h] = (float)(f32(&da_log)[h] + heads);
        for (int64_t n = 0; n < N; n++) {
            double sg = sigmoid(at1(&b, n)[h]);

            at1(&db, n)[h] = (float)(at1(&dbeta, n)[h] * sg * (1 - sg));
        }
    }
    return call_end(&c);
}

enum cairn_status cairn_gated_norm_ref(struct cairn_stream *s, const struct cairn_gated_norm *a, struct cairn_error *err)
{
    struct call c = call_begin("gated_norm", s, err);
    int64_t N = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &D), z = call_arg(&c, "z", &a->z, STRIDED | T_F32, 2, &N, &D),
               w = call_arg(&c, "w", &a->w, T_WEIGHT, 1, &D), y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &N, &D),
               rstd = call_arg(&c, "rstd", &a->rstd, OUT | ABSENT | T_F32, 1, &N);

    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        double sum = 0, r;

        for (int64_t i = 0; i < D; i++)
            sum += (double)at1(&x, n)[i] * at1(&x, n)[i];
        r = 1 / sqrt(sum / (double)D + a->eps);
        for (int64_t i = 0; i < D; i++)
            at1(&y, n)[i] = (float)(weight(&w, i) * at1(&x, n)[i] * r * sigmoid(at1(&z, n)[i]));
        if (rstd.p)
            f32(&rstd)[n] = (float)r;
    }
    return call_end(&c);
}

enum cairn_status cairn_gated_norm_bwd_ref(struct cairn_stream *s, const struct cairn_gated_norm_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("gated_norm_bwd", s, err);
    int64_t N = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &D), z = call_arg(&c, "z", &a->z, STRIDED | T_F32, 2, &N, &D),
               w = call_arg(&c, "w", &a->w, T_WEIGHT, 1, &D), rstd = call_arg(&c, "rstd", &a->rstd, T_F32, 1, &N),
               dy = call_arg(&c, "dy", &a->dy, STRIDED | T_F32, 2, &N, &D),
               dx = call_arg(&c, "dx", &a->dx, OUT | STRIDED | T_F32, 2, &N, &D),
               dz = call_arg(&c, "dz", &a->dz, OUT | STRIDED | T_F32, 2, &N, &D),
               dw = call_arg(&c, "dw", &a->dw, OUT | ABSENT | T_F32, 1, &D);

    for (int64_t i = 0; call_ok(&c) && dw.p && i < D; i++) {
        double sum = f32(&dw)[i];

        for (int64_t n = 0; n < N; n++)
            sum += (double)at1(&dy, n)[i] * at1(&x, n)[i] * f32(&rstd)[n] * sigmoid(at1(&z, n)[i]);
        f32(&dw)[i] = (float)sum;
    }
    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        double r = f32(&rstd)[n], mean = 0;

        for (int64_t i = 0; i < D; i++)
            mean += at1(&dy, n)[i] * weight(&w, i) * sigmoid(at1(&z, n)[i]) * at1(&x, n)[i] * r / (double)D;
        for (int64_t i = 0; i < D; i++) {
            double sg = sigmoid(at1(&z, n)[i]), t = at1(&dy, n)[i] * weight(&w, i), xh = at1(&x, n)[i] * r;

            at1(&dx, n)[i] = (float)(r * (t * sg - xh * mean));
            at1(&dz, n)[i] = (float)(t * xh * sg * (1 - sg));
        }
    }
    return call_end(&c);
}

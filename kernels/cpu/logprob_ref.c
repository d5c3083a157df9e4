/* logprob_ref.c - log-probabilities and their backward as their formulas read, in fp64; and the row of it that sample_ref shares.
 */
#include <math.h>
#include <stdlib.h>

#include "head_ref.h"
#include "internal.h"
#include "vec.h"

double head_ref_lse(const float *x, int64_t V)
{
    double most = -INFINITY, sum = 0;

    for (int64_t v = 0; v < V; v++)
        most = x[v] > most ? x[v] : most;
    for (int64_t v = 0; v < V; v++)
        sum += exp(x[v] - most);
    return most + log(sum);
}

static double weight(const struct arg *w, int64_t v, int64_t d)
{
    int64_t i = v * w->s[0] + d;

    return w->type == CAIRN_BF16 ? (double)bf16_to_f32(((const uint16_t *)w->p)[i]) : (double)f32(w)[i];
}

/* x = (z . w^T rounded to fp32, as matmul gives it) * inv_temperature */
static void scaled_logits(const float *z, const struct arg *w, float inv_temperature, float *x)
{
    for (int64_t v = 0; v < w->d[0]; v++) {
        double sum = 0;

        for (int64_t d = 0; d < w->d[1]; d++)
            sum += z[d] * weight(w, v, d);
        x[v] = (float)sum * inv_temperature;
    }
}

enum cairn_status cairn_logprob_ref(struct cairn_stream *s, const struct cairn_logprob *a, struct cairn_error *err)
{
    struct call c = call_begin("logprob", s, err);
    int64_t N = -1, D = -1, V = -1;
    struct arg z = call_arg(&c, "z", &a->z, STRIDED | T_F32, 2, &N, &D),
               w = call_arg(&c, "w", &a->w, STRIDED | T_WEIGHT, 2, &V, &D),
               target = call_arg(&c, "target", &a->target, T_I32, 1, &N),
               logprob = call_arg(&c, "logprob", &a->logprob, OUT | T_F32, 1, &N),
               lse = call_arg(&c, "lse", &a->lse, OUT | T_F32, 1, &N),
               entropy = call_arg(&c, "entropy", &a->entropy, OUT | ABSENT | T_F32, 1, &N),
               argmax = call_arg(&c, "argmax", &a->argmax, OUT | ABSENT | T_I32, 1, &N);

    call_reserve(&c, 0, call_ok(&c) ? (size_t)V * sizeof(float) : 0);
    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        float *x = scratch_shared(&c);
        int32_t t = i32(&target)[n], best = 0;
        double total = 0, h = 0;

        if (t >= V || t < -1)
            call_fail(&c, "target %d of row %lld is not below %lld", t, (long long)n, (long long)V);
        if (t >= 0 && call_ok(&c)) {
            scaled_logits(at1(&z, n), &w, a->inv_temperature, x);
            total = head_ref_lse(x, V);
            for (int64_t v = 0; v < V; v++) {
                h -= x[v] == -INFINITY ? 0 : exp(x[v] - total) * (x[v] - total);
                if (x[v] > x[best])
                    best = (int32_t)v;
            }
        } else {
            best = -1;
        }
        f32(&logprob)[n] = t >= 0 ? (float)(x[t] - total) : 0;
        f32(&lse)[n] = (float)total;
        if (entropy.p)
            f32(&entropy)[n] = (float)h;
        if (argmax.p)
            i32(&argmax)[n] = best;
    }
    return call_end(&c);
}

enum cairn_status cairn_logprob_bwd_ref(struct cairn_stream *s, const struct cairn_logprob_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("logprob_bwd", s, err);
    int64_t N = -1, D = -1, V = -1;
    struct arg z = call_arg(&c, "z", &a->z, STRIDED | T_F32, 2, &N, &D),
               w = call_arg(&c, "w", &a->w, STRIDED | T_WEIGHT, 2, &V, &D),
               target = call_arg(&c, "target", &a->target, T_I32, 1, &N), lse = call_arg(&c, "lse", &a->lse, T_F32, 1, &N),
               dentropy = call_arg(&c, "dentropy", &a->dentropy, ABSENT | T_F32, 1, &N),
               entropy = call_arg(&c, "entropy", &a->entropy, (a->dentropy.buf ? 0 : ABSENT) | T_F32, 1, &N),
               dlogprob = call_arg(&c, "dlogprob", &a->dlogprob, T_F32, 1, &N),
               dz = call_arg(&c, "dz", &a->dz, OUT | STRIDED | T_F32, 2, &N, &D),
               dw = call_arg(&c, "dw", &a->dw, OUT | ABSENT | STRIDED | T_F32, 2, &V, &D);

    call_reserve(&c, 0, call_ok(&c) ? (size_t)V * sizeof(float) + (size_t)(D + V * D) * sizeof(double) : 0);
    if (call_ok(&c)) {
        double *sum = scratch_shared(&c), *all = sum + D; /* all (V, D): dw in fp64 */
        float *x = (float *)(all + V * D);

        for (int64_t i = 0; dw.p && i < V * D; i++)
            all[i] = at1(&dw, i / D)[i % D];
        for (int64_t n = 0; n < N; n++) {
            int32_t t = i32(&target)[n];

            for (int64_t d = 0; d < D; d++)
                sum[d] = 0;
            if (t >= 0 && t < V)
                scaled_logits(at1(&z, n), &w, a->inv_temperature, x);
            for (int64_t v = 0; t >= 0 && t < V && v < V; v++) {
                double lp = (double)x[v] - f32(&lse)[n], p = exp(lp), dl = f32(&dlogprob)[n] * ((v == t) - p);

                if (dentropy.p && p > 0)
                    dl -= f32(&dentropy)[n] * p * (lp + f32(&entropy)[n]);
                dl *= a->inv_temperature;
                for (int64_t d = 0; d < D; d++) {
                    sum[d] += dl * weight(&w, v, d);
                    if (dw.p)
                        all[v * D + d] += dl * at1(&z, n)[d];
                }
            }
            for (int64_t d = 0; d < D; d++)
                at1(&dz, n)[d] = (float)sum[d];
        }
        for (int64_t i = 0; dw.p && i < V * D; i++)
            at1(&dw, i / D)[i % D] = (float)all[i];
    }
    return call_end(&c);
}

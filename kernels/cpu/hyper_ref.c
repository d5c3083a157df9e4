/* hyper_ref.c - hyper-connections as their formulas read: mixing weights through the unrolled Sinkhorn loop, streams in and out,
 * and the backward of each; sums in fp64.
 */
#include <math.h>
#include <string.h>

#include "internal.h"

#define MOST   8
#define ROUNDS 64 /* normalisations that are kept for the backward */

/* What one row's weights went through. */
struct trace {
    double logit[MOST * (MOST + 2)], soft[MOST][MOST], step[2 * ROUNDS][MOST][MOST], sum[2 * ROUNDS][MOST];
    int steps;
};

static int group(int i, int J)
{
    return i < J ? 0 : i < 2 * J ? 1 : 2;
}

static void normalise(struct trace *t, const double in[MOST][MOST], int J, int columns, double eps)
{
    int s = t->steps++;

    for (int a = 0; a < J; a++) {
        double sum = eps;

        for (int b = 0; b < J; b++)
            sum += columns ? in[b][a] : in[a][b];
        t->sum[s][a] = sum;
        for (int b = 0; b < J; b++)
            if (columns)
                t->step[s][b][a] = in[b][a] / sum;
            else
                t->step[s][a][b] = in[a][b] / sum;
    }
}

/* Logits, softmax and loop of one row. */
static void weigh(struct trace *t, const float *m, double rstd, const float *base, const float *scale, int J, double eps,
                  int rounds)
{
    double start[MOST][MOST];

    t->steps = 0;
    for (int i = 0; i < J * (J + 2); i++)
        t->logit[i] = scale[group(i, J)] * (double)m[i] * rstd + base[i];
    for (int i = 0; i < J; i++) {
        const double *l = t->logit + 2 * J + i * J;
        double most = l[0], sum = 0;

        for (int j = 1; j < J; j++)
            most = l[j] > most ? l[j] : most;
        for (int j = 0; j < J; j++)
            sum += t->soft[i][j] = exp(l[j] - most);
        for (int j = 0; j < J; j++) {
            t->soft[i][j] /= sum;
            start[i][j] = t->soft[i][j] + eps;
        }
    }
    normalise(t, start, J, 1, eps);
    for (int r = 1; r < rounds; r++) {
        normalise(t, t->step[t->steps - 1], J, 0, eps);
        normalise(t, t->step[t->steps - 1], J, 1, eps);
    }
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void check(struct call *c, int64_t J, int64_t M, int rounds)
{
    if (call_ok(c) && (J < 1 || J > MOST || M != J * (J + 2)))
        call_fail(c, "%lld mixing weights for %lld streams", (long long)M, (long long)J);
    if (call_ok(c) && (rounds < 1 || rounds > ROUNDS))
        call_fail(c, "iterations = %d", rounds);
}

enum cairn_status cairn_hyper_ref(struct cairn_stream *s, const struct cairn_hyper *a, struct cairn_error *err)
{
    struct call c = call_begin("hyper", s, err);
    int64_t N = -1, J = -1, D = -1, M = -1, three = 3;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 3, &N, &J, &D), m = call_arg(&c, "m", &a->m, T_F32, 2, &N, &M),
               base = call_arg(&c, "base", &a->base, T_F32, 1, &M), scale = call_arg(&c, "scale", &a->scale, T_F32, 1, &three),
               mix = call_arg(&c, "mix", &a->mix, OUT | T_F32, 2, &N, &M),
               rstd = call_arg(&c, "rstd", &a->rstd, OUT | T_F32, 1, &N),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &N, &D);
    struct trace t;

    check(&c, J, M, a->iterations);
    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        float *w = at1(&mix, n);
        double sum = 0;

        for (int64_t i = 0; i < J; i++)
            for (int64_t d = 0; d < D; d++)
                sum += (double)at2(&x, n, i)[d] * at2(&x, n, i)[d];
        sum = 1 / sqrt(sum / (double)(J * D) + a->norm_eps);
        f32(&rstd)[n] = (float)sum;
        weigh(&t, at1(&m, n), sum, base.p, scale.p, (int)J, a->eps, a->iterations);
        for (int64_t i = 0; i < J; i++) {
            w[i] = (float)(sigmoid(t.logit[i]) + a->eps);
            w[J + i] = (float)(2 * sigmoid(t.logit[J + i]));
            for (int64_t j = 0; j < J; j++)
                w[2 * J + i * J + j] = (float)t.step[t.steps - 1][i][j];
        }
        for (int64_t d = 0; d < D; d++) {
            double in = 0;

            for (int64_t i = 0; i < J; i++)
                in += (sigmoid(t.logit[i]) + a->eps) * at2(&x, n, i)[d];
            at1(&y, n)[d] = (float)in;
        }
    }
    return call_end(&c);
}

/* dl: gradients of the logits, from those of post and comb in dmix and of pre in dpre. */
static void weigh_bwd(const struct trace *t, const float *dmix, const double *dpre, double *dl, int J)
{
    double d[MOST][MOST];

    for (int i = 0; i < J; i++) {
        double p = sigmoid(t->logit[i]), q = sigmoid(t->logit[J + i]);

        dl[i] = dpre[i] * p * (1 - p);
        dl[J + i] = dmix[J + i] * 2 * q * (1 - q);
        for (int j = 0; j < J; j++)
            d[i][j] = dmix[2 * J + i * J + j];
    }
    for (int s = t->steps - 1; s >= 0; s--)
        for (int a = 0; a < J; a++) {
            double dot = 0;
            int columns = s % 2 == 0;

            for (int b = 0; b < J; b++)
                dot += columns ? d[b][a] * t->step[s][b][a] : d[a][b] * t->step[s][a][b];
            for (int b = 0; b < J; b++)
                if (columns)
                    d[b][a] = (d[b][a] - dot) / t->sum[s][a];
                else
                    d[a][b] = (d[a][b] - dot) / t->sum[s][a];
        }
    for (int i = 0; i < J; i++) {
        double dot = 0;

        for (int j = 0; j < J; j++)
            dot += d[i][j] * t->soft[i][j];
        for (int j = 0; j < J; j++)
            dl[2 * J + i * J + j] = t->soft[i][j] * (d[i][j] - dot);
    }
}

enum cairn_status cairn_hyper_bwd_ref(struct cairn_stream *s, const struct cairn_hyper_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("hyper_bwd", s, err);
    int64_t N = -1, J = -1, D = -1, M = -1, three = 3;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 3, &N, &J, &D), m = call_arg(&c, "m", &a->m, T_F32, 2, &N, &M),
               base = call_arg(&c, "base", &a->base, T_F32, 1, &M), scale = call_arg(&c, "scale", &a->scale, T_F32, 1, &three),
               rstd = call_arg(&c, "rstd", &a->rstd, T_F32, 1, &N), dy = call_arg(&c, "dy", &a->dy, STRIDED | T_F32, 2, &N, &D),
               dmix = call_arg(&c, "dmix", &a->dmix, T_F32, 2, &N, &M), dm = call_arg(&c, "dm", &a->dm, OUT | T_F32, 2, &N, &M),
               dx = call_arg(&c, "dx", &a->dx, OUT | STRIDED | T_F32, 3, &N, &J, &D),
               dbase = call_arg(&c, "dbase", &a->dbase, OUT | ABSENT | T_F32, 1, &M),
               dscale = call_arg(&c, "dscale", &a->dscale, OUT | ABSENT | T_F32, 1, &three);
    double sums[MOST * (MOST + 2)] = {0}, scales[3] = {0};
    struct trace t;

    check(&c, J, M, a->iterations);
    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        double dpre[MOST] = {0}, dl[MOST * (MOST + 2)], r = f32(&rstd)[n], dr = 0;

        for (int64_t i = 0; i < J; i++)
            for (int64_t d = 0; d < D; d++)
                dpre[i] += (double)at1(&dy, n)[d] * at2(&x, n, i)[d];
        weigh(&t, at1(&m, n), r, base.p, scale.p, (int)J, a->eps, a->iterations);
        weigh_bwd(&t, at1(&dmix, n), dpre, dl, (int)J);
        for (int i = 0; i < M; i++) {
            double g = f32(&scale)[group(i, (int)J)];

            sums[i] += dl[i];
            scales[group(i, (int)J)] += dl[i] * at1(&m, n)[i] * r;
            dr += dl[i] * g * at1(&m, n)[i];
            at1(&dm, n)[i] = (float)(dl[i] * g * r);
        }
        for (int64_t i = 0; i < J; i++)
            for (int64_t d = 0; d < D; d++)
                at2(&dx, n, i)[d] = (float)(at2(&dx, n, i)[d] + (sigmoid(t.logit[i]) + a->eps) * at1(&dy, n)[d] -
                                            at2(&x, n, i)[d] * dr * r * r * r / (double)(J * D));
    }
    for (int64_t i = 0; call_ok(&c) && dbase.p && i < M; i++)
        f32(&dbase)[i] = (float)(f32(&dbase)[i] + sums[i]);
    for (int64_t i = 0; call_ok(&c) && dscale.p && i < 3; i++)
        f32(&dscale)[i] = (float)(f32(&dscale)[i] + scales[i]);
    return call_end(&c);
}

enum cairn_status cairn_hyper_out_ref(struct cairn_stream *s, const struct cairn_hyper_out *a, struct cairn_error *err)
{
    struct call c = call_begin("hyper_out", s, err);
    int64_t N = -1, J = -1, D = -1, M = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 3, &N, &J, &D),
               y = call_arg(&c, "y", &a->y, STRIDED | T_F32, 2, &N, &D), mix = call_arg(&c, "mix", &a->mix, T_F32, 2, &N, &M),
               out = call_arg(&c, "out", &a->out, OUT | STRIDED | T_F32, 3, &N, &J, &D);

    check(&c, J, M, 1);
    for (int64_t n = 0; call_ok(&c) && n < N; n++)
        for (int64_t d = 0; d < D; d++) {
            double now[MOST];

            for (int64_t j = 0; j < J; j++) {
                now[j] = (double)at1(&mix, n)[J + j] * at1(&y, n)[d];
                for (int64_t i = 0; i < J; i++)
                    now[j] += (double)at1(&mix, n)[2 * J + i * J + j] * at2(&x, n, i)[d];
            }
            for (int64_t j = 0; j < J; j++)
                at2(&out, n, j)[d] = (float)now[j];
        }
    return call_end(&c);
}

enum cairn_status cairn_hyper_out_bwd_ref(struct cairn_stream *s, const struct cairn_hyper_out_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("hyper_out_bwd", s, err);
    int64_t N = -1, J = -1, D = -1, M = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 3, &N, &J, &D),
               y = call_arg(&c, "y", &a->y, STRIDED | T_F32, 2, &N, &D), mix = call_arg(&c, "mix", &a->mix, T_F32, 2, &N, &M),
               dout = call_arg(&c, "dout", &a->dout, STRIDED | T_F32, 3, &N, &J, &D),
               dy = call_arg(&c, "dy", &a->dy, OUT | STRIDED | T_F32, 2, &N, &D),
               dmix = call_arg(&c, "dmix", &a->dmix, OUT | T_F32, 2, &N, &M),
               dx = call_arg(&c, "dx", &a->dx, OUT | STRIDED | T_F32, 3, &N, &J, &D);

    check(&c, J, M, 1);
    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        const float *w = at1(&mix, n);
        double d_mix[MOST * (MOST + 2)] = {0};

        for (int64_t d = 0; d < D; d++) {
            double now[MOST] = {0}, dy_d = 0;

            for (int64_t j = 0; j < J; j++) {
                double g = at2(&dout, n, j)[d];

                dy_d += w[J + j] * g;
                d_mix[J + j] += g * at1(&y, n)[d];
                for (int64_t i = 0; i < J; i++) {
                    d_mix[2 * J + i * J + j] += g * at2(&x, n, i)[d];
                    now[i] += w[2 * J + i * J + j] * g;
                }
            }
            at1(&dy, n)[d] = (float)dy_d;
            for (int64_t i = 0; i < J; i++)
                at2(&dx, n, i)[d] = (float)now[i];
        }
        for (int64_t i = 0; i < M; i++)
            at1(&dmix, n)[i] = (float)d_mix[i];
    }
    return call_end(&c);
}

enum cairn_status cairn_streams_sum_ref(struct cairn_stream *s, const struct cairn_streams_sum *a, struct cairn_error *err)
{
    struct call c = call_begin("streams_sum", s, err);
    int64_t N = -1, J = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 3, &N, &J, &D),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &N, &D);

    for (int64_t n = 0; call_ok(&c) && n < N; n++)
        for (int64_t d = 0; d < D; d++) {
            double sum = 0;

            for (int64_t i = 0; i < J; i++)
                sum += at2(&x, n, i)[d];
            at1(&y, n)[d] = (float)(a->a * sum);
        }
    return call_end(&c);
}

enum cairn_status cairn_streams_spread_ref(struct cairn_stream *s, const struct cairn_streams_spread *a, struct cairn_error *err)
{
    struct call c = call_begin("streams_spread", s, err);
    int64_t N = -1, J = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &D),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 3, &N, &J, &D);

    for (int64_t n = 0; call_ok(&c) && n < N; n++)
        for (int64_t i = 0; i < J; i++)
            for (int64_t d = 0; d < D; d++)
                at2(&y, n, i)[d] = a->a * at1(&x, n)[d];
    return call_end(&c);
}

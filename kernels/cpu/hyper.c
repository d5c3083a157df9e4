/* hyper.c - hyper-connections: mixing weights of sixteen rows at a time, a row a lane (so the Sinkhorn loop has no horizontal
 * step); streams in and out, sixteen channels at a time.
 */
#include <math.h>
#include <string.h>

#include "base/planted.h"
#include "internal.h"
#include "vmath.h"

#define MOST   8
#define ROUNDS 64

/* Sixteen rows' weights: logits, softmax, and each normalisation's result and divisor, J x J and J vectors at a time. */
struct trace {
    v16 *logit, *soft, *step, *sum;
};

struct hyper {
    struct arg x, y, m, base, scale, mix, rstd, out, dy, dmix, dm, dx, dbase, dscale, dout;
    int64_t N, J, D, M;
    float norm_eps, eps, a;
    int rounds;
};

static void check(struct call *c, int64_t J, int64_t M, int rounds)
{
    if (call_ok(c) && (J < 1 || J > MOST || M != J * (J + 2)))
        call_fail(c, "%lld mixing weights for %lld streams", (long long)M, (long long)J);
    if (call_ok(c) && (rounds < 1 || rounds > ROUNDS))
        call_fail(c, "iterations = %d", rounds);
}

static size_t trace_bytes(int64_t J, int rounds)
{
    return (size_t)(2 * J * (J + 2) + J * J + (2 * rounds - 1) * (J * J + J)) * sizeof(v16);
}

static int group(int64_t i, int64_t J)
{
    return i < J ? 0 : i < 2 * J ? 1 : 2;
}

/* One value of each of `some` rows, as lanes. */
VINLINE v16 lanes(const float *p, int64_t stride, int some)
{
    v16 x = v16_set(0.0f);

    for (int l = 0; l < some; l++)
        x[l] = p[l * stride];
    return x;
}

/* Step s: out = in / (sums + eps), along columns if s is even. */
static void normalise(const struct trace *t, const v16 *in, int s, int64_t J, float eps)
{
    v16 *out = t->step + s * J * J, *sums = t->sum + s * J;

    for (int64_t a = 0; a < J; a++) {
        v16 sum = v16_set(0.0f);

        for (int64_t b = 0; b < J; b++)
            sum = sum + (s % 2 ? in[a * J + b] : in[b * J + a]);
        sums[a] = sum + v16_set(eps);
        for (int64_t b = 0; b < J; b++) {
            int64_t i = s % 2 ? a * J + b : b * J + a;

            out[i] = in[i] / sums[a];
        }
    }
}

/* Rows n .. n + some, from k->m, k->rstd. Returns the last step. */
static const v16 *weigh(const struct hyper *k, const struct trace *t, int64_t n, int some)
{
    int64_t J = k->J;
    v16 rstd = lanes(f32(&k->rstd) + n, 1, some), *start = t->step + (2 * k->rounds - 2) * J * J; /* free until the last step */

    for (int64_t i = 0; i < k->M; i++)
        t->logit[i] =
            v16_fma(v16_set(f32(&k->scale)[group(i, J)]), lanes(at1(&k->m, n) + i, k->M, some) * rstd, v16_set(f32(&k->base)[i]));
    for (int64_t i = 0; i < J; i++) {
        const v16 *l = t->logit + 2 * J + i * J;
        v16 most = l[0], sum = v16_set(0.0f), *soft = t->soft + i * J;

        for (int64_t j = 1; j < J; j++)
            most = v16_max(most, l[j]);
        for (int64_t j = 0; j < J; j++) {
            soft[j] = v16_exp(l[j] - most);
            sum = sum + soft[j];
        }
        for (int64_t j = 0; j < J; j++)
            soft[j] = soft[j] / sum;
    }
    for (int64_t i = 0; i < J * J; i++)
        start[i] = t->soft[i] + v16_set(k->eps);
    if (k->rounds == 1) { /* the first step is the last one */
        v16 copy[MOST * MOST];

        memcpy(copy, start, (size_t)(J * J) * sizeof *copy);
        normalise(t, copy, 0, J, k->eps);
        return t->step;
    }
    normalise(t, start, 0, J, k->eps);
    if (cairn_planted("sinkhorn-once"))
        return t->step;
    for (int s = 1; s < 2 * k->rounds - 1; s++)
        normalise(t, t->step + (s - 1) * J * J, s, J, k->eps);
    return t->step + (2 * k->rounds - 2) * J * J;
}

static struct trace trace_carve(const struct hyper *k, void *scratch)
{
    struct trace t = {.logit = scratch};

    t.soft = t.logit + k->M;
    t.sum = t.soft + k->J * k->J;
    t.step = t.sum + (2 * k->rounds - 1) * k->J;
    return t;
}

static void hyper_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct hyper *k = ctx;
    struct trace t = trace_carve(k, scratch);
    int64_t J = k->J, D = k->D;

    for (int64_t n0 = begin; n0 < end; n0 += VL) {
        int some = end - n0 < VL ? (int)(end - n0) : VL;
        const v16 *comb;

        for (int64_t n = n0; n < n0 + some; n++) {
            v16 sum = v16_set(0.0f);

            for (int64_t i = 0; i < J; i++)
                for (int64_t d = 0; d < D; d += VL) {
                    v16 x = v16_loadn(at2(&k->x, n, i) + d, D - d < VL ? D - d : VL, 0.0f);

                    sum = v16_fma(x, x, sum);
                }
            f32(&k->rstd)[n] = 1.0f / sqrtf(v16_sum(sum) / (float)(J * D) + k->norm_eps);
        }
        comb = weigh(k, &t, n0, some);
        for (int64_t i = 0; i < k->M; i++) {
            v16 x = i < J       ? v16_sigmoid(t.logit[i]) + v16_set(k->eps)
                    : i < 2 * J ? v16_set(cairn_planted("hyper-post-not-doubled") ? 1.0f : 2.0f) * v16_sigmoid(t.logit[i])
                                : comb[i - 2 * J];

            for (int l = 0; l < some; l++)
                at1(&k->mix, n0 + l)[i] = x[l];
        }
        for (int64_t n = n0; n < n0 + some; n++)
            for (int64_t d = 0; d < D; d += VL) {
                int64_t w = D - d < VL ? D - d : VL;
                v16 y = v16_set(0.0f);

                for (int64_t i = 0; i < J; i++)
                    y = v16_fma(v16_set(at1(&k->mix, n)[i]), v16_loadn(at2(&k->x, n, i) + d, w, 0.0f), y);
                v16_storen(at1(&k->y, n) + d, y, w);
            }
    }
}

enum cairn_status cairn_hyper_cpu(struct cairn_stream *s, const struct cairn_hyper *a, struct cairn_error *err)
{
    struct call c = call_begin("hyper", s, err);
    int64_t three = 3;
    struct hyper k = {.N = -1, .J = -1, .D = -1, .M = -1, .norm_eps = a->norm_eps, .eps = a->eps, .rounds = a->iterations};

    k.x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 3, &k.N, &k.J, &k.D);
    k.m = call_arg(&c, "m", &a->m, T_F32, 2, &k.N, &k.M);
    k.base = call_arg(&c, "base", &a->base, T_F32, 1, &k.M);
    k.scale = call_arg(&c, "scale", &a->scale, T_F32, 1, &three);
    k.mix = call_arg(&c, "mix", &a->mix, OUT | T_F32, 2, &k.N, &k.M);
    k.rstd = call_arg(&c, "rstd", &a->rstd, OUT | T_F32, 1, &k.N);
    k.y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &k.N, &k.D);
    check(&c, k.J, k.M, k.rounds);
    if (call_ok(&c))
        call_reserve(&c, trace_bytes(k.J, k.rounds), 0);
    if (call_ok(&c))
        call_share(&c, k.N, VL, k.N * k.J * (k.D + 8 * k.rounds), hyper_rows, &k);
    return call_end(&c);
}

/* t->logit becomes the gradient of the logits; d: that of comb, spoiled. */
static void weigh_bwd(const struct hyper *k, const struct trace *t, const v16 *dpre, const v16 *dpost, v16 *d)
{
    int64_t J = k->J;

    for (int s = 2 * k->rounds - 2; s >= 0; s--)
        for (int64_t a = 0; a < J; a++) {
            const v16 *o = t->step + s * J * J;
            v16 dot = v16_set(0.0f);

            for (int64_t b = 0; b < J; b++) {
                int64_t i = s % 2 ? a * J + b : b * J + a;

                dot = v16_fma(d[i], o[i], dot);
            }
            for (int64_t b = 0; b < J; b++) {
                int64_t i = s % 2 ? a * J + b : b * J + a;

                d[i] = (d[i] - (cairn_planted("hyper-bwd-no-sum") ? v16_set(0.0f) : dot)) / t->sum[s * J + a];
            }
        }
    for (int64_t i = 0; i < J; i++) {
        v16 p = v16_sigmoid(t->logit[i]), q = v16_sigmoid(t->logit[J + i]), one = v16_set(1.0f), dot = v16_set(0.0f);

        t->logit[i] = dpre[i] * (p * (one - p));
        t->logit[J + i] = dpost[i] * (v16_set(2.0f) * (q * (one - q)));
        for (int64_t j = 0; j < J; j++)
            dot = v16_fma(d[i * J + j], t->soft[i * J + j], dot);
        for (int64_t j = 0; j < J; j++)
            t->logit[2 * J + i * J + j] = t->soft[i * J + j] * (d[i * J + j] - dot);
    }
}

/* Gradients of the logits of 16 rows go to k->dm, through the norm to r'; dx gets its two terms. */
static void hyper_bwd_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct hyper *k = ctx;
    struct trace t = trace_carve(k, scratch);
    int64_t J = k->J, D = k->D, M = k->M;

    for (int64_t n0 = begin; n0 < end; n0 += VL) {
        int some = end - n0 < VL ? (int)(end - n0) : VL;
        v16 dpre[MOST], dpost[MOST], pre[MOST], d[MOST * MOST], dr = v16_set(0.0f), rstd = lanes(f32(&k->rstd) + n0, 1, some);

        for (int64_t i = 0; i < J; i++) {
            dpre[i] = v16_set(0.0f);
            dpost[i] = lanes(at1(&k->dmix, n0) + J + i, M, some);
            for (int64_t j = 0; j < J; j++)
                d[i * J + j] = lanes(at1(&k->dmix, n0) + 2 * J + i * J + j, M, some);
            for (int l = 0; l < some; l++) {
                v16 sum = v16_set(0.0f);

                for (int64_t e = 0; e < D; e += VL) {
                    int64_t w = D - e < VL ? D - e : VL;

                    sum = v16_fma(v16_loadn(at1(&k->dy, n0 + l) + e, w, 0.0f), v16_loadn(at2(&k->x, n0 + l, i) + e, w, 0.0f), sum);
                }
                dpre[i][l] = v16_sum(sum);
            }
        }
        weigh(k, &t, n0, some);
        for (int64_t i = 0; i < J; i++)
            pre[i] = v16_sigmoid(t.logit[i]) + v16_set(k->eps);
        weigh_bwd(k, &t, dpre, dpost, d);
        for (int64_t i = 0; i < M; i++) {
            v16 g = t.logit[i] * v16_set(f32(&k->scale)[group(i, J)]);

            dr = v16_fma(g, lanes(at1(&k->m, n0) + i, M, some), dr);
            for (int l = 0; l < some; l++)
                at1(&k->dm, n0 + l)[i] = t.logit[i][l]; /* times scale and rstd once the sums over rows are made */
        }
        dr = dr * (rstd * rstd * rstd) / v16_set((float)(J * D));
        for (int l = 0; l < some; l++)
            for (int64_t i = 0; i < J; i++)
                for (int64_t e = 0; e < D; e += VL) {
                    int64_t w = D - e < VL ? D - e : VL;
                    float *out = at2(&k->dx, n0 + l, i) + e;
                    v16 g = v16_set(pre[i][l]) * v16_loadn(at1(&k->dy, n0 + l) + e, w, 0.0f);

                    g = v16_fma(v16_set(-dr[l]), v16_loadn(at2(&k->x, n0 + l, i) + e, w, 0.0f), g);
                    v16_storen(out, v16_loadn(out, w, 0.0f) + g, w);
                }
    }
}

/* Sums over rows of the gradients of logits, then dm itself. */
static void hyper_sums(const struct hyper *k)
{
    float scales[3] = {0};

    for (int64_t i = 0; i < k->M; i++) {
        float sum = 0.0f, scaled = 0.0f, g = f32(&k->scale)[group(i, k->J)];

        for (int64_t n = 0; n < k->N; n++) {
            float dl = at1(&k->dm, n)[i], r = f32(&k->rstd)[n];

            sum += dl;
            scaled += dl * (at1(&k->m, n)[i] * r);
            at1(&k->dm, n)[i] = dl * g * r;
        }
        if (k->dbase.p)
            f32(&k->dbase)[i] += sum;
        scales[group(i, k->J)] += scaled;
    }
    for (int i = 0; k->dscale.p && i < 3; i++)
        f32(&k->dscale)[i] += scales[i];
}

enum cairn_status cairn_hyper_bwd_cpu(struct cairn_stream *s, const struct cairn_hyper_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("hyper_bwd", s, err);
    int64_t three = 3;
    struct hyper k = {.N = -1, .J = -1, .D = -1, .M = -1, .eps = a->eps, .rounds = a->iterations};

    k.x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 3, &k.N, &k.J, &k.D);
    k.m = call_arg(&c, "m", &a->m, T_F32, 2, &k.N, &k.M);
    k.base = call_arg(&c, "base", &a->base, T_F32, 1, &k.M);
    k.scale = call_arg(&c, "scale", &a->scale, T_F32, 1, &three);
    k.rstd = call_arg(&c, "rstd", &a->rstd, T_F32, 1, &k.N);
    k.dy = call_arg(&c, "dy", &a->dy, STRIDED | T_F32, 2, &k.N, &k.D);
    k.dmix = call_arg(&c, "dmix", &a->dmix, T_F32, 2, &k.N, &k.M);
    k.dm = call_arg(&c, "dm", &a->dm, OUT | T_F32, 2, &k.N, &k.M);
    k.dx = call_arg(&c, "dx", &a->dx, OUT | STRIDED | T_F32, 3, &k.N, &k.J, &k.D);
    k.dbase = call_arg(&c, "dbase", &a->dbase, OUT | ABSENT | T_F32, 1, &k.M);
    k.dscale = call_arg(&c, "dscale", &a->dscale, OUT | ABSENT | T_F32, 1, &three);
    check(&c, k.J, k.M, k.rounds);
    if (call_ok(&c))
        call_reserve(&c, trace_bytes(k.J, k.rounds), 0);
    if (call_ok(&c)) {
        call_share(&c, k.N, VL, k.N * k.J * (3 * k.D + 16 * k.rounds), hyper_bwd_rows, &k);
        hyper_sums(&k);
    }
    return call_end(&c);
}

/* ---- streams ------------------------------------------------------------------------------------------------------------- */

static void out_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct hyper *k = ctx;
    int64_t J = k->J, D = k->D;

    (void)scratch;
    for (int64_t n = begin; n < end; n++)
        for (int64_t d = 0; d < D; d += VL) {
            int64_t w = D - d < VL ? D - d : VL;
            const float *mix = at1(&k->mix, n);
            v16 x[MOST], y = v16_loadn(at1(&k->y, n) + d, w, 0.0f);

            for (int64_t i = 0; i < J; i++)
                x[i] = v16_loadn(at2(&k->x, n, i) + d, w, 0.0f);
            for (int64_t j = 0; j < J; j++) {
                v16 sum = v16_set(mix[J + j]) * y;

                for (int64_t i = 0; i < J; i++)
                    sum = v16_fma(v16_set(mix[2 * J + (cairn_planted("streams-transposed") ? j * J + i : i * J + j)]), x[i], sum);
                v16_storen(at2(&k->out, n, j) + d, sum, w);
            }
        }
}

enum cairn_status cairn_hyper_out_cpu(struct cairn_stream *s, const struct cairn_hyper_out *a, struct cairn_error *err)
{
    struct call c = call_begin("hyper_out", s, err);
    struct hyper k = {.N = -1, .J = -1, .D = -1, .M = -1};

    k.x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 3, &k.N, &k.J, &k.D);
    k.y = call_arg(&c, "y", &a->y, STRIDED | T_F32, 2, &k.N, &k.D);
    k.mix = call_arg(&c, "mix", &a->mix, T_F32, 2, &k.N, &k.M);
    k.out = call_arg(&c, "out", &a->out, OUT | STRIDED | T_F32, 3, &k.N, &k.J, &k.D);
    check(&c, k.J, k.M, 1);
    if (call_ok(&c))
        call_share(&c, k.N, 1, k.N * k.D * k.J * (k.J + 1) / 4, out_rows, &k);
    return call_end(&c);
}

static void out_bwd_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct hyper *k = ctx;
    int64_t J = k->J, D = k->D;

    (void)scratch;
    for (int64_t n = begin; n < end; n++) {
        const float *mix = at1(&k->mix, n);
        float *dmix = at1(&k->dmix, n);
        v16 sums[MOST * (MOST + 1)];

        for (int64_t i = 0; i < J * (J + 1); i++)
            sums[i] = v16_set(0.0f);
        for (int64_t d = 0; d < D; d += VL) {
            int64_t w = D - d < VL ? D - d : VL;
            v16 y = v16_loadn(at1(&k->y, n) + d, w, 0.0f), g[MOST], dy = v16_set(0.0f);

            for (int64_t j = 0; j < J; j++) {
                g[j] = v16_loadn(at2(&k->dout, n, j) + d, w, 0.0f);
                dy = v16_fma(v16_set(mix[J + j]), g[j], dy);
                sums[j] = v16_fma(g[j], y, sums[j]);
            }
            v16_storen(at1(&k->dy, n) + d, dy, w);
            for (int64_t i = 0; i < J; i++) {
                v16 x = v16_loadn(at2(&k->x, n, i) + d, w, 0.0f), dx = v16_set(0.0f);

                for (int64_t j = 0; j < J; j++) {
                    sums[J + i * J + j] = v16_fma(x, g[j], sums[J + i * J + j]);
                    dx = v16_fma(v16_set(mix[2 * J + i * J + j]), g[j], dx);
                }
                v16_storen(at2(&k->dx, n, i) + d, dx, w);
            }
        }
        for (int64_t i = 0; i < J; i++)
            dmix[i] = 0.0f;
        for (int64_t i = 0; i < J * (J + 1); i++)
            dmix[J + i] = v16_sum(sums[i]);
    }
}

enum cairn_status cairn_hyper_out_bwd_cpu(struct cairn_stream *s, const struct cairn_hyper_out_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("hyper_out_bwd", s, err);
    struct hyper k = {.N = -1, .J = -1, .D = -1, .M = -1};

    k.x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 3, &k.N, &k.J, &k.D);
    k.y = call_arg(&c, "y", &a->y, STRIDED | T_F32, 2, &k.N, &k.D);
    k.mix = call_arg(&c, "mix", &a->mix, T_F32, 2, &k.N, &k.M);
    k.dout = call_arg(&c, "dout", &a->dout, STRIDED | T_F32, 3, &k.N, &k.J, &k.D);
    k.dy = call_arg(&c, "dy", &a->dy, OUT | STRIDED | T_F32, 2, &k.N, &k.D);
    k.dmix = call_arg(&c, "dmix", &a->dmix, OUT | T_F32, 2, &k.N, &k.M);
    k.dx = call_arg(&c, "dx", &a->dx, OUT | STRIDED | T_F32, 3, &k.N, &k.J, &k.D);
    check(&c, k.J, k.M, 1);
    if (call_ok(&c))
        call_share(&c, k.N, 1, k.N * k.D * k.J * (2 * k.J + 2) / 4, out_bwd_rows, &k);
    return call_end(&c);
}

static void sum_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct hyper *k = ctx;

    (void)scratch;
    for (int64_t n = begin; n < end; n++)
        for (int64_t d = 0; d < k->D; d += VL) {
            int64_t w = k->D - d < VL ? k->D - d : VL;
            v16 sum = v16_loadn(at2(&k->x, n, 0) + d, w, 0.0f);

            for (int64_t i = 1; i < k->J; i++)
                sum = sum + v16_loadn(at2(&k->x, n, i) + d, w, 0.0f);
            v16_storen(at1(&k->y, n) + d, v16_set(k->a) * sum, w);
        }
}

enum cairn_status cairn_streams_sum_cpu(struct cairn_stream *s, const struct cairn_streams_sum *a, struct cairn_error *err)
{
    struct call c = call_begin("streams_sum", s, err);
    struct hyper k = {.N = -1, .J = -1, .D = -1, .a = a->a};

    k.x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 3, &k.N, &k.J, &k.D);
    k.y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &k.N, &k.D);
    check(&c, k.J, k.J * (k.J + 2), 1);
    if (call_ok(&c))
        call_share(&c, k.N, 1, k.N * k.D * k.J / 8, sum_rows, &k);
    return call_end(&c);
}

static void spread_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct hyper *k = ctx;

    (void)scratch;
    for (int64_t n = begin; n < end; n++)
        for (int64_t d = 0; d < k->D; d += VL) {
            int64_t w = k->D - d < VL ? k->D - d : VL;
            v16 x = v16_set(k->a) * v16_loadn(at1(&k->x, n) + d, w, 0.0f);

            for (int64_t i = 0; i < k->J; i++)
                v16_storen(at2(&k->y, n, i) + d, x, w);
        }
}

enum cairn_status cairn_streams_spread_cpu(struct cairn_stream *s, const struct cairn_streams_spread *a, struct cairn_error *err)
{
    struct call c = call_begin("streams_spread", s, err);
    struct hyper k = {.N = -1, .J = -1, .D = -1, .a = a->a};

    k.x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &k.N, &k.D);
    k.y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 3, &k.N, &k.J, &k.D);
    if (call_ok(&c))
        call_share(&c, k.N, 1, k.N * k.D * k.J / 8, spread_rows, &k);
    return call_end(&c);
}

/* kda_gate_test.c - gates of KDA, the gated norm and the short convolution: against their references, against finite differences in
 * fp64, and where no model's logits would see an error: the size of eps, the tails of the gates, the history of the convolution.
 */
#include "lab.h"

static const struct {
    int n, heads, d, pad;
    enum cairn_dtype w;
    float bound;
    const char *why;
} shapes[] = {
    {1, 1, 1, 0, CAIRN_F32, -5, "smallest"},          {0, 2, 8, 0, CAIRN_F32, -5, "no rows"},
    {5, 3, 17, 1, CAIRN_F32, -5, "odd, padded"},      {33, 4, 16, 0, CAIRN_BF16, -5, "bf16 weight"},
    {150, 2, 64, 0, CAIRN_BF16, -5, "many rows"},     {7, 5, 12, 2, CAIRN_F32, 0, "no bound"},
    {9, 17, 128, 8, CAIRN_BF16, 0, "no bound, wide"},
};
#define SHAPES (sizeof shapes / sizeof *shapes)

static struct thing *zeros(struct lab *l, int n, int m)
{
    return thing_normal(l, m ? thing_new(l, CAIRN_F32, 0, 2, n, m) : thing_new(l, CAIRN_F32, 0, 1, n), 0);
}

/* ---- gates ---------------------------------------------------------------------------------------------------------------- */

static void gates(struct lab *l)
{
    for (size_t i = 0; i < SHAPES; i++) {
        int n = shapes[i].n, H = shapes[i].heads, P = H * shapes[i].d, pad = shapes[i].pad;
        struct thing *f = thing_normal(l, thing_new(l, LAB_ACT, pad, 2, n, P), 4),
                     *b = thing_normal(l, thing_new(l, LAB_ACT, pad, 2, n, H), 4),
                     *a_log = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, H), 0.7f),
                     *bias = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, P), 1);
        struct thing *g = thing_new(l, CAIRN_F32, 0, 2, n, P), *beta = thing_new(l, CAIRN_F32, 0, 2, n, H),
                     *g2 = thing_like(l, g, 1), *beta2 = thing_like(l, beta, 1);
        struct thing *dg = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, n, P), 1),
                     *dbeta = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, n, H), 1);
        struct thing *df = thing_new(l, LAB_ACT, pad, 2, n, P), *df2 = thing_like(l, df, 1),
                     *db = thing_new(l, LAB_ACT, pad, 2, n, H), *db2 = thing_like(l, db, 1);
        struct thing *da = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, H), 1), *da2 = thing_like(l, da, 0),
                     *dbias = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, P), 1), *dbias2 = thing_like(l, dbias, 0);
        struct cairn_kda_gate a = {f->t, b->t, a_log->t, bias->t, g->t, beta->t, shapes[i].bound};
        struct cairn_kda_gate_bwd d = {f->t,  b->t,  a_log->t, bias->t,  dg->t,          dbeta->t,
                                       df->t, db->t, da->t,    dbias->t, shapes[i].bound};

        for (int e = 0; e < n * P && e < 12; e++) /* far tails */
            *thing_f(f, e) = (float[]){-100, 100, 30, -30, 1e4f, -1e4f, 15, 21, -15, -21, 0, 19.5f}[e];
        thing_up(l, f);
        LAB_OK(l, l->fast->kda_gate(&l->c.stream, &a, &l->err));
        a.g = g2->t, a.beta = beta2->t;
        LAB_OK(l, l->ref->kda_gate(&l->c.stream, &a, &l->err));
        thing_down(l, g), thing_down(l, g2), thing_down(l, beta), thing_down(l, beta2);
        /* sigmoid(A x): an error of 2^-24 in A x is one of A x 2^-24 in its tail */
        lab_near(l, shapes[i].why, g, g2, 4e-5, 1e-37);
        lab_near(l, shapes[i].why, beta, beta2, 1e-6, 1e-37);
        a.g = g2->t, a.beta = beta2->t;
        for (int m = 0; m < n; m += n / 7 + 1) {
            struct cairn_kda_gate one = a;

            one.f = cairn_tensor_slice(&a.f, 0, m, 1), one.b = cairn_tensor_slice(&a.b, 0, m, 1);
            one.g = cairn_tensor_slice(&g2->t, 0, m, 1), one.beta = cairn_tensor_slice(&beta2->t, 0, m, 1);
            LAB_OK(l, l->fast->kda_gate(&l->c.stream, &one, &l->err));
            thing_down(l, g2), thing_down(l, beta2);
            for (int e = 0; e < P; e++)
                assert_memory_equal(thing_f(g2, m * P + e), thing_f(g, m * P + e), 4);
            for (int e = 0; e < H; e++)
                assert_memory_equal(thing_f(beta2, m * H + e), thing_f(beta, m * H + e), 4);
        }
        LAB_OK(l, l->fast->kda_gate_bwd(&l->c.stream, &d, &l->err));
        d.df = df2->t, d.db = db2->t, d.da_log = da2->t, d.ddt_bias = dbias2->t;
        LAB_OK(l, l->ref->kda_gate_bwd(&l->c.stream, &d, &l->err));
        thing_down(l, df), thing_down(l, df2), thing_down(l, db), thing_down(l, db2);
        thing_down(l, da), thing_down(l, da2), thing_down(l, dbias), thing_down(l, dbias2);
        lab_near(l, "df", df, df2, 1e-4, 1e-6);
        lab_near(l, "db", db, db2, 1e-4, 1e-6);
        lab_near(l, "da_log", da, da2, 1e-5, 1e-5 * sqrt((double)n * P + 1));
        lab_near(l, "ddt_bias", dbias, dbias2, 1e-5, 1e-5 * sqrt(n + 1.0));
        /* in place, without the sums, another number of threads */
        l->c.backend->set_threads(l->c.dev, 3);
        d.df = d.f, d.db = d.b, d.da_log.buf = d.ddt_bias.buf = NULL;
        LAB_OK(l, l->fast->kda_gate_bwd(&l->c.stream, &d, &l->err));
        l->c.backend->set_threads(l->c.dev, 0);
        thing_down(l, f), thing_down(l, b);
        lab_equal_bits(l, "in place", f, df);
        lab_equal_bits(l, "in place", b, db);
        lab_clear(l);
    }
}

static double gate_formula(const double *x, const struct thing *dg, const struct thing *dbeta, int N, int H, int D, double bound)
{
    const double *f = x, *b = f + N * H * D, *a_log = b + N * H, *bias = a_log + H;
    double L = 0;

    for (int n = 0; n < N; n++)
        for (int h = 0; h < H; h++) {
            for (int d = 0; d < D; d++) {
                int i = (n * H + h) * D + d;
                double u = f[i] + bias[h * D + d];

                L += *thing_f(dg, i) * (bound < 0 ? bound / (1 + exp(-exp(a_log[h]) * u)) : -exp(a_log[h]) * log1p(exp(u)));
            }
            L += *thing_f(dbeta, n * H + h) / (1 + exp(-b[n * H + h]));
        }
    return L;
}

static void the_derivative_of_gates(struct lab *l)
{
    for (int k = 0; k < 2; k++) {
        enum { N = 4, H = 3, D = 5, P = H * D };
        float bound = k ? 0 : -5;
        struct thing *f = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, N, P), 1),
                     *b = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, N, H), 1),
                     *a_log = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, H), 0.5f),
                     *bias = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, P), 1);
        struct thing *dg = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, N, P), 1),
                     *dbeta = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, N, H), 1);
        struct thing *df = thing_new(l, CAIRN_F32, 0, 2, N, P), *db = thing_new(l, CAIRN_F32, 0, 2, N, H), *da = zeros(l, H, 0),
                     *dbias = zeros(l, P, 0);
        const struct thing *in[] = {f, b, a_log, bias}, *out[] = {df, db, da, dbias};
        struct cairn_kda_gate_bwd d = {f->t, b->t, a_log->t, bias->t, dg->t, dbeta->t, df->t, db->t, da->t, dbias->t, bound};
        double x[N * P + N * H + H + P], step = 1e-5;
        int at = 0;

        LAB_OK(l, l->fast->kda_gate_bwd(&l->c.stream, &d, &l->err));
        thing_down(l, df), thing_down(l, db), thing_down(l, da), thing_down(l, dbias);
        for (int w = 0; w < 4; w++)
            for (int i = 0; i < thing_count(in[w]); i++)
                x[at++] = *thing_f(in[w], i);
        at = 0;
        for (int w = 0; w < 4; w++)
            for (int i = 0; i < thing_count(in[w]); i++, at++) {
                double was = x[at], up, down;

                x[at] = was + step;
                up = gate_formula(x, dg, dbeta, N, H, D, (double)bound);
                x[at] = was - step;
                down = gate_formula(x, dg, dbeta, N, H, D, (double)bound);
                x[at] = was;
                if (!(fabs((up - down) / (2 * step) - *thing_f(out[w], i)) < 3e-5))
                    fail_msg("%s: input %d, element %d: %.9g, by differences %.9g", l->device, w, i, *thing_f(out[w], i),
                             (up - down) / (2 * step));
            }
        lab_clear(l);
    }
}

/* ---- gated norm ------------------------------------------------------------------------------------------------------------ */

static void norms(struct lab *l)
{
    for (size_t i = 0; i < SHAPES; i++)
        for (int small = 0; small < 2; small++) {
            int n = shapes[i].n * shapes[i].heads, D = shapes[i].d, pad = shapes[i].pad;
            struct thing *x = thing_normal(l, thing_new(l, LAB_ACT, pad, 2, n, D), small ? 1e-3f : 2), /* eps is 1e-5 */
                *z = thing_normal(l, thing_new(l, LAB_ACT, pad + 1, 2, n, D), 3),
                         *w = thing_normal(l, thing_new(l, shapes[i].w, 0, 1, D), 1);
            struct thing *y = thing_new(l, LAB_ACT, pad, 2, n, D), *y2 = thing_like(l, y, 1), *r = thing_new(l, CAIRN_F32, 0, 1, n),
                         *r2 = thing_like(l, r, 1);
            struct thing *dy = thing_normal(l, thing_new(l, LAB_ACT, 0, 2, n, D), small ? 1e-3f : 1);
            struct thing *dx = thing_new(l, LAB_ACT, pad, 2, n, D), *dx2 = thing_like(l, dx, 1),
                         *dz = thing_new(l, LAB_ACT, 0, 2, n, D), *dz2 = thing_like(l, dz, 1);
            struct thing *dw = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, D), 1), *dw2 = thing_like(l, dw, 0),
                         *dw3 = thing_like(l, dw, 0);
            struct cairn_gated_norm a = {x->t, z->t, w->t, y->t, r->t, 1e-5f};
            struct cairn_gated_norm_bwd d = {x->t, z->t, w->t, r->t, dy->t, dx->t, dz->t, dw->t};

            LAB_OK(l, l->fast->gated_norm(&l->c.stream, &a, &l->err));
            LAB_OK(l, l->fast->gated_norm_bwd(&l->c.stream, &d, &l->err));
            a.y = y2->t, a.rstd = r2->t;
            LAB_OK(l, l->ref->gated_norm(&l->c.stream, &a, &l->err));
            d.dx = dx2->t, d.dz = dz2->t, d.dw = dw2->t;
            LAB_OK(l, l->ref->gated_norm_bwd(&l->c.stream, &d, &l->err));
            thing_down(l, y), thing_down(l, y2), thing_down(l, r), thing_down(l, r2);
            thing_down(l, dx), thing_down(l, dx2), thing_down(l, dz), thing_down(l, dz2), thing_down(l, dw), thing_down(l, dw2);
            lab_near(l, shapes[i].why, y, y2, 3e-6, 1e-37);
            lab_near(l, "rstd", r, r2, 2e-6, 0);
            lab_near(l, "dx", dx, dx2, 1e-5, 2e-5);
            lab_near(l, "dz", dz, dz2, 1e-5, 1e-6);
            lab_near(l, "dw", dw, dw2, 1e-5, 1e-6 * sqrt(n + 1.0) * 3);
            /* a row alone, in place, rstd absent; gradients in place */
            y2 = thing_like(l, y, 0);
            for (int m = 0; m < n; m += n / 7 + 1) {
                struct cairn_gated_norm one = a;

                one.x = cairn_tensor_slice(&x->t, 0, m, 1), one.z = cairn_tensor_slice(&z->t, 0, m, 1);
                one.y = cairn_tensor_slice(&y2->t, 0, m, 1), one.rstd.buf = NULL;
                LAB_OK(l, l->fast->gated_norm(&l->c.stream, &one, &l->err));
            }
            thing_down(l, y2);
            lab_equal_bits(l, "row alone", y2, y);
            d.dx = dy->t, d.dz = z->t, d.dw = dw3->t;
            l->c.backend->set_threads(l->c.dev, 3);
            LAB_OK(l, l->fast->gated_norm_bwd(&l->c.stream, &d, &l->err));
            l->c.backend->set_threads(l->c.dev, 0);
            thing_down(l, dy), thing_down(l, z), thing_down(l, dw3);
            lab_equal_bits(l, "in place", dy, dx);
            lab_equal_bits(l, "in place", z, dz);
            lab_equal_bits(l, "threads", dw3, dw);
            lab_clear(l);
        }
}

static double norm_formula(const double *v, const struct thing *dy, int N, int D)
{
    const double *x = v, *z = x + N * D, *w = z + N * D;
    double L = 0;

    for (int n = 0; n < N; n++) {
        double s = 0;

        for (int i = 0; i < D; i++)
            s += x[n * D + i] * x[n * D + i] / D;
        for (int i = 0; i < D; i++)
            L += *thing_f(dy, n * D + i) * w[i] * x[n * D + i] / sqrt(s + 1e-3) / (1 + exp(-z[n * D + i]));
    }
    return L;
}

static void the_derivative_of_norm(struct lab *l)
{
    enum { N = 4, D = 19 };
    struct thing *x = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, N, D), 0.1f),
                 *z = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, N, D), 1),
                 *w = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, D), 1), *y = thing_new(l, CAIRN_F32, 0, 2, N, D),
                 *r = thing_new(l, CAIRN_F32, 0, 1, N), *dy = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, N, D), 1);
    struct thing *dx = thing_new(l, CAIRN_F32, 0, 2, N, D), *dz = thing_new(l, CAIRN_F32, 0, 2, N, D), *dw = zeros(l, D, 0);
    const struct thing *in[] = {x, z, w}, *out[] = {dx, dz, dw};
    struct cairn_gated_norm f = {x->t, z->t, w->t, y->t, r->t, 1e-3f};
    struct cairn_gated_norm_bwd d = {x->t, z->t, w->t, r->t, dy->t, dx->t, dz->t, dw->t};
    double v[2 * N * D + D], step = 1e-5;
    int at = 0;

    LAB_OK(l, l->fast->gated_norm(&l->c.stream, &f, &l->err));
    LAB_OK(l, l->fast->gated_norm_bwd(&l->c.stream, &d, &l->err));
    thing_down(l, dx), thing_down(l, dz), thing_down(l, dw);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < thing_count(in[k]); i++)
            v[at++] = *thing_f(in[k], i);
    at = 0;
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < thing_count(in[k]); i++, at++) {
            double was = v[at], up, down, got = *thing_f(out[k], i);

            v[at] = was + step;
            up = norm_formula(v, dy, N, D);
            v[at] = was - step;
            down = norm_formula(v, dy, N, D);
            v[at] = was;
            if (!(fabs((up - down) / (2 * step) - got) < 1e-4 * (1 + fabs(got) / 10)))
                fail_msg("%s: input %d, element %d: %.9g, by differences %.9g", l->device, k, i, got, (up - down) / (2 * step));
        }
}

/* ---- short convolution ------------------------------------------------------------------------------------------------------ */

#define MOST_SEQS 4
static const struct {
    int len[MOST_SEQS], c, taps, pad;
    enum cairn_dtype w;
    const char *why;
} packs[] = {
    {{1}, 1, 4, 0, CAIRN_F32, "smallest"},         {{2, 3, 1, 9}, 24, 4, 1, CAIRN_BF16, "short sequences"},
    {{70, 5}, 40, 4, 0, CAIRN_BF16, "long"},       {{6, 7}, 17, 1, 2, CAIRN_F32, "one tap"},
    {{20, 1}, 130, 8, 8, CAIRN_F32, "eight taps"}, {{130}, 8, 2, 0, CAIRN_F32, "two taps"},
};

static struct thing *positions(struct lab *l, size_t i, int seqs)
{
    int32_t v[512];
    int n = 0;

    for (int s = 0; s < MOST_SEQS; s++)
        for (int j = 0; j < packs[i].len[s]; j++)
            v[n++] = seqs ? s : j;
    return thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, n), v);
}

static void convolution(struct lab *l)
{
    for (size_t i = 0; i < sizeof packs / sizeof *packs; i++) {
        struct thing *pos = positions(l, i, 0), *seq = positions(l, i, 1);
        int N = (int)thing_count(pos), C = packs[i].c, K = packs[i].taps, begin = 0, at[MOST_SEQS] = {0};
        struct thing *x = thing_normal(l, thing_new(l, LAB_ACT, packs[i].pad, 2, N, C), 1),
                     *w = thing_normal(l, thing_new(l, packs[i].w, 0, 2, C, K), 0.7f),
                     *y = thing_new(l, LAB_ACT, packs[i].pad, 2, N, C), *y2 = thing_like(l, y, 1),
                     *tail = thing_new(l, LAB_ACT, 0, 3, MOST_SEQS, K, C); /* NaN all over */
        struct thing *dy = thing_normal(l, thing_new(l, LAB_ACT, 1, 2, N, C), 1), *dx = thing_new(l, LAB_ACT, 0, 2, N, C),
                     *dx2 = thing_like(l, dx, 1), *dx3 = thing_like(l, dx, 1);
        struct thing *dw = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, C, K), 1), *dw2 = thing_like(l, dw, 0);
        struct cairn_short_conv a = {x->t, w->t, y->t, pos->t, seq->t, {0}};
        struct cairn_short_conv_bwd d = {x->t, w->t, dy->t, dx->t, dw->t, pos->t, seq->t};

        LAB_OK(l, l->fast->short_conv(&l->c.stream, &a, &l->err));
        a.y = y2->t;
        LAB_OK(l, l->ref->short_conv(&l->c.stream, &a, &l->err));
        thing_down(l, y), thing_down(l, y2);
        lab_near(l, packs[i].why, y, y2, 4e-6, 1e-6);
        /* pieces of any size, with the tail */
        a.y = thing_like(l, y, 1)->t, a.tail = tail->t;
        y2 = l->things[l->n - 1];
        for (int left = N; left;) {
            int s = lab_int(l, 0, MOST_SEQS - 1), n = lab_int(l, 1, 7);
            struct cairn_short_conv one = a;

            begin = 0;
            for (int e = 0; e < s; e++)
                begin += packs[i].len[e];
            if (n > packs[i].len[s] - at[s])
                n = packs[i].len[s] - at[s];
            one.x = cairn_tensor_slice(&a.x, 0, begin + at[s], n), one.y = cairn_tensor_slice(&a.y, 0, begin + at[s], n);
            one.pos = cairn_tensor_slice(&a.pos, 0, begin + at[s], n), one.seq = cairn_tensor_slice(&a.seq, 0, begin + at[s], n);
            LAB_OK(l, l->fast->short_conv(&l->c.stream, &one, &l->err));
            at[s] += n, left -= n;
        }
        thing_down(l, y2);
        lab_equal_bits(l, "in pieces", y2, y);
        LAB_OK(l, l->fast->short_conv_bwd(&l->c.stream, &d, &l->err));
        d.dx = dx2->t, d.dw = dw2->t;
        LAB_OK(l, l->ref->short_conv_bwd(&l->c.stream, &d, &l->err));
        thing_down(l, dx), thing_down(l, dx2), thing_down(l, dw), thing_down(l, dw2);
        lab_near(l, "dx", dx, dx2, 1e-5, 4e-6);
        lab_near(l, "dw", dw, dw2, 1e-5, 4e-6 * sqrt(N + 1.0));
        begin = 0;
        l->c.backend->set_threads(l->c.dev, 3);
        for (int s = 0; s < MOST_SEQS && packs[i].len[s]; begin += packs[i].len[s++]) {
            struct cairn_short_conv_bwd one = d;
            struct cairn_tensor *t[] = {&one.x, &one.dy, &one.dx, &one.pos, &one.seq};

            one.dx = dx3->t, one.dw.buf = NULL;
            for (size_t e = 0; e < 5; e++)
                *t[e] = cairn_tensor_slice(t[e], 0, begin, packs[i].len[s]);
            LAB_OK(l, l->fast->short_conv_bwd(&l->c.stream, &one, &l->err));
        }
        l->c.backend->set_threads(l->c.dev, 0);
        thing_down(l, dx3);
        lab_equal_bits(l, "sequences alone", dx3, dx);
        lab_clear(l);
    }
}

static double conv_formula(const double *v, const struct thing *dy, const struct thing *pos, int N, int C, int K)
{
    const double *x = v, *w = x + N * C;
    double L = 0;

    for (int n = 0; n < N; n++)
        for (int c = 0; c < C; c++) {
            double u = 0;

            for (int j = 0; j < K && j <= *thing_i(pos, n); j++)
                u += w[c * K + K - 1 - j] * x[(n - j) * C + c];
            L += *thing_f(dy, n * C + c) * u / (1 + exp(-u));
        }
    return L;
}

static void the_derivative_of_convolution(struct lab *l)
{
    enum { PACK = 1, C = 3, K = 4 };
    struct thing *pos = positions(l, PACK, 0), *seq = positions(l, PACK, 1);
    int N = (int)thing_count(pos), at = 0;
    struct thing *x = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, N, C), 1),
                 *w = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, C, K), 1),
                 *dy = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, N, C), 1), *dx = thing_new(l, CAIRN_F32, 0, 2, N, C),
                 *dw = zeros(l, C, K);
    const struct thing *in[] = {x, w}, *out[] = {dx, dw};
    struct cairn_short_conv_bwd d = {x->t, w->t, dy->t, dx->t, dw->t, pos->t, seq->t};
    double v[64 * C + C * K], step = 1e-5;

    LAB_OK(l, l->fast->short_conv_bwd(&l->c.stream, &d, &l->err));
    thing_down(l, dx), thing_down(l, dw);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < thing_count(in[k]); i++)
            v[at++] = *thing_f(in[k], i);
    at = 0;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < thing_count(in[k]); i++, at++) {
            double was = v[at], up, down;

            v[at] = was + step;
            up = conv_formula(v, dy, pos, N, C, K);
            v[at] = was - step;
            down = conv_formula(v, dy, pos, N, C, K);
            v[at] = was;
            assert_true(fabs((up - down) / (2 * step) - *thing_f(out[k], i)) < 3e-5);
        }
}

ON_EACH_DEVICE(gates)
ON_EACH_DEVICE(the_derivative_of_gates)
ON_EACH_DEVICE(norms)
ON_EACH_DEVICE(the_derivative_of_norm)
ON_EACH_DEVICE(convolution)
ON_EACH_DEVICE(the_derivative_of_convolution)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gates_test),       cmocka_unit_test(the_derivative_of_gates_test),
        cmocka_unit_test(norms_test),       cmocka_unit_test(the_derivative_of_norm_test),
        cmocka_unit_test(convolution_test), cmocka_unit_test(the_derivative_of_convolution_test),
    };

    return LAB_RUN(tests);
}

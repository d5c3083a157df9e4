/* hyper_test.c - hyper-connections: mixing weights, streams in and out, and their gradients, against the references and against
 * finite differences of the whole site in fp64; eps of the norm, of pre and of the Sinkhorn loop at sizes where each of them shows.
 */
#include "lab.h"

static const struct {
    int n, streams, d, pad, rounds;
    double x;
    float norm_eps, eps;
    const char *why;
} shapes[] = {
    {1, 1, 1, 0, 1, 1, 1e-5f, 1e-6f, "smallest"},
    {0, 4, 8, 0, 20, 1, 1e-5f, 1e-6f, "no rows"},
    {19, 4, 24, 0, 20, 1, 1e-5f, 1e-6f, "as published"},
    {5, 3, 17, 1, 20, 1, 1e-5f, 1e-6f, "odd"},
    {40, 4, 64, 8, 2, 1, 1e-5f, 1e-6f, "two rounds"},
    {7, 8, 136, 0, 5, 1, 1e-5f, 1e-6f, "eight streams"},
    {9, 2, 40, 0, 3, 3e-3, 1e-5f, 1e-6f, "norms below eps"},
    {9, 4, 16, 0, 4, 1, 1e-5f, 0.25f, "a large eps"},
    {2, 4, 1030, 1, 20, 1, 1e-5f, 1e-6f, "wide"},
    {90, 4, 16, 0, 1, 1, 1e-5f, 1e-6f, "one round, many rows"},
};
#define SHAPES (sizeof shapes / sizeof *shapes)

struct site {
    struct thing *x, *m, *base, *scale, *mix, *rstd, *y;
};

static struct site site_new(struct lab *l, size_t i, enum cairn_dtype act)
{
    int n = shapes[i].n, J = shapes[i].streams, d = shapes[i].d, M = J * (J + 2);
    struct site s = {.x = thing_normal(l, thing_new(l, act, shapes[i].pad, 3, n, J, d), (float)shapes[i].x)};

    s.m = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, n, M), (float)(2 * shapes[i].x));
    s.base = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, M), 1);
    s.scale = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, 3), 1);
    s.mix = thing_new(l, CAIRN_F32, 0, 2, n, M);
    s.rstd = thing_new(l, CAIRN_F32, 0, 1, n);
    s.y = thing_new(l, act, shapes[i].pad, 2, n, d);
    return s;
}

static struct cairn_hyper args(size_t i, const struct site *s)
{
    return (struct cairn_hyper){s->x->t,    s->m->t, s->base->t,         s->scale->t,   s->mix->t,
                                s->rstd->t, s->y->t, shapes[i].norm_eps, shapes[i].eps, shapes[i].rounds};
}

static void forward(struct lab *l)
{
    for (size_t i = 0; i < SHAPES; i++) {
        int n = shapes[i].n, J = shapes[i].streams, d = shapes[i].d;
        struct site s = site_new(l, i, LAB_ACT), t = s;
        struct thing *out = thing_new(l, LAB_ACT, 1, 3, n, J, d), *out2 = thing_like(l, out, 1),
                     *sub = thing_normal(l, thing_new(l, LAB_ACT, 0, 2, n, d), 1), *copy;
        struct cairn_hyper a = args(i, &s);
        struct cairn_hyper_out b = {s.x->t, sub->t, s.mix->t, out->t};

        t.mix = thing_like(l, s.mix, 1), t.rstd = thing_like(l, s.rstd, 1), t.y = thing_like(l, s.y, 1);
        LAB_OK(l, l->fast->hyper(&l->c.stream, &a, &l->err));
        LAB_OK(l, l->fast->hyper_out(&l->c.stream, &b, &l->err));
        a = args(i, &t);
        LAB_OK(l, l->ref->hyper(&l->c.stream, &a, &l->err));
        b.out = out2->t;
        LAB_OK(l, l->ref->hyper_out(&l->c.stream, &b, &l->err));
        thing_down(l, s.mix), thing_down(l, s.rstd), thing_down(l, s.y), thing_down(l, t.mix), thing_down(l, t.rstd);
        thing_down(l, t.y), thing_down(l, out), thing_down(l, out2);
        lab_near(l, shapes[i].why, s.mix, t.mix, 2e-5, 2e-7);
        lab_near(l, "rstd", s.rstd, t.rstd, 1e-5, 0);
        lab_near(l, "y", s.y, t.y, 2e-5, 1e-5 * shapes[i].x);
        lab_near(l, "out", out, out2, 2e-6, 2e-6);
        /* rows alone; in place */
        t.mix = thing_like(l, s.mix, 0), t.rstd = thing_like(l, s.rstd, 0), t.y = thing_like(l, s.y, 0);
        copy = thing_like(l, s.x, 0);
        for (int r = 0; r < n; r += n / 9 + 1) {
            struct cairn_hyper one = args(i, &t);

            one.x = cairn_tensor_slice(&one.x, 0, r, 1), one.m = cairn_tensor_slice(&one.m, 0, r, 1);
            one.mix = cairn_tensor_slice(&one.mix, 0, r, 1), one.rstd = cairn_tensor_slice(&one.rstd, 0, r, 1);
            one.y = cairn_tensor_slice(&one.y, 0, r, 1);
            LAB_OK(l, l->fast->hyper(&l->c.stream, &one, &l->err));
        }
        thing_down(l, t.mix), thing_down(l, t.y);
        lab_equal_bits(l, "rows alone", t.mix, s.mix);
        lab_equal_bits(l, "rows alone", t.y, s.y);
        b = (struct cairn_hyper_out){copy->t, sub->t, s.mix->t, copy->t};
        LAB_OK(l, l->fast->hyper_out(&l->c.stream, &b, &l->err));
        thing_down(l, copy);
        lab_equal_bits(l, "in place", copy, out);
        lab_clear(l);
    }
}

static void backward(struct lab *l)
{
    for (size_t i = 0; i < SHAPES; i++) {
        int n = shapes[i].n, J = shapes[i].streams, d = shapes[i].d, M = J * (J + 2);
        struct site s = site_new(l, i, LAB_ACT);
        struct thing *sub = thing_normal(l, thing_new(l, LAB_ACT, 0, 2, n, d), 1),
                     *dout = thing_normal(l, thing_new(l, LAB_ACT, 1, 3, n, J, d), 1),
                     *dc = thing_normal(l, thing_new(l, LAB_ACT, 2, 2, n, d), 1);
        struct thing *dy = thing_new(l, LAB_ACT, 0, 2, n, d), *dmix = thing_new(l, CAIRN_F32, 0, 2, n, M),
                     *dx = thing_new(l, LAB_ACT, 0, 3, n, J, d), *dm = thing_new(l, CAIRN_F32, 0, 2, n, M);
        struct thing *dy2 = thing_like(l, dy, 1), *dmix2 = thing_like(l, dmix, 1), *dx2 = thing_like(l, dx, 1),
                     *dm2 = thing_like(l, dm, 1), *dx3, *dm3;
        struct thing *base = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, M), 1), *base2 = thing_like(l, base, 0),
                     *scale = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, 3), 1), *scale2 = thing_like(l, scale, 0);
        struct cairn_hyper a = args(i, &s);
        struct cairn_hyper_out_bwd b = {s.x->t, sub->t, s.mix->t, dout->t, dy->t, dmix->t, dx->t};
        struct cairn_hyper_bwd c = {s.x->t, s.m->t, s.base->t, s.scale->t, s.rstd->t,     dc->t,           dmix->t,
                                    dm->t,  dx->t,  base->t,   scale->t,   shapes[i].eps, shapes[i].rounds};

        LAB_OK(l, l->fast->hyper(&l->c.stream, &a, &l->err));
        LAB_OK(l, l->fast->hyper_out_bwd(&l->c.stream, &b, &l->err));
        b.dy = dy2->t, b.dmix = dmix2->t, b.dx = dx2->t;
        LAB_OK(l, l->ref->hyper_out_bwd(&l->c.stream, &b, &l->err));
        thing_down(l, dy), thing_down(l, dy2), thing_down(l, dmix), thing_down(l, dmix2), thing_down(l, dx), thing_down(l, dx2);
        lab_near(l, shapes[i].why, dy, dy2, 2e-6, 2e-6);
        lab_near(l, "dmix", dmix, dmix2, 2e-6, 1e-6 * sqrt(d + 1.0) * 4);
        lab_near(l, "dx of out", dx, dx2, 2e-6, 2e-6);
        dx2 = thing_like(l, dx, 0), dx3 = thing_like(l, dx, 0), dm3 = thing_like(l, dmix, 0);
        LAB_OK(l, l->fast->hyper_bwd(&l->c.stream, &c, &l->err));
        c.dm = dm2->t, c.dx = dx2->t, c.dbase = base2->t, c.dscale = scale2->t;
        LAB_OK(l, l->ref->hyper_bwd(&l->c.stream, &c, &l->err));
        thing_down(l, dm), thing_down(l, dm2), thing_down(l, dx), thing_down(l, dx2);
        thing_down(l, base), thing_down(l, base2), thing_down(l, scale), thing_down(l, scale2);
        {
            double size = sqrt(d + 1.0) * (1 + 1 / shapes[i].x); /* of dpre, dcomb and rstd */

            lab_near(l, shapes[i].why, dm, dm2, 1e-4, 1e-5 * size);
            lab_near(l, "dx", dx, dx2, 1e-4, 1e-5 * size);
            lab_near(l, "dbase", base, base2, 1e-4, 1e-5 * size * sqrt(n + 1.0));
            lab_near(l, "dscale", scale, scale2, 1e-4, 3e-5 * size * sqrt(n * M + 1.0));
        }
        /* dm in the place of dmix, without the sums, other threads; dx of out in the place of dout */
        l->c.backend->set_threads(l->c.dev, 3);
        c.dmix = c.dm = dm3->t, c.dx = dx3->t, c.dbase.buf = c.dscale.buf = NULL;
        LAB_OK(l, l->fast->hyper_bwd(&l->c.stream, &c, &l->err));
        l->c.backend->set_threads(l->c.dev, 0);
        thing_down(l, dm3), thing_down(l, dx3);
        lab_equal_bits(l, "in place", dm3, dm);
        lab_equal_bits(l, "in place", dx3, dx);
        lab_clear(l);
    }
}

enum { N = 3, J = 4, D = 5, M = J * (J + 2), ROUNDS = 7 };

/* A whole site in fp64: L = sum of dc * c + sum of dout * out with c the input of the sub-layer, whose output is y. */
static double site_formula(const double *v, const struct thing *dc, const struct thing *dout, double norm_eps, double eps)
{
    const double *x = v, *y = x + N * J * D, *w = y + N * D, *base = w + M * J * D, *scale = base + M;
    double L = 0;

    for (int n = 0; n < N; n++) {
        double r = norm_eps, l[M], pre[J], post[J], comb[J][J];

        for (int i = 0; i < J * D; i++)
            r += x[n * J * D + i] * x[n * J * D + i] / (J * D);
        for (int o = 0; o < M; o++) {
            double m = 0;

            for (int i = 0; i < J * D; i++)
                m += w[o * J * D + i] * x[n * J * D + i] / sqrt(r);
            l[o] = scale[o < J ? 0 : o < 2 * J ? 1 : 2] * m + base[o];
        }
        for (int i = 0; i < J; i++) {
            double sum = 0;

            pre[i] = 1 / (1 + exp(-l[i])) + eps;
            post[i] = 2 / (1 + exp(-l[J + i]));
            for (int j = 0; j < J; j++)
                sum += comb[i][j] = exp(l[2 * J + i * J + j]);
            for (int j = 0; j < J; j++)
                comb[i][j] = comb[i][j] / sum + eps;
        }
        for (int s = 0; s < 2 * ROUNDS - 1; s++)
            for (int a = 0; a < J; a++) {
                double sum = eps;

                for (int b = 0; b < J; b++)
                    sum += s % 2 ? comb[a][b] : comb[b][a];
                for (int b = 0; b < J; b++)
                    *(s % 2 ? &comb[a][b] : &comb[b][a]) /= sum;
            }
        for (int d = 0; d < D; d++)
            for (int j = 0; j < J; j++) {
                double out = post[j] * y[n * D + d];

                for (int i = 0; i < J; i++)
                    out += comb[i][j] * x[(n * J + i) * D + d];
                L += *thing_f(dc, n * D + d) * pre[j] * x[(n * J + j) * D + d] + *thing_f(dout, (n * J + j) * D + d) * out;
            }
    }
    return L;
}

/* y = x w^T or, back, y += x w, as the caller of the ops does it. */
static void product(struct lab *l, const struct thing *x, const struct thing *w, struct thing *y, int back)
{
    struct cairn_tensor flat = {.buf = (back ? y : x)->buf, .dtype = CAIRN_F32, .ndim = 2, .dim = {N, J * D}, .stride = {J * D, 1}};
    struct cairn_matmul a = {back ? CAIRN_NN : CAIRN_NT, back ? x->t : flat, w->t, back ? flat : y->t, 1, back, 1};

    LAB_OK(l, l->fast->matmul(&l->c.stream, &a, &l->err));
}

static void the_derivative(struct lab *l)
{
    for (int large = 0; large < 2; large++) {
        float norm_eps = large ? 0.3f : 1e-5f, eps = large ? 0.1f : 1e-6f;
        struct thing *x = thing_normal(l, thing_new(l, CAIRN_F32, 0, 3, N, J, D), 1),
                     *y = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, N, D), 1),
                     *w = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, M, J * D), 0.3f),
                     *base = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, M), 1),
                     *scale = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, 3), 1), *m = thing_new(l, CAIRN_F32, 0, 2, N, M);
        struct thing *mix = thing_new(l, CAIRN_F32, 0, 2, N, M), *rstd = thing_new(l, CAIRN_F32, 0, 1, N),
                     *c = thing_new(l, CAIRN_F32, 0, 2, N, D), *dc = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, N, D), 1),
                     *dout = thing_normal(l, thing_new(l, CAIRN_F32, 0, 3, N, J, D), 1);
        struct thing *dx = thing_new(l, CAIRN_F32, 0, 3, N, J, D), *dy = thing_new(l, CAIRN_F32, 0, 2, N, D),
                     *dm = thing_new(l, CAIRN_F32, 0, 2, N, M), *dbase = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, M), 0),
                     *dscale = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, 3), 0);
        struct cairn_hyper a = {x->t, m->t, base->t, scale->t, mix->t, rstd->t, c->t, norm_eps, eps, ROUNDS};
        struct cairn_hyper_out_bwd b = {x->t, y->t, mix->t, dout->t, dy->t, dm->t, dx->t};
        struct cairn_hyper_bwd d = {x->t,  m->t,  base->t,  scale->t,  rstd->t, dc->t, dm->t,
                                    dm->t, dx->t, dbase->t, dscale->t, eps,     ROUNDS};
        const struct thing *in[] = {x, y, w, base, scale}, *out[] = {dx, dy, NULL, dbase, dscale};
        double v[N * J * D + N * D + M * J * D + M + 3], step = 1e-5;
        int at = 0;

        product(l, x, w, m, 0);
        LAB_OK(l, l->fast->hyper(&l->c.stream, &a, &l->err));
        LAB_OK(l, l->fast->hyper_out_bwd(&l->c.stream, &b, &l->err));
        LAB_OK(l, l->fast->hyper_bwd(&l->c.stream, &d, &l->err));
        product(l, dm, w, dx, 1);
        thing_down(l, dx), thing_down(l, dy), thing_down(l, dm), thing_down(l, dbase), thing_down(l, dscale), thing_down(l, m);
        for (int k = 0; k < 5; k++)
            for (int i = 0; i < thing_count(in[k]); i++)
                v[at++] = *thing_f(in[k], i);
        at = 0;
        for (int k = 0; k < 5; k++)
            for (int i = 0; i < thing_count(in[k]); i++, at++) {
                double was = v[at], up, down, got = 0;

                for (int n = 0; k == 2 && n < N; n++) /* dw = dm^T x */
                    got += *thing_f(dm, n * M + i / (J * D)) * *thing_f(x, n * J * D + i % (J * D));
                if (k != 2)
                    got = *thing_f(out[k], i);
                v[at] = was + step;
                up = site_formula(v, dc, dout, (double)norm_eps, (double)eps);
                v[at] = was - step;
                down = site_formula(v, dc, dout, (double)norm_eps, (double)eps);
                v[at] = was;
                if (!(fabs((up - down) / (2 * step) - got) < 3e-5 * (1 + fabs(got))))
                    fail_msg("%s: input %d, element %d: %.9g, by differences %.9g", l->device, k, i, got, (up - down) / (2 * step));
            }
        lab_clear(l);
    }
}

static void streams(struct lab *l)
{
    for (size_t i = 0; i < SHAPES; i++) {
        int n = shapes[i].n, s = shapes[i].streams, d = shapes[i].d;
        struct thing *x = thing_normal(l, thing_new(l, LAB_ACT, shapes[i].pad, 3, n, s, d), 1),
                     *y = thing_new(l, LAB_ACT, shapes[i].pad, 2, n, d), *y2 = thing_like(l, y, 1), *x2 = thing_like(l, x, 1),
                     *x3 = thing_like(l, x, 1);
        struct cairn_streams_sum a = {x->t, y->t, 1.0f / (float)s};
        struct cairn_streams_spread b = {y->t, x2->t, 0.75f};

        LAB_OK(l, l->fast->streams_sum(&l->c.stream, &a, &l->err));
        LAB_OK(l, l->fast->streams_spread(&l->c.stream, &b, &l->err));
        b.y = x3->t;
        LAB_OK(l, l->ref->streams_spread(&l->c.stream, &b, &l->err));
        a.y = y2->t;
        LAB_OK(l, l->ref->streams_sum(&l->c.stream, &a, &l->err));
        thing_down(l, y), thing_down(l, y2), thing_down(l, x2), thing_down(l, x3);
        lab_near(l, shapes[i].why, y, y2, 2e-7, 1e-6);
        lab_equal_bits(l, "spread", x2, x3);
        lab_clear(l);
    }
}

ON_EACH_DEVICE(forward)
ON_EACH_DEVICE(backward)
ON_EACH_DEVICE(the_derivative)
ON_EACH_DEVICE(streams)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_test),
        cmocka_unit_test(backward_test),
        cmocka_unit_test(the_derivative_test),
        cmocka_unit_test(streams_test),
    };

    return LAB_RUN(tests);
}

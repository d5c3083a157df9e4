/* norm_test.c - rmsnorm, its backward, layernorm. */
#include "lab.h"

/* Pads count in steps: of 1, or of 8 where rows shall stay aligned. Many rows: more than a large GPU has under way. */
static const struct {
    int n, d, pad;
    enum cairn_dtype g;
    const char *why;
    int aligned;
} shapes[] = {
    {1, 1, 0, CAIRN_F32, "smallest", 0},
    {0, 8, 0, CAIRN_F32, "no rows", 0},
    {5, 17, 3, CAIRN_F32, "odd, padded", 0},
    {33, 64, 0, CAIRN_BF16, "bf16 weight", 0},
    {7, 96, 1, CAIRN_F32, "padded", 0},
    {300, 40, 0, CAIRN_F32, "many", 0},
    {9, 1000, 0, CAIRN_F32, "wide", 0},
    {5, 2048, 0, CAIRN_F32, "a block a row", 0},
    {3, 9003, 5, CAIRN_BF16, "wider than registers hold", 0},
    {5400, 24, 1, CAIRN_BF16, "aligned, many rows", 1},
    {11, 128, 0, CAIRN_F32, "aligned, half a warp", 1},
    {9, 512, 1, CAIRN_BF16, "aligned, two chunks", 1},
    {9, 768, 0, CAIRN_F32, "aligned, three chunks", 1},
    {9, 1016, 0, CAIRN_F32, "aligned, four chunks", 1},
    {700, 1032, 0, CAIRN_BF16, "aligned, a block a row", 1},
    {9, 2056, 1, CAIRN_F32, "aligned, a block a row, two chunks", 1},
    {9, 4104, 0, CAIRN_BF16, "aligned, a block a row, three chunks", 1},
    {6, 8184, 1, CAIRN_BF16, "aligned, a block a row, four chunks", 1},
    {3, 8200, 1, CAIRN_BF16, "aligned, wider than registers hold", 1},
};
#define SHAPES (sizeof shapes / sizeof *shapes)

/* Relative errors: the mean of D squares by (D/16 + 6) 2^-24, the root halves it, two more products. */
#define REL(d) (((d) / 16.0 + 10) * 0x1p-24)

static int rows(size_t i)
{
    return lab_small() && shapes[i].n > 150 ? 150 : shapes[i].n;
}

static int pad(size_t i, int more)
{
    return (shapes[i].pad + more) * (shapes[i].aligned ? 8 : 1);
}

/* The same numbers in rows of another stride. */
static struct thing *moved(struct lab *l, const struct thing *x, int pad)
{
    struct thing *y = thing_new(l, LAB_ACT, pad, 2, (int)x->t.dim[0], (int)x->t.dim[1]);

    for (int64_t i = 0; i < thing_count(x); i++)
        *thing_f(y, i) = *thing_f(x, i);
    thing_up(l, y);
    return y;
}

static void forward(struct lab *l)
{
    l->roundings = 3; /* xh is an activation too */
    for (size_t i = 0; i < SHAPES; i++) {
        int n = rows(i), d = shapes[i].d;
        struct thing *x = thing_normal(l, thing_new(l, LAB_ACT, pad(i, 0), 2, n, d), 3),
                     *g = thing_normal(l, thing_new(l, shapes[i].g, 0, 1, d), 1);
        struct thing *y = thing_new(l, LAB_ACT, pad(i, 1), 2, n, d), *y2 = thing_like(l, y, 1),
                     *r = thing_new(l, CAIRN_F32, 0, 1, n), *r2 = thing_like(l, r, 1);
        struct thing *b = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, d), 1);
        struct cairn_rmsnorm a = {x->t, g->t, y->t, r->t, 1e-5f};
        struct cairn_layernorm ln = {x->t, g->t, b->t, y2->t, 1e-6f};

        LAB_OK(l, l->fast->rmsnorm(&l->c.stream, &a, &l->err));
        a.y = y2->t, a.rstd = r2->t;
        LAB_OK(l, l->ref->rmsnorm(&l->c.stream, &a, &l->err));
        thing_down(l, y), thing_down(l, y2), thing_down(l, r), thing_down(l, r2);
        lab_near(l, shapes[i].why, y, y2, REL(d), 1e-30);
        lab_near(l, shapes[i].why, r, r2, REL(d), 0);
        /* some rows alone, rstd absent */
        a.rstd.buf = NULL;
        y2 = thing_like(l, y, 0);
        a.y = ln.y = y2->t;
        for (int m = 0; m < n; m += n / 100 + 1) {
            struct cairn_rmsnorm one = a;

            one.x = cairn_tensor_slice(&x->t, 0, m, 1), one.y = cairn_tensor_slice(&y2->t, 0, m, 1);
            LAB_OK(l, l->fast->rmsnorm(&l->c.stream, &one, &l->err));
        }
        thing_down(l, y2);
        lab_equal_bits(l, "row alone", y2, y);
        if (shapes[i].aligned) {
            a.x = moved(l, x, 3)->t;
            LAB_OK(l, l->fast->rmsnorm(&l->c.stream, &a, &l->err));
            thing_down(l, y2);
            lab_equal_bits(l, "rmsnorm of rows that are not aligned", y2, y);
        }
        LAB_OK(l, l->fast->layernorm(&l->c.stream, &ln, &l->err));
        thing_down(l, y2);
        if (shapes[i].aligned) {
            ln.x = a.x, ln.y = y->t;
            LAB_OK(l, l->fast->layernorm(&l->c.stream, &ln, &l->err));
            thing_down(l, y);
            lab_equal_bits(l, "layernorm of rows that are not aligned", y, y2);
        }
        ln.y = y->t;
        LAB_OK(l, l->ref->layernorm(&l->c.stream, &ln, &l->err));
        thing_down(l, y);
        lab_near(l, "layernorm", y2, y, 8 * REL(d), d > 1 ? 8 * REL(d) : 1e-3);
        y = thing_like(l, y2, 0);
        for (int m = 0; m < n; m += n / 100 + 1) {
            struct cairn_layernorm one = ln;

            one.x = cairn_tensor_slice(&x->t, 0, m, 1), one.y = cairn_tensor_slice(&y->t, 0, m, 1);
            LAB_OK(l, l->fast->layernorm(&l->c.stream, &one, &l->err));
        }
        thing_down(l, y);
        lab_equal_bits(l, "layernorm, row alone", y, y2);
        a.y.buf = NULL;
        LAB_REFUSES(l, l->fast->rmsnorm(&l->c.stream, &a, &l->err));
        lab_clear(l);
    }
}

static void in_place(struct lab *l)
{
    struct thing *x = thing_normal(l, thing_new(l, LAB_ACT, 1, 2, 9, 37), 1),
                 *g = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, 37), 1);
    struct thing *y = thing_like(l, x, 1);
    struct cairn_rmsnorm a = {.x = x->t, .g = g->t, .y = y->t, .eps = 1e-5f};

    LAB_OK(l, l->fast->rmsnorm(&l->c.stream, &a, &l->err));
    a.y = x->t;
    LAB_OK(l, l->fast->rmsnorm(&l->c.stream, &a, &l->err));
    thing_down(l, x), thing_down(l, y);
    lab_equal_bits(l, "y is x", x, y);
}

static void backward(struct lab *l)
{
    for (size_t i = 0; i < SHAPES; i++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            int n = rows(i), d = shapes[i].d;
            struct thing *x = thing_normal(l, thing_new(l, LAB_ACT, pad(i, 0), 2, n, d), 2),
                         *g = thing_normal(l, thing_new(l, shapes[i].g, 0, 1, d), 1);
            struct thing *y = thing_new(l, LAB_ACT, 0, 2, n, d), *r = thing_new(l, CAIRN_F32, 0, 1, n),
                         *dy = thing_normal(l, thing_new(l, LAB_ACT, pad(i, 1), 2, n, d), 1);
            struct thing *dx = accumulate ? thing_normal(l, thing_new(l, LAB_ACT, pad(i, 2), 2, n, d), 1)
                                          : thing_new(l, LAB_ACT, pad(i, 2), 2, n, d);
            struct thing *dg = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, d), 1), *dx2 = thing_like(l, dx, 0),
                         *dg2 = thing_like(l, dg, 0);
            struct thing *dx3 = thing_like(l, dx, 0), *dg3 = thing_like(l, dg, 0);
            struct cairn_rmsnorm f = {x->t, g->t, y->t, r->t, 1e-5f};
            struct cairn_rmsnorm_bwd a = {x->t, g->t, r->t, dy->t, dx->t, dg->t, accumulate};

            LAB_OK(l, l->fast->rmsnorm(&l->c.stream, &f, &l->err));
            LAB_OK(l, l->fast->rmsnorm_bwd(&l->c.stream, &a, &l->err));
            a.dx = dx2->t, a.dg = dg2->t;
            LAB_OK(l, l->ref->rmsnorm_bwd(&l->c.stream, &a, &l->err));
            thing_down(l, dx), thing_down(l, dx2), thing_down(l, dg), thing_down(l, dg2);
            lab_near(l, shapes[i].why, dx, dx2, 8 * REL(d), 30 * REL(d));
            lab_near(l, shapes[i].why, dg, dg2, 0x1p-22, (n + 4) * 0x1p-24 * 3 * sqrt(n + 1));
            a.dx = dx3->t, a.dg = dg3->t;
            l->c.backend->set_threads(l->c.dev, 3);
            LAB_OK(l, l->fast->rmsnorm_bwd(&l->c.stream, &a, &l->err));
            l->c.backend->set_threads(l->c.dev, 0);
            thing_down(l, dx3), thing_down(l, dg3);
            lab_equal_bits(l, "threads", dx3, dx);
            lab_equal_bits(l, "threads", dg3, dg);
            if (shapes[i].aligned && !accumulate) {
                thing_normal(l, dg3, 0);
                a.dg = dg2->t;
                thing_normal(l, dg2, 0);
                LAB_OK(l, l->fast->rmsnorm_bwd(&l->c.stream, &a, &l->err));
                a.x = moved(l, x, 3)->t, a.dg = dg3->t;
                LAB_OK(l, l->fast->rmsnorm_bwd(&l->c.stream, &a, &l->err));
                thing_down(l, dx3), thing_down(l, dg2), thing_down(l, dg3);
                lab_equal_bits(l, "rows that are not aligned", dx3, dx);
                lab_equal_bits(l, "rows that are not aligned", dg3, dg2);
            }
            lab_clear(l);
        }
}

static double formula(const double *x, const double *g, const struct thing *dy, int N, int D)
{
    double L = 0;

    for (int n = 0; n < N; n++) {
        double s = 0;

        for (int i = 0; i < D; i++)
            s += x[n * D + i] * x[n * D + i] / D;
        for (int i = 0; i < D; i++)
            L += *thing_f(dy, n * D + i) * g[i] * x[n * D + i] / sqrt(s + 1e-5);
    }
    return L;
}

static void the_derivative(struct lab *l)
{
    enum { N = 4, D = 19 };
    struct thing *x = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, N, D), 1),
                 *g = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, D), 1);
    struct thing *y = thing_new(l, CAIRN_F32, 0, 2, N, D), *r = thing_new(l, CAIRN_F32, 0, 1, N),
                 *dy = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, N, D), 1);
    struct thing *dx = thing_new(l, CAIRN_F32, 0, 2, N, D), *dg = thing_new(l, CAIRN_F32, 0, 1, D);
    struct cairn_rmsnorm f = {x->t, g->t, y->t, r->t, 1e-5f};
    struct cairn_rmsnorm_bwd a = {x->t, g->t, r->t, dy->t, dx->t, dg->t, 0};
    double v[N * D + D], step = 1e-5;

    memset(dg->h, 0, dg->bytes);
    thing_up(l, dg);
    LAB_OK(l, l->fast->rmsnorm(&l->c.stream, &f, &l->err));
    LAB_OK(l, l->fast->rmsnorm_bwd(&l->c.stream, &a, &l->err));
    thing_down(l, dx), thing_down(l, dg);
    for (int i = 0; i < N * D; i++)
        v[i] = *thing_f(x, i);
    for (int i = 0; i < D; i++)
        v[N * D + i] = *thing_f(g, i);
    for (int i = 0; i < N * D + D; i++) {
        double was = v[i], up, down, got = i < N * D ? *thing_f(dx, i) : *thing_f(dg, i - N * D);

        v[i] = was + step;
        up = formula(v, v + N * D, dy, N, D);
        v[i] = was - step;
        down = formula(v, v + N * D, dy, N, D);
        v[i] = was;
        assert_true(fabs((up - down) / (2 * step) - got) < 2e-5);
    }
}

ON_EACH_DEVICE(forward)
ON_EACH_DEVICE(in_place)
ON_EACH_DEVICE(backward)
ON_EACH_DEVICE(the_derivative)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_test),
        cmocka_unit_test(in_place_test),
        cmocka_unit_test(backward_test),
        cmocka_unit_test(the_derivative_test),
    };

    return LAB_RUN(tests);
}

/* experts_test.c - router, router_bwd, dispatch, combine, combine_bwd, swiglu, swiglu_bwd. */
#include "lab.h"

static const struct {
    int n, e, k, groups, topk_group, norm, bias;
    const char *why;
} routers[] = {
    {0, 4, 2, 1, 1, 1, 1, "no rows"},          {1, 1, 1, 1, 1, 1, 0, "one expert"},
    {50, 8, 2, 1, 1, 1, 1, "small"},           {40, 256, 8, 1, 1, 1, 1, "GLM-5"},
    {60, 32, 5, 8, 3, 1, 1, "groups"},         {33, 17, 17, 1, 1, 0, 0, "all experts, no norm"},
    {20, 12, 3, 12, 4, 1, 1, "groups of one"},
};
#define ROUTERS (sizeof routers / sizeof *routers)

/* The rule of the contract, in fp64 from s rounded to fp32, by counting who comes before whom. */
static void naive_choice(const struct thing *r, const struct thing *bias, int n, size_t i, int *chosen)
{
    int E = routers[i].e, size = E / routers[i].groups, best[32];
    float sel[512];

    for (int e = 0; e < E; e++)
        sel[e] = (float)(1 / (1 + exp(-(double)*thing_f(r, n * E + e)))) + (bias ? *thing_f(bias, e) : 0);
    for (int g = 0; g < routers[i].groups; g++) {
        float score[32];
        int before = 0;

        for (int o = 0; o < routers[i].groups; o++) {
            float a = -INFINITY, b = -INFINITY;

            for (int e = o * size; e < (o + 1) * size; e++)
                if (sel[e] > a)
                    b = a, a = sel[e];
                else if (sel[e] > b)
                    b = sel[e];
            score[o] = size > 1 ? a + b : a;
        }
        for (int o = 0; o < routers[i].groups; o++)
            before += score[o] > score[g] || (score[o] == score[g] && o < g);
        best[g] = before < routers[i].topk_group;
    }
    for (int e = 0; e < E; e++) {
        int before = 0;

        for (int o = 0; o < E; o++)
            before += best[o / size] && (sel[o] > sel[e] || (sel[o] == sel[e] && o < e));
        chosen[e] = best[e / size] && before < routers[i].k;
    }
}

static void router(struct lab *l)
{
    for (size_t i = 0; i < ROUTERS; i++) {
        int N = routers[i].n, E = routers[i].e, K = routers[i].k, chosen[512];
        struct thing *r = thing_new(l, CAIRN_F32, 1, 2, N, E), *bias = thing_new(l, CAIRN_F32, 0, 1, E),
                     *idx = thing_new(l, CAIRN_I32, 0, 2, N, K);
        struct thing *gate = thing_new(l, CAIRN_F32, 0, 2, N, K), *prob = thing_like(l, gate, 1), *gate2 = thing_like(l, gate, 1),
                     *prob2 = thing_like(l, gate, 1);
        struct thing *idx2 = thing_like(l, idx, 1);
        struct cairn_router a;

        /* values on a grid whose ties fp32 rounding of the sigmoid does not break: equal inputs give equal scores */
        for (int j = 0; j < N * E; j++)
            *thing_f(r, j) = (float)lab_int(l, -6, 6) / 4;
        for (int j = 0; j < E; j++)
            *thing_f(bias, j) = (float)lab_int(l, 0, 2) / 8;
        thing_up(l, r), thing_up(l, bias);
        a = (struct cairn_router){
            r->t, bias->t, idx->t, gate->t, prob->t, {0}, routers[i].groups, routers[i].topk_group, routers[i].norm, 2.5f};
        if (!routers[i].bias)
            a.bias.buf = NULL;
        LAB_OK(l, l->fast->router(&l->c.stream, &a, &l->err));
        a.idx = idx2->t, a.gate = gate2->t, a.prob = prob2->t;
        LAB_OK(l, l->ref->router(&l->c.stream, &a, &l->err));
        thing_down(l, idx), thing_down(l, gate), thing_down(l, prob), thing_down(l, idx2), thing_down(l, gate2),
            thing_down(l, prob2);
        lab_equal_bits(l, routers[i].why, idx, idx2);
        lab_near(l, routers[i].why, prob, prob2, 4 * 0x1p-24, 0);
        lab_near(l, routers[i].why, gate, gate2, (K + 8) * 0x1p-24, 0);
        for (int n = 0; n < N; n++) {
            double sum = 0;

            naive_choice(r, routers[i].bias ? bias : NULL, n, i, chosen);
            for (int e = 0, j = 0; e < E; e++)
                if (chosen[e]) {
                    assert_int_equal(*thing_i(idx, n * K + j), e);
                    j++;
                }
            for (int j = 0; j < K; j++)
                sum += *thing_f(gate, n * K + j);
            if (routers[i].norm)
                assert_true(fabs(sum - 2.5) < 1e-5);
        }
        /* rows alone; then forced to other experts */
        for (int n = 0; n < N; n++) {
            struct cairn_router one = a;

            one.r = cairn_tensor_slice(&a.r, 0, n, 1), one.idx = cairn_tensor_slice(&idx2->t, 0, n, 1),
            one.gate = cairn_tensor_slice(&gate2->t, 0, n, 1);
            one.prob = cairn_tensor_slice(&prob2->t, 0, n, 1);
            LAB_OK(l, l->fast->router(&l->c.stream, &one, &l->err));
        }
        thing_down(l, gate2), thing_down(l, prob2);
        lab_equal_bits(l, "row alone", gate2, gate);
        lab_equal_bits(l, "row alone", prob2, prob);
        if (N) {
            struct thing *forced = thing_new(l, CAIRN_I32, 0, 2, N, K);

            for (int j = 0; j < N * K; j++)
                *thing_i(forced, j) = j % K + (E - K);
            thing_up(l, forced);
            a.forced = forced->t;
            LAB_OK(l, l->fast->router(&l->c.stream, &a, &l->err));
            thing_down(l, idx2), thing_down(l, prob2);
            lab_equal_bits(l, "forced", idx2, forced);
            for (int j = 0; j < N * K; j++)
                assert_true(fabs(*thing_f(prob2, j) - 1 / (1 + exp(-(double)*thing_f(r, j / K * E + j % K + E - K)))) < 1e-6);
            if (K > 1) {
                *thing_i(forced, 0) = *thing_i(forced, 1);
                thing_up(l, forced);
                LAB_REFUSES(l, l->fast->router(&l->c.stream, &a, &l->err));
            }
        }
        lab_clear(l);
    }
}

static void router_nan(struct lab *l)
{
    struct thing *r = thing_new(l, CAIRN_F32, 0, 2, 2, 5), *idx = thing_new(l, CAIRN_I32, 0, 2, 2, 3),
                 *gate = thing_new(l, CAIRN_F32, 0, 2, 2, 3), *prob = thing_like(l, gate, 1);
    struct cairn_router a = {
        .r = r->t, .idx = idx->t, .gate = gate->t, .prob = prob->t, .n_group = 1, .topk_group = 1, .norm = 1, .scale = 1};
    static const float values[] = {NAN, 1, INFINITY, -INFINITY, 0, NAN, NAN, NAN, NAN, NAN};

    memcpy(r->h, values, sizeof values);
    thing_up(l, r);
    LAB_OK(l, l->fast->router(&l->c.stream, &a, &l->err));
    thing_down(l, idx);
    assert_int_equal(*thing_i(idx, 0), 1);
    assert_int_equal(*thing_i(idx, 1), 2);
    assert_int_equal(*thing_i(idx, 2), 4);
    for (int j = 3; j < 6; j++) /* ids stay ids */
        assert_int_equal(*thing_i(idx, j), j - 3);
}

/* gate (through the op itself would be fp32) as an fp64 function of r */
static void router_backward(struct lab *l)
{
    for (size_t i = 0; i < ROUTERS; i++) {
        int N = routers[i].n, E = routers[i].e, K = routers[i].k;
        struct thing *r = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, N, E), 1), *idx = thing_new(l, CAIRN_I32, 0, 2, N, K),
                     *gate = thing_new(l, CAIRN_F32, 0, 2, N, K);
        struct thing *prob = thing_like(l, gate, 1), *dgate = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, N, K), 1),
                     *dr = thing_new(l, CAIRN_F32, 2, 2, N, E);
        struct thing *dr2 = thing_like(l, dr, 1);
        struct cairn_router f = {.r = r->t,
                                 .idx = idx->t,
                                 .gate = gate->t,
                                 .prob = prob->t,
                                 .n_group = 1,
                                 .topk_group = 1,
                                 .norm = routers[i].norm,
                                 .scale = 2.5f};
        struct cairn_router_bwd a = {idx->t, prob->t, dgate->t, dr->t, routers[i].norm, 2.5f};

        LAB_OK(l, l->fast->router(&l->c.stream, &f, &l->err));
        LAB_OK(l, l->fast->router_bwd(&l->c.stream, &a, &l->err));
        a.dr = dr2->t;
        LAB_OK(l, l->ref->router_bwd(&l->c.stream, &a, &l->err));
        thing_down(l, dr), thing_down(l, dr2), thing_down(l, idx);
        lab_near(l, routers[i].why, dr, dr2, 0, (K + 10) * 0x1p-24 * 10);
        for (int n = 0; n < N && n < 5; n++)
            for (int e = 0; e < E; e++) {
                double step = 1e-5, L[2];

                for (int side = 0; side < 2; side++) {
                    double sum = 0, s[512];

                    L[side] = 0;
                    for (int j = 0; j < K; j++) {
                        int id = *thing_i(idx, n * K + j);

                        s[j] = 1 / (1 + exp(-(*thing_f(r, n * E + id) + (id == e ? (side ? -step : step) : 0))));
                        sum += s[j];
                    }
                    for (int j = 0; j < K; j++)
                        L[side] += *thing_f(dgate, n * K + j) * 2.5 * (routers[i].norm ? s[j] / (sum + 1e-20) : s[j]);
                }
                assert_true(fabs((L[0] - L[1]) / (2 * step) - *thing_f(dr, n * E + e)) < 1e-5);
            }
        lab_clear(l);
    }
}

static void ways(struct lab *l)
{
    static const struct {
        int n, e, k, d, kind;
        const char *why;
    } cases[] = {{0, 4, 2, 8, 0, "no rows"},
                 {1, 3, 1, 5, 0, "one row"},
                 {60, 8, 2, 33, 0, "spread"},
                 {50, 6, 1, 16, 1, "all to one"},
                 {40, 16, 4, 64, 2, "many empty"},
                 {700, 70, 5, 8, 0, "choices beyond one block"},
                 {9000, 33, 8, 8, 0, "choices of very many runs"},
                 {300, 1024, 8, 8, 0, "as many experts as there may be"},
                 {5, 4, 2, 4200, 0, "more columns than a block takes"}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int N = lab_small() && cases[i].n > 1000 ? 1000 : cases[i].n, E = cases[i].e, K = cases[i].k, D = cases[i].d;
        struct thing *idx = thing_new(l, CAIRN_I32, 0, 2, N, K), *off = thing_new(l, CAIRN_I32, 0, 1, E + 1),
                     *token = thing_new(l, CAIRN_I32, 0, 1, N * K);
        struct thing *where = thing_like(l, idx, 1), *off2 = thing_like(l, off, 1), *token2 = thing_like(l, token, 1),
                     *where2 = thing_like(l, idx, 1);
        struct thing *x = thing_normal(l, thing_new(l, LAB_ACT, 1, 2, N * K, D), 1),
                     *gate = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, N, K), 1);
        struct thing *base = thing_normal(l, thing_new(l, LAB_ACT, 2, 2, N, D), 1), *y = thing_new(l, LAB_ACT, 1, 2, N, D),
                     *y2 = thing_like(l, y, 1);
        struct thing *dx = thing_like(l, x, 0), *dx2 = thing_like(l, x, 0), *dgate = thing_like(l, gate, 1),
                     *dgate2 = thing_like(l, gate, 1);
        struct cairn_dispatch d = {idx->t, off->t, token->t, where->t};
        struct cairn_combine c;
        struct cairn_combine_bwd b;

        for (int n = 0; n < N; n++)
            for (int j = 0; j < K; j++)
                *thing_i(idx, n * K + j) = cases[i].kind == 1 ? E - 1 : cases[i].kind == 2 ? j * 2 : (n * 7 + j * 3) % E;
        thing_up(l, idx);
        LAB_OK(l, l->fast->dispatch(&l->c.stream, &d, &l->err));
        d.offsets = off2->t, d.token = token2->t, d.where = where2->t;
        LAB_OK(l, l->ref->dispatch(&l->c.stream, &d, &l->err));
        thing_down(l, off), thing_down(l, token), thing_down(l, where), thing_down(l, off2), thing_down(l, token2),
            thing_down(l, where2);
        lab_equal_bits(l, "offsets", off, off2);
        lab_equal_bits(l, "token", token, token2);
        lab_equal_bits(l, "where", where, where2);
        assert_int_equal(*thing_i(off, 0), 0);
        assert_int_equal(*thing_i(off, E), N * K);
        for (int j = 0; j < N * K; j++) {
            int row = *thing_i(where, j), e = *thing_i(idx, j);

            assert_int_equal(*thing_i(token, row), j / K);
            assert_true(row >= *thing_i(off, e) && row < *thing_i(off, e + 1));
        }
        for (int e = 0; e < E; e++)
            for (int row = *thing_i(off, e) + 1; row < *thing_i(off, e + 1); row++)
                assert_true(*thing_i(token, row - 1) < *thing_i(token, row) || K > 1);
        for (int variant = 0; variant < 4; variant++) {
            c = (struct cairn_combine){x->t, gate->t, where->t, base->t, y->t};
            if (variant & 1)
                c.gate.buf = NULL;
            if (variant & 2)
                c.base.buf = NULL;
            memset(y->h, 0xff, y->bytes), memset(y2->h, 0xff, y2->bytes);
            thing_up(l, y), thing_up(l, y2);
            LAB_OK(l, l->fast->combine(&l->c.stream, &c, &l->err));
            c.y = y2->t;
            LAB_OK(l, l->ref->combine(&l->c.stream, &c, &l->err));
            thing_down(l, y), thing_down(l, y2);
            lab_near(l, cases[i].why, y, y2, 0x1p-22, (K + 1) * 0x1p-24 * 12);
        }
        c = (struct cairn_combine){x->t, gate->t, where->t, base->t, y->t};
        LAB_OK(l, l->fast->combine(&l->c.stream, &c, &l->err));
        thing_down(l, y);
        for (int n = 0; n < N; n++) {
            struct cairn_combine one = c;

            one.gate = cairn_tensor_slice(&c.gate, 0, n, 1), one.where = cairn_tensor_slice(&c.where, 0, n, 1);
            one.base = cairn_tensor_slice(&c.base, 0, n, 1), one.y = cairn_tensor_slice(&y2->t, 0, n, 1);
            LAB_OK(l, l->fast->combine(&l->c.stream, &one, &l->err));
        }
        thing_down(l, y2);
        lab_equal_bits(l, "row alone", y2, y);
        c.y = c.base; /* y may be base */
        LAB_OK(l, l->fast->combine(&l->c.stream, &c, &l->err));
        thing_down(l, base);
        lab_equal_bits(l, "in place", base, y);
        b = (struct cairn_combine_bwd){x->t, gate->t, where->t, base->t, dx->t, dgate->t};
        LAB_OK(l, l->fast->combine_bwd(&l->c.stream, &b, &l->err));
        b.dx = dx2->t, b.dgate = dgate2->t;
        LAB_OK(l, l->ref->combine_bwd(&l->c.stream, &b, &l->err));
        thing_down(l, dx), thing_down(l, dx2), thing_down(l, dgate), thing_down(l, dgate2);
        lab_near(l, cases[i].why, dx, dx2, 0x1p-23, 0);
        lab_near(l, cases[i].why, dgate, dgate2, 0x1p-22, (D + 4) * 0x1p-24 * 12);
        if (N) {
            *thing_i(where, 0) = N * K;
            thing_up(l, where);
            LAB_REFUSES(l, l->fast->combine(&l->c.stream, &c, &l->err));
            LAB_REFUSES(l, l->fast->combine_bwd(&l->c.stream, &b, &l->err));
            *thing_i(idx, 0) = E;
            thing_up(l, idx);
            LAB_REFUSES(l, l->fast->dispatch(&l->c.stream, &d, &l->err));
        }
        lab_clear(l);
    }
}

static double silu(double a)
{
    return a / (1 + exp(-a));
}

static void swiglu(struct lab *l)
{
    static const int shapes[][3] = {{0, 4, 0}, {1, 1, 0}, {7, 33, 2}, {50, 64, 0}, {3, 500, 1}};

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int limited = 0; limited < 2; limited++) {
            int N = shapes[i][0], F = shapes[i][1], pad = shapes[i][2];
            struct thing *a = thing_normal(l, thing_new(l, LAB_ACT, pad, 2, N, F), 2),
                         *u = thing_normal(l, thing_new(l, LAB_ACT, 0, 2, N, F), 2);
            struct thing *h = thing_new(l, LAB_ACT, pad, 2, N, F), *h2 = thing_like(l, h, 1),
                         *dh = thing_normal(l, thing_new(l, LAB_ACT, pad, 2, N, F), 1);
            struct thing *da = thing_new(l, LAB_ACT, pad, 2, N, F), *du = thing_like(l, da, 1), *da2 = thing_like(l, da, 1),
                         *du2 = thing_like(l, da, 1);
            float limit = limited ? 1.5f : 0;
            struct cairn_swiglu f = {a->t, u->t, h->t, limit};
            struct cairn_swiglu_bwd b = {a->t, u->t, dh->t, da->t, du->t, limit};

            if (N > 1) { /* the far tails: e^-a overflows, and its square root does not */
                *thing_f(a, 0) = -100, *thing_f(a, 1) = 100, *thing_f(a, 2) = -88.5f, *thing_f(a, 3) = -INFINITY;
                thing_up(l, a);
            }
            LAB_OK(l, l->fast->swiglu(&l->c.stream, &f, &l->err));
            f.h = h2->t;
            LAB_OK(l, l->ref->swiglu(&l->c.stream, &f, &l->err));
            thing_down(l, h), thing_down(l, h2);
            lab_near(l, "swiglu", h, h2, 8 * 0x1p-24, 1e-36);
            LAB_OK(l, l->fast->swiglu_bwd(&l->c.stream, &b, &l->err));
            b.da = da2->t, b.du = du2->t;
            LAB_OK(l, l->ref->swiglu_bwd(&l->c.stream, &b, &l->err));
            thing_down(l, da), thing_down(l, du), thing_down(l, da2), thing_down(l, du2);
            lab_near(l, "da", da, da2, 16 * 0x1p-24, 16 * 0x1p-24);
            lab_near(l, "du", du, du2, 8 * 0x1p-24, 1e-36);
            for (int j = 4; j < N * F && !lab_rounds(l); j++) {
                double x = *thing_f(a, j), y = *thing_f(u, j), d = *thing_f(dh, j), s = 1e-5, ga, gu;
                double lim = limited ? 1.5 : 1e30;

                if (fabs(fabs(x) - lim) < 1e-3 || fabs(fabs(y) - lim) < 1e-3)
                    continue;
#define H(p, q) (silu(fmin(p, lim)) * fmax(-lim, fmin(q, lim)))
                ga = d * (H(x + s, y) - H(x - s, y)) / (2 * s);
                gu = d * (H(x, y + s) - H(x, y - s)) / (2 * s);
#undef H
                assert_true(fabs(ga - *thing_f(da, j)) < 2e-5 && fabs(gu - *thing_f(du, j)) < 2e-5);
            }
            b.da = b.a, b.du = b.u; /* da may be a, du may be u */
            LAB_OK(l, l->fast->swiglu_bwd(&l->c.stream, &b, &l->err));
            thing_down(l, a), thing_down(l, u);
            lab_equal_bits(l, "in place", a, da);
            lab_equal_bits(l, "in place", u, du);
            lab_clear(l);
        }
}

ON_EACH_DEVICE(router)
ON_EACH_DEVICE(router_nan)
ON_EACH_DEVICE(router_backward)
ON_EACH_DEVICE(ways)
ON_EACH_DEVICE(swiglu)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(router_test), cmocka_unit_test(router_nan_test), cmocka_unit_test(router_backward_test),
        cmocka_unit_test(ways_test),   cmocka_unit_test(swiglu_test),
    };

    return LAB_RUN(tests);
}

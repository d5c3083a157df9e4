/* rows_test.c - rows, embed_bwd, axpby, cast, and the two of the optimiser: adamw, sumsq. */
#include "lab.h"

static void rows(struct lab *l)
{
    static const struct {
        enum cairn_dtype from, to;
        int s, t, n, d, pad, src_index, dst_index;
        const char *why;
    } cases[] = {
        {LAB_ACT, LAB_ACT, 9, 5, 5, 7, 2, 1, 0, "gather"},
        {LAB_ACT, LAB_ACT, 5, 40, 5, 16, 1, 0, 1, "scatter, as a cache is written"},
        {CAIRN_BF16, LAB_ACT, 50, 33, 33, 20, 0, 1, 0, "embedding"},
        {LAB_ACT, LAB_ACT, 30, 30, 11, 33, 3, 1, 1, "pages copied"},
        {LAB_ACT, LAB_ACT, 6, 6, 6, 5, 1, 0, 0, "plain copy"},
        {LAB_ACT, LAB_ACT, 6, 6, 0, 5, 0, 1, 1, "none"},
        {CAIRN_BF16, CAIRN_BF16, 8, 8, 3, 5, 1, 1, 1, "bf16"},
        {LAB_ACT, LAB_ACT, 40, 64, 37, 64, 0, 1, 1, "aligned"},
        {CAIRN_BF16, CAIRN_F32, 9, 9, 9, 24, 0, 1, 0, "aligned, converted"},
        {CAIRN_F32, CAIRN_F32, 9, 9, 9, 24, 0, 1, 0, "f32"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int reference = 0; reference < 2; reference++) {
            int n = cases[i].n, d = cases[i].d;
            struct thing *src = thing_normal(l, thing_new(l, cases[i].from, cases[i].pad, 2, cases[i].s, d), 1),
                         *dst = thing_new(l, cases[i].to, cases[i].pad, 2, cases[i].t, d);
            struct thing *from = thing_new(l, CAIRN_I32, 0, 1, n), *to = thing_new(l, CAIRN_I32, 0, 1, n), *before;
            struct cairn_rows a = {.src = src->t, .dst = dst->t};
            const struct cairn_ops *ops = reference ? l->ref : l->fast;

            for (int r = 0; r < n; r++)
                *thing_i(from, r) = lab_int(l, 0, cases[i].s - 1),
                               *thing_i(to, r) = (r * 7 + 3) % cases[i].t; /* 7 and the sizes have no common factor */
            thing_up(l, from), thing_up(l, to);
            if (cases[i].src_index)
                a.src_index = from->t;
            if (cases[i].dst_index)
                a.dst_index = to->t;
            before = thing_like(l, dst, 0);
            LAB_OK(l, ops->rows(&l->c.stream, &a, &l->err));
            thing_down(l, dst);
            for (int t = 0; t < cases[i].t; t++) {
                int hit = -1;

                for (int r = 0; r < n; r++)
                    if ((cases[i].dst_index ? *thing_i(to, r) : r) == t)
                        hit = cases[i].src_index ? *thing_i(from, r) : r;
                for (int k = 0; k < d; k++) {
                    double got = thing_value(dst, t * d + k),
                           want = hit < 0 ? thing_value(before, t * d + k) : thing_value(src, hit * d + k);

                    assert_true(got == want || (isnan(got) && isnan(want)));
                }
            }
            if (n && cases[i].src_index) {
                *thing_i(from, 0) = cases[i].s;
                thing_up(l, from);
                LAB_REFUSES(l, ops->rows(&l->c.stream, &a, &l->err));
                *thing_i(from, 0) = -1;
                thing_up(l, from);
                LAB_REFUSES(l, ops->rows(&l->c.stream, &a, &l->err));
            }
            lab_clear(l);
        }
}

static void embeddings(struct lab *l, int N, int D, int V, int pad)
{
    struct thing *ids = thing_new(l, CAIRN_I32, 0, 1, N), *dy = thing_normal(l, thing_new(l, LAB_ACT, pad, 2, N, D), 1),
                 *t = thing_normal(l, thing_new(l, CAIRN_F32, 2 * pad, 2, V, D), 1);
    struct thing *ref = thing_like(l, t, 0), *three = thing_like(l, t, 0), *want = thing_like(l, t, 0);
    struct cairn_embed_bwd a = {ids->t, dy->t, t->t};

    for (int n = 0; n < N; n++) /* some are common */
        *thing_i(ids, n) = n % 3 ? lab_int(l, 0, V - 2) : lab_int(l, 0, 2);
    thing_up(l, ids);
    for (int n = 0; n < N; n++)
        for (int d = 0; d < D; d++)
            *thing_f(want, *thing_i(ids, n) * D + d) += *thing_f(dy, n * D + d);
    LAB_OK(l, l->fast->embed_bwd(&l->c.stream, &a, &l->err));
    thing_down(l, t);
    lab_equal_bits(l, "rows in order", t, want);
    a.dtable = ref->t;
    LAB_OK(l, l->ref->embed_bwd(&l->c.stream, &a, &l->err));
    thing_down(l, ref);
    lab_equal_bits(l, "reference", ref, t);
    a.dtable = three->t;
    l->c.backend->set_threads(l->c.dev, 3);
    LAB_OK(l, l->fast->embed_bwd(&l->c.stream, &a, &l->err));
    l->c.backend->set_threads(l->c.dev, 0);
    thing_down(l, three);
    lab_equal_bits(l, "threads", three, t);
    *thing_i(ids, N / 2) = V;
    thing_up(l, ids);
    LAB_REFUSES(l, l->fast->embed_bwd(&l->c.stream, &a, &l->err));
    *thing_i(ids, N / 2) = -1;
    thing_up(l, ids);
    LAB_REFUSES(l, l->fast->embed_bwd(&l->c.stream, &a, &l->err));
    lab_clear(l);
}

static void embedding(struct lab *l)
{
    embeddings(l, 300, 70, 12, 1);
    embeddings(l, 1, 8, 2, 0);
    embeddings(l, 31, 1040, 9, 8); /* aligned; more columns than a block takes */
    embeddings(l, 2500, 24, 900, 8);
}

static void axpby(struct lab *l)
{
    for (int pad = 0; pad < 3; pad++)
        for (int k = 0; k < 4; k++) { /* 3: from an activation into a sum of f32 */
            struct thing *x = thing_normal(l, thing_new(l, LAB_ACT, pad, 3, 5, 9, 31), 1),
                         *y = thing_normal(l, thing_new(l, k == 3 ? CAIRN_F32 : LAB_ACT, pad ? pad + 1 : 0, 3, 5, 9, 31), 1);
            struct thing *z = thing_like(l, y, 0), *before = thing_like(l, y, 0);
            struct cairn_axpby a = {x->t, y->t, k == 1 ? -0.5f : 1, k == 2 ? 0 : k == 1 ? 2 : 1};

            if (k == 2) { /* y holds nothing that counts */
                memset(y->h, 0xff, y->bytes), memset(z->h, 0xff, z->bytes);
                thing_up(l, y), thing_up(l, z);
            }
            LAB_OK(l, l->fast->axpby(&l->c.stream, &a, &l->err));
            a.y = z->t;
            LAB_OK(l, l->ref->axpby(&l->c.stream, &a, &l->err));
            thing_down(l, y), thing_down(l, z);
            for (int i = 0; i < 5 * 9 * 31; i++) {
                float want = k % 3 == 0 ? *thing_f(x, i) + *thing_f(before, i)
                             : k == 1   ? -0.5f * *thing_f(x, i) + 2 * *thing_f(before, i)
                                        : *thing_f(x, i);

                if (lab_rounds(l) && k < 3)
                    want = lab_float(lab_bf16(want));
                assert_true(*thing_f(y, i) == want);
                assert_true(fabsf(*thing_f(z, i) - want) <= fabsf(want) * (lab_rounds(l) ? 0x1p-7f : 0x1p-22f) + 0x1p-22f);
            }
            a.y = a.x; /* y may be x */
            a.b = 0;
            LAB_OK(l, l->fast->axpby(&l->c.stream, &a, &l->err));
            lab_clear(l);
        }
}

static void casts(struct lab *l)
{
    static const struct {
        uint32_t f32;
        uint16_t bf16, f16;
        const char *why;
    } exact[] = {
        {0x3f800000, 0x3f80, 0x3c00, "1"},
        {0x3f808000, 0x3f80, 0x3c04, "a tie of bf16 goes to even, down"},
        {0x3f818000, 0x3f82, 0x3c0c, "a tie of bf16 goes to even, up"},
        {0x3f801000, 0x3f80, 0x3c00, "a tie of f16 goes to even, down"},
        {0x3f803000, 0x3f80, 0x3c02, "a tie of f16 goes to even, up"},
        {0x7f7fffff, 0x7f80, 0x7c00, "overflow"},
        {0x477fefff, 0x4780, 0x7bff, "just below the f16 overflow"},
        {0x477ff000, 0x4780, 0x7c00, "the f16 overflow tie"},
        {0x33800000, 0x3380, 0x0001, "the smallest f16"},
        {0x33000000, 0x3300, 0x0000, "half of it: a tie, to even"},
        {0x33000001, 0x3300, 0x0001, "a hair more"},
        {0x387fc000, 0x3880, 0x03ff, "the largest subnormal f16"},
        {0x387fe000, 0x3880, 0x0400, "rounds into the normals"},
        {0x80000000, 0x8000, 0x8000, "-0"},
        {0xff800000, 0xff80, 0xfc00, "-inf"},
        {0x00000001, 0x0000, 0x0000, "the smallest float"},
    };
    enum { N = sizeof exact / sizeof *exact };
    struct thing *x = thing_new(l, CAIRN_F32, 0, 1, N), *b = thing_new(l, CAIRN_BF16, 0, 1, N),
                 *h = thing_new(l, CAIRN_F16, 0, 1, N), *y = thing_new(l, CAIRN_F32, 0, 1, N);

    for (int i = 0; i < N; i++)
        memcpy(thing_f(x, i), &exact[i].f32, 4);
    thing_up(l, x);
    for (int reference = 0; reference < 2; reference++) {
        const struct cairn_ops *ops = reference ? l->ref : l->fast;
        struct cairn_cast a = {x->t, b->t, -1};

        LAB_OK(l, ops->cast(&l->c.stream, &a, &l->err));
        a.dst = h->t;
        LAB_OK(l, ops->cast(&l->c.stream, &a, &l->err));
        thing_down(l, b), thing_down(l, h);
        for (int i = 0; i < N; i++) {
            if (((uint16_t *)b->h)[i] != exact[i].bf16 || ((uint16_t *)h->h)[i] != exact[i].f16)
                fail_msg("%s: %s: %04x %04x", l->device, exact[i].why, ((uint16_t *)b->h)[i], ((uint16_t *)h->h)[i]);
        }
        a = (struct cairn_cast){x->t, y->t, CAIRN_BF16}; /* a published weight held as f32 */
        LAB_OK(l, ops->cast(&l->c.stream, &a, &l->err));
        thing_down(l, y);
        for (int i = 0; i < N; i++)
            assert_true(thing_value(y, i) == thing_value(b, i));
        a = (struct cairn_cast){h->t, y->t, -1};
        LAB_OK(l, ops->cast(&l->c.stream, &a, &l->err));
        a = (struct cairn_cast){y->t, b->t, -1};
        LAB_OK(l, ops->cast(&l->c.stream, &a, &l->err));
    }
    /* every f16 to f32 and back */
    lab_clear(l);
    h = thing_new(l, CAIRN_F16, 0, 1, 65536);
    b = thing_like(l, h, 1);
    y = thing_new(l, CAIRN_F32, 0, 1, 65536);
    for (int i = 0; i < 65536; i++)
        ((uint16_t *)h->h)[i] = (uint16_t)i;
    thing_up(l, h);
    {
        struct cairn_cast up = {h->t, y->t, -1}, down = {y->t, b->t, -1}, in_place = {y->t, y->t, CAIRN_F16};

        LAB_OK(l, l->fast->cast(&l->c.stream, &up, &l->err));
        LAB_OK(l, l->fast->cast(&l->c.stream, &in_place, &l->err));
        LAB_OK(l, l->fast->cast(&l->c.stream, &down, &l->err));
        thing_down(l, b), thing_down(l, y);
        for (int i = 0; i < 65536; i++) {
            int e = (i >> 10) & 31, m = i & 1023;
            double want = (i & 0x8000 ? -1 : 1) * (e ? ldexp(1 + m / 1024.0, e - 15) : ldexp(m, -24));

            if (e == 31 && m)
                assert_true(isnan(*thing_f(y, i)));
            else
                assert_true(((uint16_t *)b->h)[i] == i && (e == 31 || *thing_f(y, i) == want));
        }
    }
}

static void adamw(struct lab *l)
{
    static const int sizes[] = {0, 1, 17, 9001};

    for (int i = 0; i < 4; i++) {
        int n = sizes[i];
        struct thing *p = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, n), 1),
                     *g = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, n), 1), *m = thing_new(l, CAIRN_F32, 0, 1, n), *v, *q, *m2,
                     *v2;
        struct cairn_adamw a = {
            .lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .grad_scale = 0.25f};

        memset(m->h, 0, m->bytes);
        thing_up(l, m);
        v = thing_like(l, m, 0), m2 = thing_like(l, m, 0), v2 = thing_like(l, m, 0), q = thing_like(l, p, 0);
        for (int t = 1; t <= 3; t++) {
            a.t = t;
            a.p = p->t, a.g = g->t, a.m = m->t, a.v = v->t;
            LAB_OK(l, l->fast->adamw(&l->c.stream, &a, &l->err));
            a.p = q->t, a.m = m2->t, a.v = v2->t;
            LAB_OK(l, l->ref->adamw(&l->c.stream, &a, &l->err));
        }
        thing_down(l, p), thing_down(l, q), thing_down(l, m), thing_down(l, m2), thing_down(l, v), thing_down(l, v2);
        lab_near(l, "m", m, m2, 12 * 0x1p-24, 1e-9);
        lab_near(l, "v", v, v2, 12 * 0x1p-24, 1e-12);
        lab_near(l, "p", p, q, 4 * 0x1p-24, 3 * 0.01 * 40 * 0x1p-24);
        /* by hand: constant gradient means m/(1-b1^t) = g, v/(1-b2^t) = g^2, steps of lr */
        if (n == 1) {
            struct cairn_adamw one = a;

            one.p = p->t, one.m = m->t, one.v = v->t, one.weight_decay = 0, one.t = 4;
            memcpy(q->h, p->h, 4);
            LAB_OK(l, l->fast->adamw(&l->c.stream, &one, &l->err));
            thing_down(l, p);
            assert_true(fabs(*thing_f(p, 0) - *thing_f(q, 0) + 0.01 * (*thing_f(g, 0) > 0 ? 1 : -1)) < 1e-6);
            one.t = 0;
            LAB_REFUSES(l, l->fast->adamw(&l->c.stream, &one, &l->err));
        }
        lab_clear(l);
    }
}

static void sumsq(struct lab *l)
{
    static const int sizes[] = {0, 1, 4096, 4097, 50001};

    for (int i = 0; i < 5; i++) {
        struct thing *x = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, sizes[i]), 1), *out = thing_new(l, CAIRN_F64, 0, 1, 1),
                     *ref = thing_like(l, out, 1);
        struct cairn_sumsq a = {.x = x->t, .out = out->t};

        LAB_OK(l, l->fast->sumsq(&l->c.stream, &a, &l->err));
        a.out = ref->t;
        LAB_OK(l, l->ref->sumsq(&l->c.stream, &a, &l->err));
        thing_down(l, out), thing_down(l, ref);
        lab_equal_bits(l, "blocks in order", out, ref);
        if (sizes[i]) {
            *thing_f(x, sizes[i] - 1) = INFINITY;
            thing_up(l, x);
            LAB_OK(l, l->fast->sumsq(&l->c.stream, &a, &l->err));
            thing_down(l, ref);
            assert_true(isinf(thing_value(ref, 0)));
            *thing_f(x, sizes[i] / 2) = NAN;
            thing_up(l, x);
            LAB_OK(l, l->fast->sumsq(&l->c.stream, &a, &l->err));
            thing_down(l, ref);
            assert_true(isnan(thing_value(ref, 0)));
        }
        lab_clear(l);
    }
}

/* Pieces of one run: with gaps, of no length, longer than a block takes at a time, at any alignment. */
static void sumsq_pieces(struct lab *l)
{
    static const int64_t piece[][2] = {{0, 5},        {7, 4096},  {4103, 0},       {4103, 4099},
                                       {8300, 12288}, {20589, 1}, {20592, 530000}, {550593, 7}},
                         wrong[][2][2] = {{{0, 9}, {8, 1}},  {{3, 1}, {2, 1}},      {{0, 1}, {550599, 2}},   {{0, 1}, {5, -1}},
                                          {{-1, 2}, {5, 1}}, {{0, 1}, {550601, 0}}, {{2, INT64_MAX}, {5, 1}}};
    const int P = (int)(sizeof piece / sizeof *piece);
    struct thing *x = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, 550600), 1), *at = thing_new(l, CAIRN_I64, 0, 2, P, 2),
                 *out = thing_new(l, CAIRN_F64, 0, 1, P), *ref = thing_like(l, out, 1), *two = thing_new(l, CAIRN_I64, 0, 2, 2, 2);
    struct cairn_sumsq a = {.x = x->t, .out = out->t, .pieces = at->t};

    memcpy(at->h, piece, sizeof piece);
    thing_up(l, at);
    LAB_OK(l, l->fast->sumsq(&l->c.stream, &a, &l->err));
    a.out = ref->t;
    LAB_OK(l, l->ref->sumsq(&l->c.stream, &a, &l->err));
    thing_down(l, out), thing_down(l, ref);
    lab_equal_bits(l, "pieces", out, ref);
    for (int i = 0; i < P; i++) { /* each as if it were alone */
        const struct cairn_sumsq one = {.x = cairn_tensor_slice(&x->t, 0, piece[i][0], piece[i][1]),
                                        .out = cairn_tensor_slice(&ref->t, 0, i, 1)};

        LAB_OK(l, l->fast->sumsq(&l->c.stream, &one, &l->err));
    }
    thing_down(l, ref);
    lab_equal_bits(l, "pieces alone", out, ref);
    a.out = cairn_tensor_slice(&out->t, 0, 0, 2);
    a.pieces = two->t;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memcpy(two->h, wrong[i], sizeof *wrong);
        thing_up(l, two);
        LAB_REFUSES(l, l->fast->sumsq(&l->c.stream, &a, &l->err));
    }
    a.pieces.dim[1] = 1;
    LAB_REFUSES(l, l->fast->sumsq(&l->c.stream, &a, &l->err));
    lab_clear(l);
}

ON_EACH_DEVICE(rows)
ON_EACH_DEVICE(embedding)
ON_EACH_DEVICE(axpby)
ON_EACH_DEVICE(casts)
ON_EACH_DEVICE(adamw)
ON_EACH_DEVICE(sumsq)
ON_EACH_DEVICE(sumsq_pieces)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_test),         cmocka_unit_test(embedding_test), cmocka_unit_test(axpby_test),
        cmocka_unit_test(casts_test),        cmocka_unit_test(adamw_test),     cmocka_unit_test(sumsq_test),
        cmocka_unit_test(sumsq_pieces_test),
    };

    return LAB_RUN(tests);
}

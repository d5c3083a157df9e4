/* matmul_test.c - matmul and matmul_grouped: fast against reference, row invariance, segments, threads, strides, guard.
 *
 * With bf16 activations operands are bf16 as well, so that the products run as the model's do; those with f32 operands run too.
 */
#include "lab.h"

/* On the emulated GPU, which is slow, cuts and sizes are fewer. */
static int emulated(void)
{
    return getenv("CAIRN_CUDA_OBJECT") != NULL;
}

/* One rounding per fma and none bigger than the sum of the absolute products: |error| <= K * 2^-24 * sum |x||w|, and for normal
 * numbers sum |x||w| is about 0.64 K, its largest of a few thousand below 1.5 K + 10. */
static double bound(int K)
{
    return (K + 2) * 0x1p-24 * (1.5 * K + 10);
}

static const struct {
    int heads, n, k, o, pad;
    const char *why;
} shapes[] = {
    {0, 1, 1, 1, 0, "smallest"},
    {0, 0, 5, 7, 0, "no rows"},
    {0, 1, 64, 48, 0, "one row"},
    {0, 3, 17, 5, 3, "odd, padded"},
    {0, 7, 33, 31, 1, "odd"},
    {0, 33, 16, 65, 0, "just above a panel"},
    {0, 130, 48, 33, 2, "rows beyond blocks"},
    {0, 65, 700, 40, 0, "sum longer than a block"},
    {0, 200, 1030, 70, 5, "several blocks each way"},
    {0, 300, 8, 300, 0, "short sums"},
    {3, 9, 12, 20, 0, "heads"},
    {2, 100, 40, 36, 4, "heads, padded"},
    {0, 300, 200, 264, 0, "multiples of eight"},
    {3, 130, 72, 80, 8, "heads, multiples of eight"},
    {0, 2100, 24, 40, 0, "a sum over many rows, for TN"},
    {0, 21, 13, 29, 3, "aligned rows that end inside of 16 bytes"},
    {0, 1, 130, 72, 0, "one line whose length is no pitch of 16 bytes, for TN"},
    {2, 1, 140, 72, 4, "the same, heads"},
};

/* xt, wt, yt: types of x, w and y; y of a TN is f32. */
static struct cairn_matmul make_of(struct lab *l, enum cairn_form form, int heads, int n, int k, int o, int pad,
                                   enum cairn_dtype xt, enum cairn_dtype wt, enum cairn_dtype yt, struct thing **y)
{
    struct cairn_matmul a = {.form = form, .alpha = 1, .segments = 1};
    int r[2] = {n, k}, w[2] = {o, k}, c[2] = {n, o};

    if (form == CAIRN_NN)
        w[0] = k, w[1] = o;
    if (form == CAIRN_TN)
        w[0] = n, w[1] = o, c[0] = k, yt = CAIRN_F32;
    if (heads) {
        a.x = thing_normal(l, thing_new(l, xt, pad, 3, heads, r[0], r[1]), 1)->t;
        a.w = thing_normal(l, thing_new(l, wt, pad, 3, heads, w[0], w[1]), 1)->t;
        *y = thing_normal(l, thing_new(l, yt, pad, 3, heads, c[0], c[1]), 1);
    } else {
        a.x = thing_normal(l, thing_new(l, xt, pad, 2, r[0], r[1]), 1)->t;
        a.w = thing_normal(l, thing_new(l, wt, pad, 2, w[0], w[1]), 1)->t;
        *y = thing_normal(l, thing_new(l, yt, pad, 2, c[0], c[1]), 1);
    }
    a.y = (*y)->t;
    return a;
}

static struct cairn_matmul make(struct lab *l, enum cairn_form form, int heads, int n, int k, int o, int pad, enum cairn_dtype wt,
                                struct thing **y)
{
    return make_of(l, form, heads, n, k, o, pad, CAIRN_F32, wt, CAIRN_F32, y);
}

static const struct {
    enum cairn_dtype x, w, y;
    int accumulate;
    float alpha;
} variants[] = {
    {CAIRN_F32, CAIRN_F32, CAIRN_F32, 0, 1},
    {CAIRN_F32, CAIRN_F32, CAIRN_F32, 1, 1},
    {CAIRN_F32, CAIRN_F32, CAIRN_F32, 1, -0.375f},
    {CAIRN_F32, CAIRN_BF16, CAIRN_F32, 0, 1},
    {LAB_ACT, LAB_ACT, LAB_ACT, 0, 1},
    {LAB_ACT, LAB_ACT, LAB_ACT, 1, 1.5f},
    {LAB_ACT, LAB_ACT, CAIRN_F32, 1, -0.375f},
};

static void against_reference(struct lab *l)
{
    for (int f = CAIRN_NT; f <= CAIRN_TN; f++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
                if ((emulated() || lab_least()) && v != 6 && shapes[i].n * shapes[i].k * shapes[i].o > 1 << 22)
                    continue;
                if (lab_least() && (v == 1 || v == 2 || v == 4))
                    continue;
                enum cairn_dtype wt = variants[v].w == CAIRN_BF16 && f == CAIRN_TN ? CAIRN_F32 : variants[v].w;
                struct thing *y, *z;
                struct cairn_matmul a = make_of(l, f, shapes[i].heads, shapes[i].n, shapes[i].k, shapes[i].o, shapes[i].pad,
                                                variants[v].x, wt, variants[v].y, &y);
                int sum = f == CAIRN_TN ? shapes[i].n : shapes[i].k;

                a.accumulate = variants[v].accumulate;
                a.alpha = variants[v].alpha;
                z = thing_like(l, y, !a.accumulate);
                if (!a.accumulate) {
                    memset(y->h, 0xff, y->bytes);
                    thing_up(l, y);
                }
                LAB_OK(l, l->fast->matmul(&l->c.stream, &a, &l->err));
                a.y = z->t;
                LAB_OK(l, l->ref->matmul(&l->c.stream, &a, &l->err));
                thing_down(l, y);
                thing_down(l, z);
                lab_near(l, shapes[i].why, y, z, 0x1p-22, bound(sum));
                lab_clear(l);
            }
}

/* Row m of a product of M rows has the bits that it has alone, for every form whose rows are independent, and every cut. */
static void rows_do_not_matter(struct lab *l)
{
    static const int ks[] = {16, 96, 600};

    for (int f = CAIRN_NT; f <= CAIRN_NN; f++)
        for (int i = 0; i < 3; i++)
            for (int segments = 1; segments <= 4; segments *= 4) {
                int M = emulated() ? 70 : 270, O = 45;
                struct thing *all, *some;
                struct cairn_matmul a = make_of(l, f, 0, M, ks[i], O, 1, LAB_ACT, LAB_ACT, LAB_ACT, &all), b;

                a.segments = segments;
                LAB_OK(l, l->fast->matmul(&l->c.stream, &a, &l->err));
                thing_down(l, all);
                some = thing_like(l, all, 1);
                for (int cut = 1; cut <= 130; cut += cut < 34 ? 1 : 31) {
                    memset(some->h, 0xff, some->bytes);
                    thing_up(l, some);
                    for (int m = 0; m < M; m += cut) {
                        b = a;
                        b.x = cairn_tensor_slice(&a.x, 0, m, M - m < cut ? M - m : cut);
                        b.y = cairn_tensor_slice(&some->t, 0, m, M - m < cut ? M - m : cut);
                        LAB_OK(l, l->fast->matmul(&l->c.stream, &b, &l->err));
                    }
                    thing_down(l, some);
                    lab_equal_bits(l, "cut into calls", some, all);
                    if (!strcmp(l->device, "guard") || emulated())
                        cut += emulated() ? 15 : 40;
                }
                lab_clear(l);
            }
}

/* The same for operands that wide loads, tensor cores and libraries like, large enough for each kind of kernel. */
static void rows_do_not_matter_either(struct lab *l)
{
    static const struct {
        int heads, m, k, o;
        enum cairn_dtype y;
    } cases[] = {{0, 333, 1024, 520, LAB_ACT}, {0, 333, 96, 2048, CAIRN_F32}, {2, 333, 192, 128, LAB_ACT}};
    static const int cuts[] = {1, 3, 16, 17, 40, 64, 100, 128, 200, 256, 300};

    for (int f = CAIRN_NT; f <= CAIRN_NN; f++)
        for (size_t i = emulated() ? 1 : 0; i < sizeof cases / sizeof *cases; i++) {
            int M = emulated() ? 233 : cases[i].m, axis = cases[i].heads ? 1 : 0;
            struct thing *all, *some;
            struct cairn_matmul a = make_of(l, f, cases[i].heads, M, cases[i].k, cases[i].o, 0, LAB_ACT, LAB_ACT, cases[i].y, &all),
                                b;

            LAB_OK(l, l->fast->matmul(&l->c.stream, &a, &l->err));
            thing_down(l, all);
            some = thing_like(l, all, 1);
            for (size_t j = 0; j < sizeof cuts / sizeof *cuts; j++) {
                if ((strcmp(l->device, "cuda bf16") && cuts[j] < 40) || (emulated() && cuts[j] != 40 && cuts[j] != 200))
                    continue;
                memset(some->h, 0xff, some->bytes);
                thing_up(l, some);
                for (int m = 0; m < M; m += cuts[j]) {
                    b = a;
                    b.x = cairn_tensor_slice(&a.x, axis, m, M - m < cuts[j] ? M - m : cuts[j]);
                    b.y = cairn_tensor_slice(&some->t, axis, m, M - m < cuts[j] ? M - m : cuts[j]);
                    LAB_OK(l, l->fast->matmul(&l->c.stream, &b, &l->err));
                }
                thing_down(l, some);
                lab_equal_bits(l, "cut into calls", some, all);
            }
            lab_clear(l);
        }
}

/* The definition, element by element: one fma chain in each segment, segments added by the tree, alpha, then y. */
static float chain(const float *x, int64_t xk, const float *w, int64_t wk, int k, int segments)
{
    float s[16];
    int len = k / segments;

    for (int v = 0; v < segments; v++) {
        s[v] = 0;
        for (int i = v * len; i < (v + 1) * len; i++)
            s[v] = fmaf(x[i * xk], w[i * wk], s[v]);
    }
    for (int n = segments; n > 1; n /= 2)
        for (int v = 0; v < n / 2; v++)
            s[v] = s[2 * v] + s[2 * v + 1];
    return s[0];
}

static void bits_as_defined(struct lab *l)
{
    for (int f = CAIRN_NT; f <= CAIRN_TN; f++)
        for (int segments = 1; segments <= 8; segments *= 2)
            for (int n = 40; n <= (emulated() ? 40 : 1048); n += 1008) {
                int k = 1200, o = 37;
                struct thing *y;
                struct cairn_matmul a = make(l, f, 0, n, f == CAIRN_TN ? 29 : k, o, 0, CAIRN_F32, &y);
                const float *x = (const float *)l->things[0]->h, *w = (const float *)l->things[1]->h;
                struct thing *before = thing_like(l, y, 0);

                if (f == CAIRN_TN)
                    k = 29;
                a.segments = segments;
                a.alpha = segments == 2 ? 0.3f : 1;
                a.accumulate = segments == 4;
                LAB_OK(l, l->fast->matmul(&l->c.stream, &a, &l->err));
                thing_down(l, y);
                for (int i = 0; i < (f == CAIRN_TN ? k : n); i += 7)
                    for (int j = 0; j < o; j++) {
                        float want = f == CAIRN_NT   ? chain(x + i * k, 1, w + j * k, 1, k, segments)
                                     : f == CAIRN_NN ? chain(x + i * k, 1, w + j, o, k, segments)
                                                     : chain(x + i, k, w + j, o, n, segments);

                        if (a.alpha != 1)
                            want = want * a.alpha;
                        if (a.accumulate)
                            want = *thing_f(before, i * o + j) + want;
                        if (memcmp(&want, thing_f(y, i * o + j), sizeof want))
                            fail_msg("%s: form %d, %d segments, (%d,%d): %.9g, defined as %.9g", l->device, f, segments, i, j,
                                     *thing_f(y, i * o + j), want);
                    }
                lab_clear(l);
            }
}

static void threads_do_not_matter(struct lab *l)
{
    for (int f = CAIRN_NT; f <= CAIRN_TN; f++) {
        struct thing *y, *z;
        struct cairn_matmul a = make(l, f, 0, 257, 129, 130, 0, CAIRN_F32, &y);

        a.segments = 1;
        z = thing_like(l, y, 0);
        l->c.backend->set_threads(l->c.dev, 1);
        LAB_OK(l, l->fast->matmul(&l->c.stream, &a, &l->err));
        for (int threads = 2; threads <= (emulated() ? 2 : 7); threads++) {
            l->c.backend->set_threads(l->c.dev, threads);
            a.y = z->t;
            LAB_OK(l, l->fast->matmul(&l->c.stream, &a, &l->err));
            thing_down(l, y);
            thing_down(l, z);
            lab_equal_bits(l, "threads", z, y);
        }
        l->c.backend->set_threads(l->c.dev, 0);
        lab_clear(l);
    }
}

static void grouped_of(struct lab *l, const int *offsets, int E, int K, int O, int pad, enum cairn_dtype type, enum cairn_dtype yt,
                       const char *why)
{
    for (int f = CAIRN_NT; f <= CAIRN_TN; f++)
        for (int accumulate = 0; accumulate <= 1; accumulate++) {
            int n = offsets[E];
            enum cairn_dtype wt = type == CAIRN_F32 && f == CAIRN_NN ? CAIRN_BF16 : type;
            struct thing *off = thing_new(l, CAIRN_I32, 0, 1, E + 1), *x = thing_normal(l, thing_new(l, type, 2 * pad, 2, n, K), 1);
            struct thing *w = f == CAIRN_NT   ? thing_new(l, wt, 0, 3, E, O, K)
                              : f == CAIRN_NN ? thing_new(l, wt, pad, 3, E, K, O)
                                              : thing_new(l, wt, pad, 2, n, O);
            struct thing *y =
                thing_normal(l, f == CAIRN_TN ? thing_new(l, CAIRN_F32, 0, 3, E, K, O) : thing_new(l, yt, 3 * pad, 2, n, O), 1);
            struct thing *z = thing_like(l, y, 0);
            struct cairn_matmul_grouped a = {
                f, x->t, thing_normal(l, w, 1)->t, y->t, thing_ints(l, off, offsets)->t, accumulate ? 0.75f : 1, accumulate, 1};

            LAB_OK(l, l->fast->matmul_grouped(&l->c.stream, &a, &l->err));
            a.y = z->t;
            LAB_OK(l, l->ref->matmul_grouped(&l->c.stream, &a, &l->err));
            thing_down(l, y);
            thing_down(l, z);
            lab_near(l, why, y, z, 0x1p-22, bound(K > n ? K : n));
            /* each group's rows have the bits of a plain product */
            for (int e = 0; e < E && f != CAIRN_TN && !accumulate; e++) {
                int64_t m = offsets[e + 1] - offsets[e];
                struct thing *alone = thing_like(l, y, 1);
                struct cairn_matmul b = {f,
                                         cairn_tensor_slice(&a.x, 0, offsets[e], m),
                                         cairn_tensor_at(&a.w, e),
                                         cairn_tensor_slice(&alone->t, 0, offsets[e], m),
                                         1,
                                         0,
                                         1};

                LAB_OK(l, l->fast->matmul(&l->c.stream, &b, &l->err));
                thing_down(l, alone);
                for (int64_t r = (int64_t)offsets[e] * O; r < (int64_t)offsets[e + 1] * O; r++)
                    if (memcmp(thing_f(alone, r), thing_f(y, r), sizeof(float)))
                        fail_msg("%s: %s: form %d, group %d: element %lld is %.9g, by itself %.9g", l->device, why, f, e,
                                 (long long)r, *thing_f(y, r), *thing_f(alone, r));
            }
            lab_clear(l);
        }
}

static void grouped(struct lab *l)
{
    static const struct {
        int offsets[6];
        const char *why;
    } cases[] = {
        {{0, 3, 40, 41, 60, 90}, "uneven"},        {{0, 0, 0, 90, 90, 90}, "all to one, others empty"},
        {{0, 1, 2, 3, 4, 90}, "single rows"},      {{0, 0, 0, 0, 0, 0}, "no rows at all"},
        {{0, 0, 300, 429, 450, 450}, "many rows"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        grouped_of(l, cases[i].offsets, 5, 36, 50, 1, CAIRN_F32, CAIRN_F32, cases[i].why);
        grouped_of(l, cases[i].offsets, 5, 36, 50, 1, LAB_ACT, LAB_ACT, cases[i].why);
        if ((!emulated() && !lab_least()) || i == 0)
            grouped_of(l, cases[i].offsets, 5, 200, 328, 0, LAB_ACT, LAB_ACT, cases[i].why);
        grouped_of(l, cases[i].offsets, 5, 72, 80, 8, LAB_ACT, CAIRN_F32, cases[i].why);
    }
}

/* Forty groups of any length: more than a warp looks at once. */
static void many_groups(struct lab *l)
{
    enum { E = 40 };
    int offsets[E + 1] = {0};

    for (int e = 0; e < E; e++)
        offsets[e + 1] = offsets[e] + (lab_int(l, 0, 2) ? lab_int(l, 0, 30) : 0);
    grouped_of(l, offsets, E, 64, 96, 0, LAB_ACT, LAB_ACT, "forty groups");
}

/* TN sums parts of the rows where y is small: the same bits again, and again in another place of memory. */
static void sums_over_rows_repeat(struct lab *l)
{
    struct thing *y, *z;
    struct cairn_matmul a = make_of(l, CAIRN_TN, 0, 5000, 32, 64, 0, LAB_ACT, LAB_ACT, CAIRN_F32, &y);

    z = thing_like(l, y, 1);
    LAB_OK(l, l->fast->matmul(&l->c.stream, &a, &l->err));
    a.y = z->t;
    for (int i = 0; i < 3; i++) {
        LAB_OK(l, l->fast->matmul(&l->c.stream, &a, &l->err));
        thing_down(l, y);
        thing_down(l, z);
        lab_equal_bits(l, "once more", z, y);
    }
    lab_clear(l);
}

static void refusals(struct lab *l)
{
    struct thing *y;
    struct cairn_matmul a = make(l, CAIRN_NT, 0, 4, 12, 5, 0, CAIRN_F32, &y), b;
    struct cairn_tensor short_buffer = a.x;

    b = a, b.segments = 8;
    LAB_REFUSES(l, l->fast->matmul(&l->c.stream, &b, &l->err));
    b = a, b.segments = 3;
    LAB_REFUSES(l, l->fast->matmul(&l->c.stream, &b, &l->err));
    b = a, b.y.dim[1] = 4;
    LAB_REFUSES(l, l->fast->matmul(&l->c.stream, &b, &l->err));
    assert_non_null(strstr(l->err.text, "matmul: y has dimension 1 = 4, expected 5"));
    b = a, b.x.dtype = CAIRN_I32;
    LAB_REFUSES(l, l->fast->matmul(&l->c.stream, &b, &l->err));
    b = a, b.w.buf = NULL;
    LAB_REFUSES(l, l->fast->matmul(&l->c.stream, &b, &l->err));
    short_buffer.offset += 4;
    b = a, b.x = short_buffer;
    LAB_REFUSES(l, l->fast->matmul(&l->c.stream, &b, &l->err));
    assert_non_null(strstr(l->err.text, "beyond the end"));
}

ON_EACH_DEVICE(against_reference)
ON_EACH_DEVICE(rows_do_not_matter)
ON_EACH_DEVICE(rows_do_not_matter_either)
ON_EACH_DEVICE(bits_as_defined)
ON_EACH_DEVICE(threads_do_not_matter)
ON_EACH_DEVICE(grouped)
ON_EACH_DEVICE(many_groups)
ON_EACH_DEVICE(sums_over_rows_repeat)
ON_EACH_DEVICE(refusals)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_reference_test),
        cmocka_unit_test(rows_do_not_matter_test),
        cmocka_unit_test(rows_do_not_matter_either_test),
        cmocka_unit_test(bits_as_defined_test),
        cmocka_unit_test(threads_do_not_matter_test),
        cmocka_unit_test(grouped_test),
        cmocka_unit_test(many_groups_test),
        cmocka_unit_test(sums_over_rows_repeat_test),
        cmocka_unit_test(refusals_test),
    };

    return LAB_RUN(tests);
}

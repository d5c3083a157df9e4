/* right_test.c - what leg 0 of the gate makes of a sum that cancels: Kimi delta attention whose queries all stand upright on the keys, and the
 * gradient of an adapter of rank 1, whose lines have one value. What comes out is rounding alone, another one in each implementation; a mistake as
 * large as a thousandth of the terms is none the less seen.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "tools/check/right_impl.h"

enum { N = 40, D = 8 };

struct bench {
    struct cairn_sides x;
    struct right r;
    struct cairn_kda a;
    struct cairn_trace_call call;
    struct cairn_buffer *buf[8];
    float q[N * D], k[N * D], v[N * D], g[N * D], beta[N], o[N * D];
    int32_t pos[N], seq[N];
};

static struct cairn_error err;

static void must(enum cairn_status st)
{
    if (st != CAIRN_OK)
        fail_msg("%s", err.text);
}

static double drawn(uint32_t *at)
{
    const struct cairn_philox_key key = {11, CAIRN_PURPOSE_DATA, 1};
    uint32_t w[4];
    double z[2];

    cairn_philox(&key, (*at)++, 1, 2, w);
    cairn_normal2(w[0], w[1], z);
    return z[0];
}

/* Keys of four directions, queries of the other four: rows of a Hadamard matrix, so that every channel has a share in each. The decay of a row is the
 * same for all channels, which keeps the two apart. */
static void values_make(struct bench *b, const int starts[], int sequences)
{
    uint32_t at = 0;

    memset(b->q, 0, sizeof b->q);
    memset(b->k, 0, sizeof b->k);
    for (int n = 0; n < N; n++) {
        double decay = -0.2 * fabs(drawn(&at));

        for (int f = 0; f < D; f++) {
            double share = drawn(&at);

            for (int i = 0; i < D; i++)
                *(f < D / 2 ? &b->k[n * D + i] : &b->q[n * D + i]) += (float)(share * (__builtin_parity((unsigned)(f & i)) ? -1 : 1));
        }
        for (int i = 0; i < D; i++) {
            b->v[n * D + i] = (float)drawn(&at);
            b->g[n * D + i] = (float)decay;
        }
        b->beta[n] = (float)(1 / (1 + exp(drawn(&at))));
        for (int s = 0; s < sequences; s++)
            if (n >= starts[s]) {
                b->seq[n] = s;
                b->pos[n] = n - starts[s];
            }
    }
}

static struct cairn_tensor tensor(struct bench *b, int i, enum cairn_dtype type, const void *h, int ndim, int64_t n, int64_t m, int64_t d)
{
    const int64_t dim[3] = {n, m, d};
    struct cairn_tensor t;

    must(cairn_buffer_create(b->x.k.dev, (size_t)(n * m * d) * 4, &b->buf[i], &err));
    must(cairn_tensor_view(&t, b->buf[i], 0, type, ndim, dim, &err));
    must(cairn_tensor_set(&b->x.k.stream, &t, h, (size_t)(n * m * d) * 4, &err));
    return t;
}

/* The op of both sides has run, over sequences that begin with these rows. */
static struct bench *bench_open(const int starts[], int sequences)
{
    struct bench *b = calloc(1, sizeof *b);

    assert_non_null(b);
    must(cairn_compute_open(&b->x.k, &(struct cairn_compute_opts){.backend = "cpu", .act = "f32"}, &err));
    must(cairn_compute_open(&b->r.ref, &(struct cairn_compute_opts){.backend = "cpu", .act = "f32", .reference = 1}, &err));
    values_make(b, starts, sequences);
    b->r.x = &b->x;
    b->r.tolerance = b->r.tolerance_wide = 2e-5;
    b->r.tolerance_sums = 1e-4;
    b->a = (struct cairn_kda){.q = tensor(b, 0, CAIRN_F32, b->q, 3, N, 1, D),
                              .k = tensor(b, 1, CAIRN_F32, b->k, 3, N, 1, D),
                              .v = tensor(b, 2, CAIRN_F32, b->v, 3, N, 1, D),
                              .g = tensor(b, 3, CAIRN_F32, b->g, 3, N, 1, D),
                              .beta = tensor(b, 4, CAIRN_F32, b->beta, 2, N, 1, 1),
                              .o = tensor(b, 5, CAIRN_F32, b->o, 3, N, 1, D),
                              .pos = tensor(b, 6, CAIRN_I32, b->pos, 1, N, 1, 1),
                              .seq = tensor(b, 7, CAIRN_I32, b->seq, 1, N, 1, 1),
                              .scale = (float)(1 / sqrt(D)),
                              .eps = 1e-6f};
    b->call = (struct cairn_trace_call){CAIRN_OP_kda, cairn_op_info(CAIRN_OP_kda), &b->a, "model.layers.0.self_attn.dt_bias", 1, 0};
    must(cairn_right_copy(&b->r, &b->call, &err));
    must(b->x.k.ops.kda(&b->x.k.stream, &b->a, &err));
    must(b->r.ref.ops.kda(&b->r.ref.stream, (const struct cairn_kda *)(const void *)b->r.args.bytes, &err));
    must(cairn_tensor_get(&b->x.k.stream, &b->a.o, b->o, sizeof b->o, &err));
    return b;
}

static void bench_close(struct bench *b)
{
    cairn_right_copies_free(&b->r);
    for (int i = 0; i < 8; i++)
        cairn_buffer_destroy(b->buf[i]);
    cairn_compute_close(&b->r.ref);
    cairn_compute_close(&b->x.k);
    free(b);
}

static const struct cairn_op_member *member(const char *name)
{
    const struct cairn_op_member *m = cairn_op_info(CAIRN_OP_kda)->member;

    while (strcmp(m->name, name) != 0)
        m++;
    return m;
}

static enum cairn_status held(struct bench *b)
{
    int choices_differ = 0;

    return cairn_right_hold(&b->r, &b->call, member("o"), 1, &choices_differ, &err);
}

static const int one[] = {0}, three[] = {0, 7, 21};

static void test_cancelled(void **state)
{
    struct bench *b = bench_open(one, 1);
    double largest = 0, *size;

    (void)state;
    for (int i = 0; i < N * D; i++)
        largest = fmax(largest, fabs((double)b->o[i]));
    must(cairn_right_terms(&b->r, &b->call, member("o"), &size, &err));
    assert_true(size[N - 1] > 1e-2 && largest < 1e-5 * size[N - 1]); /* it is what it says it is */
    must(held(b));
    b->o[(N - 1) * D + 3] += (float)(1e-3 * size[N - 1]);
    must(cairn_tensor_set(&b->x.k.stream, &b->a.o, b->o, sizeof b->o, &err));
    assert_int_equal(held(b), CAIRN_ENUMERIC);
    assert_non_null(strstr(err.text, "its o is off by"));
    free(size);
    bench_close(b);
}

/* The recurrence against its terms one by one: in each sequence root of sum over s and channels of (q_i kh_si decay d_sj)^2, the largest over j. */
static void test_terms(void **state)
{
    struct bench *b = bench_open(three, 3);
    double *size, kh[N][D], d[N][D];

    (void)state;
    must(cairn_right_terms(&b->r, &b->call, member("o"), &size, &err));
    for (int n = 0; n < N; n++) {
        double most = 0, norm[2] = {1e-6, 1e-6};

        for (int i = 0; i < D; i++) {
            norm[0] += (double)b->q[n * D + i] * b->q[n * D + i];
            norm[1] += (double)b->k[n * D + i] * b->k[n * D + i];
        }
        for (int i = 0; i < D; i++)
            kh[n][i] = b->k[n * D + i] / sqrt(norm[1]);
        for (int j = 0; j < D; j++) {
            double read = 0, sum = 0;

            for (int s = n - b->pos[n]; s <= n; s++) {
                double decay = 0, dot = 0, terms = 0;

                for (int t = s + 1; t <= n; t++)
                    decay += b->g[t * D];
                for (int i = 0; i < D; i++) {
                    dot += kh[n][i] * kh[s][i];
                    terms += pow(b->q[n * D + i] / sqrt(norm[0] * D) * kh[s][i] * exp(decay), 2);
                }
                if (s < n)
                    read += dot * exp(decay) * d[s][j];
                else
                    d[n][j] = b->beta[n] * (b->v[n * D + j] - read);
                sum += terms * d[s][j] * d[s][j];
            }
            most = fmax(most, sqrt(sum));
        }
        assert_true(fabs(size[n] - most) <= 1e-6 * most); /* scale is fp32's */
    }
    free(size);
    bench_close(b);
}

/* What has no such lines says so. */
static void test_others(void **state)
{
    struct bench *b = bench_open(one, 1);
    double *size;

    (void)state;
    must(cairn_right_terms(&b->r, &b->call, member("q"), &size, &err));
    assert_null(size);
    b->call.op = CAIRN_OP_kda_bwd;
    must(cairn_right_terms(&b->r, &b->call, member("o"), &size, &err));
    assert_null(size);
    bench_close(b);
}

/* ---- products --------------------------------------------------------------------------------------------------------------- */

/* A product of both sides: x and w as they are given, y as each has made it. */
struct product {
    struct cairn_sides x;
    struct right r;
    struct cairn_trace_call call;
    struct cairn_buffer *buf[4];
    struct cairn_matmul a;
    struct cairn_matmul_grouped g;
};

static struct cairn_tensor filled(struct product *p, int i, int ndim, const int64_t dim[], const float *h)
{
    int64_t n = 1;
    struct cairn_tensor t;

    for (int d = 0; d < ndim; d++)
        n *= dim[d];
    must(cairn_buffer_create(p->x.k.dev, (size_t)n * 4, &p->buf[i], &err));
    must(cairn_tensor_view(&t, p->buf[i], 0, CAIRN_F32, ndim, dim, &err));
    must(cairn_tensor_set(&p->x.k.stream, &t, h, (size_t)n * 4, &err));
    return t;
}

static struct product *product_open(void)
{
    struct product *p = calloc(1, sizeof *p);

    assert_non_null(p);
    must(cairn_compute_open(&p->x.k, &(struct cairn_compute_opts){.backend = "cpu", .act = "f32"}, &err));
    must(cairn_compute_open(&p->r.ref, &(struct cairn_compute_opts){.backend = "cpu", .act = "f32", .reference = 1}, &err));
    p->r.x = &p->x;
    p->r.tolerance = p->r.tolerance_wide = 2e-5;
    p->r.tolerance_sums = 1e-4;
    return p;
}

static void product_close(struct product *p)
{
    cairn_right_copies_free(&p->r);
    for (int i = 0; i < 4; i++)
        cairn_buffer_destroy(p->buf[i]);
    cairn_compute_close(&p->r.ref);
    cairn_compute_close(&p->x.k);
    free(p);
}

static const struct cairn_op_member *product_y(const struct product *p)
{
    const struct cairn_op_member *m = p->call.info->member;

    while (strcmp(m->name, "y") != 0)
        m++;
    return m;
}

/* Columns of x that stand upright on w: y (4, 1) = x^T w is what rounding leaves. */
static void test_rank_one(void **state)
{
    enum { ROWS = 161, OUT = 4 };
    struct product *p = product_open();
    float x[ROWS * OUT], w[ROWS], y[OUT] = {0}, largest = 0;
    double size, along, square = 0;
    int choices_differ = 0;
    uint32_t at = 0;

    (void)state;
    for (int n = 0; n < ROWS; n++) {
        w[n] = (float)drawn(&at);
        square += (double)w[n] * w[n];
    }
    for (int o = 0; o < OUT; o++) {
        double column[ROWS];

        along = 0;
        for (int n = 0; n < ROWS; n++) {
            column[n] = drawn(&at);
            along += column[n] * w[n];
        }
        for (int n = 0; n < ROWS; n++)
            x[n * OUT + o] = (float)(column[n] - along / square * w[n]);
    }
    p->a = (struct cairn_matmul){.form = CAIRN_TN,
                                 .x = filled(p, 0, 2, (int64_t[]){ROWS, OUT}, x),
                                 .w = filled(p, 1, 2, (int64_t[]){ROWS, 1}, w),
                                 .y = filled(p, 2, 2, (int64_t[]){OUT, 1}, y),
                                 .alpha = 1,
                                 .accumulate = 1,
                                 .segments = 1};
    p->call = (struct cairn_trace_call){CAIRN_OP_matmul, cairn_op_info(CAIRN_OP_matmul), &p->a, "model.layers.1.mlp.gate_proj.lora_B.weight", 1, 0};
    must(cairn_right_copy(&p->r, &p->call, &err));
    must(p->r.ref.ops.matmul(&p->r.ref.stream, (const struct cairn_matmul *)(const void *)p->r.args.bytes, &err));
    must(p->x.k.ops.matmul(&p->x.k.stream, &p->a, &err));
    must(cairn_tensor_get(&p->x.k.stream, &p->a.y, y, sizeof y, &err));
    for (int o = 0; o < OUT; o++)
        largest = fmaxf(largest, fabsf(y[o]));
    must(cairn_right_line_terms(&p->r, &p->call, 2, &size, &err));
    assert_true(size > 5 && size < 30 && largest < 1e-5 * size); /* it is what it says it is */
    for (int k = 0; k < 2; k++) {                                /* roundings of another order, then a mistake */
        y[2] += (float)(k ? 1e-3 : 1e-6) * (float)size;
        must(cairn_tensor_set(&p->x.k.stream, &p->a.y, y, sizeof y, &err));
        if (!k)
            must(cairn_right_hold(&p->r, &p->call, product_y(p), 0, &choices_differ, &err));
    }
    assert_int_equal(cairn_right_hold(&p->r, &p->call, product_y(p), 0, &choices_differ, &err), CAIRN_ENUMERIC);
    assert_non_null(strstr(err.text, "its y is off by"));
    product_close(p);
}

/* Terms of every line of a product, by kernels.h: of x (N, K or O) and w, of a batch of two, of groups of 3, 0 and 4 rows. */
static void test_product_terms(void **state)
{
    enum { B = 2, ROWS = 7, K = 5, O = 3, E = 3 };
    static const int32_t offsets[E + 1] = {0, 3, 3, 7};
    float x[B * ROWS * K], w[E * 7 * 7];
    uint32_t at = 0;

    (void)state;
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = (float)drawn(&at);
    for (size_t i = 0; i < sizeof w / sizeof *w; i++)
        w[i] = (float)drawn(&at);
    for (int form = CAIRN_NT; form <= CAIRN_TN; form++)
        for (int kind = 0; kind < 3; kind++) { /* plain, a batch, groups */
            struct product *p = product_open();
            int tn = form == CAIRN_TN, wide = tn ? ROWS : form == CAIRN_NT ? O : K, tall = form == CAIRN_NT || tn ? tn ? O : K : O;
            int lines = tn ? K : ROWS, sets = kind == 1 ? B : kind == 2 && tn ? E : 1;
            struct cairn_tensor tx, tw, ty;

            memset(p->r.args.bytes, 0, sizeof p->r.args.bytes);
            tx = filled(p, 0, kind == 1 ? 3 : 2, kind == 1 ? (int64_t[]){B, ROWS, K} : (int64_t[]){ROWS, K}, x);
            tw = filled(p, 1, kind == 1 || (kind == 2 && !tn) ? 3 : 2,
                        kind == 1          ? (int64_t[]){B, wide, tall}
                        : kind == 2 && !tn ? (int64_t[]){E, wide, tall}
                                           : (int64_t[]){wide, tall},
                        w);
            ty = filled(p, 2, sets > 1 || kind == 1 ? 3 : 2, sets > 1 || kind == 1 ? (int64_t[]){sets, lines, O} : (int64_t[]){lines, O}, w);
            p->a = (struct cairn_matmul){.form = (enum cairn_form)form, .x = tx, .w = tw, .y = ty, .alpha = -2};
            p->g = (struct cairn_matmul_grouped){.form = (enum cairn_form)form, .x = tx, .w = tw, .y = ty, .alpha = -2};
            if (kind == 2) {
                p->g.offsets = filled(p, 3, 1, (int64_t[]){E + 1}, (const float *)(const void *)offsets);
                p->g.offsets.dtype = CAIRN_I32;
                p->call.op = CAIRN_OP_matmul_grouped;
                memcpy(p->r.args.bytes, &p->g, sizeof p->g);
            } else {
                p->call.op = CAIRN_OP_matmul;
                memcpy(p->r.args.bytes, &p->a, sizeof p->a);
            }
            for (int set = 0; set < sets; set++)
                for (int row = 0; row < lines; row++) {
                    const float *xs = kind == 1 ? x + set * ROWS * K : x, *ws = kind == 1 ? w + set * wide * tall : w;
                    double most = 0, size;

                    for (int e = 0; kind == 2 && !tn && e < E; e++)
                        if (row >= offsets[e] && row < offsets[e + 1])
                            ws = w + e * wide * tall;
                    for (int o = 0; o < O; o++) {
                        double sum = 0;

                        for (int t = 0; t < (tn ? ROWS : K); t++) {
                            double f =
                                tn ? (double)xs[t * K + row] * ws[t * O + o] : (double)xs[row * K + t] * ws[form == CAIRN_NT ? o * K + t : t * O + o];

                            if (kind != 2 || !tn || (t >= offsets[set] && t < offsets[set + 1]))
                                sum += 4 * f * f;
                        }
                        most = fmax(most, sqrt(sum));
                    }
                    must(cairn_right_line_terms(&p->r, &p->call, set * lines + row, &size, &err));
                    assert_true(fabs(size - most) <= 1e-12 * most);
                }
            product_close(p);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cancelled), cmocka_unit_test(test_terms), cmocka_unit_test(test_others),
                                       cmocka_unit_test(test_rank_one), cmocka_unit_test(test_product_terms)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

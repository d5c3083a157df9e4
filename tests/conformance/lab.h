/* lab.h - what the conformance tests share: the ways to compute, tensors with host copies, random and poisoned contents,
 * comparison.
 *
 * Every test runs as a list of cases over every device: lab_each_device(case): cpu and guard, or what CAIRN_TEST_BACKEND names
 * (cuda: with f32 and with bf16 activations; without a GPU the program says so and skips). l->fast is the device's ops, l->ref the
 * reference ops of the cpu; for another device the reference runs on copies in host memory (lab_mirror).
 *
 * A `thing` is a tensor with a host image; things_up sends images, things_down fetches them. A thing of type LAB_ACT is an
 * activation: it has the device's type there and is f32 in the image, rounded when sent, so that a test reads and writes floats
 * (thing_f) whatever the device computes with. Padded things sit in rows wider than they are, so that strides are really used; the
 * gaps are checked to be untouched when they come back. Memory: everything belongs to the lab and goes with lab_close.
 *
 * What a device checks on the way (indexes, positions) may be told by the op or by the next wait: LAB_REFUSES takes both.
 *
 * For a run under a tool that is slow: LAB_SMALL=1 (the emulated GPU's default) takes fewer rows where there are many, LAB_SMALL=2 fewer calls as
 * well (racecheck), LAB_ONLY=PATTERN takes the tests whose names fit it (* and ?), CAIRN_TEST_ACT=f32 or bf16 takes one type of activations.
 * LAB_BITS=FILE writes down what ops answer (bits.h).
 */
#ifndef CAIRN_TESTS_LAB_H
#define CAIRN_TESTS_LAB_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/philox.h"
#include "kernels/backend.h"

#define LAB_THINGS 256
#define LAB_ACT    CAIRN_DTYPES /* as a type of thing_new: an activation */

struct thing {
    struct cairn_tensor t; /* as the device has it */
    struct cairn_buffer *buf;
    enum cairn_dtype image; /* type of the elements of h; layout as in t */
    unsigned char *h;       /* host image of the whole buffer */
    size_t bytes;           /* of h */
};

struct lab {
    const char *device;           /* "cpu", "guard", "cuda f32", "cuda bf16" */
    struct cairn_compute c, host; /* host: cpu, open when c is not */
    enum cairn_dtype act;
    const struct cairn_ops *fast, *ref;
    struct cairn_error err;
    struct thing *things[LAB_THINGS];
    int n;
    uint32_t draws;
    int roundings; /* of activations, in both results that lab_near compares; beyond the bound that its caller gives */
};

static struct lab *lab_open_now;            /* the one whose things lab_mirror knows */
static const struct cairn_ops lab_mirrored; /* mirror.h */
static inline const struct cairn_ops *lab_bits_ops(const struct lab *l); /* bits.h */

static inline int lab_small(void)
{
    const char *v = getenv("LAB_SMALL");

    return v ? !strcmp(v, "1") || !strcmp(v, "2") : getenv("CAIRN_CUDA_OBJECT") != NULL;
}

static inline int lab_least(void)
{
    const char *v = getenv("LAB_SMALL");

    return v && !strcmp(v, "2");
}

/* Rows of `all` that are taken at a time where each is to be by itself. */
static inline int lab_each(int all)
{
    return lab_least() ? all / 3 + 1 : 1;
}

static inline int lab_rounds(const struct lab *l) /* are activations narrower than f32? */
{
    return l->act != CAIRN_F32;
}

static inline enum cairn_status lab_try(struct lab *l, const char *device, const char *act, int threads)
{
    const struct cairn_compute_opts o = {.backend = device, .threads = threads, .act = act}, cpu = {.backend = "cpu"};
    enum cairn_status st;

    memset(l, 0, sizeof *l);
    l->device = device;
    st = cairn_compute_open(&l->c, &o, &l->err);
    if (st != CAIRN_OK)
        return st;
    l->act = l->c.act;
    l->roundings = 2;
    l->fast = lab_bits_ops(l);
    l->ref = l->c.backend->reference;
    if (!l->ref) {
        st = cairn_compute_open(&l->host, &cpu, &l->err);
        l->ref = &lab_mirrored;
    }
    lab_open_now = l;
    return st;
}

static inline void lab_open(struct lab *l, const char *device, int threads)
{
    if (lab_try(l, device, NULL, threads) != CAIRN_OK)
        fail_msg("%s: %s", device, l->err.text);
}

static inline void lab_clear(struct lab *l)
{
    for (int i = 0; i < l->n; i++) {
        cairn_buffer_destroy(l->things[i]->buf);
        free(l->things[i]->h);
        free(l->things[i]);
    }
    l->n = 0;
}

static inline void lab_close(struct lab *l)
{
    lab_clear(l);
    cairn_compute_close(&l->c);
    cairn_compute_close(&l->host);
}

static inline void lab_each_device(void (*body)(struct lab *l))
{
    static const char *const here[][3] = {{"cpu", NULL, "cpu"}, {"guard", NULL, "guard"}}, *const there[][3] = {
                                                                                               {"cuda", "f32", "cuda f32"},
                                                                                               {"cuda", "bf16", "cuda bf16"}};
    const char *name = getenv("CAIRN_TEST_BACKEND"), *act = getenv("CAIRN_TEST_ACT");

    for (int i = 0; i < 2; i++) {
        const char *const *d = name && *name ? there[i] : here[i];
        struct lab l;

        if (d[1] && act && *act && strcmp(act, d[1]))
            continue;
        if (lab_try(&l, name && *name ? name : d[0], d[1], 0) != CAIRN_OK)
            fail_msg("%s: %s", d[2], l.err.text);
        l.device = d[2];
        body(&l);
        lab_close(&l);
    }
}

/* In the place of cmocka_run_group_tests: nothing to do, loudly, where the back-end that CAIRN_TEST_BACKEND names has no device. */
static inline int lab_skips(void)
{
    const char *name = getenv("CAIRN_TEST_BACKEND");
    struct lab l;

    if (!name || !*name)
        return 0;
    if (lab_try(&l, name, NULL, 0) == CAIRN_OK) {
        lab_close(&l);
        return 0;
    }
    printf("1..0 # SKIP %s\n", l.err.text);
    return 1;
}
static inline int lab_skips_some(void)
{
    if (getenv("LAB_ONLY"))
        cmocka_set_test_filter(getenv("LAB_ONLY"));
    return lab_skips();
}
#define LAB_RUN(tests) (lab_skips_some() ? 0 : cmocka_run_group_tests(tests, NULL, NULL))

/* The cmocka test of a body: name_test. */
#define ON_EACH_DEVICE(name)                                                                                                       \
    static void name##_test(void **state)                                                                                          \
    {                                                                                                                              \
        (void)state;                                                                                                               \
        lab_each_device(name);                                                                                                     \
    }

#define LAB_OK(l, call)                                                                                                            \
    do {                                                                                                                           \
        if ((call) != CAIRN_OK)                                                                                                    \
            fail_msg("%s: %s: %s", (l)->device, #call, (l)->err.text);                                                             \
    } while (0)

#define LAB_REFUSES(l, call)                                                                                                       \
    do {                                                                                                                           \
        enum cairn_status lab_st = (call);                                                                                         \
                                                                                                                                   \
        if (lab_st == CAIRN_OK)                                                                                                    \
            lab_st = cairn_stream_wait(&(l)->c.stream, &(l)->err);                                                                 \
        if (lab_st != CAIRN_EBUG)                                                                                                  \
            fail_msg("%s: %s: status %d, should be refused", (l)->device, #call, (int)lab_st);                                     \
    } while (0)

/* ---- random numbers ------------------------------------------------------------------------------------------------------- */

static inline uint32_t lab_u32(struct lab *l)
{
    const struct cairn_philox_key key = {20240501, CAIRN_PURPOSE_DATA, 7};
    uint32_t w[4];

    cairn_philox(&key, l->draws++, 1, 2, w);
    return w[0];
}

static inline double lab_uniform(struct lab *l, double lo, double hi)
{
    return lo + (hi - lo) * (lab_u32(l) + 0.5) * 0x1p-32;
}

static inline int lab_int(struct lab *l, int lo, int hi) /* inclusive */
{
    return (int)(lo + (int64_t)(lab_u32(l) % ((uint64_t)((int64_t)hi - lo) + 1)));
}

static inline float lab_normal(struct lab *l)
{
    double z[2];

    cairn_normal2(lab_u32(l), lab_u32(l), z);
    return (float)z[0];
}

/* ---- things ---------------------------------------------------------------------------------------------------------------- */

static inline uint16_t lab_bf16(float x) /* round to nearest even; a NaN keeps its upper half */
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

static inline float lab_float(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

/* Between the image and the device's bytes; `n` elements. */
static inline void thing_pack(const struct thing *x, unsigned char *d, const unsigned char *h, size_t n)
{
    if (x->image == x->t.dtype)
        memcpy(d, h, n * cairn_dtype_size(x->image));
    else
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)d)[i] = lab_bf16(((const float *)h)[i]);
}

static inline void thing_unpack(const struct thing *x, unsigned char *h, const unsigned char *d, size_t n)
{
    if (x->image == x->t.dtype)
        memcpy(h, d, n * cairn_dtype_size(x->image));
    else
        for (size_t i = 0; i < n; i++)
            ((float *)h)[i] = lab_float(((const uint16_t *)d)[i]);
}

static inline size_t thing_room(const struct thing *x) /* elements in the buffer */
{
    return x->bytes / cairn_dtype_size(x->image);
}

/* The whole buffer, to and from `d`, which has the device's types. */
static inline void thing_move(struct lab *l, const struct thing *x, unsigned char *d, int up)
{
    int64_t bytes = (int64_t)(thing_room(x) * cairn_dtype_size(x->t.dtype));
    struct cairn_tensor all;

    if (!bytes)
        return;
    LAB_OK(l, cairn_tensor_view(&all, x->buf, 0, CAIRN_U8, 1, &bytes, &l->err));
    if (up)
        LAB_OK(l, cairn_tensor_set(&l->c.stream, &all, d, (size_t)bytes, &l->err));
    else
        LAB_OK(l, cairn_tensor_get(&l->c.stream, &all, d, (size_t)bytes, &l->err));
}

static inline void thing_up(struct lab *l, struct thing *x)
{
    unsigned char *d = malloc(x->bytes + 1);

    assert_non_null(d);
    thing_pack(x, d, x->h, thing_room(x));
    thing_unpack(x, x->h, d, thing_room(x)); /* what the device holds is what the test goes by */
    thing_move(l, x, d, 1);
    free(d);
}

/* New thing of `ndim` dimensions; pad > 0: every dimension but the first is `pad` elements wider in memory than in the view. Its
 * memory is NaN bytes all over (0xff), on both sides. */
static inline struct thing *thing_new(struct lab *l, enum cairn_dtype type, int pad, int ndim, ...)
{
    struct thing *x = calloc(1, sizeof *x);
    int64_t n = 1;
    va_list ap;

    assert_non_null(x);
    assert_true(l->n < LAB_THINGS);
    x->t.dtype = type == LAB_ACT ? l->act : type;
    x->image = type == LAB_ACT ? CAIRN_F32 : type;
    x->t.ndim = ndim;
    va_start(ap, ndim);
    for (int i = 0; i < ndim; i++)
        x->t.dim[i] = va_arg(ap, int);
    va_end(ap);
    for (int i = ndim - 1; i >= 0; i--) {
        x->t.stride[i] = n;
        n *= x->t.dim[i] + (i ? pad : 0);
    }
    x->bytes = (size_t)n * cairn_dtype_size(x->image);
    LAB_OK(l, cairn_buffer_create(l->c.dev, (size_t)n * cairn_dtype_size(x->t.dtype), &x->buf, &l->err));
    x->t.buf = x->buf;
    x->h = malloc(x->bytes + 1);
    assert_non_null(x->h);
    memset(x->h, 0xff, x->bytes);
    l->things[l->n++] = x;
    thing_up(l, x);
    return x;
}

static inline size_t thing_at(const struct thing *x, int64_t i) /* offset in elements of the i-th element in order */
{
    int64_t o = 0;

    for (int k = x->t.ndim - 1; k >= 0; k--) {
        o += i % x->t.dim[k] * x->t.stride[k];
        i /= x->t.dim[k];
    }
    return (size_t)o;
}

static inline int64_t thing_count(const struct thing *x)
{
    return cairn_tensor_count(&x->t);
}

static inline float *thing_f(const struct thing *x, int64_t i)
{
    return (float *)x->h + thing_at(x, i);
}

static inline int32_t *thing_i(const struct thing *x, int64_t i)
{
    return (int32_t *)x->h + thing_at(x, i);
}

static inline void thing_down(struct lab *l, struct thing *x)
{
    size_t size = cairn_dtype_size(x->t.dtype), n = thing_room(x);
    unsigned char *inside = calloc(n + 1, 1), *d = malloc(x->bytes + 1), *was = malloc(x->bytes + 1);

    assert_true(inside && d && was);
    LAB_OK(l, cairn_stream_wait(&l->c.stream, &l->err));
    thing_move(l, x, d, 0);
    thing_pack(x, was, x->h, n);
    for (int64_t i = 0; i < thing_count(x); i++)
        inside[thing_at(x, i)] = 1;
    for (size_t i = 0; i < n; i++)
        if (!inside[i] && memcmp(d + i * size, was + i * size, size))
            fail_msg("%s: something wrote into the gaps of a strided tensor", l->device);
    thing_unpack(x, x->h, d, n);
    free(inside), free(d), free(was);
}

/* Fills with normal numbers times scale, and sends. */
static inline struct thing *thing_normal(struct lab *l, struct thing *x, float scale)
{
    for (int64_t i = 0; i < thing_count(x); i++) {
        float z = lab_normal(l) * scale;

        if (x->image == CAIRN_BF16) {
            uint32_t u;

            memcpy(&u, &z, sizeof u);
            ((uint16_t *)x->h)[thing_at(x, i)] = (uint16_t)(u >> 16);
        } else {
            *thing_f(x, i) = z;
        }
    }
    thing_up(l, x);
    return x;
}

static inline struct thing *thing_ints(struct lab *l, struct thing *x, const int32_t *v)
{
    for (int64_t i = 0; i < thing_count(x); i++)
        *thing_i(x, i) = v[i];
    thing_up(l, x);
    return x;
}

static inline double thing_value(const struct thing *x, int64_t i)
{
    size_t o = thing_at(x, i);

    switch (x->image) {
    case CAIRN_BF16:
        return lab_float(((const uint16_t *)x->h)[o]);
    case CAIRN_F64:
        return ((const double *)x->h)[o];
    case CAIRN_I32:
        return ((const int32_t *)x->h)[o];
    default:
        return ((const float *)x->h)[o];
    }
}

/* A new thing of the same shape and contents (poisoned if `poison`), sent. */
static inline struct thing *thing_like(struct lab *l, const struct thing *x, int poison)
{
    struct thing *y = calloc(1, sizeof *y);

    assert_non_null(y);
    assert_true(l->n < LAB_THINGS);
    *y = *x;
    y->h = malloc(x->bytes + 1);
    assert_non_null(y->h);
    if (poison)
        memset(y->h, 0xff, x->bytes);
    else
        memcpy(y->h, x->h, x->bytes);
    LAB_OK(l, cairn_buffer_create(l->c.dev, thing_room(x) * cairn_dtype_size(x->t.dtype), &y->buf, &l->err));
    y->t.buf = y->buf;
    l->things[l->n++] = y;
    thing_up(l, y);
    return y;
}

/* |a - b| <= rel * |b| + abs in every element; NaN equals NaN, infinities themselves. Activations of bf16 may be off by
 * l->roundings roundings (2^-8 each) more. */
static inline void lab_near(struct lab *l, const char *what, const struct thing *a, const struct thing *b, double rel, double abs)
{
    assert_true(thing_count(a) == thing_count(b));
    if (a->image != a->t.dtype)
        rel += l->roundings * 0x1p-8;
    for (int64_t i = 0; i < thing_count(a); i++) {
        double x = thing_value(a, i), y = thing_value(b, i);

        if (x == y || (isnan(x) && isnan(y)))
            continue;
        if (!(fabs(x - y) <= rel * fabs(y) + abs))
            fail_msg("%s: %s: element %lld is %.9g, should be %.9g +- %.3g", l->device, what, (long long)i, x, y,
                     rel * fabs(y) + abs);
    }
}

static inline void lab_equal_bits(struct lab *l, const char *what, const struct thing *a, const struct thing *b)
{
    size_t size = cairn_dtype_size(a->image);

    assert_true(thing_count(a) == thing_count(b));
    for (int64_t i = 0; i < thing_count(a); i++)
        if (memcmp(a->h + thing_at(a, i) * size, b->h + thing_at(b, i) * size, size))
            fail_msg("%s: %s: element %lld differs in bits: %.9g and %.9g", l->device, what, (long long)i, thing_value(a, i),
                     thing_value(b, i));
}

#include "bits.h"
#include "mirror.h"

#endif

/* lab.h - what the conformance tests share: the four ways to compute (cpu and guard, fast and reference ops), tensors with host
 * copies, random and poisoned contents, comparison.
 *
 * Every test runs as a list of cases over every device: lab_each_device(case). A `thing` is a tensor with a host image; things_up
 * sends images, things_down fetches them. Padded things sit in rows wider than they are, so that strides are really used; the gaps
 * are checked to be untouched when they come back. Memory: everything belongs to the lab and goes with lab_close.
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

struct thing {
    struct cairn_tensor t;
    struct cairn_buffer *buf;
    unsigned char *h; /* host image of the whole buffer */
    size_t bytes;
};

struct lab {
    const char *device;
    struct cairn_compute c;
    const struct cairn_ops *fast, *ref;
    struct cairn_error err;
    struct thing *things[LAB_THINGS];
    int n;
    uint32_t draws;
};

static inline void lab_open(struct lab *l, const char *device, int threads)
{
    const struct cairn_compute_opts o = {.backend = device, .threads = threads};

    memset(l, 0, sizeof *l);
    l->device = device;
    if (cairn_compute_open(&l->c, &o, &l->err) != CAIRN_OK)
        fail_msg("%s: %s", device, l->err.text);
    l->fast = l->c.backend->ops;
    l->ref = l->c.backend->reference;
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
}

static inline void lab_each_device(void (*body)(struct lab *l))
{
    static const char *const devices[] = {"cpu", "guard"};

    for (int i = 0; i < 2; i++) {
        struct lab l;

        lab_open(&l, devices[i], 0);
        body(&l);
        lab_close(&l);
    }
}

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

static inline void thing_up(struct lab *l, struct thing *x)
{
    void *p = cairn_buffer_open(x->buf, CAIRN_WRITE);

    memcpy(p, x->h, x->bytes);
    cairn_buffer_close(x->buf);
    (void)l;
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
    x->t.dtype = type;
    x->t.ndim = ndim;
    va_start(ap, ndim);
    for (int i = 0; i < ndim; i++)
        x->t.dim[i] = va_arg(ap, int);
    va_end(ap);
    for (int i = ndim - 1; i >= 0; i--) {
        x->t.stride[i] = n;
        n *= x->t.dim[i] + (i ? pad : 0);
    }
    x->bytes = (size_t)n * cairn_dtype_size(type);
    LAB_OK(l, cairn_buffer_create(l->c.dev, x->bytes, &x->buf, &l->err));
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
    const unsigned char *p;
    unsigned char *inside = calloc(x->bytes + 1, 1);

    LAB_OK(l, cairn_stream_wait(&l->c.stream, &l->err));
    p = cairn_buffer_open(x->buf, CAIRN_READ);
    assert_non_null(inside);
    for (int64_t i = 0; i < thing_count(x); i++)
        inside[thing_at(x, i) * cairn_dtype_size(x->t.dtype)] = 1;
    for (size_t i = 0; i < x->bytes; i += cairn_dtype_size(x->t.dtype))
        if (!inside[i] && memcmp(p + i, x->h + i, cairn_dtype_size(x->t.dtype)))
            fail_msg("%s: something wrote into the gaps of a strided tensor", l->device);
    memcpy(x->h, p, x->bytes);
    cairn_buffer_close(x->buf);
    free(inside);
}

/* Fills with normal numbers times scale, and sends. */
static inline struct thing *thing_normal(struct lab *l, struct thing *x, float scale)
{
    for (int64_t i = 0; i < thing_count(x); i++) {
        float z = lab_normal(l) * scale;

        if (x->t.dtype == CAIRN_BF16) {
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
    uint32_t u;
    float f;

    switch (x->t.dtype) {
    case CAIRN_BF16:
        u = (uint32_t)((const uint16_t *)x->h)[o] << 16;
        memcpy(&f, &u, sizeof f);
        return f;
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
    LAB_OK(l, cairn_buffer_create(l->c.dev, x->bytes, &y->buf, &l->err));
    y->t.buf = y->buf;
    l->things[l->n++] = y;
    thing_up(l, y);
    return y;
}

/* |a - b| <= rel * |b| + abs in every element; NaN equals NaN, infinities themselves. */
static inline void lab_near(struct lab *l, const char *what, const struct thing *a, const struct thing *b, double rel, double abs)
{
    assert_true(thing_count(a) == thing_count(b));
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
    size_t size = cairn_dtype_size(a->t.dtype);

    assert_true(thing_count(a) == thing_count(b));
    for (int64_t i = 0; i < thing_count(a); i++)
        if (memcmp(a->h + thing_at(a, i) * size, b->h + thing_at(b, i) * size, size))
            fail_msg("%s: %s: element %lld differs in bits: %.9g and %.9g", l->device, what, (long long)i, thing_value(a, i),
                     thing_value(b, i));
}

#endif

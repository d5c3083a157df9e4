/* bench.h - what the benches of single ops share: tensors of random numbers, the time of a call, lines of results. Included by the
 * programs of tests/gpu that measure ops one by one.
 */
#ifndef TESTS_GPU_BENCH_H
#define TESTS_GPU_BENCH_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/philox.h"
#include "kernels/backend.h"

#define REPEATS 9
#define BUFFERS 40

static struct cairn_compute c;
static struct cairn_error err;
static struct cairn_buffer *buffers[BUFFERS];
static int n_buffers;
static double copy_gb_s;
static float *noise; /* normal numbers */
#define NOISE (1 << 20)

static inline void must(enum cairn_status st, const char *what)
{
    if (st == CAIRN_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, err.text);
    exit((int)st);
}

static inline struct cairn_tensor tensor(enum cairn_dtype t, int ndim, int64_t a, int64_t b, int64_t d)
{
    int64_t dim[3] = {a, b, d}, count = a * (ndim > 1 ? b : 1) * (ndim > 2 ? d : 1);
    struct cairn_tensor x;

    if (n_buffers == BUFFERS)
        exit(70);
    must(cairn_buffer_create(c.dev, (size_t)count * cairn_dtype_size(t), &buffers[n_buffers], &err), "a buffer");
    must(cairn_tensor_view(&x, buffers[n_buffers++], 0, t, ndim, dim, &err), "a tensor");
    return x;
}

static inline void forget(void)
{
    must(cairn_stream_wait(&c.stream, &err), "waiting");
    while (n_buffers)
        cairn_buffer_destroy(buffers[--n_buffers]);
}

/* Normal numbers times scale plus shift, as f32 on the host, cast on the device. */
static inline struct cairn_tensor normal(enum cairn_dtype t, int ndim, int64_t a, int64_t b, int64_t d, float scale)
{
    struct cairn_tensor x = tensor(t, ndim, a, b, d);
    int64_t count = cairn_tensor_count(&x), piece = count < NOISE ? count : NOISE, at = 0;
    struct cairn_buffer *buf;
    struct cairn_tensor from;
    struct cairn_axpby k;

    must(cairn_buffer_create(c.dev, (size_t)piece * sizeof(float), &buf, &err), "a buffer");
    must(cairn_tensor_view(&from, buf, 0, CAIRN_F32, 1, &piece, &err), "a tensor");
    must(cairn_tensor_set(&c.stream, &from, noise, (size_t)piece * sizeof(float), &err), "sending");
    for (; at < count; at += piece) {
        int64_t n = count - at < piece ? count - at : piece;
        struct cairn_tensor part, head = cairn_tensor_slice(&from, 0, 0, n);

        must(cairn_tensor_view(&part, x.buf, (size_t)at * cairn_dtype_size(t), t, 1, &n, &err), "a part");
        k = (struct cairn_axpby){head, part, scale, 0};
        must(c.ops.axpby(&c.stream, &k, &err), "axpby");
    }
    must(cairn_stream_wait(&c.stream, &err), "waiting");
    cairn_buffer_destroy(buf);
    return x;
}

static inline struct cairn_tensor ints(int ndim, int64_t a, int64_t b, const int32_t *v)
{
    struct cairn_tensor x = tensor(CAIRN_I32, ndim, a, b, 1);

    must(cairn_tensor_set(&c.stream, &x, v, cairn_tensor_bytes(&x), &err), "sending");
    return x;
}

static inline double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef enum cairn_status op_fn(struct cairn_stream *s, const void *a, struct cairn_error *e);

static inline int rising(const void *a, const void *b)
{
    return *(const double *)a < *(const double *)b ? -1 : *(const double *)a > *(const double *)b;
}

/* Seconds of one call. */
static inline double timed(op_fn *op, const void *args)
{
    double t[REPEATS];
    int batch = 1;

    for (int warm = 0; warm < 2; warm++) { /* also: how many calls make a few milliseconds */
        double t0 = now_s(), one;

        must(op(&c.stream, args, &err), "op");
        must(cairn_stream_wait(&c.stream, &err), "waiting");
        one = now_s() - t0;
        batch = one < 1e-7 ? 100 : (int)(4e-3 / one) + 1;
        batch = batch > 100 ? 100 : batch;
    }
    for (int r = 0; r < REPEATS; r++) {
        double t0 = now_s();

        for (int i = 0; i < batch; i++)
            must(op(&c.stream, args, &err), "op");
        must(cairn_stream_wait(&c.stream, &err), "waiting");
        t[r] = (now_s() - t0) / batch;
    }
    qsort(t, REPEATS, sizeof *t, rising);
    return t[REPEATS / 2];
}

static inline void line(const char *name, const char *shape, double s, double bytes)
{
    printf("%-14s %-28s %10.1f us %9.1f MB %8.1f GB/s", name, shape, 1e6 * s, 1e-6 * bytes, 1e-9 * bytes / s);
    if (copy_gb_s > 0)
        printf("  %5.1f %% of copy", 100 * 1e-9 * bytes / s / copy_gb_s);
    printf("\n");
    fflush(stdout);
}

#define OP(name)                                                                                                                   \
    static enum cairn_status op_##name(struct cairn_stream *s, const void *a, struct cairn_error *e)                               \
    {                                                                                                                              \
        return c.ops.name(s, a, e);                                                                                                \
    }

static inline uint32_t draw(uint32_t i, uint32_t what)
{
    const struct cairn_philox_key key = {1, CAIRN_PURPOSE_DATA, 0};
    uint32_t w[4];

    cairn_philox(&key, i, what, 0, w);
    return w[0];
}

static inline void noise_make(void)
{
    noise = malloc(NOISE * sizeof *noise);
    if (!noise)
        exit(73);
    for (int i = 0; i < NOISE; i += 2) {
        double two[2];

        cairn_normal2(draw((uint32_t)i, 3), draw((uint32_t)i, 4), two);
        noise[i] = (float)two[0];
        noise[i + 1] = (float)two[1];
    }
}

#endif

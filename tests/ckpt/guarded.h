/* guarded.h - a device whose memory is PROT_NONE outside of brackets, for tests of tensor transfers. */
#ifndef CAIRN_TESTS_CKPT_GUARDED_H
#define CAIRN_TESTS_CKPT_GUARDED_H

#include "tests/ckpt/helpers.h"

struct guarded {
    void *p;
    size_t n;
    int opened;
};

static inline enum cairn_status g_alloc(struct cairn_device *d, size_t bytes, void **impl, struct cairn_error *err)
{
    struct guarded *g = calloc(1, sizeof *g);

    (void)d;
    (void)err;
    g->n = (bytes + 4095) / 4096 * 4096;
    g->p = mmap(NULL, g->n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g->p != MAP_FAILED);
    *impl = g;
    return CAIRN_OK;
}

static inline void g_release(struct cairn_device *d, void *impl, size_t bytes)
{
    struct guarded *g = impl;

    (void)d;
    (void)bytes;
    munmap(g->p, g->n);
    free(g);
}

static inline void *g_open(struct cairn_device *d, void *impl, size_t bytes, int access)
{
    struct guarded *g = impl;

    (void)d;
    (void)bytes;
    (void)access;
    g->opened++;
    mprotect(g->p, g->n, PROT_READ | PROT_WRITE);
    return g->p;
}

static inline void g_close(struct cairn_device *d, void *impl, size_t bytes)
{
    struct guarded *g = impl;

    (void)d;
    (void)bytes;
    if (!--g->opened)
        mprotect(g->p, g->n, PROT_NONE);
}

static inline enum cairn_status g_stream(struct cairn_device *d, void **impl, struct cairn_error *err)
{
    (void)d;
    (void)err;
    *impl = NULL;
    return CAIRN_OK;
}

static inline void g_stream_off(struct cairn_device *d, void *impl)
{
    (void)d;
    (void)impl;
}

static inline enum cairn_status g_wait(struct cairn_device *d, void *impl, struct cairn_error *err)
{
    (void)d;
    (void)impl;
    (void)err;
    return CAIRN_OK;
}

static inline enum cairn_status g_copy(struct cairn_device *d, void *s, void *dst, const void *src, size_t n, struct cairn_error *err)
{
    (void)d;
    (void)s;
    (void)err;
    memcpy(dst, src, n);
    return CAIRN_OK;
}

static const struct cairn_device_ops guard_ops = {.alloc = g_alloc, .release = g_release, .open = g_open, .close = g_close,
                                                  .stream_create = g_stream, .stream_destroy = g_stream_off, .stream_wait = g_wait,
                                                  .copy_in = g_copy, .copy_out = g_copy, .copy = g_copy};
static struct cairn_device guard_device = {.name = "test", .ops = &guard_ops};

/* A dense tensor on it, filled from h_p (NULL: left as it is). Destroy t.buf. */
static inline struct cairn_tensor guarded_tensor(enum cairn_dtype dtype, int ndim, const int64_t *dim, const void *h_p)
{
    struct cairn_tensor t;
    struct cairn_buffer *b;
    size_t bytes = cairn_dtype_size(dtype);

    for (int d = 0; d < ndim; d++)
        bytes *= (size_t)dim[d];
    ok(cairn_buffer_create(&guard_device, bytes, &b, err));
    ok(cairn_tensor_view(&t, b, 0, dtype, ndim, dim, err));
    if (h_p) {
        memcpy(cairn_buffer_open(b, CAIRN_WRITE), h_p, bytes);
        cairn_buffer_close(b);
    }
    return t;
}

#endif

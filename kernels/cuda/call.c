/* call.c - the bracket around one op call: opens and checks tensors, closes them, hands out scratch. See internal.h. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>

struct call call_begin(const char *op, struct cairn_stream *s, struct cairn_error *err)
{
    struct cuda *d = s->dev->state;
    struct cuda_stream *str = s->impl;
    struct call c = {.op = op, .cuda = d, .str = str, .stream = str->s, .err = err, .act = -1};

    call_cuda(&c, cudaSetDevice(d->ordinal), "cudaSetDevice");
    return c;
}

void call_fail(struct call *c, const char *fmt, ...)
{
    char text[256];
    va_list ap;

    if (c->st != CAIRN_OK)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    c->st = cairn_fail(c->err, CAIRN_EBUG, "%s: %s", c->op, text);
}

void call_cuda(struct call *c, cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return;
    cudaGetLastError(); /* what was not sticky is told once */
    if (c->st != CAIRN_OK)
        return;
    c->st = cuda_status(e, what, c->err);
    cairn_error_prefix(c->err, "%s", c->op);
}

static void check_extent(struct call *c, const char *name, const struct cairn_tensor *t)
{
    unsigned __int128 last = 0;

    for (int i = 0; i < t->ndim; i++) {
        if (t->dim[i] < 0 || t->stride[i] < 0) {
            call_fail(c, "%s has a negative dimension or stride", name);
            return;
        }
        if (t->dim[i] == 0)
            return;
        last += (unsigned __int128)(uint64_t)(t->dim[i] - 1) * (uint64_t)t->stride[i];
    }
    if (t->offset % cairn_dtype_size(t->dtype))
        call_fail(c, "%s is not aligned to its elements", name);
    if ((last + 1) * cairn_dtype_size(t->dtype) + t->offset > t->buf->bytes)
        call_fail(c, "%s reaches beyond the end of its buffer of %zu bytes", name, t->buf->bytes);
}

struct arg call_arg(struct call *c, const char *name, const struct cairn_tensor *t, int what, int ndim, ...)
{
    struct arg a = {.type = t->dtype, .ndim = t->ndim};
    va_list ap;

    if (!call_ok(c))
        return a;
    if (!t->buf) {
        if (!(what & ABSENT))
            call_fail(c, "%s is absent", name);
        return a;
    }
    if (t->buf->dev != &c->cuda->dev)
        call_fail(c, "%s lives on another device", name);
    if (t->dtype < 0 || t->dtype >= CAIRN_DTYPES || !(what & 1 << t->dtype)) {
        call_fail(c, "%s has type %s", name, cairn_dtype_name(t->dtype));
        return a;
    }
    if (what & T_SAME_ACT) {
        if (c->act < 0)
            c->act = (int)t->dtype;
        if (c->act != (int)t->dtype)
            call_fail(c, "%s has type %s, another activation has %s", name, cairn_dtype_name(t->dtype),
                      cairn_dtype_name((enum cairn_dtype)c->act));
    }
    if (t->ndim != ndim) {
        call_fail(c, "%s has %d dimensions, expected %d", name, t->ndim, ndim);
        return a;
    }
    va_start(ap, ndim);
    for (int i = 0; i < ndim; i++) {
        int64_t *letter = va_arg(ap, int64_t *);

        if (*letter < 0)
            *letter = t->dim[i];
        if (*letter != t->dim[i])
            call_fail(c, "%s has dimension %d = %lld, expected %lld", name, i, (long long)t->dim[i], (long long)*letter);
        a.d[i] = t->dim[i];
        a.s[i] = t->stride[i];
    }
    va_end(ap);
    if (what & STRIDED) {
        if (ndim && t->dim[ndim - 1] > 1 && t->stride[ndim - 1] != 1)
            call_fail(c, "%s: the last dimension has stride %lld", name, (long long)t->stride[ndim - 1]);
    } else if (!cairn_tensor_dense(t) && cairn_tensor_count(t))
        call_fail(c, "%s is not dense", name);
    check_extent(c, name, t);
    if (c->n == CALL_MAX_ARGS)
        call_fail(c, "too many arguments");
    if (!call_ok(c))
        return a;
    a.p = (char *)cairn_buffer_open(t->buf, what & OUT ? CAIRN_READ | CAIRN_WRITE : CAIRN_READ) + t->offset;
    c->open[c->n++] = t->buf;
    return a;
}

enum cairn_status call_end(struct call *c)
{
    while (c->n)
        cairn_buffer_close(c->open[--c->n]);
    return c->st;
}

void *call_scratch(struct call *c, size_t bytes)
{
    struct cuda_stream *s = c->str;
    size_t size = s->scratch_bytes ? s->scratch_bytes : (size_t)1 << 20;
    void *p = NULL;

    if (!call_ok(c))
        return NULL;
    if (bytes <= s->scratch_bytes && s->scratch)
        return s->scratch;
    while (size < bytes)
        size *= 2;
    if (s->n_outgrown == (int)(sizeof s->outgrown / sizeof *s->outgrown)) {
        call_fail(c, "scratch grew too often");
        return NULL;
    }
    call_cuda(c, cudaMalloc(&p, size), "scratch");
    if (!call_ok(c))
        return NULL;
    if (s->scratch)
        s->outgrown[s->n_outgrown++] = s->scratch;
    s->scratch = p;
    s->scratch_bytes = size;
    return p;
}

int arg_align(const struct arg *a)
{
    uintptr_t all = (uintptr_t)a->p, size = cairn_dtype_size(a->type);
    int n = 16;

    for (int i = 0; i + 1 < a->ndim; i++)
        if (a->d[i] > 1)
            all |= (uintptr_t)a->s[i] * size;
    while (all % (uintptr_t)n)
        n /= 2;
    return n;
}

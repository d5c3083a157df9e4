/* call.c - the bracket around one op call: its tensors, its scratch, what CUDA says. See internal.h. */
#include "internal.h"

#include <stdarg.h>

struct call call_begin(const char *op, struct cairn_stream *s, struct cairn_error *err)
{
    struct cuda *d = s->dev->state;
    struct cuda_stream *str = s->impl;
    struct call c = {.c = {.op = op, .dev = &d->dev, .err = err, .act = -1}, .cuda = d, .str = str, .stream = str->s};

    call_cuda(&c, cudaSetDevice(d->ordinal), "cudaSetDevice");
    return c;
}

void call_fail(struct call *c, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    cairn_call_vfail(&c->c, fmt, ap);
    va_end(ap);
}

void call_cuda(struct call *c, cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return;
    cudaGetLastError(); /* what was not sticky is told once */
    if (!call_ok(c))
        return;
    c->c.st = cuda_status(e, what, c->c.err);
    cairn_error_prefix(c->c.err, "%s", c->c.op);
}

struct arg call_arg(struct call *c, const char *name, const struct cairn_tensor *t, int what, int ndim, ...)
{
    struct arg a;
    va_list ap;

    va_start(ap, ndim);
    a = cairn_call_arg(&c->c, name, t, what, 0, ndim, ap);
    va_end(ap);
    return a;
}

enum cairn_status call_end(struct call *c)
{
    return cairn_call_end(&c->c);
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

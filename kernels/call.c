/* call.c - checks and opens the tensors of a call; see call.h. */
#include "kernels/call.h"

#include <stdio.h>

void cairn_call_vfail(struct cairn_op_call *c, const char *fmt, va_list ap)
{
    char text[256];

    if (c->st != CAIRN_OK)
        return;
    vsnprintf(text, sizeof text, fmt, ap);
    c->st = cairn_fail(c->err, CAIRN_EBUG, "%s: %s", c->op, text);
}

void cairn_call_fail(struct cairn_op_call *c, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    cairn_call_vfail(c, fmt, ap);
    va_end(ap);
}

static void check_extent(struct cairn_op_call *c, const char *name, const struct cairn_tensor *t)
{
    unsigned __int128 last = 0;

    for (int i = 0; i < t->ndim; i++) {
        if (t->dim[i] < 0 || t->stride[i] < 0) {
            cairn_call_fail(c, "%s has a negative dimension or stride", name);
            return;
        }
        if (t->dim[i] == 0)
            return;
        last += (unsigned __int128)(uint64_t)(t->dim[i] - 1) * (uint64_t)t->stride[i];
    }
    if (t->offset % cairn_dtype_size(t->dtype))
        cairn_call_fail(c, "%s is not aligned to its elements", name);
    if ((last + 1) * cairn_dtype_size(t->dtype) + t->offset > t->buf->bytes)
        cairn_call_fail(c, "%s reaches beyond the end of its buffer of %zu bytes", name, t->buf->bytes);
}

/* 1: a type that the op takes there. */
static int check_type(struct cairn_op_call *c, const char *name, const struct cairn_tensor *t, int what, int types)
{
    if (t->dtype < 0 || t->dtype >= CAIRN_DTYPES || !((what | types) & 1 << t->dtype)) {
        cairn_call_fail(c, "%s has type %s", name, cairn_dtype_name(t->dtype));
        return 0;
    }
    if (what & T_SAME_ACT) {
        if (c->act < 0)
            c->act = (int)t->dtype;
        if (c->act != (int)t->dtype)
            cairn_call_fail(c, "%s has type %s, another activation has %s", name, cairn_dtype_name(t->dtype),
                            cairn_dtype_name((enum cairn_dtype)c->act));
    }
    return 1;
}

static void check_strides(struct cairn_op_call *c, const char *name, const struct cairn_tensor *t, int what)
{
    if (what & STRIDED) {
        if (t->ndim && t->dim[t->ndim - 1] > 1 && t->stride[t->ndim - 1] != 1)
            cairn_call_fail(c, "%s: the last dimension has stride %lld", name, (long long)t->stride[t->ndim - 1]);
    } else if (!cairn_tensor_dense(t) && cairn_tensor_count(t)) {
        cairn_call_fail(c, "%s is not dense", name);
    }
}

struct arg cairn_call_arg(struct cairn_op_call *c, const char *name, const struct cairn_tensor *t, int what, int types, int ndim,
                          va_list letters)
{
    struct arg a = {.type = t->dtype, .ndim = t->ndim};

    if (c->st != CAIRN_OK)
        return a;
    if (!t->buf) {
        if (!(what & ABSENT))
            cairn_call_fail(c, "%s is absent", name);
        return a;
    }
    if (t->buf->dev != c->dev)
        cairn_call_fail(c, "%s lives on another device", name);
    if (!check_type(c, name, t, what, types))
        return a;
    if (t->ndim != ndim) {
        cairn_call_fail(c, "%s has %d dimensions, expected %d", name, t->ndim, ndim);
        return a;
    }
    for (int i = 0; i < ndim; i++) {
        int64_t *letter = va_arg(letters, int64_t *);

        if (*letter < 0)
            *letter = t->dim[i];
        if (*letter != t->dim[i])
            cairn_call_fail(c, "%s has dimension %d = %lld, expected %lld", name, i, (long long)t->dim[i], (long long)*letter);
        a.d[i] = t->dim[i];
        a.s[i] = t->stride[i];
    }
    check_strides(c, name, t, what);
    check_extent(c, name, t);
    if (c->n == CALL_MAX_ARGS)
        cairn_call_fail(c, "too many arguments");
    if (c->st != CAIRN_OK)
        return a;
    a.p = (char *)cairn_buffer_open(t->buf, what & OUT ? CAIRN_READ | CAIRN_WRITE : CAIRN_READ) + t->offset;
    c->open[c->n++] = t->buf;
    return a;
}

enum cairn_status cairn_call_end(struct cairn_op_call *c)
{
    while (c->n)
        cairn_buffer_close(c->open[--c->n]);
    return c->st;
}

/* buffer.c - views, brackets and copies of buffer.h; everything device-specific is behind device->ops. */
#include "base/buffer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

static const struct {
    const char *name;
    size_t size;
} dtypes[CAIRN_DTYPES] = {
    [CAIRN_F32] = {"f32", 4}, [CAIRN_BF16] = {"bf16", 2}, [CAIRN_F16] = {"f16", 2}, [CAIRN_F64] = {"f64", 8},
    [CAIRN_I32] = {"i32", 4}, [CAIRN_I64] = {"i64", 8},   [CAIRN_U8] = {"u8", 1},   [CAIRN_F8E4M3] = {"f8e4m3", 1},
};

size_t cairn_dtype_size(enum cairn_dtype t)
{
    return dtypes[t].size;
}

const char *cairn_dtype_name(enum cairn_dtype t)
{
    return dtypes[t].name;
}

int cairn_dtype_parse(const char *name)
{
    for (int i = 0; i < CAIRN_DTYPES; i++)
        if (!strcmp(name, dtypes[i].name))
            return i;
    return -1;
}

enum cairn_status cairn_device_memory(struct cairn_device *dev, size_t *left, size_t *total, struct cairn_error *err)
{
    *left = *total = 0;
    return dev->ops->memory ? dev->ops->memory(dev, left, total, err) : CAIRN_OK;
}

enum cairn_status cairn_buffer_create(struct cairn_device *dev, size_t bytes, struct cairn_buffer **out, struct cairn_error *err)
{
    struct cairn_buffer *b = calloc(1, sizeof *b);
    enum cairn_status st = CAIRN_OK;

    if (!b)
        return CAIRN_NOMEM(err);
    b->dev = dev;
    b->bytes = bytes;
    TRY(dev->ops->alloc(dev, bytes ? bytes : 1, &b->impl, err));
    *out = b;
    b = NULL;
out:
    free(b);
    return st;
}

int cairn_buffer_adopts(const struct cairn_device *dev)
{
    return dev->ops->adopt != NULL;
}

enum cairn_status cairn_buffer_adopt(struct cairn_device *dev, void *p, size_t bytes, void (*freed)(void *arg), void *arg,
                                     struct cairn_buffer **out, struct cairn_error *err)
{
    struct cairn_buffer *b;
    enum cairn_status st = CAIRN_OK;

    if (!cairn_buffer_adopts(dev) || !bytes || (uintptr_t)p % 64)
        return CAIRN_BUG(err, "memory that this device cannot adopt");
    b = calloc(1, sizeof *b);
    if (!b)
        return CAIRN_NOMEM(err);
    b->dev = dev;
    b->bytes = bytes;
    TRY(dev->ops->adopt(dev, p, bytes, freed, arg, &b->impl, err));
    *out = b;
    b = NULL;
out:
    free(b);
    return st;
}

void cairn_buffer_destroy(struct cairn_buffer *b)
{
    if (!b)
        return;
    assert(b->opened == 0);
    b->dev->ops->release(b->dev, b->impl, b->bytes ? b->bytes : 1);
    free(b);
}

enum cairn_status cairn_buffer_export(struct cairn_buffer *buf, struct cairn_share *out, struct cairn_error *err)
{
    if (!buf->dev->ops->share)
        return cairn_fail(err, CAIRN_EDEVICE, "%s: its memory cannot be shared with other processes", buf->dev->name);
    return buf->dev->ops->share(buf->dev, buf->impl, buf->bytes, out, err);
}

/* A buffer around what the device gave. */
static enum cairn_status wrap(struct cairn_device *dev, void *impl, size_t bytes, struct cairn_buffer **out, struct cairn_error *err)
{
    struct cairn_buffer *b = calloc(1, sizeof *b);

    if (!b) {
        dev->ops->release(dev, impl, bytes);
        return CAIRN_NOMEM(err);
    }
    *b = (struct cairn_buffer){.dev = dev, .impl = impl, .bytes = bytes};
    *out = b;
    return CAIRN_OK;
}

enum cairn_status cairn_buffer_import(struct cairn_device *dev, const struct cairn_share *s, struct cairn_buffer **out, struct cairn_error *err)
{
    enum cairn_status st;
    void *impl;

    if (!dev->ops->attach)
        return cairn_fail(err, CAIRN_EDEVICE, "%s: memory of other processes cannot be used", dev->name);
    if (!s->bytes || s->bytes > SIZE_MAX / 2)
        return cairn_fail(err, CAIRN_EDATA, "%s: shared memory of %llu bytes", dev->name, (unsigned long long)s->bytes);
    st = dev->ops->attach(dev, s, &impl, err);
    return st == CAIRN_OK ? wrap(dev, impl, (size_t)s->bytes, out, err) : st;
}

enum cairn_status cairn_buffer_pin(struct cairn_device *dev, void *h_p, size_t bytes, struct cairn_buffer **out, struct cairn_error *err)
{
    enum cairn_status st;
    void *impl;

    if (!bytes || !dev->ops->pin)
        return CAIRN_BUG(err, "memory that a device cannot reach");
    st = dev->ops->pin(dev, h_p, bytes, &impl, err);
    return st == CAIRN_OK ? wrap(dev, impl, bytes, out, err) : st;
}

void *cairn_buffer_open(struct cairn_buffer *b, int access)
{
    b->opened++;
    return b->dev->ops->open(b->dev, b->impl, b->bytes ? b->bytes : 1, access);
}

void cairn_buffer_close(struct cairn_buffer *b)
{
    assert(b->opened > 0);
    b->opened--;
    b->dev->ops->close(b->dev, b->impl, b->bytes ? b->bytes : 1);
}

enum cairn_status cairn_stream_create(struct cairn_device *dev, struct cairn_stream *out, struct cairn_error *err)
{
    out->dev = dev;
    out->impl = NULL;
    return dev->ops->stream_create(dev, &out->impl, err);
}

void cairn_stream_destroy(struct cairn_stream *s)
{
    if (s && s->dev) {
        s->dev->ops->stream_destroy(s->dev, s->impl);
        s->dev = NULL;
    }
}

enum cairn_status cairn_stream_wait(struct cairn_stream *s, struct cairn_error *err)
{
    return s->dev->ops->stream_wait(s->dev, s->impl, err);
}

void *cairn_stream_native(struct cairn_stream *s)
{
    return s->dev->ops->stream_native ? s->dev->ops->stream_native(s->dev, s->impl) : NULL;
}

int cairn_stream_idle(struct cairn_stream *s)
{
    return s->dev->ops->stream_idle ? s->dev->ops->stream_idle(s->dev, s->impl) : 1;
}

enum cairn_status cairn_event_create(struct cairn_device *dev, struct cairn_event *out, struct cairn_error *err)
{
    out->dev = dev;
    out->impl = NULL;
    return dev->ops->event_create(dev, &out->impl, err);
}

void cairn_event_destroy(struct cairn_event *e)
{
    if (e && e->dev) {
        e->dev->ops->event_destroy(e->dev, e->impl);
        e->dev = NULL;
    }
}

int cairn_event_times(const struct cairn_device *dev)
{
    return dev->ops->event_create_timed != NULL;
}

enum cairn_status cairn_event_create_timed(struct cairn_device *dev, struct cairn_event *out, struct cairn_error *err)
{
    out->dev = dev;
    out->impl = NULL;
    return dev->ops->event_create_timed(dev, &out->impl, err);
}

enum cairn_status cairn_event_ms(const struct cairn_event *a, const struct cairn_event *b, double *ms, struct cairn_error *err)
{
    return a->dev->ops->event_ms(a->dev, a->impl, b->impl, ms, err);
}

enum cairn_status cairn_event_record(struct cairn_event *e, struct cairn_stream *s, struct cairn_error *err)
{
    return e->dev->ops->event_record(e->dev, e->impl, s->impl, err);
}

enum cairn_status cairn_event_wait(struct cairn_event *e, struct cairn_stream *s, struct cairn_error *err)
{
    return e->dev->ops->event_wait(e->dev, e->impl, s->impl, err);
}

int cairn_graphs_there(const struct cairn_device *dev)
{
    return dev->ops->capture_begin != NULL;
}

enum cairn_status cairn_capture_begin(struct cairn_stream *s, struct cairn_error *err)
{
    if (!cairn_graphs_there(s->dev))
        return CAIRN_BUG(err, "a capture on a device without graphs");
    return s->dev->ops->capture_begin(s->dev, s->impl, err);
}

enum cairn_status cairn_capture_end(struct cairn_stream *s, struct cairn_graph *out, struct cairn_error *err)
{
    if (out)
        *out = (struct cairn_graph){.dev = s->dev};
    return s->dev->ops->capture_end(s->dev, s->impl, out ? &out->impl : NULL, err);
}

enum cairn_status cairn_graph_launch(struct cairn_graph *g, struct cairn_stream *s, struct cairn_error *err)
{
    return g->dev->ops->graph_launch(g->dev, g->impl, s->impl, err);
}

void cairn_graph_destroy(struct cairn_graph *g)
{
    if (g->impl)
        g->dev->ops->graph_destroy(g->dev, g->impl);
    g->impl = NULL;
}

enum cairn_status cairn_tensor_view(struct cairn_tensor *out, struct cairn_buffer *buf, size_t offset, enum cairn_dtype dtype,
                                    int ndim, const int64_t *dim, struct cairn_error *err)
{
    struct cairn_tensor t = {.buf = buf, .offset = offset, .dtype = dtype, .ndim = ndim};
    size_t bytes;
    int64_t n = 1;

    if (ndim < 0 || ndim > CAIRN_MAX_DIMS)
        return CAIRN_BUG(err, "view of too many dimensions");
    for (int i = ndim - 1; i >= 0; i--) {
        t.dim[i] = dim[i];
        t.stride[i] = n;
        if (dim[i] < 0 || !cairn_mul_i64(n, dim[i], &n))
            return CAIRN_BUG(err, "view whose size overflows");
    }
    if (!cairn_mul_size((size_t)n, cairn_dtype_size(dtype), &bytes) || offset > buf->bytes || bytes > buf->bytes - offset)
        return CAIRN_BUG(err, "view beyond the end of its buffer");
    *out = t;
    return CAIRN_OK;
}

int64_t cairn_tensor_count(const struct cairn_tensor *t)
{
    int64_t n = t->buf ? 1 : 0;

    for (int i = 0; i < t->ndim; i++)
        n *= t->dim[i];
    return n;
}

size_t cairn_tensor_bytes(const struct cairn_tensor *t)
{
    return (size_t)cairn_tensor_count(t) * cairn_dtype_size(t->dtype);
}

int cairn_tensor_dense(const struct cairn_tensor *t)
{
    int64_t n = 1;

    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->dim[i] != 1 && t->stride[i] != n)
            return 0;
        n *= t->dim[i];
    }
    return 1;
}

struct cairn_tensor cairn_tensor_slice(const struct cairn_tensor *t, int axis, int64_t begin, int64_t n)
{
    struct cairn_tensor s = *t;

    assert(axis >= 0 && axis < t->ndim && begin >= 0 && n >= 0 && begin + n <= t->dim[axis]);
    s.dim[axis] = n;
    s.offset += (size_t)(begin * t->stride[axis]) * cairn_dtype_size(t->dtype);
    return s;
}

struct cairn_tensor cairn_tensor_at(const struct cairn_tensor *t, int64_t i)
{
    struct cairn_tensor s = cairn_tensor_slice(t, 0, i, 1);

    s.ndim--;
    memmove(s.dim, s.dim + 1, sizeof s.dim - sizeof s.dim[0]);
    memmove(s.stride, s.stride + 1, sizeof s.stride - sizeof s.stride[0]);
    return s;
}

struct cairn_tensor cairn_tensor_reshape(const struct cairn_tensor *t, int ndim, const int64_t *dim)
{
    struct cairn_tensor s = *t;
    int64_t n = 1;

    assert(cairn_tensor_dense(t) && ndim <= CAIRN_MAX_DIMS);
    s.ndim = ndim;
    for (int i = ndim - 1; i >= 0; i--) {
        s.dim[i] = dim[i];
        s.stride[i] = n;
        n *= dim[i];
    }
    assert(n == cairn_tensor_count(t));
    return s;
}

static enum cairn_status dense_of(const struct cairn_tensor *t, size_t bytes, struct cairn_error *err)
{
    if (!t->buf || !cairn_tensor_dense(t))
        return CAIRN_BUG(err, "copy of a tensor that is absent or not dense");
    if (cairn_tensor_bytes(t) != bytes)
        return CAIRN_BUG(err, "copy of another size than the tensor's");
    return CAIRN_OK;
}

enum cairn_status cairn_tensor_set(struct cairn_stream *s, const struct cairn_tensor *t, const void *h_src, size_t bytes,
                                   struct cairn_error *err)
{
    enum cairn_status st = dense_of(t, bytes, err);
    char *p;

    if (st != CAIRN_OK || !bytes)
        return st;
    p = cairn_buffer_open(t->buf, CAIRN_WRITE);
    st = s->dev->ops->copy_in(s->dev, s->impl, p + t->offset, h_src, bytes, err);
    cairn_buffer_close(t->buf);
    return st;
}

enum cairn_status cairn_tensor_get(struct cairn_stream *s, const struct cairn_tensor *t, void *h_dst, size_t bytes,
                                   struct cairn_error *err)
{
    enum cairn_status st = dense_of(t, bytes, err);
    char *p;

    if (st != CAIRN_OK || !bytes)
        return st;
    p = cairn_buffer_open(t->buf, CAIRN_READ);
    st = s->dev->ops->copy_out(s->dev, s->impl, h_dst, p + t->offset, bytes, err);
    if (st == CAIRN_OK)
        st = cairn_stream_wait(s, err);
    cairn_buffer_close(t->buf);
    return st;
}

enum cairn_status cairn_tensor_zero(struct cairn_stream *s, const struct cairn_tensor *t, struct cairn_error *err)
{
    enum cairn_status st = dense_of(t, cairn_tensor_bytes(t), err);
    char *p;

    if (st != CAIRN_OK || !cairn_tensor_bytes(t))
        return st;
    p = cairn_buffer_open(t->buf, CAIRN_WRITE);
    st = s->dev->ops->fill(s->dev, s->impl, p + t->offset, 0, cairn_tensor_bytes(t), err);
    cairn_buffer_close(t->buf);
    return st;
}

enum cairn_status cairn_tensor_copy(struct cairn_stream *s, const struct cairn_tensor *dst, const struct cairn_tensor *src,
                                    struct cairn_error *err)
{
    enum cairn_status st = dense_of(dst, cairn_tensor_bytes(src), err);
    char *d;
    const char *c;

    if (st == CAIRN_OK)
        st = dense_of(src, cairn_tensor_bytes(src), err);
    if (st != CAIRN_OK || !cairn_tensor_bytes(src))
        return st;
    c = cairn_buffer_open(src->buf, CAIRN_READ);
    d = cairn_buffer_open(dst->buf, CAIRN_READ | CAIRN_WRITE);
    st = s->dev->ops->copy(s->dev, s->impl, d + dst->offset, c + src->offset, cairn_tensor_bytes(src), err);
    cairn_buffer_close(dst->buf);
    cairn_buffer_close(src->buf);
    return st;
}

/* channel.c - checks what channel.h promises and passes it to the transport, as one operation of the group. */
#include "world/channel.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "base/build.h"
#include "base/checked.h"
#include "base/file.h"
#include "base/str.h"
#include "world/private.h"

#define DEVICE_FILE "cairn-nccl.so"

/* The device library's transport, in a shared object of build/lib that is opened when a GPU first needs it; NULL with a sentence. */
static const struct cairn_transport *device_transport(struct cairn_error *err)
{
    static const struct cairn_transport *found;
    char *path = found ? NULL : cairn_lib_path(DEVICE_FILE);
    void *so;

    if (found)
        return found;
    if (!path)
        CAIRN_NOMEM(err);
    else if (!cairn_path_exists(path))
        cairn_fail(err, CAIRN_EDEVICE, "%s is missing: build with CUDA and nccl.h (package libnccl-dev)", path);
    else if (!(so = dlopen(path, RTLD_NOW | RTLD_LOCAL)))
        cairn_fail(err, CAIRN_EDEVICE, "%s", dlerror());
    else if (!(found = dlsym(so, CAIRN_TRANSPORT_SYMBOL)))
        cairn_fail(err, CAIRN_EDEVICE, "%s: not a transport of this build", path);
    free(path);
    return found;
}

static const struct cairn_transport *find(const struct cairn_device *dev, struct cairn_error *err)
{
    if (cairn_transport_host.takes(dev))
        return &cairn_transport_host;
    if (cairn_starts_with(dev->name, "cuda:"))
        return device_transport(err);
    cairn_fail(err, CAIRN_EDEVICE, "no transport for device %s", dev->name);
    return NULL;
}

enum cairn_status cairn_channel_open(struct cairn_channel **out, struct cairn_group *g, struct cairn_device *dev,
                                     const struct cairn_transport *transport, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_channel *c = NULL;

    if (!transport && !(transport = find(dev, err)))
        return CAIRN_EDEVICE;
    if (transport->abi != CAIRN_TRANSPORT_ABI || !transport->takes(dev))
        TRY(cairn_fail(err, CAIRN_EDEVICE, "no transport for device %s", dev->name));
    if (!(c = calloc(1, sizeof *c)))
        TRY(CAIRN_NOMEM(err));
    c->group = g;
    c->dev = dev;
    c->transport = transport;
    TRY(cairn_world_watch_begin(g->world, "a channel", g->deadline_s, err)); /* a peer may be gone by now */
    st = transport->open(g, dev, &c->state, err);
    cairn_world_watch_end(g->world);
    TRY(st);
    c->next = cairn_world_whole(g->world)->channels;
    cairn_world_whole(g->world)->channels = c;
    *out = c;
    c = NULL;
out:
    free(c);
    return st;
}

void cairn_channel_close(struct cairn_channel *c)
{
    struct cairn_channel **p;

    if (!c)
        return;
    for (p = &cairn_world_whole(c->group->world)->channels; *p != c; p = &(*p)->next)
        ;
    *p = c->next;
    c->transport->close(c->state);
    free(c);
}

const struct cairn_group *cairn_channel_group(const struct cairn_channel *c)
{
    return c->group;
}

const char *cairn_channel_transport(const struct cairn_channel *c)
{
    return c->transport->name;
}

enum cairn_status cairn_channel_settle(struct cairn_channel *c, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    if (c->busy) {
        TRY(cairn_world_watch_begin(c->group->world, "settle", c->group->deadline_s, err)); /* NCCL does not tell that a peer is dead */
        st = c->transport->settle(c->state, err);
        cairn_world_watch_end(c->group->world);
    }
    if (st == CAIRN_OK)
        c->busy = 0;
out:
    return st;
}

/* --- checks --- */

static enum cairn_status fit(const struct cairn_channel *c, const struct cairn_tensor *t, struct cairn_error *err)
{
    if (!t->buf)
        return CAIRN_BUG(err, "an absent tensor cannot travel");
    if (t->buf->dev != c->dev)
        return cairn_fail(err, CAIRN_EBUG, "%s:%d: a tensor of device %s in a channel of %s", __FILE__, __LINE__, t->buf->dev->name,
                          c->dev->name);
    if (!cairn_tensor_dense(t))
        return CAIRN_BUG(err, "a tensor that travels must be dense");
    return CAIRN_OK;
}

/* Bytes of rows[r] rows of t's dimension 0 for each rank; they must use up t. */
static enum cairn_status rows_to_bytes(const struct cairn_tensor *t, const int64_t *rows, int size, size_t *bytes, struct cairn_error *err)
{
    size_t row = cairn_dtype_size(t->dtype);
    int64_t sum = 0;

    if (t->ndim < 1)
        return CAIRN_BUG(err, "a tensor without dimensions has no rows");
    for (int i = 1; i < t->ndim; i++)
        row *= (size_t)t->dim[i];
    for (int r = 0; r < size; r++) {
        if (rows[r] < 0 || !cairn_add_i64(sum, rows[r], &sum))
            return CAIRN_BUG(err, "a number of rows is negative or overflows");
        bytes[r] = (size_t)rows[r] * row;
    }
    if (sum != t->dim[0])
        return cairn_fail(err, CAIRN_EBUG, "%s:%d: the ranks' rows add up to %lld, the tensor has %lld", __FILE__, __LINE__,
                          (long long)sum, (long long)t->dim[0]);
    return CAIRN_OK;
}

static int same_rows(const struct cairn_tensor *a, const struct cairn_tensor *b)
{
    if (a->dtype != b->dtype || a->ndim != b->ndim)
        return 0;
    for (int i = 1; i < a->ndim; i++)
        if (a->dim[i] != b->dim[i])
            return 0;
    return 1;
}

/* 1: no byte of one is a byte of the other. */
static int apart(const struct cairn_tensor *a, const struct cairn_tensor *b)
{
    return a->buf != b->buf || a->offset + cairn_tensor_bytes(a) <= b->offset || b->offset + cairn_tensor_bytes(b) <= a->offset;
}

/* The transport's call. One that only enqueues is made an operation of the group here; host calls are one by themselves. */
#define MOVE(c, op, what, call)                                     \
    do {                                                            \
        if (!(c)->transport->settle) {                              \
            st = (call);                                            \
        } else {                                                    \
            TRY(cairn_op_begin((c)->group, (op), (what), 1, err));  \
            (c)->busy = 1;                                          \
            st = cairn_op_end((c)->group, (op), (what), (call), err); \
        }                                                           \
    } while (0)

enum cairn_status cairn_channel_bcast(struct cairn_channel *c, struct cairn_stream *s, const char *what, int root,
                                      const struct cairn_tensor *t, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(fit(c, t, err));
    if (root < 0 || root >= c->group->size)
        TRY(CAIRN_BUG(err, "broadcast from a rank that is not in the group"));
    MOVE(c, "bcast", what, c->transport->bcast(c->state, s, what, root, t, err));
out:
    return st;
}

enum cairn_status cairn_channel_allgather(struct cairn_channel *c, struct cairn_stream *s, const char *what,
                                          const struct cairn_tensor *dst, const struct cairn_tensor *src, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    size_t n = cairn_tensor_bytes(src), total, *bytes = NULL;

    TRY(fit(c, dst, err));
    TRY(fit(c, src, err));
    if (dst->dtype != src->dtype || !cairn_mul_size(n, (size_t)c->group->size, &total) || total != cairn_tensor_bytes(dst))
        TRY(CAIRN_BUG(err, "allgather: the result is not as large as the ranks' parts together"));
    if (!(bytes = malloc((size_t)c->group->size * sizeof *bytes)))
        TRY(CAIRN_NOMEM(err));
    for (int r = 0; r < c->group->size; r++)
        bytes[r] = n;
    MOVE(c, "allgather", what, c->transport->allgatherv(c->state, s, what, dst, src, bytes, err));
out:
    free(bytes);
    return st;
}

enum cairn_status cairn_channel_allgatherv(struct cairn_channel *c, struct cairn_stream *s, const char *what,
                                           const struct cairn_tensor *dst, const struct cairn_tensor *src, const int64_t *rows,
                                           struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    size_t *bytes = malloc((size_t)c->group->size * sizeof *bytes);

    if (!bytes)
        TRY(CAIRN_NOMEM(err));
    TRY(fit(c, dst, err));
    TRY(fit(c, src, err));
    TRY(rows_to_bytes(dst, rows, c->group->size, bytes, err));
    if (!same_rows(dst, src) || src->dim[0] != rows[c->group->rank])
        TRY(CAIRN_BUG(err, "allgatherv: this rank's part is not what the list of rows says"));
    MOVE(c, "allgatherv", what, c->transport->allgatherv(c->state, s, what, dst, src, bytes, err));
out:
    free(bytes);
    return st;
}

enum cairn_status cairn_channel_alltoallv(struct cairn_channel *c, struct cairn_stream *s, const char *what,
                                          const struct cairn_tensor *dst, const int64_t *recv_rows, const struct cairn_tensor *src,
                                          const int64_t *send_rows, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    size_t *sends = malloc(2 * (size_t)c->group->size * sizeof *sends), *recvs;

    if (!sends)
        TRY(CAIRN_NOMEM(err));
    recvs = sends + c->group->size;
    TRY(fit(c, dst, err));
    TRY(fit(c, src, err));
    if (!same_rows(dst, src) || !apart(dst, src))
        TRY(CAIRN_BUG(err, "alltoallv: rows of another shape, or tensors that overlap"));
    TRY(rows_to_bytes(src, send_rows, c->group->size, sends, err));
    TRY(rows_to_bytes(dst, recv_rows, c->group->size, recvs, err));
    MOVE(c, "alltoallv", what, c->transport->alltoallv(c->state, s, what, dst, recvs, src, sends, err));
out:
    free(sends);
    return st;
}

enum cairn_status cairn_channel_exchange(struct cairn_channel *c, struct cairn_stream *s, const char *what, int to,
                                         const struct cairn_tensor *src, int from, const struct cairn_tensor *dst,
                                         struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    if ((to >= 0) != (src != NULL) || (from >= 0) != (dst != NULL))
        TRY(CAIRN_BUG(err, "exchange: a peer without a tensor, or a tensor without a peer"));
    if (src)
        TRY(fit(c, src, err));
    if (dst)
        TRY(fit(c, dst, err));
    if (src && dst && !apart(src, dst))
        TRY(CAIRN_BUG(err, "exchange: tensors that overlap"));
    if (!c->transport->settle) {
        st = c->transport->exchange(c->state, s, what, to, src, from, dst, err);
    } else { /* not collective: no number of the group's, but its deadline */
        TRY(cairn_world_watch_begin(c->group->world, what, c->group->deadline_s, err));
        c->busy = 1;
        st = c->transport->exchange(c->state, s, what, to, src, from, dst, err);
        cairn_world_watch_end(c->group->world);
    }
out:
    return st;
}

/* host.c - the host transport: tensors whose memory the host can address ("cpu", "guard"), through the group's wire.
 *
 * Waits for the stream, opens the buffers, moves bytes, closes them: done when the call returns. It calls the group's
 * functions, so its moves have a sequence number and a deadline as any other.
 */
#include "world/transport.h"

#include <string.h>

#include "world/group.h"

static int host_takes(const struct cairn_device *dev)
{
    return !strcmp(dev->name, "cpu") || !strcmp(dev->name, "guard");
}

static enum cairn_status host_open(struct cairn_group *g, struct cairn_device *dev, void **state, struct cairn_error *err)
{
    (void)dev;
    (void)err;
    *state = g;
    return CAIRN_OK;
}

static void host_close(void *state)
{
    (void)state;
}

static char *open_tensor(const struct cairn_tensor *t, int access)
{
    return (char *)cairn_buffer_open(t->buf, access) + t->offset;
}

/* Opens what is read and what is written; two tensors of one buffer are one bracket. Either may be NULL. */
static void open_pair(const struct cairn_tensor *src, const char **p, const struct cairn_tensor *dst, char **d)
{
    int shared = src && dst && src->buf == dst->buf;

    *d = dst ? open_tensor(dst, CAIRN_READ | CAIRN_WRITE) : NULL;
    *p = shared ? *d - dst->offset + src->offset : src ? open_tensor(src, CAIRN_READ) : NULL;
}

static void close_pair(const struct cairn_tensor *src, const struct cairn_tensor *dst)
{
    if (src && !(dst && src->buf == dst->buf))
        cairn_buffer_close(src->buf);
    if (dst)
        cairn_buffer_close(dst->buf);
}

static enum cairn_status host_bcast(void *state, struct cairn_stream *s, const char *what, int root, const struct cairn_tensor *t,
                                    struct cairn_error *err)
{
    struct cairn_group *g = state;
    enum cairn_status st = cairn_stream_wait(s, err);
    char *p;

    if (st != CAIRN_OK)
        return st;
    p = open_tensor(t, g->rank == root ? CAIRN_READ : CAIRN_READ | CAIRN_WRITE);
    st = cairn_group_bcast(g, what, root, p, cairn_tensor_bytes(t), err);
    cairn_buffer_close(t->buf);
    return st;
}

static enum cairn_status host_allgatherv(void *state, struct cairn_stream *s, const char *what, const struct cairn_tensor *dst,
                                         const struct cairn_tensor *src, const size_t *bytes, struct cairn_error *err)
{
    enum cairn_status st = cairn_stream_wait(s, err);
    const char *p;
    char *d;

    if (st != CAIRN_OK)
        return st;
    open_pair(src, &p, dst, &d);
    st = cairn_group_allgatherv(state, what, p, bytes, d, err);
    close_pair(src, dst);
    return st;
}

static enum cairn_status host_alltoallv(void *state, struct cairn_stream *s, const char *what, const struct cairn_tensor *dst, const size_t *recvs,
                                        const struct cairn_tensor *src, const size_t *sends, struct cairn_error *err)
{
    enum cairn_status st = cairn_stream_wait(s, err);
    const char *p;
    char *d;

    if (st != CAIRN_OK)
        return st;
    open_pair(src, &p, dst, &d);
    st = cairn_group_alltoallv(state, what, p, sends, d, recvs, err);
    close_pair(src, dst);
    return st;
}

static enum cairn_status host_exchange(void *state, struct cairn_stream *s, const char *what, int to, const struct cairn_tensor *src, int from,
                                       const struct cairn_tensor *dst, struct cairn_error *err)
{
    enum cairn_status st = cairn_stream_wait(s, err);
    const char *p;
    char *d;

    if (st != CAIRN_OK)
        return st;
    open_pair(src, &p, dst, &d);
    st = cairn_group_exchange(state, what, to, p, src ? cairn_tensor_bytes(src) : 0, from, d, dst ? cairn_tensor_bytes(dst) : 0, err);
    close_pair(src, dst);
    return st;
}

const struct cairn_transport cairn_transport_host = {
    .abi = CAIRN_TRANSPORT_ABI,
    .name = "host",
    .takes = host_takes,
    .open = host_open,
    .close = host_close,
    .bcast = host_bcast,
    .allgatherv = host_allgatherv,
    .alltoallv = host_alltoallv,
    .exchange = host_exchange,
};

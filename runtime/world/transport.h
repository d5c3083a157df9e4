/* transport.h - what moves tensors between ranks: the table behind channel.h.
 *
 * Two kinds are foreseen: the host transport here, which waits for the stream and moves host bytes through the group's
 * wire; and device libraries (NCCL) in shared objects of their own, which enqueue on the stream and use the group only
 * to meet (their unique id is broadcast through it). All of them move bytes; none adds.
 *
 * A transport without settle makes its own operations of the group (sequence number, deadline); for the others the channel
 * does. Tensors that reach a transport are checked: dense, of one device, sizes as said. bytes[size] are per rank, in rank order.
 */
#ifndef CAIRN_WORLD_TRANSPORT_H
#define CAIRN_WORLD_TRANSPORT_H

#include <stddef.h>

#include "base/buffer.h"
#include "base/status.h"

#define CAIRN_TRANSPORT_ABI 1
#define CAIRN_TRANSPORT_SYMBOL "cairn_transport" /* a const struct cairn_transport of a shared object */

struct cairn_group;

struct cairn_transport {
    int abi;          /* CAIRN_TRANSPORT_ABI */
    const char *name; /* "host", "nccl" */

    /* 1: moves memory of this device. */
    int (*takes)(const struct cairn_device *dev);
    /* Collective over g. */
    enum cairn_status (*open)(struct cairn_group *g, struct cairn_device *dev, void **state, struct cairn_error *err);
    void (*close)(void *state);
    /* From the watchdog's thread: break off whatever is in flight. NULL: nothing to break. */
    void (*abort)(void *state);
    /* Host waits until what was enqueued is done, and asks for asynchronous errors. NULL: calls are done on return.
     * The world calls it before any operation of the wire, which must not block while device work is in flight. */
    enum cairn_status (*settle)(void *state, struct cairn_error *err);

    enum cairn_status (*bcast)(void *state, struct cairn_stream *s, const char *what, int root, const struct cairn_tensor *t,
                               struct cairn_error *err);
    /* src may be a view of its own place in dst. */
    enum cairn_status (*allgatherv)(void *state, struct cairn_stream *s, const char *what, const struct cairn_tensor *dst,
                                    const struct cairn_tensor *src, const size_t *bytes, struct cairn_error *err);
    enum cairn_status (*alltoallv)(void *state, struct cairn_stream *s, const char *what, const struct cairn_tensor *dst, const size_t *recvs,
                                   const struct cairn_tensor *src, const size_t *sends, struct cairn_error *err);
    /* to or from -1: none, and its tensor NULL. */
    enum cairn_status (*exchange)(void *state, struct cairn_stream *s, const char *what, int to, const struct cairn_tensor *src, int from,
                                  const struct cairn_tensor *dst, struct cairn_error *err);
};

extern const struct cairn_transport cairn_transport_host;

#endif

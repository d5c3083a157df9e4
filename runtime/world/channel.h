/* channel.h - a group and a device: the same collectives for tensors.
 *
 * Calls are ordered on the stream. With a transport that works on the device they may return before the data has
 * moved; whoever needs it on the host waits for the stream (or reads with cairn_tensor_get, which does). Tensors must be
 * dense and live on the channel's device; what violates that is CAIRN_EBUG before anything is sent. A dimension 0 of 0
 * rows is fine everywhere. Nothing is added up: reductions are alltoallv or allgather plus an op of kernels.h.
 */
#ifndef CAIRN_WORLD_CHANNEL_H
#define CAIRN_WORLD_CHANNEL_H

#include "base/buffer.h"
#include "base/status.h"
#include "world/group.h"
#include "world/transport.h"

struct cairn_channel;

/* Collective over g, which must outlive the channel. transport NULL: the first one known that takes the device;
 * CAIRN_EDEVICE if there is none. */
enum cairn_status cairn_channel_open(struct cairn_channel **out, struct cairn_group *g, struct cairn_device *dev,
                                     const struct cairn_transport *transport, struct cairn_error *err);
void cairn_channel_close(struct cairn_channel *c); /* collective; NULL is fine */
const struct cairn_group *cairn_channel_group(const struct cairn_channel *c);
const char *cairn_channel_transport(const struct cairn_channel *c); /* its name: belongs into fingerprints */

/* Same shape on all ranks. */
enum cairn_status cairn_channel_bcast(struct cairn_channel *c, struct cairn_stream *s, const char *what, int root,
                                      const struct cairn_tensor *t, struct cairn_error *err);
/* dst has size times the bytes of src, the same on all ranks; src may be its own place in dst. */
enum cairn_status cairn_channel_allgather(struct cairn_channel *c, struct cairn_stream *s, const char *what,
                                          const struct cairn_tensor *dst, const struct cairn_tensor *src, struct cairn_error *err);
/* rows[size] of dimension 0 from each rank, in rank order; the same array on all ranks; src has rows[rank]. */
enum cairn_status cairn_channel_allgatherv(struct cairn_channel *c, struct cairn_stream *s, const char *what,
                                           const struct cairn_tensor *dst, const struct cairn_tensor *src, const int64_t *rows,
                                           struct cairn_error *err);
/* send_rows[size] of src's dimension 0 go to each rank, recv_rows[size] come from each, in rank order. */
enum cairn_status cairn_channel_alltoallv(struct cairn_channel *c, struct cairn_stream *s, const char *what,
                                          const struct cairn_tensor *dst, const int64_t *recv_rows, const struct cairn_tensor *src,
                                          const int64_t *send_rows, struct cairn_error *err);
/* Point to point, as cairn_group_exchange: -1 and NULL for none. */
enum cairn_status cairn_channel_exchange(struct cairn_channel *c, struct cairn_stream *s, const char *what, int to,
                                         const struct cairn_tensor *src, int from, const struct cairn_tensor *dst,
                                         struct cairn_error *err);
/* Host waits for everything enqueued on this channel. */
enum cairn_status cairn_channel_settle(struct cairn_channel *c, struct cairn_error *err);

#endif

/* upload.h - bytes to a device, as fast as several cores bring them.
 *
 * A copy from memory that is not pinned goes at the speed of the one core that the driver copies with. Here some threads have pieces filled into
 * pinned memory of their own, from which the device takes them while others fill. Where nothing can be pinned, or there is one core, it is one piece
 * after the other.
 */
#ifndef CAIRN_BASE_UPLOAD_H
#define CAIRN_BASE_UPLOAD_H

#include "base/buffer.h"

#define CAIRN_UPLOAD_PIECE ((size_t)4 << 20) /* some times what a copy's start costs, and small for a cache */

/* Bytes [at, at + n) of what is uploaded to h_dst: a whole piece, or the rest. Called from several threads at a time. */
typedef enum cairn_status cairn_upload_fill_fn(void *arg, size_t at, size_t n, void *h_dst, struct cairn_error *err);

/* `bytes` bytes to the beginning of dst, which nobody uses meanwhile. They are there when it returns CAIRN_OK; what fill fails with is returned.
 * Waits for the stream first. */
enum cairn_status cairn_upload(struct cairn_stream *s, struct cairn_buffer *dst, size_t bytes, cairn_upload_fill_fn *fill, void *arg,
                               struct cairn_error *err);

#endif

/* upload.h - host memory to a device, as fast as several cores bring it.
 *
 * A copy from memory that is not pinned goes at the speed of the one core that the driver copies with. Here some threads copy pieces into
 * pinned memory of their own, from which the device takes them while others copy. Where nothing can be pinned, or there is one core, it is one copy.
 */
#ifndef CAIRN_BASE_UPLOAD_H
#define CAIRN_BASE_UPLOAD_H

#include "base/buffer.h"

/* `bytes` bytes from h_src to the beginning of dst, which nobody uses meanwhile. They are there when it returns. Waits for the stream first. */
enum cairn_status cairn_upload(struct cairn_stream *s, struct cairn_buffer *dst, const void *h_src, size_t bytes, struct cairn_error *err);

#endif

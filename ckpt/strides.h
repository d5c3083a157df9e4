/* strides.h - a strided tensor as a sequence of runs without gaps, for copies to and from dense host memory.
 *
 * Run r (0 <= r < count / run length) lies at cairn_strides_offset; the runs in order are the tensor in row-major order.
 */
#ifndef CAIRN_CKPT_STRIDES_H
#define CAIRN_CKPT_STRIDES_H

#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"

/* Bytes of one run: the trailing dimensions that lie without gaps. *dims: how many dimensions are left to step through. */
static inline int64_t cairn_strides_run(const struct cairn_tensor *t, int *dims)
{
    int64_t n = 1;
    int d = t->ndim;

    while (d > 0 && (t->dim[d - 1] == 1 || t->stride[d - 1] == n)) {
        n *= t->dim[d - 1];
        d--;
    }
    *dims = d;
    return n * (int64_t)cairn_dtype_size(t->dtype);
}

/* Byte offset of run r in the tensor's buffer. */
static inline size_t cairn_strides_offset(const struct cairn_tensor *t, int dims, int64_t r)
{
    int64_t at = 0;

    for (int d = dims - 1; d >= 0; d--) {
        at += r % t->dim[d] * t->stride[d];
        r /= t->dim[d];
    }
    return t->offset + (size_t)at * cairn_dtype_size(t->dtype);
}

/* Bytes [done, done + *n) of the tensor in row-major order, as many as there are and fit into `room`, into dense host memory, where they are when
 * it returns. d_p: what cairn_buffer_open gave for the tensor's buffer. */
static inline enum cairn_status cairn_strides_gather(struct cairn_stream *s, const struct cairn_tensor *t, const unsigned char *d_p, int64_t done,
                                                     unsigned char *h_dst, int64_t room, int64_t *n, struct cairn_error *err)
{
    int64_t total = (int64_t)cairn_tensor_bytes(t), run;
    enum cairn_status st = CAIRN_OK;
    int dims;

    run = cairn_strides_run(t, &dims);
    for (*n = 0; *n < room && done + *n < total;) {
        int64_t in = (done + *n) % run, k = run - in < room - *n ? run - in : room - *n;

        TRY(s->dev->ops->copy_out(s->dev, s->impl, h_dst + *n, d_p + cairn_strides_offset(t, dims, (done + *n) / run) + in, (size_t)k, err));
        *n += k;
    }
    TRY(cairn_stream_wait(s, err));
out:
    return st;
}

#endif

/* carve.h - many tensors out of one buffer, by a table of offsets.
 *
 * The same function carves twice: once with no buffer, to learn how many bytes it wants (high), and then, as often as the
 * number of rows changes, from the buffer that was made once. Carving allocates nothing and touches no memory. Going back to an
 * earlier mark lets tensors that never live together share bytes; high remembers the deepest point.
 */
#ifndef CAIRN_MODEL_CARVE_H
#define CAIRN_MODEL_CARVE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"

struct cairn_carve {
    struct cairn_buffer *buf; /* borrowed; NULL while measuring */
    size_t at, high;          /* bytes: next free, deepest so far */
    int overflow;             /* a product did not fit: the sizes are absurd */
};

/* A dense tensor at the next multiple of 64 bytes. */
struct cairn_tensor cairn_carve1(struct cairn_carve *c, enum cairn_dtype t, int64_t a);
struct cairn_tensor cairn_carve2(struct cairn_carve *c, enum cairn_dtype t, int64_t a, int64_t b);
struct cairn_tensor cairn_carve3(struct cairn_carve *c, enum cairn_dtype t, int64_t a, int64_t b, int64_t d);

#endif

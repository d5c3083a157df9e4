/* tiles.h - one slice of a tensor in a shard, and how its bytes are cut into digest tiles.
 *
 * The tile rule itself (seed, numbering, header term) is that of base/digest.h; this file does the geometry: which
 * tile of the *global* tensor a byte of a slice belongs to. Nothing here does I/O or owns tensor memory.
 *
 * Stacks. A tensor may be a stack [E, d1, ..., dn-1] whose elements of dimension 0 are tensors of their own under
 * other names (`each` = "a.*.b": one '*', replaced by the index in decimal). Its logical digest is then the sum of
 * the digests of those E tensors [d1, ..., dn-1] by their own names, so that a stack and its separate parts are the
 * same thing. tile_bytes belongs to both alike.
 *
 * A part [offset, offset + local) is legal if it cuts the last dimension at multiples of tile_bytes (or at its end).
 */
#ifndef CAIRN_CKPT_TILES_H
#define CAIRN_CKPT_TILES_H

#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/digest.h"
#include "base/status.h"

#define CAIRN_TILE_MAX 4096
#define CAIRN_TENSOR_NAME_MAX 255

/* A part of a global tensor, dense row-major, little-endian. Filled in by whoever declares it, except for what is
 * marked (shard): that is filled in by the writer of the shard, or comes from a manifest. */
struct cairn_slice {
    const char *name;                /* dataset name: [A-Za-z0-9_][A-Za-z0-9._:+@-]{0,254} */
    const char *each;                /* NULL, or the names of a stack's elements: the same alphabet and one '*' */
    enum cairn_dtype dtype;
    int ndim;                        /* 0 (scalar) to CAIRN_MAX_DIMS */
    int64_t shape[CAIRN_MAX_DIMS];   /* of the global tensor, elements; 0 is allowed */
    int64_t offset[CAIRN_MAX_DIMS];  /* of this part in it */
    int64_t local[CAIRN_MAX_DIMS];   /* shape of this part */
    int64_t tile_bytes;              /* width of a tile; 0 when declared: cairn_tile_width's */
    int64_t at;                      /* (shard) byte offset of the part in its file; 0 if it is empty */
    int64_t first;                   /* (shard) index of its first tile in the shard's tile table; -1: no table */
    struct cairn_digest sum;         /* (shard) sum of the digests of its tiles */
};

/* min(4096, bytes of a row of the last dimension), a multiple of the element size; 0-d and empty rows: element size. */
int64_t cairn_tile_width(enum cairn_dtype dtype, int ndim, const int64_t *shape);

int cairn_tensor_name_ok(const char *name); /* 1: may name a dataset */

/* A slice that is the whole tensor. */
struct cairn_slice cairn_slice_whole(const char *name, enum cairn_dtype dtype, int ndim, const int64_t *shape);
/* Rows [begin, begin + n) of dimension `axis` of a whole tensor. */
struct cairn_slice cairn_slice_part(const struct cairn_slice *whole, int axis, int64_t begin, int64_t n);

/* The geometry, with every product checked. `slice` is borrowed. */
struct cairn_tiling {
    const struct cairn_slice *slice;
    int64_t esize;      /* bytes of an element */
    int64_t bytes;      /* of the part */
    int64_t rows;       /* of the part: product of all local dimensions but the last */
    int64_t row_bytes;  /* of the part's row */
    int64_t tile_bytes; /* width */
    int64_t per_row;    /* tiles in a row of the part */
    int64_t tiles;      /* rows * per_row */
    int64_t global_per_row; /* tiles in a row of the global tensor */
    int64_t first_col;  /* tile column of the part's first byte in the global row */
    uint64_t seed;      /* of the name; a stack's are made on the way */
};

/* Checks the slice (name, dtype, bounds, overflow, legal cut) and fills in t. CAIRN_EDATA names `where`, the tensor
 * and both numbers. */
enum cairn_status cairn_tiling_init(struct cairn_tiling *t, const struct cairn_slice *s, const char *where, struct cairn_error *err);

/* Byte range of tile i (0 <= i < tiles) in the part: *at, and the length as result. */
int64_t cairn_tiling_tile(const struct cairn_tiling *t, int64_t i, int64_t *at);
/* Tile that holds byte `at` of the part. */
int64_t cairn_tiling_of_byte(const struct cairn_tiling *t, int64_t at);
/* Digests of tiles first .. first + n - 1, whose bytes start at p, one after the other; out (n) may be NULL; their
 * sum is the result. */
struct cairn_digest cairn_tiling_hash(const struct cairn_tiling *t, int64_t first, int64_t n, const void *p,
                                      struct cairn_digest *out);
/* The header terms of the *global* tensor (one; a stack has one for each element): add once per tensor, not per part. */
struct cairn_digest cairn_tiling_header(const struct cairn_tiling *t);

/* Logical digest of a whole tensor that lies in host memory. */
enum cairn_status cairn_tensor_digest(const struct cairn_slice *whole, const void *h_p, struct cairn_digest *out,
                                      struct cairn_error *err);

#endif

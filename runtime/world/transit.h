/* transit.h - the handover plan: which bytes of which tensor go from which holder to which place, each byte once.
 *
 * Two tables go in. What is *held*: parts of tensors (boxes of the global shape, dense in a holder's memory), several holders may
 * have the same. What is *wanted*: parts by place; a place is one memory that samplers read: a node's shared memory, a GPU. A plan
 * comes out, the same on every rank that computes it from the same tables:
 *
 *     piece   a box that one holder has whole and the same places want whole: `blocks` runs of `n` elements, one step apart
 *     lane    the pieces that go from one holder to one set of places, one after the other: contiguous on the wire
 *     chunk   consecutive pieces of a lane, at most chunk_bytes of them: what is cast, sent and digested at a time; a lane's first
 *             and last ones are smaller, so that sending begins soon and ends with little to look at
 *     drop    where a piece lies in one of its places
 *
 * Of several holders the least burdened sends (ties: the lowest). Data parallel copies, expert parallel slices and rows of a
 * sharded optimiser are parts like any other, and so are tensor and pipeline slices: they add rows to the tables and nothing here.
 * An alias is a tensor by another name (`of`): wanted parts of it are parts of that tensor, and a place that wants both gets the
 * bytes once. Bytes count as they travel (the tensor's dtype, not the holder's).
 *
 * Pure functions: no ranks, no memory but the plan's own, which the caller frees. A box is cut only between whole rows of
 * the innermost dimension that its pieces share, so a piece never cuts a digest tile (ckpt/tiles.h) that its parts do not.
 */
#ifndef CAIRN_WORLD_TRANSIT_H
#define CAIRN_WORLD_TRANSIT_H

#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/digest.h"
#include "base/status.h"

struct cairn_transit_tensor {
    const char *name; /* borrowed */
    enum cairn_dtype dtype; /* as it travels, and as every place holds it */
    int ndim;
    int64_t dim[CAIRN_MAX_DIMS];
    int of; /* index of the tensor whose bytes these are; its own index, or -1: not an alias */
};

struct cairn_transit_part {
    int owner;  /* number of the holder, or of the place; the two are counted apart */
    int tensor;
    int64_t offset[CAIRN_MAX_DIMS], local[CAIRN_MAX_DIMS];
    size_t at;              /* byte in the owner's memory */
    enum cairn_dtype dtype; /* as it lies there; a wanted part's is the tensor's */
};

struct cairn_transit_drop {
    int place;
    size_t at;    /* bytes from the start of the place's memory to the first element */
    int64_t step; /* elements from one block to the next */
};

struct cairn_transit_piece {
    int tensor;
    enum cairn_dtype held;                                    /* the holder's dtype */
    int64_t offset[CAIRN_MAX_DIMS], local[CAIRN_MAX_DIMS];    /* box of the global tensor */
    int64_t blocks, n;                                        /* runs of elements */
    size_t src;                                               /* byte in the holder's memory */
    int64_t src_step;                                         /* elements between blocks there */
    size_t wire;                                              /* byte in the lane; blocks lie close there */
    int joined;                                               /* 1: what is between it and the piece before, if anything, is nobody's */
    struct cairn_transit_drop *drop;                             /* one for each place of the lane, in its order; owned by the plan */
};

struct cairn_transit_chunk {
    int lane, piece, pieces; /* its pieces: [piece, piece + pieces) */
    size_t wire, bytes;      /* in the lane */
};

struct cairn_transit_lane {
    int holder, places, *place; /* ascending */
    int piece, pieces, chunk, chunks;
    size_t bytes;
};

struct cairn_transit {
    int tensors, lanes, pieces, chunks;
    struct cairn_transit_lane *lane;   /* by holder, then by places */
    struct cairn_transit_piece *piece; /* lane by lane, inside one in order of tensor and box */
    struct cairn_transit_chunk *chunk; /* lane by lane */
    size_t wire_bytes;   /* over all lanes: what leaves the holders */
    size_t unique_bytes; /* of tensors wanted anywhere, each byte once */
    size_t named_bytes;  /* the same if every alias were a tensor of its own */
    struct cairn_digest digest; /* of everything above: two sides that compare it have the same plan */
    void *memory;
};

#define CAIRN_TRANSIT_CHUNK ((size_t)64 << 20)

/* CAIRN_EDATA names the tensor and rows that are wanted and that nobody holds; CAIRN_EBUG: a part outside of its tensor. chunk_bytes 0:
 * CAIRN_TRANSIT_CHUNK. */
enum cairn_status cairn_transit_create(struct cairn_transit *p, const struct cairn_transit_tensor *tensor, int tensors,
                                       const struct cairn_transit_part *held, int helds, const struct cairn_transit_part *wanted, int wanteds,
                                       size_t chunk_bytes, struct cairn_error *err);
void cairn_transit_free(struct cairn_transit *p);
/* 1: in the memory of places[k] of its lane the chunk lies as on the wire, so that it may land there: *at is where. */
int cairn_transit_lands(const struct cairn_transit *p, const struct cairn_transit_chunk *c, int k, size_t *at);

#endif

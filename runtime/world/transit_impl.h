/* transit_impl.h - what the files of a plan share: transit.c (cells and their holders), transit_lanes.c (lanes and chunks). Nobody
 * else includes it. */
#ifndef CAIRN_WORLD_TRANSIT_IMPL_H
#define CAIRN_WORLD_TRANSIT_IMPL_H

#include "world/transit.h"

#define GAP   64 /* below this, padding between two parts may be sent so that they land as they lie */
#define ALIGN 16 /* of a piece on the wire */
#define DIMS  CAIRN_MAX_DIMS

struct box {
    int64_t offset[DIMS], local[DIMS];
};

/* A piece that is not in its lane yet. */
struct raw {
    int tensor, held; /* index into the held parts */
    struct box box;
    int first, places; /* of its places in maker.place: indexes into the wanted parts, ascending by owner */
};

struct maker {
    const struct cairn_transit_tensor *tensor;
    const struct cairn_transit_part *held, *wanted;
    int tensors, helds, wanteds, holders;
    size_t chunk_bytes, gap; /* gap: power of two at whose multiples every wanted part begins, GAP at most */
    uint64_t *load;          /* bytes given to each holder */
    struct raw *raw;
    int raws, raw_room;
    int *place;
    int places, place_room;
    struct cairn_error *err;
};

/* Elements from index i of dimension d to the next, in a part that is dense. */
int64_t cairn_transit_stride(const struct cairn_transit_part *p, int ndim, int d);
/* Where the box begins in the part's memory. */
size_t cairn_transit_begin(const struct cairn_transit_part *p, const struct box *b, int ndim);
/* First dimension of the runs that all memories of a raw piece have in common; *even: blocks of them are one step apart in each. */
int cairn_transit_run(const struct maker *m, const struct raw *r, int *even);

/* transit_lanes.c: m->raw into lanes, pieces and chunks; then the plan's digest. */
enum cairn_status cairn_transit_lanes(struct maker *m, struct cairn_transit *p);
enum cairn_status cairn_transit_sum(struct cairn_transit *p, const struct cairn_transit_tensor *tensor, struct cairn_error *err);

#endif

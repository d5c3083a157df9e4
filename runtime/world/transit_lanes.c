/* transit_lanes.c - raw pieces into lanes, lanes into chunks; and the plan's digest. */
#include <stdlib.h>
#include <string.h>

#include "world/transit_impl.h"

#define EDGE 8 /* the smallest chunk of a lane, of a whole one */

/* ---- lanes ---------------------------------------------------------------------------------------------------------------- */

static int places_order(const struct maker *m, const struct raw *x, const struct raw *y)
{
    for (int i = 0; i < x->places && i < y->places; i++) {
        int a = m->wanted[m->place[x->first + i]].owner, b = m->wanted[m->place[y->first + i]].owner;

        if (a != b)
            return a < b ? -1 : 1;
    }
    return (x->places > y->places) - (x->places < y->places);
}

static int lane_order(const void *a, const void *b, void *arg)
{
    const struct raw *x = a, *y = b;
    const struct maker *m = arg;
    int hx = m->held[x->held].owner, hy = m->held[y->held].owner, c;

    if (hx != hy)
        return hx < hy ? -1 : 1;
    if ((c = places_order(m, x, y)))
        return c;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    for (int d = 0; d < DIMS; d++)
        if (x->box.offset[d] != y->box.offset[d])
            return x->box.offset[d] < y->box.offset[d] ? -1 : 1;
    return 0;
}

static void fill_piece(const struct maker *m, const struct raw *r, struct cairn_transit_piece *q, struct cairn_transit_drop *drop)
{
    const struct cairn_transit_tensor *t = &m->tensor[r->tensor];
    const struct cairn_transit_part *h = &m->held[r->held];
    int even, d = cairn_transit_run(m, r, &even);

    *q = (struct cairn_transit_piece){.tensor = r->tensor, .held = h->dtype, .blocks = 1, .n = 1, .drop = drop};
    memcpy(q->offset, r->box.offset, sizeof q->offset);
    memcpy(q->local, r->box.local, sizeof q->local);
    for (int k = 0; k < t->ndim; k++)
        *(k < d ? &q->blocks : &q->n) *= r->box.local[k];
    q->src = cairn_transit_begin(h, &r->box, t->ndim);
    q->src_step = d > 0 ? cairn_transit_stride(h, t->ndim, d - 1) : 0;
    for (int i = 0; i < r->places; i++) {
        const struct cairn_transit_part *w = &m->wanted[m->place[r->first + i]];

        drop[i] = (struct cairn_transit_drop){w->owner, cairn_transit_begin(w, &r->box, t->ndim),
                                              d > 0 ? cairn_transit_stride(w, t->ndim, d - 1) : 0};
    }
}

static size_t piece_bytes(const struct cairn_transit_piece *q, const struct cairn_transit_tensor *tensor)
{
    return (size_t)(q->blocks * q->n) * cairn_dtype_size(tensor[q->tensor].dtype);
}

/* Does a end its part in every place, and does b begin one there? What lies between is nobody's then if it is shorter than m->gap.
 */
static int part_after_part(const struct maker *m, const struct raw *a, const struct raw *b)
{
    for (int i = 0; i < a->places; i++) {
        const struct cairn_transit_part *p = &m->wanted[m->place[a->first + i]], *q = &m->wanted[m->place[b->first + i]];

        for (int d = 0; d < m->tensor[a->tensor].ndim; d++)
            if (a->box.offset[d] + a->box.local[d] != p->offset[d] + p->local[d])
                return 0;
        for (int d = 0; d < m->tensor[b->tensor].ndim; d++)
            if (b->box.offset[d] != q->offset[d])
                return 0;
    }
    return 1;
}

/* Where the piece stands on the wire behind `end` bytes, the last of which are those of the piece before it; q->joined as there is
 * nothing between the two in any place that is another's. */
static size_t wire_after(const struct maker *m, const struct raw *r, const struct cairn_transit_piece *prev, size_t end,
                         struct cairn_transit_piece *q)
{
    if (prev && prev->blocks == 1 && q->blocks == 1) {
        size_t there = prev->drop[0].at + (end - prev->wire), gap = q->drop[0].at - there;

        q->joined = q->drop[0].at >= there && (!gap || (gap < m->gap && part_after_part(m, r - 1, r)));
        if (q->joined)
            return end + gap;
    }
    return (end + ALIGN - 1) / ALIGN * ALIGN;
}

/* Bytes of the raw pieces from i on that go one way. */
static size_t lane_bytes(const struct maker *m, int i)
{
    const struct raw *first = &m->raw[i];
    size_t sum = 0;

    for (; i < m->raws && m->held[m->raw[i].held].owner == m->held[first->held].owner && !places_order(m, first, &m->raw[i]); i++) {
        const struct cairn_transit_tensor *t = &m->tensor[m->raw[i].tensor];
        size_t bytes = cairn_dtype_size(t->dtype);

        for (int d = 0; d < t->ndim; d++)
            bytes *= (size_t)m->raw[i].box.local[d];
        sum += bytes;
    }
    return sum;
}

/* How many bytes the chunk that begins after `done` bytes of a lane of `total` may have. The first ones are small, so that sending
 * begins soon, and grow; the last ones halve, so that little is left to be summed up when the last has come. */
static size_t chunk_room(const struct maker *m, size_t done, size_t total)
{
    size_t least = m->chunk_bytes / EDGE, rest = total > done ? total - done : 0,
           room = done + least < rest / 2 ? done + least : rest / 2;

    room = room < least ? least : room;
    return room < m->chunk_bytes ? room : m->chunk_bytes;
}

enum cairn_status cairn_transit_lanes(struct maker *m, struct cairn_transit *p)
{
    struct cairn_transit_drop *drop;
    size_t drops = 0, room = 0, total = 0, most = 0;
    int *place;

    for (int i = 0; i < m->raws; i++)
        room += (size_t)m->raw[i].places;
    p->piece = calloc((size_t)m->raws + 1, sizeof *p->piece);
    p->chunk = calloc((size_t)m->raws + 1, sizeof *p->chunk);
    p->lane = calloc((size_t)m->raws + 1, sizeof *p->lane);
    p->memory = malloc((room + 1) * (sizeof *drop + sizeof *place));
    if (!p->piece || !p->chunk || !p->lane || !p->memory)
        return CAIRN_NOMEM(m->err);
    drop = p->memory;
    place = (int *)(drop + room + 1);
    qsort_r(m->raw, (size_t)m->raws, sizeof *m->raw, lane_order, m);
    for (int i = 0; i < m->raws; i++) {
        const struct raw *r = &m->raw[i];
        struct cairn_transit_lane *l = p->lanes ? &p->lane[p->lanes - 1] : NULL;
        struct cairn_transit_chunk *c = p->chunks ? &p->chunk[p->chunks - 1] : NULL;
        struct cairn_transit_piece *q = &p->piece[i], *prev = NULL;
        size_t bytes;

        fill_piece(m, r, q, drop + drops);
        drops += (size_t)r->places;
        bytes = piece_bytes(q, m->tensor);
        if (!l || l->holder != m->held[r->held].owner || places_order(m, &m->raw[l->piece], r)) {
            l = &p->lane[p->lanes++];
            *l = (struct cairn_transit_lane){
                .holder = m->held[r->held].owner, .places = r->places, .place = place, .piece = i, .chunk = p->chunks};
            for (int k = 0; k < r->places; k++)
                *place++ = q->drop[k].place;
            c = NULL;
            total = lane_bytes(m, i);
        } else
            prev = q - 1;
        q->wire = wire_after(m, r, prev, l->bytes, q);
        if (!c || q->wire + bytes - c->wire > most) {
            most = chunk_room(m, q->wire, total);
            c = &p->chunk[p->chunks++];
            *c = (struct cairn_transit_chunk){.lane = p->lanes - 1, .piece = i, .wire = q->wire};
            l->chunks++;
        }
        c->pieces++;
        c->bytes = q->wire + bytes - c->wire;
        l->pieces++;
        l->bytes = q->wire + bytes;
    }
    p->pieces = m->raws;
    for (int i = 0; i < p->lanes; i++)
        p->wire_bytes += p->lane[i].bytes;
    return CAIRN_OK;
}

/* ---- digest ------------------------------------------------------------------------------------------------------------------ */

static void put(struct cairn_hasher *h, int64_t v)
{
    cairn_hasher_add(h, &v, sizeof v);
}

enum cairn_status cairn_transit_sum(struct cairn_transit *p, const struct cairn_transit_tensor *tensor, struct cairn_error *err)
{
    struct cairn_hasher *h = cairn_hasher_create();

    if (!h)
        return CAIRN_NOMEM(err);
    for (int i = 0; i < p->tensors; i++) {
        cairn_hasher_add(h, tensor[i].name, strlen(tensor[i].name) + 1);
        put(h, tensor[i].dtype);
        put(h, tensor[i].ndim);
        put(h, tensor[i].of);
        for (int d = 0; d < tensor[i].ndim; d++)
            put(h, tensor[i].dim[d]);
    }
    for (int i = 0; i < p->lanes; i++) {
        put(h, p->lane[i].holder);
        put(h, p->lane[i].places);
        for (int k = 0; k < p->lane[i].places; k++)
            put(h, p->lane[i].place[k]);
        for (int j = p->lane[i].piece; j < p->lane[i].piece + p->lane[i].pieces; j++) {
            const struct cairn_transit_piece *q = &p->piece[j];

            put(h, q->tensor);
            put(h, q->blocks);
            put(h, q->n);
            put(h, (int64_t)q->wire);
            for (int d = 0; d < DIMS; d++)
                put(h, q->offset[d]);
            for (int k = 0; k < p->lane[i].places; k++) {
                put(h, (int64_t)q->drop[k].at);
                put(h, q->drop[k].step);
            }
        }
    }
    for (int i = 0; i < p->chunks; i++) {
        put(h, p->chunk[i].piece);
        put(h, p->chunk[i].pieces);
    }
    p->digest = cairn_hasher_result(h);
    cairn_hasher_destroy(h);
    return CAIRN_OK;
}

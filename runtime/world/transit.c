/* transit.c - makes the plan of transit.h: tensor by tensor the wanted boxes are cut where anybody's box ends, each cell finds a holder, cells
 * that go the same way are put together again, and what is too large for a chunk is cut at rows. Then everything is sorted into lanes.
 */
#include "world/transit.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

#define GAP  64 /* below this, padding between two parts may be sent so that they land as they lie */
#define ALIGN 16 /* of a piece on the wire */
#define DIMS CAIRN_MAX_DIMS

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
    uint64_t *load; /* bytes given to each holder */
    struct raw *raw;
    int raws, raw_room;
    int *place;
    int places, place_room;
    struct cairn_error *err;
};

static int grow(void **p, int *room, int n, size_t size)
{
    int more = *room ? *room : 64;
    void *q;

    while (more < n)
        more *= 2;
    if (more == *room)
        return 1;
    if (!(q = realloc(*p, (size_t)more * size)))
        return 0;
    *p = q;
    *room = more;
    return 1;
}

static int target(const struct maker *m, int tensor)
{
    int of = m->tensor[tensor].of;

    return of >= 0 ? of : tensor;
}

static int covers(const struct cairn_transit_part *p, const struct box *b, int ndim)
{
    for (int d = 0; d < ndim; d++)
        if (b->offset[d] < p->offset[d] || b->offset[d] + b->local[d] > p->offset[d] + p->local[d])
            return 0;
    return 1;
}

static int64_t box_count(const struct box *b, int ndim)
{
    int64_t n = 1;

    for (int d = 0; d < ndim; d++)
        n *= b->local[d];
    return n;
}

/* ---- boxes in memories -------------------------------------------------------------------------------------------------- */

/* Elements from index i of dimension d to the next, in a part that is dense. */
static int64_t stride(const struct cairn_transit_part *p, int ndim, int d)
{
    int64_t n = 1;

    for (int k = ndim - 1; k > d; k--)
        n *= p->local[k];
    return n;
}

/* The first dimension of what lies in one run in this part. */
static int run_from(const struct cairn_transit_part *p, const struct box *b, int ndim)
{
    int d = ndim - 1;

    while (d > 0 && b->local[d] == p->local[d])
        d--;
    return d < 0 ? 0 : d;
}

/* Are dimensions 0 .. d - 1 of the box one step of equal size each? */
static int even_steps(const struct cairn_transit_part *p, const struct box *b, int d)
{
    for (int k = 1; k < d; k++)
        if (b->local[k] != p->local[k])
            return 0;
    return 1;
}

static size_t begin_of(const struct cairn_transit_part *p, const struct box *b, int ndim)
{
    int64_t n = 0;

    for (int d = 0; d < ndim; d++)
        n += (b->offset[d] - p->offset[d]) * stride(p, ndim, d);
    return p->at + (size_t)n * cairn_dtype_size(p->dtype);
}

/* First dimension of the runs that all memories of a raw piece have in common; *even: blocks of them are one step apart in each. */
static int common_run(const struct maker *m, const struct raw *r, int *even)
{
    int ndim = m->tensor[r->tensor].ndim, d = run_from(&m->held[r->held], &r->box, ndim);

    for (int i = 0; i < r->places; i++) {
        int k = run_from(&m->wanted[m->place[r->first + i]], &r->box, ndim);

        d = k > d ? k : d;
    }
    *even = even_steps(&m->held[r->held], &r->box, d);
    for (int i = 0; i < r->places; i++)
        *even = *even && even_steps(&m->wanted[m->place[r->first + i]], &r->box, d);
    return d;
}

/* ---- raw pieces ----------------------------------------------------------------------------------------------------------- */

/* Cut at rows until it fits a chunk and has one step between its blocks. */
static enum cairn_status add_raw(struct maker *m, const struct raw *r)
{
    const struct cairn_transit_tensor *t = &m->tensor[r->tensor];
    int64_t n = box_count(&r->box, t->ndim), bytes = n * (int64_t)cairn_dtype_size(t->dtype), each;
    enum cairn_status st = CAIRN_OK;
    int even, axis = 0;

    while (axis + 2 < t->ndim && r->box.local[axis] == 1)
        axis++;
    common_run(m, r, &even);
    if ((even && bytes <= (int64_t)m->chunk_bytes) || t->ndim < 2 || r->box.local[axis] < 2) {
        if (!grow((void **)&m->raw, &m->raw_room, m->raws + 1, sizeof *m->raw))
            return CAIRN_NOMEM(m->err);
        m->raw[m->raws++] = *r;
        return CAIRN_OK;
    }
    each = even ? (int64_t)m->chunk_bytes / (bytes / r->box.local[axis]) : 1;
    each = each < 1 ? 1 : each;
    for (int64_t i = 0; i < r->box.local[axis] && st == CAIRN_OK; i += each) {
        struct raw part = *r;

        part.box.offset[axis] += i;
        part.box.local[axis] = r->box.local[axis] - i < each ? r->box.local[axis] - i : each;
        st = add_raw(m, &part);
    }
    return st;
}

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

/* Where boxes of the tensor begin or end in dimension d, ascending, each once. */
static int cuts(const struct maker *m, int d, const int *held, int helds, const int *wanted, int wanteds, int64_t *cut)
{
    int n = 0, k = 0;

    for (int i = 0; i < helds; i++) {
        cut[n++] = m->held[held[i]].offset[d];
        cut[n++] = m->held[held[i]].offset[d] + m->held[held[i]].local[d];
    }
    for (int i = 0; i < wanteds; i++) {
        cut[n++] = m->wanted[wanted[i]].offset[d];
        cut[n++] = m->wanted[wanted[i]].offset[d] + m->wanted[wanted[i]].local[d];
    }
    qsort(cut, (size_t)n, sizeof *cut, by_number);
    for (int i = 0; i < n; i++)
        if (!k || cut[k - 1] != cut[i])
            cut[k++] = cut[i];
    return k;
}

/* Who holds the box: the least burdened, ties to the lowest; -1: nobody. */
static int holder_of(const struct maker *m, const struct box *b, int ndim, const int *held, int helds)
{
    int best = -1;

    for (int i = 0; i < helds; i++) {
        const struct cairn_transit_part *p = &m->held[held[i]];

        if (!covers(p, b, ndim))
            continue;
        if (best < 0 || m->load[p->owner] < m->load[m->held[best].owner] ||
            (m->load[p->owner] == m->load[m->held[best].owner] && p->owner < m->held[best].owner))
            best = held[i];
    }
    return best;
}

/* Can b go on where a ends in dimension d, the same way? */
static int joins(const struct maker *m, const struct raw *a, const struct raw *b, int d, int ndim)
{
    if (a->held != b->held || a->places != b->places)
        return 0;
    for (int k = 0; k < ndim; k++)
        if (k != d && (a->box.offset[k] != b->box.offset[k] || a->box.local[k] != b->box.local[k]))
            return 0;
    if (a->box.offset[d] + a->box.local[d] != b->box.offset[d])
        return 0;
    return !memcmp(m->place + a->first, m->place + b->first, (size_t)a->places * sizeof *m->place);
}

/* All cells of one tensor. held, wanted: its parts; wanted ascending by owner. */
static enum cairn_status add_tensor(struct maker *m, int tensor, const int *held, int helds, const int *wanted, int wanteds, size_t *unique)
{
    const struct cairn_transit_tensor *t = &m->tensor[tensor];
    const size_t room = 2 * ((size_t)helds + (size_t)wanteds) + 2;
    int64_t *cut = malloc(room * DIMS * sizeof *cut), index[DIMS] = {0};
    int n[DIMS], cells = 1, d, free_dims = 0, along = 0, have = 0;
    enum cairn_status st = CAIRN_OK;
    struct raw last = {0};

    if (!cut)
        return CAIRN_NOMEM(m->err);
    for (d = 0; d < t->ndim; d++) {
        n[d] = cuts(m, d, held, helds, wanted, wanteds, cut + (size_t)d * room) - 1;
        if (n[d] < 1) /* empty in this dimension */
            goto out;
        cells *= n[d];
        if (n[d] > 1) {
            free_dims++;
            along = d;
        }
    }
    for (int c = 0; c < cells; c++) {
        struct raw r = {.tensor = tensor, .first = m->places};
        int rest = c;

        for (d = t->ndim - 1; d >= 0; d--) {
            index[d] = rest % n[d];
            rest /= n[d];
            r.box.offset[d] = cut[(size_t)d * room + (size_t)index[d]];
            r.box.local[d] = cut[(size_t)d * room + (size_t)index[d] + 1] - r.box.offset[d];
        }
        for (int i = 0; i < wanteds; i++) {
            if (!covers(&m->wanted[wanted[i]], &r.box, t->ndim))
                continue;
            if (r.places && m->wanted[m->place[r.first + r.places - 1]].owner == m->wanted[wanted[i]].owner)
                continue; /* by another name: it has it */
            if (!grow((void **)&m->place, &m->place_room, m->places + 1, sizeof *m->place))
                TRY(CAIRN_NOMEM(m->err));
            m->place[m->places++] = wanted[i];
            r.places++;
        }
        if (!r.places)
            continue;
        if ((r.held = holder_of(m, &r.box, t->ndim, held, helds)) < 0)
            TRY(cairn_fail(m->err, CAIRN_EDATA, "%s: nobody holds the part from row %lld on (%lld rows) that place %d wants", t->name,
                           (long long)r.box.offset[0], (long long)(t->ndim ? r.box.local[0] : 1), m->wanted[m->place[r.first]].owner));
        m->load[m->held[r.held].owner] += (uint64_t)box_count(&r.box, t->ndim) * cairn_dtype_size(t->dtype);
        *unique += (size_t)box_count(&r.box, t->ndim) * cairn_dtype_size(t->dtype);
        if (have && free_dims == 1 && joins(m, &last, &r, along, t->ndim)) {
            last.box.local[along] += r.box.local[along];
            continue;
        }
        if (have)
            TRY(add_raw(m, &last));
        last = r;
        have = 1;
    }
    if (have)
        TRY(add_raw(m, &last));
out:
    free(cut);
    return st;
}

static enum cairn_status check_parts(const struct maker *m, const struct cairn_transit_part *part, int n, int wanted)
{
    for (int i = 0; i < n; i++) {
        const struct cairn_transit_part *p = &part[i];
        const struct cairn_transit_tensor *t;

        if (p->tensor < 0 || p->tensor >= m->tensors || p->owner < 0)
            return CAIRN_BUG(m->err, "a part of no tensor");
        t = &m->tensor[p->tensor];
        if (target(m, p->tensor) >= m->tensors || t->ndim > DIMS || (wanted && p->dtype != t->dtype))
            return cairn_fail(m->err, CAIRN_EBUG, "%s: a part of another type, or of an alias of nothing", t->name);
        for (int d = 0; d < t->ndim; d++)
            if (p->offset[d] < 0 || p->local[d] < 0 || p->local[d] > t->dim[d] || p->offset[d] > t->dim[d] - p->local[d])
                return cairn_fail(m->err, CAIRN_EBUG, "%s: part [%lld, +%lld) of dimension %d does not lie within %lld", t->name,
                                  (long long)p->offset[d], (long long)p->local[d], d, (long long)t->dim[d]);
    }
    return CAIRN_OK;
}

struct by_tensor {
    int tensor, owner, part;
};

static int tensor_order(const void *a, const void *b)
{
    const struct by_tensor *x = a, *y = b;

    return x->tensor != y->tensor ? (x->tensor < y->tensor ? -1 : 1)
           : x->owner != y->owner ? (x->owner < y->owner ? -1 : 1)
                                  : (x->part > y->part) - (x->part < y->part);
}

/* part[first[t]] .. part[first[t + 1]]: the parts of tensor t, ascending by owner. */
static enum cairn_status sort_parts(const struct maker *m, const struct cairn_transit_part *part, int n, int **out, int **first)
{
    struct by_tensor *s = malloc(((size_t)n + 1) * sizeof *s);

    *out = malloc(((size_t)n + 1) * sizeof **out);
    *first = calloc((size_t)m->tensors + 1, sizeof **first);
    if (!s || !*out || !*first) {
        free(s);
        return CAIRN_NOMEM(m->err);
    }
    for (int i = 0; i < n; i++) {
        s[i] = (struct by_tensor){target(m, part[i].tensor), part[i].owner, i};
        (*first)[s[i].tensor + 1]++;
    }
    qsort(s, (size_t)n, sizeof *s, tensor_order);
    for (int i = 0; i < n; i++)
        (*out)[i] = s[i].part;
    for (int t = 0; t < m->tensors; t++)
        (*first)[t + 1] += (*first)[t];
    free(s);
    return CAIRN_OK;
}

/* Names by which the tensor is wanted. */
static int names_of(const struct maker *m, const int *wanted, int wanteds)
{
    int names = 0;

    for (int i = 0; i < wanteds; i++) {
        int seen = 0;

        for (int k = 0; k < i && !seen; k++)
            seen = m->wanted[wanted[k]].tensor == m->wanted[wanted[i]].tensor;
        names += !seen;
    }
    return names;
}

static enum cairn_status make_raws(struct maker *m, struct cairn_transit *p)
{
    int *held = NULL, *held_first = NULL, *wanted = NULL, *wanted_first = NULL;
    enum cairn_status st = CAIRN_OK;

    TRY(check_parts(m, m->held, m->helds, 0));
    TRY(check_parts(m, m->wanted, m->wanteds, 1));
    TRY(sort_parts(m, m->held, m->helds, &held, &held_first));
    TRY(sort_parts(m, m->wanted, m->wanteds, &wanted, &wanted_first));
    for (int i = 0; i < m->helds; i++)
        m->holders = m->held[i].owner >= m->holders ? m->held[i].owner + 1 : m->holders;
    m->load = calloc((size_t)m->holders + 1, sizeof *m->load);
    if (!m->load)
        TRY(CAIRN_NOMEM(m->err));
    for (int t = 0; t < m->tensors; t++) {
        const int *w = wanted + wanted_first[t];
        int n = wanted_first[t + 1] - wanted_first[t];
        size_t unique = 0;

        if (n)
            TRY(add_tensor(m, t, held + held_first[t], held_first[t + 1] - held_first[t], w, n, &unique));
        p->unique_bytes += unique;
        p->named_bytes += unique * (size_t)(n ? names_of(m, w, n) : 0);
    }
out:
    free(held);
    free(held_first);
    free(wanted);
    free(wanted_first);
    return st;
}

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
    int even, d = common_run(m, r, &even);

    *q = (struct cairn_transit_piece){.tensor = r->tensor, .held = h->dtype, .blocks = 1, .n = 1, .drop = drop};
    memcpy(q->offset, r->box.offset, sizeof q->offset);
    memcpy(q->local, r->box.local, sizeof q->local);
    for (int k = 0; k < t->ndim; k++)
        *(k < d ? &q->blocks : &q->n) *= r->box.local[k];
    q->src = begin_of(h, &r->box, t->ndim);
    q->src_step = d > 0 ? stride(h, t->ndim, d - 1) : 0;
    for (int i = 0; i < r->places; i++) {
        const struct cairn_transit_part *w = &m->wanted[m->place[r->first + i]];

        drop[i] = (struct cairn_transit_drop){w->owner, begin_of(w, &r->box, t->ndim), d > 0 ? stride(w, t->ndim, d - 1) : 0};
    }
}

static size_t piece_bytes(const struct cairn_transit_piece *q, const struct cairn_transit_tensor *tensor)
{
    return (size_t)(q->blocks * q->n) * cairn_dtype_size(tensor[q->tensor].dtype);
}

/* Does a end its part in every place, and does b begin one there? What lies between is nobody's then if it is shorter than m->gap. */
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

/* Where the piece stands on the wire behind `end` bytes, the last of which are those of the piece before it; q->joined as there is nothing
 * between the two in any place that is another's. */
static size_t wire_after(const struct maker *m, const struct raw *r, const struct cairn_transit_piece *prev, size_t end, struct cairn_transit_piece *q)
{
    if (prev && prev->blocks == 1 && q->blocks == 1) {
        size_t there = prev->drop[0].at + (end - prev->wire), gap = q->drop[0].at - there;

        q->joined = q->drop[0].at >= there && (!gap || (gap < m->gap && part_after_part(m, r - 1, r)));
        if (q->joined)
            return end + gap;
    }
    return (end + ALIGN - 1) / ALIGN * ALIGN;
}

static enum cairn_status make_lanes(struct maker *m, struct cairn_transit *p)
{
    struct cairn_transit_drop *drop;
    size_t drops = 0, room = 0;
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
            *l = (struct cairn_transit_lane){.holder = m->held[r->held].owner, .places = r->places, .place = place, .piece = i, .chunk = p->chunks};
            for (int k = 0; k < r->places; k++)
                *place++ = q->drop[k].place;
            c = NULL;
        } else
            prev = q - 1;
        q->wire = wire_after(m, r, prev, l->bytes, q);
        if (!c || q->wire + bytes - c->wire > m->chunk_bytes) {
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

static enum cairn_status sum_up(struct cairn_transit *p, const struct cairn_transit_tensor *tensor, struct cairn_error *err)
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

enum cairn_status cairn_transit_create(struct cairn_transit *out, const struct cairn_transit_tensor *tensor, int tensors, const struct cairn_transit_part *held,
                                    int helds, const struct cairn_transit_part *wanted, int wanteds, size_t chunk_bytes, struct cairn_error *err)
{
    struct maker m = {.tensor = tensor, .held = held, .wanted = wanted, .tensors = tensors, .helds = helds, .wanteds = wanteds, .err = err};
    struct cairn_transit p = {.tensors = tensors};
    enum cairn_status st = CAIRN_OK;

    m.chunk_bytes = chunk_bytes ? chunk_bytes : CAIRN_TRANSIT_CHUNK;
    m.gap = GAP;
    for (int i = 0; i < wanteds; i++)
        m.gap |= wanted[i].at;
    m.gap &= ~m.gap + 1;
    TRY(make_raws(&m, &p));
    TRY(make_lanes(&m, &p));
    TRY(sum_up(&p, tensor, err));
    *out = p;
    memset(&p, 0, sizeof p);
out:
    cairn_transit_free(&p);
    free(m.load);
    free(m.raw);
    free(m.place);
    return st;
}

void cairn_transit_free(struct cairn_transit *p)
{
    if (!p)
        return;
    free(p->lane);
    free(p->piece);
    free(p->chunk);
    free(p->memory);
    memset(p, 0, sizeof *p);
}

int cairn_transit_lands(const struct cairn_transit *p, const struct cairn_transit_chunk *c, int k, size_t *at)
{
    const struct cairn_transit_piece *first = &p->piece[c->piece];

    *at = first->drop[k].at;
    for (int i = 0; i < c->pieces; i++)
        if ((i && !first[i].joined) || (first[i].blocks > 1 && first[i].drop[k].step != first[i].n) ||
            first[i].drop[k].at - *at != first[i].wire - c->wire)
            return 0;
    return 1;
}

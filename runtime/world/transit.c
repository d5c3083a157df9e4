/* transit.c - makes the plan of transit.h: tensor by tensor the wanted boxes are cut where anybody's box ends, each cell finds a
 * holder, cells that go the same way are put together again, and what is too large for a chunk is cut at rows. Then transit_lanes.c
 * sorts everything into lanes.
 */
#include <stdlib.h>
#include <string.h>

#include "world/transit_impl.h"

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

int64_t cairn_transit_stride(const struct cairn_transit_part *p, int ndim, int d)
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

size_t cairn_transit_begin(const struct cairn_transit_part *p, const struct box *b, int ndim)
{
    int64_t n = 0;

    for (int d = 0; d < ndim; d++)
        n += (b->offset[d] - p->offset[d]) * cairn_transit_stride(p, ndim, d);
    return p->at + (size_t)n * cairn_dtype_size(p->dtype);
}

int cairn_transit_run(const struct maker *m, const struct raw *r, int *even)
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
    cairn_transit_run(m, r, &even);
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

enum cairn_status cairn_transit_create(struct cairn_transit *out, const struct cairn_transit_tensor *tensor, int tensors,
                                       const struct cairn_transit_part *held, int helds, const struct cairn_transit_part *wanted,
                                       int wanteds, size_t chunk_bytes, struct cairn_error *err)
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
    TRY(cairn_transit_lanes(&m, &p));
    TRY(cairn_transit_sum(&p, tensor, err));
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

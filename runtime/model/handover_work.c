/* handover_work.c - what the device does in a handover: cast and pack, send, sum up; look at what arrived, and take it over.
 *
 * Trainer. Each chunk is a job on one of two streams: store -> room (as on the wire) -> places, and the tiles' sums; while one stream
 * copies, the other packs. Where the only place is memory of this device (or the host's), store -> slot without a room. Sampler: a chunk
 * is summed up where it landed, from tables made for the slot; the slot is taken over when all chunks agree.
 */
#include <stdlib.h>
#include <string.h>

#include "model/handover_impl.h"

#define TAKE(p, n) (((p) = calloc((size_t)(n) + 1, sizeof *(p))) != NULL)

int cairn_hand_place_of(const struct cairn_transit_lane *l, int place)
{
    for (int k = 0; k < l->places; k++)
        if (l->place[k] == place)
            return k;
    return -1;
}

enum cairn_status cairn_hand_index(const struct cairn_handover *h, struct cairn_hand_end *e, struct cairn_error *err)
{
    if (!TAKE(e->index, h->plan.chunks))
        return CAIRN_NOMEM(err);
    e->chunks = 0;
    for (int c = 0; c < h->plan.chunks; c++)
        e->index[c] = cairn_hand_place_of(&h->plan.lane[h->plan.chunk[c].lane], e->place) >= 0 ? e->chunks++ : -1;
    return CAIRN_OK;
}

static struct cairn_hand_end *end_of(const struct cairn_handover *h, int place)
{
    for (int i = 0; i < h->ends; i++)
        if (h->end[i].place == place)
            return &h->end[i];
    return NULL;
}

static int64_t elements(const struct cairn_handover *h, size_t bytes)
{
    return (int64_t)(bytes / cairn_dtype_size(h->o.dtype));
}

/* ---- trainer: tables -------------------------------------------------------------------------------------------------------- */

static int direct(const struct cairn_handover *h, const struct cairn_transit_lane *l)
{
    const struct cairn_hand_end *e = l->places == 1 ? end_of(h, l->place[0]) : NULL;

    return e && e->local;
}

static enum cairn_status chunk_tables(struct cairn_handover *h, struct cairn_hand_chunk *m, struct cairn_error *err)
{
    const struct cairn_transit_chunk *c = &h->plan.chunk[m->chunk];
    const struct cairn_transit_lane *l = &h->plan.lane[c->lane];
    const int straight = direct(h, l);
    enum cairn_status st = CAIRN_OK;

    if (!TAKE(m->drop, l->places))
        return CAIRN_NOMEM(err);
    m->pack = cairn_runs_begin(&h->pack);
    m->tiles = cairn_runs_begin(&h->tiles);
    for (int i = c->piece; i < c->piece + c->pieces; i++) {
        const struct cairn_transit_piece *q = &h->plan.piece[i];
        const struct cairn_transit_tensor *t = &h->tensor[q->tensor];
        int64_t step[CAIRN_MAX_DIMS], x = (int64_t)(q->src / cairn_dtype_size(q->held));
        size_t at = straight ? q->drop[0].at : q->wire - c->wire;

        cairn_runs_steps(t, straight ? cairn_hand_part(h, l->place[0], q->tensor)->local : q->local, step);
        TRY(cairn_runs_add_transfer(&h->pack, &m->pack, q, x, q->src_step, elements(h, at), straight ? q->drop[0].step : q->n, err));
        TRY(cairn_runs_add_tiles(&h->tiles, &m->tiles, t, q, at, step, err));
    }
    cairn_runs_end(&h->pack, &m->pack);
    cairn_runs_end(&h->tiles, &m->tiles);
    for (int k = 0; k < l->places && !straight; k++) {
        size_t at;

        if (cairn_transit_lands(&h->plan, c, k, &at))
            continue;
        m->drop[k] = cairn_runs_begin(&h->drop);
        for (int i = c->piece; i < c->piece + c->pieces; i++) {
            const struct cairn_transit_piece *q = &h->plan.piece[i];

            TRY(cairn_runs_add_transfer(&h->drop, &m->drop[k], q, elements(h, q->wire - c->wire), q->n, elements(h, q->drop[k].at), q->drop[k].step, err));
        }
        cairn_runs_end(&h->drop, &m->drop[k]);
    }
out:
    return st;
}

enum cairn_status cairn_hand_writer_open(struct cairn_handover *h, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    size_t room = 0;
    int own = h->side[h->group->rank].holder, n = 0;

    h->pack.width = h->drop.width = CAIRN_TRANSFER_RUN;
    h->tiles.width = CAIRN_TILES_RUN;
    if (!TAKE(h->mine, h->plan.chunks))
        return CAIRN_NOMEM(err);
    for (int c = 0; c < h->plan.chunks; c++) {
        const struct cairn_transit_lane *l = &h->plan.lane[h->plan.chunk[c].lane];

        if (l->holder != own)
            continue;
        h->n_mine = n + 1;
        h->mine[n].chunk = c;
        TRY(chunk_tables(h, &h->mine[n++], err));
        if (!direct(h, l) && h->plan.chunk[c].bytes > room)
            room = h->plan.chunk[c].bytes;
    }
    TRY(cairn_runs_upload(&h->pack, h->o.compute, err));
    TRY(cairn_runs_upload(&h->tiles, h->o.compute, err));
    TRY(cairn_runs_upload(&h->drop, h->o.compute, err));
    if (!TAKE(h->h_sums, 2 * h->tiles.most))
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < CAIRN_HANDOVER_STAGES && n; i++) {
        struct cairn_hand_stage *s = &h->stage[i];

        TRY(cairn_stream_create(h->o.compute->dev, &s->stream, err));
        TRY(cairn_buffer_create(h->o.compute->dev, (size_t)(h->tiles.most + 1) * 16, &s->sums, err));
        if (room)
            TRY(cairn_buffer_create(h->o.compute->dev, (room + 255) / 256 * 256, &s->room, err));
    }
out:
    return st;
}

/* ---- trainer: work ----------------------------------------------------------------------------------------------------------- */

static enum cairn_status copy_bytes(struct cairn_stream *s, struct cairn_buffer *dst, size_t to, struct cairn_buffer *src, size_t from, size_t bytes,
                                    struct cairn_error *err)
{
    const int64_t n = (int64_t)bytes;
    struct cairn_tensor d, x;
    enum cairn_status st;

    TRY(cairn_tensor_view(&d, dst, to, CAIRN_U8, 1, &n, err));
    TRY(cairn_tensor_view(&x, src, from, CAIRN_U8, 1, &n, err));
    TRY(cairn_tensor_copy(s, &d, &x, err));
out:
    return st;
}

static enum cairn_status send_chunk(struct cairn_handover *h, const struct cairn_hand_chunk *m, struct cairn_hand_stage *s, struct cairn_error *err)
{
    const struct cairn_transit_chunk *c = &h->plan.chunk[m->chunk];
    const struct cairn_transit_lane *l = &h->plan.lane[c->lane];
    struct cairn_compute *k = h->o.compute;
    enum cairn_dtype held = h->plan.piece[c->piece].held;
    struct cairn_hand_end *e = end_of(h, l->place[0]);
    struct cairn_buffer *to = direct(h, l) ? e->slot[e->open] : s->room;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_runs_transfer(&h->pack, &m->pack, k, &s->stream, h->o.give->buf, held, to, h->o.dtype, err));
    for (int i = 0; i < l->places && !direct(h, l); i++) {
        size_t at;

        e = end_of(h, l->place[i]);
        if (cairn_transit_lands(&h->plan, c, i, &at))
            TRY(copy_bytes(&s->stream, e->slot[e->open], at, s->room, 0, c->bytes, err));
        else
            TRY(cairn_runs_transfer(&h->drop, &m->drop[i], k, &s->stream, s->room, h->o.dtype, e->slot[e->open], h->o.dtype, err));
    }
    TRY(cairn_runs_tiles(&h->tiles, &m->tiles, k, &s->stream, to, s->sums, 0, err));
out:
    return st;
}

enum cairn_status cairn_hand_write(struct cairn_handover *h, enum cairn_status (*done)(struct cairn_handover *h, int chunk, struct cairn_digest sum,
                                   struct cairn_error *err), struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    /* what the optimiser or the forward has enqueued is in the store first */
    TRY(cairn_stream_wait(&h->o.compute->stream, err));
    for (int i = 0; i < h->n_mine + CAIRN_HANDOVER_STAGES - 1; i++) {
        int back = i - (CAIRN_HANDOVER_STAGES - 1);
        struct cairn_digest sum;

        if (i < h->n_mine)
            TRY(send_chunk(h, &h->mine[i], &h->stage[i % CAIRN_HANDOVER_STAGES], err));
        if (back < 0 || back >= h->n_mine)
            continue;
        TRY(cairn_runs_sum(&h->mine[back].tiles, &h->stage[back % CAIRN_HANDOVER_STAGES].stream, h->stage[back % CAIRN_HANDOVER_STAGES].sums,
                           0, h->h_sums, &sum, err));
        TRY(done(h, h->mine[back].chunk, sum, err));
    }
out:
    return st;
}

/* ---- sampler: tables ------------------------------------------------------------------------------------------------------------- */

/* From the place's memory into the store. */
static enum cairn_status unpack_tables(struct cairn_handover *h, const struct cairn_transit_part *own, int n, struct cairn_error *err)
{
    struct cairn_transit_part *place = calloc((size_t)n + 1, sizeof *place), *want = calloc((size_t)n + 1, sizeof *want);
    size_t size = cairn_dtype_size(h->o.dtype);
    struct cairn_transit p = {0};
    enum cairn_status st = CAIRN_OK;

    if (!place || !want)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < n; i++) {
        place[i] = *cairn_hand_part(h, h->read.place, own[i].tensor);
        want[i] = own[i];
        place[i].owner = want[i].owner = 0;
        want[i].at = own[i].at / cairn_dtype_size(own[i].dtype) * size; /* as if it had the type that travels */
        want[i].dtype = h->o.dtype;
    }
    TRY(cairn_transit_create(&p, h->tensor, h->tensors, place, n, want, n, SIZE_MAX / 4, err));
    h->unpack_call = cairn_runs_begin(&h->unpack);
    for (int i = 0; i < p.pieces; i++) {
        const struct cairn_transit_piece *q = &p.piece[i];

        TRY(cairn_runs_add_transfer(&h->unpack, &h->unpack_call, q, elements(h, q->src), q->src_step, elements(h, q->drop[0].at), q->drop[0].step, err));
    }
    cairn_runs_end(&h->unpack, &h->unpack_call);
    TRY(cairn_runs_upload(&h->unpack, h->o.compute, err));
out:
    cairn_transit_free(&p);
    free(place);
    free(want);
    return st;
}

/* Is what the place has just what the store has, in the store's type? */
static int same_parts(const struct cairn_handover *h, const struct cairn_transit_part *own, int n)
{
    for (int i = 0; i < n; i++) {
        const struct cairn_transit_part *p = cairn_hand_part(h, h->read.place, own[i].tensor);

        if (own[i].dtype != h->o.dtype || memcmp(p->local, own[i].local, sizeof p->local) || memcmp(p->offset, own[i].offset, sizeof p->offset))
            return 0;
    }
    return 1;
}

static enum cairn_status check_tables(struct cairn_handover *h, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    h->slot_tiles.width = CAIRN_TILES_RUN;
    h->bring.width = h->unpack.width = CAIRN_TRANSFER_RUN;
    if (!TAKE(h->check, h->read.chunks) || !TAKE(h->bring_call, h->read.chunks) || !TAKE(h->verified, h->read.chunks) ||
        !TAKE(h->verified_of, h->read.chunks))
        return CAIRN_NOMEM(err);
    for (int c = 0; c < h->plan.chunks; c++) {
        const struct cairn_transit_chunk *k = &h->plan.chunk[c];
        int i = h->read.index[c], place = i < 0 ? -1 : cairn_hand_place_of(&h->plan.lane[k->lane], h->read.place);

        if (i < 0)
            continue;
        h->check[i] = cairn_runs_begin(&h->slot_tiles);
        h->bring_call[i] = cairn_runs_begin(&h->bring);
        for (int j = k->piece; j < k->piece + k->pieces; j++) {
            const struct cairn_transit_piece *q = &h->plan.piece[j];
            const struct cairn_transit_drop *d = &q->drop[place];
            int64_t step[CAIRN_MAX_DIMS];

            cairn_runs_steps(&h->tensor[q->tensor], cairn_hand_part(h, h->read.place, q->tensor)->local, step);
            TRY(cairn_runs_add_tiles(&h->slot_tiles, &h->check[i], &h->tensor[q->tensor], q, d->at, step, err));
            TRY(cairn_runs_add_transfer(&h->bring, &h->bring_call[i], q, elements(h, d->at), d->step, elements(h, d->at), d->step, err));
        }
        cairn_runs_end(&h->slot_tiles, &h->check[i]);
        cairn_runs_end(&h->bring, &h->bring_call[i]);
    }
    TRY(cairn_runs_upload(&h->slot_tiles, h->o.compute, err));
out:
    return st;
}

enum cairn_status cairn_hand_reader_open(struct cairn_handover *h, int host_slots, struct cairn_error *err)
{
    struct cairn_transit_part *own = calloc((size_t)h->tensors + 1, sizeof *own);
    struct cairn_device *dev = h->o.compute->dev;
    enum cairn_status st = CAIRN_OK;
    int n = 0;

    if (!own)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_hand_store_parts(h, h->o.take, own, &n, err));
    TRY(check_tables(h, err));
    TRY(cairn_stream_create(dev, &h->reading.stream, err));
    TRY(cairn_buffer_create(dev, (size_t)(h->slot_tiles.most + 1) * 16, &h->reading.sums, err));
    if (!TAKE(h->h_read_sums, 2 * h->slot_tiles.most))
        TRY(CAIRN_NOMEM(err));
    if (host_slots && !h->side[h->group->rank].host) {
        size_t bytes = h->place_bytes[h->read.place];

        TRY(cairn_runs_upload(&h->bring, h->o.compute, err));
        for (int i = 0; i < 2; i++)
            TRY(cairn_buffer_create(dev, bytes, &h->landed[i], err));
    }
    h->in_place = h->o.in_place && same_parts(h, own, n);
    if (!h->in_place)
        TRY(unpack_tables(h, own, n, err));
out:
    free(own);
    return st;
}

/* ---- sampler: work ------------------------------------------------------------------------------------------------------------------ */

static const char *first_tensor(const struct cairn_handover *h, int chunk)
{
    for (int c = 0; c < h->plan.chunks; c++)
        if (h->read.index[c] == chunk)
            return h->tensor[h->plan.piece[h->plan.chunk[c].piece].tensor].name;
    return "";
}

/* Slot -> the device's own memory, at the same place. */
static enum cairn_status bring(struct cairn_handover *h, int chunk, int slot, struct cairn_buffer *to, struct cairn_error *err)
{
    const struct cairn_runs_call *c = &h->bring_call[chunk];
    size_t size = cairn_dtype_size(h->o.dtype);
    enum cairn_status st = CAIRN_OK;

    for (int p = 0; p < h->plan.chunks; p++) {
        size_t at;

        if (h->read.index[p] != chunk)
            continue;
        if (cairn_transit_lands(&h->plan, &h->plan.chunk[p], cairn_hand_place_of(&h->plan.lane[h->plan.chunk[p].lane], h->read.place), &at))
            return copy_bytes(&h->reading.stream, to, at, h->read.slot[slot], at, h->plan.chunk[p].bytes / size * size, err);
    }
    TRY(cairn_runs_transfer(&h->bring, c, h->o.compute, &h->reading.stream, h->read.slot[slot], h->o.dtype, to, h->o.dtype, err));
out:
    return st;
}

enum cairn_status cairn_hand_differs(const struct cairn_handover *h, int chunk, uint64_t generation, struct cairn_digest have, struct cairn_digest want,
                                     struct cairn_error *err)
{
    char is[33], should[33];

    cairn_digest_hex(have, is);
    cairn_digest_hex(want, should);
    return cairn_fail(err, CAIRN_EDATA, "generation %llu: chunk %d (%s ...) arrived with digest %s, was sent with %s", (unsigned long long)generation,
                      chunk, first_tensor(h, chunk), is, should);
}

enum cairn_status cairn_hand_verify(struct cairn_handover *h, int chunk, int slot, uint64_t generation, struct cairn_digest want,
                                    struct cairn_error *err)
{
    struct cairn_buffer *at = h->landed[0] ? h->landed[1 - h->landed_in] : h->read.slot[slot];
    enum cairn_status st = CAIRN_OK;

    if (h->verified_of[chunk] == (generation << 8 | (uint64_t)slot) && cairn_digest_equal(h->verified[chunk], want))
        return CAIRN_OK;
    h->verified_of[chunk] = 0;
    if (h->landed[0])
        TRY(bring(h, chunk, slot, at, err));
    TRY(cairn_runs_tiles(&h->slot_tiles, &h->check[chunk], h->o.compute, &h->reading.stream, at, h->reading.sums, 0, err));
    TRY(cairn_runs_sum(&h->check[chunk], &h->reading.stream, h->reading.sums, 0, h->h_read_sums, &h->verified[chunk], err));
    if (!cairn_digest_equal(h->verified[chunk], want))
        TRY(cairn_hand_differs(h, chunk, generation, h->verified[chunk], want, err));
    h->verified_of[chunk] = generation << 8 | (uint64_t)slot;
out:
    return st;
}

/* The store's tensors become views of the slot. */
static enum cairn_status switch_to(struct cairn_handover *h, struct cairn_buffer *slot, struct cairn_error *err)
{
    struct cairn_store *s = h->o.take;

    if (!h->own) {
        if (!TAKE(h->own, h->o.table->count))
            return CAIRN_NOMEM(err);
        memcpy(h->own, s->tensor, (size_t)h->o.table->count * sizeof *h->own);
    }
    for (int j = 0; j < h->tensors; j++) {
        struct cairn_tensor *t = &s->tensor[h->param[j]];
        const struct cairn_transit_part *p = cairn_hand_part(h, h->read.place, j);

        if (!t->buf || !p)
            continue;
        t->buf = slot;
        t->offset = p->at;
    }
    return CAIRN_OK;
}

enum cairn_status cairn_hand_adopt(struct cairn_handover *h, int slot, struct cairn_error *err)
{
    struct cairn_buffer *at = h->landed[0] ? h->landed[1 - h->landed_in] : h->read.slot[slot];
    enum cairn_status st = CAIRN_OK;

    if (h->in_place) {
        TRY(switch_to(h, at, err));
    } else {
        TRY(cairn_stream_wait(&h->o.compute->stream, err)); /* nobody reads what is overwritten */
        TRY(cairn_runs_transfer(&h->unpack, &h->unpack_call, h->o.compute, &h->reading.stream, at, h->o.dtype, h->o.take->buf,
                                h->o.take->tensor[h->param[0]].dtype, err));
        TRY(cairn_stream_wait(&h->reading.stream, err));
    }
    h->landed_in = 1 - h->landed_in;
out:
    return st;
}

/* ---- end ------------------------------------------------------------------------------------------------------------------------------- */

static void stage_free(struct cairn_hand_stage *s)
{
    if (s->stream.dev)
        cairn_stream_destroy(&s->stream);
    cairn_buffer_destroy(s->room);
    cairn_buffer_destroy(s->sums);
    memset(s, 0, sizeof *s);
}

void cairn_hand_work_close(struct cairn_handover *h)
{
    for (int i = 0; i < CAIRN_HANDOVER_STAGES; i++)
        stage_free(&h->stage[i]);
    stage_free(&h->reading);
    for (int i = 0; i < h->n_mine; i++)
        free(h->mine[i].drop);
    free(h->mine);
    h->mine = NULL;
    h->n_mine = 0;
    free(h->h_sums);
    free(h->h_read_sums);
    h->h_sums = h->h_read_sums = NULL;
    cairn_runs_free(&h->pack);
    cairn_runs_free(&h->tiles);
    cairn_runs_free(&h->drop);
    cairn_runs_free(&h->slot_tiles);
    cairn_runs_free(&h->bring);
    cairn_runs_free(&h->unpack);
    free(h->check);
    free(h->bring_call);
    free(h->verified);
    free(h->verified_of);
    h->check = h->bring_call = NULL;
    h->verified = NULL;
    h->verified_of = NULL;
    for (int i = 0; i < 2; i++) {
        cairn_buffer_destroy(h->landed[i]);
        h->landed[i] = NULL;
    }
}

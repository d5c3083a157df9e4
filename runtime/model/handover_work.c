/* handover_work.c - what the device does in a handover: cast and pack, send, sum up; look at what arrived, and take it over.
 *
 * Trainer. Each chunk is a job on one of three streams: store -> room (as on the wire) -> places; the tiles' sums go on a fourth, beside
 * the copy. The link is the floor, so it never waits: while one chunk is copied the next is packed, and the host waits for the oldest of
 * three. A chunk of 32 MiB takes the link about 85 us (394 GB/s between two H200); packing it moves 96 MiB in the sender's memory, its sum
 * 32 MiB on either side, well below that.
 *
 *     stream 0   pack 0 | copy 0 ......... | pack 3 | copy 3 ...
 *     stream 1           pack 1 | copy 1 ......... | pack 4 ...
 *     stream 2                   pack 2 | copy 2 ......... | ...
 *     beside             sum 0  | sum 1  | sum 2
 *     sampler                             sum 0     | sum 1 ...
 *
 * Where the only place is memory of this device, store -> slot without a room. Sampler and trainer share the GPU then, which turns from one
 * process to the other only by slices of time: the trainer enqueues all and waits once, and the sampler sums up all chunks in one call.
 * Floor of 2.0 GB: 6.0 GB for packing, 2.0 GB for each side's sums, 10 GB at 3.8 TB/s.
 *
 * Sampler: chunks are summed up where they landed, from tables made for the slot; the slot is taken over when all agree.
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
    h->at_once = !room && !h->side[h->group->rank].host;
    h->in_flight = h->at_once ? n : h->side[h->group->rank].host ? 1 : CAIRN_HANDOVER_STAGES;
    TRY(cairn_runs_sums_create(&h->sums, &h->tiles, h->o.compute->dev, err));
    if (!h->beside.dev)
        TRY(cairn_stream_create(h->o.compute->dev, &h->beside, err));
    for (int i = 0; i < CAIRN_HANDOVER_STAGES && n; i++) {
        struct cairn_hand_stage *s = &h->stage[i];

        TRY(cairn_stream_create(h->o.compute->dev, &s->stream, err));
        TRY(cairn_event_create(h->o.compute->dev, &s->packed, err));
        TRY(cairn_event_create(h->o.compute->dev, &s->summed, err));
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
    TRY(cairn_event_record(&s->packed, &s->stream, err));
    TRY(cairn_event_wait(&s->packed, &h->beside, err));
    for (int i = 0; i < l->places && !direct(h, l); i++) {
        size_t at;

        e = end_of(h, l->place[i]);
        if (cairn_transit_lands(&h->plan, c, i, &at))
            TRY(copy_bytes(&s->stream, e->slot[e->open], at, s->room, 0, c->bytes, err));
        else
            TRY(cairn_runs_transfer(&h->drop, &m->drop[i], k, &s->stream, s->room, h->o.dtype, e->slot[e->open], h->o.dtype, err));
    }
    TRY(cairn_runs_tiles(&h->tiles, &m->tiles, k, &h->beside, to, h->sums.buf, m->tiles.first, err));
    TRY(cairn_event_record(&s->summed, &h->beside, err));
    TRY(cairn_event_wait(&s->summed, &s->stream, err)); /* the stage is free when its stream is done */
out:
    return st;
}

/* Chunks [first, first + n) of this rank are sent and summed up: told. */
static enum cairn_status sent(struct cairn_handover *h, int first, int n,
                              enum cairn_status (*done)(struct cairn_handover *h, int chunk, struct cairn_digest sum, struct cairn_error *err),
                              struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int i = first; i < first + n && i < first + CAIRN_HANDOVER_STAGES; i++)
        TRY(cairn_stream_wait(&h->stage[i % CAIRN_HANDOVER_STAGES].stream, err));
    for (int i = first; i < first + n; i++)
        TRY(done(h, h->mine[i].chunk, cairn_runs_sum(&h->mine[i].tiles, h->sums.h), err));
out:
    return st;
}

enum cairn_status cairn_hand_write(struct cairn_handover *h, enum cairn_status (*done)(struct cairn_handover *h, int chunk, struct cairn_digest sum,
                                   struct cairn_error *err), struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    /* what the optimiser or the forward has enqueued is in the store first */
    TRY(cairn_stream_wait(&h->o.compute->stream, err));
    for (int out = 0, back = 0; back < h->n_mine;) {
        int n;

        for (; out < h->n_mine && out - back < h->in_flight; out++)
            TRY(send_chunk(h, &h->mine[out], &h->stage[out % CAIRN_HANDOVER_STAGES], err));
        n = h->at_once ? out - back : 1;
        TRY(sent(h, back, n, done, err));
        back += n;
    }
out:
    for (int i = 0; st != CAIRN_OK && i < CAIRN_HANDOVER_STAGES && h->n_mine; i++) { /* nothing is written any more to a slot that is given up */
        struct cairn_error more = {0};

        cairn_stream_wait(&h->stage[i].stream, &more);
        cairn_stream_wait(&h->beside, &more);
    }
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

    h->slot_tiles.width = h->slot_all.width = CAIRN_TILES_RUN;
    h->bring.width = h->unpack.width = CAIRN_TRANSFER_RUN;
    if (!TAKE(h->check, h->read.chunks) || !TAKE(h->bring_call, h->read.chunks) || !TAKE(h->verified, h->read.chunks) ||
        !TAKE(h->verified_of, h->read.chunks) || !TAKE(h->want, h->read.chunks))
        return CAIRN_NOMEM(err);
    h->check_all = cairn_runs_begin(&h->slot_all);
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
            if (h->path != CAIRN_HANDOVER_NCCL)
                TRY(cairn_runs_add_tiles(&h->slot_all, &h->check_all, &h->tensor[q->tensor], q, d->at, step, err));
            TRY(cairn_runs_add_transfer(&h->bring, &h->bring_call[i], q, elements(h, d->at), d->step, elements(h, d->at), d->step, err));
        }
        cairn_runs_end(&h->slot_tiles, &h->check[i]);
        cairn_runs_end(&h->bring, &h->bring_call[i]);
    }
    cairn_runs_end(&h->slot_all, &h->check_all);
    TRY(cairn_runs_upload(&h->slot_tiles, h->o.compute, err));
    TRY(cairn_runs_upload(&h->slot_all, h->o.compute, err));
out:
    return st;
}

/* What switch_to changes. */
static enum cairn_status views_make(struct cairn_handover *h, struct cairn_error *err)
{
    if (!TAKE(h->view, h->tensors))
        return CAIRN_NOMEM(err);
    for (int j = 0; j < h->tensors; j++) {
        const struct cairn_transit_part *p = cairn_hand_part(h, h->read.place, j);

        if (p)
            h->view[h->views++] = (struct cairn_hand_view){h->param[j], p->at};
    }
    return CAIRN_OK;
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
    TRY(cairn_stream_create(dev, &h->reading, err));
    TRY(cairn_runs_sums_create(&h->read_sums, &h->slot_tiles, dev, err));
    TRY(views_make(h, err));
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
            return copy_bytes(&h->reading, to, at, h->read.slot[slot], at, h->plan.chunk[p].bytes / size * size, err);
    }
    TRY(cairn_runs_transfer(&h->bring, c, h->o.compute, &h->reading, h->read.slot[slot], h->o.dtype, to, h->o.dtype, err));
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

int cairn_hand_verified(const struct cairn_handover *h, int chunk, int slot, uint64_t generation)
{
    return h->verified_of[chunk] == (generation << 8 | (uint64_t)slot) && cairn_digest_equal(h->verified[chunk], h->want[chunk]);
}

enum cairn_status cairn_hand_verify(struct cairn_handover *h, int chunk, int n, int slot, uint64_t generation, struct cairn_error *err)
{
    struct cairn_buffer *at = h->landed[0] ? h->landed[1 - h->landed_in] : h->read.slot[slot];
    const int all = n == h->read.chunks && !h->landed[0] && h->slot_all.rows;
    enum cairn_status st = CAIRN_OK;

    for (int i = chunk; i < chunk + n; i++) {
        h->verified_of[i] = 0;
        if (h->landed[0])
            TRY(bring(h, i, slot, at, err));
        if (!all)
            TRY(cairn_runs_tiles(&h->slot_tiles, &h->check[i], h->o.compute, &h->reading, at, h->read_sums.buf, h->check[i].first, err));
    }
    if (all)
        TRY(cairn_runs_tiles(&h->slot_all, &h->check_all, h->o.compute, &h->reading, at, h->read_sums.buf, 0, err));
    TRY(cairn_stream_wait(&h->reading, err));
    for (int i = chunk; i < chunk + n; i++) {
        h->verified[i] = cairn_runs_sum(&h->check[i], h->read_sums.h);
        if (!cairn_digest_equal(h->verified[i], h->want[i]))
            TRY(cairn_hand_differs(h, i, generation, h->verified[i], h->want[i], err));
        h->verified_of[i] = generation << 8 | (uint64_t)slot;
    }
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
    for (int j = 0; j < h->views; j++) {
        struct cairn_tensor *t = &s->tensor[h->view[j].param];

        if (!t->buf)
            continue;
        t->buf = slot;
        t->offset = h->view[j].at;
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
        TRY(cairn_runs_transfer(&h->unpack, &h->unpack_call, h->o.compute, &h->reading, at, h->o.dtype, h->o.take->buf,
                                h->o.take->tensor[h->param[0]].dtype, err));
        TRY(cairn_stream_wait(&h->reading, err));
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
    cairn_event_destroy(&s->packed);
    cairn_event_destroy(&s->summed);
    cairn_buffer_destroy(s->room);
    memset(s, 0, sizeof *s);
}

void cairn_hand_work_close(struct cairn_handover *h)
{
    for (int i = 0; i < CAIRN_HANDOVER_STAGES; i++)
        stage_free(&h->stage[i]);
    if (h->beside.dev)
        cairn_stream_destroy(&h->beside);
    if (h->reading.dev)
        cairn_stream_destroy(&h->reading);
    memset(&h->beside, 0, sizeof h->beside);
    memset(&h->reading, 0, sizeof h->reading);
    cairn_runs_sums_free(&h->sums);
    cairn_runs_sums_free(&h->read_sums);
    for (int i = 0; i < h->n_mine; i++)
        free(h->mine[i].drop);
    free(h->mine);
    h->mine = NULL;
    h->n_mine = 0;
    cairn_runs_free(&h->pack);
    cairn_runs_free(&h->tiles);
    cairn_runs_free(&h->drop);
    cairn_runs_free(&h->slot_tiles);
    cairn_runs_free(&h->slot_all);
    cairn_runs_free(&h->bring);
    cairn_runs_free(&h->unpack);
    free(h->check);
    free(h->bring_call);
    free(h->verified);
    free(h->verified_of);
    free(h->want);
    free(h->view);
    h->want = NULL;
    h->view = NULL;
    h->views = 0;
    h->check = h->bring_call = NULL;
    h->verified = NULL;
    h->verified_of = NULL;
    for (int i = 0; i < 2; i++) {
        cairn_buffer_destroy(h->landed[i]);
        h->landed[i] = NULL;
    }
}

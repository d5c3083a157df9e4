/* handover_work.c - what the trainer's device does in a handover: cast, send and sum up, in one pass.
 *
 * Each chunk is a job on one of CAIRN_HANDOVER_STAGES streams. Where kernels reach the place (memory of this device, or a peer's
 * over the link) op ship reads the store, writes the slot and leaves the chunk's sum: 4 bytes read and 2 written for each bf16,
 * nothing staged. Elsewhere (several places, host memory, a slot laid out otherwise, op ship asked not to) it writes a room as on
 * the wire, which is copied from there. The host enqueues a few chunks and waits for the oldest; the streams let one chunk begin
 * where the last blocks of the one before it end.
 *
 *     stream 0   ship 0 .... | ship 4 ....        or    ship 0 | copy 0 ........ | ship 4
 *     stream 1       ship 1 .... | ship 5                  ship 1 | copy 1 ........ |
 *     sampler            sum 0 | sum 1 ...
 *
 * Where the only place is memory of this device, sampler and trainer share the GPU, which turns from one process to the other only
 * by slices of time: the trainer enqueues all and waits once, and the sampler sums up all chunks in one call.
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

/* Is the chunk written where it belongs, without a room? */
static int direct(const struct cairn_handover *h, const struct cairn_transit_lane *l)
{
    const struct cairn_hand_end *e = l->places == 1 ? end_of(h, l->place[0]) : NULL;

    return e && (e->local || e->near);
}

static enum cairn_status chunk_tables(struct cairn_handover *h, struct cairn_hand_chunk *m, struct cairn_error *err)
{
    const struct cairn_transit_chunk *c = &h->plan.chunk[m->chunk];
    const struct cairn_transit_lane *l = &h->plan.lane[c->lane];
    const int straight = direct(h, l);
    enum cairn_status st = CAIRN_OK;

    if (!TAKE(m->drop, l->places))
        return CAIRN_NOMEM(err);
    m->ship = cairn_runs_begin(&h->ship);
    for (int i = c->piece; i < c->piece + c->pieces; i++) {
        const struct cairn_transit_piece *q = &h->plan.piece[i];
        const struct cairn_transit_tensor *t = &h->tensor[q->tensor];
        int64_t step[CAIRN_MAX_DIMS];

        cairn_runs_steps(t, straight ? cairn_hand_part(h, l->place[0], q->tensor)->local : q->local, step);
        TRY(cairn_runs_add_tiles(&h->ship, &m->ship, t, q, straight ? q->drop[0].at : q->wire - c->wire, step, err));
    }
    cairn_runs_end(&h->ship, &m->ship);
    for (int k = 0; k < l->places && !straight; k++) {
        size_t at;

        if (cairn_transit_lands(&h->plan, c, k, &at))
            continue;
        m->drop[k] = cairn_runs_begin(&h->drop);
        for (int i = c->piece; i < c->piece + c->pieces; i++) {
            const struct cairn_transit_piece *q = &h->plan.piece[i];

            TRY(cairn_runs_add_transfer(&h->drop, &m->drop[k], q, elements(h, q->wire - c->wire), q->n, elements(h, q->drop[k].at), q->drop[k].step,
                                        err));
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
    int own = h->side[h->group->rank].holder, host = h->side[h->group->rank].host, n = 0;

    h->drop.width = CAIRN_TRANSFER_RUN;
    h->ship.width = CAIRN_SHIP_RUN;
    if (!TAKE(h->mine, h->plan.chunks))
        return CAIRN_NOMEM(err);
    h->at_once = !host;
    for (int c = 0; c < h->plan.chunks; c++) {
        const struct cairn_transit_lane *l = &h->plan.lane[h->plan.chunk[c].lane];

        if (l->holder != own)
            continue;
        h->n_mine = n + 1;
        h->mine[n].chunk = c;
        TRY(chunk_tables(h, &h->mine[n++], err));
        h->at_once = h->at_once && direct(h, l) && end_of(h, l->place[0])->local;
        if (!direct(h, l) && h->plan.chunk[c].bytes > room)
            room = h->plan.chunk[c].bytes;
    }
    TRY(cairn_runs_upload(&h->ship, h->o.compute, err));
    TRY(cairn_runs_upload(&h->drop, h->o.compute, err));
    h->in_flight = h->at_once ? n : host ? 1 : CAIRN_HANDOVER_STAGES;
    TRY(cairn_runs_sums_create(&h->sums, n, h->o.compute->dev, err));
    for (int i = 0; i < CAIRN_HANDOVER_STAGES && n; i++) {
        TRY(cairn_stream_create(h->o.compute->dev, &h->stage[i].stream, err));
        if (room)
            TRY(cairn_buffer_create(h->o.compute->dev, (room + 255) / 256 * 256, &h->stage[i].room, err));
    }
out:
    return st;
}

/* ---- trainer: work ----------------------------------------------------------------------------------------------------------- */

enum cairn_status cairn_hand_copy(struct cairn_stream *s, struct cairn_buffer *dst, size_t to, struct cairn_buffer *src,
                                  size_t from, size_t bytes, struct cairn_error *err)
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

enum cairn_status cairn_hand_ship(struct cairn_handover *h, int i, struct cairn_buffer *to, struct cairn_stream *s,
                                  struct cairn_error *err)
{
    const struct cairn_hand_chunk *m = &h->mine[i];

    return cairn_runs_ship(&h->ship, &m->ship, h->o.compute, s, h->o.give->buf, h->plan.piece[h->plan.chunk[m->chunk].piece].held,
                           to, h->o.dtype, h->sums.buf, i, err);
}

struct cairn_digest cairn_hand_sum(const struct cairn_handover *h, int i)
{
    return (struct cairn_digest){(uint64_t)h->sums.h[2 * i], (uint64_t)h->sums.h[2 * i + 1]};
}

static enum cairn_status send_chunk(struct cairn_handover *h, int n, struct cairn_hand_stage *s, struct cairn_error *err)
{
    const struct cairn_hand_chunk *m = &h->mine[n];
    const struct cairn_transit_chunk *c = &h->plan.chunk[m->chunk];
    const struct cairn_transit_lane *l = &h->plan.lane[c->lane];
    struct cairn_hand_end *e = end_of(h, l->place[0]);
    enum cairn_status st = CAIRN_OK;

    cairn_hand_mark(h, &s->stream, "ship", m->chunk, 0);
    TRY(cairn_hand_ship(h, n, direct(h, l) ? e->slot[e->open] : s->room, &s->stream, err));
    cairn_hand_mark(h, &s->stream, "ship", m->chunk, 1);
    for (int i = 0; i < l->places && !direct(h, l); i++) {
        size_t at;

        e = end_of(h, l->place[i]);
        cairn_hand_mark(h, &s->stream, "copy", m->chunk, 0);
        if (cairn_transit_lands(&h->plan, c, i, &at))
            TRY(cairn_hand_copy(&s->stream, e->slot[e->open], at, s->room, 0, c->bytes, err));
        else
            TRY(cairn_runs_transfer(&h->drop, &m->drop[i], h->o.compute, &s->stream, s->room, h->o.dtype, e->slot[e->open],
                                    h->o.dtype, err));
        cairn_hand_mark(h, &s->stream, "copy", m->chunk, 1);
    }
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
    cairn_hand_mark(h, NULL, "sent", h->mine[first].chunk, 1);
    for (int i = first; i < first + n; i++)
        TRY(done(h, h->mine[i].chunk, cairn_hand_sum(h, i), err));
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
            TRY(send_chunk(h, out, &h->stage[out % CAIRN_HANDOVER_STAGES], err));
        n = h->at_once ? out - back : 1;
        TRY(sent(h, back, n, done, err));
        back += n;
    }
out:
    for (int i = 0; st != CAIRN_OK && i < CAIRN_HANDOVER_STAGES && h->n_mine; i++) { /* nothing is written any more to a slot that is given up */
        struct cairn_error more = {0};

        cairn_stream_wait(&h->stage[i].stream, &more);
    }
    return st;
}

/* ---- end ------------------------------------------------------------------------------------------------------------------------------- */

static void stage_free(struct cairn_hand_stage *s)
{
    if (s->stream.dev)
        cairn_stream_destroy(&s->stream);
    cairn_buffer_destroy(s->room);
    memset(s, 0, sizeof *s);
}

void cairn_hand_work_close(struct cairn_handover *h)
{
    for (int i = 0; i < CAIRN_HANDOVER_STAGES; i++)
        stage_free(&h->stage[i]);
    if (h->beside.dev)
        cairn_stream_destroy(&h->beside);
    memset(&h->beside, 0, sizeof h->beside);
    cairn_runs_sums_free(&h->sums);
    cairn_runs_sums_free(&h->read_sums);
    for (int i = 0; i < h->n_mine; i++)
        free(h->mine[i].drop);
    free(h->mine);
    h->mine = NULL;
    h->n_mine = 0;
    cairn_runs_free(&h->ship);
    cairn_runs_free(&h->drop);
    cairn_hand_read_close(h);
}

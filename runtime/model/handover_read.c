/* handover_read.c - what the sampler's device does in a handover: look at what arrived, and take it over.
 *
 * Chunks are summed up where they landed, from tables made for the slot, a few looks under way at a time, so that bringing one here
 * (where slots are host memory) and summing up another go on together; the slot is taken over when all agree with what was sent.
 */
#include <stdlib.h>
#include <string.h>

#include "model/handover_impl.h"

#define TAKE(p, n) (((p) = calloc((size_t)(n) + 1, sizeof *(p))) != NULL)

static int64_t elements(const struct cairn_handover *h, size_t bytes)
{
    return (int64_t)(bytes / cairn_dtype_size(h->o.dtype));
}

/* ---- tables ------------------------------------------------------------------------------------------------------------- */

/* From the place's memory into the store. */
static enum cairn_status unpack_tables(struct cairn_handover *h, const struct cairn_transit_part *own, int n,
                                       struct cairn_error *err)
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

        TRY(cairn_runs_add_transfer(&h->unpack, &h->unpack_call, q, elements(h, q->src), q->src_step, elements(h, q->drop[0].at),
                                    q->drop[0].step, err));
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

        if (own[i].dtype != h->o.dtype || memcmp(p->local, own[i].local, sizeof p->local) ||
            memcmp(p->offset, own[i].offset, sizeof p->offset))
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
            TRY(cairn_runs_add_transfer(&h->bring, &h->bring_call[i], q, elements(h, d->at), d->step, elements(h, d->at), d->step,
                                        err));
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
    for (int i = 0; i < CAIRN_HANDOVER_LOOKS; i++)
        TRY(cairn_stream_create(dev, &h->look[i].stream, err));
    TRY(cairn_runs_sums_create(&h->read_sums, h->slot_tiles.rows, dev, err));
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

/* ---- work ------------------------------------------------------------------------------------------------------------------ */

static const char *first_tensor(const struct cairn_handover *h, int chunk)
{
    for (int c = 0; c < h->plan.chunks; c++)
        if (h->read.index[c] == chunk)
            return h->tensor[h->plan.piece[h->plan.chunk[c].piece].tensor].name;
    return "";
}

/* Slot -> the device's own memory, at the same place. */
static enum cairn_status bring(struct cairn_handover *h, int chunk, int slot, struct cairn_buffer *to, struct cairn_stream *s,
                               struct cairn_error *err)
{
    const struct cairn_runs_call *c = &h->bring_call[chunk];
    size_t size = cairn_dtype_size(h->o.dtype);
    enum cairn_status st = CAIRN_OK;

    for (int p = 0; p < h->plan.chunks; p++) {
        size_t at;

        if (h->read.index[p] != chunk)
            continue;
        if (cairn_transit_lands(&h->plan, &h->plan.chunk[p],
                                cairn_hand_place_of(&h->plan.lane[h->plan.chunk[p].lane], h->read.place), &at))
            return cairn_hand_copy(s, to, at, h->read.slot[slot], at, h->plan.chunk[p].bytes / size * size, err);
    }
    TRY(cairn_runs_transfer(&h->bring, c, h->o.compute, s, h->read.slot[slot], h->o.dtype, to, h->o.dtype, err));
out:
    return st;
}

enum cairn_status cairn_hand_differs(const struct cairn_handover *h, int chunk, uint64_t generation, struct cairn_digest have,
                                     struct cairn_digest want, struct cairn_error *err)
{
    char is[33], should[33];

    cairn_digest_hex(have, is);
    cairn_digest_hex(want, should);
    return cairn_fail(err, CAIRN_EDATA, "generation %llu: chunk %d (%s ...) arrived with digest %s, was sent with %s",
                      (unsigned long long)generation, chunk, first_tensor(h, chunk), is, should);
}

int cairn_hand_verified(const struct cairn_handover *h, int chunk, int slot, uint64_t generation)
{
    return h->verified_of[chunk] == (generation << 8 | (uint64_t)slot) && cairn_digest_equal(h->verified[chunk], h->want[chunk]);
}

/* Chunks of a look that is under way: their sums are here. */
static enum cairn_status look_end(struct cairn_handover *h, struct cairn_hand_look *l, struct cairn_error *err)
{
    enum cairn_status st;
    int first = l->first, n = l->n;

    l->n = 0;
    TRY(cairn_stream_wait(&l->stream, err));
    cairn_hand_mark(h, NULL, "looked", first, 1);
    for (int i = first; i < first + n; i++) {
        h->verified[i] = cairn_runs_sum(&h->check[i], h->read_sums.h);
        if (!cairn_digest_equal(h->verified[i], h->want[i]))
            TRY(cairn_hand_differs(h, i, l->generation, h->verified[i], h->want[i], err));
        h->verified_of[i] = l->generation << 8 | (uint64_t)l->slot;
    }
out:
    return st;
}

/* The looks that are done, or all of them; they were begun in turn and end in turn. The first error is told, no look is left under
 * way by it. */
static enum cairn_status looks_end(struct cairn_handover *h, int all, int *ended, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK, one;

    for (int k = 0; k < CAIRN_HANDOVER_LOOKS; k++) {
        struct cairn_hand_look *l = &h->look[(h->next_look + k) % CAIRN_HANDOVER_LOOKS];

        if (!l->n || (!all && !cairn_stream_idle(&l->stream)))
            continue;
        one = look_end(h, l, st == CAIRN_OK ? err : NULL);
        st = st == CAIRN_OK ? one : st;
        *ended += 1;
    }
    return st;
}

int cairn_hand_looking(const struct cairn_handover *h, int chunk)
{
    for (int i = 0; i < CAIRN_HANDOVER_LOOKS; i++)
        if (h->look[i].n && chunk >= h->look[i].first && chunk < h->look[i].first + h->look[i].n)
            return 1;
    return 0;
}

enum cairn_status cairn_hand_look(struct cairn_handover *h, int chunk, int n, int slot, uint64_t generation,
                                  struct cairn_error *err)
{
    struct cairn_buffer *at = h->landed[0] ? h->landed[1 - h->landed_in] : h->read.slot[slot];
    const int all = n == h->read.chunks && !h->landed[0] && h->slot_all.rows;
    struct cairn_hand_look *l = &h->look[h->next_look];
    enum cairn_status st = CAIRN_OK;

    if (l->n)
        TRY(look_end(h, l, err));
    h->next_look = (h->next_look + 1) % CAIRN_HANDOVER_LOOKS;
    cairn_hand_mark(h, &l->stream, "look", chunk, 0);
    for (int i = chunk; i < chunk + n; i++) {
        h->verified_of[i] = 0;
        if (h->landed[0])
            TRY(bring(h, i, slot, at, &l->stream, err));
        if (!all)
            TRY(cairn_runs_tiles(&h->slot_tiles, &h->check[i], h->o.compute, &l->stream, at, h->read_sums.buf, h->check[i].first,
                                 err));
    }
    if (all)
        TRY(cairn_runs_tiles(&h->slot_all, &h->check_all, h->o.compute, &l->stream, at, h->read_sums.buf, 0, err));
    cairn_hand_mark(h, &l->stream, "look", chunk, 1);
    l->first = chunk, l->n = n, l->slot = slot, l->generation = generation;
out:
    return st;
}

enum cairn_status cairn_hand_looked(struct cairn_handover *h, int *ended, struct cairn_error *err)
{
    *ended = 0;
    return looks_end(h, 0, ended, err);
}

enum cairn_status cairn_hand_look_end(struct cairn_handover *h, struct cairn_error *err)
{
    int ended = 0;

    return looks_end(h, 1, &ended, err);
}

/* The store's tensors become views of the slot: the first time each of them, of a buffer that stands for whichever slot serves; then that one word
 * is the switch, however many tensors there are. */
static enum cairn_status switch_to(struct cairn_handover *h, struct cairn_buffer *slot, struct cairn_error *err)
{
    struct cairn_store *s = h->o.take;

    if (!h->own) {
        if ((!h->serving && !TAKE(h->serving, 1)) || !TAKE(h->own, h->o.table->count))
            return CAIRN_NOMEM(err);
        *h->serving = *slot;
        h->serving->opened = 0;
        memcpy(h->own, s->tensor, (size_t)h->o.table->count * sizeof *h->own);
        for (int j = 0; j < h->views; j++) {
            struct cairn_tensor *t = &s->tensor[h->view[j].param];

            if (!t->buf)
                continue;
            t->buf = h->serving;
            t->offset = h->view[j].at;
        }
    }
    h->serving->impl = slot->impl;
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
        TRY(cairn_runs_transfer(&h->unpack, &h->unpack_call, h->o.compute, &h->look[0].stream, at, h->o.dtype, h->o.take->buf,
                                h->o.take->tensor[h->param[0]].dtype, err));
        TRY(cairn_stream_wait(&h->look[0].stream, err));
    }
    h->landed_in = 1 - h->landed_in;
out:
    return st;
}

/* ---- end
 * -------------------------------------------------------------------------------------------------------------------------------
 */

void cairn_hand_read_close(struct cairn_handover *h)
{
    for (int i = 0; i < CAIRN_HANDOVER_LOOKS; i++) {
        if (h->look[i].stream.dev)
            cairn_stream_destroy(&h->look[i].stream);
        memset(&h->look[i], 0, sizeof h->look[i]);
    }
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

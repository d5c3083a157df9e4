/* handover_wire.c - path nccl: chunks through a channel, along chains of places.
 *
 * A lane's chunk goes from its holder to the first of its places, from there to the second, and so on, while the next chunk follows behind:
 * each byte leaves the holder once and crosses each link once. In beat t hop k of chunk t - k is made, for every chunk of the plan: all
 * ranks walk the same list, so whoever sends meets whoever receives. A place sums up each chunk when it has it; the holders' sums come
 * with the last message of the group, all ranks agree, and only then a sampler takes the generation over.
 *
 * What the channel moves is enqueued on one stream a rank, since NCCL orders a communicator's work anyhow; packing and summing up go on
 * beside it on another, events between the two. Ranks that are trainer and sampler at once, or
 * share a GPU, take cuda-ipc.
 */
#include <stdlib.h>
#include <string.h>

#include "model/handover_impl.h"

struct message { /* what every rank tells before and after the bytes */
    uint64_t generation;
    struct cairn_ring_tag tag;
};

static const struct cairn_hand_side *self(const struct cairn_handover *h)
{
    return &h->side[h->group->rank];
}

/* ---- open ------------------------------------------------------------------------------------------------------------------------ */

/* From a room, as on the wire, into the slot: for the chunks that do not land by themselves. */
static enum cairn_status place_tables(struct cairn_handover *h, struct cairn_error *err)
{
    const int64_t size = (int64_t)cairn_dtype_size(h->o.dtype);
    enum cairn_status st = CAIRN_OK;

    h->place_runs.width = CAIRN_TRANSFER_RUN;
    if (!(h->place_call = calloc((size_t)h->read.chunks + 1, sizeof *h->place_call)))
        return CAIRN_NOMEM(err);
    for (int c = 0; c < h->plan.chunks; c++) {
        const struct cairn_transit_chunk *k = &h->plan.chunk[c];
        int i = h->read.index[c], place = i < 0 ? -1 : cairn_hand_place_of(&h->plan.lane[k->lane], h->read.place);
        size_t at;

        if (i < 0 || cairn_transit_lands(&h->plan, k, place, &at))
            continue;
        h->place_call[i] = cairn_runs_begin(&h->place_runs);
        for (int j = k->piece; j < k->piece + k->pieces; j++) {
            const struct cairn_transit_piece *q = &h->plan.piece[j];

            TRY(cairn_runs_add_transfer(&h->place_runs, &h->place_call[i], q, (int64_t)(q->wire - k->wire) / size, q->n,
                                        (int64_t)q->drop[place].at / size, q->drop[place].step, err));
        }
        cairn_runs_end(&h->place_runs, &h->place_call[i]);
    }
    TRY(cairn_runs_upload(&h->place_runs, h->o.compute, err));
out:
    return st;
}

static enum cairn_status rooms_make(struct cairn_handover *h, struct cairn_error *err)
{
    struct cairn_device *dev = h->o.compute->dev;
    enum cairn_status st = CAIRN_OK;
    size_t most = 0;

    for (int c = 0; c < h->plan.chunks; c++)
        most = h->plan.chunk[c].bytes > most ? h->plan.chunk[c].bytes : most;
    most = (most + 255) / 256 * 256;
    TRY(cairn_stream_create(dev, &h->along, err));
    if (!h->beside.dev)
        TRY(cairn_stream_create(dev, &h->beside, err));
    for (int i = 0; i < 2; i++) {
        TRY(cairn_event_create(dev, &h->here[i], err));
        TRY(cairn_event_create(dev, &h->sent[i], err));
    }
    if (h->sampler) {
        TRY(cairn_hand_reader_open(h, 0, err));
        for (int i = 0; i < 2; i++) /* chunks that do not land by themselves; one is sent on while the next comes */
            TRY(cairn_buffer_create(dev, most, &h->through[i], err));
        TRY(place_tables(h, err));
        for (int i = 0; i < 2; i++)
            TRY(cairn_buffer_create(dev, h->place_bytes[h->read.place], &h->read.slot[i], err));
    }
    if (h->trainer)
        TRY(cairn_hand_writer_open(h, err));
out:
    return st;
}

enum cairn_status cairn_hand_wire_open(struct cairn_handover *h, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    h->read.place = self(h)->place;
    for (int r = 0; r < h->ranks; r++)
        if (h->side[r].trainer && h->side[r].sampler)
            return cairn_fail(err, CAIRN_EDEVICE, "sync.path nccl: rank %d is trainer and sampler at once; take auto or cuda-ipc", r);
    if (h->sampler)
        st = cairn_hand_index(h, &h->read, err);
    TRY(cairn_group_agree(h->group, "handover: plan", st, err));
    TRY(cairn_channel_open(&h->channel, h->group, h->o.compute->dev, h->o.transport, err));
    TRY(cairn_group_agree(h->group, "handover: ready", rooms_make(h, err), err));
out:
    return st;
}

void cairn_hand_wire_close(struct cairn_handover *h)
{
    cairn_channel_close(h->channel);
    h->channel = NULL;
    if (h->along.dev)
        cairn_stream_destroy(&h->along);
    for (int i = 0; i < 2; i++) {
        cairn_event_destroy(&h->here[i]);
        cairn_event_destroy(&h->sent[i]);
        cairn_buffer_destroy(h->through[i]);
        cairn_buffer_destroy(h->read.slot[i]);
        h->through[i] = h->read.slot[i] = NULL;
    }
    cairn_runs_free(&h->place_runs);
    free(h->place_call);
    free(h->read.index);
    h->place_call = NULL;
    h->read.index = NULL;
}

/* ---- moves ------------------------------------------------------------------------------------------------------------------------- */

/* Rank of stop k of a chunk's chain: 0 the holder, then the places. */
static int stop_rank(const struct cairn_handover *h, const struct cairn_transit_lane *l, int k)
{
    if (k > 0)
        return h->place_rank[l->place[k - 1]];
    for (int r = 0; r < h->ranks; r++)
        if (h->side[r].holder == l->holder)
            return r;
    return -1;
}

/* Where chunk c is, or comes to be, on this rank as stop k of its chain. */
static enum cairn_status chunk_view(struct cairn_handover *h, int c, int k, int slot, struct cairn_tensor *out, struct cairn_error *err)
{
    const int64_t n = (int64_t)h->plan.chunk[c].bytes;
    size_t at;

    if (k == 0)
        return cairn_tensor_view(out, h->stage[c % CAIRN_HANDOVER_STAGES].room, 0, CAIRN_U8, 1, &n, err);
    if (!cairn_transit_lands(&h->plan, &h->plan.chunk[c], k - 1, &at))
        return cairn_tensor_view(out, h->through[c % 2], 0, CAIRN_U8, 1, &n, err);
    return cairn_tensor_view(out, h->read.slot[slot], at, CAIRN_U8, 1, &n, err);
}

/* Trainer: the chunk into its room, and its sum. */
static enum cairn_status pack(struct cairn_handover *h, int c, struct cairn_error *err)
{
    struct cairn_hand_stage *s = &h->stage[c % CAIRN_HANDOVER_STAGES];
    enum cairn_status st = CAIRN_OK;
    int i = 0;

    while (i < h->n_mine && h->mine[i].chunk != c)
        i++;
    if (i == h->n_mine)
        return CAIRN_BUG(err, "a chunk of nobody");
    TRY(cairn_event_wait(&h->sent[c % 2], &h->beside, err)); /* the room is free */
    TRY(cairn_hand_ship(h, i, s->room, &h->beside, err));
    TRY(cairn_event_record(&h->here[c % 2], &h->beside, err));
    TRY(cairn_event_wait(&h->here[c % 2], &h->along, err));
out:
    return st;
}

/* Sampler: the chunk is here as stop k; into the slot where it is not, and its sum. */
static enum cairn_status unpack(struct cairn_handover *h, int c, int k, int slot, struct cairn_error *err)
{
    const int i = h->read.index[c];
    size_t at;
    enum cairn_status st = CAIRN_OK;

    if (!cairn_transit_lands(&h->plan, &h->plan.chunk[c], k - 1, &at))
        TRY(cairn_runs_transfer(&h->place_runs, &h->place_call[i], h->o.compute, &h->along, h->through[c % 2], h->o.dtype, h->read.slot[slot],
                                h->o.dtype, err));
    TRY(cairn_event_record(&h->here[c % 2], &h->along, err));
    TRY(cairn_event_wait(&h->here[c % 2], &h->beside, err));
    TRY(cairn_runs_tiles(&h->slot_tiles, &h->check[i], h->o.compute, &h->beside, h->read.slot[slot], h->read_sums.buf, h->check[i].first, err));
out:
    return st;
}

/* One hop of one chunk, if this rank has part in it. */
static enum cairn_status hop(struct cairn_handover *h, int c, int k, int slot, struct cairn_error *err)
{
    const struct cairn_transit_lane *l = &h->plan.lane[h->plan.chunk[c].lane];
    int from = stop_rank(h, l, k), to = stop_rank(h, l, k + 1), own = h->group->rank;
    struct cairn_tensor t;
    enum cairn_status st = CAIRN_OK;

    if (own != from && own != to)
        return CAIRN_OK;
    if (own == from && k == 0)
        TRY(pack(h, c, err));
    TRY(chunk_view(h, c, own == from ? k : k + 1, slot, &t, err));
    TRY(cairn_channel_exchange(h->channel, &h->along, "handover", own == from ? to : -1, own == from ? &t : NULL, own == to ? from : -1,
                               own == to ? &t : NULL, err));
    if (own == from && k == 0)
        TRY(cairn_event_record(&h->sent[c % 2], &h->along, err));
    if (own == to)
        TRY(unpack(h, c, k + 1, slot, err));
out:
    return st;
}

static enum cairn_status walk(struct cairn_handover *h, int slot, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int longest = 0;

    for (int i = 0; i < h->plan.lanes; i++)
        longest = h->plan.lane[i].places > longest ? h->plan.lane[i].places : longest;
    for (int t = 0; t < h->plan.chunks + longest - 1; t++)
        for (int k = longest - 1; k >= 0; k--) /* on before in: what is sent on is not overwritten */
            if (t - k >= 0 && t - k < h->plan.chunks && k < h->plan.lane[h->plan.chunk[t - k].lane].places)
                TRY(hop(h, t - k, k, slot, err));
    TRY(cairn_channel_settle(h->channel, err));
out:
    return st;
}

/* ---- sums ---------------------------------------------------------------------------------------------------------------------------- */

/* sum[plan.chunks] of each chunk, as its holder sent it. */
static enum cairn_status sums_gather(struct cairn_handover *h, struct cairn_digest *sum, struct cairn_error *err)
{
    size_t n = (size_t)h->plan.chunks;
    struct cairn_digest *own = calloc(n + 1, sizeof *own), *all = malloc((size_t)h->ranks * n * sizeof *all + 1);
    enum cairn_status st = own && all ? CAIRN_OK : CAIRN_NOMEM(err);

    if (st == CAIRN_OK && h->n_mine)
        st = cairn_stream_wait(&h->beside, err);
    for (int i = 0; st == CAIRN_OK && i < h->n_mine; i++)
        own[h->mine[i].chunk] = cairn_hand_sum(h, i);
    TRY(cairn_group_agree(h->group, "handover: sent", st, err));
    TRY(cairn_group_allgather(h->group, "handover: sums", own, n * sizeof *own, all, err));
    for (int c = 0; c < h->plan.chunks; c++)
        sum[c] = all[(size_t)stop_rank(h, &h->plan.lane[h->plan.chunk[c].lane], 0) * n + (size_t)c];
out:
    free(own);
    free(all);
    return st;
}

static enum cairn_status compare(struct cairn_handover *h, const struct cairn_digest *want, uint64_t generation, struct cairn_error *err)
{
    enum cairn_status st = cairn_stream_wait(&h->beside, err);

    for (int c = 0; st == CAIRN_OK && c < h->plan.chunks; c++) {
        int i = h->read.index[c];
        struct cairn_digest have;

        if (i < 0)
            continue;
        have = cairn_runs_sum(&h->check[i], h->read_sums.h);
        if (!cairn_digest_equal(have, want[c]))
            TRY(cairn_hand_differs(h, i, generation, have, want[c], err));
    }
out:
    return st;
}

/* ---- give and take, which meet ----------------------------------------------------------------------------------------------------------- */

static enum cairn_status meet(struct cairn_handover *h, struct message *m, struct cairn_error *err)
{
    struct message *all = malloc((size_t)h->ranks * sizeof *all);
    struct cairn_digest *sum = malloc(((size_t)h->plan.chunks + 1) * sizeof *sum);
    int slot = h->slot_in ^ 1;
    enum cairn_status st = CAIRN_OK;

    if (!all || !sum)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_stream_wait(&h->o.compute->stream, err));
    TRY(cairn_group_allgather(h->group, "handover: generation", m, sizeof *m, all, err));
    for (int r = 0; r < h->ranks; r++) {
        if (all[r].generation != all[0].generation)
            TRY(cairn_fail(err, CAIRN_EBUG, "rank %d hands over generation %llu, rank %d waits for %llu", h->group->members[0],
                           (unsigned long long)all[0].generation, h->group->members[r], (unsigned long long)all[r].generation));
        if (h->side[r].trainer && h->side[r].holder == 0)
            m->tag = all[r].tag;
    }
    TRY(walk(h, slot, err));
    TRY(sums_gather(h, sum, err));
    m->tag.weights = (struct cairn_digest){0, 0};
    for (int c = 0; c < h->plan.chunks; c++)
        m->tag.weights = cairn_digest_add(m->tag.weights, sum[c]);
    TRY(cairn_group_agree(h->group, "handover: arrived", h->sampler ? compare(h, sum, m->generation, err) : CAIRN_OK, err));
    if (h->sampler) {
        TRY(cairn_hand_adopt(h, slot, err));
        h->slot_in = slot;
    }
out:
    free(all);
    free(sum);
    return st;
}

enum cairn_status cairn_hand_wire_give(struct cairn_handover *h, uint64_t generation, const struct cairn_ring_tag *tag, struct cairn_error *err)
{
    struct message m = {generation, *tag};

    return meet(h, &m, err);
}

enum cairn_status cairn_hand_wire_take(struct cairn_handover *h, uint64_t generation, uint64_t *got, struct cairn_ring_tag *tag,
                                       struct cairn_error *err)
{
    struct message m = {.generation = generation};
    enum cairn_status st = meet(h, &m, err);

    if (st == CAIRN_OK) {
        *got = generation;
        *tag = m.tag;
    }
    return st;
}

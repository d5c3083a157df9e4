/* handover_ring.c - paths shm and cuda-ipc: rings between the processes of one node.
 *
 * A place's memory is made by its lowest rank: on shm the payload of the ring itself, on cuda-ipc two buffers of that sampler's GPU, whose
 * names stand in the ring's rooms. Of the trainer's ranks that send into a place the lowest leads: it begins and commits, the others
 * wait for its slot to open and land their chunks. Nobody waits for a sampler, but for a slot that one still holds.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "model/handover_impl.h"

#define PAGE    4096
#define WAIT_S  0.00002
#define EAGER_S 0.01

_Static_assert(sizeof(struct cairn_share) <= CAIRN_RING_ROOM, "a ring's room holds a name");

static const struct cairn_hand_side *self(const struct cairn_handover *h)
{
    return &h->side[h->group->rank];
}

static size_t slot_bytes(const struct cairn_handover *h, int place)
{
    return (h->place_bytes[place] + PAGE - 1) / PAGE * PAGE;
}

/* Layout digest of a place's ring: the plan's, and which place of it. */
static struct cairn_digest layout(const struct cairn_handover *h, int place)
{
    struct cairn_digest d = h->plan.digest;

    d.lo += (uint64_t)place;
    return d;
}

/* ---- open ------------------------------------------------------------------------------------------------------------------- */

static enum cairn_status ring_make(struct cairn_handover *h, struct cairn_error *err)
{
    int place = self(h)->place, shm = h->path == CAIRN_HANDOVER_SHM;
    const struct cairn_ring_opts o = {.slots = 2, .chunks = h->read.chunks, .slot_bytes = shm ? slot_bytes(h, place) : 0, .layout = layout(h, place)};
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_ring_create(&h->read.ring, &o, err));
    for (int i = 0; i < 2 && !shm; i++) {
        TRY(cairn_buffer_create(h->o.compute->dev, h->place_bytes[place], &h->read.slot[i], err));
        TRY(cairn_buffer_export(h->read.slot[i], cairn_ring_room(h->read.ring, i), err));
    }
out:
    return st;
}

/* Both slots of a ring in host memory as buffers of this rank's device. */
static enum cairn_status pin_slots(struct cairn_handover *h, struct cairn_hand_end *e, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < 2; i++)
        TRY(cairn_buffer_pin(h->o.compute->dev, cairn_ring_data(e->ring, i), cairn_ring_slot_bytes(e->ring), &e->slot[i], err));
out:
    return st;
}

static enum cairn_status import_slots(struct cairn_handover *h, struct cairn_hand_end *e, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_buffer *here = NULL; /* tells which device this is */
    struct cairn_share own, room;

    TRY(cairn_buffer_create(h->o.compute->dev, (size_t)2 << 20, &here, err));
    TRY(cairn_buffer_export(here, &own, err));
    for (int i = 0; i < 2; i++) {
        memcpy(&room, cairn_ring_room(e->ring, i), sizeof room);
        if (room.bytes != h->place_bytes[e->place])
            TRY(cairn_fail(err, CAIRN_EDATA, "place %d has %llu bytes, the plan says %zu", e->place, (unsigned long long)room.bytes,
                           h->place_bytes[e->place]));
        TRY(cairn_buffer_import(h->o.compute->dev, &room, &e->slot[i], err));
        e->local = room.kind == own.kind;
        e->near = h->o.send != CAIRN_HANDOVER_STAGED;
    }
out:
    cairn_buffer_destroy(here);
    return st;
}

/* Do samplers follow? All trainer ranks tell whether they land all at once. */
static enum cairn_status follows(struct cairn_handover *h, struct cairn_error *err)
{
    int32_t own = h->trainer && !h->at_once, *all = malloc((size_t)h->ranks * sizeof *all);
    enum cairn_status st = CAIRN_OK;

    if (!all)
        return CAIRN_NOMEM(err);
    TRY(cairn_group_allgather(h->group, "handover: who lands all at once", &own, sizeof own, all, err));
    for (int r = 0; r < h->ranks; r++)
        h->follows = h->follows || all[r];
out:
    free(all);
    return st;
}

/* The places that this rank's lanes go to. */
static enum cairn_status ends_make(struct cairn_handover *h, const struct cairn_ring_place *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    if (!(h->end = calloc((size_t)h->places + 1, sizeof *h->end)))
        return CAIRN_NOMEM(err);
    for (int p = 0; p < h->places; p++) {
        struct cairn_hand_end *e = &h->end[h->ends];
        int lead = -1, own = 0;

        for (int i = 0; i < h->plan.lanes; i++) { /* by holder */
            const struct cairn_transit_lane *l = &h->plan.lane[i];

            if (cairn_hand_place_of(l, p) < 0)
                continue;
            lead = lead < 0 ? l->holder : lead;
            own = own || l->holder == self(h)->holder;
        }
        if (!own)
            continue;
        *e = (struct cairn_hand_end){.place = p, .lead = lead == self(h)->holder, .local = h->path == CAIRN_HANDOVER_SHM && self(h)->host};
        h->ends++;
        TRY(cairn_hand_index(h, e, err));
        TRY(cairn_ring_attach(&e->ring, &where[h->place_rank[p]], layout(h, p), err));
        if (h->path == CAIRN_HANDOVER_SHM) {
            TRY(pin_slots(h, e, err));
            e->near = h->o.send == CAIRN_HANDOVER_STRAIGHT;
        } else if (h->place_rank[p] == h->group->rank) { /* its own sampler: CUDA maps no process's memory into itself */
            for (int i = 0; i < 2; i++)
                e->slot[i] = h->read.slot[i];
            e->local = 1;
        } else {
            TRY(import_slots(h, e, err));
        }
    }
out:
    return st;
}

enum cairn_status cairn_hand_ring_open(struct cairn_handover *h, struct cairn_error *err)
{
    const int shm = h->path == CAIRN_HANDOVER_SHM;
    struct cairn_ring_place own = {.fd = -1}, *where = calloc((size_t)h->ranks, sizeof *where);
    enum cairn_status st = where ? CAIRN_OK : CAIRN_NOMEM(err);
    int maker = h->sampler && h->place_rank[self(h)->place] == h->group->rank;

    h->read.place = self(h)->place;
    if (st == CAIRN_OK && h->sampler)
        st = cairn_hand_index(h, &h->read, err);
    if (st == CAIRN_OK && maker)
        st = ring_make(h, err);
    TRY(cairn_group_agree(h->group, "handover: memory", st, err));
    if (maker)
        cairn_ring_place(h->read.ring, &own);
    TRY(cairn_group_allgather(h->group, "handover: where it is", &own, sizeof own, where, err));
    if (h->sampler && !maker)
        st = cairn_ring_attach(&h->read.ring, &where[h->place_rank[h->read.place]], layout(h, h->read.place), err);
    if (st == CAIRN_OK && h->sampler && shm)
        st = pin_slots(h, &h->read, err);
    if (st == CAIRN_OK && h->sampler)
        st = cairn_hand_reader_open(h, shm, err);
    if (st == CAIRN_OK && h->trainer)
        st = ends_make(h, where, err);
    if (st == CAIRN_OK && h->trainer)
        st = cairn_hand_writer_open(h, err);
    TRY(cairn_group_agree(h->group, "handover: ready", st, err));
    TRY(follows(h, err));
out:
    free(where);
    return st;
}

static void end_free(struct cairn_hand_end *e, int slots_are_mine)
{
    for (int i = 0; i < 2 && slots_are_mine; i++)
        cairn_buffer_destroy(e->slot[i]);
    cairn_ring_close(e->ring);
    free(e->index);
    memset(e, 0, sizeof *e);
}

void cairn_hand_ring_close(struct cairn_handover *h)
{
    for (int i = 0; i < h->ends; i++)
        end_free(&h->end[i], h->end[i].slot[0] != h->read.slot[0]);
    free(h->end);
    h->end = NULL;
    h->ends = 0;
    if (h->read.ring && h->path == CAIRN_HANDOVER_IPC)
        cairn_ring_leave(h->read.ring); /* its slots are this rank's */
    end_free(&h->read, 1);
}

/* ---- give --------------------------------------------------------------------------------------------------------------------- */

static enum cairn_status late(const struct cairn_handover *h, const char *what, uint64_t generation, struct cairn_error *err)
{
    return cairn_fail(err, CAIRN_EAGAIN, "generation %llu: %s did not come within %.1f s", (unsigned long long)generation, what, h->deadline_s);
}

/* The slot that the leader opens. */
static enum cairn_status slot_wait(const struct cairn_handover *h, struct cairn_hand_end *e, uint64_t generation, struct cairn_error *err)
{
    double end = cairn_now_s() + h->deadline_s;
    uint64_t g;

    while (!cairn_ring_open_slot(e->ring, &g, &e->open) || g != generation) {
        if (cairn_now_s() > end)
            return late(h, "the leading trainer rank", generation, err);
        cairn_sleep_s(WAIT_S);
    }
    return CAIRN_OK;
}

static uint64_t giving(const struct cairn_handover *h)
{
    uint64_t g = 0;
    int slot;

    for (int i = 0; i < h->ends && !g; i++)
        cairn_ring_open_slot(h->end[i].ring, &g, &slot);
    return g;
}

static enum cairn_status land(struct cairn_handover *h, int chunk, struct cairn_digest sum, struct cairn_error *err)
{
    uint64_t generation = giving(h);
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < h->ends; i++)
        if (h->end[i].index[chunk] >= 0)
            TRY(cairn_ring_land(h->end[i].ring, h->end[i].open, generation, h->end[i].index[chunk], sum, err));
out:
    return st;
}

/* Until the other trainer ranks have landed theirs. */
static enum cairn_status chunks_wait(const struct cairn_handover *h, const struct cairn_hand_end *e, uint64_t generation, struct cairn_error *err)
{
    double end = cairn_now_s() + h->deadline_s;
    struct cairn_digest d;

    for (int c = 0; c < e->chunks; c++)
        while (!cairn_ring_landed(e->ring, e->open, generation, c, &d)) {
            if (cairn_now_s() > end)
                return late(h, "a chunk of another trainer rank", generation, err);
            cairn_sleep_s(WAIT_S);
        }
    return CAIRN_OK;
}

enum cairn_status cairn_hand_ring_give(struct cairn_handover *h, uint64_t generation, const struct cairn_ring_tag *tag, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    if (h->n_mine)
        cairn_hand_marks_begin(h, &h->stage[0].stream);
    cairn_hand_mark(h, NULL, "give", -1, 0);
    for (int i = 0; i < h->ends; i++)
        h->end[i].open = -1;
    for (int i = 0; i < h->ends; i++)
        TRY(h->end[i].lead ? cairn_ring_begin(h->end[i].ring, generation, h->deadline_s, &h->end[i].open, err)
                           : slot_wait(h, &h->end[i], generation, err));
    cairn_hand_mark(h, NULL, "write", -1, 0);
    TRY(cairn_hand_write(h, land, err));
    cairn_hand_mark(h, NULL, "write", -1, 1);
    for (int i = 0; i < h->ends; i++)
        if (h->end[i].lead)
            TRY(chunks_wait(h, &h->end[i], generation, err));
    for (int i = 0; i < h->ends; i++) {
        struct cairn_ring_tag t = *tag;

        if (h->end[i].lead)
            TRY(cairn_ring_commit(h->end[i].ring, h->end[i].open, generation, &t, err));
        h->end[i].open = -1;
    }
    cairn_hand_mark(h, NULL, "give", -1, 1);
out:
    for (int i = 0; st != CAIRN_OK && i < h->ends; i++)
        if (h->end[i].lead && h->end[i].open >= 0)
            cairn_ring_abandon(h->end[i].ring, h->end[i].open);
    return st;
}

/* ---- take --------------------------------------------------------------------------------------------------------------------- */

/* Looks are begun at the chunks that are in a slot and were not looked at yet, neighbours together where they need not be brought
 * here. *begun: any; *missing: the first that has not landed, or -1. */
static enum cairn_status look(struct cairn_handover *h, int slot, uint64_t generation, int *begun, int *missing,
                              struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int first = 0, n = 0;

    *begun = 0;
    *missing = -1;
    for (int c = 0; c <= h->read.chunks; c++) {
        int here =
            c < h->read.chunks && (cairn_hand_looking(h, c) || cairn_ring_landed(h->read.ring, slot, generation, c, &h->want[c]));
        int due = here && !cairn_hand_looking(h, c) && !cairn_hand_verified(h, c, slot, generation);

        *missing = !here && c < h->read.chunks && *missing < 0 ? c : *missing;
        if (n && (!due || h->landed[0])) {
            TRY(cairn_hand_look(h, first, n, slot, generation, err));
            *begun += n;
            n = 0;
        }
        first = n ? first : c;
        n += due;
    }
out:
    return st;
}

/* Looks at the chunks of an open slot that have landed; 1: something was done. */
static int follow(struct cairn_handover *h, uint64_t generation, int *open, struct cairn_error *err)
{
    int slot, begun = 0, ended = 0, missing;
    enum cairn_status st;
    uint64_t g;

    *open = cairn_ring_open_slot(h->read.ring, &g, &slot) && g >= generation && slot >= 0 && slot <= 1;
    if (!*open || !h->follows)
        return 0;
    st = cairn_hand_looked(h, &ended, err);
    if (st == CAIRN_OK)
        st = look(h, slot, g, &begun, &missing, err);
    return st == CAIRN_OK && (begun || ended); /* what differs is looked at again when it is committed */
}

static enum cairn_status verify_all(struct cairn_handover *h, const struct cairn_ring_view *v, struct cairn_error *err)
{
    struct cairn_digest sum = {0, 0};
    enum cairn_status st;
    int begun, missing;

    cairn_hand_look_end(h, NULL); /* what they say of another generation, or of one begun anew, is looked at again */
    TRY(look(h, v->slot, v->generation, &begun, &missing, err));
    if (missing >= 0)
        TRY(cairn_fail(err, CAIRN_EDATA, "generation %llu: chunk %d is missing", (unsigned long long)v->generation, missing));
    TRY(cairn_hand_look_end(h, err));
    for (int c = 0; c < h->read.chunks; c++)
        sum = cairn_digest_add(sum, h->want[c]);
    if (!cairn_digest_equal(sum, v->tag.weights))
        st = cairn_fail(err, CAIRN_EDATA, "generation %llu: its chunks do not add up to its digest", (unsigned long long)v->generation);
out:
    return st;
}

enum cairn_status cairn_hand_ring_take(struct cairn_handover *h, uint64_t generation, uint64_t *got, struct cairn_ring_tag *tag,
                                       struct cairn_error *err)
{
    double end = cairn_now_s() + h->deadline_s, moved = 0; /* moved: when something was last seen to happen */
    enum cairn_status st = CAIRN_OK;
    struct cairn_ring_view v;
    int open = 0;

    cairn_hand_look_end(h, NULL); /* of a take that gave up */
    cairn_hand_marks_begin(h, &h->look[0].stream);
    cairn_hand_mark(h, NULL, "take", -1, 0);
    while (cairn_ring_generation(h->read.ring) < generation) {
        int was = open, done = follow(h, generation, &open, err);
        double now = cairn_now_s();

        if (done || open > was)
            moved = now;
        if (done)
            continue;
        if (now > end)
            return late(h, "it", generation, err);
        if (open && now - moved < EAGER_S)
            sched_yield(); /* the next chunk comes sooner than a sleep ends */
        else
            cairn_sleep_s(WAIT_S);
    }
    cairn_hand_mark(h, NULL, "take", -1, 1);
    TRY(cairn_ring_pin(h->read.ring, &v, err));
    if ((st = verify_all(h, &v, err)) == CAIRN_OK)
        st = cairn_hand_adopt(h, v.slot, err);
    if (st != CAIRN_OK || !h->in_place || h->landed[0]) { /* the slot serves no longer, or never did */
        if (v.slot != h->pinned)
            cairn_ring_unpin(h->read.ring, v.slot);
    } else {
        if (h->pinned >= 0 && h->pinned != v.slot)
            cairn_ring_unpin(h->read.ring, h->pinned);
        h->pinned = v.slot;
    }
    TRY(st);
    cairn_hand_mark(h, NULL, "switch", -1, 1);
    *got = v.generation;
    *tag = v.tag;
out:
    return st;
}

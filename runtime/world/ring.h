/* ring.h - generations of weights in memory that processes of one node share: readers have the old one or the new one, never a mixture.
 *
 *     header   magic, layout digest (the plan's), slots, chunks, bytes of a slot, the word `current`
 *     readers  who holds which slot: one entry a process, with its start time, so that a killed one is told from a living one
 *     slots    per slot: who fills it, tag (step, digests), a record for each chunk; a room for the name of device memory
 *              (base/buffer.h: cairn_buffer_export), when the payload lies on a GPU
 *     data     slots x slot_bytes; 0 bytes: the payload is elsewhere, the ring says which generation of it counts
 *
 * One 64-bit word is the switch: `current` = generation << 8 | slot, stored with release order when everything else is there. A reader
 * pins: it writes its claim, looks again, and from then on the slot is not written until it lets go. Writers (one process begins and
 * commits, any number may land chunks) take a slot that is not current and that no living process claims; with two slots and readers
 * that go on in time nobody waits.
 *
 * A commit needs every chunk of the slot, landed in this generation, in any order; what is missing is told by number, the slot is given
 * up and the current generation serves on. Nothing that a killed process was doing can be seen: a sender's half-written slot is not
 * current and the next begin takes it again, a reader's claim ends with its process.
 *
 * The memory is a memfd of the creator, which others open as /proc/PID/fd/N: it has no name, no kill leaves anything behind. All of it is
 * allocated when made (no SIGBUS later); without room for it cairn_ring_create says CAIRN_ENOSPACE and the caller takes files.
 * Attaching refuses memory of another user, size, layout or version. Trust ends at the user: whoever may write the memory may lie.
 *
 * One thread at a time uses one handle, in the process that made it; processes and handles are independent of one another.
 */
#ifndef CAIRN_WORLD_RING_H
#define CAIRN_WORLD_RING_H

#include <stddef.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/status.h"

#define CAIRN_RING_READERS 64
#define CAIRN_RING_SLOTS   8
#define CAIRN_RING_ROOM    128 /* bytes for the name of a slot's device memory */

struct cairn_ring;

struct cairn_ring_opts {
    int slots;                  /* 2 to CAIRN_RING_SLOTS; 0: 2 */
    int chunks;                 /* that make a generation: the plan's */
    size_t slot_bytes;          /* 0: no payload in here */
    struct cairn_digest layout; /* both sides must have the same */
};

/* Where it is found: plain bytes, to be sent to the others of the node. */
struct cairn_ring_place {
    int32_t pid, fd;
    uint64_t bytes;
};

/* What belongs to a generation besides its bytes. */
struct cairn_ring_tag {
    int64_t step;               /* of the run */
    struct cairn_digest policy; /* logical digest of the policy, zero if it is not known yet */
    struct cairn_digest weights; /* sum of the chunks' digests */
};

enum cairn_status cairn_ring_create(struct cairn_ring **out, const struct cairn_ring_opts *o, struct cairn_error *err);
void cairn_ring_place(const struct cairn_ring *r, struct cairn_ring_place *place);
enum cairn_status cairn_ring_attach(struct cairn_ring **out, const struct cairn_ring_place *place, struct cairn_digest layout,
                                    struct cairn_error *err);
/* The memory that the slots stand for is about to go: nothing is begun any more, by anybody. */
void cairn_ring_leave(struct cairn_ring *r);
int cairn_ring_left(const struct cairn_ring *r);
void cairn_ring_close(struct cairn_ring *r); /* lets go of what it holds; NULL is fine */

int cairn_ring_slots(const struct cairn_ring *r);
size_t cairn_ring_slot_bytes(const struct cairn_ring *r);
void *cairn_ring_data(const struct cairn_ring *r, int slot); /* the slot's payload in this process; NULL if there is none */
void *cairn_ring_memory(const struct cairn_ring *r, size_t *bytes); /* all payloads: for whoever registers them with a device */
void *cairn_ring_room(const struct cairn_ring *r, int slot); /* CAIRN_RING_ROOM bytes, written before others attach */
uint64_t cairn_ring_generation(const struct cairn_ring *r); /* that is current; 0: none yet */

/* Writer. begin: a slot for `generation` (above the current one), empty of chunks. CAIRN_EAGAIN: every other slot is held by a living
 * reader after deadline_s, the sentence names one; or who owns the memory has left. */
enum cairn_status cairn_ring_begin(struct cairn_ring *r, uint64_t generation, double deadline_s, int *slot, struct cairn_error *err);
/* Chunk is in the slot. May be called by any attached process between begin and commit, in any order, again for the same chunk. */
enum cairn_status cairn_ring_land(struct cairn_ring *r, int slot, uint64_t generation, int chunk, struct cairn_digest digest,
                                  struct cairn_error *err);
int cairn_ring_landed(const struct cairn_ring *r, int slot, uint64_t generation, int chunk, struct cairn_digest *digest); /* 1: it is */
/* CAIRN_EDATA names the first chunk that is missing (the slot stays open: land it and commit again, or abandon). tag->weights is filled
 * in. On success all readers that look from now on see the new generation. */
enum cairn_status cairn_ring_commit(struct cairn_ring *r, int slot, uint64_t generation, struct cairn_ring_tag *tag, struct cairn_error *err);
void cairn_ring_abandon(struct cairn_ring *r, int slot);

/* Reader. pin: the current generation, whose slot is held until it is unpinned; a handle may hold several (the one that serves, and the
 * one that it is looking at). CAIRN_ENOINPUT: none is committed yet. */
struct cairn_ring_view {
    int slot;
    uint64_t generation;
    struct cairn_ring_tag tag;
    void *data;
};
enum cairn_status cairn_ring_pin(struct cairn_ring *r, struct cairn_ring_view *v, struct cairn_error *err);
void cairn_ring_unpin(struct cairn_ring *r, int slot);
/* A slot that is open (being filled): its number and generation, or 0. So that a receiver can follow chunks as they land. */
int cairn_ring_open_slot(const struct cairn_ring *r, uint64_t *generation, int *slot);

#endif

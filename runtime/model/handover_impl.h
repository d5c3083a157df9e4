/* handover_impl.h - what the files of a handover share: handover.c (who is there, the plan, the calls), handover_ring.c (paths shm and
 * cuda-ipc), handover_wire.c (path nccl). Nobody else includes it.
 */
#ifndef CAIRN_MODEL_HANDOVER_IMPL_H
#define CAIRN_MODEL_HANDOVER_IMPL_H

#include "model/handover.h"
#include "model/handover_runs.h"
#include "world/channel.h"
#include "world/world.h"

#define CAIRN_HANDOVER_STAGES 4
#define CAIRN_HANDOVER_LOOKS  3

/* One rank as the others see it. */
struct cairn_hand_side {
    int32_t trainer, sampler; /* roles */
    int32_t node, host;       /* host: its device computes in host memory */
    int32_t holder, place;    /* its numbers in the plan; -1 */
    int32_t held, wanted;     /* parts that it tells */
    int32_t give_dtype, pad;
    struct cairn_digest tables; /* of the tensors that travel: the same everywhere */
};

/* What a lane's chunk needs done: store -> memory with the sum of its tiles, memory -> places where it does not land by itself. */
struct cairn_hand_chunk {
    int chunk;                          /* of the plan */
    struct cairn_runs_call ship, *drop; /* drop: one a place of the lane, into whose slot it is put */
};

/* One place that this rank writes or reads: a ring, and the two memories behind it. */
struct cairn_hand_end {
    int place;
    struct cairn_ring *ring;
    struct cairn_buffer *slot[2];
    int lead;   /* this rank begins and commits */
    int local;  /* its memory is this device's own: written without staging */
    int near;   /* kernels of this device write it, over the link */
    int *index; /* [plan.chunks] number of the chunk in the ring, or -1 */
    int chunks;
    int open;      /* slot that is being written */
};

/* A chunk in flight, on a stream of its own. */
struct cairn_hand_stage {
    struct cairn_stream stream;
    struct cairn_buffer *room; /* the chunk as on the wire, NULL if nothing is staged */
};

/* Chunks [first, first + n) of a slot that are being summed up; n 0: none. */
struct cairn_hand_look {
    struct cairn_stream stream;
    int first, n, slot;
    uint64_t generation;
};

/* A tensor that becomes a view of the slot. */
struct cairn_hand_view {
    int param;
    size_t at;
};

struct cairn_handover {
    struct cairn_handover_opts o;
    struct cairn_group *group;
    enum cairn_handover_path path;
    const char *why; /* of the path */
    int ranks, trainer, sampler; /* this rank's roles */
    struct cairn_hand_side *side; /* [ranks] */
    int tensors, *param;          /* tensors that travel, in order of the store's offsets; their parameters */
    struct cairn_transit_tensor *tensor;
    struct cairn_transit plan;
    struct cairn_hand_marks *marks; /* NULL: none */
    int places, *place_rank;        /* lowest rank that reads it; it owns the memory */
    size_t *place_bytes;
    struct cairn_transit_part *place_part; /* [places][tensors]; local[0] = -1: not wanted there */
    double deadline_s;
    uint64_t generation; /* last given or taken */

    /* trainer */
    struct cairn_runs ship, drop;
    struct cairn_hand_chunk *mine;
    int n_mine;
    struct cairn_hand_end *end; /* places that this rank writes */
    int ends;
    struct cairn_hand_stage stage[CAIRN_HANDOVER_STAGES];
    int in_flight;               /* chunks enqueued before the first is waited for */
    int at_once;                 /* all of them, since its GPU is the samplers' too */
    struct cairn_stream beside;  /* on nccl: packing; at the sampler sums */
    struct cairn_runs_sums sums; /* [n_mine] */

    /* sampler */
    struct cairn_hand_end read; /* its own place */
    struct cairn_runs slot_tiles, unpack;
    struct cairn_runs_call *check; /* [read.chunks] */
    struct cairn_runs slot_all;    /* rows of slot_tiles as one call: for chunks that land all at once */
    struct cairn_runs_call check_all;
    struct cairn_hand_view *view;  /* [views] what is switched */
    int views;
    struct cairn_digest *want;     /* [read.chunks] sums as they were sent */
    int follows;                   /* looks at chunks as they land; not on the trainer's own GPU, where that would only interrupt it */
    struct cairn_runs_call unpack_call;
    struct cairn_digest *verified; /* [read.chunks] */
    uint64_t *verified_of;         /* generation << 8 | slot that it was made of */
    struct cairn_buffer *landed[2]; /* shm and a device with memory of its own: where chunks are brought to */
    int landed_in;                  /* the one that serves */
    struct cairn_runs bring;        /* slot -> landed, as it lies */
    struct cairn_runs_call *bring_call;
    struct cairn_hand_look look[CAIRN_HANDOVER_LOOKS];
    int next_look;                    /* the one that was begun first */
    struct cairn_runs_sums read_sums; /* of all chunks of its place */
    int in_place;
    struct cairn_buffer *serving; /* what the store's tensors are views of once it was switched: stands for the slot that serves, owns nothing */
    struct cairn_tensor *own; /* [table->count] the store's tensors before it was switched; NULL: it was not */
    int pinned;               /* slot that serves in place; -1 */

    /* nccl */
    struct cairn_channel *channel;
    struct cairn_stream along;           /* what travels */
    struct cairn_event here[2], sent[2]; /* chunk is packed or has come, chunk is gone; by its number's parity */
    struct cairn_buffer *through[2];     /* chunks on their way */
    struct cairn_runs place_runs;               /* through -> slot */
    struct cairn_runs_call *place_call;
    int slot_in;                                /* slot that serves */
};

/* What happened when, for opts.marks; does nothing without. stream NULL: on the host, now. end: 0 before, 1 after it.
 * handover_marks.c */
void cairn_hand_mark(struct cairn_handover *h, struct cairn_stream *stream, const char *what, int chunk, int end);
enum cairn_status cairn_hand_marks_open(struct cairn_handover *h, struct cairn_error *err);
void cairn_hand_marks_begin(struct cairn_handover *h, struct cairn_stream *stream);
void cairn_hand_marks_close(struct cairn_handover *h);

/* handover.c: the box of a place's part, or NULL. */
const struct cairn_transit_part *cairn_hand_part(const struct cairn_handover *h, int place, int tensor);
/* What a store has of each tensor that travels. */
enum cairn_status cairn_hand_store_parts(const struct cairn_handover *h, const struct cairn_store *s, struct cairn_transit_part *part, int *n,
                                         struct cairn_error *err);

/* handover_work.c. Numbers the chunks of a place: e->index, e->chunks. */
enum cairn_status cairn_hand_index(const struct cairn_handover *h, struct cairn_hand_end *e, struct cairn_error *err);
int cairn_hand_place_of(const struct cairn_transit_lane *l, int place); /* its number in the lane, or -1 */
/* Tables and stages of the trainer; ends are there. */
enum cairn_status cairn_hand_writer_open(struct cairn_handover *h, struct cairn_error *err);
/* All chunks of this rank into the open slots of their places; `done` is told of each with its sum. */
enum cairn_status cairn_hand_write(struct cairn_handover *h,
                                   enum cairn_status (*done)(struct cairn_handover *h, int chunk, struct cairn_digest sum,
                                                             struct cairn_error *err),
                                   struct cairn_error *err);
/* Chunk mine[i] into `to`, and its sum: enqueued; the sum when it is done. */
enum cairn_status cairn_hand_ship(struct cairn_handover *h, int i, struct cairn_buffer *to, struct cairn_stream *s,
                                  struct cairn_error *err);
struct cairn_digest cairn_hand_sum(const struct cairn_handover *h, int i);
enum cairn_status cairn_hand_copy(struct cairn_stream *s, struct cairn_buffer *dst, size_t to, struct cairn_buffer *src,
                                  size_t from, size_t bytes, struct cairn_error *err);
void cairn_hand_work_close(struct cairn_handover *h); /* the sampler's part too */

/* handover_read.c. Tables of the sampler: tiles of each chunk of its place in the slot, and from there into the store. host_slots:
 * the slots are host memory. */
enum cairn_status cairn_hand_reader_open(struct cairn_handover *h, int host_slots, struct cairn_error *err);
/* Chunks [chunk, chunk + n) (numbered in the place) are in slot `slot` of generation: they are brought here where need be, and
 * summed up; waits for an earlier look where too many are under way. */
enum cairn_status cairn_hand_look(struct cairn_handover *h, int chunk, int n, int slot, uint64_t generation,
                                  struct cairn_error *err);
int cairn_hand_looking(const struct cairn_handover *h, int chunk); /* 1: such a look is under way */
/* Looks that are done are compared with h->want, *ended of them; all of them are waited for. */
enum cairn_status cairn_hand_looked(struct cairn_handover *h, int *ended, struct cairn_error *err);
enum cairn_status cairn_hand_look_end(struct cairn_handover *h, struct cairn_error *err);
int cairn_hand_verified(const struct cairn_handover *h, int chunk, int slot, uint64_t generation); /* with h->want */
/* The sentence about a chunk that is not what was sent. */
enum cairn_status cairn_hand_differs(const struct cairn_handover *h, int chunk, uint64_t generation, struct cairn_digest have,
                                     struct cairn_digest want, struct cairn_error *err);
/* The verified slot becomes the sampler's weights. */
enum cairn_status cairn_hand_adopt(struct cairn_handover *h, int slot, struct cairn_error *err);
void cairn_hand_read_close(struct cairn_handover *h);

enum cairn_status cairn_hand_ring_open(struct cairn_handover *h, struct cairn_error *err); /* collective */
void cairn_hand_ring_close(struct cairn_handover *h);
enum cairn_status cairn_hand_ring_give(struct cairn_handover *h, uint64_t generation, const struct cairn_ring_tag *tag, struct cairn_error *err);
enum cairn_status cairn_hand_ring_take(struct cairn_handover *h, uint64_t generation, uint64_t *got, struct cairn_ring_tag *tag,
                                       struct cairn_error *err);

enum cairn_status cairn_hand_wire_open(struct cairn_handover *h, struct cairn_error *err); /* collective */
void cairn_hand_wire_close(struct cairn_handover *h);
enum cairn_status cairn_hand_wire_give(struct cairn_handover *h, uint64_t generation, const struct cairn_ring_tag *tag, struct cairn_error *err);
enum cairn_status cairn_hand_wire_take(struct cairn_handover *h, uint64_t generation, uint64_t *got, struct cairn_ring_tag *tag,
                                       struct cairn_error *err);

#endif

/* handover.h - one generation of weights from the trainer's ranks to the sampler's, in memory. What the file path writes, without files.
 *
 *     trainer ranks                                             sampler ranks
 *     cairn_handover_open (collective over the group)           cairn_handover_open
 *     update ...                                                sample ...
 *     cairn_handover_give (generation, step, policy)   ------>  cairn_handover_take: verified, in the sampler's store
 *     cairn_handover_close                                      cairn_handover_close
 *
 * open makes the plan (world/transit.h) from what each rank's store holds, chooses the path and maps memory; after it nothing is allocated.
 * Paths, by `sync.path` or, with auto, by who sits where; the bits are the same on each:
 *     shm        both sides on the host of one node: a slot of a ring (world/ring.h) holds the policy, every sampler of the node reads it
 *     cuda-ipc   samplers' GPUs of the trainer's node, the trainer's own included: slots lie on the sampler's GPU, the trainer casts or
 *                copies into them; the switch is the ring's word
 *     nccl       GPUs anywhere: chunks travel from place to place along a chain, so that each byte leaves its holder once
 *     file       CAIRN_HANDOVER_FILE: nothing is opened here; the sampler loads the committed policy (model/policy.h)
 * auto takes the first of cuda-ipc, shm, nccl that joins all ranks, else file, and says why in one line.
 *
 * Each chunk carries the sum of its tiles' digests (base/digest.h), made from what is sent, checked by every receiver over what has
 * arrived while the rest is on its way: a difference is CAIRN_EDATA naming the first tensor of the chunk, and the store stays as it was.
 * A failed or interrupted handover leaves the old generation serving; the next one starts afresh. `weights` of the tag is the sum over
 * all chunks: of the artefact's tensors, without their header terms.
 *
 * In place (in_place, where the sampler's type is the one that travels): nothing is copied at the sampler; its store's tensors become
 * views of the generation's slot, and alternate between two addresses. Else the store is filled where it is when all is verified.
 *
 * Memory: a handle owns its maps, buffers and communicators. The stores are the caller's and stay where they are.
 */
#ifndef CAIRN_MODEL_HANDOVER_H
#define CAIRN_MODEL_HANDOVER_H

#include "kernels/backend.h"
#include "model/params.h"
#include "world/group.h"
#include "world/transit.h"
#include "world/ring.h"
#include "world/transport.h"

enum cairn_handover_path { CAIRN_HANDOVER_AUTO, CAIRN_HANDOVER_FILE, CAIRN_HANDOVER_SHM, CAIRN_HANDOVER_IPC, CAIRN_HANDOVER_NCCL };
const char *cairn_handover_path_name(enum cairn_handover_path p); /* "auto", "file", "shm", "cuda-ipc", "nccl": as in the recipe */
int cairn_handover_path_parse(const char *name);                  /* -1: none of them */

/* How a chunk comes into a place that kernels of the trainer's device reach: by themselves, or through a room and a copy. */
enum cairn_handover_send { CAIRN_HANDOVER_BEST, CAIRN_HANDOVER_STRAIGHT, CAIRN_HANDOVER_STAGED };

struct cairn_handover;

struct cairn_handover_opts {
    enum cairn_handover_path path;
    const struct cairn_param_table *table; /* of what travels: the adapter's for LoRA, the model's for full weights */
    enum cairn_dtype dtype;                /* sync.dtype */
    struct cairn_store *give;              /* trainer: masters, a share of them (shares.h) or published weights; else NULL */
    struct cairn_store *take;              /* sampler: the store that the forward reads; else NULL */
    int trainer, sampler;                  /* 1: is one, and its store is there later (cairn_handover_bind): published weights */
    int in_place;                          /* sampler: see above; ignored where it cannot be */
    struct cairn_compute *compute;
    size_t chunk_bytes;                    /* 0: CAIRN_TRANSIT_CHUNK; the same on all ranks */
    double deadline_s;                     /* of waits for the other side; 0: the group's */
    const struct cairn_transport *transport; /* of the path nccl; NULL: NCCL's. For tests. */
    enum cairn_handover_send send;           /* for measurements */
    int marks; /* for measurements: room for so many marks of the last give or take; 0: none are made */
};

/* What happened in the last give or take, by the clock of base/clock.h. */
struct cairn_handover_mark {
    const char *what;
    int chunk, device, end; /* device: 1 when the device came to it, 0 the host; end: 0 before it, 1 after it */
    double s;
};

/* Collective over g, trainer's and sampler's ranks, each with its own role or both. The chosen path is the same everywhere. Which
 * parameters travel: the trainable ones; the others are the base's. Tables with trained parameters that stay f32 among narrower ones go
 * through files: CAIRN_EDEVICE, or with auto the path file. */
enum cairn_status cairn_handover_open(struct cairn_handover **out, struct cairn_group *g, const struct cairn_handover_opts *o,
                                      struct cairn_error *err);
/* The stores of a rank that had none to show: of cairn_weights_create over the table; before its first give or take. NULL: none. */
enum cairn_status cairn_handover_bind(struct cairn_handover *h, struct cairn_store *give, struct cairn_store *take, struct cairn_error *err);
/* A store that was switched in place gets its own memory back, with what that held before. NULL is fine. */
void cairn_handover_close(struct cairn_handover *h);
enum cairn_handover_path cairn_handover_path(const struct cairn_handover *h);
const struct cairn_transit *cairn_handover_plan(const struct cairn_handover *h); /* NULL on the file path */
int cairn_handover_left(
    const struct cairn_handover *h); /* 1: a sampler whose memory this trainer writes has closed its handle: it needs nothing more */
uint64_t cairn_handover_generation(const struct cairn_handover *h); /* sampler: newest that is committed, trainer: last given; 0: none */

/* Trainer's ranks, all of them: generation from 1 on, above the last one; tag: step and policy digest. Returns when it is committed: on
 * shm and cuda-ipc nobody waits for samplers, but for a slot that they have left (deadline_s: CAIRN_EAGAIN). nccl: give and take meet. */
enum cairn_status cairn_handover_give(struct cairn_handover *h, uint64_t generation, const struct cairn_ring_tag *tag, struct cairn_error *err);
/* Sampler's ranks, all of them: waits for `generation` or a later one, *tag and *got (may be NULL) say what came. */
enum cairn_status cairn_handover_take(struct cairn_handover *h, uint64_t generation, uint64_t *got, struct cairn_ring_tag *tag,
                                      struct cairn_error *err);

/* *out: malloc'ed, in order of time, caller frees; *n of them, or as many as there was room for. */
enum cairn_status cairn_handover_marks(struct cairn_handover *h, struct cairn_handover_mark **out, int *n, struct cairn_error *err);

#endif

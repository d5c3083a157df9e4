/* replay.h - work of a stream that comes again and again with the same addresses and sizes: recorded once, enqueued as one thing
 * from then on (struct cairn_graph of base/buffer.h). What is computed is the same, launch by launch; only the host has less to do.
 *
 * Work is told apart by a key: whatever decides about addresses, sizes and constants of what is enqueued. The first times it runs
 * as it is (memory that grows on first use is there then, choices among variants are made), then it is recorded. A device that
 * cannot record something says so once as a warning, and everything runs as it is from then on.
 */
#ifndef CAIRN_MODEL_REPLAY_H
#define CAIRN_MODEL_REPLAY_H

#include "base/buffer.h"

struct cairn_replay;

#define CAIRN_REPLAY_KEY 8
struct cairn_replay_key {
    int64_t word[CAIRN_REPLAY_KEY];
};

/* Enqueues the work on the stream; neither waits nor uploads. */
typedef enum cairn_status cairn_replay_fn(void *arg, struct cairn_error *err);

struct cairn_replay_stats {
    int64_t run, recorded, launched; /* times that work ran as it is, was recorded, was enqueued as a graph */
};

/* The stream is borrowed. *out is NULL, which is fine below, on a device without graphs. */
enum cairn_status cairn_replay_create(struct cairn_replay **out, struct cairn_stream *s, struct cairn_error *err);
void cairn_replay_destroy(struct cairn_replay *r);
void cairn_replay_forget(struct cairn_replay *r); /* an address has changed: nothing recorded holds any more */
enum cairn_status cairn_replay_run(struct cairn_replay *r, const struct cairn_replay_key *key, cairn_replay_fn *fn, void *arg,
                                   struct cairn_error *err);
int cairn_replay_recording(const struct cairn_replay *r); /* 1: inside of cairn_replay_run, whose work is being recorded */
struct cairn_replay_stats cairn_replay_stats(const struct cairn_replay *r);

#endif

/* ahead.h - bytes of a file that are read before they are asked for, while their owner is busy with those before them.
 *
 * Pieces that come one after another, but for padding, are served by copies from a short row of blocks that the crew fills;
 * small ones are read ahead by the owner, to save system calls. Without threads in the crew, only those are.
 * What was read for nothing is never more than a 32nd of what was of use so far (the first time, an eighth of the run, up to
 * 256 KiB): whoever picks pieces with gaps reads those and hardly anything else. Nothing is checked here: that is for whoever asks,
 * on his copy.
 *
 * Memory: four blocks of 256 KiB, each made on first use. One owner, as the crew's; not for sharing.
 */
#ifndef CAIRN_CKPT_AHEAD_H
#define CAIRN_CKPT_AHEAD_H

#include <stdint.h>

#include "base/status.h"
#include "ckpt/crew.h"

struct cairn_ahead;

/* crew: borrowed; must outlive it. */
enum cairn_status cairn_ahead_create(struct cairn_ahead **out, struct cairn_crew *crew, struct cairn_error *err);
void cairn_ahead_destroy(struct cairn_ahead *a); /* NULL is fine */
/* Bytes [at, at + n) of an open file of `size` bytes (path for sentences, borrowed until cairn_ahead_forget) to p. 0: they are
 * not here; read them yourself, which also tells what went wrong. */
int cairn_ahead_take(struct cairn_ahead *a, int fd, const char *path, int64_t size, int64_t at, int64_t n, void *p);
/* Before a descriptor is closed: nothing is read from it any more, and nothing is kept. NULL is fine. */
void cairn_ahead_forget(struct cairn_ahead *a);
/* Bytes that were read so far, those for nothing included. */
int64_t cairn_ahead_bytes(const struct cairn_ahead *a);

#endif

/* pack.h - which groups belong to which update, and how sequences are packed into micro-batches. Pure functions.
 *
 * A step's groups are shuffled by Philox(seed, step) and cut into U mini-batches of whole groups: update u (from 0) has groups
 * G*u/U up to G*(u+1)/U of the shuffled list, so none is dropped and sizes differ by one at most. Inside a mini-batch sequences stand in
 * that order, samples ascending, and are packed whole, one after the other (THD, no padding): a micro-batch is closed when the next
 * sequence would exceed the limit; a longer sequence is one by itself.
 *
 * A sequence of L tokens has L - 1 rows: row i reads token i and predicts token i + 1.
 */
#ifndef CAIRN_STAGES_TRAIN_PACK_H
#define CAIRN_STAGES_TRAIN_PACK_H

#include <stdint.h>

#include "base/status.h"

/* One sequence to train on; tokens are borrowed. */
struct cairn_sequence {
    const int32_t *tokens; /* (length) */
    int64_t length;        /* prompt and response */
    int64_t prompt;        /* tokens of it that are prompt: targets from here on */
    int64_t index;         /* the caller's (rollout number) */
};

/* Shuffled list of the `groups` group numbers into order (caller's, `groups` long). */
void cairn_pack_shuffle(uint64_t seed, int64_t step, int64_t groups, int64_t *order);
static inline int64_t cairn_pack_cut(int64_t groups, int64_t updates, int64_t u) /* first group of update u */
{
    return groups * u / updates;
}

/* A micro-batch as the model wants it: host arrays of `rows` elements. */
struct cairn_micro {
    int64_t rows, capacity;
    int nseq, max_seqs;
    int32_t *id, *pos, *seq, *target; /* (capacity) */
    int32_t *start;                   /* (max_seqs) */
    int64_t *row_of;                  /* (max_seqs) row of the first response token's prediction */
    const struct cairn_sequence **member; /* (max_seqs) */
};

enum cairn_status cairn_micro_create(struct cairn_micro *m, int64_t capacity, int max_seqs, struct cairn_error *err);
void cairn_micro_free(struct cairn_micro *m);
/* Fills m with sequences s[*next ...], as many as fit (at least one), moves *next on. Sequences without a row are passed over.
 * limit: rows a micro-batch; capacity must hold the longest sequence. 0 when nothing is left. */
int cairn_micro_fill(struct cairn_micro *m, const struct cairn_sequence *s, int64_t n, int64_t *next, int64_t limit);

#endif

/* runs.h - "rows in runs" of kernels.h: which rows of a call are which run, checked once a call. */
#ifndef CAIRN_KERNELS_CPU_RUNS_H
#define CAIRN_KERNELS_CPU_RUNS_H

#include "internal.h"

#pragma GCC visibility push(hidden)

struct runs {
    const int32_t *pos, *seq;
    int64_t *begin; /* [count + 1] first row of each run; begin[count] is N */
    int64_t count;
};

/* Bytes of room that runs_find wants for N rows and B sequences. */
size_t runs_room(int64_t N, int64_t B);
/* Fills in the runs of pos and seq, i32 (N), in `room`; B: sequences of the tail or state, -1: none, sequences are whole. Notes
 * CAIRN_EBUG for what is not as kernels.h says. */
struct runs runs_find(struct call *c, const struct arg *pos, const struct arg *seq, int64_t N, int64_t B, void *room);

#pragma GCC visibility pop
#endif

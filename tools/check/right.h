/* right.h - leg 0 of the gate: agreement is not correctness, a mistake in what both sides share changes both alike.
 *
 * One forward and backward of the trainer is traced. Every call of an op is given to the plain reference (kernels/cpu/..._ref.c), too, with
 * copies of the very bytes that it read, and what it wrote must be near; integers must be equal, but for near ties, of which there are few; where
 * all scores are made to tie, choices must be equal. Then every block's output, as the trace saw it, against plain.h. The reference is slow: of
 * a large model it gets as many of the shorter sequences as a minute or so affords; the report says how many. What is near goes by the type that
 * the side computes in: a run of bf16 is held twice, a trainer of the same weights in f32 first (run.c). The last is the reference file, if one is
 * given: log-probabilities of another system for the same weights (reference.h).
 */
#ifndef CAIRN_TOOLS_CHECK_RIGHT_H
#define CAIRN_TOOLS_CHECK_RIGHT_H

#include "tools/check/sides.h"

/* x: its trainer alone is looked at; its masters must be saved (cairn_sides_masters_save). threads of the reference; 0: all. Adds to the report
 * what was held. */
enum cairn_status cairn_leg_right(struct cairn_sides *x, int threads, json_t *report, struct cairn_error *err);

#endif

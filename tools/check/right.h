/* right.h - leg 0 of the gate: agreement is not correctness, a mistake in what both sides share changes both alike.
 *
 * One forward and backward of the trainer is traced. Every call of an op is given to the plain reference (kernels/cpu/..._ref.c), too, with
 * copies of the very bytes that it read, and what it wrote must be near; integers must be equal, but for near ties, of which there are few; where
 * all scores are made to tie, choices must be equal. Then every block's output, as the trace saw it, against plain.h. The last is the
 * reference file, if one is given: log-probabilities of another system for the same weights. The reference is slow: of a large model it gets as
 * many of the shorter sequences as a minute or so affords; the report says how many.
 */
#ifndef CAIRN_TOOLS_CHECK_RIGHT_H
#define CAIRN_TOOLS_CHECK_RIGHT_H

#include "tools/check/sides.h"

enum cairn_status cairn_leg_right(struct cairn_sides *x, const struct cairn_check_opts *o, json_t *report, struct cairn_error *err);

#endif

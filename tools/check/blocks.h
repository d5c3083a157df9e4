/* blocks.h - the run's forward, block by block, against the plain model (plain.h).
 *
 * Under a trace what goes into and comes out of each block is picked up, with the choices that were made in it, and the log-probabilities at the
 * end (picked.h). Then every block of every sequence is made again by the plain model, from what the run's own block was given. With
 * hyper-connections their weights, what they mix and what they give back are held as well.
 */
#ifndef CAIRN_TOOLS_CHECK_BLOCKS_H
#define CAIRN_TOOLS_CHECK_BLOCKS_H

#include "tools/check/sides.h"

/* CAIRN_ENUMERIC with the first block that is off. */
enum cairn_status cairn_blocks_check(struct cairn_sides *x, const struct cairn_sequence *s, int n, json_t *report, struct cairn_error *err);

#endif

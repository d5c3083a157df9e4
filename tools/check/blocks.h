/* blocks.h - the run's forward, block by block, against the plain model (plain.h).
 *
 * Under a trace the residual stream is picked up where the model's norms read it, the choices where the indexer and the router write them,
 * and the log-probabilities at the end. Then every block of every sequence is made again by the plain model, from the residual stream that the
 * run's own block was given.
 */
#ifndef CAIRN_TOOLS_CHECK_BLOCKS_H
#define CAIRN_TOOLS_CHECK_BLOCKS_H

#include "tools/check/sides.h"

/* CAIRN_ENUMERIC with the first block that is off. */
enum cairn_status cairn_blocks_check(struct cairn_sides *x, const struct cairn_sequence *s, int n, json_t *report, struct cairn_error *err);

#endif

/* locate.h - where trainer and sampler part: the first op, in the order in which the model runs them, that gives one token other bits on
 * the two sides.
 *
 * Both sides score the sequences once more under a trace. Of every op with a row for each token the digest of each row is kept, by the op's
 * place (parameter, name, how often it was met since that parameter's layer began) and by sequence and position. The trainer's order is the model's.
 */
#ifndef CAIRN_TOOLS_CHECK_LOCATE_H
#define CAIRN_TOOLS_CHECK_LOCATE_H

#include "tools/check/sides.h"

/* Writes a half sentence into why: "first in layer 2 attention (rope behind model.layers.2.self_attn.q_b_proj.weight), token 3 of sequence
 * long", and the parts into report.located. */
enum cairn_status cairn_locate(struct cairn_sides *x, const struct cairn_sides_cut *cut, json_t *report, char *why, size_t n,
                               struct cairn_error *err);

#endif

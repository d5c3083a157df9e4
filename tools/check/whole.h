/* whole.h - leg 5: more than the log-probability of one token.
 *
 * Logits of the whole vocabulary at every position of two sequences by both forwards, bit for bit; and tokens that the sampling engine
 * itself draws (with graphs, where the device has them), whose log-probabilities the trainer must give again.
 */
#ifndef CAIRN_TOOLS_CHECK_WHOLE_H
#define CAIRN_TOOLS_CHECK_WHOLE_H

#include "tools/check/sides.h"

enum cairn_status cairn_whole_check(struct cairn_sides *x, double band, json_t *report, struct cairn_error *err);

#endif

/* reference.h - log-probabilities of another system (transformers, vLLM, ...) for the same weights: the end of leg 0.
 *
 *     {"ids": [5, 9, 7], "logprobs": [-3.1, -0.2]}      one sequence a line; the i-th is that of ids[i + 1] behind those before it, at temperature 1
 *
 * What is scored is the checkpoint that they were made from, opened by itself on the run's back-end: the run's base, or a HuggingFace
 * directory. They may differ by CAIRN_NUMERICS_BAND, what two implementations of one model differ by, on a single token.
 */
#ifndef CAIRN_TOOLS_CHECK_REFERENCE_H
#define CAIRN_TOOLS_CHECK_REFERENCE_H

#include "tools/check/sides.h"

/* against: NULL: the base. CAIRN_EDATA naming a line that is no such line; CAIRN_ENUMERIC naming line and token. */
enum cairn_status cairn_reference_check(struct cairn_sides *x, const char *against, const char *file, json_t *report, struct cairn_error *err);

#endif

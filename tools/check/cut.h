/* cut.h - the first layers of a run's model as a run of their own, for a check that shall be quick or must fit.
 *
 *     DIR/base-cut   the base's parameters of those layers, with embedding, final norm and head
 *     DIR/run        a run of the same recipe over it
 *
 * The weights are the base's, also where the run has newer policies; an adapter is a fresh one.
 */
#ifndef CAIRN_TOOLS_CHECK_CUT_H
#define CAIRN_TOOLS_CHECK_CUT_H

#include "base/json.h"
#include "base/status.h"

/* In dir, which is there and empty; *out: malloc'ed path of the new run. CAIRN_EUSAGE: the model has fewer layers. */
enum cairn_status cairn_check_cut(const char *run, int layers, const char *dir, char **out, struct cairn_error *err);
/* The configuration of the first `layers` of `have` layers. New reference; NULL without memory. */
json_t *cairn_check_cut_config(const json_t *config, int have, int layers);

#endif

/* trail.h - one line on what a committed link did, read from its manifest. */
#ifndef CAIRN_TOOLS_TRAIL_H
#define CAIRN_TOOLS_TRAIL_H

#include "stages/common/run.h"

/* People: a line on stderr with the figures that matter. json: one object on stdout {"step", "stage", "eval", "artefact", "digest",
 * "metrics", "seconds"}. */
enum cairn_status cairn_trail_tell(const struct cairn_run *run, const struct cairn_link *l, int json, struct cairn_error *err);

#endif

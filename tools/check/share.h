/* share.h - what holding trainer and sampler together costs, as a share of a step of the same run: this check, and the comparison inside each
 * step (design, section 4 "train"). A run without a finished step has nothing to be a share of.
 */
#ifndef CAIRN_TOOLS_CHECK_SHARE_H
#define CAIRN_TOOLS_CHECK_SHARE_H

#include <jansson.h>

#include "stages/common/run.h"

/* report.step: {"steps": averaged over, the last ones; "seconds": of one, its stages one after the other; "check": seconds / that;
 * "compare": seconds that the trainer's comparison took in one; "compare_share"}. Nothing where no step is done. */
enum cairn_status cairn_check_share(const struct cairn_run *run, double seconds, json_t *report, struct cairn_error *err);

#endif

/* metrics.h - RUN/log/metrics.jsonl: one line a step with all that the step's artefacts say, one line an evaluation.
 *
 * Lines are made from committed manifests, so they can be written at any time and again: a step that has its line gets no second one.
 * Names are those of the objective's section 7.
 */
#ifndef CAIRN_STAGES_COMMON_METRICS_H
#define CAIRN_STAGES_COMMON_METRICS_H

#include "stages/common/run.h"

/* {"step": s, "reward/raw_mean": ..., ...} from rollout, score, train and sync of step s. */
enum cairn_status cairn_metrics_step(const struct cairn_run *run, int64_t step, struct cairn_error *err);
/* {"step": s, "eval/NAME/accuracy": ..., ...} */
enum cairn_status cairn_metrics_eval(const struct cairn_run *run, int64_t step, const char *name, struct cairn_error *err);

#endif

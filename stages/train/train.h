/* train.h - the work of cairn-train: a step's updates, or the warm start (step 0), from committed inputs to a trainer state.
 *
 * Artefact, kind "trainer": masters and moments (model/io.h); content: "updates" (optimiser updates so far); info.metrics.
 */
#ifndef CAIRN_STAGES_TRAIN_TRAIN_H
#define CAIRN_STAGES_TRAIN_TRAIN_H

#include "stages/common/stage.h"

enum cairn_status cairn_train_work(struct cairn_stage_ctx *ctx, struct cairn_error *err);

#endif

/* train.h - the work of cairn-train: a step's updates, or the warm start (step 0), from committed inputs to a trainer state.
 *
 * Artefact, kind "trainer": masters and moments (model/io.h); content: "updates" (optimiser updates so far); info.metrics. With
 * train.parallel.dp ranks each writes its share; the state says nothing of how many there were.
 * A step that was stopped or killed is taken up behind the last update that was committed inside it (point.h).
 */
#ifndef CAIRN_STAGES_TRAIN_TRAIN_H
#define CAIRN_STAGES_TRAIN_TRAIN_H

#include "stages/common/stage.h"

enum cairn_status cairn_train_work(struct cairn_stage_ctx *ctx, struct cairn_error *err);
/* The policy of the link's step: from the trainer in memory where it is the one that made the state, else from the state. */
enum cairn_status cairn_train_publish(struct cairn_stage_ctx *ctx, struct cairn_error *err);
/* Of a resident process: the trainer, kept from one step to the next. */
void cairn_train_forget(struct cairn_stage_ctx *ctx);
/* After the commit: what was committed inside the step goes. */
enum cairn_status cairn_train_after(const struct cairn_run *run, const struct cairn_link *l, struct cairn_error *err);

#endif

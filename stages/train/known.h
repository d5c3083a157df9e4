/* known.h - log-probabilities that are fixed before the first update of a step, as artefacts of their own: train/old, train/ref.
 *
 * They are what a step that is taken up again cannot compute any more (old: the weights have moved) or should not compute twice
 * (ref). One float32 array by response offsets, and the numbers that came out with it. Collective over the trainer's ranks; rank 0
 * writes.
 */
#ifndef CAIRN_STAGES_TRAIN_KNOWN_H
#define CAIRN_STAGES_TRAIN_KNOWN_H

#include "stages/common/stage.h"
#include "stages/train/trainer.h"

/* Reads train/NAME into h (n) and numbers (count, may be 0): *found = 0 if there is none, or a damaged or foreign one, which is
 * told and removed. Without an artefact that is being made: 0. */
enum cairn_status cairn_known_load(struct cairn_stage_ctx *ctx, struct cairn_trainer *t, const char *name, float *h, int64_t n,
                                   double *numbers, int count, int *found, struct cairn_error *err);
/* Commits it; all ranks hold the same values. */
enum cairn_status cairn_known_save(struct cairn_stage_ctx *ctx, struct cairn_trainer *t, const char *name, const float *h,
                                   int64_t n, const double *numbers, int count, struct cairn_error *err);

#endif

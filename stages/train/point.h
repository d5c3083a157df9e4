/* point.h - points inside a step from which its training goes on after a stop or a kill: the last whole update, committed.
 *
 * A point holds masters, moments and the numbers that the caller has summed up so far, so that a step that was taken up again is an
 * undisturbed one in every bit, statistics included. It is a sub-artefact (stages/common/inside.h), made after every
 * checkpoint.updates-th update, and at a stop; a newer one replaces it. Saving goes on beside the training: what is to be saved is
 * copied, a thread writes the copy, the next update begins. One save at most is under way; one that is due meanwhile is left out. A
 * save that fails is told and costs only itself. The exit path waits for the last one. The thread moves bytes and files only: it
 * talks to no rank and touches no device; ranks speak of it between updates.
 *
 * Everything here is collective over the trainer's ranks. Memory: one copy of the rank's share of the state, from the first save
 * on.
 */
#ifndef CAIRN_STAGES_TRAIN_POINT_H
#define CAIRN_STAGES_TRAIN_POINT_H

#include "stages/common/stage.h"
#include "stages/train/trainer.h"

struct cairn_points;

/* numbers: how many doubles go with a point. Without an artefact that is being made (ctx->attempt NULL) there are no points, and
 * *out = NULL is fine everywhere below. */
enum cairn_status cairn_points_open(struct cairn_points **out, struct cairn_stage_ctx *ctx, struct cairn_trainer *t, int numbers,
                                    struct cairn_error *err);
/* Waits for what is under way. */
void cairn_points_close(struct cairn_points *p);
/* Loads the newest good point into the trainer: *update = number of updates done in it, its numbers into h; *update = 0: none, and
 * nothing has changed. A damaged one, or one that was made from something else, is told and removed. CAIRN_EDEVICE: one was
 * computed by other numerics and numerics.require is same. */
enum cairn_status cairn_points_resume(struct cairn_points *p, int64_t *update, double *h, struct cairn_error *err);
/* Removes all points: they are of no use. */
enum cairn_status cairn_points_forget(struct cairn_points *p, struct cairn_error *err);
/* After `update` whole updates of `of`. Returns other than CAIRN_OK only when this attempt is outranked. */
enum cairn_status cairn_points_reached(struct cairn_points *p, int64_t update, int64_t of, const double *h,
                                       struct cairn_error *err);
/* At a stop: `update` whole updates are done and the masters are as they were after it; returns when they are committed, or told to
 * be lost. */
void cairn_points_stop(struct cairn_points *p, int64_t update, const double *h);

/* What saving has cost so far. */
struct cairn_points_times {
    int64_t saves, failed, left_out;
    double stall_s; /* the training stood still */
    double save_s;  /* from the copy to the commit */
};
struct cairn_points_times cairn_points_times(const struct cairn_points *p);

#endif

/* branch.h - a second line of work beside a call's own, for parts of a block that do not need each other: a stream of the same device
 * that begins behind what the call has enqueued so far, and is waited for where its results are needed.
 *
 * Only for work that is being recorded (replay.h): a graph keeps who waits for whom and the device runs both lines at once, which
 * hides the many small ops of a decoded token behind each other. What is computed is the same, op by op. Where nothing is recorded,
 * and on devices that record nothing, both lines are one.
 */
#ifndef CAIRN_MODEL_BRANCH_H
#define CAIRN_MODEL_BRANCH_H

#include "kernels/backend.h"

struct cairn_call;

struct cairn_branch {
    struct cairn_compute k; /* the call's compute handle, but for the stream */
    struct cairn_event forked, joined;
};

enum cairn_status cairn_branch_create(struct cairn_branch **out, const struct cairn_compute *k, struct cairn_error *err);
void cairn_branch_destroy(struct cairn_branch *b);
/* *side: the same call on the branch's stream, behind what c has enqueued; c itself where c->branch is NULL. A block joins before it
 * returns, and forks no side of a side. */
enum cairn_status cairn_branch_fork(const struct cairn_call *c, struct cairn_call *side, struct cairn_error *err);
/* What c enqueues from here on waits for what side enqueued. */
enum cairn_status cairn_branch_join(const struct cairn_call *c, const struct cairn_call *side, struct cairn_error *err);

#endif

/* carry.h - groups that the step before has sampled and not used, to be trained in this one (rollout.carry).
 *
 * The surplus of a step's dynamic sampling is stored, unused, and its prompts stand in front of the cursor. The next step's list of
 * candidates begins with those prompts either way; with rollout.carry their groups are not sampled again by the newer policy but
 * taken over as they are: tokens, log-probabilities, why they ended. They are graded anew. A group is carried once: what is surplus
 * again goes back as a prompt, so nothing is older than one step more than the rest. What the training does about their age is
 * train.correction's. Not carried but sampled: all, where the temperature, the size of a group, the kinds of log-probabilities, or
 * what else a response hangs on besides the policy (prompt files, template, cap, truncation, stops) is another than it was.
 *
 * Memory: holds the rollouts of the step before until closed. A carry that was zeroed carries nothing.
 */
#ifndef CAIRN_STAGES_ROLLOUT_CARRY_H
#define CAIRN_STAGES_ROLLOUT_CARRY_H

#include "ckpt/reader.h"
#include "stages/common/rollouts.h"
#include "stages/rollout/engine.h"
#include "stages/rollout/rollout.h"
#include "text/ids.h"

struct cairn_carry {
    struct cairn_rollouts r; /* of the step before */
    int64_t *first;          /* (n) first rollout of each surplus group, in list order */
    int64_t n, next;         /* next: whose prompt the cursor is to give now */
    int64_t step;            /* in which they were sampled */
    char policy[33];         /* by which, hex */
    int32_t *experts;        /* scratch: choices of one rollout */
};

/* From the rollouts of the step before, whose recipe was `was`; now, how: of this one. */
enum cairn_status cairn_carry_open(struct cairn_carry *c, struct cairn_reader *before, const struct cairn_recipe *was,
                                   const struct cairn_recipe *now, const struct cairn_rollout_how *how, struct cairn_error *err);
void cairn_carry_close(struct cairn_carry *c);
/* The cursor gave this prompt. *from: place of its group in the list of the step before, and its prompt's ids appended; -1: it is
 * sampled. */
enum cairn_status cairn_carry_next(struct cairn_carry *c, int64_t prompt_id, int64_t *from, struct cairn_ids *ids,
                                   struct cairn_error *err);
/* Sample s of the group at place `from`, as cairn_carry_next gave it, as a response of group `tag`. Borrowed until the next call.
 * CAIRN_EBUG: no such sample of a surplus group. */
enum cairn_status cairn_carry_response(struct cairn_carry *c, int64_t from, int s, int64_t tag, struct cairn_response *r,
                                       struct cairn_error *err);

#endif

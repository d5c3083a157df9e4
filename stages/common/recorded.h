/* recorded.h - rollouts that no policy known here sampled (responses that `cairn replay --from` brought in): which recipes train on them.
 *
 * With log-probabilities they are rollouts of another policy: train.on_policy: correct and a train.correction take them, require refuses. Without
 * them nobody knows what that policy thought: the ratio counts from the trainer at the start of the step, and a correction has nothing to hold
 * against. loss: sft asks for neither.
 */
#ifndef CAIRN_STAGES_COMMON_RECORDED_H
#define CAIRN_STAGES_COMMON_RECORDED_H

#include "base/str.h"
#include "ckpt/reader.h"
#include "recipe/recipe.h"

/* Does the artefact hold rollouts of no known policy? *logprobs: they bring the log-probabilities of whoever sampled them. */
enum cairn_status cairn_recorded_look(struct cairn_reader *rollouts, int *recorded, int *logprobs, struct cairn_error *err);

/* What it is that rollouts of another policy are refused: CAIRN_ERECIPE for a run that replays, which they were brought into, else bad data. */
enum cairn_status cairn_recorded_refusal(const struct cairn_recipe *recipe);

/* May `recipe` train on them? `where`: their artefact. cairn_recorded_refusal: train.on_policy refuses them, or train.truncation lacks what they came
 * without. CAIRN_ERECIPE: train.correction does. */
enum cairn_status cairn_recorded_check(const struct cairn_recipe *recipe, int logprobs, const char *where, struct cairn_error *err);

/* Appends what has to be said on a command line so that `recipe` may: " train.on_policy=correct train.correction=tis", each key behind a blank. */
void cairn_recorded_keys(const struct cairn_recipe *recipe, int logprobs, struct cairn_str *out);

#endif

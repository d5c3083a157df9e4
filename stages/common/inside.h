/* inside.h - sub-artefacts of a step's training, where they lie and when they go.
 *
 *     step/000003/train/u0002/   trainer state after update 2 of the step (kind "update"); the next one that is committed replaces it
 *     step/000003/train/old/     log-probabilities under the weights at the start of the step (kind "old"), where the sampler's will
 *                                not do
 *     step/000003/train/ref/     log-probabilities under the reference (kind "ref")
 *
 * They have the recipe hash and the inputs of the train artefact, so what was made from something else is told apart; they are
 * committed like any other. Updates and old are dropped when the step commits: whoever follows that commit drops them, and once
 * more after sync, should a kill have come between. None has a line in `cairn digest`.
 */
#ifndef CAIRN_STAGES_COMMON_INSIDE_H
#define CAIRN_STAGES_COMMON_INSIDE_H

#include "ckpt/reader.h"
#include "stages/common/run.h"

/* malloc'ed path RUN/step/STEP/train/NAME; and of update u. NULL without memory. */
char *cairn_inside_path(const struct cairn_run *r, int64_t step, const char *name);
char *cairn_inside_update_path(const struct cairn_run *r, int64_t step, int64_t update);
/* Numbers of the updates that lie there, committed or begun, ascending; malloc'ed (NULL: none). */
enum cairn_status cairn_inside_updates(const struct cairn_run *r, int64_t step, int64_t **update, int *n, struct cairn_error *err);
/* Manifest of a sub-artefact of `whole` (the train artefact's): kind, step, recipe, inputs, fingerprint. Caller destroys. */
enum cairn_status cairn_inside_manifest(struct cairn_manifest **out, const struct cairn_manifest *whole, const char *kind,
                                        struct cairn_error *err);
/* Opens one. CAIRN_ENOINPUT: there is none; CAIRN_EDATA: damaged, or of another recipe or other inputs. */
enum cairn_status cairn_inside_open(struct cairn_reader **out, const char *dir, const struct cairn_manifest *whole,
                                    const char *kind, struct cairn_error *err);
/* Removes updates below `below` (INT64_MAX: all of them). */
enum cairn_status cairn_inside_drop_updates(const struct cairn_run *r, int64_t step, int64_t below, struct cairn_error *err);
/* The step is committed: updates and old go, ref is settled. */
enum cairn_status cairn_inside_drop(const struct cairn_run *r, int64_t step, struct cairn_error *err);

#endif

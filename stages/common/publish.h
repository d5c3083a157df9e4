/* publish.h - a trainer state becomes the next policy generation, as the sampler loads it: the work of cairn-sync, and of a trainer
 * that stays alive.
 *
 * W = cast(master, sync.dtype); what training does not touch comes from the base (full weights) or stays there (LoRA: a policy is
 * the base's digest and the adapter). From the committed state, tensors stream from one artefact to the other, a few in memory,
 * digested on the way. From memory they are the trainer's own published weights, which are that same cast: equal bits, equal
 * digest.
 */
#ifndef CAIRN_STAGES_COMMON_PUBLISH_H
#define CAIRN_STAGES_COMMON_PUBLISH_H

#include "ckpt/retention.h"
#include "model/params.h"
#include "stages/common/stage.h"

/* From the committed trainer state of the link's step. */
enum cairn_status cairn_publish_work(struct cairn_stage_ctx *ctx, struct cairn_error *err);
/* From published weights in memory, those of the committed state; on rank 0, the others have nothing to write. Samplers that are alive
 * have them by the fast path, too, before the policy is committed. */
enum cairn_status cairn_publish_store(struct cairn_stage_ctx *ctx, const struct cairn_store *published, struct cairn_compute *k,
                                      struct cairn_error *err);
/* A trainer state that was only told (checkpoint.every) and whose policy is missing, since a kill came between the two, goes: the step is trained
 * again. For whoever walks the chain, before it looks at what is done; by one process. */
enum cairn_status cairn_publish_settle(const struct cairn_run *run, struct cairn_error *err);
/* The newest step up to `last` whose trainer state is there, so that training goes on from it: 0 where the first policy's weights are the
 * masters. -1: none. */
enum cairn_status cairn_publish_state(const struct cairn_run *run, int64_t last, int64_t *step, struct cairn_error *err);
/* What the checkpoint section of `recipe` keeps of the steps up to `last`. Of policies also the one behind the newest state: where later ones were
 * only told, a trainer that starts anew begins with it. Does not move: policies.spare is in it. */
struct cairn_publish_keep {
    struct cairn_retention states, policies; /* policies.keep -1: all */
    int64_t newest;
};
enum cairn_status cairn_publish_keep(struct cairn_publish_keep *k, const struct cairn_run *run, const struct cairn_recipe *recipe, int64_t last,
                                     struct cairn_error *err);
/* After the commit: the step's line in RUN/log/metrics.jsonl, and retention of trainer states and policies. */
enum cairn_status cairn_publish_after(const struct cairn_run *run, const struct cairn_link *l, struct cairn_error *err);

#endif

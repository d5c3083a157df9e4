/* sync.h - a trainer state becomes the next policy generation, as the sampler loads it.
 *
 * W = cast(master, sync.dtype); what training does not touch comes from the base (full weights) or stays there (LoRA: a policy is the base's
 * digest and the adapter). Path `file`: tensors stream from one artefact to the other, a few in memory, digested on the way. The
 * same cast as the trainer's own published weights, so the bits are equal.
 */
#ifndef CAIRN_STAGES_SYNC_SYNC_H
#define CAIRN_STAGES_SYNC_SYNC_H

#include "stages/common/stage.h"

enum cairn_status cairn_sync_work(struct cairn_stage_ctx *ctx, struct cairn_error *err);
/* After the commit: the step's line in RUN/log/metrics.jsonl, and retention of trainer states and policies. */
enum cairn_status cairn_sync_after(const struct cairn_run *run, const struct cairn_link *l, struct cairn_error *err);

#endif

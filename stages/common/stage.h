/* stage.h - the stage contract (design section 4), once for all four executables.
 *
 *     cairn-<stage> RUN --step N [--shard i/n] [--eval NAME] [--quiet] [--threads T]
 *
 * cairn_stage_main does, in this order: signals, the grader process where the stage wants one (before threads, MPI, devices),
 * arguments, run directory, "already committed?" (0 at once), inputs (69 naming what is missing), world, device, attempt; then
 * the stage's work; then commit, metrics, exit code. Ranks agree before they leave. Only main() exits.
 */
#ifndef CAIRN_STAGES_COMMON_STAGE_H
#define CAIRN_STAGES_COMMON_STAGE_H

#include "ckpt/attempt.h"
#include "ckpt/manifest.h"
#include "grade/process.h"
#include "kernels/backend.h"
#include "stages/common/run.h"
#include "world/world.h"

struct cairn_stage_ctx {
    struct cairn_run *run;
    struct cairn_link link;
    struct cairn_world *world;
    struct cairn_compute *compute;          /* NULL for stages without a device (score) */
    struct cairn_grader_process *graders;   /* NULL unless asked for */
    struct cairn_attempt *attempt;
    struct cairn_events *events;            /* RUN/log/<stage>.jsonl */
    int shard, shards;                      /* --shard i/n; 0/1 */
    json_t *content, *info;                 /* manifest members the stage fills in: logical (hashed) and not */
    double started_s;
};

struct cairn_stage_def {
    enum cairn_stage stage;
    const char *doc;     /* --help */
    int wants_device, wants_graders;
    /* Writes shards into ctx->attempt. CAIRN_OK: whole, commit. CAIRN_EAGAIN: stopped early, whole shards are kept. */
    enum cairn_status (*work)(struct cairn_stage_ctx *ctx, struct cairn_error *err);
};

int cairn_stage_main(int argc, char **argv, const struct cairn_stage_def *def);

/* fingerprint.numerics of this process for the recipe: the compute's numerics plus segments and text/library versions that matter. */
enum cairn_status cairn_stage_fingerprint(const struct cairn_run *r, const struct cairn_compute *k, char *numerics, int n, char *layout,
                                          int m, struct cairn_error *err);

#endif

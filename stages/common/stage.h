/* stage.h - the stage contract (design section 4), once for all four executables.
 *
 *     cairn-<stage> RUN --step N [--eval NAME] [--shard i/n] [--quiet] [--threads T]        alone, or under mpirun or srun
 *     cairn-<stage> RUN --resident [--quiet] [--threads T]                                  under them, with the other roles (resident.h)
 *
 * cairn_stage_main does, in this order: signals, arguments, run directory, "already committed?" (0 at once), the grader process where the
 * stage wants one (before threads, MPI, devices), world, inputs (69 naming what is missing), device, fingerprint, attempt; then the
 * stage's work; then the vote, commit, what follows the commit, exit code. Only main() exits.
 * Under a launcher rank 0 asks whether it is committed, begins the attempt (the others join it), commits and tells; every phase ends with
 * a vote (ranks.h), so all ranks leave together, with one status and one sentence.
 * --shard i/n: an array task, one of n independent processes on the artefact, each with an attempt in a lane of its own. It makes the units
 * u with u % n == i; who finds all units finished takes them over and commits; the others end with 0.
 * kill -9 at any instant leaves finished shards for the next attempt and nothing else.
 */
#ifndef CAIRN_STAGES_COMMON_STAGE_H
#define CAIRN_STAGES_COMMON_STAGE_H

#include "base/log.h"
#include "ckpt/attempt.h"
#include "ckpt/manifest.h"
#include "ckpt/reader.h"
#include "grade/process.h"
#include "kernels/backend.h"
#include "stages/common/run.h"
#include "world/world.h"

struct cairn_stage_ctx {
    struct cairn_run *run;
    struct cairn_link link;
    struct cairn_world *world;
    struct cairn_compute *compute;          /* NULL for stages without a device (score, sync) */
    struct cairn_grader_process *graders;   /* NULL unless asked for */
    char *dir;                              /* of the artefact */
    struct cairn_attempt *attempt;
    struct cairn_manifest *manifest;        /* being made: the work adds shards, content (logical) and info (not) */
    struct cairn_events *events;            /* RUN/log/<stage>.jsonl; NULL but on rank 0 */
    int task, tasks;                        /* array task `task` of `tasks`; 0 of 1 without --shard */
    int partial;                            /* set by the work of an array task: its share is finished, but not everything */
    int hollow;                             /* set by the work on all ranks: its shards are hollow, the artefact is collected from the first */
    int agreed;                             /* ranks.h: the status at hand is that of all ranks */
    int resident;                           /* 1: the process goes on to further links (resident.h), */
    struct cairn_fastpath *fastpath;        /* policies go by it, too (fastpath.h); NULL: there is none */
    void *kept;                             /* and this is what the work keeps for them; NULL: nothing yet */
    int64_t threads;                        /* --threads; 0: as the recipe says */
    int device_rank;                        /* among the ranks of this node that take a device, those of other roles too */
    /* private */
    struct cairn_progress *bar;
    double started_s, told_s, interval_s;
    struct cairn_compute device; /* what compute points to */
    int prepared; /* every rank has its manifest and device */
    int began;    /* the attempt */
};

struct cairn_stage_def {
    enum cairn_stage stage;
    const char *doc; /* --help, with two examples */
    int wants_device, wants_graders;
    int splits; /* 1: its work is split over ranks and tasks */
    int ranks;  /* 1: over ranks only */
    /* Writes shards into ctx->attempt and the manifest. CAIRN_OK: whole, commit. CAIRN_EAGAIN: stopped early; whole shards are kept.
     * Called on every rank; a status that is not agreed yet goes to the vote. */
    enum cairn_status (*work)(struct cairn_stage_ctx *ctx, struct cairn_error *err);
    /* After the commit (also when it was there already): may be NULL. */
    enum cairn_status (*after)(const struct cairn_run *run, const struct cairn_link *l, struct cairn_error *err);
    /* Frees ctx->kept: before the device closes, when the recipe changes from one step to the next, after a failure. NULL: keeps nothing. */
    void (*forget)(struct cairn_stage_ctx *ctx);
    const struct cairn_stage_def *also; /* what the same resident processes make besides: train publishes its policies; may be NULL */
};

int cairn_stage_main(int argc, char **argv, const struct cairn_stage_def *def);

/* One link, with the world and the run open and ctx->link and ctx->dir set: all but arguments, graders and world. What it returns is agreed. In:
 * st, how this rank fares so far. */
enum cairn_status cairn_stage_link(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def, enum cairn_status st, struct cairn_error *err);
/* Its two halves: up to the commit, which others may be told of when it returns CAIRN_OK; and what follows (retention, metrics), which is done
 * however this rank fared meanwhile (st). */
enum cairn_status cairn_stage_link_commit(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def, enum cairn_status st,
                                          struct cairn_error *err);
enum cairn_status cairn_stage_link_follow(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def, enum cairn_status st,
                                          struct cairn_error *err);
/* Opens the device of a rank whose work wants one, if it is not open. */
enum cairn_status cairn_stage_device_open(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def, struct cairn_error *err);
/* What a link has opened is closed; the device and what is kept stay if the process is resident. */
void cairn_stage_link_end(struct cairn_stage_ctx *ctx);
/* The device is closed, and before it what the work has kept. */
void cairn_stage_device_close(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def);

/* Progress of the work: the bar, and from time to time an event that `cairn status` reads. */
void cairn_stage_progress(struct cairn_stage_ctx *ctx, const char *unit, int64_t done, int64_t total);
/* Before the first unit, where `done` of them were there already: they are no part of the rate. */
void cairn_stage_progress_from(struct cairn_stage_ctx *ctx, const char *unit, int64_t done, int64_t total);
/* CAIRN_EAGAIN "stopped" if SIGTERM or the like has come. For loops. */
enum cairn_status cairn_stage_stopping(struct cairn_error *err);
/* Opens the input artefact `relative` ("policy/000002"): the digest must be the one in ctx->manifest's inputs. Caller closes. */
enum cairn_status cairn_stage_input(struct cairn_stage_ctx *ctx, const char *relative, struct cairn_reader **out, struct cairn_error *err);
/* Sets info.metrics[key] = v and content.metrics[key] = v. */
void cairn_stage_info(struct cairn_stage_ctx *ctx, const char *key, double v);
void cairn_stage_metric(struct cairn_stage_ctx *ctx, const char *key, double v);

#endif

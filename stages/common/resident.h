/* resident.h - a stage that stays alive: one link of its role after the other, beside the other roles in one MPI world.
 *
 *     mpirun -np R cairn-rollout RUN --resident : -np S cairn-score RUN --resident : -np T cairn-train RUN --resident
 *
 *     role      makes                              waits for
 *     rollout   rollouts, also of evaluations      policies
 *     score     scores                             rollouts
 *     train     trainer states and policies        scores
 *
 * Every role goes through the chain (run.h) in its order, takes the links that are its own and not committed, waits until what they
 * read is committed, and makes them as it would alone: same attempts, same manifests, same bits. Whoever has made one tells all
 * ranks of the other roles by a notice (world/role.h). What was committed before is settled once, by the world's first rank, for
 * all. So there is no schedule to keep in step: with run.lag a rollout waits for an older policy, and is sampled while the trainer
 * trains.
 *
 * What stays in memory from one link to the next (device, weights, sampler, masters and moments) is the work's (ctx->kept,
 * stage.h); it is forgotten where the recipe changes.
 *
 * Devices: on each node the samplers take the first ones, the trainers those behind them, and both begin again at the first where there are no
 * more: disjoint where a node has enough, colocated where it has not.
 *
 * A role that fails or is stopped tells so, and the others leave at their next wait with the same status; who is needed to the end
 * of a failed run for longer than that is ended with the world's abort. kill -9 of any rank: the launcher ends all of them, and the
 * next run goes on with what is committed.
 */
#ifndef CAIRN_STAGES_COMMON_RESIDENT_H
#define CAIRN_STAGES_COMMON_RESIDENT_H

#include "stages/common/stage.h"

/* With the run and the world open; st: how this rank fares so far. In the end ctx->world is the whole world again. *mute = 1:
 * another role has told why. */
enum cairn_status cairn_resident(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def, enum cairn_status st, int *mute,
                                 struct cairn_error *err);

#endif

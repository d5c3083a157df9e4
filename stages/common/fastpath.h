/* fastpath.h - policies of a resident run in memory, from the trainer to the samplers, beside the artefacts and never instead of them.
 *
 * The trainer's first rank gives each policy that it publishes from memory (model/handover.h, generation step + 1). A sampler whose next policy
 * is committed takes it from there if what arrived has the sums of tiles that the policy's manifest has, tensor by tensor added up;
 * else, and whenever something is missing, it reads the artefact. So the path changes no bit and no order of things: only how long
 * a sampler reads.
 *
 * sync.path: auto, shm, cuda-ipc or nccl; file: nothing of this is there. Ranks that it does not join (several nodes) say so once and read files.
 */
#ifndef CAIRN_STAGES_COMMON_FASTPATH_H
#define CAIRN_STAGES_COMMON_FASTPATH_H

#include "model/policy.h"
#include "stages/common/stage.h"

struct cairn_fastpath;

/* Collective over the whole world, which holds the roles: 1 on ranks that sample, 2 on those that train, 0 on others. ctx->compute is open on
 * ranks with a role. *out NULL: there is none. CAIRN_EDEVICE: sync.path is forced and cannot be had. */
enum cairn_status cairn_fastpath_open(struct cairn_fastpath **out, struct cairn_stage_ctx *ctx, struct cairn_world *whole, int role,
                                      struct cairn_error *err);
/* Lets go of device and memory; policies go through files from now on. Not collective. NULL is fine. */
void cairn_fastpath_drop(struct cairn_fastpath *f);
/* Collective over those with a role, before the world's end. NULL is fine. */
void cairn_fastpath_close(struct cairn_fastpath *f);

/* Trainer's first rank: the published weights of a step. Fails softly: a line, and files. f may be NULL. */
void cairn_fastpath_give(struct cairn_fastpath *f, int64_t step, const struct cairn_store *published);
/* Sampler: a cairn_policy_fill_fn; arg: struct cairn_fastpath. 1: the store holds the reader's policy. */
int cairn_fastpath_take(void *arg, struct cairn_store *s, struct cairn_reader *r);

/* Where give and take are one operation of all (path nccl): who waits for whom. A sampler's `come` says that it is there for a generation, *all 1
 * if its maker gives it; the trainer's waits until all samplers are, *all 0 if one comes no more. */
typedef enum cairn_status cairn_fastpath_come_fn(void *arg, uint64_t generation, int *all, struct cairn_error *err);
void cairn_fastpath_meet(struct cairn_fastpath *f, cairn_fastpath_come_fn *come, void *arg);
int cairn_fastpath_due(const struct cairn_fastpath *f); /* 1: the last give waits for samplers */
/* Behind the commit of its policy and the word of it, which samplers wait for. */
enum cairn_status cairn_fastpath_give_due(struct cairn_fastpath *f, struct cairn_error *err);

#endif

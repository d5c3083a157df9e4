/* rollout.h - the work of cairn-rollout: a policy and prompts in, a rollout artefact out; evaluations are the same with other
 * prompts.
 *
 * Artefact, kind "rollout": units of stages/common/rollouts.h. content: "units", "rollouts", "groups" (candidates), "kept",
 * "temperature", "policy"; training also "cursor" (cursor.h; where the next step begins), with rollout.store experts "experts"
 * (rollouts.h) and, with dynamic sampling, "dynamic": {"rounds", "all_right", "all_wrong", "surplus", "undecided" (groups of either
 * kind whose verdicts are all alike but for those that a grader could not give), "grades": {status: responses}, with rollout.carry
 * "carried" (groups)}; "nondeterministic": responses that count as wrong because of a time-out or a crash; "carried" (carry.h,
 * rollouts.h). info.metrics: "tokens/total", "tokens/per_second".
 */
#ifndef CAIRN_STAGES_ROLLOUT_ROLLOUT_H
#define CAIRN_STAGES_ROLLOUT_ROLLOUT_H

#include "stages/common/prompting.h"
#include "stages/common/stage.h"
#include "stages/rollout/engine.h"

enum cairn_status cairn_rollout_work(struct cairn_stage_ctx *ctx, struct cairn_error *err);
/* Of a resident process: policy, prompting and sampler, kept from one link to the next. */
void cairn_rollout_forget(struct cairn_stage_ctx *ctx);

/* How the responses of a link are drawn: rollout.*, or what its evaluation set says instead. */
struct cairn_rollout_how {
    int samples;
    int64_t groups; /* rollout.prompts; evaluation: -1, all rows up to limit */
    int64_t limit;  /* -1: none */
    int64_t max_new;
    float temperature; /* above 0; 1 when greedy */
    float top_p, min_p;
    int top_k, greedy;
    int experts;   /* 1: the routers' choices are kept */
    int truncates; /* 1: top-k, top-p or min-p leave something out */
    uint64_t seed; /* Philox: evaluations have keys of their own, so that training and evaluations share no draws */
    uint32_t step;
};
enum cairn_status cairn_rollout_how(struct cairn_rollout_how *h, const struct cairn_recipe *r, const struct cairn_link *l,
                                    struct cairn_error *err);
/* The sampler's options for it: draws, what ends a response, sizes by the recipe. max_length is the caller's to fill in. */
struct cairn_engine_opts cairn_rollout_engine(const struct cairn_rollout_how *h, const struct cairn_recipe *r,
                                              struct cairn_prompting *p);
/* The key of an evaluation's draws: of the step, of the set's name. */
void cairn_rollout_eval_key(struct cairn_rollout_how *h, const char *set);

/* Dynamic sampling: how many candidates to draw next, after `groups` of which `mixed` are mixed and `want` are wanted. 0: enough.
 */
int64_t cairn_rollout_refill(int64_t want, int64_t groups, int64_t mixed);

#endif

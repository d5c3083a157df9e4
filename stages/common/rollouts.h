/* rollouts.h - the rollouts of a step in memory, and their artefact.
 *
 * Columns of a unit (n rollouts; P prompt and R response tokens in all):
 *   tokens i32 (P + R)        prompt and response of each rollout, one after the other; a stop token belongs to the response
 *   offsets i64 (n + 1)       first token of each rollout
 *   prompt_length i32 (n)     tokens of it that are prompt
 *   logprobs f32 (R)          log-softmax(logits / temperature) of each response token over the full vocabulary, as the
 *                             sampler had it; absent where the rollouts came from outside without them
 *   logprobs_sampled f32 (R)  the same over what top-k/p, min-p left; only where they truncate
 *   prompt_id i64 (n)         file of data.prompts (or set of data.eval) << 32 | row from 0
 *   group i32 (n)             place of its group in the step's list of candidates, from 0, ascending
 *   sample i32 (n)            number inside the group, from 0
 *   finish u8 (n)             enum cairn_finish
 *   used u8 (n)               1: trained on; 0: stored only (surplus of dynamic sampling, dropped groups)
 *   verdict i8 as u8 (n)      dynamic sampling asked: 0 wrong, 1 right; 255: not asked
 *   value f32 (n)             dynamic sampling asked: how right, 0 to 1 (the verdict, unless its grader tells more finely);
 *                             else absent
 *   status u8 (n)             dynamic sampling asked: enum cairn_verdict_status, why a response has no verdict and counts as
 *                             wrong; else absent
 *   carried i32 (n)           rollout.carry: place of its group in the list of candidates of the step before, whose surplus
 *                             it was; -1: it was sampled in this step; else absent
 *   text u8, text_offsets i64 (n + 1)
 *                             rollout.store text: the response as text, bytes that are no UTF-8 included; else absent
 *   experts u8 or i32 (E)     rollout.store experts: what each router chose, for every token that the sampler ran (all of a
 *                             rollout but the last): rollouts, then tokens, then layers with experts ascending, then the
 *                             choices in the router's order. u8 where the model has at most 256 experts. content:
 *                             "experts": {"layers": [numbers], "chosen": of each}
 * Rollouts of a group stand together, samples ascending.
 *
 * content: "units", "rollouts", "groups", "temperature", "policy" (hex digest of the policy that sampled; absent for rollouts
 * from outside), "cursor" (stages/rollout/cursor.h) and counts; where groups were carried "carried": {"step": in which they
 * were sampled, "policy": hex digest of the one that did, "groups"}.
 */
#ifndef CAIRN_STAGES_COMMON_ROLLOUTS_H
#define CAIRN_STAGES_COMMON_ROLLOUTS_H

#include "stages/common/columns.h"

enum cairn_finish { CAIRN_FINISH_STOP = 0, CAIRN_FINISH_LENGTH = 1, CAIRN_FINISH_ABORTED = 2 };
#define CAIRN_VERDICT_UNASKED 255
const char *cairn_finish_name(int finish); /* "stop", "length", "aborted", "unknown" */

struct cairn_rollouts {
    int64_t n;        /* rollouts */
    int64_t *offsets; /* (n + 1) into tokens */
    int32_t *tokens;
    int64_t *response;       /* (n + 1) into logprobs: prefix sums of response lengths; not stored, made from the others */
    float *logprobs;         /* or NULL */
    float *logprobs_sampled; /* or NULL */
    int32_t *prompt_length;
    int64_t *prompt_id;
    int32_t *group, *sample;
    uint8_t *finish, *used, *verdict;
    float *value; /* or NULL, like all below */
    uint8_t *status;
    int32_t *carried;
    char *text;            /* of all responses, one after the other */
    int64_t *text_offsets; /* (n + 1) into it */
    void *experts;         /* rollout i's begin with token offsets[i] - i */
    int expert_bytes;      /* of one choice, 1 or 4 */
    int64_t expert_row;    /* choices a token */
};

/* 1: it was sampled by the policy of the step before (rollout.carry). */
static inline int cairn_rollout_is_carried(const struct cairn_rollouts *r, int64_t i)
{
    return r->carried && r->carried[i] >= 0;
}

static inline int64_t cairn_rollout_length(const struct cairn_rollouts *r, int64_t i) /* response tokens */
{
    return r->offsets[i + 1] - r->offsets[i] - r->prompt_length[i];
}

/* All units of an artefact, in order. Everything is checked: offsets ascend, lengths fit, groups stand together. */
enum cairn_status cairn_rollouts_load(struct cairn_rollouts *r, struct cairn_reader *from, struct cairn_error *err);
void cairn_rollouts_free(struct cairn_rollouts *r);
/* Writes rollouts [begin, end) of r as unit `unit`. */
enum cairn_status cairn_rollouts_write(const struct cairn_rollouts *r, int64_t begin, int64_t end, struct cairn_attempt *a,
                                       int unit, const char *identity, struct cairn_shard_entry **entry, struct cairn_error *err);
/* Makes `response` from offsets and prompt_length. Builders that fill in the arrays themselves call it last. */
enum cairn_status cairn_rollouts_finish(struct cairn_rollouts *r, const char *where, struct cairn_error *err);

#endif

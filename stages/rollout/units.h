/* units.h - a step's list of candidates (groups, in the order of the cursor), their responses as they come in, and the shards they
 * go to.
 *
 * Unit u is groups 8u .. 8u+7 of the list (the last unit may have fewer), one shard, written once all its groups are whole, so that
 * a later attempt adopts it. Which unit a group belongs to, and what stands in it, depends on the list alone.
 *
 * Dynamic sampling: a group is kept if its raw rewards are mixed (verdicts: not all equal; finer values: further apart than 1e-6)
 * and fewer than `want` groups before it in the list are. So what is kept depends on what stands before it only, and a unit can be
 * written when everything before it is known. A response whose grader failed (timeout, crashed, invalid, budget, undecided) counts
 * as wrong, as in its score; its status is stored, and groups that hang on such are counted.
 *
 * Work that is split: a process says which units are made elsewhere, by other ranks or other tasks; it neither adopts nor writes
 * those. Ranks tell each other how groups came out (news, learn), so that all know the whole list; tasks look for finished shards
 * (missing).
 *
 * Memory: owned; responses of a unit are dropped when it is written.
 */
#ifndef CAIRN_STAGES_ROLLOUT_UNITS_H
#define CAIRN_STAGES_ROLLOUT_UNITS_H

#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/manifest.h"
#include "grade/grade.h"
#include "stages/common/rollouts.h"
#include "stages/rollout/engine.h"
#include "text/ids.h"

#define CAIRN_UNIT_GROUPS 8

struct cairn_units;

/* Raw rewards of a group as they come in: verdicts are mixed if they are not all equal, finer values if they are further apart than
 * 1e-6. */
struct cairn_spread {
    double least, most;
    int32_t n, fine; /* fine: some value was neither 0 nor 1 */
};
void cairn_spread_add(struct cairn_spread *s, double raw, float value);
int cairn_spread_mixed(const struct cairn_spread *s);
/* Of a response: on a line from wrong to right by its value; 0 if it was capped and truncated_zero. */
double cairn_units_raw(double right, double wrong, int truncated_zero, float value, uint8_t finish);

struct cairn_units_opts {
    int samples;          /* rollouts of a group */
    int64_t want;         /* groups to keep */
    int dynamic;          /* 1: keep mixed ones; 0: keep all */
    int sampled;          /* 1: log-probabilities over what truncation left are stored, too */
    int carry;            /* 1: groups may come from the step before, and which did is stored */
    int64_t expert_row;   /* choices of experts a token that are stored; 0: none */
    int expert_bytes;     /* of one choice: 1 or 4 */
    double right, wrong;  /* dynamic: raw rewards of verdicts, on a line between them for finer ones; mixed means not all equal */
    int truncated_zero;   /* score.reward.truncated: zero - a capped response's raw reward is 0 */
    const char *identity; /* what shards must agree in beyond the artefact's identity: the fingerprint; copied */
    const char *dir;      /* of the artefact; copied */
    struct cairn_attempt *attempt;   /* borrowed */
    struct cairn_manifest *manifest; /* gets the shards' entries; borrowed */
    /* dynamic: grades all samples of a whole group; verdict (samples) 0 or 1; value (samples) 0 to 1, how right; status (samples)
     * enum cairn_verdict_status. */
    enum cairn_status (*grade)(void *arg, int64_t prompt_id, const struct cairn_response *r, int n, uint8_t *verdict, float *value,
                               uint8_t *status, struct cairn_error *err);
    /* Appends a response as text, which is stored; NULL: texts are not. */
    enum cairn_status (*text)(void *arg, const int32_t *tokens, int64_t n, struct cairn_str *out, struct cairn_error *err);
    void *arg;
};

struct cairn_units_counts {
    int64_t groups, kept;                   /* whole groups; of those at the beginning of the list, groups that are used */
    int64_t surplus, all_right, all_wrong;  /* dynamic: mixed ones that are not used; equal rewards, by the first one's verdict */
    int64_t carried;                        /* from the step before */
    int64_t undecided;                      /* dynamic: mixed or not by responses that have no verdict and count as wrong */
    int64_t status[CAIRN_VERDICT_STATUSES]; /* dynamic: rollouts of each enum cairn_verdict_status */
    int64_t rollouts, tokens, capped;       /* of whole groups; response tokens */
    int64_t adopted;                        /* rollouts taken over from an earlier attempt */
};

enum cairn_status cairn_units_create(struct cairn_units **out, const struct cairn_units_opts *o, struct cairn_error *err);
void cairn_units_destroy(struct cairn_units *u);

/* Appends a candidate; takes the ids over in any case. carried: -1, or its place in the list of the step before: its responses are
 * put, not sampled. */
enum cairn_status cairn_units_add(struct cairn_units *u, int64_t prompt_id, struct cairn_ids *ids, int carried,
                                  struct cairn_error *err);
int cairn_units_carried(const struct cairn_units *u, int64_t group);
int64_t cairn_units_groups(const struct cairn_units *u);
int64_t cairn_units_prompt(const struct cairn_units *u, int64_t group);
const struct cairn_ids *cairn_units_ids(const struct cairn_units *u, int64_t group);
/* How many earlier candidates have the same prompt: their draws must not be repeated. */
int cairn_units_repeat(const struct cairn_units *u, int64_t group);
/* Looks for finished shards of the units that lie in groups [begin, end of the list). */
enum cairn_status cairn_units_adopt(struct cairn_units *u, int64_t begin, struct cairn_error *err);
int cairn_units_whole(const struct cairn_units *u, int64_t group);
/* A response of group r->tag. A whole group is graded, a whole unit written (but the one at the end of the list, which may grow).
 */
enum cairn_status cairn_units_put(struct cairn_units *u, const struct cairn_response *r, struct cairn_error *err);
/* All groups are whole and the list is at its end: writes what is left. */
enum cairn_status cairn_units_finish(struct cairn_units *u, struct cairn_error *err);
int cairn_units_count(const struct cairn_units *u);

/* 1: somebody else makes the unit, 0 (at first): we do. */
void cairn_units_leave(struct cairn_units *u, int64_t unit, int elsewhere);
int cairn_units_ours(const struct cairn_units *u, int64_t group);
/* Appends how groups came out that became whole here since the last call, for cairn_units_learn of the other ranks. */
enum cairn_status cairn_units_news(struct cairn_units *u, struct cairn_str *out, struct cairn_error *err);
/* What another rank appended. Units that can be written now are. */
enum cairn_status cairn_units_learn(struct cairn_units *u, const char *p, size_t bytes, struct cairn_error *err);
/* Units of the list that are neither whole here nor lie finished in any attempt. */
enum cairn_status cairn_units_missing(const struct cairn_units *u, int64_t *missing, struct cairn_error *err);
struct cairn_units_counts cairn_units_counts(const struct cairn_units *u);
/* Prompts of mixed groups that were not kept, in list order: malloc'ed *id of *n. */
enum cairn_status cairn_units_surplus(const struct cairn_units *u, int64_t **id, int64_t *n, struct cairn_error *err);

#endif

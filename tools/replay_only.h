/* replay_only.h - which stored rollouts a replay is about: `--only KEY=VALUES`, as often as wanted.
 *
 *   step=1-5,8       steps of training (with eval=: of the evaluation)     sample=0-3        numbers inside the group
 *   prompt=ID        the prompt file's "id"; one each                      finish=stop,length,aborted
 *   verdict=right,wrong, or a status of the grader (no_answer, budget, ...), as the run's own scores have it
 *   eval=NAME        rollouts of that evaluation set instead of training's
 *
 * Conditions on one key are alternatives; those on different keys must all hold. Nothing said: everything.
 * Memory: owned; words are copied.
 */
#ifndef CAIRN_TOOLS_REPLAY_ONLY_H
#define CAIRN_TOOLS_REPLAY_ONLY_H

#include <stdint.h>

#include "base/str.h"
#include "stages/common/rollouts.h"
#include "stages/common/run.h"
#include "stages/common/scores.h"

struct cairn_only_numbers {
    int64_t (*range)[2]; /* (n) both ends belong to it */
    int n;               /* 0: any number */
};

struct cairn_only {
    struct cairn_only_numbers step, sample;
    char **prompt; /* (prompts); none: any */
    int prompts;
    char **eval; /* (evals) names */
    int evals;
    uint32_t finish, verdict; /* bits; 0: any. verdict: bit 0 wrong, 1 right, 2 + enum cairn_verdict_status */
    struct cairn_str text;    /* all that was said, each behind a blank: " step=1-5 finish=stop" */
};

/* Takes one "KEY=VALUES". CAIRN_EUSAGE with what is possible. */
enum cairn_status cairn_only_add(struct cairn_only *o, const char *text, struct cairn_error *err);
void cairn_only_free(struct cairn_only *o);

int cairn_only_link(const struct cairn_only *o, const struct cairn_link *l); /* a rollout link: is it meant? */
/* Rollout i of a step: is it? id: of its prompt, or NULL. s: the run's scores of these rollouts, or NULL: then no verdict fits. */
int cairn_only_takes(const struct cairn_only *o, const struct cairn_rollouts *r, int64_t i, const char *id, const struct cairn_scores_table *s);
/* Appends numbers (n), ascending, as --only takes them: "1-5,8". */
void cairn_only_numbers_put(const int64_t *number, int64_t n, struct cairn_str *out);
int cairn_only_all(const struct cairn_only *o); /* 1: every rollout of a link that is meant */

#endif

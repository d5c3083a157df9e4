/* score.h - from rollouts to rewards and advantages: the work of cairn-score, and the same for a replay with another recipe.
 *
 * Grades each response by the grader process (a verdict never depends on time), maps verdicts to raw rewards, adds the soft over-length
 * penalty, and makes advantages by group of the shaped rewards. Raw and shaped are both kept. Filters never drop a single rollout out of
 * its group's statistics.
 */
#ifndef CAIRN_STAGES_SCORE_SCORE_H
#define CAIRN_STAGES_SCORE_SCORE_H

#include "stages/common/graders.h"
#include "stages/common/prompts.h"
#include "stages/common/rollouts.h"
#include "stages/common/scores.h"
#include "stages/common/stage.h"
#include "stages/score/pass_rate.h"
#include "text/tokenizer.h"

struct cairn_score_opts {
    const struct cairn_recipe *recipe; /* score.*, rollout.max_new_tokens */
    struct cairn_grader_process *graders;
    struct cairn_tokenizer *tokenizer;
    const struct cairn_prompts *files; /* gold answers */
    int nfiles;
    const char *const *grader;         /* (nfiles) of each file; NULL entries: score.grader */
    int64_t cap;                       /* length cap of these rollouts, tokens */
    struct cairn_grade_failure *failure; /* gets how a grader crashed or took too long on the first of these rollouts; or NULL */
    struct cairn_grade_failure *invalid; /* gets what it replied to the first of them to which its reply is no verdict; or NULL */
    void (*progress)(void *arg, int64_t done, int64_t total); /* may be NULL */
    void *arg;
};

/* Grades rollouts [begin, end) of r into s (created for r->n): verdict, status, extracted. */
enum cairn_status cairn_score_grade(struct cairn_scores_table *s, const struct cairn_rollouts *r, int64_t begin, int64_t end,
                                    const struct cairn_score_opts *o, struct cairn_error *err);
/* reward, penalty, advantage, mask of all, from the verdicts. Advantages are made among used rollouts; others get 0 and mask 0. */
enum cairn_status cairn_score_rewards(struct cairn_scores_table *s, const struct cairn_rollouts *r, const struct cairn_score_opts *o,
                                      struct cairn_error *err);
/* The same for rollouts [begin, end), which must be whole groups. */
enum cairn_status cairn_score_rewards_of(struct cairn_scores_table *s, const struct cairn_rollouts *r, int64_t begin, int64_t end,
                                         const struct cairn_score_opts *o, struct cairn_error *err);
/* How the groups of used rollouts were solved. */
struct cairn_pass_rate cairn_score_pass_rate(const struct cairn_scores_table *s, const struct cairn_rollouts *r);
/* Metrics (names of the objective's section 7) of the used rollouts: new reference, NULL without memory. */
json_t *cairn_score_metrics(const struct cairn_scores_table *s, const struct cairn_rollouts *r);

enum cairn_status cairn_score_work(struct cairn_stage_ctx *ctx, struct cairn_error *err);
enum cairn_status cairn_score_after(const struct cairn_run *run, const struct cairn_link *l, struct cairn_error *err);

#endif

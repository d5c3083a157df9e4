/* replay_scores.h - what `cairn replay --score` stores: RUN/replay/NAME/1, 2, ..., one artefact a call.
 *
 * Kind "score", units as stages/common/scores.h has them, but for unit k being all rollouts of the k-th link of that call, in the
 * order of its rollout artefact. content: "units", "links": [{"name": "step/000003/score", "metrics": {...}}, ...]; inputs: the
 * rollouts and what graded them. A call stores links that no artefact of NAME has yet of these very rollouts, all of them at once:
 * files and their syncs would else be most of what scoring again costs. Where it takes long, what is there is made durable every
 * span_s seconds, and a call that follows a kill takes it over.
 */
#ifndef CAIRN_TOOLS_REPLAY_SCORES_H
#define CAIRN_TOOLS_REPLAY_SCORES_H

#include "stages/common/run.h"
#include "stages/common/scores.h"

struct cairn_replay_scores;

/* link (n): those of the call. recipe: hash of the one that scores. CAIRN_EUSAGE: NAME holds scores by another. */
enum cairn_status cairn_replay_scores_open(struct cairn_replay_scores **out, const struct cairn_run *run, const char *name,
                                           struct cairn_digest recipe, const struct cairn_link *link, int n, double span_s,
                                           struct cairn_error *err);
/* 1: an attempt that died had finished link i: verdict, value and status of its s->n rollouts are filled in. */
enum cairn_status cairn_replay_scores_take(struct cairn_replay_scores *x, int i, struct cairn_scores_table *s, int *taken,
                                           struct cairn_error *err);
/* The scores of link i; s is taken over and emptied. */
enum cairn_status cairn_replay_scores_put(struct cairn_replay_scores *x, int i, struct cairn_scores_table *s, const json_t *metrics,
                                          struct cairn_error *err);
/* All links were put: commits, unless there was nothing new. */
enum cairn_status cairn_replay_scores_commit(struct cairn_replay_scores *x, struct cairn_error *err);
void cairn_replay_scores_close(struct cairn_replay_scores *x); /* NULL is fine */

#endif

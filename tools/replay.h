/* replay.h - what `cairn replay` does with stored rollouts.
 *
 *   RUN/replay/NAME/1, 2, ...            scores by another recipe, beside RUN's own (--score; replay_scores.h); no line in `cairn digest`
 *   NEW                                  a run whose rollouts are those of another run or of a file; its recipe's run.origin says so:
 *                                        "run UUID" (--train) or "file NAME DIGEST" (--from)
 */
#ifndef CAIRN_TOOLS_REPLAY_H
#define CAIRN_TOOLS_REPLAY_H

#include "base/str.h"
#include "stages/common/run.h"
#include "tools/recipe_args.h"
#include "tools/replay_only.h"

struct cairn_replay_opts {
    struct cairn_recipe_args recipe; /* .recipe: DIR or RECIPE, as the verb was given it; .run: --run NEW; overrides */
    const char *score, *name, *from, *export;
    double share;           /* --regenerate: of the rollouts, above 0, at most 1 */
    struct cairn_only only; /* which stored rollouts */
    int changes;            /* --score: name each rollout that changed */
    int quiet, json;
};

/* Re-scores all stored rollouts of run o->recipe.recipe by the recipe o->score. */
enum cairn_status cairn_replay_score(const struct cairn_replay_opts *o, struct cairn_error *err);
/* Trains again in NEW, from the rollouts that run o->recipe.recipe has. */
enum cairn_status cairn_replay_train(const struct cairn_replay_opts *o, struct cairn_error *err);
/* Makes stored rollouts of run o->recipe.recipe again, from the policies that made them. CAIRN_ENUMERIC: some came out otherwise. */
enum cairn_status cairn_replay_regenerate(const struct cairn_replay_opts *o, struct cairn_error *err);
/* Writes stored rollouts of run o->recipe.recipe into the file o->export, as o->from wants them. */
enum cairn_status cairn_replay_export(const struct cairn_replay_opts *o, struct cairn_error *err);
/* Makes NEW from recorded responses, as rollouts of step 1. */
enum cairn_status cairn_replay_from(const struct cairn_replay_opts *o, struct cairn_error *err);

/* The recipe of an existing run with `extra` overrides, then o's, laid over it. Outside files that moved or changed are taken from the run's
 * copies. */
enum cairn_status cairn_replay_recipe(struct cairn_recipe **out, const struct cairn_run *from, const struct cairn_replay_opts *o, int extras,
                                      const char *const *extra, struct cairn_error *err);
/* malloc'ed "key=\"text\"", quoted for YAML. NULL without memory. */
char *cairn_replay_override(const char *key, const char *text);

/* run.origin of a recipe: 1 if it is of that kind ("run" or "file"). */
int cairn_replay_origin(const struct cairn_recipe *r, const char *kind);
/* Recorded rollouts (stages/common/recorded.h) at link l of run: may `recipe` train on them? *keys, if asked for, gets what would have to be said
 * that it may. OK for all other rollouts, and for those that were collected. */
enum cairn_status cairn_replay_trains(const struct cairn_run *run, const struct cairn_link *l, const struct cairn_recipe *recipe,
                                      struct cairn_str *keys, struct cairn_error *err);
/* May the chain of `run` go on here or in Slurm? One that replays another's rollouts must not sample its own, one of recorded responses must have
 * them and be able to train on them. */
enum cairn_status cairn_replay_origin_check(const struct cairn_run *run, struct cairn_error *err);

#endif

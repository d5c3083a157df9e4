/* replay_recipe.h - what the steps of a run that trains again are made by: the old run's recipe with the command line's key=value laid over it, and
 * the old run's amendments.
 *
 * Each amendment of OLD that a replayed step sees is taken along, in OLD's order, as an amendment of NEW that names OLD and its number there
 * (amend.h: "origin"). It sets in with the first step of NEW whose rollouts are of a step that saw it. The command line holds for all steps: what an
 * amendment says of a key given there, or of a key below it, is left out, and what the command line says of a key below one that it sets is laid
 * behind it. One whose words are all left out is still taken along, with the command line's in their place.
 */
#ifndef CAIRN_TOOLS_REPLAY_RECIPE_H
#define CAIRN_TOOLS_REPLAY_RECIPE_H

#include "stages/common/amend.h"
#include "tools/replay.h"

/* Where the steps of the new run come from. */
struct cairn_replay_sources {
    int64_t *step; /* (n) of the old run, ascending: step[k - 1] becomes step k */
    int64_t n;
};

struct cairn_replay_along {
    const struct cairn_run *old;
    const struct cairn_replay_opts *o;
    int64_t stored, steps;             /* that there are rollouts of; that NEW has */
    struct cairn_amendment *amendment; /* (n) as NEW is to have them; number: none yet */
    int n;
};

/* NEW's recipe, caller frees, and the amendments that it takes along. CAIRN_ERECIPE: one of them cannot be laid over that recipe. */
enum cairn_status cairn_replay_along_make(struct cairn_replay_along *a, struct cairn_recipe **recipe, const struct cairn_run *old,
                                          const struct cairn_replay_opts *o, const struct cairn_replay_sources *from, struct cairn_error *err);
/* NEW's recipe as its step `step` sees it. Caller frees. */
enum cairn_status cairn_replay_along_view(const struct cairn_replay_along *a, int64_t step, struct cairn_recipe **out, struct cairn_error *err);
/* Before a run is made of it: would cairn_run_init take what each step sees, and has this machine what it asks for? */
enum cairn_status cairn_replay_along_fit(const struct cairn_replay_along *a, struct cairn_error *err);
/* The keys, each behind a blank, with which `recipe` takes rollouts of other policies; "": it takes them as it is. */
const char *cairn_replay_keys_to_take(const struct cairn_recipe *recipe);
/* Before a run is made of it: where the command line, or a step that is left out, makes other policies than the old run had, does train.on_policy
 * take the old rollouts behind them? CAIRN_ERECIPE, with the keys to add: it does not. */
enum cairn_status cairn_replay_along_policies(const struct cairn_replay_along *a, const struct cairn_replay_sources *from, struct cairn_error *err);
/* Writes those that *run, which is opened anew, has not got yet. The caller holds its lock. CAIRN_ERECIPE: it has taken one along with
 * other words. */
enum cairn_status cairn_replay_along_write(const struct cairn_replay_along *a, struct cairn_run **run, struct cairn_error *err);
void cairn_replay_along_free(struct cairn_replay_along *a);

#endif

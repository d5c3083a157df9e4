/* launch.h - start a stage executable for one link of a run on this machine and wait for it.
 *
 * One process, or under mpirun where the stage's layout has several ranks; as many of these at once as the recipe gives it tasks. They die
 * with their parent (PR_SET_PDEATHSIG; mpirun takes a few seconds to end its ranks, which are fenced by then, and has a guard should it not end:
 * mpirun.h), so that kill -9 of the parent leaves nobody at work. A stop that is requested (base/signals.h) meanwhile is passed on: as SIGTERM to a
 * stage, as SIGUSR1 to the ranks below an mpirun (reach.h).
 */
#ifndef CAIRN_TOOLS_LAUNCH_H
#define CAIRN_TOOLS_LAUNCH_H

#include "stages/common/run.h"

/* Ranks that the recipe's layout gives a stage. */
int64_t cairn_launch_ranks(const struct cairn_recipe *recipe, enum cairn_stage stage);
/* Independent processes that share the link's work. */
int64_t cairn_launch_tasks(const struct cairn_run *run, const struct cairn_link *l);

/* CAIRN_OK: the link is committed. Else the stage's exit code, with a sentence that names step and stage: CAIRN_EAGAIN when it stopped early
 * or was killed from outside, CAIRN_EBUG when a fault ended it, when its code is none of ours, or when it said done and committed nothing. quiet: no
 * progress. */
enum cairn_status cairn_launch(const struct cairn_run *run, const struct cairn_link *l, int quiet, struct cairn_error *err);

/* A run that is resident: all of its roles in one mpirun, until the chain (n) is done (stages/common/resident.h). done (n): which links are
 * committed, as the caller has looked; kept up. told (or NULL) is called for each link that is found to be committed meanwhile, in the order of the
 * chain. Status and sentences as above. */
enum cairn_status cairn_launch_resident(const struct cairn_run *run, const struct cairn_link *chain, char *done, int n, int quiet,
                                        enum cairn_status (*told)(void *arg, const struct cairn_link *l, struct cairn_error *err), void *arg,
                                        struct cairn_error *err);

#endif

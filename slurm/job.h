/* job.h - what a Slurm job does: the links of its group, one srun after another, each asked for before and after.
 *
 *     for each link that is not committed:   inputs there? -> srun cairn-<stage> -> committed?
 *
 * A resident run: all roles in one srun (--multi-prog) until the chain is done; what ends it early is judged in the same way.
 *
 * Exit codes of srun are hints. What follows from what:
 *     inputs missing        whoever makes them is queued again (submit.h, "repair"), and this job anew behind them
 *     stopped early (75)    scontrol requeue: same id, so that children go on waiting; where that is refused, queued anew,
 *                           then it waits to be killed. Never a non-zero exit inside a preemption's grace.
 *                           A stage that SIGTERM killed before it listened counts as stopped early
 *     SIGTERM to the job    Slurm ends it (scancel, preemption without grace): tasks have heard it too; it waits until they
 *                           are gone. Its time is over: queued anew, for Slurm does not start it again
 *     failed                tried again as a new job, up to slurm.attempts times with the same code; then it stops: jobs that
 *                           wait for it are cancelled, with a sentence that says why. 65, 76 and 78 stop at once: trying
 *                           again does not mend them. After a 76 in the midst of a run the gate (cairn check) looks where, in the
 *                           same job, and its finding stands in the sentence
 *     a node is unfit       named in the ledger and excluded; queued anew
 *     all committed         the window is extended (slurm.extend)
 */
#ifndef CAIRN_SLURM_JOB_H
#define CAIRN_SLURM_JOB_H

#include "slurm/plan.h"

/* Called by `cairn job` in a batch script. Returns the job's exit code; its sentences are told on stderr (the job's log). */
int cairn_job_main(const struct cairn_run *run, int64_t step, const char *group);

#endif

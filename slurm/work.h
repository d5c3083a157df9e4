/* work.h - one job at work: what the files of a job share. job.c has the order of its links, verdict.c what follows from how one
 * ended, locate.c what the gate says of a mismatch, resident.c the job whose roles live side by side. Nobody else includes it.
 */
#ifndef CAIRN_SLURM_WORK_H
#define CAIRN_SLURM_WORK_H

#include "slurm/ledger.h"
#include "slurm/plan.h"
#include "slurm/srun.h"

#define CAIRN_WORK_PATIENCE_S 60.0 /* a controller that restarts */

struct cairn_work {
    const struct cairn_run *run;
    struct cairn_plan plan;
    const struct cairn_job *job;
    char id[32];  /* SLURM_JOB_ID: this job, or this task of an array */
    int64_t self; /* the array's id, or the job's: what the queue is asked about */
    int64_t task, tasks;
    int64_t nodes, restart;
    double began_s, stop_at_s, notice_s; /* notice: from SIGTERM to SIGKILL */
    char sentence[900];                  /* what is said at the end */
    const char *action;
    int code; /* of what ended the work: a stage's */
};

/* How the job ends: `action` (ledger.h) and the sentence, told by cairn_work_end_tell to people and to the ledger. */
void cairn_work_say(struct cairn_work *w, const char *action, int code, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
void cairn_work_end_tell(struct cairn_work *w);
/* 1: all links of the job are committed, or passed by (gap.h). */
int cairn_work_done(const struct cairn_work *w);
/* 1: l, of the job, is not committed, and is passed by. */
int cairn_work_passed(const struct cairn_work *w, const struct cairn_link *l);

/* --- verdict.c: each tells the end and returns the job's exit code --------------------------------------------------------- */

/* After a failure that has been said: again, or never. Again means a job of a new id: at once (a requeued one waits for two
 * minutes), and free of what a node keeps under the old id. */
int cairn_work_failed(struct cairn_work *w);
/* Slurm ends this job (SIGTERM). `what` was at work, "" if nothing was. */
int cairn_work_killed(struct cairn_work *w, const char *what);
/* Whoever makes the input is asked for once more; this job comes behind. */
int cairn_work_repair(struct cairn_work *w, const char *missing);
/* A step that should have committed something, and has not. `what` and `stage` are for people; said: the stage's own sentence or
 * "". */
int cairn_work_step_failed(struct cairn_work *w, const char *what, const char *stage, const struct cairn_srun_end *end,
                           const char *said);
/* All is done: further steps are queued (slurm.extend). */
int cairn_work_extend(struct cairn_work *w);
/* A node is unfit: told, and said as the job's end. Fits cairn_preflight_judge. */
void cairn_work_unfit(void *w, const char *node, const char *text);

/* --- job.c: a stage from outside -------------------------------------------------------------------------------------------- */

/* The sentence of the last failure in RUN/log/<stage>.jsonl since then. 1: the stage has told something, so it was at work. */
int cairn_work_sentence(const struct cairn_work *w, const struct cairn_link *l, double since_wall_s, char *text, size_t n);
/* A link that was done before: whoever committed it may have been killed right behind that. The stage sees that it is done and
 * tidies up. */
void cairn_work_settle(const struct cairn_work *w, const struct cairn_link *l);
/* 1: the step has come to an end of its own, whatever that was; 0: it was not launched, and may be tried again. launch: how many
 * tries there were before; told: a stage of it has said something. */
int cairn_work_lived(const struct cairn_srun_end *end, int launch, int told);

/* --- locate.c --------------------------------------------------------------------------------------------------------------------- */

/* What training said when it ended with 76, and what the gate finds: text, of n bytes. `said` alone where the gate could not look. */
const char *cairn_work_locate(const struct cairn_work *w, const char *said, char *text, size_t n);

/* --- resident.c --------------------------------------------------------------------------------------------------------------- */

/* All roles in one step, to the end of the run. Returns the job's exit code. */
int cairn_work_resident(struct cairn_work *w);

#endif

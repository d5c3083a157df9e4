/* ledger.h - RUN/log/slurm.jsonl: what jobs did, one event a line. It advises; it decides nothing about what is done.
 *
 *     queued   {job, step, group, by: user|extend|repair, why, after}
 *     start    {job, restart, task, nodes, partition, notice_s}
 *     end      {job, restart, task, action, code, text, seconds}
 *     unfit    {job, node, text}: a node that the preflight refused
 *     go       a user said: go on (failures before it count no more)
 *     stop     a user said: stop
 *
 * Why it exists: "the same failure three times" and "that node is unfit" are known to no manifest. Lost, it costs a few
 * more attempts.
 */
#ifndef CAIRN_SLURM_LEDGER_H
#define CAIRN_SLURM_LEDGER_H

#include <jansson.h>

#include "slurm/plan.h"

/* What an ended job's end event says it did about it. */
#define CAIRN_ENDED_DONE    "done"    /* all its links are committed, or an array task's share */
#define CAIRN_ENDED_REQUEUE "requeue" /* stopped early; goes on */
#define CAIRN_ENDED_RETRY   "retry"   /* failed; will be tried again */
#define CAIRN_ENDED_REPAIR  "repair"  /* inputs were missing; whoever makes them was queued again */
#define CAIRN_ENDED_STOP    "stop"    /* failed for good */
#define CAIRN_ENDED_KILLED  "killed"  /* told to end (scancel, preemption) */

/* Appends an event; job may be NULL. Takes members over. Failures are told on stderr and cost nothing else. */
void cairn_ledger_tell(const struct cairn_run *run, const char *ev, const struct cairn_job *job, json_t *members);

/* All events as an array; an empty one if there is no file; torn lines are passed over. CAIRN_ENOSPACE without memory. */
enum cairn_status cairn_ledger_read(const struct cairn_run *run, json_t **out, struct cairn_error *err);

/* How the job has failed since the last `go` and since it last did well. */
struct cairn_failures {
    int64_t done; /* links of the job that were committed at its last failure: one that came further is the first of a row */
    int same;         /* how often in a row with the code of the last one */
    int code;         /* of the last one; 0: none */
    int for_good;     /* the last one was one that trying again does not mend */
    const char *text; /* its sentence, borrowed from the events; "" */
};
void cairn_ledger_failures(struct cairn_failures *out, const json_t *events, int64_t step, const char *group);
/* The id of the job that was queued last for it; NULL: none. Borrowed. */
const char *cairn_ledger_job(const json_t *events, int64_t step, const char *group);
/* Nodes told unfit within the last day: malloc'ed "n3,n7", "" if there is none. */
char *cairn_ledger_unfit(const json_t *events, double now_wall_s);

#endif

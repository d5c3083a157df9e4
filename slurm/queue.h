/* queue.h - what Slurm says about jobs: the queue, one job in detail, what has become of one that ended.
 *
 * squeue and scontrol are asked; where there is accounting sacct answers for jobs that scontrol has forgotten (MinJobAge). Slurm's
 * answers are hints: what is done is what has a manifest.
 */
#ifndef CAIRN_SLURM_QUEUE_H
#define CAIRN_SLURM_QUEUE_H

#include <stdint.h>

#include "base/status.h"

/* One job, or one task of an array (tasks that wait together are one line). */
struct cairn_queued {
    char id[64];   /* as scontrol and scancel take it: "12", "12_3", "12_[0-3]" */
    int64_t job;   /* its job id; what a dependency names is `array` */
    int64_t array; /* the array's id; of no array: job */
    char name[160];
    char state[32];   /* "PENDING", "RUNNING", "COMPLETING", ... */
    char reason[128]; /* "None", "Dependency", "DependencyNeverSatisfied", "JobHeldUser", "Resources", ... */
    char dependency[256];
    char nodes[128];
    int64_t restarts;
};

struct cairn_queue {
    struct cairn_queued *job;
    int n;
};

/* This user's jobs whose names begin with `prefix`. CAIRN_EAGAIN if Slurm does not answer, CAIRN_EDEVICE if this machine has no
 * Slurm. Tried for patience_s seconds (a controller may be starting). */
enum cairn_status cairn_queue_read(struct cairn_queue *out, const char *prefix, double patience_s, struct cairn_error *err);
void cairn_queue_free(struct cairn_queue *q);
/* The first entry of that name, `but` (a job or array id; 0: none) left out; NULL if there is none. */
const struct cairn_queued *cairn_queue_find(const struct cairn_queue *q, const char *name, int64_t but);

/* One job of which Slurm still knows. */
struct cairn_job_state {
    char state[32]; /* "" : Slurm knows nothing of it any more */
    char reason[128];
    char nodes[128];
    char partition[64];
    int exit_code, exit_signal;
    int64_t restarts;
    int requeue;            /* it may be requeued */
    int64_t end_wall_s;     /* when its time is over, seconds since 1970; 0: unknown or never */
    int64_t preempt_wall_s; /* when its preemption began; 0: it was not preempted */
};
enum cairn_status cairn_job_state(struct cairn_job_state *out, const char *id, double patience_s, struct cairn_error *err);

/* Seconds between SIGTERM and SIGKILL: the partition's GraceTime and the cluster's KillWait. Below 0: Slurm does not tell. */
struct cairn_grace {
    double grace_s, kill_wait_s;
};
void cairn_grace_ask(struct cairn_grace *out, const char *partition);

#endif

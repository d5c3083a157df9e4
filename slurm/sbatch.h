/* sbatch.h - a job put into Slurm's queue, changed there, taken out again; and what Slurm's complaints mean. */
#ifndef CAIRN_SLURM_SBATCH_H
#define CAIRN_SLURM_SBATCH_H

#include "slurm/plan.h"

struct cairn_sbatch_end {
    int64_t id;    /* 0: not queued, since */
    int full;      /* the queue is full: no fault of the job's */
    int no_parent; /* or Slurm does not know a job that it depends on */
};

/* One call of sbatch, again for patience_s seconds while the controller does not answer. script: the job's text, given on stdin;
 * dependency: as --dependency takes it, or NULL; test: Slurm is asked whether it would take it, and *end is empty. CAIRN_ERECIPE:
 * the recipe asks for what Slurm refuses, with the key that does. CAIRN_EAGAIN: it does not answer. CAIRN_EDEVICE: there is none.
 */
enum cairn_status cairn_sbatch(struct cairn_sbatch_end *end, const struct cairn_run *run, const struct cairn_job *job,
                               const char *script, const char *dependency, int test, double patience_s, struct cairn_error *err);
/* scontrol VERB A B; again for patience_s seconds if it fails: CAIRN_EAGAIN. */
enum cairn_status cairn_scontrol(const char *verb, const char *a, const char *b, double patience_s, struct cairn_error *err);
/* A job or a task of an array; CAIRN_EAGAIN if Slurm refuses. */
enum cairn_status cairn_scancel(const char *id, struct cairn_error *err);

#endif

/* plan.h - which Slurm jobs a run is made of: the chain (stages/common/run.h) cut into allocations by `slurm.jobs`.
 *
 * One job for each step and group of stages; the evaluations after a step are one job of their own, which nothing waits for. Step 0
 * has jobs only for what a warm start does. Jobs are in the order of the chain. A job waits for those whose links its own links
 * read.
 *
 *     tiny-1a2b3c4d.3.score-train-sync     name: folder of the run, first 8 digits of its uuid, step, stages
 *     tiny-1a2b3c4d.3.eval
 *
 * The gate (run.check: first) is a job of its own, of step 0, asked for like a rollout of one rank; all others wait for it.
 *
 *     tiny-1a2b3c4d.0.check
 *
 * A resident run is one job, of step 0, with all other links of the chain: all roles are ranks of one step in one allocation.
 *
 *     tiny-1a2b3c4d.0.resident
 *
 * Pure functions of the run and of which manifests are there. They ask nothing of Slurm.
 */
#ifndef CAIRN_SLURM_PLAN_H
#define CAIRN_SLURM_PLAN_H

#include "stages/common/run.h"

#define CAIRN_JOB_EVAL     (-1)
#define CAIRN_JOB_RESIDENT (-2)
#define CAIRN_JOB_CHECK    (-3)
#define CAIRN_JOB_PARENTS 16

struct cairn_job {
    char name[160];
    char group[64]; /* "score-train-sync", "eval" */
    int64_t step;
    int which;                     /* index into slurm.jobs, or CAIRN_JOB_EVAL, _RESIDENT, _CHECK */
    const struct cairn_link *link; /* (links) borrowed from the plan */
    int links;
    int64_t tasks;                          /* of the job array; 1: no array */
    int64_t ranks;                          /* of its widest stage; resident: of all roles */
    int done;                               /* all links are committed */
    int parent[CAIRN_JOB_PARENTS], parents; /* indices of jobs in the plan */
};

struct cairn_plan {
    const struct cairn_run *run; /* borrowed */
    struct cairn_link *link;     /* (nlinks) */
    int nlinks;
    struct cairn_job *job; /* (n) */
    int n;
};

/* done: which links of cairn_run_chain(run) are committed, for who has looked just now; NULL: they are looked at. */
enum cairn_status cairn_plan_make(struct cairn_plan *out, const struct cairn_run *run, const char *done, struct cairn_error *err);
void cairn_plan_free(struct cairn_plan *p);
/* The job that makes that step's group; NULL if there is none. */
const struct cairn_job *cairn_plan_find(const struct cairn_plan *p, int64_t step, const char *group);
/* The job that makes link l; NULL if there is none. */
const struct cairn_job *cairn_plan_maker(const struct cairn_plan *p, const struct cairn_link *l);

/* Ranks of one link's step within a job; of a resident one, those of the link's role. */
int64_t cairn_job_ranks(const struct cairn_run *run, const struct cairn_job *job, const struct cairn_link *l);
/* "tiny-1a2b3c4d." : what the names of this run's jobs begin with. n bytes at text. */
void cairn_job_prefix(const struct cairn_run *run, char *text, size_t n);
/* What the recipe says for the job: the first stage of it that names slurm.<stage>.<key>, else slurm.<key>; NULL: nothing.
 * Evaluations are asked for like rollouts. Borrowed. */
const json_t *cairn_job_value(const struct cairn_run *run, const struct cairn_job *job, const char *key);

#endif

/* submit.h - keeps a window of a run's steps queued. Idempotent: call it as often as you like, from anywhere.
 *
 * A job is queued if its links are not all committed, its step lies within `slurm.window` of the first one that is not done, and no
 * job of its name is queued. The edge to its parents is a dependency (afterany: however they end), the truth is the manifest: a
 * parent that is done needs no edge. `singleton` keeps two jobs of one name from running at once. A lock (RUN/log/.slurm.lock)
 * keeps two calls apart where locks work.
 *
 * Three callers: a user (by "user": failures are forgiven, nodes are trusted again); the last act of a job ("extend"); a job that
 * found its inputs missing ("repair": its own id is passed as `self` and counts as gone, so it is queued anew behind whoever makes
 * them, and jobs that wait for it are turned to the new id). A job that failed for good, or `slurm.attempts` times in the same way,
 * is only queued by a user.
 */
#ifndef CAIRN_SLURM_SUBMIT_H
#define CAIRN_SLURM_SUBMIT_H

#include <jansson.h>

#include "slurm/plan.h"

struct cairn_submit_opts {
    const char *by;            /* "user", "extend", "repair" */
    const char *why;           /* NULL, or the reason of a repair */
    int64_t self;              /* the calling job's id (an array's: the array's); 0: none */
    int dry_run;               /* nothing is asked of Slurm and nothing queued */
    double patience_s;         /* how long to wait for Slurm's answers and for the lock */
    struct cairn_str *scripts; /* NULL, or gets every script (dry run) */
};

/* *report: {"run", "window": [first, last], "jobs": [{"job", "name", "step", "group", "state":
 * done|queued|kept|blocked|full|planned (dry run), "after": [...], "why"}...]} of the window's jobs; new reference, also of what
 * was done before a failure (NULL before there is any). CAIRN_ERECIPE: Slurm refuses what the recipe asks for. CAIRN_EAGAIN: it
 * does not answer, or its limits let no job in. */
enum cairn_status cairn_submit(const struct cairn_run *run, const struct cairn_submit_opts *opts, json_t **report,
                               struct cairn_error *err);

/* Cancels this run's jobs: all of them (from NULL), or those that wait and come after `from` in the chain. *n: how many. */
enum cairn_status cairn_submit_cancel(const struct cairn_run *run, const struct cairn_job *from, double patience_s, int *n,
                                      struct cairn_error *err);

#endif

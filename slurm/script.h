/* script.h - the text of a job's script: what the recipe's slurm section asks for, then one line that does the work.
 *
 * All of it stands in #SBATCH lines, so that a script can be read, kept and submitted by hand; only the dependency, which names ids
 * that are known when it is submitted, is an argument of sbatch. The shell is replaced by `cairn job` (exec), which so hears
 * Slurm's signals itself.
 */
#ifndef CAIRN_SLURM_SCRIPT_H
#define CAIRN_SLURM_SCRIPT_H

#include "base/str.h"
#include "slurm/plan.h"

/* Appends the script. exclude: nodes to stay away from, beside slurm.exclude ("n3,n7"; NULL or "": none). CAIRN_ERECIPE for a value
 * that cannot stand in a script (a line break), or for a layout that the asked nodes and tasks cannot hold. */
enum cairn_status cairn_script_write(const struct cairn_run *run, const struct cairn_job *job, const char *exclude,
                                     struct cairn_str *out, struct cairn_error *err);
/* malloc'ed path of the job's log; an array's tasks have "%a" in it, as Slurm's pattern. */
char *cairn_script_log(const struct cairn_run *run, const struct cairn_job *job);

#endif

/* command.h - run one of Slurm's commands and keep what it says.
 *
 * The programs are looked for in the PATH, so that a site's wrapper works as well. Nothing goes through a shell. A command that
 * does not answer in time is killed: a controller that restarts must not hang a job's last act. sbatch hears nothing of the job that
 * calls it.
 */
#ifndef CAIRN_SLURM_COMMAND_H
#define CAIRN_SLURM_COMMAND_H

#include "base/status.h"
#include "base/str.h"

struct cairn_command {
    struct cairn_str out, err; /* what it printed; freed with cairn_command_free */
    int code;                  /* exit code; 128 + n if signal n ended it; 127: there is no such program */
    int late;                  /* 1: it was killed because its time was over */
};

/* argv ends with NULL. input (may be NULL) is its stdin. timeout_s <= 0: 60. CAIRN_OK whatever the exit code is; failures are ours.
 */
enum cairn_status cairn_command_run(struct cairn_command *c, const char *const *argv, const char *input, double timeout_s,
                                    struct cairn_error *err);
void cairn_command_free(struct cairn_command *c);
/* The last line of stderr (else stdout) that says something, without the program's name and "error: " in front: for sentences.
 * Borrowed; it cuts c's text. "" if it said nothing. */
const char *cairn_command_says(struct cairn_command *c);

#endif

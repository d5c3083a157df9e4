/* srun.h - one job step: a program on the nodes of this allocation, watched until it ends. */
#ifndef CAIRN_SLURM_SRUN_H
#define CAIRN_SLURM_SRUN_H

#include <stdint.h>

#include "base/status.h"

struct cairn_srun {
    const char *const *argv; /* the program, NULL at the end; or two words, --multi-prog and its file */
    int64_t ranks, nodes;    /* nodes of the allocation; the step takes as many as it has ranks for */
    double stop_at_s;        /* cairn_now_s() at which it is told to stop (SIGUSR1); 0: never */
};

struct cairn_srun_end {
    int code;       /* srun's exit code; 128 + n if signal n ended it */
    int told;       /* its time was over: it was told to stop */
    int terminated; /* we were told to end meanwhile (SIGTERM): srun has gone, its tasks may be at work */
};

/* Tasks share one MPI world (PMIx) if there are several. -K1: one that ends badly takes all with it. */
enum cairn_status cairn_srun(struct cairn_srun_end *end, const struct cairn_srun *s, struct cairn_error *err);

#endif

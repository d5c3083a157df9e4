/* watchdog.h - a thread that ends the process when a wait has lasted longer than its deadline.
 *
 * A peer that hangs, is stopped or is cut off does not make MPI or NCCL return; so nobody but another thread can end
 * the wait. When a deadline passes, the watchdog writes one sentence to stderr (rank, operation, sequence number,
 * group, who did not come), calls the world's abort on a helper's time, and leaves with _exit(75): a hang is not our
 * data's fault, nothing committed is lost, and 75 is the one code that makes the chain run the step again; what hangs
 * each time is stopped by the chain, which counts attempts without progress. (70 would stop a run for one bad node,
 * 74 would blame a disc.)
 *
 * Time is counted in the thread's own ticks, and a tick counts at most double: while the whole process is suspended
 * (Slurm's gang scheduling, a laptop's lid) the deadline does not run.
 */
#ifndef CAIRN_WORLD_WATCHDOG_H
#define CAIRN_WORLD_WATCHDOG_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct cairn_watchdog;
struct cairn_group;

/* What is being waited for. Strings are borrowed until the end of the wait. */
struct cairn_wait {
    const char *op;                  /* "barrier" */
    const char *what;                /* the caller's word for it: "rollout commit" */
    const struct cairn_group *group; /* NULL: no collective */
    uint64_t seq;                    /* the group's sequence number, or the rank's own of an exchange */
    int exchange, to, from;          /* exchange 1: point to point with these ranks of the group (-1: none) */
    double deadline_s;               /* 0: for ever */
};

/* `describe` adds to text (size bytes, NUL-terminated) who is waiting for whom; `abort_all` breaks communication off.
 * Both run on the watchdog's thread and may be NULL. The thread takes no signals. */
enum cairn_status cairn_watchdog_create(struct cairn_watchdog **out, void (*describe)(void *arg, const struct cairn_wait *w, char *text, size_t size),
                                        void (*abort_all)(void *arg, int code), void *arg, struct cairn_error *err);
void cairn_watchdog_destroy(struct cairn_watchdog *d);
/* Waits nest, up to 8 deep; begin and end come from the thread that drives the world. */
void cairn_watchdog_begin(struct cairn_watchdog *d, const struct cairn_wait *w);
void cairn_watchdog_end(struct cairn_watchdog *d);

#endif

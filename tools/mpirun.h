/* mpirun.h - what an mpirun that cairn run starts needs beyond other children (launch.h): its environment, a stop by way of its ranks, and an
 * end.
 *
 * The end. Open MPI's mpirun may lock itself up while it takes down a job whose ranks were killed (PMIx_server_finalize). Nothing waits for
 * such a one: its parent kills it when it has been without ranks for a while (watch), and behind a parent that was killed a guard does.
 * A guard is a small process beside mpirun that sleeps until one of the two is gone. It needs pidfd_open (Linux 5.3).
 */
#ifndef CAIRN_TOOLS_MPIRUN_H
#define CAIRN_TOOLS_MPIRUN_H

#include <stdint.h>
#include <sys/types.h>

#define CAIRN_MPIRUN_BEHIND_S 10.0 /* behind a parent that was killed: it has been told to end, and its ranks get two seconds from it */

#define CAIRN_MPIRUN_PROGRAMS 3 /* at most, of one world */

struct cairn_mpirun {
    pid_t pid;
    const char *program[CAIRN_MPIRUN_PROGRAMS + 1]; /* what its ranks run: absolute, without links; ends with NULL; borrowed */
    int64_t ranks;
    int seen;                                       /* (watch) they have been at work */
    double alone_s;                                 /* (watch) cairn_now_s() since when none is; 0: some are */
};

/* In the child, before it becomes an mpirun of so many ranks. */
void cairn_mpirun_prepare(int64_t ranks);

/* Asks the ranks to stop, waited_s after it was first tried. 1: they have been told. */
int cairn_mpirun_stop(const struct cairn_mpirun *m, double waited_s);

/* From time to time: kills an mpirun that goes on without ranks. */
void cairn_mpirun_watch(struct cairn_mpirun *m);

/* Starts a guard for an mpirun that is a child of the caller: if the caller ends before it and it lives `behind_s` longer, its ranks and
 * it are killed. Returns the guard, 0: there is none (told). */
pid_t cairn_mpirun_guard(const struct cairn_mpirun *m, double behind_s);
void cairn_mpirun_guard_end(pid_t guard); /* once the mpirun has ended; 0 is fine */

#endif

/* reach.h - a signal to the processes of a program somewhere below one of our children: ranks below their launcher.
 *
 * Why not through the launcher: Open MPI's mpirun passes SIGUSR1 on, but dies of it, or ends with 1, while it is still starting. Looks at /proc; a
 * process that starts or ends meanwhile may be missed. Refuses: to signal what is no descendant of `top` or runs another file.
 */
#ifndef CAIRN_TOOLS_REACH_H
#define CAIRN_TOOLS_REACH_H

#include <sys/types.h>

/* Number of ranks below top: descendants that run the file `program` (absolute, without links); what such a one has forked is no rank. */
int cairn_reach_count(pid_t top, const char *program);
/* signo for each of them and for what they have forked. Returns how many there were. */
int cairn_reach(pid_t top, const char *program, int signo);

#endif

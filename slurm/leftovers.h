/* leftovers.h - shared memory that Open MPI's ranks left on a node when they were killed.
 *
 * Ranks of one node exchange messages through /dev/shm/vader_segment.HOST.UID.JOB.RANK (Open MPI 5: sm_segment...), 4 MiB each,
 * which they remove when they end; a rank that SIGKILL ends does not. After many preemptions they fill a node's memory. Names tell
 * no owner, so a segment counts as left when it is this host's and this user's, older than OLD_S, and no process maps it: whoever
 * makes one maps it until the end. Never touches anything else. (Ranks in a container whose processes are hidden from this one,
 * beside the same /dev/shm, would lose the name, not the memory.)
 */
#ifndef CAIRN_SLURM_LEFTOVERS_H
#define CAIRN_SLURM_LEFTOVERS_H

/* Removes what is left in `dir` ("/dev/shm"); returns how many. Where processes cannot be looked at, nothing is removed. */
int cairn_leftovers_sweep(const char *dir);

#endif

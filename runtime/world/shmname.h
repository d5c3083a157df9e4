/* shmname.h - what shared memory of cairn is called, so that what a killed process left can be told from what is in use.
 *
 *     /dev/shm/cairn-<pid namespace>-<pid>-<start time>-<tail>      four decimal numbers' worth of owner, then letters, digits, '.', '_', '-'
 * A directory of such a name is where an MPI below that process keeps its own.
 * The owner is the process with that pid and start time (clock ticks since boot) in that namespace; when it is gone, the memory is
 * nobody's: whoever shares it maps it while the owner lives. The names die with the machine, so no boot id is needed.
 *
 * Refuses: to touch what has another name, another user, or an owner of whom nothing certain is known (another namespace).
 */
#ifndef CAIRN_WORLD_SHMNAME_H
#define CAIRN_WORLD_SHMNAME_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

#define CAIRN_SHM_DIR "/dev/shm"

/* "cairn-4026531836-1234-5678-TAIL" of process pid into out (n bytes); 0 if /proc does not tell, or it does not fit. */
int cairn_shm_name(char *out, size_t n, pid_t pid, const char *tail);
/* When a process started, in clock ticks since boot: with its pid, who it is. -1: no such process, or it cannot be told. */
int64_t cairn_shm_start_time(pid_t pid);
/* Of a name in that form: 1 the owner lives, 0 it is certainly gone, -1 cannot tell (no such form, another namespace). */
int cairn_shm_owner_alive(const char *name);

/* Removes the regular files and directories of ours in dir (CAIRN_SHM_DIR) whose owner is gone; dry: only tells. A missing dir is an empty one. */
enum cairn_status cairn_shm_sweep(const char *dir, int dry, void (*fn)(void *arg, const char *path, int64_t bytes), void *arg,
                                  struct cairn_error *err);

#endif

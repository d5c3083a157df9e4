/* lock.h - one `cairn run` at a time works on a run directory.
 *
 * An flock on RUN/.lock, which names its holder. The kernel drops it when the holder dies, however it dies, so nothing expires and
 * nothing needs cleaning. Stages started by the holder do not inherit it: they die with it. An mpirun and its guard do
 * (cairn_lock_share): they live on until the ranks are gone, and so long the directory is not free. Attempts (ckpt/attempt.h) protect
 * artefacts even where flock does not reach (another node of a file system without it).
 */
#ifndef CAIRN_STAGES_COMMON_LOCK_H
#define CAIRN_STAGES_COMMON_LOCK_H

#include <stddef.h>

#include "base/status.h"

struct cairn_lock;

/* CAIRN_EAGAIN naming host and pid if somebody else holds it; if that one has died and only its ranks are left, they are waited for (told).
 * dir must exist. */
enum cairn_status cairn_lock_take(struct cairn_lock **out, const char *dir, struct cairn_error *err);
void cairn_lock_drop(struct cairn_lock *l); /* NULL is fine */
/* In a forked child: what its parent holds stays held until the child has ended too, whatever program it becomes. */
void cairn_lock_share(void);
int cairn_lock_owns(int fd); /* 1: a lock of this process, or shared with it, is held by fd */
/* 1: somebody holds it, and text (n bytes) says who; 0: nobody. Changes nothing; who takes the lock at this moment waits a little. */
int cairn_lock_held(const char *dir, char *text, size_t n);

#endif

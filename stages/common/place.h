/* place.h - the directory of a run that is about to be made, with its lock (lock.h).
 *
 * What is refused before there is a run leaves no trace: directories that were made for it go again, and what an unfinished
 * init wrote into them. A directory that was there before stays as it is, and so does a run.
 */
#ifndef CAIRN_STAGES_COMMON_PLACE_H
#define CAIRN_STAGES_COMMON_PLACE_H

#include "base/status.h"

struct cairn_place {
    char *dir, *top; /* top: the uppermost directory that was made; NULL: none was */
    struct cairn_lock *lock;
};

/* Makes dir if it is not there and takes its lock, in `tries` tries (lock.h says how long one lasts). CAIRN_EAGAIN naming the
 * holder. p is zeroed; leave it in any case. */
enum cairn_status cairn_place_take(struct cairn_place *p, const char *dir, int tries, struct cairn_error *err);
/* Drops the lock; if there is no run, first removes what was made. */
void cairn_place_leave(struct cairn_place *p);

#endif

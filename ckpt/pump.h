/* pump.h - a thread that pwrites to one file while its owner makes digests.
 *
 * Small pieces are copied into one of two blocks, which go to the thread when full; large ones are written from where
 * they lie. Everything is written exactly once, in the order given. The first error is kept and told by the next wait.
 * Where no thread can be had, the owner's own does the writing. The thread takes no signals. One owner; not for sharing.
 */
#ifndef CAIRN_CKPT_PUMP_H
#define CAIRN_CKPT_PUMP_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct cairn_pump;

/* fd and path are borrowed. ahead: 1: the file will be synced, so the kernel is told to begin with that on the way. */
enum cairn_status cairn_pump_create(struct cairn_pump **out, int fd, const char *path, int ahead, struct cairn_error *err);
/* n bytes to byte `at` of the file. 1: h_p must stay as it is until cairn_pump_wait, or until the next call that gives 1 has returned; 0: it is
 * free at once. */
int cairn_pump_write(struct cairn_pump *p, const void *h_p, size_t n, int64_t at);
/* Until none of the pieces for which cairn_pump_write gave 1 is needed any more. */
void cairn_pump_settle(struct cairn_pump *p);
/* Until all is written (not synced). */
enum cairn_status cairn_pump_wait(struct cairn_pump *p, struct cairn_error *err);
/* 0, or the status of the first failed write so far. */
int cairn_pump_failed(struct cairn_pump *p);
void cairn_pump_destroy(struct cairn_pump *p); /* drops what is not written; NULL is fine */

#endif

/* watch.h - a thread that checks blocks of tiles against their digests while its owner reads the next blocks.
 *
 * What was given must stay where it is until cairn_watch_wait, which tells the first tile that did not hold. Where no
 * thread can be had, or a block is small, the owner's own thread checks. The thread takes no signals.
 */
#ifndef CAIRN_CKPT_WATCH_H
#define CAIRN_CKPT_WATCH_H

#include <stdint.h>

#include "base/status.h"
#include "ckpt/tiles.h"

struct cairn_watch;

enum cairn_status cairn_watch_create(struct cairn_watch **out, struct cairn_error *err);
void cairn_watch_destroy(struct cairn_watch *w); /* waits; NULL is fine */
/* Tiles first .. first + n - 1 of the part lie at h_p; table[i] is the digest of the part's tile i. All borrowed; the
 * tiling is copied. path names the file in the sentence. */
void cairn_watch_give(struct cairn_watch *w, const struct cairn_tiling *t, const struct cairn_digest *table, int64_t first, int64_t n,
                      const void *h_p, const char *path);
/* Until all given is checked. CAIRN_EDATA: "PATH: damaged: tensor NAME, tile 3, bytes [12288, 16384)". */
enum cairn_status cairn_watch_wait(struct cairn_watch *w, struct cairn_error *err);

#endif

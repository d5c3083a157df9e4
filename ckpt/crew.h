/* crew.h - a few threads that read blocks of a shard and check their tiles, together with their owner.
 *
 * The owner gives jobs (read these bytes to there, hold them against these digests) and waits for all of them; while it
 * waits it works too. Threads are started when there is enough to do, at most three and one fewer than the processors
 * this process may use; with none of them the owner does everything. They take no signals.
 * What was given must stay where it is until cairn_crew_wait. Not for sharing between owners.
 */
#ifndef CAIRN_CKPT_CREW_H
#define CAIRN_CKPT_CREW_H

#include <stdint.h>

#include "base/status.h"
#include "ckpt/tiles.h"

struct cairn_crew;

struct cairn_crew_job {
    int fd;
    const char *path;                 /* for sentences */
    int64_t at, n;                    /* bytes of the file */
    void *h_dst;                      /* n bytes */
    int there;                        /* 1: they are there already, to be checked only */
    struct cairn_tiling tiling;       /* of the part that they belong to */
    const struct cairn_digest *table; /* digest of the part's tile i; NULL: nothing to check */
    int64_t first, tiles;             /* the bytes are exactly these tiles of the part */
};

enum cairn_status cairn_crew_create(struct cairn_crew **out, struct cairn_error *err);
void cairn_crew_destroy(struct cairn_crew *c); /* after a wait; NULL is fine */
void cairn_crew_give(struct cairn_crew *c, const struct cairn_crew_job *job); /* copied */
/* Until all is done. CAIRN_EDATA: "PATH: damaged: tensor NAME, tile 3, bytes [12288, 16384)", or what the read said. */
enum cairn_status cairn_crew_wait(struct cairn_crew *c, struct cairn_error *err);

#endif

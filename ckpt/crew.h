/* crew.h - a few threads that read blocks of a shard and check their tiles, together with their owner.
 *
 * The owner gives jobs (read these bytes to there, hold them against these digests) and waits for all of them; while it
 * waits it works too. Threads are started when there is enough to do, at most three and one fewer than the processors
 * this process may use; with none of them the owner does everything. They take no signals. Between two reads that follow each
 * other at once they stay awake, for a third of a millisecond.
 * What was given must stay where it is until cairn_crew_wait. Not for sharing between owners.
 *
 * Errands are reads that the owner does not wait for yet: threads without a job do them, each is fetched (or recalled) by
 * itself, and the owner does what nobody has begun.
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

/* Bytes to be read some time; stays where it is until it is fetched or recalled. */
struct cairn_crew_errand {
    int fd;
    const char *path;
    int64_t at, n;
    void *h_dst;
    int state;                      /* (crew) zero when sent */
    enum cairn_status status;       /* (crew) */
    struct cairn_crew_errand *next; /* (crew) */
};

enum cairn_status cairn_crew_create(struct cairn_crew **out, struct cairn_error *err);
void cairn_crew_destroy(struct cairn_crew *c); /* after a wait, without errands; NULL is fine */
void cairn_crew_give(struct cairn_crew *c, const struct cairn_crew_job *job); /* copied */
/* Until all is done. CAIRN_EDATA: "PATH: damaged: tensor NAME, tile 3, bytes [12288, 16384)", or what the read said. */
enum cairn_status cairn_crew_wait(struct cairn_crew *c, struct cairn_error *err);

/* Threads beside the owner; starts them. */
int cairn_crew_threads(struct cairn_crew *c);
void cairn_crew_send(struct cairn_crew *c, struct cairn_crew_errand *e);
/* Its bytes are there, or its status: what a thread did, or what is done now. It need not have been sent. */
enum cairn_status cairn_crew_fetch(struct cairn_crew *c, struct cairn_crew_errand *e);
/* Nobody touches it any more. 0: it was never begun. */
int cairn_crew_recall(struct cairn_crew *c, struct cairn_crew_errand *e);

#endif

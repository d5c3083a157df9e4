/* group.h - ranks that talk: collectives on host bytes.
 *
 * Every member calls the same functions in the same order. `what` says for people what it is about ("save u0002"); it
 * must live as long as the call. Each call gets the next sequence number of its group; together with operation and
 * rank it is in every message about a failure or a missed deadline. Nothing here adds numbers (agree and any_stop take a
 * maximum of ints): sums over ranks are an exchange of bytes plus one of the kernels' ops, in rank order.
 *
 * Buffers are the caller's, of n bytes per rank where not said otherwise; blocks of several ranks lie in rank order
 * without gaps. Alone, or in a group of one, every function is a copy. Errors: CAIRN_EAGAIN when a peer or the network
 * failed, CAIRN_EBUG when ranks disagree about a call; after either, only cairn_world_abort makes sense.
 */
#ifndef CAIRN_WORLD_GROUP_H
#define CAIRN_WORLD_GROUP_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct cairn_world;

struct cairn_group {
    struct cairn_world *world; /* borrowed */
    char name[24];
    int rank, size;
    int *members;      /* [size] ranks in the world */
    double deadline_s; /* of each operation; may be changed between operations; <= 0: for ever */
    uint64_t seq;       /* of the last collective begun; the same on all members between operations */
    uint64_t exchanges; /* of the last exchange begun; this rank's own count */
    void *comm;        /* the wire's; NULL: group of one */
};

/* Collective over the members. NULL is fine. Groups come from cairn_world_split. */
void cairn_group_destroy(struct cairn_group *g);

enum cairn_status cairn_group_barrier(struct cairn_group *g, const char *what, struct cairn_error *err);
/* n must be the same on all ranks. */
enum cairn_status cairn_group_bcast(struct cairn_group *g, const char *what, int root, void *p, size_t n, struct cairn_error *err);
/* n the same on all ranks; dst: size * n bytes. src may lie at its own place in dst. */
enum cairn_status cairn_group_allgather(struct cairn_group *g, const char *what, const void *src, size_t n, void *dst,
                                        struct cairn_error *err);
/* n[size]: bytes of each rank, the same array on all ranks; dst: their sum. src may lie at its own place in dst. */
enum cairn_status cairn_group_allgatherv(struct cairn_group *g, const char *what, const void *src, const size_t *n, void *dst,
                                         struct cairn_error *err);
/* sends[size]: bytes for each rank; recvs[size]: bytes from each, equal to what that rank sends here. No overlap. */
enum cairn_status cairn_group_alltoallv(struct cairn_group *g, const char *what, const void *src, const size_t *sends, void *dst,
                                        const size_t *recvs, struct cairn_error *err);
/* n the same on all ranks; dst: size * n bytes at root, NULL elsewhere. */
enum cairn_status cairn_group_gather(struct cairn_group *g, const char *what, int root, const void *src, size_t n, void *dst,
                                     struct cairn_error *err);
/* Any n on each rank. At root *bytes is malloc'ed and rank r's block is (*offset)[r] .. (*offset)[r+1] (size + 1 of
 * them, malloc'ed): caller frees both. Elsewhere both become NULL. */
enum cairn_status cairn_group_collect(struct cairn_group *g, const char *what, int root, const void *src, size_t n, char **bytes,
                                      size_t **offset, struct cairn_error *err);
/* Point to point: sends n bytes to rank `to` and receives m from rank `from` at once; -1: none. Not collective: just
 * the ranks concerned call it (pipelines, rings), so it has a count of its own beside the group's. */
enum cairn_status cairn_group_exchange(struct cairn_group *g, const char *what, int to, const void *src, size_t n, int from, void *dst,
                                       size_t m, struct cairn_error *err);

/* What all do next depends on all: returns the maximum of the ranks' statuses, with the sentence of the lowest rank that
 * had it in err on every rank ("rank 3: ..."). If all are CAIRN_OK, err is left alone. In: st, and its sentence in
 * err (err NULL: no sentence). Also holds ranks to the same sequence: CAIRN_EBUG if one is elsewhere. */
enum cairn_status cairn_group_agree(struct cairn_group *g, const char *what, enum cairn_status st, struct cairn_error *err);
/* *stop: the maximum of the ranks' cairn_stop_requested(). A rank that had not been asked is asked hereby
 * (cairn_stop_request), so later polls agree with the others. */
enum cairn_status cairn_group_any_stop(struct cairn_group *g, const char *what, int *stop, struct cairn_error *err);

#endif

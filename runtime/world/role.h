/* role.h - a world that several programs share: each has the ranks that run it as a world of its own, and tells the others what it
 * has done.
 *
 *     rollout 0 1 | score 2 | train 3 4        ranks of the whole world, as the launcher numbered them
 *
 * A role is a face of the whole world: rank, size and groups (all, commit, node) are those of its ranks, wire, watchdog and board
 * are the whole world's. What is written for a world works in a role without knowing.
 *
 * Notices are what roles say to each other: small messages of fixed size from one rank to another, which nobody waits to see taken.
 * Who waits for one looks now and then and sleeps in between: such a wait may take hours, holds no core and has no deadline. (A
 * peer that dies takes the job with it: the launcher sees to that.)
 *
 * Order of communicators: the whole world's (world.h), then role, commit of the role, node of the role, on all ranks; then that of the
 * handover (stages/common/fastpath.h).
 */
#ifndef CAIRN_WORLD_ROLE_H
#define CAIRN_WORLD_ROLE_H

#include "world/world.h"

/* The ranks of w that give the same number (0, 1, ...) and name. Collective over w. */
enum cairn_status cairn_role_open(struct cairn_world **out, struct cairn_world *w, int number, const char *name,
                                  struct cairn_error *err);
/* Collective over the role's ranks. Before the world's end; NULL is fine. */
void cairn_role_close(struct cairn_world *role);

/* n bytes to rank `to` of the whole world w (not oneself); p may be reused at once. */
enum cairn_status cairn_notice_post(struct cairn_world *w, int to, const void *p, size_t n, struct cairn_error *err);
/* A notice of n bytes from whomever, those of one rank in the order in which it posted them. *from -1: there is none now. */
enum cairn_status cairn_notice_poll(struct cairn_world *w, void *p, size_t n, int *from, struct cairn_error *err);

#endif

/* board.h - what each rank of this node is doing, in shared memory: so that the watchdog of a rank that waits can name
 * the one that does not come.
 *
 * The memory is a memfd of the node's first rank, which the others open as /proc/PID/fd/N: it has no name that a kill -9
 * could leave behind in /dev/shm. Where that is not allowed (other PID namespace, other user) there is no board, and the
 * sentence says only who waits. It is information for people and decides nothing.
 */
#ifndef CAIRN_WORLD_BOARD_H
#define CAIRN_WORLD_BOARD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct cairn_board;

/* Where the first rank's memory is found; plain bytes, to be broadcast over the node. fd < 0: there is none. */
struct cairn_board_place {
    int32_t pid, fd, slots;
};

/* First rank of the node: creates a board of `slots`. NULL (and place->fd < 0) if it cannot be had. */
struct cairn_board *cairn_board_create(int slots, struct cairn_board_place *place);
/* The others. NULL if it cannot be reached. */
struct cairn_board *cairn_board_attach(const struct cairn_board_place *place);
void cairn_board_destroy(struct cairn_board *b);

/* The caller's own slot, written by its own thread only. */
void cairn_board_enter(struct cairn_board *b, int slot, const char *group, uint64_t seq, const char *op, const char *what);
void cairn_board_leave(struct cairn_board *b, int slot);

/* 1: slot is alive and inside this operation or past it (group NULL: never). Otherwise 0 and one phrase about it in text:
 * "is in barrier #3 of all (save)", "last was in ...", with "stopped" or "has ended" in front if the system says so. */
int cairn_board_inside(const struct cairn_board *b, int slot, const char *group, uint64_t seq, char *text, size_t size);

#endif

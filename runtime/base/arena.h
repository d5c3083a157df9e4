/* arena.h - many host allocations, one release. For metadata (names, tables, parsed files), not for tensors.
 *
 * Memory lives until cairn_arena_reset or cairn_arena_destroy. An arena may own clean-ups as well as bytes.
 * Not thread-safe. Allocation failure returns NULL; callers turn it into CAIRN_NOMEM.
 */
#ifndef CAIRN_BASE_ARENA_H
#define CAIRN_BASE_ARENA_H

#include <stddef.h>

struct cairn_arena;

struct cairn_arena *cairn_arena_create(void);
void cairn_arena_destroy(struct cairn_arena *a); /* runs clean-ups, newest first */
void cairn_arena_reset(struct cairn_arena *a);   /* the same, and keeps the arena */
void *cairn_arena_alloc(struct cairn_arena *a, size_t bytes);              /* 16-byte aligned, not zeroed */
void *cairn_arena_calloc(struct cairn_arena *a, size_t n, size_t size);    /* zeroed; overflow checked */
char *cairn_arena_strdup(struct cairn_arena *a, const char *s);
char *cairn_arena_printf(struct cairn_arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int cairn_arena_on_release(struct cairn_arena *a, void (*fn)(void *), void *arg); /* 0, or -1 without memory */

#endif

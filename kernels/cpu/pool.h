/* pool.h - threads that share out the pieces of one job.
 *
 * The caller of pool_run takes pieces like every worker does, and waits only for pieces that somebody has begun: a worker that
 * the machine does not run right now costs nothing. (An OpenMP region waits for all of its threads; with a second busy process on
 * two cores, a product of 10 us was measured at 8 ms.) Idle workers watch for a new job for some microseconds, then sleep.
 *
 * A piece may run on any thread and pieces in any order: results must not depend on it. One caller at a time. In a child made by
 * fork the workers are gone, and pool_run still works, alone.
 */
#ifndef CAIRN_KERNELS_CPU_POOL_H
#define CAIRN_KERNELS_CPU_POOL_H

#pragma GCC visibility push(hidden)

#define POOL_MAX_PIECES 4096

struct pool;

/* For threads threads, the caller counted in. NULL without memory; fewer workers than wished when the system refuses some. */
struct pool *pool_create(int threads);
void pool_destroy(struct pool *p); /* NULL is fine */
/* Calls piece(ctx, i, slot) for each i in 0 .. pieces-1; slot: which thread, 0 .. threads-1, 0 the caller. */
void pool_run(struct pool *p, int pieces, void (*piece)(void *ctx, int i, int slot), void *ctx);

#pragma GCC visibility pop
#endif

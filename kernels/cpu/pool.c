/* pool.c - see pool.h. The state of the job is one atomic word, `ticket`: generation (32 bits), pieces (16), next piece (16). To
 * take a piece is to count `next` up by compare-and-swap. Whoever succeeds holds a piece of that very generation; the job cannot
 * end before the piece is counted in `done`, so the fields of the job stay valid for the holder, and nobody else looks at them.
 */
#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WATCH 3000 /* looks at the ticket before a worker sleeps: tens of microseconds */

struct worker {
    struct pool *pool;
    int slot;
    pthread_t id;
};

struct pool {
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) _Atomic uint32_t done; /* pieces finished; a futex of the caller */
    _Atomic uint32_t caller_sleeps;
    _Alignas(64) _Atomic uint32_t bell; /* futex of the workers */
    _Atomic uint32_t sleepers;
    _Atomic int stop;
    void (*piece)(void *ctx, int i, int slot);
    void *ctx;
    int workers;
    pid_t owner; /* the process that has the workers */
    struct worker worker[];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int left(uint64_t ticket)
{
    return (uint16_t)ticket < (uint16_t)(ticket >> 16);
}

/* Takes pieces until none is left. How many it did. */
static uint32_t take(struct pool *p, int slot)
{
    uint64_t t = atomic_load_explicit(&p->ticket, memory_order_acquire);
    uint32_t n = 0;

    while (left(t)) {
        if (!atomic_compare_exchange_weak_explicit(&p->ticket, &t, t + 1, memory_order_acq_rel, memory_order_acquire))
            continue;
        p->piece(p->ctx, (uint16_t)t, slot);
        atomic_fetch_add(&p->done, 1);
        if (slot && atomic_load(&p->caller_sleeps))
            futex_wake(&p->done, 1);
        n++;
        t = atomic_load_explicit(&p->ticket, memory_order_acquire);
    }
    return n;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;

    while (!atomic_load(&p->stop)) {
        uint32_t bell;

        take(p, w->slot);
        for (int i = 0; i < WATCH && !left(atomic_load_explicit(&p->ticket, memory_order_relaxed)); i++)
            relax();
        if (left(atomic_load(&p->ticket)))
            continue;
        /* announce, then look once more: either we see the job or its caller sees us */
        atomic_fetch_add(&p->sleepers, 1);
        bell = atomic_load(&p->bell);
        if (!left(atomic_load(&p->ticket)) && !atomic_load(&p->stop))
            futex_wait(&p->bell, bell);
        atomic_fetch_sub(&p->sleepers, 1);
    }
    return NULL;
}

struct pool *pool_create(int threads)
{
    size_t bytes = sizeof(struct pool) + (size_t)threads * sizeof(struct worker);
    struct pool *p = aligned_alloc(64, (bytes + 63) / 64 * 64);

    if (!p)
        return NULL;
    atomic_init(&p->ticket, 0);
    atomic_init(&p->done, 0);
    atomic_init(&p->caller_sleeps, 0);
    atomic_init(&p->bell, 0);
    atomic_init(&p->sleepers, 0);
    atomic_init(&p->stop, 0);
    p->owner = getpid();
    p->piece = NULL;
    p->ctx = NULL;
    for (p->workers = 0; p->workers < threads - 1; p->workers++) {
        struct worker *w = &p->worker[p->workers];

        *w = (struct worker){.pool = p, .slot = p->workers + 1};
        if (pthread_create(&w->id, NULL, work, w) != 0)
            break;
    }
    return p;
}

void pool_destroy(struct pool *p)
{
    if (!p)
        return;
    if (p->owner != getpid()) { /* the workers stayed behind */
        free(p);
        return;
    }
    atomic_store(&p->stop, 1);
    atomic_fetch_add(&p->bell, 1);
    futex_wake(&p->bell, p->workers);
    for (int i = 0; i < p->workers; i++)
        pthread_join(p->worker[i].id, NULL);
    free(p);
}

void pool_run(struct pool *p, int pieces, void (*piece)(void *ctx, int i, int slot), void *ctx)
{
    uint64_t generation = (atomic_load_explicit(&p->ticket, memory_order_relaxed) >> 32) + 1;
    uint32_t done;

    p->piece = piece;
    p->ctx = ctx;
    atomic_store(&p->done, 0);
    atomic_store(&p->ticket, generation << 32 | (uint64_t)pieces << 16);
    if (atomic_load(&p->sleepers)) {
        atomic_fetch_add(&p->bell, 1);
        futex_wake(&p->bell, pieces - 1 < p->workers ? pieces - 1 : p->workers);
    }
    take(p, 0);
    for (int i = 0; i < WATCH && atomic_load(&p->done) != (uint32_t)pieces; i++)
        relax();
    while ((done = atomic_load(&p->done)) != (uint32_t)pieces) {
        atomic_store(&p->caller_sleeps, 1);
        done = atomic_load(&p->done);
        if (done != (uint32_t)pieces)
            futex_wait(&p->done, done);
        atomic_store(&p->caller_sleeps, 0);
    }
}

/* crew.c - see crew.h. One ring of jobs under one lock; a job is large enough (half a MiB) for that not to matter.
 *
 * Who finds nothing to do watches a counter for a moment (linger) before it sleeps: a processor of a virtual machine that has gone to
 * sleep needs longer to wake than a block takes to be read, and the next tensor mostly comes at once.
 */
#include "ckpt/crew.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cores.h"
#include "base/file.h"

#define JOBS 64
#define THREADS 3
#define BATCH 256                  /* tiles whose digests are made at once */
#define SMALL ((int64_t)128 << 10) /* bytes: below, the owner does it at once */

#define LINGER_S 3e-4              /* about as long as a sleeper may need to wake */

enum { IDLE, WAITING, TAKEN, DONE }; /* of an errand */

struct cairn_crew {
    pthread_t thread[THREADS];
    int nthreads, tried, quit;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    struct cairn_crew_job job[JOBS];
    unsigned long given, taken;
    atomic_ulong finished; /* changed under the lock, watched without */
    atomic_ulong called;   /* counts whatever a thread may wait for */
    struct cairn_crew_errand *first, **end; /* those that wait */
    enum cairn_status status;
    struct cairn_error error;
};

static enum cairn_status check(const struct cairn_crew_job *j, struct cairn_error *err)
{
    struct cairn_digest got[BATCH];
    const unsigned char *p = j->h_dst;
    int64_t base, at, len;

    cairn_tiling_tile(&j->tiling, j->first, &base);
    for (int64_t i = 0; i < j->tiles;) {
        int64_t k = j->tiles - i < BATCH ? j->tiles - i : BATCH;

        cairn_tiling_hash(&j->tiling, j->first + i, k, p, got);
        for (int64_t b = 0; b < k; b++)
            if (!cairn_digest_equal(got[b], j->table[j->first + i + b])) {
                len = cairn_tiling_tile(&j->tiling, j->first + i + b, &at);
                at += j->tiling.slice->at;
                return cairn_fail(err, CAIRN_EDATA, "%s: damaged: tensor %s, tile %lld, bytes [%lld, %lld)", j->path,
                                  j->tiling.slice->name, (long long)(j->first + i + b), (long long)at, (long long)(at + len));
            }
        i += k;
        if (i < j->tiles) {
            cairn_tiling_tile(&j->tiling, j->first + i, &at);
            p = (const unsigned char *)j->h_dst + (at - base);
        }
    }
    return CAIRN_OK;
}

static enum cairn_status work(const struct cairn_crew_job *j, struct cairn_error *err)
{
    enum cairn_status st = j->there ? CAIRN_OK : cairn_fd_pread_all(j->fd, j->h_dst, (size_t)j->n, j->at, j->path, err);

    return st == CAIRN_OK && j->table ? check(j, err) : st;
}

static void note(struct cairn_crew *c, enum cairn_status st, const struct cairn_error *e)
{
    if (st != CAIRN_OK && c->status == CAIRN_OK) {
        c->status = st;
        c->error = *e;
    }
}

/* Under the lock, with a job waiting: does it. */
static void take_one(struct cairn_crew *c)
{
    struct cairn_crew_job j = c->job[c->taken++ % JOBS];
    enum cairn_status st = c->status;
    struct cairn_error e = {0};

    pthread_mutex_unlock(&c->lock);
    if (st == CAIRN_OK) /* after a failure nothing more is worth reading */
        st = work(&j, &e);
    pthread_mutex_lock(&c->lock);
    note(c, st, &e);
    if (++c->finished == c->given)
        pthread_cond_broadcast(&c->done);
}

/* Under the lock: takes an errand out of the row. */
static void unlink_errand(struct cairn_crew *c, const struct cairn_crew_errand *e)
{
    struct cairn_crew_errand **p = &c->first;

    while (*p != e)
        p = &(*p)->next;
    *p = e->next;
    if (!*p)
        c->end = p;
}

/* Under the lock: does an errand that nobody else has. */
static void run_errand(struct cairn_crew *c, struct cairn_crew_errand *e)
{
    enum cairn_status st;

    e->state = TAKEN;
    pthread_mutex_unlock(&c->lock);
    st = cairn_fd_pread_all(e->fd, e->h_dst, (size_t)e->n, e->at, e->path, NULL);
    pthread_mutex_lock(&c->lock);
    e->status = st;
    e->state = DONE;
    pthread_cond_broadcast(&c->done);
}

/* Under the lock, which it gives up meanwhile: until the counter changes, or for a moment. */
static void linger(struct cairn_crew *c, const atomic_ulong *counter)
{
    unsigned long seen = atomic_load(counter);
    double until = cairn_now_s() + LINGER_S;

    pthread_mutex_unlock(&c->lock);
    while (atomic_load_explicit(counter, memory_order_relaxed) == seen && cairn_now_s() < until)
        ;
    pthread_mutex_lock(&c->lock);
}

static int nothing_to_do(const struct cairn_crew *c)
{
    return c->taken == c->given && !c->first && !c->quit;
}

static void *run(void *arg)
{
    struct cairn_crew *c = arg;

    pthread_mutex_lock(&c->lock);
    for (;;) {
        if (nothing_to_do(c))
            linger(c, &c->called);
        while (nothing_to_do(c))
            pthread_cond_wait(&c->work, &c->lock);
        if (c->quit)
            break;
        if (c->taken != c->given) { /* somebody waits for it */
            take_one(c);
        } else {
            struct cairn_crew_errand *e = c->first;

            unlink_errand(c, e);
            run_errand(c, e);
        }
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

enum cairn_status cairn_crew_create(struct cairn_crew **out, struct cairn_error *err)
{
    struct cairn_crew *c = calloc(1, sizeof *c);
    int made = 0;

    if (c && !pthread_mutex_init(&c->lock, NULL)) {
        made = 1;
        if (!pthread_cond_init(&c->work, NULL)) {
            made = 2;
            if (!pthread_cond_init(&c->done, NULL)) {
                c->end = &c->first;
                *out = c;
                return CAIRN_OK;
            }
        }
    }
    if (made > 1)
        pthread_cond_destroy(&c->work);
    if (made > 0)
        pthread_mutex_destroy(&c->lock);
    free(c);
    return CAIRN_NOMEM(err);
}

void cairn_crew_destroy(struct cairn_crew *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->quit = 1;
    c->called++;
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < c->nthreads; i++)
        pthread_join(c->thread[i], NULL);
    pthread_cond_destroy(&c->work);
    pthread_cond_destroy(&c->done);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void start_threads(struct cairn_crew *c)
{
    sigset_t all, old;
    int n;

    c->tried = 1;
    n = cairn_cores() - 1;
    sigfillset(&all);
    if (pthread_sigmask(SIG_SETMASK, &all, &old))
        return;
    while (c->nthreads < THREADS && c->nthreads < n && !pthread_create(&c->thread[c->nthreads], NULL, run, c))
        c->nthreads++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void cairn_crew_give(struct cairn_crew *c, const struct cairn_crew_job *job)
{
    if (job->n < SMALL || job->there) {
        struct cairn_error e = {0};
        enum cairn_status st = work(job, &e);

        pthread_mutex_lock(&c->lock);
        note(c, st, &e);
        pthread_mutex_unlock(&c->lock);
        return;
    }
    pthread_mutex_lock(&c->lock);
    while (c->given - c->taken >= JOBS)
        take_one(c);
    c->job[c->given++ % JOBS] = *job;
    if (c->given - c->taken >= 2) { /* one alone is the owner's */
        c->called++;
        if (!c->tried)
            start_threads(c);
        pthread_cond_signal(&c->work);
    }
    pthread_mutex_unlock(&c->lock);
}

enum cairn_status cairn_crew_wait(struct cairn_crew *c, struct cairn_error *err)
{
    enum cairn_status st;

    pthread_mutex_lock(&c->lock);
    while (c->taken != c->given)
        take_one(c);
    if (c->finished != c->given)
        linger(c, &c->finished);
    while (c->finished != c->given)
        pthread_cond_wait(&c->done, &c->lock);
    st = c->status;
    c->status = CAIRN_OK; /* told once; the next read begins anew */
    if (st != CAIRN_OK)
        cairn_fail(err, st, "%s", c->error.text);
    pthread_mutex_unlock(&c->lock);
    return st;
}

int cairn_crew_threads(struct cairn_crew *c)
{
    if (!c->tried)
        start_threads(c);
    return c->nthreads;
}

void cairn_crew_send(struct cairn_crew *c, struct cairn_crew_errand *e)
{
    pthread_mutex_lock(&c->lock);
    e->state = WAITING;
    e->next = NULL;
    *c->end = e;
    c->end = &e->next;
    c->called++;
    pthread_cond_signal(&c->work);
    pthread_mutex_unlock(&c->lock);
}

enum cairn_status cairn_crew_fetch(struct cairn_crew *c, struct cairn_crew_errand *e)
{
    pthread_mutex_lock(&c->lock);
    if (e->state == WAITING)
        unlink_errand(c, e);
    if (e->state == WAITING || e->state == IDLE)
        run_errand(c, e);
    while (e->state != DONE)
        pthread_cond_wait(&c->done, &c->lock);
    e->state = IDLE;
    pthread_mutex_unlock(&c->lock);
    return e->status;
}

int cairn_crew_recall(struct cairn_crew *c, struct cairn_crew_errand *e)
{
    int begun;

    pthread_mutex_lock(&c->lock);
    if (e->state == WAITING) {
        unlink_errand(c, e);
        e->state = IDLE;
    }
    while (e->state == TAKEN)
        pthread_cond_wait(&c->done, &c->lock);
    begun = e->state == DONE;
    e->state = IDLE;
    pthread_mutex_unlock(&c->lock);
    return begun;
}

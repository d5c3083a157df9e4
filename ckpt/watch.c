/* watch.c - see watch.h. A ring of jobs; digests come out in batches on the stack. */
#include "ckpt/watch.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define JOBS 8
#define BATCH 256                  /* tiles whose digests are made at once */
#define SMALL ((int64_t)128 << 10) /* bytes: below, a hand-over costs more than it saves */

struct job {
    struct cairn_tiling tiling;
    const struct cairn_digest *table;
    int64_t first, n;
    const unsigned char *p;
    const char *path;
};

struct cairn_watch {
    pthread_t thread;
    int threaded, tried, quit;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct job job[JOBS];
    unsigned long given, done;
    enum cairn_status status;
    struct cairn_error error;
};

static enum cairn_status check(const struct job *j, struct cairn_error *err)
{
    struct cairn_digest got[BATCH];
    const unsigned char *p = j->p;
    int64_t base, at, len;

    cairn_tiling_tile(&j->tiling, j->first, &base);
    for (int64_t i = 0; i < j->n;) {
        int64_t k = j->n - i < BATCH ? j->n - i : BATCH;

        cairn_tiling_hash(&j->tiling, j->first + i, k, p, got);
        for (int64_t b = 0; b < k; b++)
            if (!cairn_digest_equal(got[b], j->table[j->first + i + b])) {
                len = cairn_tiling_tile(&j->tiling, j->first + i + b, &at);
                at += j->tiling.slice->at;
                return cairn_fail(err, CAIRN_EDATA, "%s: damaged: tensor %s, tile %lld, bytes [%lld, %lld)", j->path,
                                  j->tiling.slice->name, (long long)(j->first + i + b), (long long)at, (long long)(at + len));
            }
        i += k;
        if (i < j->n) {
            cairn_tiling_tile(&j->tiling, j->first + i, &at);
            p = j->p + (at - base);
        }
    }
    return CAIRN_OK;
}

static void *run(void *arg)
{
    struct cairn_watch *w = arg;

    pthread_mutex_lock(&w->lock);
    for (;;) {
        struct cairn_error e = {0};
        enum cairn_status st;
        struct job *j;

        while (w->done == w->given && !w->quit)
            pthread_cond_wait(&w->changed, &w->lock);
        if (w->done == w->given)
            break;
        j = &w->job[w->done % JOBS];
        st = w->status;
        pthread_mutex_unlock(&w->lock);
        if (st == CAIRN_OK)
            st = check(j, &e);
        pthread_mutex_lock(&w->lock);
        if (st != CAIRN_OK && w->status == CAIRN_OK) {
            w->status = st;
            w->error = e;
        }
        w->done++;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

enum cairn_status cairn_watch_create(struct cairn_watch **out, struct cairn_error *err)
{
    struct cairn_watch *w = calloc(1, sizeof *w);

    if (!w)
        return CAIRN_NOMEM(err);
    if (pthread_mutex_init(&w->lock, NULL)) {
        free(w);
        return CAIRN_NOMEM(err);
    }
    if (pthread_cond_init(&w->changed, NULL)) {
        pthread_mutex_destroy(&w->lock);
        free(w);
        return CAIRN_NOMEM(err);
    }
    *out = w;
    return CAIRN_OK;
}

void cairn_watch_destroy(struct cairn_watch *w)
{
    if (!w)
        return;
    if (w->threaded) {
        pthread_mutex_lock(&w->lock);
        w->quit = 1;
        pthread_cond_broadcast(&w->changed);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->thread, NULL);
    }
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static void start_thread(struct cairn_watch *w)
{
    sigset_t all, old;

    w->tried = 1;
    sigfillset(&all);
    if (pthread_sigmask(SIG_SETMASK, &all, &old))
        return;
    w->threaded = !pthread_create(&w->thread, NULL, run, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void cairn_watch_give(struct cairn_watch *w, const struct cairn_tiling *t, const struct cairn_digest *table, int64_t first, int64_t n,
                      const void *h_p, const char *path)
{
    struct job here = {.tiling = *t, .table = table, .first = first, .n = n, .p = h_p, .path = path};
    int large = n * t->tile_bytes >= SMALL;

    if (large && !w->tried)
        start_thread(w);
    if (!large || !w->threaded) {
        struct cairn_error e = {0};
        enum cairn_status st = check(&here, &e);

        pthread_mutex_lock(&w->lock);
        if (st != CAIRN_OK && w->status == CAIRN_OK) {
            w->status = st;
            w->error = e;
        }
        pthread_mutex_unlock(&w->lock);
        return;
    }
    pthread_mutex_lock(&w->lock);
    while (w->given - w->done >= JOBS)
        pthread_cond_wait(&w->changed, &w->lock);
    w->job[w->given % JOBS] = here;
    w->given++;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

enum cairn_status cairn_watch_wait(struct cairn_watch *w, struct cairn_error *err)
{
    enum cairn_status st;

    pthread_mutex_lock(&w->lock);
    while (w->done != w->given)
        pthread_cond_wait(&w->changed, &w->lock);
    st = w->status;
    w->status = CAIRN_OK; /* told once; the next read begins anew */
    if (st != CAIRN_OK)
        cairn_fail(err, st, "%s", w->error.text);
    pthread_mutex_unlock(&w->lock);
    return st;
}

/* watchdog.c - one thread, a short stack of waits, and the way out. */
#include "world/watchdog.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#define DEPTH 8
#define TICK_S 0.1
#define ABORT_S 5 /* how long abort_all may take before we leave without it */

struct entry {
    struct cairn_wait wait;
    double waited_s;
};

struct cairn_watchdog {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake; /* only to end the thread */
    int stop;
    double last; /* time of the last tick */
    struct entry entry[DEPTH];
    int depth;
    void (*describe)(void *, const struct cairn_wait *, char *, size_t);
    void (*abort_all)(void *, int);
    void *arg;
};

static void *leave(void *unused)
{
    (void)unused;
    /* nanosleep may end early, but this thread takes no signals */
    cairn_sleep_s(ABORT_S);
    _exit(CAIRN_EAGAIN);
}

/* Does not return. No malloc, no stdio: the main thread may be anywhere. */
static void fire(struct cairn_watchdog *d, const struct entry *e)
{
    char text[2048];
    size_t n = 0;
    pthread_t helper;

    text[0] = 0;
    if (d->describe)
        d->describe(d->arg, &e->wait, text, sizeof text - 256);
    n = strlen(text);
    snprintf(text + n, sizeof text - n, "%s%s (%s) waited %.1f s, the deadline is %.1f s; leaving with code %d: run again\n", n ? " " : "cairn: ",
             e->wait.op, e->wait.what, e->waited_s, e->wait.deadline_s, CAIRN_EAGAIN);
    n = strlen(text);
    for (size_t at = 0; at < n;) {
        ssize_t put = write(STDERR_FILENO, text + at, n - at);

        if (put <= 0 && errno != EINTR)
            break;
        at += put > 0 ? (size_t)put : 0;
    }
    if (d->abort_all && !pthread_create(&helper, NULL, leave, NULL))
        d->abort_all(d->arg, CAIRN_EAGAIN);
    _exit(CAIRN_EAGAIN);
}

static void *run(void *arg)
{
    struct cairn_watchdog *d = arg;

    pthread_mutex_lock(&d->lock);
    while (!d->stop) {
        struct timespec t;
        double now, passed;

        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_nsec += (long)(TICK_S * 1e9);
        t.tv_sec += t.tv_nsec / 1000000000;
        t.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&d->wake, &d->lock, &t);
        now = cairn_now_s();
        passed = now - d->last;
        if (passed > 2 * TICK_S)
            passed = 2 * TICK_S; /* we did not run: suspended, or starved of the processor */
        d->last = now;
        for (int i = 0; i < d->depth; i++) {
            struct entry *e = &d->entry[i];

            e->waited_s += passed;
            if (e->wait.deadline_s > 0 && e->waited_s > e->wait.deadline_s)
                fire(d, e);
        }
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

enum cairn_status cairn_watchdog_create(struct cairn_watchdog **out, void (*describe)(void *arg, const struct cairn_wait *w, char *text, size_t size),
                                        void (*abort_all)(void *arg, int code), void *arg, struct cairn_error *err)
{
    struct cairn_watchdog *d = calloc(1, sizeof *d);
    pthread_condattr_t attr;
    sigset_t all, old;
    int e;

    if (!d)
        return CAIRN_NOMEM(err);
    d->describe = describe;
    d->abort_all = abort_all;
    d->arg = arg;
    d->last = cairn_now_s();
    pthread_mutex_init(&d->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&d->wake, &attr);
    pthread_condattr_destroy(&attr);
    /* Signals belong to the main thread, whose sleeps they are to end. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    e = pthread_create(&d->thread, NULL, run, d);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (e) {
        pthread_mutex_destroy(&d->lock);
        pthread_cond_destroy(&d->wake);
        free(d);
        return cairn_fail(err, CAIRN_EAGAIN, "start of the watchdog thread: %s", strerror(e));
    }
    *out = d;
    return CAIRN_OK;
}

void cairn_watchdog_destroy(struct cairn_watchdog *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    d->stop = 1;
    pthread_cond_signal(&d->wake);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->wake);
    free(d);
}

void cairn_watchdog_begin(struct cairn_watchdog *d, const struct cairn_wait *w)
{
    pthread_mutex_lock(&d->lock);
    assert(d->depth < DEPTH);
    d->entry[d->depth].wait = *w;
    d->entry[d->depth].waited_s = d->last - cairn_now_s(); /* the next tick counts from the last one */
    d->depth++;
    pthread_mutex_unlock(&d->lock);
}

void cairn_watchdog_end(struct cairn_watchdog *d)
{
    pthread_mutex_lock(&d->lock);
    assert(d->depth > 0);
    d->depth--;
    pthread_mutex_unlock(&d->lock);
}

/* pump.c - see pump.h. A ring of two jobs: a job is a block with a list of segments, or one large borrowed piece. */
#include "ckpt/pump.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

#define BLOCK ((size_t)4 << 20)
#define LARGE ((size_t)1 << 20) /* written in place from here on */
#define SEGMENTS 256
#define JOBS 2
#define WRITEBACK ((int64_t)16 << 20) /* the kernel is told to begin every so many bytes */

_Static_assert(JOBS == 2, "pump.h: of the pieces that are written in place none but the last may be needed when a call returns");

struct segment {
    const unsigned char *p;
    size_t n;
    int64_t at;
};

struct job {
    unsigned char *block; /* BLOCK bytes, made on first use */
    size_t used;
    int nsegments;
    struct segment segment[SEGMENTS];
};

struct cairn_pump {
    int fd, ahead;
    const char *path;
    pthread_t thread;
    int threaded, tried;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct job job[JOBS];
    unsigned long given, done; /* jobs handed over and finished; job number given is being filled */
    unsigned long borrowed;    /* behind the last job that is written from where it lies */
    int quit;
    enum cairn_status status;
    struct cairn_error error;
    int64_t started; /* bytes since the last hint */
};

static enum cairn_status write_job(struct cairn_pump *p, const struct job *j, struct cairn_error *err)
{
    for (int i = 0; i < j->nsegments; i++) {
        const struct segment *s = &j->segment[i];
        enum cairn_status st = cairn_fd_pwrite_all(p->fd, s->p, s->n, s->at, p->path, err);

        if (st != CAIRN_OK)
            return st;
        p->started += (int64_t)s->n;
        if (p->ahead && p->started >= WRITEBACK) { /* a hint: whether it works is seen at fsync */
            sync_file_range(p->fd, s->at + (int64_t)s->n - p->started, p->started, SYNC_FILE_RANGE_WRITE);
            p->started = 0;
        }
    }
    return CAIRN_OK;
}

static void *run(void *arg)
{
    struct cairn_pump *p = arg;

    pthread_mutex_lock(&p->lock);
    for (;;) {
        struct job *j;
        struct cairn_error e = {0};
        enum cairn_status st;

        while (p->done == p->given && !p->quit)
            pthread_cond_wait(&p->changed, &p->lock);
        if (p->quit)
            break;
        j = &p->job[p->done % JOBS];
        st = p->status;
        pthread_mutex_unlock(&p->lock);
        if (st == CAIRN_OK) /* after a failure nothing more is worth writing */
            st = write_job(p, j, &e);
        pthread_mutex_lock(&p->lock);
        if (st != CAIRN_OK && p->status == CAIRN_OK) {
            p->status = st;
            p->error = e;
        }
        p->done++;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

enum cairn_status cairn_pump_create(struct cairn_pump **out, int fd, const char *path, int ahead, struct cairn_error *err)
{
    struct cairn_pump *p = calloc(1, sizeof *p);

    if (!p)
        return CAIRN_NOMEM(err);
    p->fd = fd;
    p->path = path;
    p->ahead = ahead;
    if (pthread_mutex_init(&p->lock, NULL)) {
        free(p);
        return CAIRN_NOMEM(err);
    }
    if (pthread_cond_init(&p->changed, NULL)) {
        pthread_mutex_destroy(&p->lock);
        free(p);
        return CAIRN_NOMEM(err);
    }
    *out = p;
    return CAIRN_OK;
}

static void start_thread(struct cairn_pump *p)
{
    sigset_t all, old;

    p->tried = 1;
    sigfillset(&all);
    if (pthread_sigmask(SIG_SETMASK, &all, &old))
        return;
    p->threaded = !pthread_create(&p->thread, NULL, run, p);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* Hands the job being filled over and waits until the next one is free. */
static void hand_over(struct cairn_pump *p)
{
    struct job *j = &p->job[p->given % JOBS];

    if (!j->nsegments)
        return;
    if (!p->tried)
        start_thread(p);
    if (!p->threaded) {
        if (p->status == CAIRN_OK)
            p->status = write_job(p, j, &p->error);
        p->given++;
        p->done++;
    } else {
        pthread_mutex_lock(&p->lock);
        p->given++;
        pthread_cond_broadcast(&p->changed);
        while (p->given - p->done >= JOBS)
            pthread_cond_wait(&p->changed, &p->lock);
        pthread_mutex_unlock(&p->lock);
    }
    j = &p->job[p->given % JOBS];
    j->nsegments = 0;
    j->used = 0;
}

int cairn_pump_write(struct cairn_pump *p, const void *h_p, size_t n, int64_t at)
{
    struct job *j = &p->job[p->given % JOBS];
    struct segment *last;

    if (!n)
        return 0;
    if (n < LARGE && (j->used + n > BLOCK || j->nsegments == SEGMENTS)) {
        hand_over(p);
        j = &p->job[p->given % JOBS];
    }
    if (n < LARGE && !j->block)
        j->block = malloc(BLOCK);
    if (n >= LARGE || !j->block) { /* in place */
        hand_over(p);
        j = &p->job[p->given % JOBS];
        j->segment[0] = (struct segment){h_p, n, at};
        j->nsegments = 1;
        p->borrowed = p->given + 1;
        hand_over(p);
        return 1;
    }
    memcpy(j->block + j->used, h_p, n);
    last = j->nsegments ? &j->segment[j->nsegments - 1] : NULL;
    if (last && last->at + (int64_t)last->n == at)
        last->n += n;
    else
        j->segment[j->nsegments++] = (struct segment){j->block + j->used, n, at};
    j->used += n;
    return 0;
}

enum cairn_status cairn_pump_wait(struct cairn_pump *p, struct cairn_error *err)
{
    enum cairn_status st;

    if (!p->threaded && p->given == p->done && !p->tried && p->job[p->given % JOBS].nsegments) {
        /* never more than one block: not worth a thread */
        struct job *j = &p->job[p->given % JOBS];

        if (p->status == CAIRN_OK)
            p->status = write_job(p, j, &p->error);
        j->nsegments = 0;
        j->used = 0;
    }
    hand_over(p);
    pthread_mutex_lock(&p->lock);
    while (p->done != p->given)
        pthread_cond_wait(&p->changed, &p->lock);
    st = p->status;
    if (st != CAIRN_OK)
        cairn_fail(err, st, "%s", p->error.text);
    pthread_mutex_unlock(&p->lock);
    return st;
}

void cairn_pump_settle(struct cairn_pump *p)
{
    pthread_mutex_lock(&p->lock);
    while (p->done < p->borrowed)
        pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

int cairn_pump_failed(struct cairn_pump *p)
{
    int failed;

    pthread_mutex_lock(&p->lock);
    failed = p->status;
    pthread_mutex_unlock(&p->lock);
    return failed;
}

void cairn_pump_destroy(struct cairn_pump *p)
{
    if (!p)
        return;
    if (p->threaded) {
        pthread_mutex_lock(&p->lock);
        p->quit = 1;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
        pthread_join(p->thread, NULL);
    }
    for (int i = 0; i < JOBS; i++)
        free(p->job[i].block);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* upload.c - see upload.h. Pieces are taken in order by whoever is free; the owner works too. */
#include "base/upload.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/cores.h"

#define PIECE   CAIRN_UPLOAD_PIECE
#define WORKERS 16             /* a link takes what eight cores copy; filling may be more work than that */
#define ALIGNED ((size_t)4096) /* whole pages are pinned */

struct upload {
    struct cairn_device *dev;
    unsigned char *d_dst;
    size_t bytes;
    cairn_upload_fill_fn *fill;
    void *arg;
    atomic_size_t next; /* the first byte that nobody has taken */
    atomic_int failed;
};

struct worker {
    struct upload *u;
    struct cairn_stream stream;
    unsigned char *stage; /* (PIECE) pinned as `pinned` */
    struct cairn_buffer *pinned;
    pthread_t thread;
    int threaded;
    enum cairn_status status;
    struct cairn_error error;
};

static void work(struct worker *w)
{
    struct upload *u = w->u;
    struct cairn_device *dev = w->stream.dev;

    while (!atomic_load(&u->failed)) {
        size_t at = atomic_fetch_add(&u->next, PIECE), n;

        if (at >= u->bytes)
            break;
        n = u->bytes - at < PIECE ? u->bytes - at : PIECE;
        w->status = u->fill(u->arg, at, n, w->stage, &w->error);
        if (w->status == CAIRN_OK)
            w->status = dev->ops->copy_in(dev, w->stream.impl, u->d_dst + at, w->stage, n, &w->error);
        if (w->status == CAIRN_OK)
            w->status = cairn_stream_wait(&w->stream, &w->error);
        if (w->status != CAIRN_OK)
            atomic_store(&u->failed, 1);
    }
}

static int worker_open(struct worker *w)
{
    struct cairn_device *dev = w->u->dev;
    void *p = NULL;

    if (posix_memalign(&p, ALIGNED, PIECE))
        return 0;
    w->stage = p;
    if (cairn_stream_create(dev, &w->stream, NULL) != CAIRN_OK)
        return 0;
    return cairn_buffer_pin(dev, w->stage, PIECE, &w->pinned, NULL) == CAIRN_OK;
}

static void worker_close(struct worker *w)
{
    cairn_buffer_destroy(w->pinned);
    cairn_stream_destroy(&w->stream);
    free(w->stage);
}

static void *worker_main(void *arg)
{
    work(arg);
    return NULL;
}

static void worker_start(struct worker *w)
{
    sigset_t all, old;

    sigfillset(&all);
    if (pthread_sigmask(SIG_SETMASK, &all, &old))
        return;
    w->threaded = !pthread_create(&w->thread, NULL, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* By the caller alone, on his stream, from memory that is not pinned. */
static enum cairn_status alone(struct cairn_stream *s, struct upload *u, struct cairn_error *err)
{
    struct worker w = {.u = u, .stream = *s, .stage = malloc(u->bytes < PIECE ? u->bytes : PIECE)};

    if (!w.stage)
        return CAIRN_NOMEM(err);
    work(&w);
    free(w.stage);
    return w.status == CAIRN_OK ? CAIRN_OK : cairn_fail(err, w.status, "%s", w.error.text);
}

/* n workers, the first of which is the owner, and open. He opens the others, as a device wants it, and those that are open work meanwhile. */
static enum cairn_status by_workers(struct worker *w, int n, struct cairn_error *err)
{
    for (int i = 1; i < n && worker_open(&w[i]); i++)
        worker_start(&w[i]);
    work(&w[0]);
    for (int i = 1; i < n; i++)
        if (w[i].threaded)
            pthread_join(w[i].thread, NULL);
    for (int i = 0; i < n; i++)
        if (w[i].status != CAIRN_OK)
            return cairn_fail(err, w[i].status, "%s", w[i].error.text);
    return CAIRN_OK;
}

enum cairn_status cairn_upload(struct cairn_stream *s, struct cairn_buffer *dst, size_t bytes, cairn_upload_fill_fn *fill, void *arg,
                               struct cairn_error *err)
{
    struct upload u = {.dev = s->dev, .bytes = bytes, .fill = fill, .arg = arg};
    size_t pieces = bytes / PIECE;
    int n = cairn_cores() < WORKERS ? cairn_cores() : WORKERS;
    struct worker w[WORKERS] = {0};
    enum cairn_status st = CAIRN_OK;

    if (bytes > dst->bytes)
        return CAIRN_BUG(err, "an upload beyond the end of its buffer");
    if (!bytes)
        return CAIRN_OK;
    TRY(cairn_stream_wait(s, err));
    u.d_dst = cairn_buffer_open(dst, CAIRN_WRITE);
    n = pieces < (size_t)n ? (int)pieces : n;
    for (int i = 0; i < n; i++)
        w[i].u = &u;
    st = s->dev->ops->pin && n > 1 && worker_open(&w[0]) ? by_workers(w, n, err) : alone(s, &u, err);
    for (int i = 0; i < n; i++) /* one may have been opened in part */
        worker_close(&w[i]);
    cairn_buffer_close(dst);
out:
    return st;
}

/* ahead.c - see ahead.h. A row of blocks without gaps between them; the first holds what is asked for next. */
#include "ckpt/ahead.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK  ((int64_t)256 << 10)
#define BLOCKS 4
#define ALONE  ((int64_t)64 << 10)  /* bytes of a piece, at most, that its owner reads ahead of himself: above, copies cost more */
#define WORTH  ((int64_t)64 << 10)  /* bytes for which a thread is woken, at least */
#define STREAK 4                    /* pieces in a row that make it worth while */
#define SHARE  32                   /* one part in so many may be read for nothing */
#define CREDIT ((int64_t)256 << 10) /* or so many bytes once, of a run of eight times as many */

struct block {
    struct cairn_crew_errand errand; /* at, n: the bytes of the file */
    int sent;                        /* the crew knows of it */
    int there;                       /* it has been read */
};

struct cairn_ahead {
    struct cairn_crew *crew;
    struct block block[BLOCKS];
    int first, count;
    int fd;                        /* -1: none */
    int threads, tried;            /* of the crew, once they were asked for */
    int streak;                    /* pieces that came one after another, counted to STREAK */
    int64_t end, run;              /* of the last piece; bytes of pieces since a gap */
    int64_t useful, wasted, bytes; /* asked for; read for nothing; read */
};

enum cairn_status cairn_ahead_create(struct cairn_ahead **out, struct cairn_crew *crew, struct cairn_error *err)
{
    struct cairn_ahead *a = calloc(1, sizeof *a);

    if (!a)
        return CAIRN_NOMEM(err);
    a->crew = crew;
    a->fd = -1;
    *out = a;
    return CAIRN_OK;
}

/* Empties the row. */
static void drop(struct cairn_ahead *a)
{
    for (; a->count; a->count--, a->first = (a->first + 1) % BLOCKS) {
        struct block *b = &a->block[a->first];
        int64_t begin = b->errand.at > a->end ? b->errand.at : a->end, end = b->errand.at + b->errand.n;

        if (b->sent && !b->there && cairn_crew_recall(a->crew, &b->errand)) {
            a->bytes += b->errand.n;
            b->there = 1;
        }
        if (b->there && end > begin)
            a->wasted += end - begin;
    }
}

void cairn_ahead_forget(struct cairn_ahead *a)
{
    if (!a)
        return;
    drop(a);
    a->fd = -1;
    a->streak = 0;
}

void cairn_ahead_destroy(struct cairn_ahead *a)
{
    if (!a)
        return;
    drop(a);
    for (int i = 0; i < BLOCKS; i++)
        free(a->block[i].errand.h_dst);
    free(a);
}

int64_t cairn_ahead_bytes(const struct cairn_ahead *a)
{
    return a->bytes;
}

/* Adds blocks behind the row, up to byte `limit` of the file. All but the first, which is needed at once, go to the crew. */
static void extend(struct cairn_ahead *a, const char *path, int64_t from, int64_t limit, int most)
{
    while (a->count < most) {
        struct block *last = &a->block[(a->first + a->count + BLOCKS - 1) % BLOCKS], *b = &a->block[(a->first + a->count) % BLOCKS];
        int64_t at = a->count ? last->errand.at + last->errand.n : from, n = limit - at < BLOCK ? limit - at : BLOCK;

        if (n <= 0 || (a->count && n < WORTH) || (!b->errand.h_dst && !(b->errand.h_dst = malloc((size_t)BLOCK))))
            return;
        b->errand.fd = a->fd;
        b->errand.path = path;
        b->errand.at = at;
        b->errand.n = n;
        b->there = 0;
        b->sent = a->count > 0;
        a->count++;
        if (b->sent)
            cairn_crew_send(a->crew, &b->errand);
    }
}

/* Waits for the first block, or reads it. 0: it failed. */
static int await(struct cairn_ahead *a)
{
    struct block *b = &a->block[a->first];

    if (b->there)
        return 1;
    if (cairn_crew_fetch(a->crew, &b->errand) != CAIRN_OK)
        return 0;
    a->bytes += b->errand.n;
    b->there = 1;
    return 1;
}

/* Whether a piece of n bytes comes after the last one but for padding: of dtypes, or of large tensors to pages. */
static int follows(const struct cairn_ahead *a, int fd, int64_t at, int64_t n)
{
    int64_t gap = at - a->end;

    return a->fd == fd && gap >= 0 && (gap < 8 || (gap < 4096 && gap <= n / 16));
}

int cairn_ahead_take(struct cairn_ahead *a, int fd, const char *path, int64_t size, int64_t at, int64_t n, void *p)
{
    int64_t spare;

    a->useful += n;
    if (!follows(a, fd, at, n)) {
        a->streak = 0;
        a->run = 0;
    } else if (a->streak < STREAK) {
        a->streak++;
    }
    a->run += n;
    spare = a->useful / SHARE - a->wasted;
    if (!a->wasted && spare < CREDIT)
        spare = a->run / 8 < CREDIT ? a->run / 8 : CREDIT;
    spare = spare > 0 ? spare : 0;
    if (!a->tried && a->streak == STREAK && n > ALONE && spare >= WORTH) {
        a->threads = cairn_crew_threads(a->crew);
        a->tried = 1;
    }
    if (a->streak < STREAK || (n > ALONE && !a->threads)) {
        drop(a);
        a->fd = fd;
        a->end = at + n;
        return 0;
    }
    for (int64_t done = 0; done < n;) {
        const struct block *b;
        int64_t limit = at + n + spare < size ? at + n + spare : size, off, k;

        extend(a, path, at + done, limit, n > ALONE ? BLOCKS : 1);
        b = &a->block[a->first];
        if (!a->count || !await(a)) { /* no memory, the file's end, or an error */
            a->end = at + n;
            a->streak = 0;
            drop(a);
            return 0;
        }
        off = at + done - b->errand.at;
        k = b->errand.n - off < n - done ? b->errand.n - off : n - done;
        if (k > 0) {
            memcpy((char *)p + done, (const char *)b->errand.h_dst + off, (size_t)k);
            done += k;
        }
        if (at + done >= b->errand.at + b->errand.n) { /* used up */
            a->first = (a->first + 1) % BLOCKS;
            a->count--;
        }
    }
    a->end = at + n;
    return 1;
}

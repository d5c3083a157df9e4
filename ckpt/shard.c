/* shard.c - the writer of shard.h: metadata from image.c, everything else is our own pwrite, digest and fsync.
 *
 * The digest of the whole file is made on the way: bytes that come in the order of the file are hashed from the caller's
 * memory, gaps (metadata, padding) from the image; only what came out of order is read back at the end.
 */
#include "ckpt/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/str.h"
#include "ckpt/metadata.h"
#include "ckpt/pump.h"

#define REREAD ((size_t)4 << 20) /* of what came out of order, at once */
#define HASH_BLOCK ((size_t)256 << 10)
#define MAX_TENSORS (1 << 24)

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shards are little-endian and written as they lie in memory");

/* What is known of one tensor while it comes in. */
struct state {
    struct cairn_tiling tiling;
    int64_t first;       /* number of its first tile in the shard, table or not */
    unsigned char *tail; /* a tile that is not complete yet, NULL: none */
    int64_t tail_tile;
    int64_t tail_n;      /* bytes of it */
};

struct cairn_shard {
    char *path, *file, *identity;
    int fd, made;
    int no_tiles, hollow, scratch, told, n; /* told: sums came instead of bytes */
    struct cairn_slice *slices; /* (n); names lie in `names` */
    char *names;
    struct state *state;        /* (n) */
    struct cairn_digest *table; /* (tiles) NULL with no_tiles */
    unsigned char *seen;        /* one bit a tile */
    int64_t tiles, missing, table_at; /* missing: tiles that have not come */
    struct cairn_image image;
    struct cairn_pump *pump;
    struct cairn_hasher *hasher; /* of the whole file, up to `hashed` */
    int64_t hashed;
    int *order, norder, next;   /* tensors that have bytes, by address; the one `hashed` is at or before */
};

/* --- entries --- */

void cairn_shard_entry_free(struct cairn_shard_entry *e)
{
    if (!e)
        return;
    for (int i = 0; i < e->nslices; i++) {
        free((void *)(uintptr_t)e->slices[i].name);
        free((void *)(uintptr_t)e->slices[i].each);
    }
    free(e->slices);
    free(e->file);
    free(e->identity);
    free(e);
}

static enum cairn_status entry_of(const struct cairn_shard *w, struct cairn_shard_entry **out, struct cairn_error *err)
{
    struct cairn_shard_entry *e = calloc(1, sizeof *e);
    int ok = e != NULL;

    if (ok) {
        e->file = strdup(w->file);
        e->identity = strdup(w->identity);
        e->hollow = w->hollow;
        e->size = w->image.size;
        e->table_at = w->table_at;
        e->tiles = w->no_tiles ? 0 : w->tiles;
        e->slices = calloc((size_t)w->n + 1, sizeof *e->slices);
        ok = e->file && e->identity && e->slices;
    }
    for (int i = 0; ok && i < w->n; i++) {
        e->slices[i] = w->slices[i];
        e->slices[i].each = NULL;
        e->slices[i].name = strdup(w->slices[i].name);
        if (w->slices[i].each)
            ok = (e->slices[i].each = strdup(w->slices[i].each)) != NULL;
        e->nslices = i + 1;
        ok = ok && e->slices[i].name;
    }
    if (!ok) {
        cairn_shard_entry_free(e);
        return CAIRN_NOMEM(err);
    }
    *out = e;
    return CAIRN_OK;
}

/* --- creation --- */

/* Copies the declarations and makes their geometry. */
static enum cairn_status declare(struct cairn_shard *w, const struct cairn_slice *t, int n, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    size_t chars = 1;
    char *c;

    if (n < 0 || n > MAX_TENSORS)
        return CAIRN_BUG(err, "number of tensors in a shard");
    for (int i = 0; i < n; i++)
        chars += strlen(t[i].name) + 1 + (t[i].each ? strlen(t[i].each) + 1 : 0);
    w->slices = calloc((size_t)n + 1, sizeof *w->slices);
    w->state = calloc((size_t)n + 1, sizeof *w->state);
    c = w->names = malloc(chars);
    if (!w->slices || !w->state || !w->names)
        return CAIRN_NOMEM(err);
    w->n = n;
    for (int i = 0; i < n; i++) {
        struct cairn_slice *s = &w->slices[i];

        *s = t[i];
        s->name = strcpy(c, t[i].name);
        c += strlen(c) + 1;
        if (t[i].each) {
            s->each = strcpy(c, t[i].each);
            c += strlen(c) + 1;
        }
        TRY(cairn_tiling_init(&w->state[i].tiling, s, w->path, err));
        s->tile_bytes = w->state[i].tiling.tile_bytes;
        s->sum = (struct cairn_digest){0, 0};
        s->first = w->state[i].first = w->tiles;
        if (!cairn_add_i64(w->tiles, w->state[i].tiling.tiles, &w->tiles) || w->tiles > INT64_MAX / 32)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: too many tiles", w->path));
    }
out:
    return st;
}

static int by_address(const void *a, const void *b)
{
    int64_t x = ((const int64_t *)a)[0], y = ((const int64_t *)b)[0];

    return x < y ? -1 : x > y;
}

static enum cairn_status order_tensors(struct cairn_shard *w, struct cairn_error *err)
{
    int64_t (*key)[2] = malloc(((size_t)w->n + 1) * sizeof *key);

    w->order = malloc(((size_t)w->n + 1) * sizeof *w->order);
    if (!key || !w->order) {
        free(key);
        return CAIRN_NOMEM(err);
    }
    for (int i = 0; i < w->n; i++) {
        if (!w->state[i].tiling.bytes)
            continue;
        key[w->norder][0] = w->slices[i].at;
        key[w->norder++][1] = i;
    }
    qsort(key, (size_t)w->norder, sizeof *key, by_address);
    for (int i = 0; i < w->norder; i++)
        w->order[i] = (int)key[i][1];
    free(key);
    return CAIRN_OK;
}

enum cairn_status cairn_shard_create(struct cairn_shard **out, const char *dir, const char *name, const struct cairn_slice *tensors,
                                     int n, const struct cairn_shard_opts *opts, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_shard *w = calloc(1, sizeof *w);

    if (!w)
        return CAIRN_NOMEM(err);
    w->fd = -1;
    if (!cairn_name_ok(name) || strlen(name) > 120)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: \"%.64s\" is no name for a shard", dir, name));
    w->no_tiles = opts && opts->no_tiles;
    w->hollow = opts && opts->hollow;
    w->scratch = opts && opts->scratch;
    w->file = cairn_format("%s.h5", name);
    w->path = cairn_format("%s/%s.h5", dir, name);
    w->identity = strdup(opts && opts->identity ? opts->identity : "");
    if (!w->file || !w->path || !w->identity)
        TRY(CAIRN_NOMEM(err));
    TRY(declare(w, tensors, n, err));
    w->missing = w->tiles;
    w->seen = calloc((size_t)w->tiles / 8 + 1, 1);
    w->hasher = cairn_hasher_create();
    if (!w->seen || !w->hasher)
        TRY(CAIRN_NOMEM(err));
    if (!w->no_tiles && w->tiles && !(w->table = malloc((size_t)w->tiles * sizeof *w->table)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_image_make(&w->image, w->slices, n, w->no_tiles ? 0 : w->tiles, &w->table_at, w->path, err));
    for (int i = 0; i < n && w->no_tiles; i++)
        w->slices[i].first = -1;
    TRY(order_tensors(w, err));
    w->fd = open(w->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (w->fd < 0)
        TRY(cairn_fail_errno(err, errno, "create %s", w->path));
    w->made = 1;
    TRY(cairn_pump_create(&w->pump, w->fd, w->path, !w->scratch, err));
    TRY(cairn_fd_pwrite_all(w->fd, w->image.head, (size_t)w->image.head_n, 0, w->path, err));
    *out = w;
    w = NULL;
out:
    cairn_shard_destroy(w);
    return st;
}

/* --- bulk --- */

/* Hashes the gap of metadata and padding up to `at`. */
static void hash_gap(struct cairn_shard *w, int64_t at)
{
    static const unsigned char zero[CAIRN_PAGE];

    while (w->hashed < at) {
        int64_t head = w->image.head_n - w->hashed, n = at - w->hashed;
        const unsigned char *p = head > 0 ? w->image.head + w->hashed : zero;

        n = head > 0 ? (n < head ? n : head) : n < CAIRN_PAGE ? n : CAIRN_PAGE;
        cairn_hasher_add(w->hasher, p, (size_t)n);
        w->hashed += n;
    }
}

/* Takes n bytes of tensor i into the file's digest if they are the next ones. */
static void hash_in_order(struct cairn_shard *w, int i, int64_t offset, const void *p, size_t n)
{
    int64_t at = w->slices[i].at;

    if (w->next >= w->norder || w->order[w->next] != i)
        return;
    if (offset == 0 && w->hashed < at)
        hash_gap(w, at);
    if (w->hashed != at + offset)
        return;
    cairn_hasher_add(w->hasher, p, n);
    w->hashed += (int64_t)n;
    if (w->hashed == at + w->state[i].tiling.bytes)
        w->next++;
}

static enum cairn_status mark(struct cairn_shard *w, int i, int64_t tile, int64_t n, struct cairn_error *err)
{
    int64_t first = w->state[i].first;

    w->missing -= n;
    for (int64_t k = first + tile; k < first + tile + n; k++) {
        if (w->seen[k >> 3] >> (k & 7) & 1)
            return cairn_fail(err, CAIRN_EBUG, "%s: tensor %s: tile %lld is written twice", w->path, w->slices[i].name,
                              (long long)(k - first));
        w->seen[k >> 3] |= (unsigned char)(1 << (k & 7));
    }
    return CAIRN_OK;
}

/* Digests of n whole tiles. */
static enum cairn_status take_tiles(struct cairn_shard *w, int i, int64_t tile, int64_t n, const void *p, struct cairn_error *err)
{
    struct cairn_slice *s = &w->slices[i];
    enum cairn_status st = mark(w, i, tile, n, err);

    if (st == CAIRN_OK)
        s->sum = cairn_digest_add(s->sum, cairn_tiling_hash(&w->state[i].tiling, tile, n, p, w->table ? w->table + s->first + tile : NULL));
    return st;
}

/* Cuts a piece into: the rest of an open tile, whole tiles, the beginning of another. */
static enum cairn_status take_piece(struct cairn_shard *w, int i, int64_t offset, const unsigned char *p, size_t n, struct cairn_error *err)
{
    struct state *s = &w->state[i];
    enum cairn_status st = CAIRN_OK;

    while (n) {
        int64_t tile = cairn_tiling_of_byte(&s->tiling, offset), at, len = cairn_tiling_tile(&s->tiling, tile, &at), k = 0, end;
        int64_t last;

        if (s->tail && (s->tail_tile != tile || offset != at + s->tail_n))
            return cairn_fail(err, CAIRN_EBUG, "%s: tensor %s: byte %lld was expected, not %lld", w->path, w->slices[i].name,
                              (long long)(at + s->tail_n), (long long)offset);
        if (!s->tail && offset != at)
            return cairn_fail(err, CAIRN_EBUG, "%s: tensor %s: a piece begins at byte %lld, inside of a tile", w->path,
                              w->slices[i].name, (long long)offset);
        if (!s->tail && (int64_t)n >= len) {
            last = cairn_tiling_of_byte(&s->tiling, offset + (int64_t)n - 1); /* tile of the last byte: whole or cut */
            end = cairn_tiling_tile(&s->tiling, last, &at);
            end += at;
            k = last - tile + (end == offset + (int64_t)n);
            len = (end == offset + (int64_t)n ? end : at) - offset;
            TRY(take_tiles(w, i, tile, k, p, err));
        } else {
            if (!s->tail) {
                if (!(s->tail = malloc(CAIRN_TILE_MAX)))
                    return CAIRN_NOMEM(err);
                s->tail_tile = tile;
                s->tail_n = 0;
            }
            if (len - s->tail_n > (int64_t)n) {
                memcpy(s->tail + s->tail_n, p, n);
                s->tail_n += (int64_t)n;
                return CAIRN_OK;
            }
            memcpy(s->tail + s->tail_n, p, (size_t)(len - s->tail_n));
            st = take_tiles(w, i, tile, 1, s->tail, err);
            len -= s->tail_n;
            free(s->tail);
            s->tail = NULL;
            TRY(st);
        }
        p += len;
        offset += len;
        n -= (size_t)len;
    }
out:
    return st;
}

/* n bytes to the pump, and into the digests meanwhile. *borrowed: whether the pump still needs them. */
static enum cairn_status piece(struct cairn_shard *w, int index, int64_t offset, const void *h_p, size_t n, int *borrowed, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_tiling *t;

    *borrowed = 0;
    if (index < 0 || index >= w->n || w->fd < 0)
        return CAIRN_BUG(err, "write to no tensor of an open shard");
    t = &w->state[index].tiling;
    if (offset < 0 || offset > t->bytes || n > (size_t)(t->bytes - offset))
        return cairn_fail(err, CAIRN_EBUG, "%s: tensor %s has %lld bytes, [%lld, +%zu) is beyond them", w->path, w->slices[index].name,
                          (long long)t->bytes, (long long)offset, n);
    if (!n)
        return CAIRN_OK;
    *borrowed = w->hollow ? 0 : cairn_pump_write(w->pump, h_p, n, w->slices[index].at + offset);
    for (size_t done = 0; done < n && st == CAIRN_OK;) { /* both digests while a block is in the cache */
        size_t k = n - done < HASH_BLOCK ? n - done : HASH_BLOCK;

        st = take_piece(w, index, offset + (int64_t)done, (const unsigned char *)h_p + done, k, err);
        hash_in_order(w, index, offset + (int64_t)done, (const unsigned char *)h_p + done, k);
        done += k;
    }
    return st;
}

/* What the pump has: written, or why not. */
static enum cairn_status pumped(struct cairn_shard *w, enum cairn_status st, struct cairn_error *err)
{
    enum cairn_status wrote = cairn_pump_wait(w->pump, st == CAIRN_OK ? err : NULL);

    return st == CAIRN_OK ? wrote : st;
}

enum cairn_status cairn_shard_write(struct cairn_shard *w, int index, int64_t offset, const void *h_p, size_t n, struct cairn_error *err)
{
    int borrowed;
    enum cairn_status st = piece(w, index, offset, h_p, n, &borrowed, err);

    return borrowed || cairn_pump_failed(w->pump) ? pumped(w, st, err) : st;
}

enum cairn_status cairn_shard_lend(struct cairn_shard *w, int index, int64_t offset, const void *h_p, size_t n, struct cairn_error *err)
{
    int borrowed;
    enum cairn_status st = piece(w, index, offset, h_p, n, &borrowed, err);

    if (st != CAIRN_OK || cairn_pump_failed(w->pump))
        return pumped(w, st, err);
    if (!borrowed) /* it was copied, so what was lent before may be needed still */
        cairn_pump_settle(w->pump);
    return CAIRN_OK;
}

enum cairn_status cairn_shard_tell(struct cairn_shard *w, int index, struct cairn_digest sum, struct cairn_error *err)
{
    enum cairn_status st;

    if (index < 0 || index >= w->n || w->fd < 0 || !w->hollow || w->state[index].tail)
        return CAIRN_BUG(err, "a sum instead of bytes for no tensor of an open hollow shard");
    TRY(mark(w, index, 0, w->state[index].tiling.tiles, err));
    w->slices[index].sum = sum;
    w->told = 1;
out:
    return st;
}

/* --- the end --- */

static enum cairn_status all_there(const struct cairn_shard *w, struct cairn_error *err)
{
    if (!w->missing)
        return CAIRN_OK;
    for (int i = 0; i < w->n; i++)
        for (int64_t k = w->state[i].first; k < w->state[i].first + w->state[i].tiling.tiles; k++)
            if (!(w->seen[k >> 3] >> (k & 7) & 1))
                return cairn_fail(err, CAIRN_EBUG, "%s: tensor %s: tile %lld of %lld was never written", w->path, w->slices[i].name,
                                  (long long)(k - w->state[i].first), (long long)w->state[i].tiling.tiles);
    return CAIRN_BUG(err, "count of missing tiles");
}

/* The rest of the file's digest: bulk that came out of order is read back, the table comes from memory. */
static enum cairn_status hash_rest(struct cairn_shard *w, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    unsigned char *block = malloc(REREAD);
    int64_t table_end = w->table ? w->table_at + w->tiles * 16 : 0;

    if (!block)
        return CAIRN_NOMEM(err);
    while (w->hashed < w->image.size) {
        int64_t at = w->image.size, end = at; /* the next stretch of bulk or table */
        const unsigned char *from = NULL;

        if (w->next < w->norder) {
            at = w->slices[w->order[w->next]].at;
            end = at + w->state[w->order[w->next]].tiling.bytes;
        }
        if (w->table && w->hashed < table_end && w->table_at < at) {
            at = w->table_at;
            end = table_end;
            from = (const unsigned char *)w->table;
        }
        hash_gap(w, at);
        if (!from && at < w->image.size)
            w->next++;
        while (w->hashed < end) {
            size_t n = end - w->hashed < (int64_t)REREAD ? (size_t)(end - w->hashed) : REREAD;

            if (!from && w->hollow)
                TRY(cairn_fail(err, CAIRN_EBUG, "%s: a hollow shard whose pieces came out of order", w->path));
            if (!from)
                TRY(cairn_fd_pread_all(w->fd, block, n, w->hashed, w->path, err));
            cairn_hasher_add(w->hasher, from ? from + (w->hashed - at) : block, n);
            w->hashed += (int64_t)n;
        }
    }
out:
    free(block);
    return st;
}

int cairn_shard_hollow(const struct cairn_shard *w)
{
    return w->hollow;
}

enum cairn_status cairn_shard_finish(struct cairn_shard *w, struct cairn_shard_entry **entry, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_shard_entry *e = NULL;

    if (w->fd < 0)
        return CAIRN_BUG(err, "a shard is finished twice");
    TRY(all_there(w, err));
    if (w->table && !w->hollow)
        cairn_pump_write(w->pump, w->table, (size_t)w->tiles * 16, w->table_at);
    TRY(cairn_pump_wait(w->pump, err));
    if (ftruncate(w->fd, w->image.size)) /* the end of the file may be padding that nobody wrote */
        TRY(cairn_fail_errno(err, errno, "set the size of %s", w->path));
    if (!w->told)
        TRY(hash_rest(w, err));
    if (w->hollow || w->scratch) { /* nobody reads it, or nobody later */
        int failed = close(w->fd);

        w->fd = -1;
        if (failed)
            TRY(cairn_fail_errno(err, errno, "close %s", w->path));
    } else {
        TRY(cairn_fd_sync_close(&w->fd, w->path, err));
    }
    TRY(entry_of(w, &e, err));
    if (!w->told)
        e->digest = cairn_hasher_result(w->hasher);
    if (w->table && !w->told)
        e->table_digest = cairn_digest_bytes(w->table, (size_t)w->tiles * 16);
    w->made = 0;
    *entry = e;
out:
    if (st != CAIRN_OK && w->made) {
        unlink(w->path);
        w->made = 0;
    }
    return st;
}

void cairn_shard_destroy(struct cairn_shard *w)
{
    if (!w)
        return;
    cairn_pump_destroy(w->pump);
    if (w->fd >= 0)
        close(w->fd);
    if (w->made)
        unlink(w->path);
    for (int i = 0; i < w->n; i++)
        free(w->state[i].tail);
    cairn_image_free(&w->image);
    cairn_hasher_destroy(w->hasher);
    free(w->order);
    free(w->seen);
    free(w->table);
    free(w->state);
    free(w->slices);
    free(w->names);
    free(w->path);
    free(w->file);
    free(w->identity);
    free(w);
}

enum cairn_status cairn_shard_save(struct cairn_shard_entry **entry, const char *dir, const char *name,
                                   const struct cairn_slice *tensors, const void *const *h_p, int n,
                                   const struct cairn_shard_opts *opts, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_shard *w = NULL;

    TRY(cairn_shard_create(&w, dir, name, tensors, n, opts, err));
    for (int i = 0; i < n; i++)
        TRY(cairn_shard_write(w, i, 0, h_p[i], (size_t)w->state[i].tiling.bytes, err));
    TRY(cairn_shard_finish(w, entry, err));
out:
    cairn_shard_destroy(w);
    return st;
}

/* reader.c - a committed artefact opened for reading, and its shards (reader.h). */
#include "ckpt/reader_impl.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "ckpt/beneath.h"
#include "ckpt/retention.h"

#define OPEN_MAX 400                  /* shards open at a time */
#define WISH     ((int64_t)128 << 10) /* bytes: of a larger wish Linux grants the beginning, as much as it would read ahead */

/* --- opening --- */

static enum cairn_status check_expected(const struct cairn_manifest *m, const char *dir, const struct cairn_reader_expect *x, struct cairn_error *err)
{
    char have[33], want[33];

    if (x->kind && strcmp(x->kind, m->kind))
        return cairn_fail(err, CAIRN_EDATA, "%s: holds kind %s, %s was expected", dir, m->kind, x->kind);
    if (x->run && strcmp(x->run, m->run))
        return cairn_fail(err, CAIRN_EDATA, "%s: belongs to run %s, not to %s", dir, m->run, x->run);
    if (x->check_step && x->step != m->step)
        return cairn_fail(err, CAIRN_EDATA, "%s: is of step %lld, step %lld was expected", dir, (long long)m->step, (long long)x->step);
    if (x->digest && !cairn_digest_equal(*x->digest, m->digest)) {
        cairn_digest_hex(m->digest, have);
        cairn_digest_hex(*x->digest, want);
        return cairn_fail(err, CAIRN_EDATA, "%s: has logical digest %s, %s was expected", dir, have, want);
    }
    if (x->identity && !cairn_digest_equal(*x->identity, cairn_manifest_identity(m)))
        return cairn_fail(err, CAIRN_EDATA, "%s: was made from another recipe or other inputs", dir);
    return CAIRN_OK;
}

enum cairn_status cairn_reader_open(struct cairn_reader **out, const char *dir, const struct cairn_reader_expect *expect, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_reader *r = calloc(1, sizeof *r);

    if (!r)
        return CAIRN_NOMEM(err);
    if (!(r->dir = strdup(dir)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_manifest_load(&r->m, dir, err));
    if (expect)
        TRY(check_expected(r->m, dir, expect, err));
    if (r->m->hollow[0] || (cairn_artefact_collected(dir) && !cairn_artefact_pinned(dir))) {
        char *why = cairn_artefact_collected_why(dir);

        st = cairn_fail(err, CAIRN_ENOINPUT, "%s: step %lld (%s) was collected: %s", dir, (long long)r->m->step, r->m->kind, why ? why : "");
        free(why);
        goto out;
    }
    if (!(r->shard = calloc((size_t)r->m->nshards + 1, sizeof *r->shard)))
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < r->m->nshards; i++)
        r->shard[i].fd = -1;
    *out = r;
    r = NULL;
out:
    cairn_reader_close(r);
    return st;
}

void cairn_reader_close(struct cairn_reader *r)
{
    if (!r)
        return;
    cairn_ahead_destroy(r->ahead);
    cairn_crew_destroy(r->crew);
    if (r->shard)
        for (int i = 0; i < r->m->nshards; i++) {
            if (r->shard[i].fd >= 0)
                close(r->shard[i].fd);
            free(r->shard[i].path);
            free(r->shard[i].table);
        }
    free(r->shard);
    cairn_manifest_destroy(r->m);
    free(r->stage);
    free(r->dir);
    free(r);
}

const struct cairn_manifest *cairn_reader_manifest(const struct cairn_reader *r)
{
    return r->m;
}

const char *cairn_reader_path(const struct cairn_reader *r)
{
    return r->dir;
}

int64_t cairn_reader_bytes(const struct cairn_reader *r)
{
    return r->bytes + (r->ahead ? cairn_ahead_bytes(r->ahead) : 0);
}

enum cairn_status cairn_reader_find(struct cairn_reader *r, const char *name, const struct cairn_tensor_entry **out, struct cairn_error *err)
{
    *out = cairn_manifest_find(r->m, name);
    return *out ? CAIRN_OK : cairn_fail(err, CAIRN_EDATA, "%s: no tensor %s", r->dir, name);
}

static void shape_text(char out[96], int ndim, const int64_t *dim)
{
    int n = snprintf(out, 96, "(");

    for (int i = 0; i < ndim; i++)
        n += snprintf(out + n, 96 - (size_t)n, i ? ",%lld" : "%lld", (long long)dim[i]);
    snprintf(out + n, 96 - (size_t)n, ")");
}

enum cairn_status cairn_reader_expect(struct cairn_reader *r, const char *name, enum cairn_dtype dtype, int ndim, const int64_t *shape,
                                      const struct cairn_tensor_entry **out, struct cairn_error *err)
{
    const struct cairn_tensor_entry *t;
    enum cairn_status st = cairn_reader_find(r, name, &t, err);
    char have[96], want[96];
    int same = 1;

    if (st != CAIRN_OK)
        return st;
    if (t->dtype != dtype)
        return cairn_fail(err, CAIRN_EDATA, "%s: %s is %s, %s was expected", r->dir, name, cairn_dtype_name(t->dtype), cairn_dtype_name(dtype));
    if (ndim >= 0)
        same = t->ndim == ndim;
    for (int i = 0; same && i < ndim; i++)
        same = t->shape[i] == shape[i];
    if (!same) {
        shape_text(have, t->ndim, t->shape);
        shape_text(want, ndim, shape);
        return cairn_fail(err, CAIRN_EDATA, "%s: %s has shape %s, %s was expected", r->dir, name, have, want);
    }
    if (out)
        *out = t;
    return CAIRN_OK;
}

/* --- shards --- */

/* Makes room for another open shard. What was known of a file is forgotten with its descriptor: by then its name may stand
 * for another one. */
static enum cairn_status shards_close(struct cairn_reader *r, struct cairn_error *err)
{
    enum cairn_status st = cairn_crew_wait(r->crew, err); /* nothing is read from them any more */

    cairn_ahead_forget(r->ahead);
    for (int i = 0; i < r->m->nshards; i++) {
        struct cairn_reader_shard *s = &r->shard[i];

        if (s->fd < 0)
            continue;
        close(s->fd);
        free(s->table);
        s->fd = -1;
        s->table = NULL;
        s->checked = 0;
    }
    r->nopen = 0;
    return st;
}

enum cairn_status cairn_reader_shard_open(struct cairn_reader *r, int i, struct cairn_error *err)
{
    const struct cairn_shard_entry *e = r->m->shards[i];
    struct cairn_reader_shard *s = &r->shard[i];
    enum cairn_status st = CAIRN_OK;
    int64_t size;

    if (s->fd >= 0)
        return CAIRN_OK;
    if (!s->path && !(s->path = cairn_path_join(r->dir, e->file)))
        return CAIRN_NOMEM(err);
    if (r->nopen >= OPEN_MAX)
        TRY(shards_close(r, err));
    TRY(cairn_beneath_open(r->dir, e->file, &s->fd, &size, NULL, err));
    r->nopen++;
    s->size = size;
    if (size != e->size) {
        close(s->fd);
        s->fd = -1;
        r->nopen--;
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: damaged: %lld bytes, the manifest says %lld", s->path, (long long)size, (long long)e->size));
    }
out:
    return st;
}

enum cairn_status cairn_reader_fetch(struct cairn_reader *r, int64_t most, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < r->m->nshards && i < OPEN_MAX && most > 0; i++) {
        const struct cairn_reader_shard *s = &r->shard[i];

        TRY(cairn_reader_shard_open(r, i, err));
        for (int64_t at = 0; at < s->size && most > 0; at += WISH, most -= WISH)
            posix_fadvise(s->fd, at, WISH, POSIX_FADV_WILLNEED); /* refused or not: who reads waits for it all the same */
    }
out:
    return st;
}

enum cairn_status cairn_reader_shard_check(struct cairn_reader *r, int i, struct cairn_error *err)
{
    const struct cairn_shard_entry *e = r->m->shards[i];
    struct cairn_reader_shard *s = &r->shard[i];
    enum cairn_status st = CAIRN_OK;
    struct cairn_digest d;

    if (s->checked)
        return CAIRN_OK;
    TRY(cairn_fd_digest(s->fd, e->size, s->path, &d, err));
    r->bytes += e->size;
    if (!cairn_digest_equal(d, e->digest))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: damaged: the digest of its %lld bytes is not the manifest's", s->path, (long long)e->size));
    s->checked = 1;
out:
    return st;
}

enum cairn_status cairn_reader_shard_table(struct cairn_reader *r, int i, struct cairn_error *err)
{
    const struct cairn_shard_entry *e = r->m->shards[i];
    struct cairn_reader_shard *s = &r->shard[i];
    enum cairn_status st = CAIRN_OK;
    size_t bytes = (size_t)e->tiles * sizeof *s->table; /* lies within the file: checked by the manifest */
    struct cairn_digest *table = NULL;

    if (s->table)
        return CAIRN_OK;
    if (!(table = malloc(bytes + 1)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_fd_pread_all(s->fd, table, bytes, e->table_at, s->path, err));
    r->bytes += (int64_t)bytes;
    if (!cairn_digest_equal(cairn_digest_bytes(table, bytes), e->table_digest))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: damaged: tile table, bytes [%lld, +%zu)", s->path, (long long)e->table_at, bytes));
    s->table = table;
    table = NULL;
out:
    free(table);
    return st;
}

/* verify.c - see verify.h. One artefact at a time, one shard at a time, one block at a time. */
#include "ckpt/verify.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/signals.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/beneath.h"
#include "ckpt/metadata.h"
#include "ckpt/retention.h"

#define DEPTH 16
#define BLOCK ((int64_t)1 << 20)

/* --- the walk --- */

/* What belongs to the protocol of an artefact and holds no artefacts: a<N>, epoch, pin, manifest and marker. */
static int inner(const char *name)
{
    return !strcmp(name, CAIRN_MANIFEST_NAME) || !strcmp(name, CAIRN_COLLECTED_NAME) || !strcmp(name, "epoch") || !strcmp(name, "pin") ||
           (name[0] == 'a' && name[1] && !name[1 + strspn(name + 1, "0123456789")]);
}

enum cairn_status cairn_artefact_below(struct cairn_names *out, const char *dir, int artefact, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_names all = {0};
    char *path = NULL;
    size_t stay = 0;
    struct stat sb;

    TRY(cairn_dir_names(&all, dir, NULL, err));
    for (size_t i = 0; i < all.n; i++) {
        char *name = all.name[i];

        if (name[0] == '.' || (artefact && inner(name)))
            continue;
        free(path);
        if (!(path = cairn_path_join(dir, name)))
            TRY(CAIRN_NOMEM(err));
        if (lstat(path, &sb)) { /* what cannot be looked at is not as good as absent */
            if (errno == ENOENT)
                continue;
            TRY(cairn_fail_errno(err, errno, "stat %s", path));
        }
        if (!S_ISDIR(sb.st_mode))
            continue;
        all.name[i] = all.name[stay]; /* those that stay come to the front, in their order */
        all.name[stay++] = name;
    }
    while (all.n > stay)
        free(all.name[--all.n]);
    *out = all;
    all = (struct cairn_names){0};
out:
    cairn_names_free(&all);
    free(path);
    return st;
}

struct walk {
    int run; /* the root is one */
    enum cairn_status (*fn)(void *arg, const struct cairn_artefact *a, struct cairn_error *err);
    void *arg;
};

static int is_run(const char *dir)
{
    char *path = cairn_path_join(dir, CAIRN_RUN_NAME);
    int is = path && cairn_path_exists(path);

    free(path);
    return is;
}

static enum cairn_status walk_dir(const struct walk *w, const char *dir, const char *path, int depth, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_artefact a = {.path = path, .dir = dir};
    struct cairn_names names = {0};
    char *sub = NULL, *subpath = NULL, *epoch = cairn_path_join(dir, "epoch");
    int committed = cairn_artefact_committed(dir), collected = 0;

    if (!epoch)
        return CAIRN_NOMEM(err);
    TRY(cairn_artefact_collected_look(dir, &collected, err));
    if (cairn_stop_requested())
        TRY(cairn_fail(err, CAIRN_EAGAIN, "stopped at %s", dir));
    if (depth > DEPTH)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: directories nested deeper than %d", dir, DEPTH));
    if (committed || collected) { /* a marker without a manifest is for fn to complain about */
        a.collected = collected;
        TRY(w->fn(w->arg, &a, err));
    } else if (depth && w->run && is_run(dir)) /* another's, whatever it holds */
        goto out;
    TRY(cairn_artefact_below(&names, dir, committed || collected || cairn_path_is_dir(epoch), err));
    for (size_t i = 0; i < names.n; i++) {
        if (!strcmp(names.name[i], CAIRN_QUARANTINE_NAME) && (!path[0] || is_run(dir)))
            continue;
        free(sub);
        free(subpath);
        sub = cairn_path_join(dir, names.name[i]);
        subpath = path[0] ? cairn_path_join(path, names.name[i]) : strdup(names.name[i]);
        if (!sub || !subpath)
            TRY(CAIRN_NOMEM(err));
        TRY(walk_dir(w, sub, subpath, depth + 1, err));
    }
out:
    free(sub);
    free(subpath);
    free(epoch);
    cairn_names_free(&names);
    return st;
}

enum cairn_status cairn_artefact_walk(const char *root, enum cairn_status (*fn)(void *arg, const struct cairn_artefact *a, struct cairn_error *err),
                                      void *arg, struct cairn_error *err)
{
    struct walk w = {is_run(root), fn, arg};

    if (!cairn_path_is_dir(root))
        return cairn_fail(err, CAIRN_EDATA, "%s: no such directory", root);
    return walk_dir(&w, root, "", 0, err);
}

struct digest_walk {
    enum cairn_status (*fn)(void *arg, const char *path, const struct cairn_manifest_head *head, struct cairn_error *err);
    void *arg;
};

static enum cairn_status digest_one(void *arg, const struct cairn_artefact *a, struct cairn_error *err)
{
    const struct digest_walk *w = arg;
    struct cairn_manifest_head head;
    enum cairn_status st = cairn_manifest_head(&head, a->dir, err);

    return st == CAIRN_OK ? w->fn(w->arg, a->path, &head, err) : st;
}

enum cairn_status cairn_digest_walk(const char *root,
                                    enum cairn_status (*fn)(void *arg, const char *path, const struct cairn_manifest_head *head,
                                                            struct cairn_error *err),
                                    void *arg, struct cairn_error *err)
{
    struct digest_walk w = {fn, arg};

    return cairn_artefact_walk(root, digest_one, &w, err);
}

/* --- verification --- */

struct verify {
    const struct cairn_verify_opts *opts;
    struct cairn_verify_counts *counts;
    const char *root;
    struct cairn_error first; /* sentence of the first bad thing */
    int64_t bad;
    int holding; /* what is bad is not told yet: retention may be taking the artefact away */
    struct held {
        char *path, *text;
        struct held *next;
    } *held, **held_end;
};

/* Failures that keep us from looking, rather than things that are bad. */
static int hard(enum cairn_status st)
{
    return st == CAIRN_EAGAIN || st == CAIRN_ENOSPACE || st == CAIRN_EBUG;
}

/* 1: it is kept for later. */
static int hold(struct verify *v, const char *path, const char *text)
{
    struct held *h = v->holding ? calloc(1, sizeof *h) : NULL;

    if (!h)
        return 0;
    h->path = strdup(path);
    h->text = strdup(text);
    if (!h->path || !h->text) {
        free(h->path);
        free(h->text);
        free(h);
        return 0;
    }
    *v->held_end = h;
    v->held_end = &h->next;
    return 1;
}

static void tell(struct verify *v, const char *path, const char *text)
{
    if (hold(v, path, text))
        return;
    if (!v->bad++)
        cairn_fail(&v->first, CAIRN_EDATA, "%s", text);
    v->counts->bad++;
    if (v->opts && v->opts->bad)
        v->opts->bad(v->opts->arg, path, text);
}

/* Takes a status in: bad things are told and forgiven, hard ones go up. */
static enum cairn_status take(struct verify *v, const char *path, enum cairn_status st, const struct cairn_error *why,
                              struct cairn_error *err)
{
    if (st == CAIRN_OK)
        return CAIRN_OK;
    if (hard(st)) {
        cairn_fail(err, st, "%s", why->text);
        return st;
    }
    tell(v, path, why->text);
    return CAIRN_OK;
}

/* Tiles of one slice against table (NULL: none) and sum. */
static enum cairn_status deep_slice(int fd, const char *path, const struct cairn_slice *s, const struct cairn_digest *table,
                                    unsigned char *block, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_digest sum = {0, 0};
    struct cairn_tiling t;

    TRY(cairn_tiling_init(&t, s, path, err));
    for (int64_t i = 0; i < t.tiles;) {
        int64_t begin, at, len, n = 0, bytes = 0;

        cairn_tiling_tile(&t, i, &begin);
        while (i + n < t.tiles && (len = cairn_tiling_tile(&t, i + n, &at)) + bytes <= BLOCK) {
            bytes += len;
            n++;
        }
        if (cairn_stop_requested())
            TRY(cairn_fail(err, CAIRN_EAGAIN, "stopped while reading %s", path));
        TRY(cairn_fd_pread_all(fd, block, (size_t)bytes, s->at + begin, path, err));
        for (int64_t k = 0, in = 0; k < n; k++) {
            struct cairn_digest d = cairn_tiling_hash(&t, i + k, 1, block + in, NULL);

            if (table && !cairn_digest_equal(d, table[s->first + i + k]))
                TRY(cairn_fail(err, CAIRN_EDATA, "%s: tensor %s: tile %lld is not what the tile table says", path, s->name,
                               (long long)(i + k)));
            sum = cairn_digest_add(sum, d);
            in += cairn_tiling_tile(&t, i + k, &at);
        }
        i += n;
    }
    if (!cairn_digest_equal(sum, s->sum))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: tensor %s: its digest is not the manifest's", path, s->name));
out:
    return st;
}

static enum cairn_status deep_shard(struct verify *v, int fd, const char *path, const struct cairn_shard_entry *e, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_digest *table = NULL;
    unsigned char *block = malloc((size_t)BLOCK);
    struct cairn_error why;
    char link[64];
    size_t bytes = (size_t)e->tiles * sizeof *table;

    if (!block)
        TRY(CAIRN_NOMEM(err));
    if (e->tiles) {
        if (!(table = malloc(bytes)))
            TRY(CAIRN_NOMEM(err));
        TRY(cairn_fd_pread_all(fd, table, bytes, e->table_at, path, err));
        if (!cairn_digest_equal(cairn_digest_bytes(table, bytes), e->table_digest))
            TRY(take(v, path, CAIRN_EDATA, (cairn_fail(&why, CAIRN_EDATA, "%s: the digest of its tile table is not the manifest's", path), &why),
                     err));
    }
    for (int i = 0; i < e->nslices; i++) {
        st = deep_slice(fd, path, &e->slices[i], e->slices[i].first >= 0 ? table : NULL, block, &why);
        TRY(take(v, path, st, &why, err));
    }
    /* the very file whose digest held, whatever its name stands for by now */
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    TRY(take(v, path, cairn_image_check(access(link, R_OK) ? path : link, path, e, &why), &why, err));
out:
    free(table);
    free(block);
    return st;
}

static enum cairn_status verify_shard(struct verify *v, const char *dir, const struct cairn_shard_entry *e, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_path_join(dir, e->file), text[600];
    struct cairn_digest d;
    struct cairn_error why;
    int64_t size = 0;
    int fd = -1;

    if (!path)
        return CAIRN_NOMEM(err);
    v->counts->shards++;
    st = cairn_beneath_open(dir, e->file, &fd, &size, NULL, &why);
    if (st != CAIRN_OK) {
        st = take(v, path, st, &why, err);
        goto out;
    }
    if (size != e->size) {
        snprintf(text, sizeof text, "%.300s: damaged: %lld bytes, the manifest says %lld", path, (long long)size, (long long)e->size);
        tell(v, path, text);
        goto out;
    }
    st = cairn_fd_digest(fd, size, path, &d, &why);
    if (st != CAIRN_OK) {
        st = take(v, path, st, &why, err);
        goto out;
    }
    v->counts->bytes += size;
    if (!cairn_digest_equal(d, e->digest)) {
        snprintf(text, sizeof text, "%.300s: damaged: the digest of its %lld bytes is not the manifest's", path, (long long)size);
        tell(v, path, text);
        goto out;
    }
    if (v->opts && v->opts->deep) /* only now may HDF5 see it */
        TRY(deep_shard(v, fd, path, e, err));
out:
    if (fd >= 0)
        close(fd);
    free(path);
    return st;
}

/* Small checked files beside the shards: they no longer decide anything, but a damaged one is told. */
static enum cairn_status verify_small(struct verify *v, const char *dir, const char *rel, int is_entry, struct cairn_error *err)
{
    enum cairn_status st;
    struct cairn_shard_entry *e = NULL;
    struct cairn_error why;
    char *text = NULL, *path = cairn_path_join(dir, rel);
    json_t *obj = NULL;
    int missing = 0;
    size_t n;

    if (!path)
        return CAIRN_NOMEM(err);
    st = cairn_beneath_read(dir, rel, CAIRN_MANIFEST_MAX_BYTES, &text, &n, &missing, &why);
    if (st == CAIRN_OK)
        st = is_entry ? cairn_shard_entry_parse(&e, text, n, path, &why) : cairn_checked_parse(&obj, text, n, path, &why);
    st = missing ? CAIRN_OK : take(v, path, st, &why, err);
    cairn_shard_entry_free(e);
    json_decref(obj);
    free(text);
    free(path);
    return st;
}

static void held_begin(struct verify *v)
{
    v->held_end = &v->held;
    v->holding = 1;
}

/* Tells what was held; forget: does not. */
static void held_end(struct verify *v, int forget)
{
    v->holding = 0;
    while (v->held) {
        struct held *h = v->held;

        v->held = h->next;
        if (!forget)
            tell(v, h->path, h->text);
        free(h->path);
        free(h->text);
        free(h);
    }
}

/* Every shard against its entry. What is collected meanwhile is not bad: its marker is durable before its first shard goes. */
static enum cairn_status verify_shards(struct verify *v, const char *dir, const struct cairn_manifest *m, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int collected = 0;
    char name[200];

    held_begin(v);
    for (int i = 0; i < m->nshards; i++) {
        const char *file = m->shards[i]->file;

        TRY(verify_shard(v, dir, m->shards[i], err));
        if (m->nshards > CAIRN_MANIFEST_MAX_INLINE)
            continue; /* what lies beside it is an index of the manifest, which was loaded with it */
        if (cairn_ends_with(file, ".h5") && snprintf(name, sizeof name, "%.*s.json", (int)strlen(file) - 3, file) < (int)sizeof name)
            TRY(verify_small(v, dir, name, 1, err));
    }
    if (v->held)
        TRY(cairn_artefact_collected_look(dir, &collected, err));
    v->counts->collected += collected;
out:
    held_end(v, collected);
    return st;
}

/* "a/b/c" of proper names: a place below the root. */
static int lineage_path_ok(const char *path)
{
    char name[129];

    while (*path) {
        size_t n = strcspn(path, "/");

        if (n > 128)
            return 0;
        memcpy(name, path, n);
        name[n] = 0;
        if (!cairn_name_ok(name))
            return 0;
        path += n + (path[n] == '/');
    }
    return 1;
}

static enum cairn_status verify_lineage(struct verify *v, const char *dir, const struct cairn_manifest *m, struct cairn_error *err)
{
    for (int i = 0; i < m->ninputs; i++) {
        const struct cairn_input *in = &m->inputs[i];
        struct cairn_manifest_head head;
        struct cairn_error why;
        char *path, text[600];
        enum cairn_status st;

        if (cairn_starts_with(in->path, "file:"))
            continue;
        if (!lineage_path_ok(in->path)) {
            snprintf(text, sizeof text, "%.200s: input \"%.200s\" is no place below the run", dir, in->path);
            tell(v, dir, text);
            continue;
        }
        if (!(path = cairn_path_join(v->root, in->path)))
            return CAIRN_NOMEM(err);
        st = cairn_manifest_head(&head, path, &why);
        if (st == CAIRN_OK && !cairn_digest_equal(head.digest, in->digest)) {
            snprintf(text, sizeof text, "%.200s: was made from another %.200s than is there", dir, in->path);
            tell(v, dir, text);
        } else if (st == CAIRN_ENOINPUT) {
            snprintf(text, sizeof text, "%.200s: its input %.200s is not there", dir, in->path);
            tell(v, dir, text);
            if (v->opts->missing)
                v->opts->missing(v->opts->arg, dir, in->path);
        } else if (st == CAIRN_EIO) {
            tell(v, dir, why.text);
        } else if (hard(st)) {
            free(path);
            cairn_fail(err, st, "%s", why.text);
            return st;
        } /* a damaged one is told where it is verified itself */
        free(path);
    }
    return CAIRN_OK;
}

static enum cairn_status verify_one(struct verify *v, const char *dir, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_manifest *m = NULL;
    struct cairn_error why;
    char *path = cairn_path_join(dir, CAIRN_MANIFEST_NAME), name[200];
    int64_t before = v->counts->bytes;
    int collected;

    if (!path)
        return CAIRN_NOMEM(err);
    v->counts->artefacts++;
    st = cairn_manifest_load(&m, dir, &why);
    if (st != CAIRN_OK) {
        st = take(v, path, st, &why, err);
        goto out;
    }
    v->counts->tensors += m->ntensors;
    TRY(cairn_artefact_collected_look(dir, &collected, err));
    if (collected) {
        v->counts->collected++;
        TRY(verify_small(v, dir, CAIRN_COLLECTED_NAME, 0, err));
    } else {
        TRY(verify_shards(v, dir, m, err));
    }
    snprintf(name, sizeof name, "epoch/%lld", (long long)m->epoch);
    TRY(verify_small(v, dir, name, 0, err));
    if (v->opts && v->opts->deep && v->root)
        TRY(verify_lineage(v, dir, m, err));
    if (v->opts && v->opts->done)
        v->opts->done(v->opts->arg, dir, v->counts->bytes - before);
out:
    cairn_manifest_destroy(m);
    free(path);
    return st;
}

static enum cairn_status verify_walked(void *arg, const struct cairn_artefact *a, struct cairn_error *err)
{
    return verify_one(arg, a->dir, err);
}

static enum cairn_status verdict(const struct verify *v, enum cairn_status st, struct cairn_error *err)
{
    if (st != CAIRN_OK || !v->bad)
        return st;
    return cairn_fail(err, CAIRN_EDATA, "%s", v->first.text);
}

enum cairn_status cairn_verify_tree(const char *root, const struct cairn_verify_opts *opts, struct cairn_verify_counts *counts,
                                    struct cairn_error *err)
{
    struct cairn_verify_counts own = {0};
    struct verify v = {.opts = opts, .counts = counts ? counts : &own, .root = root};
    enum cairn_status st;

    if (opts && opts->lineage)
        v.root = opts->lineage[0] ? opts->lineage : NULL;
    st = cairn_artefact_walk(root, verify_walked, &v, err);

    return verdict(&v, st, err);
}

enum cairn_status cairn_verify_artefact(const char *dir, const char *root, const struct cairn_verify_opts *opts,
                                        struct cairn_verify_counts *counts, struct cairn_error *err)
{
    struct cairn_verify_counts own = {0};
    struct verify v = {.opts = opts, .counts = counts ? counts : &own, .root = root};
    enum cairn_status st = verify_one(&v, dir, err);

    return verdict(&v, st, err);
}

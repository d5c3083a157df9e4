/* passed.c - keeps, or refers to, the tensors that only pass through; see passed.h for where they lie.
 *
 * Everything streams in pieces of PIECE bytes; nothing is interpreted but block-FP8, which becomes BF16 like the weights do.
 */
#include "model/passed.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/signals.h"
#include "base/str.h"

#define PIECE ((int64_t)16 << 20)

struct cairn_passed_set {
    struct cairn_reader *r;
    struct cairn_st *st; /* the source, once needed */
    struct cairn_passed *t;
    int n;
    void *piece;
};

/* ---- what is kept of a file's tensor ---------------------------------------------------------------------------------------------- */

static int dequantised(const struct cairn_st *st, const struct cairn_st_tensor *t)
{
    return cairn_st_scales(st, t) != NULL;
}

static int64_t kept_esize(const struct cairn_st *st, const struct cairn_st_tensor *t)
{
    return dequantised(st, t) ? 2 : t->esize;
}

static int64_t kept_bytes(const struct cairn_st *st, const struct cairn_st_tensor *t)
{
    return t->count * kept_esize(st, t);
}

/* Bytes [at, at + n) of what is kept; n and at are multiples of its element size. */
static enum cairn_status read_kept(struct cairn_st *st, const struct cairn_st_tensor *t, int64_t at, int64_t n, void *p, struct cairn_error *err)
{
    if (dequantised(st, t))
        return cairn_st_read_as(st, t, at / 2, n / 2, CAIRN_BF16, p, err);
    return cairn_st_read(st, t, at, p, (size_t)n, err);
}

/* The slice under which tensor i is stored; name is a buffer for those that need another one. */
static struct cairn_slice stored_slice(const struct cairn_st *st, const struct cairn_st_tensor *t, int i, char *name, size_t n)
{
    int64_t bytes = kept_bytes(st, t);

    if (t->dtype >= 0 && t->ndim <= CAIRN_MAX_DIMS && cairn_tensor_name_ok(t->name))
        return cairn_slice_whole(t->name, dequantised(st, t) ? CAIRN_BF16 : (enum cairn_dtype)t->dtype, t->ndim, t->shape);
    snprintf(name, n, "passed:%d", i);
    return cairn_slice_whole(name, CAIRN_U8, 1, &bytes);
}

static json_t *record(const struct cairn_st *st, const struct cairn_st_tensor *t, struct cairn_digest d)
{
    char hex[33];
    json_t *shape = json_array(), *o = json_object();
    int bad = !shape || !o;

    cairn_digest_hex(d, hex);
    for (int i = 0; i < t->ndim && !bad; i++)
        bad = json_array_append_new(shape, json_integer(t->shape[i]));
    bad = bad || json_object_set_new(o, "name", json_string(t->name)) ||
          json_object_set_new(o, "dtype", json_string(dequantised(st, t) ? "BF16" : t->word)) || json_object_set(o, "shape", shape) ||
          json_object_set_new(o, "esize", json_integer(kept_esize(st, t))) || json_object_set_new(o, "digest", json_string(hex));
    json_decref(shape);
    if (bad) {
        json_decref(o);
        return NULL;
    }
    return o;
}

/* ---- saving ------------------------------------------------------------------------------------------------------------------------- */

/* Reads tensor t once: digest, and into the shard (NULL: nowhere). */
static enum cairn_status stream_one(struct cairn_st *st_, const struct cairn_st_tensor *t, struct cairn_shard *w, int index, void *piece,
                                    struct cairn_digest *out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_hasher *h = cairn_hasher_create();
    int64_t bytes = kept_bytes(st_, t);

    if (!h)
        TRY(CAIRN_NOMEM(err));
    for (int64_t at = 0; at < bytes; at += PIECE) {
        int64_t n = bytes - at < PIECE ? bytes - at : PIECE;

        TRY(read_kept(st_, t, at, n, piece, err));
        cairn_hasher_add(h, piece, (size_t)n);
        if (w)
            TRY(cairn_shard_write(w, index, at, piece, (size_t)n, err));
    }
    *out = cairn_hasher_result(h);
out:
    cairn_hasher_destroy(h);
    return st;
}

struct stored_name {
    char s[32];
};

/* Tensors [begin, end) of h->passed: into one shard (copy) and onto the list. */
static enum cairn_status save_range(struct cairn_hf *h, int begin, int end, int copy, const char *name, const char *identity,
                                    struct cairn_attempt *a, struct cairn_manifest *m, json_t *list, void *piece, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_slice *slice = calloc((size_t)(end - begin) + 1, sizeof(*slice));
    struct stored_name *other = calloc((size_t)(end - begin) + 1, sizeof(*other));
    const struct cairn_shard_opts so = {.identity = identity};
    struct cairn_shard *w = NULL;
    struct cairn_shard_entry *entry = NULL;

    if (!slice || !other)
        TRY(CAIRN_NOMEM(err));
    if (copy)
        TRY(cairn_attempt_adopt(a, name, identity, &entry, err));
    if (copy && !entry) {
        for (int i = begin; i < end; i++)
            slice[i - begin] = stored_slice(h->st, h->passed[i], i, other[i - begin].s, sizeof(other[0].s));
        TRY(cairn_attempt_shard(a, &w, name, slice, end - begin, &so, err));
    }
    for (int i = begin; i < end; i++) {
        struct cairn_digest d;

        if (cairn_stop_requested())
            TRY(cairn_fail(err, CAIRN_EAGAIN, "stopped while reading tensors that pass through"));
        TRY(stream_one(h->st, h->passed[i], w, i - begin, piece, &d, err));
        if (json_array_append_new(list, record(h->st, h->passed[i], d)))
            TRY(CAIRN_NOMEM(err));
    }
    if (w)
        TRY(cairn_attempt_shard_done(a, &w, &entry, err));
    if (entry) {
        st = cairn_manifest_add_shard(m, entry, err);
        entry = NULL;
    }
out:
    cairn_shard_destroy(w);
    cairn_shard_entry_free(entry);
    free(slice);
    free(other);
    return st;
}

enum cairn_status cairn_passed_save(struct cairn_hf *h, int copy, int64_t shard_bytes, const char *identity, struct cairn_attempt *a,
                                    struct cairn_manifest *m, json_t **list, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    json_t *l = json_array();
    void *piece = malloc((size_t)PIECE);
    char *id = NULL;
    int64_t most = shard_bytes > 0 ? shard_bytes : (int64_t)4 << 30;

    if (!l || !piece)
        TRY(CAIRN_NOMEM(err));
    for (int begin = 0, end, shard = 0; begin < h->npassed; begin = end, shard++) {
        int64_t bytes = kept_bytes(h->st, h->passed[begin]);
        char name[32];

        for (end = begin + 1; end < h->npassed && bytes + kept_bytes(h->st, h->passed[end]) <= most; end++)
            bytes += kept_bytes(h->st, h->passed[end]);
        snprintf(name, sizeof(name), "passed-%05d", shard);
        free(id);
        id = cairn_format("%s|passed|%d-%d", identity, begin, end);
        if (!id)
            TRY(CAIRN_NOMEM(err));
        TRY(save_range(h, begin, end, copy, name, id, a, m, l, piece, err));
    }
    *list = l;
    l = NULL;
out:
    json_decref(l);
    free(piece);
    free(id);
    return st;
}

enum cairn_status cairn_passed_same(struct cairn_hf *h, const json_t *list, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    void *piece = malloc((size_t)PIECE);

    if (!piece)
        TRY(CAIRN_NOMEM(err));
    if (json_array_size(list) != (size_t)h->npassed)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s holds another import: %zu tensors pass through, of %s %d", where, json_array_size(list), h->dir,
                       h->npassed));
    for (int i = 0; i < h->npassed; i++) {
        struct cairn_digest d;
        json_t *o;
        int same;

        TRY(stream_one(h->st, h->passed[i], NULL, 0, piece, &d, err));
        o = record(h->st, h->passed[i], d);
        same = json_equal(o, json_array_get(list, (size_t)i));
        json_decref(o);
        if (!same)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s holds another import: %s differs from that of %s", where, h->passed[i]->name, h->dir));
    }
out:
    free(piece);
    return st;
}

/* ---- reading ------------------------------------------------------------------------------------------------------------------------ */

static enum cairn_status parse_one(struct cairn_passed *t, const json_t *o, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const char *hex = NULL;
    json_t *shape = NULL;
    size_t n;

    TRY(cairn_json_string(o, "name", &t->name, where, err));
    TRY(cairn_json_string(o, "dtype", &t->word, where, err));
    TRY(cairn_json_string(o, "digest", &hex, where, err));
    TRY(cairn_json_i64(o, "esize", 1, 64, &t->esize, where, err));
    TRY(cairn_json_array(o, "shape", &shape, where, err));
    n = json_array_size(shape);
    if (n > CAIRN_ST_MAX_DIMS || !cairn_digest_parse(hex, &t->digest))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: the record of passed tensor %.100s is damaged", where, t->name));
    t->ndim = (int)n;
    t->bytes = t->esize;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(shape, i);

        t->shape[i] = json_is_integer(v) ? json_integer_value(v) : -1;
        if (t->shape[i] < 0 || !cairn_mul_i64(t->bytes, t->shape[i], &t->bytes))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: the shape of passed tensor %.100s is damaged", where, t->name));
    }
out:
    return st;
}

enum cairn_status cairn_passed_open(struct cairn_passed_set **out, struct cairn_reader *r, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const json_t *list = json_object_get(cairn_reader_manifest(r)->content, "passed");
    struct cairn_passed_set *s = calloc(1, sizeof(*s));
    size_t n = json_array_size(list);

    if (!s || n > INT32_MAX || !(s->t = calloc(n + 1, sizeof(*s->t))) || !(s->piece = malloc((size_t)PIECE)))
        TRY(CAIRN_NOMEM(err));
    s->r = r;
    for (size_t i = 0; i < n; i++)
        TRY(parse_one(&s->t[i], json_array_get(list, i), cairn_reader_path(r), err));
    s->n = (int)n;
    *out = s;
    s = NULL;
out:
    cairn_passed_close(s);
    return st;
}

void cairn_passed_close(struct cairn_passed_set *s)
{
    if (!s)
        return;
    cairn_st_close(s->st);
    free(s->t);
    free(s->piece);
    free(s);
}

int cairn_passed_count(const struct cairn_passed_set *s)
{
    return s->n;
}

const struct cairn_passed *cairn_passed_at(const struct cairn_passed_set *s, int i)
{
    return &s->t[i];
}

/* The source's tensor, checked against the record. */
static enum cairn_status source_tensor(struct cairn_passed_set *s, const struct cairn_passed *t, const struct cairn_st_tensor **out,
                                       struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const json_t *source = json_object_get(cairn_reader_manifest(s->r)->info, "source");
    const char *path = json_string_value(json_object_get(source, "path"));
    const struct cairn_st_tensor *f;

    if (!path || !cairn_path_is_dir(path))
        return cairn_fail(err, CAIRN_ENOINPUT,
                          "%s: tensor %s passes through and was left in %s, which is not there; import with --self-contained, or export "
                          "without it (--trained-only)", cairn_reader_path(s->r), t->name, path ? path : "its source");
    if (!s->st)
        TRY(cairn_st_open(&s->st, path, err));
    f = cairn_st_find(s->st, t->name);
    if (!f || kept_bytes(s->st, f) != t->bytes || kept_esize(s->st, f) != t->esize)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: tensor %s has changed since it was imported", path, t->name));
    *out = f;
out:
    return st;
}

/* Piece [at, at + n) of a stored tensor. Small ones are read whole; large ones by whole rows of dimension 0, or as what they are. */
static enum cairn_status read_stored(struct cairn_passed_set *s, const char *name, const struct cairn_tensor_entry *e, int64_t bytes,
                                     enum cairn_status (*fn)(void *, const void *, size_t, struct cairn_error *), void *arg,
                                     struct cairn_hasher *h, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t row, rows;
    void *big = NULL;

    if (bytes <= PIECE) {
        TRY(cairn_reader_box(s->r, name, NULL, NULL, s->piece, (size_t)bytes, err));
        cairn_hasher_add(h, s->piece, (size_t)bytes);
        TRY(fn(arg, s->piece, (size_t)bytes, err));
        goto out;
    }
    row = bytes / e->shape[0]; /* more than one piece: dimension 0 is there and not 0 */
    rows = PIECE / row ? PIECE / row : 1;
    big = malloc((size_t)(rows * row));
    if (!big)
        TRY(CAIRN_NOMEM(err));
    for (int64_t at = 0; at < e->shape[0]; at += rows) {
        int64_t n = e->shape[0] - at < rows ? e->shape[0] - at : rows;

        TRY(cairn_reader_rows(s->r, name, at, n, big, (size_t)(n * row), err));
        cairn_hasher_add(h, big, (size_t)(n * row));
        TRY(fn(arg, big, (size_t)(n * row), err));
    }
out:
    free(big);
    return st;
}

enum cairn_status cairn_passed_read(struct cairn_passed_set *s, int i,
                                    enum cairn_status (*fn)(void *arg, const void *p, size_t n, struct cairn_error *err), void *arg,
                                    struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_passed *t = &s->t[i];
    const struct cairn_manifest *m = cairn_reader_manifest(s->r);
    struct cairn_hasher *h = cairn_hasher_create();
    char other[32];
    const char *name = t->name;
    const struct cairn_tensor_entry *e = cairn_manifest_find(m, name);

    snprintf(other, sizeof(other), "passed:%d", i);
    if (!e && (e = cairn_manifest_find(m, other)))
        name = other;
    if (!h)
        TRY(CAIRN_NOMEM(err));
    if (e) {
        int64_t bytes = (int64_t)cairn_dtype_size(e->dtype);

        for (int d = 0; d < e->ndim; d++)
            bytes *= e->shape[d]; /* checked when the manifest was loaded */
        if (bytes != t->bytes)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: passed tensor %s has %lld bytes, its record says %lld", cairn_reader_path(s->r), t->name,
                           (long long)bytes, (long long)t->bytes));
        TRY(read_stored(s, name, e, bytes, fn, arg, h, err));
    } else {
        const struct cairn_st_tensor *f = NULL;

        TRY(source_tensor(s, t, &f, err));
        for (int64_t at = 0; at < t->bytes; at += PIECE) {
            int64_t n = t->bytes - at < PIECE ? t->bytes - at : PIECE;

            TRY(read_kept(s->st, f, at, n, s->piece, err));
            cairn_hasher_add(h, s->piece, (size_t)n);
            TRY(fn(arg, s->piece, (size_t)n, err));
        }
    }
    if (!cairn_digest_equal(cairn_hasher_result(h), t->digest))
        st = cairn_fail(err, CAIRN_EDATA, "%s: passed tensor %s has other bytes than when it was imported", cairn_reader_path(s->r), t->name);
out:
    cairn_hasher_destroy(h);
    return st;
}

/* manifest_text.c - the text of manifests and shard entries, and back. Nothing that a file says
 * is used before its check line and its bounds have held. */
#include "ckpt/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/build.h"
#include "base/checked.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "ckpt/beneath.h"

#define MAX_SHARDS (1 << 20)
#define MAX_SLICES (1 << 24)

/* --- writing --- */

static void put_member(struct cairn_str *s, const char *key, const char *value)
{
    cairn_str_printf(s, "\"%s\": ", key);
    cairn_json_put_string(s, value, strlen(value));
}

static void put_hex(struct cairn_str *s, struct cairn_digest d)
{
    char hex[33];

    cairn_digest_hex(d, hex);
    cairn_str_printf(s, "\"%s\"", hex);
}

static void put_dims(struct cairn_str *s, int n, const int64_t *v)
{
    cairn_str_putc(s, '[');
    for (int i = 0; i < n; i++)
        cairn_str_printf(s, i ? ", %lld" : "%lld", (long long)v[i]);
    cairn_str_puts(s, "], ");
}

/* The members of an entry behind "digest"; `indent` blanks before each line of a tensor. */
static void put_entry_body(struct cairn_str *s, const struct cairn_shard_entry *e, int indent)
{
    put_member(s, "identity", e->identity);
    if (e->hollow)
        cairn_str_puts(s, ", \"hollow\": true");
    cairn_str_printf(s, ",\n%*s\"table\": [%lld, %lld, ", indent, "", (long long)e->table_at, (long long)e->tiles);
    put_hex(s, e->table_digest);
    cairn_str_printf(s, "],\n%*s\"tensors\": [", indent, "");
    for (int i = 0; i < e->nslices; i++) {
        const struct cairn_slice *t = &e->slices[i];

        cairn_str_printf(s, "%s\n%*s[\"%s\", \"%s\", ", i ? "," : "", indent + 2, "", t->name, cairn_dtype_name(t->dtype));
        put_dims(s, t->ndim, t->shape);
        put_dims(s, t->ndim, t->offset);
        put_dims(s, t->ndim, t->local);
        cairn_str_printf(s, "%lld, %lld, %lld, ", (long long)t->at, (long long)t->tile_bytes, (long long)t->first);
        put_hex(s, t->sum);
        if (t->each)
            cairn_str_printf(s, ", \"%s\"", t->each);
        cairn_str_putc(s, ']');
    }
    cairn_str_putc(s, ']');
}

static void put_entry_head(struct cairn_str *s, const struct cairn_shard_entry *e)
{
    put_member(s, "file", e->file);
    cairn_str_printf(s, ", \"size\": %lld, \"digest\": ", (long long)e->size);
    put_hex(s, e->digest);
    cairn_str_puts(s, ", ");
}

/* An index file keeps only the last component of the shard's path, so that a link to it from elsewhere says the same. */
enum cairn_status cairn_shard_entry_text(const struct cairn_shard_entry *e, char **out, size_t *n, struct cairn_error *err)
{
    struct cairn_str s = {0};

    cairn_str_printf(&s, "{\n  \"format\": \"cairn shard\", \"version\": %d,\n  ", CAIRN_MANIFEST_VERSION);
    put_entry_head(&s, e);
    put_entry_body(&s, e, 2);
    cairn_str_puts(&s, ",\n");
    return cairn_checked_finish(&s, out, n, err);
}

/* "a2/rank0000.h5" -> "a2/rank0000.json" */
static int index_name(const char *file, char *out, size_t size)
{
    size_t n = strlen(file);

    if (n > 3 && !strcmp(file + n - 3, ".h5"))
        n -= 3;
    return snprintf(out, size, "%.*s.json", (int)n, file) < (int)size;
}

/* The index files of a large manifest hold the entry with the bare file name (attempt.c writes them so). */
static enum cairn_status index_digest(const struct cairn_shard_entry *e, struct cairn_digest *out, struct cairn_error *err)
{
    struct cairn_shard_entry bare = *e;
    const char *slash = strrchr(e->file, '/');
    enum cairn_status st;
    char *text;
    size_t n;

    bare.file = slash ? (char *)(uintptr_t)(slash + 1) : e->file;
    st = cairn_shard_entry_text(&bare, &text, &n, err);
    if (st == CAIRN_OK) {
        *out = cairn_digest_bytes(text, n);
        free(text);
    }
    return st;
}

enum cairn_status cairn_manifest_text(const struct cairn_manifest *m, char **out, size_t *n, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_str s = {0};

    cairn_str_printf(&s, "{\n  \"format\": \"cairn manifest\", \"version\": %d,\n  ", CAIRN_MANIFEST_VERSION);
    if (m->hollow[0]) {
        put_member(&s, "hollow", m->hollow);
        cairn_str_puts(&s, ",\n  ");
    }
    put_member(&s, "kind", m->kind);
    cairn_str_printf(&s, ", \"step\": %lld, ", (long long)m->step);
    put_member(&s, "run", m->run);
    cairn_str_puts(&s, ",\n  \"identity\": {\"recipe\": ");
    put_hex(&s, m->recipe);
    cairn_str_puts(&s, ", \"inputs\": [");
    for (int i = 0; i < m->ninputs; i++) {
        cairn_str_puts(&s, i ? ", {" : "{");
        put_member(&s, "path", m->inputs[i].path);
        cairn_str_puts(&s, ", \"digest\": ");
        put_hex(&s, m->inputs[i].digest);
        cairn_str_putc(&s, '}');
    }
    cairn_str_puts(&s, "]},\n  \"fingerprint\": {");
    put_member(&s, "numerics", m->numerics);
    cairn_str_puts(&s, ", ");
    put_member(&s, "layout", m->layout);
    cairn_str_puts(&s, "},\n  ");
    put_member(&s, "cairn", m->version[0] ? m->version : cairn_build_version());
    cairn_str_printf(&s, ", \"epoch\": %lld,\n  \"digest\": ", (long long)m->epoch);
    put_hex(&s, m->digest);
    cairn_str_puts(&s, ",\n  \"content\": ");
    cairn_json_canonical(&s, m->content);
    cairn_str_puts(&s, ",\n  \"info\": ");
    cairn_json_canonical(&s, m->info);
    cairn_str_puts(&s, ",\n  \"aliases\": ");
    cairn_json_canonical(&s, m->aliases);
    cairn_str_puts(&s, ",\n  \"shards\": [");
    for (int i = 0; i < m->nshards; i++) {
        cairn_str_puts(&s, i ? ",\n    {" : "\n    {");
        put_entry_head(&s, m->shards[i]);
        if (m->nshards > CAIRN_MANIFEST_MAX_INLINE && !m->hollow[0]) {
            struct cairn_digest d;
            char name[300];

            if (!index_name(m->shards[i]->file, name, sizeof name))
                TRY(CAIRN_BUG(err, "name of an index file"));
            TRY(index_digest(m->shards[i], &d, err));
            cairn_str_printf(&s, "\"index\": [\"%s\", ", name);
            put_hex(&s, d);
            cairn_str_putc(&s, ']');
        } else {
            put_entry_body(&s, m->shards[i], 5);
        }
        cairn_str_putc(&s, '}');
    }
    cairn_str_puts(&s, "],\n");
    st = cairn_checked_finish(&s, out, n, err);
out:
    cairn_str_free(&s);
    return st;
}

/* --- reading --- */

static enum cairn_status get_hex(const json_t *v, struct cairn_digest *out, const char *what, const char *where, struct cairn_error *err)
{
    const char *hex = json_string_value(v);

    if (!hex || !cairn_digest_parse(hex, out))
        return cairn_fail(err, CAIRN_EDATA, "%s: %s: expected 32 hex digits", where, what);
    return CAIRN_OK;
}

static enum cairn_status get_string(const json_t *obj, const char *key, char **out, const char *where, struct cairn_error *err)
{
    const char *s;
    enum cairn_status st = cairn_json_string(obj, key, &s, where, err);

    if (st == CAIRN_OK) {
        free(*out);
        if (!(*out = strdup(s)))
            st = CAIRN_NOMEM(err);
    }
    return st;
}

static int get_dims(const json_t *a, int n, int64_t *out)
{
    if (!json_is_array(a) || json_array_size(a) != (size_t)n)
        return 0;
    for (int i = 0; i < n; i++) {
        const json_t *v = json_array_get(a, (size_t)i);

        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return 0;
        out[i] = json_integer_value(v);
    }
    return 1;
}

static int get_count(const json_t *v, int64_t min, int64_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < min)
        return 0;
    *out = json_integer_value(v);
    return 1;
}

/* One tensor line; the entry's size and table are known already. */
static enum cairn_status get_slice(const json_t *a, const struct cairn_shard_entry *e, struct cairn_slice *s, const char *where,
                                   struct cairn_error *err)
{
    const char *name = json_string_value(json_array_get(a, 0)), *dtype = json_string_value(json_array_get(a, 1));
    const char *each = json_string_value(json_array_get(a, 9));
    const json_t *shape = json_array_get(a, 2);
    enum cairn_status st = CAIRN_OK;
    struct cairn_tiling t;
    int64_t end;
    int type;

    if (!name || !cairn_tensor_name_ok(name))
        return cairn_fail(err, CAIRN_EDATA, "%s: a tensor of %s has no proper name", where, e->file);
    type = dtype ? cairn_dtype_parse(dtype) : -1;
    if (type < 0)
        return cairn_fail(err, CAIRN_EDATA, "%s: tensor %s: unknown dtype \"%.32s\"", where, name, dtype ? dtype : "");
    s->dtype = (enum cairn_dtype)type;
    if (!json_is_array(shape) || json_array_size(shape) > CAIRN_MAX_DIMS)
        return cairn_fail(err, CAIRN_EDATA, "%s: tensor %s: more than %d dimensions", where, name, CAIRN_MAX_DIMS);
    s->ndim = (int)json_array_size(shape);
    if (!get_dims(shape, s->ndim, s->shape) || !get_dims(json_array_get(a, 3), s->ndim, s->offset) ||
        !get_dims(json_array_get(a, 4), s->ndim, s->local) || !get_count(json_array_get(a, 5), 0, &s->at) ||
        !get_count(json_array_get(a, 6), 1, &s->tile_bytes) || !get_count(json_array_get(a, 7), -1, &s->first) ||
        json_array_size(a) > 10 || (json_array_size(a) == 10 && !each))
        return cairn_fail(err, CAIRN_EDATA, "%s: tensor %s: malformed entry", where, name);
    TRY(get_hex(json_array_get(a, 8), &s->sum, name, where, err));
    s->name = strdup(name);
    s->each = each ? strdup(each) : NULL;
    if (!s->name || (each && !s->each))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_tiling_init(&t, s, where, err));
    if (!cairn_add_i64(s->at, t.bytes, &end) || end > e->size || (t.bytes && s->at == 0))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: tensor %s: bytes [%lld, +%lld) lie outside of %s of %lld bytes", where, name,
                       (long long)s->at, (long long)t.bytes, e->file, (long long)e->size));
    if (s->first >= 0 && (!cairn_add_i64(s->first, t.tiles, &end) || end > e->tiles) && t.tiles)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: tensor %s: tiles [%lld, +%lld) lie outside of the table of %lld", where, name,
                       (long long)s->first, (long long)t.tiles, (long long)e->tiles));
out:
    return st;
}

static enum cairn_status get_entry_head(const json_t *obj, struct cairn_shard_entry *e, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(get_string(obj, "file", &e->file, where, err));
    if (!cairn_beneath_ok(e->file))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: shard \"%.200s\" is no file name within the artefact", where, e->file));
    TRY(cairn_json_i64(obj, "size", 0, INT64_MAX, &e->size, where, err));
    TRY(get_hex(json_object_get(obj, "digest"), &e->digest, e->file, where, err));
out:
    return st;
}

static enum cairn_status get_entry_body(const json_t *obj, struct cairn_shard_entry *e, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    json_t *table, *tensors;
    int64_t bytes;

    TRY(get_string(obj, "identity", &e->identity, where, err));
    e->hollow = json_is_true(json_object_get(obj, "hollow"));
    TRY(cairn_json_array(obj, "table", &table, where, err));
    if (json_array_size(table) != 3 || !get_count(json_array_get(table, 0), 0, &e->table_at) ||
        !get_count(json_array_get(table, 1), 0, &e->tiles) || !cairn_mul_i64(e->tiles, 16, &bytes) ||
        !cairn_add_i64(bytes, e->table_at, &bytes) || bytes > e->size)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: the tile table of %s lies outside of its %lld bytes", where, e->file, (long long)e->size));
    TRY(get_hex(json_array_get(table, 2), &e->table_digest, e->file, where, err));
    TRY(cairn_json_array(obj, "tensors", &tensors, where, err));
    if (json_array_size(tensors) > MAX_SLICES)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: too many tensors in %s", where, e->file));
    if (!(e->slices = calloc(json_array_size(tensors) + 1, sizeof *e->slices)))
        TRY(CAIRN_NOMEM(err));
    e->nslices = (int)json_array_size(tensors); /* zeroed ones may be freed */
    for (int i = 0; i < e->nslices; i++)
        TRY(get_slice(json_array_get(tensors, (size_t)i), e, &e->slices[i], where, err));
out:
    return st;
}

static enum cairn_status check_version(const json_t *obj, const char *format, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const char *text;
    int64_t version;

    TRY(cairn_json_string(obj, "format", &text, where, err));
    if (strcmp(text, format))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: format \"%.64s\" is not \"%s\"", where, text, format));
    TRY(cairn_json_i64(obj, "version", 1, INT64_MAX, &version, where, err));
    if (version > CAIRN_MANIFEST_VERSION)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: from the future: version %lld, this build (%s) reads up to %d", where, (long long)version,
                       cairn_build_version(), CAIRN_MANIFEST_VERSION));
out:
    return st;
}

enum cairn_status cairn_shard_entry_parse(struct cairn_shard_entry **out, const char *text, size_t n, const char *where,
                                          struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_shard_entry *e = calloc(1, sizeof *e);
    json_t *obj = NULL;

    if (!e)
        return CAIRN_NOMEM(err);
    TRY(cairn_checked_parse(&obj, text, n, where, err));
    TRY(check_version(obj, "cairn shard", where, err));
    TRY(get_entry_head(obj, e, where, err));
    TRY(get_entry_body(obj, e, where, err));
    *out = e;
    e = NULL;
out:
    json_decref(obj);
    cairn_shard_entry_free(e);
    return st;
}

/* The entry from its index file, whose name and digest the manifest gives; head was read from the manifest. */
static enum cairn_status get_index(const json_t *index, struct cairn_shard_entry **head, const char *where, const char *dir,
                                   struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const char *name = json_string_value(json_array_get(index, 0)), *base = strrchr((*head)->file, '/');
    struct cairn_digest want;
    struct cairn_shard_entry *e = NULL;
    char *text = NULL, *file;
    size_t n;

    TRY(get_hex(json_array_get(index, 1), &want, "index", where, err));
    if (!dir || !name || !cairn_beneath_ok(name))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: index \"%.200s\" is no file name within the artefact", where, name ? name : ""));
    TRY(cairn_beneath_read(dir, name, CAIRN_MANIFEST_MAX_BYTES, &text, &n, NULL, err));
    if (!cairn_digest_equal(cairn_digest_bytes(text, n), want))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s/%s: damaged: its digest is not the manifest's", dir, name));
    TRY(cairn_shard_entry_parse(&e, text, n, name, err));
    if (strcmp(e->file, base ? base + 1 : (*head)->file) || e->size != (*head)->size || !cairn_digest_equal(e->digest, (*head)->digest))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s/%s: is the index of another shard than %s", dir, name, (*head)->file));
    file = e->file; /* with the directory that the manifest names */
    e->file = (*head)->file;
    (*head)->file = file;
    cairn_shard_entry_free(*head);
    *head = e;
    e = NULL;
out:
    cairn_shard_entry_free(e);
    free(text);
    return st;
}

static enum cairn_status get_head(const json_t *obj, struct cairn_manifest *m, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(get_string(obj, "kind", &m->kind, where, err));
    if (!cairn_name_ok(m->kind) || strlen(m->kind) > 31)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: key \"kind\": \"%.64s\" is no name", where, m->kind));
    TRY(cairn_json_i64(obj, "step", 0, INT64_MAX, &m->step, where, err));
    TRY(get_string(obj, "run", &m->run, where, err));
    if (strlen(m->run) > 63)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: key \"run\": too long", where));
    TRY(cairn_json_i64(obj, "epoch", 0, INT64_MAX, &m->epoch, where, err));
    if (json_object_get(obj, "hollow"))
        TRY(get_string(obj, "hollow", &m->hollow, where, err));
    if (strlen(m->hollow) > 63)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: key \"hollow\": too long", where));
    TRY(get_hex(json_object_get(obj, "digest"), &m->digest, "digest", where, err));
out:
    return st;
}

static enum cairn_status get_object(const json_t *obj, const char *key, json_t **slot, const char *where, struct cairn_error *err)
{
    json_t *v;
    enum cairn_status st = cairn_json_object(obj, key, &v, where, err);

    if (st == CAIRN_OK) {
        json_decref(*slot);
        *slot = json_incref(v);
    }
    return st;
}

static enum cairn_status get_identity(const json_t *obj, struct cairn_manifest *m, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    json_t *identity, *inputs, *fingerprint, *v;
    size_t i;

    TRY(cairn_json_object(obj, "identity", &identity, where, err));
    TRY(get_hex(json_object_get(identity, "recipe"), &m->recipe, "recipe", where, err));
    TRY(cairn_json_array(identity, "inputs", &inputs, where, err));
    json_array_foreach(inputs, i, v) {
        struct cairn_digest d;
        const char *path;

        TRY(cairn_json_string(v, "path", &path, where, err));
        TRY(get_hex(json_object_get(v, "digest"), &d, path, where, err));
        TRY(cairn_manifest_add_input(m, path, d, err));
    }
    TRY(cairn_json_object(obj, "fingerprint", &fingerprint, where, err));
    TRY(get_string(fingerprint, "numerics", &m->numerics, where, err));
    TRY(get_string(fingerprint, "layout", &m->layout, where, err));
    TRY(get_string(obj, "cairn", &m->version, where, err));
out:
    return st;
}

static enum cairn_status get_shards(const json_t *obj, struct cairn_manifest *m, const char *where, const char *dir, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_shard_entry *e = NULL;
    json_t *shards, *v;
    size_t i;

    TRY(cairn_json_array(obj, "shards", &shards, where, err));
    if (json_array_size(shards) > MAX_SHARDS)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: too many shards", where));
    json_array_foreach(shards, i, v) {
        const json_t *index = json_object_get(v, "index");

        if (!(e = calloc(1, sizeof *e)))
            TRY(CAIRN_NOMEM(err));
        TRY(get_entry_head(v, e, where, err));
        TRY(index ? get_index(index, &e, where, dir, err) : get_entry_body(v, e, where, err));
        st = cairn_manifest_add_shard(m, e, err);
        e = NULL;
        TRY(st);
    }
out:
    cairn_shard_entry_free(e);
    return st;
}

enum cairn_status cairn_manifest_parse(struct cairn_manifest **out, const char *text, size_t n, const char *where, const char *dir,
                                       struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_manifest *m = cairn_manifest_create("", 0, "");
    struct cairn_digest want;
    json_t *obj = NULL;

    if (!m)
        return CAIRN_NOMEM(err);
    TRY(cairn_checked_parse(&obj, text, n, where, err));
    TRY(check_version(obj, "cairn manifest", where, err));
    TRY(get_head(obj, m, where, err));
    want = m->digest;
    TRY(get_identity(obj, m, where, err));
    TRY(get_object(obj, "content", &m->content, where, err));
    TRY(get_object(obj, "info", &m->info, where, err));
    TRY(get_object(obj, "aliases", &m->aliases, where, err));
    TRY(get_shards(obj, m, where, dir, err));
    for (int i = 0; i < m->nshards && !m->hollow[0]; i++)
        if (m->shards[i]->hollow)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: shard %s is hollow, and the manifest does not say that it is", where, m->shards[i]->file));
    TRY(cairn_manifest_seal(m, where, err));
    if (!cairn_digest_equal(m->digest, want))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: its logical digest is not that of its tensors and content", where));
    *out = m;
    m = NULL;
out:
    json_decref(obj);
    cairn_manifest_destroy(m);
    return st;
}

static enum cairn_status read_manifest(const char *dir, char **text, size_t *n, char **where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int missing;

    if (!(*where = cairn_path_join(dir, CAIRN_MANIFEST_NAME)))
        return CAIRN_NOMEM(err);
    st = cairn_beneath_read(dir, CAIRN_MANIFEST_NAME, CAIRN_MANIFEST_MAX_BYTES, text, n, &missing, err);
    if (st == CAIRN_EDATA && missing)
        st = cairn_fail(err, CAIRN_ENOINPUT, "%s: not committed", dir);
    return st;
}

enum cairn_status cairn_manifest_load(struct cairn_manifest **out, const char *dir, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *text = NULL, *where = NULL;
    size_t n;

    TRY(read_manifest(dir, &text, &n, &where, err));
    TRY(cairn_manifest_parse(out, text, n, where, dir, err));
out:
    free(text);
    free(where);
    return st;
}

enum cairn_status cairn_manifest_indexes(json_t **out, const char *dir, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    json_t *obj = NULL, *names = json_object(), *shards, *v;
    char *text = NULL, *where = NULL;
    size_t n, i;

    if (!names)
        TRY(CAIRN_NOMEM(err));
    TRY(read_manifest(dir, &text, &n, &where, err));
    TRY(cairn_checked_parse(&obj, text, n, where, err));
    TRY(cairn_json_array(obj, "shards", &shards, where, err));
    json_array_foreach(shards, i, v)
    {
        const char *name = json_string_value(json_array_get(json_object_get(v, "index"), 0));

        if (name && json_object_set_new(names, name, json_true()))
            TRY(CAIRN_NOMEM(err));
    }
    *out = names;
    names = NULL;
out:
    json_decref(obj);
    json_decref(names);
    free(text);
    free(where);
    return st;
}

enum cairn_status cairn_manifest_head(struct cairn_manifest_head *out, const char *dir, struct cairn_error *err)
{
    static const char mark[] = ",\n  \"shards\": ["; /* a line break stands in no string, so this begins the member */
    enum cairn_status st = CAIRN_OK;
    struct cairn_manifest *m = cairn_manifest_create("", 0, "");
    char *text = NULL, *where = NULL, *cut;
    size_t n, covered;
    json_t *obj = NULL;

    if (!m)
        return CAIRN_NOMEM(err);
    TRY(read_manifest(dir, &text, &n, &where, err));
    TRY(cairn_checked_hold(text, n, where, &covered, err));
    cut = memmem(text, n, mark, sizeof mark - 1);
    if (cut) {
        memcpy(cut, "}", 1);
        n = (size_t)(cut - text) + 1;
    }
    TRY(cairn_json_parse(&obj, text, n, where, err));
    TRY(check_version(obj, "cairn manifest", where, err));
    TRY(get_head(obj, m, where, err));
    TRY(get_identity(obj, m, where, err));
    if (strlen(m->numerics) >= sizeof out->numerics)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: key \"numerics\": too long", where));
    memset(out, 0, sizeof *out);
    snprintf(out->kind, sizeof out->kind, "%s", m->kind);
    snprintf(out->run, sizeof out->run, "%s", m->run);
    out->step = m->step;
    out->digest = m->digest;
    out->epoch = m->epoch;
    snprintf(out->hollow, sizeof out->hollow, "%s", m->hollow);
    snprintf(out->numerics, sizeof out->numerics, "%s", m->numerics);
out:
    json_decref(obj);
    cairn_manifest_destroy(m);
    free(text);
    free(where);
    return st;
}

enum cairn_status cairn_manifest_glance(struct cairn_manifest_glance *out, const char *dir, struct cairn_error *err)
{
    static const char mark[] = ",\n  \"hollow\": \""; /* as in cairn_manifest_head */
    enum cairn_status st = CAIRN_OK;
    char head[128], end[CAIRN_CHECK_BYTES];
    int missing, fd = -1;
    size_t n, nend;
    int64_t size;

    *out = (struct cairn_manifest_glance){0};
    st = cairn_beneath_open(dir, CAIRN_MANIFEST_NAME, &fd, &size, &missing, err);
    if (st == CAIRN_EDATA && missing)
        st = cairn_fail(err, CAIRN_ENOINPUT, "%s: not committed", dir);
    TRY(st);
    n = size < (int64_t)sizeof head ? (size_t)size : sizeof head;
    nend = size < (int64_t)sizeof end ? (size_t)size : sizeof end;
    TRY(cairn_fd_pread_all(fd, head, n, 0, dir, err));
    TRY(cairn_fd_pread_all(fd, end, nend, size - (int64_t)nend, dir, err));
    out->hollow = memmem(head, n, mark, sizeof mark - 1) != NULL;
    cairn_checked_claim(end, nend, out->check);
out:
    if (fd >= 0)
        close(fd);
    return st;
}

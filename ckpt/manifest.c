/* manifest.c - the manifest as data: put together, sealed, looked up. Its text is manifest_text.c's. */
#include "ckpt/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/build.h"
#include "base/checked.h"
#include "base/json.h"
#include "base/str.h"

struct cairn_manifest *cairn_manifest_create(const char *kind, int64_t step, const char *run)
{
    struct cairn_manifest *m = calloc(1, sizeof *m);

    if (!m)
        return NULL;
    m->kind = strdup(kind);
    m->run = strdup(run ? run : "");
    m->numerics = strdup("");
    m->layout = strdup("");
    m->version = strdup(cairn_build_version());
    m->hollow = strdup("");
    m->step = step;
    m->content = json_object();
    m->info = json_object();
    m->aliases = json_object();
    if (!m->kind || !m->run || !m->numerics || !m->layout || !m->version || !m->hollow || !m->content || !m->info || !m->aliases) {
        cairn_manifest_destroy(m);
        return NULL;
    }
    return m;
}

void cairn_manifest_destroy(struct cairn_manifest *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->ninputs; i++)
        free(m->inputs[i].path);
    for (int i = 0; i < m->nshards; i++)
        cairn_shard_entry_free(m->shards[i]);
    json_decref(m->content);
    json_decref(m->info);
    json_decref(m->aliases);
    free(m->inputs);
    free(m->shards);
    free(m->tensors);
    free(m->parts);
    free(m->kind);
    free(m->run);
    free(m->numerics);
    free(m->layout);
    free(m->version);
    free(m->hollow);
    free(m);
}

static enum cairn_status replace(char **where, const char *text, struct cairn_error *err)
{
    char *p = strdup(text);

    if (!p)
        return CAIRN_NOMEM(err);
    free(*where);
    *where = p;
    return CAIRN_OK;
}

enum cairn_status cairn_manifest_set_fingerprint(struct cairn_manifest *m, const char *numerics, const char *layout, struct cairn_error *err)
{
    enum cairn_status st = replace(&m->numerics, numerics, err);

    return st == CAIRN_OK ? replace(&m->layout, layout, err) : st;
}

enum cairn_status cairn_manifest_set_hollow(struct cairn_manifest *m, const char *why, struct cairn_error *err)
{
    return replace(&m->hollow, why, err);
}

enum cairn_status cairn_manifest_add_input(struct cairn_manifest *m, const char *path, struct cairn_digest digest, struct cairn_error *err)
{
    struct cairn_input *p = realloc(m->inputs, ((size_t)m->ninputs + 1) * sizeof *p);

    if (!p)
        return CAIRN_NOMEM(err);
    m->inputs = p;
    p[m->ninputs].digest = digest;
    if (!(p[m->ninputs].path = strdup(path)))
        return CAIRN_NOMEM(err);
    m->ninputs++;
    return CAIRN_OK;
}

enum cairn_status cairn_manifest_add_alias(struct cairn_manifest *m, const char *alias, const char *tensor, struct cairn_error *err)
{
    return json_object_set_new(m->aliases, alias, json_string(tensor)) ? CAIRN_NOMEM(err) : CAIRN_OK;
}

enum cairn_status cairn_manifest_add_shard(struct cairn_manifest *m, struct cairn_shard_entry *entry, struct cairn_error *err)
{
    struct cairn_shard_entry **p = NULL;

    /* doubled at powers of two */
    if (m->nshards & (m->nshards - 1))
        p = m->shards;
    else if ((p = realloc(m->shards, (m->nshards ? 2 * (size_t)m->nshards : 1) * sizeof *p)))
        m->shards = p;
    if (!p) {
        cairn_shard_entry_free(entry);
        return CAIRN_NOMEM(err);
    }
    p[m->nshards++] = entry;
    return CAIRN_OK;
}

/* --- sealing --- */

static int by_name_then_offset(const void *a, const void *b)
{
    const struct cairn_slice *x = ((const struct cairn_part *)a)->slice, *y = ((const struct cairn_part *)b)->slice;
    int c = strcmp(x->name, y->name);

    for (int d = 0; !c && d < x->ndim && d < y->ndim; d++)
        c = x->offset[d] < y->offset[d] ? -1 : x->offset[d] > y->offset[d];
    return c;
}

static int same_tensor(const struct cairn_slice *x, const struct cairn_slice *y)
{
    if (x->dtype != y->dtype || x->ndim != y->ndim || x->tile_bytes != y->tile_bytes || strcmp(x->each ? x->each : "", y->each ? y->each : ""))
        return 0;
    for (int d = 0; d < x->ndim; d++)
        if (x->shape[d] != y->shape[d])
            return 0;
    return 1;
}

static int64_t count_of(int ndim, const int64_t *dims)
{
    int64_t n = 1; /* products were checked when the slice was declared or parsed */

    for (int d = 0; d < ndim; d++)
        n *= dims[d];
    return n;
}

static int overlap(const struct cairn_slice *x, const struct cairn_slice *y)
{
    for (int d = 0; d < x->ndim; d++)
        if (x->offset[d] + x->local[d] <= y->offset[d] || y->offset[d] + y->local[d] <= x->offset[d])
            return 0;
    return count_of(x->ndim, x->local) > 0 && count_of(y->ndim, y->local) > 0;
}

/* Every element once: parts lie within the tensor (checked before), do not overlap, and their counts add up. */
static enum cairn_status check_cover(const struct cairn_manifest *m, const struct cairn_tensor_entry *t, const char *where,
                                     struct cairn_error *err)
{
    int64_t total = count_of(t->ndim, t->shape), have = 0;

    for (int i = 0; i < t->nparts; i++) {
        const struct cairn_slice *x = t->parts[i].slice;
        int64_t end = t->ndim ? x->offset[0] + x->local[0] : 1;

        for (int j = i + 1; j < t->nparts && (!t->ndim || t->parts[j].slice->offset[0] < end); j++)
            if (overlap(x, t->parts[j].slice))
                return cairn_fail(err, CAIRN_EDATA, "%s: tensor %s: elements of %s are in %s too", where, t->name,
                                  m->shards[t->parts[i].shard]->file, m->shards[t->parts[j].shard]->file);
        if (!cairn_add_i64(have, count_of(t->ndim, x->local), &have))
            return cairn_fail(err, CAIRN_EDATA, "%s: tensor %s: its parts overflow", where, t->name);
    }
    if (have != total)
        return cairn_fail(err, CAIRN_EDATA, "%s: tensor %s: %lld of %lld elements are in no shard", where, t->name,
                          (long long)(total - have), (long long)total);
    return CAIRN_OK;
}

static enum cairn_status put_together(struct cairn_manifest *m, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    size_t n = 0, k = 0;

    for (int i = 0; i < m->nshards; i++)
        n += (size_t)m->shards[i]->nslices;
    free(m->parts);
    free(m->tensors);
    m->ntensors = 0;
    m->parts = malloc((n + 1) * sizeof *m->parts);
    m->tensors = calloc(n + 1, sizeof *m->tensors);
    if (!m->parts || !m->tensors)
        return CAIRN_NOMEM(err);
    for (int i = 0; i < m->nshards; i++)
        for (int j = 0; j < m->shards[i]->nslices; j++)
            m->parts[k++] = (struct cairn_part){i, &m->shards[i]->slices[j]};
    qsort(m->parts, n, sizeof *m->parts, by_name_then_offset);
    for (k = 0; k < n;) {
        const struct cairn_slice *s = m->parts[k].slice;
        struct cairn_tensor_entry *t = &m->tensors[m->ntensors++];
        struct cairn_tiling tiling;

        *t = (struct cairn_tensor_entry){.name = s->name, .each = s->each, .dtype = s->dtype, .ndim = s->ndim,
                                         .tile_bytes = s->tile_bytes, .parts = &m->parts[k]};
        memcpy(t->shape, s->shape, sizeof t->shape);
        for (; k < n && !strcmp(m->parts[k].slice->name, t->name); k++, t->nparts++) {
            const struct cairn_slice *p = m->parts[k].slice;

            TRY(cairn_tiling_init(&tiling, p, where, err));
            if (!same_tensor(s, p))
                TRY(cairn_fail(err, CAIRN_EDATA, "%s: tensor %s: %s and %s do not agree on its dtype, shape or tiles", where, t->name,
                               m->shards[t->parts[0].shard]->file, m->shards[m->parts[k].shard]->file));
            t->digest = cairn_digest_add(t->digest, p->sum);
        }
        t->digest = cairn_digest_add(t->digest, cairn_tiling_header(&tiling));
        TRY(check_cover(m, t, where, err));
    }
out:
    return st;
}

static int to_name(const void *key, const void *item)
{
    return strcmp(key, ((const struct cairn_tensor_entry *)item)->name);
}

/* By its own name only. */
static const struct cairn_tensor_entry *find_tensor(const struct cairn_manifest *m, const char *name)
{
    return m->ntensors ? bsearch(name, m->tensors, (size_t)m->ntensors, sizeof *m->tensors, to_name) : NULL;
}

const struct cairn_tensor_entry *cairn_manifest_find(const struct cairn_manifest *m, const char *name)
{
    const char *target = json_string_value(json_object_get(m->aliases, name));

    return find_tensor(m, target ? target : name);
}

/* Part `p` lies inside of slice `s`, both of the same tensor. */
static int lies_in(const struct cairn_slice *p, const struct cairn_slice *s)
{
    for (int d = 0; d < s->ndim; d++)
        if (p->offset[d] < s->offset[d] || p->offset[d] + p->local[d] > s->offset[d] + s->local[d])
            return 0;
    return 1;
}

int cairn_manifest_tells(const struct cairn_manifest *m, const struct cairn_slice *s)
{
    const struct cairn_tensor_entry *t = find_tensor(m, s->name);
    struct cairn_digest sum = {0, 0};
    int64_t covered = 0;

    if (!t || t->dtype != s->dtype || t->ndim != s->ndim || memcmp(t->shape, s->shape, (size_t)s->ndim * sizeof *s->shape))
        return 0;
    for (int i = 0; i < t->nparts; i++)
        if (lies_in(t->parts[i].slice, s)) {
            sum = cairn_digest_add(sum, t->parts[i].slice->sum);
            covered += count_of(s->ndim, t->parts[i].slice->local);
        }
    return covered == count_of(s->ndim, s->local) && cairn_digest_equal(sum, s->sum);
}

static enum cairn_status logical(struct cairn_manifest *m, const char *where, struct cairn_error *err)
{
    struct cairn_str s = {0};
    const char *alias;
    json_t *target;

    m->digest = (struct cairn_digest){0, 0};
    for (int i = 0; i < m->ntensors; i++)
        m->digest = cairn_digest_add(m->digest, m->tensors[i].digest);
    cairn_str_puts(&s, "content\n");
    cairn_json_canonical(&s, m->content);
    if (s.oom)
        return CAIRN_NOMEM(err);
    m->digest = cairn_digest_add(m->digest, cairn_digest_bytes(s.p, s.len));
    json_object_foreach(m->aliases, alias, target) {
        const char *name = json_string_value(target);

        if (!cairn_tensor_name_ok(alias) || find_tensor(m, alias) || !name || !find_tensor(m, name)) {
            cairn_str_free(&s);
            return cairn_fail(err, CAIRN_EDATA, "%s: alias %.64s does not stand for a tensor", where, alias);
        }
        cairn_str_clear(&s);
        cairn_str_printf(&s, "alias\n%s\n%s", alias, name);
        m->digest = cairn_digest_add(m->digest, cairn_digest_bytes(s.p, s.len));
    }
    cairn_str_free(&s);
    return CAIRN_OK;
}

enum cairn_status cairn_manifest_seal(struct cairn_manifest *m, const char *where, struct cairn_error *err)
{
    enum cairn_status st = put_together(m, where, err);

    return st == CAIRN_OK ? logical(m, where, err) : st;
}

static int by_path(const void *a, const void *b)
{
    return strcmp((*(const struct cairn_input *const *)a)->path, (*(const struct cairn_input *const *)b)->path);
}

struct cairn_digest cairn_manifest_identity(const struct cairn_manifest *m)
{
    const struct cairn_input **in = malloc(((size_t)m->ninputs + 1) * sizeof *in);
    struct cairn_hasher *h = cairn_hasher_create();
    struct cairn_digest d = {0, 0};
    char line[64], hex[33];

    if (in && h) {
        for (int i = 0; i < m->ninputs; i++)
            in[i] = &m->inputs[i];
        qsort(in, (size_t)m->ninputs, sizeof *in, by_path);
        cairn_digest_hex(m->recipe, hex);
        cairn_hasher_add(h, m->kind, strlen(m->kind) + 1);
        cairn_hasher_add(h, line, (size_t)snprintf(line, sizeof line, "%lld\n%s\n", (long long)m->step, hex));
        for (int i = 0; i < m->ninputs; i++) {
            cairn_digest_hex(in[i]->digest, hex);
            cairn_hasher_add(h, in[i]->path, strlen(in[i]->path) + 1);
            cairn_hasher_add(h, hex, 33);
        }
        d = cairn_hasher_result(h);
    }
    cairn_hasher_destroy(h);
    free(in);
    return d;
}

/* params.c - makes parameter tables and gives them memory.
 *
 * Table order is what people, files and sums go by; offsets are another order: what is trained lies in one run, first the
 * parameters with weight decay, then those without, so that the optimiser needs two calls whatever the model. Gaps of alignment
 * are never written by anybody and stay zero (an update of zeros by zero gradients is zero).
 *
 * Which tensors a model has: params_model.c. Memory: one arena and one hash table behind `memory`. Does not: read files, know
 * what a forward is.
 */
#include "model/params.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/digest.h"

#define ALIGN 64

struct memory {
    struct cairn_arena *arena; /* names */
    int *slot;                 /* open addressing: index + 1, 0 empty */
    size_t slots;              /* power of two */
    int cap;
};

int64_t cairn_param_count(const struct cairn_param *p)
{
    int64_t n = 1;

    for (int i = 0; i < p->ndim; i++)
        n *= p->dim[i];
    return n;
}

/* ---- making a table --------------------------------------------------------------------------------------------- */

enum cairn_status cairn_param_table_begin(struct cairn_param_table *t, struct cairn_error *err)
{
    struct memory *m = calloc(1, sizeof(*m));

    memset(t, 0, sizeof(*t));
    if (!m || !(m->arena = cairn_arena_create())) {
        free(m);
        return CAIRN_NOMEM(err);
    }
    t->memory = m;
    return CAIRN_OK;
}

void cairn_param_table_free(struct cairn_param_table *t)
{
    struct memory *m = t ? t->memory : NULL;

    if (m) {
        cairn_arena_destroy(m->arena);
        free(m->slot);
        free(m);
    }
    if (t) {
        free(t->param);
        memset(t, 0, sizeof(*t));
    }
}

enum cairn_status cairn_param_table_add(struct cairn_param_table *t, const struct cairn_param *p, struct cairn_error *err)
{
    struct memory *m = t->memory;
    struct cairn_param *grown;
    int64_t n = 1, bytes = 0;

    for (int i = 0; i < p->ndim; i++)
        if (p->dim[i] < 1 || !cairn_mul_i64(n, p->dim[i], &n))
            return cairn_fail(err, CAIRN_EDATA, "%s: dimension %d of %lld is out of range", p->name, i, (long long)p->dim[i]);
    if (!cairn_mul_i64(n, 4, &bytes) || !cairn_add_i64(t->elements, n, &t->elements))
        return cairn_fail(err, CAIRN_EDATA, "%s: the model has more parameters than 63 bits can count", p->name);
    if (t->count == m->cap) {
        int cap = m->cap ? 2 * m->cap : 64;

        grown = realloc(t->param, (size_t)cap * sizeof(*grown));
        if (!grown)
            return CAIRN_NOMEM(err);
        t->param = grown;
        m->cap = cap;
    }
    grown = &t->param[t->count];
    *grown = *p;
    grown->name = cairn_arena_strdup(m->arena, p->name);
    if (!grown->name)
        return CAIRN_NOMEM(err);
    t->count++;
    return CAIRN_OK;
}

static uint64_t name_hash(const char *name)
{
    return cairn_digest_bytes(name, strlen(name)).lo;
}

static enum cairn_status index_names(struct cairn_param_table *t, struct cairn_error *err)
{
    struct memory *m = t->memory;

    m->slots = 64;
    while (m->slots < 2 * (size_t)t->count)
        m->slots *= 2;
    m->slot = calloc(m->slots, sizeof(*m->slot));
    if (!m->slot)
        return CAIRN_NOMEM(err);
    for (int i = 0; i < t->count; i++) {
        size_t h = (size_t)name_hash(t->param[i].name) & (m->slots - 1);

        while (m->slot[h]) {
            if (strcmp(t->param[m->slot[h] - 1].name, t->param[i].name) == 0)
                return cairn_fail(err, CAIRN_EBUG, "parameter %s is in the table twice", t->param[i].name);
            h = (h + 1) & (m->slots - 1);
        }
        m->slot[h] = i + 1;
    }
    return CAIRN_OK;
}

int cairn_param_find(const struct cairn_param_table *t, const char *name)
{
    const struct memory *m = t->memory;
    size_t h;

    if (!m || !m->slot)
        return -1;
    for (h = (size_t)name_hash(name) & (m->slots - 1); m->slot[h]; h = (h + 1) & (m->slots - 1))
        if (strcmp(t->param[m->slot[h] - 1].name, name) == 0)
            return m->slot[h] - 1;
    return -1;
}

static int group_of(const struct cairn_param *p)
{
    return p->frozen ? 3 : p->keep_f32 ? 2 : p->decay ? 0 : 1;
}

enum cairn_status cairn_param_table_finish(struct cairn_param_table *t, struct cairn_error *err)
{
    size_t at = 0;

    for (int group = 0; group < 4; group++) {
        if (group == 3) {
            t->trainable_begin = 0;
            t->trainable_bytes = at;
        }
        for (int i = 0; i < t->count; i++) {
            struct cairn_param *p = &t->param[i];
            size_t bytes = (size_t)cairn_param_count(p) * 4;

            if (group_of(p) != group)
                continue;
            p->offset = at;
            if (!cairn_add_size(at, (bytes + ALIGN - 1) / ALIGN * ALIGN, &at) || at > SIZE_MAX / 2)
                return cairn_fail(err, CAIRN_EDATA, "%s: the model does not fit into the address space", p->name);
        }
    }
    t->bytes = at;
    return index_names(t, err);
}

/* ---- stores ------------------------------------------------------------------------------------------------------- */

static size_t padded(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

size_t cairn_param_table_kept(const struct cairn_param_table *t)
{
    size_t at = t->trainable_begin + t->trainable_bytes;

    for (int i = 0; i < t->count; i++)
        if (t->param[i].keep_f32 && !t->param[i].frozen && t->param[i].offset < at)
            at = t->param[i].offset;
    return at;
}

/* Where the parts of a store lie. Offsets are the table's, scaled to the type; in a narrow store what stays f32 follows behind: the
 * trainable ones in one run (kept), then the frozen ones. */
struct plan {
    enum cairn_dtype type;
    size_t size;            /* of an element */
    size_t from;            /* the table's offset where the store begins */
    size_t kept, kept_from; /* the run's bytes in the store, and its offset in the table */
    size_t frozen, bytes;
};

static struct plan plan_store(const struct cairn_param_table *t, int trainable_only, enum cairn_dtype type)
{
    size_t bytes = trainable_only ? t->trainable_bytes : t->bytes;
    struct plan l = {.type = type, .size = cairn_dtype_size(type), .from = trainable_only ? t->trainable_begin : 0};

    l.kept_from = cairn_param_table_kept(t);
    l.kept = l.frozen = l.bytes = padded(bytes / 4 * l.size);
    if (type != CAIRN_F32) {
        l.frozen = l.bytes += t->trainable_begin + t->trainable_bytes - l.kept_from;
        for (int i = 0; i < t->count && !trainable_only; i++)
            if (t->param[i].keep_f32 && t->param[i].frozen)
                l.bytes += padded((size_t)cairn_param_count(&t->param[i]) * 4);
    }
    l.bytes = l.bytes ? l.bytes : ALIGN; /* a table of frozen parameters only still has a buffer */
    return l;
}

static enum cairn_status store_views(struct cairn_store *s, const struct cairn_param_table *t, struct plan l, int trainable_only,
                                     struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int narrow = l.type != CAIRN_F32;
    int64_t words = (int64_t)((narrow ? l.kept_from - t->trainable_begin : t->trainable_bytes) / 4);

    for (int i = 0; i < t->count; i++) {
        const struct cairn_param *p = &t->param[i];
        int f32 = narrow && p->keep_f32;
        size_t at = !f32 ? (p->offset - l.from) / 4 * l.size : p->frozen ? l.frozen : l.kept + (p->offset - l.kept_from);

        if (trainable_only && p->frozen)
            continue;
        TRY(cairn_tensor_view(&s->tensor[i], s->buf, at, f32 ? CAIRN_F32 : l.type, p->ndim, p->dim, err));
        if (f32 && p->frozen)
            l.frozen += padded((size_t)cairn_param_count(p) * 4);
    }
    if (words)
        TRY(cairn_tensor_view(&s->flat, s->buf, (t->trainable_begin - l.from) / 4 * l.size, l.type, 1, &words, err));
    words = (int64_t)((t->trainable_begin + t->trainable_bytes - l.kept_from) / 4);
    if (narrow && words)
        TRY(cairn_tensor_view(&s->kept, s->buf, l.kept, CAIRN_F32, 1, &words, err));
out:
    return st;
}

/* A store over buf, which becomes its own in any case. */
static enum cairn_status store_over(struct cairn_store *out, const struct cairn_param_table *t, struct cairn_buffer *buf, struct plan l,
                                    int trainable_only, struct cairn_error *err)
{
    struct cairn_store s = {.table = t, .buf = buf};
    enum cairn_status st = CAIRN_OK;

    s.tensor = calloc((size_t)t->count + 1, sizeof(*s.tensor));
    s.due = calloc((size_t)t->count + 1, sizeof(*s.due));
    if (!s.tensor || !s.due)
        TRY(CAIRN_NOMEM(err));
    TRY(store_views(&s, t, l, trainable_only, err));
    *out = s;
    memset(&s, 0, sizeof(s));
out:
    cairn_store_free(&s);
    return st;
}

static enum cairn_status zero_all(struct cairn_buffer *buf, struct cairn_error *err)
{
    const int64_t words = (int64_t)(buf->bytes / 4);
    struct cairn_stream stream = {0};
    struct cairn_tensor all;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_tensor_view(&all, buf, 0, CAIRN_F32, 1, &words, err));
    TRY(cairn_stream_create(buf->dev, &stream, err));
    st = cairn_tensor_zero(&stream, &all, err);
    if (st == CAIRN_OK)
        st = cairn_stream_wait(&stream, err);
    cairn_stream_destroy(&stream);
out:
    return st;
}

static enum cairn_status store_create(struct cairn_store *out, const struct cairn_param_table *t, struct cairn_device *dev,
                                      int trainable_only, enum cairn_dtype type, struct cairn_error *err)
{
    const struct plan l = plan_store(t, trainable_only, type);
    enum cairn_status st = CAIRN_OK;
    struct cairn_buffer *buf = NULL;

    TRY(cairn_buffer_create(dev, l.bytes, &buf, err));
    st = zero_all(buf, err);
    if (st != CAIRN_OK)
        cairn_buffer_destroy(buf);
    TRY(st);
    TRY(store_over(out, t, buf, l, trainable_only, err));
out:
    return st;
}

enum cairn_status cairn_store_create(struct cairn_store *s, const struct cairn_param_table *t, struct cairn_device *dev,
                                     int trainable_only, struct cairn_error *err)
{
    return store_create(s, t, dev, trainable_only, CAIRN_F32, err);
}

enum cairn_status cairn_weights_create(struct cairn_store *s, const struct cairn_param_table *t, struct cairn_compute *k,
                                       struct cairn_error *err)
{
    return store_create(s, t, k->dev, 0, k->act, err);
}

size_t cairn_weights_bytes(const struct cairn_param_table *t, const struct cairn_compute *k)
{
    return plan_store(t, 0, k->act).bytes;
}

enum cairn_status cairn_weights_adopt(struct cairn_store *s, const struct cairn_param_table *t, struct cairn_compute *k, void *p,
                                      void (*freed)(void *arg), void *arg, struct cairn_error *err)
{
    const struct plan l = plan_store(t, 0, k->act);
    struct cairn_buffer *buf = NULL;
    enum cairn_status st = cairn_buffer_adopt(k->dev, p, l.bytes, freed, arg, &buf, err);

    if (st != CAIRN_OK)
        freed(arg);
    return st == CAIRN_OK ? store_over(s, t, buf, l, 0, err) : st;
}

size_t cairn_store_bytes(const struct cairn_param_table *t, int trainable_only, enum cairn_dtype type)
{
    return plan_store(t, trainable_only, type).bytes;
}

enum cairn_status cairn_weights_shapes(struct cairn_store *s, const struct cairn_param_table *t, enum cairn_dtype act,
                                       struct cairn_error *err)
{
    *s = (struct cairn_store){.table = t, .tensor = calloc((size_t)t->count + 1, sizeof *s->tensor)};
    if (!s->tensor)
        return CAIRN_NOMEM(err);
    for (int i = 0; i < t->count; i++) {
        const struct cairn_param *p = &t->param[i];
        struct cairn_tensor *v = &s->tensor[i];
        int64_t n = 1;

        *v = (struct cairn_tensor){.dtype = p->keep_f32 ? CAIRN_F32 : act, .ndim = p->ndim};
        for (int d = p->ndim - 1; d >= 0; n *= p->dim[d--])
            v->dim[d] = p->dim[d], v->stride[d] = n;
    }
    return CAIRN_OK;
}

void cairn_store_free(struct cairn_store *s)
{
    if (!s)
        return;
    cairn_buffer_destroy(s->buf);
    free(s->tensor);
    free(s->row);
    free(s->due);
    memset(s, 0, sizeof(*s));
}

/* ---- gradients that nobody wrote yet -------------------------------------------------------------------------------- */

void cairn_store_renew(struct cairn_store *s)
{
    for (int i = 0; s->due && i < s->table->count; i++)
        s->due[i] = s->tensor[i].buf != NULL;
}

int cairn_store_begun(const struct cairn_store *s, int p)
{
    int begun = !s || !s->due || !s->due[p];

    if (!begun)
        s->due[p] = 0;
    return begun;
}

enum cairn_status cairn_store_settle(const struct cairn_store *s, int products, struct cairn_stream *stream, struct cairn_error *err)
{
    size_t begin = 0, end = 0; /* of a run of neighbours in the buffer */
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; s->due && i <= s->table->count; i++) {
        const struct cairn_tensor *t = i < s->table->count ? &s->tensor[i] : NULL;

        if (t && (!s->due[i] || (!products && s->table->param[i].product)))
            continue;
        if (!t || t->offset != end) {
            const int64_t words = (int64_t)((end - begin) / 4);
            struct cairn_tensor run;

            if (words) {
                TRY(cairn_tensor_view(&run, s->buf, begin, CAIRN_F32, 1, &words, err));
                TRY(cairn_tensor_zero(stream, &run, err));
            }
            begin = t ? t->offset : 0;
        }
        if (t) {
            end = t->offset + padded(cairn_tensor_bytes(t));
            s->due[i] = 0;
        }
    }
out:
    return st;
}

/* cache.c - pages, their reference counts, and one page table a slot (the idea is vLLM's paged attention, arXiv:2309.06180).
 *
 * What a layer keeps of a slot whatever its length lies at the slot's number. A fork remembers its origin and copies when one of the two
 * is extended or the origin's place is given away, so that many forks that are dropped at once cost nothing.
 *
 * The bookkeeping lives on the host; the device sees key rows and a mirror of the page tables, which is sent when it changed. Who
 * gets which page depends on the order of calls alone: the free page with the lowest number. Nothing is read before it is written:
 * an op looks only at positions up to its own.
 */
#include "model/cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/planted.h"
#include "model/carve.h"

/* What a layer keeps of a slot: tails of the convolutions of q, k, v; state of KDA; tail of the open pool. */
enum { TAIL_Q, TAIL_K, TAIL_V, KDA_STATE, POOL_TAIL, ENTRIES };

struct cairn_cache {
    struct cairn_compute *k;                  /* borrowed */
    int layers, slots, pages, page, per_slot; /* per_slot: P, pages a slot may hold */
    int pool;                                 /* tokens an indexer key stands for */
    int64_t max_length;
    struct cairn_buffer *buf;
    struct cairn_tensor *latent, *index; /* one a layer; no dimensions where a layer has none */
    struct cairn_tensor *entry;          /* [layers][ENTRIES] (slots, ...), likewise */
    struct cairn_tensor tables;          /* i32 (slots, P) */

    int *ref;               /* [pages] slots that hold it */
    int free_pages, lowest; /* no free page below `lowest` */
    int32_t *table;         /* [slots][P], -1 beyond a slot's pages */
    int64_t *length;        /* [slots], -1: slot is free */
    int *origin;            /* [slots] whose entries this fork has still to copy, -1: nobody's */
    uint8_t *stale;         /* [slots] the device's copy of the row is old */
};

static struct cairn_tensor carve4(struct cairn_carve *v, enum cairn_dtype type, int64_t a, int64_t b, int64_t d, int64_t e)
{
    struct cairn_tensor t = cairn_carve3(v, type, a, b, d * e);

    t.ndim = 4;
    t.dim[2] = d;
    t.dim[3] = e;
    t.stride[2] = e;
    t.stride[3] = 1;
    return t;
}

static void carve(struct cairn_cache *c, struct cairn_carve *v, const struct cairn_model_config *cfg, enum cairn_dtype act)
{
    int64_t rows = (int64_t)c->pages * c->page;

    c->tables = cairn_carve2(v, CAIRN_I32, c->slots, c->per_slot);
    for (int i = 0; i < c->layers; i++) {
        struct cairn_tensor *e = &c->entry[i * ENTRIES];

        if (cfg->kda[i]) {
            for (int j = TAIL_Q; j <= TAIL_V; j++)
                e[j] = cairn_carve3(v, act, c->slots, cfg->kda_conv, cfg->kda_heads * cfg->kda_dim);
            e[KDA_STATE] = carve4(v, CAIRN_F32, c->slots, cfg->kda_heads, CAIRN_KDA_ROWS(cfg->kda_dim), cfg->kda_dim);
            continue;
        }
        c->latent[i] = cairn_carve2(v, act, rows, cfg->kv_rank + cfg->rope);
        if (cfg->indexer[i])
            c->index[i] = cairn_carve2(v, act, rows / c->pool, cfg->index_dim);
        if (cfg->indexer[i] && cfg->arch == CAIRN_ARCH_GLM5_NEXT)
            e[POOL_TAIL] = cairn_carve3(v, act, c->slots, c->pool, 2 * cfg->index_dim);
    }
}

/* A cache without memory; *bytes is what its buffer needs. Given back by cairn_cache_destroy, also after a failure. */
static enum cairn_status prepare(struct cairn_cache **out, const struct cairn_model_config *cfg, enum cairn_dtype act,
                                 const struct cairn_cache_opts *o, size_t *bytes, struct cairn_error *err)
{
    struct cairn_cache *c = NULL;
    struct cairn_carve v = {0};
    enum cairn_status st = CAIRN_OK;
    int64_t per_slot;

    if (o->slots < 1 || o->pages < 1 || o->page < 1 || o->max_length < 1 || (int64_t)o->pages * o->page > INT32_MAX)
        return cairn_fail(err, CAIRN_EBUG, "cache of %d slots, %d pages of %d positions, sequences of %lld", o->slots, o->pages,
                          o->page, (long long)o->max_length);
    if (o->page % cfg->index_pool)
        return cairn_fail(err, CAIRN_ERECIPE, "pages of %d positions are no multiple of the model's index_kpool, %d (rollout.page)", o->page,
                          cfg->index_pool);
    per_slot = (o->max_length - 1) / o->page + 1;
    if (per_slot > o->pages)
        per_slot = o->pages;
    *out = c = calloc(1, sizeof *c);
    if (!c)
        return CAIRN_NOMEM(err);
    c->layers = cfg->layers;
    c->slots = o->slots;
    c->pages = o->pages;
    c->page = o->page;
    c->per_slot = (int)per_slot;
    c->max_length = o->max_length;
    c->pool = cfg->index_pool;
    c->entry = calloc((size_t)c->layers * ENTRIES, sizeof *c->entry);
    c->latent = calloc((size_t)c->layers, sizeof *c->latent);
    c->index = calloc((size_t)c->layers, sizeof *c->index);
    if (!c->latent || !c->index || !c->entry)
        TRY(CAIRN_NOMEM(err));
    carve(c, &v, cfg, act);
    if (v.overflow)
        TRY(cairn_fail(err, CAIRN_ERECIPE, "a cache of %d pages of %d positions does not fit any memory", c->pages, c->page));
    *bytes = v.high;
out:
    return st;
}

enum cairn_status cairn_cache_create(struct cairn_cache **out, const struct cairn_model_config *cfg, struct cairn_compute *k,
                                     const struct cairn_cache_opts *o, struct cairn_error *err)
{
    struct cairn_cache *c = NULL;
    struct cairn_carve v;
    enum cairn_status st = CAIRN_OK;
    size_t bytes;

    TRY(prepare(&c, cfg, k->act, o, &bytes, err));
    c->k = k;
    c->origin = calloc((size_t)c->slots, sizeof *c->origin);
    c->ref = calloc((size_t)c->pages, sizeof *c->ref);
    c->table = calloc((size_t)c->slots * (size_t)c->per_slot, sizeof *c->table);
    c->length = calloc((size_t)c->slots, sizeof *c->length);
    c->stale = calloc((size_t)c->slots, 1);
    if (!c->ref || !c->table || !c->length || !c->stale || !c->origin)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_buffer_create(k->dev, bytes, &c->buf, err));
    v = (struct cairn_carve){.buf = c->buf};
    carve(c, &v, cfg, k->act);
    cairn_cache_reset(c);
    *out = c;
    c = NULL;
out:
    cairn_cache_destroy(c);
    return st;
}

enum cairn_status cairn_cache_measure(const struct cairn_model_config *cfg, enum cairn_dtype act, const struct cairn_cache_opts *o,
                                      size_t *bytes, struct cairn_error *err)
{
    struct cairn_cache *c = NULL;
    enum cairn_status st = prepare(&c, cfg, act, o, bytes, err);

    cairn_cache_destroy(c);
    return st;
}

void cairn_cache_destroy(struct cairn_cache *c)
{
    if (!c)
        return;
    cairn_buffer_destroy(c->buf);
    free(c->latent);
    free(c->index);
    free(c->ref);
    free(c->table);
    free(c->length);
    free(c->stale);
    free(c->entry);
    free(c->origin);
    free(c);
}

void cairn_cache_reset(struct cairn_cache *c)
{
    memset(c->ref, 0, (size_t)c->pages * sizeof *c->ref);
    memset(c->table, 0xff, (size_t)c->slots * (size_t)c->per_slot * sizeof *c->table);
    memset(c->stale, 1, (size_t)c->slots);
    for (int i = 0; i < c->slots; i++) {
        c->length[i] = -1;
        c->origin[i] = -1;
    }
    c->free_pages = c->pages;
    c->lowest = 0;
}

/* ---- pages and slots -------------------------------------------------------------------------------------------- */

static int32_t take_page(struct cairn_cache *c) /* there must be one */
{
    int p = c->lowest;

    while (c->ref[p])
        p++;
    c->ref[p] = 1;
    c->lowest = p + 1;
    c->free_pages--;
    return p;
}

static void drop_page(struct cairn_cache *c, int32_t p)
{
    if (--c->ref[p])
        return;
    c->free_pages++;
    if (p < c->lowest)
        c->lowest = p;
}

static int used(const struct cairn_cache *c, int slot)
{
    return slot >= 0 && slot < c->slots && c->length[slot] >= 0;
}

int cairn_cache_pages_for(const struct cairn_cache *c, int64_t length)
{
    return length > 0 ? (int)((length - 1) / c->page + 1) : 0;
}

/* What every layer keeps of slot `from` becomes that of its fork `to`. */
static enum cairn_status copy_entries(struct cairn_cache *c, int from, int to, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < c->layers * ENTRIES; i++) {
        const struct cairn_tensor *t = &c->entry[i];

        if (t->ndim && !(cairn_planted("kda-state-not-forked") && i % ENTRIES == KDA_STATE)) {
            const struct cairn_tensor src = cairn_tensor_at(t, from), dst = cairn_tensor_at(t, to);

            TRY(cairn_tensor_copy(&c->k->stream, &dst, &src, err));
        }
    }
    c->origin[to] = -1;
out:
    return st;
}

/* Before what lies in a slot's place changes: its forks get their copies. */
static enum cairn_status give_copies(struct cairn_cache *c, int slot, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < c->slots; i++)
        if (c->origin[i] == slot)
            TRY(copy_entries(c, slot, i, err));
out:
    return st;
}

int cairn_cache_slot(struct cairn_cache *c)
{
    for (int i = 0; i < c->slots; i++)
        if (c->length[i] < 0) {
            if (give_copies(c, i, NULL) != CAIRN_OK)
                return -1; /* the device has failed, and says so to whoever asks next */
            c->length[i] = 0;
            return i;
        }
    return -1;
}

int cairn_cache_fork(struct cairn_cache *c, int slot)
{
    size_t width = (size_t)c->per_slot;
    int s;

    if (!used(c, slot) || (s = cairn_cache_slot(c)) < 0)
        return -1;
    memcpy(c->table + (size_t)s * width, c->table + (size_t)slot * width, width * sizeof *c->table);
    c->length[s] = c->length[slot];
    c->origin[s] = !c->length[slot] ? -1 : c->origin[slot] >= 0 ? c->origin[slot] : slot;
    c->stale[s] = 1;
    for (int i = 0; i < cairn_cache_pages_for(c, c->length[s]); i++)
        c->ref[c->table[(size_t)s * width + (size_t)i]]++;
    return s;
}

void cairn_cache_free(struct cairn_cache *c, int slot)
{
    int32_t *row;

    if (!used(c, slot))
        return;
    row = c->table + (size_t)slot * (size_t)c->per_slot;
    for (int i = 0; i < cairn_cache_pages_for(c, c->length[slot]); i++) {
        drop_page(c, row[i]);
        row[i] = -1;
    }
    c->length[slot] = -1;
    c->origin[slot] = -1; /* its forks find what they are to copy until the place is given away */
    c->stale[slot] = 1;
}

/* The first n rows of page `from` into page `to`, in every layer. */
static enum cairn_status copy_page(struct cairn_cache *c, int32_t from, int32_t to, int64_t n, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < c->layers; i++) {
        const struct cairn_tensor *t[2] = {&c->latent[i], &c->index[i]};
        const int64_t page[2] = {c->page, c->page / c->pool}, rows[2] = {n, n / c->pool};

        for (int j = 0; j < 2; j++)
            if (t[j]->ndim && rows[j])
                TRY(c->k->ops.rows(&c->k->stream,
                                   &(struct cairn_rows){.src = cairn_tensor_slice(t[j], 0, from * page[j], rows[j]),
                                                        .dst = cairn_tensor_slice(t[j], 0, to * page[j], rows[j])},
                                   err));
    }
out:
    return st;
}

enum cairn_status cairn_cache_extend(struct cairn_cache *c, int slot, int64_t n, int *fits, struct cairn_error *err)
{
    int32_t *row;
    int64_t length, tail;
    int have, want, shared;
    enum cairn_status st = CAIRN_OK;

    if (!used(c, slot) || n < 0 || n > c->max_length - c->length[slot])
        return cairn_fail(err, CAIRN_EBUG, "cache slot %d cannot grow by %lld positions (length %lld, at most %lld)", slot,
                          (long long)n, used(c, slot) ? (long long)c->length[slot] : -1LL, (long long)c->max_length);
    *fits = 1;
    if (!n)
        return CAIRN_OK;
    row = c->table + (size_t)slot * (size_t)c->per_slot;
    length = c->length[slot];
    tail = length % c->page;
    have = cairn_cache_pages_for(c, length);
    if ((length + n - 1) / c->page + 1 > c->pages) {
        *fits = 0;
        return CAIRN_OK;
    }
    want = cairn_cache_pages_for(c, length + n);
    shared = tail > 0 && c->ref[row[have - 1]] > 1 && !cairn_planted("shared-page-written");
    if (want - have + shared > c->free_pages) {
        *fits = 0;
        return CAIRN_OK;
    }
    if ((st = give_copies(c, slot, err)) != CAIRN_OK ||
        (c->origin[slot] >= 0 && (st = copy_entries(c, c->origin[slot], slot, err)) != CAIRN_OK))
        return st;
    if (shared) {
        int32_t page = take_page(c);

        st = copy_page(c, row[have - 1], page, cairn_planted("fork-copies-too-little") ? tail - 1 : tail, err);
        if (st != CAIRN_OK) {
            drop_page(c, page);
            return st;
        }
        drop_page(c, row[have - 1]);
        row[have - 1] = page;
    }
    for (int i = have; i < want; i++)
        row[i] = take_page(c);
    c->length[slot] = length + n;
    if (shared || want > have)
        c->stale[slot] = 1;
    return CAIRN_OK;
}

int64_t cairn_cache_length(const struct cairn_cache *c, int slot)
{
    return used(c, slot) ? c->length[slot] : -1;
}

int cairn_cache_free_pages(const struct cairn_cache *c)
{
    return c->free_pages;
}

/* ---- for the forward -------------------------------------------------------------------------------------------- */

struct cairn_tensor cairn_cache_latent_rows(const struct cairn_cache *c, int layer)
{
    return c->latent[layer];
}

struct cairn_tensor cairn_cache_index_rows(const struct cairn_cache *c, int layer)
{
    return c->index[layer];
}

struct cairn_tensor cairn_cache_pool_tail(const struct cairn_cache *c, int layer)
{
    return c->entry[layer * ENTRIES + POOL_TAIL];
}

struct cairn_cache_kda cairn_cache_kda(const struct cairn_cache *c, int layer)
{
    const struct cairn_tensor *e = &c->entry[layer * ENTRIES];

    return (struct cairn_cache_kda){{e[TAIL_Q], e[TAIL_K], e[TAIL_V]}, e[KDA_STATE]};
}

enum cairn_status cairn_cache_tables(struct cairn_cache *c, struct cairn_tensor *pages, int *page, struct cairn_error *err)
{
    size_t width = (size_t)c->per_slot;
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < c->slots; i++) {
        struct cairn_tensor row = cairn_tensor_slice(&c->tables, 0, i, 1);

        if (!c->stale[i])
            continue;
        TRY(cairn_tensor_set(&c->k->stream, &row, c->table + (size_t)i * width, width * sizeof *c->table, err));
        c->stale[i] = 0;
    }
    *pages = c->tables;
    *page = c->page;
out:
    return st;
}

int64_t cairn_cache_row(const struct cairn_cache *c, int slot, int64_t pos)
{
    if (!used(c, slot) || pos < 0 || pos >= c->length[slot])
        return -1;
    return (int64_t)c->table[(size_t)slot * (size_t)c->per_slot + (size_t)(pos / c->page)] * c->page + pos % c->page;
}

size_t cairn_cache_bytes(const struct cairn_cache *c)
{
    return c->buf->bytes;
}

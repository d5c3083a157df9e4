/* params.c - makes parameter tables and gives them memory.
 *
 * Table order is what people, files and sums go by; offsets are another order: what is trained lies in one run, first the
 * parameters with weight decay, then those without, so that the optimiser needs two calls whatever the model. Gaps of alignment
 * are never written by anybody and stay zero (an update of zeros by zero gradients is zero).
 *
 * Cuts follow the usual tensor parallelism (arXiv:1909.08053): a pair of products is cut by output, then by input; embedding and
 * head by vocabulary; experts by expert. Router, indexer, latents and norms are everywhere.
 *
 * Memory: one arena and one hash table behind `memory`. Does not: read files, know what a forward is.
 */
#include "model/params.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/digest.h"
#include "model/normal.h"
#include "model/values.h"

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

/* ---- the model's table -------------------------------------------------------------------------------------------- */

enum kind { NORM, ROUTER, BIAS, INDEXER, COLUMN, ROW, PLAIN, VOCAB }; /* COLUMN, ROW: cut by output, by input */

struct maker {
    struct cairn_param_table *t;
    struct cairn_error *err;
    enum cairn_status st; /* the first failure */
    int layer;
};

/* Adds one tensor; e > 0: all experts of it, (e, a, b). b = 0: one dimension. Does nothing after a failure. */
static void add(struct maker *k, enum kind kind, const char *suffix, int64_t e, int64_t a, int64_t b)
{
    char name[160];
    struct cairn_param p = {.name = name, .layer = k->layer};

    if (k->st != CAIRN_OK)
        return;
    if (k->layer >= 0)
        snprintf(name, sizeof(name), "model.layers.%d.%s", k->layer, suffix);
    else
        snprintf(name, sizeof(name), "%s", suffix);
    if (e)
        p.dim[p.ndim++] = e;
    p.dim[p.ndim++] = a;
    if (b)
        p.dim[p.ndim++] = b;
    p.tp = kind == COLUMN ? (e ? CAIRN_CUT_DIM1 : CAIRN_CUT_DIM0)
           : kind == ROW  ? (e ? CAIRN_CUT_DIM2 : CAIRN_CUT_DIM1)
           : kind == VOCAB ? CAIRN_CUT_DIM0
                           : CAIRN_CUT_NONE;
    p.ep = e ? CAIRN_CUT_DIM0 : CAIRN_CUT_NONE;
    p.keep_f32 = kind == BIAS;
    p.frozen = kind == BIAS || kind == INDEXER;
    p.decay = b != 0 && !p.frozen;
    p.adaptable = kind == COLUMN || kind == ROW || kind == PLAIN;
    k->st = cairn_param_table_add(k->t, &p, k->err);
}

static void add_layer(struct maker *k, const struct cairn_model_config *c)
{
    int64_t D = c->width, H = c->heads, F = c->expert_width, E = c->experts, S = c->shared_experts * c->expert_width;
    int i = k->layer;

    add(k, NORM, "input_layernorm.weight", 0, D, 0);
    add(k, PLAIN, "self_attn.q_a_proj.weight", 0, c->q_rank, D);
    add(k, NORM, "self_attn.q_a_layernorm.weight", 0, c->q_rank, 0);
    add(k, COLUMN, "self_attn.q_b_proj.weight", 0, H * (c->nope + c->rope), c->q_rank);
    add(k, PLAIN, "self_attn.kv_a_proj_with_mqa.weight", 0, c->kv_rank + c->rope, D);
    add(k, NORM, "self_attn.kv_a_layernorm.weight", 0, c->kv_rank, 0);
    add(k, COLUMN, "self_attn.kv_b_proj.weight", 0, H * (c->nope + c->v_dim), c->kv_rank);
    add(k, ROW, "self_attn.o_proj.weight", 0, D, H * c->v_dim);
    if (c->indexer[i]) {
        add(k, INDEXER, "self_attn.indexer.wq_b.weight", 0, c->index_heads * c->index_dim, c->q_rank);
        add(k, INDEXER, "self_attn.indexer.wk.weight", 0, c->index_dim, D);
        add(k, INDEXER, "self_attn.indexer.k_norm.weight", 0, c->index_dim, 0);
        add(k, INDEXER, "self_attn.indexer.k_norm.bias", 0, c->index_dim, 0);
        add(k, INDEXER, "self_attn.indexer.weights_proj.weight", 0, c->index_heads, D);
    }
    add(k, NORM, "post_attention_layernorm.weight", 0, D, 0);
    if (c->dense[i]) {
        add(k, COLUMN, "mlp.gate_proj.weight", 0, c->dense_width, D);
        add(k, COLUMN, "mlp.up_proj.weight", 0, c->dense_width, D);
        add(k, ROW, "mlp.down_proj.weight", 0, D, c->dense_width);
        return;
    }
    add(k, ROUTER, "mlp.gate.weight", 0, E, D);
    add(k, BIAS, "mlp.gate.e_score_correction_bias", 0, E, 0);
    add(k, COLUMN, "mlp.experts.gate_proj.weight", E, F, D);
    add(k, COLUMN, "mlp.experts.up_proj.weight", E, F, D);
    add(k, ROW, "mlp.experts.down_proj.weight", E, D, F);
    add(k, COLUMN, "mlp.shared_experts.gate_proj.weight", 0, S, D);
    add(k, COLUMN, "mlp.shared_experts.up_proj.weight", 0, S, D);
    add(k, ROW, "mlp.shared_experts.down_proj.weight", 0, D, S);
}

enum cairn_status cairn_param_table_create(struct cairn_param_table *t, const struct cairn_model_config *c, struct cairn_error *err)
{
    struct maker k = {.t = t, .err = err, .layer = -1};

    k.st = cairn_param_table_begin(t, err);
    if (k.st != CAIRN_OK)
        return k.st;
    add(&k, VOCAB, "model.embed_tokens.weight", 0, c->vocab, c->width);
    for (k.layer = 0; k.layer < c->layers; k.layer++)
        add_layer(&k, c);
    k.layer = -1;
    add(&k, NORM, "model.norm.weight", 0, c->width, 0);
    add(&k, VOCAB, "lm_head.weight", 0, c->vocab, c->width);
    if (k.st == CAIRN_OK)
        k.st = cairn_param_table_finish(t, err);
    if (k.st != CAIRN_OK)
        cairn_param_table_free(t);
    return k.st;
}

/* ---- stores ------------------------------------------------------------------------------------------------------- */

static size_t padded(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Offsets are the table's, scaled to the type; frozen parameters that stay f32 in a narrow store follow behind all others. */
static enum cairn_status store_create(struct cairn_store *out, const struct cairn_param_table *t, struct cairn_device *dev,
                                      int trainable_only, enum cairn_dtype type, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_store s = {.table = t};
    struct cairn_stream stream = {0};
    int streaming = 0;
    struct cairn_tensor all;
    size_t bytes = trainable_only ? t->trainable_bytes : t->bytes, from = trainable_only ? t->trainable_begin : 0;
    size_t size = cairn_dtype_size(type), tail = padded(bytes / 4 * size);
    int64_t words;

    bytes = tail;
    for (int i = 0; i < t->count && type != CAIRN_F32; i++)
        if (t->param[i].keep_f32) {
            if (!t->param[i].frozen)
                return CAIRN_BUG(err, "a trained parameter that stays f32 among narrow ones");
            bytes += padded((size_t)cairn_param_count(&t->param[i]) * 4);
        }
    bytes = bytes ? bytes : ALIGN; /* a table of frozen parameters only still has a buffer */
    words = (int64_t)(bytes / 4);
    s.tensor = calloc((size_t)t->count + 1, sizeof(*s.tensor));
    if (!s.tensor)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_buffer_create(dev, bytes, &s.buf, err));
    for (int i = 0; i < t->count; i++) {
        const struct cairn_param *p = &t->param[i];

        if (trainable_only && p->frozen)
            continue;
        if (p->keep_f32 && type != CAIRN_F32) {
            TRY(cairn_tensor_view(&s.tensor[i], s.buf, tail, CAIRN_F32, p->ndim, p->dim, err));
            tail += padded((size_t)cairn_param_count(p) * 4);
            continue;
        }
        TRY(cairn_tensor_view(&s.tensor[i], s.buf, (p->offset - from) / 4 * size, type, p->ndim, p->dim, err));
    }
    TRY(cairn_tensor_view(&all, s.buf, 0, CAIRN_F32, 1, &words, err));
    words = (int64_t)(t->trainable_bytes / 4);
    if (words)
        TRY(cairn_tensor_view(&s.flat, s.buf, (t->trainable_begin - from) / 4 * size, type, 1, &words, err));
    TRY(cairn_stream_create(dev, &stream, err));
    streaming = 1;
    TRY(cairn_tensor_zero(&stream, &all, err));
    TRY(cairn_stream_wait(&stream, err));
    *out = s;
    memset(&s, 0, sizeof(s));
out:
    if (streaming)
        cairn_stream_destroy(&stream);
    cairn_store_free(&s);
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

void cairn_store_free(struct cairn_store *s)
{
    if (!s)
        return;
    cairn_buffer_destroy(s->buf);
    free(s->tensor);
    free(s->row);
    memset(s, 0, sizeof(*s));
}

static int is_indexer(const char *name)
{
    return strstr(name, ".indexer.") != NULL;
}

enum cairn_status cairn_store_init(struct cairn_store *s, const struct cairn_model_config *c, uint64_t seed, struct cairn_compute *k,
                                   struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    float *h = NULL;
    int64_t most = 0;

    for (int i = 0; i < s->table->count; i++) {
        int64_t n = cairn_param_count(&s->table->param[i]);

        most = n > most ? n : most;
    }
    h = malloc((size_t)most * sizeof(*h));
    if (!h)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < s->table->count; i++) {
        const struct cairn_param *p = &s->table->param[i];
        struct cairn_philox_key key = {seed, CAIRN_PURPOSE_INIT, (uint32_t)name_hash(p->name)};
        int64_t n = cairn_param_count(p);

        if (!s->tensor[i].buf)
            continue;
        if (p->ndim >= 2)
            cairn_normal_fill(h, n, &key, is_indexer(p->name) ? 0.1 : (double)c->init_range);
        else
            for (int64_t j = 0; j < n; j++)
                h[j] = strstr(p->name, "bias") ? 0.0f : 1.0f;
        TRY(cairn_values_set(k, &s->tensor[i], h, n, err));
    }
    TRY(cairn_stream_wait(&k->stream, err));
out:
    free(h);
    return st;
}

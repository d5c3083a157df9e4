/* pass.c - the activation memory of a pass: made once, carved for each number of rows.
 *
 * A pass owns one buffer. Which tensor lies where in it is carved anew whenever the number of rows changes (carve.h): a call of n
 * rows uses views of exactly n rows, so no block ever thinks about room. Per layer, what the backward needs is kept (train), or
 * shares one place (sampling; or recompute, where a layer is run again just before its backward). Logits, wanted by few, have a
 * buffer of their own that grows to the largest number of rows asked for.
 *
 * It binds to the model as it is at creation: stores must stay where they are, what they hold may change.
 */
#include "model/pass_impl.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/planted.h"
#include "model/names.h"

/* ---- memory ----------------------------------------------------------------------------------------------------- */

/* All views for n rows; the same function measures (no buffer) and carves. */
static void carve(struct cairn_pass *p, struct cairn_carve *v, int64_t n)
{
    const struct cairn_model_config *cfg = p->m.config;
    enum cairn_dtype act = p->m.k->act;
    int train = p->o.train, layers = cfg->layers, keep = train && !p->o.recompute;
    struct cairn_tensor *const list[CAIRN_ROW_LISTS] = {&p->id, &p->pos, &p->seq, &p->pool, &p->key_row, &p->want};
    int64_t dt = 0, wide = cairn_layer_width(cfg), routed = 0, at = 0;
    size_t mark;

    for (int i = 0; i < layers; i++)
        routed += !cfg->dense[i];
    p->rows = cairn_carve2(v, CAIRN_I32, CAIRN_ROW_LISTS, cairn_row_pitch(n));
    for (int i = 0; i < CAIRN_ROW_LISTS; i++) {
        *list[i] = cairn_tensor_at(&p->rows, i);
        *list[i] = cairn_tensor_slice(list[i], 0, 0, n);
    }
    p->start = cairn_carve1(v, CAIRN_I32, p->o.max_seqs);
    p->target = cairn_carve1(v, CAIRN_I32, n);
    p->scores = (struct cairn_scores){.logprob = cairn_carve1(v, CAIRN_F32, n), .lse = cairn_carve1(v, CAIRN_F32, n)};
    if (p->o.entropy)
        p->scores.entropy = cairn_carve1(v, CAIRN_F32, n);
    if (p->o.argmax)
        p->scores.argmax = cairn_carve1(v, CAIRN_I32, n);
    if (p->o.experts && routed)
        p->choices = cairn_carve3(v, CAIRN_I32, routed, n, cfg->experts_per_token);
    p->z = cairn_carve2(v, act, n, cfg->width);
    p->rstd = cairn_carve1(v, CAIRN_F32, n);
    if (cfg->streams)
        p->one = cairn_carve2(v, act, n, cfg->width);
    if (train) {
        p->dz = cairn_carve2(v, act, n, cfg->width);
        p->dx = cairn_carve2(v, act, n, wide);
        for (int i = 0; i < layers; i++) {
            int64_t want = cairn_layer_dt(&p->layer[i], cfg, n);

            dt = want > dt ? want : dt;
        }
        p->dt = cairn_carve1(v, act, dt);
    }
    for (int i = 0; i <= layers; i++)
        p->x[i] = train || !i ? cairn_carve2(v, act, n, wide) : p->x[0];
    for (int i = 0; i < p->sets; i++)
        p->idx[i] = train || !i ? cairn_carve2(v, CAIRN_I32, n, p->topk) : p->idx[0];
    mark = v->at;
    for (int i = 0; i < layers; i++) {
        if (!keep)
            v->at = mark;
        cairn_layer_carve_save(v, &p->layer[i], cfg, act, n, train, &p->save[i]);
        if (p->o.experts && !cfg->dense[i]) /* a place of its own: that of the layers' is shared in sampling */
            p->save[i].moe.choice = cairn_tensor_at(&p->choices, at++);
    }
    mark = v->high;
    for (int i = 0; i < layers; i++) {
        v->at = mark;
        cairn_layer_carve_work(v, &p->layer[i], cfg, act, n, p->m.segments, train, &p->work[i]);
    }
}

enum cairn_status cairn_pass_place(struct cairn_pass *p, int64_t n, struct cairn_error *err)
{
    struct cairn_carve v = {.buf = p->buf};

    if (n == p->carved)
        return CAIRN_OK;
    carve(p, &v, n);
    if (v.overflow || v.high > p->buf->bytes)
        return CAIRN_BUG(err, "a pass of fewer rows wants more memory");
    p->carved = n;
    return CAIRN_OK;
}

/* Bytes of a buffer for so many rows of logits: up to a power of two; 0: too many. */
static int logits_room(const struct cairn_pass *p, int64_t rows, int64_t *bytes)
{
    int64_t room = 1;

    while (room < rows)
        room *= 2;
    if (!rows)
        room = 0;
    return cairn_mul_i64(room, p->m.config->vocab, bytes) && cairn_mul_i64(*bytes, (int64_t)sizeof(float), bytes);
}

enum cairn_status cairn_pass_logits(struct cairn_pass *p, int64_t rows, struct cairn_tensor *out, struct cairn_error *err)
{
    int64_t dim[2] = {rows, p->m.config->vocab}, bytes;
    enum cairn_status st = CAIRN_OK;

    if (!p->logits_buf || (int64_t)(p->logits_buf->bytes / sizeof(float)) / dim[1] < rows) {
        if (!logits_room(p, rows ? rows : 1, &bytes))
            return CAIRN_BUG(err, "logits of too many rows");
        TRY(cairn_stream_wait(&p->m.k->stream, err));
        cairn_replay_forget(p->replay); /* what was recorded writes to the old one */
        cairn_buffer_destroy(p->logits_buf);
        p->logits_buf = NULL;
        TRY(cairn_buffer_create(p->m.k->dev, (size_t)bytes, &p->logits_buf, err));
    }
    TRY(cairn_tensor_view(out, p->logits_buf, 0, CAIRN_F32, 2, dim, err));
out:
    return st;
}

/* ---- creation --------------------------------------------------------------------------------------------------- */

/* Every dimension that a tensor-parallel layout would cut must be a multiple of V. */
static enum cairn_status check_segments(const struct cairn_model *m, struct cairn_error *err)
{
    const struct cairn_model_config *c = m->config;
    const struct {
        const char *what;
        int64_t size;
    } cut[] = {
        {"num_attention_heads", c->heads}, {"intermediate_size", c->dense_width}, {"moe_intermediate_size", c->expert_width},
        {"vocab_size", c->vocab},          {"linear_num_heads", c->kda_heads},
    };
    int v = m->segments;

    if (v < 1 || (v & (v - 1)))
        return cairn_fail(err, CAIRN_ERECIPE, "numerics.segments: %d is no power of two", v);
    for (size_t i = 0; i < sizeof cut / sizeof cut[0]; i++)
        if (cut[i].size % v)
            return cairn_fail(err, CAIRN_ERECIPE, "numerics.segments: %d does not divide the model's %s, %lld", v, cut[i].what,
                              (long long)cut[i].size);
    return CAIRN_OK;
}

static int has_lora(const struct cairn_layer *l)
{
    struct cairn_model_config one = {.heads = 1, .experts_per_token = 1};

    return cairn_layer_dt(l, &one, 1) > 0;
}

static enum cairn_status bind(struct cairn_pass *p, struct cairn_error *err)
{
    const struct cairn_model_config *cfg = p->m.config;
    const struct cairn_param_table *table = p->m.weights->table;
    char name[CAIRN_NAME_BYTES];
    enum cairn_status st = CAIRN_OK;

    cairn_name_of_model(cfg, "embed_tokens.weight", name);
    p->embed = cairn_param_find(table, name);
    cairn_name_of_model(cfg, "norm.weight", name);
    p->norm = cairn_param_find(table, name);
    p->head = cairn_param_find(table, "lm_head.weight");
    if (p->embed < 0 || p->norm < 0 || p->head < 0)
        TRY(CAIRN_BUG(err, "the parameter table has no embedding, final norm or head"));
    p->lowest = cfg->layers;
    for (int i = 0; i < cfg->layers; i++) {
        p->sets += cfg->indexer[i];
        if (!p->sets && !cfg->kda[i])
            TRY(CAIRN_BUG(err, "the first layer that attends has no indexer"));
        p->index_of[i] = cairn_planted("shared-index-of-another") && !cfg->indexer[i] && p->sets > 1 ? p->sets - 2
                         : p->sets                                                                   ? p->sets - 1
                                   : 0; /* KDA layers look at none */
        TRY(cairn_layer_bind(&p->layer[i], &p->m, i, err));
        if (p->lowest > i && has_lora(&p->layer[i]))
            p->lowest = i;
    }
out:
    return st;
}

/* Width of index sets. In training no position is beyond max_rows, so that sets of as many (whole pools) hold all. */
static int64_t index_width(const struct cairn_model_config *c, const struct cairn_pass_opts *o)
{
    int64_t m = c->index_pool, rows = (o->max_rows + m - 1) / m * m;

    return (o->train && rows < c->index_topk ? rows : c->index_topk) + m - 1;
}

/* A pass without memory: bound to its model; *bytes is what its buffer needs. Given back by cairn_pass_destroy, also after a
 * failure. */
static enum cairn_status prepare(struct cairn_pass **out, const struct cairn_model *m, const struct cairn_pass_opts *o,
                                 size_t *bytes, struct cairn_error *err)
{
    size_t layers = (size_t)m->config->layers;
    struct cairn_pass *p = NULL;
    struct cairn_carve v = {0};
    enum cairn_status st = CAIRN_OK;

    if (o->max_rows < 1 || o->max_rows > INT32_MAX || o->max_seqs < 1 || (m->adapter && !m->adapter_weights))
        return CAIRN_BUG(err, "pass without rows or sequences, or adapter without weights");
    *out = p = calloc(1, sizeof *p);
    if (!p)
        return CAIRN_NOMEM(err);
    p->m = *m;
    p->o = *o;
    p->carved = -1;
    if (!p->m.segments)
        p->m.segments = 1;
    p->layer = calloc(layers, sizeof *p->layer);
    p->index_of = calloc(layers, sizeof *p->index_of);
    p->x = calloc(layers + 1, sizeof *p->x);
    p->idx = calloc(layers, sizeof *p->idx);
    p->save = calloc(layers, sizeof *p->save);
    p->work = calloc(layers, sizeof *p->work);
    if (!p->layer || !p->index_of || !p->x || !p->idx || !p->save || !p->work)
        TRY(CAIRN_NOMEM(err));
    TRY(check_segments(&p->m, err));
    TRY(bind(p, err));
    p->topk = index_width(m->config, o);
    carve(p, &v, o->max_rows);
    if (v.overflow)
        TRY(cairn_fail(err, CAIRN_ERECIPE, "a pass of %lld rows does not fit any memory", (long long)o->max_rows));
    *bytes = v.high;
out:
    return st;
}

enum cairn_status cairn_pass_create(struct cairn_pass **out, const struct cairn_model *m, const struct cairn_pass_opts *o,
                                    struct cairn_error *err)
{
    struct cairn_pass *p = NULL;
    size_t bytes;
    enum cairn_status st = CAIRN_OK;

    TRY(prepare(&p, m, o, &bytes, err));
    p->h_rows = calloc((size_t)cairn_row_pitch(o->max_rows) * CAIRN_ROW_LISTS, sizeof *p->h_rows);
    p->h_start = calloc((size_t)o->max_seqs, sizeof *p->h_start);
    if (!p->h_rows || !p->h_start)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_buffer_create(m->k->dev, bytes, &p->buf, err));
    if (o->graphs)
        TRY(cairn_replay_create(&p->replay, &m->k->stream, err));
    if (p->replay)
        TRY(cairn_branch_create(&p->branch, m->k, err));
    *out = p;
    p = NULL;
out:
    cairn_pass_destroy(p);
    return st;
}

enum cairn_status cairn_pass_measure(const struct cairn_model *m, const struct cairn_pass_opts *o, int64_t logits, size_t *bytes,
                                     size_t *logits_bytes, struct cairn_error *err)
{
    struct cairn_pass *p = NULL;
    enum cairn_status st = prepare(&p, m, o, bytes, err);
    int64_t n = 0;

    if (st == CAIRN_OK && !logits_room(p, logits, &n))
        st = cairn_fail(err, CAIRN_ERECIPE, "logits of %lld rows do not fit any memory", (long long)logits);
    *logits_bytes = (size_t)n;
    cairn_pass_destroy(p);
    return st;
}

void cairn_pass_destroy(struct cairn_pass *p)
{
    if (!p)
        return;
    cairn_replay_destroy(p->replay);
    cairn_branch_destroy(p->branch);
    cairn_buffer_destroy(p->buf);
    cairn_buffer_destroy(p->logits_buf);
    free(p->layer);
    free(p->index_of);
    free(p->x);
    free(p->idx);
    free(p->save);
    free(p->work);
    free(p->h_rows);
    free(p->h_start);
    free(p);
}

size_t cairn_pass_bytes(const struct cairn_pass *p)
{
    return p->buf->bytes + (p->logits_buf ? p->logits_buf->bytes : 0);
}

struct cairn_tensor cairn_pass_choices(const struct cairn_pass *p)
{
    return p->choices;
}

int64_t cairn_pass_replayed(const struct cairn_pass *p)
{
    return cairn_replay_stats(p->replay).launched;
}

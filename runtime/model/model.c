/* model.c - passes: embedding, layers, head, forward and backward; see model.h.
 *
 * A pass owns one buffer. Which tensor lies where in it is carved anew whenever the number of rows changes (carve.h): a call of n
 * rows uses views of exactly n rows, so no block ever thinks about room. Per layer, what the backward needs is kept (train), or
 * shares one place (sampling; or recompute, where a layer is run again just before its backward). Logits, wanted by few, have a
 * buffer of their own that grows to the largest number of rows asked for.
 *
 * It binds to the model as it is at creation: stores must stay where they are, what they hold may change.
 */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/planted.h"
#include "model/layer.h"
#include "model/names.h"
#include "model/replay.h"

struct cairn_pass {
    struct cairn_model m;
    struct cairn_pass_opts o;
    struct cairn_layer *layer; /* [layers] */
    int embed, norm, head;     /* parameter indexes */
    int lowest;                /* first layer with an adapted matrix (layers: none) */
    int *index_of;             /* [layers] which index set a layer uses */
    int sets;                  /* index sets */
    int64_t topk;              /* width of an index set */

    struct cairn_buffer *buf;
    struct cairn_buffer *logits_buf;                                /* NULL until wanted */
    int64_t carved;                                                 /* rows of the present views, -1 none */
    struct cairn_tensor rows;                                       /* i32 (ROW_LISTS, n or more): the next six, sent as one */
    struct cairn_tensor id, pos, seq, pool, key_row, want, start, target; /* i32 */
    struct cairn_tensor *x;      /* [layers + 1] act (N, J*D): residual before each layer and after the last */
    struct cairn_tensor one;     /* act (N, D): with streams, what they begin as and end in; else absent */
    struct cairn_tensor *idx;    /* [sets] i32 (N, T) */
    struct cairn_tensor z, rstd; /* act (N, D), f32 (N): final norm */
    struct cairn_tensor dz, dx;  /* act (N, D), (N, J*D) */
    struct cairn_tensor dt;      /* act, flat */
    struct cairn_scores scores;
    struct cairn_layer_save *save; /* [layers] */
    struct cairn_layer_work *work; /* [layers] */

    struct cairn_call call; /* of the forward just run */
    int ready;              /* 1: a training forward was run, its backward was not */
    float inv_temperature;
    int32_t *h_rows; /* [ROW_LISTS][row_pitch(max_rows)] host side of `rows` */

    struct cairn_replay *replay; /* of cached forwards; NULL: not wanted, or the device has none */
    struct cairn_branch *branch; /* for what is recorded; NULL: no replay */
};

/* What is known of each row of a call: id, pos, seq, the last whole pool it sees; of cached ones also the row of its key, and (a list
 * of its own) whose logits are wanted. */
enum { ROW_ID, ROW_POS, ROW_SEQ, ROW_POOL, ROW_KEY, ROW_WANT, ROW_LISTS };

static int64_t row_pitch(int64_t n)
{
    return (n + 15) & ~(int64_t)15;
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

/* All views for n rows; the same function measures (no buffer) and carves. */
static void carve(struct cairn_pass *p, struct cairn_carve *v, int64_t n)
{
    const struct cairn_model_config *cfg = p->m.config;
    enum cairn_dtype act = p->m.k->act;
    int train = p->o.train, layers = cfg->layers, keep = train && !p->o.recompute;
    struct cairn_tensor *const list[ROW_LISTS] = {&p->id, &p->pos, &p->seq, &p->pool, &p->key_row, &p->want};
    int64_t dt = 0, wide = cairn_layer_width(cfg);
    size_t mark;

    p->rows = cairn_carve2(v, CAIRN_I32, ROW_LISTS, row_pitch(n));
    for (int i = 0; i < ROW_LISTS; i++) {
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
    }
    mark = v->high;
    for (int i = 0; i < layers; i++) {
        v->at = mark;
        cairn_layer_carve_work(v, &p->layer[i], cfg, act, n, p->m.segments, train, &p->work[i]);
    }
}

static enum cairn_status place(struct cairn_pass *p, int64_t n, struct cairn_error *err)
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

/* f32 (rows, V) in the buffer of logits, which grows by doubling. */
static enum cairn_status logits_view(struct cairn_pass *p, int64_t rows, struct cairn_tensor *out, struct cairn_error *err)
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
        {"num_attention_heads", c->heads},
        {"intermediate_size", c->dense_width},
        {"moe_intermediate_size", c->expert_width},
        {"vocab_size", c->vocab},
        {"linear_num_heads", c->kda_heads},
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
        p->index_of[i] = cairn_planted("shared-index-of-another") && !cfg->indexer[i] && p->sets > 1 ? p->sets - 2 : p->sets ? p->sets - 1 : 0; /* KDA layers look at none */
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

/* A pass without memory: bound to its model; *bytes is what its buffer needs. Given back by cairn_pass_destroy, also after a failure. */
static enum cairn_status prepare(struct cairn_pass **out, const struct cairn_model *m, const struct cairn_pass_opts *o, size_t *bytes,
                                 struct cairn_error *err)
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
    p->h_rows = calloc((size_t)row_pitch(o->max_rows) * ROW_LISTS, sizeof *p->h_rows);
    if (!p->h_rows)
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
    free(p);
}

size_t cairn_pass_bytes(const struct cairn_pass *p)
{
    return p->buf->bytes + (p->logits_buf ? p->logits_buf->bytes : 0);
}

int64_t cairn_pass_replayed(const struct cairn_pass *p)
{
    return cairn_replay_stats(p->replay).launched;
}

/* ---- one call --------------------------------------------------------------------------------------------------- */

static enum cairn_status set_i32(struct cairn_pass *p, const struct cairn_tensor *t, const int32_t *h, int64_t n,
                                 struct cairn_error *err)
{
    struct cairn_tensor view = cairn_tensor_slice(t, 0, 0, n);

    return cairn_tensor_set(&p->m.k->stream, &view, h, (size_t)n * sizeof *h, err);
}

static enum cairn_status check_ids(const struct cairn_pass *p, const int32_t *id, int64_t n, int32_t least, const char *what,
                                   struct cairn_error *err)
{
    for (int64_t i = 0; i < n; i++)
        if (id[i] < least || id[i] >= p->m.config->vocab)
            return cairn_fail(err, CAIRN_EDATA, "%s %d of row %lld is outside the vocabulary of %lld", what, id[i], (long long)i,
                              (long long)p->m.config->vocab);
    return CAIRN_OK;
}

/* Packed: sequences whole, one after the other, positions from 0. */
static enum cairn_status check_packed(const struct cairn_pass *p, const struct cairn_batch *b, struct cairn_error *err)
{
    int64_t row = 0;

    if (b->nseq > p->o.max_seqs)
        return cairn_fail(err, CAIRN_EBUG, "batch of %d sequences in a pass for %d", b->nseq, p->o.max_seqs);
    for (int s = 0; s < b->nseq; s++) {
        if (b->start[s] != row)
            return cairn_fail(err, CAIRN_EBUG, "sequence %d starts at row %d, not %lld", s, b->start[s], (long long)row);
        for (; row < b->n && b->seq[row] == s; row++)
            if (b->pos[row] != row - b->start[s])
                return cairn_fail(err, CAIRN_EBUG, "row %lld has position %d in sequence %d", (long long)row, b->pos[row], s);
    }
    if (row != b->n)
        return cairn_fail(err, CAIRN_EBUG, "row %lld belongs to sequence %d, out of order", (long long)row, b->seq[row]);
    return CAIRN_OK;
}

/* The first `lists` lists of a call's n rows, from the host side to the device. */
static enum cairn_status send_rows(struct cairn_pass *p, const struct cairn_batch *b, int lists, struct cairn_error *err)
{
    const struct cairn_tensor t = cairn_tensor_slice(&p->rows, 0, 0, lists);
    const int32_t *const from[] = {b->id, b->pos, b->seq};

    for (int i = 0; i < 3 && b->n; i++)
        memcpy(p->h_rows + i * row_pitch(b->n), from[i], (size_t)b->n * sizeof *p->h_rows);
    for (int64_t i = 0; i < b->n; i++) {
        int pools = (b->pos[i] + 1) / p->m.config->index_pool;

        p->h_rows[ROW_POOL * row_pitch(b->n) + i] = pools ? pools - 1 : 0;
    }
    return cairn_tensor_set(&p->m.k->stream, &t, p->h_rows, cairn_tensor_bytes(&t), err);
}

static int all_seen(const struct cairn_model_config *c, const struct cairn_batch *b)
{
    for (int64_t i = 0; i < b->n; i++)
        if (b->pos[i] >= c->index_topk) /* of pools: no more than index_topk / index_pool are whole before */
            return 0;
    return 1;
}

/* Everything that both kinds of forward have in common before anything is computed. */
static enum cairn_status begin(struct cairn_pass *p, const struct cairn_batch *b, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    p->ready = 0;
    if (b->n < 0 || b->n > p->o.max_rows)
        return cairn_fail(err, CAIRN_EBUG, "batch of %lld rows in a pass for %lld", (long long)b->n, (long long)p->o.max_rows);
    TRY(check_ids(p, b->id, b->n, 0, "token", err));
    TRY(place(p, b->n, err));
    p->call = (struct cairn_call){.k = p->m.k,
                                  .c = p->m.config,
                                  .act = p->m.k->act,
                                  .segments = p->m.segments,
                                  .n = b->n,
                                  .all_seen = all_seen(p->m.config, b),
                                  .dt = p->dt,
                                  .pool = p->pool,
                                  .keys = {.pos = p->pos, .seq = p->seq}};
out:
    return st;
}

/* Embedding and all layers. */
static enum cairn_status layers(struct cairn_pass *p, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    OP(&p->call, rows, .src = p->m.weights->tensor[p->embed], .src_index = p->id, .dst = p->m.config->streams ? p->one : p->x[0]);
    if (p->m.config->streams)
        TRY(cairn_hyper_spread(&p->call, &p->one, &p->x[0], 1, err));
    for (int i = 0; i < p->m.config->layers; i++)
        TRY(cairn_layer_forward(&p->call, &p->layer[i], &p->x[i], &p->x[i + 1], &p->idx[p->index_of[i]], &p->save[i], &p->work[i],
                                err));
    if (p->m.config->streams)
        TRY(cairn_hyper_sum(&p->call, &p->x[p->m.config->layers], &p->one, 1 / (float)p->m.config->streams, err));
out:
    return st;
}

/* What the final norm takes: the residual, or the mean of its streams. */
static struct cairn_tensor last(const struct cairn_pass *p)
{
    return p->m.config->streams ? p->one : p->x[p->m.config->layers];
}

static enum cairn_status packed(struct cairn_pass *p, const struct cairn_batch *b, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(check_packed(p, b, err));
    TRY(begin(p, b, err));
    TRY(send_rows(p, b, ROW_KEY, err));
    TRY(set_i32(p, &p->start, b->start, b->nseq, err));
    if (cairn_planted("pack-boundary-crossed"))
        TRY(cairn_tensor_zero(&p->m.k->stream, &p->start, err));
    p->call.keys.start = cairn_tensor_slice(&p->start, 0, 0, b->nseq);
    TRY(layers(p, err));
out:
    return st;
}

/* ---- forward ---------------------------------------------------------------------------------------------------- */

/* Final norm, and the log-probabilities of the targets. */
static enum cairn_status scores(struct cairn_pass *p, const int32_t *target, float temperature, struct cairn_scores *out,
                                struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    if (!(temperature > 0))
        return cairn_fail(err, CAIRN_EBUG, "forward at temperature %g", (double)temperature);
    TRY(check_ids(p, target, p->call.n, -1, "target", err));
    TRY(set_i32(p, &p->target, target, p->call.n, err));
    p->inv_temperature = 1 / (cairn_planted("temperature-sampler-only") && p->call.cache ? 1.01f : 1.0f) / temperature;
    OP(&p->call, rmsnorm, .x = last(p), .g = p->m.weights->tensor[p->norm], .y = p->z, .rstd = p->rstd,
       .eps = cairn_planted("final-norm-eps") ? 1e-2f : p->m.config->norm_eps);
    OP(&p->call, logprob, .z = p->z, .w = p->m.weights->tensor[p->head], .target = p->target, .logprob = p->scores.logprob,
       .lse = p->scores.lse, .entropy = p->scores.entropy, .argmax = p->scores.argmax, .inv_temperature = p->inv_temperature,
       .segments = p->m.segments);
    *out = p->scores;
out:
    return st;
}

enum cairn_status cairn_forward(struct cairn_pass *p, const struct cairn_batch *b, const int32_t *target, float temperature,
                                struct cairn_scores *out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(packed(p, b, err));
    TRY(scores(p, target, temperature, out, err));
    p->ready = p->o.train;
out:
    return st;
}

enum cairn_status cairn_forward_logits(struct cairn_pass *p, const struct cairn_batch *b, struct cairn_tensor *logits,
                                       struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(packed(p, b, err));
    OP(&p->call, rmsnorm, .x = last(p), .g = p->m.weights->tensor[p->norm], .y = p->z, .rstd = p->rstd,
       .eps = p->m.config->norm_eps);
    TRY(logits_view(p, b->n, logits, err));
    OP(&p->call, matmul, .form = CAIRN_NT, .x = p->z, .w = p->m.weights->tensor[p->head], .y = *logits, .alpha = 1, .segments = 1);
out:
    return st;
}

/* Rows are sent, with the list of those whose logits are wanted, and keys are to be in the cache; nothing is computed yet. */
static enum cairn_status cached_begin(struct cairn_pass *p, struct cairn_cache *cache, const struct cairn_batch *b, const int32_t *want,
                                int nwant, struct cairn_error *err)
{
    int64_t pitch = row_pitch(b->n);
    enum cairn_status st = CAIRN_OK;

    if (p->o.train)
        return CAIRN_BUG(err, "cached forward in a pass made for training");
    TRY(begin(p, b, err));
    for (int64_t i = 0; i < b->n; i++) {
        int64_t row = cairn_cache_row(cache, b->seq[i], b->pos[i]);

        if (row < 0)
            return cairn_fail(err, CAIRN_EBUG, "row %lld: position %d of cache slot %d is not reserved", (long long)i, b->pos[i],
                              b->seq[i]);
        if (cairn_planted("prefill-chunk-off-by-one") && b->n > 1 && b->pos[i] > 0 && i + 1 < b->n && b->seq[i] == b->seq[i + 1])
            row = cairn_cache_row(cache, b->seq[i], b->pos[i] - 1);
        p->h_rows[ROW_KEY * pitch + i] = (int32_t)row;
    }
    if (nwant)
        memcpy(p->h_rows + ROW_WANT * pitch, want, (size_t)nwant * sizeof *want);
    TRY(send_rows(p, b, ROW_LISTS, err));
    p->call.cache = cache;
    p->call.key_row = p->key_row;
    TRY(cairn_cache_tables(cache, &p->call.keys.pages, &p->call.keys.page, err));
out:
    return st;
}

struct wanted {
    struct cairn_pass *p;
    int n; /* rows of logits */
    struct cairn_tensor logits;
};

/* Layers, then logits of the rows in `want`: all of a cached forward that is computed. */
static enum cairn_status compute_wanted(void *arg, struct cairn_error *err)
{
    const struct wanted *w = arg;
    struct cairn_pass *p = w->p;
    struct cairn_tensor index = cairn_tensor_slice(&p->want, 0, 0, w->n),
                        x = cairn_tensor_slice(&p->save[0].h1, 0, 0, w->n), /* which nobody needs any more */
        z = cairn_tensor_slice(&p->z, 0, 0, w->n), rstd = cairn_tensor_slice(&p->rstd, 0, 0, w->n);
    enum cairn_status st = CAIRN_OK;

    TRY(layers(p, err));
    OP(&p->call, rows, .src = last(p), .src_index = index, .dst = x);
    OP(&p->call, rmsnorm, .x = x, .g = p->m.weights->tensor[p->norm], .y = z, .rstd = rstd, .eps = p->m.config->norm_eps);
    OP(&p->call, matmul, .form = CAIRN_NT, .x = z, .w = p->m.weights->tensor[p->head], .y = w->logits, .alpha = 1, .segments = 1);
out:
    return st;
}

enum cairn_status cairn_forward_cached(struct cairn_pass *p, struct cairn_cache *cache, const struct cairn_batch *b,
                                       const int32_t *want, int nwant, struct cairn_tensor *logits, struct cairn_error *err)
{
    struct wanted w = {.p = p, .n = nwant};
    const struct cairn_tensor *pages = &p->call.keys.pages;
    enum cairn_status st = CAIRN_OK;

    if (nwant < 0 || nwant > b->n)
        return cairn_fail(err, CAIRN_EBUG, "%d rows of logits wanted of %lld", nwant, (long long)b->n);
    for (int i = 0; i < nwant; i++)
        if (want[i] < 0 || want[i] >= b->n)
            return cairn_fail(err, CAIRN_EBUG, "logits of row %d wanted, of %lld", want[i], (long long)b->n);
    TRY(cached_begin(p, cache, b, want, nwant, err));
    TRY(logits_view(p, nwant, &w.logits, err));
    { /* all that the addresses and sizes depend on, in a pass that is bound to its model */
        const struct cairn_replay_key key = {
            {b->n, nwant, (intptr_t)pages->buf->impl, (int64_t)pages->buf->bytes, pages->dim[0], pages->dim[1], p->call.keys.page,
             p->call.all_seen}};

        TRY(cairn_replay_run(p->replay, &key, compute_wanted, &w, err));
    }
    *logits = w.logits;
out:
    return st;
}

enum cairn_status cairn_forward_cached_scores(struct cairn_pass *p, struct cairn_cache *cache, const struct cairn_batch *b,
                                              const int32_t *target, float temperature, struct cairn_scores *out,
                                              struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cached_begin(p, cache, b, NULL, 0, err));
    TRY(layers(p, err));
    TRY(scores(p, target, temperature, out, err));
out:
    return st;
}

/* ---- backward --------------------------------------------------------------------------------------------------- */

/* From p->dx. The row of the padding id has no gradient where the model's own code says so. */
static enum cairn_status embedding_backward(struct cairn_pass *p, const struct cairn_tensor *table, struct cairn_error *err)
{
    const struct cairn_call *c = &p->call;
    struct cairn_tensor dy = p->dx, row;
    enum cairn_status st = CAIRN_OK;

    if (c->c->streams) {
        dy = p->dz;
        TRY(cairn_hyper_sum(c, &p->dx, &dy, 1, err));
    }
    OP(c, embed_bwd, .ids = p->id, .dy = dy, .dtable = *table);
    if (c->c->pad >= 0) {
        row = cairn_tensor_slice(table, 0, c->c->pad, 1);
        TRY(cairn_tensor_zero(&c->k->stream, &row, err));
    }
out:
    return st;
}

enum cairn_status cairn_backward(struct cairn_pass *p, const struct cairn_tensor *dlogprob, const struct cairn_tensor *dentropy,
                                 struct cairn_store *grads, struct cairn_store *adapter_grads, struct cairn_error *err)
{
    struct cairn_call *c = &p->call, again;
    int count = p->m.config->layers, streams = p->m.config->streams, bottom = grads ? 0 : p->lowest;
    enum cairn_status st = CAIRN_OK;

    if (!p->ready)
        return CAIRN_BUG(err, "backward without a training forward before it");
    if (adapter_grads && !p->m.adapter)
        return CAIRN_BUG(err, "adapter gradients of a model without adapter");
    if (dentropy && dentropy->buf && !p->o.entropy)
        return CAIRN_BUG(err, "entropy's gradient in a pass made without entropy");
    p->ready = 0;
    if (!grads && (!adapter_grads || bottom == count))
        return CAIRN_OK;
    c->grads = grads;
    c->adapter_grads = adapter_grads;
    OP(c, logprob_bwd, .z = p->z, .w = p->m.weights->tensor[p->head], .target = p->target, .lse = p->scores.lse,
       .entropy = p->scores.entropy, .dlogprob = *dlogprob, .dentropy = dentropy ? *dentropy : (struct cairn_tensor){0},
       .dz = p->dz, .dw = cairn_call_grad(c, p->head), .inv_temperature = p->inv_temperature, .segments = p->m.segments);
    OP(c, rmsnorm_bwd, .x = last(p), .g = p->m.weights->tensor[p->norm], .rstd = p->rstd, .dy = p->dz, .dx = streams ? p->dz : p->dx,
       .dg = cairn_call_grad(c, p->norm));
    if (streams)
        TRY(cairn_hyper_spread(c, &p->dz, &p->dx, 1 / (float)streams, err));
    for (int i = count - 1; i >= bottom; i--) {
        const struct cairn_tensor *idx = &p->idx[p->index_of[i]];

        if (p->o.recompute) {
            again = *c;
            again.rerun = 1;
            TRY(cairn_layer_forward(&again, &p->layer[i], &p->x[i], &p->x[i + 1], idx, &p->save[i], &p->work[i], err));
        }
        TRY(cairn_layer_backward(c, &p->layer[i], &p->x[i], &p->dx, idx, &p->save[i], &p->work[i], err));
    }
    if (grads && grads->tensor[p->embed].buf)
        TRY(embedding_backward(p, &grads->tensor[p->embed], err));
out:
    return st;
}

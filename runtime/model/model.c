/* model.c - forward and backward: embedding, layers, head, on the memory of a pass (pass.c); see model.h. */
#include "model/pass_impl.h"

#include <string.h>

#include "base/planted.h"

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
        memcpy(p->h_rows + i * cairn_row_pitch(b->n), from[i], (size_t)b->n * sizeof *p->h_rows);
    for (int64_t i = 0; i < b->n; i++) {
        int pools = (b->pos[i] + 1) / p->m.config->index_pool;

        p->h_rows[CAIRN_ROW_POOL * cairn_row_pitch(b->n) + i] = pools ? pools - 1 : 0;
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
    TRY(cairn_pass_place(p, b->n, err));
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
        TRY(cairn_hyper_sum(&p->call, &p->x[p->m.config->layers], &p->one,
                            cairn_planted("streams-not-averaged") ? 1 : 1 / (float)p->m.config->streams, err));
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
    TRY(send_rows(p, b, CAIRN_ROW_KEY, err));
    TRY(set_i32(p, &p->start, b->start, b->nseq, err));
    if (cairn_planted("pack-boundary-crossed"))
        TRY(cairn_tensor_zero(&p->m.k->stream, &p->start, err));
    p->call.keys.start = cairn_tensor_slice(&p->start, 0, 0, b->nseq);
    p->call.nseq = b->nseq, p->call.h_start = p->h_start;
    for (int i = 0; i < b->nseq; i++) {
        int64_t count = (i + 1 < b->nseq ? b->start[i + 1] : b->n) - b->start[i];

        p->h_start[i] = b->start[i];
        p->call.some_whole |= count && count <= p->m.config->index_topk;
    }
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
    TRY(cairn_pass_logits(p, b->n, logits, err));
    OP(&p->call, matmul, .form = CAIRN_NT, .x = p->z, .w = p->m.weights->tensor[p->head], .y = *logits, .alpha = 1, .segments = 1);
out:
    return st;
}

/* Rows are sent, with the list of those whose logits are wanted, and keys are to be in the cache; nothing is computed yet. */
static enum cairn_status cached_begin(struct cairn_pass *p, struct cairn_cache *cache, const struct cairn_batch *b,
                                      const int32_t *want, int nwant, struct cairn_error *err)
{
    int64_t pitch = cairn_row_pitch(b->n);
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
        p->h_rows[CAIRN_ROW_KEY * pitch + i] = (int32_t)row;
    }
    if (nwant)
        memcpy(p->h_rows + CAIRN_ROW_WANT * pitch, want, (size_t)nwant * sizeof *want);
    TRY(send_rows(p, b, CAIRN_ROW_LISTS, err));
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
    TRY(cairn_pass_logits(p, nwant, &w.logits, err));
    { /* all that the addresses and sizes depend on, in a pass that is bound to its model */
        const struct cairn_replay_key key = {{b->n, nwant, (intptr_t)pages->buf->impl, (int64_t)pages->buf->bytes, pages->dim[0],
                                              pages->dim[1], p->call.keys.page, p->call.all_seen}};

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
    const struct cairn_store *both[2] = {grads, adapter_grads};
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
    for (int i = 0; i < 2; i++)
        if (both[i])
            TRY(cairn_store_settle(both[i], 0, &c->k->stream, err));
    OP(c, logprob_bwd, .z = p->z, .w = p->m.weights->tensor[p->head], .target = p->target, .lse = p->scores.lse,
       .entropy = p->scores.entropy, .dlogprob = *dlogprob, .dentropy = dentropy ? *dentropy : (struct cairn_tensor){0},
       .dz = p->dz, .dw = cairn_call_grad(c, p->head), .inv_temperature = p->inv_temperature, .segments = p->m.segments);
    OP(c, rmsnorm_bwd, .x = last(p), .g = p->m.weights->tensor[p->norm], .rstd = p->rstd, .dy = p->dz,
       .dx = streams ? p->dz : p->dx, .dg = cairn_call_grad(c, p->norm));
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
    for (int i = 0; i < 2; i++) /* below the lowest layer */
        if (both[i])
            TRY(cairn_store_settle(both[i], 1, &c->k->stream, err));
out:
    return st;
}

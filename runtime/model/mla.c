/* mla.c - products around the attention op, forward and backward; see mla.h. Formulas: spec sections 5.2, 5.3, 16.
 *
 * Heads are a batch dimension of strided products: kv_b_proj (H * (nope + v), C) is, per head, W_UK (nope, C) above W_UV (v, C),
 * and its LoRA's B is cut the same way. Gradients of what all heads share (key rows, kv_b's A) are sums over heads, which a
 * tensor-parallel layout splits: with segments V > 1 they are made in V parts and added by the fixed tree.
 */
#include "model/mla.h"

#include <math.h>
#include <stdio.h>

#include "base/planted.h"

/* ---- views by head --------------------------------------------------------------------------------------------- */

/* Channels skip .. skip+width of each head: of rows (N, H * per_head), as a batch (H, N, width). */
static struct cairn_tensor by_head(const struct cairn_tensor *t, int64_t n, int64_t heads, int64_t per_head, int64_t skip,
                                   int64_t width)
{
    return cairn_view3(t, skip, heads, per_head, n, heads * per_head, width);
}

/* The same channels as (N, H, width). */
static struct cairn_tensor by_row(const struct cairn_tensor *t, int64_t n, int64_t heads, int64_t per_head, int64_t skip,
                                  int64_t width)
{
    return cairn_view3(t, skip, n, heads * per_head, heads, per_head, width);
}

/* Rows skip .. skip+rows of each head: of a matrix (H * per_head, in), as a batch (H, rows, in). */
static struct cairn_tensor band(const struct cairn_tensor *w, int64_t heads, int64_t per_head, int64_t skip, int64_t rows)
{
    int64_t in = w->dim[1];

    return cairn_view3(w, skip * in, heads, per_head * in, rows, in, in);
}

/* ---- names and memory ------------------------------------------------------------------------------------------ */

static enum cairn_status bind_linear(struct cairn_linear *l, const struct cairn_model *m, const char *prefix, const char *leaf,
                                     enum cairn_linear_cut cut, struct cairn_error *err)
{
    char name[256];

    snprintf(name, sizeof name, "%s%s.weight", prefix, leaf);
    return cairn_linear_bind(l, m, name, cut, err);
}

enum cairn_status cairn_mla_bind(struct cairn_mla *l, const struct cairn_model *m, int layer, const char *prefix,
                                 struct cairn_error *err)
{
    struct cairn_linear norm;
    enum cairn_status st = CAIRN_OK;
    char name[256];

    l->layer = layer;
    TRY(bind_linear(&l->q_a, m, prefix, "q_a_proj", CAIRN_LINEAR_WHOLE, err));
    TRY(bind_linear(&l->q_b, m, prefix, "q_b_proj", CAIRN_LINEAR_OUT, err));
    TRY(bind_linear(&l->kv_a, m, prefix, "kv_a_proj_with_mqa", CAIRN_LINEAR_WHOLE, err));
    TRY(bind_linear(&l->kv_b, m, prefix, "kv_b_proj", CAIRN_LINEAR_OUT, err));
    TRY(bind_linear(&l->o, m, prefix, "o_proj", CAIRN_LINEAR_IN, err));
    TRY(bind_linear(&norm, m, prefix, "q_a_layernorm", CAIRN_LINEAR_WHOLE, err));
    l->q_norm = norm.param;
    l->q_g = norm.w;
    TRY(bind_linear(&norm, m, prefix, "kv_a_layernorm", CAIRN_LINEAR_WHOLE, err));
    l->kv_norm = norm.param;
    l->kv_g = norm.w;
    l->full = m->config->indexer[layer];
    snprintf(name, sizeof name, "%sindexer.", prefix);
    if (l->full)
        TRY(cairn_indexer_bind(&l->indexer, m, name, err));
out:
    return st;
}

void cairn_mla_carve_save(struct cairn_carve *c, const struct cairn_mla *l, const struct cairn_model_config *cfg,
                          enum cairn_dtype act, int64_t n, struct cairn_mla_save *s)
{
    int64_t heads = cfg->heads, wide = cfg->kv_rank + cfg->rope;

    s->q_a = cairn_carve2(c, act, n, cfg->q_rank);
    s->q_lat = cairn_carve2(c, act, n, cfg->q_rank);
    s->q_rstd = cairn_carve1(c, CAIRN_F32, n);
    s->q = cairn_carve2(c, act, n, heads * (cfg->nope + cfg->rope));
    s->kv = cairn_carve2(c, act, n, wide);
    s->kv_rstd = cairn_carve1(c, CAIRN_F32, n);
    s->rows = cairn_carve2(c, act, n, wide);
    s->qk = cairn_carve3(c, act, n, heads, wide);
    s->out = cairn_carve3(c, act, n, heads, cfg->kv_rank);
    s->lse = cairn_carve2(c, CAIRN_F32, n, heads);
    s->o = cairn_carve2(c, act, n, heads * cfg->v_dim);
    s->t_q_a = cairn_linear_carve(c, &l->q_a, act, n);
    s->t_q_b = cairn_linear_carve(c, &l->q_b, act, n);
    s->t_kv_a = cairn_linear_carve(c, &l->kv_a, act, n);
    s->t_o = cairn_linear_carve(c, &l->o, act, n);
    s->t_k = cairn_linear_carve(c, &l->kv_b, act, n * heads);
    s->t_v = cairn_linear_carve(c, &l->kv_b, act, n * heads);
}

void cairn_mla_carve_work(struct cairn_carve *c, const struct cairn_mla *l, const struct cairn_model_config *cfg,
                          enum cairn_dtype act, int64_t n, int segments, int train, struct cairn_mla_work *w)
{
    int64_t heads = cfg->heads, wide = cfg->kv_rank + cfg->rope, per_kv = cfg->nope + cfg->v_dim;
    struct cairn_carve forward = *c;

    if (l->full)
        cairn_indexer_carve_work(&forward, cfg, act, n, &w->indexer);
    if (forward.high > c->high)
        c->high = forward.high;
    c->overflow |= forward.overflow;
    if (!train)
        return;
    w->d_o = cairn_carve2(c, act, n, heads * cfg->v_dim);
    w->dout = cairn_carve3(c, act, n, heads, cfg->kv_rank);
    w->dqk = cairn_carve3(c, act, n, heads, wide);
    w->dq = cairn_carve2(c, act, n, heads * (cfg->nope + cfg->rope));
    w->dq_lat = cairn_carve2(c, act, n, cfg->q_rank);
    w->dq_a = cairn_carve2(c, act, n, cfg->q_rank);
    w->dkv = cairn_carve2(c, act, n, wide);
    w->dk = cairn_carve3(c, CAIRN_F32, segments, n, wide);
    w->kvb = per_kv <= cfg->kv_rank ? cairn_view2(&w->dout, 0, n, heads * per_kv, heads * per_kv)
                                    : cairn_carve2(c, act, n, heads * per_kv);
    w->dkvb = per_kv <= wide ? cairn_view2(&w->dqk, 0, n, heads * per_kv, heads * per_kv) : cairn_carve2(c, act, n, heads * per_kv);
    w->t_kvb = cairn_linear_carve(c, &l->kv_b, act, n);
    if (act != CAIRN_F32)
        w->dk_act = cairn_carve2(c, act, n, wide);
    if (segments > 1) {
        w->lse = cairn_carve2(c, CAIRN_F32, n, heads / segments);
        if (l->kv_b.lora)
            w->da = cairn_carve3(c, CAIRN_F32, heads, l->kv_b.lora->rank, cfg->kv_rank);
    }
}

/* ---- forward --------------------------------------------------------------------------------------------------- */

/* y[h] (+)= alpha x[h] . w[h]^T or . w[h], one product a head. */
static enum cairn_status heads_product(const struct cairn_call *c, enum cairn_form form, struct cairn_tensor x,
                                       struct cairn_tensor w, struct cairn_tensor y, float alpha, int accumulate,
                                       struct cairn_error *err)
{
    return c->k->ops.matmul(
        &c->k->stream,
        &(struct cairn_matmul){.form = form, .x = x, .w = w, .y = y, .alpha = alpha, .accumulate = accumulate, .segments = 1}, err);
}

/* This call's keys [c | k_rope], into s->rows and, with a cache, into it; *rows: where attention finds keys. */
static enum cairn_status keys_forward(const struct cairn_call *c, const struct cairn_mla *l, const struct cairn_tensor *x,
                                      const struct cairn_mla_save *s, struct cairn_tensor *rows, struct cairn_error *err)
{
    const struct cairn_model_config *cfg = c->c;
    int64_t n = c->n, latent = cfg->kv_rank, rope = cfg->rope, wide = latent + rope;
    struct cairn_tensor c_raw = cairn_view2(&s->kv, 0, n, wide, latent), c_row = cairn_view2(&s->rows, 0, n, wide, latent);
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_linear_forward(c, &l->kv_a, NULL, x, &s->kv, 0, &s->t_kv_a, err));
    OP(c, rmsnorm, .x = c_raw,
       .g = cairn_planted("kv-norm-of-q") && latent <= cfg->q_rank ? cairn_tensor_slice(&l->q_g, 0, 0, latent) : l->kv_g,
       .y = c_row, .rstd = s->kv_rstd, .eps = cfg->latent_norm_eps);
    if (rope)
        OP(c, rope, .x = by_row(&s->kv, n, 1, wide, latent, rope), .y = by_row(&s->rows, n, 1, wide, latent, rope),
           .pos = c->keys.pos, .theta = cairn_planted("rope-theta") ? cfg->rope_theta * 1.1f : cfg->rope_theta,
           .inverse = cairn_planted("k-rope-inverse"));
    *rows = s->rows;
    if (c->cache) {
        *rows = cairn_cache_latent_rows(c->cache, l->layer);
        if (!(cairn_planted("cache-layer-not-written") && l->layer == 1))
            OP(c, rows, .src = s->rows, .dst = *rows, .dst_index = c->key_row);
    }
out:
    return st;
}

enum cairn_status cairn_mla_forward(const struct cairn_call *c, const struct cairn_mla *l, const struct cairn_tensor *x,
                                    const struct cairn_tensor *y, const struct cairn_tensor *idx, const struct cairn_mla_save *s,
                                    const struct cairn_mla_work *w, struct cairn_error *err)
{
    const struct cairn_model_config *cfg = c->c;
    int64_t n = c->n, heads = cfg->heads, latent = cfg->kv_rank, rope = cfg->rope, nope = cfg->nope, v = cfg->v_dim;
    int64_t wide = latent + rope, per_q = nope + rope, per_kv = nope + v;
    struct cairn_tensor q_nope = by_head(&s->q, n, heads, per_q, 0, nope), q_lat = by_head(&s->qk, n, heads, wide, 0, latent);
    struct cairn_tensor out = by_head(&s->out, n, heads, latent, 0, latent), o = by_head(&s->o, n, heads, v, 0, v);
    struct cairn_keys keys = c->keys;
    struct cairn_call side;
    const struct cairn_lora *lora = l->kv_b.lora;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_branch_fork(c, &side, err));
    TRY(keys_forward(&side, l, x, s, &keys.rows, err));
    TRY(cairn_linear_forward(c, &l->q_a, NULL, x, &s->q_a, 0, &s->t_q_a, err));
    OP(c, rmsnorm, .x = s->q_a, .g = l->q_g, .y = s->q_lat, .rstd = s->q_rstd, .eps = cfg->latent_norm_eps);
    TRY(cairn_linear_forward(c, &l->q_b, NULL, &s->q_lat, &s->q, 0, &s->t_q_b, err));

    if (l->full && !c->rerun)
        TRY(cairn_indexer_forward(c, &l->indexer, l->layer, x, &s->q_lat, idx, &w->indexer, err));

    TRY(heads_product(c, CAIRN_NN, q_nope, band(&l->kv_b.w, heads, per_kv, 0, nope), q_lat, 1, 0, err));
    if (lora) {
        struct cairn_tensor t = by_head(&s->t_k, n, heads, lora->rank, 0, lora->rank);

        TRY(heads_product(c, CAIRN_NN, q_nope, band(&l->kv_b.b, heads, per_kv, 0, nope), t, 1, 0, err));
        OP(c, matmul, .form = CAIRN_NN, .x = s->t_k, .w = l->kv_b.a, .y = cairn_view2(&s->qk, 0, n * heads, wide, latent),
           .alpha = lora->gamma, .accumulate = 1, .segments = 1);
    }
    if (rope)
        OP(c, rope, .x = by_row(&s->q, n, heads, per_q, nope, rope), .y = by_row(&s->qk, n, heads, wide, latent, rope),
           .pos = c->keys.pos, .theta = cfg->rope_theta);
    TRY(cairn_branch_join(c, &side, err));
    OP(c, attention, .q = s->qk, .idx = *idx, .o = s->out, .lse = s->lse, .keys = keys,
       .scale = 1 / sqrtf((float)(cairn_planted("softmax-scale-of-nope") ? nope : per_q)));
    TRY(heads_product(c, CAIRN_NT, out, band(&l->kv_b.w, heads, per_kv, nope, v), o, 1, 0, err));
    if (lora) {
        OP(c, matmul, .form = CAIRN_NT, .x = cairn_view2(&s->out, 0, n * heads, latent, latent), .w = l->kv_b.a, .y = s->t_v,
           .alpha = 1, .segments = 1);
        TRY(heads_product(c, CAIRN_NT, by_head(&s->t_v, n, heads, lora->rank, 0, lora->rank),
                          band(&l->kv_b.b, heads, per_kv, nope, v), o, cairn_planted("lora-kv-b-values-unscaled") ? 1 : lora->gamma,
                          1, err));
    }
    TRY(cairn_linear_forward(c, &l->o, NULL, &s->o, y, 1, &s->t_o, err));
out:
    return st;
}

/* ---- backward -------------------------------------------------------------------------------------------------- */

/* part[0] = the V parts of t (V, ...) added by the fixed tree. */
static enum cairn_status tree_sum(const struct cairn_call *c, const struct cairn_tensor *t, int64_t parts, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int64_t step = 1; step < parts; step *= 2)
        for (int64_t i = 0; i + step < parts; i += 2 * step)
            OP(c, axpby, .x = cairn_tensor_at(t, i + step), .y = cairn_tensor_at(t, i), .a = 1, .b = 1);
out:
    return st;
}

/* dA (rank, C) += (begun = 0: =) alpha * sum over rows and heads of t (N * H, rank)^T x (N * H, C); xs is x as (H, N, C). */
static enum cairn_status add_grad_a(const struct cairn_call *c, const struct cairn_tensor *da, int begun, float alpha,
                                    const struct cairn_tensor *t, const struct cairn_tensor *x, const struct cairn_tensor *xs,
                                    const struct cairn_mla_work *w, struct cairn_error *err)
{
    int64_t heads = c->c->heads, per = heads / c->segments, rank = t->dim[1];
    struct cairn_tensor parts;
    enum cairn_status st = CAIRN_OK;

    if (c->segments == 1) {
        OP(c, matmul, .form = CAIRN_TN, .x = *t, .w = *x, .y = *da, .alpha = alpha, .accumulate = begun, .segments = 1);
        goto out;
    }
    TRY(heads_product(c, CAIRN_TN, by_head(t, c->n, heads, rank, 0, rank), *xs, w->da, alpha, 0, err));
    for (int64_t h = 0; h < heads; h++)
        if (h % per)
            OP(c, axpby, .x = cairn_tensor_at(&w->da, h), .y = cairn_tensor_at(&w->da, h - h % per), .a = 1, .b = 1);
    parts = cairn_view3(&w->da, 0, c->segments, per * rank * c->c->kv_rank, rank, c->c->kv_rank, c->c->kv_rank);
    TRY(tree_sum(c, &parts, c->segments, err));
    if (!begun)
        TRY(cairn_tensor_zero(&c->k->stream, da, err));
    OP(c, axpby, .x = cairn_tensor_at(&parts, 0), .y = *da, .a = 1, .b = 1);
out:
    return st;
}

/* Is there something in the gradients of kv_b and of its LoRA's B? Values and queries have a band of each. */
struct kv_b_begun {
    int w, b;
};

/* Gradients of o = W_UV out (and its LoRA): w->dout, and kv_b's lower band. */
static enum cairn_status values_backward(const struct cairn_call *c, const struct cairn_mla *l, const struct cairn_mla_save *s,
                                         const struct cairn_mla_work *w, struct kv_b_begun begun, struct cairn_error *err)
{
    const struct cairn_model_config *cfg = c->c;
    int64_t n = c->n, heads = cfg->heads, latent = cfg->kv_rank, v = cfg->v_dim, per_kv = cfg->nope + v;
    struct cairn_tensor d_o = by_head(&w->d_o, n, heads, v, 0, v), dout = by_head(&w->dout, n, heads, latent, 0, latent);
    struct cairn_tensor out = by_head(&s->out, n, heads, latent, 0, latent),
                        flat = cairn_view2(&s->out, 0, n * heads, latent, latent);
    struct cairn_tensor dw = cairn_call_grad(c, l->kv_b.param), da = cairn_linear_grad_a(c, &l->kv_b),
                        db = cairn_linear_grad_b(c, &l->kv_b);
    const struct cairn_lora *lora = l->kv_b.lora;
    enum cairn_status st = CAIRN_OK;

    if (dw.buf)
        TRY(heads_product(c, CAIRN_TN, d_o, out, band(&dw, heads, per_kv, cfg->nope, v), 1, begun.w, err));
    TRY(heads_product(c, CAIRN_NN, d_o, band(&l->kv_b.w, heads, per_kv, cfg->nope, v), dout, 1, 0, err));
    if (lora) {
        struct cairn_tensor dt = cairn_linear_dt(c, &l->kv_b, n * heads);

        if (db.buf)
            TRY(heads_product(c, CAIRN_TN, d_o, by_head(&s->t_v, n, heads, lora->rank, 0, lora->rank),
                              band(&db, heads, per_kv, cfg->nope, v), lora->gamma, begun.b, err));
        TRY(heads_product(c, CAIRN_NN, d_o, band(&l->kv_b.b, heads, per_kv, cfg->nope, v),
                          by_head(&dt, n, heads, lora->rank, 0, lora->rank), lora->gamma, 0, err));
        if (da.buf)
            TRY(add_grad_a(c, &da, cairn_store_begun(c->adapter_grads, lora->a), 1, &dt, &flat, &out, w, err));
        OP(c, matmul, .form = CAIRN_NN, .x = dt, .w = l->kv_b.a, .y = cairn_view2(&w->dout, 0, n * heads, latent, latent),
           .alpha = 1, .accumulate = 1, .segments = 1);
    }
out:
    return st;
}

/* Gradients of q~ = W_UK^T q_nope (and its LoRA) from w->dqk: the nope channels of w->dq (accumulate: +=), and kv_b's upper band.
 */
static enum cairn_status queries_backward(const struct cairn_call *c, const struct cairn_mla *l, const struct cairn_mla_save *s,
                                          const struct cairn_mla_work *w, struct kv_b_begun begun, int accumulate,
                                          struct cairn_error *err)
{
    const struct cairn_model_config *cfg = c->c;
    int64_t n = c->n, heads = cfg->heads, latent = cfg->kv_rank, wide = latent + cfg->rope, nope = cfg->nope;
    int64_t per_q = nope + cfg->rope, per_kv = nope + cfg->v_dim;
    struct cairn_tensor q_nope = by_head(&s->q, n, heads, per_q, 0, nope), dq_nope = by_head(&w->dq, n, heads, per_q, 0, nope);
    struct cairn_tensor dq_lat = by_head(&w->dqk, n, heads, wide, 0, latent),
                        flat = cairn_view2(&w->dqk, 0, n * heads, wide, latent);
    struct cairn_tensor dw = cairn_call_grad(c, l->kv_b.param), da = cairn_linear_grad_a(c, &l->kv_b),
                        db = cairn_linear_grad_b(c, &l->kv_b);
    const struct cairn_lora *lora = l->kv_b.lora;
    enum cairn_status st = CAIRN_OK;

    if (dw.buf)
        TRY(heads_product(c, CAIRN_TN, q_nope, dq_lat, band(&dw, heads, per_kv, 0, nope), 1, begun.w, err));
    TRY(heads_product(c, CAIRN_NT, dq_lat, band(&l->kv_b.w, heads, per_kv, 0, nope), dq_nope, 1, accumulate, err));
    if (lora) {
        struct cairn_tensor dt = cairn_linear_dt(c, &l->kv_b, n * heads), dts = by_head(&dt, n, heads, lora->rank, 0, lora->rank);

        OP(c, matmul, .form = CAIRN_NT, .x = flat, .w = l->kv_b.a, .y = dt, .alpha = lora->gamma, .segments = 1);
        if (db.buf)
            TRY(heads_product(c, CAIRN_TN, q_nope, dts, band(&db, heads, per_kv, 0, nope), 1, begun.b, err));
        TRY(heads_product(c, CAIRN_NT, dts, band(&l->kv_b.b, heads, per_kv, 0, nope), dq_nope, 1, 1, err));
        if (da.buf)
            TRY(add_grad_a(c, &da, cairn_store_begun(c->adapter_grads, lora->a), lora->gamma, &s->t_k, &flat, &dq_lat, w, err));
    }
out:
    return st;
}

/* The attention op's backward: w->dqk, and w->dk (0) +=, whose sum over heads runs in segments. */
static enum cairn_status attention_backward(const struct cairn_call *c, const struct cairn_tensor *idx,
                                            const struct cairn_mla_save *s, const struct cairn_mla_work *w, struct cairn_error *err)
{
    int64_t heads = c->c->heads, per = heads / c->segments;
    float scale = 1 / sqrtf((float)(c->c->nope + c->c->rope));
    struct cairn_keys keys = c->keys;
    enum cairn_status st = CAIRN_OK;

    keys.rows = s->rows;
    if (c->segments == 1) {
        OP(c, attention_bwd, .q = s->qk, .idx = *idx, .o = s->out, .lse = s->lse, .d_o = w->dout, .dq = w->dqk,
           .dk = cairn_tensor_at(&w->dk, 0), .keys = keys, .scale = scale, .all_seen = c->all_seen);
        goto out;
    }
    for (int i = 0; i < c->segments; i++) {
        OP(c, rows, .src = cairn_tensor_slice(&s->lse, 1, i * per, per), .dst = w->lse);
        OP(c, attention_bwd, .q = cairn_tensor_slice(&s->qk, 1, i * per, per), .idx = *idx,
           .o = cairn_tensor_slice(&s->out, 1, i * per, per), .lse = w->lse, .d_o = cairn_tensor_slice(&w->dout, 1, i * per, per),
           .dq = cairn_tensor_slice(&w->dqk, 1, i * per, per), .dk = cairn_tensor_at(&w->dk, i), .keys = keys, .scale = scale,
           .all_seen = c->all_seen);
    }
    TRY(tree_sum(c, &w->dk, c->segments, err));
out:
    return st;
}

/* Is there a sequence whose backward runs in the heads' own space? */
static int in_heads(const struct cairn_call *c)
{
    const struct cairn_backend *b = c->k->backend;

    return c->some_whole && c->segments == 1 && c->k->ops.attention_heads_bwd && b->attention_heads_fits &&
           b->attention_heads_fits(c->k->dev, c->act, (int)c->c->nope, (int)c->c->rope, (int)c->c->v_dim);
}

/* All of such sequences behind w->d_o: their rows of w->dq (rope channels rotated), w->dk +=, kv_b's gradients. Others' rows of dq
 * stay. */
static enum cairn_status heads_backward(const struct cairn_call *c, const struct cairn_mla *l, const struct cairn_mla_save *s,
                                        const struct cairn_mla_work *w, struct cairn_error *err)
{
    const struct cairn_model_config *cfg = c->c;
    int64_t n = c->n, heads = cfg->heads, latent = cfg->kv_rank, rope = cfg->rope, nope = cfg->nope, v = cfg->v_dim;
    int64_t wide = latent + rope, per_q = nope + rope, per_kv = nope + v;
    struct cairn_tensor c_row = cairn_view2(&s->rows, 0, n, wide, latent), dk = cairn_tensor_at(&w->dk, 0),
                        dc = cairn_view2(&dk, 0, n, wide, latent);
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_linear_forward(c, &l->kv_b, NULL, &c_row, &w->kvb, 0, &w->t_kvb, err));
    OP(c, attention_heads_bwd, .q_nope = by_row(&s->q, n, heads, per_q, 0, nope),
       .q_rope = by_row(&s->qk, n, heads, wide, latent, rope), .k_nope = by_row(&w->kvb, n, heads, per_kv, 0, nope),
       .k_rope = cairn_view2(&s->rows, latent, n, wide, rope), .v = by_row(&w->kvb, n, heads, per_kv, nope, v),
       .o = by_row(&s->o, n, heads, v, 0, v), .lse = s->lse, .d_o = by_row(&w->d_o, n, heads, v, 0, v),
       .dq = by_row(&w->dq, n, heads, per_q, 0, per_q), .dk_nope = by_row(&w->dkvb, n, heads, per_kv, 0, nope),
       .dk_rope = cairn_view2(&dk, latent, n, wide, rope), .dv = by_row(&w->dkvb, n, heads, per_kv, nope, v),
       .start = c->keys.start, .longest = (int)cfg->index_topk, .scale = 1 / sqrtf((float)per_q));
    TRY(cairn_linear_backward(c, &l->kv_b, NULL, &c_row, &w->t_kvb, &w->dkvb, &dc, 1, err));
out:
    return st;
}

/* Zero in the rows of sequences that heads_backward has done: so that they give nothing once more. */
static enum cairn_status leave_whole(const struct cairn_call *c, const struct cairn_tensor *t, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int b = 0; b < c->nseq; b++) {
        int64_t begin = c->h_start[b], count = (b + 1 < c->nseq ? c->h_start[b + 1] : c->n) - begin;
        struct cairn_tensor rows = cairn_tensor_slice(t, 0, begin, count);

        if (count && count <= c->c->index_topk)
            TRY(cairn_tensor_zero(&c->k->stream, &rows, err));
    }
out:
    return st;
}

/* From w->d_o: w->dq (rope channels rotated back), w->dk, and kv_b's gradients. A sequence that is done in the heads' own space is
 * a zero in the latent form, which adds to it: the same bits whether there is one of the other kind in the call or not. */
static enum cairn_status inner_backward(const struct cairn_call *c, const struct cairn_mla *l, const struct cairn_tensor *idx,
                                        const struct cairn_mla_save *s, const struct cairn_mla_work *w, struct cairn_error *err)
{
    const struct cairn_model_config *cfg = c->c;
    int64_t n = c->n, heads = cfg->heads, rope = cfg->rope, wide = cfg->kv_rank + rope, per_q = cfg->nope + rope;
    struct cairn_tensor turned = by_row(&w->dq, n, heads, per_q, cfg->nope, rope), from = turned;
    int own = in_heads(c), latent = !own || !c->all_seen;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_tensor_zero(&c->k->stream, &w->dk, err));
    if (own && latent)
        TRY(cairn_tensor_zero(&c->k->stream, &w->dq, err));
    if (own)
        TRY(heads_backward(c, l, s, w, err));
    if (own && latent)
        TRY(leave_whole(c, &w->d_o, err));
    if (latent) {
        struct kv_b_begun begun = {cairn_store_begun(c->grads, l->kv_b.param), 1};

        if (l->kv_b.lora)
            begun.b = cairn_store_begun(c->adapter_grads, l->kv_b.lora->b);
        TRY(values_backward(c, l, s, w, begun, err));
        TRY(attention_backward(c, idx, s, w, err));
        TRY(queries_backward(c, l, s, w, begun, own, err));
        from = by_row(&w->dqk, n, heads, wide, cfg->kv_rank, rope);
    }
    if (rope && own && latent)
        OP(c, axpby, .x = turned, .y = from, .a = 1, .b = 1);
    if (rope)
        OP(c, rope, .x = from, .y = turned, .pos = c->keys.pos, .theta = cfg->rope_theta, .inverse = 1);
out:
    return st;
}

enum cairn_status cairn_mla_backward(const struct cairn_call *c, const struct cairn_mla *l, const struct cairn_tensor *x,
                                     const struct cairn_tensor *dy, const struct cairn_tensor *dx, const struct cairn_tensor *idx,
                                     const struct cairn_mla_save *s, const struct cairn_mla_work *w, struct cairn_error *err)
{
    const struct cairn_model_config *cfg = c->c;
    int64_t n = c->n, latent = cfg->kv_rank, rope = cfg->rope, wide = latent + rope;
    struct cairn_tensor c_raw = cairn_view2(&s->kv, 0, n, wide, latent), dk = cairn_tensor_at(&w->dk, 0);
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_linear_backward(c, &l->o, NULL, &s->o, &s->t_o, dy, &w->d_o, 0, err));
    TRY(inner_backward(c, l, idx, s, w, err));
    TRY(cairn_linear_backward(c, &l->q_b, NULL, &s->q_lat, &s->t_q_b, &w->dq, &w->dq_lat, 0, err));
    OP(c, rmsnorm_bwd, .x = s->q_a, .g = l->q_g, .rstd = s->q_rstd, .dy = w->dq_lat, .dx = w->dq_a,
       .dg = cairn_call_grad(c, l->q_norm));
    TRY(cairn_linear_backward(c, &l->q_a, NULL, x, &s->t_q_a, &w->dq_a, dx, 0, err));

    if (c->act != CAIRN_F32) {
        OP(c, cast, .src = dk, .dst = w->dk_act, .round_to = -1);
        dk = w->dk_act;
    }
    OP(c, rmsnorm_bwd, .x = c_raw, .g = l->kv_g, .rstd = s->kv_rstd, .dy = cairn_view2(&dk, 0, n, wide, latent),
       .dx = cairn_view2(&w->dkv, 0, n, wide, latent), .dg = cairn_call_grad(c, l->kv_norm));
    if (rope)
        OP(c, rope, .x = by_row(&dk, n, 1, wide, latent, rope), .y = by_row(&w->dkv, n, 1, wide, latent, rope), .pos = c->keys.pos,
           .theta = cfg->rope_theta, .inverse = 1);
    TRY(cairn_linear_backward(c, &l->kv_a, NULL, x, &s->t_kv_a, &w->dkv, dx, 1, err));
out:
    return st;
}

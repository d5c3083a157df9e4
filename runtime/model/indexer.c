/* indexer.c - the lightning indexer of DeepSeek-V3.2 with GLM's interleaved RoPE; see indexer.h.
 *
 * Rope channels come first in each head (the main attention has them last). Hi^(-1/2) goes into w, Di^(-1/2) into the scores.
 */
#include "model/indexer.h"

#include <math.h>
#include <stdio.h>

#include "base/planted.h"

#define KEY_NORM_EPS 1e-6f /* of the key's LayerNorm, in every implementation */

static enum cairn_status find(struct cairn_tensor *out, const struct cairn_model *m, const char *prefix, const char *leaf,
                              struct cairn_error *err)
{
    char name[256];
    int p;

    snprintf(name, sizeof name, "%s%s", prefix, leaf);
    p = cairn_param_find(m->weights->table, name);
    if (p < 0)
        return cairn_fail(err, CAIRN_EBUG, "the parameter table has no %s", name);
    *out = m->weights->tensor[p];
    return CAIRN_OK;
}

enum cairn_status cairn_indexer_bind(struct cairn_indexer *l, const struct cairn_model *m, const char *prefix,
                                     struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(find(&l->wq_b, m, prefix, "wq_b.weight", err));
    TRY(find(&l->wk, m, prefix, "wk.weight", err));
    TRY(find(&l->norm_g, m, prefix, "k_norm.weight", err));
    TRY(find(&l->norm_b, m, prefix, "k_norm.bias", err));
    TRY(find(&l->weights, m, prefix, "weights_proj.weight", err));
    l->ape = l->gate = (struct cairn_tensor){0};
    if (m->config->arch != CAIRN_ARCH_GLM5_NEXT)
        goto out;
    TRY(find(&l->ape, m, prefix, "index_kpool_compress_ape", err));
    TRY(find(&l->gate, m, prefix, "index_kpool_compress_gate", err));
out:
    return st;
}

void cairn_indexer_carve_work(struct cairn_carve *c, const struct cairn_model_config *cfg, enum cairn_dtype act, int64_t n,
                              struct cairn_indexer_work *w)
{
    w->q = cairn_carve2(c, act, n, cfg->index_heads * cfg->index_dim);
    w->raw = cairn_carve2(c, act, n, cfg->index_dim);
    w->k = cairn_carve2(c, act, n, cfg->index_dim);
    w->w = cairn_carve2(c, CAIRN_F32, n, cfg->index_heads);
    if (cfg->arch != CAIRN_ARCH_GLM5_NEXT)
        return;
    w->gate = cairn_carve2(c, act, n, cfg->index_dim);
    w->pools = cairn_carve2(c, act, n, cfg->index_dim);
    w->choice = cairn_carve2(c, CAIRN_I32, n, cfg->index_topk / cfg->index_pool);
}

/* Pools of the keys in w->k: their keys into the cache or w->pools, the best of them into w->choice, their tokens into idx. w->q and w->w
 * are there. */
static enum cairn_status choose_pools(const struct cairn_call *c, const struct cairn_indexer *l, int layer, const struct cairn_tensor *q,
                                      const struct cairn_tensor *x, const struct cairn_tensor *idx, const struct cairn_indexer_work *w,
                                      struct cairn_error *err)
{
    const struct cairn_model_config *cfg = c->c;
    int m = cfg->index_pool;
    int64_t topk = (idx->dim[1] - (m - 1)) / m;
    struct cairn_tensor choice = cairn_view2(&w->choice, 0, c->n, topk, topk), tail = {0};
    struct cairn_keys keys = c->keys; /* packed: pool p of a sequence lies p rows behind its first row */
    enum cairn_status st = CAIRN_OK;

    OP(c, matmul, .form = CAIRN_NT, .x = *x, .w = l->gate, .y = w->gate, .alpha = 1, .segments = 1);
    keys.rows = w->pools;
    if (c->cache) {
        keys.rows = cairn_cache_index_rows(c->cache, layer);
        keys.page /= m;
        tail = cairn_cache_pool_tail(c->cache, layer);
    }
    OP(c, pool_keys, .k = w->k, .gate = w->gate, .ape = l->ape, .tail = tail, .keys = keys);
    keys.pos = c->pool;
    OP(c, index, .q = *q, .w = w->w, .idx = choice, .keys = keys, .scale = 1 / sqrtf((float)cfg->index_dim));
    OP(c, pool_expand, .choice = choice, .pos = c->keys.pos, .idx = *idx, .m = m);
out:
    return st;
}

/* What scores are made of besides keys: queries and the weights of heads, into w->q and w->w. */
static enum cairn_status scored(const struct cairn_call *c, const struct cairn_indexer *l, const struct cairn_tensor *x,
                                const struct cairn_tensor *q_lat, const struct cairn_tensor *q_rope, const struct cairn_indexer_work *w,
                                struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    OP(c, matmul, .form = CAIRN_NT, .x = *q_lat, .w = l->wq_b, .y = w->q, .alpha = 1, .segments = 1);
    if (c->c->rope)
        OP(c, rope, .x = *q_rope, .y = *q_rope, .pos = c->keys.pos, .theta = c->c->rope_theta);
    OP(c, matmul, .form = CAIRN_NT, .x = *x, .w = l->weights, .y = w->w, .alpha = 1 / sqrtf((float)c->c->index_heads), .segments = 1);
out:
    return st;
}

enum cairn_status cairn_indexer_forward(const struct cairn_call *c, const struct cairn_indexer *l, int layer,
                                        const struct cairn_tensor *x, const struct cairn_tensor *q_lat,
                                        const struct cairn_tensor *idx, const struct cairn_indexer_work *w, struct cairn_error *err)
{
    const struct cairn_model_config *cfg = c->c;
    int64_t n = c->n, heads = cfg->index_heads, dim = cfg->index_dim, rope = cfg->rope;
    struct cairn_tensor q = cairn_view3(&w->q, 0, n, heads * dim, heads, dim, dim);
    struct cairn_tensor q_rope = cairn_view3(&w->q, cairn_planted("index-rope-channels-last") ? dim - rope : 0, n, heads * dim, heads, dim, rope);
    struct cairn_tensor k_rope = cairn_view3(&w->k, 0, n, dim, 1, dim, rope);
    struct cairn_keys keys = c->keys;
    enum cairn_status st = CAIRN_OK;

    OP(c, matmul, .form = CAIRN_NT, .x = *x, .w = l->wk, .y = w->raw, .alpha = 1, .segments = 1);
    OP(c, layernorm, .x = w->raw, .g = l->norm_g, .b = l->norm_b, .y = w->k, .eps = cairn_planted("index-norm-eps") ? 0.5f : KEY_NORM_EPS);
    if (rope && !cairn_planted("index-key-not-rotated"))
        OP(c, rope, .x = k_rope, .y = k_rope, .pos = c->keys.pos, .theta = cfg->rope_theta);
    if (!c->all_seen)
        TRY(scored(c, l, x, q_lat, &q_rope, w, err));
    if (l->gate.buf) {
        TRY(choose_pools(c, l, layer, &q, x, idx, w, err));
        goto out;
    }
    keys.rows = w->k;
    if (c->cache) {
        keys.rows = cairn_cache_index_rows(c->cache, layer);
        OP(c, rows, .src = cairn_planted("index-cache-raw") ? w->raw : w->k, .dst = keys.rows, .dst_index = c->key_row);
    }
    OP(c, index, .q = q, .w = w->w, .idx = *idx, .keys = keys, .scale = 1 / sqrtf((float)dim));
out:
    return st;
}

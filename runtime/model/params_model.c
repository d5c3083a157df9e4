/* params_model.c - which tensors a model has, in what order, how ranks may cut them; and random first values.
 *
 * Cuts follow the usual tensor parallelism (arXiv:1909.08053): a pair of products is cut by output, then by input; embedding and
 * head by vocabulary; experts by expert; what belongs to KDA's heads with the heads. Router, indexer, latents, hyper-connections and
 * norms are everywhere. Names are those of the published checkpoints, not of the libraries that read them (names.h).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/str.h"
#include "model/names.h"
#include "model/normal.h"
#include "model/params.h"
#include "model/values.h"

/* ---- the table ---------------------------------------------------------------------------------------------------- */

/* COLUMN, ROW: products cut by output, by input. HEADS: values of KDA's heads, along dimension 0; CONSTANT: small values that stay
 * f32 but are trained; BIAS: the same, frozen. */
enum kind { NORM, ROUTER, BIAS, INDEXER, COLUMN, ROW, PLAIN, VOCAB, TAPS, HEADS, MIX, CONSTANT };

struct maker {
    struct cairn_param_table *t;
    const struct cairn_model_config *c;
    struct cairn_error *err;
    enum cairn_status st; /* the first failure */
    int layer;
};

static void finish(struct maker *k, struct cairn_param *p, enum kind kind)
{
    int e = p->experts;

    p->tp = kind == COLUMN                            ? (e ? CAIRN_CUT_DIM1 : CAIRN_CUT_DIM0)
            : kind == ROW                             ? (e ? CAIRN_CUT_DIM2 : CAIRN_CUT_DIM1)
            : kind == VOCAB || kind == TAPS || kind == HEADS ? CAIRN_CUT_DIM0
                                                      : CAIRN_CUT_NONE;
    p->ep = e ? CAIRN_CUT_DIM0 : CAIRN_CUT_NONE;
    p->keep_f32 = kind == BIAS || kind == HEADS || kind == CONSTANT;
    p->frozen = kind == BIAS || kind == INDEXER;
    p->decay = p->ndim > 1 && kind != TAPS && !p->frozen;
    p->adaptable = kind == COLUMN || kind == ROW || kind == PLAIN;
    p->product = p->adaptable || kind == ROUTER;
    k->st = cairn_param_table_add(k->t, p, k->err);
}

/* Adds one tensor of a layer (or, outside of the layers, under its whole name); b = 0: one dimension. Does nothing after a failure. */
static void add(struct maker *k, enum kind kind, const char *suffix, int64_t a, int64_t b)
{
    char name[CAIRN_NAME_BYTES];
    struct cairn_param p = {.name = name, .layer = k->layer, .ndim = b ? 2 : 1, .dim = {a, b}};

    if (k->st != CAIRN_OK)
        return;
    if (k->layer >= 0)
        cairn_name_of_layer(k->c, k->layer, suffix, name);
    else
        snprintf(name, sizeof name, "%s", suffix);
    finish(k, &p, kind);
}

/* The same with three dimensions: all experts of a projection, or the taps of a convolution. */
static void add3(struct maker *k, enum kind kind, const char *suffix, int64_t a, int64_t b, int64_t d)
{
    char name[CAIRN_NAME_BYTES];
    struct cairn_param p = {.name = name, .layer = k->layer, .ndim = 3, .dim = {a, b, d}, .experts = kind != TAPS};

    if (k->st != CAIRN_OK)
        return;
    cairn_name_of_layer(k->c, k->layer, suffix, name);
    finish(k, &p, kind);
}

static void add_hyper(struct maker *k, const char *site)
{
    int64_t n = k->c->streams;
    char fn[32], base[32], scale[32];

    if (!n)
        return;
    snprintf(fn, sizeof fn, "hc_%s_fn", site);
    snprintf(base, sizeof base, "hc_%s_base", site);
    snprintf(scale, sizeof scale, "hc_%s_scale", site);
    add(k, MIX, fn, (2 + n) * n, n * k->c->width);
    add(k, CONSTANT, base, (2 + n) * n, 0);
    add(k, CONSTANT, scale, 3, 0);
}

static void add_kda(struct maker *k)
{
    const struct cairn_model_config *c = k->c;
    int64_t D = c->width, d = c->kda_dim, P = c->kda_heads * d;

    add(k, COLUMN, "self_attn.q_proj.weight", P, D);
    add(k, COLUMN, "self_attn.k_proj.weight", P, D);
    add(k, COLUMN, "self_attn.v_proj.weight", P, D);
    add3(k, TAPS, "self_attn.q_conv1d.weight", P, 1, c->kda_conv);
    add3(k, TAPS, "self_attn.k_conv1d.weight", P, 1, c->kda_conv);
    add3(k, TAPS, "self_attn.v_conv1d.weight", P, 1, c->kda_conv);
    add(k, PLAIN, "self_attn.f_a_proj.weight", d, D);
    add(k, COLUMN, "self_attn.f_b_proj.weight", P, d);
    add(k, HEADS, "self_attn.A_log", c->kda_heads, 0);
    add(k, HEADS, "self_attn.dt_bias", P, 0);
    add(k, COLUMN, "self_attn.b_proj.weight", c->kda_heads, D);
    add(k, PLAIN, "self_attn.g_a_proj.weight", d, D);
    add(k, COLUMN, "self_attn.g_b_proj.weight", P, d);
    add(k, NORM, "self_attn.o_norm.weight", d, 0);
    add(k, ROW, "self_attn.o_proj.weight", D, P);
}

static void add_mla(struct maker *k)
{
    const struct cairn_model_config *c = k->c;
    int64_t D = c->width, H = c->heads;

    add(k, PLAIN, "self_attn.q_a_proj.weight", c->q_rank, D);
    add(k, NORM, "self_attn.q_a_layernorm.weight", c->q_rank, 0);
    add(k, COLUMN, "self_attn.q_b_proj.weight", H * (c->nope + c->rope), c->q_rank);
    add(k, PLAIN, "self_attn.kv_a_proj_with_mqa.weight", c->kv_rank + c->rope, D);
    add(k, NORM, "self_attn.kv_a_layernorm.weight", c->kv_rank, 0);
    add(k, COLUMN, "self_attn.kv_b_proj.weight", H * (c->nope + c->v_dim), c->kv_rank);
    add(k, ROW, "self_attn.o_proj.weight", D, H * c->v_dim);
    if (!c->indexer[k->layer])
        return;
    add(k, INDEXER, "self_attn.indexer.wq_b.weight", c->index_heads * c->index_dim, c->q_rank);
    add(k, INDEXER, "self_attn.indexer.wk.weight", c->index_dim, D);
    add(k, INDEXER, "self_attn.indexer.k_norm.weight", c->index_dim, 0);
    add(k, INDEXER, "self_attn.indexer.k_norm.bias", c->index_dim, 0);
    add(k, INDEXER, "self_attn.indexer.weights_proj.weight", c->index_heads, D);
    if (c->arch != CAIRN_ARCH_GLM5_NEXT)
        return;
    add(k, INDEXER, "self_attn.indexer.index_kpool_compress_ape", c->index_pool, c->index_dim);
    add(k, INDEXER, "self_attn.indexer.index_kpool_compress_gate", c->index_dim, D);
}

static void add_mlp(struct maker *k)
{
    const struct cairn_model_config *c = k->c;
    int64_t D = c->width, F = c->expert_width, E = c->experts, S = c->shared_experts * c->expert_width;

    if (c->dense[k->layer]) {
        add(k, COLUMN, "mlp.gate_proj.weight", c->dense_width, D);
        add(k, COLUMN, "mlp.up_proj.weight", c->dense_width, D);
        add(k, ROW, "mlp.down_proj.weight", D, c->dense_width);
        return;
    }
    add(k, ROUTER, "mlp.gate.weight", E, D);
    add(k, BIAS, "mlp.gate.e_score_correction_bias", E, 0);
    add3(k, COLUMN, "mlp.experts.gate_proj.weight", E, F, D);
    add3(k, COLUMN, "mlp.experts.up_proj.weight", E, F, D);
    add3(k, ROW, "mlp.experts.down_proj.weight", E, D, F);
    add(k, COLUMN, "mlp.shared_experts.gate_proj.weight", S, D);
    add(k, COLUMN, "mlp.shared_experts.up_proj.weight", S, D);
    add(k, ROW, "mlp.shared_experts.down_proj.weight", D, S);
}

static void add_layer(struct maker *k)
{
    add_hyper(k, "attn");
    add(k, NORM, "input_layernorm.weight", k->c->width, 0);
    if (k->c->kda[k->layer])
        add_kda(k);
    else
        add_mla(k);
    add_hyper(k, "ffn");
    add(k, NORM, "post_attention_layernorm.weight", k->c->width, 0);
    add_mlp(k);
}

enum cairn_status cairn_param_table_create(struct cairn_param_table *t, const struct cairn_model_config *c, struct cairn_error *err)
{
    struct maker k = {.t = t, .c = c, .err = err, .layer = -1};
    char name[CAIRN_NAME_BYTES];

    k.st = cairn_param_table_begin(t, err);
    if (k.st != CAIRN_OK)
        return k.st;
    cairn_name_of_model(c, "embed_tokens.weight", name);
    add(&k, VOCAB, name, c->vocab, c->width);
    for (k.layer = 0; k.layer < c->layers; k.layer++)
        add_layer(&k);
    k.layer = -1;
    cairn_name_of_model(c, "norm.weight", name);
    add(&k, NORM, name, c->width, 0);
    add(&k, VOCAB, "lm_head.weight", c->vocab, c->width);
    if (k.st == CAIRN_OK)
        k.st = cairn_param_table_finish(t, err);
    if (k.st != CAIRN_OK)
        cairn_param_table_free(t);
    return k.st;
}

/* ---- first values --------------------------------------------------------------------------------------------------- */

/* x[i] = low + (high - low) u, with uniform number i mod 4 of Philox (key; i / 4). */
static void uniform_fill(float *x, int64_t n, const struct cairn_philox_key *key, double low, double high)
{
    for (int64_t i = 0; i < n; i += 4) {
        uint64_t block = (uint64_t)i / 4;
        uint32_t w[4];

        cairn_philox(key, (uint32_t)block, (uint32_t)(block >> 32), 0, w);
        for (int64_t j = 0; j < 4 && i + j < n; j++)
            x[i + j] = (float)(low + (high - low) * (double)cairn_uniform(w[j]));
    }
}

/* The inverse of softplus at a step of time that is log-uniform between 1e-3 and 1e-1. */
static void fill_dt_bias(float *x, int64_t n, const struct cairn_philox_key *key)
{
    uniform_fill(x, n, key, log(1e-3), log(1e-1));
    for (int64_t i = 0; i < n; i++) {
        double dt = fmax(exp((double)x[i]), 1e-4);

        x[i] = (float)(dt + log(-expm1(-dt)));
    }
}

static void first_values(const struct cairn_param *p, const struct cairn_model_config *c, uint64_t seed, float *x, int64_t n)
{
    struct cairn_philox_key key = {seed, CAIRN_PURPOSE_INIT, (uint32_t)cairn_digest_bytes(p->name, strlen(p->name)).lo};
    int zero = strstr(p->name, "bias") || cairn_ends_with(p->name, ".A_log") || cairn_ends_with(p->name, "_base");

    if (cairn_ends_with(p->name, ".dt_bias")) {
        fill_dt_bias(x, n, &key);
    } else if (strstr(p->name, "_conv1d.")) {
        double bound = 1 / sqrt((double)p->dim[2]);

        uniform_fill(x, n, &key, -bound, bound);
    } else if (p->ndim >= 2) {
        cairn_normal_fill(x, n, &key, strstr(p->name, ".indexer.") ? 0.1 : (double)c->init_range);
    } else {
        for (int64_t i = 0; i < n; i++)
            x[i] = zero ? 0.0f : 1.0f;
    }
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
        int64_t n = cairn_param_count(&s->table->param[i]);

        if (!s->tensor[i].buf)
            continue;
        first_values(&s->table->param[i], c, seed, h, n);
        TRY(cairn_values_set(k, &s->tensor[i], h, n, err));
    }
    TRY(cairn_stream_wait(&k->stream, err));
out:
    free(h);
    return st;
}

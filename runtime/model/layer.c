/* layer.c - norms and residuals around attention and MLP; see layer.h. */
#include "model/layer.h"

#include "model/names.h"

enum cairn_status cairn_layer_bind(struct cairn_layer *l, const struct cairn_model *m, int index, struct cairn_error *err)
{
    struct cairn_linear norm;
    enum cairn_status st = CAIRN_OK;
    char name[CAIRN_NAME_BYTES];

    *l = (struct cairn_layer){.index = index, .dense = m->config->dense[index]};
    cairn_name_of_layer(m->config, index, "input_layernorm.weight", name);
    TRY(cairn_linear_bind(&norm, m, name, CAIRN_LINEAR_WHOLE, err));
    l->norm1 = norm.param;
    l->g1 = norm.w;
    cairn_name_of_layer(m->config, index, "post_attention_layernorm.weight", name);
    TRY(cairn_linear_bind(&norm, m, name, CAIRN_LINEAR_WHOLE, err));
    l->norm2 = norm.param;
    l->g2 = norm.w;
    cairn_name_of_layer(m->config, index, "self_attn.", name);
    TRY(cairn_mla_bind(&l->mla, m, index, name, err));
    cairn_name_of_layer(m->config, index, "mlp.", name);
    if (l->dense)
        TRY(cairn_mlp_bind(&l->mlp, m, name, err));
    else
        TRY(cairn_moe_bind(&l->moe, m, name, err));
out:
    return st;
}

void cairn_layer_carve_save(struct cairn_carve *c, const struct cairn_layer *l, const struct cairn_model_config *cfg,
                            enum cairn_dtype act, int64_t n, int train, struct cairn_layer_save *s)
{
    size_t mark;

    s->h1 = cairn_carve2(c, act, n, cfg->width);
    s->rstd1 = cairn_carve1(c, CAIRN_F32, n);
    if (train)
        s->mid = cairn_carve2(c, act, n, cfg->width);
    mark = c->at;
    cairn_mla_carve_save(c, &l->mla, cfg, act, n, &s->mla);
    if (!train)
        c->at = mark; /* nothing of the attention is needed when the MLP runs */
    s->h2 = cairn_carve2(c, act, n, cfg->width);
    s->rstd2 = cairn_carve1(c, CAIRN_F32, n);
    if (l->dense)
        cairn_mlp_carve_save(c, &l->mlp, act, n, &s->mlp);
    else
        cairn_moe_carve_save(c, &l->moe, cfg, act, n, &s->moe);
}

void cairn_layer_carve_work(struct cairn_carve *c, const struct cairn_layer *l, const struct cairn_model_config *cfg,
                            enum cairn_dtype act, int64_t n, int segments, int train, struct cairn_layer_work *w)
{
    size_t mark;

    if (train)
        w->dh = cairn_carve2(c, act, n, cfg->width);
    mark = c->at;
    cairn_mla_carve_work(c, &l->mla, cfg, act, n, segments, train, &w->mla);
    c->at = mark;
    if (l->dense)
        cairn_mlp_carve_work(c, &l->mlp, act, n, train, &w->mlp);
    else
        cairn_moe_carve_work(c, &l->moe, cfg, act, n, train, &w->moe);
    c->at = mark;
}

static void widen(int64_t *most, const struct cairn_linear *l, int64_t rows)
{
    if (l->lora && rows * l->lora->rank > *most)
        *most = rows * l->lora->rank;
}

static void widen_mlp(int64_t *most, const struct cairn_mlp *l, int64_t rows)
{
    widen(most, &l->gate, rows);
    widen(most, &l->up, rows);
    widen(most, &l->down, rows);
}

int64_t cairn_layer_dt(const struct cairn_layer *l, const struct cairn_model_config *cfg, int64_t n)
{
    int64_t most = 0;

    widen(&most, &l->mla.q_a, n);
    widen(&most, &l->mla.q_b, n);
    widen(&most, &l->mla.kv_a, n);
    widen(&most, &l->mla.kv_b, n * cfg->heads);
    widen(&most, &l->mla.o, n);
    if (l->dense) {
        widen_mlp(&most, &l->mlp, n);
        return most;
    }
    widen(&most, &l->moe.gate, n * cfg->experts_per_token);
    widen(&most, &l->moe.up, n * cfg->experts_per_token);
    widen(&most, &l->moe.down, n * cfg->experts_per_token);
    if (l->moe.shared_experts > 0)
        widen_mlp(&most, &l->moe.shared, n);
    return most;
}

enum cairn_status cairn_layer_forward(const struct cairn_call *c, const struct cairn_layer *l, const struct cairn_tensor *x,
                                      const struct cairn_tensor *y, const struct cairn_tensor *idx,
                                      const struct cairn_layer_save *s, const struct cairn_layer_work *w, struct cairn_error *err)
{
    const struct cairn_tensor *mid = s->mid.buf ? &s->mid : y;
    float eps = c->c->norm_eps;
    enum cairn_status st = CAIRN_OK;

    OP(c, rmsnorm, .x = *x, .g = l->g1, .y = s->h1, .rstd = s->rstd1, .eps = eps);
    if (mid->offset != x->offset)
        TRY(cairn_tensor_copy(&c->k->stream, mid, x, err));
    TRY(cairn_mla_forward(c, &l->mla, &s->h1, mid, idx, &s->mla, &w->mla, err));
    OP(c, rmsnorm, .x = *mid, .g = l->g2, .y = s->h2, .rstd = s->rstd2, .eps = eps);
    if (!c->rerun && y->offset != mid->offset)
        TRY(cairn_tensor_copy(&c->k->stream, y, mid, err));
    if (l->dense)
        TRY(cairn_mlp_forward(c, &l->mlp, &s->h2, y, &s->mlp, &w->mlp, err));
    else
        TRY(cairn_moe_forward(c, &l->moe, &s->h2, y, &s->moe, &w->moe, err));
out:
    return st;
}

enum cairn_status cairn_layer_backward(const struct cairn_call *c, const struct cairn_layer *l, const struct cairn_tensor *x,
                                       const struct cairn_tensor *dx, const struct cairn_tensor *idx,
                                       const struct cairn_layer_save *s, const struct cairn_layer_work *w, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    if (l->dense)
        TRY(cairn_mlp_backward(c, &l->mlp, &s->h2, dx, &w->dh, 0, &s->mlp, &w->mlp, err));
    else
        TRY(cairn_moe_backward(c, &l->moe, &s->h2, dx, &w->dh, &s->moe, &w->moe, err));
    OP(c, rmsnorm_bwd, .x = s->mid, .g = l->g2, .rstd = s->rstd2, .dy = w->dh, .dx = *dx, .dg = cairn_call_grad(c, l->norm2),
       .accumulate = 1);
    TRY(cairn_mla_backward(c, &l->mla, &s->h1, dx, &w->dh, idx, &s->mla, &w->mla, err));
    OP(c, rmsnorm_bwd, .x = *x, .g = l->g1, .rstd = s->rstd1, .dy = w->dh, .dx = *dx, .dg = cairn_call_grad(c, l->norm1),
       .accumulate = 1);
out:
    return st;
}

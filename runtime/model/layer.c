/* layer.c - norms and residuals around attention and MLP; see layer.h. A block adds to what it is given: to the residual itself where that
 * is one stream, else to a zero that the hyper-connection then spreads.
 */
#include "model/layer.h"

#include "base/planted.h"
#include "model/names.h"

enum cairn_status cairn_layer_bind(struct cairn_layer *l, const struct cairn_model *m, int index, struct cairn_error *err)
{
    struct cairn_linear norm;
    enum cairn_status st = CAIRN_OK;
    char name[CAIRN_NAME_BYTES];

    *l = (struct cairn_layer){.index = index, .dense = m->config->dense[index], .kda = m->config->kda[index]};
    cairn_name_of_layer(m->config, index, "input_layernorm.weight", name);
    TRY(cairn_linear_bind(&norm, m, name, CAIRN_LINEAR_WHOLE, err));
    l->norm1 = norm.param;
    l->g1 = norm.w;
    cairn_name_of_layer(m->config, index, "post_attention_layernorm.weight", name);
    TRY(cairn_linear_bind(&norm, m, name, CAIRN_LINEAR_WHOLE, err));
    l->norm2 = norm.param;
    l->g2 = norm.w;
    cairn_name_of_layer(m->config, index, "self_attn.", name);
    if (l->kda)
        TRY(cairn_kda_bind(&l->linear, m, index, name, err));
    else
        TRY(cairn_mla_bind(&l->mla, m, index, name, err));
    for (int i = 0; m->config->streams && i < 2; i++)
        TRY(cairn_hyper_bind(&l->site[i], m, index, i ? "ffn" : "attn", err));
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
        s->mid = cairn_carve2(c, act, n, cairn_layer_width(cfg));
    if (cfg->streams) {
        cairn_hyper_carve_save(c, cfg, act, n, &s->site[0]);
        if (train)
            cairn_hyper_carve_save(c, cfg, act, n, &s->site[1]);
        else
            s->site[1] = s->site[0];
    }
    mark = c->at;
    if (l->kda)
        cairn_kda_carve_save(c, &l->linear, cfg, act, n, &s->linear);
    else
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
    if (train && cfg->streams)
        cairn_hyper_carve_work(c, cfg, act, n, &w->site);
    mark = c->at;
    if (l->kda)
        cairn_kda_carve_work(c, cfg, act, n, train, &w->linear);
    else
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
    int64_t most = l->kda ? cairn_kda_dt(&l->linear, n) : 0;

    if (!l->kda) {
        widen(&most, &l->mla.q_a, n);
        widen(&most, &l->mla.q_b, n);
        widen(&most, &l->mla.kv_a, n);
        widen(&most, &l->mla.kv_b, n * cfg->heads);
        widen(&most, &l->mla.o, n);
    }
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

/* y += the first block of h1; y += the second of h2. */
static enum cairn_status first_forward(const struct cairn_call *c, const struct cairn_layer *l, const struct cairn_tensor *y,
                                       const struct cairn_tensor *idx, const struct cairn_layer_save *s, const struct cairn_layer_work *w,
                                       struct cairn_error *err)
{
    return l->kda ? cairn_kda_forward(c, &l->linear, &s->h1, y, &s->linear, err)
                  : cairn_mla_forward(c, &l->mla, &s->h1, y, idx, &s->mla, &w->mla, err);
}

static enum cairn_status second_forward(const struct cairn_call *c, const struct cairn_layer *l, const struct cairn_tensor *y,
                                        const struct cairn_layer_save *s, const struct cairn_layer_work *w, struct cairn_error *err)
{
    return l->dense ? cairn_mlp_forward(c, &l->mlp, &s->h2, y, &s->mlp, err)
                    : cairn_moe_forward(c, &l->moe, &s->h2, y, &s->moe, &w->moe, err);
}

/* w->dh = the gradient of h1, of h2, from that of the block's output. */
static enum cairn_status first_backward(const struct cairn_call *c, const struct cairn_layer *l, const struct cairn_tensor *dy,
                                        const struct cairn_tensor *idx, const struct cairn_layer_save *s, const struct cairn_layer_work *w,
                                        struct cairn_error *err)
{
    return l->kda ? cairn_kda_backward(c, &l->linear, &s->h1, dy, &w->dh, &s->linear, &w->linear, err)
                  : cairn_mla_backward(c, &l->mla, &s->h1, dy, &w->dh, idx, &s->mla, &w->mla, err);
}

static enum cairn_status second_backward(const struct cairn_call *c, const struct cairn_layer *l, const struct cairn_tensor *dy,
                                         const struct cairn_layer_save *s, const struct cairn_layer_work *w, struct cairn_error *err)
{
    return l->dense ? cairn_mlp_backward(c, &l->mlp, &s->h2, dy, &w->dh, 0, &s->mlp, &w->mlp, err)
                    : cairn_moe_backward(c, &l->moe, &s->h2, dy, &w->dh, &s->moe, &w->moe, err);
}

/* ---- streams ------------------------------------------------------------------------------------------------------- */

/* In a rerun both blocks' outputs are wanted: the weights with which they leave have a gradient. */
static enum cairn_status streams_forward(const struct cairn_call *c, const struct cairn_layer *l, const struct cairn_tensor *x,
                                         const struct cairn_tensor *y, const struct cairn_tensor *idx,
                                         const struct cairn_layer_save *s, const struct cairn_layer_work *w, struct cairn_error *err)
{
    const struct cairn_tensor *mid = s->mid.buf ? &s->mid : y;
    struct cairn_call whole = *c;
    enum cairn_status st = CAIRN_OK;

    whole.rerun = 0;
    TRY(cairn_hyper_enter(c, &l->site[0], x, &s->site[0], err));
    OP(c, rmsnorm, .x = s->site[0].c, .g = l->g1, .y = s->h1, .rstd = s->rstd1, .eps = c->c->norm_eps);
    TRY(first_forward(c, l, &s->site[0].y, idx, s, w, err));
    TRY(cairn_hyper_leave(c, x, mid, &s->site[0], err));
    TRY(cairn_hyper_enter(c, &l->site[1], mid, &s->site[1], err));
    OP(c, rmsnorm, .x = s->site[1].c, .g = l->g2, .y = s->h2, .rstd = s->rstd2, .eps = c->c->norm_eps);
    TRY(second_forward(&whole, l, &s->site[1].y, s, w, err));
    if (!c->rerun)
        TRY(cairn_hyper_leave(c, mid, y, &s->site[1], err));
out:
    return st;
}

static enum cairn_status streams_backward(const struct cairn_call *c, const struct cairn_layer *l, const struct cairn_tensor *x,
                                          const struct cairn_tensor *dx, const struct cairn_tensor *idx,
                                          const struct cairn_layer_save *s, const struct cairn_layer_work *w, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_hyper_leave_backward(c, &s->mid, dx, &s->site[1], &w->site, err));
    TRY(second_backward(c, l, &w->site.dy, s, w, err));
    OP(c, rmsnorm_bwd, .x = s->site[1].c, .g = l->g2, .rstd = s->rstd2, .dy = w->dh, .dx = w->dh, .dg = cairn_call_grad(c, l->norm2));
    TRY(cairn_hyper_enter_backward(c, &l->site[1], &s->mid, &w->dh, dx, &s->site[1], &w->site, err));
    TRY(cairn_hyper_leave_backward(c, x, dx, &s->site[0], &w->site, err));
    TRY(first_backward(c, l, &w->site.dy, idx, s, w, err));
    OP(c, rmsnorm_bwd, .x = s->site[0].c, .g = l->g1, .rstd = s->rstd1, .dy = w->dh, .dx = w->dh, .dg = cairn_call_grad(c, l->norm1));
    TRY(cairn_hyper_enter_backward(c, &l->site[0], x, &w->dh, dx, &s->site[0], &w->site, err));
out:
    return st;
}

/* ---- one stream ---------------------------------------------------------------------------------------------------- */

enum cairn_status cairn_layer_forward(const struct cairn_call *c, const struct cairn_layer *l, const struct cairn_tensor *x,
                                      const struct cairn_tensor *y, const struct cairn_tensor *idx,
                                      const struct cairn_layer_save *s, const struct cairn_layer_work *w, struct cairn_error *err)
{
    const struct cairn_tensor *mid = s->mid.buf ? &s->mid : y;
    float eps = c->c->norm_eps;
    enum cairn_status st = CAIRN_OK;

    if (c->c->streams)
        return streams_forward(c, l, x, y, idx, s, w, err);
    OP(c, rmsnorm, .x = *x, .g = l->g1, .y = s->h1, .rstd = s->rstd1, .eps = cairn_planted("block-norm-eps") ? 1e-3f : eps);
    if (mid->offset != x->offset)
        TRY(cairn_tensor_copy(&c->k->stream, mid, x, err));
    TRY(first_forward(c, l, mid, idx, s, w, err));
    OP(c, rmsnorm, .x = cairn_planted("mlp-reads-block-input") && s->mid.buf ? *x : *mid, .g = l->g2, .y = s->h2, .rstd = s->rstd2, .eps = eps);
    if (!c->rerun && y->offset != mid->offset)
        TRY(cairn_tensor_copy(&c->k->stream, y, mid, err));
    TRY(second_forward(c, l, y, s, w, err));
out:
    return st;
}

enum cairn_status cairn_layer_backward(const struct cairn_call *c, const struct cairn_layer *l, const struct cairn_tensor *x,
                                       const struct cairn_tensor *dx, const struct cairn_tensor *idx,
                                       const struct cairn_layer_save *s, const struct cairn_layer_work *w, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    if (c->c->streams)
        return streams_backward(c, l, x, dx, idx, s, w, err);
    TRY(second_backward(c, l, dx, s, w, err));
    OP(c, rmsnorm_bwd, .x = s->mid, .g = l->g2, .rstd = s->rstd2, .dy = w->dh, .dx = *dx, .dg = cairn_call_grad(c, l->norm2),
       .accumulate = 1);
    TRY(first_backward(c, l, dx, idx, s, w, err));
    OP(c, rmsnorm_bwd, .x = *x, .g = l->g1, .rstd = s->rstd1, .dy = w->dh, .dx = *dx, .dg = cairn_call_grad(c, l->norm1),
       .accumulate = 1);
out:
    return st;
}

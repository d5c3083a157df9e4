/* moe.c - DeepSeek-V3's mixture of experts as GLM-5 has it (spec section 10); see moe.h.
 *
 * Rows of experts and h are kept for the backward, which needs both for the experts' gradients: to make them again costs a training step 1 %.
 * Who has no memory for that recomputes whole layers.
 */
#include "model/moe.h"

#include <stdio.h>

#include "base/planted.h"

enum cairn_status cairn_moe_bind(struct cairn_moe *l, const struct cairn_model *m, const char *prefix, struct cairn_error *err)
{
    const struct cairn_param_table *table = m->weights->table;
    enum cairn_status st = CAIRN_OK;
    char name[256];
    int bias;

    snprintf(name, sizeof name, "%sgate.weight", prefix);
    l->router = cairn_param_find(table, name);
    snprintf(name, sizeof name, "%sgate.e_score_correction_bias", prefix);
    bias = cairn_param_find(table, name);
    if (l->router < 0 || bias < 0)
        TRY(cairn_fail(err, CAIRN_EBUG, "the parameter table has no router below %s", prefix));
    l->router_w = m->weights->tensor[l->router];
    l->bias = m->weights->tensor[bias];
    snprintf(name, sizeof name, "%sexperts.gate_proj.weight", prefix);
    TRY(cairn_linear_bind(&l->gate, m, name, CAIRN_LINEAR_OUT, err));
    snprintf(name, sizeof name, "%sexperts.up_proj.weight", prefix);
    TRY(cairn_linear_bind(&l->up, m, name, CAIRN_LINEAR_OUT, err));
    snprintf(name, sizeof name, "%sexperts.down_proj.weight", prefix);
    TRY(cairn_linear_bind(&l->down, m, name, CAIRN_LINEAR_IN, err));
    l->shared_experts = m->config->shared_experts;
    snprintf(name, sizeof name, "%sshared_experts.", prefix);
    if (l->shared_experts > 0)
        TRY(cairn_mlp_bind(&l->shared, m, name, err));
out:
    return st;
}

void cairn_moe_carve_save(struct cairn_carve *c, const struct cairn_moe *l, const struct cairn_model_config *cfg,
                          enum cairn_dtype act, int64_t n, struct cairn_moe_save *s)
{
    int64_t k = cfg->experts_per_token, m = n * k;

    s->choice = cairn_carve2(c, CAIRN_I32, n, k);
    s->gate = cairn_carve2(c, CAIRN_F32, n, k);
    s->prob = cairn_carve2(c, CAIRN_F32, n, k);
    s->offsets = cairn_carve1(c, CAIRN_I32, cfg->experts + 1);
    s->token = cairn_carve1(c, CAIRN_I32, m);
    s->where = cairn_carve2(c, CAIRN_I32, n, k);
    s->a = cairn_carve2(c, act, m, cfg->expert_width);
    s->u = cairn_carve2(c, act, m, cfg->expert_width);
    s->y = cairn_carve2(c, act, m, cfg->width);
    s->x = cairn_carve2(c, act, m, cfg->width);
    s->h = cairn_carve2(c, act, m, cfg->expert_width);
    s->t_gate = cairn_linear_carve(c, &l->gate, act, m);
    s->t_up = cairn_linear_same_a(&l->gate, &l->up) ? s->t_gate : cairn_linear_carve(c, &l->up, act, m);
    s->t_down = cairn_linear_carve(c, &l->down, act, m);
    if (l->shared_experts > 0)
        cairn_mlp_carve_save(c, &l->shared, act, n, &s->shared);
}

void cairn_moe_carve_work(struct cairn_carve *c, const struct cairn_moe *l, const struct cairn_model_config *cfg,
                          enum cairn_dtype act, int64_t n, int train, struct cairn_moe_work *w)
{
    int64_t m = n * cfg->experts_per_token;

    w->r = cairn_carve2(c, CAIRN_F32, n, cfg->experts);
    if (train) {
        w->dy = cairn_carve2(c, act, m, cfg->width);
        w->dh = cairn_carve2(c, act, m, cfg->expert_width);
        w->dgate = cairn_carve2(c, CAIRN_F32, n, cfg->experts_per_token);
        if (act != CAIRN_F32)
            w->dr = cairn_carve2(c, act, n, cfg->experts);
    }
    if (l->shared_experts > 0)
        cairn_mlp_carve_work(c, &l->shared, act, n, train, &w->shared);
}

enum cairn_status cairn_moe_forward(const struct cairn_call *c, const struct cairn_moe *l, const struct cairn_tensor *x,
                                    const struct cairn_tensor *y, const struct cairn_moe_save *s, const struct cairn_moe_work *w,
                                    struct cairn_error *err)
{
    const struct cairn_model_config *cfg = c->c;
    struct cairn_call side;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_branch_fork(c, &side, err)); /* who all tokens go to, beside who the router chooses */
    if (l->shared_experts > 0)
        TRY(cairn_mlp_forward(&side, &l->shared, x, y, &s->shared, err));
    if (l->shared_experts > 0 && cairn_planted("shared-expert-twice"))
        TRY(cairn_mlp_forward(&side, &l->shared, x, y, &s->shared, err));
    OP(c, matmul, .form = CAIRN_NT, .x = *x, .w = l->router_w, .y = w->r, .alpha = 1, .segments = 1);
    OP(c, router, .r = w->r, .bias = cairn_planted("router-bias-lost") ? (struct cairn_tensor){0} : l->bias, .idx = s->choice, .gate = s->gate,
       .prob = s->prob, .n_group = cfg->n_group, .topk_group = cfg->topk_group, .norm = cfg->norm_topk,
       .scale = cairn_planted("routed-scale-lost") ? 1 : cfg->routed_scale);
    OP(c, dispatch, .idx = s->choice, .offsets = s->offsets, .token = s->token, .where = s->where);
    OP(c, rows, .src = *x, .src_index = s->token, .dst = s->x);
    TRY(cairn_linear_forward(c, &l->gate, &s->offsets, &s->x, &s->a, 0, &s->t_gate, err));
    if (cairn_linear_same_a(&l->gate, &l->up))
        TRY(cairn_linear_forward_after(c, &l->up, &s->offsets, &s->x, &s->u, 0, &s->t_up, err));
    else
        TRY(cairn_linear_forward(c, &l->up, &s->offsets, &s->x, &s->u, 0, &s->t_up, err));
    OP(c, swiglu, .a = s->a, .u = s->u, .h = s->h, .limit = c->c->swiglu_limit);
    TRY(cairn_linear_forward(c, &l->down, &s->offsets, &s->h, &s->y, 0, &s->t_down, err));
    TRY(cairn_branch_join(c, &side, err));
    if (!c->rerun)
        OP(c, combine, .x = s->y, .gate = s->gate, .where = s->where, .base = *y, .y = *y);
out:
    return st;
}

enum cairn_status cairn_moe_backward(const struct cairn_call *c, const struct cairn_moe *l, const struct cairn_tensor *x,
                                     const struct cairn_tensor *dy, const struct cairn_tensor *dx, const struct cairn_moe_save *s,
                                     const struct cairn_moe_work *w, struct cairn_error *err)
{
    struct cairn_tensor dw = cairn_call_grad(c, l->router), dr = w->r;
    enum cairn_status st = CAIRN_OK;

    OP(c, combine_bwd, .x = s->y, .gate = s->gate, .where = s->where, .dy = *dy, .dx = w->dy, .dgate = w->dgate);
    OP(c, router_bwd, .idx = s->choice, .prob = s->prob, .dgate = w->dgate, .dr = w->r, .norm = c->c->norm_topk,
       .scale = c->c->routed_scale);
    if (c->act != CAIRN_F32) {
        OP(c, cast, .src = w->r, .dst = w->dr, .round_to = -1);
        dr = w->dr;
    }
    if (dw.buf)
        OP(c, matmul, .form = CAIRN_TN, .x = dr, .w = *x, .y = dw, .alpha = 1,
           .accumulate = cairn_store_begun(c->grads, l->router), .segments = 1);
    OP(c, matmul, .form = CAIRN_NN, .x = dr, .w = l->router_w, .y = *dx, .alpha = 1, .segments = 1);
    if (l->shared_experts > 0)
        TRY(cairn_mlp_backward(c, &l->shared, x, dy, dx, 1, &s->shared, &w->shared, err));

    TRY(cairn_linear_backward(c, &l->down, &s->offsets, &s->h, &s->t_down, &w->dy, &w->dh, 0, err));
    OP(c, swiglu_bwd, .a = s->a, .u = s->u, .dh = w->dh, .da = s->a, .du = s->u, .limit = c->c->swiglu_limit);
    TRY(cairn_linear_backward(c, &l->gate, &s->offsets, &s->x, &s->t_gate, &s->a, &w->dy, 0, err));
    TRY(cairn_linear_backward(c, &l->up, &s->offsets, &s->x, &s->t_up, &s->u, &w->dy, 1, err));
    OP(c, combine, .x = w->dy, .where = s->where, .base = *dx, .y = *dx);
out:
    return st;
}

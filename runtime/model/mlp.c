/* mlp.c - SwiGLU (arXiv:2002.05202); h is computed again in the backward, since that costs less than keeping it. */
#include "model/mlp.h"

#include <stdio.h>

enum cairn_status cairn_mlp_bind(struct cairn_mlp *l, const struct cairn_model *m, const char *prefix, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char name[256];

    snprintf(name, sizeof name, "%sgate_proj.weight", prefix);
    TRY(cairn_linear_bind(&l->gate, m, name, CAIRN_LINEAR_OUT, err));
    snprintf(name, sizeof name, "%sup_proj.weight", prefix);
    TRY(cairn_linear_bind(&l->up, m, name, CAIRN_LINEAR_OUT, err));
    snprintf(name, sizeof name, "%sdown_proj.weight", prefix);
    TRY(cairn_linear_bind(&l->down, m, name, CAIRN_LINEAR_IN, err));
out:
    return st;
}

void cairn_mlp_carve_save(struct cairn_carve *c, const struct cairn_mlp *l, enum cairn_dtype act, int64_t n,
                          struct cairn_mlp_save *s)
{
    int64_t f = l->gate.w.dim[0];

    s->a = cairn_carve2(c, act, n, f);
    s->u = cairn_carve2(c, act, n, f);
    s->h = cairn_carve2(c, act, n, f);
    s->t_gate = cairn_linear_carve(c, &l->gate, act, n);
    s->t_up = cairn_linear_same_a(&l->gate, &l->up) ? s->t_gate : cairn_linear_carve(c, &l->up, act, n);
    s->t_down = cairn_linear_carve(c, &l->down, act, n);
}

void cairn_mlp_carve_work(struct cairn_carve *c, const struct cairn_mlp *l, enum cairn_dtype act, int64_t n, int train,
                          struct cairn_mlp_work *w)
{
    int64_t f = l->gate.w.dim[0];

    if (train)
        w->dh = cairn_carve2(c, act, n, f);
}

enum cairn_status cairn_mlp_forward(const struct cairn_call *c, const struct cairn_mlp *l, const struct cairn_tensor *x,
                                    const struct cairn_tensor *y, const struct cairn_mlp_save *s, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_linear_forward(c, &l->gate, NULL, x, &s->a, 0, &s->t_gate, err));
    if (cairn_linear_same_a(&l->gate, &l->up))
        TRY(cairn_linear_forward_after(c, &l->up, NULL, x, &s->u, 0, &s->t_up, err));
    else
        TRY(cairn_linear_forward(c, &l->up, NULL, x, &s->u, 0, &s->t_up, err));
    OP(c, swiglu, .a = s->a, .u = s->u, .h = s->h, .limit = c->c->swiglu_limit);
    if (c->rerun && !l->down.lora)
        goto out;
    TRY(cairn_linear_forward(c, &l->down, NULL, &s->h, c->rerun ? NULL : y, 1, &s->t_down, err));
out:
    return st;
}

enum cairn_status cairn_mlp_backward(const struct cairn_call *c, const struct cairn_mlp *l, const struct cairn_tensor *x,
                                     const struct cairn_tensor *dy, const struct cairn_tensor *dx, int accumulate,
                                     const struct cairn_mlp_save *s, const struct cairn_mlp_work *w, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_linear_backward(c, &l->down, NULL, &s->h, &s->t_down, dy, &w->dh, 0, err));
    OP(c, swiglu_bwd, .a = s->a, .u = s->u, .dh = w->dh, .da = s->a, .du = s->u, .limit = c->c->swiglu_limit); /* a and u are not needed again */
    TRY(cairn_linear_backward(c, &l->gate, NULL, x, &s->t_gate, &s->a, dx, accumulate, err));
    TRY(cairn_linear_backward(c, &l->up, NULL, x, &s->t_up, &s->u, dx, 1, err));
out:
    return st;
}

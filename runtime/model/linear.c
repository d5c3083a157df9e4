/* linear.c - products of one linear layer and its LoRA (arXiv:2106.09685); see linear.h.
 *
 * dB = gamma dy^T t, dt = gamma dy B, dA = dt^T x, dx += dt A, with t = x A^T kept from the forward. Matrices that are aliased
 * (one A for two layers) need nothing here: both add to the same gradient tensor, or the first of them writes it.
 */
#include "model/linear.h"

#include <string.h>

#include "base/planted.h"

static enum cairn_status product(const struct cairn_call *c, enum cairn_form form, const struct cairn_tensor *offsets,
                                 const struct cairn_tensor *x, const struct cairn_tensor *w, const struct cairn_tensor *y,
                                 float alpha, int accumulate, int segments, struct cairn_error *err)
{
    if (offsets)
        return c->k->ops.matmul_grouped(&c->k->stream,
                                        &(struct cairn_matmul_grouped){.form = form,
                                                                       .x = *x,
                                                                       .w = *w,
                                                                       .y = *y,
                                                                       .offsets = *offsets,
                                                                       .alpha = alpha,
                                                                       .accumulate = accumulate,
                                                                       .segments = segments},
                                        err);
    return c->k->ops.matmul(
        &c->k->stream,
        &(struct cairn_matmul){
            .form = form, .x = *x, .w = *w, .y = *y, .alpha = alpha, .accumulate = accumulate, .segments = segments},
        err);
}

enum cairn_status cairn_linear_bind(struct cairn_linear *l, const struct cairn_model *m, const char *name,
                                    enum cairn_linear_cut cut, struct cairn_error *err)
{
    int p = cairn_param_find(m->weights->table, name), i;

    if (p < 0)
        return cairn_fail(err, CAIRN_EBUG, "the parameter table has no %s", name);
    *l = (struct cairn_linear){.param = p, .w = m->weights->tensor[p], .cut = cut};
    if (!m->adapter || (i = m->adapter->of_param[p]) < 0)
        return CAIRN_OK;
    l->lora = &m->adapter->lora[i];
    l->a = m->adapter_weights->tensor[l->lora->a];
    l->b = m->adapter_weights->tensor[l->lora->b];
    if (cairn_planted("lora-first-layer-lost") && strstr(name, "layers.0."))
        l->lora = NULL;
    return CAIRN_OK;
}

struct cairn_tensor cairn_linear_carve(struct cairn_carve *c, const struct cairn_linear *l, enum cairn_dtype act, int64_t rows)
{
    return l->lora ? cairn_carve2(c, act, rows, l->lora->rank) : (struct cairn_tensor){0};
}

static enum cairn_status forward(const struct cairn_call *c, const struct cairn_linear *l, const struct cairn_tensor *offsets,
                                 const struct cairn_tensor *x, const struct cairn_tensor *y, int accumulate,
                                 const struct cairn_tensor *t, int given, struct cairn_error *err)
{
    int segments = l->cut == CAIRN_LINEAR_IN ? c->segments : 1;
    enum cairn_status st = CAIRN_OK;

    if (y)
        TRY(product(c, CAIRN_NT, offsets, x, &l->w, y, 1, accumulate, segments, err));
    if (l->lora && !given)
        TRY(product(c, CAIRN_NT, offsets, x, &l->a, t, 1, 0, segments, err));
    if (l->lora && y)
        TRY(product(c, CAIRN_NT, offsets, t, &l->b, y,
                    cairn_planted("lora-scaled-twice") ? l->lora->gamma * l->lora->gamma
                    : cairn_planted("lora-unscaled")   ? 1
                    : given && cairn_planted("lora-alias-scaled-twice") ? l->lora->gamma * l->lora->gamma : l->lora->gamma,
                    1, 1, err));
out:
    return st;
}

enum cairn_status cairn_linear_forward(const struct cairn_call *c, const struct cairn_linear *l, const struct cairn_tensor *offsets,
                                       const struct cairn_tensor *x, const struct cairn_tensor *y, int accumulate,
                                       const struct cairn_tensor *t, struct cairn_error *err)
{
    return forward(c, l, offsets, x, y, accumulate, t, 0, err);
}

enum cairn_status cairn_linear_forward_after(const struct cairn_call *c, const struct cairn_linear *l,
                                             const struct cairn_tensor *offsets, const struct cairn_tensor *x,
                                             const struct cairn_tensor *y, int accumulate, const struct cairn_tensor *t,
                                             struct cairn_error *err)
{
    return forward(c, l, offsets, x, y, accumulate, t, 1, err);
}

int cairn_linear_same_a(const struct cairn_linear *l, const struct cairn_linear *other)
{
    return l->lora && other->lora && l->lora->a == other->lora->a;
}

struct cairn_tensor cairn_linear_grad_a(const struct cairn_call *c, const struct cairn_linear *l)
{
    return l->lora && c->adapter_grads ? c->adapter_grads->tensor[l->lora->a] : (struct cairn_tensor){0};
}

struct cairn_tensor cairn_linear_grad_b(const struct cairn_call *c, const struct cairn_linear *l)
{
    return l->lora && c->adapter_grads ? c->adapter_grads->tensor[l->lora->b] : (struct cairn_tensor){0};
}

struct cairn_tensor cairn_linear_dt(const struct cairn_call *c, const struct cairn_linear *l, int64_t rows)
{
    return cairn_view2(&c->dt, 0, rows, l->lora->rank, l->lora->rank);
}

enum cairn_status cairn_linear_backward(const struct cairn_call *c, const struct cairn_linear *l,
                                        const struct cairn_tensor *offsets, const struct cairn_tensor *x,
                                        const struct cairn_tensor *t, const struct cairn_tensor *dy, const struct cairn_tensor *dx,
                                        int accumulate, struct cairn_error *err)
{
    int segments = l->cut == CAIRN_LINEAR_OUT ? c->segments : 1;
    struct cairn_tensor dw = cairn_call_grad(c, l->param), da = cairn_linear_grad_a(c, l), db = cairn_linear_grad_b(c, l), dt;
    enum cairn_status st = CAIRN_OK;

    if (dw.buf)
        TRY(product(c, CAIRN_TN, offsets, dy, x, &dw, 1, cairn_store_begun(c->grads, l->param), 1, err));
    if (dx)
        TRY(product(c, CAIRN_NN, offsets, dy, &l->w, dx, 1, accumulate, segments, err));
    if (!l->lora)
        return CAIRN_OK;
    if (db.buf)
        TRY(product(c, CAIRN_TN, offsets, dy, t, &db, l->lora->gamma, cairn_store_begun(c->adapter_grads, l->lora->b), 1, err));
    dt = cairn_linear_dt(c, l, x->dim[0]);
    if (da.buf || dx)
        TRY(product(c, CAIRN_NN, offsets, dy, &l->b, &dt, l->lora->gamma, 0, segments, err));
    if (da.buf)
        TRY(product(c, CAIRN_TN, offsets, &dt, x, &da, 1, cairn_store_begun(c->adapter_grads, l->lora->a), 1, err));
    if (dx)
        TRY(product(c, CAIRN_NN, offsets, &dt, &l->a, dx, 1, 1, 1, err));
out:
    return st;
}

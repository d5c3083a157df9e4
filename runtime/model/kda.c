/* kda.c - products around the ops of Kimi delta attention; see kda.h. Formulas: spec/model_flash.md, 6.2 to 6.5.
 *
 * Heads are cut by tensor parallelism as those of mla.c are: projections by output, o by input. In the backward gradients take the
 * places of what they are the gradients of, wherever an op allows it.
 */
#include "model/kda.h"

#include <math.h>
#include <stdio.h>

#include "base/planted.h"

#define L2_EPS 1e-6f /* of the normalised queries and keys, in every implementation */

/* Rows (N, H * d) as (N, H, d), and as (N * H, d). */
static struct cairn_tensor by_head(const struct cairn_call *c, const struct cairn_tensor *t)
{
    int64_t H = c->c->kda_heads, d = c->c->kda_dim;

    return cairn_view3(t, 0, t->dim[0], H * d, H, d, d);
}

static struct cairn_tensor heads(const struct cairn_call *c, const struct cairn_tensor *t)
{
    int64_t H = c->c->kda_heads, d = c->c->kda_dim;

    return cairn_view2(t, 0, t->dim[0] * H, d, d);
}

/* Taps (P, 1, K) as (P, K); absent stays absent. */
static struct cairn_tensor taps_view(const struct cairn_tensor *t)
{
    return t->buf ? cairn_view2(t, 0, t->dim[0], t->dim[2], t->dim[2]) : *t;
}

/* ---- names and memory ------------------------------------------------------------------------------------------ */

static enum cairn_status bind_linear(struct cairn_linear *l, const struct cairn_model *m, const char *prefix, const char *leaf,
                                     enum cairn_linear_cut cut, struct cairn_error *err)
{
    char name[256];

    snprintf(name, sizeof name, "%s%s.weight", prefix, leaf);
    return cairn_linear_bind(l, m, name, cut, err);
}

static enum cairn_status bind_plain(int *param, struct cairn_tensor *t, const struct cairn_model *m, const char *prefix, const char *leaf,
                                    struct cairn_error *err)
{
    char name[256];

    snprintf(name, sizeof name, "%s%s", prefix, leaf);
    *param = cairn_param_find(m->weights->table, name);
    if (*param < 0)
        return cairn_fail(err, CAIRN_EBUG, "the parameter table has no %s", name);
    *t = m->weights->tensor[*param];
    return CAIRN_OK;
}

enum cairn_status cairn_kda_bind(struct cairn_kda_layer *l, const struct cairn_model *m, int layer, const char *prefix,
                                 struct cairn_error *err)
{
    static const char *const in[] = {"q_proj", "k_proj", "v_proj"}, *const taps[] = {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"};
    enum cairn_status st = CAIRN_OK;

    l->layer = layer;
    for (int i = 0; i < 3; i++) {
        TRY(bind_linear(&l->in[i], m, prefix, in[i], CAIRN_LINEAR_OUT, err));
        TRY(bind_plain(&l->taps[i], &l->w_taps[i], m, prefix, taps[i], err));
        l->w_taps[i] = taps_view(&l->w_taps[i]);
    }
    TRY(bind_linear(&l->f_a, m, prefix, "f_a_proj", CAIRN_LINEAR_WHOLE, err));
    TRY(bind_linear(&l->f_b, m, prefix, "f_b_proj", CAIRN_LINEAR_OUT, err));
    TRY(bind_linear(&l->b, m, prefix, "b_proj", CAIRN_LINEAR_OUT, err));
    TRY(bind_linear(&l->g_a, m, prefix, "g_a_proj", CAIRN_LINEAR_WHOLE, err));
    TRY(bind_linear(&l->g_b, m, prefix, "g_b_proj", CAIRN_LINEAR_OUT, err));
    TRY(bind_linear(&l->o, m, prefix, "o_proj", CAIRN_LINEAR_IN, err));
    TRY(bind_plain(&l->a_log, &l->w_a_log, m, prefix, "A_log", err));
    TRY(bind_plain(&l->dt_bias, &l->w_dt_bias, m, prefix, "dt_bias", err));
    TRY(bind_plain(&l->norm, &l->w_norm, m, prefix, "o_norm.weight", err));
out:
    return st;
}

void cairn_kda_carve_save(struct cairn_carve *c, const struct cairn_kda_layer *l, const struct cairn_model_config *cfg,
                          enum cairn_dtype act, int64_t n, struct cairn_kda_save *s)
{
    int64_t H = cfg->kda_heads, d = cfg->kda_dim, P = H * d;

    for (int i = 0; i < 3; i++) {
        s->raw[i] = cairn_carve2(c, act, n, P);
        s->x[i] = cairn_carve2(c, act, n, P);
        s->t_in[i] = cairn_linear_carve(c, &l->in[i], act, n);
    }
    s->fa = cairn_carve2(c, act, n, d);
    s->f = cairn_carve2(c, act, n, P);
    s->b = cairn_carve2(c, act, n, H);
    s->g = cairn_carve2(c, CAIRN_F32, n, P);
    s->beta = cairn_carve2(c, CAIRN_F32, n, H);
    s->za = cairn_carve2(c, act, n, d);
    s->z = cairn_carve2(c, act, n, P);
    s->o = cairn_carve2(c, act, n, P);
    s->rstd = cairn_carve1(c, CAIRN_F32, n * H);
    s->y = cairn_carve2(c, act, n, P);
    s->t_f_a = cairn_linear_carve(c, &l->f_a, act, n);
    s->t_f_b = cairn_linear_carve(c, &l->f_b, act, n);
    s->t_b = cairn_linear_carve(c, &l->b, act, n);
    s->t_g_a = cairn_linear_carve(c, &l->g_a, act, n);
    s->t_g_b = cairn_linear_carve(c, &l->g_b, act, n);
    s->t_o = cairn_linear_carve(c, &l->o, act, n);
}

void cairn_kda_carve_work(struct cairn_carve *c, const struct cairn_model_config *cfg, enum cairn_dtype act, int64_t n, int train,
                          struct cairn_kda_work *w)
{
    int64_t H = cfg->kda_heads, d = cfg->kda_dim;

    if (!train)
        return;
    w->dy = cairn_carve2(c, act, n, H * d);
    w->draw = cairn_carve2(c, act, n, H * d);
    w->da = cairn_carve2(c, act, n, d);
    w->dbeta = cairn_carve2(c, CAIRN_F32, n, H);
}

int64_t cairn_kda_dt(const struct cairn_kda_layer *l, int64_t n)
{
    const struct cairn_linear *all[] = {&l->in[0], &l->in[1], &l->in[2], &l->f_a, &l->f_b, &l->b, &l->g_a, &l->g_b, &l->o};
    int64_t most = 0;

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->lora && n * all[i]->lora->rank > most)
            most = n * all[i]->lora->rank;
    return most;
}

/* ---- forward --------------------------------------------------------------------------------------------------- */

enum cairn_status cairn_kda_forward(const struct cairn_call *c, const struct cairn_kda_layer *l, const struct cairn_tensor *x,
                                    const struct cairn_tensor *y, const struct cairn_kda_save *s, struct cairn_error *err)
{
    const struct cairn_model_config *cfg = c->c;
    struct cairn_cache_kda past = c->cache ? cairn_cache_kda(c->cache, l->layer) : (struct cairn_cache_kda){0};
    const struct cairn_tensor *pos = &c->keys.pos, *seq = &c->keys.seq;
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < 3; i++) {
        TRY(cairn_linear_forward(c, &l->in[i], NULL, x, &s->raw[i], 0, &s->t_in[i], err));
        OP(c, short_conv, .x = s->raw[i], .w = l->w_taps[cairn_planted("kda-conv-of-another") && i == 2 ? 1 : i], .y = s->x[i], .pos = *pos,
           .seq = *seq, .tail = past.tail[i]);
    }
    TRY(cairn_linear_forward(c, &l->f_a, NULL, x, &s->fa, 0, &s->t_f_a, err));
    TRY(cairn_linear_forward(c, &l->f_b, NULL, &s->fa, &s->f, 0, &s->t_f_b, err));
    TRY(cairn_linear_forward(c, &l->b, NULL, x, &s->b, 0, &s->t_b, err));
    OP(c, kda_gate, .f = s->f, .b = s->b, .a_log = l->w_a_log, .dt_bias = l->w_dt_bias, .g = s->g, .beta = s->beta,
       .bound = cfg->kda_bound);
    OP(c, kda, .q = by_head(c, &s->x[0]), .k = by_head(c, &s->x[1]), .v = by_head(c, &s->x[2]), .g = by_head(c, &s->g), .beta = s->beta,
       .o = by_head(c, &s->o), .pos = *pos, .seq = *seq, .state = past.state, .scale = 1 / sqrtf((float)cfg->kda_dim),
       .eps = cairn_planted("kda-l2-eps") ? 1e-2f : L2_EPS);
    TRY(cairn_linear_forward(c, &l->g_a, NULL, x, &s->za, 0, &s->t_g_a, err));
    TRY(cairn_linear_forward(c, &l->g_b, NULL, cairn_planted("kda-output-gate-of-decay") ? &s->fa : &s->za, &s->z, 0, &s->t_g_b, err));
    OP(c, gated_norm, .x = heads(c, &s->o), .z = heads(c, &s->z), .w = l->w_norm, .y = heads(c, &s->y), .rstd = s->rstd,
       .eps = cfg->norm_eps);
    TRY(cairn_linear_forward(c, &l->o, NULL, &s->y, y, 1, &s->t_o, err));
out:
    return st;
}

/* ---- backward -------------------------------------------------------------------------------------------------- */

/* The two products of a gate, from the gradient of the second one's output to x: dx +=. */
static enum cairn_status gate_backward(const struct cairn_call *c, const struct cairn_linear *a, const struct cairn_linear *b,
                                       const struct cairn_tensor *x, const struct cairn_tensor *inner, const struct cairn_tensor *t_a,
                                       const struct cairn_tensor *t_b, const struct cairn_tensor *dy, const struct cairn_tensor *dx,
                                       const struct cairn_kda_work *w, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_linear_backward(c, b, NULL, inner, t_b, dy, &w->da, 0, err));
    TRY(cairn_linear_backward(c, a, NULL, x, t_a, &w->da, dx, 1, err));
out:
    return st;
}

enum cairn_status cairn_kda_backward(const struct cairn_call *c, const struct cairn_kda_layer *l, const struct cairn_tensor *x,
                                     const struct cairn_tensor *dy, const struct cairn_tensor *dx, const struct cairn_kda_save *s,
                                     const struct cairn_kda_work *w, struct cairn_error *err)
{
    const struct cairn_model_config *cfg = c->c;
    const struct cairn_tensor *pos = &c->keys.pos, *seq = &c->keys.seq;
    struct cairn_tensor g = by_head(c, &s->g), d_o = by_head(c, &w->dy);
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_linear_backward(c, &l->o, NULL, &s->y, &s->t_o, dy, &w->dy, 0, err));
    OP(c, gated_norm_bwd, .x = heads(c, &s->o), .z = heads(c, &s->z), .w = l->w_norm, .rstd = s->rstd, .dy = heads(c, &w->dy),
       .dx = heads(c, &w->dy), .dz = heads(c, &s->z), .dw = cairn_call_grad(c, l->norm));
    OP(c, kda_bwd, .q = by_head(c, &s->x[0]), .k = by_head(c, &s->x[1]), .v = by_head(c, &s->x[2]), .g = g, .beta = s->beta, .d_o = d_o,
       .dq = by_head(c, &s->x[0]), .dk = by_head(c, &s->x[1]), .dv = by_head(c, &s->x[2]), .dg = g, .dbeta = w->dbeta, .pos = *pos,
       .seq = *seq, .scale = 1 / sqrtf((float)cfg->kda_dim), .eps = L2_EPS);
    OP(c, kda_gate_bwd, .f = s->f, .b = s->b, .a_log = l->w_a_log, .dt_bias = l->w_dt_bias, .dg = s->g, .dbeta = w->dbeta, .df = s->f,
       .db = s->b, .da_log = cairn_call_grad(c, l->a_log), .ddt_bias = cairn_call_grad(c, l->dt_bias), .bound = cfg->kda_bound);
    for (int i = 0; i < 3; i++) {
        struct cairn_tensor dw = cairn_call_grad(c, l->taps[i]);

        OP(c, short_conv_bwd, .x = s->raw[i], .w = l->w_taps[i], .dy = s->x[i], .dx = w->draw, .dw = taps_view(&dw), .pos = *pos, .seq = *seq);
        TRY(cairn_linear_backward(c, &l->in[i], NULL, x, &s->t_in[i], &w->draw, dx, i > 0, err));
    }
    TRY(gate_backward(c, &l->f_a, &l->f_b, x, &s->fa, &s->t_f_a, &s->t_f_b, &s->f, dx, w, err));
    TRY(gate_backward(c, &l->g_a, &l->g_b, x, &s->za, &s->t_g_a, &s->t_g_b, &s->z, dx, w, err));
    TRY(cairn_linear_backward(c, &l->b, NULL, x, &s->t_b, &s->b, dx, 1, err));
out:
    return st;
}

/* hyper.c - see hyper.h. The products with the site's matrix run here, everything else is in the ops; weights are computed in fp32. */
#include "model/hyper.h"

#include <stdio.h>

#include "base/planted.h"
#include "model/names.h"

static struct cairn_tensor streams(const struct cairn_call *c, const struct cairn_tensor *x)
{
    int64_t J = c->c->streams, D = c->c->width;

    return cairn_view3(x, 0, x->dim[0], J * D, J, D, D);
}

static enum cairn_status find(const struct cairn_model *m, int layer, const char *site, const char *leaf, int *param,
                              struct cairn_tensor *t, struct cairn_error *err)
{
    char suffix[64], name[CAIRN_NAME_BYTES];

    snprintf(suffix, sizeof suffix, "hc_%s_%s", cairn_planted("hyper-site-of-another") ? "attn" : site, leaf);
    cairn_name_of_layer(m->config, layer, suffix, name);
    *param = cairn_param_find(m->weights->table, name);
    if (*param < 0)
        return cairn_fail(err, CAIRN_EBUG, "the parameter table has no %s", name);
    *t = m->weights->tensor[*param];
    return CAIRN_OK;
}

enum cairn_status cairn_hyper_bind(struct cairn_hyper_site *l, const struct cairn_model *m, int layer, const char *site,
                                   struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(find(m, layer, site, "fn", &l->fn, &l->w, err));
    TRY(find(m, layer, site, "base", &l->base, &l->b, err));
    TRY(find(m, layer, site, "scale", &l->scale, &l->a, err));
out:
    return st;
}

void cairn_hyper_carve_save(struct cairn_carve *c, const struct cairn_model_config *cfg, enum cairn_dtype act, int64_t n,
                            struct cairn_hyper_save *s)
{
    int64_t M = (int64_t)cfg->streams * (cfg->streams + 2);

    s->m = cairn_carve2(c, CAIRN_F32, n, M);
    s->mix = cairn_carve2(c, CAIRN_F32, n, M);
    s->rstd = cairn_carve1(c, CAIRN_F32, n);
    s->c = cairn_carve2(c, act, n, cfg->width);
    s->y = cairn_carve2(c, act, n, cfg->width);
}

void cairn_hyper_carve_work(struct cairn_carve *c, const struct cairn_model_config *cfg, enum cairn_dtype act, int64_t n,
                            struct cairn_hyper_work *w)
{
    int64_t M = (int64_t)cfg->streams * (cfg->streams + 2);

    w->dy = cairn_carve2(c, act, n, cfg->width);
    w->dmix = cairn_carve2(c, CAIRN_F32, n, M);
    if (act != CAIRN_F32)
        w->dm = cairn_carve2(c, act, n, M);
}

enum cairn_status cairn_hyper_enter(const struct cairn_call *c, const struct cairn_hyper_site *l, const struct cairn_tensor *x,
                                    const struct cairn_hyper_save *s, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    OP(c, matmul, .form = CAIRN_NT, .x = *x, .w = l->w, .y = s->m, .alpha = 1, .segments = 1);
    OP(c, hyper, .x = streams(c, x), .m = s->m, .base = l->b, .scale = l->a, .mix = s->mix, .rstd = s->rstd, .y = s->c,
       .norm_eps = c->c->norm_eps, .eps = c->c->stream_eps, .iterations = c->c->stream_iters - cairn_planted("sinkhorn-one-less"));
    TRY(cairn_tensor_zero(&c->k->stream, &s->y, err));
out:
    return st;
}

enum cairn_status cairn_hyper_leave(const struct cairn_call *c, const struct cairn_tensor *x, const struct cairn_tensor *out,
                                    const struct cairn_hyper_save *s, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    OP(c, hyper_out, .x = streams(c, x), .y = s->y, .mix = s->mix, .out = streams(c, out));
out:
    return st;
}

enum cairn_status cairn_hyper_leave_backward(const struct cairn_call *c, const struct cairn_tensor *x, const struct cairn_tensor *dx,
                                             const struct cairn_hyper_save *s, const struct cairn_hyper_work *w, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    OP(c, hyper_out_bwd, .x = streams(c, x), .y = s->y, .mix = s->mix, .dout = streams(c, dx), .dy = w->dy, .dmix = w->dmix,
       .dx = streams(c, dx));
out:
    return st;
}

enum cairn_status cairn_hyper_enter_backward(const struct cairn_call *c, const struct cairn_hyper_site *l, const struct cairn_tensor *x,
                                             const struct cairn_tensor *dc, const struct cairn_tensor *dx,
                                             const struct cairn_hyper_save *s, const struct cairn_hyper_work *w, struct cairn_error *err)
{
    struct cairn_tensor dw = cairn_call_grad(c, l->fn), dm = w->dmix;
    enum cairn_status st = CAIRN_OK;

    OP(c, hyper_bwd, .x = streams(c, x), .m = s->m, .base = l->b, .scale = l->a, .rstd = s->rstd, .dy = *dc, .dmix = w->dmix,
       .dm = w->dmix, .dx = streams(c, dx), .dbase = cairn_call_grad(c, l->base), .dscale = cairn_call_grad(c, l->scale),
       .eps = c->c->stream_eps, .iterations = c->c->stream_iters);
    if (c->act != CAIRN_F32) {
        OP(c, cast, .src = w->dmix, .dst = w->dm, .round_to = -1);
        dm = w->dm;
    }
    if (dw.buf)
        OP(c, matmul, .form = CAIRN_TN, .x = dm, .w = *x, .y = dw, .alpha = 1, .accumulate = 1, .segments = 1);
    OP(c, matmul, .form = CAIRN_NN, .x = dm, .w = l->w, .y = *dx, .alpha = 1, .accumulate = 1, .segments = 1);
out:
    return st;
}

enum cairn_status cairn_hyper_spread(const struct cairn_call *c, const struct cairn_tensor *x1, const struct cairn_tensor *x, float a,
                                     struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    OP(c, streams_spread, .x = *x1, .y = streams(c, x), .a = a);
out:
    return st;
}

enum cairn_status cairn_hyper_sum(const struct cairn_call *c, const struct cairn_tensor *x, const struct cairn_tensor *x1, float a,
                                  struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    OP(c, streams_sum, .x = streams(c, x), .y = *x1, .a = a);
out:
    return st;
}

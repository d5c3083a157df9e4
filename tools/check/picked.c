/* picked.c - see picked.h. */
#include "tools/check/picked.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/convert.h"
#include "tools/check/plain.h"
#include "tools/check/trace.h"

void cairn_picked_free(struct cairn_picked *p)
{
    struct cairn_sides *x = p->x;

    for (int i = 0; i < x->trainer.policy.config.layers; i++) {
        if (p->keys)
            free(p->keys[i]);
        if (p->experts)
            free(p->experts[i]);
    }
    for (int s = 0; s < 2; s++) {
        free(p->in[s]);
        free(p->given[s]);
        free(p->made[s]);
        free(p->mix[s]);
    }
    free(p->last);
    free(p->head);
    free(p->keys);
    free(p->key_width);
    free(p->experts);
    free(p->logprob);
    *p = (struct cairn_picked){.x = x};
}

static float *room(int64_t n)
{
    return calloc((size_t)n + 1, sizeof(float));
}

static enum cairn_status make(struct cairn_picked *p, struct cairn_error *err)
{
    const struct cairn_model_config *c = &p->x->trainer.policy.config;
    int64_t rows = p->x->trainer.micro.rows, J = c->streams;
    int have = 1;

    cairn_picked_free(p);
    p->rows = rows;
    p->width = (J ? J : 1) * c->width;
    p->mixes = J * (J + 2);
    p->layer = -1;
    for (int s = 0; s < 2; s++) {
        p->in[s] = room(c->layers * rows * p->width);
        p->given[s] = room(J ? c->layers * rows * c->width : 0);
        p->made[s] = room(J ? c->layers * rows * c->width : 0);
        p->mix[s] = room(c->layers * rows * p->mixes);
        have &= p->in[s] && p->given[s] && p->made[s] && p->mix[s];
    }
    p->last = room(rows * p->width);
    p->head = room(rows * c->width);
    p->keys = calloc((size_t)c->layers, sizeof *p->keys);
    p->key_width = calloc((size_t)c->layers, sizeof *p->key_width);
    p->experts = calloc((size_t)c->layers, sizeof *p->experts);
    p->logprob = room(rows);
    return have && p->last && p->head && p->keys && p->key_width && p->experts && p->logprob ? CAIRN_OK : CAIRN_NOMEM(err);
}

/* ---- picking up ------------------------------------------------------------------------------------------------------------- */

static enum cairn_status take(struct cairn_picked *p, const struct cairn_tensor *t, float *to, int64_t width, struct cairn_error *err)
{
    size_t bytes = cairn_tensor_bytes(t);
    char *h = malloc(bytes ? bytes : 1);
    enum cairn_status st = CAIRN_OK;

    if (!h)
        return CAIRN_NOMEM(err);
    if (!cairn_tensor_dense(t) || t->dim[0] != p->rows || cairn_tensor_count(t) != p->rows * width)
        TRY(CAIRN_BUG(err, "rows of a block that are no whole ones"));
    TRY(cairn_tensor_get(&p->x->k.stream, t, h, bytes, err));
    for (int64_t i = 0; i < cairn_tensor_count(t); i++)
        to[i] = (float)cairn_value(t->dtype, h, i);
out:
    free(h);
    return st;
}

static enum cairn_status choice_take(struct cairn_picked *p, const struct cairn_tensor *t, int32_t **to, struct cairn_error *err)
{
    size_t bytes = cairn_tensor_bytes(t);

    free(*to);
    if (!(*to = malloc(bytes ? bytes : 1)))
        return CAIRN_NOMEM(err);
    return cairn_tensor_get(&p->x->k.stream, t, *to, bytes, err);
}

/* The layer in a parameter's name, -1: none. */
static int layer_of(const char *param)
{
    const char *at = strstr(param, "layers.");

    return at ? atoi(at + 7) : -1;
}

static enum cairn_status before(void *arg, const struct cairn_trace_call *c, struct cairn_error *err)
{
    struct cairn_picked *p = arg;
    int64_t layer = layer_of(c->param), D = p->x->trainer.policy.config.width;
    int site = strstr(c->param, "post_attention_layernorm") != NULL;

    if (c->op == CAIRN_OP_hyper) {
        p->site = p->layer == (int)layer; /* the second of a layer, whatever its weights are called */
        p->layer = (int)layer;
        return take(p, &((const struct cairn_hyper *)c->args)->x, p->in[p->site] + layer * p->rows * p->width, p->width, err);
    }
    if (c->op == CAIRN_OP_streams_sum)
        return take(p, &((const struct cairn_streams_sum *)c->args)->x, p->last, p->width, err);
    if (c->op != CAIRN_OP_rmsnorm || !c->exact)
        return CAIRN_OK;
    if (layer < 0) {
        enum cairn_status st = take(p, &((const struct cairn_rmsnorm *)c->args)->x, p->head, D, err);

        if (st == CAIRN_OK && !p->mixes)
            memcpy(p->last, p->head, (size_t)(p->rows * D) * sizeof *p->last);
        return st;
    }
    if (p->mixes || (!site && !strstr(c->param, "input_layernorm")))
        return CAIRN_OK;
    return take(p, &((const struct cairn_rmsnorm *)c->args)->x, p->in[site] + layer * p->rows * D, D, err);
}

/* The far end of a hyper-connection, whose near end was the last one entered. */
static enum cairn_status block_take(struct cairn_picked *p, const struct cairn_hyper_out *o, struct cairn_error *err)
{
    int64_t D = p->x->trainer.policy.config.width, at = p->layer * p->rows;
    enum cairn_status st = CAIRN_OK;

    TRY(take(p, &o->y, p->made[p->site] + at * D, D, err));
    TRY(take(p, &o->mix, p->mix[p->site] + at * p->mixes, p->mixes, err));
out:
    return st;
}

static enum cairn_status after(void *arg, const struct cairn_trace_call *c, struct cairn_error *err)
{
    struct cairn_picked *p = arg;
    const struct cairn_model_config *cfg = &p->x->trainer.policy.config;
    int layer = layer_of(c->param);
    struct cairn_tensor t;

    if (c->op == CAIRN_OP_hyper)
        return take(p, &((const struct cairn_hyper *)c->args)->y, p->given[p->site] + p->layer * p->rows * cfg->width, cfg->width, err);
    if (c->op == CAIRN_OP_hyper_out)
        return block_take(p, c->args, err);
    if (c->op == (cfg->arch == CAIRN_ARCH_GLM5_NEXT ? CAIRN_OP_pool_expand : CAIRN_OP_index) && layer >= 0) {
        t = c->op == CAIRN_OP_index ? ((const struct cairn_index *)c->args)->idx : ((const struct cairn_pool_expand *)c->args)->idx;
        p->key_width[layer] = t.dim[1];
        return choice_take(p, &t, &p->keys[layer], err);
    }
    if (c->op == CAIRN_OP_router && layer >= 0)
        return choice_take(p, &((const struct cairn_router *)c->args)->idx, &p->experts[layer], err);
    if (c->op == CAIRN_OP_logprob)
        return cairn_tensor_get(&p->x->k.stream, &((const struct cairn_logprob *)c->args)->logprob, p->logprob, (size_t)p->rows * sizeof *p->logprob,
                                err);
    return CAIRN_OK;
}

enum cairn_status cairn_picked_forward(struct cairn_picked *p, struct cairn_error *err)
{
    struct cairn_sides *x = p->x;
    const struct cairn_policy *w = &x->trainer.policy;
    struct cairn_trace trace = {
        .k = &x->k, .stores = {&w->weights, w->lora ? &w->adapter_weights : NULL}, .before = before, .after = after, .arg = p};
    struct cairn_scores scores;
    enum cairn_status st = CAIRN_OK;

    TRY(make(p, err));
    cairn_trace_begin(&trace);
    st = cairn_trainer_forward(&x->trainer, x->temperature, &scores, err);
    cairn_trace_end(&trace);
out:
    return st;
}

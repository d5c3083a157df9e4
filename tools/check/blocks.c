/* blocks.c - see blocks.h. */
#include "tools/check/blocks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/check/plain.h"
#include "tools/check/trace.h"

#define TIES(rows) ((rows) / 50 + 1) /* rows of a block whose choice may differ, because two scores all but tie */

/* What the trace has picked up of one micro-batch. */
struct picked {
    struct cairn_sides *x;
    int64_t rows;
    double *in, *mid;    /* (layers, rows, D): the residual stream before attention, before the MLP */
    double *last;        /* (rows, D) */
    int32_t **keys;      /* [layers] (rows, width) of full layers, or NULL */
    int64_t *key_width;  /* [layers] */
    int32_t **experts;   /* [layers] (rows, k), or NULL */
    float *logprob;      /* (rows) */
};

static void picked_free(struct picked *p)
{
    for (int i = 0; i < p->x->trainer.policy.config.layers; i++) {
        if (p->keys)
            free(p->keys[i]);
        if (p->experts)
            free(p->experts[i]);
    }
    free(p->keys);
    free(p->key_width);
    free(p->experts);
    free(p->in);
    free(p->mid);
    free(p->last);
    free(p->logprob);
}

static enum cairn_status picked_make(struct picked *p, struct cairn_sides *x, int64_t rows, struct cairn_error *err)
{
    const struct cairn_model_config *c = &x->trainer.policy.config;
    size_t stream = (size_t)(rows * c->width), layers = (size_t)c->layers;

    *p = (struct picked){.x = x, .rows = rows};
    p->in = calloc(layers * stream, sizeof *p->in);
    p->mid = calloc(layers * stream, sizeof *p->mid);
    p->last = calloc(stream, sizeof *p->last);
    p->keys = calloc(layers, sizeof *p->keys);
    p->key_width = calloc(layers, sizeof *p->key_width);
    p->experts = calloc(layers, sizeof *p->experts);
    p->logprob = calloc((size_t)rows, sizeof *p->logprob);
    return p->in && p->mid && p->last && p->keys && p->key_width && p->experts && p->logprob ? CAIRN_OK : CAIRN_NOMEM(err);
}

/* ---- picking up ------------------------------------------------------------------------------------------------------------- */

static enum cairn_status stream_take(struct picked *p, const struct cairn_tensor *t, double *to, struct cairn_error *err)
{
    size_t bytes = cairn_tensor_bytes(t);
    char *h = malloc(bytes ? bytes : 1);
    enum cairn_status st = CAIRN_OK;

    if (!h)
        return CAIRN_NOMEM(err);
    if (!cairn_tensor_dense(t) || t->dim[0] != p->rows)
        TRY(CAIRN_BUG(err, "a residual stream that is no whole one"));
    TRY(cairn_tensor_get(&p->x->k.stream, t, h, bytes, err));
    for (int64_t i = 0; i < cairn_tensor_count(t); i++)
        to[i] = cairn_plain_widen(h, t->dtype, i);
out:
    free(h);
    return st;
}

static enum cairn_status choice_take(struct picked *p, const struct cairn_tensor *t, int32_t **to, struct cairn_error *err)
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
    struct picked *p = arg;
    int layer = layer_of(c->param);
    size_t at = (size_t)(layer < 0 ? 0 : layer) * (size_t)(p->rows * p->x->trainer.policy.config.width);
    const struct cairn_tensor *x;

    if (c->op != CAIRN_OP_rmsnorm || !c->exact)
        return CAIRN_OK;
    x = &((const struct cairn_rmsnorm *)c->args)->x;
    if (strstr(c->param, "input_layernorm"))
        return stream_take(p, x, p->in + at, err);
    if (strstr(c->param, "post_attention_layernorm"))
        return stream_take(p, x, p->mid + at, err);
    return layer < 0 ? stream_take(p, x, p->last, err) : CAIRN_OK;
}

static enum cairn_status after(void *arg, const struct cairn_trace_call *c, struct cairn_error *err)
{
    struct picked *p = arg;
    int layer = layer_of(c->param);
    struct cairn_tensor t;

    if (c->op == CAIRN_OP_index && layer >= 0) {
        t = ((const struct cairn_index *)c->args)->idx;
        p->key_width[layer] = t.dim[1];
        return choice_take(p, &t, &p->keys[layer], err);
    }
    if (c->op == CAIRN_OP_router && layer >= 0)
        return choice_take(p, &((const struct cairn_router *)c->args)->idx, &p->experts[layer], err);
    if (c->op == CAIRN_OP_logprob)
        return cairn_tensor_get(&p->x->k.stream, &((const struct cairn_logprob *)c->args)->logprob, p->logprob, (size_t)p->rows * sizeof *p->logprob, err);
    return CAIRN_OK;
}

/* ---- holding against ----------------------------------------------------------------------------------------------------------- */

struct holding {
    struct picked *p;
    struct cairn_plain *plain;
    const struct cairn_model_config *c;
    double bar, rounding; /* of a block's own size; of the stream that it is added to */
    double worst;         /* share of what is allowed that was used up at most */
    int64_t blocks;
};

static enum cairn_status finding(int layer, const char *block, int64_t row, const struct cairn_sequence *s, const struct cairn_sides *x, const char *what,
                                 struct cairn_error *err)
{
    char where[64];

    if (layer < 0)
        snprintf(where, sizeof where, "%s", block);
    else
        snprintf(where, sizeof where, "layer %d %s", layer, block);
    return cairn_fail(err, CAIRN_ENUMERIC, "right: %s: at token %lld of sequence %s %s", where, (long long)row, x->q.name[s->index], what);
}

/* after = before + plain, row by row. */
static enum cairn_status sums_hold(struct holding *h, int layer, const char *block, const struct cairn_sequence *s, const double *before, const double *after_,
                                   const double *added, int64_t n, struct cairn_error *err)
{
    int64_t D = h->c->width;
    enum cairn_status st = CAIRN_OK;
    char what[120];

    for (int64_t t = 0; t < n; t++) {
        double size = 0, stream = 0, apart = 0, allowed;

        for (int64_t i = 0; i < D; i++) {
            double a = after_[t * D + i], d = fabs(a - before[t * D + i] - added[t * D + i]);

            size = fmax(size, fabs(added[t * D + i]));
            stream = fmax(stream, fabs(a));
            if (!(d <= apart))
                apart = isnan(d) ? INFINITY : d;
        }
        allowed = h->bar * size + h->rounding * stream;
        h->worst = fmax(h->worst, apart / fmax(allowed, 1e-300));
        if (!(apart <= allowed)) {
            snprintf(what, sizeof what, "it adds what is off by %.3g of its size, %.3g would do", apart / fmax(size, 1e-300), allowed / fmax(size, 1e-300));
            TRY(finding(layer, block, t, s, h->p->x, what, err));
        }
    }
    h->blocks++;
out:
    return st;
}

/* Sets of a sequence as 0 and 1; returns the first row that differs in *row and how many do. */
static int64_t sets_apart(const uint8_t *a, const uint8_t *b, int64_t n, int64_t width, int64_t *row)
{
    int64_t apart = 0;

    for (int64_t t = n - 1; t >= 0; t--)
        if (memcmp(a + t * width, b + t * width, (size_t)width) != 0) {
            apart++;
            *row = t;
        }
    return apart;
}

static enum cairn_status sets_hold(struct holding *h, int layer, const char *block, const struct cairn_sequence *s, const uint8_t *mine, const uint8_t *theirs,
                                   int64_t n, int64_t width, struct cairn_error *err)
{
    int64_t row = 0, apart = sets_apart(mine, theirs, n, width, &row);
    char what[120];

    if (apart <= TIES(n))
        return CAIRN_OK;
    snprintf(what, sizeof what, "and %lld further rows of it other choices are made", (long long)(apart - 1));
    return finding(layer, block, row, s, h->p->x, what, err);
}

/* One sequence of the micro-batch, whose rows begin at `first`. */
static enum cairn_status sequence_hold(struct holding *h, const struct cairn_sequence *s, int64_t first, int64_t n, struct cairn_error *err)
{
    const struct picked *p = h->p;
    const struct cairn_model_config *c = h->c;
    int64_t D = c->width, E = c->experts > 0 ? c->experts : 1;
    double *added = malloc((size_t)(n * D) * sizeof *added);
    uint8_t *keys = calloc((size_t)(n * n), 1), *chosen = calloc((size_t)(n * n), 1), *experts = calloc((size_t)(n * E), 1), *taken = calloc((size_t)(n * E), 1);
    enum cairn_status st = CAIRN_OK;

    if (!added || !keys || !chosen || !experts || !taken)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_plain_embed(h->plain, s->tokens, n, added, err));
    for (int64_t i = 0; i < n * D; i++)
        if (!(fabs(added[i] - p->in[first * D + i]) <= h->rounding * fabs(added[i])))
            TRY(finding(-1, "embedding", i / D, s, p->x, "it is not the table's row", err));
    for (int l = 0; l < c->layers; l++) {
        const double *in = p->in + ((int64_t)l * p->rows + first) * D, *mid = p->mid + ((int64_t)l * p->rows + first) * D,
                     *out = l + 1 < c->layers ? p->in + ((int64_t)(l + 1) * p->rows + first) * D : p->last + first * D;

        if (p->keys[l]) {
            memset(keys, 0, (size_t)(n * n));
            for (int64_t t = 0; t < n; t++)
                for (int64_t k = 0; k < p->key_width[l]; k++) {
                    int32_t key = p->keys[l][(first + t) * p->key_width[l] + k];

                    if (key >= n)
                        TRY(finding(l, "indexer", t, s, p->x, "a key behind the end of the sequence is chosen", err));
                    if (key >= 0)
                        keys[t * n + key] = 1;
                }
        }
        TRY(cairn_plain_attention(h->plain, l, in, n, chosen, keys, added, err));
        if (c->indexer[l])
            TRY(sets_hold(h, l, "indexer", s, keys, chosen, n, n, err));
        TRY(sums_hold(h, l, "attention", s, in, mid, added, n, err));
        if (!c->dense[l]) {
            memset(taken, 0, (size_t)(n * E));
            for (int64_t t = 0; p->experts[l] && t < n; t++)
                for (int k = 0; k < c->experts_per_token; k++)
                    taken[t * E + p->experts[l][(first + t) * c->experts_per_token + k]] = 1;
        }
        TRY(cairn_plain_mlp(h->plain, l, mid, n, experts, c->dense[l] ? NULL : taken, added, err));
        if (!c->dense[l])
            TRY(sets_hold(h, l, "router", s, taken, experts, n, E, err));
        TRY(sums_hold(h, l, c->dense[l] ? "mlp" : "experts", s, mid, out, added, n, err));
    }
    {
        int32_t *target = malloc((size_t)n * sizeof *target);

        if (!target)
            TRY(CAIRN_NOMEM(err));
        for (int64_t t = 0; t < n; t++)
            target[t] = t + 1 >= s->prompt ? s->tokens[t + 1] : -1;
        st = cairn_plain_logprobs(h->plain, p->last + first * D, n, target, (double)p->x->temperature, added, err);
        for (int64_t t = 0; st == CAIRN_OK && t < n; t++)
            if (target[t] >= 0 && !(fabs(added[t] - (double)p->logprob[first + t]) <= h->bar * fmax(1, fabs(added[t]))))
                st = finding(-1, "head", t, s, p->x, "the log-probability of the next token is another", err);
        free(target);
        TRY(st);
    }
out:
    free(added);
    free(keys);
    free(chosen);
    free(experts);
    free(taken);
    return st;
}

enum cairn_status cairn_blocks_check(struct cairn_sides *x, const struct cairn_sequence *s, int n, json_t *report, struct cairn_error *err)
{
    struct cairn_trainer *t = &x->trainer;
    const struct cairn_policy *w = &t->policy;
    int narrow = x->k.act == CAIRN_BF16;
    struct holding h = {.c = &w->config, .bar = narrow ? 3e-2 : 1e-4, .rounding = narrow ? 0x1p-7 : 0x1p-21};
    struct picked p = {.x = x};
    int64_t next = 0, number = 0;
    enum cairn_status st = CAIRN_OK;

    if (!cairn_plain_knows(&w->config)) { /* said, not passed over */
        if (json_object_set_new(report, "blocks", json_pack("{s:s}", "left_out", "glm5_next")))
            TRY(CAIRN_NOMEM(err));
        goto out;
    }
    TRY(cairn_plain_open(&h.plain, w, &x->k, err));
    h.p = &p;
    while (cairn_trainer_fill(t, s, n, &next, &number)) {
        struct cairn_trace trace = {.k = &x->k, .stores = {&w->weights, w->lora ? &w->adapter_weights : NULL}, .before = before, .after = after, .arg = &p};
        struct cairn_scores scores;

        picked_free(&p);
        TRY(picked_make(&p, x, t->micro.rows, err));
        cairn_trace_begin(&trace);
        st = cairn_trainer_forward(t, x->temperature, &scores, err);
        cairn_trace_end(&trace);
        TRY(st);
        for (int i = 0; i < t->micro.nseq; i++) {
            TRY(cairn_stage_stopping(err));
            TRY(sequence_hold(&h, t->micro.member[i], t->micro.start[i], t->micro.member[i]->length - 1, err));
        }
    }
    if (json_object_set_new(report, "blocks", json_pack("{s:I, s:f}", "held", (json_int_t)h.blocks, "worst", h.worst)))
        TRY(CAIRN_NOMEM(err));
out:
    picked_free(&p);
    cairn_plain_close(h.plain);
    return st;
}

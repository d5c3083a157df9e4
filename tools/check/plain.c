/* plain.c - see plain.h. */
#include "tools/check/plain.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/names.h"

struct cairn_plain {
    const struct cairn_policy *policy;
    const struct cairn_model_config *c;
    struct cairn_compute *k;
};

/* A parameter with its adapter merged in: (experts of it, rows, columns); experts is 1 for a plain matrix or vector. */
struct matrix {
    double *w;
    int64_t experts, rows, cols;
};

int cairn_plain_knows(const struct cairn_model_config *c)
{
    return c->arch == CAIRN_ARCH_GLM_MOE_DSA;
}

enum cairn_status cairn_plain_open(struct cairn_plain **out, const struct cairn_policy *policy, struct cairn_compute *k, struct cairn_error *err)
{
    struct cairn_plain *p;

    if (!cairn_plain_knows(&policy->config))
        return cairn_fail(err, CAIRN_EUSAGE, "the plain reference knows glm_moe_dsa only");
    if (!(p = calloc(1, sizeof *p)))
        return CAIRN_NOMEM(err);
    *p = (struct cairn_plain){policy, &policy->config, k};
    *out = p;
    return CAIRN_OK;
}

void cairn_plain_close(struct cairn_plain *p)
{
    free(p);
}

/* ---- weights ---------------------------------------------------------------------------------------------------------------- */

double cairn_plain_widen(const char *h, enum cairn_dtype t, int64_t i)
{
    uint32_t bits;
    uint16_t half;
    float f;

    if (t == CAIRN_F32) {
        memcpy(&f, h + 4 * i, 4);
        return (double)f;
    }
    memcpy(&half, h + 2 * i, 2);
    bits = (uint32_t)half << 16;
    memcpy(&f, &bits, 4);
    return (double)f;
}

static enum cairn_status values(struct cairn_plain *p, const struct cairn_tensor *t, double **out, struct cairn_error *err)
{
    int64_t n = cairn_tensor_count(t);
    size_t bytes = cairn_tensor_bytes(t);
    char *h = malloc(bytes ? bytes : 1);
    enum cairn_status st = CAIRN_OK;

    *out = malloc(((size_t)n + 1) * sizeof **out);
    if (!h || !*out)
        TRY(CAIRN_NOMEM(err));
    if (t->dtype != CAIRN_F32 && t->dtype != CAIRN_BF16)
        TRY(CAIRN_BUG(err, "weights of a type that has no meaning here"));
    TRY(cairn_tensor_get(&p->k->stream, t, h, bytes, err));
    for (int64_t i = 0; i < n; i++)
        (*out)[i] = cairn_plain_widen(h, t->dtype, i);
out:
    free(h);
    return st;
}

/* W += gamma B A, expert by expert. */
static enum cairn_status adapter_merge(struct cairn_plain *p, int param, struct matrix *m, struct cairn_error *err)
{
    const struct cairn_policy *o = p->policy;
    const struct cairn_lora *l;
    double *a = NULL, *b = NULL;
    enum cairn_status st = CAIRN_OK;

    if (!o->lora || o->adapter.of_param[param] < 0)
        return CAIRN_OK;
    l = &o->adapter.lora[o->adapter.of_param[param]];
    TRY(values(p, &o->adapter_weights.tensor[l->a], &a, err));
    TRY(values(p, &o->adapter_weights.tensor[l->b], &b, err));
    for (int64_t e = 0; e < m->experts; e++)
        for (int64_t i = 0; i < m->rows; i++)
            for (int64_t r = 0; r < l->rank; r++) {
                double f = (double)l->gamma * b[(e * m->rows + i) * l->rank + r];

                for (int64_t j = 0; j < m->cols; j++)
                    m->w[(e * m->rows + i) * m->cols + j] += f * a[(e * l->rank + r) * m->cols + j];
            }
out:
    free(a);
    free(b);
    return st;
}

static enum cairn_status matrix_get(struct cairn_plain *p, struct matrix *m, const char *name, struct cairn_error *err)
{
    int i = cairn_param_find(&p->policy->table, name);
    const struct cairn_param *q = i < 0 ? NULL : &p->policy->table.param[i];
    enum cairn_status st = CAIRN_OK;

    *m = (struct matrix){.experts = 1, .cols = 1};
    if (!q)
        return cairn_fail(err, CAIRN_EBUG, "no parameter %s", name);
    m->experts = q->ndim == 3 ? q->dim[0] : 1;
    m->rows = q->dim[q->ndim == 3];
    m->cols = q->ndim == 1 ? 1 : q->dim[q->ndim - 1];
    TRY(values(p, &p->policy->weights.tensor[i], &m->w, err));
    TRY(adapter_merge(p, i, m, err));
out:
    return st;
}

static enum cairn_status layer_matrix(struct cairn_plain *p, struct matrix *m, int layer, const char *leaf, struct cairn_error *err)
{
    char name[CAIRN_NAME_BYTES];

    cairn_name_of_layer(p->c, layer, leaf, name);
    return matrix_get(p, m, name, err);
}

static enum cairn_status model_matrix(struct cairn_plain *p, struct matrix *m, const char *leaf, struct cairn_error *err)
{
    char name[CAIRN_NAME_BYTES];

    cairn_name_of_model(p->c, leaf, name);
    return matrix_get(p, m, name, err);
}

/* ---- formulas --------------------------------------------------------------------------------------------------------------- */

/* y = W x, of expert e. */
static void apply(const struct matrix *m, int64_t e, const double *x, double *y)
{
    for (int64_t i = 0; i < m->rows; i++) {
        const double *w = m->w + (e * m->rows + i) * m->cols;

        y[i] = 0;
        for (int64_t j = 0; j < m->cols; j++)
            y[i] += w[j] * x[j];
    }
}

static void rms_norm(const double *x, const double *g, int64_t n, double eps, double *y)
{
    double sum = 0, r;

    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    r = 1 / sqrt(sum / (double)n + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = g[i] * x[i] * r;
}

static void layer_norm(double *x, const double *g, const double *b, int64_t n, double eps)
{
    double mean = 0, var = 0;

    for (int64_t i = 0; i < n; i++)
        mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        var += (x[i] - mean) * (x[i] - mean) / (double)n;
    for (int64_t i = 0; i < n; i++)
        x[i] = g[i] * (x[i] - mean) / sqrt(var + eps) + b[i];
}

/* Pairs (2j, 2j + 1) turned by pos * theta^(-2j/R). */
static void rotate(double *u, int64_t R, int64_t pos, double theta)
{
    for (int64_t j = 0; j < R / 2; j++) {
        double angle = (double)pos * pow(theta, -2.0 * (double)j / (double)R), c = cos(angle), s = sin(angle), a = u[2 * j], b = u[2 * j + 1];

        u[2 * j] = a * c - b * s;
        u[2 * j + 1] = a * s + b * c;
    }
}

static double dot(const double *a, const double *b, int64_t n)
{
    double s = 0;

    for (int64_t i = 0; i < n; i++)
        s += a[i] * b[i];
    return s;
}

static double silu(double a)
{
    return a / (1 + exp(-a));
}

/* Marks the `want` largest of v[0, n) that are allowed (NULL: all), ties to the lower index. */
static void choose(const double *v, const uint8_t *allowed, int64_t n, int64_t want, uint8_t *out)
{
    memset(out, 0, (size_t)n);
    for (; want > 0; want--) {
        int64_t best = -1;

        for (int64_t i = 0; i < n; i++)
            if (!out[i] && (!allowed || allowed[i]) && (best < 0 || v[i] > v[best]))
                best = i;
        if (best < 0)
            return;
        out[best] = 1;
    }
}

/* ---- embedding and head ------------------------------------------------------------------------------------------------------- */

enum cairn_status cairn_plain_embed(struct cairn_plain *p, const int32_t *id, int64_t n, double *x, struct cairn_error *err)
{
    struct matrix e = {0};
    enum cairn_status st = model_matrix(p, &e, "embed_tokens.weight", err);

    for (int64_t i = 0; st == CAIRN_OK && i < n; i++)
        memcpy(x + i * e.cols, e.w + id[i] * e.cols, (size_t)e.cols * sizeof *x);
    free(e.w);
    return st;
}

enum cairn_status cairn_plain_logprobs(struct cairn_plain *p, const double *x, int64_t n, const int32_t *target, double temperature, double *out,
                                       struct cairn_error *err)
{
    struct matrix g = {0}, head = {0};
    double *z = malloc((size_t)p->c->width * sizeof *z), *l = malloc((size_t)p->c->vocab * sizeof *l);
    enum cairn_status st = CAIRN_OK;

    if (!z || !l)
        TRY(CAIRN_NOMEM(err));
    TRY(model_matrix(p, &g, "norm.weight", err));
    TRY(matrix_get(p, &head, "lm_head.weight", err));
    for (int64_t i = 0; i < n; i++) {
        double most = -INFINITY, sum = 0;

        out[i] = 0;
        if (target[i] < 0)
            continue;
        rms_norm(x + i * p->c->width, g.w, p->c->width, (double)p->c->norm_eps, z);
        apply(&head, 0, z, l);
        for (int64_t v = 0; v < p->c->vocab; v++) {
            l[v] /= temperature;
            most = fmax(most, l[v]);
        }
        for (int64_t v = 0; v < p->c->vocab; v++)
            sum += exp(l[v] - most);
        out[i] = l[target[i]] - most - log(sum);
    }
out:
    free(z);
    free(l);
    free(g.w);
    free(head.w);
    return st;
}

/* ---- attention ------------------------------------------------------------------------------------------------------------------ */

/* All of one attention block for n rows. */
struct attention {
    struct matrix norm, q_a, q_norm, q_b, kv_a, kv_norm, kv_b, o;    /* weights */
    struct matrix wq, wk, k_gain, k_bias, wp;                         /* of the indexer */
    double *h, *raw, *lat, *q, *kv, *c, *k, *mix, *iq, *ik, *iw, *score;
};

static enum cairn_status attention_weights(struct cairn_plain *p, struct attention *a, int layer, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(layer_matrix(p, &a->norm, layer, "input_layernorm.weight", err));
    TRY(layer_matrix(p, &a->q_a, layer, "self_attn.q_a_proj.weight", err));
    TRY(layer_matrix(p, &a->q_norm, layer, "self_attn.q_a_layernorm.weight", err));
    TRY(layer_matrix(p, &a->q_b, layer, "self_attn.q_b_proj.weight", err));
    TRY(layer_matrix(p, &a->kv_a, layer, "self_attn.kv_a_proj_with_mqa.weight", err));
    TRY(layer_matrix(p, &a->kv_norm, layer, "self_attn.kv_a_layernorm.weight", err));
    TRY(layer_matrix(p, &a->kv_b, layer, "self_attn.kv_b_proj.weight", err));
    TRY(layer_matrix(p, &a->o, layer, "self_attn.o_proj.weight", err));
    if (!p->c->indexer[layer])
        return CAIRN_OK;
    TRY(layer_matrix(p, &a->wq, layer, "self_attn.indexer.wq_b.weight", err));
    TRY(layer_matrix(p, &a->wk, layer, "self_attn.indexer.wk.weight", err));
    TRY(layer_matrix(p, &a->k_gain, layer, "self_attn.indexer.k_norm.weight", err));
    TRY(layer_matrix(p, &a->k_bias, layer, "self_attn.indexer.k_norm.bias", err));
    TRY(layer_matrix(p, &a->wp, layer, "self_attn.indexer.weights_proj.weight", err));
out:
    return st;
}

static void attention_free(struct attention *a)
{
    struct matrix *const m[] = {&a->norm, &a->q_a, &a->q_norm, &a->q_b, &a->kv_a, &a->kv_norm, &a->kv_b, &a->o, &a->wq, &a->wk, &a->k_gain, &a->k_bias, &a->wp};
    double *const d[] = {a->h, a->raw, a->lat, a->q, a->kv, a->c, a->k, a->mix, a->iq, a->ik, a->iw, a->score};

    for (size_t i = 0; i < sizeof m / sizeof *m; i++)
        free(m[i]->w);
    for (size_t i = 0; i < sizeof d / sizeof *d; i++)
        free(d[i]);
}

static double *room(int64_t a, int64_t b)
{
    return calloc((size_t)(a * b) + 1, sizeof(double));
}

static enum cairn_status attention_room(const struct cairn_model_config *c, struct attention *a, int64_t n, struct cairn_error *err)
{
    int64_t H = c->heads, d = c->nope + c->rope;

    a->h = room(n, c->width);
    a->raw = room(1, c->q_rank);
    a->lat = room(n, c->q_rank);
    a->q = room(n, H * d);
    a->kv = room(n, c->kv_rank + c->rope);
    a->c = room(n, c->kv_rank);
    a->k = room(n, H * (c->nope + c->v_dim));
    a->mix = room(H, c->v_dim);
    a->iq = room(n, c->index_heads * c->index_dim);
    a->ik = room(n, c->index_dim);
    a->iw = room(n, c->index_heads);
    a->score = room(n, 1);
    return a->h && a->raw && a->lat && a->q && a->kv && a->c && a->k && a->mix && a->iq && a->ik && a->iw && a->score ? CAIRN_OK : CAIRN_NOMEM(err);
}

/* Queries, latents, keys and values of every row, rotated. */
static void project(const struct cairn_model_config *c, struct attention *a, const double *x, int64_t n)
{
    int64_t d = c->nope + c->rope;

    for (int64_t t = 0; t < n; t++) {
        double *q = a->q + t * c->heads * d, *kv = a->kv + t * (c->kv_rank + c->rope);

        rms_norm(x + t * c->width, a->norm.w, c->width, (double)c->norm_eps, a->h + t * c->width);
        apply(&a->q_a, 0, a->h + t * c->width, a->raw);
        rms_norm(a->raw, a->q_norm.w, c->q_rank, (double)c->latent_norm_eps, a->lat + t * c->q_rank);
        apply(&a->q_b, 0, a->lat + t * c->q_rank, q);
        for (int64_t h = 0; h < c->heads; h++)
            rotate(q + h * d + c->nope, c->rope, t, (double)c->rope_theta);
        apply(&a->kv_a, 0, a->h + t * c->width, kv);
        rms_norm(kv, a->kv_norm.w, c->kv_rank, (double)c->latent_norm_eps, a->c + t * c->kv_rank);
        rotate(kv + c->kv_rank, c->rope, t, (double)c->rope_theta);
        apply(&a->kv_b, 0, a->c + t * c->kv_rank, a->k + t * c->heads * (c->nope + c->v_dim)); /* per head: nope keys, then values */
    }
}

static void index_project(const struct cairn_model_config *c, struct attention *a, int64_t n)
{
    int64_t d = c->index_dim;

    for (int64_t t = 0; t < n; t++) {
        double *q = a->iq + t * c->index_heads * d, *k = a->ik + t * d, *w = a->iw + t * c->index_heads;

        apply(&a->wq, 0, a->lat + t * c->q_rank, q);
        apply(&a->wk, 0, a->h + t * c->width, k);
        layer_norm(k, a->k_gain.w, a->k_bias.w, d, 1e-6);
        for (int64_t h = 0; h < c->index_heads; h++)
            rotate(q + h * d, c->rope, t, (double)c->rope_theta);
        rotate(k, c->rope, t, (double)c->rope_theta);
        apply(&a->wp, 0, a->h + t * c->width, w);
    }
}

static void index_choose(const struct cairn_model_config *c, struct attention *a, int64_t n, uint8_t *choice)
{
    int64_t d = c->index_dim;

    for (int64_t t = 0; t < n; t++) {
        for (int64_t s = 0; s <= t; s++) {
            a->score[s] = 0;
            for (int64_t h = 0; h < c->index_heads; h++)
                a->score[s] += a->iw[t * c->index_heads + h] / sqrt((double)c->index_heads) *
                               fmax(0, dot(a->iq + (t * c->index_heads + h) * d, a->ik + s * d, d) / sqrt((double)d));
        }
        memset(choice + t * n, 0, (size_t)n);
        choose(a->score, NULL, t + 1, c->index_topk, choice + t * n);
    }
}

static void attend(const struct cairn_model_config *c, struct attention *a, int64_t t, int64_t n, const uint8_t *sees)
{
    int64_t d = c->nope + c->rope, w = c->nope + c->v_dim;
    double scale = 1 / sqrt((double)d);

    for (int64_t h = 0; h < c->heads; h++) {
        const double *q = a->q + (t * c->heads + h) * d;
        double *o = a->mix + h * c->v_dim, most = -INFINITY, sum = 0;

        for (int64_t s = 0; s < n; s++)
            if (sees[s]) {
                a->score[s] = scale * (dot(q, a->k + (s * c->heads + h) * w, c->nope) +
                                       dot(q + c->nope, a->kv + s * (c->kv_rank + c->rope) + c->kv_rank, c->rope));
                most = fmax(most, a->score[s]);
            }
        memset(o, 0, (size_t)c->v_dim * sizeof *o);
        for (int64_t s = 0; s < n; s++)
            if (sees[s]) {
                double e = exp(a->score[s] - most);

                sum += e;
                for (int64_t i = 0; i < c->v_dim; i++)
                    o[i] += e * a->k[(s * c->heads + h) * w + c->nope + i];
            }
        for (int64_t i = 0; i < c->v_dim; i++)
            o[i] /= sum;
    }
}

enum cairn_status cairn_plain_attention(struct cairn_plain *p, int layer, const double *x, int64_t n, uint8_t *choice, const uint8_t *given, double *out,
                                        struct cairn_error *err)
{
    const struct cairn_model_config *c = p->c;
    struct attention a = {0};
    enum cairn_status st = CAIRN_OK;

    TRY(attention_weights(p, &a, layer, err));
    TRY(attention_room(c, &a, n, err));
    project(c, &a, x, n);
    if (c->indexer[layer]) {
        index_project(c, &a, n);
        index_choose(c, &a, n, choice);
    }
    for (int64_t t = 0; t < n; t++) {
        attend(c, &a, t, n, (given ? given : choice) + t * n);
        apply(&a.o, 0, a.mix, out + t * c->width);
    }
out:
    attention_free(&a);
    return st;
}

/* ---- MLP and experts -------------------------------------------------------------------------------------------------------------- */

struct swiglu {
    struct matrix gate, up, down;
};

static enum cairn_status swiglu_get(struct cairn_plain *p, struct swiglu *s, int layer, const char *prefix, struct cairn_error *err)
{
    char leaf[100];
    enum cairn_status st = CAIRN_OK;

    snprintf(leaf, sizeof leaf, "%sgate_proj.weight", prefix);
    TRY(layer_matrix(p, &s->gate, layer, leaf, err));
    snprintf(leaf, sizeof leaf, "%sup_proj.weight", prefix);
    TRY(layer_matrix(p, &s->up, layer, leaf, err));
    snprintf(leaf, sizeof leaf, "%sdown_proj.weight", prefix);
    TRY(layer_matrix(p, &s->down, layer, leaf, err));
out:
    return st;
}

static void swiglu_free(struct swiglu *s)
{
    free(s->gate.w);
    free(s->up.w);
    free(s->down.w);
}

/* y += f * down(silu(gate x) * up x), of expert e; tmp holds 3 * the wider of both. */
static void swiglu_add(const struct swiglu *s, int64_t e, const double *x, double f, double *tmp, double *y)
{
    double *a = tmp, *u = tmp + s->gate.rows, *o = u + s->gate.rows;

    apply(&s->gate, e, x, a);
    apply(&s->up, e, x, u);
    for (int64_t i = 0; i < s->gate.rows; i++)
        a[i] = silu(a[i]) * u[i];
    apply(&s->down, e, a, o);
    for (int64_t i = 0; i < s->down.rows; i++)
        y[i] += f * o[i];
}

/* Which experts row x would take: by sigmoid + bias, inside the best groups. */
static void route(const struct cairn_model_config *c, const double *prob, const double *bias, uint8_t *out)
{
    uint8_t groups[CAIRN_MAX_LAYERS], allowed[65536];
    double by[65536], group[CAIRN_MAX_LAYERS];
    int per = c->n_group > 1 ? c->experts / c->n_group : c->experts;

    for (int e = 0; e < c->experts; e++)
        by[e] = prob[e] + bias[e];
    memset(allowed, 1, sizeof allowed);
    if (c->n_group > 1) {
        for (int g = 0; g < c->n_group; g++) {
            double first = -INFINITY, second = -INFINITY;

            for (int e = g * per; e < (g + 1) * per; e++) {
                if (by[e] > first) {
                    second = first;
                    first = by[e];
                } else if (by[e] > second) {
                    second = by[e];
                }
            }
            group[g] = first + second;
        }
        choose(group, NULL, c->n_group, c->topk_group, groups);
        for (int e = 0; e < c->experts; e++)
            allowed[e] = groups[e / per];
    }
    choose(by, allowed, c->experts, c->experts_per_token, out);
}

static enum cairn_status experts_add(struct cairn_plain *p, int layer, const double *h, int64_t n, uint8_t *experts, const uint8_t *given, double *tmp,
                                     double *out, struct cairn_error *err)
{
    const struct cairn_model_config *c = p->c;
    struct matrix gate = {0}, bias = {0};
    struct swiglu routed = {0}, shared = {0};
    double *prob = room(c->experts, 1);
    enum cairn_status st = CAIRN_OK;

    if (!prob)
        return CAIRN_NOMEM(err);
    TRY(layer_matrix(p, &gate, layer, "mlp.gate.weight", err));
    TRY(layer_matrix(p, &bias, layer, "mlp.gate.e_score_correction_bias", err));
    TRY(swiglu_get(p, &routed, layer, "mlp.experts.", err));
    if (c->shared_experts > 0)
        TRY(swiglu_get(p, &shared, layer, "mlp.shared_experts.", err));
    for (int64_t t = 0; t < n; t++) {
        const double *x = h + t * c->width;
        const uint8_t *take = given ? given + t * c->experts : experts + t * c->experts;
        double sum = 0;

        apply(&gate, 0, x, prob);
        for (int e = 0; e < c->experts; e++)
            prob[e] = 1 / (1 + exp(-prob[e]));
        route(c, prob, bias.w, experts + t * c->experts);
        for (int e = 0; e < c->experts; e++)
            sum += take[e] ? prob[e] : 0;
        for (int e = 0; e < c->experts; e++)
            if (take[e])
                swiglu_add(&routed, e, x, prob[e] / (c->norm_topk ? sum + 1e-20 : 1) * (double)c->routed_scale, tmp, out + t * c->width);
        if (c->shared_experts > 0)
            swiglu_add(&shared, 0, x, 1, tmp, out + t * c->width);
    }
out:
    free(gate.w);
    free(bias.w);
    free(prob);
    swiglu_free(&routed);
    swiglu_free(&shared);
    return st;
}

enum cairn_status cairn_plain_mlp(struct cairn_plain *p, int layer, const double *x, int64_t n, uint8_t *experts, const uint8_t *given, double *out,
                                  struct cairn_error *err)
{
    const struct cairn_model_config *c = p->c;
    int64_t shared = c->shared_experts * c->expert_width, width = c->dense_width > c->expert_width ? c->dense_width : c->expert_width;
    double *h = room(n, c->width), *tmp = room(3, (width > shared ? width : shared) + c->width);
    struct matrix norm = {0};
    struct swiglu dense = {0};
    enum cairn_status st = CAIRN_OK;

    if (!h || !tmp)
        TRY(CAIRN_NOMEM(err));
    TRY(layer_matrix(p, &norm, layer, "post_attention_layernorm.weight", err));
    for (int64_t t = 0; t < n; t++)
        rms_norm(x + t * c->width, norm.w, c->width, (double)c->norm_eps, h + t * c->width);
    memset(out, 0, (size_t)(n * c->width) * sizeof *out);
    if (!c->dense[layer]) {
        TRY(experts_add(p, layer, h, n, experts, given, tmp, out, err));
        goto out;
    }
    TRY(swiglu_get(p, &dense, layer, "mlp.", err));
    for (int64_t t = 0; t < n; t++)
        swiglu_add(&dense, 0, h + t * c->width, 1, tmp, out + t * c->width);
out:
    free(h);
    free(tmp);
    free(norm.w);
    swiglu_free(&dense);
    return st;
}

/* plain.c - see plain.h: weights, embedding and head. */
#include "ckpt/convert.h"
#include "model/names.h"
#include "tools/check/plain_impl.h"

enum cairn_status cairn_plain_open(struct cairn_plain **out, const struct cairn_policy *policy, struct cairn_compute *k, struct cairn_error *err)
{
    struct cairn_plain *p;

    if (!(p = calloc(1, sizeof *p)))
        return CAIRN_NOMEM(err);
    *p = (struct cairn_plain){policy, &policy->config, k, CAIRN_PLAIN_EXACT, 0};
    *out = p;
    return CAIRN_OK;
}

void cairn_plain_close(struct cairn_plain *p)
{
    free(p);
}

void cairn_plain_round(struct cairn_plain *p, enum cairn_plain_rounding to, int draw)
{
    p->to = to;
    p->draw = draw;
}

/* ---- weights ---------------------------------------------------------------------------------------------------------------- */

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
        (*out)[i] = cairn_value(t->dtype, h, i);
out:
    free(h);
    return st;
}

/* W += gamma B A, expert by expert. */
static enum cairn_status adapter_merge(struct cairn_plain *p, int param, struct cairn_plain_matrix *m, struct cairn_error *err)
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

enum cairn_status cairn_plain_matrix(struct cairn_plain *p, struct cairn_plain_matrix *m, const char *name, struct cairn_error *err)
{
    int i = cairn_param_find(&p->policy->table, name);
    const struct cairn_param *q = i < 0 ? NULL : &p->policy->table.param[i];
    enum cairn_status st = CAIRN_OK;

    *m = (struct cairn_plain_matrix){.experts = 1, .cols = 1};
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

enum cairn_status cairn_plain_layer_matrix(struct cairn_plain *p, struct cairn_plain_matrix *m, int layer, const char *leaf, struct cairn_error *err)
{
    char name[CAIRN_NAME_BYTES];

    cairn_name_of_layer(p->c, layer, leaf, name);
    return cairn_plain_matrix(p, m, name, err);
}

enum cairn_status cairn_plain_model_matrix(struct cairn_plain *p, struct cairn_plain_matrix *m, const char *leaf, struct cairn_error *err)
{
    char name[CAIRN_NAME_BYTES];

    cairn_name_of_model(p->c, leaf, name);
    return cairn_plain_matrix(p, m, name, err);
}

/* ---- embedding and head ------------------------------------------------------------------------------------------------------- */

enum cairn_status cairn_plain_embed(struct cairn_plain *p, const int32_t *id, int64_t n, double *x, struct cairn_error *err)
{
    struct cairn_plain_matrix e = {0};
    enum cairn_status st = cairn_plain_model_matrix(p, &e, "embed_tokens.weight", err);

    for (int64_t i = 0; st == CAIRN_OK && i < n; i++)
        memcpy(x + i * e.cols, e.w + id[i] * e.cols, (size_t)e.cols * sizeof *x);
    free(e.w);
    return st;
}

enum cairn_status cairn_plain_logprobs(struct cairn_plain *p, const double *x, int64_t n, const int32_t *target, double temperature, double *out,
                                       struct cairn_error *err)
{
    struct cairn_plain_matrix g = {0}, head = {0};
    double *z = malloc((size_t)p->c->width * sizeof *z), *l = malloc((size_t)p->c->vocab * sizeof *l);
    enum cairn_status st = CAIRN_OK;

    if (!z || !l)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_plain_model_matrix(p, &g, "norm.weight", err));
    TRY(cairn_plain_matrix(p, &head, "lm_head.weight", err));
    for (int64_t i = 0; i < n; i++) {
        double most = -INFINITY, sum = 0;

        out[i] = 0;
        if (target[i] < 0)
            continue;
        rms_norm(x + i * p->c->width, g.w, p->c->width, (double)p->c->norm_eps, z);
        rounded(p, z, p->c->width);
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

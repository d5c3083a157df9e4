/* plain_attention.c - sparse attention and its indexers, of the plain model (plain.h). */
#include "tools/check/plain_impl.h"

/* All of one attention block for n rows. */
struct attention {
    struct cairn_plain_matrix norm, q_a, q_norm, q_b, kv_a, kv_norm, kv_b, o;    /* weights */
    struct cairn_plain_matrix wq, wk, k_gain, k_bias, wp;                         /* of the indexer */
    struct cairn_plain_matrix ape, gate;                                          /* where its keys are pools of tokens */
    double *h, *raw, *lat, *q, *kv, *c, *k, *mix, *iq, *ik, *iw, *score, *ig;
    uint8_t *mine, *pools; /* (n): of one row, what would be chosen; which pools were given */
};

static enum cairn_status attention_weights(struct cairn_plain *p, struct attention *a, int layer, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_plain_layer_matrix(p, &a->norm, layer, "input_layernorm.weight", err));
    TRY(cairn_plain_layer_matrix(p, &a->q_a, layer, "self_attn.q_a_proj.weight", err));
    TRY(cairn_plain_layer_matrix(p, &a->q_norm, layer, "self_attn.q_a_layernorm.weight", err));
    TRY(cairn_plain_layer_matrix(p, &a->q_b, layer, "self_attn.q_b_proj.weight", err));
    TRY(cairn_plain_layer_matrix(p, &a->kv_a, layer, "self_attn.kv_a_proj_with_mqa.weight", err));
    TRY(cairn_plain_layer_matrix(p, &a->kv_norm, layer, "self_attn.kv_a_layernorm.weight", err));
    TRY(cairn_plain_layer_matrix(p, &a->kv_b, layer, "self_attn.kv_b_proj.weight", err));
    TRY(cairn_plain_layer_matrix(p, &a->o, layer, "self_attn.o_proj.weight", err));
    if (!p->c->indexer[layer])
        return CAIRN_OK;
    TRY(cairn_plain_layer_matrix(p, &a->wq, layer, "self_attn.indexer.wq_b.weight", err));
    TRY(cairn_plain_layer_matrix(p, &a->wk, layer, "self_attn.indexer.wk.weight", err));
    TRY(cairn_plain_layer_matrix(p, &a->k_gain, layer, "self_attn.indexer.k_norm.weight", err));
    TRY(cairn_plain_layer_matrix(p, &a->k_bias, layer, "self_attn.indexer.k_norm.bias", err));
    TRY(cairn_plain_layer_matrix(p, &a->wp, layer, "self_attn.indexer.weights_proj.weight", err));
    if (p->c->arch != CAIRN_ARCH_GLM5_NEXT)
        return CAIRN_OK;
    TRY(cairn_plain_layer_matrix(p, &a->ape, layer, "self_attn.indexer.index_kpool_compress_ape", err));
    TRY(cairn_plain_layer_matrix(p, &a->gate, layer, "self_attn.indexer.index_kpool_compress_gate", err));
out:
    return st;
}

static void attention_free(struct attention *a)
{
    struct cairn_plain_matrix *const m[] = {&a->norm, &a->q_a,    &a->q_norm, &a->q_b, &a->kv_a, &a->kv_norm, &a->kv_b, &a->o,
                                            &a->wq,   &a->wk,     &a->k_gain, &a->k_bias, &a->wp, &a->ape,     &a->gate};
    double *const d[] = {a->h, a->raw, a->lat, a->q, a->kv, a->c, a->k, a->mix, a->iq, a->ik, a->iw, a->score, a->ig};

    for (size_t i = 0; i < sizeof m / sizeof *m; i++)
        free(m[i]->w);
    for (size_t i = 0; i < sizeof d / sizeof *d; i++)
        free(d[i]);
    free(a->mine);
    free(a->pools);
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
    a->ig = room(n, c->index_dim);
    a->mine = calloc((size_t)n + 1, 1);
    a->pools = calloc((size_t)n + 1, 1);
    return a->ig && a->mine && a->pools && a->h && a->raw && a->lat && a->q && a->kv && a->c && a->k && a->mix && a->iq && a->ik && a->iw && a->score
               ? CAIRN_OK
               : CAIRN_NOMEM(err);
}

/* Queries, latents, keys and values of every row, rotated. */
static void project(const struct cairn_plain *p, struct attention *a, const double *x, int64_t n)
{
    const struct cairn_model_config *c = p->c;
    int64_t d = c->nope + c->rope, w = c->nope + c->v_dim;

    for (int64_t t = 0; t < n; t++) {
        double *q = a->q + t * c->heads * d, *kv = a->kv + t * (c->kv_rank + c->rope);

        rms_norm(x + t * c->width, a->norm.w, c->width, (double)c->norm_eps, a->h + t * c->width);
        rounded(p, a->h + t * c->width, c->width);
        apply(&a->q_a, 0, a->h + t * c->width, a->raw);
        rounded(p, a->raw, c->q_rank);
        rms_norm(a->raw, a->q_norm.w, c->q_rank, (double)c->latent_norm_eps, a->lat + t * c->q_rank);
        rounded(p, a->lat + t * c->q_rank, c->q_rank);
        apply(&a->q_b, 0, a->lat + t * c->q_rank, q);
        for (int64_t h = 0; h < c->heads; h++)
            rotate(q + h * d + c->nope, c->rope, t, (double)c->rope_theta);
        rounded(p, q, c->heads * d);
        apply(&a->kv_a, 0, a->h + t * c->width, kv);
        rounded(p, kv, c->kv_rank);
        rms_norm(kv, a->kv_norm.w, c->kv_rank, (double)c->latent_norm_eps, a->c + t * c->kv_rank);
        rotate(kv + c->kv_rank, c->rope, t, (double)c->rope_theta);
        rounded(p, kv + c->kv_rank, c->rope);
        rounded(p, a->c + t * c->kv_rank, c->kv_rank);
        apply(&a->kv_b, 0, a->c + t * c->kv_rank, a->k + t * c->heads * w); /* per head: nope keys, then values */
        rounded(p, a->k + t * c->heads * w, c->heads * w);
    }
}

static void index_project(const struct cairn_plain *p, struct attention *a, int64_t n)
{
    const struct cairn_model_config *c = p->c;
    int64_t d = c->index_dim;

    for (int64_t t = 0; t < n; t++) {
        double *q = a->iq + t * c->index_heads * d, *k = a->ik + t * d, *w = a->iw + t * c->index_heads;

        apply(&a->wq, 0, a->lat + t * c->q_rank, q);
        rounded(p, q, c->index_heads * d);
        apply(&a->wk, 0, a->h + t * c->width, k);
        rounded(p, k, d);
        layer_norm(k, a->k_gain.w, a->k_bias.w, d, 1e-6);
        for (int64_t h = 0; h < c->index_heads; h++)
            rotate(q + h * d, c->rope, t, (double)c->rope_theta);
        rotate(k, c->rope, t, (double)c->rope_theta);
        rounded(p, q, c->index_heads * d);
        rounded(p, k, d);
        apply(&a->wp, 0, a->h + t * c->width, w);
    }
}

/* Score of key s for row t, into *score; returned: the root of its terms' summed squares. */
static double index_score(const struct cairn_model_config *c, const struct attention *a, int64_t t, int64_t s, double *score)
{
    int64_t d = c->index_dim;
    double terms = 0;

    *score = 0;
    for (int64_t h = 0; h < c->index_heads; h++) {
        const double *q = a->iq + (t * c->index_heads + h) * d, *k = a->ik + s * d;
        double w = a->iw[t * c->index_heads + h] / sqrt((double)(c->index_heads * d)), squares = 0;

        for (int64_t i = 0; i < d; i++)
            squares += q[i] * q[i] * k[i] * k[i];
        *score += w * fmax(0, dot(q, k, d));
        terms += fabs(w) * sqrt(squares);
    }
    return terms;
}

/* Row t's choice of `want` from the n scores in a->score, against `given`; with roundings their noise. */
static void row_judge(const struct cairn_plain *p, struct attention *a, int64_t t, int64_t want, const uint8_t *given, int64_t n,
                      const struct cairn_plain_choice *choice)
{
    int64_t lost, taken;
    double unused;

    if (p->to != CAIRN_PLAIN_EXACT) {
        choice_noise(choice, t, a->score, n);
        return;
    }
    memcpy(choice->score + t * choice->width, a->score, (size_t)n * sizeof *a->score);
    choose(a->score, NULL, n, want, a->mine);
    choice->gap[t] = choice->terms[t] = 0;
    if (exchanged(a->score, a->mine, given, n, &lost, &taken))
        choice->gap[t] = INFINITY;
    else if (lost >= 0) {
        choice->gap[t] = a->score[lost] - a->score[taken];
        choice->terms[t] = fmax(index_score(p->c, a, t, lost, &unused), index_score(p->c, a, t, taken, &unused));
    }
}

static void index_judge(const struct cairn_plain *p, struct attention *a, int64_t n, const uint8_t *given, const struct cairn_plain_choice *choice)
{
    for (int64_t t = 0; t < n; t++) {
        for (int64_t s = 0; s <= t; s++)
            index_score(p->c, a, t, s, &a->score[s]);
        row_judge(p, a, t, p->c->index_topk, given + t * n, t + 1, choice);
        for (int64_t s = t + 1; s < n; s++)
            if (given[t * n + s])
                choice->gap[t] = INFINITY;
    }
}

/* Keys of whole pools take the places of their first tokens' number: pool p of m tokens is row p of a->ik. By channel, a softmax over the
 * pool's tokens of gate + ape weights their keys. */
static void pools_make(const struct cairn_plain *p, struct attention *a, int64_t n)
{
    const struct cairn_model_config *c = p->c;
    int64_t d = c->index_dim, m = c->index_pool;

    for (int64_t t = 0; t < n; t++)
        apply(&a->gate, 0, a->h + t * c->width, a->ig + t * d);
    rounded(p, a->ig, n * d);
    for (int64_t pool = 0; (pool + 1) * m <= n; pool++)
        for (int64_t i = 0; i < d; i++) {
            double sum = 0, key = 0;

            for (int64_t r = 0; r < m; r++) {
                double e = exp(a->ig[(pool * m + r) * d + i] + a->ape.w[r * d + i]);

                sum += e;
                key += e * a->ik[(pool * m + r) * d + i];
            }
            a->ik[pool * d + i] = key / sum;
        }
    rounded(p, a->ik, n / m * d);
}

/* Whole pools up to a row's own token, the best of them with all their tokens, and the tokens behind the last whole one. */
static void pools_judge(const struct cairn_plain *p, struct attention *a, int64_t n, const uint8_t *given, const struct cairn_plain_choice *choice)
{
    int64_t m = p->c->index_pool;

    pools_make(p, a, n);
    for (int64_t t = 0; t < n; t++) {
        const uint8_t *row = given + t * n;
        int64_t pools = (t + 1) / m;

        for (int64_t i = 0; i < pools; i++) {
            index_score(p->c, a, t, i, &a->score[i]);
            a->pools[i] = row[i * m];
        }
        row_judge(p, a, t, p->c->index_topk / m, a->pools, pools, choice);
        for (int64_t s = 0; s < n; s++)
            if (row[s] != (s / m < pools ? a->pools[s / m] : s <= t))
                choice->gap[t] = INFINITY;
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

enum cairn_status cairn_plain_attention(struct cairn_plain *p, int layer, const double *x, int64_t n, const uint8_t *given,
                                        const struct cairn_plain_choice *choice, double *out, struct cairn_error *err)
{
    const struct cairn_model_config *c = p->c;
    struct attention a = {0};
    enum cairn_status st = CAIRN_OK;

    TRY(attention_weights(p, &a, layer, err));
    TRY(attention_room(c, &a, n, err));
    project(p, &a, x, n);
    if (c->indexer[layer]) {
        index_project(p, &a, n);
        if (c->arch == CAIRN_ARCH_GLM5_NEXT)
            pools_judge(p, &a, n, given, choice);
        else
            index_judge(p, &a, n, given, choice);
    }
    for (int64_t t = 0; t < n; t++) {
        attend(c, &a, t, n, given + t * n);
        rounded(p, a.mix, c->heads * c->v_dim);
        apply(&a.o, 0, a.mix, out + t * c->width);
    }
out:
    attention_free(&a);
    return st;
}

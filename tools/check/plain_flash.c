/* plain_flash.c - linear attention and hyper-connections of GLM-5.3-Flash, of the plain model (plain.h).
 *
 * Kimi delta attention (arXiv:2510.26692) as a recurrence, one token after the other, never in chunks; hyper-connections (mHC,
 * arXiv:2512.24880) with their Sinkhorn loop as it is written.
 */
#include <stdio.h>

#include "tools/check/plain_impl.h"

/* ---- linear attention ------------------------------------------------------------------------------------------------------- */

#define L2_EPS 1e-6

struct kda {
    struct cairn_plain_matrix norm, in[3], taps[3], f_a, f_b, a_log, dt_bias, b, g_a, g_b, o_norm, o;
    double *h, *raw[3], *x[3], *inner, *f, *z, *beta, *y; /* rows of a token; raw (n, P): the convolution looks back */
    double *state;                                        /* (heads, d, d), by key */
};

static enum cairn_status kda_weights(struct cairn_plain *p, struct kda *a, int layer, struct cairn_error *err)
{
    static const char *const in[] = {"q", "k", "v"};
    enum cairn_status st = CAIRN_OK;
    char leaf[64];

    TRY(cairn_plain_layer_matrix(p, &a->norm, layer, "input_layernorm.weight", err));
    for (int i = 0; i < 3; i++) {
        snprintf(leaf, sizeof leaf, "self_attn.%s_proj.weight", in[i]);
        TRY(cairn_plain_layer_matrix(p, &a->in[i], layer, leaf, err));
        snprintf(leaf, sizeof leaf, "self_attn.%s_conv1d.weight", in[i]);
        TRY(cairn_plain_layer_matrix(p, &a->taps[i], layer, leaf, err));
    }
    TRY(cairn_plain_layer_matrix(p, &a->f_a, layer, "self_attn.f_a_proj.weight", err));
    TRY(cairn_plain_layer_matrix(p, &a->f_b, layer, "self_attn.f_b_proj.weight", err));
    TRY(cairn_plain_layer_matrix(p, &a->a_log, layer, "self_attn.A_log", err));
    TRY(cairn_plain_layer_matrix(p, &a->dt_bias, layer, "self_attn.dt_bias", err));
    TRY(cairn_plain_layer_matrix(p, &a->b, layer, "self_attn.b_proj.weight", err));
    TRY(cairn_plain_layer_matrix(p, &a->g_a, layer, "self_attn.g_a_proj.weight", err));
    TRY(cairn_plain_layer_matrix(p, &a->g_b, layer, "self_attn.g_b_proj.weight", err));
    TRY(cairn_plain_layer_matrix(p, &a->o_norm, layer, "self_attn.o_norm.weight", err));
    TRY(cairn_plain_layer_matrix(p, &a->o, layer, "self_attn.o_proj.weight", err));
out:
    return st;
}

static void kda_free(struct kda *a)
{
    struct cairn_plain_matrix *const m[] = {&a->norm,  &a->in[0], &a->in[1], &a->in[2],  &a->taps[0], &a->taps[1], &a->taps[2], &a->f_a,
                                            &a->f_b,   &a->a_log, &a->dt_bias, &a->b,    &a->g_a,     &a->g_b,     &a->o_norm,  &a->o};
    double *const d[] = {a->h, a->raw[0], a->raw[1], a->raw[2], a->x[0], a->x[1], a->x[2], a->inner, a->f, a->z, a->beta, a->y, a->state};

    for (size_t i = 0; i < sizeof m / sizeof *m; i++)
        free(m[i]->w);
    for (size_t i = 0; i < sizeof d / sizeof *d; i++)
        free(d[i]);
}

static enum cairn_status kda_room(const struct cairn_model_config *c, struct kda *a, int64_t n, struct cairn_error *err)
{
    int64_t P = c->kda_heads * c->kda_dim;
    int have = 1;

    for (int i = 0; i < 3; i++) {
        a->raw[i] = room(n, P);
        a->x[i] = room(1, P);
        have &= a->raw[i] && a->x[i];
    }
    a->h = room(1, c->width);
    a->inner = room(1, c->kda_dim);
    a->f = room(1, P);
    a->z = room(1, P);
    a->beta = room(1, c->kda_heads);
    a->y = room(1, P);
    a->state = room(P, c->kda_dim);
    return have && a->h && a->inner && a->f && a->z && a->beta && a->y && a->state ? CAIRN_OK : CAIRN_NOMEM(err);
}

/* q, k, v of token t behind their convolutions; q and k of length 1, q scaled. */
static void convolve(const struct cairn_plain *p, struct kda *a, int64_t t)
{
    const struct cairn_model_config *c = p->c;
    int64_t d = c->kda_dim, P = c->kda_heads * d, K = c->kda_conv;

    for (int i = 0; i < 3; i++) {
        apply(&a->in[i], 0, a->h, a->raw[i] + t * P);
        rounded(p, a->raw[i] + t * P, P);
        for (int64_t ch = 0; ch < P; ch++) {
            double u = 0;

            for (int64_t j = 0; j < K; j++)
                if (t - K + 1 + j >= 0)
                    u += a->taps[i].w[ch * K + j] * a->raw[i][(t - K + 1 + j) * P + ch];
            a->x[i][ch] = silu(u);
        }
        rounded(p, a->x[i], P);
    }
    for (int i = 0; i < 2; i++)
        for (int64_t h = 0; h < c->kda_heads; h++) {
            double *v = a->x[i] + h * d, length = sqrt(dot(v, v, d) + L2_EPS) * (i ? 1 : sqrt((double)d));

            for (int64_t j = 0; j < d; j++)
                v[j] /= length;
        }
}

/* Head h of one token: the state decays by key, is read, corrected, and read again by the query. f holds the decay. */
static void recur(const struct cairn_model_config *c, struct kda *a, int64_t h)
{
    int64_t d = c->kda_dim;
    const double *q = a->x[0] + h * d, *k = a->x[1] + h * d, *v = a->x[2] + h * d, *decay = a->f + h * d;
    double *S = a->state + h * d * d, *o = a->y + h * d;

    for (int64_t j = 0; j < d; j++) {
        double seen = 0, change;

        o[j] = 0;
        for (int64_t i = 0; i < d; i++) {
            S[i * d + j] *= decay[i];
            seen += k[i] * S[i * d + j];
        }
        change = a->beta[h] * (v[j] - seen);
        for (int64_t i = 0; i < d; i++) {
            S[i * d + j] += k[i] * change;
            o[j] += q[i] * S[i * d + j];
        }
    }
}

/* f: the decay of each channel, beta: of each head, how much is corrected. */
static void gates(const struct cairn_plain *p, struct kda *a)
{
    const struct cairn_model_config *c = p->c;
    int64_t d = c->kda_dim, P = c->kda_heads * d;

    apply(&a->f_a, 0, a->h, a->inner);
    rounded(p, a->inner, d);
    apply(&a->f_b, 0, a->inner, a->f);
    rounded(p, a->f, P);
    for (int64_t i = 0; i < P; i++) {
        double A = exp(a->a_log.w[i / d]), v = a->f[i] + a->dt_bias.w[i];

        a->f[i] = exp(c->kda_bound < 0 ? (double)c->kda_bound / (1 + exp(-A * v)) : -A * (v > 20 ? v : log1p(exp(v))));
    }
    apply(&a->b, 0, a->h, a->beta);
    rounded(p, a->beta, c->kda_heads);
    for (int64_t h = 0; h < c->kda_heads; h++)
        a->beta[h] = 1 / (1 + exp(-a->beta[h]));
    apply(&a->g_a, 0, a->h, a->inner);
    rounded(p, a->inner, d);
    apply(&a->g_b, 0, a->inner, a->z);
    rounded(p, a->z, P);
}

enum cairn_status cairn_plain_kda(struct cairn_plain *p, int layer, const double *x, int64_t n, double *out, struct cairn_error *err)
{
    const struct cairn_model_config *c = p->c;
    int64_t d = c->kda_dim, P = c->kda_heads * d;
    struct kda a = {0};
    enum cairn_status st = CAIRN_OK;

    TRY(kda_weights(p, &a, layer, err));
    TRY(kda_room(c, &a, n, err));
    for (int64_t t = 0; t < n; t++) {
        rms_norm(x + t * c->width, a.norm.w, c->width, (double)c->norm_eps, a.h);
        rounded(p, a.h, c->width);
        convolve(p, &a, t);
        gates(p, &a);
        for (int64_t h = 0; h < c->kda_heads; h++)
            recur(c, &a, h);
        rounded(p, a.y, P);
        for (int64_t h = 0; h < c->kda_heads; h++) {
            rms_norm(a.y + h * d, a.o_norm.w, d, (double)c->norm_eps, a.y + h * d);
            for (int64_t j = 0; j < d; j++)
                a.y[h * d + j] /= 1 + exp(-a.z[h * d + j]);
        }
        rounded(p, a.y, P);
        apply(&a.o, 0, a.y, out + t * c->width);
    }
out:
    kda_free(&a);
    return st;
}

/* ---- hyper-connections -------------------------------------------------------------------------------------------------------- */

/* Of C (J, J) each column over its sum + eps, or each row. */
static void divide(double *C, int64_t J, int by_column, double eps)
{
    for (int64_t a = 0; a < J; a++) {
        double sum = eps;

        for (int64_t b = 0; b < J; b++)
            sum += by_column ? C[b * J + a] : C[a * J + b];
        for (int64_t b = 0; b < J; b++)
            C[by_column ? b * J + a : a * J + b] /= sum;
    }
}

/* One token's mix = pre | post | comb from the logits l, in place. */
static void mix_make(const struct cairn_model_config *c, double *l)
{
    int64_t J = c->streams;
    double eps = (double)c->stream_eps, *C = l + 2 * J;

    for (int64_t j = 0; j < J; j++) {
        l[j] = 1 / (1 + exp(-l[j])) + eps;
        l[J + j] = 2 / (1 + exp(-l[J + j]));
    }
    for (int64_t i = 0; i < J; i++) {
        double sum = 0;

        for (int64_t j = 0; j < J; j++)
            sum += C[i * J + j] = exp(C[i * J + j]);
        for (int64_t j = 0; j < J; j++)
            C[i * J + j] = C[i * J + j] / sum + eps;
    }
    divide(C, J, 1, eps);
    for (int i = 1; i < c->stream_iters; i++) {
        divide(C, J, 0, eps);
        divide(C, J, 1, eps);
    }
}

enum cairn_status cairn_plain_hyper(struct cairn_plain *p, int layer, int site, const double *x, int64_t n, double *mix, double *in,
                                    struct cairn_error *err)
{
    const struct cairn_model_config *c = p->c;
    int64_t J = c->streams, D = c->width, M = J * (J + 2);
    const char *which = site ? "ffn" : "attn";
    struct cairn_plain_matrix fn = {0}, base = {0}, scale = {0};
    enum cairn_status st = CAIRN_OK;
    char leaf[32];

    snprintf(leaf, sizeof leaf, "hc_%s_fn", which);
    TRY(cairn_plain_layer_matrix(p, &fn, layer, leaf, err));
    snprintf(leaf, sizeof leaf, "hc_%s_base", which);
    TRY(cairn_plain_layer_matrix(p, &base, layer, leaf, err));
    snprintf(leaf, sizeof leaf, "hc_%s_scale", which);
    TRY(cairn_plain_layer_matrix(p, &scale, layer, leaf, err));
    for (int64_t t = 0; t < n; t++) {
        const double *X = x + t * J * D;
        double *m = mix + t * M, r = 1 / sqrt(dot(X, X, J * D) / (double)(J * D) + (double)c->norm_eps);

        apply(&fn, 0, X, m);
        for (int64_t i = 0; i < M; i++)
            m[i] = scale.w[i < J ? 0 : i < 2 * J ? 1 : 2] * m[i] * r + base.w[i];
        mix_make(c, m);
        for (int64_t i = 0; i < D; i++) {
            in[t * D + i] = 0;
            for (int64_t j = 0; j < J; j++)
                in[t * D + i] += m[j] * X[j * D + i];
        }
    }
out:
    free(fn.w);
    free(base.w);
    free(scale.w);
    return st;
}

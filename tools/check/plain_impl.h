/* plain_impl.h - what the parts of the plain model share (plain.h): weights by name, formulas of a row. Included by plain*.c alone.
 *
 * plain.c embedding, head, weights; plain_attention.c sparse attention and its indexers; plain_mlp.c MLP, router, experts; plain_flash.c what
 * GLM-5.3-Flash has beside these: linear attention, hyper-connections.
 */
#ifndef CAIRN_TOOLS_CHECK_PLAIN_IMPL_H
#define CAIRN_TOOLS_CHECK_PLAIN_IMPL_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/check/plain.h"

struct cairn_plain {
    const struct cairn_policy *policy;
    const struct cairn_model_config *c;
    struct cairn_compute *k;
    enum cairn_plain_rounding to;
    int draw;
};

/* A parameter with its adapter merged in: (experts of it, rows, columns); experts is 1 for a plain matrix or vector, the first of three
 * dimensions else. */
struct cairn_plain_matrix {
    double *w; /* malloc'ed; the caller frees */
    int64_t experts, rows, cols;
};

/* By the parameter's whole name; by what stands behind "model.", and behind "layers.N.". */
enum cairn_status cairn_plain_matrix(struct cairn_plain *p, struct cairn_plain_matrix *m, const char *name, struct cairn_error *err);
enum cairn_status cairn_plain_model_matrix(struct cairn_plain *p, struct cairn_plain_matrix *m, const char *leaf, struct cairn_error *err);
enum cairn_status cairn_plain_layer_matrix(struct cairn_plain *p, struct cairn_plain_matrix *m, int layer, const char *leaf, struct cairn_error *err);

/* ---- formulas --------------------------------------------------------------------------------------------------------------- */

/* y = W x, of expert e. */
static inline void apply(const struct cairn_plain_matrix *m, int64_t e, const double *x, double *y)
{
    for (int64_t i = 0; i < m->rows; i++) {
        const double *w = m->w + (e * m->rows + i) * m->cols;

        y[i] = 0;
        for (int64_t j = 0; j < m->cols; j++)
            y[i] += w[j] * x[j];
    }
}

static inline void rms_norm(const double *x, const double *g, int64_t n, double eps, double *y)
{
    double sum = 0, r;

    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    r = 1 / sqrt(sum / (double)n + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = g[i] * x[i] * r;
}

static inline void layer_norm(double *x, const double *g, const double *b, int64_t n, double eps)
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
static inline void rotate(double *u, int64_t R, int64_t pos, double theta)
{
    for (int64_t j = 0; j < R / 2; j++) {
        double angle = (double)pos * pow(theta, -2.0 * (double)j / (double)R), c = cos(angle), s = sin(angle), a = u[2 * j], b = u[2 * j + 1];

        u[2 * j] = a * c - b * s;
        u[2 * j + 1] = a * s + b * c;
    }
}

static inline double dot(const double *a, const double *b, int64_t n)
{
    double s = 0;

    for (int64_t i = 0; i < n; i++)
        s += a[i] * b[i];
    return s;
}

static inline double silu(double a)
{
    return a / (1 + exp(-a));
}

/* Marks the `want` largest of v[0, n) that are allowed (NULL: all), ties to the lower index. */
static inline void choose(const double *v, const uint8_t *allowed, int64_t n, int64_t want, uint8_t *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = 0;
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


/* What would have been chosen (mine) and was not given, the best of it; what was given instead, the worst of it. -1: none. 0: as many of one as of
 * the other. */
static inline int exchanged(const double *v, const uint8_t *mine, const uint8_t *given, int64_t n, int64_t *lost, int64_t *taken)
{
    int64_t more = 0;

    *lost = *taken = -1;
    for (int64_t i = 0; i < n; i++) {
        more += (mine[i] != 0) - (given[i] != 0);
        if (mine[i] && !given[i] && (*lost < 0 || v[i] > v[*lost]))
            *lost = i;
        if (given[i] && !mine[i] && (*taken < 0 || v[i] < v[*taken]))
            *taken = i;
    }
    return more != 0;
}

/* The n values of v as the run's own rows would hold them, each as the one beside it below or above, by chance. */
static inline void rounded(const struct cairn_plain *p, double *v, int64_t n)
{
    const int drop = p->to == CAIRN_PLAIN_BF16 ? 16 : 0; /* bits of a float */

    for (int64_t i = 0; i < n && p->to != CAIRN_PLAIN_EXACT; i++) {
        float near = (float)v[i], f;
        uint64_t bits, chance;
        uint32_t u;

        if (!isfinite(near))
            continue;
        if (!drop) {
            f = fabs((double)near) > fabs(v[i]) ? nextafterf(near, 0) : near;
        } else {
            memcpy(&u, &near, sizeof u);
            u &= 0xFFFFFFFFu << drop;
            memcpy(&f, &u, sizeof f);
        }
        if ((double)f == v[i])
            continue;
        memcpy(&bits, &v[i], sizeof bits);
        chance = (bits ^ (uint64_t)p->draw * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
        memcpy(&u, &f, sizeof u);
        u += (uint32_t)(chance >> 63) << drop; /* away from 0 */
        memcpy(&f, &u, sizeof f);
        v[i] = (double)f;
    }
}

/* Row t's n scores with roundings, against those without. */
static inline void choice_noise(const struct cairn_plain_choice *choice, int64_t t, const double *score, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        choice->noise[t] = fmax(choice->noise[t], fabs(score[i] - choice->score[t * choice->width + i]));
}

static inline double *room(int64_t a, int64_t b)
{
    return calloc((size_t)(a * b) + 1, sizeof(double));
}

#endif

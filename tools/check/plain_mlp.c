/* plain_mlp.c - MLP, router and experts of the plain model (plain.h). */
#include <stdio.h>

#include "tools/check/plain_impl.h"

struct swiglu {
    struct cairn_plain_matrix gate, up, down;
};

static enum cairn_status swiglu_get(struct cairn_plain *p, struct swiglu *s, int layer, const char *prefix, struct cairn_error *err)
{
    char leaf[100];
    enum cairn_status st = CAIRN_OK;

    snprintf(leaf, sizeof leaf, "%sgate_proj.weight", prefix);
    TRY(cairn_plain_layer_matrix(p, &s->gate, layer, leaf, err));
    snprintf(leaf, sizeof leaf, "%sup_proj.weight", prefix);
    TRY(cairn_plain_layer_matrix(p, &s->up, layer, leaf, err));
    snprintf(leaf, sizeof leaf, "%sdown_proj.weight", prefix);
    TRY(cairn_plain_layer_matrix(p, &s->down, layer, leaf, err));
out:
    return st;
}

static void swiglu_free(struct swiglu *s)
{
    free(s->gate.w);
    free(s->up.w);
    free(s->down.w);
}

/* y += f * down(silu(gate x) * up x), of expert e; tmp holds 3 * the wider of both. Where the model has a limit, gate is cut off above it, up on both
 * sides. */
static void swiglu_add(const struct cairn_plain *p, const struct swiglu *s, int64_t e, const double *x, double f, double *tmp, double *y)
{
    double limit = (double)p->c->swiglu_limit;
    double *a = tmp, *u = tmp + s->gate.rows, *o = u + s->gate.rows;

    apply(&s->gate, e, x, a);
    apply(&s->up, e, x, u);
    rounded(p, a, s->gate.rows);
    rounded(p, u, s->gate.rows);
    for (int64_t i = 0; i < s->gate.rows; i++) {
        if (limit > 0) {
            a[i] = fmin(a[i], limit);
            u[i] = fmax(-limit, fmin(u[i], limit));
        }
        a[i] = silu(a[i]) * u[i];
    }
    rounded(p, a, s->gate.rows);
    apply(&s->down, e, a, o);
    rounded(p, o, s->down.rows);
    for (int64_t i = 0; i < s->down.rows; i++)
        y[i] += f * o[i];
}

/* Of each group of experts its score: the sum of its two largest; one that holds one expert has that one's. */
static void groups_score(const struct cairn_model_config *c, const double *by, double *group)
{
    int per = c->experts / c->n_group;

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
        group[g] = per > 1 ? first + second : first;
    }
}

/* The best experts of those groups. */
static void experts_choose(const struct cairn_model_config *c, const double *by, const uint8_t *groups, uint8_t *out)
{
    uint8_t allowed[65536];
    int per = c->experts / c->n_group;

    for (int e = 0; e < c->experts; e++)
        allowed[e] = groups[e / per];
    choose(by, allowed, c->experts, c->experts_per_token, out);
}

/* Which experts a row would take whose scores are by[e] = sigmoid + bias: the best inside the best groups. */
static void route(const struct cairn_model_config *c, const double *by, uint8_t *out)
{
    uint8_t groups[CAIRN_MAX_GROUPS];
    double group[CAIRN_MAX_GROUPS];

    groups_score(c, by, group);
    choose(group, NULL, c->n_group, c->topk_group, groups);
    experts_choose(c, by, groups, out);
}

/* The experts given are of other groups than the best: whether they are the best of theirs but for one exchange, and by how much the best group that
 * was left out beats the worst that was taken, counted as for one score, of which a group's is the sum of two. Infinite: neither. mine: what would be
 * taken of those groups; lost, taken: the exchange, -1 where there is none. */
static double groups_gap(const struct cairn_model_config *c, const double *by, const uint8_t *given, uint8_t *mine, int64_t *lost, int64_t *taken)
{
    uint8_t groups[CAIRN_MAX_GROUPS] = {0};
    double group[CAIRN_MAX_GROUPS], left = -INFINITY, worst = INFINITY;
    int per = c->experts / c->n_group, used = 0;

    *lost = *taken = -1;
    for (int e = 0; e < c->experts; e++)
        if (given[e] && !groups[e / per]) {
            groups[e / per] = 1;
            used++;
        }
    if (used > c->topk_group)
        return INFINITY;
    groups_score(c, by, group);
    for (; used < c->topk_group; used++) { /* groups that were allowed and of which nothing was taken: the best there are */
        int best = -1;

        for (int g = 0; g < c->n_group; g++)
            if (!groups[g] && (best < 0 || group[g] > group[best]))
                best = g;
        groups[best] = 1;
    }
    for (int g = 0; g < c->n_group; g++)
        if (groups[g])
            worst = fmin(worst, group[g]);
        else
            left = fmax(left, group[g]);
    experts_choose(c, by, groups, mine);
    if (exchanged(by, mine, given, c->experts, lost, taken))
        return INFINITY;
    return fmax(left - worst, 0) / 2;
}

/* Root of the summed squares of the terms of expert e's score. A sigmoid is nowhere steeper than 1/4. */
static double terms_of(const struct cairn_plain_matrix *gate, int64_t e, const double *x)
{
    double squares = 0;

    for (int64_t j = 0; j < gate->cols; j++)
        squares += pow(gate->w[e * gate->cols + j] * x[j], 2);
    return 0.25 * sqrt(squares);
}

/* Row t's choice of experts, by[e] being their scores: judged, or their noise. mine: scratch. */
static void router_judge(const struct cairn_plain *p, const struct cairn_plain_matrix *gate, int64_t t, const double *x, const double *by,
                         uint8_t *mine, const uint8_t *given, const struct cairn_plain_choice *choice)
{
    int64_t E = p->c->experts, lost, taken;

    if (p->to != CAIRN_PLAIN_EXACT) {
        choice_noise(choice, t, by, E);
        return;
    }
    memcpy(choice->score + t * E, by, (size_t)E * sizeof *by);
    choice->gap[t] = choice->terms[t] = 0;
    route(p->c, by, mine);
    if (!memcmp(mine, given, (size_t)E))
        return;
    choice->gap[t] = groups_gap(p->c, by, given, mine, &lost, &taken);
    if (lost >= 0)
        choice->gap[t] = fmax(choice->gap[t], by[lost] - by[taken]);
    for (int64_t e = 0; e < E; e++) /* whichever it was that moved a group */
        if (p->c->n_group > 1 || e == lost || e == taken)
            choice->terms[t] = fmax(choice->terms[t], terms_of(gate, e, x));
}

static enum cairn_status experts_add(struct cairn_plain *p, int layer, const double *h, int64_t n, const uint8_t *given,
                                     const struct cairn_plain_choice *choice, double *tmp, double *out, struct cairn_error *err)
{
    const struct cairn_model_config *c = p->c;
    struct cairn_plain_matrix gate = {0}, bias = {0};
    struct swiglu routed = {0}, shared = {0};
    double *prob = room(c->experts, 1), *by = room(c->experts, 1);
    uint8_t *mine = calloc((size_t)c->experts + 1, 1);
    enum cairn_status st = CAIRN_OK;

    if (!prob || !by || !mine)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_plain_layer_matrix(p, &gate, layer, "mlp.gate.weight", err));
    TRY(cairn_plain_layer_matrix(p, &bias, layer, "mlp.gate.e_score_correction_bias", err));
    TRY(swiglu_get(p, &routed, layer, "mlp.experts.", err));
    if (c->shared_experts > 0)
        TRY(swiglu_get(p, &shared, layer, "mlp.shared_experts.", err));
    for (int64_t t = 0; t < n; t++) {
        const double *x = h + t * c->width;
        const uint8_t *take = given + t * c->experts;
        double sum = 0;

        apply(&gate, 0, x, prob);
        for (int e = 0; e < c->experts; e++)
            prob[e] = 1 / (1 + exp(-prob[e]));
        for (int e = 0; e < c->experts; e++)
            by[e] = prob[e] + bias.w[e];
        router_judge(p, &gate, t, x, by, mine, take, choice);
        for (int e = 0; e < c->experts; e++)
            sum += take[e] ? prob[e] : 0;
        for (int e = 0; e < c->experts; e++)
            if (take[e])
                swiglu_add(p, &routed, e, x, prob[e] / (c->norm_topk ? sum + 1e-20 : 1) * (double)c->routed_scale, tmp, out + t * c->width);
        rounded(p, out + t * c->width, c->width);
        if (c->shared_experts > 0)
            swiglu_add(p, &shared, 0, x, 1, tmp, out + t * c->width);
        rounded(p, out + t * c->width, c->width);
    }
out:
    free(gate.w);
    free(bias.w);
    free(prob);
    free(by);
    free(mine);
    swiglu_free(&routed);
    swiglu_free(&shared);
    return st;
}

enum cairn_status cairn_plain_mlp(struct cairn_plain *p, int layer, const double *x, int64_t n, const uint8_t *given,
                                  const struct cairn_plain_choice *choice, double *out, struct cairn_error *err)
{
    const struct cairn_model_config *c = p->c;
    int64_t shared = c->shared_experts * c->expert_width, width = c->dense_width > c->expert_width ? c->dense_width : c->expert_width;
    double *h = room(n, c->width), *tmp = room(3, (width > shared ? width : shared) + c->width);
    struct cairn_plain_matrix norm = {0};
    struct swiglu dense = {0};
    enum cairn_status st = CAIRN_OK;

    if (!h || !tmp)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_plain_layer_matrix(p, &norm, layer, "post_attention_layernorm.weight", err));
    for (int64_t t = 0; t < n; t++)
        rms_norm(x + t * c->width, norm.w, c->width, (double)c->norm_eps, h + t * c->width);
    rounded(p, h, n * c->width);
    memset(out, 0, (size_t)(n * c->width) * sizeof *out);
    if (!c->dense[layer]) {
        TRY(experts_add(p, layer, h, n, given, choice, tmp, out, err));
        goto out;
    }
    TRY(swiglu_get(p, &dense, layer, "mlp.", err));
    for (int64_t t = 0; t < n; t++)
        swiglu_add(p, &dense, 0, h + t * c->width, 1, tmp, out + t * c->width);
out:
    free(h);
    free(tmp);
    free(norm.w);
    swiglu_free(&dense);
    return st;
}

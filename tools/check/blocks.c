/* blocks.c - see blocks.h. */
#include "tools/check/blocks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/check/picked.h"
#include "tools/check/plain.h"

#define DRAWS  2       /* of the noise: what roundings, up or down by chance, do */
#define NOISE  6       /* times that noise, that a block, and scores of what is chosen, may be off */
#define MIXING 0x1p-16 /* of weights between streams, which are all about 1: fp32 products over J*D channels, sigmoids, 39 divisions */

/* ---- holding against ----------------------------------------------------------------------------------------------------------- */

struct holding {
    struct cairn_picked *p;
    struct cairn_plain *plain;
    const struct cairn_model_config *c;
    double bar, rounding; /* of a block's own size; of the stream that it is added to, in up to four steps (products, adapters, shared experts) */
    double terms;         /* of the terms of a score */
    enum cairn_plain_rounding own;
    double worst; /* share of what is allowed that was used up at most */
    int64_t blocks;
    /* of the sequence at hand */
    const struct cairn_sequence *s;
    int64_t first, n; /* its rows in the micro-batch */
};

static enum cairn_status finding(const struct holding *h, int layer, const char *block, int64_t row, const char *what, struct cairn_error *err)
{
    char where[64];

    if (layer < 0)
        snprintf(where, sizeof where, "%s", block);
    else
        snprintf(where, sizeof where, "layer %d %s", layer, block);
    return cairn_fail(err, CAIRN_ENUMERIC, "right: %s: at token %lld of sequence %s %s", where, (long long)row, h->p->x->q.name[h->s->index], what);
}

/* Row `first` of a layer's rows of `width`. */
static const float *rows_of(const struct holding *h, const float *v, int layer, int64_t width)
{
    return v + ((int64_t)layer * h->p->rows + h->first) * width;
}

/* The sequence's rows of a layer, as doubles: malloc'ed. NULL: no memory. */
static double *widened(const struct holding *h, const float *v, int layer, int64_t width)
{
    const float *from = rows_of(h, v, layer, width);
    double *to = malloc((size_t)(h->n * width + 1) * sizeof *to);

    for (int64_t i = 0; to && i < h->n * width; i++)
        to[i] = (double)from[i];
    return to;
}

/* A residual behind the MLP of a layer: before the attention of the next, or behind all. */
static const float *behind(const struct holding *h, int layer)
{
    return layer + 1 < h->c->layers ? rows_of(h, h->p->in[0], layer + 1, h->p->width) : h->p->last + h->first * h->p->width;
}

/* after = before + what the plain model adds, row by row of `width`. before: NULL for none; noise (n): how far it may be off beside. */
static enum cairn_status sums_hold(struct holding *h, int layer, const char *block, const double *before, const float *after, const double *added,
                                   const double *noise, int64_t width, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char what[120];

    for (int64_t t = 0; t < h->n; t++) {
        double size = 0, stream = 0, apart = 0, allowed;

        for (int64_t i = t * width; i < (t + 1) * width; i++) {
            double a = (double)after[i], d = fabs(a - (before ? before[i] : 0) - added[i]);

            size = fmax(size, fabs(added[i]));
            stream = fmax(stream, fabs(a));
            if (!(d <= apart))
                apart = isnan(d) ? INFINITY : d;
        }
        allowed = h->bar * size + h->rounding * stream + noise[t];
        h->worst = fmax(h->worst, apart / fmax(allowed, 1e-300));
        if (!(apart <= allowed)) {
            snprintf(what, sizeof what, "it adds what is off by %.3g of its size, %.3g would do", apart / fmax(size, 1e-300),
                     allowed / fmax(size, 1e-300));
            TRY(finding(h, layer, block, t, what, err));
        }
    }
    h->blocks++;
out:
    return st;
}

/* Numbers that are to be equal but for what fp32 rounds on the way to them, times `size` of each row. */
static enum cairn_status near_hold(struct holding *h, int layer, const char *block, const float *mine, const double *theirs, const double *size,
                                   int64_t width, const char *name, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char what[120];

    for (int64_t i = 0; i < h->n * width; i++) {
        double apart = fabs((double)mine[i] - theirs[i]), allowed = size ? size[i / width] : MIXING;

        h->worst = fmax(h->worst, apart / fmax(allowed, 1e-300));
        if (!(apart <= allowed)) {
            snprintf(what, sizeof what, "%s is off by %.3g, %.3g would do", name, apart, allowed);
            TRY(finding(h, layer, block, i / width, what, err));
        }
    }
    h->blocks++;
out:
    return st;
}

/* Choices may be others where two scores are as near as rounding makes them. */
static enum cairn_status choices_hold(struct holding *h, int layer, const char *block, const struct cairn_plain_choice *c, struct cairn_error *err)
{
    int64_t row = -1, apart = 0;
    char what[120];

    for (int64_t t = h->n - 1; t >= 0; t--) {
        double allowed = h->terms * c->terms[t] + NOISE * c->noise[t];

        if (!c->gap[t])
            continue;
        if (isfinite(c->gap[t]) && c->gap[t] <= allowed)
            h->worst = fmax(h->worst, c->gap[t] / allowed);
        else {
            apart++;
            row = t;
        }
    }
    if (!apart)
        return CAIRN_OK;
    snprintf(what, sizeof what, "and %lld further rows of it other choices are made", (long long)(apart - 1));
    return finding(h, layer, block, row, what, err);
}

/* ---- the blocks ------------------------------------------------------------------------------------------------------------------ */

/* Memory for a sequence. */
struct room {
    double *x, *added, *noise; /* (n, D): what a block is given, what it makes; (n) */
    struct cairn_plain_choice choice;
    uint8_t *keys, *experts;   /* (n, n), (n, E): the run's choices; keys of the last layer that chose */
};

static enum cairn_status room_make(struct room *r, const struct holding *h, struct cairn_error *err)
{
    size_t n = (size_t)h->n, D = (size_t)h->c->width, E = h->c->experts > 0 ? (size_t)h->c->experts : 1;

    *r = (struct room){
        .added = malloc(n * D * sizeof *r->added), .noise = malloc(n * sizeof *r->noise), .keys = calloc(n, n), .experts = calloc(n, E)};
    r->choice = (struct cairn_plain_choice){.score = malloc(n * (n > E ? n : E) * sizeof *r->choice.score), .gap = malloc(n * sizeof *r->choice.gap),
                                            .terms = malloc(n * sizeof *r->choice.terms), .noise = malloc(n * sizeof *r->choice.noise)};
    return r->added && r->noise && r->keys && r->experts && r->choice.score && r->choice.gap && r->choice.terms && r->choice.noise ? CAIRN_OK
                                                                                                                                   : CAIRN_NOMEM(err);
}

static void room_free(struct room *r)
{
    free(r->x);
    free(r->added);
    free(r->noise);
    free(r->choice.score);
    free(r->choice.gap);
    free(r->choice.terms);
    free(r->choice.noise);
    free(r->keys);
    free(r->experts);
}

/* The keys that the run chose in a layer with an indexer; a layer without one attends to those of the last. */
static enum cairn_status keys_take(struct holding *h, struct room *r, int layer, struct cairn_error *err)
{
    const struct cairn_picked *p = h->p;
    enum cairn_status st = CAIRN_OK;

    if (!p->keys[layer])
        return CAIRN_OK;
    memset(r->keys, 0, (size_t)(h->n * h->n));
    for (int64_t t = 0; t < h->n; t++)
        for (int64_t k = 0; k < p->key_width[layer]; k++) {
            int32_t key = p->keys[layer][(h->first + t) * p->key_width[layer] + k];

            if (key >= h->n)
                TRY(finding(h, layer, "indexer", t, "a key behind the end of the sequence is chosen", err));
            if (key >= 0)
                r->keys[t * h->n + key] = 1;
        }
out:
    return st;
}

/* What a block makes of r->x, into out. */
static enum cairn_status made(struct holding *h, struct room *r, int layer, int site, double *out, struct cairn_error *err)
{
    return site               ? cairn_plain_mlp(h->plain, layer, r->x, h->n, r->experts, &r->choice, out, err)
           : h->c->kda[layer] ? cairn_plain_kda(h->plain, layer, r->x, h->n, out, err)
                            : cairn_plain_attention(h->plain, layer, r->x, h->n, r->keys, &r->choice, out, err);
}

/* The experts that the run chose. */
static void experts_take(struct holding *h, struct room *r, int layer)
{
    const struct cairn_model_config *c = h->c;
    const int32_t *experts = h->p->experts[layer];

    memset(r->experts, 0, (size_t)(h->n * c->experts));
    for (int64_t t = 0; experts && t < h->n; t++)
        for (int k = 0; k < c->experts_per_token; k++)
            r->experts[t * c->experts + experts[(h->first + t) * c->experts_per_token + k]] = 1;
}

/* What a block makes of r->x into r->added, with the run's own choices, which are held; into r->noise what it may be off. */
static enum cairn_status block_make(struct holding *h, struct room *r, int layer, int site, struct cairn_error *err)
{
    const struct cairn_model_config *c = h->c;
    int64_t D = c->width;
    int chose = site ? !c->dense[layer] : c->indexer[layer] && !c->kda[layer], noisy = h->own == CAIRN_PLAIN_BF16 || (!site && c->kda[layer]);
    enum cairn_status st = CAIRN_OK;
    double *again = NULL;

    if (!site && !c->kda[layer])
        TRY(keys_take(h, r, layer, err));
    if (site && chose)
        experts_take(h, r, layer);
    if (!(again = malloc((size_t)(h->n * D) * sizeof *again)))
        TRY(CAIRN_NOMEM(err));
    r->choice.width = site ? c->experts : h->n;
    memset(r->noise, 0, (size_t)h->n * sizeof *r->noise);
    memset(r->choice.noise, 0, (size_t)h->n * sizeof *r->choice.noise);
    TRY(made(h, r, layer, site, r->added, err));
    for (int draw = 0; noisy && draw < DRAWS; draw++) {
        cairn_plain_round(h->plain, h->own, draw);
        st = made(h, r, layer, site, again, err);
        cairn_plain_round(h->plain, CAIRN_PLAIN_EXACT, 0);
        TRY(st);
        for (int64_t i = 0; i < h->n * D; i++)
            r->noise[i / D] = fmax(r->noise[i / D], NOISE * fabs(again[i] - r->added[i]));
    }
    if (chose)
        TRY(choices_hold(h, layer, site ? "router" : "indexer", &r->choice, err));
out:
    free(again);
    return st;
}

static const char *block_name(const struct cairn_model_config *c, int layer, int site)
{
    return site ? (c->dense[layer] ? "mlp" : "experts") : c->kda[layer] ? "linear attention" : "attention";
}

/* Into the block at a site: how the streams are mixed. r->x becomes what the run's own block was given. */
static enum cairn_status enter_hold(struct holding *h, struct room *r, int layer, int site, struct cairn_error *err)
{
    const struct cairn_picked *p = h->p;
    int64_t D = h->c->width, n = h->n;
    double *streams = widened(h, p->in[site], layer, p->width), *mix = malloc((size_t)(n * p->mixes) * sizeof *mix),
           *size = calloc((size_t)n, sizeof *size);
    const char *block = site ? "hyper-connection of the mlp" : "hyper-connection of attention";
    enum cairn_status st = CAIRN_OK;

    if (!streams || !mix || !size)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_plain_hyper(h->plain, layer, site, streams, n, mix, r->added, err));
    TRY(near_hold(h, layer, block, rows_of(h, p->mix[site], layer, p->mixes), mix, NULL, p->mixes, "a weight", err));
    for (int64_t t = 0; t < n; t++)
        for (int64_t i = t * p->width; i < (t + 1) * p->width; i++)
            size[t] = fmax(size[t], (MIXING + h->rounding) * (double)h->c->streams * fabs(streams[i]));
    TRY(near_hold(h, layer, block, rows_of(h, p->given[site], layer, D), r->added, size, D, "what it mixes", err));
    if (!(r->x = widened(h, p->given[site], layer, D)))
        TRY(CAIRN_NOMEM(err));
out:
    free(streams);
    free(mix);
    free(size);
    return st;
}

/* Out of it: to each stream a share of the block's output and of the other streams, by the run's own weights, which enter_hold has held. */
static enum cairn_status leave_hold(struct holding *h, int layer, int site, struct cairn_error *err)
{
    const struct cairn_picked *p = h->p;
    int64_t D = h->c->width, J = h->c->streams, n = h->n;
    const float *in = rows_of(h, p->in[site], layer, p->width), *made = rows_of(h, p->made[site], layer, D),
                *mix = rows_of(h, p->mix[site], layer, p->mixes), *out = site ? behind(h, layer) : rows_of(h, p->in[1], layer, p->width);
    double *theirs = malloc((size_t)(n * p->width) * sizeof *theirs), *size = calloc((size_t)n, sizeof *size);
    enum cairn_status st = CAIRN_OK;

    if (!theirs || !size)
        TRY(CAIRN_NOMEM(err));
    for (int64_t t = 0; t < n; t++)
        for (int64_t j = 0; j < J; j++)
            for (int64_t i = 0; i < D; i++) {
                const float *m = mix + t * p->mixes;
                double v = (double)m[J + j] * (double)made[t * D + i];

                for (int64_t from = 0; from < J; from++)
                    v += (double)m[2 * J + from * J + j] * (double)in[(t * J + from) * D + i];
                theirs[(t * J + j) * D + i] = v;
                size[t] = fmax(size[t], 4 * h->rounding * (fabs(v) + 2 * fabs((double)made[t * D + i])));
            }
    TRY(near_hold(h, layer, site ? "hyper-connection of the mlp" : "hyper-connection of attention", out, theirs, size, p->width, "what it gives back",
                  err));
out:
    free(theirs);
    free(size);
    return st;
}

/* Block number `site` of a layer: attention, MLP. */
static enum cairn_status block_hold(struct holding *h, struct room *r, int layer, int site, struct cairn_error *err)
{
    const struct cairn_picked *p = h->p;
    const char *block = block_name(h->c, layer, site);
    int64_t D = h->c->width;
    enum cairn_status st = CAIRN_OK;

    free(r->x);
    r->x = NULL;
    if (p->mixes)
        TRY(enter_hold(h, r, layer, site, err));
    else if (!(r->x = widened(h, p->in[site], layer, D)))
        TRY(CAIRN_NOMEM(err));
    TRY(block_make(h, r, layer, site, err));
    if (p->mixes) {
        TRY(sums_hold(h, layer, block, NULL, rows_of(h, p->made[site], layer, D), r->added, r->noise, D, err));
        TRY(leave_hold(h, layer, site, err));
    } else {
        TRY(sums_hold(h, layer, block, r->x, site ? behind(h, layer) : rows_of(h, p->in[1], layer, D), r->added, r->noise, D, err));
    }
out:
    return st;
}

/* ---- the ends ---------------------------------------------------------------------------------------------------------------------- */

static enum cairn_status embedding_hold(struct holding *h, struct room *r, struct cairn_error *err)
{
    int64_t D = h->c->width, W = h->p->width;
    const float *in = rows_of(h, h->p->in[0], 0, W);
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_plain_embed(h->plain, h->s->tokens, h->n, r->added, err));
    for (int64_t i = 0; i < h->n * W; i++) {
        double row = r->added[i / W * D + i % D];

        if (!(fabs(row - (double)in[i]) <= h->rounding * fabs(row)))
            TRY(finding(h, -1, "embedding", i / W, "it is not the table's row", err));
    }
out:
    return st;
}

static enum cairn_status head_hold(struct holding *h, struct room *r, struct cairn_error *err)
{
    const struct cairn_picked *p = h->p;
    const struct cairn_sequence *s = h->s;
    int64_t D = h->c->width, J = p->width / D, n = h->n;
    double *x = widened(h, p->head, 0, D), *again = malloc((size_t)n * sizeof *again), noise = 0;
    int32_t *target = malloc((size_t)n * sizeof *target);
    enum cairn_status st = CAIRN_OK;

    if (!x || !again || !target)
        TRY(CAIRN_NOMEM(err));
    for (int64_t i = 0; i < n * D; i++) { /* the streams' mean */
        double sum = 0, size = 0;

        for (int64_t j = 0; j < J; j++) {
            double v = (double)p->last[(h->first + i / D) * p->width + j * D + i % D];

            sum += v / (double)J;
            size = fmax(size, fabs(v));
        }
        if (!(fabs(sum - x[i]) <= h->rounding * size))
            TRY(finding(h, -1, "final norm", i / D, "it does not read the mean of the streams", err));
    }
    for (int64_t t = 0; t < n; t++)
        target[t] = t + 1 >= s->prompt ? s->tokens[t + 1] : -1;
    TRY(cairn_plain_logprobs(h->plain, x, n, target, (double)p->x->temperature, r->added, err));
    for (int draw = 0; draw < DRAWS; draw++) {
        cairn_plain_round(h->plain, h->own, draw);
        st = cairn_plain_logprobs(h->plain, x, n, target, (double)p->x->temperature, again, err);
        cairn_plain_round(h->plain, CAIRN_PLAIN_EXACT, 0);
        TRY(st);
        for (int64_t t = 0; t < n; t++)
            noise = fmax(noise, fabs(again[t] - r->added[t]));
    }
    for (int64_t t = 0; t < n; t++) {
        double apart = fabs(r->added[t] - (double)p->logprob[h->first + t]), allowed = h->bar * fmax(1, fabs(r->added[t])) + NOISE * noise;

        if (target[t] < 0)
            continue;
        h->worst = fmax(h->worst, apart / allowed);
        if (!(apart <= allowed))
            TRY(finding(h, -1, "head", t, "the log-probability of the next token is another", err));
    }
out:
    free(x);
    free(again);
    free(target);
    return st;
}

static enum cairn_status sequence_hold(struct holding *h, struct cairn_error *err)
{
    struct room r = {0};
    enum cairn_status st = CAIRN_OK;

    TRY(room_make(&r, h, err));
    TRY(embedding_hold(h, &r, err));
    for (int l = 0; l < h->c->layers; l++)
        for (int site = 0; site < 2; site++)
            TRY(block_hold(h, &r, l, site, err));
    TRY(head_hold(h, &r, err));
out:
    room_free(&r);
    return st;
}

enum cairn_status cairn_blocks_check(struct cairn_sides *x, const struct cairn_sequence *s, int n, json_t *report, struct cairn_error *err)
{
    struct cairn_trainer *t = &x->trainer;
    int narrow = x->k.act == CAIRN_BF16;
    struct cairn_picked p = {.x = x};
    struct holding h = {.p = &p,
                        .c = &t->policy.config,
                        .bar = narrow ? 1e-2 : 1e-4,
                        .rounding = narrow ? 0x1p-6 : 0x1p-21,
                        .terms = narrow ? 0x1p-8 : 0x1p-17,
                        .own = narrow ? CAIRN_PLAIN_BF16 : CAIRN_PLAIN_F32};
    int64_t next = 0, number = 0;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_plain_open(&h.plain, &t->policy, &x->k, err));
    while (cairn_trainer_fill(t, s, n, &next, &number)) {
        TRY(cairn_picked_forward(&p, err));
        for (int i = 0; i < t->micro.nseq; i++) {
            TRY(cairn_stage_stopping(err));
            h.s = t->micro.member[i];
            h.first = t->micro.start[i];
            h.n = h.s->length - 1;
            TRY(sequence_hold(&h, err));
        }
    }
    if (json_object_set_new(report, "blocks", json_pack("{s:I, s:f}", "held", (json_int_t)h.blocks, "worst", h.worst)))
        TRY(CAIRN_NOMEM(err));
out:
    cairn_picked_free(&p);
    cairn_plain_close(h.plain);
    return st;
}

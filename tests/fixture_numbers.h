/* fixture_numbers.h - what is compared: logits, losses and gradients of one model over all sequences of the reference, from one device,
 * as fp32 on the host. Included by fixture_check.c alone.
 */
#ifndef TESTS_FIXTURE_NUMBERS_H
#define TESTS_FIXTURE_NUMBERS_H

#include "fixture_reference.h"

/* Gradients are flat, as they lie in a store: gradient of parameter i at numbers_grad. */
struct numbers {
    float *logits;          /* (rows, vocab) */
    double ce, grpo;        /* losses */
    float *ce_grad, *grad; /* of the mean next-token loss (full weights only), of the clipped surrogate */
};

static void numbers_free(struct numbers *n)
{
    free(n->logits);
    free(n->ce_grad);
    free(n->grad);
    memset(n, 0, sizeof *n);
}

/* Gradient of parameter i, inside flat; NULL for a parameter that is not trained. */
static const float *numbers_grad(const float *flat, const struct cairn_param_table *t, int i)
{
    return i < 0 || t->param[i].frozen ? NULL : flat + (t->param[i].offset - t->trainable_begin) / sizeof(float);
}

/* Backward from dlogprob into grads, which then are *flat on the host. */
static enum cairn_status numbers_backward(float **flat, const struct cairn_model *m, struct cairn_pass *pass, struct cairn_store *grads,
                                          const struct cairn_tensor *dlogprob, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    cairn_store_renew(grads);
    TRY(cairn_backward(pass, dlogprob, NULL, m->adapter ? NULL : grads, m->adapter ? grads : NULL, err));
    TRY(fetch(flat, m->k, &grads->flat, err));
out:
    return st;
}

/* Clipped surrogate, token mean over all sequences. */
static enum cairn_status numbers_grpo(struct numbers *out, const struct reference *r, const struct cairn_model *m, struct cairn_pass *pass,
                                      struct cairn_store *grads, struct cairn_error *err)
{
    struct cairn_batch b = whole_batch(r);
    struct cairn_scores scores;
    struct value old = {0}, adv = {0}, weight = {0}, mask = {0}, seq = {0}, dcur = {0}, stats = {0};
    struct cairn_policy_loss loss;
    float *w = calloc((size_t)r->rows, sizeof *w);
    uint8_t *there = calloc((size_t)r->rows, 1);
    double sums[CAIRN_LS_COUNT];
    enum cairn_status st = CAIRN_OK;

    if (!w || !there)
        TRY(CAIRN_NOMEM(err));
    for (int64_t i = 0; i < r->rows; i++) {
        there[i] = r->target[i] >= 0;
        w[i] = 1 / (float)r->losses;
    }
    TRY(value_make(&old, m->k, CAIRN_F32, r->rows, r->old, err));
    TRY(value_make(&adv, m->k, CAIRN_F32, r->rows, r->adv, err));
    TRY(value_make(&weight, m->k, CAIRN_F32, r->rows, w, err));
    TRY(value_make(&mask, m->k, CAIRN_U8, r->rows, there, err));
    TRY(value_make(&seq, m->k, CAIRN_I32, r->rows, r->seq, err));
    TRY(value_make(&dcur, m->k, CAIRN_F32, r->rows, NULL, err));
    TRY(value_make(&stats, m->k, CAIRN_F64, CAIRN_LS_COUNT, NULL, err));
    TRY(cairn_forward(pass, &b, r->target, 1, &scores, err));
    loss = (struct cairn_policy_loss){.cur = scores.logprob,
                                      .old = old.t,
                                      .adv = adv.t,
                                      .weight = weight.t,
                                      .mask = mask.t,
                                      .seq = seq.t,
                                      .dcur = dcur.t,
                                      .stats = stats.t,
                                      .clip_low = 0.2f,
                                      .clip_high = 0.28f};
    TRY(m->k->ops.policy_loss(&m->k->stream, &loss, err));
    TRY(cairn_tensor_get(&m->k->stream, &stats.t, sums, sizeof sums, err));
    out->grpo = sums[CAIRN_LS_POLICY];
    TRY(numbers_backward(&out->grad, m, pass, grads, &dcur.t, err));
out:
    cairn_buffer_destroy(old.buf);
    cairn_buffer_destroy(adv.buf);
    cairn_buffer_destroy(weight.buf);
    cairn_buffer_destroy(mask.buf);
    cairn_buffer_destroy(seq.buf);
    cairn_buffer_destroy(dcur.buf);
    cairn_buffer_destroy(stats.buf);
    free(w);
    free(there);
    return st;
}

/* Mean next-token loss over all sequences, and its gradient. */
static enum cairn_status numbers_ce(struct numbers *out, const struct reference *r, const struct cairn_model *m, struct cairn_pass *pass,
                                    struct cairn_store *grads, struct cairn_error *err)
{
    struct cairn_batch b = whole_batch(r);
    struct cairn_scores scores;
    struct value up = {0};
    float *logprob = NULL, *h = calloc((size_t)r->rows, sizeof *h);
    double loss = 0;
    enum cairn_status st = CAIRN_OK;

    if (!h)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_forward(pass, &b, r->target, 1, &scores, err));
    TRY(fetch(&logprob, m->k, &scores.logprob, err));
    for (int64_t i = 0; i < r->rows; i++)
        if (r->target[i] >= 0) {
            loss -= logprob[i];
            h[i] = -1 / (float)r->losses;
        }
    out->ce = loss / (double)r->losses;
    TRY(value_make(&up, m->k, CAIRN_F32, r->rows, h, err));
    TRY(numbers_backward(&out->ce_grad, m, pass, grads, &up.t, err));
out:
    cairn_buffer_destroy(up.buf);
    free(logprob);
    free(h);
    return st;
}

/* Both losses, in fp64, of logits (rows, vocab). */
static void numbers_losses(const struct reference *r, const float *logits, double *ce, double *grpo)
{
    int64_t vocab = r->hf->config.vocab;

    *ce = *grpo = 0;
    for (int64_t i = 0; i < r->rows; i++) {
        const float *row = logits + i * vocab;
        double most = row[0], sum = 0, logprob, ratio, kept;

        if (r->target[i] < 0)
            continue;
        for (int64_t v = 1; v < vocab; v++)
            most = fmax(most, row[v]);
        for (int64_t v = 0; v < vocab; v++)
            sum += exp(row[v] - most);
        logprob = row[r->target[i]] - most - log(sum);
        ratio = exp(logprob - r->old[i]);
        kept = fmin(fmax(ratio, 0.8), 1.28);
        *ce -= logprob / (double)r->losses;
        *grpo -= fmin(ratio * r->adv[i], kept * r->adv[i]) / (double)r->losses;
    }
}

static enum cairn_status numbers_logits(struct numbers *out, const struct reference *r, const struct cairn_model *m, struct cairn_pass *pass,
                                        struct cairn_error *err)
{
    struct cairn_batch b = whole_batch(r);
    struct cairn_tensor logits;
    enum cairn_status st = CAIRN_OK;

    free(out->logits);
    out->logits = NULL;
    TRY(cairn_forward_logits(pass, &b, &logits, err));
    TRY(fetch(&out->logits, m->k, &logits, err));
out:
    return st;
}

/* All of them. pass, made for training, and grads belong to m. To be freed in any case. */
static enum cairn_status numbers_make(struct numbers *out, const struct reference *r, const struct cairn_model *m, struct cairn_pass *pass,
                                      struct cairn_store *grads, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    numbers_free(out);
    TRY(numbers_logits(out, r, m, pass, err));
    if (!m->adapter)
        TRY(numbers_ce(out, r, m, pass, grads, err));
    TRY(numbers_grpo(out, r, m, pass, grads, err));
out:
    return st;
}

/* The gradient that items are of, alone: the mean next-token loss's, with an adapter the surrogate's. */
static enum cairn_status numbers_gradient(struct numbers *out, const struct reference *r, const struct cairn_model *m, struct cairn_pass *pass,
                                          struct cairn_store *grads, struct cairn_error *err)
{
    return m->adapter ? numbers_grpo(out, r, m, pass, grads, err) : numbers_ce(out, r, m, pass, grads, err);
}

#endif

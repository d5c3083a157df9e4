/* grpo_stats.c - what a step counts: over its updates, its ranks and, on disc, its attempts. */
#include "stages/train/grpo_impl.h"

#include <math.h>
#include <string.h>

static double *mismatch_out(const struct cairn_grpo_mismatch *m, double *h)
{
    *h++ = (double)m->compared;
    *h++ = (double)m->equal;
    *h++ = m->sum;
    *h++ = m->max;
    *h++ = m->k3;
    return h;
}

static const double *mismatch_in(struct cairn_grpo_mismatch *m, const double *h)
{
    m->compared = (int64_t)*h++;
    m->equal = (int64_t)*h++;
    m->sum = *h++;
    m->max = *h++;
    m->k3 = *h++;
    return h;
}

void cairn_grpo_numbers_out(const struct cairn_grpo_stats *s, double *h)
{
    memcpy(h, s->loss, sizeof s->loss);
    h += CAIRN_LS_COUNT;
    *h++ = s->sft_loss;
    *h++ = s->grad_norm;
    *h++ = s->lr;
    *h++ = s->grad_norm_max;
    *h++ = (double)s->updates;
    *h++ = (double)s->skipped;
    *h++ = (double)s->loss_tokens;
    mismatch_out(&s->carried, mismatch_out(&s->mismatch, h));
}

void cairn_grpo_numbers_in(struct cairn_grpo_stats *s, const double *h)
{
    memcpy(s->loss, h, sizeof s->loss);
    h += CAIRN_LS_COUNT;
    s->sft_loss = *h++;
    s->grad_norm = *h++;
    s->lr = *h++;
    s->grad_norm_max = *h++;
    s->updates = (int64_t)*h++;
    s->skipped = (int64_t)*h++;
    s->loss_tokens = (int64_t)*h++;
    mismatch_in(&s->carried, mismatch_in(&s->mismatch, h));
}

static void losses_add(double *to, const double *from)
{
    double min = fmin(to[CAIRN_LS_RATIO_MIN], from[CAIRN_LS_RATIO_MIN]),
           max = fmax(to[CAIRN_LS_RATIO_MAX], from[CAIRN_LS_RATIO_MAX]);
    double mismatch = fmax(to[CAIRN_LS_MISMATCH_MAX], from[CAIRN_LS_MISMATCH_MAX]);

    for (int i = 0; i < CAIRN_LS_COUNT; i++)
        to[i] += from[i];
    to[CAIRN_LS_RATIO_MIN] = min;
    to[CAIRN_LS_RATIO_MAX] = max;
    to[CAIRN_LS_MISMATCH_MAX] = mismatch;
}

void cairn_grpo_losses_begin(double *h)
{
    memset(h, 0, CAIRN_LS_COUNT * sizeof *h);
    h[CAIRN_LS_RATIO_MIN] = INFINITY;
    h[CAIRN_LS_RATIO_MAX] = -INFINITY;
}

static void mismatch_add(struct cairn_grpo_mismatch *to, const struct cairn_grpo_mismatch *from)
{
    to->compared += from->compared;
    to->equal += from->equal;
    to->sum += from->sum;
    to->k3 += from->k3;
    to->max = fmax(to->max, from->max);
}

enum cairn_status cairn_grpo_part_begin(struct cairn_grpo_job *j, struct cairn_error *err)
{
    j->part = (struct cairn_grpo_stats){0};
    cairn_grpo_losses_begin(j->part.loss);
    return cairn_tensor_set(&j->t->k->stream, &j->t->stats, j->part.loss, sizeof j->part.loss, err);
}

enum cairn_status cairn_grpo_part_end(struct cairn_grpo_job *j, enum cairn_status st, struct cairn_error *err)
{
    struct cairn_grpo_stats *s = j->stats;
    double own[CAIRN_GRPO_NUMBERS];

    if (st == CAIRN_OK)
        st = cairn_tensor_get(&j->t->k->stream, &j->t->stats, j->part.loss, sizeof j->part.loss, err);
    cairn_grpo_numbers_out(&j->part, own);
    TRY(cairn_trainer_gather(j->t, "an update's gradients", st, own, CAIRN_GRPO_NUMBERS, j->gathered, err));
    for (int r = 0; r < j->t->ranks; r++) {
        struct cairn_grpo_stats its;

        cairn_grpo_numbers_in(&its, j->gathered + r * CAIRN_GRPO_NUMBERS);
        losses_add(s->loss, its.loss);
        s->sft_loss += its.sft_loss;
        mismatch_add(&s->mismatch, &its.mismatch);
        mismatch_add(&s->carried, &its.carried);
    }
out:
    return st;
}

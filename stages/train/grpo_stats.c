/* grpo_stats.c - what a step counts: over its updates, its ranks and, on disc, its attempts. */
#include "stages/train/grpo_impl.h"

#include <math.h>
#include <string.h>

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
    *h++ = (double)s->compared;
    *h++ = (double)s->equal;
    *h++ = s->mismatch_sum;
    *h++ = s->mismatch_max;
    *h = s->mismatch_k3;
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
    s->compared = (int64_t)*h++;
    s->equal = (int64_t)*h++;
    s->mismatch_sum = *h++;
    s->mismatch_max = *h++;
    s->mismatch_k3 = *h;
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
        s->compared += its.compared;
        s->equal += its.equal;
        s->mismatch_sum += its.mismatch_sum;
        s->mismatch_k3 += its.mismatch_k3;
        s->mismatch_max = fmax(s->mismatch_max, its.mismatch_max);
    }
out:
    return st;
}

/* grpo_update.c - one update: weights of its tokens, micro-batches forward and backward, the optimiser's step. */
#include "stages/train/grpo_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* Sets the weight of every live rollout's tokens for the groups order[begin, end); returns the loss tokens. */
static int64_t weights_set(struct cairn_grpo_job *j, const int64_t *order, int64_t begin, int64_t end)
{
    const char *reduction = cairn_recipe_str(j->t->recipe, "train.reduction");
    double cap = (double)cairn_recipe_i64(j->t->recipe, "rollout.max_new_tokens");
    int64_t tokens = 0, rollouts = 0, live_rollouts = 0, live_groups = 0;

    for (int64_t g = begin; g < end; g++) {
        int64_t mine = 0;

        for (int64_t q = j->first[order[g]]; q < j->first[order[g] + 1]; q++) {
            int64_t i = j->sequence[q].index;

            rollouts++;
            live_rollouts += j->live[i];
            mine += j->live[i] ? cairn_rollout_length(j->r, i) : 0;
        }
        tokens += mine;
        live_groups += mine > 0;
    }
    for (int64_t g = begin; g < end; g++) {
        int64_t mine = 0;

        for (int64_t q = j->first[order[g]]; q < j->first[order[g] + 1]; q++)
            mine += j->live[j->sequence[q].index] ? cairn_rollout_length(j->r, j->sequence[q].index) : 0;
        for (int64_t q = j->first[order[g]]; q < j->first[order[g] + 1]; q++) {
            int64_t i = j->sequence[q].index;
            double w = 1.0 / (double)(tokens ? tokens : 1);

            if (!strcmp(reduction, "sequence_mean"))
                w = 1.0 / ((double)live_rollouts * (double)cairn_rollout_length(j->r, i));
            else if (!strcmp(reduction, "prompt_mean"))
                w = 1.0 / ((double)live_groups * (double)mine);
            else if (!strcmp(reduction, "sum_over_max"))
                w = 1.0 / ((double)rollouts * cap);
            j->weight[i] = j->live[i] ? (float)w : 0.0f;
        }
    }
    return tokens;
}

/* Fills j->row with one value a row: of each response token from `by_token` (response offsets), or per rollout. Other rows 0. */
static void rows_fill(struct cairn_grpo_job *j, const float *by_token, const float *by_rollout)
{
    const struct cairn_micro *m = &j->t->micro;

    memset(j->row, 0, (size_t)m->rows * sizeof *j->row);
    for (int q = 0; q < m->nseq; q++) {
        int64_t i = m->member[q]->index, n = m->member[q]->length - m->member[q]->prompt;

        for (int64_t k = 0; k < n; k++)
            j->row[m->row_of[q] + k] = by_token ? by_token[j->r->response[i] + k] : by_rollout[i];
    }
}

static enum cairn_status rows_send(struct cairn_grpo_job *j, const struct cairn_tensor *dst, const float *by_token,
                                   const float *by_rollout, struct cairn_error *err)
{
    rows_fill(j, by_token, by_rollout);
    return cairn_trainer_rows_set(j->t, dst, j->row, err);
}

static enum cairn_status mask_send(struct cairn_grpo_job *j, struct cairn_error *err)
{
    const struct cairn_micro *m = &j->t->micro;

    memset(j->mask, 0, (size_t)m->rows);
    for (int q = 0; q < m->nseq; q++)
        if (j->live[m->member[q]->index])
            memset(j->mask + m->row_of[q], 1, (size_t)(m->member[q]->length - m->member[q]->prompt));
    return cairn_trainer_rows_set(j->t, &j->t->mask, j->mask, err);
}

/* The first update compares its own forward with what the sampler wrote: no weight has changed yet. */
static enum cairn_status micro_compare(struct cairn_grpo_job *j, const struct cairn_scores *scores, struct cairn_error *err)
{
    const struct cairn_micro *m = &j->t->micro;
    enum cairn_status st = CAIRN_OK;
    double t0;

    TRY(cairn_stream_wait(&j->t->k->stream, err)); /* the forward is no part of what this costs */
    t0 = cairn_now_s();
    TRY(cairn_tensor_get(&j->t->k->stream, &scores->logprob, j->row, (size_t)m->rows * sizeof *j->row, err));
    for (int q = 0; q < m->nseq; q++)
        if (!cairn_grpo_is_stale(j, m->member[q]->index)) /* those were compared when old was computed */
            TRY(cairn_grpo_compare(j, m->member[q]->index, j->row + m->row_of[q], &j->part, err));
    j->stats->compare_s += cairn_now_s() - t0;
out:
    return st;
}

/* loss = -sum w logprob, so its derivative is -w: no ratio, no clipping. j->row holds the weights w. */
static enum cairn_status sft_loss(struct cairn_grpo_job *j, const struct cairn_scores *scores, struct cairn_error *err)
{
    const struct cairn_micro *m = &j->t->micro;
    enum cairn_status st = CAIRN_OK;

    for (int64_t i = 0; i < m->rows; i++)
        j->row[i] = -j->row[i];
    TRY(cairn_trainer_rows_set(j->t, &j->t->dcur, j->row, err));
    TRY(cairn_tensor_get(&j->t->k->stream, &scores->logprob, j->row, (size_t)m->rows * sizeof *j->row, err));
    for (int q = 0; q < m->nseq; q++)
        for (int64_t i = 0; i < m->member[q]->length - m->member[q]->prompt; i++)
            j->part.sft_loss -= (double)j->weight[m->member[q]->index] * (double)j->row[m->row_of[q] + i];
out:
    return st;
}

static enum cairn_status micro_run(struct cairn_grpo_job *j, int check, struct cairn_error *err)
{
    struct cairn_trainer *t = j->t;
    struct cairn_policy_loss a = j->loss;
    enum cairn_status st = CAIRN_OK;
    struct cairn_scores scores;

    TRY(cairn_trainer_forward(t, j->temperature, &scores, err));
    if (check)
        TRY(micro_compare(j, &scores, err));
    TRY(rows_send(j, &t->weight, NULL, j->weight, err));
    if (j->sft) {
        TRY(sft_loss(j, &scores, err));
        TRY(cairn_trainer_backward(t, 0, err));
        goto out;
    }
    TRY(mask_send(j, err));
    TRY(rows_send(j, &t->old, j->old, NULL, err));
    TRY(rows_send(j, &t->adv, NULL, j->s->advantage, err));
    if (j->smp)
        TRY(rows_send(j, &t->smp, j->smp, NULL, err));
    if (j->ref)
        TRY(rows_send(j, &t->ref, j->ref, NULL, err));
    TRY(cairn_trainer_rows_set(t, &t->seq, t->micro.seq, err));
    a.cur = scores.logprob;
    a.entropy = scores.entropy;
    a.old = cairn_trainer_rows(t, &t->old);
    if (j->smp)
        a.smp = cairn_trainer_rows(t, &t->smp);
    if (j->ref)
        a.ref = cairn_trainer_rows(t, &t->ref);
    a.adv = cairn_trainer_rows(t, &t->adv);
    a.weight = cairn_trainer_rows(t, &t->weight);
    a.mask = cairn_trainer_rows(t, &t->mask);
    a.seq = cairn_trainer_rows(t, &t->seq);
    a.dcur = cairn_trainer_rows(t, &t->dcur);
    if (a.entropy_coef != 0)
        a.dentropy = cairn_trainer_rows(t, &t->dentropy);
    a.stats = t->stats;
    TRY(t->k->ops.policy_loss(&t->k->stream, &a, err));
    TRY(cairn_trainer_backward(t, a.entropy_coef != 0, err));
out:
    return st;
}

/* Gradients of this rank's micro-batches of the update. */
static enum cairn_status micros_run(struct cairn_grpo_job *j, const struct cairn_sequence *batch, int64_t n, int check,
                                    struct cairn_error *err)
{
    int64_t next = 0, number = 0;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_stage_stopping(err));
    TRY(cairn_grpo_part_begin(j, err));
    cairn_trainer_renew(j->t);
    while (cairn_trainer_fill(j->t, batch, n, &next, &number)) {
        TRY(cairn_stage_stopping(err));
        TRY(micro_run(j, check, err));
    }
out:
    return st;
}

enum cairn_status cairn_grpo_update(struct cairn_grpo_job *j, const int64_t *order, int64_t u, int64_t begin, int64_t end,
                                    struct cairn_error *err)
{
    struct cairn_sequence *batch = calloc((size_t)j->n + 1, sizeof *batch);
    enum cairn_status st = CAIRN_OK;
    int check = !j->stats->updates && cairn_grpo_old_is_sampled(j) && !j->sft;
    int64_t n = 0, tokens = weights_set(j, order, begin, end);
    double norm;

    for (int64_t g = begin; batch && g < end; g++)
        for (int64_t q = j->first[order[g]]; q < j->first[order[g] + 1]; q++)
            if (j->live[j->sequence[q].index]) /* the others have no part in the gradient, however they are packed */
                batch[n++] = j->sequence[q];
    if (!tokens) {
        cairn_warn("step %lld, update %lld: no loss token in its %lld groups; loss 0, no change", (long long)j->o->step,
                   (long long)u, (long long)(end - begin));
        goto out;
    }
    TRY(cairn_grpo_part_end(j, batch ? micros_run(j, batch, n, check, err) : CAIRN_NOMEM(err), err));
    j->stats->loss_tokens += tokens;
    st = cairn_trainer_update(j->t, &j->adamw, &norm, &j->stats->lr, err);
    if (st == CAIRN_ENUMERIC && cairn_recipe_bool(j->t->recipe, "train.skip_nonfinite")) {
        cairn_warn("step %lld, update %lld left out: %s", (long long)j->o->step, (long long)u, err->text);
        j->stats->skipped++;
        st = CAIRN_OK;
        goto out;
    }
    TRY(st);
    j->stats->updates++;
    j->stats->grad_norm += norm;
    if (norm > j->stats->grad_norm_max)
        j->stats->grad_norm_max = norm;
out:
    free(batch);
    return st;
}

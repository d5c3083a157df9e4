/* grpo.c - a step of policy optimisation from its recipe to its last update (grpo.h). */
#include "stages/train/grpo_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "stages/common/setup.h"

/* ---- reading the recipe ------------------------------------------------------------------------------------------------- */

static int word(const struct cairn_recipe *r, const char *path, const char *const *words)
{
    const char *v = cairn_recipe_str(r, path);

    for (int i = 0; words[i]; i++)
        if (!strcmp(v, words[i]))
            return i;
    return 0;
}

static void recipe_read(struct cairn_grpo_job *j)
{
    static const char *const ratios[] = {"token", "sequence", "cispo", NULL}, *const kinds[] = {"k1", "k2", "k3", NULL};
    const struct cairn_recipe *r = j->t->recipe;
    const json_t *betas = cairn_recipe_list(r, "train.betas"), *max = cairn_recipe_get(r, "mismatch.max");
    const char *correction = cairn_recipe_str(r, "train.correction.kind");

    j->sft = !strcmp(cairn_recipe_str(r, "train.loss"), "sft");
    j->temperature = j->sft ? 1.0f : (float)cairn_recipe_f64(r, "rollout.temperature");
    /* rollouts of another policy differ rightly: that is what train.correction is for */
    j->mismatch_max = !j->o->same_policy    ? INFINITY
                      : json_is_number(max) ? json_number_value(max)
                      : j->o->same_numerics ? 0
                                            : CAIRN_NUMERICS_BAND;
    j->loss = (struct cairn_policy_loss){
        .ratio = (enum cairn_ratio)word(r, "train.ratio", ratios),
        .correction = !strcmp(correction, "tis")      ? CAIRN_CORRECT_TIS
                      : !strcmp(correction, "icepop") ? CAIRN_CORRECT_ICEPOP
                                                      : CAIRN_CORRECT_NONE,
        .kl = (enum cairn_kl)word(r, "train.kl.kind", kinds),
        .clip_low = (float)cairn_recipe_f64(r, "train.clip.low"),
        .clip_high = (float)cairn_recipe_f64(r, "train.clip.high"),
        .dual = cairn_recipe_has(r, "train.clip.dual") ? (float)cairn_recipe_f64(r, "train.clip.dual") : 0,
        .correct_low = (float)cairn_recipe_f64(r, "train.correction.low"),
        .correct_high = (float)cairn_recipe_f64(r, !strcmp(correction, "tis") ? "train.correction.cap" : "train.correction.high"),
        .kl_coef = (float)cairn_recipe_f64(r, "train.kl.coef"),
        .entropy_coef = (float)cairn_recipe_f64(r, "train.entropy")};
    j->adamw = (struct cairn_optimizer_opts){.learning_rate = cairn_recipe_f64(r, "train.learning_rate"),
                                             .beta1 = json_number_value(json_array_get(betas, 0)),
                                             .beta2 = json_number_value(json_array_get(betas, 1)),
                                             .eps = cairn_recipe_f64(r, "train.eps"),
                                             .weight_decay = cairn_recipe_f64(r, "train.weight_decay"),
                                             .grad_clip = cairn_recipe_f64(r, "train.grad_clip"),
                                             .warmup_updates = cairn_recipe_i64(r, "train.warmup_updates"),
                                             .publish = cairn_setup_dtype(r)};
}

/* ---- used rollouts, in order of groups ------------------------------------------------------------------------------------- */

static enum cairn_status job_prepare(struct cairn_grpo_job *j, struct cairn_error *err)
{
    const struct cairn_rollouts *r = j->r;
    size_t n = (size_t)r->n + 1, responses = (size_t)r->response[r->n] + 1;

    j->first = calloc(n + 1, sizeof *j->first);
    j->sequence = calloc(n, sizeof *j->sequence);
    j->live = calloc(n, 1);
    j->weight = calloc(n, sizeof *j->weight);
    j->old = calloc(responses, sizeof *j->old);
    j->row = calloc((size_t)j->t->micro.capacity, sizeof *j->row);
    j->mask = calloc((size_t)j->t->micro.capacity, 1);
    if (!j->first || !j->sequence || !j->live || !j->weight || !j->old || !j->row || !j->mask)
        return CAIRN_NOMEM(err);
    for (int64_t i = 0; i < r->n; i++) {
        if (!r->used[i])
            continue;
        if (!j->n || r->group[i] != r->group[j->sequence[j->n - 1].index])
            j->first[j->groups++] = j->n;
        j->sequence[j->n++] =
            (struct cairn_sequence){r->tokens + r->offsets[i], r->offsets[i + 1] - r->offsets[i], r->prompt_length[i], i};
        j->live[i] = j->s->mask[i] && cairn_rollout_length(r, i) > 0;
    }
    j->first[j->groups] = j->n;
    for (int64_t q = 0; q < j->n; q++)
        j->stale += cairn_grpo_is_stale(j, j->sequence[q].index);
    j->stats->stale = j->stale;
    j->stats->groups = j->groups;
    j->stats->rollouts = j->n;
    return CAIRN_OK;
}

/* Updates `u` on; at a stop the last whole one is committed. */
static enum cairn_status updates_run(struct cairn_grpo_job *j, const int64_t *order, int64_t u, int64_t updates,
                                     struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    double numbers[CAIRN_GRPO_NUMBERS];

    cairn_grpo_numbers_out(j->stats, numbers);
    cairn_stage_progress_from(j->ctx, "updates", u, updates);
    for (; u < updates && st == CAIRN_OK; u++) {
        st = cairn_grpo_update(j, order, u, cairn_pack_cut(j->groups, updates, u), cairn_pack_cut(j->groups, updates, u + 1), err);
        if (st != CAIRN_OK) {
            if (st == CAIRN_EAGAIN)
                cairn_points_stop(j->points, u, numbers); /* as they were before the update that was begun */
            break;
        }
        cairn_grpo_numbers_out(j->stats, numbers);
        cairn_stage_progress(j->ctx, "updates", u + 1, updates);
        st = cairn_points_reached(j->points, u + 1, updates, numbers, err);
    }
    return st;
}

/* train.truncation: correct - the sampler drew from fewer ids, so its probability of a token is the one over those. */
static enum cairn_status sampler_choose(struct cairn_grpo_job *j, struct cairn_error *err)
{
    const struct cairn_recipe *r = j->t->recipe;
    int truncates = cairn_recipe_f64(r, "rollout.top_p") < 1 || cairn_recipe_i64(r, "rollout.top_k") > 0 ||
                    cairn_recipe_f64(r, "rollout.min_p") > 0,
        correct = cairn_recipe_has(r, "train.truncation") && !strcmp(cairn_recipe_str(r, "train.truncation"), "correct");

    j->smp = correct && j->r->logprobs_sampled ? j->r->logprobs_sampled : j->r->logprobs;
    if (!j->sft && correct && truncates && !j->r->logprobs_sampled)
        return cairn_fail(err, CAIRN_EDATA,
                          "step %lld: train.truncation: correct needs the log-probabilities over what was drawn from, and these "
                          "rollouts have none",
                          (long long)j->o->step);
    return CAIRN_OK;
}

static enum cairn_status job_open(struct cairn_grpo_job *j, int64_t **order, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(job_prepare(j, err));
    if (!j->groups)
        TRY(cairn_fail(err, CAIRN_EDATA, "step %lld: no rollout to train on", (long long)j->o->step));
    TRY(sampler_choose(j, err));
    *order = calloc((size_t)j->groups, sizeof **order);
    j->gathered = calloc((size_t)j->t->ranks * CAIRN_GRPO_NUMBERS, sizeof *j->gathered);
    if (!*order || !j->gathered)
        TRY(CAIRN_NOMEM(err));
    cairn_pack_shuffle((uint64_t)cairn_recipe_i64(j->t->recipe, "run.seed"), j->o->step, j->groups, *order);
out:
    return st;
}

enum cairn_status cairn_grpo_run(struct cairn_stage_ctx *ctx, struct cairn_trainer *t, const struct cairn_rollouts *r,
                                 const struct cairn_scores_table *s, const struct cairn_grpo_opts *o,
                                 struct cairn_grpo_stats *stats, struct cairn_error *err)
{
    struct cairn_grpo_job j = {.ctx = ctx, .t = t, .r = r, .s = s, .o = o, .stats = stats};
    int64_t *order = NULL, updates, begin;
    enum cairn_status st = CAIRN_OK;

    memset(stats, 0, sizeof *stats);
    cairn_grpo_losses_begin(stats->loss);
    recipe_read(&j);
    TRY(cairn_trainer_agree(t, "the rollouts", job_open(&j, &order, err), err));
    updates = cairn_recipe_i64(t->recipe, "train.updates_per_step");
    if (updates > j.groups)
        updates = j.groups;
    TRY(cairn_points_open(&j.points, ctx, t, CAIRN_GRPO_NUMBERS, err));
    TRY(cairn_grpo_targets(&j, order, cairn_pack_cut(j.groups, updates, 1), &begin, err));
    TRY(updates_run(&j, order, begin, updates, err));
out:
    stats->stall_s = cairn_points_times(j.points).stall_s;
    cairn_points_close(j.points);
    free(order);
    free(j.first);
    free(j.sequence);
    free(j.gathered);
    free(j.old);
    free(j.ref);
    free(j.live);
    free(j.weight);
    free(j.row);
    free(j.mask);
    return st;
}

/* score.c - grades, rewards and advantages of a set of rollouts (score.h); pure but for the grader process. */
#include "stages/score/score.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "stages/score/advantage.h"
#include "stages/score/reward.h"

#define BATCH 256 /* responses handed to the graders at once */

/* The texts of one batch, owned. */
struct texts {
    struct cairn_str text[BATCH];
    struct cairn_grade_job job[BATCH];
};

static const char *grader_of(const struct cairn_score_opts *o, int64_t prompt_id)
{
    const struct cairn_prompt *p = cairn_prompts_find(o->files, o->nfiles, prompt_id);
    int64_t file = prompt_id >> 32;
    const char *named = o->grader && file < o->nfiles ? o->grader[file] : NULL;

    if (p && p->grader)
        return p->grader;
    return named ? named : cairn_recipe_str(o->recipe, "score.grader");
}

static enum cairn_status job_make(struct texts *x, int k, const struct cairn_rollouts *r, int64_t i, const struct cairn_score_opts *o,
                                  struct cairn_error *err)
{
    const struct cairn_prompt *p = cairn_prompts_find(o->files, o->nfiles, r->prompt_id[i]);
    enum cairn_status st = CAIRN_OK;

    if (!p)
        TRY(cairn_fail(err, CAIRN_EDATA, "rollout %lld: prompt %lld of file %lld does not exist", (long long)i,
                       (long long)(r->prompt_id[i] & 0xffffffff), (long long)(r->prompt_id[i] >> 32)));
    cairn_str_clear(&x->text[k]);
    TRY(cairn_tokenizer_decode(o->tokenizer, r->tokens + r->offsets[i] + r->prompt_length[i], cairn_rollout_length(r, i), NULL, &x->text[k], err));
    x->job[k] = (struct cairn_grade_job){.gold = p->answer, .gold_bytes = p->answer_bytes, .response = cairn_str_z(&x->text[k]),
                                         .response_bytes = x->text[k].len};
out:
    return st;
}

/* Verdicts of rollouts [begin, begin + n), all of one grader. */
static enum cairn_status batch_grade(struct texts *x, struct cairn_scores_table *s, const struct cairn_rollouts *r, int64_t begin, int n,
                                     const struct cairn_grade_opts *go, const struct cairn_score_opts *o, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int k = 0; k < n; k++)
        TRY(job_make(x, k, r, begin + k, o, err));
    TRY(cairn_grader_process_grade_many(o->graders, grader_of(o, r->prompt_id[begin]), go, x->job, (size_t)n, err));
    for (int k = 0; k < n; k++) {
        int64_t i = begin + k;

        s->verdict[i] = x->job[k].verdict.match != 0;
        s->value[i] = (float)x->job[k].verdict.value;
        s->status[i] = (uint8_t)x->job[k].verdict.status;
        if (o->failure)
            cairn_grade_failure_note(o->failure, i, &x->job[k].verdict);
        if (o->invalid)
            cairn_grade_invalid_note(o->invalid, i, &x->job[k].verdict);
        free(s->extracted[i]);
        s->extracted[i] = strdup(x->job[k].verdict.extracted);
        if (!s->extracted[i])
            TRY(CAIRN_NOMEM(err));
    }
out:
    return st;
}

enum cairn_status cairn_score_grade(struct cairn_scores_table *s, const struct cairn_rollouts *r, int64_t begin, int64_t end,
                                    const struct cairn_score_opts *o, struct cairn_error *err)
{
    const json_t *markers = cairn_recipe_list(o->recipe, "score.marker");
    const char *marker[CAIRN_MARKERS_MAX];
    struct cairn_grade_opts go = {.marker = marker, .markers = 0};
    struct texts *x = calloc(1, sizeof *x);
    enum cairn_status st = CAIRN_OK;

    if (!x)
        return CAIRN_NOMEM(err);
    for (size_t i = 0; i < json_array_size(markers) && i < CAIRN_MARKERS_MAX; i++)
        marker[go.markers++] = json_string_value(json_array_get(markers, i));
    for (int64_t i = begin; i < end;) {
        int n = 1;

        while (n < BATCH && i + n < end && !strcmp(grader_of(o, r->prompt_id[i]), grader_of(o, r->prompt_id[i + n])))
            n++;
        TRY(cairn_stage_stopping(err));
        TRY(batch_grade(x, s, r, i, n, &go, o, err));
        i += n;
        if (o->progress)
            o->progress(o->arg, i, end);
    }
out:
    for (int k = 0; k < BATCH; k++)
        cairn_str_free(&x->text[k]);
    free(x);
    return st;
}

static struct cairn_reward_opts reward_opts(const struct cairn_score_opts *o)
{
    const struct cairn_recipe *r = o->recipe;
    int overlong = cairn_recipe_has(r, "score.overlong");

    return (struct cairn_reward_opts){.right = cairn_recipe_f64(r, "score.reward.right"),
                                      .wrong = cairn_recipe_f64(r, "score.reward.wrong"),
                                      .truncated_zero = !strcmp(cairn_recipe_str(r, "score.reward.truncated"), "zero"),
                                      .cap = o->cap,
                                      .buffer = overlong ? cairn_recipe_i64(r, "score.overlong.buffer") : 0,
                                      .factor = overlong ? cairn_recipe_f64(r, "score.overlong.factor") : 0};
}

static enum cairn_advantage advantage_kind(const struct cairn_recipe *r)
{
    if (!strcmp(cairn_recipe_str(r, "score.advantage"), "rloo"))
        return CAIRN_ADVANTAGE_RLOO;
    return cairn_recipe_bool(r, "score.normalise") ? CAIRN_ADVANTAGE_GRPO : CAIRN_ADVANTAGE_GRPO_UNNORMALISED;
}

enum cairn_status cairn_score_rewards(struct cairn_scores_table *s, const struct cairn_rollouts *r, const struct cairn_score_opts *o,
                                      struct cairn_error *err)
{
    return cairn_score_rewards_of(s, r, 0, r->n, o, err);
}

enum cairn_status cairn_score_rewards_of(struct cairn_scores_table *s, const struct cairn_rollouts *r, int64_t begin, int64_t end,
                                         const struct cairn_score_opts *o, struct cairn_error *err)
{
    struct cairn_reward_opts ro = reward_opts(o);
    int masked = cairn_recipe_bool(o->recipe, "score.mask_truncated");
    double clamp = cairn_recipe_has(o->recipe, "score.clamp") ? cairn_recipe_f64(o->recipe, "score.clamp") : 0;
    size_t n = (size_t)(end - begin) + 1;
    int64_t *group = calloc(n, sizeof *group), *who = calloc(n, sizeof *who), used = 0;
    double *shaped = calloc(n, sizeof *shaped);
    enum cairn_status st = CAIRN_OK;

    if (!group || !who || !shaped)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_reward_check(&ro, err));
    for (int64_t i = begin; i < end; i++) {
        int truncated = r->finish[i] == CAIRN_FINISH_LENGTH;
        double raw = cairn_reward_raw(&ro, (double)s->value[i], truncated), penalty = cairn_reward_penalty(&ro, cairn_rollout_length(r, i));

        s->reward[i] = (float)raw;
        s->penalty[i] = (float)penalty;
        s->group[i] = r->group[i];
        s->advantage[i] = 0;
        s->mask[i] = r->used[i] && r->finish[i] != CAIRN_FINISH_ABORTED && !(truncated && masked);
        if (r->used[i]) {
            who[used] = i;
            group[used] = r->group[i];
            shaped[used++] = raw + penalty;
        }
    }
    TRY(cairn_advantages(advantage_kind(o->recipe), group, shaped, used, clamp, shaped, err));
    for (int64_t k = 0; k < used; k++)
        s->advantage[who[k]] = (float)shaped[k];
out:
    free(group);
    free(who);
    free(shaped);
    return st;
}

static int length_compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

struct cairn_pass_rate cairn_score_pass_rate(const struct cairn_scores_table *s, const struct cairn_rollouts *r)
{
    struct cairn_pass_rate p = {0};

    for (int64_t i = 0, j; i < r->n; i = j) {
        int64_t n = 0, right = 0;

        for (j = i; j < r->n && r->group[j] == r->group[i]; j++)
            if (r->used[j]) {
                n++;
                right += s->verdict[j];
            }
        if (n)
            cairn_pass_rate_add(&p, n, right);
    }
    return p;
}

/* grades/NAME: used rollouts of each status but ok, where there are any. */
static int statuses_set(json_t *o, const struct cairn_scores_table *s, const struct cairn_rollouts *r)
{
    int64_t count[CAIRN_VERDICT_STATUSES] = {0};
    int ok = 1;

    for (int64_t i = 0; i < r->n; i++)
        if (r->used[i] && s->status[i] < CAIRN_VERDICT_STATUSES)
            count[s->status[i]]++;
    for (int k = CAIRN_VERDICT_OK + 1; k < CAIRN_VERDICT_STATUSES; k++)
        if (count[k]) {
            char name[64];

            snprintf(name, sizeof name, "grades/%s", cairn_verdict_status_name((enum cairn_verdict_status)k));
            ok &= json_object_set_new(o, name, json_integer(count[k])) == 0;
        }
    if (!ok)
        json_decref(o);
    return ok;
}

json_t *cairn_score_metrics(const struct cairn_scores_table *s, const struct cairn_rollouts *r)
{
    const struct cairn_pass_rate pass = cairn_score_pass_rate(s, r);
    int64_t *length = calloc((size_t)r->n + 1, sizeof *length), used = 0, right = 0, capped = 0, stopped = 0, aborted = 0, right_finished = 0;
    double raw = 0, penalty = 0, total = 0, n, finished;
    json_t *o;

    if (!length)
        return NULL;
    for (int64_t i = 0; i < r->n; i++) {
        if (!r->used[i])
            continue;
        length[used++] = cairn_rollout_length(r, i);
        total += (double)cairn_rollout_length(r, i);
        right += s->verdict[i];
        capped += r->finish[i] == CAIRN_FINISH_LENGTH;
        stopped += r->finish[i] == CAIRN_FINISH_STOP;
        aborted += r->finish[i] == CAIRN_FINISH_ABORTED;
        right_finished += s->verdict[i] && r->finish[i] == CAIRN_FINISH_STOP;
        raw += (double)s->reward[i];
        penalty += (double)s->penalty[i];
    }
    n = used ? (double)used : 1;
    finished = stopped ? (double)stopped : 1;
    qsort(length, (size_t)used, sizeof *length, length_compare);
    o = json_pack("{s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:I}", "reward/raw_mean", raw / n,
                  "reward/shaped_mean", (raw + penalty) / n, "reward/penalty_mean", penalty / n, "accuracy", (double)right / n,
                  "accuracy_finished", (double)right_finished / finished, "groups/kept", (json_int_t)pass.problems, "groups/all_right",
                  (json_int_t)pass.all_right, "groups/all_wrong", (json_int_t)(pass.problems - pass.solved),
                  "length/mean", total / n, "length/p50", (json_int_t)(used ? length[(used - 1) / 2] : 0), "length/p90",
                  (json_int_t)(used ? length[(9 * used + 9) / 10 - 1] : 0), "length/max", (json_int_t)(used ? length[used - 1] : 0), "capped_share",
                  (double)capped / n, "finish/stop", (double)stopped / n, "finish/length", (double)capped / n, "finish/aborted",
                  (double)aborted / n, "rollouts", (json_int_t)used);
    free(length);
    if (o && !cairn_pass_rate_metrics(&pass, o)) {
        json_decref(o);
        o = NULL;
    }
    return o && statuses_set(o, s, r) ? o : NULL;
}

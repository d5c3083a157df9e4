/* replay_score.c - scores stored rollouts by another recipe, beside the run's own, and says what changed (replay.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "stages/score/score.h"
#include "stages/common/graders.h"
#include "tools/cli.h"
#include "tools/replay.h"
#include "tools/replay_scores.h"
#include "tools/replay_stored.h"

#define SPAN_S 10.0 /* what of the grading a kill may cost */

struct job {
    const struct cairn_replay_opts *o;
    struct cairn_run *run;
    struct cairn_recipe *recipe; /* the other one */
    struct cairn_digest hash;    /* its */
    char *name;
    struct cairn_grader_process *graders;
    struct cairn_tokenizer *tokenizer;
    struct cairn_stored_prompts prompts;
    struct cairn_replay_scores *scores;
};

/* What one link needs and gives. */
struct work {
    struct cairn_stored in; /* with the run's own scores, where there are any */
    const char **grader;
    struct cairn_scores_table s;
    uint8_t *meant; /* (rollouts) the slice that figures are told of */
};

static void work_close(struct work *w)
{
    cairn_stored_close(&w->in);
    free(w->grader);
    free(w->meant);
    cairn_scores_free(&w->s);
}

static enum cairn_status work_open(struct work *w, struct job *j, const struct cairn_link *l, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_stored_open(&w->in, j->run, l, 0, &j->prompts, err));
    TRY(cairn_stored_fits(&w->in, &j->o->only, err));
    w->grader = calloc((size_t)w->in.nfiles + 1, sizeof *w->grader);
    w->meant = calloc((size_t)w->in.r.n + 1, 1);
    if (!w->grader || !w->meant)
        TRY(CAIRN_NOMEM(err));
    for (int k = 0; k < w->in.nfiles; k++)
        w->grader[k] = json_string_value(json_object_get(cairn_stored_entry(j->run, l, (size_t)k), "grader"));
    for (int64_t i = 0; i < w->in.r.n; i++)
        w->meant[i] = w->in.r.used[i] && cairn_stored_takes(&w->in, &j->o->only, i);
    TRY(cairn_scores_create(&w->s, w->in.r.n, err));
out:
    return st;
}

static int64_t cap_of(const struct job *j, const struct cairn_link *l)
{
    const json_t *cap = l->eval ? json_object_get(cairn_stored_entry(j->run, l, 0), "max_new_tokens") : NULL;

    return json_is_integer(cap) ? json_integer_value(cap)
                                : cairn_recipe_i64(cairn_run_recipe(j->run, l->step), "rollout.max_new_tokens");
}

/* ---- telling -------------------------------------------------------------------------------------------------------- */

#define VERDICT   1
#define REWARD    2
#define ADVANTAGE 4

/* What is another thing than before for rollout i: bits. */
static int changed(const struct work *w, int64_t i)
{
    const struct cairn_scores_table *a = &w->in.s, *b = &w->s;

    return (a->verdict[i] != b->verdict[i] ? VERDICT : 0) |
           (a->reward[i] + a->penalty[i] != b->reward[i] + b->penalty[i] ? REWARD : 0) |
           (a->advantage[i] != b->advantage[i] ? ADVANTAGE : 0);
}

/* Counts over the rollouts that are meant. */
struct counts {
    int64_t meant, right, verdicts, rewards, advantages;
    int64_t *by_sample; /* (samples, 2) right, and of how many */
    int samples;
};

static enum cairn_status counts_make(struct counts *c, const struct work *w, struct cairn_error *err)
{
    const struct cairn_rollouts *r = &w->in.r;

    *c = (struct counts){0};
    for (int64_t i = 0; i < r->n; i++)
        if (w->meant[i] && r->sample[i] >= c->samples)
            c->samples = r->sample[i] + 1;
    c->by_sample = calloc((size_t)c->samples + 1, 2 * sizeof *c->by_sample);
    if (!c->by_sample)
        return CAIRN_NOMEM(err);
    for (int64_t i = 0; i < r->n; i++) {
        int what = w->in.scored ? changed(w, i) : 0;

        if (!w->meant[i])
            continue;
        c->meant++;
        c->right += w->s.verdict[i];
        c->by_sample[2 * r->sample[i]] += w->s.verdict[i];
        c->by_sample[2 * r->sample[i] + 1]++;
        c->verdicts += (what & VERDICT) != 0;
        c->rewards += (what & REWARD) != 0;
        c->advantages += (what & ADVANTAGE) != 0;
    }
    return CAIRN_OK;
}

static double number(const json_t *metrics, const char *key)
{
    return json_number_value(json_object_get(metrics, key));
}

/* Metrics of the rollouts that are meant. */
static json_t *metrics_of(const struct work *w, const struct cairn_scores_table *s)
{
    struct cairn_rollouts r = w->in.r; /* borrows everything but `used` */

    r.used = w->meant;
    return cairn_score_metrics(s, &r);
}

static const char *prompt_name(const struct work *w, int64_t i)
{
    const struct cairn_prompt *p = cairn_stored_prompt(&w->in, i);

    return p ? p->id : "?";
}

static void changes_print(const struct work *w)
{
    const struct cairn_scores_table *a = &w->in.s, *b = &w->s;

    for (int64_t i = 0; i < w->in.r.n; i++)
        if (w->meant[i] && changed(w, i))
            printf("  rollout %lld, prompt %s, sample %d: %s -> %s  reward %g -> %g  penalty %g -> %g  advantage %g -> %g\n",
                   (long long)i, prompt_name(w, i), w->in.r.sample[i], a->verdict[i] ? "right" : "wrong",
                   b->verdict[i] ? "right" : "wrong", (double)a->reward[i], (double)b->reward[i], (double)a->penalty[i],
                   (double)b->penalty[i], (double)a->advantage[i], (double)b->advantage[i]);
}

static json_t *changes_json(const struct work *w)
{
    const struct cairn_scores_table *a = &w->in.s, *b = &w->s;
    json_t *list = json_array();

    for (int64_t i = 0; list && i < w->in.r.n; i++)
        if (w->meant[i] && changed(w, i))
            json_array_append_new(list, json_pack("{s:I, s:s, s:i, s:[b,b], s:[f,f], s:[f,f], s:[f,f]}", "rollout", (json_int_t)i,
                                                  "prompt", prompt_name(w, i), "sample", w->in.r.sample[i], "right", a->verdict[i],
                                                  b->verdict[i], "reward", (double)a->reward[i], (double)b->reward[i], "penalty",
                                                  (double)a->penalty[i], (double)b->penalty[i], "advantage",
                                                  (double)a->advantage[i], (double)b->advantage[i]));
    return list;
}

static enum cairn_status tell_json(const struct job *j, const char *relative, const struct work *w, const struct counts *c,
                                   const json_t *metrics, const json_t *before, struct cairn_error *err)
{
    json_t *o = json_pack("{s:s, s:I, s:I, s:O, s:O*}", "score", relative, "rollouts", (json_int_t)c->meant, "right",
                          (json_int_t)c->right, "metrics", metrics, "before", before),
           *samples = json_array();

    for (int s = 0; samples && s < c->samples; s++)
        json_array_append_new(samples, json_pack("{s:i, s:I, s:I}", "sample", s, "right", (json_int_t)c->by_sample[2 * s],
                                                 "rollouts", (json_int_t)c->by_sample[2 * s + 1]));
    json_object_set_new(o, "by_sample", samples);
    if (before)
        json_object_set_new(o, "changed",
                            json_pack("{s:I, s:I, s:I}", "verdicts", (json_int_t)c->verdicts, "rewards", (json_int_t)c->rewards,
                                      "advantages", (json_int_t)c->advantages));
    if (before && j->o->changes)
        json_object_set_new(o, "changes", changes_json(w));
    return cairn_cli_json(o, err);
}

static enum cairn_status tell(const struct job *j, const char *relative, const struct work *w, struct cairn_error *err)
{
    json_t *metrics = metrics_of(w, &w->s), *before = w->in.scored ? metrics_of(w, &w->in.s) : NULL;
    enum cairn_status st = CAIRN_OK;
    struct counts c = {0};

    if (!metrics || (w->in.scored && !before))
        TRY(CAIRN_NOMEM(err));
    TRY(counts_make(&c, w, err));
    if (j->o->json) {
        TRY(tell_json(j, relative, w, &c, metrics, before, err));
        goto out;
    }
    if (before)
        printf("%-34s accuracy %.1f%% -> %.1f%% (%lld right)  reward %.3f -> %.3f  changed: %lld verdicts, %lld rewards, %lld "
               "advantages of %lld\n",
               relative, 100 * number(before, "accuracy"), 100 * number(metrics, "accuracy"), (long long)c.right,
               number(before, "reward/shaped_mean"), number(metrics, "reward/shaped_mean"), (long long)c.verdicts,
               (long long)c.rewards, (long long)c.advantages, (long long)c.meant);
    else
        printf("%-34s accuracy %.1f%% (%lld right)  reward %.3f  of %lld, not scored before\n", relative,
               100 * number(metrics, "accuracy"), (long long)c.right, number(metrics, "reward/shaped_mean"), (long long)c.meant);
    if (before && j->o->changes)
        changes_print(w);
out:
    free(c.by_sample);
    json_decref(before);
    json_decref(metrics);
    return st;
}

static enum cairn_status link_score(struct job *j, const struct cairn_link *l, int i, struct cairn_error *err)
{
    const struct cairn_link score = {l->step, CAIRN_STAGE_SCORE, l->eval};
    enum cairn_status st = CAIRN_OK;
    char *own = cairn_link_relative(&score), *label = own ? cairn_format("replay/%s %s", j->name, own) : NULL;
    json_t *metrics = NULL;
    struct work w = {0};
    struct cairn_score_opts so;
    int taken;

    if (!label)
        TRY(CAIRN_NOMEM(err));
    TRY(work_open(&w, j, l, err));
    so = (struct cairn_score_opts){.recipe = j->recipe,
                                   .graders = j->graders,
                                   .tokenizer = j->tokenizer,
                                   .files = w.in.files,
                                   .nfiles = w.in.nfiles,
                                   .grader = w.grader,
                                   .cap = cap_of(j, l)};
    TRY(cairn_replay_scores_take(j->scores, i, &w.s, &taken, err));
    if (!taken)
        TRY(cairn_score_grade(&w.s, &w.in.r, 0, w.in.r.n, &so, err));
    TRY(cairn_score_rewards(&w.s, &w.in.r, &so, err));
    metrics = cairn_score_metrics(&w.s, &w.in.r);
    if (!metrics)
        TRY(CAIRN_NOMEM(err));
    TRY(tell(j, label, &w, err));
    TRY(cairn_replay_scores_put(j->scores, i, &w.s, metrics, err));
out:
    json_decref(metrics);
    work_close(&w);
    free(own);
    free(label);
    return st;
}

/* The recipe's own name: "other" of dir/other.yaml. */
static char *name_of(const char *recipe)
{
    char *s = strdup(cairn_path_basename(recipe)), *dot = s ? strrchr(s, '.') : NULL;

    if (dot && dot != s)
        *dot = 0;
    return s;
}

static enum cairn_status job_open(struct job *j, struct cairn_error *err)
{
    const struct cairn_replay_opts *o = j->o;
    enum cairn_status st = CAIRN_OK;
    char *tokenizer = NULL;

    TRY(cairn_recipe_load_part(&j->recipe, o->score, o->recipe.overrides, o->recipe.override, err));
    TRY(cairn_graders_define(j->recipe, err));
    TRY(cairn_grader_process_start(&j->graders, NULL, err)); /* before anything that makes threads: it forks */
    TRY(cairn_run_open(&j->run, o->recipe.recipe, err));
    TRY(cairn_recipe_hash(j->recipe, &j->hash, err));
    j->name = o->name ? strdup(o->name) : name_of(o->score);
    if (!j->name)
        TRY(CAIRN_NOMEM(err));
    if (!cairn_name_ok(j->name))
        TRY(cairn_fail(err, CAIRN_EUSAGE, "%s makes no name for a folder; give one with --name", o->score));
    TRY(cairn_run_outside(j->run, "model.tokenizer", &tokenizer, err));
    TRY(cairn_tokenizer_load_decoder(&j->tokenizer, tokenizer, err));
out:
    free(tokenizer);
    return st;
}

enum cairn_status cairn_replay_score(const struct cairn_replay_opts *o, struct cairn_error *err)
{
    struct job j = {.o = o};
    enum cairn_status st = CAIRN_OK;
    struct cairn_link *link = NULL;
    int n = 0;

    TRY(job_open(&j, err));
    TRY(cairn_stored_links(j.run, &o->only, 1, &link, &n, err));
    TRY(cairn_replay_scores_open(&j.scores, j.run, j.name, j.hash, link, n, SPAN_S, err));
    for (int i = 0; i < n; i++) {
        TRY(cairn_stage_stopping(err));
        TRY(link_score(&j, &link[i], i, err));
    }
    TRY(cairn_replay_scores_commit(j.scores, err));
out:
    free(link);
    cairn_replay_scores_close(j.scores);
    cairn_stored_prompts_free(&j.prompts);
    cairn_tokenizer_free(j.tokenizer);
    cairn_grader_process_stop(j.graders);
    cairn_recipe_free(j.recipe);
    cairn_run_close(j.run);
    free(j.name);
    return st;
}

/* replay_score.c - scores stored rollouts by another recipe, beside the run's own, and says what changed (replay.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/retention.h"
#include "stages/score/score.h"
#include "tools/cli.h"
#include "tools/replay.h"

struct job {
    const struct cairn_replay_opts *o;
    struct cairn_run *run;
    struct cairn_recipe *recipe; /* the other one */
    struct cairn_digest hash;    /* its */
    char *name;
    struct cairn_grader_process *graders;
    struct cairn_tokenizer *tokenizer;
};

/* What one link needs and gives. */
struct work {
    struct cairn_rollouts r;
    struct cairn_prompts *files;
    int nfiles;
    const char **grader;
    struct cairn_scores_table s, before;
    int has_before;
    int64_t *unit; /* (units + 1) first rollout of each unit */
    int units;
};

static void work_free(struct work *w)
{
    cairn_rollouts_free(&w->r);
    cairn_prompts_list_free(w->files, w->nfiles);
    free(w->grader);
    cairn_scores_free(&w->s);
    cairn_scores_free(&w->before);
    free(w->unit);
}

static enum cairn_status units_find(struct work *w, struct cairn_reader *from, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    void *h = NULL;

    TRY(cairn_unit_count(from, &w->units, err));
    w->unit = calloc((size_t)w->units + 1, sizeof *w->unit);
    if (!w->unit)
        TRY(CAIRN_NOMEM(err));
    for (int u = 0; u < w->units; u++) {
        int64_t n;

        TRY(cairn_unit_read(from, u, "prompt_length", CAIRN_I32, &h, &n, err));
        free(h);
        h = NULL;
        w->unit[u + 1] = w->unit[u] + n;
    }
out:
    free(h);
    return st;
}

/* The run's own set or list entry of file k of the link. */
static const json_t *entry_of(const struct job *j, const struct cairn_link *l, size_t k)
{
    const json_t *list = cairn_recipe_get(j->run->recipe, l->eval ? "data.eval" : "data.prompts");

    for (size_t i = 0; l->eval && i < json_array_size(list); i++)
        if (!strcmp(l->eval, json_string_value(json_object_get(json_array_get(list, i), "name"))))
            return json_array_get(list, i);
    return l->eval ? NULL : json_array_get(list, k);
}

static enum cairn_status work_open(struct work *w, const struct job *j, const struct cairn_link *l, struct cairn_error *err)
{
    const struct cairn_link score = {l->step, CAIRN_STAGE_SCORE, l->eval};
    enum cairn_status st = CAIRN_OK;
    char *dir = cairn_link_path(j->run, l), *old = cairn_link_path(j->run, &score);
    struct cairn_reader *from = NULL, *before = NULL;

    if (!dir || !old)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_reader_open(&from, dir, NULL, err));
    TRY(cairn_rollouts_load(&w->r, from, err));
    TRY(units_find(w, from, err));
    TRY(cairn_prompts_of(j->run, l, &w->files, &w->nfiles, err));
    w->grader = calloc((size_t)w->nfiles + 1, sizeof *w->grader);
    if (!w->grader)
        TRY(CAIRN_NOMEM(err));
    for (int k = 0; k < w->nfiles; k++)
        w->grader[k] = json_string_value(json_object_get(entry_of(j, l, (size_t)k), "grader"));
    TRY(cairn_scores_create(&w->s, w->r.n, err));
    if (cairn_artefact_committed(old) && !cairn_artefact_collected(old)) {
        TRY(cairn_reader_open(&before, old, NULL, err));
        TRY(cairn_scores_load(&w->before, before, 0, err));
        w->has_before = w->before.n == w->r.n;
    }
out:
    cairn_reader_close(from);
    cairn_reader_close(before);
    free(dir);
    free(old);
    return st;
}

static int64_t cap_of(const struct job *j, const struct cairn_link *l)
{
    const json_t *cap = l->eval ? json_object_get(entry_of(j, l, 0), "max_new_tokens") : NULL;

    return json_is_integer(cap) ? json_integer_value(cap) : cairn_recipe_i64(cairn_run_recipe(j->run, l->step), "rollout.max_new_tokens");
}

/* Commits w->s in dir; m: the manifest of the link under the other recipe. */
static enum cairn_status store(struct work *w, const char *dir, struct cairn_manifest *m, const json_t *metrics, struct cairn_error *err)
{
    const struct cairn_attempt_opts ao = {.identity = cairn_manifest_identity(m)};
    enum cairn_status st = CAIRN_OK;
    struct cairn_attempt *a = NULL;

    if (json_object_set(m->content, "metrics", (json_t *)metrics) || json_object_set_new(m->content, "units", json_integer(w->units)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_attempt_begin(&a, dir, &ao, err));
    for (int u = 0; u < w->units; u++) {
        struct cairn_shard_entry *entry = NULL;

        TRY(cairn_stage_stopping(err));
        TRY(cairn_scores_write(&w->s, w->unit[u], w->unit[u + 1], a, u, "", &entry, err));
        TRY(cairn_manifest_add_shard(m, entry, err));
    }
    TRY(cairn_attempt_commit(a, m, err));
out:
    cairn_attempt_end(a);
    return st;
}

/* A second replay under this name must be the same one. */
static enum cairn_status settled_check(const char *dir, const struct cairn_manifest *m, const char *name, struct cairn_error *err)
{
    struct cairn_manifest *there = NULL;
    enum cairn_status st = cairn_manifest_load(&there, dir, err);

    if (st == CAIRN_OK && !cairn_digest_equal(cairn_manifest_identity(there), cairn_manifest_identity(m)))
        st = cairn_fail(err, CAIRN_EUSAGE, "%s holds scores by another recipe; take another --name than %s", dir, name);
    cairn_manifest_destroy(there);
    return st;
}

struct changes {
    int64_t verdicts, rewards, advantages;
};

static struct changes changes_count(const struct work *w)
{
    struct changes c = {0};

    for (int64_t i = 0; w->has_before && i < w->r.n; i++) {
        c.verdicts += w->s.verdict[i] != w->before.verdict[i];
        c.rewards += w->s.reward[i] + w->s.penalty[i] != w->before.reward[i] + w->before.penalty[i];
        c.advantages += w->s.advantage[i] != w->before.advantage[i];
    }
    return c;
}

static double number(const json_t *metrics, const char *key)
{
    return json_number_value(json_object_get(metrics, key));
}

static enum cairn_status tell(const struct job *j, const char *relative, const struct work *w, const json_t *metrics, struct cairn_error *err)
{
    struct changes c = changes_count(w);
    json_t *before = w->has_before ? cairn_score_metrics(&w->before, &w->r) : NULL;
    enum cairn_status st = CAIRN_OK;

    if (j->o->json) {
        json_t *o = json_pack("{s:s, s:I, s:O, s:O*}", "score", relative, "rollouts", (json_int_t)w->r.n, "metrics", metrics, "before", before);

        if (o && before)
            json_object_set_new(o, "changed", json_pack("{s:I, s:I, s:I}", "verdicts", (json_int_t)c.verdicts, "rewards", (json_int_t)c.rewards,
                                                        "advantages", (json_int_t)c.advantages));
        st = cairn_cli_json(o, err);
    } else if (before) {
        printf("%-34s accuracy %.1f%% -> %.1f%%  reward %.3f -> %.3f  changed: %lld verdicts, %lld rewards, %lld advantages of %lld\n", relative,
               100 * number(before, "accuracy"), 100 * number(metrics, "accuracy"), number(before, "reward/shaped_mean"),
               number(metrics, "reward/shaped_mean"), (long long)c.verdicts, (long long)c.rewards, (long long)c.advantages, (long long)w->r.n);
    } else {
        printf("%-34s accuracy %.1f%%  reward %.3f  of %lld, not scored before\n", relative, 100 * number(metrics, "accuracy"),
               number(metrics, "reward/shaped_mean"), (long long)w->r.n);
    }
    json_decref(before);
    return st;
}

static enum cairn_status link_score(const struct job *j, const struct cairn_link *l, struct cairn_error *err)
{
    const struct cairn_link score = {l->step, CAIRN_STAGE_SCORE, l->eval};
    enum cairn_status st = CAIRN_OK;
    char *own = cairn_link_relative(&score), *relative = own ? cairn_format("replay/%s/%s", j->name, own) : NULL,
         *dir = relative ? cairn_run_path(j->run, relative) : NULL;
    struct cairn_manifest *m = NULL;
    json_t *metrics = NULL;
    struct work w = {0};
    struct cairn_score_opts so;

    if (!dir)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_link_manifest(j->run, &score, &m, err));
    m->recipe = j->hash;
    if (cairn_artefact_committed(dir))
        TRY(settled_check(dir, m, j->name, err));
    TRY(work_open(&w, j, l, err));
    so = (struct cairn_score_opts){.recipe = j->recipe, .graders = j->graders, .tokenizer = j->tokenizer, .files = w.files, .nfiles = w.nfiles,
                                   .grader = w.grader, .cap = cap_of(j, l)};
    TRY(cairn_score_grade(&w.s, &w.r, 0, w.r.n, &so, err));
    TRY(cairn_score_rewards(&w.s, &w.r, &so, err));
    metrics = cairn_score_metrics(&w.s, &w.r);
    if (!metrics)
        TRY(CAIRN_NOMEM(err));
    if (!cairn_artefact_committed(dir))
        TRY(store(&w, dir, m, metrics, err));
    TRY(tell(j, relative, &w, metrics, err));
out:
    cairn_manifest_destroy(m);
    json_decref(metrics);
    work_free(&w);
    free(own);
    free(relative);
    free(dir);
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

    TRY(cairn_grader_process_start(&j->graders, NULL, err)); /* first: it forks */
    TRY(cairn_run_open(&j->run, o->recipe.recipe, err));
    TRY(cairn_recipe_load_part(&j->recipe, o->score, o->recipe.overrides, o->recipe.override, err));
    TRY(cairn_recipe_hash(j->recipe, &j->hash, err));
    j->name = o->name ? strdup(o->name) : name_of(o->score);
    if (!j->name)
        TRY(CAIRN_NOMEM(err));
    if (!cairn_name_ok(j->name))
        TRY(cairn_fail(err, CAIRN_EUSAGE, "%s makes no name for a folder; give one with --name", o->score));
    TRY(cairn_run_outside(j->run, "model.tokenizer", &tokenizer, err));
    TRY(cairn_tokenizer_load(&j->tokenizer, tokenizer, err));
out:
    free(tokenizer);
    return st;
}

enum cairn_status cairn_replay_score(const struct cairn_replay_opts *o, struct cairn_error *err)
{
    struct job j = {.o = o};
    enum cairn_status st = CAIRN_OK;
    struct cairn_link *chain = NULL;
    int n = 0, found = 0;

    TRY(job_open(&j, err));
    TRY(cairn_run_chain(j.run, &chain, &n, err));
    for (int i = 0; i < n; i++) {
        char *dir;
        int collected;

        if (chain[i].stage != CAIRN_STAGE_ROLLOUT || !cairn_link_done(j.run, &chain[i]))
            continue;
        dir = cairn_link_path(j.run, &chain[i]);
        collected = dir && cairn_artefact_collected(dir);
        if (collected)
            cairn_warn("%s was collected and is left out", dir);
        free(dir);
        if (collected)
            continue;
        found++;
        TRY(cairn_stage_stopping(err));
        TRY(link_score(&j, &chain[i], err));
    }
    if (!found)
        TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s: no stored rollouts", j.run->dir));
out:
    free(chain);
    cairn_tokenizer_free(j.tokenizer);
    cairn_grader_process_stop(j.graders);
    cairn_recipe_free(j.recipe);
    cairn_run_close(j.run);
    free(j.name);
    return st;
}

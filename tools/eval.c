/* eval.c - `cairn eval DIR --set [NAME=]FILE`: samples and grades a problem set with a policy of a run.
 *
 * Template, stop tokens, sampling and grading are those of the run's recipe unless said otherwise. Draws are keyed by (seed, step,
 * name of the set, row, sample), as in the run's own evaluations: the set that the recipe evaluates under that name gives the same
 * responses. Writes nothing.
 */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "grade/grade.h"
#include "stages/common/graders.h"
#include "stages/rollout/cursor.h"
#include "stages/rollout/engine.h"
#include "stages/common/prompting.h"
#include "stages/rollout/rollout.h"
#include "stages/score/score.h"
#include "tools/cli.h"
#include "tools/model_args.h"
#include "tools/verbs.h"

#define SETS 32

struct arguments {
    struct cairn_model_args model;
    const char *set[SETS], *grader;
    int sets, json;
    int64_t k, limit, max_new; /* 0: not given */
    double temperature, top_p; /* below 0: the recipe's */
};

enum { OPT_SET = 256, OPT_LIMIT, OPT_TEMPERATURE, OPT_TOP_P, OPT_MAX_NEW, OPT_GRADER };

static const struct cairn_cli_slot slots[] = {
    CAIRN_CLI_COUNT_AT('k', struct arguments, k, "k", 1, 1000000, "1 to 1000000 samples"),
    CAIRN_CLI_COUNT_AT(OPT_LIMIT, struct arguments, limit, "limit", 1, 0x1p62, "1 or more problems"),
    CAIRN_CLI_COUNT_AT(OPT_MAX_NEW, struct arguments, max_new, "max-new", 1, INT32_MAX, "1 or more tokens"),
    CAIRN_CLI_NUMBER_AT(OPT_TEMPERATURE, struct arguments, temperature, "temperature", 0, 100, "0 to 100"),
    CAIRN_CLI_NUMBER_AT(OPT_TOP_P, struct arguments, top_p, "top-p", CAIRN_CLI_ABOVE_0, 1, "above 0, at most 1"),
    CAIRN_CLI_TEXT_AT(OPT_GRADER, struct arguments, grader),
    CAIRN_CLI_FLAG_AT('j', struct arguments, json),
    {0},
};

static error_t option(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;

    if (key == OPT_SET && a->sets == SETS)
        return cairn_bad_value(state, "set", arg, "at most 32 sets");
    if (key == OPT_SET) {
        a->set[a->sets++] = arg;
        return 0;
    }
    return key == ARGP_KEY_ARG || key >= CAIRN_OPT_ADAPTER ? cairn_model_args_take(&a->model, key, arg, state)
                                                           : cairn_cli_take(slots, key, arg, state);
}

struct eval {
    const struct arguments *a;
    struct cairn_grader_process *graders;
    struct cairn_cli_model m;
    struct cairn_prompting prompting;
    struct cairn_rollout_how how;
    /* the set at work */
    char *name;
    const json_t *entry; /* of the recipe's data.eval, where it has a set of this name; else NULL */
    struct cairn_prompts file;
    struct cairn_ids *prompt; /* (file.n) */
    struct cairn_rollouts r;
    struct result *result; /* (file.n * k) */
    struct cairn_progress *bar;
    int64_t done;
};

struct result {
    int32_t *tokens;
    int64_t n;
    enum cairn_finish finish;
};

/* "NAME=FILE", or a file's own name: "a/heldout.jsonl" -> "heldout". *path: the file, inside of `set`. NULL: no memory. */
static char *set_name(const char *set, const char **path)
{
    const char *equals = cairn_path_exists(set) ? NULL : strchr(set, '='), *base = cairn_path_basename(set);
    char *name = equals ? strndup(set, (size_t)(equals - set)) : NULL;

    *path = set;
    if (equals && (!name || cairn_name_ok(name))) {
        *path = equals + 1;
        return name;
    }
    free(name);
    return cairn_ends_with(base, ".jsonl") ? strndup(base, strlen(base) - 6) : strdup(base);
}

static enum cairn_status how_set(struct eval *e, struct cairn_error *err)
{
    const struct arguments *a = e->a;
    const struct cairn_recipe *r = e->m.run->recipe;
    const json_t *sets = cairn_recipe_get(r, "data.eval");
    struct cairn_link link = {e->m.policy.step, CAIRN_STAGE_ROLLOUT, NULL};
    enum cairn_status st = CAIRN_OK;

    for (size_t i = 0; i < json_array_size(sets); i++) /* the recipe may have words of its own for this set */
        if (!strcmp(e->name, json_string_value(json_object_get(json_array_get(sets, i), "name"))))
            e->entry = json_array_get(sets, i);
    link.eval = e->entry ? e->name : NULL;
    TRY(cairn_rollout_how(&e->how, r, &link, err));
    e->how.experts = 0; /* what it samples is not kept */
    if (!link.eval)
        cairn_rollout_eval_key(&e->how, e->name);
    if (!link.eval || a->k)
        e->how.samples = a->k ? (int)a->k : 1;
    if (a->limit)
        e->how.limit = a->limit;
    if (a->max_new)
        e->how.max_new = a->max_new;
    if (a->top_p > 0)
        e->how.top_p = (float)a->top_p;
    if (a->temperature >= 0) {
        e->how.greedy = !((float)a->temperature > 0);
        e->how.temperature = e->how.greedy ? 1 : (float)a->temperature;
    }
out:
    return st;
}

/* Who grades rows that name nobody. */
static const char *grader_named(const struct eval *e)
{
    const char *own = json_string_value(json_object_get(e->entry, "grader"));

    return e->a->grader ? e->a->grader : own ? own : cairn_recipe_str(e->m.run->recipe, "score.grader");
}

static enum cairn_status set_open(struct eval *e, const char *set, struct cairn_error *err)
{
    struct cairn_prompt_keys keys;
    enum cairn_status st = CAIRN_OK;
    const char *path;

    e->name = set_name(set, &path);
    if (!e->name)
        TRY(CAIRN_NOMEM(err));
    TRY(how_set(e, err));
    keys = cairn_prompt_keys_of(e->entry);
    TRY(cairn_prompts_load(&e->file, path, &keys, err));
    if (e->how.limit >= 0 && e->how.limit < e->file.n)
        e->file.n = e->how.limit;
    TRY(cairn_prompts_unique(&e->file, e->file.n, err));
    e->prompt = calloc((size_t)e->file.n, sizeof *e->prompt);
    e->result = calloc((size_t)(e->file.n * e->how.samples), sizeof *e->result);
    if (!e->prompt || !e->result)
        TRY(CAIRN_NOMEM(err));
    for (int64_t i = 0; i < e->file.n; i++) {
        if (e->a->grader)
            e->file.row[i].grader = NULL;
        TRY(cairn_graders_row(&e->file, i, grader_named(e), err));
        TRY(cairn_prompting_ids(&e->prompting, &e->file, i, e->how.max_new, &e->m.policy.config, &e->prompt[i], err));
    }
out:
    return st;
}

static void set_close(struct eval *e)
{
    for (int64_t i = 0; e->prompt && i < e->file.n; i++)
        cairn_ids_free(&e->prompt[i]);
    for (int64_t i = 0; e->result && i < e->file.n * e->how.samples; i++)
        free(e->result[i].tokens);
    free(e->prompt);
    free(e->result);
    free(e->name);
    cairn_rollouts_free(&e->r);
    cairn_prompts_free(&e->file);
    e->prompt = NULL;
    e->result = NULL;
    e->name = NULL;
    e->entry = NULL;
    e->done = 0;
}

static enum cairn_status tell(void *arg, const struct cairn_response *r, struct cairn_error *err)
{
    struct eval *e = arg;
    struct result *to = &e->result[r->tag * e->how.samples + r->sample];

    to->tokens = malloc((size_t)r->n * sizeof *to->tokens);
    if (!to->tokens)
        return CAIRN_NOMEM(err);
    memcpy(to->tokens, r->tokens, (size_t)r->n * sizeof *to->tokens);
    to->n = r->n;
    to->finish = r->finish;
    cairn_progress_at(e->bar, ++e->done);
    return CAIRN_OK;
}

static enum cairn_status set_sample(struct eval *e, struct cairn_error *err)
{
    const struct cairn_recipe *r = e->m.run->recipe;
    int64_t longest = 1, work = e->file.n * e->how.samples;
    struct cairn_engine_opts o = cairn_rollout_engine(&e->how, r, &e->prompting);
    struct cairn_engine *engine = NULL;
    enum cairn_status st = CAIRN_OK;

    for (int64_t i = 0; i < e->file.n; i++) {
        int64_t n = cairn_engine_positions(e->prompt[i].n, e->how.max_new);

        longest = n > longest ? n : longest;
    }
    o.max_length = longest;
    if (o.batch > work)
        o.batch = (int)work;
    e->bar = cairn_progress_begin(e->name, "responses", work, cairn_recipe_f64(r, "log.interval"));
    TRY(cairn_engine_create(&engine, &e->m.model, &o, err));
    for (int64_t i = 0; i < e->file.n; i++)
        TRY(cairn_engine_submit(engine,
                                &(struct cairn_request){.prompt = e->prompt[i].p,
                                                        .length = e->prompt[i].n,
                                                        .max_new = e->how.max_new,
                                                        .samples = e->how.samples,
                                                        .key = cairn_prompt_key(cairn_prompt_id(0, i)),
                                                        .tag = i},
                                err));
    TRY(cairn_engine_run(engine, tell, e, err));
out:
    cairn_progress_end(e->bar);
    e->bar = NULL;
    cairn_engine_destroy(engine);
    return st;
}

/* The responses as the score stage takes them. */
static enum cairn_status rollouts_make(struct eval *e, struct cairn_error *err)
{
    struct cairn_rollouts *r = &e->r;
    int64_t n = e->file.n * e->how.samples, tokens = 0;
    size_t m = (size_t)n + 1;
    enum cairn_status st = CAIRN_OK;

    for (int64_t i = 0; i < n; i++)
        tokens += e->prompt[i / e->how.samples].n + e->result[i].n;
    *r = (struct cairn_rollouts){.n = n,
                                 .offsets = calloc(m, sizeof *r->offsets),
                                 .tokens = calloc((size_t)tokens + 1, sizeof *r->tokens),
                                 .prompt_length = calloc(m, sizeof *r->prompt_length),
                                 .prompt_id = calloc(m, sizeof *r->prompt_id),
                                 .group = calloc(m, sizeof *r->group),
                                 .sample = calloc(m, sizeof *r->sample),
                                 .finish = calloc(m, 1),
                                 .used = calloc(m, 1),
                                 .verdict = calloc(m, 1)};
    if (!r->offsets || !r->tokens || !r->prompt_length || !r->prompt_id || !r->group || !r->sample || !r->finish || !r->used ||
        !r->verdict)
        TRY(CAIRN_NOMEM(err));
    for (int64_t i = 0; i < n; i++) {
        int64_t row = i / e->how.samples, at = r->offsets[i];

        memcpy(r->tokens + at, e->prompt[row].p, (size_t)e->prompt[row].n * sizeof *r->tokens);
        memcpy(r->tokens + at + e->prompt[row].n, e->result[i].tokens, (size_t)e->result[i].n * sizeof *r->tokens);
        r->offsets[i + 1] = at + e->prompt[row].n + e->result[i].n;
        r->prompt_length[i] = (int32_t)e->prompt[row].n;
        r->prompt_id[i] = cairn_prompt_id(0, row);
        r->group[i] = (int32_t)row;
        r->sample[i] = (int32_t)(i % e->how.samples);
        r->finish[i] = (uint8_t)e->result[i].finish;
        r->used[i] = 1;
        r->verdict[i] = CAIRN_VERDICT_UNASKED;
    }
    TRY(cairn_rollouts_finish(r, e->name, err));
out:
    return st;
}

/* ---- figures -------------------------------------------------------------------------------------------------------- */

/* Counts of a set, or of several. */
struct figures {
    struct cairn_pass_rate pass;
    int64_t tokens, capped, stopped, right_stopped; /* of responses */
};

static struct figures figures_count(const struct cairn_scores_table *s, const struct cairn_rollouts *r)
{
    struct figures f = {.pass = cairn_score_pass_rate(s, r), .tokens = r->response[r->n]};

    for (int64_t i = 0; i < r->n; i++) {
        f.capped += r->finish[i] == CAIRN_FINISH_LENGTH;
        f.stopped += r->finish[i] == CAIRN_FINISH_STOP;
        f.right_stopped += r->finish[i] == CAIRN_FINISH_STOP && s->verdict[i];
    }
    return f;
}

static void figures_join(struct figures *all, const struct figures *f)
{
    cairn_pass_rate_join(&all->pass, &f->pass);
    all->tokens += f->tokens;
    all->capped += f->capped;
    all->stopped += f->stopped;
    all->right_stopped += f->right_stopped;
}

static double ratio(int64_t a, int64_t b)
{
    return b ? (double)a / (double)b : 0;
}

/* set NULL: all sets together; mean@k and pass@k are means over problems, the others over responses. k 0: sets of several. */
static enum cairn_status figures_print(const struct eval *e, const char *set, const struct figures *f, int k,
                                       struct cairn_error *err)
{
    const struct cairn_pass_rate *p = &f->pass;
    enum cairn_status st = CAIRN_OK;
    json_t *o;

    if (!e->a->json) {
        printf("%-20s %9lld %5.*d %9.1f %% %9.1f %% %9.1f %% %11.1f %9.1f %%\n", set ? set : "all sets", (long long)p->problems,
               k ? 1 : 0, k, p->problems ? 100 * p->mean / (double)p->problems : 0, 100 * ratio(p->solved, p->problems),
               100 * ratio(f->right_stopped, f->stopped), ratio(f->tokens, p->responses), 100 * ratio(f->capped, p->responses));
        return cairn_cli_flush(err);
    }
    o = json_pack("{s:s?, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "set", set, "step", (json_int_t)e->m.policy.step, "problems",
                  (json_int_t)p->problems, "responses", (json_int_t)p->responses, "right", (json_int_t)p->right, "accuracy",
                  ratio(p->right, p->responses), "accuracy_finished", ratio(f->right_stopped, f->stopped), "length_mean",
                  ratio(f->tokens, p->responses), "capped_share", ratio(f->capped, p->responses));
    if (!o || (k && json_object_set_new(o, "k", json_integer(k))) || !cairn_pass_rate_metrics(p, o)) {
        json_decref(o);
        TRY(CAIRN_NOMEM(err));
    }
    TRY(cairn_cli_json(o, err));
    TRY(cairn_cli_flush(err));
out:
    return st;
}

static enum cairn_status set_score(struct eval *e, struct figures *f, struct cairn_error *err)
{
    const char *grader[1] = {e->a->grader ? e->a->grader : json_string_value(json_object_get(e->entry, "grader"))};
    const struct cairn_score_opts o = {.recipe = e->m.run->recipe,
                                       .graders = e->graders,
                                       .tokenizer = e->prompting.tokenizer,
                                       .files = &e->file,
                                       .nfiles = 1,
                                       .grader = grader,
                                       .cap = e->how.max_new};
    struct cairn_scores_table s = {0};
    enum cairn_status st = CAIRN_OK;

    TRY(rollouts_make(e, err));
    TRY(cairn_scores_create(&s, e->r.n, err));
    TRY(cairn_score_grade(&s, &e->r, 0, e->r.n, &o, err));
    *f = figures_count(&s, &e->r);
    TRY(figures_print(e, e->name, f, e->how.samples, err));
out:
    cairn_scores_free(&s);
    return st;
}

static enum cairn_status run(struct eval *e, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct figures all = {0}, f;
    int k = 0;

    TRY(cairn_cli_model_open(&e->m, &e->a->model, err));
    if (!e->m.run)
        TRY(cairn_fail(err, CAIRN_EUSAGE, "%s belongs to no run: template, stop tokens and grading come from a run's recipe",
                       e->a->model.model));
    TRY(cairn_prompting_open(&e->prompting, e->m.run->recipe, e->m.tokenizer, &e->m.policy.config, err));
    TRY(set_open(e, e->a->set[0], err));
    if (!e->a->json)
        printf("policy %lld\n%-20s %9s %5s %11s %11s %11s %11s %11s\n", (long long)e->m.policy.step, "set", "problems", "k",
               "mean@k", "pass@k", "of finished", "length", "capped");
    for (int i = 0; i < e->a->sets; i++) {
        if (i)
            TRY(set_open(e, e->a->set[i], err));
        TRY(set_sample(e, err));
        TRY(set_score(e, &f, err));
        figures_join(&all, &f);
        k = !i || k == e->how.samples ? e->how.samples : 0;
        set_close(e);
    }
    if (e->a->sets > 1)
        TRY(figures_print(e, NULL, &all, k, err));
out:
    set_close(e);
    cairn_prompting_close(&e->prompting);
    cairn_cli_model_close(&e->m);
    return st;
}

int cairn_verb_eval(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"set", OPT_SET, "[NAME=]FILE", 0, "problems, JSON lines {\"id\",\"prompt\",\"answer\"}; may be repeated", 0},
        {NULL, 'k', "K", 0, "responses a problem (default: the recipe's for a set of this name, else 1)", 0},
        {"limit", OPT_LIMIT, "N", 0, "only the first N problems", 0},
        {"temperature", OPT_TEMPERATURE, "T", 0, "0 is greedy (default: the recipe's)", 0},
        {"top-p", OPT_TOP_P, "P", 0, "default: the recipe's", 0},
        {"max-new", OPT_MAX_NEW, "N", 0, "length cap, tokens (default: the recipe's)", 0},
        {"grader", OPT_GRADER, "NAME", 0, "of all problems (default: the problem's, else the recipe's)", 0},
        CAIRN_MODEL_OPTIONS,
        {"json", 'j', NULL, 0, "one JSON object a set, then one of all sets", 2},
        {0}};
    static const struct argp argp = {.options = options,
                                     .parser = option,
                                     .args_doc = "DIR",
                                     .doc = "Samples and grades problem sets with a policy of a run: mean@k (accuracy, averaged "
                                            "over k responses), pass@k (problems with a right "
                                            "one among k), accuracy among finished responses, mean length in tokens, share of "
                                            "responses that hit the cap; of each set and of "
                                            "all. DIR is a run (its newest policy) or a policy in it.\v"
                                            "Examples:\n"
                                            "  cairn eval /tmp/tiny --set recipes/data/tiny/heldout.jsonl -k 4\n"
                                            "  cairn eval /tmp/tiny --step 0 --set recipes/data/tiny/heldout.jsonl --json"};
    struct arguments a = {.temperature = -1, .top_p = -1};
    struct eval *e = NULL;
    struct cairn_run *graders_of = NULL;
    struct cairn_error err = {0};
    enum cairn_status st = CAIRN_OK;
    int done = 0, rc;
    char *dir = NULL;

    rc = cairn_model_args_parse(&argp, argc, argv, &a, &a.model, "which run?", &done);
    if (rc || done)
        return rc;
    if (!a.sets)
        return cairn_cli_usage(argv[0], "which --set FILE?");
    dir = cairn_cli_run_of(a.model.model);
    if (dir && cairn_run_open(&graders_of, dir, NULL) == CAIRN_OK) /* what it defines is there, too */
        TRY(cairn_graders_define(graders_of->recipe, &err));
    if (a.grader && !cairn_grader_find(a.grader)) {
        cairn_grader_unknown(a.grader, &err);
        cairn_run_close(graders_of);
        free(dir);
        return cairn_cli_usage(argv[0], "%s", err.text);
    }
    if (a.json)
        cairn_log_quiet(1);
    e = calloc(1, sizeof *e);
    if (!e)
        TRY(CAIRN_NOMEM(&err));
    e->a = &a;
    TRY(cairn_grader_process_start(&e->graders, NULL, &err)); /* before any thread */
    TRY(run(e, &err));
out:
    if (e)
        cairn_grader_process_stop(e->graders);
    free(e);
    free(dir);
    cairn_run_close(graders_of);
    return st == CAIRN_OK ? CAIRN_OK : cairn_cli_fail(argv[0], &err);
}

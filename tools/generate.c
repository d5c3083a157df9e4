/* generate.c - `cairn generate MODEL (--ids FILE | --prompt TEXT)`: responses of a model, through the engine that rollouts use.
 *
 * What line i gets depends on the model, its ids, the options, --seed and i: not on the other lines. A model that belongs to a run takes
 * template and stop tokens from its recipe. Results come in the order of the lines, some lines at a time.
 */
#include <argp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "stages/rollout/engine.h"
#include "stages/common/prompting.h"
#include "tools/cli.h"
#include "tools/id_lines.h"
#include "tools/model_args.h"
#include "tools/verbs.h"

#define LINES 64
#define TOKENS 16384
#define PAGE 64
#define MAX_NEW 256 /* by default, as far as the model's positions go */

struct arguments {
    struct cairn_model_args model;
    const char *ids, *prompt, *template;
    int64_t max_new, top_k, seed; /* max_new 0: not given */
    double temperature, top_p, min_p;
    int greedy, ignore_stop, json;
};

enum { OPT_IDS = 256, OPT_PROMPT, OPT_TEMPLATE, OPT_MAX_NEW, OPT_GREEDY, OPT_TEMPERATURE, OPT_TOP_P, OPT_TOP_K, OPT_MIN_P, OPT_SEED, OPT_IGNORE };

static const struct cairn_cli_slot slots[] = {
    CAIRN_CLI_TEXT_AT(OPT_IDS, struct arguments, ids),
    CAIRN_CLI_TEXT_AT(OPT_PROMPT, struct arguments, prompt),
    CAIRN_CLI_TEXT_AT(OPT_TEMPLATE, struct arguments, template),
    CAIRN_CLI_COUNT_AT(OPT_MAX_NEW, struct arguments, max_new, "max-new", 1, INT32_MAX, "1 or more tokens"),
    CAIRN_CLI_FLAG_AT(OPT_GREEDY, struct arguments, greedy),
    CAIRN_CLI_FLAG_AT(OPT_IGNORE, struct arguments, ignore_stop),
    CAIRN_CLI_NUMBER_AT(OPT_TEMPERATURE, struct arguments, temperature, "temperature", 0, 100, "0 to 100"),
    CAIRN_CLI_NUMBER_AT(OPT_TOP_P, struct arguments, top_p, "top-p", CAIRN_CLI_ABOVE_0, 1, "above 0, at most 1"),
    CAIRN_CLI_NUMBER_AT(OPT_MIN_P, struct arguments, min_p, "min-p", 0, CAIRN_CLI_BELOW_1, "0 or more, below 1"),
    CAIRN_CLI_COUNT_AT(OPT_TOP_K, struct arguments, top_k, "top-k", 0, INT32_MAX, "0 or more tokens"),
    CAIRN_CLI_COUNT_AT(OPT_SEED, struct arguments, seed, "seed", 0, 0x1p63, "0 or more"),
    CAIRN_CLI_FLAG_AT('j', struct arguments, json),
    {0},
};

static error_t option(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;

    return key == ARGP_KEY_ARG || key >= CAIRN_OPT_ADAPTER ? cairn_model_args_take(&a->model, key, arg, state)
                                                           : cairn_cli_take(slots, key, arg, state);
}

struct job {
    const struct arguments *a;
    struct cairn_cli_model m;
    struct cairn_prompting prompting; /* without a tokenizer: only stop ids */
    struct cairn_engine *engine;
    int64_t engine_length;
    struct cairn_id_line line[LINES];
    struct cairn_ids out[LINES];
    enum cairn_finish finish[LINES];
    int n;
    int64_t number;                   /* of line[0] among all, from 0 */
};

static void job_clear(struct job *j)
{
    for (int i = 0; i < j->n; i++) {
        cairn_ids_free(&j->line[i].ids);
        cairn_ids_free(&j->out[i]);
    }
    j->number += j->n;
    j->n = 0;
}

/* Template and stop tokens: the run's recipe, or --template (plain) and the model's own eos. */
static enum cairn_status prompting_open(struct job *j, struct cairn_error *err)
{
    const struct cairn_model_config *c = &j->m.policy.config;
    struct cairn_prompting *p = &j->prompting;
    enum cairn_status st = CAIRN_OK;

    if (j->m.run && !j->a->template)
        return cairn_prompting_open(p, j->m.run->recipe, j->m.tokenizer, c, err);
    for (int i = 0; i < c->stops; i++)
        if (!cairn_ids_push(&p->stop, c->stop[i]))
            TRY(CAIRN_NOMEM(err));
    if (!j->m.tokenizer && (j->a->prompt || j->a->template))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s has no tokenizer.json; give --ids FILE", j->m.dir));
    if (!j->m.tokenizer)
        goto out;
    TRY(cairn_tokenizer_load(&p->tokenizer, j->m.tokenizer, err));
    TRY(cairn_prompting_bar(p, c->vocab, err));
    st = cairn_template_parse(&p->template, j->a->template ? j->a->template : "plain", NULL, err);
    if (st == CAIRN_OK)
        st = cairn_template_check(p->template, p->tokenizer, err);
    if (st == CAIRN_ERECIPE)
        TRY(cairn_fail(err, CAIRN_EUSAGE, "--template: %s", err->text));
    TRY(st);
    TRY(cairn_template_stop_ids(p->template, p->tokenizer, &p->stop, err));
out:
    return st;
}

static int64_t cap_of(const struct job *j, int64_t length)
{
    int64_t room = j->m.policy.config.max_positions - length + 1;

    return j->a->max_new ? j->a->max_new : room < MAX_NEW ? room : MAX_NEW;
}

static enum cairn_status engine_ready(struct job *j, struct cairn_error *err)
{
    const struct arguments *a = j->a;
    int greedy = a->greedy || !((float)a->temperature > 0);
    int64_t longest = 1;
    struct cairn_engine_opts o = {.batch = LINES,
                                  .page = PAGE,
                                  .seed = (uint64_t)a->seed,
                                  .temperature = greedy ? 1 : (float)a->temperature,
                                  .top_p = (float)a->top_p,
                                  .min_p = (float)a->min_p,
                                  .top_k = (int)a->top_k,
                                  .graphs = 1,
                                  .greedy = greedy,
                                  .barred = j->prompting.barred,
                                  .stop = a->ignore_stop ? NULL : j->prompting.stop.p,
                                  .stops = a->ignore_stop ? 0 : (int)j->prompting.stop.n,
                                  .ended = j->prompting.texts && !a->ignore_stop ? cairn_prompting_ended : NULL,
                                  .ended_arg = &j->prompting};

    for (int i = 0; i < j->n; i++) {
        int64_t n = cairn_engine_positions(j->line[i].ids.n, cap_of(j, j->line[i].ids.n));

        longest = n > longest ? n : longest;
    }
    if (j->engine && longest <= j->engine_length)
        return CAIRN_OK;
    cairn_engine_destroy(j->engine);
    j->engine = NULL;
    j->engine_length = o.max_length = longest;
    if (j->n < LINES)
        o.batch = j->n;
    return cairn_engine_create(&j->engine, &j->m.model, &o, err);
}

static enum cairn_status tell(void *arg, const struct cairn_response *r, struct cairn_error *err)
{
    struct job *j = arg;
    struct cairn_ids *out = &j->out[r->tag];

    if (!cairn_ids_reserve(out, r->n))
        return CAIRN_NOMEM(err);
    memcpy(out->p, r->tokens, (size_t)r->n * sizeof *out->p);
    out->n = r->n;
    j->finish[r->tag] = r->finish;
    return CAIRN_OK;
}

static enum cairn_status job_run(struct job *j, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(engine_ready(j, err));
    for (int i = 0; i < j->n; i++) {
        const struct cairn_ids *ids = &j->line[i].ids;

        TRY(cairn_engine_submit(j->engine,
                                &(struct cairn_request){.prompt = ids->p, .length = ids->n, .max_new = cap_of(j, ids->n), .samples = 1,
                                                        .key = (int32_t)(j->number + i), .tag = i},
                                err));
    }
    TRY(cairn_engine_run(j->engine, tell, j, err));
out:
    return st;
}

/* The text of a response, without special tokens; ids that have no token are U+FFFD. */
static void text_put(const struct job *j, const struct cairn_ids *ids, struct cairn_str *text)
{
    const struct cairn_tokenizer *t = j->prompting.tokenizer;

    cairn_str_clear(text);
    for (int64_t i = 0; i < ids->n; i++) {
        size_t n;
        const char *bytes = cairn_tokenizer_token_bytes(t, ids->p[i], &n);

        if (!bytes)
            cairn_str_put_utf8(text, 0xfffd);
        else if (!cairn_tokenizer_is_special(t, ids->p[i]))
            cairn_str_add(text, bytes, n);
    }
}

static enum cairn_status job_write(const struct job *j, struct cairn_str *text, struct cairn_str *out, struct cairn_error *err)
{
    static const char *const finish[] = {"stop", "length", "aborted"};

    cairn_str_clear(out);
    for (int i = 0; i < j->n; i++) {
        if (j->prompting.tokenizer)
            text_put(j, &j->out[i], text);
        if (j->a->prompt && !j->a->json) {
            cairn_str_add(out, cairn_str_z(text), text->len);
            cairn_str_putc(out, '\n');
            continue;
        }
        cairn_str_puts(out, "{\"ids\":[");
        for (int64_t k = 0; k < j->out[i].n; k++)
            cairn_str_printf(out, k ? ",%d" : "%d", j->out[i].p[k]);
        cairn_str_puts(out, "]");
        if (j->prompting.tokenizer) {
            cairn_str_puts(out, ",\"text\":");
            cairn_json_put_string(out, cairn_str_z(text), text->len);
        }
        cairn_str_printf(out, ",\"finish\":\"%s\"}\n", finish[j->finish[i]]);
    }
    return out->oom || text->oom ? CAIRN_NOMEM(err) : cairn_fd_write_all(STDOUT_FILENO, out->p, out->len, "standard output", err);
}

/* The prompt of the command line as the one line. */
static enum cairn_status prompt_take(struct job *j, struct cairn_error *err)
{
    const struct cairn_model_config *c = &j->m.policy.config;
    struct cairn_ids *ids = &j->line[0].ids;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_template_render(j->prompting.template, j->prompting.tokenizer, j->a->prompt, strlen(j->a->prompt), ids, err));
    j->n = 1;
    if (!ids->n)
        TRY(cairn_fail(err, CAIRN_EUSAGE, "--prompt: it has no tokens"));
    if (cairn_engine_positions(ids->n, j->a->max_new ? j->a->max_new : 1) > c->max_positions)
        TRY(cairn_fail(err, CAIRN_EDATA, "--prompt: its %lld tokens and %lld new ones do not fit the model's %lld positions", (long long)ids->n,
                       (long long)(j->a->max_new ? j->a->max_new : 1), (long long)c->max_positions));
out:
    return st;
}

static enum cairn_status run(const struct arguments *a, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_id_lines *lines = NULL;
    struct cairn_str text = {0}, out = {0};
    struct job *j = calloc(1, sizeof *j);

    if (!j)
        return CAIRN_NOMEM(err);
    j->a = a;
    TRY(cairn_cli_model_open(&j->m, &a->model, err));
    TRY(prompting_open(j, err));
    if (a->prompt) {
        TRY(prompt_take(j, err));
        TRY(job_run(j, err));
        TRY(job_write(j, &text, &out, err));
        goto out;
    }
    TRY(cairn_id_lines_open(&lines, a->ids, &j->m.policy.config, a->max_new ? a->max_new - 1 : 0, err));
    for (;;) {
        TRY(cairn_id_lines_next(lines, j->line, LINES, TOKENS, &j->n, err));
        if (!j->n)
            break;
        TRY(job_run(j, err));
        TRY(job_write(j, &text, &out, err));
        job_clear(j);
    }
out:
    job_clear(j);
    cairn_id_lines_close(lines);
    cairn_str_free(&text);
    cairn_str_free(&out);
    cairn_engine_destroy(j->engine);
    cairn_prompting_close(&j->prompting);
    cairn_cli_model_close(&j->m);
    free(j);
    return st;
}

int cairn_verb_generate(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"ids", OPT_IDS, "FILE", 0, "JSON lines {\"ids\":[...]}; /dev/stdin for a pipe", 0},
        {"prompt", OPT_PROMPT, "TEXT", 0, "one prompt; prints the text that follows", 0},
        {"max-new", OPT_MAX_NEW, "N", 0, "at most so many new tokens (default: 256)", 0},
        {"greedy", OPT_GREEDY, NULL, 0, "always the most likely token", 0},
        {"temperature", OPT_TEMPERATURE, "T", 0, "default: 1; 0 is --greedy", 0},
        {"top-p", OPT_TOP_P, "P", 0, "the most likely tokens whose mass reaches P", 0},
        {"top-k", OPT_TOP_K, "K", 0, "the K most likely tokens", 0},
        {"min-p", OPT_MIN_P, "P", 0, "tokens of at least P times the likeliest's probability", 0},
        {"seed", OPT_SEED, "N", 0, "of the draws (default: 0)", 0},
        {"template", OPT_TEMPLATE, "NAME", 0, "of --prompt: plain, glm5.2, ... (default: the run's; else plain)", 0},
        {"ignore-stop", OPT_IGNORE, NULL, 0, "go on behind stop tokens", 0},
        CAIRN_MODEL_OPTIONS,
        {"json", 'j', NULL, 0, "with --prompt: a JSON object, too", 2},
        {0}};
    static const struct argp argp = {
        .options = options,
        .parser = option,
        .args_doc = "MODEL",
        .doc = "Samples from a model: {\"ids\"} in, the new {\"ids\"} out, with \"text\" where there is a tokenizer, a line for a line; or one "
               "--prompt and its text. MODEL is an imported checkpoint, a policy, a run (its newest policy) or a HuggingFace directory.\v"
               "Examples:\n"
               "  cairn generate /tmp/tiny --prompt 'Ann has 3 pens. How many?'\n"
               "  echo '{\"ids\":[5,6,7]}' | cairn generate --ids /dev/stdin --greedy \\\n"
               "      --max-new 16 tests/fixtures/models/glm52-tiny"};
    struct arguments a = {.temperature = 1, .top_p = 1};
    struct cairn_error err = {0};
    int done = 0, rc;

    rc = cairn_model_args_parse(&argp, argc, argv, &a, &a.model, "which MODEL?", &done);
    if (rc || done)
        return rc;
    if (!a.ids == !a.prompt)
        return cairn_cli_usage(argv[0], "give one of --ids FILE and --prompt TEXT");
    return run(&a, &err) == CAIRN_OK ? CAIRN_OK : cairn_cli_fail(argv[0], &err);
}

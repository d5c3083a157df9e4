/* logprobs.c - `cairn logprobs MODEL --tokens FILE`: log-probabilities of given token sequences, by the trainer's path or the sampler's.
 *
 * train: the packed forward, as the trainer runs it. decode: the paged cache, as the sampler runs it: a prompt of N tokens at once, then
 * token by token, many sequences in one call. Both print the same bits; that is what the verb is for.
 *
 * Lines are read, run and written some at a time, in order. Before a bad line is named, what came before it is written.
 */
#include <argp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/signals.h"
#include "base/str.h"
#include "tools/cli.h"
#include "tools/id_lines.h"
#include "tools/model_args.h"
#include "tools/verbs.h"

#define LINES 64         /* sequences at once */
#define TOKENS 4096      /* of all of them, but for a longer one by itself */
#define ROWS 1024        /* of one call of the decode path, at least LINES */
#define PAGE 64

struct arguments {
    struct cairn_model_args model;
    const char *tokens;
    int64_t prompt;
    double temperature;
    int decode;
};

enum { OPT_TOKENS = 256, OPT_PATH, OPT_PROMPT, OPT_TEMPERATURE, OPT_JSON };

static const struct cairn_cli_slot slots[] = {
    CAIRN_CLI_TEXT_AT(OPT_TOKENS, struct arguments, tokens),
    CAIRN_CLI_COUNT_AT(OPT_PROMPT, struct arguments, prompt, "prompt", 1, 0x1p62, "a number of tokens, at least 1"),
    CAIRN_CLI_NUMBER_AT(OPT_TEMPERATURE, struct arguments, temperature, "temperature", CAIRN_CLI_ABOVE_0, 0x1p127, "a number above 0"),
    {0},
};

static error_t option(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;

    if (key == OPT_PATH) {
        a->decode = !strcmp(arg, "decode");
        return a->decode || !strcmp(arg, "train") ? 0 : cairn_bad_value(state, "path", arg, "train or decode");
    }
    if (key == OPT_JSON) /* it is JSON anyway */
        return 0;
    return key == ARGP_KEY_ARG || key >= CAIRN_OPT_ADAPTER ? cairn_model_args_take(&a->model, key, arg, state)
                                                           : cairn_cli_take(slots, key, arg, state);
}

/* What is being run: some lines, and room for their rows. */
struct job {
    struct cairn_cli_model *m;
    const struct arguments *a;
    struct cairn_pass *pass;
    int64_t pass_rows;
    struct cairn_id_line line[LINES];
    int n;
    int64_t rows, room;
    int64_t first[LINES];                 /* row of a line's first token in the results */
    int32_t *id, *pos, *seq, *target;     /* (room) of one call */
    int32_t *at;                          /* (room) result row of each row of the call */
    float *h_logprob, *logprob;           /* (room) of a call, of all lines */
    int32_t *h_argmax, *argmax;
};

static void job_clear(struct job *j)
{
    for (int i = 0; i < j->n; i++)
        cairn_ids_free(&j->line[i].ids);
    j->n = 0;
}

static void job_free(struct job *j)
{
    job_clear(j);
    cairn_pass_destroy(j->pass);
    free(j->id);
    free(j->pos);
    free(j->seq);
    free(j->target);
    free(j->at);
    free(j->h_logprob);
    free(j->logprob);
    free(j->h_argmax);
    free(j->argmax);
}

static int grow(void *p, int64_t n)
{
    void **q = p, *r = realloc(*q, (size_t)n * 4);

    if (r)
        *q = r;
    return r != NULL;
}

/* Arrays for all rows of the lines, and a pass that takes the rows of one call. */
static enum cairn_status job_ready(struct job *j, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t need;

    j->rows = 0;
    for (int i = 0; i < j->n; i++) {
        j->first[i] = j->rows;
        j->rows += j->line[i].ids.n;
    }
    if (j->rows > j->room) {
        int64_t n = j->rows > TOKENS ? j->rows : TOKENS;

        if (!grow(&j->id, n) || !grow(&j->pos, n) || !grow(&j->seq, n) || !grow(&j->target, n) || !grow(&j->at, n) || !grow(&j->h_logprob, n) ||
            !grow(&j->logprob, n) || !grow(&j->h_argmax, n) || !grow(&j->argmax, n))
            TRY(CAIRN_NOMEM(err));
        j->room = n;
    }
    need = j->a->decode ? ROWS : j->rows;
    if (need > j->pass_rows) {
        cairn_pass_destroy(j->pass);
        j->pass = NULL;
        TRY(cairn_pass_create(&j->pass, &j->m->model, &(struct cairn_pass_opts){.max_rows = need, .max_seqs = LINES, .argmax = 1}, err));
        j->pass_rows = need;
    }
out:
    return st;
}

/* Row r of the call: token t of line i. The last one has no next token; any target will do to get its argmax. */
static void row_set(struct job *j, int64_t r, int i, int64_t t, int seq)
{
    const struct cairn_ids *ids = &j->line[i].ids;

    j->id[r] = ids->p[t];
    j->pos[r] = (int32_t)t;
    j->seq[r] = seq;
    j->target[r] = t + 1 < ids->n ? ids->p[t + 1] : 0;
    j->at[r] = (int32_t)(j->first[i] + t);
}

/* Results of a call of n rows to their places. */
static enum cairn_status rows_take(struct job *j, const struct cairn_scores *s, int64_t n, struct cairn_error *err)
{
    const struct cairn_tensor logprob = cairn_tensor_slice(&s->logprob, 0, 0, n), argmax = cairn_tensor_slice(&s->argmax, 0, 0, n);
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_tensor_get(&j->m->k.stream, &logprob, j->h_logprob, (size_t)n * 4, err));
    TRY(cairn_tensor_get(&j->m->k.stream, &argmax, j->h_argmax, (size_t)n * 4, err));
    for (int64_t r = 0; r < n; r++) {
        j->logprob[j->at[r]] = j->h_logprob[r];
        j->argmax[j->at[r]] = j->h_argmax[r];
    }
out:
    return st;
}

static enum cairn_status train_run(struct job *j, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_scores scores;
    int32_t start[LINES];
    struct cairn_batch b = {.n = j->rows, .id = j->id, .pos = j->pos, .seq = j->seq, .nseq = j->n, .start = start};
    int64_t r = 0;

    for (int i = 0; i < j->n; i++) {
        start[i] = (int32_t)r;
        for (int64_t t = 0; t < j->line[i].ids.n; t++)
            row_set(j, r++, i, t, i);
    }
    TRY(cairn_forward(j->pass, &b, j->target, (float)j->a->temperature, &scores, err));
    TRY(rows_take(j, &scores, r, err));
out:
    return st;
}

/* Each line in a slot of its own; a call takes the prompts' rows as far as they fit, and one row of each line that is past its prompt. */
static enum cairn_status decode_run(struct job *j, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_cache *cache = NULL;
    struct cairn_cache_opts o = {.slots = j->n, .page = PAGE, .max_length = j->m->policy.config.max_positions};
    int64_t done[LINES] = {0}, left = j->rows;
    int slot[LINES];

    for (int i = 0; i < j->n; i++)
        o.pages += (int)((j->line[i].ids.n - 1) / PAGE + 1);
    TRY(cairn_cache_create(&cache, &j->m->policy.config, &j->m->k, &o, err));
    for (int i = 0; i < j->n; i++)
        slot[i] = cairn_cache_slot(cache);
    while (left) {
        struct cairn_scores scores;
        struct cairn_batch b = {.id = j->id, .pos = j->pos, .seq = j->seq};
        int64_t r = 0;

        if (cairn_stop_requested())
            TRY(cairn_fail(err, CAIRN_EAGAIN, "stopped by a signal"));
        for (int i = 0; i < j->n; i++) {
            int64_t n = j->line[i].ids.n, want = done[i] < j->a->prompt ? j->a->prompt - done[i] : 1, most = ROWS - (j->n - i - 1) - r;
            int fits;

            want = want > n - done[i] ? n - done[i] : want;
            want = want > most ? most : want;
            if (!want)
                continue;
            TRY(cairn_cache_extend(cache, slot[i], want, &fits, err));
            if (!fits)
                TRY(CAIRN_BUG(err, "the cache is short of pages"));
            for (; want; want--, left--)
                row_set(j, r++, i, done[i]++, slot[i]);
        }
        b.n = r;
        TRY(cairn_forward_cached_scores(j->pass, cache, &b, j->target, (float)j->a->temperature, &scores, err));
        TRY(rows_take(j, &scores, r, err));
    }
out:
    cairn_cache_destroy(cache);
    return st;
}

static enum cairn_status lines_write(const struct job *j, struct cairn_str *out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    cairn_str_clear(out);
    for (int i = 0; i < j->n; i++) {
        const float *lp = j->logprob + j->first[i];
        int64_t n = j->line[i].ids.n;

        cairn_str_puts(out, "{\"logprobs\":[");
        for (int64_t t = 0; t < n - 1; t++) {
            if (t)
                cairn_str_putc(out, ',');
            cairn_json_put_float(out, lp[t]);
        }
        cairn_str_puts(out, "],\"bits\":[");
        for (int64_t t = 0; t < n - 1; t++) {
            uint32_t bits;

            memcpy(&bits, &lp[t], sizeof bits);
            cairn_str_printf(out, t ? ",%u" : "%u", bits);
        }
        cairn_str_puts(out, "],\"argmax\":[");
        for (int64_t t = 0; t < n; t++)
            cairn_str_printf(out, t ? ",%d" : "%d", j->argmax[j->first[i] + t]);
        cairn_str_puts(out, "]}\n");
    }
    TRY(out->oom ? CAIRN_NOMEM(err) : cairn_fd_write_all(STDOUT_FILENO, out->p, out->len, "standard output", err));
out:
    return st;
}

static enum cairn_status run(const struct arguments *a, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_cli_model m = {0};
    struct cairn_id_lines *lines = NULL;
    struct cairn_str out = {0};
    struct job j = {.m = &m, .a = a};

    TRY(cairn_cli_model_open(&m, &a->model, err));
    TRY(cairn_id_lines_open(&lines, a->tokens, &m.policy.config, 0, err));
    for (;;) {
        job_clear(&j);
        TRY(cairn_id_lines_next(lines, j.line, LINES, TOKENS, &j.n, err));
        if (!j.n)
            break;
        if (cairn_stop_requested())
            TRY(cairn_fail(err, CAIRN_EAGAIN, "stopped by a signal"));
        TRY(job_ready(&j, err));
        TRY(a->decode ? decode_run(&j, err) : train_run(&j, err));
        TRY(lines_write(&j, &out, err));
    }
out:
    job_free(&j);
    cairn_str_free(&out);
    cairn_id_lines_close(lines);
    cairn_cli_model_close(&m);
    return st;
}

int cairn_verb_logprobs(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"tokens", OPT_TOKENS, "FILE", 0, "JSON lines {\"ids\":[...]}; /dev/stdin for a pipe", 0},
        {"path", OPT_PATH, "train|decode", 0, "the trainer's packed forward (default), or the sampler's cache", 0},
        {"prompt", OPT_PROMPT, "N", 0, "decode: the first N tokens at once, the others one by one (default: 1)", 0},
        {"temperature", OPT_TEMPERATURE, "T", 0, "logits are divided by it (default: 1)", 0},
        CAIRN_MODEL_OPTIONS,
        {"json", OPT_JSON, NULL, 0, "one JSON object a line (always so)", 2},
        {0}};
    static const struct argp argp = {
        .options = options,
        .parser = option,
        .args_doc = "MODEL",
        .doc = "Log-probabilities of token sequences: {\"ids\"} in, {\"logprobs\",\"bits\",\"argmax\"} out, a line for a line. bits are the "
               "logprobs' float32 as integers; argmax has one entry more, for the token after the last. MODEL is an imported checkpoint, a "
               "policy, a run (its newest policy) or a HuggingFace directory.\v"
               "Examples:\n"
               "  echo '{\"ids\":[5,6,7]}' | cairn logprobs --tokens /dev/stdin \\\n"
               "      tests/fixtures/models/glm52-tiny\n"
               "  echo '{\"ids\":[5,6,7]}' | cairn logprobs --tokens /dev/stdin \\\n"
               "      --path decode /tmp/tiny"};
    struct arguments a = {.prompt = 1, .temperature = 1};
    struct cairn_error err = {0};
    int done = 0, rc;

    rc = cairn_model_args_parse(&argp, argc, argv, &a, &a.model, "which MODEL?", &done);
    if (rc || done)
        return rc;
    if (!a.tokens)
        return cairn_cli_usage(argv[0], "which --tokens FILE?");
    return run(&a, &err) == CAIRN_OK ? CAIRN_OK : cairn_cli_fail(argv[0], &err);
}

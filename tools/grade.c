/* grade.c - `cairn grade`: JSON lines {"gold","response"} to {"match","extracted","why","status"}, a line for a line.
 *
 * The verdicts are those of the score stage: the same graders behind the same grader process, so a grader's crash is a
 * line of status "crashed", not the end of the program. What was graded before a bad line is written, then the line is
 * named.
 */
#include <argp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "stages/common/graders.h"
#include "tools/cli.h"
#include "tools/verbs.h"

#define BATCH       256
#define BATCH_BYTES ((size_t)8 << 20)

enum { OPT_JSONL = 256, OPT_GRADER, OPT_MARKER, OPT_RECIPE, OPT_JSON };

struct arguments {
    const char *jsonl, *grader, *recipe;
    const char *marker[CAIRN_MARKERS_MAX];
    struct cairn_grade_opts opts;
};

static error_t option(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;

    switch (key) {
    case OPT_JSONL:
        a->jsonl = arg;
        return 0;
    case OPT_GRADER:
        a->grader = arg;
        return 0;
    case OPT_MARKER:
        if (a->opts.markers == CAIRN_MARKERS_MAX) {
            argp_error(state, "more than %d markers", CAIRN_MARKERS_MAX);
            return EINVAL;
        }
        a->marker[a->opts.markers++] = arg;
        return 0;
    case OPT_RECIPE:
        a->recipe = arg;
        return 0;
    case OPT_JSON:
        return 0; /* it is JSON anyway */
    }
    return ARGP_ERR_UNKNOWN;
}

/* Rows read and not yet graded. Texts are copies: the reader keeps one line only. */
struct batch {
    struct cairn_grade_job job[BATCH];
    char *where[BATCH];
    size_t n, bytes;
};

static char *copy(const char *p, size_t n)
{
    char *s = malloc(n + 1);

    if (s) {
        memcpy(s, p, n);
        s[n] = 0;
    }
    return s;
}

static void batch_clear(struct batch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        free((char *)b->job[i].gold);
        free((char *)b->job[i].response);
        free(b->where[i]);
    }
    b->n = b->bytes = 0;
}

static enum cairn_status batch_add(struct batch *b, const json_t *row, const char *where, struct cairn_error *err)
{
    const json_t *gold = json_object_get(row, "gold"), *response = json_object_get(row, "response");
    struct cairn_grade_job *job = &b->job[b->n];

    if (!json_is_string(gold) || !json_is_string(response))
        return cairn_fail(err, CAIRN_EDATA, "%s: expected {\"gold\": a string, \"response\": a string}", where);
    memset(job, 0, sizeof *job);
    job->gold_bytes = json_string_length(gold);
    job->response_bytes = json_string_length(response);
    job->gold = copy(json_string_value(gold), job->gold_bytes);
    job->response = copy(json_string_value(response), job->response_bytes);
    b->where[b->n++] = copy(where, strlen(where));
    b->bytes += job->gold_bytes + job->response_bytes;
    return job->gold && job->response && b->where[b->n - 1] ? CAIRN_OK : CAIRN_NOMEM(err);
}

static void put_verdict(struct cairn_str *out, const struct cairn_verdict *v)
{
    cairn_str_printf(out, "{\"match\":%s,\"extracted\":", v->match ? "true" : "false");
    if (v->extracted[0])
        cairn_json_put_string(out, v->extracted, strlen(v->extracted));
    else
        cairn_str_puts(out, "null");
    cairn_str_puts(out, ",\"why\":");
    cairn_json_put_string(out, v->why, strlen(v->why));
    cairn_str_printf(out, ",\"status\":\"%s\"", cairn_verdict_status_name(v->status));
    if (v->value != v->match) {
        cairn_str_puts(out, ",\"score\":");
        cairn_json_put_double(out, v->value);
    }
    cairn_str_puts(out, "}\n");
}

/* Grades what the batch holds, prints the verdicts, empties it. */
static enum cairn_status batch_grade(struct cairn_grader_process *p, const struct arguments *a, struct batch *b,
                                     struct cairn_error *err)
{
    struct cairn_str out = {0};
    size_t good = b->n;
    enum cairn_status st = CAIRN_OK, first = CAIRN_OK;
    struct cairn_error bad = {CAIRN_OK, ""};

    first = cairn_grader_process_grade_many(p, a->grader, &a->opts, b->job, b->n, &bad);
    if (first != CAIRN_OK) {
        char *end = bad.text;
        size_t at = strncmp(bad.text, "job ", 4) == 0 ? (size_t)strtoull(bad.text + 4, &end, 10) : b->n;

        if (at < b->n && strncmp(end, ": ", 2) == 0) { /* "job N: sentence": rows before N have their verdicts */
            good = at;
            cairn_fail(err, first, "%s: %s", b->where[at], end + 2);
        } else {
            good = 0;
            cairn_fail(err, first, "%s", bad.text);
        }
    }
    for (size_t i = 0; i < good; i++)
        put_verdict(&out, &b->job[i].verdict);
    if (out.oom)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_fd_write_all(STDOUT_FILENO, out.p, out.len, "standard output", err));
    st = first;
out:
    cairn_str_free(&out);
    batch_clear(b);
    return st;
}

static enum cairn_status grade_lines(struct cairn_grader_process *p, const struct arguments *a, struct cairn_error *err)
{
    struct cairn_jsonl *lines = NULL;
    struct batch *b = calloc(1, sizeof *b);
    const json_t *row;
    enum cairn_status st = CAIRN_OK, read;
    struct cairn_error bad = {CAIRN_OK, ""};

    if (!b)
        return CAIRN_NOMEM(err);
    TRY(cairn_jsonl_open(&lines, a->jsonl, err));
    for (;;) {
        read = cairn_jsonl_next(lines, &row, &bad);
        if (read == CAIRN_OK && row)
            read = batch_add(b, row, cairn_jsonl_where(lines), &bad);
        if (b->n && (b->n == BATCH || b->bytes >= BATCH_BYTES || read != CAIRN_OK || !row)) {
            if (read != CAIRN_OK && (!b->job[b->n - 1].gold || !b->job[b->n - 1].response)) /* no memory for the last row */
                TRY(CAIRN_NOMEM(err));
            TRY(batch_grade(p, a, b, err));
        }
        if (read != CAIRN_OK)
            TRY(cairn_fail(err, read, "%s", bad.text));
        if (!row)
            break;
    }
out:
    batch_clear(b);
    free(b);
    cairn_jsonl_close(lines);
    return st;
}

int cairn_verb_grade(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"jsonl", OPT_JSONL, "FILE", 0, "JSON lines {\"gold\":\"...\",\"response\":\"...\"}; /dev/stdin for a pipe", 0},
        {"grader", OPT_GRADER, "NAME", 0, "which grader (default: math)", 0},
        {"recipe", OPT_RECIPE, "FILE", 0, "graders that score.graders of this recipe defines are there, too", 0},
        {"marker", OPT_MARKER, "TEXT", 0, "the last TEXT announces the answer, in place of \"Answer:\"; may be repeated", 0},
        {"json", OPT_JSON, NULL, 0, "one JSON object a line (always so)", 0},
        {0}};
    static const struct argp argp = {
        .options = options,
        .parser = option,
        .doc = "Grade responses: {\"gold\",\"response\"} in, {\"match\",\"extracted\",\"why\",\"status\"} out, a line for a line. "
               "status is ok, "
               "no_answer, budget (too much work), undecided, crashed, timeout or invalid (no verdict); match is false for all but ok. A "
               "grader that tells more finely gives its \"score\", too.\v"
               "Examples:\n"
               "  echo '{\"gold\":\"1/2\",\"response\":\"Answer: 0.5\"}' | cairn grade \\\n"
               "      --jsonl /dev/stdin\n"
               "  cairn grade --recipe recipes/graders/graders.yaml --grader last_line \\\n"
               "      --jsonl tests/fixtures/grading/grading_cases.jsonl"};
    struct arguments a = {.grader = "math"};
    struct cairn_recipe *recipe = NULL;
    struct cairn_grader_process *p = NULL;
    struct cairn_error err = {0};
    enum cairn_status st = CAIRN_OK;
    int done = 0, rc = cairn_cli_parse(&argp, argc, argv, &a, &done);

    if (rc || done)
        return rc;
    if (!a.jsonl)
        return cairn_cli_usage(argv[0], "which --jsonl FILE?");
    a.opts.marker = a.marker;
    if (a.recipe) {
        TRY(cairn_recipe_load_part(&recipe, a.recipe, 0, NULL, &err));
        TRY(cairn_graders_define(recipe, &err));
    }
    if (!cairn_grader_find(a.grader)) {
        cairn_grader_unknown(a.grader, &err);
        return cairn_cli_usage(argv[0], "%s", err.text);
    }
    if (cairn_grade_opts_check(&a.opts, &err) != CAIRN_OK)
        return cairn_cli_usage(argv[0], "%s", err.text);
    signal(SIGPIPE, SIG_IGN); /* a reader that left is a failed write: 74 and a sentence */
    TRY(cairn_grader_process_start(&p, NULL, &err));
    TRY(grade_lines(p, &a, &err));
out:
    cairn_grader_process_stop(p);
    cairn_recipe_free(recipe);
    return st == CAIRN_OK ? CAIRN_OK : cairn_cli_fail(argv[0], &err);
}

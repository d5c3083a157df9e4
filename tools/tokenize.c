/* tokenize.c - `cairn tokenize` and `cairn detokenize`: JSON lines of text to JSON lines of ids, and back.
 *
 * One object a line, in the order of the input; what was converted before a bad line is written, then the line is
 * named. No ids are added. Text that comes back from ids may hold bytes that are not UTF-8 (a token may be half a
 * character); JSON cannot hold those, so they print as U+FFFD.
 */
#include <argp.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer.h"
#include "tools/cli.h"
#include "tools/verbs.h"

#define FULL ((size_t)1 << 20) /* bytes of output that are gathered before a write */

struct arguments {
    const char *tokenizer, *jsonl;
    int literal, skip_special;
};

enum { OPT_JSONL = 256, OPT_LITERAL, OPT_SKIP, OPT_JSON };

static error_t option(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;

    switch (key) {
    case OPT_JSONL:
        a->jsonl = arg;
        return 0;
    case OPT_LITERAL:
        a->literal = 1;
        return 0;
    case OPT_SKIP:
        a->skip_special = 1;
        return 0;
    case OPT_JSON:
        return 0; /* it is JSON anyway */
    case ARGP_KEY_ARG:
        if (a->tokenizer)
            return ARGP_ERR_UNKNOWN;
        a->tokenizer = arg;
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

/* A conversion of one line: appends its result and a newline to out. */
typedef enum cairn_status convert_fn(struct cairn_tokenizer *t, const struct arguments *a, const json_t *row, const char *where,
                                     struct cairn_ids *ids, struct cairn_str *bytes, struct cairn_str *out,
                                     struct cairn_error *err);

static void put_id(struct cairn_str *out, int32_t id)
{
    char digits[12];
    int i = sizeof digits;

    do
        digits[--i] = (char)('0' + id % 10);
    while (id /= 10);
    cairn_str_add(out, digits + i, sizeof digits - (size_t)i);
}

static enum cairn_status to_ids(struct cairn_tokenizer *t, const struct arguments *a, const json_t *row, const char *where,
                                struct cairn_ids *ids, struct cairn_str *bytes, struct cairn_str *out, struct cairn_error *err)
{
    const json_t *text = json_object_get(row, "text");
    struct cairn_encode_opts opts = {0};
    enum cairn_status st;

    (void)bytes;
    if (!json_is_string(text))
        return cairn_fail(err, CAIRN_EDATA, "%s: expected {\"text\": a string}", where);
    if (a->literal)
        opts.literal_to = json_string_length(text);
    st = cairn_tokenizer_encode(t, json_string_value(text), json_string_length(text), &opts, ids, err);
    if (st != CAIRN_OK)
        return err ? cairn_error_prefix(err, "%s", where) : st;
    cairn_str_puts(out, "{\"ids\":[");
    for (int64_t i = 0; i < ids->n; i++) {
        if (i)
            cairn_str_putc(out, ',');
        put_id(out, ids->p[i]);
    }
    cairn_str_puts(out, "]}\n");
    return CAIRN_OK;
}

static enum cairn_status to_text(struct cairn_tokenizer *t, const struct arguments *a, const json_t *row, const char *where,
                                 struct cairn_ids *ids, struct cairn_str *bytes, struct cairn_str *out, struct cairn_error *err)
{
    const json_t *list = json_object_get(row, "ids"), *item;
    struct cairn_decode_opts opts = {.skip_special = a->skip_special};
    size_t i;

    if (!json_is_array(list))
        return cairn_fail(err, CAIRN_EDATA, "%s: expected {\"ids\": [integers]}", where);
    json_array_foreach(list, i, item)
    {
        json_int_t id = json_integer_value(item);

        if (!json_is_integer(item) || id < INT32_MIN || id > INT32_MAX)
            return cairn_fail(err, CAIRN_EDATA, "%s: ids[%zu]: expected an id", where, i);
        if (!cairn_ids_push(ids, (int32_t)id))
            return CAIRN_NOMEM(err);
    }
    if (cairn_tokenizer_decode(t, ids->p, ids->n, &opts, bytes, err) != CAIRN_OK)
        return cairn_error_prefix(err, "%s", where);
    cairn_str_puts(out, "{\"text\":");
    cairn_json_put_string(out, cairn_str_z(bytes), bytes->len);
    cairn_str_puts(out, "}\n");
    return CAIRN_OK;
}

static enum cairn_status flush(struct cairn_str *out, struct cairn_error *err)
{
    enum cairn_status st =
        out->oom ? CAIRN_NOMEM(err) : cairn_fd_write_all(STDOUT_FILENO, out->p, out->len, "standard output", err);

    cairn_str_clear(out);
    return st;
}

static enum cairn_status convert_lines(const struct arguments *a, convert_fn *convert, struct cairn_error *err)
{
    struct cairn_tokenizer *t = NULL;
    struct cairn_jsonl *lines = NULL;
    struct cairn_ids ids = {0};
    struct cairn_str bytes = {0}, out = {0};
    const json_t *row;
    enum cairn_status st;

    TRY(cairn_tokenizer_load(&t, a->tokenizer, err));
    TRY(cairn_jsonl_open(&lines, a->jsonl, err));
    while ((st = cairn_jsonl_next(lines, &row, err)) == CAIRN_OK && row) {
        ids.n = 0;
        cairn_str_clear(&bytes);
        if ((st = convert(t, a, row, cairn_jsonl_where(lines), &ids, &bytes, &out, err)) != CAIRN_OK)
            break;
        if (out.len >= FULL)
            TRY(flush(&out, err));
    }
    if (st == CAIRN_OK)
        st = flush(&out, err);
    else
        flush(&out, NULL); /* the first error is the one that is told */
out:
    cairn_str_free(&out);
    cairn_str_free(&bytes);
    cairn_ids_free(&ids);
    cairn_jsonl_close(lines);
    cairn_tokenizer_free(t);
    return st;
}

static int verb(int argc, char **argv, const struct argp *argp, convert_fn *convert)
{
    struct arguments a = {0};
    struct cairn_error err = {0};
    int done = 0, rc = cairn_cli_parse(argp, argc, argv, &a, &done);

    if (rc || done)
        return rc;
    if (!a.tokenizer)
        return cairn_cli_usage(argv[0], "which tokenizer?");
    if (!a.jsonl)
        return cairn_cli_usage(argv[0], "which --jsonl FILE?");
    signal(SIGPIPE, SIG_IGN); /* a reader that left is a failed write: 74 and a sentence */
    return convert_lines(&a, convert, &err) == CAIRN_OK ? CAIRN_OK : cairn_cli_fail(argv[0], &err);
}

int cairn_verb_tokenize(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"jsonl", OPT_JSONL, "FILE", 0, "JSON lines {\"text\":\"...\"}; /dev/stdin for a pipe", 0},
        {"literal", OPT_LITERAL, NULL, 0, "names of added tokens inside a text (<|user|>) are plain letters", 0},
        {"json", OPT_JSON, NULL, 0, "one JSON object a line (always so)", 0},
        {0}};
    static const struct argp argp = {.options = options,
                                     .parser = option,
                                     .args_doc = "TOKENIZER",
                                     .doc = "Text to ids: {\"text\"} in, {\"ids\"} out, a line for a line; no ids are added. "
                                            "TOKENIZER is a HuggingFace tokenizer.json or "
                                            "a directory that holds one.\v"
                                            "Examples:\n"
                                            "  echo '{\"text\":\"2 and 2\"}' | cairn tokenize --jsonl /dev/stdin \\\n"
                                            "      recipes/data/tokenizers/mini-glm\n"
                                            "  cairn tokenize recipes/data/tokenizers/cl100k-glm \\\n"
                                            "      --jsonl tests/fixtures/tokenizers/cl100k-glm/vectors.jsonl"};

    return verb(argc, argv, &argp, to_ids);
}

int cairn_verb_detokenize(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"jsonl", OPT_JSONL, "FILE", 0, "JSON lines {\"ids\":[...]}; /dev/stdin for a pipe", 0},
        {"skip-special", OPT_SKIP, NULL, 0, "leave out tokens that the file marks special", 0},
        {"json", OPT_JSON, NULL, 0, "one JSON object a line (always so)", 0},
        {0}};
    static const struct argp argp = {.options = options,
                                     .parser = option,
                                     .args_doc = "TOKENIZER",
                                     .doc = "Ids to text: {\"ids\"} in, {\"text\"} out, a line for a line. TOKENIZER is a "
                                            "HuggingFace tokenizer.json or a directory that "
                                            "holds one. Bytes that are not UTF-8 print as U+FFFD.\v"
                                            "Examples:\n"
                                            "  echo '{\"ids\":[17,323,220,17]}' | cairn detokenize --jsonl /dev/stdin \\\n"
                                            "      recipes/data/tokenizers/mini-glm\n"
                                            "  cairn detokenize recipes/data/tokenizers/cl100k-glm \\\n"
                                            "      --jsonl tests/fixtures/tokenizers/cl100k-glm/vectors.jsonl"};

    return verb(argc, argv, &argp, to_text);
}

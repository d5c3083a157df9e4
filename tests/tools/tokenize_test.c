/* tokenize_test.c - `cairn tokenize` and `cairn detokenize`: output line for line, exit codes, sentences, lost output. */
#include "verb.h"

#include "base/json.h"

#define MINI "recipes/data/tokenizers/mini-glm"

static void lines(void **state)
{
    static const struct {
        int back; /* detokenize */
        const char *option, *in;
        int code;
        const char *out, *sentence, *why;
    } rows[] = {
        {0, NULL, "{\"text\":\"2 and 2\"}\n{\"text\":\"\"}\n{\"text\":\"!\",\"id\":7}", 0,
         "{\"ids\":[17,323,220,17]}\n{\"ids\":[]}\n{\"ids\":[0]}\n", "", "texts"},
        {0, NULL, "{\"text\":\"<think>\\u0000\"}\n", 0, "{\"ids\":[2316,188]}\n", "", "added token, NUL"},
        {0, "--literal", "{\"text\":\"<think>\"}\n", 0, "{\"ids\":[27,339,771,29]}\n", "", "literal"},
        {0, "--json", "{\"text\":\"!\"}\n", 0, "{\"ids\":[0]}\n", "", "--json changes nothing"},
        {0, NULL, "", 0, "", "", "no lines"},
        {0, NULL, "{\"text\":\"!\"}\n{\"text\":7}\n", 65, "{\"ids\":[0]}\n", "in.jsonl:2: expected {\"text\"",
         "what went before is written"},
        {0, NULL, "{\"text\":\"!\"}\n{\"tex", 65, "{\"ids\":[0]}\n", "in.jsonl:2: ", "broken JSON"},
        {0, NULL, "{\"text\":\"!\"}\n\n", 65, "{\"ids\":[0]}\n", "in.jsonl:2: ", "blank line"},
        {0, NULL, "[]\n", 65, "", "in.jsonl:1: ", "no object"},
        {1, NULL, "{\"ids\":[17,323,220,17]}\n{\"ids\":[]}\n", 0, "{\"text\":\"2 and 2\"}\n{\"text\":\"\"}\n", "", "back"},
        {1, NULL, "{\"ids\":[0,2302,2316]}\n", 0, "{\"text\":\"!<|user|><think>\"}\n", "", "added tokens by name"},
        {1, "--skip-special", "{\"ids\":[0,2302,2316]}\n", 0, "{\"text\":\"!<think>\"}\n", "", "without special ones"},
        {1, NULL, "{\"ids\":[188,253]}\n", 0, "{\"text\":\"\\u0000\xef\xbf\xbd\"}\n", "", "half a character"},
        {1, NULL, "{\"ids\":[0]}\n{\"ids\":[0,2331]}\n", 65, "{\"text\":\"!\"}\n", "in.jsonl:2: id 2331 at index 1",
         "outside the vocabulary"},
        {1, NULL, "{\"ids\":[4611686018427387904]}\n", 65, "", "in.jsonl:1: ids[0]", "2^62"},
        {1, NULL, "{\"ids\":[1.0]}\n", 65, "", "in.jsonl:1: ids[0]", "a real"},
        {1, NULL, "{\"ids\":7}\n", 65, "", "in.jsonl:1: expected {\"ids\"", "no list"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *args[] = {rows[i].back ? "detokenize" : "tokenize", MINI, "--jsonl", in_path, rows[i].option, NULL};
        char *out, *err;
        int code;

        put(in_path, rows[i].in, strlen(rows[i].in));
        code = run(rows[i].back ? cairn_verb_detokenize : cairn_verb_tokenize, args, out_path);
        out = get(out_path);
        err = get(err_path);
        if (code != rows[i].code || strcmp(out, rows[i].out) || !strstr(err, rows[i].sentence) || (!code && *err))
            fail_msg("%s: exit %d, stdout \"%s\", stderr \"%s\"", rows[i].why, code, out, err);
        free(out);
        free(err);
    }
}

static void command_line(void **state)
{
    static const struct {
        const char *args[5];
        int code;
        const char *sentence;
    } rows[] = {
        {{"tokenize"}, 64, "which tokenizer"},
        {{"tokenize", MINI}, 64, "which --jsonl"},
        {{"tokenize", "--nonsense"}, 64, "nonsense"},
        {{"tokenize", MINI, "b", "--jsonl=x"}, 64, "arguments"},
        {{"tokenize", MINI, "--jsonl=/nonexistent/x"}, 65, "/nonexistent/x"},
        {{"tokenize", "/nonexistent/t", "--jsonl=/dev/null"}, 65, "/nonexistent/t"},
        {{"tokenize", "/tmp", "--jsonl=/dev/null"}, 65, "tokenizer.json"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int code = run(cairn_verb_tokenize, rows[i].args, out_path);
        char *err = get(err_path);

        if (code != rows[i].code || !strstr(err, rows[i].sentence))
            fail_msg("row %zu: exit %d, \"%s\"", i, code, err);
        free(err);
    }
}

/* Many lines (several writes), the result read back by the other verb; then the same into a full device. */
static void long_streams(void **state)
{
    const char *there[] = {"tokenize", MINI, "--jsonl", in_path, NULL}, *back[] = {"detokenize", MINI, "--jsonl", out_path, NULL};
    struct cairn_str in = {0};
    char again[80], *text;

    (void)state;
    snprintf(again, sizeof again, "%s/again", folder);
    for (int i = 0; i < 40000; i++)
        cairn_str_printf(&in, "{\"text\":\"line %d: caf\xc3\xa9 \\u0000 \\\"x\\\"\"}\n", i);
    put(in_path, in.p, in.len);
    assert_int_equal(run(cairn_verb_tokenize, there, out_path), 0);
    assert_true(cairn_file_size(out_path) > (2 << 20));
    assert_int_equal(run(cairn_verb_detokenize, back, again), 0);
    text = get(again);
    assert_int_equal(strlen(text), in.len);
    assert_memory_equal(text, in.p, in.len);
    free(text);
    cairn_str_free(&in);
    if (access("/dev/full", W_OK))
        return;
    assert_int_equal(run(cairn_verb_tokenize, there, "/dev/full"), 73);
    text = get(err_path);
    assert_non_null(strstr(text, "standard output"));
    free(text);
}

static void help_ends_with_examples(void **state)
{
    const char *args[] = {"tokenize", "--help", NULL};
    char *text;
    int examples = 0, in_examples = 0;

    (void)state;
    assert_int_equal(run(cairn_verb_tokenize, args, out_path), 0);
    text = get(out_path);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        assert_in_range(strlen(line), 0, 79); /* argp breaks longer lines, which breaks examples */
        in_examples |= !strcmp(line, "Examples:");
        examples += in_examples && strstr(line, "cairn tokenize ");
    }
    assert_int_equal(examples, 2);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines),
        cmocka_unit_test(command_line),
        cmocka_unit_test(long_streams),
        cmocka_unit_test(help_ends_with_examples),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}

/* tokenizer_file_test.c - files that are no tokenizers: broken, cut, damaged, too deep; each a sentence, never a crash. */
#include "tokenizers.h"

static void broken_files(void **state)
{
    static const struct {
        const char *from, *to, *sentence;
    } rows[] = {
        {"\"!\":0,", "\"!\":4611686018427387904,", "\"!\": expected an id"},
        {"\"!\":0,", "\"!\":4194304,", "\"!\": expected an id"},
        {"\"!\":0,", "\"!\":-1,", "\"!\": expected an id"},
        {"\"!\":0,", "\"!\":1,", "stands for two tokens"},
        {"\"!\":0,", "\"!\":0,\"!\":0,", "duplicate"},
        {"\"!\":0,", "\"!\":1e300,", "\"!\": expected an id"},
        {"\"!\":0,", "\"!\":\"0\",", "\"!\": expected an id"},
        {"\"!\":0,", "", "no token for the byte 0x21"},
        {"\"!\":0,", "\"\":0,", "an empty token"},
        {"\"id\":2295,", "\"id\":3,", "stands for two tokens"},
        {"\"id\":2295,", "\"id\":4611686018427387904,", "not in 0..4194303"},
        {"\"id\":2295,", "\"id\":99999999999999999999,", "integer"},
        {"\"content\":\"[MASK]\"", "\"content\":\"<|endoftext|>\"", "comes twice"},
        {"\"content\":\"[MASK]\"", "\"content\":\"\"", "expected content of 1 to"},
        {"\"content\":\"[MASK]\"", "\"content\":\"!\"", "has id 2296, model.vocab says 0"},
        {"\"single_word\":false", "\"single_word\":true", "single_word true is not supported"},
        {"\"single_word\":false", "\"double_word\":true", "unknown member \"double_word\""},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Lowercase\"}", "normalizer: Lowercase is not supported"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Sequence\"}", "normalizer: Sequence is not supported"},
        {"\"truncation\":null", "\"truncation\":{\"max_length\":5}", "truncation is not supported"},
        {"\"padding\":null", "\"padding\":{}", "padding is not supported"},
        {"\"version\":", "\"banner\":1,\"version\":", "unknown member \"banner\""},
        {"\"type\":\"Split\"", "\"type\":\"Metaspace\"", "Metaspace is not supported"},
        {"\"type\":\"Split\",", "", "without \"type\""},
        {"\"behavior\":\"Isolated\"", "\"behavior\":\"Removed\"", "behavior Removed is not supported"},
        {"\"invert\":false", "\"invert\":true", "invert true is not supported"},
        {"\"Regex\":", "\"String\":", "expected pattern"},
        {"(?!\\\\S)", "(?!\\\\S", "regular expression: "},
        {"\\\\p{L}", "\\\\w", "\"\\w\" is read differently"},
        {"\"use_regex\":false", "\"use_regex\":true", "use_regex true is not supported"},
        {"\"add_prefix_space\":false", "\"add_prefix_space\":true", "add_prefix_space true is not supported"},
        {"\"post_processor\":{\"type\":\"ByteLevel\"", "\"post_processor\":{\"type\":\"TemplateProcessing\"",
         "TemplateProcessing is not supported"},
        {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"WordPiece\"", "WordPiece is not supported"},
        {"\"type\":\"BPE\"", "\"type\":\"Unigram\"", "Unigram is not supported"},
        {"\"dropout\":null", "\"dropout\":0.1", "dropout is not supported"},
        {"\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"", "end_of_word_suffix is not supported"},
        {"\"continuing_subword_prefix\":null", "\"continuing_subword_prefix\":\"##\"",
         "continuing_subword_prefix is not supported"},
        {"\"byte_fallback\":false", "\"byte_fallback\":true", "byte_fallback true is not supported"},
        {"\"ignore_merges\":true", "\"ignore_merges\":1", "ignore_merges: expected true or false"},
        {"\"merges\":[", "\"merges\":[[\"zqzq\",\"a\"],", "merges[0]: \"zqzq\" is not in the vocabulary"},
        {"\"merges\":[", "\"merges\":[[\"a\",\"zqzq\"],", "merges[0]: \"zqzq\" is not in the vocabulary"},
        {"\"merges\":[", "\"merges\":[[\"q\",\"z\"],", "\"q\" + \"z\" make no token"},
        {"\"merges\":[", "\"merges\":[[\"a\"],", "merges[0]: expected"},
        {"\"merges\":[", "\"merges\":[\"a\",", "merges[0]: expected"},
        {"\"merges\":[", "\"merges\":[\"a b c\",", "merges[0]: expected"},
        {"\"merges\":[", "\"merges\":[\" b\",", "merges[0]: \"\" is not in the vocabulary"},
        {"\"merges\":[", "\"merges\":[7,", "merges[0]: expected"},
        {"\"merges\":[", "\"merges_too\":[", "unknown member \"merges_too\""},
        {"\"vocab\":{", "\"vocab\":[{", ""},
    };
    struct cairn_error err;
    char *text = NULL;
    size_t n = 0, m = 0;

    (void)state;
    assert_int_equal(cairn_file_read(MINI, 1 << 20, &text, &n, NULL), CAIRN_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct cairn_tokenizer *t = NULL;
        char *bad = replace(text, n, rows[i].from, rows[i].to, &m);

        if (cairn_tokenizer_parse(&t, bad, m, "bad.json", &err) != CAIRN_EDATA)
            fail_msg("row %zu: %s -> %s was accepted", i, rows[i].from, rows[i].to);
        assert_null(t);
        if (strncmp(err.text, "bad.json", 8) || !strstr(err.text, rows[i].sentence))
            fail_msg("row %zu: \"%s\" lacks \"%s\"", i, err.text, rows[i].sentence);
        free(bad);
    }
    free(text);
}

static void truncated_and_deep_files(void **state)
{
    struct cairn_tokenizer *t = NULL;
    struct cairn_str deep = {0};
    struct cairn_error err;
    char *text = NULL;
    size_t n = 0;

    (void)state;
    assert_int_equal(cairn_file_read(MINI, 1 << 20, &text, &n, NULL), CAIRN_OK);
    while (n && text[n - 1] == '\n')
        n--;
    for (size_t cut = 0; cut < n; cut += cut < 4000 ? 37 : 997)
        assert_int_equal(cairn_tokenizer_parse(&t, text, cut, "cut.json", &err), CAIRN_EDATA);
    assert_int_equal(cairn_tokenizer_parse(&t, text, n - 1, "cut.json", &err), CAIRN_EDATA);
    assert_null(t);
    for (int i = 0; i < 100000; i++)
        cairn_str_puts(&deep, "{\"model\":");
    assert_int_equal(cairn_tokenizer_parse(&t, deep.p, deep.len, "deep.json", &err), CAIRN_EDATA);
    assert_int_equal(cairn_tokenizer_parse(&t, "[]", 2, "array.json", &err), CAIRN_EDATA);
    assert_int_equal(cairn_tokenizer_load(&t, "tests/fixtures/no-such-tokenizer", &err), CAIRN_EDATA);
    assert_non_null(strstr(err.text, "no-such-tokenizer"));
    cairn_str_free(&deep);
    free(text);
}

/* One byte of a good file changed at random: a status or a tokenizer that encodes, never a crash. */
static void damaged_files(void **state)
{
    struct cairn_ids ids = {0};
    char *text = NULL;
    size_t n = 0;
    int good = 0;

    (void)state;
    assert_int_equal(cairn_file_read(MINI, 1 << 20, &text, &n, NULL), CAIRN_OK);
    for (uint32_t i = 0; i < 300; i++) {
        struct cairn_tokenizer *t = NULL;
        size_t at = draw(i, 8) % (i % 2 ? n : 6000);
        char kept = text[at];

        text[at] = (char)(draw(i, 9) % 94 + 33);
        ids.n = 0;
        if (cairn_tokenizer_parse(&t, text, n, "damaged.json", NULL) == CAIRN_OK) {
            good++;
            cairn_tokenizer_encode(t, text, 5000, NULL, &ids, NULL);
        }
        cairn_tokenizer_free(t);
        text[at] = kept;
    }
    print_message("# %d of 300 damaged files still load\n", good);
    cairn_ids_free(&ids);
    free(text);
}

/* What is wrong with a file is said as the whole reading says it. */
static void test_decoder_broken(void **state)
{
    static const struct {
        const char *from, *to;
    } row[] = {
        {"\"model\"", "\"modell\""},
        {"\"vocab\":{", "\"vocab\":[{"},
        {"\"merges\":[", "\"merges\":[[1],"},
        {"\"type\":\"BPE\"", "\"type\":\"X\""},
        {"\"vocab\":{\"", "\"vocab\":{\"\\q"},
        {"\"vocab\":{", "\"vocab\":{\"zz\":-1,"},
        {"\"vocab\":{", "\"vocab\":{\"zz\":1.5,"},
        {"\"vocab\":{", "\"vocab\":{\"zz\":99999999,"},
        {"\"vocab\":{", "\"vocab\":{\"\":5,"},
        {"\"added_tokens\"", "\"added_tokenz\""},
    };
    char name[] = "/tmp/tokenizer_test.XXXXXX";
    int fd = mkstemp(name);
    char *text;
    size_t n;

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(cairn_file_read(MINI, 64 << 20, &text, &n, NULL), CAIRN_OK);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char *at = strstr(text, row[i].from);
        struct cairn_error a = {0}, b = {0};
        struct cairn_tokenizer *t = NULL;
        enum cairn_status x, y;
        FILE *f = fopen(name, "w");

        if (!at)
            fail_msg("row %zu: mini-glm's file has no %s", i, row[i].from);
        fwrite(text, 1, (size_t)(at - text), f);
        fputs(row[i].to, f);
        fputs(at + strlen(row[i].from), f);
        fclose(f);
        x = cairn_tokenizer_load(&t, name, &a);
        cairn_tokenizer_free(t);
        t = NULL;
        y = cairn_tokenizer_load_decoder(&t, name, &b);
        cairn_tokenizer_free(t);
        if (row[i].from[1] == 'm' && row[i].from[2] == 'e') /* merges are not its business */
            assert_int_equal(y, CAIRN_OK);
        else if (x != CAIRN_EDATA || y != x || strcmp(a.text, b.text))
            fail_msg("row %zu: %s, and %s", i, a.text, b.text);
    }
    unlink(name);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_files),
        cmocka_unit_test(truncated_and_deep_files),
        cmocka_unit_test(damaged_files),
        cmocka_unit_test(test_decoder_broken),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

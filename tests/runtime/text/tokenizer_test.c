/* tokenizer_test.c - tokenizer.[ch]: every recorded vector, round trips, flags, threads.
 *
 * The vectors are from independent implementations (tests/fixtures/README.md).
 */
#include "tokenizers.h"

#include <pthread.h>
#include <time.h>
#include <utf8proc.h>

#include "base/json.h"

static double now_s(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* --- vectors --- */

static void check_vectors(const char *tokenizer, const char *vectors, int nfc, int expected)
{
    struct cairn_tokenizer *t = load(tokenizer);
    struct cairn_jsonl *r = NULL;
    struct cairn_ids ids = {0};
    struct cairn_str back = {0};
    const json_t *row;
    int count = 0;

    assert_int_equal(cairn_jsonl_open(&r, vectors, NULL), CAIRN_OK);
    while (cairn_jsonl_next(r, &row, NULL) == CAIRN_OK && row) {
        const json_t *text = json_object_get(row, "text"), *want = json_object_get(row, "ids");
        const char *p = json_string_value(text);
        size_t n = json_string_length(text);
        utf8proc_uint8_t *composed = NULL;

        ids.n = 0;
        cairn_str_clear(&back);
        assert_int_equal(cairn_tokenizer_encode(t, p, n, NULL, &ids, NULL), CAIRN_OK);
        if ((size_t)ids.n != json_array_size(want))
            fail_msg("%s: %lld ids, expected %zu", cairn_jsonl_where(r), (long long)ids.n, json_array_size(want));
        for (int64_t i = 0; i < ids.n; i++)
            if (ids.p[i] != json_integer_value(json_array_get(want, (size_t)i)))
                fail_msg("%s: id %lld is %d", cairn_jsonl_where(r), (long long)i, ids.p[i]);
        assert_int_equal(cairn_tokenizer_decode(t, ids.p, ids.n, NULL, &back, NULL), CAIRN_OK);
        if (nfc) {
            utf8proc_ssize_t m =
                utf8proc_map((const utf8proc_uint8_t *)p, (utf8proc_ssize_t)n, &composed, UTF8PROC_STABLE | UTF8PROC_COMPOSE);

            assert_true(m >= 0);
            p = (const char *)composed;
            n = (size_t)m;
        }
        if (back.len != n || (n && memcmp(back.p, p, n)))
            fail_msg("%s: decoding gives other bytes", cairn_jsonl_where(r));
        free(composed);
        count++;
    }
    assert_int_equal(count, expected); /* also says that the file was read to its end */
    cairn_jsonl_close(r);
    cairn_ids_free(&ids);
    cairn_str_free(&back);
    cairn_tokenizer_free(t);
}

static void vectors_cl100k_glm(void **state)
{
    (void)state;
    check_vectors(GLM, "tests/fixtures/tokenizers/cl100k-glm/vectors.jsonl", 0, 375);
}

static void vectors_qwen3(void **state)
{
    (void)state;
    check_vectors(QWEN, "tests/fixtures/tokenizers/qwen3/vectors.jsonl", 1, 362);
}

static void vectors_mini_glm(void **state)
{
    (void)state;
    check_vectors(MINI, "tests/fixtures/tokenizers/mini-glm/vectors.jsonl", 0, 282);
}

/* --- the vocabulary --- */

static void names_and_flags(void **state)
{
    struct cairn_tokenizer *t = load(MINI);
    size_t len = 0;

    (void)state;
    assert_int_equal(cairn_tokenizer_vocab_size(t), 2331);
    assert_int_equal(cairn_tokenizer_token_id(t, "<|endoftext|>"), 2295);
    assert_int_equal(cairn_tokenizer_token_id(t, "<think>"), 2316);
    assert_int_equal(cairn_tokenizer_token_id(t, "!"), 0);
    assert_int_equal(cairn_tokenizer_token_id(t, "<|nobody|>"), -1);
    assert_true(cairn_tokenizer_is_special(t, 2295));
    assert_false(cairn_tokenizer_is_special(t, 2316));
    assert_true(cairn_tokenizer_is_added(t, 2316));
    assert_false(cairn_tokenizer_is_added(t, 0));
    assert_string_equal(cairn_tokenizer_token_bytes(t, 2330, &len) ? "there" : "missing", "there");
    assert_int_equal(len, strlen("<|video|>"));
    assert_null(cairn_tokenizer_token_bytes(t, 2331, &len));
    assert_null(cairn_tokenizer_token_bytes(t, -1, &len));
    cairn_tokenizer_free(t);
}

static void decode_refuses_unknown_ids(void **state)
{
    static const struct {
        int32_t ids[3];
        const char *sentence;
    } rows[] = {
        {{5, 2331, 0}, "id 2331 at index 1"}, {{-1, 0, 0}, "id -1 at index 0"}, {{0, 0, INT32_MAX}, "id 2147483647 at index 2"}};
    struct cairn_tokenizer *t = load(MINI);
    struct cairn_str out = {0};
    struct cairn_error err;

    (void)state;
    cairn_str_puts(&out, "before");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(cairn_tokenizer_decode(t, rows[i].ids, 3, NULL, &out, &err), CAIRN_EDATA);
        assert_non_null(strstr(err.text, rows[i].sentence));
        assert_string_equal(out.p, "before"); /* as it was */
    }
    cairn_str_free(&out);
    cairn_tokenizer_free(t);
}

static void decode_skips_special(void **state)
{
    struct cairn_tokenizer *t = load(MINI);
    struct cairn_decode_opts opts = {.skip_special = 1};
    int32_t ids[] = {2302, 0, 2316, 2295}; /* <|user|> ! <think> <|endoftext|> */
    struct cairn_str out = {0};

    (void)state;
    assert_int_equal(cairn_tokenizer_decode(t, ids, 4, &opts, &out, NULL), CAIRN_OK);
    assert_string_equal(out.p, "!<think>"); /* added, but not special: stays */
    cairn_str_free(&out);
    cairn_tokenizer_free(t);
}

static void literal_bytes_hold_no_added_tokens(void **state)
{
    static const struct {
        const char *text;
        size_t from, to;
        int users, ends; /* how many <|user|> and <|endoftext|> ids come out */
        const char *why;
    } rows[] = {
        {"<|user|>a<|endoftext|>", 0, 0, 1, 1, "nothing literal"},
        {"<|user|>a<|endoftext|>", 0, 22, 0, 0, "all of it"},
        {"<|user|><|user|><|user|>", 8, 16, 2, 0, "the middle one"},
        {"<|user|><|user|><|user|>", 7, 16, 1, 0, "touching the last byte of the first"},
        {"<|user|><|user|><|user|>", 8, 17, 1, 0, "touching the first byte of the last"},
        {"<|user|>x", 3, 3, 1, 0, "empty range"},
    };
    struct cairn_tokenizer *t = load(MINI);
    struct cairn_ids ids = {0};
    struct cairn_str back = {0};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct cairn_encode_opts opts = {rows[i].from, rows[i].to};
        int users = 0, ends = 0;

        ids.n = 0;
        cairn_str_clear(&back);
        assert_int_equal(cairn_tokenizer_encode(t, rows[i].text, strlen(rows[i].text), &opts, &ids, NULL), CAIRN_OK);
        for (int64_t k = 0; k < ids.n; k++) {
            users += ids.p[k] == 2302;
            ends += ids.p[k] == 2295;
        }
        if (users != rows[i].users || ends != rows[i].ends)
            fail_msg("%s: %d users, %d ends", rows[i].why, users, ends);
        assert_int_equal(cairn_tokenizer_decode(t, ids.p, ids.n, NULL, &back, NULL), CAIRN_OK);
        assert_string_equal(back.p, rows[i].text);
    }
    cairn_ids_free(&ids);
    cairn_str_free(&back);
    cairn_tokenizer_free(t);
}

/* --- any bytes --- */

/* Random bytes, random ASCII, pieces of multi-byte characters and added tokens: encoding succeeds and decodes to the
 * same bytes (NFC only changes valid non-ASCII text, so qwen3 gets bytes below 0x80 or invalid ones). */
static void random_bytes(void **state)
{
    static const char *const parts[] = {"<|user|>", "<|", "\xed\xa0\x80", "\xf0\x9f\x98\x80", "\xff",  "\xc3", "\xe4\xb8\xad",
                                        "\0",       "'s", "  \n",         "123456",           "<think"};
    static const size_t lengths[] = {8, 2, 3, 4, 1, 1, 3, 1, 2, 3, 6, 6};
    const char *const files[] = {MINI, GLM, QWEN};
    struct cairn_ids ids = {0};
    struct cairn_str text = {0}, back = {0};

    (void)state;
    for (int f = 0; f < 3; f++) {
        struct cairn_tokenizer *t = load(files[f]);

        for (uint32_t i = 0; i < 3000; i++) {
            uint32_t n = draw(i, 0) % 60;

            cairn_str_clear(&text);
            cairn_str_clear(&back);
            ids.n = 0;
            for (uint32_t k = 1; k <= n; k++) {
                uint32_t x = draw(i, k), pick = (x >> 8) % 12;

                if (i % 3 == 0)
                    cairn_str_putc(&text, (char)x);
                else if (i % 3 == 1)
                    cairn_str_putc(&text, (char)(x & 0x7f));
                else
                    cairn_str_add(&text, parts[pick], lengths[pick]);
            }
            assert_int_equal(cairn_tokenizer_encode(t, text.p ? text.p : "", text.len, NULL, &ids, NULL), CAIRN_OK);
            for (int64_t k = 0; k < ids.n; k++)
                assert_in_range(ids.p[k], 0, cairn_tokenizer_vocab_size(t) - 1);
            assert_int_equal(cairn_tokenizer_decode(t, ids.p, ids.n, NULL, &back, NULL), CAIRN_OK);
            if (f < 2 || i % 3 == 1) {
                assert_int_equal(back.len, text.len);
                assert_true(!text.len || !memcmp(back.p, text.p, text.len));
            }
        }
        cairn_tokenizer_free(t);
    }
    cairn_ids_free(&ids);
    cairn_str_free(&text);
    cairn_str_free(&back);
}

static void long_pre_tokens(void **state)
{
    struct cairn_tokenizer *t = load(GLM);
    size_t n = (size_t)4 << 20;
    char *text = malloc(n);
    struct cairn_ids ids = {0};
    struct cairn_str back = {0};
    double start;

    (void)state;
    assert_non_null(text);
    for (int kind = 0; kind < 3; kind++) {
        for (size_t i = 0; i < n; i++)
            text[i] = kind == 0 ? 'a' : kind == 1 ? (char)('a' + draw((uint32_t)i / 4, 1) % 26) : ' ';
        ids.n = 0;
        cairn_str_clear(&back);
        start = now_s();
        assert_int_equal(cairn_tokenizer_encode(t, text, n, NULL, &ids, NULL), CAIRN_OK);
        print_message("# one pre-token of 4 MiB, kind %d: %.2f s, %lld ids\n", kind, now_s() - start, (long long)ids.n);
        assert_int_equal(cairn_tokenizer_decode(t, ids.p, ids.n, NULL, &back, NULL), CAIRN_OK);
        assert_int_equal(back.len, n);
        assert_memory_equal(back.p, text, n);
    }
    free(text);
    cairn_ids_free(&ids);
    cairn_str_free(&back);
    cairn_tokenizer_free(t);
}

/* --- added tokens that swallow blanks, and those with normalized true --- */

static void added_token_flags(void **state)
{
    static const struct {
        const char *from, *to, *text, *decoded;
    } rows[] = {
        {"\"content\":\"[MASK]\",\"single_word\":false,\"lstrip\":false",
         "\"content\":\"[MASK]\",\"single_word\":false,\"lstrip\":true", "a \t\xe3\x80\x80[MASK] b", "a[MASK] b"},
        {"\"content\":\"[MASK]\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false",
         "\"content\":\"[MASK]\",\"single_word\":false,\"lstrip\":false,\"rstrip\":true", "a [MASK] \n\xc2\xa0 b", "a [MASK]b"},
    };
    struct cairn_ids ids = {0};
    struct cairn_str back = {0};
    char *text = NULL;
    size_t n = 0, m = 0;

    (void)state;
    assert_int_equal(cairn_file_read(MINI, 1 << 20, &text, &n, NULL), CAIRN_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct cairn_tokenizer *t = NULL;
        char *other = replace(text, n, rows[i].from, rows[i].to, &m);

        ids.n = 0;
        cairn_str_clear(&back);
        assert_int_equal(cairn_tokenizer_parse(&t, other, m, "strip.json", NULL), CAIRN_OK);
        assert_int_equal(cairn_tokenizer_encode(t, rows[i].text, strlen(rows[i].text), NULL, &ids, NULL), CAIRN_OK);
        assert_int_equal(cairn_tokenizer_decode(t, ids.p, ids.n, NULL, &back, NULL), CAIRN_OK);
        assert_string_equal(back.p, rows[i].decoded);
        cairn_tokenizer_free(t);
        free(other);
    }
    cairn_ids_free(&ids);
    cairn_str_free(&back);
    free(text);
}

/* --- threads --- */

struct worker {
    struct cairn_tokenizer *t;
    const char *text;
    size_t n;
    const struct cairn_ids *want;
    int differs;
};

static void *encode_again(void *arg)
{
    struct worker *w = arg;
    struct cairn_ids ids = {0};

    for (int i = 0; i < 20; i++) {
        ids.n = 0;
        if (cairn_tokenizer_encode(w->t, w->text, w->n, NULL, &ids, NULL) != CAIRN_OK || ids.n != w->want->n ||
            memcmp(ids.p, w->want->p, (size_t)ids.n * sizeof *ids.p))
            w->differs = 1;
    }
    cairn_ids_free(&ids);
    return NULL;
}

static void threads_agree(void **state)
{
    struct cairn_tokenizer *t = load(QWEN);
    struct cairn_ids want = {0};
    struct worker w[4];
    pthread_t id[4];
    char *text = NULL;
    size_t n = 0;

    (void)state;
    assert_int_equal(cairn_file_read("tests/fixtures/tokenizers/qwen3/vectors.jsonl", 1 << 20, &text, &n, NULL), CAIRN_OK);
    assert_int_equal(cairn_tokenizer_encode(t, text, n, NULL, &want, NULL), CAIRN_OK);
    for (int i = 0; i < 4; i++) {
        w[i] = (struct worker){t, text, n, &want, 0};
        assert_int_equal(pthread_create(&id[i], NULL, encode_again, &w[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(id[i], NULL);
        assert_false(w[i].differs);
    }
    cairn_ids_free(&want);
    free(text);
    cairn_tokenizer_free(t);
}

/* --- speed: printed, not judged --- */

static void speed(void **state)
{
    const char *const files[] = {MINI, GLM, QWEN};
    const char *const corpora[] = {"tests/fixtures/tokenizers/plain.txt", "tests/fixtures/tokenizers/qwen3/vectors.jsonl"};

    (void)state;
    for (int f = 0; f < 3; f++) {
        double start = now_s();
        struct cairn_tokenizer *t = load(files[f]);

        print_message("# %s: loaded in %.0f ms\n", files[f], 1e3 * (now_s() - start));
        for (int c = 0; c < 2; c++) {
            struct cairn_ids ids = {0};
            char *text = NULL;
            size_t n = 0, bytes = 0;

            assert_int_equal(cairn_file_read(corpora[c], 16 << 20, &text, &n, NULL), CAIRN_OK);
            for (start = now_s(); bytes < (size_t)4 << 20; bytes += n) {
                ids.n = 0;
                assert_int_equal(cairn_tokenizer_encode(t, text, n, NULL, &ids, NULL), CAIRN_OK);
            }
            print_message("#   %s: %.1f MB/s, %.2f bytes an id\n", corpora[c], 1e-6 * (double)bytes / (now_s() - start),
                          (double)n / (double)ids.n);
            free(text);
            cairn_ids_free(&ids);
        }
        cairn_tokenizer_free(t);
    }
}

/* --- decoding only --- */

static void test_decoder(void **state)
{
    static const char *const path[] = {MINI, GLM, QWEN};

    (void)state;
    for (size_t i = 0; i < sizeof path / sizeof *path; i++) {
        struct cairn_tokenizer *t = load(path[i]), *d = NULL;
        struct cairn_error err = {0};
        struct cairn_ids ids = {0};
        int32_t n = cairn_tokenizer_vocab_size(t);

        if (cairn_tokenizer_load_decoder(&d, path[i], &err) != CAIRN_OK)
            fail_msg("%s", err.text);
        assert_int_equal(n, cairn_tokenizer_vocab_size(d));
        for (int32_t id = 0; id < n; id++) {
            size_t a, b;
            const char *x = cairn_tokenizer_token_bytes(t, id, &a), *y = cairn_tokenizer_token_bytes(d, id, &b);

            assert_true((x == NULL) == (y == NULL));
            if (x && (a != b || memcmp(x, y, a)))
                fail_msg("%s: id %d has other bytes", path[i], id);
            assert_true(cairn_tokenizer_is_added(t, id) == cairn_tokenizer_is_added(d, id) &&
                        cairn_tokenizer_is_special(t, id) == cairn_tokenizer_is_special(d, id));
            if (x && cairn_tokenizer_is_added(t, id))
                assert_int_equal(cairn_tokenizer_token_id(t, x), cairn_tokenizer_token_id(d, x));
        }
        assert_int_equal(cairn_tokenizer_encode(d, "a", 1, NULL, &ids, &err), CAIRN_EBUG);
        cairn_tokenizer_free(t);
        cairn_tokenizer_free(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_cl100k_glm),
        cmocka_unit_test(vectors_qwen3),
        cmocka_unit_test(vectors_mini_glm),
        cmocka_unit_test(names_and_flags),
        cmocka_unit_test(decode_refuses_unknown_ids),
        cmocka_unit_test(decode_skips_special),
        cmocka_unit_test(literal_bytes_hold_no_added_tokens),
        cmocka_unit_test(random_bytes),
        cmocka_unit_test(long_pre_tokens),
        cmocka_unit_test(added_token_flags),
        cmocka_unit_test(threads_agree),
        cmocka_unit_test(test_decoder),
        cmocka_unit_test(speed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* split_test.c - split.[ch]: the hand-written ways cut where pcre2 cuts; what pcre2 would read otherwise is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "base/str.h"
#include "text/split.h"

static uint32_t draw(uint32_t a, uint32_t b)
{
    struct cairn_philox_key key = {.seed = 11, .purpose = CAIRN_PURPOSE_PROBE};
    uint32_t out[4];

    cairn_philox(&key, a, b, 0, out);
    return out[0];
}

struct pair {
    struct cairn_split *hand, *regex;
    struct cairn_split_work *hand_work, *regex_work;
};

static void pair_open(struct pair *p, const char *pattern)
{
    assert_int_equal(cairn_split_create(&p->hand, pattern, strlen(pattern), 0, NULL), CAIRN_OK);
    assert_int_equal(cairn_split_create(&p->regex, pattern, strlen(pattern), 1, NULL), CAIRN_OK);
    assert_true(cairn_split_is_fast(p->hand));
    assert_false(cairn_split_is_fast(p->regex));
    assert_non_null(p->hand_work = cairn_split_work_create(p->hand));
    assert_non_null(p->regex_work = cairn_split_work_create(p->regex));
}

static void pair_close(struct pair *p)
{
    cairn_split_work_destroy(p->hand_work);
    cairn_split_work_destroy(p->regex_work);
    cairn_split_destroy(p->hand);
    cairn_split_destroy(p->regex);
}

static void same_cuts(struct pair *p, const char *text, size_t n)
{
    for (size_t at = 0, a = 0, b = 0; at < n; at = a) {
        assert_int_equal(cairn_split_next(p->hand, p->hand_work, text, n, at, &a, NULL), CAIRN_OK);
        assert_int_equal(cairn_split_next(p->regex, p->regex_work, text, n, at, &b, NULL), CAIRN_OK);
        if (a != b || a <= at || a > n)
            fail_msg("at byte %zu of \"%.*s\": %zu by hand, %zu by pcre2", at, (int)n, text, a, b);
    }
}

/* Text of code points drawn from where things happen: ASCII, white space of all kinds, line breaks, apostrophes with
 * letters, digits of several scripts, and anything. */
static void random_text(struct cairn_str *s, uint32_t seed)
{
    static const uint32_t odd[] = {9,      10,     11,     12,     13,      ' ',    ' ',    0x85,   0xa0,   0x1680, 0x180e,
                                   0x2000, 0x200a, 0x200b, 0x2028, 0x2029,  0x202f, 0x205f, 0x3000, 0xfeff, 0,      '\'',
                                   '\'',   '\'',   's',    'S',    't',     'r',    'E',    'v',    'l',    'L',    'm',
                                   'd',    0x17f,  0x212a, 0x2019, '1',     '2',    0xb2,   0xbd,   0x663,  0x2167, 0x4e00,
                                   0x301,  0xe9,   0xdf,   0x130,  0x1f600, '.',    '-',    '\r',   '\n',   'a',    0x10ffff};
    uint32_t n = draw(seed, 0) % 40 + 1;

    cairn_str_clear(s);
    for (uint32_t i = 1; i <= n; i++) {
        uint32_t x = draw(seed, i), c = x >> 4;

        if (x % 16 < 8)
            c = odd[c % (sizeof odd / sizeof *odd)];
        else if (x % 16 < 12)
            c %= 128;
        else if (x % 16 < 14)
            c %= 0x3000;
        else
            c %= 0x110000;
        cairn_str_put_utf8(s, c >= 0xd800 && c <= 0xdfff ? 'x' : c);
    }
}

static void random_texts(void **state)
{
    const char *const patterns[] = {CAIRN_SPLIT_GLM, CAIRN_SPLIT_QWEN};
    struct cairn_str text = {0};

    (void)state;
    for (int k = 0; k < 2; k++) {
        struct pair p;

        pair_open(&p, patterns[k]);
        for (uint32_t i = 0; i < 60000; i++) {
            random_text(&text, i);
            same_cuts(&p, text.p, text.len);
        }
        pair_close(&p);
    }
    cairn_str_free(&text);
}

/* Every code point, alone and beside one of each class. */
static void every_code_point(void **state)
{
    static const char *const beside[] = {"", "a", "7", " ", "\n", ".", "'"};
    struct cairn_str text = {0};
    struct pair p;

    (void)state;
    pair_open(&p, CAIRN_SPLIT_GLM);
    for (uint32_t c = 0; c < 0x110000; c++) {
        if ((c >= 0xd800 && c <= 0xdfff) || (c > 0x32000 && c < 0xe0000 && c % 64))
            continue; /* the planes that nobody uses: one in 64 */
        cairn_str_clear(&text);
        cairn_str_puts(&text, beside[c % 7]);
        cairn_str_put_utf8(&text, c);
        cairn_str_puts(&text, beside[(c / 7 + c) % 7]);
        cairn_str_put_utf8(&text, c);
        same_cuts(&p, text.p, text.len);
    }
    pair_close(&p);
    cairn_str_free(&text);
}

#define THREADS 4

struct walk {
    struct pair p;
    uint32_t seed;
    atomic_int *ready;
    int64_t wrong, cuts;
};

/* Code points of all blocks, each thread's in an order of its own. */
static void *walk(void *arg)
{
    struct walk *w = arg;
    struct cairn_str text = {0};

    for (uint32_t i = 0, c; i < 0x1100; i++) {
        c = i * (2 * w->seed + 1) % 0x1100 * 256 + (i * 7 + w->seed * 31) % 256;
        cairn_str_putc(&text, '7');
        cairn_str_put_utf8(&text, c < 0xd800 || c > 0xdfff ? c : 'x');
    }
    for (atomic_fetch_add(w->ready, 1); atomic_load(w->ready) < THREADS;)
        ;
    for (size_t at = 0, a = 0, b = 0; at < text.len && !w->wrong; at = a, w->cuts++)
        w->wrong += cairn_split_next(w->p.hand, w->p.hand_work, text.p, text.len, at, &a, NULL) != CAIRN_OK ||
                    cairn_split_next(w->p.regex, w->p.regex_work, text.p, text.len, at, &b, NULL) != CAIRN_OK || a != b || a <= at;
    cairn_str_free(&text);
    return NULL;
}

/* Threads meet characters of blocks that nobody has met before, at once: so this comes before all other tests. */
static void threads_meet_new_blocks(void **state)
{
    struct walk w[THREADS] = {0};
    pthread_t thread[THREADS];
    atomic_int ready = 0;

    (void)state;
    for (int i = 0; i < THREADS; i++) {
        w[i].seed = (uint32_t)i * 3; /* 2 * seed + 1 shares no factor with 0x1100 = 2^8 * 17 */
        w[i].ready = &ready;
        pair_open(&w[i].p, CAIRN_SPLIT_GLM);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, walk, &w[i]), 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(w[i].wrong, 0);
        assert_true(w[i].cuts > 1000);
        pair_close(&w[i].p);
    }
}

static void cuts(void **state)
{
    static const struct {
        const char *pattern, *text, *cut; /* cut: the text with | between pre-tokens */
    } rows[] = {
        {CAIRN_SPLIT_GLM, "Hello world's 12345  x\n\n y", "Hello| world|'s| |123|45| | x|\n\n| y"},
        {CAIRN_SPLIT_QWEN, "a 123", "a| |1|2|3"},
        {CAIRN_SPLIT_GLM, "I'LL don't 'sup", "I|'LL| don|'t| '|sup"},
        {CAIRN_SPLIT_GLM, "it'\xc5\xbf", "it|'\xc5\xbf"},
        {CAIRN_SPLIT_GLM, "  \n  \t", "  \n|  \t"},
        {CAIRN_SPLIT_GLM, " !?\r\n\r\nx", " !?\r\n\r\n|x"},
        {CAIRN_SPLIT_GLM,
         "a \xe1\xa0\x8e"
         "b",
         "a| \xe1\xa0\x8e|b"},             /* U+180E is no white space */
        {"\\p{L}+", "..ab..", "..|ab|.."}, /* gaps are pre-tokens */
        {"a*", "baac", "b|aa|c"},          /* nothing matches before b and after aa */
        {"[^\\S]+",
         "a \xc2\x85"
         "b",
         "a| \xc2\x85|b"},
        {"^.*$", "ab\ncd", "ab|\n|cd"}, /* ^ and $ at every line, as Oniguruma has it */
    };
    struct cairn_str got = {0};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int by_regex = 0; by_regex < 2; by_regex++) {
            size_t n = strlen(rows[i].text);
            struct cairn_split *s = NULL;
            struct cairn_split_work *w;

            assert_int_equal(cairn_split_create(&s, rows[i].pattern, strlen(rows[i].pattern), by_regex, NULL), CAIRN_OK);
            w = cairn_split_work_create(s);
            cairn_str_clear(&got);
            for (size_t at = 0, end; at < n; at = end) {
                assert_int_equal(cairn_split_next(s, w, rows[i].text, n, at, &end, NULL), CAIRN_OK);
                cairn_str_puts(&got, at ? "|" : "");
                cairn_str_add(&got, rows[i].text + at, end - at);
            }
            assert_string_equal(got.p, rows[i].cut);
            cairn_split_work_destroy(w);
            cairn_split_destroy(s);
        }
    cairn_str_free(&got);
}

static void refused(void **state)
{
    static const struct {
        const char *pattern, *sentence;
    } rows[] = {
        {"\\w+", "\"\\w\""},       {"a\\b", "\"\\b\""},       {"\\h", "\"\\h\""},           {"\\1", "\"\\1\""},
        {"[a[b]]", "\"[b\""},      {"[a&&b]", "\"&&\""},      {"(?m:.)", "\"(?m\""},        {"(*UCP)a", "\"(*\""},
        {"a{,3}", "\"{,3}"},       {"a{1,3}+", "\"{1,3}+\""}, {"[]a]", "\"[]\""},           {"[^]a]", "\"^]\""},
        {"(a", "missing closing"}, {"a\\", "backslash"},      {"\\p{Nonsense}", "unknown"}, {"\\u12", "\"\\u\""},
    };
    struct cairn_split *s = NULL;
    struct cairn_error err;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (cairn_split_create(&s, rows[i].pattern, strlen(rows[i].pattern), 0, &err) != CAIRN_EDATA)
            fail_msg("%s was accepted", rows[i].pattern);
        if (!strstr(err.text, rows[i].sentence))
            fail_msg("%s: \"%s\" lacks %s", rows[i].pattern, err.text, rows[i].sentence);
    }
    assert_int_equal(cairn_split_create(&s, "a\0b", 3, 0, &err), CAIRN_EDATA);
    assert_null(s);
}

/* An expression that backtracks without end: a status. */
static void catastrophe(void **state)
{
    static const char pattern[] = "(a+a+)+b";
    struct cairn_split *s = NULL;
    struct cairn_split_work *w;
    char text[4000];
    size_t end = 0;
    struct cairn_error err;

    (void)state;
    memset(text, 'a', sizeof text);
    assert_int_equal(cairn_split_create(&s, pattern, sizeof pattern - 1, 0, NULL), CAIRN_OK);
    w = cairn_split_work_create(s);
    if (cairn_split_next(s, w, text, sizeof text, 0, &end, &err) == CAIRN_OK)
        assert_int_equal(end, sizeof text); /* a pcre2 that sees that there is no b at all */
    else
        assert_non_null(strstr(err.text, "pcre2 gave up"));
    cairn_split_work_destroy(w);
    cairn_split_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_meet_new_blocks), cmocka_unit_test(cuts),    cmocka_unit_test(random_texts),
        cmocka_unit_test(every_code_point),        cmocka_unit_test(refused), cmocka_unit_test(catastrophe),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

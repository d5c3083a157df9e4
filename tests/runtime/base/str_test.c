/* str_test.c - strings, strict numbers, spelling hints, UTF-8. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

static void growing(void **state)
{
    struct cairn_str s = {0};
    char *p;

    (void)state;
    assert_string_equal(cairn_str_z(&s), "");
    for (int i = 0; i < 1000; i++)
        cairn_str_printf(&s, "%d,", i);
    assert_int_equal(s.len, 3890);
    assert_int_equal(strlen(s.p), s.len);
    cairn_str_clear(&s);
    assert_string_equal(cairn_str_z(&s), "");
    cairn_str_add(&s, "a\0b", 3);
    cairn_str_putc(&s, 'c');
    cairn_str_puts(&s, "");
    assert_int_equal(s.len, 4);
    assert_memory_equal(s.p, "a\0bc", 5);
    p = cairn_str_take(&s);
    assert_memory_equal(p, "a\0bc", 5);
    free(p);
    assert_null(s.p);
    p = cairn_str_take(&s); /* empty: still a string */
    assert_string_equal(p, "");
    free(p);
    cairn_str_add(&s, "x", SIZE_MAX); /* cannot be had: told once, the rest is dropped */
    cairn_str_puts(&s, "y");
    assert_true(s.oom);
    assert_int_equal(s.len, 0);
    assert_null(cairn_str_take(&s));
    assert_false(s.oom);
    p = cairn_format("%s-%d", "step", 3);
    assert_string_equal(p, "step-3");
    free(p);
}

static void ends(void **state)
{
    (void)state;
    assert_true(cairn_starts_with("model.layers", "model."));
    assert_true(cairn_starts_with("x", ""));
    assert_false(cairn_starts_with("mo", "model"));
    assert_true(cairn_ends_with("a.h5", ".h5"));
    assert_false(cairn_ends_with("h5", ".h5"));
}

static void integers(void **state)
{
    static const struct {
        const char *s;
        int ok_u, ok_i;
        int64_t v;
    } t[] = {
        {"0", 1, 1, 0},
        {"42", 1, 1, 42},
        {"-42", 0, 1, -42},
        {"+7", 0, 1, 7},
        {"9223372036854775807", 1, 1, INT64_MAX},
        {"-9223372036854775808", 0, 1, INT64_MIN},
        {"9223372036854775808", 1, 0, 0},
        {"-9223372036854775809", 0, 0, 0},
        {"18446744073709551616", 0, 0, 0},
        {"", 0, 0, 0},
        {"-", 0, 0, 0},
        {" 1", 0, 0, 0},
        {"1 ", 0, 0, 0},
        {"1e3", 0, 0, 0},
        {"0x10", 0, 0, 0},
        {"--1", 0, 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        int64_t v = 99;
        uint64_t u = 99;

        assert_int_equal(cairn_parse_i64(t[i].s, &v), t[i].ok_i);
        assert_true(v == (t[i].ok_i ? t[i].v : 99));
        assert_int_equal(cairn_parse_u64(t[i].s, &u), t[i].ok_u);
        assert_true(t[i].ok_u || u == 99);
    }
}

static void doubles(void **state)
{
    static const struct {
        const char *s;
        int ok;
        double v;
    } t[] = {
        {"1", 1, 1}, {"-1.5e-3", 1, -1.5e-3}, {".5", 1, 0.5}, {"5.", 1, 5}, {"1e308", 1, 1e308}, {"1e309", 0, 0}, {"inf", 0, 0},
        {"nan", 0, 0}, {"0x1p3", 0, 0}, {"", 0, 0}, {".", 0, 0}, {"1e", 0, 0}, {" 1", 0, 0}, {"1 ", 0, 0}, {"1,5", 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        double v = 0;

        assert_int_equal(cairn_parse_double(t[i].s, &v), t[i].ok);
        assert_true(v == t[i].v);
    }
}

static void nearest(void **state)
{
    static const char *const names[] = {"learning_rate", "warmup_updates", "clip", "loss"};

    (void)state;
    assert_int_equal(cairn_edit_distance("kitten", "sitting"), 3);
    assert_int_equal(cairn_edit_distance("", "abc"), 3);
    assert_int_equal(cairn_edit_distance("abc", "abc"), 0);
    assert_int_equal(cairn_edit_distance("abc", "acb"), 1);
    assert_int_equal(cairn_edit_distance("ab", "ba"), 1);
    assert_int_equal(cairn_edit_distance("ca", "abc"), 3); /* swapped letters are not parted again */
    assert_int_equal(cairn_edit_distance("abcdef", "badcfe"), 3);
    assert_string_equal(cairn_nearest("learnin_rat", names, 4), "learning_rate");
    assert_string_equal(cairn_nearest("laernign_rate", names, 4), "learning_rate");
    assert_null(cairn_nearest("learn_rte", names, 4)); /* four letters are missing */
    assert_string_equal(cairn_nearest("los", names, 4), "loss");
    assert_string_equal(cairn_nearest("lsos", names, 4), "loss");
    assert_null(cairn_nearest("lot", names, 4));
    assert_null(cairn_nearest("temperature", names, 4));
    assert_null(cairn_nearest("", names, 4));
    assert_null(cairn_nearest("x", names, 0));
}

static void utf8(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        int32_t cp;
        size_t used;
        const char *why;
    } t[] = {
        {"A", 1, 'A', 1, "ascii"},
        {"\xC3\xA9", 2, 0xE9, 2, "two bytes"},
        {"\xE4\xBD\xA0", 3, 0x4F60, 3, "three"},
        {"\xF0\x9F\xAA\xA8", 4, 0x1FAA8, 4, "four"},
        {"\xF4\x8F\xBF\xBF", 4, 0x10FFFF, 4, "last"},
        {"\xF4\x90\x80\x80", 4, -1, 1, "beyond"},
        {"\xC0\x80", 2, -1, 1, "overlong NUL"},
        {"\xE0\x80\x80", 3, -1, 1, "overlong"},
        {"\xF0\x80\x80\x80", 4, -1, 1, "overlong"},
        {"\xED\xA0\x80", 3, -1, 1, "surrogate"},
        {"\x80", 1, -1, 1, "stray"},
        {"\xE4\xBD", 2, -1, 1, "cut"},
        {"\xE4" "A", 2, -1, 1, "no continuation"},
        {"\xFF", 1, -1, 1, "never"},
        {"", 0, -1, 1, "nothing"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        size_t used = 0;

        assert_int_equal(cairn_utf8_next((const unsigned char *)t[i].bytes, t[i].n, &used), t[i].cp);
        assert_int_equal(used, t[i].used);
    }
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        char buf[8];
        struct cairn_str s = {.p = buf, .cap = sizeof buf};
        size_t used;

        if (cp >= 0xD800 && cp <= 0xDFFF)
            continue;
        cairn_str_put_utf8(&s, cp);
        assert_int_equal(cairn_utf8_next((unsigned char *)buf, s.len, &used), cp);
        assert_int_equal(used, s.len);
    }
}

static void decimals(void **state)
{
    static const int64_t v[] = {0, 7, -7, 10, 1234567890123, INT64_MAX, INT64_MIN, -100};

    (void)state;
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        char got[CAIRN_I64_CHARS + 1], want[32];

        got[cairn_put_i64(got, v[i])] = 0;
        snprintf(want, sizeof want, "%lld", (long long)v[i]);
        assert_string_equal(got, want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decimals), cmocka_unit_test(growing), cmocka_unit_test(ends),    cmocka_unit_test(integers),
        cmocka_unit_test(doubles), cmocka_unit_test(nearest), cmocka_unit_test(utf8),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

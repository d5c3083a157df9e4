/* scalar_test.c - what plain scalars mean, and that printed values read back as themselves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <float.h>

#include "recipe/scalar.h"

static void plain_scalars(void **state)
{
    static const struct {
        const char *text;
        enum cairn_scalar_kind kind;
        double value;
        const char *why;
    } t[] = {
        {"", CAIRN_SCALAR_NULL, 0, "nothing"},
        {"~", CAIRN_SCALAR_NULL, 0, "tilde"},
        {"null", CAIRN_SCALAR_NULL, 0, "null"},
        {"nul", CAIRN_SCALAR_STRING, 0, "not null"},
        {"true", CAIRN_SCALAR_BOOL, 1, "true"},
        {"False", CAIRN_SCALAR_BOOL, 0, "False"},
        {"yes", CAIRN_SCALAR_STRING, 0, "no boolean any more"},
        {"0", CAIRN_SCALAR_INT, 0, "zero"},
        {"-12", CAIRN_SCALAR_INT, -12, "negative"},
        {"+7", CAIRN_SCALAR_INT, 7, "plus"},
        {"0x1F", CAIRN_SCALAR_INT, 31, "hex"},
        {"9223372036854775807", CAIRN_SCALAR_INT, 9223372036854775807.0, "largest"},
        {"9223372036854775808", CAIRN_SCALAR_BAD, 0, "one more"},
        {"-9223372036854775809", CAIRN_SCALAR_BAD, 0, "one less"},
        {"0xffffffffffffffffff", CAIRN_SCALAR_BAD, 0, "hex beyond 64 bits"},
        {"010", CAIRN_SCALAR_BAD, 0, "octal or decimal"},
        {"0o17", CAIRN_SCALAR_BAD, 0, "octal"},
        {"00", CAIRN_SCALAR_BAD, 0, "leading zero"},
        {"1.5", CAIRN_SCALAR_FLOAT, 1.5, "float"},
        {"1.", CAIRN_SCALAR_FLOAT, 1, "no digits after"},
        {".5", CAIRN_SCALAR_FLOAT, 0.5, "no digits before"},
        {".", CAIRN_SCALAR_STRING, 0, "a dot"},
        {"1e-5", CAIRN_SCALAR_FLOAT, 1e-5, "a string to YAML 1.1 readers"},
        {"-2.5E+3", CAIRN_SCALAR_FLOAT, -2500, "exponent with sign"},
        {"1e", CAIRN_SCALAR_STRING, 0, "no exponent"},
        {"1e999", CAIRN_SCALAR_BAD, 0, "overflow"},
        {".inf", CAIRN_SCALAR_BAD, 0, "infinity"},
        {"-.Inf", CAIRN_SCALAR_BAD, 0, "infinity"},
        {".nan", CAIRN_SCALAR_BAD, 0, "NaN"},
        {"nan", CAIRN_SCALAR_STRING, 0, "a name"},
        {"1_000", CAIRN_SCALAR_STRING, 0, "underscores"},
        {"1:30:00", CAIRN_SCALAR_STRING, 0, "sexagesimal to YAML 1.1 readers"},
        {"0x", CAIRN_SCALAR_STRING, 0, "no digits"},
        {"1 2", CAIRN_SCALAR_STRING, 0, "blank"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct cairn_scalar s;

        cairn_scalar_resolve(t[i].text, &s);
        if (s.kind != t[i].kind)
            fail_msg("\"%s\" (%s): kind %d, expected %d", t[i].text, t[i].why, (int)s.kind, (int)t[i].kind);
        if (s.kind == CAIRN_SCALAR_INT || s.kind == CAIRN_SCALAR_FLOAT)
            assert_true(s.f == t[i].value);
        if (s.kind == CAIRN_SCALAR_BOOL)
            assert_int_equal(s.b, (int)t[i].value);
        if (s.kind == CAIRN_SCALAR_BAD)
            assert_non_null(s.bad);
    }
}

static void printed_floats(void **state)
{
    static const struct {
        double x;
        const char *text;
    } t[] = {
        {0, "0.0"},
        {1, "1.0"},
        {600, "600.0"},
        {0.2, "0.2"},
        {0.28, "0.28"},
        {1e-5, "1e-5"},
        {2.5e-6, "2.5e-6"},
        {1e30, "1e30"},
        {-0.0, "-0.0"},
        {1e15, "1e15"},
        {0.001, "0.001"},
        {10000, "10000.0"},
        {123456.75, "123456.75"},
        {5e-324, "5e-324"},
        {0.1 + 0.2, "0.30000000000000004"},
        {DBL_MAX, "1.7976931348623157e308"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct cairn_str s = {0};

        cairn_scalar_put_float(&s, t[i].x);
        assert_string_equal(s.p, t[i].text);
        cairn_str_free(&s);
    }
}

/* 100,000 doubles of any bits: printed, resolved, the same bits, and a float again. */
static void floats_read_back(void **state)
{
    (void)state;
    uint64_t bits = 88172645463325252ull;

    for (int i = 0; i < 100000; i++) {
        struct cairn_str s = {0};
        struct cairn_scalar v;
        double x;

        bits ^= bits << 13; /* xorshift64 */
        bits ^= bits >> 7;
        bits ^= bits << 17;
        memcpy(&x, &bits, sizeof x);
        if (i % 2)
            x = (double)(int64_t)(bits >> 40) / 64; /* and plain ones */
        if (!(x - x == 0))
            continue;
        cairn_scalar_put_float(&s, x);
        cairn_scalar_resolve(s.p, &v);
        if (v.kind != CAIRN_SCALAR_FLOAT || memcmp(&v.f, &x, sizeof x) != 0)
            fail_msg("%a printed as %s", x, s.p);
        cairn_str_free(&s);
    }
}

static void printed_strings(void **state)
{
    static const struct {
        const char *text, *yaml;
    } t[] = {
        {"glm5", "glm5"},
        {"/data/a.jsonl", "/data/a.jsonl"},
        {"", "\"\""},
        {"null", "\"null\""},
        {"true", "\"true\""},
        {"no", "\"no\""},
        {"12", "\"12\""},
        {"1e5", "\"1e5\""},
        {"~", "\"~\""},
        {"-x", "\"-x\""},
        {"a: b", "\"a: b\""},
        {"a #b", "\"a #b\""},
        {"say \"hi\"\\", "\"say \\\"hi\\\"\\\\\""},
        {"Q: {prompt}\nA:", "\"Q: {prompt}\\nA:\""},
        {"tab\there\r", "\"tab\\there\\u000d\""},
        {"\xc3\xa4", "\"\xc3\xa4\""},
        {"\xe2\x80\xa8", "\"\\u2028\""},
        {"\xc2\x85", "\"\\u0085\""},
        {"\xef\xbb\xbf", "\"\\ufeff\""},
        {"\xf0\x9f\x98\x80", "\"\xf0\x9f\x98\x80\""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct cairn_str s = {0};

        cairn_scalar_put_string(&s, t[i].text);
        assert_string_equal(s.p, t[i].yaml);
        cairn_str_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_scalars),
        cmocka_unit_test(printed_floats),
        cmocka_unit_test(floats_read_back),
        cmocka_unit_test(printed_strings),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

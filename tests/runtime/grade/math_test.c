/* math_test.c - the grader `math` on tests/fixtures/grading and on inputs that try to stop it.
 *
 * grading_cases.jsonl: no negative may be accepted, whatever its kind; positives must not become fewer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "grade/grade.h"

#define FIXTURES  "tests/fixtures/grading/"
#define COUNT(a)  (sizeof(a) / sizeof *(a))
#define POSITIVES 213 /* all of grading_cases.jsonl; the floor that was reached */

static struct cairn_verdict grade_n(const struct cairn_grade_opts *opts, const char *gold, size_t ng, const char *response,
                                    size_t nr)
{
    struct cairn_verdict v;
    struct cairn_error err = {CAIRN_OK, ""};

    memset(&v, 0xA5, sizeof v);
    if (cairn_grade(cairn_grader_find("math"), opts, gold, ng, response, nr, &v, &err) != CAIRN_OK)
        fail_msg("%s", err.text);
    assert_in_range(v.match, 0, 1);
    assert_non_null(memchr(v.extracted, 0, sizeof v.extracted));
    assert_non_null(memchr(v.why, 0, sizeof v.why));
    assert_true(v.why[0] != 0);
    return v;
}

static struct cairn_verdict grade(const char *gold, const char *response)
{
    return grade_n(NULL, gold, strlen(gold), response, strlen(response));
}

static double cpu_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

struct kind {
    char name[40];
    int rows, positives, matched;
};

/* Milliseconds of a processor that a verdict may take; under a sanitizer all is slow, and a blow-up still takes hours. */
static double most_ms(void)
{
    const char *sanitizer = getenv("CAIRN_SANITIZE");

    return sanitizer && *sanitizer ? 20000 : 100;
}

static void test_cases(void **state)
{
    struct cairn_jsonl *lines;
    const json_t *row;
    struct kind kind[64];
    int kinds = 0, rows = 0, matched = 0;

    (void)state;
    assert_int_equal(cairn_jsonl_open(&lines, FIXTURES "grading_cases.jsonl", NULL), CAIRN_OK);
    while (cairn_jsonl_next(lines, &row, NULL) == CAIRN_OK && row) {
        const json_t *g = json_object_get(row, "gold"), *r = json_object_get(row, "response");
        const char *name = json_string_value(json_object_get(row, "kind"));
        int right = json_is_true(json_object_get(row, "match")), k = 0;
        double begin = cpu_ms();
        struct cairn_verdict v =
            grade_n(NULL, json_string_value(g), json_string_length(g), json_string_value(r), json_string_length(r));

        if (cpu_ms() - begin > most_ms())
            fail_msg("%s took %g ms", cairn_jsonl_where(lines), cpu_ms() - begin);
        if (v.match && !right)
            fail_msg("%s (%s): accepted \"%s\" for \"%s\"", cairn_jsonl_where(lines), name, v.extracted, json_string_value(g));
        while (k < kinds && strcmp(kind[k].name, name) != 0)
            k++;
        if (k == kinds) {
            assert_true(kinds < (int)COUNT(kind));
            memset(&kind[k], 0, sizeof kind[k]);
            snprintf(kind[kinds++].name, sizeof kind[0].name, "%s", name);
        }
        kind[k].rows++;
        kind[k].positives += right;
        kind[k].matched += v.match;
        matched += v.match;
        rows++;
    }
    cairn_jsonl_close(lines);
    for (int k = 0; k < kinds; k++)
        print_message("# %-20s %2d of %2d positives, %2d negatives refused\n", kind[k].name, kind[k].matched, kind[k].positives,
                      kind[k].rows - kind[k].positives);
    print_message("# all: %d of %d rows match\n", matched, rows);
    assert_int_equal(rows, 356);
    assert_int_equal(kinds, 53);
    assert_true(matched >= POSITIVES);
}

static void test_gold_matches_itself(void **state)
{
    static const char *const file[] = {FIXTURES "math500_half_a.jsonl", FIXTURES "math_train2000.jsonl"};
    static const char *const form[] = {"So we are done.\n\nAnswer: %s", "so it is $\\boxed{%s}$.", "Answer: $%s$\n",
                                       "**Answer:** %s."};
    int rows = 0;

    (void)state;
    for (size_t f = 0; f < COUNT(file); f++) {
        struct cairn_jsonl *lines;
        const json_t *row;

        assert_int_equal(cairn_jsonl_open(&lines, file[f], NULL), CAIRN_OK);
        while (cairn_jsonl_next(lines, &row, NULL) == CAIRN_OK && row) {
            const char *gold = json_string_value(json_object_get(row, "answer"));

            for (size_t k = 0; k < COUNT(form); k++) {
                char text[1024];

                snprintf(text, sizeof text, form[k], gold);
                if (!grade(gold, text).match)
                    fail_msg("%s: \"%s\" does not match itself in \"%s\"", cairn_jsonl_where(lines), gold, text);
            }
            rows++;
        }
        cairn_jsonl_close(lines);
    }
    assert_int_equal(rows, 250 + 1993);
}

static void test_recorded_answers(void **state)
{
    static const char *const marker[] = {"A:"};
    const struct cairn_grade_opts opts = {marker, 1};
    struct cairn_jsonl *lines;
    const json_t *row;
    int rows = 0, right = 0;

    (void)state;
    assert_int_equal(cairn_jsonl_open(&lines, FIXTURES "gsm8k_recorded.jsonl", NULL), CAIRN_OK);
    while (cairn_jsonl_next(lines, &row, NULL) == CAIRN_OK && row) {
        const json_t *g = json_object_get(row, "gold"), *r = json_object_get(row, "response");
        struct cairn_verdict v =
            grade_n(&opts, json_string_value(g), json_string_length(g), json_string_value(r), json_string_length(r));

        if (v.match != json_is_true(json_object_get(row, "right")))
            fail_msg("%s: %s, %s", cairn_jsonl_where(lines), v.extracted, v.why);
        right += v.match;
        rows++;
    }
    cairn_jsonl_close(lines);
    assert_int_equal(rows, 352);
    assert_true(right > 50 && right < 300);
}

static void test_pairs(void **state)
{
    static const struct {
        const char *gold, *answer;
        int match;
        const char *why;
    } row[] = {
        {"\\frac{1+\\sqrt{5}}{2}", "\\frac{2}{\\sqrt{5}-1}", 1, "denominators are rationalised"},
        {"\\sqrt{3}+\\sqrt{2}", "\\sqrt{5+2\\sqrt{6}}", 1, "nested radicals of the classical kind"},
        {"\\sqrt{3}-\\sqrt{2}", "\\sqrt{5-2\\sqrt{6}}", 1, "and their conjugates"},
        {"\\sqrt{3}+\\sqrt{2}", "\\sqrt{5-2\\sqrt{6}}", 0, "not each other"},
        {"\\sqrt{2}+\\sqrt{3}", "\\sqrt{5}", 0, "roots do not add"},
        {"2\\sqrt[3]{2}", "\\sqrt[3]{16}", 1, "cube roots"},
        {"-2", "\\sqrt[3]{-8}", 1, "of negative numbers"},
        {"2i", "\\sqrt{-4}", 1, "square roots of negative numbers"},
        {"x", "\\sqrt{x^2}", 0, "a root of a square is an absolute value"},
        {"|x|", "\\sqrt{x^2}", 0, "which is told apart from x; equal spellings may be missed"},
        {"10x\\sqrt{21x}", "10\\sqrt{21}x^{3/2}", 1, "powers of one symbol"},
        {"2^{x+1}", "2\\cdot 2^x", 1, "sums in exponents"},
        {"4^x", "2^{2x}", 1, "bases of one prime"},
        {"e^{2x}", "(e^x)^2", 1, "powers of powers"},
        {"3^x-2^x", "2^x-3^x", 0, "sign"},
        {"\\log_2 8", "3", 1, "logarithms of integers"},
        {"\\ln 12", "2\\ln 2+\\ln 3", 1, "in terms of primes"},
        {"\\sin\\frac{\\pi}{6}", "1/2", 1, "known sines"},
        {"\\tan x", "\\frac{\\sin x}{\\cos x}", 1, "tangent"},
        {"\\sin x", "\\cos x", 0, "functions differ"},
        {"0.\\overline{3}", "1/3", 1, "repeating decimals"},
        {"0.1\\overline{6}", "\\frac16", 1, "with a head"},
        {"\\frac{x^2-1}{x-1}", "x+1", 1, "cancelled factors"},
        {"(x-1)^3(x+1)^3", "(x^2-1)^3", 1, "expansion"},
        {"x^2y", "xy^2", 0, "exponents stay with their symbols"},
        {"\\binom{10}{3}", "120", 1, "binomials"},
        {"5!", "120", 1, "factorials"},
        {"x=5", "y=5", 0, "another name is another claim"},
        {"x=1,y=2", "x=2,y=1", 0, "names of members count"},
        {"1,2", "x=1, y=2", 1, "and may be left out, in order"},
        {"1 \\pm \\sqrt{19}", "1+\\sqrt{19}, 1-\\sqrt{19}", 1, "plus-minus written out"},
        {"1 \\pm \\sqrt{19}", "1+\\sqrt{19}", 0, "both are asked for"},
        {"x^2+y^2=1", "2x^2+2y^2=2", 1, "multiples of an equation"},
        {"y=2x+1", "2x-y+1=0", 1, "and its terms moved"},
        {"x<3", "3>x", 1, "mirrored"},
        {"x<3", "-x<-3", 0, "multiplied by a negative number without turning"},
        {"1<x<3", "x>1 \\text{ and } x<3", 0, "spelt as a list: missed, not wrong"},
        {"(1,3)", "1<x<3", 1, "an interval as an inequality"},
        {"[1,3)", "1<x<3", 0, "with its brackets"},
        {"x \\ge 5", "[5,\\infty)", 1, "and back"},
        {"x \\ge 5", "(5,\\infty)", 0, "and back, brackets too"},
        {"(2,\\infty)", "x > 2", 1, "one-sided"},
        {"(1,\\infty)", "(1,-\\infty)", 0, "sign of infinity"},
        {"\\begin{pmatrix}2\\\\4\\end{pmatrix}", "2\\begin{pmatrix}1\\\\2\\end{pmatrix}", 1, "scalar times matrix"},
        {"\\begin{pmatrix}2\\\\4\\end{pmatrix}", "-\\begin{pmatrix}2\\\\4\\end{pmatrix}", 0, "sign of a matrix"},
        {"\\begin{vmatrix}1&2\\\\3&4\\end{vmatrix}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", 0, "a determinant is no matrix"},
        {"\\text{CBAD}", "ABCD", 0, "letters of a word keep their order"},
        {"\\text{even}", "Even", 1, "case of a word"},
        {"\\text{(B)}", "b", 0, "case of a label"},
        {"\\text{C}", "(C)", 1, "brackets of a label"},
        {"3", "3 million", 0, "words that change the number"},
        {"3000000", "3 million", 1, "and their value"},
        {"2", "2 thirds", 0, "fractions in words"},
        {"5", "5 or more", 0, "more than one number"},
        {"5", "5 squared", 0, "powers in words"},
        {"5", "5i", 0, "the unit is imaginary"},
        {"5", "5\\mathrm{i}", 0, "in any font"},
        {"2", "2xy", 0, "symbols are no units"},
        {"5", "5 m", 1, "metres are"},
        {"60", "60 miles per hour", 1, "units of several words"},
        {"48", "48 cm^2", 1, "and powers"},
        {"36", "36 m/s", 1, "and quotients"},
        {"42", "42 is wrong", 0, "a sentence is no unit"},
        {"42", "not 42", 0, "nor before the number"},
        {"42", "42 43", 0, "two numbers"},
        {"4243", "42 43", 0, "are not one"},
        {"1000", "1\\,000", 1, "a thin space groups"},
        {"1000", "1 000", 0, "a blank does not"},
        {"100", "1,00", 0, "groups have three digits"},
        {"0.5", "1/2 = 0.5", 1, "a chain of equal values"},
        {"0.5", "1/2 = 0.6", 0, "a false one"},
        {"0", "1/0", 0, "undefined"},
        {"1", "0^0", 0, "undefined, too"},
        {"1", "\\frac{0}{0}", 0, "and this"},
        {"0", "\\infty-\\infty", 0, "an infinity is not subtracted from itself"},
        {"1", "\\frac{\\infty}{\\infty}", 0, "nor divided"},
        {"0", "0\\cdot\\infty", 0, "nor multiplied by zero"},
        {"FF_{16}", "ff_{16}", 1, "digits of large bases"},
        {"52_8", "052_{8}", 1, "leading zeros of a based number"},
        {"52_8", "42", 0, "the base is asked for"},
        {"24_{10}", "24", 1, "ten is none"},
        {"05:00", "5:00", 1, "clock times"},
        {"1:2", "2:1", 0, "order of a ratio"},
        {"(-\\infty,1)\\cup(2,3)", "(2,3) \\cup (-\\infty, 1)", 1, "unions have no order"},
        {"\\{1,1,2\\}", "\\{2,1\\}", 1, "sets have no doubles"},
        {"2,2", "2", 0, "lists do"},
        {"\\mathbb{R}", "(-\\infty, \\infty)", 1, "the real line"},
        {"7:32 am", "7:32 pm", 0, "halves of the day are no units"},
        {"5,6", "\\boxed{5} or \\boxed{6}", 1, "boxes in a row"},
        {"6", "\\boxed{5} or \\boxed{6}", 0, "are several candidates"},
        {"\\emptyset", "\\{\\}", 1, "the empty set"},
        {"2e-1", "0.2", 0, "2e - 1 is no computer's number"},
        {"150000", "1.5e5", 1, "this one is"},
        {"\\sin^{-1} x", "\\csc x", 0, "an inverse function is not a reciprocal"},
        {"\\lfloor 3.7 \\rfloor", "3", 1, "floors"},
        {"|{-3}|", "3", 1, "absolute values"},
        {"n", "n", 1, "one letter"},
        {"\\frac{1}{7}\\triangle ABC", "\\frac{1}{7} \\triangle ABC", 1, "figures"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(row); i++) {
        char text[512];
        struct cairn_verdict v;

        snprintf(text, sizeof text, "We get\n\nAnswer: %s", row[i].answer);
        v = grade(row[i].gold, text);
        if (v.match != row[i].match)
            fail_msg("%s: \"%s\" for \"%s\": match %d (%s)", row[i].why, row[i].answer, row[i].gold, v.match, v.why);
        snprintf(text, sizeof text, "so $\\boxed{%s}$", row[i].answer);
        v = grade(row[i].gold, text);
        if (v.match != row[i].match)
            fail_msg("boxed, %s: \"%s\" for \"%s\": match %d (%s)", row[i].why, row[i].answer, row[i].gold, v.match, v.why);
    }
}

static char *repeated(const char *head, const char *part, size_t n, const char *tail)
{
    size_t len = strlen(part), h = strlen(head);
    char *s = malloc(h + n * len + strlen(tail) + 1);

    assert_non_null(s);
    memcpy(s, head, h);
    for (size_t i = 0; i < n; i++)
        memcpy(s + h + i * len, part, len);
    strcpy(s + h + n * len, tail);
    return s;
}

/* Whatever stands there, the verdict comes at once, and it is "no". */
static void test_ends_at_once(void **state)
{
    static const struct {
        const char *head, *part;
        size_t n;
        const char *tail;
    } row[] = {
        {"Answer: ", "9^", 3000, "9"},
        {"Answer: ", "9^{", 3000, "9"},
        {"Answer: ", "{", 3000, ""},
        {"Answer: ", "(", 3000, "1"},
        {"Answer: ", "((1,2),", 2000, "1"},
        {"Answer: ", "-", 8000, "1"},
        {"Answer: ", "!", 8000, ""},
        {"Answer: 3", "!", 8000, ""},
        {"Answer: ", "1,", 4000, "1"},
        {"Answer: ", "1+", 4000, "1"},
        {"Answer: ", "(x+1)", 1500, ""},
        {"Answer: ", "(x+y+z+w)^9", 700, ""},
        {"Answer: ", "(a+b+c+d+e+f)^{60}", 1, ""},
        {"Answer: ", "(1+\\sqrt{2}+\\sqrt{3}+\\sqrt{5}+\\sqrt{7})^{60}", 1, ""},
        {"Answer: ", "\\frac{1}{x+", 95, "1"},
        {"Answer: ", "\\frac{1}{", 3000, "1"},
        {"Answer: ", "\\sqrt{", 3000, "2"},
        {"Answer: ", "\\sqrt{2+", 90, "2"},
        {"Answer: ", "\\text{", 30000 / 6, ""},
        {"Answer: ", "\\boxed{", 28000, ""},
        {"", "\\boxed{", 28000, ""},
        {"", "Answer:", 28000, ""},
        {"", "Answer: $Answer ", 12000, ""},
        {"Answer: ", "\\begin{pmatrix}", 13000, ""},
        {"Answer: ", "\\begin{pmatrix}\n", 12000, ""},
        {"Answer: \\begin{pmatrix}", "1&", 4000, "1\\end{pmatrix}"},
        {"Answer: ", "9999999999", 3000, ""},
        {"Answer: 0.", "9999999999", 700, ""},
        {"Answer: \\sqrt{", "9999999997", 700, "}"},
        {"Answer: \\sqrt{", "9999999997", 100, "}"},
        {"Answer: \\sqrt[1000]{", "7", 900, "}"},
        {"Answer: ", "\\sqrt{18446744073709551557}+", 300, "1"},
        {"Answer: ", "\\sqrt{340282366920938463463374607431768211297}+", 180, "1"},
        {"Answer: ", "3999!+", 1000, "1"},
        {"Answer: ", "3999!*", 1000, "1"},
        {"Answer: ", "\\frac{1}{3999!}+", 500, "1"},
        {"Answer: ", "\\binom{3999}{1999}*", 450, "1"},
        {"Answer: ", "((((((((((9!)!)!)!)!)!)!)!)!)!)", 1, ""},
        {"Answer: ", "2^{16383}*", 800, "1"},
        {"Answer: ", "\\frac{1}{2^{16383}+1}+", 350, "1"},
        {"Answer: 10^{", "9", 3000, "}"},
        {"Answer: 10^{-", "9", 3000, "}"},
        {"Answer: 1e", "9", 3000, ""},
        {"Answer: \\{", "\\{1,2\\},", 1000, "1\\}"},
        {"Answer: x=", "x=", 4000, "1"},
        {"Answer: ", "\\sin ", 3000, "x"},
        {"Answer: ", "a_{", 3000, "1"},
        {"Answer: ", "a_{12345678901234567890123456789}+", 240, "1"},
        {"Answer: ", "|", 8000, ""},
        {"Answer: 1 ", "a ", 12000, ""},
        {"Answer: 1 ", "miles per ", 3000, "hour"},
        {"Answer: ", "1 mile, ", 1000, "2"},
        {"Answer: ", "\xF0\x9F\x98\x80", 8000, ""},
        {"Answer: ", "\xC3", 30000, ""},
        {"Answer: ", "\xE2\x88\x9A", 10000, ""},
        {"Answer: ", "$", 30000, ""},
        {"", "a", 1000000, ""},
        {"", "\\", 1000000, ""},
        {"", "{}", 300000, ""},
        {"", "\n", 300000, "Answer:"},
        {"Answer:", "\n", 300000, ""},
    };
    double worst = 0;

    (void)state;
    for (size_t i = 0; i < COUNT(row); i++) {
        char *text = repeated(row[i].head, row[i].part, row[i].n, row[i].tail);
        static const char *const gold[] = {"7", "x^2+1", "\\{2,3\\}", "\\sqrt{7}+1", "(1,2)"};

        for (size_t g = 0; g < COUNT(gold); g++) {
            double begin = cpu_ms(), ms;
            struct cairn_verdict v = grade(gold[g], text);

            ms = cpu_ms() - begin;
            if (ms > worst)
                worst = ms;
            if (v.match)
                fail_msg("row %zu (%s%s...): matches %s", i, row[i].head, row[i].part, gold[g]);
            if (ms > most_ms())
                fail_msg("row %zu (%s%s...): %g ms", i, row[i].head, row[i].part, ms);
        }
        free(text);
    }
    print_message("# longest: %.1f ms\n", worst);
}

/* Pieces of LaTeX in random order: no crash, no match with a gold answer that cannot come out, the same verdict twice. */
static void test_random_pieces(void **state)
{
    static const char *const piece[] = {"\\frac",
                                        "{",
                                        "}",
                                        "1",
                                        "2",
                                        "x",
                                        "^",
                                        "_",
                                        "\\sqrt",
                                        "[",
                                        "]",
                                        "(",
                                        ")",
                                        ",",
                                        "\\text{",
                                        "and",
                                        "\\{",
                                        "\\}",
                                        "=",
                                        "<",
                                        "\\le",
                                        "\\begin{pmatrix}",
                                        "\\end{pmatrix}",
                                        "&",
                                        "\\\\",
                                        "!",
                                        "|",
                                        "+",
                                        "-",
                                        "*",
                                        "/",
                                        "\\pi",
                                        "e",
                                        "i",
                                        ".",
                                        " ",
                                        "\\,",
                                        "\\cup",
                                        "\\pm",
                                        ":",
                                        "%",
                                        "$",
                                        "\\boxed{",
                                        "Answer:",
                                        "\n",
                                        "\\sin",
                                        "\\log",
                                        "\\overline",
                                        "\\lfloor",
                                        "\\rfloor",
                                        "\xE2\x88\x92",
                                        "\xFF",
                                        "\\infty",
                                        "99"};
    uint64_t seed = 12345;

    (void)state;
    for (int round = 0; round < 20000; round++) {
        char text[512] = "Answer: ";
        size_t n = strlen(text);
        struct cairn_verdict a, b;

        for (int k = 0; k < 24; k++) {
            const char *s;

            seed = seed * 6364136223846793005ull + 1442695040888963407ull;
            s = piece[(seed >> 33) % COUNT(piece)];
            memcpy(text + n, s, strlen(s));
            n += strlen(s);
        }
        a = grade_n(NULL, "q+123456789", 11, text, n);
        b = grade_n(NULL, "q+123456789", 11, text, n);
        assert_false(a.match);
        assert_memory_equal(&a, &b, sizeof a);
        grade_n(NULL, text + 8, n - 8, text, n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases), cmocka_unit_test(test_gold_matches_itself), cmocka_unit_test(test_recorded_answers),
        cmocka_unit_test(test_pairs), cmocka_unit_test(test_ends_at_once),        cmocka_unit_test(test_random_pieces),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

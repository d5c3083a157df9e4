/* extract_test.c - where the answer stands: markers, boxes, echoes, ends of text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "grade/extract.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

static void test_answers(void **state)
{
    static const struct {
        const char *text, *answer; /* NULL: none */
        const char *marker;        /* NULL: the default */
        const char *why;
    } row[] = {
        {"Answer: 42", "42", NULL, "plain"},
        {"answer : 42", "42", NULL, "any case, a blank before the colon"},
        {"ANSWER:42", "42", NULL, "any case"},
        {"**Answer**: 42", "42", NULL, "emphasis before the colon"},
        {"**Answer:** 42", "42", NULL, "and behind it"},
        {"**Answer: 42**", "42", NULL, "and around all of it"},
        {"Answer:\n\n42\nmore", "42", NULL, "the next line that is not blank"},
        {"Answer:\n$$\n42\n$$", "42", NULL, "delimiters on lines of their own"},
        {"\\textbf{Answer:} 42", "42", NULL, "in a wrapper"},
        {"Answer\xEF\xBC\x9A"
         "42",
         "42", NULL, "full-width colon"},
        {"Answer: 1\nAnswer: 2", "2", NULL, "the last one"},
        {"Answer: 1\nAnswer:", NULL, NULL, "the last one, though empty"},
        {"Answer: 1 so \\boxed{2} then \\boxed{3}", "3", NULL, "the last box behind it"},
        {"\\boxed{1}\nAnswer: 2", "2", NULL, "a box before it does not count"},
        {"Answer: \\boxed{2", NULL, NULL, "a box that never closes"},
        {"\\boxed{1} \\boxed{2", "1", NULL, "unless one before it does"},
        {"\\boxed{{1}}}", "{1}", NULL, "balanced"},
        {"\\boxed{\\{1\\}}", "\\{1\\}", NULL, "escaped braces do not group"},
        {"\\boxed {5}", "5", NULL, "a blank before the brace"},
        {"\\boxed{ a \\boxed{b} }", "b", NULL, "last by where it begins"},
        {"\\boxed{2} or \\boxed{3}.", "\\boxed{2} or \\boxed{3}", NULL, "boxes in a row are one answer"},
        {"\\boxed{1}, $\\boxed{2}$ \\text{and} $\\boxed{3}$", "\\boxed{1}, $\\boxed{2}$ \\text{and} $\\boxed{3}", NULL, "three"},
        {"\\boxed{2}? No, \\boxed{3}", "3", NULL, "words between them part them"},
        {"\\boxed{2}\n\\boxed{3}", "3", NULL, "a line break, too"},
        {"{ \\boxed{7}", "7", NULL, "a stray brace around it"},
        {"} \\boxed{7}", "7", NULL, "a stray brace before it"},
        {"no answer here", NULL, NULL, "nothing"},
        {"", NULL, NULL, "empty"},
        {"Answer: $Answer", NULL, NULL, "echo"},
        {"Answer: \\boxed{$Answer} where", NULL, NULL, "slime's echo"},
        {"put it after \"Answer:\".\n\\boxed{3}", "3", NULL, "a quoted marker"},
        {"Answer: 42<|user|>Answer: ", NULL, NULL, "the next turn's marker is a marker"},
        {"Answer: 42<|endoftext|>", "42", NULL, "end of text"},
        {"Answer: <|endoftext|>", NULL, NULL, "nothing but an end"},
        {"my Answerx: 3", NULL, NULL, "another word"},
        {"MyAnswer: 3", NULL, NULL, "only at the start of a word"},
        {"x\nA: 7", "7", "A:", "another marker"},
        {"DNA: 5", NULL, "A:", "not inside a word"},
        {"a: 5", NULL, "A:", "capitals are meant"},
        {"Answer: 5", NULL, "A:", "in place of the default"},
        {"#### 1,000\n", "1,000", "####", "GSM8K's own"},
        {"Answer: \\begin{pmatrix} 1 \\\\\n 2 \\end{pmatrix}\nx", "\\begin{pmatrix} 1 \\\\\n 2 \\end{pmatrix}", NULL,
         "over two lines"},
        {"Answer: \\begin{pmatrix} 1 \\\\\n 2 \n", "\\begin{pmatrix} 1 \\\\", NULL, "never closed"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(row); i++) {
        struct cairn_grade_opts opts = {row[i].marker ? &row[i].marker : NULL, row[i].marker != NULL};
        struct cairn_span s;

        assert_int_equal(cairn_extract_answer(&opts, row[i].text, strlen(row[i].text), &s, NULL), CAIRN_OK);
        assert_non_null(s.why);
        if (!row[i].answer ? s.p != NULL : !s.p || s.n != strlen(row[i].answer) || memcmp(s.p, row[i].answer, s.n) != 0)
            fail_msg("%s: \"%s\" gives \"%.*s\"", row[i].why, row[i].text, s.p ? (int)s.n : 6, s.p ? s.p : "(none)");
    }
}

static void test_bytes(void **state)
{
    static const char text[] = "a\0b Answer:\0 4\0"
                               "2\0\0";
    struct cairn_grade_opts opts = {NULL, 0};
    struct cairn_span s;

    (void)state;
    assert_int_equal(cairn_extract_answer(&opts, text, sizeof text - 1, &s, NULL), CAIRN_OK);
    assert_int_equal(s.n, 3);
    assert_memory_equal(s.p,
                        "4\0"
                        "2",
                        3);
}

static void test_gold(void **state)
{
    struct cairn_span s;

    (void)state;
    assert_int_equal(cairn_extract_gold(" \\boxed{12} ", 12, &s, NULL), CAIRN_OK);
    assert_int_equal(s.n, 2);
    assert_memory_equal(s.p, "12", 2);
    assert_int_equal(cairn_extract_gold(" x = 3 ", 7, &s, NULL), CAIRN_OK);
    assert_int_equal(s.n, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_answers), cmocka_unit_test(test_bytes), cmocka_unit_test(test_gold)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* grade_test.c - `cairn grade`: output line for line, markers, exit codes, sentences, the example of its own help. */
#include "verb.h"

#include "base/json.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

#define RIGHT "{\"match\":true,\"extracted\":\"0.5\",\"why\":\"equal\",\"status\":\"ok\"}\n"
#define NONE  "{\"match\":false,\"extracted\":null,\"why\":\"no marker and no box\",\"status\":\"no_answer\"}\n"

static void test_lines(void **state)
{
    static const struct {
        const char *option[4], *in;
        int code;
        const char *out, *sentence, *why;
    } row[] = {
        {{NULL},
         "{\"gold\":\"1/2\",\"response\":\"Answer: 0.5\"}\n{\"gold\":\"1\",\"response\":\"\"}\n",
         0,
         RIGHT NONE,
         "",
         "in order"},
        {{NULL}, "{\"gold\":\"1/2\",\"response\":\"Answer: 0.5\",\"id\":3}", 0, RIGHT, "", "other keys, no newline at the end"},
        {{"--json", "--grader", "math"}, "{\"gold\":\"1/2\",\"response\":\"Answer: 0.5\"}\n", 0, RIGHT, "", "what is so anyway"},
        {{"--marker", "A:"},
         "{\"gold\":\"1/2\",\"response\":\"A: 0.5\\nAnswer: 3\"}\n",
         0,
         RIGHT,
         "",
         "a marker replaces the default"},
        {{"--marker=A:", "--marker=####"},
         "{\"gold\":\"1/2\",\"response\":\"A: 3\\n#### 0.5\"}\n",
         0,
         RIGHT,
         "",
         "several: the last one found"},
        {{NULL}, "", 0, "", "", "no lines"},
        {{NULL},
         "{\"gold\":\"1/2\",\"response\":\"Answer: 0.5\"}\n{\"gold\":1,\"response\":\"\"}\n",
         65,
         RIGHT,
         "in.jsonl:2: expected {\"gold\"",
         "what went before is written"},
        {{NULL}, "{\"gold\":\"1/2\",\"response\":\"Answer: 0.5\"}\n{\"gold\"", 65, RIGHT, "in.jsonl:2: ", "broken JSON"},
        {{NULL}, "{\"response\":\"1\"}\n", 65, "", "in.jsonl:1: expected {\"gold\"", "a key is missing"},
        {{NULL}, "[1]\n", 65, "", "in.jsonl:1: ", "no object"},
        {{"--grader", "maths"}, "", 64, "", "maths", "unknown grader"},
        {{"--marker", ""}, "", 64, "", "marker", "an empty marker"},
        {{"extra"}, "", 64, "", "", "an argument too many"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(row); i++) {
        const char *args[8] = {"grade", "--jsonl", in_path};
        char *out, *err;
        int code;

        for (int k = 0; k < 3 && row[i].option[k]; k++)
            args[3 + k] = row[i].option[k];
        unlink(in_path);
        assert_int_equal(cairn_file_create(in_path, row[i].in, strlen(row[i].in), NULL), CAIRN_OK);
        code = run(cairn_verb_grade, args, out_path);
        out = get(out_path);
        err = get(err_path);
        if (code != row[i].code || strcmp(out, row[i].out) != 0 || !strstr(err, row[i].sentence))
            fail_msg("%s: exit %d, stdout \"%s\", stderr \"%s\"", row[i].why, code, out, err);
        free(out);
        free(err);
    }
}

static void test_command_line(void **state)
{
    static const char *const no_file[] = {"grade", NULL}, *const missing[] = {"grade", "--jsonl=/nonexistent/x", NULL},
                             *const help[] = {"grade", "--help", NULL};
    char *text;

    (void)state;
    assert_int_equal(run(cairn_verb_grade, no_file, out_path), 64);
    text = get(err_path);
    assert_non_null(strstr(text, "--jsonl"));
    free(text);
    assert_int_equal(run(cairn_verb_grade, missing, out_path), 65);
    text = get(err_path);
    assert_non_null(strstr(text, "/nonexistent/x"));
    free(text);
    assert_int_equal(run(cairn_verb_grade, help, out_path), 0);
    text = get(out_path);
    assert_non_null(strstr(text, "Examples:"));
    free(text);
}

/* The second example of the help, whose verdicts are known; more rows than one batch. */
static void test_fixture(void **state)
{
    static const char *const args[] = {"grade", "--jsonl", "tests/fixtures/grading/grading_cases.jsonl", NULL};
    struct cairn_jsonl *in, *out;
    const json_t *want, *have;
    int rows = 0;

    (void)state;
    assert_int_equal(run(cairn_verb_grade, args, out_path), 0);
    assert_int_equal(cairn_jsonl_open(&in, args[2], NULL), CAIRN_OK);
    assert_int_equal(cairn_jsonl_open(&out, out_path, NULL), CAIRN_OK);
    while (cairn_jsonl_next(in, &want, NULL) == CAIRN_OK && want) {
        assert_int_equal(cairn_jsonl_next(out, &have, NULL), CAIRN_OK);
        assert_non_null(have);
        assert_true(json_is_boolean(json_object_get(have, "match")));
        if (json_is_true(json_object_get(have, "match")))
            assert_true(json_is_true(json_object_get(want, "match")));
        rows++;
    }
    assert_int_equal(cairn_jsonl_next(out, &have, NULL), CAIRN_OK);
    assert_null(have);
    assert_int_equal(rows, 356);
    cairn_jsonl_close(in);
    cairn_jsonl_close(out);
}

static void test_lost_output(void **state)
{
    static const char *const args[] = {"grade", "--jsonl", "tests/fixtures/grading/grading_cases.jsonl", NULL};

    (void)state;
    if (access("/dev/full", W_OK) == 0)
        assert_int_equal(run(cairn_verb_grade, args, "/dev/full"), 73);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines), cmocka_unit_test(test_command_line),
                                       cmocka_unit_test(test_fixture), cmocka_unit_test(test_lost_output)};

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}

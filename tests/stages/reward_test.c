/* reward_test.c - the over-length penalty on tests/fixtures/grading/overlong_cases.jsonl, raw rewards, the filter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "base/json.h"
#include "stages/score/reward.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

static void test_overlong_cases(void **state)
{
    struct cairn_jsonl *lines;
    const json_t *row;
    int rows = 0;

    (void)state;
    assert_int_equal(cairn_jsonl_open(&lines, "tests/fixtures/grading/overlong_cases.jsonl", NULL), CAIRN_OK);
    while (cairn_jsonl_next(lines, &row, NULL) == CAIRN_OK && row) {
        struct cairn_reward_opts opts = {.right = 1,
                                         .cap = json_integer_value(json_object_get(row, "max_len")),
                                         .buffer = json_integer_value(json_object_get(row, "buffer_len")),
                                         .factor = json_number_value(json_object_get(row, "penalty_factor"))};
        double want = json_number_value(json_object_get(row, "overlong_reward"));
        double got = cairn_reward_penalty(&opts, json_integer_value(json_object_get(row, "response_len")));

        assert_int_equal(cairn_reward_check(&opts, NULL), CAIRN_OK);
        if (got != want)
            fail_msg("%s: %.17g, expected %.17g", cairn_jsonl_where(lines), got, want);
        rows++;
    }
    cairn_jsonl_close(lines);
    assert_int_equal(rows, 32);
}

static void test_penalty(void **state)
{
    static const struct {
        int64_t cap, buffer;
        double factor;
        int64_t length;
        double penalty;
    } row[] = {
        {2048, 128, 1, 1920, 0},    {2048, 128, 1, 1921, -0.0078125},
        {2048, 128, 1, 1984, -0.5}, {2048, 128, 1, 2048, -1},
        {2048, 128, 1, 2100, -1},   {2048, 128, 0, 2048, 0},
        {2048, 0, 1, 2047, 0},      {2048, 0, 1, 2048, 0},
        {2048, 0, 1, 2049, -1},     {2048, 2048, 2, 0, 0},
        {2048, 2048, 2, 1024, -1},  {0, 0, 1, 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(row); i++) {
        struct cairn_reward_opts opts = {.cap = row[i].cap, .buffer = row[i].buffer, .factor = row[i].factor};
        double p = cairn_reward_penalty(&opts, row[i].length);

        if (p != row[i].penalty)
            fail_msg("row %zu: %g, expected %g", i, p, row[i].penalty);
        assert_false(signbit(p) && p == 0); /* no -0 in the record */
    }
}

static void test_raw(void **state)
{
    struct cairn_reward_opts opts = {.right = 1, .wrong = -1};

    (void)state;
    assert_true(cairn_reward_raw(&opts, 1, 0) == 1);
    assert_true(cairn_reward_raw(&opts, 0, 0) == -1);
    assert_true(cairn_reward_raw(&opts, 0.75, 0) == 0.5); /* a grader that tells more finely */
    assert_true(cairn_reward_raw(&opts, 1, 1) == 1); /* truncated: graded like any other */
    opts.truncated_zero = 1;
    assert_true(cairn_reward_raw(&opts, 1, 1) == 0);
    assert_true(cairn_reward_raw(&opts, 0, 1) == 0);
    assert_true(cairn_reward_raw(&opts, 0, 0) == -1);
}

static void test_check(void **state)
{
    static const struct cairn_reward_opts bad[] = {
        {.cap = 10, .buffer = 11}, {.cap = 10, .buffer = -1}, {.cap = -1}, {.factor = -1}, {.factor = INFINITY}, {.right = NAN},
        {.wrong = INFINITY}};

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(cairn_reward_check(&bad[i], NULL), CAIRN_ERECIPE);
}

static void test_mixed(void **state)
{
    static const struct {
        double r[4];
        int64_t n;
        double tolerance;
        int mixed;
    } row[] = {
        {{0, 0, 0, 0}, 4, 0, 0},
        {{1, 1, 1, 1}, 4, 0, 0},
        {{1, 0, 0, 0}, 4, 0, 1},
        {{0, 0, 0, 1}, 4, 0, 1},
        {{1}, 1, 0, 0},
        {{0}, 0, 0, 0},
        {{.1, .1, .1, .1}, 4, 0, 0},
        {{.5, .5000005, .5, .5}, 4, CAIRN_REWARD_TOLERANCE, 0},
        {{.5, .50001, .5, .5}, 4, CAIRN_REWARD_TOLERANCE, 1},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(row); i++)
        assert_int_equal(cairn_group_mixed(row[i].r, row[i].n, row[i].tolerance), row[i].mixed);
}

/* All wrong, lengths near the cap: the shaped rewards differ, the filter must not see that. */
static void test_filter_looks_at_raw(void **state)
{
    static const int64_t length[4] = {10, 2000, 2040, 2048};
    struct cairn_reward_opts opts = {.right = 1, .cap = 2048, .buffer = 128, .factor = 1};
    double raw[4], shaped[4];

    (void)state;
    for (int i = 0; i < 4; i++) {
        raw[i] = cairn_reward_raw(&opts, 0, 0);
        shaped[i] = raw[i] + cairn_reward_penalty(&opts, length[i]);
    }
    assert_int_equal(cairn_group_mixed(shaped, 4, 0), 1);
    assert_int_equal(cairn_group_mixed(raw, 4, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_overlong_cases), cmocka_unit_test(test_penalty), cmocka_unit_test(test_raw),
        cmocka_unit_test(test_check),          cmocka_unit_test(test_mixed),   cmocka_unit_test(test_filter_looks_at_raw),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

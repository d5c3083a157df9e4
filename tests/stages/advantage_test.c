/* advantage_test.c - the definitions' table of values, equal rewards, uneven and interleaved groups.
 *
 * Expected values are those of the definitions worked out by hand, to the six decimals printed there.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "stages/score/advantage.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

static void test_table(void **state)
{
    static const struct {
        int n;
        double r[8];
        double a[3][8]; /* grpo, unnormalised, rloo */
    } row[] = {
        {4, {1, 0, 0, 0}, {{1.499997, -.499999, -.499999, -.499999}, {.75, -.25, -.25, -.25}, {1, -.333333, -.333333, -.333333}}},
        {4, {1, 1, 0, 0}, {{.866024, .866024, -.866024, -.866024}, {.5, .5, -.5, -.5}, {.666667, .666667, -.666667, -.666667}}},
        {2, {1, 0}, {{.707106, -.707106}, {.5, -.5}, {1, -1}}},
        {8,
         {1, 0, 0, 0, 0, 0, 0, 0},
         {{2.474867, -.353552, -.353552, -.353552, -.353552, -.353552, -.353552, -.353552},
          {.875, -.125, -.125, -.125, -.125, -.125, -.125, -.125},
          {1, -.142857, -.142857, -.142857, -.142857, -.142857, -.142857, -.142857}}},
        {4, {1, 1, 1, 1}, {{0}, {0}, {0}}},
        {8, {.35, .35, .35, .35, .35, .35, .35, .35}, {{0}, {0}, {0}}},
        {8, {.1, .1, .1, .1, .1, .1, .1, .1}, {{0}, {0}, {0}}},
        {1, {5}, {{0}, {0}, {0}}},
    };
    static const int64_t group[8] = {7, 7, 7, 7, 7, 7, 7, 7};

    (void)state;
    for (size_t i = 0; i < COUNT(row); i++)
        for (int kind = 0; kind < 3; kind++) {
            double a[8];
            int zero = 1;

            assert_int_equal(cairn_advantages((enum cairn_advantage)kind, group, row[i].r, row[i].n, 0, a, NULL), CAIRN_OK);
            for (int k = 0; k < row[i].n; k++)
                zero &= row[i].a[kind][k] == 0;
            for (int k = 0; k < row[i].n; k++)
                if (zero ? a[k] != 0 : fabs(a[k] - row[i].a[kind][k]) > 1.1e-6) /* printed digits are cut, not rounded */
                    fail_msg("row %zu kind %d: A[%d] = %.9g, expected %.9g", i, kind, k, a[k], row[i].a[kind][k]);
        }
}

static void test_groups_by_id(void **state)
{
    /* [1,2,3,4], [10,12], [5,6,7] and a single 9, mixed up */
    static const int64_t group[] = {30, -1, 2, 30, 2, 99, -1, 30, 2, 30};
    static const double reward[] = {1, 10, 5, 2, 6, 9, 12, 3, 7, 4};
    enum { N = COUNT(group) };

    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        double a[N], alone[4];
        static const double members[4] = {1, 2, 3, 4};
        static const int64_t one[4] = {0, 0, 0, 0};
        static const int place[4] = {0, 3, 7, 9};

        assert_int_equal(cairn_advantages((enum cairn_advantage)kind, group, reward, N, 0, a, NULL), CAIRN_OK);
        for (int g = 0; g < N; g++) {
            double sum = 0;

            for (int i = 0; i < N; i++)
                sum += group[i] == group[g] ? a[i] : 0;
            assert_true(fabs(sum) < 1e-12);
        }
        assert_true(a[5] == 0);
        /* the same bits as that group alone */
        assert_int_equal(cairn_advantages((enum cairn_advantage)kind, one, members, 4, 0, alone, NULL), CAIRN_OK);
        for (int i = 0; i < 4; i++)
            assert_true(a[place[i]] == alone[i]);
    }
}

static void test_leave_one_out(void **state)
{
    static const double r[5] = {.25, -1, 3, .5, .125};
    static const int64_t group[5] = {1, 1, 1, 1, 1};
    double a[5];

    (void)state;
    assert_int_equal(cairn_advantages(CAIRN_ADVANTAGE_RLOO, group, r, 5, 0, a, NULL), CAIRN_OK);
    for (int i = 0; i < 5; i++) {
        double others = 0;

        for (int k = 0; k < 5; k++)
            others += k == i ? 0 : r[k];
        assert_true(fabs(a[i] - (r[i] - others / 4)) < 1e-14);
    }
}

static void test_clamp_in_place_and_errors(void **state)
{
    double r[8] = {1, 0, 0, 0, 0, 0, 0, 0};
    static const int64_t group[8] = {0};
    struct cairn_error err = {CAIRN_OK, ""};

    (void)state;
    assert_int_equal(cairn_advantages(CAIRN_ADVANTAGE_GRPO, group, r, 8, 2, r, NULL), CAIRN_OK);
    assert_true(r[0] == 2);
    assert_true(r[1] < -.35 && r[1] > -.36);
    r[3] = NAN;
    assert_int_equal(cairn_advantages(CAIRN_ADVANTAGE_GRPO, group, r, 8, 0, r, &err), CAIRN_ENUMERIC);
    assert_non_null(strstr(err.text, "reward 3"));
    r[3] = INFINITY;
    assert_int_equal(cairn_advantages(CAIRN_ADVANTAGE_RLOO, group, r, 8, 0, r, NULL), CAIRN_ENUMERIC);
    assert_int_equal(cairn_advantages(CAIRN_ADVANTAGE_GRPO, group, r, 0, 0, r, NULL), CAIRN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table), cmocka_unit_test(test_groups_by_id),
                                       cmocka_unit_test(test_leave_one_out), cmocka_unit_test(test_clamp_in_place_and_errors)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

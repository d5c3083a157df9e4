/* pass_rate_test.c - pass@j against counting all ways to draw, mean@k, several sets. */
#include "tests/stages/lab.h"

#include "stages/score/pass_rate.h"

/* Share of the j-subsets of n responses, of which the first c are right, that hold a right one: by looking at each. */
static double by_counting(int n, int c, int j)
{
    int64_t all = 0, hit = 0;

    for (uint32_t set = 0; set < 1u << n; set++)
        if (__builtin_popcount(set) == j) {
            all++;
            hit += (set & ((1u << c) - 1)) != 0;
        }
    return (double)hit / (double)all;
}

static void test_counted(void **state)
{
    (void)state;
    for (int n = 1; n <= 10; n++)
        for (int c = 0; c <= n; c++)
            for (int j = 1; j <= n; j++)
                if (fabs(cairn_pass_rate_at(n, c, j) - by_counting(n, c, j)) > 1e-12)
                    fail_msg("pass@%d of %d right of %d: %.17g, counted %.17g", j, c, n, cairn_pass_rate_at(n, c, j), by_counting(n, c, j));
    /* Large counts neither overflow nor lose all figures: 1 - C(199,100)/C(200,100) = 1/2. */
    assert_true(fabs(cairn_pass_rate_at(200, 1, 100) - 0.5) < 1e-12);
    assert_true(cairn_pass_rate_at(1000000, 0, 1000) == 0 && cairn_pass_rate_at(1000000, 1000000, 1) == 1);
}

static double number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    if (!json_is_number(v))
        fail_msg("no %s", key);
    return json_number_value(v);
}

static void test_sets(void **state)
{
    struct cairn_pass_rate a = {0}, b = {0};
    json_t *o = json_object();

    (void)state;
    cairn_pass_rate_add(&a, 4, 1);
    cairn_pass_rate_add(&a, 4, 0);
    cairn_pass_rate_add(&a, 4, 4);
    assert_true(cairn_pass_rate_metrics(&a, o));
    assert_true(fabs(number(o, "mean_at_k") - 1.25 / 3) < 1e-15 && fabs(number(o, "pass_at/1") - 1.25 / 3) < 1e-15);
    assert_true(fabs(number(o, "pass_at/2") - 1.5 / 3) < 1e-15);
    assert_true(number(o, "pass_at/4") == number(o, "pass_at_k") && fabs(number(o, "pass_at_k") - 2.0 / 3) < 1e-15);
    assert_null(json_object_get(o, "pass_at/8"));
    json_object_clear(o);
    cairn_pass_rate_add(&b, 1, 1); /* one try a problem: nothing to draw from */
    assert_true(cairn_pass_rate_metrics(&b, o));
    assert_int_equal(json_object_size(o), 2);
    json_object_clear(o);
    cairn_pass_rate_join(&a, &b); /* by problems, however many tries they had */
    assert_true(cairn_pass_rate_metrics(&a, o));
    assert_true(fabs(number(o, "mean_at_k") - 2.25 / 4) < 1e-15 && fabs(number(o, "pass_at_k") - 3.0 / 4) < 1e-15);
    assert_true(fabs(number(o, "pass_at/2") - 1.5 / 3) < 1e-15); /* of those with two tries */
    assert_int_equal(a.responses, 13);
    json_object_clear(o);
    assert_true(cairn_pass_rate_metrics(&(struct cairn_pass_rate){0}, o));
    assert_true(number(o, "mean_at_k") == 0);
    json_decref(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counted), cmocka_unit_test(test_sets)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

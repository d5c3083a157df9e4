/* fixture_test.c - fixture_check, the program, on the copied references: numbers of transformers, peft and torch, on the cpu and the
 * guard back-end; and the directories that it must refuse.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

int fixture_check_main(int argc, char **argv);
#define main fixture_check_main
#include "../../fixture_check.c"
#undef main

static void test_case(void **state)
{
    static const struct {
        const char *dir, *backend;
        int expected;
    } cases[] = {
        {"tests/fixtures/models/glm51-tiny", "cpu", CAIRN_OK},
        {"tests/fixtures/models/glm52-tiny", "cpu", CAIRN_OK},
        {"tests/fixtures/models/bf16-sharded-tiny", "cpu", CAIRN_OK},
        {"tests/fixtures/models/glm51-tiny", "guard", CAIRN_OK},
        {"tests/fixtures/models", "cpu", CAIRN_EDATA},                     /* no config.json */
        {"tests/fixtures/models/none", "cpu", CAIRN_EDATA},
        {"tests/fixtures/models/glm51-tiny", "abacus", CAIRN_EDEVICE},
        {"tests/fixtures/models/glm51-tiny/adapter", "cpu", CAIRN_EDATA},  /* no model */
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char dir[256], backend[32], *argv[] = {"fixture_check", dir, "--backend", backend, NULL};
        int got;

        snprintf(dir, sizeof dir, "%s", cases[i].dir);
        snprintf(backend, sizeof backend, "%s", cases[i].backend);
        failures = 0;
        got = fixture_check_main(4, argv);
        if (got != cases[i].expected)
            fail_msg("%s on %s: exit %d, expected %d", dir, backend, got, cases[i].expected);
    }
}

static void test_usage(void **state)
{
    char *none[] = {"fixture_check", NULL}, *two[] = {"fixture_check", "a", "b", NULL}, *odd[] = {"fixture_check", "--what", NULL};

    (void)state;
    assert_int_equal(fixture_check_main(1, none), CAIRN_EUSAGE);
    assert_int_equal(fixture_check_main(3, two), CAIRN_EUSAGE);
    assert_int_equal(fixture_check_main(2, odd), CAIRN_EUSAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_case), cmocka_unit_test(test_usage)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

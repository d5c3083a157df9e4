/* fixture_test.c - fixture_check, the program, on the copied references: numbers of transformers, peft and torch, on the cpu and
 * the guard back-end; and the directories that it must refuse.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <unistd.h>

int fixture_check_main(int argc, char **argv);
#define main fixture_check_main
#include "../../fixture_check.c"
#undef main

/* Runs the program with stdout in a file (its lines begin with "ok", which TAP would take for tests); what fails is repeated. */
static int quietly(int argc, char **argv)
{
    FILE *file = tmpfile();
    char line[512];
    int out = dup(1), got;

    assert_true(file && out >= 0);
    fflush(stdout);
    assert_true(dup2(fileno(file), 1) == 1);
    failures = 0;
    got = fixture_check_main(argc, argv);
    fflush(stdout);
    assert_true(dup2(out, 1) == 1);
    close(out);
    rewind(file);
    while (got != CAIRN_OK && fgets(line, sizeof line, file))
        if (!strncmp(line, "FAIL", 4))
            fprintf(stderr, "# %s", line);
    fclose(file);
    return got;
}

static void test_case(void **state)
{
    static const struct {
        const char *dir, *backend;
        int expected;
        const char *act;
    } cases[] = {
        {"tests/fixtures/models/glm51-tiny", "cpu", CAIRN_OK, "f32"},
        {"tests/fixtures/models/glm52-tiny", "cpu", CAIRN_OK, "f32"},
        {"tests/fixtures/models/bf16-sharded-tiny", "cpu", CAIRN_OK, "f32"},
        {"tests/fixtures/models/glm53flash-tiny", "cpu", CAIRN_OK, "f32"},
        {"tests/fixtures/models/glm53flash-clamp-tiny", "cpu", CAIRN_OK, "f32"},
        {"tests/fixtures/models/glm51-tiny", "guard", CAIRN_OK, "f32"},
        {"tests/fixtures/models/glm53flash-clamp-tiny", "guard", CAIRN_OK, "f32"},
        {"tests/fixtures/models/glm51-tiny", "cpu", CAIRN_OK, "bf16"},
        {"tests/fixtures/models/glm52-tiny", "cpu", CAIRN_OK, "bf16"},
        {"tests/fixtures/models/bf16-sharded-tiny", "guard", CAIRN_OK, "bf16"},
        {"tests/fixtures/models/glm53flash-clamp-tiny", "cpu", CAIRN_OK, "bf16"},
        {"tests/fixtures/models", "cpu", CAIRN_EDATA, "f32"}, /* no config.json */
        {"tests/fixtures/models/none", "cpu", CAIRN_EDATA, "f32"},
        {"tests/fixtures/models/glm51-tiny", "abacus", CAIRN_EDEVICE, "f32"},
        {"tests/fixtures/models/glm51-tiny/adapter", "cpu", CAIRN_EDATA, "f32"}, /* no model */
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char dir[256], backend[32], act[8], *argv[] = {"fixture_check", dir, "--backend", backend, "--act", act, NULL};
        int got;

        snprintf(dir, sizeof dir, "%s", cases[i].dir);
        snprintf(backend, sizeof backend, "%s", cases[i].backend);
        snprintf(act, sizeof act, "%s", cases[i].act);
        got = quietly(6, argv);
        if (got != cases[i].expected)
            fail_msg("%s on %s: exit %d, expected %d", dir, backend, got, cases[i].expected);
    }
}

/* Another architecture: 65, before any tensor is looked for. */
static void test_architecture(void **state)
{
    static const char text[] = "{\"model_type\": \"glm4_moe\", \"architectures\": [\"Glm4MoeForCausalLM\"]}";
    char dir[] = "/tmp/cairn-fixture-XXXXXX", path[64], *argv[] = {"fixture_check", dir, NULL};
    struct cairn_error err;

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(cairn_file_create(path, text, sizeof text - 1, &err), CAIRN_OK);
    assert_int_equal(quietly(2, argv), CAIRN_EDATA);
    assert_int_equal(cairn_tree_remove(dir, &err), CAIRN_OK);
}

static void test_usage(void **state)
{
    char *none[] = {"fixture_check", NULL}, *two[] = {"fixture_check", "a", "b", NULL}, *odd[] = {"fixture_check", "--what", NULL};

    (void)state;
    assert_int_equal(quietly(1, none), CAIRN_EUSAGE);
    assert_int_equal(quietly(3, two), CAIRN_EUSAGE);
    assert_int_equal(quietly(2, odd), CAIRN_EUSAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_case), cmocka_unit_test(test_architecture),
                                       cmocka_unit_test(test_usage)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

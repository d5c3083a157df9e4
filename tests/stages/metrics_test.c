/* metrics_test.c - metrics.c: one line a step and one an evaluation, however often it is asked for, after a torn line too. */
#include "tests/stages/lab.h"

#include "base/json.h"
#include "stages/common/metrics.h"

struct lines {
    json_t *v[20]; /* NULL: no JSON */
    int n;
};

static void lines_read(struct lines *l, const struct cairn_run *run)
{
    char *path = cairn_run_path(run, "log/metrics.jsonl"), *text, *line, *save = NULL;
    size_t n;

    memset(l, 0, sizeof *l);
    OK(cairn_file_read(path, 1 << 20, &text, &n, err));
    assert_true(n && text[n - 1] == '\n');
    for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        l->v[l->n++] = json_loads(line, 0, NULL);
    free(text);
    free(path);
}

static void lines_free(struct lines *l)
{
    for (int i = 0; i < l->n; i++)
        json_decref(l->v[i]);
}

static void append(const struct cairn_run *run, const char *text)
{
    char *path = cairn_run_path(run, "log/metrics.jsonl");
    FILE *f = fopen(path, "ab");

    fputs(text, f);
    fclose(f);
    free(path);
}

static int step_of(const json_t *v)
{
    return (int)json_integer_value(json_object_get(v, "step"));
}

static void test_lines(void **state)
{
    struct cairn_run *run;
    struct lines l;
    struct lab lab;

    (void)state;
    lab_open(&lab);
    run = lab_init(&lab, LAB_OVERRIDES(LAB_EVAL));
    lab_stage_ok("rollout", lab.run, 0, "held");
    lab_stage_ok("score", lab.run, 0, "held"); /* writes its line */
    lab_stage_ok("rollout", lab.run, 1, NULL);
    lab_stage_ok("score", lab.run, 1, NULL);
    OK(cairn_metrics_step(run, 1, err));
    lines_read(&l, run);
    assert_int_equal(l.n, 2);
    assert_string_equal(json_string_value(json_object_get(l.v[0], "eval")), "held");
    assert_int_equal(step_of(l.v[0]), 0);
    assert_true(json_is_number(json_object_get(l.v[0], "eval/held/accuracy")));
    assert_true(json_is_number(json_object_get(l.v[0], "eval/held/time/rollout")));
    assert_null(json_object_get(l.v[0], "accuracy"));
    assert_null(json_object_get(l.v[1], "eval"));
    assert_int_equal(step_of(l.v[1]), 1);
    assert_true(json_is_number(json_object_get(l.v[1], "accuracy")) && json_is_number(json_object_get(l.v[1], "time/score")));
    assert_null(json_object_get(l.v[1], "time/train")); /* not there yet: nothing is said of it */
    lines_free(&l);

    for (int k = 0; k < 3; k++) { /* again: no second line */
        OK(cairn_metrics_step(run, 1, err));
        OK(cairn_metrics_eval(run, 0, "held", err));
    }
    lines_read(&l, run);
    assert_int_equal(l.n, 2);
    lines_free(&l);

    append(run, "{\"step\": 2, \"accu"); /* killed while it wrote */
    OK(cairn_metrics_step(run, 2, err));
    OK(cairn_metrics_step(run, 1, err));
    lines_read(&l, run);
    assert_int_equal(l.n, 4);
    assert_null(l.v[2]);
    assert_int_equal(step_of(l.v[3]), 2);
    lines_free(&l);

    cairn_run_close(run);
    lab_close(&lab);
}

/* A step and an evaluation of the same number are two things; so are two sets. */
static void test_apart(void **state)
{
    struct cairn_run *run;
    struct lines l;
    struct lab lab;

    (void)state;
    lab_open(&lab);
    run = lab_init(&lab, LAB_OVERRIDES("data.eval=[{name: a, path: held.jsonl}, {name: b, path: held.jsonl}]", "data.eval.0.path=%s/held.jsonl",
                                       "data.eval.1.path=%s/held.jsonl"));
    OK(cairn_metrics_eval(run, 5, "a", err));
    OK(cairn_metrics_eval(run, 5, "b", err));
    OK(cairn_metrics_step(run, 5, err));
    OK(cairn_metrics_eval(run, 5, "a", err));
    OK(cairn_metrics_step(run, 5, err));
    lines_read(&l, run);
    assert_int_equal(l.n, 3);
    lines_free(&l);
    cairn_run_close(run);
    lab_close(&lab);
}

/* Many at once: still a line each. */
static void test_at_once(void **state)
{
    struct cairn_run *run;
    struct lines l;
    struct lab lab;

    (void)state;
    lab_open(&lab);
    run = lab_init(&lab, NULL);
    for (int k = 0; k < 4; k++)
        if (!fork()) {
            int bad = 0;

            for (int s = 1; s <= 8; s++)
                bad |= cairn_metrics_step(run, s, NULL) != CAIRN_OK;
            _exit(bad);
        }
    for (int k = 0; k < 4; k++) {
        int status;

        assert_true(wait(&status) > 0);
        assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
    }
    lines_read(&l, run);
    assert_int_equal(l.n, 8);
    lines_free(&l);
    cairn_run_close(run);
    lab_close(&lab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines), cmocka_unit_test(test_apart), cmocka_unit_test(test_at_once)};

    return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}

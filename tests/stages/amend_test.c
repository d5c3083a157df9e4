/* amend_test.c - amend.c: which step sees which recipe, what is read back, what is put back, what is refused. */
#include "tests/stages/lab.h"

#include "stages/common/amend.h"

static struct cairn_run *open_run(const struct lab *l)
{
    struct cairn_run *run = NULL;

    OK(cairn_run_open(&run, l->run, err));
    return run;
}

/* Amends and opens again; the number. */
static int amend(struct lab *l, struct cairn_run **run, int64_t from, const char *const *set)
{
    struct cairn_str diff = {0};
    int number = -1, n = 0;

    while (set[n])
        n++;
    OK(cairn_run_amend(*run, from, n, set, 0, &number, &diff, err));
    cairn_str_free(&diff);
    cairn_run_close(*run);
    *run = open_run(l);
    return number;
}

static double rate(const struct cairn_run *run, int64_t step)
{
    return cairn_recipe_f64(cairn_run_recipe(run, step), "train.learning_rate");
}

static void test_views(void **state)
{
    static const struct {
        int64_t step;
        double rate;
        int64_t samples;
        const char *why;
    } row[] = {
        {0, 1e-2, 3, "before all of them"},
        {2, 1e-2, 3, "the step before the first"},
        {3, 5e-3, 3, "the first"},
        {4, 5e-3, 3, "between"},
        {5, 5e-3, 6, "the third, which has an earlier step than the second"},
        {8, 2e-3, 6, "the second"},
        {1000, 2e-3, 6, "for ever"},
    };
    struct cairn_digest hash[COUNT(row)];
    struct cairn_run *run;
    struct lab l;

    (void)state;
    lab_open(&l);
    cairn_run_close(lab_init(&l, NULL));
    run = open_run(&l);
    assert_null(run->amendments);
    assert_int_equal(amend(&l, &run, 3, LAB_OVERRIDES("train.learning_rate=5e-3")), 1);
    assert_int_equal(amend(&l, &run, 8, LAB_OVERRIDES("train.learning_rate=2e-3")), 2);
    assert_int_equal(amend(&l, &run, 5, LAB_OVERRIDES("rollout.samples=6")), 3);
    assert_int_equal(amend(&l, &run, 9, LAB_OVERRIDES("train.learning_rate=2.0e-3")), 0);
    assert_int_equal(run->amendments->n, 3);
    for (size_t i = 0; i < COUNT(row); i++) {
        if (rate(run, row[i].step) != row[i].rate ||
            cairn_recipe_i64(cairn_run_recipe(run, row[i].step), "rollout.samples") != row[i].samples)
            fail_msg("step %lld (%s): %g", (long long)row[i].step, row[i].why, rate(run, row[i].step));
        hash[i] = cairn_run_hash(run, row[i].step);
        cairn_run_at(run, row[i].step);
        assert_true(cairn_digest_equal(run->hash, hash[i]));
        assert_ptr_equal(run->recipe, cairn_run_recipe(run, row[i].step));
    }
    assert_true(cairn_digest_equal(hash[0], hash[1]) && cairn_digest_equal(hash[2], hash[3]) &&
                cairn_digest_equal(hash[5], hash[6]));
    assert_false(cairn_digest_equal(hash[1], hash[2]) || cairn_digest_equal(hash[3], hash[4]) ||
                 cairn_digest_equal(hash[4], hash[5]));
    cairn_run_close(run);
    lab_close(&l);
}

/* What an amended recipe has, put back key by key: maps, null sections, elements of lists. */
static void test_revert(void **state)
{
    static const char *const row[][3] = {
        {"train.learning_rate=1e-3", NULL, "a number"},
        {"score.overlong=null", NULL, "a section that goes"},
        {"score.overlong.buffer=2", "score.overlong={buffer: 3, factor: 2.0}", "a part and the whole"},
        {"rollout.dynamic={max_rounds: 3}", NULL, "a section that comes"},
        {"rollout.dynamic.max_rounds=4", "train.updates_per_step=1", "a key in a section that was null"},
        {"data.prompts.0.weight=2.5", NULL, "an element of a list"},
        {"rollout.stop=[7, \"x\"]", NULL, "a list where null was"},
        {"train.betas=[0.8, 0.9]", "train.clip={low: 0.1}", "a list, and a map that merges"},
        {"score.clamp=5", "score.clamp=6", "twice the same"},
        {"train.on_policy=correct", "train.correction=tis", "one key needs the other"},
        {"train.correction=tis", "train.on_policy=correct", "... the other way round"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(row); i++) {
        const char *const *set = LAB_OVERRIDES(row[i][0], row[i][1]);
        struct cairn_recipe *recipe = NULL;
        struct cairn_str diff = {0};
        struct cairn_run *run;
        struct lab l;

        lab_open(&l);
        cairn_run_close(lab_init(&l, NULL));
        run = open_run(&l);
        assert_int_equal(amend(&l, &run, 1, set), 1);
        OK(lab_recipe_load(&recipe, &l, set, err));
        assert_true(cairn_recipe_diff(run->frozen, recipe, CAIRN_SCIENCE | CAIRN_LAYOUT, &diff) > 0);
        cairn_recipe_free(recipe);
        OK(lab_recipe_load(&recipe, &l, NULL, err));
        OK(cairn_amendments_fit(run, recipe, err));
        cairn_recipe_free(recipe);
        OK(lab_recipe_load(&recipe, &l, set, err));
        OK(cairn_amendments_revert(run, 1, recipe, err));
        cairn_str_clear(&diff);
        if (cairn_recipe_diff(run->frozen, recipe, CAIRN_SCIENCE | CAIRN_LAYOUT | CAIRN_OPS, &diff))
            fail_msg("%s: %s", row[i][2], cairn_str_z(&diff));
        cairn_recipe_free(recipe);
        cairn_str_free(&diff);
        cairn_run_close(run);
        /* and both recipes open the run */
        cairn_run_close(lab_init(&l, set));
        cairn_run_close(lab_init(&l, NULL));
        lab_close(&l);
    }
}

/* Evaluations follow the amended interval; the chain is otherwise what it was. */
static void test_chain(void **state)
{
    struct cairn_link *chain = NULL;
    struct cairn_run *run;
    int64_t evals = 0;
    struct lab l;
    int n;

    (void)state;
    lab_open(&l);
    cairn_run_close(lab_init(&l, LAB_OVERRIDES(LAB_EVAL, "run.steps=6", "run.eval_every=4")));
    run = open_run(&l);
    assert_int_equal(amend(&l, &run, 5, LAB_OVERRIDES("run.eval_every=1")), 1);
    OK(cairn_run_chain(run, &chain, &n, err));
    for (int i = 0; i < n; i++)
        if (chain[i].eval && chain[i].stage == CAIRN_STAGE_SCORE)
            evals = evals * 10 + chain[i].step;
    assert_int_equal(evals, 456); /* 0, 4, 5, 6 */
    free(chain);
    cairn_run_close(run);
    lab_close(&l);
}

/* Taken along from another run: on the record with where it comes from, even where it changes nothing; not from a step that is reached by
 * a change. */
static void test_copy(void **state)
{
    struct cairn_amendment copy = {.from_step = 3, .origin = "0123456789abcdef0123456789abcdef", .origin_number = 7};
    struct cairn_run *run;
    json_t *list, *origin;
    struct lab l;
    int number;

    (void)state;
    lab_open(&l);
    cairn_run_close(lab_init(&l, NULL));
    run = open_run(&l);
    copy.set = json_pack("[s, s]", "train.learning_rate=5e-3", "rollout.samples=6");
    OK(cairn_run_amend_copy(run, &copy, &number, err));
    assert_int_equal(number, 1);
    cairn_run_close(run);
    run = open_run(&l);
    copy.origin_number = 8; /* the same again, of another number */
    OK(cairn_run_amend_copy(run, &copy, &number, err));
    assert_int_equal(number, 2);
    cairn_run_close(run);
    run = open_run(&l);
    assert_int_equal(amend(&l, &run, 4, LAB_OVERRIDES("train.learning_rate=2e-3")), 3); /* made here */
    assert_true(rate(run, 2) == 1e-2 && rate(run, 3) == 5e-3 && rate(run, 4) == 2e-3);
    for (int i = 0; i < 3; i++) {
        const struct cairn_amendment *a = &run->amendments->amendment[i];

        assert_int_equal(a->origin_number, i < 2 ? 7 + i : 0);
        assert_string_equal(a->origin, i < 2 ? copy.origin : "");
        assert_true(i == 2 || json_equal(a->set, copy.set));
    }
    list = cairn_amendments_json(run);
    origin = json_object_get(json_array_get(list, 1), "origin");
    assert_string_equal(json_string_value(json_object_get(origin, "run")), copy.origin);
    assert_int_equal(json_integer_value(json_object_get(origin, "number")), 8);
    assert_null(json_object_get(json_array_get(list, 2), "origin"));
    json_decref(list);
    json_decref(copy.set);
    copy.set = json_pack("[s]", "run.seed=9");
    FAILS(CAIRN_ERECIPE, "run.seed", cairn_run_amend_copy(run, &copy, &number, err));
    json_decref(copy.set);
    cairn_run_close(run);
    lab_close(&l);
}

static void test_refused(void **state)
{
    static const struct {
        const char *set;
        int64_t from;
        enum cairn_status status;
        const char *word;
    } row[] = {
        {"train.learning_rate=1", 0, CAIRN_ERECIPE, "step 1 or later"},
        {"checkpoint.keep=9", 2, CAIRN_ERECIPE, "may change at any"},
        {"train={learning_rate: 1.0e-3, parallel: {dp: 1}, loss: sft}", 2, CAIRN_OK, NULL},
        {"rollout={samples: 2, batch: 3}", 2, CAIRN_ERECIPE, "rollout.batch"}, /* an ops key among others */
        {"run.seed=1", 2, CAIRN_ERECIPE, "run.seed"},
        {"model.adapter={rank: 2}", 2, CAIRN_ERECIPE, "model.adapter"},
        {"data.prompts=[]", 2, CAIRN_ERECIPE, "data.prompts"},
        {"train.learning_rate", 2, CAIRN_ERECIPE, "key=value"},
        {"train.learning_rate=-1", 2, CAIRN_ERECIPE, "train.learning_rate"},
        {"score.overlong.buffer=4000", 2, CAIRN_ERECIPE, "score.overlong.buffer"}, /* more than the cap */
        {"train.loss=nothing", 2, CAIRN_ERECIPE, "train.loss"},
    };
    struct cairn_run *run;
    struct lab l;

    (void)state;
    lab_open(&l);
    cairn_run_close(lab_init(&l, NULL));
    run = open_run(&l);
    for (size_t i = 0; i < COUNT(row); i++) {
        struct cairn_str diff = {0};
        int number;

        if (row[i].status == CAIRN_OK)
            OK(cairn_run_amend(run, row[i].from, 1, &row[i].set, 1, &number, &diff, err));
        else
            FAILS(row[i].status, row[i].word, cairn_run_amend(run, row[i].from, 1, &row[i].set, 1, &number, &diff, err));
        cairn_str_free(&diff);
    }
    cairn_run_close(run);
    lab_close(&l);
}

/* Ops keys that no amended step could live with are refused before anything is written. */
static void test_ops_must_fit(void **state)
{
    struct cairn_run *run;
    struct lab l;

    (void)state;
    lab_open(&l);
    cairn_run_close(lab_init(&l, NULL));
    run = open_run(&l);
    assert_int_equal(amend(&l, &run, 2, LAB_OVERRIDES("rollout.dynamic={max_rounds: 2}")), 1);
    cairn_run_close(run);
    FAILS(CAIRN_ERECIPE, "tasks", lab_init_at(&run, &l, NULL, LAB_OVERRIDES("rollout.tasks=2"), err));
    cairn_run_close(lab_init(&l, LAB_OVERRIDES("checkpoint.keep=4")));
    run = open_run(&l);
    assert_int_equal(cairn_recipe_i64(cairn_run_recipe(run, 2), "checkpoint.keep"), 4);
    assert_true(cairn_recipe_has(cairn_run_recipe(run, 2), "rollout.dynamic") && !cairn_recipe_has(run->frozen, "rollout.dynamic"));
    cairn_run_close(run);
    lab_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_views),   cmocka_unit_test(test_revert),       cmocka_unit_test(test_chain),
        cmocka_unit_test(test_copy),    cmocka_unit_test(test_refused),      cmocka_unit_test(test_ops_must_fit),
    };

    return cmocka_run_group_tests_name("amend", tests, NULL, NULL);
}

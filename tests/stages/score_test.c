/* score_test.c - score.c: verdicts to rewards, penalties, advantages and masks by the objective's vectors; metrics against a plain count; grading
 * of real texts through the grader process.
 */
#include "tests/stages/lab.h"

#include <math.h>

#include "stages/score/score.h"

static struct cairn_grader_process *graders; /* started first thing in main */

/* Rollouts of given response lengths, without tokens: rewards need none. */
static void shape(struct cairn_rollouts *r, int64_t n, const int64_t *length, const int32_t *group)
{
    memset(r, 0, sizeof *r);
    r->n = n;
    r->offsets = calloc((size_t)n + 1, sizeof *r->offsets);
    r->prompt_length = calloc((size_t)n + 1, sizeof *r->prompt_length);
    r->prompt_id = calloc((size_t)n + 1, sizeof *r->prompt_id);
    r->group = calloc((size_t)n + 1, sizeof *r->group);
    r->finish = calloc((size_t)n + 1, 1);
    r->used = calloc((size_t)n + 1, 1);
    for (int64_t i = 0; i < n; i++) {
        r->prompt_length[i] = 3;
        r->offsets[i + 1] = r->offsets[i] + 3 + (length ? length[i] : 5);
        r->group[i] = group ? group[i] : 0;
        r->used[i] = 1;
    }
    OK(cairn_rollouts_finish(r, "test", err));
}

static void reward(struct cairn_scores_table *s, const struct cairn_rollouts *r, const struct lab *l, const char *const *override, int64_t cap,
                   const int *verdict)
{
    struct cairn_recipe *recipe = NULL;

    OK(lab_recipe_load(&recipe, l, override, err));
    OK(cairn_scores_create(s, r->n, err));
    for (int64_t i = 0; i < r->n; i++) {
        s->verdict[i] = (uint8_t)verdict[i];
        s->value[i] = (float)verdict[i];
    }
    OK(cairn_score_rewards(s, r, &(struct cairn_score_opts){.recipe = recipe, .cap = cap}, err));
    cairn_recipe_free(recipe);
}

static void near(const char *what, int64_t i, double got, double want)
{
    if (!(fabs(got - want) < 2e-6))
        fail_msg("%s, rollout %lld: %.9g, expected %.9g", what, (long long)i, got, want);
}

#define OFF "score.overlong=null"

/* Objective, section 3: the table. */
static void test_advantage_vectors(void **state)
{
    static const struct {
        int n, right;
        double grpo[2], plain[2], rloo[2]; /* of a right and of a wrong answer */
    } row[] = {
        {4, 1, {1.499997, -0.499999}, {0.75, -0.25}, {1, -1.0 / 3}},
        {4, 2, {0.866024, -0.866024}, {0.5, -0.5}, {2.0 / 3, -2.0 / 3}},
        {2, 1, {0.707106, -0.707106}, {0.5, -0.5}, {1, -1}},
        {8, 1, {2.474867, -0.353552}, {0.875, -0.125}, {1, -1.0 / 7}},
        {4, 4, {0, 0}, {0, 0}, {0, 0}},
        {4, 0, {0, 0}, {0, 0}, {0, 0}},
        {1, 1, {0, 0}, {0, 0}, {0, 0}},
    };
    static const char *const how[3][4] = {{OFF, "score.advantage=grpo", NULL}, {OFF, "score.advantage=grpo", "score.normalise=false", NULL},
                                          {OFF, "score.advantage=rloo", NULL}};
    struct lab l;

    (void)state;
    lab_open(&l);
    for (size_t i = 0; i < COUNT(row); i++)
        for (int h = 0; h < 3; h++) {
            const double *want = h == 0 ? row[i].grpo : h == 1 ? row[i].plain : row[i].rloo;
            struct cairn_scores_table s;
            struct cairn_rollouts r;
            int verdict[8];

            for (int k = 0; k < row[i].n; k++)
                verdict[k] = k < row[i].right;
            shape(&r, row[i].n, NULL, NULL);
            reward(&s, &r, &l, how[h], 100, verdict);
            for (int k = 0; k < row[i].n; k++) {
                near(how[h][1], k, (double)s.advantage[k], want[k >= row[i].right]);
                assert_true(s.mask[k] == 1 && s.reward[k] == (k < row[i].right) && s.penalty[k] == 0);
            }
            cairn_scores_free(&s);
            cairn_rollouts_free(&r);
        }
    lab_close(&l);
}

/* Objective, section 1: the penalty, and what looks at raw and what at shaped rewards. */
static void test_penalty(void **state)
{
    static const int64_t length[] = {1920, 1921, 1984, 2048, 2100};
    static const double want[] = {0, -0.0078125, -0.5, -1, -1};
    static const int verdict[] = {1, 1, 1, 1, 1};
    double mean = -2.5078125 / 5, squares = 0, std;
    struct cairn_scores_table s;
    struct cairn_rollouts r;
    struct lab l;

    (void)state;
    lab_open(&l);
    shape(&r, 5, length, NULL);
    reward(&s, &r, &l, LAB_OVERRIDES("score.overlong={buffer: 128, factor: 1.0}", "rollout.max_new_tokens=2048"), 2048, verdict);
    for (int i = 0; i < 5; i++)
        squares += (want[i] - mean) * (want[i] - mean);
    std = sqrt(squares / 4);
    for (int i = 0; i < 5; i++) {
        assert_true(s.penalty[i] == (float)want[i]);
        assert_true(s.reward[i] == 1); /* raw stays raw */
        near("advantage of the shaped reward", i, (double)s.advantage[i], (want[i] - mean) / (std + 1e-6));
    }
    cairn_scores_free(&s);
    cairn_rollouts_free(&r);
    /* the cap of the rollouts counts (an evaluation's own), not the recipe's */
    shape(&r, 2, (const int64_t[]){100, 60}, NULL);
    reward(&s, &r, &l, LAB_OVERRIDES("score.overlong={buffer: 50, factor: 2.0}", "rollout.max_new_tokens=2048"), 100, verdict);
    assert_true(s.penalty[0] == -2 && s.penalty[1] == (float)(-2 * 10 / 50.0));
    cairn_scores_free(&s);
    cairn_rollouts_free(&r);
    lab_close(&l);
}

static void test_options(void **state)
{
    static const int64_t length[] = {5, 10, 5, 10};
    static const int verdict[] = {1, 1, 0, 0};
    struct cairn_scores_table s;
    struct cairn_rollouts r;
    struct lab l;

    (void)state;
    lab_open(&l);
    shape(&r, 4, length, NULL);
    r.finish[1] = r.finish[3] = CAIRN_FINISH_LENGTH;
    reward(&s, &r, &l, LAB_OVERRIDES(OFF, "score.reward={right: 2, wrong: -1}"), 10, verdict);
    assert_true(s.reward[0] == 2 && s.reward[1] == 2 && s.reward[2] == -1 && s.reward[3] == -1); /* truncated: graded like any other */
    assert_true(s.mask[1] == 1 && s.mask[3] == 1);
    cairn_scores_free(&s);
    reward(&s, &r, &l, LAB_OVERRIDES(OFF, "score.reward={right: 2, wrong: -1, truncated: zero}"), 10, verdict);
    assert_true(s.reward[0] == 2 && s.reward[1] == 0 && s.reward[2] == -1 && s.reward[3] == 0);
    cairn_scores_free(&s);
    reward(&s, &r, &l, LAB_OVERRIDES(OFF, "score.mask_truncated=true"), 10, verdict);
    assert_true(s.mask[0] == 1 && s.mask[1] == 0 && s.mask[2] == 1 && s.mask[3] == 0);
    near("still in the group's statistics", 0, (double)s.advantage[0], 0.866024);
    near("its own is there", 1, (double)s.advantage[1], 0.866024);
    cairn_scores_free(&s);
    reward(&s, &r, &l, LAB_OVERRIDES(OFF, "score.clamp=0.5"), 10, verdict);
    near("clamped", 0, (double)s.advantage[0], 0.5);
    near("clamped", 2, (double)s.advantage[2], -0.5);
    cairn_scores_free(&s);
    cairn_rollouts_free(&r);
    lab_close(&l);
}

/* Uneven groups by their own members; what is unused is no member. */
static void test_groups(void **state)
{
    static const int32_t group[] = {0, 0, 0, 0, 1, 1, 4, 4, 4};
    static const int verdict[] = {1, 0, 0, 0, 1, 0, 1, 1, 0};
    struct cairn_scores_table s, half;
    struct cairn_rollouts r;
    struct lab l;
    double sum = 0;

    (void)state;
    lab_open(&l);
    shape(&r, 9, NULL, group);
    reward(&s, &r, &l, LAB_OVERRIDES(OFF), 100, verdict);
    for (int i = 0; i < 9; i++) {
        sum += (double)s.advantage[i];
        if (i == 8 || group[i + 1] != group[i]) {
            near("mean of a group", i, sum, 0);
            sum = 0;
        }
        assert_int_equal(s.group[i], group[i]);
    }
    r.used[0] = r.used[6] = 0;
    r.finish[8] = CAIRN_FINISH_ABORTED;
    reward(&half, &r, &l, LAB_OVERRIDES(OFF), 100, verdict);
    assert_true(half.advantage[0] == 0 && half.mask[0] == 0 && half.advantage[6] == 0 && half.mask[6] == 0);
    assert_true(half.reward[0] == 1); /* its verdict is on record */
    for (int i = 1; i < 4; i++)
        assert_true(half.advantage[i] == 0 && half.mask[i] == 1); /* three wrong ones are left */
    near("untouched", 4, (double)half.advantage[4], (double)s.advantage[4]);
    near("two are left", 7, (double)half.advantage[7], 0.707106);
    assert_true(half.mask[8] == 0); /* aborted: nothing to learn from */
    cairn_scores_free(&s);
    cairn_scores_free(&half);
    cairn_rollouts_free(&r);
    lab_close(&l);
}

/* ---- metrics --------------------------------------------------------------------------------------------------------- */

static double number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    if (!json_is_number(v))
        fail_msg("no metric %s", key);
    return json_number_value(v);
}

static int ascending(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static void test_metrics(void **state)
{
    struct lab l;

    (void)state;
    lab_open(&l);
    for (uint32_t seed = 0; seed < 40; seed++) {
        enum { N = 60 };
        int64_t length[N], groups = 0, right_groups = 0, wrong_groups = 0, any = 0;
        int32_t group[N];
        int verdict[N];
        double used = 0, right = 0, raw = 0, penalty = 0, finish[3] = {0}, right_stop = 0, lengths[N], total = 0;
        struct cairn_scores_table s;
        struct cairn_rollouts r;
        json_t *m;
        int n = seed ? N : 3;

        for (int i = 0; i < n; i++) {
            length[i] = lab_draw(seed, (uint32_t)i, 30);
            group[i] = i / (2 + (int)(seed % 5));
            verdict[i] = (int)lab_draw(seed, 100 + (uint32_t)i, 3) == 0;
        }
        shape(&r, n, length, group);
        for (int i = 0; i < n; i++) {
            r.finish[i] = (uint8_t)lab_draw(seed, 200 + (uint32_t)i, 3);
            r.used[i] = seed ? lab_draw(seed, 300 + (uint32_t)i, 4) > 0 : 0; /* seed 0: nothing used */
        }
        reward(&s, &r, &l, LAB_OVERRIDES("score.overlong={buffer: 10, factor: 0.5}", "rollout.max_new_tokens=25"), 25, verdict);
        m = cairn_score_metrics(&s, &r);
        for (int g = 0; g <= group[n - 1]; g++) {
            int members = 0, good = 0;

            for (int i = 0; i < n; i++)
                if (group[i] == g && r.used[i]) {
                    members++;
                    good += verdict[i];
                }
            groups += members > 0;
            right_groups += members && good == members;
            wrong_groups += members && !good;
            any += good > 0;
        }
        for (int i = 0; i < n; i++)
            if (r.used[i]) {
                lengths[(int)used++] = (double)length[i];
                total += (double)length[i];
                right += verdict[i];
                raw += verdict[i];
                penalty -= length[i] <= 15 ? 0 : length[i] >= 25 ? 0.5 : 0.5 * (double)(length[i] - 15) / 10;
                finish[r.finish[i]]++;
                right_stop += verdict[i] && r.finish[i] == CAIRN_FINISH_STOP;
            }
        qsort(lengths, (size_t)used, sizeof *lengths, ascending);
        assert_true(number(m, "rollouts") == used);
        assert_true(number(m, "groups/kept") == (double)groups && number(m, "groups/all_right") == (double)right_groups &&
                    number(m, "groups/all_wrong") == (double)wrong_groups);
        if (used > 0) {
            near("raw", seed, number(m, "reward/raw_mean"), raw / used);
            near("penalty", seed, number(m, "reward/penalty_mean"), penalty / used);
            near("shaped", seed, number(m, "reward/shaped_mean"), (raw + penalty) / used);
            near("accuracy", seed, number(m, "accuracy"), right / used);
            near("accuracy_finished", seed, number(m, "accuracy_finished"), finish[0] > 0 ? right_stop / finish[0] : 0);
            near("pass_at_k", seed, number(m, "pass_at_k"), (double)any / (double)groups);
            near("length/mean", seed, number(m, "length/mean"), total / used);
            /* the smallest length that at least half, nine tenths, of them do not exceed */
            near("length/p50", seed, number(m, "length/p50"), lengths[(int)ceil(0.5 * used) - 1]);
            near("length/p90", seed, number(m, "length/p90"), lengths[(int)ceil(0.9 * used - 1e-9) - 1]);
            near("length/max", seed, number(m, "length/max"), lengths[(int)used - 1]);
            near("capped_share", seed, number(m, "capped_share"), finish[1] / used);
            near("finish/stop", seed, number(m, "finish/stop"), finish[0] / used);
            near("finish/length", seed, number(m, "finish/length"), finish[1] / used);
            near("finish/aborted", seed, number(m, "finish/aborted"), finish[2] / used);
        } else {
            assert_true(number(m, "accuracy") == 0 && number(m, "length/max") == 0 && number(m, "pass_at_k") == 0);
        }
        json_decref(m);
        cairn_scores_free(&s);
        cairn_rollouts_free(&r);
    }
    lab_close(&l);
}

/* ---- grading ------------------------------------------------------------------------------------------------------------ */

/* Rollout i answers prompt i % 8 ("1+0=" and so on: 1, 4, 7, ...) with text[i]; a stop token behind it where `stop`. */
static void texts(struct cairn_rollouts *r, const char *const *text, int n, int stop)
{
    int64_t at = 0;

    lab_rollouts(r, n, 1, 0, 0, 5);
    free(r->tokens);
    r->tokens = calloc(10000, sizeof *r->tokens);
    for (int i = 0; i < n; i++) {
        r->prompt_id[i] = i % LAB_PROMPTS;
        r->prompt_length[i] = 2;
        at += 2;
        for (const char *p = text[i]; *p; p++)
            r->tokens[at++] = (unsigned char)*p;
        if (stop)
            r->tokens[at++] = LAB_STOP;
        r->offsets[i + 1] = at;
    }
    OK(cairn_rollouts_finish(r, "test", err));
}

static void test_grade(void **state)
{
    static const struct {
        const char *text;
        int right;
        const char *extracted;
    } row[] = {
        {"Answer: 1", 1, "1"},
        {"well, 2+2 is 4. Answer: 4", 1, "4"},
        {"Answer: 3\nno: Answer: 7", 1, "7"},
        {"Answer: 9", 0, "9"},
        {"13", 0, NULL},
        {"", 0, ""},
        {"Answer: 19.0", 1, "19.0"},
        {"\xff\xfe Answer: \xc3", 0, NULL}, /* no UTF-8 */
        {"Answer: 1/1", 1, "1/1"},
    };
    char path[300];
    struct cairn_recipe *recipe = NULL;
    struct cairn_tokenizer *tokenizer = NULL;
    struct cairn_scores_table s, first;
    struct cairn_prompts files[1];
    struct cairn_rollouts r;
    const char *text[COUNT(row)];
    struct lab l;

    (void)state;
    lab_open(&l);
    OK(lab_recipe_load(&recipe, &l, NULL, err));
    snprintf(path, sizeof path, "%s/tokenizer.json", l.dir);
    OK(cairn_tokenizer_load(&tokenizer, path, err));
    snprintf(path, sizeof path, "%s/prompts.jsonl", l.dir);
    OK(cairn_prompts_load(&files[0], path, NULL, err));
    for (size_t i = 0; i < COUNT(row); i++)
        text[i] = row[i].text;
    for (int stop = 0; stop < 2; stop++) {
        struct cairn_score_opts o = {.recipe = recipe, .graders = graders, .tokenizer = tokenizer, .files = files, .nfiles = 1, .cap = 100};

        texts(&r, text, (int)COUNT(row), stop);
        OK(cairn_scores_create(&s, r.n, err));
        OK(cairn_score_grade(&s, &r, 0, r.n, &o, err));
        for (int i = 0; i < (int)COUNT(row); i++) {
            if (s.verdict[i] != row[i].right)
                fail_msg("\"%s\": verdict %d, extracted \"%s\"", row[i].text, s.verdict[i], s.extracted[i]);
            if (row[i].extracted)
                assert_string_equal(s.extracted[i], row[i].extracted);
        }
        if (stop) {
            assert_memory_equal(s.verdict, first.verdict, (size_t)r.n);
        } else {
            OK(cairn_scores_create(&first, r.n, err));
            memcpy(first.verdict, s.verdict, (size_t)r.n);
            /* in pieces: the same */
            cairn_scores_free(&s);
            OK(cairn_scores_create(&s, r.n, err));
            OK(cairn_score_grade(&s, &r, 4, r.n, &o, err));
            OK(cairn_score_grade(&s, &r, 0, 4, &o, err));
            assert_memory_equal(s.verdict, first.verdict, (size_t)r.n);
        }
        if (!stop) {
            r.prompt_id[2] = LAB_PROMPTS; /* a row behind the last */
            FAILS(CAIRN_EDATA, "rollout 2: prompt 8 of file 0 does not exist", cairn_score_grade(&s, &r, 0, r.n, &o, err));
            r.prompt_id[2] = (int64_t)3 << 32;
            FAILS(CAIRN_EDATA, "file 3", cairn_score_grade(&s, &r, 0, r.n, &o, err));
            r.prompt_id[2] = -1;
            FAILS(CAIRN_EDATA, "does not exist", cairn_score_grade(&s, &r, 0, r.n, &o, err));
        }
        cairn_scores_free(&s);
        cairn_rollouts_free(&r);
    }
    cairn_scores_free(&first);
    cairn_prompts_free(&files[0]);
    cairn_tokenizer_free(tokenizer);
    cairn_recipe_free(recipe);
    lab_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_advantage_vectors), cmocka_unit_test(test_penalty), cmocka_unit_test(test_options),
                                       cmocka_unit_test(test_groups),            cmocka_unit_test(test_metrics), cmocka_unit_test(test_grade)};
    int rc;

    if (cairn_grader_process_start(&graders, NULL, NULL) != CAIRN_OK)
        return 1;
    rc = cmocka_run_group_tests_name("score", tests, NULL, NULL);
    cairn_grader_process_stop(graders);
    return rc;
}

/* replay_verb_test.c - `cairn replay --regenerate` against rollouts that were tampered with so well that every digest holds;
 * slices, as functions. */
#include "tests/stages/lab.h"

#include "ckpt/attempt.h"
#include "grade/grade.h"
#include "tools/replay_only.h"
#include "tools/replay_scores.h"

/* Makes the rollout artefact of a step anew, consistent in every digest, after `change`. */
static void forge(const struct lab *l, int step, void (*change)(struct cairn_rollouts *r))
{
    struct cairn_reader *reader = NULL;
    struct cairn_manifest *m;
    struct cairn_attempt *a = NULL;
    struct cairn_rollouts r;
    char dir[400];
    int64_t at = 0;
    int units;

    snprintf(dir, sizeof dir, "%s/step/%06d/rollout", l->run, step);
    OK(cairn_reader_open(&reader, dir, NULL, err));
    OK(cairn_rollouts_load(&r, reader, err));
    OK(cairn_unit_count(reader, &units, err));
    change(&r);
    m = cairn_manifest_create("rollout", step, cairn_reader_manifest(reader)->run);
    assert_non_null(m);
    m->recipe = cairn_reader_manifest(reader)->recipe;
    for (int i = 0; i < cairn_reader_manifest(reader)->ninputs; i++)
        OK(cairn_manifest_add_input(m, cairn_reader_manifest(reader)->inputs[i].path,
                                    cairn_reader_manifest(reader)->inputs[i].digest, err));
    OK(cairn_manifest_set_fingerprint(m, cairn_reader_manifest(reader)->numerics, cairn_reader_manifest(reader)->layout, err));
    json_object_update(m->content, cairn_reader_manifest(reader)->content);
    cairn_reader_close(reader);
    OK(cairn_tree_remove(dir, err));
    OK(cairn_attempt_begin(&a, dir, &(struct cairn_attempt_opts){.identity = cairn_manifest_identity(m)}, err));
    for (int u = 0; u < units; u++) { /* of 8 groups of 3 */
        struct cairn_shard_entry *entry = NULL;
        int64_t end = at + 24 < r.n ? at + 24 : r.n;

        OK(cairn_rollouts_write(&r, at, end, a, u, "", &entry, err));
        OK(cairn_manifest_add_shard(m, entry, err));
        at = end;
    }
    OK(cairn_attempt_commit(a, m, err));
    cairn_attempt_end(a);
    cairn_manifest_destroy(m);
    cairn_rollouts_free(&r);
}

static void nothing(struct cairn_rollouts *r)
{
    (void)r;
}

static void a_token(struct cairn_rollouts *r)
{
    int32_t *t = &r->tokens[r->offsets[7] + r->prompt_length[7] + 1]; /* not the first one */

    *t = *t == 65 ? 66 : 65;
}

static void a_prompt(struct cairn_rollouts *r)
{
    r->tokens[r->offsets[4]] ^= 1;
}

static void a_bit(struct cairn_rollouts *r)
{
    uint32_t bits;

    memcpy(&bits, &r->logprobs[r->response[9] + 2], sizeof bits);
    bits ^= 1;
    memcpy(&r->logprobs[r->response[9] + 2], &bits, sizeof bits);
}

static void an_end(struct cairn_rollouts *r)
{
    r->finish[2] = r->finish[2] == CAIRN_FINISH_STOP ? CAIRN_FINISH_LENGTH : CAIRN_FINISH_STOP;
}

/* Exit code of `cairn replay RUN --regenerate ...`; said: both its outputs. */
static int regenerate(const struct lab *l, const char *more, char said[2000])
{
    char command[1200];
    size_t n;
    FILE *f;
    int rc;

    snprintf(command, sizeof command, "%s/bin/cairn replay %s --regenerate %s 2>&1", cairn_install_dir(), l->run, more);
    f = popen(command, "r");
    assert_non_null(f);
    n = fread(said, 1, 1999, f);
    said[n] = 0;
    rc = pclose(f);
    assert_true(WIFEXITED(rc));
    return WEXITSTATUS(rc);
}

static void test_forged(void **state)
{
    static const struct {
        void (*change)(struct cairn_rollouts *r);
        int rc;
        const char *says[3];
    } row[] = {
        {nothing, 0, {"12 of 12", "equal bits"}},
        {a_token, 76, {"rollout 7 (group 2, sample 1)", "response token 1 =", "1 differ"}},
        {a_prompt, 76, {"group 1", "another prompt", "prompt token 0"}},
        {a_bit, 76, {"rollout 9 (group 3, sample 0)", "log-probability", "response token 2"}},
        {an_end, 76, {"rollout 2 (group 0, sample 2)", "ended by", NULL}},
    };
    char said[2000];

    (void)state;
    for (size_t i = 0; i < COUNT(row); i++) {
        struct lab l;
        int rc;

        lab_open(&l);
        cairn_run_close(lab_init(&l, LAB_OVERRIDES("model.init.initializer_range=0.1")));
        lab_stage_ok("rollout", l.run, 1, NULL);
        forge(&l, 1, row[i].change);
        rc = regenerate(&l, "", said);
        if (rc != row[i].rc)
            fail_msg("row %zu: %d, not %d: %s", i, rc, row[i].rc, said);
        for (int k = 0; k < 3 && row[i].says[k]; k++)
            if (!strstr(said, row[i].says[k]))
                fail_msg("row %zu does not say \"%s\": %s", i, row[i].says[k], said);
        if (row[i].change == a_token) { /* what is not looked at is not seen */
            assert_int_equal(regenerate(&l, "--only sample=0", said), 0);
            assert_int_equal(regenerate(&l, "--only sample=1", said), 76);
        }
        lab_close(&l);
    }
}

static void a_carried_token(struct cairn_rollouts *r)
{
    r->tokens[r->offsets[1] - 1] ^= 1; /* the last of rollout 0 */
}

static void a_carried_bit(struct cairn_rollouts *r)
{
    uint32_t bits;

    memcpy(&bits, &r->logprobs[r->response[1] + 1], sizeof bits);
    bits ^= 1;
    memcpy(&r->logprobs[r->response[1] + 1], &bits, sizeof bits);
}

static void a_carried_place(struct cairn_rollouts *r)
{
    r->carried[0] = r->carried[1] = r->carried[2] = 0;
}

static void a_carried_choice(struct cairn_rollouts *r)
{
    ((uint8_t *)r->experts)[(r->offsets[1] - 1) * r->expert_row + 2] ^= 1;
}

static void a_choice(struct cairn_rollouts *r)
{
    ((uint8_t *)r->experts)[(r->offsets[9] - 9 + 2) * r->expert_row + 1] ^= 3;
}

/* What was carried is held against the step before, and experts against those that are chosen again. */
static void test_carried(void **state)
{
    static const struct {
        void (*change)(struct cairn_rollouts *r);
        int rc;
        const char *says[3];
    } row[] = {
        {nothing, 0, {"held against the step before: equal bits"}},
        {a_carried_token,
         76,
         {"step/000002/rollout: rollout 0 (group 0, sample 0)", "was carried from the step before and has other tokens there"}},
        {a_carried_bit,
         76,
         {"rollout 1 (group 0, sample 1)", "was carried from the step before, where response token 1 has log-probability"}},
        {a_carried_place, 76, {"rollout 0 (group 0, sample 0)", "was carried"}},
        {a_carried_choice, 76, {"rollout 1 ", "was carried from the step before and has other choices of experts there"}},
        {a_choice, 76, {"rollout 9", "has other choices of experts for token 2 than made again"}},
    };
    char said[2000];
    struct lab l;

    (void)state;
    lab_open(&l);
    lab_prompts(&l, "prompts.jsonl", 60, 1);
    cairn_run_close(
        lab_init(&l, LAB_OVERRIDES("model.init.initializer_range=0.1", "rollout.dynamic={max_rounds: 20}", "rollout.carry=true",
                                   "train.correction=tis", "rollout.store=[experts]", "score.grader=some",
                                   "score.graders={some: {kind: regex, pattern: '(?s)\\A[ -_]'}}")));
    for (int s = 0; s < 4; s++)
        lab_stage_ok(cairn_stage_name((enum cairn_stage)s), l.run, 1, NULL);
    for (size_t i = 0; i < COUNT(row); i++) {
        char dir[400];
        int rc;

        snprintf(dir, sizeof dir, "%s/step/000002/rollout", l.run);
        if (i)
            OK(cairn_tree_remove(dir, err));
        lab_stage_ok("rollout", l.run, 2, NULL);
        forge(&l, 2, row[i].change);
        rc = regenerate(&l, "--only step=2", said);
        if (rc != row[i].rc)
            fail_msg("row %zu: %d, not %d: %s", i, rc, row[i].rc, said);
        for (int k = 0; k < 3 && row[i].says[k]; k++)
            if (!strstr(said, row[i].says[k]))
                fail_msg("row %zu does not say \"%s\": %s", i, row[i].says[k], said);
    }
    lab_close(&l);
}

/* Truncated sampling: both log-probabilities; a prompt twice in a step: its samples are numbered on; a share of them. */
static void test_ways(void **state)
{
    char said[2000];
    struct lab l;

    (void)state;
    lab_open(&l);
    cairn_run_close(
        lab_init(&l, LAB_OVERRIDES("rollout.top_p=0.8", "rollout.min_p=0.001", "train.truncation=ignore", "rollout.prompts=12")));
    lab_stage_ok("rollout", l.run, 1, NULL);
    assert_int_equal(regenerate(&l, "", said), 0);
    assert_non_null(strstr(said, "36 of 36"));
    assert_int_equal(regenerate(&l, "--sample 0.05", said), 0);
    assert_non_null(strstr(said, "2 of 36"));
    assert_int_equal(regenerate(&l, "--only step=7", said), 69);
    lab_close(&l);
}

/* ---- what --score stores ------------------------------------------------------------------------------------------------ */

/* Link i's scores, made up: the same for the same i. */
static void scores_make(struct cairn_scores_table *s, int i)
{
    OK(cairn_scores_create(s, 12, err));
    for (int64_t k = 0; k < s->n; k++) {
        s->verdict[k] = (uint8_t)((k + i) % 3 == 0);
        s->value[k] = s->verdict[k] ? 1 : (float)k / 32;
        s->status[k] = (uint8_t)(k % 2);
        s->reward[k] = (float)(i + 1) * s->value[k];
        s->group[k] = (int32_t)(k / 3);
        if (k % 4)
            s->extracted[k] = cairn_format("%d:%d", i, (int)k);
    }
}

/* Puts links [from, to), of which those below `there` must have been finished by an attempt that died. */
static void scores_put(struct cairn_replay_scores *x, int from, int to, int there)
{
    for (int i = from; i < to; i++) {
        struct cairn_scores_table s, got;
        json_t *metrics = json_pack("{s:i}", "accuracy", i);
        int taken;

        scores_make(&s, i);
        OK(cairn_scores_create(&got, s.n, err));
        OK(cairn_replay_scores_take(x, i, &got, &taken, err));
        assert_int_equal(taken, i < there);
        if (taken) {
            assert_memory_equal(got.verdict, s.verdict, (size_t)s.n);
            assert_memory_equal(got.status, s.status, (size_t)s.n);
            assert_memory_equal(got.value, s.value, (size_t)s.n * sizeof *s.value);
        }
        OK(cairn_replay_scores_put(x, i, &s, metrics, err));
        cairn_scores_free(&s);
        cairn_scores_free(&got);
        json_decref(metrics);
    }
}

/* Interrupted between links and taken up again, or at one go: the same artefact; of its links none twice. */
static void test_scores_stored(void **state)
{
    static const struct {
        const char *name;
        double span_s; /* 0: each link is made durable by itself */
        int died, there;
    } row[] = {{"whole", 1000, 0, 0}, {"died", 0, 3, 3}, {"at-once", 1000, 2, 0}, {"first", 0, 1, 1}, {"last", 0, 4, 4}};
    const struct cairn_link link[] = {{1, CAIRN_STAGE_ROLLOUT, NULL},
                                      {2, CAIRN_STAGE_ROLLOUT, NULL},
                                      {3, CAIRN_STAGE_ROLLOUT, NULL},
                                      {4, CAIRN_STAGE_ROLLOUT, NULL}};
    const struct cairn_digest recipe = {1, 2}, other = {3, 4};
    struct cairn_replay_scores *x = NULL;
    struct cairn_digest first = {0, 0};
    struct cairn_run *run;
    struct lab l;

    (void)state;
    lab_open(&l);
    run = lab_init(&l, LAB_OVERRIDES("run.steps=4"));
    for (int step = 1; step <= 4; step++)
        for (int s = 0; s < (step < 4 ? 4 : 1); s++)
            lab_stage_ok(cairn_stage_name((enum cairn_stage)s), l.run, step, NULL);
    for (size_t i = 0; i < COUNT(row); i++) {
        struct cairn_manifest_head head;
        char dir[400];

        if (row[i].died) {
            OK(cairn_replay_scores_open(&x, run, row[i].name, recipe, link, 4, row[i].span_s, err));
            scores_put(x, 0, row[i].died, 0);
            cairn_replay_scores_close(x);
        }
        OK(cairn_replay_scores_open(&x, run, row[i].name, recipe, link, 4, row[i].span_s, err));
        scores_put(x, 0, 4, row[i].there);
        OK(cairn_replay_scores_commit(x, err));
        cairn_replay_scores_close(x);
        snprintf(dir, sizeof dir, "%s/replay/%s/1", l.run, row[i].name);
        OK(cairn_manifest_head(&head, dir, err));
        if (!i)
            first = head.digest;
        else if (!cairn_digest_equal(first, head.digest))
            fail_msg("%s: another artefact", row[i].name);
        /* Again, and by another recipe. */
        OK(cairn_replay_scores_open(&x, run, row[i].name, recipe, link, 4, 1, err));
        scores_put(x, 0, 4, 0);
        OK(cairn_replay_scores_commit(x, err));
        cairn_replay_scores_close(x);
        snprintf(dir, sizeof dir, "%s/replay/%s/2", l.run, row[i].name);
        assert_false(cairn_path_exists(dir));
        FAILS(CAIRN_EUSAGE, "holds scores by another recipe",
              cairn_replay_scores_open(&x, run, row[i].name, other, link, 4, 1, err));
    }
    cairn_run_close(run);
    lab_close(&l);
}

/* ---- slices --------------------------------------------------------------------------------------------------------- */

static void test_only_text(void **state)
{
    static const char *const wrong[] = {"",          "step",           "step=",      "step=a",       "step=3-1",
                                        "step=1,",   "step=-1",        "colour=red", "finish=never", "verdict=maybe",
                                        "sample=1-", "verdict=right,", "eval="};
    struct cairn_only o = {0};

    (void)state;
    for (size_t i = 0; i < COUNT(wrong); i++)
        FAILS(CAIRN_EUSAGE, "--only", cairn_only_add(&o, wrong[i], err));
    cairn_only_free(&o);
}

static void test_only(void **state)
{
    static const struct {
        const char *say[3];
        unsigned want; /* bits: rollouts of the six below */
    } row[] = {
        {{NULL}, 0x3f},
        {{"sample=0"}, 0x09},
        {{"sample=1-2"}, 0x36},
        {{"sample=0", "sample=2"}, 0x2d},
        {{"verdict=right"}, 0x03},
        {{"verdict=right,no_answer"}, 0x13},
        {{"verdict=wrong", "finish=length"}, 0x20},
        {{"finish=stop,length"}, 0x3f},
        {{"prompt=a"}, 0x07},
        {{"prompt=a", "prompt=b,c"}, 0x3f},
        {{"prompt=b,c", "sample=1"}, 0x10},
        {{"prompt=x"}, 0},
        {{"step=1-2,9"}, 0x3f}, /* of links, not of rollouts */
    };
    struct cairn_scores_table s;
    struct cairn_rollouts r;

    (void)state;
    lab_rollouts(&r, 2, 3, 2, 0, 1);
    OK(cairn_scores_create(&s, r.n, err));
    s.verdict[0] = s.verdict[1] = 1;
    s.status[4] = CAIRN_VERDICT_NO_ANSWER;
    r.finish[5] = CAIRN_FINISH_LENGTH;
    for (size_t i = 0; i < COUNT(row); i++) {
        struct cairn_only o = {0};
        unsigned got = 0;

        for (int k = 0; k < 3 && row[i].say[k]; k++)
            OK(cairn_only_add(&o, row[i].say[k], err));
        for (int64_t k = 0; k < r.n; k++)
            got |= (unsigned)cairn_only_takes(&o, &r, k, k < 3 ? "a" : "b,c", &s) << k;
        if (got != row[i].want)
            fail_msg("row %zu: %#x, not %#x", i, got, row[i].want);
        if (o.verdict)
            assert_false(cairn_only_takes(&o, &r, 0, "a", NULL));
        cairn_only_free(&o);
    }
    cairn_scores_free(&s);
    cairn_rollouts_free(&r);
}

static void test_only_links(void **state)
{
    static const struct {
        const char *say[2];
        int want[4]; /* step 1, step 3, eval held of step 3, eval other of step 0 */
    } row[] = {
        {{NULL}, {1, 1, 1, 1}},
        {{"step=1"}, {1, 0, 0, 0}},
        {{"step=2-3"}, {0, 1, 0, 0}},
        {{"eval=held"}, {0, 0, 1, 0}},
        {{"eval=held", "step=0-2"}, {0, 0, 0, 0}},
        {{"eval=other", "step=0"}, {0, 0, 0, 1}},
    };
    static const struct cairn_link link[] = {{1, CAIRN_STAGE_ROLLOUT, NULL},
                                             {3, CAIRN_STAGE_ROLLOUT, NULL},
                                             {3, CAIRN_STAGE_ROLLOUT, "held"},
                                             {0, CAIRN_STAGE_ROLLOUT, "other"}};

    (void)state;
    for (size_t i = 0; i < COUNT(row); i++) {
        struct cairn_only o = {0};

        for (int k = 0; k < 2 && row[i].say[k]; k++)
            OK(cairn_only_add(&o, row[i].say[k], err));
        for (size_t k = 0; k < COUNT(link); k++)
            if (cairn_only_link(&o, &link[k]) != row[i].want[k])
                fail_msg("row %zu, link %zu", i, k);
        cairn_only_free(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forged),        cmocka_unit_test(test_carried),
                                       cmocka_unit_test(test_scores_stored), cmocka_unit_test(test_ways),
                                       cmocka_unit_test(test_only_text),     cmocka_unit_test(test_only),
                                       cmocka_unit_test(test_only_links)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

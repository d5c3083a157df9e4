/* dynamic_test.c - dynamic sampling over prompts that are always right, never right, and now and then: the batch is full, every
 * prompt is accounted for, what is kept is the list's and nobody's speed, kills change nothing, ranks change nothing, and a set
 * that can give nothing ends with the counts.
 *
 * The model is random; graders by regular expression say of any response that it is right (file 0), wrong (file 1), or look at its
 * first character (file 2).
 */
#include "tests/stages/lab.h"

#include "ckpt/reader.h"
#include "stages/common/amend.h"

#define ROLLOUT1 "step/000001/rollout"
#define ROLLOUT2 "step/000002/rollout"
#define GRADERS                                                                                                                    \
    "score.graders={all: {kind: regex, pattern: '(?s).*'}, none: {kind: regex, pattern: '(?!)'}, some: {kind: regex, pattern: "    \
    "'(?s)\\A[ -_]'}}"
#define FILES                                                                                                                      \
    "data.prompts=[{path: %s/a.jsonl, grader: all, weight: 1}, {path: %s/b.jsonl, grader: none, weight: 1}, {path: %s/c.jsonl, "   \
    "grader: some, "                                                                                                               \
    "weight: 3}]"
#define CARRY   "rollout.carry=true", "train.correction=tis"
#define DYNAMIC "rollout.dynamic={max_rounds: 20}", "rollout.prompts=6", "rollout.samples=4"

static struct cairn_digest digest_at(const char *run, const char *relative)
{
    struct cairn_manifest_head head;
    char path[600];

    snprintf(path, sizeof path, "%s/%s", run, relative);
    OK(cairn_manifest_head(&head, path, err));
    return head.digest;
}

static void load(struct cairn_rollouts *r, json_t **content, const char *run, const char *relative)
{
    struct cairn_reader *reader = NULL;
    char path[600];

    snprintf(path, sizeof path, "%s/%s", run, relative);
    OK(cairn_reader_open(&reader, path, NULL, err));
    OK(cairn_rollouts_load(r, reader, err));
    *content = json_deep_copy(cairn_reader_manifest(reader)->content);
    cairn_reader_close(reader);
}

/* A run with the three files. */
static void run_make(const struct lab *l, const char *name, char path[300], const char *one, const char *two)
{
    char files[1000];
    const char *override[] = {files, GRADERS, "rollout.store=[text, experts]", DYNAMIC, one, two, NULL};
    struct cairn_run *run = NULL;
    struct cairn_recipe *recipe = NULL;
    char *yaml = cairn_path_join(l->dir, "recipe.yaml");
    int n = 0;

    snprintf(files, sizeof files, FILES, l->dir, l->dir, l->dir);
    while (override[n])
        n++;
    snprintf(path, 300, "%s/%s", l->dir, name);
    OK(cairn_recipe_load(&recipe, yaml, n, override, err));
    OK(cairn_run_init(&run, path, recipe, err));
    cairn_run_close(run);
    free(yaml);
}

static void prompts_put(const struct lab *l)
{
    lab_prompts(l, "a.jsonl", 9, 1);
    lab_prompts(l, "b.jsonl", 7, 30);
    lab_prompts(l, "c.jsonl", 40, 50);
}

static int64_t count(const json_t *content, const char *key)
{
    const json_t *v = json_object_get(json_object_get(content, "dynamic"), key);

    return json_integer_value(v ? v : json_object_get(content, key));
}

/* What a step has stored, held against its own counts. *surplus: prompts of mixed groups that were not kept, in list order; returns
 * their number. first (n): prompts that must stand at the list's beginning. */
static int64_t account(const char *run, const char *relative, int64_t want, const int64_t *first, int64_t nfirst,
                       int64_t surplus[100])
{
    int64_t kept = 0, mixed = 0, right = 0, wrong = 0, n = 0, groups = 0;
    struct cairn_rollouts r;
    json_t *content, *front;

    load(&r, &content, run, relative);
    assert_non_null(r.value);
    for (int64_t i = 0; i < r.n; i += 4, groups++) {
        int hits = 0, is_mixed;

        for (int s = 0; s < 4; s++) { /* whole groups, samples in order, verdicts as the files say */
            assert_true(r.group[i + s] == groups && r.sample[i + s] == s && r.prompt_id[i + s] == r.prompt_id[i]);
            assert_true(r.verdict[i + s] <= 1 && r.value[i + s] == r.verdict[i + s] && r.used[i + s] == r.used[i]);
            hits += r.verdict[i + s];
        }
        is_mixed = hits > 0 && hits < 4;
        assert_true(r.prompt_id[i] >> 32 == 2 || hits == (r.prompt_id[i] >> 32 ? 0 : 4));
        assert_int_equal(r.used[i], is_mixed && kept < want); /* the first ones of the list */
        kept += r.used[i];
        mixed += is_mixed;
        right += hits == 4;
        wrong += hits == 0;
        if (is_mixed && !r.used[i])
            surplus[n++] = r.prompt_id[i];
        if (groups < nfirst)
            assert_int_equal(r.prompt_id[i], first[groups]);
    }
    assert_int_equal(kept, want);
    assert_true(right > 0 && wrong > 0); /* or it shows nothing */
    assert_true(groups == count(content, "groups") && groups == kept + n + right + wrong);
    assert_true(kept == count(content, "kept") && n == count(content, "surplus"));
    assert_true(right == count(content, "all_right") && wrong == count(content, "all_wrong"));
    front = json_object_get(json_object_get(content, "cursor"), "front");
    assert_int_equal(json_array_size(front), n);
    for (int64_t k = 0; k < n; k++)
        assert_int_equal(json_integer_value(json_array_get(front, (size_t)k)), surplus[k]);
    cairn_rollouts_free(&r);
    json_decref(content);
    return n;
}

static void test_full_and_accounted(void **state)
{
    int64_t surplus[100], again[100], n;
    char path[300], other[300];
    struct lab l;

    (void)state;
    lab_open(&l);
    prompts_put(&l);
    run_make(&l, "one", path, "rollout.batch=12", NULL);
    for (int step = 1; step <= 2; step++)
        for (int s = 0; s < (step == 1 ? 4 : 1); s++)
            lab_stage_ok(cairn_stage_name((enum cairn_stage)s), path, step, NULL);
    n = account(path, ROLLOUT1, 6, NULL, 0, surplus);
    assert_true(n > 0);                            /* or the next line shows nothing */
    account(path, ROLLOUT2, 6, surplus, n, again); /* what came back is drawn first */

    /* One at a time, or all at once: who is finished first is another, what is kept is not. */
    run_make(&l, "slow", other, "rollout.batch=1", NULL);
    lab_stage_ok("rollout", other, 1, NULL);
    assert_true(cairn_digest_equal(digest_at(path, ROLLOUT1), digest_at(other, ROLLOUT1)));
    run_make(&l, "wide", other, "rollout.batch=400", NULL);
    lab_stage_ok("rollout", other, 1, NULL);
    assert_true(cairn_digest_equal(digest_at(path, ROLLOUT1), digest_at(other, ROLLOUT1)));
    lab_close(&l);
}

static void chain_to(const char *run, int from, int to)
{
    for (int step = from; step <= to; step++)
        for (int s = 0; s < 4; s++)
            lab_stage_ok(cairn_stage_name((enum cairn_stage)s), run, step, NULL);
}

/* ---- ranks and kills ------------------------------------------------------------------------------------------------ */

/* mpirun -np ranks cairn-rollout, in a process group of its own. */
static pid_t ranks_start(int ranks, const char *run, int step)
{
    char np[20], at[20], program[600];
    pid_t pid;

    snprintf(np, sizeof np, "%d", ranks);
    snprintf(at, sizeof at, "%d", step);
    snprintf(program, sizeof program, "%s/bin/cairn-rollout", cairn_install_dir());
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        setpgid(0, 0);
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
        setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
        setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1);
        setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
        execlp("timeout", "timeout", "-k", "30", "120", "mpirun", "-np", np, program, run, "--step", at, "--quiet", NULL);
        _exit(101);
    }
    setpgid(pid, pid);
    return pid;
}

static int wait_for(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void test_ranks_and_kills(void **state)
{
    struct cairn_digest want;
    char path[300];
    double whole_s;
    struct lab l;

    (void)state;
    lab_open(&l);
    prompts_put(&l);
    run_make(&l, "alone", path, NULL, NULL);
    whole_s = lab_stage_s("rollout", path, 1);
    want = digest_at(path, ROLLOUT1);

    run_make(&l, "killed", path, "rollout.batch=2", NULL);
    for (int i = 0; i < 5; i++) {
        struct lab_program p;

        lab_start(&p, "rollout", path, 1, NULL, NULL, NULL);
        lab_sleep(whole_s * (0.1 + 0.8 * lab_share(6, (uint32_t)i)));
        kill(-p.pid, SIGKILL);
        lab_wait(&p);
    }
    lab_stage_ok("rollout", path, 1, NULL);
    assert_true(cairn_digest_equal(want, digest_at(path, ROLLOUT1)));

    if (system("command -v mpirun >/dev/null 2>&1")) {
        lab_close(&l);
        return;
    }
    run_make(&l, "ranks", path, NULL, NULL);
    assert_int_equal(wait_for(ranks_start(3, path, 1)), 0);
    assert_true(cairn_digest_equal(want, digest_at(path, ROLLOUT1)));

    { /* the second step takes over what the first left, whoever of them it falls to */
        struct cairn_digest second;

        run_make(&l, "carried", path, CARRY);
        chain_to(path, 1, 1);
        lab_stage_ok("rollout", path, 2, NULL);
        second = digest_at(path, ROLLOUT2);
        run_make(&l, "carried-ranks", path, CARRY);
        chain_to(path, 1, 1);
        assert_int_equal(wait_for(ranks_start(3, path, 2)), 0);
        assert_true(cairn_digest_equal(second, digest_at(path, ROLLOUT2)));
    }

    run_make(&l, "ranks-killed", path, "rollout.batch=1", NULL);
    for (int i = 0; i < 2; i++) {
        pid_t pid = ranks_start(2, path, 1);

        usleep(500000 + (useconds_t)i * 300000);
        kill(-pid, SIGKILL);
        wait_for(pid);
    }
    assert_int_equal(wait_for(ranks_start(3, path, 1)), 0);
    assert_true(cairn_digest_equal(want, digest_at(path, ROLLOUT1)));
    lab_close(&l);
}

/* ---- carried --------------------------------------------------------------------------------------------------------- */

static double info_at(const char *run, const char *relative, const char *key)
{
    struct cairn_manifest *m = NULL;
    char path[600];
    double x;

    snprintf(path, sizeof path, "%s/%s", run, relative);
    OK(cairn_manifest_load(&m, path, err));
    x = json_number_value(json_object_get(json_object_get(m->info, "metrics"), key));
    cairn_manifest_destroy(m);
    return x;
}

/* Rollouts i of a and j of b are one: prompt, tokens, bits of the log-probabilities, end. */
static void assert_one(const struct cairn_rollouts *a, int64_t i, const struct cairn_rollouts *b, int64_t j)
{
    int64_t n = a->offsets[i + 1] - a->offsets[i], m = cairn_rollout_length(a, i);

    assert_true(a->prompt_id[i] == b->prompt_id[j] && a->sample[i] == b->sample[j] && a->finish[i] == b->finish[j]);
    assert_true(n == b->offsets[j + 1] - b->offsets[j] && a->prompt_length[i] == b->prompt_length[j]);
    assert_memory_equal(a->tokens + a->offsets[i], b->tokens + b->offsets[j], (size_t)n * sizeof *a->tokens);
    assert_memory_equal(a->logprobs + a->response[i], b->logprobs + b->response[j], (size_t)m * sizeof *a->logprobs);
}

static void test_carry(void **state)
{
    int64_t surplus[100], back[100], n, k = 0;
    struct cairn_digest want, trained;
    struct cairn_rollouts one, two;
    json_t *first, *second, *carried;
    char path[300], other[300];
    struct lab l;

    (void)state;
    lab_open(&l);
    prompts_put(&l);
    run_make(&l, "carried", path, CARRY);
    chain_to(path, 1, 2);
    n = account(path, ROLLOUT1, 6, NULL, 0, surplus); /* their prompts are in front of the cursor as ever */
    assert_true(n > 0 && n < 6);
    account(path, ROLLOUT2, 6, surplus, n, back); /* the list begins with them, and they are all kept */
    load(&one, &first, path, ROLLOUT1);
    load(&two, &second, path, ROLLOUT2);
    for (int64_t i = 0; i < one.n; i++) {
        assert_int_equal(one.carried[i], -1); /* nothing was before it */
        if (!one.used[i] && one.sample[i] == 0 && k < n && one.prompt_id[i] == surplus[k]) {
            for (int s = 0; s < 4; s++) {
                assert_true(two.carried[4 * k + s] == one.group[i] && two.used[4 * k + s]);
                assert_one(&one, i + s, &two, 4 * k + s);
            }
            k++;
        }
    }
    assert_int_equal(k, n);
    for (int64_t i = 4 * n; i < two.n; i++)
        assert_int_equal(two.carried[i], -1);
    assert_true(count(first, "carried") == 0 && count(second, "carried") == n && !json_object_get(first, "carried"));
    carried = json_object_get(second, "carried");
    assert_true(json_integer_value(json_object_get(carried, "step")) == 1 &&
                json_integer_value(json_object_get(carried, "groups")) == n);
    assert_string_equal(json_string_value(json_object_get(carried, "policy")), json_string_value(json_object_get(first, "policy")));
    /* The fresh ones are held against the trainer bit by bit, the carried ones are of an older policy and counted apart. */
    assert_true(info_at(path, "step/000002/train", "mismatch/bitwise_equal_share") == 1);
    assert_true(info_at(path, "step/000002/train", "carried/rollouts") == (double)(4 * n));
    assert_true(info_at(path, "step/000002/train", "carried/tokens") > 0 && info_at(path, "step/000002/train", "carried/max") > 0);
    assert_true(info_at(path, "step/000001/train", "carried/rollouts") == 0);
    want = digest_at(path, ROLLOUT2);
    trained = digest_at(path, "step/000002/train");
    cairn_rollouts_free(&one);
    cairn_rollouts_free(&two);
    json_decref(first);
    json_decref(second);

    /* Killed anywhere in the second step, in rollout and in training: the same. */
    run_make(&l, "carried-killed", other, CARRY);
    chain_to(other, 1, 1);
    for (int s = 0; s < 4; s++) {
        for (int i = 0; i < 4; i++) {
            struct lab_program p;

            lab_start(&p, cairn_stage_name((enum cairn_stage)s), other, 2, NULL, NULL, NULL);
            usleep(10000 + (useconds_t)lab_draw(7, (uint32_t)(4 * s + i), 60000));
            kill(-p.pid, SIGKILL);
            lab_wait(&p);
        }
        lab_stage_ok(cairn_stage_name((enum cairn_stage)s), other, 2, NULL);
    }
    assert_true(cairn_digest_equal(want, digest_at(other, ROLLOUT2)));
    assert_true(cairn_digest_equal(trained, digest_at(other, "step/000002/train")));

    /* What a response hangs on is another: what cannot be carried is sampled, and said. */
    {
        const struct {
            const char *set, *why;
        } changed[] = {{"rollout.temperature=0.9", "they were drawn at another temperature"},
                       {"rollout.max_new_tokens=5", "rollout.max_new_tokens was another"},
                       {"data.added_in_prompt=true", "data.added_in_prompt was another"}};

        for (size_t k2 = 0; k2 < sizeof changed / sizeof *changed; k2++) {
            struct cairn_str said = {0};
            struct cairn_run *run = NULL;
            char text[2000], name[32];
            int number;

            snprintf(name, sizeof name, "not-carried-%zu", k2);
            run_make(&l, name, other, CARRY);
            chain_to(other, 1, 1);
            OK(cairn_run_open(&run, other, err));
            OK(cairn_run_amend(run, 2, 1, &changed[k2].set, 0, &number, &said, err));
            cairn_run_close(run);
            cairn_str_free(&said);
            assert_int_equal(lab_stage("rollout", other, 2, NULL, text), 0);
            assert_non_null(strstr(text, "are sampled again: "));
            assert_non_null(strstr(text, changed[k2].why));
            load(&two, &second, other, ROLLOUT2);
            for (int64_t i = 0; i < two.n; i++)
                assert_int_equal(two.carried[i], -1);
            cairn_rollouts_free(&two);
            json_decref(second);
        }
    }
    lab_close(&l);
}

/* ---- nothing to keep ------------------------------------------------------------------------------------------------- */

static void test_impossible(void **state)
{
    char path[300], said[2000];
    struct lab l;

    (void)state;
    lab_open(&l);
    prompts_put(&l);
    /* Nothing is ever mixed: after three refills of 6 or 8 groups it is over, with the counts. */
    run_make(&l, "never", path, "data.prompts.2.grader=none", "rollout.dynamic.max_rounds=3");
    assert_int_equal(lab_stage("rollout", path, 1, NULL, said), 65);
    assert_non_null(strstr(said, "no group with mixed verdicts among 32 ("));
    assert_non_null(strstr(said, " all right, "));
    assert_non_null(strstr(said, " all wrong) after 3 refills"));
    /* Some are, but not enough: the step goes on with what there is, and says so. */
    run_make(&l, "few", path, "rollout.prompts=30", "rollout.dynamic.max_rounds=1");
    assert_int_equal(lab_stage("rollout", path, 1, NULL, said), 0);
    assert_non_null(strstr(said, " of 30 groups have mixed verdicts after 1 refills; going on with those"));
    lab_stage_ok("score", path, 1, NULL);
    lab_stage_ok("train", path, 1, NULL);
    lab_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_full_and_accounted), cmocka_unit_test(test_ranks_and_kills),
                                       cmocka_unit_test(test_carry), cmocka_unit_test(test_impossible)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tasks_test.c - array tasks of rollout and score: independent processes on one artefact, in any order, any number, killed or run twice, give what
 * one process gives; and what is no array task is refused.
 */
#include "tests/stages/lab.h"

#include "ckpt/attempt.h"

#define OVERRIDES "rollout.prompts=37" /* 5 units of 8 groups, the last of 5 */

static struct cairn_digest digest_at(const char *run, const char *relative)
{
    struct cairn_manifest_head head;
    char path[600];

    snprintf(path, sizeof path, "%s/%s", run, relative);
    OK(cairn_manifest_head(&head, path, err));
    return head.digest;
}

static int committed(const char *run, const char *relative)
{
    char path[600];

    snprintf(path, sizeof path, "%s/%s", run, relative);
    return cairn_artefact_committed(path);
}

static void run_make(const struct lab *l, const char *name, char path[300], const char *const *override)
{
    struct cairn_run *run = NULL;

    snprintf(path, 300, "%s/%s", l->dir, name);
    OK(lab_init_at(&run, l, path, override, err));
    cairn_run_close(run);
}

/* lab_start with --shard, and not quiet. */
static void task_start(struct lab_program *p, const char *stage, const char *run, const char *shard)
{
    char path[600];
    int fd[2];

    snprintf(path, sizeof path, "%s/bin/cairn-%s", cairn_install_dir(), stage);
    assert_int_equal(pipe2(fd, O_CLOEXEC), 0);
    memset(p, 0, sizeof *p);
    fflush(NULL);
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (!p->pid) {
        setpgid(0, 0);
        dup2(fd[1], 2);
        execl(path, path, run, "--step", "1", "--shard", shard, (char *)NULL);
        _exit(101);
    }
    setpgid(p->pid, p->pid);
    close(fd[1]);
    p->pipe = fd[0];
}

static int task(const char *stage, const char *run, const char *shard, char said[2000])
{
    struct lab_program p;
    int rc;

    task_start(&p, stage, run, shard);
    rc = lab_wait(&p);
    memcpy(said, p.said, sizeof p.said);
    return rc;
}

static const char *const stages[] = {"rollout", "score"}, *const artefacts[] = {"step/000001/rollout", "step/000001/score"};

static void alone(const struct lab *l, struct cairn_digest d[2])
{
    char path[300];

    run_make(l, "alone", path, LAB_OVERRIDES(OVERRIDES));
    for (int k = 0; k < 2; k++) {
        lab_stage_ok(stages[k], path, 1, NULL);
        d[k] = digest_at(path, artefacts[k]);
    }
}

static void test_orders(void **state)
{
    static const struct {
        const char *shard[12];
        const char *why;
    } row[] = {
        {{"3/5", "0/5", "4/5", "1/5", "2/5"}, "any order"},
        {{"4/5", "3/5", "2/5", "1/5", "0/5"}, "backwards"},
        {{"1/2", "0/3", "1/3", "2/3"}, "shares of another number of tasks: 1 3, 0 3, 1 4, 2"},
        {{"2/5", "2/5", "0/5", "2/5", "0/5", "1/5", "3/5", "4/5"}, "tasks run twice"},
        {{"7/9", "8/9", "5/9", "0/2", "6/9", "1/2"}, "more tasks than units"},
        {{"0/1"}, "one task"},
    };
    struct cairn_digest want[2];
    struct lab l;

    (void)state;
    lab_open(&l);
    alone(&l, want);
    for (size_t i = 0; i < COUNT(row); i++) {
        char path[300], name[20], said[2000];

        snprintf(name, sizeof name, "run%zu", i);
        run_make(&l, name, path, LAB_OVERRIDES(OVERRIDES));
        for (int k = 0; k < 2; k++) {
            for (int t = 0; row[i].shard[t]; t++) {
                int last = !row[i].shard[t + 1];

                if (task(stages[k], path, row[i].shard[t], said))
                    fail_msg("%s: %s --shard %s: %s", row[i].why, stages[k], row[i].shard[t], said);
                if (committed(path, artefacts[k]) != last || (strstr(said, "the others are not yet") != NULL) == last)
                    fail_msg("%s: %s --shard %s: %s committed, said %s", row[i].why, stages[k], row[i].shard[t], last ? "not" : "", said);
            }
            if (!cairn_digest_equal(want[k], digest_at(path, artefacts[k])))
                fail_msg("%s: another %s", row[i].why, stages[k]);
            assert_int_equal(task(stages[k], path, "1/3", said), 0); /* late */
        }
    }
    lab_close(&l);
}

/* All at once, some twice: one of them commits, the others end with 0, or 71 when a younger one of the same number has replaced them. */
static void test_at_once(void **state)
{
    static const char *const shard[] = {"0/5", "1/5", "2/5", "3/5", "4/5", "1/5", "3/5"};
    struct cairn_digest want[2];
    struct lab l;

    (void)state;
    lab_open(&l);
    alone(&l, want);
    for (int i = 0; i < 3; i++) {
        char path[300], name[20], said[2000];

        snprintf(name, sizeof name, "run%d", i);
        run_make(&l, name, path, LAB_OVERRIDES(OVERRIDES));
        for (int k = 0; k < 2; k++) {
            struct lab_program p[COUNT(shard)];

            for (size_t t = 0; t < COUNT(shard); t++)
                task_start(&p[t], stages[k], path, shard[t]);
            for (size_t t = 0; t < COUNT(shard); t++) {
                int rc = lab_wait(&p[t]);

                if (rc && rc != 71)
                    fail_msg("%s --shard %s: %d: %s", stages[k], shard[t], rc, p[t].said);
            }
            for (int t = 0; t < 5 && !committed(path, artefacts[k]); t++) /* of two that ended at once neither need see the other */
                assert_int_equal(task(stages[k], path, shard[t], said), 0);
            if (!cairn_digest_equal(want[k], digest_at(path, artefacts[k])))
                fail_msg("another %s", stages[k]);
        }
    }
    lab_close(&l);
}

/* The last task stops for a while where it would put all together; one of those before it comes again, sees everything there and commits. The
 * stopped one, which may have had units in hand, finds its work done: 0. */
static void test_overtaken(void **state)
{
    struct cairn_digest want[2];
    struct lab l;

    (void)state;
    lab_open(&l);
    alone(&l, want);
    for (int i = 0; i < 6; i++) {
        char path[300], name[20], said[2000], unit[600];
        struct lab_program p;
        int rc;

        snprintf(name, sizeof name, "run%d", i);
        run_make(&l, name, path, LAB_OVERRIDES(OVERRIDES));
        assert_int_equal(task("rollout", path, "1/2", said), 0);
        snprintf(unit, sizeof unit, "%s/%s/a2/unit-000004.json", path, artefacts[0]); /* the last of task 0 of 2 */
        task_start(&p, "rollout", path, "0/2");
        for (int t = 0; t < 20000 && !cairn_path_exists(unit) && !committed(path, artefacts[0]); t++)
            usleep(200);
        usleep((useconds_t)i * 500);
        kill(-p.pid, SIGSTOP);
        rc = task("rollout", path, "1/2", said);
        if (rc)
            fail_msg("the one that came again: %d: %s", rc, said);
        kill(-p.pid, SIGCONT);
        rc = lab_wait(&p);
        if (rc)
            fail_msg("the one that was overtaken: %d: %s", rc, p.said);
        assert_true(committed(path, artefacts[0]));
        assert_true(cairn_digest_equal(want[0], digest_at(path, artefacts[0])));
    }
    lab_close(&l);
}

/* Killed at random moments of the time that the whole takes, later and later, started again in random order until it is committed. */
static void test_killed(void **state)
{
    struct cairn_digest want;
    char path[300];
    struct lab l;
    double whole_s;
    int kills = 0;

    (void)state;
    lab_open(&l);
    run_make(&l, "alone", path, LAB_OVERRIDES(OVERRIDES, "rollout.samples=8", "rollout.max_new_tokens=60"));
    whole_s = lab_stage_s("rollout", path, 1);
    want = digest_at(path, artefacts[0]);
    for (int k = 0; k < 2; k++) {
        char name[20];

        snprintf(name, sizeof name, "killed%d", k);
        run_make(&l, name, path, LAB_OVERRIDES(OVERRIDES, "rollout.samples=8", "rollout.max_new_tokens=60"));
        for (int i = 0; i < 200 && !committed(path, artefacts[0]); i++) {
            struct lab_program p;
            char shard[20];
            int rc;

            snprintf(shard, sizeof shard, "%u/5", lab_draw((uint32_t)k + 10, (uint32_t)i, 5));
            task_start(&p, "rollout", path, shard);
            lab_sleep(whole_s * (0.05 + 0.3 * lab_share((uint32_t)k + 20, (uint32_t)i) * (1 + i / 8)));
            kill(-p.pid, i % 3 ? SIGKILL : SIGTERM);
            rc = lab_wait(&p);
            if (rc && rc != 128 + SIGKILL && rc != 75 && rc != 128 + SIGTERM)
                fail_msg("%d: %s", rc, p.said);
            kills += rc != 0;
        }
        if (!committed(path, artefacts[0]))
            fail_msg("killed run %d: nothing is committed after 200 tries of at most %g s", k, 7.5 * whole_s);
        if (!cairn_digest_equal(want, digest_at(path, artefacts[0])))
            fail_msg("killed run %d has other rollouts", k);
    }
    print_message("%d kills\n", kills);
    assert_true(kills > 5);
    lab_close(&l);
}

/* Unit 3 of a dead task lies damaged: whoever would take it over makes it anew. */
static void test_damaged(void **state)
{
    struct cairn_digest want[2];
    struct lab l;
    char path[300], file[600], said[2000];
    int fd;

    (void)state;
    lab_open(&l);
    alone(&l, want);
    run_make(&l, "damaged", path, LAB_OVERRIDES(OVERRIDES));
    assert_int_equal(task("rollout", path, "1/2", said), 0); /* units 1, 3 in a1 */
    snprintf(file, sizeof file, "%s/%s/a1/unit-000003.h5", path, artefacts[0]);
    fd = open(file, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && pwrite(fd, "damage", 6, 3000) == 6 && !close(fd));
    assert_int_equal(task("rollout", path, "0/2", said), 0);
    assert_true(committed(path, artefacts[0]));
    assert_true(cairn_digest_equal(want[0], digest_at(path, artefacts[0])));
    lab_close(&l);
}

static void test_refused(void **state)
{
    static const struct {
        const char *stage, *shard, *override;
        int rc;
        const char *says;
    } row[] = {
        {"rollout", "5/5", NULL, 64, ""},
        {"rollout", "-1/5", NULL, 64, ""},
        {"rollout", "1", NULL, 64, ""},
        {"rollout", "/", NULL, 64, ""},
        {"rollout", "1/", NULL, 64, ""},
        {"rollout", "0/0", NULL, 64, ""},
        {"rollout", "0/1000000", NULL, 64, ""},
        {"train", "0/2", NULL, 64, "--shard is for rollout and score"},
        {"sync", "0/2", NULL, 64, "--shard is for rollout and score"},
        {"rollout", "0/2", "rollout.dynamic={max_rounds: 2}", 78, "rollout.dynamic: which candidates there are"},
    };
    struct lab l;

    (void)state;
    lab_open(&l);
    for (size_t i = 0; i < COUNT(row); i++) {
        const char *override[] = {row[i].override, NULL};
        char path[300], name[20], said[2000];
        int rc;

        snprintf(name, sizeof name, "run%zu", i);
        run_make(&l, name, path, override);
        rc = task(row[i].stage, path, row[i].shard, said);
        if (rc != row[i].rc || !strstr(said, row[i].says))
            fail_msg("%s --shard %s: %d %s", row[i].stage, row[i].shard, rc, said);
    }
    lab_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders), cmocka_unit_test(test_at_once), cmocka_unit_test(test_overtaken),
        cmocka_unit_test(test_killed), cmocka_unit_test(test_damaged), cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

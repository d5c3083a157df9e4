/* ranks_test.c - rollout and score under mpirun: any number of ranks gives what one process gives, and a rank that dies, hangs,
 * fails, is asked to stop or was called for something else takes the others with it, in time, with one sentence. Skipped where
 * there is no mpirun or no cairn-mpi.so.
 */
#include "tests/stages/lab.h"

#include <ctype.h>
#include <dirent.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "ckpt/attempt.h"

/* Something to be struck while it goes on: 12 units, seconds of sampling. */
#define LONG "rollout.prompts=96", "rollout.samples=12", "rollout.max_new_tokens=64", "rollout.stop=[256]"
/* wrong = -1 and truncated = zero make groups mixed that stop here and hit the cap there: a micro model gets nothing right. */
#define MIXED                                                                                                                      \
    "score.reward={right: 1, wrong: -1, truncated: zero}", "rollout.dynamic={max_rounds: 6}", "rollout.prompts=13",                \
        "rollout.stop=[256, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110]"

#define ROLLOUT "step/000001/rollout"
#define SCORE   "step/000001/score"

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

static int64_t info_at(const char *run, const char *relative, const char *key)
{
    struct cairn_manifest *m = NULL;
    char path[600];
    int64_t v;

    snprintf(path, sizeof path, "%s/%s", run, relative);
    OK(cairn_manifest_load(&m, path, err));
    v = json_integer_value(json_object_get(m->info, key));
    cairn_manifest_destroy(m);
    return v;
}

static void run_make(const struct lab *l, const char *name, char path[300], const char *const *override)
{
    struct cairn_run *run = NULL;

    snprintf(path, 300, "%s/%s", l->dir, name);
    OK(lab_init_at(&run, l, path, override, err));
    cairn_run_close(run);
}

/* A command line as words, for execvp; at most 60 s. */
static void start(struct lab_program *p, const char *const *word)
{
    const char *argv[64] = {"timeout", "-k", "30", "60"};
    int fd[2], n = 4;

    while (word[n - 4]) {
        argv[n] = word[n - 4];
        assert_true(++n < 64);
    }
    assert_int_equal(pipe2(fd, O_CLOEXEC), 0);
    memset(p, 0, sizeof *p);
    fflush(NULL);
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (!p->pid) {
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
        setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
        setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1);
        setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
        dup2(fd[1], 2);
        execvp(argv[0], (char **)argv);
        _exit(101);
    }
    close(fd[1]);
    p->pipe = fd[0];
}

static const char *program(const char *name)
{
    static char path[2][600];
    static int k;

    k = !k;
    snprintf(path[k], sizeof path[k], "%s/bin/%s", cairn_install_dir(), name);
    return path[k];
}

static void ranks_start(struct lab_program *p, int ranks, const char *stage, const char *run)
{
    char np[20], name[40];

    snprintf(np, sizeof np, "%d", ranks);
    snprintf(name, sizeof name, "cairn-%s", stage);
    start(p, (const char *[]){"mpirun", "-np", np, program(name), run, "--step", "1", "--quiet", NULL});
}

static void ranks_ok(int ranks, const char *stage, const char *run)
{
    struct lab_program p;
    int rc;

    ranks_start(&p, ranks, stage, run);
    rc = lab_wait(&p);
    if (rc)
        fail_msg("%d ranks of cairn-%s: %d: %s", ranks, stage, rc, p.said);
}

static void test_same_digests(void **state)
{
    static const int ranks[] = {1, 3, 4};
    struct cairn_digest want[2];
    char path[300];
    struct lab l;

    (void)state;
    lab_open(&l);
    run_make(&l, "alone", path, LAB_OVERRIDES("rollout.prompts=37")); /* 5 units of 8 groups, the last of 5 */
    lab_stage_ok("rollout", path, 1, NULL);
    lab_stage_ok("score", path, 1, NULL);
    want[0] = digest_at(path, ROLLOUT);
    want[1] = digest_at(path, SCORE);
    for (size_t i = 0; i < COUNT(ranks); i++) {
        char name[20];

        snprintf(name, sizeof name, "ranks%d", ranks[i]);
        run_make(&l, name, path, LAB_OVERRIDES("rollout.prompts=37"));
        ranks_ok(ranks[i], "rollout", path);
        ranks_ok(ranks[i], "score", path);
        if (!cairn_digest_equal(want[0], digest_at(path, ROLLOUT)) || !cairn_digest_equal(want[1], digest_at(path, SCORE)))
            fail_msg("%d ranks make other rollouts or scores", ranks[i]);
        assert_int_equal(info_at(path, ROLLOUT, "ranks"), ranks[i] > 1 ? ranks[i] : 0);
    }
    ranks_ok(2, "rollout", path); /* committed already */
    lab_close(&l);
}

/* Dynamic sampling: ranks tell each other verdicts, so all draw the same further candidates. */
static void test_dynamic(void **state)
{
    struct cairn_digest want;
    char path[300];
    struct lab l;

    (void)state;
    lab_open(&l);
    run_make(&l, "alone", path, LAB_OVERRIDES(MIXED));
    lab_stage_ok("rollout", path, 1, NULL);
    want = digest_at(path, ROLLOUT);
    run_make(&l, "ranks", path, LAB_OVERRIDES(MIXED));
    ranks_ok(3, "rollout", path);
    assert_true(cairn_digest_equal(want, digest_at(path, ROLLOUT)));
    lab_close(&l);
}

/* ---- blows ---------------------------------------------------------------------------------------------------------- */

static int file_has(const char *path, const char *bytes)
{
    char text[65536];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text);

    if (fd >= 0)
        close(fd);
    return n > 0 && memmem(text, (size_t)n, bytes, strlen(bytes)) != NULL;
}

/* The process that is rank `rank` of the stage at work on run; its grader children, which look alike, have another parent than
 * mpirun. 0: none. *starter: its mpirun. */
static pid_t rank_find(const char *run, int rank, pid_t *starter)
{
    DIR *d = opendir("/proc");
    char word[60], path[400], stat[400];
    pid_t found = 0;

    assert_non_null(d);
    snprintf(word, sizeof word, "OMPI_COMM_WORLD_RANK=%d", rank);
    for (struct dirent *e; !found && (e = readdir(d));) {
        int parent = 0, fd;
        ssize_t n;

        if (!isdigit((unsigned char)e->d_name[0]))
            continue;
        snprintf(path, sizeof path, "/proc/%.20s/stat", e->d_name);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        n = fd < 0 ? -1 : read(fd, stat, sizeof stat - 1);
        if (fd >= 0)
            close(fd);
        if (n <= 0)
            continue;
        stat[n] = 0;
        if (!strrchr(stat, ')') || sscanf(strrchr(stat, ')') + 1, " %*c %d", &parent) != 1)
            continue;
        snprintf(path, sizeof path, "/proc/%d/comm", parent);
        if (!file_has(path, "mpirun"))
            continue;
        snprintf(path, sizeof path, "/proc/%.20s/cmdline", e->d_name);
        if (!file_has(path, run))
            continue;
        snprintf(path, sizeof path, "/proc/%.20s/environ", e->d_name);
        if (file_has(path, word))
            found = (pid_t)atoi(e->d_name);
        *starter = parent;
    }
    closedir(d);
    return found;
}

/* Some finished unit of any attempt. */
static int begun(const char *run, const char *relative)
{
    for (int epoch = 1; epoch < 5; epoch++)
        for (int unit = 0; unit < 12; unit++) {
            char path[600];

            snprintf(path, sizeof path, "%s/%s/a%d/unit-%06d.json", run, relative, epoch, unit);
            if (cairn_path_exists(path))
                return 1;
        }
    return 0;
}

enum blow { KILL, STOP, TERM, FULL, WHOLE };

static void strike(const char *run, int rank, enum blow blow)
{
    const struct rlimit none = {1, 1};
    pid_t pid, starter = 0;

    for (int i = 0; i < 5000 && !begun(run, ROLLOUT); i++)
        usleep(2000);
    pid = rank_find(run, rank, &starter);
    if (!pid)
        fail_msg("rank %d is not there", rank);
    switch (blow) {
    case KILL:
        kill(pid, SIGKILL);
        break;
    case STOP:
        kill(pid, SIGSTOP);
        break;
    case TERM:
        kill(pid, SIGTERM);
        break;
    case FULL: /* from now on its files cannot grow */
        assert_int_equal(prlimit(pid, RLIMIT_FSIZE, &none, NULL), 0);
        break;
    case WHOLE: /* mpirun hands it to all ranks */
        kill(starter, SIGUSR1);
        break;
    }
}

static void test_blows(void **state)
{
    static const struct {
        enum blow blow;
        int ranks, rank, rc;
        const char *says;
    } row[] = {
        {KILL, 3, 0, 128 + SIGKILL, "on signal 9"}, /* mpirun says it, and ends the others */
        {STOP, 3, 2, 75, "rank 2 is stopped, "},    {TERM, 3, 1, 75, "rank 1: stopped on request"},
        {FULL, 3, 1, 73, "rank 1: write "},         {WHOLE, 2, 0, 75, ": stopped on request"},
    };
    struct cairn_digest want;
    char path[300];
    struct lab l;
    int adopted = 0;

    (void)state;
    lab_open(&l);
    run_make(&l, "alone", path, LAB_OVERRIDES(LONG));
    lab_stage_ok("rollout", path, 1, NULL);
    want = digest_at(path, ROLLOUT);
    for (size_t i = 0; i < COUNT(row); i++) {
        struct lab_program p;
        char name[20];
        double t0;
        int rc;

        snprintf(name, sizeof name, "blow%zu", i);
        run_make(&l, name, path, LAB_OVERRIDES(LONG, row[i].blow == STOP ? "run.deadline=5" : "run.deadline=60"));
        ranks_start(&p, row[i].ranks, "rollout", path);
        strike(path, row[i].rank, row[i].blow);
        t0 = cairn_now_s();
        rc = lab_wait(&p);
        if (rc != row[i].rc || !strstr(p.said, row[i].says))
            fail_msg("row %zu: %d: %s", i, rc, p.said);
        if (cairn_now_s() - t0 > 30) /* below run.deadline: nobody waits for it */
            fail_msg("row %zu: the others left after %.1f s: %s", i, cairn_now_s() - t0, p.said);
        assert_false(committed(path, ROLLOUT));
        if (i % 2)
            lab_stage_ok("rollout", path, 1, NULL);
        else
            ranks_ok(2, "rollout", path);
        if (!cairn_digest_equal(want, digest_at(path, ROLLOUT)))
            fail_msg("row %zu: other rollouts", i);
        adopted += info_at(path, ROLLOUT, "adopted") > 0;
    }
    assert_int_equal(adopted, COUNT(row)); /* what the dead ones had finished was taken over */
    lab_close(&l);
}

/* Ranks that were not called for the same. "%s" is the run. */
static void test_strays(void **state)
{
    static const struct {
        const char *odd[8];
        int rc;
        const char *says;
    } row[] = {
        {{"cairn-rollout", "/nowhere", "--step", "1"}, 69, "rank 2: /nowhere"},
        {{"cairn-rollout", "%s", "--step", "2"}, 69, "rank 2: "},
        {{"cairn-rollout", "%s", "--step", "1", "--shard", "1/2"}, 64, "rank 2 has the link \"step/000001/rollout"},
        {{"cairn-rollout", "%s", "--step", "0", "--eval", "held"}, 64, "rank 2 has the link \"eval/000000/held/rollout"},
        {{"cairn-sync", "%s", "--step", "1"}, 64, "rank 2: started with 3 ranks; this stage runs in one"},
    };
    char path[300];
    struct lab l;

    (void)state;
    lab_open(&l);
    run_make(&l, "run", path, LAB_OVERRIDES(LAB_EVAL));
    for (size_t i = 0; i < COUNT(row); i++) {
        const char *word[24] = {"mpirun", "-np", "2", program("cairn-rollout"), path, "--step", "1",
                                ":",      "-np", "1", program(row[i].odd[0])};
        struct lab_program p;
        int rc, n = 11;

        for (int k = 1; row[i].odd[k]; k++)
            word[n++] = strcmp(row[i].odd[k], "%s") ? row[i].odd[k] : path;
        start(&p, word);
        rc = lab_wait(&p);
        if (rc != row[i].rc || !strstr(p.said, row[i].says))
            fail_msg("row %zu: %d: %s", i, rc, p.said);
        if (strstr(strstr(p.said, row[i].says) + 1, row[i].says))
            fail_msg("row %zu: told twice: %s", i, p.said);
        assert_false(committed(path, ROLLOUT));
    }
    lab_close(&l);
}

/* cairn run starts mpirun and tasks; a stop in the middle goes through to the ranks. An evaluation, so that nothing else is in the
 * chain. */
static void test_cairn_run(void **state)
{
    static const char *const how[][2] = {
        {"rollout.parallel.dp=3", "score.tasks=2"}, {"rollout.parallel.dp=2", "rollout.tasks=2"}, {"score.tasks=1", NULL}};
    static const char rollout[] = "eval/000000/many/rollout", score[] = "eval/000000/many/score";
    struct cairn_digest first[2] = {{0, 0}, {0, 0}};
    char *recipe, set[300];
    struct lab l;

    (void)state;
    lab_open(&l);
    lab_prompts(&l, "many.jsonl", 96, 100);
    snprintf(set, sizeof set, "data.eval=[{name: many, path: %s/many.jsonl, k: 12}]", l.dir);
    recipe = cairn_path_join(l.dir, "recipe.yaml");
    for (size_t i = 0; i < COUNT(how); i++) {
        struct cairn_digest d[2];
        struct lab_program p;
        char path[300];

        snprintf(path, sizeof path, "%s/run%zu", l.dir, i);
        for (int round = 0; round < 2; round++) {
            int rc, want = round ? 0 : 75;

            start(&p, (const char *[]){program("cairn"), "run", recipe, "--run", path, "--quiet", "run.steps=0", "run.eval_every=1",
                                       set, "rollout.max_new_tokens=64", "rollout.stop=[256]", how[i][0], how[i][1], NULL});
            for (int k = 0; !round && k < 5000 && !begun(path, rollout); k++)
                usleep(2000);
            if (!round)
                kill(p.pid, SIGTERM); /* to timeout, which passes it on */
            rc = lab_wait(&p);
            /* Where the stop comes in the last moments of the rollouts they are finished, and nothing after them is begun. */
            if (rc != want || (!round && !strstr(p.said, committed(path, rollout) ? "stopped; run again"
                                                                                  : "many/rollout: stopped early; run again")))
                fail_msg("%s, %d: %d: %s", how[i][0], round, rc, p.said);
        }
        d[0] = digest_at(path, rollout);
        d[1] = digest_at(path, score);
        if (!i)
            memcpy(first, d, sizeof d);
        assert_true(cairn_digest_equal(first[0], d[0]) && cairn_digest_equal(first[1], d[1]));
    }
    free(recipe);
    lab_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_digests), cmocka_unit_test(test_dynamic),   cmocka_unit_test(test_blows),
        cmocka_unit_test(test_strays),       cmocka_unit_test(test_cairn_run),
    };
    char *so = cairn_lib_path("cairn-mpi.so");

    if (system("command -v mpirun >/dev/null 2>&1") || !cairn_path_exists(so)) {
        printf("1..0 # SKIP no mpirun, or no %s\n", so);
        free(so);
        return 0;
    }
    free(so);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

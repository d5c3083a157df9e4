/* grade_process_test.c - the grader process: verdicts as in this process, crashes and loops as statuses, nobody left behind.
 *
 * A grader of this program alone does what its gold text says: crash in several ways, loop, sleep, eat memory, name its
 * own process. It exists nowhere else.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "grade/frame.h"
#include "grade/process.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

static int is(const char *p, size_t n, const char *z)
{
    return n == strlen(z) && memcmp(p, z, n) == 0;
}

static enum cairn_status unruly_grade(const struct cairn_grader *self, const struct cairn_grade_opts *opts, const char *gold, size_t ng,
                                      const char *response, size_t nr, struct cairn_verdict *out, struct cairn_error *err)
{
    (void)self;
    (void)opts;
    if (is(gold, ng, "kill"))
        raise(SIGKILL);
    else if (is(gold, ng, "segv"))
        raise(SIGSEGV);
    else if (is(gold, ng, "abort"))
        abort();
    else if (is(gold, ng, "term"))
        raise(SIGTERM); /* ignored */
    else if (is(gold, ng, "exit"))
        _exit(3);
    else if (is(gold, ng, "error"))
        return cairn_fail(err, CAIRN_EDATA, "it cannot");
    else if (is(gold, ng, "garbage"))
        for (int fd = 3; fd < 64; fd++) { /* what a wild pointer might do to the socket */
            struct stat sb;

            if (fstat(fd, &sb) || !S_ISSOCK(sb.st_mode) || write(fd, "this is no frame of ours", 24) < 0)
                continue;
        }
    else if (is(gold, ng, "loop"))
        for (volatile unsigned k = 0;; k++)
            ;
    else if (is(gold, ng, "sleep"))
        for (;;)
            pause();
    else if (is(gold, ng, "once") && access(response, F_OK) != 0) { /* dies where the file does not exist yet, and makes it */
        FILE *f = fopen(response, "w");

        if (f)
            fclose(f);
        raise(SIGKILL);
    } else if (is(gold, ng, "memory"))
        for (;;) {
            void *p = malloc((size_t)64 << 20);

            if (!p)
                return cairn_fail(err, CAIRN_ENOSPACE, "out of memory");
            memset(p, 1, 4096);
        }
    out->match = is(response, nr, "yes");
    snprintf(out->extracted, sizeof out->extracted, "%ld", (long)getpid());
    snprintf(out->why, sizeof out->why, "parent %ld", (long)getppid());
    return CAIRN_OK;
}

static const struct cairn_grader unruly = {.name = "unruly", .grade = unruly_grade};

static enum cairn_status call(struct cairn_grader_process *p, const char *gold, const char *response, struct cairn_verdict *v,
                              struct cairn_error *err)
{
    memset(v, 0x5A, sizeof *v);
    return cairn_grader_process_grade(p, "unruly", NULL, gold, strlen(gold), response, strlen(response), v, err);
}

/* 1 if the process ends within five seconds (a zombie of somebody else's counts as ended). */
static int ends(pid_t pid)
{
    for (int i = 0; i < 500; i++) {
        char path[64], state = 0;
        FILE *f;

        snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
        if (!(f = fopen(path, "r")))
            return 1;
        if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
            state = 'X';
        fclose(f);
        if (state == 'Z' || state == 'X')
            return 1;
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    return 0;
}

static void test_same_as_here(void **state)
{
    static const char *const marker[] = {"A:", "####"};
    const struct cairn_grade_opts opts = {marker, 2};
    struct cairn_grader_process *p;
    struct cairn_verdict here, there;
    static const struct {
        const char *gold, *response;
        size_t n;
    } row[] = {{"42", "A: 42", 5}, {"42", "#### 43", 7},  {"1/2", "x A: 0.5\0", 9},
               {"", "", 0},        {"7", "Answer: 7", 9}, {"7", "A: 9^9^9^9^9!", 13}};

    (void)state;
    assert_int_equal(cairn_grader_process_start(&p, NULL, NULL), CAIRN_OK);
    for (size_t i = 0; i < COUNT(row); i++) {
        memset(&here, 0, sizeof here);
        memset(&there, 0, sizeof there);
        assert_int_equal(
            cairn_grade(cairn_grader_find("math"), &opts, row[i].gold, strlen(row[i].gold), row[i].response, row[i].n, &here, NULL),
            CAIRN_OK);
        assert_int_equal(
            cairn_grader_process_grade(p, "math", &opts, row[i].gold, strlen(row[i].gold), row[i].response, row[i].n, &there, NULL),
            CAIRN_OK);
        assert_memory_equal(&here, &there, sizeof here);
    }
    cairn_grader_process_stop(p);
}

static void test_crashes(void **state)
{
    static const struct {
        const char *gold;
        enum cairn_verdict_status status;
        const char *why;
    } row[] = {
        {"kill", CAIRN_VERDICT_CRASHED, "signal 9"},    {"segv", CAIRN_VERDICT_CRASHED, "signal 11"},
        {"abort", CAIRN_VERDICT_CRASHED, "signal 6"},   {"exit", CAIRN_VERDICT_CRASHED, "code 3"},
        {"garbage", CAIRN_VERDICT_CRASHED, "signal 9"}, {"term", CAIRN_VERDICT_OK, "parent"},
        {"fine", CAIRN_VERDICT_OK, "parent"},
    };
    struct cairn_grader_process *p;

    (void)state;
    assert_int_equal(cairn_grader_process_start(&p, NULL, NULL), CAIRN_OK);
    for (size_t i = 0; i < COUNT(row); i++) {
        struct cairn_verdict v;
        struct cairn_error err = {CAIRN_OK, ""};

        if (call(p, row[i].gold, "yes", &v, &err) != CAIRN_OK)
            fail_msg("%s: %s", row[i].gold, err.text);
        assert_int_equal(v.status, row[i].status);
        assert_int_equal(v.match, row[i].status == CAIRN_VERDICT_OK);
        if (!strstr(v.why, row[i].why))
            fail_msg("%s: \"%s\" does not say \"%s\"", row[i].gold, v.why, row[i].why);
    }
    cairn_grader_process_stop(p);
}

static void test_backstops(void **state)
{
    const struct cairn_grader_limits limits = {.memory_bytes = (int64_t)512 << 20, .cpu_s = 1, .wall_s = 30},
                                     short_wall = {.wall_s = 1};
    struct cairn_grader_process *p;
    struct cairn_verdict v;
    struct cairn_error err = {CAIRN_OK, ""};

    (void)state;
    assert_int_equal(cairn_grader_process_start(&p, &limits, NULL), CAIRN_OK);
    assert_int_equal(call(p, "loop", "yes", &v, &err), CAIRN_OK);
    assert_int_equal(v.status, CAIRN_VERDICT_TIMEOUT);
    assert_int_equal(v.match, 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_int_equal(call(p, "memory", "yes", &v, &err), CAIRN_ENOSPACE);
    assert_string_equal(err.text, "out of memory");
#endif
    assert_int_equal(call(p, "fine", "yes", &v, NULL), CAIRN_OK);
    assert_int_equal(v.match, 1);
    cairn_grader_process_stop(p);
    assert_int_equal(cairn_grader_process_start(&p, &short_wall, NULL), CAIRN_OK);
    assert_int_equal(call(p, "sleep", "yes", &v, NULL), CAIRN_OK);
    assert_int_equal(v.status, CAIRN_VERDICT_TIMEOUT);
    assert_int_equal(call(p, "fine", "yes", &v, NULL), CAIRN_OK);
    assert_int_equal(v.match, 1);
    cairn_grader_process_stop(p);
}

static void test_outside_kill_changes_nothing(void **state)
{
    char path[] = "/tmp/grade_process_test.XXXXXX";
    struct cairn_grader_process *p;
    struct cairn_verdict v;
    pid_t child;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    unlink(path);
    assert_int_equal(cairn_grader_process_start(&p, NULL, NULL), CAIRN_OK);
    /* idle */
    assert_int_equal(call(p, "fine", "yes", &v, NULL), CAIRN_OK);
    child = (pid_t)atol(v.extracted);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_true(ends(child));
    assert_int_equal(call(p, "fine", "yes", &v, NULL), CAIRN_OK);
    assert_int_equal(v.match, 1);
    assert_true(atol(v.extracted) != child);
    /* at work: the first child dies in the middle, the second gives the verdict */
    assert_int_equal(cairn_grader_process_grade(p, "unruly", NULL, "once", 4, path, sizeof path, &v, NULL), CAIRN_OK);
    assert_int_equal(v.status, CAIRN_VERDICT_OK);
    assert_int_equal(access(path, F_OK), 0);
    unlink(path);
    cairn_grader_process_stop(p);
}

static void test_errors(void **state)
{
    struct cairn_grader_process *p;
    struct cairn_verdict v;
    struct cairn_error err = {CAIRN_OK, ""};
    char *marker_of[CAIRN_MARKERS_MAX + 1];
    struct cairn_grade_opts opts = {(const char *const *)marker_of, CAIRN_MARKERS_MAX + 1};
    char *large = calloc(1, CAIRN_FRAME_MAX);
    struct cairn_grade_job job[3] = {{.gold = "fine", .gold_bytes = 4, .response = "yes", .response_bytes = 3},
                                     {.gold = "error", .gold_bytes = 5, .response = "yes", .response_bytes = 3},
                                     {.gold = "fine", .gold_bytes = 4, .response = "no", .response_bytes = 2}};

    (void)state;
    assert_non_null(large);
    for (size_t i = 0; i < COUNT(marker_of); i++)
        marker_of[i] = (char[]){"A:"};
    assert_int_equal(cairn_grader_process_start(&p, NULL, NULL), CAIRN_OK);
    assert_int_equal(cairn_grader_process_grade(p, "maths", NULL, "1", 1, "1", 1, &v, &err), CAIRN_EUSAGE);
    assert_non_null(strstr(err.text, "\"maths\""));
    assert_non_null(strstr(err.text, "math"));
    assert_int_equal(cairn_grader_process_grade(p, "math", &opts, "1", 1, "1", 1, &v, &err), CAIRN_EUSAGE);
    assert_int_equal(cairn_grader_process_grade(p, "math", NULL, "1", 1, large, CAIRN_FRAME_MAX, &v, &err), CAIRN_EDATA);
    assert_int_equal(cairn_grader_process_grade_many(p, "unruly", NULL, job, 3, &err), CAIRN_EDATA);
    assert_string_equal(err.text, "job 1: it cannot");
    assert_int_equal(job[0].verdict.match, 1);
    /* none of this has hurt it */
    assert_int_equal(call(p, "fine", "yes", &v, NULL), CAIRN_OK);
    assert_int_equal(v.match, 1);
    cairn_grader_process_stop(p);
    free(large);
}

static void test_many_in_order(void **state)
{
    enum { N = 3000 };
    struct cairn_grade_job *job = calloc(N, sizeof *job);
    char(*text)[24] = calloc(N, sizeof *text);
    char *long_text = malloc(1 << 20);
    struct cairn_grader_process *p;

    (void)state;
    assert_true(job && text && long_text);
    memset(long_text, 'x', 1 << 20);
    for (int i = 0; i < N; i++) {
        snprintf(text[i], sizeof text[i], "Answer: %d", i);
        job[i] = (struct cairn_grade_job){
            .gold = text[i] + 8, .gold_bytes = strlen(text[i] + 8), .response = text[i], .response_bytes = strlen(text[i])};
        if (i % 3 == 1)
            job[i].gold = "-1", job[i].gold_bytes = 2;
        if (i % 500 == 2)
            job[i].response = long_text, job[i].response_bytes = 1 << 20;
    }
    assert_int_equal(cairn_grader_process_start(&p, NULL, NULL), CAIRN_OK);
    assert_int_equal(cairn_grader_process_grade_many(p, "math", NULL, job, N, NULL), CAIRN_OK);
    for (int i = 0; i < N; i++) {
        if (i % 500 == 2) {
            assert_int_equal(job[i].verdict.status, CAIRN_VERDICT_NO_ANSWER);
            continue;
        }
        assert_int_equal(job[i].verdict.match, i % 3 != 1);
        assert_string_equal(job[i].verdict.extracted, text[i] + 8);
    }
    assert_int_equal(cairn_grader_process_grade_many(p, "math", NULL, job, 0, NULL), CAIRN_OK);
    cairn_grader_process_stop(p);
    free(job);
    free(text);
    free(long_text);
}

/* Whoever fails among many that are handed over together costs the others nothing: each has the verdict that it would have alone. */
static void test_failures_among_many(void **state)
{
    enum { N = 400 };
    static const char *const way[] = {"segv", "exit", "abort", "kill", "garbage"};
    static const struct cairn_grader_limits limits = {.cpu_s = 1, .wall_s = 20};
    struct cairn_grade_job *job = calloc(N, sizeof *job);
    struct cairn_grader_process *p;

    (void)state;
    assert_non_null(job);
    for (int i = 0; i < N; i++) {
        const char *gold = i % 37 == 5 || i == 63 || i == 64 ? way[i % COUNT(way)]
                           : i == 200                        ? "loop"
                           : i == 130                        ? "term"
                                                             : "fine",
                   *response = i % 3 ? "yes" : "no";

        job[i] = (struct cairn_grade_job){.gold = gold, .gold_bytes = strlen(gold), .response = response, .response_bytes = strlen(response)};
    }
    assert_int_equal(cairn_grader_process_start(&p, &limits, NULL), CAIRN_OK);
    assert_int_equal(cairn_grader_process_grade_many(p, "unruly", NULL, job, N, NULL), CAIRN_OK);
    for (int i = 0; i < N; i++) {
        enum cairn_verdict_status want = i % 37 == 5 || i == 63 || i == 64 ? CAIRN_VERDICT_CRASHED
                                         : i == 200                        ? CAIRN_VERDICT_TIMEOUT
                                                                           : CAIRN_VERDICT_OK;

        if (job[i].verdict.status != want || job[i].verdict.match != (want == CAIRN_VERDICT_OK && i % 3))
            fail_msg("job %d (%s): %s, match %d: %s", i, job[i].gold, cairn_verdict_status_name(job[i].verdict.status), job[i].verdict.match,
                     job[i].verdict.why);
    }
    cairn_grader_process_stop(p);
    free(job);
}

/* A program that is killed takes keeper and child with it. */
static void test_nobody_left_behind(void **state)
{
    int tube[2];
    pid_t program;
    long pids[2];

    (void)state;
    assert_int_equal(pipe(tube), 0);
    program = fork();
    assert_true(program >= 0);
    if (program == 0) {
        struct cairn_grader_process *p;
        struct cairn_verdict v;

        if (cairn_grader_process_start(&p, NULL, NULL) != CAIRN_OK || call(p, "fine", "yes", &v, NULL) != CAIRN_OK)
            _exit(1);
        pids[0] = atol(v.extracted);
        pids[1] = atol(strchr(v.why, ' '));
        if (write(tube[1], pids, sizeof pids) != (ssize_t)sizeof pids)
            _exit(1);
        for (;;)
            pause();
    }
    close(tube[1]);
    assert_int_equal(read(tube[0], pids, sizeof pids), sizeof pids);
    close(tube[0]);
    assert_int_equal(kill((pid_t)pids[0], 0), 0);
    assert_int_equal(kill((pid_t)pids[1], 0), 0);
    assert_int_equal(kill(program, SIGKILL), 0);
    assert_int_equal(waitpid(program, NULL, 0), program);
    assert_true(ends((pid_t)pids[0]));
    assert_true(ends((pid_t)pids[1]));
}

static void test_keeper_killed(void **state)
{
    struct cairn_grader_process *p;
    struct cairn_verdict v;
    pid_t keeper, child;

    (void)state;
    assert_int_equal(cairn_grader_process_start(&p, NULL, NULL), CAIRN_OK);
    assert_int_equal(call(p, "fine", "yes", &v, NULL), CAIRN_OK);
    child = (pid_t)atol(v.extracted);
    keeper = (pid_t)atol(strchr(v.why, ' '));
    assert_int_equal(kill(keeper, SIGTERM), 0); /* ignored: goes to whole groups */
    assert_int_equal(call(p, "fine", "yes", &v, NULL), CAIRN_OK);
    assert_int_equal(kill(keeper, SIGKILL), 0);
    assert_int_equal(call(p, "fine", "yes", &v, NULL), CAIRN_EAGAIN);
    assert_int_equal(call(p, "fine", "yes", &v, NULL), CAIRN_EAGAIN);
    assert_true(ends(child));
    cairn_grader_process_stop(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_here),
        cmocka_unit_test(test_crashes),
        cmocka_unit_test(test_backstops),
        cmocka_unit_test(test_outside_kill_changes_nothing),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_many_in_order), cmocka_unit_test(test_failures_among_many),
        cmocka_unit_test(test_nobody_left_behind),
        cmocka_unit_test(test_keeper_killed),
    };

    if (cairn_grader_register(&unruly, NULL) != CAIRN_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

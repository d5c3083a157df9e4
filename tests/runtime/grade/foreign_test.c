/* foreign_test.c - graders that a recipe defines: exact, regex, command, plugin; and a program that does its worst behind the
 * sandbox (unruly.c).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/str.h"
#include "grade/define.h"
#include "grade/process.h"

static char unruly_path[4200], plugin_path[4200], outside[4200], token[64];

/* --- helpers ---------------------------------------------------------------------------------------------------------------- */

static int processes_with(const char *what)
{
    DIR *d = opendir("/proc");
    struct dirent *e;
    int n = 0;

    while (d && (e = readdir(d))) {
        char path[300], line[512] = "", stat[512] = "";
        FILE *f;
        size_t k;

        snprintf(path, sizeof path, "/proc/%.200s/cmdline", e->d_name);
        if (e->d_name[0] < '0' || e->d_name[0] > '9' || !(f = fopen(path, "r")))
            continue;
        k = fread(line, 1, sizeof line - 1, f);
        fclose(f);
        for (size_t i = 0; i < k; i++)
            if (!line[i])
                line[i] = ' ';
        snprintf(path, sizeof path, "/proc/%.200s/stat", e->d_name);
        if ((f = fopen(path, "r"))) {
            if (!fgets(stat, sizeof stat, f))
                stat[0] = 0;
            fclose(f);
        }
        n += strstr(line, what) && !strstr(stat, ") Z ");
    }
    if (d)
        closedir(d);
    return n;
}

static int all_gone(void)
{
    for (int i = 0; i < 500; i++) {
        if (!processes_with(token))
            return 1;
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    return 0;
}

static void define(const struct cairn_grader_def *d)
{
    struct cairn_error err;

    if (cairn_grader_define(d, &err) != CAIRN_OK)
        fail_msg("%s", err.text);
}

static void define_unruly_again(int retries, double time_s, int retry_timeout)
{
    const char *argument[] = {token};

    define(&(struct cairn_grader_def){.name = "unruly",
                                      .kind = "command",
                                      .program = unruly_path,
                                      .argument = argument,
                                      .arguments = 1,
                                      .time_s = time_s,
                                      .retries = retries,
                                      .retry_timeout = retry_timeout,
                                      .memory_bytes = (int64_t)512 << 20,
                                      .processes = 64});
}

static void define_unruly(int retries, double time_s)
{
    define_unruly_again(retries, time_s, 0);
}

static struct cairn_verdict ask(struct cairn_grader_process *p, const char *grader, const char *gold, const char *response)
{
    struct cairn_verdict v;
    struct cairn_error err;

    if (cairn_grader_process_grade(p, grader, NULL, gold, strlen(gold), response, strlen(response), &v, &err) != CAIRN_OK)
        fail_msg("%s: %s", response, err.text);
    return v;
}

static struct cairn_grader_process *begin(void)
{
    struct cairn_grader_process *p;

    assert_int_equal(cairn_grader_process_start(&p, NULL, NULL), CAIRN_OK);
    return p;
}

static int forget(void **state)
{
    (void)state;
    cairn_graders_forget();
    return 0;
}

/* --- the tests -------------------------------------------------------------------------------------------------------------- */

static int here(const char *grader, const char *gold, const char *response)
{
    struct cairn_verdict v;
    struct cairn_error err;

    if (cairn_grade(cairn_grader_find(grader), NULL, gold, strlen(gold), response, strlen(response), &v, &err) != CAIRN_OK)
        fail_msg("%s", err.text);
    return v.status == CAIRN_VERDICT_OK ? v.match : -(int)v.status;
}

static void test_exact(void **state)
{
    (void)state;
    assert_int_equal(here("exact", "New  York", "I think.\nAnswer: New York\n"), 1);
    assert_int_equal(here("exact", "New York", "Answer: new york"), 0);
    assert_int_equal(here("exact", "1/2", "Answer: 0.5"), 0);
    assert_int_equal(here("exact", "x", "nothing"), -CAIRN_VERDICT_NO_ANSWER);
    define(&(struct cairn_grader_def){.name = "loose", .kind = "exact", .take = "response", .any_case = 1});
    assert_int_equal(here("loose",
                          "Stra\xc3\x9f"
                          "e \xc3\x84",
                          "  STRA\xc3\x9f"
                          "E\n\xc3\xa4 "),
                     1);
    assert_int_equal(here("loose", "\xff", "\xff"), 1); /* bytes that are no text are compared as they are */
    assert_int_equal(here("loose", "\xff", "\xfe"), 0);
}

static void test_regex(void **state)
{
    char many[20000];
    struct cairn_error err;

    (void)state;
    define(&(struct cairn_grader_def){.name = "last", .kind = "regex", .pattern = "#### *([^\\n]*)"});
    assert_int_equal(here("last", "42", "#### 7\nno\n####  42 \n"), 1);
    assert_int_equal(here("last", "7", "#### 7\nno\n####  42"), 0);
    assert_int_equal(here("last", "7", "none"), -CAIRN_VERDICT_NO_ANSWER);
    define(&(struct cairn_grader_def){.name = "there", .kind = "regex", .pattern = "\\bdone\\b", .any_case = 1});
    assert_int_equal(here("there", "", "all DONE."), 1);
    assert_int_equal(here("there", "", "undone"), -CAIRN_VERDICT_NO_ANSWER);
    define(&(struct cairn_grader_def){.name = "empty", .kind = "regex", .pattern = "(x*)"});
    assert_int_equal(here("empty", "",
                          "a\xc3\xa4\xff"
                          "b"),
                     1); /* empty matches move on by whole characters, broken ones too */
    define(&(struct cairn_grader_def){.name = "tower", .kind = "regex", .pattern = "(a+)+$"});
    assert_int_equal(here("tower", "x", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"), -CAIRN_VERDICT_BUDGET);
    /* dear at each of many places, within PCRE2's own limits at every one of them */
    for (int i = 0; i < (int)sizeof many - 3; i++)
        many[i] = 'a';
    memcpy(many + sizeof many - 3, "bc", 3);
    define(&(struct cairn_grader_def){.name = "slope", .kind = "regex", .pattern = "(?:a|a){16}c"});
    assert_int_equal(here("slope", "x", many), -CAIRN_VERDICT_BUDGET);
    define(&(struct cairn_grader_def){.name = "each", .kind = "regex", .pattern = "([ab])"});
    assert_int_equal(here("each", "b", many), 1);
    assert_int_equal(cairn_grader_define(&(struct cairn_grader_def){.name = "bad", .kind = "regex", .pattern = "a(b"}, &err),
                     CAIRN_ERECIPE);
    assert_non_null(strstr(err.text, "pattern: "));
    assert_int_equal(cairn_grader_define(&(struct cairn_grader_def){.name = "bad", .kind = "regex"}, &err), CAIRN_ERECIPE);
    assert_int_equal(cairn_grader_define(&(struct cairn_grader_def){.name = "math", .kind = "exact"}, &err), CAIRN_ERECIPE);
    assert_non_null(strstr(err.text, "already"));
}

static void test_definitions_refused(void **state)
{
    struct cairn_error err;

    (void)state;
    assert_int_equal(cairn_grader_define(&(struct cairn_grader_def){.name = "c", .kind = "command"}, &err), CAIRN_ERECIPE);
    assert_int_equal(
        cairn_grader_define(&(struct cairn_grader_def){.name = "c", .kind = "command", .program = "/etc/passwd"}, &err),
        CAIRN_ERECIPE);
    assert_non_null(strstr(err.text, "cannot be executed"));
    assert_int_equal(cairn_grader_define(&(struct cairn_grader_def){.name = "c", .kind = "plugin"}, &err), CAIRN_ERECIPE);
    assert_int_equal(cairn_grader_define(&(struct cairn_grader_def){.name = "c", .kind = "poem"}, &err), CAIRN_ERECIPE);
}

/* One after the other, so that each meets what the one before it left behind. */
static void test_unruly(void **state)
{
    static const struct {
        const char *response;
        enum cairn_verdict_status status;
        double value;
    } row[] = {
        {"right", CAIRN_VERDICT_OK, 1},          {"half", CAIRN_VERDICT_OK, 0.5},      {"two", CAIRN_VERDICT_INVALID, 0},
        {"right", CAIRN_VERDICT_OK, 1},          {"none", CAIRN_VERDICT_NO_ANSWER, 0}, {"sleep", CAIRN_VERDICT_TIMEOUT, 0},
        {"right", CAIRN_VERDICT_OK, 1},          {"crash", CAIRN_VERDICT_CRASHED, 0},  {"exit", CAIRN_VERDICT_CRASHED, 0},
        {"garbage", CAIRN_VERDICT_INVALID, 0},   {"right", CAIRN_VERDICT_OK, 1},       {"others", CAIRN_VERDICT_INVALID, 0},
        {"right", CAIRN_VERDICT_OK, 1},          {"twice", CAIRN_VERDICT_INVALID, 0},  {"right", CAIRN_VERDICT_OK, 1},
        {"flood", CAIRN_VERDICT_INVALID, 0},     {"complain", CAIRN_VERDICT_OK, 1},    {"fork", CAIRN_VERDICT_OK, 1},
        {"forkcrash", CAIRN_VERDICT_CRASHED, 0}, {"close", CAIRN_VERDICT_CRASHED, 0},  {"inside", CAIRN_VERDICT_OK, 1},
        {"descriptors", CAIRN_VERDICT_OK, 0},    {"memory", CAIRN_VERDICT_OK, 0},      {"right", CAIRN_VERDICT_OK, 1},
    };
    struct cairn_grader_process *p;

    (void)state;
    define_unruly(0, 5);
    p = begin();
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct cairn_verdict v = ask(p, "unruly", "g", row[i].response);

        if (v.status != row[i].status || v.value != row[i].value || v.match != (row[i].value == 1))
            fail_msg("%s: status %s, value %g: %s", row[i].response, cairn_verdict_status_name(v.status), v.value, v.why);
        if (!strcmp(row[i].response, "crash"))
            assert_non_null(strstr(v.why, "the heart is broken"));
    }
    assert_int_equal(ask(p, "math", "1/2", "Answer: 0.5").match, 1); /* the others go on */
    cairn_grader_process_stop(p);
    assert_true(all_gone());
}

static void test_many_keep_their_verdicts(void **state)
{
    static const char *const word[] = {"right", "crash", "half", "garbage", "right", "others"};
    struct cairn_grade_job job[60];
    struct cairn_grader_process *p;

    (void)state;
    define_unruly(0, 5);
    p = begin();
    memset(job, 0, sizeof job);
    for (int i = 0; i < 60; i++)
        job[i] = (struct cairn_grade_job){.gold = "", .response = word[i % 6], .response_bytes = strlen(word[i % 6])};
    assert_int_equal(cairn_grader_process_grade_many(p, "unruly", NULL, job, 60, NULL), CAIRN_OK);
    for (int i = 0; i < 60; i++) {
        assert_int_equal(job[i].verdict.match, i % 6 == 0 || i % 6 == 4);
        assert_int_equal(job[i].verdict.status == CAIRN_VERDICT_OK, i % 2 == 0);
    }
    cairn_grader_process_stop(p);
}

static void test_given_again(void **state)
{
    struct cairn_grader_process *p;
    struct cairn_verdict v;

    (void)state;
    define_unruly(1, 5);
    p = begin();
    v = ask(p, "unruly", "", "once");
    if (v.status != CAIRN_VERDICT_OK || !v.match)
        fail_msg("%s: %s", cairn_verdict_status_name(v.status), v.why);
    cairn_grader_process_stop(p);
}

/* What ends after its last reply, at once, later or never, costs the next response no attempt, of which there is one. */
static void test_ends_between(void **state)
{
    static const char *const word[] = {"last",    "lingers", "deaf", "right", "last", "last",
                                       "lingers", "lingers", "half", "deaf",  "deaf", "right"};
    struct cairn_grade_job job[48];
    struct cairn_grader_process *p;

    (void)state;
    define_unruly(0, 20);
    p = begin();
    memset(job, 0, sizeof job);
    for (int i = 0; i < 48; i++)
        job[i] = (struct cairn_grade_job){.gold = "", .response = word[i % 12], .response_bytes = strlen(word[i % 12])};
    assert_int_equal(cairn_grader_process_grade_many(p, "unruly", NULL, job, 48, NULL), CAIRN_OK);
    for (int i = 0; i < 48; i++)
        if (job[i].verdict.status != CAIRN_VERDICT_OK)
            fail_msg("%d, %s behind %s: %s: %s", i, word[i % 12], i ? word[(i - 1) % 12] : "nothing",
                     cairn_verdict_status_name(job[i].verdict.status), job[i].verdict.why);
    cairn_grader_process_stop(p);
    assert_true(all_gone());
}

/* A time-out is one, however many retries there are, unless they are asked for; then a fresh program has its chance. */
static void test_time_out_again(void **state)
{
    static const struct {
        int retry;
        enum cairn_verdict_status status;
    } row[] = {{0, CAIRN_VERDICT_TIMEOUT}, {1, CAIRN_VERDICT_OK}};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct cairn_grader_process *p;
        struct cairn_verdict v;

        define_unruly_again(3, 3, row[i].retry);
        p = begin();
        v = ask(p, "unruly", "", "slowonce");
        if (v.status != row[i].status)
            fail_msg("%d: %s: %s", row[i].retry, cairn_verdict_status_name(v.status), v.why);
        cairn_grader_process_stop(p);
        cairn_graders_forget();
    }
}

/* Where namespaces or the filter are not to be had there is nothing to show. */
static int shut_in(void)
{
    const struct cairn_sandbox box = {.name = "probe"};
    int whole, pipe_of[2];
    pid_t pid;
    char c;

    if (pipe(pipe_of) != 0)
        return 0;
    pid = cairn_sandbox_fork(&box, pipe_of[1], 0, &whole);
    if (pid == 0) {
        if (whole)
            c = (char)write(pipe_of[1], "y", 1);
        _exit(0);
    }
    close(pipe_of[1]);
    whole = read(pipe_of[0], &c, 1) == 1;
    close(pipe_of[0]);
    waitpid(pid, NULL, 0);
    return whole;
}

static void test_reaches_nothing(void **state)
{
    struct cairn_grader_process *p;

    (void)state;
    define_unruly(0, 10);
    p = begin();
    assert_int_equal(ask(p, "unruly", "", "write").match, 0);
    assert_int_equal(access(outside, F_OK), -1);
    assert_int_equal(access("/etc/cairn-unruly", F_OK), -1);
    assert_int_equal(ask(p, "unruly", "", "remount").match, 0);
#ifdef CAIRN_HAVE_SECCOMP
    assert_int_equal(ask(p, "unruly", "", "socket").match, 0);
#endif
    cairn_grader_process_stop(p);
}

static void test_not_shut_in(void **state)
{
    (void)state;
}

static void test_program_ends_with_us(void **state)
{
    pid_t pid;

    (void)state;
    define_unruly(0, 10);
    pid = fork();
    if (pid == 0) {
        struct cairn_grader_process *p;
        struct cairn_verdict v;

        if (cairn_grader_process_start(&p, NULL, NULL) == CAIRN_OK)
            cairn_grader_process_grade(p, "unruly", NULL, "", 0, "fork", 4, &v, NULL);
        raise(SIGKILL);
    }
    waitpid(pid, NULL, 0);
    assert_true(all_gone());
}

/* Without a namespace: what a child has started behind its back, in sessions of its own, with names that look like something else,
 * falls to the subreaper and is found there; who is spared lives on. */
static void orphans_run(int up)
{
    pid_t spared, starter;
    int left = 0;

    prctl(PR_SET_CHILD_SUBREAPER, 1);
    spared = fork();
    for (int i = 0; spared == 0; i++)
        pause();
    starter = fork();
    if (starter == 0) {
        for (int i = 0; i < 5; i++)
            if (fork() == 0) {
                setsid();
                prctl(PR_SET_NAME, i % 2 ? "x) R 1 (" : "plain");
                if (fork() == 0) /* and a child of its own */
                    setsid();
                for (;;)
                    pause();
            }
        _exit(0);
    }
    waitpid(starter, NULL, 0);
    cairn_sandbox_end(&spared, 1);
    left += kill(spared, 0) != 0;            /* it should be there */
    left += waitpid(-1, NULL, WNOHANG) != 0; /* and nobody else: 0 as the spared one still runs */
    kill(spared, SIGKILL);
    waitpid(spared, NULL, 0);
    left += waitpid(-1, NULL, 0) != -1;
    _exit(write(up, left ? "n" : "y", 1) != 1);
}

static void test_orphans(void **state)
{
    int pipe_of[2];
    pid_t pid;
    char c = 0;

    (void)state;
    assert_int_equal(pipe(pipe_of), 0);
    fflush(NULL);
    pid = fork();
    if (pid == 0)
        orphans_run(pipe_of[1]);
    close(pipe_of[1]);
    assert_int_equal(read(pipe_of[0], &c, 1), 1);
    close(pipe_of[0]);
    waitpid(pid, NULL, 0);
    assert_int_equal(c, 'y');
}

static void test_plugin(void **state)
{
    const char *argument[] = {"3", "refuse"};
    struct cairn_grader_process *p;
    struct cairn_verdict v;
    struct cairn_error err;

    (void)state;
    define(&(struct cairn_grader_def){
        .name = "words", .kind = "plugin", .program = plugin_path, .argument = argument, .arguments = 1, .time_s = 1});
    define(&(struct cairn_grader_def){
        .name = "refused", .kind = "plugin", .program = plugin_path, .argument = argument, .arguments = 2, .time_s = 1});
    define(&(struct cairn_grader_def){.name = "nowhere", .kind = "plugin", .program = "/nowhere.so", .time_s = 1});
    p = begin();
    assert_int_equal(ask(p, "words", "", "one two three").match, 1);
    v = ask(p, "words", "", "one two");
    assert_int_equal(v.status, CAIRN_VERDICT_OK);
    assert_true(v.value > 0.66 && v.value < 0.67 && !v.match);
    assert_int_equal(ask(p, "words", "", "").status, CAIRN_VERDICT_NO_ANSWER);
    assert_int_equal(ask(p, "words", "crash", "x").status, CAIRN_VERDICT_CRASHED);
    assert_int_equal(ask(p, "words", "hang", "x").status, CAIRN_VERDICT_TIMEOUT);
    assert_int_equal(ask(p, "words", "nan", "x").status, CAIRN_VERDICT_INVALID);
    assert_int_equal(ask(p, "words", "", "one two three four").match, 1);
    assert_int_equal(cairn_grader_process_grade(p, "refused", NULL, "", 0, "x", 1, &v, &err), CAIRN_ERECIPE);
    assert_non_null(strstr(err.text, "refuses"));
    assert_int_equal(cairn_grader_process_grade(p, "nowhere", NULL, "", 0, "x", 1, &v, &err), CAIRN_ERECIPE);
    cairn_grader_process_stop(p);
}

int main(void)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_exact, forget),
        cmocka_unit_test_teardown(test_regex, forget),
        cmocka_unit_test_teardown(test_definitions_refused, forget),
        cmocka_unit_test_teardown(test_unruly, forget),
        cmocka_unit_test_teardown(test_many_keep_their_verdicts, forget),
        cmocka_unit_test_teardown(test_given_again, forget),
        cmocka_unit_test_teardown(test_ends_between, forget),
        cmocka_unit_test_teardown(test_time_out_again, forget),
        cmocka_unit_test_teardown(test_reaches_nothing, forget),
        cmocka_unit_test_teardown(test_program_ends_with_us, forget),
        cmocka_unit_test_teardown(test_orphans, forget),
        cmocka_unit_test_teardown(test_plugin, forget),
    };
    char self[4096], *slash;
    int enclosed = shut_in();
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    self[n > 0 ? n : 0] = 0;
    if (!(slash = strrchr(self, '/')))
        return 1;
    *slash = 0;
    snprintf(unruly_path, sizeof unruly_path, "%s/unruly", self);
    snprintf(plugin_path, sizeof plugin_path, "%s/../lib/words_grader.so", self);
    snprintf(token, sizeof token, "unruly-%ld", (long)getpid());
    snprintf(outside, sizeof outside, "%s/outside-%ld", self, (long)getpid());
    setenv("UNRULY_OUTSIDE", outside, 1);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (!enclosed && tests[i].test_func == test_reaches_nothing) { /* prove takes cmocka's skip() for a failure */
            tests[i].name = "test_reaches_nothing # SKIP this machine lets nobody make namespaces: NOTHING WAS TRIED";
            tests[i].test_func = test_not_shut_in;
        }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

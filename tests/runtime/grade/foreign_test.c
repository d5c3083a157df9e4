/* foreign_test.c - graders that a recipe defines: exact, regex, command, plugin; and a program that does its worst behind the sandbox.
 *
 * The unruly program is this one, started with --unruly TOKEN: it does what the response says. TOKEN tells its processes from all others.
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
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/str.h"
#include "grade/define.h"
#include "grade/process.h"

static char self[4096], plugin_path[4200], outside[4200], token[64];

/* --- the unruly program ----------------------------------------------------------------------------------------------------- */

static int can_write(const char *path)
{
    int fd = open(path, O_CREAT | O_WRONLY, 0600);

    if (fd < 0)
        return 0;
    close(fd);
    return 1;
}

static int can_connect(void)
{
    return socket(AF_UNIX, SOCK_STREAM, 0) >= 0 || socket(AF_INET, SOCK_STREAM, 0) >= 0;
}

static void spawn_sleepers(int n)
{
    for (int i = 0; i < n; i++)
        if (fork() == 0) {
            setsid();
            for (;;)
                pause();
        }
}

static void flood(int fd)
{
    char block[65536];

    memset(block, 'x', sizeof block);
    for (int i = 0; i < 256; i++)
        if (write(fd, block, sizeof block) < 0)
            return;
}

static void reply(const char *id, const char *rest)
{
    printf("{\"id\":%s,%s}\n", id, rest);
    fflush(stdout);
}

static int other_descriptors(void)
{
    int n = 0;

    for (int fd = 3; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static int unruly(void)
{
    static char line[1 << 20];

    while (fgets(line, sizeof line, stdin)) {
        char id[32] = "0";
        const char *word = strstr(line, "\"response\":\"");

        sscanf(line, "{\"id\":%31[0-9]", id);
        word = word ? word + 12 : "";
#define SAYS(w) (strncmp(word, w "\"", sizeof(w)) == 0)
        if (SAYS("right"))
            reply(id, "\"match\":true,\"extracted\":\"it\",\"why\":\"so\"");
        else if (SAYS("half"))
            reply(id, "\"score\":0.5");
        else if (SAYS("two"))
            reply(id, "\"score\":2");
        else if (SAYS("none"))
            reply(id, "\"answer\":false");
        else if (SAYS("sleep"))
            sleep(600);
        else if (SAYS("crash")) {
            fprintf(stderr, "first line\nthe heart is broken\n");
            abort();
        } else if (SAYS("exit"))
            exit(5);
        else if (SAYS("garbage"))
            printf("what?\n"), fflush(stdout);
        else if (SAYS("others"))
            reply("999999", "\"match\":true");
        else if (SAYS("twice")) {
            printf("{\"id\":%s,\"match\":false}\n{\"id\":%s,\"match\":true}\n", id, id);
            fflush(stdout);
        } else if (SAYS("flood"))
            flood(1);
        else if (SAYS("complain")) {
            flood(2);
            reply(id, "\"match\":true");
        } else if (SAYS("fork")) {
            spawn_sleepers(8);
            reply(id, "\"match\":true");
        } else if (SAYS("forkcrash")) {
            spawn_sleepers(8);
            abort();
        } else if (SAYS("close")) {
            close(1);
            sleep(600);
        } else if (SAYS("write"))
            reply(id, can_write(getenv("UNRULY_OUTSIDE")) || can_write("/etc/cairn-unruly") ? "\"match\":true" : "\"match\":false");
        else if (SAYS("inside"))
            reply(id, can_write("mine") && can_write("/dev/null") ? "\"match\":true" : "\"match\":false");
        else if (SAYS("socket"))
            reply(id, can_connect() ? "\"match\":true" : "\"match\":false");
        else if (SAYS("remount"))
            reply(id, mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL) == 0 || umount("/tmp") == 0 ? "\"match\":true" : "\"match\":false");
        else if (SAYS("descriptors"))
            reply(id, other_descriptors() ? "\"match\":true" : "\"match\":false");
        else if (SAYS("once")) { /* dies where it was never before; its private folder outlives it */
            if (can_write("been-here") && access("been-here-before", F_OK) != 0) {
                can_write("been-here-before");
                abort();
            }
            reply(id, "\"match\":true");
        } else if (SAYS("memory")) {
            size_t n = 0;

            while (malloc((size_t)16 << 20) && n < 1024)
                n++;
            reply(id, n < 64 ? "\"match\":false" : "\"match\":true");
        }
    }
    return 0;
}

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
        n += strstr(line, what) && strstr(line, "--unruly") && !strstr(stat, ") Z ");
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

static void define_unruly(int retries, double time_s)
{
    const char *argument[] = {"--unruly", token};

    define(&(struct cairn_grader_def){.name = "unruly", .kind = "command", .program = self, .argument = argument, .arguments = 2,
                                      .time_s = time_s, .retries = retries, .memory_bytes = (int64_t)512 << 20, .processes = 64});
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
    assert_int_equal(here("loose", "Stra\xc3\x9f" "e \xc3\x84", "  STRA\xc3\x9f" "E\n\xc3\xa4 "), 1);
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
    assert_int_equal(here("empty", "", "a\xc3\xa4\xff" "b"), 1); /* empty matches move on by whole characters, broken ones too */
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
    assert_int_equal(cairn_grader_define(&(struct cairn_grader_def){.name = "bad", .kind = "regex", .pattern = "a(b"}, &err), CAIRN_ERECIPE);
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
    assert_int_equal(cairn_grader_define(&(struct cairn_grader_def){.name = "c", .kind = "command", .program = "/etc/passwd"}, &err), CAIRN_ERECIPE);
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
        {"right", CAIRN_VERDICT_OK, 1},          {"half", CAIRN_VERDICT_OK, 0.5},          {"two", CAIRN_VERDICT_INVALID, 0},
        {"right", CAIRN_VERDICT_OK, 1},          {"none", CAIRN_VERDICT_NO_ANSWER, 0},     {"sleep", CAIRN_VERDICT_TIMEOUT, 0},
        {"right", CAIRN_VERDICT_OK, 1},          {"crash", CAIRN_VERDICT_CRASHED, 0},      {"exit", CAIRN_VERDICT_CRASHED, 0},
        {"garbage", CAIRN_VERDICT_INVALID, 0},   {"right", CAIRN_VERDICT_OK, 1},           {"others", CAIRN_VERDICT_INVALID, 0},
        {"right", CAIRN_VERDICT_OK, 1},          {"twice", CAIRN_VERDICT_INVALID, 0},      {"right", CAIRN_VERDICT_OK, 1},
        {"flood", CAIRN_VERDICT_INVALID, 0},     {"complain", CAIRN_VERDICT_OK, 1},        {"fork", CAIRN_VERDICT_OK, 1},
        {"forkcrash", CAIRN_VERDICT_CRASHED, 0}, {"close", CAIRN_VERDICT_CRASHED, 0},      {"inside", CAIRN_VERDICT_OK, 1},
        {"descriptors", CAIRN_VERDICT_OK, 0},    {"memory", CAIRN_VERDICT_OK, 0},          {"right", CAIRN_VERDICT_OK, 1},
    };
    struct cairn_grader_process *p;

    (void)state;
    define_unruly(0, 1);
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
    if (!shut_in()) {
        print_message("SKIPPED: this machine lets nobody make namespaces, so a grader is not fully shut in here\n");
        skip();
    }
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

static void test_plugin(void **state)
{
    const char *argument[] = {"3", "refuse"};
    struct cairn_grader_process *p;
    struct cairn_verdict v;
    struct cairn_error err;

    (void)state;
    define(&(struct cairn_grader_def){.name = "words", .kind = "plugin", .program = plugin_path, .argument = argument, .arguments = 1, .time_s = 1});
    define(&(struct cairn_grader_def){.name = "refused", .kind = "plugin", .program = plugin_path, .argument = argument, .arguments = 2, .time_s = 1});
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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_exact, forget),
        cmocka_unit_test_teardown(test_regex, forget),
        cmocka_unit_test_teardown(test_definitions_refused, forget),
        cmocka_unit_test_teardown(test_unruly, forget),
        cmocka_unit_test_teardown(test_many_keep_their_verdicts, forget),
        cmocka_unit_test_teardown(test_given_again, forget),
        cmocka_unit_test_teardown(test_reaches_nothing, forget),
        cmocka_unit_test_teardown(test_program_ends_with_us, forget),
        cmocka_unit_test_teardown(test_plugin, forget),
    };
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash;

    if (argc > 1 && strcmp(argv[1], "--unruly") == 0)
        return unruly();
    if (n < 0)
        return 1;
    self[n] = 0;
    snprintf(plugin_path, sizeof plugin_path, "%s", self);
    if ((slash = strrchr(plugin_path, '/')))
        snprintf(slash, sizeof plugin_path - (size_t)(slash - plugin_path), "/../lib/words_grader.so");
    snprintf(token, sizeof token, "unruly-%ld", (long)getpid());
    snprintf(outside, sizeof outside, "%s.outside-%ld", self, (long)getpid());
    setenv("UNRULY_OUTSIDE", outside, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

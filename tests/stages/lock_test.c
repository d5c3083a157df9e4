/* lock_test.c - lock.c: one holder at a time, named; gone with its process, however that dies. */
#include "tests/stages/lab.h"

#include "base/clock.h"
#include "stages/common/lock.h"

/* A process that takes the lock, says so through *fd, and sleeps. */
static pid_t holder(const char *dir, int *fd)
{
    int p[2];
    pid_t pid;

    assert_int_equal(pipe(p), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        struct cairn_lock *l = NULL;
        char ok = cairn_lock_take(&l, dir, NULL) == CAIRN_OK;

        if (write(p[1], &ok, 1) != 1)
            _exit(1);
        pause();
        _exit(0);
    }
    close(p[1]);
    *fd = p[0];
    return pid;
}

static void test_two(void **state)
{
    struct cairn_lock *mine = NULL;
    char host[256] = "", word[300], ok = 0, text[400];
    struct lab l;
    double t0;
    pid_t pid;
    int fd;

    (void)state;
    lab_open(&l);
    assert_int_equal(cairn_lock_held(l.dir, text, sizeof text), 0);
    pid = holder(l.dir, &fd);
    assert_int_equal(read(fd, &ok, 1), 1);
    close(fd);
    assert_int_equal(ok, 1);
    gethostname(host, sizeof host - 1);
    snprintf(word, sizeof word, "host %s pid %ld", host, (long)pid);
    t0 = cairn_now_s();
    FAILS(CAIRN_EAGAIN, word, cairn_lock_take(&mine, l.dir, err));
    assert_true(cairn_now_s() - t0 < 5); /* gives up soon */
    assert_null(mine);
    assert_int_equal(cairn_lock_held(l.dir, text, sizeof text), 1);
    assert_string_equal(text, word);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(cairn_lock_held(l.dir, text, sizeof text), 0);
    OK(cairn_lock_take(&mine, l.dir, err));
    snprintf(word, sizeof word, "host %s pid %ld", host, (long)getpid());
    FAILS(CAIRN_EAGAIN, word, cairn_lock_take(&(struct cairn_lock *){NULL}, l.dir, err)); /* not twice in one process either */
    cairn_lock_drop(mine);
    OK(cairn_lock_take(&mine, l.dir, err));
    cairn_lock_drop(mine);
    cairn_lock_drop(NULL);
    lab_close(&l);
}

/* A program that the holder starts does not keep the lock alive. */
static void test_not_inherited(void **state)
{
    struct cairn_lock *mine = NULL;
    struct lab l;
    pid_t pid;

    (void)state;
    lab_open(&l);
    OK(cairn_lock_take(&mine, l.dir, err));
    pid = fork();
    if (!pid) {
        execlp("sleep", "sleep", "60", (char *)NULL);
        _exit(1);
    }
    cairn_sleep_s(0.2); /* until it has become `sleep` */
    cairn_lock_drop(mine);
    OK(cairn_lock_take(&mine, l.dir, err));
    cairn_lock_drop(mine);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    lab_close(&l);
}

/* Something that the holder shares its lock with keeps it when the holder is killed: whoever wants it then waits for that one's end. */
static void test_shared(void **state)
{
    struct cairn_lock *mine = NULL;
    struct lab l;
    pid_t pid;
    char text[400];
    double t0;

    (void)state;
    lab_open(&l);
    pid = fork();
    if (!pid) {
        if (cairn_lock_take(&mine, l.dir, NULL) != CAIRN_OK)
            _exit(1);
        if (!fork()) {
            cairn_lock_share();
            execlp("sleep", "sleep", "1", (char *)NULL);
        }
        raise(SIGKILL);
    }
    t0 = cairn_now_s();
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(cairn_lock_held(l.dir, text, sizeof text), 1);
    assert_non_null(strstr(text, ", killed: its ranks are on their way out"));
    OK(cairn_lock_take(&mine, l.dir, err));
    assert_true(cairn_now_s() - t0 > 0.9);
    cairn_lock_drop(mine);
    lab_close(&l);
}

/* Who only asks does not make somebody who takes it fail. */
static void test_asking(void **state)
{
    struct lab l;
    pid_t pid;

    (void)state;
    lab_open(&l);
    {
        struct cairn_lock *mine = NULL;

        OK(cairn_lock_take(&mine, l.dir, err)); /* so that the file is there */
        cairn_lock_drop(mine);
    }
    pid = fork();
    if (!pid)
        for (;;) {
            char text[400];

            cairn_lock_held(l.dir, text, sizeof text);
        }
    for (int i = 0; i < 200; i++) {
        struct cairn_lock *mine = NULL;

        OK(cairn_lock_take(&mine, l.dir, err));
        cairn_lock_drop(mine);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    lab_close(&l);
}

static void test_no_directory(void **state)
{
    struct cairn_lock *mine = NULL;

    (void)state;
    FAILS(CAIRN_EIO, "/nowhere/at/all/.lock", cairn_lock_take(&mine, "/nowhere/at/all", err));
    assert_int_equal(cairn_lock_held("/nowhere/at/all", (char[10]){0}, 10), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_two), cmocka_unit_test(test_not_inherited), cmocka_unit_test(test_shared),
                                       cmocka_unit_test(test_asking), cmocka_unit_test(test_no_directory)};

    return cmocka_run_group_tests_name("lock", tests, NULL, NULL);
}

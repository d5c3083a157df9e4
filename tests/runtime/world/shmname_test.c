/* shmname_test.c - shmname.c: names of the living, of the dead, of somebody of whom nothing is known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "world/shmname.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

static int64_t field_of(const char *name, int k)
{
    while (k-- > 0)
        name = strchr(name, '-') + 1;
    return strtoll(name, NULL, 10);
}

static void test_names(void **state)
{
    char own[200], dead[200], name[256], small[10];
    int64_t ns, started;
    int pipes[2], status;
    char c;
    pid_t pid;

    (void)state;
    if (!cairn_shm_name(own, sizeof own, getpid(), "ring.0"))
        skip();
    assert_int_equal(cairn_shm_owner_alive(own), 1);
    assert_false(cairn_shm_name(small, sizeof small, getpid(), "ring.0"));
    assert_false(cairn_shm_name(name, sizeof name, getpid(), "a/b"));
    assert_false(cairn_shm_name(name, sizeof name, getpid(), ""));
    ns = field_of(own, 1);
    started = field_of(own, 3);
    assert_int_equal(field_of(own, 2), getpid());

    assert_int_equal(pipe(pipes), 0);
    pid = fork();
    if (!pid) {
        close(pipes[1]);
        _exit(read(pipes[0], &c, 1) != 0);
    }
    assert_true(cairn_shm_name(dead, sizeof dead, pid, "x"));
    assert_int_equal(cairn_shm_owner_alive(dead), 1);
    close(pipes[0]);
    close(pipes[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(cairn_shm_owner_alive(dead), 0);

    snprintf(name, sizeof name, "cairn-%lld-%ld-%lld-x", (long long)ns, (long)getpid(), (long long)started - 1);
    assert_int_equal(cairn_shm_owner_alive(name), 0); /* the pid was given away again */
    snprintf(name, sizeof name, "cairn-%lld-%ld-%lld-x", (long long)ns + 1, (long)getpid(), (long long)started - 1);
    assert_int_equal(cairn_shm_owner_alive(name), -1);
    {
        static const char *const nothing[] = {"cairn", "cairn-", "cairn-x", "cairn-1-2-3", "cairn-1--3-x", "cairn-1-2-x-y", "other-1-2-3-x", "",
                                              "cairn-99999999999999999999999-2-3-x", "cairn-1-0-3-x", "cairn--1-2-3-x"};

        for (size_t i = 0; i < COUNT(nothing); i++)
            assert_int_equal(cairn_shm_owner_alive(nothing[i]), -1);
    }
}

static void count(void *arg, const char *path, int64_t bytes)
{
    (void)path;
    (void)bytes;
    ++*(int *)arg;
}

static void touch(const char *dir, const char *name)
{
    char *path = cairn_path_join(dir, name);

    assert_int_equal(cairn_file_create(path, "x", 1, NULL), 0);
    free(path);
}

static int there(const char *dir, const char *name)
{
    char *path = cairn_path_join(dir, name);
    struct stat sb;
    int yes = !lstat(path, &sb);

    free(path);
    return yes;
}

static void test_sweep(void **state)
{
    char dir[] = "/tmp/cairn-shm-XXXXXX", own[200], dead[200], folder[256], link[256], path[400];
    struct cairn_error err = {0};
    int n = 0;

    (void)state;
    if (!cairn_shm_name(own, sizeof own, getpid(), "a"))
        skip();
    assert_non_null(mkdtemp(dir));
    snprintf(dead, sizeof dead, "cairn-%lld-%ld-%lld-b", (long long)field_of(own, 1), (long)getpid(), (long long)field_of(own, 3) - 1);
    snprintf(folder, sizeof folder, "%s.d", dead);
    snprintf(link, sizeof link, "%s.l", dead);
    touch(dir, own);
    touch(dir, dead);
    touch(dir, "cairn-mine");
    snprintf(path, sizeof path, "%s/%s", dir, folder);
    assert_int_equal(mkdir(path, 0700), 0); /* an MPI's */
    touch(path, "segment.0");
    snprintf(path, sizeof path, "%s/%s", dir, link);
    assert_int_equal(symlink("/etc/passwd", path), 0);

    assert_int_equal(cairn_shm_sweep(dir, 1, count, &n, &err), CAIRN_OK);
    assert_int_equal(n, 2);
    assert_true(there(dir, dead) && there(dir, folder));
    assert_int_equal(cairn_shm_sweep(dir, 0, count, &n, &err), CAIRN_OK);
    assert_int_equal(n, 4);
    assert_false(there(dir, dead) || there(dir, folder));
    assert_true(there(dir, own) && there(dir, "cairn-mine") && there(dir, link));
    assert_int_equal(cairn_shm_sweep("/tmp/there-is-no-such-place", 0, count, &n, &err), CAIRN_OK);
    assert_int_equal(n, 4);
    assert_int_equal(cairn_tree_remove(dir, &err), CAIRN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names), cmocka_unit_test(test_sweep)};

    return cmocka_run_group_tests_name("shmname", tests, NULL, NULL);
}

/* nodestore_test.c - nodestore.c: taken, kept, found again; references and makers that are killed; what is refused; what goes and
 * what stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/str.h"
#include "world/nodestore.h"

#define OK(call) assert_int_equal(call, CAIRN_OK)
#define BYTES    ((size_t)40 << 20) /* more than two blocks */
#define SMALL    1000

static char dir[64];

static struct cairn_digest key_of(int i)
{
    return cairn_digest_bytes(&i, sizeof i);
}

static struct cairn_nodestore *store(double max, double ttl)
{
    const struct cairn_nodestore_opts o = {.path = dir, .max_bytes = max, .ttl_s = ttl, .patience_s = 5};
    struct cairn_nodestore *s = NULL;

    OK(cairn_nodestore_open(&s, &o, NULL));
    return s;
}

static char *path_of(int i, const char *tail)
{
    char hex[33], *path;

    cairn_digest_hex(key_of(i), hex);
    path = cairn_format("%s/cairn-%ld/%s%s", dir, (long)geteuid(), hex, tail);
    assert_non_null(path);
    return path;
}

static int there(int i, const char *tail)
{
    char *path = path_of(i, tail);
    int yes = cairn_path_exists(path);

    free(path);
    return yes;
}

/* Byte j of object i. */
static char byte(int i, size_t j)
{
    return (char)((unsigned)i * 31 + (unsigned)(j * 2654435761u >> 13));
}

static void put(struct cairn_nodestore *s, int i, size_t n)
{
    struct cairn_nodeobject *o = NULL;

    OK(cairn_nodestore_take(s, key_of(i), n, &o, NULL));
    assert_int_equal(o->fresh, 1);
    for (size_t j = 0; j < n; j++)
        o->p[j] = byte(i, j);
    OK(cairn_nodeobject_keep(o, NULL));
    cairn_nodeobject_drop(o);
}

static void aged(int i, double hours)
{
    char *path = path_of(i, "");
    struct timespec t[2];

    clock_gettime(CLOCK_REALTIME, &t[0]);
    t[0].tv_sec -= (time_t)(hours * 3600);
    t[1] = t[0];
    assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
    free(path);
}

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/nodestore.XXXXXX");
    return mkdtemp(dir) == NULL;
}

static int teardown(void **state)
{
    (void)state;
    return cairn_tree_remove(dir, NULL) != CAIRN_OK;
}

static void test_kept_and_found(void **state)
{
    struct cairn_nodestore *s = store(0, 0);
    struct cairn_nodeobject *o = NULL, *again = NULL;

    (void)state;
    put(s, 1, BYTES);
    assert_false(there(1, ".making"));
    OK(cairn_nodestore_take(s, key_of(1), BYTES, &o, NULL));
    assert_int_equal(o->fresh, 0);
    for (size_t j = 0; j < BYTES; j++)
        assert_true(o->p[j] == byte(1, j));
    assert_int_equal((uintptr_t)o->p % 64, 0);
    memset(o->p, 0, BYTES); /* its own view: nobody else sees it */
    OK(cairn_nodestore_take(s, key_of(1), BYTES, &again, NULL));
    assert_int_equal(again->fresh, 0);
    assert_true(again->p[BYTES - 1] == byte(1, BYTES - 1));
    cairn_nodeobject_drop(again);
    cairn_nodeobject_drop(o);

    /* A fresh one that is dropped leaves nothing; one that is kept may be written afterwards without anybody seeing it. */
    OK(cairn_nodestore_take(s, key_of(2), SMALL, &o, NULL));
    assert_true(there(2, ".making"));
    cairn_nodeobject_drop(o);
    assert_false(there(2, ".making"));
    OK(cairn_nodestore_take(s, key_of(2), SMALL, &o, NULL));
    OK(cairn_nodeobject_keep(o, NULL));
    OK(cairn_nodeobject_view(o, NULL));
    o->p[7] = 1;
    OK(cairn_nodestore_take(s, key_of(2), SMALL, &again, NULL));
    assert_int_equal(again->fresh, 0);
    assert_int_equal(again->p[7], 0);
    cairn_nodeobject_drop(again);
    cairn_nodeobject_drop(o);
    cairn_nodestore_close(s);
}

/* Another process takes object i, says so, and waits to be killed. keep: it finishes a fresh one. */
static pid_t holder(int i, size_t n, int keep)
{
    int pipes[2];
    pid_t pid;
    char c;

    assert_int_equal(pipe(pipes), 0);
    pid = fork();
    if (!pid) {
        struct cairn_nodestore *s = store(0, 0);
        struct cairn_nodeobject *o = NULL;

        if (cairn_nodestore_take(s, key_of(i), n, &o, NULL) != CAIRN_OK || (keep && o->fresh && cairn_nodeobject_keep(o, NULL) != CAIRN_OK))
            _exit(1);
        if (write(pipes[1], "x", 1) != 1)
            _exit(1);
        pause();
        _exit(0);
    }
    close(pipes[1]);
    assert_int_equal(read(pipes[0], &c, 1), 1);
    close(pipes[0]);
    return pid;
}

static void killed(pid_t pid)
{
    int status;

    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
}

static enum cairn_status count(void *arg, const struct cairn_nodestore_entry *e, struct cairn_error *err)
{
    int *n = arg;

    (void)err;
    n[0]++;
    n[1] += e->in_use;
    n[2] += !e->made;
    return CAIRN_OK;
}

static void test_references_die_with_their_holder(void **state)
{
    const struct cairn_nodestore_opts o = {.path = dir, .ttl_s = 3600};
    struct cairn_nodestore *s = store(0, 3600);
    int n[3] = {0};
    pid_t pid;

    (void)state;
    put(s, 1, SMALL);
    aged(1, 5);
    pid = holder(1, SMALL, 1);
    aged(1, 5);
    OK(cairn_nodestore_sweep(&o, 0, NULL, NULL, NULL));
    assert_true(there(1, "")); /* in use */
    OK(cairn_nodestore_list(&o, count, n, NULL));
    assert_int_equal(n[0], 1);
    assert_int_equal(n[1], 1);
    killed(pid);
    memset(n, 0, sizeof n);
    OK(cairn_nodestore_sweep(&o, 1, count, n, NULL));
    assert_int_equal(n[0], 1);
    assert_true(there(1, "")); /* only told */
    OK(cairn_nodestore_sweep(&o, 0, NULL, NULL, NULL));
    assert_false(there(1, ""));
    cairn_nodestore_close(s);
}

static void test_a_killed_maker_is_succeeded(void **state)
{
    const struct cairn_nodestore_opts o = {.path = dir};
    struct cairn_nodestore *s = store(0, 0);
    struct cairn_nodeobject *x = NULL;
    int n[3] = {0};
    pid_t pid;

    (void)state;
    for (int k = 0; k < 20; k++) {
        pid = holder(1, SMALL + (size_t)k, 0);
        killed(pid);
        assert_true(there(1, ".making"));
    }
    OK(cairn_nodestore_list(&o, count, n, NULL));
    assert_int_equal(n[0], 1); /* no growth */
    assert_int_equal(n[2], 1);
    put(s, 1, SMALL);
    assert_false(there(1, ".making"));
    pid = holder(2, SMALL, 0);
    killed(pid);
    OK(cairn_nodestore_sweep(&o, 0, NULL, NULL, NULL));
    assert_false(there(2, ".making"));
    assert_true(there(1, ""));
    /* A maker at work is waited for, and what it made is used. */
    pid = fork();
    if (!pid) {
        struct cairn_nodestore *t = store(0, 0);

        if (cairn_nodestore_take(t, key_of(3), SMALL, &x, NULL) != CAIRN_OK || !x->fresh)
            _exit(1);
        cairn_sleep_s(0.2);
        memset(x->p, 5, SMALL);
        _exit(cairn_nodeobject_keep(x, NULL) != CAIRN_OK);
    }
    while (!there(3, ".making") && !there(3, ""))
        cairn_sleep_s(0.005);
    OK(cairn_nodestore_take(s, key_of(3), SMALL, &x, NULL));
    assert_int_equal(x->fresh, 0);
    assert_int_equal(x->p[SMALL - 1], 5);
    cairn_nodeobject_drop(x);
    assert_int_equal(waitpid(pid, &n[0], 0), pid);
    assert_int_equal(n[0], 0);
    cairn_nodestore_close(s);
}

/* A maker's name that can only be read, as one left that was killed between linking an object and taking its own name away: it is succeeded, by
 * users without privileges, too. The object's other name is gone since. */
static void test_a_read_only_remnant_is_succeeded(void **state)
{
    const uid_t nobody = 65534;
    int status;
    pid_t pid;

    (void)state;
    assert_int_equal(chmod(dir, 0777), 0);
    pid = fork();
    if (!pid) {
        struct cairn_nodestore *s;
        char *path, *final;
        int fd;

        if (!geteuid() && (setgid(nobody) || setuid(nobody)))
            _exit(3);
        s = store(0, 0);
        put(s, 3, SMALL);
        path = path_of(3, ".making");
        final = path_of(3, "");
        if (link(final, path) || unlink(final) || chmod(path, 0400))
            _exit(4);
        fd = open(path, O_RDWR);
        if (fd >= 0)
            _exit(5); /* then this shows nothing */
        put(s, 3, SMALL);
        if (cairn_path_exists(path) || !cairn_path_exists(final))
            _exit(6);
        free(path);
        free(final);
        cairn_nodestore_close(s);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void test_a_stopped_maker_is_not_waited_for_for_ever(void **state)
{
    const struct cairn_nodestore_opts o = {.path = dir, .patience_s = 0.1};
    struct cairn_nodestore *s = NULL;
    struct cairn_nodeobject *x = NULL;
    struct cairn_error err = {0};
    pid_t pid = holder(1, SMALL, 0);

    (void)state;
    OK(cairn_nodestore_open(&s, &o, NULL));
    assert_int_equal(cairn_nodestore_take(s, key_of(1), SMALL, &x, &err), CAIRN_EAGAIN);
    assert_non_null(strstr(err.text, "not made by the one who began it"));
    killed(pid);
    cairn_nodestore_close(s);
}

/* As a whole, or block by block. */
static enum cairn_status taken(struct cairn_nodestore *s, int i, size_t n, int unread, struct cairn_error *err)
{
    struct cairn_nodeobject *o = NULL;
    enum cairn_status st = unread ? cairn_nodestore_take_unread(s, key_of(i), n, &o, err) : cairn_nodestore_take(s, key_of(i), n, &o, err);
    char *block = malloc(CAIRN_NODE_BLOCK);

    assert_non_null(block);
    if (st == CAIRN_OK && unread)
        assert_null(o->p);
    for (size_t at = 0; st == CAIRN_OK && unread && at < n; at += CAIRN_NODE_BLOCK) {
        size_t k = n - at < CAIRN_NODE_BLOCK ? n - at : CAIRN_NODE_BLOCK;

        st = cairn_nodeobject_read(o, at, k, block, err);
        for (size_t j = 0; st == CAIRN_OK && j < k; j++)
            assert_true(block[j] == byte(i, at + j));
    }
    if (st == CAIRN_EDATA && o)
        cairn_nodeobject_refuse(o);
    if (st == CAIRN_OK && unread && n > CAIRN_NODE_BLOCK) {
        assert_int_equal(cairn_nodeobject_read(o, 1, CAIRN_NODE_BLOCK, block, NULL), CAIRN_EBUG);
        assert_int_equal(cairn_nodeobject_read(o, 0, CAIRN_NODE_BLOCK - 1, block, NULL), CAIRN_EBUG);
        assert_int_equal(cairn_nodeobject_read(o, n / CAIRN_NODE_BLOCK * CAIRN_NODE_BLOCK, CAIRN_NODE_BLOCK, block, NULL), CAIRN_EBUG);
    }
    cairn_nodeobject_drop(o);
    free(block);
    return st;
}

static void damage(int unread)
{
    const size_t at[] = {0, 33, 57, 80, 100, 200, 4096, 4096 + 17, 8192, 8192 + BYTES / 2, 8192 + BYTES - 1}; /* each part of the format */
    struct cairn_nodestore *s = store(0, 0);
    struct cairn_error err = {0};
    char *path = path_of(1, ""), c;

    put(s, 1, BYTES);
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        int fd = open(path, O_RDWR);

        if (fd < 0) { /* read-only, and not root */
            assert_int_equal(chmod(path, 0600), 0);
            fd = open(path, O_RDWR);
        }
        assert_true(fd >= 0);
        assert_int_equal(pread(fd, &c, 1, (off_t)at[i]), 1);
        c ^= 4;
        assert_int_equal(pwrite(fd, &c, 1, (off_t)at[i]), 1);
        close(fd);
        if (at[i] == 200) { /* beyond the header: nobody reads it */
            OK(taken(s, 1, BYTES, unread, &err));
            continue;
        }
        assert_int_equal(taken(s, 1, BYTES, unread, &err), CAIRN_EDATA);
        assert_non_null(strstr(err.text, "is damaged"));
        assert_false(there(1, "")); /* and gone: the next one makes it again */
        put(s, 1, BYTES);
    }
    OK(taken(s, 1, BYTES, unread, &err));
    assert_int_equal(truncate(path, 5000), 0);
    assert_int_equal(taken(s, 1, BYTES, unread, &err), CAIRN_EDATA);
    put(s, 1, BYTES);
    /* Of another size than asked for: the key says more than it holds. */
    assert_int_equal(taken(s, 1, BYTES - 1, unread, &err), CAIRN_EDATA);
    /* No regular file, a link, somebody else's. */
    unlink(path);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    assert_int_not_equal(taken(s, 1, SMALL, unread, &err), CAIRN_OK);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(taken(s, 1, SMALL, unread, &err), CAIRN_EDATA);
    unlink(path);
    if (geteuid() == 0) {
        put(s, 1, SMALL);
        assert_int_equal(chown(path, 12345, (gid_t)-1), 0);
        assert_int_equal(taken(s, 1, SMALL, unread, &err), CAIRN_EDATA);
        assert_non_null(strstr(err.text, "no file of ours"));
    }
    free(path);
    cairn_nodestore_close(s);
}

static void test_damage_is_found_and_made_good(void **state)
{
    (void)state;
    damage(0);
}

static void test_damage_is_found_as_blocks_are_read(void **state)
{
    (void)state;
    damage(1);
}

static void test_foreign_folders(void **state)
{
    const struct cairn_nodestore_opts o = {.path = dir};
    char *folder = cairn_format("%s/cairn-%ld", dir, (long)geteuid());
    struct cairn_nodestore *s = NULL;
    struct cairn_error err = {0};
    int n[3] = {0};

    (void)state;
    OK(cairn_nodestore_list(&o, count, n, NULL)); /* none yet: empty */
    assert_int_equal(n[0], 0);
    assert_int_equal(symlink("/tmp", folder), 0);
    assert_int_equal(cairn_nodestore_open(&s, &o, &err), CAIRN_EDATA);
    assert_non_null(strstr(err.text, "is no folder"));
    unlink(folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(chmod(folder, 0750), 0);
    assert_int_equal(cairn_nodestore_open(&s, &o, &err), CAIRN_EDATA);
    assert_non_null(strstr(err.text, "open to others"));
    assert_int_equal(chmod(folder, 0700), 0);
    if (geteuid() == 0) {
        assert_int_equal(chown(folder, 12345, (gid_t)-1), 0);
        assert_int_equal(cairn_nodestore_open(&s, &o, &err), CAIRN_EDATA);
        assert_non_null(strstr(err.text, "belongs to user 12345"));
        assert_int_equal(chown(folder, 0, (gid_t)-1), 0);
    }
    OK(cairn_nodestore_open(&s, &o, &err));
    cairn_nodestore_close(s);
    free(folder);
}

static enum cairn_status add_bytes(void *arg, const struct cairn_nodestore_entry *e, struct cairn_error *err)
{
    (void)err;
    *(int64_t *)arg += e->bytes;
    return CAIRN_OK;
}

/* A maker that was killed between linking its object and taking its own name away: that name goes, takes no room, and nothing goes for it. */
static void test_a_second_name_goes(void **state)
{
    const size_t one = 1 << 20;
    const struct cairn_nodestore_opts o = {.path = dir, .max_bytes = 1.5 * (1 << 20)};
    struct cairn_nodestore *s = store(0, 0);
    char *final = path_of(1, ""), *making = path_of(1, ".making");
    struct cairn_nodeobject *held = NULL;
    int64_t bytes = 0;

    (void)state;
    put(s, 1, one);
    assert_int_equal(link(final, making), 0);
    OK(cairn_nodestore_list(&o, add_bytes, &bytes, NULL));
    assert_true(bytes >= (int64_t)one && bytes < (int64_t)(2 * one));
    OK(cairn_nodestore_take(s, key_of(1), one, &held, NULL)); /* found all the same */
    assert_int_equal(held->fresh, 0);
    OK(cairn_nodestore_sweep(&o, 0, NULL, NULL, NULL));
    assert_true(there(1, "") && there(1, ".making")); /* one file, and it is held */
    cairn_nodeobject_drop(held);
    OK(cairn_nodestore_sweep(&o, 0, NULL, NULL, NULL));
    assert_true(there(1, "") && !there(1, ".making"));
    OK(cairn_nodestore_take(s, key_of(1), one, &held, NULL));
    assert_true(!held->fresh && held->p[one - 1] == byte(1, one - 1));
    cairn_nodeobject_drop(held);
    cairn_nodestore_close(s);
    free(final);
    free(making);
}

static void test_cap(void **state)
{
    const size_t one = 1 << 20;
    struct cairn_nodestore *s = store(3.5 * (1 << 20), 0);
    struct cairn_nodeobject *held = NULL, *o = NULL;
    struct cairn_error err = {0};

    (void)state;
    for (int i = 1; i <= 3; i++) {
        put(s, i, one);
        aged(i, 4 - i);
    }
    OK(cairn_nodestore_take(s, key_of(1), one, &held, NULL)); /* used just now */
    put(s, 4, one);
    assert_true(there(1, "") && there(3, "") && there(4, ""));
    assert_false(there(2, "")); /* the least recently used one */
    aged(1, 9);
    put(s, 5, one);
    assert_true(there(1, "")); /* held */
    assert_false(there(3, ""));
    assert_int_equal(cairn_nodestore_take(s, key_of(6), 4 * one, &o, &err), CAIRN_ENOSPACE);
    assert_non_null(strstr(err.text, "do not fit into"));
    assert_false(there(6, ".making"));
    assert_true(there(5, "")); /* nothing went for what cannot fit */
    cairn_nodeobject_drop(held);
    cairn_nodestore_close(s);
}

/* A device that is full: the limit of file sizes stands for it. */
static void test_full(void **state)
{
    struct rlimit limit = {1 << 20, RLIM_INFINITY}, before;
    struct cairn_nodestore *s = store(0, 0);
    struct cairn_nodeobject *o = NULL;
    struct cairn_error err = {0};

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(cairn_nodestore_take(s, key_of(1), 2 << 20, &o, &err), CAIRN_ENOSPACE);
    assert_non_null(strstr(err.text, "no space for"));
    assert_false(there(1, ".making"));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    put(s, 1, 2 << 20);
    cairn_nodestore_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_kept_and_found, setup, teardown),
        cmocka_unit_test_setup_teardown(test_references_die_with_their_holder, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_killed_maker_is_succeeded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_read_only_remnant_is_succeeded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_stopped_maker_is_not_waited_for_for_ever, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damage_is_found_and_made_good, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damage_is_found_as_blocks_are_read, setup, teardown),
        cmocka_unit_test_setup_teardown(test_foreign_folders, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_second_name_goes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cap, setup, teardown),
        cmocka_unit_test_setup_teardown(test_full, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* file_test.c - whole files, exact transfers, and what each failure says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"

static char dir[] = "/tmp/cairn-file-XXXXXX";

static char *at(const char *name)
{
    return cairn_path_join(dir, name);
}

static void create_read_replace(void **state)
{
    char *path = at("a"), *p = NULL, *fifo = at("pipe");
    struct cairn_error err;
    size_t n = 0;

    (void)state;
    assert_int_equal(cairn_file_create(path, "x\0y", 3, &err), CAIRN_OK);
    assert_int_equal(cairn_file_read(path, 3, &p, &n, &err), CAIRN_OK);
    assert_int_equal(n, 3);
    assert_memory_equal(p, "x\0y", 4);
    free(p);
    assert_int_equal(cairn_file_read(path, 2, &p, &n, &err), CAIRN_EDATA);
    assert_int_equal(cairn_file_create(path, "z", 1, &err), CAIRN_EIO);
    assert_int_equal(errno, EEXIST);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(cairn_file_replace(path, "", 0, &err), CAIRN_OK);
    assert_int_equal(cairn_file_read(path, 2, &p, &n, &err), CAIRN_OK);
    assert_int_equal(n, 0);
    assert_string_equal(p, "");
    free(p);
    unlink(path);
    assert_int_equal(cairn_file_read(path, 2, &p, &n, &err), CAIRN_EDATA);
    assert_non_null(strstr(err.text, "no such file"));
    assert_int_equal(cairn_file_read(dir, 2, &p, &n, &err), CAIRN_EDATA);
    assert_int_equal(cairn_file_read("/dev/zero", 100000, &p, &n, &err), CAIRN_EDATA);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    if (!fork()) {
        int fd = open(fifo, O_WRONLY);

        for (int i = 0; i < 5000; i++)
            if (write(fd, "0123456789", 10) != 10)
                _exit(1);
        _exit(0);
    }
    assert_int_equal(cairn_file_read(fifo, 50000, &p, &n, &err), CAIRN_OK);
    assert_int_equal(n, 50000);
    free(p);
    unlink(fifo);
    free(fifo);
    free(path);
}

/* A disc that ends: nothing is left behind, and what was there stays. */
static void no_space(void **state)
{
    struct rlimit old, small = {8192, RLIM_INFINITY};
    char *path = at("limited"), *p, *big = calloc(1, 100000);
    struct cairn_error err;
    size_t n;
    int fd = open("/dev/full", O_WRONLY);

    (void)state;
    assert_int_equal(cairn_fd_write_all(fd, "x", 1, "full", &err), CAIRN_ENOSPACE);
    assert_string_equal(err.text, "write full: No space left on device");
    assert_int_equal(cairn_fd_pwrite_all(fd, "x", 1, 7, "full", &err), CAIRN_ENOSPACE);
    assert_non_null(strstr(err.text, "at byte 7"));
    close(fd);

    assert_int_equal(cairn_file_create(path, "kept", 4, &err), CAIRN_OK);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(cairn_file_replace(path, big, 100000, &err), CAIRN_ENOSPACE); /* after a short write: EFBIG */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(cairn_file_read(path, 4, &p, &n, &err), CAIRN_OK);
    assert_string_equal(p, "kept");
    free(p);
    unlink(path);
    assert_int_equal(rmdir(dir), 0); /* no temporary is left */
    assert_int_equal(mkdir(dir, 0700), 0);
    free(path);
    free(big);
}

static void exact_transfers(void **state)
{
    char *path = at("b"), buf[8];
    struct cairn_error err;
    int fd = open(path, O_RDWR | O_CREAT, 0600);

    (void)state;
    assert_int_equal(cairn_fd_pwrite_all(fd, "efgh", 4, 4, path, &err), CAIRN_OK);
    assert_int_equal(cairn_fd_write_all(fd, "abcd", 4, path, &err), CAIRN_OK);
    assert_int_equal(cairn_fd_pread_all(fd, buf, 8, 0, path, &err), CAIRN_OK);
    assert_memory_equal(buf, "abcdefgh", 8);
    assert_int_equal(cairn_fd_pread_all(fd, buf, 8, 4, path, &err), CAIRN_EDATA);
    assert_non_null(strstr(err.text, "ends at byte 8, 4 more are needed"));
    assert_int_equal(cairn_fd_pread_all(fd, buf, 0, 100, path, &err), CAIRN_OK);
    assert_int_equal(cairn_file_size(path), 8);
    assert_int_equal(cairn_file_size(dir), -1);
    assert_int_equal(cairn_fd_sync_close(&fd, path, &err), CAIRN_OK);
    assert_int_equal(fd, -1);
    fd = open(path, O_RDONLY);
    close(fd);
    assert_int_equal(cairn_fd_sync_close(&fd, path, &err), CAIRN_EIO); /* a descriptor that is none */
    assert_int_equal(fd, -1);
    fd = open("/proc/self/stat", O_RDONLY); /* knows no fsync */
    assert_int_equal(cairn_fd_sync_close(&fd, "stat", &err), CAIRN_EIO);
    assert_non_null(strstr(err.text, "fsync stat"));
    unlink(path);
    free(path);
}

static void directories(void **state)
{
    char *deep = at("x/y/z"), *file = at("x/y/f"), *link = at("x/link"), *outside = at("outside"), *below = at("x/y/f/g"), *x = at("x");
    struct cairn_error err;

    (void)state;
    assert_int_equal(cairn_dir_make(deep, &err), CAIRN_OK);
    assert_int_equal(cairn_dir_make(deep, &err), CAIRN_OK);
    assert_true(cairn_path_is_dir(deep));
    assert_int_equal(cairn_file_create(file, "1", 1, &err), CAIRN_OK);
    assert_false(cairn_path_is_dir(file));
    assert_int_equal(cairn_dir_expect(deep, &err), CAIRN_OK);
    assert_int_equal(cairn_dir_expect(file, &err), CAIRN_EDATA);
    assert_int_equal(cairn_dir_expect(link, &err), CAIRN_ENOINPUT);
    assert_true(cairn_path_exists(file));
    assert_int_equal(cairn_dir_make(file, &err), CAIRN_EIO);
    assert_int_equal(cairn_dir_make(below, &err), CAIRN_EIO);
    assert_int_equal(cairn_dir_sync(x, &err), CAIRN_OK);
    assert_int_equal(cairn_dir_sync(below, &err), CAIRN_EDATA);
    assert_int_equal(cairn_dir_make(outside, &err), CAIRN_OK);
    assert_int_equal(symlink(outside, link), 0);
    assert_int_equal(cairn_tree_remove(x, &err), CAIRN_OK);
    assert_false(cairn_path_exists(x));
    assert_true(cairn_path_exists(outside)); /* the link went, not what it led to */
    assert_int_equal(cairn_tree_remove(x, &err), CAIRN_OK);
    assert_int_equal(symlink(outside, x), 0);
    assert_int_equal(cairn_tree_remove(x, &err), CAIRN_OK);
    assert_true(cairn_path_exists(outside));
    rmdir(outside);
    free(deep), free(file), free(link), free(outside), free(below), free(x);
}

static void paths(void **state)
{
    static const struct {
        const char *path, *dir, *base;
    } t[] = {{"a/b", "a", "b"}, {"a", ".", "a"}, {"/a", "/", "a"}, {"/", "/", "/"}, {"a//b", "a", "b"}, {"a/b/", "a", "b/"}, {"/a/b", "/a", "b"}};
    static const struct {
        const char *a, *b, *want;
    } j[] = {{"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"a", "/b", "/b"}, {"", "b", "b"}, {"/", "b", "/b"}};
    static const struct {
        const char *name;
        int ok;
    } n[] = {{"a", 1},      {"model-00001.h5", 1}, {"", 0}, {".", 0}, {"..", 0}, {"...", 1}, {"a/b", 0}, {"../x", 0}, {"a b", 0}, {"a\n", 0},
             {"\xC3\xA9", 0}, {".MANIFEST.3", 1}};
    char longest[130];

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char *d = cairn_path_dirname(t[i].path);

        assert_string_equal(d, t[i].dir);
        /* a trailing slash stays with the name; what is above it is what matters */
        assert_string_equal(strcmp(t[i].path, "a/b/") ? cairn_path_basename(t[i].path) : "b/", t[i].base);
        free(d);
    }
    for (size_t i = 0; i < sizeof j / sizeof *j; i++) {
        char *p = cairn_path_join(j[i].a, j[i].b);

        assert_string_equal(p, j[i].want);
        free(p);
    }
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        assert_int_equal(cairn_name_ok(n[i].name), n[i].ok);
    memset(longest, 'a', sizeof longest);
    longest[129] = 0;
    assert_false(cairn_name_ok(longest));
    longest[128] = 0;
    assert_true(cairn_name_ok(longest));
}

/* Stands before the C library's: the fail_at-th call from now on fails (0: none). */
static int fail_at;
struct dirent *readdir(DIR *d)
{
    struct dirent *(*real)(DIR *) = NULL;
    void *found = dlsym(RTLD_NEXT, "readdir");

    memcpy(&real, &found, sizeof real);
    if (fail_at && !--fail_at) {
        errno = EIO;
        return NULL;
    }
    return real(d);
}

static void names(void **state)
{
    static const char *const made[] = {"b", "a", ".hidden", "B", "a.json", "c"}, *const sorted[] = {".hidden", "B", "a", "a.json", "b", "c"};
    struct cairn_names got = {0};
    struct cairn_error err = {0};
    char *sub = at("names"), *path;
    int there = -1, many = 0;

    (void)state;
    assert_int_equal(cairn_dir_names(&got, sub, &there, &err), CAIRN_OK);
    assert_int_equal(there, 0);
    assert_int_equal(got.n, 0);
    assert_int_equal(cairn_dir_names(&got, sub, NULL, &err), CAIRN_EIO);
    assert_non_null(strstr(err.text, sub));
    assert_int_equal(mkdir(sub, 0700), 0);
    assert_int_equal(cairn_dir_names(&got, sub, &there, &err), CAIRN_OK);
    assert_int_equal(there, 1);
    assert_int_equal(got.n, 0);
    cairn_names_free(&got);
    for (int i = 0; i < 6; i++) {
        path = cairn_path_join(sub, made[i]);
        assert_int_equal(cairn_file_create(path, "x", 1, &err), CAIRN_OK);
        assert_int_equal(cairn_dir_names(&got, path, &there, &err), CAIRN_EIO); /* no directory, but there */
        assert_int_equal(there, 1);
        free(path);
    }
    assert_int_equal(cairn_dir_names(&got, sub, NULL, &err), CAIRN_OK);
    assert_int_equal(got.n, 6);
    for (int i = 0; i < 6; i++)
        assert_string_equal(got.name[i], sorted[i]);
    cairn_names_free(&got);
    cairn_names_free(&got);
    do { /* a list that breaks off is no list, wherever it does */
        fail_at = ++many;
        got = (struct cairn_names){0};
        if (cairn_dir_names(&got, sub, NULL, &err) == CAIRN_OK)
            break;
        assert_int_equal(err.code, CAIRN_EIO);
        assert_null(got.name);
    } while (many < 100);
    fail_at = 0;
    assert_int_equal(got.n, 6);
    assert_int_equal(many, 10); /* six, "." and "..", the end */
    cairn_names_free(&got);
    assert_int_equal(cairn_tree_remove(sub, &err), CAIRN_OK);
    free(sub);
}

static int setup(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return cairn_tree_remove(dir, NULL) == CAIRN_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_space),    cmocka_unit_test(create_read_replace), cmocka_unit_test(exact_transfers),
        cmocka_unit_test(directories), cmocka_unit_test(paths),               cmocka_unit_test(names),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}

/* keep_test.c - what a GPU's back-end keeps for the next process changes no bit, be it fresh, taken over, cut, flipped, a link or another's. */
#include "lab.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { M = 192, N = 640, K = 1024 };

/* y = x . w^T by a device of its own that keeps in `dir`; bits of y. */
static void product(const char *dir, const uint16_t *x, const uint16_t *w, float *y)
{
    static const int64_t dx[] = {M, K}, dw[] = {N, K}, dy[] = {M, N};
    const struct cairn_compute_opts o = {.backend = getenv("CAIRN_TEST_BACKEND"), .act = "bf16", .keep = dir};
    struct cairn_matmul a = {.form = CAIRN_NT, .alpha = 1, .segments = 1};
    struct cairn_buffer *b[3];
    struct cairn_compute k;
    struct cairn_error err;

    if (cairn_compute_open(&k, &o, &err) != CAIRN_OK)
        fail_msg("%s", err.text);
    assert_int_equal(cairn_buffer_create(k.dev, sizeof(*x) * M * K, &b[0], &err), CAIRN_OK);
    assert_int_equal(cairn_buffer_create(k.dev, sizeof(*w) * N * K, &b[1], &err), CAIRN_OK);
    assert_int_equal(cairn_buffer_create(k.dev, sizeof(*y) * M * N, &b[2], &err), CAIRN_OK);
    assert_int_equal(cairn_tensor_view(&a.x, b[0], 0, CAIRN_BF16, 2, dx, &err), CAIRN_OK);
    assert_int_equal(cairn_tensor_view(&a.w, b[1], 0, CAIRN_BF16, 2, dw, &err), CAIRN_OK);
    assert_int_equal(cairn_tensor_view(&a.y, b[2], 0, CAIRN_F32, 2, dy, &err), CAIRN_OK);
    assert_int_equal(cairn_tensor_set(&k.stream, &a.x, x, sizeof(*x) * M * K, &err), CAIRN_OK);
    assert_int_equal(cairn_tensor_set(&k.stream, &a.w, w, sizeof(*w) * N * K, &err), CAIRN_OK);
    if (k.ops.matmul(&k.stream, &a, &err) != CAIRN_OK || cairn_tensor_get(&k.stream, &a.y, y, sizeof(*y) * M * N, &err) != CAIRN_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < 3; i++)
        cairn_buffer_destroy(b[i]);
    cairn_compute_close(&k);
}

/* A device that is closed before anything is asked of it: what it does ahead ends with it. */
static void nothing(const char *dir)
{
    const struct cairn_compute_opts o = {.backend = getenv("CAIRN_TEST_BACKEND"), .act = "bf16", .keep = dir};
    struct cairn_compute k;
    struct cairn_error err;

    if (cairn_compute_open(&k, &o, &err) != CAIRN_OK)
        fail_msg("%s", err.text);
    cairn_compute_close(&k);
}

/* The one file of a folder, malloc'ed path; NULL: it is empty. */
static char *only(const char *dir)
{
    DIR *d = opendir(dir);
    char *path = NULL;
    int n = 0;

    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') {
            free(path);
            assert_true(asprintf(&path, "%s/%s", dir, e->d_name) > 0);
            n++;
        }
    closedir(d);
    assert_true(n < 2);
    return path;
}

static void byte_flip(const char *path, off_t at)
{
    int fd = open(path, O_RDWR);
    char c;

    assert_true(fd >= 0 && pread(fd, &c, 1, at) == 1);
    c ^= 0x10;
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
    close(fd);
}

static void kept(void **state)
{
    enum { FRESH, TAKEN, CUT, EMPTY, FLIPPED, FLIPPED_NAME, LINK, FOLDER_GONE, WAYS };
    uint16_t *x = malloc(sizeof *x * M * K), *w = malloc(sizeof *w * N * K);
    float *want = malloc(sizeof *want * M * N), *y = malloc(sizeof *y * M * N);
    char dir[] = "/tmp/cairn-keep.XXXXXX", other[64], *file = NULL;
    struct stat s, last = {0};
    uint32_t r = 7;

    (void)state;
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < M * K; i++)
        x[i] = lab_bf16((float)(int)((r = r * 1664525u + 1013904223u) >> 16) * 0x1p-15f - 1);
    for (int i = 0; i < N * K; i++)
        w[i] = lab_bf16((float)(int)((r = r * 1664525u + 1013904223u) >> 16) * 0x1p-15f - 1);
    product(NULL, x, w, want);
    assert_null(only(dir));
    for (int way = FRESH; way < WAYS; way++) {
        if (file && way == CUT)
            assert_int_equal(truncate(file, last.st_size / 2), 0);
        if (file && way == EMPTY)
            assert_int_equal(truncate(file, 0), 0);
        if (file && way == FLIPPED)
            byte_flip(file, last.st_size - 9);
        if (file && way == FLIPPED_NAME)
            byte_flip(file, 40);
        if (file && way == LINK) {
            snprintf(other, sizeof other, "%s.other", dir);
            assert_int_equal(rename(file, other), 0);
            assert_int_equal(symlink(other, file), 0);
        }
        for (int i = 0; i < 3 && way != FRESH && way != FOLDER_GONE; i++)
            nothing(dir);
        memset(y, 0xff, sizeof *y * M * N);
        product(way == FOLDER_GONE ? "/nonexistent/keep" : dir, x, w, y);
        assert_memory_equal(y, want, sizeof *y * M * N);
        if (way == FRESH && !(file = only(dir))) {
            printf("# SKIP this device has nothing to keep: only the bits were looked at\n");
            continue;
        }
        if (!file || way == FOLDER_GONE)
            continue;
        assert_int_equal(lstat(file, &s), 0);
        assert_true(S_ISREG(s.st_mode) && s.st_size > 0);
        if (way == TAKEN) /* nothing was tried, so nothing is written */
            assert_true(s.st_mtim.tv_nsec == last.st_mtim.tv_nsec && s.st_ino == last.st_ino);
        else if (way > TAKEN) /* what could not be used was replaced */
            assert_true(s.st_ino != last.st_ino);
        last = s;
    }
    if (file) {
        unlink(file);
        unlink(other);
    }
    rmdir(dir);
    free(file);
    free(x);
    free(w);
    free(want);
    free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kept)};

    return LAB_RUN(tests);
}

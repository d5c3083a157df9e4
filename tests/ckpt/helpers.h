/* helpers.h - what the tests of this room share: a scratch directory, file surgery, a guarded device, small artefacts. */
#ifndef CAIRN_TESTS_CKPT_HELPERS_H
#define CAIRN_TESTS_CKPT_HELPERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/file.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/manifest.h"
#include "ckpt/reader.h"
#include "ckpt/shard.h"

static char scratch[256]; /* made by scratch_up, removed by scratch_down; the only place that tests write to */

static inline int scratch_up(void **state)
{
    const char *tmp = getenv("TMPDIR");

    (void)state;
    snprintf(scratch, sizeof scratch, "%s/cairn-ckpt.XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(scratch) ? 0 : -1;
}

static inline int scratch_down(void **state)
{
    (void)state;
    return cairn_tree_remove(scratch, NULL) != CAIRN_OK;
}

/* "<scratch>/name"; four of them live at a time. */
static inline const char *at(const char *name)
{
    static char buf[4][512];
    static int k;

    k = (k + 1) % 4;
    snprintf(buf[k], sizeof buf[k], "%s/%s", scratch, name);
    return buf[k];
}

#define ok(call)                                                          \
    do {                                                                  \
        struct cairn_error ok_err = {0}, *err = &ok_err;                  \
        if ((call) != CAIRN_OK)                                           \
            fail_msg("%s: %s", #call, ok_err.text);                       \
    } while (0)

/* The call fails with that status, and the sentence holds that text. */
#define fails(status, part, call)                                         \
    do {                                                                  \
        struct cairn_error f_err = {0}, *err = &f_err;                    \
        enum cairn_status f_st = (call);                                  \
        if (f_st != (status) || !strstr(f_err.text, (part)))              \
            fail_msg("%s: status %d, \"%s\"; expected %d, \"%s\"", #call, f_st, f_err.text, (status), (part)); \
    } while (0)

static inline void spew(const char *path, const void *p, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, p, n), (ssize_t)n);
    close(fd);
}

static inline char *slurp(const char *path, size_t *n)
{
    char *p = NULL;

    ok(cairn_file_read(path, (size_t)1 << 30, &p, n, err));
    return p;
}

static inline void flip(const char *path, int64_t byte, int bit)
{
    unsigned char c;
    int fd = open(path, O_RDWR);

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &c, 1, byte), 1);
    c ^= (unsigned char)(1 << bit);
    assert_int_equal(pwrite(fd, &c, 1, byte), 1);
    close(fd);
}

static inline uint64_t mix(uint64_t *s) /* splitmix64 */
{
    uint64_t z = *s += 0x9E3779B97F4A7C15ull;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

static inline void noise(void *p, size_t n, uint64_t seed)
{
    unsigned char *c = p;

    for (size_t i = 0; i < n; i++)
        c[i] = (unsigned char)mix(&seed);
}

/* --- small artefacts --- */

/* A shard of n slices with their data into the attempt, and its entry into the manifest. */
static inline enum cairn_status put_shard(struct cairn_attempt *a, struct cairn_manifest *m, const char *name, const struct cairn_slice *t,
                                          const void *const *p, int n, const struct cairn_shard_opts *opts, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_shard *w = NULL;
    struct cairn_shard_entry *e;

    TRY(cairn_attempt_shard(a, &w, name, t, n, opts, err));
    for (int i = 0; i < n; i++) {
        size_t bytes = cairn_dtype_size(t[i].dtype);

        for (int d = 0; d < t[i].ndim; d++)
            bytes *= (size_t)t[i].local[d];
        TRY(cairn_shard_write(w, i, 0, p[i], bytes, err));
    }
    TRY(cairn_attempt_shard_done(a, &w, &e, err));
    TRY(cairn_manifest_add_shard(m, e, err));
out:
    cairn_shard_destroy(w);
    return st;
}

/* An attempt with one shard of n whole tensors, committed; returns the status of the commit. */
static inline enum cairn_status commit_one(const char *dir, const char *kind, int64_t step, const struct cairn_slice *t,
                                           const void *const *p, int n, const struct cairn_shard_opts *opts, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_manifest *m = cairn_manifest_create(kind, step, "run-1");
    struct cairn_attempt_opts o = {.identity = cairn_manifest_identity(m)};
    struct cairn_attempt *a = NULL;

    TRY(cairn_attempt_begin(&a, dir, &o, err));
    TRY(put_shard(a, m, "rank0000", t, p, n, opts, err));
    TRY(cairn_attempt_commit(a, m, err));
out:
    cairn_attempt_end(a);
    cairn_manifest_destroy(m);
    return st;
}

/* Two small tensors. */
static inline enum cairn_status commit_small(const char *dir, int64_t step, int value, struct cairn_error *err)
{
    static const int64_t sa[] = {3, 5}, sb[] = {7};
    float a[15];
    int32_t b[7];
    struct cairn_slice t[2] = {cairn_slice_whole("a.weight", CAIRN_F32, 2, sa), cairn_slice_whole("b", CAIRN_I32, 1, sb)};
    const void *p[2] = {a, b};

    for (int i = 0; i < 15; i++)
        a[i] = (float)(value + i);
    for (int i = 0; i < 7; i++)
        b[i] = value * 100 + i;
    return commit_one(dir, "policy", step, t, p, 2, NULL, err);
}

/* "w" (n, 4) float, a shard of its own for each row; the value of an element is its index. */
static inline enum cairn_status commit_rows(const char *dir, int n, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_manifest *m = cairn_manifest_create("policy", 1, "run-1");
    const struct cairn_attempt_opts o = {.identity = cairn_manifest_identity(m)};
    const int64_t dim[] = {n, 4};
    const struct cairn_slice whole = cairn_slice_whole("w", CAIRN_F32, 2, dim);
    struct cairn_attempt *a = NULL;

    TRY(cairn_attempt_begin(&a, dir, &o, err));
    for (int i = 0; i < n; i++) {
        const struct cairn_slice s = cairn_slice_part(&whole, 0, i, 1);
        const float row[] = {(float)(i * 4), (float)(i * 4 + 1), (float)(i * 4 + 2), (float)(i * 4 + 3)};
        const void *const p[] = {row};
        char name[32];

        snprintf(name, sizeof name, "rank%04d", i);
        TRY(put_shard(a, m, name, &s, p, 1, NULL, err));
    }
    TRY(cairn_attempt_commit(a, m, err));
out:
    cairn_attempt_end(a);
    cairn_manifest_destroy(m);
    return st;
}

#endif

/* bench.c - see bench.h. */
#include "ckpt/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/reader.h"

#define COLS 1024
#define REPEATS 64

struct bench {
    char *root, *raw; /* an artefact, and a plain file */
    unsigned char *p;
    int64_t each, total; /* bytes of one tensor, of all */
    int n;
    struct cairn_slice *slice;
    char (*name)[32];
};

static enum cairn_status raw_save(const struct bench *b, double *s, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    double t = cairn_now_s();
    int fd = open(b->raw, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);

    if (fd < 0)
        return cairn_fail_errno(err, errno, "create %s", b->raw);
    for (int i = 0; i < b->n && st == CAIRN_OK; i++)
        st = cairn_fd_pwrite_all(fd, b->p + i * b->each, (size_t)b->each, i * b->each, b->raw, err);
    TRY(st);
    TRY(cairn_fd_sync_close(&fd, b->raw, err));
    *s = cairn_now_s() - t;
out:
    if (fd >= 0)
        close(fd);
    return st;
}

static enum cairn_status raw_load(const struct bench *b, unsigned char *dst, double *s, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    double t = cairn_now_s();
    int fd = open(b->raw, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return cairn_fail_errno(err, errno, "open %s", b->raw);
    for (int i = 0; i < b->n && st == CAIRN_OK; i++)
        st = cairn_fd_pread_all(fd, dst + i * b->each, (size_t)b->each, i * b->each, b->raw, err);
    close(fd);
    *s = cairn_now_s() - t;
    return st;
}

static enum cairn_status shard_save(const struct bench *b, struct cairn_shard_entry **e, double *s, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_shard *w = NULL;
    double t = cairn_now_s();

    TRY(cairn_shard_create(&w, b->root, "bench", b->slice, b->n, NULL, err));
    for (int i = 0; i < b->n; i++)
        TRY(cairn_shard_write(w, i, 0, b->p + i * b->each, (size_t)b->each, err));
    TRY(cairn_shard_finish(w, e, err));
    *s = cairn_now_s() - t;
out:
    cairn_shard_destroy(w);
    return st;
}

/* Puts a manifest beside the shard, so that a reader opens it, and reads all of it; opening is not counted. */
static enum cairn_status shard_load(const struct bench *b, struct cairn_shard_entry *e, unsigned char *dst, double *s, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_manifest *m = cairn_manifest_create("bench", 0, "");
    struct cairn_reader *r = NULL;
    char *text = NULL, *path = cairn_path_join(b->root, CAIRN_MANIFEST_NAME);
    double t;
    size_t n;

    if (!m || !path) {
        cairn_shard_entry_free(e);
        TRY(CAIRN_NOMEM(err));
    }
    TRY(cairn_manifest_add_shard(m, e, err));
    TRY(cairn_manifest_seal(m, b->root, err));
    TRY(cairn_manifest_text(m, &text, &n, err));
    TRY(cairn_file_replace(path, text, n, err));
    TRY(cairn_reader_open(&r, b->root, NULL, err));
    t = cairn_now_s();
    for (int i = 0; i < b->n; i++)
        TRY(cairn_reader_box(r, b->name[i], NULL, NULL, dst + i * b->each, (size_t)b->each, err));
    *s = cairn_now_s() - t;
    if (memcmp(dst, b->p, (size_t)b->total))
        TRY(cairn_fail(err, CAIRN_EBUG, "%s: what was read is not what was written", b->root));
out:
    cairn_reader_close(r);
    cairn_manifest_destroy(m);
    free(text);
    free(path);
    return st;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static enum cairn_status prepare(struct bench *b, const char *dir, int64_t bytes, int tensors, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t rows = bytes / tensors / (COLS * 2) > 0 ? bytes / tensors / (COLS * 2) : 1;

    b->n = tensors;
    b->each = rows * COLS * 2;
    b->total = b->each * tensors;
    b->root = cairn_format("%s/bench.%lld", dir, (long long)getpid());
    b->raw = cairn_format("%s/bench.%lld/raw", dir, (long long)getpid());
    b->p = malloc((size_t)b->total);
    b->slice = calloc((size_t)tensors, sizeof *b->slice);
    b->name = calloc((size_t)tensors, sizeof *b->name);
    if (!b->root || !b->raw || !b->p || !b->slice || !b->name)
        TRY(CAIRN_NOMEM(err));
    for (int64_t i = 0; i + 8 <= b->total; i += 8) {
        uint64_t x = ((uint64_t)i + 1) * 0x9E3779B97F4A7C15ull;

        memcpy(b->p + i, &x, 8);
    }
    for (int i = 0; i < tensors; i++) {
        int64_t shape[2] = {rows, COLS};

        snprintf(b->name[i], sizeof b->name[i], "layers.%d.weight", i);
        b->slice[i] = cairn_slice_whole(b->name[i], CAIRN_BF16, 2, shape);
    }
    TRY(cairn_dir_make(b->root, err));
out:
    return st;
}

enum cairn_status cairn_ckpt_bench_run(struct cairn_ckpt_bench *out, const char *dir, int64_t bytes, int tensors, int repeats,
                                       struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    double raw_s[REPEATS], save[REPEATS], ratio[REPEATS], raw_l[REPEATS], load[REPEATS], lratio[REPEATS];
    struct bench b = {0};
    unsigned char *dst = NULL;
    char *shard = NULL;

    if (tensors < 1 || repeats < 1 || repeats > REPEATS || bytes < 1)
        return CAIRN_BUG(err, "size of a checkpoint benchmark");
    TRY(prepare(&b, dir, bytes, tensors, err));
    dst = malloc((size_t)b.total);
    shard = cairn_path_join(b.root, "bench.h5");
    if (!dst || !shard)
        TRY(CAIRN_NOMEM(err));
    memset(dst, 1, (size_t)b.total); /* its pages are there before the clock runs */
    for (int i = 0; i < repeats; i++) {
        struct cairn_shard_entry *e;

        TRY(raw_save(&b, &raw_s[i], err));
        TRY(raw_load(&b, dst, &raw_l[i], err));
        unlink(b.raw);
        TRY(shard_save(&b, &e, &save[i], err));
        TRY(shard_load(&b, e, dst, &load[i], err));
        unlink(shard);
        ratio[i] = raw_s[i] / save[i];
        lratio[i] = raw_l[i] / load[i];
    }
    *out = (struct cairn_ckpt_bench){.bytes = b.total, .tensors = tensors, .repeats = repeats,
                                     .raw_save_s = median(raw_s, repeats), .save_s = median(save, repeats), .save_ratio = median(ratio, repeats),
                                     .raw_load_s = median(raw_l, repeats), .load_s = median(load, repeats), .load_ratio = median(lratio, repeats)};
out:
    if (b.root)
        cairn_tree_remove(b.root, NULL);
    free(shard);
    free(dst);
    free(b.root);
    free(b.raw);
    free(b.p);
    free(b.slice);
    free(b.name);
    return st;
}

/* attempts.h - one small artefact and attempts at it: three shards of rows that say who made them. */
#ifndef CAIRN_TESTS_CKPT_ATTEMPTS_H
#define CAIRN_TESTS_CKPT_ATTEMPTS_H

#include "tests/ckpt/helpers.h"

#include <dirent.h>

#define SHARDS 3

static inline struct cairn_manifest *blank(void)
{
    return cairn_manifest_create("trainer", 5, "run-1");
}

static inline struct cairn_attempt_opts for_blank(const char *lane)
{
    struct cairn_manifest *m = blank();
    struct cairn_attempt_opts o = {.identity = cairn_manifest_identity(m), .lane = lane};

    cairn_manifest_destroy(m);
    return o;
}

/* Shard i of SHARDS: rows 100 i .. 100 i + 99 of w, all equal to salt + row. */
static inline enum cairn_status make_shard(struct cairn_attempt *a, int i, int salt, struct cairn_shard_entry **e, struct cairn_error *err)
{
    static const int64_t dim[] = {100 * SHARDS, 50};
    struct cairn_slice whole = cairn_slice_whole("w", CAIRN_I32, 2, dim), s = cairn_slice_part(&whole, 0, 100 * i, 100);
    struct cairn_shard *w = NULL;
    char name[32], id[32];
    int32_t x[100 * 50];
    enum cairn_status st = CAIRN_OK;

    for (int r = 0; r < 100; r++)
        for (int c = 0; c < 50; c++)
            x[r * 50 + c] = salt + 100 * i + r;
    snprintf(name, sizeof name, "rank%04d", i);
    snprintf(id, sizeof id, "rows of rank %d", i);
    TRY(cairn_attempt_shard(a, &w, name, &s, 1, &(struct cairn_shard_opts){.identity = id}, err));
    TRY(cairn_shard_write(w, 0, 0, x, sizeof x, err));
    TRY(cairn_attempt_shard_done(a, &w, e, err));
out:
    cairn_shard_destroy(w);
    return st;
}

/* The whole of it: adopts what is there, makes the rest. *adopted counts. */
static inline enum cairn_status run_attempt(const char *dir, const char *lane, int salt, int *adopted, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_attempt_opts o = for_blank(lane);
    struct cairn_manifest *m = blank();
    struct cairn_attempt *a = NULL;
    struct cairn_shard_entry *e;

    if (adopted)
        *adopted = 0;
    TRY(cairn_attempt_begin(&a, dir, &o, err));
    for (int i = 0; i < SHARDS; i++) {
        char name[32], id[32];

        snprintf(name, sizeof name, "rank%04d", i);
        snprintf(id, sizeof id, "rows of rank %d", i);
        TRY(cairn_attempt_adopt(a, name, id, &e, err));
        if (e && adopted)
            ++*adopted;
        if (!e)
            TRY(make_shard(a, i, salt, &e, err));
        TRY(cairn_manifest_add_shard(m, e, err));
    }
    TRY(cairn_attempt_commit(a, m, err));
out:
    cairn_attempt_end(a);
    cairn_manifest_destroy(m);
    return st;
}

/* Committed, every row as salt says, and nothing of other attempts left. */
static inline void check(const char *dir, int salt)
{
    struct cairn_reader *r;
    int32_t *x;
    void *p;
    int64_t n;

    ok(cairn_reader_open(&r, dir, NULL, err));
    ok(cairn_reader_array(r, "w", CAIRN_I32, &p, &n, err));
    x = p;
    for (int64_t k = 0; k < n; k++)
        assert_int_equal(x[k], salt + k / 50);
    free(p);
    cairn_reader_close(r);
}

/* Entries of a directory that are not in the list (by prefix). */
static inline int leftovers(const char *dir, const char *keep)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    int n = 0;

    assert_non_null(d);
    while ((e = readdir(d)))
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && strcmp(e->d_name, CAIRN_MANIFEST_NAME) && strcmp(e->d_name, "epoch") &&
            strcmp(e->d_name, keep))
            n++;
    closedir(d);
    return n;
}

#endif

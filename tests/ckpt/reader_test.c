/* reader_test.c - any box from any layout of shards, only the bytes that are needed, and never a damaged one. */
#include "tests/ckpt/guarded.h"

#include "ckpt/retention.h"

/* A [rows, cols] i32 tensor "w" cut into shards along an axis (step columns or rows each), and a small "v" in the last. */
static void commit_cut(const char *dir, int64_t rows, int64_t cols, int axis, int64_t step, int64_t tile, const int32_t *x, int no_tiles)
{
    int64_t dim[2] = {rows, cols}, one[1] = {5}, v[5] = {1, 2, 3, 4, 5};
    struct cairn_manifest *m = cairn_manifest_create("policy", 4, "run-1");
    struct cairn_attempt_opts o = {.identity = cairn_manifest_identity(m)};
    struct cairn_shard_opts so = {.no_tiles = no_tiles};
    struct cairn_slice whole = cairn_slice_whole("w", CAIRN_I32, 2, dim);
    struct cairn_attempt *a;
    int k = 0;

    whole.tile_bytes = tile;
    ok(cairn_attempt_begin(&a, dir, &o, err));
    for (int64_t b = 0; b < dim[axis]; b += step) {
        int64_t n = dim[axis] - b < step ? dim[axis] - b : step, at_el = 0;
        struct cairn_slice s[2] = {cairn_slice_part(&whole, axis, b, n), cairn_slice_whole("v", CAIRN_I64, 1, one)};
        int32_t *part = malloc((size_t)(rows * cols) * sizeof *part + 1);
        int last = b + step >= dim[axis];
        struct cairn_shard_entry *e;
        struct cairn_shard *w;
        char name[32];

        for (int64_t i = s[0].offset[0]; i < s[0].offset[0] + s[0].local[0]; i++)
            for (int64_t j = s[0].offset[1]; j < s[0].offset[1] + s[0].local[1]; j++)
                part[at_el++] = x[i * cols + j];
        snprintf(name, sizeof name, "rank%04d", k++);
        ok(cairn_attempt_shard(a, &w, name, s, 1 + last, &so, err));
        ok(cairn_shard_write(w, 0, 0, part, (size_t)at_el * 4, err));
        if (last)
            ok(cairn_shard_write(w, 1, 0, v, sizeof v, err));
        ok(cairn_attempt_shard_done(a, &w, &e, err));
        ok(cairn_manifest_add_shard(m, e, err));
        free(part);
    }
    ok(cairn_manifest_add_alias(m, "w.alias", "w", err));
    ok(cairn_attempt_commit(a, m, err));
    cairn_attempt_end(a);
    cairn_manifest_destroy(m);
}

static void boxes(void **state)
{
    static const struct {
        int64_t rows, cols;
        int axis;
        int64_t step, tile;
        int no_tiles;
    } t[] = {
        {13, 37, 0, 13, 0, 0},     {13, 37, 0, 4, 0, 0},       {13, 40, 1, 8, 32, 0},   {13, 40, 1, 20, 16, 0}, {40, 3000, 0, 7, 0, 0},
        {40, 3000, 1, 1024, 0, 0}, {13, 37, 0, 4, 0, 1},       {9, 2048, 1, 512, 2048, 1}, {700, 1024, 0, 300, 0, 0}, {3000, 300, 1, 100, 400, 0},
    };
    uint64_t seed = 5;

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        int64_t rows = t[i].rows, cols = t[i].cols;
        int32_t *x = malloc((size_t)(rows * cols) * 4), *got = malloc((size_t)(rows * cols) * 4);
        struct cairn_reader *r;
        char dir[32];

        for (int64_t k = 0; k < rows * cols; k++)
            x[k] = (int32_t)mix(&seed);
        snprintf(dir, sizeof dir, "cut%zu", i);
        commit_cut(at(dir), rows, cols, t[i].axis, t[i].step, t[i].tile, x, t[i].no_tiles);
        ok(cairn_reader_open(&r, at(dir), NULL, err));
        ok(cairn_reader_box(r, "w.alias", NULL, NULL, got, (size_t)(rows * cols) * 4, err));
        assert_memory_equal(got, x, (size_t)(rows * cols) * 4);
        for (int k = 0; k < 60; k++) {
            int64_t begin[2] = {(int64_t)(mix(&seed) % (uint64_t)rows), (int64_t)(mix(&seed) % (uint64_t)cols)}, count[2];

            count[0] = (int64_t)(mix(&seed) % (uint64_t)(rows - begin[0] + 1));
            count[1] = k % 3 ? (int64_t)(mix(&seed) % (uint64_t)(cols - begin[1] + 1)) : cols - begin[1];
            if (k % 3 == 0)
                begin[1] = 0, count[1] = cols;
            memset(got, 0xee, (size_t)(rows * cols) * 4);
            ok(cairn_reader_box(r, "w", begin, count, got, (size_t)(count[0] * count[1]) * 4, err));
            for (int64_t a = 0; a < count[0]; a++)
                assert_true(!count[1] || !memcmp(got + a * count[1], x + (begin[0] + a) * cols + begin[1], (size_t)count[1] * 4));
        }
        ok(cairn_reader_rows(r, "w", 2, 5, got, (size_t)(5 * cols) * 4, err));
        assert_memory_equal(got, x + 2 * cols, (size_t)(5 * cols) * 4);
        cairn_reader_close(r);
        free(x);
        free(got);
    }
}

static void into_tensors(void **state)
{
    enum { ROWS = 60, COLS = 400 };
    static const int64_t dim[] = {ROWS, COLS}, wide[] = {80, 500};
    int32_t *x = malloc(ROWS * COLS * 4), *all = calloc(80 * 500, 4);
    int64_t begin[2] = {10, 100};
    struct cairn_stream stream;
    struct cairn_tensor t, u, v;
    struct cairn_reader *r;
    const int32_t *p;

    (void)state;
    noise(x, ROWS * COLS * 4, 8);
    commit_cut(at("tensor"), ROWS, COLS, 0, 17, 0, x, 0);
    ok(cairn_reader_open(&r, at("tensor"), NULL, err));
    ok(cairn_stream_create(&guard_device, &stream, err));
    t = guarded_tensor(CAIRN_I32, 2, dim, NULL);
    ok(cairn_reader_get(r, "w", NULL, &stream, &t, err));
    p = cairn_buffer_open(t.buf, CAIRN_READ);
    assert_memory_equal(p, x, ROWS * COLS * 4);
    cairn_buffer_close(t.buf);
    u = guarded_tensor(CAIRN_I32, 2, wide, all);
    v = cairn_tensor_slice(&u, 0, 7, 30);
    v = cairn_tensor_slice(&v, 1, 9, 200);
    ok(cairn_reader_get(r, "w", begin, &stream, &v, err));
    p = cairn_buffer_open(u.buf, CAIRN_READ);
    for (int i = 0; i < 80; i++)
        for (int j = 0; j < 500; j++) {
            int in = i >= 7 && i < 37 && j >= 9 && j < 209;

            assert_int_equal(p[i * 500 + j], in ? x[(10 + i - 7) * COLS + 100 + j - 9] : 0);
        }
    cairn_buffer_close(u.buf);
    fails(CAIRN_EDATA, "expected", cairn_reader_get(r, "w", NULL, &stream, &v, err));
    fails(CAIRN_EBUG, "dtype", cairn_reader_get(r, "v", NULL, &stream, &v, err));
    cairn_reader_close(r);
    cairn_buffer_destroy(t.buf);
    cairn_buffer_destroy(u.buf);
    cairn_stream_destroy(&stream);
    free(x);
    free(all);
}

static void refused(void **state)
{
    struct cairn_reader *r;
    struct cairn_digest other = {1, 2};
    const struct cairn_tensor_entry *t;
    int64_t begin[2] = {0, 3}, count[2] = {3, 3}, dim[2] = {3, 4}, n;
    float x[64];
    void *p;

    (void)state;
    ok(commit_small(at("small"), 3, 1, err));
    fails(CAIRN_ENOINPUT, "not committed", cairn_reader_open(&r, at("absent"), NULL, err));
    fails(CAIRN_EDATA, "kind policy", cairn_reader_open(&r, at("small"), &(struct cairn_reader_expect){.kind = "trainer"}, err));
    fails(CAIRN_EDATA, "run run-1", cairn_reader_open(&r, at("small"), &(struct cairn_reader_expect){.run = "run-2"}, err));
    fails(CAIRN_EDATA, "step 3", cairn_reader_open(&r, at("small"), &(struct cairn_reader_expect){.check_step = 1, .step = 4}, err));
    fails(CAIRN_EDATA, "logical digest", cairn_reader_open(&r, at("small"), &(struct cairn_reader_expect){.digest = &other}, err));
    fails(CAIRN_EDATA, "other inputs", cairn_reader_open(&r, at("small"), &(struct cairn_reader_expect){.identity = &other}, err));
    ok(cairn_reader_open(&r, at("small"), &(struct cairn_reader_expect){.kind = "policy", .run = "run-1", .check_step = 1, .step = 3}, err));
    fails(CAIRN_EDATA, "no tensor c", cairn_reader_find(r, "c", &t, err));
    fails(CAIRN_EDATA, "is f32", cairn_reader_expect(r, "a.weight", CAIRN_BF16, -1, NULL, &t, err));
    fails(CAIRN_EDATA, "(3,5), (3,4)", cairn_reader_expect(r, "a.weight", CAIRN_F32, 2, dim, &t, err));
    fails(CAIRN_EDATA, "dimension 1", cairn_reader_box(r, "a.weight", begin, count, x, sizeof x, err));
    fails(CAIRN_EBUG, "room for 7", cairn_reader_box(r, "a.weight", NULL, NULL, x, 7, err));
    ok(cairn_reader_array(r, "b", CAIRN_I32, &p, &n, err));
    assert_int_equal(n, 7);
    assert_int_equal(((int32_t *)p)[6], 106);
    free(p);
    cairn_reader_close(r);
    ok(cairn_artefact_collect(at("small"), &(struct cairn_retention){.reason = "older than the last 2"}, NULL, err));
    fails(CAIRN_ENOINPUT, "step 3 (policy) was collected: older than the last 2", cairn_reader_open(&r, at("small"), NULL, err));
    cairn_reader_close(NULL);
}

static void reads_no_more_than_it_must(void **state)
{
    enum { ROWS = 2048, COLS = 2048 };
    int32_t *x = malloc((size_t)ROWS * COLS * 4), *got = malloc((size_t)ROWS * COLS * 4);
    struct cairn_reader *r;
    int64_t quarter = (int64_t)ROWS * COLS, begin[2] = {0, 512}, count[2] = {ROWS, 512};

    (void)state;
    noise(x, (size_t)ROWS * COLS * 4, 6);
    commit_cut(at("economy"), ROWS, COLS, 0, 512, 2048, x, 0);
    ok(cairn_reader_open(&r, at("economy"), NULL, err));
    ok(cairn_reader_rows(r, "w", 700, ROWS / 4, got, (size_t)quarter, err)); /* rows of two shards */
    assert_true(cairn_reader_bytes(r) <= quarter * 105 / 100);
    cairn_reader_close(r);
    ok(cairn_reader_open(&r, at("economy"), NULL, err));
    ok(cairn_reader_box(r, "w", begin, count, got, (size_t)quarter, err)); /* a quarter of the columns */
    assert_true(cairn_reader_bytes(r) <= quarter * 105 / 100);
    cairn_reader_close(r);
    free(x);
    free(got);
}

/* Pages of a file that are in memory. */
static int64_t in_memory(const char *path)
{
    int fd = open(path, O_RDONLY);
    size_t n = (size_t)lseek(fd, 0, SEEK_END), pages = (n + 4095) / 4096;
    unsigned char *v = malloc(pages);
    void *p = mmap(NULL, n, PROT_READ, MAP_SHARED, fd, 0);
    int64_t there = 0;

    assert_true(p != MAP_FAILED);
    assert_int_equal(mincore(p, n, v), 0);
    for (size_t i = 0; i < pages; i++)
        there += v[i] & 1;
    munmap(p, n);
    free(v);
    close(fd);
    return there;
}

/* All that was asked for comes, and not only what a system would have read ahead of itself. */
static void fetched(void **state)
{
    enum { ROWS = 24 << 10, COLS = 1024 }; /* 96 MiB */
    const int64_t pages = (int64_t)ROWS * COLS * 4 / 4096;
    int32_t *x = calloc((size_t)ROWS * COLS, sizeof *x);
    const char *dir = at("fetched");
    struct cairn_reader *r;
    int64_t got = 0;
    char path[400];
    int fd;

    (void)state;
    commit_cut(dir, ROWS, COLS, 0, ROWS, 0, x, 1);
    ok(cairn_reader_open(&r, dir, NULL, err));
    snprintf(path, sizeof path, "%s/%s", dir, cairn_reader_manifest(r)->shards[0]->file);
    fd = open(path, O_RDONLY);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    close(fd);
    if (in_memory(path) > pages / 64) {
        printf("# SKIP files here never leave the memory\n");
    } else {
        ok(cairn_reader_fetch(r, (int64_t)ROWS * COLS * 2, err)); /* half of it */
        for (int i = 0; i < 500 && got < pages / 2; i++) {
            usleep(20000);
            got = in_memory(path);
        }
        assert_in_range(got, pages / 2, pages * 3 / 4);
    }
    cairn_reader_close(r);
    free(x);
}

/* Small tensors of odd sizes in the order of the file, every third left out, backwards: the right bytes, none read twice in
 * order, none ahead where there are gaps; damage behind what is asked for is no trouble before it is asked for. */
static void small_ones_in_order(void **state)
{
    enum { N = 3000, MAX = 70000 };
    struct cairn_slice *s = calloc(N, sizeof *s);
    char (*name)[16] = calloc(N, sizeof *name);
    const void **cp = calloc(N, sizeof *cp);
    unsigned char *x = malloc(N + MAX), *got = malloc(MAX);
    int64_t *n = calloc(N, sizeof *n), total = 0, thirds = 0, place;
    struct cairn_manifest *m;
    struct cairn_reader *r;
    uint64_t seed = 3;
    char file[600];

    (void)state;
    noise(x, N + MAX, 21);
    for (int i = 0; i < N; i++) {
        snprintf(name[i], sizeof name[i], "t%d", i);
        n[i] = i % 100 == 99 ? MAX - i % 7 : (int64_t)(mix(&seed) % 3000) + 1;
        s[i] = cairn_slice_whole(name[i], CAIRN_U8, 1, &n[i]);
        cp[i] = x + i;
        total += n[i];
        thirds += i % 3 ? 0 : n[i];
    }
    ok(commit_one(at("line"), "policy", 0, s, cp, N, NULL, err));
    ok(cairn_reader_open(&r, at("line"), NULL, err));
    for (int i = 0; i < N; i++) {
        ok(cairn_reader_box(r, name[i], NULL, NULL, got, (size_t)n[i], err));
        assert_memory_equal(got, cp[i], (size_t)n[i]);
    }
    assert_true(cairn_reader_bytes(r) <= total + 16 * 2 * N + total / 10); /* the table; what large ones leave of a block */
    for (int i = N - 1; i >= 0; i--) {
        ok(cairn_reader_box(r, name[i], NULL, NULL, got, (size_t)n[i], err));
        assert_memory_equal(got, cp[i], (size_t)n[i]);
    }
    cairn_reader_close(r);
    ok(cairn_reader_open(&r, at("line"), NULL, err));
    for (int i = 0; i < N; i += 3) {
        ok(cairn_reader_box(r, name[i], NULL, NULL, got, (size_t)n[i], err));
        assert_memory_equal(got, cp[i], (size_t)n[i]);
    }
    assert_true(cairn_reader_bytes(r) <= thirds + 16 * 2 * N);
    cairn_reader_close(r);

    snprintf(file, sizeof file, "%s/a1/rank0000.h5", at("line"));
    ok(cairn_manifest_load(&m, at("line"), err));
    place = cairn_manifest_find(m, name[1020])->parts[0].slice->at;
    cairn_manifest_destroy(m);
    flip(file, place, 3);
    ok(cairn_reader_open(&r, at("line"), NULL, err));
    for (int i = 1000; i < 1020; i++) {
        ok(cairn_reader_box(r, name[i], NULL, NULL, got, (size_t)n[i], err));
        assert_memory_equal(got, cp[i], (size_t)n[i]);
    }
    fails(CAIRN_EDATA, "tensor t1020, tile 0", cairn_reader_box(r, name[1020], NULL, NULL, got, (size_t)n[1020], err));
    ok(cairn_reader_box(r, name[1021], NULL, NULL, got, (size_t)n[1021], err));
    assert_memory_equal(got, cp[1021], (size_t)n[1021]);
    cairn_reader_close(r);
    free(s);
    free(name);
    free(cp);
    free(x);
    free(got);
    free(n);
}

/* Every byte of a shard flipped, one at a time: a read gives the right bytes (the byte was not among them) or CAIRN_EDATA
 * with the name of the file. */
static void every_flipped_byte(void **state)
{
    enum { ROWS = 9, COLS = 37 };
    int32_t x[ROWS * COLS], got[ROWS * COLS];
    int64_t v[5], size;

    (void)state;
    noise(x, sizeof x, 12);
    for (int no_tiles = 0; no_tiles < 2; no_tiles++) {
        const char *dir = no_tiles ? "flip_file" : "flip_tiles";
        int caught = 0, harmless = 0;
        char file[600];

        commit_cut(at(dir), ROWS, COLS, 0, ROWS, 0, x, no_tiles);
        snprintf(file, sizeof file, "%s/a1/rank0000.h5", at(dir));
        size = cairn_file_size(file);
        for (int64_t b = 0; b < size; b++) {
            struct cairn_reader *r;
            struct cairn_error e = {0};
            enum cairn_status st;

            flip(file, b, (int)(b % 8));
            ok(cairn_reader_open(&r, at(dir), NULL, err));
            st = cairn_reader_box(r, "w", NULL, NULL, got, sizeof got, &e);
            if (st == CAIRN_OK)
                st = cairn_reader_box(r, "v", NULL, NULL, v, sizeof v, &e);
            if (st == CAIRN_OK) {
                assert_memory_equal(got, x, sizeof x);
                assert_true(v[0] == 1 && v[4] == 5);
                harmless++;
            } else {
                assert_int_equal(st, CAIRN_EDATA);
                assert_non_null(strstr(e.text, "a1/rank0000.h5"));
                caught++;
            }
            cairn_reader_close(r);
            flip(file, b, (int)(b % 8));
        }
        if (no_tiles)
            assert_int_equal(harmless, 0); /* the whole file counts */
        else
            assert_true(caught >= (int)sizeof x + 40 + 16 * (ROWS + 1)); /* all data and the whole table */
        /* and every length */
        for (int64_t n = 0; n < size; n += n < 64 ? 1 : 61) {
            struct cairn_reader *r;

            assert_int_equal(truncate(file, n), 0);
            ok(cairn_reader_open(&r, at(dir), NULL, err));
            fails(CAIRN_EDATA, "bytes, the manifest says", cairn_reader_box(r, "w", NULL, NULL, got, sizeof got, err));
            cairn_reader_close(r);
        }
    }
}

static void damage_names_the_tile(void **state)
{
    enum { ROWS = 9, COLS = 37 };
    int32_t x[ROWS * COLS], got[ROWS * COLS];
    struct cairn_reader *r;
    struct cairn_manifest *m;
    char file[600], want[100];
    int64_t place;

    (void)state;
    noise(x, sizeof x, 12);
    commit_cut(at("tile"), ROWS, COLS, 0, ROWS, 0, x, 0);
    snprintf(file, sizeof file, "%s/a1/rank0000.h5", at("tile"));
    ok(cairn_manifest_load(&m, at("tile"), err));
    place = m->shards[0]->slices[0].at + 5 * COLS * 4;
    cairn_manifest_destroy(m);
    flip(file, place + 20, 3);
    ok(cairn_reader_open(&r, at("tile"), NULL, err));
    snprintf(want, sizeof want, "tensor w, tile 5, bytes [%lld, %lld)", (long long)place, (long long)place + COLS * 4);
    fails(CAIRN_EDATA, want, cairn_reader_box(r, "w", NULL, NULL, got, sizeof got, err));
    ok(cairn_reader_rows(r, "w", 0, 5, got, 5 * COLS * 4, err)); /* the rest is sound, and the reader goes on */
    ok(cairn_reader_rows(r, "w", 6, 3, got, 3 * COLS * 4, err));
    cairn_reader_close(r);
}

/* Links, FIFOs, swapped and missing files in the place of a shard. */
static void odd_files(void **state)
{
    enum { ROWS = 8, COLS = 16 };
    int32_t x[ROWS * COLS], got[ROWS * COLS];
    struct cairn_reader *r;
    char a[600], b[600], c[600];

    (void)state;
    noise(x, sizeof x, 3);
    commit_cut(at("odd"), ROWS, COLS, 0, 4, 0, x, 0);
    snprintf(a, sizeof a, "%s/a1/rank0000.h5", at("odd"));
    snprintf(b, sizeof b, "%s/a1/rank0001.h5", at("odd"));
    snprintf(c, sizeof c, "%s/a1/aside.h5", at("odd"));
#define reading(part)                                                                                   \
    do {                                                                                                \
        ok(cairn_reader_open(&r, at("odd"), NULL, err));                                                \
        fails(CAIRN_EDATA, part, cairn_reader_box(r, "w", NULL, NULL, got, sizeof got, err));           \
        cairn_reader_close(r);                                                                          \
    } while (0)
    assert_int_equal(rename(a, c), 0);
    reading("no such file");
    assert_int_equal(symlink("aside.h5", a), 0);
    reading("not a regular file");
    assert_int_equal(unlink(a), 0);
    assert_int_equal(mkfifo(a, 0600), 0);
    reading("not a regular file");
    assert_int_equal(unlink(a), 0);
    assert_int_equal(mkdir(a, 0700), 0);
    reading("not a regular file");
    assert_int_equal(rmdir(a), 0);
    assert_int_equal(rename(b, a), 0); /* swapped */
    assert_int_equal(rename(c, b), 0);
    reading("rank000");
#undef reading
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boxes),        cmocka_unit_test(into_tensors),       cmocka_unit_test(refused),
        cmocka_unit_test(reads_no_more_than_it_must), cmocka_unit_test(every_flipped_byte), cmocka_unit_test(damage_names_the_tile),
        cmocka_unit_test(odd_files),    cmocka_unit_test(small_ones_in_order), cmocka_unit_test(fetched),
    };

    return cmocka_run_group_tests(tests, scratch_up, scratch_down);
}

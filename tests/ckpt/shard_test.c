/* shard_test.c - what is written is there, in any order of pieces, for us and for h5dump; what is wrong is refused. */
#include "tests/ckpt/guarded.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>

#include "ckpt/metadata.h"

/* One file with every dtype and odd shapes; returns its entry. */
struct zoo {
    struct cairn_slice s[14];
    unsigned char *p[14];
    const void *cp[14];
    size_t bytes[14];
    int n;
};

static void zoo_make(struct zoo *z)
{
    static const struct {
        const char *name;
        enum cairn_dtype dtype;
        int ndim;
        int64_t dim[4], tile;
    } t[] = {
        {"f32.odd", CAIRN_F32, 2, {3, 5}, 0},      {"bf16.wide", CAIRN_BF16, 2, {5, 5001}, 0}, {"f16", CAIRN_F16, 1, {7}, 0},
        {"f64", CAIRN_F64, 3, {2, 3, 4}, 0},       {"i32", CAIRN_I32, 1, {1}, 0},              {"i64.empty", CAIRN_I64, 1, {0}, 0},
        {"u8.long", CAIRN_U8, 1, {300001}, 0},     {"f8", CAIRN_F8E4M3, 2, {129, 257}, 0},     {"scalar", CAIRN_F32, 0, {0}, 0},
        {"empty.rows", CAIRN_BF16, 2, {4, 0}, 0},  {"tiled", CAIRN_F32, 2, {40, 64}, 64},      {"stack", CAIRN_BF16, 3, {6, 4, 10}, 0},
        {"four", CAIRN_I32, 4, {2, 3, 4, 5}, 0},   {"Z_last", CAIRN_F32, 2, {700, 70}, 0},
    };

    z->n = (int)(sizeof t / sizeof *t);
    for (int i = 0; i < z->n; i++) {
        z->s[i] = cairn_slice_whole(t[i].name, t[i].dtype, t[i].ndim, t[i].dim);
        z->s[i].tile_bytes = t[i].tile;
        if (!strcmp(t[i].name, "stack"))
            z->s[i].each = "layers.*.stack";
        z->bytes[i] = cairn_dtype_size(t[i].dtype);
        for (int d = 0; d < t[i].ndim; d++)
            z->bytes[i] *= (size_t)t[i].dim[d];
        z->p[i] = malloc(z->bytes[i] + 1);
        z->cp[i] = z->p[i];
        noise(z->p[i], z->bytes[i], (uint64_t)i + 1);
    }
}

static void zoo_free(struct zoo *z)
{
    for (int i = 0; i < z->n; i++)
        free(z->p[i]);
}

/* Entry against file and data: sizes, digests, every byte at its offset, HDF5's own view. */
static void check_file(const struct zoo *z, const struct cairn_shard_entry *e, const char *path)
{
    struct cairn_digest d;
    int64_t size;
    char *file;
    size_t n;

    ok(cairn_digest_file(path, &d, &size, err));
    assert_int_equal(size, e->size);
    assert_true(cairn_digest_equal(d, e->digest));
    file = slurp(path, &n);
    for (int i = 0; i < z->n; i++) {
        struct cairn_digest sum;
        struct cairn_tiling t;

        assert_true(!z->bytes[i] || !memcmp(file + e->slices[i].at, z->p[i], z->bytes[i]));
        if (z->bytes[i] >= 65536)
            assert_int_equal(e->slices[i].at % 4096, 0);
        ok(cairn_tiling_init(&t, &e->slices[i], path, err));
        sum = cairn_tiling_hash(&t, 0, t.tiles, z->p[i], NULL);
        assert_true(cairn_digest_equal(sum, e->slices[i].sum));
        for (int64_t k = 0; k < t.tiles && e->slices[i].first >= 0; k++) {
            int64_t begin;

            cairn_tiling_tile(&t, k, &begin);
            cairn_tiling_hash(&t, k, 1, z->p[i] + begin, &sum);
            assert_memory_equal(file + e->table_at + 16 * (e->slices[i].first + k), &sum, 16);
        }
    }
    free(file);
    ok(cairn_image_check(path, path, e, err));
}

static void round_trip(void **state)
{
    struct zoo z;
    struct cairn_shard_entry *e, *again;
    size_t n1, n2;
    char *f1, *f2;

    (void)state;
    zoo_make(&z);
    ok(cairn_shard_save(&e, scratch, "zoo", z.s, z.cp, z.n, &(struct cairn_shard_opts){.identity = "rows 0-9"}, err));
    assert_string_equal(e->file, "zoo.h5");
    assert_string_equal(e->identity, "rows 0-9");
    check_file(&z, e, at("zoo.h5"));
    /* equal content, equal bytes */
    ok(cairn_shard_save(&again, scratch, "zoo2", z.s, z.cp, z.n, NULL, err));
    f1 = slurp(at("zoo.h5"), &n1);
    f2 = slurp(at("zoo2.h5"), &n2);
    assert_int_equal(n1, n2);
    assert_memory_equal(f1, f2, n1);
    assert_true(cairn_digest_equal(e->digest, again->digest));
    free(f1);
    free(f2);
    cairn_shard_entry_free(e);
    cairn_shard_entry_free(again);
    ok(cairn_shard_save(&e, scratch, "plain", z.s, z.cp, z.n, &(struct cairn_shard_opts){.no_tiles = 1}, err));
    assert_int_equal(e->tiles, 0);
    check_file(&z, e, at("plain.h5"));
    cairn_shard_entry_free(e);
    ok(cairn_shard_save(&e, scratch, "none", NULL, NULL, 0, NULL, err));
    ok(cairn_image_check(at("none.h5"), "none.h5", e, err));
    cairn_shard_entry_free(e);
    zoo_free(&z);
}

/* Pieces of any size, tensors interleaved at random: the same file as in one go. */
static void streaming(void **state)
{
    struct zoo z;
    struct cairn_shard_entry *e, *want;
    uint64_t seed = 11;

    (void)state;
    zoo_make(&z);
    ok(cairn_shard_save(&want, scratch, "want", z.s, z.cp, z.n, NULL, err));
    for (int round = 0; round < 12; round++) {
        struct cairn_shard *w;
        size_t done[14] = {0}, left = 0;
        char name[32];

        snprintf(name, sizeof name, "stream%d", round);
        ok(cairn_shard_create(&w, scratch, name, z.s, z.n, NULL, err));
        for (int i = 0; i < z.n; i++)
            left += z.bytes[i];
        while (left) {
            int i = (int)(mix(&seed) % (uint64_t)z.n);
            size_t n = (size_t)(mix(&seed) % (round < 6 ? 5000 : 200000)) + 1;

            if (n > z.bytes[i] - done[i])
                n = z.bytes[i] - done[i];
            ok(cairn_shard_write(w, i, (int64_t)done[i], z.p[i] + done[i], n, err));
            done[i] += n;
            left -= n;
        }
        ok(cairn_shard_finish(w, &e, err));
        cairn_shard_destroy(w);
        assert_true(cairn_digest_equal(e->digest, want->digest));
        assert_true(cairn_digest_equal(e->table_digest, want->table_digest));
        cairn_shard_entry_free(e);
    }
    cairn_shard_entry_free(want);
    zoo_free(&z);
}

/* Large enough for the writing thread to take pieces in place; whole tiles backwards. */
static void large_and_backwards(void **state)
{
    static const int64_t dim[] = {1500, 2048};
    struct cairn_slice s = cairn_slice_whole("w", CAIRN_BF16, 2, dim);
    size_t bytes = 1500 * 4096;
    unsigned char *p = malloc(bytes);
    const void *cp = p;
    struct cairn_shard_entry *e, *want;
    struct cairn_shard *w;

    (void)state;
    noise(p, bytes, 9);
    ok(cairn_shard_save(&want, scratch, "large", &s, &cp, 1, NULL, err));
    ok(cairn_shard_create(&w, scratch, "backwards", &s, 1, NULL, err));
    for (int64_t row = 1500 - 100; row >= 0; row -= 100)
        ok(cairn_shard_write(w, 0, row * 4096, p + row * 4096, 100 * 4096, err));
    ok(cairn_shard_finish(w, &e, err));
    cairn_shard_destroy(w);
    assert_true(cairn_digest_equal(e->digest, want->digest));
    cairn_shard_entry_free(e);
    cairn_shard_entry_free(want);
    free(p);
}

/* Pieces that are lent, of sizes that are written in place and sizes that are copied, in two buffers in turn: each is overwritten as soon as the
 * call behind its own has returned, and the file is what was lent. */
static void lent(void **state)
{
    static const int64_t dim[] = {3000, 2048};
    static const size_t rows[] = {600, 300, 1, 700, 2, 3, 256, 10, 1000, 100, 28}; /* of 4 KiB; 256 and more are written in place */
    struct cairn_slice s = cairn_slice_whole("w", CAIRN_BF16, 2, dim);
    size_t bytes = 3000 * 4096, most = 1000 * 4096, at_bytes;
    unsigned char *p = malloc(bytes), *turn[2] = {malloc(most), malloc(most)};
    const void *cp = p;
    struct cairn_shard_entry *e, *want;
    struct cairn_shard *w;
    struct cairn_digest d;

    (void)state;
    noise(p, bytes, 19);
    ok(cairn_shard_save(&want, scratch, "unlent", &s, &cp, 1, NULL, err));
    for (int scratched = 0; scratched < 2; scratched++) {
        const struct cairn_shard_opts o = {.scratch = scratched};
        const char *name = scratched ? "scratched" : "lent";

        ok(cairn_shard_create(&w, scratch, name, &s, 1, &o, err));
        at_bytes = 0;
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            memset(turn[i % 2], 0xee, most);
            memcpy(turn[i % 2], p + at_bytes, rows[i] * 4096);
            ok(cairn_shard_lend(w, 0, (int64_t)at_bytes, turn[i % 2], rows[i] * 4096, err));
            at_bytes += rows[i] * 4096;
        }
        assert_int_equal(at_bytes, bytes);
        ok(cairn_shard_finish(w, &e, err));
        cairn_shard_destroy(w);
        ok(cairn_digest_file(at(scratched ? "scratched.h5" : "lent.h5"), &d, NULL, err));
        assert_true(cairn_digest_equal(e->digest, want->digest) && cairn_digest_equal(d, want->digest));
        cairn_shard_entry_free(e);
    }
    cairn_shard_entry_free(want);
    free(turn[0]);
    free(turn[1]);
    free(p);
}

static void h5dump_shows_numbers(void **state)
{
    static const int64_t dim[] = {4};
    static const uint16_t v[] = {0x3f80, 0xc049, 0x3e80, 0x7f80}; /* 1, -3.140625, 0.25, inf */
    static const uint8_t q[] = {0x38, 0xb8, 0x77, 0x01};          /* 1, -1, 240, 2^-9 */
    const void *cp[2] = {v, q};
    struct cairn_slice s[2] = {cairn_slice_whole("layer.0.weight", CAIRN_BF16, 1, dim), cairn_slice_whole("q", CAIRN_F8E4M3, 1, dim)};
    struct cairn_shard_entry *e;
    char cmd[700], text[8192] = "";
    FILE *f;

    (void)state;
    if (system("command -v h5dump >/dev/null 2>&1")) {
        print_message("no h5dump here: not looked at\n");
        return;
    }
    ok(cairn_shard_save(&e, scratch, "numbers", s, cp, 2, NULL, err));
    cairn_shard_entry_free(e);
    snprintf(cmd, sizeof cmd, "h5dump %s 2>&1", at("numbers.h5"));
    f = popen(cmd, "r");
    assert_non_null(f);
    assert_true(fread(text, 1, sizeof text - 1, f) > 0);
    assert_int_equal(pclose(f), 0);
    assert_non_null(strstr(text, "DATASET \"layer.0.weight\""));
    assert_non_null(strstr(text, "1, -3.14062, 0.25, inf"));
    assert_non_null(strstr(text, "1, -1, 240, 0.00195312"));
    assert_non_null(strstr(text, "global_shape"));
}

static void refused(void **state)
{
    static const int64_t dim[] = {2048};
    float x[2048] = {0};
    struct cairn_slice s[2] = {cairn_slice_whole("a", CAIRN_F32, 1, dim), cairn_slice_whole("b", CAIRN_F32, 1, dim)};
    struct cairn_shard *w;
    struct cairn_shard_entry *e;

    (void)state;
    fails(CAIRN_EDATA, "no name", cairn_shard_create(&w, scratch, "../x", s, 2, NULL, err));
    fails(CAIRN_EIO, "nowhere", cairn_shard_create(&w, at("nowhere"), "x", s, 2, NULL, err));
    s[1].name = "a";
    fails(CAIRN_EDATA, "twice", cairn_shard_create(&w, scratch, "x", s, 2, NULL, err));
    s[1].name = "b";
    spew(at("there.h5"), "x", 1);
    fails(CAIRN_EIO, "there.h5", cairn_shard_create(&w, scratch, "there", s, 2, NULL, err));
    assert_int_equal(cairn_file_size(at("there.h5")), 1);

    ok(cairn_shard_create(&w, scratch, "x", s, 2, NULL, err));
    ok(cairn_shard_write(w, 0, 0, x, sizeof x, err));
    fails(CAIRN_EBUG, "never written", cairn_shard_finish(w, &e, err));
    assert_false(cairn_path_exists(at("x.h5")));
    cairn_shard_destroy(w);

    ok(cairn_shard_create(&w, scratch, "x", s, 2, NULL, err));
    ok(cairn_shard_write(w, 0, 0, x, sizeof x, err));
    fails(CAIRN_EBUG, "written twice", cairn_shard_write(w, 0, 4096, x, 4096, err));
    cairn_shard_destroy(w);
    assert_false(cairn_path_exists(at("x.h5")));

    ok(cairn_shard_create(&w, scratch, "x", s, 2, NULL, err));
    fails(CAIRN_EBUG, "beyond", cairn_shard_write(w, 0, 4096, x, 4097, err));
    fails(CAIRN_EBUG, "beyond", cairn_shard_write(w, 0, -1, x, 1, err));
    fails(CAIRN_EBUG, "inside of a tile", cairn_shard_write(w, 0, 100, x, 1, err));
    ok(cairn_shard_write(w, 0, 0, x, 100, err));
    fails(CAIRN_EBUG, "was expected", cairn_shard_write(w, 0, 200, x, 1, err));
    cairn_shard_destroy(w);
    cairn_shard_destroy(NULL);
    cairn_shard_entry_free(NULL);
}

/* The entry of a hollow shard is that of the same shard with its bytes; the file has its size and no data. Out of order: a bug of the caller's. */
static void hollow(void **state)
{
    const struct cairn_shard_opts o = {.hollow = 1};
    const int64_t n = 3000000;
    struct cairn_slice s[2] = {cairn_slice_whole("a", CAIRN_U8, 1, &n), cairn_slice_whole("b", CAIRN_U8, 1, &n)};
    unsigned char *p = malloc((size_t)n);
    const void *both[2] = {p, p};
    struct cairn_shard_entry *e[2];
    struct cairn_shard *w = NULL;
    struct stat sb;

    (void)state;
    noise(p, (size_t)n, 5);
    ok(cairn_shard_save(&e[0], scratch, "hollow.not", s, both, 2, NULL, err));
    ok(cairn_shard_save(&e[1], scratch, "hollow", s, both, 2, &o, err));
    assert_int_equal(e[0]->size, e[1]->size);
    assert_true(cairn_digest_equal(e[0]->digest, e[1]->digest) && cairn_digest_equal(e[0]->table_digest, e[1]->table_digest));
    for (int i = 0; i < 2; i++)
        assert_true(cairn_digest_equal(e[0]->slices[i].sum, e[1]->slices[i].sum) && e[0]->slices[i].at == e[1]->slices[i].at);
    assert_int_equal(stat(at("hollow.h5"), &sb), 0);
    assert_int_equal(sb.st_size, e[0]->size);
    assert_true(sb.st_blocks * 512 < 100000);
    cairn_shard_entry_free(e[0]);
    cairn_shard_entry_free(e[1]);
    ok(cairn_shard_create(&w, scratch, "hollow.told", s, 2, &o, err));
    ok(cairn_shard_tell(w, 0, (struct cairn_digest){7, 8}, err));
    fails(CAIRN_EBUG, "written twice", cairn_shard_tell(w, 0, (struct cairn_digest){7, 8}, err));
    cairn_shard_destroy(w);
    ok(cairn_shard_create(&w, scratch, "hollow.told", s, 2, &o, err));
    ok(cairn_shard_tell(w, 1, (struct cairn_digest){9, 1}, err));
    fails(CAIRN_EBUG, "was never written", cairn_shard_finish(w, &e[0], err));
    cairn_shard_destroy(w);
    ok(cairn_shard_create(&w, scratch, "hollow.told", s, 2, &o, err));
    ok(cairn_shard_tell(w, 1, (struct cairn_digest){9, 1}, err));
    ok(cairn_shard_tell(w, 0, (struct cairn_digest){7, 8}, err));
    ok(cairn_shard_finish(w, &e[0], err));
    assert_true(e[0]->slices[0].sum.lo == 7 && e[0]->slices[1].sum.lo == 9 && !e[0]->digest.lo && !e[0]->table_digest.lo);
    cairn_shard_destroy(w);
    cairn_shard_entry_free(e[0]);
    ok(cairn_shard_create(&w, scratch, "hollow.back", s, 2, &o, err));
    ok(cairn_shard_write(w, 1, 0, p, (size_t)n, err));
    ok(cairn_shard_write(w, 0, 0, p, (size_t)n, err));
    fails(CAIRN_EBUG, "out of order", cairn_shard_finish(w, &e[0], err));
    cairn_shard_destroy(w);
    free(p);
}

/* A file system that is full after `limit` bytes of a file: RLIMIT_FSIZE gives EFBIG (73), whatever the piece. */
static void writes_that_fail(void **state)
{
    struct zoo z;
    struct cairn_shard_entry *whole;
    pid_t pid;
    int status;

    (void)state;
    zoo_make(&z);
    ok(cairn_shard_save(&whole, scratch, "whole", z.s, z.cp, z.n, NULL, err));
    for (int64_t limit = 0; limit < whole->size; limit += 45000) {
        fflush(NULL);
        if (!(pid = fork())) {
            struct rlimit r = {(rlim_t)limit, (rlim_t)limit};
            struct cairn_shard_entry *e;
            struct cairn_error err;
            enum cairn_status st;

            signal(SIGXFSZ, SIG_IGN);
            setrlimit(RLIMIT_FSIZE, &r);
            st = cairn_shard_save(&e, scratch, "full", z.s, z.cp, z.n, NULL, &err);
            _exit(st == CAIRN_OK ? 1 : st == CAIRN_ENOSPACE && strstr(err.text, "full.h5") ? 42 : 2);
        }
        waitpid(pid, &status, 0);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 42);
        assert_false(cairn_path_exists(at("full.h5")));
    }
    cairn_shard_entry_free(whole);
    zoo_free(&z);
}

/* The same on a tmpfs that is really full: 73, where this process may mount one. */
static void no_space(void **state)
{
    char cmd[1800], self[512] = "";
    int rc;

    (void)state;
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    snprintf(cmd, sizeof cmd,
             "unshare -rm sh -c 'mkdir -p %s/small && mount -t tmpfs -o size=256k none %s/small && "
             "CAIRN_SHARD_TEST_DIR=%s/small exec %s' >/dev/null 2>&1",
             scratch, scratch, scratch, self);
    rc = system("unshare -rm true 2>/dev/null");
    if (rc) {
        print_message("no user namespaces here: not looked at\n");
        return;
    }
    rc = system(cmd);
    assert_true(WIFEXITED(rc));
    assert_int_equal(WEXITSTATUS(rc), CAIRN_ENOSPACE);
}

static int on_small_disk(const char *dir)
{
    struct zoo z;
    struct cairn_shard_entry *e;
    struct cairn_error err;
    enum cairn_status st;

    zoo_make(&z);
    st = cairn_shard_save(&e, dir, "full", z.s, z.cp, z.n, NULL, &err);
    zoo_free(&z);
    return (int)st;
}

static void many_datasets(void **state)
{
    static const int64_t dim[] = {17, 9};
    enum { N = 3000 };
    struct cairn_slice *s = calloc(N, sizeof *s);
    char (*name)[48] = calloc(N, sizeof *name);
    const void **cp = calloc(N, sizeof *cp);
    static uint16_t x[17 * 9];
    struct cairn_shard_entry *e;
    struct cairn_digest d;

    (void)state;
    noise(x, sizeof x, 4);
    for (int i = 0; i < N; i++) {
        snprintf(name[i], sizeof name[i], "model.layers.%d.mlp.weight", i);
        s[i] = cairn_slice_whole(name[i], CAIRN_BF16, 2, dim);
        cp[i] = x;
    }
    ok(cairn_shard_save(&e, scratch, "many", s, cp, N, NULL, err));
    ok(cairn_digest_file(at("many.h5"), &d, NULL, err));
    assert_true(cairn_digest_equal(d, e->digest));
    ok(cairn_image_check(at("many.h5"), "many.h5", e, err));
    e->slices[1234].local[0] = 16;
    fails(CAIRN_EDATA, "shape", cairn_image_check(at("many.h5"), "many.h5", e, err));
    cairn_shard_entry_free(e);
    free(s);
    free(name);
    free(cp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),       cmocka_unit_test(streaming),        cmocka_unit_test(large_and_backwards),
        cmocka_unit_test(h5dump_shows_numbers), cmocka_unit_test(refused),
        cmocka_unit_test(hollow), cmocka_unit_test(writes_that_fail), cmocka_unit_test(no_space),         cmocka_unit_test(many_datasets),
        cmocka_unit_test(lent),
    };

    if (getenv("CAIRN_SHARD_TEST_DIR"))
        return on_small_disk(getenv("CAIRN_SHARD_TEST_DIR"));
    return cmocka_run_group_tests(tests, scratch_up, scratch_down);
}

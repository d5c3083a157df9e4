/* image_test.c - the library finds in our metadata what was declared: every size of tree, every attribute, nothing else. */
#include "tests/ckpt/helpers.h"

#include "ckpt/metadata.h"

static int have(const char *tool)
{
    char cmd[64];

    snprintf(cmd, sizeof cmd, "command -v %s >/dev/null 2>&1", tool);
    return !system(cmd);
}

/* Datasets that h5ls walks over, in ascending order of names, all different. */
static int64_t walked(const char *path)
{
    char cmd[600], line[400], last[64] = "", name[64], what[64];
    int64_t n = 0;
    FILE *f;

    snprintf(cmd, sizeof cmd, "h5ls %s 2>&1", path);
    f = popen(cmd, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        assert_int_equal(sscanf(line, "%63s %63s", name, what), 2);
        assert_string_equal(what, "Dataset");
        assert_true(strcmp(last, name) < 0);
        strcpy(last, name);
        n++;
    }
    assert_int_equal(pclose(f), 0);
    return n;
}

static void sizes_of_tree(void **state)
{
    /* a symbol node has 8 names, a tree node 32 children: one either side of full ones, one to four levels */
    static const int64_t size[] = {0, 1, 2, 7, 8, 9, 16, 255, 256, 257, 512, 513, 8191, 8192, 8193};
    enum { N = 8193 };
    struct cairn_slice *s = calloc(N, sizeof *s);
    char (*name)[32] = calloc(N, sizeof *name);
    const void **cp = calloc(N, sizeof *cp);
    unsigned char x = 7;

    (void)state;
    for (int64_t i = 0; i < N; i++) { /* in no order, of many lengths */
        snprintf(name[i], sizeof name[i], "t%lld%.*s", (long long)(i * 5323 % N), (int)(i % 9), ".weights");
        s[i] = cairn_slice_whole(name[i], CAIRN_U8, 0, NULL);
        cp[i] = &x;
    }
    for (size_t k = 0; k < sizeof size / sizeof *size; k++)
        for (int tiles = 0; tiles < 2; tiles++) {
            struct cairn_shard_entry *e;
            int n = (int)size[k];

            ok(cairn_shard_save(&e, scratch, "tree", s, cp, n, &(struct cairn_shard_opts){.no_tiles = !tiles}, err));
            ok(cairn_image_check(at("tree.h5"), "tree.h5", e, err));
            if (have("h5ls"))
                assert_int_equal(walked(at("tree.h5")), n + (tiles && n));
            cairn_shard_entry_free(e);
            unlink(at("tree.h5"));
        }
    free(s);
    free(name);
    free(cp);
}

/* Where things lie: nothing overlaps, and what is large is on a page. */
static void layout(void **state)
{
    static const int64_t dim[][2] = {{1, 1}, {3, 1}, {64, 1024}, {1, 7}, {65535, 1}, {65537, 1}, {0, 5}, {5, 0}, {2, 2}};
    enum { N = sizeof dim / sizeof *dim };
    struct cairn_slice s[N];
    struct cairn_image m;
    char name[N][16];
    int64_t end, table;

    (void)state;
    for (int i = 0; i < N; i++) {
        snprintf(name[i], sizeof name[i], "t%d", i);
        s[i] = cairn_slice_whole(name[i], CAIRN_U8, 2, dim[i]);
    }
    ok(cairn_image_make(&m, s, N, 1000, &table, "x", err));
    end = m.head_n;
    for (int i = 0; i < N; i++) {
        int64_t bytes = dim[i][0] * dim[i][1];

        if (!bytes) {
            assert_int_equal(s[i].at, 0);
            continue;
        }
        assert_true(s[i].at >= end && s[i].at < end + CAIRN_PAGE);
        assert_int_equal(s[i].at % (bytes < 65536 ? 8 : CAIRN_PAGE), 0);
        end = s[i].at + bytes;
    }
    assert_true(table >= end);
    assert_int_equal(m.size, table + 16000);
    cairn_image_free(&m);
    name[3][1] = '8';
    fails(CAIRN_EDATA, "x: tensor t8 is declared twice", cairn_image_make(&m, s, N, 0, &table, "x", err));
    s[3].name = "t3";
    s[4].local[0] = s[5].local[0] = INT64_MAX / 2 + 1; /* each fits, both do not */
    fails(CAIRN_EDATA, "overflows", cairn_image_make(&m, s, N, 0, &table, "x", err));
}

/* The attributes of a part, by the library, and those of a stack; the version on the root. */
static void attributes(void **state)
{
    static const int64_t shape[] = {8, 6, 1000000, 3};
    struct cairn_slice s[2] = {cairn_slice_whole("part", CAIRN_F64, 4, shape), cairn_slice_whole("stack", CAIRN_BF16, 3, shape)};
    struct cairn_shard_entry e = {.nslices = 2, .slices = s};
    struct cairn_image m;
    char cmd[600];

    (void)state;
    s[0].offset[0] = 2;
    s[0].local[0] = 3;
    s[0].offset[2] = 999990;
    s[0].local[2] = 10;
    s[1].each = "layers.*.mlp";
    ok(cairn_image_make(&m, s, 2, 0, &e.table_at, "x", err));
    spew(at("attr.h5"), (const char *)m.head, (size_t)m.head_n);
    assert_int_equal(truncate(at("attr.h5"), m.size), 0); /* raw data: a hole */
    cairn_image_free(&m);
    ok(cairn_image_check(at("attr.h5"), "attr.h5", &e, err));
    s[0].offset[2]--;
    fails(CAIRN_EDATA, "other attributes", cairn_image_check(at("attr.h5"), "attr.h5", &e, err));
    s[0].offset[2]++;
    s[1].each = "layers.*.mlq";
    fails(CAIRN_EDATA, "each", cairn_image_check(at("attr.h5"), "attr.h5", &e, err));
    s[1].dtype = CAIRN_F16;
    fails(CAIRN_EDATA, "type", cairn_image_check(at("attr.h5"), "attr.h5", &e, err));
    snprintf(cmd, sizeof cmd, "h5dump -a /cairn_shard %s | grep -q '(0): 1$'", at("attr.h5"));
    if (have("h5dump"))
        assert_int_equal(system(cmd), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes_of_tree), cmocka_unit_test(layout), cmocka_unit_test(attributes)};

    return cmocka_run_group_tests(tests, scratch_up, scratch_down);
}

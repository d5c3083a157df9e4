/* manifest_test.c - text and back, every damaged byte, hostile content, cover, and a digest that ignores layout. */
#include "tests/ckpt/helpers.h"

#include "base/json.h"
#include "ckpt/beneath.h"

/* An entry made by hand: one file with the n slices. */
static struct cairn_shard_entry *entry(const char *file, const struct cairn_slice *s, int n)
{
    struct cairn_shard_entry *e = calloc(1, sizeof *e);

    e->file = strdup(file);
    e->identity = strdup("id");
    e->size = 100000;
    e->table_at = 50000;
    e->slices = calloc((size_t)n + 1, sizeof *s);
    e->nslices = n;
    for (int i = 0; i < n; i++) {
        struct cairn_tiling t;

        e->slices[i] = s[i];
        e->slices[i].name = strdup(s[i].name);
        e->slices[i].each = s[i].each ? strdup(s[i].each) : NULL;
        if (cairn_tiling_init(&t, &s[i], "test", NULL) == CAIRN_OK) {
            e->slices[i].tile_bytes = t.tile_bytes;
            e->slices[i].first = e->tiles;
            e->tiles += t.tiles;
        }
        e->slices[i].at = 4096;
        e->slices[i].sum = (struct cairn_digest){(uint64_t)s[i].offset[0] * 7 + 1, 5};
    }
    return e;
}

static struct cairn_manifest *sample(void)
{
    static const int64_t w[] = {4, 6}, v[] = {3};
    struct cairn_slice whole = cairn_slice_whole("w", CAIRN_BF16, 2, w),
                       s[2] = {cairn_slice_part(&whole, 0, 0, 1), cairn_slice_whole("v", CAIRN_F32, 1, v)};
    struct cairn_slice rest = cairn_slice_part(&whole, 0, 1, 3);
    struct cairn_manifest *m = cairn_manifest_create("trainer", 12, "0f1e2d3c");

    m->recipe = (struct cairn_digest){3, 4};
    m->epoch = 2;
    ok(cairn_manifest_set_fingerprint(m, "cpu x86-64-v3 \"ops\" 1", "tp1 pp1", err));
    ok(cairn_manifest_add_input(m, "step/000012/rollout", (struct cairn_digest){5, 6}, err));
    ok(cairn_manifest_add_input(m, "file:prompts.jsonl", (struct cairn_digest){7, 8}, err));
    ok(cairn_manifest_add_alias(m, "lm_head.weight", "w", err));
    json_object_set_new(m->content, "updates", json_integer(4));
    json_object_set_new(m->content, "loss", json_real(0.1));
    json_object_set_new(m->content, "one", json_real(1.0));
    json_object_set_new(m->info, "host", json_string("n\n1"));
    ok(cairn_manifest_add_shard(m, entry("a2/rank0000.h5", s, 2), err));
    ok(cairn_manifest_add_shard(m, entry("a2/rank0001.h5", &rest, 1), err));
    return m;
}

static void text_and_back(void **state)
{
    struct cairn_manifest *m = sample(), *r;
    struct cairn_manifest_head head;
    char *text, *again;
    size_t n, n2;

    (void)state;
    ok(cairn_manifest_seal(m, "test", err));
    ok(cairn_manifest_text(m, &text, &n, err));
    ok(cairn_manifest_parse(&r, text, n, "test", NULL, err));
    assert_string_equal(r->kind, "trainer");
    assert_int_equal(r->step, 12);
    assert_string_equal(r->run, "0f1e2d3c");
    assert_string_equal(r->numerics, "cpu x86-64-v3 \"ops\" 1");
    assert_string_equal(r->layout, "tp1 pp1");
    assert_int_equal(r->ninputs, 2);
    assert_string_equal(r->inputs[1].path, "file:prompts.jsonl");
    assert_int_equal(r->nshards, 2);
    assert_int_equal(r->ntensors, 2);
    assert_true(cairn_digest_equal(r->digest, m->digest));
    assert_true(cairn_digest_equal(cairn_manifest_identity(r), cairn_manifest_identity(m)));
    assert_ptr_equal(cairn_manifest_find(r, "lm_head.weight"), cairn_manifest_find(r, "w"));
    assert_int_equal(cairn_manifest_find(r, "w")->nparts, 2);
    assert_null(cairn_manifest_find(r, "x"));
    ok(cairn_manifest_text(r, &again, &n2, err));
    assert_int_equal(n, n2);
    assert_memory_equal(text, again, n);
    spew(at(CAIRN_MANIFEST_NAME), text, n);
    ok(cairn_manifest_head(&head, scratch, err));
    assert_string_equal(head.kind, "trainer");
    assert_int_equal(head.step, 12);
    assert_int_equal(head.epoch, 2);
    assert_true(cairn_digest_equal(head.digest, m->digest));
    assert_string_equal(head.numerics, m->numerics);
    fails(CAIRN_ENOINPUT, "not committed", cairn_manifest_head(&head, at("absent"), err));
    unlink(at(CAIRN_MANIFEST_NAME));
    cairn_manifest_destroy(m);
    cairn_manifest_destroy(r);
    cairn_manifest_destroy(NULL);
    free(text);
    free(again);
}

static void every_byte_and_length(void **state)
{
    struct cairn_manifest *m = sample(), *r;
    struct cairn_shard_entry *e;
    char *text, *copy;
    size_t n;

    (void)state;
    ok(cairn_manifest_seal(m, "test", err));
    for (int kind = 0; kind < 2; kind++) {
        if (kind)
            ok(cairn_shard_entry_text(m->shards[0], &text, &n, err));
        else
            ok(cairn_manifest_text(m, &text, &n, err));
        copy = malloc(n + 2);
        for (size_t i = 0; i < n; i++)
            for (int bit = 0; bit < 8; bit++) {
                memcpy(copy, text, n);
                copy[i] = (char)(copy[i] ^ 1 << bit);
                fails(CAIRN_EDATA, "damaged", kind ? cairn_shard_entry_parse(&e, copy, n, "test", err)
                                                  : cairn_manifest_parse(&r, copy, n, "test", NULL, err));
            }
        memcpy(copy, text, n);
        for (size_t k = 0; k < n; k++)
            fails(CAIRN_EDATA, "damaged", kind ? cairn_shard_entry_parse(&e, copy, k, "test", err)
                                              : cairn_manifest_parse(&r, copy, k, "test", NULL, err));
        copy[n] = '\n';
        fails(CAIRN_EDATA, "damaged", kind ? cairn_shard_entry_parse(&e, copy, n + 1, "test", err)
                                          : cairn_manifest_parse(&r, copy, n + 1, "test", NULL, err));
        free(copy);
        free(text);
    }
    cairn_manifest_destroy(m);
}

/* Replaces `from` by `to` in the sample's text and makes the check line hold again: what a program of bad will or another
 * version would write. */
static enum cairn_status forged(const char *from, const char *to, struct cairn_error *err)
{
    struct cairn_manifest *m = sample(), *r = NULL;
    struct cairn_str s = {0};
    enum cairn_status st;
    char *text, *p, hex[33];
    size_t n;

    assert_int_equal(cairn_manifest_seal(m, "test", NULL), CAIRN_OK);
    assert_int_equal(cairn_manifest_text(m, &text, &n, NULL), CAIRN_OK);
    p = strstr(text, from);
    if (!p)
        fail_msg("the sample does not hold %s", from);
    cairn_str_add(&s, text, (size_t)(p - text));
    cairn_str_puts(&s, to);
    cairn_str_puts(&s, p + strlen(from));
    s.len = (size_t)(strstr(s.p, "  \"check\"") - s.p);
    cairn_digest_hex(cairn_digest_bytes(s.p, s.len), hex);
    cairn_str_printf(&s, "  \"check\": \"%s\"\n}\n", hex);
    st = cairn_manifest_parse(&r, s.p, s.len, "test", NULL, err);
    cairn_manifest_destroy(r);
    cairn_manifest_destroy(m);
    cairn_str_free(&s);
    free(text);
    return st;
}

static void hostile(void **state)
{
    static const struct {
        const char *from, *to, *part;
    } t[] = {
        {"\"version\": 1", "\"version\": 2", "from the future"},
        {"cairn manifest", "other manifest", "is not \"cairn manifest\""},
        {"\"kind\": \"trainer\"", "\"kind\": \"../x\"", "is no name"},
        {"\"step\": 12", "\"step\": -1", "\"step\""},
        {"\"step\": 12", "\"step\": 1e3", "\"step\""},
        {"a2/rank0000.h5", "../rank0000.h5", "no file name within"},
        {"a2/rank0000.h5", "/etc/passwd", "no file name within"},
        {"a2/rank0000.h5", "a2/../../x.h5", "no file name within"},
        {"a2/rank0000.h5", "a2/x/y.h5", "no file name within"},
        {"a2/rank0000.h5", "a2/", "no file name within"},
        {"a2/rank0000.h5", "", "no file name within"},
        {"a2/rank0000.h5", "a2/a\\nb.h5", "no file name within"},
        {"a2/rank0000.h5", "a2/a\\u0000b.h5", "NUL"},
        {"\"size\": 100000", "\"size\": -5", "\"size\""},
        {"\"size\": 100000", "\"size\": 9223372036854775808", "integer"},
        {"[50000,", "[9223372036854775807,", "tile table"},
        {"[50000, 2", "[50000, 4611686018427387904", "tile table"},
        {"[4, 6], [0, 0], [1, 6], 4096", "[4, 6], [0, 0], [1, 6], 99999", "lie outside"},
        {"[4, 6], [0, 0], [1, 6], 4096", "[4, 6], [0, 0], [1, 6], 9223372036854775807", "lie outside"},
        {"[4, 6], [0, 0], [1, 6], 4096", "[4, 6], [0, 0], [1, 6], 0", "lie outside"},
        {"[4, 6], [0, 0], [1, 6]", "[4611686018427387904, 6], [0, 0], [1, 6]", "overflows"},
        {"[4, 6], [0, 0], [1, 6]", "[4, 6], [0, 0], [4611686018427387904, 6]", "does not lie within"},
        {"[4, 6], [0, 0], [1, 6]", "[4, 6], [0, 0], [2, 6]", "are in a2/rank0001.h5 too"},
        {"[4, 6], [0, 0], [1, 6]", "[4, 6], [0, 0], [0, 6]", "6 of 24 elements are in no shard"},
        {"[4, 6], [1, 0], [3, 6]", "[5, 6], [1, 0], [3, 6]", "do not agree"},
        {"[4, 6], [1, 0], [3, 6]", "[4, 6], [1, 0], [3, 6, 1]", "malformed"},
        {"[4, 6], [1, 0], [3, 6]", "[4, 6, 1, 1, 1], [1, 0], [3, 6]", "dimensions"},
        {"\"w\", \"bf16\", [4, 6], [1", "\"w\", \"f32\", [4, 6], [1", ""},
        {"\"w\", \"bf16\"", "\"w\", \"complex\"", "unknown dtype"},
        {"[\"w\", \"bf16\"", "[\"../w\", \"bf16\"", "no proper name"},
        {"[\"v\", \"f32\"", "[\"u\", \"f32\"", "logical digest"},
        {"\"updates\":4", "\"updates\":5", "logical digest"},
        {"{\"lm_head.weight\":\"w\"}", "{\"lm_head.weight\":\"u\"}", "alias"},
        {"{\"lm_head.weight\":\"w\"}", "{\"v\":\"w\"}", "alias"},
        {"{\"lm_head.weight\":\"w\"}", "{\"lm_head.weight\":7}", "alias"},
        {"\"info\": ", "\"content\": {}, \"info\": ", "duplicate"},
        {"\"shards\": [", "\"shards\": [7, ", "expected"},
        {"\"tensors\": [", "\"tensors\": [[], ", "no proper name"},
        {"\"identity\": \"id\"", "\"index\": [\"a2/rank0000.json\", \"00000000000000000000000000000001\"]", "index"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        fails(CAIRN_EDATA, t[i].part, forged(t[i].from, t[i].to, err));
    ok(forged("\"host\":", "\"hosts\":", err)); /* info is not logical content */
    ok(forged("\"tensors\"", "\"tensors\"", err));
}

static void digest_ignores_layout(void **state)
{
    struct cairn_manifest *m = sample(), *k = cairn_manifest_create("trainer", 99, "other");
    static const int64_t w[] = {4, 6}, v[] = {3};
    struct cairn_slice s[2] = {cairn_slice_whole("v", CAIRN_F32, 1, v), cairn_slice_whole("w", CAIRN_BF16, 2, w)};
    struct cairn_shard_entry *e = entry("b/all.h5", s, 2);
    struct cairn_digest d;

    (void)state;
    ok(cairn_manifest_seal(m, "test", err));
    e->slices[1].sum = cairn_digest_add(m->shards[0]->slices[0].sum, m->shards[1]->slices[0].sum);
    e->slices[0].sum = m->shards[0]->slices[1].sum;
    ok(cairn_manifest_add_shard(k, e, err));
    ok(cairn_manifest_add_alias(k, "lm_head.weight", "w", err));
    json_object_set_new(k->content, "one", json_integer(1)); /* the value counts, not how it is stored */
    json_object_set_new(k->content, "loss", json_real(0.1));
    json_object_set_new(k->content, "updates", json_integer(4));
    ok(cairn_manifest_seal(k, "test", err));
    assert_true(cairn_digest_equal(m->digest, k->digest));
    assert_false(cairn_digest_equal(cairn_manifest_identity(m), cairn_manifest_identity(k)));
    d = k->digest;
    json_object_set_new(k->content, "updates", json_integer(5));
    ok(cairn_manifest_seal(k, "test", err));
    assert_false(cairn_digest_equal(d, k->digest));
    json_object_set_new(k->content, "updates", json_integer(4));
    json_object_clear(k->aliases);
    ok(cairn_manifest_seal(k, "test", err));
    assert_false(cairn_digest_equal(d, k->digest));
    cairn_manifest_destroy(m);
    cairn_manifest_destroy(k);
}

/* Random cuts of a [7, 9] tensor into boxes cover it; with one box gone, moved or doubled they do not. */
static void cover(void **state)
{
    static const int64_t dim[] = {7, 9};
    uint64_t seed = 3;

    (void)state;
    for (int round = 0; round < 200; round++) {
        struct cairn_slice whole = cairn_slice_whole("w", CAIRN_U8, 2, dim), box[64];
        struct cairn_manifest *m = cairn_manifest_create("policy", 0, "");
        int n = 1, what = round % 4, victim;

        whole.tile_bytes = 1;
        box[0] = whole;
        for (int i = 0; i < 12; i++) { /* split a box in two */
            int k = (int)(mix(&seed) % (uint64_t)n), axis = (int)(mix(&seed) % 2);
            int64_t len = box[k].local[axis], c;

            if (len < 2)
                continue;
            c = 1 + (int64_t)(mix(&seed) % (uint64_t)(len - 1));
            box[n] = box[k];
            box[n].offset[axis] += c;
            box[n++].local[axis] = len - c;
            box[k].local[axis] = c;
        }
        victim = (int)(mix(&seed) % (uint64_t)n);
        if (what == 3 && n < 2)
            what = 0;
        for (int i = 0; i < n; i++) {
            char file[32];

            snprintf(file, sizeof file, "a1/r%d.h5", i);
            if (what == 1 && i == victim)
                continue; /* gone */
            if (what == 3 && i == victim)
                ok(cairn_manifest_add_shard(m, entry("a1/twice.h5", &box[(i + 1) % n], 1), err)); /* doubled */
            ok(cairn_manifest_add_shard(m, entry(file, &box[i], 1), err));
        }
        if (what == 1 && n == 1) { /* nothing at all: no tensor, which is fine */
            ok(cairn_manifest_seal(m, "test", err));
        } else if (what == 1) {
            fails(CAIRN_EDATA, "are in no shard", cairn_manifest_seal(m, "test", err));
        } else if (what == 3) {
            fails(CAIRN_EDATA, "too", cairn_manifest_seal(m, "test", err));
        } else {
            ok(cairn_manifest_seal(m, "test", err));
        }
        cairn_manifest_destroy(m);
    }
}

static void many_shards_have_indexes(void **state)
{
    enum { N = 600 };
    struct cairn_manifest *r;
    struct cairn_reader *reader;
    float *all = malloc(N * 16);
    char file[600];
    int64_t size;

    (void)state;
    ok(commit_rows(at("many"), N, err));
    snprintf(file, sizeof file, "%s/%s", at("many"), CAIRN_MANIFEST_NAME);
    assert_true(cairn_file_size(file) < N * 220); /* small: the tensors stand in the indexes */
    ok(cairn_manifest_load(&r, at("many"), err)); /* and its logical digest is that of what they say */
    assert_int_equal(r->nshards, N);
    cairn_manifest_destroy(r);
    ok(cairn_reader_open(&reader, at("many"), NULL, err));
    ok(cairn_reader_box(reader, "w", NULL, NULL, all, N * 16, err));
    for (int i = 0; i < N * 4; i++)
        assert_true(all[i] == (float)i);
    cairn_reader_close(reader);
    snprintf(file, sizeof file, "%s/a1/rank0317.json", at("many"));
    size = cairn_file_size(file);
    for (int64_t b = 0; b < size; b += 7) {
        flip(file, b, 2);
        fails(CAIRN_EDATA, "rank0317.json", cairn_manifest_load(&r, at("many"), err));
        flip(file, b, 2);
    }
    unlink(file);
    fails(CAIRN_EDATA, "rank0317.json", cairn_manifest_load(&r, at("many"), err));
    free(all);
}

static void names_beneath(void **state)
{
    static const struct {
        const char *rel;
        int good;
    } t[] = {{"x", 1},    {"a1/x.h5", 1}, {"", 0},  {"/x", 0},  {"a//x", 0}, {"a/b/c", 0},  {"a/", 0},
             {"../x", 0}, {"a/..", 0},    {".", 0}, {"a b", 0}, {"a\nb", 0}, {".hidden", 1}};
    char long_name[300];

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        if (cairn_beneath_ok(t[i].rel) != t[i].good)
            fail_msg("\"%s\"", t[i].rel);
    memset(long_name, 'a', 299);
    long_name[299] = 0;
    assert_false(cairn_beneath_ok(long_name));
}

/* A shard without its data in a manifest that does not say so. */
static void hollow_unsaid(void **state)
{
    (void)state;
    for (int said = 0; said < 2; said++) {
        struct cairn_manifest *m = sample(), *r;
        char *text;
        size_t n;

        m->shards[1]->hollow = 1;
        if (said)
            ok(cairn_manifest_set_hollow(m, "checkpoint.every", err));
        ok(cairn_manifest_seal(m, "test", err));
        ok(cairn_manifest_text(m, &text, &n, err));
        if (said) {
            ok(cairn_manifest_parse(&r, text, n, "test", NULL, err));
            cairn_manifest_destroy(r);
        } else {
            fails(CAIRN_EDATA, "is hollow", cairn_manifest_parse(&r, text, n, "test", NULL, err));
        }
        free(text);
        cairn_manifest_destroy(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_and_back), cmocka_unit_test(every_byte_and_length), cmocka_unit_test(hostile), cmocka_unit_test(digest_ignores_layout),
        cmocka_unit_test(cover),         cmocka_unit_test(many_shards_have_indexes), cmocka_unit_test(names_beneath),
        cmocka_unit_test(hollow_unsaid),
    };

    return cmocka_run_group_tests(tests, scratch_up, scratch_down);
}

/* safetensors_test.c - files of HuggingFace's libraries and our own are read, whatever is wrong with a file is refused
 * before memory is spent on it, and block FP8 comes out as the formula says. */
#include "tests/ckpt/guarded.h"

#include <math.h>

#include "base/json.h"
#include "ckpt/convert.h"
#include "ckpt/safetensors.h"

/* Writes length + header + `data` bytes of 0, 1, 2, ... */
static void craft(const char *path, uint64_t len, const char *header, size_t header_n, size_t data)
{
    struct cairn_str s = {0};

    for (int i = 0; i < 8; i++)
        cairn_str_putc(&s, (char)(len >> (8 * i)));
    cairn_str_add(&s, header, header_n);
    for (size_t i = 0; i < data; i++)
        cairn_str_putc(&s, (char)i);
    spew(path, s.p, s.len);
    cairn_str_free(&s);
}

static void good_header(void **state)
{
    static const char h[] =
        "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[8,14]},"
        "\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},\"z\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[8,8]}}   ";
    const struct cairn_st_tensor *t;
    unsigned char x[8];
    struct cairn_st *s;

    (void)state;
    craft(at("good.safetensors"), sizeof h - 1, h, sizeof h - 1, 14);
    ok(cairn_st_open(&s, at("good.safetensors"), err));
    assert_int_equal(cairn_st_count(s), 3);
    assert_string_equal(cairn_st_at(s, 0)->name, "a");
    t = cairn_st_find(s, "b");
    assert_int_equal(t->ndim, 2);
    assert_int_equal(t->bytes, 6);
    ok(cairn_st_read(s, t, 1, x, 5, err));
    assert_true(x[0] == 9 && x[4] == 13);
    fails(CAIRN_EBUG, "asked for", cairn_st_read(s, t, 2, x, 5, err));
    assert_int_equal(cairn_st_find(s, "a")->count, 1);
    assert_int_equal(cairn_st_find(s, "z")->bytes, 0);
    assert_null(cairn_st_find(s, "y"));
    assert_string_equal(json_string_value(json_object_get(cairn_st_metadata(s), "format")), "pt");
    cairn_st_close(s);
    cairn_st_close(NULL);
}

static void refused(void **state)
{
    static const struct {
        const char *header;
        size_t data;
        const char *part;
    } t[] = {
        {"", 0, "no JSON object"},
        {"[]", 0, "no JSON object"},
        {" {}", 0, "no JSON object"},
        {"{", 0, ""},
        {"{}", 1, "behind the last tensor"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, "behind"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "do not lie within"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "do not lie within"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, "do not lie within"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4611686018427387904]}}", 8, "do not lie within"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,18446744073709551615]}}", 8, ""},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, "need 12 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", 8, "overflows"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,8]}}", 8, "overflows"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "no size"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8, "no size"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8, "shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "unknown dtype \"F33\""},
        {"{\"a\":7}", 8, "unknown dtype"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[3,8]}}", 8,
         "overlapping"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}", 8, "gap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[7],\"data_offsets\":[1,8]}}", 8, "gap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}", 8,
         "duplicate"},
        {"{\"\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8, "without a name"},
        {"{\"a\xff\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8, ""},
        {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8, ""},
        {"{\"__metadata__\":{\"a\":1}}", 0, "no string"},
        {"{\"__metadata__\":[]}", 0, "no object"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}} x", 8, ""},
    };
    struct cairn_st *s;

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        craft(at("bad.safetensors"), strlen(t[i].header), t[i].header, strlen(t[i].header), t[i].data);
        fails(CAIRN_EDATA, t[i].part, cairn_st_open(&s, at("bad.safetensors"), err));
        fails(CAIRN_EDATA, "bad.safetensors", cairn_st_open(&s, at("bad.safetensors"), err));
    }
    craft(at("bad.safetensors"), (uint64_t)1 << 62, "{}", 2, 0);
    fails(CAIRN_EDATA, "4611686018427387904", cairn_st_open(&s, at("bad.safetensors"), err));
    craft(at("bad.safetensors"), UINT64_MAX, "{}", 2, 0);
    fails(CAIRN_EDATA, "at most", cairn_st_open(&s, at("bad.safetensors"), err));
    craft(at("bad.safetensors"), 100 << 20, "{}", 2, 0);
    fails(CAIRN_EDATA, "truncated", cairn_st_open(&s, at("bad.safetensors"), err));
    for (size_t n = 0; n < 8; n++) {
        spew(at("bad.safetensors"), "\2\0\0\0\0\0\0\0", n);
        fails(CAIRN_EDATA, "truncated", cairn_st_open(&s, at("bad.safetensors"), err));
    }
    fails(CAIRN_EDATA, "no such file", cairn_st_open(&s, at("absent.safetensors"), err));
    assert_int_equal(mkfifo(at("fifo.safetensors"), 0600), 0);
    fails(CAIRN_EDATA, "not a regular file", cairn_st_open(&s, at("fifo.safetensors"), err));
    assert_int_equal(mkdir(at("empty"), 0700), 0);
    fails(CAIRN_EDATA, "holds no model.safetensors", cairn_st_open(&s, at("empty"), err));
}

/* Every length of a good file but the right one. */
static void truncated(void **state)
{
    static const char h[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}";
    struct cairn_st *s;

    (void)state;
    craft(at("cut.safetensors"), sizeof h - 1, h, sizeof h - 1, 16);
    ok(cairn_st_open(&s, at("cut.safetensors"), err));
    cairn_st_close(s);
    for (int64_t n = 8 + (int64_t)sizeof h - 1 + 15; n >= 0; n--) {
        assert_int_equal(truncate(at("cut.safetensors"), n), 0);
        fails(CAIRN_EDATA, "cut.safetensors", cairn_st_open(&s, at("cut.safetensors"), err));
    }
}

static struct cairn_st_decl decl(const char *name, const char *word, int64_t esize, int64_t d0, int64_t d1)
{
    return (struct cairn_st_decl){.name = name, .word = word, .esize = esize, .ndim = d1 < 0 ? 1 : 2, .shape = {d0, d1 < 0 ? 0 : d1}};
}

static void write_and_read(void **state)
{
    struct cairn_st_decl d[] = {decl("u8", "U8", 1, 7, -1),       decl("w.bf16", "BF16", 2, 33, 65), decl("w.f32", "F32", 4, 10, 100),
                                decl("flags", "BOOL", 1, 3, -1),  decl("none", "F32", 4, 0, 5),      decl("i64 \"quoted\"", "I64", 8, 9, -1),
                                decl("e5", "F8_E5M2", 1, 5, 5)};
    enum { N = sizeof d / sizeof *d };
    unsigned char *p[N], *got = malloc(1 << 16);
    int64_t bytes[N];

    (void)state;
    for (int i = 0; i < N; i++) {
        bytes[i] = d[i].esize * d[i].shape[0] * (d[i].ndim == 2 ? d[i].shape[1] : 1);
        p[i] = malloc((size_t)bytes[i] + 1);
        noise(p[i], (size_t)bytes[i], (uint64_t)i);
    }
    for (int round = 0; round < 3; round++) { /* one file, then several, then one again in the same place */
        struct cairn_st_writer_opts o = {.max_bytes = round == 1 ? 4100 : 0};
        struct cairn_st_writer *w;
        struct cairn_st *s;

        ok(cairn_st_writer_create(&w, at("out"), d, N, &o, err));
        for (int i = N - 1; i >= 0; i--)
            for (int64_t k = 0; k < bytes[i]; k += 1000)
                ok(cairn_st_writer_add(w, i, p[i] + k, (size_t)(bytes[i] - k < 1000 ? bytes[i] - k : 1000), err));
        if (round < 2)
            assert_false(cairn_path_exists(at(round ? "out/model.safetensors.index.json" : "out/model.safetensors")));
        ok(cairn_st_writer_finish(w, err));
        cairn_st_writer_destroy(w);
        assert_int_equal(cairn_path_exists(at("out/model.safetensors")), round != 1);
        assert_int_equal(cairn_path_exists(at("out/model.safetensors.index.json")), round == 1);
        ok(cairn_st_open(&s, at("out"), err));
        assert_int_equal(cairn_st_files(s), round == 1 ? 3 : 1);
        assert_int_equal(cairn_st_count(s), N);
        for (int i = 0; i < N; i++) {
            const struct cairn_st_tensor *t = cairn_st_find(s, d[i].name);

            assert_non_null(t);
            assert_string_equal(t->word, d[i].word);
            assert_int_equal(t->bytes, bytes[i]);
            assert_int_equal(t->at % t->esize, 0);
            ok(cairn_st_read(s, t, 0, got, (size_t)bytes[i], err));
            assert_memory_equal(got, p[i], (size_t)bytes[i]);
        }
        assert_int_equal(cairn_st_find(s, "e5")->dtype, -1);
        cairn_st_close(s);
    }
    {
        struct cairn_st_writer *w;

        ok(cairn_st_writer_create(&w, at("half"), d, N, NULL, err));
        fails(CAIRN_EBUG, "0 of 7 bytes", cairn_st_writer_finish(w, err));
        fails(CAIRN_EBUG, "more bytes", cairn_st_writer_add(w, 0, got, 8, err));
        cairn_st_writer_destroy(w);
        assert_int_equal(rmdir(at("half")), 0); /* no temporary is left */
        d[1].name = "u8";
        fails(CAIRN_EDATA, "twice", cairn_st_writer_create(&w, at("half"), d, N, NULL, err));
    }
    for (int i = 0; i < N; i++)
        free(p[i]);
    free(got);
}

static void from_device(void **state)
{
    static const int64_t dim[] = {50, 60};
    struct cairn_st_decl d = decl("w", "F32", 4, 20, 30);
    float *x = malloc(50 * 60 * 4), got[600];
    struct cairn_st_writer *w;
    struct cairn_stream stream;
    struct cairn_tensor t, v;
    struct cairn_st *s;

    (void)state;
    noise(x, 50 * 60 * 4, 4);
    t = guarded_tensor(CAIRN_F32, 2, dim, x);
    v = cairn_tensor_slice(&t, 0, 5, 20);
    v = cairn_tensor_slice(&v, 1, 7, 30);
    ok(cairn_stream_create(&guard_device, &stream, err));
    ok(cairn_st_writer_create(&w, at("dev"), &d, 1, &(struct cairn_st_writer_opts){.stem = "adapter_model"}, err));
    fails(CAIRN_EBUG, "another size", cairn_st_writer_put(w, 0, &stream, &t, err));
    ok(cairn_st_writer_put(w, 0, &stream, &v, err));
    ok(cairn_st_writer_finish(w, err));
    cairn_st_writer_destroy(w);
    ok(cairn_st_open(&s, at("dev"), err));
    ok(cairn_st_read(s, cairn_st_at(s, 0), 0, got, sizeof got, err));
    for (int i = 0; i < 20; i++)
        assert_memory_equal(got + 30 * i, x + (5 + i) * 60 + 7, 120);
    cairn_st_close(s);
    cairn_buffer_destroy(t.buf);
    cairn_stream_destroy(&stream);
    free(x);
}

static void conversions(void **state)
{
    enum { R = 200, C = 300 }; /* 2 x 3 blocks, the last ones partial */
    struct cairn_st_decl d[] = {decl("q.weight", "F8_E4M3", 1, R, C), decl("q.weight_scale_inv", "F32", 4, 2, 3), decl("h", "F16", 2, 100, -1),
                                decl("d", "F64", 8, 5, -1), decl("i", "I32", 4, 5, -1), decl("p.weight", "F8_E4M3", 1, 2, 2)};
    unsigned char *q = malloc(R * C), *bf = malloc(R * C * 2), pw[4] = {0x38, 0xb8, 0x01, 0x7e};
    float scale[6] = {0.5f, 3.0f, 0.1f, 1e-3f, 7.7f, 1.0f}, *f = malloc(R * C * 4), part[64], four[4];
    uint16_t h[100];
    double dd[5] = {0.1, -2, 3, 4, 5};
    int32_t iv[5] = {1, 2, 3, 4, 5};
    struct cairn_st_writer *w;
    struct cairn_st *s;

    (void)state;
    noise(q, R * C, 1);
    for (int i = 0; i < R * C; i++)
        if ((q[i] & 0x7f) == 0x7f)
            q[i] = 0;
    noise(h, sizeof h, 2);
    ok(cairn_st_writer_create(&w, at("fp8"), d, 6, NULL, err));
    ok(cairn_st_writer_add(w, 0, q, R * C, err));
    ok(cairn_st_writer_add(w, 1, scale, sizeof scale, err));
    ok(cairn_st_writer_add(w, 2, h, sizeof h, err));
    ok(cairn_st_writer_add(w, 3, dd, sizeof dd, err));
    ok(cairn_st_writer_add(w, 4, iv, sizeof iv, err));
    ok(cairn_st_writer_add(w, 5, pw, sizeof pw, err));
    ok(cairn_st_writer_finish(w, err));
    cairn_st_writer_destroy(w);
    ok(cairn_st_open(&s, at("fp8"), err));
    ok(cairn_st_read_as(s, cairn_st_find(s, "q.weight"), 0, R * C, CAIRN_F32, f, err));
    ok(cairn_st_read_as(s, cairn_st_find(s, "q.weight"), 0, R * C, CAIRN_BF16, bf, err));
    for (int i = 0; i < R; i++)
        for (int j = 0; j < C; j++) {
            int exp = q[i * C + j] >> 3 & 15, man = q[i * C + j] & 7; /* e4m3 from its definition */
            float v = exp ? ldexpf(1 + (float)man / 8, exp - 7) : ldexpf((float)man / 8, -6);
            uint16_t b;

            v = (q[i * C + j] >> 7 ? -v : v) * scale[i / 128 * 3 + j / 128];
            assert_true(f[i * C + j] == v);
            memcpy(&b, bf + 2 * (i * C + j), 2);
            assert_int_equal(b, cairn_f32_to_bf16(v));
        }
    ok(cairn_st_read_as(s, cairn_st_find(s, "q.weight"), 130 * C + 250, 64, CAIRN_F32, part, err));
    assert_memory_equal(part, f + 130 * C + 250, sizeof part);
    ok(cairn_st_read_as(s, cairn_st_find(s, "p.weight"), 0, 4, CAIRN_F32, four, err)); /* no scales: plain */
    assert_true(four[0] == 1 && four[1] == -1 && four[2] == 0x1p-9f && four[3] == 448);
    ok(cairn_st_read_as(s, cairn_st_find(s, "h"), 3, 50, CAIRN_F32, part, err));
    for (int i = 0; i < 50; i++)
        assert_true(part[i] == cairn_f16_to_f32(h[3 + i]) || isnan(part[i]));
    ok(cairn_st_read_as(s, cairn_st_find(s, "d"), 0, 5, CAIRN_F32, part, err));
    assert_true(part[0] == 0.1f && part[1] == -2);
    ok(cairn_st_read_as(s, cairn_st_find(s, "i"), 1, 2, CAIRN_I32, part, err));
    assert_memory_equal(part, iv + 1, 8);
    fails(CAIRN_EDATA, "is I32", cairn_st_read_as(s, cairn_st_find(s, "i"), 0, 5, CAIRN_F32, part, err));
    fails(CAIRN_EBUG, "asked for", cairn_st_read_as(s, cairn_st_find(s, "h"), 90, 11, CAIRN_F32, part, err));
    cairn_st_close(s);
    d[1].shape[1] = 2; /* scales of another shape */
    ok(cairn_st_writer_create(&w, at("fp8bad"), d, 2, NULL, err));
    ok(cairn_st_writer_add(w, 0, q, R * C, err));
    ok(cairn_st_writer_add(w, 1, scale, 16, err));
    ok(cairn_st_writer_finish(w, err));
    cairn_st_writer_destroy(w);
    ok(cairn_st_open(&s, at("fp8bad"), err));
    fails(CAIRN_EDATA, "(2,3)", cairn_st_read_as(s, cairn_st_find(s, "q.weight"), 0, 10, CAIRN_F32, f, err));
    cairn_st_close(s);
    free(q);
    free(bf);
    free(f);
}

static void indexes(void **state)
{
    static const char h1[] =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"extra\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[4,5]}}";
    static const char h2[] =
        "{\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[4,6]}}";
    static const struct {
        const char *map, *part;
    } bad[] = {
        {"{\"a\":\"x1.safetensors\",\"b\":\"../x2.safetensors\"}", "is no file name"},
        {"{\"a\":\"x1.safetensors\",\"b\":\"/x2.safetensors\"}", "is no file name"},
        {"{\"a\":\"x1.safetensors\",\"b\":7}", "is no file name"},
        {"{\"a\":\"x1.safetensors\",\"b\":\"x3.safetensors\"}", "x3.safetensors: no such file"},
        {"{\"a\":\"x1.safetensors\",\"b\":\"x2.safetensors\",\"c\":\"x1.safetensors\",\"d\":\"x1.safetensors\"}",
         "tensor c is not in x1.safetensors"},
        {"{\"b\":\"x2.safetensors\",\"extra\":\"x1.safetensors\"}", "tensor a is in"},
        {"{}", "names 0 files"},
        {"[]", "expected an object"},
    };
    char text[400];
    struct cairn_st *s;

    (void)state;
    assert_int_equal(mkdir(at("idx"), 0700), 0);
    craft(at("idx/x1.safetensors"), sizeof h1 - 1, h1, sizeof h1 - 1, 5);
    craft(at("idx/x2.safetensors"), sizeof h2 - 1, h2, sizeof h2 - 1, 6);
    snprintf(text, sizeof text, "{\"metadata\":{},\"weight_map\":{\"a\":\"x1.safetensors\",\"b\":\"x2.safetensors\"}}");
    spew(at("idx/model.safetensors.index.json"), text, strlen(text));
    ok(cairn_st_open(&s, at("idx"), err));
    assert_int_equal(cairn_st_count(s), 3); /* a of x1, b, and extra, which the map forgets */
    assert_int_equal(cairn_st_find(s, "a")->bytes, 4);
    cairn_st_close(s);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(text, sizeof text, "{\"weight_map\":%s}", bad[i].map);
        spew(at("idx/model.safetensors.index.json"), text, strlen(text));
        fails(CAIRN_EDATA, bad[i].part, cairn_st_open(&s, at("idx/model.safetensors.index.json"), err));
    }
}

/* The checkpoints of tests/fixtures/models were written by transformers. */
static void files_of_transformers(void **state)
{
    static const struct {
        const char *dir, *tensor, *word;
        int64_t rows;
    } t[] = {{"tests/fixtures/models/glm52-tiny", "model.norm.weight", "F32", 0},
             {"tests/fixtures/models/bf16-sharded-tiny", "model.norm.weight", "BF16", 0},
             {"tests/fixtures/models/glm52-tiny/adapter", NULL, "F32", 0}};
    int seen = 0;

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct cairn_st *s;
        float x[4096];

        if (!cairn_path_is_dir(t[i].dir))
            continue;
        seen++;
        ok(cairn_st_open(&s, t[i].dir, err));
        assert_true(cairn_st_count(s) > 20);
        for (int k = 0; k < cairn_st_count(s); k++) {
            const struct cairn_st_tensor *v = cairn_st_at(s, k);
            int64_t n = v->count < 4096 ? v->count : 4096;

            ok(cairn_st_read_as(s, v, v->count - n, n, CAIRN_F32, x, err));
            for (int64_t j = 0; j < n; j++)
                assert_true(isfinite(x[j]));
        }
        if (t[i].tensor) {
            assert_non_null(cairn_st_find(s, t[i].tensor));
            assert_string_equal(cairn_st_find(s, t[i].tensor)->word, t[i].word);
        }
        cairn_st_close(s);
    }
    if (!seen)
        print_message("no tests/fixtures/models here: not looked at\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_header), cmocka_unit_test(refused),     cmocka_unit_test(truncated), cmocka_unit_test(write_and_read),
        cmocka_unit_test(from_device), cmocka_unit_test(conversions), cmocka_unit_test(indexes),   cmocka_unit_test(files_of_transformers),
    };

    return cmocka_run_group_tests(tests, scratch_up, scratch_down);
}

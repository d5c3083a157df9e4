/* tiles_test.c - the digest of a tensor is that of the format, whoever computes which part. */
#include "tests/ckpt/helpers.h"

#include <xxhash.h>

#include "ckpt/tiles.h"

/* The rule of base/digest.h, written down once more from its text. */
static struct cairn_digest by_the_rule(const char *name, const char *dtype, int ndim, const int64_t *dim, size_t esize, int64_t tile_bytes,
                                       const unsigned char *p)
{
    struct cairn_digest sum = {0, 0};
    uint64_t seed = XXH3_64bits(name, strlen(name)), tile = 0;
    int64_t rows = 1, row_bytes = (ndim ? dim[ndim - 1] : 1) * (int64_t)esize;
    XXH128_hash_t h;
    char text[128];
    int n = snprintf(text, sizeof text, "%s:", dtype);

    for (int d = 0; d < ndim - 1; d++)
        rows *= dim[d];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < row_bytes; c += tile_bytes) {
            size_t len = (size_t)(row_bytes - c < tile_bytes ? row_bytes - c : tile_bytes);

            h = XXH3_128bits_withSeed(p + r * row_bytes + c, len, seed + tile++ * 0x9E3779B97F4A7C15ull);
            sum = cairn_digest_add(sum, (struct cairn_digest){h.low64, h.high64});
        }
    for (int d = 0; d < ndim; d++)
        n += snprintf(text + n, sizeof text - (size_t)n, d ? ",%lld" : "%lld", (long long)dim[d]);
    n += snprintf(text + n, sizeof text - (size_t)n, ":%lld", (long long)tile_bytes);
    h = XXH3_128bits_withSeed(text, (size_t)n, seed + (1ull << 63) * 0x9E3779B97F4A7C15ull);
    return cairn_digest_add(sum, (struct cairn_digest){h.low64, h.high64});
}

static void whole_tensors(void **state)
{
    static const struct {
        enum cairn_dtype dtype;
        int ndim;
        int64_t dim[4], tile;
    } t[] = {
        {CAIRN_F32, 0, {0}, 0},           {CAIRN_F32, 1, {1}, 0},          {CAIRN_BF16, 1, {5000}, 0},
        {CAIRN_BF16, 2, {3, 2049}, 0},    {CAIRN_U8, 2, {7, 3}, 0},        {CAIRN_F64, 3, {2, 3, 5}, 0},
        {CAIRN_F32, 4, {2, 2, 3, 33}, 16}, {CAIRN_I64, 2, {0, 4}, 0},      {CAIRN_I64, 2, {4, 0}, 0},
        {CAIRN_F8E4M3, 2, {2, 4097}, 0},  {CAIRN_I32, 2, {5, 100}, 96},
    };
    unsigned char *p = malloc(1 << 16);

    (void)state;
    noise(p, 1 << 16, 1);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct cairn_slice s = cairn_slice_whole("model.x", t[i].dtype, t[i].ndim, t[i].dim);
        size_t e = cairn_dtype_size(t[i].dtype);
        int64_t width = t[i].tile ? t[i].tile : cairn_tile_width(t[i].dtype, t[i].ndim, t[i].dim);
        struct cairn_digest got;

        s.tile_bytes = t[i].tile;
        ok(cairn_tensor_digest(&s, p, &got, err));
        assert_true(cairn_digest_equal(got, by_the_rule("model.x", cairn_dtype_name(t[i].dtype), t[i].ndim, t[i].dim, e, width, p)));
    }
    free(p);
}

static void widths(void **state)
{
    static const struct {
        enum cairn_dtype dtype;
        int ndim;
        int64_t dim[2], want;
    } t[] = {{CAIRN_F32, 1, {10, 0}, 40},   {CAIRN_F32, 1, {1024, 0}, 4096}, {CAIRN_F32, 1, {1025, 0}, 4096}, {CAIRN_BF16, 2, {9, 2048}, 4096},
             {CAIRN_F32, 0, {0, 0}, 4},     {CAIRN_F64, 2, {3, 0}, 8},       {CAIRN_U8, 1, {INT64_MAX, 0}, 4096}};

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        assert_int_equal(cairn_tile_width(t[i].dtype, t[i].ndim, t[i].dim), t[i].want);
}

/* Cuts a [6, 4, 100] f32 tensor along an axis in pieces; the sums add up to the whole. */
static void parts_add_up(void **state)
{
    static const int64_t dim[] = {6, 4, 100};
    float *x = malloc(6 * 4 * 100 * sizeof *x), *part = malloc(6 * 4 * 100 * sizeof *x);
    struct cairn_slice whole = cairn_slice_whole("w", CAIRN_F32, 3, dim);
    struct cairn_digest want, sum;
    struct cairn_tiling t;

    (void)state;
    whole.tile_bytes = 80; /* 20 columns */
    noise(x, 6 * 4 * 100 * sizeof *x, 2);
    ok(cairn_tensor_digest(&whole, x, &want, err));
    for (int axis = 0; axis < 3; axis++)
        for (int64_t step = axis == 2 ? 20 : 1; step <= dim[axis]; step += axis == 2 ? 20 : 1) {
            ok(cairn_tiling_init(&t, &whole, "test", err));
            sum = cairn_tiling_header(&t);
            for (int64_t b = 0; b < dim[axis]; b += step) {
                int64_t n = dim[axis] - b < step ? dim[axis] - b : step, k = 0;
                struct cairn_slice s = cairn_slice_part(&whole, axis, b, n);

                for (int64_t i = s.offset[0]; i < s.offset[0] + s.local[0]; i++)
                    for (int64_t j = s.offset[1]; j < s.offset[1] + s.local[1]; j++)
                        for (int64_t c = s.offset[2]; c < s.offset[2] + s.local[2]; c++)
                            part[k++] = x[(i * 4 + j) * 100 + c];
                ok(cairn_tiling_init(&t, &s, "test", err));
                assert_int_equal(t.bytes, k * 4);
                sum = cairn_digest_add(sum, cairn_tiling_hash(&t, 0, t.tiles, part, NULL));
            }
            assert_true(cairn_digest_equal(sum, want));
        }
    free(x);
    free(part);
}

static void a_stack_is_its_elements(void **state)
{
    static const int64_t dim[] = {11, 3, 5}, one[] = {3, 5};
    uint16_t x[11 * 15];
    struct cairn_slice stack = cairn_slice_whole("m.experts.gate.weight", CAIRN_BF16, 3, dim);
    struct cairn_digest got, want = {0, 0}, d;
    struct cairn_tiling t;

    (void)state;
    noise(x, sizeof x, 5);
    stack.each = "m.experts.*.gate.weight";
    ok(cairn_tensor_digest(&stack, x, &got, err));
    for (int i = 0; i < 11; i++) {
        char name[64];

        snprintf(name, sizeof name, "m.experts.%d.gate.weight", i);
        want = cairn_digest_add(want, by_the_rule(name, "bf16", 2, one, 2, 10, (const unsigned char *)(x + 15 * i)));
    }
    assert_true(cairn_digest_equal(got, want));
    /* experts 4..8 of it, as one rank holds them */
    stack = cairn_slice_part(&stack, 0, 4, 5);
    ok(cairn_tiling_init(&t, &stack, "test", err));
    d = cairn_tiling_hash(&t, 0, t.tiles, x + 60, NULL);
    for (int i = 4; i < 9; i++) {
        char name[64];
        struct cairn_slice s;
        struct cairn_tiling u;

        snprintf(name, sizeof name, "m.experts.%d.gate.weight", i);
        s = cairn_slice_whole(name, CAIRN_BF16, 2, one);
        ok(cairn_tiling_init(&u, &s, "test", err));
        want = cairn_tiling_hash(&u, 0, u.tiles, x + 15 * i, NULL);
        d.hi -= want.hi + (d.lo < want.lo);
        d.lo -= want.lo;
    }
    assert_true(d.lo == 0 && d.hi == 0);
}

static void bytes_and_tiles(void **state)
{
    static const int64_t dim[] = {3, 50};
    struct cairn_slice s = cairn_slice_whole("w", CAIRN_BF16, 2, dim);
    struct cairn_tiling t;

    (void)state;
    s.tile_bytes = 32; /* rows of 100 bytes: 32, 32, 32, 4 */
    ok(cairn_tiling_init(&t, &s, "test", err));
    assert_int_equal(t.tiles, 12);
    for (int64_t i = 0, next = 0; i < t.tiles; i++) {
        int64_t at_byte, n = cairn_tiling_tile(&t, i, &at_byte);

        assert_int_equal(at_byte, next);
        assert_int_equal(n, i % 4 == 3 ? 4 : 32);
        for (int64_t b = at_byte; b < at_byte + n; b++)
            assert_int_equal(cairn_tiling_of_byte(&t, b), i);
        next += n;
    }
}

static void bad_slices(void **state)
{
    static char long_name[300];
    const struct {
        struct cairn_slice s;
        const char *part;
    } bad[] = {
        {{.name = NULL}, "no tensor name"},
        {{.name = ""}, "no tensor name"},
        {{.name = "../x"}, "no tensor name"},
        {{.name = ".tiles"}, "no tensor name"},
        {{.name = "a/b"}, "no tensor name"},
        {{.name = "a\nb"}, "no tensor name"},
        {{.name = long_name}, "no tensor name"},
        {{.name = "w", .dtype = 99}, "unknown dtype"},
        {{.name = "w", .ndim = 5}, "5 dimensions"},
        {{.name = "w", .ndim = -1}, "-1 dimensions"},
        {{.name = "w", .ndim = 1, .shape = {-1}, .local = {-1}}, "does not lie within"},
        {{.name = "w", .ndim = 1, .shape = {4}, .offset = {3}, .local = {2}}, "does not lie within"},
        {{.name = "w", .ndim = 1, .shape = {4}, .offset = {INT64_MAX}, .local = {2}}, "does not lie within"},
        {{.name = "w", .ndim = 2, .shape = {(int64_t)1 << 62, 4}, .local = {(int64_t)1 << 62, 4}}, "overflows"},
        {{.name = "w", .ndim = 2, .shape = {(int64_t)1 << 62, 1}, .local = {1, 1}}, "overflows"},
        {{.name = "w", .ndim = 3, .shape = {(int64_t)1 << 32, (int64_t)1 << 32, 1}, .local = {1, 1, 1}}, "overflows"},
        {{.name = "w", .ndim = 3, .shape = {(int64_t)1 << 40, (int64_t)1 << 40, 0}, .local = {(int64_t)1 << 40, (int64_t)1 << 40, 0}}, "overflows"},
        {{.name = "w", .ndim = 1, .shape = {4}, .local = {4}, .tile_bytes = 3}, "tile width"},
        {{.name = "w", .ndim = 1, .shape = {4}, .local = {4}, .tile_bytes = 8192}, "tile width"},
        {{.name = "w", .ndim = 1, .shape = {4}, .local = {4}, .tile_bytes = -4}, "tile width"},
        {{.name = "w", .ndim = 1, .shape = {100}, .offset = {3}, .local = {97}, .tile_bytes = 16}, "do not fall on tiles"},
        {{.name = "w", .ndim = 1, .shape = {100}, .local = {3}, .tile_bytes = 16}, "do not fall on tiles"},
        {{.name = "w", .each = "a.*.b", .ndim = 1, .shape = {4}, .local = {4}}, "stack"},
        {{.name = "w", .each = "a.b", .ndim = 2, .shape = {4, 4}, .local = {4, 4}}, "stack"},
        {{.name = "w", .each = "a.*.*", .ndim = 2, .shape = {4, 4}, .local = {4, 4}}, "stack"},
        {{.name = "w", .each = "a/*", .ndim = 2, .shape = {4, 4}, .local = {4, 4}}, "stack"},
    };

    (void)state;
    memset(long_name, 'a', sizeof long_name - 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct cairn_tiling t;

        fails(CAIRN_EDATA, bad[i].part, cairn_tiling_init(&t, &bad[i].s, "test", err));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_tensors), cmocka_unit_test(widths),          cmocka_unit_test(parts_add_up), cmocka_unit_test(a_stack_is_its_elements),
        cmocka_unit_test(bytes_and_tiles), cmocka_unit_test(bad_slices),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

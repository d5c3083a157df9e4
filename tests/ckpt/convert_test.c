/* convert_test.c - every value of the small formats, and rounding held against a search over all of them. */
#include "tests/ckpt/helpers.h"

#include <math.h>

#include "ckpt/convert.h"

static uint32_t bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, 4);
    return u;
}

static float from_bits(uint32_t u)
{
    float x;

    memcpy(&x, &u, 4);
    return x;
}

/* Values from the formats' definitions, not from this code. */
static void known_values(void **state)
{
    static const struct {
        uint16_t f16;
        double value;
    } h[] = {{0x0000, 0.0},     {0x3c00, 1.0},     {0xc000, -2.0},      {0x7bff, 65504.0},
             {0x0400, 0x1p-14}, {0x0001, 0x1p-24}, {0x03ff, 0x3ffp-24}, {0x3555, 0.333251953125}};
    static const struct {
        uint8_t e4m3;
        double value;
    } e[] = {{0x00, 0.0},   {0x01, 0x1p-9}, {0x07, 7 * 0x1p-9}, {0x08, 0x1p-6}, {0x38, 1.0},
             {0x39, 1.125}, {0x7e, 448.0},  {0xfe, -448.0},     {0xb8, -1.0}};

    (void)state;
    for (size_t i = 0; i < sizeof h / sizeof *h; i++) {
        assert_true((double)cairn_f16_to_f32(h[i].f16) == h[i].value);
        assert_int_equal(cairn_f32_to_f16((float)h[i].value), h[i].f16);
    }
    for (size_t i = 0; i < sizeof e / sizeof *e; i++) {
        assert_true((double)cairn_e4m3_to_f32(e[i].e4m3) == e[i].value);
        assert_int_equal(cairn_f32_to_e4m3((float)e[i].value), e[i].e4m3);
    }
    assert_true(isinf(cairn_f16_to_f32(0x7c00)) && isnan(cairn_f16_to_f32(0x7c01)) && isnan(cairn_e4m3_to_f32(0x7f)));
    assert_int_equal(cairn_f32_to_f16(65519.0f), 0x7bff);
    assert_int_equal(cairn_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(cairn_f32_to_e4m3(464.0f), 0x7e); /* halfway to the place that is NaN: ties to even */
    assert_int_equal(cairn_f32_to_e4m3(465.0f), 0x7f);
    assert_int_equal(cairn_f32_to_bf16(from_bits(0x3f808000)), 0x3f80);
    assert_int_equal(cairn_f32_to_bf16(from_bits(0x3f818000)), 0x3f82);
    assert_int_equal(cairn_f32_to_bf16(from_bits(0x7f7fffff)), 0x7f80);
    assert_int_equal(cairn_f32_to_bf16(from_bits(0x7f800001)), 0x7fc0);
    assert_int_equal(cairn_f32_to_bf16(from_bits(0xff800001)), 0xffc0);
}

static void all_values_return(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        float b = cairn_bf16_to_f32((uint16_t)i), h = cairn_f16_to_f32((uint16_t)i);

        assert_int_equal(cairn_f32_to_bf16(b), isnan(b) ? i | 0x40 : i);
        assert_int_equal(cairn_f32_to_f16(h), isnan(h) ? i | 0x200 : i);
    }
    for (uint32_t i = 0; i < 256; i++)
        assert_int_equal(cairn_f32_to_e4m3(cairn_e4m3_to_f32((uint8_t)i)), i);
}

/* Nearest of all finite values, ties to the even code; beyond half a step above the largest: `over`. */
static uint32_t nearest(double x, const double *value, int n, uint32_t over, double limit)
{
    int best = 0;

    if (x > limit || (x == limit && (n - 1) % 2))
        return over;
    for (int i = 1; i < n; i++) {
        double d = fabs(value[i] - x), e = fabs(value[best] - x);

        if (d < e || (d == e && i % 2 == 0))
            best = i;
    }
    return (uint32_t)best;
}

static void narrowing_is_nearest_even(void **state)
{
    static double h[0x7c00], e[0x7f];
    uint64_t seed = 7;

    (void)state;
    for (int i = 0; i < 0x7c00; i++)
        h[i] = (double)cairn_f16_to_f32((uint16_t)i);
    for (int i = 0; i < 0x7f; i++)
        e[i] = (double)cairn_e4m3_to_f32((uint8_t)i);
    for (int i = 0; i < 20000; i++) {
        uint64_t r = mix(&seed);
        double x;
        float f;

        switch (i % 4) { /* anywhere, exactly halfway, and a hair beside it */
        case 0: f = from_bits((uint32_t)r & 0x7fffffff); break;
        case 1: f = ldexpf((float)(r % 4096), (int)(r >> 32 & 31) - 26); break;
        case 2: f = (float)((e[r % 126] + e[r % 126 + 1]) / 2); break;
        default: f = nextafterf((float)((e[r % 126] + e[r % 126 + 1]) / 2), r >> 40 & 1 ? 0.0f : 1e9f);
        }
        if (isnan(f) || isinf(f))
            continue;
        x = (double)f;
        assert_int_equal(cairn_f32_to_e4m3(f), nearest(x, e, 0x7f, 0x7f, 464.0));
        if (i % 16 < 4 && x < 1e6)
            assert_int_equal(cairn_f32_to_f16(f), nearest(x, h, 0x7c00, 0x7c00, 65520.0));
    }
    for (int i = 0; i < 500; i++) { /* halves of f16 */
        uint64_t r = mix(&seed) % 0x7bff;
        float f = (float)((h[r] + h[r + 1]) / 2);

        assert_int_equal(cairn_f32_to_f16(f), nearest((double)f, h, 0x7c00, 0x7c00, 65520.0));
    }
}

static void double_rounds_once(void **state)
{
    double x = 1.0 + 0x1p-8 + 0x1p-40; /* through fp32 it would be a tie and go down */
    float f;
    uint16_t b;

    (void)state;
    assert_true(cairn_convert(CAIRN_BF16, &b, CAIRN_F64, &x, 1));
    assert_int_equal(b, 0x3f81);
    x = 1e300;
    assert_true(cairn_convert(CAIRN_BF16, &b, CAIRN_F64, &x, 1));
    assert_int_equal(b, 0x7f80);
    assert_true(cairn_convert(CAIRN_F32, &f, CAIRN_F64, &x, 1) && isinf(f));
    x = -0.0;
    assert_true(cairn_convert(CAIRN_F32, &f, CAIRN_F64, &x, 1));
    assert_int_equal(bits(f), 0x80000000);
    assert_false(cairn_convert(CAIRN_F32, &f, CAIRN_I32, &x, 1));
    assert_false(cairn_convert(CAIRN_I32, &f, CAIRN_F32, &x, 1));
}

static void arrays_agree_with_single_values(void **state)
{
    unsigned char raw[8 * 257], out[8 * 257];

    (void)state;
    noise(raw, sizeof raw, 3);
    for (int from = 0; from < CAIRN_DTYPES; from++) {
        if (!cairn_convert(CAIRN_F32, out, (enum cairn_dtype)from, raw + 1, 256)) /* unaligned on purpose */
            continue;
        for (int i = 0; i < 256; i++) {
            const unsigned char *p = raw + 1 + (size_t)i * cairn_dtype_size((enum cairn_dtype)from);
            uint16_t h;
            float got, want = 0;
            double d;

            memcpy(&got, out + 4 * i, 4);
            memcpy(&h, p, 2);
            memcpy(&d, p, 8);
            switch (from) {
            case CAIRN_F32: memcpy(&want, p, 4); break;
            case CAIRN_BF16: want = cairn_bf16_to_f32(h); break;
            case CAIRN_F16: want = cairn_f16_to_f32(h); break;
            case CAIRN_F8E4M3: want = cairn_e4m3_to_f32(*p); break;
            default: want = (float)d;
            }
            assert_true(bits(got) == bits(want) || (isnan(got) && isnan(want)));
        }
    }
}

/* The same numbers in every type that holds them, from an odd address; ends of the integers, and what has no exact double. */
static void values_of_every_type(void **state)
{
    static const int32_t ends[] = {INT32_MIN, -1, INT32_MAX};
    static const int64_t longs[] = {-((int64_t)1 << 53), ((int64_t)1 << 53) + 1};
    static const uint8_t small[] = {0, 3, 255};
    static const double wide[] = {-2.5, 0x1p-1074, 1.0};
    static const float narrow[] = {-2.5f, 3.0f, 0x1p-149f};
    static const enum cairn_dtype floats[] = {CAIRN_F32, CAIRN_BF16, CAIRN_F16};
    unsigned char room[64];

    (void)state;
    for (size_t k = 0; k < sizeof floats / sizeof *floats; k++) {
        assert_true(cairn_convert(floats[k], room + 1, CAIRN_F32, narrow, 2));
        for (int64_t i = 0; i < 2; i++)
            assert_true(cairn_value(floats[k], room + 1, i) == (double)narrow[i]);
    }
    assert_true(cairn_value(CAIRN_F32, narrow, 2) == 0x1p-149);
    memcpy(room + 1, ends, sizeof ends);
    for (int64_t i = 0; i < 3; i++) {
        assert_true(cairn_value(CAIRN_I32, room + 1, i) == (double)ends[i]);
        assert_true(cairn_value(CAIRN_U8, small, i) == small[i]);
        assert_true(cairn_value(CAIRN_F64, wide, i) == wide[i]);
    }
    memcpy(room + 1, longs, sizeof longs);
    assert_true(cairn_value(CAIRN_I64, room + 1, 0) == -0x1p53 && cairn_value(CAIRN_I64, room + 1, 1) == 0x1p53);
    room[0] = 0xb8, room[1] = 0x7f;
    assert_true(cairn_value(CAIRN_F8E4M3, room, 0) == -1.0 && isnan(cairn_value(CAIRN_F8E4M3, room, 1)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_values),       cmocka_unit_test(all_values_return),
        cmocka_unit_test(narrowing_is_nearest_even), cmocka_unit_test(double_rounds_once),
        cmocka_unit_test(arrays_agree_with_single_values), cmocka_unit_test(values_of_every_type),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* philox_test.c - known answers of Random123's kat_vectors (philox4x32-10), and what our keys promise. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"

static void known_answers(void **state)
{
    static const struct {
        uint32_t c[4], k[2], want[4];
    } t[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        uint32_t out[4];

        cairn_philox4x32(t[i].c, t[i].k, out);
        assert_memory_equal(out, t[i].want, sizeof out);
    }
}

static void purposes_and_counters_differ(void **state)
{
    struct cairn_philox_key a = {.seed = 7, .purpose = CAIRN_PURPOSE_SAMPLE, .step = 3}, b = a;
    uint32_t x[4], y[4];

    (void)state;
    cairn_philox(&a, 1, 2, 3, x);
    cairn_philox(&b, 1, 2, 3, y);
    assert_memory_equal(x, y, sizeof x);
    b.purpose = CAIRN_PURPOSE_DATA;
    cairn_philox(&b, 1, 2, 3, y);
    assert_memory_not_equal(x, y, sizeof x);
    b = a;
    b.seed += (uint64_t)1 << 32;
    cairn_philox(&b, 1, 2, 3, y);
    assert_memory_not_equal(x, y, sizeof x);
    cairn_philox(&a, 1, 2, 4, y);
    assert_memory_not_equal(x, y, sizeof x);
}

static void uniform_is_open(void **state)
{
    (void)state;
    assert_true(cairn_uniform(0) > 0.0f);
    assert_true(cairn_uniform(~0u) < 1.0f);
    assert_true(cairn_uniform(0x80000000u) == 0.5f + 0x1p-24f);
    for (uint32_t x = 0; x < 0xFFF00000u; x += 0x000FFFFFu) /* exact: the same in double */
        assert_true((double)cairn_uniform(x) == ((double)(x >> 9) + 0.5) * 0x1p-23);
}

static void normals_have_moments(void **state)
{
    struct cairn_philox_key k = {.seed = 1, .purpose = CAIRN_PURPOSE_INIT};
    double sum = 0, square = 0;
    int n = 100000;

    (void)state;
    for (int i = 0; i < n / 4; i++) {
        uint32_t w[4];
        double z[4];

        cairn_philox(&k, (uint32_t)i, 0, 0, w);
        cairn_normal2(w[0], w[1], z);
        cairn_normal2(w[2], w[3], z + 2);
        for (int j = 0; j < 4; j++) {
            sum += z[j];
            square += z[j] * z[j];
        }
    }
    assert_true(fabs(sum / n) < 0.015); /* 4.7 standard errors */
    assert_true(fabs(square / n - 1) < 0.02);
}

static void permutation_is_one(void **state)
{
    enum { N = 1000 };
    struct cairn_philox_key k = {.seed = 5, .purpose = CAIRN_PURPOSE_SHUFFLE, .step = 1};
    int64_t p[N], q[N];
    char seen[N] = {0};
    int fixed = 0;

    (void)state;
    cairn_philox_permutation(&k, N, p);
    cairn_philox_permutation(&k, N, q);
    assert_memory_equal(p, q, sizeof p);
    for (int i = 0; i < N; i++) {
        assert_in_range(p[i], 0, N - 1);
        assert_false(seen[p[i]]);
        seen[p[i]] = 1;
        fixed += p[i] == i;
    }
    assert_true(fixed < 10);
    k.step = 2;
    cairn_philox_permutation(&k, N, q);
    assert_memory_not_equal(p, q, sizeof p);
    cairn_philox_permutation(&k, 1, p);
    assert_int_equal(p[0], 0);
    cairn_philox_permutation(&k, 0, p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),        cmocka_unit_test(purposes_and_counters_differ), cmocka_unit_test(uniform_is_open),
        cmocka_unit_test(normals_have_moments), cmocka_unit_test(permutation_is_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

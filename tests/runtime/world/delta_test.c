/* delta_test.c - a thousand versions one after the other, bit for bit; other bases, sizes and damaged deltas refused with nothing written;
 * size against everything and against the entropy of what changed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "world/delta.h"

#define N 65536

static uint32_t draws;
static struct cairn_error err;

#define OK(call)                                                                                                                   \
    do {                                                                                                                           \
        if ((call) != CAIRN_OK)                                                                                                    \
            fail_msg("%s", err.text);                                                                                              \
    } while (0)

static void draw(uint32_t w[4])
{
    const struct cairn_philox_key key = {11, CAIRN_PURPOSE_DATA, 5};

    cairn_philox(&key, draws++, 0, 0, w);
}

static uint16_t bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Masters, and what is published of them. */
struct weights {
    float *master;
    uint16_t *w;
};

static struct weights weights_new(void)
{
    struct weights s = {malloc(N * sizeof(float)), malloc(N * 2)};

    assert_true(s.master && s.w);
    for (int i = 0; i < N; i++) {
        uint32_t r[4];
        double z[2];

        draw(r);
        cairn_normal2(r[0], r[1], z);
        s.master[i] = (float)(0.02 * z[0]);
        s.w[i] = bf16(s.master[i]);
    }
    return s;
}

/* One update of Adam's size, lr 3e-6: each master moves by about that. */
static void update(struct weights *s)
{
    for (int i = 0; i < N; i += 2) {
        uint32_t r[4];
        double z[2];

        draw(r);
        cairn_normal2(r[0], r[1], z);
        s->master[i] += (float)(3e-6 * z[0]);
        s->master[i + 1] += (float)(3e-6 * z[1]);
        s->w[i] = bf16(s->master[i]);
        s->w[i + 1] = bf16(s->master[i + 1]);
    }
}

/* Bytes that gaps and XORs of the changed elements need at the least, by their frequencies. */
static double entropy_bytes(const uint16_t *a, const uint16_t *b, size_t *changed)
{
    static int gap[N + 1], value[65536];
    double bits = 0;
    size_t last = 0, n = 0;

    memset(gap, 0, sizeof gap);
    memset(value, 0, sizeof value);
    for (size_t i = 0; i < N; i++)
        if (a[i] != b[i]) {
            gap[i - last]++;
            value[a[i] ^ b[i]]++;
            last = i + 1;
            n++;
        }
    for (size_t i = 0; i <= N; i++)
        bits -= gap[i] ? gap[i] * log2((double)gap[i] / (double)n) : 0;
    for (size_t i = 0; i < 65536; i++)
        bits -= value[i] ? value[i] * log2((double)value[i] / (double)n) : 0;
    *changed = n;
    return bits / 8;
}

static void a_thousand_versions(void **state)
{
    struct weights s = weights_new();
    uint16_t *there = malloc(N * 2), *base = malloc(N * 2);
    double sum = 0, bound = 0, share = 0;

    (void)state;
    memcpy(there, s.w, N * 2);
    for (int v = 0; v < 1000; v++) {
        void *delta;
        size_t n, changed;

        memcpy(base, s.w, N * 2);
        update(&s);
        OK(cairn_delta_make(base, s.w, N * 2, 2, &delta, &n, &err));
        assert_int_equal(cairn_delta_whole(delta, n), 0);
        bound += entropy_bytes(base, s.w, &changed);
        sum += (double)n;
        share += (double)changed / N;
        OK(cairn_delta_apply(there, N * 2, delta, n, &err));
        assert_memory_equal(there, s.w, N * 2);
        free(delta);
    }
    print_message("# 1000 versions of %d elements: %.2f %% changed a version, %.2f %% of the bytes, %.3f of the entropy of positions and values\n", N,
                  0.1 * share, sum / (N * 2.0) / 10, sum / bound);
    assert_true(sum < 0.1 * 1000 * N * 2);
    free(there);
    free(base);
    free(s.master);
    free(s.w);
}

static void refused(void **state)
{
    struct weights s = weights_new();
    uint16_t *base = malloc(N * 2), *there = malloc(N * 2);
    struct cairn_digest from, to;
    unsigned char *delta, *bad;
    size_t n;

    (void)state;
    memcpy(base, s.w, N * 2);
    update(&s);
    OK(cairn_delta_make(base, s.w, N * 2, 2, (void **)&delta, &n, &err));
    OK(cairn_delta_ends(delta, n, &from, &to, &err));
    assert_true(cairn_digest_equal(from, cairn_digest_bytes(base, N * 2)) && cairn_digest_equal(to, cairn_digest_bytes(s.w, N * 2)));
    /* another base: one bit is enough; twice the same */
    memcpy(there, base, N * 2);
    there[N / 2] ^= 1;
    assert_int_equal(cairn_delta_apply(there, N * 2, delta, n, &err), CAIRN_EDATA);
    assert_non_null(strstr(err.text, "a delta that stands on "));
    there[N / 2] ^= 1;
    assert_memory_equal(there, base, N * 2);
    OK(cairn_delta_apply(there, N * 2, delta, n, &err));
    assert_int_equal(cairn_delta_apply(there, N * 2, delta, n, &err), CAIRN_EDATA);
    assert_memory_equal(there, s.w, N * 2);
    assert_int_equal(cairn_delta_apply(there, N * 2 - 2, delta, n, &err), CAIRN_EDATA);
    /* damage anywhere */
    bad = malloc(n);
    memcpy(there, base, N * 2);
    for (size_t i = 0; i < n; i += i < 200 ? 1 : 1 + n / 300) {
        memcpy(bad, delta, n);
        bad[i] ^= 16;
        assert_int_equal(cairn_delta_apply(there, N * 2, bad, n, &err), CAIRN_EDATA);
        assert_memory_equal(there, base, N * 2);
    }
    for (size_t i = 0; i < n; i += 1 + n / 100)
        assert_int_equal(cairn_delta_apply(there, N * 2, delta, i, &err), CAIRN_EDATA);
    assert_memory_equal(there, base, N * 2);
    free(bad);
    free(delta);
    free(base);
    free(there);
    free(s.master);
    free(s.w);
}

/* Nothing, one element at either end, everything, long stretches without a change; both widths. */
static void shapes(void **state)
{
    static unsigned char a[40000], b[40000], there[40000];

    (void)state;
    for (int width = 2; width <= 4; width += 2)
        for (int k = 0; k < 6; k++) {
            size_t n, bytes = k == 5 ? 0 : sizeof a;
            void *delta;

            for (size_t i = 0; i < sizeof a; i++) {
                uint32_t r[4];

                if (i % 4 == 0)
                    draw(r);
                a[i] = (unsigned char)(r[0] >> 8 * (i % 4));
                b[i] = k == 3 ? (unsigned char)(r[1] >> 8 * (i % 4)) : a[i];
            }
            if (k == 1)
                b[0] ^= 1;
            if (k == 2)
                b[sizeof b - 1] ^= 255;
            if (k == 4)
                b[254 * width] ^= 1, b[(254 + 255 + 1) * width] ^= 1, b[(254 + 255 + 256 + 2) * width] ^= 1;
            OK(cairn_delta_make(a, b, bytes, width, &delta, &n, &err));
            assert_int_equal(cairn_delta_whole(delta, n), k == 3 || k == 5); /* of nothing a difference is no smaller */
            assert_true(k == 3 ? n < bytes + 200 : n < 400);
            memcpy(there, a, sizeof a);
            OK(cairn_delta_apply(there, bytes, delta, n, &err));
            assert_memory_equal(there, b, bytes);
            free(delta);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_versions),
        cmocka_unit_test(refused),
        cmocka_unit_test(shapes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

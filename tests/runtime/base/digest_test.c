/* digest_test.c - published XXH128 values, hex forms, files, and the tile rule of digest.h computed by hand here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/digest.h"

static void known_values(void **state)
{
    static const struct {
        const char *text, *want; /* xxh128sum (xxHash 0.8) */
    } t[] = {
        {"", "99aa06d3014798d86001c324468d497f"},
        {"a", "a96faf705af16834e6c632b61e964e1f"},
        {"abc", "06b05ab6733a618578af5f94892f3950"},
    };
    char hex[33];

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        cairn_digest_hex(cairn_digest_bytes(t[i].text, strlen(t[i].text)), hex);
        assert_string_equal(hex, t[i].want);
    }
}

static void hex_forms(void **state)
{
    static const struct {
        const char *hex;
        int ok;
    } t[] = {
        {"00112233445566778899aabbccddeeff", 1}, {"00112233445566778899AABBCCDDEEFF", 1}, {"00112233445566778899aabbccddeef", 0},
        {"00112233445566778899aabbccddeeff0", 0}, {"g0112233445566778899aabbccddeeff", 0}, {"", 0},
    };
    struct cairn_digest d;
    char hex[33];

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        assert_int_equal(cairn_digest_parse(t[i].hex, &d), t[i].ok);
        if (t[i].ok) {
            cairn_digest_hex(d, hex);
            assert_string_equal(hex, "00112233445566778899aabbccddeeff");
            assert_true(d.hi == 0x0011223344556677ull && d.lo == 0x8899aabbccddeeffull);
        }
    }
}

static void sum_carries(void **state)
{
    struct cairn_digest a = {~(uint64_t)0, 1}, b = {1, ~(uint64_t)0}, s = cairn_digest_add(a, b);

    (void)state;
    assert_true(s.lo == 0 && s.hi == 1);
}

static void streams_and_files(void **state)
{
    char path[] = "/tmp/cairn-digest-XXXXXX", *p = malloc(3000000);
    struct cairn_hasher *h = cairn_hasher_create();
    struct cairn_digest d, f;
    struct cairn_error err;
    int64_t size;
    size_t n = 3000000;
    int fd = mkstemp(path);

    (void)state;
    for (size_t i = 0; i < n; i++)
        p[i] = (char)(i * 2654435761u >> 13);
    assert_int_equal(write(fd, p, n), n);
    close(fd);
    d = cairn_digest_bytes(p, n);
    for (size_t at = 0, step = 1; at < n; at += step, step = step * 3 + 1)
        cairn_hasher_add(h, p + at, step < n - at ? step : n - at);
    assert_true(cairn_digest_equal(d, cairn_hasher_result(h)));
    assert_int_equal(cairn_digest_file(path, &f, &size, &err), CAIRN_OK);
    assert_true(cairn_digest_equal(d, f));
    assert_int_equal(size, n);
    unlink(path);
    assert_int_equal(cairn_digest_file(path, &f, NULL, &err), CAIRN_EDATA);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(cairn_digest_file("/", &f, NULL, &err), CAIRN_EIO);
    cairn_hasher_destroy(h);
    cairn_hasher_destroy(NULL);
    free(p);
}

/* The formula of digest.h, spelt out a second time. */
static void tiles(void **state)
{
    const char *name = "model.embed_tokens.weight", *head = "bf16:3,5:4";
    const int64_t dim[2] = {3, 5};
    unsigned char data[30]; /* 3 rows of 10 bytes, tiles of 4: 4 4 2 */
    uint64_t seed = XXH3_64bits(name, strlen(name)), tile = 0;
    struct cairn_digest sum = cairn_tile_header(cairn_tile_seed(name), "bf16", 2, dim, 4), back = {0, 0};
    XXH128_hash_t h = XXH3_128bits_withSeed(head, strlen(head), seed + 0x9E3779B97F4A7C15ull * ((uint64_t)1 << 63));

    (void)state;
    assert_true(cairn_tile_seed(name) == seed);
    assert_true(sum.lo == h.low64 && sum.hi == h.high64);
    for (int i = 0; i < 30; i++)
        data[i] = (unsigned char)(7 * i);
    for (int r = 0; r < 3; r++)
        for (int c = 0; c < 10; c += 4, tile++) {
            size_t n = c + 4 > 10 ? 2 : 4;
            struct cairn_digest d = cairn_tile_digest(seed, tile, data + 10 * r + c, n);

            h = XXH3_128bits_withSeed(data + 10 * r + c, n, seed + tile * 0x9E3779B97F4A7C15ull);
            assert_true(d.lo == h.low64 && d.hi == h.high64);
            sum = cairn_digest_add(sum, d);
        }
    assert_int_equal(tile, 9);
    for (tile = 9; tile-- > 0;) /* any order */
        back = cairn_digest_add(back, cairn_tile_digest(seed, tile, data + 10 * (tile / 3) + 4 * (tile % 3), tile % 3 == 2 ? 2 : 4));
    back = cairn_digest_add(back, cairn_tile_header(seed, "bf16", 2, dim, 4));
    assert_true(cairn_digest_equal(sum, back));
    assert_false(cairn_digest_equal(cairn_tile_header(seed, "bf16", 2, dim, 4), cairn_tile_header(seed, "f16", 2, dim, 4)));
    assert_false(cairn_digest_equal(cairn_tile_header(seed, "bf16", 2, dim, 4), cairn_tile_header(seed, "bf16", 1, dim, 4)));
    assert_false(cairn_digest_equal(cairn_tile_header(seed, "bf16", 2, dim, 4), cairn_tile_header(seed, "bf16", 2, dim, 8)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_values), cmocka_unit_test(hex_forms), cmocka_unit_test(sum_carries),
        cmocka_unit_test(streams_and_files), cmocka_unit_test(tiles),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* arena_test.c - alignment, big and small requests, clean-ups in order, overflow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"

static char order[8];

static void note(void *arg)
{
    strncat(order, arg, 1);
}

static void requests(void **state)
{
    struct cairn_arena *a = cairn_arena_create();
    unsigned char *p[500];
    size_t n[500];

    (void)state;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 500; i++) {
            n[i] = (size_t)(i * i) % 20011;
            p[i] = cairn_arena_alloc(a, n[i]);
            assert_non_null(p[i]);
            assert_int_equal((uintptr_t)p[i] % 16, 0);
            memset(p[i], i & 255, n[i]);
        }
        for (int i = 0; i < 500; i++)
            for (size_t j = 0; j < n[i]; j++)
                assert_int_equal(p[i][j], i & 255);
        cairn_arena_reset(a);
    }
    p[0] = cairn_arena_calloc(a, 100, 10);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(p[0][i], 0);
    assert_null(cairn_arena_calloc(a, SIZE_MAX / 2, 3));
    assert_null(cairn_arena_alloc(a, SIZE_MAX));
    assert_null(cairn_arena_alloc(a, SIZE_MAX - 16));
    assert_string_equal(cairn_arena_strdup(a, "name"), "name");
    assert_string_equal(cairn_arena_printf(a, "%s.%d", "layer", 3), "layer.3");
    cairn_arena_destroy(a);
    cairn_arena_destroy(NULL);
}

static void cleanups(void **state)
{
    struct cairn_arena *a = cairn_arena_create();

    (void)state;
    assert_int_equal(cairn_arena_on_release(a, note, "1"), 0);
    assert_int_equal(cairn_arena_on_release(a, note, "2"), 0);
    cairn_arena_reset(a);
    assert_string_equal(order, "21");
    assert_int_equal(cairn_arena_on_release(a, note, "3"), 0);
    cairn_arena_destroy(a);
    assert_string_equal(order, "213");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(requests), cmocka_unit_test(cleanups)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

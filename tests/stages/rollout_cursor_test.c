/* rollout_cursor_test.c - no prompt lost, none twice in a pass, whatever is taken, written down and taken up again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "stages/rollout/cursor.h"

static struct cairn_cursor *make(const struct cairn_cursor_file *f, int n, uint64_t seed, int shuffle)
{
    struct cairn_cursor *c = NULL;

    assert_int_equal(cairn_cursor_create(&c, f, n, seed, shuffle, NULL), CAIRN_OK);
    return c;
}

static int64_t next(struct cairn_cursor *c)
{
    int64_t id;

    assert_int_equal(cairn_cursor_next(c, &id, NULL), CAIRN_OK);
    return id;
}

/* Writes the cursor down as text and makes another one from it. */
static struct cairn_cursor *again(struct cairn_cursor *c, const struct cairn_cursor_file *f, int n, uint64_t seed, int shuffle)
{
    struct cairn_cursor *d = make(f, n, seed, shuffle);
    struct cairn_str s = {0};
    struct cairn_error err = {0};
    json_t *v = cairn_cursor_json(c), *w = NULL;

    cairn_json_canonical(&s, v);
    assert_int_equal(cairn_json_parse(&w, s.p, s.len, "cursor", NULL), CAIRN_OK);
    if (cairn_cursor_set(d, w, "cursor", &err) != CAIRN_OK)
        fail_msg("%s", err.text);
    json_decref(v);
    json_decref(w);
    cairn_str_free(&s);
    cairn_cursor_destroy(c);
    return d;
}

static void test_passes(void **state)
{
    const struct cairn_cursor_file f = {17, 1};
    int64_t first[17];
    int moved = 0;
    struct cairn_cursor *c = make(&f, 1, 5, 1);

    (void)state;
    for (int pass = 0; pass < 20; pass++) {
        int seen[17] = {0};

        for (int i = 0; i < 17; i++) {
            int64_t id = next(c);

            assert_true(id >= 0 && id < 17);
            assert_int_equal(seen[id]++, 0);
            if (!pass)
                first[i] = id;
            else if (pass == 1)
                moved += first[i] != id;
            if (i % 5 == 2)
                c = again(c, &f, 1, 5, 1);
        }
    }
    assert_true(moved > 5); /* each pass has its own order */
    cairn_cursor_destroy(c);
}

static void test_file_order(void **state)
{
    const struct cairn_cursor_file f = {5, 1};
    struct cairn_cursor *c = make(&f, 1, 5, 0);

    (void)state;
    for (int i = 0; i < 23; i++) {
        assert_int_equal(next(c), i % 5);
        if (i == 11)
            c = again(c, &f, 1, 5, 0);
    }
    cairn_cursor_destroy(c);
}

static void test_seed(void **state)
{
    const struct cairn_cursor_file f = {40, 1};
    struct cairn_cursor *a = make(&f, 1, 5, 1), *b = make(&f, 1, 5, 1), *c = make(&f, 1, 6, 1);
    int other = 0;

    (void)state;
    for (int i = 0; i < 40; i++) {
        int64_t x = next(a);

        assert_int_equal(x, next(b));
        other += x != next(c);
    }
    assert_true(other > 30);
    cairn_cursor_destroy(a);
    cairn_cursor_destroy(b);
    cairn_cursor_destroy(c);
}

static void test_weights(void **state)
{
    const struct cairn_cursor_file f[3] = {{7, 1}, {11, 3}, {5, 0.5}};
    struct cairn_cursor *c = make(f, 3, 9, 1);
    int64_t taken[3] = {0};
    int *seen[3];

    (void)state;
    for (int i = 0; i < 3; i++)
        seen[i] = calloc((size_t)f[i].rows, sizeof **seen);
    for (int i = 0; i < 9000; i++) {
        int64_t id = next(c), file = id >> 32, row = id & 0xffffffff;

        assert_true(file >= 0 && file < 3 && row < f[file].rows);
        seen[file][row]++;
        taken[file]++;
        if (i % 1000 == 7)
            c = again(c, f, 3, 9, 1);
    }
    for (int k = 0; k < 3; k++) {
        double share = (double)taken[k] / 9000, want = f[k].weight / 4.5;

        assert_true(share > want - 0.02 && share < want + 0.02); /* 4 sigma: 0.02 */
        for (int64_t r = 0; r < f[k].rows; r++) /* rows of a file differ by one pass at most */
            assert_true(seen[k][r] == taken[k] / f[k].rows || seen[k][r] == taken[k] / f[k].rows + 1);
        free(seen[k]);
    }
    cairn_cursor_destroy(c);
}

static void test_returned(void **state)
{
    const struct cairn_cursor_file f = {10, 1};
    struct cairn_cursor *c = make(&f, 1, 2, 1);
    int64_t id[6], count[10] = {0};

    (void)state;
    for (int i = 0; i < 6; i++)
        id[i] = next(c);
    assert_int_equal(cairn_cursor_return(c, id + 3, 3, NULL), CAIRN_OK);
    c = again(c, &f, 1, 2, 1);
    assert_int_equal(next(c), id[3]);
    assert_int_equal(cairn_cursor_return(c, id + 1, 2, NULL), CAIRN_OK); /* in front of those that wait */
    c = again(c, &f, 1, 2, 1);
    assert_int_equal(next(c), id[1]);
    assert_int_equal(next(c), id[2]);
    assert_int_equal(next(c), id[4]);
    assert_int_equal(next(c), id[5]);
    for (int i = 0; i < 6; i++)
        count[id[i]]++;
    for (int i = 0; i < 4; i++)
        count[next(c)]++;
    for (int i = 0; i < 10; i++)
        assert_int_equal(count[i], 1); /* the pass goes on where it was */
    cairn_cursor_destroy(c);
}

static void test_refused(void **state)
{
    static const struct {
        const char *text;
        int ok;
        const char *why;
    } table[] = {
        {"{\"taken\": [3, 4], \"front\": []}", 1, "as written"},
        {"{\"taken\": [3], \"front\": [2]}", 1, "a second file has come"},
        {"{\"taken\": [], \"front\": []}", 1, "the beginning"},
        {"{\"taken\": [1, 2, 3], \"front\": []}", 0, "a file has gone"},
        {"{\"taken\": [-1, 2], \"front\": []}", 0, "negative"},
        {"{\"taken\": [1.5, 2], \"front\": []}", 0, "no integer"},
        {"{\"taken\": [9223372036854775807, 1], \"front\": []}", 0, "sum overflows"},
        {"{\"taken\": [1, 2], \"front\": [9]}", 0, "row that is not there"},
        {"{\"taken\": [1, 2], \"front\": [8589934592]}", 0, "file that is not there"},
        {"{\"taken\": [1, 2], \"front\": [-1]}", 0, "negative id"},
        {"{\"taken\": [1, 2]}", 0, "no front"},
        {"[]", 0, "no object"},
    };
    const struct cairn_cursor_file f[2] = {{4, 1}, {6, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct cairn_cursor *c = make(f, 2, 1, 1);
        struct cairn_error err = {0};
        json_t *v = NULL;
        enum cairn_status st;

        assert_int_equal(cairn_json_parse(&v, table[i].text, strlen(table[i].text), "x", NULL), CAIRN_OK);
        st = cairn_cursor_set(c, v, "step/000001/rollout", &err);
        if (st != (table[i].ok ? CAIRN_OK : CAIRN_EDATA))
            fail_msg("%s: %d %s", table[i].why, (int)st, err.text);
        if (!table[i].ok)
            assert_non_null(strstr(err.text, "step/000001/rollout"));
        json_decref(v);
        cairn_cursor_destroy(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passes),   cmocka_unit_test(test_file_order), cmocka_unit_test(test_seed),
        cmocka_unit_test(test_weights), cmocka_unit_test(test_returned),   cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

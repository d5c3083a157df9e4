/* pack_test.c - pack.c: the shuffle is a permutation, the cut covers all groups, micro-batches hold every row once. */
#include "tests/stages/lab.h"

#include "stages/train/pack.h"

static void test_shuffle(void **state)
{
    static const int64_t sizes[] = {1, 2, 3, 16, 127, 1000};

    (void)state;
    for (size_t k = 0; k < COUNT(sizes); k++) {
        int64_t n = sizes[k], order[1000], other[1000], moved = 0;
        uint8_t seen[1000] = {0};

        cairn_pack_shuffle(5, 3, n, order);
        for (int64_t i = 0; i < n; i++) {
            assert_true(order[i] >= 0 && order[i] < n && !seen[order[i]]);
            seen[order[i]] = 1;
            moved += order[i] != i;
        }
        assert_true(n < 16 || moved > n / 2);
        cairn_pack_shuffle(5, 3, n, other);
        assert_memory_equal(order, other, (size_t)n * sizeof *order);
        if (n < 16)
            continue;
        cairn_pack_shuffle(5, 4, n, other); /* another step, another order */
        assert_memory_not_equal(order, other, (size_t)n * sizeof *order);
        cairn_pack_shuffle(6, 3, n, other); /* another seed */
        assert_memory_not_equal(order, other, (size_t)n * sizeof *order);
    }
}

static void test_cut(void **state)
{
    (void)state;
    for (int64_t groups = 1; groups < 40; groups++)
        for (int64_t updates = 1; updates <= groups; updates++) {
            int64_t least = groups, most = 0;

            assert_int_equal(cairn_pack_cut(groups, updates, 0), 0);
            assert_int_equal(cairn_pack_cut(groups, updates, updates), groups); /* none is dropped */
            for (int64_t u = 0; u < updates; u++) {
                int64_t n = cairn_pack_cut(groups, updates, u + 1) - cairn_pack_cut(groups, updates, u);

                least = n < least ? n : least;
                most = n > most ? n : most;
            }
            assert_true(least >= 1 && most - least <= 1); /* the rest is spread */
        }
}

/* Fills micro-batches from sequences of the given lengths and prompts; tells them as "rows:members ...". */
static void fill(struct cairn_str *s, const int64_t (*shape)[2], int64_t n, int64_t limit, int64_t capacity, int max_seqs)
{
    struct cairn_sequence q[32];
    int32_t tokens[32][100];
    struct cairn_micro m;
    int64_t next = 0, seen = 0, wanted = 0, given = 0;

    cairn_str_clear(s);
    OK(cairn_micro_create(&m, capacity, max_seqs, err));
    for (int64_t i = 0; i < n; i++) {
        for (int64_t k = 0; k < shape[i][0]; k++)
            tokens[i][k] = (int32_t)(1000 * i + k);
        q[i] = (struct cairn_sequence){tokens[i], shape[i][0], shape[i][1], 70 + i};
        wanted += shape[i][0] - shape[i][1];
    }
    while (cairn_micro_fill(&m, q, n, &next, limit)) {
        int64_t row = 0;

        assert_true(m.rows <= capacity && m.nseq <= max_seqs && m.nseq >= 1);
        cairn_str_printf(s, "%s%lld:", s->len ? " " : "", (long long)m.rows);
        for (int k = 0; k < m.nseq; k++) {
            const struct cairn_sequence *x = m.member[k];

            cairn_str_printf(s, "%s%lld", k ? "+" : "", (long long)(x->index - 70));
            assert_int_equal(m.start[k], row);
            assert_int_equal(m.row_of[k], row + x->prompt - 1);
            for (int64_t i = 0; i + 1 < x->length; i++, row++) {
                assert_int_equal(m.id[row], x->tokens[i]);
                assert_int_equal(m.pos[row], i);
                assert_int_equal(m.seq[row], k);
                assert_int_equal(m.target[row], i + 1 >= x->prompt ? x->tokens[i + 1] : -1);
                given += m.target[row] >= 0;
            }
            seen++;
        }
        assert_int_equal(row, m.rows);
    }
    assert_int_equal(next, n);
    assert_int_equal(given, wanted); /* every response token is predicted exactly once */
    cairn_micro_free(&m);
}

static void test_fill(void **state)
{
    static const struct {
        int64_t shape[8][2], n, limit, capacity;
        int max_seqs;
        const char *want, *why;
    } row[] = {
        {{{5, 2}, {4, 1}, {6, 3}}, 3, 100, 100, 100, "12:0+1+2", "all fit"},
        {{{5, 2}, {4, 1}, {6, 3}}, 3, 7, 7, 7, "7:0+1 5:2", "exactly full"},
        {{{5, 2}, {4, 1}, {6, 3}}, 3, 6, 6, 6, "4:0 3:1 5:2", "one row too many"},
        {{{5, 2}, {40, 1}, {6, 3}, {2, 1}}, 4, 8, 39, 8, "4:0 39:1 6:2+3", "longer than the limit: by itself"},
        {{{5, 5}, {4, 1}, {6, 6}}, 3, 8, 8, 8, "3:1", "without a response: passed over"},
        {{{5, 5}}, 1, 8, 8, 8, "", "nothing to train on"},
        {{{1, 1}}, 1, 8, 8, 8, "", "a lone token has no row"},
        {{{2, 1}, {2, 1}, {2, 1}, {2, 1}, {2, 1}}, 5, 100, 100, 2, "2:0+1 2:2+3 1:4", "as many sequences as there is room for"},
        {{{9, 8}, {9, 1}}, 2, 8, 8, 8, "8:0 8:1", "full at once"},
    };
    struct cairn_str s = {0};

    (void)state;
    for (size_t i = 0; i < COUNT(row); i++) {
        fill(&s, row[i].shape, row[i].n, row[i].limit, row[i].capacity, row[i].max_seqs);
        if (strcmp(cairn_str_z(&s), row[i].want))
            fail_msg("%s: %s, expected %s", row[i].why, cairn_str_z(&s), row[i].want);
    }
    cairn_str_free(&s);
}

/* Random shapes: whatever the limit, each response token is predicted once, and order is kept (fill checks). */
static void test_fill_random(void **state)
{
    struct cairn_str s = {0};

    (void)state;
    for (uint32_t k = 0; k < 200; k++) {
        int64_t shape[20][2], limit = 1 + lab_draw(k, 1, 60);

        for (uint32_t i = 0; i < 20; i++) {
            shape[i][0] = 1 + lab_draw(k, 10 + i, 60);
            shape[i][1] = 1 + lab_draw(k, 40 + i, (uint32_t)shape[i][0]);
        }
        fill(&s, (const int64_t(*)[2])shape, 20, limit, limit > 60 ? limit : 60, 60);
    }
    cairn_str_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shuffle), cmocka_unit_test(test_cut), cmocka_unit_test(test_fill),
                                       cmocka_unit_test(test_fill_random)};

    return cmocka_run_group_tests_name("pack", tests, NULL, NULL);
}

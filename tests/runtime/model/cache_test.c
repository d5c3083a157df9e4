/* cache_test.c - pages, reference counts, forks and copies on write; contents checked through the tensors, on cpu and guard. */
#include "tiny.h"

static struct cairn_cache *make(struct tiny *t, const char *backend, int slots, int pages, int page, int64_t max_length)
{
    struct cairn_cache *c = NULL;

    tiny_open(t, backend, 1, TINY_SPARSE, 0);
    OK(cairn_cache_create(&c, &t->config, &t->k, &(struct cairn_cache_opts){slots, pages, page, max_length}, err));
    return c;
}

static int extend(struct cairn_cache *c, int slot, int64_t n)
{
    int fits = -1;

    OK(cairn_cache_extend(c, slot, n, &fits, err));
    return fits;
}

static void test_pages(void **state)
{
    struct tiny t;
    struct cairn_cache *c = make(&t, *state, 3, 4, 5, 20);
    int a = cairn_cache_slot(c), b = cairn_cache_slot(c);

    assert_int_equal(a, 0);
    assert_int_equal(b, 1);
    assert_int_equal(cairn_cache_free_pages(c), 4);
    assert_int_equal(cairn_cache_pages_for(c, 0), 0);
    assert_int_equal(cairn_cache_pages_for(c, 5), 1);
    assert_int_equal(cairn_cache_pages_for(c, 6), 2);
    assert_int_equal(extend(c, a, 6), 1); /* pages 0, 1 */
    assert_int_equal(extend(c, b, 1), 1); /* page 2 */
    assert_int_equal(cairn_cache_row(c, a, 0), 0);
    assert_int_equal(cairn_cache_row(c, a, 5), 5);
    assert_int_equal(cairn_cache_row(c, b, 0), 10);
    assert_int_equal(cairn_cache_row(c, b, 1), -1); /* not reserved */
    assert_int_equal(cairn_cache_row(c, 2, 0), -1); /* not in use */
    assert_int_equal(cairn_cache_length(c, a), 6);
    assert_int_equal(extend(c, a, 14), 0); /* two more pages, one is free: nothing changes */
    assert_int_equal(cairn_cache_length(c, a), 6);
    assert_int_equal(cairn_cache_free_pages(c), 1);
    assert_int_equal(extend(c, a, 9), 1); /* page 3 */
    assert_int_equal(cairn_cache_row(c, a, 10), 15);
    assert_int_equal(cairn_cache_free_pages(c), 0);
    assert_int_equal(extend(c, b, 4), 1); /* inside its page */
    assert_int_equal(extend(c, b, 1), 0);
    cairn_cache_free(c, a);
    assert_int_equal(cairn_cache_free_pages(c), 3);
    assert_int_equal(extend(c, b, 1), 1); /* the lowest free page is 0 again */
    assert_int_equal(cairn_cache_row(c, b, 5), 0);
    assert_int_equal(cairn_cache_slot(c), 0);
    assert_int_equal(cairn_cache_slot(c), 2);
    assert_int_equal(cairn_cache_slot(c), -1);
    assert_int_equal(cairn_cache_fork(c, b), -1); /* no slot left */
    cairn_cache_reset(c);
    assert_int_equal(cairn_cache_free_pages(c), 4);
    assert_int_equal(cairn_cache_slot(c), 0);
    cairn_cache_destroy(c);
    tiny_close(&t);
}

static void test_limits(void **state)
{
    static const struct {
        int slot;
        int64_t n;
        const char *why;
    } bad[] = {
        {0, 21, "beyond max_length"}, {0, -1, "negative"}, {1, 1, "slot not in use"}, {-1, 1, "no slot"}, {9, 1, "no such slot"}};
    struct tiny t;
    struct cairn_cache *c = make(&t, *state, 2, 100, 3, 20);
    struct cairn_error e;
    int fits;

    cairn_cache_slot(c);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (cairn_cache_extend(c, bad[i].slot, bad[i].n, &fits, &e) != CAIRN_EBUG)
            fail_msg("accepted: %s", bad[i].why);
    assert_int_equal(extend(c, 0, 20), 1);
    assert_int_equal(extend(c, 0, 0), 1);
    assert_int_equal(cairn_cache_extend(c, 0, 1, &fits, &e), CAIRN_EBUG);
    cairn_cache_destroy(c);
    c = NULL;
    assert_int_equal(cairn_cache_create(&c, &t.config, &t.k, &(struct cairn_cache_opts){1, 1 << 20, 1 << 20, 1}, &e), CAIRN_EBUG);
    assert_null(c);
    tiny_close(&t);
}

/* Writes `value` into all channels of one row, in every tensor of the cache. */
static void write_row(struct tiny *t, struct cairn_cache *c, int64_t row, float value)
{
    float h[64];

    for (int i = 0; i < 64; i++)
        h[i] = value;
    for (int l = 0; l < t->config.layers; l++) {
        struct cairn_tensor all[2] = {cairn_cache_latent_rows(c, l), cairn_cache_index_rows(c, l)};

        for (int j = 0; j < 2; j++)
            if (all[j].buf) {
                struct cairn_tensor one = cairn_tensor_slice(&all[j], 0, row, 1);

                OK(cairn_tensor_set(&t->k.stream, &one, h, (size_t)one.dim[1] * sizeof(float), err));
            }
    }
}

static int row_is(struct tiny *t, struct cairn_cache *c, int64_t row, float value)
{
    int same = 1;

    for (int l = 0; l < t->config.layers; l++) {
        struct cairn_tensor all[2] = {cairn_cache_latent_rows(c, l), cairn_cache_index_rows(c, l)};

        assert_int_equal(all[1].buf != NULL, t->config.indexer[l]); /* only full layers have indexer keys */
        for (int j = 0; j < 2; j++)
            if (all[j].buf) {
                struct cairn_tensor one = cairn_tensor_slice(&all[j], 0, row, 1);
                float *h = tiny_get(&t->k, &one);

                for (int64_t i = 0; i < one.dim[1]; i++)
                    same &= h[i] == value;
                free(h);
            }
    }
    return same;
}

static void test_fork(void **state)
{
    struct tiny t;
    struct cairn_cache *c = make(&t, *state, 4, 8, 4, 30);
    int a = cairn_cache_slot(c), b, d;
    struct cairn_tensor tables;
    int page;
    int32_t h[4 * 8];

    assert_int_equal(extend(c, a, 6), 1); /* pages 0, 1; page 1 holds two */
    for (int64_t p = 0; p < 6; p++)
        write_row(&t, c, cairn_cache_row(c, a, p), 100 + (float)p);
    b = cairn_cache_fork(c, a);
    d = cairn_cache_fork(c, a);
    assert_int_equal(b, 1);
    assert_int_equal(d, 2);
    assert_int_equal(cairn_cache_free_pages(c), 6); /* nothing was copied yet */
    assert_int_equal(extend(c, b, 1), 1);           /* copies page 1 to page 2 */
    assert_int_equal(cairn_cache_free_pages(c), 5);
    assert_int_equal(cairn_cache_row(c, b, 3), 3);
    assert_int_equal(cairn_cache_row(c, b, 4), 8);
    write_row(&t, c, cairn_cache_row(c, b, 6), 206);
    for (int64_t p = 0; p < 6; p++) /* the copy has what was there, and the original is untouched */
        assert_true(row_is(&t, c, cairn_cache_row(c, b, p), 100 + (float)p) &&
                    row_is(&t, c, cairn_cache_row(c, a, p), 100 + (float)p));
    assert_int_equal(extend(c, a, 1), 1); /* still shared with d: page 3 */
    assert_int_equal(cairn_cache_row(c, a, 4), 12);
    assert_int_equal(extend(c, d, 1), 1); /* the last holder writes in place */
    assert_int_equal(cairn_cache_row(c, d, 6), 6);
    assert_int_equal(cairn_cache_free_pages(c), 4);
    write_row(&t, c, cairn_cache_row(c, d, 6), 306);
    assert_true(row_is(&t, c, cairn_cache_row(c, b, 6), 206));
    cairn_cache_free(c, a);
    cairn_cache_free(c, d);
    assert_int_equal(cairn_cache_free_pages(c), 6); /* b holds 0 and 2 */
    for (int64_t p = 0; p < 6; p++)
        assert_true(row_is(&t, c, cairn_cache_row(c, b, p), 100 + (float)p));

    OK(cairn_cache_tables(c, &tables, &page, err));
    assert_int_equal(page, 4);
    assert_int_equal(tables.dim[0], 4);
    assert_int_equal(tables.dim[1], 8);
    OK(cairn_tensor_get(&t.k.stream, &tables, h, sizeof h, err));
    for (int64_t p = 0; p < 7; p++)
        assert_int_equal(h[b * 8 + p / 4] * 4 + p % 4, cairn_cache_row(c, b, p));
    assert_int_equal(h[a * 8], -1);

    /* a fork at a page boundary shares nothing that will be written */
    cairn_cache_reset(c);
    a = cairn_cache_slot(c);
    assert_int_equal(extend(c, a, 4), 1);
    b = cairn_cache_fork(c, a);
    assert_int_equal(extend(c, b, 1), 1);
    assert_int_equal(cairn_cache_free_pages(c), 6);
    assert_int_equal(cairn_cache_row(c, b, 0), 0);
    assert_int_equal(cairn_cache_row(c, b, 4), 4);

    /* a copy that does not fit changes nothing */
    cairn_cache_reset(c);
    a = cairn_cache_slot(c);
    assert_int_equal(extend(c, a, 30), 1);
    b = cairn_cache_fork(c, a);
    cairn_cache_free(c, a);
    a = cairn_cache_fork(c, b);
    assert_int_equal(cairn_cache_free_pages(c), 0);
    cairn_cache_free(c, b);
    cairn_cache_free(c, a);
    assert_int_equal(cairn_cache_free_pages(c), 8);
    a = cairn_cache_slot(c);
    assert_int_equal(extend(c, a, 29), 1);
    b = cairn_cache_fork(c, a);
    assert_int_equal(extend(c, b, 1), 0);
    assert_int_equal(cairn_cache_length(c, b), 29);
    assert_int_equal(cairn_cache_row(c, b, 28), 28);
    cairn_cache_destroy(c);
    tiny_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON("cpu", test_pages),   ON("cpu", test_limits),   ON("cpu", test_fork),
        ON("guard", test_pages), ON("guard", test_limits), ON("guard", test_fork),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

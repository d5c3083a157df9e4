/* shares_test.c - pieces and shares of a flat run against counting it out, and trainer states written in shares and read by any
 * number of ranks. */
#include "tiny.h"

#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "model/io.h"
#include "model/optimizer.h"

/* A table with a stack of experts, vectors, long and short rows, something frozen and something that stays fp32. */
static void table_make(struct cairn_param_table *t)
{
    static const struct cairn_param params[] = {{.name = "embed", .layer = -1, .ndim = 2, .dim = {700, 33}, .decay = 1},
                                                {.name = "norm", .ndim = 1, .dim = {33}},
                                                {.name = "a.experts.b", .ndim = 3, .dim = {5, 40, 33}, .decay = 1},
                                                {.name = "frozen", .ndim = 2, .dim = {90, 90}, .frozen = 1},
                                                {.name = "long", .ndim = 2, .dim = {3, 6000}, .decay = 1},
                                                {.name = "gate", .ndim = 1, .dim = {7}, .keep_f32 = 1},
                                                {.name = "last", .ndim = 2, .dim = {64, 64}, .decay = 1}};

    OK(cairn_param_table_begin(t, err));
    for (size_t i = 0; i < sizeof params / sizeof *params; i++)
        OK(cairn_param_table_add(t, &params[i], err));
    OK(cairn_param_table_finish(t, err));
}

static void pieces(void **state)
{
    struct cairn_param_table t;
    struct cairn_shares s;
    char *seen;

    (void)state;
    table_make(&t);
    OK(cairn_shares_create(&s, &t, err));
    assert_int_equal(s.total, t.trainable_bytes / 4);
    seen = calloc((size_t)s.total, 1);
    for (int64_t q = 0; q < s.pieces; q++) {
        const struct cairn_piece *c = &s.piece[q];
        const struct cairn_param *p = &t.param[c->param];
        int64_t row = cairn_param_count(p) / p->dim[0];

        assert_false(p->frozen);
        assert_true(c->rows > 0 && c->row >= 0 && c->row + c->rows <= p->dim[0]);
        assert_int_equal(c->n, c->rows * row);
        assert_int_equal(c->at, (int64_t)((p->offset - t.trainable_begin) / 4) + c->row * row);
        assert_true(c->n <= 4096 || c->rows == 1);
        assert_true(!q || c->at >= s.piece[q - 1].at + s.piece[q - 1].n);
        for (int64_t e = c->at; e < c->at + c->n; e++)
            seen[e]++;
    }
    for (int i = 0; i < t.count; i++) /* each element once */
        for (int64_t e = 0; !t.param[i].frozen && e < cairn_param_count(&t.param[i]); e++)
            assert_int_equal(seen[(int64_t)((t.param[i].offset - t.trainable_begin) / 4) + e], 1);
    for (int ranks = 1; ranks <= 40; ranks++) { /* more of them than there are pieces, too */
        assert_int_equal(cairn_shares_begin(&s, ranks, 0), 0);
        assert_int_equal(cairn_shares_begin(&s, ranks, ranks), s.total);
        for (int r = 0; r < ranks; r++) {
            int64_t a = cairn_shares_begin(&s, ranks, r), b = cairn_shares_begin(&s, ranks, r + 1);

            assert_true(a <= b && cairn_shares_first(&s, ranks, r) <= cairn_shares_first(&s, ranks, r + 1));
            assert_true(b - a <= s.total / ranks + 6000 + 32); /* even, but for a row */
        }
    }
    free(seen);
    cairn_shares_free(&s);
    cairn_param_table_free(&t);
}

/* Values by place in the flat run, where a parameter lies; padding zero. */
static float *values(const struct cairn_param_table *t, float salt)
{
    float *h = calloc(t->trainable_bytes / 4, sizeof *h);

    for (int i = 0; i < t->count; i++)
        for (int64_t e = 0; !t->param[i].frozen && e < cairn_param_count(&t->param[i]); e++)
            h[(int64_t)((t->param[i].offset - t->trainable_begin) / 4) + e] = salt * (float)(i + 1) + (float)e;
    return h;
}

static struct cairn_optimizer share_make(const struct cairn_param_table *t, struct cairn_compute *k, int ranks, int r)
{
    struct cairn_optimizer o = {.k = k, .table = t, .ranks = ranks, .rank = r};
    struct cairn_store *store[] = {&o.master, &o.m, &o.v};

    OK(cairn_shares_create(&o.shares, t, err));
    o.begin = cairn_shares_begin(&o.shares, ranks, r);
    o.end = cairn_shares_begin(&o.shares, ranks, r + 1);
    for (int i = 0; i < 3; i++)
        OK(cairn_store_create_share(store[i], t, &o.shares, ranks, r, k->dev, err));
    return o;
}

static void states(void **state)
{
    static const int counts[] = {1, 2, 3, 11};
    struct cairn_compute k;
    struct cairn_param_table t;
    struct cairn_digest first = {0};
    char dir[] = "/tmp/cairn-shares-XXXXXX", path[100];
    float *h[3];

    OK(cairn_compute_open(&k, &(struct cairn_compute_opts){.backend = *state, .threads = 1}, err));
    table_make(&t);
    assert_non_null(mkdtemp(dir));
    for (int s = 0; s < 3; s++)
        h[s] = values(&t, 0.5f + (float)s);
    for (size_t w = 0; w < sizeof counts / sizeof *counts; w++) {
        struct cairn_manifest *m = cairn_manifest_create("trainer", 1, "run");
        struct cairn_reader *reader = NULL;
        struct cairn_attempt *a = NULL;

        snprintf(path, sizeof path, "%s/%zu", dir, w);
        json_object_set_new(m->content, "updates", json_integer(5));
        OK(cairn_attempt_begin(&a, path, &(struct cairn_attempt_opts){.identity = cairn_manifest_identity(m)}, err));
        for (int r = 0; r < counts[w]; r++) { /* every other rank from a copy, as a save beside the training does */
            struct cairn_optimizer o = share_make(&t, &k, counts[w], r);
            const struct cairn_tensor *flat[] = {&o.master.flat, &o.m.flat, &o.v.flat};
            struct cairn_trainer_save_opts so = {.through = 1};
            float *copy[3];

            for (int s = 0; s < 3; s++) {
                copy[s] = calloc((size_t)(o.end - o.begin) + 1, sizeof **copy);
                if (o.end > o.begin)
                    OK(cairn_tensor_set(&k.stream, flat[s], h[s] + o.begin, cairn_tensor_bytes(flat[s]), err));
            }
            if (r % 2 == 0) {
                OK(cairn_trainer_snapshot(&o, copy, err));
                for (int s = 0; s < 3; s++)
                    if (o.end > o.begin)
                        OK(cairn_tensor_zero(&k.stream, flat[s], err));
                so.h_values = (const float *const *)copy;
            }
            OK(cairn_trainer_save(&o, a, m, &so, err));
            for (int s = 0; s < 3; s++)
                free(copy[s]);
            cairn_optimizer_free(&o);
        }
        OK(cairn_attempt_commit(a, m, err));
        cairn_attempt_end(a);
        if (!w)
            first = m->digest;
        assert_true(cairn_digest_equal(first, m->digest)); /* the state says nothing of who wrote it */
        cairn_manifest_destroy(m);
        OK(cairn_reader_open(&reader, path, NULL, err));
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (int r = 0; r < counts[c]; r++) {
                struct cairn_optimizer o = share_make(&t, &k, counts[c], r);
                const struct cairn_tensor *flat[] = {&o.master.flat, &o.m.flat, &o.v.flat};

                OK(cairn_trainer_load(&o, reader, err));
                assert_int_equal(o.updates, 5);
                for (int s = 0; s < 3 && o.end > o.begin; s++) {
                    float *got = tiny_get(&k, flat[s]);

                    assert_memory_equal(got, h[s] + o.begin, cairn_tensor_bytes(flat[s]));
                    free(got);
                }
                cairn_optimizer_free(&o);
            }
        cairn_reader_close(reader);
    }
    for (int s = 0; s < 3; s++)
        free(h[s]);
    OK(cairn_tree_remove(dir, err));
    cairn_param_table_free(&t);
    cairn_compute_close(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pieces), ON("cpu", states), ON("guard", states)};

    cairn_log_init("test", 1);
    return cmocka_run_group_tests_name("shares", tests, NULL, NULL);
}

/* flash_test.c - GLM-5.3-Flash's kind of model at the lengths where something begins: chunks of KDA, whole pools, the end of what the
 * indexer takes whole (spec/model_flash.md, 15); and what a cache slot keeps when forks, their origins and their places come and go.
 */
#include <math.h>

#include "flash.h"

/* ---- lengths ------------------------------------------------------------------------------------------------------------- */

static void fill(int32_t *id, int64_t n, uint64_t salt, int vocab)
{
    for (int64_t i = 0; i < n; i++) {
        uint64_t c = salt * 4096 + (uint64_t)i;

        id[i] = (int32_t)tiny_draw(&c, (uint32_t)vocab);
    }
}

/* Rows of slot 0 one by one (step 1) or in steps, log-probabilities into out. */
static void decode(struct tiny *t, struct cairn_pass *p, const struct tiny_batch *b, int64_t step, float *out)
{
    struct cairn_cache *cache = NULL;
    int32_t seq[512] = {0};
    int fits;

    OK(cairn_cache_create(&cache, &t->config, &t->k, &(struct cairn_cache_opts){1, 64, 8, 512}, err));
    assert_int_equal(cairn_cache_slot(cache), 0);
    for (int64_t at = 0, n; at < b->b.n; at += n) {
        struct cairn_scores scores;
        float *h;

        n = b->b.n - at < step ? b->b.n - at : step;
        OK(cairn_cache_extend(cache, 0, n, &fits, err));
        assert_true(fits);
        OK(cairn_forward_cached_scores(p, cache, &(struct cairn_batch){.n = n, .id = b->id + at, .pos = b->pos + at, .seq = seq, .nseq = 1},
                                       b->target + at, 1, &scores, err));
        h = tiny_get(&t->k, &scores.logprob);
        memcpy(out + at, h, (size_t)n * sizeof *h);
        free(h);
    }
    cairn_cache_destroy(cache);
}

/* All lengths in one pack: forward and backward; each by itself: forward, and decode in steps of 1, 7 and all. Equal bits. */
static void lengths(const char *config, const int64_t *len, int n)
{
    static int32_t id[16][512];
    const int32_t *ids[16];
    struct tiny t;
    struct tiny_batch all;
    struct cairn_pass *train, *sample;
    struct cairn_scores scores;
    struct cairn_store grads;
    float *packed, *flat;
    int64_t rows = 0, seen = 0;

    flash_open(&t, "cpu", 2, config, 0);
    for (int s = 0; s < n; s++) {
        fill(id[s], len[s], (uint64_t)s + 1, (int)t.config.vocab);
        ids[s] = id[s];
        rows += len[s];
    }
    all = tiny_batch(n, len, ids);
    OK(cairn_pass_create(&train, &t.m, &(struct cairn_pass_opts){.max_rows = rows, .max_seqs = n, .train = 1, .recompute = 1}, err));
    OK(cairn_pass_create(&sample, &t.m, &(struct cairn_pass_opts){.max_rows = 512, .max_seqs = 1}, err));
    OK(cairn_store_create(&grads, &t.table, t.k.dev, 1, err));
    OK(cairn_forward(train, &all.b, all.target, 1, &scores, err));
    packed = tiny_get(&t.k, &scores.logprob);
    OK(cairn_backward(train, &scores.logprob, NULL, &grads, NULL, err));
    flat = tiny_get(&t.k, &grads.flat);
    for (int64_t i = 0; i < cairn_tensor_count(&grads.flat); i++) {
        assert_true(isfinite(flat[i]));
        seen += flat[i] != 0;
    }
    assert_true(seen > cairn_tensor_count(&grads.flat) / 4); /* not all experts and ids are used */
    for (int s = 0; s < n; s++) {
        struct tiny_batch one = tiny_batch(1, len + s, ids + s);
        const int64_t steps[] = {1, 7, len[s]};
        float *h, got[512];

        OK(cairn_forward(train, &one.b, one.target, 1, &scores, err));
        h = tiny_get(&t.k, &scores.logprob);
        assert_memory_equal(h, packed + all.start[s], (size_t)len[s] * sizeof *h);
        for (int i = 0; i < 3; i++) {
            decode(&t, sample, &one, steps[i], got);
            for (int64_t j = 0; j < len[s]; j++)
                if (memcmp(&got[j], &h[j], sizeof *h))
                    fail_msg("length %lld in steps of %lld: row %lld has %.9g, packed %.9g", (long long)len[s], (long long)steps[i], (long long)j,
                             (double)got[j], (double)h[j]);
        }
        free(h);
        tiny_batch_free(&one);
    }
    free(packed);
    free(flat);
    cairn_store_free(&grads);
    cairn_pass_destroy(train);
    cairn_pass_destroy(sample);
    tiny_batch_free(&all);
    tiny_close(&t);
}

static void small_lengths(void **state)
{
    (void)state;
    lengths(FLASH_TINY, (const int64_t[]){1, 3, 4, 5, 11, 12, 15, 16, 17, 37, 70, 130}, 12);
}

static void wide_lengths(void **state)
{
    (void)state;
    lengths(FLASH_SMALL, (const int64_t[]){1, 63, 68}, 3);
}

/* ---- what a slot keeps ----------------------------------------------------------------------------------------------------- */

struct strand { /* a slot and what has been run in it */
    int slot;
    int64_t n;
    int32_t id[64];
};

static void go_on(struct tiny *t, struct cairn_pass *p, struct cairn_cache *cache, struct strand *s, int64_t n, uint64_t salt)
{
    int32_t pos[64], seq[64];
    struct cairn_tensor logits;
    int fits;

    fill(s->id + s->n, n, salt, (int)t->config.vocab);
    for (int64_t i = 0; i < n; i++) {
        pos[i] = (int32_t)(s->n + i);
        seq[i] = s->slot;
    }
    OK(cairn_cache_extend(cache, s->slot, n, &fits, err));
    assert_true(fits);
    OK(cairn_forward_cached(p, cache, &(struct cairn_batch){.n = n, .id = s->id + s->n, .pos = pos, .seq = seq, .nseq = 1}, NULL, 0, &logits, err));
    s->n += n;
}

/* The next token's log-probability in the strand's slot and in a packed forward of all its tokens. */
static void holds(struct tiny *t, struct cairn_pass *train, struct cairn_pass *p, struct cairn_cache *cache, struct strand *s, const char *what)
{
    int64_t last = s->n;
    int32_t target = 3, pos = (int32_t)last, seq = s->slot;
    const int32_t *ids = s->id;
    struct cairn_scores scores;
    struct tiny_batch b;
    float *want, *got;
    int64_t n;
    int fits;

    fill(s->id + last, 1, 99, (int)t->config.vocab);
    n = ++s->n;
    b = tiny_batch(1, &n, &ids);
    b.target[last] = target;
    OK(cairn_forward(train, &b.b, b.target, 1, &scores, err));
    want = tiny_get(&t->k, &scores.logprob);
    OK(cairn_cache_extend(cache, s->slot, 1, &fits, err));
    assert_true(fits);
    OK(cairn_forward_cached_scores(p, cache, &(struct cairn_batch){.n = 1, .id = s->id + last, .pos = &pos, .seq = &seq, .nseq = 1}, &target, 1,
                                   &scores, err));
    got = tiny_get(&t->k, &scores.logprob);
    if (memcmp(got, want + last, sizeof *got))
        fail_msg("%s: %.9g, packed %.9g", what, (double)got[0], (double)want[last]);
    free(want);
    free(got);
    tiny_batch_free(&b);
}

static void forks(void **state)
{
    struct tiny t;
    struct cairn_pass *train, *p;
    struct cairn_cache *cache = NULL;
    struct strand a = {0}, b, c, d, e = {0};

    flash_open(&t, *state, 1, FLASH_MINI, 0);
    OK(cairn_pass_create(&train, &t.m, &(struct cairn_pass_opts){.max_rows = 64, .max_seqs = 1, .train = 1}, err));
    OK(cairn_pass_create(&p, &t.m, &(struct cairn_pass_opts){.max_rows = 64, .max_seqs = 4}, err));
    OK(cairn_cache_create(&cache, &t.config, &t.k, &(struct cairn_cache_opts){4, 64, 4, 64}, err));
    a.slot = cairn_cache_slot(cache);
    go_on(&t, p, cache, &a, 19, 1); /* an open chunk, an open pool, a page cut */
    b = c = d = a;
    b.slot = cairn_cache_fork(cache, a.slot);
    c.slot = cairn_cache_fork(cache, b.slot); /* of a fork that has copied nothing yet */
    d.slot = cairn_cache_fork(cache, a.slot);
    assert_true(b.slot > 0 && c.slot > 0 && d.slot > 0);
    go_on(&t, p, cache, &a, 6, 2); /* the origin goes on first */
    holds(&t, train, p, cache, &a, "the origin");
    holds(&t, train, p, cache, &b, "a fork of an origin that went on");
    cairn_cache_free(cache, b.slot);
    e.slot = cairn_cache_slot(cache); /* another sequence where the fork of c was made */
    assert_int_equal(e.slot, b.slot);
    go_on(&t, p, cache, &e, 21, 3);
    holds(&t, train, p, cache, &c, "a fork of a fork that has gone");
    holds(&t, train, p, cache, &e, "a new sequence in a used place");
    holds(&t, train, p, cache, &d, "a fork");

    /* an origin that goes before its forks have copied, and whose place is given to one of them */
    cairn_cache_free(cache, a.slot);
    cairn_cache_free(cache, c.slot);
    a = d;
    a.slot = cairn_cache_fork(cache, d.slot);
    c = d;
    c.slot = cairn_cache_fork(cache, d.slot);
    cairn_cache_free(cache, d.slot);
    b = a;
    b.slot = cairn_cache_fork(cache, a.slot); /* in the place of d, which still holds what all three are to have */
    assert_int_equal(b.slot, d.slot);
    go_on(&t, p, cache, &b, 5, 4);
    holds(&t, train, p, cache, &b, "a fork in its origin's place");
    holds(&t, train, p, cache, &c, "a fork of an origin that has gone");
    holds(&t, train, p, cache, &a, "another");
    cairn_cache_destroy(cache);
    cairn_pass_destroy(train);
    cairn_pass_destroy(p);
    tiny_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_lengths),
        cmocka_unit_test(wide_lengths),
        ON("cpu", forks),
        ON("guard", forks),
        ON("cpu/bf16", forks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

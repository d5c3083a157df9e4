/* model_test.c - whole passes: packed equals alone, recomputation equals keeping, gradients are the differences, frozen parts stay
 * untouched, segments change nothing but rounding, wrong input is refused.
 *
 * Independent numbers (transformers, peft) are in fixture_test.c.
 */
#include <math.h>

#include "flash.h"

#ifndef SPARSE /* model_flash_test.c has other models */
#define SPARSE(t, backend, threads, adapter) tiny_open(t, backend, threads, TINY_SPARSE, adapter)
#define DENSE(t, backend, threads, adapter)  tiny_open(t, backend, threads, TINY_DENSE, adapter)
#define UNDIVIDED "moe_intermediate_size"
#define STEP      0.02 /* of differences, at most */
#define NEAR      0.01
#endif

#define NSEQ 4
static const int64_t LEN[NSEQ] = {17, 1, 42, 5};
#define ROWS 65

static struct tiny_batch batch(int nseq, const int *order, int vocab)
{
    static int32_t id[NSEQ][64];
    const int32_t *ids[NSEQ];
    int64_t len[NSEQ];

    for (int s = 0; s < NSEQ; s++)
        for (uint64_t i = 0; i < 64; i++) {
            uint64_t c = (uint64_t)s * 1000 + i;

            id[s][i] = (int32_t)tiny_draw(&c, (uint32_t)vocab);
        }
    for (int i = 0; i < nseq; i++) {
        ids[i] = id[order ? order[i] : i];
        len[i] = LEN[order ? order[i] : i];
    }
    return tiny_batch(nseq, len, ids);
}

struct result {
    float *logprob, *entropy, *dx; /* (n), (n), (n, D) gradient at the embedding, summed by id: see run */
    float *grads, *adapter_grads;  /* flat */
    int64_t n;
};

static void result_free(struct result *r)
{
    free(r->logprob);
    free(r->entropy);
    free(r->grads);
    free(r->adapter_grads);
}

/* A store of gradients full of NaN that counts no more. */
static void renewed(struct tiny *t, struct cairn_store *s)
{
    for (int i = 0; i < s->table->count; i++) {
        size_t n = (size_t)cairn_param_count(&s->table->param[i]);
        float *h = malloc(n * sizeof *h);

        assert_non_null(h);
        for (size_t e = 0; e < n; e++)
            h[e] = NAN;
        if (s->tensor[i].buf)
            OK(cairn_tensor_set(&t->k.stream, &s->tensor[i], h, n * sizeof *h, err));
        free(h);
    }
    cairn_store_renew(s);
}

static int renew; /* 1: the next run's gradients begin so, instead of as zeros; 2: and the backward is done twice */

/* Forward and backward of a batch with upstream gradients that depend on the row's sequence and position only. full, lora: which
 * gradients are wanted. */
static struct result run(struct tiny *t, const struct tiny_batch *b, int recompute, int full, int lora, int entropy)
{
    struct cairn_pass_opts o = {.max_rows = b->b.n + 3, .max_seqs = b->b.nseq, .train = 1, .recompute = recompute, .entropy = 1};
    struct result r = {.n = b->b.n};
    struct cairn_pass *p = NULL;
    struct cairn_scores scores;
    struct cairn_store grads = {0}, adapter_grads = {0};
    struct cairn_buffer *buf = NULL;
    struct cairn_tensor up, up_entropy;
    float *h = malloc((size_t)r.n * 2 * sizeof *h);

    assert_non_null(h);
    for (int64_t i = 0; i < r.n; i++) {
        h[i] = b->target[i] < 0 ? 0 : sinf((float)(b->id[i] * 3 + b->pos[i] * 7));
        h[r.n + i] = b->target[i] < 0 ? 0 : 0.3f * cosf((float)(b->id[i] * 5 + b->pos[i]));
    }
    OK(cairn_pass_create(&p, &t->m, &o, err));
    OK(cairn_forward(p, &b->b, b->target, 0.7f, &scores, err));
    r.logprob = tiny_get(&t->k, &scores.logprob);
    r.entropy = tiny_get(&t->k, &scores.entropy);
    if (full)
        OK(cairn_store_create(&grads, &t->table, t->k.dev, 1, err));
    if (lora)
        OK(cairn_store_create(&adapter_grads, &t->adapter.table, t->k.dev, 1, err));
    if (renew && full)
        renewed(t, &grads);
    if (renew && lora)
        renewed(t, &adapter_grads);
    OK(cairn_buffer_create(t->k.dev, (size_t)r.n * 2 * sizeof *h, &buf, err));
    OK(cairn_tensor_view(&up, buf, 0, CAIRN_F32, 1, &r.n, err));
    OK(cairn_tensor_view(&up_entropy, buf, (size_t)r.n * sizeof *h, CAIRN_F32, 1, &r.n, err));
    OK(cairn_tensor_set(&t->k.stream, &up, h, (size_t)r.n * sizeof *h, err));
    OK(cairn_tensor_set(&t->k.stream, &up_entropy, h + r.n, (size_t)r.n * sizeof *h, err));
    OK(cairn_backward(p, &up, entropy ? &up_entropy : NULL, full ? &grads : NULL, lora ? &adapter_grads : NULL, err));
    if (renew == 2) {
        OK(cairn_forward(p, &b->b, b->target, 0.7f, &scores, err));
        OK(cairn_backward(p, &up, entropy ? &up_entropy : NULL, full ? &grads : NULL, lora ? &adapter_grads : NULL, err));
    }
    if (full)
        r.grads = tiny_get(&t->k, &grads.flat);
    if (lora)
        r.adapter_grads = tiny_get(&t->k, &adapter_grads.flat);
    cairn_store_free(&grads);
    cairn_store_free(&adapter_grads);
    cairn_pass_destroy(p);
    cairn_buffer_destroy(buf);
    free(h);
    return r;
}

static int64_t flat_count(const struct cairn_param_table *t)
{
    return (int64_t)(t->trainable_bytes / sizeof(float));
}

static void equal_bits(const float *a, const float *b, int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a))
            fail_msg("%s: element %lld of %lld is %.9g and %.9g", what, (long long)i, (long long)n, (double)a[i], (double)b[i]);
}

static void close_to(const float *a, const float *b, int64_t n, double tol, const char *what)
{
    double largest = 0, worst = 0;

    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs((double)b[i]));
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
    }
    if (!(worst <= tol * largest))
        fail_msg("%s: worst difference %g of %g", what, worst, largest);
}

static void test_packed(void **state)
{
    static const int order[NSEQ] = {2, 3, 0, 1};
    struct tiny t;
    struct tiny_batch all, moved;
    struct result a, m;
    int vocab;

    SPARSE(&t, *state, 2, 1);
    vocab = (int)t.config.vocab;
    all = batch(NSEQ, NULL, vocab);
    moved = batch(NSEQ, order, vocab);
    a = run(&t, &all, 0, 1, 1, 1);
    m = run(&t, &moved, 0, 1, 1, 1);
    for (int s = 0; s < NSEQ; s++) {
        struct tiny_batch one = batch(1, (int[]){order[s]}, vocab);
        struct result r = run(&t, &one, 0, 1, 1, 1);

        equal_bits(r.logprob, a.logprob + all.start[order[s]], r.n, "packed and alone");
        equal_bits(r.logprob, m.logprob + moved.start[s], r.n, "packed in another order and alone");
        equal_bits(r.entropy, a.entropy + all.start[order[s]], r.n, "entropy packed and alone");
        result_free(&r);
        tiny_batch_free(&one);
    }
    close_to(m.grads, a.grads, flat_count(&t.table), 1e-5, "gradients in another order");
    close_to(m.adapter_grads, a.adapter_grads, flat_count(&t.adapter.table), 1e-5, "adapter gradients in another order");
    result_free(&a);
    result_free(&m);
    tiny_batch_free(&all);
    tiny_batch_free(&moved);
    tiny_close(&t);
}

/* dx, packed and alone, equal in bits: an embedding row that only one token of one sequence uses has that token's dx as gradient.
 */
static void test_dx(void **state)
{
    struct tiny t;
    int32_t id[2][20];
    const int32_t *ids[2] = {id[0], id[1]};
    const int64_t len[2] = {20, 20};
    struct tiny_batch both, one;
    struct result a, r;

    SPARSE(&t, *state, 1, 0);
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < 20; i++)
            id[s][i] = 10 + s * 20 + i;
    both = tiny_batch(2, len, ids);
    a = run(&t, &both, 0, 1, 0, 1);
    for (int s = 0; s < 2; s++) {
        size_t at = t.table.param[cairn_param_find(&t.table, "model.embed_tokens.weight")].offset - t.table.trainable_begin;

        one = tiny_batch(1, len, ids + s);
        r = run(&t, &one, 0, 1, 0, 1);
        equal_bits(r.grads + at / sizeof(float) + id[s][0] * t.config.width,
                   a.grads + at / sizeof(float) + id[s][0] * t.config.width, 20 * t.config.width, "dx packed and alone");
        result_free(&r);
        tiny_batch_free(&one);
    }
    result_free(&a);
    tiny_batch_free(&both);
    tiny_close(&t);
}

static void test_recompute(void **state)
{
    struct tiny t;
    struct tiny_batch b;
    struct result a, r;

    SPARSE(&t, *state, 2, 1);
    for (t.m.segments = 1; t.m.segments <= 2; t.m.segments++) {
        b = batch(NSEQ, NULL, (int)t.config.vocab);
        a = run(&t, &b, 0, 1, 1, 1);
        r = run(&t, &b, 1, 1, 1, 1);
        equal_bits(r.logprob, a.logprob, a.n, "recompute: log-probabilities");
        equal_bits(r.grads, a.grads, flat_count(&t.table), "recompute: gradients");
        equal_bits(r.adapter_grads, a.adapter_grads, flat_count(&t.adapter.table), "recompute: adapter gradients");
        result_free(&a);
        result_free(&r);
        tiny_batch_free(&b);
    }
    tiny_close(&t);
}

/* Gradients that are written where nothing counts are those that are added to zeros (zero has two signs); what follows is added to them. */
static void equal_values(const float *a, float *b, int64_t n, int times, const char *what)
{
    for (int64_t i = 0; times == 1 && i < n; i++)
        if (!(a[i] == b[i]))
            fail_msg("%s: element %lld of %lld is %.9g, not %.9g", what, (long long)i, (long long)n, (double)a[i], (double)b[i]);
    if (times == 1)
        return;
    for (int64_t i = 0; i < n; i++)
        b[i] *= (float)times;
    close_to(a, b, n, 1e-6, what);
}

static void test_renewed(void **state)
{
    struct tiny t;
    struct tiny_batch b;

    SPARSE(&t, *state, 2, 1);
    b = batch(NSEQ, NULL, (int)t.config.vocab);
    for (t.m.segments = 1; t.m.segments <= 2; t.m.segments++)
        for (int which = 1; which < 4; which++) {
            struct result a = run(&t, &b, 0, which & 1, which & 2, 1), r;

            for (renew = 1; renew < 3; renew++) {
                r = run(&t, &b, 0, which & 1, which & 2, 1);
                if (which & 1)
                    equal_values(r.grads, a.grads, flat_count(&t.table), renew, "renewed gradients");
                if (which & 2)
                    equal_values(r.adapter_grads, a.adapter_grads, flat_count(&t.adapter.table), renew, "renewed adapter gradients");
                result_free(&r);
            }
            renew = 0;
            result_free(&a);
        }
    tiny_batch_free(&b);
    tiny_close(&t);
}

/* Threads and repetition do not change a bit; what is frozen changes nothing of the rest. */
static void test_frozen_and_threads(void **state)
{
    struct tiny t;
    struct tiny_batch b;
    struct result a, only;

    SPARSE(&t, *state, 2, 1);
    b = batch(NSEQ, NULL, (int)t.config.vocab);
    a = run(&t, &b, 0, 1, 1, 1);
    t.k.backend->set_threads(t.k.dev, 1);
    only = run(&t, &b, 0, 0, 1, 1);
    equal_bits(only.adapter_grads, a.adapter_grads, flat_count(&t.adapter.table), "adapter gradients alone, on one thread");
    result_free(&only);
    only = run(&t, &b, 0, 1, 0, 1);
    equal_bits(only.grads, a.grads, flat_count(&t.table), "gradients alone, on one thread");
    result_free(&only);
    result_free(&a);
    tiny_batch_free(&b);
    tiny_close(&t);
}

static void test_segments(void **state)
{
    struct tiny t;
    struct tiny_batch b;
    struct result a, r;
    struct cairn_pass *p = NULL;
    struct cairn_error e;
    static const struct {
        int segments;
        const char *word;
    } bad[] = {{3, "power of two"}, {8, "num_attention_heads"}, {4, UNDIVIDED}};

    SPARSE(&t, *state, 2, 1);
    b = batch(NSEQ, NULL, (int)t.config.vocab);
    a = run(&t, &b, 0, 1, 1, 1);
    t.m.segments = 2;
    r = run(&t, &b, 0, 1, 1, 1);
    close_to(r.logprob, a.logprob, a.n, 1e-5, "segments: log-probabilities");
    close_to(r.grads, a.grads, flat_count(&t.table), 1e-4, "segments: gradients");
    close_to(r.adapter_grads, a.adapter_grads, flat_count(&t.adapter.table), 1e-4, "segments: adapter gradients");
    assert_memory_not_equal(r.adapter_grads, a.adapter_grads, (size_t)flat_count(&t.adapter.table) * sizeof(float));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        t.m.segments = bad[i].segments;
        assert_int_equal(cairn_pass_create(&p, &t.m, &(struct cairn_pass_opts){.max_rows = 4, .max_seqs = 1}, &e), CAIRN_ERECIPE);
        if (!strstr(e.text, bad[i].word))
            fail_msg("segments %d: \"%s\" does not name %s", bad[i].segments, e.text, bad[i].word);
    }
    result_free(&a);
    result_free(&r);
    tiny_batch_free(&b);
    tiny_close(&t);
}

/* ---- differences -------------------------------------------------------------------------------------------------- */

/* The scalar whose gradient `run` computes. */
static double objective(struct tiny *t, const struct tiny_batch *b, struct cairn_pass *p)
{
    struct cairn_scores scores;
    float *lp, *en;
    double sum = 0;

    OK(cairn_forward(p, &b->b, b->target, 0.7f, &scores, err));
    lp = tiny_get(&t->k, &scores.logprob);
    en = tiny_get(&t->k, &scores.entropy);
    for (int64_t i = 0; i < b->b.n; i++)
        if (b->target[i] >= 0)
            sum += (double)sinf((float)(b->id[i] * 3 + b->pos[i] * 7)) * lp[i] +
                   (double)(0.3f * cosf((float)(b->id[i] * 5 + b->pos[i]))) * en[i];
    free(lp);
    free(en);
    return sum;
}

/* Every tensor of the table: the derivative along its own gradient's sign (a direction in which nothing cancels) and along a random
 * one, by central differences, against the dot product with the gradient. */
static void differences(struct tiny *t, const struct tiny_batch *b, struct cairn_pass *p, struct cairn_store *s,
                        const struct cairn_param_table *table, const float *flat)
{
    for (int i = 0; i < table->count; i++) {
        const struct cairn_param *q = &table->param[i];
        int64_t n = cairn_tensor_count(&s->tensor[i]);
        const float *g;
        float *keep, *h, *dir;

        if (q->frozen)
            continue;
        g = flat + (q->offset - table->trainable_begin) / sizeof(float);
        keep = tiny_get(&t->k, &s->tensor[i]);
        h = malloc((size_t)n * 2 * sizeof *h);
        assert_non_null(h);
        dir = h + n;
        for (int kind = 0; kind < 2; kind++) {
            double norm = 0, dot = 0, along[2], step, got;

            for (int64_t j = 0; j < n; j++) {
                struct cairn_philox_key key = {.seed = 21, .purpose = CAIRN_PURPOSE_PROBE, .step = (uint32_t)i};
                uint32_t w[4];

                cairn_philox(&key, (uint32_t)j, 0, 0, w);
                dir[j] = kind ? w[0] & 1 ? 1.0f : -1.0f : g[j] > 0 ? 1.0f : g[j] < 0 ? -1.0f : 0.0f;
                norm += fabs((double)g[j]);
                dot += (double)g[j] * dir[j];
            }
            if (norm == 0)
                fail_msg("%s has no gradient", q->name);
            step = fmin(STEP, 0.05 / norm);
            for (int sign = 0; sign < 2; sign++) {
                for (int64_t j = 0; j < n; j++)
                    h[j] = keep[j] + (float)((sign ? -step : step) * dir[j]);
                OK(cairn_tensor_set(&t->k.stream, &s->tensor[i], h, (size_t)n * sizeof *h, err));
                along[sign] = objective(t, b, p);
            }
            got = (along[0] - along[1]) / (2 * step);
            if (!(fabs(got - dot) <= NEAR * norm))
                fail_msg("%s: difference %g, gradient %g (norm %g, step %g)", q->name, got, dot, norm, step);
        }
        OK(cairn_tensor_set(&t->k.stream, &s->tensor[i], keep, (size_t)n * sizeof *keep, err));
        free(keep);
        free(h);
    }
}

static void test_differences(void **state)
{
    struct tiny t;
    struct tiny_batch b;
    struct result r;
    struct cairn_pass *p = NULL;

    (void)state;
    DENSE(&t, "cpu", 2, 1);
    for (t.m.segments = 1; t.m.segments <= 2; t.m.segments++) {
        b = batch(NSEQ, NULL, (int)t.config.vocab);
        r = run(&t, &b, t.m.segments == 2, 1, 1, 1);
        OK(cairn_pass_create(&p, &t.m, &(struct cairn_pass_opts){.max_rows = ROWS, .max_seqs = NSEQ, .entropy = 1}, err));
        differences(&t, &b, p, &t.weights, &t.table, r.grads);
        differences(&t, &b, p, &t.adapter_weights, &t.adapter.table, r.adapter_grads);
        cairn_pass_destroy(p);
        result_free(&r);
        tiny_batch_free(&b);
    }
    tiny_close(&t);
}

/* ---- wrong input -------------------------------------------------------------------------------------------------- */

static void test_refused(void **state)
{
    struct tiny t;
    struct tiny_batch b;
    struct cairn_pass *p = NULL, *q = NULL;
    struct cairn_cache *cache = NULL;
    struct cairn_scores scores;
    struct cairn_tensor logits;
    struct cairn_error e;
    int32_t zero = 0, one = 1, big = 120;
    int fits;

    SPARSE(&t, *state, 1, 0);
    b = batch(NSEQ, NULL, (int)t.config.vocab);
    OK(cairn_pass_create(&p, &t.m, &(struct cairn_pass_opts){.max_rows = ROWS, .max_seqs = NSEQ, .train = 1}, err));
    OK(cairn_pass_create(&q, &t.m, &(struct cairn_pass_opts){.max_rows = 2, .max_seqs = 2}, err));

    assert_int_equal(cairn_backward(p, &scores.logprob, NULL, NULL, NULL, &e), CAIRN_EBUG); /* no forward yet */
    b.id[3] = 120;
    assert_int_equal(cairn_forward(p, &b.b, b.target, 1, &scores, &e), CAIRN_EDATA);
    assert_non_null(strstr(e.text, "120"));
    b.id[3] = -1;
    assert_int_equal(cairn_forward(p, &b.b, b.target, 1, &scores, &e), CAIRN_EDATA);
    b.id[3] = 0;
    b.target[4] = 120;
    assert_int_equal(cairn_forward(p, &b.b, b.target, 1, &scores, &e), CAIRN_EDATA);
    b.target[4] = 0;
    assert_int_equal(cairn_forward(p, &b.b, b.target, 0, &scores, &e), CAIRN_EBUG);
    b.pos[2] = 7;
    assert_int_equal(cairn_forward(p, &b.b, b.target, 1, &scores, &e), CAIRN_EBUG);
    b.pos[2] = 2;
    b.seq[2] = 1;
    assert_int_equal(cairn_forward(p, &b.b, b.target, 1, &scores, &e), CAIRN_EBUG);
    b.seq[2] = 0;
    assert_int_equal(cairn_forward(q, &b.b, b.target, 1, &scores, &e), CAIRN_EBUG); /* more rows than the pass has */
    OK(cairn_forward(p, &b.b, b.target, 1, &scores, err));

    OK(cairn_cache_create(&cache, &t.config, &t.k, &(struct cairn_cache_opts){2, 4, 4, 8}, err));
    assert_int_equal(cairn_cache_slot(cache), 0);
    OK(cairn_cache_extend(cache, 0, 1, &fits, err));
    struct cairn_batch c = {.n = 1, .id = &zero, .pos = &zero, .seq = &zero, .nseq = 1};
    assert_int_equal(cairn_forward_cached(p, cache, &c, &zero, 1, &logits, &e), CAIRN_EBUG); /* a training pass */
    OK(cairn_forward_cached(q, cache, &c, &zero, 1, &logits, err));
    OK(cairn_forward_cached(q, cache, &c, &zero, 0, &logits, err)); /* nothing wanted is fine */
    assert_int_equal(cairn_forward_cached(q, cache, &c, &one, 1, &logits, &e), CAIRN_EBUG);
    c.pos = &one;
    assert_int_equal(cairn_forward_cached(q, cache, &c, &zero, 1, &logits, &e), CAIRN_EBUG); /* not reserved */
    c.pos = &zero;
    c.seq = &one;
    assert_int_equal(cairn_forward_cached(q, cache, &c, &zero, 1, &logits, &e), CAIRN_EBUG);
    c.seq = &zero;
    c.id = &big;
    assert_int_equal(cairn_forward_cached(q, cache, &c, &zero, 1, &logits, &e), CAIRN_EDATA);

    struct cairn_batch none = {.start = &zero};
    OK(cairn_forward(p, &none, NULL, 1, &scores, err)); /* an empty batch does nothing */
    cairn_cache_destroy(cache);
    cairn_pass_destroy(p);
    cairn_pass_destroy(q);
    tiny_batch_free(&b);
    tiny_close(&t);
}

static void test_memory(void **state)
{
    struct tiny t;
    struct cairn_pass *p = NULL;
    size_t kept, again, sampling;

    SPARSE(&t, *state, 1, 0);
    OK(cairn_pass_create(&p, &t.m, &(struct cairn_pass_opts){.max_rows = 64, .max_seqs = 4, .train = 1}, err));
    kept = cairn_pass_bytes(p);
    cairn_pass_destroy(p);
    OK(cairn_pass_create(&p, &t.m, &(struct cairn_pass_opts){.max_rows = 64, .max_seqs = 4, .train = 1, .recompute = 1}, err));
    again = cairn_pass_bytes(p);
    cairn_pass_destroy(p);
    OK(cairn_pass_create(&p, &t.m, &(struct cairn_pass_opts){.max_rows = 64, .max_seqs = 4}, err));
    sampling = cairn_pass_bytes(p);
    cairn_pass_destroy(p);
    assert_true(sampling < again && again < kept / 2);
    tiny_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON("cpu", test_packed),      ON("guard", test_packed),   ON("cpu", test_dx),
        ON("guard", test_dx),        ON("cpu", test_recompute),  ON("guard", test_recompute),
        ON("cpu", test_segments),    ON("guard", test_segments), ON("cpu", test_frozen_and_threads),
        ON("cpu", test_differences), ON("cpu", test_refused),    ON("guard", test_refused),
        ON("cpu", test_memory),      ON("cpu", test_renewed),    ON("guard", test_renewed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

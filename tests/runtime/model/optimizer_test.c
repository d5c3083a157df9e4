/* optimizer_test.c - updates against an implementation in double that knows nothing of flat runs, masters or stores. */
#include "tiny.h"

#include <math.h>

#include "model/optimizer.h"

struct reference { /* one parameter at a time, arXiv:1711.05101 algorithm 2 with bias correction */
    double *p, *m, *v;
};

static void against_double(void **state)
{
    const struct cairn_optimizer_opts o = {.learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1,
                                           .grad_clip = 1.0, .warmup_updates = 3, .publish = CAIRN_BF16};
    struct tiny t;
    struct cairn_optimizer opt;
    struct cairn_store grads;
    struct reference *ref;
    int clipped = 0, free_runs = 0;

    tiny_open(&t, *state, 2, TINY_SPARSE, 0);
    OK(cairn_optimizer_create(&opt, &t.table, &t.k, err));
    OK(cairn_optimizer_start(&opt, &t.weights, err));
    OK(cairn_store_create(&grads, &t.table, t.k.dev, 1, err));
    ref = calloc((size_t)t.table.count, sizeof *ref);
    for (int i = 0; i < t.table.count; i++) {
        int64_t n = cairn_param_count(&t.table.param[i]);
        float *x = tiny_get(&t.k, &t.weights.tensor[i]);

        ref[i].p = calloc((size_t)n * 3, sizeof(double));
        ref[i].m = ref[i].p + n;
        ref[i].v = ref[i].m + n;
        for (int64_t j = 0; j < n; j++)
            ref[i].p[j] = x[j];
        free(x);
    }
    for (int u = 1; u <= 6; u++) {
        double sum = 0, scale, lr = o.learning_rate * (u < 3 ? u / 3.0 : 1), norm, rate;
        double size = u % 2 ? 1e-2 : 1e-4; /* clipped, and not */

        for (int i = 0; i < t.table.count; i++) {
            if (!grads.tensor[i].buf)
                continue;
            tiny_random(&t.k, &grads.tensor[i], (uint64_t)u, (uint32_t)i, size);
        }
        for (int i = 0; i < t.table.count; i++)
            if (grads.tensor[i].buf) {
                float *g = tiny_get(&t.k, &grads.tensor[i]);

                for (int64_t j = 0; j < cairn_param_count(&t.table.param[i]); j++)
                    sum += (double)g[j] * g[j];
                free(g);
            }
        scale = sqrt(sum) > 1.0 ? 1.0 / sqrt(sum) : 1;
        clipped += scale < 1;
        free_runs += scale == 1;
        OK(cairn_optimizer_step(&opt, &o, &grads, &t.weights, &norm, &rate, err));
        assert_true(fabs(norm / sqrt(sum) - 1) < 1e-12);
        assert_true(fabs(rate / lr - 1) < 1e-12);
        assert_int_equal(opt.updates, u);
        for (int i = 0; i < t.table.count; i++) {
            const struct cairn_param *p = &t.table.param[i];
            int64_t n = cairn_param_count(p);
            float *w = tiny_get(&t.k, &t.weights.tensor[i]), *master, *g;
            double worst = 0, decay = p->ndim >= 2 ? 0.1 : 0;

            if (p->frozen) {
                for (int64_t j = 0; j < n; j++)
                    assert_true(w[j] == (float)ref[i].p[j]);
                free(w);
                continue;
            }
            g = tiny_get(&t.k, &grads.tensor[i]);
            master = tiny_get(&t.k, &opt.master.tensor[i]);
            for (int64_t j = 0; j < n; j++) {
                double h = g[j] * scale, *m = &ref[i].m[j], *v = &ref[i].v[j], *q = &ref[i].p[j];

                *m = 0.9 * *m + 0.1 * h;
                *v = 0.95 * *v + 0.05 * h * h;
                *q -= lr * ((*m / (1 - pow(0.9, u))) / (sqrt(*v / (1 - pow(0.95, u))) + 1e-8) + decay * *q);
                worst = fmax(worst, fabs(master[j] - *q));
                assert_true(w[j] == nearest_bf16(master[j]));
            }
            /* six updates, each rounded at the size of p (below 1) and of the step (3e-3, a few roundings relative 1e-6) */
            if (worst > u * (6e-8 + 3e-3 * 4e-6))
                fail_msg("update %d: %s is off by %g", u, p->name, worst);
            free(g);
            free(w);
            free(master);
        }
    }
    assert_int_equal(clipped, 3);
    assert_int_equal(free_runs, 3);
    { /* padding between parameters is still zero */
        float *flat = tiny_get(&t.k, &opt.master.flat);
        char *used = calloc(t.table.trainable_bytes / 4, 1);

        for (int i = 0; i < t.table.count; i++)
            if (!t.table.param[i].frozen)
                memset(used + t.table.param[i].offset / 4, 1, (size_t)cairn_param_count(&t.table.param[i]));
        for (size_t j = 0; j < t.table.trainable_bytes / 4; j++)
            assert_true(used[j] || flat[j] == 0);
        free(used);
        free(flat);
    }
    for (int i = 0; i < t.table.count; i++)
        free(ref[i].p);
    free(ref);
    cairn_store_free(&grads);
    cairn_optimizer_free(&opt);
    tiny_close(&t);
}

static void not_finite(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const struct cairn_optimizer_opts o = {.learning_rate = 1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .publish = CAIRN_F32};
    struct tiny t;
    struct cairn_optimizer opt;
    struct cairn_store grads;
    float *before, *after;

    tiny_open(&t, *state, 1, TINY_SPARSE, 0);
    OK(cairn_optimizer_create(&opt, &t.table, &t.k, err));
    OK(cairn_optimizer_start(&opt, &t.weights, err));
    OK(cairn_store_create(&grads, &t.table, t.k.dev, 1, err));
    before = tiny_get(&t.k, &opt.master.flat);
    for (size_t i = 0; i < 3; i++) {
        int later = cairn_param_find(&t.table, "lm_head.weight"), first = cairn_param_find(&t.table, "model.layers.2.self_attn.o_proj.weight");
        struct cairn_tensor a, b;
        struct cairn_error e = {0};
        double norm = -1;

        OK(cairn_tensor_zero(&t.k.stream, &grads.flat, err));
        a = cairn_tensor_slice(&grads.tensor[later], 0, 7, 1);
        a = cairn_tensor_slice(&a, 1, 3, 1);
        b = cairn_tensor_slice(&grads.tensor[first], 0, 0, 1);
        b = cairn_tensor_slice(&b, 1, 0, 1);
        OK(cairn_tensor_set(&t.k.stream, &a, &bad[i], 4, err));
        OK(cairn_tensor_set(&t.k.stream, &b, &bad[i], 4, err));
        assert_int_equal(cairn_optimizer_step(&opt, &o, &grads, &t.weights, &norm, NULL, &e), CAIRN_ENUMERIC);
        assert_non_null(strstr(e.text, "layers.2.self_attn.o_proj")); /* the first in table order */
        assert_int_equal(opt.updates, 0);
        after = tiny_get(&t.k, &opt.master.flat);
        assert_memory_equal(before, after, t.table.trainable_bytes);
        free(after);
    }
    free(before);
    cairn_store_free(&grads);
    cairn_optimizer_free(&opt);
    tiny_close(&t);
}

static void publishing(void **state)
{
    static const enum cairn_dtype types[] = {CAIRN_F32, CAIRN_BF16, CAIRN_F16};
    struct tiny t;
    struct cairn_optimizer opt;

    tiny_open(&t, *state, 1, TINY_SPARSE, 1); /* an adapter's table works alike */
    OK(cairn_optimizer_create(&opt, &t.adapter.table, &t.k, err));
    OK(cairn_optimizer_start(&opt, &t.adapter_weights, err));
    for (size_t i = 0; i < 3; i++) {
        float *m, *w;
        int differ = 0;

        OK(cairn_optimizer_publish(&opt, types[i], &t.adapter_weights, err));
        m = tiny_get(&t.k, &opt.master.flat);
        w = tiny_get(&t.k, &t.adapter_weights.flat);
        for (size_t j = 0; j < t.adapter.table.trainable_bytes / 4; j++) {
            float want = types[i] == CAIRN_BF16 ? nearest_bf16(m[j]) : m[j];

            if (types[i] == CAIRN_F16)
                assert_true(fabsf(w[j] - m[j]) <= fabsf(m[j]) * 0x1p-11f + 0x1p-25f);
            else
                assert_true(w[j] == want);
            differ += w[j] != m[j];
        }
        assert_true((differ > 0) == (types[i] != CAIRN_F32));
        free(m);
        free(w);
    }
    {
        struct cairn_error e;

        assert_int_equal(cairn_optimizer_publish(&opt, CAIRN_F32, &t.weights, &e), CAIRN_EBUG);
    }
    cairn_optimizer_free(&opt);
    tiny_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON("cpu", against_double), ON("guard", against_double), ON("cpu", not_finite), ON("cpu", publishing), ON("guard", publishing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

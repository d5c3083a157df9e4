/* moe_test.c - one mixture-of-experts block against spec section 10 written as loops in double: groups, selection bias, shared
 * expert, LoRA inside every expert. Gradients are held by model_test.c (differences) and fixture_test.c (torch).
 */
#include <math.h>

#include "model/moe.h"
#include "tiny.h"

#define N 23

struct host { /* a parameter on the host */
    float *v;
    const int64_t *dim;
};

static struct host param(struct tiny *t, const char *leaf)
{
    char name[128];
    int p;

    snprintf(name, sizeof name, "model.layers.1.mlp.%s", leaf);
    p = cairn_param_find(&t->table, name);
    assert_true(p >= 0);
    return (struct host){tiny_get(&t->k, &t->weights.tensor[p]), t->table.param[p].dim};
}

/* y = W x + gamma B A x of expert e (0 for a plain layer) in double. */
static void product(struct tiny *t, const char *leaf, int e, const double *x, double *y)
{
    struct host w = param(t, leaf);
    char name[128];
    int stack = strncmp(leaf, "experts", 7) == 0, l;
    int64_t out = w.dim[stack], in = w.dim[stack + 1], rank;
    const struct cairn_lora *lora;

    snprintf(name, sizeof name, "model.layers.1.mlp.%s", leaf);
    for (int64_t o = 0; o < out; o++) {
        y[o] = 0;
        for (int64_t i = 0; i < in; i++)
            y[o] += (double)w.v[(e * out + o) * in + i] * x[i];
    }
    free(w.v);
    l = t->m.adapter ? t->adapter.of_param[cairn_param_find(&t->table, name)] : -1;
    if (l < 0)
        return;
    lora = &t->adapter.lora[l];
    rank = lora->rank;
    float *a = tiny_get(&t->k, &t->adapter_weights.tensor[lora->a]), *b = tiny_get(&t->k, &t->adapter_weights.tensor[lora->b]);
    for (int64_t r = 0; r < rank; r++) {
        double inner = 0;

        for (int64_t i = 0; i < in; i++)
            inner += (double)a[(e * rank + r) * in + i] * x[i];
        for (int64_t o = 0; o < out; o++)
            y[o] += (double)lora->gamma * b[(e * out + o) * rank + r] * inner;
    }
    free(a);
    free(b);
}

static void swiglu(struct tiny *t, const char *prefix, int e, const double *x, double scale, double *y)
{
    double a[128], u[128], d[128];
    char leaf[64];

    snprintf(leaf, sizeof leaf, "%sgate_proj.weight", prefix);
    product(t, leaf, e, x, a);
    snprintf(leaf, sizeof leaf, "%sup_proj.weight", prefix);
    product(t, leaf, e, x, u);
    for (int i = 0; i < 128 && i < t->config.expert_width; i++)
        a[i] = a[i] / (1 + exp(-a[i])) * u[i];
    snprintf(leaf, sizeof leaf, "%sdown_proj.weight", prefix);
    product(t, leaf, e, a, d);
    for (int64_t i = 0; i < t->config.width; i++)
        y[i] += scale * d[i];
}

/* y = x's block output, spec section 10, chosen experts by plain search. */
static void reference(struct tiny *t, const double *x, double *y)
{
    const struct cairn_model_config *c = &t->config;
    struct host w = param(t, "gate.weight"), bias = param(t, "gate.e_score_correction_bias");
    int experts = c->experts, per = experts / c->n_group, open[64] = {0}, chosen[64] = {0};
    double s[64], group[64], sum = 0;

    for (int e = 0; e < experts; e++) {
        double r = 0;

        for (int64_t i = 0; i < c->width; i++)
            r += (double)w.v[e * c->width + i] * x[i];
        s[e] = 1 / (1 + exp(-r));
    }
    for (int g = 0; g < c->n_group; g++) {
        double first = -1e300, second = -1e300;

        for (int e = g * per; e < (g + 1) * per; e++) {
            double v = s[e] + bias.v[e];

            if (v > first) {
                second = first;
                first = v;
            } else if (v > second)
                second = v;
        }
        group[g] = first + second;
    }
    for (int i = 0; i < c->topk_group; i++) {
        int best = -1;

        for (int g = 0; g < c->n_group; g++)
            if (!open[g] && (best < 0 || group[g] > group[best]))
                best = g;
        open[best] = 1;
    }
    for (int i = 0; i < c->experts_per_token; i++) {
        int best = -1;

        for (int e = 0; e < experts; e++)
            if (open[e / per] && !chosen[e] && (best < 0 || s[e] + bias.v[e] > s[best] + bias.v[best]))
                best = e;
        chosen[best] = 1;
        sum += s[best];
    }
    for (int64_t i = 0; i < c->width; i++)
        y[i] = 0;
    for (int e = 0; e < experts; e++)
        if (chosen[e])
            swiglu(t, "experts.", e, x, s[e] / (sum + 1e-20) * (double)c->routed_scale, y);
    swiglu(t, "shared_experts.", 0, x, 1, y);
    free(w.v);
    free(bias.v);
}

struct bench {
    struct tiny t;
    struct cairn_moe l;
    struct cairn_moe_save save;
    struct cairn_moe_work work;
    struct cairn_tensor x, y;
    struct cairn_buffer *buf;
    struct cairn_call call;
};

static void carve(struct bench *p, struct cairn_carve *c)
{
    p->x = cairn_carve2(c, CAIRN_F32, N, p->t.config.width);
    p->y = cairn_carve2(c, CAIRN_F32, N, p->t.config.width);
    cairn_moe_carve_save(c, &p->l, &p->t.config, CAIRN_F32, N, &p->save);
    cairn_moe_carve_work(c, &p->l, &p->t.config, CAIRN_F32, N, 0, &p->work);
}

static void open_bench(struct bench *p, const char *backend, int adapter)
{
    struct cairn_carve c = {0};

    memset(p, 0, sizeof *p);
    tiny_open(&p->t, backend, 1, TINY_SPARSE, adapter);
    OK(cairn_moe_bind(&p->l, &p->t.m, "model.layers.1.mlp.", err));
    carve(p, &c);
    OK(cairn_buffer_create(p->t.k.dev, c.high, &p->buf, err));
    c = (struct cairn_carve){.buf = p->buf};
    carve(p, &c);
    tiny_random(&p->t.k, &p->x, 3, 1, 1);
    p->call = (struct cairn_call){.k = &p->t.k, .c = &p->t.config, .act = CAIRN_F32, .segments = 1, .n = N};
}

static float *forward(struct bench *p)
{
    OK(cairn_tensor_zero(&p->t.k.stream, &p->y, err));
    OK(cairn_moe_forward(&p->call, &p->l, &p->x, &p->y, &p->save, &p->work, err));
    return tiny_get(&p->t.k, &p->y);
}

static void test_forward(void **state)
{
    for (int adapter = 0; adapter < 2; adapter++) {
        struct bench p;
        float *got, *hx;

        open_bench(&p, *state, adapter);
        got = forward(&p);
        hx = tiny_get(&p.t.k, &p.x);
        for (int n = 0; n < N; n++) {
            double x[64], y[64];

            for (int64_t i = 0; i < p.t.config.width; i++)
                x[i] = hx[n * p.t.config.width + i];
            reference(&p.t, x, y);
            for (int64_t i = 0; i < p.t.config.width; i++)
                if (!(fabs(y[i] - (double)got[n * p.t.config.width + i]) <= 1e-4 * (1 + fabs(y[i]))))
                    fail_msg("adapter %d, row %d, channel %lld: %g, expected %g", adapter, n, (long long)i,
                             (double)got[n * p.t.config.width + i], y[i]);
        }
        free(got);
        free(hx);
        cairn_buffer_destroy(p.buf);
        tiny_close(&p.t);
    }
}

/* Spec 21.14: a constant on all selection biases changes nothing; a large one on a single expert draws every token to it. */
static void test_bias(void **state)
{
    struct bench p;
    int at;
    float *before, *after, h[8];
    int32_t choice[N * 2];

    open_bench(&p, *state, 0);
    at = cairn_param_find(&p.t.table, "model.layers.1.mlp.gate.e_score_correction_bias");
    before = forward(&p);
    OK(cairn_tensor_get(&p.t.k.stream, &p.t.weights.tensor[at], h, sizeof h, err));
    for (int e = 0; e < 8; e++)
        h[e] += 0.5f;
    OK(cairn_tensor_set(&p.t.k.stream, &p.t.weights.tensor[at], h, sizeof h, err));
    after = forward(&p);
    assert_memory_equal(before, after, (size_t)N * (size_t)p.t.config.width * sizeof *before);
    h[5] += 100;
    OK(cairn_tensor_set(&p.t.k.stream, &p.t.weights.tensor[at], h, sizeof h, err));
    free(after);
    after = forward(&p);
    OK(cairn_tensor_get(&p.t.k.stream, &p.save.choice, choice, sizeof choice, err));
    for (int n = 0; n < N; n++)
        assert_true(choice[2 * n] == 5 || choice[2 * n + 1] == 5);
    free(before);
    free(after);
    cairn_buffer_destroy(p.buf);
    tiny_close(&p.t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ON("cpu", test_forward), ON("guard", test_forward), ON("cpu", test_bias)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

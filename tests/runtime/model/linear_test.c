/* linear_test.c - one linear layer with its LoRA, plain and by expert, against loops in double; gradients of all parts. */
#include <math.h>

#include "model/linear.h"
#include "tiny.h"

#define IN   13
#define OUT  9
#define RANK 3
#define E    4
#define N    11

struct bench {
    struct tiny t;
    struct cairn_buffer *buf;
    struct cairn_carve carve;
    struct cairn_tensor x, y, dy, dx, w, a, b, dw, da, db, tt, dt, offsets;
    float *hx, *hdy, *hw, *ha, *hb, *hy0, *hdx0;
    struct cairn_store grads, adapter_grads; /* faked: one tensor each */
    struct cairn_tensor grad_list[1], adapter_list[2];
    struct cairn_lora lora;
    struct cairn_linear l;
    struct cairn_call call;
    int32_t off[E + 1];
};

static float *fill(struct bench *p, struct cairn_tensor *t, uint32_t salt)
{
    tiny_random(&p->t.k, t, 4, salt, 1);
    return tiny_get(&p->t.k, t);
}

static void carve_all(struct bench *p, int experts)
{
    struct cairn_carve *c = &p->carve;

    p->x = cairn_carve2(c, CAIRN_F32, N, IN);
    p->y = cairn_carve2(c, CAIRN_F32, N, OUT);
    p->dy = cairn_carve2(c, CAIRN_F32, N, OUT);
    p->dx = cairn_carve2(c, CAIRN_F32, N, IN);
    p->w = experts ? cairn_carve3(c, CAIRN_F32, E, OUT, IN) : cairn_carve2(c, CAIRN_F32, OUT, IN);
    p->a = experts ? cairn_carve3(c, CAIRN_F32, E, RANK, IN) : cairn_carve2(c, CAIRN_F32, RANK, IN);
    p->b = experts ? cairn_carve3(c, CAIRN_F32, E, OUT, RANK) : cairn_carve2(c, CAIRN_F32, OUT, RANK);
    p->dw = experts ? cairn_carve3(c, CAIRN_F32, E, OUT, IN) : cairn_carve2(c, CAIRN_F32, OUT, IN);
    p->da = experts ? cairn_carve3(c, CAIRN_F32, E, RANK, IN) : cairn_carve2(c, CAIRN_F32, RANK, IN);
    p->db = experts ? cairn_carve3(c, CAIRN_F32, E, OUT, RANK) : cairn_carve2(c, CAIRN_F32, OUT, RANK);
    p->tt = cairn_carve2(c, CAIRN_F32, N, RANK);
    p->dt = cairn_carve1(c, CAIRN_F32, N * RANK);
    p->offsets = cairn_carve1(c, CAIRN_I32, E + 1);
}

static void check(const char *what, struct bench *p, const struct cairn_tensor *t, const double *want)
{
    float *h = tiny_get(&p->t.k, t);

    for (int64_t i = 0; i < cairn_tensor_count(t); i++)
        if (!(fabs((double)h[i] - want[i]) <= 2e-5 * (1 + fabs(want[i]))))
            fail_msg("%s: element %lld is %g, expected %g", what, (long long)i, (double)h[i], want[i]);
    free(h);
}

static void run(const char *backend, int experts, int lora, int full)
{
    static const int32_t off[E + 1] = {0, 4, 4, 10, 11}; /* one expert without rows */
    struct bench p = {0};
    double y[N * OUT], dx[N * IN], dw[E * OUT * IN] = {0}, da[E * RANK * IN] = {0}, db[E * OUT * RANK] = {0};
    const double gamma = 0.75;

    tiny_open(&p.t, backend, 1, TINY_SPARSE, 0);
    carve_all(&p, experts);
    OK(cairn_buffer_create(p.t.k.dev, p.carve.high, &p.buf, err));
    p.carve = (struct cairn_carve){.buf = p.buf};
    carve_all(&p, experts);
    p.hx = fill(&p, &p.x, 1);
    p.hdy = fill(&p, &p.dy, 2);
    p.hw = fill(&p, &p.w, 3);
    p.ha = fill(&p, &p.a, 4);
    p.hb = fill(&p, &p.b, 5);
    p.hy0 = fill(&p, &p.y, 6);
    p.hdx0 = fill(&p, &p.dx, 7);
    OK(cairn_tensor_zero(&p.t.k.stream, &p.dw, err));
    OK(cairn_tensor_zero(&p.t.k.stream, &p.da, err));
    OK(cairn_tensor_zero(&p.t.k.stream, &p.db, err));
    OK(cairn_tensor_set(&p.t.k.stream, &p.offsets, off, sizeof off, err));

    p.lora = (struct cairn_lora){.a = 0, .b = 1, .rank = RANK, .gamma = (float)gamma};
    p.l = (struct cairn_linear){.param = 0, .w = p.w, .lora = lora ? &p.lora : NULL, .a = p.a, .b = p.b};
    p.grad_list[0] = p.dw;
    p.grads.tensor = p.grad_list;
    p.adapter_list[0] = p.da;
    p.adapter_list[1] = p.db;
    p.adapter_grads.tensor = p.adapter_list;
    p.call = (struct cairn_call){.k = &p.t.k,
                                 .c = &p.t.config,
                                 .act = CAIRN_F32,
                                 .segments = 1,
                                 .n = N,
                                 .dt = p.dt,
                                 .grads = full ? &p.grads : NULL,
                                 .adapter_grads = lora ? &p.adapter_grads : NULL};
    OK(cairn_linear_forward(&p.call, &p.l, experts ? &p.offsets : NULL, &p.x, &p.y, 1, &p.tt, err));
    OK(cairn_linear_backward(&p.call, &p.l, experts ? &p.offsets : NULL, &p.x, &p.tt, &p.dy, &p.dx, 1, err));

    for (int n = 0; n < N; n++) {
        int e = 0;

        while (experts && n >= off[e + 1])
            e++;
        const float *w = p.hw + e * OUT * IN, *a = p.ha + e * RANK * IN, *b = p.hb + e * OUT * RANK;
        double t[RANK] = {0}, dt[RANK] = {0};

        for (int r = 0; r < RANK; r++) {
            for (int i = 0; i < IN; i++)
                t[r] += (double)a[r * IN + i] * p.hx[n * IN + i];
            for (int o = 0; o < OUT; o++)
                dt[r] += gamma * p.hdy[n * OUT + o] * b[o * RANK + r];
        }
        for (int o = 0; o < OUT; o++) {
            y[n * OUT + o] = p.hy0[n * OUT + o];
            for (int i = 0; i < IN; i++) {
                y[n * OUT + o] += (double)w[o * IN + i] * p.hx[n * IN + i];
                dw[(e * OUT + o) * IN + i] += full ? (double)p.hdy[n * OUT + o] * p.hx[n * IN + i] : 0;
            }
            for (int r = 0; r < RANK && lora; r++) {
                y[n * OUT + o] += gamma * b[o * RANK + r] * t[r];
                db[(e * OUT + o) * RANK + r] += gamma * p.hdy[n * OUT + o] * t[r];
            }
        }
        for (int i = 0; i < IN; i++) {
            dx[n * IN + i] = p.hdx0[n * IN + i];
            for (int o = 0; o < OUT; o++)
                dx[n * IN + i] += (double)p.hdy[n * OUT + o] * w[o * IN + i];
            for (int r = 0; r < RANK && lora; r++) {
                dx[n * IN + i] += dt[r] * a[r * IN + i];
                da[(e * RANK + r) * IN + i] += dt[r] * p.hx[n * IN + i];
            }
        }
    }
    check("y", &p, &p.y, y);
    check("dx", &p, &p.dx, dx);
    check("dW", &p, &p.dw, dw);
    check("dA", &p, &p.da, da);
    check("dB", &p, &p.db, db);
    free(p.hx);
    free(p.hdy);
    free(p.hw);
    free(p.ha);
    free(p.hb);
    free(p.hy0);
    free(p.hdx0);
    cairn_buffer_destroy(p.buf);
    tiny_close(&p.t);
}

static void test_linear(void **state)
{
    for (int experts = 0; experts < 2; experts++)
        for (int lora = 0; lora < 2; lora++)
            for (int full = 0; full < 2; full++)
                run(*state, experts, lora, full);
}

/* A layer that is not in the table is our bug, and says which. */
static void test_bind(void **state)
{
    struct tiny t;
    struct cairn_linear l;
    struct cairn_error e;

    tiny_open(&t, *state, 1, TINY_SPARSE, 1);
    OK(cairn_linear_bind(&l, &t.m, "model.layers.1.mlp.experts.gate_proj.weight", CAIRN_LINEAR_OUT, err));
    assert_non_null(l.lora);
    assert_int_equal(l.a.ndim, 3);
    OK(cairn_linear_bind(&l, &t.m, "model.layers.1.mlp.gate.weight", CAIRN_LINEAR_WHOLE, err));
    assert_null(l.lora);
    assert_int_equal(cairn_linear_bind(&l, &t.m, "model.layers.9.mlp.gate.weight", CAIRN_LINEAR_WHOLE, &e), CAIRN_EBUG);
    assert_non_null(strstr(e.text, "model.layers.9"));
    tiny_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ON("cpu", test_linear), ON("guard", test_linear), ON("cpu", test_bind)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* mla_test.c - latent attention against its expanded form in double (spec section 5.1), with a LoRA on every projection merged into
 * the weights there; and what the index sets must and must not change (spec section 21, 7, 11, 12).
 */
#include <math.h>

#include "model/mla.h"
#include "tiny.h"

#define N   29 /* one sequence */
#define TWO 12 /* and another, packed behind it */

static double *merged(struct tiny *t, const char *leaf, int64_t *out, int64_t *in)
{
    char name[128];
    int p, l;
    float *w;
    double *d;

    snprintf(name, sizeof name, "model.layers.0.self_attn.%s.weight", leaf);
    p = cairn_param_find(&t->table, name);
    assert_true(p >= 0);
    w = tiny_get(&t->k, &t->weights.tensor[p]);
    *out = t->table.param[p].dim[0];
    *in = t->table.param[p].ndim > 1 ? t->table.param[p].dim[1] : 1;
    d = malloc((size_t)(*out * *in) * sizeof *d);
    assert_non_null(d);
    for (int64_t i = 0; i < *out * *in; i++)
        d[i] = w[i];
    l = t->m.adapter ? t->adapter.of_param[p] : -1;
    if (l >= 0) {
        const struct cairn_lora *lora = &t->adapter.lora[l];
        float *a = tiny_get(&t->k, &t->adapter_weights.tensor[lora->a]), *b = tiny_get(&t->k, &t->adapter_weights.tensor[lora->b]);

        for (int64_t o = 0; o < *out; o++)
            for (int64_t i = 0; i < *in; i++)
                for (int r = 0; r < lora->rank; r++)
                    d[o * *in + i] += (double)lora->gamma * b[o * lora->rank + r] * a[r * *in + i];
        free(a);
        free(b);
    }
    free(w);
    return d;
}

/* y (n, out) = x (n, in) W^T */
static double *times(struct tiny *t, const char *leaf, const double *x, int64_t n)
{
    int64_t out, in;
    double *w = merged(t, leaf, &out, &in), *y = calloc((size_t)(n * out), sizeof *y);

    assert_non_null(y);
    for (int64_t r = 0; r < n; r++)
        for (int64_t o = 0; o < out; o++)
            for (int64_t i = 0; i < in; i++)
                y[r * out + o] += w[o * in + i] * x[r * in + i];
    free(w);
    return y;
}

static void norm(struct tiny *t, const char *leaf, double *x, int64_t stride, int64_t n)
{
    int64_t d, one;
    double *g = merged(t, leaf, &d, &one);

    for (int64_t r = 0; r < n; r++) {
        double sum = 0;

        for (int64_t i = 0; i < d; i++)
            sum += x[r * stride + i] * x[r * stride + i];
        for (int64_t i = 0; i < d; i++)
            x[r * stride + i] *= g[i] / sqrt(sum / (double)d + (double)t->config.latent_norm_eps);
    }
    free(g);
}

static void rope(struct tiny *t, double *x, int64_t pos)
{
    int64_t width = t->config.rope;

    for (int64_t j = 0; j < width / 2; j++) {
        double angle = (double)pos * pow((double)t->config.rope_theta, -2.0 * (double)j / (double)width);
        double a = x[2 * j], b = x[2 * j + 1];

        x[2 * j] = a * cos(angle) - b * sin(angle);
        x[2 * j + 1] = a * sin(angle) + b * cos(angle);
    }
}

/* Expanded dense causal attention of n rows of one sequence: caller frees. */
static double *expanded(struct tiny *t, const double *x, int64_t n)
{
    const struct cairn_model_config *c = &t->config;
    int64_t heads = c->heads, nope = c->nope, r = c->rope, v = c->v_dim, latent = c->kv_rank, wide = latent + r, per_q = nope + r;
    double *q_lat = times(t, "q_a_proj", x, n), *q, *kv = times(t, "kv_a_proj_with_mqa", x, n), *lat, *kvb, *o, *y;

    norm(t, "q_a_layernorm", q_lat, c->q_rank, n);
    q = times(t, "q_b_proj", q_lat, n);
    norm(t, "kv_a_layernorm", kv, wide, n);
    lat = malloc((size_t)(n * latent) * sizeof *lat);
    o = calloc((size_t)(n * heads * v), sizeof *o);
    assert_true(lat && o);
    for (int64_t i = 0; i < n; i++) {
        memcpy(lat + i * latent, kv + i * wide, (size_t)latent * sizeof *lat);
        rope(t, kv + i * wide + latent, i);
        for (int64_t h = 0; h < heads; h++)
            rope(t, q + (i * heads + h) * per_q + nope, i);
    }
    kvb = times(t, "kv_b_proj", lat, n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t h = 0; h < heads; h++) {
            const double *qi = q + (i * heads + h) * per_q;
            double l[64], sum = 0, most = -1e300;

            for (int64_t s = 0; s <= i; s++) {
                const double *k = kvb + (s * heads + h) * (nope + v);

                l[s] = 0;
                for (int64_t j = 0; j < nope; j++)
                    l[s] += qi[j] * k[j];
                for (int64_t j = 0; j < r; j++)
                    l[s] += qi[nope + j] * kv[s * wide + latent + j];
                l[s] /= sqrt((double)per_q);
                most = fmax(most, l[s]);
            }
            for (int64_t s = 0; s <= i; s++)
                sum += l[s] = exp(l[s] - most);
            for (int64_t s = 0; s <= i; s++)
                for (int64_t j = 0; j < v; j++)
                    o[(i * heads + h) * v + j] += l[s] / sum * kvb[(s * heads + h) * (nope + v) + nope + j];
        }
    y = times(t, "o_proj", o, n);
    free(q_lat);
    free(q);
    free(kv);
    free(lat);
    free(kvb);
    free(o);
    return y;
}

struct bench {
    struct cairn_mla l;
    struct cairn_mla_save save;
    struct cairn_mla_work work;
    struct cairn_tensor x, y, idx, pos, seq, start;
};

static void carve(struct bench *p, struct tiny *t, struct cairn_carve *c, int64_t n)
{
    p->x = cairn_carve2(c, CAIRN_F32, n, t->config.width);
    p->y = cairn_carve2(c, CAIRN_F32, n, t->config.width);
    p->idx = cairn_carve2(c, CAIRN_I32, n, t->config.index_topk);
    p->pos = cairn_carve1(c, CAIRN_I32, n);
    p->seq = cairn_carve1(c, CAIRN_I32, n);
    p->start = cairn_carve1(c, CAIRN_I32, 2);
    cairn_mla_carve_save(c, &p->l, &t->config, CAIRN_F32, n, &p->save);
    cairn_mla_carve_work(c, &p->l, &t->config, CAIRN_F32, n, 1, 0, &p->work);
}

static void test_expanded(void **state)
{
    for (int adapter = 0; adapter < 2; adapter++) {
        struct tiny t;
        struct bench p;
        struct cairn_carve c = {0};
        struct cairn_buffer *buf;
        struct cairn_call call;
        int32_t pos[N + TWO], seq[N + TWO], start[2] = {0, N};
        double *x, *y;
        float *hx, *got;
        int64_t width;

        tiny_open(&t, *state, 2, TINY_DENSE, adapter);
        width = t.config.width;
        OK(cairn_mla_bind(&p.l, &t.m, 0, "model.layers.0.self_attn.", err));
        carve(&p, &t, &c, N + TWO);
        OK(cairn_buffer_create(t.k.dev, c.high, &buf, err));
        c = (struct cairn_carve){.buf = buf};
        carve(&p, &t, &c, N + TWO);
        for (int i = 0; i < N + TWO; i++) {
            seq[i] = i >= N;
            pos[i] = i - start[seq[i]];
        }
        OK(cairn_tensor_set(&t.k.stream, &p.pos, pos, sizeof pos, err));
        OK(cairn_tensor_set(&t.k.stream, &p.seq, seq, sizeof seq, err));
        OK(cairn_tensor_set(&t.k.stream, &p.start, start, sizeof start, err));
        tiny_random(&t.k, &p.x, 6, 2, 1);
        OK(cairn_tensor_zero(&t.k.stream, &p.y, err));
        call = (struct cairn_call){.k = &t.k,
                                   .c = &t.config,
                                   .act = CAIRN_F32,
                                   .segments = 1,
                                   .n = N + TWO,
                                   .keys = {.pos = p.pos, .seq = p.seq, .start = p.start}};
        OK(cairn_mla_forward(&call, &p.l, &p.x, &p.y, &p.idx, &p.save, &p.work, err));
        hx = tiny_get(&t.k, &p.x);
        got = tiny_get(&t.k, &p.y);
        x = malloc((size_t)((N + TWO) * width) * sizeof *x);
        assert_non_null(x);
        for (int64_t i = 0; i < (N + TWO) * width; i++)
            x[i] = hx[i];
        for (int s = 0; s < 2; s++) {
            int64_t n = s ? TWO : N;

            y = expanded(&t, x + start[s] * width, n);
            for (int64_t i = 0; i < n * width; i++)
                if (!(fabs(y[i] - (double)got[start[s] * width + i]) <= 2e-5 * (1 + fabs(y[i]))))
                    fail_msg("adapter %d, sequence %d, element %lld: %g, expected %g", adapter, s, (long long)i,
                             (double)got[start[s] * width + i], y[i]);
            free(y);
        }
        free(hx);
        free(got);
        free(x);
        cairn_buffer_destroy(buf);
        tiny_close(&t);
    }
}

/* ---- index sets --------------------------------------------------------------------------------------------------- */

static float *logits(struct tiny *t, int64_t n)
{
    struct cairn_pass *p = NULL;
    struct cairn_tensor l;
    int32_t id[64];
    const int32_t *ids[1] = {id};
    struct tiny_batch b;
    float *h;

    for (int i = 0; i < 64; i++)
        id[i] = i * 37 % 120;
    b = tiny_batch(1, &n, ids);
    OK(cairn_pass_create(&p, &t->m, &(struct cairn_pass_opts){.max_rows = n, .max_seqs = 1}, err));
    OK(cairn_forward_logits(p, &b.b, &l, err));
    h = tiny_get(&t->k, &l);
    cairn_pass_destroy(p);
    tiny_batch_free(&b);
    return h;
}

static void disturb(struct tiny *t, const char *name)
{
    int p = cairn_param_find(&t->table, name);

    assert_true(p >= 0);
    tiny_random(&t->k, &t->weights.tensor[p], 99, (uint32_t)p, 1);
}

/* Rows below index_topk attend to everything: the indexer cannot change them. Later rows it does change. A set of all positions is
 * dense attention: a wider index_topk changes no bit. */
static void test_index(void **state)
{
    enum { TOPK = 7, LONG = 40 };
    struct tiny t;
    float *before, *after;
    size_t row;

    tiny_open(&t, *state, 1, TINY_SPARSE, 0);
    row = (size_t)t.config.vocab * sizeof(float);
    before = logits(&t, LONG);
    disturb(&t, "model.layers.3.self_attn.indexer.wk.weight");
    after = logits(&t, LONG);
    assert_memory_equal(before, after, TOPK * row);
    assert_memory_not_equal(before + TOPK * t.config.vocab, after + TOPK * t.config.vocab, (LONG - TOPK) * row);
    free(before);
    free(after);

    t.config.index_topk = LONG;
    before = logits(&t, LONG);
    disturb(&t, "model.layers.0.self_attn.indexer.weights_proj.weight");
    t.config.index_topk = 64;
    after = logits(&t, LONG);
    assert_memory_equal(before, after, LONG * row);
    free(before);
    free(after);
    tiny_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON("cpu", test_expanded),
        ON("guard", test_expanded),
        ON("cpu", test_index),
        ON("guard", test_index),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* head_test.c - logprob, logprob_bwd and sample: against references and fp64 formulas, equal bits of sampler and trainer for any
 * rows, truncation against a naive rule, the distribution of draws.
 */
#include "lab.h"

static const struct {
    int n, d, v, pad, segments;
    enum cairn_dtype w;
    const char *why;
} shapes[] = {
    {1, 1, 1, 0, 1, CAIRN_F32, "a vocabulary of one"},
    {5, 16, 33, 2, 1, CAIRN_F32, "odd"},
    {40, 24, 2331, 0, 1, CAIRN_F32, "a real vocabulary"},
    {300, 16, 129, 1, 1, CAIRN_BF16, "several chunks, bf16 weights"},
    {19, 64, 1024, 0, 4, CAIRN_F32, "segments"},
    {9, 8, 96, 3, 8, CAIRN_F32, "short segments"},
    {0, 8, 50, 0, 1, CAIRN_F32, "no rows"},
    {600, 8, 40, 0, 2, CAIRN_F32, "many short rows"},
    {70, 64, 1288, 0, 1, LAB_ACT, "aligned rows and columns"},
    {40, 24, 2331, 3, 1, LAB_ACT, "weights as wide as activations"},
    {300, 16, 16384, 0, 2, LAB_ACT, "several chunks of ids"},
    {2100, 8, 64, 0, 1, LAB_ACT, "several chunks of rows"},
};
#define SHAPES (sizeof shapes / sizeof *shapes)

/* Rows of a shape; in a small run few where the ids are many, and where they are no more than several chunks of rows. */
static int rows_of(size_t i)
{
    if (!lab_small() || shapes[i].n > 2000 || shapes[i].n < 20)
        return shapes[i].n;
    return shapes[i].v > 10000 ? 3 : shapes[i].v > (lab_least() ? 1000 : 2000) ? (lab_least() ? 5 : 10) : 33;
}

struct head {
    struct thing *z, *w, *target, *logprob, *lse, *entropy, *argmax;
    struct cairn_logprob a;
};

static struct head make(struct lab *l, size_t i, float inv_temperature)
{
    struct head h;
    int n = rows_of(i), d = shapes[i].d, v = shapes[i].v;

    h.z = thing_normal(l, thing_new(l, LAB_ACT, shapes[i].pad, 2, n, d), 1);
    h.w = thing_normal(l, thing_new(l, shapes[i].w, shapes[i].pad, 2, v, d), 1.5f / sqrtf((float)d));
    h.target = thing_new(l, CAIRN_I32, 0, 1, n);
    for (int r = 0; r < n; r++)
        *thing_i(h.target, r) = lab_int(l, 0, 4) == 0 ? -1 : lab_int(l, 0, v - 1);
    thing_up(l, h.target);
    h.logprob = thing_new(l, CAIRN_F32, 0, 1, n);
    h.lse = thing_new(l, CAIRN_F32, 0, 1, n);
    h.entropy = thing_new(l, CAIRN_F32, 0, 1, n);
    h.argmax = thing_new(l, CAIRN_I32, 0, 1, n);
    h.a = (struct cairn_logprob){h.z->t,       h.w->t,      h.target->t,     h.logprob->t,      h.lse->t,
                                 h.entropy->t, h.argmax->t, inv_temperature, shapes[i].segments};
    return h;
}

/* A logit of d terms is off by at most (d + 3) 2^-24 * sum |z||w| (below 6 here), the sum of exponentials by a few units more. */
static double bound(size_t i, float inv_temperature)
{
    return ((shapes[i].d + 3) * 6.0 * inv_temperature + 40) * 0x1p-24;
}

static void logprob_is_right(struct lab *l)
{
    for (size_t i = 0; i < SHAPES; i++)
        for (int k = 0; k < 2; k++) {
            struct head h = make(l, i, k ? 1.7f : 1.0f);
            struct thing *out[4], *want[4];

            LAB_OK(l, l->fast->logprob(&l->c.stream, &h.a, &l->err));
            out[0] = h.logprob, out[1] = h.lse, out[2] = h.entropy, out[3] = h.argmax;
            for (int j = 0; j < 4; j++) {
                thing_down(l, out[j]);
                want[j] = thing_like(l, out[j], 1);
            }
            h.a.logprob = want[0]->t, h.a.lse = want[1]->t, h.a.entropy = want[2]->t, h.a.argmax = want[3]->t;
            LAB_OK(l, l->ref->logprob(&l->c.stream, &h.a, &l->err));
            for (int j = 0; j < 4; j++) {
                thing_down(l, want[j]);
                if (j < 3)
                    lab_near(l, shapes[i].why, out[j], want[j], 0x1p-22, 2 * bound(i, h.a.inv_temperature));
                else
                    lab_equal_bits(l, "argmax", out[j], want[j]);
            }
            lab_clear(l);
        }
}

/* The policy that samples and the one that trains: logits by matmul for any cut of rows, sample, then logprob of the drawn tokens.
 */
static void sampler_and_trainer_agree(struct lab *l)
{
    for (size_t i = 0; i < SHAPES; i++)
        for (int reference = 0; reference < 2; reference++) {
            const struct cairn_ops *ops = reference ? l->ref : l->fast;
            struct head h = make(l, i, i % 2 ? 1.0f : 1.25f);
            int n = rows_of(i), v = shapes[i].v, cut = reference ? n + 1 : 1 + (int)i * 5;
            struct thing *logits = thing_new(l, CAIRN_F32, 1, 2, n, v), *drawn = thing_new(l, CAIRN_F32, 0, 1, n),
                         *ids = thing_new(l, CAIRN_I32, 0, 1, n);
            struct thing *position = thing_new(l, CAIRN_I32, 0, 1, n);
            struct cairn_sample s = {
                .seed = 3, .step = 4, .inv_temperature = h.a.inv_temperature, .top_p = 1, .segments = shapes[i].segments};

            if (reference && shapes[i].d * v > 30000)
                continue;
            for (int r = 0; r < n; r++)
                *thing_i(position, r) = r;
            thing_up(l, position);
            for (int r = 0; r < n; r += cut) {
                int m = n - r < cut ? n - r : cut;
                struct cairn_matmul p = {
                    CAIRN_NT, cairn_tensor_slice(&h.a.z, 0, r, m), h.a.w, cairn_tensor_slice(&logits->t, 0, r, m), 1, 0, 1};

                LAB_OK(l, ops->matmul(&l->c.stream, &p, &l->err));
                s.logits = p.y;
                s.prompt = s.sample = s.position = cairn_tensor_slice(&position->t, 0, r, m);
                s.token = cairn_tensor_slice(&ids->t, 0, r, m);
                s.logprob = cairn_tensor_slice(&drawn->t, 0, r, m);
                LAB_OK(l, ops->sample(&l->c.stream, &s, &l->err));
            }
            thing_down(l, ids);
            thing_down(l, drawn);
            h.a.target = ids->t;
            LAB_OK(l, ops->logprob(&l->c.stream, &h.a, &l->err));
            thing_down(l, h.logprob);
            lab_equal_bits(l, shapes[i].why, h.logprob, drawn);
            /* and in other company: every second row unwanted, entropy not asked for, another number of threads */
            for (int r = 0; r < n; r += 2)
                *thing_i(ids, r) = -1;
            thing_up(l, ids);
            h.a.entropy.buf = h.a.argmax.buf = NULL;
            l->c.backend->set_threads(l->c.dev, 3);
            LAB_OK(l, ops->logprob(&l->c.stream, &h.a, &l->err));
            l->c.backend->set_threads(l->c.dev, 0);
            thing_down(l, h.logprob);
            for (int r = 0; r < n; r++) {
                float zero = 0, *want = r % 2 ? thing_f(drawn, r) : &zero;

                assert_memory_equal(thing_f(h.logprob, r), want, sizeof(float));
            }
            lab_clear(l);
        }
}

static void backward_is_right(struct lab *l)
{
    for (size_t i = 0; i < SHAPES; i++)
        for (int k = 0; k < 2; k++) {
            struct head h = make(l, i, k ? 0.8f : 1.0f);
            int n = rows_of(i), d = shapes[i].d, v = shapes[i].v;
            struct thing *dlp = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, n), 1),
                         *dh = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, n), 0.5f);
            struct thing *dz = thing_new(l, LAB_ACT, 2, 2, n, d), *dw = thing_normal(l, thing_new(l, CAIRN_F32, 1, 2, v, d), 1);
            struct thing *dz2 = thing_like(l, dz, 1), *dw2 = thing_like(l, dw, 0), *dw3 = thing_like(l, dw, 0);
            struct cairn_logprob_bwd b = {h.z->t, h.w->t, h.target->t,         h.lse->t,          h.entropy->t, dlp->t, dh->t,
                                          dz->t,  dw->t,  h.a.inv_temperature, shapes[i].segments};

            if (lab_least() && (!k) == (i % 2 == 0)) { /* every second */
                lab_clear(l);
                continue;
            }
            if (!k)
                b.dentropy.buf = b.entropy.buf = NULL;
            LAB_OK(l, l->fast->logprob(&l->c.stream, &h.a, &l->err));
            LAB_OK(l, l->fast->logprob_bwd(&l->c.stream, &b, &l->err));
            thing_down(l, dz);
            thing_down(l, dw);
            b.dz = dz2->t, b.dw = dw2->t;
            LAB_OK(l, l->ref->logprob_bwd(&l->c.stream, &b, &l->err));
            thing_down(l, dz2);
            thing_down(l, dw2);
            /* dl is an activation: 2^-9 of it is lost, and sum |dl| of a row is at most 14 here, |w| below 6 / sqrt(d), |z| below
             * 5; of a column it is below 40 and what n / v rows that want it bring */
            lab_near(l, shapes[i].why, dz, dz2, 0x1p-18, 40 * bound(i, 1) + (lab_rounds(l) ? 0x1p-9 * 14 * 6 / sqrt(d) : 0));
            lab_near(l, shapes[i].why, dw, dw2, 0x1p-18,
                     (40 + n) * bound(i, 1) + (lab_rounds(l) ? 0x1p-9 * 40 * (1 + 4.0 * n / v) : 0));
            /* dz row by row, dw with other threads */
            memset(dz2->h, 0xff, dz2->bytes);
            thing_up(l, dz2);
            b.dw.buf = NULL;
            for (int r = 0, step = lab_least() ? n / 2 + 1 : lab_small() && n > 2000 ? 293 : 7; r < n; r += step) {
                struct cairn_logprob_bwd one = b;
                int64_t m = n - r < step ? n - r : step;

                one.z = cairn_tensor_slice(&b.z, 0, r, m), one.target = cairn_tensor_slice(&b.target, 0, r, m),
                one.lse = cairn_tensor_slice(&b.lse, 0, r, m);
                one.dlogprob = cairn_tensor_slice(&b.dlogprob, 0, r, m), one.dz = cairn_tensor_slice(&dz2->t, 0, r, m);
                if (k)
                    one.entropy = cairn_tensor_slice(&b.entropy, 0, r, m), one.dentropy = cairn_tensor_slice(&b.dentropy, 0, r, m);
                LAB_OK(l, l->fast->logprob_bwd(&l->c.stream, &one, &l->err));
            }
            thing_down(l, dz2);
            lab_equal_bits(l, shapes[i].why, dz2, dz);
            b.dw = dw3->t;
            l->c.backend->set_threads(l->c.dev, 5);
            LAB_OK(l, l->fast->logprob_bwd(&l->c.stream, &b, &l->err));
            l->c.backend->set_threads(l->c.dev, 0);
            thing_down(l, dw3);
            lab_equal_bits(l, "threads", dw3, dw);
            lab_clear(l);
        }
}

/* L = sum of a * logprob + b * entropy in fp64, as a function of z and w. */
static double formula(const double *z, const double *w, int N, int D, int V, const struct head *h, double it,
                      const struct thing *dlp, const struct thing *dh)
{
    double L = 0;

    for (int n = 0; n < N; n++) {
        double x[64], sum = 0, H = 0, lse;
        int t = *thing_i(h->target, n);

        if (t < 0)
            continue;
        for (int v = 0; v < V; v++) {
            x[v] = 0;
            for (int d = 0; d < D; d++)
                x[v] += z[n * D + d] * w[v * D + d];
            x[v] *= it;
            sum += exp(x[v]);
        }
        lse = log(sum);
        for (int v = 0; v < V; v++)
            H -= exp(x[v] - lse) * (x[v] - lse);
        L += *thing_f(dlp, n) * (x[t] - lse) + *thing_f(dh, n) * H;
    }
    return L;
}

static void backward_is_the_derivative(struct lab *l)
{
    enum { I = 1, N = 5, D = 16, V = 33 };
    struct head h = make(l, I, 1.3f);
    struct thing *dlp = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, N), 1),
                 *dh = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, N), 1);
    struct thing *dz = thing_new(l, LAB_ACT, 0, 2, N, D), *dw = thing_new(l, CAIRN_F32, 0, 2, V, D);
    double near = lab_rounds(l) ? 0x1p-9 * 40 : 2e-5, share = lab_rounds(l) ? 0x1p-7 : 1e-5; /* dl and dz are rounded */
    struct cairn_logprob_bwd b = {h.z->t, h.w->t, h.target->t,         h.lse->t, h.entropy->t, dlp->t, dh->t,
                                  dz->t,  dw->t,  h.a.inv_temperature, 1};
    double z[N * D], w[V * D], step = 1e-5;

    memset(dw->h, 0, dw->bytes);
    thing_up(l, dw);
    LAB_OK(l, l->fast->logprob(&l->c.stream, &h.a, &l->err));
    LAB_OK(l, l->fast->logprob_bwd(&l->c.stream, &b, &l->err));
    thing_down(l, dz);
    thing_down(l, dw);
    for (int i = 0; i < N * D; i++)
        z[i] = *thing_f(h.z, i);
    for (int i = 0; i < V * D; i++)
        w[i] = *thing_f(h.w, i);
    for (int i = 0; i < N * D + V * D; i++) {
        double *x = i < N * D ? z + i : w + i - N * D, was = *x, up, down,
               got = i < N * D ? *thing_f(dz, i) : *thing_f(dw, i - N * D);

        *x = was + step;
        up = formula(z, w, N, D, V, &h, h.a.inv_temperature, dlp, dh);
        *x = was - step;
        down = formula(z, w, N, D, V, &h, h.a.inv_temperature, dlp, dh);
        *x = was;
        if (fabs((up - down) / (2 * step) - got) > near + share * fabs(got))
            fail_msg("%s: gradient %d is %.8g, the derivative %.8g", l->device, i, got, (up - down) / (2 * step));
    }
}

/* ---- sampling ------------------------------------------------------------------------------------------------------------------
 */

struct draws {
    struct thing *logits, *prompt, *sample, *position, *token, *logprob, *sampled;
    struct cairn_sample a;
};

static struct draws make_draws(struct lab *l, int n, int v)
{
    struct draws d;

    d.logits = thing_new(l, CAIRN_F32, 2, 2, n, v);
    d.prompt = thing_new(l, CAIRN_I32, 0, 1, n);
    d.sample = thing_new(l, CAIRN_I32, 0, 1, n);
    d.position = thing_new(l, CAIRN_I32, 0, 1, n);
    d.token = thing_new(l, CAIRN_I32, 0, 1, n);
    d.logprob = thing_new(l, CAIRN_F32, 0, 1, n);
    d.sampled = thing_new(l, CAIRN_F32, 0, 1, n);
    for (int i = 0; i < n; i++)
        *thing_i(d.prompt, i) = i % 17, *thing_i(d.sample, i) = i % 5, *thing_i(d.position, i) = i;
    thing_up(l, d.prompt);
    thing_up(l, d.sample);
    thing_up(l, d.position);
    d.a = (struct cairn_sample){
        d.logits->t, d.prompt->t, d.sample->t, d.position->t, d.token->t, d.logprob->t, d.sampled->t, 99, 3, 1, 1, 0, 0, 0, 1, {0}};
    return d;
}

static const float *sorting;
static int by_likelihood(const void *a, const void *b)
{
    int p = *(const int *)a, q = *(const int *)b;

    return sorting[p] > sorting[q] ? -1 : sorting[p] < sorting[q] ? 1 : p - q;
}

/* What is kept of logits x, by sorting and adding in fp64; logits are apart enough for the rule not to depend on rounding. */
static int keep(const float *x, int v, double it, int top_k, double top_p, double min_p, char *kept)
{
    int order[4096], n = 0;
    double Z = 0, mass = 0;

    for (int i = 0; i < v; i++) {
        order[i] = i;
        kept[i] = 0;
        Z += exp(x[i] * it);
    }
    sorting = x;
    qsort(order, (size_t)v, sizeof *order, by_likelihood);
    while (n < v && (top_k <= 0 || n < top_k) && (n == 0 || top_p >= 1 || mass < top_p) &&
           (min_p <= 0 || exp((x[order[n]] - x[order[0]]) * it) >= min_p)) {
        kept[order[n]] = 1;
        mass += exp(x[order[n++]] * it) / Z;
    }
    return n;
}

static void truncation_is_right(struct lab *l)
{
    static const struct {
        int top_k;
        float top_p, min_p;
    } rules[] = {{0, 1, 0},     {1, 1, 0},     {7, 1, 0},         {5000, 1, 0},  {0, 0.9f, 0},  {0, 0.3f, 0},
                 {0, 1e-6f, 0}, {0, 1, 0.05f}, {20, 0.8f, 0.01f}, {3, 0.99f, 0}, {0, 0.999f, 1}};
    static const int vs[] = {1, 2, 50, 333, 2331};

    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
        for (int k = 0; k < 5; k++) {
            int n = lab_least() ? 2 : lab_small() ? 6 : 40, v = vs[k];

            if (lab_least() && (v < 50 || v == 333 || (r && r % 3 == 0)))
                continue;
            struct draws d = make_draws(l, n, v);
            char kept[4096];

            thing_normal(l, d.logits, 2);
            d.a.top_k = rules[r].top_k, d.a.top_p = rules[r].top_p, d.a.min_p = rules[r].min_p;
            d.a.inv_temperature = 1.25f;
            LAB_OK(l, l->fast->sample(&l->c.stream, &d.a, &l->err));
            thing_down(l, d.token), thing_down(l, d.logprob), thing_down(l, d.sampled);
            for (int i = 0; i < n; i++) {
                const float *x = thing_f(d.logits, (int64_t)i * v);
                const struct cairn_philox_key key = {99, CAIRN_PURPOSE_SAMPLE, 3};
                int t = *thing_i(d.token, i), count = keep(x, v, 1.25, rules[r].top_k, rules[r].top_p, rules[r].min_p, kept);
                double Z = 0, Zk = 0, sum = 0, u;
                uint32_t word[4];

                assert_true(t >= 0 && t < v && count > 0);
                assert_true(kept[t]);
                for (int j = 0; j < v; j++) {
                    Z += exp(x[j] * 1.25);
                    Zk += kept[j] ? exp(x[j] * 1.25) : 0;
                }
                assert_true(fabs(*thing_f(d.logprob, i) - (x[t] * 1.25 - log(Z))) < 1e-5);
                assert_true(fabs(*thing_f(d.sampled, i) - (x[t] * 1.25 - log(Zk))) < 1e-5);
                /* the uniform of this row falls into the token's interval */
                cairn_philox(&key, (uint32_t)(i % 17), (uint32_t)(i % 5), (uint32_t)i, word);
                u = cairn_uniform(word[0]);
                for (int j = 0; j < t; j++)
                    sum += kept[j] ? exp(x[j] * 1.25) / Zk : 0;
                if (!(u >= sum - 1e-6 && u <= sum + exp(x[t] * 1.25) / Zk + 1e-6))
                    fail_msg("%s: rule %zu: u = %.8g is not in the interval of token %d", l->device, r, u, t);
            }
            /* the reference draws the same; its bits are its own */
            {
                struct thing *ref = thing_like(l, d.token, 1), *lp = thing_like(l, d.sampled, 1);
                struct cairn_sample a = d.a;
                int other = 0;

                a.token = ref->t, a.logprob_sampled = lp->t;
                LAB_OK(l, l->ref->sample(&l->c.stream, &a, &l->err));
                thing_down(l, ref);
                for (int i = 0; i < n; i++)
                    other += *thing_i(ref, i) != *thing_i(d.token, i);
                assert_int_equal(other, 0);
            }
            lab_clear(l);
        }
}

/* Barred ids: as if the logits had not been there, but for the log-probability, which is of the full vocabulary. Among them the likeliest. */
static void barred_are_never_drawn(struct lab *l)
{
    static const struct {
        int top_k, greedy;
        float top_p, min_p;
    } rules[] = {{0, 0, 1, 0}, {0, 1, 1, 0}, {3, 0, 1, 0}, {0, 0, 0.7f, 0}, {0, 0, 1, 0.1f}, {5, 0, 0.9f, 0.01f}};
    static const int vs[] = {2, 50, 333, 2331};

    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
        for (int k = 0; k < 4; k++) {
            const int N = lab_small() ? 8 : 40;
            int v = vs[k], best = 0;
            struct draws d = make_draws(l, N, v), e = make_draws(l, N, v);
            struct thing *barred = thing_new(l, CAIRN_U8, 0, 1, v), *ref = thing_like(l, d.token, 1), *lp = thing_like(l, d.sampled, 1),
                         *full = thing_like(l, d.logprob, 1);
            struct cairn_sample a;

            thing_normal(l, d.logits, 2);
            for (int j = 0; j < v; j++)
                barred->h[j] = j % 3 == 1;
            thing_up(l, barred);
            for (int i = 0; i < N; i++) { /* a barred one is far ahead in some rows */
                if (i % 4 == 0)
                    *thing_f(d.logits, (int64_t)i * v + 1) = i % 8 ? 40 : 400;
                for (int j = 0; j < v; j++) /* e: the same without them, to the back-end's own rules */
                    *thing_f(e.logits, (int64_t)i * v + j) = barred->h[j] ? -INFINITY : *thing_f(d.logits, (int64_t)i * v + j);
            }
            thing_up(l, d.logits), thing_up(l, e.logits);
            d.a.top_k = e.a.top_k = rules[r].top_k, d.a.top_p = e.a.top_p = rules[r].top_p, d.a.min_p = e.a.min_p = rules[r].min_p;
            d.a.greedy = e.a.greedy = rules[r].greedy;
            d.a.barred = barred->t;
            LAB_OK(l, l->fast->sample(&l->c.stream, &d.a, &l->err));
            LAB_OK(l, l->fast->sample(&l->c.stream, &e.a, &l->err));
            a = d.a, a.token = ref->t, a.logprob_sampled = lp->t, a.logprob = full->t;
            LAB_OK(l, l->ref->sample(&l->c.stream, &a, &l->err));
            thing_down(l, d.token), thing_down(l, d.logprob), thing_down(l, d.sampled), thing_down(l, e.token), thing_down(l, e.sampled);
            thing_down(l, ref), thing_down(l, lp), thing_down(l, full);
            for (int i = 0; i < N; i++) {
                const float *x = thing_f(d.logits, (int64_t)i * v);
                int t = *thing_i(d.token, i);
                double Z = 0, most = x[0];

                assert_true(t >= 0 && t < v && !barred->h[t]);
                assert_int_equal(t, *thing_i(e.token, i));
                assert_int_equal(t, *thing_i(ref, i));
                for (int j = 1; j < v; j++)
                    most = fmax(most, x[j]);
                for (int j = 0; j < v; j++)
                    Z += exp(x[j] - most);
                if (fabs(*thing_f(d.logprob, i) - (x[t] - most - log(Z))) > 1e-5 * fmax(1, fabs(most)))
                    fail_msg("%s: rule %zu, row %d: %.9g, not %.9g", l->device, r, i, *thing_f(d.logprob, i), x[t] - most - log(Z));
                assert_true(fabs(*thing_f(d.sampled, i) - *thing_f(e.sampled, i)) < 1e-5);
                assert_true(fabs(*thing_f(d.sampled, i) - *thing_f(lp, i)) < 1e-5 && fabs(*thing_f(full, i) - *thing_f(d.logprob, i)) < 1e-3);
                best += i % 4 == 0;
            }
            assert_true(best > 0);
            lab_clear(l);
        }
}

static void ties_go_to_the_lower_id(struct lab *l)
{
    enum { V = 40 };
    const int N = lab_small() ? 6 : 64;
    struct draws d = make_draws(l, N, V);

    for (int i = 0; i < N * V; i++)
        *thing_f(d.logits, i) = i % V % 2 ? 1.0f : 0.0f; /* twenty equal best ones */
    thing_up(l, d.logits);
    d.a.top_k = 5; /* 1, 3, 5, 7, 9 */
    LAB_OK(l, l->fast->sample(&l->c.stream, &d.a, &l->err));
    thing_down(l, d.token), thing_down(l, d.sampled), thing_down(l, d.logprob);
    for (int i = 0; i < N; i++) {
        assert_true(*thing_i(d.token, i) % 2 == 1 && *thing_i(d.token, i) <= 9);
        assert_true(fabs(*thing_f(d.sampled, i) + log(5)) < 1e-6);
    }
    d.a.top_k = 0, d.a.top_p = (float)(3.5 * M_E / (20 * M_E + 20)); /* 1, 3, 5, 7 */
    LAB_OK(l, l->fast->sample(&l->c.stream, &d.a, &l->err));
    thing_down(l, d.token), thing_down(l, d.sampled);
    for (int i = 0; i < N; i++) {
        assert_true(*thing_i(d.token, i) % 2 == 1 && *thing_i(d.token, i) <= 7);
        assert_true(fabs(*thing_f(d.sampled, i) + log(4)) < 1e-6);
    }
    d.a.greedy = 1, d.a.top_p = 1;
    LAB_OK(l, l->fast->sample(&l->c.stream, &d.a, &l->err));
    thing_down(l, d.token);
    for (int i = 0; i < N; i++)
        assert_int_equal(*thing_i(d.token, i), 1);
    lab_clear(l);
    /* 0 and -0 are a tie */
    d = make_draws(l, N, V);
    for (int i = 0; i < N * V; i++)
        *thing_f(d.logits, i) = i % V % 3 ? (i % V % 3 == 1 ? -0.0f : 0.0f) : -1.0f;
    thing_up(l, d.logits);
    d.a.top_k = 2; /* 1 and 2 */
    LAB_OK(l, l->fast->sample(&l->c.stream, &d.a, &l->err));
    thing_down(l, d.token);
    for (int i = 0; i < N; i++)
        assert_true(*thing_i(d.token, i) == 1 || *thing_i(d.token, i) == 2);
    lab_clear(l);
    /* extremes: one token certain, infinities, NaN */
    d = make_draws(l, 4, V);
    for (int i = 0; i < 4 * V; i++)
        *thing_f(d.logits, i) = i / V == 0   ? (i % V == 17 ? 1000.0f : -1000.0f)
                                : i / V == 1 ? (i % V == 3 ? 0.0f : -INFINITY)
                                : i / V == 2 ? (i % V == 30 ? NAN : 0.0f)
                                             : NAN;
    thing_up(l, d.logits);
    LAB_OK(l, l->fast->sample(&l->c.stream, &d.a, &l->err));
    thing_down(l, d.token), thing_down(l, d.logprob);
    assert_int_equal(*thing_i(d.token, 0), 17);
    assert_true(*thing_f(d.logprob, 0) == 0);
    assert_int_equal(*thing_i(d.token, 1), 3);
    assert_true(*thing_f(d.logprob, 1) == 0);
    for (int i = 2; i < 4; i++) {
        assert_true(*thing_i(d.token, i) >= 0 && *thing_i(d.token, i) < V);
        assert_true(isnan(*thing_f(d.logprob, i)));
    }
}

/* chi-square of 60,000 draws from 30 tokens (fewer in a small run); the 99.9 % point of 29 degrees of freedom is 58.3. The draws are
 * fixed by the seed. */
static void draws_follow_the_distribution(struct lab *l)
{
    enum { V = 30 };
    const int N = lab_small() ? 1200 : 60000;
    struct draws d;
    double p[V], Z = 0, chi = 0;
    int count[V] = {0};
    float x[V];

    d = make_draws(l, N, V);
    for (int v = 0; v < V; v++) {
        x[v] = lab_normal(l);
        Z += exp(x[v]);
    }
    for (int v = 0; v < V; v++)
        p[v] = exp(x[v]) / Z;
    for (int i = 0; i < N; i++)
        memcpy(thing_f(d.logits, (int64_t)i * V), x, sizeof x);
    thing_up(l, d.logits);
    LAB_OK(l, l->fast->sample(&l->c.stream, &d.a, &l->err));
    thing_down(l, d.token);
    for (int i = 0; i < N; i++)
        count[*thing_i(d.token, i)]++;
    for (int v = 0; v < V; v++)
        chi += (count[v] - N * p[v]) * (count[v] - N * p[v]) / (N * p[v]);
    if (!(chi < 58.3))
        fail_msg("%s: chi-square %.1f", l->device, chi);
}

ON_EACH_DEVICE(logprob_is_right)
ON_EACH_DEVICE(sampler_and_trainer_agree)
ON_EACH_DEVICE(backward_is_right)
ON_EACH_DEVICE(backward_is_the_derivative)
ON_EACH_DEVICE(truncation_is_right)
ON_EACH_DEVICE(barred_are_never_drawn)
ON_EACH_DEVICE(ties_go_to_the_lower_id)
ON_EACH_DEVICE(draws_follow_the_distribution)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logprob_is_right_test),
        cmocka_unit_test(sampler_and_trainer_agree_test),
        cmocka_unit_test(backward_is_right_test),
        cmocka_unit_test(backward_is_the_derivative_test),
        cmocka_unit_test(truncation_is_right_test),
        cmocka_unit_test(barred_are_never_drawn_test), cmocka_unit_test(ties_go_to_the_lower_id_test),
        cmocka_unit_test(draws_follow_the_distribution_test),
    };

    return LAB_RUN(tests);
}

/* attention_test.c - attention and attention_bwd: against the references, gradients against finite differences of an fp64
 * formula, packed against paged, rows alone against together, sequences alone against packed, threads and NaN.
 *
 * Shapes with W >= 512 are those of the large models: back-ends have kernels of their own for them, which need rows that begin at multiples
 * of 16 bytes.
 */
#include "batches.h"

static struct batch cut(const struct batch *b, int W, int *T)
{
    struct batch c = *b;

    for (int i = 0; i < c.B && lab_small() && W >= 512; i++)
        c.lengths[i] = c.lengths[i] > 67 ? c.tail < 10 ? 130 : 67 : c.lengths[i] % 19;
    if (lab_small() && W >= 512 && *T > 50)
        *T = *T % 51;
    return c;
}

/* |a - b| over |b|, of all elements: rounding errors, not the worst of them. Elements below 0.1 count as that. */
static void near_norm(struct lab *l, const char *what, const struct thing *a, const struct thing *b, double f32, double bf16)
{
    double diff = 0, norm = 0, most = lab_rounds(l) ? bf16 : f32, worst = 0;
    int64_t at = 0;

    for (int64_t i = 0; i < thing_count(a); i++) {
        double x = thing_value(a, i), y = thing_value(b, i);

        diff += (x - y) * (x - y);
        norm += fmax(y * y, 0.01);
        if (!(fabs(x - y) <= worst))
            worst = fabs(x - y), at = i;
    }
    if (!(diff <= most * most * norm))
        fail_msg("%s: %s: off by %.3g of its norm %.4g, may be by %.3g; most at element %lld: %.9g, should be %.9g", l->device,
                 what, sqrt(diff / norm), sqrt(norm), most, (long long)at, thing_value(a, at), thing_value(b, at));
}

static const int shapes[][4] = {
    /* H, W, C, T */ {1, 3, 2, 4}, {6, 40, 32, 16},    {4, 24, 16, 64},   {9, 70, 64, 21},  {2, 130, 129, 40},
    {16, 576, 512, 200},           {64, 576, 512, 90}, {5, 520, 512, 64}, {80, 512, 512, 7}};

/* A choice of keys: all when few, else a random ascending set of T. */
static struct thing *random_choice(struct lab *l, const struct setup *s, int T)
{
    struct thing *idx = thing_new(l, CAIRN_I32, 0, 2, s->N, T);

    for (int n = 0; n < s->N; n++) {
        int left = s->pos[n] + 1 < T ? s->pos[n] + 1 : T, j = 0;

        for (int p = 0; p <= s->pos[n]; p++)
            if (lab_int(l, 0, s->pos[n] - p) < left) {
                *thing_i(idx, (int64_t)n * T + j++) = p;
                left--;
            }
        while (j < T)
            *thing_i(idx, (int64_t)n * T + j++) = -1;
    }
    thing_up(l, idx);
    return idx;
}

static void attention_is_right(struct lab *l)
{
    for (size_t b = 0; b < sizeof batches / sizeof *batches; b++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            int H = shapes[i][0], W = shapes[i][1], C = shapes[i][2], T = shapes[i][3];
            struct setup s;
            struct thing *q, *o, *lse, *o2, *lse2, *idx;
            struct cairn_attention a;

            struct batch now = cut(&batches[b], W, &T);

            if (left_out(l, &batches[b], W))
                continue;
            make_batch(l, &now, W, i % 2 ? padding(W, 3) : 0, &s);
            q = thing_normal(l, thing_new(l, LAB_ACT, padding(W, 2), 3, s.N, H, W), 1);
            idx = random_choice(l, &s, T);
            o = thing_new(l, LAB_ACT, padding(W, 1), 3, s.N, H, C);
            lse = thing_new(l, CAIRN_F32, 0, 2, s.N, H);
            o2 = thing_like(l, o, 1);
            lse2 = thing_like(l, lse, 1);
            a = (struct cairn_attention){q->t, idx->t, o->t, lse->t, s.keys, 1 / sqrtf((float)W)};
            LAB_OK(l, l->fast->attention(&l->c.stream, &a, &l->err));
            thing_down(l, o);
            thing_down(l, lse);
            a.o = o2->t, a.lse = lse2->t;
            LAB_OK(l, l->ref->attention(&l->c.stream, &a, &l->err));
            thing_down(l, o2);
            thing_down(l, lse2);
            /* logits are below 8 in size with errors of W 2^-24 times that; e^l carries them into P, values are below 5 */
            lab_near(l, batches[b].why, lse, lse2, 0x1p-22, (W + 4) * 0x1p-24 * 8);
            lab_near(l, batches[b].why, o, o2, 0x1p-20,
                     5 * (W + T + 8) * 0x1p-24 * 8 + (lab_rounds(l) ? 0x1p-7 : 0)); /* P in bf16 */
            near_norm(l, batches[b].why, o, o2, 4e-6, 4e-3);
            /* each row alone, from pages: the same bits */
            a.keys = paged(l, &now, &s, 16);
            memset(o2->h, 0xff, o2->bytes);
            thing_up(l, o2);
            for (int n = 0, m; n < s.N; n += m) {
                struct cairn_attention r = a;

                m = lab_each(s.N) < s.N - n ? lab_each(s.N) : s.N - n;
                r.q = cairn_tensor_slice(&a.q, 0, n, m), r.idx = cairn_tensor_slice(&a.idx, 0, n, m);
                r.o = cairn_tensor_slice(&o2->t, 0, n, m), r.lse = cairn_tensor_slice(&lse2->t, 0, n, m);
                r.keys.pos = cairn_tensor_slice(&a.keys.pos, 0, n, m), r.keys.seq = cairn_tensor_slice(&a.keys.seq, 0, n, m);
                LAB_OK(l, l->fast->attention(&l->c.stream, &r, &l->err));
            }
            thing_down(l, o2);
            thing_down(l, lse2);
            lab_equal_bits(l, batches[b].why, o2, o);
            lab_equal_bits(l, batches[b].why, lse2, lse);
            lab_clear(l);
        }
}

struct grads {
    struct thing *q, *idx, *o, *lse, *d_o, *dq, *dk;
    struct cairn_attention_bwd a;
};

static void make_backward(struct lab *l, const struct setup *s, int H, int W, int C, int T, struct grads *g)
{
    struct cairn_attention f;

    g->q = thing_normal(l, thing_new(l, LAB_ACT, padding(W, 2), 3, s->N, H, W), 1);
    g->idx = random_choice(l, s, T);
    g->o = thing_new(l, LAB_ACT, padding(W, 1), 3, s->N, H, C);
    g->lse = thing_new(l, CAIRN_F32, 0, 2, s->N, H);
    g->d_o = thing_normal(l, thing_new(l, LAB_ACT, padding(W, 3), 3, s->N, H, C), 1);
    g->dq = thing_new(l, LAB_ACT, padding(W, 4), 3, s->N, H, W);
    g->dk = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, s->S, W), 1);
    f = (struct cairn_attention){g->q->t, g->idx->t, g->o->t, g->lse->t, s->keys, 1 / sqrtf((float)W)};
    LAB_OK(l, l->fast->attention(&l->c.stream, &f, &l->err));
    g->a = (struct cairn_attention_bwd){g->q->t, g->idx->t, g->o->t, g->lse->t, g->d_o->t, g->dq->t, g->dk->t, s->keys, f.scale, 0};
}

static void backward_is_right(struct lab *l)
{
    for (size_t b = 0; b < sizeof batches / sizeof *batches; b++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            int H = shapes[i][0], W = shapes[i][1], C = shapes[i][2], T = shapes[i][3];
            struct setup s;
            struct grads g;
            struct thing *dq, *dk;

            struct batch now = cut(&batches[b], W, &T);

            if (left_out(l, &batches[b], W))
                continue;
            make_batch(l, &now, W, i % 2 ? padding(W, 3) : 0, &s);
            make_backward(l, &s, H, W, C, T, &g);
            dq = thing_like(l, g.dq, 1);
            dk = thing_like(l, g.dk, 0);
            if (lab_least()) {
                LAB_OK(l, l->fast->attention_bwd(&l->c.stream, &g.a, &l->err));
                thing_down(l, g.dk);
                thing_down(l, g.dq);
            }
            for (int threads = 1; threads <= (lab_least() ? 0 : lab_small() ? 1 : 3); threads += 2) {
                struct thing *again = thing_like(l, dk, 0);
                struct cairn_attention_bwd a = g.a;

                a.dk = again->t;
                l->c.backend->set_threads(l->c.dev, threads);
                LAB_OK(l, l->fast->attention_bwd(&l->c.stream, &a, &l->err));
                thing_down(l, again);
                l->c.backend->set_threads(l->c.dev, 0);
                if (threads == 1) {
                    LAB_OK(l, l->fast->attention_bwd(&l->c.stream, &g.a, &l->err));
                    thing_down(l, g.dk);
                    thing_down(l, g.dq);
                }
                lab_equal_bits(l, "threads", again, g.dk);
            }
            g.a.dq = dq->t, g.a.dk = dk->t;
            LAB_OK(l, l->ref->attention_bwd(&l->c.stream, &g.a, &l->err));
            thing_down(l, dq);
            thing_down(l, dk);
            near_norm(l, batches[b].why, g.dq, dq, 1e-5, 8e-3);
            near_norm(l, batches[b].why, g.dk, dk, 1e-5, 8e-3);
            lab_clear(l);
        }
}

/* Rows of a sequence need not stand in the order of their positions. */
static void rows_in_any_order(struct lab *l)
{
    static const int dims[][4] = {{3, 24, 16, 9}, {16, 576, 512, 30}, {64, 576, 512, 40}};
    struct batch b = {2, {70, 12}, 70, ""};

    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        struct setup s;
        struct grads g;
        struct thing *dq, *dk;

        if (lab_small() && dims[i][1] >= 512 && !lab_rounds(l))
            continue;
        make_batch(l, &b, dims[i][1], 0, &s);
        for (int n = 20; n < 70; n++) /* 0 .. 19, 45 .. 69, 20 .. 44 */
            s.pos[n] = n < 45 ? n + 25 : n - 25;
        s.keys.pos = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, s.N), s.pos)->t;
        make_backward(l, &s, dims[i][0], dims[i][1], dims[i][2], dims[i][3], &g);
        dq = thing_like(l, g.dq, 1), dk = thing_like(l, g.dk, 0);
        LAB_OK(l, l->fast->attention_bwd(&l->c.stream, &g.a, &l->err));
        thing_down(l, g.dq), thing_down(l, g.dk);
        g.a.dq = dq->t, g.a.dk = dk->t;
        LAB_OK(l, l->ref->attention_bwd(&l->c.stream, &g.a, &l->err));
        thing_down(l, dq), thing_down(l, dk);
        near_norm(l, "dq", g.dq, dq, 1e-5, 8e-3);
        near_norm(l, "dk", g.dk, dk, 1e-5, 8e-3);
        lab_clear(l);
    }
}

/* An fp64 formula of its own: L = sum over n, h, c of d_o * o(q, k). */
static double formula(const struct setup *s, int H, int W, int C, int T, double scale, const double *q, const double *k,
                      const struct thing *idx, const struct thing *d_o)
{
    double L = 0;

    for (int n = 0; n < s->N; n++)
        for (int h = 0; h < H; h++) {
            double e[64], Z = 0;
            int count = 0;

            for (; count < T && *thing_i(idx, (int64_t)n * T + count) >= 0; count++) {
                const double *row = k + (s->start[s->seq[n]] + *thing_i(idx, (int64_t)n * T + count)) * W;
                double dot = 0;

                for (int w = 0; w < W; w++)
                    dot += q[(n * H + h) * W + w] * row[w];
                Z += e[count] = exp(scale * dot);
            }
            for (int j = 0; j < count; j++)
                for (int c = 0; c < C; c++)
                    L += e[j] / Z * k[(s->start[s->seq[n]] + *thing_i(idx, (int64_t)n * T + j)) * W + c] *
                         *thing_f(d_o, ((int64_t)n * H + h) * C + c);
        }
    return L;
}

static void backward_is_the_derivative(struct lab *l)
{
    enum { H = 3, W = 7, C = 5, T = 6 };
    struct batch b = {2, {9, 6}, 9, ""};
    struct setup s;
    struct grads g;
    double q[15 * H * W], k[15 * W], step = 1e-5;
    struct thing *zero;

    make_batch(l, &b, W, 0, &s);
    make_backward(l, &s, H, W, C, T, &g);
    zero = thing_like(l, g.dk, 0);
    memset(zero->h, 0, zero->bytes);
    thing_up(l, zero);
    g.a.dk = zero->t;
    LAB_OK(l, l->fast->attention_bwd(&l->c.stream, &g.a, &l->err));
    thing_down(l, zero);
    thing_down(l, g.dq);
    for (int i = 0; i < s.N * H * W; i++)
        q[i] = *thing_f(g.q, i);
    for (int i = 0; i < s.S * W; i++)
        k[i] = *thing_f(s.rows, i);
    for (int i = 0; i < s.N * H * W + s.S * W; i++) {
        double *x = i < s.N * H * W ? q + i : k + i - s.N * H * W, was = *x, up, down, got;

        *x = was + step;
        up = formula(&s, H, W, C, T, g.a.scale, q, k, g.idx, g.d_o);
        *x = was - step;
        down = formula(&s, H, W, C, T, g.a.scale, q, k, g.idx, g.d_o);
        *x = was;
        got = i < s.N * H * W ? *thing_f(g.dq, i) : *thing_f(zero, i - s.N * H * W);
        if (fabs((up - down) / (2 * step) - got) > (lab_rounds(l) ? 2e-2 + 1e-2 * fabs(got) : 2e-5 + 1e-5 * fabs(got)))
            fail_msg("%s: gradient %d is %.8g, the derivative %.8g", l->device, i, got, (up - down) / (2 * step));
    }
}

/* The word that all rows choose all they see, when it is wrong: refused, or nothing is made of it. */
static void all_seen_wrongly(struct lab *l, const struct grads *g)
{
    struct cairn_attention_bwd a = g->a;
    struct thing *dq = thing_like(l, g->dq, 1), *dk = thing_like(l, g->dk, 0), *was = thing_like(l, g->dk, 0);
    enum cairn_status st;

    a.dq = dq->t, a.dk = was->t;
    LAB_OK(l, l->fast->attention_bwd(&l->c.stream, &a, &l->err));
    thing_down(l, was);
    a.dk = dk->t, a.all_seen = 1;
    st = l->fast->attention_bwd(&l->c.stream, &a, &l->err);
    st = st == CAIRN_OK ? cairn_stream_wait(&l->c.stream, &l->err) : st;
    if (st == CAIRN_OK) {
        thing_down(l, dk), thing_down(l, dq);
        lab_equal_bits(l, "dk, all_seen not looked at", dk, was);
    } else if (st != CAIRN_EBUG) {
        fail_msg("%s: all_seen is wrong: status %d", l->device, (int)st);
    }
}

/* A sequence packed with others gives the bits that it gives alone: o, dq, dk. And a key that is NaN reaches no row that does not
 * see it, and all that choose it. */
static void sequences_are_alone(struct lab *l)
{
    static const int dims[][4] = {
        {3, 24, 16, 9}, {16, 576, 512, 200}, {16, 576, 512, 40}, {64, 576, 512, 80}}; /* the last: chunks of 32 positions */
    struct batch b = {3, {5, 33, 71}, 71, ""};

    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        int H = dims[i][0], W = dims[i][1], C = dims[i][2], T = dims[i][3], from = 0;
        struct setup s;
        struct grads g;
        struct thing *dq, *dk, *o, *lse, *was = NULL;

        if (lab_small() && W >= 512 && (!lab_rounds(l) || T == 200))
            continue;
        make_batch(l, &b, W, 0, &s);
        make_backward(l, &s, H, W, C, T, &g);
        dq = thing_like(l, g.dq, 1), dk = thing_like(l, g.dk, 0), o = thing_like(l, g.o, 1), lse = thing_like(l, g.lse, 1);
        LAB_OK(l, l->fast->attention_bwd(&l->c.stream, &g.a, &l->err));
        for (int k = 0; k < b.B; from += b.lengths[k++]) {
            struct cairn_attention_bwd a = g.a;
            struct cairn_attention f;
            int32_t zero[80] = {0};
            int n = b.lengths[k];

            a.q = cairn_tensor_slice(&g.a.q, 0, from, n), a.idx = cairn_tensor_slice(&g.a.idx, 0, from, n);
            a.o = cairn_tensor_slice(&o->t, 0, from, n), a.lse = cairn_tensor_slice(&lse->t, 0, from, n);
            a.d_o = cairn_tensor_slice(&g.a.d_o, 0, from, n), a.dq = cairn_tensor_slice(&dq->t, 0, from, n);
            a.dk = cairn_tensor_slice(&dk->t, 0, from, n);
            a.keys.rows = cairn_tensor_slice(&s.keys.rows, 0, from, n);
            a.keys.pos = cairn_tensor_slice(&s.keys.pos, 0, from, n);
            a.keys.seq = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, n), zero)->t;
            a.keys.start = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, 1), zero)->t;
            f = (struct cairn_attention){a.q, a.idx, a.o, a.lse, a.keys, a.scale};
            a.all_seen = T > b.lengths[2]; /* then no bit changes */
            LAB_OK(l, l->fast->attention(&l->c.stream, &f, &l->err));
            LAB_OK(l, l->fast->attention_bwd(&l->c.stream, &a, &l->err));
        }
        thing_down(l, g.o), thing_down(l, g.lse), thing_down(l, g.dq), thing_down(l, g.dk);
        thing_down(l, o), thing_down(l, lse), thing_down(l, dq), thing_down(l, dk);
        lab_equal_bits(l, "o alone", o, g.o);
        lab_equal_bits(l, "lse alone", lse, g.lse);
        lab_equal_bits(l, "dq alone", dq, g.dq);
        lab_equal_bits(l, "dk alone", dk, g.dk);
        if (T < b.lengths[2])
            all_seen_wrongly(l, &g);

        /* the key at position 22 of the second sequence */
        was = thing_like(l, g.o, 0);
        *thing_f(s.rows, (int64_t)(5 + 22) * W + W - 1) = *thing_f(s.rows, (int64_t)(5 + 22) * W) = NAN;
        thing_up(l, s.rows);
        LAB_OK(l, l->fast->attention(&l->c.stream,
                                     (&(struct cairn_attention){g.q->t, g.idx->t, g.o->t, g.lse->t, s.keys, g.a.scale}), &l->err));
        thing_down(l, g.o);
        for (int n = 0; n < s.N; n++) {
            int sees = 0;

            if (s.pos[n] >= T && s.seq[n] == 1)
                continue; /* it may reach rows that see it and do not choose it */
            for (int j = 0; j < T; j++)
                sees |= s.seq[n] == 1 && *thing_i(g.idx, (int64_t)n * T + j) == 22;
            for (int64_t c = 0; c < H * C; c++) {
                float x = *thing_f(g.o, (int64_t)n * H * C + c), y = *thing_f(was, (int64_t)n * H * C + c);

                if (sees ? !isnan(x) : memcmp(&x, &y, sizeof x))
                    fail_msg("%s: a NaN at key 22: row %d (%s it) has %g at %lld, without it %g", l->device, n,
                             sees ? "sees" : "does not see", (double)x, (long long)c, (double)y);
            }
        }
        lab_clear(l);
    }
}

/* Runs of rows (what is kept between the passes is bounded): many queries, many keys. */
static void backward_in_runs(struct lab *l)
{
    /* The device's longest run is 1024 rows; on an emulated one the shapes are as small as that lets them be. */
    const int small = lab_small(), H = small ? 2 : 8, W = small ? 8 : 20, C = small ? 4 : 16, T = small ? 24 : 512, L = small ? 1100 : 2600;
    int32_t *pos = malloc((size_t)L * sizeof *pos), *seq = calloc((size_t)L, sizeof *seq), start = 0;
    struct thing *rows, *q, *idx, *o, *lse, *d_o, *dq, *dk, *dq2, *dk2;
    struct cairn_attention f;
    struct cairn_attention_bwd a;

    if (!strcmp(l->device, "guard")) {
        free(pos);
        free(seq);
        return;
    }
    for (int n = 0; n < L; n++)
        pos[n] = n;
    rows = thing_normal(l, thing_new(l, LAB_ACT, 0, 2, L, W), 1);
    q = thing_normal(l, thing_new(l, LAB_ACT, 0, 3, L, H, W), 1);
    d_o = thing_normal(l, thing_new(l, LAB_ACT, 0, 3, L, H, C), 1);
    idx = thing_new(l, CAIRN_I32, 0, 2, L, T);
    for (int n = 0; n < L; n++)
        for (int j = 0; j < T; j++)
            *thing_i(idx, (int64_t)n * T + j) = n < T ? (j <= n ? j : -1) : (int)((int64_t)j * (n + 1) / T);
    thing_up(l, idx);
    o = thing_new(l, LAB_ACT, 0, 3, L, H, C);
    lse = thing_new(l, CAIRN_F32, 0, 2, L, H);
    dq = thing_new(l, LAB_ACT, 0, 3, L, H, W);
    dk = thing_new(l, CAIRN_F32, 0, 2, L, W);
    memset(dk->h, 0, dk->bytes);
    thing_up(l, dk);
    dq2 = thing_like(l, dq, 1);
    dk2 = thing_like(l, dk, 0);
    f = (struct cairn_attention){q->t, idx->t, o->t, lse->t, {.rows = rows->t}, 0.2f};
    f.keys.pos = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, L), pos)->t;
    f.keys.seq = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, L), seq)->t;
    f.keys.start = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, 1), &start)->t;
    LAB_OK(l, l->fast->attention(&l->c.stream, &f, &l->err));
    a = (struct cairn_attention_bwd){q->t, idx->t, o->t, lse->t, d_o->t, dq->t, dk->t, f.keys, f.scale, 0};
    LAB_OK(l, l->fast->attention_bwd(&l->c.stream, &a, &l->err));
    a.dq = dq2->t, a.dk = dk2->t;
    LAB_OK(l, l->ref->attention_bwd(&l->c.stream, &a, &l->err));
    thing_down(l, dq), thing_down(l, dq2), thing_down(l, dk), thing_down(l, dk2);
    near_norm(l, "dq", dq, dq2, 1e-5, 8e-3);
    near_norm(l, "dk", dk, dk2, 1e-5, 8e-3);
    free(pos);
    free(seq);
}

static void refusals(struct lab *l)
{
    struct batch b = {1, {20}, 20, ""};
    struct setup s;
    struct grads g;
    struct cairn_attention f;

    make_batch(l, &b, 8, 0, &s);
    make_backward(l, &s, 2, 8, 6, 5, &g);
    f = (struct cairn_attention){g.q->t, g.idx->t, g.o->t, g.lse->t, s.keys, 1};
    *thing_i(g.idx, 3) = 19; /* position 0 does not see 19 */
    thing_up(l, g.idx);
    LAB_REFUSES(l, l->fast->attention(&l->c.stream, &f, &l->err));
    LAB_REFUSES(l, l->fast->attention_bwd(&l->c.stream, &g.a, &l->err));
    LAB_REFUSES(l, l->ref->attention(&l->c.stream, &f, &l->err));
    f.keys.rows = cairn_tensor_slice(&s.keys.rows, 0, 0, 19); /* the last key is missing */
    LAB_REFUSES(l, l->fast->attention(&l->c.stream, &f, &l->err));
    g.a.keys = paged(l, &b, &s, 4);
    LAB_REFUSES(l, l->fast->attention_bwd(&l->c.stream, &g.a, &l->err));
}

ON_EACH_DEVICE(attention_is_right)
ON_EACH_DEVICE(backward_is_right)
ON_EACH_DEVICE(rows_in_any_order)
ON_EACH_DEVICE(backward_is_the_derivative)
ON_EACH_DEVICE(sequences_are_alone)
ON_EACH_DEVICE(backward_in_runs)
ON_EACH_DEVICE(refusals)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_right_test),
        cmocka_unit_test(backward_is_right_test),
        cmocka_unit_test(rows_in_any_order_test),
        cmocka_unit_test(backward_is_the_derivative_test),
        cmocka_unit_test(sequences_are_alone_test),
        cmocka_unit_test(backward_in_runs_test),
        cmocka_unit_test(refusals_test),
    };

    return LAB_RUN(tests);
}

/* kda_test.c - Kimi delta attention: chunks against the scalar recurrence, pieces and forks against whole sequences, gradients
 * against the scalar backward and against finite differences of the recurrence in fp64.
 */
#include "lab.h"

#define MOST_SEQS 4

/* Lengths of the sequences of one packing; decay: what ln of it reaches, -5 as the published gate bounds it. */
static const struct {
    int len[MOST_SEQS], heads, d;
    double decay;
    const char *why;
} shapes[] = {
    {{1}, 1, 4, 5, "smallest"},
    {{15, 16, 17}, 2, 12, 5, "around a chunk, odd width"},
    {{63, 1, 64, 65}, 3, 16, 5, "around four chunks"},
    {{33, 130}, 1, 128, 5, "published head"},
    {{20, 5}, 5, 20, 0.05, "hardly any decay"},
    {{40, 3}, 2, 32, 300, "decay without a bound"},
    {{70}, 1, 64, 5, "four registers"},
};
#define SHAPES (sizeof shapes / sizeof *shapes)

struct problem {
    struct thing *q, *k, *v, *g, *beta, *o, *pos, *seq;
    int n, heads, d, seqs, begin[MOST_SEQS + 1];
    float scale, eps;
};

/* The packing of shape i; size: of q and k, small enough for eps to matter or 1. */
static struct problem problem_new(struct lab *l, size_t i, double size)
{
    struct problem p = {.heads = shapes[i].heads, .d = shapes[i].d, .eps = 1e-6f};
    int32_t pos[512], seq[512];

    for (int s = 0; s < MOST_SEQS && shapes[i].len[s]; s++) {
        p.begin[s] = p.n;
        for (int j = 0; j < shapes[i].len[s]; j++, p.n++)
            pos[p.n] = j, seq[p.n] = s;
        p.begin[++p.seqs] = p.n;
    }
    p.scale = (float)(1 / sqrt(p.d));
    p.q = thing_normal(l, thing_new(l, LAB_ACT, 1, 3, p.n, p.heads, p.d), (float)size);
    p.k = thing_normal(l, thing_new(l, LAB_ACT, 2, 3, p.n, p.heads, p.d), (float)size);
    p.v = thing_normal(l, thing_new(l, LAB_ACT, 0, 3, p.n, p.heads, p.d), 1);
    p.g = thing_new(l, CAIRN_F32, 0, 3, p.n, p.heads, p.d);
    p.beta = thing_new(l, CAIRN_F32, 0, 2, p.n, p.heads);
    for (int64_t e = 0; e < thing_count(p.g); e++) /* mostly mild, some hard */
        *thing_f(p.g, e) = (float)(-shapes[i].decay * pow(lab_uniform(l, 0, 1), e % 3 ? 8 : 1));
    for (int64_t e = 0; e < thing_count(p.beta); e++)
        *thing_f(p.beta, e) = (float)lab_uniform(l, 0, 1);
    thing_up(l, p.g), thing_up(l, p.beta);
    p.o = thing_new(l, LAB_ACT, 3, 3, p.n, p.heads, p.d);
    p.pos = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, p.n), pos);
    p.seq = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, p.n), seq);
    return p;
}

static struct cairn_kda args(const struct problem *p)
{
    return (struct cairn_kda){.q = p->q->t,
                              .k = p->k->t,
                              .v = p->v->t,
                              .g = p->g->t,
                              .beta = p->beta->t,
                              .o = p->o->t,
                              .pos = p->pos->t,
                              .seq = p->seq->t,
                              .scale = p->scale,
                              .eps = p->eps};
}

/* Rows n .. n + count of everything. */
static struct cairn_kda part(struct cairn_kda a, int n, int count)
{
    struct cairn_tensor *t[] = {&a.q, &a.k, &a.v, &a.g, &a.beta, &a.o, &a.pos, &a.seq};

    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        *t[i] = cairn_tensor_slice(t[i], 0, n, count);
    return a;
}

static struct thing *state_new(struct lab *l, const struct problem *p, int slots)
{
    return thing_new(l, CAIRN_F32, 0, 4, slots, p->heads, CAIRN_KDA_ROWS(p->d), p->d); /* NaN all over */
}

static void forward(struct lab *l)
{
    for (size_t i = 0; i < SHAPES; i++)
        for (int small = 0; small < 2; small++) {
            struct problem p = problem_new(l, i, small ? 3e-4 : 1);
            struct thing *o2 = thing_like(l, p.o, 1);
            struct cairn_kda a = args(&p);

            LAB_OK(l, l->fast->kda(&l->c.stream, &a, &l->err));
            a.o = o2->t;
            LAB_OK(l, l->ref->kda(&l->c.stream, &a, &l->err));
            thing_down(l, p.o), thing_down(l, o2);
            lab_near(l, shapes[i].why, p.o, o2, 2e-5, 2e-5);
            lab_clear(l);
        }
}

/* Sequences in calls of any size, several at once, states poisoned at first; forked on the way. */
static void pieces(struct lab *l)
{
    for (size_t i = 0; i < SHAPES; i++) {
        struct problem p = problem_new(l, i, 1);
        struct thing *state = state_new(l, &p, 9), *o2 = thing_like(l, p.o, 1), *seq2, *fork;
        struct cairn_kda whole = args(&p), a = whole;
        int at[MOST_SEQS] = {0}, left = p.n, size = p.heads * CAIRN_KDA_ROWS(p.d) * p.d;

        LAB_OK(l, l->fast->kda(&l->c.stream, &whole, &l->err));
        a.o = o2->t, a.state = state->t;
        while (left) {
            int s = lab_int(l, 0, p.seqs - 1), len = p.begin[s + 1] - p.begin[s], n = lab_int(l, 0, 2) ? 1 : lab_int(l, 1, 40);
            struct cairn_kda one;

            if (n > len - at[s])
                n = len - at[s];
            one = part(a, p.begin[s] + at[s], n);
            LAB_OK(l, l->fast->kda(&l->c.stream, &one, &l->err));
            at[s] += n, left -= n;
            if (lab_int(l, 0, 3))
                continue;
            /* the sequence moves: a copy of its state goes on, the old one is poisoned */
            thing_down(l, state);
            seq2 = thing_like(l, p.seq, 0);
            thing_down(l, seq2);
            for (int e = p.begin[s]; e < p.begin[s + 1]; e++)
                *thing_i(seq2, e) = *thing_i(p.seq, e) == s ? s + 4 : s;
            fork = thing_like(l, state, 0);
            memcpy(fork->h + (size_t)*thing_i(seq2, p.begin[s]) * (size_t)size * 4,
                   state->h + (size_t)*thing_i(p.seq, p.begin[s]) * (size_t)size * 4, (size_t)size * 4);
            memset(fork->h + (size_t)*thing_i(p.seq, p.begin[s]) * (size_t)size * 4, 0xff, (size_t)size * 4);
            thing_up(l, fork), thing_up(l, seq2);
            p.seq = seq2, state = fork;
            a.seq = seq2->t, a.state = fork->t;
        }
        thing_down(l, p.o), thing_down(l, o2);
        lab_equal_bits(l, shapes[i].why, o2, p.o);
        lab_clear(l);
    }
}

/* One row of each of many sequences in a call, as a sampler has it. */
static void decode(struct lab *l)
{
    enum { SEQS = 3, LEN = 35, H = 2, D = 16 };
    struct problem p = {.heads = H, .d = D, .n = SEQS * LEN, .scale = 0.25f, .eps = 1e-6f};
    int32_t pos[SEQS * LEN], seq[SEQS * LEN];
    struct thing *state, *o2, *whole[6];
    struct cairn_kda a;

    for (int i = 0; i < p.n; i++)
        pos[i] = i % LEN, seq[i] = i / LEN;
    p.q = thing_normal(l, thing_new(l, LAB_ACT, 0, 3, p.n, H, D), 1);
    p.k = thing_normal(l, thing_new(l, LAB_ACT, 0, 3, p.n, H, D), 1);
    p.v = thing_normal(l, thing_new(l, LAB_ACT, 0, 3, p.n, H, D), 1);
    p.g = thing_new(l, CAIRN_F32, 0, 3, p.n, H, D);
    for (int64_t e = 0; e < thing_count(p.g); e++)
        *thing_f(p.g, e) = (float)lab_uniform(l, -1, 0);
    thing_up(l, p.g);
    p.beta = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, p.n, H), 0.5f);
    p.o = thing_new(l, LAB_ACT, 0, 3, p.n, H, D);
    p.pos = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, p.n), pos);
    p.seq = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, p.n), seq);
    state = state_new(l, &p, SEQS);
    a = args(&p);
    LAB_OK(l, l->fast->kda(&l->c.stream, &a, &l->err));
    thing_down(l, p.o);
    /* the same rows by position: row r of step t is sequence SEQS - 1 - r */
    whole[0] = p.q, whole[1] = p.k, whole[2] = p.v, whole[3] = p.g, whole[4] = p.beta, whole[5] = p.o;
    for (int t = 0; t < LEN; t++) {
        struct problem step = p;
        struct thing **now[] = {&step.q, &step.k, &step.v, &step.g, &step.beta, &step.o};
        int32_t step_pos[SEQS], step_seq[SEQS];
        int keep = l->n;

        for (int w = 0; w < 6; w++) {
            int per = w == 4 ? H : H * D;

            *now[w] = w == 4   ? thing_new(l, CAIRN_F32, 0, 2, SEQS, H)
                      : w == 3 ? thing_new(l, CAIRN_F32, 0, 3, SEQS, H, D)
                               : thing_new(l, LAB_ACT, 0, 3, SEQS, H, D);
            for (int r = 0; w < 5 && r < SEQS; r++)
                for (int e = 0; e < per; e++)
                    *thing_f(*now[w], r * per + e) = *thing_f(whole[w], ((SEQS - 1 - r) * LEN + t) * per + e);
            thing_up(l, *now[w]);
        }
        for (int r = 0; r < SEQS; r++)
            step_pos[r] = t, step_seq[r] = SEQS - 1 - r;
        step.pos = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, SEQS), step_pos);
        step.seq = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, SEQS), step_seq);
        a = args(&step);
        a.state = state->t;
        LAB_OK(l, l->fast->kda(&l->c.stream, &a, &l->err));
        thing_down(l, step.o);
        o2 = thing_like(l, step.o, 1);
        for (int r = 0; r < SEQS; r++)
            for (int e = 0; e < H * D; e++)
                *thing_f(o2, r * H * D + e) = *thing_f(p.o, ((SEQS - 1 - r) * LEN + t) * H * D + e);
        lab_equal_bits(l, "a row of each sequence", step.o, o2);
        while (l->n > keep) {
            struct thing *x = l->things[--l->n];

            cairn_buffer_destroy(x->buf);
            free(x->h);
            free(x);
        }
    }
}

struct gradients {
    struct thing *d_o, *dq, *dk, *dv, *dg, *dbeta;
};

static struct gradients gradients_new(struct lab *l, const struct problem *p, struct thing *d_o)
{
    struct gradients g = {.d_o = d_o ? d_o : thing_normal(l, thing_new(l, LAB_ACT, 1, 3, p->n, p->heads, p->d), 1)};

    g.dq = thing_new(l, LAB_ACT, 1, 3, p->n, p->heads, p->d);
    g.dk = thing_new(l, LAB_ACT, 0, 3, p->n, p->heads, p->d);
    g.dv = thing_new(l, LAB_ACT, 2, 3, p->n, p->heads, p->d);
    g.dg = thing_new(l, CAIRN_F32, 0, 3, p->n, p->heads, p->d);
    g.dbeta = thing_new(l, CAIRN_F32, 0, 2, p->n, p->heads);
    return g;
}

static struct cairn_kda_bwd bwd_args(const struct problem *p, const struct gradients *g)
{
    return (struct cairn_kda_bwd){.q = p->q->t,
                                  .k = p->k->t,
                                  .v = p->v->t,
                                  .g = p->g->t,
                                  .beta = p->beta->t,
                                  .d_o = g->d_o->t,
                                  .dq = g->dq->t,
                                  .dk = g->dk->t,
                                  .dv = g->dv->t,
                                  .dg = g->dg->t,
                                  .dbeta = g->dbeta->t,
                                  .pos = p->pos->t,
                                  .seq = p->seq->t,
                                  .scale = p->scale,
                                  .eps = p->eps};
}

static void gradients_down(struct lab *l, const struct gradients *g)
{
    thing_down(l, g->dq), thing_down(l, g->dk), thing_down(l, g->dv), thing_down(l, g->dg), thing_down(l, g->dbeta);
}

static void gradients_equal(struct lab *l, const char *why, const struct gradients *a, const struct gradients *b)
{
    lab_equal_bits(l, why, a->dq, b->dq);
    lab_equal_bits(l, why, a->dk, b->dk);
    lab_equal_bits(l, why, a->dv, b->dv);
    lab_equal_bits(l, why, a->dg, b->dg);
    lab_equal_bits(l, why, a->dbeta, b->dbeta);
}

static void backward(struct lab *l)
{
    for (size_t i = 0; i < SHAPES; i++) {
        struct problem p = problem_new(l, i, 1);
        struct gradients g = gradients_new(l, &p, NULL), g2 = gradients_new(l, &p, g.d_o), g3 = gradients_new(l, &p, g.d_o);
        struct cairn_kda_bwd a = bwd_args(&p, &g), b = bwd_args(&p, &g2), c = bwd_args(&p, &g3);

        LAB_OK(l, l->fast->kda_bwd(&l->c.stream, &a, &l->err));
        LAB_OK(l, l->ref->kda_bwd(&l->c.stream, &b, &l->err));
        gradients_down(l, &g), gradients_down(l, &g2);
        lab_near(l, shapes[i].why, g.dq, g2.dq, 1e-4, 3e-5);
        lab_near(l, shapes[i].why, g.dk, g2.dk, 1e-4, 1e-4);
        lab_near(l, shapes[i].why, g.dv, g2.dv, 1e-4, 1e-4);
        lab_near(l, shapes[i].why, g.dg, g2.dg, 1e-4, 2e-4);
        lab_near(l, shapes[i].why, g.dbeta, g2.dbeta, 1e-4, 2e-4);
        /* sequences alone, another number of threads */
        l->c.backend->set_threads(l->c.dev, 3);
        for (int s = 0; s < p.seqs; s++) {
            struct cairn_kda_bwd one = c;
            struct cairn_tensor *t[] = {&one.q,  &one.k,  &one.v,  &one.g,     &one.beta, &one.d_o, &one.dq,
                                        &one.dk, &one.dv, &one.dg, &one.dbeta, &one.pos,  &one.seq};

            for (size_t e = 0; e < sizeof t / sizeof *t; e++)
                *t[e] = cairn_tensor_slice(t[e], 0, p.begin[s], p.begin[s + 1] - p.begin[s]);
            LAB_OK(l, l->fast->kda_bwd(&l->c.stream, &one, &l->err));
        }
        l->c.backend->set_threads(l->c.dev, 0);
        gradients_down(l, &g3);
        gradients_equal(l, "sequences alone", &g3, &g);
        lab_clear(l);
    }
}

/* Gradients in the place of the inputs. */
static void in_place(struct lab *l)
{
    struct problem p = problem_new(l, 3, 1);
    struct gradients g = gradients_new(l, &p, NULL), same = {g.d_o, p.q, p.k, p.v, p.g, thing_like(l, g.dbeta, 1)};
    struct cairn_kda_bwd a = bwd_args(&p, &g);

    LAB_OK(l, l->fast->kda_bwd(&l->c.stream, &a, &l->err));
    a = bwd_args(&p, &same);
    LAB_OK(l, l->fast->kda_bwd(&l->c.stream, &a, &l->err));
    gradients_down(l, &g), gradients_down(l, &same);
    gradients_equal(l, "in place", &same, &g);
}

/* A sequence of more chunks than one segment of states. */
static void many_chunks(struct lab *l)
{
    enum { N = 1300, D = 16 };
    struct problem p = {.heads = 1, .d = D, .n = lab_small() ? 150 : N, .scale = 0.25f, .eps = 1e-6f};
    int32_t pos[N], seq[N] = {0};
    struct gradients g, g2;
    struct cairn_kda_bwd a;

    for (int i = 0; i < N; i++)
        pos[i] = i;
    p.q = thing_normal(l, thing_new(l, LAB_ACT, 0, 3, p.n, 1, D), 1);
    p.k = thing_normal(l, thing_new(l, LAB_ACT, 0, 3, p.n, 1, D), 1);
    p.v = thing_normal(l, thing_new(l, LAB_ACT, 0, 3, p.n, 1, D), 1);
    p.g = thing_new(l, CAIRN_F32, 0, 3, p.n, 1, D);
    p.beta = thing_new(l, CAIRN_F32, 0, 2, p.n, 1);
    for (int64_t e = 0; e < thing_count(p.g); e++)
        *thing_f(p.g, e) = (float)lab_uniform(l, -0.1, 0);
    for (int64_t e = 0; e < thing_count(p.beta); e++)
        *thing_f(p.beta, e) = (float)lab_uniform(l, 0, 1);
    thing_up(l, p.g), thing_up(l, p.beta);
    p.pos = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, p.n), pos);
    p.seq = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, p.n), seq);
    g = gradients_new(l, &p, NULL), g2 = gradients_new(l, &p, g.d_o);
    a = bwd_args(&p, &g);
    LAB_OK(l, l->fast->kda_bwd(&l->c.stream, &a, &l->err));
    a = bwd_args(&p, &g2);
    LAB_OK(l, l->ref->kda_bwd(&l->c.stream, &a, &l->err));
    gradients_down(l, &g), gradients_down(l, &g2);
    lab_near(l, "dq", g.dq, g2.dq, 1e-4, 1e-4);
    lab_near(l, "dk", g.dk, g2.dk, 1e-4, 4e-4);
    lab_near(l, "dv", g.dv, g2.dv, 1e-4, 2e-4);
    lab_near(l, "dg", g.dg, g2.dg, 1e-4, 4e-3); /* a difference of large sums */
    lab_near(l, "dbeta", g.dbeta, g2.dbeta, 1e-4, 4e-4);
}

/* sum of o * d_o of one sequence and head, by the recurrence in fp64. x: q, k, v, g (T, D each), beta (T). */
static double formula(const double *x, const struct thing *d_o, int T, int D, double scale, double eps)
{
    const double *q = x, *k = q + T * D, *v = k + T * D, *g = v + T * D, *beta = g + T * D;
    double S[16][16] = {{0}}, L = 0;

    for (int t = 0; t < T; t++) {
        double nq = eps, nk = eps, written[16];

        for (int i = 0; i < D; i++)
            nq += q[t * D + i] * q[t * D + i], nk += k[t * D + i] * k[t * D + i];
        nq = scale / sqrt(nq), nk = 1 / sqrt(nk);
        for (int j = 0; j < D; j++) {
            double read = 0;

            for (int i = 0; i < D; i++) {
                S[i][j] *= exp(g[t * D + i]);
                read += S[i][j] * k[t * D + i] * nk;
            }
            written[j] = beta[t] * (v[t * D + j] - read);
        }
        for (int i = 0; i < D; i++)
            for (int j = 0; j < D; j++) {
                S[i][j] += k[t * D + i] * nk * written[j];
                L += q[t * D + i] * nq * S[i][j] * *thing_f(d_o, t * D + j);
            }
    }
    return L;
}

static void the_derivative(struct lab *l)
{
    for (int small = 0; small < 2; small++) {
        enum { T = 21, D = 8 };
        struct problem p = {.heads = 1, .d = D, .n = T, .scale = 0.3f, .eps = 1e-2f};
        int32_t pos[T], seq[T] = {0};
        double x[4 * T * D + T], step = 1e-5;
        struct gradients g;
        struct cairn_kda_bwd a;

        for (int i = 0; i < T; i++)
            pos[i] = i;
        p.q = thing_normal(l, thing_new(l, CAIRN_F32, 0, 3, T, 1, D), small ? 0.03f : 1);
        p.k = thing_normal(l, thing_new(l, CAIRN_F32, 0, 3, T, 1, D), small ? 0.03f : 1);
        p.v = thing_normal(l, thing_new(l, CAIRN_F32, 0, 3, T, 1, D), 1);
        p.g = thing_new(l, CAIRN_F32, 0, 3, T, 1, D);
        p.beta = thing_new(l, CAIRN_F32, 0, 2, T, 1);
        for (int64_t e = 0; e < thing_count(p.g); e++)
            *thing_f(p.g, e) = (float)lab_uniform(l, -1, 0);
        for (int64_t e = 0; e < T; e++)
            *thing_f(p.beta, e) = (float)lab_uniform(l, 0, 1);
        thing_up(l, p.g), thing_up(l, p.beta);
        p.pos = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, T), pos);
        p.seq = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, T), seq);
        g = gradients_new(l, &p, thing_normal(l, thing_new(l, CAIRN_F32, 0, 3, T, 1, D), 1));
        g.dq = thing_new(l, CAIRN_F32, 0, 3, T, 1, D), g.dk = thing_like(l, g.dq, 1), g.dv = thing_like(l, g.dq, 1);
        a = bwd_args(&p, &g);
        LAB_OK(l, l->fast->kda_bwd(&l->c.stream, &a, &l->err));
        gradients_down(l, &g);
        for (int w = 0; w < 5; w++) {
            const struct thing *in[] = {p.q, p.k, p.v, p.g, p.beta};

            for (int i = 0; i < (w < 4 ? T * D : T); i++)
                x[w * T * D + i] = *thing_f(in[w], i);
        }
        for (int w = 0; w < 5; w++)
            for (int i = 0; i < (w < 4 ? T * D : T); i++) {
                const struct thing *out[] = {g.dq, g.dk, g.dv, g.dg, g.dbeta};
                double was = x[w * T * D + i], up, down, got = *thing_f(out[w], i);

                x[w * T * D + i] = was + step;
                up = formula(x, g.d_o, T, D, (double)p.scale, (double)p.eps);
                x[w * T * D + i] = was - step;
                down = formula(x, g.d_o, T, D, (double)p.scale, (double)p.eps);
                x[w * T * D + i] = was;
                if (!(fabs((up - down) / (2 * step) - got) < 2e-5 * (1 + fabs(got))))
                    fail_msg("%s: input %d, element %d: %.9g, by differences %.9g", l->device, w, i, got, (up - down) / (2 * step));
            }
        lab_clear(l);
    }
}

static void refusals(struct lab *l)
{
    static const struct {
        int32_t pos[4], seq[4];
        int state;
        const char *why;
    } bad[] = {
        {{0, 1, 2, 3}, {0, 0, 0, 9}, 1, "no such sequence"},  {{0, 1, 3, 4}, {0, 0, 0, 0}, 1, "a gap"},
        {{0, 1, 0, 2}, {0, 0, 1, 0}, 1, "two runs"},          {{5, 6, 7, 8}, {0, 0, 0, 0}, 0, "a sequence without its begin"},
        {{-1, 0, 1, 2}, {0, 0, 0, 0}, 1, "before the begin"}, {{0, 1, 0, 1}, {0, 0, -1, -1}, 1, "a negative sequence"},
    };
    struct problem p = problem_new(l, 0, 1);
    struct thing *state = state_new(l, &p, 2);

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct thing *x[5];
        struct cairn_kda a = args(&p);

        for (int e = 0; e < 4; e++)
            x[e] = thing_normal(l, thing_new(l, LAB_ACT, 0, 3, 4, 1, 4), 1);
        a.q = x[0]->t, a.k = x[1]->t, a.v = x[2]->t, a.o = x[3]->t;
        a.g = thing_normal(l, thing_new(l, CAIRN_F32, 0, 3, 4, 1, 4), 0)->t;
        a.beta = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, 4, 1), 0)->t;
        a.pos = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, 4), bad[i].pos)->t;
        a.seq = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, 4), bad[i].seq)->t;
        if (bad[i].state)
            a.state = state->t;
        LAB_REFUSES(l, l->fast->kda(&l->c.stream, &a, &l->err));
    }
    {
        struct cairn_kda a = args(&p);

        a.state = thing_new(l, CAIRN_F32, 0, 4, 2, p.heads, p.d, p.d)->t;
        LAB_REFUSES(l, l->fast->kda(&l->c.stream, &a, &l->err));
    }
}

ON_EACH_DEVICE(forward)
ON_EACH_DEVICE(pieces)
ON_EACH_DEVICE(decode)
ON_EACH_DEVICE(backward)
ON_EACH_DEVICE(in_place)
ON_EACH_DEVICE(many_chunks)
ON_EACH_DEVICE(the_derivative)
ON_EACH_DEVICE(refusals)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_test),        cmocka_unit_test(pieces_test),   cmocka_unit_test(decode_test),
        cmocka_unit_test(backward_test),       cmocka_unit_test(in_place_test), cmocka_unit_test(many_chunks_test),
        cmocka_unit_test(the_derivative_test), cmocka_unit_test(refusals_test),
    };

    return LAB_RUN(tests);
}

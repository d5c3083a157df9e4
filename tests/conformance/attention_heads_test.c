/* attention_heads_test.c - attention_heads_bwd: against the reference, whose gradients are held against finite differences of an
 * fp64 formula; sequences alone against packed; sequences that are left out.
 */
#include "lab.h"

struct shape {
    int H, nope, R, V;
};
struct packed {
    int B, lengths[4], longest;
    const char *why;
};

static const struct shape shapes[] = {{2, 128, 64, 128}, {3, 40, 16, 24}, {1, 8, 8, 8}, {2, 64, 32, 128}};
static const struct packed packs[] = {
    {1, {1}, 64, "one token"},
    {1, {200}, 200, "tiles and steps that end inside"},
    {3, {5, 64, 131}, 500, "three sequences"},
    {4, {129, 0, 70, 128}, 128, "one is empty, one too long"},
};

struct room {
    int N;
    struct thing *q_nope, *q_rope, *k_nope, *k_rope, *v, *o, *lse, *d_o, *dq, *dk_nope, *dk_rope, *dv;
    struct cairn_attention_heads_bwd a;
};

static int takes(const struct lab *l, const struct shape *d)
{
    int (*fits)(const struct cairn_device *, enum cairn_dtype, int, int, int) = l->c.backend->attention_heads_fits;

    return l->ref != &lab_mirrored ||
           (fits && fits(l->c.dev, l->act, d->nope, d->R, d->V)); /* a back-end with a reference has it for all */
}

static double logit(const struct room *m, const struct shape *d, int n, int s, int h, double scale)
{
    double sum = 0;

    for (int i = 0; i < d->nope; i++)
        sum += (double)*thing_f(m->q_nope, ((int64_t)n * d->H + h) * d->nope + i) *
               *thing_f(m->k_nope, ((int64_t)s * d->H + h) * d->nope + i);
    for (int i = 0; i < d->R; i++)
        sum += (double)*thing_f(m->q_rope, ((int64_t)n * d->H + h) * d->R + i) * *thing_f(m->k_rope, (int64_t)s * d->R + i);
    return sum * scale;
}

/* o and lse of row n, from the images; and sum of d_o o. */
static double forward_row(const struct room *m, const struct shape *d, int first, int n, int h, double scale, double *lse,
                          double *o)
{
    double most = -INFINITY, total = 0, sum = 0, l[256];

    for (int s = first; s <= n; s++) {
        l[s - first] = logit(m, d, n, s, h, scale);
        most = fmax(most, l[s - first]);
    }
    for (int s = first; s <= n; s++)
        total += exp(l[s - first] - most);
    *lse = most + log(total);
    for (int i = 0; i < d->V; i++)
        o[i] = 0;
    for (int s = first; s <= n; s++) {
        double p = exp(l[s - first] - *lse);

        for (int i = 0; i < d->V; i++)
            o[i] += p * *thing_f(m->v, ((int64_t)s * d->H + h) * d->V + i);
    }
    for (int i = 0; i < d->V; i++)
        sum += o[i] * *thing_f(m->d_o, ((int64_t)n * d->H + h) * d->V + i);
    return sum;
}

static struct thing *rows3(struct lab *l, int N, int H, int wide)
{
    return thing_normal(l, thing_new(l, LAB_ACT, 8, 3, N, H, wide), 1);
}

static void make(struct lab *l, const struct packed *p, const struct shape *d, struct room *m)
{
    int32_t start[4];
    double o[128], lse, scale = 1 / sqrt(d->nope + d->R);

    m->N = 0;
    for (int b = 0; b < p->B; m->N += p->lengths[b++])
        start[b] = m->N;
    m->q_nope = rows3(l, m->N, d->H, d->nope), m->q_rope = rows3(l, m->N, d->H, d->R);
    m->k_nope = rows3(l, m->N, d->H, d->nope), m->k_rope = thing_normal(l, thing_new(l, LAB_ACT, 8, 2, m->N, d->R), 1);
    m->v = rows3(l, m->N, d->H, d->V), m->o = rows3(l, m->N, d->H, d->V), m->d_o = rows3(l, m->N, d->H, d->V);
    m->lse = thing_new(l, CAIRN_F32, 0, 2, m->N, d->H);
    m->dq = rows3(l, m->N, d->H, d->nope + d->R), m->dk_nope = rows3(l, m->N, d->H, d->nope), m->dv = rows3(l, m->N, d->H, d->V);
    m->dk_rope = thing_normal(l, thing_new(l, CAIRN_F32, 4, 2, m->N, d->R), 1);
    for (int b = 0; b < p->B; b++)
        for (int n = start[b]; n < start[b] + p->lengths[b]; n++)
            for (int h = 0; h < d->H; h++) {
                forward_row(m, d, start[b], n, h, scale, &lse, o);
                *thing_f(m->lse, (int64_t)n * d->H + h) = (float)lse;
                for (int i = 0; i < d->V; i++)
                    *thing_f(m->o, ((int64_t)n * d->H + h) * d->V + i) = (float)o[i];
            }
    thing_up(l, m->lse);
    thing_up(l, m->o);
    m->a = (struct cairn_attention_heads_bwd){.q_nope = m->q_nope->t,
                                              .q_rope = m->q_rope->t,
                                              .k_nope = m->k_nope->t,
                                              .k_rope = m->k_rope->t,
                                              .v = m->v->t,
                                              .o = m->o->t,
                                              .lse = m->lse->t,
                                              .d_o = m->d_o->t,
                                              .dq = m->dq->t,
                                              .dk_nope = m->dk_nope->t,
                                              .dk_rope = m->dk_rope->t,
                                              .dv = m->dv->t,
                                              .start = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, p->B), start)->t,
                                              .longest = p->longest,
                                              .scale = (float)scale};
}

/* |a - b| over |b|, of rows first .. first + count. */
static void near(struct lab *l, const char *why, const char *what, const struct thing *a, const struct thing *b)
{
    double diff = 0, norm = 0, most = lab_rounds(l) ? 6e-3 : 1e-6;

    for (int64_t i = 0; i < thing_count(a); i++) {
        double x = thing_value(a, i), y = thing_value(b, i);

        diff += (x - y) * (x - y);
        norm += y * y + 1e-6;
    }
    if (!(diff <= most * most * norm))
        fail_msg("%s: %s: %s is off by %.3g of its norm", l->device, why, what, sqrt(diff / norm));
}

static void is_right(struct lab *l)
{
    for (size_t i = 0; i < sizeof packs / sizeof *packs; i++)
        for (size_t j = 0; j < sizeof shapes / sizeof *shapes; j++) {
            struct room m;
            struct thing *dq, *dk_nope, *dk_rope, *dv;
            struct cairn_attention_heads_bwd a;

            if (!takes(l, &shapes[j]) || (lab_small() && (i + j) % 2))
                continue;
            make(l, &packs[i], &shapes[j], &m);
            dq = thing_like(l, m.dq, 0), dk_nope = thing_like(l, m.dk_nope, 1), dk_rope = thing_like(l, m.dk_rope, 0),
            dv = thing_like(l, m.dv, 1);
            a = m.a;
            a.dq = dq->t, a.dk_nope = dk_nope->t, a.dk_rope = dk_rope->t, a.dv = dv->t;
            LAB_OK(l, l->fast->attention_heads_bwd(&l->c.stream, &m.a, &l->err));
            LAB_OK(l, l->ref->attention_heads_bwd(&l->c.stream, &a, &l->err));
            thing_down(l, dq), thing_down(l, m.dq), thing_down(l, dk_nope), thing_down(l, m.dk_nope);
            thing_down(l, dk_rope), thing_down(l, m.dk_rope), thing_down(l, dv), thing_down(l, m.dv);
            near(l, packs[i].why, "dq", m.dq, dq);
            near(l, packs[i].why, "dk_nope", m.dk_nope, dk_nope);
            near(l, packs[i].why, "dk_rope", m.dk_rope, dk_rope);
            near(l, packs[i].why, "dv", m.dv, dv);
            lab_clear(l);
        }
}

/* What is left out is neither written nor counted; each sequence alone has the bits that it has packed. */
static void alone_as_packed(struct lab *l)
{
    const struct packed *p = &packs[3];
    struct thing *was, *dq, *dk_nope, *dk_rope, *dv;
    struct room m;
    const int32_t zero = 0;

    if (!takes(l, &shapes[0]))
        return;
    make(l, p, &shapes[0], &m);
    was = thing_like(l, m.dq, 0);
    memset(m.dk_rope->h, 0, m.dk_rope->bytes);
    thing_up(l, m.dk_rope);
    dq = thing_like(l, m.dq, 0), dk_nope = thing_like(l, m.dk_nope, 1), dk_rope = thing_like(l, m.dk_rope, 0),
    dv = thing_like(l, m.dv, 1);
    LAB_OK(l, l->fast->attention_heads_bwd(&l->c.stream, &m.a, &l->err));
    for (int b = 0, n = 0; b < p->B; n += p->lengths[b++]) {
        struct cairn_attention_heads_bwd a = m.a;
        struct cairn_tensor *t[] = {&a.q_nope, &a.q_rope, &a.k_nope, &a.k_rope,  &a.v,       &a.o,
                                    &a.lse,    &a.d_o,    &a.dq,     &a.dk_nope, &a.dk_rope, &a.dv};

        a.dq = dq->t, a.dk_nope = dk_nope->t, a.dk_rope = dk_rope->t, a.dv = dv->t;
        for (size_t i = 0; i < sizeof t / sizeof *t; i++)
            *t[i] = cairn_tensor_slice(t[i], 0, n, p->lengths[b]);
        a.start = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, 1), &zero)->t;
        LAB_OK(l, l->fast->attention_heads_bwd(&l->c.stream, &a, &l->err));
    }
    thing_down(l, dq), thing_down(l, m.dq), thing_down(l, dk_nope), thing_down(l, m.dk_nope);
    thing_down(l, dk_rope), thing_down(l, m.dk_rope), thing_down(l, dv), thing_down(l, m.dv);
    lab_equal_bits(l, "dq", dq, m.dq);
    lab_equal_bits(l, "dk_nope", dk_nope, m.dk_nope);
    lab_equal_bits(l, "dk_rope", dk_rope, m.dk_rope);
    lab_equal_bits(l, "dv", dv, m.dv);
    for (int64_t i = 0; i < (int64_t)p->lengths[0] * shapes[0].H; i++) { /* the first is too long */
        for (int w = 0; w < shapes[0].nope + shapes[0].R; w++)
            assert_true(thing_value(m.dq, i * (shapes[0].nope + shapes[0].R) + w) ==
                        thing_value(was, i * (shapes[0].nope + shapes[0].R) + w));
        for (int w = 0; w < shapes[0].V; w++)
            assert_true(thing_value(m.dv, i * shapes[0].V + w) == 0);
    }
}

/* sum of d_o o over all rows of one sequence. */
static double objective(const struct room *m, const struct shape *d, double scale)
{
    double sum = 0, lse, o[128];

    for (int n = 0; n < m->N; n++)
        for (int h = 0; h < d->H; h++)
            sum += forward_row(m, d, 0, n, h, scale, &lse, o);
    return sum;
}

static void is_the_derivative(struct lab *l)
{
    static const struct packed p = {1, {12}, 12, ""};
    static const struct shape d = {2, 8, 8, 8};
    const double step = 0x1p-10;
    struct room m;
    struct {
        struct thing *of, *grad;
        int grad_skip, grad_wide, wide; /* element i of `of` is element grad_skip + i / wide * grad_wide + i % wide of grad */
    } part[5];

    if (!takes(l, &d))
        return;
    make(l, &p, &d, &m);
    memset(m.dk_rope->h, 0, m.dk_rope->bytes);
    thing_up(l, m.dk_rope);
    LAB_OK(l, l->fast->attention_heads_bwd(&l->c.stream, &m.a, &l->err));
    thing_down(l, m.dq), thing_down(l, m.dk_nope), thing_down(l, m.dk_rope), thing_down(l, m.dv);
    part[0].of = m.q_nope, part[0].grad = m.dq, part[0].grad_skip = 0, part[0].grad_wide = d.nope + d.R, part[0].wide = d.nope;
    part[1].of = m.q_rope, part[1].grad = m.dq, part[1].grad_skip = d.nope, part[1].grad_wide = d.nope + d.R, part[1].wide = d.R;
    part[2].of = m.k_nope, part[2].grad = m.dk_nope, part[2].grad_skip = 0, part[2].grad_wide = part[2].wide = d.nope;
    part[3].of = m.k_rope, part[3].grad = m.dk_rope, part[3].grad_skip = 0, part[3].grad_wide = part[3].wide = d.R;
    part[4].of = m.v, part[4].grad = m.dv, part[4].grad_skip = 0, part[4].grad_wide = part[4].wide = d.V;
    for (int k = 0; k < 5; k++) {
        double want = 0, got = 0, size = 0, up = 0, down = 0;

        for (int sign = 1; sign >= -1; sign -= 2) { /* along a direction of +-1 */
            for (int64_t i = 0; i < thing_count(part[k].of); i++)
                *thing_f(part[k].of, i) += (float)((sign > 0 ? 1 : -2) * step * (i * 7 % 3 == 1 ? -1 : 1));
            if (sign > 0)
                up = objective(&m, &d, m.a.scale);
            else
                down = objective(&m, &d, m.a.scale);
        }
        for (int64_t i = 0; i < thing_count(part[k].of); i++) {
            double g = thing_value(part[k].grad, part[k].grad_skip + i / part[k].wide * part[k].grad_wide + i % part[k].wide);

            *thing_f(part[k].of, i) += (float)(step * (i * 7 % 3 == 1 ? -1 : 1));
            got += g * (i * 7 % 3 == 1 ? -1 : 1);
            size += g * g;
        }
        want = (up - down) / (2 * step);
        if (!(fabs(want - got) <= (lab_rounds(l) ? 0.02 : 1e-4) * sqrt(size) + 1e-4))
            fail_msg("%s: gradient %d along a direction is %.9g, should be %.9g", l->device, k, got, want);
    }
}

ON_EACH_DEVICE(is_right)
ON_EACH_DEVICE(alone_as_packed)
ON_EACH_DEVICE(is_the_derivative)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_right_test),
        cmocka_unit_test(alone_as_packed_test),
        cmocka_unit_test(is_the_derivative_test),
    };

    return LAB_RUN(tests);
}

/* loss_test.c - policy_loss: the vectors of the objective's specification, masking, gradients against finite differences of an fp64
 * formula, against the reference, statistics.
 */
#include "lab.h"

struct loss {
    struct thing *cur, *old, *smp, *ref, *adv, *weight, *entropy, *mask, *seq, *dcur, *dentropy, *stats;
    struct cairn_policy_loss a;
};

static struct loss make(struct lab *l, int n)
{
    struct loss k;
#define V(name) k.name = thing_new(l, CAIRN_F32, 0, 1, n)
    V(cur), V(old), V(smp), V(ref), V(adv), V(weight), V(entropy), V(dcur), V(dentropy);
#undef V
    k.mask = thing_new(l, CAIRN_U8, 0, 1, n);
    k.seq = thing_new(l, CAIRN_I32, 0, 1, n);
    k.stats = thing_new(l, CAIRN_F64, 0, 1, CAIRN_LS_COUNT);
    memset(k.stats->h, 0, k.stats->bytes);
    thing_up(l, k.stats);
    k.a = (struct cairn_policy_loss){.cur = k.cur->t,
                                     .old = k.old->t,
                                     .adv = k.adv->t,
                                     .weight = k.weight->t,
                                     .mask = k.mask->t,
                                     .dcur = k.dcur->t,
                                     .stats = k.stats->t,
                                     .clip_low = 0.2f,
                                     .clip_high = 0.28f};
    return k;
}

static void up(struct lab *l, struct loss *k)
{
    struct thing *all[] = {k->cur, k->old, k->smp, k->ref, k->adv, k->weight, k->entropy, k->mask, k->seq};

    for (int i = 0; i < 9; i++)
        thing_up(l, all[i]);
}

static double stat(const struct loss *k, int i)
{
    return ((const double *)k->stats->h)[i];
}

/* spec/objective.md, section 4 */
static void vectors(struct lab *l)
{
    static const struct {
        double A, rho, dual, loss, slope; /* slope: d L / d cur */
        int low, high;
    } cases[] = {
        {1, 1.5, 0, -1.28, 0, 0, 1},   {-1, 0.5, 0, 0.8, 0, 1, 0},    {-1, 5, 3, 3.0, 0, 0, 0}, {1, 0.5, 0, -0.5, -0.5, 0, 0},
        {-1, 5, 0, 5, 5, 0, 0},        {1, 1, 0, -1, -1, 0, 0},       {-1, 1, 0, 1, 1, 0, 0},   {0, 3, 0, 0, 0, 0, 0},
        {2, 1.2, 0, -2.4, -2.4, 0, 0}, {-2, 1.25, 3, 2.5, 2.5, 0, 0}, {-1, 2, 3, 2, 2, 0, 0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int reference = 0; reference < 2; reference++) {
            struct loss k = make(l, 1);

            *thing_f(k.old, 0) = -3;
            *thing_f(k.cur, 0) = (float)(-3 + log(cases[i].rho));
            *thing_f(k.adv, 0) = (float)cases[i].A;
            *thing_f(k.weight, 0) = 1;
            k.mask->h[0] = 1;
            up(l, &k);
            k.a.dual = (float)cases[i].dual;
            LAB_OK(l, (reference ? l->ref : l->fast)->policy_loss(&l->c.stream, &k.a, &l->err));
            thing_down(l, k.stats), thing_down(l, k.dcur);
            if (!(fabs(stat(&k, CAIRN_LS_POLICY) - cases[i].loss) < 1e-6 && fabs(*thing_f(k.dcur, 0) - cases[i].slope) < 1e-6))
                fail_msg("%s: case %zu: loss %.9g, slope %.9g", l->device, i, stat(&k, CAIRN_LS_POLICY), *thing_f(k.dcur, 0));
            assert_true(stat(&k, CAIRN_LS_CLIP_LOW) == cases[i].low && stat(&k, CAIRN_LS_CLIP_HIGH) == cases[i].high);
            assert_true(stat(&k, CAIRN_LS_TOKENS) == 1);
            lab_clear(l);
        }
}

/* k3 at x = -0.1 and 0.1; k1, k2 */
static void kl_vectors(struct lab *l)
{
    static const struct {
        enum cairn_kl kl;
        double x, want;
    } cases[] = {
        {CAIRN_KL_K3, -0.1, 0.0048374}, {CAIRN_KL_K3, 0.1, 0.0051709}, {CAIRN_KL_K1, 0.1, -0.1}, {CAIRN_KL_K2, -0.1, 0.005}};

    for (size_t i = 0; i < 4; i++) {
        struct loss k = make(l, 1);

        *thing_f(k.old, 0) = *thing_f(k.cur, 0) = -2;
        *thing_f(k.ref, 0) = (float)(-2 + cases[i].x);
        *thing_f(k.adv, 0) = 0;
        *thing_f(k.weight, 0) = 1;
        k.mask->h[0] = 1;
        up(l, &k);
        k.a.ref = k.ref->t, k.a.kl = cases[i].kl, k.a.kl_coef = 1;
        LAB_OK(l, l->fast->policy_loss(&l->c.stream, &k.a, &l->err));
        thing_down(l, k.stats);
        assert_true(fabs(stat(&k, CAIRN_LS_KL) - cases[i].want) < 1e-7);
        lab_clear(l);
    }
}

/* The loss in fp64, for finite differences. cut: the ratio whose clip is constant (cispo). */
static double formula(const struct loss *k, int N, const double *cur, const double *entropy, const double *fixed)
{
    const struct cairn_policy_loss *a = &k->a;
    double L = 0;

    for (int n = 0; n < N; n++) {
        double d = 0, count = 0, rho, clipped, A = *thing_f(k->adv, n), term, w = 1, x;

        if (!k->mask->h[n])
            continue;
        for (int m = 0; m < N; m++)
            if (k->mask->h[m] && (a->ratio == CAIRN_RATIO_SEQUENCE ? *thing_i(k->seq, m) == *thing_i(k->seq, n) : m == n))
                d += cur[m] - *thing_f(k->old, m), count++;
        rho = exp(d / count);
        clipped = fmin(fmax(a->ratio == CAIRN_RATIO_CISPO ? exp(fixed[n] - *thing_f(k->old, n)) : rho, 1 - (double)a->clip_low),
                       1 + (double)a->clip_high);
        if (a->ratio == CAIRN_RATIO_CISPO) {
            term = -A * clipped * cur[n];
        } else {
            term = fmax(-A * rho, -A * clipped);
            if (A < 0 && a->dual > 1)
                term = fmin(term, -a->dual * A);
        }
        if (a->correction != CAIRN_CORRECT_NONE) {
            w = exp((double)*thing_f(k->old, n) - *thing_f(k->smp, n));
            w = a->correction == CAIRN_CORRECT_TIS ? fmin(w, a->correct_high) : w < a->correct_low || w > a->correct_high ? 0 : w;
        }
        term *= w;
        if (a->kl_coef != 0) {
            x = *thing_f(k->ref, n) - cur[n];
            term += a->kl_coef * (a->kl == CAIRN_KL_K1 ? -x : a->kl == CAIRN_KL_K2 ? x * x / 2 : exp(x) - 1 - x);
        }
        L += *thing_f(k->weight, n) * (term - a->entropy_coef * entropy[n]);
    }
    return L;
}

static void gradients(struct lab *l)
{
    enum { N = 37 };

    for (int ratio = 0; ratio < 3; ratio++)
        for (int correction = 0; correction < 3; correction++)
            for (int kl = 0; kl < 3; kl++) {
                struct loss k = make(l, N), r;
                double cur[N], entropy[N], step = 1e-6, clip = 0;

                for (int n = 0; n < N; n++) {
                    *thing_f(k.cur, n) = (float)lab_uniform(l, -3, -0.1);
                    *thing_f(k.old, n) = *thing_f(k.cur, n) + (float)lab_uniform(l, -0.6, 0.6);
                    *thing_f(k.smp, n) = n % 5 ? *thing_f(k.old, n) + (float)lab_uniform(l, -0.9, 0.9) : *thing_f(k.old, n);
                    *thing_f(k.ref, n) = *thing_f(k.cur, n) + (float)lab_uniform(l, -0.5, 0.5);
                    *thing_f(k.adv, n) = n % 7 ? lab_normal(l) : 0;
                    *thing_f(k.weight, n) = (float)lab_uniform(l, 0.1, 0.3);
                    *thing_f(k.entropy, n) = (float)lab_uniform(l, 0, 3);
                    *thing_i(k.seq, n) = n / 9;
                    k.mask->h[n] = n % 4 != 1;
                    if (!k.mask->h[n]) { /* whatever is here must not matter */
                        *thing_f(k.cur, n) = n % 8 == 1 ? NAN : INFINITY;
                        *thing_f(k.old, n) = *thing_f(k.smp, n) = *thing_f(k.adv, n) = *thing_f(k.weight, n) =
                            *thing_f(k.entropy, n) = NAN;
                    }
                    cur[n] = *thing_f(k.cur, n);
                    entropy[n] = *thing_f(k.entropy, n);
                }
                up(l, &k);
                k.a.smp = k.smp->t, k.a.ref = k.ref->t, k.a.entropy = k.entropy->t, k.a.seq = k.seq->t,
                k.a.dentropy = k.dentropy->t;
                k.a.ratio = ratio, k.a.correction = correction, k.a.kl = kl;
                k.a.kl_coef = 0.3f, k.a.entropy_coef = 0.05f, k.a.dual = 1.4f, k.a.correct_low = 0.6f, k.a.correct_high = 1.5f;
                r = k;
                r.dcur = thing_like(l, k.dcur, 1), r.dentropy = thing_like(l, k.dentropy, 1), r.stats = thing_like(l, k.stats, 0);
                r.a.dcur = r.dcur->t, r.a.dentropy = r.dentropy->t, r.a.stats = r.stats->t;
                LAB_OK(l, l->fast->policy_loss(&l->c.stream, &k.a, &l->err));
                LAB_OK(l, l->ref->policy_loss(&l->c.stream, &r.a, &l->err));
                thing_down(l, k.dcur), thing_down(l, k.dentropy), thing_down(l, k.stats), thing_down(l, r.dcur),
                    thing_down(l, r.dentropy), thing_down(l, r.stats);
                lab_near(l, "dcur", k.dcur, r.dcur, 0x1p-22, 1e-9);
                lab_equal_bits(l, "dentropy", k.dentropy, r.dentropy);
                lab_near(l, "stats", k.stats, r.stats, 1e-12, 1e-12);
                for (int n = 0; n < N; n++) {
                    double was = cur[n], high, low, fixed[N];

                    if (!k.mask->h[n]) {
                        assert_true(*thing_f(k.dcur, n) == 0 && *thing_f(k.dentropy, n) == 0);
                        continue;
                    }
                    memcpy(fixed, cur, sizeof fixed);
                    cur[n] = was + step;
                    high = formula(&k, N, cur, entropy, fixed);
                    cur[n] = was - step;
                    low = formula(&k, N, cur, entropy, fixed);
                    cur[n] = was;
                    if (fabs((high - low) / (2 * step) - *thing_f(k.dcur, n)) > 1e-5)
                        fail_msg("%s: ratio %d, correction %d, kl %d, row %d: %.8g, the derivative %.8g", l->device, ratio,
                                 correction, kl, n, *thing_f(k.dcur, n), (high - low) / (2 * step));
                    assert_true(fabs(*thing_f(k.dentropy, n) + 0.05 * *thing_f(k.weight, n)) < 1e-7);
                }
                clip = stat(&k, CAIRN_LS_CLIP_LOW) + stat(&k, CAIRN_LS_CLIP_HIGH);
                assert_true((clip > 0 || ratio == CAIRN_RATIO_SEQUENCE) && clip < N);
                assert_true(stat(&k, CAIRN_LS_TOKENS) == 28 && stat(&k, CAIRN_LS_MISMATCH_EQUAL) == 6);
                {
                    double fixed[N];

                    memcpy(fixed, cur, sizeof fixed);
                    assert_true(fabs(stat(&k, CAIRN_LS_POLICY) + (double)k.a.kl_coef * stat(&k, CAIRN_LS_KL) -
                                     formula(&k, N, cur, (double[N]){0}, fixed)) < 1e-6);
                }
                /* a second call adds to the statistics */
                LAB_OK(l, l->fast->policy_loss(&l->c.stream, &k.a, &l->err));
                memcpy(r.stats->h, k.stats->h, k.stats->bytes);
                thing_down(l, k.stats);
                for (int i = 0; i < CAIRN_LS_COUNT; i++) {
                    double once = stat(&r, i), twice = stat(&k, i);
                    int keeps = i == CAIRN_LS_RATIO_MIN || i == CAIRN_LS_RATIO_MAX || i == CAIRN_LS_MISMATCH_MAX;

                    assert_true(fabs(twice - (keeps ? once : 2 * once)) < 1e-9);
                }
                lab_clear(l);
            }
}

/* More rows than a back-end takes in one piece; sequences of one row and of thousands. */
static void many_rows(struct lab *l)
{
    enum { N = 17000 };

    for (int ratio = 0; ratio < 3; ratio++) {
        struct loss k = make(l, N), r;

        for (int n = 0, seq = 0, left = 3; n < N; n++, left--) {
            if (!left) {
                seq += lab_int(l, 1, 3);
                left = n > 8000 ? lab_int(l, 1, 3000) : lab_int(l, 1, 90);
            }
            *thing_f(k.cur, n) = (float)lab_uniform(l, -3, -0.1);
            *thing_f(k.old, n) = *thing_f(k.cur, n) + (float)lab_uniform(l, -0.6, 0.6);
            *thing_f(k.smp, n) = n % 5 ? *thing_f(k.old, n) + (float)lab_uniform(l, -0.9, 0.9) : *thing_f(k.old, n);
            *thing_f(k.ref, n) = *thing_f(k.cur, n) + (float)lab_uniform(l, -0.5, 0.5);
            *thing_f(k.adv, n) = lab_normal(l);
            *thing_f(k.weight, n) = (float)lab_uniform(l, 0.1, 0.3);
            *thing_f(k.entropy, n) = (float)lab_uniform(l, 0, 3);
            *thing_i(k.seq, n) = seq;
            k.mask->h[n] = n % 4 != 1 && n / 512 != 7;
        }
        up(l, &k);
        k.a.smp = k.smp->t, k.a.ref = k.ref->t, k.a.entropy = k.entropy->t, k.a.seq = k.seq->t;
        k.a.ratio = (enum cairn_ratio)ratio, k.a.correction = CAIRN_CORRECT_TIS, k.a.kl = CAIRN_KL_K3;
        k.a.kl_coef = 0.3f, k.a.dual = 1.4f, k.a.correct_high = 1.5f;
        r = k;
        r.dcur = thing_like(l, k.dcur, 1), r.stats = thing_like(l, k.stats, 0);
        r.a.dcur = r.dcur->t, r.a.stats = r.stats->t;
        LAB_OK(l, l->fast->policy_loss(&l->c.stream, &k.a, &l->err));
        LAB_OK(l, l->ref->policy_loss(&l->c.stream, &r.a, &l->err));
        thing_down(l, k.dcur), thing_down(l, k.stats), thing_down(l, r.dcur), thing_down(l, r.stats);
        lab_near(l, "dcur of many rows", k.dcur, r.dcur, 0x1p-22, 1e-8);
        lab_near(l, "stats of many rows", k.stats, r.stats, 1e-9, 1e-9);
        assert_true(stat(&k, CAIRN_LS_TOKENS) == N - N / 4 - 384 && stat(&k, CAIRN_LS_MISMATCH_EQUAL) > 2000);
        memset(r.stats->h, 0, r.stats->bytes);
        thing_up(l, r.stats);
        LAB_OK(l, l->fast->policy_loss(&l->c.stream, &r.a, &l->err));
        thing_down(l, r.dcur), thing_down(l, r.stats);
        lab_equal_bits(l, "dcur once more", r.dcur, k.dcur);
        lab_equal_bits(l, "stats once more", r.stats, k.stats);
        lab_clear(l);
    }
}

static void nothing_to_learn(struct lab *l)
{
    struct loss k = make(l, 5), none = make(l, 0);

    memset(k.mask->h, 0, 5);
    up(l, &k);
    LAB_OK(l, l->fast->policy_loss(&l->c.stream, &k.a, &l->err));
    LAB_OK(l, l->fast->policy_loss(&l->c.stream, &none.a, &l->err));
    thing_down(l, k.dcur), thing_down(l, k.stats);
    for (int i = 0; i < 5; i++)
        assert_true(*thing_f(k.dcur, i) == 0);
    for (int i = 0; i < CAIRN_LS_COUNT; i++)
        assert_true(stat(&k, i) == 0);
    k.a.correction = CAIRN_CORRECT_TIS; /* without smp */
    LAB_REFUSES(l, l->fast->policy_loss(&l->c.stream, &k.a, &l->err));
}

/* Far apart: ln rho is clamped at 20, beyond it there is no slope; NaN in a loss token shows. */
static void extremes(struct lab *l)
{
    struct loss k = make(l, 3);
    static const float cur[] = {-1, -50, NAN}, old[] = {-50, -1, -1}, adv[] = {-1, 1, 1};

    for (int i = 0; i < 3; i++)
        *thing_f(k.cur, i) = cur[i], *thing_f(k.old, i) = old[i], *thing_f(k.adv, i) = adv[i], *thing_f(k.weight, i) = 1,
                        k.mask->h[i] = i < 2;
    up(l, &k);
    LAB_OK(l, l->fast->policy_loss(&l->c.stream, &k.a, &l->err));
    thing_down(l, k.dcur), thing_down(l, k.stats);
    assert_true(*thing_f(k.dcur, 0) == 0 && *thing_f(k.dcur, 1) == 0 && *thing_f(k.dcur, 2) == 0);
    assert_true(fabs(stat(&k, CAIRN_LS_RATIO_MAX) / exp(20) - 1) < 1e-12 &&
                fabs(stat(&k, CAIRN_LS_RATIO_MIN) / exp(-20) - 1) < 1e-12);
    k.mask->h[2] = 1;
    thing_up(l, k.mask);
    LAB_OK(l, l->fast->policy_loss(&l->c.stream, &k.a, &l->err));
    thing_down(l, k.dcur), thing_down(l, k.stats);
    assert_true(isnan(*thing_f(k.dcur, 2)) && isnan(stat(&k, CAIRN_LS_POLICY)));
}

ON_EACH_DEVICE(vectors)
ON_EACH_DEVICE(kl_vectors)
ON_EACH_DEVICE(gradients)
ON_EACH_DEVICE(many_rows)
ON_EACH_DEVICE(nothing_to_learn)
ON_EACH_DEVICE(extremes)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_test),   cmocka_unit_test(kl_vectors_test),       cmocka_unit_test(gradients_test),
        cmocka_unit_test(many_rows_test), cmocka_unit_test(nothing_to_learn_test), cmocka_unit_test(extremes_test),
    };

    return LAB_RUN(tests);
}

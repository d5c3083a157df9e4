/* loss.c - the policy loss: values, gradients and statistics of spec DAPO / GRPO / GSPO / CISPO as kernels.h states them.
 *
 * A few thousand tokens at most are worth no thread: rows ascend, sums are fp64, exp is our own fp64 one (below), so that no libm
 * has a say in a gradient's bits. Masked rows are passed over before any other input of theirs is looked at.
 */
#include <math.h>
#include <string.h>

#include "internal.h"

#define REACH 20.0 /* |ln ratio| is clamped to this */

/* e^x for |x| <= 20 and a bit; error below 2e-16 relative. Reduction by ln 2, then the series to degree 13. */
static double exp64(double x)
{
    double n = nearbyint(x * 0x1.71547652b82fep+0), r = fma(n, -0x1.62e42fefa39efp-1, x), p = 1.0 / 6227020800.0;
    static const double c[] = {1.0 / 479001600.0,
                               1.0 / 39916800.0,
                               1.0 / 3628800.0,
                               1.0 / 362880.0,
                               1.0 / 40320.0,
                               1.0 / 5040.0,
                               1.0 / 720.0,
                               1.0 / 120.0,
                               1.0 / 24.0,
                               1.0 / 6.0,
                               0.5,
                               1.0,
                               1.0};
    uint64_t u;

    if (!(x == x))
        return x;
    r = fma(n, -0x1.abc9e3b39803fp-56, r);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        p = fma(p, r, c[i]);
    u = (uint64_t)((int64_t)n + 1023) << 52;
    memcpy(&n, &u, sizeof n);
    return p * n;
}

static double clamp(double x, double lo, double hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

static double k3(double x)
{
    return exp64(x) - 1.0 - x;
}

struct loss {
    const struct cairn_policy_loss *a;
    const float *cur, *old, *smp, *ref, *adv, *weight, *entropy;
    const unsigned char *mask;
    const int32_t *seq;
    float *dcur, *dentropy;
    double *stats;
};

static double correction(const struct loss *k, int64_t n)
{
    double w;

    if (k->a->correction == CAIRN_CORRECT_NONE)
        return 1.0;
    w = exp64(clamp((double)k->old[n] - k->smp[n], -REACH, REACH));
    if (k->a->correction == CAIRN_CORRECT_TIS)
        return w < k->a->correct_high ? w : w >= k->a->correct_high ? (double)k->a->correct_high : w;
    return w < k->a->correct_low || w > k->a->correct_high ? 0.0 : w;
}

/* The policy term of row n with ratio rho; *slope: d L / d ln rho (cispo: d L / d cur). */
static double policy_term(const struct loss *k, int64_t n, double rho, double *slope)
{
    double A = k->adv[n], lo = 1.0 - (double)k->a->clip_low, hi = 1.0 + (double)k->a->clip_high, cut = clamp(rho, lo, hi), L;
    int below = rho<lo, above = rho> hi;

    if (k->a->ratio == CAIRN_RATIO_CISPO) {
        k->stats[CAIRN_LS_CLIP_LOW] += below;
        k->stats[CAIRN_LS_CLIP_HIGH] += above;
        *slope = -A * cut;
        return -A * cut * k->cur[n];
    }
    L = -A * rho;
    *slope = -A * rho;
    if (-A * cut > L) {
        L = -A * cut;
        *slope = 0.0;
        k->stats[CAIRN_LS_CLIP_LOW] += below;
        k->stats[CAIRN_LS_CLIP_HIGH] += above;
    }
    if (A < 0.0 && k->a->dual > 1.0f && -(double)k->a->dual * A < L) {
        L = -(double)k->a->dual * A;
        *slope = 0.0;
    }
    return L;
}

static void statistics(const struct loss *k, int64_t n, double rho)
{
    double *s = k->stats;

    if (s[CAIRN_LS_TOKENS] == 0.0) { /* the first one: minima and maxima start here, whatever the memory held */
        s[CAIRN_LS_RATIO_MIN] = s[CAIRN_LS_RATIO_MAX] = rho;
        s[CAIRN_LS_MISMATCH_MAX] = 0.0;
    }
    s[CAIRN_LS_TOKENS] += 1.0;
    s[CAIRN_LS_RATIO] += rho;
    if (rho < s[CAIRN_LS_RATIO_MIN] || rho != rho)
        s[CAIRN_LS_RATIO_MIN] = rho;
    if (rho > s[CAIRN_LS_RATIO_MAX] || rho != rho)
        s[CAIRN_LS_RATIO_MAX] = rho;
    if (k->entropy)
        s[CAIRN_LS_ENTROPY] += k->entropy[n];
    if (k->smp) {
        double d = fabs((double)k->old[n] - k->smp[n]);

        s[CAIRN_LS_MISMATCH] += d;
        if (d > s[CAIRN_LS_MISMATCH_MAX] || d != d)
            s[CAIRN_LS_MISMATCH_MAX] = d;
        s[CAIRN_LS_MISMATCH_EQUAL] += memcmp(&k->old[n], &k->smp[n], sizeof(float)) == 0;
        s[CAIRN_LS_MISMATCH_K3] += k3(clamp((double)k->old[n] - k->smp[n], -REACH, REACH));
    }
}

/* d kl / d cur of row n; adds to the statistics */
static double kl_slope(const struct loss *k, int64_t n)
{
    double raw = (double)k->ref[n] - k->cur[n], x = clamp(raw, -REACH, REACH), moves = raw < -REACH || raw > REACH ? 0.0 : 1.0;

    switch (k->a->kl) {
    case CAIRN_KL_K1:
        k->stats[CAIRN_LS_KL] += k->weight[n] * -x;
        return moves;
    case CAIRN_KL_K2:
        k->stats[CAIRN_LS_KL] += k->weight[n] * (x * x / 2.0);
        return -x * moves;
    default:
        k->stats[CAIRN_LS_KL] += k->weight[n] * k3(x);
        return (1.0 - exp64(x)) * moves;
    }
}

/* Rows n0 .. n1, which share one ratio if it is the sequence's, else each its own. */
static void run(const struct loss *k, int64_t n0, int64_t n1)
{
    int by_sequence = k->a->ratio == CAIRN_RATIO_SEQUENCE;
    double mean = 0.0, tokens = 0.0, shared = 0.0;

    for (int64_t n = n0; n < n1 && by_sequence; n++)
        if (k->mask[n]) {
            mean += clamp((double)k->cur[n] - k->old[n], -REACH, REACH);
            tokens += 1.0;
        }
    for (int64_t n = n0; n < n1; n++) {
        double rho, slope, w, grad, L, raw;

        k->dcur[n] = 0.0f;
        if (k->dentropy)
            k->dentropy[n] = k->mask[n] ? -k->a->entropy_coef * k->weight[n] : 0.0f;
        if (!k->mask[n])
            continue;
        raw = (double)k->cur[n] - k->old[n];
        rho = exp64(by_sequence ? mean / tokens : clamp(raw, -REACH, REACH));
        statistics(k, n, rho);
        L = policy_term(k, n, rho, &slope);
        w = correction(k, n);
        k->stats[CAIRN_LS_POLICY] += k->weight[n] * (w * L);
        grad = k->weight[n] * (w * slope);
        if (by_sequence) {
            shared += grad / tokens;
            grad = 0.0;
        } else if (k->a->ratio == CAIRN_RATIO_TOKEN && (raw < -REACH || raw > REACH)) {
            grad = 0.0;
        }
        if (k->ref) {
            double kl = kl_slope(k, n);

            if (k->a->kl_coef != 0.0f)
                grad += k->weight[n] * (double)k->a->kl_coef * kl;
        }
        k->dcur[n] = (float)grad;
    }
    for (int64_t n = n0; n < n1 && by_sequence; n++)
        if (k->mask[n] && fabs((double)k->cur[n] - k->old[n]) <= REACH)
            k->dcur[n] = (float)(shared + k->dcur[n]);
}

enum cairn_status cairn_policy_loss_cpu(struct cairn_stream *s, const struct cairn_policy_loss *a, struct cairn_error *err)
{
    struct call c = call_begin("policy_loss", s, err);
    int64_t N = -1, count = CAIRN_LS_COUNT;
    int by_sequence = a->ratio == CAIRN_RATIO_SEQUENCE;
    struct loss k = {.a = a};

    k.cur = call_arg(&c, "cur", &a->cur, T_F32, 1, &N).p;
    k.old = call_arg(&c, "old", &a->old, T_F32, 1, &N).p;
    k.smp = call_arg(&c, "smp", &a->smp, (a->correction == CAIRN_CORRECT_NONE ? ABSENT : 0) | T_F32, 1, &N).p;
    k.ref = call_arg(&c, "ref", &a->ref, (a->kl_coef == 0.0f ? ABSENT : 0) | T_F32, 1, &N).p;
    k.adv = call_arg(&c, "adv", &a->adv, T_F32, 1, &N).p;
    k.weight = call_arg(&c, "weight", &a->weight, T_F32, 1, &N).p;
    k.entropy = call_arg(&c, "entropy", &a->entropy, ABSENT | T_F32, 1, &N).p;
    k.mask = call_arg(&c, "mask", &a->mask, T_U8, 1, &N).p;
    k.seq = call_arg(&c, "seq", &a->seq, (by_sequence ? 0 : ABSENT) | T_I32, 1, &N).p;
    k.dcur = call_arg(&c, "dcur", &a->dcur, OUT | T_F32, 1, &N).p;
    k.dentropy = call_arg(&c, "dentropy", &a->dentropy, OUT | ABSENT | T_F32, 1, &N).p;
    k.stats = call_arg(&c, "stats", &a->stats, OUT | T_F64, 1, &count).p;
    if (call_ok(&c) && !by_sequence)
        run(&k, 0, N);
    for (int64_t n = 0, m; call_ok(&c) && by_sequence && n < N; n = m) {
        for (m = n + 1; m < N && k.seq[m] == k.seq[n]; m++)
            ;
        run(&k, n, m);
    }
    return call_end(&c);
}

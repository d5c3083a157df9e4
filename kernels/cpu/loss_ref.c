/* loss_ref.c - the policy loss as its formulas read, in fp64, gradients by the chain rule row by row. */
#include <math.h>
#include <string.h>

#include "internal.h"

static double limited(double x, double lo, double hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

enum cairn_status cairn_policy_loss_ref(struct cairn_stream *s, const struct cairn_policy_loss *a, struct cairn_error *err)
{
    struct call c = call_begin("policy_loss", s, err);
    int64_t N = -1, count = CAIRN_LS_COUNT;
    int whole = a->ratio == CAIRN_RATIO_SEQUENCE;
    const float *cur = call_arg(&c, "cur", &a->cur, T_F32, 1, &N).p, *old = call_arg(&c, "old", &a->old, T_F32, 1, &N).p;
    const float *smp = call_arg(&c, "smp", &a->smp, (a->correction == CAIRN_CORRECT_NONE ? ABSENT : 0) | T_F32, 1, &N).p;
    const float *ref = call_arg(&c, "ref", &a->ref, (a->kl_coef == 0.0f ? ABSENT : 0) | T_F32, 1, &N).p;
    const float *adv = call_arg(&c, "adv", &a->adv, T_F32, 1, &N).p, *weight = call_arg(&c, "weight", &a->weight, T_F32, 1, &N).p;
    const float *entropy = call_arg(&c, "entropy", &a->entropy, ABSENT | T_F32, 1, &N).p;
    const unsigned char *mask = call_arg(&c, "mask", &a->mask, T_U8, 1, &N).p;
    const int32_t *seq = call_arg(&c, "seq", &a->seq, (whole ? 0 : ABSENT) | T_I32, 1, &N).p;
    float *dcur = call_arg(&c, "dcur", &a->dcur, OUT | T_F32, 1, &N).p;
    float *dentropy = call_arg(&c, "dentropy", &a->dentropy, OUT | ABSENT | T_F32, 1, &N).p;
    double *st = call_arg(&c, "stats", &a->stats, OUT | T_F64, 1, &count).p;

    call_reserve(&c, 0, call_ok(&c) ? (size_t)N * 2 * sizeof(double) : 0);
    if (call_ok(&c)) {
        double *grad = scratch_shared(&c), *slope = grad + N; /* slope: d (weight w L) / d ln rho */

        for (int64_t n = 0; n < N; n++) {
            double d = 0, members = 0, rho, lo = 1 - (double)a->clip_low, hi = 1 + (double)a->clip_high, A, L, cut, w = 1;

            grad[n] = slope[n] = 0;
            if (dentropy)
                dentropy[n] = mask[n] ? -a->entropy_coef * weight[n] : 0;
            if (!mask[n])
                continue;
            for (int64_t m = 0; m < N; m++)
                if (mask[m] && (whole ? seq[m] == seq[n] : m == n)) {
                    d += limited((double)cur[m] - old[m], -20, 20);
                    members++;
                }
            rho = exp(d / members);
            cut = limited(rho, lo, hi);
            A = adv[n];
            L = -A * rho;
            slope[n] = -A * rho;
            if (a->ratio == CAIRN_RATIO_CISPO) {
                L = -A * cut * cur[n];
                slope[n] = -A * cut;
                st[CAIRN_LS_CLIP_LOW] += rho < lo;
                st[CAIRN_LS_CLIP_HIGH] += rho > hi;
            } else {
                if (-A * cut > L) {
                    L = -A * cut;
                    slope[n] = 0;
                    st[CAIRN_LS_CLIP_LOW] += rho < lo;
                    st[CAIRN_LS_CLIP_HIGH] += rho > hi;
                }
                if (A < 0 && a->dual > 1 && -(double)a->dual * A < L) {
                    L = -(double)a->dual * A;
                    slope[n] = 0;
                }
            }
            if (a->correction != CAIRN_CORRECT_NONE) {
                w = exp(limited((double)old[n] - smp[n], -20, 20));
                if (a->correction == CAIRN_CORRECT_TIS)
                    w = w > a->correct_high ? (double)a->correct_high : w;
                else
                    w = w < a->correct_low || w > a->correct_high ? 0 : w;
            }
            slope[n] *= weight[n] * w;
            if (st[CAIRN_LS_TOKENS]++ == 0)
                st[CAIRN_LS_RATIO_MIN] = st[CAIRN_LS_RATIO_MAX] = rho, st[CAIRN_LS_MISMATCH_MAX] = 0;
            st[CAIRN_LS_POLICY] += weight[n] * w * L;
            st[CAIRN_LS_RATIO] += rho;
            st[CAIRN_LS_RATIO_MIN] = fmin(st[CAIRN_LS_RATIO_MIN], rho);
            st[CAIRN_LS_RATIO_MAX] = fmax(st[CAIRN_LS_RATIO_MAX], rho);
            st[CAIRN_LS_ENTROPY] += entropy ? entropy[n] : 0;
            if (smp) {
                double x = limited((double)old[n] - smp[n], -20, 20);

                st[CAIRN_LS_MISMATCH] += fabs((double)old[n] - smp[n]);
                st[CAIRN_LS_MISMATCH_MAX] = fmax(st[CAIRN_LS_MISMATCH_MAX], fabs((double)old[n] - smp[n]));
                st[CAIRN_LS_MISMATCH_EQUAL] += !memcmp(&old[n], &smp[n], sizeof(float));
                st[CAIRN_LS_MISMATCH_K3] += exp(x) - 1 - x;
            }
            if (ref) {
                double raw = (double)ref[n] - cur[n], x = limited(raw, -20, 20);
                double kl = a->kl == CAIRN_KL_K1 ? -x : a->kl == CAIRN_KL_K2 ? x * x / 2 : exp(x) - 1 - x;

                st[CAIRN_LS_KL] += weight[n] * kl;
                if (fabs(raw) <= 20)
                    grad[n] = weight[n] * (double)a->kl_coef * (a->kl == CAIRN_KL_K1 ? 1 : a->kl == CAIRN_KL_K2 ? -x : 1 - exp(x));
            }
        }
        for (int64_t n = 0; n < N; n++) {
            double members = 0, sum = 0;

            for (int64_t m = 0; m < N; m++)
                if (mask[n] && mask[m] && (whole ? seq[m] == seq[n] : m == n)) {
                    members++;
                    sum += slope[m];
                }
            dcur[n] = 0;
            if (mask[n])
                dcur[n] =
                    (float)(grad[n] + (a->ratio != CAIRN_RATIO_CISPO && fabs((double)cur[n] - old[n]) > 20 ? 0 : sum / members));
        }
    }
    return call_end(&c);
}

/* attention_heads_ref.c - backward of attention in the heads' own space as its formulas read, in fp64. The cpu back-end has no
 * faster one: its own attention_bwd serves (attention_heads_fits is NULL).
 */
#include <math.h>

#include "internal.h"

/* What head h of row n gives: dq, and to the keys and values of rows first .. n. */
struct heads {
    struct arg q_nope, q_rope, k_nope, k_rope, v, o, lse, d_o;
    int64_t H, nope, R, V;
    float scale;
    double *dq, *dk, *dv; /* (P); of all rows (N, H, P), (N, H, V) */
};

static double dot(const float *a, const float *b, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

static void row_of(const struct heads *k, int64_t first, int64_t n, int64_t h)
{
    int64_t P = k->nope + k->R;
    const float *q_nope = at2(&k->q_nope, n, h), *q_rope = at2(&k->q_rope, n, h), *d_o = at2(&k->d_o, n, h);
    double D = dot(d_o, at2(&k->o, n, h), k->V);

    for (int64_t w = 0; w < P; w++)
        k->dq[w] = 0;
    for (int64_t s = first; s <= n; s++) {
        const float *nope = at2(&k->k_nope, s, h), *rope = at1(&k->k_rope, s);
        double p = exp(k->scale * (dot(q_nope, nope, k->nope) + dot(q_rope, rope, k->R)) - f32(&k->lse)[n * k->H + h]);
        double dl = p * (dot(d_o, at2(&k->v, s, h), k->V) - D) * k->scale, *dk = k->dk + (s * k->H + h) * P,
               *dv = k->dv + (s * k->H + h) * k->V;

        for (int64_t w = 0; w < P; w++) {
            k->dq[w] += dl * (w < k->nope ? nope[w] : rope[w - k->nope]);
            dk[w] += dl * (w < k->nope ? q_nope[w] : q_rope[w - k->nope]);
        }
        for (int64_t i = 0; i < k->V; i++)
            dv[i] += p * d_o[i];
    }
}

enum cairn_status cairn_attention_heads_bwd_ref(struct cairn_stream *s, const struct cairn_attention_heads_bwd *a,
                                                struct cairn_error *err)
{
    struct call c = call_begin("attention_heads_bwd", s, err);
    int64_t N = -1, H = -1, nope = -1, R = -1, V = -1, P = -1, B = -1;
    struct heads k = {.q_nope = call_arg(&c, "q_nope", &a->q_nope, STRIDED | T_F32, 3, &N, &H, &nope),
                      .q_rope = call_arg(&c, "q_rope", &a->q_rope, STRIDED | T_F32, 3, &N, &H, &R),
                      .k_nope = call_arg(&c, "k_nope", &a->k_nope, STRIDED | T_F32, 3, &N, &H, &nope),
                      .k_rope = call_arg(&c, "k_rope", &a->k_rope, STRIDED | T_F32, 2, &N, &R),
                      .v = call_arg(&c, "v", &a->v, STRIDED | T_F32, 3, &N, &H, &V),
                      .o = call_arg(&c, "o", &a->o, STRIDED | T_F32, 3, &N, &H, &V),
                      .lse = call_arg(&c, "lse", &a->lse, T_F32, 2, &N, &H),
                      .d_o = call_arg(&c, "d_o", &a->d_o, STRIDED | T_F32, 3, &N, &H, &V),
                      .scale = a->scale};
    struct arg dq = call_arg(&c, "dq", &a->dq, OUT | STRIDED | T_F32, 3, &N, &H, &P),
               dk_nope = call_arg(&c, "dk_nope", &a->dk_nope, OUT | STRIDED | T_F32, 3, &N, &H, &nope),
               dk_rope = call_arg(&c, "dk_rope", &a->dk_rope, OUT | STRIDED | T_F32, 2, &N, &R),
               dv = call_arg(&c, "dv", &a->dv, OUT | STRIDED | T_F32, 3, &N, &H, &V),
               start = call_arg(&c, "start", &a->start, T_I32, 1, &B);
    int64_t sums = N * H * (P + V);

    if (call_ok(&c) && P != nope + R)
        call_fail(&c, "dq has %lld channels, q %lld and %lld", (long long)P, (long long)nope, (long long)R);
    call_reserve(&c, 0, call_ok(&c) ? (size_t)(P + sums) * sizeof(double) : 0);
    if (call_ok(&c)) {
        k.H = H, k.nope = nope, k.R = R, k.V = V;
        k.dq = scratch_shared(&c), k.dk = k.dq + P, k.dv = k.dk + N * H * P;
        for (int64_t i = 0; i < sums; i++)
            k.dk[i] = 0;
    }
    for (int64_t b = 0; call_ok(&c) && b < B; b++) {
        int64_t first = i32(&start)[b], end = b + 1 < B ? i32(&start)[b + 1] : N;

        if (first < 0 || end < first || end > N)
            call_fail(&c, "sequence %lld is rows %lld .. %lld of %lld", (long long)b, (long long)first, (long long)end,
                      (long long)N);
        for (int64_t n = first; call_ok(&c) && n < end && end - first <= a->longest; n++)
            for (int64_t h = 0; h < H; h++) {
                row_of(&k, first, n, h);
                for (int64_t w = 0; w < P; w++)
                    at2(&dq, n, h)[w] = (float)k.dq[w];
            }
    }
    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        for (int64_t w = 0; w < R; w++) {
            double sum = at1(&dk_rope, n)[w];

            for (int64_t h = 0; h < H; h++)
                sum += k.dk[(n * H + h) * P + nope + w];
            at1(&dk_rope, n)[w] = (float)sum;
        }
        for (int64_t h = 0; h < H; h++) {
            for (int64_t w = 0; w < nope; w++)
                at2(&dk_nope, n, h)[w] = (float)k.dk[(n * H + h) * P + w];
            for (int64_t i = 0; i < V; i++)
                at2(&dv, n, h)[i] = (float)k.dv[(n * H + h) * V + i];
        }
    }
    return call_end(&c);
}

enum cairn_status cairn_attention_heads_bwd_cpu(struct cairn_stream *s, const struct cairn_attention_heads_bwd *a,
                                                struct cairn_error *err)
{
    return cairn_attention_heads_bwd_ref(s, a, err);
}

/* attention_ref.c - sparse attention and its backward as their formulas read, in fp64. */
#include <math.h>

#include "keys.h"

/* l[j] = scale * q . k over the chosen keys */
static void products(const float *q, const struct keys *keys, int64_t seq, const int32_t *idx, int64_t count, int64_t W,
                     double scale, double *l)
{
    for (int64_t j = 0; j < count; j++) {
        l[j] = 0;
        for (int64_t w = 0; w < W; w++)
            l[j] += (double)q[w] * key_at(keys, seq, idx[j])[w];
        l[j] *= scale;
    }
}

enum cairn_status cairn_attention_ref(struct cairn_stream *s, const struct cairn_attention *a, struct cairn_error *err)
{
    struct call c = call_begin("attention", s, err);
    int64_t N = -1, H = -1, W = -1, C = -1, S = -1, T = -1;
    struct arg q = call_arg(&c, "q", &a->q, STRIDED | T_F32, 3, &N, &H, &W), idx = call_arg(&c, "idx", &a->idx, T_I32, 2, &N, &T),
               o = call_arg(&c, "o", &a->o, OUT | STRIDED | T_F32, 3, &N, &H, &C),
               lse = call_arg(&c, "lse", &a->lse, OUT | T_F32, 2, &N, &H);
    struct keys keys = keys_arg(&c, &a->keys, &N, &S, &W);

    call_reserve(&c, 0, call_ok(&c) ? (size_t)T * sizeof(double) : 0);
    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        const int32_t *choice = i32(&idx) + n * T;
        int64_t count = idx_count(choice, T, i32(&keys.pos)[n]);
        double *l = scratch_shared(&c);

        if (count < 1)
            call_fail(&c, "a row's idx are not ascending positions that it sees");
        for (int64_t h = 0; call_ok(&c) && h < H; h++) {
            double most = -INFINITY, total = 0;

            products(at2(&q, n, h), &keys, i32(&keys.seq)[n], choice, count, W, a->scale, l);
            for (int64_t j = 0; j < count; j++)
                most = l[j] > most ? l[j] : most;
            for (int64_t j = 0; j < count; j++)
                total += exp(l[j] - most);
            f32(&lse)[n * H + h] = (float)(most + log(total));
            for (int64_t i = 0; i < C; i++) {
                double sum = 0;

                for (int64_t j = 0; j < count; j++)
                    sum += exp(l[j] - most) / total * key_at(&keys, i32(&keys.seq)[n], choice[j])[i];
                at2(&o, n, h)[i] = (float)sum;
            }
        }
    }
    return call_end(&c);
}

enum cairn_status cairn_attention_bwd_ref(struct cairn_stream *s, const struct cairn_attention_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("attention_bwd", s, err);
    int64_t N = -1, H = -1, W = -1, C = -1, S = -1, T = -1;
    struct arg q = call_arg(&c, "q", &a->q, STRIDED | T_F32, 3, &N, &H, &W), idx = call_arg(&c, "idx", &a->idx, T_I32, 2, &N, &T),
               o = call_arg(&c, "o", &a->o, STRIDED | T_F32, 3, &N, &H, &C), lse = call_arg(&c, "lse", &a->lse, T_F32, 2, &N, &H),
               d_o = call_arg(&c, "d_o", &a->d_o, STRIDED | T_F32, 3, &N, &H, &C),
               dq = call_arg(&c, "dq", &a->dq, OUT | STRIDED | T_F32, 3, &N, &H, &W),
               dk = call_arg(&c, "dk", &a->dk, OUT | T_F32, 2, &S, &W);
    struct keys keys = keys_arg(&c, &a->keys, &N, &S, &W);

    if (call_ok(&c) && keys.pages.p)
        call_fail(&c, "keys are paged");
    call_reserve(&c, 0, call_ok(&c) ? (size_t)(T + W + S * W) * sizeof(double) : 0);
    if (call_ok(&c)) {
        double *l = scratch_shared(&c), *row = l + T, *sum = row + W; /* sum (S, W): all of dk in fp64 */

        for (int64_t i = 0; i < S * W; i++)
            sum[i] = f32(&dk)[i];
        for (int64_t n = 0; call_ok(&c) && n < N; n++) {
            const int32_t *choice = i32(&idx) + n * T;
            int64_t count = idx_count(choice, T, i32(&keys.pos)[n]), seq = i32(&keys.seq)[n];

            if (count < 1)
                call_fail(&c, "a row's idx are not ascending positions that it sees");
            for (int64_t h = 0; call_ok(&c) && h < H; h++) {
                double D = 0;

                products(at2(&q, n, h), &keys, seq, choice, count, W, a->scale, l);
                for (int64_t i = 0; i < C; i++)
                    D += (double)at2(&d_o, n, h)[i] * at2(&o, n, h)[i];
                for (int64_t w = 0; w < W; w++)
                    row[w] = 0;
                for (int64_t j = 0; j < count; j++) {
                    const float *k = key_at(&keys, seq, choice[j]);
                    double p = exp(l[j] - f32(&lse)[n * H + h]), dp = 0, dl, *to = sum + key_row(&keys, seq, choice[j]) * W;

                    for (int64_t i = 0; i < C; i++)
                        dp += (double)at2(&d_o, n, h)[i] * k[i];
                    dl = p * (dp - D);
                    for (int64_t w = 0; w < W; w++) {
                        row[w] += a->scale * dl * k[w];
                        to[w] += a->scale * dl * at2(&q, n, h)[w] + (w < C ? p * at2(&d_o, n, h)[w] : 0);
                    }
                }
                for (int64_t w = 0; w < W; w++)
                    at2(&dq, n, h)[w] = (float)row[w];
            }
        }
        for (int64_t i = 0; call_ok(&c) && i < S * W; i++)
            f32(&dk)[i] = (float)sum[i];
    }
    return call_end(&c);
}

/* short_conv_ref.c - the short convolution and its backward as their formulas read; sums in fp64. */
#include <math.h>
#include <string.h>

#include "runs.h"
#include "vec.h"

static double weight(const struct arg *w, int64_t i)
{
    return w->type == CAIRN_BF16 ? (double)bf16_to_f32(((const uint16_t *)w->p)[i]) : (double)f32(w)[i];
}

/* x at `back` positions before row n of the run that begins at row `begin`; 0 before position 0. */
static double before(const struct arg *x, const struct arg *tail, const struct runs *r, int64_t begin, int64_t n, int64_t back,
                     int64_t c)
{
    int64_t p = r->pos[n] - back;

    if (p < 0)
        return 0;
    if (n - back >= begin)
        return at1(x, n - back)[c];
    return at2(tail, r->seq[n], p % tail->d[1])[c];
}

enum cairn_status cairn_short_conv_ref(struct cairn_stream *s, const struct cairn_short_conv *a, struct cairn_error *err)
{
    struct call c = call_begin("short_conv", s, err);
    int64_t N = -1, C = -1, K = -1, B = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &C), w = call_arg(&c, "w", &a->w, T_WEIGHT, 2, &C, &K),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &N, &C), pos = call_arg(&c, "pos", &a->pos, T_I32, 1, &N),
               seq = call_arg(&c, "seq", &a->seq, T_I32, 1, &N),
               tail = call_arg(&c, "tail", &a->tail, OUT | ABSENT | T_F32, 3, &B, &K, &C);
    struct runs r;

    if (call_ok(&c))
        call_reserve(&c, 0, runs_room(N, B));
    r = runs_find(&c, &pos, &seq, N, B, scratch_shared(&c));
    for (int64_t i = 0; call_ok(&c) && i < r.count; i++) {
        for (int64_t n = r.begin[i]; n < r.begin[i + 1]; n++)
            for (int64_t ch = 0; ch < C; ch++) {
                double u = 0;

                for (int64_t j = 0; j < K; j++)
                    u += weight(&w, ch * K + j) * before(&x, &tail, &r, r.begin[i], n, K - 1 - j, ch);
                at1(&y, n)[ch] = (float)(u / (1 + exp(-u)));
            }
        for (int64_t n = r.begin[i]; tail.p && n < r.begin[i + 1]; n++)
            memcpy(at2(&tail, r.seq[n], r.pos[n] % K), at1(&x, n), (size_t)C * sizeof(float));
    }
    return call_end(&c);
}

enum cairn_status cairn_short_conv_bwd_ref(struct cairn_stream *s, const struct cairn_short_conv_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("short_conv_bwd", s, err);
    int64_t N = -1, C = -1, K = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &C), w = call_arg(&c, "w", &a->w, T_WEIGHT, 2, &C, &K),
               dy = call_arg(&c, "dy", &a->dy, STRIDED | T_F32, 2, &N, &C),
               dx = call_arg(&c, "dx", &a->dx, OUT | STRIDED | T_F32, 2, &N, &C),
               dw = call_arg(&c, "dw", &a->dw, OUT | ABSENT | T_F32, 2, &C, &K), pos = call_arg(&c, "pos", &a->pos, T_I32, 1, &N),
               seq = call_arg(&c, "seq", &a->seq, T_I32, 1, &N), none = {0};
    struct runs r;
    double *du;

    if (call_ok(&c))
        call_reserve(&c, 0, runs_room(N, -1) + (size_t)N * sizeof(double));
    r = runs_find(&c, &pos, &seq, N, -1, scratch_shared(&c));
    du = (double *)(r.begin + N + 1);
    for (int64_t ch = 0; call_ok(&c) && ch < C; ch++)
        for (int64_t i = 0; i < r.count; i++) {
            for (int64_t n = r.begin[i]; n < r.begin[i + 1]; n++) {
                double u = 0, sg;

                for (int64_t j = 0; j < K; j++)
                    u += weight(&w, ch * K + j) * before(&x, &none, &r, r.begin[i], n, K - 1 - j, ch);
                sg = 1 / (1 + exp(-u));
                du[n] = at1(&dy, n)[ch] * sg * (1 + u * (1 - sg));
            }
            for (int64_t j = 0; dw.p && j < K; j++) {
                double sum = f32(&dw)[ch * K + j];

                for (int64_t n = r.begin[i]; n < r.begin[i + 1]; n++)
                    sum += du[n] * before(&x, &none, &r, r.begin[i], n, K - 1 - j, ch);
                f32(&dw)[ch * K + j] = (float)sum;
            }
            for (int64_t n = r.begin[i]; n < r.begin[i + 1]; n++) {
                double sum = 0;

                for (int64_t j = 0; j < K; j++)
                    if (n + K - 1 - j < r.begin[i + 1])
                        sum += weight(&w, ch * K + j) * du[n + K - 1 - j];
                at1(&dx, n)[ch] = (float)sum;
            }
        }
    return call_end(&c);
}

/* swiglu.c - the gated activation of the feed-forward networks and its backward, sixteen channels at a time. */
#include "internal.h"
#include "vmath.h"

enum cairn_status cairn_swiglu_cpu(struct cairn_stream *s, const struct cairn_swiglu *args, struct cairn_error *err)
{
    struct call c = call_begin("swiglu", s, err);
    int64_t N = -1, F = -1;
    struct arg a = call_arg(&c, "a", &args->a, STRIDED | T_F32, 2, &N, &F), u = call_arg(&c, "u", &args->u, STRIDED | T_F32, 2, &N, &F),
               h = call_arg(&c, "h", &args->h, OUT | STRIDED | T_F32, 2, &N, &F);
    v16 limit = v16_set(args->limit);

    if (call_ok(&c)) {
        int threads = call_threads(&c, N * F * 2, N);

#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t n = 0; n < N; n++)
            for (int64_t i = 0; i < F; i += VL) {
                int64_t m = F - i < VL ? F - i : VL;
                v16 x = v16_loadn(at1(&a, n) + i, m, 0.0f), y = v16_loadn(at1(&u, n) + i, m, 0.0f);

                if (args->limit > 0.0f) {
                    x = v16_min(x, limit);
                    y = v16_max(v16_min(y, limit), -limit);
                }
                v16_storen(at1(&h, n) + i, x * v16_sigmoid(x) * y, m);
            }
    }
    return call_end(&c);
}

enum cairn_status cairn_swiglu_bwd_cpu(struct cairn_stream *s, const struct cairn_swiglu_bwd *args, struct cairn_error *err)
{
    struct call c = call_begin("swiglu_bwd", s, err);
    int64_t N = -1, F = -1;
    struct arg a = call_arg(&c, "a", &args->a, STRIDED | T_F32, 2, &N, &F), u = call_arg(&c, "u", &args->u, STRIDED | T_F32, 2, &N, &F),
               dh = call_arg(&c, "dh", &args->dh, STRIDED | T_F32, 2, &N, &F),
               da = call_arg(&c, "da", &args->da, OUT | STRIDED | T_F32, 2, &N, &F),
               du = call_arg(&c, "du", &args->du, OUT | STRIDED | T_F32, 2, &N, &F);
    v16 limit = v16_set(args->limit), one = v16_set(1.0f), zero = v16_set(0.0f);

    if (call_ok(&c)) {
        int threads = call_threads(&c, N * F * 2, N);

#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t n = 0; n < N; n++)
            for (int64_t i = 0; i < F; i += VL) {
                int64_t m = F - i < VL ? F - i : VL;
                v16 x = v16_loadn(at1(&a, n) + i, m, 0.0f), y = v16_loadn(at1(&u, n) + i, m, 0.0f);
                v16 d = v16_loadn(at1(&dh, n) + i, m, 0.0f), sg, dx, dy;
                v16i x_cut = x > limit, y_cut = (y > limit) | (y < -limit);

                if (args->limit > 0.0f) {
                    x = v16_min(x, limit);
                    y = v16_max(v16_min(y, limit), -limit);
                }
                sg = v16_sigmoid(x);
                dy = d * (x * sg);
                dx = d * y * (sg * v16_fma(x, one - sg, one));
                if (args->limit > 0.0f) {
                    dx = v16_select(x_cut, zero, dx);
                    dy = v16_select(y_cut, zero, dy);
                }
                v16_storen(at1(&da, n) + i, dx, m);
                v16_storen(at1(&du, n) + i, dy, m);
            }
    }
    return call_end(&c);
}

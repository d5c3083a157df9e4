/* swiglu_ref.c - the gated activation and its backward as their formulas read. */
#include <math.h>

#include "internal.h"

enum cairn_status cairn_swiglu_ref(struct cairn_stream *s, const struct cairn_swiglu *args, struct cairn_error *err)
{
    struct call c = call_begin("swiglu", s, err);
    int64_t N = -1, F = -1;
    struct arg a = call_arg(&c, "a", &args->a, STRIDED | T_F32, 2, &N, &F),
               u = call_arg(&c, "u", &args->u, STRIDED | T_F32, 2, &N, &F),
               h = call_arg(&c, "h", &args->h, OUT | STRIDED | T_F32, 2, &N, &F);

    for (int64_t n = 0; call_ok(&c) && n < N; n++)
        for (int64_t i = 0; i < F; i++) {
            double x = at1(&a, n)[i], y = at1(&u, n)[i], limit = args->limit;

            if (limit > 0) {
                x = x > limit ? limit : x;
                y = y > limit ? limit : y < -limit ? -limit : y;
            }
            at1(&h, n)[i] = (float)(x / (1 + exp(-x)) * y);
        }
    return call_end(&c);
}

enum cairn_status cairn_swiglu_bwd_ref(struct cairn_stream *s, const struct cairn_swiglu_bwd *args, struct cairn_error *err)
{
    struct call c = call_begin("swiglu_bwd", s, err);
    int64_t N = -1, F = -1;
    struct arg a = call_arg(&c, "a", &args->a, STRIDED | T_F32, 2, &N, &F),
               u = call_arg(&c, "u", &args->u, STRIDED | T_F32, 2, &N, &F),
               dh = call_arg(&c, "dh", &args->dh, STRIDED | T_F32, 2, &N, &F),
               da = call_arg(&c, "da", &args->da, OUT | STRIDED | T_F32, 2, &N, &F),
               du = call_arg(&c, "du", &args->du, OUT | STRIDED | T_F32, 2, &N, &F);

    for (int64_t n = 0; call_ok(&c) && n < N; n++)
        for (int64_t i = 0; i < F; i++) {
            double x = at1(&a, n)[i], y = at1(&u, n)[i], d = at1(&dh, n)[i], limit = args->limit, sg;
            int x_cut = limit > 0 && x > limit, y_cut = limit > 0 && (y > limit || y < -limit);

            if (x_cut)
                x = limit;
            if (y_cut)
                y = y > 0 ? limit : -limit;
            sg = 1 / (1 + exp(-x));
            at1(&da, n)[i] = x_cut ? 0 : (float)(d * y * sg * (1 + x * (1 - sg)));
            at1(&du, n)[i] = y_cut ? 0 : (float)(d * x * sg);
        }
    return call_end(&c);
}

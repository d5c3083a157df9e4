/* swiglu.c - the gated activation of the feed-forward networks and its backward, sixteen channels at a time. */
#include "base/planted.h"
#include "internal.h"
#include "vmath.h"

struct gated {
    struct arg a, u, h, dh, da, du; /* h: forward; the others after it: backward */
    int64_t F;
    float limit;
};

static void forward_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct gated *k = ctx;
    v16 limit = v16_set(k->limit);

    (void)scratch;
    for (int64_t n = begin; n < end; n++)
        for (int64_t i = 0; i < k->F; i += VL) {
            int64_t m = k->F - i < VL ? k->F - i : VL;
            v16 x = v16_loadn(at1(&k->a, n) + i, m, 0.0f), y = v16_loadn(at1(&k->u, n) + i, m, 0.0f);

            if (k->limit > 0.0f) {
                x = cairn_planted("clamp-both-sides") ? v16_max(v16_min(x, limit), -limit) : v16_min(x, limit);
                y = v16_max(v16_min(y, limit), -limit);
            }
            v16_storen(at1(&k->h, n) + i, cairn_planted("swiglu-sides-swapped") ? y * v16_sigmoid(y) * x : x * v16_sigmoid(x) * y, m);
        }
}

enum cairn_status cairn_swiglu_cpu(struct cairn_stream *s, const struct cairn_swiglu *args, struct cairn_error *err)
{
    struct call c = call_begin("swiglu", s, err);
    int64_t N = -1, F = -1;
    struct gated k = {.a = call_arg(&c, "a", &args->a, STRIDED | T_F32, 2, &N, &F), .limit = args->limit};

    k.u = call_arg(&c, "u", &args->u, STRIDED | T_F32, 2, &N, &F);
    k.h = call_arg(&c, "h", &args->h, OUT | STRIDED | T_F32, 2, &N, &F);
    k.F = F;
    if (call_ok(&c))
        call_share(&c, N, 1, N * F * 2, forward_rows, &k);
    return call_end(&c);
}

static void backward_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct gated *k = ctx;
    v16 limit = v16_set(k->limit), one = v16_set(1.0f), zero = v16_set(0.0f);

    (void)scratch;
    for (int64_t n = begin; n < end; n++)
        for (int64_t i = 0; i < k->F; i += VL) {
            int64_t m = k->F - i < VL ? k->F - i : VL;
            v16 x = v16_loadn(at1(&k->a, n) + i, m, 0.0f), y = v16_loadn(at1(&k->u, n) + i, m, 0.0f);
            v16 d = v16_loadn(at1(&k->dh, n) + i, m, 0.0f), sg, dx, dy;
            v16i x_cut = x > limit, y_cut = (y > limit) | (y < -limit);

            if (k->limit > 0.0f) {
                x = v16_min(x, limit);
                y = v16_max(v16_min(y, limit), -limit);
            }
            sg = v16_sigmoid(x);
            dy = d * (x * sg);
            dx = d * y * (cairn_planted("swiglu-bwd-slope") ? sg : sg * v16_fma(x, one - sg, one));
            if (k->limit > 0.0f && !cairn_planted("clamp-bwd-passes")) {
                dx = v16_select(x_cut, zero, dx);
                dy = v16_select(y_cut, zero, dy);
            }
            v16_storen(at1(&k->da, n) + i, dx, m);
            v16_storen(at1(&k->du, n) + i, dy, m);
        }
}

enum cairn_status cairn_swiglu_bwd_cpu(struct cairn_stream *s, const struct cairn_swiglu_bwd *args, struct cairn_error *err)
{
    struct call c = call_begin("swiglu_bwd", s, err);
    int64_t N = -1, F = -1;
    struct gated k = {.a = call_arg(&c, "a", &args->a, STRIDED | T_F32, 2, &N, &F), .limit = args->limit};

    k.u = call_arg(&c, "u", &args->u, STRIDED | T_F32, 2, &N, &F);
    k.dh = call_arg(&c, "dh", &args->dh, STRIDED | T_F32, 2, &N, &F);
    k.da = call_arg(&c, "da", &args->da, OUT | STRIDED | T_F32, 2, &N, &F);
    k.du = call_arg(&c, "du", &args->du, OUT | STRIDED | T_F32, 2, &N, &F);
    k.F = F;
    if (call_ok(&c))
        call_share(&c, N, 1, N * F * 2, backward_rows, &k);
    return call_end(&c);
}

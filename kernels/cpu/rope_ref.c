/* rope_ref.c - the rotary op as its formula reads. */
#include "internal.h"
#include "rope.h"

enum cairn_status cairn_rope_ref(struct cairn_stream *s, const struct cairn_rope *a, struct cairn_error *err)
{
    struct call c = call_begin("rope", s, err);
    int64_t N = -1, H = -1, R = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 3, &N, &H, &R),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 3, &N, &H, &R), pos = call_arg(&c, "pos", &a->pos, T_I32, 1, &N);

    if (call_ok(&c) && R % 2)
        call_fail(&c, "R = %lld is odd", (long long)R);
    for (int64_t n = 0; call_ok(&c) && n < N; n++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t j = 0; j < R; j += 2) {
                float co, si, p = at2(&x, n, h)[j], q = at2(&x, n, h)[j + 1];

                rope_cos_sin((float)i32(&pos)[n] * rope_inv_freq(a->theta, (int)R, (int)(j / 2)), &co, &si);
                if (a->inverse)
                    si = -si;
                at2(&y, n, h)[j] = (float)((double)p * co - (double)q * si);
                at2(&y, n, h)[j + 1] = (float)((double)p * si + (double)q * co);
            }
    return call_end(&c);
}

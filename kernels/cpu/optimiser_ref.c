/* optimiser_ref.c - adamw and sumsq as their formulas read, in fp64. */
#include <math.h>

#include "internal.h"

enum cairn_status cairn_adamw_ref(struct cairn_stream *s, const struct cairn_adamw *a, struct cairn_error *err)
{
    struct call c = call_begin("adamw", s, err);
    int64_t n = -1;
    struct arg p = call_arg(&c, "p", &a->p, OUT | T_F32, 1, &n), g = call_arg(&c, "g", &a->g, T_F32, 1, &n),
               m = call_arg(&c, "m", &a->m, OUT | T_F32, 1, &n), v = call_arg(&c, "v", &a->v, OUT | T_F32, 1, &n);
    double b1 = a->beta1, b2 = a->beta2;

    if (call_ok(&c) && a->t < 1)
        call_fail(&c, "update %lld; the first one is 1", (long long)a->t);
    for (int64_t i = 0; call_ok(&c) && i < n; i++) {
        double d = (double)a->grad_scale * f32(&g)[i], m1 = b1 * f32(&m)[i] + (1 - b1) * d, v1 = b2 * f32(&v)[i] + (1 - b2) * d * d;
        double mh = m1 / (1 - pow(b1, (double)a->t)), vh = v1 / (1 - pow(b2, (double)a->t)), w = f32(&p)[i];

        f32(&m)[i] = (float)m1;
        f32(&v)[i] = (float)v1;
        f32(&p)[i] = (float)(w - a->lr * (mh / (sqrt(vh) + a->eps) + a->weight_decay * w));
    }
    return call_end(&c);
}

enum cairn_status cairn_sumsq_ref(struct cairn_stream *s, const struct cairn_sumsq *a, struct cairn_error *err)
{
    struct call c = call_begin("sumsq", s, err);
    int64_t n = cairn_tensor_count(&a->x), P = a->pieces.buf ? -1 : 1, two = 2;
    struct cairn_tensor flat = a->x;
    struct arg x, out = call_arg(&c, "out", &a->out, OUT | T_F64, 1, &P),
                  pieces = call_arg(&c, "pieces", &a->pieces, ABSENT | T_I64, 2, &P, &two);
    const int64_t whole[2] = {0, n}, *piece = pieces.p ? pieces.p : whole;

    if (!cairn_tensor_dense(&a->x))
        call_fail(&c, "x is not dense");
    flat.ndim = 1;
    flat.dim[0] = n;
    flat.stride[0] = 1;
    x = call_arg(&c, "x", &flat, T_F32, 1, &n);
    for (int64_t p = 0; call_ok(&c) && p < P; p++) {
        const int64_t begin = piece[2 * p], length = piece[2 * p + 1];
        double total = 0;

        if (begin < (p ? piece[2 * p - 2] + piece[2 * p - 1] : 0) || begin > n || length < 0 || length > n - begin)
            call_fail(&c, "piece %lld is %lld elements from %lld on, of %lld", (long long)p, (long long)length, (long long)begin,
                      (long long)n);
        for (int64_t b = begin; call_ok(&c) && b < begin + length; b += 4096) {
            double sum = 0;

            for (int64_t i = b; i < begin + length && i < b + 4096; i++)
                sum += (double)f32(&x)[i] * f32(&x)[i];
            total += sum;
        }
        ((double *)out.p)[p] = total;
    }
    return call_end(&c);
}

/* rows_ref.c - rows, embed_bwd, axpby, cast as their definitions read. */
#include <string.h>

#include "convert.h"
#include "internal.h"

enum cairn_status cairn_rows_ref(struct cairn_stream *s, const struct cairn_rows *a, struct cairn_error *err)
{
    struct call c = call_begin("rows", s, err);
    int64_t S = -1, T = -1, D = -1, N = -1;
    struct arg src = call_arg(&c, "src", &a->src, STRIDED | T_WEIGHT | T_I32, 2, &S, &D),
               dst = call_arg(&c, "dst", &a->dst, OUT | STRIDED | T_WEIGHT | T_I32, 2, &T, &D),
               from = call_arg(&c, "src_index", &a->src_index, ABSENT | T_I32, 1, &N),
               to = call_arg(&c, "dst_index", &a->dst_index, ABSENT | T_I32, 1, &N);

    if (N < 0)
        N = S;
    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        int64_t i = from.p ? i32(&from)[n] : n, j = to.p ? i32(&to)[n] : n;

        if (i < 0 || i >= S || j < 0 || j >= T) {
            call_fail(&c, "index %lld of %lld or %lld of %lld", (long long)i, (long long)S, (long long)j, (long long)T);
        } else if (src.type == CAIRN_BF16 && dst.type == CAIRN_F32) {
            to_f32(at1(&dst, j), src.p, CAIRN_BF16, i * src.s[0], D);
        } else if (src.type == dst.type) {
            size_t size = cairn_dtype_size(src.type);

            memcpy((char *)dst.p + (size_t)(j * dst.s[0]) * size, (char *)src.p + (size_t)(i * src.s[0]) * size, (size_t)D * size);
        } else {
            call_fail(&c, "from %s to %s", cairn_dtype_name(src.type), cairn_dtype_name(dst.type));
        }
    }
    return call_end(&c);
}

enum cairn_status cairn_embed_bwd_ref(struct cairn_stream *s, const struct cairn_embed_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("embed_bwd", s, err);
    int64_t N = -1, D = -1, V = -1;
    struct arg ids = call_arg(&c, "ids", &a->ids, T_I32, 1, &N), dy = call_arg(&c, "dy", &a->dy, STRIDED | T_F32, 2, &N, &D),
               dt = call_arg(&c, "dtable", &a->dtable, OUT | STRIDED | T_F32, 2, &V, &D);

    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        if (i32(&ids)[n] < 0 || i32(&ids)[n] >= V)
            call_fail(&c, "id %d of row %lld is outside of %lld", i32(&ids)[n], (long long)n, (long long)V);
        for (int64_t d = 0; call_ok(&c) && d < D; d++)
            at1(&dt, i32(&ids)[n])[d] += at1(&dy, n)[d];
    }
    return call_end(&c);
}

enum cairn_status cairn_axpby_ref(struct cairn_stream *s, const struct cairn_axpby *a, struct cairn_error *err)
{
    struct call c = call_begin("axpby", s, err);
    int64_t d[CAIRN_MAX_DIMS] = {-1, -1, -1, -1};
    int n = a->y.ndim;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, n, &d[0], &d[1], &d[2], &d[3]),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, n, &d[0], &d[1], &d[2], &d[3]);

    for (int64_t i = 0; call_ok(&c) && i < cairn_tensor_count(&a->y); i++) {
        int64_t xo = 0, yo = 0, rest = i;

        for (int k = n - 1; k >= 0; k--) {
            xo += rest % d[k] * x.s[k];
            yo += rest % d[k] * y.s[k];
            rest /= d[k];
        }
        f32(&y)[yo] = (float)((double)a->a * f32(&x)[xo] + (a->b == 0 ? 0 : (double)a->b * f32(&y)[yo]));
    }
    return call_end(&c);
}

enum cairn_status cairn_cast_ref(struct cairn_stream *s, const struct cairn_cast *a, struct cairn_error *err)
{
    struct call c = call_begin("cast", s, err);
    const int types = T_F32 | T_BF16 | T_F16;
    int64_t n = cairn_tensor_count(&a->src);
    struct cairn_tensor src = a->src, dst = a->dst;
    struct arg from, to;

    if (n != cairn_tensor_count(&a->dst) || !cairn_tensor_dense(&src) || !cairn_tensor_dense(&dst))
        call_fail(&c, "only between dense tensors of equal counts");
    src.ndim = dst.ndim = 1;
    src.dim[0] = dst.dim[0] = n;
    src.stride[0] = dst.stride[0] = 1;
    from = call_arg(&c, "src", &src, types, 1, &n);
    to = call_arg(&c, "dst", &dst, OUT | types, 1, &n);
    for (int64_t i = 0; call_ok(&c) && i < n; i++) {
        float x;

        to_f32(&x, from.p, from.type, i, 1);
        if (a->round_to >= 0)
            round_f32(&x, (enum cairn_dtype)a->round_to, 1);
        from_f32(to.p, to.type, i, &x, 1);
    }
    return call_end(&c);
}

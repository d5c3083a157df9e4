/* rows.c - moving and converting rows and elements: rows, embed_bwd, axpby, cast. The reference of each is in rows_ref.c.
 *
 * Indexes are checked on the way: a row number outside of its table is CAIRN_EBUG, never a stray access.
 */
#include <omp.h>
#include <string.h>

#include "convert.h"
#include "internal.h"
#include "vec.h"

enum cairn_status cairn_rows_cpu(struct cairn_stream *s, const struct cairn_rows *a, struct cairn_error *err)
{
    struct call c = call_begin("rows", s, err);
    int64_t S = -1, T = -1, D = -1, N = -1;
    struct arg src = call_arg(&c, "src", &a->src, STRIDED | T_WEIGHT | T_I32, 2, &S, &D),
               dst = call_arg(&c, "dst", &a->dst, OUT | STRIDED | T_WEIGHT | T_I32, 2, &T, &D),
               from = call_arg(&c, "src_index", &a->src_index, ABSENT | T_I32, 1, &N),
               to = call_arg(&c, "dst_index", &a->dst_index, ABSENT | T_I32, 1, &N);
    int bad = 0;

    if (!from.p && !to.p)
        N = S < T ? S : T;
    if (call_ok(&c) && ((!from.p && (to.p ? S < N : S != N)) || (!to.p && (from.p ? T < N : T != N))))
        call_fail(&c, "%lld rows of %lld to %lld", (long long)N, (long long)S, (long long)T);
    if (call_ok(&c) && src.type != dst.type && !(src.type == CAIRN_BF16 && dst.type == CAIRN_F32))
        call_fail(&c, "from %s to %s", cairn_dtype_name(src.type), cairn_dtype_name(dst.type));
    if (call_ok(&c)) {
        size_t size = cairn_dtype_size(src.type);
        int threads = call_threads(&c, N * D / 4, N);

#pragma omp parallel for num_threads(threads) schedule(static) reduction(| : bad)
        for (int64_t n = 0; n < N; n++) {
            int64_t i = from.p ? i32(&from)[n] : n, j = to.p ? i32(&to)[n] : n;

            if (i < 0 || i >= S || j < 0 || j >= T) {
                bad = 1;
                continue;
            }
            if (src.type == dst.type)
                memcpy((char *)dst.p + (size_t)(j * dst.s[0]) * size, (const char *)src.p + (size_t)(i * src.s[0]) * size, (size_t)D * size);
            else
                for (int64_t k = 0; k < D; k++)
                    at1(&dst, j)[k] = bf16_to_f32(((const uint16_t *)src.p)[i * src.s[0] + k]);
        }
    }
    if (bad)
        call_fail(&c, "an index is outside of its %lld or %lld rows", (long long)S, (long long)T);
    return call_end(&c);
}

enum cairn_status cairn_embed_bwd_cpu(struct cairn_stream *s, const struct cairn_embed_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("embed_bwd", s, err);
    int64_t N = -1, D = -1, V = -1;
    struct arg ids = call_arg(&c, "ids", &a->ids, T_I32, 1, &N), dy = call_arg(&c, "dy", &a->dy, STRIDED | T_F32, 2, &N, &D),
               dt = call_arg(&c, "dtable", &a->dtable, OUT | STRIDED | T_F32, 2, &V, &D);

    for (int64_t n = 0; call_ok(&c) && n < N; n++)
        if (i32(&ids)[n] < 0 || i32(&ids)[n] >= V)
            call_fail(&c, "id %d of row %lld is outside of %lld", i32(&ids)[n], (long long)n, (long long)V);
    if (call_ok(&c)) {
        int threads = call_threads(&c, N * D / 4, D / VL);

        /* threads share the columns: each adds all rows in order */
#pragma omp parallel num_threads(threads)
        {
            int t = omp_get_thread_num();
            int64_t d0 = part(D, VL, t, threads), d1 = part(D, VL, t + 1, threads);

            for (int64_t n = 0; n < N; n++) {
                const float *g = at1(&dy, n);
                float *row = at1(&dt, i32(&ids)[n]);

                for (int64_t d = d0; d < d1; d++)
                    row[d] += g[d];
            }
        }
    }
    return call_end(&c);
}

enum cairn_status cairn_axpby_cpu(struct cairn_stream *s, const struct cairn_axpby *a, struct cairn_error *err)
{
    struct call c = call_begin("axpby", s, err);
    int64_t d[CAIRN_MAX_DIMS] = {-1, -1, -1, -1}, last, outer = 1;
    int n = a->y.ndim;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, n, &d[0], &d[1], &d[2], &d[3]),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, n, &d[0], &d[1], &d[2], &d[3]);

    if (call_ok(&c) && n == 0)
        call_fail(&c, "no dimensions");
    if (!call_ok(&c))
        return call_end(&c);
    for (int i = 0; i + 1 < n; i++)
        outer *= d[i];
    last = d[n - 1];
    /* as few and as long rows as the strides allow */
    if (cairn_tensor_dense(&a->x) && cairn_tensor_dense(&a->y)) {
        last *= outer;
        outer = 1;
    }
    {
        const int64_t run = 4096;
        int64_t runs = (last + run - 1) / run, pieces = outer * runs;
        int threads = call_threads(&c, outer * last / 2, pieces);

#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t p = 0; p < pieces; p++) {
            int64_t o = p / runs, i = p % runs * run, m = last - i < run ? last - i : run, xo = i, yo = i;
            const float *u;
            float *v;

            for (int k = n - 2; k >= 0 && outer > 1; k--) {
                xo += o % d[k] * x.s[k];
                yo += o % d[k] * y.s[k];
                o /= d[k];
            }
            u = f32(&x) + xo;
            v = f32(&y) + yo;
            if (a->b == 0.0f) /* y may be poisoned: it is not looked at */
                for (int64_t k = 0; k < m; k++)
                    v[k] = a->a * u[k];
            else
                for (int64_t k = 0; k < m; k++)
                    v[k] = a->a * u[k] + a->b * v[k];
        }
    }
    return call_end(&c);
}

enum cairn_status cairn_cast_cpu(struct cairn_stream *s, const struct cairn_cast *a, struct cairn_error *err)
{
    struct call c = call_begin("cast", s, err);
    const int types = T_F32 | T_BF16 | T_F16;
    int64_t n = cairn_tensor_count(&a->src), m = cairn_tensor_count(&a->dst);
    struct cairn_tensor flat_src = a->src, flat_dst = a->dst;
    struct arg src, dst;

    if (!cairn_tensor_dense(&a->src) || !cairn_tensor_dense(&a->dst))
        call_fail(&c, "only between dense tensors");
    if (n != m)
        call_fail(&c, "%lld elements to %lld", (long long)n, (long long)m);
    if (a->round_to >= 0 && (a->round_to >= CAIRN_DTYPES || !(types & 1 << a->round_to)))
        call_fail(&c, "rounding to type %d", a->round_to);
    flat_src.ndim = flat_dst.ndim = 1;
    flat_src.dim[0] = flat_dst.dim[0] = n;
    flat_src.stride[0] = flat_dst.stride[0] = 1;
    src = call_arg(&c, "src", &flat_src, types, 1, &n);
    dst = call_arg(&c, "dst", &flat_dst, OUT | types, 1, &n);
    if (call_ok(&c) && src.p == dst.p && cairn_dtype_size(src.type) != cairn_dtype_size(dst.type))
        call_fail(&c, "in place between sizes");
    if (call_ok(&c)) {
        const int64_t run = 4096;
        int64_t pieces = (n + run - 1) / run;
        int threads = call_threads(&c, n, pieces);

#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t p = 0; p < pieces; p++) {
            float room[4096];
            int64_t i = p * run, k = n - i < run ? n - i : run;

            to_f32(room, src.p, src.type, i, k);
            if (a->round_to >= 0)
                round_f32(room, (enum cairn_dtype)a->round_to, k);
            from_f32(dst.p, dst.type, i, room, k);
        }
    }
    return call_end(&c);
}

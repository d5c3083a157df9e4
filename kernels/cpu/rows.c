/* rows.c - moving and converting rows and elements: rows, embed_bwd, axpby, cast. The reference of each is in rows_ref.c.
 *
 * Indexes are checked on the way: a row number outside of its table is CAIRN_EBUG, never a stray access.
 */
#include <stdatomic.h>
#include <string.h>

#include "convert.h"
#include "internal.h"
#include "vec.h"

struct move {
    struct arg src, dst, from, to;
    int64_t S, T, D;
    atomic_int bad;
};

static void move_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    struct move *k = ctx;
    size_t size = cairn_dtype_size(k->src.type);

    (void)scratch;
    for (int64_t n = begin; n < end; n++) {
        int64_t i = k->from.p ? i32(&k->from)[n] : n, j = k->to.p ? i32(&k->to)[n] : n;

        if (i < 0 || i >= k->S || j < 0 || j >= k->T)
            atomic_store(&k->bad, 1);
        else if (k->src.type == k->dst.type)
            memcpy((char *)k->dst.p + (size_t)(j * k->dst.s[0]) * size, (const char *)k->src.p + (size_t)(i * k->src.s[0]) * size,
                   (size_t)k->D * size);
        else
            to_f32(at1(&k->dst, j), k->src.p, k->src.type, i * k->src.s[0], k->D);
    }
}

enum cairn_status cairn_rows_cpu(struct cairn_stream *s, const struct cairn_rows *a, struct cairn_error *err)
{
    struct call c = call_begin("rows", s, err);
    int64_t S = -1, T = -1, D = -1, N = -1;
    struct arg src = call_arg(&c, "src", &a->src, STRIDED | T_WEIGHT | T_I32, 2, &S, &D),
               dst = call_arg(&c, "dst", &a->dst, OUT | STRIDED | T_WEIGHT | T_I32, 2, &T, &D),
               from = call_arg(&c, "src_index", &a->src_index, ABSENT | T_I32, 1, &N),
               to = call_arg(&c, "dst_index", &a->dst_index, ABSENT | T_I32, 1, &N);
    struct move k = {src, dst, from, to, S, T, D, 0};

    if (!from.p && !to.p)
        N = S;
    if (call_ok(&c) && ((!from.p && S < N) || (!to.p && T < N) || (!from.p && !to.p && S != T)))
        call_fail(&c, "%lld rows of %lld to %lld", (long long)N, (long long)S, (long long)T);
    if (call_ok(&c) && src.type != dst.type && !(src.type == CAIRN_BF16 && dst.type == CAIRN_F32))
        call_fail(&c, "from %s to %s", cairn_dtype_name(src.type), cairn_dtype_name(dst.type));
    if (call_ok(&c))
        call_share(&c, N, 1, N * D / 4, move_rows, &k);
    if (atomic_load(&k.bad))
        call_fail(&c, "an index is outside of its %lld or %lld rows", (long long)S, (long long)T);
    return call_end(&c);
}

struct scatter {
    struct arg ids, dy, table;
    int64_t N;
};

/* Columns begin .. end of the table: all rows in order */
static void scatter_columns(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct scatter *k = ctx;

    (void)scratch;
    for (int64_t n = 0; n < k->N; n++) {
        const float *g = at1(&k->dy, n);
        float *row = at1(&k->table, i32(&k->ids)[n]);

        for (int64_t d = begin; d < end; d++)
            row[d] += g[d];
    }
}

enum cairn_status cairn_embed_bwd_cpu(struct cairn_stream *s, const struct cairn_embed_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("embed_bwd", s, err);
    int64_t N = -1, D = -1, V = -1;
    struct arg ids = call_arg(&c, "ids", &a->ids, T_I32, 1, &N), dy = call_arg(&c, "dy", &a->dy, STRIDED | T_F32, 2, &N, &D),
               table = call_arg(&c, "dtable", &a->dtable, OUT | STRIDED | T_F32, 2, &V, &D);
    struct scatter k = {ids, dy, table, N};

    for (int64_t n = 0; call_ok(&c) && n < N; n++)
        if (i32(&ids)[n] < 0 || i32(&ids)[n] >= V)
            call_fail(&c, "id %d of row %lld is outside of %lld", i32(&ids)[n], (long long)n, (long long)V);
    if (call_ok(&c))
        call_share(&c, D, VL, N * D / 4, scatter_columns, &k);
    return call_end(&c);
}

#define RUN 4096 /* elements at a time */

struct sum {
    struct arg x, y;
    int64_t last; /* length of a row */
    int ndim;     /* of the rows' index; 0: one row */
    float a, b;
};

static void sum_elements(const struct sum *k, const float *u, float *v, int64_t n)
{
    if (k->b == 0.0f) /* y may hold anything: it is not looked at */
        for (int64_t i = 0; i < n; i++)
            v[i] = k->a * u[i];
    else
        for (int64_t i = 0; i < n; i++)
            v[i] = k->a * u[i] + k->b * v[i];
}

/* Elements begin .. end, counted over all rows */
static void sum_part(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct sum *k = ctx;

    (void)scratch;
    while (begin < end) {
        int64_t o = begin / k->last, i = begin % k->last, n = k->last - i < end - begin ? k->last - i : end - begin, xo = i, yo = i;

        for (int d = k->ndim - 1; d >= 0; d--) {
            xo += o % k->x.d[d] * k->x.s[d];
            yo += o % k->x.d[d] * k->y.s[d];
            o /= k->x.d[d];
        }
        sum_elements(k, f32(&k->x) + xo, f32(&k->y) + yo, n);
        begin += n;
    }
}

enum cairn_status cairn_axpby_cpu(struct cairn_stream *s, const struct cairn_axpby *a, struct cairn_error *err)
{
    struct call c = call_begin("axpby", s, err);
    int64_t d[CAIRN_MAX_DIMS] = {-1, -1, -1, -1}, count = cairn_tensor_count(&a->y);
    int n = a->y.ndim;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, n, &d[0], &d[1], &d[2], &d[3]),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, n, &d[0], &d[1], &d[2], &d[3]);
    struct sum k = {x, y, n ? d[n - 1] : 1, n ? n - 1 : 0, a->a, a->b};

    if (cairn_tensor_dense(&a->x) && cairn_tensor_dense(&a->y)) {
        k.last = count;
        k.ndim = 0;
    }
    if (call_ok(&c) && count)
        call_share(&c, count, VL, count / 2, sum_part, &k);
    return call_end(&c);
}

struct conversion {
    struct arg src, dst;
    int round_to;
};

static void convert_part(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct conversion *k = ctx;
    float *room = scratch;

    for (int64_t i = begin; i < end; i += RUN) {
        int64_t n = end - i < RUN ? end - i : RUN;

        to_f32(room, k->src.p, k->src.type, i, n);
        if (k->round_to >= 0)
            round_f32(room, (enum cairn_dtype)k->round_to, n);
        from_f32(k->dst.p, k->dst.type, i, room, n);
    }
}

enum cairn_status cairn_cast_cpu(struct cairn_stream *s, const struct cairn_cast *a, struct cairn_error *err)
{
    struct call c = call_begin("cast", s, err);
    const int types = T_F32 | T_BF16 | T_F16;
    int64_t n = cairn_tensor_count(&a->src), m = cairn_tensor_count(&a->dst);
    struct cairn_tensor src = a->src, dst = a->dst;
    struct conversion k = {.round_to = a->round_to};

    if (!cairn_tensor_dense(&src) || !cairn_tensor_dense(&dst))
        call_fail(&c, "only between dense tensors");
    if (n != m)
        call_fail(&c, "%lld elements to %lld", (long long)n, (long long)m);
    if (a->round_to >= 0 && (a->round_to >= CAIRN_DTYPES || !(types & 1 << a->round_to)))
        call_fail(&c, "rounding to type %d", a->round_to);
    src.ndim = dst.ndim = 1;
    src.dim[0] = dst.dim[0] = n;
    src.stride[0] = dst.stride[0] = 1;
    k.src = call_arg(&c, "src", &src, types, 1, &n);
    k.dst = call_arg(&c, "dst", &dst, OUT | types, 1, &n);
    if (call_ok(&c) && k.src.p == k.dst.p && cairn_dtype_size(k.src.type) != cairn_dtype_size(k.dst.type))
        call_fail(&c, "in place between sizes");
    call_reserve(&c, RUN * sizeof(float), 0);
    if (call_ok(&c))
        call_share(&c, n, RUN, n, convert_part, &k);
    return call_end(&c);
}

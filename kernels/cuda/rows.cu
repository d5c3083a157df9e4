/* rows.cu - moving and converting rows and elements: rows, embed_bwd, axpby, cast.
 * Floors: what is read and written, once each.
 */
#include <cuda_fp16.h>

#include "kernel.cuh"

/* ---- rows --------------------------------------------------------------------------------------------------------------- */

struct move {
    int64_t S, T, D; /* D in units of the kernel's U */
    int64_t ss, ds;  /* row strides, the same */
    const int32_t *from, *to;
    struct fault *fault;
};

/* Rows i and j that row n of the call names; 0: a fault. */
__device__ static inline int row_of(const struct move *k, int64_t n, int64_t *i, int64_t *j)
{
    *i = k->from ? k->from[n] : n;
    *j = k->to ? k->to[n] : n;
    if (*i >= 0 && *i < k->S && *j >= 0 && *j < k->T)
        return 1;
    if (threadIdx.x == 0)
        fault_set(k->fault, OP_rows, FAULT_INDEX, *i >= 0 && *i < k->S ? *j : *i);
    return 0;
}

/* One block a row; U: uint4 where all is aligned, else the element. */
template <typename U> __global__ void __launch_bounds__(256) rows_copy(struct move k, const U *src, U *dst)
{
    int64_t i, j;

    if (!row_of(&k, blockIdx.x, &i, &j))
        return;
    for (int64_t d = threadIdx.x; d < k.D; d += blockDim.x)
        dst[j * k.ds + d] = src[i * k.ss + d];
}

template <typename F, typename T> __global__ void __launch_bounds__(256) rows_convert(struct move k, const F *src, int wide, T *dst)
{
    int64_t i, j;
    float v[8];

    if (!row_of(&k, blockIdx.x, &i, &j))
        return;
    for (int64_t d = (int64_t)threadIdx.x * 8; d < k.D; d += (int64_t)blockDim.x * 8) {
        ld8(src + i * k.ss + d, k.D - d, wide, v);
        st8(dst + j * k.ds + d, k.D - d, wide, v);
    }
}

static unsigned threads_for(int64_t units)
{
    return units >= 256 ? 256u : (unsigned)round_up(units, 32);
}

extern "C" enum cairn_status cairn_rows_cuda(struct cairn_stream *s, const struct cairn_rows *a, struct cairn_error *err)
{
    struct call c = call_begin("rows", s, err);
    int64_t S = -1, T = -1, D = -1, N = -1;
    struct arg src = call_arg(&c, "src", &a->src, STRIDED | T_WEIGHT | T_I32, 2, &S, &D),
               dst = call_arg(&c, "dst", &a->dst, OUT | STRIDED | T_WEIGHT | T_I32, 2, &T, &D),
               from = call_arg(&c, "src_index", &a->src_index, ABSENT | T_I32, 1, &N),
               to = call_arg(&c, "dst_index", &a->dst_index, ABSENT | T_I32, 1, &N);
    struct move k = {S, T, D, src.s[0], dst.s[0], i32(&from), i32(&to), c.cuda->d_fault};
    int64_t size = (int64_t)cairn_dtype_size(src.type);
    int wide;

    if (!from.p && !to.p)
        N = S;
    if (call_ok(&c) && ((!from.p && S < N) || (!to.p && T < N) || (!from.p && !to.p && S != T)))
        call_fail(&c, "%lld rows of %lld to %lld", (long long)N, (long long)S, (long long)T);
    if (call_ok(&c) && src.type != dst.type && (src.type == CAIRN_I32 || dst.type == CAIRN_I32))
        call_fail(&c, "from %s to %s", cairn_dtype_name(src.type), cairn_dtype_name(dst.type));
    if (!call_ok(&c) || !N || !D)
        return call_end(&c);
    wide = arg_align(&src) == 16 && arg_align(&dst) == 16;
    if (src.type == dst.type && wide && D * size % 16 == 0) {
        k.D = D * size / 16;
        k.ss = k.ss * size / 16;
        k.ds = k.ds * size / 16;
        LAUNCH(&c, rows_copy<uint4>, (unsigned)N, threads_for(k.D), 0, k, (const uint4 *)src.p, (uint4 *)dst.p);
    } else if (src.type == dst.type && size == 4) {
        LAUNCH(&c, rows_copy<uint32_t>, (unsigned)N, threads_for(D), 0, k, (const uint32_t *)src.p, (uint32_t *)dst.p);
    } else if (src.type == dst.type) {
        LAUNCH(&c, rows_copy<uint16_t>, (unsigned)N, threads_for(D), 0, k, (const uint16_t *)src.p, (uint16_t *)dst.p);
    } else if (src.type == CAIRN_BF16) {
        LAUNCH(&c, (rows_convert<bf16, float>), (unsigned)N, threads_for(ceil_div(D, 8)), 0, k, (const bf16 *)src.p, wide,
               (float *)dst.p);
    } else {
        LAUNCH(&c, (rows_convert<float, bf16>), (unsigned)N, threads_for(ceil_div(D, 8)), 0, k, (const float *)src.p, wide,
               (bf16 *)dst.p);
    }
    return call_end(&c);
}

/* ---- embed_bwd ------------------------------------------------------------------------------------------------------------ */

/* Rows sorted by id, rows of an id ascending: a row's place is the number of rows before it in that order. Each row is compared
 * with every other, by eight warps that share them out: N^2 comparisons, few beside the rows' own traffic up to some 30,000 rows.
 * Rows with an id outside of the table come last. */
#define NO_ID INT32_MAX
#define TILE  2048

__global__ void __launch_bounds__(256)
    embed_sort(int64_t N, int64_t V, const int32_t *ids, int32_t *order, int32_t *sorted, struct fault *fault)
{
    __shared__ int4 tile[TILE / 4];
    __shared__ int32_t place[32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t n0 = (int64_t)blockIdx.x * 32, n = n0 + lane;
    int32_t mine = n < N ? ids[n] : NO_ID, before = 0;

    if (n < N && (mine < 0 || mine >= V)) {
        if (warp == 0)
            fault_set(fault, OP_embed_bwd, FAULT_TARGET, mine);
        mine = NO_ID;
    }
    if (warp == 0)
        place[lane] = 0;
    for (int64_t m0 = 0; m0 < N; m0 += TILE) {
        __syncthreads();
        for (int i = threadIdx.x; i < TILE; i += 256) {
            const int32_t id = m0 + i < N ? ids[m0 + i] : NO_ID;

            ((int32_t *)tile)[i] = id < 0 || id >= V ? NO_ID : id;
        }
        __syncthreads();
        for (int q = 0; q < TILE / 32; q++) { /* this warp's part, four at a time */
            const int at = warp * (TILE / 32) + q;
            const int64_t m = m0 + at * 4;
            const int4 v = tile[at];

            if (m + 4 <= n0 || m >= n0 + 32) { /* before us, an equal id comes first; behind us, only a smaller one */
                const int32_t most = m < n0 ? mine : mine - 1;

                before += (v.x <= most) + (v.y <= most) + (v.z <= most) + (v.w <= most);
            } else {
                const int32_t w[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
                for (int j = 0; j < 4; j++)
                    before += w[j] < mine || (w[j] == mine && m + j < n);
            }
        }
    }
    atomicAdd(place + lane, before);
    __syncthreads();
    if (warp == 0 && n < N) {
        order[place[lane]] = (int32_t)n;
        sorted[place[lane]] = mine;
    }
}

/* One block for each place in that order where an id begins: the id's rows, ascending, onto the table's row, AHEAD of them under
 * way at a time. Grid y: parts of the columns. WIDE: rows of 16-byte pieces. */
template <typename T, int WIDE>
__global__ void __launch_bounds__(128) embed_sum(int64_t N, int64_t D, const int32_t *order, const int32_t *sorted, const T *dy,
                                                 int64_t dys, float *table, int64_t ts, int t_wide)
{
    enum { AHEAD = WIDE ? 16 / sizeof(T) : 1 };
    const int64_t d = ((int64_t)blockIdx.y * 128 + threadIdx.x) * 8, p = blockIdx.x;
    const int32_t id = sorted[p];
    int32_t row[AHEAD];
    float sum[8];

    if (d >= D || id == NO_ID || (p && sorted[p - 1] == id))
        return;
    table += (int64_t)id * ts + d;
    ld8(table, D - d, t_wide, sum);
#pragma unroll
    for (int j = 0; j < AHEAD; j++)
        row[j] = p + j < N && sorted[p + j] == id ? order[p + j] : -1;
    for (int64_t q = p + AHEAD; row[0] >= 0; q += AHEAD) {
        struct eight<T> u[AHEAD];
        int32_t now[AHEAD];
        float v[8];

#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            now[j] = row[j];
            if (WIDE)
                u[j] = now[j] >= 0 ? fetch8(dy + now[j] * dys + d) : nothing8(dy);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            row[j] = q + j < N && sorted[q + j] == id ? order[q + j] : -1;
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (now[j] >= 0) {
                if (WIDE)
                    open8(u[j], v);
                else
                    ld8(dy + now[j] * dys + d, D - d, 0, v);
#pragma unroll
                for (int e = 0; e < 8; e++)
                    sum[e] += v[e];
            }
    }
    st8(table, D - d, t_wide, sum);
}

extern "C" enum cairn_status cairn_embed_bwd_cuda(struct cairn_stream *s, const struct cairn_embed_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("embed_bwd", s, err);
    int64_t N = -1, D = -1, V = -1;
    struct arg ids = call_arg(&c, "ids", &a->ids, T_I32, 1, &N), dy = call_arg(&c, "dy", &a->dy, STRIDED | T_ACT, 2, &N, &D),
               table = call_arg(&c, "dtable", &a->dtable, OUT | STRIDED | T_F32, 2, &V, &D);
    int32_t *order;
    int wide;

    if (call_ok(&c) && N > INT32_MAX - TILE)
        call_fail(&c, "%lld rows", (long long)N);
    if (!call_ok(&c) || !N || !D)
        return call_end(&c);
    order = (int32_t *)call_scratch(&c, (size_t)N * 2 * sizeof *order);
    wide = arg_align(&dy) == 16 && D % 8 == 0;
    LAUNCH(&c, embed_sort, (unsigned)ceil_div(N, 32), 256, 0, N, V, i32(&ids), order, order + N, c.cuda->d_fault);
    ON_ACT(dy.type, T, {
        const dim3 grid((unsigned)N, (unsigned)ceil_div(D, 1024));

        if (wide)
            LAUNCH(&c, (embed_sum<T, 1>), grid, 128, 0, N, D, order, order + N, (const T *)dy.p, dy.s[0], f32(&table), table.s[0],
                   arg_align(&table) == 16);
        else
            LAUNCH(&c, (embed_sum<T, 0>), grid, 128, 0, N, D, order, order + N, (const T *)dy.p, dy.s[0], f32(&table), table.s[0],
                   arg_align(&table) == 16);
    });
    return call_end(&c);
}

/* ---- axpby ----------------------------------------------------------------------------------------------------------------- */

struct sum {
    int64_t last, chunks, rows; /* length of a row, its chunks of eight, how many rows */
    int64_t d[3], xs[3], ys[3]; /* the rows' index, right-aligned: d[2] is the fastest */
    int wide;
    float a, b;
};

template <typename X, typename Y> __global__ void __launch_bounds__(256) axpby_rows(struct sum k, const X *x, Y *y)
{
    const int64_t id = (int64_t)blockIdx.x * 256 + threadIdx.x, i = id % k.chunks * 8;
    int64_t row = id / k.chunks, xo = i, yo = i;
    float u[8], v[8];

    if (row >= k.rows)
        return;
#pragma unroll
    for (int d = 2; d >= 0; d--) {
        int64_t at = row % k.d[d];

        row /= k.d[d];
        xo += at * k.xs[d];
        yo += at * k.ys[d];
    }
    ld8(x + xo, k.last - i, k.wide, u);
    if (k.b == 0.0f) { /* y may hold anything: it is not looked at */
#pragma unroll
        for (int e = 0; e < 8; e++)
            u[e] = k.a * u[e];
    } else {
        ld8(y + yo, k.last - i, k.wide, v);
#pragma unroll
        for (int e = 0; e < 8; e++)
            u[e] = k.a * u[e] + k.b * v[e];
    }
    st8(y + yo, k.last - i, k.wide, u);
}

extern "C" enum cairn_status cairn_axpby_cuda(struct cairn_stream *s, const struct cairn_axpby *a, struct cairn_error *err)
{
    struct call c = call_begin("axpby", s, err);
    int64_t d[CAIRN_MAX_DIMS] = {-1, -1, -1, -1}, count = cairn_tensor_count(&a->y);
    int n = a->y.ndim;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_WEIGHT, n, &d[0], &d[1], &d[2], &d[3]),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_WEIGHT, n, &d[0], &d[1], &d[2], &d[3]);
    struct sum k = {n ? d[n - 1] : 1, 0, 1, {1, 1, 1}};
    unsigned grid;

    if (!call_ok(&c) || !count)
        return call_end(&c);
    k.a = a->a;
    k.b = a->b;
    k.wide = arg_align(&x) == 16 && arg_align(&y) == 16;
    if (cairn_tensor_dense(&a->x) && cairn_tensor_dense(&a->y)) {
        k.last = count;
        k.wide = (uintptr_t)x.p % 16 == 0 && (uintptr_t)y.p % 16 == 0;
    } else {
        for (int i = 0; i + 1 < n; i++) {
            int at = 3 - (n - 1) + i;

            k.d[at] = d[i];
            k.xs[at] = x.s[i];
            k.ys[at] = y.s[i];
            k.rows *= d[i];
        }
    }
    k.chunks = ceil_div(k.last, 8);
    grid = (unsigned)ceil_div(k.rows * k.chunks, 256);
    if (x.type == CAIRN_F32 && y.type == CAIRN_F32)
        LAUNCH(&c, (axpby_rows<float, float>), grid, 256, 0, k, (const float *)x.p, (float *)y.p);
    else if (x.type == CAIRN_F32)
        LAUNCH(&c, (axpby_rows<float, bf16>), grid, 256, 0, k, (const float *)x.p, (bf16 *)y.p);
    else if (y.type == CAIRN_F32)
        LAUNCH(&c, (axpby_rows<bf16, float>), grid, 256, 0, k, (const bf16 *)x.p, (float *)y.p);
    else
        LAUNCH(&c, (axpby_rows<bf16, bf16>), grid, 256, 0, k, (const bf16 *)x.p, (bf16 *)y.p);
    return call_end(&c);
}

/* ---- cast ------------------------------------------------------------------------------------------------------------------- */

__device__ static inline void ld8(const __half *p, int64_t n, int wide, float v[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = i < n ? __half2float(p[i]) : 0.0f;
}
__device__ static inline void st8(__half *p, int64_t n, int wide, const float v[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < n)
            p[i] = __float2half_rn(v[i]);
}

/* Eight elements a thread; src may be dst. */
template <typename F, typename T>
__global__ void __launch_bounds__(256) cast_run(int64_t n, const F *src, T *dst, int wide, int round_to)
{
    const int64_t i = ((int64_t)blockIdx.x * 256 + threadIdx.x) * 8;
    float v[8];

    if (i >= n)
        return;
    ld8(src + i, n - i, wide, v);
    if (round_to == CAIRN_BF16)
#pragma unroll
        for (int e = 0; e < 8; e++)
            v[e] = __bfloat162float(__float2bfloat16_rn(v[e]));
    else if (round_to == CAIRN_F16)
#pragma unroll
        for (int e = 0; e < 8; e++)
            v[e] = __half2float(__float2half_rn(v[e]));
    st8(dst + i, n - i, wide, v);
}

template <typename F> static void cast_from(struct call *c, int64_t n, const struct arg *src, const struct arg *dst, int round_to)
{
    const unsigned grid = (unsigned)ceil_div(n, 2048);
    const int wide = (uintptr_t)src->p % 16 == 0 && (uintptr_t)dst->p % 16 == 0;

    if (dst->type == CAIRN_F32)
        LAUNCH(c, (cast_run<F, float>), grid, 256, 0, n, (const F *)src->p, (float *)dst->p, wide, round_to);
    else if (dst->type == CAIRN_BF16)
        LAUNCH(c, (cast_run<F, bf16>), grid, 256, 0, n, (const F *)src->p, (bf16 *)dst->p, wide, round_to);
    else
        LAUNCH(c, (cast_run<F, __half>), grid, 256, 0, n, (const F *)src->p, (__half *)dst->p, wide, round_to);
}

extern "C" enum cairn_status cairn_cast_cuda(struct cairn_stream *s, const struct cairn_cast *a, struct cairn_error *err)
{
    struct call c = call_begin("cast", s, err);
    const int types = T_F32 | T_BF16 | T_F16;
    int64_t n = cairn_tensor_count(&a->src), m = cairn_tensor_count(&a->dst);
    struct cairn_tensor from = a->src, to = a->dst;
    struct arg src, dst;

    if (!cairn_tensor_dense(&from) || !cairn_tensor_dense(&to))
        call_fail(&c, "only between dense tensors");
    if (n != m)
        call_fail(&c, "%lld elements to %lld", (long long)n, (long long)m);
    if (a->round_to >= 0 && (a->round_to >= CAIRN_DTYPES || !(types & 1 << a->round_to)))
        call_fail(&c, "rounding to type %d", a->round_to);
    from.ndim = to.ndim = 1;
    from.dim[0] = to.dim[0] = n;
    from.stride[0] = to.stride[0] = 1;
    src = call_arg(&c, "src", &from, types, 1, &n);
    dst = call_arg(&c, "dst", &to, OUT | types, 1, &n);
    if (call_ok(&c) && src.p == dst.p && cairn_dtype_size(src.type) != cairn_dtype_size(dst.type))
        call_fail(&c, "in place between sizes");
    if (!call_ok(&c) || !n)
        return call_end(&c);
    if (src.type == CAIRN_F32)
        cast_from<float>(&c, n, &src, &dst, a->round_to);
    else if (src.type == CAIRN_BF16)
        cast_from<bf16>(&c, n, &src, &dst, a->round_to);
    else
        cast_from<__half>(&c, n, &src, &dst, a->round_to);
    return call_end(&c);
}

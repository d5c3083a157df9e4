/* rope.cu - interleaved rotary positions.
 *
 * A block takes one or a few rows: its threads first take their R/2 angles each (fp32 as the models define them, cosine and sine in
 * fp64, rounded), then turn the H*R/2 pairs, four at a time where rows and heads are aligned so. Inverse frequencies come from the
 * host, in the op's own arithmetic, so that they are the cpu's.
 * Floor: reads and writes N*H*R.
 */
#include <math.h>

#include "kernel.cuh"

#define MAX_PAIRS 256
#define ROWS_MOST 8 /* rows a block, of at most MAX_PAIRS / 4 pairs */

struct frequencies {
    float inv[MAX_PAIRS];
};

struct turn {
    int64_t N, xs[2], ys[2]; /* strides of row, head */
    int H, pairs, wide, inverse, rows;
    struct fault *fault;
};

__device__ static inline float2 ld_pair(const float *p, int wide)
{
    return wide ? *(const float2 *)p : make_float2(p[0], p[1]);
}
__device__ static inline float2 ld_pair(const bf16 *p, int wide)
{
    if (wide) {
        uint32_t u = *(const uint32_t *)p;

        return make_float2(__uint_as_float(u << 16), __uint_as_float(u & 0xffff0000u));
    }
    return make_float2(__bfloat162float(p[0]), __bfloat162float(p[1]));
}
__device__ static inline void st_pair(float *p, int wide, float a, float b)
{
    if (wide)
        *(float2 *)p = make_float2(a, b);
    else
        p[0] = a, p[1] = b;
}
__device__ static inline void st_pair(bf16 *p, int wide, float a, float b)
{
    if (wide)
        *(uint32_t *)p = bf16_pair(a, b);
    else
        p[0] = __float2bfloat16_rn(a), p[1] = __float2bfloat16_rn(b);
}

/* Angles of `rows` rows from n0 on into cs; a row with a bad position gets none. */
__device__ static inline void rope_angles(const struct frequencies *f, const struct turn *k, const int32_t *pos, int64_t n0,
                                          int rows, float2 *cs)
{
    for (int i = threadIdx.x; i < rows * k->pairs; i += blockDim.x) {
        const int row = i / k->pairs, j = i - row * k->pairs;
        const int32_t p = pos[n0 + row];
        double s, c;

        if (p < 0)
            fault_set(k->fault, OP_rope, FAULT_POSITION, p);
        sincos((double)((float)p * f->inv[j]), &s, &c);
        cs[i] = make_float2((float)c, k->inverse ? -(float)s : (float)s);
    }
    __syncthreads();
}

/* One row a block, pair by pair. */
template <typename T>
__global__ void __launch_bounds__(256)
    rope_rows(const __grid_constant__ struct frequencies f, struct turn k, const T *x, const int32_t *pos, T *y)
{
    __shared__ float2 cs[MAX_PAIRS];
    const int64_t n = blockIdx.x;

    rope_angles(&f, &k, pos, n, 1, cs);
    if (pos[n] < 0)
        return;
    for (int i = threadIdx.x; i < k.H * k.pairs; i += blockDim.x) {
        const int h = i / k.pairs, j = i - h * k.pairs;
        const float2 u = ld_pair(x + n * k.xs[0] + h * k.xs[1] + 2 * j, k.wide), a = cs[j];

        st_pair(y + n * k.ys[0] + h * k.ys[1] + 2 * j, k.wide, u.x * a.x - u.y * a.y, u.x * a.y + u.y * a.x);
    }
}

/* k.rows rows a block, four pairs at a time: everything is aligned for that. A thread has AHEAD of them under way. */
template <typename T>
__global__ void __launch_bounds__(256)
    rope_wide(const __grid_constant__ struct frequencies f, struct turn k, const T *x, const int32_t *pos, T *y)
{
    enum { AHEAD = 4 };
    __shared__ float2 cs[ROWS_MOST * MAX_PAIRS / 4];
    const int64_t n0 = (int64_t)blockIdx.x * k.rows;
    const int rows = k.N - n0 < k.rows ? (int)(k.N - n0) : k.rows, quads = k.pairs / 4, each = k.H * quads, all = rows * each;
    struct eight<T> u[AHEAD];

    for (int begin = 0; begin < all; begin += 256 * AHEAD) {
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const int i = begin + a * 256 + (int)threadIdx.x, row = i / each, at = i - row * each, h = at / quads,
                      q = at - h * quads;

            u[a] = i < all ? fetch8(x + (n0 + row) * k.xs[0] + h * k.xs[1] + 8 * q) : nothing8(x);
        }
        if (begin == 0)
            rope_angles(&f, &k, pos, n0, rows, cs);
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const int i = begin + a * 256 + (int)threadIdx.x, row = i / each, at = i - row * each, h = at / quads,
                      q = at - h * quads;
            float v[8], w[8];

            if (i >= all || pos[n0 + row] < 0)
                continue;
            open8(u[a], v);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float2 t = cs[row * k.pairs + q * 4 + e];

                w[2 * e] = v[2 * e] * t.x - v[2 * e + 1] * t.y;
                w[2 * e + 1] = v[2 * e] * t.y + v[2 * e + 1] * t.x;
            }
            st8(y + (n0 + row) * k.ys[0] + h * k.ys[1] + 8 * q, 8, 1, w);
        }
    }
}

extern "C" enum cairn_status cairn_rope_cuda(struct cairn_stream *s, const struct cairn_rope *a, struct cairn_error *err)
{
    struct call c = call_begin("rope", s, err);
    int64_t N = -1, H = -1, R = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_ACT, 3, &N, &H, &R),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_ACT, 3, &N, &H, &R), pos = call_arg(&c, "pos", &a->pos, T_I32, 1, &N);
    struct frequencies f;
    struct turn k;
    int pair = x.type == CAIRN_F32 ? 8 : 4;

    if (call_ok(&c) && R % 2)
        call_fail(&c, "R = %lld is odd", (long long)R);
    if (call_ok(&c) && R > 2 * MAX_PAIRS)
        call_fail(&c, "R = %lld is beyond %d", (long long)R, 2 * MAX_PAIRS);
    if (!call_ok(&c) || !N || !H || !R)
        return call_end(&c);
    for (int j = 0; j < R / 2; j++) {
        float exponent = (float)(2 * j) / (float)R;

        f.inv[j] = 1.0f / (float)pow((double)a->theta, (double)exponent);
    }
    k.N = N;
    k.xs[0] = x.s[0], k.xs[1] = x.s[1];
    k.ys[0] = y.s[0], k.ys[1] = y.s[1];
    k.H = (int)H;
    k.pairs = (int)(R / 2);
    k.wide = arg_align(&x) >= pair && arg_align(&y) >= pair;
    k.inverse = a->inverse;
    k.fault = c.cuda->d_fault;
    k.rows = N >= (int64_t)16 * c.cuda->sms ? ROWS_MOST : 1; /* few rows: a block each, so that all multiprocessors have work */
    {
        const int wide = R % 8 == 0 && arg_align(&x) == 16 && arg_align(&y) == 16 && k.pairs <= MAX_PAIRS / 4;
        const int64_t threads = wide ? 256 : round_up(H * R / 2, 32);

        ON_ACT(x.type, T,
               if (wide) LAUNCH(&c, rope_wide<T>, (unsigned)ceil_div(N, k.rows), 256, 0, f, k, (const T *)x.p, i32(&pos), (T *)y.p);
               else LAUNCH(&c, rope_rows<T>, (unsigned)N, threads < 256 ? (unsigned)threads : 256u, 0, f, k, (const T *)x.p,
                           i32(&pos), (T *)y.p));
    }
    return call_end(&c);
}

/* rope.cu - interleaved rotary positions.
 *
 * One block a row: its threads first take the R/2 angles (fp32 as the models define them, cosine and sine in fp64, rounded), then
 * turn the H*R/2 pairs. Inverse frequencies come from the host, in the op's own arithmetic, so that they are the cpu's.
 * Floor: reads and writes N*H*R.
 */
#include <math.h>

#include "kernel.cuh"

#define MAX_PAIRS 256

struct frequencies {
    float inv[MAX_PAIRS];
};

struct turn {
    int64_t xs[2], ys[2]; /* strides of row, head */
    int H, pairs, wide, inverse;
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

template <typename T>
__global__ void __launch_bounds__(256)
    rope_rows(const __grid_constant__ struct frequencies f, struct turn k, const T *x, const int32_t *pos, T *y)
{
    __shared__ float cs[MAX_PAIRS][2];
    const int64_t n = blockIdx.x;
    const int32_t p = pos[n];

    if (p < 0) {
        if (threadIdx.x == 0)
            fault_set(k.fault, OP_rope, FAULT_POSITION, p);
        return;
    }
    for (int j = threadIdx.x; j < k.pairs; j += blockDim.x) {
        double angle = (double)((float)p * f.inv[j]), s, c;

        sincos(angle, &s, &c);
        cs[j][0] = (float)c;
        cs[j][1] = k.inverse ? -(float)s : (float)s;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < k.H * k.pairs; i += blockDim.x) {
        int h = i / k.pairs, j = i % k.pairs;
        float2 u = ld_pair(x + n * k.xs[0] + h * k.xs[1] + 2 * j, k.wide);
        float c = cs[j][0], s = cs[j][1];

        st_pair(y + n * k.ys[0] + h * k.ys[1] + 2 * j, k.wide, u.x * c - u.y * s, u.x * s + u.y * c);
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
    k.xs[0] = x.s[0], k.xs[1] = x.s[1];
    k.ys[0] = y.s[0], k.ys[1] = y.s[1];
    k.H = (int)H;
    k.pairs = (int)(R / 2);
    k.wide = arg_align(&x) >= pair && arg_align(&y) >= pair;
    k.inverse = a->inverse;
    k.fault = c.cuda->d_fault;
    {
        int64_t threads = round_up(H * R / 2, 32);

        ON_ACT(x.type, T,
               LAUNCH(&c, rope_rows<T>, (unsigned)N, threads < 256 ? (unsigned)threads : 256u, 0, f, k, (const T *)x.p, i32(&pos),
                      (T *)y.p));
    }
    return call_end(&c);
}

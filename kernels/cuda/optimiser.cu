/* optimiser.cu - adamw and sumsq.
 *
 * adamw: four elements a thread, the cpu's arithmetic step for step. Floor: reads p, g, m, v and writes p, m, v: 28 bytes an
 * element. sumsq: each run of 4096 elements is one fp64 chain in one thread (as the contract has it); 128 chains go side by side,
 * so that memory is read in whole lines, and all pieces of a call go at once. A warp adds the runs of a piece ascending. Floor:
 * 4 bytes an element; 4096 dependent additions.
 */
#include <math.h>

#include "kernel.cuh"

struct coefficients {
    float scale, b1, c1, b2, c2, step, root, eps, decay;
};

__device__ static inline void update(const struct coefficients *k, float *p, float g, float *m, float *v)
{
    float d = k->scale * g, m1 = k->b1 * *m + k->c1 * d, v1 = k->b2 * *v + k->c2 * (d * d);

    *m = m1;
    *v = v1;
    *p = *p - (k->step * (m1 / (sqrtf(v1 * k->root) + k->eps)) + k->decay * *p);
}

__global__ void __launch_bounds__(256)
    adamw_run(struct coefficients k, int64_t n, int wide, float *p, const float *g, float *m, float *v)
{
    const int64_t i = ((int64_t)blockIdx.x * 256 + threadIdx.x) * 4;

    if (wide && i + 4 <= n) {
        float4 P = *(float4 *)(p + i), G = *(const float4 *)(g + i), M = *(float4 *)(m + i), V = *(float4 *)(v + i);

        update(&k, &P.x, G.x, &M.x, &V.x);
        update(&k, &P.y, G.y, &M.y, &V.y);
        update(&k, &P.z, G.z, &M.z, &V.z);
        update(&k, &P.w, G.w, &M.w, &V.w);
        *(float4 *)(p + i) = P;
        *(float4 *)(m + i) = M;
        *(float4 *)(v + i) = V;
        return;
    }
    for (int64_t j = i; j < n && j < i + 4; j++)
        update(&k, p + j, g[j], m + j, v + j);
}

extern "C" enum cairn_status cairn_adamw_cuda(struct cairn_stream *s, const struct cairn_adamw *a, struct cairn_error *err)
{
    struct call c = call_begin("adamw", s, err);
    int64_t n = -1;
    struct arg p = call_arg(&c, "p", &a->p, OUT | T_F32, 1, &n), g = call_arg(&c, "g", &a->g, T_F32, 1, &n),
               m = call_arg(&c, "m", &a->m, OUT | T_F32, 1, &n), v = call_arg(&c, "v", &a->v, OUT | T_F32, 1, &n);

    if (call_ok(&c) && a->t < 1)
        call_fail(&c, "update %lld; the first one is 1", (long long)a->t);
    if (call_ok(&c) && n) {
        struct coefficients k;
        int wide = arg_align(&p) == 16 && arg_align(&g) == 16 && arg_align(&m) == 16 && arg_align(&v) == 16;

        k.scale = a->grad_scale;
        k.b1 = a->beta1;
        k.c1 = (float)(1.0 - (double)a->beta1);
        k.b2 = a->beta2;
        k.c2 = (float)(1.0 - (double)a->beta2);
        k.step = (float)((double)a->lr / (1.0 - pow((double)a->beta1, (double)a->t)));
        k.root = (float)(1.0 / (1.0 - pow((double)a->beta2, (double)a->t)));
        k.eps = a->eps;
        k.decay = (float)((double)a->lr * (double)a->weight_decay);
        LAUNCH(&c, adamw_run, (unsigned)ceil_div(n, 1024), 256, 0, k, n, wide, f32(&p), f32(&g), f32(&m), f32(&v));
    }
    return call_end(&c);
}

#define RUN  4096
#define TEAM 128 /* runs that a block takes side by side, a thread each */
#define STEP 32  /* elements of each that are in shared memory at a time */

struct squares {
    int64_t n, P;
    const int64_t *pieces; /* NULL: the whole */
    const float *x;
    double *sums; /* of the runs: those of piece p from begin / RUN + p on */
    struct fault *fault;
};

/* What piece p is; 0: a fault. */
__device__ static inline int piece_of(const struct squares *k, int64_t p, int64_t *begin, int64_t *length)
{
    const int64_t *piece = k->pieces + 2 * p;
    int64_t before = 0;

    *begin = 0;
    *length = k->n;
    if (!k->pieces)
        return 1;
    *begin = piece[0];
    *length = piece[1];
    if (p)
        before = piece[-2] + piece[-1];
    if (before >= 0 && *begin >= before && *begin <= k->n && *length >= 0 && *length <= k->n - *begin)
        return 1;
    if (threadIdx.x == 0)
        fault_set(k->fault, OP_sumsq, FAULT_OFFSETS, p);
    return 0;
}

/* This thread's part of elements e0 .. e0 + STEP of runs r0 .. r0 + TEAM: eight times four, a warp over four runs at a time.
 * What is beyond the piece counts as 0, and adding its square changes nothing. */
__device__ static inline void squares_fetch(const float *x, int64_t length, int wide, int64_t r0, int e0, float u[8][4])
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int64_t at = (r0 + i * 16 + threadIdx.x / 8) * RUN + e0 + threadIdx.x % 8 * 4;

        if (wide && at + 4 <= length) {
            const float4 v = *(const float4 *)(x + at);

            u[i][0] = v.x, u[i][1] = v.y, u[i][2] = v.z, u[i][3] = v.w;
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++)
                u[i][j] = at + j < length ? x[at + j] : 0.0f;
        }
    }
}

/* Grid: pieces, times blocks that share out the runs of one. */
__global__ void __launch_bounds__(TEAM) sumsq_runs(const struct squares k)
{
    __shared__ float tile[TEAM][STEP + 1];
    const int64_t p = blockIdx.x;
    int64_t begin, length, runs;
    const float *x;
    double *sums;
    int wide;

    if (!piece_of(&k, p, &begin, &length))
        return;
    x = k.x + begin;
    wide = (uintptr_t)x % 16 == 0;
    sums = k.sums + begin / RUN + p;
    runs = (length + RUN - 1) / RUN;
    for (int64_t r0 = (int64_t)blockIdx.y * TEAM; r0 < runs; r0 += (int64_t)gridDim.y * TEAM) {
        const int longest = length - r0 * RUN < RUN ? (int)(length - r0 * RUN) : RUN;
        double sum = 0.0;
        float u[8][4];

        squares_fetch(x, length, wide, r0, 0, u);
        for (int e0 = 0; e0 < longest; e0 += STEP) {
            __syncthreads();
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    tile[i * 16 + threadIdx.x / 8][threadIdx.x % 8 * 4 + j] = u[i][j];
            if (e0 + STEP < longest)
                squares_fetch(x, length, wide, r0, e0 + STEP, u);
            __syncthreads();
#pragma unroll
            for (int e = 0; e < STEP; e++) {
                const double v = tile[threadIdx.x][e];

                sum = fma(v, v, sum); /* the square is exact: one rounding either way */
            }
        }
        if (r0 + threadIdx.x < runs)
            sums[r0 + threadIdx.x] = sum;
    }
}

/* A warp a piece: its runs in order, 32 of them in the lanes at a time. */
__global__ void __launch_bounds__(TEAM) sumsq_totals(const struct squares k, double *out)
{
    const int64_t p = (int64_t)blockIdx.x * (TEAM / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    int64_t begin, length, runs;
    const double *sums;
    double total = 0.0, next;

    if (p >= k.P || !piece_of(&k, p, &begin, &length))
        return;
    sums = k.sums + begin / RUN + p;
    runs = (length + RUN - 1) / RUN;
    next = lane < runs ? sums[lane] : 0.0;
    for (int64_t r = 0; r < runs; r += 32) {
        const double now = next;

        next = r + 32 + lane < runs ? sums[r + 32 + lane] : 0.0;
#pragma unroll
        for (int i = 0; i < 32; i++)
            total += __shfl_sync(0xffffffffu, now, i);
    }
    if (lane == 0)
        out[p] = total;
}

extern "C" enum cairn_status cairn_sumsq_cuda(struct cairn_stream *s, const struct cairn_sumsq *a, struct cairn_error *err)
{
    struct call c = call_begin("sumsq", s, err);
    int64_t n = cairn_tensor_count(&a->x), P = a->pieces.buf ? -1 : 1, two = 2, blocks;
    struct cairn_tensor flat = a->x;
    struct arg x, out = call_arg(&c, "out", &a->out, OUT | T_F64, 1, &P),
                  pieces = call_arg(&c, "pieces", &a->pieces, ABSENT | T_I64, 2, &P, &two);
    struct squares k;

    if (!cairn_tensor_dense(&a->x))
        call_fail(&c, "x is not dense");
    flat.ndim = 1;
    flat.dim[0] = n;
    flat.stride[0] = 1;
    x = call_arg(&c, "x", &flat, T_F32, 1, &n);
    if (!call_ok(&c) || P < 1)
        return call_end(&c);
    k.n = n;
    k.P = P;
    k.pieces = (const int64_t *)pieces.p;
    k.x = f32(&x);
    k.sums = (double *)call_scratch(&c, (size_t)(n / RUN + P + 1) * sizeof(double));
    k.fault = c.cuda->d_fault;
    blocks = ceil_div(ceil_div(n, P), (int64_t)RUN * TEAM); /* of a piece of middle length */
    LAUNCH(&c, sumsq_runs, dim3((unsigned)P, (unsigned)(blocks < 1 ? 1 : blocks > 1024 ? 1024 : blocks)), TEAM, 0, k);
    LAUNCH(&c, sumsq_totals, (unsigned)ceil_div(P, TEAM / 32), TEAM, 0, k, (double *)out.p);
    return call_end(&c);
}

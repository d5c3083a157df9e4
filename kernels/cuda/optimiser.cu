/* optimiser.cu - adamw and sumsq.
 *
 * adamw: four elements a thread, the cpu's arithmetic step for step. Floor: reads p, g, m, v and writes p, m, v: 28 bytes an
 * element. sumsq: each run of 4096 elements is one fp64 chain in one thread (as the contract has it), and the runs are added
 * ascending by one thread, through shared memory. Floor: 4 bytes an element; n/4096 dependent additions, about 10 ns each.
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

#define RUN 4096

__global__ void __launch_bounds__(64) sumsq_runs(int64_t n, int64_t runs, int wide, const float *x, double *sums)
{
    const int64_t r = (int64_t)blockIdx.x * 64 + threadIdx.x;
    double sum = 0.0;

    if (r >= runs)
        return;
    x += r * RUN;
    n -= r * RUN;
    if (wide && n >= RUN) {
#pragma unroll 8
        for (int i = 0; i < RUN; i += 4) {
            float4 u = *(const float4 *)(x + i);

            sum += (double)u.x * (double)u.x; /* the product is exact */
            sum += (double)u.y * (double)u.y;
            sum += (double)u.z * (double)u.z;
            sum += (double)u.w * (double)u.w;
        }
    } else {
        for (int i = 0; i < RUN && i < n; i++)
            sum += (double)x[i] * (double)x[i];
    }
    sums[r] = sum;
}

/* One block: the runs in order. */
__global__ void __launch_bounds__(256) sumsq_total(int64_t runs, const double *sums, double *out)
{
    __shared__ double tile[2048];
    double total = 0.0;

    for (int64_t r0 = 0; r0 < runs; r0 += 2048) {
        const int size = runs - r0 < 2048 ? (int)(runs - r0) : 2048;

        __syncthreads();
        for (int i = threadIdx.x; i < size; i += 256)
            tile[i] = sums[r0 + i];
        __syncthreads();
        if (threadIdx.x == 0)
#pragma unroll 8
            for (int i = 0; i < size; i++)
                total += tile[i];
    }
    if (threadIdx.x == 0)
        *out = total;
}

extern "C" enum cairn_status cairn_sumsq_cuda(struct cairn_stream *s, const struct cairn_sumsq *a, struct cairn_error *err)
{
    struct call c = call_begin("sumsq", s, err);
    int64_t n = cairn_tensor_count(&a->x), one = 1, runs = ceil_div(n, RUN);
    struct cairn_tensor flat = a->x;
    struct arg x, out = call_arg(&c, "out", &a->out, OUT | T_F64, 1, &one);
    double *sums;

    if (!cairn_tensor_dense(&a->x))
        call_fail(&c, "x is not dense");
    flat.ndim = 1;
    flat.dim[0] = n;
    flat.stride[0] = 1;
    x = call_arg(&c, "x", &flat, T_F32, 1, &n);
    sums = (double *)call_scratch(&c, (size_t)(runs + 1) * sizeof *sums);
    if (call_ok(&c) && runs)
        LAUNCH(&c, sumsq_runs, (unsigned)ceil_div(runs, 64), 64, 0, n, runs, arg_align(&x) == 16, f32(&x), sums);
    LAUNCH(&c, sumsq_total, 1, 256, 0, runs, sums, (double *)out.p);
    return call_end(&c);
}

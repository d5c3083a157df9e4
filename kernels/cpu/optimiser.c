/* optimiser.c - adamw and sumsq. The bias corrections are taken in fp64 once a call; elements are independent of one another. */
#include <math.h>

#include "internal.h"
#include "vec.h"

struct coefficients {
    float scale, b1, c1, b2, c2, step, root, eps, decay;
};

/* The m / (1-b1^t) / (sqrt(v / (1-b2^t)) + eps) of the contract, with the corrections as factors. */
static void update(const struct coefficients *k, float *restrict p, const float *restrict g, float *restrict m, float *restrict v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float d = k->scale * g[i], m1 = k->b1 * m[i] + k->c1 * d, v1 = k->b2 * v[i] + k->c2 * (d * d);

        m[i] = m1;
        v[i] = v1;
        p[i] = p[i] - (k->step * (m1 / (sqrtf(v1 * k->root) + k->eps)) + k->decay * p[i]);
    }
}

enum cairn_status cairn_adamw_cpu(struct cairn_stream *s, const struct cairn_adamw *a, struct cairn_error *err)
{
    struct call c = call_begin("adamw", s, err);
    int64_t n = -1;
    struct arg p = call_arg(&c, "p", &a->p, OUT | T_F32, 1, &n), g = call_arg(&c, "g", &a->g, T_F32, 1, &n),
               m = call_arg(&c, "m", &a->m, OUT | T_F32, 1, &n), v = call_arg(&c, "v", &a->v, OUT | T_F32, 1, &n);

    if (call_ok(&c) && a->t < 1)
        call_fail(&c, "update %lld; the first one is 1", (long long)a->t);
    if (call_ok(&c)) {
        const struct coefficients k = {
            .scale = a->grad_scale,
            .b1 = a->beta1,
            .c1 = (float)(1.0 - (double)a->beta1),
            .b2 = a->beta2,
            .c2 = (float)(1.0 - (double)a->beta2),
            .step = (float)((double)a->lr / (1.0 - pow((double)a->beta1, (double)a->t))),
            .root = (float)(1.0 / (1.0 - pow((double)a->beta2, (double)a->t))),
            .eps = a->eps,
            .decay = (float)((double)a->lr * (double)a->weight_decay),
        };
        const int64_t run = 4096;
        int64_t pieces = (n + run - 1) / run;
        int threads = call_threads(&c, n * 4, pieces);

#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t i = 0; i < pieces; i++)
            update(&k, f32(&p) + i * run, f32(&g) + i * run, f32(&m) + i * run, f32(&v) + i * run, n - i * run < run ? n - i * run : run);
    }
    return call_end(&c);
}

enum cairn_status cairn_sumsq_cpu(struct cairn_stream *s, const struct cairn_sumsq *a, struct cairn_error *err)
{
    struct call c = call_begin("sumsq", s, err);
    const int64_t run = 4096;
    int64_t n = cairn_tensor_count(&a->x), one = 1, pieces = (n + run - 1) / run;
    struct cairn_tensor flat = a->x;
    struct arg x, out = call_arg(&c, "out", &a->out, OUT | T_F64, 1, &one);

    if (!cairn_tensor_dense(&a->x))
        call_fail(&c, "x is not dense");
    flat.ndim = 1;
    flat.dim[0] = n;
    flat.stride[0] = 1;
    x = call_arg(&c, "x", &flat, T_F32, 1, &n);
    call_reserve(&c, 0, 0, (size_t)(pieces + 1) * sizeof(double));
    if (call_ok(&c)) {
        double *sums = scratch_shared(&c), total = 0;
        int threads = call_threads(&c, n * 2, pieces);

/* eight blocks side by side: each sum is one chain, and the machine has room for more */
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t i = 0; i < pieces; i += 8) {
            double sum[8] = {0};
            int64_t whole = n / run - i < 8 ? 0 : 8;

            for (int64_t k = 0; whole && k < run; k++)
                for (int j = 0; j < 8; j++) {
                    double u = f32(&x)[(i + j) * run + k];

                    sum[j] += u * u;
                }
            for (int j = 0; j < 8 && i + j < pieces && !whole; j++)
                for (int64_t k = (i + j) * run; k < n && k < (i + j + 1) * run; k++)
                    sum[j] += (double)f32(&x)[k] * (double)f32(&x)[k];
            for (int j = 0; j < 8 && i + j < pieces; j++)
                sums[i + j] = sum[j];
        }
        for (int64_t i = 0; i < pieces; i++)
            total += sums[i];
        *(double *)out.p = total;
    }
    return call_end(&c);
}

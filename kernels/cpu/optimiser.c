/* optimiser.c - adamw and sumsq. The bias corrections are taken in fp64 once a call; elements are independent of one another. */
#include <math.h>
#include <string.h>

#include "internal.h"
#include "vec.h"

struct coefficients {
    float *p, *m, *v;
    const float *g;
    float scale, b1, c1, b2, c2, step, root, eps, decay;
};

/* The m / (1-b1^t) / (sqrt(v / (1-b2^t)) + eps) of the contract, with the corrections as factors. */
static void update(const struct coefficients *k, float *restrict p, const float *restrict g, float *restrict m, float *restrict v,
                   int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float d = k->scale * g[i], m1 = k->b1 * m[i] + k->c1 * d, v1 = k->b2 * v[i] + k->c2 * (d * d);

        m[i] = m1;
        v[i] = v1;
        p[i] = p[i] - (k->step * (m1 / (sqrtf(v1 * k->root) + k->eps)) + k->decay * p[i]);
    }
}

static void update_part(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct coefficients *k = ctx;

    (void)scratch;
    update(k, k->p + begin, k->g + begin, k->m + begin, k->v + begin, end - begin);
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
        struct coefficients k = {
            .p = f32(&p),
            .m = f32(&m),
            .v = f32(&v),
            .g = f32(&g),
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

        call_share(&c, n, 4096, n * 4, update_part, &k);
    }
    return call_end(&c);
}

#define RUN 4096

struct squares {
    const float *x;
    double *sums; /* one for each run */
    int64_t n;
};

/* Runs begin .. end, eight side by side: each sum is one chain, and the machine has room for more. */
static void square_runs(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct squares *k = ctx;

    (void)scratch;
    for (int64_t i = begin; i < end; i += 8) {
        double sum[8] = {0};
        int64_t together = end - i < 8 ? end - i : 8;

        if (together == 8 && (i + 8) * RUN <= k->n) {
            for (int64_t e = 0; e < RUN; e++)
                for (int j = 0; j < 8; j++) {
                    double u = k->x[(i + j) * RUN + e];

                    sum[j] += u * u;
                }
        } else {
            for (int64_t j = 0; j < together; j++)
                for (int64_t e = (i + j) * RUN; e < k->n && e < (i + j + 1) * RUN; e++)
                    sum[j] += (double)k->x[e] * (double)k->x[e];
        }
        memcpy(k->sums + i, sum, (size_t)together * sizeof *sum);
    }
}

enum cairn_status cairn_sumsq_cpu(struct cairn_stream *s, const struct cairn_sumsq *a, struct cairn_error *err)
{
    struct call c = call_begin("sumsq", s, err);
    int64_t n = cairn_tensor_count(&a->x), P = a->pieces.buf ? -1 : 1, two = 2, longest = 0;
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
    for (int64_t p = 0, end = 0; call_ok(&c) && p < P; p++) {
        if (piece[2 * p] < end || piece[2 * p] > n || piece[2 * p + 1] < 0 || piece[2 * p + 1] > n - piece[2 * p]) {
            call_fail(&c, "piece %lld is %lld elements from %lld on, of %lld", (long long)p, (long long)piece[2 * p + 1],
                      (long long)piece[2 * p], (long long)n);
            break; /* where it ends need not be a number */
        }
        end = piece[2 * p] + piece[2 * p + 1];
        longest = piece[2 * p + 1] > longest ? piece[2 * p + 1] : longest;
    }
    call_reserve(&c, 0, (size_t)((longest + RUN - 1) / RUN + 1) * sizeof(double));
    for (int64_t p = 0; call_ok(&c) && p < P; p++) {
        struct squares k = {f32(&x) + piece[2 * p], scratch_shared(&c), piece[2 * p + 1]};
        int64_t runs = (k.n + RUN - 1) / RUN;
        double total = 0;

        call_share(&c, runs, 8, k.n / 2, square_runs, &k);
        for (int64_t i = 0; i < runs; i++)
            total += k.sums[i];
        ((double *)out.p)[p] = total;
    }
    return call_end(&c);
}

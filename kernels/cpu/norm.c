/* norm.c - rmsnorm, its backward, layernorm. A row's sums run in 16 lanes (element i in lane i mod 16) added by a fixed tree. */
#include <math.h>
#include <omp.h>

#include "internal.h"
#include "vec.h"

/* sum of a[i] * b[i] */
VINLINE float dot(const float *a, const float *b, int64_t n)
{
    v16 sum = v16_set(0.0f);
    int64_t i = 0;

    for (; i + VL <= n; i += VL)
        sum = v16_fma(v16_load(a + i), v16_load(b + i), sum);
    if (i < n)
        sum = v16_fma(v16_loadn(a + i, n - i, 0.0f), v16_loadn(b + i, n - i, 0.0f), sum);
    return v16_sum(sum);
}

/* Weights as f32: themselves, or converted into `room`. */
static const float *weights(const struct arg *g, float *room)
{
    if (g->type == CAIRN_F32)
        return g->p;
    for (int64_t i = 0; i < g->d[0]; i++)
        room[i] = bf16_to_f32(((const uint16_t *)g->p)[i]);
    return room;
}

enum cairn_status cairn_rmsnorm_cpu(struct cairn_stream *s, const struct cairn_rmsnorm *a, struct cairn_error *err)
{
    struct call c = call_begin("rmsnorm", s, err);
    int64_t N = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &D), g = call_arg(&c, "g", &a->g, T_WEIGHT, 1, &D),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &N, &D),
               rstd = call_arg(&c, "rstd", &a->rstd, OUT | ABSENT | T_F32, 1, &N);

    if (call_ok(&c))
        call_reserve(&c, 0, 0, (size_t)D * sizeof(float));
    if (call_ok(&c)) {
        const float *w = weights(&g, scratch_shared(&c));
        int threads = call_threads(&c, N * D / 4, N);

#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t n = 0; n < N; n++) {
            const float *u = at1(&x, n);
            float *v = at1(&y, n), r = 1.0f / sqrtf(dot(u, u, D) / (float)D + a->eps);
            int64_t i = 0;

            for (; i + VL <= D; i += VL)
                v16_store(v + i, v16_load(u + i) * v16_set(r) * v16_load(w + i));
            for (; i < D; i++)
                v[i] = u[i] * r * w[i];
            if (rstd.p)
                f32(&rstd)[n] = r;
        }
    }
    return call_end(&c);
}

enum cairn_status cairn_rmsnorm_bwd_cpu(struct cairn_stream *s, const struct cairn_rmsnorm_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("rmsnorm_bwd", s, err);
    int64_t N = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &D), g = call_arg(&c, "g", &a->g, T_WEIGHT, 1, &D),
               rstd = call_arg(&c, "rstd", &a->rstd, T_F32, 1, &N), dy = call_arg(&c, "dy", &a->dy, STRIDED | T_F32, 2, &N, &D),
               dx = call_arg(&c, "dx", &a->dx, OUT | STRIDED | T_F32, 2, &N, &D),
               dg = call_arg(&c, "dg", &a->dg, OUT | ABSENT | T_F32, 1, &D);

    if (call_ok(&c))
        call_reserve(&c, 0, 0, (size_t)D * sizeof(float));
    if (call_ok(&c)) {
        const float *w = weights(&g, scratch_shared(&c));
        int threads = call_threads(&c, N * D / 2, N > D / VL ? N : D / VL);

#pragma omp parallel num_threads(threads)
        {
            int t = omp_get_thread_num();

            /* dg first: dx may be dy */
            if (dg.p)
                for (int64_t i = part(D, VL, t, threads); i < part(D, VL, t + 1, threads); i += VL) {
                    int64_t m = D - i < VL ? D - i : VL;
                    v16 sum = v16_set(0.0f);

                    for (int64_t n = 0; n < N; n++)
                        sum = v16_fma(v16_loadn(at1(&dy, n) + i, m, 0.0f),
                                      v16_loadn(at1(&x, n) + i, m, 0.0f) * v16_set(f32(&rstd)[n]), sum);
                    v16_storen(f32(&dg) + i, v16_loadn(f32(&dg) + i, m, 0.0f) + sum, m);
                }
#pragma omp barrier
            for (int64_t n = part(N, 1, t, threads); n < part(N, 1, t + 1, threads); n++) {
                const float *u = at1(&x, n), *v = at1(&dy, n);
                float *o = at1(&dx, n), r = f32(&rstd)[n];
                v16 sum = v16_set(0.0f), mean;

                for (int64_t i = 0; i < D; i += VL) {
                    int64_t m = D - i < VL ? D - i : VL;

                    sum = v16_fma(v16_loadn(v + i, m, 0.0f) * v16_loadn(w + i, m, 0.0f), v16_loadn(u + i, m, 0.0f) * v16_set(r), sum);
                }
                mean = v16_set(v16_sum(sum) / (float)D);
                for (int64_t i = 0; i < D; i += VL) {
                    int64_t m = D - i < VL ? D - i : VL;
                    v16 xh = v16_loadn(u + i, m, 0.0f) * v16_set(r);
                    v16 d = v16_set(r) * (v16_loadn(v + i, m, 0.0f) * v16_loadn(w + i, m, 0.0f) - xh * mean);

                    v16_storen(o + i, a->accumulate ? v16_loadn(o + i, m, 0.0f) + d : d, m);
                }
            }
        }
    }
    return call_end(&c);
}

enum cairn_status cairn_layernorm_cpu(struct cairn_stream *s, const struct cairn_layernorm *a, struct cairn_error *err)
{
    struct call c = call_begin("layernorm", s, err);
    int64_t N = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &D), g = call_arg(&c, "g", &a->g, T_WEIGHT, 1, &D),
               b = call_arg(&c, "b", &a->b, T_WEIGHT, 1, &D), y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &N, &D);

    if (call_ok(&c))
        call_reserve(&c, 0, 0, 2 * (size_t)D * sizeof(float));
    if (call_ok(&c)) {
        const float *w = weights(&g, scratch_shared(&c)), *shift = weights(&b, (float *)scratch_shared(&c) + D);
        int threads = call_threads(&c, N * D / 2, N);

#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t n = 0; n < N; n++) {
            const float *u = at1(&x, n);
            float *v = at1(&y, n), mean, r;
            v16 sum = v16_set(0.0f);

            for (int64_t i = 0; i < D; i += VL)
                sum = sum + v16_loadn(u + i, D - i < VL ? D - i : VL, 0.0f);
            mean = v16_sum(sum) / (float)D;
            sum = v16_set(0.0f);
            for (int64_t i = 0; i < D; i += VL) {
                v16 d = v16_loadn(u + i, D - i < VL ? D - i : VL, mean) - v16_set(mean);

                sum = v16_fma(d, d, sum);
            }
            r = 1.0f / sqrtf(v16_sum(sum) / (float)D + a->eps);
            for (int64_t i = 0; i < D; i += VL) {
                int64_t m = D - i < VL ? D - i : VL;

                v16_storen(v + i, v16_fma((v16_loadn(u + i, m, 0.0f) - v16_set(mean)) * v16_set(r), v16_loadn(w + i, m, 0.0f),
                                          v16_loadn(shift + i, m, 0.0f)), m);
            }
        }
    }
    return call_end(&c);
}

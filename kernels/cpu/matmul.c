/* matmul.c - matmul and matmul_grouped through gemm.h: checks, and threads that share the outputs. */
#include <omp.h>

#include "gemm.h"

static int segments_ok(struct call *c, int segments, int64_t k)
{
    if (segments < 1 || segments > 1 << 16 || (segments & (segments - 1)))
        call_fail(c, "segments = %d is no power of two", segments);
    else if (k % segments)
        call_fail(c, "reduced dimension %lld is not a multiple of %d segments", (long long)k, segments);
    return call_ok(c);
}

enum cairn_status cairn_matmul_cpu(struct cairn_stream *s, const struct cairn_matmul *a, struct cairn_error *err)
{
    struct call c = call_begin("matmul", s, err);
    int64_t H = -1, N = -1, K = -1, O = -1;
    int heads = a->x.ndim == 3, d = heads ? 3 : 2;
    struct arg x, w, y;

#define DIMS(t, A, B) heads ? call_arg(&c, #t, &a->t, t##_what, 3, &H, &A, &B) : call_arg(&c, #t, &a->t, t##_what, 2, &A, &B)
    {
        int x_what = STRIDED | T_F32, w_what = STRIDED | (a->form == CAIRN_TN ? T_F32 : T_WEIGHT), y_what = OUT | STRIDED | T_F32;

        switch (a->form) {
        case CAIRN_NT:
            x = DIMS(x, N, K), w = DIMS(w, O, K), y = DIMS(y, N, O);
            break;
        case CAIRN_NN:
            x = DIMS(x, N, K), w = DIMS(w, K, O), y = DIMS(y, N, O);
            break;
        case CAIRN_TN:
            x = DIMS(x, N, K), w = DIMS(w, N, O), y = DIMS(y, K, O);
            break;
        default:
            call_fail(&c, "unknown form %d", (int)a->form);
        }
    }
#undef DIMS
    if (!heads)
        H = 1;
    if (call_ok(&c) && segments_ok(&c, a->segments, a->form == CAIRN_TN ? N : K) && H && (N || a->form == CAIRN_TN)) {
        int64_t xh = heads ? x.s[0] : 0, wh = heads ? w.s[0] : 0, yh = heads ? y.s[0] : 0;
        size_t w_size = cairn_dtype_size(w.type);
        int threads = call_threads(&c, H * N * K * O / 4, N + K + O);

        call_reserve(&c, threads, gemm_scratch_bytes(a->segments), 0);
        if (call_ok(&c)) {
#pragma omp parallel num_threads(threads)
            {
                int t = omp_get_thread_num();

                for (int64_t h = 0; h < H; h++) {
                    struct gemm g = gemm_product(a->form, f32(&x) + h * xh, x.s[d - 2], (const char *)w.p + (size_t)(h * wh) * w_size,
                                            w.type, w.s[d - 2], f32(&y) + h * yh, y.s[d - 2], N, K, O);

                    g.alpha = a->alpha, g.accumulate = a->accumulate, g.segments = a->segments;
                    gemm_share(&g, t, threads, scratch_of(&c, t));
                }
            }
        }
    }
    return call_end(&c);
}

enum cairn_status cairn_matmul_grouped_cpu(struct cairn_stream *s, const struct cairn_matmul_grouped *a, struct cairn_error *err)
{
    struct call c = call_begin("matmul_grouped", s, err);
    int64_t E = -1, E1 = -1, N = -1, K = -1, O = -1;
    struct arg x = {0}, w = {0}, y = {0}, offsets;

    switch (a->form) {
    case CAIRN_NT:
        x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &K);
        w = call_arg(&c, "w", &a->w, STRIDED | T_WEIGHT, 3, &E, &O, &K);
        y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &N, &O);
        break;
    case CAIRN_NN:
        x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &K);
        w = call_arg(&c, "w", &a->w, STRIDED | T_WEIGHT, 3, &E, &K, &O);
        y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &N, &O);
        break;
    case CAIRN_TN:
        x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &K);
        w = call_arg(&c, "w", &a->w, STRIDED | T_F32, 2, &N, &O);
        y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 3, &E, &K, &O);
        break;
    default:
        call_fail(&c, "unknown form %d", (int)a->form);
    }
    E1 = E + 1;
    offsets = call_arg(&c, "offsets", &a->offsets, T_I32, 1, &E1);
    if (call_ok(&c) && a->form == CAIRN_TN ? a->segments != 1 : 0)
        call_fail(&c, "TN has one segment, not %d", a->segments);
    if (call_ok(&c) && segments_ok(&c, a->segments, a->form == CAIRN_TN ? 1 : K)) {
        const int32_t *off = i32(&offsets);
        size_t w_size = cairn_dtype_size(w.type);
        int threads = call_threads(&c, N * K * O / 4, N + K + O);

        for (int64_t e = 0; e < E; e++)
            if (off[0] != 0 || off[e + 1] < off[e] || off[E] != N)
                call_fail(&c, "offsets do not run from 0 to %lld", (long long)N);
        call_reserve(&c, threads, gemm_scratch_bytes(a->segments), 0);
        if (call_ok(&c)) {
#pragma omp parallel num_threads(threads)
            {
                int t = omp_get_thread_num();

                for (int64_t e = 0; e < E; e++) {
                    int64_t n = off[e + 1] - off[e];
                    const void *we = a->form == CAIRN_TN ? at1(&w, off[e]) : (const void *)((const char *)w.p + (size_t)(e * w.s[0]) * w_size);
                    float *ye = a->form == CAIRN_TN ? at1(&y, e) : at1(&y, off[e]);
                    struct gemm g = gemm_product(a->form, at1(&x, off[e]), x.s[0], we, w.type, a->form == CAIRN_TN ? w.s[0] : w.s[1], ye,
                                            a->form == CAIRN_TN ? y.s[1] : y.s[0], n, K, O);

                    if (n == 0 && (a->form != CAIRN_TN || a->accumulate))
                        continue;
                    g.alpha = a->alpha, g.accumulate = a->accumulate, g.segments = a->segments;
                    gemm_share(&g, t, threads, scratch_of(&c, t));
                }
            }
        }
    }
    return call_end(&c);
}

/* swiglu.cu - the gated activation of the feed-forward networks and its backward, eight channels a thread.
 * Floor: forward 3 N*F moved, backward 5 N*F.
 */
#include "kernel.cuh"

struct gated {
    int64_t N, F, chunks; /* chunks of eight channels a row */
    int64_t as, us, hs, das, dus;
    int wide, few; /* few: less than 2^32 chunks in all, so that a short division does */
    float limit;
};

/* Row and first channel of chunk id. */
__device__ static inline int64_t place(const struct gated *k, int64_t id, int64_t *i)
{
    const int64_t n = k->few ? (int64_t)((uint32_t)id / (uint32_t)k->chunks) : id / k->chunks;

    *i = (id - n * k->chunks) * 8;
    return n;
}

__device__ static inline float sigmoid(float x) /* through e^-|x|, so that neither tail loses digits */
{
    float e = expf(-fabsf(x));

    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

template <typename T> __global__ void __launch_bounds__(256) swiglu_rows(struct gated k, const T *a, const T *u, T *h)
{
    int64_t i, n = place(&k, (int64_t)blockIdx.x * 256 + threadIdx.x, &i);
    float x[8], y[8];

    if (n >= k.N)
        return;
    ld8(a + n * k.as + i, k.F - i, k.wide, x);
    ld8(u + n * k.us + i, k.F - i, k.wide, y);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        if (k.limit > 0.0f) {
            x[e] = x[e] > k.limit ? k.limit : x[e];
            y[e] = y[e] > k.limit ? k.limit : y[e] < -k.limit ? -k.limit : y[e];
        }
        x[e] = x[e] * sigmoid(x[e]) * y[e];
    }
    st8(h + n * k.hs + i, k.F - i, k.wide, x);
}

template <typename T>
__global__ void __launch_bounds__(256) swiglu_bwd_rows(struct gated k, const T *a, const T *u, const T *dh, T *da, T *du)
{
    int64_t i, n = place(&k, (int64_t)blockIdx.x * 256 + threadIdx.x, &i);
    float x[8], y[8], d[8];

    if (n >= k.N)
        return;
    ld8(a + n * k.as + i, k.F - i, k.wide, x);
    ld8(u + n * k.us + i, k.F - i, k.wide, y);
    ld8(dh + n * k.hs + i, k.F - i, k.wide, d);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        int x_cut = k.limit > 0.0f && x[e] > k.limit, y_cut = k.limit > 0.0f && (y[e] > k.limit || y[e] < -k.limit);
        float p = x_cut ? k.limit : x[e], q = y_cut ? (y[e] > 0.0f ? k.limit : -k.limit) : y[e], sg = sigmoid(p);

        x[e] = x_cut ? 0.0f : d[e] * q * (sg * fmaf(p, 1.0f - sg, 1.0f));
        y[e] = y_cut ? 0.0f : d[e] * (p * sg);
    }
    st8(da + n * k.das + i, k.F - i, k.wide, x);
    st8(du + n * k.dus + i, k.F - i, k.wide, y);
}

extern "C" enum cairn_status cairn_swiglu_cuda(struct cairn_stream *s, const struct cairn_swiglu *args, struct cairn_error *err)
{
    struct call c = call_begin("swiglu", s, err);
    int64_t N = -1, F = -1;
    struct arg a = call_arg(&c, "a", &args->a, STRIDED | T_ACT, 2, &N, &F),
               u = call_arg(&c, "u", &args->u, STRIDED | T_ACT, 2, &N, &F),
               h = call_arg(&c, "h", &args->h, OUT | STRIDED | T_ACT, 2, &N, &F);
    struct gated k = {N, F, ceil_div(F, 8), a.s[0], u.s[0], h.s[0]};

    if (call_ok(&c) && N && F) {
        k.wide = arg_align(&a) == 16 && arg_align(&u) == 16 && arg_align(&h) == 16;
        k.few = N * k.chunks < (int64_t)UINT32_MAX - 256;
        k.limit = args->limit;
        ON_ACT(
            a.type, T,
            LAUNCH(&c, swiglu_rows<T>, (unsigned)ceil_div(N * k.chunks, 256), 256, 0, k, (const T *)a.p, (const T *)u.p, (T *)h.p));
    }
    return call_end(&c);
}

extern "C" enum cairn_status cairn_swiglu_bwd_cuda(struct cairn_stream *s, const struct cairn_swiglu_bwd *args,
                                                   struct cairn_error *err)
{
    struct call c = call_begin("swiglu_bwd", s, err);
    int64_t N = -1, F = -1;
    struct arg a = call_arg(&c, "a", &args->a, STRIDED | T_ACT, 2, &N, &F),
               u = call_arg(&c, "u", &args->u, STRIDED | T_ACT, 2, &N, &F),
               dh = call_arg(&c, "dh", &args->dh, STRIDED | T_ACT, 2, &N, &F),
               da = call_arg(&c, "da", &args->da, OUT | STRIDED | T_ACT, 2, &N, &F),
               du = call_arg(&c, "du", &args->du, OUT | STRIDED | T_ACT, 2, &N, &F);
    struct gated k = {N, F, ceil_div(F, 8), a.s[0], u.s[0], dh.s[0], da.s[0], du.s[0]};

    if (call_ok(&c) && N && F) {
        k.wide = arg_align(&a) == 16 && arg_align(&u) == 16 && arg_align(&dh) == 16 && arg_align(&da) == 16 && arg_align(&du) == 16;
        k.few = N * k.chunks < (int64_t)UINT32_MAX - 256;
        k.limit = args->limit;
        ON_ACT(a.type, T,
               LAUNCH(&c, swiglu_bwd_rows<T>, (unsigned)ceil_div(N * k.chunks, 256), 256, 0, k, (const T *)a.p, (const T *)u.p,
                      (const T *)dh.p, (T *)da.p, (T *)du.p));
    }
    return call_end(&c);
}

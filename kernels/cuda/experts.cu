/* experts.cu - the way of rows to their experts and back: dispatch, combine, combine_bwd.
 *
 * dispatch is a stable counting sort: each warp takes one run of consecutive choices; its counts, then its choices in order.
 * Integers only: how the choices are cut into runs shows nowhere. A small call is one block; a large one counts, scans and places
 * in three. combine: one block a row, eight channels a thread, choices ascending. combine_bwd: one warp a choice, chunk c of eight
 * channels is lane c mod 32's, the lanes are added by halves. Floors: combine reads (k+1) N*D and writes N*D; combine_bwd reads
 * (k+1) N*D and writes k N*D.
 */
#include "kernel.cuh"

#define WARPS 8

struct sort {
    int64_t M;      /* choices */
    int64_t length; /* choices a run, a multiple of 32 */
    int E, K, runs;
    struct fault *fault;
};

/* count (E) += the choices of run `run`, by one warp. count in shared memory, cleared by the caller. */
__device__ static inline void count_run(const struct sort *k, int run, const int32_t *idx, int32_t *count)
{
    const int64_t begin = run * k->length, end = begin + k->length < k->M ? begin + k->length : k->M;

    for (int64_t i = begin + threadIdx.x % 32; i < end; i += 32) {
        int32_t e = idx[i];

        if (e < 0 || e >= k->E)
            fault_set(k->fault, OP_dispatch, FAULT_EXPERT, e);
        else
            atomicAdd(count + e, 1);
    }
}

/* Puts the choices of the run where next (E) says, in order, by one warp. */
__device__ static inline void place_run(const struct sort *k, int run, const int32_t *idx, int32_t *next, int32_t *token,
                                        int32_t *where)
{
    const int lane = threadIdx.x % 32;
    const int64_t begin = run * k->length, end = begin + k->length < k->M ? begin + k->length : k->M;

    for (int64_t i0 = begin; i0 < end; i0 += 32) {
        int64_t i = i0 + lane;
        int32_t e = i < end ? idx[i] : -1, row;
        int good = e >= 0 && e < k->E;
        uint32_t same = __match_any_sync(0xffffffffu, good ? e : -1);
        int before = __popc(same & ((1u << lane) - 1));

        row = good ? next[e] + before : -1;
        __syncwarp();
        if (good && before == 0)
            next[e] += __popc(same);
        __syncwarp();
        if (good)
            token[row] = (int32_t)(i / k->K);
        if (i < end)
            where[i] = row;
    }
}

/* starts[run][e]: row of the first choice of expert e in that run; offsets (E+1). counts likewise, may be the same memory.
 * By one block; sum: blockDim.x words of shared memory. */
__device__ static void scan_runs(const struct sort *k, int32_t *counts, int32_t *offsets, int32_t *sum)
{
    const int per = (k->E + (int)blockDim.x - 1) / (int)blockDim.x, e0 = (int)threadIdx.x * per, e1 = min(e0 + per, k->E);
    int32_t mine = 0, at = 0;

    for (int e = e0; e < e1; e++)
#pragma unroll 8
        for (int r = 0; r < k->runs; r++)
            mine += counts[(int64_t)r * k->E + e];
    sum[threadIdx.x] = mine;
    __syncthreads();
    for (int t = 0; t < (int)threadIdx.x && e0 < e1; t++)
        at += sum[t];
    for (int e = e0; e < e1; e++) {
        offsets[e] = at;
        for (int r0 = 0; r0 < k->runs; r0 += 8) { /* eight loads under way at a time */
            int32_t n[8];

#pragma unroll
            for (int i = 0; i < 8; i++)
                n[i] = r0 + i < k->runs ? counts[(int64_t)(r0 + i) * k->E + e] : 0;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                if (r0 + i < k->runs)
                    counts[(int64_t)(r0 + i) * k->E + e] = at;
                at += n[i];
            }
        }
    }
    if (e1 == k->E && e0 < e1)
        offsets[k->E] = at;
}

__global__ void __launch_bounds__(32 * WARPS)
    dispatch_small(struct sort k, const int32_t *idx, int32_t *offsets, int32_t *token, int32_t *where)
{
    extern __shared__ int32_t counts[]; /* (WARPS, E), then the block's sums */

    for (int i = threadIdx.x; i < WARPS * k.E; i += 32 * WARPS)
        counts[i] = 0;
    __syncthreads();
    count_run(&k, (int)threadIdx.x / 32, idx, counts + (threadIdx.x / 32) * k.E);
    __syncthreads();
    scan_runs(&k, counts, offsets, counts + WARPS * k.E);
    __syncthreads();
    place_run(&k, (int)threadIdx.x / 32, idx, counts + (threadIdx.x / 32) * k.E, token, where);
}

/* One warp a block, a run each. */
__global__ void __launch_bounds__(32) dispatch_count(struct sort k, const int32_t *idx, int32_t *counts)
{
    extern __shared__ int32_t count[];

    for (int e = threadIdx.x; e < k.E; e += 32)
        count[e] = 0;
    __syncwarp();
    count_run(&k, (int)blockIdx.x, idx, count);
    __syncwarp();
    for (int e = threadIdx.x; e < k.E; e += 32)
        counts[(int64_t)blockIdx.x * k.E + e] = count[e];
}

__global__ void __launch_bounds__(1024) dispatch_scan(struct sort k, int32_t *counts, int32_t *offsets)
{
    __shared__ int32_t sum[1024];

    scan_runs(&k, counts, offsets, sum);
}

__global__ void __launch_bounds__(32)
    dispatch_place(struct sort k, const int32_t *idx, const int32_t *starts, int32_t *token, int32_t *where)
{
    extern __shared__ int32_t next[];

    for (int e = threadIdx.x; e < k.E; e += 32)
        next[e] = starts[(int64_t)blockIdx.x * k.E + e];
    __syncwarp();
    place_run(&k, (int)blockIdx.x, idx, next, token, where);
}

extern "C" enum cairn_status cairn_dispatch_cuda(struct cairn_stream *s, const struct cairn_dispatch *a, struct cairn_error *err)
{
    struct call c = call_begin("dispatch", s, err);
    int64_t N = -1, K = -1, E1 = -1, M;
    struct arg idx = call_arg(&c, "idx", &a->idx, T_I32, 2, &N, &K),
               offsets = call_arg(&c, "offsets", &a->offsets, OUT | T_I32, 1, &E1),
               where = call_arg(&c, "where", &a->where, OUT | T_I32, 2, &N, &K), token;
    struct sort k;

    M = N * K;
    token = call_arg(&c, "token", &a->token, OUT | T_I32, 1, &M);
    if (call_ok(&c) && (E1 < 2 || E1 > 1025 || M > INT32_MAX))
        call_fail(&c, "%lld choices of %lld experts, at most 1024", (long long)M, (long long)(E1 - 1));
    if (!call_ok(&c))
        return call_end(&c);
    k.M = M;
    k.E = (int)(E1 - 1);
    k.K = (int)K;
    k.fault = c.cuda->d_fault;
    if (M <= 2048) {
        k.runs = WARPS;
        k.length = M ? round_up(ceil_div(M, WARPS), 32) : 32;
        LAUNCH(&c, dispatch_small, 1, 32 * WARPS, (size_t)(WARPS * k.E + 32 * WARPS) * sizeof(int32_t), k, i32(&idx), i32(&offsets),
               i32(&token), i32(&where));
    } else {
        int32_t *counts;

        k.length = round_up(ceil_div(M, 256), 32) > 256 ? round_up(ceil_div(M, 256), 32) : 256;
        k.runs = (int)ceil_div(M, k.length);
        counts = (int32_t *)call_scratch(&c, (size_t)k.runs * (size_t)k.E * sizeof *counts);
        LAUNCH(&c, dispatch_count, (unsigned)k.runs, 32, (size_t)k.E * sizeof(int32_t), k, i32(&idx), counts);
        LAUNCH(&c, dispatch_scan, 1, 1024, 0, k, counts, i32(&offsets));
        LAUNCH(&c, dispatch_place, (unsigned)k.runs, 32, (size_t)k.E * sizeof(int32_t), k, i32(&idx), counts, i32(&token),
               i32(&where));
    }
    return call_end(&c);
}

/* ---- combine ----------------------------------------------------------------------------------------------------------- */

struct mix {
    int64_t N, M, D;
    int64_t xs, bs, ys, dxs; /* row strides of x, base, y (dy), dx */
    int K, wide, gated;
    struct fault *fault;
};

template <typename T>
__global__ void __launch_bounds__(256)
    combine_rows(struct mix k, const T *x, const float *gate, const int32_t *where, const T *base, T *y)
{
    const int64_t n = blockIdx.x;

    for (int64_t i = (int64_t)threadIdx.x * 8; i < k.D; i += (int64_t)blockDim.x * 8) {
        float sum[8] = {0.0f}, v[8];

        if (base)
            ld8(base + n * k.bs + i, k.D - i, k.wide, sum);
#pragma unroll 4
        for (int j = 0; j < k.K; j++) {
            int64_t row = where[n * k.K + j];
            float g = k.gated ? gate[n * k.K + j] : 1.0f;

            if (row < 0 || row >= k.M) {
                if (threadIdx.x == 0)
                    fault_set(k.fault, OP_combine, FAULT_INDEX, row);
                continue;
            }
            ld8(x + row * k.xs + i, k.D - i, k.wide, v);
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum[e] = fmaf(g, v[e], sum[e]);
        }
        st8(y + n * k.ys + i, k.D - i, k.wide, sum);
    }
}

extern "C" enum cairn_status cairn_combine_cuda(struct cairn_stream *s, const struct cairn_combine *a, struct cairn_error *err)
{
    struct call c = call_begin("combine", s, err);
    int64_t N = -1, K = -1, M = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_ACT, 2, &M, &D), where = call_arg(&c, "where", &a->where, T_I32, 2, &N, &K),
               gate = call_arg(&c, "gate", &a->gate, ABSENT | T_F32, 2, &N, &K),
               base = call_arg(&c, "base", &a->base, ABSENT | STRIDED | T_ACT, 2, &N, &D),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_ACT, 2, &N, &D);
    struct mix k = {N, M, D, x.s[0], base.s[0], y.s[0], 0, (int)K};
    int64_t threads = round_up(ceil_div(D, 8), 32);

    if (!call_ok(&c) || !N || !D)
        return call_end(&c);
    k.wide = arg_align(&x) == 16 && arg_align(&y) == 16 && (!base.p || arg_align(&base) == 16);
    k.gated = gate.p != NULL;
    k.fault = c.cuda->d_fault;
    ON_ACT(x.type, T,
           LAUNCH(&c, combine_rows<T>, (unsigned)N, threads < 256 ? (unsigned)threads : 256u, 0, k, (const T *)x.p, f32(&gate),
                  i32(&where), (const T *)base.p, (T *)y.p));
    return call_end(&c);
}

/* One warp a choice; dx may be x: a lane reads a chunk before it writes it. */
template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    combine_bwd_choices(struct mix k, const T *x, const float *gate, const int32_t *where, const T *dy, T *dx, float *dgate)
{
    const int64_t choice = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, n = choice / k.K;
    const int lane = threadIdx.x % 32;
    int64_t row;
    float g, sum = 0.0f;

    if (choice >= k.N * k.K)
        return;
    row = where[choice];
    if (row < 0 || row >= k.M) {
        if (lane == 0)
            fault_set(k.fault, OP_combine_bwd, FAULT_INDEX, row);
        return;
    }
    g = k.gated ? gate[choice] : 1.0f;
#pragma unroll 2
    for (int64_t i = (int64_t)lane * 8; i < k.D; i += 256) {
        float d[8], u[8];

        ld8(dy + n * k.ys + i, k.D - i, k.wide, d);
        if (dgate) {
            ld8(x + row * k.xs + i, k.D - i, k.wide, u);
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum = fmaf(d[e], u[e], sum);
        }
#pragma unroll
        for (int e = 0; e < 8; e++)
            d[e] = g * d[e];
        st8(dx + row * k.dxs + i, k.D - i, k.wide, d);
    }
    if (dgate) {
        sum = warp_sum(sum);
        if (lane == 0)
            dgate[choice] = sum;
    }
}

extern "C" enum cairn_status cairn_combine_bwd_cuda(struct cairn_stream *s, const struct cairn_combine_bwd *a,
                                                    struct cairn_error *err)
{
    struct call c = call_begin("combine_bwd", s, err);
    int64_t N = -1, K = -1, M = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, (a->dgate.buf ? 0 : ABSENT) | STRIDED | T_ACT, 2, &M, &D),
               dx = call_arg(&c, "dx", &a->dx, OUT | STRIDED | T_ACT, 2, &M, &D),
               where = call_arg(&c, "where", &a->where, T_I32, 2, &N, &K),
               gate = call_arg(&c, "gate", &a->gate, ABSENT | T_F32, 2, &N, &K),
               dy = call_arg(&c, "dy", &a->dy, STRIDED | T_ACT, 2, &N, &D),
               dgate = call_arg(&c, "dgate", &a->dgate, OUT | ABSENT | T_F32, 2, &N, &K);
    struct mix k = {N, M, D, x.s[0], 0, dy.s[0], dx.s[0], (int)K};

    if (!call_ok(&c) || !N || !K || !D)
        return call_end(&c);
    k.wide = (!x.p || arg_align(&x) == 16) && arg_align(&dx) == 16 && arg_align(&dy) == 16;
    k.gated = gate.p != NULL;
    k.fault = c.cuda->d_fault;
    ON_ACT(dx.type, T,
           LAUNCH(&c, combine_bwd_choices<T>, (unsigned)ceil_div(N * K, WARPS), 32 * WARPS, 0, k, (const T *)x.p, f32(&gate),
                  i32(&where), (const T *)dy.p, (T *)dx.p, f32(&dgate)));
    return call_end(&c);
}

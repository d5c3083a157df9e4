/* experts.cu - the way of rows to their experts and back: dispatch, combine, combine_bwd.
 *
 * dispatch is a stable counting sort: each warp takes one run of consecutive choices; its counts, then its choices in order.
 * Integers only: how the choices are cut into runs shows nowhere. A small call is one block; a large one counts, scans each
 * expert's runs, and places, in three. combine: one block a row (several where rows are few), eight channels a thread, choices
 * ascending. combine_bwd: one warp
 * a choice, chunk c of eight channels is lane c mod 32's, the lanes are added by halves. Floors: combine reads (k+1) N*D and writes
 * N*D; combine_bwd reads (k+1) N*D and writes k N*D.
 */
#include "kernel.cuh"
#include "scan.cuh"

#define WARPS 8
#define RUNS  256 /* at most, of a large call */
#define AHEAD 8   /* loads of a lane under way at a time */

struct sort {
    int64_t M;      /* choices */
    int64_t length; /* choices a run, a multiple of 32 */
    int E, K, runs;
    struct fault *fault;
};

/* The next AHEAD * 32 choices of a run from i0 on, this lane's of them; -1 behind the end. */
__device__ static inline void choices(const int32_t *idx, int64_t i0, int64_t end, int32_t e[AHEAD])
{
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
        const int64_t i = i0 + j * 32 + threadIdx.x % 32;

        e[j] = i < end ? idx[i] : -1;
    }
}

/* count (E) += the choices of run `run`, by one warp. count in shared memory, cleared by the caller. */
__device__ static inline void count_run(const struct sort *k, int run, const int32_t *idx, int32_t *count)
{
    const int64_t begin = run * k->length, end = begin + k->length < k->M ? begin + k->length : k->M;

    for (int64_t i0 = begin; i0 < end; i0 += AHEAD * 32) {
        int32_t e[AHEAD];

        choices(idx, i0, end, e);
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (i0 + j * 32 + threadIdx.x % 32 < end) {
                if (e[j] < 0 || e[j] >= k->E)
                    fault_set(k->fault, OP_dispatch, FAULT_EXPERT, e[j]);
                else
                    atomicAdd(count + e[j], 1);
            }
    }
}

/* Puts the choices of the run where next (E) says, in order, by one warp. */
__device__ static inline void place_run(const struct sort *k, int run, const int32_t *idx, int32_t *next, int32_t *token,
                                        int32_t *where)
{
    const int lane = threadIdx.x % 32;
    const int64_t begin = run * k->length, end = begin + k->length < k->M ? begin + k->length : k->M;

    for (int64_t i0 = begin; i0 < end; i0 += AHEAD * 32) {
        int32_t e[AHEAD];

        choices(idx, i0, end, e);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int64_t i = i0 + j * 32 + lane;
            const int good = e[j] >= 0 && e[j] < k->E;
            const uint32_t same = __match_any_sync(0xffffffffu, good ? e[j] : -1);
            const int before = __popc(same & ((1u << lane) - 1));
            const int32_t row = good ? next[e[j]] + before : -1;

            __syncwarp();
            if (good && before == 0)
                next[e[j]] += __popc(same);
            __syncwarp();
            if (good)
                token[row] = (int32_t)(i / k->K);
            if (i < end)
                where[i] = row;
        }
    }
}

/* Sum over the lanes before this one; *all: over all of them. */
__device__ static inline int32_t lanes_before(int32_t x, int32_t *all)
{
    const int32_t up = lanes_upto(x);

    *all = __shfl_sync(0xffffffffu, up, 31);
    return up - x;
}

/* By one warp: start (E) = how many choices the experts before have, of total (E), both anywhere; the last lane's is E's. */
__device__ static inline void expert_starts(int E, const int32_t *total, int32_t *start, int32_t *offsets)
{
    const int per = (E + 31) / 32, e0 = (int)threadIdx.x % 32 * per, e1 = min(e0 + per, E);
    int32_t mine = 0, all, at;

    for (int e = e0; e < e1; e++)
        mine += total[e];
    at = lanes_before(mine, &all);
    for (int e = e0; e < e1; e++) {
        const int32_t n = total[e];

        start[e] = at;
        if (offsets)
            offsets[e] = at;
        at += n;
    }
    if (offsets && threadIdx.x % 32 == 0)
        offsets[E] = all;
}

/* One block. Shared memory: counts (WARPS, E), total (E). */
__global__ void __launch_bounds__(32 * WARPS)
    dispatch_small(struct sort k, const int32_t *idx, int32_t *offsets, int32_t *token, int32_t *where)
{
    extern __shared__ int32_t counts[];
    int32_t *total = counts + WARPS * k.E;

    for (int i = threadIdx.x; i < WARPS * k.E; i += 32 * WARPS)
        counts[i] = 0;
    __syncthreads();
    count_run(&k, (int)threadIdx.x / 32, idx, counts + (threadIdx.x / 32) * k.E);
    __syncthreads();
    for (int e = threadIdx.x; e < k.E; e += 32 * WARPS) { /* what the runs before have */
        int32_t at = 0;

        for (int r = 0; r < WARPS; r++) {
            const int32_t n = counts[r * k.E + e];

            counts[r * k.E + e] = at;
            at += n;
        }
        total[e] = at;
    }
    __syncthreads();
    if (threadIdx.x < 32)
        expert_starts(k.E, total, total, offsets);
    __syncthreads();
    for (int i = threadIdx.x; i < WARPS * k.E; i += 32 * WARPS)
        counts[i] += total[i % k.E];
    __syncthreads();
    place_run(&k, (int)threadIdx.x / 32, idx, counts + (threadIdx.x / 32) * k.E, token, where);
}

/* One warp a block, a run each. counts (runs, E). */
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

/* One warp an expert: counts become what the runs before have; total (E). */
__global__ void __launch_bounds__(32 * WARPS) dispatch_scan(struct sort k, int32_t *counts, int32_t *total)
{
    const int e = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32, lane = threadIdx.x % 32;
    int32_t n[RUNS / 32], mine = 0, all, at;

    if (e >= k.E)
        return;
#pragma unroll
    for (int i = 0; i < RUNS / 32; i++) {
        const int r = lane * (RUNS / 32) + i;

        n[i] = r < k.runs ? counts[(int64_t)r * k.E + e] : 0;
    }
#pragma unroll
    for (int i = 0; i < RUNS / 32; i++)
        mine += n[i];
    at = lanes_before(mine, &all);
#pragma unroll
    for (int i = 0; i < RUNS / 32; i++) {
        const int r = lane * (RUNS / 32) + i;

        if (r < k.runs)
            counts[(int64_t)r * k.E + e] = at;
        at += n[i];
    }
    if (lane == 0)
        total[e] = all;
}

/* One warp a block, a run each. Shared memory: E. */
__global__ void __launch_bounds__(32) dispatch_place(struct sort k, const int32_t *idx, const int32_t *counts, const int32_t *total,
                                                     int32_t *offsets, int32_t *token, int32_t *where)
{
    extern __shared__ int32_t next[];

    expert_starts(k.E, total, next, blockIdx.x == 0 ? offsets : NULL);
    __syncwarp();
    for (int e = threadIdx.x; e < k.E; e += 32)
        next[e] += counts[(int64_t)blockIdx.x * k.E + e];
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
        LAUNCH(&c, dispatch_small, 1, 32 * WARPS, (size_t)((WARPS + 1) * k.E) * sizeof(int32_t), k, i32(&idx), i32(&offsets),
               i32(&token), i32(&where));
    } else {
        int32_t *counts, *total;

        k.length = round_up(ceil_div(M, RUNS), 32) > 256 ? round_up(ceil_div(M, RUNS), 32) : 256;
        k.runs = (int)ceil_div(M, k.length);
        counts = (int32_t *)call_scratch(&c, (size_t)(k.runs + 1) * (size_t)k.E * sizeof *counts);
        total = counts + (size_t)k.runs * (size_t)k.E;
        LAUNCH(&c, dispatch_count, (unsigned)k.runs, 32, (size_t)k.E * sizeof(int32_t), k, i32(&idx), counts);
        LAUNCH(&c, dispatch_scan, (unsigned)ceil_div(k.E, WARPS), 32 * WARPS, 0, k, counts, total);
        LAUNCH(&c, dispatch_place, (unsigned)k.runs, 32, (size_t)k.E * sizeof(int32_t), k, i32(&idx), counts, total, i32(&offsets),
               i32(&token), i32(&where));
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

    for (int64_t i = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * 8; i < k.D; i += (int64_t)gridDim.y * blockDim.x * 8) {
        float sum[8] = {0.0f}, v[8];

        if (base)
            ld8(base + n * k.bs + i, k.D - i, k.wide, sum);
#pragma unroll 4
        for (int j = 0; j < k.K; j++) {
            int64_t row = where[n * k.K + j];
            float g = k.gated ? gate[n * k.K + j] : 1.0f;

            if (row < 0 || row >= k.M) {
                if (threadIdx.x == 0 && blockIdx.y == 0)
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
           LAUNCH(&c, combine_rows<T>, dim3((unsigned)N, N < 4 * c.cuda->sms ? (unsigned)ceil_div(threads, 256) : 1u),
                  threads < 256 ? (unsigned)threads : 256u, 0, k, (const T *)x.p, f32(&gate), i32(&where), (const T *)base.p,
                  (T *)y.p));
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

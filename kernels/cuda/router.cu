/* router.cu - the sigmoid router with selection bias and its backward: one warp a row.
 *
 * Lane l holds scores l, l+32, ... and knows the best of them; the choice takes k rounds, each the largest of the lanes' by (score,
 * lower index), a NaN as -inf.
 * Sums over the chosen run in ascending expert order. Group-limited top-k: DeepSeek-V3 (arXiv:2412.19437, section 2.1.2).
 * Floor: reads N*E*4 bytes.
 */
#include <math.h>

#include "kernel.cuh"

#define MAX_E 1024
#define PER   (MAX_E / 32)
#define WARPS 4

struct router {
    int64_t N, rs;
    int E, K, n_group, topk_group, norm, forced;
    float scale;
    struct fault *fault;
};

__device__ static inline float sigmoid(float x)
{
    float e = expf(-fabsf(x));

    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* Order of floats as unsigned; -0 counts as 0, NaN as -inf. */
__device__ static inline uint32_t rank_of(float x)
{
    uint32_t u;

    if (!(x == x))
        x = -INFINITY;
    u = __float_as_uint(x + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The best of this lane's experts and its number; ranks (E), 0: not to be had. The lower of equals. */
__device__ static inline uint32_t lane_best(const uint32_t *ranks, int E, uint32_t *expert)
{
    uint32_t best = 0;

    *expert = 0xffffffffu;
#pragma unroll 8
    for (int e = threadIdx.x % 32; e < E; e += 32)
        if (ranks[e] > best) {
            best = ranks[e];
            *expert = (uint32_t)e;
        }
    return best;
}

/* Sum of the two largest of sel[0 .. n), by one lane. */
__device__ static inline float two_largest(const float *sel, int n)
{
    float first = -INFINITY, second = -INFINITY;

    for (int i = 0; i < n; i++) {
        float x = sel[i] == sel[i] ? sel[i] : -INFINITY;

        if (x > first) {
            second = first;
            first = x;
        } else if (x > second) {
            second = x;
        }
    }
    return n > 1 ? first + second : first;
}

/* Shared memory, each warp: sel (E), group scores (n_group), id (K). */
__global__ void __launch_bounds__(32 * WARPS)
    router_rows(struct router k, const float *r, const float *bias, const int32_t *forced, int32_t *idx, float *gate, float *prob)
{
    extern __shared__ float room[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t n = (int64_t)blockIdx.x * WARPS + warp;
    float *sel = room + (size_t)warp * (k.E + k.n_group + k.K), *group = sel + k.E;
    int32_t *id = (int32_t *)(group + k.n_group);
    float sum = 0.0f, p = 0.0f;

    if (n >= k.N)
        return;
    r += n * k.rs;
    idx += n * k.K;
    gate += n * k.K;
    prob += n * k.K;
    if (k.forced) {
        int bad = 0;

        for (int j = lane; j < k.K; j += 32) {
            int32_t e = forced[n * k.K + j];

            if (e < 0 || e >= k.E || (j && e <= forced[n * k.K + j - 1])) {
                fault_set(k.fault, OP_router, FAULT_EXPERT, e);
                bad = 1;
            }
            id[j] = bad ? 0 : e;
        }
        __syncwarp();
    } else {
        uint32_t free_mask = 0, taken = 0, best, expert;
        uint32_t *ranks = (uint32_t *)sel;
        int count = 0;

        for (int e = lane; e < k.E; e += 32) {
            const float s = sigmoid(r[e]);

            sel[e] = bias ? s + bias[e] : s;
        }
        __syncwarp();
        if (k.topk_group < k.n_group) {
            const int size = k.E / k.n_group;

            for (int g = lane; g < k.n_group; g += 32)
                group[g] = two_largest(sel + g * size, size);
            __syncwarp();
            for (int e = lane, i = 0; e < k.E; e += 32, i++) { /* a group is out when topk_group others come before it */
                int g = e / size, before = 0;

                for (int o = 0; o < k.n_group; o++)
                    before += group[o] > group[g] || (group[o] == group[g] && o < g);
                free_mask |= (uint32_t)(before < k.topk_group) << i;
            }
        } else {
            for (int e = lane, i = 0; e < k.E; e += 32, i++)
                free_mask |= 1u << i;
        }
        for (int e = lane, i = 0; e < k.E; e += 32, i++)
            ranks[e] = free_mask >> i & 1 ? rank_of(sel[e]) : 0;
        best = lane_best(ranks, k.E, &expert);
        for (int j = 0; j < k.K; j++) {
            const uint32_t most = __reduce_max_sync(0xffffffffu, best);
            const uint32_t e = __reduce_min_sync(0xffffffffu, best == most ? expert : 0xffffffffu);

            if (e == expert) { /* this lane's: it looks for its next */
                taken |= 1u << (e / 32);
                ranks[e] = 0;
                best = lane_best(ranks, k.E, &expert);
            }
        }
        for (int e = lane, i = 0; i < (k.E + 31) / 32; e += 32, i++) { /* ascending */
            int mine = taken >> i & 1;
            uint32_t all = __ballot_sync(0xffffffffu, mine);

            if (mine)
                id[count + __popc(all & ((1u << lane) - 1))] = e;
            count += __popc(all);
        }
        __syncwarp();
    }
    for (int j0 = 0; j0 < k.K; j0 += 32) { /* a lane a score, the sum in order */
        const int here = k.K - j0 < 32 ? k.K - j0 : 32;

        p = lane < here ? sigmoid(r[id[j0 + lane]]) : 0.0f;
        for (int j = 0; j < here; j++)
            sum += __shfl_sync(0xffffffffu, p, j);
    }
    for (int j = lane; j < k.K; j += 32) {
        if (k.K > 32)
            p = sigmoid(r[id[j]]);
        idx[j] = id[j];
        prob[j] = p;
        gate[j] = (k.norm ? p / (sum + 1e-20f) : p) * k.scale;
    }
}

extern "C" enum cairn_status cairn_router_cuda(struct cairn_stream *s, const struct cairn_router *a, struct cairn_error *err)
{
    struct call c = call_begin("router", s, err);
    int64_t N = -1, E = -1, K = -1;
    struct arg r = call_arg(&c, "r", &a->r, STRIDED | T_F32, 2, &N, &E),
               bias = call_arg(&c, "bias", &a->bias, ABSENT | T_F32, 1, &E),
               idx = call_arg(&c, "idx", &a->idx, OUT | T_I32, 2, &N, &K),
               gate = call_arg(&c, "gate", &a->gate, OUT | T_F32, 2, &N, &K),
               prob = call_arg(&c, "prob", &a->prob, OUT | T_F32, 2, &N, &K),
               forced = call_arg(&c, "forced", &a->forced, ABSENT | T_I32, 2, &N, &K);
    struct router k;
    size_t shared;

    if (!call_ok(&c))
        return call_end(&c);
    k.N = N;
    k.rs = r.s[0];
    k.E = (int)E;
    k.K = (int)K;
    k.n_group = a->n_group > 1 ? a->n_group : 1;
    k.topk_group = a->n_group > 1 ? a->topk_group : 1;
    k.norm = a->norm;
    k.forced = forced.p != NULL;
    k.scale = a->scale;
    k.fault = c.cuda->d_fault;
    if (E > MAX_E)
        call_fail(&c, "%lld experts, at most %d", (long long)E, MAX_E);
    else if (K < 1 || K > E)
        call_fail(&c, "more experts a token than there are");
    else if (E % k.n_group)
        call_fail(&c, "experts do not divide into the groups");
    else if (k.topk_group < 1 || k.topk_group > k.n_group)
        call_fail(&c, "topk_group is not between 1 and n_group");
    else if (K > (int64_t)k.topk_group * (E / k.n_group))
        call_fail(&c, "the best groups hold fewer experts than a token takes");
    shared = (size_t)WARPS * (size_t)(k.E + k.n_group + k.K) * sizeof(float); /* 48 KiB at most: E, groups and K up to 1024 */
    if (call_ok(&c) && N)
        LAUNCH(&c, router_rows, (unsigned)ceil_div(N, WARPS), 32 * WARPS, shared, k, f32(&r), f32(&bias), i32(&forced), i32(&idx),
               f32(&gate), f32(&prob));
    return call_end(&c);
}

struct router_bwd {
    int64_t N, drs;
    int E, K, norm;
    float scale;
    struct fault *fault;
};

__global__ void __launch_bounds__(32 * WARPS)
    router_bwd_rows(struct router_bwd k, const int32_t *idx, const float *p, const float *d, float *dr)
{
    const int lane = threadIdx.x % 32;
    const int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    float sum = 0.0f, mean = 0.0f;

    if (n >= k.N)
        return;
    idx += n * k.K;
    p += n * k.K;
    d += n * k.K;
    dr += n * k.drs;
    for (int e = lane; e < k.E; e += 32)
        dr[e] = 0.0f;
    for (int j = 0; j < k.K; j++)
        sum += p[j];
    sum += 1e-20f;
    for (int j = 0; j < k.K; j++)
        mean += d[j] * p[j];
    mean /= sum;
    __syncwarp();
    for (int j = lane; j < k.K; j += 32) {
        int32_t e = idx[j];
        float dp = k.norm ? k.scale / sum * (d[j] - mean) : k.scale * d[j];

        if (e < 0 || e >= k.E)
            fault_set(k.fault, OP_router_bwd, FAULT_EXPERT, e);
        else
            dr[e] = dp * p[j] * (1.0f - p[j]);
    }
}

extern "C" enum cairn_status cairn_router_bwd_cuda(struct cairn_stream *s, const struct cairn_router_bwd *a,
                                                   struct cairn_error *err)
{
    struct call c = call_begin("router_bwd", s, err);
    int64_t N = -1, E = -1, K = -1;
    struct arg idx = call_arg(&c, "idx", &a->idx, T_I32, 2, &N, &K), prob = call_arg(&c, "prob", &a->prob, T_F32, 2, &N, &K),
               dgate = call_arg(&c, "dgate", &a->dgate, T_F32, 2, &N, &K),
               dr = call_arg(&c, "dr", &a->dr, OUT | STRIDED | T_F32, 2, &N, &E);
    struct router_bwd k = {N, dr.s[0], (int)E, (int)K, a->norm, a->scale, c.cuda->d_fault};

    if (call_ok(&c) && N)
        LAUNCH(&c, router_bwd_rows, (unsigned)ceil_div(N, WARPS), 32 * WARPS, 0, k, i32(&idx), f32(&prob), f32(&dgate), f32(&dr));
    return call_end(&c);
}

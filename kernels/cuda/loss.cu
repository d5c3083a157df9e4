/* loss.cu - the policy loss: values, gradients and statistics of spec DAPO / GRPO / GSPO / CISPO as kernels.h states them.
 *
 * fp64 throughout. Rows are taken by run: a run is a sequence where the ratio is the sequence's, else 32 rows. There is a warp for
 * every 32 rows, WARPS of them a block, up to BLOCKS blocks: numbers that N alone fixes. Warp w of W takes runs w, w + W, ...; a
 * run's sums go over its lanes (row n0 + lane, + 32, ...) and are added by halves; a warp adds its runs ascending, a block its
 * warps, and the blocks are added ascending.
 */
#include <math.h>

#include "kernel.cuh"

#define WARPS  16
#define BLOCKS 32
#define REACH  20.0 /* |ln ratio| is clamped to this */

struct loss {
    int64_t N;
    const float *cur, *old, *smp, *ref, *adv, *weight, *entropy;
    const unsigned char *mask;
    const int32_t *seq;
    float *dcur, *dentropy;
    double *stats;
    int32_t *starts; /* (N+1): first row of each sequence, then N; before them how many sequences there are */
    double *parts;   /* (blocks, CAIRN_LS_COUNT): what each block has; one block: absent */
    int ratio, correction, kl;
    float clip_low, clip_high, dual, correct_low, correct_high, kl_coef, entropy_coef;
};

/* Statistics of one thread. Minima and maxima: NaN wins, as it shows there that something is wrong. */
struct tally {
    double v[CAIRN_LS_COUNT];
};

__device__ static inline double clamped(double x, double lo, double hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

__device__ static inline double k3(double x)
{
    return exp(x) - 1.0 - x;
}

__device__ static inline double smaller(double a, double b)
{
    return b < a || b != b ? b : a;
}

__device__ static inline double larger(double a, double b)
{
    return b > a || b != b ? b : a;
}

__device__ static inline double correction(const struct loss *k, int64_t n)
{
    double w;

    if (k->correction == CAIRN_CORRECT_NONE)
        return 1.0;
    w = exp(clamped((double)k->old[n] - k->smp[n], -REACH, REACH));
    if (k->correction == CAIRN_CORRECT_TIS)
        return w >= k->correct_high ? (double)k->correct_high : w;
    return w < k->correct_low || w > k->correct_high ? 0.0 : w;
}

/* The policy term of row n with ratio rho; *slope: d L / d ln rho (cispo: d L / d cur). */
__device__ static inline double policy_term(const struct loss *k, int64_t n, double rho, double *slope, struct tally *s)
{
    double A = k->adv[n], lo = 1.0 - (double)k->clip_low, hi = 1.0 + (double)k->clip_high, cut = clamped(rho, lo, hi), L;
    double below = rho < lo ? 1.0 : 0.0, above = rho > hi ? 1.0 : 0.0;

    if (k->ratio == CAIRN_RATIO_CISPO) {
        s->v[CAIRN_LS_CLIP_LOW] += below;
        s->v[CAIRN_LS_CLIP_HIGH] += above;
        *slope = -A * cut;
        return -A * cut * k->cur[n];
    }
    L = -A * rho;
    *slope = -A * rho;
    if (-A * cut > L) {
        L = -A * cut;
        *slope = 0.0;
        s->v[CAIRN_LS_CLIP_LOW] += below;
        s->v[CAIRN_LS_CLIP_HIGH] += above;
    }
    if (A < 0.0 && k->dual > 1.0f && -(double)k->dual * A < L) {
        L = -(double)k->dual * A;
        *slope = 0.0;
    }
    return L;
}

__device__ static inline void statistics(const struct loss *k, int64_t n, double rho, struct tally *s)
{
    s->v[CAIRN_LS_TOKENS] += 1.0;
    s->v[CAIRN_LS_RATIO] += rho;
    s->v[CAIRN_LS_RATIO_MIN] = smaller(s->v[CAIRN_LS_RATIO_MIN], rho);
    s->v[CAIRN_LS_RATIO_MAX] = larger(s->v[CAIRN_LS_RATIO_MAX], rho);
    if (k->entropy)
        s->v[CAIRN_LS_ENTROPY] += k->entropy[n];
    if (k->smp) {
        double d = fabs((double)k->old[n] - k->smp[n]);

        s->v[CAIRN_LS_MISMATCH] += d;
        s->v[CAIRN_LS_MISMATCH_MAX] = larger(s->v[CAIRN_LS_MISMATCH_MAX], d);
        s->v[CAIRN_LS_MISMATCH_EQUAL] += __float_as_uint(k->old[n]) == __float_as_uint(k->smp[n]) ? 1.0 : 0.0;
        s->v[CAIRN_LS_MISMATCH_K3] += k3(clamped((double)k->old[n] - k->smp[n], -REACH, REACH));
    }
}

/* d kl / d cur of row n; adds to the statistics */
__device__ static inline double kl_slope(const struct loss *k, int64_t n, struct tally *s)
{
    double raw = (double)k->ref[n] - k->cur[n], x = clamped(raw, -REACH, REACH), moves = raw < -REACH || raw > REACH ? 0.0 : 1.0;

    switch (k->kl) {
    case CAIRN_KL_K1:
        s->v[CAIRN_LS_KL] += k->weight[n] * -x;
        return moves;
    case CAIRN_KL_K2:
        s->v[CAIRN_LS_KL] += k->weight[n] * (x * x / 2.0);
        return -x * moves;
    default:
        s->v[CAIRN_LS_KL] += k->weight[n] * k3(x);
        return (1.0 - exp(x)) * moves;
    }
}

/* Rows n0 .. n1 by one warp; they share one ratio if it is the sequence's, else each has its own. */
__device__ static inline void loss_run(const struct loss *k, int64_t n0, int64_t n1, struct tally *s)
{
    const int lane = threadIdx.x % 32, whole = k->ratio == CAIRN_RATIO_SEQUENCE;
    double mean = 0.0, tokens = 0.0, shared = 0.0;

    if (whole) {
        for (int64_t n = n0 + lane; n < n1; n += 32)
            if (k->mask[n]) {
                mean += clamped((double)k->cur[n] - k->old[n], -REACH, REACH);
                tokens += 1.0;
            }
        mean = warp_sum(mean);
        tokens = warp_sum(tokens);
    }
    for (int64_t n = n0 + lane; n < n1; n += 32) {
        double rho, slope, w, grad, L, raw;

        k->dcur[n] = 0.0f;
        if (k->dentropy)
            k->dentropy[n] = k->mask[n] ? -k->entropy_coef * k->weight[n] : 0.0f;
        if (!k->mask[n])
            continue;
        raw = (double)k->cur[n] - k->old[n];
        rho = exp(whole ? mean / tokens : clamped(raw, -REACH, REACH));
        statistics(k, n, rho, s);
        L = policy_term(k, n, rho, &slope, s);
        w = correction(k, n);
        s->v[CAIRN_LS_POLICY] += k->weight[n] * (w * L);
        grad = k->weight[n] * (w * slope);
        if (whole) {
            shared += grad / tokens;
            grad = 0.0;
        } else if (k->ratio == CAIRN_RATIO_TOKEN && (raw < -REACH || raw > REACH)) {
            grad = 0.0;
        }
        if (k->ref) {
            double kl = kl_slope(k, n, s);

            if (k->kl_coef != 0.0f)
                grad += k->weight[n] * (double)k->kl_coef * kl;
        }
        k->dcur[n] = (float)grad;
    }
    if (whole) {
        shared = warp_sum(shared);
        for (int64_t n = n0 + lane; n < n1; n += 32)
            if (k->mask[n] && fabs((double)k->cur[n] - k->old[n]) <= REACH)
                k->dcur[n] = (float)(shared + k->dcur[n]);
    }
}

/* First rows of the sequences, ascending, then N, into starts, and how many into starts[-1]. One block. */
__global__ void __launch_bounds__(32 * WARPS) policy_loss_runs(const __grid_constant__ struct loss k)
{
    __shared__ int32_t before[WARPS + 1];
    int64_t found = 0;

    for (int64_t n0 = 0; n0 < k.N; n0 += 32 * WARPS) {
        const int64_t n = n0 + threadIdx.x;
        const int begins = n < k.N && (n == 0 || k.seq[n] != k.seq[n - 1]), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const uint32_t all = __ballot_sync(0xffffffffu, begins);

        __syncthreads();
        if (lane == 0)
            before[warp + 1] = __popc(all);
        __syncthreads();
        if (threadIdx.x == 0) {
            before[0] = 0;
            for (int w = 0; w < WARPS; w++)
                before[w + 1] += before[w];
        }
        __syncthreads();
        if (begins)
            k.starts[found + before[warp] + __popc(all & ((1u << lane) - 1))] = (int32_t)n;
        found += before[WARPS];
    }
    if (threadIdx.x == 0) {
        k.starts[found] = (int32_t)k.N;
        k.starts[-1] = (int32_t)found;
    }
}

/* x joins statistic i with y: sums, smallest, largest. */
__device__ static inline double joined(int i, double x, double y)
{
    return i == CAIRN_LS_RATIO_MIN ? smaller(x, y) : i == CAIRN_LS_RATIO_MAX || i == CAIRN_LS_MISMATCH_MAX ? larger(x, y) : x + y;
}

/* Adds x to statistic i of the caller's; tokens: of this call. Threads 0 .. CAIRN_LS_COUNT of a block. */
__device__ static inline void settle(const struct loss *k, int i, double x, double tokens)
{
    const int extreme = i == CAIRN_LS_RATIO_MIN || i == CAIRN_LS_RATIO_MAX || i == CAIRN_LS_MISMATCH_MAX;
    const int afresh = k->stats[CAIRN_LS_TOKENS] == 0.0; /* minima and maxima start here, whatever the memory held */

    __syncwarp((1u << CAIRN_LS_COUNT) - 1);
    if (tokens > 0.0)
        k->stats[i] = extreme && afresh ? x : joined(i, k->stats[i], x);
}

__global__ void __launch_bounds__(32 * WARPS) policy_loss_rows(const __grid_constant__ struct loss k)
{
    __shared__ double room[CAIRN_LS_COUNT][WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t first = (int64_t)blockIdx.x * WARPS + warp, all = (int64_t)gridDim.x * WARPS;
    struct tally s;

    for (int i = 0; i < CAIRN_LS_COUNT; i++)
        s.v[i] = 0.0;
    s.v[CAIRN_LS_RATIO_MIN] = INFINITY; /* and 0 is below every ratio and mismatch */
    if (k.ratio == CAIRN_RATIO_SEQUENCE) {
        for (int64_t r = first; r < k.starts[-1]; r += all)
            loss_run(&k, k.starts[r], k.starts[r + 1], &s);
    } else {
        for (int64_t n = first * 32; n < k.N; n += all * 32)
            loss_run(&k, n, n + 32 < k.N ? n + 32 : k.N, &s);
    }
    for (int i = 0; i < CAIRN_LS_COUNT; i++) {
        double x = s.v[i];

        for (int h = 16; h; h >>= 1)
            x = joined(i, x, __shfl_xor_sync(0xffffffffu, x, h));
        if (lane == 0)
            room[i][warp] = x;
    }
    __syncthreads();
    if (threadIdx.x < CAIRN_LS_COUNT) {
        const int i = threadIdx.x;
        double x = room[i][0], tokens = room[CAIRN_LS_TOKENS][0];

        for (int w = 1; w < WARPS; w++) {
            x = joined(i, x, room[i][w]);
            tokens += room[CAIRN_LS_TOKENS][w];
        }
        if (gridDim.x == 1)
            settle(&k, i, x, tokens);
        else
            k.parts[blockIdx.x * CAIRN_LS_COUNT + i] = x;
    }
}

/* The blocks ascending. */
__global__ void __launch_bounds__(32) policy_loss_total(const __grid_constant__ struct loss k, int blocks)
{
    const int i = threadIdx.x;
    double x, tokens;

    if (i >= CAIRN_LS_COUNT)
        return;
    x = k.parts[i];
#pragma unroll 8
    for (int b = 1; b < blocks; b++)
        x = joined(i, x, k.parts[b * CAIRN_LS_COUNT + i]);
    tokens = __shfl_sync((1u << CAIRN_LS_COUNT) - 1, x, CAIRN_LS_TOKENS);
    settle(&k, i, x, tokens);
}

extern "C" enum cairn_status cairn_policy_loss_cuda(struct cairn_stream *s, const struct cairn_policy_loss *a,
                                                    struct cairn_error *err)
{
    struct call c = call_begin("policy_loss", s, err);
    int64_t N = -1, count = CAIRN_LS_COUNT;
    const int whole = a->ratio == CAIRN_RATIO_SEQUENCE;
    struct loss k;
    char *room;
    unsigned blocks;

    k.cur = (const float *)call_arg(&c, "cur", &a->cur, T_F32, 1, &N).p;
    k.old = (const float *)call_arg(&c, "old", &a->old, T_F32, 1, &N).p;
    k.smp = (const float *)call_arg(&c, "smp", &a->smp, (a->correction == CAIRN_CORRECT_NONE ? ABSENT : 0) | T_F32, 1, &N).p;
    k.ref = (const float *)call_arg(&c, "ref", &a->ref, (a->kl_coef == 0.0f ? ABSENT : 0) | T_F32, 1, &N).p;
    k.adv = (const float *)call_arg(&c, "adv", &a->adv, T_F32, 1, &N).p;
    k.weight = (const float *)call_arg(&c, "weight", &a->weight, T_F32, 1, &N).p;
    k.entropy = (const float *)call_arg(&c, "entropy", &a->entropy, ABSENT | T_F32, 1, &N).p;
    k.mask = (const unsigned char *)call_arg(&c, "mask", &a->mask, T_U8, 1, &N).p;
    k.seq = (const int32_t *)call_arg(&c, "seq", &a->seq, (whole ? 0 : ABSENT) | T_I32, 1, &N).p;
    k.dcur = (float *)call_arg(&c, "dcur", &a->dcur, OUT | T_F32, 1, &N).p;
    k.dentropy = (float *)call_arg(&c, "dentropy", &a->dentropy, OUT | ABSENT | T_F32, 1, &N).p;
    k.stats = (double *)call_arg(&c, "stats", &a->stats, OUT | T_F64, 1, &count).p;
    if (call_ok(&c) && N > INT32_MAX - 1024)
        call_fail(&c, "%lld rows", (long long)N);
    if (!call_ok(&c) || !N)
        return call_end(&c);
    k.N = N;
    blocks = (unsigned)(N > 32 * WARPS * BLOCKS ? BLOCKS : ceil_div(N, 32 * WARPS));
    room = (char *)call_scratch(&c, BLOCKS * CAIRN_LS_COUNT * sizeof(double) + (size_t)(whole ? N + 2 : 0) * sizeof(int32_t));
    if (!call_ok(&c))
        return call_end(&c);
    k.parts = (double *)room;
    k.starts = (int32_t *)(room + BLOCKS * CAIRN_LS_COUNT * sizeof(double)) + 1;
    k.ratio = (int)a->ratio;
    k.correction = (int)a->correction;
    k.kl = (int)a->kl;
    k.clip_low = a->clip_low;
    k.clip_high = a->clip_high;
    k.dual = a->dual;
    k.correct_low = a->correct_low;
    k.correct_high = a->correct_high;
    k.kl_coef = a->kl_coef;
    k.entropy_coef = a->entropy_coef;
    if (whole)
        LAUNCH(&c, policy_loss_runs, 1, 32 * WARPS, 0, k);
    LAUNCH(&c, policy_loss_rows, blocks, 32 * WARPS, 0, k);
    if (blocks > 1)
        LAUNCH(&c, policy_loss_total, 1, 32, 0, k, (int)blocks);
    return call_end(&c);
}

/* index.cu - the lightning indexer: scores of all visible keys into scratch, then the exact T largest of each row.
 *
 * Runs of rows: the scores of a run (fp32) lie in scratch, so that memory is RUN_BYTES and not N * S; a run's length changes no
 * bit. Rows that see no more than T keys take all of them and no scores are made.
 *
 * Scores, two kernels, chosen by types and shapes alone:
 *   scores_plain     any: one thread a key, one chain over channels a head, heads ascending
 *   index_wgmma.cu    bf16, sm_90a: wgmma; the channels in the order of the tensor cores, then heads in a fixed order
 *
 * Choice: the T-th largest by three histograms of 11, 11 and 10 bits over integers in the floats' order (-0 is 0, NaN is -inf),
 * then one pass in position order: ties go to the lower position by construction. Integer atomics only: counts do not depend
 * on the order they are made in.
 */
#include "index.cuh"
#include "scan.cuh"

#define RUN_BYTES ((int64_t)128 << 20)

/* Order of floats as order of unsigned integers. */
__device__ static inline uint32_t score_key(float x)
{
    uint32_t u = __float_as_uint(x == x ? x + 0.0f : -INFINITY);

    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Scores of row n0 + blockIdx.y for 128 keys. Shared: the row's q (H, D) and w (H). */
template <typename T> __global__ void scores_plain(struct index_job k, int64_t n0)
{
    extern __shared__ float shared[];
    int64_t n = n0 + blockIdx.y;
    int p = blockIdx.x * blockDim.x + threadIdx.x, pos = k.keys.pos[n];
    float *q = shared, *w = shared + k.H * k.D, sum = 0.0f;
    int64_t row;
    const T *key;

    if (pos < k.T || (int64_t)blockIdx.x * blockDim.x > pos || !keys_see(&k.keys, n))
        return;
    for (int i = threadIdx.x; i < k.H * k.D; i += blockDim.x)
        q[i] = ld((const T *)k.q.p + n * k.q.s[0] + i / k.D * k.q.s[1] + i % k.D);
    for (int i = threadIdx.x; i < k.H; i += blockDim.x)
        w[i] = ((const float *)k.w.p)[n * k.w.s[0] + i];
    __syncthreads();
    if (p > pos)
        return;
    row = key_row(&k.keys, k.keys.seq[n], p);
    if (row < 0)
        return;
    key = (const T *)k.keys.rows.p + row * k.keys.rows.s[0];
    for (int h = 0; h < k.H; h += 8) {
        float dot[8] = {};

        for (int d = 0; d < k.D; d++) {
            float x = ld(key + d);

#pragma unroll
            for (int i = 0; i < 8; i++)
                if (h + i < k.H)
                    dot[i] = fmaf(q[(h + i) * k.D + d], x, dot[i]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (h + i < k.H) {
                float t = dot[i] * k.scale;

                sum = fmaf(w[h + i], t < 0.0f ? 0.0f : t, sum); /* a NaN stays one */
            }
    }
    k.score[blockIdx.y * k.ld + p] = sum;
}

/* ---- the T largest ------------------------------------------------------------------------------------------------------------ */

#define CHOOSE_THREADS 512
#define CHOOSE_WARPS   (CHOOSE_THREADS / 32)

/* The bin of hist (bins, counted from the top) in which the want-th largest lies, and how many lie above it. One warp. */
__device__ static void find_bin(const int *hist, int bins, int want, int *bin, int *above)
{
    int lane = threadIdx.x % 32, per = bins / 32, mine = 0, before, at = -1, left = 0;

    for (int i = 0; i < per; i++) /* lane 0 has the highest bins */
        mine += hist[bins - 1 - (lane * per + i)];
    before = lanes_upto(mine) - mine;
    if (before < want && before + mine >= want)
        for (int i = 0; i < per && at < 0; i++) {
            int b = bins - 1 - (lane * per + i);

            if (before + hist[b] >= want)
                at = b, left = before;
            before += hist[b];
        }
    if (at >= 0)
        *bin = at, *above = left;
}

/* Row n0 + blockIdx.x. */
__global__ void __launch_bounds__(CHOOSE_THREADS) choose(struct index_job k, int64_t n0)
{
    __shared__ int hist[2048], bin, above, more[CHOOSE_WARPS], same[CHOOSE_WARPS];
    int64_t n = n0 + blockIdx.x;
    int32_t *idx = k.idx + n * k.T;
    const float *score = k.score + blockIdx.x * k.ld;
    int pos = k.keys.pos[n], warp = threadIdx.x / 32, lane = threadIdx.x % 32, want = k.T, length, each, begin, end, gt, eq, out;
    uint32_t top = 0; /* bits of the T-th largest found so far */

    if (pos < 0 || pos >= k.ld)
        pos = -1; /* the fault is noted */
    if (!keys_see(&k.keys, n))
        pos = -1;
    if (pos < k.T) {
        for (int j = threadIdx.x; j < k.T; j += CHOOSE_THREADS)
            idx[j] = j <= pos ? j : -1;
        return;
    }
    length = pos + 1;
    for (int pass = 0; pass < 3; pass++) {
        int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0, bins = pass == 2 ? 1024 : 2048;

        for (int i = threadIdx.x; i < bins; i += CHOOSE_THREADS)
            hist[i] = 0;
        __syncthreads();
        for (int p = threadIdx.x; p < length; p += CHOOSE_THREADS) {
            uint32_t u = score_key(score[p]);

            if (pass == 0 || (u ^ top) >> (pass == 1 ? 21 : 10) == 0)
                atomicAdd(hist + (u >> shift & (bins - 1)), 1);
        }
        __syncthreads();
        if (!warp)
            find_bin(hist, bins, want, &bin, &above);
        __syncthreads();
        top |= (uint32_t)bin << shift;
        want -= above;
        __syncthreads();
    }
    /* now `want` of the keys that equal top are taken, the first ones; each warp has a stretch of positions */
    each = (length + CHOOSE_WARPS * 32 - 1) / (CHOOSE_WARPS * 32) * 32;
    begin = warp * each, end = begin + each < length ? begin + each : length;
    gt = eq = 0;
    for (int p = begin + lane; p - lane < end; p += 32) {
        uint32_t u = p < end ? score_key(score[p]) : 0;

        gt += __popc(__ballot_sync(0xffffffffu, p < end && u > top));
        eq += __popc(__ballot_sync(0xffffffffu, p < end && u == top));
    }
    if (!lane)
        more[warp] = gt, same[warp] = eq;
    __syncthreads();
    gt = eq = 0;
    for (int i = 0; i < warp; i++)
        gt += more[i], eq += same[i];
    out = gt + (eq < want ? eq : want);
    for (int p = begin + lane; p - lane < end; p += 32) {
        uint32_t u = p < end ? score_key(score[p]) : 0;
        unsigned is_more = __ballot_sync(0xffffffffu, p < end && u > top), is_same = __ballot_sync(0xffffffffu, p < end && u == top);
        unsigned below = (1u << lane) - 1, take;
        int taken = (is_more >> lane & 1) || ((is_same >> lane & 1) && eq + __popc(is_same & below) < want);

        take = __ballot_sync(0xffffffffu, taken);
        if (taken)
            idx[out + __popc(take & below)] = p;
        out += __popc(take);
        eq += __popc(is_same);
    }
}

/* ---- the op --------------------------------------------------------------------------------------------------------------------- */

extern "C" enum cairn_status cairn_index_cuda(struct cairn_stream *s, const struct cairn_index *a, struct cairn_error *err)
{
    struct call c = call_begin("index", s, err);
    int64_t N = -1, H = -1, D = -1, S = -1, T = -1, longest, run;
    struct index_job k = {};
    struct arg idx;
    int scores, fast;

    k.q = call_arg(&c, "q", &a->q, STRIDED | T_ACT, 3, &N, &H, &D);
    k.w = call_arg(&c, "w", &a->w, STRIDED | T_F32, 2, &N, &H);
    idx = call_arg(&c, "idx", &a->idx, OUT | T_I32, 2, &N, &T);
    k.keys = keys_arg(&c, &a->keys, OP_index, &N, &S, &D);
    if (call_ok(&c) && (T < 1 || T > INT32_MAX / 2 || H * D > 12000))
        call_fail(&c, "T = %lld, %lld heads of %lld", (long long)T, (long long)H, (long long)D);
    if (!call_ok(&c) || !N)
        return call_end(&c);
    longest = keys_longest(&k.keys);
    scores = longest > T;
    k.idx = i32(&idx), k.scale = a->scale;
    k.H = (int)H, k.D = (int)D, k.T = (int)T, k.ld = round_up(longest, INDEX_KEYS);
    fast = index_wgmma_takes(&c, &k);
    run = scores ? RUN_BYTES / (k.ld * (int64_t)sizeof(float)) : N;
    run = run < 8 ? 8 : run > 32768 ? 32768 : run; /* a grid's second dimension */
    if (run > N)
        run = N;
    if (scores)
        k.score = (float *)call_scratch(&c, (size_t)(run * k.ld) * sizeof(float));
    for (int64_t n = 0; n < N && call_ok(&c); n += run) {
        int64_t rows = N - n < run ? N - n : run;

        if (scores && fast) {
            index_wgmma(&c, &k, n, rows);
        } else if (scores) {
            dim3 grid((unsigned)ceil_div(longest, 128), (unsigned)rows);
            size_t shared = (size_t)(H * D + H) * sizeof(float);

            ON_ACT(k.q.type, X, LAUNCH(&c, scores_plain<X>, grid, 128, shared, k, n));
        }
        LAUNCH(&c, choose, (unsigned)rows, CHOOSE_THREADS, 0, k, n);
    }
    return call_end(&c);
}

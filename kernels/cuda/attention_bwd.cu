/* attention_bwd.cu - backward of sparse attention without float atomics, so that it gives the same bits every time.
 *
 * Rows that choose all of their positions share their keys: with wgmma they go tile by tile, dq by attention_bwd_query.cu, what
 * they give to keys by attention_bwd_key.cu (attention_rows.cu says which rows go how). The rest, and everything in the plain
 * kernels:
 *
 * Runs of rows, two passes each. The query pass makes dq of a row and, for every place of its choice, what it gives to that key:
 * give[n][j] = sum over heads of scale dl q + [P do | 0]; and notes in slot[s][n] at which place key s stands. The key pass adds
 * to dk[s] what rows gave, rows ascending, one by one: dk depends neither on runs nor on what else is packed into the call.
 *
 * Which rows are left for these passes is known on the device alone: all their runs are launched, with nothing to do where all rows go tile by
 * tile (15 runs of 4,096 rows that choose from 2,048). Whoever knows that there are none says so (all_seen).
 *
 * Query pass, two kernels: attention_bwd_plain here (all types and shapes; fp32, gives in fp32) and attention_bwd_wgmma.cu (bf16,
 * wgmma; gives in bf16). Chosen as in attention.cu.
 * Floor: 2 H T (3 W + 2 C) flops a row; gives cross memory twice: 4 T W bytes a row in bf16, 8 T W in fp32.
 */
#include "attention.cuh"
#include "attention_plain.cuh"

#define GIVE_BYTES ((int64_t)640 << 20) /* of gives and of slots in scratch, at most */
#define SLOT_BYTES ((int64_t)64 << 20)
#define RUN_MOST   1024

/* Row n0 + blockIdx.x; heads eight by eight, each time over all of its keys. */
template <typename T> __global__ void __launch_bounds__(PLAIN_THREADS) attention_bwd_plain(struct attention_job k)
{
    __shared__ struct plain_tiles tile;
    __shared__ float p[BLOCK][HEADS], dl[BLOCK][HEADS], D[HEADS], lse[HEADS];
    int64_t n = k.n0 + blockIdx.x;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pos, count;
    const int32_t *idx = k.idx + n * k.T;
    float *give = (float *)k.give + (int64_t)blockIdx.x * k.T * k.W;

    if (!keys_see(&k.keys, n))
        return;
    pos = k.keys.pos[n];
    count = choice_count(&k.keys, idx, k.T, pos);
    choice_end(&k.keys, idx, k.T, count, 0, threadIdx.x, PLAIN_THREADS);
    for (int h0 = 0; h0 < k.H; h0 += HEADS) {
        const T *q = (const T *)k.q.p + n * k.q.s[0] + h0 * k.q.s[1], *d_o = (const T *)k.d_o.p + n * k.d_o.s[0] + h0 * k.d_o.s[1];
        const T *o = (const T *)k.o.p + n * k.o.s[0] + h0 * k.o.s[1];
        int heads = k.H - h0 < HEADS ? k.H - h0 : HEADS;
        float dq[PLAIN_WIDTH / PLAIN_THREADS][HEADS] = {}, sum = 0.0f;

        __syncthreads();
        for (int c = lane; c < k.C && warp < heads; c += 32)
            sum = fmaf(ld(d_o + warp * k.d_o.s[1] + c), ld(o + warp * k.o.s[1] + c), sum);
        sum = warp_sum(sum);
        if (!lane)
            D[warp] = sum, lse[warp] = warp < heads ? k.lse[n * k.H + h0 + warp] : 0.0f;
        for (int j0 = 0; j0 < count; j0 += BLOCK) {
            int n_keys = count - j0 < BLOCK ? count - j0 : BLOCK, j = threadIdx.x % BLOCK, h = threadIdx.x / BLOCK;

            __syncthreads();
            plain_rows(&k, n, pos, j0, n_keys, &tile);
            float2 l = plain_products<T>(&k, q, k.q.s[1], heads, k.W, &tile);
            float2 dp = plain_products<T>(&k, d_o, k.d_o.s[1], heads, k.C, &tile);

#pragma unroll
            for (int i = 0; i < 2; i++) {
                int hh = h + i * HEADS / 2, used = j < n_keys && hh < heads && tile.row[j] >= 0;
                float e = used ? expf((i ? l.y : l.x) * k.scale - lse[hh]) : 0.0f;

                p[j][hh] = e;
                dl[j][hh] = used ? e * ((i ? dp.y : dp.x) - D[hh]) * k.scale : 0.0f;
            }
            __syncthreads();
            if (!h0 && (int)threadIdx.x < n_keys && tile.row[threadIdx.x] >= 0)
                k.slot[tile.row[threadIdx.x] * k.run + blockIdx.x] = (int16_t)(j0 + threadIdx.x);
#pragma unroll
            for (int i = 0; i < PLAIN_WIDTH / PLAIN_THREADS; i++) {
                int w = threadIdx.x + i * PLAIN_THREADS;
                float qw[HEADS], ow[HEADS];

                if (w >= k.W)
                    continue;
#pragma unroll
                for (int hh = 0; hh < HEADS; hh++) {
                    qw[hh] = hh < heads ? ld(q + hh * k.q.s[1] + w) : 0.0f;
                    ow[hh] = hh < heads && w < k.C ? ld(d_o + hh * k.d_o.s[1] + w) : 0.0f;
                }
                for (int jj = 0; jj < n_keys; jj++) {
                    float *to = give + (int64_t)(j0 + jj) * k.W + w, x = h0 ? *to : 0.0f, v;

                    v = tile.row[jj] < 0 ? 0.0f : ld((const T *)k.keys.rows.p + tile.row[jj] * k.keys.rows.s[0] + w);
#pragma unroll
                    for (int hh = 0; hh < HEADS; hh++) {
                        dq[i][hh] = fmaf(dl[jj][hh], v, dq[i][hh]);
                        x = fmaf(dl[jj][hh], qw[hh], x);
                        x = fmaf(p[jj][hh], ow[hh], x);
                    }
                    *to = x;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < PLAIN_WIDTH / PLAIN_THREADS; i++) {
            int w = threadIdx.x + i * PLAIN_THREADS;

#pragma unroll
            for (int hh = 0; hh < HEADS; hh++)
                if (w < k.W && hh < heads)
                    st((T *)k.dq.p + n * k.dq.s[0] + (h0 + hh) * k.dq.s[1] + w, dq[i][hh]);
        }
    }
}

/* dk of key row blockIdx.x. A thread has eight channels; four rows are on their way at a time. */
#define KEY_THREADS 96

template <typename G> __global__ void __launch_bounds__(KEY_THREADS) attention_bwd_keys(struct attention_job k, int rows, int wide)
{
    __shared__ int32_t list[RUN_MOST]; /* row << 15 | place, rows ascending */
    __shared__ int length;
    int16_t *slot = k.slot + (int64_t)blockIdx.x * k.run;
    const G *give = (const G *)k.give;
    float *dk = k.dk + (int64_t)blockIdx.x * k.W;

    if (k.rows.count && k.n0 >= k.rows.count[ROWS_REST])
        return;
    if (threadIdx.x < 32) {
        int n = 0;

        for (int i = threadIdx.x; i - (int)threadIdx.x < rows; i += 32) {
            int place = i < rows ? slot[i] : -1;
            unsigned there = __ballot_sync(0xffffffffu, place >= 0);

            if (place >= 0)
                list[n + __popc(there & ((1u << threadIdx.x) - 1))] = i << 15 | place, slot[i] = -1; /* for the next run */
            n += __popc(there);
        }
        if (!threadIdx.x)
            length = n;
    }
    __syncthreads();
    if (!length)
        return;
    for (int w = threadIdx.x * 8; w < k.W; w += KEY_THREADS * 8) {
        float sum[8], x[4][8];
        int n = k.W - w;

        ld8(dk + w, n, wide, sum);
        for (int i = 0; i < length; i += 4) {
#pragma unroll
            for (int u = 0; u < 4; u++)
                if (i + u < length) {
                    int at = list[i + u];

                    ld8(give + ((int64_t)(at >> 15) * k.T + (at & 0x7fff)) * k.W + w, n, wide, x[u]);
                }
#pragma unroll
            for (int u = 0; u < 4; u++)
                if (i + u < length)
#pragma unroll
                    for (int e = 0; e < 8; e++)
                        sum[e] += x[u][e];
        }
        st8(dk + w, n, wide, sum);
    }
}

extern "C" enum cairn_status cairn_attention_bwd_cuda(struct cairn_stream *s, const struct cairn_attention_bwd *a,
                                                      struct cairn_error *err)
{
    struct call c = call_begin("attention_bwd", s, err);
    int64_t N = -1, H = -1, W = -1, C = -1, S = -1, T = -1, size, run, parts, gives, slots;
    struct attention_job k = {};
    struct arg idx, lse, dk;
    int fast, wide;
    char *room;

    k.q = call_arg(&c, "q", &a->q, STRIDED | T_ACT, 3, &N, &H, &W);
    idx = call_arg(&c, "idx", &a->idx, T_I32, 2, &N, &T);
    k.o = call_arg(&c, "o", &a->o, STRIDED | T_ACT, 3, &N, &H, &C);
    lse = call_arg(&c, "lse", &a->lse, T_F32, 2, &N, &H);
    k.d_o = call_arg(&c, "d_o", &a->d_o, STRIDED | T_ACT, 3, &N, &H, &C);
    k.dq = call_arg(&c, "dq", &a->dq, OUT | STRIDED | T_ACT, 3, &N, &H, &W);
    dk = call_arg(&c, "dk", &a->dk, OUT | T_F32, 2, &S, &W);
    k.keys = keys_arg(&c, &a->keys, OP_attention_bwd, &N, &S, &W);
    if (call_ok(&c) && k.keys.pages)
        call_fail(&c, "keys are paged");
    if (call_ok(&c))
        plain_check(&c, H, W, C, T);
    if (call_ok(&c) && H > 64 * 64)
        call_fail(&c, "%lld heads", (long long)H);
    if (call_ok(&c) && N && !S)
        call_fail(&c, "no keys");
    if (!call_ok(&c) || !N)
        return call_end(&c);
    k.idx = i32(&idx), k.lse = f32(&lse), k.dk = f32(&dk), k.scale = a->scale;
    k.N = N, k.H = (int)H, k.W = (int)W, k.C = (int)C, k.T = (int)T;
    wide = W % 8 == 0 && arg_align(&dk) == 16;
    fast = wide && attention_wgmma_takes(&c, &k);
    k.all_seen = fast && a->all_seen;
    if (fast)
        attention_wgmma_form(&k);
    parts = fast ? ceil_div(H, 64) : 1;
    size = parts * (fast ? sizeof(bf16) : sizeof(float));
    run = GIVE_BYTES / (T * W * size);
    run = run < SLOT_BYTES / (2 * S * parts) ? run : SLOT_BYTES / (2 * S * parts);
    run = run < 1 ? 1 : run > RUN_MOST / parts ? RUN_MOST / parts : run;
    if (run > N)
        run = N;
    k.run = (int)(run * parts);
    gives = k.all_seen ? 0 : round_up(run * T * W * size, 256);
    slots = k.all_seen ? 0 : round_up(S * k.run * (int64_t)sizeof(int16_t), 256);
    room = (char *)call_scratch(&c, (size_t)(gives + slots) + (fast ? attention_rows_room(&k, NULL) : 0));
    k.give = room, k.slot = (int16_t *)(room + gives);
    if (slots)
        call_cuda(&c, cudaMemsetAsync(k.slot, 0xff, (size_t)slots, c.stream), "clearing slots");
    if (fast) {
        attention_rows_room(&k, room + gives + slots);
        attention_rows_make(&c, &k);
        attention_bwd_query(&c, &k);
        attention_bwd_key(&c, &k);
    }
    for (k.n0 = 0; k.n0 < N && !k.all_seen && call_ok(&c); k.n0 += run) {
        int64_t rows = N - k.n0 < run ? N - k.n0 : run;

        if (fast) {
            attention_bwd_wgmma(&c, &k, rows);
            LAUNCH(&c, attention_bwd_keys<bf16>, (unsigned)S, KEY_THREADS, 0, k, (int)(rows * parts), wide);
        } else {
            ON_ACT(k.q.type, X, LAUNCH(&c, attention_bwd_plain<X>, (unsigned)rows, PLAIN_THREADS, 0, k));
            LAUNCH(&c, attention_bwd_keys<float>, (unsigned)S, KEY_THREADS, 0, k, (int)rows, wide);
        }
    }
    return call_end(&c);
}

/* attention.cu - sparse attention over chosen keys: the op, and the plain kernel for all types and shapes.
 *
 * Two kernels, chosen by types, shapes and strides alone (never by the number of rows: decode and training share bits):
 *   attention_plain      any W up to PLAIN_WIDTH: fp32 products, one fma chain over channels; softmax over blocks of 64 places with
 *                        a running maximum; sums over keys in one chain, places ascending
 *   attention_wgmma.cu    bf16, sm_90a, C = 512: wgmma, the same blocks
 */
#include "attention.cuh"
#include "attention_plain.cuh"

/* Row blockIdx.x, heads HEADS * blockIdx.y and on. */
template <typename T> __global__ void __launch_bounds__(PLAIN_THREADS) attention_plain(struct attention_job k)
{
    __shared__ struct plain_tiles tile;
    __shared__ float p[BLOCK][HEADS], alpha[HEADS], most[HEADS], total[HEADS];
    int64_t n = blockIdx.x;
    int h0 = blockIdx.y * HEADS, heads = k.H - h0 < HEADS ? k.H - h0 : HEADS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const T *q = (const T *)k.q.p + n * k.q.s[0] + h0 * k.q.s[1];
    const int32_t *idx = k.idx + n * k.T;
    float out[PLAIN_WIDTH / PLAIN_THREADS][HEADS] = {};
    int pos, count;

    if (!keys_see(&k.keys, n))
        return;
    pos = k.keys.pos[n];
    count = choice_count(&k.keys, idx, k.T, pos);
    choice_end(&k.keys, idx, k.T, count, 0, threadIdx.x, PLAIN_THREADS);
    if (threadIdx.x < HEADS)
        most[threadIdx.x] = -INFINITY, total[threadIdx.x] = 0.0f;
    for (int j0 = 0; j0 < count; j0 += BLOCK) {
        int n_keys = count - j0 < BLOCK ? count - j0 : BLOCK;

        __syncthreads();
        plain_rows(&k, n, pos, j0, n_keys, &tile);
        float2 l = plain_products<T>(&k, q, k.q.s[1], heads, k.W, &tile);

        p[threadIdx.x % BLOCK][threadIdx.x / BLOCK] = l.x * k.scale;
        p[threadIdx.x % BLOCK][threadIdx.x / BLOCK + HEADS / 2] = l.y * k.scale;
        __syncthreads();
        { /* a warp a head */
            float a = lane < n_keys ? p[lane][warp] : -INFINITY, b = lane + 32 < n_keys ? p[lane + 32][warp] : -INFINITY;
            float was = most[warp], now = fmaxf(was, warp_max(fmaxf(a, b))), sum;

            a = lane < n_keys ? expf(a - now) : 0.0f;
            b = lane + 32 < n_keys ? expf(b - now) : 0.0f;
            sum = warp_sum(a + b);
            __syncwarp();
            p[lane][warp] = a;
            p[lane + 32][warp] = b;
            if (!lane) {
                alpha[warp] = was == now ? 1.0f : expf(was - now);
                most[warp] = now;
                total[warp] = fmaf(total[warp], alpha[warp], sum);
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PLAIN_WIDTH / PLAIN_THREADS; i++) {
            int c = threadIdx.x + i * PLAIN_THREADS;

            if (c < k.C) {
#pragma unroll
                for (int h = 0; h < HEADS; h++)
                    out[i][h] *= alpha[h];
                for (int j = 0; j < n_keys; j++) {
                    float v = tile.row[j] < 0 ? 0.0f : ld((const T *)k.keys.rows.p + tile.row[j] * k.keys.rows.s[0] + c);

#pragma unroll
                    for (int h = 0; h < HEADS; h++)
                        out[i][h] = fmaf(p[j][h], v, out[i][h]);
                }
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PLAIN_WIDTH / PLAIN_THREADS; i++) {
        int c = threadIdx.x + i * PLAIN_THREADS;

#pragma unroll
        for (int h = 0; h < HEADS; h++)
            if (c < k.C && h < heads)
                st((T *)k.o.p + n * k.o.s[0] + (h0 + h) * k.o.s[1] + c, out[i][h] / total[h]);
    }
    if ((int)threadIdx.x < heads)
        k.lse[n * k.H + h0 + threadIdx.x] = most[threadIdx.x] + logf(total[threadIdx.x]);
}

extern "C" enum cairn_status cairn_attention_cuda(struct cairn_stream *s, const struct cairn_attention *a, struct cairn_error *err)
{
    struct call c = call_begin("attention", s, err);
    int64_t N = -1, H = -1, W = -1, C = -1, S = -1, T = -1;
    struct attention_job k = {};
    struct arg idx, lse;

    k.q = call_arg(&c, "q", &a->q, STRIDED | T_ACT, 3, &N, &H, &W);
    idx = call_arg(&c, "idx", &a->idx, T_I32, 2, &N, &T);
    k.o = call_arg(&c, "o", &a->o, OUT | STRIDED | T_ACT, 3, &N, &H, &C);
    lse = call_arg(&c, "lse", &a->lse, OUT | T_F32, 2, &N, &H);
    k.keys = keys_arg(&c, &a->keys, OP_attention, &N, &S, &W);
    if (call_ok(&c))
        plain_check(&c, H, W, C, T);
    k.idx = i32(&idx), k.lse = f32(&lse), k.scale = a->scale;
    k.N = N, k.H = (int)H, k.W = (int)W, k.C = (int)C, k.T = (int)T;
    if (call_ok(&c) && N && attention_wgmma_takes(&c, &k)) {
        attention_wgmma_form(&k);
        if (attention_tiles_room(&k, NULL))
            attention_tiles_room(&k, (char *)call_scratch(&c, attention_tiles_room(&k, NULL)));
        attention_tiles_make(&c, &k);
        attention_wgmma(&c, &k);
    } else if (call_ok(&c) && N) {
        dim3 grid((unsigned)N, (unsigned)ceil_div(H, HEADS));

        ON_ACT(k.q.type, X, LAUNCH(&c, attention_plain<X>, grid, PLAIN_THREADS, 0, k));
    }
    return call_end(&c);
}

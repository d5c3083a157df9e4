/* attention_plain.cuh - pieces of the plain attention kernels: a block of 64 chosen keys against 8 heads. */
#ifndef CAIRN_KERNELS_CUDA_ATTENTION_PLAIN_CUH
#define CAIRN_KERNELS_CUDA_ATTENTION_PLAIN_CUH

#include "attention.cuh"

#define HEADS         8  /* of a block of threads; one warp each */
#define BLOCK         64 /* places */
#define PLAIN_THREADS 256
#define PLAIN_WIDTH   1024 /* W at most: four channels a thread */
#define CHANNELS      32   /* of a step of the products */

struct plain_tiles {
    int64_t row[BLOCK]; /* rows of the keys; -1: none */
    float key[BLOCK][CHANNELS + 1], q[HEADS][CHANNELS];
};

static inline void plain_check(struct call *c, int64_t H, int64_t W, int64_t C, int64_t T)
{
    if (C > W || C < 1 || W > PLAIN_WIDTH || T < 1 || T > INT16_MAX || H < 1 || H > 65535)
        call_fail(c, "%lld heads, C = %lld channels of W = %lld, T = %lld", (long long)H, (long long)C, (long long)W, (long long)T);
}

/* Finds the rows of places j0 .. j0 + n_keys of row n's choice. The caller synchronises (plain_products does). */
__device__ static inline void plain_rows(const struct attention_job *k, int64_t n, int pos, int j0, int n_keys,
                                         struct plain_tiles *t)
{
    const int32_t *idx = k->idx + n * k->T;

    for (int j = threadIdx.x; j < BLOCK; j += blockDim.x)
        t->row[j] = j < n_keys && choice_good(&k->keys, idx, j0 + j, pos) ? key_row(&k->keys, k->keys.seq[n], idx[j0 + j]) : -1;
}

/* q[h] . key[j] over `width` channels, one chain: thread t gets j = t % 64 with heads t / 64 and t / 64 + 4. q: `heads` rows with
 * stride ld. All threads of the block. */
template <typename T>
__device__ static inline float2 plain_products(const struct attention_job *k, const T *q, int64_t ld_q, int heads, int width,
                                               struct plain_tiles *t)
{
    int j = threadIdx.x % BLOCK, h = threadIdx.x / BLOCK;
    float2 sum = {0.0f, 0.0f};

    for (int w0 = 0; w0 < width; w0 += CHANNELS) {
        __syncthreads();
        for (int i = threadIdx.x; i < (BLOCK + HEADS) * CHANNELS; i += PLAIN_THREADS) {
            int r = i / CHANNELS, w = i % CHANNELS;
            float x = 0.0f;

            if (w0 + w < width && r < BLOCK && t->row[r] >= 0)
                x = ld((const T *)k->keys.rows.p + t->row[r] * k->keys.rows.s[0] + w0 + w);
            if (w0 + w < width && r >= BLOCK && r - BLOCK < heads)
                x = ld(q + (r - BLOCK) * ld_q + w0 + w);
            if (r < BLOCK)
                t->key[r][w] = x;
            else
                t->q[r - BLOCK][w] = x;
        }
        __syncthreads();
#pragma unroll
        for (int w = 0; w < CHANNELS; w++) { /* behind `width` all are 0: a sum that stays */
            sum.x = fmaf(t->q[h][w], t->key[j][w], sum.x);
            sum.y = fmaf(t->q[h + HEADS / 2][w], t->key[j][w], sum.y);
        }
    }
    return sum;
}

#endif

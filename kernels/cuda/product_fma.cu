/* product_fma.cu - products with an operand in f32, and the tree that adds the parts of a sum.
 *
 * product_fma: block of 256 threads, tile 64 x 64, 4 x 4 sums a thread, 16 terms in shared memory at a time. Each sum is one chain
 * of fmaf over k ascending from 0: the bits that the cpu back-end gives. Floor: 2 m n k / fp32 rate.
 */
#include "product.cuh"

#define TILE 64
#define STEP 16

/* 64 x 16 of an operand as f32, [k][row]; rows beyond and terms beyond are 0 (and not used as terms). along_k: k is contiguous. */
__device__ static inline void load(float to[STEP][TILE + 4], const void *from, int is_bf16, int64_t base, int64_t stride,
                                   int along_k, int64_t row0, int64_t rows, int64_t k0, int64_t k1)
{
#pragma unroll
    for (int i = 0; i < TILE * STEP / 256; i++) {
        int t = threadIdx.x + i * 256, r = along_k ? t / STEP : t % TILE, k = along_k ? t % STEP : t / TILE;
        float v = 0.0f;

        if (row0 + r < rows && k0 + k < k1)
            v = ld_any(from, is_bf16, base + (along_k ? (row0 + r) * stride + k0 + k : (k0 + k) * stride + row0 + r));
        to[k][r] = v;
    }
}

__global__ void __launch_bounds__(256) fma_tile(const struct product p)
{
    __shared__ float a[STEP][TILE + 4], b[STEP][TILE + 4];
    struct tile t = tile_of_block(p, TILE, TILE);
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    float sum[4][4] = {};

    if (!t.live || (p.accumulate && t.k0 >= t.k1)) /* nothing to add is no addition of 0 */
        return;
    for (int64_t k = t.k0; k < t.k1; k += STEP) {
        int terms = t.k1 - k < STEP ? (int)(t.k1 - k) : STEP;

        __syncthreads();
        load(a, p.a, p.a_bf16, t.a, p.as, p.form != CAIRN_TN, t.row0, t.row1, k, t.k1);
        load(b, p.b, p.b_bf16, t.b, p.bs, p.form == CAIRN_NT, t.col0, p.n, k, t.k1);
        __syncthreads();
#pragma unroll 4
        for (int l = 0; l < terms; l++) {
            float4 u = *(const float4 *)&a[l][ty * 4], v = *(const float4 *)&b[l][tx * 4];
            const float x[4] = {u.x, u.y, u.z, u.w}, w[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sum[i][j] = fmaf(x[i], w[j], sum[i][j]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int64_t r = t.row0 + ty * 4 + i, col = t.col0 + tx * 4 + j;

            if (r < t.row1 && col < p.n)
                put(p, t.y + r * p.ys + col, sum[i][j]);
        }
}

void product_fma(struct call *c, const struct product *p)
{
    int64_t tiles = row_tiles(p, TILE), z = p->offsets && p->form != CAIRN_TN ? 1 : p->batch;

    LAUNCH(c, fma_tile, dim3((unsigned)ceil_div(p->n, TILE), (unsigned)tiles, (unsigned)(z * p->parts)), 256, 0, *p);
}

/* One thread an element; the parts are added as the leaves of a binary tree, ((0+1)+(2+3))+... */
__global__ void tree_sum(const struct product p, const float *parts, int64_t elements)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, step = elements;
    float level[17];
    int n = 0;

    if (i >= elements)
        return;
    for (int q = 0; q < p.parts; q++) {
        level[n++] = parts[q * step + i];
        for (int done = q + 1; done % 2 == 0; done /= 2, n--)
            level[n - 2] = __fadd_rn(level[n - 2], level[n - 1]);
    }
    put(p, i / (p.m * p.n) * p.yb + i / p.n % p.m * p.ys + i % p.n, level[0]);
}

void product_tree(struct call *c, const struct product *p, const float *parts)
{
    int64_t batch = p->offsets && p->form != CAIRN_TN ? 1 : p->batch, elements = batch * p->m * p->n;

    LAUNCH(c, tree_sum, (unsigned)ceil_div(elements, 256), 256, 0, *p, parts, elements);
}

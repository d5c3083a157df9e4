/* product.h - the matrix products behind matmul, matmul_grouped, logprob and logprob_bwd: one description, several kernels.
 *
 * y (m, n) = A (m, k) . B (k, n) for each of `batch` products. Forms say how A and B lie in memory:
 *     NT  A[i][l] = a[i*as + l]   B[l][j] = b[j*bs + l]
 *     NN  A[i][l] = a[i*as + l]   B[l][j] = b[l*bs + j]
 *     TN  A[i][l] = a[l*as + i]   B[l][j] = b[l*bs + j]
 * With `offsets` (device, groups + 1, ascending from 0) the rows that A, y (NT, NN) or A, B (TN) have in common are cut into
 * groups; group g has its own b (NT, NN) or y (TN), bb or yb elements further for each g.
 *
 * Bits. An element of y is one chain over l ascending, whatever m, n, the tile, the kernel or the grouping:
 *     f32 operands (one is enough): one fmaf a term.
 *     bf16 x bf16: tensor cores, 16 terms a step, fp32 accumulator. The instructions of a card that are used for this (mma.sync,
 *     wgmma, those inside of cuBLASLt) give the same bits; product_proof (product_proof.c) shows it on the card before it relies
 *     on it.
 * Then times alpha (unless 1), then added to y (accumulate), each rounded to fp32; stored as y's type. `parts` > 1: k is cut
 * into equal parts, each is such a chain, and they are added by a fixed binary tree.
 */
#ifndef CAIRN_KERNELS_CUDA_PRODUCT_H
#define CAIRN_KERNELS_CUDA_PRODUCT_H

#include "internal.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(hidden)

struct product {
    const void *a, *b;
    void *y;
    int64_t as, bs, ys; /* elements from one stored row to the next */
    int64_t ab, bb, yb; /* from one product of the batch, or group, to the next */
    int64_t m, n, k;    /* with offsets: m (NT, NN) or k (TN) is the number of all rows */
    const int32_t *offsets;
    struct fault *fault; /* where to say that offsets are wrong */
    int batch;           /* products, or groups */
    int form;            /* enum cairn_form */
    int open_end;        /* 1: rows behind the last group are no fault; nothing is done with them */
    int a_bf16, b_bf16, y_bf16;
    int op; /* enum cuda_op, for faults */
    float alpha;
    int accumulate;
    /* filled in by product_run */
    int parts;
    int64_t part_k; /* k of one part */
    int64_t yp;     /* elements from one part of y to the next */
    int wide;       /* 1: 16-byte loads of A and B are aligned */
    int pairs;      /* 1: two neighbours of y may be written at once */
    int quads;      /* 1: 16 bytes of y may */
};

/* Parts in which a sum over rows runs (TN of bf16 operands whose y has few tiles): a power of two that depends on the shape alone.
 */
int product_parts(const struct product *p);
/* Runs p on the call's stream. parts: 1, or a power of two that divides k. Scratch: with parts > 1 parts * batch * m * n floats
 * from `scratch` (product_scratch bytes), else none. */
void product_run(struct call *c, const struct product *p, int parts, void *scratch);
size_t product_scratch(const struct product *p, int parts);

/* One kernel family each; p as product_run hands it down. */
void product_fma(struct call *c, const struct product *p);
/* tile: 0 .. PRODUCT_MMA_TILES - 1, small to large: 16x16, 16x64, 32x32, 64x64, 128x128. */
#define PRODUCT_MMA_TILES 5
void product_mma(struct call *c, const struct product *p, int tile);
/* sm_90a, operands aligned to 16 bytes; 0 when it cannot do this product (the caller takes another). tile: 0 ..
 * PRODUCT_WGMMA_TILES - 1, 128 rows times 64, 128 a, 128 b, 192 a, 192 b, 256 a, 256 b columns. a: two neighbours in columns, b:
 * two in rows are a cluster that shares what both need; TN has b for a. */
#define PRODUCT_WGMMA_TILES 7
int product_wgmma_there(const struct call *c); /* on this card */
int product_wgmma_can(const struct call *c, const struct product *p);
void product_wgmma(struct call *c, const struct product *p, int tile);

/* y (+)= alpha * tree of the parts; part i of element (z, r, j) is at parts[((i * batch + z) * m + r) * n + j]. */
void product_tree(struct call *c, const struct product *p, const float *parts);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif

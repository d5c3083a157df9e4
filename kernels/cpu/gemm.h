/* gemm.h - the one dense product behind matmul, the head and attention.
 *
 *     C[m][n] (+)= alpha * sum_k A[m][k] * B[k][n]
 *
 * Every element is one chain of fma over k ascending, starting at +0 at the first k of each segment; segments are added by a
 * binary tree. Lanes run over n, so the chain is the same whatever the tile, the packing, the number of rows or of threads:
 * row invariance by construction. A is read in place where it can be (broadcasts), B in place if its n are adjacent and else
 * through packed panels.
 */
#ifndef CAIRN_KERNELS_CPU_GEMM_H
#define CAIRN_KERNELS_CPU_GEMM_H

#include "internal.h"
#include "vec.h"

#pragma GCC visibility push(hidden)

/* Register tile: rows x columns. The panel width is the same for every instruction set. */
#define TILE_N 32
#ifdef __AVX512F__
#define TILE_M 8
#else
#define TILE_M 6
#endif

struct gemm {
    int64_t m, n, k;
    const void *a, *b;               /* element (m, k) at a + m*a_m + k*a_k; b likewise */
    enum cairn_dtype a_type, b_type; /* f32 or bf16 */
    int64_t a_m, a_k, b_k, b_n;
    float *c;
    int64_t c_m, c_n; /* one of them is 1 */
    float alpha;
    int accumulate;
    int chain; /* 1: the sum goes on from what c holds (alpha 1, one segment), instead of being added to it */
    int segments;
};

/* The product of form `form` (kernels.h) over n rows; xs, ws, ys: strides of the first of the last two dimensions; k, o: the two
 * other dimensions in the order of the form. alpha 1, one segment, not accumulating. NT with few rows is turned round, so that the
 * smaller operand is the one that is packed; no bit depends on it. */
struct gemm gemm_product(enum cairn_form form, const float *x, int64_t xs, const void *w, enum cairn_dtype w_type, int64_t ws,
                         float *y, int64_t ys, int64_t n, int64_t k, int64_t o);
/* Bytes of scratch that gemm_part needs, for any product. */
size_t gemm_scratch_bytes(int segments);
/* Computes rows m0 .. m1, columns n0 .. n1. */
void gemm_part(const struct gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, void *scratch);
/* Rectangle t of `pieces` into which the output is cut. */
void gemm_piece(const struct gemm *g, int t, int pieces, void *scratch);

/* out[r*ldo + j] (r < m <= TILE_M, j < 32) = sum_k a[r*a_m + k*a_k] * b[k*ldb + j], from out's value if go_on, else from 0.
 * All 32 columns of b must be readable. nv: 1 or 2 vectors of columns (16 or 32). */
void gemm_tile(int m, int nv, int64_t k, const float *a, int64_t a_m, int64_t a_k, const float *b, int64_t ldb, float *out,
               int64_t ldo, int go_on);

/* panel[k*ldp + j] = rows[j][k], for j < n <= 16 (other lanes 0); the transposition that turns rows into lanes. */
void gemm_transpose(const float *const *rows, int n, int64_t k, float *panel, int64_t ldp);

#pragma GCC visibility pop
#endif

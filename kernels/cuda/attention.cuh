/* attention.cuh - what the files of sparse attention share: the job of one call, and which rows go together.
 *
 * Rows that go together. The wgmma kernels work on tiles of 64 (row, head) pairs. With H < 64 heads a tile has room for
 * G = min(64 / H, 16) rows, and rows of one sequence whose choice is *all* of their positions have the same key at place j: they
 * go together where their positions fall into one aligned group of G and stand in consecutive rows. A row whose list is shorter
 * gets P = 0 exactly at the places behind it, so that its sums are those that it has alone; a key behind it that is not finite
 * (0 * NaN) keeps the next row out of the group. Which rows go together depends on positions, not on where in the call they stand.
 */
#ifndef CAIRN_KERNELS_CUDA_ATTENTION_CUH
#define CAIRN_KERNELS_CUDA_ATTENTION_CUH

#include "keys.cuh"

struct attention_job {
    struct arg q, o, d_o, dq; /* (N, H, W), (N, H, C), (N, H, C), (N, H, W) */
    struct keys keys;
    const int32_t *idx; /* (N, T) */
    float *lse;         /* (N, H) */
    float *dk;          /* (S, W) */
    int64_t N;
    int H, W, C, T, G;
    float scale;
    /* backward: rows n0 .. n0 + run, what they give to their keys, and where. A run's length changes no bit. */
    int64_t n0;
    int run;       /* times parts: */
    void *give;    /* (run, T, W): bf16 in the wgmma kernels, which have a part for 64 heads, else f32 */
    int16_t *slot; /* (S, run): at which place of part i key s stands; -1: nowhere */
};

/* Do types and shapes fit the wgmma kernels, on this device? */
int attention_wgmma_takes(const struct call *c, const struct attention_job *k);
int attention_wgmma_group(int H); /* G */
void attention_wgmma(struct call *c, const struct attention_job *k);
/* Query pass of the backward for rows n0 .. n0 + rows. */
void attention_bwd_wgmma(struct call *c, const struct attention_job *k, int64_t rows);

#endif

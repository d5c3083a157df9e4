/* index.cuh - what index.cu and index_wgmma.cu share. */
#ifndef CAIRN_KERNELS_CUDA_INDEX_CUH
#define CAIRN_KERNELS_CUDA_INDEX_CUH

#include "keys.cuh"

#define INDEX_KEYS 128 /* keys of a tile */

struct index_job {
    struct arg q, w;
    struct keys keys;
    int32_t *idx; /* (N, T) */
    float *score; /* (rows of the run, ld) */
    int64_t ld;
    int H, D, T;
    float scale;
};

/* Do types and shapes fit the wgmma kernel, on this device? */
int index_wgmma_takes(const struct call *c, const struct index_job *k);
/* Scores of rows n .. n + rows. */
void index_wgmma(struct call *c, const struct index_job *k, int64_t n, int64_t rows);

#endif

/* product_choose.h - a choice of a kernel, and what product_choose.c takes from its neighbours: cuBLASLt, and the tools of a trial.
 *
 * cuBLASLt is opened at run time; where it is missing, own kernels do everything.
 */
#ifndef CAIRN_KERNELS_CUDA_PRODUCT_CHOOSE_H
#define CAIRN_KERNELS_CUDA_PRODUCT_CHOOSE_H

#include "product.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(hidden)

struct product_lt;
struct product_lt_plan {
    uint64_t algo[8]; /* cublasLtMatmulAlgo_t */
    size_t workspace; /* 0 but for the library's own choice */
};

enum kind { KIND_FMA, KIND_MMA, KIND_FEW, KIND_WGMMA, KIND_LT, KIND_AGAIN /* kept, and to be tried anew */ };

struct choice {
    enum kind kind;
    int which; /* tile of mma, few or wgmma */
    struct product_lt_plan lt;
};

/* Begins what can be done for products before the first one (product_ahead.h); nothing where nothing is kept. */
void product_choose_begin(struct cuda *d);
/* By the kernel that was chosen; lt: for one of cuBLASLt's. */
void product_launch(struct call *c, struct product_lt *lt, const struct product *p, const struct choice *o);

/* Bytes of the operands and the result. */
struct product_room {
    size_t a, b, y;
};
/* Gives a product without groups strides of dense operands, each line aligned to 16 bytes. */
struct product_room product_dense(struct product *p);

struct product_lt *product_lt_open(void);                 /* NULL where there is none */
void product_lt_close(struct product_lt *lt);             /* NULL is fine */
uint64_t product_lt_version(const struct product_lt *lt); /* of NULL 0 */
/* Up to n algorithms for p, best guess first, none of which splits k or needs a workspace. `free_choice`: the library's own, with
 * 32 MiB, whatever it does to the bits (to compare with). */
int product_lt_plans(struct product_lt *lt, const struct product *p, int free_choice, struct product_lt_plan *plan, int n);
/* A plan with a workspace takes it from the call's scratch. */
void product_lt_run(struct call *c, struct product_lt *lt, const struct product *p, const struct product_lt_plan *plan);

/* n bf16 numbers from `seed`. spread 0: like a normal distribution, 1: with exponents over 12 binades, 2: pairs that cancel
 * against pairs of 3. */
void probe_fill(struct call *c, void *to, int64_t n, uint32_t seed, uint32_t spread);
/* *d_count = 4-byte words that differ; bytes a multiple of 4. */
void probe_differences(struct call *c, const void *x, const void *y, size_t bytes, int64_t *d_count);

/* Where two results differ: of how many elements, the largest difference and the largest number, the first place. */
struct product_difference {
    int64_t of;
    double most, scale, got, want;
    int spread, row, col;
};

/* A call of its own on the same stream: what fails in it fails nothing else. */
struct call product_trial(const struct call *c);
/* 4-byte words of two results that differ in bits, -1 if that could not be found out. Waits. */
int64_t product_differences(struct call *c, const void *x, const void *y, size_t bytes, int64_t *d_count);

/* Elements in which wgmma with this tile (-1: the smallest mma tile) and the definition differ in bits, over three kinds of data;
 * -1: could not be run. d (or NULL): more about it. small: a twentieth of the work, with every stage of a kernel in it all the same, for tools
 * under which everything is slow. */
int64_t product_proof(struct call *of, int form, int tile, int grouped, int small, struct product_difference *d);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif

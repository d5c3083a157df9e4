/* product_few.h - products of few rows (product_few.cu), for who chooses among kernels. */
#ifndef CAIRN_KERNELS_CUDA_PRODUCT_FEW_H
#define CAIRN_KERNELS_CUDA_PRODUCT_FEW_H

#include "product.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(hidden)

/* tile: 0 .. PRODUCT_FEW_TILES - 1, rows times columns 16x16, 16x32, 16x64, 32x32, 64x16, 64x32, 64x64. */
#define PRODUCT_FEW_TILES 7
#define PRODUCT_FEW_ROWS  128 /* beyond that others are faster whatever the shape */
extern const int product_few_high[PRODUCT_FEW_TILES], product_few_wide[PRODUCT_FEW_TILES];
int product_few_can(const struct call *c, const struct product *p);
void product_few(struct call *c, const struct product *p, int tile);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif

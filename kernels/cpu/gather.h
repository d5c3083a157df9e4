/* gather.h - the chosen keys of one query brought together, as attention wants them twice: rows (for sums over keys) and turned
 * into lanes (for products with queries). What the last query of the same thread left is kept as far as its choice agrees:
 * neighbouring queries of a sequence share most of their keys.
 */
#ifndef CAIRN_KERNELS_CPU_GATHER_H
#define CAIRN_KERNELS_CPU_GATHER_H

#include "gemm.h"
#include "keys.h"

#pragma GCC visibility push(hidden)

struct gather {
    int64_t W, ldw, T, count; /* ldw: W rounded up to 16 */
    int64_t seq;              /* -1: nothing yet */
    float *rows;              /* (T, ldw), padded by zeros */
    float *panels;            /* (T/32 up, W, 32) */
    int32_t *idx;             /* (T) what is held */
};

size_t gather_bytes(int64_t T, int64_t W);
void gather_init(struct gather *g, int64_t T, int64_t W, void *room);
void gather_keys(struct gather *g, const struct keys *k, int64_t seq, const int32_t *idx, int64_t count);

/* l[h*ldl + s] = sum over the first `width` channels of q_h . k_s, for all kept keys; ldl is T rounded up to 32. */
void gather_products(const struct gather *g, const float *q, int64_t q_h, int64_t heads, int64_t width, float *l, int64_t ldl);
/* o[h*ldo + c] = sum_s p[h*ldp + s] * k_s[c], c < width rounded up to 16 (ldo has room), s ascending. */
void gather_sums(const struct gather *g, const float *p, int64_t ldp, int64_t heads, int64_t width, float *o, int64_t ldo);

#pragma GCC visibility pop
#endif

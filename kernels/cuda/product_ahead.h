/* product_ahead.h - the kernels that the process before this one chose are loaded while this one still reads its weights.
 *
 * What a first product waits for is not the product: cuBLASLt is opened (70 ms), and a module of it is unpacked and sent to the card with the first
 * product that wants it (up to 100 ms each; H200, CUDA 13.0). Of products that were chosen before (keep.h) it is known which ones they will be. A
 * thread begun with the device opens cuBLASLt and launches each of them once, small, on memory of its own. No choice and no bit depends on it: it is
 * ended before a product is tried, lest its launches be measured, too.
 */
#ifndef CAIRN_KERNELS_CUDA_PRODUCT_AHEAD_H
#define CAIRN_KERNELS_CUDA_PRODUCT_AHEAD_H

#include "product_choose.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(hidden)

struct product_ahead;

/* p: sizes, form, types and end of a dense product of bf16 operands; what points somewhere is not looked at. */
struct product_wanted {
    struct product p;
    struct choice choice;
};

/* Begins with n wanted products, which are copied; algorithms of cuBLASLt's are launched if it is of version lt_version. NULL: there is no memory or
 * thread for it. d outlives it. */
struct product_ahead *product_ahead_begin(const struct cuda *d, const struct product_wanted *wanted, int n, uint64_t lt_version);
/* Waits until cuBLASLt is open, and hands it over to the caller, once; NULL where there is none. */
struct product_lt *product_ahead_lt(struct product_ahead *a);
/* Waits for what is under way (cuBLASLt being opened, a launch), and leaves out the rest; NULL is fine. Before cuBLASLt is closed. */
void product_ahead_end(struct product_ahead *a);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif

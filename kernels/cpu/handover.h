/* handover.h - the checks of transfer's, tiles' and ship's runs: what the tables say stays inside of the memories they speak of. */
#ifndef CAIRN_KERNELS_CPU_HANDOVER_H
#define CAIRN_KERNELS_CPU_HANDOVER_H

#include "internal.h"

#pragma GCC visibility push(hidden)
/* X, Y: elements of x and y. */
void transfer_check(struct call *c, const struct arg *runs, int64_t X, int64_t Y, int64_t elements);
/* X: bytes. */
void tiles_check(struct call *c, const struct arg *runs, int64_t X, int64_t units);
/* X, Y: elements of x and y; size: bytes of an element of y. */
void ship_check(struct call *c, const struct arg *runs, int64_t X, int64_t Y, int64_t size, int64_t units);
#pragma GCC visibility pop

#endif

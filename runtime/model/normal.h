/* normal.h - many normal numbers by counter, on all processors that this process may use; the number of threads changes no bit. */
#ifndef CAIRN_MODEL_NORMAL_H
#define CAIRN_MODEL_NORMAL_H

#include <stdint.h>

#include "base/philox.h"

/* x[i] = sd times normal number i mod 4 of Philox (key; i / 4). Where threads cannot be had the caller's does it all. */
void cairn_normal_fill(float *x, int64_t n, const struct cairn_philox_key *key, double sd);

#endif

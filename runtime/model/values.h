/* values.h - a tensor's values to and from fp32 in host memory, whatever float type the device keeps them in.
 *
 * Rounding to bf16 or f16 is to nearest even, the same bits as op `cast`. For loading, saving and tests; waits for the stream.
 */
#ifndef CAIRN_MODEL_VALUES_H
#define CAIRN_MODEL_VALUES_H

#include "kernels/backend.h"

/* n must be the tensor's count; the tensor is dense and f32, bf16 or f16. */
enum cairn_status cairn_values_set(struct cairn_compute *k, const struct cairn_tensor *t, const float *h_src, int64_t n,
                                   struct cairn_error *err);
enum cairn_status cairn_values_get(struct cairn_compute *k, const struct cairn_tensor *t, float *h_dst, int64_t n,
                                   struct cairn_error *err);

#endif

/* head_ref.h - log-sum-exp of a row of scaled logits, in fp64; shared by the references of logprob and sample. */
#ifndef CAIRN_KERNELS_CPU_HEAD_REF_H
#define CAIRN_KERNELS_CPU_HEAD_REF_H

#include <stdint.h>

#pragma GCC visibility push(hidden)
double head_ref_lse(const float *x, int64_t V);
#pragma GCC visibility pop

#endif

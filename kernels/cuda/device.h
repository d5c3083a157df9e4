/* device.h - the cuda device's functions, for the back-end's entry. */
#ifndef CAIRN_KERNELS_CUDA_DEVICE_H
#define CAIRN_KERNELS_CUDA_DEVICE_H

#include "internal.h"

#pragma GCC visibility push(hidden)
extern const struct cairn_device_ops cuda_device_ops;
#pragma GCC visibility pop

#endif

/* device.h - the cuda device's functions, for the back-end's entry. */
#ifndef CAIRN_KERNELS_CUDA_DEVICE_H
#define CAIRN_KERNELS_CUDA_DEVICE_H

#include "internal.h"

#pragma GCC visibility push(hidden)
extern const struct cairn_device_ops cuda_device_ops;

/* share.c: memory that is not the device's own. release: 1 if impl was such, and is gone. */
enum cairn_status cuda_share_export(struct cairn_device *dev, void *impl, size_t bytes, struct cairn_share *out, struct cairn_error *err);
enum cairn_status cuda_share_import(struct cairn_device *dev, const struct cairn_share *s, void **impl, struct cairn_error *err);
enum cairn_status cuda_share_pin(struct cairn_device *dev, void *h_p, size_t bytes, void **impl, struct cairn_error *err);
int cuda_share_release(struct cuda *d, void *impl);
#pragma GCC visibility pop

#endif

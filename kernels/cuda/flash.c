/* flash.c - ops of GLM-5.3-Flash that this back-end does not have. */
#include "internal.h"

#define ABSENT_OP(op)                                                                                                              \
    enum cairn_status cairn_##op##_cuda(struct cairn_stream *s, const struct cairn_##op *a, struct cairn_error *err)               \
    {                                                                                                                              \
        (void)s;                                                                                                                   \
        (void)a;                                                                                                                   \
        return cairn_fail(err, CAIRN_EDEVICE, "the cuda back-end has no %s; choose kernels.backend: cpu", #op);                    \
    }
ABSENT_OP(kda_bwd)

/* flash.c - ops of GLM-5.3-Flash that this back-end does not have. */
#include "internal.h"

#define ABSENT_OP(op)                                                                                                              \
    enum cairn_status cairn_##op##_cuda(struct cairn_stream *s, const struct cairn_##op *a, struct cairn_error *err)               \
    {                                                                                                                              \
        (void)s;                                                                                                                   \
        (void)a;                                                                                                                   \
        return cairn_fail(err, CAIRN_EDEVICE, "the cuda back-end has no %s; choose kernels.backend: cpu", #op);                    \
    }
ABSENT_OP(short_conv)
ABSENT_OP(short_conv_bwd)
ABSENT_OP(kda_gate)
ABSENT_OP(kda_gate_bwd)
ABSENT_OP(kda)
ABSENT_OP(kda_bwd)
ABSENT_OP(gated_norm)
ABSENT_OP(gated_norm_bwd)
ABSENT_OP(hyper)
ABSENT_OP(hyper_bwd)
ABSENT_OP(hyper_out)
ABSENT_OP(hyper_out_bwd)
ABSENT_OP(streams_sum)
ABSENT_OP(streams_spread)
ABSENT_OP(pool_keys)
ABSENT_OP(pool_expand)

/* flash.c - ops of GLM-5.3-Flash whose fast form is the plain one. */
#include "internal.h"

#define PLAIN(op)                                                                                                                  \
    enum cairn_status cairn_##op##_cpu(struct cairn_stream *s, const struct cairn_##op *a, struct cairn_error *err)                \
    {                                                                                                                              \
        return cairn_##op##_ref(s, a, err);                                                                                        \
    }
PLAIN(short_conv)
PLAIN(short_conv_bwd)
PLAIN(kda_gate)
PLAIN(kda_gate_bwd)
PLAIN(kda)
PLAIN(kda_bwd)
PLAIN(gated_norm)
PLAIN(gated_norm_bwd)
PLAIN(hyper)
PLAIN(hyper_bwd)
PLAIN(hyper_out)
PLAIN(hyper_out_bwd)
PLAIN(streams_sum)
PLAIN(streams_spread)
PLAIN(pool_keys)
PLAIN(pool_expand)

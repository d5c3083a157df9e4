/* trace.h - every op that a compute handle runs, seen one after the other: what a gate locates by.
 *
 * While a trace is on, the handle's op table (a copy of the back-end's, made to be exchanged) holds functions that call the trace's `before`
 * and `after` around the back-end's own op. Each call is told apart by where it stands: the parameter that it reads (its weight or an
 * adapter's matrix), else the last one that an op before it read, and the op's name. One trace at a time in a process; without threads.
 */
#ifndef CAIRN_TOOLS_CHECK_TRACE_H
#define CAIRN_TOOLS_CHECK_TRACE_H

#include "kernels/backend.h"
#include "kernels/describe.h"
#include "model/params.h"

struct cairn_trace_call {
    enum cairn_op_number op;
    const struct cairn_op_info *info;
    void *args;        /* a copy of the call's arguments, the observer's to read */
    const char *param; /* where it stands; "" before the first one */
    int exact;         /* 1: it reads that parameter itself */
    int64_t serial;    /* of the trace, from 0 */
};

struct cairn_trace {
    struct cairn_compute *k;
    const struct cairn_store *stores[4]; /* whose parameters are known by place; up to the first NULL */
    enum cairn_status (*before)(void *arg, const struct cairn_trace_call *c, struct cairn_error *err); /* or NULL */
    enum cairn_status (*after)(void *arg, const struct cairn_trace_call *c, struct cairn_error *err);  /* or NULL */
    void *arg;
    /* private */
    struct cairn_ops own; /* the back-end's */
    const char *param;
    int64_t serial;
};

/* t lives until the end. */
void cairn_trace_begin(struct cairn_trace *t);
void cairn_trace_end(struct cairn_trace *t);
void cairn_trace_restart(struct cairn_trace *t); /* as if it had just begun */

/* "layer 3 attention" of "model.layers.3.self_attn.q_b_proj.weight"; out is what people read. */
void cairn_trace_block(const char *param, char *out, size_t n);

#endif

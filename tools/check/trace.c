/* trace.c - see trace.h. */
#include "tools/check/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct cairn_trace *on; /* ops have no word of their own for whom they serve */

/* The parameter whose memory begins where t's does, or that t is a part of. */
static const char *param_at(const struct cairn_trace *tr, const struct cairn_tensor *t)
{
    for (size_t s = 0; t->buf && s < sizeof tr->stores / sizeof *tr->stores && tr->stores[s]; s++) {
        const struct cairn_store *store = tr->stores[s];

        for (int i = 0; t->buf == store->buf && i < store->table->count; i++) {
            const struct cairn_tensor *p = &store->tensor[i];

            if (p->buf && t->offset >= p->offset && t->offset < p->offset + cairn_tensor_bytes(p))
                return store->table->param[i].name;
        }
    }
    return NULL;
}

static enum cairn_status observe(enum cairn_op_number op, void *args, int after, struct cairn_error *err)
{
    struct cairn_trace *t = on;
    struct cairn_trace_call c = {.op = op, .info = cairn_op_info(op), .args = args, .param = t->param, .serial = t->serial};
    enum cairn_status (*fn)(void *arg, const struct cairn_trace_call *call, struct cairn_error *e) = after ? t->after : t->before;

    for (const struct cairn_op_member *m = c.info->member; m->name; m++) {
        const char *p = m->role == CAIRN_OP_OUT ? NULL : param_at(t, cairn_op_tensor(args, m));

        if (p) {
            c.param = t->param = p;
            c.exact = 1;
        }
    }
    t->serial += after;
    return fn ? fn(t->arg, &c, err) : CAIRN_OK;
}

#define WRAP(op)                                                                                                       \
    static enum cairn_status wrap_##op(struct cairn_stream *s, const struct cairn_##op *a, struct cairn_error *err)      \
    {                                                                                                                    \
        struct cairn_##op copy = *a;                                                                                     \
        enum cairn_status st = observe(CAIRN_OP_##op, &copy, 0, err);                                                    \
                                                                                                                         \
        if (st == CAIRN_OK)                                                                                              \
            st = on->own.op(s, a, err);                                                                                  \
        return st == CAIRN_OK ? observe(CAIRN_OP_##op, &copy, 1, err) : st;                                              \
    }
CAIRN_OPS(WRAP)

void cairn_trace_begin(struct cairn_trace *t)
{
#define WRAPPED(op) .op = wrap_##op,
    static const struct cairn_ops wrapped = {CAIRN_OPS(WRAPPED)};

    t->own = t->k->ops;
    t->k->ops = wrapped;
    on = t;
    cairn_trace_restart(t);
}

void cairn_trace_end(struct cairn_trace *t)
{
    if (on != t)
        return;
    t->k->ops = t->own;
    on = NULL;
}

void cairn_trace_restart(struct cairn_trace *t)
{
    t->param = "";
    t->serial = 0;
}

void cairn_trace_block(const char *param, char *out, size_t n)
{
    const char *at = strstr(param, "layers."), *part;
    char *end;
    long layer;

    if (!at) {
        snprintf(out, n, "%s",
                 strstr(param, "embed")     ? "embedding"
                 : strstr(param, "lm_head") ? "head"
                 : strstr(param, "norm")    ? "final norm"
                                            : "start");
        return;
    }
    layer = strtol(at + 7, &end, 10);
    part = strstr(end, "indexer")                                                             ? "indexer"
           : strstr(end, "self_attn") || strstr(end, "input_layernorm")                       ? "attention"
           : strstr(end, "mlp.gate.")                                                         ? "router"
           : strstr(end, "shared_experts")                                                    ? "shared expert"
           : strstr(end, "experts")                                                           ? "experts"
           : strstr(end, "mlp") || strstr(end, "post_attention_layernorm")                    ? "mlp"
                                                                                              : "hyper-connection";
    snprintf(out, n, "layer %ld %s", layer, part);
}

/* call.h - what every block of one forward or backward needs to know: where to compute, which rows, where their keys lie.
 *
 * Filled in by model.c once a call, passed down by pointer, never changed by a block. Owns nothing.
 */
#ifndef CAIRN_MODEL_CALL_H
#define CAIRN_MODEL_CALL_H

#include "kernels/backend.h"
#include "model/branch.h"
#include "model/cache.h"
#include "model/config.h"
#include "model/params.h"

struct cairn_call {
    struct cairn_compute *k;
    const struct cairn_model_config *c;
    enum cairn_dtype act; /* activation type of the back-end */
    int segments;         /* V of numerics.segments, at least 1 */
    int64_t n;            /* rows of this call */

    struct cairn_keys keys;      /* pos, seq, and start or pages; `rows` is filled in by the block that attends */
    struct cairn_tensor pool;    /* i32 (n) the last whole pool that row n sees (0 if there is none); absent without pools */
    struct cairn_cache *cache;   /* where keys go and come from; NULL: packed, keys are the rows of this call */
    struct cairn_tensor key_row; /* i32 (n) row of the cache that holds the key of row n; absent when packed */
    int all_seen;                /* 1: no row sees more keys than index_topk, so that an indexer takes all of them without scores */
    int some_whole;              /* 1: packed, and there is a sequence of at most index_topk rows */
    int nseq;                    /* packed: sequences, and the first row of each; host */
    const int32_t *h_start;
    int rerun;                   /* 1: recomputation for the backward: index sets are there, the layer's output is not wanted */

    struct cairn_branch *branch;     /* work beside the call's own may go there; NULL: one line (branch.h) */
    struct cairn_tensor dt;          /* act, flat: scratch for the inner gradient of one LoRA (rows, rank) */
    const struct cairn_store *grads; /* += here; NULL: frozen */
    const struct cairn_store *adapter_grads;
};

/* Runs op `name` of call c with the members given, for example OP(c, rmsnorm, .x = x, .y = y). Inside a function with TRY. */
#define OP(call, name, ...) TRY((call)->k->ops.name(&(call)->k->stream, &(struct cairn_##name){__VA_ARGS__}, err))

/* Where the gradient of parameter p goes; absent when it is frozen. */
static inline struct cairn_tensor cairn_call_grad(const struct cairn_call *c, int p)
{
    return c->grads && p >= 0 ? c->grads->tensor[p] : (struct cairn_tensor){0};
}

/* Another shape for the elements of a view: strides in elements, last one 1; `skip` elements behind the view's first. */
static inline struct cairn_tensor cairn_view3(const struct cairn_tensor *t, int64_t skip, int64_t a, int64_t sa, int64_t b,
                                              int64_t sb, int64_t d)
{
    struct cairn_tensor v = {.buf = t->buf,
                             .offset = t->offset + (size_t)skip * cairn_dtype_size(t->dtype),
                             .dtype = t->dtype,
                             .ndim = 3,
                             .dim = {a, b, d},
                             .stride = {sa, sb, 1}};

    return v;
}

static inline struct cairn_tensor cairn_view2(const struct cairn_tensor *t, int64_t skip, int64_t a, int64_t sa, int64_t d)
{
    struct cairn_tensor v = {.buf = t->buf,
                             .offset = t->offset + (size_t)skip * cairn_dtype_size(t->dtype),
                             .dtype = t->dtype,
                             .ndim = 2,
                             .dim = {a, d},
                             .stride = {sa, 1}};

    return v;
}

#endif

/* model.h - a model that can be run: forward for training (packed) and for sampling (paged cache), and backward.
 *
 * Both forwards are the same blocks (mla.c, indexer.c, moe.c, mlp.c) on the same ops, over struct cairn_batch; they differ only
 * in where key rows lie. That, and the row invariance of the ops, is why trainer and sampler give equal bits.
 *
 * Nothing here touches tensor memory. One struct cairn_pass owns the activation memory for up to a given number of rows; it is
 * allocated once and reused (no allocation in a step loop; logits have a buffer of their own that grows to the most rows wanted).
 * A pass is bound to the model as it is at creation: the stores stay where they are, the values in them may change. One backward
 * for each forward.
 */
#ifndef CAIRN_MODEL_MODEL_H
#define CAIRN_MODEL_MODEL_H

#include "kernels/backend.h"
#include "model/adapter.h"
#include "model/cache.h"
#include "model/config.h"
#include "model/params.h"

struct cairn_model {
    struct cairn_compute *k; /* borrowed */
    const struct cairn_model_config *config;
    const struct cairn_store *weights;         /* the published weights, borrowed */
    const struct cairn_adapter *adapter;       /* or NULL */
    const struct cairn_store *adapter_weights; /* or NULL */
    int segments;                              /* numerics.segments */
};

/* Rows to run, host arrays, borrowed for the call. */
struct cairn_batch {
    int64_t n;          /* rows (tokens) */
    const int32_t *id;  /* (n) token ids, inside the vocabulary: checked, CAIRN_EDATA */
    const int32_t *pos; /* (n) position inside the sequence */
    const int32_t *seq; /* (n) which sequence of the batch */
    int nseq;
    const int32_t *start; /* (nseq) first row of each sequence; packed: sequences whole, one after the other */
};

/* Activation memory. For training: keeps what the backward needs for max_rows rows; with recompute only the layers' inputs and
 * the index sets are kept and each layer is run again in the backward (same ops, same bits; index sets are not recomputed). */
struct cairn_pass; /* creation: CAIRN_ERECIPE naming the dimension that numerics.segments does not divide */
struct cairn_pass_opts {
    int64_t max_rows;
    int max_seqs;
    int train; /* 1: backward will be called */
    int recompute;
    int entropy; /* logprob also yields entropy */
    int argmax;  /* and the most likely id */
    int experts; /* what the routers choose is kept: cairn_pass_choices */
    int graphs;  /* 1: cached forwards of sizes that come again are recorded and replayed, where the device can (replay.h) */
};
enum cairn_status cairn_pass_create(struct cairn_pass **out, const struct cairn_model *m, const struct cairn_pass_opts *o,
                                    struct cairn_error *err);
void cairn_pass_destroy(struct cairn_pass *p);
/* What cairn_pass_create would take, with buffers for `logits` rows of logits. The model's stores may be shapes only, of its
 * compute handle only the type of activations is looked at. */
enum cairn_status cairn_pass_measure(const struct cairn_model *m, const struct cairn_pass_opts *o, int64_t logits, size_t *bytes,
                                     size_t *logits_bytes, struct cairn_error *err);
size_t cairn_pass_bytes(const struct cairn_pass *p);
/* i32 (layers that route, n rows, experts a token) of the forward just run, layers ascending, until the next call; of a pass made
 * with .experts. Without a layer that routes it has no buffer. */
struct cairn_tensor cairn_pass_choices(const struct cairn_pass *p);
int64_t cairn_pass_replayed(const struct cairn_pass *p); /* cached forwards that were enqueued as a graph */

/* Packed forward. target (n): the id whose log-probability row i must give (the next token), -1: none. Results stay on the
 * device until the next forward: logprob, lse, entropy f32 (n), argmax i32 (n). */
struct cairn_scores {
    struct cairn_tensor logprob, lse, entropy, argmax;
};
enum cairn_status cairn_forward(struct cairn_pass *p, const struct cairn_batch *b, const int32_t *target, float temperature,
                                struct cairn_scores *out, struct cairn_error *err);

/* Adds the gradients of the forward just run to `grads` (full weights; NULL: frozen) and `adapter_grads` (NULL: none), or writes them where
 * the store was renewed (params.h).
 * dlogprob, dentropy: f32 (n) tensors; dentropy may be absent (buf NULL). Order of sums is fixed by the packing. */
enum cairn_status cairn_backward(struct cairn_pass *p, const struct cairn_tensor *dlogprob, const struct cairn_tensor *dentropy,
                                 struct cairn_store *grads, struct cairn_store *adapter_grads, struct cairn_error *err);

/* Paged forward: runs the rows, writes their keys into the cache (pages must have been reserved with cairn_cache_extend), and
 * gives fp32 logits (without temperature) of the rows listed in `want` (nwant rows of the batch). Any mix of prefill chunks and
 * single decode rows of any sequences; rows of one sequence ascending in position, and all earlier positions already cached or
 * in this call. seq holds cache slots. */
enum cairn_status cairn_forward_cached(struct cairn_pass *p, struct cairn_cache *cache, const struct cairn_batch *b,
                                       const int32_t *want, int nwant,
                                       struct cairn_tensor *logits /* f32 (nwant, V), until the next call */,
                                       struct cairn_error *err);
/* The same forward, giving the log-probability of target[i] (-1: none) for every row, as cairn_forward does. Tools and tests: a
 * sampler takes logits and draws. */
enum cairn_status cairn_forward_cached_scores(struct cairn_pass *p, struct cairn_cache *cache, const struct cairn_batch *b,
                                              const int32_t *target, float temperature, struct cairn_scores *out,
                                              struct cairn_error *err);
/* Packed forward that gives logits instead of log-probabilities (fixture_check, the gate): f32 (n, V). */
enum cairn_status cairn_forward_logits(struct cairn_pass *p, const struct cairn_batch *b, struct cairn_tensor *logits,
                                       struct cairn_error *err);

#endif

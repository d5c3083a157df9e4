/* indexer.h - DSA lightning indexer (spec section 6): chooses the keys that a row attends to. Forward only: it is frozen.
 *
 * Full layers own one; shared layers use the set of the nearest full layer before them (IndexShare, spec section 7). In glm5_next it
 * chooses pools of m tokens by one key a pool (spec/model_flash.md, 7.3 and 7.4), and the tokens behind the last whole pool come along.
 */
#ifndef CAIRN_MODEL_INDEXER_H
#define CAIRN_MODEL_INDEXER_H

#include "model/linear.h"

struct cairn_indexer {
    struct cairn_tensor wq_b, wk, norm_g, norm_b, weights; /* (Hi*Di, q_rank), (Di, D), (Di), (Di), (Hi, D) */
    struct cairn_tensor ape, gate;                         /* pools: (m, Di), (Di, D); else absent */
};

struct cairn_indexer_work {
    struct cairn_tensor q;   /* act (N, Hi*Di) */
    struct cairn_tensor raw; /* act (N, Di): keys before their norm */
    struct cairn_tensor k;   /* act (N, Di): the keys of this call, rotated */
    struct cairn_tensor w;   /* f32 (N, Hi) */
    struct cairn_tensor gate, pools, choice; /* pools: act (N, Di); act (N, Di), their keys when packed; i32 (N, index_topk / m) */
};

/* prefix "model.layers.3.self_attn.indexer." */
enum cairn_status cairn_indexer_bind(struct cairn_indexer *l, const struct cairn_model *m, const char *prefix,
                                     struct cairn_error *err);
void cairn_indexer_carve_work(struct cairn_carve *c, const struct cairn_model_config *cfg, enum cairn_dtype act, int64_t n,
                              struct cairn_indexer_work *w);
/* x (N, D) normalised layer input, q_lat (N, q_rank) after its norm; idx i32 (N, T), T with the tail, is written. Writes the keys into layer's
 * place in the cache, if there is one, before it looks at any. */
enum cairn_status cairn_indexer_forward(const struct cairn_call *c, const struct cairn_indexer *l, int layer,
                                        const struct cairn_tensor *x, const struct cairn_tensor *q_lat,
                                        const struct cairn_tensor *idx, const struct cairn_indexer_work *w,
                                        struct cairn_error *err);

#endif

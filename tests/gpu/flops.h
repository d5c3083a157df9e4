/* flops.h - the operations that a model's tokens need, from its configuration: a multiplication and an addition are two, recomputed
 * and padded work is none. Heads attend to min(index_topk, position + 1) keys; the indexer scores positions it has to choose from.
 */
#ifndef TESTS_GPU_FLOPS_H
#define TESTS_GPU_FLOPS_H

#include "model/config.h"

struct flops {
    double forward, backward;
};

/* `lora`: rank of an adapter on every linear layer of a frozen base, 0: all weights are trained. Sequences of `each` tokens. */
static inline struct flops flops_of(const struct cairn_model_config *c, int64_t seqs, int64_t each, int lora)
{
    const double D = (double)c->width, H = c->heads, C = (double)c->kv_rank, R = (double)c->rope, nope = (double)c->nope, v = (double)c->v_dim;
    const double q = (double)c->q_rank, F = (double)c->expert_width, n = (double)(seqs * each), k = c->index_topk;
    double linear = 0, frozen = 0, adapted = 0, keys = 0, scored = 0;
    struct flops f = {0, 0};

    if (c->arch != CAIRN_ARCH_GLM_MOE_DSA)
        return f; /* not counted */
    for (int64_t p = 0; p < each; p++) {
        keys += (double)(p + 1) < k ? (double)(p + 1) : k;
        scored += (double)(p + 1) > k ? (double)(p + 1) : 0;
    }
    for (int i = 0; i < c->layers; i++) {
        double mlp = c->dense[i] ? 3 * D * (double)c->dense_width : (c->experts_per_token + c->shared_experts) * 3 * D * F;
        double rank = lora;

        linear += D * q + q * H * (nope + R) + D * (C + R) + H * (nope + v) * C + H * v * D + mlp;
        if (!c->dense[i])
            linear += D * c->experts;
        adapted += rank * (D + q + q + H * (nope + R) + D + C + R + H * v + D);
        adapted += rank * H * (nope + C + C + v); /* kv_b by head, absorbed */
        adapted += rank * (c->dense[i] ? 3 * (D + (double)c->dense_width) : (c->experts_per_token + c->shared_experts) * 3 * (D + F));
        if (c->indexer[i]) {
            frozen += q * c->index_heads * (double)c->index_dim + D * (double)c->index_dim + D * c->index_heads;
            f.forward += 2 * (double)seqs * scored * c->index_heads * (double)c->index_dim;
        }
        f.forward += 2 * (double)seqs * keys * H * (C + R + C);
        f.backward += 2 * (double)seqs * keys * H * (3 * (C + R) + 2 * C);
    }
    linear += (double)c->vocab * D;
    f.forward += 2 * n * (linear + frozen + adapted);
    f.backward += 2 * n * (linear * (lora ? 1 : 2) + adapted * 2);
    return f;
}

#endif

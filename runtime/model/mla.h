/* mla.h - multi-head latent attention in absorbed form over a sparse set of keys (spec sections 5, 8); forward and backward.
 *
 * q~ = W_UK^T q_nope turns every head's query into the latent space, where one key row [c | k_rope] serves all heads; the result o~
 * is a mix of latents, and o = W_UV o~ brings it back. R is 0 in glm5_next, which has no positions. Training and sampling run this
 * same code: they differ in where key rows lie. The backward of sequences that choose all their keys runs in the heads' own space
 * instead, where the back-end has kernels for that: mathematically the same, 3.3 times fewer operations at 128 + 64 and 128
 * channels. A sequence's length alone decides. A LoRA on kv_b_proj acts unmerged: q~ += gamma A^T B_k^T q_nope, o += gamma B_v A
 * o~.
 */
#ifndef CAIRN_MODEL_MLA_H
#define CAIRN_MODEL_MLA_H

#include "model/indexer.h"
#include "model/linear.h"

struct cairn_mla {
    int layer;
    struct cairn_linear q_a, q_b, kv_a, kv_b, o;
    int q_norm, kv_norm;           /* parameter indexes */
    struct cairn_tensor q_g, kv_g; /* the norms' weights */
    int full;                      /* 1: runs its own indexer */
    struct cairn_indexer indexer;
};

struct cairn_mla_save {                                      /* forward to backward */
    struct cairn_tensor q_a, q_lat, q_rstd;                  /* act (N, q_rank) before and after the norm; f32 (N) */
    struct cairn_tensor q;                                   /* act (N, H * (nope + R)); its rope channels are not rotated */
    struct cairn_tensor kv, kv_rstd;                         /* act (N, C + R) before norm and rotation; f32 (N) */
    struct cairn_tensor rows;                                /* act (N, C + R): keys [c | k_rope] of this call */
    struct cairn_tensor qk;                                  /* act (N, H, C + R): queries [q~ | q_rope] */
    struct cairn_tensor out, lse;                            /* act (N, H, C), f32 (N, H) */
    struct cairn_tensor o;                                   /* act (N, H * v) */
    struct cairn_tensor t_q_a, t_q_b, t_kv_a, t_o, t_k, t_v; /* LoRA's inner rows; t_k, t_v (N * H, rank) of kv_b */
};

struct cairn_mla_work { /* scratch of one call */
    struct cairn_indexer_work indexer;
    struct cairn_tensor d_o, dout, dqk, dq, dq_lat, dq_a, dkv; /* act, shapes of what they are the gradients of */
    struct cairn_tensor dk;                                    /* f32 (V, N, C + R): one part a segment of heads */
    struct cairn_tensor dk_act;                                /* act (N, C + R) where act is not f32 */
    struct cairn_tensor kvb, dkvb, t_kvb; /* act (N, H * (nope + v)): keys and values of all heads, in dout's and dqk's
                                             place where these are as wide; LoRA's inner rows (N, rank) */
    struct cairn_tensor lse;              /* f32 (N, H / V), V > 1: one segment's */
    struct cairn_tensor da;               /* f32 (H, rank, C), V > 1: gradient of kv_b's A by head */
};

/* prefix "model.layers.3.self_attn." */
enum cairn_status cairn_mla_bind(struct cairn_mla *l, const struct cairn_model *m, int layer, const char *prefix,
                                 struct cairn_error *err);
void cairn_mla_carve_save(struct cairn_carve *c, const struct cairn_mla *l, const struct cairn_model_config *cfg,
                          enum cairn_dtype act, int64_t n, struct cairn_mla_save *s);
void cairn_mla_carve_work(struct cairn_carve *c, const struct cairn_mla *l, const struct cairn_model_config *cfg,
                          enum cairn_dtype act, int64_t n, int segments, int train, struct cairn_mla_work *w);

/* x (N, D) normalised, y (N, D) +=. idx i32 (N, T): written by a full layer (unless this is a rerun), read by a shared one. */
enum cairn_status cairn_mla_forward(const struct cairn_call *c, const struct cairn_mla *l, const struct cairn_tensor *x,
                                    const struct cairn_tensor *y, const struct cairn_tensor *idx, const struct cairn_mla_save *s,
                                    const struct cairn_mla_work *w, struct cairn_error *err);
/* dx = the gradient of x. Packed rows only. */
enum cairn_status cairn_mla_backward(const struct cairn_call *c, const struct cairn_mla *l, const struct cairn_tensor *x,
                                     const struct cairn_tensor *dy, const struct cairn_tensor *dx, const struct cairn_tensor *idx,
                                     const struct cairn_mla_save *s, const struct cairn_mla_work *w, struct cairn_error *err);

#endif

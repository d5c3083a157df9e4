/* layer.h - one decoder layer: h = x + MLA(norm(x)), y = h + MLP(norm(h)) (spec section 2); forward and backward.
 *
 * In glm5_next the residual is J streams and each block stands between the two ends of a hyper-connection (hyper.h); the first block
 * is MLA or KDA.
 */
#ifndef CAIRN_MODEL_LAYER_H
#define CAIRN_MODEL_LAYER_H

#include "model/hyper.h"
#include "model/kda.h"
#include "model/mla.h"
#include "model/moe.h"

struct cairn_layer {
    int index, dense, kda;
    int norm1, norm2; /* parameter indexes of input_layernorm, post_attention_layernorm */
    struct cairn_tensor g1, g2;
    struct cairn_hyper_site site[2]; /* streams: around attention, around the MLP */
    struct cairn_mla mla;
    struct cairn_kda_layer linear; /* kda */
    struct cairn_mlp mlp; /* dense */
    struct cairn_moe moe; /* else */
};

struct cairn_layer_save {
    struct cairn_tensor h1, rstd1; /* act (N, D), f32 (N): normalised input of attention */
    struct cairn_tensor mid;       /* act (N, J * D): residual between attention and MLP; absent in sampling (then x itself) */
    struct cairn_tensor h2, rstd2;
    struct cairn_hyper_save site[2];
    struct cairn_mla_save mla;
    struct cairn_kda_save linear;
    struct cairn_mlp_save mlp;
    struct cairn_moe_save moe;
};

struct cairn_layer_work {
    struct cairn_tensor dh; /* act (N, D) */
    struct cairn_hyper_work site;
    struct cairn_mla_work mla;
    struct cairn_kda_work linear;
    struct cairn_mlp_work mlp;
    struct cairn_moe_work moe;
};

enum cairn_status cairn_layer_bind(struct cairn_layer *l, const struct cairn_model *m, int index, struct cairn_error *err);
/* Width of the residual, J * D. */
static inline int64_t cairn_layer_width(const struct cairn_model_config *cfg)
{
    return cfg->streams ? cfg->streams * cfg->width : cfg->width;
}

void cairn_layer_carve_save(struct cairn_carve *c, const struct cairn_layer *l, const struct cairn_model_config *cfg,
                            enum cairn_dtype act, int64_t n, int train, struct cairn_layer_save *s);
void cairn_layer_carve_work(struct cairn_carve *c, const struct cairn_layer *l, const struct cairn_model_config *cfg,
                            enum cairn_dtype act, int64_t n, int segments, int train, struct cairn_layer_work *w);
/* Elements of the call's LoRA scratch dt that this layer wants for n rows. */
int64_t cairn_layer_dt(const struct cairn_layer *l, const struct cairn_model_config *cfg, int64_t n);

/* x, y (N, J * D), J = 1 without streams: the residual before and after; y may be x. In a rerun y is left alone. */
enum cairn_status cairn_layer_forward(const struct cairn_call *c, const struct cairn_layer *l, const struct cairn_tensor *x,
                                      const struct cairn_tensor *y, const struct cairn_tensor *idx,
                                      const struct cairn_layer_save *s, const struct cairn_layer_work *w, struct cairn_error *err);
/* dx (N, J * D): in, the gradient of y; out, of x. Spoils s. */
enum cairn_status cairn_layer_backward(const struct cairn_call *c, const struct cairn_layer *l, const struct cairn_tensor *x,
                                       const struct cairn_tensor *dx, const struct cairn_tensor *idx,
                                       const struct cairn_layer_save *s, const struct cairn_layer_work *w, struct cairn_error *err);

#endif

/* moe.h - mixture of experts: sigmoid router with selection bias, k experts a token, shared experts; forward and backward.
 *
 * y += sum_j gate_j Expert_j(x) + Shared(x) (spec section 10). The rows of all experts lie sorted by expert, so that each
 * projection is one grouped product. Per-expert LoRA acts inside the expert, before the gate. The router's weight gets a gradient,
 * its selection bias never does.
 */
#ifndef CAIRN_MODEL_MOE_H
#define CAIRN_MODEL_MOE_H

#include "model/mlp.h"

struct cairn_moe {
    int router;                         /* parameter index of the router's weight */
    struct cairn_tensor router_w, bias; /* (E, D); f32 (E) */
    struct cairn_linear gate, up, down; /* (E, F, D), (E, F, D), (E, D, F) */
    int shared_experts;
    struct cairn_mlp shared;
};

struct cairn_moe_save {
    struct cairn_tensor choice, gate, prob; /* (N, k): i32, f32, f32 */
    struct cairn_tensor offsets;            /* i32 (E+1) */
    struct cairn_tensor token, where;       /* i32 (N*k), i32 (N, k) */
    struct cairn_tensor x, a, u, h, y;      /* act (N*k, D), three of (N*k, F), (N*k, D): expert rows, sorted */
    struct cairn_tensor t_gate, t_up, t_down;
    struct cairn_mlp_save shared;
};

struct cairn_moe_work {
    struct cairn_tensor r;      /* f32 (N, E): router logits, then their gradient */
    struct cairn_tensor dr;     /* act (N, E): that gradient rounded, where act is not f32 */
    struct cairn_tensor dy, dh; /* act (N*k, D), (N*k, F) */
    struct cairn_tensor dgate;  /* f32 (N, k) */
    struct cairn_mlp_work shared;
};

/* prefix "model.layers.3.mlp." */
enum cairn_status cairn_moe_bind(struct cairn_moe *l, const struct cairn_model *m, const char *prefix, struct cairn_error *err);
void cairn_moe_carve_save(struct cairn_carve *c, const struct cairn_moe *l, const struct cairn_model_config *cfg,
                          enum cairn_dtype act, int64_t n, struct cairn_moe_save *s);
void cairn_moe_carve_work(struct cairn_carve *c, const struct cairn_moe *l, const struct cairn_model_config *cfg,
                          enum cairn_dtype act, int64_t n, int train, struct cairn_moe_work *w);

/* x (N, D) normalised, y (N, D) +=. In a rerun y is left alone. */
enum cairn_status cairn_moe_forward(const struct cairn_call *c, const struct cairn_moe *l, const struct cairn_tensor *x,
                                    const struct cairn_tensor *y, const struct cairn_moe_save *s, const struct cairn_moe_work *w,
                                    struct cairn_error *err);
/* dx = the gradient of x. */
enum cairn_status cairn_moe_backward(const struct cairn_call *c, const struct cairn_moe *l, const struct cairn_tensor *x,
                                     const struct cairn_tensor *dy, const struct cairn_tensor *dx, const struct cairn_moe_save *s,
                                     const struct cairn_moe_work *w, struct cairn_error *err);

#endif

/* mlp.h - SwiGLU: y += W_down (silu(W_gate x) * (W_up x)); the dense layers' MLP and the shared expert, forward and backward. */
#ifndef CAIRN_MODEL_MLP_H
#define CAIRN_MODEL_MLP_H

#include "model/linear.h"

struct cairn_mlp {
    struct cairn_linear gate, up, down;
};

struct cairn_mlp_save {                       /* forward to backward */
    struct cairn_tensor a, u, h;              /* act (N, F) */
    struct cairn_tensor t_gate, t_up, t_down; /* LoRA's inner rows */
};

struct cairn_mlp_work {     /* scratch of one call */
    struct cairn_tensor dh; /* act (N, F) */
};

/* prefix "model.layers.3.mlp." : gate_proj, up_proj, down_proj below it. */
enum cairn_status cairn_mlp_bind(struct cairn_mlp *l, const struct cairn_model *m, const char *prefix, struct cairn_error *err);
void cairn_mlp_carve_save(struct cairn_carve *c, const struct cairn_mlp *l, enum cairn_dtype act, int64_t n,
                          struct cairn_mlp_save *s);
void cairn_mlp_carve_work(struct cairn_carve *c, const struct cairn_mlp *l, enum cairn_dtype act, int64_t n, int train,
                          struct cairn_mlp_work *w);

/* x (N, D) normalised, y (N, D) +=. In a rerun y is left alone. */
enum cairn_status cairn_mlp_forward(const struct cairn_call *c, const struct cairn_mlp *l, const struct cairn_tensor *x,
                                    const struct cairn_tensor *y, const struct cairn_mlp_save *s, struct cairn_error *err);
/* dx = or += the gradient of x. */
enum cairn_status cairn_mlp_backward(const struct cairn_call *c, const struct cairn_mlp *l, const struct cairn_tensor *x,
                                     const struct cairn_tensor *dy, const struct cairn_tensor *dx, int accumulate,
                                     const struct cairn_mlp_save *s, const struct cairn_mlp_work *w, struct cairn_error *err);

#endif

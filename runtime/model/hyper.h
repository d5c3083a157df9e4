/* hyper.h - hyper-connections (mHC, arXiv:2512.24880; spec/model_flash.md, 5): how a block reads from J residual streams and writes back
 * to them; forward and backward.
 *
 * A site is one block's pair of ends. Entering, the streams themselves give (through their norm, a small product, sigmoids and Sinkhorn)
 * the weights with which the block's input is mixed from them; leaving, the block's output goes to each stream by one weight and the
 * streams go to each other by a doubly stochastic matrix. Streams are rows of J * D channels, stream by stream.
 */
#ifndef CAIRN_MODEL_HYPER_H
#define CAIRN_MODEL_HYPER_H

#include "model/linear.h"

struct cairn_hyper_site {
    int fn, base, scale; /* parameter indexes */
    struct cairn_tensor w, b, a; /* (M, J*D), f32 (M), f32 (3); M = J * (J + 2) */
};

struct cairn_hyper_save {            /* forward to backward */
    struct cairn_tensor m, mix, rstd; /* f32 (N, M), (N, M), (N) */
    struct cairn_tensor c, y;         /* act (N, D): the block's input before its norm, and its output */
};

struct cairn_hyper_work {
    struct cairn_tensor dy;   /* act (N, D) */
    struct cairn_tensor dmix; /* f32 (N, M) */
    struct cairn_tensor dm;   /* act (N, M): its gradient rounded, where act is not f32 */
};

/* site "attn" or "ffn" of a layer */
enum cairn_status cairn_hyper_bind(struct cairn_hyper_site *l, const struct cairn_model *m, int layer, const char *site,
                                   struct cairn_error *err);
void cairn_hyper_carve_save(struct cairn_carve *c, const struct cairn_model_config *cfg, enum cairn_dtype act, int64_t n,
                            struct cairn_hyper_save *s);
void cairn_hyper_carve_work(struct cairn_carve *c, const struct cairn_model_config *cfg, enum cairn_dtype act, int64_t n,
                            struct cairn_hyper_work *w);

/* s->c from x (N, J*D); s->y becomes 0, so that a block may add to it. */
enum cairn_status cairn_hyper_enter(const struct cairn_call *c, const struct cairn_hyper_site *l, const struct cairn_tensor *x,
                                    const struct cairn_hyper_save *s, struct cairn_error *err);
/* out (N, J*D), which may be x, from x and s->y. */
enum cairn_status cairn_hyper_leave(const struct cairn_call *c, const struct cairn_tensor *x, const struct cairn_tensor *out,
                                    const struct cairn_hyper_save *s, struct cairn_error *err);
/* dx: in, the gradient of out; out, what of x's goes past the block. w->dy: the gradient of s->y. */
enum cairn_status cairn_hyper_leave_backward(const struct cairn_call *c, const struct cairn_tensor *x, const struct cairn_tensor *dx,
                                             const struct cairn_hyper_save *s, const struct cairn_hyper_work *w, struct cairn_error *err);
/* dx += what comes through the block's input, dc (N, D) being the gradient of s->c, and through the weights. Right after the above. */
enum cairn_status cairn_hyper_enter_backward(const struct cairn_call *c, const struct cairn_hyper_site *l, const struct cairn_tensor *x,
                                             const struct cairn_tensor *dc, const struct cairn_tensor *dx,
                                             const struct cairn_hyper_save *s, const struct cairn_hyper_work *w, struct cairn_error *err);

/* Streams from one (copies times a), and one from streams (their sum times a): x1 (N, D), x (N, J*D). */
enum cairn_status cairn_hyper_spread(const struct cairn_call *c, const struct cairn_tensor *x1, const struct cairn_tensor *x, float a,
                                     struct cairn_error *err);
enum cairn_status cairn_hyper_sum(const struct cairn_call *c, const struct cairn_tensor *x, const struct cairn_tensor *x1, float a,
                                  struct cairn_error *err);

#endif

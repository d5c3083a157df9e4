/* kda.h - Kimi delta attention (arXiv:2510.26692; spec/model_flash.md, 6): a layer whose memory is one matrix a head instead of rows of
 * keys; forward, backward, and decode, which is the same forward with a state behind it.
 *
 * q, k, v go through a short convolution along the sequence; k and v change the state by the delta rule after it has decayed channel by
 * channel; q reads it. Gates: f gives the decay, b the strength of a change, g gates the output after its norm. Training runs whole
 * sequences; sampling keeps, for each cache slot, the convolution's last rows, the state at the last chunk's end and the open chunk
 * (cache.h), so that cutting a sequence into calls changes no bit.
 */
#ifndef CAIRN_MODEL_KDA_H
#define CAIRN_MODEL_KDA_H

#include "model/linear.h"

struct cairn_kda_layer {
    int layer;
    struct cairn_linear in[3];       /* q_proj, k_proj, v_proj */
    struct cairn_linear f_a, f_b, b, g_a, g_b, o;
    int taps[3], a_log, dt_bias, norm; /* parameter indexes */
    struct cairn_tensor w_taps[3];   /* (P, K) views of the convolutions' weights; P = heads * width */
    struct cairn_tensor w_a_log, w_dt_bias, w_norm;
};

struct cairn_kda_save {                 /* forward to backward */
    struct cairn_tensor raw[3], x[3];   /* act (N, P): q, k, v before and after the convolution */
    struct cairn_tensor fa, f, b;       /* act (N, d), (N, P), (N, H) */
    struct cairn_tensor g, beta;        /* f32 (N, P), (N, H): log decay, strength */
    struct cairn_tensor za, z;          /* act (N, d), (N, P): output gate */
    struct cairn_tensor o, rstd, y;     /* act (N, P), f32 (N * H), act (N, P): what was read, its norm, the gated norm's output */
    struct cairn_tensor t_in[3], t_f_a, t_f_b, t_b, t_g_a, t_g_b, t_o; /* LoRA's inner rows */
};

struct cairn_kda_work {
    struct cairn_tensor dy, draw; /* act (N, P) */
    struct cairn_tensor da;       /* act (N, d) */
    struct cairn_tensor dbeta;    /* f32 (N, H) */
};

/* prefix "model.language_model.layers.3.self_attn." */
enum cairn_status cairn_kda_bind(struct cairn_kda_layer *l, const struct cairn_model *m, int layer, const char *prefix,
                                 struct cairn_error *err);
void cairn_kda_carve_save(struct cairn_carve *c, const struct cairn_kda_layer *l, const struct cairn_model_config *cfg,
                          enum cairn_dtype act, int64_t n, struct cairn_kda_save *s);
void cairn_kda_carve_work(struct cairn_carve *c, const struct cairn_model_config *cfg, enum cairn_dtype act, int64_t n, int train,
                          struct cairn_kda_work *w);
/* Elements of the call's LoRA scratch for n rows. */
int64_t cairn_kda_dt(const struct cairn_kda_layer *l, int64_t n);

/* x (N, D) normalised, y (N, D) +=. */
enum cairn_status cairn_kda_forward(const struct cairn_call *c, const struct cairn_kda_layer *l, const struct cairn_tensor *x,
                                    const struct cairn_tensor *y, const struct cairn_kda_save *s, struct cairn_error *err);
/* dx = the gradient of x. Packed rows only. Spoils s. */
enum cairn_status cairn_kda_backward(const struct cairn_call *c, const struct cairn_kda_layer *l, const struct cairn_tensor *x,
                                     const struct cairn_tensor *dy, const struct cairn_tensor *dx, const struct cairn_kda_save *s,
                                     const struct cairn_kda_work *w, struct cairn_error *err);

#endif

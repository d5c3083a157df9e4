/* linear.h - one linear layer y = W x, with its LoRA if it has one: y += gamma B (A x); forward, and backward for x, W, A and B.
 *
 * One helper for plain layers, W (out, in), and for a layer's experts, W (E, out, in), whose rows are sorted by expert. It knows
 * which of its sums a tensor-parallel layout would split, and runs those in segments. kv_b_proj, which is used in absorbed form,
 * is bound here and computed in mla.c.
 */
#ifndef CAIRN_MODEL_LINEAR_H
#define CAIRN_MODEL_LINEAR_H

#include "model/call.h"
#include "model/carve.h"
#include "model/model.h"

/* How tensor parallelism cuts the matrix (the table's cuts say the same for storage). */
enum cairn_linear_cut {
    CAIRN_LINEAR_WHOLE,
    CAIRN_LINEAR_OUT, /* by output (q_b, gate, up): the sum of dx over outputs is what ranks would share */
    CAIRN_LINEAR_IN   /* by input (o_proj, down): the forward's sum over inputs is */
};

struct cairn_linear {
    int param; /* index in the model's table; -1: not bound */
    struct cairn_tensor w;
    const struct cairn_lora *lora; /* or NULL */
    struct cairn_tensor a, b;      /* published A, B */
    enum cairn_linear_cut cut;
};

/* Finds `name` in the model. CAIRN_EBUG if the table lacks it. */
enum cairn_status cairn_linear_bind(struct cairn_linear *l, const struct cairn_model *m, const char *name,
                                    enum cairn_linear_cut cut, struct cairn_error *err);

/* t, the inner rows A x (rows, rank), is kept from forward to backward; absent without LoRA. */
struct cairn_tensor cairn_linear_carve(struct cairn_carve *c, const struct cairn_linear *l, enum cairn_dtype act, int64_t rows);

/* x (N, in), y (N, out); strided. offsets (E+1) for experts, else NULL. accumulate: y +=. y NULL: only t is computed. */
enum cairn_status cairn_linear_forward(const struct cairn_call *c, const struct cairn_linear *l, const struct cairn_tensor *offsets,
                                       const struct cairn_tensor *x, const struct cairn_tensor *y, int accumulate,
                                       const struct cairn_tensor *t, struct cairn_error *err);
/* The same with t given: another layer with the same A was run on the same x. */
enum cairn_status cairn_linear_forward_after(const struct cairn_call *c, const struct cairn_linear *l,
                                             const struct cairn_tensor *offsets, const struct cairn_tensor *x,
                                             const struct cairn_tensor *y, int accumulate, const struct cairn_tensor *t,
                                             struct cairn_error *err);
/* 1: both have a LoRA, with one A between them (PEFT's fused gate_up). */
int cairn_linear_same_a(const struct cairn_linear *l, const struct cairn_linear *other);
/* dx = W^T dy + gamma A^T B^T dy (accumulate: dx +=; NULL: not wanted); adds to the gradients of W, A, B where they are wanted. */
enum cairn_status cairn_linear_backward(const struct cairn_call *c, const struct cairn_linear *l,
                                        const struct cairn_tensor *offsets, const struct cairn_tensor *x,
                                        const struct cairn_tensor *t, const struct cairn_tensor *dy, const struct cairn_tensor *dx,
                                        int accumulate, struct cairn_error *err);
/* Where A's and B's gradients go; absent without adapter gradients. */
struct cairn_tensor cairn_linear_grad_a(const struct cairn_call *c, const struct cairn_linear *l);
struct cairn_tensor cairn_linear_grad_b(const struct cairn_call *c, const struct cairn_linear *l);
/* (rows, rank) of the call's scratch. */
struct cairn_tensor cairn_linear_dt(const struct cairn_call *c, const struct cairn_linear *l, int64_t rows);

#endif

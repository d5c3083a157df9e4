/* params.h - the parameter table: every tensor of a model, its shape, how ranks may share it, where it lies.
 *
 * One table per architecture and configuration, in a fixed order (embedding, layers ascending, final norm, head). Names are
 * HuggingFace's (names.h); a layer's experts are one tensor per projection, "...mlp.experts.gate_proj.weight" (E, out, in). Aliases
 * are names only. The table holds no memory; struct cairn_store gives it some.
 */
#ifndef CAIRN_MODEL_PARAMS_H
#define CAIRN_MODEL_PARAMS_H

#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"
#include "kernels/backend.h"
#include "model/config.h"

/* How a tensor is cut when a layout has more than one rank. The dimension named is cut into equal consecutive parts; heads:
 * the dimension is heads x something and is cut at whole heads. */
enum cairn_cut { CAIRN_CUT_NONE, CAIRN_CUT_DIM0, CAIRN_CUT_DIM1, CAIRN_CUT_DIM2 };

struct cairn_param {
    const char *name;
    int layer;              /* -1: embedding, final norm, head: pipeline ends */
    int ndim;
    int64_t dim[3];
    enum cairn_cut tp, ep;  /* cut by tensor parallel, by expert parallel (ep: always dimension 0 of experts) */
    uint8_t experts;        /* all experts of a layer, (E, out, in) */
    uint8_t keep_f32;       /* stays fp32 in every published form (selection bias, decay of KDA, constants of hyper-connections) */
    uint8_t frozen;         /* never trained: indexer, selection bias (design: not in scope) */
    uint8_t decay;          /* weight decay applies: matrices, not norms */
    uint8_t adaptable;      /* a LoRA may be put on it */
    uint8_t product;        /* its gradient is products alone, the first of which can write all of it */
    size_t offset;          /* bytes into a store of f32, 64-byte aligned */
};

struct cairn_param_table {
    int count;
    struct cairn_param *param;
    int64_t elements;         /* all */
    size_t bytes;             /* of a store, f32, with alignment */
    size_t trainable_begin, trainable_bytes; /* the trainable ones lie together: one flat run for the optimiser */
    void *memory;             /* owned */
};

enum cairn_status cairn_param_table_create(struct cairn_param_table *t, const struct cairn_model_config *c, struct cairn_error *err);
void cairn_param_table_free(struct cairn_param_table *t);
int cairn_param_find(const struct cairn_param_table *t, const char *name); /* index, or -1; hashed */

/* Making a table of another kind (an adapter's): begin, add each parameter in table order (the name is copied, offset is ignored),
 * finish. Offsets: trainable with decay, trainable without, trainable that stay fp32, frozen; each group in table order. Sizes are
 * overflow-checked (CAIRN_EDATA). After a failure the table is to be freed. */
enum cairn_status cairn_param_table_begin(struct cairn_param_table *t, struct cairn_error *err);
enum cairn_status cairn_param_table_add(struct cairn_param_table *t, const struct cairn_param *p, struct cairn_error *err);
enum cairn_status cairn_param_table_finish(struct cairn_param_table *t, struct cairn_error *err);
int64_t cairn_param_count(const struct cairn_param *p); /* elements */
/* Offset of the trainable parameters that stay f32, behind all other trainable ones; where they end if there are none. */
size_t cairn_param_table_kept(const struct cairn_param_table *t);

/* One set of values for a table, in one buffer. Masters, gradients and moments are f32. Published weights have the device's
 * activation type, but for parameters marked keep_f32, which then lie behind the others. */
struct cairn_store {
    const struct cairn_param_table *table; /* borrowed */
    struct cairn_buffer *buf;
    struct cairn_tensor *tensor; /* one view per parameter */
    struct cairn_tensor flat;    /* all trainable parameters with padding between (padding is zero); of narrow weights up to kept's */
    struct cairn_tensor kept;    /* narrow weights: the trainable ones that stay f32, in table order with padding; else absent */
    int64_t *row;                /* NULL; or a share (shares.h): tensor[i] holds the rows of its parameter from row[i] on */
    uint8_t *due;                /* gradients: due[i]: tensor[i] holds nothing yet (cairn_store_renew); NULL: a store of shapes */
};

/* f32. trainable_only: frozen tensors are absent (buf NULL) - gradients, masters of what is trained, moments. Memory starts zeroed. */
enum cairn_status cairn_store_create(struct cairn_store *s, const struct cairn_param_table *t, struct cairn_device *dev, int trainable_only,
                                     struct cairn_error *err);
/* Published weights: all parameters, as k->act; keep_f32 ones f32. */
enum cairn_status cairn_weights_create(struct cairn_store *s, const struct cairn_param_table *t, struct cairn_compute *k,
                                       struct cairn_error *err);
/* The same over memory p of cairn_weights_bytes (base/buffer.h: adopt), which holds the values already or is to get them; freed(arg) is called
 * at its end, and at once on failure. */
size_t cairn_weights_bytes(const struct cairn_param_table *t, const struct cairn_compute *k);
enum cairn_status cairn_weights_adopt(struct cairn_store *s, const struct cairn_param_table *t, struct cairn_compute *k, void *p,
                                      void (*freed)(void *arg), void *arg, struct cairn_error *err);
void cairn_store_free(struct cairn_store *s);
/* Gradients: what is in them counts no more. Nothing is cleared: who comes first writes its tensor instead of adding to it, which saves
 * writing zeros and reading them. Until cairn_store_settle they hold old values. */
void cairn_store_renew(struct cairn_store *s);
/* Is there something in tensor p to add to? 0 (once): it is to be written, all of it. */
int cairn_store_begun(const struct cairn_store *s, int p);
/* Zeroes tensors that nobody wrote since: all, or (products = 0) those that products do not write. */
enum cairn_status cairn_store_settle(const struct cairn_store *s, int products, struct cairn_stream *stream, struct cairn_error *err);
/* Bytes of such a store of that type, without making one (footprint.h). */
size_t cairn_store_bytes(const struct cairn_param_table *t, int trainable_only, enum cairn_dtype type);
/* Published weights that are shapes only, buf NULL: for who measures. cairn_store_free gives them back. */
enum cairn_status cairn_weights_shapes(struct cairn_store *s, const struct cairn_param_table *t, enum cairn_dtype act,
                                       struct cairn_error *err);
/* Random initial values: normal, config.init_range, Philox by (seed, name, element); norms and scales 1, biases 0; indexer matrices
 * with standard deviation 0.1 (near ties otherwise); of KDA: taps uniform within 1/sqrt(taps), dt_bias as Mamba's, A_log 0 (spec,
 * section 6.8). The same on every layout. */
enum cairn_status cairn_store_init(struct cairn_store *s, const struct cairn_model_config *c, uint64_t seed, struct cairn_compute *k,
                                   struct cairn_error *err);

#endif

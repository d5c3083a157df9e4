/* peft.h - adapters as PEFT keeps them: adapter_config.json and adapter_model.safetensors, in and out.
 *
 * Routed experts come in two layouts (spec/model.md, 16.2):
 *   per-expert  "...experts.7.gate_proj.lora_A.weight" [r, in]: what serving engines read; a shared A is written twice
 *   fused       PEFT's target_parameters: "...experts.base_layer.lora_A.weight" [E*r, D] (row e*r + i) with B [2F, r*E] (column i*E + e) for
 *               gate_up_proj, "...experts.lora_A.weight" [E*r, F] with B [D, r*E] for down_proj: what peft itself reads
 * Both are read without loss. What is written, peft 0.21 on transformers 5.17 loads (which takes module names ending in gate_proj, up_proj,
 * down_proj for the experts', so dense and shared MLPs stand in target_parameters); but per-expert files without down_proj, or without experts
 * at all, are for other readers; for glm5_next, whose experts peft does not fuse by itself, all per-expert files are. Refused by name: DoRA and other
 * variants, biases, modules_to_save, fan_in_fan_out, adapters on the router, the indexer, embedding or head, targets that match nothing, tensors that
 * fit no layer, shapes that do not fit the rank, and the transposed expert layout of peft <= 0.18.
 *
 * Memory: headers, and one layer's tensors at a time.
 */
#ifndef CAIRN_MODEL_PEFT_H
#define CAIRN_MODEL_PEFT_H

#include "ckpt/reader.h"
#include "ckpt/safetensors.h"
#include "model/adapter.h"

enum cairn_peft_layout {
    CAIRN_PEFT_AUTO,   /* writing: the layout it came in; else fused where gate and up share A in all layers, else per-expert */
    CAIRN_PEFT_EXPERT, /* per-expert 2-D */
    CAIRN_PEFT_FUSED   /* 3-D; CAIRN_EDATA if gate and up have an A each */
};

struct cairn_peft;

/* Reads headers and configuration of DIR against the base model. */
enum cairn_status cairn_peft_open(struct cairn_peft **out, const char *dir, const struct cairn_param_table *base,
                                  const struct cairn_model_config *c, struct cairn_error *err);
void cairn_peft_close(struct cairn_peft *p);
/* The adapter it describes: caller's from now on (cairn_adapter_free). Once. */
void cairn_peft_take(struct cairn_peft *p, struct cairn_adapter *a);
enum cairn_dtype cairn_peft_dtype(const struct cairn_peft *p); /* of its tensors; F32 if they are mixed */
/* All tensors into a store made for the adapter's table. */
enum cairn_status cairn_peft_load(struct cairn_peft *p, const struct cairn_adapter *a, struct cairn_store *s, struct cairn_compute *k,
                                  struct cairn_error *err);

/* Tensor i of the adapter's table, whole, dense f32 of n elements. */
enum cairn_status cairn_peft_read(struct cairn_peft *p, const struct cairn_adapter *a, int i, float *h_dst, int64_t n, struct cairn_error *err);

/* Gives tensor i of the adapter's table, whole, as f32 (the caller of cairn_peft_save says where from). */
typedef enum cairn_status cairn_peft_fetch_fn(void *arg, int i, float *h_dst, int64_t n, struct cairn_error *err);
struct cairn_peft_save_opts {
    enum cairn_peft_layout layout;
    enum cairn_dtype dtype;        /* F32, BF16 or F16; values that do not fit it exactly are rounded */
    const char *base_name;         /* base_model_name_or_path, or NULL: as it came in, else null */
};
/* Writes both files into dir (made if missing; adapter_config.json last). */
enum cairn_status cairn_peft_save(const char *dir, const struct cairn_adapter *a, const struct cairn_param_table *base,
                                  const struct cairn_model_config *c, cairn_peft_fetch_fn *fetch, void *arg,
                                  const struct cairn_peft_save_opts *opts, struct cairn_error *err);
/* A fetch function over a store: arg is this. */
struct cairn_peft_store {
    const struct cairn_store *store;
    struct cairn_compute *k;
};
enum cairn_status cairn_peft_fetch_store(void *arg, int i, float *h_dst, int64_t n, struct cairn_error *err);
/* Over an artefact that holds the adapter under the table's names. */
struct cairn_peft_reader {
    const struct cairn_adapter *adapter;
    struct cairn_reader *reader;
};
enum cairn_status cairn_peft_fetch_reader(void *arg, int i, float *h_dst, int64_t n, struct cairn_error *err);

#endif

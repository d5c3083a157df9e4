/* policy.h - a policy in memory: configuration, weights and adapter, from whatever directory holds them.
 *
 * What a directory may be:
 *   - a base checkpoint (kind "base", made by `cairn import` or from model.init)
 *   - a policy (kind "policy"): full weights, or the digest of its base and an adapter; the base is given, or found
 *   - a HuggingFace directory (config.json and safetensors)
 * and on top of the first and the last a PEFT adapter.
 *
 * content of a "base":   {"config": {...}, "files": {NAME: {"size", "digest"}}, "fused": [layers], "passed": [...]}
 * content of a "policy": {"config": {...}, "dtype": "bf16"} for full weights,
 *                        {"base": "<logical digest>", "dtype": "bf16", "adapter": {cairn_adapter_to_json}} for an adapter;
 * stages may add members.
 */
#ifndef CAIRN_MODEL_POLICY_H
#define CAIRN_MODEL_POLICY_H

#include "ckpt/reader.h"
#include "model/adapter.h"
#include "model/config.h"
#include "model/params.h"
#include "world/nodestore.h"

struct cairn_policy {
    struct cairn_model_config config;
    struct cairn_param_table table;
    struct cairn_store weights;
    int lora;                            /* 1: the next two are in use */
    struct cairn_adapter adapter;
    struct cairn_store adapter_weights;
    struct cairn_digest digest;          /* logical digest of the artefact; zero for a HuggingFace directory */
    struct cairn_digest base;            /* of the base artefact, zero if there is none */
    int64_t step;                        /* of a policy artefact, else 0 */
};

struct cairn_policy_opts {
    const char *base;    /* directory of the base a policy with an adapter stands on; NULL: DIR/../../base, else the recorded path */
    const char *adapter; /* PEFT directory to put on a model that has none; NULL: none */
    const struct cairn_nodestore_opts *store; /* the weights of a base come from there, or go there (image.h); NULL: neither */
    int quiet;           /* 1: no progress bar */
};

/* CAIRN_EDATA if DIR is none of these; CAIRN_ENOINPUT if it is not committed. A base whose digest is not the one recorded in the
 * policy is refused by name. The store of a base that several policies share may be handed on: see cairn_policy_next. */
enum cairn_status cairn_policy_open(struct cairn_policy *p, const char *dir, const struct cairn_policy_opts *opts, struct cairn_compute *k,
                                    struct cairn_error *err);
/* The same memory with the weights of another policy directory of the same model (same base, same adapter form): for samplers that
 * stay alive. CAIRN_EDATA if it does not fit. */
enum cairn_status cairn_policy_next(struct cairn_policy *p, const char *dir, struct cairn_compute *k, struct cairn_error *err);
/* The same, but the values may come from elsewhere: fill returns 1 if it has put those of the reader's artefact into the store. */
typedef int cairn_policy_fill_fn(void *arg, struct cairn_store *s, struct cairn_reader *r);
enum cairn_status cairn_policy_next_by(struct cairn_policy *p, const char *dir, struct cairn_compute *k, cairn_policy_fill_fn *fill, void *arg,
                                       struct cairn_error *err);
void cairn_policy_close(struct cairn_policy *p);

/* Configuration and adapter of an artefact of kind "base" or "policy" without its tensors. base: reader of the base for a policy with an
 * adapter, NULL if reader is one itself or has full weights. */
enum cairn_status cairn_policy_config(struct cairn_model_config *c, const struct cairn_manifest *m, const struct cairn_manifest *base,
                                      const char *where, struct cairn_error *err);
/* A PEFT directory as a policy artefact (step 0) on a base checkpoint: `cairn import PEFT_DIR --base BASE --out DIR`. Its base's path goes to
 * info.base. *existed = 1: DIR holds it already; something else there: CAIRN_EDATA. No device. */
enum cairn_status cairn_policy_import(const char *dir, const char *peft_dir, const char *base_dir, int *existed, struct cairn_error *err);

/* Opens the base artefact that policy `dir` (reader r) stands on; *out NULL if r has full weights. `base` as in the options. */
enum cairn_status cairn_policy_base(struct cairn_reader **out, struct cairn_reader *r, const char *dir, const char *base, struct cairn_error *err);

#endif

/* hf_save.h - a checkpoint as HuggingFace has it: tensors under their published names, small files, passed-through tensors.
 *
 * Experts are written one by one, or fused where the source had them so. With an adapter, W + gamma * (B A) in fp32, rounded once to the
 * tensor's type; layers without an adapter keep their bits.
 */
#ifndef CAIRN_MODEL_HF_SAVE_H
#define CAIRN_MODEL_HF_SAVE_H

#include "ckpt/reader.h"
#include "model/adapter.h"
#include "model/config.h"
#include "model/params.h"

struct cairn_hf_save_opts {
    const char *base_dir;          /* directory of the base artefact: small files */
    struct cairn_reader *base;     /* the base artefact: names, passed tensors, weights that `weights` does not have */
    struct cairn_reader *weights;  /* full weights of a policy, or NULL: the base's own */
    const struct cairn_adapter *adapter; /* to merge, or NULL */
    struct cairn_reader *adapter_weights;
    int64_t max_bytes;             /* of one file; 0: 5 GB */
    int trained_only;              /* 1: tensors that pass through are left out */
};
struct cairn_hf_saved {
    int64_t tensors, bytes, passed, merged;
};
/* Writes config.json and the other small files, then the tensors (their index, or the one file, last). Polls for a stop. */
enum cairn_status cairn_hf_save(const char *dir, const struct cairn_model_config *c, const struct cairn_param_table *t,
                                const struct cairn_hf_save_opts *opts, struct cairn_hf_saved *saved, struct cairn_error *err);

#endif

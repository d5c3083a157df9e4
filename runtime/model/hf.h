/* hf.h - a HuggingFace directory (config.json and safetensors) seen as the parameter table.
 *
 * Every tensor of the table is looked for before anything is read: missing ones, wrong shapes and types are CAIRN_EDATA by name.
 * Routed experts may lie one by one ("...experts.7.gate_proj.weight") or fused ("...experts.gate_up_proj" [E, 2F, D], gate rows
 * first, and "...experts.down_proj" [E, D, F]), layer by layer. F32, BF16, F16, F64, and block FP8 with its scales (read as
 * BF16, spec/model.md 13.1).
 * Tensors may have other names that mean the same (names.h).
 * Passed through: tensors of layers behind the last decoder layer (MTP), indexer tensors of layers that share an index set, and
 * what lies outside of the decoder layers: of glm_moe_dsa whatever it is, of glm5_next the vision tower. An unknown tensor inside
 * a decoder layer is refused: it would change the numbers and be ignored.
 *
 * Memory: the headers. Reading streams; nothing is mapped.
 */
#ifndef CAIRN_MODEL_HF_H
#define CAIRN_MODEL_HF_H

#include "ckpt/safetensors.h"
#include "model/config.h"
#include "model/params.h"

enum cairn_hf_form {
    CAIRN_HF_WHOLE,   /* one tensor of the table's name */
    CAIRN_HF_EXPERTS, /* one tensor an expert */
    CAIRN_HF_FUSED    /* a part of one fused tensor a layer */
};

struct cairn_hf_param {
    enum cairn_hf_form form;
    enum cairn_dtype dtype; /* as kept: the file's, BF16 for FP8 */
    int fp8;
};

struct cairn_hf {
    char *dir;
    struct cairn_model_config config;
    struct cairn_param_table table;
    struct cairn_st *st;
    struct cairn_hf_param *param;                 /* [table.count] */
    const struct cairn_st_tensor **passed;        /* tensors that are not the table's, by name; scales of FP8 weights are not listed */
    int npassed;
    int64_t tensors, elements, bytes;             /* in the files: all tensors, scales included; elements without scales */
    int64_t mtp_tensors, mtp_elements;            /* among passed: layers >= num_hidden_layers */
    int64_t vision_tensors, vision_elements;      /* among passed: the vision tower */
    int64_t fp8_tensors;                          /* quantised ones, passed ones included */
    int bias_not_f32;                             /* tensors to be kept in fp32 that are stored in a narrower type */
};

/* Headers only. CAIRN_EDATA also for a config.json of another architecture, naming it and what is supported. */
enum cairn_status cairn_hf_open(struct cairn_hf **out, const char *dir, struct cairn_error *err);
void cairn_hf_close(struct cairn_hf *h);

/* Rows [begin, begin + n) of dimension 0 of parameter i (experts: whole experts) into dense host memory as `as`: F32 (exact), or the
 * parameter's own dtype (equal bits). */
enum cairn_status cairn_hf_read(struct cairn_hf *h, int i, int64_t begin, int64_t n, enum cairn_dtype as, void *h_dst,
                                struct cairn_error *err);
/* All of the table into a store made for h->table (or an equal one), as f32. Streams; `what` names the progress bar, NULL: none. */
enum cairn_status cairn_hf_load(struct cairn_hf *h, struct cairn_store *s, struct cairn_compute *k, const char *what, struct cairn_error *err);

/* Name of expert e of a stacked parameter: "a.experts.gate_proj.weight" -> "a.experts.7.gate_proj.weight". 1: written, 0: no stack
 * (or no room). With e < 0 the index is "*". */
int cairn_expert_name(const char *param, int64_t e, char *out, size_t n);

#endif

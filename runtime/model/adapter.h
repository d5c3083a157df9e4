/* adapter.h - LoRA (arXiv:2106.09685) on any linear layer: y = W x + gamma B (A x), A (r, in), B (out, r), gamma = alpha / r.
 *
 * An adapter has a parameter table of its own (A and B tensors, fp32, all trainable), so that stores, optimiser, shards and
 * digests treat it like any other set of parameters. Experts: A (E, r, in), B (E, out, r) in one tensor each. Matrices may be
 * aliased: one A that serves gate and up (PEFT's fused experts) is one parameter with two users and gets the sum of both
 * gradients. Names in the table are PEFT's per-module names without the "base_model.model." prefix, for example
 * "model.layers.3.self_attn.q_b_proj.lora_A.weight", "model.layers.3.mlp.experts.gate_proj.lora_B.weight"; an aliased A is named by
 * its first user ("...experts.gate_up_proj.lora_A.weight" when gate and up share it).
 * On kv_b_proj the adapter acts unmerged, as the two absorbed corrections (q~ += gamma A^T B_k^T q_nope; o += gamma B_v A o~).
 */
#ifndef CAIRN_MODEL_ADAPTER_H
#define CAIRN_MODEL_ADAPTER_H

#include "model/params.h"

struct cairn_lora {          /* one adapted linear layer */
    int param;               /* the base parameter's index */
    int a, b;                /* indexes into the adapter's table; several loras may share an `a` */
    int rank;
    float gamma;
};

struct cairn_adapter_spec {  /* which layers get one: from a recipe or from adapter_config.json */
    int rank;
    double alpha;
    const char *const *targets; /* module names ("q_a_proj", "gate_proj", "experts", ..., "all-linear") or regular expressions; NULL-terminated */
    int alias_gate_up;          /* experts' gate and up share one A (PEFT's fused layout) */
    int use_rslora;
};

struct cairn_adapter {
    struct cairn_param_table table;
    struct cairn_lora *lora;
    int loras;
    int *of_param;              /* [base table count] index into lora, or -1 */
    json_t *peft;               /* adapter_config.json members to write back; owned */
};

/* One layer chosen for an adapter, when the caller knows each by itself (a file, a manifest). */
struct cairn_lora_choice {
    int param;    /* base parameter */
    int rank;
    double gamma;
    int alias;    /* base parameter whose A is used as well: it stands earlier in the list and has no alias itself; -1: own A */
};

/* CAIRN_EDATA / CAIRN_ERECIPE naming a target that matches nothing, a router or an indexer module. */
enum cairn_status cairn_adapter_create(struct cairn_adapter *a, const struct cairn_param_table *base, const struct cairn_model_config *c,
                                       const struct cairn_adapter_spec *spec, struct cairn_error *err);
/* The same from a list, ascending in param. CAIRN_EDATA naming a layer that cannot have one, or aliases that do not fit. */
enum cairn_status cairn_adapter_create_from(struct cairn_adapter *a, const struct cairn_param_table *base, const struct cairn_lora_choice *list,
                                            int n, struct cairn_error *err);
/* What an artefact records of an adapter, and back: {"loras": [{"module", "rank", "gamma", "alias"?}], "peft": {...}}. */
json_t *cairn_adapter_to_json(const struct cairn_adapter *a, const struct cairn_param_table *base); /* NULL without memory */
enum cairn_status cairn_adapter_from_json(struct cairn_adapter *a, const struct cairn_param_table *base, const json_t *v, const char *where,
                                          struct cairn_error *err);
/* Does `target` (a module's name, the end of its path, a part of it, or a regular expression for the whole path) mean `module`?
 * 1 yes, 0 no, -1: the expression is broken (sentence in err). */
int cairn_target_match(const char *target, const char *module, struct cairn_error *err);
void cairn_adapter_free(struct cairn_adapter *a);
/* A Kaiming-uniform (bound sqrt(6 / ((1+5) in)) = 1/sqrt(in)), B zero; Philox by (seed, name, element). */
enum cairn_status cairn_adapter_init(struct cairn_store *s, const struct cairn_adapter *a, uint64_t seed, struct cairn_compute *k,
                                     struct cairn_error *err);

#endif

/* config.h - what a model is: a HuggingFace config.json read by the rules of the models' own code, checked and resolved.
 *
 * Architectures: glm_moe_dsa (GLM-5, 5.1, 5.2, 5.3) and glm5_next (GLM-5.3-Flash; its language model, whose keys stand in
 * text_config or at the top). Anything else is refused by name. The resolved form has no optional fields: which layers are dense,
 * which are linear attention and which run their own indexer stands in lists. Unknown keys are kept (config.json is written back as it
 * was read) and do not matter.
 */
#ifndef CAIRN_MODEL_CONFIG_H
#define CAIRN_MODEL_CONFIG_H

#include <stdint.h>

#include "base/json.h"
#include "base/status.h"

#define CAIRN_MAX_LAYERS 1024
#define CAIRN_MAX_GROUPS 1024 /* of experts */
#define CAIRN_MAX_STOP 16
#define CAIRN_MAX_PLACEHOLDERS 8

enum cairn_arch { CAIRN_ARCH_GLM_MOE_DSA, CAIRN_ARCH_GLM5_NEXT };

struct cairn_model_config {
    enum cairn_arch arch;
    char prefix[32];                    /* of the tensors' names: "model." or "model.language_model." */
    int64_t vocab, width;               /* V, D */
    int layers;                         /* decoder layers; MTP layers are not counted */
    int nextn;                          /* MTP layers in the checkpoint, passed through untouched */
    int64_t dense_width, expert_width;  /* F of dense layers, F of one expert */
    int experts, experts_per_token, shared_experts; /* E, k, number of shared experts (their width is that times expert_width) */
    int n_group, topk_group, norm_topk; /* router */
    float routed_scale;
    int heads;                          /* H */
    int64_t q_rank, kv_rank;            /* q_lora_rank, kv_lora_rank = C */
    int64_t nope, rope, v_dim;          /* per head: qk_nope_head_dim, R, v_head_dim */
    int index_heads, index_topk;
    int64_t index_dim;
    float norm_eps, latent_norm_eps;    /* rms_norm_eps; q_a and kv_a norms (glm_moe_dsa: 1e-6, glm5_next: rms_norm_eps) */
    float rope_theta;
    float swiglu_limit;                 /* clamp of SwiGLU, 0: none */
    int index_pool;                     /* tokens a pool of the indexer, 1: keys are single tokens */
    int streams, stream_iters;          /* hyper-connections: residual streams (0: a plain residual), Sinkhorn iterations */
    float stream_eps;                   /* hc_eps */
    int kda_heads, kda_conv;            /* KDA: heads, taps of the short convolution */
    int64_t kda_dim;                    /* width of a KDA head, keys and values */
    float kda_bound;                    /* lower bound of the log decay, negative */
    int64_t max_positions;
    float init_range;
    int stop[CAIRN_MAX_STOP], stops;    /* eos_token_id, one or a list */
    uint8_t dense[CAIRN_MAX_LAYERS];    /* 1: SwiGLU MLP, 0: experts */
    uint8_t kda[CAIRN_MAX_LAYERS];      /* 1: linear attention (KDA), 0: sparse attention */
    uint8_t indexer[CAIRN_MAX_LAYERS];  /* 1: full (own indexer), 0: shares the nearest full layer before it, or is KDA */
    int pad;                            /* id whose embedding row gets no gradient, -1: none */
    int placeholder[CAIRN_MAX_PLACEHOLDERS], placeholders; /* ids that stand for images and videos: refused in prompts */
    json_t *raw;                        /* the object as read; owned */
};

/* `where` names the file in errors. Errors: CAIRN_EDATA with key and value. Reads the rules of the published configurations:
 * rope dim never from head_dim, theta from rope_parameters / rope_theta / rope_scaling, indexer_types or pattern or freq/offset. */
enum cairn_status cairn_config_parse(struct cairn_model_config *c, const json_t *obj, const char *where, struct cairn_error *err);
/* Width of an index set: index_topk, and with pools the tail of up to index_pool - 1 tokens. */
int64_t cairn_config_index_width(const struct cairn_model_config *c);
/* 1: the id stands for an image or a video, which this program does not see: refused in what people give it. */
int cairn_config_placeholder(const struct cairn_model_config *c, int64_t id);
/* The first key of obj that no configuration of its architecture has, or NULL; *box: "text_config." if it stands there, else "";
 * *near: the nearest that one has, or NULL. For what people write by hand (model.init): there a misspelt key must not be passed over. */
const char *cairn_config_unknown(const json_t *obj, const char **box, const char **near);
/* DIR/config.json */
enum cairn_status cairn_config_load(struct cairn_model_config *c, const char *dir, struct cairn_error *err);
void cairn_config_free(struct cairn_model_config *c);

#endif

/* flash.h - configurations of GLM-5.3-Flash's kind for tests: the two small ones of spec/model_flash.md, section 15, and the published
 * shape; models of them with values that exercise every gate.
 */
#ifndef TESTS_MODEL_FLASH_H
#define TESTS_MODEL_FLASH_H

#include "tiny.h"

#define FLASH_COMMON                                                                                                               \
    "\"model_type\": \"glm5_next\", \"hidden_act\": \"silu\", \"hc_mult\": 4, \"hc_sinkhorn_iters\": 20, \"hc_eps\": 1e-6,"        \
    "\"rms_norm_eps\": 1e-5, \"linear_lower_bound\": -5.0, \"linear_conv_kernel_dim\": 4, \"index_kpool\": 4,"                     \
    "\"index_kpool_always_select_tail\": true, \"n_shared_experts\": 1, \"norm_topk_prob\": true, \"routed_scaling_factor\": 2.5," \
    "\"qk_rope_head_dim\": 0, \"tie_word_embeddings\": false, \"attention_bias\": false, \"max_position_embeddings\": 4096,"       \
    "\"initializer_range\": 0.2, \"eos_token_id\": 1"

/* 1.07 M parameters: L L D D L D, layer 3 shares the set of layer 2, groups of experts, a clamp that fires */
#define FLASH_TINY                                                                                                                                   \
    "{" FLASH_COMMON ", \"pad_token_id\": 1, \"vocab_size\": 320, \"hidden_size\": 64, \"num_hidden_layers\": 6,"                                    \
    "\"layer_types\": [\"linear_attention\", \"linear_attention\", \"deepseek_sparse_attention\", \"deepseek_sparse_attention\","                    \
    "\"linear_attention\", \"deepseek_sparse_attention\"],"                                                                                          \
    "\"indexer_types\": [\"full\", \"full\", \"full\", \"shared\", \"full\", \"full\"],"                                                             \
    "\"mlp_layer_types\": [\"dense\", \"sparse\", \"sparse\", \"sparse\", \"sparse\", \"sparse\"],"                                                  \
    "\"intermediate_size\": 160, \"moe_intermediate_size\": 48, \"n_routed_experts\": 16, \"num_experts_per_tok\": 2,"                               \
    "\"n_group\": 2, \"topk_group\": 1, \"num_attention_heads\": 4, \"qk_nope_head_dim\": 16, \"v_head_dim\": 24,"                                   \
    "\"q_lora_rank\": 48, \"kv_lora_rank\": 32, \"index_n_heads\": 4, \"index_head_dim\": 16, \"index_topk\": 8,"                                    \
    "\"linear_num_heads\": 4, \"linear_head_dim\": 16, \"swiglu_limit\": 0.5}"

/* 32 M parameters, heads as wide as the published ones */
#define FLASH_SMALL                                                                                                                                  \
    "{" FLASH_COMMON ", \"pad_token_id\": 1, \"vocab_size\": 4096, \"hidden_size\": 256, \"num_hidden_layers\": 10,"                                 \
    "\"layer_types\": [\"linear_attention\", \"linear_attention\", \"linear_attention\", \"deepseek_sparse_attention\","                             \
    "\"linear_attention\", \"linear_attention\", \"linear_attention\", \"deepseek_sparse_attention\","                                               \
    "\"deepseek_sparse_attention\", \"linear_attention\"],"                                                                                          \
    "\"indexer_types\": [\"full\", \"full\", \"full\", \"full\", \"full\", \"full\", \"full\", \"full\", \"shared\", \"full\"],"                     \
    "\"mlp_layer_types\": [\"dense\", \"dense\", \"sparse\", \"sparse\", \"sparse\", \"sparse\", \"sparse\", \"sparse\","                            \
    "\"sparse\", \"sparse\"], \"intermediate_size\": 768, \"moe_intermediate_size\": 160, \"n_routed_experts\": 24,"                                 \
    "\"num_experts_per_tok\": 4, \"n_group\": 1, \"topk_group\": 1, \"num_attention_heads\": 4, \"qk_nope_head_dim\": 64,"                           \
    "\"v_head_dim\": 96, \"q_lora_rank\": 128, \"kv_lora_rank\": 96, \"index_n_heads\": 4, \"index_head_dim\": 64,"                                  \
    "\"index_topk\": 64, \"linear_num_heads\": 2, \"linear_head_dim\": 128, \"swiglu_limit\": 10}"

/* Every key, every expert, no clamp: what is chosen never changes, so that differences may be taken. */
#define FLASH_SMOOTH                                                                                                               \
    "{" FLASH_COMMON ", \"vocab_size\": 60, \"hidden_size\": 20, \"num_hidden_layers\": 3,"                                        \
    "\"layer_types\": [\"linear_attention\", \"deepseek_sparse_attention\", \"linear_attention\"],"                                \
    "\"mlp_layer_types\": [\"dense\", \"sparse\", \"sparse\"], \"intermediate_size\": 28, \"moe_intermediate_size\": 12,"          \
    "\"n_routed_experts\": 4, \"num_experts_per_tok\": 4, \"num_attention_heads\": 2, \"qk_nope_head_dim\": 12,"                   \
    "\"v_head_dim\": 10, \"q_lora_rank\": 16, \"kv_lora_rank\": 14, \"index_n_heads\": 2, \"index_head_dim\": 8,"                  \
    "\"index_topk\": 64, \"linear_num_heads\": 2, \"linear_head_dim\": 8, \"swiglu_limit\": 1000}"

/* Small, but with all that FLASH_TINY has: for many tokens in little time. */
#define FLASH_MINI                                                                                                                                   \
    "{" FLASH_COMMON ", \"pad_token_id\": 1, \"vocab_size\": 120, \"hidden_size\": 20, \"num_hidden_layers\": 4,"                                    \
    "\"layer_types\": [\"linear_attention\", \"deepseek_sparse_attention\", \"deepseek_sparse_attention\","                                          \
    "\"linear_attention\"], \"indexer_types\": [\"full\", \"full\", \"shared\", \"full\"],"                                                          \
    "\"mlp_layer_types\": [\"dense\", \"sparse\", \"sparse\", \"sparse\"], \"intermediate_size\": 28,"                                               \
    "\"moe_intermediate_size\": 12, \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"n_group\": 2, \"topk_group\": 1,"                         \
    "\"num_attention_heads\": 2, \"qk_nope_head_dim\": 12, \"v_head_dim\": 10, \"q_lora_rank\": 16, \"kv_lora_rank\": 14,"                           \
    "\"index_n_heads\": 2, \"index_head_dim\": 8, \"index_topk\": 8, \"linear_num_heads\": 2, \"linear_head_dim\": 8,"                               \
    "\"swiglu_limit\": 0.5}"

/* What zai-org/GLM-5.3-Flash publishes, spec section 2 */
#define FLASH_PUBLISHED                                                                                                            \
    "{\"model_type\": \"glm5_next\", \"architectures\": [\"Glm5NextForConditionalGeneration\"], \"image_token_id\": 154854,"       \
    "\"video_token_id\": 154855, \"image_start_token_id\": 154830, \"image_end_token_id\": 154831,"                                \
    "\"video_start_token_id\": 154832, \"video_end_token_id\": 154833, \"vision_config\": {\"depth\": 24}, \"text_config\": {"     \
    "\"model_type\": \"glm5_next_text\", \"vocab_size\": 154880, \"hidden_size\": 4096, \"num_hidden_layers\": 45,"                \
    "\"intermediate_size\": 12288, \"moe_intermediate_size\": 2048, \"n_routed_experts\": 288, \"n_shared_experts\": 1,"           \
    "\"num_experts_per_tok\": 8, \"n_group\": 1, \"topk_group\": 1, \"norm_topk_prob\": true, \"routed_scaling_factor\": 2.5,"     \
    "\"scoring_func\": \"sigmoid\", \"topk_method\": \"noaux_tc\", \"moe_router_dtype\": \"float32\","                             \
    "\"first_k_dense_replace\": 3, \"hidden_act\": \"silu\", \"swiglu_limit\": 10.0, \"num_attention_heads\": 64,"                 \
    "\"num_key_value_heads\": 64, \"q_lora_rank\": 1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 256,"                        \
    "\"qk_rope_head_dim\": 0, \"head_dim\": 0, \"v_head_dim\": 256, \"mla_use_nope\": true, \"attention_bias\": false,"            \
    "\"index_n_heads\": 32, \"index_head_dim\": 128, \"index_topk\": 2048, \"index_kpool\": 4,"                                    \
    "\"index_kpool_always_select_tail\": true, \"index_kpool_compress\": true, \"indexer_rope_interleave\": true,"                 \
    "\"index_share_for_mtp_iteration\": true, \"linear_attn_config\": {\"num_heads\": 64, \"head_dim\": 128,"                      \
    "\"short_conv_kernel_size\": 4, \"gate_lower_bound\": -5.0, \"safe_gate\": true}, \"hc_mult\": 4, \"hc_eps\": 1e-6,"           \
    "\"hc_sinkhorn_iters\": 20, \"mhc\": true, \"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 1048576,"                      \
    "\"initializer_range\": 0.02, \"tie_word_embeddings\": false, \"pad_token_id\": 154820,"                                       \
    "\"eos_token_id\": [154820, 154827, 154829], \"num_nextn_predict_layers\": 1, \"dtype\": \"bfloat16\"}}"

/* A model of `config`, one of the texts above, as tiny_open makes it, with norms around 1 and random constants. */
static inline void flash_open(struct tiny *t, const char *backend, int threads, const char *config, int adapter)
{
    tiny_open(t, backend, threads, config, adapter);
    for (int i = 0; i < t->table.count; i++) {
        const char *name = t->table.param[i].name;
        int64_t n = cairn_param_count(&t->table.param[i]);
        double around = strstr(name, "norm") || strstr(name, "_scale") ? 1 : strstr(name, "dt_bias") ? -1 : 0;
        float *h;

        if (t->table.param[i].ndim > 1 || strstr(name, "e_score"))
            continue;
        tiny_random(&t->k, &t->weights.tensor[i], 21, (uint32_t)i, 0.3);
        h = tiny_get(&t->k, &t->weights.tensor[i]);
        for (int64_t j = 0; j < n; j++)
            h[j] += (float)around;
        OK(cairn_values_set(&t->k, &t->weights.tensor[i], h, n, err));
        OK(cairn_stream_wait(&t->k.stream, err));
        free(h);
    }
}

#endif

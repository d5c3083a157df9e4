/* tiny.h - a small random model for tests: configuration from JSON text, weights and adapter from Philox, batches from lengths.
 *
 * Every dimension differs from the others, so that swapped shapes fail loudly; expert groups limit the choice; a dense layer comes
 * first, layers 2 and 4 share the index set of the layer before them.
 */
#ifndef TESTS_MODEL_TINY_H
#define TESTS_MODEL_TINY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/philox.h"
#include "model/model.h"
#include "model/values.h"

#define OK(call)                                                                                                                   \
    do {                                                                                                                           \
        struct cairn_error err_ = {0}, *err = &err_;                                                                               \
        enum cairn_status st_ = (call);                                                                                            \
        if (st_ != CAIRN_OK)                                                                                                       \
            fail_msg("%s: %s", cairn_status_name(st_), err_.text);                                                                 \
    } while (0)

/* A test on a back-end, which is its state: one group, so that TAP has one plan. */
#define ON(backend, test)                                                                                                          \
    {                                                                                                                              \
#test " on " backend, test, NULL, NULL, (void *)backend                                                                    \
    }

/* %s: overriding members at the end of the object, each with a comma in front */
#define TINY_CONFIG                                                                                                                \
    "{\"model_type\": \"glm_moe_dsa\", \"architectures\": [\"GlmMoeDsaForCausalLM\"], \"hidden_act\": \"silu\","                   \
    "\"attention_bias\": false, \"scoring_func\": \"sigmoid\", \"topk_method\": \"noaux_tc\", \"norm_topk_prob\": true,"           \
    "\"routed_scaling_factor\": 2.5, \"n_shared_experts\": 1, \"tie_word_embeddings\": false, \"rms_norm_eps\": 1e-5,"             \
    "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}, \"rope_interleave\": true,"                       \
    "\"indexer_rope_interleave\": true, \"initializer_range\": 0.2, \"num_nextn_predict_layers\": 0, \"eos_token_id\": 1,"         \
    "\"vocab_size\": 120, \"hidden_size\": 48, \"num_hidden_layers\": 5, \"first_k_dense_replace\": 1,"                            \
    "\"intermediate_size\": 56, \"moe_intermediate_size\": 18, \"n_routed_experts\": 8,"                                           \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"q_lora_rank\": 20, \"kv_lora_rank\": 24,"                           \
    "\"qk_nope_head_dim\": 12, \"qk_rope_head_dim\": 8, \"qk_head_dim\": 20, \"v_head_dim\": 10, \"index_n_heads\": 3,"            \
    "\"index_head_dim\": 16, \"max_position_embeddings\": 4096,"                                                                   \
    "\"indexer_types\": [\"full\", \"full\", \"shared\", \"full\", \"shared\"],"                                                   \
    "\"mlp_layer_types\": [\"dense\", \"sparse\", \"sparse\", \"sparse\", \"sparse\"] %s}"

#define TINY_SPARSE ", \"n_group\": 4, \"topk_group\": 2, \"num_experts_per_tok\": 2, \"index_topk\": 7"
/* every key, every expert: what is chosen never changes, so that differences may be taken */
#define TINY_DENSE ", \"n_group\": 1, \"topk_group\": 1, \"num_experts_per_tok\": 8, \"index_topk\": 64"

struct tiny {
    struct cairn_compute k;
    struct cairn_model_config config;
    struct cairn_param_table table;
    struct cairn_store weights;
    struct cairn_adapter adapter;
    struct cairn_store adapter_weights;
    struct cairn_model m; /* with adapter if asked for */
};

/* Normal values of standard deviation sd into a tensor, by (seed, salt). */
static inline void tiny_random(struct cairn_compute *k, const struct cairn_tensor *t, uint64_t seed, uint32_t salt, double sd)
{
    struct cairn_philox_key key = {.seed = seed, .purpose = CAIRN_PURPOSE_INIT, .step = salt};
    int64_t n = cairn_tensor_count(t);
    float *h = malloc((size_t)n * sizeof *h + 1);

    assert_non_null(h);
    for (int64_t i = 0; i < n; i += 2) {
        uint32_t w[4];
        double z[2];

        cairn_philox(&key, (uint32_t)i, 0, 0, w);
        cairn_normal2(w[0], w[1], z);
        h[i] = (float)(sd * z[0]);
        if (i + 1 < n)
            h[i + 1] = (float)(sd * z[1]);
    }
    OK(cairn_values_set(k, t, h, n, err));
    free(h);
}

static inline uint32_t tiny_draw(uint64_t *counter, uint32_t below)
{
    struct cairn_philox_key key = {.seed = 77, .purpose = CAIRN_PURPOSE_PROBE};
    uint32_t w[4];

    cairn_philox(&key, (uint32_t)*counter, (uint32_t)(*counter >> 32), 1, w);
    ++*counter;
    return w[0] % below;
}

/* backend: as kernels/backend.h has it, with "/bf16" behind it for that activation type. more: members of TINY_CONFIG, or a whole
 * configuration, which begins with a brace. adapter: 1 puts one on every linear layer, gate and up of the experts sharing A, with random A
 * and B. */
static inline void tiny_open(struct tiny *t, const char *backend, int threads, const char *more, int adapter)
{
    static const char *const targets[] = {"all-linear", NULL};
    const char *act = strchr(backend, '/');
    char name[32], text[4096];
    struct cairn_compute_opts o = {.backend = name, .threads = threads, .act = act ? act + 1 : "f32"};
    json_t *json;

    memset(t, 0, sizeof *t);
    snprintf(name, sizeof name, "%.*s", (int)strcspn(backend, "/"), backend);
    if (more[0] == '{')
        snprintf(text, sizeof text, "%s", more);
    else
        snprintf(text, sizeof text, TINY_CONFIG, more);
    OK(cairn_json_parse(&json, text, strlen(text), "tiny", err));
    OK(cairn_config_parse(&t->config, json, "tiny", err));
    json_decref(json);
    OK(cairn_compute_open(&t->k, &o, err));
    OK(cairn_param_table_create(&t->table, &t->config, err));
    OK(cairn_weights_create(&t->weights, &t->table, &t->k, err));
    OK(cairn_store_init(&t->weights, &t->config, 5, &t->k, err));
    for (int i = 0; i < t->table.count; i++) /* selection biases that matter */
        if (strstr(t->table.param[i].name, "e_score_correction_bias"))
            tiny_random(&t->k, &t->weights.tensor[i], 9, (uint32_t)i, 0.1);
    t->m = (struct cairn_model){.k = &t->k, .config = &t->config, .weights = &t->weights, .segments = 1};
    if (!adapter)
        return;
    OK(cairn_adapter_create(&t->adapter, &t->table, &t->config,
                            &(struct cairn_adapter_spec){.rank = 3, .alpha = 6, .targets = targets, .alias_gate_up = 1}, err));
    OK(cairn_weights_create(&t->adapter_weights, &t->adapter.table, &t->k, err));
    for (int i = 0; i < t->adapter.table.count; i++)
        tiny_random(&t->k, &t->adapter_weights.tensor[i], 11, (uint32_t)i, 0.1);
    t->m.adapter = &t->adapter;
    t->m.adapter_weights = &t->adapter_weights;
}

static inline void tiny_close(struct tiny *t)
{
    cairn_store_free(&t->adapter_weights);
    cairn_adapter_free(&t->adapter);
    cairn_store_free(&t->weights);
    cairn_param_table_free(&t->table);
    cairn_config_free(&t->config);
    cairn_compute_close(&t->k);
}

static inline float *tiny_get(struct cairn_compute *k, const struct cairn_tensor *t)
{
    size_t n = (size_t)cairn_tensor_count(t) * sizeof(float);
    float *h = malloc(n + 1);

    assert_non_null(h);
    OK(cairn_values_get(k, t, h, cairn_tensor_count(t), err));
    return h;
}

/* Sequences packed one after the other, targets the next ids. Owned: tiny_batch_free. */
struct tiny_batch {
    struct cairn_batch b;
    int32_t *id, *pos, *seq, *target, *start;
};

static inline struct tiny_batch tiny_batch(int nseq, const int64_t *len, const int32_t *const *ids)
{
    struct tiny_batch t = {0};
    int64_t n = 0, row = 0;

    for (int s = 0; s < nseq; s++)
        n += len[s];
    t.id = calloc((size_t)n * 4 + (size_t)nseq + 1, sizeof *t.id);
    assert_non_null(t.id);
    t.pos = t.id + n;
    t.seq = t.pos + n;
    t.target = t.seq + n;
    t.start = t.target + n;
    for (int s = 0; s < nseq; s++) {
        t.start[s] = (int32_t)row;
        for (int64_t i = 0; i < len[s]; i++, row++) {
            t.id[row] = ids[s][i];
            t.pos[row] = (int32_t)i;
            t.seq[row] = s;
            t.target[row] = i + 1 < len[s] ? ids[s][i + 1] : -1;
        }
    }
    t.b = (struct cairn_batch){.n = n, .id = t.id, .pos = t.pos, .seq = t.seq, .nseq = nseq, .start = t.start};
    return t;
}

static inline void tiny_batch_free(struct tiny_batch *t)
{
    free(t->id);
}

/* x in bf16, ties to even, as f32. */
static inline float nearest_bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, 4);
    u += 0x7fff + (u >> 16 & 1);
    u &= 0xffff0000;
    memcpy(&x, &u, 4);
    return x;
}

#endif

/* heads_small_test.c - the backward in the heads' own space inside a whole model, on a back-end that has it
 * (CAIRN_TEST_BACKEND=cuda: a GPU, or the emulated one): against the latent form; sequences of both kinds in one call and alone, in
 * bits; recomputed.
 */
#define main of_other_tests
int of_other_tests(void);
#include "model_test.c"
#undef main

/* Rows of 16 bytes; index_topk between the lengths, or above them. */
#define HEADS(topk)                                                                                                                \
    "{\"model_type\": \"glm_moe_dsa\", \"hidden_act\": \"silu\", \"attention_bias\": false, \"scoring_func\": \"sigmoid\","        \
    "\"topk_method\": \"noaux_tc\", \"norm_topk_prob\": true, \"routed_scaling_factor\": 2.5, \"n_shared_experts\": 1,"            \
    "\"tie_word_embeddings\": false, \"rms_norm_eps\": 1e-5, \"rope_parameters\": {\"rope_type\": \"default\","                    \
    "\"rope_theta\": 10000.0}, \"rope_interleave\": true, \"indexer_rope_interleave\": true, \"initializer_range\": 0.2,"          \
    "\"num_nextn_predict_layers\": 0, \"eos_token_id\": 1, \"vocab_size\": 120, \"hidden_size\": 48, \"num_hidden_layers\": 3,"    \
    "\"first_k_dense_replace\": 1, \"intermediate_size\": 56, \"moe_intermediate_size\": 24, \"n_routed_experts\": 8,"             \
    "\"n_group\": 4, \"topk_group\": 2, \"num_experts_per_tok\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 4,"       \
    "\"q_lora_rank\": 24, \"kv_lora_rank\": 32, \"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 8, \"qk_head_dim\": 24,"           \
    "\"v_head_dim\": 24, \"index_n_heads\": 3, \"index_head_dim\": 16, \"max_position_embeddings\": 4096,"                         \
    "\"indexer_types\": [\"full\", \"full\", \"shared\"], \"mlp_layer_types\": [\"dense\", \"sparse\", \"sparse\"],"               \
    "\"index_topk\": " topk "}"
#define BOTH  HEADS("17")
#define WHOLE HEADS("64")

static int fits(const struct tiny *t)
{
    const struct cairn_backend *b = t->k.backend;

    return b->attention_heads_fits &&
           b->attention_heads_fits(t->k.dev, t->k.act, (int)t->config.nope, (int)t->config.rope, (int)t->config.v_dim);
}

/* |a - b| over |b| */
static double off(const float *a, const float *b, int64_t n)
{
    double diff = 0, norm = 0;

    for (int64_t i = 0; i < n; i++)
        diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]), norm += (double)b[i] * b[i];
    return sqrt(diff / norm);
}

/* Two ways of rounding in bf16: nearer to each other than either is to the truth. */
static void like_the_latent_form(void **state)
{
    static const char *const config[] = {BOTH, WHOLE};

    for (int i = 0; i < 2; i++) {
        struct tiny t;
        struct tiny_batch b;
        struct result heads, again, latent;

        tiny_open(&t, *state, 1, config[i], 1);
        assert_true(fits(&t));
        b = batch(NSEQ, NULL, (int)t.config.vocab);
        heads = run(&t, &b, 0, 1, 1, 1);
        again = run(&t, &b, 1, 1, 1, 1);
        equal_bits(again.grads, heads.grads, flat_count(&t.table), "recomputed");
        equal_bits(again.adapter_grads, heads.adapter_grads, flat_count(&t.adapter.table), "recomputed, adapter");
        t.k.ops.attention_heads_bwd = NULL;
        latent = run(&t, &b, 0, 1, 1, 1);
        assert_true(off(heads.grads, latent.grads, flat_count(&t.table)) < 0.02);
        assert_true(off(heads.adapter_grads, latent.adapter_grads, flat_count(&t.adapter.table)) < 0.02);
        assert_true(off(heads.grads, latent.grads, flat_count(&t.table)) > 0); /* it was another way */
        result_free(&heads);
        result_free(&again);
        result_free(&latent);
        tiny_batch_free(&b);
        tiny_close(&t);
    }
}

/* Whether its neighbour is long or short: a sequence's dx has the bits that it has alone (test_dx: as rows of the embedding). */
static void alone_and_beside_the_other_kind(void **state)
{
    static const int64_t len[3] = {9, 30, 12};
    struct tiny t;
    int32_t id[3][30];
    const int32_t *ids[3] = {id[0], id[1], id[2]};
    struct tiny_batch all;
    struct result a;
    size_t at;

    tiny_open(&t, *state, 1, BOTH, 0);
    for (int s = 0; s < 3; s++)
        for (int i = 0; i < 30; i++)
            id[s][i] = 10 + s * 30 + i;
    all = tiny_batch(3, len, ids);
    a = run(&t, &all, 0, 1, 0, 1);
    at = (t.table.param[cairn_param_find(&t.table, "model.embed_tokens.weight")].offset - t.table.trainable_begin) / sizeof(float);
    for (int s = 0; s < 3; s++) {
        struct tiny_batch one = tiny_batch(1, len + s, ids + s);
        struct result r = run(&t, &one, 0, 1, 0, 1);

        equal_bits(r.grads + at + id[s][0] * t.config.width, a.grads + at + id[s][0] * t.config.width, len[s] * t.config.width,
                   "dx");
        result_free(&r);
        tiny_batch_free(&one);
    }
    result_free(&a);
    tiny_batch_free(&all);
    tiny_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ON("cuda/bf16", like_the_latent_form), ON("cuda/bf16", alone_and_beside_the_other_kind)};
    const char *name = getenv("CAIRN_TEST_BACKEND");

    (void)of_other_tests;
    if (!name || strcmp(name, "cuda")) {
        printf("1..0 # SKIP no back-end with kernels for heads\n");
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

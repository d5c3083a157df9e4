/* config_test.c - the reading rules of spec/model.md 1.4 as a table: a patch of a good configuration, and what must come of it. */
#include "flash.h"

#include "base/str.h"
#include "model/config.h"

/* The good one with members replaced; null removes. */
static json_t *patched(const char *patch)
{
    char text[4096];
    json_t *o, *p, *v;
    const char *k;

    snprintf(text, sizeof text, TINY_CONFIG, TINY_SPARSE);
    OK(cairn_json_parse(&o, text, strlen(text), "good", err));
    OK(cairn_json_parse(&p, patch, strlen(patch), "patch", err));
    json_object_foreach(p, k, v) {
        if (json_is_string(v) && !strcmp(json_string_value(v), "REMOVED"))
            json_object_del(o, k);
        else
            json_object_set(o, k, v);
    }
    json_decref(p);
    return o;
}

static void mask(const uint8_t *list, int n, char *out)
{
    for (int i = 0; i < n; i++)
        out[i] = list[i] ? '1' : '0';
    out[n] = '\0';
}

static void good(void **state)
{
    static const struct {
        const char *patch;
        int64_t rope;
        float theta;
        const char *dense, *indexer;
        int experts, stops;
        const char *why;
    } t[] = {
        {"{}", 8, 10000, "10000", "11010", 8, 1, "as it is"},
        {"{\"head_dim\": 192}", 8, 10000, "10000", "11010", 8, 1, "head_dim is ignored (5.2 publishes 192)"},
        {"{\"qk_rope_head_dim\": 192}", 8, 10000, "10000", "11010", 8, 1, "qk_head_dim - qk_nope_head_dim wins"},
        {"{\"qk_head_dim\": \"REMOVED\", \"qk_rope_head_dim\": 6}", 6, 10000, "10000", "11010", 8, 1, "fallback"},
        {"{\"num_experts\": 256}", 8, 10000, "10000", "11010", 8, 1, "num_experts is ignored"},
        {"{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 8000000.0}, \"rope_theta\": 5}", 8, 8e6f, "10000", "11010", 8, 1,
         "rope_parameters first"},
        {"{\"rope_parameters\": \"REMOVED\", \"rope_theta\": 500.5}", 8, 500.5f, "10000", "11010", 8, 1, "then the top level"},
        {"{\"rope_parameters\": null, \"rope_scaling\": {\"rope_theta\": 777, \"type\": \"default\"}}", 8, 777, "10000", "11010", 8, 1,
         "then rope_scaling"},
        {"{\"rope_scaling\": null}", 8, 10000, "10000", "11010", 8, 1, "null scaling is plain RoPE"},
        {"{\"mlp_layer_types\": \"REMOVED\", \"first_k_dense_replace\": 3}", 8, 10000, "11100", "11010", 8, 1, "first_k_dense_replace"},
        {"{\"first_k_dense_replace\": 4}", 8, 10000, "10000", "11010", 8, 1, "the list wins over first_k_dense_replace"},
        {"{\"indexer_types\": \"REMOVED\"}", 8, 10000, "10000", "11111", 8, 1, "no indexer keys: all full"},
        {"{\"indexer_types\": null, \"index_topk_pattern\": \"FSFSS\"}", 8, 10000, "10000", "10100", 8, 1, "pattern"},
        {"{\"index_topk_pattern\": \"FSFSS\", \"index_topk_freq\": 2}", 8, 10000, "10000", "11010", 8, 1, "the list wins over the pattern"},
        {"{\"indexer_types\": null, \"index_topk_freq\": 4, \"index_skip_topk_offset\": 1}", 8, 10000, "10000", "10001", 8, 1, "formula, o = 1"},
        {"{\"indexer_types\": null, \"index_topk_freq\": 2, \"index_skip_topk_offset\": 3}", 8, 10000, "10000", "11101", 8, 1, "formula, o = 3"},
        {"{\"eos_token_id\": [3, 5, 7]}", 8, 10000, "10000", "11010", 8, 3, "a list of stop ids"},
        {"{\"eos_token_id\": null}", 8, 10000, "10000", "11010", 8, 0, "none"},
        {"{\"eos_token_id\": \"REMOVED\"}", 8, 10000, "10000", "11010", 8, 0, "no dummy from a class default"},
        {"{\"num_nextn_predict_layers\": 1, \"indexer_types\": [\"full\", \"full\", \"shared\", \"full\", \"shared\", \"full\"]}", 8, 10000, "10000",
         "11010", 8, 1, "an entry for the MTP layer"},
        {"{\"quantization_config\": {\"quant_method\": \"fp8\"}, \"whatever\": [1]}", 8, 10000, "10000", "11010", 8, 1, "unknown keys do not matter"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct cairn_model_config c;
        struct cairn_error e = {0};
        json_t *o = patched(t[i].patch);
        char dense[16], indexer[16];

        if (cairn_config_parse(&c, o, "config.json", &e) != CAIRN_OK)
            fail_msg("%s: %s", t[i].why, e.text);
        mask(c.dense, c.layers, dense);
        mask(c.indexer, c.layers, indexer);
        if (c.rope != t[i].rope || c.rope_theta != t[i].theta || strcmp(dense, t[i].dense) || strcmp(indexer, t[i].indexer) ||
            c.experts != t[i].experts || c.stops != t[i].stops)
            fail_msg("%s: rope %lld, theta %g, dense %s, indexer %s, experts %d, stops %d", t[i].why, (long long)c.rope, c.rope_theta, dense,
                     indexer, c.experts, c.stops);
        assert_true(json_equal(c.raw, o));
        json_decref(o);
        cairn_config_free(&c);
    }
}

/* GLM-5.2's own numbers: 78 layers, f = 4, o = 3 give 21 full layers. */
static void published(void **state)
{
    struct cairn_model_config c;
    json_t *o = patched("{\"num_hidden_layers\": 78, \"indexer_types\": null, \"mlp_layer_types\": null, \"first_k_dense_replace\": 3,"
                        "\"index_topk_freq\": 4, \"index_skip_topk_offset\": 3}");
    int full = 0;

    (void)state;
    OK(cairn_config_parse(&c, o, "x", err));
    for (int i = 0; i < 78; i++) {
        int want = i <= 2 || (i - 2) % 4 == 0;

        assert_int_equal(c.indexer[i], want);
        full += c.indexer[i];
    }
    assert_int_equal(full, 21);
    assert_float_equal(c.latent_norm_eps, 1e-6f, 0);
    assert_float_equal(c.norm_eps, 1e-5f, 0);
    json_decref(o);
    cairn_config_free(&c);
}

static void refused(void **state)
{
    static const struct {
        const char *patch, *says;
    } t[] = {
        {"{\"model_type\": \"glm4_moe\", \"architectures\": [\"Glm4MoeForCausalLM\"]}", "glm4_moe"},
        {"{\"model_type\": \"glm4_moe\"}", "supported: glm_moe_dsa"},
        {"{\"model_type\": \"REMOVED\"}", "model_type"},
        {"{\"hidden_act\": \"gelu\"}", "gelu"},
        {"{\"attention_bias\": true}", "attention_bias"},
        {"{\"tie_word_embeddings\": true}", "tie_word_embeddings"},
        {"{\"rope_interleave\": false}", "rope_interleave"},
        {"{\"scoring_func\": \"softmax\"}", "softmax"},
        {"{\"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 1.0}}", "yarn"},
        {"{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}}", "linear"},
        {"{\"rope_parameters\": \"REMOVED\"}", "rope_theta"},
        {"{\"hidden_size\": \"REMOVED\"}", "hidden_size"},
        {"{\"hidden_size\": 0}", "hidden_size"},
        {"{\"hidden_size\": 4611686018427387904}", "hidden_size"},
        {"{\"hidden_size\": \"48\"}", "hidden_size"},
        {"{\"num_hidden_layers\": 2000}", "num_hidden_layers"},
        {"{\"num_experts_per_tok\": 9}", "num_experts_per_tok"},
        {"{\"n_group\": 3}", "n_group"},
        {"{\"n_group\": 8, \"topk_group\": 2}", "n_group"},
        {"{\"n_routed_experts\": 4096, \"n_group\": 2048, \"topk_group\": 1024}", "n_group"},
        {"{\"topk_group\": 1, \"num_experts_per_tok\": 3}", "num_experts_per_tok"},
        {"{\"qk_head_dim\": 19}", "rotary"},
        {"{\"qk_head_dim\": 12}", "qk_head_dim"},
        {"{\"index_head_dim\": 6}", "index_head_dim"},
        {"{\"mlp_layer_types\": [\"dense\"]}", "mlp_layer_types"},
        {"{\"mlp_layer_types\": [\"dense\", \"sparse\", \"sparse\", \"sparse\", \"odd\"]}", "entry 4"},
        {"{\"indexer_types\": [\"shared\", \"full\", \"full\", \"full\", \"full\"]}", "layer 0"},
        {"{\"indexer_types\": null, \"index_topk_pattern\": \"FFXFF\"}", "letter 2"},
        {"{\"indexer_types\": null, \"index_topk_freq\": 4}", "index_skip_topk_offset"},
        {"{\"mlp_layer_types\": \"REMOVED\", \"moe_layer_freq\": 2}", "moe_layer_freq"},
        {"{\"eos_token_id\": 120}", "eos_token_id"},
        {"{\"eos_token_id\": \"</s>\"}", "eos_token_id"},
        {"{\"rms_norm_eps\": 0}", "rms_norm_eps"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct cairn_model_config c;
        struct cairn_error e = {0};
        json_t *o = patched(t[i].patch);

        if (cairn_config_parse(&c, o, "DIR/config.json", &e) != CAIRN_EDATA)
            fail_msg("accepted: %s", t[i].patch);
        if (!strstr(e.text, t[i].says) || !cairn_starts_with(e.text, "DIR/config.json: "))
            fail_msg("%s: \"%s\" does not say %s", t[i].patch, e.text, t[i].says);
        json_decref(o);
    }
}

/* glm5_next: the published object, with members of text_config replaced. */
static json_t *flash(const char *patch)
{
    json_t *o, *p, *v, *text;
    const char *k;

    OK(cairn_json_parse(&o, FLASH_PUBLISHED, strlen(FLASH_PUBLISHED), "good", err));
    OK(cairn_json_parse(&p, patch, strlen(patch), "patch", err));
    text = json_object_get(o, "text_config");
    json_object_foreach(p, k, v) {
        if (json_is_string(v) && !strcmp(json_string_value(v), "REMOVED"))
            json_object_del(text, k);
        else
            json_object_set(text, k, v);
    }
    json_decref(p);
    return o;
}

static void flash_published(void **state)
{
    struct cairn_model_config c;
    json_t *o = flash("{}");
    int kda = 0, full = 0, dense = 0;

    (void)state;
    OK(cairn_config_parse(&c, o, "x", err));
    for (int i = 0; i < 45; i++) {
        assert_int_equal(c.kda[i], i % 4 != 3);
        assert_int_equal(c.indexer[i], i % 4 == 3);
        kda += c.kda[i];
        full += c.indexer[i];
        dense += c.dense[i];
    }
    assert_true(kda == 34 && full == 11 && dense == 3 && c.nextn == 1);
    assert_string_equal(c.prefix, "model.language_model.");
    assert_true(c.index_pool == 4 && cairn_config_index_width(&c) == 2051 && c.streams == 4 && c.stream_iters == 20);
    assert_true(c.kda_heads == 64 && c.kda_dim == 128 && c.kda_conv == 4 && c.kda_bound == -5);
    assert_true(c.swiglu_limit == 10 && c.rope == 0 && c.latent_norm_eps == 1e-5f && c.pad == 154820 && c.stops == 3);
    assert_true(c.placeholders == 6 && c.placeholder[0] == 154854);
    json_decref(o);
    cairn_config_free(&c);
}

static void flash_rules(void **state)
{
    static const struct {
        const char *patch, *says; /* NULL: accepted */
    } t[] = {
        {"{\"linear_attn_config\": \"REMOVED\", \"linear_num_heads\": 8, \"linear_lower_bound\": -2.5}", NULL},
        {"{\"linear_num_heads\": 8}", NULL}, /* linear_attn_config wins */
        {"{\"n_routed_experts\": \"REMOVED\", \"num_local_experts\": 288}", NULL},
        {"{\"qk_rope_head_dim\": 64}", "qk_rope_head_dim"},
        {"{\"qk_head_dim\": 320}", "qk_head_dim"},
        {"{\"index_topk\": 2047}", "index_kpool"},
        {"{\"num_key_value_heads\": 8}", "num_key_value_heads"},
        {"{\"q_lora_rank\": null}", "q_lora_rank"},
        {"{\"index_kpool_always_select_tail\": false}", "always_select_tail"},
        {"{\"linear_attn_config\": null, \"linear_lower_bound\": null}", "softplus"},
        {"{\"linear_attn_config\": null, \"linear_lower_bound\": -50}", "-5 to below 0"},
        {"{\"layer_types\": [\"linear_attention\"]}", "layer_types"},
        {"{\"num_hidden_layers\": 2, \"layer_types\": [\"linear_attention\", \"sliding\"]}", "entry 1"},
        {"{\"num_hidden_layers\": 2, \"num_nextn_predict_layers\": 0, \"layer_types\": [\"linear_attention\", \"full_attention\"],"
         "\"indexer_types\": [\"full\", \"shared\"]}", "layer 1 shares"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct cairn_model_config c;
        struct cairn_error e = {0};
        json_t *o = flash(t[i].patch);
        enum cairn_status st = cairn_config_parse(&c, o, "x", &e);

        if (st != (t[i].says ? CAIRN_EDATA : CAIRN_OK) || (t[i].says && !strstr(e.text, t[i].says)))
            fail_msg("%s: %s", t[i].patch, st == CAIRN_OK ? "accepted" : e.text);
        if (st == CAIRN_OK) {
            assert_int_equal(c.kda_heads, i == 0 ? 8 : 64);
            assert_true(c.kda_bound == (i == 0 ? -2.5f : -5.0f) && c.experts == 288);
            cairn_config_free(&c);
        }
        json_decref(o);
    }
}

/* Misspelt keys of hand-written configurations, with where they stand and what they were to be. */
static void unknown_keys(void **state)
{
    static const struct {
        const char *patch, *key, *near;
    } t[] = {{"{}", NULL, NULL}, {"{\"hc_multi\": 4}", "hc_multi", "hc_mult"}, {"{\"rope_theta\": 1}", "rope_theta", NULL}};

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        json_t *o = flash(t[i].patch);
        const char *box, *near, *key = cairn_config_unknown(o, &box, &near);

        if (!t[i].key) {
            assert_null(key);
        } else {
            assert_string_equal(key, t[i].key);
            assert_string_equal(box, "text_config.");
            if (t[i].near)
                assert_string_equal(near, t[i].near);
        }
        json_decref(o);
    }
}

static void files(void **state)
{
    struct cairn_model_config c;
    struct cairn_error e = {0};

    (void)state;
    OK(cairn_config_load(&c, "tests/fixtures/models/glm52-tiny", err));
    assert_int_equal(c.layers, 9);
    assert_int_equal(c.vocab, 320);
    assert_int_equal(c.rope, 16);
    assert_true(c.rope_theta == 8e6f);
    assert_int_equal(c.indexer[5], 0);
    assert_int_equal(c.indexer[6], 1);
    cairn_config_free(&c);
    assert_int_equal(cairn_config_load(&c, "tests/fixtures/models", &e), CAIRN_EDATA);
    assert_non_null(strstr(e.text, "config.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good),
        cmocka_unit_test(published),
        cmocka_unit_test(refused),
        cmocka_unit_test(flash_published),
        cmocka_unit_test(flash_rules),
        cmocka_unit_test(unknown_keys),
        cmocka_unit_test(files),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

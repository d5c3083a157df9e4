/* config_test.c - the reading rules of spec/model.md 1.4 as a table: a patch of a good configuration, and what must come of it. */
#include "tiny.h"

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
        {"{\"model_type\": \"glm5_next\", \"architectures\": [\"Glm5NextForConditionalGeneration\"]}", "glm5_next"},
        {"{\"model_type\": \"glm5_next\"}", "supported: glm_moe_dsa"},
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
        cmocka_unit_test(files),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

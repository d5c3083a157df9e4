/* params_test.c - counts of the published models, the layout of stores, and the statistics of initial values. */
#include "flash.h"

#include <math.h>

/* GLM-5.1's configuration (spec/model.md, 1.2), as far as sizes go. */
#define GLM51                                                                                                                  \
    "{\"model_type\": \"glm_moe_dsa\", \"vocab_size\": 154880, \"hidden_size\": 6144, \"num_hidden_layers\": 78,"               \
    "\"num_nextn_predict_layers\": 1, \"intermediate_size\": 12288, \"moe_intermediate_size\": 2048, \"first_k_dense_replace\": 3," \
    "\"n_routed_experts\": 256, \"n_shared_experts\": 1, \"num_experts_per_tok\": 8, \"num_attention_heads\": 64,"              \
    "\"q_lora_rank\": 2048, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 192, \"qk_head_dim\": 256, \"v_head_dim\": 256,"       \
    "\"index_n_heads\": 32, \"index_head_dim\": 128, \"index_topk\": 2048, \"rope_parameters\": {\"rope_theta\": 1000000} %s}"

static void create(struct cairn_model_config *c, struct cairn_param_table *t, const char *format, const char *more)
{
    char text[4096];
    json_t *o;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(text, sizeof text, format, more);
#pragma GCC diagnostic pop
    OK(cairn_json_parse(&o, text, strlen(text), "x", err));
    OK(cairn_config_parse(c, o, "x", err));
    json_decref(o);
    OK(cairn_param_table_create(t, c, err));
}

/* Numbers of spec/model.md, 1.3 and 20, which come from published checkpoints. */
static void published_counts(void **state)
{
    static const struct {
        const char *more;
        int64_t parameters, tensors; /* tensors as files have them: experts one by one, without MTP */
    } t[] = {{"", 743911199232, 59079}, {", \"index_topk_freq\": 4, \"index_skip_topk_offset\": 3", 743377000704, 59079 - 285}};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct cairn_model_config c;
        struct cairn_param_table p;
        int64_t tensors = 0, biases = 0, sum = 0;

        create(&c, &p, GLM51, t[i].more);
        for (int j = 0; j < p.count; j++) {
            tensors += p.param[j].ndim == 3 ? p.param[j].dim[0] : 1;
            biases += p.param[j].keep_f32 ? cairn_param_count(&p.param[j]) : 0;
            sum += cairn_param_count(&p.param[j]);
        }
        assert_int_equal(biases, 19200);
        assert_int_equal(sum, p.elements);
        assert_int_equal(p.elements - biases, t[i].parameters);
        assert_int_equal(tensors, t[i].tensors);
        cairn_param_table_free(&p);
        cairn_config_free(&c);
    }
}

/* Numbers of spec/model_flash.md, 1, 14.6 and 15. fp32 constants: 4 hyper-connections' and KDA's 2 a layer, and the selection biases. */
static void flash_counts(void **state)
{
    static const struct {
        const char *config;
        int64_t parameters, tensors, kept;
    } t[] = {
        {FLASH_PUBLISHED, 313326811966, 34 * 15 + 11 * 14 + 42 * (1736 - 867) + 3 * 3 + 45 * 8 + 3, 45 * 4 + 34 * 2 + 42},
        {FLASH_TINY, 1069440, 0, 6 * 4 + 3 * 2 + 5},
        {FLASH_SMALL, 32064010, 0, 10 * 4 + 7 * 2 + 8},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct cairn_model_config c;
        struct cairn_param_table p;
        int64_t tensors = 0, kept = 0;

        create(&c, &p, "%s", t[i].config);
        for (int j = 0; j < p.count; j++) {
            tensors += p.param[j].experts ? p.param[j].dim[0] : 1;
            kept += p.param[j].keep_f32;
        }
        assert_int_equal(p.elements, t[i].parameters);
        if (t[i].tensors)
            assert_int_equal(tensors, t[i].tensors);
        assert_int_equal(kept, t[i].kept);
        cairn_param_table_free(&p);
        cairn_config_free(&c);
    }
}

static void cuts(void **state)
{
    static const struct {
        const char *name;
        int ndim;
        int64_t dim[3];
        enum cairn_cut tp, ep;
        int frozen, decay, adaptable;
    } t[] = {
        {"model.embed_tokens.weight", 2, {154880, 6144}, CAIRN_CUT_DIM0, CAIRN_CUT_NONE, 0, 1, 0},
        {"lm_head.weight", 2, {154880, 6144}, CAIRN_CUT_DIM0, CAIRN_CUT_NONE, 0, 1, 0},
        {"model.norm.weight", 1, {6144}, CAIRN_CUT_NONE, CAIRN_CUT_NONE, 0, 0, 0},
        {"model.layers.0.self_attn.q_a_proj.weight", 2, {2048, 6144}, CAIRN_CUT_NONE, CAIRN_CUT_NONE, 0, 1, 1},
        {"model.layers.0.self_attn.q_b_proj.weight", 2, {16384, 2048}, CAIRN_CUT_DIM0, CAIRN_CUT_NONE, 0, 1, 1},
        {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight", 2, {576, 6144}, CAIRN_CUT_NONE, CAIRN_CUT_NONE, 0, 1, 1},
        {"model.layers.0.self_attn.kv_a_layernorm.weight", 1, {512}, CAIRN_CUT_NONE, CAIRN_CUT_NONE, 0, 0, 0},
        {"model.layers.0.self_attn.kv_b_proj.weight", 2, {28672, 512}, CAIRN_CUT_DIM0, CAIRN_CUT_NONE, 0, 1, 1},
        {"model.layers.0.self_attn.o_proj.weight", 2, {6144, 16384}, CAIRN_CUT_DIM1, CAIRN_CUT_NONE, 0, 1, 1},
        {"model.layers.0.self_attn.indexer.wq_b.weight", 2, {4096, 2048}, CAIRN_CUT_NONE, CAIRN_CUT_NONE, 1, 0, 0},
        {"model.layers.0.self_attn.indexer.k_norm.bias", 1, {128}, CAIRN_CUT_NONE, CAIRN_CUT_NONE, 1, 0, 0},
        {"model.layers.0.mlp.down_proj.weight", 2, {6144, 12288}, CAIRN_CUT_DIM1, CAIRN_CUT_NONE, 0, 1, 1},
        {"model.layers.3.mlp.gate.weight", 2, {256, 6144}, CAIRN_CUT_NONE, CAIRN_CUT_NONE, 0, 1, 0},
        {"model.layers.3.mlp.gate.e_score_correction_bias", 1, {256}, CAIRN_CUT_NONE, CAIRN_CUT_NONE, 1, 0, 0},
        {"model.layers.3.mlp.experts.up_proj.weight", 3, {256, 2048, 6144}, CAIRN_CUT_DIM1, CAIRN_CUT_DIM0, 0, 1, 1},
        {"model.layers.3.mlp.experts.down_proj.weight", 3, {256, 6144, 2048}, CAIRN_CUT_DIM2, CAIRN_CUT_DIM0, 0, 1, 1},
        {"model.layers.3.mlp.shared_experts.gate_proj.weight", 2, {2048, 6144}, CAIRN_CUT_DIM0, CAIRN_CUT_NONE, 0, 1, 1},
        {"model.language_model.layers.0.self_attn.q_proj.weight", 2, {8192, 4096}, CAIRN_CUT_DIM0, CAIRN_CUT_NONE, 0, 1, 1},
        {"model.language_model.layers.0.self_attn.q_conv1d.weight", 3, {8192, 1, 4}, CAIRN_CUT_DIM0, CAIRN_CUT_NONE, 0, 0, 0},
        {"model.language_model.layers.0.self_attn.f_a_proj.weight", 2, {128, 4096}, CAIRN_CUT_NONE, CAIRN_CUT_NONE, 0, 1, 1},
        {"model.language_model.layers.0.self_attn.A_log", 1, {64}, CAIRN_CUT_DIM0, CAIRN_CUT_NONE, 0, 0, 0},
        {"model.language_model.layers.0.self_attn.dt_bias", 1, {8192}, CAIRN_CUT_DIM0, CAIRN_CUT_NONE, 0, 0, 0},
        {"model.language_model.layers.0.self_attn.o_proj.weight", 2, {4096, 8192}, CAIRN_CUT_DIM1, CAIRN_CUT_NONE, 0, 1, 1},
        {"model.language_model.layers.3.self_attn.o_proj.weight", 2, {4096, 16384}, CAIRN_CUT_DIM1, CAIRN_CUT_NONE, 0, 1, 1},
        {"model.language_model.layers.3.self_attn.indexer.index_kpool_compress_ape", 2, {4, 128}, CAIRN_CUT_NONE, CAIRN_CUT_NONE, 1, 0, 0},
        {"model.language_model.layers.3.hc_ffn_fn", 2, {24, 16384}, CAIRN_CUT_NONE, CAIRN_CUT_NONE, 0, 1, 0},
        {"model.language_model.layers.3.hc_ffn_scale", 1, {3}, CAIRN_CUT_NONE, CAIRN_CUT_NONE, 0, 0, 0},
    };
    struct cairn_model_config c, flash;
    struct cairn_param_table p, q5;

    (void)state;
    create(&c, &p, GLM51, "");
    create(&flash, &q5, "%s", FLASH_PUBLISHED);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        const struct cairn_param_table *in = strstr(t[i].name, "language_model") ? &q5 : &p;
        int j = cairn_param_find(in, t[i].name);
        const struct cairn_param *q = &in->param[j];

        if (j < 0)
            fail_msg("no %s", t[i].name);
        if (q->ndim != t[i].ndim || memcmp(q->dim, t[i].dim, sizeof q->dim) || q->tp != t[i].tp || q->ep != t[i].ep || q->frozen != t[i].frozen ||
            q->decay != t[i].decay || q->adaptable != t[i].adaptable)
            fail_msg("%s: ndim %d (%lld,%lld,%lld) tp %d ep %d frozen %d decay %d adaptable %d", t[i].name, q->ndim, (long long)q->dim[0],
                     (long long)q->dim[1], (long long)q->dim[2], q->tp, q->ep, q->frozen, q->decay, q->adaptable);
    }
    assert_int_equal(cairn_param_find(&p, "model.layers.78.mlp.gate.weight"), -1);
    assert_int_equal(cairn_param_find(&p, ""), -1);
    cairn_param_table_free(&p);
    cairn_config_free(&c);
    cairn_param_table_free(&q5);
    cairn_config_free(&flash);
}

/* Trainable ones first, those with decay before those without; no overlap; aligned; the order of the table is the order of names. */
static void layout(void **state)
{
    struct tiny t;
    size_t end = 0;
    int seen_plain = 0;

    tiny_open(&t, *state, 1, TINY_SPARSE, 0);
    assert_int_equal(t.table.trainable_begin, 0);
    assert_string_equal(t.table.param[0].name, "model.embed_tokens.weight");
    assert_string_equal(t.table.param[t.table.count - 1].name, "lm_head.weight");
    for (int group = 0; group < 3; group++)
        for (int i = 0; i < t.table.count; i++) {
            const struct cairn_param *p = &t.table.param[i];

            if ((p->frozen ? 2 : p->decay ? 0 : 1) != group)
                continue;
            seen_plain += group == 1;
            assert_int_equal(p->offset % 64, 0);
            assert_true(p->offset >= end && p->offset < end + 64);
            end = p->offset + (size_t)cairn_param_count(p) * 4;
            assert_true((end <= t.table.trainable_bytes) == (group < 2));
            assert_int_equal(t.weights.tensor[i].offset, p->offset);
        }
    assert_true(seen_plain > 10);
    assert_true(end <= t.table.bytes);
    tiny_close(&t);
}

static void stores(void **state)
{
    struct tiny t;
    struct cairn_store g;
    float *flat;

    tiny_open(&t, *state, 1, TINY_SPARSE, 0);
    OK(cairn_store_create(&g, &t.table, t.k.dev, 1, err));
    for (int i = 0; i < t.table.count; i++)
        assert_int_equal(g.tensor[i].buf == NULL, t.table.param[i].frozen);
    flat = tiny_get(&t.k, &g.flat);
    for (int64_t i = 0; i < cairn_tensor_count(&g.flat); i++)
        assert_true(flat[i] == 0);
    free(flat);
    /* the flat view is the parameters: what is written through one is read through the other */
    tiny_random(&t.k, &g.tensor[3], 1, 2, 1.0);
    flat = tiny_get(&t.k, &g.flat);
    {
        float *x = tiny_get(&t.k, &g.tensor[3]);

        assert_memory_equal(flat + t.table.param[3].offset / 4, x, cairn_tensor_bytes(&g.tensor[3]));
        free(x);
    }
    free(flat);
    cairn_store_free(&g);
    tiny_close(&t);
}

/* Mean, standard deviation and kurtosis of n >= 1000 normal values, within six standard errors. */
static void check_normal(const char *name, const float *x, int64_t n, double sd)
{
    double mean = 0, m2 = 0, m4 = 0;

    for (int64_t i = 0; i < n; i++)
        mean += x[i];
    mean /= (double)n;
    for (int64_t i = 0; i < n; i++) {
        double d = (x[i] - mean) * (x[i] - mean);

        m2 += d;
        m4 += d * d;
    }
    m2 /= (double)n;
    m4 /= (double)n;
    if (fabs(mean) > 6 * sd / sqrt((double)n) || fabs(sqrt(m2) / sd - 1) > 6 / sqrt(2.0 * (double)n) ||
        fabs(m4 / (m2 * m2) - 3) > 6 * sqrt(24.0 / (double)n))
        fail_msg("%s: mean %g, standard deviation %g (wanted %g), kurtosis %g", name, mean, sqrt(m2), sd, m4 / (m2 * m2));
}

static void initial_values(void **state)
{
    struct tiny t;
    struct cairn_store again, other;
    int checked = 0;

    tiny_open(&t, *state, 1, TINY_SPARSE, 0);
    OK(cairn_store_create(&again, &t.table, t.k.dev, 1, err));
    OK(cairn_store_create(&other, &t.table, t.k.dev, 0, err));
    OK(cairn_store_init(&t.weights, &t.config, 5, &t.k, err));
    OK(cairn_store_init(&again, &t.config, 5, &t.k, err));
    OK(cairn_store_init(&other, &t.config, 6, &t.k, err));
    for (int i = 0; i < t.table.count; i++) {
        const struct cairn_param *p = &t.table.param[i];
        int64_t n = cairn_param_count(p);
        float *x = tiny_get(&t.k, &t.weights.tensor[i]), *y = tiny_get(&t.k, &other.tensor[i]);
        double sd = strstr(p->name, ".indexer.") ? 0.1 : 0.2;

        if (p->ndim == 1) {
            for (int64_t j = 0; j < n; j++)
                assert_true(x[j] == (strstr(p->name, "bias") ? 0.0f : 1.0f));
        } else {
            assert_memory_not_equal(x, y, (size_t)n * 4);
            if (n >= 1000) {
                check_normal(p->name, x, n, sd);
                checked++;
            }
        }
        if (again.tensor[i].buf) { /* the same for a store of other extent */
            float *z = tiny_get(&t.k, &again.tensor[i]);

            assert_memory_equal(x, z, (size_t)n * 4);
            free(z);
        }
        free(x);
        free(y);
    }
    assert_true(checked > 20);
    { /* two tensors of one shape are not alike */
        int a = cairn_param_find(&t.table, "model.layers.1.mlp.experts.gate_proj.weight"),
            b = cairn_param_find(&t.table, "model.layers.1.mlp.experts.up_proj.weight");
        float *x = tiny_get(&t.k, &t.weights.tensor[a]), *y = tiny_get(&t.k, &t.weights.tensor[b]);

        for (int j = 0; j < 64; j++)
            assert_true(x[j] != y[j]);
        free(x);
        free(y);
    }
    cairn_store_free(&again);
    cairn_store_free(&other);
    tiny_close(&t);
}

static void too_large(void **state)
{
    struct cairn_param_table t;
    struct cairn_error e = {0};
    struct cairn_param p = {.name = "huge", .ndim = 3, .dim = {INT64_C(1) << 21, INT64_C(1) << 21, INT64_C(1) << 21}};

    (void)state;
    OK(cairn_param_table_begin(&t, err));
    assert_int_equal(cairn_param_table_add(&t, &p, &e), CAIRN_EDATA);
    p = (struct cairn_param){.name = "empty", .ndim = 1, .dim = {0}};
    assert_int_equal(cairn_param_table_add(&t, &p, &e), CAIRN_EDATA);
    p = (struct cairn_param){.name = "half", .ndim = 2, .dim = {INT64_C(1) << 30, INT64_C(1) << 30}};
    OK(cairn_param_table_add(&t, &p, err));
    p.name = "other half";
    OK(cairn_param_table_add(&t, &p, err));
    assert_int_equal(cairn_param_table_finish(&t, &e), CAIRN_EDATA);
    assert_non_null(strstr(e.text, "other half"));
    cairn_param_table_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_counts),
        cmocka_unit_test(flash_counts),
        cmocka_unit_test(cuts),
        ON("cpu", layout),
        ON("cpu", stores),
        ON("guard", stores),
        ON("cpu", initial_values),
        ON("guard", initial_values),
        cmocka_unit_test(too_large),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

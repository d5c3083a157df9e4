/* adapter_test.c - choosing layers by names and expressions, aliases, cuts, the recorded form, initial values. */
#include "flash.h"

#include <math.h>

#include "model/adapter.h"

static int count_loras(const struct cairn_adapter *a, const struct cairn_param_table *t, const char *part)
{
    int n = 0;

    for (int i = 0; i < a->loras; i++)
        n += strstr(t->param[a->lora[i].param].name, part) != NULL;
    return n;
}

/* The tiny model: layer 0 dense, 1..4 sparse. */
static void targets(void **state)
{
    static const struct {
        const char *target[4];
        int loras; /* -1: refused */
        const char *says, *why;
    } t[] = {
        {{"q_a_proj"}, 5, NULL, "one a layer"},
        {{"q_a_proj", "q_a_proj"}, 5, NULL, "twice is once"},
        {{"gate_proj"}, 9, NULL, "dense, shared experts and experts"},
        {{"experts"}, 12, NULL, "gate, up, down of routed experts"},
        {{"shared_experts"}, 12, NULL, "not the routed ones"},
        {{"experts.down_proj"}, 4, NULL, "end of a path"},
        {{"gate_up_proj"}, 8, NULL, "PEFT's fused name"},
        {{"self_attn"}, 25, NULL, "a block, without its indexer"},
        {{"layers.2"}, 11, NULL, "one layer: 5 attention, 3 experts, 3 shared; router and indexer left out"},
        {{"all-linear"}, 52, NULL, "5 x 5 + 3 + 4 x 6"},
        {{".*layers\\.[01]\\.self_attn\\.(q|kv)_b_proj"}, 4, NULL, "expression"},
        {{".*proj(_with_mqa)?"}, 52, NULL, "an expression passes over the indexer's weights_proj"},
        {{"gate"}, -1, "mlp.gate", "the router"},
        {{"indexer"}, -1, "indexer", "the indexer"},
        {{"wq_b"}, -1, "wq_b", "a part of it"},
        {{"weights_proj"}, -1, "weights_proj", "a part of it"},
        {{"lm_head"}, -1, "lm_head", "the head"},
        {{"embed_tokens"}, -1, "embed_tokens", "the embedding"},
        {{"q_proj"}, -1, "q_proj", "no such layer"},
        {{"a_proj"}, -1, "a_proj", "half a name is no name"},
        {{"q_a_proj", "up_porj"}, -1, "up_porj", "the misspelt one is named"},
        {{"(q_a_proj"}, -1, "regular expression", "broken expression"},
        {{NULL}, -1, "no targets", "none"},
    };
    struct tiny m;

    (void)state;
    tiny_open(&m, "cpu", 1, TINY_SPARSE, 0);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct cairn_adapter a;
        struct cairn_error e = {0};
        enum cairn_status st = cairn_adapter_create(&a, &m.table, &m.config,
                                                    &(struct cairn_adapter_spec){.rank = 4, .alpha = 8, .targets = t[i].target}, &e);

        if (t[i].loras < 0) {
            if ((st != CAIRN_ERECIPE && st != CAIRN_EDATA) || !strstr(e.text, t[i].says))
                fail_msg("%s: status %d, \"%s\"", t[i].why, st, e.text);
            continue;
        }
        if (st != CAIRN_OK)
            fail_msg("%s: %s", t[i].why, e.text);
        if (a.loras != t[i].loras || count_loras(&a, &m.table, "indexer") || count_loras(&a, &m.table, "mlp.gate.weight"))
            fail_msg("%s: %d layers, expected %d", t[i].why, a.loras, t[i].loras);
        assert_int_equal(a.table.count, 2 * a.loras);
        cairn_adapter_free(&a);
    }
    tiny_close(&m);
}

/* The published glm5_next: 34 KDA layers and 11 that attend; 3 dense and 42 with experts. */
static void flash_targets(void **state)
{
    static const struct {
        const char *target[4];
        int loras; /* -1: refused */
        const char *why;
    } t[] = {
        {{"q_proj", "k_proj", "v_proj"}, 3 * 34, "KDA's inputs"},
        {{"o_proj"}, 45, "both kinds"},
        {{"f_a_proj", "f_b_proj"}, 2 * 34, "decay"},
        {{"g_a_proj", "g_b_proj", "b_proj"}, 3 * 34, "output gate, strength"},
        {{"q_a_proj"}, 11, "attention alone"},
        {{"experts"}, 3 * 42, "routed"},
        {{"shared_experts"}, 3 * 42, "shared"},
        {{"all-linear"}, 34 * 9 + 11 * 5 + 3 * 3 + 42 * 6, "all"},
        {{"self_attn"}, 34 * 9 + 11 * 5, "a block, without taps, decay and indexer"},
        {{"q_conv1d"}, -1, "taps"},
        {{"hc_attn_fn"}, -1, "hyper-connections"},
        {{"A_log"}, -1, "decay"},
        {{"indexer"}, -1, "the indexer"},
        {{"f_c_proj"}, -1, "no such layer"},
    };
    struct cairn_model_config c;
    struct cairn_param_table table;
    json_t *o;

    (void)state;
    OK(cairn_json_parse(&o, FLASH_PUBLISHED, strlen(FLASH_PUBLISHED), "x", err));
    OK(cairn_config_parse(&c, o, "x", err));
    OK(cairn_param_table_create(&table, &c, err));
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct cairn_adapter a;
        struct cairn_error e = {0};
        enum cairn_status st = cairn_adapter_create(&a, &table, &c, &(struct cairn_adapter_spec){.rank = 4, .alpha = 8, .targets = t[i].target}, &e);

        if (t[i].loras < 0) {
            if (st != CAIRN_ERECIPE || !strstr(e.text, t[i].target[0]))
                fail_msg("%s: status %d, \"%s\"", t[i].why, st, e.text);
            continue;
        }
        if (st != CAIRN_OK || a.loras != t[i].loras)
            fail_msg("%s: %d layers, expected %d; %s", t[i].why, st == CAIRN_OK ? a.loras : -1, t[i].loras, e.text);
        cairn_adapter_free(&a);
    }
    json_decref(o);
    cairn_param_table_free(&table);
    cairn_config_free(&c);
}

static void shapes(void **state)
{
    static const struct {
        const char *name;
        int ndim;
        int64_t dim[3];
        enum cairn_cut tp, ep;
    } t[] = {
        {"model.layers.3.self_attn.q_b_proj.lora_A.weight", 2, {3, 20}, CAIRN_CUT_NONE, CAIRN_CUT_NONE},
        {"model.layers.3.self_attn.q_b_proj.lora_B.weight", 2, {80, 3}, CAIRN_CUT_DIM0, CAIRN_CUT_NONE},
        {"model.layers.3.self_attn.o_proj.lora_A.weight", 2, {3, 40}, CAIRN_CUT_DIM1, CAIRN_CUT_NONE},
        {"model.layers.3.self_attn.o_proj.lora_B.weight", 2, {48, 3}, CAIRN_CUT_NONE, CAIRN_CUT_NONE},
        {"model.layers.3.self_attn.kv_a_proj_with_mqa.lora_B.weight", 2, {32, 3}, CAIRN_CUT_NONE, CAIRN_CUT_NONE},
        {"model.layers.3.mlp.experts.gate_up_proj.lora_A.weight", 3, {8, 3, 48}, CAIRN_CUT_NONE, CAIRN_CUT_DIM0},
        {"model.layers.3.mlp.experts.gate_proj.lora_B.weight", 3, {8, 18, 3}, CAIRN_CUT_DIM1, CAIRN_CUT_DIM0},
        {"model.layers.3.mlp.experts.up_proj.lora_B.weight", 3, {8, 18, 3}, CAIRN_CUT_DIM1, CAIRN_CUT_DIM0},
        {"model.layers.3.mlp.experts.down_proj.lora_A.weight", 3, {8, 3, 18}, CAIRN_CUT_DIM2, CAIRN_CUT_DIM0},
        {"model.layers.3.mlp.experts.down_proj.lora_B.weight", 3, {8, 48, 3}, CAIRN_CUT_NONE, CAIRN_CUT_DIM0},
        {"model.layers.3.mlp.shared_experts.up_proj.lora_A.weight", 2, {3, 48}, CAIRN_CUT_NONE, CAIRN_CUT_NONE},
    };
    struct tiny m;
    int aliased = 0;

    (void)state;
    tiny_open(&m, "cpu", 1, TINY_SPARSE, 1); /* rank 3, alpha 6, gate and up of the experts share A */
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        int j = cairn_param_find(&m.adapter.table, t[i].name);
        const struct cairn_param *p = &m.adapter.table.param[j];

        if (j < 0)
            fail_msg("no %s", t[i].name);
        if (p->ndim != t[i].ndim || memcmp(p->dim, t[i].dim, sizeof p->dim) || p->tp != t[i].tp || p->ep != t[i].ep || p->frozen || p->layer != 3)
            fail_msg("%s: (%lld,%lld,%lld) tp %d ep %d", t[i].name, (long long)p->dim[0], (long long)p->dim[1], (long long)p->dim[2], p->tp, p->ep);
    }
    assert_int_equal(cairn_param_find(&m.adapter.table, "model.layers.3.mlp.experts.up_proj.lora_A.weight"), -1);
    assert_true(cairn_param_find(&m.adapter.table, "model.layers.3.mlp.shared_experts.gate_proj.lora_A.weight") >= 0);
    for (int i = 0; i < m.adapter.loras; i++) {
        const struct cairn_lora *l = &m.adapter.lora[i];

        assert_int_equal(m.adapter.of_param[l->param], i);
        assert_int_equal(l->rank, 3);
        assert_true(l->gamma == 2.0f);
        for (int j = 0; j < i; j++) {
            assert_int_not_equal(m.adapter.lora[j].b, l->b);
            aliased += m.adapter.lora[j].a == l->a;
        }
    }
    assert_int_equal(aliased, 4); /* one a sparse layer */
    tiny_close(&m);
}

static void scale(void **state)
{
    static const char *const target[] = {"o_proj", NULL};
    struct tiny m;
    struct cairn_adapter a;
    struct cairn_error e;

    (void)state;
    tiny_open(&m, "cpu", 1, TINY_SPARSE, 0);
    OK(cairn_adapter_create(&a, &m.table, &m.config, &(struct cairn_adapter_spec){.rank = 16, .alpha = 10, .targets = target, .use_rslora = 1}, err));
    assert_true(a.lora[0].gamma == 2.5f);
    cairn_adapter_free(&a);
    assert_int_equal(cairn_adapter_create(&a, &m.table, &m.config, &(struct cairn_adapter_spec){.rank = 0, .alpha = 10, .targets = target}, &e),
                     CAIRN_ERECIPE);
    assert_int_equal(cairn_adapter_create(&a, &m.table, &m.config, &(struct cairn_adapter_spec){.rank = 4, .alpha = 0, .targets = target}, &e),
                     CAIRN_ERECIPE);
    tiny_close(&m);
}

static void recorded(void **state)
{
    struct tiny m;
    struct cairn_adapter b;
    struct cairn_error e = {0};
    json_t *v, *w, *first;

    (void)state;
    tiny_open(&m, "cpu", 1, TINY_SPARSE, 1);
    m.adapter.lora[5].gamma = 0.1f; /* no decimal fraction that is short */
    v = cairn_adapter_to_json(&m.adapter, &m.table);
    assert_non_null(v);
    { /* through text, as a manifest keeps it */
        struct cairn_str s = {0};

        cairn_json_canonical(&s, v);
        OK(cairn_json_parse(&w, s.p, s.len, "manifest", err));
        cairn_str_free(&s);
    }
    OK(cairn_adapter_from_json(&b, &m.table, w, "manifest", err));
    assert_int_equal(b.loras, m.adapter.loras);
    assert_memory_equal(b.lora, m.adapter.lora, (size_t)b.loras * sizeof *b.lora);
    assert_int_equal(b.table.count, m.adapter.table.count);
    for (int i = 0; i < b.table.count; i++) {
        assert_string_equal(b.table.param[i].name, m.adapter.table.param[i].name);
        assert_int_equal(b.table.param[i].offset, m.adapter.table.param[i].offset);
    }
    assert_true(json_equal(b.peft, m.adapter.peft));
    cairn_adapter_free(&b);
    first = json_array_get(json_object_get(w, "loras"), 0);
    json_object_set_new(first, "module", json_string("model.layers.0.mlp.gate"));
    assert_int_equal(cairn_adapter_from_json(&b, &m.table, w, "manifest", &e), CAIRN_EDATA);
    json_object_set_new(first, "module", json_string("model.layers.0.self_attn.q_a_proj"));
    json_object_set_new(first, "alias", json_string("model.layers.0.self_attn.q_b_proj"));
    assert_int_equal(cairn_adapter_from_json(&b, &m.table, w, "manifest", &e), CAIRN_EDATA);
    json_object_del(first, "alias");
    json_object_set_new(first, "rank", json_integer(0));
    assert_int_equal(cairn_adapter_from_json(&b, &m.table, w, "manifest", &e), CAIRN_EDATA);
    json_decref(v);
    json_decref(w);
    tiny_close(&m);
}

static void initial_values(void **state)
{
    struct tiny m;
    double worst = 0;

    tiny_open(&m, *state, 1, TINY_SPARSE, 1);
    OK(cairn_adapter_init(&m.adapter_weights, &m.adapter, 3, &m.k, err));
    for (int i = 0; i < m.adapter.table.count; i++) {
        const struct cairn_param *p = &m.adapter.table.param[i];
        int64_t n = cairn_param_count(p);
        float *x = tiny_get(&m.k, &m.adapter_weights.tensor[i]);
        double bound = 1 / sqrt((double)p->dim[p->ndim - 1]), sum = 0, sq = 0, most = 0;

        if (strstr(p->name, "lora_B")) {
            for (int64_t j = 0; j < n; j++)
                assert_true(x[j] == 0);
            free(x);
            continue;
        }
        for (int64_t j = 0; j < n; j++) {
            assert_true(fabs(x[j]) <= bound);
            sum += x[j];
            sq += (double)x[j] * x[j];
            most = fabs(x[j]) > most ? fabs(x[j]) : most;
        }
        worst = most / bound > worst ? most / bound : worst;
        if (n > 1000) { /* uniform: variance bound^2 / 3 */
            if (fabs(sum / (double)n) > 6 * bound / sqrt(3.0 * (double)n) ||
                fabs(sq / (double)n / (bound * bound / 3) - 1) > 6 * 0.9 / sqrt((double)n))
                fail_msg("%s: mean %g, variance %g of bound %g", p->name, sum / (double)n, sq / (double)n, bound);
        }
        free(x);
    }
    assert_true(worst > 0.99); /* the whole range is used */
    tiny_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(targets), cmocka_unit_test(flash_targets), cmocka_unit_test(shapes), cmocka_unit_test(scale), cmocka_unit_test(recorded),
        ON("cpu", initial_values), ON("guard", initial_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

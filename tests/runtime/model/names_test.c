/* names_test.c - names of other software to the table's and back, by table. */
#include "flash.h"

#include "model/names.h"

static void canonical(void **state)
{
    static const struct {
        const char *from, *to, *why;
    } t[] = {
        {"model.language_model.layers.3.self_attn.A_log", "model.language_model.layers.3.self_attn.A_log", "as it is"},
        {"model.layers.3.self_attn.A_log", "model.language_model.layers.3.self_attn.A_log", "without language_model"},
        {"model.layers.3.self_attn.forget_gate.A_log", "model.language_model.layers.3.self_attn.A_log", "in memory"},
        {"model.language_model.layers.12.self_attn.forget_gate.f_b_proj.weight",
         "model.language_model.layers.12.self_attn.f_b_proj.weight", "in memory"},
        {"model.language_model.layers.0.attn_hc.fn", "model.language_model.layers.0.hc_attn_fn", "mixing in memory"},
        {"model.layers.0.ffn_hc.scale", "model.language_model.layers.0.hc_ffn_scale", "both"},
        {"model.norm.weight", "model.language_model.norm.weight", "outside of the layers"},
        {"lm_head.weight", "lm_head.weight", "top level"},
        {"model.visual.norm.weight", "model.visual.norm.weight", "none of ours"},
        {"model.language_model.layers.0.self_attn.o_proj.weight", "model.language_model.layers.0.self_attn.o_proj.weight", "as it is"},
    };
    struct cairn_model_config c;
    json_t *o;

    (void)state;
    OK(cairn_json_parse(&o, FLASH_PUBLISHED, strlen(FLASH_PUBLISHED), "x", err));
    OK(cairn_config_parse(&c, o, "x", err));
    json_decref(o);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char out[CAIRN_NAME_BYTES], other[CAIRN_NAME_BYTES], back[CAIRN_NAME_BYTES];

        assert_true(cairn_name_canonical(&c, t[i].from, out));
        if (strcmp(out, t[i].to))
            fail_msg("%s: %s became %s", t[i].why, t[i].from, out);
        for (int j = 0; cairn_name_other(&c, out, j, other); j++) { /* every other name leads back */
            assert_true(cairn_name_canonical(&c, other, back));
            assert_string_equal(back, out);
            assert_string_not_equal(other, out);
        }
    }
    cairn_config_free(&c);
}

static void others(void **state)
{
    static const struct {
        const char *name;
        int n;
        const char *second;
    } t[] = {{"model.language_model.layers.3.self_attn.f_a_proj.lora_A.weight", 3,
              "model.language_model.layers.3.self_attn.forget_gate.f_a_proj.lora_A.weight"},
             {"model.language_model.layers.3.self_attn.f_b_proj", 3, "model.language_model.layers.3.self_attn.forget_gate.f_b_proj"},
             {"model.language_model.layers.3.hc_ffn_base", 3, "model.language_model.layers.3.ffn_hc.base"},
             {"model.language_model.layers.3.self_attn.b_proj.weight", 1, NULL},
             {"lm_head.weight", 0, NULL}};
    struct cairn_model_config c = {.arch = CAIRN_ARCH_GLM5_NEXT, .prefix = "model.language_model."};

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char out[CAIRN_NAME_BYTES];
        int n = 0;

        while (cairn_name_other(&c, t[i].name, n, out)) {
            if (n == 1)
                assert_string_equal(out, t[i].second);
            n++;
        }
        assert_int_equal(n, t[i].n);
    }
    c = (struct cairn_model_config){.arch = CAIRN_ARCH_GLM_MOE_DSA, .prefix = "model."};
    assert_int_equal(cairn_name_other(&c, "model.layers.3.self_attn.q_b_proj.weight", 0, (char[CAIRN_NAME_BYTES]){0}), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(canonical), cmocka_unit_test(others)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

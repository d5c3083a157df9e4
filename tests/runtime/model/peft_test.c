/* peft_test.c - adapters made by peft 0.21 read, written and read again; the fused layout against its formula; what must be refused. */
#include <math.h>

#include "hfdir.h"

#include "model/hf.h"
#include "model/peft.h"

#define MODELS "tests/fixtures/models/"

struct base {
    struct cairn_model_config c;
    struct cairn_param_table t;
};

static void base_open(struct base *b, const char *dir)
{
    OK(cairn_config_load(&b->c, dir, err));
    OK(cairn_param_table_create(&b->t, &b->c, err));
}

static void base_close(struct base *b)
{
    cairn_param_table_free(&b->t);
    cairn_config_free(&b->c);
}

struct loaded {
    struct cairn_compute k;
    struct cairn_adapter a;
    struct cairn_store s;
};

static void load(struct loaded *l, const char *dir, const struct base *b, const char *backend)
{
    struct cairn_peft *p;

    memset(l, 0, sizeof *l);
    OK(cairn_compute_open(&l->k, &(struct cairn_compute_opts){.backend = backend, .threads = 1}, err));
    OK(cairn_peft_open(&p, dir, &b->t, &b->c, err));
    cairn_peft_take(p, &l->a);
    OK(cairn_store_create(&l->s, &l->a.table, l->k.dev, 0, err));
    OK(cairn_peft_load(p, &l->a, &l->s, &l->k, err));
    cairn_peft_close(p);
}

static void unload(struct loaded *l)
{
    cairn_store_free(&l->s);
    cairn_adapter_free(&l->a);
    cairn_compute_close(&l->k);
}

/* Same layers, ranks, scales (bits), aliases and values (bits). */
static void same(struct loaded *x, struct loaded *y)
{
    assert_int_equal(x->a.loras, y->a.loras);
    for (int i = 0; i < x->a.loras; i++) {
        assert_int_equal(x->a.lora[i].param, y->a.lora[i].param);
        assert_int_equal(x->a.lora[i].a, y->a.lora[i].a);
        assert_int_equal(x->a.lora[i].b, y->a.lora[i].b);
        assert_int_equal(x->a.lora[i].rank, y->a.lora[i].rank);
        assert_true(x->a.lora[i].gamma == y->a.lora[i].gamma);
    }
    assert_int_equal(x->a.table.count, y->a.table.count);
    for (int i = 0; i < x->a.table.count; i++) {
        float *p = tiny_get(&x->k, &x->s.tensor[i]), *q = tiny_get(&y->k, &y->s.tensor[i]);

        assert_string_equal(x->a.table.param[i].name, y->a.table.param[i].name);
        if (memcmp(p, q, cairn_tensor_bytes(&x->s.tensor[i])))
            fail_msg("%s differs", x->a.table.param[i].name);
        free(p);
        free(q);
    }
}

static void save(struct loaded *l, const struct base *b, const char *dir, enum cairn_peft_layout layout, enum cairn_dtype dtype)
{
    struct cairn_peft_store from = {&l->s, &l->k};

    OK(cairn_peft_save(dir, &l->a, &b->t, &b->c, cairn_peft_fetch_store, &from, &(struct cairn_peft_save_opts){.layout = layout, .dtype = dtype},
                       err));
}

static float *raw(struct cairn_st *st, const char *name, int64_t *rows, int64_t *cols)
{
    const struct cairn_st_tensor *t = cairn_st_find(st, name);
    float *x;

    if (!t)
        fail_msg("no %s", name);
    x = malloc((size_t)t->bytes);
    OK(cairn_st_read(st, t, 0, x, (size_t)t->bytes, err)); /* fixtures are F32 */
    *rows = t->shape[0];
    *cols = t->shape[1];
    return x;
}

/* spec 16.2: dW_e[o][k] = g * sum_i B[o][i*E + e] * A[e*r + i][k], straight from peft's file, against g * B_e A_e of the store. */
static void formula(struct loaded *l, const struct base *b, const char *dir)
{
    struct cairn_st *st;
    int E = b->c.experts, checked = 0;

    OK(cairn_st_open(&st, dir, err));
    for (int i = 0; i < l->a.loras; i++) {
        const struct cairn_lora *lo = &l->a.lora[i];
        const struct cairn_param *p = &b->t.param[lo->param];
        int down = strstr(p->name, "down_proj") != NULL, up = strstr(p->name, ".up_proj") != NULL, r = lo->rank;
        int64_t out = p->dim[1], in = p->dim[2], ra, ca, rb, cb;
        char name[240];
        float *A, *B, *a, *bb;

        if (p->ndim != 3)
            continue;
        snprintf(name, sizeof name, "base_model.model.model.layers.%d.mlp.experts%s.lora_A.weight", p->layer, down ? "" : ".base_layer");
        A = raw(st, name, &ra, &ca);
        snprintf(name, sizeof name, "base_model.model.model.layers.%d.mlp.experts%s.lora_B.weight", p->layer, down ? "" : ".base_layer");
        B = raw(st, name, &rb, &cb);
        assert_int_equal(ra, r * E);
        assert_int_equal(cb, r * E);
        assert_int_equal(ca, in);
        a = tiny_get(&l->k, &l->s.tensor[lo->a]);
        bb = tiny_get(&l->k, &l->s.tensor[lo->b]);
        for (int e = 0; e < E; e++)
            for (int64_t o = 0; o < out; o += 5)
                for (int64_t k = 0; k < in; k += 7) {
                    double want = 0, have = 0;

                    for (int q = 0; q < r; q++) {
                        want += (double)B[(o + (up ? out : 0)) * cb + q * E + e] * A[(e * r + q) * ca + k];
                        have += (double)bb[(e * out + o) * r + q] * a[(e * r + q) * in + k];
                    }
                    assert_true(want == have);
                    checked++;
                }
        free(A);
        free(B);
        free(a);
        free(bb);
    }
    assert_true(checked > 1000);
    cairn_st_close(st);
}

static void fixtures(void **state)
{
    static const struct {
        const char *model, *adapter;
        int plain_rank, gate_rank;
        float plain, gate;
    } t[] = {
        {"glm51-tiny", "adapter", 4, 8, 2, 2},           {"glm51-tiny", "adapter_mlp", 4, 8, 3, 3},
        {"glm52-tiny", "adapter", 4, 8, 2, 2},           {"glm52-tiny", "adapter_mlp", 4, 8, 3, 3},
        {"bf16-sharded-tiny", "adapter", 4, 8, 2, 2},    {"bf16-sharded-tiny", "adapter_mlp", 4, 8, 3, 3},
    };

    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char model[200], dir[200];
        struct base b;
        struct loaded x, y;

        snprintf(model, sizeof model, MODELS "%s", t[i].model);
        snprintf(dir, sizeof dir, MODELS "%s/%s", t[i].model, t[i].adapter);
        base_open(&b, model);
        load(&x, dir, &b, *state);
        for (int j = 0; j < x.a.loras; j++) {
            const struct cairn_lora *l = &x.a.lora[j];
            const char *name = b.t.param[l->param].name;
            int gate = b.t.param[l->param].ndim == 3 && !strstr(name, "down_proj");

            assert_int_equal(l->rank, gate ? t[i].gate_rank : t[i].plain_rank);
            assert_true(l->gamma == (gate ? t[i].gate : t[i].plain));
            if (gate && strstr(name, ".up_proj"))
                assert_int_equal(l->a, x.a.lora[j - 1].a); /* gate and up share A */
        }
        formula(&x, &b, dir);
        save(&x, &b, hf_path("auto"), CAIRN_PEFT_AUTO, CAIRN_F32);
        hf_same(dir, hf_path("auto")); /* peft's own names, shapes and bytes */
        load(&y, hf_path("auto"), &b, *state);
        same(&x, &y);
        unload(&y);
        save(&x, &b, hf_path("expert"), CAIRN_PEFT_EXPERT, CAIRN_F32);
        load(&y, hf_path("expert"), &b, *state);
        same(&x, &y);
        save(&y, &b, hf_path("back"), CAIRN_PEFT_FUSED, CAIRN_F32);
        hf_same(dir, hf_path("back"));
        unload(&y);
        load(&y, hf_path("back"), &b, *state);
        same(&x, &y);
        unload(&y);
        unload(&x);
        base_close(&b);
    }
}

/* What peft adds to parameter i (of expert e), times w, w_k = cos(k + 1), against the adapter's own: g * B (A w). */
static void delta_row(struct loaded *l, const struct base *b, struct cairn_st *deltas, const char *name, int i, int64_t e)
{
    const struct cairn_lora *lo = &l->a.lora[l->a.of_param[i]];
    const struct cairn_param *p = &b->t.param[i];
    int64_t out = p->dim[p->ndim - 2], in = p->dim[p->ndim - 1], r = lo->rank;
    const struct cairn_st_tensor *t = cairn_st_find(deltas, name);
    float *a = tiny_get(&l->k, &l->s.tensor[lo->a]), *bb = tiny_get(&l->k, &l->s.tensor[lo->b]), *want;

    if (!t || t->count != out)
        fail_msg("%s has an adapter, but peft adds nothing to it", name);
    want = malloc((size_t)t->bytes);
    OK(cairn_st_read(deltas, t, 0, want, (size_t)t->bytes, err));
    for (int64_t o = 0; o < out; o++) {
        double sum = 0, size = 0;

        for (int64_t q = 0; q < r; q++)
            for (int64_t k = 0; k < in; k++) {
                double term = (double)bb[(e * out + o) * r + q] * a[(e * r + q) * in + k] * cos((double)k + 1);

                sum += term;
                size += fabs(term);
            }
        if (!(fabs((double)lo->gamma * sum - want[o]) <= 1e-6 * (double)lo->gamma * size)) /* peft's delta is fp32 */
            fail_msg("%s, row %lld: peft adds %.9g, the adapter %.9g", name, (long long)o, (double)want[o], (double)lo->gamma * sum);
    }
    free(want);
    free(bb);
    free(a);
}

/* Experts' adapters as peft has written them, one by one and as 3-D parameters (expert_adapters.py): what they add is what peft adds, to these
 * weights and no others; written again they are the same file, in their own layout and by way of the other, where it can hold them. */
static void experts(void **state)
{
    static const struct {
        const char *model, *layout;
    } t[] = {{"glm51-tiny", "unfused"}, {"glm53flash-tiny", "unfused"}, {"glm53flash-tiny", "fused"}};

    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        int fused = strcmp(t[i].layout, "fused") == 0, rows = 0;
        char model[200], dir[240], name[300];
        struct cairn_st *deltas;
        struct base b;
        struct loaded x, y;
        struct cairn_peft_store from = {&x.s, &x.k};
        struct cairn_error e;

        snprintf(model, sizeof model, MODELS "%s", t[i].model);
        snprintf(dir, sizeof dir, "%s/adapter_%s", model, t[i].layout);
        snprintf(name, sizeof name, "%s/delta_%s.safetensors", model, t[i].layout);
        OK(cairn_st_open(&deltas, name, err));
        base_open(&b, model);
        load(&x, dir, &b, *state);
        for (int j = 0; j < b.t.count; j++) {
            int64_t all = x.a.of_param[j] < 0 ? 0 : b.t.param[j].experts ? b.t.param[j].dim[0] : 1;

            for (int64_t n = 0; n < all; n++, rows++) {
                snprintf(name, sizeof name, "%s", b.t.param[j].name);
                if (b.t.param[j].experts)
                    cairn_expert_name(b.t.param[j].name, n, name, sizeof name);
                delta_row(&x, &b, deltas, name, j, n);
            }
        }
        assert_int_equal(rows, cairn_st_count(deltas));
        save(&x, &b, hf_path("auto"), CAIRN_PEFT_AUTO, CAIRN_F32);
        hf_same(dir, hf_path("auto"));
        save(&x, &b, hf_path("expert"), CAIRN_PEFT_EXPERT, CAIRN_F32);
        load(&y, hf_path("expert"), &b, *state);
        same(&x, &y);
        if (fused) {
            save(&y, &b, hf_path("back"), CAIRN_PEFT_FUSED, CAIRN_F32);
            hf_same(dir, hf_path("back"));
        } else { /* each expert's gate and up have an A of their own */
            hf_same(dir, hf_path("expert"));
            assert_int_equal(cairn_peft_save(hf_path("back"), &x.a, &b.t, &b.c, cairn_peft_fetch_store, &from,
                                             &(struct cairn_peft_save_opts){.layout = CAIRN_PEFT_FUSED, .dtype = CAIRN_F32}, &e),
                             CAIRN_EDATA);
        }
        unload(&y);
        unload(&x);
        cairn_st_close(deltas);
        base_close(&b);
    }
}

static int has(const char *dir, const char *name)
{
    struct cairn_st *st;
    int yes;

    OK(cairn_st_open(&st, dir, err));
    yes = cairn_st_find(st, name) != NULL;
    cairn_st_close(st);
    return yes;
}

/* Adapters that start here: layout chosen, names of both layouts, patterns, types. */
static void own(void **state)
{
    static const struct {
        const char *targets[10];
        int rank;
        double alpha;
        int alias, rslora;
        int fused; /* what AUTO must choose */
        const char *modules, *parameters; /* target_modules and target_parameters of AUTO: those with which peft 0.21 on transformers 5.17
                                             gave our log-probabilities to 1e-6 (checked by hand on tiny models) */
        const char *why;
    } t[] = {
        {{"q_a_proj", "experts"}, 3, 6, 1, 0, 1, "[\"q_a_proj\"]", "[\"gate_up_proj\",\"down_proj\"]", "shared A: peft's own layout"},
        {{"q_a_proj", "experts"},
         3,
         1,
         0,
         0,
         0,
         "[\"q_a_proj\",\"gate_proj\",\"up_proj\",\"down_proj\"]",
         "null",
         "an A each: one by one; 1/3 is no short decimal"},
        {{"all-linear"},
         5,
         7,
         1,
         1,
         1,
         "[\"q_a_proj\",\"q_b_proj\",\"kv_a_proj_with_mqa\",\"kv_b_proj\",\"o_proj\"]",
         "[\"mlp.gate_proj.weight\",\"mlp.up_proj.weight\",\"mlp.down_proj.weight\",\"shared_experts.gate_proj.weight\",\"shared_experts.up_proj."
         "weight\",\"shared_experts.down_proj.weight\",\"gate_up_proj\",\"down_proj\"]",
         "rslora"},
        {{"experts.down_proj"}, 2, 2, 1, 0, 1, "[]", "[\"down_proj\"]", "down alone has the outer name"},
        {{"gate_up_proj"}, 2, 2, 1, 0, 1, "[]", "[\"gate_up_proj\"]", "so has gate_up alone"},
        {{"layers.2"}, 2, 3, 1, 0, 0, NULL, NULL, "one layer: not all experts alike"},
        {{"experts.gate_proj"}, 2, 3, 1, 0, 0, "[\"gate_proj\"]", "null", "gate without up"},
        {{"o_proj", "shared_experts"},
         2,
         3,
         1,
         0,
         0,
         "[\"o_proj\"]",
         "[\"shared_experts.gate_proj.weight\",\"shared_experts.up_proj.weight\",\"shared_experts.down_proj.weight\"]",
         "no experts at all"},
    };

    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct tiny m;
        struct base b;
        struct loaded x = {0}, y;
        struct cairn_error e = {0};
        struct cairn_peft_store from;
        json_t *o;

        tiny_open(&m, *state, 1, TINY_SPARSE, 0);
        b.c = m.config;
        b.t = m.table;
        OK(cairn_compute_open(&x.k, &(struct cairn_compute_opts){.backend = *state, .threads = 1}, err));
        OK(cairn_adapter_create(&x.a, &m.table, &m.config,
                                &(struct cairn_adapter_spec){.rank = t[i].rank, .alpha = t[i].alpha, .targets = t[i].targets,
                                                             .alias_gate_up = t[i].alias, .use_rslora = t[i].rslora},
                                err));
        OK(cairn_store_create(&x.s, &x.a.table, x.k.dev, 0, err));
        for (int j = 0; j < x.a.table.count; j++)
            tiny_random(&x.k, &x.s.tensor[j], 4, (uint32_t)j, 0.3);
        save(&x, &b, hf_path("own"), CAIRN_PEFT_AUTO, CAIRN_F32);
        if ((has(hf_path("own"), "base_model.model.model.layers.1.mlp.experts.lora_A.weight") ||
             has(hf_path("own"), "base_model.model.model.layers.2.mlp.experts.lora_A.weight")) != t[i].fused)
            fail_msg("%s: wrong layout", t[i].why);
        OK(cairn_json_load(&o, hf_path("own/adapter_config.json"), 1 << 20, err));
        assert_string_equal(json_string_value(json_object_get(o, "peft_type")), "LORA");
        assert_int_equal(json_integer_value(json_object_get(o, "r")), t[i].rank);
        assert_false(json_is_true(json_object_get(o, "use_rslora")));
        if (t[i].modules) {
            struct cairn_str m_ = {0}, p_ = {0};

            cairn_json_canonical(&m_, json_object_get(o, "target_modules"));
            cairn_json_canonical(&p_, json_object_get(o, "target_parameters"));
            assert_string_equal(cairn_str_z(&m_), t[i].modules);
            assert_string_equal(cairn_str_z(&p_), t[i].parameters);
            cairn_str_free(&m_);
            cairn_str_free(&p_);
        }
        assert_true(t[i].rslora || json_number_value(json_object_get(o, "lora_alpha")) == t[i].alpha);
        assert_int_equal(json_object_size(json_object_get(o, "rank_pattern")), 0);
        assert_int_equal(json_object_size(json_object_get(o, "alpha_pattern")), 0);
        json_decref(o);
        load(&y, hf_path("own"), &b, *state);
        same(&x, &y);
        unload(&y);
        save(&x, &b, hf_path("one"), CAIRN_PEFT_EXPERT, CAIRN_F32);
        load(&y, hf_path("one"), &b, *state);
        same(&x, &y);
        unload(&y);
        from = (struct cairn_peft_store){&x.s, &x.k};
        if (!t[i].fused)
            assert_int_equal(cairn_peft_save(hf_path("no"), &x.a, &m.table, &m.config, cairn_peft_fetch_store, &from,
                                             &(struct cairn_peft_save_opts){.layout = CAIRN_PEFT_FUSED}, &e), CAIRN_EDATA);
        /* narrow types: values that fit come back equal */
        for (int j = 0; j < x.a.table.count; j++) {
            struct cairn_cast c = {.src = x.s.tensor[j], .dst = x.s.tensor[j], .round_to = CAIRN_BF16};

            OK(x.k.ops.cast(&x.k.stream, &c, err));
        }
        save(&x, &b, hf_path("bf16"), CAIRN_PEFT_AUTO, CAIRN_BF16);
        load(&y, hf_path("bf16"), &b, *state);
        same(&x, &y);
        unload(&y);
        unload(&x);
        tiny_close(&m);
    }
}

/* Ranks and scales that differ from layer to layer go through patterns in both layouts. */
static void mixed_ranks(void **state)
{
    struct tiny m;
    struct base b;
    struct loaded x = {0}, y;
    struct cairn_lora_choice list[8];
    int n = 0, at = 0;
    static const char *const names[] = {"model.layers.0.self_attn.q_a_proj", "model.layers.0.self_attn.o_proj", "model.layers.1.self_attn.q_a_proj",
                                        "model.layers.2.mlp.experts.gate_proj", "model.layers.2.mlp.experts.up_proj",
                                        "model.layers.2.mlp.experts.down_proj"};
    static const int ranks[] = {4, 4, 2, 3, 3, 5};
    static const double gammas[] = {2, 0.3, 2, 1.7, 1.7, 1.0 / 3};

    tiny_open(&m, *state, 1, TINY_SPARSE, 0);
    b.c = m.config;
    b.t = m.table;
    for (size_t i = 0; i < 6; i++) {
        char name[240];

        snprintf(name, sizeof name, "%s.weight", names[i]);
        list[n] = (struct cairn_lora_choice){.param = cairn_param_find(&m.table, name), .rank = ranks[i], .gamma = gammas[i], .alias = -1};
        if (i == 4)
            list[n].alias = list[n - 1].param;
        n++;
    }
    OK(cairn_compute_open(&x.k, &(struct cairn_compute_opts){.backend = *state, .threads = 1}, err));
    OK(cairn_adapter_create_from(&x.a, &m.table, list, n, err));
    OK(cairn_store_create(&x.s, &x.a.table, x.k.dev, 0, err));
    for (at = 0; at < x.a.table.count; at++)
        tiny_random(&x.k, &x.s.tensor[at], 8, (uint32_t)at, 0.3);
    save(&x, &b, hf_path("mixed"), CAIRN_PEFT_AUTO, CAIRN_F32);
    load(&y, hf_path("mixed"), &b, *state);
    same(&x, &y);
    unload(&y);
    unload(&x);
    tiny_close(&m);
}

static void copy_file(const char *from, const char *to)
{
    char *p;
    size_t n;

    OK(cairn_file_read(from, 1 << 26, &p, &n, err));
    OK(cairn_file_replace(to, p, n, err));
    free(p);
}

/* adapter_config.json of a fixture with members replaced. */
static void refused_configurations(void **state)
{
    static const struct {
        const char *patch, *says;
    } t[] = {
        {"{\"peft_type\": \"IA3\"}", "peft_type"},
        {"{\"use_dora\": true}", "use_dora"},
        {"{\"bias\": \"all\"}", "bias"},
        {"{\"lora_bias\": true}", "lora_bias"},
        {"{\"fan_in_fan_out\": true}", "fan_in_fan_out"},
        {"{\"modules_to_save\": [\"lm_head\"]}", "modules_to_save"},
        {"{\"layer_replication\": [[0, 2]]}", "layer_replication"},
        {"{\"init_lora_weights\": \"pissa\"}", "init_lora_weights"},
        {"{\"target_modules\": [\"q_proj\"]}", "q_proj"},
        {"{\"target_modules\": [\"gate\"]}", "mlp.gate"},
        {"{\"target_modules\": [\"wq_b\"]}", "indexer.wq_b"},
        {"{\"target_modules\": [\"lm_head\"]}", "lm_head"},
        {"{\"target_modules\": [\"up_proj\"]}", "up_proj"},
        {"{\"target_modules\": \"(\"}", "target_modules"},
        {"{\"target_modules\": [3]}", "target_modules"},
        {"{\"target_parameters\": [\"gate.weight\"]}", "gate.weight"},
        {"{\"r\": 5}", "rank 4 in the tensors, 5"},
        {"{\"r\": \"4\"}", "key \"r\""},
        {"{\"lora_alpha\": 0}", "lora_alpha"},
        {"{\"rank_pattern\": {}}", "rank 8 in the tensors, 4"},
        {"{\"rank_pattern\": {\"(\": 3}}", "rank_pattern"},
        {"{\"rank_pattern\": {\".*gate_up_proj\": \"x\"}}", "rank_pattern"},
    };
    struct base b;
    char path[300];

    (void)state;
    base_open(&b, MODELS "glm51-tiny");
    OK(cairn_dir_make(hf_path("bad"), err));
    copy_file(MODELS "glm51-tiny/adapter/adapter_model.safetensors", hf_path("bad/adapter_model.safetensors"));
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        json_t *o, *p;
        struct cairn_str s = {0};
        struct cairn_peft *peft = NULL;
        struct cairn_error e = {0};

        OK(cairn_json_load(&o, MODELS "glm51-tiny/adapter/adapter_config.json", 1 << 20, err));
        OK(cairn_json_parse(&p, t[i].patch, strlen(t[i].patch), "patch", err));
        json_object_update(o, p);
        cairn_json_pretty(&s, o);
        snprintf(path, sizeof path, "%s", hf_path("bad"));
        hf_write_file(path, "adapter_config.json", cairn_str_z(&s));
        if (cairn_peft_open(&peft, path, &b.t, &b.c, &e) != CAIRN_EDATA)
            fail_msg("accepted: %s", t[i].patch);
        if (!strstr(e.text, t[i].says))
            fail_msg("%s: \"%s\" does not say \"%s\"", t[i].patch, e.text, t[i].says);
        cairn_str_free(&s);
        json_decref(o);
        json_decref(p);
    }
    base_close(&b);
}

#define AT(x) "base_model.model.model.layers." x
/* Tensors of a fixture dropped, renamed or reshaped. */
static void refused_tensors(void **state)
{
    static const struct {
        const char *name, *to; /* to NULL: dropped; "+N": dimension 0 grows; otherwise the new name */
        const char *says;
    } t[] = {
        {AT("1.self_attn.o_proj.lora_A.weight"), NULL, "o_proj.lora_A.weight"},
        {AT("1.self_attn.o_proj.lora_B.weight"), NULL, "o_proj.lora_B.weight"},
        {AT("1.self_attn.o_proj.lora_B.weight"), "+", "o_proj"},
        {AT("1.self_attn.o_proj.lora_A.weight"), "+", "no common rank"},
        {AT("1.mlp.experts.lora_A.weight"), NULL, "experts.lora_A.weight"},
        {AT("2.mlp.experts.base_layer.lora_B.weight"), "+", "fit neither"},
        {AT("1.self_attn.o_proj.lora_A.weight"), AT("9.self_attn.o_proj.lora_A.weight"), "layers"},
        {AT("1.self_attn.o_proj.lora_A.weight"), AT("1.self_attn.o_proj.lora_magnitude_vector"), "o_proj.lora"},
        {AT("1.self_attn.o_proj.lora_A.weight"), "model.layers.1.self_attn.o_proj.lora_A.weight", "o_proj"},
        {AT("1.self_attn.o_proj.lora_A.weight"), AT("1.self_attn.indexer.wk.lora_A.weight"), "layers.1.self_attn"},
    };
    struct base b;
    struct hfdir *d = calloc(1, sizeof *d);
    struct cairn_st *st;

    (void)state;
    base_open(&b, MODELS "glm51-tiny");
    d->config = json_object();
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct cairn_st_writer_opts o = {.stem = "adapter_model"};
        struct cairn_st_decl decl[64] = {0};
        struct cairn_st_writer *w;
        struct cairn_peft *peft = NULL;
        struct cairn_error e = {0};
        int n = 0;

        OK(cairn_st_open(&st, MODELS "glm51-tiny/adapter", err));
        for (int j = 0; j < cairn_st_count(st); j++) {
            const struct cairn_st_tensor *s = cairn_st_at(st, j);
            int hit = !strcmp(s->name, t[i].name);

            if (hit && !t[i].to)
                continue;
            decl[n] = (struct cairn_st_decl){.name = hit && t[i].to[0] != '+' ? t[i].to : s->name, .word = "F32", .esize = 4, .ndim = 2,
                                             .shape = {s->shape[0] + (hit && t[i].to[0] == '+'), s->shape[1]}};
            n++;
        }
        OK(cairn_st_writer_create(&w, hf_path("bad2"), decl, n, &o, err));
        for (int j = 0; j < n; j++) {
            float *x = calloc((size_t)(decl[j].shape[0] * decl[j].shape[1]), 4);

            OK(cairn_st_writer_add(w, j, x, (size_t)(decl[j].shape[0] * decl[j].shape[1]) * 4, err));
            free(x);
        }
        OK(cairn_st_writer_finish(w, err));
        cairn_st_writer_destroy(w);
        cairn_st_close(st);
        copy_file(MODELS "glm51-tiny/adapter/adapter_config.json", hf_path("bad2/adapter_config.json"));
        if (cairn_peft_open(&peft, hf_path("bad2"), &b.t, &b.c, &e) != CAIRN_EDATA)
            fail_msg("accepted: %s -> %s", t[i].name, t[i].to ? t[i].to : "dropped");
        if (!strstr(e.text, t[i].says))
            fail_msg("%s: \"%s\" does not say \"%s\"", t[i].name, e.text, t[i].says);
    }
    hf_free(d);
    base_close(&b);
}

/* The way round of peft 0.18: told by shapes where they differ, by the version where they do not (D = 2F). */
static void transposed(void **state)
{
    static const struct {
        int64_t a_in, b_out; /* of layer 1's only target, model D 48, F 18, E 8, r 2 */
        int wide;            /* model with F = 24, so that D = 2F */
        const char *version, *target;
        int ok;
        const char *says;
    } t[] = {
        {48, 36, 0, NULL, "gate_up_proj", 1, NULL},
        {36, 48, 0, NULL, "gate_up_proj", 0, "0.18"},
        {36, 48, 0, "0.21.0", "gate_up_proj", 0, "0.18"},
        {18, 48, 0, NULL, "down_proj", 1, NULL},
        {48, 18, 0, NULL, "down_proj", 0, "0.18"},
        {48, 48, 1, "0.19.1", "gate_up_proj", 1, NULL},
        {48, 48, 1, "0.18.0", "gate_up_proj", 0, "0.18"},
        {48, 48, 1, NULL, "gate_up_proj", 0, "peft_version"},
        {24, 48, 1, NULL, "down_proj", 1, NULL},
        {48, 24, 1, NULL, "down_proj", 0, "0.18"},
        {47, 36, 0, NULL, "gate_up_proj", 0, "fit neither"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct hfdir *d = hf_make(t[i].wide ? "{\"moe_intermediate_size\": 24}" : "{}", CAIRN_F32, 0);
        struct base b;
        struct cairn_peft *p = NULL;
        struct cairn_error e = {0};
        const struct cairn_st_writer_opts o = {.stem = "adapter_model"};
        struct cairn_st_decl decl[8];
        struct cairn_st_writer *w;
        char text[512], names[8][100];
        float *x = calloc(16 * 64, 4);
        enum cairn_status st;

        OK(cairn_config_parse(&b.c, d->config, "x", err));
        OK(cairn_param_table_create(&b.t, &b.c, err));
        for (int j = 0; j < 8; j++) { /* layers 1 to 4, A and B */
            snprintf(names[j], sizeof names[j], AT("%d.mlp.experts.lora_%c.weight"), 1 + j / 2, j % 2 ? 'B' : 'A');
            decl[j] = (struct cairn_st_decl){.name = names[j], .word = "F32", .esize = 4, .ndim = 2,
                                             .shape = {j % 2 ? t[i].b_out : 16, j % 2 ? 16 : t[i].a_in}};
        }
        OK(cairn_st_writer_create(&w, hf_path("way"), decl, 8, &o, err));
        for (int j = 0; j < 8; j++)
            OK(cairn_st_writer_add(w, j, x, (size_t)(decl[j].shape[0] * decl[j].shape[1]) * 4, err));
        OK(cairn_st_writer_finish(w, err));
        cairn_st_writer_destroy(w);
        snprintf(text, sizeof text, "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 4, \"target_parameters\": [\"%s\"]%s%s%s}", t[i].target,
                 t[i].version ? ", \"peft_version\": \"" : "", t[i].version ? t[i].version : "", t[i].version ? "\"" : "");
        hf_write_file(hf_path("way"), "adapter_config.json", text);
        st = cairn_peft_open(&p, hf_path("way"), &b.t, &b.c, &e);
        if (t[i].ok ? st != CAIRN_OK : st != CAIRN_EDATA || !strstr(e.text, t[i].says))
            fail_msg("case %zu (%s, %lld, %lld): status %d, \"%s\"", i, t[i].target, (long long)t[i].a_in, (long long)t[i].b_out, st, e.text);
        cairn_peft_close(p);
        free(x);
        base_close(&b);
        hf_free(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON("cpu", fixtures),
        ON("guard", fixtures),
        ON("cpu", experts),
        ON("cpu", own),
        ON("cpu", mixed_ranks),
        cmocka_unit_test(refused_configurations),
        cmocka_unit_test(refused_tensors),
        cmocka_unit_test(transposed),
    };

    return cmocka_run_group_tests(tests, hf_tmp_make, hf_tmp_remove);
}

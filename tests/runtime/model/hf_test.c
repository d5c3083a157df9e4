/* hf_test.c - reading HuggingFace directories: the fixtures bit for bit, forms and types made here, and everything that must be refused. */
#include <math.h>

#include "hfdir.h"

#include "model/hf.h"

static float *load(const char *dir, const char *backend, int64_t *count)
{
    struct cairn_hf *h;
    struct cairn_compute k;
    struct cairn_store s;
    float *x;
    int64_t at = 0;

    OK(cairn_compute_open(&k, &(struct cairn_compute_opts){.backend = backend, .threads = 1}, err));
    OK(cairn_hf_open(&h, dir, err));
    OK(cairn_store_create(&s, &h->table, k.dev, 0, err));
    OK(cairn_hf_load(h, &s, &k, NULL, err));
    x = malloc((size_t)h->table.elements * sizeof *x);
    for (int i = 0; i < h->table.count; i++) {
        int64_t n = cairn_param_count(&h->table.param[i]);

        OK(cairn_tensor_get(&k.stream, &s.tensor[i], x + at, (size_t)n * 4, err));
        at += n;
    }
    *count = at;
    cairn_store_free(&s);
    cairn_hf_close(h);
    cairn_compute_close(&k);
    return x;
}

/* Straight from the safetensors files: every element of every table tensor. */
static void fixtures(void **state)
{
    static const struct {
        const char *dir;
        int64_t tensors;
        int files;
    } t[] = {{"tests/fixtures/models/glm51-tiny", 149, 1},
             {"tests/fixtures/models/glm52-tiny", 339, 1},
             {"tests/fixtures/models/bf16-sharded-tiny", 182, 3}};

    for (size_t i = 0; i < 3; i++) {
        struct cairn_hf *h;
        int64_t n, at = 0;
        float *x = load(t[i].dir, *state, &n);

        OK(cairn_hf_open(&h, t[i].dir, err));
        assert_int_equal(h->tensors, t[i].tensors);
        assert_int_equal(cairn_st_files(h->st), t[i].files);
        assert_int_equal(h->elements, h->table.elements);
        assert_int_equal(h->npassed, 0);
        assert_int_equal(n, h->elements);
        for (int j = 0; j < h->table.count; j++) {
            const struct cairn_param *p = &h->table.param[j];
            int64_t experts = p->ndim == 3 ? p->dim[0] : 1;

            for (int64_t e = 0; e < experts; e++) {
                char name[200];
                const struct cairn_st_tensor *f;
                unsigned char *raw;

                if (!cairn_expert_name(p->name, e, name, sizeof name))
                    snprintf(name, sizeof name, "%s", p->name);
                f = cairn_st_find(h->st, name);
                assert_non_null(f);
                raw = malloc((size_t)f->bytes);
                OK(cairn_st_read(h->st, f, 0, raw, (size_t)f->bytes, err));
                for (int64_t k = 0; k < f->count; k++) {
                    uint32_t bits = 0;

                    if (f->dtype == CAIRN_BF16)
                        memcpy((char *)&bits + 2, raw + 2 * k, 2);
                    else
                        memcpy(&bits, raw + 4 * k, 4);
                    if (memcmp(&bits, &x[at + k], 4))
                        fail_msg("%s: element %lld of %s", t[i].dir, (long long)k, name);
                }
                at += f->count;
                free(raw);
            }
        }
        cairn_hf_close(h);
        free(x);
    }
}

/* The same values single and fused, in one file and in many, in all float types. */
static void forms(void **state)
{
    static const struct {
        const char *name;
        enum cairn_dtype dtype;
        int flags;
        int64_t max_bytes;
        float tolerance; /* of the value: one rounding to the type */
    } t[] = {{"f32", CAIRN_F32, 0, 0, 0},        {"f32-fused", CAIRN_F32, HF_FUSED, 0, 0},  {"f32-many", CAIRN_F32, HF_MTP, 60000, 0},
             {"bf16", CAIRN_BF16, 0, 0, 0x1p-8f}, {"bf16-fused", CAIRN_BF16, HF_FUSED, 0, 0x1p-8f}, {"f16", CAIRN_F16, 0, 0, 0x1p-10f},
             {"f64", CAIRN_F64, HF_FUSED, 0, 0}};
    float *first = NULL, *bf16 = NULL;
    int64_t n0 = 0, n;

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct hfdir *d = hf_make("{}", t[i].dtype, t[i].flags);
        float *x;

        hf_write(d, hf_path(t[i].name), t[i].max_bytes);
        x = load(hf_path(t[i].name), "cpu", &n);
        if (!first) {
            int64_t at = 0;

            first = x;
            n0 = n;
            for (int j = 0; j < d->n && !strstr(d->t[j].name, "experts."); j++) { /* against the values that were written */
                int64_t count = 1;

                for (int k = 0; k < d->t[j].ndim; k++)
                    count *= d->t[j].shape[k];
                for (int64_t k = 0; k < count; k++)
                    assert_true(x[at + k] == hf_value(d->t[j].name, k));
                at += count;
            }
            assert_true(at > 10000);
            hf_free(d);
            continue;
        }
        assert_int_equal(n, n0);
        for (int64_t k = 0; k < n; k++)
            if (fabsf(x[k] - first[k]) > fabsf(first[k]) * t[i].tolerance + (t[i].tolerance > 0 ? 1e-7f : 0))
                fail_msg("%s: element %lld is %g, not %g", t[i].name, (long long)k, x[k], first[k]);
        if (t[i].dtype == CAIRN_BF16 && !bf16) {
            bf16 = x;
            x = NULL;
        } else if (t[i].dtype == CAIRN_BF16) {
            assert_memory_equal(bf16, x, (size_t)n * 4);
        }
        free(x);
        hf_free(d);
    }
    free(first);
    free(bf16);
}

/* e4m3fn by its definition (arXiv:2209.05433), not by the code under test. */
static double e4m3(uint8_t b)
{
    int e = b >> 3 & 15, m = b & 7;
    double x = e ? ldexp(1 + m / 8.0, e - 7) : ldexp(m / 8.0, -6);

    return b & 128 ? -x : x;
}

static void fp8(void **state)
{
    struct hfdir *d = hf_make("{\"hidden_size\": 144, \"intermediate_size\": 260, \"q_lora_rank\": 129}", CAIRN_BF16, HF_FP8 | HF_MTP);
    struct cairn_hf *h;
    int64_t n, at = 0;
    float *x;
    int checked = 0;

    (void)state;
    hf_write(d, hf_path("fp8"), 0);
    x = load(hf_path("fp8"), "cpu", &n);
    OK(cairn_hf_open(&h, hf_path("fp8"), err));
    for (int i = 0; i < h->table.count; i++) {
        const struct cairn_param *p = &h->table.param[i];

        if (p->ndim == 2 && hf_quantised(p->name)) {
            struct ht *w = hf_find(d, p->name), *s;
            char scale[220];
            int64_t bytes, unused;
            unsigned char *q = hf_bytes(w, &bytes);
            float *f;

            snprintf(scale, sizeof scale, "%s_scale_inv", p->name);
            s = hf_find(d, scale);
            f = hf_bytes(s, &unused);
            for (int64_t r = 0; r < p->dim[0]; r++)
                for (int64_t c = 0; c < p->dim[1]; c++) {
                    float want = nearest_bf16((float)e4m3(q[r * p->dim[1] + c]) * f[r / 128 * s->shape[1] + c / 128]);

                    if (x[at + r * p->dim[1] + c] != want)
                        fail_msg("%s (%lld,%lld): %g, not %g", p->name, (long long)r, (long long)c, x[at + r * p->dim[1] + c], want);
                }
            assert_int_equal(h->param[i].fp8, 1);
            assert_int_equal(h->param[i].dtype, CAIRN_BF16);
            free(q);
            free(f);
            checked++;
        } else if (p->ndim == 3) {
            assert_int_equal(h->param[i].fp8, 1);
        } else {
            assert_int_equal(h->param[i].fp8, 0);
        }
        at += cairn_param_count(p);
    }
    assert_true(checked > 30);
    assert_int_equal(h->npassed, 3);
    assert_int_equal(h->mtp_tensors, 4); /* with the scales of one */
    assert_int_equal(h->mtp_elements, 48 + 2 * 48 * 96);
    free(x);
    cairn_hf_close(h);
    hf_free(d);
}

static void passed(void **state)
{
    static const struct {
        const char *name;
        int idle;
    } t[] = {{"model.layers.2.self_attn.indexer.wk.weight", 1},      {"visual.blocks.0.attn.qkv.weight", 0},
             {"model.layers.1.self_attn.rotary_emb.inv_freq", 1},    {"model.layers.5.enorm.weight", 0},
             {"model.layers.17.mlp.experts.3.gate_proj.weight", 0}};
    struct hfdir *d = hf_make("{\"num_nextn_predict_layers\": 1}", CAIRN_F32, 0);
    struct cairn_hf *h;

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        hf_add(d, t[i].name, i == 1 ? CAIRN_I64 : CAIRN_F32, 2, 3, 5, 0);
    hf_write(d, hf_path("passed"), 0);
    OK(cairn_hf_open(&h, hf_path("passed"), err));
    assert_int_equal(h->npassed, 5);
    assert_int_equal(h->mtp_tensors, 2);
    assert_int_equal(h->mtp_elements, 30);
    assert_int_equal(h->bias_not_f32, 0);
    for (int i = 1; i < h->npassed; i++)
        assert_true(strcmp(h->passed[i - 1]->name, h->passed[i]->name) < 0);
    cairn_hf_close(h);
    hf_free(d);
}

/* What is wrong with a directory, one change at a time. */
enum change { DROP, SHAPE, DTYPE, ADD, RENAME };
static void refused(void **state)
{
    static const struct {
        enum change change;
        const char *name, *other; /* tensor; for RENAME and ADD the new one */
        int flags;
        const char *says, *why;
    } t[] = {
        {DROP, "model.norm.weight", NULL, 0, "no tensor model.norm.weight", "missing"},
        {DROP, "model.layers.3.mlp.experts.5.up_proj.weight", NULL, 0, "experts.5.up_proj.weight", "missing expert"},
        {DROP, "model.layers.3.mlp.experts.down_proj", NULL, HF_FUSED, "experts.0.down_proj.weight", "missing fused tensor"},
        {DROP, "model.layers.0.self_attn.q_b_proj.weight_scale_inv", NULL, HF_FP8, "without its scales", "FP8 without scales"},
        {SHAPE, "model.layers.1.self_attn.o_proj.weight", NULL, 0, "config.json says (48,40)", "shape"},
        {SHAPE, "model.layers.1.mlp.experts.gate_up_proj", NULL, HF_FUSED, "config.json says (8,36,48)", "fused shape"},
        {SHAPE, "model.layers.1.mlp.experts.7.down_proj.weight", NULL, 0, "experts.7.down_proj", "shape of an expert"},
        {DTYPE, "model.layers.1.self_attn.o_proj.weight", NULL, 0, "I32", "integers"},
        {DTYPE, "model.layers.1.mlp.experts.2.gate_proj.weight", NULL, 0, "I32", "integers in an expert"},
        {ADD, NULL, "model.layers.1.self_attn.q_a_proj.bias", 0, "unknown to this architecture", "a bias would be ignored"},
        {ADD, NULL, "model.layers.4.mlp.experts.8.gate_proj.weight", 0, "experts.8.gate_proj", "one expert too many"},
        {ADD, NULL, "model.layers.4.mlp.experts.gate_up_proj", 0, "which one holds the experts", "two forms"},
        {ADD, NULL, "model.layers.4.mlp.experts.3.gate_proj.weight", HF_FUSED, "experts.3.gate_proj", "a stray expert beside fused ones"},
        {ADD, NULL, "model.layers.1.self_attn.indexer.extra.weight", 0, "indexer.extra", "an unknown tensor of a full indexer"},
        {RENAME, "model.layers.1.mlp.gate.e_score_correction_bias", "model.layers.1.mlp.gate.bias", 0, "e_score_correction_bias", "misnamed"},
        {RENAME, "model.layers.1.mlp.experts.2.gate_proj.weight", "model.layers.1.mlp.experts.02.gate_proj.weight", 0, "experts.2.gate_proj", "02"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct hfdir *d = hf_make("{}", CAIRN_F32, t[i].flags);
        struct cairn_hf *h = NULL;
        struct cairn_error e = {0};
        const char *dir = hf_path("refused");

        switch (t[i].change) {
        case DROP:
            hf_drop(d, t[i].name);
            break;
        case SHAPE:
            hf_find(d, t[i].name)->shape[0]++;
            break;
        case DTYPE:
            hf_find(d, t[i].name)->dtype = CAIRN_I32;
            break;
        case ADD:
            hf_add(d, t[i].other, CAIRN_F32, 2, 18, 48, 0);
            break;
        case RENAME:
            snprintf(hf_find(d, t[i].name)->name, 200, "%s", t[i].other);
            break;
        }
        hf_write(d, dir, 0);
        if (cairn_hf_open(&h, dir, &e) != CAIRN_EDATA)
            fail_msg("accepted: %s", t[i].why);
        if (!strstr(e.text, t[i].says) || !cairn_starts_with(e.text, hf_tmp))
            fail_msg("%s: \"%s\" does not say \"%s\"", t[i].why, e.text, t[i].says);
        hf_free(d);
    }
}

/* One expert of another type than expert 0's. */
static void mixed_experts(void **state)
{
    struct hfdir *d = hf_make("{}", CAIRN_F32, 0);
    struct cairn_hf *h = NULL;
    struct cairn_error e = {0};

    (void)state;
    hf_find(d, "model.layers.2.mlp.experts.6.up_proj.weight")->dtype = CAIRN_BF16;
    hf_write(d, hf_path("mixed"), 0);
    assert_int_equal(cairn_hf_open(&h, hf_path("mixed"), &e), CAIRN_EDATA);
    assert_non_null(strstr(e.text, "experts.6.up_proj"));
    hf_find(d, "model.layers.2.mlp.experts.6.up_proj.weight")->dtype = CAIRN_F32;
    hf_find(d, "model.layers.2.mlp.gate.e_score_correction_bias")->dtype = CAIRN_BF16;
    hf_write(d, hf_path("mixed"), 0);
    OK(cairn_hf_open(&h, hf_path("mixed"), err));
    assert_int_equal(h->bias_not_f32, 1);
    cairn_hf_close(h);
    hf_free(d);
}

/* Damaged files: cut at many lengths, and a header that promises 2^62 bytes. */
static void damaged(void **state)
{
    struct hfdir *d = hf_make("{}", CAIRN_BF16, 0);
    const char *dir = hf_path("damaged");
    char path[300], *bytes;
    size_t n;
    struct cairn_hf *h = NULL;
    struct cairn_error e;
    uint64_t size = UINT64_C(1) << 62;

    (void)state;
    hf_write(d, dir, 0);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    OK(cairn_file_read(path, 1 << 28, &bytes, &n, err));
    for (size_t cut = 0; cut < n; cut += cut < 64 ? 1 : n / 37) {
        OK(cairn_file_replace(path, bytes, cut, err));
        assert_int_equal(cairn_hf_open(&h, dir, &e), CAIRN_EDATA);
        assert_non_null(strstr(e.text, "model.safetensors"));
    }
    OK(cairn_file_replace(path, bytes, n - 1, err));
    assert_int_equal(cairn_hf_open(&h, dir, &e), CAIRN_EDATA);
    memcpy(bytes, &size, 8);
    OK(cairn_file_replace(path, bytes, n, err));
    assert_int_equal(cairn_hf_open(&h, dir, &e), CAIRN_EDATA);
    assert_non_null(strstr(e.text, "model.safetensors"));
    free(bytes);
    hf_free(d);
}

/* The tensors of a glm5_next fixture under the names that `rename` makes of theirs, with values by the new names. */
static struct hfdir *flash_dir(void (*rename_)(char *name))
{
    struct hfdir *d = calloc(1, sizeof *d);
    struct cairn_st *st;

    assert_non_null(d);
    OK(cairn_json_load(&d->config, "tests/fixtures/models/glm53flash-tiny/config.json", 1 << 20, err));
    OK(cairn_st_open(&st, "tests/fixtures/models/glm53flash-tiny", err));
    for (int i = 0; i < cairn_st_count(st); i++) {
        const struct cairn_st_tensor *t = cairn_st_at(st, i);

        if (strstr(t->name, ".visual.") || t->ndim > 3)
            continue;
        hf_add(d, t->name, CAIRN_F32, t->ndim, t->shape[0], t->ndim > 1 ? t->shape[1] : 0, t->ndim > 2 ? t->shape[2] : 0);
        rename_(d->t[d->n - 1].name);
    }
    cairn_st_close(st);
    return d;
}

static void swap_in(char *name, const char *from, const char *to)
{
    char *at = strstr(name, from), tail[240];

    if (!at)
        return;
    snprintf(tail, sizeof tail, "%s", at + strlen(from));
    snprintf(at, (size_t)(240 - (at - name)), "%s%s", to, tail);
}

static void as_they_are(char *name)
{
    (void)name;
}

static void in_memory(char *name)
{
    static const char *const words[][2] = {{".A_log", ".forget_gate.A_log"},   {".dt_bias", ".forget_gate.dt_bias"},
                                           {".f_a_proj.", ".forget_gate.f_a_proj."}, {".f_b_proj.", ".forget_gate.f_b_proj."},
                                           {".hc_attn_", ".attn_hc."},         {".hc_ffn_", ".ffn_hc."},
                                           {"model.language_model.", "model."}};

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        swap_in(name, words[i][0], words[i][1]);
}

/* glm5_next under other names that mean the same, A_log in four dimensions; two names for one tensor are too many. */
static void other_names(void **state)
{
    void (*const how[])(char *) = {as_they_are, in_memory};
    const char *dir = hf_path("names");

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct hfdir *d = flash_dir(how[i]);
        struct cairn_hf *h;
        struct cairn_error e = {0};
        struct ht *a = NULL;
        float got[4];
        int p;

        for (int k = 0; k < d->n; k++)
            if (strstr(d->t[k].name, "layers.0.") && cairn_ends_with(d->t[k].name, ".A_log"))
                a = &d->t[k];
        assert_non_null(a);
        a->ndim = 4;
        memcpy(a->shape, (const int64_t[4]){1, 1, 4, 1}, sizeof a->shape);
        hf_write(d, dir, 0);
        OK(cairn_hf_open(&h, dir, err));
        assert_int_equal(h->npassed, 0);
        p = cairn_param_find(&h->table, "model.language_model.layers.0.self_attn.A_log");
        assert_true(p >= 0);
        OK(cairn_hf_read(h, p, 0, 4, CAIRN_F32, got, err));
        for (int j = 0; j < 4; j++)
            assert_true(got[j] == hf_value(a->name, j));
        cairn_hf_close(h);

        hf_add(d, i ? "model.language_model.layers.0.hc_attn_base" : "model.layers.0.attn_hc.base", CAIRN_F32, 1, 24, 0, 0);
        hf_write(d, dir, 0);
        assert_int_equal(cairn_hf_open(&h, dir, &e), CAIRN_EDATA);
        assert_non_null(strstr(e.text, "mean the same"));
        hf_free(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON("cpu", fixtures), ON("guard", fixtures), cmocka_unit_test(forms), cmocka_unit_test(fp8), cmocka_unit_test(passed),
        cmocka_unit_test(refused), cmocka_unit_test(mixed_experts), cmocka_unit_test(damaged),
        cmocka_unit_test(other_names),
    };

    return cmocka_run_group_tests(tests, hf_tmp_make, hf_tmp_remove);
}

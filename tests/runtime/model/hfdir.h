/* hfdir.h - makes HuggingFace directories for tests: a list of tensors from a configuration, changed at will, written with values that
 * depend on the name alone. */
#ifndef TESTS_MODEL_HFDIR_H
#define TESTS_MODEL_HFDIR_H

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/file.h"
#include "base/str.h"
#include "ckpt/convert.h"
#include "ckpt/safetensors.h"
#include "tiny.h"

struct ht {
    char name[240];
    enum cairn_dtype dtype;
    int ndim;
    int64_t shape[4];
};

struct hfdir {
    json_t *config;
    struct ht t[4000];
    int n;
};

static char hf_tmp[64];

static inline int hf_tmp_make(void **state)
{
    (void)state;
    snprintf(hf_tmp, sizeof hf_tmp, "/tmp/cairn-test-XXXXXX");
    return mkdtemp(hf_tmp) ? 0 : -1;
}

static inline int hf_tmp_remove(void **state)
{
    (void)state;
    return cairn_tree_remove(hf_tmp, NULL) == CAIRN_OK ? 0 : -1;
}

/* "TMP/name", good until the eighth next call */
static inline const char *hf_path(const char *name)
{
    static char buf[8][256];
    static int i;

    i = (i + 1) % 8;
    snprintf(buf[i], sizeof buf[i], "%s/%s", hf_tmp, name);
    return buf[i];
}

static inline void hf_add(struct hfdir *d, const char *name, enum cairn_dtype dtype, int ndim, int64_t a, int64_t b, int64_t c)
{
    struct ht *t = &d->t[d->n++];

    assert_true(d->n <= (int)(sizeof d->t / sizeof *d->t));
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->dtype = dtype;
    t->ndim = ndim;
    t->shape[0] = a;
    t->shape[1] = b;
    t->shape[2] = c;
}

static inline struct ht *hf_find(struct hfdir *d, const char *name)
{
    for (int i = 0; i < d->n; i++)
        if (!strcmp(d->t[i].name, name))
            return &d->t[i];
    fail_msg("no %s", name);
    return NULL;
}

static inline void hf_drop(struct hfdir *d, const char *name)
{
    struct ht *t = hf_find(d, name);

    *t = d->t[--d->n];
}

enum { HF_FUSED = 1, HF_FP8 = 2, HF_MTP = 4 };

static inline int hf_quantised(const char *name)
{
    return cairn_ends_with(name, "_proj.weight") ? !strstr(name, "weights_proj") && !strstr(name, "eh_proj")
                                                 : cairn_ends_with(name, "with_mqa.weight") || cairn_ends_with(name, "wq_b.weight") ||
                                                       cairn_ends_with(name, "wk.weight");
}

/* One tensor, quantised if the flags and its name say so. */
static inline void hf_weight(struct hfdir *d, const char *name, enum cairn_dtype dtype, int flags, int ndim, const int64_t *dim)
{
    char scale[220];

    if (!(flags & HF_FP8) || ndim != 2 || !hf_quantised(name)) {
        hf_add(d, name, dtype, ndim, dim[0], dim[1], dim[2]);
        return;
    }
    hf_add(d, name, CAIRN_F8E4M3, 2, dim[0], dim[1], 0);
    snprintf(scale, sizeof scale, "%s_scale_inv", name);
    hf_add(d, scale, CAIRN_F32, 2, (dim[0] + 127) / 128, (dim[1] + 127) / 128, 0);
}

/* Members of `patch` replace those of the tiny configuration. Biases are f32 as in published files. */
static inline struct hfdir *hf_make(const char *patch, enum cairn_dtype dtype, int flags)
{
    struct hfdir *d = calloc(1, sizeof *d);
    struct cairn_model_config c;
    struct cairn_param_table t;
    char text[4096], name[200];
    json_t *p;

    assert_non_null(d);
    snprintf(text, sizeof text, TINY_CONFIG, TINY_SPARSE);
    OK(cairn_json_parse(&d->config, text, strlen(text), "tiny", err));
    OK(cairn_json_parse(&p, patch, strlen(patch), "patch", err));
    json_object_update(d->config, p);
    json_decref(p);
    if (flags & HF_MTP)
        json_object_set_new(d->config, "num_nextn_predict_layers", json_integer(1));
    if (flags & HF_FP8)
        json_object_set_new(d->config, "quantization_config", json_pack("{s:s, s:[i,i]}", "quant_method", "fp8", "weight_block_size", 128, 128));
    OK(cairn_config_parse(&c, d->config, "tiny", err));
    OK(cairn_param_table_create(&t, &c, err));
    for (int i = 0; i < t.count; i++) {
        const struct cairn_param *q = &t.param[i];
        int64_t down[3] = {0}, up[3] = {0};

        if (q->ndim != 3) {
            hf_weight(d, q->name, q->keep_f32 ? CAIRN_F32 : dtype, flags, q->ndim, q->dim);
            continue;
        }
        memcpy(down, q->dim, sizeof down);
        memcpy(up, q->dim, sizeof up);
        up[1] *= 2;
        if (!(flags & HF_FUSED)) {
            for (int e = 0; e < q->dim[0]; e++) {
                snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s", q->layer, e, strstr(q->name, "experts.") + 8);
                down[0] = q->dim[1];
                down[1] = q->dim[2];
                hf_weight(d, name, dtype, flags, 2, down);
            }
        } else if (!strstr(q->name, ".up_proj")) {
            int is_down = strstr(q->name, "down_proj") != NULL;

            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s", q->layer, is_down ? "down_proj" : "gate_up_proj");
            hf_weight(d, name, dtype, flags, 3, is_down ? down : up);
        }
    }
    if (flags & HF_MTP) {
        int64_t v[3] = {48, 0, 0}, m[3] = {48, 96, 0};

        snprintf(name, sizeof name, "model.layers.%d.enorm.weight", c.layers);
        hf_weight(d, name, dtype, flags, 1, v);
        snprintf(name, sizeof name, "model.layers.%d.eh_proj.weight", c.layers);
        hf_weight(d, name, dtype, flags, 2, m);
        snprintf(name, sizeof name, "model.layers.%d.self_attn.q_a_proj.weight", c.layers);
        hf_weight(d, name, dtype, flags, 2, m);
    }
    cairn_param_table_free(&t);
    cairn_config_free(&c);
    return d;
}

static inline void hf_free(struct hfdir *d)
{
    json_decref(d->config);
    free(d);
}

/* Element j of tensor `name` before it is narrowed; a fused tensor holds what the single experts would. */
static inline float hf_value(const char *name, int64_t j)
{
    struct cairn_philox_key key = {1, CAIRN_PURPOSE_INIT, (uint32_t)cairn_digest_bytes(name, strlen(name)).lo};
    uint32_t w[4];
    double z[2];

    cairn_philox(&key, (uint32_t)j, 0, 0, w);
    cairn_normal2(w[0], w[1], z);
    return (float)(0.1 * z[0]);
}

static inline void *hf_bytes(const struct ht *t, int64_t *bytes)
{
    int64_t n = 1;
    char *p;

    for (int i = 0; i < t->ndim; i++)
        n *= t->shape[i];
    *bytes = n * (int64_t)cairn_dtype_size(t->dtype);
    p = calloc((size_t)*bytes + 1, 1);
    assert_non_null(p);
    for (int64_t j = 0; j < n; j++) {
        const char *name = t->name, *fused = strstr(t->name, ".mlp.experts.gate_up_proj");
        int64_t at = j;
        char single[220];
        float x;

        if (!fused)
            fused = strstr(t->name, ".mlp.experts.down_proj");
        if (fused && t->ndim == 3) {
            int64_t e = j / (t->shape[1] * t->shape[2]), row = j / t->shape[2] % t->shape[1], half = t->shape[1] / 2, up = 0;
            int gate_up = strstr(t->name, "gate_up") != NULL;

            if (gate_up && row >= half) {
                up = 1;
                row -= half;
            }
            snprintf(single, sizeof single, "%.*s.mlp.experts.%lld.%s.weight", (int)(fused - t->name), t->name, (long long)e,
                     gate_up ? up ? "up_proj" : "gate_proj" : "down_proj");
            name = single;
            at = row * t->shape[2] + j % t->shape[2];
        }
        x = hf_value(name, at);
        if (t->dtype == CAIRN_F8E4M3) {
            p[j] = (char)(cairn_f32_to_e4m3(100 * x));
        } else if (t->dtype == CAIRN_F32 || t->dtype == CAIRN_BF16 || t->dtype == CAIRN_F16) {
            if (strstr(t->name, "_scale_inv"))
                x = fabsf(x) + 0.001f;
            assert_true(cairn_convert(t->dtype, p + j * (int64_t)cairn_dtype_size(t->dtype), CAIRN_F32, &x, 1));
        } else if (t->dtype == CAIRN_F64) {
            double y = x;

            memcpy(p + j * 8, &y, 8);
        } else {
            p[j * (int64_t)cairn_dtype_size(t->dtype)] = (char)(j * 7 + 1);
        }
    }
    return p;
}

static inline void hf_write_file(const char *dir, const char *name, const char *text)
{
    char path[400];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    OK(cairn_file_replace(path, text, strlen(text), err));
}

/* max_bytes: of one file, 0 one file. */
static inline void hf_write(const struct hfdir *d, const char *dir, int64_t max_bytes)
{
    struct cairn_st_decl *decl = calloc((size_t)d->n, sizeof *decl);
    const struct cairn_st_writer_opts o = {.max_bytes = max_bytes};
    struct cairn_st_writer *w;
    struct cairn_str text = {0};

    assert_non_null(decl);
    for (int i = 0; i < d->n; i++) {
        decl[i] = (struct cairn_st_decl){
            .name = d->t[i].name, .word = cairn_st_word(d->t[i].dtype), .esize = (int64_t)cairn_dtype_size(d->t[i].dtype), .ndim = d->t[i].ndim};
        memcpy(decl[i].shape, d->t[i].shape, sizeof d->t[i].shape);
    }
    OK(cairn_st_writer_create(&w, dir, decl, d->n, &o, err));
    for (int i = 0; i < d->n; i++) {
        int64_t n;
        void *p = hf_bytes(&d->t[i], &n);

        OK(cairn_st_writer_add(w, i, p, (size_t)n, err));
        free(p);
    }
    OK(cairn_st_writer_finish(w, err));
    cairn_st_writer_destroy(w);
    free(decl);
    cairn_json_pretty(&text, d->config);
    hf_write_file(dir, "config.json", cairn_str_z(&text));
    cairn_str_free(&text);
}

/* Every tensor of two safetensors directories: names, types, shapes and bytes. */
static inline void hf_same(const char *a, const char *b)
{
    struct cairn_st *x, *y;

    OK(cairn_st_open(&x, a, err));
    OK(cairn_st_open(&y, b, err));
    if (cairn_st_count(x) != cairn_st_count(y))
        fail_msg("%s has %d tensors, %s %d", a, cairn_st_count(x), b, cairn_st_count(y));
    for (int i = 0; i < cairn_st_count(x); i++) {
        const struct cairn_st_tensor *s = cairn_st_at(x, i), *t = cairn_st_at(y, i);
        char *p, *q;

        if (strcmp(s->name, t->name) || strcmp(s->word, t->word) || s->ndim != t->ndim || memcmp(s->shape, t->shape, (size_t)s->ndim * 8) ||
            s->bytes != t->bytes)
            fail_msg("%s: %s is not %s of %s", b, t->name, s->name, a);
        p = malloc((size_t)s->bytes + 1);
        q = malloc((size_t)s->bytes + 1);
        OK(cairn_st_read(x, s, 0, p, (size_t)s->bytes, err));
        OK(cairn_st_read(y, t, 0, q, (size_t)s->bytes, err));
        if (memcmp(p, q, (size_t)s->bytes))
            fail_msg("%s: other bytes in %s than in %s", b, s->name, a);
        free(p);
        free(q);
    }
    cairn_st_close(x);
    cairn_st_close(y);
}

#endif

/* hf_save.c - writes HuggingFace checkpoints from artefacts: everything streams from reader to writer, an expert or a piece at a time.
 *
 * One walk over the table makes a list of files' tensors (a table tensor, one expert of it, or a fused pair), which is declared and then
 * filled in that order. A tensor that no adapter changes is copied in the type it is stored in, bit for bit.
 */
#include "model/hf_save.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"
#include "ckpt/convert.h"
#include "ckpt/safetensors.h"
#include "model/base.h"
#include "model/hf.h"
#include "model/names.h"
#include "model/passed.h"
#include "model/peft.h"

#define NAME_BYTES CAIRN_NAME_BYTES
#define PIECE ((int64_t)64 << 20)
#define FILE_BYTES INT64_C(5000000000)

struct item {             /* one tensor of the file */
    int param;            /* table index; -1: passed */
    int second;           /* fused: the up projection, else -1 */
    int64_t begin, rows;  /* rows of dimension 0 of param: all, or one expert */
    int passed;
};

struct saver {
    const struct cairn_model_config *c;
    const struct cairn_param_table *t;
    const struct cairn_hf_save_opts *o;
    struct cairn_passed_set *passed;
    struct item *item;
    struct cairn_st_decl *decl;
    int n, cap;
    struct cairn_st_writer *w;
    struct cairn_progress *bar;
    int64_t done;
    int at; /* item being written */
    float *lora_a[2], *lora_b[2]; /* of the layers being merged: gate and up of a fused matrix are neighbours in the table */
    int lora_of[2];
};

/* ---- the list ------------------------------------------------------------------------------------------------------------------------ */

static enum cairn_status add(struct saver *s, struct item it, const char *name, const char *word, int64_t esize, int ndim, const int64_t *shape,
                             struct cairn_error *err)
{
    struct cairn_st_decl *d;

    if (s->n == s->cap) {
        int cap = s->cap ? 2 * s->cap : 1024;
        struct item *items = realloc(s->item, (size_t)cap * sizeof(*items));

        if (items)
            s->item = items;
        d = realloc(s->decl, (size_t)cap * sizeof(*d));
        if (d)
            s->decl = d;
        if (!items || !d)
            return CAIRN_NOMEM(err);
        s->cap = cap;
    }
    d = &s->decl[s->n];
    memset(d, 0, sizeof(*d));
    d->name = strdup(name);
    if (!d->name)
        return CAIRN_NOMEM(err);
    d->word = word;
    d->esize = esize;
    d->ndim = ndim;
    memcpy(d->shape, shape, (size_t)ndim * sizeof(*shape));
    s->item[s->n++] = it;
    return CAIRN_OK;
}

/* Where parameter i lies, and its type there. */
static enum cairn_status locate(const struct saver *s, int i, struct cairn_reader **r, enum cairn_dtype *dtype, struct cairn_error *err)
{
    const char *name = s->t->param[i].name;
    const struct cairn_tensor_entry *e = NULL;
    enum cairn_status st;

    *r = s->o->weights && cairn_manifest_find(cairn_reader_manifest(s->o->weights), name) ? s->o->weights : s->o->base;
    st = cairn_reader_find(*r, name, &e, err);
    if (st != CAIRN_OK)
        return st;
    *dtype = e->dtype;
    return cairn_reader_expect(*r, name, e->dtype, s->t->param[i].ndim, s->t->param[i].dim, &e, err);
}

/* 1: `which` ("gate_up_proj", "down_proj") of that layer was fused in the source. */
static int was_fused(const struct saver *s, int layer, const char *which)
{
    const json_t *list = json_object_get(cairn_reader_manifest(s->o->base)->content, "fused"), *v;
    size_t i;

    json_array_foreach(list, i, v) {
        const char *w = json_string_value(json_array_get(v, 1));

        if (json_integer_value(json_array_get(v, 0)) == layer && w && strcmp(w, which) == 0)
            return 1;
    }
    return 0;
}

static enum cairn_status list_stack(struct saver *s, int i, const char *word, int64_t esize, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_param *p = &s->t->param[i];
    int up = cairn_ends_with(p->name, ".up_proj.weight"), down = cairn_ends_with(p->name, ".down_proj.weight");
    const char *which = down ? "down_proj" : "gate_up_proj";
    char name[NAME_BYTES];

    if (was_fused(s, p->layer, which)) {
        const int64_t shape[3] = {p->dim[0], down ? p->dim[1] : 2 * p->dim[1], p->dim[2]};
        struct item it = {.param = i, .second = down ? -1 : i + 1, .begin = 0, .rows = p->dim[0]};

        if (up)
            return CAIRN_OK; /* with gate, its neighbour in the table */
        cairn_name_of_layer(s->c, p->layer, down ? "mlp.experts.down_proj" : "mlp.experts.gate_up_proj", name);
        return add(s, it, name, word, esize, 3, shape, err);
    }
    for (int64_t e = 0; e < p->dim[0]; e++) {
        struct item it = {.param = i, .second = -1, .begin = e, .rows = 1};

        cairn_expert_name(p->name, e, name, sizeof(name));
        TRY(add(s, it, name, word, esize, 2, p->dim + 1, err));
    }
out:
    return st;
}

static enum cairn_status make_list(struct saver *s, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < s->t->count; i++) {
        const struct cairn_param *p = &s->t->param[i];
        struct item it = {.param = i, .second = -1, .begin = 0, .rows = p->dim[0]};
        struct cairn_reader *r = NULL;
        enum cairn_dtype dtype;

        TRY(locate(s, i, &r, &dtype, err));
        if (p->experts)
            TRY(list_stack(s, i, cairn_st_word(dtype), (int64_t)cairn_dtype_size(dtype), err));
        else
            TRY(add(s, it, p->name, cairn_st_word(dtype), (int64_t)cairn_dtype_size(dtype), p->ndim, p->dim, err));
    }
    for (int i = 0; !s->o->trained_only && i < cairn_passed_count(s->passed); i++) {
        const struct cairn_passed *t = cairn_passed_at(s->passed, i);
        struct item it = {.param = -1, .second = -1, .passed = i};

        TRY(add(s, it, t->name, t->word, t->esize, t->ndim, t->shape, err));
    }
out:
    return st;
}

/* ---- merging ------------------------------------------------------------------------------------------------------------------------- */

static enum cairn_status fetch_lora(struct saver *s, int j, float **out, struct cairn_error *err)
{
    int64_t n = cairn_param_count(&s->o->adapter->table.param[j]);
    struct cairn_peft_reader from = {s->o->adapter, s->o->adapter_weights};

    free(*out);
    *out = malloc((size_t)n * sizeof(**out));
    if (!*out)
        return CAIRN_NOMEM(err);
    return cairn_peft_fetch_reader(&from, j, *out, n, err);
}

/* x (rows of dimension 0, from `begin`) += gamma * (B A), each element's sum finished in fp32 (rank ascending) before it is added. */
static enum cairn_status merge(struct saver *s, int i, int64_t begin, int64_t rows, float *x, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_lora *l = &s->o->adapter->lora[s->o->adapter->of_param[i]];
    const struct cairn_param *p = &s->t->param[i];
    int64_t in = p->dim[p->ndim - 1], out = p->experts ? p->dim[1] : rows, r = l->rank;
    int64_t stacks = p->experts ? rows : 1;
    int slot = i & 1;
    float *sum = malloc((size_t)in * sizeof(*sum));

    if (!sum)
        TRY(CAIRN_NOMEM(err));
    if (s->lora_of[slot] != i) {
        s->lora_of[slot] = -1;
        TRY(fetch_lora(s, l->a, &s->lora_a[slot], err));
        TRY(fetch_lora(s, l->b, &s->lora_b[slot], err));
        s->lora_of[slot] = i;
    }
    for (int64_t e = 0; e < stacks; e++) {
        const float *a = s->lora_a[slot] + (p->experts ? (begin + e) * r * in : 0);
        const float *b = s->lora_b[slot] + (p->experts ? (begin + e) * out * r : begin * r);

        for (int64_t o = 0; o < out; o++) {
            float *w = x + (e * out + o) * in;

            memset(sum, 0, (size_t)in * sizeof(*sum));
            for (int64_t q = 0; q < r; q++) {
                float f = b[o * r + q];

                for (int64_t k = 0; k < in; k++)
                    sum[k] += f * a[q * in + k];
            }
            for (int64_t k = 0; k < in; k++)
                w[k] += l->gamma * sum[k];
        }
    }
out:
    free(sum);
    return st;
}

/* ---- writing -------------------------------------------------------------------------------------------------------------------------- */

static enum cairn_status give(void *arg, const void *p, size_t n, struct cairn_error *err)
{
    struct saver *s = arg;

    s->done += (int64_t)n;
    cairn_progress_at(s->bar, s->done);
    return cairn_st_writer_add(s->w, s->at, p, n, err);
}

/* Rows [begin, begin + rows) of parameter i to the writer. */
static enum cairn_status write_rows(struct saver *s, int i, int64_t begin, int64_t rows, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_param *p = &s->t->param[i];
    int64_t row = cairn_param_count(p) / p->dim[0], piece = PIECE / (row * 4) ? PIECE / (row * 4) : 1;
    int merged = s->o->adapter && s->o->adapter->of_param[i] >= 0;
    struct cairn_reader *r = NULL;
    enum cairn_dtype dtype;
    void *raw = NULL;
    float *wide = NULL;

    TRY(locate(s, i, &r, &dtype, err));
    piece = piece < rows ? piece : rows;
    raw = malloc((size_t)(piece * row) * cairn_dtype_size(dtype));
    wide = merged ? malloc((size_t)(piece * row) * sizeof(*wide)) : NULL;
    if (!raw || (merged && !wide))
        TRY(CAIRN_NOMEM(err));
    for (int64_t at = begin; at < begin + rows; at += piece) {
        int64_t n = begin + rows - at < piece ? begin + rows - at : piece;
        size_t bytes = (size_t)(n * row) * cairn_dtype_size(dtype);

        TRY(cairn_reader_rows(r, p->name, at, n, raw, bytes, err));
        if (merged) {
            if (!cairn_convert(CAIRN_F32, wide, dtype, raw, (size_t)(n * row)))
                TRY(cairn_fail(err, CAIRN_EDATA, "%s: %s is %s, not a weight", cairn_reader_path(r), p->name, cairn_dtype_name(dtype)));
            TRY(merge(s, i, at, n, wide, err));
            if (!cairn_convert(dtype, raw, CAIRN_F32, wide, (size_t)(n * row)))
                TRY(cairn_fail(err, CAIRN_EDATA, "%s: %s is %s, which merged weights cannot be written as", cairn_reader_path(r), p->name,
                               cairn_dtype_name(dtype)));
        }
        TRY(give(s, raw, bytes, err));
    }
out:
    free(raw);
    free(wide);
    return st;
}

static enum cairn_status write_all(struct saver *s, struct cairn_hf_saved *saved, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (s->at = 0; s->at < s->n; s->at++) {
        const struct item *it = &s->item[s->at];

        if (cairn_stop_requested())
            TRY(cairn_fail(err, CAIRN_EAGAIN, "stopped while exporting"));
        if (it->param < 0) {
            TRY(cairn_passed_read(s->passed, it->passed, give, s, err));
            saved->passed++;
            continue;
        }
        saved->merged += s->o->adapter && s->o->adapter->of_param[it->param] >= 0;
        if (it->second < 0) {
            TRY(write_rows(s, it->param, it->begin, it->rows, err));
            continue;
        }
        for (int64_t e = it->begin; e < it->begin + it->rows; e++) { /* fused: gate rows, then up rows, expert by expert */
            TRY(write_rows(s, it->param, e, 1, err));
            TRY(write_rows(s, it->second, e, 1, err));
        }
    }
    saved->tensors = s->n;
    saved->bytes = s->done;
out:
    return st;
}

/* ---- small files -------------------------------------------------------------------------------------------------------------------------- */

static const char *torch_word(enum cairn_dtype t)
{
    return t == CAIRN_BF16 ? "bfloat16" : t == CAIRN_F16 ? "float16" : "float32";
}

/* config.json: the base's bytes, unless the weights are a policy's of another type. */
static enum cairn_status write_config(const struct saver *s, const char *from, const char *to, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *bytes = NULL;
    size_t n = 0;
    struct cairn_str text = {0};
    json_t *o = NULL;
    struct cairn_reader *r = NULL;
    enum cairn_dtype now = CAIRN_F32;
    const char *key = json_object_get(s->c->raw, "torch_dtype") && !json_object_get(s->c->raw, "dtype") ? "torch_dtype" : "dtype";
    const char *was = json_string_value(json_object_get(s->c->raw, key));

    TRY(cairn_file_read(from, (size_t)16 << 20, &bytes, &n, err));
    TRY(locate(s, 0, &r, &now, err));
    if (s->o->weights && (!was || strcmp(was, torch_word(now)) != 0)) {
        TRY(cairn_json_parse(&o, bytes, n, from, err));
        if (json_object_set_new(o, key, json_string(torch_word(now))))
            TRY(CAIRN_NOMEM(err));
        cairn_json_pretty(&text, o);
        cairn_str_putc(&text, '\n');
    } else {
        cairn_str_add(&text, bytes, n);
    }
    if (text.oom)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_file_replace(to, text.p, text.len, err));
out:
    free(bytes);
    cairn_str_free(&text);
    json_decref(o);
    return st;
}

static enum cairn_status copy_small(const struct saver *s, const char *dir, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    json_t *files = json_object_get(cairn_reader_manifest(s->o->base)->content, "files"), *v;
    const char *name;
    char *from = NULL, *to = NULL, *bytes = NULL;

    json_object_foreach(files, name, v) {
        size_t n = 0;

        free(from);
        free(to);
        free(bytes);
        from = to = bytes = NULL;
        TRY(cairn_base_file(s->o->base_dir, cairn_reader_manifest(s->o->base), name, &from, err));
        to = cairn_path_join(dir, name);
        if (!to)
            TRY(CAIRN_NOMEM(err));
        if (strcmp(name, "config.json") == 0) {
            TRY(write_config(s, from, to, err));
            continue;
        }
        TRY(cairn_file_read(from, (size_t)256 << 20, &bytes, &n, err));
        TRY(cairn_file_replace(to, bytes, n, err));
    }
out:
    free(from);
    free(to);
    free(bytes);
    return st;
}

enum cairn_status cairn_hf_save(const char *dir, const struct cairn_model_config *c, const struct cairn_param_table *t,
                                const struct cairn_hf_save_opts *opts, struct cairn_hf_saved *saved, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct saver s = {.c = c, .t = t, .o = opts, .lora_of = {-1, -1}};
    const struct cairn_st_writer_opts wo = {.max_bytes = opts->max_bytes > 0 ? opts->max_bytes : FILE_BYTES};
    int64_t total = 0;

    memset(saved, 0, sizeof(*saved));
    TRY(cairn_passed_open(&s.passed, opts->base, err));
    TRY(make_list(&s, err));
    for (int i = 0; i < s.n; i++) {
        int64_t bytes = s.decl[i].esize;

        for (int d = 0; d < s.decl[i].ndim; d++)
            bytes *= s.decl[i].shape[d];
        total += bytes;
    }
    TRY(cairn_dir_make(dir, err));
    TRY(copy_small(&s, dir, err));
    s.bar = cairn_progress_begin("export", "bytes", total, 10);
    TRY(cairn_st_writer_create(&s.w, dir, s.decl, s.n, &wo, err));
    TRY(write_all(&s, saved, err));
    TRY(cairn_st_writer_finish(s.w, err));
out:
    cairn_progress_end(s.bar);
    cairn_st_writer_destroy(s.w);
    cairn_passed_close(s.passed);
    for (int i = 0; i < s.n; i++)
        free((char *)s.decl[i].name);
    free(s.decl);
    free(s.item);
    for (int i = 0; i < 2; i++) {
        free(s.lora_a[i]);
        free(s.lora_b[i]);
    }
    return st;
}

/* hf.c - holds the tensors of a HuggingFace directory against the parameter table, then reads them by it.
 *
 * Looking up is done once, in cairn_hf_open; reading builds the file's names again from the table's, so nothing is kept a tensor
 * but its form. A layer's experts are either all single or all fused: a mixture inside one layer is refused, since one of the two
 * would be ignored.
 */
#include "model/hf.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"
#include "ckpt/convert.h"
#include "model/names.h"
#include "model/values.h"

#define NAME_MAX_BYTES CAIRN_NAME_BYTES
#define SCALE "_scale_inv"

/* ---- names ---------------------------------------------------------------------------------------------------------- */

int cairn_expert_name(const char *param, int64_t e, char *out, size_t n)
{
    static const char mark[] = ".mlp.experts.";
    const char *at = strstr(param, mark);
    int w;

    if (!at)
        return 0;
    at += sizeof(mark) - 1;
    if (e < 0)
        w = snprintf(out, n, "%.*s*.%s", (int)(at - param), param, at);
    else
        w = snprintf(out, n, "%.*s%lld.%s", (int)(at - param), param, (long long)e, at);
    return w > 0 && (size_t)w < n;
}

/* The fused tensor that a stacked parameter is a part of; *row: its first row inside each expert's matrix. */
static void fused_name(const struct cairn_hf *h, const struct cairn_param *p, char *out, int64_t *row)
{
    int down = cairn_ends_with(p->name, ".down_proj.weight");

    cairn_name_of_layer(&h->config, p->layer, down ? "mlp.experts.down_proj" : "mlp.experts.gate_up_proj", out);
    *row = cairn_ends_with(p->name, ".up_proj.weight") ? p->dim[1] : 0;
}

/* The file's tensor for a name of the table, under that name or another that means the same. */
static const struct cairn_st_tensor *find(const struct cairn_hf *h, const char *name)
{
    const struct cairn_st_tensor *t = cairn_st_find(h->st, name);
    char other[CAIRN_NAME_BYTES];

    for (int i = 0; !t && cairn_name_other(&h->config, name, i, other); i++)
        t = cairn_st_find(h->st, other);
    return t;
}

/* ---- checks ---------------------------------------------------------------------------------------------------------- */

static void shape_text(char *out, size_t n, int ndim, const int64_t *dim)
{
    size_t at = 0;

    out[0] = '\0';
    for (int i = 0; i < ndim && at + 24 < n; i++)
        at += (size_t)snprintf(out + at, n - at, "%s%lld", i ? "," : "", (long long)dim[i]);
}

static enum cairn_status check_tensor(const struct cairn_hf *h, const char *name, int ndim, const int64_t *dim,
                                      const struct cairn_st_tensor **out, struct cairn_error *err)
{
    const struct cairn_st_tensor *t = find(h, name);
    int same = t && t->ndim == ndim;
    int64_t count = 1;
    char have[160], want[160];

    if (!t)
        return cairn_fail(err, CAIRN_EDATA, "%s: no tensor %s, which config.json calls for", h->dir, name);
    for (int i = 0; same && i < ndim; i++)
        same = t->shape[i] == dim[i];
    for (int i = 0; i < ndim; i++)
        count *= dim[i];
    if (!same && !(cairn_ends_with(name, ".A_log") && t->count == count)) { /* some keep its heads in a dimension of four */
        shape_text(have, sizeof(have), t->ndim, t->shape);
        shape_text(want, sizeof(want), ndim, dim);
        return cairn_fail(err, CAIRN_EDATA, "%s: %s has shape (%s), config.json says (%s)", cairn_st_file(h->st, t->file), name, have, want);
    }
    if (t->dtype != CAIRN_F32 && t->dtype != CAIRN_BF16 && t->dtype != CAIRN_F16 && t->dtype != CAIRN_F64 && t->dtype != CAIRN_F8E4M3)
        return cairn_fail(err, CAIRN_EDATA, "%s: %s is %s; weights may be F32, BF16, F16, F64 or F8_E4M3", cairn_st_file(h->st, t->file),
                          name, t->word);
    if (t->dtype == CAIRN_F8E4M3 && !cairn_st_scales(h->st, t))
        return cairn_fail(err, CAIRN_EDATA, "%s: %s is F8_E4M3 without its scales %s%s", cairn_st_file(h->st, t->file), name, name, SCALE);
    *out = t;
    return CAIRN_OK;
}

static void note_dtype(struct cairn_hf_param *q, const struct cairn_st_tensor *t)
{
    q->fp8 = t->dtype == CAIRN_F8E4M3;
    q->dtype = q->fp8 ? CAIRN_BF16 : (enum cairn_dtype)t->dtype;
}

static enum cairn_status look_up_stack(struct cairn_hf *h, int i, struct cairn_error *err)
{
    const struct cairn_param *p = &h->table.param[i];
    struct cairn_hf_param *q = &h->param[i];
    const struct cairn_st_tensor *t, *fused;
    enum cairn_status st = CAIRN_OK;
    char name[NAME_MAX_BYTES], single[NAME_MAX_BYTES];
    int64_t row, dim[3];

    fused_name(h, p, name, &row);
    cairn_expert_name(p->name, 0, single, sizeof(single));
    fused = find(h, name);
    if (fused && find(h, single))
        return cairn_fail(err, CAIRN_EDATA, "%s: both %s and %s are there; which one holds the experts?", h->dir, name, single);
    if (fused) {
        dim[0] = p->dim[0];
        dim[1] = cairn_ends_with(p->name, ".down_proj.weight") ? p->dim[1] : 2 * p->dim[1];
        dim[2] = p->dim[2];
        TRY(check_tensor(h, name, 3, dim, &t, err));
        q->form = CAIRN_HF_FUSED;
        note_dtype(q, t);
        goto out;
    }
    q->form = CAIRN_HF_EXPERTS;
    for (int64_t e = 0; e < p->dim[0]; e++) {
        struct cairn_hf_param one;

        cairn_expert_name(p->name, e, name, sizeof(name));
        TRY(check_tensor(h, name, 2, p->dim + 1, &t, err));
        note_dtype(&one, t);
        if (e == 0) {
            q->fp8 = one.fp8;
            q->dtype = one.dtype;
        } else if (q->fp8 != one.fp8 || q->dtype != one.dtype) {
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: %s is %s, but expert 0 of that projection is not", cairn_st_file(h->st, t->file), name,
                           t->word));
        }
    }
out:
    return st;
}

static enum cairn_status look_up(struct cairn_hf *h, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < h->table.count; i++) {
        const struct cairn_param *p = &h->table.param[i];
        const struct cairn_st_tensor *t;

        if (p->experts) {
            TRY(look_up_stack(h, i, err));
            continue;
        }
        TRY(check_tensor(h, p->name, p->ndim, p->dim, &t, err));
        h->param[i].form = CAIRN_HF_WHOLE;
        note_dtype(&h->param[i], t);
        h->bias_not_f32 += p->keep_f32 && t->dtype != CAIRN_F32 && t->dtype != CAIRN_F64;
    }
out:
    return st;
}

/* The parameter whose values tensor `name`, one of the table's kind, holds (in part), or -1. */
static int param_of_tensor(const struct cairn_hf *h, const char *name)
{
    const char *rest = NULL, *dot;
    char buf[NAME_MAX_BYTES];
    int layer = cairn_name_layer(&h->config, name, &rest), i = cairn_param_find(&h->table, name);
    size_t head;

    if (i >= 0)
        return h->param[i].form == CAIRN_HF_WHOLE ? i : -1;
    if (layer < 0 || layer >= h->config.layers || !cairn_starts_with(rest, "mlp.experts.") || strlen(name) >= sizeof(buf))
        return -1;
    rest += strlen("mlp.experts.");
    head = (size_t)(rest - name);
    if (!strcmp(rest, "gate_up_proj") || !strcmp(rest, "down_proj")) {
        snprintf(buf, sizeof(buf), "%.*s%s.weight", (int)head, name, rest[0] == 'g' ? "gate_proj" : "down_proj");
        i = cairn_param_find(&h->table, buf);
        return i >= 0 && h->param[i].form == CAIRN_HF_FUSED ? i : -1;
    }
    dot = strchr(rest, '.');
    if (!dot || dot == rest || strspn(rest, "0123456789") != (size_t)(dot - rest) || dot - rest > 6)
        return -1;
    if ((rest[0] == '0' && dot - rest > 1) || strtol(rest, NULL, 10) >= h->config.experts)
        return -1;
    snprintf(buf, sizeof(buf), "%.*s%s", (int)head, name, dot + 1);
    i = cairn_param_find(&h->table, buf);
    return i >= 0 && h->param[i].form == CAIRN_HF_EXPERTS ? i : -1;
}

/* An indexer tensor of a layer that shares its set: some converters write them for all layers. Rotary tables are derived. */
static int harmless(const struct cairn_hf *h, int layer, const char *rest)
{
    return (cairn_starts_with(rest, "self_attn.indexer.") && !h->config.indexer[layer]) || cairn_ends_with(rest, "rotary_emb.inv_freq");
}

/* Outside of the layers glm_moe_dsa passes everything through, glm5_next its vision tower. */
static int foreign(const struct cairn_hf *h, const char *name)
{
    return h->config.arch == CAIRN_ARCH_GLM5_NEXT && !cairn_starts_with(name, "model.visual.");
}

/* Sorts every tensor of the files: the table's, scales, passed through; refuses what the layers would have to know. */
static enum cairn_status sort_rest(struct cairn_hf *h, struct cairn_error *err)
{
    int n = cairn_st_count(h->st);

    h->passed = calloc((size_t)n + 1, sizeof(*h->passed));
    if (!h->passed)
        return CAIRN_NOMEM(err);
    h->tensors = n;
    for (int i = 0; i < n; i++) {
        const struct cairn_st_tensor *t = cairn_st_at(h->st, i);
        const char *rest = NULL;
        char name[NAME_MAX_BYTES], base[NAME_MAX_BYTES];
        int known = cairn_name_canonical(&h->config, t->name, name),
            layer = known ? cairn_name_layer(&h->config, name, &rest) : -1, mtp = layer >= h->config.layers;
        size_t len = strlen(t->name), tail = strlen(SCALE);

        if (!cairn_add_i64(h->bytes, t->bytes, &h->bytes))
            return cairn_fail(err, CAIRN_EDATA, "%s: sizes add up to more than 63 bits can count", h->dir);
        if (len > tail && len - tail < sizeof(base) && cairn_ends_with(t->name, SCALE)) { /* scales of an FP8 tensor belong to it */
            const struct cairn_st_tensor *w;

            memcpy(base, t->name, len - tail);
            base[len - tail] = '\0';
            w = cairn_st_find(h->st, base);
            if (w && cairn_st_scales(h->st, w) == t) {
                h->mtp_tensors += mtp;
                continue;
            }
        }
        h->elements += t->count;
        h->fp8_tensors += cairn_st_scales(h->st, t) != NULL;
        if (mtp) {
            h->mtp_tensors++;
            h->mtp_elements += t->count;
        }
        if (known && param_of_tensor(h, name) >= 0) {
            if (find(h, name) != t)
                return cairn_fail(err, CAIRN_EDATA, "%s: both %s and %s are there, which mean the same", h->dir, t->name, find(h, name)->name);
            continue;
        }
        if (cairn_starts_with(t->name, "model.visual.")) {
            h->vision_tensors++;
            h->vision_elements += t->count;
        }
        if (layer >= 0 ? !mtp && !harmless(h, layer, rest) : foreign(h, t->name))
            return cairn_fail(err, CAIRN_EDATA, "%s: tensor %s is unknown to this architecture; ignoring it would change the model",
                              cairn_st_file(h->st, t->file), t->name);
        h->passed[h->npassed++] = t;
    }
    return CAIRN_OK;
}

/* ---- open and close ---------------------------------------------------------------------------------------------------- */

enum cairn_status cairn_hf_open(struct cairn_hf **out, const char *dir, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_hf *h = calloc(1, sizeof(*h));

    if (!h || !(h->dir = strdup(dir)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_config_load(&h->config, dir, err));
    TRY(cairn_param_table_create(&h->table, &h->config, err));
    TRY(cairn_st_open(&h->st, dir, err));
    h->param = calloc((size_t)h->table.count + 1, sizeof(*h->param));
    if (!h->param)
        TRY(CAIRN_NOMEM(err));
    TRY(look_up(h, err));
    TRY(sort_rest(h, err));
    *out = h;
    h = NULL;
out:
    cairn_hf_close(h);
    return st;
}

void cairn_hf_close(struct cairn_hf *h)
{
    if (!h)
        return;
    cairn_st_close(h->st);
    cairn_param_table_free(&h->table);
    cairn_config_free(&h->config);
    free(h->param);
    free(h->passed);
    free(h->dir);
    free(h);
}

/* ---- reading ---------------------------------------------------------------------------------------------------------- */

/* FP8 weights are BF16 from here on, whoever reads them: widened in place, from the back. */
static enum cairn_status read_fp8_as_f32(struct cairn_hf *h, int i, int64_t begin, int64_t n, float *x, struct cairn_error *err)
{
    const struct cairn_param *p = &h->table.param[i];
    int64_t count = n * (cairn_param_count(p) / p->dim[0]);
    const unsigned char *narrow = (const unsigned char *)x;
    enum cairn_status st = cairn_hf_read(h, i, begin, n, CAIRN_BF16, x, err);

    for (int64_t k = count - 1; st == CAIRN_OK && k >= 0; k--) {
        uint16_t b;

        memcpy(&b, narrow + 2 * k, sizeof(b));
        x[k] = cairn_bf16_to_f32(b);
    }
    return st;
}

enum cairn_status cairn_hf_read(struct cairn_hf *h, int i, int64_t begin, int64_t n, enum cairn_dtype as, void *h_dst,
                                struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_param *p = &h->table.param[i];
    const struct cairn_hf_param *q = &h->param[i];
    int64_t row = cairn_param_count(p) / p->dim[0]; /* elements of one index of dimension 0 */
    size_t step = (size_t)row * cairn_dtype_size(as);
    char name[NAME_MAX_BYTES];
    int64_t skip = 0;

    if (begin < 0 || n < 0 || begin > p->dim[0] - n)
        return CAIRN_BUG(err, "rows outside of the parameter");
    if (as != CAIRN_F32 && as != q->dtype)
        return CAIRN_BUG(err, "parameters are read as f32 or as they are");
    if (q->fp8 && as == CAIRN_F32)
        return read_fp8_as_f32(h, i, begin, n, h_dst, err);
    switch (q->form) {
    case CAIRN_HF_WHOLE:
        TRY(cairn_st_read_as(h->st, find(h, p->name), begin * row, n * row, as, h_dst, err));
        break;
    case CAIRN_HF_EXPERTS:
        for (int64_t e = begin; e < begin + n; e++) {
            cairn_expert_name(p->name, e, name, sizeof(name));
            TRY(cairn_st_read_as(h->st, find(h, name), 0, row, as, (char *)h_dst + (size_t)(e - begin) * step, err));
        }
        break;
    case CAIRN_HF_FUSED:
        fused_name(h, p, name, &skip);
        for (int64_t e = begin; e < begin + n; e++) {
            const struct cairn_st_tensor *t = find(h, name);

            TRY(cairn_st_read_as(h->st, t, (e * t->shape[1] + skip) * p->dim[2], row, as, (char *)h_dst + (size_t)(e - begin) * step, err));
        }
        break;
    }
out:
    return st;
}

enum cairn_status cairn_hf_load(struct cairn_hf *h, struct cairn_store *s, struct cairn_compute *k, const char *what, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const int64_t chunk = (int64_t)16 << 20; /* elements at a time, or one row */
    struct cairn_progress *bar = what ? cairn_progress_begin(what, "parameters", s->table->elements, 10) : NULL;
    float *x = NULL;
    int64_t cap = 0, done = 0;

    if (s->table->count != h->table.count)
        TRY(CAIRN_BUG(err, "the store is of another table"));
    for (int i = 0; i < h->table.count; i++) {
        const struct cairn_param *p = &h->table.param[i];
        int64_t row = cairn_param_count(p) / p->dim[0], rows = chunk / row ? chunk / row : 1;

        if (!s->tensor[i].buf)
            continue;
        rows = rows < p->dim[0] ? rows : p->dim[0];
        if (rows * row > cap) {
            free(x);
            cap = rows * row;
            x = malloc((size_t)cap * sizeof(*x));
            if (!x)
                TRY(CAIRN_NOMEM(err));
        }
        for (int64_t at = 0; at < p->dim[0]; at += rows) {
            int64_t n = p->dim[0] - at < rows ? p->dim[0] - at : rows;
            struct cairn_tensor t = cairn_tensor_slice(&s->tensor[i], 0, at, n);

            if (cairn_stop_requested())
                TRY(cairn_fail(err, CAIRN_EAGAIN, "stopped while loading %s", h->dir));
            TRY(cairn_hf_read(h, i, at, n, CAIRN_F32, x, err));
            TRY(cairn_values_set(k, &t, x, n * row, err));
            done += n * row;
            cairn_progress_at(bar, done);
        }
    }
    TRY(cairn_stream_wait(&k->stream, err));
out:
    cairn_progress_end(bar);
    free(x);
    return st;
}

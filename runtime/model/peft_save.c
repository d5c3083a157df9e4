/* peft_save.c - writes an adapter as PEFT has it: names, layouts and an adapter_config.json that gives the same ranks and scales.
 *
 * An adapter that came from PEFT and is written in the layout it came in keeps its configuration word for word. Otherwise targets and
 * patterns are made from the adapted layers: short names where a name's every layer is adapted alike, whole paths where not.
 * The tensors are written by one function run twice: once to declare, once to give the bytes.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "ckpt/convert.h"
#include "model/hf.h"
#include "model/names.h"
#include "model/peft.h"
#include "model/values.h"

#define PREFIX "base_model.model."
#define NAME_BYTES CAIRN_NAME_BYTES

struct saver {
    const struct cairn_adapter *a;
    const struct cairn_param_table *base;
    const struct cairn_model_config *c;
    cairn_peft_fetch_fn *fetch;
    void *arg;
    enum cairn_dtype dtype;
    int fused;
    int parameters;  /* 1: dense and shared MLPs go to target_parameters (see below) */
    /* declaring */
    struct cairn_st_decl *decl;
    int n, cap;
    /* writing */
    struct cairn_st_writer *w;
    int at;          /* next declared tensor */
    void *narrow;    /* one converted tensor */
    size_t narrow_bytes;
};

/* The module as peft sees it: transformers' path. */
static void module_path(const struct saver *s, const struct cairn_lora *l, char *out, size_t n)
{
    const char *name = s->base->param[l->param].name;
    char own[NAME_BYTES];

    if (cairn_name_other(s->c, name, 1, own))
        name = own;
    snprintf(out, n, "%.*s", (int)(strlen(name) - strlen(".weight")), name);
}

static int is_expert(const struct saver *s, const struct cairn_lora *l)
{
    return s->base->param[l->param].experts;
}

static const struct cairn_lora *lora_named(const struct saver *s, int layer, const char *proj)
{
    char name[NAME_BYTES], tail[64];
    int i;

    snprintf(tail, sizeof(tail), "mlp.experts.%s.weight", proj);
    cairn_name_of_layer(s->c, layer, tail, name);
    i = cairn_param_find(s->base, name);
    return i >= 0 && s->a->of_param[i] >= 0 ? &s->a->lora[s->a->of_param[i]] : NULL;
}

/* ---- layout ------------------------------------------------------------------------------------------------------------------ */

/* Why the fused layout cannot hold this adapter, or NULL. */
static const char *not_fused(const struct saver *s)
{
    int seen = -1;

    for (int i = 0; i < s->c->layers; i++) {
        const struct cairn_lora *g, *u, *d;
        int have;

        if (s->c->dense[i])
            continue;
        g = lora_named(s, i, "gate_proj");
        u = lora_named(s, i, "up_proj");
        d = lora_named(s, i, "down_proj");
        if ((g != NULL) != (u != NULL) || (g && (g->a != u->a || g->gamma != u->gamma)))
            return "gate and up of the experts do not share a matrix A";
        have = (g != NULL) | (d != NULL) << 1;
        if (seen >= 0 && have != seen)
            return "the layers' experts are not adapted alike";
        seen = have;
    }
    return seen > 0 ? NULL : "no routed experts are adapted";
}

static int came_fused(const struct cairn_adapter *a)
{
    return json_array_size(json_object_get(a->peft, "target_parameters")) > 0;
}

static int came_from_peft(const struct cairn_adapter *a)
{
    return json_object_get(a->peft, "peft_type") != NULL;
}

static int has_experts(const struct saver *s)
{
    for (int i = 0; i < s->a->loras; i++)
        if (is_expert(s, &s->a->lora[i]))
            return 1;
    return 0;
}

/* ---- configuration -------------------------------------------------------------------------------------------------------------- */

/* What peft 0.21 makes of names on transformers 5 decides how targets are written. There a module target that ends in gate_proj, up_proj or
 * down_proj means the routed experts, whatever stands in front, so dense and shared MLPs can only be reached as parameters
 * ("shared_experts.up_proj.weight"); the tensors' names are the same. From single experts' tensors it makes fused ones, with gate's and up's
 * matrices side by side: rank and alpha of gate_up_proj are then twice those of one of them. */

/* alpha that gives exactly this scale without rslora: the recorded one where it does. */
static double alpha_of(const struct cairn_adapter *a, const struct cairn_lora *l)
{
    double alpha = json_number_value(json_object_get(a->peft, "lora_alpha")), r = l->rank;

    if (alpha > 0 && (float)(alpha / r) == l->gamma)
        return alpha;
    return (double)l->gamma * r; /* exact in double, and back */
}

static int is_mlp(const char *word)
{
    return strcmp(word, "gate_proj") == 0 || strcmp(word, "up_proj") == 0 || strcmp(word, "down_proj") == 0;
}

static json_t *number(double x)
{
    return x == floor(x) && fabs(x) < 1e15 ? json_integer((json_int_t)x) : json_real(x);
}

/* Path with dots escaped, as a pattern's key; an expert's "*" becomes digits. */
static void escape(const char *path, char *out, size_t n)
{
    size_t k = 0;

    for (const char *p = path; *p && k + 8 < n; p++) {
        if (*p == '*') {
            k += (size_t)snprintf(out + k, n - k, "\\d+");
        } else {
            if (*p == '.')
                out[k++] = '\\';
            out[k++] = *p;
        }
    }
    out[k] = '\0';
}

/* The path that PEFT matches patterns against: module, expert's module with "*", or parameter of the fused experts. */
static void pattern_path(const struct saver *s, const struct cairn_lora *l, char *out, size_t n)
{
    char path[NAME_BYTES];

    module_path(s, l, path, sizeof(path));
    if (!is_expert(s, l))
        snprintf(out, n, "%s", s->parameters && is_mlp(strrchr(path, '.') + 1) ? s->base->param[l->param].name : path);
    else if (s->fused)
        cairn_name_of_layer(s->c, s->base->param[l->param].layer,
                            cairn_ends_with(path, ".down_proj") ? "mlp.experts.down_proj" : "mlp.experts.gate_up_proj", out);
    else
        cairn_expert_name(path, -1, out, n);
}

static int add_unique(json_t *list, const char *word)
{
    const json_t *v;
    size_t i;

    json_array_foreach(list, i, v) {
        if (!strcmp(json_string_value(v), word))
            return 0;
    }
    return json_array_append_new(list, json_string(word));
}

/* 1: every adaptable 2-D layer whose name ends in .tail has an adapter. */
static int covers(const struct saver *s, const char *tail)
{
    char dotted[NAME_BYTES];

    snprintf(dotted, sizeof(dotted), ".%s", tail);
    for (int i = 0; i < s->base->count; i++) {
        const struct cairn_param *p = &s->base->param[i];

        if (p->ndim == 2 && p->adaptable && cairn_ends_with(p->name, dotted) && s->a->of_param[i] < 0)
            return 0;
    }
    return 1;
}

static int targets(const struct saver *s, json_t *modules, json_t *parameters)
{
    int bad = 0, gate_up = 0, down = 0;

    for (int i = 0; i < s->a->loras && !bad; i++) {
        const struct cairn_lora *l = &s->a->lora[i];
        const char *name = s->base->param[l->param].name, *word;
        char path[NAME_BYTES], tail[NAME_BYTES];

        module_path(s, l, path, sizeof(path));
        word = strrchr(path, '.') + 1;
        if (is_expert(s, l) && s->fused) {
            gate_up |= strcmp(word, "down_proj") != 0;
            down |= strcmp(word, "down_proj") == 0;
        } else if (is_expert(s, l)) {
            bad = add_unique(modules, word);
        } else if (is_mlp(word) && s->parameters) {
            snprintf(tail, sizeof(tail), "%s.%s.weight", strstr(name, ".shared_experts.") ? "shared_experts" : "mlp", word);
            /* the vision tower of glm5_next has modules "mlp.gate_proj", too */
            bad = add_unique(parameters, covers(s, tail) && !(s->c->arch == CAIRN_ARCH_GLM5_NEXT && tail[0] == 'm') ? tail : name);
        } else {
            snprintf(tail, sizeof(tail), "%s.weight", word);
            bad = add_unique(modules, covers(s, tail) ? word : path);
        }
    }
    if (!bad && gate_up)
        bad = json_array_append_new(parameters, json_string("gate_up_proj"));
    if (!bad && down)
        bad = json_array_append_new(parameters, json_string("down_proj"));
    return bad;
}

/* Whose rank and alpha are the default: single experts', since peft doubles the default for gate_up_proj; else who has the recorded rank. */
static const struct cairn_lora *usual(const struct saver *s)
{
    int64_t r = json_integer_value(json_object_get(s->a->peft, "r"));

    for (int i = 0; i < s->a->loras && !s->fused; i++)
        if (is_expert(s, &s->a->lora[i]))
            return &s->a->lora[i];
    for (int i = 0; i < s->a->loras; i++)
        if (s->a->lora[i].rank == r)
            return &s->a->lora[i];
    return &s->a->lora[0];
}

static int add_pattern(json_t *ranks, json_t *alphas, const char *path, int rank, int usual_rank, double alpha, double usual_alpha)
{
    char key[2 * NAME_BYTES];

    escape(path, key, sizeof(key));
    return (rank != usual_rank && json_object_set_new(ranks, key, json_integer(rank))) ||
           (alpha != usual_alpha && json_object_set_new(alphas, key, number(alpha)));
}

/* r, lora_alpha, and a pattern for every layer that has others. */
static int patterns(const struct saver *s, json_t *o)
{
    json_t *ranks = json_object(), *alphas = json_object();
    const struct cairn_lora *u = usual(s);
    double alpha = alpha_of(s->a, u);
    int bad = !ranks || !alphas;

    for (int i = 0; i < s->a->loras && !bad; i++) {
        const struct cairn_lora *l = &s->a->lora[i];
        char path[NAME_BYTES];

        pattern_path(s, l, path, sizeof(path));
        bad = add_pattern(ranks, alphas, path, l->rank, u->rank, alpha_of(s->a, l), alpha);
        if (bad || !is_expert(s, l) || s->fused || cairn_ends_with(path, ".up_proj"))
            continue;
        if (cairn_ends_with(path, ".gate_proj") && (l->rank != u->rank || alpha_of(s->a, l) != alpha)) { /* for peft's own fusion */
            cairn_name_of_layer(s->c, s->base->param[l->param].layer, "mlp.experts.gate_up_proj", path);
            bad = add_pattern(ranks, alphas, path, 2 * l->rank, 0, 2 * alpha_of(s->a, l), 0);
        } else if (cairn_ends_with(path, ".down_proj")) {
            cairn_name_of_layer(s->c, s->base->param[l->param].layer, "mlp.experts.down_proj", path);
            bad = add_pattern(ranks, alphas, path, l->rank, u->rank, alpha_of(s->a, l), alpha);
        }
    }
    bad = bad || json_object_set_new(o, "r", json_integer(u->rank)) || json_object_set_new(o, "lora_alpha", number(alpha)) ||
          json_object_set_new(o, "use_rslora", json_false()) || json_object_set(o, "rank_pattern", ranks) ||
          json_object_set(o, "alpha_pattern", alphas);
    json_decref(ranks);
    json_decref(alphas);
    return bad;
}

static json_t *make_config(const struct saver *s, const char *base_name)
{
    json_t *o, *modules = json_array(), *parameters = json_array();
    int bad = !modules || !parameters;

    if (came_from_peft(s->a)) {
        o = json_deep_copy(s->a->peft);
    } else { /* the members that loaders ask for */
        o = json_pack("{s:s, s:n, s:s, s:n, s:s, s:b, s:b, s:b, s:f, s:n, s:b}", "peft_type", "LORA", "auto_mapping", "task_type", "CAUSAL_LM",
                      "base_model_name_or_path", "bias", "none", "fan_in_fan_out", 0, "inference_mode", 1, "init_lora_weights", 1,
                      "lora_dropout", 0.0, "modules_to_save", "use_dora", 0);
        bad = bad || !o || json_object_set_new(o, "peft_version", json_string("0.21.0")); /* whose layout of fused experts this is */
    }
    bad = bad || !o;
    if (!bad && !(came_from_peft(s->a) && (came_fused(s->a) == s->fused || !has_experts(s)))) {
        static const char *const gone[] = {"exclude_modules", "layers_to_transform", "layers_pattern"};

        for (size_t i = 0; i < sizeof(gone) / sizeof(*gone) && !bad; i++)
            bad = json_object_set_new(o, gone[i], json_null());
        bad = bad || targets(s, modules, parameters) || patterns(s, o) || json_object_set(o, "target_modules", modules) ||
              (json_array_size(parameters) ? json_object_set(o, "target_parameters", parameters)
                                           : json_object_set_new(o, "target_parameters", json_null()));
    }
    if (!bad && base_name)
        bad = json_object_set_new(o, "base_model_name_or_path", json_string(base_name));
    json_decref(modules);
    json_decref(parameters);
    if (bad) {
        json_decref(o);
        return NULL;
    }
    return o;
}

/* ---- tensors -------------------------------------------------------------------------------------------------------------------- */

/* One tensor of the file: declared, or written from x (rows x cols f32). */
static enum cairn_status emit(struct saver *s, const char *module, char half, int64_t rows, int64_t cols, const float *x, struct cairn_error *err)
{
    size_t n = (size_t)(rows * cols), bytes = n * cairn_dtype_size(s->dtype);
    char name[NAME_BYTES + 64];

    if (!s->w) {
        if (s->n == s->cap) {
            int cap = s->cap ? 2 * s->cap : 256;
            struct cairn_st_decl *grown = realloc(s->decl, (size_t)cap * sizeof(*grown));

            if (!grown)
                return CAIRN_NOMEM(err);
            s->decl = grown;
            s->cap = cap;
        }
        snprintf(name, sizeof(name), PREFIX "%s.lora_%c.weight", module, half);
        s->decl[s->n] = (struct cairn_st_decl){strdup(name), cairn_st_word(s->dtype), (int64_t)cairn_dtype_size(s->dtype), 2, {rows, cols}};
        if (!s->decl[s->n].name)
            return CAIRN_NOMEM(err);
        s->n++;
        return CAIRN_OK;
    }
    if (bytes > s->narrow_bytes) {
        free(s->narrow);
        s->narrow_bytes = 0;
        s->narrow = malloc(bytes);
        if (!s->narrow)
            return CAIRN_NOMEM(err);
        s->narrow_bytes = bytes;
    }
    if (!cairn_convert(s->dtype, s->narrow, CAIRN_F32, x, n))
        return CAIRN_BUG(err, "no such conversion");
    return cairn_st_writer_add(s->w, s->at++, s->narrow, bytes, err);
}

/* Tensor i of the adapter's table, malloc'ed; NULL while declaring. */
static enum cairn_status fetch(struct saver *s, int i, float **x, struct cairn_error *err)
{
    int64_t n = cairn_param_count(&s->a->table.param[i]);

    *x = NULL;
    if (!s->w)
        return CAIRN_OK;
    *x = malloc((size_t)n * sizeof(**x));
    if (!*x)
        return CAIRN_NOMEM(err);
    return s->fetch(s->arg, i, *x, n, err);
}

static enum cairn_status emit_lora(struct saver *s, const struct cairn_lora *l, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_param *p = &s->base->param[l->param];
    int64_t E = p->experts ? p->dim[0] : 1, in = p->dim[p->ndim - 1], out = p->dim[p->ndim - 2], r = l->rank;
    char path[NAME_BYTES], module[NAME_BYTES];
    float *a = NULL, *b = NULL;

    module_path(s, l, path, sizeof(path));
    TRY(fetch(s, l->a, &a, err));
    TRY(fetch(s, l->b, &b, err));
    for (int64_t e = 0; e < E; e++) {
        if (!p->experts || !cairn_expert_name(path, e, module, sizeof(module)))
            snprintf(module, sizeof(module), "%s", path);
        TRY(emit(s, module, 'A', r, in, a ? a + e * r * in : NULL, err));
        TRY(emit(s, module, 'B', out, r, b ? b + e * out * r : NULL, err));
    }
out:
    free(a);
    free(b);
    return st;
}

/* Rows row .. row + out of the fused B: column i*E + e. b is (E, out, r). */
static void scatter_b(float *dst, const float *b, int64_t row, int64_t E, int64_t out, int64_t r)
{
    for (int64_t e = 0; e < E; e++)
        for (int64_t o = 0; o < out; o++)
            for (int64_t i = 0; i < r; i++)
                dst[((row + o) * r + i) * E + e] = b[(e * out + o) * r + i];
}

/* The layer's down (up NULL) or gate and up as one pair under `module`. */
static enum cairn_status emit_fused(struct saver *s, const struct cairn_lora *l, const struct cairn_lora *up, const char *module,
                                    struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_param *p = &s->base->param[l->param];
    int64_t E = p->dim[0], out = p->dim[1], in = p->dim[2], r = l->rank, all = up ? 2 * out : out;
    float *a = NULL, *b = NULL, *b2 = NULL, *m = NULL;

    TRY(fetch(s, l->a, &a, err));
    TRY(fetch(s, l->b, &b, err));
    if (up)
        TRY(fetch(s, up->b, &b2, err));
    if (s->w) {
        m = malloc((size_t)(all * r * E) * sizeof(*m));
        if (!m)
            TRY(CAIRN_NOMEM(err));
        scatter_b(m, b, 0, E, out, r);
        if (up)
            scatter_b(m, b2, out, E, out, r);
    }
    TRY(emit(s, module, 'A', E * r, in, a, err));
    TRY(emit(s, module, 'B', all, r * E, m, err));
out:
    free(a);
    free(b);
    free(b2);
    free(m);
    return st;
}

static enum cairn_status emit_all(struct saver *s, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < s->a->loras; i++) {
        const struct cairn_lora *l = &s->a->lora[i];
        const char *name = s->base->param[l->param].name;
        int layer = s->base->param[l->param].layer;
        char module[NAME_BYTES];

        if (!is_expert(s, l) || !s->fused) {
            TRY(emit_lora(s, l, err));
            continue;
        }
        if (cairn_ends_with(name, ".up_proj.weight"))
            continue; /* with gate */
        /* gate_up is wrapped first, so it is the inner one when both are there; alone, either has the outer name */
        if (cairn_ends_with(name, ".gate_proj.weight")) {
            cairn_name_of_layer(s->c, layer, lora_named(s, layer, "down_proj") ? "mlp.experts.base_layer" : "mlp.experts", module);
            TRY(emit_fused(s, l, lora_named(s, layer, "up_proj"), module, err));
        } else {
            cairn_name_of_layer(s->c, layer, "mlp.experts", module);
            TRY(emit_fused(s, l, NULL, module, err));
        }
    }
out:
    return st;
}

/* ---- both files --------------------------------------------------------------------------------------------------------------------- */

enum cairn_status cairn_peft_save(const char *dir, const struct cairn_adapter *a, const struct cairn_param_table *base,
                                  const struct cairn_model_config *c, cairn_peft_fetch_fn *fetch_fn, void *arg,
                                  const struct cairn_peft_save_opts *opts, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct saver s = {.a = a, .base = base, .c = c, .fetch = fetch_fn, .arg = arg, .dtype = opts->dtype};
    const struct cairn_st_writer_opts wo = {.stem = "adapter_model"};
    char *path = cairn_path_join(dir, "adapter_config.json");
    json_t *config = NULL;
    struct cairn_str text = {0};
    const char *why = not_fused(&s);

    if (!path)
        TRY(CAIRN_NOMEM(err));
    if (!a->loras)
        TRY(CAIRN_BUG(err, "an adapter without layers"));
    if (opts->layout == CAIRN_PEFT_FUSED && why)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: the adapter does not fit PEFT's layout of fused experts: %s", dir, why));
    s.fused = opts->layout == CAIRN_PEFT_FUSED ||
              (opts->layout == CAIRN_PEFT_AUTO && !why && (came_fused(a) || !came_from_peft(a)));
    s.parameters = has_experts(&s) || opts->layout != CAIRN_PEFT_EXPERT;
    config = make_config(&s, opts->base_name);
    if (!config)
        TRY(CAIRN_NOMEM(err));
    cairn_json_pretty(&text, config);
    cairn_str_putc(&text, '\n');
    if (text.oom)
        TRY(CAIRN_NOMEM(err));
    TRY(emit_all(&s, err));
    TRY(cairn_st_writer_create(&s.w, dir, s.decl, s.n, &wo, err));
    TRY(emit_all(&s, err));
    TRY(cairn_st_writer_finish(s.w, err));
    TRY(cairn_file_replace(path, text.p, text.len, err));
out:
    cairn_st_writer_destroy(s.w);
    for (int i = 0; i < s.n; i++)
        free((char *)s.decl[i].name);
    free(s.decl);
    free(s.narrow);
    cairn_str_free(&text);
    json_decref(config);
    free(path);
    return st;
}

enum cairn_status cairn_peft_fetch_store(void *arg, int i, float *h_dst, int64_t n, struct cairn_error *err)
{
    const struct cairn_peft_store *s = arg;

    return cairn_values_get(s->k, &s->store->tensor[i], h_dst, n, err);
}

enum cairn_status cairn_peft_fetch_reader(void *arg, int i, float *h_dst, int64_t n, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_peft_reader *s = arg;
    const struct cairn_param *p = &s->adapter->table.param[i];
    const struct cairn_tensor_entry *e = NULL;
    void *raw = NULL;

    TRY(cairn_reader_find(s->reader, p->name, &e, err));
    TRY(cairn_reader_expect(s->reader, p->name, e->dtype, p->ndim, p->dim, &e, err));
    raw = malloc((size_t)n * cairn_dtype_size(e->dtype));
    if (!raw)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_reader_box(s->reader, p->name, NULL, NULL, raw, (size_t)n * cairn_dtype_size(e->dtype), err));
    if (!cairn_convert(CAIRN_F32, h_dst, e->dtype, raw, (size_t)n))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: %s is %s, not a weight", cairn_reader_path(s->reader), p->name, cairn_dtype_name(e->dtype)));
out:
    free(raw);
    return st;
}

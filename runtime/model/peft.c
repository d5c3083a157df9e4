/* peft.c - reads PEFT adapters: configuration and tensor names to a list of adapted layers, then the tensors into a store.
 *
 * The tensors say which layers are adapted; the configuration says how (rank, alpha) and is held against them: every target must be
 * found, every rank must fit. Experts' layouts are told apart by names and, for the fused one, by shapes (spec/model.md, 16.2).
 * When the single experts' A of gate and up have equal bits throughout, they are one matrix again, as they were before a per-expert
 * file was written from it.
 * Writing is in peft_save.c. Memory: one table of sites, one layer's tensors at a time.
 */
#include "model/peft.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "model/hf.h"
#include "model/names.h"
#include "model/values.h"

#define PREFIX "base_model.model."
#define NAME_BYTES CAIRN_NAME_BYTES

enum form { PLAIN, EXPERTS, FUSED };

struct site { /* one adapted layer as it lies in the file */
    int param;
    enum form form;
    int rank;
    double gamma;
    int alias;              /* base parameter whose A it shares, or -1 */
    int64_t row;            /* FUSED: first row of B */
    char module[NAME_BYTES]; /* path in the file behind the prefix; EXPERTS: that of the stack */
};

struct cairn_peft {
    char *dir, *where; /* where: path of adapter_config.json */
    const struct cairn_param_table *base;
    const struct cairn_model_config *c;
    struct cairn_st *st;
    json_t *config;
    struct site *site;
    int sites;
    struct cairn_adapter adapter;
    int taken;
    int vision; /* tensors for the vision tower */
};

/* ---- configuration ---------------------------------------------------------------------------------------------------- */

static enum cairn_status refuse(const struct cairn_peft *p, const char *key, const char *why, struct cairn_error *err)
{
    return cairn_fail(err, CAIRN_EDATA, "%s: key \"%s\": %s", p->where, key, why);
}

static int set(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    if (!v || json_is_null(v) || json_is_false(v))
        return 0;
    return !((json_is_array(v) && !json_array_size(v)) || (json_is_object(v) && !json_object_size(v)));
}

static enum cairn_status check_config(const struct cairn_peft *p, struct cairn_error *err)
{
    static const char *const none[] = {"use_dora", "use_qalora", "use_bdlora", "lora_bias", "fan_in_fan_out", "modules_to_save",
                                       "layer_replication", "alora_invocation_tokens", "trainable_token_indices", "arrow_config",
                                       "kasa_config", "monteclora_config"};
    static const char *const init[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};
    const char *type = json_string_value(json_object_get(p->config, "peft_type"));
    const char *bias = json_string_value(json_object_get(p->config, "bias"));
    const char *how = json_string_value(json_object_get(p->config, "init_lora_weights"));

    if (!type || strcmp(type, "LORA") != 0)
        return refuse(p, "peft_type", "only \"LORA\" adapters are supported", err);
    if (bias && strcmp(bias, "none") != 0)
        return refuse(p, "bias", "only \"none\" is supported: the model has no biases to train", err);
    for (size_t i = 0; i < sizeof(none) / sizeof(*none); i++)
        if (set(p->config, none[i]))
            return refuse(p, none[i], "this variant is not supported", err);
    for (size_t i = 0; how && i < sizeof(init) / sizeof(*init); i++)
        if (cairn_starts_with(how, init[i]))
            return refuse(p, "init_lora_weights", "this start changes the base weights too, which this directory does not hold", err);
    return CAIRN_OK;
}

/* Does the expression mean this path of the table, by that name or another? 1 yes, 0 no, -1 broken. */
static int hits_path(const struct cairn_model_config *c, const char *expr, const char *path, struct cairn_error *err)
{
    int hit = cairn_target_match(expr, path, err);
    char other[NAME_BYTES];

    for (int i = 0; !hit && cairn_name_other(c, path, i, other); i++)
        hit = cairn_target_match(expr, other, err);
    return hit;
}

/* r or lora_alpha of a path: the first pattern that matches ^(.*\.)?(KEY)$, else the default. */
static enum cairn_status pattern(const struct cairn_peft *p, const char *patterns, const char *key, const char *path, double *out,
                                 struct cairn_error *err)
{
    json_t *box = json_object_get(p->config, patterns);
    const char *k;
    json_t *v;

    if (json_is_object(box)) {
        json_object_foreach(box, k, v) {
            char *re = cairn_format("(.*\\.)?(%s)", k);
            int hit = re ? hits_path(p->c, re, path, err) : -1;

            if (!re)
                CAIRN_NOMEM(err);
            free(re);
            if (hit < 0)
                return cairn_error_prefix(err, "%s: key \"%s\"", p->where, patterns);
            if (!hit)
                continue;
            if (!json_is_number(v) || !(json_number_value(v) > 0))
                return refuse(p, patterns, "expected positive numbers", err);
            *out = json_number_value(v);
            return CAIRN_OK;
        }
    }
    v = json_object_get(p->config, key);
    if (!json_is_number(v) || !(json_number_value(v) > 0))
        return refuse(p, key, "expected a positive number", err);
    *out = json_number_value(v);
    return CAIRN_OK;
}

/* Rank and scale of the site at `path`; the file's rank must be the configuration's. */
static enum cairn_status scale(const struct cairn_peft *p, struct site *s, const char *path, int64_t rank, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    double r = 0, alpha = 0;

    TRY(pattern(p, "rank_pattern", "r", path, &r, err));
    TRY(pattern(p, "alpha_pattern", "lora_alpha", path, &alpha, err));
    if (r != (double)rank)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: %s has rank %lld in the tensors, %g in the configuration", p->where, path, (long long)rank, r));
    s->rank = (int)rank;
    s->gamma = alpha / (set(p->config, "use_rslora") ? sqrt(r) : r);
out:
    return st;
}

/* ---- tensors ------------------------------------------------------------------------------------------------------------ */

/* By the table's name of the module; the file may have another that means the same. */
static const struct cairn_st_tensor *half(const struct cairn_peft *p, const char *module, char which)
{
    char name[NAME_BYTES + 64], other[NAME_BYTES];
    const struct cairn_st_tensor *t;

    snprintf(name, sizeof(name), PREFIX "%s.lora_%c.weight", module, which);
    t = cairn_st_find(p->st, name);
    for (int i = 0; !t && cairn_name_other(p->c, module, i, other); i++) {
        snprintf(name, sizeof(name), PREFIX "%s.lora_%c.weight", other, which);
        t = cairn_st_find(p->st, name);
    }
    return t;
}

/* Both halves of a module, two dimensions, float, of one rank: A (r, in), B (out, r). */
static enum cairn_status pair(const struct cairn_peft *p, const char *module, const struct cairn_st_tensor **a,
                              const struct cairn_st_tensor **b, struct cairn_error *err)
{
    const struct cairn_st_tensor *t[2] = {half(p, module, 'A'), half(p, module, 'B')};

    for (int i = 0; i < 2; i++) {
        if (!t[i])
            return cairn_fail(err, CAIRN_EDATA, "%s: no tensor " PREFIX "%s.lora_%c.weight", p->dir, module, 'A' + i);
        if (t[i]->ndim != 2)
            return cairn_fail(err, CAIRN_EDATA, "%s: %s has %d dimensions, expected 2", p->dir, t[i]->name, t[i]->ndim);
        if (t[i]->dtype != CAIRN_F32 && t[i]->dtype != CAIRN_BF16 && t[i]->dtype != CAIRN_F16)
            return cairn_fail(err, CAIRN_EDATA, "%s: %s is %s; adapters may be F32, BF16 or F16", p->dir, t[i]->name, t[i]->word);
    }
    *a = t[0];
    *b = t[1];
    if (t[0]->shape[0] != t[1]->shape[1] || t[0]->shape[0] < 1)
        return cairn_fail(err, CAIRN_EDATA, "%s: %s has %lld rows, but B has %lld columns: no common rank", p->dir, t[0]->name,
                          (long long)t[0]->shape[0], (long long)t[1]->shape[1]);
    return CAIRN_OK;
}

static int find_module(const struct cairn_param_table *t, const char *module)
{
    char name[NAME_BYTES + 48];

    snprintf(name, sizeof(name), "%s.weight", module);
    return cairn_param_find(t, name);
}

static enum cairn_status misfit(const struct cairn_peft *p, const char *module, const struct cairn_st_tensor *a,
                                const struct cairn_st_tensor *b, int64_t out, int64_t in, struct cairn_error *err)
{
    return cairn_fail(err, CAIRN_EDATA, "%s: %s: A is (%lld,%lld) and B (%lld,%lld), the layer is (%lld,%lld)", p->dir, module,
                      (long long)a->shape[0], (long long)a->shape[1], (long long)b->shape[0], (long long)b->shape[1], (long long)out,
                      (long long)in);
}

static enum cairn_status add_site(struct cairn_peft *p, const struct site *s, struct cairn_error *err)
{
    struct site *grown = realloc(p->site, (size_t)(p->sites + 1) * sizeof(*grown));

    if (!grown)
        return CAIRN_NOMEM(err);
    p->site = grown;
    p->site[p->sites++] = *s;
    return CAIRN_OK;
}

/* 1: target_parameters names this parameter ("shared_experts.up_proj.weight"): patterns then go by the parameter's path. */
static int by_parameter(const struct cairn_peft *p, const char *name)
{
    const json_t *list = json_object_get(p->config, "target_parameters"), *v;
    size_t i, n = strlen(name);

    json_array_foreach(list, i, v) {
        const char *t = json_string_value(v);
        size_t m = t ? strlen(t) : 0;

        if (m && m <= n && strcmp(name + n - m, t) == 0 && (m == n || name[n - m - 1] == '.'))
            return 1;
    }
    return 0;
}

static enum cairn_status add_plain(struct cairn_peft *p, int param, const char *module, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_param *q = &p->base->param[param];
    const struct cairn_st_tensor *a, *b;
    struct site s = {.param = param, .form = PLAIN, .alias = -1};

    if (!q->adaptable)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: adapter on %s: router, indexer, embedding and head cannot have one", p->dir, module));
    TRY(pair(p, module, &a, &b, err));
    if (a->shape[1] != q->dim[1] || b->shape[0] != q->dim[0])
        TRY(misfit(p, module, a, b, q->dim[0], q->dim[1], err));
    snprintf(s.module, sizeof(s.module), "%s", module);
    TRY(scale(p, &s, by_parameter(p, q->name) ? q->name : module, a->shape[0], err));
    TRY(add_site(p, &s, err));
out:
    return st;
}

/* All experts of one projection; called for expert 0. */
static enum cairn_status add_experts(struct cairn_peft *p, int param, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_param *q = &p->base->param[param];
    struct site s = {.param = param, .form = EXPERTS, .alias = -1}, one = s;

    snprintf(s.module, sizeof(s.module), "%.*s", (int)(strlen(q->name) - strlen(".weight")), q->name);
    for (int64_t e = 0; e < q->dim[0]; e++) {
        const struct cairn_st_tensor *a, *b;
        char module[NAME_BYTES];

        cairn_expert_name(s.module, e, module, sizeof(module));
        TRY(pair(p, module, &a, &b, err));
        if (a->shape[1] != q->dim[2] || b->shape[0] != q->dim[1])
            TRY(misfit(p, module, a, b, q->dim[1], q->dim[2], err));
        TRY(scale(p, &one, module, a->shape[0], err));
        if (e == 0) {
            s.rank = one.rank;
            s.gamma = one.gamma;
        } else if (one.rank != s.rank || one.gamma != s.gamma) {
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: %s: rank or alpha differ from expert 0's; they must be the same for all experts of a "
                           "projection", p->where, module));
        }
    }
    TRY(add_site(p, &s, err));
out:
    return st;
}

/* ---- fused experts ---------------------------------------------------------------------------------------------------------- */

/* Version "a.b.c" as 1000 a + b, or -1. */
static int version(const struct cairn_peft *p)
{
    const char *v = json_string_value(json_object_get(p->config, "peft_version"));
    int a = 0, b = 0;

    return v && sscanf(v, "%d.%d", &a, &b) == 2 ? 1000 * a + b : -1;
}

/* What a pair under "...experts" or "...experts.base_layer" can be, by shapes: bit 0 gate_up, 1 down, 2 gate_up transposed,
 * 3 down transposed (peft <= 0.18). */
static int meanings(const struct cairn_model_config *c, const struct cairn_st_tensor *a, const struct cairn_st_tensor *b)
{
    int64_t D = c->width, F = c->expert_width, in = a->shape[1], out = b->shape[0];

    return (in == D && out == 2 * F) | (in == F && out == D) << 1 | (in == 2 * F && out == D) << 2 | (in == D && out == F) << 3;
}

static enum cairn_status add_fused_part(struct cairn_peft *p, const char *module, const char *target, int param, int alias, int64_t row,
                                        int64_t rows, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct site s = {.param = param, .form = FUSED, .alias = alias, .row = row};

    snprintf(s.module, sizeof(s.module), "%s", module);
    if (rows % p->c->experts)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: %s: A has %lld rows, which is no multiple of %d experts", p->dir, module, (long long)rows,
                       p->c->experts));
    TRY(scale(p, &s, target, rows / p->c->experts, err));
    TRY(add_site(p, &s, err));
out:
    return st;
}

/* module: ".../experts" or ".../experts.base_layer" of `layer`. */
static enum cairn_status add_fused(struct cairn_peft *p, const char *module, int layer, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_st_tensor *a, *b;
    char stem[NAME_BYTES], name[NAME_BYTES + 32], target[NAME_BYTES + 32];
    int inner = cairn_ends_with(module, ".base_layer"), both, can, gate, up, down;

    cairn_name_of_layer(p->c, layer, "mlp.experts", stem);
    snprintf(name, sizeof(name), "%s.gate_proj", stem);
    gate = find_module(p->base, name);
    snprintf(name, sizeof(name), "%s.up_proj", stem);
    up = find_module(p->base, name);
    snprintf(name, sizeof(name), "%s.down_proj", stem);
    down = find_module(p->base, name);
    if (gate < 0 || up < 0 || down < 0)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: adapter on %s, but layer %d has no experts", p->dir, module, layer));
    TRY(pair(p, module, &a, &b, err));
    snprintf(name, sizeof(name), "%s.base_layer", stem);
    both = half(p, name, 'A') != NULL;
    can = meanings(p->c, a, b);
    if (both) /* wrapped first: inner */
        can &= inner ? 1 | 4 : 2 | 8;
    if (!can)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: %s: A (%lld,%lld) and B (%lld,%lld) fit neither gate_up_proj nor down_proj of %d experts",
                       p->dir, module, (long long)a->shape[0], (long long)a->shape[1], (long long)b->shape[0], (long long)b->shape[1],
                       p->c->experts));
    if ((can & 3) && (can & 12)) { /* square enough for both: the version decides */
        if (version(p) < 0)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: %s: the shapes do not tell which way round the matrices are, and \"peft_version\" is "
                           "missing", p->where, module));
        can &= version(p) >= 19 ? 3 : 12;
    }
    if (!(can & 3))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: %s has experts the way round that peft 0.18 and older wrote them; convert it with peft 0.19 "
                       "or newer", p->dir, module));
    if ((can & 3) == 3) { /* only with 2F = D = F, which no size can be */
        st = CAIRN_BUG(err, "an expert matrix is both gate_up and down");
        goto out;
    }
    if (can & 1) {
        snprintf(target, sizeof(target), "%s.gate_up_proj", stem);
        TRY(add_fused_part(p, module, target, gate, -1, 0, a->shape[0], err));
        TRY(add_fused_part(p, module, target, up, gate, p->c->expert_width, a->shape[0], err));
    } else {
        snprintf(target, sizeof(target), "%s.down_proj", stem);
        TRY(add_fused_part(p, module, target, down, -1, 0, a->shape[0], err));
    }
out:
    return st;
}

/* ---- all tensors ---------------------------------------------------------------------------------------------------------- */

static enum cairn_status unknown(const struct cairn_peft *p, const char *name, struct cairn_error *err)
{
    return cairn_fail(err, CAIRN_EDATA, "%s: tensor %s is no LoRA matrix of a layer of this model", p->dir, name);
}

/* Takes in the tensor, once for each module: at its A, and at expert 0; the rest is looked up from there. */
static enum cairn_status take_tensor(struct cairn_peft *p, const char *name, struct cairn_error *err)
{
    static const char mark[] = ".mlp.experts";
    char module[NAME_BYTES], stack[NAME_BYTES], again[NAME_BYTES];
    const char *at, *rest = NULL;
    size_t n = strlen(name), head = strlen(PREFIX), tail = strlen(".lora_A.weight");
    int is_a = cairn_ends_with(name, ".lora_A.weight"), param, layer, used = 0;
    long long e;

    if (!cairn_starts_with(name, PREFIX) || (!is_a && !cairn_ends_with(name, ".lora_B.weight")) || n <= head + tail ||
        n - head - tail >= sizeof(module) - 64)
        return unknown(p, name, err);
    memcpy(again, name + head, n - head - tail);
    again[n - head - tail] = '\0';
    if (p->c->arch == CAIRN_ARCH_GLM5_NEXT && cairn_starts_with(again, "model.visual.")) { /* no effect on text */
        p->vision++;
        return CAIRN_OK;
    }
    if (!cairn_name_canonical(p->c, again, module))
        return unknown(p, name, err);
    if (!is_a) /* its A is needed and brings it in */
        return half(p, module, 'A') ? CAIRN_OK
                                    : cairn_fail(err, CAIRN_EDATA, "%s: no tensor " PREFIX "%s.lora_A.weight", p->dir, module);
    param = find_module(p->base, module);
    if (param >= 0 && p->base->param[param].ndim == 2)
        return add_plain(p, param, module, err);
    at = strstr(module, mark);
    layer = cairn_name_layer(p->c, module, &rest);
    if (!at || layer < 0)
        return unknown(p, name, err);
    rest = at + sizeof(mark) - 1;
    if (rest[0] == '\0' || strcmp(rest, ".base_layer") == 0) {
        snprintf(again, sizeof(again), "mlp.experts%s", rest);
        cairn_name_of_layer(p->c, layer, again, stack);
        return strcmp(stack, module) == 0 ? add_fused(p, module, layer, err) : unknown(p, name, err);
    }
    if (sscanf(rest, ".%lld.%n", &e, &used) != 1 || used == 0 || e < 0)
        return unknown(p, name, err);
    snprintf(stack, sizeof(stack), "%.*s.%s", (int)(rest - module), module, rest + used);
    param = find_module(p->base, stack);
    if (param < 0 || !p->base->param[param].experts || e >= p->base->param[param].dim[0] ||
        !cairn_expert_name(stack, e, again, sizeof(again)) || strcmp(again, module) != 0)
        return unknown(p, name, err);
    if (e > 0) { /* expert 0 must be there too, and checks them all */
        snprintf(stack, sizeof(stack), "%.*s.0.%s", (int)(rest - module), module, rest + used);
        return half(p, stack, 'A') ? CAIRN_OK
                                   : cairn_fail(err, CAIRN_EDATA, "%s: no tensor " PREFIX "%s.lora_A.weight", p->dir, stack);
    }
    return add_experts(p, param, err);
}

static int by_param(const void *a, const void *b)
{
    return ((const struct site *)a)->param - ((const struct site *)b)->param;
}

static const struct site *site_of(const struct cairn_peft *p, int param)
{
    struct site key = {.param = param};

    return bsearch(&key, p->site, (size_t)p->sites, sizeof(key), by_param);
}

/* ---- targets ---------------------------------------------------------------------------------------------------------------- */

/* PEFT's rule: a list entry is a path or the end of one; a string is an expression for the whole path. */
static int target_hits(const struct cairn_model_config *c, const char *target, int is_regex, const char *module, struct cairn_error *err)
{
    char other[NAME_BYTES];

    if (is_regex) {
        char *re = cairn_format("(%s)", target); /* parentheses: always an expression */
        int hit = re ? hits_path(c, re, module, err) : -1;

        free(re);
        return hit;
    }
    for (int i = -1; i < 0 || cairn_name_other(c, module, i, other); i++) {
        const char *path = i < 0 ? module : other;
        size_t n = strlen(target), m = strlen(path);

        if (m >= n && strcmp(path + m - n, target) == 0 && (m == n || path[m - n - 1] == '.'))
            return 1;
    }
    return 0;
}

static enum cairn_status check_target(const struct cairn_peft *p, const char *target, int is_regex, struct cairn_error *err)
{
    int loose = set(p->config, "exclude_modules") || set(p->config, "layers_to_transform"), hits = 0, experts = 0, missing = -1;

    for (int i = 0; i < p->base->count; i++) {
        const struct cairn_param *q = &p->base->param[i];
        const struct site *s;
        char module[NAME_BYTES], stack[NAME_BYTES];
        int hit;

        if (q->ndim < 2 || !cairn_ends_with(q->name, ".weight"))
            continue;
        snprintf(stack, sizeof(stack), "%.*s", (int)(strlen(q->name) - strlen(".weight")), q->name);
        if (!q->experts || !cairn_expert_name(stack, 0, module, sizeof(module)))
            memcpy(module, stack, sizeof(module));
        hit = target_hits(p->c, target, is_regex, module, err);
        if (hit < 0)
            return cairn_error_prefix(err, "%s: key \"target_modules\"", p->where);
        if (!hit)
            continue;
        if (!q->adaptable && !is_regex)
            return cairn_fail(err, CAIRN_EDATA, "%s: key \"target_modules\": \"%.100s\" means %s; router, indexer, embedding and head "
                              "cannot have an adapter", p->where, target, module);
        s = site_of(p, i);
        if (s && s->form != FUSED) { /* module names never reach fused experts */
            hits++;
            experts += q->experts;
        } else if (q->adaptable && q->ndim == 2 && missing < 0) {
            missing = i;
        }
    }
    if (!hits)
        return cairn_fail(err, CAIRN_EDATA, "%s: key \"target_modules\": \"%.100s\" matches no layer that has tensors", p->where, target);
    if (missing >= 0 && !loose && !experts && !is_regex)
        return cairn_fail(err, CAIRN_EDATA, "%s: key \"target_modules\": \"%.100s\" covers %s, but the file has no tensors for it", p->where,
                          target, p->base->param[missing].name);
    return CAIRN_OK;
}

/* "...NAME.weight": layers that peft reaches only as parameters, because it takes their module names for the experts'. */
static enum cairn_status check_weight_target(const struct cairn_peft *p, const char *target, struct cairn_error *err)
{
    size_t m = strlen(target);
    int hits = 0;

    for (int i = 0; i < p->base->count; i++) {
        const struct cairn_param *q = &p->base->param[i];
        size_t n = strlen(q->name);

        if (q->ndim != 2 || n < m || strcmp(q->name + n - m, target) != 0 || (n > m && q->name[n - m - 1] != '.'))
            continue;
        if (!q->adaptable || !site_of(p, i))
            return cairn_fail(err, CAIRN_EDATA, "%s: key \"target_parameters\": \"%.100s\" covers %s, %s", p->where, target, q->name,
                              q->adaptable ? "but the file has no tensors for it" : "which cannot have an adapter");
        hits++;
    }
    return hits ? CAIRN_OK : cairn_fail(err, CAIRN_EDATA, "%s: key \"target_parameters\": \"%.100s\" matches nothing", p->where, target);
}

static enum cairn_status check_parameter_target(const struct cairn_peft *p, const char *target, struct cairn_error *err)
{
    const char *last = strrchr(target, '.');
    int gate_up, hits = 0;

    if (cairn_ends_with(target, ".weight"))
        return check_weight_target(p, target, err);
    last = last ? last + 1 : target;
    gate_up = strcmp(last, "gate_up_proj") == 0;
    if (!gate_up && strcmp(last, "down_proj") != 0)
        return cairn_fail(err, CAIRN_EDATA, "%s: key \"target_parameters\": \"%.100s\" is no expert matrix; there are gate_up_proj and "
                          "down_proj", p->where, target);
    for (int i = 0; i < p->base->count; i++) {
        const struct cairn_param *q = &p->base->param[i];
        const struct site *s = q->experts ? site_of(p, i) : NULL;

        if (!q->experts || cairn_ends_with(q->name, ".down_proj.weight") == gate_up)
            continue;
        if (s && s->form == FUSED)
            hits++;
        else if (strchr(target, '*') == NULL && !strstr(target, "layers."))
            return cairn_fail(err, CAIRN_EDATA, "%s: key \"target_parameters\": \"%.100s\" covers layer %d, but the file has no tensors for "
                              "it", p->where, target, q->layer);
    }
    if (!hits)
        return cairn_fail(err, CAIRN_EDATA, "%s: key \"target_parameters\": \"%.100s\" matches nothing that has tensors", p->where, target);
    return CAIRN_OK;
}

static enum cairn_status check_targets(const struct cairn_peft *p, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const json_t *t = json_object_get(p->config, "target_modules"), *v;
    size_t i;

    if (json_is_string(t) && strcmp(json_string_value(t), "all-linear") != 0)
        TRY(check_target(p, json_string_value(t), 1, err));
    json_array_foreach(t, i, v) {
        if (!json_is_string(v))
            TRY(refuse(p, "target_modules", "expected strings", err));
        TRY(check_target(p, json_string_value(v), 0, err));
    }
    t = json_object_get(p->config, "target_parameters");
    json_array_foreach(t, i, v) {
        if (!json_is_string(v))
            TRY(refuse(p, "target_parameters", "expected strings", err));
        TRY(check_parameter_target(p, json_string_value(v), err));
    }
out:
    return st;
}

/* ---- one A for gate and up ---------------------------------------------------------------------------------------------------- */

/* Sets *same if the A of both sites have equal bits for all experts. */
static enum cairn_status equal_a(struct cairn_peft *p, const struct site *g, const struct site *u, int *same, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *x = NULL;

    *same = 1;
    for (int e = 0; e < p->c->experts && *same; e++) {
        char module[NAME_BYTES];
        const struct cairn_st_tensor *a, *b;
        char *grown;

        cairn_expert_name(g->module, e, module, sizeof(module));
        a = half(p, module, 'A');
        cairn_expert_name(u->module, e, module, sizeof(module));
        b = half(p, module, 'A');
        if (a->dtype != b->dtype || a->bytes != b->bytes) {
            *same = 0;
            break;
        }
        grown = realloc(x, 2 * (size_t)a->bytes);
        if (!grown)
            TRY(CAIRN_NOMEM(err));
        x = grown;
        TRY(cairn_st_read(p->st, a, 0, x, (size_t)a->bytes, err));
        TRY(cairn_st_read(p->st, b, 0, x + a->bytes, (size_t)a->bytes, err));
        *same = memcmp(x, x + a->bytes, (size_t)a->bytes) == 0;
    }
out:
    free(x);
    return st;
}

static enum cairn_status find_aliases(struct cairn_peft *p, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i + 1 < p->sites; i++) {
        struct site *g = &p->site[i], *u = &p->site[i + 1]; /* gate and up are neighbours in the table */
        int same = 0;

        if (g->form != EXPERTS || u->form != EXPERTS || u->param != g->param + 1 || g->rank != u->rank ||
            !cairn_ends_with(g->module, ".gate_proj") || !cairn_ends_with(u->module, ".up_proj"))
            continue;
        TRY(equal_a(p, g, u, &same, err));
        if (same)
            u->alias = g->param;
    }
out:
    return st;
}

/* ---- open and load -------------------------------------------------------------------------------------------------------------- */

static enum cairn_status make_adapter(struct cairn_peft *p, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_lora_choice *list = calloc((size_t)p->sites + 1, sizeof(*list));

    if (!list)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < p->sites; i++)
        list[i] = (struct cairn_lora_choice){p->site[i].param, p->site[i].rank, p->site[i].gamma, p->site[i].alias};
    TRY(cairn_adapter_create_from(&p->adapter, p->base, list, p->sites, err));
    p->adapter.peft = json_incref(p->config);
out:
    free(list);
    return st;
}

enum cairn_status cairn_peft_open(struct cairn_peft **out, const char *dir, const struct cairn_param_table *base,
                                  const struct cairn_model_config *c, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_peft *p = calloc(1, sizeof(*p));

    if (!p || !(p->dir = strdup(dir)) || !(p->where = cairn_path_join(dir, "adapter_config.json")))
        TRY(CAIRN_NOMEM(err));
    p->base = base;
    p->c = c;
    TRY(cairn_json_load(&p->config, p->where, (size_t)16 << 20, err));
    if (!json_is_object(p->config))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: expected an object", p->where));
    TRY(check_config(p, err));
    TRY(cairn_st_open(&p->st, dir, err));
    for (int i = 0; i < cairn_st_count(p->st); i++)
        TRY(take_tensor(p, cairn_st_at(p->st, i)->name, err));
    if (!p->sites)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: no LoRA matrices", p->dir));
    if (p->vision)
        cairn_warn("%s: %d tensors for the vision tower are left out: they have no effect on text", p->dir, p->vision);
    qsort(p->site, (size_t)p->sites, sizeof(*p->site), by_param);
    for (int i = 1; i < p->sites; i++)
        if (p->site[i].param == p->site[i - 1].param)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: %s has an adapter in two layouts", p->dir, base->param[p->site[i].param].name));
    TRY(check_targets(p, err));
    TRY(find_aliases(p, err));
    TRY(make_adapter(p, err));
    *out = p;
    p = NULL;
out:
    cairn_peft_close(p);
    return st;
}

void cairn_peft_close(struct cairn_peft *p)
{
    if (!p)
        return;
    cairn_st_close(p->st);
    json_decref(p->config);
    if (!p->taken)
        cairn_adapter_free(&p->adapter);
    free(p->site);
    free(p->where);
    free(p->dir);
    free(p);
}

void cairn_peft_take(struct cairn_peft *p, struct cairn_adapter *a)
{
    *a = p->adapter;
    p->taken = 1;
    memset(&p->adapter, 0, sizeof(p->adapter));
}

enum cairn_dtype cairn_peft_dtype(const struct cairn_peft *p)
{
    int t = cairn_st_at(p->st, 0)->dtype;

    for (int i = 1; i < cairn_st_count(p->st); i++)
        if (cairn_st_at(p->st, i)->dtype != t)
            return CAIRN_F32;
    return (enum cairn_dtype)t;
}

/* Half `which` of a site, in the adapter table's form, dense f32 of n elements. */
static enum cairn_status read_half(struct cairn_peft *p, const struct site *s, char which, float *x, int64_t n, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_param *q = &p->base->param[s->param];
    int64_t E = q->experts ? q->dim[0] : 1, out = q->dim[q->ndim - 2], r = s->rank;
    const struct cairn_st_tensor *t;
    float *b = NULL;

    if (s->form == EXPERTS) {
        for (int64_t e = 0; e < E; e++) {
            char module[NAME_BYTES];

            cairn_expert_name(s->module, e, module, sizeof(module));
            t = half(p, module, which);
            TRY(cairn_st_read_as(p->st, t, 0, t->count, CAIRN_F32, x + e * (n / E), err));
        }
        goto out;
    }
    t = half(p, s->module, which);
    if (s->form == PLAIN || which == 'A') { /* A of fused experts: row e*r + i, which is (E, r, in) */
        TRY(cairn_st_read_as(p->st, t, 0, t->count, CAIRN_F32, x, err));
        goto out;
    }
    b = malloc((size_t)(out * r * E) * sizeof(*b)); /* B of fused experts: column i*E + e */
    if (!b)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_st_read_as(p->st, t, s->row * r * E, out * r * E, CAIRN_F32, b, err));
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < r; i++)
            for (int64_t e = 0; e < E; e++)
                x[(e * out + o) * r + i] = b[(o * r + i) * E + e];
out:
    free(b);
    return st;
}

enum cairn_status cairn_peft_read(struct cairn_peft *p, const struct cairn_adapter *a, int i, float *h_dst, int64_t n, struct cairn_error *err)
{
    if (a->loras != p->sites)
        return CAIRN_BUG(err, "another adapter");
    for (int j = 0; j < p->sites; j++) { /* an A that is shared is read with its first user */
        if (a->lora[j].a == i)
            return read_half(p, &p->site[j], 'A', h_dst, n, err);
        if (a->lora[j].b == i)
            return read_half(p, &p->site[j], 'B', h_dst, n, err);
    }
    return CAIRN_BUG(err, "no such tensor in the adapter");
}

enum cairn_status cairn_peft_load(struct cairn_peft *p, const struct cairn_adapter *a, struct cairn_store *s, struct cairn_compute *k,
                                  struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    float *x = NULL;

    if (s->table->count != a->table.count)
        TRY(CAIRN_BUG(err, "the store is of another adapter"));
    for (int i = 0; i < a->table.count; i++) {
        int64_t n = cairn_param_count(&a->table.param[i]);

        free(x);
        x = malloc((size_t)n * sizeof(*x));
        if (!x)
            TRY(CAIRN_NOMEM(err));
        TRY(cairn_peft_read(p, a, i, x, n, err));
        TRY(cairn_values_set(k, &s->tensor[i], x, n, err));
    }
    TRY(cairn_stream_wait(&k->stream, err));
out:
    free(x);
    return st;
}

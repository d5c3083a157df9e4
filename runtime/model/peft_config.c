/* peft_config.c - the configuration of a PEFT adapter (adapter_config.json): what it refuses, rank and scale of each layer, and
 * whether its targets are those that the tensors show.
 */
#include "model/peft_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "model/hf.h"

#define NAME_BYTES CAIRN_NAME_BYTES

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

enum cairn_status cairn_peft_check_config(const struct cairn_peft *p, struct cairn_error *err)
{
    static const char *const none[] = {"use_dora",
                                       "use_qalora",
                                       "use_bdlora",
                                       "lora_bias",
                                       "fan_in_fan_out",
                                       "modules_to_save",
                                       "layer_replication",
                                       "alora_invocation_tokens",
                                       "trainable_token_indices",
                                       "arrow_config",
                                       "kasa_config",
                                       "monteclora_config"};
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
            return refuse(p, "init_lora_weights", "this start changes the base weights too, which this directory does not hold",
                          err);
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
        json_object_foreach(box, k, v)
        {
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

enum cairn_status cairn_peft_scale(const struct cairn_peft *p, struct cairn_peft_site *s, const char *path, int64_t rank,
                                   struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    double r = 0, alpha = 0;

    TRY(pattern(p, "rank_pattern", "r", path, &r, err));
    TRY(pattern(p, "alpha_pattern", "lora_alpha", path, &alpha, err));
    if (r != (double)rank)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: %s has rank %lld in the tensors, %g in the configuration", p->where, path,
                       (long long)rank, r));
    s->rank = (int)rank;
    s->gamma = alpha / (set(p->config, "use_rslora") ? sqrt(r) : r);
out:
    return st;
}

int cairn_peft_by_parameter(const struct cairn_peft *p, const char *name)
{
    const json_t *list = json_object_get(p->config, "target_parameters"), *v;
    size_t i, n = strlen(name);

    json_array_foreach(list, i, v)
    {
        const char *t = json_string_value(v);
        size_t m = t ? strlen(t) : 0;

        if (m && m <= n && strcmp(name + n - m, t) == 0 && (m == n || name[n - m - 1] == '.'))
            return 1;
    }
    return 0;
}

int cairn_peft_version(const struct cairn_peft *p)
{
    const char *v = json_string_value(json_object_get(p->config, "peft_version"));
    int a = 0, b = 0;

    return v && sscanf(v, "%d.%d", &a, &b) == 2 ? 1000 * a + b : -1;
}

/* ---- targets ---------------------------------------------------------------------------------------------------------------- */

/* PEFT's rule: a list entry is a path or the end of one; a string is an expression for the whole path. */
static int target_hits(const struct cairn_model_config *c, const char *target, int is_regex, const char *module,
                       struct cairn_error *err)
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
        const struct cairn_peft_site *s;
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
            return cairn_fail(err, CAIRN_EDATA,
                              "%s: key \"target_modules\": \"%.100s\" means %s; router, indexer, embedding and head "
                              "cannot have an adapter",
                              p->where, target, module);
        s = cairn_peft_site_of(p, i);
        if (s && s->form != CAIRN_PEFT_SITE_FUSED) { /* module names never reach fused experts */
            hits++;
            experts += q->experts;
        } else if (q->adaptable && q->ndim == 2 && missing < 0) {
            missing = i;
        }
    }
    if (!hits)
        return cairn_fail(err, CAIRN_EDATA, "%s: key \"target_modules\": \"%.100s\" matches no layer that has tensors", p->where,
                          target);
    if (missing >= 0 && !loose && !experts && !is_regex)
        return cairn_fail(err, CAIRN_EDATA, "%s: key \"target_modules\": \"%.100s\" covers %s, but the file has no tensors for it",
                          p->where, target, p->base->param[missing].name);
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
        if (!q->adaptable || !cairn_peft_site_of(p, i))
            return cairn_fail(err, CAIRN_EDATA, "%s: key \"target_parameters\": \"%.100s\" covers %s, %s", p->where, target,
                              q->name, q->adaptable ? "but the file has no tensors for it" : "which cannot have an adapter");
        hits++;
    }
    return hits ? CAIRN_OK
                : cairn_fail(err, CAIRN_EDATA, "%s: key \"target_parameters\": \"%.100s\" matches nothing", p->where, target);
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
        return cairn_fail(err, CAIRN_EDATA,
                          "%s: key \"target_parameters\": \"%.100s\" is no expert matrix; there are gate_up_proj and "
                          "down_proj",
                          p->where, target);
    for (int i = 0; i < p->base->count; i++) {
        const struct cairn_param *q = &p->base->param[i];
        const struct cairn_peft_site *s = q->experts ? cairn_peft_site_of(p, i) : NULL;

        if (!q->experts || cairn_ends_with(q->name, ".down_proj.weight") == gate_up)
            continue;
        if (s && s->form == CAIRN_PEFT_SITE_FUSED)
            hits++;
        else if (strchr(target, '*') == NULL && !strstr(target, "layers."))
            return cairn_fail(err, CAIRN_EDATA,
                              "%s: key \"target_parameters\": \"%.100s\" covers layer %d, but the file has no tensors for "
                              "it",
                              p->where, target, q->layer);
    }
    if (!hits)
        return cairn_fail(err, CAIRN_EDATA, "%s: key \"target_parameters\": \"%.100s\" matches nothing that has tensors", p->where,
                          target);
    return CAIRN_OK;
}

enum cairn_status cairn_peft_check_targets(const struct cairn_peft *p, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const json_t *t = json_object_get(p->config, "target_modules"), *v;
    size_t i;

    if (json_is_string(t) && strcmp(json_string_value(t), "all-linear") != 0)
        TRY(check_target(p, json_string_value(t), 1, err));
    json_array_foreach(t, i, v)
    {
        if (!json_is_string(v))
            TRY(refuse(p, "target_modules", "expected strings", err));
        TRY(check_target(p, json_string_value(v), 0, err));
    }
    t = json_object_get(p->config, "target_parameters");
    json_array_foreach(t, i, v)
    {
        if (!json_is_string(v))
            TRY(refuse(p, "target_parameters", "expected strings", err));
        TRY(check_parameter_target(p, json_string_value(v), err));
    }
out:
    return st;
}

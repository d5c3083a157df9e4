/* adapter.c - chooses the layers an adapter covers and makes its table.
 *
 * A module is a base parameter's name without ".weight" ("model.layers.3.mlp.experts.gate_proj"). Choosing by names refuses what
 * must not be trained (router, indexer) and what is not there, so that a misspelt target is an error and not a smaller adapter.
 * Cuts follow the base: a layer cut by output has B cut and A whole, one cut by input has A cut and B whole.
 *
 * Memory: the table owns names; lora and of_param are plain arrays. Regular expressions are PCRE2, which reads what Python's re
 * (and so PEFT) writes.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/adapter.h"

#include <math.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/philox.h"
#include "base/str.h"
#include "model/values.h"

#define MAX_RANK 65536

/* ---- names -------------------------------------------------------------------------------------------------------- */

static int is_regex(const char *s)
{
    return strpbrk(s, "*+?()[]{}|\\^$") != NULL;
}

static int regex_match(const char *expr, const char *text, struct cairn_error *err)
{
    int code = 0, hit = -1;
    PCRE2_SIZE at = 0;
    PCRE2_UCHAR why[128];
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)expr, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED | PCRE2_ENDANCHORED, &code, &at, NULL);
    pcre2_match_data *md = NULL;
    pcre2_match_context *mc = NULL;

    if (!re && code == PCRE2_ERROR_HEAP_FAILED) {
        CAIRN_NOMEM(err);
        return -1;
    }
    if (!re) {
        pcre2_get_error_message(code, why, sizeof(why));
        cairn_fail(err, CAIRN_EDATA, "regular expression \"%.120s\", character %zu: %s", expr, (size_t)at, (const char *)why);
        return -1;
    }
    md = pcre2_match_data_create_from_pattern(re, NULL);
    mc = pcre2_match_context_create(NULL);
    if (!md || !mc) {
        CAIRN_NOMEM(err);
        goto out;
    }
    pcre2_set_match_limit(mc, 1000000);
    code = pcre2_match(re, (PCRE2_SPTR)text, strlen(text), 0, 0, md, mc);
    if (code >= 0 || code == PCRE2_ERROR_NOMATCH)
        hit = code >= 0;
    else if (code == PCRE2_ERROR_NOMEMORY)
        CAIRN_NOMEM(err);
    else
        cairn_fail(err, CAIRN_EDATA, "regular expression \"%.120s\" gives up on \"%s\" (PCRE2 error %d)", expr, text, code);
out:
    pcre2_match_context_free(mc);
    pcre2_match_data_free(md);
    pcre2_code_free(re);
    return hit;
}

int cairn_target_match(const char *target, const char *module, struct cairn_error *err)
{
    size_t n = strlen(target), m = strlen(module);

    if (is_regex(target))
        return regex_match(target, module, err);
    if (n == 0)
        return 0;
    for (const char *p = strstr(module, target); p; p = strstr(p + 1, target))
        if ((p == module || p[-1] == '.') && ((size_t)(p - module) + n == m || p[n] == '.'))
            return 1;
    return 0;
}

/* Module path of a parameter, or 0 if it is no weight. */
static int module_of(const struct cairn_param *p, char *out, size_t n)
{
    size_t len = strlen(p->name), tail = strlen(".weight");

    if (!cairn_ends_with(p->name, ".weight") || len - tail >= n)
        return 0;
    memcpy(out, p->name, len - tail);
    out[len - tail] = '\0';
    return 1;
}

static int is_expert(const struct cairn_param *p)
{
    return p->experts;
}

static int is_experts_gate(const struct cairn_param *p)
{
    return is_expert(p) && cairn_ends_with(p->name, ".gate_proj.weight");
}

static int is_experts_up(const struct cairn_param *p)
{
    return is_expert(p) && cairn_ends_with(p->name, ".up_proj.weight");
}

/* ---- the table ---------------------------------------------------------------------------------------------------- */

/* Adds A (in = last dimension) or B (out) of base parameter p. */
static enum cairn_status add_half(struct cairn_param_table *t, const struct cairn_param *p, const char *module, char half, int rank,
                                  struct cairn_error *err)
{
    char name[256];
    int e = is_expert(p);
    struct cairn_param q = {.name = name, .layer = p->layer, .ndim = p->ndim, .experts = p->experts, .ep = p->ep, .decay = 1, .product = 1};
    int by_output = p->tp == (e ? CAIRN_CUT_DIM1 : CAIRN_CUT_DIM0), by_input = p->tp == (e ? CAIRN_CUT_DIM2 : CAIRN_CUT_DIM1);

    snprintf(name, sizeof(name), "%s.lora_%c.weight", module, half);
    if (e)
        q.dim[0] = p->dim[0];
    q.dim[e] = half == 'A' ? rank : p->dim[e];
    q.dim[e + 1] = half == 'A' ? p->dim[e + 1] : rank;
    if (half == 'B' && by_output)
        q.tp = p->tp;
    if (half == 'A' && by_input)
        q.tp = p->tp;
    return cairn_param_table_add(t, &q, err);
}

static int index_of(const struct cairn_lora_choice *list, int n, int param)
{
    for (int i = 0; i < n; i++)
        if (list[i].param == param)
            return i;
    return -1;
}

static enum cairn_status check_choice(const struct cairn_param_table *base, const struct cairn_lora_choice *list, int i,
                                      struct cairn_error *err)
{
    const struct cairn_lora_choice *c = &list[i];
    const struct cairn_param *p = c->param >= 0 && c->param < base->count ? &base->param[c->param] : NULL;

    if (!p || (i && list[i - 1].param >= c->param))
        return CAIRN_BUG(err, "adapter choices must ascend");
    if (!p->adaptable)
        return cairn_fail(err, CAIRN_EDATA, "%s cannot have an adapter", p->name);
    if (c->rank < 1 || c->rank > MAX_RANK || !isfinite(c->gamma))
        return cairn_fail(err, CAIRN_EDATA, "%s: rank %d with scale %g is no adapter", p->name, c->rank, c->gamma);
    if (c->alias >= 0) {
        int j = index_of(list, i, c->alias);
        const struct cairn_param *q = j >= 0 ? &base->param[list[j].param] : NULL;

        if (!q || list[j].alias >= 0 || list[j].rank != c->rank || q->ndim != p->ndim || q->dim[q->ndim - 1] != p->dim[p->ndim - 1] ||
            (is_expert(p) && q->dim[0] != p->dim[0]) || q->layer != p->layer)
            return cairn_fail(err, CAIRN_EDATA, "%s cannot share a matrix A with %s", p->name, q ? q->name : "a layer without adapter");
    }
    return CAIRN_OK;
}

/* The name of A: its module's, or gate_up_proj where the experts' up projection uses it too. */
static void name_a(const struct cairn_param_table *base, const struct cairn_lora_choice *list, int n, int i, char *module, size_t size)
{
    module_of(&base->param[list[i].param], module, size);
    for (int j = i + 1; j < n; j++) {
        char *gate;

        if (list[j].alias != list[i].param || !is_experts_gate(&base->param[list[i].param]))
            continue;
        gate = strrchr(module, '.') + 1;
        snprintf(gate, size - (size_t)(gate - module), "gate_up_proj");
        return;
    }
}

enum cairn_status cairn_adapter_create_from(struct cairn_adapter *out, const struct cairn_param_table *base,
                                            const struct cairn_lora_choice *list, int n, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_adapter a;

    memset(&a, 0, sizeof(a));
    TRY(cairn_param_table_begin(&a.table, err));
    a.lora = calloc((size_t)n + 1, sizeof(*a.lora));
    a.of_param = malloc(((size_t)base->count + 1) * sizeof(*a.of_param));
    if (!a.lora || !a.of_param)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < base->count; i++)
        a.of_param[i] = -1;
    for (int i = 0; i < n; i++) {
        const struct cairn_param *p;
        struct cairn_lora *l = &a.lora[i];
        char module[224];

        TRY(check_choice(base, list, i, err));
        p = &base->param[list[i].param];
        *l = (struct cairn_lora){.param = list[i].param, .rank = list[i].rank, .gamma = (float)list[i].gamma};
        if (list[i].alias >= 0) {
            l->a = a.lora[index_of(list, i, list[i].alias)].a;
        } else {
            name_a(base, list, n, i, module, sizeof(module));
            l->a = a.table.count;
            TRY(add_half(&a.table, p, module, 'A', l->rank, err));
        }
        module_of(p, module, sizeof(module));
        l->b = a.table.count;
        TRY(add_half(&a.table, p, module, 'B', l->rank, err));
        a.of_param[l->param] = i;
        a.loras = i + 1;
    }
    TRY(cairn_param_table_finish(&a.table, err));
    *out = a;
    memset(&a, 0, sizeof(a));
out:
    cairn_adapter_free(&a);
    return st;
}

void cairn_adapter_free(struct cairn_adapter *a)
{
    if (!a)
        return;
    cairn_param_table_free(&a->table);
    free(a->lora);
    free(a->of_param);
    json_decref(a->peft);
    memset(a, 0, sizeof(*a));
}

/* ---- from a recipe -------------------------------------------------------------------------------------------------- */

/* "gate_up_proj" means both halves of the experts' fused matrix, as PEFT's target_parameters does. */
static int spec_match(const char *target, const struct cairn_param *p, const char *module, struct cairn_error *err)
{
    if (strcmp(target, "all-linear") == 0)
        return p->adaptable;
    if (strcmp(target, "gate_up_proj") == 0)
        return is_experts_gate(p) || is_experts_up(p);
    return cairn_target_match(target, module, err);
}

/* A target that names a frozen or unadapted module itself (not a block that holds one) is a mistake of the user's. */
static int names_it(const char *target, const char *module)
{
    size_t n = strlen(target), m = strlen(module);

    return strstr(target, "indexer") != NULL || (m >= n && strcmp(module + m - n, target) == 0);
}

/* Marks in chosen[base->count] what target means. */
static enum cairn_status choose(const struct cairn_param_table *base, const char *target, uint8_t *chosen, struct cairn_error *err)
{
    const char *more = "";
    int hits = 0;

    for (int i = 0; i < base->count; i++) {
        char module[224];
        int hit;

        if (base->param[i].ndim < 2 || !module_of(&base->param[i], module, sizeof(module)))
            continue;
        hit = spec_match(target, &base->param[i], module, err);
        if (hit < 0)
            return CAIRN_EDATA;
        if (hit && !base->param[i].adaptable && names_it(target, module))
            return cairn_fail(err, CAIRN_ERECIPE, "adapter target \"%.100s\" means %s, which cannot have an adapter", target, module);
        if (hit && base->param[i].adaptable) {
            chosen[i] = 1;
            hits++;
        }
    }
    for (int i = 0; i < base->count; i++)
        if (strstr(base->param[i].name, ".f_a_proj."))
            more = ", in KDA layers q_proj, k_proj, v_proj, f_a_proj, f_b_proj, b_proj, g_a_proj, g_b_proj";
    if (!hits)
        return cairn_fail(err, CAIRN_ERECIPE,
                          "adapter target \"%.100s\" matches no layer; there are q_a_proj, q_b_proj, kv_a_proj_with_mqa, kv_b_proj, "
                          "o_proj, gate_proj, up_proj, down_proj, experts, shared_experts, all-linear%s", target, more);
    return CAIRN_OK;
}

/* A whole alpha is written as an integer: so it comes back from any JSON text. */
static json_t *spec_json(const struct cairn_adapter_spec *spec)
{
    double a = spec->alpha;

    return json_pack("{s:i, s:o, s:b}", "r", spec->rank, "lora_alpha", a == floor(a) && a < 1e15 ? json_integer((json_int_t)a) : json_real(a),
                     "use_rslora", spec->use_rslora != 0);
}

enum cairn_status cairn_adapter_create(struct cairn_adapter *a, const struct cairn_param_table *base, const struct cairn_model_config *c,
                                       const struct cairn_adapter_spec *spec, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    uint8_t *chosen = calloc((size_t)base->count + 1, 1);
    struct cairn_lora_choice *list = calloc((size_t)base->count + 1, sizeof(*list));
    double gamma = spec->rank > 0 ? spec->alpha / (spec->use_rslora ? sqrt((double)spec->rank) : (double)spec->rank) : 0;
    int n = 0;
    json_t *peft = NULL;

    (void)c;
    if (!chosen || !list)
        TRY(CAIRN_NOMEM(err));
    if (spec->rank < 1 || spec->rank > MAX_RANK || !(spec->alpha > 0) || !isfinite(spec->alpha))
        TRY(cairn_fail(err, CAIRN_ERECIPE, "an adapter needs a rank from 1 to %d and a positive alpha, not %d and %g", MAX_RANK,
                       spec->rank, spec->alpha));
    for (int i = 0; spec->targets && spec->targets[i]; i++)
        TRY(choose(base, spec->targets[i], chosen, err));
    for (int i = 0; i < base->count; i++) {
        int gate = -1;

        if (!chosen[i])
            continue;
        if (spec->alias_gate_up && is_experts_up(&base->param[i]))
            for (int j = n - 1; j >= 0 && base->param[list[j].param].layer == base->param[i].layer; j--)
                if (is_experts_gate(&base->param[list[j].param]))
                    gate = list[j].param;
        list[n++] = (struct cairn_lora_choice){.param = i, .rank = spec->rank, .gamma = gamma, .alias = gate};
    }
    if (!n)
        TRY(cairn_fail(err, CAIRN_ERECIPE, "the adapter has no targets"));
    peft = spec_json(spec);
    if (!peft)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_adapter_create_from(a, base, list, n, err));
    a->peft = peft;
    peft = NULL;
out:
    json_decref(peft);
    free(list);
    free(chosen);
    return st;
}

/* ---- recorded in artefacts ------------------------------------------------------------------------------------------ */

json_t *cairn_adapter_to_json(const struct cairn_adapter *a, const struct cairn_param_table *base)
{
    json_t *loras = json_array(), *o = json_object();
    int bad = !loras || !o;

    for (int i = 0; i < a->loras && !bad; i++) {
        const struct cairn_lora *l = &a->lora[i];
        char module[224], other[224];
        json_t *v = json_object();
        int first = i;

        module_of(&base->param[l->param], module, sizeof(module));
        bad = !v || json_object_set_new(v, "module", json_string(module)) || json_object_set_new(v, "rank", json_integer(l->rank)) ||
              json_object_set_new(v, "gamma", json_real(l->gamma));
        for (int j = 0; j < i; j++)
            if (a->lora[j].a == l->a && first == i)
                first = j;
        if (!bad && first != i) {
            module_of(&base->param[a->lora[first].param], other, sizeof(other));
            bad = json_object_set_new(v, "alias", json_string(other));
        }
        if (bad)
            json_decref(v);
        else
            bad = json_array_append_new(loras, v);
    }
    bad = bad || json_object_set(o, "loras", loras) || (a->peft && json_object_set_new(o, "peft", json_deep_copy(a->peft)));
    json_decref(loras);
    if (bad) {
        json_decref(o);
        return NULL;
    }
    return o;
}

static int param_of_module(const struct cairn_param_table *base, const char *module)
{
    char name[256];

    if (strlen(module) > 200)
        return -1;
    snprintf(name, sizeof(name), "%s.weight", module);
    return cairn_param_find(base, name);
}

enum cairn_status cairn_adapter_from_json(struct cairn_adapter *a, const struct cairn_param_table *base, const json_t *v,
                                          const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    json_t *loras = NULL, *peft = json_object_get(v, "peft");
    struct cairn_lora_choice *list = NULL;
    size_t n;

    TRY(cairn_json_array(v, "loras", &loras, where, err));
    n = json_array_size(loras);
    if (n > (size_t)base->count)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: %zu adapted layers, but the model has %d tensors", where, n, base->count));
    list = calloc(n + 1, sizeof(*list));
    if (!list)
        TRY(CAIRN_NOMEM(err));
    for (size_t i = 0; i < n; i++) {
        const json_t *o = json_array_get(loras, i), *alias = json_object_get(o, "alias");
        const char *module = NULL;
        int64_t rank = 0;

        TRY(cairn_json_string(o, "module", &module, where, err));
        TRY(cairn_json_i64(o, "rank", 1, MAX_RANK, &rank, where, err));
        TRY(cairn_json_f64(o, "gamma", &list[i].gamma, where, err));
        list[i].rank = (int)rank;
        list[i].param = param_of_module(base, module);
        list[i].alias = json_is_string(alias) ? param_of_module(base, json_string_value(alias)) : -1;
        if (list[i].param < 0 || (alias && list[i].alias < 0) || (i && list[i].param <= list[i - 1].param))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: adapter on \"%.100s\" does not fit this model", where, module));
    }
    TRY(cairn_adapter_create_from(a, base, list, (int)n, err));
    if (json_is_object(peft))
        a->peft = json_deep_copy(peft);
out:
    free(list);
    return st;
}

/* ---- initial values --------------------------------------------------------------------------------------------------- */

enum cairn_status cairn_adapter_init(struct cairn_store *s, const struct cairn_adapter *a, uint64_t seed, struct cairn_compute *k,
                                     struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    float *h = NULL;
    int64_t most = 0;

    for (int i = 0; i < a->table.count; i++) {
        int64_t n = cairn_param_count(&a->table.param[i]);

        most = n > most ? n : most;
    }
    h = malloc((size_t)most * sizeof(*h) + 1);
    if (!h)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < a->table.count; i++) {
        const struct cairn_param *p = &a->table.param[i];
        int64_t n = cairn_param_count(p);
        struct cairn_philox_key key = {seed, CAIRN_PURPOSE_INIT, (uint32_t)cairn_digest_bytes(p->name, strlen(p->name)).lo};
        double bound = 1.0 / sqrt((double)p->dim[p->ndim - 1]);

        if (cairn_ends_with(p->name, ".lora_B.weight")) {
            TRY(cairn_tensor_zero(&k->stream, &s->tensor[i], err));
            continue;
        }
        for (int64_t j = 0; j < n; j += 4) {
            uint64_t block = (uint64_t)j / 4;
            uint32_t w[4];

            cairn_philox(&key, (uint32_t)block, (uint32_t)(block >> 32), 0, w);
            for (int64_t l = 0; l < 4 && j + l < n; l++)
                h[j + l] = (float)(bound * (2.0 * (double)cairn_uniform(w[l]) - 1.0));
        }
        TRY(cairn_values_set(k, &s->tensor[i], h, n, err));
    }
    TRY(cairn_stream_wait(&k->stream, err));
out:
    free(h);
    return st;
}

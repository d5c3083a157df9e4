/* setup.c - reads keys and fills structs (setup.h); decides nothing. */
#include "stages/common/setup.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What the recipe says of activations; NULL: the back-end's own. */
static const char *precision(const struct cairn_recipe *r)
{
    const char *v = cairn_recipe_str(r, "kernels.precision");

    return strcmp(v, "auto") ? v : NULL;
}

static enum cairn_status compute_open(struct cairn_compute *k, const struct cairn_run *run, const char *act, int threads, int rank,
                                      struct cairn_error *err)
{
    const struct cairn_recipe *r = run->recipe;
    char *log = cairn_run_path(run, "log");
    struct cairn_compute_opts o = {.backend = cairn_recipe_str(r, "kernels.backend"), .dsa = cairn_recipe_str(r, "kernels.dsa"),
                                   .act = act,
                                   .keep = log,
                                   .rank = rank,
                                   .threads = threads > 0 ? threads : (int)cairn_recipe_i64(r, "kernels.threads")};
    enum cairn_status st = log ? cairn_compute_open(k, &o, err) : CAIRN_NOMEM(err);

    free(log);
    return st;
}

enum cairn_status cairn_setup_compute(struct cairn_compute *k, const struct cairn_run *run, int threads, int rank, struct cairn_error *err)
{
    return compute_open(k, run, precision(run->recipe), threads, rank, err);
}

enum cairn_status cairn_setup_compute_wide(struct cairn_compute *k, const struct cairn_run *run, int threads, int *narrow, struct cairn_error *err)
{
    const char *own = precision(run->recipe);
    enum cairn_status st = compute_open(k, run, "f32", threads, 0, err);

    *narrow = st == CAIRN_OK && (own ? strcmp(own, "f32") != 0 : k->backend->act != CAIRN_F32);
    return st;
}

enum cairn_status cairn_setup_host(struct cairn_compute *k, const struct cairn_recipe *r, struct cairn_error *err)
{
    const struct cairn_compute_opts o = {.backend = strcmp(cairn_recipe_str(r, "kernels.backend"), "guard") ? "cpu" : "guard",
                                         .threads = (int)cairn_recipe_i64(r, "kernels.threads")};

    return cairn_compute_open(k, &o, err);
}

int cairn_setup_graphs(const struct cairn_recipe *r)
{
    return !strcmp(cairn_recipe_str(r, "kernels.graphs"), "auto");
}

enum cairn_dtype cairn_setup_dtype(const struct cairn_recipe *r)
{
    return strcmp(cairn_recipe_str(r, "sync.dtype"), "f32") ? CAIRN_BF16 : CAIRN_F32;
}

int cairn_setup_node_store(struct cairn_nodestore_opts *o, const struct cairn_recipe *r)
{
    if (!cairn_recipe_has(r, "sync.node_store"))
        return 0;
    *o = (struct cairn_nodestore_opts){.path = cairn_recipe_str(r, "sync.node_store.path"),
                                       .max_bytes = cairn_recipe_f64(r, "sync.node_store.max") * 0x1p30,
                                       .ttl_s = cairn_recipe_f64(r, "sync.node_store.ttl") * 3600,
                                       .patience_s = cairn_recipe_f64(r, "run.deadline")};
    return 1;
}

struct cairn_template_opts cairn_setup_template(const struct cairn_recipe *r)
{
    return (struct cairn_template_opts){.thinking_off = !cairn_recipe_bool(r, "data.thinking"),
                                        .effort = cairn_recipe_has(r, "data.effort") ? cairn_recipe_str(r, "data.effort") : NULL,
                                        .added_in_prompt = cairn_recipe_bool(r, "data.added_in_prompt")};
}

/* The module of a parameter: its name without ".weight". */
static void module_of(const struct cairn_param *p, char *out, size_t n)
{
    size_t len = strlen(p->name), cut = len > 7 && !strcmp(p->name + len - 7, ".weight") ? len - 7 : len;

    if (cut >= n)
        cut = n - 1;
    memcpy(out, p->name, cut);
    out[cut] = 0;
}

/* model.adapter.modules: single modules with a rank or alpha of their own; the adapter is made anew from the changed list. */
static enum cairn_status modules_apply(struct cairn_adapter *a, const struct cairn_param_table *base, const struct cairn_recipe *r,
                                       struct cairn_error *err)
{
    json_t *modules = (json_t *)cairn_recipe_get(r, "model.adapter.modules"), *v;
    struct cairn_lora_choice *list = calloc((size_t)a->loras + 1, sizeof *list);
    int rslora = cairn_recipe_bool(r, "model.adapter.rslora");
    enum cairn_status st = CAIRN_OK;
    const char *target;

    if (!list)
        return CAIRN_NOMEM(err);
    for (int i = 0; i < a->loras; i++) {
        const struct cairn_lora *l = &a->lora[i];
        char module[300];

        list[i] = (struct cairn_lora_choice){l->param, l->rank, (double)l->gamma, -1};
        for (int j = 0; j < i; j++)
            if (a->lora[j].a == l->a && list[i].alias < 0)
                list[i].alias = a->lora[j].param;
        module_of(&base->param[l->param], module, sizeof module);
        json_object_foreach(modules, target, v)
        {
            int hit = cairn_target_match(target, module, err);
            double alpha;

            if (hit < 0) {
                st = err ? err->code : CAIRN_ERECIPE;
                goto out;
            }
            if (!hit)
                continue;
            if (json_is_integer(json_object_get(v, "rank")))
                list[i].rank = (int)json_integer_value(json_object_get(v, "rank"));
            alpha = json_is_number(json_object_get(v, "alpha")) ? json_number_value(json_object_get(v, "alpha")) : list[i].rank;
            list[i].gamma = alpha / (rslora ? sqrt(list[i].rank) : list[i].rank);
            break;
        }
    }
    {
        struct cairn_adapter changed = {0};

        TRY(cairn_adapter_create_from(&changed, base, list, a->loras, err));
        cairn_adapter_free(a);
        *a = changed;
    }
out:
    free(list);
    return st;
}

enum cairn_status cairn_setup_adapter(struct cairn_adapter *a, int *lora, const struct cairn_param_table *base,
                                      const struct cairn_model_config *c, const struct cairn_recipe *r, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_adapter_spec spec = {0};
    const char **targets = NULL;
    const json_t *list;

    *lora = cairn_recipe_has(r, "model.adapter");
    if (!*lora)
        return CAIRN_OK;
    list = cairn_recipe_list(r, "model.adapter.targets");
    targets = calloc(json_array_size(list) + 1, sizeof *targets);
    if (!targets)
        return CAIRN_NOMEM(err);
    for (size_t i = 0; i < json_array_size(list); i++)
        targets[i] = json_string_value(json_array_get(list, i));
    spec.rank = (int)cairn_recipe_i64(r, "model.adapter.rank");
    spec.alpha = cairn_recipe_has(r, "model.adapter.alpha") ? cairn_recipe_f64(r, "model.adapter.alpha") : spec.rank;
    spec.targets = targets;
    spec.alias_gate_up = cairn_recipe_bool(r, "model.adapter.alias_gate_up");
    spec.use_rslora = cairn_recipe_bool(r, "model.adapter.rslora");
    st = cairn_adapter_create(a, base, c, &spec, err);
    if (st != CAIRN_OK)
        st = cairn_recipe_fail(r, "model.adapter.targets", err, "%s", err ? err->text : "does not fit the model");
    else if (json_object_size(cairn_recipe_get(r, "model.adapter.modules")) > 0 && (st = modules_apply(a, base, r, err)) != CAIRN_OK)
        cairn_adapter_free(a);
    free(targets);
    return st;
}

json_t *cairn_setup_policy_content(const struct cairn_model_config *c, const struct cairn_param_table *table, const struct cairn_adapter *a,
                                   struct cairn_digest base, enum cairn_dtype dtype)
{
    char hex[33];

    if (!a)
        return json_pack("{s:O, s:s}", "config", c->raw, "dtype", cairn_dtype_name(dtype));
    cairn_digest_hex(base, hex);
    return json_pack("{s:s, s:s, s:o}", "base", hex, "dtype", cairn_dtype_name(dtype), "adapter", cairn_adapter_to_json(a, table));
}

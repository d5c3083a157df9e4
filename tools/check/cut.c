/* cut.c - see cut.h. */
#include "tools/check/cut.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "model/io.h"
#include "model/policy.h"
#include "stages/common/run.h"

/* ---- the configuration ----------------------------------------------------------------------------------------------------- */

/* Lists with an entry a layer, and those of numbers of layers. */
static const char *const lists[] = {"mlp_layer_types", "indexer_types", "layer_types"};

static int shorten(json_t *o, int have, int layers)
{
    const char *pattern = json_string_value(json_object_get(o, "index_topk_pattern"));
    int bad = json_object_set_new(o, "num_hidden_layers", json_integer(layers));

    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        json_t *list = json_object_get(o, lists[i]);

        while (json_array_size(list) > (size_t)layers)
            bad |= json_array_remove(list, json_array_size(list) - 1);
    }
    if (pattern && strlen(pattern) >= (size_t)have)
        bad |= json_object_set_new(o, "index_topk_pattern", json_stringn(pattern, (size_t)layers));
    if (json_object_get(o, "num_nextn_predict_layers"))
        bad |= json_object_set_new(o, "num_nextn_predict_layers", json_integer(0));
    return bad;
}

json_t *cairn_check_cut_config(const json_t *config, int have, int layers)
{
    json_t *o = json_deep_copy(config), *text = json_object_get(o, "text_config");
    int bad = !o || shorten(json_is_object(text) && json_object_get(text, "num_hidden_layers") ? text : o, have, layers);

    if (bad) {
        json_decref(o);
        return NULL;
    }
    return o;
}

/* ---- the base ---------------------------------------------------------------------------------------------------------------- */

static enum cairn_status base_write(struct cairn_reader *base, const json_t *config, const char *dir, struct cairn_error *err)
{
    const struct cairn_save_opts o = {.stem = "weights", .dtype = CAIRN_F32}; /* holds every type's values */
    struct cairn_manifest *m = cairn_manifest_create("base", 0, "");
    struct cairn_model_config c = {0};
    struct cairn_param_table table = {0};
    struct cairn_reader_source from = {.table = &table, .reader = base};
    struct cairn_source src;
    struct cairn_attempt *a = NULL;
    enum cairn_status st = CAIRN_OK;

    if (!m)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_config_parse(&c, config, dir, err));
    TRY(cairn_param_table_create(&table, &c, err));
    TRY(cairn_attempt_begin(&a, dir, &(struct cairn_attempt_opts){.identity = cairn_manifest_identity(m)}, err));
    src = cairn_source_reader(&from);
    TRY(cairn_save(&src, a, m, &o, err));
    if (json_object_set(m->content, "config", (json_t *)config) || json_object_set_new(m->content, "files", json_object()) ||
        json_object_set_new(m->content, "fused", json_array()) || json_object_set_new(m->content, "passed", json_array()) ||
        json_object_set_new(m->content, "self_contained", json_true()))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_attempt_commit(a, m, err));
out:
    cairn_attempt_end(a);
    cairn_param_table_free(&table);
    cairn_config_free(&c);
    cairn_manifest_destroy(m);
    return st;
}

/* ---- the run ------------------------------------------------------------------------------------------------------------------- */

static enum cairn_status run_make(const struct cairn_run *old, const char *base, const char *dir, struct cairn_error *err)
{
    char *recipe_path = cairn_run_path(old, "recipe.yaml"), *tokenizer = NULL, *from = cairn_format("model.from=%s", base), *words = NULL;
    struct cairn_recipe *recipe = NULL;
    struct cairn_run *run = NULL;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_run_outside(old, "model.tokenizer", &tokenizer, err));
    words = cairn_format("model.tokenizer=%s", tokenizer);
    if (!recipe_path || !from || !words)
        TRY(CAIRN_NOMEM(err));
    {
        const char *const over[] = {"model.init=null", from, words, "run.check=off"};

        TRY(cairn_recipe_load(&recipe, recipe_path, (int)(sizeof over / sizeof *over), over, err));
    }
    TRY(cairn_run_init(&run, dir, recipe, err));
    recipe = NULL;
out:
    cairn_run_close(run);
    cairn_recipe_free(recipe);
    free(recipe_path);
    free(tokenizer);
    free(from);
    free(words);
    return st;
}

enum cairn_status cairn_check_cut(const char *run, int layers, const char *dir, char **out, struct cairn_error *err)
{
    char *base = NULL, *cut = cairn_format("%s/base-cut", dir), *made = cairn_format("%s/run", dir);
    struct cairn_model_config c = {0};
    struct cairn_reader *reader = NULL;
    struct cairn_run *old = NULL;
    enum cairn_status st = CAIRN_OK;
    json_t *config = NULL;

    if (!cut || !made)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_run_open(&old, run, err));
    if (!(base = cairn_run_path(old, "base")))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_reader_open(&reader, base, NULL, err));
    TRY(cairn_policy_config(&c, cairn_reader_manifest(reader), NULL, base, err));
    if (layers > c.layers)
        TRY(cairn_fail(err, CAIRN_EUSAGE, "--layers %d: the model has %d", layers, c.layers));
    if (!(config = cairn_check_cut_config(json_object_get(cairn_reader_manifest(reader)->content, "config"), c.layers, layers)))
        TRY(CAIRN_NOMEM(err));
    TRY(base_write(reader, config, cut, err));
    TRY(run_make(old, cut, made, err));
    *out = made;
    made = NULL;
out:
    json_decref(config);
    cairn_config_free(&c);
    cairn_reader_close(reader);
    cairn_run_close(old);
    free(base);
    free(cut);
    free(made);
    return st;
}

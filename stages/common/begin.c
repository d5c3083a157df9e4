/* begin.c - the beginning of a run (begin.h): tokenizer, base, policy 0. */
#include "stages/common/begin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "grade/grade.h"
#include "model/base.h"
#include "model/io.h"
#include "model/policy.h"
#include "stages/common/graders.h"
#include "stages/common/prompts.h"
#include "stages/common/setup.h"
#include "text/tokenizer.h"

enum cairn_status cairn_begin_tokenizer(const struct cairn_recipe *recipe, char **path, struct cairn_error *err)
{
    const char *given = cairn_recipe_has(recipe, "model.tokenizer") ? cairn_recipe_str(recipe, "model.tokenizer")
                        : cairn_recipe_has(recipe, "model.from")    ? cairn_recipe_str(recipe, "model.from")
                                                                    : NULL;

    if (!given)
        return cairn_recipe_fail(recipe, "model.tokenizer", err, "name a tokenizer.json: model.init brings none");
    *path = cairn_path_is_dir(given) ? cairn_path_join(given, "tokenizer.json") : strdup(given);
    if (!*path)
        return CAIRN_NOMEM(err);
    if (!cairn_path_exists(*path)) {
        enum cairn_status st = cairn_recipe_fail(recipe, "model.tokenizer", err, "%s does not exist", *path);

        free(*path);
        *path = NULL;
        return st;
    }
    return CAIRN_OK;
}

/* The sentence in err is about what stands at `path` of the recipe. */
static enum cairn_status recipe_wrong(const struct cairn_recipe *recipe, const char *path, struct cairn_error *err)
{
    struct cairn_error why = {0};

    if (err)
        why = *err;
    return cairn_recipe_fail(recipe, path, err, "%s", why.text);
}

/* Is what RUN/base points to (`there`) the checkpoint `target`, though it lies elsewhere? */
static enum cairn_status base_same(struct cairn_run *r, const char *there, const char *target, struct cairn_error *err)
{
    struct cairn_manifest_head x, y;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_manifest_head(&x, there, err));
    TRY(cairn_manifest_head(&y, target, err));
    if (!cairn_digest_equal(x.digest, y.digest))
        TRY(cairn_recipe_fail(r->recipe, "model.from", err, "%s is not the checkpoint that the run in %s was made with (%s)", target, r->dir, there));
out:
    return st;
}

/* RUN/base as a link to the imported checkpoint. One that leads nowhere, because the checkpoint was moved, is made anew: what was trained on it
 * names its digest. */
static enum cairn_status base_link(struct cairn_run *r, const char *base, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *target = realpath(cairn_recipe_str(r->recipe, "model.from"), NULL), *there = realpath(base, NULL);

    if (there && target && strcmp(there, target))
        TRY(base_same(r, there, target, err));
    if (there) /* also where model.from is gone, but not what it meant */
        goto out;
    if (!target)
        TRY(cairn_recipe_fail(r->recipe, "model.from", err, "%s: %s", cairn_recipe_str(r->recipe, "model.from"), strerror(errno)));
    if (unlink(base) && errno != ENOENT)
        TRY(cairn_fail_errno(err, errno, "remove %s", base));
    if (symlink(target, base))
        TRY(cairn_fail_errno(err, errno, "link %s", base));
    TRY(cairn_dir_sync(r->dir, err));
out:
    free(target);
    free(there);
    return st;
}

static enum cairn_status base_init(struct cairn_run *r, const char *base, const char *tokenizer, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_compute k = {0};
    struct cairn_base_init_opts o = {.config = cairn_recipe_get(r->recipe, "model.init"),
                                     .seed = (uint64_t)cairn_recipe_i64(r->recipe, "run.seed"),
                                     .dtype = cairn_setup_dtype(r->recipe),
                                     .run = r->uuid,
                                     .recipe = &r->hash,
                                     .tokenizer = tokenizer};

    if (cairn_artefact_committed(base))
        return cairn_artefact_settle(base, err);
    TRY(cairn_setup_compute(&k, r->recipe, 0, err));
    TRY(cairn_base_init(base, &o, &k, err));
out:
    cairn_compute_close(&k);
    return st;
}

/* The configuration that the recipe means: of its checkpoint, or its own. */
static enum cairn_status config_find(struct cairn_model_config *c, const struct cairn_recipe *recipe, struct cairn_error *err)
{
    const char *from = cairn_recipe_has(recipe, "model.from") ? cairn_recipe_str(recipe, "model.from") : NULL;
    struct cairn_manifest *m = NULL;
    enum cairn_status st = CAIRN_OK;

    if (from) {
        if (!cairn_artefact_committed(from))
            TRY(cairn_recipe_fail(recipe, "model.from", err,
                                  "%s is no imported checkpoint; make one with: cairn import HF_DIR --out DIR", from));
        TRY(cairn_manifest_load(&m, from, err));
        TRY(cairn_policy_config(c, m, NULL, from, err));
        goto out;
    }
    st = cairn_config_parse(c, cairn_recipe_get(recipe, "model.init"), "model.init", err);
    if (st == CAIRN_EDATA)
        st = recipe_wrong(recipe, "model.init", err);
out:
    cairn_manifest_destroy(m);
    return st;
}

static enum cairn_status template_check(const struct cairn_recipe *recipe, const struct cairn_tokenizer *t, struct cairn_error *err)
{
    const struct cairn_template_opts o = cairn_setup_template(recipe);
    struct cairn_template *template = NULL;
    enum cairn_status st = cairn_template_parse(&template, cairn_recipe_str(recipe, "data.template"), &o, err);

    if (st == CAIRN_OK)
        st = cairn_template_check(template, t, err);
    cairn_template_destroy(template);
    return st == CAIRN_ERECIPE || st == CAIRN_EDATA ? recipe_wrong(recipe, "data.template", err) : st;
}

static enum cairn_status adapter_check(const struct cairn_recipe *recipe, const struct cairn_model_config *c, struct cairn_error *err)
{
    struct cairn_param_table table = {0};
    struct cairn_adapter adapter = {0};
    enum cairn_status st = CAIRN_OK;
    int lora = 0;

    TRY(cairn_param_table_create(&table, c, err));
    TRY(cairn_setup_adapter(&adapter, &lora, &table, c, recipe, err));
out:
    if (lora)
        cairn_adapter_free(&adapter);
    cairn_param_table_free(&table);
    return st;
}

static enum cairn_status prompts_check(const struct cairn_recipe *recipe, struct cairn_error *err)
{
    static const char *const lists[] = {"data.prompts", "data.eval"};
    enum cairn_status st = CAIRN_OK;

    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
        const json_t *list = cairn_recipe_get(recipe, lists[k]);

        for (size_t i = 0; i < json_array_size(list); i++) {
            const char *path = json_string_value(json_object_get(json_array_get(list, i), "path"));
            struct cairn_prompts p;
            char key[64];

            snprintf(key, sizeof key, "%s.%zu.path", lists[k], i);
            if (cairn_path_is_dir(path))
                TRY(cairn_recipe_fail(recipe, key, err, "%s is a directory; name the file", path));
            if (!cairn_path_exists(path))
                TRY(cairn_recipe_fail(recipe, key, err, "%s does not exist", path));
            TRY(cairn_prompts_load(&p, path, err));
            cairn_prompts_free(&p);
        }
    }
out:
    return st;
}

/* Graders that nobody knows, and marks that no grader takes. */
static enum cairn_status graders_check(const struct cairn_recipe *recipe, struct cairn_error *err)
{
    static const char *const lists[] = {"data.prompts", "data.eval"};
    const json_t *markers = cairn_recipe_list(recipe, "score.marker");
    const char **marker = calloc(json_array_size(markers) + 1, sizeof *marker);
    struct cairn_grade_opts o = {.marker = marker, .markers = (int)json_array_size(markers)};
    enum cairn_status st = CAIRN_OK;

    if (!marker)
        return CAIRN_NOMEM(err);
    TRY(cairn_graders_define(recipe, err));
    for (size_t i = 0; i < json_array_size(markers); i++)
        marker[i] = json_string_value(json_array_get(markers, i));
    if (cairn_grade_opts_check(&o, err) != CAIRN_OK)
        TRY(recipe_wrong(recipe, "score.marker", err));
    if (!cairn_grader_find(cairn_recipe_str(recipe, "score.grader"))) {
        cairn_grader_unknown(cairn_recipe_str(recipe, "score.grader"), err);
        TRY(recipe_wrong(recipe, "score.grader", err));
    }
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
        const json_t *list = cairn_recipe_get(recipe, lists[k]);

        for (size_t i = 0; i < json_array_size(list); i++) {
            const char *name = json_string_value(json_object_get(json_array_get(list, i), "grader"));
            char key[64];

            snprintf(key, sizeof key, "%s.%zu.grader", lists[k], i);
            if (name && !cairn_grader_find(name)) {
                cairn_grader_unknown(name, err);
                TRY(recipe_wrong(recipe, key, err));
            }
        }
    }
out:
    free(marker);
    return st;
}

/* A length cap must leave positions for a prompt. */
static enum cairn_status lengths_check(const struct cairn_recipe *recipe, const struct cairn_model_config *c, struct cairn_error *err)
{
    int64_t cap = cairn_recipe_i64(recipe, "rollout.max_new_tokens");

    if (cap >= c->max_positions)
        return cairn_recipe_fail(recipe, "rollout.max_new_tokens", err, "%lld leaves no place for a prompt: the model has %lld positions",
                                 (long long)cap, (long long)c->max_positions);
    return CAIRN_OK;
}

static enum cairn_status init_keys_check(const struct cairn_recipe *recipe, struct cairn_error *err)
{
    const char *box, *near, *key = cairn_config_unknown(cairn_recipe_get(recipe, "model.init"), &box, &near);
    char path[200];

    if (!key)
        return CAIRN_OK;
    snprintf(path, sizeof path, "model.init.%s%.150s", box, key);
    return cairn_recipe_fail(recipe, path, err, "no config.json has this key%s%s", near ? "; nearest: " : "", near ? near : "");
}

enum cairn_status cairn_begin_check(const struct cairn_recipe *recipe, struct cairn_error *err)
{
    struct cairn_model_config c = {0};
    struct cairn_tokenizer *t = NULL;
    enum cairn_status st = CAIRN_OK;
    char *path = NULL;

    TRY(cairn_begin_tokenizer(recipe, &path, err));
    if (cairn_recipe_has(recipe, "model.init"))
        TRY(init_keys_check(recipe, err));
    TRY(config_find(&c, recipe, err));
    TRY(lengths_check(recipe, &c, err));
    TRY(adapter_check(recipe, &c, err));
    TRY(cairn_tokenizer_load(&t, path, err));
    if (cairn_tokenizer_vocab_size(t) > c.vocab)
        TRY(cairn_recipe_fail(recipe, "model.tokenizer", err, "%s has %lld ids, the model's embedding %lld rows: they do not belong together", path,
                              (long long)cairn_tokenizer_vocab_size(t), (long long)c.vocab));
    TRY(template_check(recipe, t, err));
    TRY(graders_check(recipe, err));
    TRY(prompts_check(recipe, err));
out:
    cairn_tokenizer_free(t);
    cairn_config_free(&c);
    free(path);
    return st;
}

enum cairn_status cairn_begin_amended(const struct cairn_run *r, const struct cairn_recipe *recipe, struct cairn_error *err)
{
    struct cairn_tokenizer *t = NULL;
    enum cairn_status st = CAIRN_OK;
    char *path = NULL;

    TRY(cairn_run_outside(r, "model.tokenizer", &path, err));
    TRY(cairn_tokenizer_load(&t, path, err));
    TRY(template_check(recipe, t, err));
out:
    cairn_tokenizer_free(t);
    free(path);
    return st;
}

enum cairn_status cairn_begin_base(struct cairn_run *r, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *base = cairn_run_path(r, "base"), *tokenizer = NULL;

    if (!base)
        TRY(CAIRN_NOMEM(err));
    if (cairn_recipe_has(r->recipe, "model.from")) {
        TRY(base_link(r, base, err));
        goto out;
    }
    TRY(cairn_run_outside(r, "model.tokenizer", &tokenizer, err));
    TRY(base_init(r, base, tokenizer, err));
out:
    free(base);
    free(tokenizer);
    return st;
}

/* The tensors of policy 0: the base cast to what is published, or a fresh adapter. */
static enum cairn_status policy_write(struct cairn_run *r, struct cairn_reader *base, struct cairn_attempt *at, struct cairn_manifest *m,
                                      struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_manifest *bm = cairn_reader_manifest(base);
    struct cairn_model_config c = {0};
    struct cairn_param_table table = {0};
    struct cairn_adapter adapter = {0};
    struct cairn_store store = {0};
    struct cairn_compute k = {0};
    struct cairn_save_opts o = {.stem = "weights", .dtype = cairn_setup_dtype(r->recipe), .what = NULL};
    json_t *content;
    int lora = 0;

    TRY(cairn_policy_config(&c, bm, NULL, cairn_reader_path(base), err));
    TRY(cairn_param_table_create(&table, &c, err));
    TRY(cairn_setup_adapter(&adapter, &lora, &table, &c, r->recipe, err));
    if (lora) {
        struct cairn_store_source from = {&store, &k};
        struct cairn_source src;

        TRY(cairn_setup_compute(&k, r->recipe, 0, err));
        TRY(cairn_store_create(&store, &adapter.table, k.dev, 0, err));
        TRY(cairn_adapter_init(&store, &adapter, (uint64_t)cairn_recipe_i64(r->recipe, "run.seed"), &k, err));
        src = cairn_source_store(&from);
        TRY(cairn_save(&src, at, m, &o, err));
    } else {
        struct cairn_reader_source from = {&table, base, NULL, NULL};
        struct cairn_source src = cairn_source_reader(&from);

        TRY(cairn_save(&src, at, m, &o, err));
    }
    content = cairn_setup_policy_content(&c, &table, lora ? &adapter : NULL, bm->digest, o.dtype);
    if (!content || json_object_update(m->content, content)) {
        json_decref(content);
        TRY(CAIRN_NOMEM(err));
    }
    json_decref(content);
out:
    cairn_store_free(&store);
    if (lora)
        cairn_adapter_free(&adapter);
    cairn_param_table_free(&table);
    cairn_config_free(&c);
    cairn_compute_close(&k);
    return st;
}

enum cairn_status cairn_begin_policy(struct cairn_run *r, struct cairn_error *err)
{
    const struct cairn_link link = {0, CAIRN_STAGE_SYNC, NULL};
    enum cairn_status st = CAIRN_OK;
    char *dir = cairn_link_path(r, &link), *base = cairn_run_path(r, "base");
    struct cairn_attempt_opts ao = {0};
    struct cairn_manifest *m = NULL;
    struct cairn_attempt *at = NULL;
    struct cairn_reader *reader = NULL;

    if (!dir || !base)
        TRY(CAIRN_NOMEM(err));
    if (cairn_recipe_has(r->recipe, "warm_start"))
        goto out;
    if (cairn_artefact_committed(dir)) {
        st = cairn_artefact_settle(dir, err);
        goto out;
    }
    TRY(cairn_link_manifest(r, &link, &m, err));
    TRY(cairn_reader_open(&reader, base, NULL, err));
    ao.identity = cairn_manifest_identity(m);
    TRY(cairn_attempt_begin(&at, dir, &ao, err));
    TRY(policy_write(r, reader, at, m, err));
    TRY(cairn_attempt_commit(at, m, err));
out:
    cairn_attempt_end(at);
    cairn_manifest_destroy(m);
    cairn_reader_close(reader);
    free(dir);
    free(base);
    return st;
}

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
#include "stages/common/prompting.h"
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
    size_t n = strlen(path);

    if (err)
        why = *err;
    return cairn_recipe_fail(recipe, path, err, "%s",
                             why.text + (!strncmp(why.text, path, n) && !strncmp(why.text + n, ": ", 2) ? n + 2 : 0));
}

/* Is what RUN/base points to (`there`) the checkpoint `target`, though it lies elsewhere? */
static enum cairn_status base_same(struct cairn_run *r, const char *there, const char *target, struct cairn_error *err)
{
    struct cairn_manifest_head x, y;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_manifest_head(&x, there, err));
    TRY(cairn_manifest_head(&y, target, err));
    if (!cairn_digest_equal(x.digest, y.digest))
        TRY(cairn_recipe_fail(r->recipe, "model.from", err, "%s is not the checkpoint that the run in %s was made with (%s)",
                              target, r->dir, there));
out:
    return st;
}

/* RUN/base as a link to the imported checkpoint. One that leads nowhere, because the checkpoint was moved, is made anew: what was
 * trained on it names its digest. */
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
    TRY(cairn_setup_host(&k, r->recipe, err));
    TRY(cairn_base_init(base, &o, &k, err));
out:
    cairn_compute_close(&k);
    return st;
}

enum cairn_status cairn_begin_config(struct cairn_model_config *c, const struct cairn_recipe *recipe, struct cairn_error *err)
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

static enum cairn_status adapter_check(const struct cairn_recipe *recipe, const struct cairn_model_config *c,
                                       struct cairn_error *err)
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

/* A file that a run reads: whole, before anything is sampled or queued. */
static enum cairn_status path_check(const struct cairn_recipe *recipe, const char *key, const char *path, struct cairn_error *err)
{
    if (cairn_path_is_dir(path))
        return cairn_recipe_fail(recipe, key, err, "%s is a directory; name the file", path);
    if (!cairn_path_exists(path))
        return cairn_recipe_fail(recipe, key, err, "%s does not exist", path);
    return CAIRN_OK;
}

/* Every row of a prompt file, as tokens: rows that could stop a rollout in the middle of the night stop the beginning. */
static enum cairn_status rows_check(const struct cairn_recipe *recipe, struct cairn_prompting *prompting, const char *path,
                                    const json_t *entry, int64_t max_new, const struct cairn_model_config *c,
                                    struct cairn_error *err)
{
    const struct cairn_prompt_keys keys = cairn_prompt_keys_of(entry);
    const json_t *limit = json_object_get(entry, "limit"), *own = json_object_get(entry, "grader");
    const char *named = json_is_string(own) ? json_string_value(own) : cairn_recipe_str(recipe, "score.grader");
    enum cairn_status st = CAIRN_OK;
    struct cairn_prompts p = {0};
    struct cairn_ids ids = {0};

    TRY(cairn_prompts_load(&p, path, &keys, err));
    if (json_is_integer(limit) && p.n > json_integer_value(limit))
        p.n = json_integer_value(limit);
    if (!cairn_recipe_has(recipe, "run.origin")) /* what others have recorded may answer one prompt in several steps */
        TRY(cairn_prompts_unique(&p, p.n, err));
    for (int64_t i = 0; i < p.n; i++) {
        ids.n = 0;
        TRY(cairn_graders_row(&p, i, named, err));
        TRY(cairn_prompting_ids(prompting, &p, i, max_new, c, &ids, err));
    }
out:
    cairn_ids_free(&ids);
    cairn_prompts_free(&p);
    return st;
}

static enum cairn_status prompts_check(const struct cairn_recipe *recipe, struct cairn_prompting *prompting,
                                       const struct cairn_model_config *c, struct cairn_error *err)
{
    static const char *const lists[] = {"data.prompts", "data.eval"};
    const char *origin = cairn_recipe_has(recipe, "run.origin") ? cairn_recipe_str(recipe, "run.origin") : "";
    enum cairn_status st = CAIRN_OK;

    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
        const json_t *list = cairn_recipe_get(recipe, lists[k]);

        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *entry = json_array_get(list, i), *own = json_object_get(entry, "max_new_tokens");
            const char *path = json_string_value(json_object_get(entry, "path"));
            int64_t max_new = json_is_integer(own) ? json_integer_value(own) : cairn_recipe_i64(recipe, "rollout.max_new_tokens");
            char key[64];

            snprintf(key, sizeof key, "%s.%zu.path", lists[k], i);
            TRY(path_check(recipe, key, path, err));
            if (!k && cairn_starts_with(origin, "file ")) /* nothing will be sampled of recorded responses' prompts */
                max_new = 1;
            TRY(rows_check(recipe, prompting, path, entry, max_new, c, err));
        }
    }
out:
    return st;
}

/* One line of warm_start.data. */
static enum cairn_status example_check(struct cairn_prompting *prompting, const json_t *v, struct cairn_arena *arena,
                                       struct cairn_ids *ids, const struct cairn_model_config *c, const char *where,
                                       struct cairn_error *err)
{
    const struct cairn_message *m;
    enum cairn_status st = CAIRN_OK;
    const char *response;
    int n;

    TRY(cairn_messages_read(json_object_get(v, "prompt"), "prompt", arena, &m, &n, where, err));
    TRY(cairn_json_string(v, "response", &response, where, err));
    st = cairn_template_chat(prompting->template, prompting->tokenizer, m, n, ids, err);
    if (st == CAIRN_EDATA && err)
        cairn_error_prefix(err, "%s", where);
    TRY(st);
    TRY(cairn_tokenizer_encode(prompting->tokenizer, response, json_string_length(json_object_get(v, "response")), NULL, ids, err));
    TRY(cairn_prompting_end(prompting, ids, err));
    if (ids->n > c->max_positions)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: %lld tokens, the model's positions end at %lld", where, (long long)ids->n,
                       (long long)c->max_positions));
out:
    return st;
}

static enum cairn_status examples_check(const struct cairn_recipe *recipe, struct cairn_prompting *prompting,
                                        const struct cairn_model_config *c, struct cairn_error *err)
{
    struct cairn_arena *arena = cairn_arena_create();
    const char *path = cairn_recipe_str(recipe, "warm_start.data");
    enum cairn_status st = CAIRN_OK;
    struct cairn_jsonl *file = NULL;
    struct cairn_ids ids = {0};
    const json_t *v;
    int64_t n = 0;

    if (!arena)
        TRY(CAIRN_NOMEM(err));
    TRY(path_check(recipe, "warm_start.data", path, err));
    TRY(cairn_jsonl_open(&file, path, err));
    for (; (st = cairn_jsonl_next(file, &v, err)) == CAIRN_OK && v; n++) {
        ids.n = 0;
        cairn_arena_reset(arena);
        TRY(example_check(prompting, v, arena, &ids, c, cairn_jsonl_where(file), err));
    }
    TRY(st);
    if (!n)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: no example in it", path));
out:
    cairn_jsonl_close(file);
    cairn_ids_free(&ids);
    cairn_arena_destroy(arena);
    return st;
}

/* All that stages will read in text, line by line. */
static enum cairn_status data_check(const struct cairn_recipe *recipe, const char *tokenizer, const struct cairn_model_config *c,
                                    struct cairn_error *err)
{
    struct cairn_prompting prompting = {0};
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_prompting_open(&prompting, recipe, tokenizer, c, err));
    TRY(prompts_check(recipe, &prompting, c, err));
    if (cairn_recipe_has(recipe, "warm_start"))
        TRY(examples_check(recipe, &prompting, c, err));
out:
    cairn_prompting_close(&prompting);
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
static enum cairn_status lengths_check(const struct cairn_recipe *recipe, const struct cairn_model_config *c,
                                       struct cairn_error *err)
{
    int64_t cap = cairn_recipe_i64(recipe, "rollout.max_new_tokens");

    if (cap >= c->max_positions)
        return cairn_recipe_fail(recipe, "rollout.max_new_tokens", err,
                                 "%lld leaves no place for a prompt: the model has %lld positions", (long long)cap,
                                 (long long)c->max_positions);
    return CAIRN_OK;
}

/* Pages of the sampler's cache hold whole pools of the indexer. */
static enum cairn_status page_check(const struct cairn_recipe *recipe, const struct cairn_model_config *c, struct cairn_error *err)
{
    int64_t page = cairn_recipe_i64(recipe, "rollout.page");

    if (page % c->index_pool)
        return cairn_recipe_fail(recipe, "rollout.page", err, "%lld is no multiple of the model's index_kpool, %d", (long long)page,
                                 c->index_pool);
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
    TRY(cairn_begin_config(&c, recipe, err));
    TRY(lengths_check(recipe, &c, err));
    TRY(page_check(recipe, &c, err));
    TRY(adapter_check(recipe, &c, err));
    TRY(cairn_tokenizer_load(&t, path, err));
    if (cairn_tokenizer_vocab_size(t) > c.vocab)
        TRY(cairn_recipe_fail(recipe, "model.tokenizer", err,
                              "%s has %lld ids, the model's embedding %lld rows: they do not belong together", path,
                              (long long)cairn_tokenizer_vocab_size(t), (long long)c.vocab));
    TRY(template_check(recipe, t, err));
    TRY(graders_check(recipe, err));
    TRY(data_check(recipe, path, &c, err));
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

    TRY(graders_check(recipe, err));
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
static enum cairn_status policy_write(struct cairn_run *r, struct cairn_reader *base, struct cairn_attempt *at,
                                      struct cairn_manifest *m, struct cairn_error *err)
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

        TRY(cairn_setup_host(&k, r->recipe, err));
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

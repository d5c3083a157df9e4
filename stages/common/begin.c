/* begin.c - the beginning of a run (begin.h): tokenizer, base, policy 0. */
#include "stages/common/begin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "model/base.h"
#include "model/io.h"
#include "model/policy.h"
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

/* RUN/base as a link to the imported checkpoint; a link that points elsewhere is somebody's mistake and is told. */
static enum cairn_status base_link(struct cairn_run *r, const char *base, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *target = realpath(cairn_recipe_str(r->recipe, "model.from"), NULL), *there = NULL;

    if (!target)
        TRY(cairn_recipe_fail(r->recipe, "model.from", err, "%s: %s", cairn_recipe_str(r->recipe, "model.from"), strerror(errno)));
    if (!cairn_artefact_committed(target))
        TRY(cairn_recipe_fail(r->recipe, "model.from", err,
                              "%s is no imported checkpoint; make one with: cairn import HF_DIR --out DIR", target));
    if (symlink(target, base)) {
        if (errno != EEXIST)
            TRY(cairn_fail_errno(err, errno, "link %s", base));
        there = realpath(base, NULL);
        if (!there || strcmp(there, target))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s points to %s, not to %s", base, there ? there : "nothing", target));
    } else {
        TRY(cairn_dir_sync(r->dir, err));
    }
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

/* The vocabulary must hold every id that the tokenizer makes, before anything is queued. */
static enum cairn_status vocabulary_check(struct cairn_run *r, const struct cairn_model_config *c, const char *tokenizer,
                                          struct cairn_error *err)
{
    struct cairn_tokenizer *t = NULL;
    enum cairn_status st = cairn_tokenizer_load(&t, tokenizer, err);

    if (st == CAIRN_OK && cairn_tokenizer_vocab_size(t) > c->vocab)
        st = cairn_recipe_fail(r->recipe, "model.tokenizer", err, "%s has %lld ids, the model's embedding %lld rows: they do not belong together",
                               tokenizer, (long long)cairn_tokenizer_vocab_size(t), (long long)c->vocab);
    cairn_tokenizer_free(t);
    return st;
}

enum cairn_status cairn_begin_base(struct cairn_run *r, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *base = cairn_run_path(r, "base"), *tokenizer = NULL;
    struct cairn_model_config c = {0};
    struct cairn_manifest *m = NULL;

    if (!base)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_run_outside(r, "model.tokenizer", &tokenizer, err));
    if (cairn_recipe_has(r->recipe, "model.from")) {
        TRY(base_link(r, base, err));
        TRY(cairn_manifest_load(&m, base, err));
        TRY(cairn_policy_config(&c, m, NULL, base, err));
    } else {
        st = cairn_config_parse(&c, cairn_recipe_get(r->recipe, "model.init"), "model.init", err);
        if (st != CAIRN_OK)
            TRY(cairn_recipe_fail(r->recipe, "model.init", err, "%s", err ? err->text : "no model"));
    }
    TRY(vocabulary_check(r, &c, tokenizer, err));
    if (!m)
        TRY(base_init(r, base, tokenizer, err));
out:
    cairn_config_free(&c);
    cairn_manifest_destroy(m);
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

/* publish.c - policies from trainer states, and what stays of both (publish.h). */
#include "stages/common/publish.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "ckpt/retention.h"
#include "model/io.h"
#include "model/policy.h"
#include "stages/common/fastpath.h"
#include "stages/common/inside.h"
#include "stages/common/metrics.h"
#include "stages/common/setup.h"

#define CALM 8      /* generations in a row that need nothing: none behind them does */
#define LOOK_ALL 100 /* steps */

/* What a policy says of itself, and where its tensors go. */
struct policy_form {
    struct cairn_reader *base;
    struct cairn_model_config config;
    struct cairn_param_table table;
    struct cairn_adapter adapter;
    int lora;
    enum cairn_dtype dtype;
    char identity[33];
};

static enum cairn_status form_open(struct policy_form *f, struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    char *dir = cairn_run_path(ctx->run, "base");
    enum cairn_status st = CAIRN_OK;

    *f = (struct policy_form){.dtype = cairn_setup_dtype(ctx->run->recipe)};
    if (!dir)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_reader_open(&f->base, dir, NULL, err));
    TRY(cairn_policy_config(&f->config, cairn_reader_manifest(f->base), NULL, dir, err));
    TRY(cairn_param_table_create(&f->table, &f->config, err));
    TRY(cairn_setup_adapter(&f->adapter, &f->lora, &f->table, &f->config, ctx->run->recipe, err));
    cairn_digest_hex(cairn_manifest_identity(ctx->manifest), f->identity);
out:
    free(dir);
    return st;
}

static void form_close(struct policy_form *f)
{
    if (f->lora)
        cairn_adapter_free(&f->adapter);
    cairn_param_table_free(&f->table);
    cairn_config_free(&f->config);
    cairn_reader_close(f->base);
}

static enum cairn_status content_set(struct cairn_stage_ctx *ctx, const struct policy_form *f, struct cairn_error *err)
{
    json_t *content = cairn_setup_policy_content(&f->config, &f->table, f->lora ? &f->adapter : NULL,
                                                 cairn_reader_manifest(f->base)->digest, f->dtype);
    int bad = !content || json_object_update(ctx->manifest->content, content);

    json_decref(content);
    return bad ? CAIRN_NOMEM(err) : CAIRN_OK;
}

enum cairn_status cairn_publish_settle(const struct cairn_run *run, struct cairn_error *err)
{
    const struct cairn_reach reach = cairn_run_reach(run);
    int64_t last = cairn_recipe_i64(run->recipe, "run.steps"), begun = reach.step > reach.policy ? reach.step : reach.policy;
    enum cairn_status st = CAIRN_OK;

    for (int64_t s = last < begun ? last : begun; s > 0; s--) {
        const struct cairn_link policy = {s, CAIRN_STAGE_SYNC, NULL}, train = {s, CAIRN_STAGE_TRAIN, NULL};
        char *dir;

        if (cairn_link_done(run, &policy)) /* and of older steps, too */
            break;
        if (!cairn_link_done(run, &train))
            continue;
        if (!(dir = cairn_link_path(run, &train)))
            return CAIRN_NOMEM(err);
        if (cairn_artefact_collected(dir)) {
            cairn_info("%s was only told (checkpoint.every) when its policy was not made yet: the step is trained again", dir);
            st = cairn_artefact_drop(dir, err);
        }
        free(dir);
        TRY(st);
    }
out:
    return st;
}

enum cairn_status cairn_publish_work(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    const struct cairn_link train = {ctx->link.step, CAIRN_STAGE_TRAIN, NULL};
    char *relative = cairn_link_relative(&train);
    struct cairn_reader *trainer = NULL;
    struct policy_form f = {0};
    enum cairn_status st = CAIRN_OK;

    if (ctx->world->rank)
        goto out;
    if (!relative)
        TRY(CAIRN_NOMEM(err));
    st = cairn_stage_input(ctx, relative, &trainer, err);
    if (st == CAIRN_ENOINPUT && cairn_publish_settle(ctx->run, err) == CAIRN_OK && !cairn_link_done(ctx->run, &train))
        st = cairn_fail(err, CAIRN_EAGAIN, "%s is trained again", relative);
    TRY(st);
    TRY(form_open(&f, ctx, err));
    TRY(cairn_policy_save(f.lora ? &f.adapter.table : &f.table, trainer, f.lora ? NULL : f.base, f.dtype, ctx->attempt,
                          ctx->manifest, f.identity, err));
    TRY(content_set(ctx, &f, err));
out:
    form_close(&f);
    cairn_reader_close(trainer);
    free(relative);
    return st;
}

enum cairn_status cairn_publish_store(struct cairn_stage_ctx *ctx, const struct cairn_store *published, struct cairn_compute *k,
                                      struct cairn_error *err)
{
    struct cairn_store_source from = {published, k};
    const struct cairn_source src = cairn_source_store(&from);
    struct policy_form f = {0};
    struct cairn_save_opts o = {.stem = "weights"};
    enum cairn_status st = CAIRN_OK;

    if (ctx->world->rank)
        goto out;
    TRY(form_open(&f, ctx, err));
    o.dtype = f.dtype;
    o.identity = f.identity;
    TRY(cairn_save(&src, ctx->attempt, ctx->manifest, &o, err));
    TRY(content_set(ctx, &f, err));
    cairn_fastpath_give(ctx->fastpath, ctx->link.step, published);
out:
    form_close(&f);
    return st;
}

/* Collects old generations of one kind of link, up to step `last`. After most steps it looks no further back than there may be something to
 * do, after every LOOK_ALL-th and the run's last at all. */
static enum cairn_status retain(const struct cairn_run *run, enum cairn_stage stage, int64_t last, struct cairn_retention keep,
                                struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_generation *gen = calloc((size_t)last + 1, sizeof *gen);
    const int64_t every = cairn_recipe_i64(run->recipe, "checkpoint.every");
    int n = 0;

    if (!gen)
        return CAIRN_NOMEM(err);
    for (int64_t s = last; s >= 0; s--) {
        const struct cairn_link l = {s, stage, NULL};

        if (!(gen[n].dir = cairn_link_path(run, &l)))
            TRY(CAIRN_NOMEM(err));
        gen[n++].step = s;
    }
    /* Those that checkpoint.every left unsaved lie between two that are saved, and need nothing. */
    if (last % LOOK_ALL && last < cairn_recipe_i64(run->recipe, "run.steps"))
        keep.calm = CALM + (int)(every < last ? every : last);
    TRY(cairn_retention_apply(&keep, gen, n, NULL, err));
out:
    for (int i = 0; i < n; i++)
        free((char *)gen[i].dir);
    free(gen);
    return st;
}

enum cairn_status cairn_publish_state(const struct cairn_run *run, int64_t last, int64_t *step, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const int first = cairn_recipe_has(run->recipe, "warm_start") ? 0 : 1; /* that has a state */

    for (*step = last; *step >= first; --*step) {
        const struct cairn_link l = {*step, CAIRN_STAGE_TRAIN, NULL};
        char *dir;
        int gone;

        if (!cairn_link_done(run, &l))
            continue;
        if (!(dir = cairn_link_path(run, &l)))
            return CAIRN_NOMEM(err);
        st = cairn_artefact_collected_look(dir, &gone, err);
        free(dir);
        if (st != CAIRN_OK || !gone)
            break;
    }
    return st;
}

enum cairn_status cairn_publish_keep(struct cairn_publish_keep *k, const struct cairn_run *run, const struct cairn_recipe *recipe, int64_t last,
                                     struct cairn_error *err)
{
    const json_t *policies = cairn_recipe_get(recipe, "checkpoint.keep_policies");

    *k = (struct cairn_publish_keep){
        .states = {.keep = cairn_recipe_i64(recipe, "checkpoint.keep"),
                   .keep_every = cairn_recipe_i64(recipe, "checkpoint.keep_every"),
                   .reason = "checkpoint.keep"},
        .policies = {.keep = -1, .spare = &k->newest, .reason = "checkpoint.keep_policies"},
    };
    if (json_is_integer(policies)) /* a rollout may still be due from an older one */
        k->policies.keep = json_integer_value(policies) + cairn_recipe_i64(run->frozen, "run.lag");
    return cairn_publish_state(run, last, &k->newest, err);
}

enum cairn_status cairn_publish_after(const struct cairn_run *run, const struct cairn_link *l, struct cairn_error *err)
{
    struct cairn_publish_keep keep;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_metrics_step(run, l->step, err));
    TRY(cairn_inside_drop(run, l->step, err)); /* should a kill have come before train did */
    TRY(cairn_publish_keep(&keep, run, run->recipe, l->step, err));
    TRY(retain(run, CAIRN_STAGE_TRAIN, l->step, keep.states, err));
    if (keep.policies.keep > 0)
        TRY(retain(run, CAIRN_STAGE_SYNC, l->step, keep.policies, err));
out:
    return st;
}

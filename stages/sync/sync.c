/* sync.c - the work of cairn-sync (sync.h). */
#include "stages/sync/sync.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "ckpt/retention.h"
#include "model/io.h"
#include "model/policy.h"
#include "stages/common/inside.h"
#include "stages/common/metrics.h"
#include "stages/common/setup.h"

enum cairn_status cairn_sync_work(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    const struct cairn_link train = {ctx->link.step, CAIRN_STAGE_TRAIN, NULL};
    enum cairn_status st = CAIRN_OK;
    enum cairn_dtype dtype = cairn_setup_dtype(ctx->run->recipe);
    char *relative = cairn_link_relative(&train), *base_dir = cairn_run_path(ctx->run, "base"), identity[33];
    struct cairn_reader *trainer = NULL, *base = NULL;
    struct cairn_model_config c = {0};
    struct cairn_param_table table = {0};
    struct cairn_adapter adapter = {0};
    json_t *content = NULL;
    int lora = 0;

    if (!relative || !base_dir)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_stage_input(ctx, relative, &trainer, err));
    TRY(cairn_reader_open(&base, base_dir, NULL, err));
    TRY(cairn_policy_config(&c, cairn_reader_manifest(base), NULL, base_dir, err));
    TRY(cairn_param_table_create(&table, &c, err));
    TRY(cairn_setup_adapter(&adapter, &lora, &table, &c, ctx->run->recipe, err));
    cairn_digest_hex(cairn_manifest_identity(ctx->manifest), identity);
    TRY(cairn_policy_save(lora ? &adapter.table : &table, trainer, lora ? NULL : base, dtype, ctx->attempt, ctx->manifest, identity, err));
    content = cairn_setup_policy_content(&c, &table, lora ? &adapter : NULL, cairn_reader_manifest(base)->digest, dtype);
    if (!content || json_object_update(ctx->manifest->content, content))
        TRY(CAIRN_NOMEM(err));
out:
    json_decref(content);
    if (lora)
        cairn_adapter_free(&adapter);
    cairn_param_table_free(&table);
    cairn_config_free(&c);
    cairn_reader_close(trainer);
    cairn_reader_close(base);
    free(relative);
    free(base_dir);
    return st;
}

/* Collects old generations of one kind of link, up to step `last`. */
static enum cairn_status retain(const struct cairn_run *run, enum cairn_stage stage, int64_t last, const struct cairn_retention *keep,
                                struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_generation *gen = calloc((size_t)last + 1, sizeof *gen);
    int n = 0;

    if (!gen)
        return CAIRN_NOMEM(err);
    for (int64_t s = 0; s <= last; s++) {
        const struct cairn_link l = {s, stage, NULL};
        char *dir;

        if (!cairn_link_done(run, &l))
            continue;
        dir = cairn_link_path(run, &l);
        if (!dir)
            TRY(CAIRN_NOMEM(err));
        gen[n++] = (struct cairn_generation){s, dir};
    }
    TRY(cairn_retention_apply(keep, gen, n, NULL, err));
out:
    for (int i = 0; i < n; i++)
        free((char *)gen[i].dir);
    free(gen);
    return st;
}

enum cairn_status cairn_sync_after(const struct cairn_run *run, const struct cairn_link *l, struct cairn_error *err)
{
    struct cairn_retention states = {.keep = cairn_recipe_i64(run->recipe, "checkpoint.keep"),
                                     .keep_every = cairn_recipe_i64(run->recipe, "checkpoint.keep_every"),
                                     .reason = "checkpoint.keep"};
    struct cairn_retention policies = {.keep = -1, .reason = "checkpoint.keep_policies"};
    const json_t *keep = cairn_recipe_get(run->recipe, "checkpoint.keep_policies");
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_metrics_step(run, l->step, err));
    TRY(cairn_inside_drop(run, l->step, err)); /* should a kill have come before train did */
    TRY(retain(run, CAIRN_STAGE_TRAIN, l->step, &states, err));
    if (json_is_integer(keep)) {
        policies.keep = json_integer_value(keep);
        TRY(retain(run, CAIRN_STAGE_SYNC, l->step, &policies, err));
    }
out:
    return st;
}

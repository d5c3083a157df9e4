/* device.c - what a stage computes on: threads, the device, its fingerprint, and that ranks do not share a GPU by mistake. */
#include "stages/common/stage_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cores.h"
#include "base/str.h"
#include "stages/common/fastpath.h"
#include "stages/common/ranks.h"
#include "stages/common/setup.h"

/* With a launcher's ranks side by side and no number from the recipe, cores are shared: where each may use more than its part of
 * the machine, they would stand on each other's. 0: as the recipe says. */
static int threads_of(const struct cairn_stage_ctx *ctx)
{
    int ranks = ctx->world->local_size, mine = cairn_cores();

    if (ctx->threads || cairn_recipe_i64(ctx->run->recipe, "kernels.threads") || ranks == 1)
        return (int)ctx->threads;
    if ((int64_t)mine * ranks <= cairn_cores_here()) /* bound to cores of its own */
        return 0;
    return mine > ranks ? mine / ranks : 1;
}

enum cairn_status cairn_stage_device_open(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    if (!def->wants_device || ctx->compute)
        return CAIRN_OK;
    TRY(cairn_setup_compute(&ctx->device, ctx->run, threads_of(ctx), ctx->device_rank, err));
    ctx->compute = &ctx->device;
out:
    return st;
}

void cairn_stage_device_close(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def)
{
    cairn_fastpath_drop(ctx->fastpath); /* it holds the device's memory; policies go by files from here on */
    if (ctx->kept && def->forget)
        def->forget(ctx);
    ctx->kept = NULL;
    if (ctx->compute)
        cairn_compute_close(ctx->compute);
    ctx->compute = NULL;
}

/* Inputs that were computed by other numerics than ours: refused, or told (numerics.require). */
static enum cairn_status numerics_check(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    int same = !strcmp(cairn_recipe_str(ctx->run->recipe, "numerics.require"), "same");
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; st == CAIRN_OK && i < ctx->manifest->ninputs; i++) {
        const char *relative = ctx->manifest->inputs[i].path;
        struct cairn_manifest_head head;
        char *path;

        if (cairn_starts_with(relative, "file:") || !strcmp(relative, "base"))
            continue;
        path = cairn_run_path(ctx->run, relative);
        st = path ? cairn_manifest_head(&head, path, err) : CAIRN_NOMEM(err);
        free(path);
        if (st != CAIRN_OK || !head.numerics[0] || !strcmp(head.numerics, ctx->manifest->numerics))
            continue;
        if (same)
            st = cairn_fail(err, CAIRN_EDEVICE,
                            "%s was computed as \"%s\", this process computes as \"%s\": bits would differ; go on there, or set "
                            "numerics.require=compatible",
                            relative, head.numerics, ctx->manifest->numerics);
        else
            cairn_warn("%s was computed as \"%s\", this process computes as \"%s\"", relative, head.numerics, ctx->manifest->numerics);
    }
    return st;
}

enum cairn_status cairn_stage_device_prepare(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def,
                                             struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char layout[64];

    if (!def->wants_device)
        return CAIRN_OK;
    TRY(cairn_stage_device_open(ctx, def, err));
    /* Of replicas (dp) and tasks there may be any number: they are not part of it. */
    snprintf(layout, sizeof layout, "tp1 pp1 cp1 ep1 dp1 segments%lld",
             (long long)cairn_recipe_i64(ctx->run->recipe, "numerics.segments"));
    TRY(cairn_manifest_set_fingerprint(ctx->manifest, ctx->compute->numerics, layout, err));
    if (ctx->world->rank == 0)
        TRY(numerics_check(ctx, err));
out:
    return st;
}

/* Does each rank of a node have a GPU of its own? By what the GPUs are, not by their numbers: a launcher may show each rank others.
 */
enum cairn_status cairn_stage_devices_compare(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    struct mine {
        int32_t node;
        char id[sizeof ctx->compute->device.id], name[sizeof ctx->compute->device.name];
    } own = {ctx->world->node, "", ""};
    enum cairn_status st = CAIRN_OK;
    char *all = NULL;
    size_t *at = NULL;

    if (!ctx->compute || cairn_recipe_bool(ctx->run->recipe, "kernels.share"))
        return CAIRN_OK;
    memcpy(own.id, ctx->compute->device.id, sizeof own.id);
    memcpy(own.name, ctx->compute->device.name, sizeof own.name);
    TRY(cairn_ranks_exchange(ctx, "the devices", CAIRN_OK, &own, sizeof own, &all, &at, err));
    for (int r = 1; r < ctx->world->size; r++)
        for (int q = 0; q < r; q++) {
            const struct mine *a = (const struct mine *)(const void *)(all + at[q]),
                              *b = (const struct mine *)(const void *)(all + at[r]);

            if (!b->id[0] || a->node != b->node || strcmp(a->id, b->id))
                continue;
            ctx->agreed = 1; /* all see the same */
            TRY(cairn_fail(err, CAIRN_EDEVICE,
                           "ranks %d and %d of one node both take %s %s: start no more ranks on a node than it has GPUs, or set "
                           "kernels.share=true",
                           q, r, b->name, b->id));
        }
out:
    free(all);
    free(at);
    return st;
}

/* rival.c - another attempt at the same artefact that was first. */
#include "stages/common/stage_impl.h"

#include <string.h>

/* The shards that we have made say nothing else than the committed artefact. */
static int nothing_against(const struct cairn_manifest *mine, const struct cairn_manifest *theirs)
{
    for (int i = 0; i < mine->nshards; i++)
        for (int k = 0; k < mine->shards[i]->nslices; k++)
            if (!cairn_manifest_tells(theirs, &mine->shards[i]->slices[k]))
                return 0;
    return 1;
}

int cairn_stage_rival(const struct cairn_stage_ctx *ctx)
{
    const struct cairn_digest none = {0, 0};
    struct cairn_manifest *m = NULL;
    int same = 0;

    if (cairn_artefact_committed(ctx->dir) && cairn_manifest_load(&m, ctx->dir, NULL) == CAIRN_OK)
        same = cairn_digest_equal(cairn_manifest_identity(m), cairn_manifest_identity(ctx->manifest)) &&
               (cairn_digest_equal(ctx->manifest->digest, none) ? nothing_against(ctx->manifest, m)
                                                                : cairn_digest_equal(ctx->manifest->digest, m->digest));
    cairn_manifest_destroy(m);
    return same;
}

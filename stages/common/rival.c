/* rival.c - another attempt at the same artefact that was first. */
#include "stages/common/stage_impl.h"

#include <string.h>

/* Part `p` lies inside of slice `s`, both of the same tensor. */
static int lies_in(const struct cairn_slice *p, const struct cairn_slice *s)
{
    for (int d = 0; d < s->ndim; d++)
        if (p->offset[d] < s->offset[d] || p->offset[d] + p->local[d] > s->offset[d] + s->local[d])
            return 0;
    return 1;
}

static int64_t elements(const struct cairn_slice *s)
{
    int64_t n = 1;

    for (int d = 0; d < s->ndim; d++)
        n *= s->local[d];
    return n;
}

/* The shards that we have made say nothing else than the committed artefact: where its parts make up one of our slices, their sums
 * do. */
static int nothing_against(const struct cairn_manifest *mine, const struct cairn_manifest *theirs)
{
    for (int i = 0; i < mine->nshards; i++)
        for (int k = 0; k < mine->shards[i]->nslices; k++) {
            const struct cairn_slice *s = &mine->shards[i]->slices[k];
            const struct cairn_tensor_entry *t = cairn_manifest_find(theirs, s->name);
            struct cairn_digest sum = {0, 0};
            int64_t covered = 0;

            if (!t || t->dtype != s->dtype || t->ndim != s->ndim || memcmp(t->shape, s->shape, (size_t)s->ndim * sizeof *s->shape))
                return 0;
            for (int p = 0; p < t->nparts; p++)
                if (lies_in(t->parts[p].slice, s)) {
                    sum = cairn_digest_add(sum, t->parts[p].slice->sum);
                    covered += elements(t->parts[p].slice);
                }
            if (covered != elements(s) || !cairn_digest_equal(sum, s->sum))
                return 0;
        }
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

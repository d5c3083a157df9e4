/* known.c - old and reference log-probabilities on disc (known.h). */
#include "stages/train/known.h"

#include <stdlib.h>

#include "ckpt/attempt.h"
#include "ckpt/retention.h"
#include "stages/common/inside.h"
#include "stages/common/ranks.h"

static enum cairn_status read_whole(struct cairn_stage_ctx *ctx, const char *dir, const char *name, float *h, int64_t n,
                                    double *numbers, int count, struct cairn_error *err)
{
    const struct cairn_tensor_entry *e;
    struct cairn_reader *r = NULL;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_inside_open(&r, dir, ctx->manifest, name, err));
    TRY(cairn_reader_expect(r, "logprobs", CAIRN_F32, 1, &n, &e, err));
    TRY(cairn_reader_rows(r, "logprobs", 0, n, h, (size_t)n * sizeof *h, err));
    if (count)
        TRY(cairn_reader_rows(r, "numbers", 0, count, numbers, (size_t)count * sizeof *numbers, err));
out:
    cairn_reader_close(r);
    return st;
}

enum cairn_status cairn_known_load(struct cairn_stage_ctx *ctx, struct cairn_trainer *t, const char *name, float *h, int64_t n,
                                   double *numbers, int count, int *found, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_error why = {0};
    double *good = NULL;
    char *dir = NULL;
    int bad = 0;

    *found = 0;
    if (!ctx->attempt)
        return CAIRN_OK;
    dir = cairn_inside_path(ctx->run, ctx->link.step, name);
    good = calloc((size_t)t->ranks, sizeof *good);
    TRY(cairn_trainer_agree(t, name, dir && good ? CAIRN_OK : CAIRN_NOMEM(err), err));
    st = read_whole(ctx, dir, name, h, n, numbers, count, &why);
    if (st != CAIRN_OK && st != CAIRN_EDATA && st != CAIRN_ENOINPUT) { /* no fault of the file's */
        if (err)
            *err = why;
    } else {
        if (st == CAIRN_EDATA)
            cairn_warn("%s is left out: %s", dir, why.text);
        bad = st != CAIRN_OK;
        st = CAIRN_OK;
    }
    TRY(cairn_trainer_gather(t, name, st, &(double){bad}, 1, good, err));
    for (int r = 0; r < t->ranks; r++)
        bad |= good[r] != 0;
    if (!t->rank) /* a directory without a manifest is taken along; who committed it may have been killed before it was durable and tidy */
        st = bad ? cairn_artefact_drop(dir, err) : cairn_artefact_settle(dir, err);
    TRY(cairn_trainer_agree(t, name, st, err));
    *found = !bad;
out:
    free(dir);
    free(good);
    return st;
}

static enum cairn_status write_whole(struct cairn_stage_ctx *ctx, const char *name, const float *h, int64_t n,
                                     const double *numbers, int count, struct cairn_error *err)
{
    const int64_t m = count;
    const struct cairn_slice slice[] = {cairn_slice_whole("logprobs", CAIRN_F32, 1, &n),
                                        cairn_slice_whole("numbers", CAIRN_F64, 1, &m)};
    char *dir = cairn_inside_path(ctx->run, ctx->link.step, name);
    struct cairn_shard_entry *entry = NULL;
    struct cairn_manifest *manifest = NULL;
    struct cairn_attempt *a = NULL;
    struct cairn_shard *w = NULL;
    enum cairn_status st = CAIRN_OK;

    if (!dir)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_inside_manifest(&manifest, ctx->manifest, name, err));
    TRY(cairn_attempt_begin(&a, dir, &(struct cairn_attempt_opts){.identity = cairn_manifest_identity(manifest)}, err));
    TRY(cairn_attempt_shard(a, &w, name, slice, count ? 2 : 1, NULL, err));
    TRY(cairn_shard_write(w, 0, 0, h, (size_t)n * sizeof *h, err));
    if (count)
        TRY(cairn_shard_write(w, 1, 0, numbers, (size_t)m * sizeof *numbers, err));
    TRY(cairn_attempt_shard_done(a, &w, &entry, err));
    TRY(cairn_manifest_add_shard(manifest, entry, err));
    TRY(cairn_attempt_commit(a, manifest, err));
out:
    cairn_shard_destroy(w);
    cairn_attempt_end(a);
    cairn_manifest_destroy(manifest);
    free(dir);
    return st;
}

enum cairn_status cairn_known_save(struct cairn_stage_ctx *ctx, struct cairn_trainer *t, const char *name, const float *h,
                                   int64_t n, const double *numbers, int count, struct cairn_error *err)
{
    if (!ctx->attempt)
        return CAIRN_OK;
    return cairn_trainer_agree(t, name, t->rank ? CAIRN_OK : write_whole(ctx, name, h, n, numbers, count, err), err);
}

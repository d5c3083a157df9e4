/* ranks.c - votes and messages between the ranks of a stage (ranks.h), over groups of the world. */
#include "stages/common/ranks.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/signals.h"
#include "base/str.h"
#include "world/group.h"

/* A collective that failed: the ranks cannot agree any more. */
__attribute__((noreturn)) static void talk_failed(struct cairn_stage_ctx *ctx, enum cairn_status st, const struct cairn_error *err)
{
    cairn_warn("%s", err->text);
    cairn_world_abort(ctx->world, st);
}

#define TALK(ctx, call)                                  \
    do {                                                 \
        struct cairn_error talk_ = {0}, *err_ = &talk_;  \
        enum cairn_status talk_st_ = (call);             \
        if (talk_st_ != CAIRN_OK)                        \
            talk_failed((ctx), talk_st_, &talk_);        \
    } while (0)

struct vote {
    int32_t status, pad;
    uint64_t bytes;
};

/* Everybody's votes into v (size): the greatest status, or CAIRN_OK. */
static enum cairn_status votes_take(struct cairn_stage_ctx *ctx, struct cairn_group *g, const char *what, enum cairn_status st, size_t n,
                                    struct vote *v, struct cairn_error *err)
{
    struct vote own = {.bytes = n};
    int bad = 0;

    if (st != CAIRN_OK && ctx->attempt) /* here, where each rank speaks for itself: afterwards all must hold the same */
        st = cairn_attempt_failed(ctx->attempt, st, err);
    own.status = (int32_t)st;
    TALK(ctx, cairn_group_allgather(g, what, &own, sizeof own, v, err_));
    for (int r = 0; r < g->size; r++)
        bad |= v[r].status != CAIRN_OK;
    if (!bad)
        return CAIRN_OK;
    ctx->agreed = 1;
    st = cairn_group_agree(g, what, st, err);
    if (st == CAIRN_EAGAIN)
        cairn_stop_request(SIGTERM); /* later polls of this rank agree with the others */
    return st;
}

static enum cairn_status exchange(struct cairn_stage_ctx *ctx, struct cairn_group *g, const char *what, enum cairn_status st, const void *p, size_t n,
                                  char **all, size_t **at, struct cairn_error *err)
{
    struct vote *v = malloc((size_t)g->size * sizeof *v);
    size_t *size = malloc((size_t)g->size * sizeof *size), *offset = calloc((size_t)g->size + 1, sizeof *offset);
    char *bytes = NULL;

    *all = NULL;
    *at = NULL;
    if (!v || !size || !offset) { /* nothing can be said to the others without */
        struct cairn_error why;

        talk_failed(ctx, CAIRN_NOMEM(&why), &why);
    }
    TRY(votes_take(ctx, g, what, st, n, v, err));
    for (int r = 0; r < g->size; r++) {
        size[r] = (size_t)v[r].bytes;
        if (!cairn_add_size(offset[r], size[r], &offset[r + 1]))
            TRY(CAIRN_BUG(err, "ranks tell more than there is memory")); /* the same on all */
    }
    bytes = malloc(offset[g->size] ? offset[g->size] : 1);
    if (!bytes) {
        struct cairn_error why;

        talk_failed(ctx, CAIRN_NOMEM(&why), &why);
    }
    if (offset[g->size])
        TALK(ctx, cairn_group_allgatherv(g, what, p, size, bytes, err_));
    *all = bytes;
    *at = offset;
    bytes = NULL;
    offset = NULL;
out:
    free(v);
    free(size);
    free(offset);
    free(bytes);
    return st;
}

enum cairn_status cairn_ranks_exchange(struct cairn_stage_ctx *ctx, const char *what, enum cairn_status st, const void *p, size_t n, char **all,
                                       size_t **at, struct cairn_error *err)
{
    return exchange(ctx, ctx->world->all, what, st, p, n, all, at, err);
}

static enum cairn_status agree(struct cairn_stage_ctx *ctx, struct cairn_group *g, const char *what, enum cairn_status st, struct cairn_error *err)
{
    char *all;
    size_t *at;

    if (g->size == 1)
        return st;
    st = exchange(ctx, g, what, st, NULL, 0, &all, &at, err);
    free(all);
    free(at);
    return st;
}

enum cairn_status cairn_ranks_agree(struct cairn_stage_ctx *ctx, const char *what, enum cairn_status st, struct cairn_error *err)
{
    return agree(ctx, ctx->world->all, what, st, err);
}

enum cairn_status cairn_ranks_tell(struct cairn_stage_ctx *ctx, const char *what, enum cairn_status st, void *p, size_t n, struct cairn_error *err)
{
    TRY(cairn_ranks_agree(ctx, what, st, err));
    TALK(ctx, cairn_group_bcast(ctx->world->all, what, 0, p, n, err_));
out:
    return st;
}

enum cairn_status cairn_ranks_same(struct cairn_stage_ctx *ctx, const char *noun, const char *text, enum cairn_status code, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *all = NULL;
    size_t *at = NULL;

    TRY(cairn_ranks_exchange(ctx, noun, st, text, strlen(text), &all, &at, err));
    for (int r = 1; r < ctx->world->size; r++) {
        size_t n = at[r + 1] - at[r];

        if (n == at[1] && !memcmp(all, all + at[r], n))
            continue;
        ctx->agreed = 1; /* all see the same */
        TRY(cairn_fail(err, code, "rank %d has %s \"%.*s\", rank 0 has \"%.*s\"", r, noun, (int)(n < 80 ? n : 80), all + at[r],
                       (int)(at[1] < 80 ? at[1] : 80), all));
    }
out:
    free(all);
    free(at);
    return st;
}

/* ---- the vote ------------------------------------------------------------------------------------------------------- */

/* Entries of all shards in m, each behind its length. */
static enum cairn_status shards_pack(const struct cairn_manifest *m, struct cairn_str *out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < m->nshards; i++) {
        char *text = NULL;
        size_t n;
        uint64_t length;

        TRY(cairn_shard_entry_text(m->shards[i], &text, &n, err));
        length = n;
        cairn_str_add(out, &length, sizeof length);
        cairn_str_add(out, text, n);
        free(text);
    }
    if (out->oom)
        TRY(CAIRN_NOMEM(err));
out:
    return st;
}

static enum cairn_status shards_unpack(struct cairn_manifest *m, const char *p, size_t n, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    while (n) {
        struct cairn_shard_entry *e = NULL;
        uint64_t length = 0;

        if (n >= sizeof length)
            memcpy(&length, p, sizeof length);
        if (n < sizeof length || length > n - sizeof length)
            TRY(CAIRN_BUG(err, "a list of shards that ends early"));
        TRY(cairn_shard_entry_parse(&e, p + sizeof length, (size_t)length, "a rank's shard", err));
        TRY(cairn_manifest_add_shard(m, e, err));
        p += sizeof length + length;
        n -= sizeof length + (size_t)length;
    }
out:
    return st;
}

static int by_file(const void *a, const void *b)
{
    return strcmp((*(struct cairn_shard_entry *const *)a)->file, (*(struct cairn_shard_entry *const *)b)->file);
}

enum cairn_status cairn_ranks_vote(struct cairn_stage_ctx *ctx, enum cairn_status st, struct cairn_error *err)
{
    struct cairn_group *g = ctx->world->commit;
    struct cairn_str own = {0};
    char *all = NULL;
    size_t *at = NULL;

    if (st == CAIRN_OK && g->rank)
        st = shards_pack(ctx->manifest, &own, err);
    TRY(agree(ctx, g, "the vote", st, err));
    if (g->size > 1)
        TALK(ctx, cairn_group_collect(g, "shards", 0, own.p, own.len, &all, &at, err_));
    for (int r = 1; g->rank == 0 && r < g->size && st == CAIRN_OK; r++)
        st = shards_unpack(ctx->manifest, all + at[r], at[r + 1] - at[r], err);
    if (st == CAIRN_OK && ctx->manifest->nshards > 1)
        qsort(ctx->manifest->shards, (size_t)ctx->manifest->nshards, sizeof *ctx->manifest->shards, by_file);
    st = agree(ctx, g, "shards", st, err);
out:
    cairn_str_free(&own);
    free(all);
    free(at);
    return st;
}

/* ---- time ----------------------------------------------------------------------------------------------------------- */

double cairn_ranks_period(double started_s)
{
    double p = (cairn_now_s() - started_s) / 16;

    return p < 0.005 ? 0.005 : p > 1 ? 1 : p;
}

void cairn_ranks_rest(double started_s)
{
    if (!cairn_stop_requested())
        cairn_sleep_s(0.75 * cairn_ranks_period(started_s));
}

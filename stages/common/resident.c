/* resident.c - the order of a resident role: who is here, what is done, then link after link; waiting, telling, leaving
 * (resident.h). */
#include "stages/common/resident.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/signals.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "stages/common/fastpath.h"
#include "stages/common/ranks.h"
#include "world/group.h"
#include "world/role.h"

#define ROLES     3
#define SHOWN_S   60.0 /* a file system may show a name late that another node has made */
#define LEAVING_S 30.0 /* after a failure the others get to leave by themselves */

#define FAILED    2

static const char *const names[ROLES] = {"rollout", "score", "train"};

struct resident {
    struct cairn_stage_ctx *ctx;
    const struct cairn_stage_def *def;
    struct cairn_world *whole, *role;
    int number; /* of this role */
    int *roles; /* (whole->size) role of each rank */
    struct cairn_link *chain;
    char **path; /* (n) of each link, relative */
    char *done;  /* (n) committed; FAILED: an evaluation that did not come out, which holds no training up */
    int n;
    char *given;              /* (n) policies that their makers give to who comes for them */
    int32_t *there_for;       /* (whole->size) newest generation that a rank has come for */
    int ended[ROLES];         /* the role makes nothing more */
    struct cairn_digest hash; /* of the recipe that what is kept was made under */
    int hashed;
    enum cairn_status bad; /* of another role */
    char why[256];
    struct cairn_error eval; /* of the first evaluation of this role that did not come out */
};

/* What a role tells the others. Plain bytes, of one size. */
struct notice {
    int32_t role, link; /* link n: it makes nothing more; n + 1: this rank is there for a generation */
    int32_t status;     /* n + 1: the generation */
    int32_t given;      /* of a policy: it is given when all samplers are there for it (fastpath.h) */
    char why[240];
};

/* Whose work it is; -1: no resident role's (the gate, which is made before). */
static int role_of(enum cairn_stage s)
{
    return s == CAIRN_STAGE_SYNC ? CAIRN_STAGE_TRAIN : s == CAIRN_STAGE_CHECK ? -1 : (int)s;
}

/* ---- notices --------------------------------------------------------------------------------------------------------- */

/* By the role's first rank, to all ranks of the others. */
static enum cairn_status tell(struct resident *r, int link, enum cairn_status status, const char *why, struct cairn_error *err)
{
    struct notice n = {.role = r->number, .link = link, .status = (int32_t)status, .given = cairn_fastpath_due(r->ctx->fastpath)};
    enum cairn_status st = CAIRN_OK;

    snprintf(n.why, sizeof n.why, "%s", why ? why : "");
    for (int k = 0; k < r->whole->size && r->role->rank == 0; k++)
        if (r->roles[k] != r->number)
            TRY(cairn_notice_post(r->whole, k, &n, sizeof n, err));
out:
    return st;
}

/* All that have come. */
static enum cairn_status listen(struct resident *r, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct notice n;
    int from;

    for (;;) {
        TRY(cairn_notice_poll(r->whole, &n, sizeof n, &from, err));
        if (from < 0)
            break;
        if (n.role < 0 || n.role >= ROLES || n.link < 0 || n.link > r->n + 1)
            TRY(CAIRN_BUG(err, "a notice that nobody posts"));
        if (n.link < r->n) {
            r->done[n.link] = n.status == CAIRN_OK ? 1 : FAILED;
            r->given[n.link] = n.given != 0;
            continue;
        }
        if (n.link > r->n) {
            r->there_for[from] = n.status;
            continue;
        }
        r->ended[n.role] = 1;
        if (n.status != CAIRN_OK && r->bad == CAIRN_OK) {
            n.why[sizeof n.why - 1] = 0;
            r->bad = (enum cairn_status)n.status;
            snprintf(r->why, sizeof r->why, "%s: %.240s", names[n.role], n.why);
        }
    }
out:
    return st;
}

#define LISTENING_S 0.001 /* between two looks for notices, which take microseconds of a core */
#define LOOKING_S   0.005 /* at a file system, which others wait for, too */

/* Sleeps a little, longer the longer it lasts: what comes is seen within a hundredth of the wait, or `most_s`. */
static void nap(double since_s, double most_s)
{
    double s = (cairn_now_s() - since_s) / 100;

    cairn_sleep_s(s < 0.0001 ? 0.0001 : s > most_s ? most_s : s);
}

/* ---- waiting --------------------------------------------------------------------------------------------------------- */

/* The link that makes the artefact `relative`, before `before`; -1: it is of no link. */
static int maker(const struct resident *r, const char *relative, int before)
{
    for (int i = before - 1; i >= 0; i--)
        if (!strcmp(r->path[i], relative))
            return i;
    return -1;
}

static enum cairn_status link_await(struct resident *r, int i, struct cairn_error *err)
{
    const int role = role_of(r->chain[i].stage);
    double since = cairn_now_s();
    enum cairn_status st = CAIRN_OK;

    for (;;) {
        TRY(listen(r, err));
        if (r->done[i])
            return CAIRN_OK;
        if (r->bad != CAIRN_OK)
            return cairn_fail(err, r->bad, "%s", r->why);
        TRY(cairn_stage_stopping(err));
        if (role < 0)
            return cairn_fail(err, CAIRN_EAGAIN, "%s is not made, and no role of a resident run makes it", r->path[i]);
        if (r->ended[role])
            return cairn_fail(err, CAIRN_EAGAIN, "%s is not made: %s has ended", r->path[i], names[role]);
        nap(since, LISTENING_S);
    }
out:
    return st;
}

/* A sampler's rank comes for a generation: *all 1 if its maker gives it; then that one hears of it. */
static enum cairn_status come_for(void *arg, uint64_t generation, int *all, struct cairn_error *err)
{
    struct resident *r = arg;
    const struct notice n = {.role = r->number, .link = r->n + 1, .status = (int32_t)generation};
    enum cairn_status st = CAIRN_OK;

    *all = 0;
    for (int i = 0; i < r->n; i++)
        *all = *all || (r->given[i] && r->chain[i].stage == CAIRN_STAGE_SYNC && (uint64_t)r->chain[i].step + 1 == generation);
    for (int k = 0; *all && k < r->whole->size; k++)
        if (r->roles[k] == CAIRN_STAGE_TRAIN)
            TRY(cairn_notice_post(r->whole, k, &n, sizeof n, err));
out:
    return st;
}

/* The trainer waits until every sampler's rank has come for it: holds no core, has no deadline. *all 0: one has ended and comes no more. */
static enum cairn_status all_come(void *arg, uint64_t generation, int *all, struct cairn_error *err)
{
    struct resident *r = arg;
    double since = cairn_now_s();
    enum cairn_status st = CAIRN_OK;

    for (*all = 0; !*all;) {
        TRY(listen(r, err));
        *all = 1;
        for (int k = 0; k < r->whole->size; k++)
            *all = *all && (r->roles[k] != CAIRN_STAGE_ROLLOUT || (uint64_t)r->there_for[k] >= generation);
        if (*all)
            break;
        if (r->bad != CAIRN_OK)
            return cairn_fail(err, r->bad, "%s", r->why);
        if (r->ended[CAIRN_STAGE_ROLLOUT])
            return CAIRN_OK;
        TRY(cairn_stage_stopping(err));
        nap(since, LISTENING_S);
    }
out:
    return st;
}

/* Told to be committed, and now to be seen from here. */
static enum cairn_status link_shown(struct resident *r, int i, struct cairn_error *err)
{
    char *dir = cairn_run_path(r->ctx->run, r->path[i]);
    double since = cairn_now_s();
    enum cairn_status st = CAIRN_OK;

    if (!dir)
        return CAIRN_NOMEM(err);
    while (st == CAIRN_OK && !cairn_artefact_committed(dir)) {
        if (cairn_now_s() - since > SHOWN_S)
            st = cairn_fail(err, CAIRN_EIO, "%s was committed by another rank and is not to be seen from %s after %.0f s", dir,
                            r->whole->host, SHOWN_S);
        else
            st = cairn_stage_stopping(err);
        nap(since, LOOKING_S);
    }
    free(dir);
    return st;
}

/* A trainer whose last state was only told trains again from the one that was kept: what was removed since then is made first. */
static enum cairn_status earlier_await(struct resident *r, int i, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int k = 0; k < i; k++) {
        const struct cairn_link *l = &r->chain[k];

        if (r->done[k] || l->eval || (l->stage != CAIRN_STAGE_ROLLOUT && l->stage != CAIRN_STAGE_SCORE))
            continue;
        TRY(link_await(r, k, err));
        TRY(link_shown(r, k, err));
    }
out:
    return st;
}

/* What link i reads. *skip: it will not be there. */
static enum cairn_status inputs_await(struct resident *r, int i, int *skip, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char **inputs = NULL;
    int n = 0;

    TRY(cairn_link_inputs(r->ctx->run, &r->chain[i], &inputs, &n, err));
    for (int k = 0; k < n; k++) {
        int m = maker(r, inputs[k], i);

        if (m < 0)
            continue;
        TRY(link_await(r, m, err));
        if (r->done[m] == FAILED) {
            *skip = 1; /* told by the one who did not make it */
            break;
        }
        TRY(link_shown(r, m, err));
    }
    if (!*skip && r->chain[i].stage == CAIRN_STAGE_TRAIN)
        TRY(earlier_await(r, i, err));
out:
    cairn_strings_free(inputs, n);
    return st;
}

/* ---- links ----------------------------------------------------------------------------------------------------------- */

/* What is kept holds for one recipe. */
static void recipe_follow(struct resident *r)
{
    struct cairn_stage_ctx *ctx = r->ctx;

    cairn_run_at(ctx->run, ctx->link.step);
    if (r->hashed && !cairn_digest_equal(r->hash, ctx->run->hash))
        cairn_stage_device_close(ctx, r->def);
    r->hash = ctx->run->hash;
    r->hashed = 1;
}

/* Committed: the others hear of it. */
static enum cairn_status link_tell(struct resident *r, int i, struct cairn_error *err)
{
    r->done[i] = 1;
    return tell(r, i, CAIRN_OK, NULL, err);
}

/* An evaluation that is not made. */
static enum cairn_status link_missing(struct resident *r, int i, enum cairn_status why, struct cairn_error *err)
{
    r->done[i] = FAILED;
    return tell(r, i, why, NULL, err);
}

static enum cairn_status link_make(struct resident *r, int i, struct cairn_error *err)
{
    struct cairn_stage_ctx *ctx = r->ctx;
    const struct cairn_stage_def *def = r->def->stage == r->chain[i].stage ? r->def : r->def->also;
    enum cairn_status st;
    int skip = 0;

    ctx->link = r->chain[i];
    recipe_follow(r);
    st = cairn_ranks_agree(ctx, "what it reads", inputs_await(r, i, &skip, err), err);
    if (st == CAIRN_OK && skip)
        return CAIRN_OK;
    ctx->agreed = 0;
    ctx->started_s = cairn_now_s();
    if (st == CAIRN_OK && !(ctx->dir = cairn_run_path(ctx->run, r->path[i])))
        st = CAIRN_NOMEM(err);
    st = cairn_stage_link_commit(ctx, def, st, err);
    if (st == CAIRN_OK) /* at once: others wait for it, nobody for what follows, which is done whatever came of telling */
        st = cairn_stage_link_follow(ctx, def, link_tell(r, i, err), err);
    if (st == CAIRN_OK)
        st = cairn_fastpath_give_due(ctx->fastpath, err);
    if (st != CAIRN_OK && st != CAIRN_EAGAIN && ctx->link.eval && !cairn_stop_requested()) {
        if (r->role->rank == 0)
            cairn_warn("%s: %s; training goes on", r->path[i], err->text);
        if (r->eval.code == CAIRN_OK)
            r->eval = *err;
        st = r->done[i] ? CAIRN_OK : link_missing(r, i, st, err);
    }
    cairn_stage_link_end(ctx);
    return st;
}

/* ---- coming and going -------------------------------------------------------------------------------------------------- */

static enum cairn_status chain_read(struct resident *r, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_run_chain(r->ctx->run, &r->chain, &r->n, err));
    r->path = calloc((size_t)r->n + 1, sizeof *r->path);
    r->done = calloc((size_t)r->n + 1, 1);
    r->given = calloc((size_t)r->n + 1, 1);
    r->there_for = calloc((size_t)r->whole->size, sizeof *r->there_for);
    if (!r->path || !r->done || !r->given || !r->there_for)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < r->n; i++)
        if (!(r->path[i] = cairn_link_relative(&r->chain[i])))
            TRY(CAIRN_NOMEM(err));
out:
    return st;
}

/* Who is here; a role that is missing would be waited for for ever. */
static enum cairn_status roles_meet(struct resident *r, struct cairn_error *err)
{
    int have[ROLES] = {0};
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_group_allgather(r->whole->all, "roles", &r->number, sizeof r->number, r->roles, err));
    for (int k = 0; k < r->whole->size; k++)
        have[r->roles[k]]++;
    for (int k = 0; k < ROLES; k++)
        if (!have[k])
            TRY(cairn_fail(err, CAIRN_EUSAGE,
                           "no rank of this world runs cairn-%s --resident; cairn run and cairn submit start all roles", names[k]));
    TRY(cairn_role_open(&r->role, r->whole, r->number, names[r->number], err));
    r->ctx->device_rank = 0; /* samplers before trainers; scores are made without one */
    for (int k = 0; k < r->whole->size; k++)
        r->ctx->device_rank += r->whole->node_of[k] == r->whole->node && ((r->roles[k] == r->number && k < r->whole->rank) ||
                                                                          (r->roles[k] == CAIRN_STAGE_ROLLOUT && r->number == CAIRN_STAGE_TRAIN));
out:
    return st;
}

/* What is committed, as the first rank of all sees it. */
static enum cairn_status done_settle(struct resident *r, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int32_t n = r->n, mine = r->n;

    TRY(cairn_group_bcast(r->whole->all, "the chain", 0, &n, sizeof n, err));
    if (n != mine)
        TRY(cairn_fail(err, CAIRN_EUSAGE, "this rank sees %d links, the first one sees %d: not the same run", mine, n));
    if (r->whole->rank == 0)
        cairn_links_done(r->ctx->run, r->chain, r->n, r->done);
    TRY(cairn_group_bcast(r->whole->all, "what is done", 0, r->done, (size_t)r->n, err));
out:
    return st;
}

/* Policies in memory, for those who make them and those who sample from them. */
static enum cairn_status fastpath_open(struct resident *r, struct cairn_error *err)
{
    const int role = r->def->stage == CAIRN_STAGE_ROLLOUT ? 1 : r->def->stage == CAIRN_STAGE_TRAIN ? 2 : 0;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_group_agree(r->whole->all, "devices", cairn_stage_device_open(r->ctx, r->def, err), err));
    TRY(cairn_fastpath_open(&r->ctx->fastpath, r->ctx, r->whole, role, err));
    cairn_fastpath_meet(r->ctx->fastpath, role == 1 ? come_for : all_come, r);
out:
    return st;
}

/* This role makes nothing more: the others hear why, and are waited for without holding a core. */
static void leave(struct resident *r, enum cairn_status st, const struct cairn_error *err)
{
    double since = cairn_now_s();
    struct cairn_error late = {0};
    int all = 0;

    if (tell(r, r->n, r->bad == CAIRN_OK ? st : CAIRN_OK, st == CAIRN_OK ? NULL : err->text, &late) != CAIRN_OK)
        goto lost;
    r->ended[r->number] = 1;
    for (;;) {
        if (listen(r, &late) != CAIRN_OK)
            goto lost;
        all = 1;
        for (int k = 0; k < ROLES; k++)
            all &= r->ended[k];
        if (all)
            return;
        if (st != CAIRN_OK && st != CAIRN_EAGAIN && cairn_now_s() - since > LEAVING_S)
            cairn_world_abort(r->whole, st);
        nap(since, LISTENING_S);
    }
lost:
    cairn_warn("%s", late.text);
    cairn_world_abort(r->whole, st == CAIRN_OK ? CAIRN_EAGAIN : st);
}

static void resident_free(struct resident *r)
{
    for (int i = 0; r->path && i < r->n; i++)
        free(r->path[i]);
    free(r->path);
    free(r->done);
    free(r->given);
    free(r->there_for);
    free(r->chain);
    free(r->roles);
}

enum cairn_status cairn_resident(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def, enum cairn_status st, int *mute,
                                 struct cairn_error *err)
{
    struct resident r = {.ctx = ctx, .def = def, .whole = ctx->world, .number = role_of(def->stage)};
    char program[32];

    if (st == CAIRN_OK)
        st = chain_read(&r, err);
    if (!(r.roles = calloc((size_t)r.whole->size, sizeof *r.roles)) && st == CAIRN_OK)
        st = CAIRN_NOMEM(err);
    TRY(cairn_group_agree(r.whole->all, "the start", st, err));
    TRY(cairn_group_agree(r.whole->all, "roles", roles_meet(&r, err), err));
    TRY(cairn_group_agree(r.whole->all, "the chain", done_settle(&r, err), err));
    ctx->world = r.role;
    st = cairn_group_agree(r.whole->all, "handover", fastpath_open(&r, err), err);
    if (st != CAIRN_OK) {
        cairn_stage_device_close(ctx, def);
        ctx->world = r.whole;
        cairn_role_close(r.role);
        goto out;
    }
    snprintf(program, sizeof program, "cairn-%s", names[r.number]);
    cairn_log_init(program, r.role->rank);
    for (int i = 0; i < r.n && st == CAIRN_OK; i++)
        if (role_of(r.chain[i].stage) == r.number && !r.done[i])
            st = link_make(&r, i, err);
    cairn_stage_device_close(ctx, def);
    if (st == CAIRN_OK && r.eval.code != CAIRN_OK) {
        *err = r.eval;
        st = err->code;
    }
    if (st != CAIRN_OK && r.bad == CAIRN_OK && r.role->rank == 0)
        fprintf(stderr, "%s: %s\n", program, err->text);
    *mute = 1; /* told now, or another's to tell */
    leave(&r, st, err);
    cairn_fastpath_close(ctx->fastpath);
    ctx->fastpath = NULL;
    ctx->world = r.whole;
    cairn_role_close(r.role);
out:
    resident_free(&r);
    return st;
}

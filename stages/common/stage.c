/* stage.c - the order of one link of a stage (stage.h): inputs, device, attempt, work, vote, commit; and what the work uses
 * meanwhile. */
#include "stages/common/stage_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/signals.h"
#include "base/str.h"
#include "ckpt/retention.h"
#include "stages/common/ranks.h"

#define HOLLOW "checkpoint.every" /* why an artefact is collected from the first */

/* ---- what the work uses ------------------------------------------------------------------------------------------------ */

static void bar_begin(struct cairn_stage_ctx *ctx, const char *unit, int64_t total)
{
    char what[64];

    if (ctx->bar)
        return;
    snprintf(what, sizeof what, "step %lld %s", (long long)ctx->link.step,
             ctx->link.eval ? ctx->link.eval : cairn_stage_name(ctx->link.stage));
    ctx->bar = cairn_progress_begin(what, unit, total, ctx->interval_s);
}

void cairn_stage_progress_from(struct cairn_stage_ctx *ctx, const char *unit, int64_t done, int64_t total)
{
    bar_begin(ctx, unit, total);
    cairn_progress_from(ctx->bar, done);
}

void cairn_stage_progress(struct cairn_stage_ctx *ctx, const char *unit, int64_t done, int64_t total)
{
    double now = cairn_now_s();

    bar_begin(ctx, unit, total);
    cairn_progress_at(ctx->bar, done);
    if (now - ctx->told_s >= 2) {
        ctx->told_s = now;
        cairn_event(ctx->events, "progress", cairn_stage_name(ctx->link.stage), ctx->link.step,
                    json_pack("{s:s?, s:i, s:s, s:I, s:I}", "eval", ctx->link.eval, "task", ctx->task, "unit", unit, "done",
                              (json_int_t)done, "total", (json_int_t)total));
    }
}

enum cairn_status cairn_stage_stopping(struct cairn_error *err)
{
    /* Which signal it was says nothing to who sent one: of a resident run SIGTERM arrives as SIGUSR1. */
    return cairn_stop_requested() ? cairn_fail(err, CAIRN_EAGAIN, "stopped on request; run again to go on") : CAIRN_OK;
}

enum cairn_status cairn_stage_input(struct cairn_stage_ctx *ctx, const char *relative, struct cairn_reader **out,
                                    struct cairn_error *err)
{
    const struct cairn_manifest *m = ctx->manifest;
    struct cairn_reader_expect expect = {0};
    enum cairn_status st;
    char *path;

    for (int i = 0; i < m->ninputs; i++)
        if (!strcmp(m->inputs[i].path, relative))
            expect.digest = &m->inputs[i].digest;
    if (!expect.digest)
        return CAIRN_BUG(err, "an artefact that is no input of this link");
    path = cairn_run_path(ctx->run, relative);
    st = path ? cairn_reader_open(out, path, &expect, err) : CAIRN_NOMEM(err);
    free(path);
    return st;
}

static void metric_set(json_t *o, const char *key, double v)
{
    json_t *metrics = json_object_get(o, "metrics");

    if (!metrics) {
        metrics = json_object();
        json_object_set_new(o, "metrics", metrics);
    }
    json_object_set_new(metrics, key, json_real(v));
}

void cairn_stage_info(struct cairn_stage_ctx *ctx, const char *key, double v)
{
    metric_set(ctx->manifest->info, key, v);
}

void cairn_stage_metric(struct cairn_stage_ctx *ctx, const char *key, double v)
{
    metric_set(ctx->manifest->content, key, v);
}

/* ---- the order ------------------------------------------------------------------------------------------------------------ */

static enum cairn_status events_open(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *dir = cairn_run_path(ctx->run, "log"),
         *path = dir ? cairn_format("%s/%s.jsonl", dir, cairn_stage_name(ctx->link.stage)) : NULL;

    if (!path)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_dir_make(dir, err));
    TRY(cairn_events_open(&ctx->events, path, err));
out:
    free(dir);
    free(path);
    return st;
}

/* "code", of what failed or was stopped, tells whoever reads the log what kind of failure it was. */
static void event_tell(struct cairn_stage_ctx *ctx, const char *ev, enum cairn_status code, const char *text)
{
    json_t *o = json_pack("{s:s?, s:I, s:s?}", "eval", ctx->link.eval, "attempt",
                          (json_int_t)(ctx->attempt ? cairn_attempt_epoch(ctx->attempt) : 0), "text", text);

    if (o && code != CAIRN_OK)
        json_object_set_new(o, "code", json_integer(code));
    cairn_event(ctx->events, ev, cairn_stage_name(ctx->link.stage), ctx->link.step, o);
}

static enum cairn_status prepare(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_link_manifest(ctx->run, &ctx->link, &ctx->manifest, err));
    if (ctx->world->rank == 0)
        TRY(events_open(ctx, err));
    TRY(cairn_stage_device_prepare(ctx, def, err));
    TRY(cairn_stage_stopping(err));
out:
    return st;
}

/* All ranks are at the same work, with inputs of the same digests and equal numerics. */
static enum cairn_status compare(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *relative = NULL, *text = NULL, hex[33];

    if (ctx->world->size == 1)
        return CAIRN_OK;
    cairn_digest_hex(cairn_manifest_identity(ctx->manifest), hex);
    relative = cairn_link_relative(&ctx->link);
    text = relative ? cairn_format("%s, identity %s, task %d of %d", relative, hex, ctx->task, ctx->tasks) : NULL;
    TRY(cairn_ranks_agree(ctx, "the link", text ? CAIRN_OK : CAIRN_NOMEM(err), err));
    TRY(cairn_ranks_same(ctx, "the link", text, CAIRN_EUSAGE, err));
    TRY(cairn_ranks_same(ctx, "numerics", ctx->manifest->numerics, CAIRN_EDEVICE, err));
    TRY(cairn_stage_devices_compare(ctx, err));
out:
    free(relative);
    free(text);
    return st;
}

/* Rank 0 takes an epoch, the others join. */
static enum cairn_status attempt_open(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_attempt_opts o = {.identity = cairn_manifest_identity(ctx->manifest)};
    int64_t epoch = 0;
    char lane[32];

    snprintf(lane, sizeof lane, "task-%d", ctx->task);
    if (ctx->tasks > 1)
        o.lane = lane;
    if (ctx->world->rank == 0 && (st = cairn_attempt_begin(&ctx->attempt, ctx->dir, &o, err)) == CAIRN_OK)
        epoch = cairn_attempt_epoch(ctx->attempt);
    TRY(cairn_ranks_tell(ctx, "the attempt", st, &epoch, sizeof epoch, err));
    if (ctx->world->rank)
        st = cairn_attempt_join(&ctx->attempt, ctx->dir, epoch, &o, err);
    TRY(cairn_ranks_agree(ctx, "joining the attempt", st, err));
    ctx->began = 1;
    event_tell(ctx, "start", CAIRN_OK, NULL);
out:
    return st;
}

/* Rank 0, when all shards are in its manifest. */
static enum cairn_status commit(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    const json_t *units = json_object_get(ctx->manifest->content, "units");
    json_t *info = ctx->manifest->info;
    enum cairn_status st = CAIRN_OK;

    if (json_is_integer(units) && json_integer_value(units) != ctx->manifest->nshards)
        TRY(cairn_fail(err, CAIRN_EBUG, "%s: %d units came together, %lld were meant to", ctx->dir, ctx->manifest->nshards,
                       (long long)json_integer_value(units)));
    json_object_set_new(info, "host", json_string(ctx->world->host));
    json_object_set_new(info, "wall", json_real(cairn_wall_s()));
    json_object_set_new(info, "seconds", json_real(cairn_now_s() - ctx->started_s));
    if (ctx->world->size > 1)
        json_object_set_new(info, "ranks", json_integer(ctx->world->size));
    if (ctx->hollow)
        TRY(cairn_manifest_set_hollow(ctx->manifest, HOLLOW, err));
    TRY(cairn_attempt_commit(ctx->attempt, ctx->manifest, err));
    if (ctx->hollow && cairn_artefact_collected(ctx->dir)) /* another attempt may have been first with its data: those stay */
        TRY(cairn_artefact_collect(ctx->dir, NULL, NULL, err));
    event_tell(ctx, "committed", CAIRN_OK, NULL);
out:
    return st;
}

/* From the inputs to the commit. What it returns is agreed. */
static enum cairn_status stage_try(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_ranks_agree(ctx, "inputs", prepare(ctx, def, err), err));
    ctx->prepared = 1;
    TRY(compare(ctx, err));
    TRY(attempt_open(ctx, err));
    st = def->work(ctx, err);
    if (!ctx->agreed)
        st = cairn_ranks_vote(ctx, cairn_attempt_failed(ctx->attempt, st, err), err);
    TRY(st);
    if (ctx->partial) {
        event_tell(ctx, "share", CAIRN_OK, NULL);
        goto out;
    }
    if (ctx->world->rank == 0)
        st = commit(ctx, err);
    TRY(cairn_ranks_agree(ctx, "the commit", st, err));
out:
    cairn_progress_end(ctx->bar);
    ctx->bar = NULL;
    if (st != CAIRN_OK && ctx->events)
        event_tell(ctx, st == CAIRN_EAGAIN ? "stopped" : "failed", st, err->text);
    cairn_attempt_end(ctx->attempt);
    ctx->attempt = NULL;
    if (st != CAIRN_OK || !ctx->resident)
        cairn_stage_device_close(ctx, def);
    return st;
}

enum cairn_status cairn_stage_follow(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def, int first,
                                     struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    if (ctx->partial) { /* whoever commits does what follows */
        if (!cairn_artefact_committed(ctx->dir))
            cairn_info("%s: task %d of %d is done, the others are not yet", ctx->dir, ctx->task, ctx->tasks);
        return CAIRN_OK;
    }
    if (first)
        TRY(cairn_artefact_settle(ctx->dir, err));
    if (def->after)
        TRY(def->after(ctx->run, &ctx->link, err));
out:
    return st;
}

enum cairn_status cairn_stage_link_commit(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def, enum cairn_status st,
                                          struct cairn_error *err)
{
    int there = 0;

    if (st == CAIRN_OK && ctx->world->size > 1 && !def->splits && !def->ranks)
        st = cairn_fail(err, CAIRN_EUSAGE, "started with %d ranks; this stage runs in one", ctx->world->size);
    TRY(cairn_ranks_agree(ctx, "the start", st, err));
    if (ctx->world->rank == 0)
        there = cairn_artefact_committed(ctx->dir);
    TRY(cairn_ranks_tell(ctx, "committed already", CAIRN_OK, &there, sizeof there, err));
    if (!there)
        st = stage_try(ctx, def, err);
    /* Fenced, or what we stood on was tidied away by whoever committed: one more look tells. */
    if (st != CAIRN_OK && st != CAIRN_EAGAIN && ctx->prepared) {
        enum cairn_status told;
        struct cairn_error e;

        if (ctx->world->rank == 0)
            there = cairn_stage_rival(ctx);
        told = cairn_ranks_tell(ctx, "who was first", CAIRN_OK, &there, sizeof there, &e);
        if (told == CAIRN_OK && there) {
            cairn_info("%s: another attempt was first (here: %s)", ctx->dir, err->text);
            st = CAIRN_OK;
        }
    }
    TRY(st);
    ctx->agreed = 0;
    if (there) /* whoever is told of it may rely on it */
        st = cairn_ranks_agree(ctx, "what another committed",
                               ctx->world->rank == 0 && !ctx->partial ? cairn_artefact_settle(ctx->dir, err) : CAIRN_OK, err);
out:
    return st;
}

enum cairn_status cairn_stage_link_follow(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def, enum cairn_status st,
                                          struct cairn_error *err)
{
    struct cairn_error why;
    enum cairn_status followed = ctx->world->rank == 0 ? cairn_stage_follow(ctx, def, 0, &why) : CAIRN_OK;

    if (st == CAIRN_OK && (st = followed) != CAIRN_OK && err)
        *err = why;
    return cairn_ranks_agree(ctx, "the end", st, err);
}

enum cairn_status cairn_stage_link(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def, enum cairn_status st, struct cairn_error *err)
{
    st = cairn_stage_link_commit(ctx, def, st, err);
    return st == CAIRN_OK ? cairn_stage_link_follow(ctx, def, st, err) : st;
}

void cairn_stage_link_end(struct cairn_stage_ctx *ctx)
{
    cairn_events_close(ctx->events);
    ctx->events = NULL;
    cairn_manifest_destroy(ctx->manifest);
    ctx->manifest = NULL;
    free(ctx->dir);
    ctx->dir = NULL;
    ctx->agreed = ctx->partial = ctx->prepared = ctx->began = ctx->hollow = 0;
}

/* stage.c - the order of a stage (stage.h): arguments, world, inputs, device, attempt, work, vote, commit. */
#include "stages/common/stage.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cores.h"
#include "base/file.h"
#include "base/signals.h"
#include "base/str.h"
#include "stages/common/fastpath.h"
#include "stages/common/graders.h"
#include "stages/common/ranks.h"
#include "stages/common/resident.h"
#include "stages/common/setup.h"
#include "world/group.h"

/* ---- arguments ---------------------------------------------------------------------------------------------------- */

struct args {
    const char *run, *eval;
    int64_t step, threads, task, tasks;
    int quiet, done, resident;
};

static const struct argp_option options[] = {
    {"step", 's', "N", 0, "the step", 0},
    {"eval", 'e', "NAME", 0, "an evaluation set of the recipe instead of the training prompts (rollout, score)", 0},
    {"shard", 'i', "i/n", 0, "array task i (from 0) of n independent ones (rollout, score): its share of the units; the last one commits", 0},
    {"resident", 'R', NULL, 0, "one link after the other until the run is done, beside the other roles in one MPI world (cairn run and submit start it so)", 0},
    {"threads", 't', "T", 0, "CPU threads (default: the recipe's kernels.threads); never changes a bit", 0},
    {"quiet", 'q', NULL, 0, "no progress", 0},
    {"help", '?', NULL, 0, "this page", -1},
    {0},
};

#define TASKS_MAX 65536

/* "i/n" */
static int shard_parse(const char *arg, struct args *a)
{
    const char *slash = strchr(arg, '/');
    char i[32];

    if (!slash || slash - arg >= (int)sizeof i)
        return 0;
    snprintf(i, sizeof i, "%.*s", (int)(slash - arg), arg);
    return cairn_parse_i64(i, &a->task) && cairn_parse_i64(slash + 1, &a->tasks) && a->task >= 0 && a->task < a->tasks && a->tasks <= TASKS_MAX;
}

static error_t option(int key, char *arg, struct argp_state *state)
{
    struct args *a = state->input;

    switch (key) {
    case 's':
        return cairn_parse_i64(arg, &a->step) && a->step >= 0 && a->step <= 999999999 ? 0 : ARGP_ERR_UNKNOWN;
    case 'e':
        a->eval = arg;
        return 0;
    case 't':
        return cairn_parse_i64(arg, &a->threads) && a->threads >= 0 && a->threads <= 65536 ? 0 : ARGP_ERR_UNKNOWN;
    case 'i':
        return shard_parse(arg, a) ? 0 : ARGP_ERR_UNKNOWN;
    case 'q':
        a->quiet = 1;
        return 0;
    case 'R':
        a->resident = 1;
        return 0;
    case '?':
        argp_state_help(state, stdout, ARGP_HELP_USAGE | ARGP_HELP_LONG | ARGP_HELP_DOC);
        a->done = 1;
        state->next = state->argc;
        return 0;
    case ARGP_KEY_ARG:
        if (a->run)
            return ARGP_ERR_UNKNOWN;
        a->run = arg;
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static enum cairn_status args_parse(struct args *a, int argc, char **argv, const struct cairn_stage_def *def, struct cairn_error *err)
{
    const struct argp argp = {options, option, "RUN --step N", def->doc, NULL, NULL, NULL};

    a->step = -1;
    if (argp_parse(&argp, argc, argv, ARGP_NO_EXIT | ARGP_NO_HELP, NULL, a))
        return cairn_fail(err, CAIRN_EUSAGE, "the command line is wrong (try --help)");
    if (a->done)
        return CAIRN_OK;
    if (a->resident && (a->step >= 0 || a->eval || a->tasks))
        return cairn_fail(err, CAIRN_EUSAGE, "--resident goes through all steps: no --step, --eval or --shard beside it");
    if (!a->run || (a->step < 0 && !a->resident))
        return cairn_fail(err, CAIRN_EUSAGE, "%s is missing (try --help)", a->run ? "--step N" : "RUN");
    if (a->resident && def->stage == CAIRN_STAGE_CHECK)
        return cairn_fail(err, CAIRN_EUSAGE, "the check is made before resident roles start: no --resident");
    if (a->eval && def->stage != CAIRN_STAGE_ROLLOUT && def->stage != CAIRN_STAGE_SCORE)
        return cairn_fail(err, CAIRN_EUSAGE, "--eval is for rollout and score");
    if (a->tasks && !def->splits)
        return cairn_fail(err, CAIRN_EUSAGE, "--shard is for rollout and score");
    return CAIRN_OK;
}

/* The link must be one that such a run has. */
static enum cairn_status link_check(const struct cairn_run *run, const struct cairn_link *l, struct cairn_error *err)
{
    const json_t *sets = cairn_recipe_get(run->recipe, "data.eval");
    int warm = cairn_recipe_has(run->recipe, "warm_start");

    if (l->eval) {
        for (size_t i = 0; i < json_array_size(sets); i++)
            if (!strcmp(l->eval, json_string_value(json_object_get(json_array_get(sets, i), "name"))))
                return CAIRN_OK;
        return cairn_fail(err, CAIRN_EUSAGE, "--eval %s: the recipe has no such evaluation set", l->eval);
    }
    if (l->stage == CAIRN_STAGE_CHECK)
        return l->step == 0 ? CAIRN_OK : cairn_fail(err, CAIRN_EUSAGE, "only step 0 has a check");
    if (l->step == 0 && l->stage != CAIRN_STAGE_SYNC && !(l->stage == CAIRN_STAGE_TRAIN && warm))
        return cairn_fail(err, CAIRN_EUSAGE, "step 0 has no %s", cairn_stage_name(l->stage));
    return CAIRN_OK;
}

/* ---- what the work uses ------------------------------------------------------------------------------------------------ */

static void bar_begin(struct cairn_stage_ctx *ctx, const char *unit, int64_t total)
{
    char what[64];

    if (ctx->bar)
        return;
    snprintf(what, sizeof what, "step %lld %s", (long long)ctx->link.step, ctx->link.eval ? ctx->link.eval : cairn_stage_name(ctx->link.stage));
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
                    json_pack("{s:s?, s:i, s:s, s:I, s:I}", "eval", ctx->link.eval, "task", ctx->task, "unit", unit, "done", (json_int_t)done,
                              "total", (json_int_t)total));
    }
}

enum cairn_status cairn_stage_stopping(struct cairn_error *err)
{
    int signo = cairn_stop_requested();

    return signo ? cairn_fail(err, CAIRN_EAGAIN, "stopped by signal %d (%s); run again to go on", signo, strsignal(signo)) : CAIRN_OK;
}

enum cairn_status cairn_stage_input(struct cairn_stage_ctx *ctx, const char *relative, struct cairn_reader **out, struct cairn_error *err)
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

/* Inputs that were computed by other numerics than ours: refused, or told (numerics.require). */
static enum cairn_status numerics_check(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    int same = !strcmp(cairn_recipe_str(ctx->run->recipe, "numerics.require"), "same");
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; st == CAIRN_OK && i < ctx->manifest->ninputs; i++) {
        const char *relative = ctx->manifest->inputs[i].path;
        struct cairn_manifest *m = NULL;
        char *path;

        if (cairn_starts_with(relative, "file:") || !strcmp(relative, "base"))
            continue;
        path = cairn_run_path(ctx->run, relative);
        st = path ? cairn_manifest_load(&m, path, err) : CAIRN_NOMEM(err);
        free(path);
        if (st == CAIRN_OK && m->numerics[0] && strcmp(m->numerics, ctx->manifest->numerics)) {
            if (same)
                st = cairn_fail(err, CAIRN_EDEVICE,
                                "%s was computed as \"%s\", this process computes as \"%s\": bits would differ; go on there, or set "
                                "numerics.require=compatible",
                                relative, m->numerics, ctx->manifest->numerics);
            else
                cairn_warn("%s was computed as \"%s\", this process computes as \"%s\"", relative, m->numerics, ctx->manifest->numerics);
        }
        cairn_manifest_destroy(m);
    }
    return st;
}

static enum cairn_status events_open(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *dir = cairn_run_path(ctx->run, "log"), *path = dir ? cairn_format("%s/%s.jsonl", dir, cairn_stage_name(ctx->link.stage)) : NULL;

    if (!path)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_dir_make(dir, err));
    TRY(cairn_events_open(&ctx->events, path, err));
out:
    free(dir);
    free(path);
    return st;
}

static void event_tell(struct cairn_stage_ctx *ctx, const char *ev, const char *text)
{
    cairn_event(ctx->events, ev, cairn_stage_name(ctx->link.stage), ctx->link.step,
                json_pack("{s:s?, s:I, s:s?}", "eval", ctx->link.eval, "attempt", (json_int_t)(ctx->attempt ? cairn_attempt_epoch(ctx->attempt) : 0),
                          "text", text));
}

/* With a launcher's ranks side by side and no number from the recipe, cores are shared: where each may use more than its part of the
 * machine, they would stand on each other's. 0: as the recipe says. */
static int threads_of(const struct cairn_stage_ctx *ctx)
{
    int ranks = ctx->world->local_size, mine = cairn_cores();

    if (ctx->threads || cairn_recipe_i64(ctx->run->recipe, "kernels.threads") || ranks == 1)
        return (int)ctx->threads;
    if ((int64_t)mine * ranks <= cairn_cores_here()) /* bound to cores of its own */
        return 0;
    return mine > ranks ? mine / ranks : 1;
}

/* What a rank needs before it can begin. */
enum cairn_status cairn_stage_device_open(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    if (!def->wants_device || ctx->compute)
        return CAIRN_OK;
    TRY(cairn_setup_compute(&ctx->device, ctx->run->recipe, threads_of(ctx), ctx->device_rank, err));
    ctx->compute = &ctx->device;
out:
    return st;
}

static enum cairn_status prepare(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char layout[64];

    TRY(cairn_link_manifest(ctx->run, &ctx->link, &ctx->manifest, err));
    if (ctx->world->rank == 0)
        TRY(events_open(ctx, err));
    if (!def->wants_device)
        goto out;
    TRY(cairn_stage_device_open(ctx, def, err));
    /* Of replicas (dp) and tasks there may be any number: they are not part of it. */
    snprintf(layout, sizeof layout, "tp1 pp1 cp1 ep1 dp1 segments%lld", (long long)cairn_recipe_i64(ctx->run->recipe, "numerics.segments"));
    TRY(cairn_manifest_set_fingerprint(ctx->manifest, ctx->compute->numerics, layout, err));
    if (ctx->world->rank == 0)
        TRY(numerics_check(ctx, err));
out:
    return st == CAIRN_OK ? cairn_stage_stopping(err) : st;
}

/* Does each rank of a node have a GPU of its own? By what the GPUs are, not by their numbers: a launcher may show each rank others. */
static enum cairn_status devices_compare(struct cairn_stage_ctx *ctx, struct cairn_error *err)
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
            const struct mine *a = (const struct mine *)(const void *)(all + at[q]), *b = (const struct mine *)(const void *)(all + at[r]);

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
    TRY(devices_compare(ctx, err));
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
    event_tell(ctx, "start", NULL);
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
    TRY(cairn_attempt_commit(ctx->attempt, ctx->manifest, err));
    event_tell(ctx, "committed", NULL);
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
        event_tell(ctx, "share", NULL);
        goto out;
    }
    if (ctx->world->rank == 0)
        st = commit(ctx, err);
    TRY(cairn_ranks_agree(ctx, "the commit", st, err));
out:
    cairn_progress_end(ctx->bar);
    ctx->bar = NULL;
    if (st != CAIRN_OK && ctx->events)
        event_tell(ctx, st == CAIRN_EAGAIN ? "stopped" : "failed", err->text);
    cairn_attempt_end(ctx->attempt);
    ctx->attempt = NULL;
    if (st != CAIRN_OK || !ctx->resident)
        cairn_stage_device_close(ctx, def);
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

/* The shards that we have made say nothing else than the committed artefact: where its parts make up one of our slices, their sums do. */
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

/* We did not get through. Has another attempt committed just what we would have, as far as we had come? Then all is done. */
static int other_was_first(const struct cairn_stage_ctx *ctx)
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

/* What follows a commit, on rank 0. first: another one made it, now or before we asked. */
static enum cairn_status follow(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def, int first, struct cairn_error *err)
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

enum cairn_status cairn_stage_link(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def, enum cairn_status st, struct cairn_error *err)
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
            there = other_was_first(ctx);
        told = cairn_ranks_tell(ctx, "who was first", CAIRN_OK, &there, sizeof there, &e);
        if (told == CAIRN_OK && there) {
            cairn_info("%s: another attempt was first (here: %s)", ctx->dir, err->text);
            st = CAIRN_OK;
        }
    }
    TRY(st);
    ctx->agreed = 0;
    TRY(cairn_ranks_agree(ctx, "the end", ctx->world->rank == 0 ? follow(ctx, def, there, err) : CAIRN_OK, err));
out:
    return st;
}

void cairn_stage_link_end(struct cairn_stage_ctx *ctx)
{
    cairn_events_close(ctx->events);
    ctx->events = NULL;
    cairn_manifest_destroy(ctx->manifest);
    ctx->manifest = NULL;
    free(ctx->dir);
    ctx->dir = NULL;
    ctx->agreed = ctx->partial = ctx->prepared = ctx->began = 0;
}

/* What needs no world. */
static enum cairn_status run_open(struct cairn_stage_ctx *ctx, const struct args *a, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_run_open(&ctx->run, a->run, err));
    ctx->interval_s = cairn_recipe_f64(ctx->run->recipe, "log.interval");
    if (ctx->resident) {
        if (!cairn_world_launched())
            TRY(cairn_fail(err, CAIRN_EUSAGE, "--resident is for a world of all roles: cairn run and cairn submit start it (run.mode: resident)"));
        goto out;
    }
    cairn_run_at(ctx->run, ctx->link.step);
    TRY(link_check(ctx->run, &ctx->link, err));
    ctx->dir = cairn_link_path(ctx->run, &ctx->link);
    if (!ctx->dir)
        TRY(CAIRN_NOMEM(err));
out:
    return st;
}

int cairn_stage_main(int argc, char **argv, const struct cairn_stage_def *def)
{
    struct cairn_stage_ctx ctx = {.started_s = cairn_now_s(), .tasks = 1};
    struct cairn_world_opts wo = {0};
    enum cairn_status st = CAIRN_OK;
    struct cairn_error err = {0}, world_err;
    struct args a = {0};
    char program[32];
    int mute = 0;

    snprintf(program, sizeof program, "cairn-%s", cairn_stage_name(def->stage));
    cairn_log_init(program, 0);
    cairn_signals_install();
    TRY(args_parse(&a, argc, argv, def, &err));
    if (a.done)
        return CAIRN_OK;
    cairn_log_quiet(a.quiet);
    ctx.link = (struct cairn_link){a.step, def->stage, a.eval};
    if (a.tasks) {
        ctx.task = (int)a.task;
        ctx.tasks = (int)a.tasks;
    }
    ctx.threads = a.threads;
    ctx.resident = a.resident;
    st = run_open(&ctx, &a, &err);
    if (!cairn_world_launched()) { /* nobody waits for us: answer at once, without a world, a device, a child */
        TRY(st);
        if (cairn_artefact_committed(ctx.dir)) {
            st = follow(&ctx, def, 1, &err);
            goto out;
        }
    }
    if (st == CAIRN_OK && def->wants_graders)
        st = cairn_graders_start(&ctx.graders, ctx.run, &err);
    /* Who has failed by now tells the others so. */
    wo.deadline_s = ctx.run ? cairn_recipe_f64(ctx.run->recipe, "run.deadline") : 0;
    if (cairn_world_open(&ctx.world, &wo, &world_err) != CAIRN_OK) {
        if (st == CAIRN_OK) {
            err = world_err;
            st = err.code;
        }
        goto out;
    }
    cairn_log_init(program, ctx.world->rank);
    ctx.device_rank = ctx.world->local_rank;
    st = ctx.resident ? cairn_resident(&ctx, def, st, &mute, &err) : cairn_stage_link(&ctx, def, st, &err);
    mute |= st != CAIRN_OK && ctx.world->rank != 0;
out:
    if (st != CAIRN_OK && !mute) /* before the world closes: a launcher may end those who come later */
        fprintf(stderr, "%s: %s\n", program, err.text);
    cairn_stage_link_end(&ctx);
    cairn_grader_process_stop(ctx.graders);
    cairn_world_close(ctx.world, NULL);
    cairn_run_close(ctx.run);
    return (int)st;
}

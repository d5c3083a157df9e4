/* stage.c - the order of a stage (stage.h): arguments, inputs, world, device, attempt, work, commit. */
#include "stages/common/stage.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/signals.h"
#include "base/str.h"
#include "stages/common/setup.h"

/* ---- arguments ---------------------------------------------------------------------------------------------------- */

struct args {
    const char *run, *eval;
    int64_t step, threads;
    int quiet, done;
};

static const struct argp_option options[] = {
    {"step", 's', "N", 0, "the step", 0},
    {"eval", 'e', "NAME", 0, "an evaluation set of the recipe instead of the training prompts (rollout, score)", 0},
    {"threads", 't', "T", 0, "CPU threads (default: the recipe's kernels.threads); never changes a bit", 0},
    {"quiet", 'q', NULL, 0, "no progress", 0},
    {"help", '?', NULL, 0, "this page", -1},
    {0},
};

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
    case 'q':
        a->quiet = 1;
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
    if (!a->run || a->step < 0)
        return cairn_fail(err, CAIRN_EUSAGE, "%s is missing (try --help)", a->run ? "--step N" : "RUN");
    if (a->eval && def->stage != CAIRN_STAGE_ROLLOUT && def->stage != CAIRN_STAGE_SCORE)
        return cairn_fail(err, CAIRN_EUSAGE, "--eval is for rollout and score");
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
    if (l->step == 0 && l->stage != CAIRN_STAGE_SYNC && !(l->stage == CAIRN_STAGE_TRAIN && warm))
        return cairn_fail(err, CAIRN_EUSAGE, "step 0 has no %s", cairn_stage_name(l->stage));
    return CAIRN_OK;
}

/* ---- what the work uses ------------------------------------------------------------------------------------------------ */

void cairn_stage_progress(struct cairn_stage_ctx *ctx, const char *unit, int64_t done, int64_t total)
{
    double now = cairn_now_s();

    if (!ctx->bar) {
        char what[64];

        snprintf(what, sizeof what, "step %lld %s", (long long)ctx->link.step, ctx->link.eval ? ctx->link.eval : cairn_stage_name(ctx->link.stage));
        ctx->bar = cairn_progress_begin(what, unit, total, ctx->interval_s);
    }
    cairn_progress_at(ctx->bar, done);
    if (now - ctx->told_s >= 2) {
        ctx->told_s = now;
        cairn_event(ctx->events, "progress", cairn_stage_name(ctx->link.stage), ctx->link.step,
                    json_pack("{s:s?, s:s, s:I, s:I}", "eval", ctx->link.eval, "unit", unit, "done", (json_int_t)done, "total",
                              (json_int_t)total));
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

/* From the world to the commit. */
static enum cairn_status stage_try(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def, const struct args *a, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_attempt_opts ao = {0};
    struct cairn_compute compute = {0};
    char layout[64], host[300];

    TRY(cairn_world_open(&ctx->world, &(struct cairn_world_opts){.deadline_s = cairn_recipe_f64(ctx->run->recipe, "run.deadline")}, err));
    if (ctx->world->size > 1)
        TRY(cairn_fail(err, CAIRN_EUSAGE, "started with %d ranks; this stage runs in one", ctx->world->size));
    if (def->wants_device) {
        TRY(cairn_setup_compute(&compute, ctx->run->recipe, (int)a->threads, err));
        ctx->compute = &compute;
        snprintf(layout, sizeof layout, "tp1 pp1 cp1 ep1 dp1 segments%lld", (long long)cairn_recipe_i64(ctx->run->recipe, "numerics.segments"));
        TRY(cairn_manifest_set_fingerprint(ctx->manifest, compute.numerics, layout, err));
        TRY(numerics_check(ctx, err));
    }
    ao.identity = cairn_manifest_identity(ctx->manifest);
    TRY(cairn_attempt_begin(&ctx->attempt, ctx->dir, &ao, err));
    ctx->began = 1;
    event_tell(ctx, "start", NULL);
    TRY(cairn_stage_stopping(err));
    TRY(def->work(ctx, err));
    snprintf(host, sizeof host, "%s", ctx->world->host);
    json_object_set_new(ctx->manifest->info, "host", json_string(host));
    json_object_set_new(ctx->manifest->info, "wall", json_real(cairn_wall_s()));
    json_object_set_new(ctx->manifest->info, "seconds", json_real(cairn_now_s() - ctx->started_s));
    TRY(cairn_attempt_commit(ctx->attempt, ctx->manifest, err));
    event_tell(ctx, "committed", NULL);
out:
    cairn_progress_end(ctx->bar);
    ctx->bar = NULL;
    if (st != CAIRN_OK && ctx->events)
        event_tell(ctx, st == CAIRN_EAGAIN ? "stopped" : "failed", err->text);
    cairn_attempt_end(ctx->attempt);
    if (ctx->compute)
        cairn_compute_close(ctx->compute);
    cairn_world_close(ctx->world, NULL);
    return st;
}

/* We were fenced. Is it because another attempt has committed just what we would have? Then all is done. (We have made nothing to compare
 * if it committed before we began.) */
static int other_was_first(const struct cairn_stage_ctx *ctx)
{
    struct cairn_manifest_head head;

    if (!cairn_artefact_committed(ctx->dir) || cairn_manifest_head(&head, ctx->dir, NULL) != CAIRN_OK)
        return 0;
    return !ctx->began || cairn_digest_equal(head.digest, ctx->manifest->digest);
}

int cairn_stage_main(int argc, char **argv, const struct cairn_stage_def *def)
{
    struct cairn_stage_ctx ctx = {.started_s = cairn_now_s()};
    enum cairn_status st = CAIRN_OK;
    struct cairn_error err = {0};
    struct args a = {0};
    char program[32];

    snprintf(program, sizeof program, "cairn-%s", cairn_stage_name(def->stage));
    cairn_log_init(program, 0);
    cairn_signals_install();
    TRY(args_parse(&a, argc, argv, def, &err));
    if (a.done)
        return CAIRN_OK;
    cairn_log_quiet(a.quiet);
    TRY(cairn_run_open(&ctx.run, a.run, &err));
    ctx.link = (struct cairn_link){a.step, def->stage, a.eval};
    TRY(link_check(ctx.run, &ctx.link, &err));
    ctx.dir = cairn_link_path(ctx.run, &ctx.link);
    if (!ctx.dir)
        TRY(CAIRN_NOMEM(&err));
    if (cairn_artefact_committed(ctx.dir)) {
        TRY(cairn_artefact_settle(ctx.dir, &err));
    } else {
        ctx.interval_s = cairn_recipe_f64(ctx.run->recipe, "log.interval");
        TRY(cairn_link_manifest(ctx.run, &ctx.link, &ctx.manifest, &err));
        if (def->wants_graders)
            TRY(cairn_grader_process_start(&ctx.graders, NULL, &err));
        TRY(events_open(&ctx, &err));
        st = stage_try(&ctx, def, &a, &err);
        if (st == CAIRN_EFENCED && other_was_first(&ctx)) {
            cairn_info("%s: another attempt was first", ctx.dir);
            st = cairn_artefact_settle(ctx.dir, &err);
        }
        TRY(st);
    }
    if (def->after)
        TRY(def->after(ctx.run, &ctx.link, &err));
out:
    if (st != CAIRN_OK)
        fprintf(stderr, "%s: %s\n", program, err.text);
    cairn_events_close(ctx.events);
    cairn_grader_process_stop(ctx.graders);
    cairn_manifest_destroy(ctx.manifest);
    free(ctx.dir);
    cairn_run_close(ctx.run);
    return (int)st;
}

/* command.c - the command line of a stage, and the world around its link: signals, arguments, run, graders, ranks, exit code. */
#include "stages/common/stage_impl.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/signals.h"
#include "base/str.h"
#include "stages/common/graders.h"
#include "stages/common/ranks.h"
#include "stages/common/resident.h"

struct args {
    const char *run, *eval;
    int64_t step, threads, task, tasks;
    int quiet, done, resident;
    struct cairn_error *err; /* what is wrong with a word; empty where argp told it */
};

static const struct argp_option options[] = {
    {"step", 's', "N", 0, "the step", 0},
    {"eval", 'e', "NAME", 0, "an evaluation set of the recipe instead of the training prompts (rollout, score)", 0},
    {"shard", 'i', "i/n", 0,
     "array task i (from 0) of n independent ones (rollout, score): its share of the units; the last one commits", 0},
    {"resident", 'R', NULL, 0,
     "one link after the other until the run is done, beside the other roles in one MPI world (cairn run and submit start it so)",
     0},
    {"threads", 't', "T", 0, "CPU threads (default: the recipe's kernels.threads); never changes a bit", 0},
    {"quiet", 'q', NULL, 0, "no progress", 0},
    {"help", '?', NULL, 0, "this page", -1},
    {0},
};

#define TASKS_MAX   65536
#define THREADS_MAX 65536
#define DIGITS(x)   #x
#define STRING(x)   DIGITS(x)

/* "i/n" */
static int shard_parse(const char *arg, struct args *a)
{
    const char *slash = strchr(arg, '/');
    char i[32];

    if (!slash || slash - arg >= (int)sizeof i)
        return 0;
    snprintf(i, sizeof i, "%.*s", (int)(slash - arg), arg);
    return cairn_parse_i64(i, &a->task) && cairn_parse_i64(slash + 1, &a->tasks) && a->task >= 0 && a->task < a->tasks &&
           a->tasks <= TASKS_MAX;
}

static error_t bad_value(const struct args *a, const char *name, const char *arg, const char *expected)
{
    cairn_fail(a->err, CAIRN_EUSAGE, "--%s %s: expected %s (try --help)", name, arg, expected);
    return EINVAL; /* argp says nothing of its own then */
}

static error_t option(int key, char *arg, struct argp_state *state)
{
    struct args *a = state->input;

    switch (key) {
    case 's':
        if (cairn_parse_i64(arg, &a->step) && a->step >= 0 && a->step <= 999999999)
            return 0;
        return bad_value(a, "step", arg, "a step, 0 or more, 999999999 at most");
    case 'e':
        a->eval = arg;
        return 0;
    case 't':
        if (cairn_parse_i64(arg, &a->threads) && a->threads >= 0 && a->threads <= THREADS_MAX)
            return 0;
        return bad_value(a, "threads", arg, "a number of threads, 0 (the recipe's) to " STRING(THREADS_MAX));
    case 'i':
        return shard_parse(arg, a) ? 0 : bad_value(a, "shard", arg, "i/n, i from 0 to n - 1, n at most " STRING(TASKS_MAX));
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
        if (a->run) {
            cairn_fail(a->err, CAIRN_EUSAGE, "%s: one RUN at a time, and %s is one already (try --help)", arg, a->run);
            return EINVAL;
        }
        a->run = arg;
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static enum cairn_status args_parse(struct args *a, int argc, char **argv, const struct cairn_stage_def *def,
                                    struct cairn_error *err)
{
    const struct argp argp = {options, option, "RUN --step N", def->doc, NULL, NULL, NULL};

    a->step = -1;
    a->err = err;
    if (argp_parse(&argp, argc, argv, ARGP_NO_EXIT | ARGP_NO_HELP, NULL, a))
        return CAIRN_EUSAGE;
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

/* What needs no world. */
static enum cairn_status run_open(struct cairn_stage_ctx *ctx, const struct args *a, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_run_open(&ctx->run, a->run, err));
    ctx->interval_s = cairn_recipe_f64(ctx->run->recipe, "log.interval");
    if (ctx->resident) {
        if (!cairn_world_launched())
            TRY(cairn_fail(err, CAIRN_EUSAGE,
                           "--resident is for a world of all roles: cairn run and cairn submit start it (run.mode: resident)"));
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
            st = cairn_stage_follow(&ctx, def, 1, &err);
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
    if (st != CAIRN_OK && !mute && err.text[0]) /* before the world closes: a launcher may end those who come later */
        fprintf(stderr, "%s: %s\n", program, err.text);
    cairn_stage_link_end(&ctx);
    cairn_grader_process_stop(ctx.graders);
    cairn_world_close(ctx.world, NULL);
    cairn_run_close(ctx.run);
    return (int)st;
}

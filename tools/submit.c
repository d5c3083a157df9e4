/* submit.c - `cairn submit RECIPE|DIR --run DIR`: the chain as Slurm jobs.
 *
 * Makes the run if it is not there (as `cairn run` does), checks what Slurm would refuse before anything is queued, then keeps the
 * window full (slurm/submit.h). Call it again after anything: it queues what is missing and nothing else.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "ckpt/attempt.h"
#include "slurm/submit.h"
#include "stages/common/lock.h"
#include "stages/common/place.h"
#include "tools/cli.h"
#include "tools/fit.h"
#include "tools/recipe_args.h"
#include "tools/replay.h"
#include "tools/verbs.h"

#define PATIENCE_S 10.0

struct args {
    struct cairn_recipe_args recipe;
    int json, dry, extend;
};

static const struct argp_option options[] = {
    {"run", 'r', "DIR", 0, "the run directory; made if it is not there", 0},
    {"dry-run", 'n', NULL, 0, "make the run directory, print the plan and the scripts, queue nothing (needs no Slurm)", 0},
    {"extend", 'x', NULL, 0,
     "only queue the steps that have come into the window: what a job does at its end; failures are not forgiven", 0},
    {"json", 'j', NULL, 0, "print one JSON object", 0},
    {0},
};

static const struct cairn_cli_slot slots[] = {
    CAIRN_CLI_TEXT_AT('r', struct args, recipe.run),
    CAIRN_CLI_FLAG_AT('n', struct args, dry),
    CAIRN_CLI_FLAG_AT('x', struct args, extend),
    CAIRN_CLI_FLAG_AT('j', struct args, json),
    CAIRN_CLI_RECIPE_AT(struct args, recipe),
    {0},
};

static const struct argp argp = {
    options,
    NULL,
    "RECIPE|DIR --run DIR [key=value ...]",
    "Queues a run as Slurm jobs: a window of steps, further ones as these end (slurm.window, slurm.extend). Call it again "
    "after anything, or after a change of slurm keys: it queues what is missing, and failures before are forgiven.\v"
    "Examples:\n  cairn submit recipes/tiny.yaml --run /scratch/tiny slurm.partition=gpu\n  cairn submit /scratch/tiny",
    NULL,
    NULL,
    NULL};

/* Has the run its base? One that was only planned has none. */
static int is_begun(const char *dir)
{
    char *base = cairn_path_join(dir, "base");
    int is = base && cairn_artefact_committed(base);

    free(base);
    return is;
}

/* Opens or makes the run, ops keys taken over; the directory's lock keeps `cairn run` and another submit off meanwhile. */
static enum cairn_status run_make(const struct args *a, struct cairn_run **run, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_recipe *recipe = NULL;
    struct cairn_place place = {0};
    const char *dir;
    char *file = NULL;

    TRY(cairn_recipe_args_where(&a->recipe, &dir, &file, err));
    if (cairn_run_there(a->recipe.recipe) && !a->recipe.overrides && (a->dry || is_begun(dir))) {
        TRY(cairn_run_open(run, dir, err));
        goto out;
    }
    TRY(cairn_run_recipe_wrong(file, cairn_recipe_load(&recipe, file, a->recipe.overrides, a->recipe.override, err), err));
    if (!a->dry && !is_begun(dir))
        TRY(cairn_fit_build(recipe, err));
    TRY(cairn_place_take(&place, dir, 100, err)); /* another submit is through in a moment; a cairn run is not */
    /* A plan needs no weights: of a model of hundreds of gigabytes none are made for it. */
    TRY(a->dry ? cairn_run_draft(run, dir, recipe, err) : cairn_run_init(run, dir, recipe, err));
    recipe = NULL;
out:
    cairn_place_leave(&place);
    cairn_recipe_free(recipe);
    free(file);
    return st;
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

static void report_print(const json_t *report, int dry)
{
    const json_t *jobs = json_object_get(report, "jobs");
    size_t i, k, done = 0, shown = 0;
    json_t *row, *parent;

    json_array_foreach(jobs, i, row)
    {
        int64_t tasks = json_integer_value(json_object_get(row, "tasks"));

        if (!strcmp(text_of(row, "state"), "done")) {
            done++;
            continue;
        }
        shown++;
        printf("  %-8s", text_of(row, "state"));
        if (!dry)
            printf(" %8lld", (long long)json_integer_value(json_object_get(row, "job")));
        printf("  %s", text_of(row, "name"));
        if (tasks > 1)
            printf(" [0-%lld]", (long long)(tasks - 1));
        json_array_foreach(json_object_get(row, "after"), k, parent)
            printf("%s%s", k ? ", " : "  after ", json_string_value(parent));
        if (text_of(row, "why")[0] && strcmp(text_of(row, "why"), "None"))
            printf("  (%s)", text_of(row, "why"));
        putchar('\n');
    }
    if (!shown)
        printf("%s: nothing is left to queue\n", text_of(report, "run"));
    else if (done)
        printf("  %zu jobs of these steps are done\n", done);
}

int cairn_verb_submit(int argc, char **argv)
{
    struct cairn_error err = {0};
    enum cairn_status st = CAIRN_OK;
    struct args a = {0};
    struct cairn_run *run = NULL;
    struct cairn_str scripts = {0};
    json_t *report = NULL;
    char holder[400];
    int done, usage = cairn_cli_read(&argp, slots, argc, argv, &a, &done);

    if (usage || done || (usage = cairn_recipe_args_lacking(&a.recipe, "submit")))
        return usage;
    cairn_signals_install();
    cairn_log_quiet(a.json);
    TRY(run_make(&a, &run, &err));
    TRY(cairn_replay_origin_check(run, &err));
    if (cairn_lock_held(run->dir, holder, sizeof holder))
        TRY(cairn_fail(&err, CAIRN_EAGAIN, "%s: cairn run is at work here (%s); queue it when that has ended", run->dir, holder));
    {
        struct cairn_submit_opts o = {
            .by = a.extend ? "extend" : "user", .dry_run = a.dry, .patience_s = PATIENCE_S, .scripts = &scripts};

        st = cairn_submit(run, &o, &report, &err);
    }
    if (report && a.dry)
        json_object_set_new(report, "scripts", json_string(cairn_str_z(&scripts)));
    if (report && a.json)
        cairn_cli_json(json_incref(report), NULL);
    else if (report) {
        report_print(report, a.dry);
        if (a.dry)
            printf("\n%s", cairn_str_z(&scripts));
    }
    TRY(st);
    TRY(cairn_cli_flush(&err));
out:
    json_decref(report);
    cairn_str_free(&scripts);
    cairn_run_close(run);
    return st == CAIRN_OK ? 0 : cairn_cli_fail("submit", &err);
}

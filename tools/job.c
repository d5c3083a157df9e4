/* job.c - `cairn job DIR --step N --group NAME`: what stands in a job's script. People call `cairn submit`. */
#include <stdlib.h>

#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"
#include "slurm/job.h"
#include "slurm/preflight.h"
#include "tools/cli.h"
#include "tools/verbs.h"

struct args {
    const char *dir, *group;
    int64_t step;
    int preflight;
};

static const struct argp_option options[] = {
    {"step", 's', "N", 0, "the step", 0},
    {"group", 'g', "NAME", 0, "the stages, as in slurm.jobs, with '-' between them; or eval", 0},
    {"preflight", 'p', NULL, 0, "only say whether this node is fit, as one JSON object", 0},
    {0},
};

static const struct cairn_cli_slot slots[] = {
    CAIRN_CLI_STEP_AT('s', struct args, step, "step"),
    CAIRN_CLI_TEXT_AT('g', struct args, group),
    CAIRN_CLI_FLAG_AT('p', struct args, preflight),
    CAIRN_CLI_TEXT_AT(ARGP_KEY_ARG, struct args, dir),
    {0},
};

static const struct argp argp = {
    options,
    NULL,
    "DIR --step N --group NAME",
    "What a Slurm job of a run does: its stages one after another under srun, each asked for before and after. "
    "Job scripts call it; people call cairn submit.\v"
    "Examples:\n  cairn job /tmp/tiny --step 3 --group rollout\n  cairn job /tmp/tiny --preflight",
    NULL,
    NULL,
    NULL};

int cairn_verb_job(int argc, char **argv)
{
    struct cairn_error err = {0};
    enum cairn_status st = CAIRN_OK;
    struct args a = {.step = -1};
    struct cairn_run *run = NULL;
    int done, code = 0, usage = cairn_cli_read(&argp, slots, argc, argv, &a, &done);

    if (usage || done)
        return usage;
    if (!a.dir || (!a.preflight && (a.step < 0 || !a.group)))
        return cairn_cli_usage("job", "%s is missing", !a.dir ? "DIR" : a.step < 0 ? "--step N" : "--group NAME");
    cairn_signals_install();
    TRY(cairn_run_open(&run, a.dir, &err));
    if (a.preflight) {
        TRY(cairn_cli_json(cairn_preflight_node(run, 1), &err));
        TRY(cairn_cli_flush(&err));
    } else {
        cairn_run_at(run, a.step);
        code = cairn_job_main(run, a.step, a.group);
    }
out:
    cairn_run_close(run);
    return st == CAIRN_OK ? code : cairn_cli_fail("job", &err);
}

/* stop.c - `cairn stop DIR`: takes a run's jobs out of Slurm's queue. What is committed stays; `cairn submit` goes on. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/signals.h"
#include "slurm/ledger.h"
#include "slurm/queue.h"
#include "slurm/submit.h"
#include "stages/common/lock.h"
#include "tools/cli.h"
#include "tools/verbs.h"

#define PATIENCE_S 10.0

struct args {
    const char *dir;
    int json, wait;
};

static const struct argp_option options[] = {
    {"wait", 'w', NULL, 0, "return when the jobs are gone", 0},
    {"json", 'j', NULL, 0, "print one JSON object", 0},
    {0},
};

static const struct cairn_cli_slot slots[] = {
    CAIRN_CLI_FLAG_AT('j', struct args, json),
    CAIRN_CLI_FLAG_AT('w', struct args, wait),
    CAIRN_CLI_TEXT_AT(ARGP_KEY_ARG, struct args, dir),
    {0},
};

static const struct argp argp = {
    options,
    NULL,
    "DIR",
    "Cancels what is queued or running for a run. Running stages hear SIGTERM, finish their unit and keep it; "
    "cairn submit DIR goes on from there.\v"
    "Examples:\n  cairn stop /tmp/tiny\n  cairn stop /tmp/tiny --wait",
    NULL,
    NULL,
    NULL};

/* 1: its record has a job that was queued. In doubt: 1. */
static int was_queued(const struct cairn_run *run)
{
    json_t *events = NULL, *e;
    int queued = 0;
    size_t i;

    if (cairn_ledger_read(run, &events, NULL) != CAIRN_OK)
        return 1;
    json_array_foreach(events, i, e)
    {
        const char *ev = json_string_value(json_object_get(e, "ev"));

        queued |= ev && !strcmp(ev, "queued");
    }
    json_decref(events);
    return queued;
}

int cairn_verb_stop(int argc, char **argv)
{
    struct cairn_error err = {0};
    enum cairn_status st = CAIRN_OK;
    struct args a = {0};
    struct cairn_run *run = NULL;
    struct cairn_queue queue = {0};
    char prefix[80], holder[300];
    int n = 0, queued, done, usage = cairn_cli_read(&argp, slots, argc, argv, &a, &done);

    if (usage || done)
        return usage;
    if (!a.dir)
        return cairn_cli_usage("stop", "DIR is missing");
    cairn_signals_install();
    TRY(cairn_run_open(&run, a.dir, &err));
    queued = was_queued(run);
    if (!queued && cairn_lock_held(run->dir, holder, sizeof holder))
        TRY(cairn_fail(&err, CAIRN_EUSAGE, "%s: no Slurm job was queued for this run; a cairn run is at work on it (%s): Ctrl-C there or "
                       "SIGTERM stops it", run->dir, holder));
    if (queued)
        cairn_ledger_tell(run, "stop", NULL, NULL);
    st = cairn_submit_cancel(run, NULL, PATIENCE_S, &n, &err);
    if (!queued && n) /* a run that Slurm never saw gets no record of it, which others would read as a sign that it did */
        cairn_ledger_tell(run, "stop", NULL, NULL);
    if ((st == CAIRN_EAGAIN || st == CAIRN_EDEVICE) && !queued) /* no Slurm, and nothing of ours in one */
        a.wait = 0;
    else
        TRY(st);
    st = CAIRN_OK;
    cairn_job_prefix(run, prefix, sizeof prefix);
    while (a.wait && !cairn_stop_requested()) {
        TRY(cairn_queue_read(&queue, prefix, PATIENCE_S, &err));
        if (!queue.n)
            break;
        cairn_queue_free(&queue);
        cairn_sleep_s(0.3);
    }
    if (a.json)
        TRY(cairn_cli_json(json_pack("{s:s, s:i}", "run", run->dir, "cancelled", n), &err));
    else
        printf("%s: %d jobs cancelled%s%s\n", run->dir, n, n ? "; to go on: cairn submit " : queued ? "" : ", none was ever queued",
               n ? run->dir : "");
    TRY(cairn_cli_flush(&err));
out:
    cairn_queue_free(&queue);
    cairn_run_close(run);
    return st == CAIRN_OK ? 0 : cairn_cli_fail("stop", &err);
}

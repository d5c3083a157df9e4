/* sbatch.c - calls of sbatch, scontrol and scancel (sbatch.h). */
#include "slurm/sbatch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/str.h"
#include "slurm/command.h"

#define SBATCH_S 40.0 /* sbatch waits by itself when the controller is full */

struct complaint {
    const char *says;       /* part of sbatch's message */
    enum cairn_status code; /* CAIRN_OK: the dependency is gone; try without */
    const char *key;        /* of the slurm section that asks for it, or NULL */
    const char *advice;
};

static const struct complaint complaints[] = {
    {"dependency", CAIRN_OK, NULL, ""},
    {"account", CAIRN_ERECIPE, "account", "sacctmgr show assoc user=$USER"},
    {"partition", CAIRN_ERECIPE, "partition", "sinfo -s lists the partitions"},
    {"qos", CAIRN_ERECIPE, "qos", "it may not exist or have a limit: sacctmgr show qos, squeue --me"},
    {"gres", CAIRN_ERECIPE, "gres", "sinfo -o '%P %G' shows what nodes have"},
    {"node configuration", CAIRN_ERECIPE, "nodes", "no node fits: sinfo -o '%P %D %c %m %G'"},
    {"node count", CAIRN_ERECIPE, "nodes", "no partition has so many nodes: sinfo -s"},
    {"time limit", CAIRN_ERECIPE, "time", "longer than the partition allows? sinfo -o '%P %l'"},
    {"feature", CAIRN_ERECIPE, "constraint", "sinfo -o '%P %f'"},
    {"unrecognized option", CAIRN_ERECIPE, NULL, "slurm.extra"},
    {"invalid", CAIRN_ERECIPE, NULL, ""},
};

/* "Job violates ... submit limit", MaxJobCount: nothing is wrong, there is no room. */
static int is_full(const char *says)
{
    static const char *const words[] = {"submit limit", "MaxSubmit", "violates accounting", "temporarily unable",
                                        "Slurm controller is at its job"};

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasestr(says, words[i]))
            return 1;
    return 0;
}

/* 1 in *no_parent and CAIRN_OK: only its dependency is gone. */
static enum cairn_status refuse(const struct cairn_run *run, const struct cairn_job *job, const char *says, int *no_parent,
                                struct cairn_error *err)
{
    char asked[160] = "";

    for (size_t i = 0; i < sizeof complaints / sizeof *complaints; i++)
        if (strcasestr(says, complaints[i].says)) {
            if (complaints[i].code == CAIRN_OK) {
                *no_parent = 1;
                return CAIRN_OK;
            }
            if (complaints[i].key) {
                const json_t *v = cairn_job_value(run, job, complaints[i].key);

                if (json_is_string(v))
                    snprintf(asked, sizeof asked, "slurm.%s is \"%.100s\"; ", complaints[i].key, json_string_value(v));
                else if (v)
                    snprintf(asked, sizeof asked, "slurm.*.%s is %lld; ", complaints[i].key, (long long)json_integer_value(v));
            }
            return cairn_fail(err, complaints[i].code, "Slurm refuses the job %s: %s (%s%s)", job->name, says, asked,
                              complaints[i].advice);
        }
    return cairn_fail(err, CAIRN_EAGAIN, "sbatch did not take the job %s: %s", job->name, says);
}

enum cairn_status cairn_sbatch(struct cairn_sbatch_end *end, const struct cairn_run *run, const struct cairn_job *job,
                               const char *script, const char *dependency, int test, double patience_s, struct cairn_error *err)
{
    double until = cairn_now_s() + patience_s;
    const char *argv[8];
    struct cairn_command c = {0};
    enum cairn_status st = CAIRN_OK;
    char *option = NULL;
    int n = 0;

    *end = (struct cairn_sbatch_end){0};
    argv[n++] = "sbatch";
    argv[n++] = test ? "--test-only" : "--parsable";
    if (dependency && !(option = cairn_format("--dependency=%s", dependency)))
        TRY(CAIRN_NOMEM(err));
    if (option)
        argv[n++] = option;
    argv[n] = NULL;
    for (;;) {
        const char *says;

        TRY(cairn_command_run(&c, argv, script, SBATCH_S, err));
        if (c.code == 0) {
            char number[32];

            snprintf(number, sizeof number, "%.*s", (int)strcspn(cairn_str_z(&c.out), ";\n"), cairn_str_z(&c.out));
            if (!test && !cairn_parse_i64(number, &end->id))
                TRY(cairn_fail(err, CAIRN_EAGAIN, "sbatch answered \"%s\" for the job %s", number, job->name));
            goto out;
        }
        if (c.code == 127)
            TRY(cairn_fail(err, CAIRN_EDEVICE,
                           "sbatch is not in the PATH: no Slurm on this machine (or its module is not loaded)"));
        if (c.late || is_full(cairn_str_z(&c.err))) {
            end->full = 1;
            goto out;
        }
        says = cairn_command_says(&c);
        if (!strcasestr(says, "contact") && !strcasestr(says, "socket") && !strcasestr(says, "timed out") &&
            !strcasestr(says, "communication")) {
            TRY(refuse(run, job, says, &end->no_parent, err));
            goto out;
        }
        if (cairn_now_s() > until)
            TRY(cairn_fail(err, CAIRN_EAGAIN, "Slurm does not answer (sbatch: %s)", says));
        cairn_command_free(&c);
        cairn_sleep_s(0.5); /* a controller that restarts */
    }
out:
    cairn_command_free(&c);
    free(option);
    return st;
}

enum cairn_status cairn_scontrol(const char *verb, const char *a, const char *b, double patience_s, struct cairn_error *err)
{
    const char *argv[] = {"scontrol", verb, a, b, NULL};
    double until = cairn_now_s() + patience_s;
    enum cairn_status st;

    for (;;) {
        struct cairn_command c;

        if ((st = cairn_command_run(&c, argv, NULL, 20, err)) != CAIRN_OK)
            return st;
        if (c.code)
            st = cairn_fail(err, CAIRN_EAGAIN, "scontrol %s %s: %s", verb, a, cairn_command_says(&c));
        cairn_command_free(&c);
        if (st == CAIRN_OK || cairn_now_s() > until)
            return st;
        cairn_sleep_s(0.5);
    }
}

enum cairn_status cairn_scancel(const char *id, struct cairn_error *err)
{
    const char *argv[] = {"scancel", id, NULL};
    struct cairn_command c;
    enum cairn_status st = cairn_command_run(&c, argv, NULL, 20, err);

    if (st != CAIRN_OK)
        return st;
    if (c.code)
        st = cairn_fail(err, CAIRN_EAGAIN, "scancel %s: %s", id, cairn_command_says(&c));
    cairn_command_free(&c);
    return st;
}

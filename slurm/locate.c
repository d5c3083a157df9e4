/* locate.c - trainer and sampler disagreed in the midst of a run (76): the gate looks, on this job's own node, where. See work.h. */
#include "slurm/work.h"

#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "base/build.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "slurm/command.h"

#define LOOK_S 1800.0 /* a gate that takes longer names nothing; the job's own time ends it sooner */

const char *cairn_work_locate(const struct cairn_work *w, const char *said, char *text, size_t n)
{
    const char *install = cairn_install_dir();
    char *program = install ? cairn_path_join(install, "bin/cairn") : NULL;
    const char *argv[] = {"srun",  "--nodes=1", "--ntasks=1", "--mpi=none", "--input=none", program,
                          "check", w->run->dir, "--legs",     "1-5",        "--json",       NULL};
    double left = w->stop_at_s > 0 ? w->stop_at_s - cairn_now_s() : LOOK_S;
    struct cairn_error err = {0};
    json_t *report = NULL;
    const char *finding;
    struct cairn_command c;

    if (!program || cairn_stop_requested() || left < 1)
        goto out;
    cairn_info("%s; the gate looks where", said);
    if (cairn_command_run(&c, argv, NULL, left < LOOK_S ? left : LOOK_S, &err) != CAIRN_OK) {
        cairn_warn("the gate could not look where: %s", err.text);
        goto out;
    }
    report = json_loads(cairn_str_z(&c.out), 0, NULL); /* on stderr srun says things, too */
    finding = json_string_value(json_object_get(report, "finding"));
    if (finding)
        snprintf(text, n, "%.200s; the gate: %.400s", said, finding);
    else if (json_is_true(json_object_get(report, "holds")))
        snprintf(text, n, "%.300s; the gate finds trainer and sampler equal here and now: look at what made the rollout", said);
    else
        cairn_warn("the gate could not look where: it ended with %d: %s", c.code, cairn_command_says(&c));
    if (finding || json_is_true(json_object_get(report, "holds")))
        said = text;
    json_decref(report);
    cairn_command_free(&c);
out:
    free(program);
    return said;
}

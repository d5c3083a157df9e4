/* swaps.c - see flips.h: whole files that are not what they should be (F12-F14). */
#include "tests/faults/flips.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "ckpt/verify.h"

static const struct swap {
    const char *what;
    const char *script; /* sh, in the run directory */
    const char *names;  /* what a told path or sentence holds */
} swaps[] = {
    {"two shards of an artefact swapped",
     "cd step/000002/rollout/a1 && mv unit-000000.h5 x && mv unit-000001.h5 unit-000000.h5 && mv x unit-000001.h5",
     "step/000002/rollout/a1/unit-00000"},
    {"two shards and their entries swapped",
     "cd step/000002/rollout/a1 && for e in h5 json; do mv unit-000000.$e x && mv unit-000001.$e unit-000000.$e && mv x unit-000001.$e; done",
     "step/000002/rollout/a1/unit-00000"},
    {"a shard of an older generation under the new name", "cp policy/000001/a1/weights-00000.h5 policy/000002/a1/weights-00000.h5",
     "policy/000002/a1/weights-00000.h5"},
    {"a shard that is missing", "rm step/000002/score/a1/unit-000001.h5", "step/000002/score/a1/unit-000001.h5"},
    {"a shard that is a link", "cd policy/000002/a1 && mv weights-00000.h5 ../../w && ln -s ../../w weights-00000.h5",
     "policy/000002/a1/weights-00000.h5"},
    {"a shard that is a pipe", "cd policy/000002/a1 && rm weights-00000.h5 && mkfifo weights-00000.h5", "policy/000002/a1/weights-00000.h5"},
    {"a shard that is a directory", "cd policy/000002/a1 && rm weights-00000.h5 && mkdir weights-00000.h5", "policy/000002/a1/weights-00000.h5"},
    {"a generation under another's name", "rm -r policy/000002 && cp -r policy/000001 policy/000002", "policy/000002"},
    {"a rollout of another step", "rm -r step/000002/rollout && cp -r step/000001/rollout step/000002/rollout", "step/000002/rollout"},
    {"a manifest of an older generation", "cp policy/000001/MANIFEST.json policy/000002/MANIFEST.json", "policy/000002"},
    {"all shards of an artefact gone", "rm -r step/000002/train/a1", "step/000002/train/a1/"},
};
#define SWAPS ((int)(sizeof swaps / sizeof *swaps))

struct swap_told {
    const char *part;
    int named;
    char first[400];
};

static void swap_bad(void *arg, const char *path, const char *text)
{
    struct swap_told *t = arg;

    t->named |= strstr(path, t->part) || strstr(text, t->part);
    if (!t->first[0])
        snprintf(t->first, sizeof t->first, "%.399s", text);
}

static int swap_trial(void *arg, long i, const char *box, char *why)
{
    const struct flips *f = arg;
    struct swap_told t = {.part = swaps[i].names};
    struct cairn_verify_opts o = {.deep = 1, .bad = swap_bad, .arg = &t};
    struct cairn_verify_counts c = {0};
    struct cairn_error err = {0};
    char run[600], *cmd;
    enum cairn_status st;

    snprintf(run, sizeof run, "%s/run", box);
    lab_copy(f->lab->before[f->lab->nlinks], run);
    cmd = cairn_format("cd '%s' && %s", run, swaps[i].script);
    if (system(cmd))
        lab_die("%s failed", cmd);
    free(cmd);
    st = cairn_verify_tree(run, &o, &c, &err);
    if (st != CAIRN_EDATA || !t.named) {
        snprintf(why, WHY_BYTES, "verify ended with %d and says: %.400s", st, t.first);
        return 1;
    }
    return 0;
}

static void swap_name(void *arg, long i, char *out, size_t n)
{
    (void)arg;
    snprintf(out, n, "%s", swaps[i].what);
}

long flips_swaps(const struct flips *f, int *ways)
{
    struct lab_counts s = lab_pool_run(f->lab, &(struct lab_pool){f->o->jobs, SWAPS, swap_trial, swap_name, (void *)(uintptr_t)f}, "flips/swaps");

    tap(!s.violated, "swaps: %d ways of having the wrong file, %ld violations", SWAPS, s.violated);
    *ways = SWAPS;
    return s.violated;
}

/* verify.c - `cairn verify DIR`: holds every manifest and every shard below DIR against its size and digest; names each bad file. */
#include <stdio.h>

#include "base/log.h"
#include "base/signals.h"
#include "ckpt/verify.h"
#include "base/file.h"
#include "tools/cli.h"
#include "tools/verbs.h"

struct args {
    const char *dir;
    int deep, json;
    struct cairn_progress *progress;
    int64_t bytes;
    json_t *bad;
};

static const struct argp_option options[] = {
    {"deep", 'd', NULL, 0, "also recompute each tensor's logical digest, open each HDF5 file, follow the lineage", 0},
    {"json", 'j', NULL, 0, "print one JSON object", 0},
    {0},
};

static error_t option(int key, char *arg, struct argp_state *state)
{
    struct args *a = state->input;

    if (key == 'd')
        a->deep = 1;
    else if (key == 'j')
        a->json = 1;
    else if (key == ARGP_KEY_ARG && !a->dir)
        a->dir = arg;
    else
        return ARGP_ERR_UNKNOWN;
    return 0;
}

static const struct argp argp = {options, option, "DIR",
                                 "Reads every manifest and every shard of a run or checkpoint and compares size and digest over all bytes. "
                                 "Names each bad file on stdout; exit code 65 if there is any.\v"
                                 "Examples:\n  cairn verify /tmp/tiny\n  cairn verify --deep /tmp/tiny/policy/000020",
                                 NULL, NULL, NULL};

static void bad(void *arg, const char *path, const char *text)
{
    struct args *a = arg;

    if (a->json)
        json_array_append_new(a->bad, json_pack("{s:s, s:s}", "path", path, "why", text));
    else
        printf("bad: %s: %s\n", path, text);
}

static void progress(void *arg, const char *path, int64_t bytes)
{
    struct args *a = arg;

    (void)path;
    a->bytes += bytes;
    cairn_progress_at(a->progress, a->bytes >> 20);
}

int cairn_verb_verify(int argc, char **argv)
{
    struct cairn_error err = {0}, lost = {0};
    enum cairn_status st = CAIRN_OK;
    struct args a = {0};
    struct cairn_verify_counts c = {0};
    struct cairn_verify_opts o = {.bad = bad, .done = progress, .arg = &a};
    int done, usage = cairn_cli_parse(&argp, argc, argv, &a, &done);

    if (usage || done)
        return usage;
    if (!a.dir)
        return cairn_cli_usage("verify", "DIR is missing");
    if (!cairn_path_is_dir(a.dir)) {
        st = cairn_fail(&err, CAIRN_ENOINPUT, "%s: no such directory", a.dir);
        return cairn_cli_fail("verify", &err);
    }
    cairn_signals_install();
    a.bad = json_array();
    o.deep = a.deep;
    a.progress = cairn_progress_begin("verify", "MiB", 0, 10);
    st = cairn_verify_tree(a.dir, &o, &c, &err);
    cairn_progress_end(a.progress);
    if (st == CAIRN_OK && c.artefacts == 0)
        st = cairn_fail(&err, CAIRN_ENOINPUT, "%s: nothing committed below it", a.dir);
    if (a.json)
        cairn_cli_json(json_pack("{s:I, s:I, s:I, s:I, s:I, s:O}", "artefacts", (json_int_t)c.artefacts, "collected",
                                 (json_int_t)c.collected, "shards", (json_int_t)c.shards, "tensors", (json_int_t)c.tensors, "bytes",
                                 (json_int_t)c.bytes, "bad", a.bad),
                       &lost);
    else
        printf("%lld artefacts, %lld shards, %lld tensors, %lld bytes: %lld bad\n", (long long)c.artefacts, (long long)c.shards,
               (long long)c.tensors, (long long)c.bytes, (long long)c.bad);
    json_decref(a.bad);
    if (cairn_cli_flush(&lost) != CAIRN_OK && st == CAIRN_OK) {
        st = lost.code;
        err = lost;
    }
    return st == CAIRN_OK ? 0 : cairn_cli_fail("verify", &err);
}

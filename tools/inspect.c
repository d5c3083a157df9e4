/* inspect.c - `cairn inspect PATH`: what is in a checkpoint, rollout, score or run. Changes nothing.
 *
 * Decides which page (inspect.h) is asked for: a directory with a run.json is a run, one with a MANIFEST.json an artefact; of any other
 * directory the artefacts below it are listed.
 */
#include "tools/inspect.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/verify.h"
#include "tools/cli.h"
#include "tools/verbs.h"

#define MAX_PATHS 64

struct args {
    const char *path[MAX_PATHS], *tensor;
    int64_t rollout; /* -1: none */
    int paths, json;
};

static const struct argp_option options[] = {
    {"tensor", 't', "NAME", 0, "one tensor of a checkpoint: range, mean, first values", 0},
    {"rollout", 'k', "K", 0, "rollout number K (from 0) with its text", 0},
    {"json", 'j', NULL, 0, "print one JSON object", 0},
    {0},
};

static error_t option(int key, char *arg, struct argp_state *state)
{
    struct args *a = state->input;

    switch (key) {
    case 't':
        a->tensor = arg;
        return 0;
    case 'k':
        if (!cairn_parse_i64(arg, &a->rollout) || a->rollout < 0) {
            argp_error(state, "--rollout %s: a number from 0 is wanted", arg);
            return EINVAL;
        }
        return 0;
    case 'j':
        a->json = 1;
        return 0;
    case ARGP_KEY_ARG:
        if (a->paths == MAX_PATHS)
            return ARGP_ERR_UNKNOWN;
        a->path[a->paths++] = arg;
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {
    options, option, "PATH...",
    "Shows what is in a run, or in a checkpoint, rollout or score: shapes, dtypes, lineage. Of a run: what its evaluations said before and "
    "after; several runs of one recipe: the means.\v"
    "Examples:\n  cairn inspect /tmp/tiny\n  cairn inspect /tmp/tiny/step/000001/rollout --rollout 3",
    NULL, NULL, NULL};

char *cairn_inspect_root(const char *path)
{
    char *dir = strdup(path);

    while (dir) {
        char *up = NULL;

        if (cairn_run_there(dir))
            return dir;
        if (strcmp(dir, "/"))
            up = cairn_path_dirname(dir);
        free(dir);
        dir = up;
    }
    return NULL;
}

struct listing {
    struct cairn_str *out;
    json_t *rows;
};

static enum cairn_status list_one(void *arg, const struct cairn_artefact *a, struct cairn_error *err)
{
    struct listing *l = arg;
    struct cairn_manifest_head head;
    enum cairn_status st = CAIRN_OK;
    char hex[33];

    TRY(cairn_manifest_head(&head, a->dir, err));
    cairn_digest_hex(head.digest, hex);
    if (l->rows) {
        if (json_array_append_new(l->rows, json_pack("{s:s, s:s, s:I, s:s, s:b}", "path", a->path, "kind", head.kind, "step",
                                                     (json_int_t)head.step, "digest", hex, "collected", a->collected)))
            st = CAIRN_NOMEM(err);
    } else {
        cairn_str_printf(l->out, "  %-40s %-8s step %-6lld %s%s\n", a->path, head.kind, (long long)head.step, hex,
                         a->collected ? "  (collected)" : "");
    }
out:
    return st;
}

/* A directory that is neither: what lies below it. */
static enum cairn_status list_below(const char *dir, struct cairn_str *out, json_t **json, struct cairn_error *err)
{
    struct listing l = {out, json ? json_array() : NULL};
    size_t before = out ? out->len : 0;
    enum cairn_status st = cairn_artefact_walk(dir, list_one, &l, err);

    if (st == CAIRN_OK && (json ? json_array_size(l.rows) == 0 : out->len == before))
        st = cairn_fail(err, CAIRN_ENOINPUT, "%s: no run, and nothing committed in it or below it", dir);
    if (st == CAIRN_OK && json)
        *json = json_pack("{s:s, s:o}", "path", dir, "artefacts", l.rows);
    else
        json_decref(l.rows);
    return st;
}

static enum cairn_status one(const struct args *a, const char *given, struct cairn_str *out, json_t **json, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_run *run = NULL;
    char *path = realpath(given, NULL), *root = NULL;

    if (!path)
        TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s: %s", given, strerror(errno)));
    if (!cairn_path_is_dir(path))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s is no directory; name the checkpoint, rollout, score or run that holds it", given));
    if (cairn_artefact_committed(path)) {
        root = cairn_inspect_root(path);
        if (a->tensor)
            TRY(cairn_inspect_tensor(path, a->tensor, out, json, err));
        else if (a->rollout >= 0)
            TRY(cairn_inspect_rollout(path, root, a->rollout, out, json, err));
        else
            TRY(cairn_inspect_artefact(path, root, out, json, err));
    } else if (a->tensor || a->rollout >= 0) {
        TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s: no committed artefact; %s wants one, such as %s", given, a->tensor ? "--tensor" : "--rollout",
                       a->tensor ? "RUN/policy/000000" : "RUN/step/000001/rollout"));
    } else if (cairn_run_there(path)) {
        TRY(cairn_run_open(&run, path, err));
        TRY(cairn_inspect_runs(&run, 1, out, json, err));
    } else {
        TRY(list_below(path, out, json, err));
    }
out:
    cairn_run_close(run);
    free(path);
    free(root);
    return st;
}

static enum cairn_status several(const struct args *a, struct cairn_str *out, struct cairn_error *err)
{
    struct cairn_run *runs[MAX_PATHS] = {NULL};
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < a->paths; i++)
        TRY(cairn_run_open(&runs[i], a->path[i], err));
    TRY(cairn_inspect_runs(runs, a->paths, out, NULL, err));
out:
    for (int i = 0; i < a->paths; i++)
        cairn_run_close(runs[i]);
    return st;
}

int cairn_verb_inspect(int argc, char **argv)
{
    struct cairn_error err = {0};
    enum cairn_status st = CAIRN_OK;
    struct args a = {.rollout = -1};
    struct cairn_str out = {0};
    json_t *json = NULL;
    int done, usage = cairn_cli_parse(&argp, argc, argv, &a, &done);

    if (usage || done)
        return usage;
    if (!a.paths)
        return cairn_cli_usage("inspect", "PATH is missing");
    if (a.tensor && a.rollout >= 0)
        return cairn_cli_usage("inspect", "--tensor or --rollout, not both");
    if (a.paths > 1 && (a.json || a.tensor || a.rollout >= 0))
        return cairn_cli_usage("inspect", "several paths are for runs, without other options");
    if (a.paths > 1)
        TRY(several(&a, &out, &err));
    else
        TRY(one(&a, a.path[0], a.json ? NULL : &out, a.json ? &json : NULL, &err));
    if (a.json)
        TRY(cairn_cli_json(json, &err));
    if (out.oom)
        TRY(CAIRN_NOMEM(&err));
    fwrite(cairn_str_z(&out), 1, out.len, stdout);
    TRY(cairn_cli_flush(&err));
out:
    cairn_str_free(&out);
    return st == CAIRN_OK ? 0 : cairn_cli_fail("inspect", &err);
}

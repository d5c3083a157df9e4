/* amend.c - `cairn amend DIR key=value ... --from-step N`: a science or layout key of a run changes from a step on, on the record. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/signals.h"
#include "stages/common/amend.h"
#include "stages/common/lock.h"
#include "tools/cli.h"
#include "tools/verbs.h"

#define SETS 256

struct args {
    const char *dir, *set[SETS];
    int sets, json, dry;
    int64_t from;
};

static const struct argp_option options[] = {
    {"from-step", 'f', "N", 0, "the first step that sees the new values", 0},
    {"dry-run", 'n', NULL, 0, "say what would change and write nothing", 0},
    {"json", 'j', NULL, 0, "print one JSON object", 0},
    {0},
};

static const struct cairn_cli_slot slots[] = {
    CAIRN_CLI_STEP_AT('f', struct args, from, "from-step"),
    CAIRN_CLI_FLAG_AT('n', struct args, dry),
    CAIRN_CLI_FLAG_AT('j', struct args, json),
    CAIRN_CLI_TEXT_AT(ARGP_KEY_ARG, struct args, dir),
    {0},
};

static error_t option(int key, char *arg, struct argp_state *state)
{
    struct args *a = state->input;

    if (key == ARGP_KEY_ARG && a->dir && a->sets < SETS) {
        a->set[a->sets++] = arg;
        return 0;
    }
    return cairn_cli_take(slots, key, arg, state);
}

static const struct argp argp = {
    options, option, "DIR key=value ... --from-step N",
    "Changes science or layout keys of a run from step N on. The change is written as a numbered amendment beside DIR/recipe.yaml; steps "
    "before N, and all that is committed, stay as they are. The same call again changes nothing.\v"
    "Keys of the class ops (steps, checkpoint, log, slurm, tasks) need no amendment: they may change at any cairn run.\n\n"
    "Examples:\n  cairn amend /tmp/tiny train.learning_rate=5e-4 --from-step 21\n"
    "  cairn amend /tmp/tiny score.overlong.factor=0.5 rollout.samples=32 \\\n"
    "      --from-step 30 --dry-run",
    NULL, NULL, NULL};

/* "key: old -> new (class)" lines as an array. */
static json_t *lines_json(const char *text)
{
    json_t *list = json_array();

    while (list && *text) {
        size_t n = strcspn(text, "\n");

        json_array_append_new(list, json_stringn(text, n));
        text += n + (text[n] == '\n');
    }
    return list;
}

static enum cairn_status tell(const struct cairn_run *run, const struct args *a, int number, const struct cairn_str *diff, struct cairn_error *err)
{
    char hex[33];

    cairn_digest_hex(cairn_run_hash(run, a->from), hex);
    if (a->json)
        return cairn_cli_json(json_pack("{s:s, s:I, s:i, s:b, s:o, s:s}", "run", run->dir, "from_step", (json_int_t)a->from, "number", number,
                                        "dry_run", a->dry, "changes", lines_json(cairn_str_z(diff)), "recipe", hex),
                              err);
    if (!number) {
        printf("%s: step %lld sees these values already; nothing to amend\n", run->dir, (long long)a->from);
        return CAIRN_OK;
    }
    printf("%s: amendment %d, from step %lld on%s\n", run->dir, number, (long long)a->from, a->dry ? " (not written: --dry-run)" : "");
    for (const char *p = cairn_str_z(diff); *p;) {
        size_t n = strcspn(p, "\n");

        printf("  %.*s\n", (int)n, p);
        p += n + (p[n] == '\n');
    }
    return CAIRN_OK;
}

int cairn_verb_amend(int argc, char **argv)
{
    struct cairn_error err = {0};
    enum cairn_status st = CAIRN_OK;
    struct args a = {.from = -1};
    struct cairn_run *run = NULL;
    struct cairn_lock *lock = NULL;
    struct cairn_str diff = {0};
    int done, number, usage = cairn_cli_parse(&argp, argc, argv, &a, &done);

    if (usage || done)
        return usage;
    if (!a.dir || !a.sets || a.from < 0)
        return cairn_cli_usage("amend", "%s", !a.dir ? "DIR is missing" : !a.sets ? "key=value is missing" : "--from-step N is missing");
    cairn_signals_install();
    TRY(cairn_run_open(&run, a.dir, &err)); /* no lock file in a directory that is no run */
    TRY(cairn_lock_take(&lock, a.dir, &err));
    cairn_run_close(run);
    run = NULL;
    TRY(cairn_run_open(&run, a.dir, &err));
    TRY(cairn_run_amend(run, a.from, a.sets, a.set, a.dry, &number, &diff, &err));
    if (number && !a.dry) {
        cairn_run_close(run);
        run = NULL;
        TRY(cairn_run_open(&run, a.dir, &err));
    }
    TRY(tell(run, &a, number, &diff, &err));
    TRY(cairn_cli_flush(&err));
out:
    cairn_str_free(&diff);
    cairn_run_close(run);
    cairn_lock_drop(lock);
    return st == CAIRN_OK ? 0 : cairn_cli_fail("amend", &err);
}

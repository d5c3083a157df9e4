/* check.c - `cairn check RECIPE|DIR`: the gate (tools/check/check.h). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"
#include "tools/check/check.h"
#include "tools/check/cut.h"
#include "tools/cli.h"
#include "tools/recipe_args.h"
#include "tools/verbs.h"

struct args {
    struct cairn_recipe_args recipe;
    const char *legs, *against, *reference;
    int64_t layers, threads;
    int locate, json, quiet;
};

enum { OPT_LEGS = 256, OPT_LAYERS, OPT_LOCATE, OPT_AGAINST, OPT_REFERENCE, OPT_THREADS };

static const struct argp_option options[] = {
    {"legs", OPT_LEGS, "A-B", 0, "only legs A to B, 0 to 5 (default: all)", 0},
    {"layers", OPT_LAYERS, "N", 0, "only the first N layers of the run's base", 0},
    {"locate", OPT_LOCATE, NULL, 0, "name the first layer, module and token that differ even where the difference is within the band", 0},
    {"against", OPT_AGAINST, "HF_DIR", 0, "the checkpoint that --reference was made from, if it is not the run's base", 0},
    {"reference", OPT_REFERENCE, "FILE", 0, "another system's log-probabilities: JSON lines {\"ids\", \"logprobs\"}", 0},
    {"threads", OPT_THREADS, "N", 0, "CPU threads (default: all); never changes a bit", 0},
    {"quiet", 'q', NULL, 0, "no progress", 0},
    {"json", 'j', NULL, 0, "print the report as one JSON object", 0},
    {0},
};

static const struct cairn_cli_slot slots[] = {
    CAIRN_CLI_TEXT_AT(OPT_LEGS, struct args, legs),
    CAIRN_CLI_COUNT_AT(OPT_LAYERS, struct args, layers, "layers", 1, 100000, "a number of layers, at least 1"),
    CAIRN_CLI_FLAG_AT(OPT_LOCATE, struct args, locate),
    CAIRN_CLI_TEXT_AT(OPT_AGAINST, struct args, against),
    CAIRN_CLI_TEXT_AT(OPT_REFERENCE, struct args, reference),
    CAIRN_CLI_COUNT_AT(OPT_THREADS, struct args, threads, "threads", 1, 65536, "a number of threads, at least 1"),
    CAIRN_CLI_FLAG_AT('q', struct args, quiet),
    CAIRN_CLI_FLAG_AT('j', struct args, json),
    CAIRN_CLI_RECIPE_AT(struct args, recipe),
    {0},
};

static const struct argp argp = {
    options, NULL, "RECIPE|DIR [key=value ...]",
    "Proves that trainer and sampler are one policy before a run spends its hours: right against the reference, agree, change the "
    "trainer alone and see the stale sampler disagree, sync, agree again. 76 with the finding if anything does not hold.\v"
    "Legs: 0 right, 1 agree, 2 disagree, 3 sync, 4 repeat, 5 whole.\n\n"
    "Examples:\n  cairn check recipes/tiny.yaml\n  cairn check /tmp/tiny --legs 1-5 --json",
    NULL, NULL, NULL};

/* "2-4" or "3". */
static int legs_parse(const char *text, int *first, int *last)
{
    char end;

    *first = 0;
    *last = 5;
    if (!text)
        return 1;
    if (sscanf(text, "%d-%d%c", first, last, &end) == 2)
        return 0 <= *first && *first <= *last && *last <= 5;
    if (sscanf(text, "%d%c", first, &end) != 1)
        return 0;
    *last = *first;
    return 0 <= *first && *first <= 5;
}

/* A folder of our own: *dir, malloc'ed. */
static enum cairn_status make_folder(char **dir, struct cairn_error *err)
{
    const char *tmp = getenv("TMPDIR");
    char *name = cairn_format("%s/cairn-check.XXXXXX", tmp && tmp[0] ? tmp : "/tmp");
    enum cairn_status st = CAIRN_OK;

    if (!name)
        TRY(CAIRN_NOMEM(err));
    if (!mkdtemp(name))
        TRY(cairn_fail(err, CAIRN_EIO, "%s: cannot make it", name));
    *dir = name;
    name = NULL;
out:
    free(name);
    return st;
}

/* A recipe is checked as a run that is made for it and goes again. */
static enum cairn_status make_run(const struct args *a, char **dir, struct cairn_error *err)
{
    struct cairn_recipe *recipe = NULL;
    struct cairn_run *run = NULL;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_recipe_load(&recipe, a->recipe.recipe, a->recipe.overrides, a->recipe.override, err));
    TRY(make_folder(dir, err));
    TRY(cairn_run_init(&run, *dir, recipe, err));
    recipe = NULL;
out:
    cairn_run_close(run);
    cairn_recipe_free(recipe);
    return st;
}

static double number(const json_t *report, const char *leg, const char *key)
{
    return json_number_value(json_object_get(json_object_get(report, leg), key));
}

/* "sync      193 of 193 tokens with equal bits, by file and shm" */
static void sync_print(const json_t *r)
{
    const char *memory = json_string_value(json_array_get(json_object_get(r, "paths"), 1)),
               *why = json_string_value(json_object_get(r, "paths_left_out"));

    printf("sync      %.0f of %.0f tokens with equal bits, by file%s%s\n", number(r, "sync", "equal"), number(r, "sync", "tokens"),
           memory ? " and " : "", memory ? memory : "");
    if (why)
        printf("          by file alone: %s\n", why);
}

/* What leg 0 did: in f32 first, where the run computes in bf16 and there was room. */
static void right_print(const json_t *r, const char *name)
{
    const char *left_out = json_string_value(json_object_get(r, "left_out"));

    if (left_out)
        printf("%-9s left out, which hides small mistakes: %s\n", name, left_out);
    if (json_object_get(r, "right"))
        printf("%-9s %.0f calls of ops over %.0f sequences, %.0f values; %.0f%% of the tolerance at most\n", name, number(r, "right", "calls"),
               number(r, "right", "sequences"), number(r, "right", "values"), 100 * number(r, "right", "worst"));
    if (json_object_get(r, "late"))
        printf("          of %s (%.0f tokens) the choice of keys and attention of the last %.0f, %.0f calls\n",
               json_string_value(json_object_get(json_object_get(r, "late"), "sequence")), number(r, "late", "tokens"), number(r, "late", "rows"),
               number(r, "late", "calls"));
    if (json_object_get(r, "blocks"))
        printf("          %.0f blocks as the plain model has them; %.0f%% of the tolerance at most\n", number(r, "blocks", "held"),
               100 * number(r, "blocks", "worst"));
}

/* One screen. */
static void report_print(const json_t *r, const struct cairn_error *err, enum cairn_status st)
{
    const char *numerics = json_string_value(json_object_get(r, "numerics")); /* absent: it came no further than leg 0 in f32 */

    if (numerics)
        printf("%s\n", numerics);
    right_print(json_object_get(r, "f32"), "in f32");
    right_print(r, "right");
    if (json_object_get(r, "reference"))
        printf("          %.0f tokens of the reference: off by %.3g on average, by %.3g at most\n", number(r, "reference", "tokens"),
               number(r, "reference", "mean"), number(r, "reference", "max"));
    if (json_object_get(r, "agree"))
        printf("agree     %.0f of %.0f tokens with equal bits\n", number(r, "agree", "equal"), number(r, "agree", "tokens"));
    if (json_object_get(r, "disagree"))
        printf("disagree  weights changed by %.2g of their size: the stale sampler is off by %.3g on average\n", number(r, "disagree", "scale"),
               number(r, "disagree", "mean"));
    if (json_object_get(r, "sensitivity"))
        printf("          the smallest change that shows: %.2g of their size, by bits of %.0f tokens\n", number(r, "sensitivity", "scale"),
               number(r, "sensitivity", "tokens"));
    if (json_object_get(r, "sync"))
        sync_print(r);
    if (json_object_get(r, "repeat"))
        printf("repeat    back to the first weights: %.0f of %.0f tokens with the first bits\n", number(r, "repeat", "equal"),
               number(r, "repeat", "tokens"));
    if (json_object_get(r, "whole"))
        printf("whole     %.0f tokens drawn and scored again\n", number(r, "whole", "drawn"));
    if (json_object_get(r, "step"))
        printf("share     %.3g%% of a step of this run (%.3g s, over %.0f of them); in each step the comparison takes %.2g%%\n",
               100 * number(r, "step", "check"), number(r, "step", "seconds"), number(r, "step", "steps"), 100 * number(r, "step", "compare_share"));
    printf("%s\n", st == CAIRN_OK ? "one policy" : err->text);
}

int cairn_verb_check(int argc, char **argv)
{
    struct cairn_error err = {0};
    enum cairn_status st = CAIRN_OK;
    struct args a = {0};
    struct cairn_check_opts o = {0};
    char *made = NULL, *folder = NULL, *cut = NULL;
    json_t *report = NULL;
    int done, usage = cairn_cli_read(&argp, slots, argc, argv, &a, &done);

    if (usage || done)
        return usage;
    if (!a.recipe.recipe)
        return cairn_cli_usage("check", "which RECIPE or run?");
    if (!legs_parse(a.legs, &o.first, &o.last))
        return cairn_cli_usage("check", "--legs %s: expected one number from 0 to 5, or two with a dash between", a.legs);
    if (a.reference && o.first > 0)
        return cairn_cli_usage("check", "--reference belongs to leg 0, which --legs %s leaves out", a.legs);
    if (a.against && !a.reference)
        return cairn_cli_usage("check", "--against says what --reference FILE was made from; there is none");
    cairn_signals_install();
    cairn_log_quiet(a.quiet || a.json);
    if (a.reference && access(a.reference, R_OK)) /* leg 0 reads it last */
        TRY(cairn_fail(&err, errno == ENOENT ? CAIRN_ENOINPUT : CAIRN_EIO, "%s: %s", a.reference, strerror(errno)));
    o.threads = (int)a.threads;
    o.locate = a.locate;
    o.against = a.against;
    o.reference = a.reference;
    if (cairn_path_is_dir(a.recipe.recipe)) {
        if (a.recipe.overrides)
            return cairn_cli_usage("check", "a run's recipe is frozen; %s cannot be laid over it", a.recipe.override[0]);
        o.dir = a.recipe.recipe;
    } else {
        TRY(make_run(&a, &made, &err));
        o.dir = made;
    }
    if (a.layers) {
        TRY(make_folder(&folder, &err));
        TRY(cairn_check_cut(o.dir, (int)a.layers, folder, &cut, &err));
        o.dir = cut;
    }
    st = cairn_check_run(&o, &report, &err);
    if (st == CAIRN_OK || st == CAIRN_ENUMERIC) {
        if (a.json) {
            if (cairn_cli_json(json_incref(report), &err) != CAIRN_OK)
                st = err.code;
        } else {
            report_print(report, &err, st);
        }
    }
out:
    json_decref(report);
    if (made)
        cairn_tree_remove(made, NULL);
    free(made);
    if (folder)
        cairn_tree_remove(folder, NULL);
    free(folder);
    free(cut);
    return st == CAIRN_OK ? 0 : cairn_cli_fail("check", &err);
}

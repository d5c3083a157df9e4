/* replay.c - `cairn replay`: score again, train again from, or bring in stored rollouts (replay.h). */
#include "tools/replay.h"

#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"
#include "tools/cli.h"
#include "tools/verbs.h"

struct args {
    struct cairn_replay_opts o;
    int train;
};

static const struct argp_option options[] = {
    {"score", 's', "RECIPE", 0, "score the rollouts of DIR by RECIPE (its score section is enough) into DIR/replay/NAME", 0},
    {"name", 'n', "NAME", 0, "with --score: where; default: the recipe's name", 0},
    {"train", 't', NULL, 0, "train again from the rollouts of DIR, in a new run (--run)", 0},
    {"from", 'f', "FILE", 0, "bring recorded responses in as the rollouts of a new run (--run) of RECIPE", 0},
    {"run", 'r', "NEW", 0, "with --train and --from: the run to make", 0},
    {"quiet", 'q', NULL, 0, "no progress", 0},
    {"json", 'j', NULL, 0, "one JSON object a line on stdout", 0},
    {0},
};

static error_t option(int key, char *arg, struct argp_state *state)
{
    struct args *a = state->input;

    switch (key) {
    case 's':
        a->o.score = arg;
        return 0;
    case 'n':
        a->o.name = arg;
        return 0;
    case 't':
        a->train = 1;
        return 0;
    case 'f':
        a->o.from = arg;
        return 0;
    case 'r':
        a->o.recipe.run = arg;
        return 0;
    case 'q':
        a->o.quiet = 1;
        return 0;
    case 'j':
        a->o.json = 1;
        return 0;
    case ARGP_KEY_ARG:
        return cairn_recipe_args_take(&a->o.recipe, arg, state);
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {
    options, option, "DIR --score RECIPE [key=value ...]\nDIR --train --run NEW [key=value ...]\nRECIPE --from FILE --run NEW [key=value ...]",
    "Uses stored rollouts again. FILE: JSON lines {\"id\", \"prompt\", \"answer\", \"responses\": [{\"text\"}]}; a response may bring \"ids\", "
    "with \"logprobs\", and \"finish\" (\"stop\" or \"length\").\v"
    "Examples:\n  cairn replay /tmp/tiny -s recipes/tiny.yaml score.overlong.factor=1\n"
    "  cairn replay /tmp/tiny --train --run /tmp/again",
    NULL, NULL, NULL};

char *cairn_replay_override(const char *key, const char *text)
{
    struct cairn_str s = {0};

    cairn_str_printf(&s, "%s=", key);
    cairn_json_put_string(&s, text, strlen(text)); /* a JSON string is a YAML double-quoted one */
    return cairn_str_take(&s);
}

int cairn_replay_origin(const struct cairn_recipe *r, const char *kind)
{
    const char *origin = cairn_recipe_has(r, "run.origin") ? cairn_recipe_str(r, "run.origin") : "";
    size_t n = strlen(kind);

    return !strncmp(origin, kind, n) && origin[n] == ' ';
}

/* "data.prompts.0" -> "data.prompts.0.path"; the others name themselves. */
static char *path_key(const char *outside)
{
    return cairn_starts_with(outside, "data.") ? cairn_format("%s.path", outside) : strdup(outside);
}

/* An override to the run's copy for every outside file that is not what it was. */
static enum cairn_status paths_mend(const struct cairn_run *from, char **list, int cap, int *n, struct cairn_error *err)
{
    json_t *o;
    const char *key;

    json_object_foreach(json_object_get(from->info, "outside"), key, o)
    {
        const char *original = json_string_value(json_object_get(o, "path")), *hex = json_string_value(json_object_get(o, "digest"));
        struct cairn_digest want, have;
        char *copy = NULL, *name;
        enum cairn_status st;

        if (original && hex && cairn_digest_parse(hex, &want) && cairn_path_exists(original) &&
            cairn_digest_file(original, &have, NULL, NULL) == CAIRN_OK && cairn_digest_equal(want, have))
            continue;
        st = cairn_run_outside(from, key, &copy, err);
        if (st != CAIRN_OK)
            return st;
        name = path_key(key);
        if (name && *n < cap && (list[*n] = cairn_replay_override(name, copy)))
            (*n)++;
        else
            st = CAIRN_NOMEM(err);
        free(name);
        free(copy);
        if (st != CAIRN_OK)
            return st;
    }
    return CAIRN_OK;
}

enum cairn_status cairn_replay_recipe(struct cairn_recipe **out, const struct cairn_run *from, const struct cairn_replay_opts *o, int extras,
                                      const char *const *extra, struct cairn_error *err)
{
    enum { CAP = 2 * CAIRN_MAX_OVERRIDES };
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_run_path(from, "recipe.yaml"), *mended[CAP];
    struct cairn_recipe *r = NULL;
    int n = 0;

    if (!path)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_recipe_from_resolved(&r, path, err));
    TRY(paths_mend(from, mended, CAP, &n, err));
    TRY(cairn_recipe_apply(r, n, (const char *const *)mended, NULL, err));
    TRY(cairn_recipe_apply(r, extras, extra, NULL, err));
    TRY(cairn_recipe_apply(r, o->recipe.overrides, o->recipe.override, NULL, err));
    *out = r;
    r = NULL;
out:
    for (int i = 0; i < n; i++)
        free(mended[i]);
    cairn_recipe_free(r);
    free(path);
    return st;
}

static int usage_check(const struct args *a)
{
    int actions = (a->o.score != NULL) + a->train + (a->o.from != NULL);

    if (actions != 1)
        return cairn_cli_usage("replay", "%s", actions ? "one of --score, --train, --from at a time" : "--score, --train or --from is missing");
    if (!a->o.recipe.recipe)
        return cairn_cli_usage("replay", "%s is missing", a->o.from ? "RECIPE (or a run, for its recipe)" : "DIR");
    if (!a->o.score && !a->o.recipe.run)
        return cairn_cli_usage("replay", "--run NEW is missing");
    if (a->o.score && a->o.recipe.run)
        return cairn_cli_usage("replay", "--score writes into DIR/replay; it takes no --run");
    if (a->o.name && !a->o.score)
        return cairn_cli_usage("replay", "--name goes with --score");
    if (a->o.name && !cairn_name_ok(a->o.name))
        return cairn_cli_usage("replay", "--name %s: letters, digits, '.', '_' and '-' only", a->o.name);
    return 0;
}

int cairn_verb_replay(int argc, char **argv)
{
    struct cairn_error err = {0};
    enum cairn_status st = CAIRN_OK;
    struct args a = {0};
    int done, usage = cairn_cli_parse(&argp, argc, argv, &a, &done);

    if (usage || done)
        return usage;
    usage = usage_check(&a);
    if (usage)
        return usage;
    cairn_signals_install();
    cairn_log_quiet(a.o.quiet || a.o.json);
    st = a.o.score ? cairn_replay_score(&a.o, &err) : a.train ? cairn_replay_train(&a.o, &err) : cairn_replay_from(&a.o, &err);
    if (st == CAIRN_OK)
        st = cairn_cli_flush(&err);
    return st == CAIRN_OK ? 0 : cairn_cli_fail("replay", &err);
}

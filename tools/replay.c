/* replay.c - `cairn replay`: score again, train again from, make again, bring in or hand out stored rollouts (replay.h). */
#include "tools/replay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"
#include "ckpt/retention.h"
#include "stages/common/recorded.h"
#include "tools/cli.h"
#include "tools/verbs.h"

enum action { NONE, SCORE, TRAIN, REGENERATE, FROM, EXPORT, SEVERAL };

struct args {
    struct cairn_replay_opts o;
    enum action action;
    int sampled; /* --sample was given */
};

enum { OPT_REGENERATE = 256, OPT_SAMPLE, OPT_EXPORT, OPT_ONLY, OPT_CHANGES };

static const struct argp_option options[] = {
    {"score", 's', "RECIPE", 0, "score the rollouts of DIR by RECIPE (its score section is enough) into DIR/replay/NAME", 0},
    {"train", 't', NULL, 0, "train again from the rollouts of DIR, in a new run (--run)", 0},
    {"regenerate", OPT_REGENERATE, NULL, 0, "make rollouts of DIR again from the policies that made them, and compare bits", 0},
    {"from", 'f', "FILE", 0, "bring recorded responses in as the rollouts of a new run (--run) of RECIPE", 0},
    {"export", OPT_EXPORT, "FILE", 0, "write the rollouts of DIR, with their scores, as --from takes them", 0},
    {"only", OPT_ONLY, "KEY=VALUES", 0,
     "which rollouts: step=1-5,8  prompt=ID  sample=0-3  verdict=right,wrong  finish=stop,length  eval=NAME; may be repeated", 1},
    {"name", 'n', "NAME", 0, "with --score: where; default: the recipe's name", 1},
    {"changes", OPT_CHANGES, NULL, 0, "with --score: name each rollout whose verdict, reward or advantage changed", 1},
    {"sample", OPT_SAMPLE, "P", 0, "with --regenerate: this share of them, 0 to 1 (default: all)", 1},
    {"run", 'r', "NEW", 0, "with --train and --from: the run to make", 1},
    {"quiet", 'q', NULL, 0, "no progress", 2},
    {"json", 'j', NULL, 0, "one JSON object a line on stdout", 2},
    {0},
};

static const struct cairn_cli_slot slots[] = {
    CAIRN_CLI_TEXT_AT('n', struct args, o.name),
    CAIRN_CLI_TEXT_AT('r', struct args, o.recipe.run),
    CAIRN_CLI_FLAG_AT('q', struct args, o.quiet),
    CAIRN_CLI_FLAG_AT('j', struct args, o.json),
    CAIRN_CLI_FLAG_AT(OPT_CHANGES, struct args, o.changes),
    CAIRN_CLI_NUMBER_AT(OPT_SAMPLE, struct args, o.share, "sample", CAIRN_CLI_ABOVE_0, 1, "a share above 0, at most 1"),
    {0},
};

static error_t option(int key, char *arg, struct argp_state *state)
{
    struct args *a = state->input;
    enum action action = key == 's'              ? SCORE
                         : key == 't'            ? TRAIN
                         : key == 'f'            ? FROM
                         : key == OPT_REGENERATE ? REGENERATE
                         : key == OPT_EXPORT     ? EXPORT
                                                 : NONE;
    struct cairn_error err = {0};

    if (action != NONE) {
        a->action = a->action == NONE || a->action == action ? action : SEVERAL;
        *(action == SCORE ? &a->o.score : action == EXPORT ? &a->o.export : &a->o.from) = arg;
        return 0;
    }
    if (key == OPT_ONLY && cairn_only_add(&a->o.only, arg, &err) != CAIRN_OK) {
        argp_error(state, "%s", err.text);
        return EINVAL;
    }
    a->sampled |= key == OPT_SAMPLE;
    return key == OPT_ONLY ? 0 : key == ARGP_KEY_ARG ? cairn_recipe_args_take(&a->o.recipe, arg, state) : cairn_cli_take(slots, key, arg, state);
}

static const struct argp argp = {
    options,
    option,
    "DIR --score RECIPE [key=value ...]\nDIR --train --run NEW [key=value ...]\nDIR --regenerate [--sample P]\nDIR --export FILE\n"
    "RECIPE --from FILE --run NEW [key=value ...]",
    "Uses stored rollouts again, all or a slice of them (--only). --train takes DIR's amendments along; a key=value goes before what they say of "
    "that "
    "key. FILE: JSON lines {\"id\", \"prompt\", \"answer\", \"responses\": [{\"text\"}]}; "
    "a response may bring \"ids\", with \"logprobs\", and \"finish\" (\"stop\" or \"length\").\v"
    "Examples:\n  cairn replay /tmp/tiny -s recipes/tiny.yaml --only verdict=wrong --changes\n"
    "  cairn replay /tmp/tiny --regenerate --sample 0.05",
    NULL,
    NULL,
    NULL};

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

enum cairn_status cairn_replay_trains(const struct cairn_run *run, const struct cairn_link *l, const struct cairn_recipe *recipe,
                                      struct cairn_str *keys, struct cairn_error *err)
{
    char *dir = cairn_link_path(run, l);
    struct cairn_reader *reader = NULL;
    enum cairn_status st = CAIRN_OK;
    int recorded, logprobs;

    if (!dir)
        TRY(CAIRN_NOMEM(err));
    if (cairn_artefact_collected(dir))
        goto out;
    TRY(cairn_reader_open(&reader, dir, NULL, err));
    TRY(cairn_recorded_look(reader, &recorded, &logprobs, err));
    if (!recorded)
        goto out;
    st = cairn_recorded_check(recipe, logprobs, dir, err);
    if (st != CAIRN_OK && keys)
        cairn_recorded_keys(recipe, logprobs, keys);
out:
    cairn_reader_close(reader);
    free(dir);
    return st;
}

enum cairn_status cairn_replay_origin_check(const struct cairn_run *run, struct cairn_error *err)
{
    const struct cairn_link first = {1, CAIRN_STAGE_ROLLOUT, NULL}, train = {1, CAIRN_STAGE_TRAIN, NULL};
    struct cairn_str keys = {0};
    enum cairn_status st;

    if (cairn_replay_origin(run->recipe, "run"))
        return cairn_fail(err, CAIRN_ERECIPE, "%s replays the rollouts of another run (run.origin); to go on: cairn replay OLD --train --run %s",
                          run->dir, run->dir);
    if (!cairn_replay_origin(run->recipe, "file"))
        return CAIRN_OK;
    if (!cairn_link_done(run, &first))
        return cairn_fail(err, CAIRN_ENOINPUT, "%s wants recorded rollouts (run.origin) that are not there; call cairn replay --from again",
                          run->dir);
    if (cairn_link_done(run, &train))
        return CAIRN_OK;
    st = cairn_replay_trains(run, &first, cairn_run_recipe(run, 1), &keys, err);
    if (st != CAIRN_OK && keys.len)
        cairn_fail(err, st, "%.260s; to do so: cairn replay %s --train --run %s-train%s", err->text, run->dir, run->dir, cairn_str_z(&keys));
    cairn_str_free(&keys);
    return st;
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
    int makes = a->action == TRAIN || a->action == FROM;
    const struct cairn_only *only = &a->o.only;

    if (a->action == NONE || a->action == SEVERAL)
        return cairn_cli_usage("replay", "%s", a->action == NONE ? "--score, --train, --regenerate, --from or --export is missing"
                                                                : "one of --score, --train, --regenerate, --from, --export at a time");
    if (!a->o.recipe.recipe)
        return cairn_cli_usage("replay", "%s is missing", a->action == FROM ? "RECIPE (or a run, for its recipe)" : "DIR");
    if (makes && !a->o.recipe.run)
        return cairn_cli_usage("replay", "--run NEW is missing");
    if (!makes && a->o.recipe.run)
        return cairn_cli_usage("replay", "only --train and --from make a new run (--run)");
    if ((a->action == REGENERATE || a->action == EXPORT) && a->o.recipe.overrides)
        return cairn_cli_usage("replay", "%s: the rollouts are as the run's own recipe made them; no key=value", a->o.recipe.override[0]);
    if (a->o.name && a->action != SCORE)
        return cairn_cli_usage("replay", "--name goes with --score");
    if (a->o.changes && a->action != SCORE)
        return cairn_cli_usage("replay", "--changes goes with --score");
    if (a->sampled && a->action != REGENERATE)
        return cairn_cli_usage("replay", "--sample goes with --regenerate; a slice of them: --only");
    if (a->o.name && !cairn_name_ok(a->o.name))
        return cairn_cli_usage("replay", "--name %s: letters, digits, '.', '_' and '-' only", a->o.name);
    if (a->action == TRAIN && only->evals)
        return cairn_cli_usage("replay", "--only eval=: evaluations are not trained on");
    if (a->action == FROM && (only->step.n || only->verdict || only->evals))
        return cairn_cli_usage("replay", "--only: recorded responses have no step, verdict or set; prompt=, sample= and finish= fit");
    return 0;
}

int cairn_verb_replay(int argc, char **argv)
{
    static enum cairn_status (*const acts[])(const struct cairn_replay_opts *, struct cairn_error *) = {
        [SCORE] = cairn_replay_score, [TRAIN] = cairn_replay_train, [REGENERATE] = cairn_replay_regenerate,
        [FROM] = cairn_replay_from,   [EXPORT] = cairn_replay_export};
    struct cairn_error err = {0};
    enum cairn_status st = CAIRN_OK;
    struct args a = {.o.share = 1};
    int done, rc = cairn_cli_parse(&argp, argc, argv, &a, &done);

    if (rc || done)
        goto out;
    rc = usage_check(&a);
    if (rc)
        goto out;
    cairn_signals_install();
    cairn_log_quiet(a.o.quiet || a.o.json);
    st = acts[a.action](&a.o, &err);
    if (st == CAIRN_OK)
        st = cairn_cli_flush(&err);
    rc = st == CAIRN_OK ? 0 : cairn_cli_fail("replay", &err);
out:
    cairn_only_free(&a.o.only);
    return rc;
}

/* init.c - `cairn init RECIPE --run DIR [key=value ...]`: resolve, check, freeze. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/signals.h"
#include "stages/common/place.h"
#include "base/file.h"
#include "tools/cli.h"
#include "tools/recipe_args.h"
#include "tools/verbs.h"

struct args {
    struct cairn_recipe_args recipe;
    int print, json;
};

static const struct argp_option options[] = {
    {"run", 'r', "DIR", 0, "the run directory to make", 0},
    {"print", 'p', NULL, 0, "print the resolved recipe on stdout and make nothing", 0},
    {"json", 'j', NULL, 0, "print one JSON object", 0},
    {0},
};

static const struct cairn_cli_slot slots[] = {
    CAIRN_CLI_TEXT_AT('r', struct args, recipe.run),
    CAIRN_CLI_FLAG_AT('p', struct args, print),
    CAIRN_CLI_FLAG_AT('j', struct args, json),
    CAIRN_CLI_RECIPE_AT(struct args, recipe),
    {0},
};

static const struct argp argp = {
    options, NULL, "RECIPE --run DIR [key=value ...]",
    "Resolves a recipe (inheritance, overrides), checks every key, and freezes it as DIR/recipe.yaml.\v"
    "Keys of the classes science and layout are frozen; ops keys may change at any later call. recipes/base.yaml has all keys, with "
    "their meaning.\n\n"
    "Examples:\n  cairn init recipes/tiny.yaml --run /tmp/tiny\n  cairn init recipes/tiny.yaml --print train.learning_rate=1e-4",
    NULL, NULL, NULL};

static enum cairn_status print_resolved(const struct cairn_recipe *r, int json, struct cairn_error *err)
{
    struct cairn_str yaml = {0};
    enum cairn_status st;

    if (json)
        return cairn_cli_json(json_incref((json_t *)cairn_recipe_json(r)), err);
    st = cairn_recipe_write(r, &yaml, err);
    if (st == CAIRN_OK)
        fwrite(yaml.p, 1, yaml.len, stdout);
    cairn_str_free(&yaml);
    return st;
}

int cairn_verb_init(int argc, char **argv)
{
    struct cairn_error err = {0};
    enum cairn_status st = CAIRN_OK;
    struct args a = {0};
    struct cairn_recipe *recipe = NULL;
    struct cairn_run *run = NULL;
    struct cairn_place place = {0};
    int done, usage = cairn_cli_read(&argp, slots, argc, argv, &a, &done);

    if (usage || done)
        return usage;
    if (!a.recipe.recipe || (!a.recipe.run && !a.print))
        return cairn_cli_usage("init", "%s", a.recipe.recipe ? "--run DIR is missing" : "RECIPE is missing");
    cairn_signals_install();
    st = cairn_recipe_load(&recipe, a.recipe.recipe, a.recipe.overrides, a.recipe.override, &err);
    TRY(cairn_run_recipe_wrong(a.recipe.recipe, st, &err));
    if (a.print) {
        TRY(print_resolved(recipe, a.json, &err));
    } else {
        char hex[33];

        TRY(cairn_place_take(&place, a.recipe.run, 1, &err));
        TRY(cairn_run_init(&run, a.recipe.run, recipe, &err));
        recipe = NULL;
        cairn_digest_hex(run->hash, hex);
        if (a.json)
            TRY(cairn_cli_json(json_pack("{s:s, s:s, s:s}", "run", run->dir, "uuid", run->uuid, "recipe", hex), &err));
        else
            printf("%s: recipe %s\n", run->dir, hex);
    }
    TRY(cairn_cli_flush(&err));
out:
    cairn_run_close(run);
    cairn_place_leave(&place);
    cairn_recipe_free(recipe);
    return st == CAIRN_OK ? 0 : cairn_cli_fail("init", &err);
}

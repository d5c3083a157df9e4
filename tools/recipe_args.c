/* recipe_args.c - see recipe_args.h. */
#include "tools/recipe_args.h"

#include <stdlib.h>

#include "base/file.h"
#include "tools/cli.h"

enum cairn_status cairn_recipe_args_where(const struct cairn_recipe_args *a, const char **dir, char **file, struct cairn_error *err)
{
    int is_run = cairn_run_there(a->recipe);

    if (is_run && a->run && strcmp(a->run, a->recipe))
        return cairn_fail(err, CAIRN_EUSAGE, "%s is a run: leave --run out, or name a recipe", a->recipe);
    if (!(*file = is_run ? cairn_path_join(a->recipe, "recipe.yaml") : strdup(a->recipe)))
        return CAIRN_NOMEM(err);
    *dir = a->run ? a->run : a->recipe;
    return CAIRN_OK;
}

int cairn_recipe_args_lacking(const struct cairn_recipe_args *a, const char *verb)
{
    struct cairn_error err;

    if (!a->recipe)
        return cairn_cli_usage(verb, "RECIPE or DIR is missing");
    if (a->run || cairn_run_there(a->recipe))
        return 0;
    if (cairn_path_is_dir(a->recipe))
        cairn_fail(&err, CAIRN_ENOINPUT, "%s: no run here (run.json is missing); begin one with: cairn %s RECIPE --run %s", a->recipe, verb, a->recipe);
    else if (!cairn_path_exists(a->recipe))
        cairn_fail(&err, CAIRN_ENOINPUT, "%s: neither a recipe nor a run is there", a->recipe);
    else
        return cairn_cli_usage(verb, "--run DIR is missing");
    return cairn_cli_fail(verb, &err);
}

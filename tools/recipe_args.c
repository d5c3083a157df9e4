/* recipe_args.c - see recipe_args.h. */
#include "tools/recipe_args.h"

#include <stdlib.h>

#include "base/file.h"

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

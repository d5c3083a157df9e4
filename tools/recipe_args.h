/* recipe_args.h - the words "RECIPE --run DIR key=value ..." that init, run, submit and replay share. */
#ifndef CAIRN_TOOLS_RECIPE_ARGS_H
#define CAIRN_TOOLS_RECIPE_ARGS_H

#include <argp.h>
#include <errno.h>
#include <string.h>

#include "stages/common/run.h"

#define CAIRN_MAX_OVERRIDES 256

struct cairn_recipe_args {
    const char *recipe;                        /* first word without '=' ; NULL: none given */
    const char *run;                           /* --run DIR */
    const char *override[CAIRN_MAX_OVERRIDES]; /* words with '=' */
    int overrides;
};

/* Takes one positional word; EINVAL, told, if there is no place for it. */
static inline error_t cairn_recipe_args_take(struct cairn_recipe_args *a, const char *word, struct argp_state *state)
{
    if (strchr(word, '=') && a->overrides < CAIRN_MAX_OVERRIDES && (a->recipe || word[0] != '/')) {
        a->override[a->overrides++] = word;
        return 0;
    }
    if (a->recipe) {
        argp_error(state, "\"%s\": expected key=value%s", word, a->overrides == CAIRN_MAX_OVERRIDES ? ", and there are too many" : "");
        return EINVAL;
    }
    a->recipe = word;
    return 0;
}

/* Of verb run or submit: are the words enough? 0, or the exit code of what was said. A recipe wants --run; a folder without a run, or nothing at all, is
 * no recipe. */
int cairn_recipe_args_lacking(const struct cairn_recipe_args *a, const char *verb);
/* Where the words say that the run is (*dir, borrowed), and its recipe (*file, malloc'ed): RECIPE --run DIR, or DIR alone that is a run, with its own
 * recipe. The caller has seen to it that .recipe is there, and .run or a run. CAIRN_EUSAGE: a run, and --run names another place. */
enum cairn_status cairn_recipe_args_where(const struct cairn_recipe_args *a, const char **dir, char **file, struct cairn_error *err);

#endif

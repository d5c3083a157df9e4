/* limits.c - what the schema knows and this build cannot do yet, refused in one sentence. The one place: a line goes when its
 * feature comes. */
#include <string.h>

#include "recipe/check.h"

static const struct {
    const char *path;
    int64_t max;
    const char *can; /* "this build ..." */
} numbers[] = {
    {"rollout.parallel.tp", 1, "samples with tp 1 only"}, {"rollout.parallel.ep", 1, "samples with ep 1 only"},
    {"train.parallel.tp", 1, "trains with tp 1 only"},    {"train.parallel.pp", 1, "trains with pp 1 only"},
    {"train.parallel.cp", 1, "trains with cp 1 only"},    {"train.parallel.ep", 1, "trains with ep 1 only"},
};

static const struct {
    const char *path, *words, *can;
} words[] = {
    {"checkpoint.durability", "fsync", "always syncs what it commits"},
};

enum cairn_status cairn_recipe_limits(const struct cairn_recipe *r, struct cairn_error *err)
{
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int64_t v = cairn_recipe_i64(r, numbers[i].path);

        if (v > numbers[i].max)
            return cairn_recipe_fail(r, numbers[i].path, err, "%lld: this build %s", (long long)v, numbers[i].can);
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *v = cairn_recipe_str(r, words[i].path);

        if (!cairn_words_has(words[i].words, v))
            return cairn_recipe_fail(r, words[i].path, err, "%s: this build %s", v, words[i].can);
    }
    return CAIRN_OK;
}

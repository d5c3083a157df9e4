/* recipelab.h - recipes in a folder of their own below /tmp, which is the working folder while they are read. */
#ifndef CAIRN_TESTS_RECIPELAB_H
#define CAIRN_TESTS_RECIPELAB_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "recipe/recipe.h"

#define N(a) (int)(sizeof(a) / sizeof *(a))

static char home[64], first_dir[4096];

/* The smallest recipe that is a run. */
#define WHOLE                                                                                                                      \
    "model: {init: {model_type: glm_moe_dsa, hidden_size: 96}, tokenizer: tok}\n"                                                  \
    "data: {prompts: [{path: train.jsonl}]}\n"

static inline int setup(void **state)
{
    (void)state;
    snprintf(home, sizeof home, "/tmp/cairn-recipe-XXXXXX");
    return !getcwd(first_dir, sizeof first_dir) || !mkdtemp(home) || chdir(home) || mkdir("sub", 0755) || mkdir("sub/deep", 0755);
}

static inline int teardown(void **state)
{
    (void)state;
    return chdir(first_dir) || cairn_tree_remove(home, NULL) != CAIRN_OK;
}

static inline void put(const char *name, const char *text)
{
    unlink(name);
    assert_int_equal(cairn_file_create(name, text, strlen(text), NULL), CAIRN_OK);
}

static inline struct cairn_recipe *good(const char *path, int n, const char *const *overrides)
{
    struct cairn_recipe *r = NULL;
    struct cairn_error err;

    if (cairn_recipe_load(&r, path, n, overrides, &err) != CAIRN_OK)
        fail_msg("%s", err.text);
    return r;
}

static inline struct cairn_recipe *good_text(const char *text)
{
    put("r.yaml", text);
    return good("r.yaml", 0, NULL);
}

#endif

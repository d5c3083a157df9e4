/* check.h - the merged tree of nodes against the schema: to a resolved tree of JSON values, or to one sentence with a place. */
#ifndef CAIRN_RECIPE_CHECK_H
#define CAIRN_RECIPE_CHECK_H

#include <jansson.h>

#include "recipe/node.h"
#include "recipe/schema.h"

struct cairn_recipe {
    struct cairn_arena *arena;          /* nodes, sources */
    const struct cairn_yaml_node *root; /* merged, for places and for laying more over it */
    json_t *tree;                       /* resolved */
    int whole;                          /* a run, not a part of a recipe */
};

/* *tree: every key of the schema in its order; the caller's to json_decref. */
enum cairn_status cairn_recipe_resolve(struct cairn_arena *a, const struct cairn_yaml_node *root, json_t **tree,
                                       struct cairn_error *err);
/* The default of a key that has one; the caller's to json_decref. NULL without memory. */
json_t *cairn_recipe_default(const struct cairn_key *k);
/* What no single key shows (rules.c), and what this build cannot do yet (limits.c). */
enum cairn_status cairn_recipe_rules(const struct cairn_recipe *r, struct cairn_error *err);
enum cairn_status cairn_recipe_limits(const struct cairn_recipe *r, struct cairn_error *err);

#endif

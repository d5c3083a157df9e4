/* stored.h - the node store of a recipe (world/nodestore.h) as `cairn status` shows it. */
#ifndef CAIRN_TOOLS_STORED_H
#define CAIRN_TOOLS_STORED_H

#include <jansson.h>

#include "recipe/recipe.h"

/* {"path", "host", "bytes", "max_bytes", "objects": [{"path", "bytes", "unused_s", "state": "in use" | "kept" | "expired" |
 * "unfinished"}]} of this node, or {"path", "host", "problem"}. NULL: the recipe has none. */
json_t *cairn_stored_json(const struct cairn_recipe *r);
/* The same as lines. */
void cairn_stored_print(const json_t *o);

#endif

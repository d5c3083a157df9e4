/* inherit.h - a recipe file with all its parents as one tree; overrides as trees. */
#ifndef CAIRN_RECIPE_INHERIT_H
#define CAIRN_RECIPE_INHERIT_H

#include "recipe/node.h"

enum { CAIRN_INHERIT_DEPTH_MAX = 16, CAIRN_INHERIT_FILES_MAX = 64 };

/* parents 0: the key `inherit` is refused. The result has no `inherit`. */
enum cairn_status cairn_inherit_read(struct cairn_arena *a, const char *path, int parents, const struct cairn_yaml_node **out,
                                     struct cairn_error *err);
/* Lays "a.b=value" over *root. Place: number `line` of `from`, or of the command line where from is NULL. */
enum cairn_status cairn_inherit_override(struct cairn_arena *a, const struct cairn_yaml_node **root, const char *text, int line,
                                         const char *from, struct cairn_error *err);

#endif

/* yaml.h - YAML text to the tree of node.h, through libyaml's events, with limits that a hostile file cannot pass.
 *
 * Limits: text 4 MiB, a scalar 1 MiB, 64 levels, 20,000 nodes with aliases counted as often as they are used, 1,024 keys
 * a map, 128 bytes a key. Memory stays below 64 MiB whatever the text holds.
 * Everything wrong is CAIRN_ERECIPE with the place. The text must be UTF-8; see recipe.h for what else is refused.
 */
#ifndef CAIRN_RECIPE_YAML_H
#define CAIRN_RECIPE_YAML_H

#include <stddef.h>

#include "base/arena.h"
#include "base/status.h"
#include "recipe/node.h"

enum {
    CAIRN_YAML_TEXT_MAX = 4 << 20,
    CAIRN_YAML_SCALAR_MAX = 1 << 20,
    CAIRN_YAML_DEPTH_MAX = 64,
    CAIRN_YAML_NODES_MAX = 20000,
    CAIRN_YAML_KEYS_MAX = 1024,
    CAIRN_YAML_KEY_BYTES_MAX = 128
};

/* One document. An empty text is an empty map when `map` is set, a null otherwise; with `map` the top must be a map.
 * `start` is where the text begins (line and column of its first byte), for overrides; files pass {src, 1, 1}. */
enum cairn_status cairn_yaml_parse(struct cairn_arena *a, const char *text, size_t n, struct cairn_yaml_place start, int map,
                                   const struct cairn_yaml_node **out, struct cairn_error *err);

#endif

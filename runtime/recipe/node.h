/* node.h - the tree that a YAML text is, each node with the place where it was written.
 *
 * Nodes live in an arena and never change once made, so that trees may share branches (aliases, parents): merging and
 * setting copy the maps along the way. Knows nothing of keys, types or defaults.
 */
#ifndef CAIRN_RECIPE_NODE_H
#define CAIRN_RECIPE_NODE_H

#include <stddef.h>

#include "base/arena.h"
#include "base/status.h"

struct cairn_yaml_source {
    const char *label; /* for people: the file's name as given, or "command line" */
    const char *dir;   /* absolute folder from which relative paths count */
};

struct cairn_yaml_place {
    const struct cairn_yaml_source *src;
    int line, col; /* from 1; 0: the source as a whole */
};

enum cairn_yaml_node_kind { CAIRN_YAML_NODE_SCALAR, CAIRN_YAML_NODE_LIST, CAIRN_YAML_NODE_MAP };

struct cairn_yaml_node {
    enum cairn_yaml_node_kind kind;
    struct cairn_yaml_place at;
    int quoted;                          /* scalar: was quoted or a block, so it is a string */
    const char *text;                    /* scalar: UTF-8 without NUL */
    int n;                               /* list: elements; map: keys */
    const struct cairn_yaml_node **item; /* (n) elements or values */
    const char **key;                    /* (n) map: names */
    struct cairn_yaml_place *key_at;     /* (n) map: where the names stand */
    size_t size;                         /* nodes below and here, shared ones counted each time; saturates */
    int depth;                           /* levels below and here */
};

enum cairn_status cairn_yaml_place_fail(struct cairn_error *err, struct cairn_yaml_place at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* An empty list or map with room for n, or a scalar. NULL without memory. */
struct cairn_yaml_node *cairn_yaml_node_create(struct cairn_arena *a, enum cairn_yaml_node_kind kind, struct cairn_yaml_place at,
                                               int n);
/* Value of a map's key, or NULL; *i its number if i is not NULL. */
const struct cairn_yaml_node *cairn_yaml_node_member(const struct cairn_yaml_node *map, const char *key, int *i);
/* A map without one key (the map itself if it has none such). NULL without memory. */
const struct cairn_yaml_node *cairn_yaml_node_without(struct cairn_arena *a, const struct cairn_yaml_node *map, const char *key);
/* over laid on under: two maps merge key by key, anything else is over. NULL without memory. */
const struct cairn_yaml_node *cairn_yaml_node_merge(struct cairn_arena *a, const struct cairn_yaml_node *under,
                                                    const struct cairn_yaml_node *over);
/* The tree with `value` laid at a dotted path; maps on the way are made, nulls become maps. */
enum cairn_status cairn_yaml_node_set(struct cairn_arena *a, const struct cairn_yaml_node **root, const char *path,
                                      struct cairn_yaml_place at, const struct cairn_yaml_node *value, struct cairn_error *err);
/* Where the value at a dotted path was written; the nearest thing around it if it was not. 1: exactly it, 0: around. */
int cairn_yaml_node_place(const struct cairn_yaml_node *root, const char *path, struct cairn_yaml_place *at);
int cairn_yaml_node_is_null(const struct cairn_yaml_node *n); /* a plain null */

#endif

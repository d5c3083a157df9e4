/* node.c - building, merging and searching the trees of node.h. */
#include "recipe/node.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "recipe/scalar.h"

enum cairn_status cairn_yaml_place_fail(struct cairn_error *err, struct cairn_yaml_place at, const char *fmt, ...)
{
    char text[sizeof err->text];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (at.line > 0)
        return cairn_fail(err, CAIRN_ERECIPE, "%s:%d:%d: %s", at.src->label, at.line, at.col, text);
    return cairn_fail(err, CAIRN_ERECIPE, "%s: %s", at.src->label, text);
}

struct cairn_yaml_node *cairn_yaml_node_create(struct cairn_arena *a, enum cairn_yaml_node_kind kind, struct cairn_yaml_place at,
                                               int n)
{
    struct cairn_yaml_node *node = cairn_arena_calloc(a, 1, sizeof *node);

    if (!node)
        return NULL;
    node->kind = kind;
    node->at = at;
    node->text = "";
    node->size = 1;
    node->depth = 1;
    if (n > 0) {
        node->item = cairn_arena_calloc(a, (size_t)n, sizeof *node->item);
        if (!node->item)
            return NULL;
        if (kind == CAIRN_YAML_NODE_MAP) {
            node->key = cairn_arena_calloc(a, (size_t)n, sizeof *node->key);
            node->key_at = cairn_arena_calloc(a, (size_t)n, sizeof *node->key_at);
            if (!node->key || !node->key_at)
                return NULL;
        }
    }
    return node;
}

int cairn_yaml_node_is_null(const struct cairn_yaml_node *n)
{
    struct cairn_scalar s;

    if (n->kind != CAIRN_YAML_NODE_SCALAR || n->quoted)
        return 0;
    cairn_scalar_resolve(n->text, &s);
    return s.kind == CAIRN_SCALAR_NULL;
}

const struct cairn_yaml_node *cairn_yaml_node_member(const struct cairn_yaml_node *map, const char *key, int *i)
{
    if (map->kind != CAIRN_YAML_NODE_MAP)
        return NULL;
    for (int k = 0; k < map->n; k++)
        if (strcmp(map->key[k], key) == 0) {
            if (i)
                *i = k;
            return map->item[k];
        }
    return NULL;
}

/* Appends to a map that has room. */
static void put(struct cairn_yaml_node *map, const char *key, struct cairn_yaml_place key_at, const struct cairn_yaml_node *value)
{
    map->key[map->n] = key;
    map->key_at[map->n] = key_at;
    map->item[map->n++] = value;
}

const struct cairn_yaml_node *cairn_yaml_node_without(struct cairn_arena *a, const struct cairn_yaml_node *map, const char *key)
{
    struct cairn_yaml_node *out;

    if (!cairn_yaml_node_member(map, key, NULL))
        return map;
    out = cairn_yaml_node_create(a, CAIRN_YAML_NODE_MAP, map->at, map->n);
    if (!out)
        return NULL;
    for (int k = 0; k < map->n; k++)
        if (strcmp(map->key[k], key) != 0)
            put(out, map->key[k], map->key_at[k], map->item[k]);
    return out;
}

const struct cairn_yaml_node *cairn_yaml_node_merge(struct cairn_arena *a, const struct cairn_yaml_node *under,
                                                    const struct cairn_yaml_node *over)
{
    struct cairn_yaml_node *out;

    if (under->kind != CAIRN_YAML_NODE_MAP || over->kind != CAIRN_YAML_NODE_MAP)
        return over;
    out = cairn_yaml_node_create(a, CAIRN_YAML_NODE_MAP, over->at, under->n + over->n);
    if (!out)
        return NULL;
    for (int k = 0; k < under->n; k++) {
        int i = 0;
        const struct cairn_yaml_node *mine = cairn_yaml_node_member(over, under->key[k], &i);

        if (!mine) {
            put(out, under->key[k], under->key_at[k], under->item[k]);
            continue;
        }
        mine = cairn_yaml_node_merge(a, under->item[k], mine);
        if (!mine)
            return NULL;
        put(out, over->key[i], over->key_at[i], mine);
    }
    for (int k = 0; k < over->n; k++)
        if (!cairn_yaml_node_member(under, over->key[k], NULL))
            put(out, over->key[k], over->key_at[k], over->item[k]);
    return out;
}

/* One level of cairn_yaml_node_set: node may be NULL (nothing there yet); done is the path up to node, for the sentence. */
static enum cairn_status set(struct cairn_arena *a, const struct cairn_yaml_node *node, const char *whole, const char *rest,
                             struct cairn_yaml_place at, const struct cairn_yaml_node *value, const struct cairn_yaml_node **out,
                             struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    size_t len = strcspn(rest, ".");
    const char *next = rest[len] ? rest + len + 1 : NULL;
    const struct cairn_yaml_node *old = NULL, *made = NULL;
    struct cairn_yaml_node *copy;
    char *name;
    int i = 0;

    if (len == 0)
        return cairn_yaml_place_fail(err, at, "\"%s\": a key is missing between the dots", whole);
    name = cairn_arena_printf(a, "%.*s", (int)len, rest);
    if (!name)
        return CAIRN_NOMEM(err);
    if (node && cairn_yaml_node_is_null(node))
        node = NULL;
    if (node && node->kind == CAIRN_YAML_NODE_SCALAR)
        return cairn_yaml_place_fail(err, at, "\"%s\": \"%.*s\" holds a value, not a section", whole,
                                     (int)(rest - whole > 0 ? rest - whole - 1 : 0), whole);
    if (node && node->kind == CAIRN_YAML_NODE_LIST) {
        int64_t number;

        if (!cairn_parse_i64(name, &number) || number < 0 || number >= node->n)
            return cairn_yaml_place_fail(err, at, "\"%s\": \"%.*s\" is a list of %d; its elements are named by number from 0",
                                         whole, (int)(rest - whole > 0 ? rest - whole - 1 : 0), whole, node->n);
        i = (int)number;
        old = node->item[i];
    } else if (node) {
        old = cairn_yaml_node_member(node, name, &i);
    }

    if (next) {
        TRY(set(a, old, whole, next, at, value, &made, err));
    } else {
        made = old ? cairn_yaml_node_merge(a, old, value) : value;
        if (!made)
            return CAIRN_NOMEM(err);
    }

    copy = cairn_yaml_node_create(a, node ? node->kind : CAIRN_YAML_NODE_MAP, node ? node->at : at, (node ? node->n : 0) + 1);
    if (!copy)
        return CAIRN_NOMEM(err);
    for (int k = 0; node && k < node->n; k++) {
        const struct cairn_yaml_node *item = old && k == i ? made : node->item[k];

        if (node->kind == CAIRN_YAML_NODE_LIST)
            copy->item[copy->n++] = item;
        else
            put(copy, node->key[k], old && k == i ? at : node->key_at[k], item);
    }
    if (!old)
        put(copy, name, at, made);
    *out = copy;
out:
    return st;
}

enum cairn_status cairn_yaml_node_set(struct cairn_arena *a, const struct cairn_yaml_node **root, const char *path,
                                      struct cairn_yaml_place at, const struct cairn_yaml_node *value, struct cairn_error *err)
{
    return set(a, *root, path, path, at, value, root, err);
}

int cairn_yaml_node_place(const struct cairn_yaml_node *root, const char *path, struct cairn_yaml_place *at)
{
    const struct cairn_yaml_node *node = root;
    char name[256];

    *at = root->at;
    at->line = 0;
    while (*path) {
        size_t len = strcspn(path, ".");
        const struct cairn_yaml_node *next = NULL;
        int i = 0;

        if (len == 0 || len >= sizeof name)
            return 0;
        memcpy(name, path, len);
        name[len] = 0;
        if (node->kind == CAIRN_YAML_NODE_MAP) {
            next = cairn_yaml_node_member(node, name, &i);
            if (next)
                *at = next->kind == CAIRN_YAML_NODE_SCALAR ? next->at : node->key_at[i];
        } else if (node->kind == CAIRN_YAML_NODE_LIST) {
            int64_t number;

            if (cairn_parse_i64(name, &number) && number >= 0 && number < node->n) {
                next = node->item[number];
                *at = next->at;
            }
        }
        if (!next)
            return 0;
        node = next;
        path += len + (path[len] == '.');
    }
    return 1;
}

/* recipe.c - the recipe as an object: loading, laying changes over it, and asking for values. */
#include "recipe/recipe.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "recipe/check.h"
#include "recipe/inherit.h"

void cairn_recipe_free(struct cairn_recipe *r)
{
    if (!r)
        return;
    json_decref(r->tree);
    cairn_arena_destroy(r->arena);
    free(r);
}

/* Lays the overrides over *root and resolves; everything made is in r->arena except *tree. */
static enum cairn_status settle(struct cairn_recipe *r, const struct cairn_yaml_node *root, int n, const char *const *overrides,
                                const char *from, struct cairn_error *err)
{
    struct cairn_recipe next = *r;
    enum cairn_status st = CAIRN_OK;

    next.tree = NULL;
    for (int i = 0; i < n; i++)
        TRY(cairn_inherit_override(r->arena, &root, overrides[i], i + 1, from, err));
    next.root = root;
    TRY(cairn_recipe_resolve(r->arena, root, &next.tree, err));
    TRY(cairn_recipe_rules(&next, err));
    if (r->whole)
        TRY(cairn_recipe_limits(&next, err));
    json_decref(r->tree);
    *r = next;
    next.tree = NULL;
out:
    json_decref(next.tree);
    return st;
}

static enum cairn_status load(struct cairn_recipe **out, const char *path, int whole, int parents, int n,
                              const char *const *overrides, struct cairn_error *err)
{
    struct cairn_recipe *r = calloc(1, sizeof *r);
    const struct cairn_yaml_node *root = NULL;
    enum cairn_status st = CAIRN_OK;

    if (!r || !(r->arena = cairn_arena_create()))
        TRY(CAIRN_NOMEM(err));
    r->whole = whole;
    TRY(cairn_inherit_read(r->arena, path, parents, &root, err));
    TRY(settle(r, root, n, overrides, NULL, err));
    *out = r;
    r = NULL;
out:
    cairn_recipe_free(r);
    return st;
}

enum cairn_status cairn_recipe_load(struct cairn_recipe **out, const char *path, int n, const char *const *overrides,
                                    struct cairn_error *err)
{
    return load(out, path, 1, 1, n, overrides, err);
}

enum cairn_status cairn_recipe_load_part(struct cairn_recipe **out, const char *path, int n, const char *const *overrides,
                                         struct cairn_error *err)
{
    return load(out, path, 0, 1, n, overrides, err);
}

enum cairn_status cairn_recipe_from_resolved(struct cairn_recipe **out, const char *path, struct cairn_error *err)
{
    return load(out, path, 1, 0, 0, NULL, err);
}

enum cairn_status cairn_recipe_apply(struct cairn_recipe *r, int n, const char *const *overrides, const char *from,
                                     struct cairn_error *err)
{
    return settle(r, r->root, n, overrides, from, err);
}

const json_t *cairn_recipe_json(const struct cairn_recipe *r)
{
    return r->tree;
}

/* The value at a path, json null included; NULL where a null stands in the way. */
static const json_t *find(const struct cairn_recipe *r, const char *path)
{
    const json_t *v = r->tree;
    char name[256];

    while (*path && v) {
        size_t len = strcspn(path, ".");
        int64_t i;

        assert(len > 0 && len < sizeof name);
        memcpy(name, path, len);
        name[len] = 0;
        if (json_is_object(v)) {
            v = json_object_get(v, name);
            assert(v); /* no such key: the caller's bug */
        } else if (json_is_array(v) && cairn_parse_i64(name, &i) && i >= 0) {
            v = json_array_get(v, (size_t)i);
        } else {
            v = NULL;
        }
        path += len + (path[len] == '.');
    }
    return v;
}

const json_t *cairn_recipe_get(const struct cairn_recipe *r, const char *path)
{
    const json_t *v = find(r, path);

    return v && !json_is_null(v) ? v : NULL;
}

int cairn_recipe_has(const struct cairn_recipe *r, const char *path)
{
    return cairn_recipe_get(r, path) != NULL;
}

int64_t cairn_recipe_i64(const struct cairn_recipe *r, const char *path)
{
    const json_t *v = find(r, path);

    assert(json_is_integer(v));
    return (int64_t)json_integer_value(v);
}

double cairn_recipe_f64(const struct cairn_recipe *r, const char *path)
{
    const json_t *v = find(r, path);

    assert(json_is_number(v));
    return json_number_value(v);
}

int cairn_recipe_bool(const struct cairn_recipe *r, const char *path)
{
    const json_t *v = find(r, path);

    assert(json_is_boolean(v));
    return json_is_true(v);
}

const char *cairn_recipe_str(const struct cairn_recipe *r, const char *path)
{
    const json_t *v = find(r, path);

    assert(json_is_string(v));
    return json_string_value(v);
}

const json_t *cairn_recipe_list(const struct cairn_recipe *r, const char *path)
{
    const json_t *v = find(r, path);

    assert(json_is_array(v));
    return v;
}

enum cairn_status cairn_recipe_fail(const struct cairn_recipe *r, const char *path, struct cairn_error *err, const char *fmt, ...)
{
    struct cairn_yaml_place at;
    char text[sizeof err->text];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    cairn_yaml_node_place(r->root, path, &at);
    return cairn_yaml_place_fail(err, at, "%s: %s", path, text);
}

/* identity.c - what makes two recipes the same run: hashes and differences by class.
 *
 * Hashed text: the canonical JSON of {"cairn recipe": 1, "keys": {path: value}} with the keys of the asked classes whose value
 * is not the default; an optional section that is given stands as path: {}; elements of lists are such objects themselves,
 * with paths from the schema. A path value stands by its base name. So order, comments, inheritance, where the files
 * lie and keys at their default change nothing.
 */
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "recipe/check.h"
#include "recipe/scalar.h"

static int is_optional(const struct cairn_key *k)
{
    return k->type == CAIRN_KEY_SECTION && (k->flags & CAIRN_KEY_NULL);
}

/* Sets flat[path] = v, taking v over; 0 without memory (v NULL included). */
static int set(json_t *flat, const char *path, json_t *v)
{
    return v && json_object_set_new(flat, path, v) == 0;
}

static int same_as_default(const struct cairn_key *k, const json_t *v, int *ok)
{
    json_t *def;
    int same;

    if (!k->def)
        return 0;
    def = cairn_recipe_default(k);
    if (!def)
        *ok = 0;
    same = def && json_equal(def, (json_t *)v);
    json_decref(def);
    return same;
}

/* Adds what section `path` holds to flat; 0 without memory. */
static int collect(const char *path, const json_t *section, int classes, json_t *flat)
{
    int ok = 1;

    for (const struct cairn_key *k = cairn_schema_child(path, NULL); k && ok; k = cairn_schema_child(path, k)) {
        const json_t *v = json_object_get(section, cairn_key_leaf(k));
        int mine = (int)k->class & classes;
        char below[256];
        const char *name;
        json_t *item, *parts;
        size_t i;

        snprintf(below, sizeof below, "%s.*", k->path);
        switch (k->type) {
        case CAIRN_KEY_SECTION:
            if (json_is_null(v))
                break;
            if (is_optional(k) && mine)
                ok = set(flat, k->path, json_object());
            ok = ok && collect(k->path, v, classes, flat);
            break;
        case CAIRN_KEY_SECTIONS:
            if (!mine || json_array_size(v) == 0)
                break;
            ok = set(flat, k->path, json_array());
            json_array_foreach(v, i, item)
            {
                parts = json_object();
                ok = ok && parts && collect(below, item, classes, parts) &&
                     json_array_append(json_object_get(flat, k->path), parts) == 0;
                json_decref(parts);
            }
            break;
        case CAIRN_KEY_NAMED:
            if (!mine || json_object_size(v) == 0)
                break;
            ok = set(flat, k->path, json_object());
            json_object_foreach((json_t *)v, name, item)
            {
                parts = json_object();
                ok = ok && parts && collect(below, item, classes, parts) &&
                     json_object_set(json_object_get(flat, k->path), name, parts) == 0;
                json_decref(parts);
            }
            break;
        case CAIRN_KEY_PATH:
            if (mine && json_is_string(v))
                ok = set(flat, k->path, json_string(cairn_path_basename(json_string_value(v))));
            break;
        default:
            if (mine && !same_as_default(k, v, &ok))
                ok = ok && json_object_set(flat, k->path, (json_t *)v) == 0;
        }
    }
    return ok;
}

static enum cairn_status hash(const struct cairn_recipe *r, int classes, struct cairn_digest *out, struct cairn_error *err)
{
    json_t *flat = json_object(), *all = json_pack("{s:i}", "cairn recipe", 1);
    struct cairn_str text = {0};
    enum cairn_status st = CAIRN_OK;

    if (!flat || !all || !collect("", r->tree, classes, flat) || json_object_set(all, "keys", flat))
        TRY(CAIRN_NOMEM(err));
    cairn_json_canonical(&text, all);
    if (text.oom)
        TRY(CAIRN_NOMEM(err));
    *out = cairn_digest_bytes(text.p, text.len);
out:
    cairn_str_free(&text);
    json_decref(flat);
    json_decref(all);
    return st;
}

enum cairn_status cairn_recipe_hash(const struct cairn_recipe *r, struct cairn_digest *out, struct cairn_error *err)
{
    return hash(r, CAIRN_SCIENCE | CAIRN_LAYOUT, out, err);
}

enum cairn_status cairn_recipe_science_hash(const struct cairn_recipe *r, struct cairn_digest *out, struct cairn_error *err)
{
    return hash(r, CAIRN_SCIENCE, out, err);
}

struct diff {
    int classes, lines;
    struct cairn_str *out;
};

static void line(struct diff *d, const char *path, const json_t *a, const json_t *b, const char *what)
{
    d->lines++;
    cairn_str_printf(d->out, "%s: ", path);
    cairn_scalar_put_flow(d->out, a);
    cairn_str_puts(d->out, " -> ");
    cairn_scalar_put_flow(d->out, b);
    cairn_str_printf(d->out, " (%s)\n", what);
}

static void compare(struct diff *d, const struct cairn_key *k, const char *shown, const json_t *a, const json_t *b);

static void compare_section(struct diff *d, const char *path, const char *shown, const json_t *a, const json_t *b)
{
    for (const struct cairn_key *k = cairn_schema_child(path, NULL); k; k = cairn_schema_child(path, k)) {
        char below[512];

        snprintf(below, sizeof below, "%s%s%s", shown, *shown ? "." : "", cairn_key_leaf(k));
        compare(d, k, below, json_object_get(a, cairn_key_leaf(k)), json_object_get(b, cairn_key_leaf(k)));
    }
}

/* Free and named maps, key by key; absent shows as null. */
static void compare_maps(struct diff *d, const struct cairn_key *k, const char *shown, const json_t *a, const json_t *b)
{
    const char *name;
    json_t *item;

    for (int second = 0; second < 2; second++)
        json_object_foreach((json_t *)(second ? b : a), name, item)
        {
            json_t *other = json_object_get(second ? a : b, name);
            char below[512];

            snprintf(below, sizeof below, "%.300s.%.128s", shown, name);
            if (second ? !other : !other || !json_equal(item, other))
                line(d, below, second ? NULL : item, second ? item : other, cairn_class_name(k->class));
        }
}

static void compare(struct diff *d, const struct cairn_key *k, const char *shown, const json_t *a, const json_t *b)
{
    int mine = (int)k->class & d->classes;
    char below[512], item[512];

    if (json_equal((json_t *)a, (json_t *)b))
        return;
    if (k->type == CAIRN_KEY_SECTION && json_is_object(a) && json_is_object(b)) {
        compare_section(d, k->path, shown, a, b);
    } else if (k->type == CAIRN_KEY_SECTIONS && json_array_size(a) == json_array_size(b)) {
        snprintf(below, sizeof below, "%s.*", k->path);
        for (size_t i = 0; i < json_array_size(a); i++) {
            snprintf(item, sizeof item, "%.400s.%zu", shown, i);
            compare_section(d, below, item, json_array_get(a, i), json_array_get(b, i));
        }
    } else if ((k->type == CAIRN_KEY_FREE || k->type == CAIRN_KEY_NAMED) && json_is_object(a) && json_is_object(b)) {
        if (mine)
            compare_maps(d, k, shown, a, b);
    } else if (k->type == CAIRN_KEY_PATH && json_is_string(a) && json_is_string(b) &&
               strcmp(cairn_path_basename(json_string_value(a)), cairn_path_basename(json_string_value(b))) == 0) {
        if (mine && (d->classes & CAIRN_MOVED))
            line(d, shown, a, b, "moved");
    } else if (mine) {
        line(d, shown, a, b, cairn_class_name(k->class));
    }
}

int cairn_recipe_diff(const struct cairn_recipe *a, const struct cairn_recipe *b, int classes, struct cairn_str *out)
{
    struct diff d = {classes, 0, out};

    compare_section(&d, "", "", a->tree, b->tree);
    return d.lines;
}

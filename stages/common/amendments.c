/* amendments.c - reads amendments and lays them over the frozen recipe (amend.h): what each step is made by. */
#include "stages/common/amend_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "recipe/scalar.h"
#include "stages/common/begin.h"

#define BYTES_MAX (1 << 20)
#define SET_MAX   1024

char *cairn_amendment_path(const struct cairn_run *r, int number)
{
    return cairn_format("%s/recipe.amend-%04d.json", r->dir, number);
}

void cairn_amendments_free(struct cairn_amendments *a)
{
    if (!a)
        return;
    for (int i = 0; i < a->n; i++)
        json_decref(a->amendment[i].set);
    for (int i = 0; i < a->views; i++)
        cairn_recipe_free(a->view[i].recipe);
    free(a->amendment);
    free(a->view);
    free(a);
}

/* ---- laying them over the frozen recipe ----------------------------------------------------------------------------- */

static enum cairn_status frozen_copy(const struct cairn_run *r, struct cairn_recipe **out, struct cairn_error *err)
{
    char *path = cairn_run_path(r, "recipe.yaml");
    enum cairn_status st = path ? cairn_recipe_from_resolved(out, path, err) : CAIRN_NOMEM(err);

    free(path);
    return st;
}

static enum cairn_status lay(struct cairn_recipe *recipe, const struct cairn_run *r, const struct cairn_amendment *a,
                             struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_amendment_path(r, a->number);
    size_t n = json_array_size(a->set);
    const char **set = calloc(n + 1, sizeof *set);

    if (!path || !set)
        TRY(CAIRN_NOMEM(err));
    for (size_t i = 0; i < n; i++)
        set[i] = json_string_value(json_array_get(a->set, i));
    TRY(cairn_recipe_apply(recipe, (int)n, set, path, err));
out:
    free(set);
    free(path);
    return st;
}

enum cairn_status cairn_amendments_view(const struct cairn_run *r, const struct cairn_amendments *a, int n, int64_t step,
                                        struct cairn_recipe **out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_recipe *recipe = NULL;

    TRY(frozen_copy(r, &recipe, err));
    for (int i = 0; i < n; i++)
        if (a->amendment[i].from_step <= step)
            TRY(lay(recipe, r, &a->amendment[i], err));
    *out = recipe;
    recipe = NULL;
out:
    cairn_recipe_free(recipe);
    return st;
}

enum cairn_status cairn_amendments_first(const struct cairn_run *r, int n, struct cairn_recipe **out, struct cairn_error *err)
{
    return cairn_amendments_view(r, r->amendments, n, INT64_MAX, out, err);
}

/* "a.b.c=..." as one or two overrides (malloc'ed, at out[*n]) that give a.b.c the value it has in `frozen`: at the topmost place
 * that is null there, else the value itself. */
static enum cairn_status key_revert(const struct cairn_recipe *frozen, const char *set, char **out, int *n, struct cairn_error *err)
{
    char *key = strndup(set, strcspn(set, "=")), *dot;
    struct cairn_str text = {0};
    const json_t *v;
    int want;

    if (!key)
        return CAIRN_NOMEM(err);
    v = cairn_recipe_get(frozen, key);
    while (!v && (dot = strrchr(key, '.'))) { /* up to the last one that has no value */
        *dot = 0;
        if (cairn_recipe_get(frozen, key)) {
            *dot = '.';
            break;
        }
    }
    want = *n + 1 + (v != NULL);
    cairn_str_printf(&text, "%s=", key);
    cairn_scalar_put_flow(&text, v);
    out[*n] = cairn_format("%s=null", key); /* maps would merge: first away with what is there */
    *n += out[*n] != NULL;
    free(key);
    if (v && *n + 1 == want) {
        out[*n] = cairn_str_take(&text);
        *n += out[*n] != NULL;
    }
    cairn_str_free(&text);
    return *n == want ? CAIRN_OK : CAIRN_NOMEM(err);
}

enum cairn_status cairn_amendments_revert(const struct cairn_run *r, int n, struct cairn_recipe *recipe, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_str diff = {0};
    size_t keys = 0;
    char **list = NULL;
    int count = 0;

    for (int i = 0; i < n; i++)
        keys += json_array_size(r->amendments->amendment[i].set);
    if (!(list = calloc(2 * keys + 1, sizeof *list)))
        TRY(CAIRN_NOMEM(err));
    for (int i = n - 1; i >= 0; i--) {
        const json_t *set = r->amendments->amendment[i].set;

        for (size_t k = json_array_size(set); k-- > 0;)
            TRY(key_revert(r->frozen, json_string_value(json_array_get(set, k)), list, &count, err));
    }
    TRY(cairn_recipe_apply(recipe, count, (const char *const *)list, NULL, err)); /* together: one key may need another */
    if (cairn_recipe_diff(r->frozen, recipe, CAIRN_AMENDABLE, &diff))
        TRY(CAIRN_BUG(err, "an amendment could not be taken back"));
out:
    cairn_strings_free(list, count);
    cairn_str_free(&diff);
    return st;
}

enum cairn_status cairn_amendments_fit(const struct cairn_run *r, struct cairn_recipe *recipe, struct cairn_error *err)
{
    const struct cairn_amendments *a = r->amendments;
    enum cairn_status st = CAIRN_OK;

    for (int v = 0; a && v < a->views; v++) {
        for (int i = 0; i < a->n; i++)
            if (a->amendment[i].from_step <= a->view[v].from)
                TRY(lay(recipe, r, &a->amendment[i], err));
        TRY(cairn_amendments_revert(r, a->n, recipe, err));
    }
out:
    return st;
}

/* ---- reading ---------------------------------------------------------------------------------------------------------- */

enum cairn_status cairn_amendments_count(const struct cairn_run *r, int *n, int *highest, struct cairn_error *err)
{
    struct cairn_names names = {0};
    enum cairn_status st = cairn_dir_names(&names, r->dir, NULL, err);

    *n = *highest = 0;
    for (size_t i = 0; i < names.n; i++) {
        const char *name = names.name[i];
        int number;

        if (strlen(name) != 22 || !cairn_starts_with(name, "recipe.amend-") || strcmp(name + 17, ".json") ||
            strspn(name + 13, "0123456789") != 4)
            continue;
        number = atoi(name + 13);
        *highest = number > *highest ? number : *highest;
        ++*n;
    }
    cairn_names_free(&names);
    return st;
}

/* "origin", if it has one. */
static enum cairn_status origin_read(const json_t *o, struct cairn_amendment *a, const char *path, struct cairn_error *err)
{
    const json_t *origin = json_object_get(o, "origin");
    enum cairn_status st = CAIRN_OK;
    const char *uuid;
    int64_t number;

    if (!origin)
        return CAIRN_OK;
    TRY(cairn_json_string(origin, "run", &uuid, path, err));
    TRY(cairn_json_i64(origin, "number", 1, CAIRN_AMENDMENTS_MAX, &number, path, err));
    if (strlen(uuid) != 32)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: key \"origin\": expected a run of 32 hex digits", path));
    memcpy(a->origin, uuid, 33);
    a->origin_number = (int)number;
out:
    return st;
}

static enum cairn_status amendment_read(const struct cairn_run *r, int number, struct cairn_amendment *a, struct cairn_digest *hash,
                                        struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_amendment_path(r, number), *text = NULL;
    const char *format, *uuid, *hex;
    json_t *o = NULL, *set;
    int64_t version, said;
    size_t n;

    if (!path)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_file_read(path, BYTES_MAX, &text, &n, err));
    TRY(cairn_checked_parse(&o, text, n, path, err));
    TRY(cairn_json_string(o, "format", &format, path, err));
    TRY(cairn_json_i64(o, "version", 1, INT64_MAX, &version, path, err));
    if (strcmp(format, "cairn amendment") || version != 1)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: \"%.40s\" version %lld is nothing that this cairn reads", path, format,
                       (long long)version));
    TRY(cairn_json_i64(o, "number", 1, CAIRN_AMENDMENTS_MAX, &said, path, err));
    TRY(cairn_json_i64(o, "from_step", 1, 999999999, &a->from_step, path, err));
    TRY(cairn_json_string(o, "run", &uuid, path, err));
    TRY(cairn_json_string(o, "recipe", &hex, path, err));
    TRY(cairn_json_f64(o, "wall", &a->wall_s, path, err));
    TRY(cairn_json_array(o, "set", &set, path, err));
    if (said != number || strcmp(uuid, r->uuid))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: is amendment %lld of run %.32s; it does not belong here", path, (long long)said,
                       uuid));
    if (!cairn_digest_parse(hex, hash) || json_array_size(set) < 1 || json_array_size(set) > SET_MAX)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: malformed", path));
    for (size_t i = 0; i < json_array_size(set); i++) {
        const char *s = json_string_value(json_array_get(set, i));

        if (!s || strlen(s) != json_string_length(json_array_get(set, i)))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: set[%zu]: expected \"key=value\"", path, i));
    }
    TRY(origin_read(o, a, path, err));
    a->number = number;
    a->set = json_incref(set);
out:
    json_decref(o);
    free(text);
    free(path);
    return st;
}

static int by_from(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

static enum cairn_status views_make(const struct cairn_run *r, struct cairn_amendments *a, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t *from = malloc(((size_t)a->n + 1) * sizeof *from);

    a->view = calloc((size_t)a->n + 1, sizeof *a->view);
    if (!from || !a->view)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < a->n; i++)
        from[i] = a->amendment[i].from_step;
    qsort(from, (size_t)a->n, sizeof *from, by_from);
    for (int i = 0; i < a->n; i++) {
        struct cairn_view *v = &a->view[a->views];

        if (i && from[i] == from[i - 1])
            continue;
        v->from = from[i];
        TRY(cairn_amendments_view(r, a, a->n, from[i], &v->recipe, err));
        a->views++;
        TRY(cairn_recipe_hash(v->recipe, &v->hash, err));
    }
out:
    free(from);
    return st;
}

enum cairn_status cairn_amendments_load(struct cairn_amendments **out, const struct cairn_run *r, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_amendments *a = NULL;
    struct cairn_recipe *recipe = NULL;
    int n, highest, told = (int)json_integer_value(json_object_get(r->info, "amendments"));

    *out = NULL;
    TRY(cairn_amendments_count(r, &n, &highest, err));
    if (highest < told)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s/recipe.amend-%04d.json is missing: the run has %d amendments", r->dir, told, told));
    if (!n)
        goto out;
    a = calloc(1, sizeof *a);
    if (!a || !(a->amendment = calloc((size_t)n, sizeof *a->amendment)))
        TRY(CAIRN_NOMEM(err));
    TRY(frozen_copy(r, &recipe, err));
    for (int i = 0; i < n; i++) {
        struct cairn_digest want, have;
        char *path = cairn_amendment_path(r, i + 1);
        int there = !path || cairn_path_exists(path);

        free(path);
        if (!there)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s/recipe.amend-%04d.json is missing, though there is one numbered %d", r->dir, i + 1,
                           highest));
        TRY(amendment_read(r, i + 1, &a->amendment[i], &want, err));
        a->n = i + 1;
        TRY(lay(recipe, r, &a->amendment[i], err));
        TRY(cairn_recipe_hash(recipe, &have, err));
        if (!cairn_digest_equal(want, have))
            TRY(cairn_fail(
                err, CAIRN_EDATA,
                "%s/recipe.yaml is not what amendment %d was laid over: somebody changed a science or layout key by hand", r->dir,
                i + 1));
    }
    TRY(views_make(r, a, err));
    *out = a;
    a = NULL;
out:
    cairn_amendments_free(a);
    cairn_recipe_free(recipe);
    return st;
}

json_t *cairn_amendments_json(const struct cairn_run *r)
{
    json_t *list = json_array();

    for (int i = 0; list && r->amendments && i < r->amendments->n; i++) {
        const struct cairn_amendment *a = &r->amendments->amendment[i];
        json_t *o = json_pack("{s:i, s:I, s:O, s:f}", "number", a->number, "from_step", (json_int_t)a->from_step, "set", a->set, "wall",
                              a->wall_s);

        if ((o && a->origin_number &&
             json_object_set_new(o, "origin", json_pack("{s:s, s:i}", "run", a->origin, "number", a->origin_number))) ||
            json_array_append(list, o)) {
            json_decref(o);
            json_decref(list);
            return NULL;
        }
        json_decref(o);
    }
    return list;
}

static const struct cairn_view *view_at(const struct cairn_run *r, int64_t step)
{
    const struct cairn_view *v = NULL;

    for (int i = 0; r->amendments && i < r->amendments->views && r->amendments->view[i].from <= step; i++)
        v = &r->amendments->view[i];
    return v;
}

const struct cairn_recipe *cairn_run_recipe(const struct cairn_run *r, int64_t step)
{
    const struct cairn_view *v = view_at(r, step);

    return v ? v->recipe : r->frozen;
}

struct cairn_digest cairn_run_hash(const struct cairn_run *r, int64_t step)
{
    const struct cairn_view *v = view_at(r, step);

    return v ? v->hash : r->frozen_hash;
}

void cairn_run_at(struct cairn_run *r, int64_t step)
{
    const struct cairn_view *v = view_at(r, step);

    r->recipe = v ? v->recipe : r->frozen;
    r->hash = v ? v->hash : r->frozen_hash;
}

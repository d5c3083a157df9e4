/* check.c - types, ranges and defaults, key by key. Paths are made absolute here, by the folder of the file that holds them. */
#include "recipe/check.h"

#include <stdlib.h>
#include <string.h>

#include "recipe/scalar.h"
#include "recipe/yaml.h"

struct check {
    struct cairn_arena *arena;
    struct cairn_error *err;
};

static void describe(const struct cairn_yaml_node *n, struct cairn_str *out)
{
    struct cairn_scalar s = {.kind = CAIRN_SCALAR_STRING};
    size_t len = strlen(n->text), shown = len;

    if (n->kind != CAIRN_YAML_NODE_SCALAR) {
        cairn_str_puts(out, n->kind == CAIRN_YAML_NODE_LIST ? "a list" : "a map");
        return;
    }
    if (!n->quoted)
        cairn_scalar_resolve(n->text, &s);
    if (len > 60) /* cut between code points */
        for (shown = 60; shown > 0 && ((unsigned char)n->text[shown] & 0xc0) == 0x80;)
            shown--;
    switch (s.kind) {
    case CAIRN_SCALAR_NULL:
        cairn_str_puts(out, "null");
        return;
    case CAIRN_SCALAR_BOOL:
        cairn_str_printf(out, "the boolean %s", s.b ? "true" : "false");
        return;
    case CAIRN_SCALAR_INT:
        cairn_str_puts(out, "the integer ");
        break;
    case CAIRN_SCALAR_FLOAT:
        cairn_str_puts(out, "the number ");
        break;
    case CAIRN_SCALAR_BAD:
        cairn_str_puts(out, "the number ");
        break;
    case CAIRN_SCALAR_STRING:
        cairn_str_puts(out, "the string \"");
        break;
    }
    cairn_str_add(out, n->text, shown);
    if (shown < len)
        cairn_str_puts(out, "...");
    if (s.kind == CAIRN_SCALAR_STRING)
        cairn_str_putc(out, '"');
}

/* "PATH: expected X, found Y<hint>". */
static enum cairn_status wrong(struct check *c, const struct cairn_key *k, const char *path, const struct cairn_yaml_node *n,
                               const char *hint)
{
    struct cairn_str expects = {0}, found = {0};
    enum cairn_status st;

    cairn_key_expects(k, &expects);
    describe(n, &found);
    st =
        cairn_yaml_place_fail(c->err, n->at, "%s: expected %s, found %s%s", path, cairn_str_z(&expects), cairn_str_z(&found), hint);
    cairn_str_free(&expects);
    cairn_str_free(&found);
    return st;
}

static enum cairn_status out_of_range(struct check *c, const struct cairn_key *k, const char *path, const struct cairn_yaml_node *n)
{
    struct cairn_str range = {0};
    enum cairn_status st;

    cairn_key_range(k, &range);
    st = cairn_yaml_place_fail(c->err, n->at, "%s: %s is out of range: %s", path, n->text, cairn_str_z(&range));
    cairn_str_free(&range);
    return st;
}

static int in_range(const struct cairn_key *k, double x)
{
    return (k->flags & CAIRN_KEY_ABOVE ? x > k->min : x >= k->min) && (k->flags & CAIRN_KEY_BELOW ? x < k->max : x <= k->max);
}

static enum cairn_status made(struct check *c, json_t *v, json_t **out)
{
    if (!v)
        return CAIRN_NOMEM(c->err);
    *out = v;
    return CAIRN_OK;
}

static enum cairn_status take_number(struct check *c, const struct cairn_key *k, const char *path, const struct cairn_yaml_node *n,
                                     int integer, json_t **out)
{
    struct cairn_scalar s;

    if (n->kind != CAIRN_YAML_NODE_SCALAR)
        return wrong(c, k, path, n, "");
    if (k->words && (k->type == CAIRN_KEY_INT || k->type == CAIRN_KEY_FLOAT) && cairn_words_has(k->words, n->text))
        return made(c, json_string(n->text), out);
    if (n->quoted)
        return wrong(c, k, path, n, "");
    cairn_scalar_resolve(n->text, &s);
    if (s.kind == CAIRN_SCALAR_BAD)
        return cairn_yaml_place_fail(c->err, n->at, "%s: %s: %s", path, n->text, s.bad);
    if (s.kind != CAIRN_SCALAR_INT && (integer || s.kind != CAIRN_SCALAR_FLOAT))
        return wrong(c, k, path, n, "");
    if (!in_range(k, s.f))
        return out_of_range(c, k, path, n);
    return made(c, integer ? json_integer(s.i) : json_real(s.f), out);
}

static enum cairn_status take_string(struct check *c, const struct cairn_key *k, const char *path, const struct cairn_yaml_node *n,
                                     json_t **out)
{
    struct cairn_scalar s = {.kind = CAIRN_SCALAR_STRING};

    if (n->kind != CAIRN_YAML_NODE_SCALAR)
        return wrong(c, k, path, n, n->kind == CAIRN_YAML_NODE_MAP ? "; put it in quotes if it is a text with \": \" in it" : "");
    if (!n->quoted)
        cairn_scalar_resolve(n->text, &s);
    if (s.kind != CAIRN_SCALAR_STRING)
        return wrong(c, k, path, n, s.kind == CAIRN_SCALAR_NULL ? "" : "; put it in quotes if it is meant as a text");
    return made(c, json_string(n->text), out);
}

static enum cairn_status take_word(struct check *c, const struct cairn_key *k, const char *path, const struct cairn_yaml_node *n,
                                   json_t **out)
{
    char *near, hint[200] = "";
    enum cairn_status st;

    if (n->kind != CAIRN_YAML_NODE_SCALAR)
        return wrong(c, k, path, n, "");
    if (cairn_words_has(k->words, n->text))
        return made(c, json_string(n->text), out);
    near = cairn_words_nearest(k->words, n->text);
    if (near)
        snprintf(hint, sizeof hint, "; nearest: %s", near);
    st = wrong(c, k, path, n, hint);
    free(near);
    return st;
}

/* dir is absolute and free of links, so its own parts may be cut off by "..", others may not: they could be links. */
static void absolute(const char *dir, const char *text, struct cairn_str *out)
{
    size_t real = 0;

    if (*text != '/' && strcmp(dir, "/") != 0) {
        cairn_str_puts(out, dir);
        real = out->len;
    }
    while (*text) {
        size_t len = strcspn(text, "/");

        if (len == 2 && strncmp(text, "..", 2) == 0 && out->len <= real) {
            while (out->len > 0 && out->p[--out->len] != '/')
                ;
            if (out->p)
                out->p[out->len] = 0;
            real = out->len;
        } else if (len > 0 && !(len == 1 && *text == '.')) {
            cairn_str_putc(out, '/');
            cairn_str_add(out, text, len);
        }
        text += len + (text[len] == '/');
    }
    if (out->len == 0)
        cairn_str_putc(out, '/');
}

static enum cairn_status take_path(struct check *c, const struct cairn_key *k, const char *path, const struct cairn_yaml_node *n,
                                   json_t **out)
{
    struct cairn_str whole = {0};
    json_t *text = NULL;
    enum cairn_status st;

    TRY(take_string(c, k, path, n, &text));
    if (!*n->text)
        TRY(wrong(c, k, path, n, ""));
    absolute(n->at.src->dir, n->text, &whole);
    if (whole.oom)
        TRY(CAIRN_NOMEM(c->err));
    TRY(made(c, json_string(cairn_str_z(&whole)), out));
out:
    json_decref(text);
    cairn_str_free(&whole);
    return st;
}

/* Anything, for free maps. */
static enum cairn_status take_any(struct check *c, const char *path, const struct cairn_yaml_node *n, json_t **out)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_scalar s = {.kind = CAIRN_SCALAR_STRING};
    json_t *v = NULL, *item = NULL;

    if (n->kind == CAIRN_YAML_NODE_SCALAR) {
        if (!n->quoted)
            cairn_scalar_resolve(n->text, &s);
        if (s.kind == CAIRN_SCALAR_BAD)
            return cairn_yaml_place_fail(c->err, n->at, "%s: %s: %s", path, n->text, s.bad);
        if (!n->quoted && cairn_scalar_is_old_bool(n->text))
            return cairn_yaml_place_fail(
                c->err, n->at, "%s: \"%s\" is a boolean to some readers: write true or false, or put it in quotes", path, n->text);
        switch (s.kind) {
        case CAIRN_SCALAR_NULL:
            v = json_null();
            break;
        case CAIRN_SCALAR_BOOL:
            v = json_boolean(s.b);
            break;
        case CAIRN_SCALAR_INT:
            v = json_integer(s.i);
            break;
        case CAIRN_SCALAR_FLOAT:
            v = json_real(s.f);
            break;
        default:
            v = json_string(n->text);
            break;
        }
        return made(c, v, out);
    }
    TRY(made(c, n->kind == CAIRN_YAML_NODE_LIST ? json_array() : json_object(), &v));
    for (int i = 0; i < n->n; i++) {
        TRY(take_any(c, path, n->item[i], &item));
        if (n->kind == CAIRN_YAML_NODE_LIST ? json_array_append(v, item) : json_object_set(v, n->key[i], item))
            TRY(CAIRN_NOMEM(c->err));
        json_decref(item);
        item = NULL;
    }
    *out = v;
    v = NULL;
out:
    json_decref(item);
    json_decref(v);
    return st;
}

static enum cairn_status take_list(struct check *c, const struct cairn_key *k, const char *path, const struct cairn_yaml_node *n,
                                   json_t **out);
static enum cairn_status take_section(struct check *c, const char *path, const char *shown, const struct cairn_yaml_node *n,
                                      json_t **out);

static enum cairn_status take_item(struct check *c, const struct cairn_key *k, const char *path, const struct cairn_yaml_node *n,
                                   json_t **out)
{
    char below[512];

    switch (k->type) {
    case CAIRN_KEY_SECTIONS:
        snprintf(below, sizeof below, "%s.*", k->path);
        if (n->kind != CAIRN_YAML_NODE_MAP)
            return wrong(c, cairn_schema_find(below), path, n, "");
        return take_section(c, below, path, n, out);
    case CAIRN_KEY_FLOATS:
        return take_number(c, k, path, n, 0, out);
    case CAIRN_KEY_WORDS:
        return take_word(c, k, path, n, out);
    case CAIRN_KEY_STRINGS:
        return take_string(c, k, path, n, out);
    case CAIRN_KEY_STOPS: {
        struct cairn_scalar s = {.kind = CAIRN_SCALAR_STRING};

        if (n->kind == CAIRN_YAML_NODE_SCALAR && !n->quoted)
            cairn_scalar_resolve(n->text, &s);
        if (s.kind == CAIRN_SCALAR_INT)
            return take_number(c, k, path, n, 1, out);
        if (n->kind == CAIRN_YAML_NODE_SCALAR && !*n->text)
            return cairn_yaml_place_fail(c->err, n->at, "%s: an empty stop string would end every response at once", path);
        return take_string(c, k, path, n, out);
    }
    case CAIRN_KEY_JOBS: {
        static const struct cairn_key job = {"slurm.jobs", CAIRN_KEY_WORDS, CAIRN_OPS, 0, NULL, 0, 0, NULL, NULL, NULL};
        struct cairn_key words = job;

        words.words = k->words;
        return take_list(c, &words, path, n, out);
    }
    default:
        return CAIRN_BUG(c->err, "no list type");
    }
}

static enum cairn_status take_list(struct check *c, const struct cairn_key *k, const char *path, const struct cairn_yaml_node *n,
                                   json_t **out)
{
    int single = k->type == CAIRN_KEY_STRINGS && n->kind == CAIRN_YAML_NODE_SCALAR;
    enum cairn_status st = CAIRN_OK;
    json_t *list = NULL, *item = NULL;

    if (n->kind != CAIRN_YAML_NODE_LIST && !single)
        return wrong(c, k, path, n, "");
    if (k->type == CAIRN_KEY_FLOATS && n->n != 2)
        return cairn_yaml_place_fail(c->err, n->at, "%s: expected a list of two numbers, found one of %d", path, n->n);
    TRY(made(c, json_array(), &list));
    for (int i = 0; i < (single ? 1 : n->n); i++) {
        const struct cairn_yaml_node *one = single ? n : n->item[i];
        char below[512];

        snprintf(below, sizeof below, "%s.%d", path, i);
        TRY(take_item(c, k, single ? path : below, one, &item));
        for (size_t j = 0; k->type == CAIRN_KEY_WORDS && j < json_array_size(list); j++)
            if (json_equal(json_array_get(list, j), item))
                TRY(cairn_yaml_place_fail(c->err, one->at, "%s: \"%s\" is there twice", path, one->text));
        if (json_array_append(list, item))
            TRY(CAIRN_NOMEM(c->err));
        json_decref(item);
        item = NULL;
    }
    *out = list;
    list = NULL;
out:
    json_decref(item);
    json_decref(list);
    return st;
}

static enum cairn_status take_named(struct check *c, const struct cairn_key *k, const char *path, const struct cairn_yaml_node *n,
                                    json_t **out)
{
    enum cairn_status st = CAIRN_OK;
    json_t *map = NULL, *item = NULL;
    char below[512], shown[512];

    if (n->kind != CAIRN_YAML_NODE_MAP)
        return wrong(c, k, path, n, "");
    TRY(made(c, json_object(), &map));
    snprintf(below, sizeof below, "%s.*", k->path);
    for (int i = 0; i < n->n; i++) {
        snprintf(shown, sizeof shown, "%s.%s", path, n->key[i]);
        if (strchr(n->key[i], '.'))
            TRY(cairn_yaml_place_fail(c->err, n->key_at[i], "%s: a name without '.' belongs here", shown));
        if (n->item[i]->kind != CAIRN_YAML_NODE_MAP)
            TRY(wrong(c, cairn_schema_find(below), shown, n->item[i], ""));
        TRY(take_section(c, below, shown, n->item[i], &item));
        if (json_object_set(map, n->key[i], item))
            TRY(CAIRN_NOMEM(c->err));
        json_decref(item);
        item = NULL;
    }
    *out = map;
    map = NULL;
out:
    json_decref(item);
    json_decref(map);
    return st;
}

/* A section written as the word of its `kind`: a map with that one key. */
static const struct cairn_yaml_node *spell_out(struct check *c, const struct cairn_yaml_node *n)
{
    struct cairn_yaml_node *map = cairn_yaml_node_create(c->arena, CAIRN_YAML_NODE_MAP, n->at, 1);

    if (map) {
        map->key[0] = "kind";
        map->key_at[0] = n->at;
        map->item[0] = n;
        map->n = 1;
    }
    return map;
}

static enum cairn_status take(struct check *c, const struct cairn_key *k, const char *path, const struct cairn_yaml_node *n,
                              json_t **out)
{
    struct cairn_scalar s;
    char kind[512];

    if (cairn_yaml_node_is_null(n)) {
        if (k->flags & CAIRN_KEY_NULL)
            return made(c, json_null(), out);
        return wrong(c, k, path, n, k->type == CAIRN_KEY_SECTION ? "; remove the line or put keys below it" : "");
    }
    switch (k->type) {
    case CAIRN_KEY_SECTION:
        snprintf(kind, sizeof kind, "%s.kind", k->path);
        if (n->kind == CAIRN_YAML_NODE_SCALAR && cairn_schema_find(kind)) {
            n = spell_out(c, n);
            if (!n)
                return CAIRN_NOMEM(c->err);
        }
        if (n->kind != CAIRN_YAML_NODE_MAP)
            return wrong(c, k, path, n, "");
        return take_section(c, k->path, path, n, out);
    case CAIRN_KEY_NAMED:
        return take_named(c, k, path, n, out);
    case CAIRN_KEY_FREE:
        return n->kind == CAIRN_YAML_NODE_MAP ? take_any(c, path, n, out) : wrong(c, k, path, n, "");
    case CAIRN_KEY_INT:
        return take_number(c, k, path, n, 1, out);
    case CAIRN_KEY_FLOAT:
        return take_number(c, k, path, n, 0, out);
    case CAIRN_KEY_BOOL:
        cairn_scalar_resolve(n->text, &s);
        if (n->kind != CAIRN_YAML_NODE_SCALAR || n->quoted || s.kind != CAIRN_SCALAR_BOOL)
            return wrong(c, k, path, n, "");
        return made(c, json_boolean(s.b), out);
    case CAIRN_KEY_STRING:
        return take_string(c, k, path, n, out);
    case CAIRN_KEY_PATH:
        return take_path(c, k, path, n, out);
    case CAIRN_KEY_WORD:
        return take_word(c, k, path, n, out);
    default:
        return take_list(c, k, path, n, out);
    }
}

/* n: a map, or NULL where the whole section is absent (top-level sections, whose keys all have defaults). */
static enum cairn_status take_section(struct check *c, const char *path, const char *shown, const struct cairn_yaml_node *n,
                                      json_t **out)
{
    enum cairn_status st = CAIRN_OK;
    json_t *map = NULL, *v = NULL;
    struct cairn_str hint = {0};
    char below[512];

    for (int i = 0; n && i < n->n; i++) {
        snprintf(below, sizeof below, "%s%s%s", path, *path ? "." : "", n->key[i]);
        if (strchr(n->key[i], '.') && cairn_schema_find(below)) {
            size_t head = strcspn(n->key[i], ".");

            TRY(cairn_yaml_place_fail(c->err, n->key_at[i], "unknown key \"%s\"; in a file keys nest: %.*s: {%s: ...}", below,
                                      (int)head, n->key[i], n->key[i] + head + 1));
        }
        if (strchr(n->key[i], '.') || strcmp(n->key[i], "*") == 0 || !cairn_schema_find(below)) {
            cairn_schema_suggest(path, shown, n->key[i], &hint);
            TRY(cairn_yaml_place_fail(c->err, n->key_at[i], "unknown key \"%s%s%s\"; %s", shown, *shown ? "." : "", n->key[i],
                                      cairn_str_z(&hint)));
        }
    }
    TRY(made(c, json_object(), &map));
    for (const struct cairn_key *k = cairn_schema_child(path, NULL); k; k = cairn_schema_child(path, k)) {
        const struct cairn_yaml_node *mine = n ? cairn_yaml_node_member(n, cairn_key_leaf(k), NULL) : NULL;

        snprintf(below, sizeof below, "%s%s%s", shown, *shown ? "." : "", cairn_key_leaf(k));
        if (mine)
            TRY(take(c, k, below, mine, &v));
        else if (k->flags & CAIRN_KEY_REQUIRED)
            TRY(cairn_yaml_place_fail(c->err, n->at, "%s: missing, and it has no default", below));
        else if (k->type == CAIRN_KEY_SECTION && !(k->flags & CAIRN_KEY_NULL))
            TRY(take_section(c, k->path, below, NULL, &v));
        else
            TRY(made(c, cairn_recipe_default(k), &v));
        if (json_object_set(map, cairn_key_leaf(k), v))
            TRY(CAIRN_NOMEM(c->err));
        json_decref(v);
        v = NULL;
    }
    *out = map;
    map = NULL;
out:
    cairn_str_free(&hint);
    json_decref(v);
    json_decref(map);
    return st;
}

enum cairn_status cairn_recipe_resolve(struct cairn_arena *a, const struct cairn_yaml_node *root, json_t **tree,
                                       struct cairn_error *err)
{
    struct check c = {a, err};

    return take_section(&c, "", "", root, tree);
}

json_t *cairn_recipe_default(const struct cairn_key *k)
{
    static const struct cairn_yaml_source schema = {"schema", "/"};
    struct cairn_yaml_place at = {&schema, 1, 1};
    struct check c = {cairn_arena_create(), NULL};
    const struct cairn_yaml_node *n = NULL;
    json_t *v = NULL;

    if (c.arena && cairn_yaml_parse(c.arena, k->def, strlen(k->def), at, 0, &n, NULL) == CAIRN_OK &&
        take(&c, k, k->path, n, &v) != CAIRN_OK)
        v = NULL;
    cairn_arena_destroy(c.arena);
    return v;
}

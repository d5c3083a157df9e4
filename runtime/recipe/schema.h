/* schema.h - the one table of all keys a recipe can have, and what can be asked of it.
 *
 * A path names a key with '*' for the elements of a list or the free names of a map: data.prompts.*.weight. The table is
 * in the order in which the resolved form and recipes/base.yaml print it; a section stands before its keys.
 * Adding a key: one entry here, `build/tests/base_yaml_test --print > recipes/base.yaml`; see recipe.h for what its default must
 * be.
 */
#ifndef CAIRN_RECIPE_SCHEMA_H
#define CAIRN_RECIPE_SCHEMA_H

#include <stddef.h>

#include "base/str.h"
#include "recipe/recipe.h"

enum cairn_key_type {
    CAIRN_KEY_SECTION,  /* map with the keys of the table below it; default "null" makes it optional */
    CAIRN_KEY_SECTIONS, /* list of sections (path.*) */
    CAIRN_KEY_NAMED,    /* map of free names to sections (path.*) */
    CAIRN_KEY_FREE,     /* map of anything */
    CAIRN_KEY_INT,
    CAIRN_KEY_FLOAT,
    CAIRN_KEY_BOOL,
    CAIRN_KEY_STRING,
    CAIRN_KEY_PATH,
    CAIRN_KEY_WORD,    /* one of `words` */
    CAIRN_KEY_STRINGS, /* list of strings */
    CAIRN_KEY_WORDS,   /* list of words, none twice */
    CAIRN_KEY_FLOATS,  /* list of two numbers */
    CAIRN_KEY_STOPS,   /* list of token ids and strings */
    CAIRN_KEY_JOBS     /* list of lists of words */
};

enum {
    CAIRN_KEY_NULL = 1,     /* may be null */
    CAIRN_KEY_REQUIRED = 2, /* has no default */
    CAIRN_KEY_ABOVE = 4,    /* min itself is out */
    CAIRN_KEY_BELOW = 8     /* max itself is out */
};

struct cairn_key {
    const char *path;
    enum cairn_key_type type;
    enum cairn_recipe_class class;
    int flags;
    const char *def;   /* YAML; NULL when required or never printed */
    double min, max;   /* of numbers and of each number in a list */
    const char *words; /* "a|b|c": of words; of an int or a float: words it may be instead */
    const char *unit;  /* or NULL */
    const char *doc;
};

const struct cairn_key *cairn_schema_table(size_t *n);
/* By exact path, '*' included. NULL: no such key. */
const struct cairn_key *cairn_schema_find(const char *path);
/* The next direct child of section `path` ("" is the top) after `after` (NULL: the first). */
const struct cairn_key *cairn_schema_child(const char *path, const struct cairn_key *after);
const char *cairn_key_leaf(const struct cairn_key *k); /* last part of the path */
/* "integer", "list of strings", ...; words are spelled out. Appends. */
void cairn_key_expects(const struct cairn_key *k, struct cairn_str *out);
/* "above 0, at most 1"; nothing when there are no limits. Appends. */
void cairn_key_range(const struct cairn_key *k, struct cairn_str *out);
/* What the user may have meant by `name` in section `path`: "nearest valid key: train.learning_rate" or "valid here: a, b".
 * Appends; `shown` is the section's path for people (numbers for '*'). */
void cairn_schema_suggest(const char *path, const char *shown, const char *name, struct cairn_str *out);
const char *cairn_class_name(enum cairn_recipe_class c);
/* The word of "a|b|c" nearest to text, malloc'ed; NULL if none is near. */
char *cairn_words_nearest(const char *words, const char *text);
int cairn_words_has(const char *words, const char *text);

/* The text of recipes/base.yaml. Appends. */
void cairn_schema_print(struct cairn_str *out);

#endif

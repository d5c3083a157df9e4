/* recipe.h - what a run is asked to do: YAML files with inheritance and overrides, held against one strict schema.
 *
 * A recipe is a YAML map. Every key that exists stands in runtime/recipe/schema.c and, with unit and default, in
 * recipes/base.yaml; an unknown key, a wrong type or a value out of range is CAIRN_ERECIPE with
 *     FILE:LINE:COL: unknown key "train.lerning_rate"; nearest valid key: train.learning_rate
 * For an override from the command line FILE is "command line", LINE the number of the argument (from 1).
 *
 *   inherit: base.yaml         one name or a list, relative to the folder of the file that holds it. Depth first;
 *                              later parents over earlier ones, the file itself over all of them. Maps merge, lists
 *                              and scalars are replaced. A file that inherits itself is refused.
 *   a.b.c=value                an override; value in YAML syntax; numbers name list elements (data.prompts.0.path=x).
 *   path values                count from the folder of the file that holds them, on the command line from the current
 *                              folder; the resolved form holds them absolute.
 *   null                       is a value of its own ("off", "as elsewhere": the key's comment says) and allowed only
 *                              where the schema says so. An absent key has its default. An optional section is null
 *                              until it is given; once given, its absent keys have their defaults.
 *   scalars                    true and false are the booleans; 1e-5 is a number; a word that reads as a number is not a
 *                              string unless quoted; numbers with a leading zero, infinities and NaN are refused.
 *                              A list of strings may be given as one string, a section with `kind` as that word.
 * Refused: tags, merge keys (<<), several documents, duplicate keys, byte order marks, aliases that expand beyond the
 * limits of yaml.h.
 *
 * Which keys make a run what it is: science (the numbers), layout (how they are cut over devices: may change last bits),
 * ops (never changes a bit). Hashes take science and layout in. A key at its default is left out of them: so a later key
 * must have as default what was done before it, and a default never changes. Of path values they take the base name
 * only, so that two clones agree: content is recorded by digest when a run is made.
 *
 * Memory: an opaque struct owns everything; what getters return is borrowed until cairn_recipe_free or _apply.
 * A const recipe may be read by several threads. Refuses to: touch anything but the recipe's own files; know any stage.
 */
#ifndef CAIRN_RECIPE_RECIPE_H
#define CAIRN_RECIPE_RECIPE_H

#include <jansson.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/status.h"
#include "base/str.h"

enum cairn_recipe_class {
    CAIRN_SCIENCE = 1,
    CAIRN_LAYOUT = 2,
    CAIRN_OPS = 4,
    CAIRN_MOVED = 8 /* in cairn_recipe_diff: path values of which only the folder differs */
};

struct cairn_recipe;

/* Reads path, its parents and the n overrides; checks everything that can be known without the model. */
enum cairn_status cairn_recipe_load(struct cairn_recipe **out, const char *path, int n, const char *const *overrides,
                                    struct cairn_error *err);
/* The same for a recipe that is only a part (`score:` alone, base.yaml): what a whole run must name may be missing. */
enum cairn_status cairn_recipe_load_part(struct cairn_recipe **out, const char *path, int n, const char *const *overrides,
                                         struct cairn_error *err);
/* A file that cairn_recipe_write made: no `inherit`. Keys that it lacks are younger than it and have their defaults. */
enum cairn_status cairn_recipe_from_resolved(struct cairn_recipe **out, const char *path, struct cairn_error *err);
void cairn_recipe_free(struct cairn_recipe *r); /* NULL is fine */

/* Lays n overrides over r. `from` names the file that holds them (an amendment): it stands in errors and relative paths
 * count from its folder; NULL: the command line. On failure r is as it was. */
enum cairn_status cairn_recipe_apply(struct cairn_recipe *r, int n, const char *const *overrides, const char *from,
                                     struct cairn_error *err);

/* Appends the resolved form: every key, defaults too; reading it gives an equal recipe, floats to the bit. */
enum cairn_status cairn_recipe_write(const struct cairn_recipe *r, struct cairn_str *yaml, struct cairn_error *err);
/* The resolved tree: nested objects in the schema's order. Borrowed. */
const json_t *cairn_recipe_json(const struct cairn_recipe *r);

/* Over science and layout keys; over science keys alone. */
enum cairn_status cairn_recipe_hash(const struct cairn_recipe *r, struct cairn_digest *out, struct cairn_error *err);
enum cairn_status cairn_recipe_science_hash(const struct cairn_recipe *r, struct cairn_digest *out, struct cairn_error *err);

/* Appends a line "train.learning_rate: 1e-5 -> 2e-5 (science)\n" for each key of the asked classes (or-ed) that differs;
 * returns their number. Without CAIRN_MOVED, paths with equal base names count as equal, as in the hash. */
int cairn_recipe_diff(const struct cairn_recipe *a, const struct cairn_recipe *b, int classes, struct cairn_str *out);

/* Values by dotted path; list elements by number ("data.prompts.0.path"). The schema guarantees that a key is there
 * unless it may be null or stands in an optional section that is: ask cairn_recipe_has first. A path that is no key, or
 * a value of another type, is a bug of the caller and an assertion. */
int cairn_recipe_has(const struct cairn_recipe *r, const char *path); /* there and not null */
int64_t cairn_recipe_i64(const struct cairn_recipe *r, const char *path);
double cairn_recipe_f64(const struct cairn_recipe *r, const char *path);
int cairn_recipe_bool(const struct cairn_recipe *r, const char *path);
const char *cairn_recipe_str(const struct cairn_recipe *r, const char *path); /* also enums and paths */
const json_t *cairn_recipe_list(const struct cairn_recipe *r, const char *path);
const json_t *cairn_recipe_get(const struct cairn_recipe *r, const char *path); /* any value; NULL if absent or null */

/* For checks elsewhere (the model's on model.init): fails with CAIRN_ERECIPE and "FILE:LINE:COL: path: sentence", the
 * place where that key (or the nearest thing around it) was written. */
enum cairn_status cairn_recipe_fail(const struct cairn_recipe *r, const char *path, struct cairn_error *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif

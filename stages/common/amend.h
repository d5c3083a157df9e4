/* amend.h - numbered amendments: science and layout keys of a run that change from a step on, on the record.
 *
 *     RUN/recipe.amend-0001.json, recipe.amend-0002.json, ...   numbers without a gap, never changed, never removed
 * a checked document (ckpt/manifest.h):
 *     {"format": "cairn amendment", "version": 1, "number": 1, "run": "<uuid>", "from_step": 12,
 *      "set": ["train.learning_rate=5e-7", ...], "recipe": "<hash of recipe.yaml with this and all lower numbers laid over it>",
 *      "cairn": "<version>", "wall": <seconds since 1970>,
 *      "origin": {"run": "<uuid>", "number": 1}}              only where it was taken along from that run (cairn replay --train)
 * run.json holds how many there are, written after each, so that one which is lost is missed.
 * What step s is made by: recipe.yaml with all amendments of from_step <= s, in the order of their numbers (a later word overrules an
 * earlier one). Its hash is what the artefacts of step s carry. Step s means rollout, score, train, the policy that sync yields and the
 * evaluations of that policy. recipe.yaml itself keeps its science and layout keys for ever; its ops keys follow each `cairn run`.
 *
 * Refused: keys of class ops (they may change at any `cairn run`), keys that belong to the beginning of a run (model, warm_start, which
 * files, seed), a step that something committed has reached, and another number of training ranks right behind a state that is in memory only.
 */
#ifndef CAIRN_STAGES_COMMON_AMEND_H
#define CAIRN_STAGES_COMMON_AMEND_H

#include <jansson.h>

#include "base/str.h"
#include "stages/common/run.h"

struct cairn_amendment {
    int number;
    int64_t from_step;
    json_t *set;   /* array of "key=value"; owned */
    double wall_s; /* when */
    char origin[33];   /* the run from which it was taken along, and its number there; "" and 0: it was made here */
    int origin_number;
};

/* What steps from `from` on (up to the next view) see. Ascending. */
struct cairn_view {
    int64_t from;
    struct cairn_recipe *recipe; /* owned */
    struct cairn_digest hash;
};

struct cairn_amendments {
    int n, views;
    struct cairn_amendment *amendment; /* (n) by number */
    struct cairn_view *view;           /* (views) */
};

/* Reads those of r, whose recipe.yaml is r->frozen. *out is NULL where there is none. CAIRN_EDATA for one that is damaged or missing in
 * between, or where recipe.yaml is not the one that was amended. */
enum cairn_status cairn_amendments_load(struct cairn_amendments **out, const struct cairn_run *r, struct cairn_error *err);
void cairn_amendments_free(struct cairn_amendments *a); /* NULL is fine */

/* [{"number", "from_step", "set": [...], "wall", "origin"?}, ...] in the order of numbers, empty where there is none. NULL without memory. */
json_t *cairn_amendments_json(const struct cairn_run *r);

/* The frozen recipe with amendments 1 .. n of r laid over it, whatever their steps. Caller frees. */
enum cairn_status cairn_amendments_first(const struct cairn_run *r, int n, struct cairn_recipe **out, struct cairn_error *err);
/* Puts the keys of amendments 1 .. n in `recipe` back to what they are in r->frozen. */
enum cairn_status cairn_amendments_revert(const struct cairn_run *r, int n, struct cairn_recipe *recipe, struct cairn_error *err);

/* Would all of r's amendments be possible over `recipe`, which differs from r->frozen in ops keys only? It comes out as it went in. */
enum cairn_status cairn_amendments_fit(const struct cairn_run *r, struct cairn_recipe *recipe, struct cairn_error *err);

/* Amends r from step `from` on with n overrides "key=value". *number: of the amendment, or 0 if it would change nothing (it was made before).
 * `diff` gets the lines of what changes ("train.learning_rate: 1e-6 -> 5e-7 (science)"). CAIRN_ERECIPE names what is refused, or the
 * artefact that is there already. The caller holds the run's lock, and opens the run anew. Durable; all of it or nothing. With dry, nothing
 * is written and *number is what it would be. */
enum cairn_status cairn_run_amend(struct cairn_run *r, int64_t from, int n, const char *const *set, int dry, int *number,
                                  struct cairn_str *diff, struct cairn_error *err);
/* Takes `copy` along from another run: from_step, set and origin are what is written, even where it changes nothing. *number: of the new one.
 * Errors and lock as above. */
enum cairn_status cairn_run_amend_copy(struct cairn_run *r, const struct cairn_amendment *copy, int *number, struct cairn_error *err);

/* Can a run in dir change from `before` to `after` at `step`? CAIRN_ERECIPE names the first key that cannot. */
enum cairn_status cairn_amendment_check(const char *dir, const struct cairn_recipe *before, const struct cairn_recipe *after, int64_t step,
                                        struct cairn_error *err);

#endif

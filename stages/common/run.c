/* run.c - opens and makes run directories: recipe.yaml, run.json, outside files by digest, the link to the base.
 *
 * run.json (a checked document of ckpt/manifest.h):
 *   {"format": "cairn run", "version": 1, "uuid": "<32 hex>", "cairn": "<version>", "recipe": "<hash of the frozen recipe>",
 *    "amendments": n (at least so many there are; absent: none),
 *    "outside": {"model.tokenizer": {"path": "/abs", "size": n, "digest": "<32 hex>", "copy": "files/model.tokenizer"}, ...}}
 * It is written last; a directory without it is not a run yet. Outside files up to COPY_MAX are copied and from then on
 * the copy is what counts; larger ones stay where they are and must stay as they are.
 */
#include "stages/common/run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/build.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "ckpt/verify.h"
#include "stages/common/amend.h"
#include "stages/common/begin.h"

#define COPY_MAX (64 << 20)
#define RUN_JSON_MAX (16 << 20)

char *cairn_run_path(const struct cairn_run *r, const char *relative)
{
    return cairn_path_join(r->dir, relative);
}

int cairn_run_resident(const struct cairn_run *r)
{
    return !strcmp(cairn_recipe_str(r->frozen, "run.mode"), "resident");
}

int cairn_run_base_given(const struct cairn_run *r)
{
    char *path = cairn_run_path(r, "base");
    struct stat sb;
    int link = path && !lstat(path, &sb) && S_ISLNK(sb.st_mode);

    free(path);
    return link;
}

void cairn_run_close(struct cairn_run *r)
{
    if (!r)
        return;
    cairn_recipe_free(r->frozen);
    cairn_amendments_free(r->amendments);
    json_decref(r->info);
    free(r->dir);
    free(r);
}

static enum cairn_status run_create(struct cairn_run **out, const char *dir, struct cairn_error *err)
{
    struct cairn_run *r = calloc(1, sizeof *r);

    if (!r)
        return CAIRN_NOMEM(err);
    r->dir = realpath(dir, NULL);
    if (!r->dir) {
        free(r);
        return cairn_fail(err, errno == ENOMEM ? CAIRN_ENOSPACE : CAIRN_ENOINPUT, "%s: %s", dir, strerror(errno));
    }
    *out = r;
    return CAIRN_OK;
}

/* Says behind the sentence what to do. */
static void advise(struct cairn_error *err, const char *what)
{
    struct cairn_error why;

    if (!err)
        return;
    why = *err;
    cairn_fail(err, why.code, "%.280s; %s", why.text, what);
}

enum cairn_status cairn_run_recipe_wrong(const char *path, enum cairn_status st, struct cairn_error *err)
{
    char *dir = cairn_path_dirname(path);
    size_t n = strlen(path);

    if (dir && err && st != CAIRN_OK && !strncmp(err->text, path, n) && err->text[n] == ':' && cairn_run_there(dir))
        advise(err, "this is the recipe that the run was made with: put back what was changed by hand; to change a key from a step on: "
                    "cairn amend RUN key=value --from-step N");
    free(dir);
    return st;
}

static enum cairn_status info_load(struct cairn_run *r, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_run_path(r, CAIRN_RUN_NAME), *text = NULL;
    const char *uuid;
    size_t n;
    int64_t version;

    if (!path)
        return CAIRN_NOMEM(err);
    TRY(cairn_file_read(path, RUN_JSON_MAX, &text, &n, err));
    TRY(cairn_checked_parse(&r->info, text, n, path, err));
    TRY(cairn_json_i64(r->info, "version", 1, 1, &version, path, err));
    TRY(cairn_json_string(r->info, "uuid", &uuid, path, err));
    if (strlen(uuid) != 32)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: key \"uuid\": expected 32 hex digits", path));
    memcpy(r->uuid, uuid, 33);
out:
    if (st == CAIRN_EDATA)
        advise(err, "nothing can make it again: put back a copy of it; without one, what was trained can leave the run for a new one: "
                    "cairn export RUN/policy/NNNNNN --out HF_DIR");
    free(path);
    free(text);
    return st;
}

static enum cairn_status recipe_load(struct cairn_run *r, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_run_path(r, "recipe.yaml");
    const char *hex = json_string_value(json_object_get(r->info, "recipe"));
    struct cairn_digest made;

    if (!path)
        TRY(CAIRN_NOMEM(err));
    if (!cairn_path_exists(path))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s is missing; put back the recipe that the run was made with (science and layout keys of hash %s)", path,
                       hex ? hex : "unknown"));
    TRY(cairn_run_recipe_wrong(path, cairn_recipe_from_resolved(&r->frozen, path, err), err));
    r->recipe = r->frozen;
    TRY(cairn_recipe_hash(r->frozen, &r->frozen_hash, err));
    r->hash = r->frozen_hash;
    if (cairn_digest_parse(hex ? hex : "", &made) && !cairn_digest_equal(made, r->hash))
        TRY(cairn_fail(err, CAIRN_ERECIPE,
                       "%s: a science or layout key is not what the run was made with; put it back, then: cairn amend %s key=value --from-step N",
                       path, r->dir));
    TRY(cairn_amendments_load(&r->amendments, r, err));
out:
    free(path);
    return st;
}

static void recipe_drop(struct cairn_run *r)
{
    cairn_recipe_free(r->frozen);
    cairn_amendments_free(r->amendments);
    r->recipe = r->frozen = NULL;
    r->amendments = NULL;
}

/* 0: certainly not. In doubt it is there: run.json must never be made anew beside the artefacts of an old one. */
static int has_file(const struct cairn_run *r, const char *name)
{
    char *path = cairn_run_path(r, name);
    int there = !path || cairn_path_exists(path);

    free(path);
    return there;
}

int cairn_run_there(const char *dir)
{
    char *path = cairn_path_join(dir, CAIRN_RUN_NAME);
    int there = !path || cairn_path_exists(path);

    free(path);
    return there;
}

enum cairn_status cairn_run_open(struct cairn_run **out, const char *dir, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_run *r = NULL;

    TRY(run_create(&r, dir, err));
    if (!has_file(r, CAIRN_RUN_NAME) && has_file(r, "MANIFEST.json"))
        TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s is a checkpoint, not a run (run.json is missing)", dir));
    if (cairn_file_size(dir) >= 0)
        TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s is a file; a run is a directory", dir));
    if (!has_file(r, CAIRN_RUN_NAME))
        TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s: no run here (run.json is missing); make one with: cairn init RECIPE --run %s", dir, dir));
    TRY(info_load(r, err));
    TRY(recipe_load(r, err));
    *out = r;
    r = NULL;
out:
    cairn_run_close(r);
    return st;
}

enum cairn_status cairn_run_open_bare(struct cairn_run **out, const char *dir, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_run *r = NULL;

    TRY(run_create(&r, dir, err));
    TRY(info_load(r, err));
    *out = r;
    r = NULL;
out:
    cairn_run_close(r);
    return st;
}

/* ---- outside files ----------------------------------------------------------------------------------------------- */

struct taking {
    struct cairn_run *run;
    json_t *outside;
};

static enum cairn_status outside_take(void *arg, const char *key, const char *path, struct cairn_error *err)
{
    struct cairn_run *r = ((struct taking *)arg)->run;
    json_t *outside = ((struct taking *)arg)->outside;
    enum cairn_status st = CAIRN_OK;
    struct cairn_digest d;
    char hex[33], *copy = NULL, *text = NULL, *target = NULL, *dir = NULL;
    json_t *o = NULL;
    int64_t size;
    size_t n;
    int program = cairn_starts_with(key, "score.graders."); /* stays where its neighbours are */

    if (cairn_path_is_dir(path))
        TRY(cairn_recipe_fail(r->recipe, key, err, "%s is a directory; name the file", path));
    if (!cairn_path_exists(path))
        TRY(cairn_recipe_fail(r->recipe, key, err, "%s does not exist", path));
    TRY(cairn_digest_file(path, &d, &size, err));
    cairn_digest_hex(d, hex);
    o = json_pack("{s:s, s:I, s:s}", "path", path, "size", (json_int_t)size, "digest", hex);
    if (!o)
        TRY(CAIRN_NOMEM(err));
    if (size <= COPY_MAX && !program) {
        copy = cairn_format("files/%s", key);
        target = copy ? cairn_run_path(r, copy) : NULL;
        dir = cairn_run_path(r, "files");
        if (!target || !dir)
            TRY(CAIRN_NOMEM(err));
        TRY(cairn_dir_make(dir, err));
        TRY(cairn_file_read(path, COPY_MAX, &text, &n, err));
        if ((int64_t)n != size || !cairn_digest_equal(cairn_digest_bytes(text, n), d))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s changed while it was read", path));
        TRY(cairn_file_replace(target, text, n, err));
        if (json_object_set_new(o, "copy", json_string(copy)))
            TRY(CAIRN_NOMEM(err));
    }
    if (json_object_set(outside, key, o))
        TRY(CAIRN_NOMEM(err));
out:
    json_decref(o);
    free(copy);
    free(text);
    free(target);
    free(dir);
    return st;
}

/* What an outside file is called and where the recipe says it is: fn for each. */
static enum cairn_status outside_each(const struct cairn_recipe *recipe,
                                      enum cairn_status (*fn)(void *arg, const char *key, const char *path, struct cairn_error *err), void *arg,
                                      struct cairn_error *err)
{
    static const char *const lists[] = {"data.prompts", "data.eval"};
    json_t *graders = (json_t *)cairn_recipe_get(recipe, "score.graders"); /* jansson's loop wants it so */
    enum cairn_status st = CAIRN_OK;
    char *tokenizer = NULL;
    const char *name;
    json_t *v;

    TRY(cairn_begin_tokenizer(recipe, &tokenizer, err));
    TRY(fn(arg, "model.tokenizer", tokenizer, err));
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
        const json_t *list = cairn_recipe_get(recipe, lists[k]);

        for (size_t i = 0; i < json_array_size(list); i++) {
            char *key = cairn_format("%s.%zu", lists[k], i);

            st = key ? fn(arg, key, json_string_value(json_object_get(json_array_get(list, i), "path")), err) : CAIRN_NOMEM(err);
            free(key);
            TRY(st);
        }
    }
    if (cairn_recipe_has(recipe, "warm_start"))
        TRY(fn(arg, "warm_start.data", cairn_recipe_str(recipe, "warm_start.data"), err));
    json_object_foreach(graders, name, v)
        if (json_is_string(json_object_get(v, "program"))) {
            char *key = cairn_format("score.graders.%s.program", name);

            st = key ? fn(arg, key, json_string_value(json_object_get(v, "program")), err) : CAIRN_NOMEM(err);
            free(key);
            TRY(st);
        }
out:
    free(tokenizer);
    return st;
}

/* What to do about an outside file at p that is missing or another: the digest says which file it must be; the run's own copy can be
 * made again as long as the file that it was taken from is what it was. */
static enum cairn_status outside_lost(const char *key, const char *p, const char *original, const char *hex, const char *what,
                                      struct cairn_error *err)
{
    struct cairn_digest want, have;

    if (!strcmp(p, original))
        return cairn_fail(err, CAIRN_EDATA, "%s: %s %s; put back the file with digest %s, or start a new run", key, p, what, hex);
    if (cairn_digest_parse(hex, &want) && cairn_digest_file(original, &have, NULL, NULL) == CAIRN_OK && cairn_digest_equal(want, have))
        return cairn_fail(err, CAIRN_EDATA, "%s: %s %s; put it back: cp %s %s", key, p, what, original, p);
    return cairn_fail(err, CAIRN_EDATA, "%s: %s %s; put back the file with digest %s, which was at %s, or start a new run", key, p, what, hex,
                      original);
}

enum cairn_status cairn_run_outside(const struct cairn_run *r, const char *key, char **path, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char what[120];
    const json_t *o = json_object_get(json_object_get(r->info, "outside"), key);
    const char *where = CAIRN_RUN_NAME, *original, *hex, *copy;
    struct cairn_digest want, have;
    int64_t size, now;
    char *p = NULL;

    if (!o)
        return cairn_fail(err, CAIRN_EDATA, "%s/run.json: no outside file %s", r->dir, key);
    TRY(cairn_json_string(o, "path", &original, where, err));
    TRY(cairn_json_string(o, "digest", &hex, where, err));
    TRY(cairn_json_i64(o, "size", 0, INT64_MAX, &size, where, err));
    copy = json_string_value(json_object_get(o, "copy"));
    p = copy ? cairn_run_path(r, copy) : strdup(original);
    if (!p)
        TRY(CAIRN_NOMEM(err));
    if (!cairn_digest_parse(hex, &want))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s/run.json: %s: bad digest", r->dir, key));
    if (!cairn_path_exists(p))
        TRY(outside_lost(key, p, original, hex, "is missing", err));
    TRY(cairn_digest_file(p, &have, &now, err));
    snprintf(what, sizeof what, "changed since the run was made (%lld bytes then, %lld now)", (long long)size, (long long)now);
    if (now != size || !cairn_digest_equal(want, have))
        TRY(outside_lost(key, p, original, hex, what, err));
    *path = p;
    p = NULL;
out:
    free(p);
    return st;
}

/* ---- making a run ------------------------------------------------------------------------------------------------- */

static enum cairn_status recipe_write(struct cairn_run *r, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_str yaml = {0};
    char *path = cairn_run_path(r, "recipe.yaml");

    if (!path)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_recipe_write(r->recipe, &yaml, err));
    if (yaml.oom)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_file_replace(path, yaml.p, yaml.len, err));
out:
    cairn_str_free(&yaml);
    free(path);
    return st;
}

enum cairn_status cairn_run_save_info(struct cairn_run *r, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_run_path(r, CAIRN_RUN_NAME), *text = NULL;
    size_t n;

    if (!path)
        TRY(CAIRN_NOMEM(err));
    json_object_del(r->info, "check"); /* of what was read */
    TRY(cairn_checked_text(r->info, &text, &n, err));
    TRY(cairn_file_replace(path, text, n, err));
out:
    free(path);
    free(text);
    return st;
}

static enum cairn_status info_make(struct cairn_run *r, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    unsigned char random[16];
    char hex[33];
    json_t *outside = json_object();

    if (!outside)
        TRY(CAIRN_NOMEM(err));
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        TRY(cairn_fail_errno(err, errno, "getrandom"));
    cairn_digest_hex(cairn_digest_bytes(random, sizeof random), r->uuid);
    TRY(outside_each(r->recipe, outside_take, &(struct taking){r, outside}, err));
    cairn_digest_hex(r->hash, hex);
    r->info = json_pack("{s:s, s:i, s:s, s:s, s:s, s:O}", "format", "cairn run", "version", 1, "uuid", r->uuid, "cairn", cairn_build_version(),
                        "recipe", hex, "outside", outside);
    if (!r->info)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_run_save_info(r, err));
out:
    json_decref(outside);
    return st;
}

/* A recipe that names an outside file elsewhere (or the same place) must mean the content the run was made with. */
static enum cairn_status outside_same(void *arg, const char *key, const char *path, struct cairn_error *err)
{
    struct cairn_run *r = arg;
    json_t *o = json_object_get(json_object_get(r->info, "outside"), key);
    const char *hex = json_string_value(json_object_get(o, "digest")), *was = json_string_value(json_object_get(o, "path"));
    struct cairn_digest want, have;
    enum cairn_status st;

    if (!hex || !was || !cairn_digest_parse(hex, &want))
        return cairn_fail(err, CAIRN_EDATA, "%s/run.json: no digest for %s", r->dir, key);
    if (!cairn_path_exists(path) && json_object_get(o, "copy"))
        return CAIRN_OK; /* the run has its own copy */
    if (!cairn_path_exists(path))
        return outside_lost(key, path, was, hex, "is missing", err);
    st = cairn_digest_file(path, &have, NULL, err);
    if (st != CAIRN_OK)
        return st;
    if (!cairn_digest_equal(want, have))
        return cairn_fail(err, CAIRN_ERECIPE, "%s: %s is not the file that the run in %s was made with (%s then); put it back, or start a new run",
                          key, path, r->dir, was);
    if (strcmp(path, was) && json_object_set_new(o, "path", json_string(path))) /* it moved */
        return CAIRN_NOMEM(err);
    return CAIRN_OK;
}

/* Is `recipe` the frozen one in what makes a run what it is, or that with the first few amendments? In the latter case the amended keys
 * are put back: the amendments say what they are from which step on. */
static enum cairn_status recipe_same(struct cairn_run *r, struct cairn_recipe *recipe, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const char *dir = strlen(r->dir) > 56 ? "DIR" : r->dir; /* where the sentence would not hold it four times */
    struct cairn_str diff = {0}, other = {0};
    int n = r->amendments ? r->amendments->n : 0, same = 0;

    if (!cairn_recipe_diff(r->frozen, recipe, CAIRN_SCIENCE | CAIRN_LAYOUT, &diff))
        goto out;
    for (int k = n; k > 0 && !same; k--) {
        struct cairn_recipe *amended = NULL;

        TRY(cairn_amendments_first(r, k, &amended, err));
        same = !cairn_recipe_diff(amended, recipe, CAIRN_SCIENCE | CAIRN_LAYOUT, &other);
        cairn_recipe_free(amended);
        if (same)
            TRY(cairn_amendments_revert(r, k, recipe, err));
    }
    if (same)
        goto out;
    if (diff.len && diff.p[diff.len - 1] == '\n')
        diff.p[--diff.len] = 0;
    TRY(cairn_fail(err, CAIRN_ERECIPE,
                   "%s holds a run of another recipe: %.*s; to go on with that one: cairn run %s; to change it "
                   "from a step on: cairn amend %s key=value --from-step N; or take a new directory",
                   r->dir, dir == r->dir ? (int)(300 - 3 * strlen(dir)) : 240, cairn_str_z(&diff), dir, dir));
out:
    cairn_str_free(&diff);
    cairn_str_free(&other);
    return st;
}

/* What a run goes on with otherwise, a line each: a key that was left out on the command line this time, run.steps say, would be missed in
 * silence. */
static void changes_tell(const struct cairn_run *r, const char *lines)
{
    for (size_t n; *lines; lines += n + (lines[n] == '\n')) {
        n = strcspn(lines, "\n");
        cairn_info("%s: from now on %.*s", r->dir, (int)n, lines);
    }
}

/* The run is there: the recipe must be the same in what makes a run what it is; ops keys and places of files follow the new one. */
static enum cairn_status recipe_compare(struct cairn_run *r, struct cairn_recipe *recipe, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_str diff = {0};

    TRY(recipe_same(r, recipe, err));
    TRY(outside_each(recipe, outside_same, r, err));
    if (cairn_recipe_diff(r->frozen, recipe, CAIRN_SCIENCE | CAIRN_LAYOUT | CAIRN_OPS | CAIRN_MOVED, &diff) > 0) {
        TRY(cairn_amendments_fit(r, recipe, err));
        TRY(cairn_run_save_info(r, err));
        r->recipe = recipe;
        st = recipe_write(r, err);
        r->recipe = r->frozen;
        TRY(st);
        changes_tell(r, cairn_str_z(&diff));
        recipe_drop(r);
        TRY(recipe_load(r, err));
    }
out:
    cairn_str_free(&diff);
    return st;
}

/* What killed calls left of files being replaced; the caller holds the run's lock. RUN/base is swept only if it is our own. */
static void sweep(const struct cairn_run *r)
{
    static const char *const dirs[] = {"", "files", "base"};

    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        char *path = cairn_run_path(r, dirs[i]);
        struct stat sb;

        if (path && !lstat(path, &sb) && (S_ISDIR(sb.st_mode) || !i))
            cairn_dir_sweep(path);
        free(path);
    }
}

/* A new run wants a directory of its own: empty, or what an init or a replay that was killed left behind (recorded.jsonl: rows from a pipe). */
static enum cairn_status place_check(const struct cairn_run *r, struct cairn_error *err)
{
    static const char *const ours[] = {".lock", "recipe.yaml", "files", "base", "policy", "log", "recorded.jsonl"};
    const size_t n = sizeof ours / sizeof *ours;
    enum cairn_status st = CAIRN_OK;
    struct cairn_names names = {0};

    TRY(cairn_dir_names(&names, r->dir, NULL, err));
    for (size_t k = 0; k < names.n; k++) {
        size_t i = 0;

        while (i < n && strcmp(names.name[k], ours[i]))
            i++;
        if (i == n && !strstr(names.name[k], ".tmp"))
            TRY(cairn_fail(err, CAIRN_EUSAGE, "%s is not empty (%s) and holds no run; name a new directory", r->dir, names.name[k]));
    }
out:
    cairn_names_free(&names);
    return st;
}

/* The run as its recipe says, without a weight. */
static enum cairn_status draft(struct cairn_run **out, const char *dir, struct cairn_recipe *recipe, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_run *r = NULL;

    TRY(cairn_dir_make(dir, err));
    TRY(run_create(&r, dir, err));
    sweep(r);
    if (has_file(r, CAIRN_RUN_NAME)) {
        TRY(info_load(r, err));
        TRY(recipe_load(r, err));
        TRY(recipe_compare(r, recipe, err));
    } else {
        if (has_file(r, "MANIFEST.json"))
            TRY(cairn_fail(err, CAIRN_EUSAGE, "%s is a checkpoint, no place for a run; name a new directory", dir));
        TRY(place_check(r, err));
        TRY(cairn_begin_check(recipe, err));
        r->recipe = recipe;
        st = recipe_write(r, err);
        if (st == CAIRN_OK)
            st = cairn_recipe_hash(recipe, &r->hash, err);
        if (st == CAIRN_OK)
            st = info_make(r, err);
        if (st != CAIRN_OK) {
            r->recipe = NULL;
            goto out;
        }
        r->recipe = NULL;
        TRY(recipe_load(r, err));
    }
    *out = r;
    r = NULL;
out:
    cairn_run_close(r);
    return st;
}

enum cairn_status cairn_run_draft(struct cairn_run **out, const char *dir, struct cairn_recipe *recipe, struct cairn_error *err)
{
    enum cairn_status st = draft(out, dir, recipe, err);

    if (st == CAIRN_OK)
        cairn_recipe_free(recipe);
    return st;
}

enum cairn_status cairn_run_init(struct cairn_run **out, const char *dir, struct cairn_recipe *recipe, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_run *r = NULL;

    TRY(draft(&r, dir, recipe, err));
    TRY(cairn_begin_base(r, err));
    TRY(cairn_begin_policy(r, err));
    cairn_recipe_free(recipe);
    *out = r;
    r = NULL;
out:
    cairn_run_close(r);
    return st;
}

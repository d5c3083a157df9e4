/* amend.c - reads, checks and writes amendments (amend.h). A name that exists is whole: it is linked, not written. */
#include "stages/common/amend.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/build.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "ckpt/leftovers.h"
#include "ckpt/verify.h"
#include "recipe/scalar.h"
#include "stages/common/begin.h"

#define NUMBER_MAX 9999
#define BYTES_MAX  (1 << 20)
#define SET_MAX    1024
#define SL         (CAIRN_SCIENCE | CAIRN_LAYOUT)

static char *amendment_path(const struct cairn_run *r, int number)
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
    char *path = amendment_path(r, a->number);
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

/* The frozen recipe with the first n of them whose from_step is at most `step`. */
static enum cairn_status view_make(const struct cairn_run *r, const struct cairn_amendments *a, int n, int64_t step,
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
    return view_make(r, r->amendments, n, INT64_MAX, out, err);
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
    if (cairn_recipe_diff(r->frozen, recipe, SL, &diff))
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

/* How many files recipe.amend-NNNN.json there are and the highest of their numbers. */
static enum cairn_status count(const struct cairn_run *r, int *n, int *highest, struct cairn_error *err)
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

static enum cairn_status amendment_read(const struct cairn_run *r, int number, struct cairn_amendment *a, struct cairn_digest *hash,
                                        struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = amendment_path(r, number), *text = NULL;
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
    TRY(cairn_json_i64(o, "number", 1, NUMBER_MAX, &said, path, err));
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
        TRY(view_make(r, a, a->n, from[i], &v->recipe, err));
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
    TRY(count(r, &n, &highest, err));
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
        char *path = amendment_path(r, i + 1);
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

        if (json_array_append_new(list, json_pack("{s:i, s:I, s:O, s:f}", "number", a->number, "from_step",
                                                  (json_int_t)a->from_step, "set", a->set, "wall", a->wall_s))) {
            json_decref(list);
            list = NULL;
        }
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

/* ---- making one ------------------------------------------------------------------------------------------------------ */

/* Looks for the first committed artefact of a step at or after `from`. */
struct reached {
    int64_t from, step;
    char path[600];
};

static enum cairn_status reached_look(void *arg, const struct cairn_artefact *a, struct cairn_error *err)
{
    struct reached *x = arg;
    const char *slash = strchr(a->path, '/');
    size_t top = slash ? (size_t)(slash - a->path) : 0;
    char number[32];
    int64_t step;

    (void)err;
    if (!slash || !((top == 4 && (!strncmp(a->path, "step", 4) || !strncmp(a->path, "eval", 4))) ||
                    (top == 6 && !strncmp(a->path, "policy", 6))))
        return CAIRN_OK;
    snprintf(number, sizeof number, "%.*s", (int)strcspn(slash + 1, "/"), slash + 1);
    if (!cairn_parse_i64(number, &step) || step < x->from || (x->path[0] && step <= x->step))
        return CAIRN_OK;
    x->step = step;
    snprintf(x->path, sizeof x->path, "%s", a->path);
    return CAIRN_OK;
}

/* Nobody may be making something of these steps by the recipe as it was: of this host that is certain (lock or not), of others it
 * is told. */
static enum cairn_status idle_check(const struct cairn_run *r, int64_t from, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_link *chain = NULL;
    int n = 0;

    TRY(cairn_run_chain(r, &chain, &n, err));
    for (int i = 0; i < n; i++) {
        struct cairn_holder who;
        char *dir = chain[i].step >= from ? cairn_link_path(r, &chain[i]) : NULL;
        int at_work = dir ? cairn_artefact_at_work(dir, &who) : 0;

        if (at_work > 0)
            st = cairn_fail(err, CAIRN_EAGAIN,
                            "%s is being made by pid %lld on %s, by the recipe as it is; stop it, or amend from a later step on",
                            dir, (long long)who.pid, who.host);
        else if (at_work < 0)
            cairn_warn("%s was begun by pid %lld on %s%s%s; if that is still at work, stop it before the chain goes on", dir,
                       (long long)who.pid, who.host, who.job[0] ? ", job " : "", who.job);
        free(dir);
        TRY(st);
    }
out:
    free(chain);
    return st;
}

/* Of a line "path: old -> new (class)": why such a change is none that a run can have. NULL: it can. */
static const char *line_refused(const char *line)
{
    static const struct {
        const char *key, *why; /* a key that ends with '.' stands for all below it */
    } row[] = {
        {"model", "the model belongs to the beginning of a run"},
        {"model.", "the model belongs to the beginning of a run"},
        {"warm_start", "the warm start is the beginning of a run"},
        {"warm_start.", "the warm start is the beginning of a run"},
        {"run.seed", "draws are keyed by the seed and the step: another seed is another run"},
        {"run.lag", "it decides which policy samples a step, from the first on"},
        {"run.origin", "it says where this run came from"},
        {"data.prompts", "which prompt files there are was frozen with their digests; their weights and graders can be amended"},
        {"data.eval", "which evaluation sets there are was frozen with their digests; how they are sampled can be amended"},
        {"sync.dtype", "the policy that the step starts from was published with the old one"},
    };
    size_t n = strcspn(line, ":");

    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        size_t k = strlen(row[i].key);

        if (row[i].key[k - 1] == '.' ? n > k && !strncmp(line, row[i].key, k) : n == k && !strncmp(line, row[i].key, k))
            return row[i].why;
    }
    if (cairn_starts_with(line, "data.") && n > 5 && (!strncmp(line + n - 5, ".path", 5) || !strncmp(line + n - 5, ".name", 5)))
        return "which files and sets there are was frozen with their digests";
    return NULL;
}

/* What is wrong with changing `before` into `after`, by class and key. */
static enum cairn_status change_check(const struct cairn_recipe *before, const struct cairn_recipe *after, int64_t step,
                                      struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_str lines = {0};
    char *save = NULL;

    if (cairn_recipe_diff(before, after, CAIRN_OPS, &lines)) {
        lines.p[strcspn(lines.p, "\n")] = 0;
        TRY(cairn_fail(err, CAIRN_ERECIPE,
                       "%s: this key changes no number, it may change at any `cairn run RECIPE --run DIR key=value`", lines.p));
    }
    cairn_str_clear(&lines);
    cairn_recipe_diff(before, after, SL | CAIRN_MOVED, &lines);
    if (lines.oom)
        TRY(CAIRN_NOMEM(err));
    for (char *line = lines.len ? strtok_r(lines.p, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save)) {
        const char *why = line_refused(line);

        if (why)
            TRY(cairn_fail(err, CAIRN_ERECIPE, "%.300s: cannot change from step %lld on: %s", line, (long long)step, why));
    }
out:
    cairn_str_free(&lines);
    return st;
}

/* At step `step`: the recipe with the amendments that there are, and with the new one behind them. Lines of the difference to diff.
 */
static enum cairn_status change_at(const struct cairn_run *r, int64_t step, int n, const char *const *set, struct cairn_str *diff,
                                   int *changes, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_recipe *before = NULL, *after = NULL;
    int have = r->amendments ? r->amendments->n : 0;

    TRY(view_make(r, r->amendments, have, step, &before, err));
    TRY(view_make(r, r->amendments, have, step, &after, err));
    TRY(cairn_recipe_apply(after, n, set, NULL, err));
    TRY(change_check(before, after, step, err));
    *changes = cairn_recipe_diff(before, after, SL, diff);
    if (*changes)
        TRY(cairn_begin_amended(r, after, err));
out:
    cairn_recipe_free(before);
    cairn_recipe_free(after);
    return st;
}

/* The document under a name of its own, then that name: it is there whole or not at all. */
static enum cairn_status amendment_write(const struct cairn_run *r, int number, json_t *o, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = amendment_path(r, number), *tmp = NULL, *text = NULL;
    uint64_t nonce;
    int made = 0;
    size_t n;

    if (!path || getrandom(&nonce, sizeof nonce, 0) != sizeof nonce ||
        !(tmp = cairn_format("%s.tmp.%016llx", path, (unsigned long long)nonce)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_checked_text(o, &text, &n, err));
    TRY(cairn_file_create(tmp, text, n, err));
    made = 1;
    if (renameat2(AT_FDCWD, tmp, AT_FDCWD, path, RENAME_NOREPLACE)) {
        int e = errno;

        if (e == EINVAL || e == ENOSYS || e == EOPNOTSUPP) /* a file system without it: link refuses an existing name, too */
            e = link(tmp, path) ? errno : 0;
        else if (e == EEXIST)
            TRY(cairn_fail(err, CAIRN_EAGAIN, "%s: somebody else has just made it; look at cairn status, then call again", path));
        if (e)
            TRY(cairn_fail_errno(err, e, "make %s", path));
        unlink(tmp);
    }
    made = 0;
    TRY(cairn_dir_sync(r->dir, err));
out:
    if (made)
        unlink(tmp);
    free(path);
    free(tmp);
    free(text);
    return st;
}

/* run.json's count, if it is behind: a kill may have come in between. */
static enum cairn_status count_save(struct cairn_run *r, int n, struct cairn_error *err)
{
    if (json_integer_value(json_object_get(r->info, "amendments")) == n)
        return CAIRN_OK;
    if (json_object_set_new(r->info, "amendments", json_integer(n)))
        return CAIRN_NOMEM(err);
    return cairn_run_save_info(r, err);
}

enum cairn_status cairn_run_amend(struct cairn_run *r, int64_t from, int n, const char *const *set, int dry, int *number,
                                  struct cairn_str *diff, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int have = r->amendments ? r->amendments->n : 0, changes = 0, any;
    struct reached reached = {.from = from};
    struct cairn_recipe *all = NULL;
    struct cairn_digest hash;
    json_t *list = NULL, *o = NULL;
    char hex[33];

    *number = 0;
    if (from < 1)
        TRY(cairn_fail(err, CAIRN_ERECIPE, "an amendment counts from step 1 or later; what stands before is the recipe itself"));
    TRY(change_at(r, from, n, set, diff, &any, err));
    changes += any;
    for (int i = 0; r->amendments && i < r->amendments->views; i++) { /* and where earlier amendments set in later */
        struct cairn_str later = {0};

        if (r->amendments->view[i].from <= from)
            continue;
        st = change_at(r, r->amendments->view[i].from, n, set, &later, &any, err);
        cairn_str_free(&later);
        TRY(st);
        changes += any;
    }
    if (!changes) {
        if (!dry)
            TRY(count_save(r, have, err));
        goto out;
    }
    TRY(cairn_artefact_walk(r->dir, reached_look, &reached, err));
    if (reached.path[0])
        TRY(cairn_fail(err, CAIRN_ERECIPE, "%s is committed: it was made by the recipe as it is; amend from step %lld on, or later",
                       reached.path, (long long)reached.step + 1));
    TRY(idle_check(r, from, err));
    if (have >= NUMBER_MAX)
        TRY(cairn_fail(err, CAIRN_ERECIPE, "%s has %d amendments; there is no room for more", r->dir, have));
    TRY(view_make(r, r->amendments, have, INT64_MAX, &all, err));
    TRY(cairn_recipe_apply(all, n, set, NULL, err));
    TRY(cairn_recipe_hash(all, &hash, err));
    *number = have + 1;
    if (dry)
        goto out;
    list = json_array();
    for (int i = 0; i < n; i++)
        if (json_array_append_new(list, json_string(set[i])))
            TRY(cairn_fail(err, CAIRN_ERECIPE, "\"%.80s\" is not UTF-8", set[i]));
    cairn_digest_hex(hash, hex);
    o = json_pack("{s:s, s:i, s:i, s:s, s:I, s:O, s:s, s:s, s:f}", "format", "cairn amendment", "version", 1, "number", *number,
                  "run", r->uuid, "from_step", (json_int_t)from, "set", list, "recipe", hex, "cairn", cairn_build_version(), "wall",
                  cairn_wall_s());
    if (!o)
        TRY(CAIRN_NOMEM(err));
    TRY(amendment_write(r, *number, o, err));
    TRY(count_save(r, *number, err));
out:
    cairn_recipe_free(all);
    json_decref(list);
    json_decref(o);
    return st;
}

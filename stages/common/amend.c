/* amend.c - checks and writes an amendment (amend.h). A name that exists is whole: it is linked, not written. */
#include "stages/common/amend_impl.h"

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
#include "ckpt/retention.h"
#include "ckpt/verify.h"
#include "stages/common/begin.h"

/* Looks for the highest step at or after `from` that has a committed artefact, and for its first one. */
struct reached {
    int64_t from, step;
    char path[600];
    const char *at; /* the directory that is walked, relative to the run: "step/000012"; borrowed */
    int64_t at_step;
};

static enum cairn_status reached_look(void *arg, const struct cairn_artefact *a, struct cairn_error *err)
{
    struct reached *x = arg;

    (void)err;
    if (x->path[0] && x->at_step <= x->step)
        return CAIRN_OK;
    x->step = x->at_step;
    snprintf(x->path, sizeof x->path, "%s%s%s", x->at, a->path[0] ? "/" : "", a->path);
    return CAIRN_OK;
}

/* In one folder of steps. Those before `from` are not looked into: there may be thousands. */
static enum cairn_status folder_reached(const struct cairn_run *r, const char *folder, struct reached *x, struct cairn_error *err)
{
    char *path = cairn_run_path(r, folder), *relative = NULL, *dir = NULL;
    enum cairn_status st = CAIRN_OK;
    struct cairn_names names = {0};
    int there;

    if (!path)
        return CAIRN_NOMEM(err);
    TRY(cairn_dir_names(&names, path, &there, err));
    for (size_t i = 0; i < names.n; i++) {
        if (!cairn_parse_i64(names.name[i], &x->at_step) || x->at_step < x->from)
            continue;
        free(relative);
        free(dir);
        dir = NULL;
        if (!(relative = cairn_path_join(folder, names.name[i])) || !(dir = cairn_run_path(r, relative)))
            TRY(CAIRN_NOMEM(err));
        x->at = relative;
        if (cairn_path_is_dir(dir))
            TRY(cairn_artefact_walk(dir, reached_look, x, err));
    }
out:
    cairn_names_free(&names);
    free(relative);
    free(path);
    free(dir);
    return st;
}

static enum cairn_status reached_find(const struct cairn_run *r, struct reached *x, struct cairn_error *err)
{
    static const char *const folder[] = {"eval", "policy", "step"};
    enum cairn_status st = CAIRN_OK;

    for (size_t i = 0; i < sizeof folder / sizeof *folder; i++)
        TRY(folder_reached(r, folder[i], x, err));
out:
    return st;
}

/* Nobody may be making something of these steps by the recipe as it was: of this host that is certain (lock or not), of others it
 * is told. */
static enum cairn_status idle_check(const struct cairn_run *r, int64_t from, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_reach reach = cairn_run_reach(r);
    struct cairn_link *chain = NULL;
    int n = 0;

    TRY(cairn_run_chain(r, &chain, &n, err));
    for (int i = 0; i < n; i++) {
        struct cairn_holder who;
        char *dir = chain[i].step >= from && !cairn_link_beyond(&reach, &chain[i]) ? cairn_link_path(r, &chain[i]) : NULL;
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

/* A state that was only told (checkpoint.every) is made again by the ranks that made it, so their number cannot change right behind it. */
static enum cairn_status ranks_check(const struct cairn_run *r, int64_t from, const struct cairn_recipe *after, struct cairn_error *err)
{
    const struct cairn_link last = {from - 1, CAIRN_STAGE_TRAIN, NULL};
    int64_t ranks = cairn_recipe_i64(cairn_run_recipe(r, from - 1), "train.parallel.dp"), then = cairn_recipe_i64(after, "train.parallel.dp");
    enum cairn_status st = CAIRN_OK;
    char *dir = NULL;
    int told = 0;

    if (ranks == then || !cairn_link_done(r, &last))
        return CAIRN_OK;
    if (!(dir = cairn_link_path(r, &last)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_artefact_collected_look(dir, &told, err));
    if (told)
        TRY(cairn_fail(err, CAIRN_ERECIPE,
                       "train.parallel.dp: %lld -> %lld: %s is in memory only (checkpoint.every), and %lld ranks would make it again to other bits; "
                       "amend from step %lld on: step %lld is then saved",
                       (long long)ranks, (long long)then, dir, (long long)then, (long long)from + 1, (long long)from));
out:
    free(dir);
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

/* Which programs grade was frozen with their digests: a run has no record of one that comes in later. */
static enum cairn_status programs_check(const struct cairn_recipe *before, const struct cairn_recipe *after, int64_t step, struct cairn_error *err)
{
    const json_t *had = cairn_recipe_get(before, "score.graders");
    json_t *graders = (json_t *)cairn_recipe_get(after, "score.graders"); /* jansson's loop wants it so */
    const char *name;
    json_t *v;

    json_object_foreach(graders, name, v)
    {
        const char *program = json_string_value(json_object_get(v, "program")),
                   *was = json_string_value(json_object_get(json_object_get(had, name), "program"));

        if (program && (!was || strcmp(program, was)))
            return cairn_fail(err, CAIRN_ERECIPE,
                              "score.graders.%.40s.program: %.100s: cannot change from step %lld on: which programs there are was frozen with their "
                              "digests",
                              name, program, (long long)step);
    }
    return CAIRN_OK;
}

enum cairn_status cairn_amendment_check(const char *dir, const struct cairn_recipe *before, const struct cairn_recipe *after, int64_t step,
                                        struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_str lines = {0};
    char *save = NULL;

    if (cairn_recipe_diff(before, after, CAIRN_OPS, &lines)) {
        lines.p[strcspn(lines.p, "\n")] = 0;
        TRY(cairn_fail(err, CAIRN_ERECIPE, "%.200s: this key changes no number, it may change at any: cairn run %s key=value",
                       lines.p, dir));
    }
    cairn_str_clear(&lines);
    cairn_recipe_diff(before, after, CAIRN_AMENDABLE | CAIRN_MOVED, &lines);
    if (lines.oom)
        TRY(CAIRN_NOMEM(err));
    for (char *line = lines.len ? strtok_r(lines.p, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save)) {
        const char *why = line_refused(line);

        if (why)
            TRY(cairn_fail(err, CAIRN_ERECIPE, "%.300s: cannot change from step %lld on: %s", line, (long long)step, why));
    }
    TRY(programs_check(before, after, step, err));
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
    char *path = cairn_amendment_path(r, have + 1);

    if (!path)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_amendments_view(r, r->amendments, have, step, &before, err));
    TRY(cairn_amendments_view(r, r->amendments, have, step, &after, err));
    TRY(cairn_recipe_apply(after, n, set, NULL, err));
    TRY(cairn_recipe_apply(after, n, set, path, err)); /* as it will be read: a relative path counts from there */
    TRY(cairn_amendment_check(r->dir, before, after, step, err));
    *changes = cairn_recipe_diff(before, after, CAIRN_AMENDABLE, diff);
    if (*changes)
        TRY(cairn_begin_amended(r, after, err));
out:
    cairn_recipe_free(before);
    cairn_recipe_free(after);
    free(path);
    return st;
}

/* The document under a name of its own, then that name: it is there whole or not at all. */
static enum cairn_status amendment_write(const struct cairn_run *r, int number, json_t *o, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_amendment_path(r, number), *tmp = NULL, *text = NULL;
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

/* copy: the amendment of another run that this one is to be, or NULL. A copy is written even where it changes nothing: it says that it was
 * heard. */
static enum cairn_status amend(struct cairn_run *r, int64_t from, int n, const char *const *set, const struct cairn_amendment *copy, int dry,
                               int *number, struct cairn_str *diff, struct cairn_error *err)
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
    if (!changes && !copy) {
        if (!dry)
            TRY(count_save(r, have, err));
        goto out;
    }
    if (changes)
        TRY(reached_find(r, &reached, err));
    if (reached.path[0])
        TRY(cairn_fail(err, CAIRN_ERECIPE, "%s is committed: it was made by the recipe as it is; amend from step %lld on, or later",
                       reached.path, (long long)reached.step + 1));
    if (changes)
        TRY(idle_check(r, from, err));
    if (have >= CAIRN_AMENDMENTS_MAX)
        TRY(cairn_fail(err, CAIRN_ERECIPE, "%s has %d amendments; there is no room for more", r->dir, have));
    TRY(cairn_amendments_view(r, r->amendments, have, INT64_MAX, &all, err));
    TRY(cairn_recipe_apply(all, n, set, NULL, err));
    TRY(ranks_check(r, from, all, err));
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
    if (!o || (copy && json_object_set_new(o, "origin", json_pack("{s:s, s:i}", "run", copy->origin, "number", copy->origin_number))))
        TRY(CAIRN_NOMEM(err));
    TRY(amendment_write(r, *number, o, err));
    TRY(count_save(r, *number, err));
out:
    cairn_recipe_free(all);
    json_decref(list);
    json_decref(o);
    return st;
}

enum cairn_status cairn_run_amend(struct cairn_run *r, int64_t from, int n, const char *const *set, int dry, int *number,
                                  struct cairn_str *diff, struct cairn_error *err)
{
    return amend(r, from, n, set, NULL, dry, number, diff, err);
}

enum cairn_status cairn_run_amend_copy(struct cairn_run *r, const struct cairn_amendment *copy, int *number, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    size_t n = json_array_size(copy->set);
    const char **set = calloc(n + 1, sizeof *set);
    struct cairn_str diff = {0};

    if (!set)
        TRY(CAIRN_NOMEM(err));
    for (size_t i = 0; i < n; i++)
        set[i] = json_string_value(json_array_get(copy->set, i));
    TRY(amend(r, copy->from_step, (int)n, set, copy, 0, number, &diff, err));
out:
    cairn_str_free(&diff);
    free(set);
    return st;
}

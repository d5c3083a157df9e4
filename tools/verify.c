/* verify.c - `cairn verify DIR`: holds every manifest and every shard below DIR against its size and digest, and the files of a run itself
 * against what it was made with, the base that it links to included; names each bad file. With --repair, takes what is bad out of the run (repair.h). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"
#include "ckpt/manifest.h"
#include "ckpt/verify.h"
#include "stages/common/amend.h"
#include "stages/common/lock.h"
#include "stages/common/run.h"
#include "tools/cli.h"
#include "tools/failure.h"
#include "tools/inspect.h"
#include "tools/repair.h"
#include "tools/verbs.h"

#define AMENDMENT_BYTES (1 << 20)
#define NUMBERS         9999 /* as far as the names of amendments go */

struct args {
    const char *dir;
    int deep, json, repair, dependents, dry;
    struct cairn_progress *progress;
    int64_t bytes;
    json_t *bad;
    size_t own;  /* so many of them, at the front, are the run's own files */
    size_t base; /* so many of them lie in a base that the run links to */
    int again;   /* the second look: what is bad was printed */
};

static const struct argp_option options[] = {
    {"deep", 'd', NULL, 0, "also recompute each tensor's logical digest, open each HDF5 file, follow the lineage", 0},
    {"repair", 'r', NULL, 0, "move to DIR/quarantine what is damaged and what must be made again with it, so that cairn run goes on", 0},
    {"dependents", 'D', NULL, 0, "with --repair: also everything that was made from what is damaged, though it is good", 0},
    {"dry-run", 'n', NULL, 0, "with --repair: say what would be moved and move nothing", 0},
    {"json", 'j', NULL, 0, "print one JSON object", 0},
    {0},
};

static const struct cairn_cli_slot slots[] = {
    CAIRN_CLI_FLAG_AT('d', struct args, deep),
    CAIRN_CLI_FLAG_AT('r', struct args, repair),
    CAIRN_CLI_FLAG_AT('D', struct args, dependents),
    CAIRN_CLI_FLAG_AT('n', struct args, dry),
    CAIRN_CLI_FLAG_AT('j', struct args, json),
    CAIRN_CLI_TEXT_AT(ARGP_KEY_ARG, struct args, dir),
    {0},
};

static const struct argp argp = {options, NULL, "DIR",
                                 "Reads every manifest and every shard of a run or checkpoint and compares size and digest over all bytes; of a run "
                                 "also its recipe, amendments and files. Names each bad file on stdout; exit code 65 if there is any.\v"
                                 "--repair falls back to the newest good generation and says what it dropped; it moves things to DIR/quarantine/NNNN "
                                 "and deletes nothing. Nobody may be at work on DIR.\n\n"
                                 "Examples:\n  cairn verify --deep /tmp/tiny/policy/000020\n  cairn verify --repair --dry-run /tmp/tiny",
                                 NULL, NULL, NULL};

static void bad(void *arg, const char *path, const char *text)
{
    struct args *a = arg;

    json_array_append_new(a->bad, json_pack("{s:s, s:s}", "path", path, "why", text));
    if (a->json || a->again)
        return;
    if (!strncmp(text, path, strlen(path))) /* most sentences begin with it */
        printf("bad: %s\n", text);
    else
        printf("bad: %s: %s\n", path, text);
}

/* It was the last to be told bad. */
static void missing(void *arg, const char *path, const char *input)
{
    struct args *a = arg;

    (void)path;
    json_object_set_new(json_array_get(a->bad, json_array_size(a->bad) - 1), "input", json_string(input));
}

static void progress(void *arg, const char *path, int64_t bytes)
{
    struct args *a = arg;

    (void)path;
    a->bytes += bytes;
    cairn_progress_at(a->progress, a->bytes >> 20);
}

/* ---- a run's own files ------------------------------------------------------------------------------------------------------ */

/* Told as bad, unless it is something that stands in the way of looking. */
static enum cairn_status told(struct args *a, const char *path, enum cairn_status st, const struct cairn_error *why, struct cairn_error *err)
{
    if (st == CAIRN_OK)
        return CAIRN_OK;
    if (st != CAIRN_EDATA && st != CAIRN_ERECIPE && st != CAIRN_EIO) {
        cairn_fail(err, st, "%s", why->text);
        return st;
    }
    bad(a, path, why->text);
    return CAIRN_OK;
}

/* The outside files: the run's copies; with --deep those that stayed where they were, too. */
static enum cairn_status outside_files(struct args *a, const struct cairn_run *run, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_error why = {0};
    const char *key;
    json_t *o;

    json_object_foreach(json_object_get(run->info, "outside"), key, o)
    {
        const char *copy = json_string_value(json_object_get(o, "copy"));
        char *path = NULL, *where = copy ? cairn_run_path(run, copy) : strdup(key);

        if (copy || a->deep)
            st = where ? told(a, where, cairn_run_outside(run, key, &path, &why), &why, err) : CAIRN_NOMEM(err);
        free(path);
        free(where);
        TRY(st);
    }
out:
    return st;
}

/* Each amendment by itself, of a run that cannot be opened; `opening` is why, and is told. */
static enum cairn_status amendments_look(struct args *a, const struct cairn_run *run, const char *opening, struct cairn_error *err)
{
    json_int_t n = json_integer_value(json_object_get(run->info, "amendments"));
    enum cairn_status st = CAIRN_OK;

    for (json_int_t i = 1; i <= n && i <= NUMBERS; i++) {
        char *path = cairn_format("%s/recipe.amend-%04lld.json", run->dir, (long long)i), *text = NULL;
        struct cairn_error why = {0};
        json_t *o = NULL;
        size_t size;

        if (!path)
            return CAIRN_NOMEM(err);
        if (!strstr(opening, path)) {
            st = cairn_file_read(path, AMENDMENT_BYTES, &text, &size, &why);
            if (st == CAIRN_OK)
                st = cairn_checked_parse(&o, text, size, path, &why);
            st = told(a, path, st, &why, err);
        }
        json_decref(o);
        free(text);
        free(path);
        TRY(st);
    }
out:
    return st;
}

/* run.json, recipe.yaml, amendments, and the outside files. *run is NULL where it could not be opened; what else can be looked at then is. */
static enum cairn_status run_files(struct args *a, struct cairn_run **run, struct cairn_error *err)
{
    struct cairn_error why = {0}, other = {0};
    struct cairn_run *bare = NULL;
    enum cairn_status st = cairn_run_open(run, a->dir, &why);

    if (st == CAIRN_OK)
        return outside_files(a, *run, err);
    *run = NULL;
    TRY(told(a, a->dir, st, &why, err));
    st = cairn_run_open_bare(&bare, a->dir, &other);
    if (st == CAIRN_EDATA) { /* run.json itself: told just now */
        st = CAIRN_OK;
        goto out;
    }
    if (st != CAIRN_OK)
        TRY(cairn_fail(err, st, "%s", other.text));
    TRY(amendments_look(a, bare, why.text, err));
    TRY(outside_files(a, bare, err));
out:
    cairn_run_close(bare);
    return st;
}

/* run.json is missing: is it a run all the same, by its recipe and what was made by it? Then that is bad. */
static enum cairn_status run_lost(struct args *a, struct cairn_error *err)
{
    static const char *const parts[] = {"recipe.yaml", "log", "policy"};
    enum cairn_status st = CAIRN_OK;
    char *path = NULL, text[300];
    size_t there = 0;

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!(path = cairn_path_join(a->dir, parts[i])))
            TRY(CAIRN_NOMEM(err));
        there += cairn_path_exists(path) != 0;
        free(path);
    }
    if (!(path = cairn_path_join(a->dir, CAIRN_RUN_NAME)))
        TRY(CAIRN_NOMEM(err));
    snprintf(text, sizeof text, "%.200s: missing; what the run is can be told from nothing else", path);
    if (there == sizeof parts / sizeof *parts)
        bad(a, path, text);
    free(path);
out:
    return st;
}

/* What the chain has made was made for this run, by the recipe that its step has here. */
static enum cairn_status recipes_compare(struct args *a, const struct cairn_run *run, struct cairn_error *err)
{
    const struct cairn_reach reach = cairn_run_reach(run);
    enum cairn_status st = CAIRN_OK;
    struct cairn_link *chain = NULL;
    char text[400], was[33], is[33];
    int n = 0;

    TRY(cairn_run_chain(run, &chain, &n, err));
    if (reach.step == INT64_MAX || reach.policy == INT64_MAX || reach.eval == INT64_MAX) /* others look at every link then; here it is told */
        TRY(cairn_fail(err, CAIRN_EIO, "%s: what is in step, policy or eval could not be listed", run->dir));
    for (int i = 0; i < n; i++) {
        const struct cairn_digest want = cairn_run_hash(run, chain[i].step);
        struct cairn_manifest *m = NULL;
        struct cairn_error why;
        char *dir;

        if (cairn_link_beyond(&reach, &chain[i]) || !cairn_link_done(run, &chain[i]))
            continue;
        if (!(dir = cairn_link_path(run, &chain[i])))
            TRY(CAIRN_NOMEM(err));
        st = cairn_manifest_load(&m, dir, &why);
        if (st == CAIRN_OK) { /* one that is damaged was told before */
            cairn_digest_hex(m->recipe, was);
            cairn_digest_hex(want, is);
            text[0] = 0;
            if (strcmp(m->run, run->uuid))
                snprintf(text, sizeof text, "was made for run %.32s, this is %.32s", m->run, run->uuid);
            else if (!cairn_digest_equal(m->recipe, want))
                snprintf(text, sizeof text, "was made by recipe %s, step %lld of this run has %s", was, (long long)chain[i].step, is);
            if (text[0])
                bad(a, dir, text);
        } else if (st == CAIRN_EIO) {
            bad(a, dir, why.text);
        }
        st = CAIRN_OK;
        cairn_manifest_destroy(m);
        free(dir);
    }
out:
    free(chain);
    return st;
}

/* A base that was imported: RUN/base leads to it, and the walk follows no links. */
static enum cairn_status base_follow(struct args *a, const struct cairn_run *run, const struct cairn_verify_opts *o, struct cairn_verify_counts *c,
                                     struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_run_path(run, "base"), to[1024] = "", text[1300];
    struct stat sb;

    if (!path)
        return CAIRN_NOMEM(err);
    if (lstat(path, &sb) || !S_ISLNK(sb.st_mode))
        goto out;
    if (!cairn_path_is_dir(path)) {
        if (readlink(path, to, sizeof to - 1) < 0)
            TRY(cairn_fail_errno(err, errno, "read the link %s", path));
        snprintf(text, sizeof text, "%.200s: leads to %s, which is not there", path, to);
        bad(a, path, text);
        TRY(cairn_fail(err, CAIRN_EDATA, "%s", text));
    }
    TRY(cairn_verify_artefact(path, NULL, o, c, err));
out:
    free(path);
    return st;
}

/* ---- repair --------------------------------------------------------------------------------------------------------------------- */

static void repair_print(const struct args *a, const struct cairn_run *run, const struct cairn_repair_result *r)
{
    static const char *const titles[] = {"dropped", "collected", "mended", "missing", "left"};
    const json_t *lists[] = {r->dropped, r->collected, r->mended, r->missing, r->left};
    char command[4300];

    for (int k = 0; k < 5; k++) {
        size_t i;
        json_t *v;

        json_array_foreach((json_t *)lists[k], i, v) printf("%s%s: %s: %s\n", a->dry && k < 3 ? "would be " : "", titles[k],
                                                            json_string_value(json_object_get(v, "path")),
                                                            json_string_value(json_object_get(v, "why")));
    }
    if (r->quarantine)
        printf("moved to %s/%s\n", run->dir, r->quarantine);
    if (json_array_size(r->dropped)) {
        if (r->policy >= 0)
            printf("the newest good policy is %lld", (long long)r->policy);
        else if (r->state >= 0)
            printf("no policy is left; the newest good trainer state is %lld", (long long)r->state);
        else
            printf("no policy is left: the run begins anew");
        printf("; ");
    }
    if (json_array_size(r->dropped) || json_array_size(r->missing)) {
        cairn_go_on(run, command, sizeof command);
        printf("to go on: %s\n", command);
    }
}

static enum cairn_status repair(const struct args *a, const struct cairn_run *run, struct cairn_repair_result *r, struct cairn_error *err)
{
    enum cairn_status st = cairn_repair(run, a->bad, a->dependents, a->dry, r, err);

    if (st != CAIRN_OK)
        return st;
    if (!a->json)
        repair_print(a, run, r);
    if (json_array_size(r->left))
        return cairn_fail(err, CAIRN_EDATA, "%zu bad things could not be repaired, the first: %s", json_array_size(r->left),
                          json_string_value(json_object_get(json_array_get(r->left, 0), "path")));
    return CAIRN_OK;
}

/* ---- the verb ------------------------------------------------------------------------------------------------------------------- */

static void result_print(const struct args *a, const struct cairn_verify_counts *c, const struct cairn_repair_result *r, struct cairn_error *lost)
{
    json_t *o;

    if (!a->json) {
        printf("%lld artefacts, %lld shards, %lld tensors, %lld bytes: %zu bad\n", (long long)c->artefacts, (long long)c->shards,
               (long long)c->tensors, (long long)c->bytes, json_array_size(a->bad));
        return;
    }
    o = json_pack("{s:I, s:I, s:I, s:I, s:I, s:O}", "artefacts", (json_int_t)c->artefacts, "collected", (json_int_t)c->collected, "shards",
                  (json_int_t)c->shards, "tensors", (json_int_t)c->tensors, "bytes", (json_int_t)c->bytes, "bad", a->bad);
    if (o && r->dropped) {
        json_object_set(o, "dropped", r->dropped);
        json_object_set(o, "collected_now", r->collected);
        json_object_set(o, "mended", r->mended);
        json_object_set(o, "missing", r->missing);
        json_object_set(o, "left", r->left);
        json_object_set_new(o, "quarantine", r->quarantine ? json_string(r->quarantine) : json_null());
        json_object_set_new(o, "newest_policy", json_integer(r->policy));
        json_object_set_new(o, "newest_state", json_integer(r->state));
        json_object_set_new(o, "dry_run", json_boolean(a->dry));
    }
    cairn_cli_json(o, lost);
}

/* One look at everything: what is bad is in a->bad, the first of it in err (CAIRN_EDATA). */
static enum cairn_status examine(struct args *a, const struct cairn_run *run, struct cairn_verify_opts *o, struct cairn_verify_counts *c,
                                 struct cairn_error *err)
{
    struct cairn_error first = {0};
    enum cairn_status st, looked;

    a->progress = cairn_progress_begin("verify", "MiB", 0, 10);
    st = cairn_verify_tree(run ? run->dir : a->dir, o, c, err);
    if (run && (st == CAIRN_OK || st == CAIRN_EDATA)) {
        size_t before = json_array_size(a->bad);

        looked = base_follow(a, run, o, c, &first);
        a->base = json_array_size(a->bad) - before;
        if (looked != CAIRN_OK && (st == CAIRN_OK || looked != CAIRN_EDATA)) {
            st = looked;
            *err = first;
        }
    }
    cairn_progress_end(a->progress);
    if (st == CAIRN_OK && c->artefacts == 0)
        st = cairn_fail(err, CAIRN_ENOINPUT, "%s: nothing committed below it", a->dir);
    if (run && a->deep && (st == CAIRN_OK || st == CAIRN_EDATA)) {
        looked = recipes_compare(a, run, &first);
        if (looked != CAIRN_OK) {
            st = looked;
            *err = first;
        }
    }
    if (st == CAIRN_OK && json_array_size(a->bad))
        st = cairn_fail(err, CAIRN_EDATA, "%s", json_string_value(json_object_get(json_array_get(a->bad, 0), "why")));
    return st;
}

static int bad_before(const json_t *before, const char *path)
{
    size_t i;
    json_t *b;

    json_array_foreach((json_t *)before, i, b)
        if (!strcmp(json_string_value(json_object_get(b, "path")), path))
            return 1;
    return 0;
}

/* Before anything goes: what was bad once and is not the second time was no damage, but a call that failed (too many open files, a
 * server that was away for a moment). */
static enum cairn_status examine_again(struct args *a, const struct cairn_run *run, struct cairn_verify_opts *o, struct cairn_verify_counts *c,
                                       struct cairn_error *err)
{
    json_t *before = a->bad;
    enum cairn_status st;

    if (!(a->bad = json_array())) {
        a->bad = before;
        return CAIRN_NOMEM(err);
    }
    for (size_t i = 0; i < a->own; i++) /* these are not looked at here, and nothing is taken away for their sake */
        json_array_append(a->bad, json_array_get(before, i));
    a->again = 1;
    a->bytes = 0;
    memset(c, 0, sizeof *c);
    st = examine(a, run, o, c, err);
    for (size_t i = json_array_size(a->bad); i-- > 0;)
        if (!bad_before(before, json_string_value(json_object_get(json_array_get(a->bad, i), "path"))))
            json_array_remove(a->bad, i);
    json_decref(before);
    return st == CAIRN_EDATA && !json_array_size(a->bad) ? CAIRN_OK : st;
}

/* What helps and costs least, by what a repair would do. "" where that cannot be told. */
static void advise(const struct args *a, const struct cairn_run *run, const char *first, char *text, size_t size)
{
    const char *deep = a->deep ? "--deep " : "";
    struct cairn_repair_result r = {0};
    char command[4300];
    size_t moved;

    text[0] = 0;
    cairn_go_on(run, command, sizeof command);
    if (cairn_repair(run, a->bad, 0, 1, &r, NULL) == CAIRN_OK) {
        moved = json_array_size(r.dropped) + json_array_size(r.collected) + json_array_size(r.mended);
        if (moved)
            snprintf(text, size, "; %sto fall back to what is good: cairn verify %s--repair %.200s", first, deep, a->dir);
        else if (json_array_size(r.missing))
            snprintf(text, size, "; %s%.250s makes again what is missing", first, command);
        else if (json_array_size(r.left) && !first[0]) /* what was given and is gone was told */
            snprintf(text, size, "; --repair would leave it: %.250s", json_string_value(json_object_get(json_array_get(r.left, 0), "why")));
    }
    cairn_repair_free(&r);
}

/* Has the link that the run stands at ended, since what it reads was collected? */
static int blocked(const struct cairn_run *run)
{
    struct cairn_link *chain = NULL;
    json_t *event = NULL;
    char *done = NULL;
    int n = 0, i = 0, is = 0;

    if (cairn_run_chain(run, &chain, &n, NULL) == CAIRN_OK && (done = malloc((size_t)n + 1))) {
        cairn_links_done(run, chain, n, done);
        while (i < n && done[i])
            i++;
        event = i < n ? cairn_link_event(run, &chain[i]) : NULL;
        is = event && cairn_failure_of(run, &chain[i], event) == CAIRN_FAILURE_GONE;
    }
    json_decref(event);
    free(chain);
    free(done);
    return is;
}

/* What is bad was told on stdout: what is left to say of it is how much it is, and what to do. What a run was given (its own files, a
 * base from elsewhere) nothing can make again, and a run that cannot be opened is not repaired. */
static void sum_up(const struct args *a, const struct cairn_run *run, struct cairn_error *err)
{
    size_t n = json_array_size(a->bad), given = a->own + a->base, i;
    const char *put_back = given ? "; first put back what the run was given, as said above" : "";
    char repair[400] = "";
    json_t *b;

    if (run && given < n && !a->repair)
        advise(a, run, given ? "then, " : "", repair, sizeof repair);
    json_array_foreach(a->bad, i, b)
        if (!strcmp(json_string_value(json_object_get(b, "why")), err->text)) {
            if (a->repair)
                put_back = "";
            else if (given == n)
                put_back = "; --repair cannot make it again: put back what the run was given, as said above";
            cairn_fail(err, err->code, "%s: %zu bad%s%s", a->dir, n, put_back, repair);
            return;
        }
}

int cairn_verb_verify(int argc, char **argv)
{
    struct cairn_error err = {0}, lost = {0}, first = {0};
    enum cairn_status st = CAIRN_OK, found;
    struct args a = {0};
    struct cairn_verify_counts c = {0};
    struct cairn_verify_opts o = {.bad = bad, .missing = missing, .done = progress, .arg = &a};
    struct cairn_repair_result result = {0};
    struct cairn_run *run = NULL;
    struct cairn_lock *lock = NULL;
    char *real = NULL, *above = NULL;
    int done, usage = cairn_cli_read(&argp, slots, argc, argv, &a, &done);

    if (usage || done)
        return usage;
    if (!a.dir)
        return cairn_cli_usage("verify", "DIR is missing");
    if ((a.dependents || a.dry) && !a.repair)
        return cairn_cli_usage("verify", "--dependents and --dry-run belong to --repair");
    cairn_signals_install();
    if (!(a.bad = json_array()))
        TRY(CAIRN_NOMEM(&err));
    TRY(cairn_dir_expect(a.dir, &err));
    if (a.repair) {
        if (!cairn_run_there(a.dir))
            TRY(cairn_fail(&err, CAIRN_ENOINPUT, "%s: no run here (run.json is missing); only a run can make again what it loses", a.dir));
        TRY(cairn_lock_take(&lock, a.dir, &err));
    }
    if (cairn_run_there(a.dir))
        TRY(run_files(&a, &run, &err));
    else
        TRY(run_lost(&a, &err));
    if (a.repair && !run)
        TRY(cairn_fail(&err, CAIRN_EDATA, "%s: its own files are damaged; put them back as said above, then the rest can be repaired", a.dir));
    o.deep = a.deep;
    if (!cairn_run_there(a.dir)) { /* a part of a run: its inputs stand in the run */
        real = realpath(a.dir, NULL);
        o.lineage = real && (above = cairn_inspect_root(real)) ? above : "";
    }
    a.own = json_array_size(a.bad);
    st = examine(&a, run, &o, &c, &err);
    if (a.repair && st == CAIRN_EDATA)
        st = examine_again(&a, run, &o, &c, &err);
    if (a.repair && (st == CAIRN_EDATA || (st == CAIRN_OK && blocked(run)))) {
        found = st;
        first = err;
        st = repair(&a, run, &result, &err);
        if (st == CAIRN_OK && a.dry && found != CAIRN_OK) { /* it is bad as before */
            err = first;
            st = CAIRN_EDATA;
        }
    }
    if (st == CAIRN_EDATA)
        sum_up(&a, run, &err);
    result_print(&a, &c, &result, &lost);
    if (cairn_cli_flush(&lost) != CAIRN_OK && st == CAIRN_OK) {
        st = lost.code;
        err = lost;
    }
out:
    free(real);
    free(above);
    json_decref(a.bad);
    cairn_repair_free(&result);
    cairn_run_close(run);
    cairn_lock_drop(lock);
    return st == CAIRN_OK ? 0 : cairn_cli_fail("verify", &err);
}

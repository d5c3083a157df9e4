/* gc.c - `cairn gc DIR`: what a run no longer needs goes now: trainer states and policies beyond what the recipe keeps, leftovers of dead
 * attempts, old quarantine, orphaned shared memory, what the node store of this node keeps beyond its size and age.
 *
 * Collection is ckpt/retention.h's: pins are respected, one valid generation always stays, what was collected stays done. Holds the run's
 * lock. Nothing is removed of which it is not certain that nobody uses it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"
#include "ckpt/leftovers.h"
#include "ckpt/retention.h"
#include "ckpt/verify.h"
#include "stages/common/lock.h"
#include "stages/common/publish.h"
#include "stages/common/run.h"
#include "stages/common/setup.h"
#include "tools/cli.h"
#include "tools/quarantine.h"
#include "tools/verbs.h"
#include "world/shmname.h"

#define DEPTH 8

struct args {
    const char *dir;
    int json, dry;
    double days;
};

static const struct argp_option options[] = {
    {"older-than", 'o', "DAYS", 0, "quarantine of at least that age goes, too (default 30; 0: all of it)", 0},
    {"dry-run", 'n', NULL, 0, "say what would go and remove nothing", 0},
    {"json", 'j', NULL, 0, "print one JSON object", 0},
    {0},
};

static const struct cairn_cli_slot slots[] = {
    CAIRN_CLI_FLAG_AT('n', struct args, dry),
    CAIRN_CLI_FLAG_AT('j', struct args, json),
    CAIRN_CLI_TEXT_AT(ARGP_KEY_ARG, struct args, dir),
    {0},
};

static error_t option(int key, char *arg, struct argp_state *state)
{
    struct args *a = state->input;

    if (key == 'o')
        return cairn_parse_double(arg, &a->days) && a->days >= 0 ? 0 : cairn_bad_value(state, "older-than", arg, "a number of days");
    return cairn_cli_take(slots, key, arg, state);
}

static const struct argp argp = {
    options, option, "DIR",
    "Frees what a run no longer needs: trainer states and policies beyond checkpoint.keep, keep_every and keep_policies of its recipe, what dead "
    "attempts left, quarantine of old repairs, shared memory of processes that are gone, and what the "
    "node store of this node keeps beyond sync.node_store.\v"
    "Finished shards of a dead attempt stay: the next attempt adopts them. Nobody may be at work on DIR.\n\n"
    "Examples:\n  cairn gc --dry-run /tmp/tiny\n  cairn gc /tmp/tiny --older-than 7",
    NULL, NULL, NULL};

struct gc {
    const struct args *a;
    struct cairn_run *run;
    json_t *items; /* [{"what", "path", "bytes"}] */
    int64_t bytes, kept;
    struct cairn_error *err;
};

static enum cairn_status freed(struct gc *g, const char *what, const char *path, int64_t bytes, struct cairn_error *err)
{
    const char *shown = cairn_starts_with(path, g->run->dir) && path[strlen(g->run->dir)] == '/' ? path + strlen(g->run->dir) + 1 : path;

    g->bytes += bytes;
    if (json_array_append_new(g->items, json_pack("{s:s, s:s, s:I}", "what", what, "path", shown, "bytes", (json_int_t)bytes)))
        return CAIRN_NOMEM(err);
    if (!g->a->json)
        printf("%s%s: %s, %.1f MB\n", g->a->dry ? "would free " : "freed ", what, shown, (double)bytes / 1e6);
    return CAIRN_OK;
}

/* ---- retention ------------------------------------------------------------------------------------------------------------------ */

/* Bytes that a collection frees. */
static enum cairn_status data_bytes(const char *dir, int64_t *bytes, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_names data = {0};
    int64_t files = 0;
    char *path = NULL;

    *bytes = 0;
    TRY(cairn_artefact_data(&data, dir, err));
    for (size_t i = 0; i < data.n; i++) {
        free(path);
        if (!(path = cairn_path_join(dir, data.name[i])))
            TRY(CAIRN_NOMEM(err));
        TRY(cairn_tree_count(path, &files, bytes, err));
    }
out:
    cairn_names_free(&data);
    free(path);
    return st;
}

/* The plan over those that are not collected: the others take no place of theirs. Reorders step. */
static void plan_there(const struct cairn_retention *keep, int64_t *step, const int *was, int n, int *stays)
{
    int m = 0;

    for (int i = 0; i < n; i++)
        if (!was[i])
            step[m++] = step[i];
    cairn_retention_plan(keep, step, m, stays);
    for (int i = n; i-- > 0;) /* back to where they stand */
        stays[i] = was[i] ? 0 : stays[--m];
}

/* Steps 0 to last. */
static enum cairn_status retain(struct gc *g, enum cairn_stage stage, int64_t last, const char *what, const struct cairn_retention *keep,
                                struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t *step = calloc((size_t)last + 2, sizeof *step), *bytes = calloc((size_t)last + 2, sizeof *bytes);
    struct cairn_generation *gen = calloc((size_t)last + 2, sizeof *gen);
    int *stays = calloc((size_t)last + 2, sizeof *stays), *was = calloc((size_t)last + 2, sizeof *was), n = 0;

    if (!step || !bytes || !gen || !stays || !was)
        TRY(CAIRN_NOMEM(err));
    for (int64_t s = 0; s <= last; s++) {
        const struct cairn_link l = {s, stage, NULL};
        char *dir;

        if (!cairn_link_done(g->run, &l))
            continue;
        if (!(dir = cairn_link_path(g->run, &l)))
            TRY(CAIRN_NOMEM(err));
        gen[n] = (struct cairn_generation){s, dir};
        was[n] = cairn_artefact_collected(dir);
        step[n++] = s;
    }
    plan_there(keep, step, was, n, stays); /* what goes is among those that do not stay by it: damage only makes more stay */
    for (int i = 0; i < n; i++)
        if (!stays[i])
            TRY(data_bytes(gen[i].dir, &bytes[i], err));
    if (!g->a->dry)
        TRY(cairn_retention_apply(keep, gen, n, NULL, err));
    for (int i = 0; i < n; i++) {
        int goes = !stays[i] && (g->a->dry || cairn_artefact_collected(gen[i].dir));

        if (goes && bytes[i])
            TRY(freed(g, was[i] ? "the rest of a collected one" : what, gen[i].dir, bytes[i], err));
    }
out:
    for (int i = 0; i < n; i++)
        free((char *)gen[i].dir);
    free(gen);
    free(step);
    free(bytes);
    free(stays);
    free(was);
    return st;
}

/* ---- leftovers ------------------------------------------------------------------------------------------------------------------ */

/* What an attempt on the artefact `relative` would have as identity today; 0: not known (no link of the chain, or an input is missing). */
static int identity_of(const struct gc *g, const struct cairn_link *chain, int n, const char *relative, struct cairn_digest *out)
{
    int known = 0;

    for (int i = 0; i < n && !known; i++) {
        char *path = cairn_link_relative(&chain[i]);
        struct cairn_manifest *m = NULL;

        if (path && !strcmp(path, relative)) {
            if (cairn_link_manifest(g->run, &chain[i], &m, NULL) == CAIRN_OK) {
                *out = cairn_manifest_identity(m);
                known = 1;
            }
            i = n;
        }
        cairn_manifest_destroy(m);
        free(path);
    }
    return known;
}

static enum cairn_status artefact_tidy(struct gc *g, const struct cairn_link *chain, int n, const char *relative, const char *dir,
                                       struct cairn_error *err)
{
    struct cairn_leftovers found = {0};
    struct cairn_digest identity;
    int known = !cairn_artefact_committed(dir) && identity_of(g, chain, n, relative, &identity);
    struct cairn_error why = {0};
    enum cairn_status st = CAIRN_OK;

    if (cairn_artefact_collected(dir))
        return CAIRN_OK; /* retention has finished it */
    st = cairn_artefact_leftovers(dir, known ? &identity : NULL, g->a->dry, &found, &why);
    if (st == CAIRN_EDATA) { /* damaged: for cairn verify */
        cairn_warn("%s; left alone, see cairn verify", why.text);
        return CAIRN_OK;
    }
    if (st != CAIRN_OK)
        return cairn_fail(err, st, "%s", why.text);
    g->kept += found.kept;
    return found.files ? freed(g, "leftovers of dead attempts", dir, found.bytes, err) : CAIRN_OK;
}

/* Every directory that has an epoch directory; sub-artefacts, too. */
static enum cairn_status walk(struct gc *g, const struct cairn_link *chain, int n, const char *relative, int depth, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *dir = cairn_run_path(g->run, relative), *epoch = dir ? cairn_path_join(dir, "epoch") : NULL, *sub = NULL;
    struct cairn_names names = {0};
    struct stat sb;
    int artefact;

    if (!epoch)
        TRY(CAIRN_NOMEM(err));
    if (cairn_stop_requested())
        TRY(cairn_fail(err, CAIRN_EAGAIN, "stopped; call again to go on"));
    if (depth > DEPTH || lstat(dir, &sb) || !S_ISDIR(sb.st_mode))
        goto out;
    artefact = cairn_path_is_dir(epoch);
    if (artefact)
        TRY(artefact_tidy(g, chain, n, relative, dir, err));
    TRY(cairn_artefact_below(&names, dir, artefact, err));
    for (size_t i = 0; i < names.n; i++) {
        free(sub);
        if (!(sub = cairn_path_join(relative, names.name[i])))
            TRY(CAIRN_NOMEM(err));
        TRY(walk(g, chain, n, sub, depth + 1, err));
    }
out:
    cairn_names_free(&names);
    free(dir);
    free(epoch);
    free(sub);
    return st;
}

static enum cairn_status leftovers(struct gc *g, struct cairn_error *err)
{
    static const char *const top[] = {"base", "policy", "step", "eval", "check", "replay"};
    enum cairn_status st = CAIRN_OK;
    struct cairn_link *chain = NULL;
    int n = 0;

    TRY(cairn_run_chain(g->run, &chain, &n, err));
    for (size_t i = 0; i < sizeof top / sizeof *top; i++)
        TRY(walk(g, chain, n, top[i], 0, err));
out:
    free(chain);
    return st;
}

/* ---- the verb --------------------------------------------------------------------------------------------------------------------- */

static void quarantine_freed(void *arg, const char *dir, int64_t bytes)
{
    struct gc *g = arg;

    freed(g, "quarantine", dir, bytes, g->err);
}

static void shm_freed(void *arg, const char *path, int64_t bytes)
{
    struct gc *g = arg;

    freed(g, "shared memory of a process that is gone", path, bytes, g->err);
}

static enum cairn_status stored_freed(void *arg, const struct cairn_nodestore_entry *e, struct cairn_error *err)
{
    const char *what = !e->made ? "an unfinished object of the node store" : e->expired ? "an expired object of the node store"
                                                                                      : "an object beyond the node store's size";

    return freed(arg, what, e->path, e->bytes, err);
}

static enum cairn_status collect(struct gc *g, struct cairn_error *err)
{
    const struct cairn_recipe *recipe = g->run->frozen;
    const struct cairn_reach reach = cairn_run_reach(g->run);
    struct cairn_publish_keep keep;
    struct cairn_nodestore_opts store;
    enum cairn_status st = CAIRN_OK;

    if (reach.step == INT64_MAX || reach.policy == INT64_MAX)
        TRY(cairn_fail(err, CAIRN_EIO, "%s: its step and policy folders cannot be listed: nothing is collected", g->run->dir));
    TRY(cairn_publish_keep(&keep, g->run, recipe, reach.step, err));
    TRY(retain(g, CAIRN_STAGE_TRAIN, reach.step, "a trainer state", &keep.states, err));
    TRY(retain(g, CAIRN_STAGE_SYNC, reach.policy, "a policy", &keep.policies, err));
    TRY(leftovers(g, err));
    TRY(cairn_quarantine_expire(g->run->dir, g->a->days * 86400, g->a->dry, quarantine_freed, g, err));
    TRY(cairn_shm_sweep(CAIRN_SHM_DIR, g->a->dry, shm_freed, g, err));
    if (cairn_setup_node_store(&store, recipe))
        TRY(cairn_nodestore_sweep(&store, g->a->dry, stored_freed, g, err));
out:
    return st;
}

static enum cairn_status tell(const struct gc *g, struct cairn_error *err)
{
    if (g->a->json)
        return cairn_cli_json(json_pack("{s:s, s:b, s:I, s:I, s:O}", "run", g->run->dir, "dry_run", g->a->dry, "bytes", (json_int_t)g->bytes,
                                        "kept_shards", (json_int_t)g->kept, "freed", g->items),
                              err);
    if (g->kept)
        printf("%lld finished shards of dead attempts stay: the next attempt adopts them\n", (long long)g->kept);
    printf("%s: %s%.1f MB in %zu places\n", g->run->dir, g->a->dry ? "would free " : "freed ", (double)g->bytes / 1e6, json_array_size(g->items));
    return CAIRN_OK;
}

int cairn_verb_gc(int argc, char **argv)
{
    struct cairn_error err = {0}, late = {0};
    enum cairn_status st = CAIRN_OK;
    struct args a = {.days = 30};
    struct gc g = {.a = &a, .err = &late};
    struct cairn_lock *lock = NULL;
    int done, usage = cairn_cli_parse(&argp, argc, argv, &a, &done);

    if (usage || done)
        return usage;
    if (!a.dir)
        return cairn_cli_usage("gc", "DIR is missing");
    cairn_signals_install();
    if (!(g.items = json_array()))
        TRY(CAIRN_NOMEM(&err));
    TRY(cairn_run_open(&g.run, a.dir, &err));
    TRY(cairn_lock_take(&lock, a.dir, &err));
    cairn_run_close(g.run);
    g.run = NULL;
    TRY(cairn_run_open(&g.run, a.dir, &err));
    if (!a.dry)
        cairn_dir_sweep(g.run->dir);
    TRY(collect(&g, &err));
    if (late.code) {
        err = late;
        TRY(late.code);
    }
    TRY(tell(&g, &err));
    TRY(cairn_cli_flush(&err));
out:
    json_decref(g.items);
    cairn_run_close(g.run);
    cairn_lock_drop(lock);
    return st == CAIRN_OK ? 0 : cairn_cli_fail("gc", &err);
}

/* run.c - `cairn run RECIPE --run DIR`, `cairn run DIR`: the chain on this machine, without a scheduler.
 *
 * Chained: starts one stage executable after the other, each for one link that has no manifest yet. Resident: one mpirun of all roles, which
 * find out by themselves what is to be done (launch.h). Tells what was done from the manifests. Holds the directory's lock
 * meanwhile. It computes nothing itself and keeps no state: killed at any moment, the next call goes on with what is not committed.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "stages/common/gap.h"
#include "stages/common/publish.h"
#include "stages/common/place.h"
#include "tools/check/check.h"
#include "tools/cli.h"
#include "tools/failure.h"
#include "tools/fit.h"
#include "tools/launch.h"
#include "tools/recipe_args.h"
#include "tools/replay.h"
#include "tools/trail.h"
#include "tools/verbs.h"

struct args {
    struct cairn_recipe_args recipe;
    int quiet, json;
};

static const struct argp_option options[] = {
    {"run", 'r', "DIR", 0, "the run directory; made if it is not there", 0},
    {"quiet", 'q', NULL, 0, "no progress", 0},
    {"json", 'j', NULL, 0, "one JSON object a link on stdout", 0},
    {0},
};

static const struct cairn_cli_slot slots[] = {
    CAIRN_CLI_TEXT_AT('r', struct args, recipe.run),
    CAIRN_CLI_FLAG_AT('q', struct args, quiet),
    CAIRN_CLI_FLAG_AT('j', struct args, json),
    CAIRN_CLI_RECIPE_AT(struct args, recipe),
    {0},
};

static const struct argp argp = {
    options, NULL, "RECIPE --run DIR [key=value ...]\nDIR [key=value ...]",
    "Runs a recipe on this machine, step after step: rollout, score, train, sync. Call it again after anything "
    "(a kill, a full disk, a reboot), with the recipe or by the run's directory alone: it goes on where the run stands, with the same bits.\v"
    "SIGTERM and Ctrl-C stop it at the next unit of work and exit 75: run me again. Every key of a recipe may be given as key=value; "
    "recipes/base.yaml has them all, with their meaning. cairn status shows how far a run is.\n\n"
    "Examples:\n  cairn run recipes/tiny.yaml --run /tmp/tiny\n  cairn run recipes/tiny.yaml --run /tmp/tiny run.steps=5",
    NULL, NULL, NULL};

/* ---- the chain ------------------------------------------------------------------------------------------------------ */

/* What is passed by (gap.h), told in a line each, counts as done. damaged: those of the done ones whose manifest is. */
static enum cairn_status chain_pass(const struct cairn_run *run, const struct cairn_link *chain, int n, char *done, const char *damaged,
                                    struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *pass = malloc((size_t)n + 1), *name = NULL;

    if (!pass)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_links_pass(run, chain, n, done, damaged, pass, err));
    for (int i = 0; i < n; i++) {
        struct cairn_error why = {0};
        int there;

        if (damaged[i] && cairn_link_whole(run, &chain[i], &there, &why) == CAIRN_EDATA) {
            if (!pass[i])
                TRY(cairn_fail(err, CAIRN_EDATA, "%.380s; cairn verify --repair %s takes it out", why.text, run->dir));
            cairn_warn("%s; nothing that is still to be made reads it", why.text);
        } else if (pass[i]) {
            free(name);
            if (!(name = cairn_link_relative(&chain[i])))
                TRY(CAIRN_NOMEM(err));
            cairn_warn("%s/%s is missing and what it was made from was collected; nothing that is still to be made reads it", run->dir, name);
            done[i] = 1;
        }
    }
out:
    free(name);
    free(pass);
    return st;
}

/* Which of the links are committed, into done (n). A manifest that is there but damaged is "done" only where nobody will read it: whoever does
 * would stop later and elsewhere. */
static enum cairn_status chain_look(const struct cairn_run *run, const struct cairn_link *chain, int n, char *done, struct cairn_error *err)
{
    const struct cairn_reach reach = cairn_run_reach(run);
    char *damaged = calloc((size_t)n + 1, 1);
    enum cairn_status st = CAIRN_OK;

    if (!damaged)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < n; i++) {
        int there = 0;

        if (!cairn_link_beyond(&reach, &chain[i]))
            st = cairn_link_whole(run, &chain[i], &there, err);
        done[i] = (char)there;
        if ((damaged[i] = st == CAIRN_EDATA))
            st = CAIRN_OK;
        TRY(st);
    }
    TRY(chain_pass(run, chain, n, done, damaged, err));
out:
    free(damaged);
    return st;
}

/* Trainer and sampler disagreed in the midst of a run, or one of them made what is no number: the gate looks on the newest policy for where, and err
 * says that, too. */
static void mismatch_locate(const struct cairn_run *run, struct cairn_error *err)
{
    const struct cairn_check_opts o = {.dir = run->dir, .first = 1, .last = 5};
    struct cairn_error found = {0};
    json_t *report = NULL;
    char said[sizeof err->text];
    enum cairn_status st;

    cairn_info("%s", err->text);
    st = cairn_check_run(&o, &report, &found);
    json_decref(report);
    snprintf(said, sizeof said, "%s", err->text);
    if (st == CAIRN_ENUMERIC)
        cairn_fail(err, CAIRN_ENUMERIC, "%.200s; the gate: %.280s", said, found.text);
    else if (st == CAIRN_OK)
        cairn_fail(err, CAIRN_ENUMERIC, "%.260s; the gate finds trainer and sampler equal here and now: look at what made the rollout", said);
    else
        cairn_warn("the gate could not look where: %s", found.text);
}

/* Something that the link reads is damaged, or was collected: the same call would end the same way, so err says what to do before it. 1: it does. */
static int advise(const struct cairn_run *run, const struct cairn_link *l, struct cairn_error *err)
{
    json_t *event = cairn_link_event(run, l);
    enum cairn_failure f = cairn_failure_of(run, l, event);
    char next[4300];

    int says = cairn_failure_next(f, run, next, sizeof next);

    if (says)
        cairn_fail(err, err->code, "%.250s; %s: %.200s", err->text,
                   f == CAIRN_FAILURE_GIVEN ? "how to put back what the run was given" : "before it is run again", next);
    json_decref(event);
    return says;
}

/* Of the links that were at work: they are of one step, and with run.lag of the next. */
static void resident_advise(const struct cairn_run *run, const struct cairn_link *chain, const char *made, int n, struct cairn_error *err)
{
    int64_t step = INT64_MAX;

    for (int i = 0; i < n && (step == INT64_MAX || chain[i].step <= step + 1); i++) {
        if (made[i] || cairn_link_done(run, &chain[i]))
            continue;
        step = chain[i].step < step ? chain[i].step : step;
        if (advise(run, &chain[i], err))
            break;
    }
}

/* An evaluation that does not come out holds no training up: it is told, and tried again by the next call. What it told is in *bad. */
static enum cairn_status link_run(const struct cairn_run *run, const struct cairn_link *l, const struct args *a, struct cairn_error *bad,
                                  struct cairn_error *err)
{
    const struct cairn_link rollout = {l->step, CAIRN_STAGE_ROLLOUT, l->eval};
    enum cairn_status st = CAIRN_OK;

    if (l->eval && l->stage == CAIRN_STAGE_SCORE && !cairn_link_done(run, &rollout))
        return CAIRN_OK; /* told */
    st = cairn_launch(run, l, a->quiet || a->json, err);
    if (st == CAIRN_EDATA || st == CAIRN_ENOINPUT)
        advise(run, l, err);
    if (st != CAIRN_OK && st != CAIRN_EAGAIN && l->eval && !cairn_stop_requested()) {
        cairn_warn("%s; training goes on", err->text);
        if (bad->code == CAIRN_OK)
            *bad = *err;
        return CAIRN_OK;
    }
    if (st == CAIRN_OK && (a->json || !a->quiet))
        st = cairn_trail_tell(run, l, a->json, err);
    if (st == CAIRN_ENUMERIC && !l->eval && (l->stage == CAIRN_STAGE_TRAIN || l->stage == CAIRN_STAGE_ROLLOUT))
        mismatch_locate(run, err);
    return st;
}

struct telling {
    const struct cairn_run *run;
    int json;
};

static enum cairn_status told(void *arg, const struct cairn_link *l, struct cairn_error *err)
{
    const struct telling *t = arg;

    return cairn_trail_tell(t->run, l, t->json, err);
}

static enum cairn_status chain_run(const struct cairn_run *run, const struct args *a, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_link *chain = NULL;
    struct cairn_error bad = {0};
    char *made = NULL;
    int n = 0, done = 0, last = -1; /* last: the last one that is done; there may be holes before it, where a repair took links out */

    TRY(cairn_publish_settle(run, err));
    TRY(cairn_run_chain(run, &chain, &n, err));
    if (!(made = calloc((size_t)n + 1, 1)))
        TRY(CAIRN_NOMEM(err));
    TRY(chain_look(run, chain, n, made, err));
    for (int i = 0; i < n; i++)
        done += made[i];
    for (int i = n - 1; i >= 0 && last < 0; i--)
        if (made[i] && cairn_link_done(run, &chain[i])) /* what is passed by is not */
            last = i;
    if (done == n)
        cairn_info("%s: all %d links were done before", run->dir, n);
    else if (done)
        cairn_info("%s: %d of %d links are done, going on", run->dir, done, n);
    if (last >= 0) /* killed behind its commit, the last one may not have tidied up and told: it sees that it is done and does only that */
        TRY(cairn_launch(run, &chain[last], 1, err));
    if (n && cairn_link_gated(run, &chain[n - 1])) { /* the gate stands first, and before roles that stay alive */
        TRY(link_run(run, &chain[0], a, &bad, err));
        made[0] = 1;
    }
    if (done < n && cairn_run_resident(run)) {
        st = cairn_launch_resident(run, chain, made, n, a->quiet || a->json, a->json || !a->quiet ? told : NULL,
                                   &(struct telling){run, a->json}, err);
        if (st == CAIRN_ENUMERIC)
            mismatch_locate(run, err);
        if (st == CAIRN_EDATA || st == CAIRN_ENOINPUT)
            resident_advise(run, chain, made, n, err);
        goto out;
    }
    for (int i = 0; i < n; i++) {
        if (made[i] || cairn_link_done(run, &chain[i]))
            continue;
        if (cairn_stop_requested())
            TRY(cairn_fail(err, CAIRN_EAGAIN, "stopped; run again to go on"));
        TRY(link_run(run, &chain[i], a, &bad, err));
    }
    if (bad.code != CAIRN_OK) {
        st = bad.code;
        *err = bad;
    }
out:
    free(made);
    free(chain);
    return st;
}

int cairn_verb_run(int argc, char **argv)
{
    struct cairn_error err = {0};
    enum cairn_status st = CAIRN_OK;
    struct args a = {0};
    struct cairn_recipe *recipe = NULL;
    struct cairn_run *run = NULL;
    struct cairn_place place = {0};
    const char *dir;
    char *file = NULL;
    int done, usage = cairn_cli_read(&argp, slots, argc, argv, &a, &done);
    double t0 = cairn_now_s();

    if (usage || done || (usage = cairn_recipe_args_lacking(&a.recipe, "run")))
        return usage;
    cairn_signals_install();
    cairn_log_quiet(a.quiet || a.json);
    TRY(cairn_recipe_args_where(&a.recipe, &dir, &file, &err));
    TRY(cairn_run_recipe_wrong(file, cairn_recipe_load(&recipe, file, a.recipe.overrides, a.recipe.override, &err), &err));
    TRY(cairn_place_take(&place, dir, 1, &err));
    TRY(cairn_fit_new(dir, recipe, &err));
    TRY(cairn_run_init(&run, dir, recipe, &err));
    recipe = NULL;
    TRY(cairn_replay_origin_check(run, &err));
    TRY(chain_run(run, &a, &err));
    cairn_info("%s: done in %.0f s", run->dir, cairn_now_s() - t0);
out:
    cairn_run_close(run);
    cairn_place_leave(&place);
    cairn_recipe_free(recipe);
    free(file);
    return st == CAIRN_OK ? 0 : cairn_cli_fail("run", &err);
}

/* run.c - `cairn run RECIPE --run DIR`: the chain on this machine, without a scheduler.
 *
 * Starts one stage executable after the other, each for one link that has no manifest yet, and tells what it did from the
 * manifest it left. Holds the directory's lock meanwhile. It computes nothing itself and keeps no state: killed at any moment,
 * the next call goes on with the first link that is not committed. A stage dies with its parent (PR_SET_PDEATHSIG), so that
 * kill -9 of this process leaves nobody at work.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/build.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "base/signals.h"
#include "ckpt/manifest.h"
#include "stages/common/lock.h"
#include "tools/cli.h"
#include "tools/recipe_args.h"
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

static error_t option(int key, char *arg, struct argp_state *state)
{
    struct args *a = state->input;

    switch (key) {
    case 'r':
        a->recipe.run = arg;
        return 0;
    case 'q':
        a->quiet = 1;
        return 0;
    case 'j':
        a->json = 1;
        return 0;
    case ARGP_KEY_ARG:
        return cairn_recipe_args_take(&a->recipe, arg) ? 0 : ARGP_ERR_UNKNOWN;
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {
    options, option, "RECIPE --run DIR [key=value ...]",
    "Runs a recipe on this machine, step after step: rollout, score, train, sync. Call it again after anything "
    "(a kill, a full disk, a reboot): it goes on where the run stands, with the same bits.\v"
    "SIGTERM and Ctrl-C stop it at the next unit of work and exit 75: run me again.\n\n"
    "Examples:\n  cairn run recipes/tiny.yaml --run /tmp/tiny\n  cairn run recipes/tiny.yaml --run /tmp/tiny run.steps=5",
    NULL, NULL, NULL};

/* ---- one stage --------------------------------------------------------------------------------------------------- */

static void stage_exec(const struct cairn_run *run, const struct cairn_link *l, int quiet, pid_t parent)
{
    char name[64], step[32], *bin = cairn_format("%s/bin", cairn_install_dir()), *path;
    const char *argv[10];
    int n = 0;

    snprintf(name, sizeof name, "cairn-%s", cairn_stage_name(l->stage));
    snprintf(step, sizeof step, "%lld", (long long)l->step);
    path = bin ? cairn_path_join(bin, name) : NULL;
    argv[n++] = name;
    argv[n++] = run->dir;
    argv[n++] = "--step";
    argv[n++] = step;
    if (l->eval) {
        argv[n++] = "--eval";
        argv[n++] = l->eval;
    }
    if (quiet)
        argv[n++] = "--quiet";
    argv[n] = NULL;
    /* Children keep the default actions; the stage installs its own handlers. */
    cairn_signals_reset();
    if (path && !prctl(PR_SET_PDEATHSIG, SIGKILL) && getppid() == parent)
        execv(path, (char **)argv);
    fprintf(stderr, "cairn run: cannot start %s: %s\n", path ? path : name, strerror(errno));
    _exit(CAIRN_EBUG);
}

/* The stage's exit code, or CAIRN_EBUG when a signal ended it. */
static enum cairn_status stage_run(const struct cairn_run *run, const struct cairn_link *l, int quiet, struct cairn_error *err)
{
    char *relative = NULL;
    enum cairn_status st = CAIRN_OK;
    pid_t parent = getpid(), pid;
    int status = 0, told = 0;

    fflush(NULL);
    pid = fork();
    if (pid < 0)
        return cairn_fail_errno(err, errno, "fork");
    if (pid == 0)
        stage_exec(run, l, quiet, parent);
    for (;;) {
        pid_t got = waitpid(pid, &status, told || !cairn_stop_requested() ? 0 : WNOHANG);

        if (got == pid)
            break;
        if (got < 0 && errno != EINTR)
            return cairn_fail_errno(err, errno, "waitpid");
        if (cairn_stop_requested() && !told) {
            kill(pid, SIGTERM);
            told = 1;
        }
    }
    relative = cairn_link_relative(l);
    if (WIFSIGNALED(status))
        st = cairn_fail(err, CAIRN_EBUG, "%s: cairn-%s was killed by signal %d (%s); run again to go on", relative, cairn_stage_name(l->stage),
                        WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status) == CAIRN_EAGAIN)
        st = cairn_fail(err, CAIRN_EAGAIN, "%s: stopped early; run again to go on", relative);
    else if (WEXITSTATUS(status) != 0)
        st = cairn_fail(err, (enum cairn_status)WEXITSTATUS(status), "%s: cairn-%s --step %lld ended with %d; its sentence stands above",
                        relative, cairn_stage_name(l->stage), (long long)l->step, WEXITSTATUS(status));
    else if (!cairn_link_done(run, l))
        st = cairn_fail(err, CAIRN_EBUG, "%s: cairn-%s said done, but nothing is committed", relative, cairn_stage_name(l->stage));
    free(relative);
    return st;
}

/* ---- what a link did, from its manifest ----------------------------------------------------------------------------- */

static void figure(struct cairn_str *s, const json_t *metrics, const char *key, const char *name, const char *fmt, double scale)
{
    const json_t *v = json_object_get(metrics, key);

    if (json_is_number(v)) {
        char number[48];

        snprintf(number, sizeof number, fmt, json_number_value(v) * scale);
        cairn_str_printf(s, "  %s %s", name, number);
    }
}

static enum cairn_status link_tell(const struct cairn_run *run, const struct cairn_link *l, int json, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_link_path(run, l), *relative = cairn_link_relative(l);
    struct cairn_manifest *m = NULL;
    struct cairn_str s = {0};
    const json_t *metrics;

    if (!path || !relative)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_manifest_load(&m, path, err));
    metrics = json_object_get(m->content, "metrics");
    if (!metrics)
        metrics = json_object_get(m->info, "metrics");
    if (json) {
        char hex[33];
        json_t *o;

        cairn_digest_hex(m->digest, hex);
        o = json_pack("{s:I, s:s, s:s?, s:s, s:s, s:O*}", "step", (json_int_t)l->step, "stage", cairn_stage_name(l->stage), "eval", l->eval,
                      "artefact", relative, "digest", hex, "metrics", metrics);
        TRY(cairn_cli_json(o, err));
        TRY(cairn_cli_flush(err));
    } else {
        cairn_str_printf(&s, "%-28s", relative);
        figure(&s, metrics, "accuracy", "accuracy", "%.1f%%", 100);
        figure(&s, metrics, "reward/shaped_mean", "reward", "%.3f", 1);
        figure(&s, metrics, "capped_share", "capped", "%.1f%%", 100);
        figure(&s, metrics, "length/mean", "length", "%.1f", 1);
        figure(&s, metrics, "loss/policy", "loss", "%.4f", 1);
        figure(&s, metrics, "loss/sft", "loss", "%.4f", 1);
        figure(&s, metrics, "grad_norm", "grad norm", "%.3f", 1);
        figure(&s, json_object_get(m->info, "metrics"), "tokens/per_second", "tokens/s", "%.0f", 1);
        figure(&s, m->info, "seconds", "seconds", "%.1f", 1);
        fprintf(stderr, "%s\n", cairn_str_z(&s));
    }
out:
    cairn_manifest_destroy(m);
    cairn_str_free(&s);
    free(path);
    free(relative);
    return st;
}

/* ---- the chain ------------------------------------------------------------------------------------------------------ */

static enum cairn_status chain_run(const struct cairn_run *run, const struct args *a, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_link *chain = NULL;
    int n = 0, done = 0;

    TRY(cairn_run_chain(run, &chain, &n, err));
    for (int i = 0; i < n; i++)
        done += cairn_link_done(run, &chain[i]);
    if (done && !a->quiet)
        cairn_info("%s: %d of %d links are done, going on", run->dir, done, n);
    for (int i = 0; i < n; i++) {
        if (cairn_link_done(run, &chain[i]))
            continue;
        if (cairn_stop_requested())
            TRY(cairn_fail(err, CAIRN_EAGAIN, "stopped; run again to go on"));
        TRY(stage_run(run, &chain[i], a->quiet || a->json, err));
        if (!a->quiet)
            TRY(link_tell(run, &chain[i], a->json, err));
    }
out:
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
    struct cairn_lock *lock = NULL;
    int done, usage = cairn_cli_parse(&argp, argc, argv, &a, &done);
    double t0 = cairn_now_s();

    if (usage || done)
        return usage;
    if (!a.recipe.recipe || !a.recipe.run)
        return cairn_cli_usage("run", "%s", a.recipe.recipe ? "--run DIR is missing" : "RECIPE is missing");
    cairn_signals_install();
    cairn_log_quiet(a.quiet || a.json);
    TRY(cairn_recipe_load(&recipe, a.recipe.recipe, a.recipe.overrides, a.recipe.override, &err));
    TRY(cairn_dir_make(a.recipe.run, &err));
    TRY(cairn_lock_take(&lock, a.recipe.run, &err));
    TRY(cairn_run_init(&run, a.recipe.run, recipe, &err));
    recipe = NULL;
    TRY(chain_run(run, &a, &err));
    cairn_info("%s: done in %.0f s", run->dir, cairn_now_s() - t0);
out:
    cairn_run_close(run);
    cairn_lock_drop(lock);
    cairn_recipe_free(recipe);
    return st == CAIRN_OK ? 0 : cairn_cli_fail("run", &err);
}

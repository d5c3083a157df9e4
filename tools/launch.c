/* launch.c - fork, exec, wait (launch.h), for as many processes as a link has tasks. */
#include "tools/launch.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/build.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"
#include "stages/common/lock.h"
#include "tools/mpirun.h"
#include "world/shmname.h"

int64_t cairn_launch_ranks(const struct cairn_recipe *recipe, enum cairn_stage stage)
{
    static const char *const sampler[] = {"rollout.parallel.tp", "rollout.parallel.ep", "rollout.parallel.dp", NULL};
    /* Expert parallel ranks are the same ranks as those of the others: ep cuts them another way. */
    static const char *const trainer[] = {"train.parallel.tp", "train.parallel.pp", "train.parallel.cp", "train.parallel.dp", NULL};
    const char *const *key = stage == CAIRN_STAGE_ROLLOUT ? sampler : stage == CAIRN_STAGE_TRAIN ? trainer : NULL;
    int64_t n = 1;

    for (; key && *key; key++)
        n *= cairn_recipe_i64(recipe, *key);
    return n;
}

int64_t cairn_launch_tasks(const struct cairn_run *run, const struct cairn_link *l)
{
    const char *key = l->stage == CAIRN_STAGE_ROLLOUT ? "rollout.tasks" : l->stage == CAIRN_STAGE_SCORE ? "score.tasks" : NULL;

    return key ? cairn_recipe_i64(cairn_run_recipe(run, l->step), key) : 1;
}

/* Of a resident run, in the order of their ranks. */
static const enum cairn_stage roles[] = {CAIRN_STAGE_ROLLOUT, CAIRN_STAGE_SCORE, CAIRN_STAGE_TRAIN};
#define ROLES ((int)(sizeof roles / sizeof *roles))

/* One process of a link, or one mpirun: of its ranks, or of a resident run's. */
struct child {
    const struct cairn_run *run;
    const struct cairn_link *link;
    int quiet;
    int64_t ranks, task, tasks; /* tasks 1: the whole link */
    int64_t threads;            /* 0: as the recipe says */
    int64_t role[ROLES];        /* resident: ranks of each role, ranks is their sum; else 0 */
    void (*look)(void *arg);    /* called now and then; or NULL */
    void *arg;
    pid_t pid;                  /* 0: it has ended, with status */
    int status;
    int told;                   /* to stop */
    char *program[ROLES];       /* of its ranks, as many as there are */
    struct cairn_mpirun mpirun; /* with several ranks */
    pid_t guard;                /* its; 0: none */
};

#define WORDS 40 /* of a command line */

struct words {
    const char *argv[WORDS];
    char room[WORDS][32]; /* of numbers */
    int n, missing;       /* missing: one could not be had */
};

static void word(struct words *w, const char *s)
{
    w->missing |= !s;
    w->argv[w->n++] = s;
}

static void number(struct words *w, const char *option, int64_t v)
{
    snprintf(w->room[w->n], sizeof w->room[w->n], "%lld", (long long)v);
    word(w, option);
    word(w, w->room[w->n - 1]);
}

/* malloc'ed path of a stage's program; NULL: unknown. */
static char *program_path(enum cairn_stage stage)
{
    const char *install = cairn_install_dir();

    return install ? cairn_format("%s/bin/cairn-%s", install, cairn_stage_name(stage)) : NULL;
}

/* Each role with its ranks, ':' between them: one world. */
static void words_resident(struct words *w, const struct child *c)
{
    word(w, "mpirun");
    for (int k = 0; k < ROLES; k++) {
        if (k)
            word(w, ":");
        number(w, "-np", c->role[k]);
        word(w, program_path(roles[k]));
        word(w, c->run->dir);
        word(w, "--resident");
        if (c->quiet)
            word(w, "--quiet");
    }
}

static void words_link(struct words *w, const struct child *c)
{
    const struct cairn_link *l = c->link;
    static char shard[64];

    if (c->ranks > 1) {
        word(w, "mpirun");
        number(w, "-np", c->ranks);
    }
    word(w, program_path(l->stage));
    word(w, c->run->dir);
    number(w, "--step", l->step);
    if (l->eval) {
        word(w, "--eval");
        word(w, l->eval);
    }
    if (c->tasks > 1) {
        snprintf(shard, sizeof shard, "%lld/%lld", (long long)c->task, (long long)c->tasks);
        word(w, "--shard");
        word(w, shard);
    }
    if (c->threads)
        number(w, "--threads", c->threads);
    if (c->quiet)
        word(w, "--quiet");
}

/* In the child; never returns. */
static void stage_exec(const struct child *c, pid_t parent, const sigset_t *mask)
{
    static const int stops[] = {SIGTERM, SIGUSR1, SIGINT};
    sigset_t held = *mask;
    struct words w = {0};

    if (c->role[0])
        words_resident(&w, c);
    else
        words_link(&w, c);
    if (c->ranks > 1) {
        cairn_mpirun_prepare(c->ranks);
        cairn_lock_share();
    }
    cairn_signals_reset(); /* the stage installs its own handlers */
    signal(SIGCHLD, SIG_DFL);
    for (size_t i = 0; c->ranks == 1 && i < sizeof stops / sizeof *stops; i++)
        sigaddset(&held, stops[i]); /* a stage lets them through once its handlers stand; mpirun expects them open */
    sigprocmask(SIG_SETMASK, &held, NULL);
    errno = 0;
    /* A killed mpirun would leave its ranks' shared memory behind; a terminated one takes both away. */
    if (!w.missing && !prctl(PR_SET_PDEATHSIG, c->ranks > 1 ? SIGTERM : SIGKILL) && getppid() == parent)
        execvp(w.argv[0], (char **)w.argv);
    fprintf(stderr, "cairn: cannot start %s: %s\n", w.missing ? "a stage" : w.argv[0], errno ? strerror(errno) : "its parent is gone");
    _exit(c->ranks > 1 && errno == ENOENT ? CAIRN_EDEVICE : CAIRN_EBUG);
}

static void on_child(int signo)
{
    (void)signo; /* there is somebody to wait for: ppoll returns */
}

/* 1: all have been told. */
static int stop_all(struct child *c, int64_t n, double waited_s)
{
    int all = 1;

    for (int64_t i = 0; i < n; i++) {
        if (!c[i].pid || c[i].told)
            continue;
        if (c[i].ranks > 1)
            c[i].told = cairn_mpirun_stop(&c[i].mpirun, waited_s);
        else
            c[i].told = !kill(c[i].pid, SIGTERM);
        all &= c[i].told;
    }
    return all;
}

static void child_ended(struct child *c)
{
    c->pid = 0;
    cairn_mpirun_guard_end(c->guard);
    c->guard = 0;
}

/* Waits for all; passes one stop on, and stops the others when one has failed. Stops and SIGCHLD are blocked but for the sleep, so
 * that none slips in between. */
static enum cairn_status children_wait(struct child *c, int64_t n, const sigset_t *mask, struct cairn_error *err)
{
    const struct timespec soon = {0, 20000000}, later = {0, 250000000};
    double since = 0;
    int told = 0;

    for (;;) {
        int64_t open = 0;
        int failed = 0;

        for (int64_t i = 0; i < n; i++) {
            pid_t got = c[i].pid ? waitpid(c[i].pid, &c[i].status, WNOHANG) : 0;

            if (got < 0 && errno != EINTR)
                return cairn_fail_errno(err, errno, "waitpid");
            if (got > 0)
                child_ended(&c[i]);
            open += c[i].pid != 0;
            failed |= !c[i].pid && c[i].status;
        }
        if (!open)
            return CAIRN_OK;
        if ((failed || cairn_stop_requested()) && !told) {
            since = since > 0 ? since : cairn_now_s();
            told = stop_all(c, n, cairn_now_s() - since);
            if (!told)
                ppoll(NULL, 0, &soon, mask);
            continue;
        }
        for (int64_t i = 0; i < n; i++)
            if (c[i].pid && c[i].ranks > 1)
                cairn_mpirun_watch(&c[i].mpirun);
        for (int64_t i = 0; i < n; i++)
            if (c[i].look)
                c[i].look(c[i].arg);
        ppoll(NULL, 0, &later, mask);
    }
}

static int code_known(int code)
{
    static const enum cairn_status codes[] = {CAIRN_EUSAGE,  CAIRN_EDATA,    CAIRN_ENOINPUT, CAIRN_EBUG,
                                              CAIRN_EFENCED, CAIRN_EDEVICE,  CAIRN_ENOSPACE, CAIRN_EIO,
                                              CAIRN_EAGAIN,  CAIRN_ENUMERIC, CAIRN_ERECIPE};

    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (code == (int)codes[i])
            return 1;
    return 0;
}

static int from_outside(int signo)
{
    return signo == SIGKILL || signo == SIGTERM || signo == SIGINT || signo == SIGUSR1 || signo == SIGHUP;
}

/* How one process ended; " --shard 2/5" is part of what it was called with. */
static enum cairn_status verdict(const struct child *c, struct cairn_error *err)
{
    const char *stage = c->role[0] ? "*" : cairn_stage_name(c->link->stage);
    char *link = c->role[0] ? strdup("resident run") : cairn_link_relative(c->link), shard[64] = "";
    int code = WIFEXITED(c->status) ? WEXITSTATUS(c->status) : -1, signo = code < 0 ? WTERMSIG(c->status) : 0;
    long long step = c->role[0] ? -1 : c->link->step;
    enum cairn_status st = CAIRN_OK;

    if (!link)
        return CAIRN_NOMEM(err);
    if (c->tasks > 1)
        snprintf(shard, sizeof shard, " --shard %lld/%lld", (long long)c->task, (long long)c->tasks);
    if (c->ranks > 1 && code > 128 && code < 128 + 64) /* as mpirun tells that a rank was killed */
        signo = code - 128;
    if (signo && code < 0 && c->ranks > 1 &&
        cairn_stop_requested()) /* mpirun itself: some signals it does not survive while it starts */
        st = cairn_fail(err, CAIRN_EAGAIN, "%s: mpirun was stopped on request while it started; run again to go on", link);
    else if (signo) /* from outside (an administrator, the kernel out of memory), or by a fault of its own */
        st = cairn_fail(err, from_outside(signo) ? CAIRN_EAGAIN : CAIRN_EBUG,
                        "%s: %scairn-%s%s was killed by signal %d (%s); run again to go on", link, code > 0 ? "a rank of " : "",
                        stage, shard, signo, strsignal(signo));
    else if (code == CAIRN_EAGAIN)
        st = cairn_fail(err, CAIRN_EAGAIN, "%s: stopped early; run again to go on", link);
    else if (code && code_known(code) && c->role[0])
        st = cairn_fail(err, (enum cairn_status)code, "%s: it ended with %d; the sentence stands above, and in %s/log", link, code, c->run->dir);
    else if (code && code_known(code))
        st = cairn_fail(err, (enum cairn_status)code,
                        "%s: cairn-%s --step %lld%s ended with %d; its sentence stands above, and in %s/log/%s.jsonl", link, stage,
                        step, shard, code, c->run->dir, stage);
    else if (code && c->ranks > 1 && cairn_stop_requested()) /* it had been asked to stop before its ranks could hear it */
        st = cairn_fail(err, CAIRN_EAGAIN,
                        "%s: mpirun was stopped before its ranks listened, and ended with %d; run again to go on", link, code);
    else if (code && c->ranks > 1)
        st = cairn_fail(err, CAIRN_EBUG,
                        "%s: mpirun of %lld cairn-%s --step %lld%s ended with %d (OMPI_MCA_orte_execute_quiet=0 lets it say why)",
                        link, (long long)c->ranks, stage, step, shard, code);
    else if (code)
        st = cairn_fail(err, CAIRN_EBUG, "%s: cairn-%s --step %lld%s ended with %d, which is none of its exit codes", link, stage,
                        step, shard, code);
    else if (c->tasks == 1 && !c->role[0] && !cairn_link_done(c->run, c->link))
        st = cairn_fail(err, CAIRN_EBUG, "%s: cairn-%s said done, but nothing is committed", link, stage);
    free(link);
    return st;
}

/* What is wrong with one goes before what was only stopped. */
static enum cairn_status verdicts(const struct child *c, int64_t n, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int64_t i = 0; i < n; i++) {
        struct cairn_error why = {0};
        enum cairn_status one = verdict(&c[i], &why);

        if (one == CAIRN_OK || (st != CAIRN_OK && one == CAIRN_EAGAIN))
            continue;
        st = one;
        if (err)
            *err = why;
        if (one != CAIRN_EAGAIN)
            break;
    }
    return st;
}

/* Before the child is there: what its mpirun will be known by. */
static enum cairn_status mpirun_describe(struct child *c, struct cairn_error *err)
{
    c->mpirun = (struct cairn_mpirun){.ranks = c->ranks};
    for (int k = 0; k < (c->role[0] ? ROLES : 1); k++) {
        if (!(c->program[k] = program_path(c->role[0] ? roles[k] : c->link->stage)))
            return CAIRN_NOMEM(err);
        c->mpirun.program[k] = c->program[k];
    }
    return CAIRN_OK;
}

static void child_started(struct child *c, pid_t pid)
{
    c->pid = pid;
    if (c->ranks > 1) {
        c->mpirun.pid = pid;
        c->guard = cairn_mpirun_guard(&c->mpirun, CAIRN_MPIRUN_BEHIND_S);
    }
}

/* Starts n processes and waits for them. */
static enum cairn_status children_run(struct child *c, int64_t n, struct cairn_error *err)
{
    static const int signals[] = {SIGTERM, SIGUSR1, SIGINT, SIGCHLD};
    struct sigaction child = {.sa_handler = on_child}, child_before;
    sigset_t block, before, open;
    enum cairn_status st = CAIRN_OK, waited;
    pid_t parent = getpid();

    sigemptyset(&block);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaddset(&block, signals[i]);
    fflush(NULL);
    sigaction(SIGCHLD, &child, &child_before);
    sigprocmask(SIG_BLOCK, &block, &before);
    open = before;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigdelset(&open, signals[i]);
    for (int64_t i = 0; i < n && st == CAIRN_OK; i++) {
        pid_t pid;

        if (c[i].ranks > 1 && (st = mpirun_describe(&c[i], err)) != CAIRN_OK)
            break;
        pid = fork();
        if (pid == 0)
            stage_exec(&c[i], parent, &open);
        if (pid < 0)
            st = cairn_fail_errno(err, errno, "fork");
        else
            child_started(&c[i], pid);
    }
    if (st != CAIRN_OK)
        stop_all(c, n, 10);
    waited = children_wait(c, n, &open, st == CAIRN_OK ? err : NULL);
    st = st == CAIRN_OK ? waited : st;
    sigprocmask(SIG_SETMASK, &before, NULL);
    sigaction(SIGCHLD, &child_before, NULL);
    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < ROLES; k++) {
            free(c[i].program[k]);
            c[i].program[k] = NULL;
        }
    return st == CAIRN_OK ? verdicts(c, n, err) : st;
}

enum cairn_status cairn_launch(const struct cairn_run *run, const struct cairn_link *l, int quiet, struct cairn_error *err)
{
    int done = cairn_link_done(run, l); /* then one process has a little to tidy up */
    int64_t tasks = done ? 1 : cairn_launch_tasks(run, l);
    const struct child whole = {
        .run = run, .link = l, .quiet = quiet, .ranks = done ? 1 : cairn_launch_ranks(cairn_run_recipe(run, l->step), l->stage), .tasks = 1};
    struct child *c = calloc((size_t)tasks, sizeof *c);
    enum cairn_status st = CAIRN_OK;

    if (!c)
        TRY(CAIRN_NOMEM(err));
    if (whole.ranks > 1) /* of runs that were killed with their mpirun */
        cairn_shm_sweep(CAIRN_SHM_DIR, 0, NULL, NULL, NULL);
    for (int64_t i = 0; i < tasks; i++) {
        c[i] = whole;
        c[i].task = i;
        c[i].tasks = tasks;
        c[i].quiet = quiet || i > 0; /* one bar */
        if (tasks > 1 && !cairn_recipe_i64(cairn_run_recipe(run, l->step), "kernels.threads"))
            c[i].threads = cairn_cores() > tasks * whole.ranks ? cairn_cores() / (tasks * whole.ranks) : 1;
    }
    TRY(children_run(c, tasks, err));
    if (tasks > 1 && !cairn_link_done(run, l)) { /* two that were the last ones may have missed each other */
        c[0] = whole;
        TRY(children_run(c, 1, err));
    }
out:
    if (whole.ranks > 1)
        cairn_shm_sweep(CAIRN_SHM_DIR, 0, NULL, NULL, NULL);
    free(c);
    return st;
}

/* ---- resident ---------------------------------------------------------------------------------------------------------- */

struct trail {
    const struct cairn_run *run;
    const struct cairn_link *chain;
    char *done;
    int n;
    enum cairn_status (*told)(void *arg, const struct cairn_link *l, struct cairn_error *err);
    void *arg;
    struct cairn_error err; /* the first failure of told */
};

/* Tells what has been committed since the last look: each by itself, a link may overtake the one before it. */
static void trail_look(void *arg)
{
    struct trail *t = arg;

    for (int i = 0, ahead = 0; i < t->n && ahead < 8; i++) { /* nothing far behind the first open one is there yet */
        if (t->done[i])
            continue;
        if (!cairn_link_done(t->run, &t->chain[i])) {
            ahead++;
            continue;
        }
        t->done[i] = 1;
        if (t->told && t->err.code == CAIRN_OK)
            t->told(t->arg, &t->chain[i], &t->err);
    }
}

static int64_t role_ranks(const struct trail *t, enum cairn_stage role)
{
    const struct cairn_link l = {cairn_links_next_step(t->chain, t->done, t->n, role), role, NULL};

    return cairn_launch_ranks(cairn_run_recipe(t->run, l.step), role) * cairn_launch_tasks(t->run, &l); /* tasks are ranks of the one world */
}

enum cairn_status cairn_launch_resident(const struct cairn_run *run, const struct cairn_link *chain, char *done, int n, int quiet,
                                        enum cairn_status (*told)(void *arg, const struct cairn_link *l, struct cairn_error *err), void *arg,
                                        struct cairn_error *err)
{
    struct trail t = {.run = run, .chain = chain, .done = done, .n = n, .told = told, .arg = arg};
    struct child c = {.run = run, .quiet = quiet, .tasks = 1, .look = trail_look, .arg = &t};
    enum cairn_status st = CAIRN_OK;

    for (int k = 0; k < ROLES; k++)
        c.ranks += c.role[k] = role_ranks(&t, roles[k]);
    cairn_shm_sweep(CAIRN_SHM_DIR, 0, NULL, NULL, NULL); /* of runs that were killed with their mpirun */
    TRY(children_run(&c, 1, err));
    trail_look(&t);
    for (int i = 0; i < t.n; i++)
        if (!t.done[i])
            TRY(cairn_fail(err, CAIRN_EBUG, "resident run: it said done, but step %lld %s is not committed", (long long)t.chain[i].step,
                           cairn_stage_name(t.chain[i].stage)));
    if (t.err.code != CAIRN_OK) {
        st = t.err.code;
        if (err)
            *err = t.err;
    }
out:
    cairn_shm_sweep(CAIRN_SHM_DIR, 0, NULL, NULL, NULL);
    return st;
}

/* launch.c - fork, exec, wait (launch.h). */
#include "tools/launch.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/build.h"
#include "base/file.h"
#include "base/signals.h"
#include "base/str.h"

int64_t cairn_launch_ranks(const struct cairn_run *run, const struct cairn_link *l)
{
    static const char *const sampler[] = {"rollout.parallel.tp", "rollout.parallel.ep", "rollout.parallel.dp", NULL};
    /* Expert parallel ranks are the same ranks as those of the others: ep cuts them another way. */
    static const char *const trainer[] = {"train.parallel.tp", "train.parallel.pp", "train.parallel.cp", "train.parallel.dp", NULL};
    const char *const *key = l->stage == CAIRN_STAGE_ROLLOUT ? sampler : l->stage == CAIRN_STAGE_TRAIN ? trainer : NULL;
    int64_t n = 1;

    for (; key && *key; key++)
        n *= cairn_recipe_i64(cairn_run_recipe(run, l->step), *key);
    return n;
}

/* In the child; never returns. */
static void stage_exec(const struct cairn_run *run, const struct cairn_link *l, int quiet, int64_t ranks, pid_t parent, const sigset_t *mask)
{
    const char *install = cairn_install_dir(), *argv[16];
    char name[64], step[32], np[32], *bin = install ? cairn_path_join(install, "bin") : NULL, *path;
    int n = 0;

    snprintf(name, sizeof name, "cairn-%s", cairn_stage_name(l->stage));
    snprintf(step, sizeof step, "%lld", (long long)l->step);
    snprintf(np, sizeof np, "%lld", (long long)ranks);
    path = bin ? cairn_path_join(bin, name) : NULL;
    if (ranks > 1) {
        argv[n++] = "mpirun";
        argv[n++] = "-np";
        argv[n++] = np;
        /* What Open MPI asks of somebody who means it; other launchers do not look. */
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
        setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
    }
    argv[n++] = path;
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
    cairn_signals_reset(); /* the stage installs its own handlers */
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    errno = 0;
    if (path && !prctl(PR_SET_PDEATHSIG, SIGKILL) && getppid() == parent)
        execvp(argv[0], (char **)argv);
    fprintf(stderr, "cairn: cannot start %s: %s\n", path ? argv[0] : name, errno ? strerror(errno) : "its parent is gone");
    _exit(CAIRN_EBUG);
}

static void on_child(int signo)
{
    (void)signo; /* there is one to wait for: sigsuspend returns */
}

/* Waits for pid; passes one stop on. Stops and SIGCHLD are blocked but for the sleep, so that none slips in between. */
static enum cairn_status child_wait(pid_t pid, const sigset_t *open, int *status, struct cairn_error *err)
{
    int told = 0;

    for (;;) {
        pid_t got = waitpid(pid, status, WNOHANG);

        if (got == pid)
            return CAIRN_OK;
        if (got < 0 && errno != EINTR)
            return cairn_fail_errno(err, errno, "waitpid");
        if (cairn_stop_requested() && !told) {
            kill(pid, SIGTERM);
            told = 1;
            continue;
        }
        sigsuspend(open);
    }
}

static int code_known(int code)
{
    static const enum cairn_status codes[] = {CAIRN_EUSAGE,  CAIRN_EDATA,    CAIRN_ENOINPUT, CAIRN_EBUG,     CAIRN_EFENCED, CAIRN_EDEVICE,
                                              CAIRN_ENOSPACE, CAIRN_EIO,     CAIRN_EAGAIN,   CAIRN_ENUMERIC, CAIRN_ERECIPE};

    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (code == (int)codes[i])
            return 1;
    return 0;
}

static enum cairn_status verdict(const struct cairn_run *run, const struct cairn_link *l, int status, struct cairn_error *err)
{
    const char *stage = cairn_stage_name(l->stage);
    char *link = cairn_link_relative(l);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    enum cairn_status st = CAIRN_OK;

    if (!link)
        return CAIRN_NOMEM(err);
    if (code < 0)
        st = cairn_fail(err, CAIRN_EBUG, "%s: cairn-%s was killed by signal %d (%s); run again to go on", link, stage, WTERMSIG(status),
                        strsignal(WTERMSIG(status)));
    else if (code == CAIRN_EAGAIN)
        st = cairn_fail(err, CAIRN_EAGAIN, "%s: stopped early; run again to go on", link);
    else if (code && code_known(code))
        st = cairn_fail(err, (enum cairn_status)code, "%s: cairn-%s --step %lld ended with %d; its sentence stands above, and in %s/log/%s.jsonl",
                        link, stage, (long long)l->step, code, run->dir, stage);
    else if (code)
        st = cairn_fail(err, CAIRN_EBUG, "%s: cairn-%s --step %lld ended with %d, which is none of its exit codes", link, stage,
                        (long long)l->step, code);
    else if (!cairn_link_done(run, l))
        st = cairn_fail(err, CAIRN_EBUG, "%s: cairn-%s said done, but nothing is committed", link, stage);
    free(link);
    return st;
}

enum cairn_status cairn_launch(const struct cairn_run *run, const struct cairn_link *l, int quiet, struct cairn_error *err)
{
    static const int signals[] = {SIGTERM, SIGUSR1, SIGINT, SIGCHLD};
    struct sigaction child = {.sa_handler = on_child}, child_before;
    sigset_t block, before, open;
    enum cairn_status st = CAIRN_OK;
    pid_t parent = getpid(), pid;
    int status = 0;

    sigemptyset(&block);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaddset(&block, signals[i]);
    fflush(NULL);
    sigaction(SIGCHLD, &child, &child_before);
    sigprocmask(SIG_BLOCK, &block, &before);
    open = before;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigdelset(&open, signals[i]);
    pid = fork();
    if (pid == 0)
        stage_exec(run, l, quiet, cairn_launch_ranks(run, l), parent, &open);
    if (pid < 0)
        TRY(cairn_fail_errno(err, errno, "fork"));
    TRY(child_wait(pid, &open, &status, err));
    TRY(verdict(run, l, status, err));
out:
    sigprocmask(SIG_SETMASK, &before, NULL);
    sigaction(SIGCHLD, &child_before, NULL);
    return st;
}

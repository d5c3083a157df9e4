/* srun.c - builds srun's arguments and waits (srun.h).
 *
 * At the end of a job Slurm sends SIGTERM to every process of it, to srun as well, which then leaves at once with 0 ("forcing job
 * termination") while its tasks have KillWait seconds more. So who is told to end believes nothing that srun returns.
 */
#include "slurm/srun.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/signals.h"
#include "base/str.h"

#define MOST 64

/* Waiting: a signal (SIGCHLD, a stop) ends the sleep. */
static void nap(const sigset_t *waited, double s)
{
    struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};

    sigtimedwait(waited, NULL, &t);
}

static const char *mpi_kind(int64_t ranks)
{
    const char *site = getenv("CAIRN_SRUN_MPI"); /* for sites whose plugin has another name */

    return ranks == 1 ? "none" : site && site[0] ? site : "pmix";
}

enum cairn_status cairn_srun(struct cairn_srun_end *end, const struct cairn_srun *s, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const char *argv[MOST], *cpus = getenv("SLURM_CPUS_PER_TASK");
    char ranks[32], nodes[32], mpi[64], per_task[64];
    int n = 0, status = 0, passed = 0;
    sigset_t child, before;
    pid_t pid, own = getpid();

    memset(end, 0, sizeof *end);
    snprintf(ranks, sizeof ranks, "--ntasks=%lld", (long long)s->ranks);
    snprintf(nodes, sizeof nodes, "--nodes=%lld", (long long)(s->nodes < s->ranks ? s->nodes : s->ranks));
    snprintf(mpi, sizeof mpi, "--mpi=%s", mpi_kind(s->ranks));
    argv[n++] = "srun";
    argv[n++] = ranks;
    argv[n++] = nodes;
    argv[n++] = mpi;
    argv[n++] = "--kill-on-bad-exit=1";
    argv[n++] = "--wait=60";                  /* one rank has ended with 0, the others hang */
    argv[n++] = "--distribution=block:block"; /* consecutive ranks (tp, ep) are neighbours */
    argv[n++] = "--input=none";
    if (cpus && cpus[0]) {
        snprintf(per_task, sizeof per_task, "--cpus-per-task=%s", cpus);
        argv[n++] = per_task;
        argv[n++] = "--cpu-bind=cores";
    }
    /* Of GPUs a task sees all that the job has on its node, and takes its own by local rank: that is what Slurm does for --gres
     * where nothing binds. (--gpu-bind=none takes CUDA_VISIBLE_DEVICES away: then tasks see those of other jobs, too.) */
    if (s->ranks > 1)
        argv[n++] = "--label";
    for (int i = 0; s->argv[i]; i++) {
        if (n + 1 == MOST)
            return CAIRN_BUG(err, "srun: too many arguments");
        argv[n++] = s->argv[i];
    }
    argv[n] = NULL;
    fflush(NULL);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, &before);
    pid = fork();
    if (pid < 0)
        TRY(cairn_fail_errno(err, errno, "fork for srun"));
    if (pid == 0) {
        cairn_signals_reset();
        sigprocmask(SIG_SETMASK, &before, NULL);
        if (!prctl(PR_SET_PDEATHSIG, SIGKILL) && getppid() == own)
            execvp(argv[0], (char *const *)(uintptr_t)argv);
        fprintf(stderr, "cairn: cannot start srun: %s\n", strerror(errno));
        _exit(127);
    }
    for (;;) {
        pid_t got = waitpid(pid, &status, WNOHANG);

        if (got == pid)
            break;
        if (got < 0 && errno != EINTR)
            TRY(cairn_fail_errno(err, errno, "waitpid"));
        if (cairn_stop_requested() && cairn_stop_requested() != SIGTERM && !passed) {
            passed = 1;
            kill(pid, SIGUSR1); /* srun passes it on to its tasks */
        }
        if (s->stop_at_s > 0 && cairn_now_s() >= s->stop_at_s && !end->told) {
            end->told = 1;
            kill(pid, SIGUSR1);
        }
        nap(&child, 0.25);
    }
    end->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    end->terminated = cairn_stop_requested() == SIGTERM;
out:
    sigprocmask(SIG_SETMASK, &before, NULL);
    return st;
}

/* mpirun.c - see mpirun.h. */
#include "tools/mpirun.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cores.h"
#include "base/log.h"
#include "stages/common/lock.h"
#include "tools/reach.h"
#include "world/shmname.h"

#define ALONE_S 30.0 /* behind the last of its ranks here; those on other nodes may be at their end */

/* What Open MPI asks of somebody who means it; other launchers do not look. Its ranks are ours to place (threads roam over all
 * cores), and its paragraphs about an exit code that is a sentence of ours already are kept back. */
void cairn_mpirun_prepare(int64_t ranks)
{
    int null = open("/dev/null", O_RDONLY);
    char name[100], shm[140];

    /* What its ranks share is called after it, so that it can be told from what is in use should all of them be killed (shmname.h).
     */
    if (cairn_shm_name(name, sizeof name, getpid(), "mpi")) {
        snprintf(shm, sizeof shm, "%s/%s", CAIRN_SHM_DIR, name);
        if (!mkdir(shm, 0700)) {
            setenv("OMPI_MCA_btl_vader_backing_directory", shm, 0);
            setenv("OMPI_MCA_btl_sm_backing_directory", shm, 0);
        }
    }
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 0);
    setenv("PRTE_MCA_hwloc_default_binding_policy", "none", 0);
    setenv("OMPI_MCA_orte_execute_quiet", "1", 0);
    if (ranks > cairn_cores() / 2) { /* a slot is a core for it, which may be two for us */
        setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
        setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
        setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 0);
    }
    setpgid(0, 0); /* Ctrl-C is for the one who started it: mpirun would kill its ranks within two seconds */
    if (null >= 0)
        dup2(null, 0); /* and from there it could not read the terminal */
}

static int ranks_there(const struct cairn_mpirun *m)
{
    int there = 0;

    for (const char *const *p = m->program; *p; p++)
        there += cairn_reach_count(m->pid, *p);
    return there;
}

static void ranks_signal(const struct cairn_mpirun *m, int signo)
{
    for (const char *const *p = m->program; *p; p++)
        cairn_reach(m->pid, *p, signo);
}

/* Ranks are told when all of them are there, or some have been for a while; mpirun itself only when none come to be seen: it takes
 * SIGTERM for "kill them" and dies of SIGUSR1 while it starts. */
int cairn_mpirun_stop(const struct cairn_mpirun *m, double waited_s)
{
    int there = ranks_there(m);

    if (there == m->ranks || (there && waited_s > 1))
        ranks_signal(m, SIGUSR1);
    else if (waited_s > 5)
        kill(m->pid, SIGUSR1);
    else
        return 0;
    return 1;
}

void cairn_mpirun_watch(struct cairn_mpirun *m)
{
    if (ranks_there(m)) {
        m->seen = 1;
        m->alone_s = 0;
    } else if (m->seen) {
        m->alone_s = m->alone_s > 0 ? m->alone_s : cairn_now_s();
        if (cairn_now_s() - m->alone_s > ALONE_S) {
            cairn_warn("mpirun (process %d) goes on without ranks: killed", (int)m->pid);
            kill(m->pid, SIGKILL);
        }
    }
}

/* ---- the guard ------------------------------------------------------------------------------------------------------------ */

static int pidfd_open(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

/* 1: a process that is watched has ended; 0: the time is over. ms < 0: no limit. */
static int ended(struct pollfd *p, nfds_t n, int ms)
{
    while (poll(p, n, ms) < 0)
        if (errno != EINTR)
            return 1; /* out of memory: better no guard than a wrong one */
    for (nfds_t i = 0; i < n; i++)
        if (p[i].revents)
            return 1;
    return 0;
}

/* In the guard, which keeps nothing of the parent's open but its locks: they are held as long as a descriptor is. */
static void guard(const struct cairn_mpirun *m, int parent, int mpirun, double behind_s)
{
    struct pollfd p[2] = {{.fd = mpirun, .events = POLLIN}, {.fd = parent, .events = POLLIN}};
    sigset_t all;

    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL); /* a stop is for those who work */
    setpgid(0, 0);
    for (int fd = (int)sysconf(_SC_OPEN_MAX) < 4096 ? (int)sysconf(_SC_OPEN_MAX) : 4096; fd-- > 0;)
        if (fd != parent && fd != mpirun && fd != 2 && !cairn_lock_owns(fd))
            close(fd);
    if (!ended(p, 2, -1) || p[0].revents || !p[1].revents || ended(p, 1, (int)(behind_s * 1e3)))
        return;
    cairn_warn("mpirun (process %d) goes on %.0f s behind who started it: killed", (int)m->pid, behind_s);
    ranks_signal(m, SIGKILL);
    syscall(SYS_pidfd_send_signal, mpirun, SIGKILL, NULL, 0);
}

pid_t cairn_mpirun_guard(const struct cairn_mpirun *m, double behind_s)
{
    int parent = pidfd_open(getpid()), mpirun = pidfd_open(m->pid);
    pid_t pid = parent < 0 || mpirun < 0 ? -1 : fork();

    if (!pid) {
        guard(m, parent, mpirun, behind_s);
        _exit(0);
    }
    if (pid < 0)
        cairn_warn("mpirun has no guard (%s): killed with kill -9, this process may leave it behind", strerror(errno));
    if (parent >= 0)
        close(parent);
    if (mpirun >= 0)
        close(mpirun);
    return pid > 0 ? pid : 0;
}

void cairn_mpirun_guard_end(pid_t pid)
{
    if (!pid)
        return;
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

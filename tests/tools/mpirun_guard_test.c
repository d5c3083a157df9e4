/* mpirun_guard_test.c - the guard of tools/mpirun.h: an mpirun that does not end behind a killed parent is ended, with its ranks; one that does is
 * left alone; and a guard is gone when its mpirun is. The mpirun is a copy of this process that hears no SIGTERM, its rank another one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tools/mpirun.h"
#include "tools/reach.h"

#define LONGEST_S 50

static struct cast {
    atomic_int mpirun, rank, guard;
} *cast; /* shared with the processes of a play */

static char program[PATH_MAX];

/* A stubborn mpirun with a rank, or one that ends with 7 when it has lost its parent. Never returns. */
static void mpirun_play(int stubborn)
{
    pid_t parent = getppid(), rank = -1;

    alarm(LONGEST_S); /* whatever becomes of the test */
    signal(SIGTERM, SIG_IGN);
    if (stubborn && !(rank = fork())) {
        alarm(LONGEST_S);
        if (!fork()) /* what a rank forks, a grader say, is no rank, and goes with it */
            prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    cast->rank = rank;
    cast->mpirun = getpid();
    while (stubborn || getppid() == parent)
        cairn_sleep_s(0.005);
    _exit(7);
}

static pid_t mpirun_start(int stubborn)
{
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (!pid)
        mpirun_play(stubborn);
    return pid;
}

/* A parent that starts an mpirun with a guard, and waits to be killed. */
static pid_t parent_start(int stubborn, double behind_s)
{
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (!pid) {
        struct cairn_mpirun m = {.pid = mpirun_start(stubborn), .program = {program}, .ranks = 1};

        while (!cast->mpirun) /* it is there, with its rank */
            cairn_sleep_s(0.005);
        cast->guard = cairn_mpirun_guard(&m, behind_s);
        for (;;)
            pause();
    }
    return pid;
}

/* How a process ended that is ours, or became ours when its parent died. */
static int end_of(pid_t pid)
{
    int status;
    pid_t got;

    while ((got = waitpid(pid, &status, 0)) < 0 && (errno == EINTR || errno == ECHILD)) /* not handed over yet */
        cairn_sleep_s(0.005);
    assert_int_equal(got, pid);
    return status;
}

static void kill_behind(int stubborn, double behind_s)
{
    pid_t parent = parent_start(stubborn, behind_s);

    while (!cast->guard)
        cairn_sleep_s(0.005);
    assert_int_equal(kill(parent, SIGKILL), 0);
    assert_true(WIFSIGNALED(end_of(parent)));
}

static void stubborn_ones_are_killed(void **state)
{
    int status;

    (void)state;
    kill_behind(1, 0.1);
    status = end_of(cast->mpirun);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    status = end_of(cast->rank);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(end_of(cast->guard), 0);
}

static void those_that_end_are_left_alone(void **state)
{
    int status;

    (void)state;
    kill_behind(0, 60);
    status = end_of(cast->mpirun);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    assert_int_equal(end_of(cast->guard), 0); /* at once, not after a minute: the alarm would end this */
}

static void guards_go_with_their_mpirun(void **state)
{
    struct cairn_mpirun m = {.pid = mpirun_start(1), .program = {program}, .ranks = 1};
    pid_t guard = cairn_mpirun_guard(&m, 60);

    (void)state;
    assert_true(guard > 0);
    while (cairn_reach(m.pid, program, 0) != 2)
        cairn_sleep_s(0.005);
    assert_int_equal(cairn_reach_count(m.pid, program), 1);
    cairn_mpirun_guard_end(guard);
    assert_int_equal(waitpid(guard, NULL, WNOHANG), -1);
    assert_int_equal(waitpid(m.pid, NULL, WNOHANG), 0); /* is none of its business while the parent lives */
    guard = cairn_mpirun_guard(&m, 60);
    cairn_reach(m.pid, program, SIGKILL);
    kill(m.pid, SIGKILL);
    end_of(m.pid);
    end_of(cast->rank);
    assert_int_equal(end_of(guard), 0);
    cairn_mpirun_guard_end(0);
}

static int before(void **state)
{
    (void)state;
    cast->mpirun = cast->rank = cast->guard = 0;
    return 0;
}

/* The file that copies of this process run, as others see it (valgrind shows a process another one of itself). */
static int program_find(void)
{
    pid_t pid = fork();
    char path[64];
    ssize_t n;

    if (!pid)
        for (;;)
            pause();
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    n = pid > 0 ? readlink(path, program, sizeof program - 1) : -1;
    if (pid > 0) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    return n > 0;
}

static int pidfds_here(void) /* not in old kernels, nor under valgrind 3.19 */
{
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);

    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup(stubborn_ones_are_killed, before),
                                       cmocka_unit_test_setup(those_that_end_are_left_alone, before),
                                       cmocka_unit_test_setup(guards_go_with_their_mpirun, before)};

    if (!pidfds_here()) {
        printf("1..0 # SKIP no pidfd_open here\n");
        return 0;
    }
    cast = mmap(NULL, sizeof *cast, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (cast == MAP_FAILED || !program_find() || prctl(PR_SET_CHILD_SUBREAPER, 1))
        return 1;
    alarm(LONGEST_S);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

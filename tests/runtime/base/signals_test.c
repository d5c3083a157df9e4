/* signals_test.c - the first signal stays, a sleep ends early, a forked child gets the defaults back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/signals.h"

static void first_stays(void **state)
{
    int ws;
    pid_t pid;

    (void)state;
    cairn_signals_install();
    assert_int_equal(cairn_stop_requested(), 0);
    raise(SIGUSR1);
    raise(SIGTERM);
    raise(SIGTERM);
    assert_int_equal(cairn_stop_requested(), SIGUSR1);
    pid = fork();
    if (!pid) {
        cairn_signals_reset();
        if (cairn_stop_requested())
            _exit(1);
        raise(SIGTERM);
        _exit(2);
    }
    assert_int_equal(waitpid(pid, &ws, 0), pid);
    assert_true(WIFSIGNALED(ws) && WTERMSIG(ws) == SIGTERM);
    cairn_signals_reset();
    cairn_stop_request(SIGTERM);
    assert_int_equal(cairn_stop_requested(), SIGTERM);
    cairn_signals_reset();
}

static void sleep_ends_early(void **state)
{
    double t0;
    pid_t pid;

    (void)state;
    cairn_signals_install();
    pid = fork();
    if (!pid) {
        usleep(50000);
        kill(getppid(), SIGTERM);
        _exit(0);
    }
    t0 = cairn_now_s();
    cairn_sleep_s(10);
    if (cairn_now_s() - t0 < 9) /* the child's own end may be what woke us; the flag is what counts */
        while (!cairn_stop_requested() && cairn_now_s() - t0 < 9)
            cairn_sleep_s(0.01);
    assert_int_equal(cairn_stop_requested(), SIGTERM);
    assert_true(cairn_now_s() - t0 < 9);
    assert_true(cairn_wall_s() > 1.6e9);
    waitpid(pid, NULL, 0);
    cairn_signals_reset();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(first_stays), cmocka_unit_test(sleep_ends_early)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

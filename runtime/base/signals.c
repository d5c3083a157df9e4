/* signals.c - three signals, one flag. */
#include "base/signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#if ATOMIC_INT_LOCK_FREE != 2
#error "a signal handler needs lock-free atomic ints"
#endif

static const int stops[] = {SIGTERM, SIGUSR1, SIGINT};
static atomic_int first;

static void on_stop(int signo)
{
    int none = 0;

    atomic_compare_exchange_strong(&first, &none, signo);
}

void cairn_signals_install(void)
{
    struct sigaction sa;
    sigset_t open;

    memset(&sa, 0, sizeof sa);
    sa.sa_handler = on_stop;
    sa.sa_flags = SA_RESTART; /* libraries that do not expect EINTR must not fail because we are asked to stop */
    sigemptyset(&sa.sa_mask);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++)
        sigaction(stops[i], &sa, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is a failed write with a sentence, not a death */
    /* Who starts us may have kept them back until here, so that none comes between exec and now. */
    sigemptyset(&open);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++)
        sigaddset(&open, stops[i]);
    sigprocmask(SIG_UNBLOCK, &open, NULL);
}

void cairn_signals_reset(void)
{
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++)
        signal(stops[i], SIG_DFL);
    atomic_store(&first, 0);
}

int cairn_stop_requested(void)
{
    return atomic_load(&first);
}

void cairn_stop_request(int signo)
{
    on_stop(signo);
}

/* clock.c - see shim.h: the wall clock, which may jump. */
#include "tests/faults/shim/shim.h"

#include <sys/time.h>
#include <time.h>

long shim_skew;

int clock_gettime(clockid_t id, struct timespec *t)
{
    int r = (int)syscall(SYS_clock_gettime, id, t);

    if (!r && id == CLOCK_REALTIME)
        t->tv_sec += shim_skew;
    return r;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    int r = (int)syscall(SYS_gettimeofday, t, zone);

    if (!r)
        t->tv_sec += shim_skew;
    return r;
}

time_t time(time_t *out)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    if (out)
        *out = t.tv_sec;
    return t.tv_sec;
}

/* clock.c - two clocks and a sleep. */
#include "base/clock.h"

#include <time.h>

static double seconds(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double cairn_now_s(void)
{
    return seconds(CLOCK_MONOTONIC);
}

double cairn_wall_s(void)
{
    return seconds(CLOCK_REALTIME);
}

/* A signal ends the sleep early, so that the loop around it sees its stop flag at once. */
void cairn_sleep_s(double s)
{
    struct timespec t;

    if (!(s > 0))
        return;
    t.tv_sec = (time_t)s;
    t.tv_nsec = (long)((s - (double)t.tv_sec) * 1e9);
    nanosleep(&t, NULL);
}

/* clock.h - time. Durations come from CLOCK_MONOTONIC; wall time is for people and logs and decides nothing. */
#ifndef CAIRN_BASE_CLOCK_H
#define CAIRN_BASE_CLOCK_H

#include <stdint.h>

double cairn_now_s(void);  /* monotonic seconds */
double cairn_wall_s(void); /* seconds since 1970, for logs */
void cairn_sleep_s(double s); /* a signal ends it early, so that a loop around it sees its stop flag at once */

#endif

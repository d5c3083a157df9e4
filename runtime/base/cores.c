/* cores.c - how many cores there are to compute on (cores.h). */
#include "base/cores.h"

#include <errno.h>
#include <sched.h>
#include <unistd.h>

#define CPUS_MOST (1 << 20) /* no kernel has so many: where it stops asking */

int cairn_cores_here(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);

    return n < 1 ? 1 : (int)n;
}

int cairn_cores(void)
{
    /* The kernel refuses a set that is smaller than its own. */
    for (int cpus = CPU_SETSIZE; cpus <= CPUS_MOST; cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        size_t bytes = CPU_ALLOC_SIZE((size_t)cpus);
        int got, n;

        if (!set)
            break;
        got = sched_getaffinity(0, bytes, set) == 0;
        n = got ? CPU_COUNT_S(bytes, set) : errno == EINVAL ? 0 : -1;
        CPU_FREE(set);
        if (got)
            return n < 1 ? 1 : n;
        if (n < 0)
            break;
    }
    return cairn_cores_here();
}

/* planted.h - mistakes that are made on purpose, in a build made for that alone (make test-planted), to see the gate find them.
 *
 * cairn_planted("name") is 0 in every other build, and the compiler takes away what hangs on it. In that build it is 1 if the environment's
 * CAIRN_PLANT is that name. tests/planted/list says of each where it is and what must find it.
 */
#ifndef CAIRN_BASE_PLANTED_H
#define CAIRN_BASE_PLANTED_H

#ifdef CAIRN_PLANTED
#include <stdlib.h>
#include <string.h>

static inline int cairn_planted(const char *name)
{
    const char *which = getenv("CAIRN_PLANT");

    return which && strcmp(which, name) == 0;
}
#else
#define cairn_planted(name) 0
#endif

#endif

/* ids.h - a growing array of token ids.
 *
 * Owns its memory; zero-initialised: struct cairn_ids ids = {0}; ... cairn_ids_free(&ids).
 */
#ifndef CAIRN_TEXT_IDS_H
#define CAIRN_TEXT_IDS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct cairn_ids {
    int32_t *p; /* (n) ids; NULL while nothing was ever added */
    int64_t n, cap;
};

static inline void cairn_ids_free(struct cairn_ids *a)
{
    free(a->p);
    memset(a, 0, sizeof *a);
}

/* Room for more ids beyond n. 1: there is, 0: no memory. */
static inline int cairn_ids_reserve(struct cairn_ids *a, int64_t more)
{
    int64_t need, cap = a->cap ? a->cap : 64;
    int32_t *p;

    if (more < 0 || __builtin_add_overflow(a->n, more, &need) || need > INT64_MAX / 8)
        return 0;
    if (need <= a->cap)
        return 1;
    while (cap < need)
        cap *= 2;
    if (!(p = realloc(a->p, (size_t)cap * sizeof *p)))
        return 0;
    a->p = p;
    a->cap = cap;
    return 1;
}

/* 1: added, 0: no memory. */
static inline int cairn_ids_push(struct cairn_ids *a, int32_t id)
{
    if (a->n == a->cap && !cairn_ids_reserve(a, 1))
        return 0;
    a->p[a->n++] = id;
    return 1;
}

#endif

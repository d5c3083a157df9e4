/* keys.h - struct cairn_keys as pointers: which row holds position p of sequence b; checked once a call. */
#ifndef CAIRN_KERNELS_CPU_KEYS_H
#define CAIRN_KERNELS_CPU_KEYS_H

#include "internal.h"

#pragma GCC visibility push(hidden)

struct keys {
    struct arg rows, pos, seq, start, pages;
    int page;
};

/* Opens and checks: every position 0 .. pos[n] of every seq[n] is a row below S. */
struct keys keys_arg(struct call *c, const struct cairn_keys *k, int64_t *N, int64_t *S, int64_t *W);

static inline int64_t key_row(const struct keys *k, int64_t b, int64_t p)
{
    return k->pages.p ? (int64_t)i32(&k->pages)[b * k->pages.d[1] + p / k->page] * k->page + p % k->page : i32(&k->start)[b] + p;
}

static inline const float *key_at(const struct keys *k, int64_t b, int64_t p)
{
    return at1(&k->rows, key_row(k, b, p));
}

/* How many entries of idx (T) are in use. -1 if they are not ascending positions up to pos, followed by -1. */
int64_t idx_count(const int32_t *idx, int64_t T, int32_t pos);

#pragma GCC visibility pop
#endif

/* pooled.h - where a pooled key goes, and the checks that both forms of pool_keys share. */
#ifndef CAIRN_KERNELS_CPU_POOLED_H
#define CAIRN_KERNELS_CPU_POOLED_H

#include "runs.h"

#pragma GCC visibility push(hidden)

struct pooled {
    struct arg k, gate, ape, tail, rows, start, pages;
    int64_t N, D, m;
    int page; /* pools */
    struct runs r;
};

/* Opens and checks; the runs lie in the shared scratch. Every pool that the call completes has a row. */
struct pooled pooled_arg(struct call *c, const struct cairn_pool_keys *a);

static inline int64_t pooled_row(const struct pooled *k, int64_t b, int64_t p)
{
    return k->pages.p ? (int64_t)i32(&k->pages)[b * k->pages.d[1] + p / k->page] * k->page + p % k->page : i32(&k->start)[b] + p;
}

/* Position p of the sequence whose run begins at row `begin`, position pos[begin]: its k (D) or gate. */
static inline const float *pooled_at(const struct pooled *k, int64_t begin, int64_t p, int gate)
{
    int64_t n = begin + p - k->r.pos[begin];

    if (n >= begin)
        return gate ? at1(&k->gate, n) : at1(&k->k, n);
    return at2(&k->tail, k->r.seq[begin], p % k->m) + (gate ? k->D : 0);
}

/* What was position `n`, into the tail. */
void pooled_keep(const struct pooled *k);

#pragma GCC visibility pop
#endif

/* pooled.c - what pooled.h says. */
#include "pooled.h"

#include <string.h>

static void check_row(struct call *c, const struct pooled *k, int64_t n)
{
    int64_t b = k->r.seq[n], p = k->r.pos[n] / k->m, B = k->pages.p ? k->pages.d[0] : k->start.d[0], row;

    if (b >= B || (k->pages.p && p / k->page >= k->pages.d[1])) {
        call_fail(c, "pool %lld of sequence %lld has no page", (long long)p, (long long)b);
        return;
    }
    row = pooled_row(k, b, p);
    if (row < 0 || row >= k->rows.d[0])
        call_fail(c, "pool %lld of sequence %lld is row %lld of %lld", (long long)p, (long long)b, (long long)row,
                  (long long)k->rows.d[0]);
}

struct pooled pooled_arg(struct call *c, const struct cairn_pool_keys *a)
{
    int64_t S = -1, B = -1, P = -1, two, tails = -1;
    struct pooled k = {.N = -1, .D = -1, .m = -1, .page = a->keys.page};
    struct arg pos, seq;

    k.k = call_arg(c, "k", &a->k, STRIDED | T_F32, 2, &k.N, &k.D);
    k.gate = call_arg(c, "gate", &a->gate, STRIDED | T_F32, 2, &k.N, &k.D);
    k.ape = call_arg(c, "ape", &a->ape, T_WEIGHT, 2, &k.m, &k.D);
    two = 2 * k.D;
    k.tail = call_arg(c, "tail", &a->tail, OUT | ABSENT | T_F32, 3, &tails, &k.m, &two);
    k.rows = call_arg(c, "keys.rows", &a->keys.rows, OUT | STRIDED | T_F32, 2, &S, &k.D);
    pos = call_arg(c, "keys.pos", &a->keys.pos, T_I32, 1, &k.N);
    seq = call_arg(c, "keys.seq", &a->keys.seq, T_I32, 1, &k.N);
    if (a->keys.pages.buf)
        k.pages = call_arg(c, "keys.pages", &a->keys.pages, T_I32, 2, &B, &P);
    else
        k.start = call_arg(c, "keys.start", &a->keys.start, T_I32, 1, &B);
    if (call_ok(c) && (k.m < 1 || k.m > 32 || (k.pages.p && k.page < 1)))
        call_fail(c, "pools of %lld, %d a page", (long long)k.m, k.page);
    if (call_ok(c))
        call_reserve(c, 0, runs_room(k.N, tails));
    k.r = runs_find(c, &pos, &seq, k.N, tails, scratch_shared(c));
    for (int64_t n = 0; call_ok(c) && n < k.N; n++)
        if ((k.r.pos[n] + 1) % k.m == 0)
            check_row(c, &k, n);
    return k;
}

void pooled_keep(const struct pooled *k)
{
    for (int64_t n = 0; k->tail.p && n < k->N; n++) {
        float *kept = at2(&k->tail, k->r.seq[n], k->r.pos[n] % k->m);

        memcpy(kept, at1(&k->k, n), (size_t)k->D * sizeof *kept);
        memcpy(kept + k->D, at1(&k->gate, n), (size_t)k->D * sizeof *kept);
    }
}

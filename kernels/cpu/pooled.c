/* pooled.c - pooled keys of the indexer, sixteen channels at a time, and chosen pools as positions. */
#include <string.h>

#include "base/planted.h"
#include "pooled.h"
#include "vmath.h"

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
        if (!cairn_planted("pool-tail-without-gate"))
            memcpy(kept + k->D, at1(&k->gate, n), (size_t)k->D * sizeof *kept);
    }
}

struct pooling {
    struct pooled k;
    const float *ape; /* (m, D) */
};

static void pool_runs(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct pooling *w = ctx;
    const struct pooled *k = &w->k;

    (void)scratch;
    for (int64_t n = begin; n < end; n++) {
        int64_t first = k->r.pos[n] + 1 - k->m, run;
        float *out;

        if ((k->r.pos[n] + 1) % k->m)
            continue;
        run = n - (k->m - 1) > 0 ? n - (k->m - 1) : 0; /* the first row that the pool has in this call */
        while (k->r.seq[run] != k->r.seq[n])
            run++;
        out = at1(&k->rows, pooled_row(k, k->r.seq[n], k->r.pos[n] / k->m));
        for (int64_t d = 0; d < k->D; d += VL) {
            int64_t some = k->D - d < VL ? k->D - d : VL;
            v16 most = v16_set(-__builtin_inff()), sum = v16_set(0.0f), key = sum;

            for (int64_t r = 0; r < k->m; r++)
                most = v16_max(v16_loadn(pooled_at(k, run, first + r, 1) + d, some, 0.0f) +
                                   v16_loadn(w->ape + r * k->D + d, some, 0.0f),
                               most);
            for (int64_t r = 0; r < k->m; r++) {
                v16 x = v16_loadn(pooled_at(k, run, first + r, 1) + d, some, 0.0f) +
                        (cairn_planted("pool-place-lost") ? v16_set(0.0f) : v16_loadn(w->ape + r * k->D + d, some, 0.0f)),
                    e = v16_exp(x - most);

                sum = sum + e;
                key = v16_fma(e, v16_loadn(pooled_at(k, run, first + r, 0) + d, some, 0.0f), key);
            }
            v16_storen(out + d, key / sum, some);
        }
    }
}

enum cairn_status cairn_pool_keys_cpu(struct cairn_stream *s, const struct cairn_pool_keys *a, struct cairn_error *err)
{
    struct call c = call_begin("pool_keys", s, err);
    struct pooling w = {.k = pooled_arg(&c, a)};
    float *room;

    if (call_ok(&c))
        call_reserve(&c, (size_t)(w.k.m * w.k.D) * sizeof(float), 0);
    if (!call_ok(&c))
        return call_end(&c);
    room = c.cpu->scratch[0];
    w.ape = w.k.ape.type == CAIRN_F32 ? f32(&w.k.ape) : room;
    for (int64_t i = 0; w.ape == room && i < w.k.m * w.k.D; i++)
        room[i] = bf16_to_f32(((const uint16_t *)w.k.ape.p)[i]);
    call_share(&c, w.k.N, 1, w.k.N * w.k.D * 3, pool_runs, &w);
    pooled_keep(&w.k);
    return call_end(&c);
}

enum cairn_status cairn_pool_expand_cpu(struct cairn_stream *s, const struct cairn_pool_expand *a, struct cairn_error *err)
{
    return cairn_pool_expand_ref(s, a, err); /* nothing but integers */
}

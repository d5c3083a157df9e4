/* experts.c - the way of rows to their experts and back: dispatch, combine, combine_bwd. Indexes are checked on the way. */
#include <string.h>

#include "base/planted.h"
#include "internal.h"
#include "vec.h"

/* A counting sort; integers only, so this is the reference too. */
enum cairn_status cairn_dispatch_cpu(struct cairn_stream *s, const struct cairn_dispatch *a, struct cairn_error *err)
{
    struct call c = call_begin("dispatch", s, err);
    int64_t N = -1, K = -1, E1 = -1, M;
    struct arg idx = call_arg(&c, "idx", &a->idx, T_I32, 2, &N, &K),
               offsets = call_arg(&c, "offsets", &a->offsets, OUT | T_I32, 1, &E1),
               where = call_arg(&c, "where", &a->where, OUT | T_I32, 2, &N, &K), token;

    M = N * K;
    token = call_arg(&c, "token", &a->token, OUT | T_I32, 1, &M);
    if (call_ok(&c) && (E1 < 2 || M > INT32_MAX))
        call_fail(&c, "%lld choices of %lld experts", (long long)M, (long long)(E1 - 1));
    for (int64_t i = 0; call_ok(&c) && i < M; i++)
        if (i32(&idx)[i] < 0 || i32(&idx)[i] >= E1 - 1)
            call_fail(&c, "expert %d of row %lld is not below %lld", i32(&idx)[i], (long long)(i / K), (long long)(E1 - 1));
    call_reserve(&c, 0, call_ok(&c) ? (size_t)E1 * sizeof(int32_t) : 0);
    if (call_ok(&c)) {
        int32_t *next = scratch_shared(&c), *off = i32(&offsets);

        memset(off, 0, (size_t)E1 * sizeof *off);
        for (int64_t i = 0; i < M; i++)
            off[i32(&idx)[i] + 1]++;
        for (int64_t e = 1; e < E1; e++)
            off[e] += off[e - 1];
        memcpy(next, off, (size_t)E1 * sizeof *off);
        for (int64_t i = 0; i < M; i++) {
            int32_t row = next[i32(&idx)[i]]++;

            i32(&where)[i] = row;
            i32(&token)[row] = (int32_t)(i / K);
        }
    }
    return call_end(&c);
}

static void where_check(struct call *c, const struct arg *where, int64_t M)
{
    int64_t bad = 0, n = call_ok(c) ? where->d[0] * where->d[1] : 0;

    for (int64_t i = 0; i < n; i++)
        bad += i32(where)[i] < 0 || i32(where)[i] >= M;
    if (bad)
        call_fail(c, "%lld entries of where are not rows below %lld", (long long)bad, (long long)M);
}

struct mix {
    struct arg x, gate, where, base, y; /* y: dy in the backward */
    struct arg dx, dgate;               /* backward */
    int64_t K, D;
};

static void mix_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct mix *k = ctx;

    (void)scratch;
    for (int64_t n = begin; n < end; n++)
        for (int64_t d = 0; d < k->D; d += VL) {
            int64_t m = k->D - d < VL ? k->D - d : VL;
            v16 sum = k->base.p ? v16_loadn(at1(&k->base, n) + d, m, 0.0f) : v16_set(0.0f);

            for (int64_t j = 0; j < k->K - cairn_planted("combine-last-lost"); j++)
                sum = v16_fma(v16_set(k->gate.p ? f32(&k->gate)[n * k->K + j] : 1.0f),
                              v16_loadn(at1(&k->x, i32(&k->where)[n * k->K + j]) + d, m, 0.0f), sum);
            v16_storen(at1(&k->y, n) + d, sum, m);
        }
}

enum cairn_status cairn_combine_cpu(struct cairn_stream *s, const struct cairn_combine *a, struct cairn_error *err)
{
    struct call c = call_begin("combine", s, err);
    int64_t N = -1, K = -1, M = -1, D = -1;
    struct mix k = {.x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &M, &D)};

    k.where = call_arg(&c, "where", &a->where, T_I32, 2, &N, &K);
    k.gate = call_arg(&c, "gate", &a->gate, ABSENT | T_F32, 2, &N, &K);
    k.base = call_arg(&c, "base", &a->base, ABSENT | STRIDED | T_F32, 2, &N, &D);
    k.y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &N, &D);
    k.K = K;
    k.D = D;
    where_check(&c, &k.where, M);
    if (call_ok(&c))
        call_share(&c, N, 1, N * K * D / 2, mix_rows, &k);
    return call_end(&c);
}

static void mix_bwd_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct mix *k = ctx;

    (void)scratch;
    for (int64_t n = begin; n < end; n++)
        for (int64_t j = 0; j < k->K; j++) {
            int64_t row = i32(&k->where)[n * k->K + j];
            v16 g = v16_set(k->gate.p ? f32(&k->gate)[n * k->K + j] : 1.0f), sum = v16_set(0.0f);

            for (int64_t d = 0; d < k->D; d += VL) {
                int64_t m = k->D - d < VL ? k->D - d : VL;
                v16 v = v16_loadn(at1(&k->y, n) + d, m, 0.0f);

                if (k->dgate.p) /* before dx is written: dx may be x */
                    sum = v16_fma(v, v16_loadn(at1(&k->x, row) + d, m, 0.0f), sum);
                v16_storen(at1(&k->dx, row) + d, g * v, m);
            }
            if (k->dgate.p)
                f32(&k->dgate)[n * k->K + j] = v16_sum(sum);
        }
}

enum cairn_status cairn_combine_bwd_cpu(struct cairn_stream *s, const struct cairn_combine_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("combine_bwd", s, err);
    int64_t N = -1, K = -1, M = -1, D = -1;
    struct mix k = {.x = call_arg(&c, "x", &a->x, (a->dgate.buf ? 0 : ABSENT) | STRIDED | T_F32, 2, &M, &D)};

    k.dx = call_arg(&c, "dx", &a->dx, OUT | STRIDED | T_F32, 2, &M, &D);
    k.where = call_arg(&c, "where", &a->where, T_I32, 2, &N, &K);
    k.gate = call_arg(&c, "gate", &a->gate, ABSENT | T_F32, 2, &N, &K);
    k.y = call_arg(&c, "dy", &a->dy, STRIDED | T_F32, 2, &N, &D);
    k.dgate = call_arg(&c, "dgate", &a->dgate, OUT | ABSENT | T_F32, 2, &N, &K);
    k.K = K;
    k.D = D;
    where_check(&c, &k.where, M);
    if (call_ok(&c))
        call_share(&c, N, 1, N * K * D / 2, mix_bwd_rows, &k);
    return call_end(&c);
}

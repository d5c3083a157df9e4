/* experts.c - the way of rows to their experts and back: dispatch, combine, combine_bwd. Indexes are checked on the way. */
#include <omp.h>
#include <string.h>

#include "internal.h"
#include "vec.h"

/* A counting sort; integers only, so this is the reference too. */
enum cairn_status cairn_dispatch_cpu(struct cairn_stream *s, const struct cairn_dispatch *a, struct cairn_error *err)
{
    struct call c = call_begin("dispatch", s, err);
    int64_t N = -1, K = -1, E1 = -1, M;
    struct arg idx = call_arg(&c, "idx", &a->idx, T_I32, 2, &N, &K), offsets = call_arg(&c, "offsets", &a->offsets, OUT | T_I32, 1, &E1),
               where = call_arg(&c, "where", &a->where, OUT | T_I32, 2, &N, &K), token;

    M = N * K;
    token = call_arg(&c, "token", &a->token, OUT | T_I32, 1, &M);
    if (call_ok(&c) && (E1 < 2 || M > INT32_MAX))
        call_fail(&c, "%lld choices of %lld experts", (long long)M, (long long)(E1 - 1));
    for (int64_t i = 0; call_ok(&c) && i < M; i++)
        if (i32(&idx)[i] < 0 || i32(&idx)[i] >= E1 - 1)
            call_fail(&c, "expert %d of row %lld is not below %lld", i32(&idx)[i], (long long)(i / K), (long long)(E1 - 1));
    call_reserve(&c, 0, 0, call_ok(&c) ? (size_t)E1 * sizeof(int32_t) : 0);
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

enum cairn_status cairn_combine_cpu(struct cairn_stream *s, const struct cairn_combine *a, struct cairn_error *err)
{
    struct call c = call_begin("combine", s, err);
    int64_t N = -1, K = -1, M = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &M, &D), where = call_arg(&c, "where", &a->where, T_I32, 2, &N, &K),
               gate = call_arg(&c, "gate", &a->gate, ABSENT | T_F32, 2, &N, &K),
               base = call_arg(&c, "base", &a->base, ABSENT | STRIDED | T_F32, 2, &N, &D),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &N, &D);

    where_check(&c, &where, M);
    if (call_ok(&c)) {
        int threads = call_threads(&c, N * K * D / 2, N);

#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t n = 0; n < N; n++)
            for (int64_t d = 0; d < D; d += VL) {
                int64_t m = D - d < VL ? D - d : VL;
                v16 sum = base.p ? v16_loadn(at1(&base, n) + d, m, 0.0f) : v16_set(0.0f);

                for (int64_t j = 0; j < K; j++)
                    sum = v16_fma(v16_set(gate.p ? f32(&gate)[n * K + j] : 1.0f),
                                  v16_loadn(at1(&x, i32(&where)[n * K + j]) + d, m, 0.0f), sum);
                v16_storen(at1(&y, n) + d, sum, m);
            }
    }
    return call_end(&c);
}

enum cairn_status cairn_combine_bwd_cpu(struct cairn_stream *s, const struct cairn_combine_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("combine_bwd", s, err);
    int64_t N = -1, K = -1, M = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, (a->dgate.buf ? 0 : ABSENT) | STRIDED | T_F32, 2, &M, &D),
               dx = call_arg(&c, "dx", &a->dx, OUT | STRIDED | T_F32, 2, &M, &D),
               where = call_arg(&c, "where", &a->where, T_I32, 2, &N, &K), gate = call_arg(&c, "gate", &a->gate, ABSENT | T_F32, 2, &N, &K),
               dy = call_arg(&c, "dy", &a->dy, STRIDED | T_F32, 2, &N, &D),
               dgate = call_arg(&c, "dgate", &a->dgate, OUT | ABSENT | T_F32, 2, &N, &K);

    where_check(&c, &where, M);
    if (call_ok(&c)) {
        int threads = call_threads(&c, N * K * D / 2, N);

#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t n = 0; n < N; n++)
            for (int64_t j = 0; j < K; j++) {
                int64_t row = i32(&where)[n * K + j];
                v16 g = v16_set(gate.p ? f32(&gate)[n * K + j] : 1.0f), sum = v16_set(0.0f);

                for (int64_t d = 0; d < D; d += VL) {
                    int64_t m = D - d < VL ? D - d : VL;
                    v16 v = v16_loadn(at1(&dy, n) + d, m, 0.0f);

                    if (dgate.p) /* before dx is written: dx may be x */
                        sum = v16_fma(v, v16_loadn(at1(&x, row) + d, m, 0.0f), sum);
                    v16_storen(at1(&dx, row) + d, g * v, m);
                }
                if (dgate.p)
                    f32(&dgate)[n * K + j] = v16_sum(sum);
            }
    }
    return call_end(&c);
}

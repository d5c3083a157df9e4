/* experts_ref.c - dispatch, combine, combine_bwd as their definitions read; sums in fp64. */
#include "internal.h"

enum cairn_status cairn_dispatch_ref(struct cairn_stream *s, const struct cairn_dispatch *a, struct cairn_error *err)
{
    struct call c = call_begin("dispatch", s, err);
    int64_t N = -1, K = -1, E1 = -1, M;
    struct arg idx = call_arg(&c, "idx", &a->idx, T_I32, 2, &N, &K),
               offsets = call_arg(&c, "offsets", &a->offsets, OUT | T_I32, 1, &E1),
               where = call_arg(&c, "where", &a->where, OUT | T_I32, 2, &N, &K), token;
    int32_t row = 0;

    M = N * K;
    token = call_arg(&c, "token", &a->token, OUT | T_I32, 1, &M);
    for (int64_t i = 0; call_ok(&c) && i < M; i++)
        if (i32(&idx)[i] < 0 || i32(&idx)[i] >= E1 - 1)
            call_fail(&c, "expert %d of row %lld is not below %lld", i32(&idx)[i], (long long)(i / K), (long long)(E1 - 1));
    for (int32_t e = 0; call_ok(&c) && e < E1; e++) {
        i32(&offsets)[e] = row;
        for (int64_t i = 0; i < M; i++)
            if (i32(&idx)[i] == e) {
                i32(&token)[row] = (int32_t)(i / K);
                i32(&where)[i] = row++;
            }
    }
    return call_end(&c);
}

enum cairn_status cairn_combine_ref(struct cairn_stream *s, const struct cairn_combine *a, struct cairn_error *err)
{
    struct call c = call_begin("combine", s, err);
    int64_t N = -1, K = -1, M = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &M, &D), where = call_arg(&c, "where", &a->where, T_I32, 2, &N, &K),
               gate = call_arg(&c, "gate", &a->gate, ABSENT | T_F32, 2, &N, &K),
               base = call_arg(&c, "base", &a->base, ABSENT | STRIDED | T_F32, 2, &N, &D),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &N, &D);

    for (int64_t n = 0; call_ok(&c) && n < N; n++)
        for (int64_t d = 0; d < D; d++) {
            double sum = base.p ? at1(&base, n)[d] : 0;

            for (int64_t j = 0; j < K; j++)
                sum += (gate.p ? (double)f32(&gate)[n * K + j] : 1) * at1(&x, i32(&where)[n * K + j])[d];
            at1(&y, n)[d] = (float)sum;
        }
    return call_end(&c);
}

enum cairn_status cairn_combine_bwd_ref(struct cairn_stream *s, const struct cairn_combine_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("combine_bwd", s, err);
    int64_t N = -1, K = -1, M = -1, D = -1;
    struct arg x = call_arg(&c, "x", &a->x, (a->dgate.buf ? 0 : ABSENT) | STRIDED | T_F32, 2, &M, &D),
               dx = call_arg(&c, "dx", &a->dx, OUT | STRIDED | T_F32, 2, &M, &D),
               where = call_arg(&c, "where", &a->where, T_I32, 2, &N, &K),
               gate = call_arg(&c, "gate", &a->gate, ABSENT | T_F32, 2, &N, &K),
               dy = call_arg(&c, "dy", &a->dy, STRIDED | T_F32, 2, &N, &D),
               dgate = call_arg(&c, "dgate", &a->dgate, OUT | ABSENT | T_F32, 2, &N, &K);

    for (int64_t n = 0; call_ok(&c) && n < N; n++)
        for (int64_t j = 0; j < K; j++) {
            int64_t row = i32(&where)[n * K + j];
            double g = gate.p ? f32(&gate)[n * K + j] : 1, sum = 0;

            for (int64_t d = 0; dgate.p && d < D; d++)
                sum += (double)at1(&dy, n)[d] * at1(&x, row)[d];
            for (int64_t d = 0; d < D; d++)
                at1(&dx, row)[d] = (float)(g * at1(&dy, n)[d]);
            if (dgate.p)
                f32(&dgate)[n * K + j] = (float)sum;
        }
    return call_end(&c);
}

/* router_ref.c - the router and its backward as their formulas read. */
#include <math.h>
#include <stdlib.h>

#include "internal.h"
#include "router.h"

enum cairn_status cairn_router_ref(struct cairn_stream *s, const struct cairn_router *a, struct cairn_error *err)
{
    struct call c = call_begin("router", s, err);
    int64_t N = -1, E = -1, K = -1;
    struct arg r = call_arg(&c, "r", &a->r, STRIDED | T_F32, 2, &N, &E),
               bias = call_arg(&c, "bias", &a->bias, ABSENT | T_F32, 1, &E),
               idx = call_arg(&c, "idx", &a->idx, OUT | T_I32, 2, &N, &K),
               gate = call_arg(&c, "gate", &a->gate, OUT | T_F32, 2, &N, &K),
               prob = call_arg(&c, "prob", &a->prob, OUT | T_F32, 2, &N, &K),
               forced = call_arg(&c, "forced", &a->forced, ABSENT | T_I32, 2, &N, &K);
    struct router_groups g = {E, K, a->n_group > 1 ? a->n_group : 1, a->n_group > 1 ? a->topk_group : 1};
    const char *wrong = call_ok(&c) ? router_groups_check(&g) : NULL;

    if (wrong)
        call_fail(&c, "%s", wrong);
    call_reserve(&c, 0, call_ok(&c) ? (size_t)E * (sizeof(float) + 1) : 0);
    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        float *sel = scratch_shared(&c);
        int32_t *id = i32(&idx) + n * K;
        double sum = 0;

        for (int64_t e = 0; e < E; e++)
            sel[e] = (float)(1 / (1 + exp(-(double)at1(&r, n)[e]))) + (bias.p ? f32(&bias)[e] : 0);
        router_choose(&g, sel, id, (char *)(sel + E));
        for (int64_t j = 0; j < K; j++) {
            if (forced.p)
                id[j] = i32(&forced)[n * K + j];
            if (id[j] < 0 || id[j] >= E || (j && id[j] <= id[j - 1])) {
                call_fail(&c, "forced experts are not ascending ids below %lld", (long long)E);
                return call_end(&c);
            }
            f32(&prob)[n * K + j] = (float)(1 / (1 + exp(-(double)at1(&r, n)[id[j]])));
            sum += f32(&prob)[n * K + j];
        }
        for (int64_t j = 0; j < K; j++)
            f32(&gate)[n * K + j] = (float)(f32(&prob)[n * K + j] / (a->norm ? sum + 1e-20 : 1) * a->scale);
    }
    return call_end(&c);
}

enum cairn_status cairn_router_bwd_ref(struct cairn_stream *s, const struct cairn_router_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("router_bwd", s, err);
    int64_t N = -1, E = -1, K = -1;
    struct arg idx = call_arg(&c, "idx", &a->idx, T_I32, 2, &N, &K), prob = call_arg(&c, "prob", &a->prob, T_F32, 2, &N, &K),
               dgate = call_arg(&c, "dgate", &a->dgate, T_F32, 2, &N, &K),
               dr = call_arg(&c, "dr", &a->dr, OUT | STRIDED | T_F32, 2, &N, &E);

    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        const float *p = f32(&prob) + n * K, *d = f32(&dgate) + n * K;
        double sum = 1e-20, dot = 0;

        for (int64_t e = 0; e < E; e++)
            at1(&dr, n)[e] = 0;
        for (int64_t j = 0; j < K; j++) {
            sum += p[j];
            dot += (double)d[j] * p[j];
        }
        for (int64_t j = 0; j < K; j++) {
            int32_t e = i32(&idx)[n * K + j];
            double dp = a->norm ? a->scale / sum * (d[j] - dot / sum) : a->scale * (double)d[j];

            if (e < 0 || e >= E)
                call_fail(&c, "an expert id is not below %lld", (long long)E);
            else
                at1(&dr, n)[e] = (float)(dp * p[j] * (1 - (double)p[j]));
        }
    }
    return call_end(&c);
}

/* router.c - the sigmoid router with selection bias and its backward. Rows are independent; what is chosen, see router_choose. */
#include <omp.h>

#include "internal.h"
#include "router.h"
#include "vmath.h"

enum cairn_status cairn_router_cpu(struct cairn_stream *s, const struct cairn_router *a, struct cairn_error *err)
{
    struct call c = call_begin("router", s, err);
    int64_t N = -1, E = -1, K = -1;
    struct arg r = call_arg(&c, "r", &a->r, STRIDED | T_F32, 2, &N, &E), bias = call_arg(&c, "bias", &a->bias, ABSENT | T_F32, 1, &E),
               idx = call_arg(&c, "idx", &a->idx, OUT | T_I32, 2, &N, &K), gate = call_arg(&c, "gate", &a->gate, OUT | T_F32, 2, &N, &K),
               prob = call_arg(&c, "prob", &a->prob, OUT | T_F32, 2, &N, &K),
               forced = call_arg(&c, "forced", &a->forced, ABSENT | T_I32, 2, &N, &K);
    struct router_groups g = {E, K, a->n_group > 1 ? a->n_group : 1, a->n_group > 1 ? a->topk_group : 1};
    const char *wrong = call_ok(&c) ? router_groups_check(&g) : NULL;
    int bad = 0, threads = call_threads(&c, N * E * 4, N);
    int64_t room = round_up(E, VL);

    if (wrong)
        call_fail(&c, "%s", wrong);
    call_reserve(&c, threads, (size_t)(2 * room) * sizeof(float) + (size_t)E, 0);
    if (call_ok(&c)) {
#pragma omp parallel num_threads(threads) reduction(| : bad)
        {
            int t = omp_get_thread_num();
            float *p = scratch_of(&c, t), *sel = p + room;
            char *taken = (char *)(sel + room);

            for (int64_t n = part(N, 1, t, threads); n < part(N, 1, t + 1, threads); n++) {
                int32_t *id = i32(&idx) + n * K;
                float sum = 0.0f;

                for (int64_t e = 0; e < E; e += VL) {
                    int64_t m = E - e < VL ? E - e : VL;
                    v16 x = v16_sigmoid(v16_loadn(at1(&r, n) + e, m, 0.0f));

                    v16_store(p + e, x);
                    v16_store(sel + e, bias.p ? x + v16_loadn(f32(&bias) + e, m, 0.0f) : x);
                }
                if (forced.p) {
                    for (int64_t j = 0; j < K; j++) {
                        id[j] = i32(&forced)[n * K + j];
                        if (id[j] < 0 || id[j] >= E || (j && id[j] <= id[j - 1])) {
                            bad = 1;
                            id[j] = (int32_t)(j < E ? j : 0);
                        }
                    }
                } else {
                    router_choose(&g, sel, id, taken);
                }
                for (int64_t j = 0; j < K; j++) {
                    f32(&prob)[n * K + j] = p[id[j]];
                    sum += p[id[j]];
                }
                for (int64_t j = 0; j < K; j++)
                    f32(&gate)[n * K + j] = (a->norm ? p[id[j]] / (sum + 1e-20f) : p[id[j]]) * a->scale;
            }
        }
    }
    if (bad)
        call_fail(&c, "forced experts are not ascending ids below %lld", (long long)E);
    return call_end(&c);
}

enum cairn_status cairn_router_bwd_cpu(struct cairn_stream *s, const struct cairn_router_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("router_bwd", s, err);
    int64_t N = -1, E = -1, K = -1;
    struct arg idx = call_arg(&c, "idx", &a->idx, T_I32, 2, &N, &K), prob = call_arg(&c, "prob", &a->prob, T_F32, 2, &N, &K),
               dgate = call_arg(&c, "dgate", &a->dgate, T_F32, 2, &N, &K), dr = call_arg(&c, "dr", &a->dr, OUT | STRIDED | T_F32, 2, &N, &E);
    int threads = call_threads(&c, N * (E + 4 * K), N), bad = 0;

    if (call_ok(&c)) {
#pragma omp parallel for num_threads(threads) schedule(static) reduction(| : bad)
        for (int64_t n = 0; n < N; n++) {
            const float *p = f32(&prob) + n * K, *d = f32(&dgate) + n * K;
            float *o = at1(&dr, n), sum = 0.0f, mean = 0.0f;

            for (int64_t e = 0; e < E; e++)
                o[e] = 0.0f;
            for (int64_t j = 0; j < K; j++)
                sum += p[j];
            sum += 1e-20f;
            for (int64_t j = 0; j < K; j++)
                mean += d[j] * p[j];
            mean /= sum;
            for (int64_t j = 0; j < K; j++) {
                int32_t e = i32(&idx)[n * K + j];
                float dp = a->norm ? a->scale / sum * (d[j] - mean) : a->scale * d[j];

                if (e < 0 || e >= E)
                    bad = 1;
                else
                    o[e] = dp * p[j] * (1.0f - p[j]);
            }
        }
    }
    if (bad)
        call_fail(&c, "an expert id is not below %lld", (long long)E);
    return call_end(&c);
}

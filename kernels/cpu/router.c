/* router.c - the sigmoid router with selection bias and its backward. Rows are independent; what is chosen, see router_choose. */
#include <stdatomic.h>

#include "base/planted.h"
#include "internal.h"
#include "router.h"
#include "vmath.h"

struct choice {
    struct arg r, bias, idx, gate, prob, forced;
    struct router_groups groups;
    int norm;
    float scale;
    atomic_int bad;
};

static void choose_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    struct choice *k = ctx;
    int64_t E = k->groups.E, K = k->groups.K, room = round_up(E, VL);
    float *p = scratch, *sel = p + room;
    char *taken = (char *)(sel + room);

    for (int64_t n = begin; n < end; n++) {
        int32_t *id = i32(&k->idx) + n * K;
        float sum = 0.0f;

        for (int64_t e = 0; e < E; e += VL) {
            int64_t m = E - e < VL ? E - e : VL;
            v16 x = v16_sigmoid(v16_loadn(at1(&k->r, n) + e, m, 0.0f));

            v16_store(p + e, cairn_planted("router-softmax") ? v16_exp(v16_loadn(at1(&k->r, n) + e, m, 0.0f)) : x);
            v16_store(sel + e, k->bias.p ? x + v16_loadn(f32(&k->bias) + e, m, 0.0f) : x);
        }
        if (k->forced.p) {
            for (int64_t j = 0; j < K; j++) {
                id[j] = i32(&k->forced)[n * K + j];
                if (id[j] < 0 || id[j] >= E || (j && id[j] <= id[j - 1])) {
                    atomic_store(&k->bad, 1);
                    id[j] = 0;
                }
            }
        } else {
            router_choose(&k->groups, sel, id, taken);
        }
        for (int64_t j = 0; j < K; j++) {
            if (cairn_planted("router-bias-as-weight"))
                p[id[j]] = sel[id[j]];
            f32(&k->prob)[n * K + j] = p[id[j]];
            sum += p[id[j]];
        }
        for (int64_t j = 0; j < K; j++)
            f32(&k->gate)[n * K + j] = (k->norm && !cairn_planted("router-not-renormalised") ? p[id[j]] / (sum + 1e-20f) : p[id[j]]) *
                                        (cairn_planted("router-no-scale") ? 1.0f : k->scale);
    }
}

enum cairn_status cairn_router_cpu(struct cairn_stream *s, const struct cairn_router *a, struct cairn_error *err)
{
    struct call c = call_begin("router", s, err);
    int64_t N = -1, E = -1, K = -1;
    struct choice k = {.r = call_arg(&c, "r", &a->r, STRIDED | T_F32, 2, &N, &E), .norm = a->norm, .scale = a->scale};
    const char *wrong;

    k.bias = call_arg(&c, "bias", &a->bias, ABSENT | T_F32, 1, &E);
    k.idx = call_arg(&c, "idx", &a->idx, OUT | T_I32, 2, &N, &K);
    k.gate = call_arg(&c, "gate", &a->gate, OUT | T_F32, 2, &N, &K);
    k.prob = call_arg(&c, "prob", &a->prob, OUT | T_F32, 2, &N, &K);
    k.forced = call_arg(&c, "forced", &a->forced, ABSENT | T_I32, 2, &N, &K);
    k.groups = (struct router_groups){E, K, a->n_group > 1 ? a->n_group : 1, a->n_group > 1 ? a->topk_group : 1};
    wrong = call_ok(&c) ? router_groups_check(&k.groups) : NULL;
    if (wrong)
        call_fail(&c, "%s", wrong);
    if (call_ok(&c))
        call_reserve(&c, (size_t)(2 * round_up(E, VL)) * sizeof(float) + (size_t)E, 0);
    if (call_ok(&c))
        call_share(&c, N, 1, N * E * (K + 3), choose_rows, &k);
    if (atomic_load(&k.bad))
        call_fail(&c, "forced experts are not ascending ids below %lld", (long long)E);
    return call_end(&c);
}

struct choice_bwd {
    struct arg idx, prob, dgate, dr;
    int64_t E, K;
    int norm;
    float scale;
    atomic_int bad;
};

static void choice_bwd_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    struct choice_bwd *k = ctx;

    (void)scratch;
    for (int64_t n = begin; n < end; n++) {
        const float *p = f32(&k->prob) + n * k->K, *d = f32(&k->dgate) + n * k->K;
        float *o = at1(&k->dr, n), sum = 0.0f, mean = 0.0f;

        for (int64_t e = 0; e < k->E; e++)
            o[e] = 0.0f;
        for (int64_t j = 0; j < k->K; j++)
            sum += p[j];
        sum += 1e-20f;
        for (int64_t j = 0; j < k->K; j++)
            mean += d[j] * p[j];
        mean = cairn_planted("router-bwd-no-mean") ? 0.0f : mean / sum;
        for (int64_t j = 0; j < k->K; j++) {
            int32_t e = i32(&k->idx)[n * k->K + j];
            float dp = k->norm ? k->scale / sum * (d[j] - mean) : k->scale * d[j];

            if (e < 0 || e >= k->E)
                atomic_store(&k->bad, 1);
            else
                o[e] = dp * p[j] * (1.0f - p[j]);
        }
    }
}

enum cairn_status cairn_router_bwd_cpu(struct cairn_stream *s, const struct cairn_router_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("router_bwd", s, err);
    int64_t N = -1, E = -1, K = -1;
    struct choice_bwd k = {.idx = call_arg(&c, "idx", &a->idx, T_I32, 2, &N, &K), .norm = a->norm, .scale = a->scale};

    k.prob = call_arg(&c, "prob", &a->prob, T_F32, 2, &N, &K);
    k.dgate = call_arg(&c, "dgate", &a->dgate, T_F32, 2, &N, &K);
    k.dr = call_arg(&c, "dr", &a->dr, OUT | STRIDED | T_F32, 2, &N, &E);
    k.E = E;
    k.K = K;
    if (call_ok(&c))
        call_share(&c, N, 1, N * (E + 4 * K), choice_bwd_rows, &k);
    if (atomic_load(&k.bad))
        call_fail(&c, "an expert id is not below %lld", (long long)E);
    return call_end(&c);
}

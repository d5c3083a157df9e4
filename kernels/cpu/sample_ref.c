/* sample_ref.c - sampling as its definition reads: sort, cut, sum up, look where the uniform falls; in fp64. */
#include <math.h>
#include <stdlib.h>

#include "base/philox.h"
#include "head_ref.h"
#include "internal.h"

struct entry {
    float x;
    int32_t id;
};

static int by_likelihood(const void *a, const void *b)
{
    const struct entry *p = a, *q = b;

    if (p->x != q->x)
        return p->x > q->x ? -1 : 1;
    return p->id < q->id ? -1 : p->id > q->id;
}

enum cairn_status cairn_sample_ref(struct cairn_stream *s, const struct cairn_sample *a, struct cairn_error *err)
{
    struct call c = call_begin("sample", s, err);
    int64_t N = -1, V = -1;
    struct arg logits = call_arg(&c, "logits", &a->logits, STRIDED | T_F32, 2, &N, &V),
               prompt = call_arg(&c, "prompt", &a->prompt, T_I32, 1, &N), sample = call_arg(&c, "sample", &a->sample, T_I32, 1, &N),
               position = call_arg(&c, "position", &a->position, T_I32, 1, &N),
               token = call_arg(&c, "token", &a->token, OUT | T_I32, 1, &N),
               logprob = call_arg(&c, "logprob", &a->logprob, OUT | T_F32, 1, &N),
               sampled = call_arg(&c, "logprob_sampled", &a->logprob_sampled, OUT | ABSENT | T_F32, 1, &N),
               barred = call_arg(&c, "barred", &a->barred, ABSENT | T_U8, 1, &V);
    struct cairn_philox_key key = {a->seed, CAIRN_PURPOSE_SAMPLE, a->step};

    call_reserve(&c, 0, call_ok(&c) ? (size_t)V * (sizeof(struct entry) + sizeof(float)) : 0);
    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        struct entry *e = scratch_shared(&c);
        float *x = (float *)(e + V);
        int64_t kept = 0, M = 0; /* M: ids that may be drawn */
        double lse, all, mass = 0, u;
        uint32_t word[4];
        int32_t t = 0;

        for (int64_t v = 0; v < V; v++) {
            x[v] = at1(&logits, n)[v] * a->inv_temperature;
            if (!barred.p || !u8(&barred)[v])
                e[M++] = (struct entry){x[v], (int32_t)v};
        }
        all = lse = head_ref_lse(x, V);
        if (isfinite(lse)) {
            for (int64_t v = 0; barred.p && v < V; v++)
                x[v] = u8(&barred)[v] ? -INFINITY : x[v];
            lse = head_ref_lse(x, V);
            qsort(e, (size_t)M, sizeof *e, by_likelihood);
            t = e[0].id;
            while (kept < M && !(a->top_k > 0 && kept >= a->top_k) && !(a->top_p < 1 && kept && mass >= (double)a->top_p) &&
                   !(a->min_p > 0 && exp((double)e[kept].x - e[0].x) < a->min_p))
                mass += exp(e[kept++].x - lse);
            for (int64_t i = kept; i < M; i++)
                x[e[i].id] = -INFINITY;
        }
        if (isfinite(all) && !a->greedy) {
            cairn_philox(&key, (uint32_t)i32(&prompt)[n], (uint32_t)i32(&sample)[n], (uint32_t)i32(&position)[n], word);
            u = (double)cairn_uniform(word[0]) * mass;
            for (int64_t v = 0; v < V; v++)
                if (x[v] > -INFINITY) {
                    t = (int32_t)v;
                    u -= exp(x[v] - lse);
                    if (u < 0)
                        break;
                }
        }
        i32(&token)[n] = t;
        f32(&logprob)[n] = (float)(at1(&logits, n)[t] * a->inv_temperature - all);
        if (sampled.p)
            f32(&sampled)[n] = kept < V && kept ? (float)(x[t] - head_ref_lse(x, V)) : f32(&logprob)[n];
    }
    return call_end(&c);
}

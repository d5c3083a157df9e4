/* pooled_ref.c - pooled keys of the indexer as their formula reads, in fp64; chosen pools as positions. */
#include <math.h>

#include "pooled.h"
#include "base/planted.h"
#include "vec.h"

static double weight(const struct arg *w, int64_t i)
{
    return w->type == CAIRN_BF16 ? (double)bf16_to_f32(((const uint16_t *)w->p)[i]) : (double)f32(w)[i];
}

enum cairn_status cairn_pool_keys_ref(struct cairn_stream *s, const struct cairn_pool_keys *a, struct cairn_error *err)
{
    struct call c = call_begin("pool_keys", s, err);
    struct pooled k = pooled_arg(&c, a);

    for (int64_t i = 0; call_ok(&c) && i < k.r.count; i++)
        for (int64_t n = k.r.begin[i]; n < k.r.begin[i + 1]; n++) {
            int64_t first = k.r.pos[n] + 1 - k.m;

            if ((k.r.pos[n] + 1) % k.m)
                continue;
            for (int64_t d = 0; d < k.D; d++) {
                double most = -INFINITY, sum = 0, key = 0;

                for (int64_t r = 0; r < k.m; r++)
                    most = fmax(most, pooled_at(&k, k.r.begin[i], first + r, 1)[d] + weight(&k.ape, r * k.D + d));
                for (int64_t r = 0; r < k.m; r++) {
                    double e = exp(pooled_at(&k, k.r.begin[i], first + r, 1)[d] + weight(&k.ape, r * k.D + d) - most);

                    sum += e;
                    key += e * pooled_at(&k, k.r.begin[i], first + r, 0)[d];
                }
                at1(&k.rows, pooled_row(&k, k.r.seq[n], k.r.pos[n] / k.m))[d] = (float)(key / sum);
            }
        }
    if (call_ok(&c))
        pooled_keep(&k);
    return call_end(&c);
}

enum cairn_status cairn_pool_expand_ref(struct cairn_stream *s, const struct cairn_pool_expand *a, struct cairn_error *err)
{
    struct call c = call_begin("pool_expand", s, err);
    int64_t N = -1, P = -1, W = -1, m = a->m;
    struct arg choice = call_arg(&c, "choice", &a->choice, T_I32, 2, &N, &P), pos = call_arg(&c, "pos", &a->pos, T_I32, 1, &N),
               idx = call_arg(&c, "idx", &a->idx, OUT | T_I32, 2, &N, &W);

    if (call_ok(&c) && (m < 1 || W != P * m + m - 1))
        call_fail(&c, "%lld pools of %lld in %lld positions", (long long)P, (long long)m, (long long)W);
    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        int64_t whole = ((int64_t)i32(&pos)[n] + 1) / m, at = 0;
        int32_t *out = i32(&idx) + n * W;

        for (int64_t i = 0; whole && i < P && i32(&choice)[n * P + i] >= 0; i++)
            for (int64_t r = 0; r < m; r++)
                out[at++] = (int32_t)(i32(&choice)[n * P + i] * m + r);
        for (int64_t p = whole * m + (whole && cairn_planted("pool-tail-short")); p <= i32(&pos)[n]; p++)
            out[at++] = (int32_t)p;
        while (at < W)
            out[at++] = -1;
    }
    return call_end(&c);
}

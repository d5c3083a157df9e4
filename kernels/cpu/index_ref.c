/* index_ref.c - the lightning indexer as its definition reads: scores in fp64 rounded once, then T times the best that is left. */
#include <math.h>

#include "keys.h"

enum cairn_status cairn_index_ref(struct cairn_stream *s, const struct cairn_index *a, struct cairn_error *err)
{
    struct call c = call_begin("index", s, err);
    int64_t N = -1, H = -1, D = -1, S = -1, T = -1;
    struct arg q = call_arg(&c, "q", &a->q, STRIDED | T_F32, 3, &N, &H, &D),
               w = call_arg(&c, "w", &a->w, STRIDED | T_F32, 2, &N, &H), idx = call_arg(&c, "idx", &a->idx, OUT | T_I32, 2, &N, &T);
    struct keys keys = keys_arg(&c, &a->keys, &N, &S, &D);

    call_reserve(&c, 0, call_ok(&c) ? (size_t)(S + 1) * (sizeof(float) + 1) : 0);
    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        float *score = scratch_shared(&c);
        char *taken = (char *)(score + S);
        int32_t pos = i32(&keys.pos)[n], *out = i32(&idx) + n * T;
        int64_t kept = 0;

        for (int64_t p = 0; p <= pos; p++) {
            double sum = 0;

            for (int64_t h = 0; h < H; h++) {
                double dot = 0;

                for (int64_t d = 0; d < D; d++)
                    dot += (double)at2(&q, n, h)[d] * key_at(&keys, i32(&keys.seq)[n], p)[d];
                dot *= a->scale;
                sum += (double)at1(&w, n)[h] * (dot < 0 ? 0 : dot);
            }
            score[p] = isnan(sum) ? -INFINITY : (float)sum;
            taken[p] = pos < T;
        }
        for (int64_t k = 0; pos >= T && k < T; k++) {
            int64_t best = -1;

            for (int64_t p = 0; p <= pos; p++)
                if (!taken[p] && (best < 0 || score[p] > score[best]))
                    best = p;
            taken[best] = 1;
        }
        for (int64_t p = 0; p <= pos; p++)
            if (taken[p])
                out[kept++] = (int32_t)p;
        while (kept < T)
            out[kept++] = -1;
    }
    return call_end(&c);
}

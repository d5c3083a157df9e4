/* index.c - the lightning indexer: scores of all visible keys, and the exact T largest of them.
 *
 * Scores: keys are turned into lanes 32 at a time; a score is one chain over channels for each head, then one over heads. A few
 * consecutive queries of a sequence share the turned keys. Selection: the T-th largest score by select.h, then one pass in position
 * order; ties to the lower position by construction. Memory: QUERIES scores a key for each thread.
 */
#include <math.h>

#include "base/planted.h"
#include "gemm.h"
#include "keys.h"
#include "select.h"

#define QUERIES 8

/* The T largest of n > T scores, ascending positions. `key` may be the scores' own memory. */
static void select_top(const float *score, int32_t *key, int64_t n, int64_t T, int32_t *idx)
{
    int64_t more = 0, kept = 0, ties;
    int32_t t;

    for (int64_t i = 0; i < n; i++)
        key[i] = select_key(score[i]);
    t = select_by_count(key, n, T);
    for (int64_t i = 0; i < n; i++)
        more += key[i] > t;
    ties = T - more;
    for (int64_t i = 0; i < n && kept < T; i++)
        if (key[i] > t || (key[i] == t && ties-- > 0))
            idx[kept++] = (int32_t)i;
}

struct indexing {
    const struct cairn_index *a;
    struct arg q, w, idx;
    struct keys keys;
    int64_t N, H, D, T, ld; /* ld: room for the scores of one query */
};

/* Queries n0 .. n1 of one sequence, at least one of which must choose. room: D x 32 turned keys, H x 32 products, QUERIES
 * x ld scores, ld integers. */
static void choose(const struct indexing *k, int64_t n0, int64_t n1, float *room)
{
    float *panel = room, *prod = panel + k->D * TILE_N, *score = prod + k->H * TILE_N;
    int32_t *key = (int32_t *)(score + QUERIES * k->ld);
    int32_t b = i32(&k->keys.seq)[n0], last = 0;

    for (int64_t n = n0; n < n1; n++)
        if (i32(&k->keys.pos)[n] > last)
            last = i32(&k->keys.pos)[n];
    for (int64_t s = 0; s <= last; s += TILE_N) {
        for (int half = 0; half < TILE_N; half += VL) {
            const float *rows[VL];
            int count = 0;

            for (; count < VL && s + half + count <= last; count++)
                rows[count] = key_at(&k->keys, b, s + half + count);
            gemm_transpose(rows, count, k->D, panel + half, TILE_N);
        }
        for (int64_t n = n0; n < n1; n++) {
            if (i32(&k->keys.pos)[n] < s || i32(&k->keys.pos)[n] < k->T)
                continue;
            for (int64_t h = 0; h < k->H; h += TILE_M)
                gemm_tile((int)(k->H - h < TILE_M ? k->H - h : TILE_M), 2, k->D, at2(&k->q, n, h), k->q.s[1], 1, panel, TILE_N,
                          prod + h * TILE_N, TILE_N, 0);
            for (int half = 0; half < TILE_N; half += VL) {
                v16 sum = v16_set(0.0f);

                for (int64_t h = 0; h < k->H; h++)
                    sum = v16_fma(v16_set(at1(&k->w, n)[h]),
                                  v16_max(v16_load(prod + h * TILE_N + half) * v16_set(k->a->scale),
                                          v16_set(cairn_planted("index-no-relu") ? -INFINITY : 0.0f)),
                                  sum);
                v16_store(score + (n - n0) * k->ld + s + half, sum);
            }
        }
    }
    for (int64_t n = n0; n < n1; n++)
        if (i32(&k->keys.pos)[n] >= k->T) {
            if (cairn_planted("index-tie-order"))
                for (int64_t i = 0; i <= i32(&k->keys.pos)[n]; i++)
                    score[(n - n0) * k->ld + i] += (float)i * 1e-30f;
            select_top(score + (n - n0) * k->ld, key, (int64_t)i32(&k->keys.pos)[n] + 1, k->T, i32(&k->idx) + n * k->T);
            if (cairn_planted("index-topk-off-by-one") || (cairn_planted("index-short-beyond-4096") && i32(&k->keys.pos)[n] >= 4096))
                i32(&k->idx)[n * k->T + k->T - 1] = -1;
        }
}

static void index_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct indexing *k = ctx;

    for (int64_t n = begin, m; n < end; n = m) {
        int some = 0;

        for (m = n; m < end && m < n + QUERIES && i32(&k->keys.seq)[m] == i32(&k->keys.seq)[n]; m++) {
            int32_t pos = i32(&k->keys.pos)[m], *out = i32(&k->idx) + m * k->T;

            some |= pos >= k->T;
            if (pos < k->T)
                for (int64_t j = 0; j < k->T; j++)
                    out[j] = j <= pos ? (int32_t)j : -1;
        }
        if (some)
            choose(k, n, m, scratch);
    }
}

enum cairn_status cairn_index_cpu(struct cairn_stream *s, const struct cairn_index *a, struct cairn_error *err)
{
    struct call c = call_begin("index", s, err);
    int64_t N = -1, H = -1, D = -1, S = -1, T = -1, longest = 0, work = 0;
    struct indexing k = {.a = a};

    k.q = call_arg(&c, "q", &a->q, STRIDED | T_F32, 3, &N, &H, &D);
    k.w = call_arg(&c, "w", &a->w, STRIDED | T_F32, 2, &N, &H);
    k.idx = call_arg(&c, "idx", &a->idx, OUT | T_I32, 2, &N, &T);
    k.keys = keys_arg(&c, &a->keys, &N, &S, &D);
    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        int64_t p = i32(&k.keys.pos)[n];

        work += p < T ? T / 8 + 1 : p * (H * D + 64) / 8;
        if (p > longest)
            longest = p;
    }
    k.N = N, k.H = H, k.D = D, k.T = T, k.ld = round_up(longest + 1, TILE_N);
    if (call_ok(&c))
        call_reserve(&c, sizeof(float) * (size_t)((D + H) * TILE_N + (QUERIES + 1) * k.ld), 0);
    if (call_ok(&c))
        call_share(&c, N, QUERIES, work, index_rows, &k);
    return call_end(&c);
}

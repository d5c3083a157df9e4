/* pooled_test.c - the pooled indexer: keys of pools, packed and paged, whole and in pieces; chosen pools as positions; and with op
 * index in between, the selection rules of the model: whole pools only, own tail always, ties of score 0 to the lower pool.
 */
#include "lab.h"

#define MOST_SEQS 4
static const struct {
    int len[MOST_SEQS], d, m, pad;
    enum cairn_dtype ape;
    const char *why;
} packs[] = {
    {{1}, 4, 4, 0, CAIRN_F32, "no whole pool"},
    {{4, 3, 9, 8}, 24, 4, 1, CAIRN_BF16, "whole pools and tails"},
    {{33, 1, 16}, 128, 8, 0, CAIRN_BF16, "pools of eight"},
    {{70}, 17, 4, 2, CAIRN_F32, "odd width"},
    {{5, 2}, 8, 1, 0, CAIRN_F32, "pools of one"},
    {{64}, 16, 32, 0, CAIRN_F32, "large pools"},
};
#define PACKS (sizeof packs / sizeof *packs)

struct packing {
    struct thing *pos, *seq, *start;
    int n, seqs, begin[MOST_SEQS + 1];
};

static struct packing packing_new(struct lab *l, size_t i)
{
    struct packing p = {0};
    int32_t pos[512], seq[512], start[MOST_SEQS];

    for (; p.seqs < MOST_SEQS && packs[i].len[p.seqs]; p.seqs++) {
        p.begin[p.seqs] = p.n;
        start[p.seqs] = p.n / packs[i].m;
        for (int j = 0; j < packs[i].len[p.seqs]; j++, p.n++)
            pos[p.n] = j, seq[p.n] = p.seqs;
        p.begin[p.seqs + 1] = p.n;
    }
    p.pos = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, p.n), pos);
    p.seq = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, p.n), seq);
    p.start = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, p.seqs), start);
    return p;
}

static void keys(struct lab *l)
{
    for (size_t i = 0; i < PACKS; i++) {
        enum { PAGE = 2, PAGES = 40 };
        struct packing p = packing_new(l, i);
        int d = packs[i].d, m = packs[i].m, rows = p.n / m + 1, at[MOST_SEQS] = {0};
        int32_t table[MOST_SEQS * PAGES];
        struct thing *k = thing_normal(l, thing_new(l, LAB_ACT, packs[i].pad, 2, p.n, d), 1),
                     *gate = thing_normal(l, thing_new(l, LAB_ACT, 1, 2, p.n, d), 3),
                     *ape = thing_normal(l, thing_new(l, packs[i].ape, 0, 2, m, d), 1),
                     *out = thing_new(l, LAB_ACT, packs[i].pad, 2, rows, d), *out2 = thing_like(l, out, 1);
        struct thing *tail = thing_new(l, LAB_ACT, 0, 3, MOST_SEQS, m, 2 * d), /* NaN all over */
            *pages, *cache = thing_new(l, LAB_ACT, 0, 2, MOST_SEQS * PAGES * PAGE, d);
        struct cairn_pool_keys a;

        for (int64_t e = 0; i == 3 && e < thing_count(gate); e++)
            *thing_f(gate, e) -= 300; /* exp of any is 0 */
        thing_up(l, gate);
        a = (struct cairn_pool_keys){
            k->t, gate->t, ape->t, {0}, {.rows = out->t, .pos = p.pos->t, .seq = p.seq->t, .start = p.start->t}};

        LAB_OK(l, l->fast->pool_keys(&l->c.stream, &a, &l->err));
        a.keys.rows = out2->t;
        LAB_OK(l, l->ref->pool_keys(&l->c.stream, &a, &l->err));
        thing_down(l, out), thing_down(l, out2);
        lab_near(l, packs[i].why, out, out2, 1e-5, i == 3 ? 1e-4 : 5e-6); /* rows of no pool stay NaN in both */
        /* in pieces, to pages in a mixed order */
        for (int e = 0; e < MOST_SEQS * PAGES; e++)
            table[e] = (e * 7 + 3) % (MOST_SEQS * PAGES); /* 7 and 160 have no common factor */
        pages = thing_ints(l, thing_new(l, CAIRN_I32, 0, 2, MOST_SEQS, PAGES), table);
        a.tail = tail->t;
        a.keys = (struct cairn_keys){.rows = cache->t, .pos = p.pos->t, .seq = p.seq->t, .pages = pages->t, .page = PAGE};
        for (int left = p.n; left;) {
            int s = lab_int(l, 0, p.seqs - 1), len = p.begin[s + 1] - p.begin[s], n = lab_int(l, 1, 2 * m > 9 ? 9 : 2 * m);
            struct cairn_pool_keys one = a;
            struct cairn_tensor *t[] = {&one.k, &one.gate, &one.keys.pos, &one.keys.seq};

            if (n > len - at[s])
                n = len - at[s];
            for (int e = 0; e < 4; e++)
                *t[e] = cairn_tensor_slice(t[e], 0, p.begin[s] + at[s], n);
            LAB_OK(l, l->fast->pool_keys(&l->c.stream, &one, &l->err));
            at[s] += n, left -= n;
        }
        thing_down(l, cache);
        for (int s = 0; s < p.seqs; s++)
            for (int pool = 0; pool < (p.begin[s + 1] - p.begin[s]) / m; pool++)
                for (int e = 0; e < d; e++) {
                    int row = table[s * PAGES + pool / PAGE] * PAGE + pool % PAGE;

                    assert_memory_equal(thing_f(cache, row * d + e), thing_f(out, (p.begin[s] / m + pool) * d + e), 4);
                }
        lab_clear(l);
    }
}

static void refusals(struct lab *l)
{
    struct packing p = packing_new(l, 1);
    struct thing *k = thing_normal(l, thing_new(l, LAB_ACT, 0, 2, p.n, 24), 1),
                 *ape = thing_normal(l, thing_new(l, CAIRN_F32, 0, 2, 4, 24), 1), *out = thing_new(l, LAB_ACT, 0, 2, 4, 24);
    struct cairn_pool_keys a = {k->t, k->t, ape->t, {0}, {.rows = out->t, .pos = p.pos->t, .seq = p.seq->t, .start = p.start->t}};
    struct thing *idx = thing_new(l, CAIRN_I32, 0, 2, p.n, 10), *choice = thing_new(l, CAIRN_I32, 0, 2, p.n, 2);
    struct cairn_pool_expand e = {choice->t, p.pos->t, idx->t, 4};

    LAB_REFUSES(l, l->fast->pool_keys(&l->c.stream, &a, &l->err));   /* too few rows */
    LAB_REFUSES(l, l->fast->pool_expand(&l->c.stream, &e, &l->err)); /* 10 is not 2 * 4 + 3 */
}

/* Positions that a query must attend, by the rules, from scores in fp64. */
static int expected(const struct thing *q, const struct thing *w, const struct thing *pool, int first, int n, int pos, int H, int D,
                    int m, int T, int32_t *out)
{
    int whole = (pos + 1) / m, want = T / m < whole ? T / m : whole, count = 0;
    double score[64];
    char taken[64] = {0};

    for (int p = 0; p < whole; p++) {
        score[p] = 0;
        for (int h = 0; h < H; h++) {
            double dot = 0;

            for (int d = 0; d < D; d++)
                dot += (double)*thing_f(q, (n * H + h) * D + d) * *thing_f(pool, (first + p) * D + d);
            score[p] += *thing_f(w, n * H + h) * (dot > 0 ? dot : 0);
        }
    }
    for (int k = 0; k < want; k++) {
        int best = -1;

        for (int p = 0; p < whole; p++)
            if (!taken[p] && (best < 0 || score[p] > score[best]))
                best = p;
        taken[best] = 1;
    }
    for (int p = 0; p < whole; p++)
        for (int r = 0; taken[p] && r < m; r++)
            out[count++] = p * m + r;
    for (int p = whole * m; p <= pos; p++)
        out[count++] = p;
    return count;
}

static void selection(struct lab *l)
{
    enum { H = 2, D = 8, M = 4, T = 12, W = T + M - 1, LEN = 70, SECOND = 9, N = LEN + SECOND };
    int32_t pos[N], seq[N], at[N], start[2] = {0, LEN / M}, out[W];
    struct thing *q = thing_normal(l, thing_new(l, LAB_ACT, 0, 3, N, H, D), 1), *w = thing_new(l, CAIRN_F32, 0, 2, N, H),
                 *pool = thing_normal(l, thing_new(l, LAB_ACT, 0, 2, N / M + 1, D), 1), *idx = thing_new(l, CAIRN_I32, 0, 2, N, W),
                 *choice = thing_new(l, CAIRN_I32, 0, 2, N, T / M);
    struct cairn_index a;
    struct cairn_pool_expand e;

    for (int n = 0; n < N; n++) {
        pos[n] = n < LEN ? n : n - LEN;
        seq[n] = n >= LEN;
        at[n] = (pos[n] + 1) / M > 0 ? (pos[n] + 1) / M - 1 : 0;
        for (int h = 0; h < H; h++)
            *thing_f(w, n * H + h) = n % 3 == 0 ? -0.0f : n % 3 == 1 ? -1 : (float)lab_uniform(l, -1, 1);
    }
    for (int p = 0; p < N / M + 1; p += 2) /* pools that no query of one sign likes: many scores of exactly 0 */
        for (int d = 0; d < D; d++)
            *thing_f(pool, p * D + d) = (float)-fabs((double)*thing_f(pool, p * D + d));
    for (int n = 0; n < N; n += 2)
        for (int d = 0; d < H * D; d++)
            *thing_f(q, n * H * D + d) = (float)fabs((double)*thing_f(q, n * H * D + d));
    thing_up(l, w), thing_up(l, pool), thing_up(l, q);
    a = (struct cairn_index){.q = q->t, .w = w->t, .idx = choice->t, .scale = 0.5f};
    a.keys = (struct cairn_keys){.rows = pool->t,
                                 .pos = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, N), at)->t,
                                 .seq = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, N), seq)->t,
                                 .start = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, 2), start)->t};
    LAB_OK(l, l->fast->index(&l->c.stream, &a, &l->err));
    e = (struct cairn_pool_expand){choice->t, thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, N), pos)->t, idx->t, M};
    LAB_OK(l, l->fast->pool_expand(&l->c.stream, &e, &l->err));
    thing_down(l, idx);
    for (int n = 0; n < N; n++) {
        int count = expected(q, w, pool, start[seq[n]], n, pos[n], H, D, M, T, out);

        for (int j = 0; j < W; j++)
            if (*thing_i(idx, n * W + j) != (j < count ? out[j] : -1))
                fail_msg("%s: query %d, place %d: %d, should be %d", l->device, n, j, *thing_i(idx, n * W + j),
                         j < count ? out[j] : -1);
    }
}

ON_EACH_DEVICE(keys)
ON_EACH_DEVICE(refusals)
ON_EACH_DEVICE(selection)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_test),
        cmocka_unit_test(refusals_test),
        cmocka_unit_test(selection_test),
    };

    return LAB_RUN(tests);
}

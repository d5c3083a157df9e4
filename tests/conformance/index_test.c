/* index_test.c - index: against a choice worked out in fp64, rows alone and from pages against together and packed, ties and NaN.
 *
 * Index heads of 128 are those of the large models: back-ends have kernels of their own for them, which need rows that begin at multiples of
 * 16 bytes.
 */
#include "batches.h"

/* Is the choice right, up to what fp32 can tell apart? Every chosen score must reach the T-th best within the bound. */
static void check_choice(struct lab *l, const struct setup *s, const struct thing *q, const struct thing *w,
                         const struct thing *idx, int H, int D, int T, float scale)
{
    for (int n = 0; n < s->N; n++) {
        double score[512], size[512];
        int taken[512] = {0}, last = -1, count = 0;

        for (int p = 0; p <= s->pos[n]; p++) {
            score[p] = size[p] = 0;
            for (int h = 0; h < H; h++) {
                double dot = 0, mag = 0;

                for (int d = 0; d < D; d++) {
                    double term = (double)*thing_f(q, ((int64_t)n * H + h) * D + d) *
                                  *thing_f(s->rows, (int64_t)(s->start[s->seq[n]] + p) * D + d);

                    dot += term;
                    mag += fabs(term);
                }
                score[p] += *thing_f(w, (int64_t)n * H + h) * (dot > 0 ? dot * scale : 0);
                size[p] += fabs(*thing_f(w, (int64_t)n * H + h)) * mag * scale;
            }
        }
        for (int j = 0; j < T; j++) {
            int i = *thing_i(idx, (int64_t)n * T + j);

            if (i < 0) {
                for (; j < T; j++)
                    assert_int_equal(*thing_i(idx, (int64_t)n * T + j), -1);
                break;
            }
            assert_true(i > last && i <= s->pos[n]);
            last = i;
            taken[i] = 1;
            count++;
        }
        assert_int_equal(count, s->pos[n] + 1 < T ? s->pos[n] + 1 : T);
        for (int p = 0; p <= s->pos[n]; p++)
            for (int o = 0; o <= s->pos[n]; o++)
                if (taken[p] && !taken[o] && score[o] > score[p] + (D + H + 4) * 0x1p-24 * (size[o] + size[p]))
                    fail_msg("%s: row %d takes key %d (%.9g) and not %d (%.9g)", l->device, n, p, score[p], o, score[o]);
    }
}

static void index_is_right(struct lab *l)
{
    static const int dims[][3] = {{1, 8, 4}, {4, 32, 16}, {9, 20, 7}, {2, 5, 64}, {16, 128, 12}, {32, 128, 60}, {64, 128, 33}};

    for (size_t b = 0; b < sizeof batches / sizeof *batches; b++)
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
            int H = dims[i][0], D = dims[i][1], T = dims[i][2];
            struct setup s;
            struct thing *q, *w, *one, *two;
            struct cairn_index a;

            if (left_out(l, &batches[b], D))
                continue;
            make_batch(l, &batches[b], D, padding(D, 2), &s);
            q = thing_normal(l, thing_new(l, LAB_ACT, padding(D, 1), 3, s.N, H, D), 1);
            w = thing_normal(l, thing_new(l, CAIRN_F32, 3, 2, s.N, H), 1);
            one = thing_new(l, CAIRN_I32, 0, 2, s.N, T);
            two = thing_like(l, one, 1);
            a = (struct cairn_index){q->t, w->t, one->t, s.keys, 0.25f};
            LAB_OK(l, l->fast->index(&l->c.stream, &a, &l->err));
            thing_down(l, one);
            check_choice(l, &s, q, w, one, H, D, T, a.scale);
            a.idx = two->t;
            LAB_OK(l, l->ref->index(&l->c.stream, &a, &l->err));
            thing_down(l, two);
            check_choice(l, &s, q, w, two, H, D, T, a.scale);
            /* each row alone, from pages */
            a.keys = paged(l, &batches[b], &s, 8);
            memset(two->h, 0xff, two->bytes);
            thing_up(l, two);
            for (int n = 0, m; n < s.N; n += m) {
                struct cairn_index r = a;

                m = lab_each(s.N) < s.N - n ? lab_each(s.N) : s.N - n;
                r.q = cairn_tensor_slice(&a.q, 0, n, m), r.w = cairn_tensor_slice(&a.w, 0, n, m),
                r.idx = cairn_tensor_slice(&two->t, 0, n, m);
                r.keys.pos = cairn_tensor_slice(&a.keys.pos, 0, n, m), r.keys.seq = cairn_tensor_slice(&a.keys.seq, 0, n, m);
                LAB_OK(l, l->fast->index(&l->c.stream, &r, &l->err));
            }
            thing_down(l, two);
            lab_equal_bits(l, batches[b].why, two, one);
            lab_clear(l);
        }
}

/* Scores that are exact in fp32, many of them equal, and NaN: the choice is defined to the last key. */
static void index_ties_of(struct lab *l, int H, int D)
{
    enum { S = 200, T = 24 };
    struct batch b = {1, {S}, S, ""};
    struct setup s;
    struct thing *q, *w, *idx, *idx_ref;
    struct cairn_index a;

    make_batch(l, &b, D, 0, &s);
    memset(s.rows->h, 0, s.rows->bytes);
    for (int i = 0; i < S; i++)
        *thing_f(s.rows, (int64_t)i * D + D - 1) = i % 53 == 7   ? NAN
                                                   : i % 31 == 3 ? -1.0f
                                                                 : (float)lab_int(l, 0, 5) - (i % 2 ? 0.0f : 1.0f);
    thing_up(l, s.rows);
    q = thing_new(l, LAB_ACT, 0, 3, S, H, D);
    w = thing_new(l, CAIRN_F32, 0, 2, S, H);
    memset(q->h, 0, q->bytes);
    for (int n = 0; n < S * H; n++) {
        *thing_f(q, (int64_t)n * D + D - 1) = 1;
        *thing_f(w, n) = n / H % 3 == 0 ? 1.0f : n / H % 3 == 1 ? -1.0f : 0.0f; /* -0 and 0 are ties */
    }
    thing_up(l, q);
    thing_up(l, w);
    idx = thing_new(l, CAIRN_I32, 0, 2, S, T);
    idx_ref = thing_like(l, idx, 1);
    a = (struct cairn_index){q->t, w->t, idx->t, s.keys, 1.0f};
    LAB_OK(l, l->fast->index(&l->c.stream, &a, &l->err));
    a.idx = idx_ref->t;
    LAB_OK(l, l->ref->index(&l->c.stream, &a, &l->err));
    thing_down(l, idx);
    thing_down(l, idx_ref);
    lab_equal_bits(l, "ties", idx, idx_ref);
    /* and against an order written down here: by score, then position */
    for (int n = T; n < S; n++) {
        float weight = *thing_f(w, (int64_t)n * H);
        int better[S];

        for (int p = 0; p <= n; p++) {
            float v = *thing_f(s.rows, (int64_t)p * D + D - 1), score = isnan(v) ? -INFINITY : weight * (v > 0 ? v : 0);

            better[p] = 0;
            for (int o = 0; o <= n; o++) {
                float u = *thing_f(s.rows, (int64_t)o * D + D - 1), other = isnan(u) ? -INFINITY : weight * (u > 0 ? u : 0);

                better[p] += other > score || (other == score && o < p);
            }
        }
        for (int p = 0, j = 0; p <= n; p++)
            if (better[p] < T)
                assert_int_equal(*thing_i(idx, (int64_t)n * T + j++), p);
    }
}

static void index_ties(struct lab *l)
{
    index_ties_of(l, 1, 1);
    lab_clear(l);
    index_ties_of(l, 16, 128);
    lab_clear(l);
    index_ties_of(l, 32, 128);
}

ON_EACH_DEVICE(index_is_right)
ON_EACH_DEVICE(index_ties)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(index_is_right_test),
        cmocka_unit_test(index_ties_test),
    };

    return LAB_RUN(tests);
}

/* batches.h - packed batches of sequences for the tests of index and attention: their keys, packed and paged. Included by one program each. */
#ifndef CAIRN_TESTS_BATCHES_H
#define CAIRN_TESTS_BATCHES_H

#include "lab.h"

/* A packed batch: lengths of sequences; queries are all positions, or the last `tail` of each. */
struct batch {
    int B, lengths[8], tail;
    const char *why;
};

static const struct batch batches[] = {
    {0, {0}, 0, "no rows"},
    {1, {1}, 1, "one token"},
    {1, {70}, 70, "one sequence, all positions"},
    {3, {5, 33, 100}, 100, "three sequences packed"},
    {2, {130, 17}, 9, "last positions only, as a prompt cut in two"},
    {4, {1, 2, 1, 65}, 1, "decode: one query each"},
    {3, {300, 2, 258}, 7, "several blocks of keys"},
};

/* A padding of about `some` that keeps rows of large shapes aligned. */
static int padding(int width, int some)
{
    return width < 128 ? some : 8;
}

/* In a small run large shapes are for the kernels that are made for them, in bf16, and go with some batches only, which are cut: long
 * enough for two blocks of 64 keys, with lists that hold fewer than all keys. */
static int left_out(const struct lab *l, const struct batch *b, int W)
{
    return lab_small() && W >= 128 && (b->B != 3 || !lab_rounds(l));
}

struct setup {
    int N, S, H, W, C, T;
    int32_t start[8], pos[512], seq[512];
    struct cairn_keys keys;
    struct thing *rows;
};

static void make_batch(struct lab *l, const struct batch *b, int W, int pad, struct setup *s)
{
    s->N = s->S = 0;
    for (int i = 0; i < b->B; i++) {
        s->start[i] = s->S;
        for (int p = b->lengths[i] > b->tail ? b->lengths[i] - b->tail : 0; p < b->lengths[i]; p++) {
            s->seq[s->N] = i;
            s->pos[s->N++] = p;
        }
        s->S += b->lengths[i];
    }
    s->W = W;
    s->rows = thing_normal(l, thing_new(l, LAB_ACT, pad, 2, s->S, W), 1);
    s->keys = (struct cairn_keys){
        .rows = s->rows->t,
        .pos = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, s->N), s->pos)->t,
        .seq = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, s->N), s->seq)->t,
        .start = thing_ints(l, thing_new(l, CAIRN_I32, 0, 1, b->B), s->start)->t,
    };
}

/* The same keys scattered over pages of `page` rows in a random order. */
static struct cairn_keys paged(struct lab *l, const struct batch *b, const struct setup *s, int page)
{
    int P = 0, used = 0, order[256];
    struct cairn_keys k = s->keys;
    struct thing *rows, *pages;

    for (int i = 0; i < b->B; i++) {
        P = (b->lengths[i] + page - 1) / page > P ? (b->lengths[i] + page - 1) / page : P;
        used += (b->lengths[i] + page - 1) / page;
    }
    assert_true(used < 250);
    for (int i = 0; i < used + 2; i++)
        order[i] = i;
    for (int i = used + 1; i > 0; i--) {
        int j = lab_int(l, 0, i), t = order[i];

        order[i] = order[j];
        order[j] = t;
    }
    rows = thing_new(l, LAB_ACT, padding(s->W, 1), 2, (used + 2) * page, s->W);
    pages = thing_new(l, CAIRN_I32, 0, 2, b->B, P);
    used = 0;
    for (int i = 0; i < b->B; i++)
        for (int p = 0; p < P; p++) {
            int id = p * page < b->lengths[i] ? order[used++] : -7; /* entries that nobody may look at */

            *thing_i(pages, i * P + p) = id;
            for (int r = 0; r < page && p * page + r < b->lengths[i]; r++)
                memcpy(thing_f(rows, (int64_t)(id * page + r) * s->W),
                       thing_f(s->rows, (int64_t)(s->start[i] + p * page + r) * s->W), (size_t)s->W * sizeof(float));
        }
    thing_up(l, rows);
    thing_up(l, pages);
    k.rows = rows->t;
    k.start.buf = NULL;
    k.pages = pages->t;
    k.page = page;
    return k;
}

#endif

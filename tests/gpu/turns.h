/* turns.h - one training pass of bench_model.c's subject over random rows, and medians. Included by that program alone. */
#ifndef TESTS_GPU_TURNS_H
#define TESTS_GPU_TURNS_H

#include "tape.h"

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

struct turn {
    struct rows rows;
    struct cairn_buffer *buf;
    struct cairn_tensor up; /* dlogprob */
    int add;                /* gradients are cleared and added to */
};

static enum cairn_status turn_make(struct turn *t, struct subject *s, int seqs, int64_t each, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t n = seqs * each;
    float *h = malloc((size_t)n * sizeof *h + 1);

    memset(t, 0, sizeof *t);
    if (!h)
        TRY(CAIRN_NOMEM(err));
    TRY(subject_train_room(s, n, seqs, err));
    TRY(rows_random(&t->rows, s, seqs, each, err));
    TRY(cairn_buffer_create(s->k.dev, (size_t)n * sizeof *h, &t->buf, err));
    TRY(cairn_tensor_view(&t->up, t->buf, 0, CAIRN_F32, 1, &n, err));
    for (int64_t i = 0; i < n; i++)
        h[i] = t->rows.target[i] < 0 ? 0 : -1 / (float)n;
    TRY(cairn_tensor_set(&s->k.stream, &t->up, h, (size_t)n * sizeof *h, err));
out:
    free(h);
    return st;
}

static void turn_free(struct turn *t)
{
    rows_free(&t->rows);
    cairn_buffer_destroy(t->buf);
}

static enum cairn_status turn_run(struct turn *t, struct subject *s, struct cairn_scores *scores, double *forward_s,
                                  struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    double begin = cairn_now_s();

    TRY(cairn_forward(s->pass, &t->rows.b, t->rows.target, 1, scores, err));
    if (forward_s) {
        TRY(cairn_stream_wait(&s->k.stream, err));
        *forward_s = cairn_now_s() - begin;
    }
    if (t->add)
        TRY(cairn_tensor_zero(&s->k.stream, &s->grads.flat, err));
    else
        cairn_store_renew(&s->grads);
    TRY(cairn_backward(s->pass, &t->up, NULL, s->has_adapter ? NULL : &s->grads, s->has_adapter ? &s->grads : NULL, err));
    TRY(cairn_stream_wait(&s->k.stream, err));
out:
    return st;
}

#endif

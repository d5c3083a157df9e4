/* right_terms.c - how large a sum is by its terms, where little may be left of them: of the lines of an op, or of one line of a product. See
 * right_impl.h.
 *
 * n terms of either sign add up to about the root of the sum of their squares, and so do their roundings: an fp32 sum is as exact, relative to that
 * root, as sums of its kind are relative to themselves. Where the terms of a whole line cancel, the line is smaller than the root, its roundings are
 * not.
 *
 * In Kimi delta attention these lines are not rare: a head has few keys, and a query that stands upright on what they wrote reads next to nothing, in
 * all values at once. There
 *     o_j = sum_i q_i S_ij = sum_i sum_s q_i k~_si d_sj        (kernels.h; s: this row and earlier ones, k~_s: its key, decayed until this row)
 * so beside S goes, through the same recurrence, the sum of the squares of its terms, which decays with the square: a^2.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/convert.h"
#include "tools/check/right_impl.h"

struct given { /* an input of the op, on the host */
    const struct cairn_tensor *t;
    char *p;
};

static enum cairn_status given_get(struct given *x, struct right *r, const struct cairn_tensor *t, struct cairn_error *err)
{
    size_t n = cairn_right_extent(t);

    x->t = t;
    x->p = malloc(n + 1);
    return x->p ? cairn_right_bytes(&r->ref, t->buf, t->offset, n, x->p, err) : CAIRN_NOMEM(err);
}

/* Element j of head h of row n; of a tensor without heads, or without channels, 0 for what it lacks. */
static double at(const struct given *x, int64_t n, int64_t h, int64_t j)
{
    const int64_t where[3] = {n, h, j};
    int64_t i = 0;

    for (int d = 0; d < x->t->ndim; d++)
        i += where[d] * x->t->stride[d];
    return cairn_value(x->t->dtype, x->p, i);
}

static int32_t place(const struct given *x, int64_t n)
{
    int32_t v;

    memcpy(&v, x->p + (size_t)(n * x->t->stride[0]) * sizeof v, sizeof v);
    return v;
}

/* x / sqrt(sum x^2 + eps) * scale of head h of row n. */
static void normal(double *out, const struct given *x, int64_t n, int64_t h, int64_t D, double eps, double scale)
{
    double sum = eps;

    for (int64_t i = 0; i < D; i++)
        sum += at(x, n, h, i) * at(x, n, h, i);
    for (int64_t i = 0; i < D; i++)
        out[i] = at(x, n, h, i) / sqrt(sum) * scale;
}

/* Of head h, rows 0 .. N-1 of whole sequences: size[n * H + h], the largest root over the head's values. room: (2 D + 3, D). */
static void kda_head(double *size, const struct cairn_kda *a, const struct given in[7], int64_t h, double *room)
{
    const struct given *q = &in[0], *k = &in[1], *v = &in[2], *g = &in[3], *beta = &in[4], *pos = &in[5], *seq = &in[6];
    int64_t N = q->t->dim[0], H = q->t->dim[1], D = q->t->dim[2];
    double *S = room, *squares = S + D * D, *qh = squares + D * D, *kh = qh + D, *decay = kh + D;

    for (int64_t n = 0; n < N; n++) {
        if (!n || place(seq, n) != place(seq, n - 1) || place(pos, n) != place(pos, n - 1) + 1)
            memset(S, 0, (size_t)(2 * D * D) * sizeof *S);
        normal(qh, q, n, h, D, (double)a->eps, (double)a->scale);
        normal(kh, k, n, h, D, (double)a->eps, 1);
        for (int64_t i = 0; i < D; i++)
            decay[i] = exp(at(g, n, h, i));
        size[n * H + h] = 0;
        for (int64_t j = 0; j < D; j++) {
            double read = 0, d, sum = 0;

            for (int64_t i = 0; i < D; i++)
                read += S[i * D + j] * decay[i] * kh[i];
            d = at(beta, n, h, 0) * (at(v, n, h, j) - read);
            for (int64_t i = 0; i < D; i++) {
                S[i * D + j] = S[i * D + j] * decay[i] + kh[i] * d;
                squares[i * D + j] = squares[i * D + j] * decay[i] * decay[i] + kh[i] * d * kh[i] * d;
                sum += qh[i] * qh[i] * squares[i * D + j];
            }
            size[n * H + h] = fmax(size[n * H + h], sqrt(sum));
        }
    }
}

static enum cairn_status kda_terms(struct right *r, const struct cairn_kda *a, double **size, struct cairn_error *err)
{
    const struct cairn_tensor *const of[] = {&a->q, &a->k, &a->v, &a->g, &a->beta, &a->pos, &a->seq};
    struct given in[7] = {{0}};
    int64_t N = a->q.dim[0], H = a->q.dim[1], D = a->q.dim[2];
    double *room = malloc((size_t)((2 * D + 3) * D) * sizeof *room);
    enum cairn_status st = CAIRN_OK;

    *size = malloc((size_t)(N * H) * sizeof **size + 1);
    if (!room || !*size)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < 7; i++)
        TRY(given_get(&in[i], r, of[i], err));
    for (int64_t h = 0; h < H; h++)
        kda_head(*size, a, in, h, room);
out:
    for (int i = 0; i < 7; i++)
        free(in[i].p);
    free(room);
    return st;
}

enum cairn_status cairn_right_terms(struct right *r, const struct cairn_trace_call *c, const struct cairn_op_member *m, double **size,
                                    struct cairn_error *err)
{
    const struct cairn_kda *kda = (const struct cairn_kda *)(const void *)r->args.bytes;

    *size = NULL;
    if (c->op == CAIRN_OP_kda && strcmp(m->name, "o") == 0 && !kda->state.buf)
        return kda_terms(r, kda, size, err);
    return CAIRN_OK;
}

/* ---- products ------------------------------------------------------------------------------------------------------------- */

/* One line of a product: row `row` of y. Of x and w that have a batch or groups in front, those of xb and wb; -1: they have none. */
struct product_line {
    enum cairn_form form;
    const struct given *x, *w;
    int64_t xb, wb, row, n, begin, end; /* n: values of the line; begin, end: the terms of each */
};

static double element(const struct given *x, int64_t batch, int64_t i, int64_t j)
{
    return batch < 0 ? at(x, i, j, 0) : at(x, batch, i, j);
}

/* The largest root over the line's values of the sum of the squares of their terms. */
static double product_size(const struct product_line *l)
{
    double most = 0;

    for (int64_t j = 0; j < l->n; j++) {
        double sum = 0;

        for (int64_t t = l->begin; t < l->end; t++) {
            double x = l->form == CAIRN_TN ? element(l->x, l->xb, t, l->row) : element(l->x, l->xb, l->row, t),
                   w = l->form == CAIRN_NT ? element(l->w, l->wb, j, t) : element(l->w, l->wb, t, j);

            sum += x * w * (x * w);
        }
        most = fmax(most, sqrt(sum));
    }
    return most;
}

static double matmul_line(const struct cairn_matmul *a, const struct given *x, const struct given *w, int64_t line)
{
    int batched = a->y.ndim == 3;
    int64_t rows = a->y.dim[batched], b = batched ? line / rows : -1;
    const struct product_line l = {.form = a->form, .x = x, .w = w, .xb = b, .wb = b, .row = line % rows, .n = a->y.dim[1 + batched],
                                   .end = a->x.dim[a->form == CAIRN_TN ? batched : 1 + batched]};

    return fabs((double)a->alpha) * product_size(&l);
}

static double grouped_line(const struct cairn_matmul_grouped *a, const struct given *x, const struct given *w, const struct given *offsets,
                           int64_t line)
{
    struct product_line l = {.form = a->form, .x = x, .w = w, .xb = -1, .wb = 0, .row = line, .n = a->y.dim[a->y.ndim - 1], .end = a->x.dim[1]};

    if (a->form == CAIRN_TN) {
        int64_t group = line / a->y.dim[1];

        l.wb = -1;
        l.row = line % a->y.dim[1];
        l.begin = place(offsets, group);
        l.end = place(offsets, group + 1);
    } else {
        while (place(offsets, l.wb + 1) <= line)
            l.wb++;
    }
    return fabs((double)a->alpha) * product_size(&l);
}

enum cairn_status cairn_right_line_terms(struct right *r, const struct cairn_trace_call *c, int64_t line, double *size, struct cairn_error *err)
{
    const struct cairn_matmul *a = (const struct cairn_matmul *)(const void *)r->args.bytes;
    const struct cairn_matmul_grouped *g = (const struct cairn_matmul_grouped *)(const void *)r->args.bytes;
    struct given x = {0}, w = {0}, offsets = {0};
    enum cairn_status st = CAIRN_OK;

    *size = 0;
    if (c->op != CAIRN_OP_matmul && c->op != CAIRN_OP_matmul_grouped)
        return CAIRN_OK;
    TRY(given_get(&x, r, c->op == CAIRN_OP_matmul ? &a->x : &g->x, err));
    TRY(given_get(&w, r, c->op == CAIRN_OP_matmul ? &a->w : &g->w, err));
    if (c->op == CAIRN_OP_matmul) {
        *size = matmul_line(a, &x, &w, line);
    } else {
        TRY(given_get(&offsets, r, &g->offsets, err));
        *size = grouped_line(g, &x, &w, &offsets, line);
    }
out:
    free(x.p);
    free(w.p);
    free(offsets.p);
    return st;
}

/* optimizer.c - one update: gradients together, norm, clip, AdamW over two flat runs, publication.
 *
 * The norm is taken piece by piece (shares.h; one sum of squares each, all in one call, added ascending on the host in double), so
 * that it does not depend on who has which piece. Gradients travel in stretches, so that what is in the mail is bounded whatever
 * the model's size. Clipping multiplies by grad_clip / norm where norm > grad_clip; it goes into the update as grad_scale and the
 * gradients stay as they are. Two calls of AdamW: with weight decay and without (params.c lays them out so).
 *
 * Touches no tensor memory: ops and host copies of the sums only.
 */
#include "model/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/planted.h"

#define STRETCH       ((int64_t)1 << 22) /* elements for all ranks together that are under way at a time */
#define STRETCH_LEAST ((int64_t)1 << 16) /* for each of them: below, messages are too small */

/* o->pieces: this rank's, for op sumsq. */
static enum cairn_status pieces_create(struct cairn_optimizer *o, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t first = cairn_shares_first(&o->shares, o->ranks, o->rank),
            dim[2] = {cairn_shares_first(&o->shares, o->ranks, o->rank + 1) - first, 2}, *h = NULL;
    size_t bytes = (size_t)dim[0] * 2 * sizeof *h;
    struct cairn_tensor t;

    if (!dim[0])
        return CAIRN_OK;
    h = malloc(bytes);
    if (!h)
        return CAIRN_NOMEM(err);
    for (int64_t i = 0; i < dim[0]; i++) {
        h[2 * i] = o->shares.piece[first + i].at;
        h[2 * i + 1] = o->shares.piece[first + i].n;
    }
    TRY(cairn_buffer_create(o->k->dev, bytes, &o->pieces, err));
    TRY(cairn_tensor_view(&t, o->pieces, 0, CAIRN_I64, 2, dim, err));
    TRY(cairn_tensor_set(&o->k->stream, &t, h, bytes, err));
out:
    free(h);
    return st;
}

enum cairn_status cairn_optimizer_create_shared(struct cairn_optimizer *out, const struct cairn_param_table *t,
                                                struct cairn_compute *k, struct cairn_channel *channel, struct cairn_error *err)
{
    const struct cairn_group *g = channel ? cairn_channel_group(channel) : NULL;
    enum cairn_status st = CAIRN_OK;
    struct cairn_optimizer o = {.k = k, .table = t, .ranks = 1};

    if (g && g->size > 1) {
        o.channel = channel;
        o.rank = g->rank;
        o.ranks = g->size;
    }
    TRY(cairn_shares_create(&o.shares, t, err));
    o.begin = cairn_shares_begin(&o.shares, o.ranks, o.rank);
    o.end = cairn_shares_begin(&o.shares, o.ranks, o.rank + 1);
    for (int i = 0; i < 3; i++) {
        struct cairn_store *s = i == 0 ? &o.master : i == 1 ? &o.m : &o.v;

        TRY(o.ranks > 1 ? cairn_store_create_share(s, t, &o.shares, o.ranks, o.rank, k->dev, err)
                        : cairn_store_create(s, t, k->dev, 1, err));
    }
    TRY(cairn_buffer_create(k->dev, ((size_t)o.shares.pieces + 1) * sizeof(double), &o.sums, err));
    TRY(pieces_create(&o, err));
    if (o.ranks > 1) {
        int64_t widest = 1;

        for (int r = 0; r < o.ranks; r++) {
            int64_t n = cairn_shares_begin(&o.shares, o.ranks, r + 1) - cairn_shares_begin(&o.shares, o.ranks, r);

            widest = n > widest ? n : widest;
        }
        o.stretch = STRETCH / o.ranks > STRETCH_LEAST ? STRETCH / o.ranks : STRETCH_LEAST;
        o.stretch = o.stretch < widest ? o.stretch : widest;
        TRY(cairn_buffer_create(k->dev, 2 * (size_t)o.ranks * (size_t)o.stretch * sizeof(float), &o.mail, err));
    }
    *out = o;
    memset(&o, 0, sizeof(o));
out:
    cairn_optimizer_free(&o);
    return st;
}

enum cairn_status cairn_optimizer_create(struct cairn_optimizer *out, const struct cairn_param_table *t, struct cairn_compute *k,
                                         struct cairn_error *err)
{
    return cairn_optimizer_create_shared(out, t, k, NULL, err);
}

void cairn_optimizer_free(struct cairn_optimizer *o)
{
    if (!o)
        return;
    cairn_store_free(&o->master);
    cairn_store_free(&o->m);
    cairn_store_free(&o->v);
    cairn_shares_free(&o->shares);
    cairn_buffer_destroy(o->sums);
    cairn_buffer_destroy(o->pieces);
    cairn_buffer_destroy(o->mail);
    memset(o, 0, sizeof(*o));
}

/* A stretch of the flat run that one tensor of weights covers: all of it, or of narrow weights what is narrow and what stays f32. */
struct part {
    int64_t begin, end;
    struct cairn_tensor t;
};

static int parts_of(const struct cairn_optimizer *o, const struct cairn_store *weights, struct part *part)
{
    int64_t all = (int64_t)(o->table->trainable_bytes / 4),
            mid = (int64_t)((cairn_param_table_kept(o->table) - o->table->trainable_begin) / 4);

    if (mid == all || !weights->kept.buf) {
        part[0] = (struct part){0, all, weights->flat};
        return all > 0;
    }
    part[0] = (struct part){0, mid, weights->flat};
    part[1] = (struct part){mid, all, weights->kept};
    return 2;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* What lies between begin and end of this rank's share and of the part: n elements, of the masters and of the weights. */
static int64_t meet(const struct cairn_optimizer *o, const struct part *part, int64_t begin, int64_t end, struct cairn_tensor *master,
                    struct cairn_tensor *weights)
{
    int64_t n;

    begin = larger(larger(begin, o->begin), part->begin);
    n = smaller(smaller(end, o->end), part->end) - begin;
    if (n <= 0)
        return 0;
    *master = cairn_tensor_slice(&o->master.flat, 0, begin - o->begin, n);
    *weights = cairn_tensor_slice(&part->t, 0, begin - part->begin, n);
    return n;
}

enum cairn_status cairn_optimizer_start(struct cairn_optimizer *o, const struct cairn_store *weights, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_stream *s = &o->k->stream;

    if (o->end > o->begin) {
        struct cairn_cast a = {.round_to = -1};
        struct part part[2];
        int n = parts_of(o, weights, part);

        for (int i = 0; i < n; i++)
            if (meet(o, &part[i], o->begin, o->end, &a.dst, &a.src))
                TRY(o->k->ops.cast(s, &a, err));
        TRY(cairn_tensor_zero(s, &o->m.flat, err));
        TRY(cairn_tensor_zero(s, &o->v.flat, err));
        TRY(cairn_stream_wait(s, err));
    }
    o->updates = 0;
out:
    return st;
}

/* Elements of the flat run up to the first parameter that `after` accepts. */
static int64_t run_until(const struct cairn_param_table *t, int (*after)(const struct cairn_param *))
{
    size_t end = t->trainable_bytes;

    for (int i = 0; i < t->count; i++) {
        const struct cairn_param *p = &t->param[i];

        if (!p->frozen && after(p) && p->offset - t->trainable_begin < end)
            end = p->offset - t->trainable_begin;
    }
    return (int64_t)(end / 4);
}

static int is_f32(const struct cairn_param *p)
{
    return p->keep_f32;
}

static int no_decay(const struct cairn_param *p)
{
    return !p->decay || p->keep_f32;
}

/* Rows of each rank in stretch `at` of every share, and their sum. */
static int64_t stretch_rows(const struct cairn_optimizer *o, int64_t at, int64_t *rows)
{
    int64_t sum = 0;

    for (int r = 0; r < o->ranks; r++) {
        int64_t n = cairn_shares_begin(&o->shares, o->ranks, r + 1) - cairn_shares_begin(&o->shares, o->ranks, r) - at;

        rows[r] = n < 0 ? 0 : n < o->stretch ? n : o->stretch;
        sum += rows[r];
    }
    return sum;
}

/* This rank's share of grads becomes the sum over ranks, added in rank order. */
static enum cairn_status gradients_together(struct cairn_optimizer *o, struct cairn_store *grads, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_stream *s = &o->k->stream;
    int64_t *rows = calloc(2 * (size_t)o->ranks, sizeof *rows), *own = rows ? rows + o->ranks : NULL, all;
    struct cairn_tensor out, in;

    if (!rows)
        TRY(CAIRN_NOMEM(err));
    for (int64_t at = 0; (all = stretch_rows(o, at, rows)) > 0; at += o->stretch) {
        int64_t n = rows[o->rank], place = 0, got = n * o->ranks;

        TRY(cairn_tensor_view(&out, o->mail, 0, CAIRN_F32, 1, &all, err));
        TRY(cairn_tensor_view(&in, o->mail, (size_t)o->ranks * (size_t)o->stretch * sizeof(float), CAIRN_F32, 1, &got, err));
        for (int r = 0; r < o->ranks; r++) {
            const struct cairn_tensor to = cairn_tensor_slice(&out, 0, place, rows[r]);
            const struct cairn_tensor from =
                cairn_tensor_slice(&grads->flat, 0, rows[r] ? cairn_shares_begin(&o->shares, o->ranks, r) + at : 0, rows[r]);

            if (rows[r])
                TRY(cairn_tensor_copy(s, &to, &from, err));
            place += rows[r];
            own[r] = n;
        }
        TRY(cairn_channel_alltoallv(o->channel, s, "gradients", &in, own, &out, rows, err));
        for (int r = 0; n && r < o->ranks; r++) {
            const struct cairn_tensor x = cairn_tensor_slice(&in, 0, r * n, n),
                                      y = cairn_tensor_slice(&grads->flat, 0, o->begin + at, n);

            if (r)
                TRY(o->k->ops.axpby(s, &(struct cairn_axpby){.x = x, .y = y, .a = 1, .b = 1}, err));
            else
                TRY(cairn_tensor_copy(s, &y, &x, err));
        }
    }
out:
    free(rows);
    return st;
}

/* Sums of the pieces of all ranks into h (pieces). */
static enum cairn_status piece_sums(struct cairn_optimizer *o, const struct cairn_store *grads, double *h, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t pieces = o->shares.pieces, first = cairn_shares_first(&o->shares, o->ranks, o->rank),
            end = cairn_shares_first(&o->shares, o->ranks, o->rank + 1), *rows = calloc((size_t)o->ranks, sizeof *rows);
    struct cairn_tensor all;

    if (!rows)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_tensor_view(&all, o->sums, 0, CAIRN_F64, 1, &pieces, err));
    TRY(cairn_tensor_zero(&o->k->stream, &all, err));
    if (end > first) {
        const int64_t dim[2] = {end - first, 2};
        struct cairn_sumsq a = {.x = grads->flat, .out = cairn_tensor_slice(&all, 0, first, end - first)};

        TRY(cairn_tensor_view(&a.pieces, o->pieces, 0, CAIRN_I64, 2, dim, err));
        TRY(o->k->ops.sumsq(&o->k->stream, &a, err));
    }
    if (o->ranks > 1) {
        const struct cairn_tensor own = cairn_tensor_slice(&all, 0, first, end - first);

        for (int r = 0; r < o->ranks; r++)
            rows[r] = cairn_shares_first(&o->shares, o->ranks, r + 1) - cairn_shares_first(&o->shares, o->ranks, r);
        TRY(cairn_channel_allgatherv(o->channel, &o->k->stream, "squares of gradients", &all, &own, rows, err));
    }
    TRY(cairn_tensor_get(&o->k->stream, &all, h, (size_t)pieces * sizeof *h, err));
out:
    free(rows);
    return st;
}

static enum cairn_status gradient_norm(struct cairn_optimizer *o, const struct cairn_store *grads, double *norm,
                                       struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    double *h = malloc(((size_t)o->shares.pieces + 1) * sizeof(*h)), sum = 0;
    int bad = o->table->count;

    if (!h)
        TRY(CAIRN_NOMEM(err));
    TRY(piece_sums(o, grads, h, err));
    for (int64_t q = 0; q < o->shares.pieces; q++) {
        if (!isfinite(h[q]) && o->shares.piece[q].param < bad)
            bad = o->shares.piece[q].param;
        sum += h[q];
    }
    if (bad < o->table->count)
        TRY(cairn_fail(err, CAIRN_ENUMERIC, "the gradient of %s is not finite", o->table->param[bad].name));
    *norm = sqrt(sum);
out:
    free(h);
    return st;
}

/* begin, end: of the flat run; what of it is this rank's. */
static enum cairn_status adamw(struct cairn_optimizer *o, struct cairn_store *grads, int64_t begin, int64_t end,
                               struct cairn_adamw a, struct cairn_error *err)
{
    int64_t n;

    begin = begin > o->begin ? begin : o->begin;
    n = (end < o->end ? end : o->end) - begin;
    if (n <= 0)
        return CAIRN_OK;
    a.p = cairn_tensor_slice(&o->master.flat, 0, begin - o->begin, n);
    a.g = cairn_tensor_slice(&grads->flat, 0, begin, n);
    a.m = cairn_tensor_slice(&o->m.flat, 0, begin - o->begin, n);
    a.v = cairn_tensor_slice(&o->v.flat, 0, begin - o->begin, n);
    return o->k->ops.adamw(&o->k->stream, &a, err);
}

enum cairn_status cairn_optimizer_step(struct cairn_optimizer *o, const struct cairn_optimizer_opts *opts,
                                       struct cairn_store *grads, struct cairn_store *weights, double *norm, double *lr,
                                       struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t t = o->updates + 1, all = (int64_t)(o->table->trainable_bytes / 4), mid = run_until(o->table, no_decay);
    double rate = opts->learning_rate, length = 0, scale = 1;
    struct cairn_adamw a;

    if (grads->table != o->table || weights->table != o->table)
        TRY(CAIRN_BUG(err, "stores of another table"));
    if (o->ranks > 1)
        TRY(gradients_together(o, grads, err));
    TRY(gradient_norm(o, grads, &length, err));
    if (opts->warmup_updates > 0 && t < opts->warmup_updates)
        rate *= (double)t / (double)opts->warmup_updates;
    if (opts->grad_clip > 0 && length > opts->grad_clip)
        scale = opts->grad_clip / length;
    a = (struct cairn_adamw){.lr = (float)rate,
                             .beta1 = (float)opts->beta1,
                             .beta2 = (float)opts->beta2,
                             .eps = (float)opts->eps,
                             .weight_decay = (float)opts->weight_decay,
                             .grad_scale = (float)scale,
                             .t = t};
    TRY(adamw(o, grads, 0, mid, a, err));
    a.weight_decay = 0;
    TRY(adamw(o, grads, mid, all, a, err));
    TRY(cairn_optimizer_publish(o, opts->publish, weights, err));
    o->updates = t;
    if (norm)
        *norm = length;
    if (lr)
        *lr = rate;
out:
    return st;
}

/* Every rank's share of the published weights to all. */
static enum cairn_status weights_together(struct cairn_optimizer *o, struct cairn_store *weights, struct cairn_error *err)
{
    int64_t *rows = calloc((size_t)o->ranks, sizeof *rows);
    struct part part[2];
    int n = parts_of(o, weights, part);
    enum cairn_status st = CAIRN_OK;

    if (!rows)
        return CAIRN_NOMEM(err);
    for (int i = 0; i < n; i++) {
        int64_t before = 0;
        struct cairn_tensor own;

        for (int r = 0; r < o->ranks; r++) {
            int64_t begin = larger(cairn_shares_begin(&o->shares, o->ranks, r), part[i].begin),
                    end = smaller(cairn_shares_begin(&o->shares, o->ranks, r + 1), part[i].end);

            rows[r] = end > begin ? end - begin : 0;
            before += r < o->rank ? rows[r] : 0;
        }
        own = cairn_tensor_slice(&part[i].t, 0, before, rows[o->rank]);
        TRY(cairn_channel_allgatherv(o->channel, &o->k->stream, "published weights", &part[i].t, &own, rows, err));
    }
out:
    free(rows);
    return st;
}

enum cairn_status cairn_optimizer_publish(struct cairn_optimizer *o, enum cairn_dtype publish, struct cairn_store *weights,
                                          struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t all = (int64_t)(o->table->trainable_bytes / 4), mid = run_until(o->table, is_f32);
    struct part part[2];
    int n = parts_of(o, weights, part);

    if (weights->table != o->table)
        TRY(CAIRN_BUG(err, "weights of another table"));
    if (cairn_planted("masters-not-rounded"))
        publish = CAIRN_F32;
    if (publish != CAIRN_F32 && publish != CAIRN_BF16 && publish != CAIRN_F16)
        TRY(CAIRN_BUG(err, "weights are published as f32, bf16 or f16"));
    for (int i = 0; i < n; i++)
        for (int f32 = 0; f32 < 2; f32++) {
            struct cairn_cast a = {.round_to = f32 || publish == CAIRN_F32 ? -1 : (int)publish};

            if (meet(o, &part[i], f32 ? mid : 0, f32 ? all : mid, &a.src, &a.dst))
                TRY(o->k->ops.cast(&o->k->stream, &a, err));
        }
    if (o->ranks > 1 && all)
        TRY(weights_together(o, weights, err));
out:
    return st;
}

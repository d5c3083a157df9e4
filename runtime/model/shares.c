/* shares.c - pieces of a flat run and who has them (shares.h). */
#include "model/shares.h"

#include <stdlib.h>
#include <string.h>

#define PIECE_LEAST 4096 /* elements: below, pieces cost more than they even out */
#define PIECES_MOST 4096 /* about so many of a large table */

static int by_place(const void *a, const void *b)
{
    const struct cairn_piece *x = a, *y = b;

    return x->at < y->at ? -1 : x->at > y->at;
}

enum cairn_status cairn_shares_create(struct cairn_shares *s, const struct cairn_param_table *t, struct cairn_error *err)
{
    int64_t total = (int64_t)(t->trainable_bytes / 4), most = total / PIECES_MOST > PIECE_LEAST ? total / PIECES_MOST : PIECE_LEAST,
            cap = 0;

    memset(s, 0, sizeof *s);
    s->total = total;
    for (int pass = 0; pass < 2; pass++) {
        s->pieces = 0;
        for (int i = 0; i < t->count; i++) {
            const struct cairn_param *p = &t->param[i];
            int64_t row = p->dim[0] ? cairn_param_count(p) / p->dim[0] : 0, rows = row && most / row ? most / row : 1;

            if (p->frozen)
                continue;
            if (p->ndim < 2) /* a vector is one piece: its rows are elements, and shards cut those at whole tiles */
                rows = p->dim[0];
            for (int64_t at = 0; at < p->dim[0]; at += rows, s->pieces++) {
                int64_t n = p->dim[0] - at < rows ? p->dim[0] - at : rows;

                if (pass)
                    s->piece[s->pieces] =
                        (struct cairn_piece){i, at, n, (int64_t)((p->offset - t->trainable_begin) / 4) + at * row, n * row};
            }
        }
        if (!pass) {
            cap = s->pieces;
            s->piece = calloc((size_t)cap + 1, sizeof *s->piece);
            if (!s->piece)
                return CAIRN_NOMEM(err);
        }
    }
    if (s->pieces)
        qsort(s->piece, (size_t)s->pieces, sizeof *s->piece, by_place);
    return CAIRN_OK;
}

void cairn_shares_free(struct cairn_shares *s)
{
    free(s->piece);
    memset(s, 0, sizeof *s);
}

int64_t cairn_shares_first(const struct cairn_shares *s, int ranks, int r)
{
    int64_t lo = 0, hi = s->pieces, want = s->total / ranks * r + s->total % ranks * r / ranks;

    if (r >= ranks)
        return s->pieces;
    while (lo < hi) { /* first piece at or behind the even cut */
        int64_t mid = lo + (hi - lo) / 2;

        if (s->piece[mid].at < want)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

int64_t cairn_shares_begin(const struct cairn_shares *s, int ranks, int r)
{
    int64_t first = cairn_shares_first(s, ranks, r);

    return r <= 0 ? 0 : first < s->pieces ? s->piece[first].at : s->total;
}

enum cairn_status cairn_store_create_share(struct cairn_store *out, const struct cairn_param_table *t,
                                           const struct cairn_shares *shares, int ranks, int r, struct cairn_device *dev,
                                           struct cairn_error *err)
{
    int64_t begin = cairn_shares_begin(shares, ranks, r), words = cairn_shares_begin(shares, ranks, r + 1) - begin;
    struct cairn_store s = {.table = t};
    struct cairn_stream stream = {0};
    enum cairn_status st = CAIRN_OK;
    int streaming = 0;

    s.tensor = calloc((size_t)t->count + 1, sizeof *s.tensor);
    s.row = calloc((size_t)t->count + 1, sizeof *s.row);
    if (!s.tensor || !s.row)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_buffer_create(dev, words ? (size_t)words * 4 : 64, &s.buf, err));
    TRY(cairn_tensor_view(&s.flat, s.buf, 0, CAIRN_F32, 1, &words, err));
    for (int64_t q = cairn_shares_first(shares, ranks, r); q < cairn_shares_first(shares, ranks, r + 1); q++) {
        const struct cairn_piece *c = &shares->piece[q];
        const struct cairn_param *p = &t->param[c->param];
        struct cairn_tensor *x = &s.tensor[c->param];
        int64_t dim[CAIRN_MAX_DIMS] = {c->rows};

        if (x->buf) {
            x->dim[0] += c->rows; /* the next rows follow in memory */
            continue;
        }
        for (int d = 1; d < p->ndim; d++)
            dim[d] = p->dim[d];
        TRY(cairn_tensor_view(x, s.buf, (size_t)(c->at - begin) * 4, CAIRN_F32, p->ndim, dim, err));
        s.row[c->param] = c->row;
    }
    TRY(cairn_stream_create(dev, &stream, err));
    streaming = 1;
    if (words)
        TRY(cairn_tensor_zero(&stream, &s.flat, err));
    TRY(cairn_stream_wait(&stream, err));
    *out = s;
    memset(&s, 0, sizeof s);
out:
    if (streaming)
        cairn_stream_destroy(&stream);
    cairn_store_free(&s);
    return st;
}

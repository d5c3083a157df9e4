/* reader_box.c - boxes of tensors. A box is cut along the parts that the manifest gives; of each part, stretches that lie without
 * gaps in the file are read in blocks of whole tiles, checked, and put in place.
 */
#include "ckpt/reader_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "ckpt/strides.h"

#define STAGE  ((int64_t)2 << 20) /* bytes of a block that goes through the stage, which has two tiles more */
#define AHEAD  ((int64_t)2 << 20) /* bytes of a stretch, at most, that something is read ahead behind; longer ones busy the crew */
#define DIRECT ((int64_t)512 << 10) /* bytes of a block that is read into place */

/* One part that is being read. */
struct source {
    const struct cairn_slice *slice;
    struct cairn_tiling tiling;
    struct cairn_reader_shard *shard;
    const struct cairn_digest *table; /* of this part's tiles; NULL: the whole file was checked */
};

static enum cairn_status source_open(struct cairn_reader *r, const struct cairn_part *p, struct source *s, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    s->slice = p->slice;
    s->shard = &r->shard[p->shard];
    s->table = NULL;
    TRY(cairn_tiling_init(&s->tiling, p->slice, r->dir, err));
    TRY(cairn_reader_shard_open(r, p->shard, err));
    if (p->slice->first < 0) {
        TRY(cairn_reader_shard_check(r, p->shard, err));
    } else {
        TRY(cairn_reader_shard_table(r, p->shard, err));
        s->table = s->shard->table + p->slice->first;
    }
out:
    return st;
}

/* Rounds [at, end) of a part out to whole tiles. */
static void round_out(const struct source *s, int64_t *at, int64_t *end, int64_t *first, int64_t *n)
{
    int64_t last;

    *first = cairn_tiling_of_byte(&s->tiling, *at);
    last = cairn_tiling_of_byte(&s->tiling, *end - 1);
    *n = last - *first + 1;
    cairn_tiling_tile(&s->tiling, *first, at);
    *end = cairn_tiling_tile(&s->tiling, last, &last);
    *end += last;
}

/* Has bytes [at, end) of the part, which are `n` whole tiles from `first` on, read to p and checked by the crew. */
static void read_tiles(struct cairn_reader *r, const struct source *s, int64_t at, int64_t end, int64_t first, int64_t n, int ahead,
                       void *p)
{
    struct cairn_crew_job job = {.fd = s->shard->fd,
                                 .path = s->shard->path,
                                 .at = s->slice->at + at,
                                 .n = end - at,
                                 .h_dst = p,
                                 .tiling = s->tiling,
                                 .table = s->table,
                                 .first = first,
                                 .tiles = n};

    if (ahead && cairn_ahead_take(r->ahead, job.fd, job.path, s->shard->size, job.at, job.n, p))
        job.there = 1;
    else
        r->bytes += job.n;
    cairn_crew_give(r->crew, &job);
}

/* Bytes [at, at + n) of the part, n <= STAGE, into the stage; *p is where byte `at` lies. */
static enum cairn_status fetch(struct cairn_reader *r, const struct source *s, int64_t at, int64_t n, const unsigned char **p,
                               struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t begin = at, end = at + n, first = 0, tiles = 0;

    if (!r->stage && !(r->stage = malloc((size_t)STAGE + 2 * CAIRN_TILE_MAX)))
        return CAIRN_NOMEM(err);
    if (s->table)
        round_out(s, &begin, &end, &first, &tiles);
    read_tiles(r, s, begin, end, first, tiles, 1, r->stage);
    TRY(cairn_crew_wait(r->crew, err));
    *p = r->stage + (at - begin);
out:
    return st;
}

/* Bytes [at, at + n) of the part straight into dst. */
static enum cairn_status read_direct(struct cairn_reader *r, const struct source *s, int64_t at, int64_t n, unsigned char *dst,
                                     struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const unsigned char *p;
    int ahead = n <= AHEAD;

    while (n > 0) {
        int64_t begin = at, end = at + (n < DIRECT ? n : DIRECT), first = 0, tiles = 0, stop = end;

        if (s->table) {
            round_out(s, &begin, &end, &first, &tiles);
            if (begin < at || (end > stop && end > at + n)) { /* a cut tile: through the stage, alone if it is in front */
                if (begin < at) {
                    end = cairn_tiling_tile(&s->tiling, first, &begin);
                    end += begin;
                    stop = end < at + n ? end : at + n;
                } else { /* at the end: all tiles before it first */
                    int64_t last = first + tiles - 1, last_at;

                    cairn_tiling_tile(&s->tiling, last, &last_at);
                    if (last_at > at) {
                        read_tiles(r, s, at, last_at, first, tiles - 1, ahead, dst);
                        dst += last_at - at;
                        n -= last_at - at;
                        at = last_at;
                        continue;
                    }
                    stop = at + n;
                }
                TRY(fetch(r, s, at, stop - at, &p, err));
                memcpy(dst, p, (size_t)(stop - at));
                dst += stop - at;
                n -= stop - at;
                at = stop;
                continue;
            }
        }
        read_tiles(r, s, at, end, first, tiles, ahead, dst);
        dst += end - at;
        n -= end - at;
        at = end;
    }
out:
    return st;
}

/* The box of a part that was asked for: all in elements, dimension by dimension. */
struct cut {
    int ndim;
    int64_t src[CAIRN_MAX_DIMS]; /* where it begins in the part */
    int64_t dst[CAIRN_MAX_DIMS]; /* and in the box */
    int64_t n[CAIRN_MAX_DIMS];
    int64_t src_dim[CAIRN_MAX_DIMS], dst_dim[CAIRN_MAX_DIMS]; /* shapes of part and box */
};

/* Bytes that lie without gaps: the trailing dimensions that `dim` has whole. *dims: those left to step through. */
static int64_t solid(const struct cut *c, const int64_t *dim, int64_t esize, int *dims)
{
    int64_t n = esize;
    int d = c->ndim;

    while (d > 0) {
        d--;
        n *= c->n[d];
        if (c->n[d] != dim[d])
            break;
    }
    *dims = d;
    return n;
}

/* Byte offset, in an array of shape `dim`, of the place `begin` + the k-th index of the leading `dims` dimensions of the cut. */
static int64_t place(const struct cut *c, const int64_t *begin, const int64_t *dim, int dims, int64_t k, int64_t esize)
{
    int64_t index[CAIRN_MAX_DIMS], at = 0;

    for (int d = c->ndim - 1; d >= 0; d--) {
        index[d] = begin[d];
        if (d < dims) {
            index[d] += k % c->n[d];
            k /= c->n[d];
        }
    }
    for (int d = 0; d < c->ndim; d++)
        at = at * dim[d] + index[d];
    return at * esize;
}

static int64_t steps(const struct cut *c, int dims)
{
    int64_t n = 1;

    for (int d = 0; d < dims; d++)
        n *= c->n[d];
    return n;
}

static enum cairn_status read_part(struct cairn_reader *r, const struct cairn_part *p, const struct cut *c, unsigned char *h_dst,
                                   struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct source s;
    int sdims, ddims;
    int64_t e, srun, drun, nsrc;
    const unsigned char *q;

    TRY(source_open(r, p, &s, err));
    e = s.tiling.esize;
    srun = solid(c, c->src_dim, e, &sdims);
    drun = solid(c, c->dst_dim, e, &ddims);
    if (drun >= srun) { /* what is solid in the file is solid in memory too: no copy */
        nsrc = steps(c, sdims);
        for (int64_t k = 0; k < nsrc; k++)
            TRY(read_direct(r, &s, place(c, c->src, c->src_dim, sdims, k, e), srun,
                            h_dst + place(c, c->dst, c->dst_dim, sdims, k, e), err));
    } else { /* long stretches in the file, scattered in runs of drun bytes */
        int64_t per = srun / drun;

        nsrc = steps(c, sdims);
        for (int64_t k = 0; k < nsrc; k++) {
            int64_t at = place(c, c->src, c->src_dim, sdims, k, e);

            for (int64_t done = 0; done < srun;) {
                int64_t n = srun - done < STAGE ? srun - done : STAGE;

                TRY(fetch(r, &s, at + done, n, &q, err));
                while (n > 0) {
                    int64_t run = done / drun, in = done % drun, m = drun - in < n ? drun - in : n;

                    memcpy(h_dst + place(c, c->dst, c->dst_dim, ddims, k * per + run, e) + in, q, (size_t)m);
                    q += m;
                    n -= m;
                    done += m;
                }
            }
        }
    }
out:
    return st;
}

static enum cairn_status read_box(struct cairn_reader *r, const struct cairn_tensor_entry *t, const int64_t *begin,
                                  const int64_t *count, void *h_dst, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK, last;

    if (!r->crew)
        TRY(cairn_crew_create(&r->crew, err));
    if (!r->ahead)
        TRY(cairn_ahead_create(&r->ahead, r->crew, err));
    for (int i = 0; i < t->nparts; i++) {
        const struct cairn_slice *s = t->parts[i].slice;
        struct cut c = {.ndim = t->ndim};
        int any = 1;

        for (int d = 0; d < t->ndim; d++) {
            int64_t lo = begin[d] > s->offset[d] ? begin[d] : s->offset[d];
            int64_t hi = begin[d] + count[d] < s->offset[d] + s->local[d] ? begin[d] + count[d] : s->offset[d] + s->local[d];

            any = any && lo < hi;
            c.n[d] = hi - lo;
            c.src[d] = lo - s->offset[d];
            c.dst[d] = lo - begin[d];
            c.src_dim[d] = s->local[d];
            c.dst_dim[d] = count[d];
        }
        if (any)
            TRY(read_part(r, &t->parts[i], &c, h_dst, err));
    }
out:
    if (r->crew) {
        last = cairn_crew_wait(r->crew, st == CAIRN_OK ? err : NULL); /* nothing may point into h_dst after this */
        st = st == CAIRN_OK ? last : st;
    }
    return st;
}

/* Box and its size in bytes against the tensor. */
static enum cairn_status check_box(struct cairn_reader *r, const struct cairn_tensor_entry *t, const int64_t *begin,
                                   const int64_t *count, int64_t *bytes, struct cairn_error *err)
{
    *bytes = (int64_t)cairn_dtype_size(t->dtype);
    for (int d = 0; d < t->ndim; d++) {
        int64_t end;

        if (begin[d] < 0 || count[d] < 0 || !cairn_add_i64(begin[d], count[d], &end) || end > t->shape[d])
            return cairn_fail(err, CAIRN_EDATA, "%s: %s: [%lld, +%lld) of dimension %d does not lie within %lld", r->dir, t->name,
                              (long long)begin[d], (long long)count[d], d, (long long)t->shape[d]);
        *bytes *= count[d]; /* at most the tensor's size, which was checked */
    }
    return CAIRN_OK;
}

enum cairn_status cairn_reader_box(struct cairn_reader *r, const char *name, const int64_t *begin, const int64_t *count,
                                   void *h_dst, size_t bytes, struct cairn_error *err)
{
    static const int64_t zero[CAIRN_MAX_DIMS];
    enum cairn_status st = CAIRN_OK;
    const struct cairn_tensor_entry *t;
    int64_t want;

    TRY(cairn_reader_find(r, name, &t, err));
    if (!begin) {
        begin = zero;
        count = t->shape;
    }
    TRY(check_box(r, t, begin, count, &want, err));
    if ((uint64_t)want != bytes)
        TRY(cairn_fail(err, CAIRN_EBUG, "%s: %s: room for %zu bytes, the box has %lld", r->dir, name, bytes, (long long)want));
    if (bytes)
        TRY(read_box(r, t, begin, count, h_dst, err));
out:
    return st;
}

enum cairn_status cairn_reader_rows(struct cairn_reader *r, const char *name, int64_t begin, int64_t n, void *h_dst, size_t bytes,
                                    struct cairn_error *err)
{
    int64_t from[CAIRN_MAX_DIMS] = {begin}, count[CAIRN_MAX_DIMS];
    const struct cairn_tensor_entry *t;
    enum cairn_status st = cairn_reader_find(r, name, &t, err);

    if (st != CAIRN_OK)
        return st;
    if (!t->ndim)
        return cairn_fail(err, CAIRN_EDATA, "%s: %s is a scalar and has no rows", r->dir, name);
    memcpy(count, t->shape, sizeof count);
    count[0] = n;
    return cairn_reader_box(r, name, from, count, h_dst, bytes, err);
}

/* Host block of rows [row, row + n) of dst to its device. */
static enum cairn_status put_rows(struct cairn_stream *s, const struct cairn_tensor *dst, int64_t row, int64_t n,
                                  unsigned char *d_p, const unsigned char *h_p, struct cairn_error *err)
{
    struct cairn_tensor t = dst->ndim ? cairn_tensor_slice(dst, 0, row, n) : *dst;
    enum cairn_status st = CAIRN_OK;
    int dims;
    int64_t run = cairn_strides_run(&t, &dims), total = (int64_t)cairn_tensor_bytes(&t);

    for (int64_t at = 0; at < total; at += run)
        TRY(s->dev->ops->copy_in(s->dev, s->impl, d_p + cairn_strides_offset(&t, dims, at / run), h_p + at, (size_t)run, err));
out:
    return st;
}

enum cairn_status cairn_reader_get(struct cairn_reader *r, const char *name, const int64_t *begin, struct cairn_stream *s,
                                   const struct cairn_tensor *dst, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_tensor_entry *t;
    int64_t from[CAIRN_MAX_DIMS] = {0}, count[CAIRN_MAX_DIMS], bytes, row_bytes, rows, block;
    unsigned char *h_p = NULL, *d_p = NULL;

    TRY(cairn_reader_find(r, name, &t, err));
    if (!dst->buf || dst->dtype != t->dtype || dst->ndim != t->ndim)
        TRY(cairn_fail(err, CAIRN_EBUG, "%s: %s: destination has another dtype or number of dimensions", r->dir, name));
    for (int d = 0; d < t->ndim; d++) {
        from[d] = begin ? begin[d] : 0;
        count[d] = dst->dim[d];
        if (!begin && dst->dim[d] != t->shape[d])
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: %s: dimension %d is %lld, %lld was expected", r->dir, name, d,
                           (long long)t->shape[d], (long long)dst->dim[d]));
    }
    TRY(check_box(r, t, from, count, &bytes, err));
    if (!bytes)
        goto out;
    rows = t->ndim ? count[0] : 1;
    row_bytes = bytes / rows;
    block = row_bytes < 2 * STAGE ? 2 * STAGE / row_bytes : 1; /* rows at a time; one row may be larger than the stage */
    if (!(h_p = malloc((size_t)((block < rows ? block : rows) * row_bytes))))
        TRY(CAIRN_NOMEM(err));
    d_p = cairn_buffer_open(dst->buf, CAIRN_WRITE);
    for (int64_t row = 0; row < rows; row += block) {
        int64_t n = rows - row < block ? rows - row : block;

        if (t->ndim) {
            from[0] = (begin ? begin[0] : 0) + row;
            count[0] = n;
        }
        TRY(read_box(r, t, from, count, h_p, err));
        TRY(put_rows(s, dst, row, n, d_p, h_p, err));
    }
    TRY(cairn_stream_wait(s, err));
out:
    if (d_p)
        cairn_buffer_close(dst->buf);
    free(h_p);
    return st;
}

enum cairn_status cairn_reader_array(struct cairn_reader *r, const char *name, enum cairn_dtype dtype, void **h_out, int64_t *count,
                                     struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_tensor_entry *t;
    int64_t n = 1;
    void *p = NULL;

    TRY(cairn_reader_expect(r, name, dtype, -1, NULL, &t, err));
    for (int d = 0; d < t->ndim; d++)
        n *= t->shape[d];
    if (!(p = malloc((size_t)n * cairn_dtype_size(dtype) + 1)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_reader_box(r, name, NULL, NULL, p, (size_t)n * cairn_dtype_size(dtype), err));
    *h_out = p;
    if (count)
        *count = n;
    p = NULL;
out:
    free(p);
    return st;
}

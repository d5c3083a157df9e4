/* handover_runs.c - rows of the tables in handover_runs.h. */
#include "model/handover_runs.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/digest.h"
#include "ckpt/tiles.h"
#include "model/hf.h"

void cairn_runs_free(struct cairn_runs *r)
{
    cairn_buffer_destroy(r->buf);
    free(r->h);
    memset(r, 0, sizeof *r);
}

struct cairn_runs_call cairn_runs_begin(const struct cairn_runs *r)
{
    return (struct cairn_runs_call){.first = r->rows};
}

void cairn_runs_end(struct cairn_runs *r, struct cairn_runs_call *c)
{
    c->rows = r->rows - c->first;
    r->most = c->rows > r->most ? c->rows : r->most;
}

static int64_t *row_new(struct cairn_runs *r)
{
    if (r->rows == r->room) {
        int64_t room = r->room ? 2 * r->room : 256, *h = realloc(r->h, (size_t)room * (size_t)r->width * sizeof *h);

        if (!h)
            return NULL;
        r->h = h;
        r->room = room;
    }
    return r->h + r->rows++ * r->width;
}

enum cairn_status cairn_runs_upload(struct cairn_runs *r, struct cairn_compute *k, struct cairn_error *err)
{
    const int64_t dim[2] = {r->rows, r->width};
    struct cairn_tensor all;
    enum cairn_status st;

    if (!r->rows)
        return CAIRN_OK;
    TRY(cairn_buffer_create(k->dev, (size_t)(dim[0] * dim[1]) * 8, &r->buf, err));
    TRY(cairn_tensor_view(&all, r->buf, 0, CAIRN_I64, 2, dim, err));
    TRY(cairn_tensor_set(&k->stream, &all, r->h, cairn_tensor_bytes(&all), err));
    TRY(cairn_stream_wait(&k->stream, err));
    free(r->h);
    r->h = NULL;
out:
    return st;
}

void cairn_runs_steps(const struct cairn_transit_tensor *t, const int64_t *local, int64_t step[CAIRN_MAX_DIMS])
{
    int64_t n = (int64_t)cairn_dtype_size(t->dtype);

    for (int d = t->ndim - 1; d >= 0; d--) {
        step[d] = n;
        n *= local[d];
    }
}

enum cairn_status cairn_runs_add_transfer(struct cairn_runs *r, struct cairn_runs_call *c, const struct cairn_transit_piece *q, int64_t x,
                                          int64_t x_step, int64_t y, int64_t y_step, struct cairn_error *err)
{
    int64_t *last = r->rows > c->first ? r->h + (r->rows - 1) * r->width : NULL, blocks = q->blocks, n = q->n, *row;

    if (!blocks || !n)
        return CAIRN_OK;
    if (blocks > 1 && x_step == n && y_step == n) {
        n *= blocks;
        blocks = 1;
    }
    if (last && blocks == 1 && last[4] == 1 && last[0] + last[5] == x && last[2] + last[5] == y) {
        last[5] += n;
    } else {
        if (!(row = row_new(r)))
            return CAIRN_NOMEM(err);
        row[0] = x, row[1] = x_step, row[2] = y, row[3] = y_step, row[4] = blocks, row[5] = n, row[6] = c->count;
    }
    c->count += blocks * n;
    return CAIRN_OK;
}

/* How the tiles of a piece's rows lie in the tensor: bytes of a tile, tiles in a whole row, bytes before the piece. */
struct grid {
    int64_t tile, per_row, begin, row_bytes;
};

static enum cairn_status grid_of(const struct cairn_transit_tensor *t, const struct cairn_transit_piece *q, struct grid *g,
                                 struct cairn_error *err)
{
    int64_t size = (int64_t)cairn_dtype_size(t->dtype), width = t->dim[t->ndim - 1] * size, end;

    g->tile = cairn_tile_width(t->dtype, t->ndim, t->dim);
    g->per_row = (width + g->tile - 1) / g->tile;
    g->begin = q->offset[t->ndim - 1] * size;
    g->row_bytes = q->local[t->ndim - 1] * size;
    end = g->begin + g->row_bytes;
    if (g->begin % g->tile || (end % g->tile && end != width))
        return cairn_fail(err, CAIRN_EDATA, "%s: bytes [%lld, %lld) of a row of %lld do not fall on tiles of %lld", t->name,
                          (long long)g->begin, (long long)end, (long long)width, (long long)g->tile);
    return CAIRN_OK;
}

/* Units of so many rows. */
static int64_t units_of(const struct grid *g, int64_t rows, int64_t unit)
{
    return (rows * ((g->row_bytes + g->tile - 1) / g->tile) + unit - 1) / unit;
}

/* Rows of a piece where its holder has them: where row i begins, and from one to the next where `rows` follow in one step. */
static int64_t row_at(const struct cairn_transit_piece *q, int64_t width, int64_t i, int64_t *step)
{
    const int64_t a_block = q->n / width, x = (int64_t)(q->src / cairn_dtype_size(q->held));

    *step = a_block > 1 || q->blocks == 1 ? width : q->src_step;
    return x + i / a_block * q->src_step + i % a_block * width;
}

/* `rows` rows of a tensor of name from row i of the piece on, the first of them row `first` of the whole: of table tiles, or of
 * table ship. */
static enum cairn_status add_rows(struct cairn_runs *r, struct cairn_runs_call *c, const struct cairn_transit_tensor *t,
                                  const struct cairn_transit_piece *q, const char *name, int64_t i, int64_t at, int64_t rows,
                                  int64_t row_step, int64_t first, struct cairn_error *err)
{
    const int64_t size = (int64_t)cairn_dtype_size(t->dtype), width = q->local[t->ndim - 1];
    int64_t *row, step;
    struct grid g;
    enum cairn_status st;

    TRY(grid_of(t, q, &g, err));
    if (!rows || !g.row_bytes)
        return CAIRN_OK;
    if (!(row = row_new(r)))
        return CAIRN_NOMEM(err);
    first = first * g.per_row + g.begin / g.tile;
    if (r->width == CAIRN_TILES_RUN) {
        row[0] = at, row[1] = rows, row[2] = row_step, row[3] = g.row_bytes, row[4] = g.tile,
        row[5] = (int64_t)cairn_tile_seed(name);
        row[6] = first, row[7] = g.per_row, row[8] = c->count;
        c->count += units_of(&g, rows, CAIRN_TILES_UNIT(g.tile));
    } else {
        row[0] = row_at(q, width, i, &step);
        row[1] = step, row[2] = at / size, row[3] = row_step / size, row[4] = rows, row[5] = width, row[6] = g.tile / size;
        row[7] = (int64_t)cairn_tile_seed(name), row[8] = first, row[9] = g.per_row, row[10] = c->count;
        c->count += units_of(&g, rows, CAIRN_SHIP_UNIT(g.tile));
    }
out:
    return st;
}

enum cairn_status cairn_runs_add_tiles(struct cairn_runs *r, struct cairn_runs_call *c, const struct cairn_transit_tensor *t,
                                       const struct cairn_transit_piece *q, size_t at, const int64_t step[CAIRN_MAX_DIMS], struct cairn_error *err)
{
    char name[CAIRN_TENSOR_NAME_MAX + 1];
    enum cairn_status st = CAIRN_OK;

    if (t->ndim == 1)
        return add_rows(r, c, t, q, t->name, 0, (int64_t)at, 1, 0, 0, err);
    if (t->ndim == 2)
        return add_rows(r, c, t, q, t->name, 0, (int64_t)at, q->local[0], step[0], q->offset[0], err);
    if (t->ndim != 3)
        return cairn_fail(err, CAIRN_EBUG, "%s: %d dimensions", t->name, t->ndim);
    for (int64_t e = 0; e < q->local[0] && st == CAIRN_OK; e++) {
        int64_t index = q->offset[0] + e;
        int stack = cairn_expert_name(t->name, index, name, sizeof name);

        st = add_rows(r, c, t, q, stack ? name : t->name, e * q->local[1], (int64_t)at + e * step[0], q->local[1], step[1],
                      (stack ? 0 : index * t->dim[1]) + q->offset[1], err);
    }
    return st;
}

static enum cairn_status view(struct cairn_tensor *out, struct cairn_buffer *b, enum cairn_dtype dtype, struct cairn_error *err)
{
    int64_t n = (int64_t)(b->bytes / cairn_dtype_size(dtype));

    return cairn_tensor_view(out, b, 0, dtype, 1, &n, err);
}

static enum cairn_status rows_of(struct cairn_tensor *out, const struct cairn_runs *r, const struct cairn_runs_call *c, struct cairn_error *err)
{
    const int64_t dim[2] = {c->rows, r->width};

    return cairn_tensor_view(out, r->buf, (size_t)(c->first * r->width) * 8, CAIRN_I64, 2, dim, err);
}

enum cairn_status cairn_runs_transfer(const struct cairn_runs *r, const struct cairn_runs_call *c, struct cairn_compute *k, struct cairn_stream *s,
                                      struct cairn_buffer *x, enum cairn_dtype from, struct cairn_buffer *y, enum cairn_dtype to,
                                      struct cairn_error *err)
{
    struct cairn_transfer a = {.elements = c->count};
    enum cairn_status st;

    if (!c->rows)
        return CAIRN_OK;
    TRY(view(&a.x, x, from, err));
    TRY(view(&a.y, y, to, err));
    TRY(rows_of(&a.runs, r, c, err));
    TRY(k->ops.transfer(s, &a, err));
out:
    return st;
}

enum cairn_status cairn_runs_tiles(const struct cairn_runs *r, const struct cairn_runs_call *c, struct cairn_compute *k, struct cairn_stream *s,
                                   struct cairn_buffer *x, struct cairn_buffer *out, int64_t at, struct cairn_error *err)
{
    const int64_t dim[2] = {c->rows, 2};
    struct cairn_tiles a = {.units = c->count};
    enum cairn_status st;

    if (!c->rows)
        return CAIRN_OK;
    TRY(view(&a.x, x, CAIRN_U8, err));
    TRY(rows_of(&a.runs, r, c, err));
    TRY(cairn_tensor_view(&a.out, out, (size_t)at * 16, CAIRN_I64, 2, dim, err));
    TRY(k->ops.tiles(s, &a, err));
out:
    return st;
}

enum cairn_status cairn_runs_ship(const struct cairn_runs *r, const struct cairn_runs_call *c, struct cairn_compute *k,
                                  struct cairn_stream *s, struct cairn_buffer *x, enum cairn_dtype from, struct cairn_buffer *y,
                                  enum cairn_dtype to, struct cairn_buffer *out, int64_t at, struct cairn_error *err)
{
    const int64_t two = 2;
    struct cairn_ship a = {.units = c->count};
    enum cairn_status st;

    if (!c->rows)
        return CAIRN_OK;
    TRY(view(&a.x, x, from, err));
    TRY(view(&a.y, y, to, err));
    TRY(rows_of(&a.runs, r, c, err));
    TRY(cairn_tensor_view(&a.out, out, (size_t)at * 16, CAIRN_I64, 1, &two, err));
    TRY(k->ops.ship(s, &a, err));
out:
    return st;
}

enum cairn_status cairn_runs_sums_create(struct cairn_runs_sums *out, int64_t n, struct cairn_device *dev, struct cairn_error *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = ((size_t)(n + 1) * 16 + page - 1) / page * page;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    enum cairn_status st;

    if (p == MAP_FAILED)
        return CAIRN_NOMEM(err);
    *out = (struct cairn_runs_sums){.h = p, .bytes = bytes};
    st = cairn_buffer_pin(dev, p, bytes, &out->buf, err);
    if (st != CAIRN_OK)
        cairn_runs_sums_free(out);
    return st;
}

void cairn_runs_sums_free(struct cairn_runs_sums *s)
{
    cairn_buffer_destroy(s->buf);
    if (s->h)
        munmap(s->h, s->bytes);
    memset(s, 0, sizeof *s);
}

struct cairn_digest cairn_runs_sum(const struct cairn_runs_call *c, const int64_t *h)
{
    struct cairn_digest sum = {0, 0};

    for (int64_t i = c->first; i < c->first + c->rows; i++)
        sum = cairn_digest_add(sum, (struct cairn_digest){(uint64_t)h[2 * i], (uint64_t)h[2 * i + 1]});
    return sum;
}

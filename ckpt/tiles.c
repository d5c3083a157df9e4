/* tiles.c - geometry of slices and tiles; see tiles.h. Pure functions, no memory but the stack. */
#include "ckpt/tiles.h"

#include <string.h>

#include "base/checked.h"
#include "base/str.h"

#define NAME_FIRST "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"
#define NAME_REST NAME_FIRST ".+:@-"

int cairn_tensor_name_ok(const char *name)
{
    size_t n;

    if (!name || !name[0] || !strchr(NAME_FIRST, name[0]))
        return 0;
    n = strspn(name, NAME_REST);
    return !name[n] && n <= CAIRN_TENSOR_NAME_MAX;
}

/* The pattern of a stack: a tensor name with exactly one '*', which leaves room for the index. */
static int pattern_ok(const char *each)
{
    const char *star = strchr(each, '*');
    size_t n = strlen(each);

    if (!star || strchr(star + 1, '*') || n > CAIRN_TENSOR_NAME_MAX - 19 || each[0] == '*' || !strchr(NAME_FIRST, each[0]))
        return 0;
    return strspn(each, NAME_REST) == (size_t)(star - each) && !star[1 + strspn(star + 1, NAME_REST)];
}

static void element_name(char out[CAIRN_TENSOR_NAME_MAX + 1], const char *each, int64_t i)
{
    const char *star = strchr(each, '*');

    size_t n = (size_t)(star - each);

    memcpy(out, each, n);
    n += cairn_put_i64(out + n, i);
    strcpy(out + n, star + 1); /* it fits: pattern_ok */
}

int64_t cairn_tile_width(enum cairn_dtype dtype, int ndim, const int64_t *shape)
{
    int64_t e = (int64_t)cairn_dtype_size(dtype), n = ndim ? shape[ndim - 1] : 1;

    if (n < 1)
        return e;
    return n < CAIRN_TILE_MAX / e ? n * e : CAIRN_TILE_MAX;
}

struct cairn_slice cairn_slice_whole(const char *name, enum cairn_dtype dtype, int ndim, const int64_t *shape)
{
    struct cairn_slice s = {.name = name, .dtype = dtype, .ndim = ndim};

    for (int i = 0; i < ndim && i < CAIRN_MAX_DIMS; i++)
        s.shape[i] = s.local[i] = shape[i];
    return s;
}

struct cairn_slice cairn_slice_part(const struct cairn_slice *whole, int axis, int64_t begin, int64_t n)
{
    struct cairn_slice s = *whole;

    s.offset[axis] = begin;
    s.local[axis] = n;
    return s;
}

enum cairn_status cairn_tiling_init(struct cairn_tiling *t, const struct cairn_slice *s, const char *where, struct cairn_error *err)
{
    int64_t global = 1, end, cols, begin_bytes, end_bytes, row_global;

    memset(t, 0, sizeof *t);
    t->slice = s;
    if (!cairn_tensor_name_ok(s->name))
        return cairn_fail(err, CAIRN_EDATA, "%s: \"%.64s\" is no tensor name", where, s->name ? s->name : "");
    if ((int)s->dtype < 0 || s->dtype >= CAIRN_DTYPES)
        return cairn_fail(err, CAIRN_EDATA, "%s: %s: unknown dtype %d", where, s->name, (int)s->dtype);
    if (s->ndim < 0 || s->ndim > CAIRN_MAX_DIMS)
        return cairn_fail(err, CAIRN_EDATA, "%s: %s: %d dimensions, at most %d are allowed", where, s->name, s->ndim, CAIRN_MAX_DIMS);
    if (s->each && (s->ndim < 2 || !pattern_ok(s->each)))
        return cairn_fail(err, CAIRN_EDATA, "%s: %s: \"%.64s\" does not name the elements of a stack", where, s->name, s->each);
    t->esize = (int64_t)cairn_dtype_size(s->dtype);
    t->bytes = t->esize;
    t->rows = 1;
    for (int i = 0; i < s->ndim; i++) {
        if (s->shape[i] < 0 || s->offset[i] < 0 || s->local[i] < 0 || !cairn_add_i64(s->offset[i], s->local[i], &end) ||
            end > s->shape[i])
            return cairn_fail(err, CAIRN_EDATA, "%s: %s: part [%lld, +%lld) of dimension %d does not lie within %lld", where, s->name,
                              (long long)s->offset[i], (long long)s->local[i], i, (long long)s->shape[i]);
        if (!cairn_mul_i64(t->bytes, s->local[i], &t->bytes) || !cairn_mul_i64(global, s->shape[i] ? s->shape[i] : 1, &global))
            return cairn_fail(err, CAIRN_EDATA, "%s: %s: its size overflows", where, s->name);
        if (i < s->ndim - 1 && !cairn_mul_i64(t->rows, s->local[i], &t->rows))
            return cairn_fail(err, CAIRN_EDATA, "%s: %s: its size overflows", where, s->name);
    }
    if (!cairn_mul_i64(global, t->esize, &global)) /* so every product below it is safe too */
        return cairn_fail(err, CAIRN_EDATA, "%s: %s: its size overflows", where, s->name);
    cols = s->ndim ? s->local[s->ndim - 1] : 1;
    row_global = (s->ndim ? s->shape[s->ndim - 1] : 1) * t->esize;
    t->row_bytes = cols * t->esize;
    t->tile_bytes = s->tile_bytes ? s->tile_bytes : cairn_tile_width(s->dtype, s->ndim, s->shape);
    if (t->tile_bytes < t->esize || t->tile_bytes > CAIRN_TILE_MAX || t->tile_bytes % t->esize)
        return cairn_fail(err, CAIRN_EDATA, "%s: %s: tile width %lld is not a multiple of %lld up to %d", where, s->name,
                          (long long)t->tile_bytes, (long long)t->esize, CAIRN_TILE_MAX);
    begin_bytes = (s->ndim ? s->offset[s->ndim - 1] : 0) * t->esize;
    end_bytes = begin_bytes + t->row_bytes;
    if (t->bytes && (begin_bytes % t->tile_bytes || (end_bytes % t->tile_bytes && end_bytes != row_global)))
        return cairn_fail(err, CAIRN_EDATA, "%s: %s: bytes [%lld, %lld) of a row of %lld do not fall on tiles of %lld", where, s->name,
                          (long long)begin_bytes, (long long)end_bytes, (long long)row_global, (long long)t->tile_bytes);
    t->per_row = (t->row_bytes + t->tile_bytes - 1) / t->tile_bytes;
    t->global_per_row = (row_global + t->tile_bytes - 1) / t->tile_bytes;
    t->first_col = begin_bytes / t->tile_bytes;
    t->tiles = t->bytes ? t->rows * t->per_row : 0;
    t->seed = s->each ? 0 : cairn_tile_seed(s->name);
    return CAIRN_OK;
}

int64_t cairn_tiling_tile(const struct cairn_tiling *t, int64_t i, int64_t *at)
{
    int64_t row = i / t->per_row, in_row = i % t->per_row * t->tile_bytes;

    *at = row * t->row_bytes + in_row;
    return t->row_bytes - in_row < t->tile_bytes ? t->row_bytes - in_row : t->tile_bytes;
}

int64_t cairn_tiling_of_byte(const struct cairn_tiling *t, int64_t at)
{
    return at / t->row_bytes * t->per_row + at % t->row_bytes / t->tile_bytes;
}

/* Row `row` of the part as a row of the global tensor; of a stack, as a row of its element, with that one's index. */
static int64_t global_row(const struct cairn_tiling *t, int64_t row, int64_t *element)
{
    const struct cairn_slice *s = t->slice;
    int64_t index[CAIRN_MAX_DIMS] = {0}, g = 0;

    *element = 0;
    for (int d = s->ndim - 2; d >= 0; d--) {
        index[d] = row % s->local[d] + s->offset[d];
        row /= s->local[d];
    }
    for (int d = s->each ? 1 : 0; d < s->ndim - 1; d++)
        g = g * s->shape[d] + index[d];
    if (s->each)
        *element = index[0];
    return g;
}

struct cairn_digest cairn_tiling_hash(const struct cairn_tiling *t, int64_t first, int64_t n, const void *p, struct cairn_digest *out)
{
    struct cairn_digest sum = {0, 0};
    const char *c = p;
    int64_t element = -1, seeded = -1;
    uint64_t seed = t->seed;

    while (n > 0) { /* row by row: the numbers of one row's tiles are consecutive */
        int64_t row = first / t->per_row, col = first % t->per_row;
        int64_t k = t->per_row - col < n ? t->per_row - col : n;
        uint64_t tile = (uint64_t)(global_row(t, row, &element) * t->global_per_row + t->first_col + col);

        if (t->slice->each && element != seeded) {
            char name[CAIRN_TENSOR_NAME_MAX + 1];

            element_name(name, t->slice->each, element);
            seed = cairn_tile_seed(name);
            seeded = element;
        }
        for (int64_t i = 0; i < k; i++) {
            int64_t left = t->row_bytes - (col + i) * t->tile_bytes;
            size_t len = (size_t)(left < t->tile_bytes ? left : t->tile_bytes);
            struct cairn_digest d = cairn_tile_digest(seed, tile + (uint64_t)i, c, len);

            sum = cairn_digest_add(sum, d);
            if (out)
                *out++ = d;
            c += len;
        }
        first += k;
        n -= k;
    }
    return sum;
}

struct cairn_digest cairn_tiling_header(const struct cairn_tiling *t)
{
    const struct cairn_slice *s = t->slice;
    struct cairn_digest sum = {0, 0};

    if (!s->each)
        return cairn_tile_header(t->seed, cairn_dtype_name(s->dtype), s->ndim, s->shape, t->tile_bytes);
    for (int64_t i = 0; i < s->shape[0]; i++) {
        char name[CAIRN_TENSOR_NAME_MAX + 1];

        element_name(name, s->each, i);
        sum = cairn_digest_add(sum, cairn_tile_header(cairn_tile_seed(name), cairn_dtype_name(s->dtype), s->ndim - 1, s->shape + 1,
                                                      t->tile_bytes));
    }
    return sum;
}

enum cairn_status cairn_tensor_digest(const struct cairn_slice *whole, const void *h_p, struct cairn_digest *out,
                                      struct cairn_error *err)
{
    struct cairn_tiling t;
    enum cairn_status st = cairn_tiling_init(&t, whole, "tensor", err);

    if (st == CAIRN_OK)
        *out = cairn_digest_add(cairn_tiling_header(&t), cairn_tiling_hash(&t, 0, t.tiles, h_p, NULL));
    return st;
}

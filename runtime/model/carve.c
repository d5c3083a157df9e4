/* carve.c - offsets and nothing else; see carve.h. */
#include "model/carve.h"

#include "base/checked.h"

#define ALIGN ((size_t)64)

static struct cairn_tensor carve(struct cairn_carve *c, enum cairn_dtype type, int ndim, const int64_t *dim)
{
    struct cairn_tensor t = {.buf = c->buf, .offset = c->at, .dtype = type, .ndim = ndim};
    int64_t n = 1;
    size_t bytes, end;

    for (int i = ndim - 1; i >= 0; i--) {
        t.dim[i] = dim[i];
        t.stride[i] = n;
        if (dim[i] < 0 || !cairn_mul_i64(n, dim[i], &n))
            c->overflow = 1;
    }
    if (c->overflow || !cairn_mul_size((size_t)n, cairn_dtype_size(type), &bytes) || !cairn_add_size(c->at, bytes, &end) ||
        !cairn_add_size(end, ALIGN - 1, &end)) {
        c->overflow = 1;
        return t;
    }
    c->at = end / ALIGN * ALIGN;
    if (c->at > c->high)
        c->high = c->at;
    return t;
}

struct cairn_tensor cairn_carve1(struct cairn_carve *c, enum cairn_dtype t, int64_t a)
{
    return carve(c, t, 1, &a);
}

struct cairn_tensor cairn_carve2(struct cairn_carve *c, enum cairn_dtype t, int64_t a, int64_t b)
{
    return carve(c, t, 2, (int64_t[]){a, b});
}

struct cairn_tensor cairn_carve3(struct cairn_carve *c, enum cairn_dtype t, int64_t a, int64_t b, int64_t d)
{
    return carve(c, t, 3, (int64_t[]){a, b, d});
}

/* values.c - narrowing and widening in host memory; see values.h. */
#include "model/values.h"

#include <stdlib.h>

#include "ckpt/convert.h"

static enum cairn_status check(const struct cairn_tensor *t, int64_t n, struct cairn_error *err)
{
    if (n != cairn_tensor_count(t) || (t->dtype != CAIRN_F32 && t->dtype != CAIRN_BF16 && t->dtype != CAIRN_F16))
        return cairn_fail(err, CAIRN_EBUG, "%lld values for a tensor of %lld %s", (long long)n, (long long)cairn_tensor_count(t),
                          cairn_dtype_name(t->dtype));
    return CAIRN_OK;
}

enum cairn_status cairn_values_set(struct cairn_compute *k, const struct cairn_tensor *t, const float *h_src, int64_t n,
                                   struct cairn_error *err)
{
    size_t bytes = cairn_tensor_bytes(t);
    enum cairn_status st = check(t, n, err);
    void *narrow;

    if (st != CAIRN_OK)
        return st;
    if (t->dtype == CAIRN_F32)
        return cairn_tensor_set(&k->stream, t, h_src, bytes, err);
    narrow = malloc(bytes + 1);
    if (!narrow)
        return CAIRN_NOMEM(err);
    cairn_convert(t->dtype, narrow, CAIRN_F32, h_src, (size_t)n);
    st = cairn_tensor_set(&k->stream, t, narrow, bytes, err);
    free(narrow);
    return st;
}

enum cairn_status cairn_values_get(struct cairn_compute *k, const struct cairn_tensor *t, float *h_dst, int64_t n,
                                   struct cairn_error *err)
{
    size_t bytes = cairn_tensor_bytes(t);
    enum cairn_status st = check(t, n, err);
    void *narrow;

    if (st != CAIRN_OK)
        return st;
    if (t->dtype == CAIRN_F32)
        return cairn_tensor_get(&k->stream, t, h_dst, bytes, err);
    narrow = malloc(bytes + 1);
    if (!narrow)
        return CAIRN_NOMEM(err);
    st = cairn_tensor_get(&k->stream, t, narrow, bytes, err);
    if (st == CAIRN_OK)
        cairn_convert(CAIRN_F32, h_dst, t->dtype, narrow, (size_t)n);
    free(narrow);
    return st;
}

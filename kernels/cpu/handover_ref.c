/* handover_ref.c - transfer, tiles and ship as their contracts read: one element, one tile at a time. */
#include <string.h>

#include "base/digest.h"
#include "convert.h"
#include "handover.h"
#include "internal.h"

enum cairn_status cairn_transfer_ref(struct cairn_stream *s, const struct cairn_transfer *a, struct cairn_error *err)
{
    struct call c = call_begin("transfer", s, err);
    const int types = T_F32 | T_BF16 | T_F16;
    int64_t X = -1, Y = -1, R = -1, width = CAIRN_TRANSFER_RUN;
    struct arg x = call_arg(&c, "x", &a->x, types, 1, &X), y = call_arg(&c, "y", &a->y, OUT | types, 1, &Y),
               runs = call_arg(&c, "runs", &a->runs, T_I64, 2, &R, &width);

    transfer_check(&c, &runs, X, Y, a->elements);
    for (int64_t r = 0; call_ok(&c) && r < R; r++) {
        const int64_t *k = (const int64_t *)runs.p + r * width;

        for (int64_t b = 0; b < k[4]; b++)
            for (int64_t i = 0; i < k[5]; i++) {
                int64_t from = k[0] + b * k[1] + i, to = k[2] + b * k[3] + i;
                size_t size = cairn_dtype_size(x.type);
                float v;

                if (x.type == y.type) { /* bits, NaN or not */
                    memcpy((char *)y.p + (size_t)to * size, (const char *)x.p + (size_t)from * size, size);
                    continue;
                }
                to_f32(&v, x.p, x.type, from, 1);
                from_f32(y.p, y.type, to, &v, 1);
            }
    }
    return call_end(&c);
}

enum cairn_status cairn_tiles_ref(struct cairn_stream *s, const struct cairn_tiles *a, struct cairn_error *err)
{
    struct call c = call_begin("tiles", s, err);
    int64_t X = -1, R = -1, width = CAIRN_TILES_RUN, two = 2;
    struct arg x = call_arg(&c, "x", &a->x, T_U8, 1, &X), runs = call_arg(&c, "runs", &a->runs, T_I64, 2, &R, &width),
               out = call_arg(&c, "out", &a->out, OUT | T_I64, 2, &R, &two);

    tiles_check(&c, &runs, X, a->units);
    for (int64_t r = 0; call_ok(&c) && r < R; r++) {
        const int64_t *k = (const int64_t *)runs.p + r * width;
        struct cairn_digest sum = {0, 0};

        for (int64_t b = 0; b < k[1]; b++)
            for (int64_t at = 0, t = 0; at < k[3]; at += k[4], t++)
                sum = cairn_digest_add(sum, cairn_tile_digest((uint64_t)k[5], (uint64_t)(k[6] + b * k[7] + t),
                                                              (const char *)x.p + k[0] + b * k[2] + at,
                                                              (size_t)(k[3] - at < k[4] ? k[3] - at : k[4])));
        ((int64_t *)out.p)[2 * r] = (int64_t)sum.lo;
        ((int64_t *)out.p)[2 * r + 1] = (int64_t)sum.hi;
    }
    return call_end(&c);
}

enum cairn_status cairn_ship_ref(struct cairn_stream *s, const struct cairn_ship *a, struct cairn_error *err)
{
    struct call c = call_begin("ship", s, err);
    const int types = T_F32 | T_BF16 | T_F16;
    int64_t X = -1, Y = -1, R = -1, width = CAIRN_SHIP_RUN, two = 2;
    struct arg x = call_arg(&c, "x", &a->x, types, 1, &X), y = call_arg(&c, "y", &a->y, OUT | types, 1, &Y),
               runs = call_arg(&c, "runs", &a->runs, T_I64, 2, &R, &width),
               out = call_arg(&c, "out", &a->out, OUT | T_I64, 1, &two);
    int64_t size = call_ok(&c) ? (int64_t)cairn_dtype_size(y.type) : 1;
    struct cairn_digest sum = {0, 0};

    ship_check(&c, &runs, X, Y, size, a->units);
    for (int64_t r = 0; call_ok(&c) && r < R; r++) {
        const int64_t *k = (const int64_t *)runs.p + r * width;

        for (int64_t b = 0; b < k[4]; b++)
            for (int64_t at = 0, t = 0; at < k[5]; at += k[6], t++) {
                int64_t n = k[5] - at < k[6] ? k[5] - at : k[6], to = k[2] + b * k[3] + at;

                for (int64_t i = 0; i < n; i++) {
                    int64_t from = k[0] + b * k[1] + at + i;
                    float v;

                    if (x.type == y.type) {
                        memcpy((char *)y.p + (to + i) * size, (const char *)x.p + from * size, (size_t)size);
                        continue;
                    }
                    to_f32(&v, x.p, x.type, from, 1);
                    from_f32(y.p, y.type, to + i, &v, 1);
                }
                sum = cairn_digest_add(sum, cairn_tile_digest((uint64_t)k[7], (uint64_t)(k[8] + b * k[9] + t),
                                                              (const char *)y.p + to * size, (size_t)(n * size)));
            }
    }
    if (call_ok(&c)) {
        ((int64_t *)out.p)[0] = (int64_t)sum.lo;
        ((int64_t *)out.p)[1] = (int64_t)sum.hi;
    }
    return call_end(&c);
}

/* checked.h - products and sums that tell when they overflow; for every size read from a file. 1: fits, 0: not. */
#ifndef CAIRN_BASE_CHECKED_H
#define CAIRN_BASE_CHECKED_H

#include <stddef.h>
#include <stdint.h>

static inline int cairn_mul_i64(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline int cairn_add_i64(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline int cairn_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline int cairn_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

#endif

/* select.h - the largest of many floats, exactly: thresholds found bit by bit over integers in the floats' order.
 *
 * 32 counting passes without a branch; no order of arrival, no sorting, no worst case. Equal values are told apart afterwards, by
 * position.
 */
#ifndef CAIRN_KERNELS_CPU_SELECT_H
#define CAIRN_KERNELS_CPU_SELECT_H

#include <stdint.h>
#include <string.h>

/* Order of floats as order of integers; -0 counts as 0, NaN as -inf. */
static inline int32_t select_key(float x)
{
    int32_t i;

    x = x == x ? x + 0.0f : -__builtin_inff();
    memcpy(&i, &x, sizeof i);
    return i ^ (int32_t)((uint32_t)(i >> 31) >> 1);
}

/* The largest t such that at least `want` of the keys are >= t. */
static inline int32_t select_by_count(const int32_t *key, int64_t n, int64_t want)
{
    uint32_t t = 0; /* in unsigned order: key ^ 0x80000000 */

    for (int bit = 31; bit >= 0; bit--) {
        int32_t at = (int32_t)((t | 1u << bit) ^ 0x80000000u), count = 0;

        for (int64_t i = 0; i < n; i++)
            count += key[i] >= at;
        if (count >= want)
            t |= 1u << bit;
    }
    return (int32_t)(t ^ 0x80000000u);
}

/* The largest t such that the weights of keys >= t add up to `want` or more. */
static inline int32_t select_by_weight(const int32_t *key, const int64_t *weight, int64_t n, int64_t want)
{
    uint32_t t = 0;

    for (int bit = 31; bit >= 0; bit--) {
        int32_t at = (int32_t)((t | 1u << bit) ^ 0x80000000u);
        int64_t sum = 0;

        for (int64_t i = 0; i < n; i++)
            sum += key[i] >= at ? weight[i] : 0;
        if (sum >= want)
            t |= 1u << bit;
    }
    return (int32_t)(t ^ 0x80000000u);
}

#endif

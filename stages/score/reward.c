/* reward.c - see reward.h. */
#include "stages/score/reward.h"

#include <math.h>

enum cairn_status cairn_reward_check(const struct cairn_reward_opts *o, struct cairn_error *err)
{
    if (!isfinite(o->right) || !isfinite(o->wrong))
        return cairn_fail(err, CAIRN_ERECIPE, "score.reward: right %g and wrong %g must be finite", o->right, o->wrong);
    if (!isfinite(o->factor) || o->factor < 0)
        return cairn_fail(err, CAIRN_ERECIPE, "score.overlong.factor: %g is negative or not finite", o->factor);
    if (o->buffer < 0 || o->cap < 0 || o->buffer > o->cap)
        return cairn_fail(err, CAIRN_ERECIPE, "score.overlong.buffer: %lld is not within 0 and the cap of %lld tokens",
                          (long long)o->buffer, (long long)o->cap);
    return CAIRN_OK;
}

double cairn_reward_raw(const struct cairn_reward_opts *o, double value, int truncated)
{
    if (truncated && o->truncated_zero)
        return 0.0;
    if (value == 0 || value == 1) /* exactly what the recipe says */
        return value == 1 ? o->right : o->wrong;
    return o->wrong + value * (o->right - o->wrong);
}

double cairn_reward_penalty(const struct cairn_reward_opts *o, int64_t length)
{
    int64_t over = length - (o->cap - o->buffer);

    if (o->factor == 0 || over <= 0)
        return 0.0;
    if (length >= o->cap)
        return -o->factor;
    return -(o->factor * (double)over) / (double)o->buffer; /* buffer > over > 0 here */
}

int cairn_group_mixed(const double *raw, int64_t n, double tolerance)
{
    double low, high;

    if (n < 1)
        return 0;
    low = high = raw[0];
    for (int64_t i = 1; i < n; i++) {
        if (raw[i] < low)
            low = raw[i];
        if (raw[i] > high)
            high = raw[i];
    }
    return high - low > tolerance;
}

/* advantage.c - see advantage.h. */
#include "stages/score/advantage.h"

#include <math.h>
#include <stdlib.h>

struct member {
    int64_t group, at;
};

static int by_group_then_place(const void *a, const void *b)
{
    const struct member *x = a, *y = b;

    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

/* One group: members m (n), rewards r and results a by their places. */
static void one_group(enum cairn_advantage kind, const struct member *m, int64_t n, const double *r, double *a)
{
    double sum = 0, mean, squares = 0, scale = 1;
    int equal = 1;

    for (int64_t i = 0; i < n; i++) {
        sum += r[m[i].at];
        equal &= r[m[i].at] == r[m[0].at];
    }
    if (equal) { /* a group of one, too */
        for (int64_t i = 0; i < n; i++)
            a[m[i].at] = 0.0;
        return;
    }
    mean = sum / (double)n;
    if (kind == CAIRN_ADVANTAGE_RLOO) {
        /* R - (sum - R)/(n-1) = (R - mean) n/(n-1) */
        scale = (double)n / (double)(n - 1);
    } else if (kind == CAIRN_ADVANTAGE_GRPO) {
        for (int64_t i = 0; i < n; i++) {
            double d = r[m[i].at] - mean;

            squares += d * d;
        }
        scale = 1.0 / (sqrt(squares / (double)(n - 1)) + CAIRN_ADVANTAGE_EPS);
    }
    for (int64_t i = 0; i < n; i++)
        a[m[i].at] = (r[m[i].at] - mean) * scale;
}

enum cairn_status cairn_advantages(enum cairn_advantage kind, const int64_t *group, const double *reward, int64_t n, double clamp,
                                   double *advantage, struct cairn_error *err)
{
    struct member *m = NULL;
    enum cairn_status st = CAIRN_OK;

    for (int64_t i = 0; i < n; i++)
        if (!isfinite(reward[i]))
            return cairn_fail(err, CAIRN_ENUMERIC, "reward %lld of group %lld is %g", (long long)i, (long long)group[i], reward[i]);
    if (n <= 0)
        return CAIRN_OK;
    m = malloc((size_t)n * sizeof *m);
    if (!m)
        TRY(CAIRN_NOMEM(err));
    for (int64_t i = 0; i < n; i++) {
        m[i].group = group[i];
        m[i].at = i;
    }
    qsort(m, (size_t)n, sizeof *m, by_group_then_place);
    for (int64_t begin = 0, end; begin < n; begin = end) {
        for (end = begin + 1; end < n && m[end].group == m[begin].group; end++)
            ;
        one_group(kind, m + begin, end - begin, reward, advantage);
    }
    if (clamp > 0)
        for (int64_t i = 0; i < n; i++)
            advantage[i] = advantage[i] > clamp ? clamp : advantage[i] < -clamp ? -clamp : advantage[i];
out:
    free(m);
    return st;
}

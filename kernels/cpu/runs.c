/* runs.c - checks of runs.h. */
#include "runs.h"

#include <string.h>

size_t runs_room(int64_t N, int64_t B)
{
    return ((size_t)N + 1) * sizeof(int64_t) + (B > 0 ? (size_t)B : 0);
}

struct runs runs_find(struct call *c, const struct arg *pos, const struct arg *seq, int64_t N, int64_t B, void *room)
{
    struct runs r = {.pos = pos->p, .seq = seq->p, .begin = room};
    char *seen = (char *)(r.begin + N + 1);

    if (!call_ok(c))
        return r;
    if (B > 0)
        memset(seen, 0, (size_t)B);
    for (int64_t n = 0; n < N; n++) {
        if (r.pos[n] < 0 || r.seq[n] < 0 || (B >= 0 && r.seq[n] >= B))
            call_fail(c, "row %lld is position %d of sequence %d of %lld", (long long)n, r.pos[n], r.seq[n], (long long)B);
        if (!call_ok(c))
            return r;
        if (n && r.seq[n] == r.seq[n - 1] && r.pos[n] == r.pos[n - 1] + 1)
            continue;
        if (B < 0 && r.pos[n] != 0)
            call_fail(c, "row %lld begins a sequence at position %d", (long long)n, r.pos[n]);
        if (B >= 0 && seen[r.seq[n]])
            call_fail(c, "the rows of sequence %d are no run", r.seq[n]);
        if (B >= 0)
            seen[r.seq[n]] = 1;
        r.begin[r.count++] = n;
    }
    r.begin[r.count] = N;
    return r;
}

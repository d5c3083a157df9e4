/* keys.c - checks of keys.h. */
#include "keys.h"

struct keys keys_arg(struct call *c, const struct cairn_keys *k, int64_t *N, int64_t *S, int64_t *W)
{
    int64_t B = -1, P = -1;
    struct keys o = {.page = k->page};

    o.rows = call_arg(c, "keys.rows", &k->rows, STRIDED | T_F32, 2, S, W);
    o.pos = call_arg(c, "keys.pos", &k->pos, T_I32, 1, N);
    o.seq = call_arg(c, "keys.seq", &k->seq, T_I32, 1, N);
    if (k->pages.buf)
        o.pages = call_arg(c, "keys.pages", &k->pages, T_I32, 2, &B, &P);
    else
        o.start = call_arg(c, "keys.start", &k->start, T_I32, 1, &B);
    if (call_ok(c) && o.pages.p && o.page < 1)
        call_fail(c, "keys.page = %d", o.page);
    for (int64_t n = 0; call_ok(c) && n < *N; n++) {
        int32_t b = i32(&o.seq)[n], p = i32(&o.pos)[n];

        if (b < 0 || b >= B || p < 0) {
            call_fail(c, "row %lld sits at position %d of sequence %d of %lld", (long long)n, p, b, (long long)B);
        } else if (!o.pages.p) {
            if (i32(&o.start)[b] < 0 || (int64_t)i32(&o.start)[b] + p >= *S)
                call_fail(c, "position %d of sequence %d is not below row %lld", p, b, (long long)*S);
        } else {
            if (p / o.page >= P)
                call_fail(c, "position %d of sequence %d needs more than %lld pages", p, b, (long long)P);
            for (int64_t i = 0; call_ok(c) && i <= p / o.page; i++) {
                int32_t page = i32(&o.pages)[b * P + i];
                int64_t used = i < p / o.page ? o.page : p % o.page + 1;

                if (page < 0 || (int64_t)page * o.page + used > *S)
                    call_fail(c, "page %d of sequence %d is not below row %lld", page, b, (long long)*S);
            }
        }
    }
    return o;
}

int64_t idx_count(const int32_t *idx, int64_t T, int32_t pos)
{
    int64_t n = 0;

    while (n < T && idx[n] >= 0) {
        if (idx[n] > pos || (n && idx[n] <= idx[n - 1]))
            return -1;
        n++;
    }
    for (int64_t i = n; i < T; i++)
        if (idx[i] != -1)
            return -1;
    return n;
}

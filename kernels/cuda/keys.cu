/* keys.cu - checks of keys.cuh that the host can do. */
#include "keys.cuh"

struct keys keys_arg(struct call *c, const struct cairn_keys *k, enum cuda_op op, int64_t *N, int64_t *S, int64_t *W)
{
    int64_t B = -1, P = 0;
    struct arg pos, seq, start = {}, pages = {};
    struct keys o = {};

    o.rows = call_arg(c, "keys.rows", &k->rows, STRIDED | T_ACT, 2, S, W);
    pos = call_arg(c, "keys.pos", &k->pos, T_I32, 1, N);
    seq = call_arg(c, "keys.seq", &k->seq, T_I32, 1, N);
    if (k->pages.buf) {
        P = -1;
        pages = call_arg(c, "keys.pages", &k->pages, T_I32, 2, &B, &P);
        if (call_ok(c) && k->page < 1)
            call_fail(c, "keys.page = %d", k->page);
    } else {
        start = call_arg(c, "keys.start", &k->start, T_I32, 1, &B);
    }
    o.pos = i32(&pos), o.seq = i32(&seq), o.start = i32(&start), o.pages = i32(&pages);
    o.N = *N, o.S = *S, o.B = B, o.P = P, o.page = k->page, o.op = op, o.fault = c->cuda->d_fault;
    return o;
}

/* matmul.cu - matmul and matmul_grouped: checks, and one struct product each (product.h).
 */
#include "product.h"

static int segments_ok(struct call *c, int segments, int64_t k)
{
    if (segments < 1 || segments > 1 << 16 || (segments & (segments - 1)))
        call_fail(c, "segments = %d is no power of two", segments);
    else if (k % segments)
        call_fail(c, "reduced dimension %lld is not a multiple of %d segments", (long long)k, segments);
    return call_ok(c);
}

static int form_ok(struct call *c, enum cairn_form form)
{
    if (form != CAIRN_NT && form != CAIRN_NN && form != CAIRN_TN)
        call_fail(c, "unknown form %d", (int)form);
    return call_ok(c);
}

static void run(struct call *c, const struct product *p, int segments)
{
    int parts = segments == 1 ? product_parts(p) : segments;

    product_run(c, p, parts, parts > 1 ? call_scratch(c, product_scratch(p, parts)) : NULL);
}

extern "C" enum cairn_status cairn_matmul_cuda(struct cairn_stream *s, const struct cairn_matmul *a, struct cairn_error *err)
{
    struct call c = call_begin("matmul", s, err);
    int64_t H = -1, N = -1, K = -1, O = -1;
    int heads = a->x.ndim == 3, d = heads ? 3 : 2, tn = a->form == CAIRN_TN, what = STRIDED | T_WEIGHT;
    struct arg x = {}, w = {}, y = {};

#define DIMS(t, out, A, B)                                                                                                         \
    (heads ? call_arg(&c, #t, &a->t, what | (out), 3, &H, &A, &B) : call_arg(&c, #t, &a->t, what | (out), 2, &A, &B))
    if (form_ok(&c, a->form)) {
        x = DIMS(x, 0, N, K);
        w = a->form == CAIRN_NT ? DIMS(w, 0, O, K) : tn ? DIMS(w, 0, N, O) : DIMS(w, 0, K, O);
        what = STRIDED | (tn ? T_F32 : T_WEIGHT);
        y = tn ? DIMS(y, OUT, K, O) : DIMS(y, OUT, N, O);
    }
#undef DIMS
    if (!heads)
        H = 1;
    if (call_ok(&c) && segments_ok(&c, a->segments, tn ? N : K)) {
        struct product p = {};

        p.a = x.p, p.b = w.p, p.y = y.p;
        p.as = x.s[d - 2], p.bs = w.s[d - 2], p.ys = y.s[d - 2];
        if (heads)
            p.ab = x.s[0], p.bb = w.s[0], p.yb = y.s[0];
        p.m = tn ? K : N, p.n = O, p.k = tn ? N : K;
        p.batch = (int)H;
        p.form = a->form;
        p.a_bf16 = x.type == CAIRN_BF16, p.b_bf16 = w.type == CAIRN_BF16, p.y_bf16 = y.type == CAIRN_BF16;
        p.op = OP_matmul;
        p.fault = c.cuda->d_fault;
        p.alpha = a->alpha;
        p.accumulate = a->accumulate != 0;
        run(&c, &p, a->segments);
    }
    return call_end(&c);
}

extern "C" enum cairn_status cairn_matmul_grouped_cuda(struct cairn_stream *s, const struct cairn_matmul_grouped *a,
                                                       struct cairn_error *err)
{
    struct call c = call_begin("matmul_grouped", s, err);
    int64_t E = -1, E1 = -1, N = -1, K = -1, O = -1;
    int tn = a->form == CAIRN_TN, what = STRIDED | T_WEIGHT;
    struct arg x = {}, w = {}, y = {}, offsets = {};

    if (form_ok(&c, a->form)) {
        x = call_arg(&c, "x", &a->x, what, 2, &N, &K);
        w = a->form == CAIRN_NT ? call_arg(&c, "w", &a->w, what, 3, &E, &O, &K)
            : tn                ? call_arg(&c, "w", &a->w, what, 2, &N, &O)
                                : call_arg(&c, "w", &a->w, what, 3, &E, &K, &O);
        y = tn ? call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 3, &E, &K, &O) : call_arg(&c, "y", &a->y, OUT | what, 2, &N, &O);
        E1 = E + 1;
        offsets = call_arg(&c, "offsets", &a->offsets, T_I32, 1, &E1);
    }
    if (call_ok(&c) && tn && a->segments != 1)
        call_fail(&c, "TN has one segment, not %d", a->segments);
    if (call_ok(&c) && segments_ok(&c, a->segments, tn ? 1 : K)) {
        struct product p = {};

        p.a = x.p, p.b = w.p, p.y = y.p;
        p.as = x.s[0], p.bs = tn ? w.s[0] : w.s[1], p.ys = tn ? y.s[1] : y.s[0];
        p.bb = tn ? 0 : w.s[0], p.yb = tn ? y.s[0] : 0;
        p.m = tn ? K : N, p.n = O, p.k = tn ? N : K;
        p.offsets = i32(&offsets);
        p.batch = (int)E;
        p.form = a->form;
        p.a_bf16 = x.type == CAIRN_BF16, p.b_bf16 = w.type == CAIRN_BF16, p.y_bf16 = y.type == CAIRN_BF16;
        p.op = OP_matmul_grouped;
        p.fault = c.cuda->d_fault;
        p.alpha = a->alpha;
        p.accumulate = a->accumulate != 0;
        run(&c, &p, a->segments);
    }
    return call_end(&c);
}

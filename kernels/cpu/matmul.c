/* matmul.c - matmul and matmul_grouped through gemm.h: checks, and threads that share the outputs. */
#include "base/planted.h"
#include "gemm.h"

static int segments_ok(struct call *c, int segments, int64_t k)
{
    if (segments < 1 || segments > 1 << 16 || (segments & (segments - 1)))
        call_fail(c, "segments = %d is no power of two", segments);
    else if (k % segments)
        call_fail(c, "reduced dimension %lld is not a multiple of %d segments", (long long)k, segments);
    return call_ok(c);
}

/* `products` products of one shape or several, each cut into `pieces` rectangles: piece t of all of them is one piece of the job.
 */
struct job {
    struct gemm (*product)(const struct job *j, int64_t i);
    int64_t products;
    int pieces;
    enum cairn_form form;
    struct arg x, w, y;
    const int32_t *offsets; /* grouped only */
    int64_t N, K, O;
    float alpha;
    int accumulate, segments;
};

static void job_part(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct job *j = ctx;

    for (int64_t t = begin; t < end; t++)
        for (int64_t i = 0; i < j->products; i++) {
            struct gemm g = j->product(j, i);

            if (g.m == 0 || g.n == 0 || (g.k == 0 && g.accumulate))
                continue;
            gemm_piece(&g, (int)t, j->pieces, scratch);
        }
}

static void job_run(struct call *c, struct job *j, int64_t work)
{
    call_reserve(c, gemm_scratch_bytes(j->segments), 0);
    if (!call_ok(c))
        return;
    j->pieces = call_pieces(c, work, 2 * (int64_t)c->cpu->threads);
    call_share(c, j->pieces, 1, work, job_part, j);
}

static struct gemm of_head(const struct job *j, int64_t h)
{
    int d = j->x.ndim, heads = d == 3;
    struct gemm g =
        gemm_product(j->form, f32(&j->x) + (heads ? h * j->x.s[0] : 0), j->x.s[d - 2],
                     (const char *)j->w.p + (heads ? (size_t)(h * j->w.s[0]) * cairn_dtype_size(j->w.type) : 0), j->w.type,
                     j->w.s[d - 2], f32(&j->y) + (heads ? h * j->y.s[0] : 0), j->y.s[d - 2], j->N, j->K, j->O);

    g.alpha = j->alpha, g.accumulate = j->accumulate, g.segments = j->segments;
    if (cairn_planted("matmul-last-term-lost") && g.k > 16)
        g.k--;
    return g;
}

enum cairn_status cairn_matmul_cpu(struct cairn_stream *s, const struct cairn_matmul *a, struct cairn_error *err)
{
    struct call c = call_begin("matmul", s, err);
    int64_t H = -1, N = -1, K = -1, O = -1;
    int heads = a->x.ndim == 3;
    struct arg x, w, y;
    struct job j;

#define DIMS(t, A, B) heads ? call_arg(&c, #t, &a->t, t##_what, 3, &H, &A, &B) : call_arg(&c, #t, &a->t, t##_what, 2, &A, &B)
    {
        int x_what = STRIDED | T_F32, w_what = STRIDED | (a->form == CAIRN_TN ? T_F32 : T_WEIGHT), y_what = OUT | STRIDED | T_F32;

        switch (a->form) {
        case CAIRN_NT:
            x = DIMS(x, N, K), w = DIMS(w, O, K), y = DIMS(y, N, O);
            break;
        case CAIRN_NN:
            x = DIMS(x, N, K), w = DIMS(w, K, O), y = DIMS(y, N, O);
            break;
        case CAIRN_TN:
            x = DIMS(x, N, K), w = DIMS(w, N, O), y = DIMS(y, K, O);
            break;
        default:
            call_fail(&c, "unknown form %d", (int)a->form);
        }
    }
#undef DIMS
    if (!heads)
        H = 1;
    if (call_ok(&c) && segments_ok(&c, a->segments, a->form == CAIRN_TN ? N : K)) {
        j = (struct job){of_head, H, 1, a->form, x, w, y, NULL, N, K, O, a->alpha, a->accumulate, a->segments};
        job_run(&c, &j, H * N * K * O / 4);
    }
    return call_end(&c);
}

static struct gemm of_group(const struct job *j, int64_t e)
{
    int64_t first = j->offsets[e], n = j->offsets[e + 1] - first;
    int tn = j->form == CAIRN_TN;
    const void *w = tn ? (const void *)at1(&j->w, first)
                       : (const char *)j->w.p + (size_t)((cairn_planted("grouped-next-expert") ? e ^ (j->products > (e ^ 1)) : e) * j->w.s[0]) *
                                                    cairn_dtype_size(j->w.type);
    struct gemm g = gemm_product(j->form, at1(&j->x, first), j->x.s[0], w, j->w.type, tn ? j->w.s[0] : j->w.s[1],
                                 tn ? at1(&j->y, e) : at1(&j->y, first), tn ? j->y.s[1] : j->y.s[0], n, j->K, j->O);

    g.alpha = j->alpha, g.accumulate = j->accumulate, g.segments = j->segments;
    return g;
}

enum cairn_status cairn_matmul_grouped_cpu(struct cairn_stream *s, const struct cairn_matmul_grouped *a, struct cairn_error *err)
{
    struct call c = call_begin("matmul_grouped", s, err);
    int64_t E = -1, E1 = -1, N = -1, K = -1, O = -1;
    struct arg x = {0}, w = {0}, y = {0}, offsets;
    struct job j;

    switch (a->form) {
    case CAIRN_NT:
        x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &K);
        w = call_arg(&c, "w", &a->w, STRIDED | T_WEIGHT, 3, &E, &O, &K);
        y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &N, &O);
        break;
    case CAIRN_NN:
        x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &K);
        w = call_arg(&c, "w", &a->w, STRIDED | T_WEIGHT, 3, &E, &K, &O);
        y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &N, &O);
        break;
    case CAIRN_TN:
        x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &K);
        w = call_arg(&c, "w", &a->w, STRIDED | T_F32, 2, &N, &O);
        y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 3, &E, &K, &O);
        break;
    default:
        call_fail(&c, "unknown form %d", (int)a->form);
    }
    E1 = E + 1;
    offsets = call_arg(&c, "offsets", &a->offsets, T_I32, 1, &E1);
    if (call_ok(&c) && a->form == CAIRN_TN ? a->segments != 1 : 0)
        call_fail(&c, "TN has one segment, not %d", a->segments);
    if (call_ok(&c) && segments_ok(&c, a->segments, a->form == CAIRN_TN ? 1 : K)) {
        const int32_t *off = i32(&offsets);

        for (int64_t e = 0; e < E; e++)
            if (off[0] != 0 || off[e + 1] < off[e] || off[E] != N)
                call_fail(&c, "offsets do not run from 0 to %lld", (long long)N);
        if (call_ok(&c)) {
            j = (struct job){of_group, E, 1, a->form, x, w, y, off, N, K, O, a->alpha, a->accumulate, a->segments};
            job_run(&c, &j, N * K * O / 4);
        }
    }
    return call_end(&c);
}

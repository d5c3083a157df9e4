/* bench_elements.c - bandwidth of the GPU's ops that only move and map: norms, rotary positions, gates, rows, routing, optimiser.
 *
 *     bench_elements [--act f32|bf16] [--rows N] [--width D]
 *
 * One line an op: shape, microseconds (median of REPEATS, each the mean of a batch of calls between two waits), bytes that it must
 * move, GB/s, and that as a share of a device-to-device copy's measured in the same run. Inputs are random; the large ones are
 * beyond the L2, of the small ones (a decode step's) only the time tells. Shapes: GLM-5 (width 6144, 64 heads, 256 experts, 8 a
 * token, expert width 2048). Run it on the emulated GPU with small --rows to see that it is whole.
 */
#include "bench.h"

OP(rmsnorm)
OP(rmsnorm_bwd)
OP(layernorm)
OP(rope) OP(swiglu) OP(swiglu_bwd) OP(rows) OP(embed_bwd) OP(axpby) OP(cast) OP(router) OP(router_bwd) OP(dispatch) OP(combine)
    OP(combine_bwd) OP(adamw) OP(sumsq) OP(policy_loss)

        static enum cairn_status op_copy(struct cairn_stream *s, const void *a, struct cairn_error *e)
{
    const struct cairn_tensor *t = a;

    return cairn_tensor_copy(s, &t[1], &t[0], e);
}

/* All ops for n rows of width d. */
static void all(int64_t n, int64_t d)
{
    const enum cairn_dtype act = c.act;
    const double z = (double)cairn_dtype_size(act);
    const int64_t H = 64, R = 64, E = 256, K = 8, F = 2048, V = 154880, m = n * K;
    int32_t *v = malloc((size_t)m * sizeof *v);
    char shape[64];

    if (!v)
        exit(73);
#define SHAPE(...) (snprintf(shape, sizeof shape, __VA_ARGS__), shape)
    {
        struct cairn_tensor x = normal(act, 2, n, d, 1, 1), y = tensor(act, 2, n, d, 1), g = normal(act, 1, d, 1, 1, 1),
                            b = normal(act, 1, d, 1, 1, 1), r = tensor(CAIRN_F32, 1, n, 1, 1), dy = normal(act, 2, n, d, 1, 1),
                            dg = normal(CAIRN_F32, 1, d, 1, 1, 0);
        struct cairn_tensor pair[2] = {x, y};
        struct cairn_rmsnorm f = {x, g, y, r, 1e-5f};
        struct cairn_layernorm l = {x, g, b, y, 1e-5f};
        struct cairn_rmsnorm_bwd w = {x, g, r, dy, y, dg, 1}, frozen = {.x = x, .g = g, .rstd = r, .dy = dy, .dx = y};
        struct cairn_axpby a = {x, y, 1, 1};

        if (copy_gb_s == 0) {
            double s = timed(op_copy, pair);

            line("copy", SHAPE("%lld x %lld", (long long)n, (long long)d), s, 2 * z * (double)(n * d));
            copy_gb_s = 1e-9 * 2 * z * (double)(n * d) / s;
        }
        SHAPE("%lld x %lld", (long long)n, (long long)d);
        line("rmsnorm", shape, timed(op_rmsnorm, &f), 2 * z * (double)(n * d));
        line("layernorm", shape, timed(op_layernorm, &l), 2 * z * (double)(n * d));
        line("rmsnorm_bwd", shape, timed(op_rmsnorm_bwd, &w), 6 * z * (double)(n * d));
        line("  frozen", shape, timed(op_rmsnorm_bwd, &frozen), 3 * z * (double)(n * d));
        line("axpby", shape, timed(op_axpby, &a), 3 * z * (double)(n * d));
        forget();
    }
    {
        struct cairn_tensor x = normal(act, 3, n, H, R, 1), y = tensor(act, 3, n, H, R), pos;
        struct cairn_rope f;

        for (int64_t i = 0; i < n; i++)
            v[i] = (int32_t)i;
        pos = ints(1, n, 1, v);
        f = (struct cairn_rope){x, y, pos, 1e6f, 0};
        line("rope", SHAPE("%lld x %lld x %lld", (long long)n, (long long)H, (long long)R), timed(op_rope, &f),
             2 * z * (double)(n * H * R));
        forget();
    }
    {
        struct cairn_tensor a = normal(act, 2, m, F, 1, 1), u = normal(act, 2, m, F, 1, 1), h = tensor(act, 2, m, F, 1),
                            da = tensor(act, 2, m, F, 1), du = tensor(act, 2, m, F, 1);
        struct cairn_swiglu f = {a, u, h, 0};
        struct cairn_swiglu_bwd w = {a, u, a, da, du, 0};

        SHAPE("%lld x %lld", (long long)m, (long long)F);
        line("swiglu", shape, timed(op_swiglu, &f), 3 * z * (double)(m * F));
        line("swiglu_bwd", shape, timed(op_swiglu_bwd, &w), 5 * z * (double)(m * F));
        forget();
    }
    {
        struct cairn_tensor r = normal(CAIRN_F32, 2, n, E, 1, 1), bias = normal(CAIRN_F32, 1, E, 1, 1, 0.01f),
                            idx = tensor(CAIRN_I32, 2, n, K, 1), gate = tensor(CAIRN_F32, 2, n, K, 1),
                            prob = tensor(CAIRN_F32, 2, n, K, 1), dr = tensor(CAIRN_F32, 2, n, E, 1),
                            off = tensor(CAIRN_I32, 1, E + 1, 1, 1), token = tensor(CAIRN_I32, 1, m, 1, 1),
                            where = tensor(CAIRN_I32, 2, n, K, 1), x = normal(act, 2, n, d, 1, 1), xs = tensor(act, 2, m, d, 1),
                            y = tensor(act, 2, n, d, 1), dgate = tensor(CAIRN_F32, 2, n, K, 1);
        struct cairn_router f = {r, bias, idx, gate, prob, {0}, 1, 1, 1, 2.5f};
        struct cairn_router_bwd w = {idx, prob, gate, dr, 1, 2.5f};
        struct cairn_dispatch sort = {idx, off, token, where};
        struct cairn_rows gather = {.src = x, .src_index = token, .dst = xs};
        struct cairn_combine mix = {xs, gate, where, x, y};
        struct cairn_combine_bwd back = {xs, gate, where, x, xs, dgate};

        SHAPE("%lld x %lld, %lld a row", (long long)n, (long long)E, (long long)K);
        line("router", shape, timed(op_router, &f), 4.0 * (double)(n * E + 3 * m));
        line("router_bwd", shape, timed(op_router_bwd, &w), 4.0 * (double)(n * E + 3 * m));
        line("dispatch", shape, timed(op_dispatch, &sort), 4.0 * (double)(4 * m));
        line("rows (gather)", SHAPE("%lld x %lld", (long long)m, (long long)d), timed(op_rows, &gather),
             z * (double)(n * d + m * d));
        line("combine", shape, timed(op_combine, &mix), z * (double)(2 * n * d + m * d));
        line("combine_bwd", shape, timed(op_combine_bwd, &back), z * (double)(n * d + 2 * m * d));
        forget();
    }
    {
        struct cairn_tensor table = normal(act, 2, V, d, 1, 1), ids, y = tensor(act, 2, n, d, 1), dy = normal(act, 2, n, d, 1, 1),
                            dt;
        struct cairn_rows look;
        struct cairn_embed_bwd back;

        for (int64_t i = 0; i < n; i++) /* a few tokens are very common, as in text */
            v[i] = (int32_t)(draw((uint32_t)i, 1) % 4 ? draw((uint32_t)i, 2) % V : draw((uint32_t)i, 2) % 8);
        ids = ints(1, n, 1, v);
        dt = tensor(CAIRN_F32, 2, V, d, 1);
        must(cairn_tensor_zero(&c.stream, &dt, &err), "clearing");
        look = (struct cairn_rows){.src = table, .src_index = ids, .dst = y};
        back = (struct cairn_embed_bwd){ids, dy, dt};
        SHAPE("%lld x %lld", (long long)n, (long long)d);
        line("rows (embed)", shape, timed(op_rows, &look), 2 * z * (double)(n * d));
        line("embed_bwd", shape, timed(op_embed_bwd, &back), (z + 8) * (double)(n * d));
        forget();
    }
    {
        const int64_t p = n * d;
        struct cairn_tensor w = normal(CAIRN_F32, 1, p, 1, 1, 1), g = normal(CAIRN_F32, 1, p, 1, 1, 1),
                            mo = normal(CAIRN_F32, 1, p, 1, 1, 0), ve = normal(CAIRN_F32, 1, p, 1, 1, 0),
                            out = tensor(CAIRN_F64, 1, 1, 1, 1), half = tensor(CAIRN_BF16, 1, p, 1, 1);
        struct cairn_adamw f = {w, g, mo, ve, 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 3};
        struct cairn_sumsq q = {.x = g, .out = out}, many;
        struct cairn_cast k = {w, half, -1};
        enum { pieces = 200 }; /* of half a million elements, as an update of a large model takes them */
        int64_t piece[pieces][2];

        for (int64_t i = 0; i < pieces; i++) {
            piece[i][0] = p * i / pieces;
            piece[i][1] = p * (i + 1) / pieces - piece[i][0];
        }

        SHAPE("%lld", (long long)p);
        line("adamw", shape, timed(op_adamw, &f), 28.0 * (double)p);
        line("sumsq", shape, timed(op_sumsq, &q), 4.0 * (double)p);
        line("cast", shape, timed(op_cast, &k), 6.0 * (double)p);
        many = (struct cairn_sumsq){g, tensor(CAIRN_F64, 1, pieces, 1, 1), tensor(CAIRN_I64, 2, pieces, 2, 1)};
        must(cairn_tensor_set(&c.stream, &many.pieces, piece, sizeof piece, &err), "sending");
        line("  in pieces", SHAPE("%lld in %lld", (long long)p, (long long)pieces), timed(op_sumsq, &many), 4.0 * (double)p);
        forget();
    }
    for (int ratio = CAIRN_RATIO_TOKEN; ratio <= CAIRN_RATIO_SEQUENCE; ratio++) {
        struct cairn_tensor cur = normal(CAIRN_F32, 1, n, 1, 1, 1), old = normal(CAIRN_F32, 1, n, 1, 1, 1),
                            adv = normal(CAIRN_F32, 1, n, 1, 1, 1), weight = normal(CAIRN_F32, 1, n, 1, 1, 1),
                            mask = tensor(CAIRN_U8, 1, n, 1, 1), dcur = tensor(CAIRN_F32, 1, n, 1, 1),
                            stats = tensor(CAIRN_F64, 1, CAIRN_LS_COUNT, 1, 1), seq;
        struct cairn_policy_loss f;

        for (int64_t i = 0; i < n; i++)
            v[i] = (int32_t)(i / 1000);
        seq = ints(1, n, 1, v);
        memset(v, 1, (size_t)n);
        must(cairn_tensor_set(&c.stream, &mask, v, (size_t)n, &err), "sending");
        must(cairn_tensor_zero(&c.stream, &stats, &err), "clearing");
        f = (struct cairn_policy_loss){.cur = cur,
                                       .old = old,
                                       .smp = old,
                                       .adv = adv,
                                       .weight = weight,
                                       .mask = mask,
                                       .seq = seq,
                                       .dcur = dcur,
                                       .stats = stats,
                                       .ratio = (enum cairn_ratio)ratio,
                                       .correction = CAIRN_CORRECT_TIS,
                                       .clip_low = 0.2f,
                                       .clip_high = 0.28f,
                                       .correct_high = 2};
        line(ratio == CAIRN_RATIO_TOKEN ? "policy_loss" : "  by sequence", SHAPE("%lld", (long long)n), timed(op_policy_loss, &f),
             24.0 * (double)n);
        forget();
    }
    free(v);
}

int main(int argc, char **argv)
{
    struct cairn_compute_opts o = {.backend = "cuda"};
    int64_t n = 16384, d = 6144;
    int failed = 0;

    for (int i = 1; i + 1 < argc; i += 2)
        if (!strcmp(argv[i], "--act"))
            o.act = argv[i + 1];
        else if (!strcmp(argv[i], "--rows"))
            n = atoll(argv[i + 1]);
        else if (!strcmp(argv[i], "--width"))
            d = atoll(argv[i + 1]);
        else
            failed = 1;
    if (failed || argc % 2 == 0 || n < 1 || d < 1) {
        fprintf(stderr, "usage: bench_elements [--act f32|bf16] [--rows N] [--width D]\n");
        return 64;
    }
    must(cairn_compute_open(&c, &o, &err), "the GPU");
    noise_make();
    printf("%s\n", c.numerics);
    all(n, d);
    if (n > 64) {
        printf("a decode step: 64 rows\n");
        all(64, d);
    }
    free(noise);
    cairn_compute_close(&c);
    return 0;
}

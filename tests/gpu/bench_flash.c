/* bench_flash.c - the GPU's ops of GLM-5.3-Flash one by one: KDA forward, backward and decoded rows, what stands around it, and
 * hyper-connections.
 *
 *     bench_flash [--act f32|bf16] [--rows N]
 *
 * One line an op: shape, microseconds (bench.h), bytes that it must move, GB/s and share of a device-to-device copy's in the same
 * run; KDA also multiply-adds that it must do (kernels/cuda/kda.cu, kda_bwd.cu), in TFLOP/s: its products are fp32, whose limit on
 * an H200 is 67 TFLOP/s. Shapes: 64 heads of 128, four streams of 4096, 128 channels in the indexer. Rows: N in sequences of 2,048,
 * then in one; decoding: 64 and 256 sequences, at each place of a chunk in turn. Run it on the emulated GPU with --rows 40.
 */
#include "bench.h"

OP(short_conv)
OP(short_conv_bwd)
OP(kda_gate)
OP(kda_gate_bwd)
OP(kda)
OP(kda_bwd)
OP(gated_norm)
OP(gated_norm_bwd)
OP(hyper)
OP(hyper_bwd) OP(hyper_out) OP(hyper_out_bwd) OP(pool_keys) OP(swiglu)

    enum {
        H = 64,
        D = 128,
        P = H * D,
        K = 4,
        J = 4,
        M = J * (J + 2),
        WIDTH = 4096,
        INDEX = 128,
        POOL = 4
    };

static enum cairn_status op_copy(struct cairn_stream *s, const void *a, struct cairn_error *e)
{
    const struct cairn_tensor *t = a;

    return cairn_tensor_copy(s, &t[1], &t[0], e);
}

static void flops(double s, double count)
{
    printf("%-14s %-28s %10.1f us %9.1f GF %8.2f TFLOP/s\n", "", "", 1e6 * s, 1e-9 * count, 1e-12 * count / s);
}

/* Positions and sequences of n rows, `length` a sequence, or each of its own at position `at`. */
static struct cairn_tensor rows_of(int64_t n, int64_t length, int32_t at, int seqs)
{
    int32_t *v = malloc((size_t)n * sizeof *v);
    struct cairn_tensor x;

    if (!v)
        exit(73);
    for (int64_t i = 0; i < n; i++)
        v[i] = (int32_t)(seqs ? (length ? i / length : i) : length ? i % length : at);
    x = ints(1, n, 1, v);
    free(v);
    return x;
}

/* a * normal + b */
static struct cairn_tensor shifted(int64_t n, int64_t m, float a, float b)
{
    struct cairn_tensor x = tensor(CAIRN_F32, 2, n, m, 1);
    int64_t count = n * m;
    float *h = malloc((size_t)count * sizeof *h);

    if (!h)
        exit(73);
    for (int64_t i = 0; i < count; i++)
        h[i] = a * noise[(size_t)i % NOISE] + b;
    must(cairn_tensor_set(&c.stream, &x, h, (size_t)count * sizeof *h, &err), "sending");
    free(h);
    return x;
}

static struct cairn_tensor heads(struct cairn_tensor x, int64_t n)
{
    const int64_t dim[3] = {n, H, D};

    return cairn_tensor_reshape(&x, 3, dim);
}

/* length 0: a row of each of n sequences. */
static void attention(int64_t n, int64_t length)
{
    const double z = (double)cairn_dtype_size(c.act), all = (double)n * P;
    char shape[64];
    struct cairn_tensor q = normal(c.act, 2, n, P, 1, 1), k = normal(c.act, 2, n, P, 1, 1), v = normal(c.act, 2, n, P, 1, 1),
                        o = tensor(c.act, 2, n, P, 1), g = shifted(n, P, 0.1f, -0.5f), beta = shifted(n, H, 0.1f, 0.5f),
                        pos = rows_of(n, length, 16, 0), seq = rows_of(n, length, 0, 1);
    struct cairn_kda f = {heads(q, n), heads(k, n), heads(v, n), heads(g, n), beta, heads(o, n), pos, seq, {0}, 0.088f, 1e-6f};

    if (length) {
        struct cairn_tensor d_o = normal(c.act, 2, n, P, 1, 1), dq = tensor(c.act, 2, n, P, 1), dk = tensor(c.act, 2, n, P, 1),
                            dv = tensor(c.act, 2, n, P, 1), dg = tensor(CAIRN_F32, 2, n, P, 1), db = tensor(CAIRN_F32, 2, n, H, 1);
        struct cairn_kda_bwd b = {f.q,          f.k,          f.v, f.g, beta, heads(d_o, n), heads(dq, n), heads(dk, n),
                                  heads(dv, n), heads(dg, n), db,  pos, seq,  0.088f,        1e-6f};
        double s;

        snprintf(shape, sizeof shape, "%lld rows, %lld a sequence", (long long)n, (long long)length);
        s = timed(op_kda, &f);
        line("kda", shape, s, all * (4 * z + 4));
        flops(s, 2 * all * (3 * D + 70));
        s = timed(op_kda_bwd, &b);
        line("kda_bwd", shape, s, all * (7 * z + 8));
        flops(s, 2 * all * (11 * D + 200));
        forget();
        return;
    }
    {
        const int64_t dim[4] = {n, H, CAIRN_KDA_ROWS(D), D};
        double sum = 0;

        f.state = normal(CAIRN_F32, 3, n, H, CAIRN_KDA_ROWS(D) * D, 0.1f);
        f.state = cairn_tensor_reshape(&f.state, 4, dim);
        for (int i = 0; i < CAIRN_KDA_CHUNK; i++) {
            f.pos = rows_of(n, 0, 16 + i, 0);
            sum += timed(op_kda, &f) / CAIRN_KDA_CHUNK;
        }
        snprintf(shape, sizeof shape, "%lld sequences", (long long)n);
        /* the state; half of the open keys and rows read, the keys among them written; every 16th time the state again, twice */
        line("kda (decode)", shape, sum, 4 * (double)n * H * (D * D * (1 + 2.0 / 16) + 7.5 * D * 3));
        forget();
    }
}

static void around(int64_t n, int64_t length)
{
    const double z = (double)cairn_dtype_size(c.act), all = (double)n * P, wide = (double)n * WIDTH;
    char shape[64];

    snprintf(shape, sizeof shape, "%lld x %d", (long long)n, 3 * P);
    {
        struct cairn_tensor x = normal(c.act, 2, n, 3 * P, 1, 1), y = tensor(c.act, 2, n, 3 * P, 1),
                            dx = tensor(c.act, 2, n, 3 * P, 1), w = normal(CAIRN_BF16, 2, 3 * P, K, 1, 1),
                            dw = normal(CAIRN_F32, 2, 3 * P, K, 1, 0), pos = rows_of(n, length, 16, 0),
                            seq = rows_of(n, length, 0, 1);
        struct cairn_short_conv f = {x, w, y, pos, seq, {0}};
        struct cairn_short_conv_bwd b = {x, w, y, dx, dw, pos, seq},
                                    frozen = {.x = x, .w = w, .dy = y, .dx = dx, .pos = pos, .seq = seq};

        if (!length)
            f.tail = normal(c.act, 3, n, K, 3 * P, 1);
        line("short_conv", shape, timed(op_short_conv, &f), 6 * z * all);
        if (length) {
            line("short_conv_bwd", shape, timed(op_short_conv_bwd, &b), 9 * z * all);
            line("  frozen", shape, timed(op_short_conv_bwd, &frozen), 9 * z * all);
        }
        forget();
    }
    snprintf(shape, sizeof shape, "%lld x %d", (long long)n, P);
    {
        struct cairn_tensor f = normal(c.act, 2, n, P, 1, 1), b = normal(c.act, 2, n, H, 1, 1),
                            a_log = normal(CAIRN_F32, 1, H, 1, 1, 1), bias = normal(CAIRN_F32, 1, P, 1, 1, 1),
                            g = tensor(CAIRN_F32, 2, n, P, 1), beta = tensor(CAIRN_F32, 2, n, H, 1),
                            da = normal(CAIRN_F32, 1, H, 1, 1, 0), dbias = normal(CAIRN_F32, 1, P, 1, 1, 0);
        struct cairn_kda_gate a = {f, b, a_log, bias, g, beta, -5};
        struct cairn_kda_gate_bwd w = {f, b, a_log, bias, g, beta, f, b, da, dbias, -5};

        line("kda_gate", shape, timed(op_kda_gate, &a), (z + 4) * all);
        if (length)
            line("kda_gate_bwd", shape, timed(op_kda_gate_bwd, &w), (2 * z + 4) * all);
        forget();
    }
    {
        struct cairn_tensor x = normal(c.act, 2, n * H, D, 1, 1), z2 = normal(c.act, 2, n * H, D, 1, 1),
                            w = normal(c.act, 1, D, 1, 1, 1), y = tensor(c.act, 2, n * H, D, 1),
                            r = tensor(CAIRN_F32, 1, n * H, 1, 1), dz = tensor(c.act, 2, n * H, D, 1),
                            dw = normal(CAIRN_F32, 1, D, 1, 1, 0);
        struct cairn_gated_norm a = {x, z2, w, y, r, 1e-5f};
        struct cairn_gated_norm_bwd b = {x, z2, w, r, y, y, dz, dw};

        line("gated_norm", shape, timed(op_gated_norm, &a), 3 * z * all);
        if (length)
            line("gated_norm_bwd", shape, timed(op_gated_norm_bwd, &b), 5 * z * all);
        forget();
    }
    snprintf(shape, sizeof shape, "%lld x %d x %d", (long long)n, J, WIDTH);
    {
        struct cairn_tensor x = normal(c.act, 3, n, J, WIDTH, 1), y = normal(c.act, 2, n, WIDTH, 1, 1),
                            m = normal(CAIRN_F32, 2, n, M, 1, 1), base = normal(CAIRN_F32, 1, M, 1, 1, 1),
                            scale = normal(CAIRN_F32, 1, 3, 1, 1, 1), mix = tensor(CAIRN_F32, 2, n, M, 1),
                            r = tensor(CAIRN_F32, 1, n, 1, 1), out = tensor(c.act, 3, n, J, WIDTH),
                            dmix = tensor(CAIRN_F32, 2, n, M, 1), dbase = normal(CAIRN_F32, 1, M, 1, 1, 0),
                            dscale = normal(CAIRN_F32, 1, 3, 1, 1, 0);
        struct cairn_hyper a = {x, m, base, scale, mix, r, y, 1e-5f, 1e-6f, 20};
        struct cairn_hyper_out o = {x, y, mix, out};
        struct cairn_hyper_out_bwd ob = {x, y, mix, out, y, dmix, out};
        struct cairn_hyper_bwd b = {x, m, base, scale, r, y, dmix, dmix, out, dbase, dscale, 1e-6f, 20};

        line("hyper", shape, timed(op_hyper, &a), (J + 1) * z * wide);
        line("hyper_out", shape, timed(op_hyper_out, &o), (2 * J + 1) * z * wide);
        if (length) {
            line("hyper_out_bwd", shape, timed(op_hyper_out_bwd, &ob), (3 * J + 2) * z * wide);
            line("hyper_bwd", shape, timed(op_hyper_bwd, &b), (3 * J + 1) * z * wide);
        }
        forget();
    }
    {
        struct cairn_tensor k = normal(c.act, 2, n, INDEX, 1, 1), gate = normal(c.act, 2, n, INDEX, 1, 1),
                            ape = normal(c.act, 2, POOL, INDEX, 1, 1), rows = tensor(c.act, 2, n / POOL + n + 1, INDEX, 1),
                            start = rows_of(n, length ? length : 1, 0, 1), pos = rows_of(n, length, 15, 0),
                            seq = rows_of(n, length, 0, 1);
        struct cairn_pool_keys a = {k, gate, ape, {0}, {.rows = rows, .pos = pos, .seq = seq, .start = start}};

        if (length) { /* all sequences' pools at the same place: only the time matters */
            must(cairn_tensor_zero(&c.stream, &start, &err), "clearing");
            snprintf(shape, sizeof shape, "%lld x %d", (long long)n, INDEX);
            line("pool_keys", shape, timed(op_pool_keys, &a), (2 + 1.0 / POOL) * z * (double)n * INDEX);
        }
        forget();
    }
    {
        struct cairn_tensor a = normal(c.act, 2, n * 8, 2048, 1, 4), u = normal(c.act, 2, n * 8, 2048, 1, 4),
                            h = tensor(c.act, 2, n * 8, 2048, 1);
        struct cairn_swiglu f = {a, u, h, 10};

        snprintf(shape, sizeof shape, "%lld x 2048", (long long)(8 * n));
        line("swiglu, clamped", shape, timed(op_swiglu, &f), 3 * z * (double)(n * 8 * 2048));
        forget();
    }
}

int main(int argc, char **argv)
{
    struct cairn_compute_opts o = {.backend = "cuda"};
    int64_t n = 8192;
    int bad = argc % 2 == 0;

    for (int i = 1; i + 1 < argc; i += 2)
        if (!strcmp(argv[i], "--act"))
            o.act = argv[i + 1];
        else if (!strcmp(argv[i], "--rows"))
            n = atoll(argv[i + 1]);
        else
            bad = 1;
    if (bad || n < 1) {
        fprintf(stderr, "usage: bench_flash [--act f32|bf16] [--rows N]\n");
        return 64;
    }
    must(cairn_compute_open(&c, &o, &err), "the GPU");
    noise_make();
    printf("%s\n", c.numerics);
    {
        struct cairn_tensor pair[2] = {normal(c.act, 2, n, P, 1, 1), tensor(c.act, 2, n, P, 1)};
        double s = timed(op_copy, pair), bytes = 2 * (double)cairn_tensor_bytes(&pair[0]);

        line("copy", "", s, bytes);
        copy_gb_s = 1e-9 * bytes / s;
        forget();
    }
    attention(n, n < 2048 ? n / 2 : 2048);
    attention(n, n);
    around(n, n < 2048 ? n / 2 : 2048);
    if (n > 64) {
        printf("a decode step\n");
        attention(64, 0);
        around(64, 0);
        attention(256, 0);
        around(256, 0);
    } else {
        attention(2, 0);
        around(2, 0);
    }
    free(noise);
    cairn_compute_close(&c);
    return 0;
}

/* bench_kernels.c - see bench_kernels.h. Buffers are filled once with random numbers; every figure is the least of the repeats,
 * since others on the machine only add. Times are of ops on the cpu back-end as programs use them, checks and threads included.
 */
#include "tools/bench_kernels.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/philox.h"
#include "kernels/backend.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the machine ------------------------------------------------------------------------------------------------------------- */

#define ROUNDS 200000

#ifdef __x86_64__
#define CHAINS 12 /* independent sums, more than latency times ports */

__attribute__((target("avx512f"))) static double fma_512(void)
{
    __m512 s[CHAINS], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
    float out[16];

    for (int i = 0; i < CHAINS; i++)
        s[i] = _mm512_set1_ps((float)i);
    for (int r = 0; r < ROUNDS; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            s[i] = _mm512_fmadd_ps(s[i], a, b);
    }
    for (int i = 1; i < CHAINS; i++)
        s[0] = _mm512_add_ps(s[0], s[i]);
    _mm512_storeu_ps(out, s[0]);
    return out[0];
}

__attribute__((target("avx2,fma"))) static double fma_256(void)
{
    __m256 s[CHAINS], a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
    float out[8];

    for (int i = 0; i < CHAINS; i++)
        s[i] = _mm256_set1_ps((float)i);
    for (int r = 0; r < ROUNDS; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            s[i] = _mm256_fmadd_ps(s[i], a, b);
    }
    for (int i = 1; i < CHAINS; i++)
        s[0] = _mm256_add_ps(s[0], s[i]);
    _mm256_storeu_ps(out, s[0]);
    return out[0];
}
#endif

static volatile double sink;

/* Floating-point operations done. */
static double burn(void)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) {
        sink = fma_512();
        return 2.0 * 16 * CHAINS * ROUNDS;
    }
    if (__builtin_cpu_supports("fma")) {
        sink = fma_256();
        return 2.0 * 8 * CHAINS * ROUNDS;
    }
#endif
    {
        float s[16];

        for (int i = 0; i < 16; i++)
            s[i] = (float)i;
        for (int r = 0; r < ROUNDS; r++)
            for (int i = 0; i < 16; i++)
                s[i] = s[i] * 0.999f + 1e-3f;
        for (int i = 0; i < 16; i++)
            sink = s[i];
        return 2.0 * 16 * ROUNDS;
    }
}

static void *burn_thread(void *p)
{
    *(double *)p = burn();
    return NULL;
}

double cairn_bench_fma_peak(int threads)
{
    double best = 0;

    for (int k = 0; k < 40; k++) {
        pthread_t id[256];
        double done[256], start = now_s(), total = 0, rate;
        int n = threads > 256 ? 256 : threads, made = 1;

        while (made < n && pthread_create(&id[made], NULL, burn_thread, &done[made]) == 0)
            made++;
        done[0] = burn();
        for (int i = 1; i < made; i++)
            pthread_join(id[i], NULL);
        for (int i = 0; i < made; i++)
            total += done[i];
        rate = total / (now_s() - start) * 1e-9;
        best = rate > best ? rate : best;
    }
    return best;
}

/* ---- ops --------------------------------------------------------------------------------------------------------------------- */

#define BUFFERS 32

struct bench {
    struct cairn_compute c;
    struct cairn_error err;
    struct cairn_buffer *made[BUFFERS];
    int n;
    double peak, copy; /* GFLOP/s, GB/s */
    FILE *out;
};

/* A tensor of random normal numbers (f32) or zeros (other types). */
static struct cairn_tensor tensor(struct bench *b, enum cairn_dtype type, int ndim, int64_t d0, int64_t d1, int64_t d2)
{
    struct cairn_tensor t = {0};
    const int64_t dim[3] = {d0, d1, d2};
    const struct cairn_philox_key key = {1, CAIRN_PURPOSE_DATA, 1};
    size_t count = (size_t)(d0 * (ndim > 1 ? d1 : 1) * (ndim > 2 ? d2 : 1));
    float *p;

    if (b->n == BUFFERS || cairn_buffer_create(b->c.dev, count * cairn_dtype_size(type), &b->made[b->n], &b->err) != CAIRN_OK)
        return t;
    cairn_tensor_view(&t, b->made[b->n++], 0, type, ndim, dim, &b->err);
    p = cairn_buffer_open(t.buf, CAIRN_WRITE);
    memset(p, 0, count * cairn_dtype_size(type));
    for (size_t i = 0; type == CAIRN_F32 && i < count; i++) {
        uint32_t w[4];

        if (i % 4096 == 0 || i < 4096) {
            double z[2];

            cairn_philox(&key, (uint32_t)i, (uint32_t)b->n, 0, w);
            cairn_normal2(w[0], w[1], z);
            p[i] = (float)z[0];
        } else {
            p[i] = p[i - 4096];
        }
    }
    cairn_buffer_close(t.buf);
    return t;
}

static void ints(struct cairn_tensor *t, int64_t (*value)(int64_t i, const int64_t *k), const int64_t *k)
{
    int32_t *p = cairn_buffer_open(t->buf, CAIRN_WRITE);

    for (int64_t i = 0; i < cairn_tensor_count(t); i++)
        p[i] = (int32_t)value(i, k);
    cairn_buffer_close(t->buf);
}

static void forget(struct bench *b)
{
    while (b->n)
        cairn_buffer_destroy(b->made[--b->n]);
}

/* Least time of one call: 15 samples of at least 1 ms each. */
static enum cairn_status clock_call(struct bench *b, enum cairn_status (*call)(struct bench *, const void *), const void *arg,
                                    double *seconds)
{
    enum cairn_status st = CAIRN_OK;
    double best = 1e30;
    int batch = 1;

    for (;;) {
        double start = now_s();

        for (int i = 0; i < batch; i++)
            TRY(call(b, arg));
        if (now_s() - start > 1e-3 || batch > 1 << 16)
            break;
        batch *= 2;
    }
    for (int k = 0; k < 15; k++) {
        double start = now_s();

        for (int i = 0; i < batch; i++)
            TRY(call(b, arg));
        if ((now_s() - start) / batch < best)
            best = (now_s() - start) / batch;
    }
    *seconds = best;
out:
    return st;
}

/* One line. flop or bytes: what one call does. */
static enum cairn_status line(struct bench *b, const char *name, enum cairn_status (*call)(struct bench *, const void *),
                              const void *arg, double flop, double bytes)
{
    enum cairn_status st = CAIRN_OK;
    double s;

    TRY(clock_call(b, call, arg, &s));
    fprintf(b->out, "%-44s %10.1f us", name, s * 1e6);
    if (flop > 0)
        fprintf(b->out, " %8.1f GFLOP/s %5.1f %%\n", flop / s * 1e-9, 100 * flop / s * 1e-9 / b->peak);
    else
        fprintf(b->out, " %8.1f GB/s    %5.1f %%\n", bytes / s * 1e-9, 100 * bytes / s * 1e-9 / b->copy);
out:
    return st;
}

#define CALL(op)                                                                                                                   \
    static enum cairn_status call_##op(struct bench *b, const void *a)                                                             \
    {                                                                                                                              \
        return b->c.ops.op(&b->c.stream, (const struct cairn_##op *)a, &b->err);                                                   \
    }
CALL(matmul)
CALL(matmul_grouped)
CALL(rmsnorm)
CALL(rmsnorm_bwd)
CALL(rope)
CALL(index)
CALL(attention)
CALL(attention_bwd)
CALL(router)
CALL(swiglu)
CALL(swiglu_bwd)
CALL(combine)
CALL(rows)
CALL(axpby)
CALL(logprob)
CALL(logprob_bwd)
CALL(sample)
CALL(adamw)
CALL(sumsq)
CALL(short_conv)
CALL(kda_gate)
CALL(kda)
CALL(kda_bwd)
CALL(gated_norm)
CALL(hyper)
CALL(hyper_bwd)
CALL(hyper_out)

static enum cairn_status products(struct bench *b)
{
    static const int sizes[][3] = {/* N, K, O */ {2048, 512, 512},
                                   {2048, 128, 128},
                                   {2048, 96, 240},
                                   {2048, 64, 32},
                                   {128, 128, 128},
                                   {128, 96, 240},
                                   {16, 128, 256},
                                   {1, 128, 128},
                                   {1, 512, 512}};
    static const char *const forms[] = {"NT", "NN", "TN"};
    enum cairn_status st = CAIRN_OK;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int f = CAIRN_NT; f <= CAIRN_TN; f++) {
            int64_t n = sizes[i][0], k = sizes[i][1], o = sizes[i][2];
            struct cairn_matmul a = {.form = f, .alpha = 1, .segments = 1};
            char name[64];

            if (f == CAIRN_TN && n < 128)
                continue;
            a.x = tensor(b, CAIRN_F32, 2, n, k, 0);
            a.w = f == CAIRN_NT   ? tensor(b, CAIRN_F32, 2, o, k, 0)
                  : f == CAIRN_NN ? tensor(b, CAIRN_F32, 2, k, o, 0)
                                  : tensor(b, CAIRN_F32, 2, n, o, 0);
            a.y = f == CAIRN_TN ? tensor(b, CAIRN_F32, 2, k, o, 0) : tensor(b, CAIRN_F32, 2, n, o, 0);
            snprintf(name, sizeof name, "matmul %s N=%d K=%d O=%d", forms[f], (int)n, (int)k, (int)o);
            TRY(line(b, name, call_matmul, &a, 2.0 * (double)n * (double)k * (double)o, 0));
            forget(b);
        }
out:
    forget(b);
    return st;
}

static int64_t even_offsets(int64_t i, const int64_t *k)
{
    return i * k[0];
}

static enum cairn_status grouped(struct bench *b)
{
    static const char *const names[] = {"grouped NT 8 experts N=4096 K=96 O=64", "grouped NN 8 experts N=4096 K=64 O=96",
                                        "grouped TN 8 experts N=4096 K=64 O=96", "grouped NT 8 experts N=256 K=96 O=64"};
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < 4; i++) {
        int form = i == 3 ? CAIRN_NT : i;
        int64_t n = i == 3 ? 256 : 4096, e = 8, k = form == CAIRN_NT ? 96 : 64, o = form == CAIRN_NT ? 64 : 96, each = n / e;
        struct cairn_matmul_grouped a = {.form = form, .alpha = 1, .segments = 1};

        a.x = tensor(b, CAIRN_F32, 2, n, k, 0);
        a.w = form == CAIRN_NT   ? tensor(b, CAIRN_F32, 3, e, o, k)
              : form == CAIRN_NN ? tensor(b, CAIRN_F32, 3, e, k, o)
                                 : tensor(b, CAIRN_F32, 2, n, o, 0);
        a.y = form == CAIRN_TN ? tensor(b, CAIRN_F32, 3, e, k, o) : tensor(b, CAIRN_F32, 2, n, o, 0);
        a.offsets = tensor(b, CAIRN_I32, 1, e + 1, 0, 0);
        ints(&a.offsets, even_offsets, &each);
        TRY(line(b, names[i], call_matmul_grouped, &a, 2.0 * (double)n * (double)k * (double)o, 0));
        forget(b);
    }
out:
    forget(b);
    return st;
}

/* Sequences of equal length k[0]. */
static int64_t position_of(int64_t i, const int64_t *k)
{
    return i % k[0];
}
static int64_t sequence_of(int64_t i, const int64_t *k)
{
    return i / k[0];
}

static enum cairn_status attention(struct bench *b)
{
    static const int sizes[][6] = {/* N, length, H, W, C, T */ {2048, 64, 6, 40, 32, 16},
                                   {2048, 256, 4, 40, 32, 32},
                                   {4096, 4096, 6, 40, 32, 512},
                                   {2048, 64, 6, 40, 32, 64}};
    enum cairn_status st = CAIRN_OK;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t n = sizes[i][0], len = sizes[i][1], H = sizes[i][2], W = sizes[i][3], C = sizes[i][4], T = sizes[i][5], B = n / len,
                D = 16;
        double pairs = 0, seen = 0;
        char name[64];
        struct cairn_keys keys = {.rows = tensor(b, CAIRN_F32, 2, n, W, 0)}, ikeys;
        struct cairn_index x;
        struct cairn_attention a;
        struct cairn_attention_bwd g;

        keys.pos = tensor(b, CAIRN_I32, 1, n, 0, 0);
        keys.seq = tensor(b, CAIRN_I32, 1, n, 0, 0);
        keys.start = tensor(b, CAIRN_I32, 1, B, 0, 0);
        ints(&keys.pos, position_of, &len);
        ints(&keys.seq, sequence_of, &len);
        ints(&keys.start, even_offsets, &len);
        for (int64_t k = 0; k < n; k++) {
            pairs += (double)(k % len + 1 < T ? k % len + 1 : T);
            seen += k % len < T ? 0 : (double)(k % len + 1);
        }
        ikeys = keys;
        ikeys.rows = tensor(b, CAIRN_F32, 2, n, D, 0);
        x = (struct cairn_index){tensor(b, CAIRN_F32, 3, n, 4, D), tensor(b, CAIRN_F32, 2, n, 4, 0),
                                 tensor(b, CAIRN_I32, 2, n, T, 0), ikeys, 0.25f};
        snprintf(name, sizeof name, "index N=%d of %d, 4 x 16, T=%d", (int)n, (int)len, (int)T);
        if (seen > 0)
            TRY(line(b, name, call_index, &x, 2 * seen * 4 * (double)(D + 1), 0));
        else
            TRY(call_index(b, &x));
        a = (struct cairn_attention){tensor(b, CAIRN_F32, 3, n, H, W), x.idx, tensor(b, CAIRN_F32, 3, n, H, C),
                                     tensor(b, CAIRN_F32, 2, n, H, 0), keys,  0.16f};
        snprintf(name, sizeof name, "attention N=%d of %d, H=%d W=%d T=%d", (int)n, (int)len, (int)H, (int)W, (int)T);
        TRY(line(b, name, call_attention, &a, 2 * pairs * (double)(H * (W + C)), 0));
        g = (struct cairn_attention_bwd){.q = a.q, .idx = a.idx, .o = a.o, .lse = a.lse, .keys = keys, .scale = 0.16f};
        g.d_o = tensor(b, CAIRN_F32, 3, n, H, C);
        g.dq = tensor(b, CAIRN_F32, 3, n, H, W), g.dk = tensor(b, CAIRN_F32, 2, n, W, 0);
        snprintf(name, sizeof name, "attention_bwd N=%d of %d, H=%d W=%d T=%d", (int)n, (int)len, (int)H, (int)W, (int)T);
        TRY(line(b, name, call_attention_bwd, &g, 2 * pairs * (double)(H * (3 * W + 2 * C)), 0));
        forget(b);
    }
out:
    forget(b);
    return st;
}

static int64_t modulo(int64_t i, const int64_t *k)
{
    return i * 7919 % k[0];
}

/* GLM-5.3-Flash. Multiply-adds of KDA that count: products with the state and its updates, 3 D^2 a row, backward 9. */
static enum cairn_status flash(struct bench *b)
{
    static const int sizes[][4] = {/* N, length, H, D */ {2048, 256, 4, 16}, {1024, 256, 4, 128}};
    enum cairn_status st = CAIRN_OK;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t n = sizes[i][0], len = sizes[i][1], H = sizes[i][2], D = sizes[i][3], P = H * D, J = 4, M = J * (J + 2);
        const int64_t by_head[3] = {n, H, D}, rows[2] = {n * H, D};
        double all = (double)(n * P);
        char name[128];
        struct cairn_tensor x = tensor(b, CAIRN_F32, 2, n, P, 0), y = tensor(b, CAIRN_F32, 2, n, P, 0),
                            pos = tensor(b, CAIRN_I32, 1, n, 0, 0), seq = tensor(b, CAIRN_I32, 1, n, 0, 0),
                            g = tensor(b, CAIRN_F32, 2, n, P, 0), beta = tensor(b, CAIRN_F32, 2, n, H, 0),
                            q = tensor(b, CAIRN_F32, 3, n, H, D), k = tensor(b, CAIRN_F32, 3, n, H, D),
                            v = tensor(b, CAIRN_F32, 3, n, H, D), o = tensor(b, CAIRN_F32, 3, n, H, D),
                            dg = tensor(b, CAIRN_F32, 3, n, H, D), dbeta = tensor(b, CAIRN_F32, 2, n, H, 0),
                            streams = tensor(b, CAIRN_F32, 3, n, J, P), m = tensor(b, CAIRN_F32, 2, n, M, 0),
                            mix = tensor(b, CAIRN_F32, 2, n, M, 0);
        struct cairn_tensor base = tensor(b, CAIRN_F32, 1, M, 0, 0), scale = tensor(b, CAIRN_F32, 1, 3, 0, 0),
                            rstd = tensor(b, CAIRN_F32, 1, n, 0, 0);
        struct cairn_short_conv conv = {x, tensor(b, CAIRN_F32, 2, P, 4, 0), y, pos, seq, {0}};
        struct cairn_kda_gate gate = {
            x, tensor(b, CAIRN_F32, 2, n, H, 0), tensor(b, CAIRN_F32, 1, H, 0, 0), tensor(b, CAIRN_F32, 1, P, 0, 0), g, beta, -5};
        struct cairn_gated_norm norm = {.x = cairn_tensor_reshape(&x, 2, rows),
                                        .z = cairn_tensor_reshape(&y, 2, rows),
                                        .w = tensor(b, CAIRN_F32, 1, D, 0, 0),
                                        .y = cairn_tensor_reshape(&o, 2, rows),
                                        .eps = 1e-5f};
        struct cairn_kda f;
        struct cairn_kda_bwd r;
        struct cairn_hyper h = {streams, m, base, scale, mix, rstd, y, 1e-5f, 1e-6f, 20};
        struct cairn_hyper_out over = {streams, x, mix, streams};
        struct cairn_hyper_bwd back = {.x = streams,
                                       .m = m,
                                       .base = base,
                                       .scale = scale,
                                       .rstd = rstd,
                                       .dy = x,
                                       .dmix = m,
                                       .dm = mix,
                                       .dx = streams,
                                       .eps = 1e-6f,
                                       .iterations = 20};

        ints(&pos, position_of, &len);
        ints(&seq, sequence_of, &len);
        snprintf(name, sizeof name, "short_conv %lldx%lld", (long long)n, (long long)P);
        TRY(line(b, name, call_short_conv, &conv, 0, 8 * all));
        snprintf(name, sizeof name, "kda_gate %lldx%lld", (long long)n, (long long)P);
        TRY(line(b, name, call_kda_gate, &gate, 0, 8 * all));
        g = cairn_tensor_reshape(&g, 3, by_head);
        f = (struct cairn_kda){q, k, v, g, beta, o, pos, seq, {0}, 0.1f, 1e-6f};
        r = (struct cairn_kda_bwd){q, k, v, g, beta, o, y, y, y, dg, dbeta, pos, seq, 0.1f, 1e-6f};
        r.dq = r.dk = r.dv = cairn_tensor_reshape(&y, 3, by_head);
        snprintf(name, sizeof name, "kda %lld of %lld, %lld heads of %lld", (long long)n, (long long)len, (long long)H,
                 (long long)D);
        TRY(line(b, name, call_kda, &f, 6 * all * (double)D, 0));
        snprintf(name, sizeof name, "kda_bwd %lld of %lld, %lld heads of %lld", (long long)n, (long long)len, (long long)H,
                 (long long)D);
        TRY(line(b, name, call_kda_bwd, &r, 18 * all * (double)D, 0));
        snprintf(name, sizeof name, "gated_norm %lldx%lld", (long long)(n * H), (long long)D);
        TRY(line(b, name, call_gated_norm, &norm, 0, 12 * all));
        snprintf(name, sizeof name, "hyper %lldx%lldx%lld", (long long)n, (long long)J, (long long)P);
        TRY(line(b, name, call_hyper, &h, 0, 4 * all * (double)(J + 1)));
        TRY(line(b, "  out", call_hyper_out, &over, 0, 4 * all * (double)(2 * J + 1)));
        TRY(line(b, "  backward", call_hyper_bwd, &back, 0, 4 * all * (double)(3 * J + 1)));
        forget(b);
    }
out:
    forget(b);
    return st;
}

static enum cairn_status rest(struct bench *b)
{
    enum cairn_status st = CAIRN_OK;
    int64_t N = 2048, D = 128, F = 512, V = 2331, E = 8, K = 2, P = 1 << 20, R = 16, twice = 2 * N;
    double nd = (double)(N * D), nf = (double)(N * F);
    struct cairn_tensor x = tensor(b, CAIRN_F32, 2, N, D, 0), y = tensor(b, CAIRN_F32, 2, N, D, 0),
                        g = tensor(b, CAIRN_F32, 1, D, 0, 0), s = tensor(b, CAIRN_F32, 1, N, 0, 0);
    struct cairn_tensor dg = tensor(b, CAIRN_F32, 1, D, 0, 0), a = tensor(b, CAIRN_F32, 2, N, F, 0),
                        u = tensor(b, CAIRN_F32, 2, N, F, 0), h = tensor(b, CAIRN_F32, 2, N, F, 0);
    struct cairn_tensor da = tensor(b, CAIRN_F32, 2, N, F, 0), du = tensor(b, CAIRN_F32, 2, N, F, 0),
                        pos = tensor(b, CAIRN_I32, 1, N, 0, 0);
    struct cairn_tensor r = tensor(b, CAIRN_F32, 2, N, E, 0), idx = tensor(b, CAIRN_I32, 2, N, K, 0),
                        gate = tensor(b, CAIRN_F32, 2, N, K, 0), prob = tensor(b, CAIRN_F32, 2, N, K, 0);
    struct cairn_tensor where = tensor(b, CAIRN_I32, 2, N, K, 0), xs = tensor(b, CAIRN_F32, 2, N * K, D, 0),
                        bias = tensor(b, CAIRN_F32, 1, E, 0, 0);
    const int64_t heads[3] = {N, D / R, R};
    struct cairn_rmsnorm rms = {x, g, y, s, 1e-5f};
    struct cairn_rmsnorm_bwd rmsb = {x, g, s, y, xs, dg, 0};
    struct cairn_rope rope = {cairn_tensor_reshape(&x, 3, heads), cairn_tensor_reshape(&y, 3, heads), pos, 1e4f, 0};
    struct cairn_swiglu sw = {a, u, h, 0};
    struct cairn_swiglu_bwd swb = {a, u, h, da, du, 0};
    struct cairn_router ro = {r, bias, idx, gate, prob, {0}, 1, 1, 1, 2.5f};
    struct cairn_combine co = {xs, gate, where, x, y};
    struct cairn_rows rows = {.src = x, .src_index = where, .dst = xs};
    struct cairn_axpby ax = {x, y, 1, 1};
    const int64_t flat = N * K;

    rmsb.dx = cairn_tensor_slice(&xs, 0, 0, N);
    rows.src_index = cairn_tensor_reshape(&where, 1, &flat);
    ints(&pos, modulo, &N);
    ints(&where, modulo, &N);
    TRY(line(b, "rmsnorm 2048 x 128", call_rmsnorm, &rms, 0, 8 * nd));
    TRY(line(b, "rmsnorm_bwd 2048 x 128", call_rmsnorm_bwd, &rmsb, 0, 12 * nd));
    TRY(line(b, "rope 2048 x 8 x 16", call_rope, &rope, 0, 8 * nd));
    TRY(line(b, "swiglu 2048 x 512", call_swiglu, &sw, 0, 12 * nf));
    TRY(line(b, "swiglu_bwd 2048 x 512", call_swiglu_bwd, &swb, 0, 20 * nf));
    TRY(line(b, "router 2048 x 8, 2 of them", call_router, &ro, 0, 4 * (double)(N * (E + 3 * K))));
    TRY(line(b, "rows 4096 of 2048 x 128", call_rows, &rows, 0, 4 * 2 * 2 * nd));
    ints(&where, modulo, &twice);
    TRY(line(b, "combine 2048 x 128 from 2 each", call_combine, &co, 0, 4 * 4 * nd));
    TRY(line(b, "axpby 2048 x 128", call_axpby, &ax, 0, 12 * nd));
    forget(b);
    {
        struct cairn_tensor z = tensor(b, CAIRN_F32, 2, N, D, 0), w = tensor(b, CAIRN_F32, 2, V, D, 0),
                            t = tensor(b, CAIRN_I32, 1, N, 0, 0), lp = tensor(b, CAIRN_F32, 1, N, 0, 0);
        struct cairn_tensor lse = tensor(b, CAIRN_F32, 1, N, 0, 0), en = tensor(b, CAIRN_F32, 1, N, 0, 0),
                            dz = tensor(b, CAIRN_F32, 2, N, D, 0), dw = tensor(b, CAIRN_F32, 2, V, D, 0);
        struct cairn_tensor logits = tensor(b, CAIRN_F32, 2, 128, V, 0), id = tensor(b, CAIRN_I32, 1, 128, 0, 0),
                            tok = tensor(b, CAIRN_I32, 1, 128, 0, 0), l1 = tensor(b, CAIRN_F32, 1, 128, 0, 0);
        struct cairn_logprob f = {z, w, t, lp, lse, en, {0}, 1, 1};
        struct cairn_logprob_bwd gb = {z, w, t, lse, en, lp, {0}, dz, dw, 1, 1};
        struct cairn_sample sa = {logits, id, id, id, tok, l1, {0}, 1, 1, 1, 1, 0, 0, 0, 1, {0}}, cut = sa;
        double flop = 2.0 * (double)(N * V * D);

        cut.top_p = 0.95f;
        cut.top_k = 50;
        ints(&t, modulo, &V);
        TRY(line(b, "logprob 2048 x 128, V=2331", call_logprob, &f, flop, 0));
        TRY(line(b, "logprob_bwd 2048 x 128, V=2331", call_logprob_bwd, &gb, 3 * flop, 0));
        TRY(line(b, "sample 128, V=2331", call_sample, &sa, 0, 4.0 * 128 * (double)V));
        TRY(line(b, "sample 128, V=2331, top-k, top-p", call_sample, &cut, 0, 4.0 * 128 * (double)V));
        forget(b);
    }
    {
        struct cairn_tensor p = tensor(b, CAIRN_F32, 1, P, 0, 0), gr = tensor(b, CAIRN_F32, 1, P, 0, 0),
                            m = tensor(b, CAIRN_F32, 1, P, 0, 0), v = tensor(b, CAIRN_F32, 1, P, 0, 0);
        struct cairn_adamw ad = {p, gr, m, v, 1e-4f, 0.9f, 0.999f, 1e-8f, 0, 1, 5};
        struct cairn_sumsq sq = {.x = gr, .out = tensor(b, CAIRN_F64, 1, 1, 0, 0)};
        struct cairn_tensor zero = v;

        TRY(cairn_tensor_zero(&b->c.stream, &zero, &b->err));
        TRY(line(b, "adamw 1 M", call_adamw, &ad, 0, 28.0 * (double)P));
        TRY(line(b, "sumsq 1 M", call_sumsq, &sq, 0, 4.0 * (double)P));
    }
out:
    forget(b);
    return st;
}

static double copy_rate(void)
{
    size_t bytes = (size_t)64 << 20;
    char *p = malloc(bytes), *q = malloc(bytes);
    double best = 0;

    if (p && q) {
        memset(p, 1, bytes);
        memset(q, 2, bytes);
        for (int k = 0; k < 5; k++) {
            double start = now_s(), rate;

            memcpy(k % 2 ? p : q, k % 2 ? q : p, bytes);
            rate = 2.0 * (double)bytes / (now_s() - start) * 1e-9;
            best = rate > best ? rate : best;
        }
    }
    free(p);
    free(q);
    return best;
}

int cairn_bench_kernels(FILE *out)
{
    struct bench b = {.out = out};
    enum cairn_status st = CAIRN_OK;
    int threads;

    TRY(cairn_compute_open(&b.c, &(struct cairn_compute_opts){.backend = "cpu"}, &b.err));
    threads = b.c.backend->threads(b.c.dev);
    b.peak = cairn_bench_fma_peak(threads);
    b.copy = copy_rate();
    fprintf(out, "%s, %d threads: fma peak %.0f GFLOP/s, copy by one thread %.1f GB/s\n", b.c.numerics, threads, b.peak, b.copy);
    TRY(products(&b));
    TRY(grouped(&b));
    TRY(attention(&b));
    TRY(flash(&b));
    TRY(rest(&b));
out:
    forget(&b);
    if (st != CAIRN_OK)
        fprintf(out, "bench: %s\n", b.err.text);
    cairn_compute_close(&b.c);
    return (int)st;
}

/* bench_head.c - the fused head: log-probability, entropy, GRPO loss and their backward, memory and time beside the bare products.
 *
 *     bench_head [--act f32|bf16] [--rows N] [--ids V] [--width D]        (16384 x 154880, 6144 wide)
 *
 * Memory is what the device has less free once everything has run, arguments and results not counted: they are there before. The
 * bare products write all logits (N, V), and take their gradient as given. Times are medians of REPEATS.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/philox.h"
#include "kernels/backend.h"

#define REPEATS 5
#define NOISE   (1 << 20)

static struct cairn_compute c;
static struct cairn_error err;

static void must(enum cairn_status st, const char *what)
{
    if (st == CAIRN_OK)
        return;
    fprintf(stderr, "bench_head: %s: %s\n", what, err.text);
    exit((int)st);
}

static struct cairn_tensor tensor(enum cairn_dtype t, int ndim, int64_t a, int64_t b)
{
    int64_t dim[2] = {a, b}, count = ndim > 1 ? a * b : a;
    struct cairn_buffer *buf;
    struct cairn_tensor x;

    must(cairn_buffer_create(c.dev, (size_t)count * cairn_dtype_size(t), &buf, &err), "a buffer");
    must(cairn_tensor_view(&x, buf, 0, t, ndim, dim, &err), "a tensor");
    return x;
}

/* Numbers between -scale and scale, in pieces of one block. */
static struct cairn_tensor noise(enum cairn_dtype t, int64_t a, int64_t b, float scale)
{
    const struct cairn_philox_key key = {.seed = 5, .purpose = CAIRN_PURPOSE_PROBE};
    struct cairn_tensor x = tensor(t, 2, a, b), from = tensor(CAIRN_F32, 1, NOISE - 3, 0);
    int64_t count = a * b, piece = NOISE - 3;
    float *h = malloc((size_t)piece * sizeof *h);

    if (!h)
        exit(73);
    for (int64_t i = 0; i < piece; i += 4) {
        uint32_t w[4];

        cairn_philox(&key, (uint32_t)i, 0, 0, w);
        for (int64_t j = 0; j < 4 && i + j < piece; j++)
            h[i + j] = ((float)(w[j] >> 8) * 0x1p-23f - 1) * scale;
    }
    must(cairn_tensor_set(&c.stream, &from, h, (size_t)piece * sizeof *h, &err), "sending");
    for (int64_t at = 0; at < count; at += piece) {
        int64_t n = count - at < piece ? count - at : piece;
        struct cairn_tensor part;

        must(cairn_tensor_view(&part, x.buf, (size_t)at * cairn_dtype_size(t), t, 1, &n, &err), "a part");
        must(c.ops.axpby(&c.stream, &(struct cairn_axpby){.x = cairn_tensor_slice(&from, 0, 0, n), .y = part, .a = 1}, &err), "axpby");
    }
    must(cairn_stream_wait(&c.stream, &err), "waiting");
    cairn_buffer_destroy(from.buf);
    free(h);
    return x;
}

static struct cairn_tensor same(int64_t n, float v)
{
    struct cairn_tensor x = tensor(CAIRN_F32, 1, n, 0);
    float *h = malloc((size_t)n * sizeof *h);

    if (!h)
        exit(73);
    for (int64_t i = 0; i < n; i++)
        h[i] = v;
    must(cairn_tensor_set(&c.stream, &x, h, (size_t)n * sizeof *h, &err), "sending");
    free(h);
    return x;
}

static size_t memory_free(void)
{
    size_t left = 0, total = 0;

    must(cairn_stream_wait(&c.stream, &err), "waiting");
    must(cairn_device_memory(c.dev, &left, &total, &err), "asking for memory");
    return left;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

#define TIMED(ms, call)                                                                                                            \
    do {                                                                                                                           \
        double took[REPEATS];                                                                                                      \
                                                                                                                                   \
        for (int i = -1; i < REPEATS; i++) {                                                                                       \
            double begin;                                                                                                          \
                                                                                                                                   \
            must(cairn_stream_wait(&c.stream, &err), "waiting");                                                                   \
            begin = cairn_now_s();                                                                                                 \
            must(call, #call);                                                                                                     \
            must(cairn_stream_wait(&c.stream, &err), "waiting");                                                                   \
            if (i >= 0)                                                                                                            \
                took[i] = 1e3 * (cairn_now_s() - begin);                                                                           \
        }                                                                                                                          \
        qsort(took, REPEATS, sizeof *took, by_value);                                                                              \
        (ms) = took[REPEATS / 2];                                                                                                  \
    } while (0)

/* The driver loads a kernel's code when it is first wanted, and the library makes its handle: none of it is the head's. So the same ops run
 * on a handle of their own first, on as many rows and ids as they take at a time; their scratch goes with it. */
static void warm(const struct cairn_compute_opts *o, int64_t n, int64_t v, int64_t d)
{
    struct cairn_compute real = c;
    struct cairn_tensor z, w, y, target, f[6], seq, mask, stats;

    must(cairn_compute_open(&c, o, &err), "opening once more");
    z = noise(c.act, n, d, 1), w = noise(c.act, v, d, 1), y = tensor(c.act, 2, n, v);
    target = tensor(CAIRN_I32, 1, n, 0), seq = tensor(CAIRN_I32, 1, n, 0), mask = tensor(CAIRN_U8, 1, n, 0),
    stats = tensor(CAIRN_F64, 1, CAIRN_LS_COUNT, 0);
    must(cairn_tensor_zero(&c.stream, &target, &err), "clearing");
    must(cairn_tensor_zero(&c.stream, &seq, &err), "clearing");
    must(cairn_tensor_zero(&c.stream, &mask, &err), "clearing");
    must(cairn_tensor_zero(&c.stream, &stats, &err), "clearing");
    for (int i = 0; i < 6; i++)
        f[i] = same(n, -1);
    must(c.ops.matmul(&c.stream, &(struct cairn_matmul){.form = CAIRN_NT, .x = z, .w = w, .y = y, .alpha = 1, .segments = 1}, &err), "matmul");
    must(c.ops.logprob(&c.stream,
                       &(struct cairn_logprob){
                           .z = z, .w = w, .target = target, .logprob = f[0], .lse = f[1], .entropy = f[2], .inv_temperature = 1, .segments = 1},
                       &err),
         "logprob");
    must(c.ops.policy_loss(&c.stream,
                           &(struct cairn_policy_loss){.cur = f[0],
                                                       .old = f[3],
                                                       .adv = f[3],
                                                       .weight = f[3],
                                                       .entropy = f[2],
                                                       .mask = mask,
                                                       .seq = seq,
                                                       .dcur = f[4],
                                                       .dentropy = f[5],
                                                       .stats = stats,
                                                       .clip_low = 0.2f,
                                                       .clip_high = 0.28f},
                           &err),
         "policy_loss");
    must(c.ops.logprob_bwd(&c.stream,
                           &(struct cairn_logprob_bwd){.z = z,
                                                       .w = w,
                                                       .target = target,
                                                       .lse = f[1],
                                                       .entropy = f[2],
                                                       .dlogprob = f[4],
                                                       .dentropy = f[5],
                                                       .dz = z,
                                                       .inv_temperature = 1,
                                                       .segments = 1},
                           &err),
         "logprob_bwd");
    must(cairn_stream_wait(&c.stream, &err), "waiting");
    cairn_buffer_destroy(z.buf), cairn_buffer_destroy(w.buf), cairn_buffer_destroy(y.buf), cairn_buffer_destroy(target.buf);
    cairn_buffer_destroy(seq.buf), cairn_buffer_destroy(mask.buf), cairn_buffer_destroy(stats.buf);
    for (int i = 0; i < 6; i++)
        cairn_buffer_destroy(f[i].buf);
    cairn_compute_close(&c);
    c = real;
}

int main(int argc, char **argv)
{
    struct cairn_compute_opts o = {.backend = "cuda"};
    int64_t N = 16384, V = 154880, D = 6144;
    struct cairn_tensor z, w, target, logprob, lse, entropy, dlogprob, dentropy, dz, old, adv, weight, mask, stats, seq, y, dw;
    struct cairn_logprob f;
    struct cairn_logprob_bwd b;
    struct cairn_policy_loss l;
    double fwd, loss, bwd, bwd_w, p_fwd, p_dz, p_dw;
    size_t before, after;
    unsigned char *ones;
    int32_t *h;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--act"))
            o.act = argv[i + 1];
        else if (!strcmp(argv[i], "--rows"))
            N = atoll(argv[i + 1]);
        else if (!strcmp(argv[i], "--ids"))
            V = atoll(argv[i + 1]);
        else if (!strcmp(argv[i], "--width"))
            D = atoll(argv[i + 1]);
    }
    if (cairn_compute_open(&c, &o, &err) != CAIRN_OK) {
        printf("1..0 # SKIP %s\n", err.text);
        return 0;
    }
    h = calloc((size_t)N, sizeof *h);
    ones = malloc((size_t)N);
    if (!h || !ones)
        return 73;
    memset(ones, 1, (size_t)N);
    z = noise(c.act, N, D, 1.7f), w = noise(c.act, V, D, 0.035f);
    seq = tensor(CAIRN_I32, 1, N, 0), mask = tensor(CAIRN_U8, 1, N, 0), stats = tensor(CAIRN_F64, 1, CAIRN_LS_COUNT, 0);
    must(cairn_tensor_set(&c.stream, &seq, h, (size_t)N * sizeof *h, &err), "sending");
    must(cairn_tensor_set(&c.stream, &mask, ones, (size_t)N, &err), "sending");
    must(cairn_tensor_zero(&c.stream, &stats, &err), "clearing");
    for (int64_t i = 0; i < N; i++)
        h[i] = (int32_t)(i * 7919 % V);
    target = tensor(CAIRN_I32, 1, N, 0);
    must(cairn_tensor_set(&c.stream, &target, h, (size_t)N * sizeof *h, &err), "sending");
    logprob = tensor(CAIRN_F32, 1, N, 0), lse = tensor(CAIRN_F32, 1, N, 0), entropy = tensor(CAIRN_F32, 1, N, 0);
    dlogprob = tensor(CAIRN_F32, 1, N, 0), dentropy = tensor(CAIRN_F32, 1, N, 0), dz = tensor(c.act, 2, N, D);
    old = same(N, -12), adv = same(N, 0.5f), weight = same(N, 1 / (float)N);
    f = (struct cairn_logprob){
        .z = z, .w = w, .target = target, .logprob = logprob, .lse = lse, .entropy = entropy, .inv_temperature = 1, .segments = 1};
    l = (struct cairn_policy_loss){.cur = logprob,
                                   .old = old,
                                   .adv = adv,
                                   .weight = weight,
                                   .entropy = entropy,
                                   .mask = mask,
                                   .seq = seq,
                                   .dcur = dlogprob,
                                   .dentropy = dentropy,
                                   .stats = stats,
                                   .clip_low = 0.2f,
                                   .clip_high = 0.28f,
                                   .entropy_coef = 0.01f};
    b = (struct cairn_logprob_bwd){.z = z, .w = w, .target = target, .lse = lse, .entropy = entropy, .dlogprob = dlogprob, .dentropy = dentropy,
                                   .dz = dz, .inv_temperature = 1, .segments = 1};
    warm(&o, N < 2048 ? N : 2048, V < 16384 ? V : 16384, D);
    before = memory_free();
    must(c.ops.logprob(&c.stream, &f, &err), "logprob");
    must(c.ops.policy_loss(&c.stream, &l, &err), "policy_loss");
    must(c.ops.logprob_bwd(&c.stream, &b, &err), "logprob_bwd");
    after = memory_free();
    printf("%s: %lld x %lld, %lld wide: %.1f MiB beside arguments and results (allowed 64); all logits in f32 would be %.1f MiB\n", c.numerics,
           (long long)N, (long long)V, (long long)D, (double)(before - after) * 0x1p-20, (double)N * (double)V * 0x1p-18);
    TIMED(fwd, c.ops.logprob(&c.stream, &f, &err));
    TIMED(loss, c.ops.policy_loss(&c.stream, &l, &err));
    TIMED(bwd, c.ops.logprob_bwd(&c.stream, &b, &err));
    dw = tensor(CAIRN_F32, 2, V, D);
    must(cairn_tensor_zero(&c.stream, &dw, &err), "clearing");
    b.dw = dw;
    TIMED(bwd_w, c.ops.logprob_bwd(&c.stream, &b, &err));
    y = tensor(c.act, 2, N, V);
#define PRODUCT(f, X, W, Y, add)                                                                                                                     \
    c.ops.matmul(&c.stream, &(struct cairn_matmul){.form = f, .x = X, .w = W, .y = Y, .alpha = 1, .accumulate = add, .segments = 1}, &err)
    TIMED(p_fwd, PRODUCT(CAIRN_NT, z, w, y, 0));
    TIMED(p_dz, PRODUCT(CAIRN_NN, y, w, dz, 0));
    TIMED(p_dw, PRODUCT(CAIRN_TN, y, z, dw, 1));
    printf("%-34s %9.3f ms, product %9.3f ms, ratio %.3f\n", "log-probability and entropy", fwd, p_fwd, fwd / p_fwd);
    printf("%-34s %9.3f ms\n", "loss", loss);
    printf("%-34s %9.3f ms, products %9.3f ms, ratio %.3f\n", "forward, loss, backward, frozen", fwd + loss + bwd, p_fwd + p_dz,
           (fwd + loss + bwd) / (p_fwd + p_dz));
    printf("%-34s %9.3f ms, products %9.3f ms, ratio %.3f (logits are made again: %.3f with that product)\n", "forward, loss, backward",
           fwd + loss + bwd_w, p_fwd + p_dz + p_dw, (fwd + loss + bwd_w) / (p_fwd + p_dz + p_dw), (fwd + loss + bwd_w) / (2 * p_fwd + p_dz + p_dw));
    printf("{\"what\":\"head\",\"extra_mib\":%.1f,\"fwd_ms\":%.3f,\"loss_ms\":%.3f,\"bwd_frozen_ms\":%.3f,\"bwd_ms\":%.3f,\"product_ms\":%.3f,\"dz_"
           "ms\":%.3f,\"dw_ms\":%.3f}\n",
           (double)(before - after) * 0x1p-20, fwd, loss, bwd, bwd_w, p_fwd, p_dz, p_dw);
    free(h);
    free(ones);
    return before - after > (size_t)64 << 20 ? 76 : 0;
}

/* bf16_errors.c - what the back-end's bf16 ops make of given numbers, for a comparison of their rounding errors with another
 * implementation's on the same inputs: bf16_errors.py.
 *
 *     bf16_errors DIR [ROWS]
 *
 * Writes every input and every result as DIR/OP.NAME.TYPE.SHAPE (f32, bf16 or i32, as they lie in memory). Inputs are normal
 * numbers, weights such that results are of order one. ROWS: rows of every op (default 256; fewer on an emulated GPU).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "kernels/backend.h"

#define MOST 16

static struct cairn_compute c;
static struct cairn_error err;
static struct cairn_buffer *buffers[MOST];
static int n_buffers;
static uint32_t draws;
static const char *folder, *op_name;

static void must(enum cairn_status st, const char *what)
{
    if (st == CAIRN_OK)
        return;
    fprintf(stderr, "bf16_errors: %s: %s: %s\n", op_name ? op_name : "start", what, err.text);
    exit((int)st);
}

static struct cairn_tensor tensor(enum cairn_dtype t, int ndim, int64_t a, int64_t b, int64_t d)
{
    const int64_t dim[3] = {a, b, d};
    struct cairn_tensor x;

    if (n_buffers == MOST)
        exit(70);
    must(cairn_buffer_create(c.dev, (size_t)(a * (ndim > 1 ? b : 1) * (ndim > 2 ? d : 1)) * cairn_dtype_size(t),
                             &buffers[n_buffers], &err),
         "a buffer");
    must(cairn_tensor_view(&x, buffers[n_buffers++], 0, t, ndim, dim, &err), "a tensor");
    must(cairn_tensor_zero(&c.stream, &x, &err), "clearing");
    return x;
}

static void keep(const char *name, const struct cairn_tensor *t)
{
    char path[4096];
    int at = snprintf(path, sizeof path, "%s/%s.%s.%s.", folder, op_name, name, cairn_dtype_name(t->dtype));
    size_t bytes = cairn_tensor_bytes(t);
    void *h = malloc(bytes);
    FILE *f;

    for (int i = 0; i < t->ndim && at < (int)sizeof path; i++)
        at += snprintf(path + at, sizeof path - (size_t)at, "%s%lld", i ? "x" : "", (long long)t->dim[i]);
    if (!h)
        exit(73);
    must(cairn_tensor_get(&c.stream, t, h, bytes, &err), name);
    f = fopen(path, "wb");
    if (!f || fwrite(h, 1, bytes, f) != bytes || fclose(f)) {
        perror(path);
        exit(74);
    }
    free(h);
}

/* Normal numbers times scale plus shift; kept under its name. */
static struct cairn_tensor normal(const char *name, enum cairn_dtype t, int ndim, int64_t a, int64_t b, int64_t d, float scale,
                                  float shift)
{
    const struct cairn_philox_key key = {20261129, CAIRN_PURPOSE_DATA, 3};
    struct cairn_tensor x = tensor(t, ndim, a, b, d), from;
    int64_t n = cairn_tensor_count(&x);
    float *h = malloc((size_t)n * sizeof *h);
    struct cairn_buffer *buf;
    uint32_t w[4];
    double z[2];

    if (!h)
        exit(73);
    for (int64_t i = 0; i < n; i++) {
        cairn_philox(&key, draws++, 1, 2, w);
        cairn_normal2(w[0], w[1], z);
        h[i] = (float)z[0] * scale + shift;
    }
    must(cairn_buffer_create(c.dev, (size_t)n * sizeof *h, &buf, &err), "a buffer");
    must(cairn_tensor_view(&from, buf, 0, CAIRN_F32, ndim, x.dim, &err), "a tensor");
    must(cairn_tensor_set(&c.stream, &from, h, (size_t)n * sizeof *h, &err), "sending");
    must(c.ops.cast(&c.stream, &(struct cairn_cast){from, x, -1}, &err), "cast");
    must(cairn_stream_wait(&c.stream, &err), "waiting");
    cairn_buffer_destroy(buf);
    free(h);
    keep(name, &x);
    return x;
}

static struct cairn_tensor ints(const char *name, int ndim, int64_t a, int64_t b, int32_t (*value)(int64_t i, int64_t j))
{
    struct cairn_tensor x = tensor(CAIRN_I32, ndim, a, b, 1);
    int32_t *h = malloc((size_t)cairn_tensor_count(&x) * sizeof *h);
    int64_t width = ndim > 1 ? b : 1;

    if (!h)
        exit(73);
    for (int64_t i = 0; i < a; i++)
        for (int64_t j = 0; j < width; j++)
            h[i * width + j] = value(i, j);
    must(cairn_tensor_set(&c.stream, &x, h, cairn_tensor_bytes(&x), &err), "sending");
    free(h);
    keep(name, &x);
    return x;
}

static int32_t row_itself(int64_t i, int64_t j)
{
    (void)j;
    return (int32_t)i;
}
static int32_t far_position(int64_t i, int64_t j)
{
    (void)j;
    return (int32_t)(i * 37 % 16384);
}
static int32_t zero(int64_t i, int64_t j)
{
    return (int32_t)(0 * (i + j));
}
static int32_t all_before(int64_t i, int64_t j) /* every position that row i sees */
{
    return j <= i ? (int32_t)j : -1;
}
static int32_t some_token(int64_t i, int64_t j)
{
    return (int32_t)((i * 7919 + j) % 4096);
}
static int32_t fourths(int64_t i, int64_t j)
{
    return (int32_t)(4 * i + j);
}

static void done(void)
{
    must(cairn_stream_wait(&c.stream, &err), "waiting");
    while (n_buffers)
        cairn_buffer_destroy(buffers[--n_buffers]);
}

#define B CAIRN_BF16
#define DO(op, ...)                                                                                                                \
    do {                                                                                                                           \
        const struct cairn_##op args = {__VA_ARGS__};                                                                              \
                                                                                                                                   \
        must(c.ops.op(&c.stream, &args, &err), #op);                                                                               \
    } while (0)

static void norms(int64_t n, int64_t d)
{
    struct cairn_tensor x, g, b, y, r, dy, dx, dg;

    op_name = "rmsnorm";
    x = normal("x", B, 2, n, d, 1, 2, 0), g = normal("g", B, 1, d, 1, 1, 0.1f, 1), y = tensor(B, 2, n, d, 1);
    r = tensor(CAIRN_F32, 1, n, 1, 1), dy = normal("dy", B, 2, n, d, 1, 1, 0), dx = tensor(B, 2, n, d, 1);
    dg = tensor(CAIRN_F32, 1, d, 1, 1);
    DO(rmsnorm, .x = x, .g = g, .y = y, .rstd = r, .eps = 1e-5f);
    DO(rmsnorm_bwd, .x = x, .g = g, .rstd = r, .dy = dy, .dx = dx, .dg = dg);
    keep("y_", &y), keep("dx_", &dx), keep("dg_", &dg);
    done();
    op_name = "layernorm";
    x = normal("x", B, 2, n, 128, 1, 2, 1), g = normal("g", B, 1, 128, 1, 1, 0.1f, 1), b = normal("b", B, 1, 128, 1, 1, 0.1f, 0);
    y = tensor(B, 2, n, 128, 1);
    DO(layernorm, .x = x, .g = g, .b = b, .y = y, .eps = 1e-6f);
    keep("y_", &y);
    done();
}

static void gates(int64_t n, int64_t f)
{
    struct cairn_tensor a, u, h, dh, da, du;

    op_name = "swiglu";
    a = normal("a", B, 2, n, f, 1, 1.5f, 0), u = normal("u", B, 2, n, f, 1, 1, 0), dh = normal("dh", B, 2, n, f, 1, 1, 0);
    h = tensor(B, 2, n, f, 1), da = tensor(B, 2, n, f, 1), du = tensor(B, 2, n, f, 1);
    DO(swiglu, .a = a, .u = u, .h = h);
    DO(swiglu_bwd, .a = a, .u = u, .dh = dh, .da = da, .du = du);
    keep("h_", &h), keep("da_", &da), keep("du_", &du);
    done();
}

static void positions(int64_t n)
{
    struct cairn_tensor x, y, pos;

    op_name = "rope";
    x = normal("x", B, 3, n, 8, 64, 1, 0), y = tensor(B, 3, n, 8, 64), pos = ints("pos", 1, n, 1, far_position);
    DO(rope, .x = x, .y = y, .pos = pos, .theta = 1e6f);
    keep("y_", &y);
    done();
}

static void products(int64_t n, int64_t k, int64_t o)
{
    struct cairn_tensor x, w, y, dx, dw;
    const float small = 1 / 32.0f;

    op_name = "matmul";
    x = normal("x", B, 2, n, k, 1, 1, 0), w = normal("w", B, 2, o, k, 1, small, 0), y = tensor(B, 2, n, o, 1);
    DO(matmul, CAIRN_NT, x, w, y, 1, 0, 1);
    keep("y_", &y);
    dx = tensor(B, 2, n, k, 1), dw = tensor(CAIRN_F32, 2, o, k, 1);
    DO(matmul, CAIRN_NN, y, w, dx, 1, 0, 1);
    DO(matmul, CAIRN_TN, y, x, dw, 1, 0, 1);
    keep("dx_", &dx), keep("dw_", &dw);
    done();
}

static void mixture(int64_t n, int64_t d)
{
    struct cairn_tensor x, gate, where, y;

    op_name = "combine";
    x = normal("x", B, 2, 4 * n, d, 1, 1, 0), gate = normal("gate", CAIRN_F32, 2, n, 4, 1, 0.2f, 0.5f);
    where = ints("where", 2, n, 4, fourths), y = tensor(B, 2, n, d, 1);
    DO(combine, .x = x, .gate = gate, .where = where, .y = y);
    keep("y_", &y);
    done();
}

static void attention(int64_t n)
{
    enum { H = 16, C = 512, W = 576 };
    struct cairn_tensor q, rows, idx, o, lse, d_o, dq, dk, pos, seq, start;
    struct cairn_keys keys;
    const float scale = 0.0625f;

    op_name = "attention";
    q = normal("q", B, 3, n, H, W, 1, 0), rows = normal("k", B, 2, n, W, 1, 1, 0), d_o = normal("do", B, 3, n, H, C, 1, 0);
    idx = ints("idx", 2, n, n, all_before), pos = ints("pos", 1, n, 1, row_itself), seq = ints("seq", 1, n, 1, zero);
    start = ints("start", 1, 1, 1, zero);
    o = tensor(B, 3, n, H, C), lse = tensor(CAIRN_F32, 2, n, H, 1), dq = tensor(B, 3, n, H, W), dk = tensor(CAIRN_F32, 2, n, W, 1);
    keys = (struct cairn_keys){.rows = rows, .pos = pos, .seq = seq, .start = start};
    DO(attention, .q = q, .idx = idx, .o = o, .lse = lse, .keys = keys, .scale = scale);
    DO(attention_bwd, .q = q, .idx = idx, .o = o, .lse = lse, .d_o = d_o, .dq = dq, .dk = dk, .keys = keys, .scale = scale);
    keep("o_", &o), keep("dq_", &dq), keep("dk_", &dk);
    done();
}

static void head(int64_t n, int64_t d)
{
    enum { V = 4096 };
    struct cairn_tensor z, w, target, lp, lse, ent, dlp, dz, dw;

    op_name = "logprob";
    z = normal("z", B, 2, n, d, 1, 1, 0), w = normal("w", B, 2, V, d, 1, 1 / 16.0f, 0),
    target = ints("target", 1, n, 1, some_token);
    dlp = normal("dlogprob", CAIRN_F32, 1, n, 1, 1, 1, 0);
    lp = tensor(CAIRN_F32, 1, n, 1, 1), lse = tensor(CAIRN_F32, 1, n, 1, 1), ent = tensor(CAIRN_F32, 1, n, 1, 1);
    dz = tensor(B, 2, n, d, 1), dw = tensor(CAIRN_F32, 2, V, d, 1);
    DO(logprob, .z = z, .w = w, .target = target, .logprob = lp, .lse = lse, .entropy = ent, .inv_temperature = 1, .segments = 1);
    DO(logprob_bwd, .z = z, .w = w, .target = target, .lse = lse, .dlogprob = dlp, .dz = dz, .dw = dw, .inv_temperature = 1,
       .segments = 1);
    keep("logprob_", &lp), keep("dz_", &dz), keep("dw_", &dw);
    done();
}

int main(int argc, char **argv)
{
    const struct cairn_compute_opts o = {.backend = "cuda", .act = "bf16"};
    int64_t n = argc > 2 ? atoll(argv[2]) : 256, wide = n < 256 ? 256 : 2048;

    if (argc < 2 || argc > 3 || n < 1) {
        fprintf(stderr, "usage: bf16_errors DIR [ROWS]\n");
        return 64;
    }
    folder = argv[1];
    must(cairn_compute_open(&c, &o, &err), "the GPU");
    printf("%s\n", c.numerics);
    norms(n, wide);
    gates(n, wide);
    positions(n);
    mixture(n, wide);
    products(n, wide, 1024);
    attention(n);
    head(n, wide / 2);
    cairn_compute_close(&c);
    return 0;
}

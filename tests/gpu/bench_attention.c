/* bench_attention.c - speed and bits of index, attention and attention_bwd on a GPU, at the shapes of the large models.
 *
 *     bench_attention [backend [act]]          default: cuda bf16
 *
 * One line a case: time (median of the repeats, the host's clock around work and wait), TFLOP/s of the products that the op's
 * contract needs, GB/s of gathered keys, and what was checked on the way:
 *
 *     norm      |out - ref| / |ref| of some rows against this file's own formula in fp64
 *     again     the same bits three times
 *     alone     the same bits for some rows in calls of their own
 *
 * A check that fails says what it saw, and the program ends with 1. Contents are random; buffers are far larger than caches.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/backend.h"

static struct cairn_compute gpu;
static struct cairn_error err;
static int failed;

#define OK(call)                                                                                                                   \
    do {                                                                                                                           \
        if ((call) != CAIRN_OK) {                                                                                                  \
            printf("%s: %s\n", #call, err.text);                                                                                   \
            exit(1);                                                                                                               \
        }                                                                                                                          \
    } while (0)

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t seed = 88172645463325252u;

static uint32_t draw(void) /* xorshift64 (Marsaglia, 2003) */
{
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (uint32_t)(seed >> 32);
}

static float normal(void)
{
    float s = 0;

    for (int i = 0; i < 4; i++)
        s += (float)(draw() >> 8) * 0x1p-24f - 0.5f;
    return s * 1.7320508f;
}

/* A tensor with its image in host memory, if wanted. */
struct thing {
    struct cairn_tensor t;
    struct cairn_buffer *buf;
    void *h;
    size_t bytes;
};

static struct thing make(enum cairn_dtype type, int ndim, int64_t a, int64_t b, int64_t c)
{
    const int64_t dim[3] = {a, b, c};
    struct thing x = {0};

    x.bytes = (size_t)(a * (ndim > 1 ? b : 1) * (ndim > 2 ? c : 1)) * cairn_dtype_size(type);
    OK(cairn_buffer_create(gpu.dev, x.bytes ? x.bytes : 16, &x.buf, &err));
    OK(cairn_tensor_view(&x.t, x.buf, 0, type, ndim, dim, &err));
    x.h = malloc(x.bytes + 16);
    if (!x.h)
        exit(1);
    return x;
}

static void drop(struct thing *x)
{
    cairn_buffer_destroy(x->buf);
    free(x->h);
}

static void up(struct thing *x)
{
    OK(cairn_tensor_set(&gpu.stream, &x->t, x->h, x->bytes, &err));
}

static void down(struct thing *x)
{
    OK(cairn_tensor_get(&gpu.stream, &x->t, x->h, x->bytes, &err));
}

static uint16_t bf16(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

static float at(const struct thing *x, int64_t i)
{
    uint32_t u;
    float f;

    if (x->t.dtype != CAIRN_BF16)
        return ((const float *)x->h)[i];
    u = (uint32_t)((const uint16_t *)x->h)[i] << 16;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Random contents; beyond `period` elements (a prime) they come again. */
static struct thing random_thing(enum cairn_dtype type, int ndim, int64_t a, int64_t b, int64_t c, float scale)
{
    const int64_t period = 4194301;
    struct thing x = make(type, ndim, a, b, c);
    int64_t n = (int64_t)(x.bytes / cairn_dtype_size(type));

    for (int64_t i = 0; i < n && i < period; i++) {
        float f = normal() * scale;

        if (type == CAIRN_BF16)
            ((uint16_t *)x.h)[i] = bf16(f);
        else
            ((float *)x.h)[i] = f;
    }
    for (int64_t i = period; i < n; i += period)
        memcpy((char *)x.h + (size_t)i * cairn_dtype_size(type), x.h,
               (size_t)(n - i < period ? n - i : period) * cairn_dtype_size(type));
    up(&x);
    return x;
}

/* Sum of all words, each times an odd number of its place. */
static uint64_t digest(struct thing *x)
{
    const uint32_t *u = x->h;
    uint64_t d = 0;

    down(x);
    for (size_t i = 0; i < x->bytes / 4; i++)
        d += (u[i] + 1ull) * (2 * i + 1) * 0x9e3779b97f4a7c15ull;
    return d;
}

static void spoil(struct thing *x)
{
    memset(x->h, 0xff, x->bytes);
    up(x);
}

static void check(const char *what, int good, const char *detail)
{
    if (good)
        return;
    printf("    FAILED: %s %s\n", what, detail);
    failed = 1;
}

/* ---- cases ------------------------------------------------------------------------------------------------------------------- */

/* Sequences of one length, of which the last `tail` positions are rows. */
struct shape {
    const char *name;
    int B, length, tail, H, C, R, T, Hi, Di, backward, repeats;
};

static const struct shape shapes[] = {
    {"GLM-5, prompt of 16K", 1, 16384, 16384, 64, 512, 64, 2048, 32, 128, 1, 3},
    {"GLM-5, last 1K of 64K", 1, 65536, 1024, 64, 512, 64, 2048, 32, 128, 0, 5},
    {"GLM-5, decode 64 at 16K", 64, 16384, 1, 64, 512, 64, 2048, 32, 128, 0, 20},
    {"GLM-5, decode 1 at 16K", 1, 16384, 1, 64, 512, 64, 2048, 32, 128, 0, 50},
    {"2 B, 4 x 1024", 4, 1024, 1024, 16, 512, 64, 2048, 16, 128, 1, 10},
    {"2 B, 1 x 4096", 1, 4096, 4096, 16, 512, 64, 2048, 16, 128, 1, 10},
    {"2 B, decode 64 at 192", 64, 192, 1, 16, 512, 64, 2048, 16, 128, 0, 50},
};

struct made {
    int64_t N, S, pairs, seen; /* pairs: (row, chosen key); seen: (row, visible key) of rows that must choose */
    struct thing pos, seq, start, keys, ikeys, idx;
    struct cairn_keys k, ki;
};

/* Ascending random choices; all positions where they are few. */
static void make_rows(const struct shape *z, struct made *m)
{
    enum cairn_dtype act = gpu.act;
    int64_t n = 0;

    memset(m, 0, sizeof *m);
    m->N = (int64_t)z->B * z->tail, m->S = (int64_t)z->B * z->length;
    m->pos = make(CAIRN_I32, 1, m->N, 1, 1), m->seq = make(CAIRN_I32, 1, m->N, 1, 1), m->start = make(CAIRN_I32, 1, z->B, 1, 1);
    m->idx = make(CAIRN_I32, 2, m->N, z->T, 1);
    for (int b = 0; b < z->B; b++) {
        ((int32_t *)m->start.h)[b] = b * z->length;
        for (int p = z->length - z->tail; p < z->length; p++, n++) {
            int32_t *idx = (int32_t *)m->idx.h + n * z->T;
            int count = p < z->T ? p + 1 : z->T;

            ((int32_t *)m->pos.h)[n] = p, ((int32_t *)m->seq.h)[n] = b;
            for (int j = 0; j < z->T; j++) {
                int64_t lo = (int64_t)j * (p + 1) / z->T, hi = (int64_t)(j + 1) * (p + 1) / z->T;

                idx[j] = j >= count ? -1 : p < z->T ? j : (int32_t)(lo + draw() % (uint32_t)(hi - lo));
            }
            m->pairs += count;
            m->seen += p < z->T ? 0 : p + 1;
        }
    }
    up(&m->pos), up(&m->seq), up(&m->start), up(&m->idx);
    m->keys = random_thing(act, 2, m->S, z->C + z->R, 1, 1);
    m->ikeys = random_thing(act, 2, m->S, z->Di, 1, 1);
    m->k = (struct cairn_keys){.rows = m->keys.t, .pos = m->pos.t, .seq = m->seq.t, .start = m->start.t};
    m->ki = m->k;
    m->ki.rows = m->ikeys.t;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

typedef enum cairn_status call_fn(const void *a);
static enum cairn_status call_index(const void *a)
{
    return gpu.ops.index(&gpu.stream, a, &err);
}
static enum cairn_status call_attention(const void *a)
{
    return gpu.ops.attention(&gpu.stream, a, &err);
}
static enum cairn_status call_attention_bwd(const void *a)
{
    return gpu.ops.attention_bwd(&gpu.stream, a, &err);
}

static void timed(const struct shape *z, const char *op, call_fn *call, const void *a, double flops, double bytes)
{
    double t[64];

    for (int i = -1; i < z->repeats; i++) { /* the first one warms up */
        double from = now_s();

        OK(call(a));
        OK(cairn_stream_wait(&gpu.stream, &err));
        if (i >= 0)
            t[i] = now_s() - from;
    }
    qsort(t, (size_t)z->repeats, sizeof *t, by_size);
    printf("%-26s %-14s %10.3f ms (%.3f .. %.3f)  %7.1f TFLOP/s  %7.0f GB/s\n", z->name, op, 1e3 * t[z->repeats / 2], 1e3 * t[0],
           1e3 * t[z->repeats - 1], flops / t[z->repeats / 2] * 1e-12, bytes / t[z->repeats / 2] * 1e-9);
    fflush(stdout);
}

/* Row n of attention and dq in fp64; q, o, d_o are whole images. */
static void oracle(const struct shape *z, const struct made *m, const struct thing *q, const struct thing *d_o, int64_t n, int h,
                   double *o, double *dq)
{
    int W = z->C + z->R, count = 0;
    const int32_t *idx = (const int32_t *)m->idx.h + n * z->T;
    int64_t base = (int64_t)((const int32_t *)m->seq.h)[n] * z->length;
    double *l = malloc(sizeof(double) * (size_t)z->T), most = -INFINITY, total = 0, D = 0, scale = 1 / sqrt(256.0);

    if (!l)
        exit(1);
    for (; count < z->T && idx[count] >= 0; count++) {
        l[count] = 0;
        for (int w = 0; w < W; w++)
            l[count] += (double)at(q, (n * z->H + h) * W + w) * at(&m->keys, (base + idx[count]) * W + w);
        l[count] *= scale;
        most = l[count] > most ? l[count] : most;
    }
    for (int j = 0; j < count; j++)
        total += l[j] = exp(l[j] - most);
    for (int c = 0; c < z->C; c++) {
        o[c] = 0;
        for (int j = 0; j < count; j++)
            o[c] += l[j] / total * at(&m->keys, (base + idx[j]) * W + c);
    }
    for (int w = 0; dq && w < W; w++)
        dq[w] = 0;
    for (int c = 0; dq && c < z->C; c++)
        D += o[c] * at(d_o, (n * z->H + h) * z->C + c);
    for (int j = 0; dq && j < count; j++) {
        double dp = 0, dl;

        for (int c = 0; c < z->C; c++)
            dp += (double)at(d_o, (n * z->H + h) * z->C + c) * at(&m->keys, (base + idx[j]) * W + c);
        dl = scale * l[j] / total * (dp - D);
        for (int w = 0; w < W; w++)
            dq[w] += dl * at(&m->keys, (base + idx[j]) * W + w);
    }
    free(l);
}

static double off(const struct thing *x, int64_t from, const double *ref, int n)
{
    double diff = 0, norm = 0;

    for (int i = 0; i < n; i++) {
        double d = at(x, from + i) - ref[i];

        diff += d * d, norm += ref[i] * ref[i];
    }
    return sqrt(diff / norm);
}

static void rows_alone(const char *what, const struct thing *whole, const struct thing *one, int64_t n, size_t row)
{
    char text[160];

    for (size_t i = 0; i < row; i += 2)
        if (memcmp((const char *)whole->h + (size_t)n * row + i, (const char *)one->h + i, 2)) {
            snprintf(text, sizeof text, "of row %lld: byte %zu of %zu differs", (long long)n, i, row);
            check(what, 0, text);
            return;
        }
}

static void run_index(const struct shape *z, struct made *m)
{
    struct thing q = random_thing(gpu.act, 3, m->N, z->Hi, z->Di, 1), w = random_thing(CAIRN_F32, 2, m->N, z->Hi, 1, 1);
    struct thing idx = make(CAIRN_I32, 2, m->N, z->T, 1), one = make(CAIRN_I32, 2, 1, z->T, 1);
    struct cairn_index a = {q.t, w.t, idx.t, m->ki, 1 / sqrtf((float)z->Di)};
    uint64_t first;
    char text[160];

    spoil(&idx);
    timed(z, "index", call_index, &a, 2.0 * (double)m->seen * z->Hi * z->Di, 0);
    first = digest(&idx);
    for (int i = 0; i < 2; i++) {
        spoil(&idx);
        OK(call_index(&a));
        check("index again", digest(&idx) == first, "");
    }
    for (int i = 0; i < 5; i++) { /* some rows: alone, and against fp64 */
        int64_t n = i == 0 ? m->N - 1 : draw() % m->N;
        int pos = ((int32_t *)m->pos.h)[n], bad = 0;
        const int32_t *got = (const int32_t *)idx.h + n * z->T;
        struct cairn_index r = a;
        double least = INFINITY, best = -INFINITY;

        r.q = cairn_tensor_slice(&a.q, 0, n, 1), r.w = cairn_tensor_slice(&a.w, 0, n, 1), r.idx = one.t;
        r.keys.pos = cairn_tensor_slice(&a.keys.pos, 0, n, 1), r.keys.seq = cairn_tensor_slice(&a.keys.seq, 0, n, 1);
        spoil(&one);
        OK(call_index(&r));
        down(&one);
        rows_alone("index alone", &idx, &one, n, (size_t)z->T * 4);
        for (int p = 0, j = 0; p <= pos; p++) {
            double score = 0;

            for (int h = 0; h < z->Hi; h++) {
                double dot = 0;

                for (int d = 0; d < z->Di; d++)
                    dot += (double)at(&q, (n * z->Hi + h) * z->Di + d) *
                           at(&m->ikeys, ((int64_t)((int32_t *)m->seq.h)[n] * z->length + p) * z->Di + d);
                score += at(&w, n * z->Hi + h) * (dot > 0 ? dot * a.scale : 0);
            }
            if (j < z->T && got[j] == p) {
                least = score < least ? score : least;
                j++;
            } else {
                best = score > best ? score : best;
            }
            bad |= p == pos && j != (pos + 1 < z->T ? pos + 1 : z->T);
        }
        snprintf(text, sizeof text, "of row %lld: least taken %.9g, best left %.9g, list %s", (long long)n, least, best,
                 bad ? "broken" : "whole");
        check("index choice", !bad && (best <= least + 1e-4), text);
    }
    drop(&q), drop(&w), drop(&idx), drop(&one);
}

static void run_attention(const struct shape *z, struct made *m)
{
    int W = z->C + z->R;
    struct thing q = random_thing(gpu.act, 3, m->N, z->H, W, 1), o = make(gpu.act, 3, m->N, z->H, z->C);
    struct thing lse = make(CAIRN_F32, 2, m->N, z->H, 1), o1 = make(gpu.act, 3, 1, z->H, z->C),
                 lse1 = make(CAIRN_F32, 2, 1, z->H, 1);
    struct cairn_attention a = {q.t, m->idx.t, o.t, lse.t, m->k, 1 / 16.0f};
    double ref[1024], dref[1024], worst = 0, dworst = 0;
    uint64_t first;
    char text[160];

    spoil(&o);
    timed(z, "attention", call_attention, &a, 2.0 * (double)m->pairs * z->H * (W + z->C),
          (double)m->pairs * W * (double)cairn_dtype_size(gpu.act));
    first = digest(&o);
    for (int i = 0; i < 2; i++) {
        spoil(&o);
        OK(call_attention(&a));
        check("attention again", digest(&o) == first, "");
    }
    down(&lse);
    for (int i = 0; i < 9; i++) {
        int64_t n = i == 0 ? m->N - 1 : i == 1 ? 0 : draw() % m->N;
        int h = (int)(draw() % (uint32_t)z->H);
        struct cairn_attention r = a;

        r.q = cairn_tensor_slice(&a.q, 0, n, 1), r.idx = cairn_tensor_slice(&a.idx, 0, n, 1), r.o = o1.t, r.lse = lse1.t;
        r.keys.pos = cairn_tensor_slice(&a.keys.pos, 0, n, 1), r.keys.seq = cairn_tensor_slice(&a.keys.seq, 0, n, 1);
        spoil(&o1), spoil(&lse1);
        OK(call_attention(&r));
        down(&o1), down(&lse1);
        rows_alone("attention alone: o", &o, &o1, n, o1.bytes);
        rows_alone("attention alone: lse", &lse, &lse1, n, lse1.bytes);
        oracle(z, m, &q, NULL, n, h, ref, NULL);
        worst = fmax(worst, off(&o, (n * z->H + h) * z->C, ref, z->C));
    }
    snprintf(text, sizeof text, "of o: %.3g", worst);
    printf("    o against fp64: %.3g of its norm\n", worst);
    check("norm", worst < (gpu.act == CAIRN_F32 ? 1e-5 : 5e-3), text);
    if (z->backward) {
        struct thing d_o = random_thing(gpu.act, 3, m->N, z->H, z->C, 1), dq = make(gpu.act, 3, m->N, z->H, W);
        struct thing dk = make(CAIRN_F32, 2, m->S, W, 1);
        struct cairn_attention_bwd g = {q.t, m->idx.t, o.t, lse.t, d_o.t, dq.t, dk.t, m->k, a.scale, 0};
        uint64_t dq0 = 0, dk0 = 0;

        memset(dk.h, 0, dk.bytes);
        up(&dk);
        spoil(&dq);
        timed(z, "attention_bwd", call_attention_bwd, &g, 2.0 * (double)m->pairs * z->H * (3 * W + 2 * z->C),
              (double)m->pairs * W * (double)cairn_dtype_size(gpu.act));
        for (int i = 0; i < 3; i++) {
            memset(dk.h, 0, dk.bytes);
            up(&dk);
            spoil(&dq);
            OK(call_attention_bwd(&g));
            if (!i)
                dq0 = digest(&dq), dk0 = digest(&dk);
            else
                check("attention_bwd again", digest(&dq) == dq0 && digest(&dk) == dk0, digest(&dq) == dq0 ? "(dk)" : "(dq)");
        }
        for (int i = 0; i < 5; i++) {
            int64_t n = i == 0 ? m->N - 1 : draw() % m->N;
            int h = (int)(draw() % (uint32_t)z->H);

            if (((int32_t *)m->pos.h)[n] < 8)
                continue; /* hardly anything but rounding errors */
            oracle(z, m, &q, &d_o, n, h, ref, dref);
            dworst = fmax(dworst, off(&dq, (n * z->H + h) * W, dref, W));
        }
        snprintf(text, sizeof text, "of dq: %.3g", dworst);
        printf("    dq against fp64: %.3g of its norm\n", dworst);
        check("norm", dworst < (gpu.act == CAIRN_F32 ? 1e-4 : 1e-2), text);
        drop(&d_o), drop(&dq), drop(&dk);
    }
    drop(&q), drop(&o), drop(&lse), drop(&o1), drop(&lse1);
}

int main(int argc, char **argv)
{
    const struct cairn_compute_opts opts = {.backend = argc > 1 ? argv[1] : "cuda", .act = argc > 2 ? argv[2] : "bf16"};

    OK(cairn_compute_open(&gpu, &opts, &err));
    printf("%s\n", gpu.numerics);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *z = shapes + i;
        struct made m;

        if (argc > 3 && !strstr(z->name, argv[3]))
            continue;
        make_rows(z, &m);
        run_index(z, &m);
        run_attention(z, &m);
        drop(&m.pos), drop(&m.seq), drop(&m.start), drop(&m.keys), drop(&m.ikeys), drop(&m.idx);
    }
    cairn_compute_close(&gpu);
    printf(failed ? "bench_attention: FAILED\n" : "bench_attention: all checks passed\n");
    return failed;
}

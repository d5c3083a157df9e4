/* products.c - the products of a GPU by themselves: do wgmma and cuBLASLt give the bits of mma.sync, and how fast is each.
 *
 *     products [proof|dense|heads|grouped|head]...      (all)
 *
 * proof    each form, width and grouping of wgmma against the definition (product_mma): elements that differ, the first of them.
 * dense    GLM-5 and small-model shapes, rows 1 to 16384: own kernels, cuBLASLt without split k, its own free choice (the peer),
 * and what product_run takes; times as the median of REPEATS batches by events, weights rotated beyond the L2; "other bits" where a
 * candidate's differ from the definition's. heads    products of many heads. grouped: experts, rows skewed over them; the peer is
 * the dense product of as many terms. head     log-probabilities and sampling at full vocabulary: time, rate, memory beside the
 * arguments. Links the back-end's objects, since it looks below the op table.
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/product_choose.h"

#define REPEATS 7
#define L2      ((size_t)128 << 20) /* more than any */

const struct cairn_backend *cairn_backend_entry(void);

static const char *const mma_tile[PRODUCT_MMA_TILES] = {"16x16", "16x64", "32", "64", "128"},
                         *const wgmma_tile[PRODUCT_WGMMA_TILES] = {"64", "128a", "128b", "192a", "192b", "256a", "256b"};
static struct cairn_device *dev;
static struct cairn_stream stream;
static struct cairn_error err;
static struct product_lt *lt;
static cudaEvent_t ev[2];
static void *blocks[64];
static int n_blocks;

static void must(enum cairn_status st, const char *what)
{
    if (st == CAIRN_OK)
        return;
    printf("%s: %s\n", what, err.text);
    exit((int)st);
}

static void cuda(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return;
    printf("%s: %s\n", what, cudaGetErrorString(e));
    exit(72);
}

static void *room(size_t bytes)
{
    void *p = NULL;

    cuda(cudaMalloc(&p, bytes), "memory");
    blocks[n_blocks++] = p;
    return p;
}

static void forget(void)
{
    cuda(cudaDeviceSynchronize(), "waiting");
    while (n_blocks)
        cudaFree(blocks[--n_blocks]);
}

static struct call begin(void)
{
    return call_begin("products", &stream, &err);
}

static void *numbers(int64_t n, uint32_t seed)
{
    struct call c = begin();
    void *p = room((size_t)n * 2);

    probe_fill(&c, p, n, seed, 0);
    must(call_end(&c), "numbers");
    return p;
}

/* ---- proof ----------------------------------------------------------------------------------------------------------------- */

static void proof(void)
{
    static const char *const forms[] = {"NT", "NN", "TN"};

    for (int form = 0; form < 3; form++)
        for (int i = -1; i < PRODUCT_WGMMA_TILES; i++)
            for (int grouped = 0; grouped < 2; grouped++) {
                struct call c = begin();
                struct product_difference d;
                int64_t wrong = product_proof(&c, form, i, grouped, &d);

                printf("proof %s %s %-7s: ", forms[form], i >= 0 ? "wgmma" : "mma 16x16", grouped ? "grouped" : "dense");
                if (i >= 0)
                    printf("tile %-4s: ", wgmma_tile[i]);
                if (wrong == 0)
                    printf("the same bits\n");
                else if (wrong < 0)
                    printf("FAILED: %s\n", err.text);
                else
                    printf("DIFFER in %lld of %lld, largest %.3g of %.3g; data %d, (%d,%d): %.9g, defined as %.9g\n",
                           (long long)wrong, (long long)d.of, d.most, d.scale, d.spread, d.row, d.col, d.got, d.want);
                must(call_end(&c), "proof");
            }
}

/* ---- clocks ----------------------------------------------------------------------------------------------------------------- */

enum kind { CHOSEN, MMA, WGMMA, LT };

static void launch(struct call *c, const struct product *p, enum kind kind, int which, const struct product_lt_plan *plan)
{
    if (kind == CHOSEN)
        product_run(c, p, 1, NULL);
    else if (kind == MMA)
        product_mma(c, p, which);
    else if (kind == WGMMA)
        product_wgmma(c, p, which);
    else
        product_lt_run(c, lt, p, plan);
}

static int rising(const void *a, const void *b)
{
    return *(const float *)a < *(const float *)b ? -1 : *(const float *)a > *(const float *)b;
}

/* Microseconds; negative where it does not run. copies: of B, behind one another, `step` bytes each. */
static double timed(const struct product *p, enum kind kind, int which, const struct product_lt_plan *plan, int copies, size_t step)
{
    float t[REPEATS], ms;
    int batch = 1, at = 0;

    for (int r = -2; r < REPEATS; r++) {
        struct call c = begin();

        cuda(cudaEventRecord(ev[0], c.stream), "event");
        for (int i = 0; i < batch; i++) {
            struct product q = *p;

            q.b = (const char *)p->b + (size_t)(at++ % copies) * step;
            launch(&c, &q, kind, which, plan);
        }
        cuda(cudaEventRecord(ev[1], c.stream), "event");
        cuda(cudaEventSynchronize(ev[1]), "waiting");
        cuda(cudaEventElapsedTime(&ms, ev[0], ev[1]), "elapsed");
        if (call_end(&c) != CAIRN_OK)
            return -1;
        if (r == -1)
            batch = ms > 3 ? 1 : ms < 0.03f ? 100 : (int)(3 / ms) + 1;
        if (r >= 0)
            t[r] = ms / (float)batch;
        if (r == 0 && ms > 30) /* slow: once is enough */
            return 1e3 * (double)t[0];
    }
    qsort(t, REPEATS, sizeof *t, rising);
    return 1e3 * (double)t[REPEATS / 2];
}

/* Words of y in which a candidate differs from the definition; y and z are two rooms of `bytes`. */
static int64_t other_bits(const struct product *p, enum kind kind, int which, const struct product_lt_plan *plan, void *y, void *z,
                          size_t bytes, int64_t *d_count)
{
    struct call c = begin();
    struct product q = *p;
    int64_t n = -1;

    cuda(cudaMemsetAsync(y, 0xff, bytes, c.stream), "poison");
    cuda(cudaMemsetAsync(z, 0xff, bytes, c.stream), "poison");
    q.y = y;
    product_mma(&c, &q, PRODUCT_MMA_TILES - 1);
    q.y = z;
    launch(&c, &q, kind, which, plan);
    probe_differences(&c, y, z, bytes, d_count);
    cuda(cudaMemcpyAsync(&n, d_count, sizeof n, cudaMemcpyDeviceToHost, c.stream), "count");
    cuda(cudaStreamSynchronize(c.stream), "waiting");
    return call_end(&c) == CAIRN_OK ? n : -1;
}

/* ---- dense ------------------------------------------------------------------------------------------------------------------ */

static struct product dense_product(enum cairn_form form, int64_t m, int64_t n, int64_t k, int y_bf16)
{
    struct product p = {.form = form,
                        .m = m,
                        .n = n,
                        .k = k,
                        .batch = 1,
                        .a_bf16 = 1,
                        .b_bf16 = 1,
                        .y_bf16 = y_bf16,
                        .alpha = 1,
                        .parts = 1,
                        .part_k = k,
                        .wide = 1,
                        .pairs = 1,
                        .quads = 1,
                        .op = OP_matmul};

    p.as = form == CAIRN_TN ? m : k, p.bs = form == CAIRN_NT ? k : n, p.ys = n;
    return p;
}

static void dense_line(enum cairn_form form, int64_t m, int64_t n, int64_t k)
{
    static const char *const forms[] = {"NT", "NN", "TN"};
    struct product p = dense_product(form, m, n, k, form != CAIRN_TN);
    size_t bytes = (size_t)(m * n) * (form == CAIRN_TN ? 4 : 2), step = (size_t)(n * k) * 2;
    int copies = (int)(step < L2 ? (L2 + step - 1) / step : 1);
    double best = -1, peer = -1, own = -1, lts = -1, chosen, t, flops = 2.0 * (double)m * (double)n * (double)k;
    char own_name[32] = "-", note[128] = "";
    struct product_lt_plan plan[8];
    struct cudaDeviceProp prop;
    struct call c;
    void *y, *z;
    int64_t *count;
    int plans;

    (void)prop;
    p.a = numbers(m * k, 1);
    p.b = numbers((int64_t)copies * n * k, 2);
    y = room(bytes), z = room(bytes), count = room(sizeof *count);
    p.y = z;
    c = begin();
    p.fault = c.cuda->d_fault;
    must(call_end(&c), "begin");
    for (int i = 0; i < PRODUCT_MMA_TILES + PRODUCT_WGMMA_TILES; i++) {
        enum kind kind = i < PRODUCT_MMA_TILES ? MMA : WGMMA;
        int which = i < PRODUCT_MMA_TILES ? i : i - PRODUCT_MMA_TILES;
        const char *name = kind == MMA ? mma_tile[which] : wgmma_tile[which];

        c = begin();
        if ((kind == MMA && ((m > 128 && i < 3) || (m > 1024 && i < 4) || (m <= 32 && i == 4))) ||
            (kind == WGMMA && (m <= 32 || !product_wgmma_can(&c, &p)))) {
            call_end(&c);
            continue;
        }
        call_end(&c);
        if (other_bits(&p, kind, which, NULL, y, z, bytes, count))
            snprintf(note + strlen(note), sizeof note - strlen(note), " %s %s OTHER BITS", kind == MMA ? "mma" : "wgmma", name);
        p.y = z;
        t = timed(&p, kind, which, NULL, copies, step);
        if (t > 0 && (own < 0 || t < own)) {
            own = t;
            snprintf(own_name, sizeof own_name, "%s%s", kind == MMA ? "mma" : "wg", name);
        }
    }
    plans = product_lt_plans(lt, &p, 0, plan, 4);
    for (int i = 0; i < plans; i++) {
        int64_t other = other_bits(&p, LT, 0, &plan[i], y, z, bytes, count);

        if (other)
            snprintf(note + strlen(note), sizeof note - strlen(note), " lt%d other bits (%lld)", i, (long long)other);
        t = timed(&p, LT, 0, &plan[i], copies, step);
        if (!other && t > 0 && (lts < 0 || t < lts))
            lts = t;
    }
    plans = product_lt_plans(lt, &p, 1, plan, 8);
    for (int i = 0; i < plans; i++) {
        t = timed(&p, LT, 0, &plan[i], copies, step);
        if (t > 0 && (peer < 0 || t < peer))
            peer = t;
        if (i == 0)
            best = t; /* the library's first guess */
    }
    chosen = timed(&p, CHOSEN, 0, NULL, copies, step);
    printf("%s %6lld x %6lld, k %6lld: own %-6s %9.1f us | lt %9.1f | peer %9.1f (first guess %9.1f) | ours %9.1f us %6.1f TFLOP/s "
           "%6.0f GB/s, "
           "%5.2f of peer%s\n",
           forms[form], (long long)m, (long long)n, (long long)k, own_name, own, lts, peer, best, chosen, flops / chosen * 1e-6,
           (double)(step + (size_t)(m * k) * 2 + bytes) / chosen * 1e-3, peer / chosen, note);
    fflush(stdout);
    forget();
}

static void dense(void)
{
    static const struct {
        int n, k;
    } glm[] = {{2048, 6144}, {16384, 2048}, {6144, 16384}, {6144, 2048}, {4096, 6144}},
      mini[] = {{2048, 2048}, {768, 2048}, {2048, 6144}};
    static const int few[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048};

    for (size_t s = 0; s < sizeof glm / sizeof *glm; s++)
        for (size_t i = 0; i < sizeof few / sizeof *few; i++)
            if (s < 3 || few[i] == 1 || few[i] == 64 || few[i] == 512)
                dense_line(CAIRN_NT, few[i], glm[s].n, glm[s].k);
    for (size_t s = 0; s < sizeof mini / sizeof *mini; s++)
        for (size_t i = 0; i < sizeof few / sizeof *few; i += 2)
            dense_line(CAIRN_NT, few[i], mini[s].n, mini[s].k);
    for (int form = CAIRN_NT; form <= CAIRN_TN; form++) {
        dense_line(form, form == CAIRN_TN ? 4096 : 16384, form == CAIRN_TN ? 6144 : 4096, form == CAIRN_TN ? 16384 : 6144);
        dense_line(form, form == CAIRN_TN ? 2048 : 4096, 2048, form == CAIRN_TN ? 4096 : 2048);
        dense_line(form, 8192, 8192, 8192);
    }
}

static void heads(void)
{
    static const struct {
        int form, heads, m, n, k;
        const char *what;
    } cases[] = {{CAIRN_NN, 64, 4096, 512, 192, "q nope -> latent"}, {CAIRN_NT, 64, 4096, 256, 512, "latent -> v"},
                 {CAIRN_NN, 64, 64, 512, 192, "q nope, decode"},     {CAIRN_NT, 64, 64, 256, 512, "v, decode"},
                 {CAIRN_NN, 16, 64, 512, 128, "mini q, decode"},     {CAIRN_TN, 64, 192, 512, 4096, "weight gradient"}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t h = cases[i].heads, m = cases[i].m, n = cases[i].n, k = cases[i].k;
        struct product p = dense_product(cases[i].form, m, n, k, cases[i].form != CAIRN_TN);
        struct product_lt_plan plan[8];
        double peer = -1, ours, t, flops = 2.0 * (double)(h * m * n) * (double)k;
        struct call c = begin();
        int plans;

        p.fault = c.cuda->d_fault;
        must(call_end(&c), "begin");
        p.batch = (int)h;
        /* x (N, H, K) seen as (H, N, K); y alike */
        if (cases[i].form == CAIRN_TN)
            p.ab = m, p.as = h * m, p.bb = n, p.bs = h * n, p.yb = m * n;
        else
            p.ab = k, p.as = h * k, p.bb = n * k, p.yb = n, p.ys = h * n;
        p.a = numbers(h * m * k, 1), p.b = numbers(h * n * k, 2), p.y = room((size_t)(h * m * n) * 4);
        ours = timed(&p, CHOSEN, 0, NULL, 1, 0);
        plans = product_lt_plans(lt, &p, 1, plan, 8);
        for (int j = 0; j < plans; j++) {
            t = timed(&p, LT, 0, &plan[j], 1, 0);
            if (t > 0 && (peer < 0 || t < peer))
                peer = t;
        }
        printf("heads %-18s %lld x (%lld x %lld, k %lld): ours %9.1f us %6.1f TFLOP/s | peer %9.1f us, %5.2f of peer\n",
               cases[i].what, (long long)h, (long long)m, (long long)n, (long long)k, ours, flops / ours * 1e-6, peer, peer / ours);
        fflush(stdout);
        forget();
    }
}

/* ---- groups -------------------------------------------------------------------------------------------------------------------
 */

static void grouped_line(int form, int E, int64_t rows, int64_t n, int64_t k, const char *what)
{
    static const char *const forms[] = {"NT", "NN", "TN"};
    int32_t *offsets = calloc((size_t)E + 1, sizeof *offsets), least = 1 << 30, most = 0;
    int tn = form == CAIRN_TN;
    struct product p = dense_product(form, tn ? n : rows, tn ? k : n, tn ? rows : k, !tn), q;
    double flops = 2.0 * (double)rows * (double)n * (double)k, ours, peer = -1, share = 0, t, sum = 0;
    struct product_lt_plan plan[8];
    struct call c = begin();
    int plans;

    /* share of expert e falls by a factor of 8 from the first to the last, in a mixed order */
    for (int pass = 0; pass < 2; pass++)
        for (int e = 0; e < E; e++) {
            double w = exp(-2.08 * (double)(e * 37 % E) / E);

            sum += pass ? 0 : w;
            share += pass ? w / sum : 0;
            if (pass)
                offsets[e + 1] = e + 1 == E ? (int32_t)rows : (int32_t)(share * (double)rows + 0.5);
        }
    for (int e = 0; e < E; e++) {
        int32_t r = offsets[e + 1] - offsets[e];

        least = r < least ? r : least, most = r > most ? r : most;
    }
    p.fault = c.cuda->d_fault;
    must(call_end(&c), "begin");
    q = p; /* the peer: one dense product with as many terms */
    p.batch = E;
    p.a = numbers(tn ? rows * n : rows * k, 1);
    if (tn) {
        p.b = numbers(rows * k, 2), p.yb = n * k;
        p.y = room((size_t)E * (size_t)(n * k) * 4);
    } else {
        p.b = numbers((int64_t)E * n * k, 2), p.bb = n * k;
        p.y = room((size_t)(rows * n) * 2);
    }
    p.offsets = room((size_t)(E + 1) * 4);
    cuda(cudaMemcpy((void *)p.offsets, offsets, (size_t)(E + 1) * 4, cudaMemcpyHostToDevice), "offsets");
    ours = timed(&p, CHOSEN, 0, NULL, 1, 0);
    q.a = p.a, q.b = p.b, q.y = p.y;
    plans = product_lt_plans(lt, &q, 1, plan, 8);
    for (int j = 0; j < plans; j++) {
        t = timed(&q, LT, 0, &plan[j], 1, 0);
        if (t > 0 && (peer < 0 || t < peer))
            peer = t;
    }
    printf("grouped %s %-14s %3d x (%lld, %lld), %6lld rows (%d to %d): ours %9.1f us %6.1f TFLOP/s %6.0f GB/s |", forms[form],
           what, E, (long long)n, (long long)k, (long long)rows, least, most, ours, flops / ours * 1e-6,
           (double)((int64_t)E * n * k * 2 + rows * (n + k) * 2) / ours * 1e-3);
    for (int i = 0; i < PRODUCT_MMA_TILES + PRODUCT_WGMMA_TILES; i++) { /* each kernel */
        int of_mma = i < PRODUCT_MMA_TILES, which = of_mma ? i : i - PRODUCT_MMA_TILES;

        c = begin();
        if ((i + 1 < PRODUCT_MMA_TILES && rows / E > 256) || (!of_mma && !product_wgmma_can(&c, &p))) {
            call_end(&c);
            continue;
        }
        call_end(&c);
        t = timed(&p, of_mma ? MMA : WGMMA, which, NULL, 1, 0);
        printf(" %s%s %.1f", of_mma ? "mma" : "wg", of_mma ? mma_tile[which] : wgmma_tile[which], t);
    }
    printf(" | dense peer %9.1f us, %5.2f of it\n", peer, peer / ours);
    fflush(stdout);
    free(offsets);
    forget();
}

static void grouped(void)
{
    grouped_line(CAIRN_NT, 256, 131072, 2048, 6144, "up, 16K tokens");
    grouped_line(CAIRN_NT, 256, 131072, 6144, 2048, "down");
    grouped_line(CAIRN_NN, 256, 131072, 6144, 2048, "d up");
    grouped_line(CAIRN_NN, 256, 131072, 2048, 6144, "d down");
    grouped_line(CAIRN_TN, 256, 131072, 2048, 6144, "d weights");
    grouped_line(CAIRN_NT, 256, 131072, 32, 6144, "LoRA A");
    grouped_line(CAIRN_NT, 256, 131072, 2048, 32, "LoRA B");
    grouped_line(CAIRN_TN, 256, 131072, 32, 6144, "d LoRA A");
    grouped_line(CAIRN_NT, 256, 512, 2048, 6144, "decode, 64");
    grouped_line(CAIRN_NT, 32, 16384, 768, 2048, "mini up");
    grouped_line(CAIRN_NT, 32, 16384, 2048, 768, "mini down");
    grouped_line(CAIRN_NN, 32, 16384, 2048, 768, "mini d up");
    grouped_line(CAIRN_TN, 32, 16384, 768, 2048, "mini d weights");
    grouped_line(CAIRN_NT, 32, 256, 768, 2048, "mini decode");
    grouped_line(CAIRN_NT, 32, 4, 768, 2048, "mini decode, 1");
}

/* ---- head ---------------------------------------------------------------------------------------------------------------------
 */

static struct cairn_tensor tensor(enum cairn_dtype t, int ndim, int64_t a, int64_t b, struct cairn_buffer **buf)
{
    int64_t dim[2] = {a, b}, count = ndim > 1 ? a * b : a;
    struct cairn_tensor x;

    must(cairn_buffer_create(dev, (size_t)count * cairn_dtype_size(t), buf, &err), "a buffer");
    must(cairn_tensor_view(&x, *buf, 0, t, ndim, dim, &err), "a tensor");
    return x;
}

static double op_us(int which, const void *args)
{
    const struct cairn_ops *ops = cairn_backend_entry()->ops;
    struct cuda_stream *s = stream.impl;
    float ms = 0, least = 0;

    for (int i = 0; i < 4; i++) {
        cuda(cudaEventRecord(ev[0], s->s), "event");
        must(which == 0   ? ops->logprob(&stream, args, &err)
             : which == 1 ? ops->logprob_bwd(&stream, args, &err)
             : which == 2 ? ops->sample(&stream, args, &err)
                          : ops->matmul(&stream, args, &err),
             "op");
        cuda(cudaEventRecord(ev[1], s->s), "event");
        must(cairn_stream_wait(&stream, &err), "waiting");
        cuda(cudaEventElapsedTime(&ms, ev[0], ev[1]), "elapsed");
        if (i == 1 || (i > 1 && ms < least))
            least = ms;
    }
    return 1e3 * (double)least;
}

static void head_line(int64_t N, int64_t D, int64_t V)
{
    struct cairn_buffer *b[16];
    struct cairn_tensor z = tensor(CAIRN_BF16, 2, N, D, &b[0]), w = tensor(CAIRN_BF16, 2, V, D, &b[1]),
                        dz = tensor(CAIRN_BF16, 2, N, D, &b[2]), target = tensor(CAIRN_I32, 1, N, 1, &b[3]), f[5],
                        out = tensor(CAIRN_I32, 1, N, 1, &b[9]);
    int32_t *h = malloc((size_t)N * 4);
    double fwd, bwd, flops = 2.0 * (double)N * (double)D * (double)V;
    size_t before, after, total;
    struct call c = begin();

    for (int i = 0; i < 5; i++)
        f[i] = tensor(CAIRN_F32, 1, N, 1, &b[4 + i]);
    probe_fill(&c, cairn_buffer_open(b[0], CAIRN_WRITE), N * D, 1, 0);
    probe_fill(&c, cairn_buffer_open(b[1], CAIRN_WRITE), V * D, 2, 0);
    cuda(cudaMemsetAsync(cairn_buffer_open(b[7], CAIRN_WRITE), 0x3c, (size_t)N * 4, c.stream), "upstream");
    must(call_end(&c), "numbers");
    for (int i = 0; i < 2; i++)
        cairn_buffer_close(b[i]);
    cairn_buffer_close(b[7]);
    for (int64_t n = 0; n < N; n++)
        h[n] = (int32_t)(n * 7919 % V);
    must(cairn_tensor_set(&stream, &target, h, (size_t)N * 4, &err), "targets");
    cuda(cudaDeviceSynchronize(), "waiting");
    cuda(cudaMemGetInfo(&before, &total), "memory");
    {
        struct cairn_logprob a = {.z = z,
                                  .w = w,
                                  .target = target,
                                  .logprob = f[0],
                                  .lse = f[1],
                                  .entropy = f[2],
                                  .inv_temperature = 0.02f,
                                  .segments = 1};
        struct cairn_logprob_bwd g = {
            .z = z, .w = w, .target = target, .lse = f[1], .dlogprob = f[3], .dz = dz, .inv_temperature = 0.02f, .segments = 1};

        fwd = op_us(0, &a);
        bwd = op_us(1, &g);
    }
    cuda(cudaMemGetInfo(&after, &total), "memory");
    printf("head %6lld x %6lld, width %5lld: logprob with entropy %9.1f us %6.1f TFLOP/s | backward, frozen %9.1f us %6.1f TFLOP/s "
           "| %.1f MiB "
           "of memory\n",
           (long long)N, (long long)V, (long long)D, fwd, flops / fwd * 1e-6, bwd, 2 * flops / bwd * 1e-6,
           (double)(before - after) * 0x1p-20);
    fflush(stdout);
    free(h);
    (void)out;
    for (int i = 0; i < 10; i++)
        cairn_buffer_destroy(b[i]);
}

static void sample_line(int64_t N, int64_t D, int64_t V)
{
    struct cairn_buffer *b[8];
    struct cairn_tensor z = tensor(CAIRN_BF16, 2, N, D, &b[0]), w = tensor(CAIRN_BF16, 2, V, D, &b[1]),
                        l = tensor(CAIRN_F32, 2, N, V, &b[2]), ids = tensor(CAIRN_I32, 1, N, 1, &b[3]),
                        token = tensor(CAIRN_I32, 1, N, 1, &b[4]), lp = tensor(CAIRN_F32, 1, N, 1, &b[5]),
                        lps = tensor(CAIRN_F32, 1, N, 1, &b[6]);
    struct cairn_matmul m = {.form = CAIRN_NT, .x = z, .w = w, .y = l, .alpha = 1, .segments = 1};
    struct cairn_sample s = {.logits = l,
                             .prompt = ids,
                             .sample = ids,
                             .position = ids,
                             .token = token,
                             .logprob = lp,
                             .seed = 1,
                             .inv_temperature = 0.05f,
                             .top_p = 1,
                             .segments = 1};
    double product, plain, top_k, top_p;
    struct call c = begin();

    probe_fill(&c, cairn_buffer_open(b[0], CAIRN_WRITE), N * D, 1, 0);
    probe_fill(&c, cairn_buffer_open(b[1], CAIRN_WRITE), V * D, 2, 0);
    must(call_end(&c), "numbers");
    cairn_buffer_close(b[0]);
    cairn_buffer_close(b[1]);
    must(cairn_tensor_zero(&stream, &ids, &err), "ids");
    product = op_us(3, &m);
    plain = op_us(2, &s);
    s.logprob_sampled = lps;
    s.top_k = 50;
    top_k = op_us(2, &s);
    s.top_k = 0, s.top_p = 0.95f;
    top_p = op_us(2, &s);
    printf("sample %4lld x %6lld: product %8.1f us %6.0f GB/s | draw %8.1f us, %4.1f %% of the product | top-k 50 %8.1f us | top-p "
           "0.95 %8.1f us\n",
           (long long)N, (long long)V, product, (double)(V * D) * 2e-3 / product, plain, 100 * plain / product, top_k, top_p);
    fflush(stdout);
    for (int i = 0; i < 7; i++)
        cairn_buffer_destroy(b[i]);
}

static void head(void)
{
    head_line(4096, 2048, 32768);
    head_line(16384, 6144, 154880);
    sample_line(1, 2048, 32768);
    sample_line(64, 2048, 32768);
    sample_line(1, 6144, 154880);
    sample_line(64, 6144, 154880);
    sample_line(512, 6144, 154880);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"proof", proof}, {"dense", dense}, {"heads", heads}, {"grouped", grouped}, {"head", head}};
    char numerics[128];

    if (cairn_backend_entry()->open(0, &(struct cairn_backend_opts){.act = "bf16"}, &dev, &err) != CAIRN_OK) {
        printf("1..0 # SKIP %s\n", err.text);
        return 0;
    }
    must(cairn_stream_create(dev, &stream, &err), "a stream");
    cairn_backend_entry()->numerics(dev, numerics, sizeof numerics);
    lt = product_lt_open();
    printf("%s, cuBLASLt %s\n", numerics, lt ? "found" : "not found");
    for (int i = 0; i < 2; i++)
        cuda(cudaEventCreate(&ev[i]), "event");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (int j = 1; j < argc || j == 1; j++)
            if (argc == 1 || !strcmp(argv[j], parts[i].name))
                parts[i].run();
    product_lt_close(lt);
    cairn_stream_destroy(&stream);
    cairn_backend_entry()->close(dev);
    return 0;
}

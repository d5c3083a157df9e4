/* bench_products.c - every product of the 2 B model (glm52_2b.json) by itself: training of 4 x 1024 tokens, decoding 64 and 1.
 *
 *     bench_products [train|decode|price=TRAIN,DECODE64,DECODE1]...      (default: train and decode)
 *     bench_products proof=small      the proof alone, small: under compute-sanitizer
 *
 * price: what one order of k for every number of rows costs, line by line and in steps of so many milliseconds (measured elsewhere):
 * our time against the best of what may add as it likes - the library's own best of 8 with a workspace (a product at a time where
 * there are groups), and our kernels with k split in 2, 4, 8, 16 parts that a tree adds.
 *
 * A line a product: its time as the model runs it, the floor (flops at 770 TFLOP/s or bytes at 4.1 TB/s, whichever is longer), how
 * often a pass has it, what that loses against the floor, and the time of each kernel that can do it. Times are the least of a few
 * runs, each after a write that fills the L2. Experts get rows that differ by a factor of 8. Links the back-end's objects, since it
 * looks below the op table; it exits with 0 where there is no GPU.
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/product_choose.h"

#define FLUSH ((size_t)96 << 20)
#define RUNS  4

const struct cairn_backend *cairn_backend_entry(void);

static struct cairn_device *dev;
static struct cairn_stream stream;
static struct cairn_error err;
static struct product_lt *lt;
static cudaEvent_t ev[2];
static void *flush;
static double total_ms, total_floor_ms;
static int pricing;
static double total_free_ms; /* by who may split as it likes */

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

/* Groups of rows: E, else 0; heads: a batch of products, else 1. y_f32, accumulate: as the model has it. */
struct line {
    const char *what;
    int count, form, groups, heads;
    int64_t m, n, k; /* of one head; of all groups */
    int y_f32, accumulate;
};

enum { OURS, MMA, WGMMA, LT, SPLIT };

static double timed(const struct product *p, int kind, int tile, const struct product_lt_plan *plan)
{
    double least = -1;
    float ms;

    for (int i = 0; i < RUNS; i++) {
        struct call c = call_begin("bench", &stream, &err);
        int parts = kind == SPLIT ? tile : product_parts(p);
        void *scratch = (kind == OURS || kind == SPLIT) && parts > 1 ? call_scratch(&c, product_scratch(p, parts)) : NULL;

        if ((kind == OURS || kind == SPLIT) && i == 0)
            product_run(&c, p, parts, scratch); /* who has to choose does it here */
        cuda(cudaMemsetAsync(flush, i, FLUSH, c.stream), "flush");
        cuda(cudaEventRecord(ev[0], c.stream), "event");
        if (kind == OURS || kind == SPLIT)
            product_run(&c, p, parts, scratch);
        else if (kind == MMA)
            product_mma(&c, p, tile);
        else if (kind == WGMMA)
            product_wgmma(&c, p, tile);
        else
            product_lt_run(&c, lt, p, plan);
        cuda(cudaEventRecord(ev[1], c.stream), "event");
        cuda(cudaEventSynchronize(ev[1]), "waiting");
        cuda(cudaEventElapsedTime(&ms, ev[0], ev[1]), "elapsed");
        if (call_end(&c) != CAIRN_OK)
            return -1;
        if (least < 0 || ms < least)
            least = ms;
    }
    return 1e3 * least;
}

/* The least time of the library's own choices for one product. */
static double library_best(const struct product *p)
{
    struct product_lt_plan plan[8];
    struct product q = *p;
    double best = -1;
    int plans;

    q.parts = 1, q.part_k = q.k, q.wide = q.pairs = q.quads = 1;
    plans = product_lt_plans(lt, &q, 1, plan, 8);
    for (int i = 0; i < plans; i++) {
        double t = timed(&q, LT, 0, &plan[i]);

        if (t >= 0 && (best < 0 || t < best))
            best = t;
    }
    return best;
}

/* A product at a time, for groups. Each alone has the caches to itself and its launch is counted once: a floor of what a loop takes. */
static double library_loop(const struct product *p, const int32_t *offsets)
{
    int tn = p->form == CAIRN_TN;
    double sum = 0;

    for (int g = 0; g < p->batch; g++) {
        int64_t rows = offsets[g + 1] - offsets[g], at = offsets[g];
        struct product q = *p;
        double t;

        if (!rows)
            continue;
        q.offsets = NULL, q.batch = 1;
        q.a = (const char *)p->a + at * p->as * 2;
        q.b = (const char *)p->b + (tn ? at * p->bs : g * p->bb) * 2;
        q.y = (char *)p->y + (tn ? g * p->yb : at * p->ys) * (p->y_bf16 ? 2 : 4);
        if (tn)
            q.k = rows;
        else
            q.m = rows;
        t = library_best(&q);
        if (t < 0)
            return -1;
        sum += t;
    }
    return sum;
}

static void price_line(const struct line *l, const struct product *p, const int32_t *offsets)
{
    double ours = timed(p, OURS, 0, NULL), library = l->groups ? library_loop(p, offsets) : library_best(p), split = -1, best = ours;
    int at = 1;

    for (int parts = 2; parts <= 16 && p->form != CAIRN_TN && p->k % (64 * parts) == 0; parts *= 2) {
        double t = timed(p, SPLIT, parts, NULL);

        if (t >= 0 && (split < 0 || t < split))
            split = t, at = parts;
    }
    if (library >= 0 && library < best)
        best = library;
    if (split >= 0 && split < best)
        best = split;
    total_ms += ours * l->count * 1e-3, total_free_ms += best * l->count * 1e-3;
    printf("%-12s %3d x (%5lld x %5lld, k %5lld): ours %7.1f us, library %7.1f, %2d parts %7.1f, price %5.1f %%, x %2d %7.3f ms\n", l->what,
           l->groups ? l->groups : l->heads, (long long)l->m, (long long)l->n, (long long)l->k, ours, library, at, split,
           100 * (ours / best - 1), l->count, (ours - best) * l->count * 1e-3);
    fflush(stdout);
}

static void measure(const struct line *l)
{
    static const char *const forms[] = {"NT", "NN", "TN"}, *const mma[] = {"16x16", "16x64", "32", "64", "128"},
                             *const wg[] = {"64", "128a", "128b", "192a", "192b", "256a", "256b"};
    int tn = l->form == CAIRN_TN, nt = l->form == CAIRN_NT, E = l->groups;
    int64_t rows = tn ? l->k : l->m, wide_a = tn ? l->m : l->k;
    double of_a = (double)(l->m * l->k) * l->heads * 2, of_b = (double)(l->n * l->k) * l->heads * 2,
           of_y = (double)(l->m * l->n) * l->heads, flops = 2.0 * (double)(l->m * l->n) * (double)l->k * l->heads, floor, us, t;
    struct product p = {.form = l->form, .m = l->m, .n = l->n, .k = l->k, .batch = E ? E : l->heads, .a_bf16 = 1, .b_bf16 = 1};
    struct product_lt_plan plan[4];
    unsigned char *room = NULL;
    int32_t *offsets = calloc((size_t)E + 1, sizeof *offsets), used = 0;
    double share = 0, sum = 0;
    struct call c = call_begin("bench", &stream, &err);
    int plans;

    p.y_bf16 = !l->y_f32, p.accumulate = l->accumulate, p.alpha = 1, p.fault = c.cuda->d_fault, p.op = OP_matmul;
    /* rows of x and y hold all heads, as the model's do */
    p.as = wide_a * l->heads, p.ab = l->heads > 1 ? wide_a : 0;
    p.bs = nt ? l->k : l->n, p.bb = nt ? l->n * l->k : l->k * l->n;
    p.ys = tn ? l->n : l->n * l->heads, p.yb = l->heads > 1 ? (tn ? l->m * l->n : l->n) : 0;
    if (tn && l->heads > 1)
        p.bs = l->n * l->heads, p.bb = l->n;
    for (int pass = 0; pass < 2 && E; pass++)
        for (int e = 0; e < E; e++) {
            double w = exp(-2.08 * (double)(e * 37 % E) / E);

            sum += pass ? 0 : w;
            share += pass ? w / sum : 0;
            if (pass) {
                offsets[e + 1] = e + 1 == E ? (int32_t)rows : (int32_t)(share * (double)rows + 0.5);
                used += offsets[e + 1] > offsets[e];
            }
        }
    if (E) {
        p.bb = tn ? 0 : l->n * l->k, p.yb = tn ? l->m * l->n : 0;
        if (tn)
            of_y *= used;
        else
            of_b *= used;
    }
    cuda(cudaMalloc((void **)&room,
                    (size_t)(of_a + (E && !tn ? of_b / used * E : of_b) + (tn && E ? of_y / used * E : of_y) * 4) + 4096),
         "memory");
    p.a = room, p.b = room + (size_t)of_a, p.y = room + (size_t)(of_a + (E && !tn ? of_b / used * E : of_b));
    probe_fill(&c, room, (int64_t)(of_a / 2), 1, 0);
    probe_fill(&c, (void *)p.b, (int64_t)((E && !tn ? of_b / used * E : of_b) / 2), 2, 0);
    cuda(cudaMemsetAsync(p.y, 0, (size_t)((tn && E ? of_y / used * E : of_y) * 4), c.stream), "y");
    must(call_end(&c), "numbers");
    if (E) {
        int32_t *d = NULL;

        cuda(cudaMalloc((void **)&d, (size_t)(E + 1) * 4), "memory");
        cuda(cudaMemcpy(d, offsets, (size_t)(E + 1) * 4, cudaMemcpyHostToDevice), "offsets");
        p.offsets = d;
    }
    if (pricing) {
        price_line(l, &p, offsets);
        goto out;
    }
    of_y *= (l->y_f32 ? 4 : 2) * (l->accumulate ? 2 : 1);
    floor = fmax(flops / 770e6, (of_a + of_b + of_y) / 4.1e6);
    us = timed(&p, OURS, 0, NULL);
    total_ms += us * l->count * 1e-3, total_floor_ms += floor * l->count * 1e-3;
    printf("%-12s %s %2d x (%5lld x %5lld, k %5lld)%s%s: %7.1f us, floor %6.1f %s, x %2d loses %6.2f ms |", l->what, forms[l->form],
           E ? E : l->heads, (long long)l->m, (long long)l->n, (long long)l->k, l->y_f32 ? " f32" : "", l->accumulate ? " +=" : "",
           us, floor, flops / 770e6 >= floor ? "flops" : "bytes", l->count, (us - floor) * l->count * 1e-3);
    p.parts = 1, p.part_k = p.k, p.wide = p.pairs = p.quads = 1;
    for (int i = 0; i < PRODUCT_MMA_TILES + PRODUCT_WGMMA_TILES; i++) {
        int of_mma = i < PRODUCT_MMA_TILES, tile = of_mma ? i : i - PRODUCT_MMA_TILES;

        if (of_mma ? flops > 2e10 || (tn && tile < 2) : (rows < 64 && l->m < 64) || (tn && tile % 2))
            continue;
        c = call_begin("bench", &stream, &err);
        if (of_mma || product_wgmma_can(&c, &p)) {
            t = timed(&p, of_mma ? MMA : WGMMA, tile, NULL);
            printf(" %s%s %.1f", of_mma ? "m" : "w", of_mma ? mma[tile] : wg[tile], t);
        }
        call_end(&c);
    }
    plans = E ? 0 : product_lt_plans(lt, &p, 0, plan, 4);
    for (int i = 0; i < plans; i++)
        printf(" lt%d %.1f", i, timed(&p, LT, 0, &plan[i]));
    plans = E ? 0 : product_lt_plans(lt, &p, 1, plan, 1);
    if (plans)
        printf(" free %.1f", timed(&p, LT, 0, &plan[0]));
    printf("\n");
    fflush(stdout);
out:
    cudaFree(room);
    cudaFree((void *)p.offsets);
    free(offsets);
}

static void train(void)
{
    enum { N = 4096, M = 4 * N };
    static const struct line lines[] = {
        {"q_a", 12, CAIRN_NT, 0, 1, N, 768, 2048, 0, 0},         {"  dx", 12, CAIRN_NN, 0, 1, N, 2048, 768, 0, 0},
        {"  dw", 12, CAIRN_TN, 0, 1, 768, 2048, N, 1, 1},        {"q_b", 12, CAIRN_NT, 0, 1, N, 3072, 768, 0, 0},
        {"  dx", 12, CAIRN_NN, 0, 1, N, 768, 3072, 0, 0},        {"  dw", 12, CAIRN_TN, 0, 1, 3072, 768, N, 1, 1},
        {"kv_a", 12, CAIRN_NT, 0, 1, N, 576, 2048, 0, 0},        {"  dx", 12, CAIRN_NN, 0, 1, N, 2048, 576, 0, 1},
        {"  dw", 12, CAIRN_TN, 0, 1, 576, 2048, N, 1, 1},        {"q latent", 12, CAIRN_NN, 0, 16, N, 512, 128, 0, 0},
        {"  dx", 12, CAIRN_NT, 0, 16, N, 128, 512, 0, 0},        {"  dw", 12, CAIRN_TN, 0, 16, 128, 512, N, 1, 1},
        {"values", 12, CAIRN_NT, 0, 16, N, 128, 512, 0, 0},      {"  dx", 12, CAIRN_NN, 0, 16, N, 512, 128, 0, 0},
        {"  dw", 12, CAIRN_TN, 0, 16, 128, 512, N, 1, 1},        {"o", 12, CAIRN_NT, 0, 1, N, 2048, 2048, 0, 1},
        {"  dx", 12, CAIRN_NN, 0, 1, N, 2048, 2048, 0, 0},       {"  dw", 12, CAIRN_TN, 0, 1, 2048, 2048, N, 1, 1},
        {"index q", 5, CAIRN_NT, 0, 1, N, 2048, 768, 0, 0},      {"index k", 5, CAIRN_NT, 0, 1, N, 128, 2048, 0, 0},
        {"index w", 5, CAIRN_NT, 0, 1, N, 16, 2048, 1, 0},       {"router", 11, CAIRN_NT, 0, 1, N, 32, 2048, 1, 0},
        {"  dx", 11, CAIRN_NN, 0, 1, N, 2048, 32, 0, 0},         {"  dw", 11, CAIRN_TN, 0, 1, 32, 2048, N, 1, 1},
        {"gate, up", 22, CAIRN_NT, 32, 1, M, 768, 2048, 0, 0},   {"down", 11, CAIRN_NT, 32, 1, M, 2048, 768, 0, 0},
        {"  d down", 11, CAIRN_NN, 32, 1, M, 768, 2048, 0, 0},   {"  d gate", 11, CAIRN_NN, 32, 1, M, 2048, 768, 0, 0},
        {"  d up", 11, CAIRN_NN, 32, 1, M, 2048, 768, 0, 1},     {"  dw g, u", 22, CAIRN_TN, 32, 1, 768, 2048, M, 1, 1},
        {"  dw down", 11, CAIRN_TN, 32, 1, 2048, 768, M, 1, 1},  {"shared g, u", 22, CAIRN_NT, 0, 1, N, 768, 2048, 0, 0},
        {"  down", 11, CAIRN_NT, 0, 1, N, 2048, 768, 0, 1},      {"  d down", 11, CAIRN_NN, 0, 1, N, 768, 2048, 0, 0},
        {"  d g, u", 22, CAIRN_NN, 0, 1, N, 2048, 768, 0, 1},    {"  dw g, u", 22, CAIRN_TN, 0, 1, 768, 2048, N, 1, 1},
        {"  dw down", 11, CAIRN_TN, 0, 1, 2048, 768, N, 1, 1},   {"dense g, u", 2, CAIRN_NT, 0, 1, N, 6144, 2048, 0, 0},
        {"  down", 1, CAIRN_NT, 0, 1, N, 2048, 6144, 0, 1},      {"  d down", 1, CAIRN_NN, 0, 1, N, 6144, 2048, 0, 0},
        {"  d g, u", 2, CAIRN_NN, 0, 1, N, 2048, 6144, 0, 1},    {"  dw", 3, CAIRN_TN, 0, 1, 6144, 2048, N, 1, 1},
        {"head", 16, CAIRN_NT, 1, 1, 1024, 8192, 2048, 1, 0}, /* chunks of logprob */
        {"  again", 32, CAIRN_NT, 1, 1, 2048, 2048, 2048, 1, 0}, {"  dz", 32, CAIRN_NN, 1, 1, 2048, 2048, 2048, 1, 1},
        {"  dw", 32, CAIRN_TN, 1, 1, 2048, 2048, 2048, 1, 1},
    };

    total_ms = total_floor_ms = 0;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        measure(&lines[i]);
    if (pricing)
        return;
    printf("all products of 4 x 1024, forward and backward: %.2f ms, floor %.2f\n", total_ms, total_floor_ms);
}

static void decode(int rows)
{
    const struct line lines[] = {
        {"q_a", 12, CAIRN_NT, 0, 1, rows, 768, 2048, 0, 0},           {"q_b", 12, CAIRN_NT, 0, 1, rows, 3072, 768, 0, 0},
        {"kv_a", 12, CAIRN_NT, 0, 1, rows, 576, 2048, 0, 0},          {"q latent", 12, CAIRN_NN, 0, 16, rows, 512, 128, 0, 0},
        {"values", 12, CAIRN_NT, 0, 16, rows, 128, 512, 0, 0},        {"o", 12, CAIRN_NT, 0, 1, rows, 2048, 2048, 0, 1},
        {"index q", 5, CAIRN_NT, 0, 1, rows, 2048, 768, 0, 0},        {"index k", 5, CAIRN_NT, 0, 1, rows, 128, 2048, 0, 0},
        {"index w", 5, CAIRN_NT, 0, 1, rows, 16, 2048, 1, 0},         {"router", 11, CAIRN_NT, 0, 1, rows, 32, 2048, 1, 0},
        {"gate, up", 22, CAIRN_NT, 32, 1, 4 * rows, 768, 2048, 0, 0}, {"down", 11, CAIRN_NT, 32, 1, 4 * rows, 2048, 768, 0, 0},
        {"shared g, u", 22, CAIRN_NT, 0, 1, rows, 768, 2048, 0, 0},   {"  down", 11, CAIRN_NT, 0, 1, rows, 2048, 768, 0, 1},
        {"dense g, u", 2, CAIRN_NT, 0, 1, rows, 6144, 2048, 0, 0},    {"  down", 1, CAIRN_NT, 0, 1, rows, 2048, 6144, 0, 1},
        {"head", 1, CAIRN_NT, 0, 1, rows, 32768, 2048, 1, 0},
    };

    total_ms = total_floor_ms = 0;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        measure(&lines[i]);
    if (pricing)
        return;
    printf("all products of a decoded token, %d sequences: %.3f ms, floor %.3f\n", rows, total_ms, total_floor_ms);
}

/* Steps of so many milliseconds: training of 4 x 1024, a decoding call of 64, of 1; 0: left out. */
static void price(const char *text)
{
    static const char *const what[] = {"training 4 x 1024", "decoding 64", "decoding 1"};
    double step[3] = {0, 0, 0};

    sscanf(text, "%lf,%lf,%lf", &step[0], &step[1], &step[2]);
    pricing = 1;
    for (int i = 0; i < 3; i++) {
        if (!(step[i] > 0))
            continue;
        total_free_ms = 0;
        if (i == 0)
            train();
        else
            decode(i == 1 ? 64 : 1);
        printf("{\"what\":\"price, "
               "%s\",\"step_ms\":%.4f,\"products_ms\":%.4f,\"products_free_ms\":%.4f,\"price_of_products\":%.4f,\"price_of_step\":%.4f}\n",
               what[i], step[i], total_ms, total_free_ms, total_ms / total_free_ms - 1, step[i] / (step[i] - total_ms + total_free_ms) - 1);
    }
    pricing = 0;
}

/* Every form, tile and grouping of wgmma, and the smallest tile of mma, against the definition: 1 if some have other bits. */
static int proof(int small)
{
    int wrong = 0;

    for (int form = 0; form < 3; form++)
        for (int tile = -1; tile < PRODUCT_WGMMA_TILES; tile++)
            for (int grouped = 0; grouped < 2; grouped++) {
                struct call c = call_begin("proof", &stream, &err);
                struct product_difference d;
                int64_t n = product_proof(&c, form, tile, grouped, small, &d);

                if (n)
                    printf(
                        "%s form %d tile %d grouped %d: %lld of %lld elements have other bits, (%d,%d): %.9g, defined as %.9g\n",
                        tile < 0 ? "mma" : "wgmma", form, tile, grouped, (long long)n, (long long)d.of, d.row, d.col, d.got, d.want);
                wrong |= n != 0;
                must(call_end(&c), "proof");
            }
    printf("proof of wgmma: %s\n", wrong ? "FAILED" : "the same bits in all forms and tiles");
    return wrong;
}

int main(int argc, char **argv)
{
    char numerics[128];
    int all = argc == 1, wrong = 0;

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
    cuda(cudaMalloc(&flush, FLUSH), "memory");
    wrong = proof(argc > 1 && !strcmp(argv[1], "proof=small"));
    for (int i = 1; i < argc || (all && i == 1); i++) {
        if (all || !strcmp(argv[i], "train"))
            train();
        if (all || !strcmp(argv[i], "decode"))
            decode(64), decode(1);
        if (!all && !strncmp(argv[i], "price=", 6))
            price(argv[i] + 6);
    }
    cudaFree(flush);
    product_lt_close(lt);
    cairn_stream_destroy(&stream);
    cairn_backend_entry()->close(dev);
    return wrong ? 76 : 0;
}

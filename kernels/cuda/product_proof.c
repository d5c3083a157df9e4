/* product_proof.c - do wgmma's products have the bits of the definition? Both run on the card, on data with wide exponents and much
 * cancellation, in odd sizes, dense and in groups of which one is empty.
 */
#include <stdlib.h>
#include <string.h>

#include "product_choose.h"

struct call product_trial(const struct call *c)
{
    return (struct call){.c = {.op = c->c.op, .dev = c->c.dev, .act = -1}, .cuda = c->cuda, .str = c->str, .stream = c->stream};
}

int64_t product_differences(struct call *c, const void *x, const void *y, size_t bytes, int64_t *d_count)
{
    int64_t count = -1;

    probe_differences(c, x, y, bytes, d_count);
    call_cuda(c, cudaMemcpyAsync(&count, d_count, sizeof count, cudaMemcpyDeviceToHost, c->stream), "reading a count");
    call_cuda(c, cudaStreamSynchronize(c->stream), "waiting for a trial");
    return call_ok(c) ? count : -1;
}

/* Fetches both results, N columns a row, and fills in d unless it is filled already. */
static void compare(struct call *c, float *const y[2], size_t n, int N, int spread, struct product_difference *d)
{
    float *h = malloc(n * 2 * sizeof *h);

    if (!h)
        return;
    call_cuda(c, cudaMemcpyAsync(h, y[0], n * 2 * sizeof *h, cudaMemcpyDeviceToHost, c->stream), "fetching a proof");
    call_cuda(c, cudaStreamSynchronize(c->stream), "waiting for a proof");
    for (size_t i = 0; call_ok(c) && i < n; i++) {
        double a = h[i], b = h[n + i], off = b > a ? b - a : a - b;

        d->of++;
        d->scale = a > d->scale ? a : d->scale;
        if (!memcmp(&h[i], &h[n + i], sizeof *h))
            continue;
        if (d->spread < 0) {
            d->spread = spread, d->row = (int)(i / (size_t)N), d->col = (int)(i % (size_t)N);
            d->got = b, d->want = a;
        }
        d->most = off > d->most ? off : d->most;
    }
    free(h);
}

int64_t product_proof(struct call *of, int form, int tile, int grouped, int small, struct product_difference *tell)
{
    enum { GROUPS = 4 };
    static const int32_t cuts_m[2][GROUPS + 1] = {{0, 72, 72, 200, 328}, {0, 24, 24, 80, 136}};
    static const int32_t cuts_k[2][GROUPS + 1] = {{0, 200, 200, 229, 968}, {0, 96, 96, 125, 392}};
    const int32_t *const cut_m = cuts_m[small], *const cut_k = cuts_k[small];
    const int M = cut_m[GROUPS], N = M, K = cut_k[GROUPS];
    struct call c = product_trial(of);
    struct product p = {.m = M,
                        .n = N,
                        .k = K,
                        .form = form,
                        .batch = 1,
                        .a_bf16 = 1,
                        .b_bf16 = 1,
                        .alpha = 1,
                        .parts = 1,
                        .wide = 1,
                        .pairs = 1,
                        .fault = c.cuda->d_fault,
                        .op = OP_matmul};
    size_t side = (size_t)1 << 20, of_y = (size_t)M * N * (grouped && form == CAIRN_TN ? GROUPS : 1); /* elements */
    size_t of_b = side * (grouped && form != CAIRN_TN ? GROUPS : 1);
    unsigned char *room = NULL;
    float *y[2];
    int64_t *count, wrong = -1;
    int32_t *offsets;

    if (tell)
        *tell = (struct product_difference){.spread = -1};
    call_cuda(&c, cudaMalloc((void **)&room, (side + of_b) * 2 + of_y * 8 + 256), "room for a proof");
    if (!call_ok(&c))
        return -1;
    y[0] = (float *)(room + (side + of_b) * 2), y[1] = y[0] + of_y;
    count = (int64_t *)(y[1] + of_y);
    offsets = (int32_t *)(count + 1);
    p.a = room, p.b = room + side * 2;
    p.as = form == CAIRN_TN ? M : K, p.bs = form == CAIRN_NT ? K : N, p.ys = N;
    p.part_k = K;
    if (grouped) {
        call_cuda(&c, cudaMemcpyAsync(offsets, form == CAIRN_TN ? cut_k : cut_m, sizeof cuts_m[0], cudaMemcpyHostToDevice, c.stream),
                  "offsets");
        p.offsets = offsets;
        p.batch = GROUPS;
        p.bb = (int64_t)side, p.yb = (int64_t)M * N;
    }
    wrong = 0;
    for (uint32_t spread = small ? 2 : 0; spread < 3 && wrong >= 0; spread++) {
        int64_t d;

        probe_fill(&c, (void *)p.a, (int64_t)side, 1 + spread, spread);
        probe_fill(&c, (void *)p.b, (int64_t)of_b, 7 + spread, spread == 2 ? 3 : spread);
        call_cuda(&c, cudaMemsetAsync(y[0], 0xff, of_y * 8, c.stream), "poisoning");
        p.y = y[0];
        product_mma(&c, &p, PRODUCT_MMA_TILES - 1);
        p.y = y[1];
        if (tile >= 0)
            product_wgmma(&c, &p, tile);
        else
            product_mma(&c, &p, 0);
        d = product_differences(&c, y[0], y[1], of_y * 4, count);
        wrong = d < 0 ? -1 : wrong + d;
        if (tell && d)
            compare(&c, y, of_y, N, (int)spread, tell);
    }
    cudaFree(room);
    return wrong;
}

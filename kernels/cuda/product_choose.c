/* product_choose.c - which kernel does a product: proof that they give the same bits, then the fastest.
 *
 * The definition of a bf16 product's bits is product_mma. wgmma is used when, on this card, it gave the same bits for products with
 * wide exponents and much cancellation, in every form and width (product_proof). For large dense products of a shape (form, types,
 * n, k, batch, rows up to a power of two) all candidates - own kernels, and cuBLASLt's without a split of k - run on random data
 * once; who gives other bits than the definition is out, the fastest of the others stays. Since the bits are the same, the clock
 * decides about time only. While a stream is captured into a graph, or without memory to try, the choice is product_default's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "product_choose.h"

#define KEYS 2048 /* a power of two */

enum kind { KIND_FMA, KIND_MMA, KIND_WGMMA, KIND_LT };

struct choice {
    enum kind kind;
    int which; /* tile of mma, width of wgmma */
    struct product_lt_plan lt;
};

struct key {
    int64_t n, k, m; /* m: the bucket's top */
    int32_t form, types, batch, end;
};

struct chooser {
    int wgmma; /* -1 unknown, 0 other bits (or none), 1 the same */
    struct product_lt *lt;
    int used;
    int64_t refused; /* candidates with other bits */
    struct key key[KEYS];
    struct choice choice[KEYS];
    unsigned char taken[KEYS];
};

static void chooser_free(void *p)
{
    struct chooser *h = p;

    if (h)
        product_lt_close(h->lt);
    free(h);
}

static struct chooser *chooser_of(struct call *c)
{
    struct chooser *h = c->cuda->slot[SLOT_MATMUL];

    if (h)
        return h;
    h = calloc(1, sizeof *h);
    if (!h) {
        c->st = CAIRN_NOMEM(c->err);
        return NULL;
    }
    h->wgmma = -1;
    h->lt = product_lt_open();
    c->cuda->slot[SLOT_MATMUL] = h;
    c->cuda->slot_free[SLOT_MATMUL] = chooser_free;
    return h;
}

static int capturing(const struct call *c)
{
    enum cudaStreamCaptureStatus s = cudaStreamCaptureStatusNone;

    return cudaStreamIsCapturing(c->stream, &s) != cudaSuccess || s != cudaStreamCaptureStatusNone;
}

static void launch(struct call *c, const struct chooser *h, const struct product *p, const struct choice *o)
{
    if (o->kind == KIND_FMA)
        product_fma(c, p);
    else if (o->kind == KIND_MMA)
        product_mma(c, p, o->which);
    else if (o->kind == KIND_WGMMA)
        product_wgmma(c, p, o->which);
    else
        product_lt_run(c, h->lt, p, &o->lt);
}

/* ---- proof ----------------------------------------------------------------------------------------------------------------- */

/* A call of its own on the same stream: what fails in it fails nothing else. */
static struct call trial(const struct call *c)
{
    return (struct call){.op = c->op, .cuda = c->cuda, .str = c->str, .stream = c->stream, .err = NULL, .st = CAIRN_OK, .act = -1};
}

/* Elements of y that differ in bits, -1 if that could not be found out. */
static int64_t differences(struct call *c, const void *x, const void *y, size_t bytes, int64_t *d_count)
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

int64_t product_proof(struct call *of, int form, int width, int grouped, struct product_difference *tell)
{
    enum { M = 328, N = 328, K = 968, GROUPS = 4 };
    static const int32_t cut_m[GROUPS + 1] = {0, 72, 72, 200, M}, cut_k[GROUPS + 1] = {0, 200, 200, 229, K};
    struct call c = trial(of);
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
        call_cuda(&c, cudaMemcpyAsync(offsets, form == CAIRN_TN ? cut_k : cut_m, sizeof cut_m, cudaMemcpyHostToDevice, c.stream),
                  "offsets");
        p.offsets = offsets;
        p.batch = GROUPS;
        p.bb = (int64_t)side, p.yb = (int64_t)M * N;
    }
    wrong = 0;
    for (uint32_t spread = 0; spread < 3 && wrong >= 0; spread++) {
        int64_t d;

        probe_fill(&c, (void *)p.a, (int64_t)side, 1 + spread, spread);
        probe_fill(&c, (void *)p.b, (int64_t)of_b, 7 + spread, spread == 2 ? 3 : spread);
        call_cuda(&c, cudaMemsetAsync(y[0], 0xff, of_y * 8, c.stream), "poisoning");
        p.y = y[0];
        product_mma(&c, &p, 3);
        p.y = y[1];
        if (width)
            product_wgmma(&c, &p, width);
        else
            product_mma(&c, &p, 0);
        d = differences(&c, y[0], y[1], of_y * 4, count);
        wrong = d < 0 ? -1 : wrong + d;
        if (tell && d)
            compare(&c, y, of_y, N, (int)spread, tell);
    }
    cudaFree(room);
    return wrong;
}

static void prove(struct call *c, struct chooser *h)
{
    static const int widths[] = {64, 128, 256};

    h->wgmma = 1;
    for (int form = CAIRN_NT; form <= CAIRN_TN && h->wgmma; form++)
        for (int i = 0; i < 3 && h->wgmma; i++)
            for (int grouped = 0; grouped < 2 && h->wgmma; grouped++)
                h->wgmma = product_proof(c, form, widths[i], grouped, NULL) == 0;
}

/* ---- the choice ---------------------------------------------------------------------------------------------------------------
 */

/* By arithmetic: tiles that fill the card, and no larger than the product. */
static struct choice by_default(const struct call *c, const struct chooser *h, const struct product *p)
{
    static const int side[PRODUCT_MMA_TILES] = {16, 32, 64, 128};
    int64_t rows = p->offsets && p->form != CAIRN_TN ? ceil_div(p->m, p->batch) : p->m, z = (int64_t)p->batch * p->parts, tiles;
    int64_t least = rows < p->n ? rows : p->n;
    int tile = PRODUCT_MMA_TILES - 1;

    if (!p->a_bf16 || !p->b_bf16)
        return (struct choice){.kind = KIND_FMA};
    if (h->wgmma == 1 && rows > 64 && product_wgmma_can(c, p)) {
        int width = p->n <= 64 ? 64 : p->n <= 128 ? 128 : 256;

        for (; width > 64; width /= 2) {
            tiles = ceil_div(rows, 128) * ceil_div(p->n, width) * z;
            if (tiles >= c->cuda->sms * 3 / 4)
                break;
        }
        return (struct choice){.kind = KIND_WGMMA, .which = width};
    }
    for (; tile > 0; tile--) {
        tiles = ceil_div(rows, side[tile]) * ceil_div(p->n, side[tile]) * z;
        if (side[tile] <= 2 * least - 2 && tiles >= c->cuda->sms)
            break;
        if (rows > side[tile] / 2 && side[tile] <= 32)
            break;
    }
    return (struct choice){.kind = KIND_MMA, .which = tile};
}

static struct key key_of(const struct product *p)
{
    struct key k = {.n = p->n,
                    .k = p->k,
                    .form = p->form,
                    .types = p->y_bf16 | p->pairs << 1 | p->quads << 2,
                    .batch = p->batch,
                    .end = p->accumulate | (p->alpha != 1) << 1};

    for (k.m = 16; k.m < p->m;)
        k.m *= 2;
    return k;
}

static int slot_of(struct chooser *h, const struct key *k)
{
    uint64_t x = 14695981039346656037u;
    const unsigned char *b = (const unsigned char *)k;
    int i;

    for (size_t j = 0; j < sizeof *k; j++)
        x = (x ^ b[j]) * 1099511628211u;
    for (i = (int)(x >> 40) & (KEYS - 1); h->taken[i] && memcmp(&h->key[i], k, sizeof *k); i = (i + 1) & (KEYS - 1))
        ;
    return i;
}

/* Milliseconds of one run, the least of a few; negative if it failed. */
static float stopwatch(struct call *c, const struct chooser *h, const struct product *p, const struct choice *o, cudaEvent_t ev[2])
{
    float best = -1, ms;

    for (int i = 0; i < 4 && call_ok(c); i++) {
        call_cuda(c, cudaEventRecord(ev[0], c->stream), "cudaEventRecord");
        launch(c, h, p, o);
        call_cuda(c, cudaEventRecord(ev[1], c->stream), "cudaEventRecord");
        call_cuda(c, cudaEventSynchronize(ev[1]), "waiting for a trial");
        if (call_ok(c) && cudaEventElapsedTime(&ms, ev[0], ev[1]) == cudaSuccess && i && (best < 0 || ms < best))
            best = ms;
    }
    return call_ok(c) ? best : -1;
}

/* Tries all candidates on random operands of the shape; what cannot be tried leaves the default. */
static struct choice by_trial(const struct call *of, struct chooser *h, const struct product *p, int64_t rows, struct choice best)
{
    enum { CANDIDATES = 16, PLANS = 4 };
    const int tn = p->form == CAIRN_TN;
    struct call c = trial(of);
    struct product q = *p;
    struct choice o[CANDIDATES];
    struct product_lt_plan plan[PLANS];
    size_t a, b, y, size = p->y_bf16 ? 2 : 4;
    unsigned char *room = NULL;
    cudaEvent_t ev[2] = {NULL, NULL};
    float least = -1, ms;
    int n = 0, plans;

    /* dense operands with the same alignment; a few hundred megabytes are enough to tell who is faster */
    q.m = tn ? p->m : rows;
    while (!tn && q.m > 256 && (q.m * q.k * 2 + q.m * q.n * 8) * q.batch > (int64_t)1 << 29)
        q.m /= 2;
    q.as = round_up(tn ? q.m : q.k, 8), q.bs = round_up(p->form == CAIRN_NT ? q.k : q.n, 8), q.ys = round_up(q.n, 8);
    q.ab = (tn ? q.k : q.m) * q.as, q.bb = (p->form == CAIRN_NT ? q.n : q.k) * q.bs, q.yb = q.m * q.ys;
    a = (size_t)(q.ab * q.batch) * 2, b = (size_t)(q.bb * q.batch) * 2, y = (size_t)round_up(q.yb * q.batch * (int64_t)size, 16);
    if (a + b + 2 * y > (size_t)2 << 30)
        return best;
    call_cuda(&c, cudaMalloc((void **)&room, a + b + 2 * y + 16), "room for a trial");
    for (int i = 0; i < 2; i++)
        call_cuda(&c, cudaEventCreate(&ev[i]), "cudaEventCreate");
    if (!call_ok(&c))
        goto out;
    q.a = room, q.b = room + a;
    probe_fill(&c, room, (int64_t)(a / 2), 1, 1);
    probe_fill(&c, room + a, (int64_t)(b / 2), 2, 1);
    probe_fill(&c, room + a + b, (int64_t)(y / 2), 3, 0);
    call_cuda(&c, cudaMemcpyAsync(room + a + b + y, room + a + b, y, cudaMemcpyDeviceToDevice, c.stream), "copying");
    q.y = room + a + b;
    product_mma(&c, &q, PRODUCT_MMA_TILES - 1); /* the definition; one run, for accumulate */
    q.y = room + a + b + y;

    o[n++] = best;
    for (int i = 0; i < PRODUCT_MMA_TILES; i++)
        if (q.m <= 256 ? i > 0 || q.m <= 32 : i == 3)
            o[n++] = (struct choice){.kind = KIND_MMA, .which = i};
    for (int w = 64; w <= 256 && h->wgmma == 1 && product_wgmma_can(&c, &q) && q.m > 32; w *= 2)
        o[n++] = (struct choice){.kind = KIND_WGMMA, .which = w};
    plans = p->quads ? product_lt_plans(h->lt, &q, 0, plan, PLANS) : 0;
    for (int i = 0; i < plans; i++)
        o[n++] = (struct choice){.kind = KIND_LT, .lt = plan[i]};
    for (int i = 0; i < n; i++) {
        struct call t = trial(of);
        int64_t *count = (int64_t *)(room + a + b + 2 * y);

        probe_fill(&t, q.y, (int64_t)(y / 2), 3, 0);
        launch(&t, h, &q, &o[i]);
        if (differences(&t, room + a + b, q.y, y, count) != 0) {
            h->refused += call_ok(&t);
            continue;
        }
        ms = stopwatch(&t, h, &q, &o[i], ev);
        if (ms >= 0 && (least < 0 || ms < least))
            least = ms, best = o[i];
    }
out:
    cudaFree(room);
    for (int i = 0; i < 2; i++)
        if (ev[i])
            cudaEventDestroy(ev[i]);
    cudaGetLastError();
    return best;
}

static void choose_and_launch(struct call *c, const struct product *p)
{
    struct chooser *h = chooser_of(c);
    int bf16 = p->a_bf16 && p->b_bf16, may_try, i;
    struct choice o;
    struct key key;

    if (!h)
        return;
    may_try = bf16 && !capturing(c);
    if (may_try && h->wgmma < 0) {
        if (c->cuda->sm == 90)
            prove(c, h);
        else
            h->wgmma = 0;
    }
    o = by_default(c, h, p);
    if (bf16 && !p->offsets && p->parts == 1 && p->wide && p->k > 0 && (double)p->n * p->k >= 1 << 19 &&
        (p->form != CAIRN_TN || (double)p->m * p->n * p->k >= 1 << 27)) {
        key = key_of(p);
        i = slot_of(h, &key);
        if (h->taken[i]) {
            o = h->choice[i];
        } else if (may_try && h->used < KEYS / 2) {
            h->choice[i] = o = by_trial(c, h, p, key.m, o);
            h->key[i] = key;
            h->taken[i] = 1;
            h->used++;
        }
    }
    launch(c, h, p, &o);
}

/* ---- one product ---------------------------------------------------------------------------------------------------------------
 */

size_t product_scratch(const struct product *p, int parts)
{
    int64_t batch = p->offsets && p->form != CAIRN_TN ? 1 : p->batch;

    return parts > 1 ? (size_t)(batch * parts * p->m * p->n) * sizeof(float) : 0;
}

/* Is every line of the operand aligned to so many elements? */
static int even(const void *p, int64_t stride, int64_t step, int64_t lines, int64_t products, int64_t elements, int64_t size)
{
    return (int64_t)((uintptr_t)p % (uintptr_t)(elements * size)) == 0 && (lines <= 1 || stride % elements == 0) &&
           (products <= 1 || step % elements == 0);
}

void product_run(struct call *c, const struct product *p, int parts, void *scratch)
{
    struct product q = *p;
    int tn = p->form == CAIRN_TN, nt = p->form == CAIRN_NT, ragged = p->offsets != NULL;

    if (!call_ok(c) || p->m == 0 || p->n == 0 || p->batch == 0 || (p->offsets && !tn && p->m == 0))
        return;
    q.parts = parts;
    q.part_k = parts > 1 ? (p->k % parts == 0 ? p->k / parts : round_up(ceil_div(p->k, parts), 64)) : p->k;
    q.wide = q.a_bf16 && q.b_bf16 && even(q.a, q.as, q.ab, tn ? q.k : q.m, ragged ? 1 : q.batch, 8, 2) &&
             even(q.b, q.bs, q.bb, nt ? q.n : q.k, ragged && tn ? 1 : q.batch, 8, 2) && (parts == 1 || q.part_k % 8 == 0);
    if (parts > 1) {
        q.y = scratch;
        q.y_bf16 = 0, q.accumulate = 0, q.alpha = 1;
        q.ys = p->n, q.yb = p->m * p->n;
        q.yp = q.yb * (ragged && !tn ? 1 : p->batch);
    }
    q.pairs = even(q.y, q.ys, q.yb, q.m, ragged && !tn ? 1 : q.batch, 2, q.y_bf16 ? 2 : 4) && q.yp % 2 == 0;
    q.quads = even(q.y, q.ys, q.yb, q.m, ragged && !tn ? 1 : q.batch, q.y_bf16 ? 8 : 4, q.y_bf16 ? 2 : 4);
    choose_and_launch(c, &q);
    if (parts > 1) {
        q = *p;
        q.parts = parts;
        product_tree(c, &q, scratch);
    }
}

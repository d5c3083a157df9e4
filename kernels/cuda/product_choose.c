/* product_choose.c - which kernel does a product: proof that they give the same bits, then the fastest.
 *
 * The definition of a bf16 product's bits is product_mma. wgmma is used when, on this card, it gave the same bits for products with
 * wide exponents and much cancellation, in every form and tile (product_proof.c). Of each shape (form, types, n, k, batch, rows up
 * to a power of two) all candidates - own kernels, and for dense products cuBLASLt's without a split of k - run once; who gives
 * other bits than the definition is out, the fastest of the others stays. Since the bits are the same, the clock decides about time
 * only. While a stream is captured into a graph, or without memory to try, by_default chooses.
 *
 * Proof and choices are kept for the next process on the card (keep.h): trying takes tens of milliseconds a shape. An algorithm of cuBLASLt's counts
 * only with the version of it that gave it. What was kept is loaded ahead (product_ahead.h).
 *
 * CAIRN_CUDA_TRIALS=0, for tools under which everything is slow: nothing is proved or tried, wgmma has the right bits where the card has it, and
 * by_default chooses. Bits are those of a card that passes its proof.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "keep.h"
#include "product_ahead.h"
#include "product_few.h"

#define KEYS       2048               /* a power of two */
#define PART_TILES 128                /* tiles of 128 x 128 that a launch should have */
#define PART_LEAST 512                /* rows of a part */
#define FLUSH      ((size_t)96 << 20) /* bytes, more than any cache */

struct key {
    int64_t n, k, m; /* m: the bucket's top */
    int32_t form, types, batch, end;
};

struct chooser {
    int wgmma;    /* -1 unknown, 0 other bits (or none), 1 the same */
    int unproved; /* wgmma is 0 because it could not be found out */
    int trials;
    int asked;             /* whether there is a cuBLASLt: */
    struct product_lt *lt; /* it, or NULL */
    struct product_ahead *ahead;
    struct keep *keep;
    uint64_t lt_version; /* whose algorithms were kept; 0: nobody's */
    int tried;           /* choices of this process */
    int used;
    int64_t refused; /* candidates with other bits */
    struct key key[KEYS];
    struct choice choice[KEYS];
    unsigned char taken[KEYS], kept[KEYS]; /* kept: the choice is worth keeping */
};

/* ---- what is kept -------------------------------------------------------------------------------------------------------- */

struct kept_head {
    uint64_t lt_version; /* 0: cuBLASLt was never asked */
    int64_t count;
    int32_t wgmma, entry; /* proved; bytes of a struct kept */
};

struct kept {
    struct key key;
    struct choice choice;
};

static int slot_of(struct chooser *h, const struct key *k);

/* cuBLASLt, opened when somebody asks for it, which may allocate; NULL where there is none. */
static struct product_lt *lt_of(struct chooser *h)
{
    if (!h->asked) {
        h->asked = 1;
        h->lt = h->ahead ? product_ahead_lt(h->ahead) : product_lt_open();
        if (h->lt_version && h->lt_version != product_lt_version(h->lt)) { /* its algorithms are another's */
            for (int i = 0; i < KEYS; i++)
                if (h->taken[i] && h->choice[i].kind == KIND_LT)
                    h->choice[i].kind = KIND_AGAIN;
            h->lt_version = 0;
        }
    }
    return h->lt;
}

static int choice_ok(const struct choice *o)
{
    static const int most[] = {
        [KIND_FMA] = 1, [KIND_MMA] = PRODUCT_MMA_TILES, [KIND_FEW] = PRODUCT_FEW_TILES, [KIND_WGMMA] = PRODUCT_WGMMA_TILES, [KIND_LT] = 1};
    int kind = (int)o->kind;

    return kind >= KIND_FMA && kind <= KIND_LT && o->which >= 0 && o->which < most[kind] && (kind != KIND_LT || !o->lt.workspace);
}

/* Takes what was kept; what this process has chosen itself stays. */
static void kept_take(struct chooser *h)
{
    struct kept_head head;
    size_t n = 0;
    unsigned char *p = keep_read(h->keep, &n);
    uint64_t version;
    struct kept e;

    if (!p || n < sizeof head)
        goto out;
    memcpy(&head, p, sizeof head);
    if (head.entry != (int32_t)sizeof e || head.count < 0 || head.count > KEYS / 2 || n != sizeof head + (size_t)head.count * sizeof e)
        goto out;
    if (h->wgmma < 0 && (head.wgmma == 0 || head.wgmma == 1))
        h->wgmma = head.wgmma;
    if (!h->asked && !h->lt_version)
        h->lt_version = head.lt_version;
    version = h->asked ? product_lt_version(h->lt) : h->lt_version;
    for (int64_t j = 0; j < head.count && h->used < KEYS / 2; j++) {
        int i;

        memcpy(&e, p + sizeof head + (size_t)j * sizeof e, sizeof e);
        i = slot_of(h, &e.key);
        if (h->taken[i] || !choice_ok(&e.choice) || (e.choice.kind == KIND_LT && head.lt_version != version))
            continue;
        h->key[i] = e.key;
        h->choice[i] = e.choice;
        h->taken[i] = h->kept[i] = 1;
        h->used++;
    }
out:
    free(p);
}

/* All that is known now, with what others have kept meanwhile. */
static void kept_write(struct chooser *h)
{
    struct kept_head head = {.entry = (int32_t)sizeof(struct kept), .wgmma = -1};
    unsigned char *p;
    size_t n = sizeof head;

    kept_take(h);
    head.wgmma = h->unproved ? -1 : h->wgmma;
    head.lt_version = h->asked ? product_lt_version(h->lt) : h->lt_version;
    if (!(p = calloc(1, sizeof head + (size_t)h->used * sizeof(struct kept))))
        return;
    for (int i = 0; i < KEYS; i++)
        if (h->taken[i] && h->kept[i] && h->choice[i].kind != KIND_AGAIN) {
            memcpy(p + n + offsetof(struct kept, key), &h->key[i], sizeof h->key[i]);
            memcpy(p + n + offsetof(struct kept, choice), &h->choice[i], sizeof h->choice[i]);
            n += sizeof(struct kept);
            head.count++;
        }
    memcpy(p, &head, sizeof head);
    keep_write(h->keep, p, n);
    free(p);
}

static void chooser_free(void *p)
{
    struct chooser *h = p;

    if (!h)
        return;
    if (h->tried)
        kept_write(h);
    product_ahead_end(h->ahead);
    keep_close(h->keep);
    product_lt_close(h->lt);
    free(h);
}

/* NULL without memory. */
static struct chooser *chooser_new(struct cuda *d)
{
    struct chooser *h = calloc(1, sizeof *h);
    const char *trials = getenv("CAIRN_CUDA_TRIALS");

    if (!h)
        return NULL;
    h->trials = !trials || strcmp(trials, "0") != 0;
    h->wgmma = -1;
    if (h->trials && (h->keep = keep_open(d, "products")))
        kept_take(h);
    d->slot[SLOT_MATMUL] = h;
    d->slot_free[SLOT_MATMUL] = chooser_free;
    return h;
}

static struct chooser *chooser_of(struct call *c)
{
    struct chooser *h = c->cuda->slot[SLOT_MATMUL];

    if (!h && !(h = chooser_new(c->cuda))) {
        c->c.st = CAIRN_NOMEM(c->c.err);
        return NULL;
    }
    if (!h->trials && h->wgmma < 0)
        h->wgmma = product_wgmma_there(c);
    return h;
}

/* A product of the kept shape, as far as a kernel sees it. */
static struct product product_of(const struct key *k, struct fault *fault)
{
    return (struct product){.m = k->m,
                            .n = k->n,
                            .k = k->k,
                            .batch = k->batch,
                            .form = k->form,
                            .a_bf16 = 1,
                            .b_bf16 = 1,
                            .y_bf16 = k->types & 1,
                            .pairs = k->types >> 1 & 1,
                            .quads = k->types >> 2 & 1,
                            .accumulate = k->end & 1,
                            .alpha = k->end & 2 ? 0.5f : 1,
                            .parts = 1,
                            .wide = 1,
                            .fault = fault,
                            .op = OP_matmul};
}

void product_choose_begin(struct cuda *d)
{
    struct chooser *h = d->keep ? chooser_new(d) : NULL; /* without memory the first product says so */
    struct product_wanted *wanted = h && h->lt_version ? calloc((size_t)h->used + 1, sizeof *wanted) : NULL;
    int n = 0;

    for (int i = 0; wanted && i < KEYS; i++)
        if (h->taken[i] && !(h->key[i].end & 4)) /* groups take kernels that others take, too */
            wanted[n++] = (struct product_wanted){product_of(&h->key[i], d->d_fault), h->choice[i]};
    if (n)
        h->ahead = product_ahead_begin(d, wanted, n, h->lt_version);
    free(wanted);
}

static int capturing(const struct call *c)
{
    enum cudaStreamCaptureStatus s = cudaStreamCaptureStatusNone;

    return cudaStreamIsCapturing(c->stream, &s) != cudaSuccess || s != cudaStreamCaptureStatusNone;
}

void product_launch(struct call *c, struct product_lt *lt, const struct product *p, const struct choice *o)
{
    if (o->kind == KIND_FMA)
        product_fma(c, p);
    else if (o->kind == KIND_MMA)
        product_mma(c, p, o->which);
    else if (o->kind == KIND_FEW)
        product_few(c, p, o->which);
    else if (o->kind == KIND_WGMMA)
        product_wgmma(c, p, o->which);
    else
        product_lt_run(c, lt, p, &o->lt);
}

/* What cannot be run, without memory say, counts as other bits in this process and is not kept. */
static void prove(struct call *c, struct chooser *h)
{
    int64_t differ = 0;

    for (int form = CAIRN_NT; form <= CAIRN_TN && !differ; form++)
        for (int tile = 0; tile < PRODUCT_WGMMA_TILES && !differ; tile++)
            for (int grouped = 0; grouped < 2 && !differ; grouped++)
                differ = product_proof(c, form, tile, grouped, 0, NULL);
    h->wgmma = differ == 0;
    h->unproved = differ < 0;
}

/* ---- the choice ------------------------------------------------------------------------------------------------------------ */

/* Rows that a tile may have: of one product or group. */
static int64_t rows_of(const struct product *p)
{
    return p->offsets && p->form != CAIRN_TN ? ceil_div(p->m, p->batch) : p->m;
}

/* The wgmma tile for which a simple model of time is least: rounds over the multiprocessors times what a round takes. */
static int wgmma_by_default(const struct call *c, const struct product *p)
{
    static const struct {
        int high, wide, blocks;
        float cost; /* of a round, relative: terms are multiplied faster in wide tiles, and with what is shared */
    } tile[PRODUCT_WGMMA_TILES] = {{128, 64, 1, 2.0f},  {128, 256, 2, 2.5f}, {256, 128, 2, 2.5f}, {128, 384, 2, 3.4f},
                                   {256, 192, 2, 3.4f}, {128, 512, 2, 4.4f}, {256, 256, 2, 4.4f}};
    int64_t rows = rows_of(p), z = (int64_t)p->batch * p->parts;
    float least = -1;
    int best = 0;

    for (int i = 0; i < PRODUCT_WGMMA_TILES; i++) {
        if (p->form == CAIRN_TN && i % 2) /* the next again */
            continue;
        /* groups end anywhere: on average half a tile of theirs is empty */
        float tiles =
            p->offsets && p->form != CAIRN_TN ? (float)z * ((float)rows / (float)tile[i].high + 0.5f) : (float)(z * ceil_div(rows, tile[i].high));
        int64_t all = (int64_t)(tiles * (float)ceil_div(p->n, tile[i].wide)), at_once = c->cuda->sms / tile[i].blocks;
        float cost = (float)(ceil_div(all, at_once > 0 ? at_once : 1)) * tile[i].cost;

        if (least < 0 || cost <= least)
            least = cost, best = i;
    }
    return best;
}

/* The tile of few rows that leaves the fewest of its rows empty, and of those the widest that still fills the card. */
static int few_by_default(const struct call *c, const struct product *p)
{
    int64_t rows = rows_of(p), z = (int64_t)p->batch * p->parts, least = INT64_MAX;
    int best = 0;

    for (int i = 0; i < PRODUCT_FEW_TILES; i++) {
        int64_t high = ceil_div(rows, product_few_high[i]), tiles = high * ceil_div(p->n, product_few_wide[i]) * z;
        int64_t cost = high * product_few_high[i] * (tiles < c->cuda->sms ? 4 : 1);

        if (cost <= least)
            least = cost, best = i;
    }
    return best;
}

/* By arithmetic: tiles that fill the card, and no larger than the product. */
static struct choice by_default(const struct call *c, const struct chooser *h, const struct product *p)
{
    static const int high[PRODUCT_MMA_TILES] = {16, 16, 32, 64, 128}, wide[PRODUCT_MMA_TILES] = {16, 64, 32, 64, 128};
    int64_t rows = rows_of(p), z = (int64_t)p->batch * p->parts;
    int tile = PRODUCT_MMA_TILES - 1;

    if (!p->a_bf16 || !p->b_bf16)
        return (struct choice){.kind = KIND_FMA};
    if (h->wgmma == 1 && rows > 64 && product_wgmma_can(c, p))
        return (struct choice){.kind = KIND_WGMMA, .which = wgmma_by_default(c, p)};
    if (rows <= 64 && product_few_can(c, p))
        return (struct choice){.kind = KIND_FEW, .which = few_by_default(c, p)};
    for (; tile > 0; tile--) {
        int64_t tiles = ceil_div(rows, high[tile]) * ceil_div(p->n, wide[tile]) * z;

        if (high[tile] <= 2 * rows - 2 && wide[tile] <= 2 * p->n - 2 && tiles >= c->cuda->sms)
            break;
        if (tile == 1 && rows <= 16 && p->n >= 64 && tiles >= c->cuda->sms / 2)
            break;
        if (tile == 2 && rows > 16)
            break;
    }
    return (struct choice){.kind = KIND_MMA, .which = tile};
}

/* Up to a power of two. */
static int64_t bucket(int64_t n)
{
    int64_t top = 16;

    while (top < n)
        top *= 2;
    return top;
}

/* What is a number of rows counts as its bucket. */
static struct key key_of(const struct product *p)
{
    int tn = p->form == CAIRN_TN;

    return (struct key){.n = p->n,
                        .k = tn ? bucket(p->k) : p->k,
                        .m = tn ? p->m : bucket(p->m),
                        .form = p->form,
                        .types = p->y_bf16 | p->pairs << 1 | p->quads << 2,
                        .batch = p->batch,
                        .end = p->accumulate | (p->alpha != 1) << 1 | (p->offsets != NULL) << 2};
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

/* Milliseconds of one run that finds nothing in the caches, the least of three; negative if it failed. */
static float stopwatch(struct call *c, const struct chooser *h, const struct product *p, const struct choice *o, void *flush, cudaEvent_t ev[2])
{
    float best = -1, ms;

    for (int i = 0; i < 3 && call_ok(c); i++) {
        call_cuda(c, cudaMemsetAsync(flush, i, FLUSH, c->stream), "cudaMemset"); /* and the host gets ahead */
        call_cuda(c, cudaEventRecord(ev[0], c->stream), "cudaEventRecord");
        product_launch(c, h->lt, p, o);
        call_cuda(c, cudaEventRecord(ev[1], c->stream), "cudaEventRecord");
        call_cuda(c, cudaEventSynchronize(ev[1]), "waiting for a trial");
        if (call_ok(c) && cudaEventElapsedTime(&ms, ev[0], ev[1]) == cudaSuccess && (best < 0 || ms < best))
            best = ms;
    }
    return call_ok(c) ? best : -1;
}

/* Kernels worth a trial for q. */
static int candidates(const struct call *c, const struct chooser *h, const struct product *q, struct choice *o)
{
    int64_t rows = rows_of(q), least = rows < q->n ? rows : q->n;
    int n = 0;

    for (int i = 0; i < PRODUCT_MMA_TILES; i++)
        if (i == PRODUCT_MMA_TILES - 1 || (i > 1 && least <= 256) || rows <= 32)
            o[n++] = (struct choice){.kind = KIND_MMA, .which = i};
    for (int i = 0; i < PRODUCT_FEW_TILES && rows <= PRODUCT_FEW_ROWS && product_few_can(c, q); i++)
        if (product_few_high[i] < 2 * rows || product_few_high[i] == 16)
            o[n++] = (struct choice){.kind = KIND_FEW, .which = i};
    for (int i = 0; i < PRODUCT_WGMMA_TILES && h->wgmma == 1 && product_wgmma_can(c, q) && rows > 32; i++)
        if (q->form != CAIRN_TN || i % 2 == 0)
            o[n++] = (struct choice){.kind = KIND_WGMMA, .which = i};
    return n;
}

struct product_room product_dense(struct product *p)
{
    int tn = p->form == CAIRN_TN, nt = p->form == CAIRN_NT;

    p->as = round_up(tn ? p->m : p->k, 8), p->bs = round_up(nt ? p->k : p->n, 8), p->ys = round_up(p->n, 8);
    p->ab = (tn ? p->k : p->m) * p->as, p->bb = (nt ? p->n : p->k) * p->bs, p->yb = p->m * p->ys;
    return (struct product_room){(size_t)(p->ab * p->batch) * 2, (size_t)(p->bb * p->batch) * 2,
                                 (size_t)round_up(p->yb * p->batch * (p->y_bf16 ? 2 : 4), 16)};
}

/* Before a clock runs: what was not loaded ahead yet is not, and nothing else of ours is on the card. */
static void ahead_end(struct chooser *h)
{
    if (!h->ahead)
        return;
    lt_of(h); /* which outlives the thread */
    product_ahead_end(h->ahead);
    h->ahead = NULL;
}

/* Tries all candidates. *measured: 0 where nothing could be, which leaves the default. A dense product is tried on random operands of `rows`
 * rows, one with groups on the caller's own, with its own y. */
static struct choice by_trial(const struct call *of, struct chooser *h, const struct product *p, struct choice best, int *measured)
{
    enum { PLANS = 8, CANDIDATES = 1 + PRODUCT_MMA_TILES + PRODUCT_FEW_TILES + PRODUCT_WGMMA_TILES + PLANS };
    const int tn = p->form == CAIRN_TN;
    struct call c = product_trial(of);
    struct product q = *p;
    struct choice o[CANDIDATES] = {best};
    struct product_lt_plan plan[PLANS];
    struct product_room room_of;
    size_t a = 0, b = 0, y, size = p->y_bf16 ? 2 : 4;
    unsigned char *room = NULL;
    cudaEvent_t ev[2] = {NULL, NULL};
    float least = -1, ms;
    int n = 1, plans = 0;

    ahead_end(h);
    /* dense operands with the same alignment; a few hundred megabytes are enough to tell who is faster */
    if (p->offsets) {
        q.ys = round_up(q.n, 8);
        q.yb = tn ? q.m * q.ys : 0;
        y = (size_t)round_up(q.m * q.ys * (tn ? q.batch : 1) * (int64_t)size, 16);
    } else {
        q.m = tn ? p->m : bucket(p->m);
        while (!tn && q.m > 256 && (q.m * q.k * 2 + q.m * q.n * 8) * q.batch > (int64_t)1 << 29)
            q.m /= 2;
        room_of = product_dense(&q);
        a = room_of.a, b = room_of.b, y = room_of.y;
    }
    *measured = 0;
    if (a + b + 2 * y > (size_t)2 << 30)
        return best;
    call_cuda(&c, cudaMalloc((void **)&room, a + b + 2 * y + 16 + FLUSH), "room for a trial");
    for (int i = 0; i < 2; i++)
        call_cuda(&c, cudaEventCreate(&ev[i]), "cudaEventCreate");
    if (!call_ok(&c))
        goto out;
    if (!p->offsets) {
        q.a = room, q.b = room + a;
        probe_fill(&c, room, (int64_t)(a / 2), 1, 1);
        probe_fill(&c, room + a, (int64_t)(b / 2), 2, 1);
    }
    probe_fill(&c, room + a + b, (int64_t)(y / 2), 3, 0);
    q.y = room + a + b;
    product_mma(&c, &q, PRODUCT_MMA_TILES - 1); /* the definition; one run, for accumulate */
    q.y = room + a + b + y;

    n += candidates(&c, h, &q, o + n);
    if (p->quads && !p->offsets)
        plans = product_lt_plans(lt_of(h), &q, 0, plan, PLANS);
    for (int i = 0; i < plans; i++)
        o[n++] = (struct choice){.kind = KIND_LT, .lt = plan[i]};
    for (int i = 0; i < n; i++) {
        struct call t = product_trial(of);
        int64_t *count = (int64_t *)(room + a + b + 2 * y);

        if (i > 0 && o[i].kind == o[0].kind && o[i].which == o[0].which && o[i].kind != KIND_LT)
            continue;
        probe_fill(&t, (void *)q.y, (int64_t)(y / 2), 3, 0);
        product_launch(&t, h->lt, &q, &o[i]);
        if (product_differences(&t, room + a + b, q.y, y, count) != 0) {
            h->refused += call_ok(&t);
            continue;
        }
        ms = stopwatch(&t, h, &q, &o[i], room + a + b + 2 * y + 16, ev);
        if (ms >= 0 && (least < 0 || ms < least))
            least = ms, best = o[i];
    }
    *measured = least >= 0;
out:
    cudaFree(room);
    for (int i = 0; i < 2; i++)
        if (ev[i])
            cudaEventDestroy(ev[i]);
    cudaGetLastError();
    return best;
}

/* Is the choice worth a trial? */
static int worth(const struct product *p)
{
    if (p->parts != 1 || !p->wide || p->k <= 0)
        return 0;
    if (p->form == CAIRN_TN)
        return (double)p->m * (double)p->n * (double)p->k * (p->offsets ? 1 : p->batch) >= 1 << 27;
    return (double)p->n * (double)p->k * p->batch >= 1 << 16;
}

/* Is there a choice in this slot that can be launched now? open: cuBLASLt may be opened for it. */
static int usable(struct chooser *h, int slot, int open)
{
    if (h->taken[slot] && h->choice[slot].kind == KIND_LT && open)
        lt_of(h); /* and whether the choice is its */
    return h->taken[slot] && h->choice[slot].kind != KIND_AGAIN && (h->choice[slot].kind != KIND_LT || h->lt);
}

/* The choice for p's shape, o by default, tried where that may be. */
static struct choice tried(struct call *c, struct chooser *h, const struct product *p, struct choice o, int may_try)
{
    const struct key key = key_of(p);
    int i = slot_of(h, &key), measured;

    if (usable(h, i, may_try))
        return h->choice[i];
    if (!may_try || (!h->taken[i] && h->used >= KEYS / 2))
        return o;
    h->key[i] = key;
    h->choice[i] = by_trial(c, h, p, o, &measured);
    h->kept[i] = (unsigned char)measured;
    h->used += !h->taken[i];
    h->taken[i] = 1;
    h->tried += measured;
    return h->choice[i];
}

static void choose_and_launch(struct call *c, const struct product *p)
{
    struct chooser *h = chooser_of(c);
    int bf16 = p->a_bf16 && p->b_bf16, may_try;
    struct choice o;

    if (!h)
        return;
    may_try = bf16 && !capturing(c);
    if (may_try && h->wgmma < 0) {
        if (product_wgmma_there(c))
            prove(c, h);
        else
            h->wgmma = 0;
    }
    o = by_default(c, h, p);
    if (may_try && h->trials && h->wgmma != 1) /* what else there is to choose from */
        lt_of(h);
    if (bf16 && h->trials && (h->lt || h->wgmma == 1) && worth(p)) /* mma alone needs no clock */
        o = tried(c, h, p, o, may_try);
    product_launch(c, h->lt, p, &o);
}

/* ---- one product ---------------------------------------------------------------------------------------------------------------
 */

int product_parts(const struct product *p)
{
    int64_t tiles = ceil_div(p->m, 128) * ceil_div(p->n, 128) * p->batch;
    int parts = 1;

    if (p->form == CAIRN_TN && !p->offsets && p->a_bf16 && p->b_bf16)
        while (tiles * parts * 2 <= PART_TILES && p->k / (parts * 2) >= PART_LEAST)
            parts *= 2;
    return parts;
}

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

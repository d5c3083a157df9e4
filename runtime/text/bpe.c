/* bpe.c - merging, as bpe.h says: a scan for short pre-tokens, a heap for long ones, a cache in front. */
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

#define NO_RANK UINT32_MAX
#define SHORT   48 /* symbols; up to here scanning beats the heap */

/* The cache: entry i holds the last pre-token whose hash falls on i. One entry is one cache line. */
#define CACHE       4096
#define CACHE_BYTES 30
#define CACHE_IDS   8
struct cached {
    uint8_t len, ids; /* len 0: empty */
    char bytes[CACHE_BYTES];
    int32_t id[CACHE_IDS];
};

struct symbol {
    int32_t id; /* -1: swallowed by the symbol before it */
    int32_t prev, next;
};

struct candidate {
    uint64_t order;      /* rank << 32 | position of the left symbol: lowest rank first, then leftmost */
    int32_t left, right; /* the ids when it was put in: stale if they changed */
};

struct cairn_bpe_work {
    struct cached cache[CACHE];
    struct symbol *symbol;
    struct candidate *heap;
    size_t cap; /* symbols that fit; the heap holds three times as many */
};

enum cairn_status cairn_bpe_init(struct cairn_bpe *b, const struct cairn_vocab *vocab, size_t merges, int ignore_merges,
                                 struct cairn_error *err)
{
    size_t slots = 64;

    memset(b, 0, sizeof *b);
    b->vocab = vocab;
    b->ignore_merges = ignore_merges;
    for (int c = 0; c < 256; c++) {
        char byte = (char)c;

        b->byte_id[c] = cairn_vocab_find(vocab, &byte, 1, cairn_vocab_hash(&byte, 1));
        if (b->byte_id[c] < 0)
            return cairn_fail(err, CAIRN_EDATA, "model.vocab has no token for the byte 0x%02x", c);
    }
    if (merges > (1u << 28))
        return cairn_fail(err, CAIRN_EDATA, "model.merges: %zu merges are too many", merges);
    while (slots < merges * 2)
        slots *= 2;
    if (!(b->merge = malloc(slots * sizeof *b->merge)))
        return CAIRN_NOMEM(err);
    for (size_t i = 0; i < slots; i++)
        b->merge[i] = (struct cairn_bpe_merge){.pair = UINT64_MAX, .rank = NO_RANK, .id = -1};
    b->mask = (uint32_t)(slots - 1);
    return CAIRN_OK;
}

void cairn_bpe_free(struct cairn_bpe *b)
{
    free(b->merge);
    memset(b, 0, sizeof *b);
}

/* Slot of the pair, or the empty slot where it would go (rank NO_RANK). */
static inline struct cairn_bpe_merge *lookup(const struct cairn_bpe *b, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint32_t i = (uint32_t)((pair * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & b->mask;

    while (b->merge[i].pair != pair && b->merge[i].pair != UINT64_MAX)
        i = (i + 1) & b->mask;
    return &b->merge[i];
}

void cairn_bpe_add(struct cairn_bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    struct cairn_bpe_merge *m = lookup(b, left, right);

    m->pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    m->rank = rank;
    m->id = id;
}

struct cairn_bpe_work *cairn_bpe_work_create(void)
{
    return calloc(1, sizeof(struct cairn_bpe_work));
}

void cairn_bpe_work_trim(struct cairn_bpe_work *w)
{
    if (w->cap <= 65536)
        return;
    free(w->symbol);
    free(w->heap);
    w->symbol = NULL;
    w->heap = NULL;
    w->cap = 0;
}

void cairn_bpe_work_destroy(struct cairn_bpe_work *w)
{
    if (!w)
        return;
    free(w->symbol);
    free(w->heap);
    free(w);
}

/* Ids of a short pre-token into id[]; returns how many. */
static int merge_short(const struct cairn_bpe *b, const char *p, int n, int32_t id[SHORT])
{
    uint32_t rank[SHORT]; /* of the pair (i, i + 1) */
    int32_t made[SHORT];  /* what that pair becomes */

    for (int i = 0; i < n; i++)
        id[i] = b->byte_id[(unsigned char)p[i]];
    for (int i = 0; i + 1 < n; i++) {
        const struct cairn_bpe_merge *m = lookup(b, id[i], id[i + 1]);

        rank[i] = m->rank;
        made[i] = m->id;
    }
    while (n > 1) {
        int best = 0;

        for (int i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == NO_RANK)
            break;
        id[best] = made[best];
        n--;
        memmove(id + best + 1, id + best + 2, (size_t)(n - best - 1) * sizeof *id);
        if (best + 1 < n) { /* pairs after the merged one move down by one */
            memmove(rank + best, rank + best + 1, (size_t)(n - best - 1) * sizeof *rank);
            memmove(made + best, made + best + 1, (size_t)(n - best - 1) * sizeof *made);
            const struct cairn_bpe_merge *m = lookup(b, id[best], id[best + 1]);

            rank[best] = m->rank;
            made[best] = m->id;
        }
        if (best > 0) {
            const struct cairn_bpe_merge *m = lookup(b, id[best - 1], id[best]);

            rank[best - 1] = m->rank;
            made[best - 1] = m->id;
        }
    }
    return n;
}

static int grow(struct cairn_bpe_work *w, size_t n)
{
    struct symbol *symbol;
    struct candidate *heap;

    if (n <= w->cap)
        return 1;
    n += n / 2;
    symbol = realloc(w->symbol, n * sizeof *symbol);
    if (!symbol)
        return 0;
    w->symbol = symbol;
    heap = realloc(w->heap, 3 * n * sizeof *heap);
    if (!heap)
        return 0;
    w->heap = heap;
    w->cap = n;
    return 1;
}

static void heap_put(struct candidate *heap, size_t *used, struct candidate c)
{
    size_t i = (*used)++;

    for (; i && heap[(i - 1) / 2].order > c.order; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = c;
}

static struct candidate heap_take(struct candidate *heap, size_t *used)
{
    struct candidate top = heap[0], last = heap[--*used];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;

        if (child + 1 < *used && heap[child + 1].order < heap[child].order)
            child++;
        if (child >= *used || heap[child].order >= last.order)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

/* Puts the pair at position i into the heap if it has a merge. At most n - 1 pairs at the start and two more for
 * each of the n - 1 merges: 3n entries are enough. */
static void propose(const struct cairn_bpe *b, struct cairn_bpe_work *w, size_t *used, int32_t i)
{
    int32_t next = w->symbol[i].next;
    const struct cairn_bpe_merge *m;

    if (next < 0)
        return;
    m = lookup(b, w->symbol[i].id, w->symbol[next].id);
    if (m->rank != NO_RANK)
        heap_put(w->heap, used,
                 (struct candidate){
                     .order = (uint64_t)m->rank << 32 | (uint32_t)i, .left = w->symbol[i].id, .right = w->symbol[next].id});
}

static enum cairn_status merge_long(const struct cairn_bpe *b, struct cairn_bpe_work *w, const char *p, int32_t n,
                                    struct cairn_ids *out, struct cairn_error *err)
{
    size_t used = 0;

    if (!grow(w, (size_t)n))
        return CAIRN_NOMEM(err);
    for (int32_t i = 0; i < n; i++)
        w->symbol[i] = (struct symbol){b->byte_id[(unsigned char)p[i]], i - 1, i + 1 < n ? i + 1 : -1};
    for (int32_t i = 0; i < n; i++)
        propose(b, w, &used, i);
    while (used) {
        struct candidate c = heap_take(w->heap, &used);
        int32_t at = (int32_t)(uint32_t)c.order, next = w->symbol[at].next;

        if (w->symbol[at].id != c.left || next < 0 || w->symbol[next].id != c.right)
            continue; /* one of the two was merged in the meantime */
        w->symbol[at].id = lookup(b, c.left, c.right)->id;
        w->symbol[at].next = w->symbol[next].next;
        w->symbol[next].id = -1;
        if (w->symbol[at].next >= 0)
            w->symbol[w->symbol[at].next].prev = at;
        if (w->symbol[at].prev >= 0)
            propose(b, w, &used, w->symbol[at].prev);
        propose(b, w, &used, at);
    }
    for (int32_t i = 0; i >= 0; i = w->symbol[i].next)
        if (!cairn_ids_push(out, w->symbol[i].id))
            return CAIRN_NOMEM(err);
    return CAIRN_OK;
}

enum cairn_status cairn_bpe_piece(const struct cairn_bpe *b, struct cairn_bpe_work *w, const char *p, size_t n,
                                  struct cairn_ids *out, struct cairn_error *err)
{
    int32_t local[SHORT];
    struct cached *hit = NULL;
    uint64_t hash = 0;
    int k;

    if (!n)
        return CAIRN_OK;
    if (n > INT32_MAX)
        return CAIRN_BUG(err, "pre-token of 2 GiB");
    if (n == 1)
        return cairn_ids_push(out, b->byte_id[(unsigned char)*p]) ? CAIRN_OK : CAIRN_NOMEM(err);
    if (n <= CACHE_BYTES || b->ignore_merges)
        hash = cairn_vocab_hash(p, n);
    if (n <= CACHE_BYTES) {
        hit = &w->cache[(hash >> 40) & (CACHE - 1)];
        if (hit->len == n && !memcmp(hit->bytes, p, n)) {
            if (!cairn_ids_reserve(out, CACHE_IDS))
                return CAIRN_NOMEM(err);
            memcpy(out->p + out->n, hit->id, sizeof hit->id); /* constant size: one copy, no loop */
            out->n += hit->ids;
            return CAIRN_OK;
        }
    }
    k = 0;
    if (b->ignore_merges && (local[0] = cairn_vocab_find(b->vocab, p, n, hash)) >= 0)
        k = 1;
    else if (n > SHORT)
        return merge_long(b, w, p, (int32_t)n, out, err);
    if (!k)
        k = merge_short(b, p, (int)n, local);
    if (hit && k <= CACHE_IDS) {
        hit->len = (uint8_t)n;
        hit->ids = (uint8_t)k;
        memcpy(hit->bytes, p, n);
        memcpy(hit->id, local, (size_t)k * sizeof *local);
    }
    if (!cairn_ids_reserve(out, k))
        return CAIRN_NOMEM(err);
    memcpy(out->p + out->n, local, (size_t)k * sizeof *local);
    out->n += k;
    return CAIRN_OK;
}

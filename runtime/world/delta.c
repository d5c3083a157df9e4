/* delta.c - makes and applies the deltas of delta.h. */
#include "world/delta.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/checked.h"

#define MAGIC "cairndlt"
#define LEVEL 1
#define FAR   255
#define MOST  4 /* planes */

struct head {
    char magic[8];
    uint32_t width, whole;
    uint64_t bytes, changed, fars;
    uint64_t stream[2 + MOST]; /* bytes of gaps, far, each plane as they lie behind */
    struct cairn_digest base, next;
    struct cairn_digest rest; /* of everything behind the head, and of the head with this as zero */
};

/* What is packed: one byte an element that changed, and so on. */
struct streams {
    unsigned char *gaps, *plane[MOST];
    uint32_t *far;
    size_t changed, fars;
};

static void streams_free(struct streams *s)
{
    free(s->gaps);
    free(s->far);
    for (int i = 0; i < MOST; i++)
        free(s->plane[i]);
    memset(s, 0, sizeof *s);
}

static int streams_room(struct streams *s, size_t changed, size_t fars, int width)
{
    s->gaps = malloc(changed + 1);
    s->far = malloc((fars + 1) * sizeof *s->far);
    for (int i = 0; i < width; i++)
        if (!(s->plane[i] = malloc(changed + 1)))
            return 0;
    return s->gaps && s->far;
}

static uint32_t element(const void *p, size_t i, int width)
{
    return width == 2 ? ((const uint16_t *)p)[i] : ((const uint32_t *)p)[i];
}

/* Elements that differ, and gaps of 255 and more among them. */
static void count(const void *base, const void *next, size_t n, int width, struct streams *s)
{
    size_t last = 0;

    for (size_t i = 0; i < n; i++)
        if (element(base, i, width) != element(next, i, width)) {
            s->fars += i - last >= FAR;
            s->changed++;
            last = i + 1;
        }
}

static void collect(const void *base, const void *next, size_t n, int width, struct streams *s)
{
    size_t last = 0, k = 0, f = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t x = element(base, i, width) ^ element(next, i, width);

        if (!x)
            continue;
        s->gaps[k] = (unsigned char)(i - last < FAR ? i - last : FAR);
        if (i - last >= FAR)
            s->far[f++] = (uint32_t)(i - last);
        for (int b = 0; b < width; b++)
            s->plane[b][k] = (unsigned char)(x >> 8 * b);
        last = i + 1;
        k++;
    }
}

static struct cairn_digest sum_of(const struct head *h, const void *rest, size_t n)
{
    struct head blank = *h;
    struct cairn_digest d = cairn_digest_bytes(rest, n);

    blank.rest = d;
    return cairn_digest_bytes(&blank, sizeof blank);
}

/* The next generation whole. */
static enum cairn_status make_whole(struct head *h, const void *next, void **delta, size_t *n, struct cairn_error *err)
{
    char *p = malloc(sizeof *h + (size_t)h->bytes);

    if (!p)
        return CAIRN_NOMEM(err);
    h->whole = 1;
    h->changed = h->fars = 0;
    memset(h->stream, 0, sizeof h->stream);
    memcpy(p + sizeof *h, next, (size_t)h->bytes);
    h->rest = sum_of(h, p + sizeof *h, (size_t)h->bytes);
    memcpy(p, h, sizeof *h);
    *delta = p;
    *n = sizeof *h + (size_t)h->bytes;
    return CAIRN_OK;
}

/* Packs the streams behind the head; *n 0: they take more than all bytes. */
static enum cairn_status pack(struct head *h, const struct streams *s, char **out, size_t *n, struct cairn_error *err)
{
    const void *from[2 + MOST] = {s->gaps, s->far, s->plane[0], s->plane[1], s->plane[2], s->plane[3]};
    size_t size[2 + MOST] = {s->changed, s->fars * sizeof *s->far}, room = sizeof *h;
    char *p, *at;

    for (int i = 0; i < (int)h->width; i++)
        size[2 + i] = s->changed;
    for (int i = 0; i < 2 + MOST; i++)
        room += ZSTD_compressBound(size[i]);
    if (!(p = malloc(room)))
        return CAIRN_NOMEM(err);
    at = p + sizeof *h;
    for (int i = 0; i < 2 + MOST; i++) {
        size_t k = size[i] ? ZSTD_compress(at, room - (size_t)(at - p), from[i], size[i], LEVEL) : 0;

        if (ZSTD_isError(k)) {
            free(p);
            return cairn_fail(err, CAIRN_EBUG, "zstd: %s", ZSTD_getErrorName(k));
        }
        h->stream[i] = k;
        at += k;
    }
    *n = (size_t)(at - p);
    if (*n >= sizeof *h + h->bytes) {
        free(p);
        *n = 0;
        return CAIRN_OK;
    }
    h->rest = sum_of(h, p + sizeof *h, *n - sizeof *h);
    memcpy(p, h, sizeof *h);
    *out = p;
    return CAIRN_OK;
}

enum cairn_status cairn_delta_make(const void *base, const void *next, size_t bytes, int width, void **delta, size_t *n, struct cairn_error *err)
{
    struct head h = {.magic = MAGIC, .width = (uint32_t)width, .bytes = bytes};
    struct streams s = {0};
    enum cairn_status st = CAIRN_OK;
    char *p = NULL;

    if ((width != 2 && width != 4) || bytes % (size_t)width || bytes / (size_t)width > UINT32_MAX)
        return CAIRN_BUG(err, "a delta of such a form");
    h.base = cairn_digest_bytes(base, bytes);
    h.next = cairn_digest_bytes(next, bytes);
    count(base, next, bytes / (size_t)width, width, &s);
    *n = 0;
    if (s.changed * (size_t)(width + 1) <= 2 * bytes) { /* else not even zstd makes it pay */
        h.changed = s.changed;
        h.fars = s.fars;
        if (!streams_room(&s, s.changed, s.fars, width))
            TRY(CAIRN_NOMEM(err));
        collect(base, next, bytes / (size_t)width, width, &s);
        TRY(pack(&h, &s, &p, n, err));
    }
    if (!*n)
        TRY(make_whole(&h, next, delta, n, err));
    else
        *delta = p;
out:
    streams_free(&s);
    return st;
}

/* ---- reading ------------------------------------------------------------------------------------------------------------------ */

static enum cairn_status head_read(struct head *h, const void *delta, size_t n, struct cairn_error *err)
{
    size_t sum = sizeof *h;

    if (n < sizeof *h)
        return cairn_fail(err, CAIRN_EDATA, "a delta of %zu bytes has no head", n);
    memcpy(h, delta, sizeof *h);
    if (memcmp(h->magic, MAGIC, sizeof h->magic))
        return cairn_fail(err, CAIRN_EDATA, "%zu bytes are no delta", n);
    for (int i = 0; i < 2 + MOST; i++)
        if (h->stream[i] > n || !cairn_add_size(sum, (size_t)h->stream[i], &sum))
            return cairn_fail(err, CAIRN_EDATA, "a delta of %zu bytes says that it is longer", n);
    if (h->whole && !cairn_add_size(sum, (size_t)h->bytes, &sum))
        return cairn_fail(err, CAIRN_EDATA, "a delta of %zu bytes says that it is longer", n);
    if (sum != n || !cairn_digest_equal(h->rest, sum_of(h, (const char *)delta + sizeof *h, n - sizeof *h)))
        return cairn_fail(err, CAIRN_EDATA, "a delta of %zu bytes is damaged", n);
    if ((h->width != 2 && h->width != 4) || h->bytes % h->width || h->changed > h->bytes / h->width || h->fars > h->changed)
        return cairn_fail(err, CAIRN_EDATA, "a delta with %llu changes in %llu bytes", (unsigned long long)h->changed, (unsigned long long)h->bytes);
    return CAIRN_OK;
}

int cairn_delta_whole(const void *delta, size_t n)
{
    struct head h;

    return head_read(&h, delta, n, NULL) == CAIRN_OK && h.whole;
}

enum cairn_status cairn_delta_ends(const void *delta, size_t n, struct cairn_digest *base, struct cairn_digest *next, struct cairn_error *err)
{
    struct head h;
    enum cairn_status st = head_read(&h, delta, n, err);

    if (st == CAIRN_OK) {
        *base = h.base;
        *next = h.next;
    }
    return st;
}

static enum cairn_status unpack(const struct head *h, const char *at, struct streams *s, struct cairn_error *err)
{
    void *to[2 + MOST] = {s->gaps, s->far, s->plane[0], s->plane[1], s->plane[2], s->plane[3]};
    size_t size[2 + MOST] = {s->changed, s->fars * sizeof *s->far};

    for (int i = 0; i < (int)h->width; i++)
        size[2 + i] = s->changed;
    for (int i = 0; i < 2 + MOST; at += h->stream[i++]) {
        size_t k = size[i] ? ZSTD_decompress(to[i], size[i], at, (size_t)h->stream[i]) : 0;

        if (k != size[i])
            return cairn_fail(err, CAIRN_EDATA, "a delta whose stream %d does not have %zu bytes", i, size[i]);
    }
    return CAIRN_OK;
}

/* Every position within n elements? */
static int fits(const struct streams *s, size_t n)
{
    size_t at = 0, f = 0;

    for (size_t k = 0; k < s->changed; k++) {
        size_t gap = s->gaps[k];

        if (gap == FAR) {
            if (f == s->fars)
                return 0;
            gap = s->far[f++];
        }
        if (gap >= n - at)
            return 0;
        at += gap + 1;
    }
    return f == s->fars;
}

/* Base to next, and next to base. */
static void turn(void *p, const struct streams *s, int width)
{
    size_t at = 0, f = 0;

    for (size_t k = 0; k < s->changed; k++) {
        uint32_t x = 0;

        at += s->gaps[k] == FAR ? s->far[f++] : s->gaps[k];
        for (int b = 0; b < width; b++)
            x |= (uint32_t)s->plane[b][k] << 8 * b;
        if (width == 2)
            ((uint16_t *)p)[at] ^= (uint16_t)x;
        else
            ((uint32_t *)p)[at] ^= x;
        at++;
    }
}

enum cairn_status cairn_delta_apply(void *p, size_t bytes, const void *delta, size_t n, struct cairn_error *err)
{
    struct head h;
    struct streams s = {0};
    struct cairn_digest have;
    char is[33], want[33];
    enum cairn_status st = head_read(&h, delta, n, err);

    if (st != CAIRN_OK)
        return st;
    if (h.bytes != bytes)
        return cairn_fail(err, CAIRN_EDATA, "a delta of %llu bytes of weights, for %zu", (unsigned long long)h.bytes, bytes);
    if (h.whole) {
        memcpy(p, (const char *)delta + sizeof h, bytes);
        return CAIRN_OK;
    }
    have = cairn_digest_bytes(p, bytes);
    if (!cairn_digest_equal(have, h.base)) {
        cairn_digest_hex(have, is);
        cairn_digest_hex(h.base, want);
        return cairn_fail(err, CAIRN_EDATA, "a delta that stands on %s, for weights that are %s", want, is);
    }
    s.changed = (size_t)h.changed;
    s.fars = (size_t)h.fars;
    if (!streams_room(&s, s.changed, s.fars, (int)h.width))
        TRY(CAIRN_NOMEM(err));
    TRY(unpack(&h, (const char *)delta + sizeof h, &s, err));
    if (!fits(&s, bytes / h.width))
        TRY(cairn_fail(err, CAIRN_EDATA, "a delta that reaches beyond its %zu bytes", bytes));
    turn(p, &s, (int)h.width);
    if (!cairn_digest_equal(cairn_digest_bytes(p, bytes), h.next)) {
        turn(p, &s, (int)h.width);
        cairn_digest_hex(h.next, want);
        TRY(cairn_fail(err, CAIRN_EDATA, "a delta that does not lead to %s, as it says", want));
    }
out:
    streams_free(&s);
    return st;
}

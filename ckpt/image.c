/* image.c - the metadata of a shard, byte by byte, after the "HDF5 File Format Specification" version 3.0 (The HDF Group).
 *
 * The library needs 25 to 50 microseconds and much memory for each dataset it makes, which for 18,000 tensors is ten times
 * what their bytes take to write; it keeps no thread out of another's way, and it dies when a disk is full. What a shard needs
 * of the format is small and old: a superblock, one group (B-tree, symbol nodes and a heap of names, in the form every
 * version of HDF5 reads since 1.0) and one object header a dataset. metadata.c and the tests hold it against the library.
 *
 * The file: superblock, root header, heap, tree level by level, symbol nodes, names, headers of datasets: one block, the
 * head. Then raw data in order of declaration, the tile table last. All sizes are known before a byte is written.
 * Memory: the head, and 24 bytes a tensor while it is made. Needs no lock. Refuses duplicate names.
 */
#include "ckpt/metadata.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

#define ALIGN_THRESHOLD (64 * 1024)
#define UNDEF UINT64_MAX
#define SUPERBLOCK 48
#define HEAP_HEAD 32
#define LEAF 8        /* symbols of a node: 2K, K = 4 is what a superblock of version 2 implies */
#define SYMBOLS (8 + LEAF * 40)
#define FAN 32        /* children of a tree node: 2K, K = 16 */
#define NODE (24 + (FAN + 1) * 8 + FAN * 8)
#define LEVELS 8

enum { SPACE = 1, DATATYPE = 3, FILL = 5, LAYOUT = 8, ATTRIBUTE = 12, SYMBOL_TABLE = 17 }; /* messages */

/* --- bytes --- */

/* Where the next byte goes; there is always room, as the sizes were added up before. */
struct out {
    unsigned char *p;
};

static void put(struct out *o, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        *o->p++ = (unsigned char)(v >> (8 * i));
}

static void put_bytes(struct out *o, const void *p, size_t n)
{
    memcpy(o->p, p, n);
    o->p += n;
}

static uint32_t rot(uint32_t x, int k)
{
    return x << k | x >> (32 - k);
}

/* Bob Jenkins' lookup3 (hashlittle, initial value 0; public domain), HDF5's checksum of metadata. */
static uint32_t checksum(const unsigned char *p, size_t n)
{
    uint32_t a = 0xdeadbeef + (uint32_t)n, b = a, c = a, w[3];

    for (; n > 12; n -= 12, p += 12) {
        memcpy(w, p, 12);
        a += w[0], b += w[1], c += w[2];
        a -= c, a ^= rot(c, 4), c += b;
        b -= a, b ^= rot(a, 6), a += c;
        c -= b, c ^= rot(b, 8), b += a;
        a -= c, a ^= rot(c, 16), c += b;
        b -= a, b ^= rot(a, 19), a += c;
        c -= b, c ^= rot(b, 4), b += a;
    }
    if (!n)
        return c;
    memset(w, 0, sizeof w);
    memcpy(w, p, n);
    a += w[0], b += w[1], c += w[2];
    c ^= b, c -= rot(b, 14);
    a ^= c, a -= rot(c, 11);
    b ^= a, b -= rot(a, 25);
    c ^= b, c -= rot(b, 16);
    a ^= c, a -= rot(c, 4);
    b ^= a, b -= rot(a, 14);
    c ^= b, c -= rot(b, 24);
    return c;
}

static void put_checksum(struct out *o, const unsigned char *from)
{
    put(o, checksum(from, (size_t)(o->p - from)), 4);
}

/* --- messages --- */

static size_t space_size(int ndim)
{
    return 4 + 8 * (size_t)ndim;
}

static void put_space(struct out *o, int ndim, const int64_t *dim)
{
    put(o, 2, 1); /* version */
    put(o, (uint64_t)ndim, 1);
    put(o, 0, 1); /* no largest dimensions */
    put(o, ndim > 0, 1); /* 0: scalar, 1: simple */
    for (int i = 0; i < ndim; i++)
        put(o, (uint64_t)dim[i], 8);
}

/* Little-endian numbers: integers of `exponent` 0, or floats of that many bits of exponent and mantissa. */
struct number {
    int size, is_signed, exponent, mantissa;
};

static const struct number U64 = {8, 0, 0, 0}, I64 = {8, 1, 0, 0};

static struct number number_of(enum cairn_dtype t)
{
    switch (t) {
    case CAIRN_F32: return (struct number){4, 1, 8, 23};
    case CAIRN_F64: return (struct number){8, 1, 11, 52};
    case CAIRN_I32: return (struct number){4, 1, 0, 0};
    case CAIRN_I64: return I64;
    case CAIRN_U8: return (struct number){1, 0, 0, 0};
    case CAIRN_BF16: return (struct number){2, 1, 8, 7};
    case CAIRN_F16: return (struct number){2, 1, 5, 10};
    default: return (struct number){1, 1, 4, 3};
    }
}

static size_t number_size(struct number t)
{
    return t.exponent ? 20 : 12;
}

static void put_number(struct out *o, struct number t)
{
    put(o, t.exponent ? 0x11 : 0x10, 1);                            /* version 1, class */
    put(o, t.exponent ? 0x20 : t.is_signed ? 0x08 : 0, 1);          /* mantissa with an implied bit; two's complement */
    put(o, t.exponent ? (uint64_t)(t.exponent + t.mantissa) : 0, 2); /* where the sign is */
    put(o, (uint64_t)t.size, 4);
    put(o, 0, 2); /* bit offset */
    put(o, (uint64_t)t.size * 8, 2);
    if (t.exponent) {
        put(o, (uint64_t)t.mantissa, 1);
        put(o, (uint64_t)t.exponent, 1);
        put(o, 0, 1);
        put(o, (uint64_t)t.mantissa, 1);
        put(o, ((uint64_t)1 << (t.exponent - 1)) - 1, 4);
    }
}

static void put_message(struct out *o, int type, size_t n, int constant)
{
    put(o, (uint64_t)type, 1);
    put(o, n, 2);
    put(o, constant != 0, 1);
}

#define MESSAGE 4

static size_t numbers_size(const char *name, int ndim)
{
    return 9 + strlen(name) + 1 + number_size(I64) + space_size(ndim > 0) + 8 * (size_t)(ndim ? ndim : 1);
}

static size_t text_size(const char *name, const char *text)
{
    return 9 + strlen(name) + 1 + 8 + space_size(0) + strlen(text) + 1;
}

static void put_attribute(struct out *o, const char *name, size_t n, size_t type, size_t space)
{
    put_message(o, ATTRIBUTE, n, 0);
    put(o, 3, 1); /* version */
    put(o, 0, 1);
    put(o, strlen(name) + 1, 2);
    put(o, type, 2);
    put(o, space, 2);
    put(o, 0, 1); /* ASCII */
    put_bytes(o, name, strlen(name) + 1);
}

/* int64 [ndim]; of ndim 0 a scalar. */
static void put_numbers(struct out *o, const char *name, const int64_t *v, int ndim)
{
    int64_t dim = ndim;

    put_attribute(o, name, numbers_size(name, ndim), number_size(I64), space_size(ndim > 0));
    put_number(o, I64);
    put_space(o, ndim > 0, &dim);
    for (int i = 0; i < (ndim ? ndim : 1); i++)
        put(o, (uint64_t)v[i], 8);
}

static void put_text(struct out *o, const char *name, const char *text)
{
    put_attribute(o, name, text_size(name, text), 8, space_size(0));
    put(o, 0x13, 1); /* version 1, string */
    put(o, 0, 3);    /* ends with NUL, ASCII */
    put(o, strlen(text) + 1, 4);
    put_space(o, 0, NULL);
    put_bytes(o, text, strlen(text) + 1);
}

/* --- object headers --- */

#define HEADER (4 + 1 + 1 + 2 + 4) /* signature, version, flags, size, checksum */

static unsigned char *open_header(struct out *o, size_t messages)
{
    unsigned char *from = o->p;

    put_bytes(o, "OHDR", 4);
    put(o, 2, 1);
    put(o, 1, 1); /* a size of two bytes, no times */
    put(o, messages, 2);
    return from;
}

/* A dataset as it lies in the file. */
struct dataset {
    const char *name;
    const struct cairn_slice *slice; /* NULL: the tile table */
    struct number type;
    int ndim;
    const int64_t *dim;
    int64_t at, bytes;
};

static size_t dataset_messages(const struct dataset *d)
{
    size_t n = MESSAGE + space_size(d->ndim) + MESSAGE + number_size(d->type) + MESSAGE + 2 + MESSAGE + 18;

    if (d->slice && d->ndim)
        n += 2 * MESSAGE + numbers_size("global_shape", d->ndim) + numbers_size("offset", d->ndim);
    if (d->slice && d->slice->each)
        n += MESSAGE + text_size("each", d->slice->each);
    return n;
}

static void put_dataset(struct out *o, const struct dataset *d)
{
    unsigned char *from = open_header(o, dataset_messages(d));

    put_message(o, SPACE, space_size(d->ndim), 0);
    put_space(o, d->ndim, d->dim);
    put_message(o, DATATYPE, number_size(d->type), 1);
    put_number(o, d->type);
    put_message(o, FILL, 2, 1);
    put(o, 3, 1);          /* version */
    put(o, 1 | 1 << 2, 1); /* allocated early, never filled, the default value */
    put_message(o, LAYOUT, 18, 0);
    put(o, 3, 1); /* version */
    put(o, 1, 1); /* contiguous */
    put(o, d->bytes ? (uint64_t)d->at : UNDEF, 8);
    put(o, (uint64_t)d->bytes, 8);
    if (d->slice && d->ndim) {
        put_numbers(o, "global_shape", d->slice->shape, d->ndim);
        put_numbers(o, "offset", d->slice->offset, d->ndim);
    }
    if (d->slice && d->slice->each)
        put_text(o, "each", d->slice->each);
    put_checksum(o, from);
}

/* --- the group --- */

/* Where everything lies. */
struct plan {
    int64_t n;               /* datasets */
    const char **name;       /* (n) sorted */
    int *which;              /* (n) the sorted ones' numbers of declaration */
    int64_t *name_at;        /* (n) of sorted ones, in the heap */
    int64_t *header;         /* (n) addresses of object headers, by declaration */
    int levels;              /* 0: symbol nodes, levels - 1: the root of the tree */
    int64_t count[LEVELS], base[LEVELS];
    int64_t heap, names, names_n, end;
};

struct named {
    const char *name;
    int i;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

static enum cairn_status sort_names(struct plan *l, const struct cairn_slice *s, int n, const char *path, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct named *v = malloc(((size_t)l->n + 1) * sizeof *v);
    int sorted = 1;

    if (!v)
        return CAIRN_NOMEM(err);
    for (int i = 0; i < l->n; i++) {
        v[i] = (struct named){i < n ? s[i].name : CAIRN_TILES_NAME, i};
        sorted = sorted && (!i || by_name(&v[i - 1], &v[i]) < 0);
    }
    if (!sorted)
        qsort(v, (size_t)l->n, sizeof *v, by_name);
    for (int64_t i = 0; i < l->n; i++) {
        if (i && !strcmp(v[i - 1].name, v[i].name))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: tensor %s is declared twice", path, v[i].name));
        l->name[i] = v[i].name;
        l->which[i] = v[i].i;
    }
out:
    free(v);
    return st;
}

static int64_t up8(int64_t n)
{
    return (n + 7) / 8 * 8;
}

static size_t root_messages(void)
{
    return MESSAGE + 16 + MESSAGE + numbers_size("cairn_shard", 0);
}

/* Addresses of all parts of the group; headers of datasets begin at l->end. */
static void plan_group(struct plan *l)
{
    int64_t at = up8(SUPERBLOCK + (int64_t)(HEADER + root_messages()));

    l->heap = at;
    at += HEAP_HEAD;
    l->count[0] = (l->n + LEAF - 1) / LEAF;
    l->levels = 1;
    do {
        int64_t below = l->count[l->levels - 1];

        l->count[l->levels++] = below > FAN ? (below + FAN - 1) / FAN : 1;
    } while (l->count[l->levels - 1] > 1);
    for (int k = l->levels - 1; k >= 0; k--) {
        l->base[k] = at;
        at += l->count[k] * (k ? NODE : SYMBOLS);
    }
    l->names = at;
    l->names_n = 8; /* the empty name, below all others */
    for (int64_t i = 0; i < l->n; i++) {
        l->name_at[i] = l->names_n;
        l->names_n += up8((int64_t)strlen(l->name[i]) + 1);
    }
    l->end = at + l->names_n;
}

static void put_root(struct out *o, const struct plan *l)
{
    int64_t version = CAIRN_SHARD_VERSION;
    unsigned char *from = open_header(o, root_messages());

    put_message(o, SYMBOL_TABLE, 16, 0);
    put(o, (uint64_t)l->base[l->levels - 1], 8);
    put(o, (uint64_t)l->heap, 8);
    put_numbers(o, "cairn_shard", &version, 0);
    put_checksum(o, from);
}

/* One node of the tree: its keys are the last names below each child, the first is that of the node before. */
static void put_node(unsigned char *head, const struct plan *l, int level, int64_t j)
{
    struct out o = {head + l->base[level] + j * NODE};
    int64_t span = LEAF, first = j * FAN, n = l->count[level - 1] - first; /* symbols below a child; children */

    for (int k = 1; k < level; k++)
        span *= FAN;
    n = n < FAN ? n : FAN;
    put_bytes(&o, "TREE", 4);
    put(&o, 0, 1); /* of a group */
    put(&o, (uint64_t)level - 1, 1);
    put(&o, (uint64_t)n, 2);
    put(&o, j ? (uint64_t)(l->base[level] + (j - 1) * NODE) : UNDEF, 8);
    put(&o, j + 1 < l->count[level] ? (uint64_t)(l->base[level] + (j + 1) * NODE) : UNDEF, 8);
    put(&o, first ? (uint64_t)l->name_at[first * span - 1] : 0, 8);
    for (int64_t i = first; i < first + n; i++) {
        int64_t last = (i + 1) * span < l->n ? (i + 1) * span : l->n;

        put(&o, (uint64_t)(l->base[level - 1] + i * (level > 1 ? NODE : SYMBOLS)), 8);
        put(&o, (uint64_t)l->name_at[last - 1], 8);
    }
}

static void put_symbols(unsigned char *head, const struct plan *l, int64_t j)
{
    struct out o = {head + l->base[0] + j * SYMBOLS};
    int64_t first = j * LEAF, n = l->n - first < LEAF ? l->n - first : LEAF;

    put_bytes(&o, "SNOD", 4);
    put(&o, 1, 2);
    put(&o, (uint64_t)n, 2);
    for (int64_t i = first; i < first + n; i++) {
        put(&o, (uint64_t)l->name_at[i], 8);
        put(&o, (uint64_t)l->header[l->which[i]], 8);
        o.p += 24; /* nothing cached */
    }
}

static void put_group(unsigned char *head, const struct plan *l)
{
    struct out o = {head + SUPERBLOCK};

    put_root(&o, l);
    o.p = head + l->heap;
    put_bytes(&o, "HEAP", 4);
    put(&o, 0, 4);
    put(&o, (uint64_t)l->names_n, 8);
    put(&o, 1, 8); /* nothing is free */
    put(&o, (uint64_t)l->names, 8);
    for (int k = 1; k < l->levels; k++)
        for (int64_t j = 0; j < l->count[k]; j++)
            put_node(head, l, k, j);
    for (int64_t j = 0; j < l->count[0]; j++)
        put_symbols(head, l, j);
    for (int64_t i = 0; i < l->n; i++)
        memcpy(head + l->names + l->name_at[i], l->name[i], strlen(l->name[i]));
}

static void put_superblock(unsigned char *head, int64_t size)
{
    struct out o = {head};

    put_bytes(&o, "\x89HDF\r\n\x1a\n", 8);
    put(&o, 2, 1); /* version */
    put(&o, 8, 1); /* bytes of an offset, of a length */
    put(&o, 8, 1);
    put(&o, 0, 1);
    put(&o, 0, 8);     /* base address */
    put(&o, UNDEF, 8); /* no extension */
    put(&o, (uint64_t)size, 8);
    put(&o, SUPERBLOCK, 8); /* root group */
    put_checksum(&o, head);
}

/* --- all of it --- */

static enum cairn_status place(int64_t *at, int64_t bytes, int64_t *end, const char *path, struct cairn_error *err)
{
    int64_t align = bytes < ALIGN_THRESHOLD ? 8 : CAIRN_PAGE;

    *at = 0;
    if (!bytes)
        return CAIRN_OK;
    if (!cairn_add_i64(*end, align - 1, at))
        return cairn_fail(err, CAIRN_EDATA, "%s: its size overflows", path);
    *at -= *at % align;
    if (!cairn_add_i64(*at, bytes, end))
        return cairn_fail(err, CAIRN_EDATA, "%s: its size overflows", path);
    return CAIRN_OK;
}

static struct dataset dataset_of(const struct cairn_slice *s)
{
    struct dataset d = {s->name, s, number_of(s->dtype), s->ndim, s->local, s->at, (int64_t)cairn_dtype_size(s->dtype)};

    for (int i = 0; i < s->ndim; i++)
        d.bytes *= s->local[i]; /* checked by cairn_tiling_init */
    return d;
}

enum cairn_status cairn_image_make(struct cairn_image *m, struct cairn_slice *slices, int n, int64_t tiles, int64_t *table_at,
                                   const char *path, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t dim[2] = {tiles, 2}, end;
    struct dataset table = {CAIRN_TILES_NAME, NULL, U64, 2, dim, 0, tiles * 16};
    struct plan l = {.n = n + (tiles > 0)};
    struct out o;

    memset(m, 0, sizeof *m);
    *table_at = 0;
    l.name = malloc(((size_t)l.n + 1) * sizeof *l.name);
    l.which = malloc(((size_t)l.n + 1) * sizeof *l.which);
    l.name_at = malloc(((size_t)l.n + 1) * sizeof *l.name_at);
    l.header = malloc(((size_t)l.n + 1) * sizeof *l.header);
    if (!l.name || !l.which || !l.name_at || !l.header)
        TRY(CAIRN_NOMEM(err));
    TRY(sort_names(&l, slices, n, path, err));
    plan_group(&l);
    for (int i = 0; i < l.n; i++) {
        struct dataset d = i < n ? dataset_of(&slices[i]) : table;

        l.header[i] = l.end;
        l.end += (int64_t)(HEADER + dataset_messages(&d));
    }
    end = m->head_n = up8(l.end);
    for (int i = 0; i < n; i++)
        TRY(place(&slices[i].at, dataset_of(&slices[i]).bytes, &end, path, err));
    TRY(place(&table.at, table.bytes, &end, path, err));
    *table_at = table.at;
    m->size = end;
    if (!(m->head = calloc((size_t)m->head_n, 1)))
        TRY(CAIRN_NOMEM(err));
    put_superblock(m->head, m->size);
    put_group(m->head, &l);
    o.p = m->head + (l.n ? l.header[0] : l.end);
    for (int i = 0; i < l.n; i++) {
        struct dataset d = i < n ? dataset_of(&slices[i]) : table;

        put_dataset(&o, &d);
    }
    if (o.p != m->head + l.end)
        TRY(CAIRN_BUG(err, "size of a shard's metadata"));
out:
    free(l.name);
    free(l.which);
    free(l.name_at);
    free(l.header);
    if (st != CAIRN_OK)
        cairn_image_free(m);
    return st;
}

void cairn_image_free(struct cairn_image *m)
{
    free(m->head);
    memset(m, 0, sizeof *m);
}

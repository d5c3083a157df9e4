/* vocab.c - table of tokens by id and by bytes, as vocab.h says. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "text/vocab.h"

#include <stdlib.h>
#include <string.h>

enum cairn_status cairn_vocab_init(struct cairn_vocab *v, int32_t size, size_t entries, struct cairn_error *err)
{
    size_t slots = 64;

    memset(v, 0, sizeof *v);
    if (size < 0 || size > CAIRN_VOCAB_MAX || entries > CAIRN_VOCAB_MAX)
        return CAIRN_BUG(err, "vocabulary size");
    while (slots < entries * 2)
        slots *= 2;
    v->entry = calloc((size_t)size + 1, sizeof *v->entry);
    v->slot = malloc(slots * sizeof *v->slot);
    if (!v->entry || !v->slot) {
        cairn_vocab_free(v);
        return CAIRN_NOMEM(err);
    }
    memset(v->slot, 0xff, slots * sizeof *v->slot);
    v->mask = (uint32_t)(slots - 1);
    v->size = size;
    return CAIRN_OK;
}

void cairn_vocab_free(struct cairn_vocab *v)
{
    free(v->entry);
    free(v->slot);
    cairn_str_free(&v->blob);
    memset(v, 0, sizeof *v);
}

uint64_t cairn_vocab_hash(const char *p, size_t n)
{
    return XXH3_64bits(p, n);
}

static int same(const struct cairn_vocab *v, int32_t id, const char *p, size_t n)
{
    return v->entry[id].len == n && !memcmp(cairn_vocab_bytes(v, id), p, n);
}

int32_t cairn_vocab_find(const struct cairn_vocab *v, const char *p, size_t n, uint64_t hash)
{
    uint32_t i = (uint32_t)hash & v->mask;

    for (; v->slot[i] >= 0; i = (i + 1) & v->mask)
        if (same(v, v->slot[i], p, n))
            return v->slot[i];
    return -1;
}

enum cairn_status cairn_vocab_add(struct cairn_vocab *v, int32_t id, const char *p, size_t n, unsigned flags,
                                  struct cairn_error *err)
{
    struct cairn_vocab_entry *e;
    uint32_t i;

    if (id < 0 || id >= v->size || !n)
        return CAIRN_BUG(err, "vocabulary entry");
    e = &v->entry[id];
    if (e->len && !same(v, id, p, n))
        return cairn_fail(err, CAIRN_EDATA, "id %d stands for two tokens", (int)id);
    if (!e->len) {
        if (n > UINT32_MAX - v->blob.len)
            return cairn_fail(err, CAIRN_EDATA, "the tokens are longer than 4 GiB together");
        e->offset = (uint32_t)v->blob.len;
        cairn_str_add(&v->blob, p, n);
        if (v->blob.oom)
            return CAIRN_NOMEM(err);
        e->len = (uint32_t)n;
        v->held++;
    }
    if ((flags & CAIRN_TOKEN_MODEL) && !(e->flags & CAIRN_TOKEN_MODEL)) {
        for (i = (uint32_t)cairn_vocab_hash(p, n) & v->mask; v->slot[i] >= 0; i = (i + 1) & v->mask)
            if (same(v, v->slot[i], p, n))
                return cairn_fail(err, CAIRN_EDATA, "ids %d and %d stand for the same token", (int)v->slot[i], (int)id);
        v->slot[i] = id;
    }
    e->flags |= flags;
    return CAIRN_OK;
}

int cairn_byte_alphabet_decode(const char *p, size_t n, struct cairn_str *out)
{
    for (size_t i = 0, used; i < n; i += used) {
        int32_t c = cairn_utf8_next((const unsigned char *)p + i, n - i, &used);

        if ((c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff))
            cairn_str_putc(out, (char)c);
        else if (c >= 0x100 && c <= 0x120)
            cairn_str_putc(out, (char)(c - 0x100)); /* 00..20 */
        else if (c >= 0x121 && c <= 0x142)
            cairn_str_putc(out, (char)(c - 0x121 + 0x7f)); /* 7f..a0 */
        else if (c == 0x143)
            cairn_str_putc(out, (char)0xad);
        else
            return 0;
    }
    return 1;
}

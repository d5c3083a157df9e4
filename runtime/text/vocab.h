/* vocab.h - the bytes of every token id, and the id of a byte string.
 *
 * Byte-level vocabularies are written in GPT-2's alphabet: each byte is one printable character (a blank is U+0120,
 * for instance). Here tokens are held as the bytes they stand for; cairn_byte_alphabet_decode turns the written form
 * into bytes once, at load time. Ids may have holes.
 *
 * Memory: struct cairn_vocab owns a table by id, one blob of all bytes and one hash table; constant after the last
 * cairn_vocab_add, so any number of threads may read it.
 * Source of the alphabet: openai/gpt-2, encoder.py, bytes_to_unicode (the idea; 188 printable Latin-1 characters
 * stand for themselves, the other 68 bytes are U+0100, U+0101, ... in byte order).
 */
#ifndef CAIRN_TEXT_VOCAB_H
#define CAIRN_TEXT_VOCAB_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

#define CAIRN_VOCAB_MAX (1 << 22) /* ids are below this: 15 times the largest vocabulary known */

enum cairn_token_flags {
    CAIRN_TOKEN_MODEL = 1,   /* in model.vocab: what merges and ignore_merges can reach */
    CAIRN_TOKEN_ADDED = 2,   /* in added_tokens: matched on raw text */
    CAIRN_TOKEN_SPECIAL = 4, /* added and special: dropped by skip_special */
};

struct cairn_vocab_entry {
    uint32_t offset, len; /* bytes in blob; len 0: a hole */
    uint32_t flags;       /* enum cairn_token_flags */
};

struct cairn_vocab {
    int32_t size;                    /* 1 + largest id */
    int32_t held;                    /* ids that are no holes */
    struct cairn_vocab_entry *entry; /* (size) */
    struct cairn_str blob;
    int32_t *slot; /* (mask + 1) open addressing, -1 empty; entries with CAIRN_TOKEN_MODEL only */
    uint32_t mask;
};

/* Empty vocabulary for ids 0..size-1, with room in the hash for `entries` model tokens. */
enum cairn_status cairn_vocab_init(struct cairn_vocab *v, int32_t size, size_t entries, struct cairn_error *err);
void cairn_vocab_free(struct cairn_vocab *v);
/* Adds a token. CAIRN_EDATA if the id is taken by other bytes; the same bytes only add the flags. n > 0. */
enum cairn_status cairn_vocab_add(struct cairn_vocab *v, int32_t id, const char *p, size_t n, unsigned flags,
                                  struct cairn_error *err);
/* Id of the model token with these bytes, or -1. hash: cairn_vocab_hash(p, n). */
int32_t cairn_vocab_find(const struct cairn_vocab *v, const char *p, size_t n, uint64_t hash);
uint64_t cairn_vocab_hash(const char *p, size_t n);

static inline const char *cairn_vocab_bytes(const struct cairn_vocab *v, int32_t id)
{
    return v->blob.p + v->entry[id].offset;
}

/* Bytes of a token in GPT-2's alphabet. 1: out holds them; 0: p has a character that is not in the alphabet. */
int cairn_byte_alphabet_decode(const char *p, size_t n, struct cairn_str *out);

#endif

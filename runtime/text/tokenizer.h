/* tokenizer.h - text to token ids and back, as a HuggingFace tokenizer.json says.
 *
 * What is understood: model BPE on byte-level vocabularies (merges as "a b" or ["a", "b"], ignore_merges); added
 * tokens; normalizer null or NFC; pre_tokenizer Sequence [Split by a regular expression, Isolated; ByteLevel];
 * decoder ByteLevel; post_processor null or ByteLevel. Anything else in the file is refused with CAIRN_EDATA and a
 * sentence that names it: a component that is skipped would give other ids than the model was trained on.
 *
 * Encoding goes: added tokens on the raw text (added.h) | NFC of what lies between | pre-tokens (split.h) | merges
 * (bpe.h). Nothing is put in front or behind (HuggingFace's add_special_tokens=False).
 *
 * Text is bytes with a length; NULs are characters. Bytes that are not UTF-8 (HuggingFace never sees any: its callers
 * replace them first) are kept: a run of them is a pre-token of its own, the text on either side is cut as if it
 * ended there. So decode(encode(x)) == x for all bytes x, except that NFC, where the file asks for it, applies to
 * the valid stretches, and that lstrip and rstrip swallow blanks. Decoding gives exactly the tokens' bytes; an added
 * token gives its name (HuggingFace reads a name like "é" in the byte alphabet on decoding, which loses it).
 * Character classes are those of the installed pcre2 and compositions those of utf8proc: the Unicode version is
 * theirs, and text with characters newer than that may be cut differently elsewhere.
 *
 * Memory: a struct cairn_tokenizer owns everything; ids and strings belong to the caller. Threads: any number may
 * encode and decode with one tokenizer at a time; each call takes a scratch space from a pool inside (about 270 kB
 * per concurrent call, kept until the tokenizer is freed). Results never depend on what was encoded before.
 */
#ifndef CAIRN_TEXT_TOKENIZER_H
#define CAIRN_TEXT_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"
#include "text/ids.h"

struct cairn_tokenizer;

struct cairn_encode_opts {
    /* Bytes literal_from <= i < literal_to hold nobody's added tokens: <|user|> in there is seven letters, not a role.
     * A match that would touch them is not made. 0, 0: no such bytes. For text from outside (templates use it). */
    size_t literal_from, literal_to;
};

struct cairn_decode_opts {
    int skip_special; /* leave out tokens that the file marks special */
};

/* path: a tokenizer.json, or a directory that holds one. CAIRN_EDATA with "FILE: place: what is wrong". */
enum cairn_status cairn_tokenizer_load(struct cairn_tokenizer **out, const char *path, struct cairn_error *err);
/* One that only decodes: to encode with it is CAIRN_EBUG, and it finds the ids of added tokens alone. Many times faster for large
 * vocabularies, as merges are not read. */
enum cairn_status cairn_tokenizer_load_decoder(struct cairn_tokenizer **out, const char *path, struct cairn_error *err);
/* The same from text in memory; `where` stands in front of sentences. */
enum cairn_status cairn_tokenizer_parse(struct cairn_tokenizer **out, const char *json, size_t n, const char *where,
                                        struct cairn_error *err);
void cairn_tokenizer_free(struct cairn_tokenizer *t);

/* Appends the ids of n bytes of text. opts may be NULL. On failure out is as it was. n < 2^31. */
enum cairn_status cairn_tokenizer_encode(struct cairn_tokenizer *t, const char *text, size_t n,
                                         const struct cairn_encode_opts *opts, struct cairn_ids *out, struct cairn_error *err);
/* Appends the bytes of n ids. An id without a token is CAIRN_EDATA naming id and index; out is as it was then. */
enum cairn_status cairn_tokenizer_decode(const struct cairn_tokenizer *t, const int32_t *ids, int64_t n,
                                         const struct cairn_decode_opts *opts, struct cairn_str *out, struct cairn_error *err);

int32_t cairn_tokenizer_vocab_size(const struct cairn_tokenizer *t); /* 1 + largest id; there may be holes */
/* Id of the added token with this name, else of the vocabulary entry with these bytes, else -1. */
int32_t cairn_tokenizer_token_id(const struct cairn_tokenizer *t, const char *name);
/* Bytes of a token, borrowed; NULL for ids outside and holes. */
const char *cairn_tokenizer_token_bytes(const struct cairn_tokenizer *t, int32_t id, size_t *len);
int cairn_tokenizer_is_added(const struct cairn_tokenizer *t, int32_t id);
int cairn_tokenizer_is_special(const struct cairn_tokenizer *t, int32_t id);

#endif

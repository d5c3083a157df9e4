/* bpe.h - byte-pair merging of one pre-token: bytes in, ids out.
 *
 * The rule: start from single bytes; while any neighbouring pair has a merge, apply the one of lowest rank, leftmost
 * first. With ignore_merges a pre-token that is itself in the vocabulary is that id, without merging. Short
 * pre-tokens are merged by scanning, long ones with a heap (a megabyte of one letter stays n log n); both give the
 * same ids. A small direct-mapped cache remembers pre-tokens: it saves time and cannot change a result.
 *
 * Memory: struct cairn_bpe owns the merge table and is constant after loading; struct cairn_bpe_work belongs to one
 * cairn_bpe (its cache holds that one's results) and to one thread at a time. The vocabulary is borrowed.
 * Source: Sennrich et al., arXiv:1508.07909, algorithm 1; ignore_merges as in HuggingFace's tokenizers.
 */
#ifndef CAIRN_TEXT_BPE_H
#define CAIRN_TEXT_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "text/ids.h"
#include "text/vocab.h"

struct cairn_bpe_merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: empty slot */
    uint32_t rank; /* place in the list of merges */
    int32_t id;    /* what the pair becomes */
};

struct cairn_bpe {
    const struct cairn_vocab *vocab; /* borrowed */
    struct cairn_bpe_merge *merge;   /* (mask + 1) open addressing */
    uint32_t mask;
    int ignore_merges;
    int32_t byte_id[256];
};

struct cairn_bpe_work;

/* Room for `merges` merges. CAIRN_EDATA if a single byte is not in the vocabulary (text would be lost). */
enum cairn_status cairn_bpe_init(struct cairn_bpe *b, const struct cairn_vocab *vocab, size_t merges, int ignore_merges,
                                 struct cairn_error *err);
void cairn_bpe_free(struct cairn_bpe *b);
/* left + right -> id. A pair that comes twice keeps the later rank, as HuggingFace's reader does. */
void cairn_bpe_add(struct cairn_bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id);

struct cairn_bpe_work *cairn_bpe_work_create(void); /* NULL without memory */
void cairn_bpe_work_destroy(struct cairn_bpe_work *w);
void cairn_bpe_work_trim(struct cairn_bpe_work *w); /* gives back what an unusually long pre-token needed */

/* Appends the ids of the n bytes p to out. n < 2^31; only memory can fail. */
enum cairn_status cairn_bpe_piece(const struct cairn_bpe *b, struct cairn_bpe_work *w, const char *p, size_t n,
                                  struct cairn_ids *out, struct cairn_error *err);

#endif

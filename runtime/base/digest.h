/* digest.h - XXH3-128 over bytes, files and tiles of tensors (xxHash; a detector of faults, not of forgers).
 *
 * A digest prints as 32 lower-case hex digits, high word first, as xxh128sum does.
 *
 * Logical digest of a tensor (format, fixed for ever): the tensor [d0, d1, ..., dn-1] is seen as rows of its last
 * dimension; a row is cut into tiles of tile_bytes (at most 4096, a multiple of the element size; the last tile of
 * a row is shorter). Tiles are numbered row by row over the *global* tensor. The tile's digest is
 *     XXH3_128bits_withSeed(tile bytes, XXH3_64bits(name) + tile number * 0x9E3779B97F4A7C15)
 * and the tensor's is the sum of its tiles' mod 2^128, so it does not depend on who computes which tiles. Two
 * tensors with equal bytes and other names differ. A legal split of the last dimension falls on tile borders.
 * The digest also takes in dtype and shape: one more term, the digest of the text "dtype:d0,d1,...:tile_bytes"
 * with the same seed rule and tile number 2^63.
 */
#ifndef CAIRN_BASE_DIGEST_H
#define CAIRN_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct cairn_digest {
    uint64_t lo, hi;
};

static inline int cairn_digest_equal(struct cairn_digest a, struct cairn_digest b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

/* Sum mod 2^128. */
static inline struct cairn_digest cairn_digest_add(struct cairn_digest a, struct cairn_digest b)
{
    struct cairn_digest s = {a.lo + b.lo, a.hi + b.hi + (a.lo + b.lo < a.lo)};
    return s;
}

struct cairn_digest cairn_digest_bytes(const void *p, size_t n);
void cairn_digest_hex(struct cairn_digest d, char out[33]);
int cairn_digest_parse(const char *hex, struct cairn_digest *out); /* 1: exactly 32 hex digits */
/* Whole file, 1 MiB at a time; *size may be NULL. */
enum cairn_status cairn_digest_file(const char *path, struct cairn_digest *out, int64_t *size, struct cairn_error *err);

/* Streaming form. */
struct cairn_hasher;
struct cairn_hasher *cairn_hasher_create(void); /* NULL without memory */
void cairn_hasher_destroy(struct cairn_hasher *h);
void cairn_hasher_add(struct cairn_hasher *h, const void *p, size_t n);
struct cairn_digest cairn_hasher_result(const struct cairn_hasher *h);

/* Tiles. */
uint64_t cairn_tile_seed(const char *name);
struct cairn_digest cairn_tile_digest(uint64_t seed, uint64_t tile, const void *p, size_t n);
/* The term for dtype and shape. */
struct cairn_digest cairn_tile_header(uint64_t seed, const char *dtype, int ndim, const int64_t *dim, int64_t tile_bytes);

#endif

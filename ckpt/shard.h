/* shard.h - write one shard: a file NAME.h5 with some tensors (or flat arrays), readable by h5dump and h5py.
 *
 * Format of the file
 *   - HDF5 (superblock 2, readable since 1.8), no time stamps: equal content gives equal bytes. All metadata in one block at
 *     the front (image.c). One contiguous dataset per tensor in the root group, allocated early, never filled, no
 *     filters; alignment 4 KiB for what is 64 KiB or larger, 8 bytes below.
 *   - Types are little-endian: f32, f64, i32, i64, u8 as usual; bf16, f16, f8e4m3 are floating-point types of their own
 *     (size, sign, exponent and mantissa fields set), so that tools print numbers (HDF5 knows no format without infinity: it
 *     shows e4m3 above 240 as nan; the bytes are right).
 *   - Attributes of a dataset: `global_shape` int64 [ndim] and `offset` int64 [ndim] (not on scalars); `each` string on
 *     a stack (tiles.h).
 *   - Dataset `.tiles` uint64 [tiles, 2] (low word, high word), absent with no_tiles: the digests of all tiles, tensor
 *     after tensor in the order of declaration; slice.first says where a tensor's begin.
 *   - Attribute of the root group: `cairn_shard` int64 = 1, the version of this format.
 *
 * How it is written: image.c makes the metadata in memory, without the library, so neither its speed nor its end on a full
 * disk is ours. Then shard.c pwrites metadata, bulk and table, and fsyncs. The library holds finished files against us
 * (metadata.h).
 *
 * Memory: metadata, 16 bytes a tile, two blocks of small pieces. Bulk is borrowed for the duration of a call. The digests are
 * made from the caller's memory, not from what the file system gives back.
 * Refuses: names outside of the alphabet, duplicate names, a part written twice or not at all, an existing file.
 */
#ifndef CAIRN_CKPT_SHARD_H
#define CAIRN_CKPT_SHARD_H

#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/status.h"
#include "ckpt/tiles.h"

/* What a manifest says about one shard. Owns its strings and slices (one malloc'ed block each); see cairn_shard_entry_free. */
struct cairn_shard_entry {
    char *file;                 /* path inside of the artefact: "a3/rank0000.h5", or "rank0000.h5" as written */
    char *identity;             /* what the shard is made from, the caller's word ("" if none): adoption compares it */
    int hollow;                 /* 1: the file does not hold its data (opts.hollow) */
    int64_t size;               /* bytes of the file */
    struct cairn_digest digest; /* XXH3-128 of the whole file */
    int64_t table_at;           /* byte offset of the tile table; 0 if there is none */
    int64_t tiles;              /* its entries, 16 bytes each (low, high, little-endian) */
    struct cairn_digest table_digest; /* XXH3-128 of the table's bytes */
    int nslices;
    struct cairn_slice *slices; /* (nslices), in order of declaration */
};
void cairn_shard_entry_free(struct cairn_shard_entry *e); /* frees e too; NULL is fine */

struct cairn_shard_opts {
    int no_tiles;         /* 1: no tile table; the reader checks the whole file (rollout and score shards) */
    const char *identity; /* goes to the entry; NULL: "" */
    int hollow;           /* 1: the bulk is digested and not written: the shard of an artefact that is collected from the first (retention.h);
                           * pieces come in order of the file */
    int scratch;          /* 1: nobody is to read it after a crash: not synced */
};

struct cairn_shard;

/* Creates dir/name.h5 (O_EXCL; name as cairn_name_ok) with the n tensors declared; their slices are copied. opts may be
 * NULL. Metadata is in the file when this returns. */
enum cairn_status cairn_shard_create(struct cairn_shard **out, const char *dir, const char *name, const struct cairn_slice *tensors,
                                     int n, const struct cairn_shard_opts *opts, struct cairn_error *err);
/* n bytes of tensor `index` at byte `offset` of its part, from host memory. Pieces that are whole tiles may come in any
 * order; others must follow one another. Tensors may interleave; the order of declaration is the fastest. */
enum cairn_status cairn_shard_write(struct cairn_shard *w, int index, int64_t offset, const void *h_p, size_t n,
                                    struct cairn_error *err);
/* The same, but h_p must stay as it is until the next call of this for the shard has returned, or the shard is finished or destroyed: it is written
 * while the caller prepares the next piece, in other memory. */
enum cairn_status cairn_shard_lend(struct cairn_shard *w, int index, int64_t offset, const void *h_p, size_t n, struct cairn_error *err);
/* Of a hollow shard: the sum of tensor `index`, of all its tiles, instead of its bytes. Such a shard's entry has no digests of file and table. */
enum cairn_status cairn_shard_tell(struct cairn_shard *w, int index, struct cairn_digest sum, struct cairn_error *err);
int cairn_shard_hollow(const struct cairn_shard *w); /* 1: it was created so */
/* Every part must be complete. Writes the table, fsyncs and closes the file, gives the entry (caller frees). The writer
 * stays to be destroyed. On failure the file is removed. */
enum cairn_status cairn_shard_finish(struct cairn_shard *w, struct cairn_shard_entry **entry, struct cairn_error *err);
/* NULL is fine. An unfinished file is removed. */
void cairn_shard_destroy(struct cairn_shard *w);

/* In one go: create, write each of the n whole tensors from h_p[i], finish. For small shards of arrays. */
enum cairn_status cairn_shard_save(struct cairn_shard_entry **entry, const char *dir, const char *name,
                                   const struct cairn_slice *tensors, const void *const *h_p, int n,
                                   const struct cairn_shard_opts *opts, struct cairn_error *err);

#endif

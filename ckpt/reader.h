/* reader.h - open a committed artefact and read tensors from it, any part, from any layout of shards.
 *
 * Goes by the manifest alone: never lists a directory, never opens HDF5, preads what was asked for. Shards with a tile
 * table are checked tile by tile for just the bytes read (a tile that is cut is read whole); shards without one are
 * checked as whole files once, before the first byte is used. Bytes that fail never reach the caller as CAIRN_OK.
 * Files are opened beneath the artefact's directory, through no symbolic link, regular files only.
 *
 * Memory: the manifest, 16 bytes a tile of the shards in use, one staging block, up to 1 MiB read ahead of pieces that come
 * in the order of the file (ahead.h). Not thread-safe; open two readers.
 * Refuses: artefacts of another run, kind, step or identity; conversion of dtypes; data that was collected.
 */
#ifndef CAIRN_CKPT_READER_H
#define CAIRN_CKPT_READER_H

#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/status.h"
#include "ckpt/manifest.h"

/* What the caller knows about the artefact; zero members are not checked. */
struct cairn_reader_expect {
    const char *kind;
    const char *run;
    int check_step;
    int64_t step;
    const struct cairn_digest *digest;   /* logical digest (as recorded as an input elsewhere) */
    const struct cairn_digest *identity; /* cairn_manifest_identity */
};

struct cairn_reader;

/* CAIRN_ENOINPUT: not committed, or collected ("RUN/step/000003/train: step 3 was collected: REASON"). CAIRN_EDATA: damaged
 * or not what was expected. expect may be NULL. Shards are opened on first use. */
enum cairn_status cairn_reader_open(struct cairn_reader **out, const char *dir, const struct cairn_reader_expect *expect, struct cairn_error *err);
void cairn_reader_close(struct cairn_reader *r); /* NULL is fine */
/* Asks the system to bring the first `most` bytes of the artefact, about, into its cache while the caller does something else. Shards are opened;
 * for bytes nobody waits, but where the system lets no more requests pile up. CAIRN_EDATA, CAIRN_EIO: a shard that cannot be opened. */
enum cairn_status cairn_reader_fetch(struct cairn_reader *r, int64_t most, struct cairn_error *err);
const struct cairn_manifest *cairn_reader_manifest(const struct cairn_reader *r); /* borrowed */
const char *cairn_reader_path(const struct cairn_reader *r);                      /* dir, for sentences */
/* The tensor by name or alias; CAIRN_EDATA "DIR: no tensor NAME" (*out borrowed from the manifest). */
enum cairn_status cairn_reader_find(struct cairn_reader *r, const char *name, const struct cairn_tensor_entry **out, struct cairn_error *err);
/* The same, and dtype and shape must be these (ndim -1: any). */
enum cairn_status cairn_reader_expect(struct cairn_reader *r, const char *name, enum cairn_dtype dtype, int ndim, const int64_t *shape,
                                      const struct cairn_tensor_entry **out, struct cairn_error *err);

/* The box [begin, begin + count) of the global tensor into dense host memory h_dst of `bytes` bytes (must be the box's).
 * begin = NULL: all of it. */
enum cairn_status cairn_reader_box(struct cairn_reader *r, const char *name, const int64_t *begin, const int64_t *count, void *h_dst, size_t bytes,
                                   struct cairn_error *err);
/* Rows [begin, begin + n) of dimension 0. */
enum cairn_status cairn_reader_rows(struct cairn_reader *r, const char *name, int64_t begin, int64_t n, void *h_dst, size_t bytes,
                                    struct cairn_error *err);
/* The box into a tensor of the same dtype and shape as the box (any strides), on its device; waits for the stream. */
enum cairn_status cairn_reader_get(struct cairn_reader *r, const char *name, const int64_t *begin, struct cairn_stream *s,
                                   const struct cairn_tensor *dst, struct cairn_error *err);
/* A whole tensor, malloc'ed (caller frees; at least 1 byte), with its element count: for arrays. */
enum cairn_status cairn_reader_array(struct cairn_reader *r, const char *name, enum cairn_dtype dtype, void **h_out, int64_t *count,
                                     struct cairn_error *err);
/* Bytes taken from files so far, tables included. */
int64_t cairn_reader_bytes(const struct cairn_reader *r);

#endif

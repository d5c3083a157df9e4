/* metadata.h - what makes a shard an HDF5 file: its metadata, made by us in memory (image.c), read by the library (metadata.c).
 *
 * Making knows no file and no library: a full disk cannot reach it (HDF5's own driver dies by SIGSEGV when a close fails
 * for want of space), it takes microseconds where the library takes tens of them a dataset, and needs no lock.
 * Reading is for verify --deep, tools and repair, after the file's digest has held: HDF5 has no defence against crafted
 * files. It takes one process-wide lock, because the library is not thread-safe. The library never prints, takes no
 * file locks and does nothing at exit.
 */
#ifndef CAIRN_CKPT_METADATA_H
#define CAIRN_CKPT_METADATA_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "ckpt/shard.h"

#define CAIRN_PAGE 4096
#define CAIRN_SHARD_VERSION 1
#define CAIRN_TILES_NAME ".tiles"

/* All bytes of the file that are not raw data: the head; everything else outside of raw data is zero. */
struct cairn_image {
    int64_t size;        /* of the file, bytes */
    int64_t head_n;      /* no raw data lies below */
    unsigned char *head; /* (head_n) */
};
void cairn_image_free(struct cairn_image *m);

/* Lays out the n slices and, if tiles > 0, the tile table; fills in slices[i].at and *table_at (0: no bytes). The slices must
 * have passed cairn_tiling_init. CAIRN_EDATA, with `path`: a name twice, a size that overflows. */
enum cairn_status cairn_image_make(struct cairn_image *m, struct cairn_slice *slices, int n, int64_t tiles, int64_t *table_at,
                                   const char *path, struct cairn_error *err);

/* Opens the file at `path` with HDF5 (called `name` in sentences) and holds every dataset (name, type, shape, attributes, offset) against the entry,
 * and that there is nothing else. CAIRN_EDATA names the dataset. */
enum cairn_status cairn_image_check(const char *path, const char *name, const struct cairn_shard_entry *e, struct cairn_error *err);

#endif

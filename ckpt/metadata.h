/* metadata.h - the only file that knows HDF5: makes the metadata of a shard in memory, and reads a finished file's.
 *
 * Making. HDF5 runs on a virtual file driver of ours that keeps what is written in 4 KiB pages and knows no file at all.
 * So a full disk, a slow disk or a file lock cannot reach the library: measured, HDF5's own driver dies by SIGSEGV when
 * a close fails for want of space. Raw data are allocated but never written through it.
 * Reading is for verify --deep, tools and repair, after the file's digest has held: HDF5 has no defence against crafted
 * files. Both take one process-wide lock, because the library is not thread-safe. The library never prints, takes no
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

/* All bytes of the file that are not raw data: pages by address; everything else outside of raw data is zero. */
struct cairn_image {
    int64_t size;         /* of the file, bytes */
    int64_t npages;
    int64_t *page;        /* (npages) page numbers, ascending */
    unsigned char **data; /* (npages) CAIRN_PAGE bytes each */
};
void cairn_image_free(struct cairn_image *m);
/* n bytes at `at`, which must be metadata, padding or beyond the end. */
void cairn_image_read(const struct cairn_image *m, int64_t at, void *p, size_t n);

/* Lays out the n slices and, if tiles > 0, the tile table; fills in slices[i].at and *table_at. Fails for want of memory
 * or by CAIRN_EBUG with the library's own sentence. */
enum cairn_status cairn_image_make(struct cairn_image *m, struct cairn_slice *slices, int n, int64_t tiles, int64_t *table_at,
                                   struct cairn_error *err);

/* Opens the file at `path` with HDF5 (called `name` in sentences) and holds every dataset (name, type, shape, attributes, offset) against the entry,
 * and that there is nothing else. CAIRN_EDATA names the dataset. */
enum cairn_status cairn_image_check(const char *path, const char *name, const struct cairn_shard_entry *e, struct cairn_error *err);

#endif

/* reader_impl.h - the inside of a reader: reader.c opens artefact and shards, reader_box.c reads parts of tensors. Nobody else
 * includes it.
 */
#ifndef CAIRN_CKPT_READER_IMPL_H
#define CAIRN_CKPT_READER_IMPL_H

#include "ckpt/ahead.h"
#include "ckpt/crew.h"
#include "ckpt/reader.h"

struct cairn_reader_shard {
    int fd;       /* -1: not open */
    int64_t size; /* of the file */
    char *path;
    int checked;                /* the whole file's digest held */
    struct cairn_digest *table; /* NULL: not read */
};

struct cairn_reader {
    char *dir;
    struct cairn_manifest *m;
    struct cairn_reader_shard *shard; /* (nshards) */
    int nopen;
    unsigned char *stage;      /* of reader_box.c, made on first use */
    struct cairn_crew *crew;   /* reads and checks blocks */
    struct cairn_ahead *ahead; /* bytes that are likely to be asked for next */
    int64_t bytes;
};

/* Shard i: its file open and of the manifest's size; the digest of all of it held; its table of tiles there and held. Each once,
 * until the file is closed for others. */
enum cairn_status cairn_reader_shard_open(struct cairn_reader *r, int i, struct cairn_error *err);
enum cairn_status cairn_reader_shard_check(struct cairn_reader *r, int i, struct cairn_error *err);
enum cairn_status cairn_reader_shard_table(struct cairn_reader *r, int i, struct cairn_error *err);

#endif

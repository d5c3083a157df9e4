/* base.h - base checkpoints: a HuggingFace directory turned into an artefact of kind "base", or a model with random weights.
 *
 *   DIR/config.json, tokenizer.json, ...   small files as they were (config.json of an FP8 source loses quantization_config)
 *   DIR/a1/weights-00000.h5, ...           the parameter table, each tensor in its own dtype (FP8 as BF16)
 *   DIR/a1/passed-00000.h5, ...            with self_contained: what passes through
 *   DIR/MANIFEST.json                      content: configuration, digests of the small files, which layers had fused experts, and
 *                                          name, type, shape and digest of every tensor that passes through; info: where from
 * What passes through: passed.h. Import is resumable (finished shards are adopted) and idempotent (the same source again finds it done).
 */
#ifndef CAIRN_MODEL_BASE_H
#define CAIRN_MODEL_BASE_H

#include "ckpt/manifest.h"
#include "ckpt/reader.h"
#include "model/hf.h"

struct cairn_base_opts {
    int self_contained;
    int64_t shard_bytes; /* 0: 4 GiB */
    int64_t tokenizer_ids; /* ids of its tokenizer, counted by the caller (0: has none); more than the vocabulary is CAIRN_EDATA */
};

/* *existed = 1: it was there, from the same source with the same values (checked by names, sizes and times of the source's files,
 * else by the digest of every tensor). Another source in DIR: CAIRN_EDATA. */
enum cairn_status cairn_base_import(const char *dir, struct cairn_hf *h, const struct cairn_base_opts *opts, int *existed,
                                    struct cairn_error *err);

struct cairn_base_init_opts {
    const json_t *config;   /* members of config.json */
    uint64_t seed;
    enum cairn_dtype dtype; /* what the values are rounded to */
    const char *run;        /* uuid, "" outside of a run */
    const struct cairn_digest *recipe; /* or NULL */
    const char *tokenizer;  /* file to copy as tokenizer.json, or NULL */
};
/* A model with random weights (cairn_store_init), committed in dir; already there: nothing is done. */
enum cairn_status cairn_base_init(const char *dir, const struct cairn_base_init_opts *o, struct cairn_compute *k, struct cairn_error *err);

/* malloc'ed path of a small file that came with the base ("tokenizer.json"), its digest checked; CAIRN_ENOINPUT if there is none. */
enum cairn_status cairn_base_file(const char *dir, const struct cairn_manifest *m, const char *name, char **path, struct cairn_error *err);

#endif

/* passed.h - tensors of a checkpoint that this program does not use and gives back untouched (MTP, vision, idle indexers).
 *
 * content.passed of a base artefact lists them: [{"name", "dtype", "shape", "digest"}, ...], sorted by name; digest is XXH3-128 of the bytes. The
 * bytes lie in the artefact itself (self-contained; a tensor whose type or name a shard cannot hold is a u8 array "passed:INDEX"), or
 * still in the directory that was imported, whose path is info.source.path.
 * Block-FP8 tensors were dequantised to BF16 as everything else, so their scales are not here.
 */
#ifndef CAIRN_MODEL_PASSED_H
#define CAIRN_MODEL_PASSED_H

#include "ckpt/attempt.h"
#include "ckpt/reader.h"
#include "ckpt/safetensors.h"
#include "model/hf.h"

struct cairn_passed {
    const char *name, *word; /* borrowed from the manifest */
    int64_t esize, bytes;
    int ndim;
    int64_t shape[CAIRN_ST_MAX_DIMS];
    struct cairn_digest digest;
};

struct cairn_passed_set;

/* Reads all of them from the source once, makes *list (content.passed) and, with copy, shards "passed-00000", ... in the attempt. */
enum cairn_status cairn_passed_save(struct cairn_hf *h, int copy, int64_t shard_bytes, const char *identity, struct cairn_attempt *a,
                                    struct cairn_manifest *m, json_t **list, struct cairn_error *err);

/* CAIRN_OK if the source's passed tensors are those of the list, bit for bit; CAIRN_EDATA naming the first that is not. */
enum cairn_status cairn_passed_same(struct cairn_hf *h, const json_t *list, const char *where, struct cairn_error *err);

/* r: a base artefact, borrowed for as long as the set lives. The source's directory is opened when it is first needed. */
enum cairn_status cairn_passed_open(struct cairn_passed_set **out, struct cairn_reader *r, struct cairn_error *err);
void cairn_passed_close(struct cairn_passed_set *s);
int cairn_passed_count(const struct cairn_passed_set *s);
const struct cairn_passed *cairn_passed_at(const struct cairn_passed_set *s, int i);
/* The bytes of tensor i in pieces, in order, to fn; the digest is checked at the end. CAIRN_ENOINPUT naming the source's directory if it
 * has gone, CAIRN_EDATA if it changed. */
enum cairn_status cairn_passed_read(struct cairn_passed_set *s, int i,
                                    enum cairn_status (*fn)(void *arg, const void *p, size_t n, struct cairn_error *err), void *arg,
                                    struct cairn_error *err);

#endif

/* manifest.h - MANIFEST.json: what a committed artefact is, what made it, from what, and the digest of every byte.
 *
 * Format, version 1 (UTF-8 JSON, written by us in this order; a reader takes any order):
 *   {
 *     "format": "cairn manifest", "version": 1,
 *     "hollow": "checkpoint.every",   only of an artefact that is collected from the first: why
 *     "kind": "policy", "step": 3, "run": "<uuid>",
 *     "identity": {"recipe": "<32 hex>", "inputs": [{"path": "policy/000002", "digest": "<32 hex>"}, ...]},
 *     "fingerprint": {"numerics": "...", "layout": "..."},
 *     "cairn": "<version>", "epoch": 2,
 *     "digest": "<logical digest>",
 *     "content": {...},               the stage's own facts, part of the logical content
 *     "info": {...},                  times, hosts, counts of ranks: not part of it
 *     "aliases": {"alias": "tensor", ...},
 *     "shards": [{"file": "a2/rank0000.h5", "size": n, "digest": "<32 hex>", "identity": "...",
 *                 "table": [at, tiles, "<32 hex>"],
 *                 "tensors": [["name", "bf16", [shape], [offset], [local], at, tile_bytes, first, "<sum>"(, "each")], ...]}, ...],
 *     "check": "<32 hex>"
 *   }
 * `check` is XXH3-128 of all bytes of the file before the line that holds it; that line and the closing brace are
 * byte for byte `  "check": "<hex>"\n}\n`, so that no bit of the file can change unseen. "hollow" has its place behind "version", where a short
 * read finds it; a shard that holds no data says `"hollow": true` behind its "identity". Above 512 shards a shard (not of a hollow artefact, of which
 * nothing but the manifest stays) has instead of "identity", "table" and "tensors": "index": ["a2/rank0000.json", "<XXH3-128 of that file>"], and the
 * file of that name holds the shard entry in the same form, with its own check (attempt.h writes it anyway).
 *
 * Logical digest (format, fixed for ever): the sum mod 2^128 of
 *   the logical digest of every tensor (base/digest.h, tiles.h),
 *   XXH3-128 of "content\n" + canonical JSON of content,
 *   XXH3-128 of "alias\n" + alias + "\n" + tensor for every alias.
 * It does not depend on shards, order, epochs, times, hosts, version, fingerprint, run, step, kind, identity or hollowness.
 *
 * A manifest from a newer version is refused by name. Loading checks all sizes against overflow and against the
 * file's size, all names, that every element of every tensor is covered exactly once, and the logical digest.
 */
#ifndef CAIRN_CKPT_MANIFEST_H
#define CAIRN_CKPT_MANIFEST_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/status.h"
#include "ckpt/checkline.h"
#include "ckpt/shard.h"
#include "ckpt/tiles.h"

#define CAIRN_MANIFEST_VERSION 1
#define CAIRN_MANIFEST_NAME "MANIFEST.json"
#define CAIRN_COLLECTED_NAME "COLLECTED"
#define CAIRN_MANIFEST_MAX_INLINE 512        /* shards; above: one index file each */
#define CAIRN_MANIFEST_MAX_BYTES (1 << 30)   /* of a manifest or index file */

struct cairn_input {
    char *path;                 /* of the artefact, relative to RUN; outside files: "file:NAME" */
    struct cairn_digest digest; /* its logical digest; of a file, that of its bytes */
};

struct cairn_part {
    int shard;                       /* index into shards */
    const struct cairn_slice *slice; /* borrowed from it */
};

/* One tensor of the artefact, put together from its parts. */
struct cairn_tensor_entry {
    const char *name;                /* borrowed from a part */
    const char *each;                /* NULL or the stack's pattern */
    enum cairn_dtype dtype;
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
    int64_t tile_bytes;
    struct cairn_digest digest;      /* logical */
    int nparts;
    const struct cairn_part *parts;  /* (nparts) by offset */
};

struct cairn_manifest {
    char *kind;                      /* "policy", "trainer", "rollout", "score", "base", ...: cairn_name_ok */
    int64_t step;                    /* >= 0 */
    char *run;                       /* uuid of the run; "" outside of any */
    struct cairn_digest recipe;      /* hash of the recipe's science and layout keys; zero if none */
    int ninputs;
    struct cairn_input *inputs;      /* (ninputs) in the order added */
    char *numerics, *layout;         /* fingerprint, opaque; "" if none */
    char *version;                   /* of the cairn that wrote it; "" : cairn_manifest_write puts this build's */
    int64_t epoch;                   /* of the attempt; 0 before */
    char *hollow;                    /* "" : its shards hold their data; else why they do not: it is collected from the first */
    json_t *content, *info;          /* objects, owned; never NULL */
    json_t *aliases;                 /* object alias -> tensor, owned; never NULL */
    int nshards;
    struct cairn_shard_entry **shards; /* (nshards) owned */
    struct cairn_digest digest;      /* logical; made by seal, checked by load */
    int ntensors;                    /* made by seal and load: */
    struct cairn_tensor_entry *tensors; /* (ntensors) sorted by name (strcmp) */
    struct cairn_part *parts;        /* memory of tensors[].parts */
};

/* Everything empty; kind and run are copied. NULL without memory. */
struct cairn_manifest *cairn_manifest_create(const char *kind, int64_t step, const char *run);
void cairn_manifest_destroy(struct cairn_manifest *m);
/* Setters copy; they fail only without memory. */
enum cairn_status cairn_manifest_set_fingerprint(struct cairn_manifest *m, const char *numerics, const char *layout, struct cairn_error *err);
enum cairn_status cairn_manifest_set_hollow(struct cairn_manifest *m, const char *why, struct cairn_error *err); /* at most 63 bytes */
enum cairn_status cairn_manifest_add_input(struct cairn_manifest *m, const char *path, struct cairn_digest digest, struct cairn_error *err);
enum cairn_status cairn_manifest_add_alias(struct cairn_manifest *m, const char *alias, const char *tensor, struct cairn_error *err);
/* Takes the entry over (in any case). */
enum cairn_status cairn_manifest_add_shard(struct cairn_manifest *m, struct cairn_shard_entry *entry, struct cairn_error *err);

/* Puts tensors together from the shards' slices, checks exact cover, makes the logical digest. `where` names the
 * artefact in sentences. CAIRN_EDATA: "WHERE: tensor w1: 12 of 24 elements are in no shard", "... of a1/x.h5 are in a2/y.h5 too". */
enum cairn_status cairn_manifest_seal(struct cairn_manifest *m, const char *where, struct cairn_error *err);
/* The tensor by name or alias; NULL if there is none. After seal or load. */
const struct cairn_tensor_entry *cairn_manifest_find(const struct cairn_manifest *m, const char *name);
/* 1: the parts that m tells of make up this slice of a tensor, and their sums are its sum. 0: they say something else, or are cut otherwise. */
int cairn_manifest_tells(const struct cairn_manifest *m, const struct cairn_slice *s);
/* One digest of everything that decides what the artefact must contain: kind, step, recipe, inputs. Attempts on one
 * artefact compare it. */
struct cairn_digest cairn_manifest_identity(const struct cairn_manifest *m);

/* Text of a sealed manifest, check line included; malloc'ed. */
enum cairn_status cairn_manifest_text(const struct cairn_manifest *m, char **out, size_t *n, struct cairn_error *err);
/* Parses and checks bytes; `dir` is where index files lie (NULL: there may be none). */
enum cairn_status cairn_manifest_parse(struct cairn_manifest **out, const char *text, size_t n, const char *where, const char *dir,
                                       struct cairn_error *err);
/* DIR/MANIFEST.json. CAIRN_ENOINPUT "DIR: not committed" if it is absent. */
enum cairn_status cairn_manifest_load(struct cairn_manifest **out, const char *dir, struct cairn_error *err);
/* The files beside DIR/MANIFEST.json that are part of it: an object with the names of its index files as keys, without one if its shards stand
 * in itself. Caller drops it. CAIRN_ENOINPUT, CAIRN_EDATA as above; the index files are not looked at. */
enum cairn_status cairn_manifest_indexes(json_t **out, const char *dir, struct cairn_error *err);

/* What a cheap look at MANIFEST.json gives without parsing the shards (check verified). */
struct cairn_manifest_head {
    char kind[32];
    int64_t step;
    char run[64];
    struct cairn_digest digest;
    int64_t epoch;
    char hollow[64];
    char numerics[256];
};
enum cairn_status cairn_manifest_head(struct cairn_manifest_head *out, const char *dir, struct cairn_error *err);

/* What its first and last bytes say, however large it is. Nothing of it is checked: whoever relies on a manifest loads it. */
struct cairn_manifest_glance {
    int hollow;
    char check[33]; /* one manifest's own: two of the same content differ in epoch and times. "": it does not end as one */
};
enum cairn_status cairn_manifest_glance(struct cairn_manifest_glance *out, const char *dir, struct cairn_error *err); /* CAIRN_ENOINPUT: none there */

/* Text of one shard entry, with its own check line ("format": "cairn shard"), and back. `file` of a parsed entry is as
 * written. For adoption, for index files, and to send an entry from rank to rank. */
enum cairn_status cairn_shard_entry_text(const struct cairn_shard_entry *e, char **out, size_t *n, struct cairn_error *err);
enum cairn_status cairn_shard_entry_parse(struct cairn_shard_entry **out, const char *text, size_t n, const char *where,
                                          struct cairn_error *err);

#endif

/* io.h - sets of parameters in artefacts: a table's tensors into shards, and back into stores, a few tensors in memory at a time.
 *
 * Names in a shard are the table's names with an optional prefix ("master:", "m:", "v:" in trainer states); the layer's experts are
 * a stack whose logical digest goes by the per-expert names. Values are narrowed on the host (round to nearest even, the same bits
 * as op `cast`), parameters marked keep_f32 stay f32.
 *
 * A set may be one shard or several of bounded size ("weights-00000", "weights-00001", ...), cut at whole tensors by the table
 * alone, so that an attempt adopts what a dead one finished. Shards that lie there finished under the same identity are not written
 * again.
 */
#ifndef CAIRN_MODEL_IO_H
#define CAIRN_MODEL_IO_H

#include "ckpt/attempt.h"
#include "ckpt/manifest.h"
#include "ckpt/reader.h"
#include "model/adapter.h"
#include "model/optimizer.h"
#include "model/params.h"

/* Where tensors come from: rows [begin, begin + n) of dimension 0 of parameter i (of what the source has of it, where that is a
 * share), dense, as `as` (one of dtype(i) or F32). */
struct cairn_source {
    const struct cairn_param_table *table;
    enum cairn_status (*read)(void *arg, int i, int64_t begin, int64_t n, enum cairn_dtype as, void *h_dst,
                              struct cairn_error *err);
    void *arg;
    int (*holds)(void *arg, int i, enum cairn_dtype as); /* or NULL; 1: parameter i lies there in this type, and may be read so */
    struct cairn_device *dev;                            /* or NULL; whose memory is read */
};

struct cairn_save_opts {
    const char *stem;                /* of the shards' names: "weights", "master", ... as cairn_name_ok */
    const char *prefix;              /* of the tensors' names, or NULL */
    int trainable_only;              /* 1: frozen parameters are left out */
    enum cairn_dtype dtype;          /* F32, BF16, F16; keep_f32 parameters stay F32 */
    const enum cairn_dtype *each;    /* or NULL: [table->count] dtype of each parameter instead */
    int64_t max_bytes;               /* of one shard, tensors are not split; 0: 4 GiB */
    const char *identity;            /* what the values come from, for adoption; NULL: nothing is adopted */
    const char *what;                /* name of a progress bar, or NULL */
    const struct cairn_store *share; /* or NULL; only the rows that this store has, as parts of the tensors (shares.h) */
    int through;                     /* 1: a stop that is requested does not end it */
    const struct cairn_digest
        *told; /* or NULL: [table->count] sums of the tensors as they would be written: told, not written (hollow, ckpt/shard.h) */
};

/* Writes the set into the attempt. manifest (may be NULL: the shards' entry files are there for whoever commits): gets the entries.
 * CAIRN_EAGAIN between two shards when a stop was requested. */
enum cairn_status cairn_save(const struct cairn_source *src, struct cairn_attempt *a, struct cairn_manifest *manifest,
                             const struct cairn_save_opts *opts, struct cairn_error *err);
/* The names of the shards that such a save makes, so that a committer may adopt them: count, and name i into out. */
int cairn_save_shards(const struct cairn_param_table *t, const struct cairn_save_opts *opts);
void cairn_save_shard_name(const struct cairn_save_opts *opts, int i, char *out, size_t n);

/* Sources. The structs are the caller's and live as long as the source. */
struct cairn_store_source {
    const struct cairn_store *store;
    struct cairn_compute *k;
};
struct cairn_source cairn_source_store(struct cairn_store_source *s);
struct cairn_reader_source { /* an artefact; tensors it lacks come from `other` (or NULL) under their bare names */
    const struct cairn_param_table *table;
    struct cairn_reader *reader;
    const char *prefix; /* or NULL */
    struct cairn_reader *other;
};
struct cairn_source cairn_source_reader(struct cairn_reader_source *s);

/* All tensors of the store (absent ones skipped; of a share its rows) from an artefact, widened or rounded to the store's type; shape
 * must be the table's, any float dtype. */
enum cairn_status cairn_load(struct cairn_store *s, struct cairn_reader *r, const char *prefix, struct cairn_compute *k,
                             const char *what, struct cairn_error *err);

/* A trainer state: masters, first and second moments of the trainable parameters, f32, as sets "master", "m", "v"; the update count
 * is a member of the artefact's content ("updates"), the caller's to write. Ranks that share an optimiser write their shares each,
 * as sets "master-r0001" and so on, into one attempt; any number of ranks reads it. */
struct cairn_trainer_save_opts {
    const char *identity; /* as in cairn_save_opts */
    int through;
    int hollow; /* 1: told, not written: the device makes the digests */
    const float *const
        *h_values; /* or NULL: from these copies instead of the stores (cairn_trainer_snapshot); o is read for its shape only */
};
enum cairn_status cairn_trainer_save(const struct cairn_optimizer *o, struct cairn_attempt *a, struct cairn_manifest *manifest,
                                     const struct cairn_trainer_save_opts *opts, struct cairn_error *err);
/* Is this the state that manifest m tells of, by the digests of its tensors (of a share, of its rows)? Its data are not read and need not be there.
 * other: the name of the first tensor that is another one, or is cut otherwise; "" if none is. */
enum cairn_status cairn_trainer_compare(const struct cairn_optimizer *o, const struct cairn_manifest *m, char *other, size_t n,
                                        struct cairn_error *err);
/* Copies masters, m and v into h[0], h[1], h[2], o->end - o->begin floats each. */
enum cairn_status cairn_trainer_snapshot(const struct cairn_optimizer *o, float *const *h, struct cairn_error *err);
enum cairn_status cairn_trainer_load(struct cairn_optimizer *o, struct cairn_reader *r, struct cairn_error *err);

/* The weights of a policy, cast from a trainer state: W = cast(master, dtype); frozen ones and what is not in the state from `base`
 * (NULL for an adapter, whose table is all trainable). Set "weights". No device. */
enum cairn_status cairn_policy_save(const struct cairn_param_table *t, struct cairn_reader *trainer, struct cairn_reader *base,
                                    enum cairn_dtype dtype, struct cairn_attempt *a, struct cairn_manifest *manifest,
                                    const char *identity, struct cairn_error *err);

#endif

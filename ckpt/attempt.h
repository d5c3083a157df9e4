/* attempt.h - one try at making an artefact, and the act that commits it.
 *
 *   ARTEFACT/epoch/7            attempt 7 exists: a small JSON file that says who (never changed, never reused)
 *   ARTEFACT/a7/NAME.h5         its shards, and beside each finished (fsynced) one
 *   ARTEFACT/a7/NAME.json       its entry: from now on any attempt of the same identity may adopt it
 *   ARTEFACT/.MANIFEST.7        the finished manifest, fsynced, then linked to
 *   ARTEFACT/MANIFEST.json      the artefact is committed. The link fails if that name exists: first publisher wins
 *
 * One process begins an attempt and tells its epoch to the other ranks, which join it. Independent processes (array
 * tasks) that share an artefact each begin an attempt in a lane of their own ("task-3"): attempts of different lanes do
 * not fence each other, and whoever finds all shards finished adopts them and commits.
 * Fencing: an attempt publishes only if no higher epoch exists in its own lane or in the lane "" (which is everybody's).
 * A stopped or cut-off attempt therefore wakes up to CAIRN_EFENCED and has published nothing.
 * After its commit an attempt removes what lower attempts and other lanes left (a<N>, .MANIFEST.<N>), never anything else.
 * No clock, no lock, no lease: nothing expires.
 *
 * Refuses: to replace a MANIFEST.json, to publish what does not cover its tensors.  Idea: spec of the commit protocol.
 */
#ifndef CAIRN_CKPT_ATTEMPT_H
#define CAIRN_CKPT_ATTEMPT_H

#include <stdint.h>

#include "base/digest.h"
#include "base/status.h"
#include "ckpt/holder.h"
#include "ckpt/manifest.h"
#include "ckpt/shard.h"

struct cairn_attempt_opts {
    struct cairn_digest identity; /* cairn_manifest_identity of what will be committed */
    const char *lane;             /* NULL or "": the whole artefact; else as cairn_name_ok */
    int scratch;                  /* 1: gone before its process ends: what shards hold need not survive anything, and is not synced */
};

struct cairn_attempt;

/* 1: ARTEFACT/MANIFEST.json exists, or it cannot be told; 0: certainly not. One system call. */
int cairn_artefact_committed(const char *dir);
/* For whoever finds an artefact committed by somebody else and is about to tell: makes the name durable, removes what
 * attempts left behind whose holder is certainly dead or that the published one outranks. */
enum cairn_status cairn_artefact_settle(const char *dir, struct cairn_error *err);
/* Only the first of it: fsync of dir and of the directory that holds it. */
enum cairn_status cairn_artefact_durable(const char *dir, struct cairn_error *err);

/* Takes the next epoch; makes dir, dir/epoch, dir/a<epoch>, all durable. CAIRN_EFENCED if dir is committed already. */
enum cairn_status cairn_attempt_begin(struct cairn_attempt **out, const char *dir, const struct cairn_attempt_opts *opts,
                                      struct cairn_error *err);
/* Another rank of the attempt that holds `epoch`. */
enum cairn_status cairn_attempt_join(struct cairn_attempt **out, const char *dir, int64_t epoch, const struct cairn_attempt_opts *opts,
                                     struct cairn_error *err);
void cairn_attempt_end(struct cairn_attempt *a); /* frees; files stay for the next attempt; NULL is fine */
int64_t cairn_attempt_epoch(const struct cairn_attempt *a);
const char *cairn_attempt_dir(const struct cairn_attempt *a); /* path of a<epoch>, borrowed */

/* cairn_shard_create in a<epoch>. opts->identity is what later attempts compare: it must name all that decides the bits
 * beyond the artefact's identity (which units, which numerics where they matter). If the directory was tidied away under
 * us: CAIRN_EFENCED. */
enum cairn_status cairn_attempt_shard(struct cairn_attempt *a, struct cairn_shard **out, const char *name,
                                      const struct cairn_slice *tensors, int n, const struct cairn_shard_opts *opts,
                                      struct cairn_error *err);
/* cairn_shard_finish, then its entry file, durable. *entry->file is "a<epoch>/NAME.h5": ready for cairn_manifest_add_shard
 * (here, or on the publishing rank through cairn_shard_entry_text). Destroys the writer and sets *shard NULL in any case. */
enum cairn_status cairn_attempt_shard_done(struct cairn_attempt *a, struct cairn_shard **shard, struct cairn_shard_entry **entry,
                                           struct cairn_error *err);
/* The shard NAME of this or any other attempt, finished under the same artefact identity and shard identity, size and
 * whole-file digest checked, linked into our a<epoch>. *entry = NULL and CAIRN_OK if there is none (a damaged one is
 * passed over). */
enum cairn_status cairn_attempt_adopt(struct cairn_attempt *a, const char *name, const char *identity,
                                      struct cairn_shard_entry **entry, struct cairn_error *err);
/* Calls fn(name, shard identity, epoch) for every finished shard of this artefact identity that lies there, any attempt,
 * in order of epoch, then name; entry files that are torn are passed over (CAIRN_EIO, CAIRN_ENOSPACE: one could not be read).
 * fn returns non-zero to stop. */
enum cairn_status cairn_attempt_each(struct cairn_attempt *a, int (*fn)(void *arg, const char *name, const char *identity, int64_t epoch),
                                     void *arg, struct cairn_error *err);

/* st, or CAIRN_EFENCED if it is a failure that came about because another attempt committed and tidied ours away: for work on the attempt's
 * files that does not go through the functions above. */
enum cairn_status cairn_attempt_failed(const struct cairn_attempt *a, enum cairn_status st, struct cairn_error *err);
/* CAIRN_OK while nobody outranks us; CAIRN_EFENCED naming who. Cheap; ask before long work. */
enum cairn_status cairn_attempt_check(struct cairn_attempt *a, struct cairn_error *err);
/* Seals m (epoch and, if empty, version filled in), writes and publishes it. m->identity must be the attempt's.
 * CAIRN_OK: published by us, or by another with the same logical digest. CAIRN_EFENCED: outranked, or another published
 * something else (both digests named); our files stay for inspection. Durable when it returns CAIRN_OK. */
enum cairn_status cairn_attempt_commit(struct cairn_attempt *a, struct cairn_manifest *m, struct cairn_error *err);

/* Numbers of all entries "prefixN" of a directory, ascending, malloc'ed: "a" of an artefact are its attempts' folders. A directory that is
 * not there has none. */
enum cairn_status cairn_attempt_numbers(const char *path, const char *prefix, int64_t **out, size_t *n, struct cairn_error *err);

#endif

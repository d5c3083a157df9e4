/* verify.h - look at committed artefacts below a directory: list them, and hold every byte against its digest.
 *
 * An artefact is a directory that holds a MANIFEST.json. The walk goes in byte order of names, does not follow symbolic
 * links below its root, and enters artefacts too (sub-artefacts lie inside of them), but not their a<N> and epoch.
 * Uncommitted attempts, unknown files and the quarantines of runs are passed over, and so are, where the root is a run, other runs that lie in it.
 * Nothing is changed or repaired here. Polls cairn_stop_requested: CAIRN_EAGAIN.
 */
#ifndef CAIRN_CKPT_VERIFY_H
#define CAIRN_CKPT_VERIFY_H

#include <stdint.h>

#include "base/file.h"
#include "base/status.h"
#include "ckpt/manifest.h"

#define CAIRN_QUARANTINE_NAME "quarantine" /* a folder of a run: what was taken out of it */
#define CAIRN_RUN_NAME        "run.json"   /* a file of a run: what tells one */

/* Names of the directories in `dir` that may be artefacts or hold some, sorted; links are none. artefact: it is one itself, whose own
 * a<N>, epoch and pin are left out. */
enum cairn_status cairn_artefact_below(struct cairn_names *out, const char *dir, int artefact, struct cairn_error *err);

/* One committed artefact. */
struct cairn_artefact {
    const char *path; /* relative to the root of the walk; "" for the root itself */
    const char *dir;  /* to open it by */
    int collected;    /* 1: its shards are gone on purpose */
};
/* Calls fn for each; fn's status other than CAIRN_OK ends the walk and is the result. */
enum cairn_status cairn_artefact_walk(const char *root, enum cairn_status (*fn)(void *arg, const struct cairn_artefact *a, struct cairn_error *err),
                                      void *arg, struct cairn_error *err);

/* The walk for `cairn digest`: head of every committed artefact, kept whether collected or not. A damaged manifest ends
 * it with CAIRN_EDATA. */
enum cairn_status cairn_digest_walk(const char *root,
                                    enum cairn_status (*fn)(void *arg, const char *path, const struct cairn_manifest_head *head,
                                                            struct cairn_error *err),
                                    void *arg, struct cairn_error *err);

struct cairn_verify_opts {
    int deep; /* also: logical digest of every tensor from its bytes, tile tables, HDF5's own view of each file, lineage
               * (inputs that lie below the root exist and have the recorded digest) */
    const char *lineage; /* cairn_verify_tree: where inputs' paths start. NULL: at the root; "": nowhere, it is part of nothing */
    /* Told once for every bad thing; path names the file, text is the sentence. */
    void (*bad)(void *arg, const char *path, const char *text);
    /* Told right after bad where that was: of the artefact at path an input ("policy/000002") is not there. NULL: nobody. */
    void (*missing)(void *arg, const char *path, const char *input);
    /* Told after each artefact (NULL: nobody). */
    void (*done)(void *arg, const char *path, int64_t bytes);
    void *arg;
};
struct cairn_verify_counts {
    int64_t artefacts, collected, shards, tensors, bytes, bad;
};
/* CAIRN_OK: nothing bad. CAIRN_EDATA: something was, the first is in err. Others: could not look. */
enum cairn_status cairn_verify_tree(const char *root, const struct cairn_verify_opts *opts, struct cairn_verify_counts *counts,
                                    struct cairn_error *err);
/* One artefact; `root` (NULL: no lineage) is where its inputs' paths start. */
enum cairn_status cairn_verify_artefact(const char *dir, const char *root, const struct cairn_verify_opts *opts,
                                        struct cairn_verify_counts *counts, struct cairn_error *err);

#endif

/* retention.h - which generations stay, and how one goes: marker first, shards last, manifest never.
 *
 * Collection writes ARTEFACT/COLLECTED durably (JSON: reason, time, the check of the manifest), keeps MANIFEST.json, then removes a<N>, but for
 * the index files that the manifest names (above 512 shards): they are part of it, and without them it cannot be loaded. Killed anywhere in
 * between, the artefact counts as collected and the next collection finishes the work. A marker counts only beside the manifest that it names:
 * what a drop that was killed leaves means nothing to what is made in its place. So nobody ever takes one away. Readers pin ARTEFACT/pin/NAME
 * before they open; a collector that meets a living pin leaves the data alone. If the pin came while the marker was being put down, the marker
 * stays (it never goes again: another collector may be at work behind it), the artefact can be read as long as it is pinned, and a later
 * collection finishes.
 * An artefact whose shards are hollow (shard.h) is collected from the first: its manifest says so, and one link commits both. It needs no marker.
 * Never leaves zero valid generations: what is kept is looked at (manifest and sizes, or all bytes) before anything goes.
 */
#ifndef CAIRN_CKPT_RETENTION_H
#define CAIRN_CKPT_RETENTION_H

#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/status.h"
#include "ckpt/attempt.h"

struct cairn_retention {
    int64_t keep;       /* the last this many stay; at least 1 (0 is taken as 1); -1: all */
    int64_t keep_every; /* steps divisible by this stay too; 0: none */
    const int64_t *spare; /* so does this one, without a place of the last; NULL: none. Borrowed */
    int verify;         /* 1: read all bytes of what is kept as the last resort; 0: manifest, presence and sizes */
    /* For who collects after every step of a long run: behind those that are kept, so many older ones in a row that need nothing end the look back.
     * What a kill left behind them waits for a collection that looks at all: 0. */
    int calm;
    const char *reason; /* goes to the marker */
    /* What cairn_holder_alive cannot tell (another host): 1 alive, 0 dead. NULL: taken as alive. */
    int (*alive)(void *arg, const struct cairn_holder *h);
    void *arg;
};

struct cairn_generation {
    int64_t step;
    const char *dir;
};

/* What a policy keeps, by steps alone: keep[i] = 1 or 0 for the n generations (any order, steps differ). Pure. */
void cairn_retention_plan(const struct cairn_retention *r, const int64_t *step, int n, int *keep);
/* Collects what the plan drops. Generations that are not committed are ignored; collected ones are finished. `keep` counts
 * valid generations only: a damaged one does not use up a place. *collected (may be NULL): how many went.
 * A pinned one stays without error. CAIRN_EDATA if no valid generation is left to keep: then nothing is touched. */
enum cairn_status cairn_retention_apply(const struct cairn_retention *r, const struct cairn_generation *gen, int n, int *collected,
                                        struct cairn_error *err);

int cairn_artefact_collected(const char *dir); /* 1: marked, or hollow; 0: it is not, or it cannot be told */
/* The same for those who must know: an error where it cannot be told. */
enum cairn_status cairn_artefact_collected_look(const char *dir, int *collected, struct cairn_error *err);
int cairn_artefact_pinned(const char *dir);    /* 1: there is a pin, whoever's, or it cannot be told */
/* The reason, malloc'ed; "" if it cannot be read. */
char *cairn_artefact_collected_why(const char *dir);
/* Collects one; no question asked but pins: *pinned = 1 (may be NULL) and the data left if there is a living one. */
enum cairn_status cairn_artefact_collect(const char *dir, const struct cairn_retention *r, int *pinned, struct cairn_error *err);
/* What a collection takes away, for who counts it or moves it: names relative to dir, the folder of an attempt or, where index files of the manifest
 * lie in that, each of the others in it. Of a manifest that is missing or damaged nobody knows what it named: whole folders. Caller frees. */
enum cairn_status cairn_artefact_data(struct cairn_names *out, const char *dir, struct cairn_error *err);

/* Only the marker, for who sees to pins and shards himself. CAIRN_ENOINPUT: not committed. */
enum cairn_status cairn_artefact_mark(const char *dir, const char *reason, struct cairn_error *err);

/* Removes an artefact altogether, its manifest first, so that what a kill leaves is not committed: for sub-artefacts that
 * their parent's commit has made worthless. Missing is fine. The directory itself goes too. */
enum cairn_status cairn_artefact_drop(const char *dir, struct cairn_error *err);

/* Pins are files of their own: pin before cairn_reader_open, unpin after close; name as cairn_name_ok, unique per reader
 * (job and pid). CAIRN_ENOINPUT if the artefact was collected meanwhile. */
enum cairn_status cairn_artefact_pin(const char *dir, const char *name, struct cairn_error *err);
enum cairn_status cairn_artefact_unpin(const char *dir, const char *name, struct cairn_error *err);

#endif

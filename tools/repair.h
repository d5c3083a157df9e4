/* repair.h - what has to leave a run, so that it can go on and `cairn run` makes again what is missing, when artefacts are damaged.
 *
 * What was made from something that was damaged later is not damaged itself: so the run falls back no further than to the newest good
 * generation. A damaged artefact whose data were not collected is
 *   dropped    if what is still to be made reads it (or dependents is asked for, or it is damaged by its lineage): with everything that was
 *              made from it, by the inputs that manifests record, and with what must be there to make it again but was collected
 *              meanwhile, and all that hangs on that;
 *   made again alone, if its inputs are there: it comes out with the same digest (the next verify --deep sees to that), and what was made
 *              from it stays;
 *   collected  else: manifest and line in `cairn digest` stay, its shards go, whoever wants them is told.
 * What was made from an artefact that is merely missing stays where that can be made again, which `cairn run` does, to the same digest.
 * Nothing is lost: things move to RUN/quarantine/NNNN (quarantine.h), last made first and what is damaged at the very end, so that a kill in
 * between leaves a run that the same call goes on repairing.
 * Small files that decide nothing any more (an epoch, the entry beside a shard) leave alone; a damaged COLLECTED marker is written anew.
 * Not repaired, but told: a damaged manifest of an artefact that was collected, or that nobody reads and nothing can make again; and likewise what
 * was made from a missing one of that kind.
 */
#ifndef CAIRN_TOOLS_REPAIR_H
#define CAIRN_TOOLS_REPAIR_H

#include <jansson.h>

#include "stages/common/run.h"

struct cairn_repair_result {
    json_t *dropped;    /* [{"path", "why"}] in the order of moving */
    json_t *collected;  /* [{"path", "why"}] */
    json_t *mended;     /* [{"path", "why"}]: small files taken away or written anew */
    json_t *missing;    /* [{"path", "why"}]: not there, and made again by `cairn run` */
    json_t *left;       /* [{"path", "why"}]: not repaired */
    char *quarantine;   /* relative to RUN; NULL: nothing was moved */
    int64_t policy;     /* the newest good policy that is left; -1: none */
    int64_t state;      /* the newest good trainer state that is left; -1: none. None of both: the run begins anew */
};

/* Where nothing is bad, the caller asks only for a run that has said that it cannot go on: what the next link reads was collected.
 * bad: [{"path", "why"}] as cairn_verify_tree over run->dir told them, with "input" where that is what is missing. The caller holds the run's lock.
 * dry: only says what it would do, and wants no lock. */
enum cairn_status cairn_repair(const struct cairn_run *run, const json_t *bad, int dependents, int dry, struct cairn_repair_result *out,
                               struct cairn_error *err);
void cairn_repair_free(struct cairn_repair_result *r);

#endif

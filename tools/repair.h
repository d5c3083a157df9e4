/* repair.h - what has to leave a run, so that `cairn run` can make it again, when some of its artefacts are damaged.
 *
 * Dropped are: a damaged artefact whose data were not collected; whatever was made from something dropped, by the inputs that its
 * manifest records (a rollout from its policy, a score from its rollout, ...), since it must be made after it; and what is needed to make
 * a dropped one again but was collected meanwhile, with all that hangs on it. So the run falls back to the newest generation from which
 * everything behind it can be made; earlier ones are not touched. Nothing is lost: things move to RUN/quarantine/NNNN (quarantine.h), last
 * made first and what is damaged at the very end, so that a kill in between leaves a run that the same call goes on repairing.
 * With `alone`, only what is damaged goes, and what depends on it stays: made again it has the same digest. Refused where its inputs are
 * collected.
 * Small files that decide nothing any more (an epoch, the entry beside a shard) leave alone; a damaged COLLECTED marker is written anew.
 * Not repaired, but told: an artefact that was collected and whose manifest is damaged; files of the run itself.
 */
#ifndef CAIRN_TOOLS_REPAIR_H
#define CAIRN_TOOLS_REPAIR_H

#include <jansson.h>

#include "stages/common/run.h"

struct cairn_repair_result {
    json_t *dropped;    /* [{"path", "why"}] in the order of moving */
    json_t *mended;     /* [{"path", "why"}]: small files taken away or written anew */
    json_t *left;       /* [{"path", "why"}]: not repaired */
    char *quarantine;   /* relative to RUN; NULL: nothing was moved */
    int64_t policy;     /* the newest good policy that is left; -1: none, the run begins anew */
};

/* bad: [{"path", "why"}] as cairn_verify_tree over run->dir told them. The caller holds the run's lock. dry: only says what it would do. */
enum cairn_status cairn_repair(const struct cairn_run *run, const json_t *bad, int alone, int dry, struct cairn_repair_result *out,
                               struct cairn_error *err);
void cairn_repair_free(struct cairn_repair_result *r);

#endif

/* replay_stored.h - the rollouts that a run has stored, one link at a time, with what belongs to them: prompts, gold answers, scores.
 *
 * Everything is read through its digests: a damaged file is CAIRN_EDATA by name. What was collected or is not there is left out, and said to be.
 */
#ifndef CAIRN_TOOLS_REPLAY_STORED_H
#define CAIRN_TOOLS_REPLAY_STORED_H

#include "ckpt/reader.h"
#include "stages/common/prompts.h"
#include "stages/common/rollouts.h"
#include "stages/common/run.h"
#include "stages/common/scores.h"
#include "tools/replay_only.h"

/* Links of stored rollouts that `only` means, in the order of the chain: *link malloc'ed, names borrowed from the recipe. sets 1: evaluations too
 * where `only` names no set. A warning names what is meant and not there. CAIRN_ENOINPUT: none is. */
enum cairn_status cairn_stored_links(const struct cairn_run *run, const struct cairn_only *only, int sets, struct cairn_link **link, int *n,
                                     struct cairn_error *err);

/* Prompt files stay open between links of one set: a step has few rollouts against the rows of its prompt files. Zero: nothing yet. */
struct cairn_stored_prompts {
    const char *eval; /* of which set; NULL: training's */
    struct cairn_prompts *files; /* NULL: nothing yet */
    int n;
};
void cairn_stored_prompts_free(struct cairn_stored_prompts *p);

struct cairn_stored {
    struct cairn_link link;
    char *name;                  /* "step/000003/rollout" */
    struct cairn_reader *reader; /* of the rollouts */
    struct cairn_rollouts r;
    int64_t *unit; /* (units + 1) first rollout of each unit */
    int units;
    struct cairn_prompts *files;
    int nfiles, borrowed; /* borrowed 1: the files are those of a struct cairn_stored_prompts */
    struct cairn_scores_table s; /* the run's own scores of these very rollouts */
    int scored;
};

/* extracted 1: also the answers that the graders found. prompts: kept for the next link, or NULL. */
enum cairn_status cairn_stored_open(struct cairn_stored *w, const struct cairn_run *run, const struct cairn_link *l, int extracted,
                                    struct cairn_stored_prompts *prompts, struct cairn_error *err);
void cairn_stored_close(struct cairn_stored *w);
/* The recipe's entry for file k of the link: of data.prompts, or the evaluation set. NULL: none. */
const json_t *cairn_stored_entry(const struct cairn_run *run, const struct cairn_link *l, size_t k);
/* The prompt of rollout i, or NULL. */
const struct cairn_prompt *cairn_stored_prompt(const struct cairn_stored *w, int64_t i);
/* Is rollout i meant? */
int cairn_stored_takes(const struct cairn_stored *w, const struct cairn_only *only, int64_t i);
/* A slice by verdict of rollouts that were not scored: CAIRN_ENOINPUT naming them. */
enum cairn_status cairn_stored_fits(const struct cairn_stored *w, const struct cairn_only *only, struct cairn_error *err);

#endif

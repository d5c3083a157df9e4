/* evals.h - a run before and after: what its evaluations say, first step against last.
 *
 * Reads the manifests of RUN/eval/SSSSSS/NAME/score. Of several runs of one recipe (other seeds) the means are shown.
 */
#ifndef CAIRN_TOOLS_EVALS_H
#define CAIRN_TOOLS_EVALS_H

#include "base/str.h"
#include "stages/common/run.h"

enum cairn_eval_figure { CAIRN_EVAL_ACCURACY, CAIRN_EVAL_CAPPED, CAIRN_EVAL_LENGTH, CAIRN_EVAL_FINISHED, CAIRN_EVAL_PASS, CAIRN_EVAL_FIGURES };

struct cairn_eval_point {
    int64_t step;
    double figure[CAIRN_EVAL_FIGURES]; /* shares from 0 to 1; length in tokens; NaN: not told */
    int64_t rollouts, groups;
};

/* The committed evaluations of set `name`, by step; *points malloc'ed, *n may be 0. */
enum cairn_status cairn_evals_read(const struct cairn_run *run, const char *name, struct cairn_eval_point **points, int *n,
                                   struct cairn_error *err);

/* Appends the tables of all evaluation sets of the n runs (at least one; the sets are the first run's). A set that some run has not
 * evaluated yet is said to be so; of several sets there is a total, too. */
enum cairn_status cairn_evals_table(struct cairn_run *const *runs, int n, struct cairn_str *out, struct cairn_error *err);
/* {NAME: [{"step", "accuracy", "capped_share", "length/mean", "accuracy_finished", "pass_at_k", "rollouts"}, ...], ...} of one run; new
 * reference. */
enum cairn_status cairn_evals_json(const struct cairn_run *run, json_t **out, struct cairn_error *err);

#endif

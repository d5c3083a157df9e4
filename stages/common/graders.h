/* graders.h - the graders that a recipe defines (score.graders), made known and started.
 *
 * A definition's program is an outside file of the run: recorded by digest when the run is made and held against it before it runs.
 * It is never copied, because it may have neighbours that it reads; those are not recorded.
 */
#ifndef CAIRN_STAGES_COMMON_GRADERS_H
#define CAIRN_STAGES_COMMON_GRADERS_H

#include "grade/process.h"
#include "stages/common/prompts.h"
#include "stages/common/run.h"

/* Makes the recipe's definitions known to cairn_grader_find, in the place of any other recipe's. CAIRN_ERECIPE with the place in
 * the file. */
enum cairn_status cairn_graders_define(const struct cairn_recipe *r, struct cairn_error *err);
/* The same for a run at its present step, its programs held against their digests (CAIRN_EDATA); then the grader process. */
enum cairn_status cairn_graders_start(struct cairn_grader_process **out, const struct cairn_run *run, struct cairn_error *err);
/* CAIRN_EDATA with file and line, if row i names a grader that is not known, or has an empty gold answer where its grader, or
 * `named` if the row names none, compares with it. */
enum cairn_status cairn_graders_row(const struct cairn_prompts *p, int64_t i, const char *named, struct cairn_error *err);

/* How a grader failed, of the first rollout by number that has no verdict for that. Only data. */
struct cairn_grade_failure {
    int64_t rollout;
    /* Exit status or signal and the last line of its stderr, or how its reply begins; "": none failed. */
    char why[sizeof((struct cairn_verdict *)0)->why];
};

/* f keeps the lower one of itself and rollout's verdict, if that is a crash or a time-out; if it is a reply that is no verdict. */
void cairn_grade_failure_note(struct cairn_grade_failure *f, int64_t rollout, const struct cairn_verdict *v);
void cairn_grade_invalid_note(struct cairn_grade_failure *f, int64_t rollout, const struct cairn_verdict *v);
/* The same for what another rank has kept. */
void cairn_grade_failure_merge(struct cairn_grade_failure *f, const struct cairn_grade_failure *other);

#endif

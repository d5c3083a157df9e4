/* scores.h - what the score stage says of each rollout, and its artefact.
 *
 * Columns of a unit (the rollouts of the rollout artefact's unit of the same number, in its order; n of them):
 *   reward f32 (n)    raw reward of the verdict          penalty f32 (n)   soft over-length penalty, <= 0
 *   advantage f32 (n) by group, of reward + penalty      mask u8 (n)       1: its response tokens count in the loss
 *   verdict u8 (n)    1 right, 0 wrong                   status u8 (n)     enum cairn_verdict_status
 *   value f32 (n)     0 to 1, how right: the verdict, unless its grader tells more finely
 *   group i32 (n)     as in the rollouts                 extracted u8, extracted_offsets i64 (n + 1): the answer, UTF-8
 *
 * content: "units", "metrics" (names of the objective's section 7); "nondeterministic", if there are any: rollouts whose score a
 * time-out or a crash decided, so that another attempt may score otherwise. info: "grader_failure" {"rollout", "why"}, of the first of those
 * that this attempt graded; "grader_invalid", the same of the first whose grader's reply was no verdict.
 */
#ifndef CAIRN_STAGES_COMMON_SCORES_H
#define CAIRN_STAGES_COMMON_SCORES_H

#include "stages/common/columns.h"

struct cairn_scores_table {
    int64_t n;
    float *reward, *penalty, *advantage, *value;
    uint8_t *mask, *verdict, *status;
    int32_t *group;
    char **extracted; /* (n) malloc'ed */
};

enum cairn_status cairn_scores_create(struct cairn_scores_table *s, int64_t n,
                                      struct cairn_error *err); /* zeroed; extracted NULL */
void cairn_scores_free(struct cairn_scores_table *s);
enum cairn_status cairn_scores_write(const struct cairn_scores_table *s, int64_t begin, int64_t end, struct cairn_attempt *a,
                                     int unit, const char *identity, struct cairn_shard_entry **entry, struct cairn_error *err);
/* Parts as units first, first + 1, ... of one shard "NAME.h5": for whoever scores many rollouts at once. */
struct cairn_scores_part {
    const struct cairn_scores_table *s;
    int64_t begin, end; /* rows of it */
};
enum cairn_status cairn_scores_write_parts(const struct cairn_scores_part *part, int first, int parts, struct cairn_attempt *a,
                                           const char *name, const char *identity, struct cairn_shard_entry **entry,
                                           struct cairn_error *err);
/* All units in order; extracted only if asked for. */
enum cairn_status cairn_scores_load(struct cairn_scores_table *s, struct cairn_reader *from, int extracted,
                                    struct cairn_error *err);

#endif

/* exact.h - graders that compare text: `exact` (the answer is the gold text, byte for byte), and what recipes make of it and of `regex`.
 *
 * The answer is what extract.h finds by marker or box, or the whole response; blanks around both are dropped and runs of blanks count as
 * one. any_case: letters are compared in lower case, as Unicode has it.
 * regex: the last place where the expression (PCRE2, UTF-8) matches decides. With a group in it, the first group's text must be the gold
 * text; without one, that it matches is enough. Its steps are counted over all of a response: too many are a status "budget", never a wait.
 */
#ifndef CAIRN_GRADE_EXACT_H
#define CAIRN_GRADE_EXACT_H

#include "base/str.h"
#include "grade/define.h"

enum cairn_status cairn_exact_grade(const struct cairn_grader *self, const struct cairn_grade_opts *opts, const char *gold, size_t gold_bytes,
                                    const char *response, size_t response_bytes, struct cairn_verdict *out, struct cairn_error *err);
/* By definition (define.h); CAIRN_ERECIPE names the key that is wrong. */
enum cairn_status cairn_exact_create(struct cairn_grader **out, const struct cairn_grader_def *def, struct cairn_error *err);
enum cairn_status cairn_regex_create(struct cairn_grader **out, const struct cairn_grader_def *def, struct cairn_error *err);

/* Shared by both: the answer p[0, n) against the gold text, blanks at their ends apart and runs of them as one, in any case of letters if any_case.
 * Fills in v's match, extracted and why. */
enum cairn_status cairn_exact_compare(const char *gold, size_t gold_bytes, const char *p, size_t n, int any_case, struct cairn_verdict *v,
                                      struct cairn_error *err);
/* The part of a response that a grader looks at. 0: there is none, and *v says so. */
int cairn_exact_take(int whole, const struct cairn_grade_opts *opts, const char *response, size_t bytes, const char **p, size_t *n,
                     struct cairn_verdict *v, enum cairn_status *st, struct cairn_error *err);

#endif

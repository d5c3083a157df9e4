/* math.h - the grader `math`: one short mathematical answer against another, exactly.
 *
 * The way of a response: extract.h finds the answer in it, latex.h turns it into tokens (spelling, wrappers, units),
 * parse.h into a tree, value.h and eval.h compute exact values, compare.h decides. No floating-point number takes
 * part, so 2^53+1 is not 2^53 and 3.14 is not pi. Every stage counts its work; what is too much is the status
 * "budget", never a wait. Conventions: those of Minerva/MATH scoring (units, %, grouping commas dropped), with
 * mathematical equality in place of string equality.
 */
#ifndef CAIRN_GRADE_MATH_H
#define CAIRN_GRADE_MATH_H

#include "grade/grade.h"

enum cairn_status cairn_math_grade(const struct cairn_grader *self, const struct cairn_grade_opts *opts, const char *gold, size_t gold_bytes,
                                   const char *response, size_t response_bytes, struct cairn_verdict *out, struct cairn_error *err);

#endif

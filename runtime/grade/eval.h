/* eval.h - the exact value of a tree (parse.h) that stands for a number or an expression.
 *
 * Refuses whatever is no scalar: tuples, sets, relations, words (fail = CAIRN_VALUE_NONE).
 */
#ifndef CAIRN_GRADE_EVAL_H
#define CAIRN_GRADE_EVAL_H

#include "grade/parse.h"
#include "grade/value.h"

/* sign (+1, -1) is what \pm stands for; the value is kept in the node. NULL: see cairn_algebra_fail. */
const struct cairn_value *cairn_eval(struct cairn_algebra *alg, struct cairn_node *x, int sign);

#endif

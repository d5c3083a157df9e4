/* compare.h - does a response's tree say the same as the gold one.
 *
 * Order matters in tuples, matrices and ratios, not in sets and bare lists; brackets of intervals matter; "name ="
 * in front is dropped where only one side has it; a response with several candidates is no single answer.
 */
#ifndef CAIRN_GRADE_COMPARE_H
#define CAIRN_GRADE_COMPARE_H

#include "grade/parse.h"
#include "grade/value.h"

struct cairn_compare {
    struct cairn_algebra *alg;
    struct cairn_arena *arena;
    const struct cairn_toks *gold_toks, *response_toks; /* the trees' tokens, for names */
    const char *why;                                    /* static: of the last difference */
    int undecided;                                      /* two values were not found equal, and might be */
};

/* 1: the same. 0: not, or not found to be (cairn_algebra_fail says if the budget ran out). */
int cairn_compare(struct cairn_compare *c, struct cairn_node *gold, struct cairn_node *response);

#endif

/* keeper.h - the body of the grader process: see process.h. */
#ifndef CAIRN_GRADE_KEEPER_H
#define CAIRN_GRADE_KEEPER_H

#include "grade/process.h"

/* Serves what comes over socket `up` until it ends, with all limits set; then ends its children and itself. */
void cairn_grader_keeper(int up, const struct cairn_grader_limits *limits) __attribute__((noreturn));

#endif

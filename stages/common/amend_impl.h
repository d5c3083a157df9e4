/* amend_impl.h - what reading (amendments.c) and making (amend.c) of amendments share. Nobody else includes it. */
#ifndef CAIRN_STAGES_COMMON_AMEND_IMPL_H
#define CAIRN_STAGES_COMMON_AMEND_IMPL_H

#include "stages/common/amend.h"

#define CAIRN_AMENDMENTS_MAX 9999
#define CAIRN_AMENDABLE      (CAIRN_SCIENCE | CAIRN_LAYOUT)

/* malloc'ed; NULL without memory. */
char *cairn_amendment_path(const struct cairn_run *r, int number);
/* How many files recipe.amend-NNNN.json there are and the highest of their numbers. */
enum cairn_status cairn_amendments_count(const struct cairn_run *r, int *n, int *highest, struct cairn_error *err);
/* The frozen recipe with the first n of a whose from_step is at most `step`. Caller frees. */
enum cairn_status cairn_amendments_view(const struct cairn_run *r, const struct cairn_amendments *a, int n, int64_t step,
                                        struct cairn_recipe **out, struct cairn_error *err);

#endif

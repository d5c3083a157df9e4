/* units.h - units behind numbers, and the words that are none.
 *
 * A unit is a run of at most six words behind a number, at the end or before a separator: words in a wrapper, known short
 * units, or words with a vowel that do not change what the number means ("million", "thirds", "or", "more" do).
 */
#ifndef CAIRN_GRADE_UNITS_H
#define CAIRN_GRADE_UNITS_H

#include "grade/latex.h"

/* The tokens with units taken out. Returns 1 if that changed anything; *out is a new list in the arena (NULL tokens: no
 * memory). */
int cairn_latex_without_units(struct cairn_arena *arena, const struct cairn_toks *in, struct cairn_toks *out);

#endif

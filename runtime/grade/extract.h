/* extract.h - where in a whole response the answer stands.
 *
 * 1. The last marker ("Answer:" unless others are given) decides. Blanks, a line break and markdown marks may stand
 *    around it. If what follows it holds a balanced \boxed{}, the last such box is the answer, else the first line
 *    that is not blank (further lines while a brace or an environment is open).
 * 2. Without a marker the last balanced \boxed{} of the response decides ("last" by where it begins).
 * 3. Neither: no answer. A box that never closes holds none. An echo of the prompt's own `Answer: $Answer`, or of
 *    the marker in quotes, is passed over as if it were not there.
 * A marker is found in any case of letters, unless all its letters are capitals ("A:"), and only at the start of a
 * word. Linear in the length of the response; nothing is copied: the span points into it.
 */
#ifndef CAIRN_GRADE_EXTRACT_H
#define CAIRN_GRADE_EXTRACT_H

#include "base/status.h"
#include "grade/grade.h"

struct cairn_span {
    const char *p; /* NULL: no answer */
    size_t n;
    const char *why; /* static: why there is none, or how it was found */
};

enum cairn_status cairn_extract_answer(const struct cairn_grade_opts *opts, const char *text, size_t n, struct cairn_span *out,
                                       struct cairn_error *err);

/* A gold answer: the content of its last box if it has one, else all of it; trimmed. */
enum cairn_status cairn_extract_gold(const char *text, size_t n, struct cairn_span *out, struct cairn_error *err);

#endif

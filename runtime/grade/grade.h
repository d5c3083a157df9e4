/* grade.h - graders: what says whether a response is right.
 *
 * A grader is a pure function of (options, gold answer, whole response): its verdict depends on nothing else, above
 * all not on time. It works under operation budgets, so it ends at once whatever the response holds. Graders are
 * found by name, because the grader process (process.h) carries names, not pointers.
 *
 * Refuses: to guess. What cannot be read is no match, with a status and a sentence that say why.
 * Memory: gold and response are borrowed, need no NUL at the end and may hold NULs; a verdict owns nothing.
 */
#ifndef CAIRN_GRADE_GRADE_H
#define CAIRN_GRADE_GRADE_H

#include <stddef.h>

#include "base/status.h"

struct cairn_grade_opts {
    const char *const *marker; /* (markers) the last one found announces the answer; none given: "Answer:" */
    int markers;
};

#define CAIRN_MARKERS_MAX      16
#define CAIRN_MARKER_BYTES_MAX 256

enum cairn_verdict_status {
    CAIRN_VERDICT_OK = 0,    /* graded: match is the verdict */
    CAIRN_VERDICT_NO_ANSWER, /* the response offers none */
    CAIRN_VERDICT_BUDGET,    /* the answer asks for more work than a grader spends: no match */
    CAIRN_VERDICT_CRASHED,   /* the grading child died twice on this one (grader process only) */
    CAIRN_VERDICT_TIMEOUT,   /* its CPU or wall-clock backstop was hit (grader process only) */
    CAIRN_VERDICT_UNDECIDED, /* neither shown to be equal nor to differ: no match */
    CAIRN_VERDICT_INVALID,   /* what a foreign grader said is no verdict */
    CAIRN_VERDICT_STATUSES
};

struct cairn_verdict {
    int match;    /* 1: right. 0 for every status but OK */
    double value; /* 0 to 1, how right: match, unless the grader tells more finely; match is value == 1 */
    enum cairn_verdict_status status;
    char extracted[256]; /* the answer as it was found, cut at a character if it is longer; "" without one */
    char why[160];       /* one sentence for people */
};

struct cairn_sandbox;

struct cairn_grader {
    const char *name;
    /* Fails only if it could not do its work (no memory); a response that it cannot read is a verdict. */
    enum cairn_status (*grade)(const struct cairn_grader *self, const struct cairn_grade_opts *opts, const char *gold,
                               size_t gold_bytes, const char *response, size_t response_bytes, struct cairn_verdict *out,
                               struct cairn_error *err);
    /* Of graders that run code which is not ours: a child of their own behind it. NULL: they share one with the others. */
    const struct cairn_sandbox *sandbox;
    int gold_unused; /* 1: it may do without a gold answer */
    double time_s;   /* wall-clock backstop of that child for one response; 0: the process's own limits */
    void (*destroy)(struct cairn_grader *self); /* of a definition (define.h) */
};

const struct cairn_grader *cairn_grader_find(const char *name); /* NULL if there is none */

/* Adds a grader (borrowed for good) to those that can be found. Before the grader process starts; not thread-safe.
 * CAIRN_EUSAGE: the name is taken, not a name, or the table is full. */
enum cairn_status cairn_grader_register(const struct cairn_grader *grader, struct cairn_error *err);
const struct cairn_grader *cairn_grader_at(int i); /* the i-th of the table, NULL behind the last */

/* The sentence for a name that is not found: CAIRN_EUSAGE, with the names that there are. */
enum cairn_status cairn_grader_unknown(const char *name, struct cairn_error *err);

/* Checks opts (NULL: defaults), clears *out, calls the grader in this process. */
enum cairn_status cairn_grade(const struct cairn_grader *grader, const struct cairn_grade_opts *opts, const char *gold,
                              size_t gold_bytes, const char *response, size_t response_bytes, struct cairn_verdict *out,
                              struct cairn_error *err);

enum cairn_status cairn_grade_opts_check(const struct cairn_grade_opts *opts, struct cairn_error *err);

const char *cairn_verdict_status_name(enum cairn_verdict_status status); /* "ok", "no_answer", ... */

/* Copies n bytes into a verdict's string field of `size` bytes: cut at a UTF-8 character, bytes that are no text (NUL,
 * controls, malformed UTF-8) become '?', always NUL-terminated. */
void cairn_verdict_text(char *dst, size_t size, const char *p, size_t n);

#endif

/* latex.h - an answer as tokens: LaTeX, Unicode and plain spellings of one thing become one token.
 *
 * Dropped here: $, percent and degree marks, currency signs, spacing commands, \left \right and size commands, font
 * wrappers around mathematics. \text-like wrappers around words become one TEXT token; words for "and" and "or"
 * become separators. Digits and letters stay single tokens, because LaTeX reads \frac12 digit by digit.
 * Refuses: answers above CAIRN_TOKENS_MAX tokens (budget). Linear in the input.
 * Memory: tokens and what they point to live in the arena.
 */
#ifndef CAIRN_GRADE_LATEX_H
#define CAIRN_GRADE_LATEX_H

#include <stddef.h>

#include "base/arena.h"
#include "base/str.h"

#define CAIRN_TOKENS_MAX 8192

enum cairn_tok_kind {
    TOK_CHAR,  /* ch: a digit, a letter or ASCII punctuation */
    TOK_SYM,   /* s: a named symbol: "pi", "alpha", "infty", ... */
    TOK_FUNC,  /* s: "sin", "ln", ... */
    TOK_TEXT,  /* s: words out of a \text-like wrapper, blanks single, trimmed */
    TOK_GROUP, /* a comma that groups digits for certain: {,} or ,\! */
    TOK_LSET,  /* \{ */
    TOK_RSET,  /* \} */
    TOK_AND,   /* separators that are words */
    TOK_OR,
    TOK_FRAC,
    TOK_BINOM,
    TOK_SQRT,
    TOK_PM,
    TOK_MP,
    TOK_CUP,
    TOK_CAP,
    TOK_MINUS_SET,
    TOK_IN,
    TOK_LE,
    TOK_GE,
    TOK_NE,
    TOK_APPROX,
    TOK_OVERLINE,
    TOK_FLOOR_L,
    TOK_FLOOR_R,
    TOK_CEIL_L,
    TOK_CEIL_R,
    TOK_LANGLE,
    TOK_RANGLE,
    TOK_BEGIN, /* s: environment */
    TOK_END,   /* s: environment */
    TOK_ROW,   /* \\ */
    TOK_SCALE, /* ch: power of ten of "hundred" (2), "thousand" (3), "million" (6), ... */
    TOK_OTHER  /* s: anything else; no mathematics can be read from it */
};

struct cairn_tok {
    enum cairn_tok_kind kind;
    unsigned char space; /* blanks stand before it */
    unsigned char thin;  /* ... and they were a thin space command: may group digits */
    char ch;
    const char *s; /* (NUL-terminated) in the arena or static */
};

struct cairn_toks {
    struct cairn_tok *t; /* (n) */
    int n;
};

enum cairn_tok_result { CAIRN_TOK_OK = 0, CAIRN_TOK_TOO_LONG, CAIRN_TOK_NOMEM };

/* Outer delimiters, an outer box and trailing punctuation are gone from the result. */
enum cairn_tok_result cairn_latex_tokens(struct cairn_arena *arena, const char *p, size_t n, struct cairn_toks *out);

/* One spelling: the same for token lists that differ in blanks, wrappers and command synonyms only. */
void cairn_latex_canonical(const struct cairn_toks *in, struct cairn_str *out);

/* Words: nothing but letters, TEXT and punctuation of sentences. */
int cairn_latex_is_words(const struct cairn_toks *in);

#endif

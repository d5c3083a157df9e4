/* latex_words.h - the dictionary of the answer lexer: what commands, plain words and code points mean. Pure look-ups in tables.
 *
 * For latex.c alone; nothing is allocated, all texts are static.
 */
#ifndef CAIRN_GRADE_LATEX_WORDS_H
#define CAIRN_GRADE_LATEX_WORDS_H

#include <stdint.h>

#include "grade/latex.h"

struct cairn_latex_word {
    const char *name;
    enum cairn_tok_kind kind;
    char ch;
    const char *s; /* the token's text; in the tables NULL: name */
};

/* Both 1 and *w if the word of n bytes is known. A command that is a symbol, a function, an operation ("frac", "alpha", "sin"), without its
 * backslash; a plain word that means mathematics ("pi", "million"), in any case of letters. */
int cairn_latex_command(const char *p, size_t n, struct cairn_latex_word *w);
int cairn_latex_plain(const char *p, size_t n, struct cairn_latex_word *w);

enum cairn_latex_role {
    CAIRN_LATEX_OTHER,
    CAIRN_LATEX_SILENT, /* leaves nothing behind */
    CAIRN_LATEX_SIDE,   /* the same, and a dot behind it goes with it: left, right */
    CAIRN_LATEX_SPACE,
    CAIRN_LATEX_WRAPPER /* around words, or mathematics in another font */
};
enum cairn_latex_role cairn_latex_role(const char *p, size_t n);

/* p is `word`, which is in small letters, whatever its own case. */
int cairn_latex_same_word(const char *p, size_t n, const char *word);

/* A code point's spelling in ASCII or LaTeX, to be read again as input; NULL: it has none. */
const char *cairn_latex_of_unicode(uint32_t cp);
/* The name of a small Greek letter, U+03B1 to U+03C9; NULL: it is none. */
const char *cairn_latex_greek(uint32_t cp);

#endif

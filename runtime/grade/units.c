/* units.c - see units.h. The tables are the dictionary: add words there. */
#include "grade/units.h"

#include <ctype.h>
#include <string.h>

#include "grade/listed.h"

static int is_ch(const struct cairn_tok *t, char c)
{
    return t->kind == TOK_CHAR && t->ch == c;
}

/* Words that change what a number means: with one of these behind it the number is not the whole answer. */
static const char *const not_units[] = {
    "and",       "or",      "but",     "not",       "to",         "then",       "than",        "plus",     "minus",
    "times",     "over",    "divided", "by",        "mod",        "modulo",     "remainder",   "through",  "into",
    "is",        "was",     "are",     "were",      "be",         "wrong",      "incorrect",   "if",       "when",
    "where",     "half",    "halves",  "third",     "thirds",     "quarter",    "quarters",    "fourth",   "fourths",
    "fifth",     "fifths",  "sixth",   "sixths",    "seventh",    "sevenths",   "eighth",      "eighths",  "ninth",
    "ninths",    "tenth",   "tenths",  "hundredth", "hundredths", "thousandth", "thousandths", "squared",  "cubed",
    "factorial", "no",      "none",    "except",    "instead",    "maybe",      "more",        "less",     "most",
    "least",     "greater", "fewer",   "between",   "point",      "negative",   "positive",    "base",     "even",
    "odd",       "false",   "i",       "e",         "pi",         "nan",        "inf",         "root",     "power",
    "for",       "with",    "without", "excluding", "including",  "only",       "otherwise",   "about",    "approximately",
    "roughly",   "almost",  "nearly",  "hundred",   "thousand",   "million",    "billion",     "trillion", "sqrt",
    "sin",       "cos",     "tan",     "log",       "ln",         "exp",        "the",         "a",        "an",
    "it",        "answer",  "choice",  "x",         "y",          "z",          "n",           "k",        "one",
    "two",       "three",   "four",    "five",      "six",        "seven",      "eight",       "nine",     "ten",
    "rather",    "equals",  "equal",   "solution",  "solutions",  "twice",      "am",          "pm",       "noon",
    "midnight",  "double",  "triple",  "each",      "all",        "both",       "neither",     "either",
};
static const char *const short_units[] = {"cm",   "mm",    "km",      "kg",  "mg",  "ml",      "mL",     "ft",  "in",   "lb",
                                          "lbs",  "oz",    "mi",      "mph", "kmh", "hr",      "hrs",    "min", "mins", "sec",
                                          "secs", "yd",    "yds",     "sq",  "cu",  "nm",      "kW",     "kWh", "Hz",   "kHz",
                                          "MHz",  "cents", "dollars", "usd", "USD", "degrees", "percent"};
static const char one_letter_units[] = "mgshLlJNW";

static int word_is_unit(const char *w, size_t n)
{
    char lower[40];

    if (n == 0 || n >= sizeof lower)
        return 0;
    for (size_t i = 0; i < n; i++)
        lower[i] = (char)tolower((unsigned char)w[i]);
    lower[n] = 0;
    return !CAIRN_LISTED(not_units, lower, n);
}

/* Every word of a TEXT token. */
static int text_is_unit(const char *s)
{
    int words = 0;

    while (*s) {
        size_t n = 0;

        while (isalpha((unsigned char)s[n]))
            n++;
        if (n == 0) {
            if (!strchr(" .-/'", *s))
                return 0;
            s++;
            continue;
        }
        if ((n == 1 && !strchr(one_letter_units, s[0])) || !word_is_unit(s, n) || ++words > 5)
            return 0;
        s += n;
    }
    return words > 0;
}

/* Exponent of a unit ("^2", "^{3}") at t[i]; the tokens it takes. */
static int unit_power(const struct cairn_toks *in, int i)
{
    if (i + 1 < in->n && is_ch(&in->t[i], '^')) {
        const struct cairn_tok *t = &in->t[i + 1];

        if (is_ch(t, '2') || is_ch(t, '3'))
            return i + 2 < in->n && in->t[i + 2].kind == TOK_CHAR && isdigit((unsigned char)in->t[i + 2].ch) ? 0 : 2;
        if (is_ch(t, '{') && i + 3 < in->n && (is_ch(&in->t[i + 2], '2') || is_ch(&in->t[i + 2], '3')) && is_ch(&in->t[i + 3], '}'))
            return 4;
    }
    return 0;
}

static int is_letter(const struct cairn_tok *t)
{
    return t->kind == TOK_CHAR && isalpha((unsigned char)t->ch);
}

/* One word of a unit at t[i]: TEXT, or a run of letters. Returns the tokens it takes, 0 if there is none. */
static int unit_word(const struct cairn_toks *in, int i, int first)
{
    char w[40];
    int n = 0;

    if (i >= in->n)
        return 0;
    if (in->t[i].kind == TOK_TEXT)
        return text_is_unit(in->t[i].s) ? 1 : 0;
    while (i + n < in->n && is_letter(&in->t[i + n]) && (n == 0 || !in->t[i + n].space) && n < (int)sizeof w - 1) {
        w[n] = in->t[i + n].ch;
        n++;
    }
    w[n] = 0;
    if (n == 0 || !word_is_unit(w, (size_t)n))
        return 0;
    if (CAIRN_LISTED(short_units, w, (size_t)n))
        return n;
    if (first && !in->t[i].space)
        return 0; /* 2xy */
    if (n == 1)
        return strchr(one_letter_units, w[0]) ? 1 : 0;
    return n >= 3 && strpbrk(w, "aeiouyAEIOUY") ? n : 0;
}

int cairn_latex_without_units(struct cairn_arena *arena, const struct cairn_toks *in, struct cairn_toks *out)
{
    int changed = 0, digits = 0;

    out->n = 0;
    out->t = cairn_arena_alloc(arena, (size_t)(in->n ? in->n : 1) * sizeof *out->t);
    if (!out->t)
        return 0;
    for (int i = 0; i < in->n;) {
        int at = i, words = 0, n;

        while (digits && words < 6 && (n = unit_word(in, at, words == 0)) > 0) {
            at += n;
            at += unit_power(in, at);
            words++;
            if (at < in->n && (is_ch(&in->t[at], '/') || is_ch(&in->t[at], '-') || is_ch(&in->t[at], '.')) &&
                unit_word(in, at + 1, 0))
                at++;
        }
        if (words && at < in->n && is_ch(&in->t[at], '.'))
            at++;
        if (words && (at == in->n || is_ch(&in->t[at], ',') || in->t[at].kind == TOK_AND || in->t[at].kind == TOK_OR ||
                      is_ch(&in->t[at], ')') || is_ch(&in->t[at], '=') || in->t[at].kind == TOK_APPROX)) {
            changed = 1;
            i = at;
            continue;
        }
        if (in->t[i].kind == TOK_CHAR && isdigit((unsigned char)in->t[i].ch))
            digits = 1;
        else if (is_ch(&in->t[i], ',') || in->t[i].kind == TOK_AND || in->t[i].kind == TOK_OR)
            digits = 0;
        out->t[out->n++] = in->t[i++];
    }
    return changed;
}

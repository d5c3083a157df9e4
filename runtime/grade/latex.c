/* latex.c - spelling. See latex.h. The tables below are the dictionary: add spellings there. */
#include "grade/latex.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES_MAX 200 /* longer words in a wrapper are no answer of ours: TOK_OTHER */
#define WRAP_DEPTH_MAX 8   /* wrappers in wrappers */
#define LOOK_MAX       ((size_t)1 << 21)

struct lexer {
    struct cairn_arena *arena;
    struct cairn_tok *t;
    int n, cap;
    int space, thin;
    size_t looked; /* bytes that group_at has looked at: unclosed groups could make that a square */
    enum cairn_tok_result result;
};

static void push(struct lexer *lx, enum cairn_tok_kind kind, char ch, const char *s)
{
    struct cairn_tok *t;

    if (lx->result != CAIRN_TOK_OK)
        return;
    if (lx->n == CAIRN_TOKENS_MAX) {
        lx->result = CAIRN_TOK_TOO_LONG;
        return;
    }
    if (lx->n == lx->cap) {
        int cap = lx->cap ? lx->cap * 2 : 64;
        struct cairn_tok *grown = cairn_arena_alloc(lx->arena, (size_t)cap * sizeof *grown);

        if (!grown) {
            lx->result = CAIRN_TOK_NOMEM;
            return;
        }
        if (lx->n)
            memcpy(grown, lx->t, (size_t)lx->n * sizeof *grown);
        lx->t = grown;
        lx->cap = cap;
    }
    t = &lx->t[lx->n++];
    t->kind = kind;
    t->ch = ch;
    t->s = s ? s : "";
    t->space = (unsigned char)lx->space;
    t->thin = (unsigned char)lx->thin;
    lx->space = lx->thin = 0;
}

static const char *keep(struct lexer *lx, const char *p, size_t n)
{
    char *s = cairn_arena_alloc(lx->arena, n + 1);

    if (!s) {
        lx->result = CAIRN_TOK_NOMEM;
        return "";
    }
    memcpy(s, p, n);
    s[n] = 0;
    return s;
}

struct word {
    const char *name;
    enum cairn_tok_kind kind;
    char ch;
    const char *s; /* NULL: name */
};

/* Commands with a meaning of their own. */
static const struct word commands[] = {
    {"frac", TOK_FRAC, 0, NULL},
    {"dfrac", TOK_FRAC, 0, NULL},
    {"tfrac", TOK_FRAC, 0, NULL},
    {"cfrac", TOK_FRAC, 0, NULL},
    {"binom", TOK_BINOM, 0, NULL},
    {"dbinom", TOK_BINOM, 0, NULL},
    {"tbinom", TOK_BINOM, 0, NULL},
    {"sqrt", TOK_SQRT, 0, NULL},
    {"pm", TOK_PM, 0, NULL},
    {"mp", TOK_MP, 0, NULL},
    {"cdot", TOK_CHAR, '*', NULL},
    {"times", TOK_CHAR, '*', NULL},
    {"ast", TOK_CHAR, '*', NULL},
    {"div", TOK_CHAR, '/', NULL},
    {"cup", TOK_CUP, 0, NULL},
    {"bigcup", TOK_CUP, 0, NULL},
    {"cap", TOK_CAP, 0, NULL},
    {"bigcap", TOK_CAP, 0, NULL},
    {"setminus", TOK_MINUS_SET, 0, NULL},
    {"smallsetminus", TOK_MINUS_SET, 0, NULL},
    {"backslash", TOK_MINUS_SET, 0, NULL},
    {"in", TOK_IN, 0, NULL},
    {"le", TOK_LE, 0, NULL},
    {"leq", TOK_LE, 0, NULL},
    {"leqslant", TOK_LE, 0, NULL},
    {"ge", TOK_GE, 0, NULL},
    {"geq", TOK_GE, 0, NULL},
    {"geqslant", TOK_GE, 0, NULL},
    {"ne", TOK_NE, 0, NULL},
    {"neq", TOK_NE, 0, NULL},
    {"lt", TOK_CHAR, '<', NULL},
    {"gt", TOK_CHAR, '>', NULL},
    {"approx", TOK_APPROX, 0, NULL},
    {"approxeq", TOK_APPROX, 0, NULL},
    {"simeq", TOK_APPROX, 0, NULL},
    {"colon", TOK_CHAR, ':', NULL},
    {"overline", TOK_OVERLINE, 0, NULL},
    {"bar", TOK_OVERLINE, 0, NULL},
    {"lfloor", TOK_FLOOR_L, 0, NULL},
    {"rfloor", TOK_FLOOR_R, 0, NULL},
    {"lceil", TOK_CEIL_L, 0, NULL},
    {"rceil", TOK_CEIL_R, 0, NULL},
    {"langle", TOK_LANGLE, 0, NULL},
    {"rangle", TOK_RANGLE, 0, NULL},
    {"lbrace", TOK_LSET, 0, NULL},
    {"rbrace", TOK_RSET, 0, NULL},
    {"vert", TOK_CHAR, '|', NULL},
    {"lvert", TOK_CHAR, '|', NULL},
    {"rvert", TOK_CHAR, '|', NULL},
    {"mid", TOK_CHAR, '|', NULL},
    {"lbrack", TOK_CHAR, '[', NULL},
    {"rbrack", TOK_CHAR, ']', NULL},
    {"land", TOK_AND, 0, NULL},
    {"lor", TOK_OR, 0, NULL},
    {"wedge", TOK_AND, 0, NULL},
    {"vee", TOK_OR, 0, NULL},
    {"cr", TOK_ROW, 0, NULL},
    {"prime", TOK_CHAR, '\'', NULL},
    {"infty", TOK_SYM, 0, NULL},
    {"emptyset", TOK_SYM, 0, NULL},
    {"varnothing", TOK_SYM, 0, "emptyset"},
    {"angle", TOK_SYM, 0, NULL},
    {"triangle", TOK_SYM, 0, NULL},
    {"ell", TOK_SYM, 0, NULL},
    {"hbar", TOK_SYM, 0, NULL},
    {"Re", TOK_SYM, 0, NULL},
    {"Im", TOK_SYM, 0, NULL},
};

static const char *const greek[] = {"alpha",   "beta",     "gamma", "delta", "epsilon", "varepsilon", "zeta",   "eta",
                                    "theta",   "vartheta", "iota",  "kappa", "lambda",  "mu",         "nu",     "xi",
                                    "omicron", "pi",       "rho",   "sigma", "tau",     "upsilon",    "phi",    "varphi",
                                    "chi",     "psi",      "omega", "Gamma", "Delta",   "Theta",      "Lambda", "Xi",
                                    "Pi",      "Sigma",    "Phi",   "Psi",   "Omega"};

static const char *const functions[] = {"sin",    "cos",  "tan",  "cot",  "sec", "csc", "arcsin", "arccos",
                                        "arctan", "sinh", "cosh", "tanh", "log", "ln",  "lg",     "exp",
                                        "gcd",    "lcm",  "max",  "min",  "det", "deg", "arg"};

/* Commands that leave nothing behind. */
static const char *const silent[] = {"left",   "right",        "bigl",      "bigr",        "Bigl",     "Bigr",          "biggl",
                                     "biggr",  "Biggl",        "Biggr",     "big",         "Big",      "bigg",          "Bigg",
                                     "middle", "displaystyle", "textstyle", "scriptstyle", "limits",   "nolimits",      "mathstrut",
                                     "strut",  "rm",           "bf",        "it",          "boldmath", "left.",         "phantom",
                                     "hfill",  "null",         "degree",    "degrees",     "dollar",   "displaylimits", "nonumber"};
static const char *const spaces[] = {"quad", "qquad", "enspace", "enskip", "thinspace", "hspace", "space", "newline", "par"};

/* Wrappers whose content is words, and wrappers whose content is mathematics in another font. */
static const char *const word_wrappers[] = {
    "text", "textbf",  "textit",       "textrm",    "texttt", "textsf", "textnormal", "textsc", "mbox",   "hbox",
    "emph", "mathrm",  "operatorname", "underline", "textup", "mathsf", "mathtt",     "mathit", "mathbf", "boldsymbol",
    "bm",   "mathcal", "mathfrak",     "mathscr",   "boxed",  "fbox",   "ensuremath", "tiny",   "large"};

static int listed(const char *const *list, size_t n, const char *p, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(list[i]) == len && memcmp(list[i], p, len) == 0)
            return (int)i + 1;
    return 0;
}
#define LISTED(list, p, len) listed(list, sizeof(list) / sizeof *(list), p, len)

/* Words in plain text that mean mathematics. */
static const struct word plain_words[] = {
    {"sqrt", TOK_SQRT, 0, NULL},     {"pi", TOK_SYM, 0, NULL},        {"infinity", TOK_SYM, 0, "infty"},
    {"inf", TOK_SYM, 0, "infty"},    {"infty", TOK_SYM, 0, NULL},     {"and", TOK_AND, 0, NULL},
    {"or", TOK_OR, 0, NULL},         {"hundred", TOK_SCALE, 2, NULL}, {"thousand", TOK_SCALE, 3, NULL},
    {"million", TOK_SCALE, 6, NULL}, {"billion", TOK_SCALE, 9, NULL}, {"trillion", TOK_SCALE, 12, NULL},
    {"union", TOK_CUP, 0, NULL},     {"theta", TOK_SYM, 0, NULL},     {"alpha", TOK_SYM, 0, NULL},
    {"beta", TOK_SYM, 0, NULL},      {"lambda", TOK_SYM, 0, NULL},    {"sin", TOK_FUNC, 0, NULL},
    {"cos", TOK_FUNC, 0, NULL},      {"tan", TOK_FUNC, 0, NULL},      {"cot", TOK_FUNC, 0, NULL},
    {"sec", TOK_FUNC, 0, NULL},      {"csc", TOK_FUNC, 0, NULL},      {"log", TOK_FUNC, 0, NULL},
    {"ln", TOK_FUNC, 0, NULL},       {"exp", TOK_FUNC, 0, NULL},
};

/* Code points with an ASCII or LaTeX spelling; the replacement is read again as input. */
static const struct {
    uint32_t cp;
    const char *as;
} unicode[] = {
    {0x2212, "-"},
    {0x2010, "-"},
    {0x2011, "-"},
    {0x2012, "-"},
    {0x2013, "-"},
    {0x2014, "-"},
    {0xFE63, "-"},
    {0x00D7, "*"},
    {0x2715, "*"},
    {0x22C5, "*"},
    {0x00B7, "*"},
    {0x2219, "*"},
    {0x2217, "*"},
    {0x00F7, "/"},
    {0x2215, "/"},
    {0x2044, "/"},
    {0x03C0, "\\pi "},
    {0x221E, "\\infty "},
    {0x221A, "\\sqrt "},
    {0x2264, "\\le "},
    {0x2265, "\\ge "},
    {0x2A7D, "\\le "},
    {0x2A7E, "\\ge "},
    {0x2260, "\\ne "},
    {0x2248, "\\approx "},
    {0x222A, "\\cup "},
    {0x2229, "\\cap "},
    {0x2208, "\\in "},
    {0x00B1, "\\pm "},
    {0x2213, "\\mp "},
    {0x2205, "\\emptyset "},
    {0x211D, "\\mathbb{R}"},
    {0x2124, "\\mathbb{Z}"},
    {0x2115, "\\mathbb{N}"},
    {0x211A, "\\mathbb{Q}"},
    {0x2102, "\\mathbb{C}"},
    {0x2216, "\\setminus "},
    {0x00B2, "^{2}"},
    {0x00B3, "^{3}"},
    {0x00B9, "^{1}"},
    {0x2070, "^{0}"},
    {0x2074, "^{4}"},
    {0x2075, "^{5}"},
    {0x2076, "^{6}"},
    {0x2077, "^{7}"},
    {0x2078, "^{8}"},
    {0x2079, "^{9}"},
    {0x207F, "^{n}"},
    {0x2080, "_{0}"},
    {0x2081, "_{1}"},
    {0x2082, "_{2}"},
    {0x2083, "_{3}"},
    {0x2084, "_{4}"},
    {0x2085, "_{5}"},
    {0x2086, "_{6}"},
    {0x2087, "_{7}"},
    {0x2088, "_{8}"},
    {0x2089, "_{9}"},
    {0x00BD, "\\frac{1}{2}"},
    {0x00BC, "\\frac{1}{4}"},
    {0x00BE, "\\frac{3}{4}"},
    {0x2153, "\\frac{1}{3}"},
    {0x2154, "\\frac{2}{3}"},
    {0x27E8, "\\langle "},
    {0x27E9, "\\rangle "},
    {0x230A, "\\lfloor "},
    {0x230B, "\\rfloor "},
    {0x2308, "\\lceil "},
    {0x2309, "\\rceil "},
    {0x2220, "\\angle "},
    {0x25B3, "\\triangle "},
    {0x2032, "'"},
    {0x2019, "'"},
    {0x3001, ","},
    {0x3002, "."},
    {0x2223, "|"},
    {0x2236, ":"},
    {0x00B0, ""},
    {0x00BA, ""},
    {0x20AC, ""},
    {0x00A3, ""},
    {0x00A5, ""},
    {0x00A2, ""},
    {0x20B9, ""},
    {0x200B, ""},
    {0x200C, ""},
    {0x200D, ""},
    {0x2060, ""},
    {0xFEFF, ""},
    {0x00AD, ""},
    {0x2061, ""},
    {0x2062, "*"},
    {0x00A0, " "},
    {0x202F, "\\,"},
    {0x2009, "\\,"},
    {0x200A, "\\,"},
    {0x2002, " "},
    {0x2003, " "},
    {0x2004, " "},
    {0x2005, " "},
    {0x2006, "\\,"},
    {0x2007, " "},
    {0x2008, " "},
    {0x205F, " "},
    {0x3000, " "},
};

static const char greek_order[] =
    "alpha\0beta\0gamma\0delta\0epsilon\0zeta\0eta\0theta\0iota\0kappa\0lambda\0mu\0nu\0xi\0omicron\0pi\0rho"
    "\0sigma\0sigma\0tau\0upsilon\0phi\0chi\0psi\0omega\0";

static const char *greek_small(uint32_t cp) /* U+03B1 .. U+03C9 */
{
    const char *s = greek_order;

    for (uint32_t k = 0x3B1; k < cp; k++)
        s += strlen(s) + 1;
    return s;
}

static void lex(struct lexer *lx, const char *p, size_t n, int depth);

/* Content of the brace group that begins at p[0] == '{'; *after is the index behind it. 0 if it never closes. */
static int group_at(struct lexer *lx, const char *p, size_t n, size_t *content, size_t *after)
{
    size_t depth = 0;

    for (size_t i = 0; i < n; i++) {
        if (++lx->looked > LOOK_MAX) {
            lx->result = CAIRN_TOK_TOO_LONG;
            return 0;
        }
        if (p[i] == '\\') {
            i++;
        } else if (p[i] == '{') {
            depth++;
        } else if (p[i] == '}' && --depth == 0) {
            *content = i - 1;
            *after = i + 1;
            return 1;
        }
    }
    return 0;
}

static int same_word(const char *p, size_t n, const char *word)
{
    if (strlen(word) != n)
        return 0;
    for (size_t i = 0; i < n; i++)
        if (tolower((unsigned char)p[i]) != word[i])
            return 0;
    return 1;
}

/* What stands in a \text-like wrapper: a separator, mathematics, or words. */
static void lex_wrapped(struct lexer *lx, const char *p, size_t n, int depth)
{
    char words[TEXT_BYTES_MAX + 1];
    size_t len = 0, letters = 0, run = 0, best = 0;
    int digit_first = 0, command = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)p[i];

        if (c == '~' || c <= ' ' || (c == '\\' && i + 1 < n && strchr(" ,;:!", p[i + 1]) && p[i + 1])) {
            if (c == '\\')
                i++;
            if (len && words[len - 1] != ' ' && len < TEXT_BYTES_MAX)
                words[len++] = ' ';
            run = 0;
            continue;
        }
        if (c == '\\' || c == '{' || c == '^' || c == '$')
            command = 1;
        if (len == 0 && (isdigit(c) || strchr("-.(+[", c)))
            digit_first = 1;
        if (isalpha(c)) {
            letters++;
            if (++run > best)
                best = run;
        } else {
            run = 0;
        }
        if (len >= TEXT_BYTES_MAX) {
            push(lx, TOK_OTHER, 0, "longtext");
            return;
        }
        words[len++] = (char)c;
    }
    while (len && words[len - 1] == ' ')
        len--;
    if (len == 0) {
        lx->space = 1;
        return;
    }
    if (same_word(words, len, "and") || same_word(words, len, ", and")) {
        push(lx, TOK_AND, 0, NULL);
    } else if (same_word(words, len, "or") || same_word(words, len, ", or")) {
        push(lx, TOK_OR, 0, NULL);
    } else if (digit_first || command || best < 2) {
        if (!digit_first && !command)
            lx->space = 1;        /* "5\\text{m}" is a unit more than a factor */
        lex(lx, p, n, depth + 1); /* 13, (C), A5, $x$, a degree sign */
    } else {
        for (size_t i = 0; i < sizeof plain_words / sizeof *plain_words; i++)
            if (plain_words[i].kind != TOK_AND && plain_words[i].kind != TOK_OR && same_word(words, len, plain_words[i].name)) {
                push(lx, plain_words[i].kind, plain_words[i].ch, plain_words[i].s ? plain_words[i].s : plain_words[i].name);
                return;
            }
        push(lx, TOK_TEXT, 0, keep(lx, words, len));
    }
}

static void lex_replacement(struct lexer *lx, const char *z, int depth)
{
    lex(lx, z, strlen(z), depth + 1);
}

/* The command whose name begins at p[1]; returns the bytes it takes. */
static size_t lex_command(struct lexer *lx, const char *p, size_t n, int depth)
{
    size_t len = 0, content, after, i;
    const char *name = p + 1;

    while (1 + len < n && isalpha((unsigned char)name[len]) && (unsigned char)name[len] < 0x80)
        len++;
    if (len == 0) {
        char c = n > 1 ? name[0] : 0;

        if (n == 1)
            return 1; /* a lone backslash at the end */
        switch (c) {
        case '{':
            push(lx, TOK_LSET, 0, NULL);
            break;
        case '}':
            push(lx, TOK_RSET, 0, NULL);
            break;
        case '|':
            push(lx, TOK_OTHER, 0, "norm");
            break;
        case '\\':
            push(lx, TOK_ROW, 0, NULL);
            break;
        case ',':
        case ':':
            lx->thin = 1;
            lx->space = 1;
            break;
        case '!': /* "12,\!000": the comma groups; elsewhere nothing */
            if (lx->n && lx->t[lx->n - 1].kind == TOK_CHAR && lx->t[lx->n - 1].ch == ',')
                lx->t[lx->n - 1].kind = TOK_GROUP;
            break;
        case ';':
        case ' ':
        case '\n':
        case '\t':
            lx->space = 1;
            break;
        case '$':
        case '%':
        case '(':
        case ')':
        case '[':
        case ']':
            break;
        case '#':
        case '&':
        case '_':
            push(lx, TOK_OTHER, 0, c == '#' ? "#" : c == '&' ? "&" : "_");
            break;
        default:
            return 1; /* a stray backslash in front of something readable */
        }
        return 2;
    }
    i = 1 + len;
    if (LISTED(silent, name, len)) {
        /* \left. is an invisible bracket */
        if (i < n && p[i] == '.' && (LISTED(silent, name, len) <= 2))
            i++;
        return i;
    }
    if (LISTED(spaces, name, len)) {
        lx->space = 1;
        if (len == 6 && memcmp(name, "hspace", 6) == 0 && i < n && p[i] == '{' && group_at(lx, p + i, n - i, &content, &after))
            i += after;
        return i;
    }
    if (len == 4 && memcmp(name, "circ", 4) == 0)
        return i; /* a degree mark wherever it stands */
    if (LISTED(word_wrappers, name, len)) {
        while (i < n && p[i] == ' ')
            i++;
        if (i < n && p[i] == '{' && group_at(lx, p + i, n - i, &content, &after)) {
            if (depth >= WRAP_DEPTH_MAX) {
                push(lx, TOK_OTHER, 0, "deep");
                return i + after;
            }
            if ((len == 5 && memcmp(name, "boxed", 5) == 0) || (len == 4 && memcmp(name, "fbox", 4) == 0))
                lex(lx, p + i + 1, content, depth + 1);
            else
                lex_wrapped(lx, p + i + 1, content, depth);
            return i + after;
        }
        return i; /* "\mathrm cm", "\mathbf x": the font of what comes next */
    }
    if ((len == 6 && memcmp(name, "mathbb", 6) == 0)) {
        while (i < n && (p[i] == ' ' || p[i] == '{'))
            i++;
        if (i < n && isupper((unsigned char)p[i])) {
            char set[3] = {'B', p[i], 0};

            push(lx, TOK_SYM, 0, keep(lx, set, 2));
            i++;
            while (i < n && (p[i] == ' ' || p[i] == '}')) {
                if (p[i++] == '}')
                    break;
            }
        }
        return i;
    }
    if ((len == 5 && memcmp(name, "begin", 5) == 0) || (len == 3 && memcmp(name, "end", 3) == 0)) {
        int begin = name[0] == 'b';

        if (i < n && p[i] == '{' && group_at(lx, p + i, n - i, &content, &after) && content < 32) {
            push(lx, begin ? TOK_BEGIN : TOK_END, 0, keep(lx, p + i + 1, content));
            i += after;
            if (begin && i < n && p[i] == '{' && strcmp(lx->result == CAIRN_TOK_OK ? lx->t[lx->n - 1].s : "", "array") == 0 &&
                group_at(lx, p + i, n - i, &content, &after))
                i += after; /* column specification */
            return i;
        }
        push(lx, TOK_OTHER, 0, "environment");
        return i;
    }
    for (size_t k = 0; k < sizeof commands / sizeof *commands; k++)
        if (strlen(commands[k].name) == len && memcmp(commands[k].name, name, len) == 0) {
            push(lx, commands[k].kind, commands[k].ch, commands[k].s ? commands[k].s : commands[k].name);
            return i;
        }
    for (size_t k = 0; k < sizeof greek / sizeof *greek; k++)
        if (strlen(greek[k]) == len && memcmp(greek[k], name, len) == 0) {
            push(lx, TOK_SYM, 0, greek[k]);
            return i;
        }
    for (size_t k = 0; k < sizeof functions / sizeof *functions; k++)
        if (strlen(functions[k]) == len && memcmp(functions[k], name, len) == 0) {
            push(lx, TOK_FUNC, 0, functions[k]);
            return i;
        }
    push(lx, TOK_OTHER, 0, keep(lx, name, len < 64 ? len : 64));
    return i;
}

/* "^\circ", "^{\circ}", "^o": the circumflex goes with the degree mark. Returns bytes taken, 0 if it is a power. */
static size_t degree_at(const char *p, size_t n)
{
    static const char *const form[] = {"^\\circ",     "^{\\circ}",    "^{\\circ }",     "^ \\circ",    "^\\degree",
                                       "^{\\degree}", "^{\\text{o}}", "^{\\mathrm{o}}", "^{ \\circ }", "^{\\ \\circ}",
                                       "^\\text{o}",  "^{\xC2\xB0}",  "^\xC2\xB0"};

    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        size_t len = strlen(form[i]);

        if (n >= len && memcmp(p, form[i], len) == 0 && !(n > len && form[i][len - 1] == 'c' && isalpha((unsigned char)p[len])))
            return len;
    }
    return 0;
}

static void lex(struct lexer *lx, const char *p, size_t n, int depth)
{
    if (depth > WRAP_DEPTH_MAX + 2) {
        push(lx, TOK_OTHER, 0, "deep");
        return;
    }
    for (size_t i = 0; i < n && lx->result == CAIRN_TOK_OK;) {
        unsigned char c = (unsigned char)p[i];
        size_t used;

        if (c >= 0x80) {
            int32_t cp = cairn_utf8_next((const unsigned char *)p + i, n - i, &used);
            int done = 0;

            for (size_t k = 0; cp >= 0 && k < sizeof unicode / sizeof *unicode && !done; k++)
                if (unicode[k].cp == (uint32_t)cp) {
                    lex_replacement(lx, unicode[k].as, depth);
                    done = 1;
                }
            if (!done && cp >= 0xFF01 && cp <= 0xFF5E) {
                char ascii[2] = {(char)(cp - 0xFF01 + 0x21), 0};

                lex_replacement(lx, ascii, depth);
                done = 1;
            }
            if (!done && cp >= 0x3B1 && cp <= 0x3C9) {
                push(lx, TOK_SYM, 0, greek_small((uint32_t)cp));
                done = 1;
            }
            if (!done)
                push(lx, TOK_OTHER, 0, keep(lx, p + i, used));
            i += used;
            continue;
        }
        if (c == '\\') {
            i += lex_command(lx, p + i, n - i, depth);
            continue;
        }
        if (c <= ' ' || c == 127 || c == '~') {
            lx->space = 1;
            i++;
            continue;
        }
        if (c == '$' || c == '%') {
            i++;
            continue;
        }
        if (c == '^' && (used = degree_at(p + i, n - i)) != 0) {
            i += used;
            continue;
        }
        if (c == '{' && n - i >= 3 && p[i + 1] == ',' && p[i + 2] == '}') {
            push(lx, TOK_GROUP, 0, NULL);
            i += 3;
            continue;
        }
        if (c == '*' && i + 1 < n && p[i + 1] == '*') {
            push(lx, TOK_CHAR, '^', NULL);
            i += 2;
            continue;
        }
        if ((c == '<' || c == '>' || c == '!') && i + 1 < n && p[i + 1] == '=') {
            push(lx, c == '<' ? TOK_LE : c == '>' ? TOK_GE : TOK_NE, 0, NULL);
            i += 2;
            continue;
        }
        if (isalpha(c)) { /* a whole word that means something */
            size_t len = 1, k;

            while (i + len < n && isalpha((unsigned char)p[i + len]) && (unsigned char)p[i + len] < 0x80)
                len++;
            for (k = 0; len >= 2 && k < sizeof plain_words / sizeof *plain_words; k++)
                if (same_word(p + i, len, plain_words[k].name) && (i == 0 || p[i - 1] != '_'))
                    break;
            if (len >= 2 && k < sizeof plain_words / sizeof *plain_words) {
                push(lx, plain_words[k].kind, plain_words[k].ch, plain_words[k].s ? plain_words[k].s : plain_words[k].name);
                i += len;
                continue;
            }
            for (k = 0; k < len; k++)
                push(lx, TOK_CHAR, p[i + k], NULL);
            i += len;
            continue;
        }
        push(lx, TOK_CHAR, (char)c, NULL);
        i++;
    }
}

static int is_ch(const struct cairn_tok *t, char c)
{
    return t->kind == TOK_CHAR && t->ch == c;
}

enum cairn_tok_result cairn_latex_tokens(struct cairn_arena *arena, const char *p, size_t n, struct cairn_toks *out)
{
    struct lexer lx = {.arena = arena};
    int at = 0, end;

    out->t = NULL;
    out->n = 0;
    lex(&lx, p, n, 0);
    if (lx.result != CAIRN_TOK_OK)
        return lx.result;
    end = lx.n;
    while (end > at) { /* trailing punctuation */
        const struct cairn_tok *t = &lx.t[end - 1];

        if (is_ch(t, '.') || is_ch(t, ',') || is_ch(t, ';') || is_ch(t, ':') || is_ch(t, '?') || t->kind == TOK_ROW)
            end--;
        else
            break;
    }
    while (at < end && (is_ch(&lx.t[at], ':') || is_ch(&lx.t[at], '=')))
        at++;
    out->t = lx.t ? lx.t + at : NULL; /* nothing but wrappers */
    out->n = end - at;
    return CAIRN_TOK_OK;
}

/* --- one spelling --------------------------------------------------------------------------------------------------- */

void cairn_latex_canonical(const struct cairn_toks *in, struct cairn_str *out)
{
    for (int i = 0; i < in->n; i++) {
        const struct cairn_tok *t = &in->t[i];

        switch (t->kind) {
        case TOK_CHAR:
            if (t->space && i > 0 && in->t[i - 1].kind == TOK_CHAR && isalnum((unsigned char)in->t[i - 1].ch) &&
                isdigit((unsigned char)t->ch))
                cairn_str_putc(out, ' ');
            cairn_str_putc(out, t->ch);
            break;
        case TOK_TEXT:
            for (const char *s = t->s; *s; s++)
                if (*s != ' ')
                    cairn_str_putc(out, *s);
            break;
        case TOK_SCALE:
            cairn_str_printf(out, "\\%s ", t->s);
            break;
        default:
            cairn_str_printf(out, "\\%d%s ", (int)t->kind,
                             t->kind == TOK_SYM || t->kind == TOK_FUNC || t->kind == TOK_OTHER || t->kind == TOK_BEGIN ||
                                     t->kind == TOK_END
                                 ? t->s
                                 : "");
        }
    }
}

static int is_letter(const struct cairn_tok *t)
{
    return t->kind == TOK_CHAR && isalpha((unsigned char)t->ch);
}

int cairn_latex_is_words(const struct cairn_toks *in)
{
    int letters = 0, text = 0;

    for (int i = 0; i < in->n; i++) {
        const struct cairn_tok *t = &in->t[i];

        if (t->kind == TOK_TEXT)
            text = 1;
        else if (is_letter(t))
            letters++;
        else if (!(t->kind == TOK_CHAR && strchr(".-'(),", t->ch)))
            return 0;
    }
    return text || letters >= 3;
}
